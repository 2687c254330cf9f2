"""Kernels on the host, and calls of them with random arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from support.small_problems import solution_wanted

from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.config.spec import load_spec
from minrnn_gen.interpret.builder import EmulatedBuilder
from minrnn_gen.interpret.findings import Finding, KernelMisbehaved
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.plan.problem import KernelKey
from minrnn_gen.plan.solver import Solution
from minrnn_gen.run.target import target_of


@dataclass(frozen=True)
class HavingBuilder(EmulatedBuilder):
    """Builds, of each pass, the best candidate of those with most of the variables wanted."""

    wanted: tuple[tuple[str, int], ...] = ()

    def solve(self, key: KernelKey) -> Solution:
        """Return the candidates of the family that has most of the variables wanted."""
        return solution_wanted(self.solutions(key), dict(self.wanted)) if self.wanted else super().solve(key)

    def chosen(self, key: KernelKey) -> tuple[Solution, int]:
        """Return the first candidate with most of them."""
        solution = self.solve(key)
        having = [len(set(self.wanted) & set(one.items())) for one in solution.candidates]
        return solution, having.index(max(having))


def kernel_of(wanted: dict[str, int] | None = None, **spec: Any) -> InterpretedKernel:
    """Return a kernel of the best candidates of those with most of the variables wanted."""
    loaded = load_spec({"precision": "fp32", "gpu": "h200", **spec})
    builder = HavingBuilder(loaded, target_of(loaded), Store(cache_folder()), wanted=tuple((wanted or {}).items()))
    return InterpretedKernel(
        builder, (builder.build(builder.choose("forward", builder.hinted_specialization, builder.hinted_sizes)),)
    )


def faulty(kernel: InterpretedKernel, change: Callable[[str], str]) -> InterpretedKernel:
    """Make the kernel run another text than its own."""
    kernel.backend.substitute = lambda text, _: change(text)
    return kernel


def moved(array: Any, offset_bytes: int) -> Any:
    """Return the same values at an address that is `offset_bytes` beyond a multiple of 16."""
    room = np.empty(array.nbytes + 32, np.uint8)
    start = -room.ctypes.data % 16 + offset_bytes
    other = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    other[...] = array
    return other


def arguments_of(kernel: InterpretedKernel, batch: int, time: int) -> dict[str, Any]:
    interface, random = kernel.interface, np.random.default_rng(batch * 1000 + time)
    storage, carried = (numpy_dtype(one) for one in (interface.precision.storage_dtype, interface.precision.arithmetic_dtype))
    given: dict[str, Any] = {
        "x": random.normal(size=interface.shape(interface.preactivation_axes, batch, time)).astype(storage),
        "bias": random.normal(size=(len(interface.gates), interface.hidden_size)).astype(storage),
        "state": {name: random.uniform(1, 2, interface.state_shape(batch)).astype(carried) for name in interface.states},
    }
    if interface.recurrent_gates:
        given["R"] = (random.normal(size=interface.R_shape) / interface.head_dim**0.5).astype(storage)
    if interface.parameters:
        given["parameters"] = {
            name: random.uniform(-0.5, 0.5, interface.parameter_shape).astype(storage) for name in interface.parameters
        }
    return given


def findings(kernel: InterpretedKernel, seed: int, batch: int, time: int, backward: bool = False) -> tuple[Finding, ...]:
    """Return what is found in a call, empty where its results are right; a wrong result by itself is an error."""
    given = arguments_of(kernel, batch, time)
    try:
        with kernel.seeded(seed):
            if not backward:
                kernel(**given)
            else:
                y, _, saved = kernel.forward(**given)
                kernel.backward(saved, np.ones_like(y))
    except KernelMisbehaved as found:
        return found.findings
    return ()
