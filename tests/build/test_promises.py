"""A candidate that spills little is taken where those that keep their promise are predicted to be slower still."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minrnn_gen.build.nvrtc import KernelResources
from minrnn_gen.build.promises import SHARE_OF_A_SPILLED_VALUE, choose_compiled, demand_promises
from minrnn_gen.errors import CompileFailed, PromiseBroken


@dataclass(frozen=True)
class Built:
    """Compiled kernel as a choice sees it: its predicted time and its spills."""

    us: float
    spill_bytes: int
    dropped: tuple[str, ...] = ()
    chosen: str = ""

    @property
    def plan(self) -> Any:
        budget = SimpleNamespace(registers_per_thread=1, shared_bytes=1)
        return SimpleNamespace(predicted_total_us=self.us, variables={"us": self.us}, budget=budget)

    @property
    def resources(self) -> tuple[KernelResources, ...]:
        return (KernelResources("kernel", registers=1, shared_bytes=1, spill_bytes=self.spill_bytes, stack_bytes=0),)


def chosen_of(kernels: Sequence[Built], at_once: int = 1) -> Built:
    """Return the choice among candidates in the order of their predicted times, all but the first tried so many at once."""

    def tried(kernel: Any) -> Any:
        try:
            demand_promises(kernel, may_spill=True)
        except PromiseBroken as broken:
            return broken
        return kernel

    rest = range(1, len(kernels))
    solution: Any = SimpleNamespace(
        predicted_us=lambda rank: kernels[rank].us,
        attempts=lambda _: [(0,), *(tuple(rest[first : first + at_once]) for first in range(0, len(rest), at_once))],
    )
    choice: Any = choose_compiled([solution], lambda _, ranks: [tried(kernels[rank]) for rank in ranks], "backward")
    return choice  # type: ignore[no-any-return]


SPILLS = st.integers(0, 16).map(lambda values: 8 * values)
KERNELS = st.lists(st.builds(Built, st.floats(1.0, 1.5), SPILLS), min_size=1, max_size=12)


@given(KERNELS, st.integers(1, 3))
def test_no_choice_is_slower_than_another_with_its_spills(kernels: list[Built], at_once: int) -> None:
    """With 1 % for each spilled value, nothing that was compiled is faster than the choice, and nothing else can be."""
    kernels.sort(key=lambda kernel: kernel.us)
    with_spills = [kernel.us * (1 + SHARE_OF_A_SPILLED_VALUE * kernel.spill_bytes / 8) for kernel in kernels]
    choice = chosen_of(kernels, at_once)
    assert choice.us * (1 + SHARE_OF_A_SPILLED_VALUE * choice.spill_bytes / 8) == pytest.approx(min(with_spills))
    assert bool(choice.chosen) == bool(choice.spill_bytes)


def test_a_kernel_that_spills_much_is_never_taken() -> None:
    with pytest.raises(CompileFailed, match="kernel spills 136 bytes"):
        chosen_of([Built(1.0, 136)])
    assert chosen_of([Built(1.0, 136), Built(9.0, 0)]).us == 9.0
