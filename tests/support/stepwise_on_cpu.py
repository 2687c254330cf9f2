"""The alternating kernels' text compiled for the host, and called as on a GPU: block by block, thread by thread, step by step.

Products are NumPy's, of the arrays that the kernels leave for them; steps are done in chunks, each begun anew.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from support.dense_cases import (
    MODELS,
    Backward,
    Case,
    DenseCell,
    Forward,
    backward_arguments,
    numpy_dtype,
    outputs_by_name,
    pointer,
    poisoned_backward,
    poisoned_forward,
    products_read,
    shared_arguments,
)
from support.emulated_code import HostCode, compiled

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.build.target import Target
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.render import render
from minrnn_gen.codegen.signature import BEGIN, STEP, STEP_SIGNATURE, names_of, signature
from minrnn_gen.config.gpu_profile import load_profile, profile_bytes
from minrnn_gen.config.spec import load_spec
from minrnn_gen.plan.families import solutions
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.precision import precision_of

HEAD_DIM = 7


@dataclass(frozen=True)
class HostKernels(DenseCell):
    """Both kernels of both passes of a cell; steps are done in chunks of `chunk`."""

    code: dict[str, HostCode]
    chunk: int = 4

    def forward(self, case: Case) -> Forward:
        count, written = len(case.sequences), poisoned_forward(case)
        products = len(self.cell.recurrent_gates)
        state = np.full((len(self.cell.states), count, self.hidden), np.nan, self.real)
        hidden = np.full((count, self.hidden), np.nan, self.storage)
        packed = np.full((self.heads, products * HEAD_DIM, HEAD_DIM), np.nan, self.storage)
        product = np.full((count, self.heads, products, HEAD_DIM), np.nan, self.real)

        def multiply() -> None:
            by_head = hidden.astype(np.float64).reshape(count, self.heads, HEAD_DIM)
            found = np.einsum("nki,sni->snk", packed.astype(np.float64), by_head)
            product[...] = found.reshape(product.shape)

        arguments = {
            **shared_arguments(case),
            "R": pointer(case.R),
            **outputs_by_name(case, written),
            "keeps_storage": case.kept == "storage",
            "state": pointer(state),
            "hidden": pointer(hidden),
            "packed": pointer(packed),
            "product": pointer(product),
            "reverse": case.reverse,
        }
        self.run("forward", arguments, count, case.time, multiply)
        return written

    def backward(self, case: Case, saved: dict[str, Any]) -> Backward:
        count, written, products = len(case.sequences), poisoned_backward(case), products_read(case, saved)
        dstate = np.full((len(self.cell.states), count, self.hidden), np.nan, self.real)
        dhidden = np.full((count, self.hidden), np.nan, self.real)
        dproduct = np.full((count, self.heads, len(self.cell.recurrent_gates), HEAD_DIM), np.nan, self.storage)

        def multiply() -> None:
            transposed = np.einsum("gnoi,sngo->sni", case.R.astype(np.float64), dproduct.astype(np.float64))
            dhidden[...] = transposed.reshape(dhidden.shape)

        real = ctypes.c_double if self.real == np.float64 else ctypes.c_float
        arguments = {
            **shared_arguments(case),
            **backward_arguments(case, saved, products, written),
            "dstate": pointer(dstate),
            "dhidden": pointer(dhidden),
            "dproduct": pointer(dproduct),
            "clip": real(case.clip),
            "reverse": case.reverse,
        }
        self.run("backward", arguments, count, case.time, multiply)
        return written

    def run(self, kernel_pass: KernelPass, arguments: dict[str, Any], batch: int, time: int, multiply: Any) -> None:
        """Run all steps of a pass and the one behind them in chunks, `multiply()` before each step."""
        # At most 8 bytes for each argument; more than there are, so that writing beyond them would be seen.
        call = np.full(len(arguments) + 8, 0x5A5A5A5A5A5A5A5A, np.int64)
        begin = signature(self.code[kernel_pass].plan, names_of(self.lowered[kernel_pass]), BEGIN)
        code, at = self.code[kernel_pass], call.ctypes.data
        for first_step in range(0, time + 1, self.chunk):
            code.run(2 if first_step == 0 else 1, pack(begin, {"call": at, "first_step": first_step, **arguments}), part=BEGIN)
            for index in range(self.chunk):
                multiply()
                step = pack(STEP_SIGNATURE, {"call": at, "step_in_chunk": index})
                code.run(-(-batch * self.hidden // code.plan.launch.threads), step, part=STEP)
        assert (call[len(arguments) + 2 :] == 0x5A5A5A5A5A5A5A5A).all()


@functools.cache
def host_kernels(model: str, heads: int, precision: str) -> HostKernels:
    """Compile the kernels of a model of `MODELS`; the same for the same."""
    spec = load_spec({"model": MODELS[model], "hidden_size": heads * HEAD_DIM, "heads": heads, "precision": precision})
    store, lowered, code = Store(cache_folder()), {}, {}
    builder = Builder(spec, Target(load_profile("h200"), profile_bytes("h200"), "spec"), store)
    for kernel_pass in ("forward", "backward"):
        *_, solution = solutions(builder.problem(builder.key_of(kernel_pass, builder.hinted_specialization)))
        plan, lowered[kernel_pass] = solution.plan(), builder.lowered_for(kernel_pass)
        code[kernel_pass] = compiled(render(plan, lowered[kernel_pass], ()), plan, store.folder)
    numbers = precision_of(precision)
    storage, real = numpy_dtype(numbers.storage_dtype), numpy_dtype(numbers.arithmetic_dtype)
    cell = builder.cell
    return HostKernels(cell, heads, HEAD_DIM, storage, real, lowered, code)
