"""Calls on host arrays, run by the kernels' own text as a GPU would run them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

from minrnn_gen.call.arguments import Call, IncomingGradient
from minrnn_gen.call.array import Array
from minrnn_gen.call.key import Reading
from minrnn_gen.interpret.backend import HostSteps, HostWalk, Seed
from minrnn_gen.interpret.builder import HostBuilder
from minrnn_gen.interpret.library import HostKernel, host_kernel
from minrnn_gen.plan.kernel_plan import KeptStates, KernelPlan, Regime
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.run.dense import DenseRun
from minrnn_gen.run.replay import Steps
from minrnn_gen.run.saved import Forward
from minrnn_gen.run.scan import DeviceRun

# Groups of blocks that wait for each other across a grid, launched at once: more than one, and soon more launches.
GROUPS_AT_ONCE = 2


class HostScan(DeviceRun):
    """The calls of a scan or a diagonal cell; kernels come as their text, and steps are done by the machine."""

    @property
    def builder(self) -> HostBuilder:
        """What builds its kernels."""
        assert isinstance(self._builder, HostBuilder)
        return self._builder

    @cached_property
    def seed(self) -> Seed:
        """The seed of its launches."""
        return Seed()

    @cached_property
    def _local(self) -> threading.local:
        return threading.local()

    @cached_property
    def _texts(self) -> dict[str, HostKernel]:
        return {}

    def load_text(self, text: str, plan: KernelPlan) -> HostKernel:
        """Return the kernels of a text, compiled when it is first met."""
        if text not in self._texts:
            self._texts[text] = host_kernel(text, plan, self._builder.store)
        return self._texts[text]

    def _begin(self, like: Array, reading: Reading | None, *given: Call | Forward | IncomingGradient) -> Steps:
        steps = HostSteps(like, reading, given, self.seed)
        self._local.steps = steps
        return steps

    def _in_storage(self, array: Array) -> Array:
        # Where that is a copy it is of this run's own, of which nobody else tells it.
        found = super()._in_storage(array)
        self._local.steps.give(found)
        return found

    def _load(self, kernel_pass: KernelPass, regime: Regime) -> tuple[Any, KernelPlan]:
        text, plan = self._compiled(kernel_pass, regime)
        return _Launched(self.load_text(text.decode(), plan)), plan

    def _compiled(self, kernel_pass: KernelPass, regime: Regime) -> tuple[bytes, KernelPlan]:
        """Return the text of a kernel in place of its cubin."""
        key = (kernel_pass, regime)
        if key not in self._built:
            self._built[key] = self._builder.build(kernel_pass, regime)
        return self._built[key].source.encode(), self._built[key].plan


class _Launched:
    """A kernel as runs ask for it."""

    def __init__(self, kernel: HostKernel) -> None:
        self.launch = kernel.launch
        self.plan = kernel.plan

    def resident_blocks(self, _device: int | None, _threads: int) -> int:
        """Return how many blocks are launched at once where they wait for each other."""
        return GROUPS_AT_ONCE * self.plan.variables["grid_blocks"]


class HostDense(HostScan, DenseRun):
    """The calls of a dense cell."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._alternating: Any = HostWalk(self._contract, self.load_text)

    def _expect_backward(self) -> None:
        """Build nothing ahead."""

    def _walk(
        self,
        kernel_pass: KernelPass,
        kept: KeptStates,
        rows: tuple[Array, ...],
        steps: Steps,
        part: Call,
        arguments: Callable[..., tuple[Any, ...]],
        prepare: Callable[..., None] = lambda _scratch, _stream: None,
    ) -> None:
        if isinstance(steps, HostSteps):
            steps.give(part)
        super()._walk(kernel_pass, kept, rows, steps, part, arguments, prepare)
