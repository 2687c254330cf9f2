"""The persistent kernels' text compiled for the host, called as on a GPU."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
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
    poison_rows_of_sequences,
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
from minrnn_gen.codegen.signature import names_of, signature
from minrnn_gen.config.gpu_profile import load_profile, profile_bytes
from minrnn_gen.config.spec import load_spec
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.precision import precision_of
from minrnn_gen.run.dense.launch import workspace_bytes_of
from minrnn_gen.run.recording.describer import ALL_ONES


@dataclass(frozen=True)
class PersistentKernels(DenseCell):
    """Both passes of a cell; `code` gives the kernel of each, compiled when it is first run."""

    code: Callable[[KernelPass], HostCode]

    def forward(self, case: Case) -> Forward:
        written = poisoned_forward(case)
        self._launch("forward", case, shared_arguments(case) | outputs_by_name(case, written))
        return written

    def backward(self, case: Case, saved: dict[str, Any]) -> Backward:
        written, products = poisoned_backward(case), products_read(case, saved)
        poison_rows_of_sequences(case, written)
        arguments = shared_arguments(case) | backward_arguments(case, saved, products, written)
        self._launch("backward", case, arguments | {"clip": ctypes.c_double(case.clip), "neighbours": ctypes.c_uint(0)})
        return written

    def _launch(self, kernel_pass: KernelPass, case: Case, values: dict[str, Any]) -> None:
        code = self.code(kernel_pass)
        clusters = self.heads * -(-len(case.sequences) // code.plan.variables["batch_tile"])
        workspace = np.full(workspace_bytes_of(code.plan, len(case.sequences)), ALL_ONES, np.uint8)
        values = values | {"R": pointer(case.R)}
        if code.plan.variables["grid_blocks"] > 1:
            values |= {"group_exchanges": pointer(workspace), "first_group": 0}
        arguments = pack(signature(code.plan, names_of(self.lowered[kernel_pass])), values)
        arrays = [one.array for one in arguments if getattr(one, "array", None) is not None]
        group_blocks = code.plan.variables["cluster_blocks"] * code.plan.variables["grid_blocks"]
        code.run(clusters * group_blocks, arguments, arrays, case.seed)


# Fewer registers than are estimated with the whole matrix in them: a tile of it less is enough.
REGISTERS_MISSING = 8


@functools.cache
def persistent_kernels(
    folder: Path,
    model: str,
    head_dim: int,
    heads: int,
    precision: str,
    specialization: Specialization,
    product: str,
    few_registers: bool,
    is_debug: bool,
    gpu: str = "h200",
    **wanted: int,
) -> PersistentKernels:
    """Return the kernels of a model of `MODELS` with most of the variables wanted; the same for the same.

    `few_registers`: for a GPU with so few that shared memory has a part of the matrix.
    """
    sizes = {"hidden_size": heads * head_dim, "heads": heads}
    spec = load_spec({"model": MODELS[model], **sizes, "precision": precision, "fp32_product": product})
    builder = Builder(spec, Target(load_profile(gpu), profile_bytes(gpu), "spec"), Store(cache_folder()))

    def plan_by(solver: Builder, kernel_pass: KernelPass) -> KernelPlan:
        solution = solver.solve(solver.key_of(kernel_pass, specialization))
        assert solution.family.strategy == "persistent"
        having = [len(wanted.items() & candidate.items()) for candidate in solution.candidates]
        return solution.plan(having.index(max(having)))

    def plan_of(kernel_pass: KernelPass) -> KernelPlan:
        plan = plan_by(builder, kernel_pass)
        if few_registers:
            fewer = {"registers_per_thread_max": plan.budget.registers_estimated - REGISTERS_MISSING}
            target = replace(builder.target, profile=builder.target.profile.model_copy(update=fewer))
            plan = plan_by(replace(builder, target=target), kernel_pass)
        assert ("matrix" in plan.budget.shared_map) == few_registers
        return replace(plan, waits_are_bounded=is_debug)

    @functools.cache
    def code(kernel_pass: KernelPass) -> HostCode:
        plan = plan_of(kernel_pass)
        return compiled(render(plan, builder.lowered_for(kernel_pass), ()), plan, folder)

    numbers = precision_of(precision)
    lowered = {kernel_pass: builder.lowered_for(kernel_pass) for kernel_pass in ("forward", "backward")}
    dtypes = (numpy_dtype(numbers.storage_dtype), numpy_dtype(numbers.arithmetic_dtype))
    return PersistentKernels(builder.cell, heads, head_dim, *dtypes, lowered, code, in_tf32=product == "tf32")
