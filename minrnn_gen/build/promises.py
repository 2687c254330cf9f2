"""The choice among compiled candidates: the best predicted that keeps its promise, or a faster one that spills little."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from minrnn_gen.build.nvrtc import KernelResources, broken_promises
from minrnn_gen.errors import CompileFailed, PromiseBroken

if TYPE_CHECKING:
    from minrnn_gen.build.artifact import BuiltKernel
    from minrnn_gen.plan.solver import Solution

# A candidate that breaks its promise is rare; when this many do in a row, the register estimate of the family is wrong.
ATTEMPTS = 16
# A step stores and loads a spilled value once, about 30 cycles of some 3,000. The backward of gru 1 x 768 spills two values and
# takes 1.58 ms for 1,024 steps on an H200, the next candidate without spills 2.61.
SHARE_OF_A_SPILLED_VALUE = 0.01
# As ptxas counts: 4 stored and 4 loaded. A kernel that spills more than 16 values was planned wrongly.
_BYTES_OF_A_VALUE, _BYTES_MOST = 8, 128


class Spills(PromiseBroken):
    """A compiled kernel breaks its promise by spills alone: it computes right, and somewhat slower than predicted."""

    def __init__(self, message: str, built: BuiltKernel) -> None:
        super().__init__(message)
        self.built = built

    @property
    def spill_bytes(self) -> int:
        """Spilled bytes, stored and loaded, of all kernels of the text."""
        return sum(kernel.spill_bytes for kernel in self.built.resources or ())

    @property
    def predicted_us(self) -> float:
        """Predicted time with what the spills add, in microseconds."""
        spilled_values = self.spill_bytes / _BYTES_OF_A_VALUE
        return self.built.plan.predicted_total_us * (1 + SHARE_OF_A_SPILLED_VALUE * spilled_values)


def demand_promises(built: BuiltKernel, kernels: tuple[KernelResources, ...]) -> None:
    """Raise PromiseBroken where the compiled `kernels` take more than the plan promised, `Spills` where they only spill."""
    broken = broken_promises(built.plan, kernels)
    if not broken:
        return
    message = f"{dict(built.plan.variables)}: {', '.join(broken)}"
    if broken_promises(built.plan, tuple(replace(kernel, spill_bytes=0) for kernel in kernels)):
        raise PromiseBroken(message)
    raise Spills(message, built)


def choose_compiled(
    solutions: Iterable[Solution], build: Callable[[Solution, tuple[int, ...]], Iterable[BuiltKernel | PromiseBroken]], of: str
) -> BuiltKernel:
    """Return the first of `solutions` that keeps its promise, or a better predicted one that breaks it by a few spills.

    `build` compiles the candidates at some ranks; `of` names the pass in errors. Raises CompileFailed where none can be taken.
    """
    dropped: list[str] = []
    reserve: Spills | None = None
    for solution in solutions:
        for ranks in solution.attempts(ATTEMPTS):
            if reserve and reserve.predicted_us <= solution.predicted_us(ranks[0]):
                return _taken(reserve, dropped)
            for built in build(solution, ranks):
                if not isinstance(built, PromiseBroken):
                    return replace(built, dropped=tuple(dropped))
                dropped.append(str(built))
                if isinstance(built, Spills) and built.spill_bytes <= _BYTES_MOST:
                    reserve = min(reserve or built, built, key=lambda spilling: spilling.predicted_us)
    if reserve:
        return _taken(reserve, dropped)
    raise CompileFailed(f"none of the {len(dropped)} best candidates for {of} kept its promise; of the first, {dropped[0]}")


def _taken(reserve: Spills, dropped: list[str]) -> BuiltKernel:
    """Return the kernel that spills, with the reason for it and the candidates that were dropped for others."""
    why = f"it spills {reserve.spill_bytes} bytes, and candidates that spill nothing are predicted to be slower"
    return replace(reserve.built, dropped=tuple(reason for reason in dropped if reason != str(reserve)), chosen=why)
