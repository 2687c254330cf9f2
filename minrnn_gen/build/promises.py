"""The choice among compiled candidates: the best predicted that keeps its promise, or a faster one that spills little."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from minrnn_gen.build.nvrtc import broken_promises
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


def spill_bytes(built: BuiltKernel) -> int:
    """Return the spilled bytes, stored and loaded, of all kernels of a text."""
    return sum(kernel.spill_bytes for kernel in built.resources or ())


def demand_promises(built: BuiltKernel, may_spill: bool) -> None:
    """Raise PromiseBroken where a compiled kernel takes more than its plan promised, beyond a few spills if it `may_spill`."""
    kernels = built.resources
    if kernels is not None and may_spill and spill_bytes(built) <= _BYTES_MOST:
        kernels = tuple(replace(kernel, spill_bytes=0) for kernel in kernels)
    if kernels is not None and (broken := broken_promises(built.plan, kernels)):
        raise PromiseBroken(_said(built, broken))


def choose_compiled(
    solutions: Iterable[Solution], build: Callable[[Solution, tuple[int, ...]], Iterable[BuiltKernel | PromiseBroken]], of: str
) -> BuiltKernel:
    """Return the first of `solutions` that keeps its promise, or one that spills a few values and still is predicted faster.

    `build` compiles the candidates at some ranks; `of` names the pass in errors. Raises CompileFailed where none can be taken.
    """
    dropped: list[str] = []
    best: BuiltKernel | None = None
    for solution in solutions:
        for ranks in solution.attempts(ATTEMPTS):
            if best is not None and _us_with_spills(best) <= solution.predicted_us(ranks[0]):
                return _taken(best, dropped)
            for built in build(solution, ranks):
                if isinstance(built, PromiseBroken):
                    dropped.append(str(built))
                    continue
                best, other = (built, best) if best is None or _us_with_spills(built) < _us_with_spills(best) else (best, built)
                if other is not None and spill_bytes(other):
                    dropped.append(_said(other, broken_promises(other.plan, other.resources or ())))
                if not spill_bytes(built):
                    return _taken(best, dropped)
    if best is not None:
        return _taken(best, dropped)
    raise CompileFailed(f"none of the {len(dropped)} best candidates for {of} kept its promise; of the first, {dropped[0]}")


def _said(built: BuiltKernel, broken: tuple[str, ...]) -> str:
    return f"{dict(built.plan.variables)}: {', '.join(broken)}"


def _us_with_spills(built: BuiltKernel) -> float:
    """Return a kernel's predicted time with what its spills add, in microseconds."""
    return built.plan.predicted_total_us * (1 + SHARE_OF_A_SPILLED_VALUE * spill_bytes(built) / _BYTES_OF_A_VALUE)


def _taken(best: BuiltKernel, dropped: list[str]) -> BuiltKernel:
    """Return the choice, with the candidates that were dropped for it and, if it spills, the reason for it."""
    why = f"it spills {spill_bytes(best)} bytes, and candidates that spill nothing are predicted to be slower"
    return replace(best, dropped=tuple(dropped), chosen=why if spill_bytes(best) else "")
