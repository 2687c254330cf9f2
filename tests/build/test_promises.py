"""A candidate that spills little is taken where those that keep their promise are predicted to be slower still."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minrnn_gen.build.promises import SHARE_OF_A_SPILLED_VALUE, Spills, choose_compiled
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
        return SimpleNamespace(predicted_total_us=self.us)

    @property
    def resources(self) -> tuple[Any, ...]:
        return (SimpleNamespace(spill_bytes=self.spill_bytes),)


def chosen_of(kernels: Sequence[Built]) -> Built:
    """Return the choice among candidates in the order of their predicted times."""

    def build(_: object, ranks: tuple[int, ...]) -> Iterable[Built | PromiseBroken]:
        for rank in ranks:
            kernel = kernels[rank]
            yield Spills(f"rank {rank} spills", kernel) if kernel.spill_bytes else kernel  # type: ignore[arg-type]

    solution = SimpleNamespace(
        predicted_us=lambda rank: kernels[rank].us,
        attempts=lambda most: [(rank,) for rank in range(min(most, len(kernels)))],
    )
    return choose_compiled([solution], build, "backward")  # type: ignore[list-item, arg-type, return-value]


SPILLS = st.integers(0, 16).map(lambda values: 8 * values)
KERNELS = st.lists(st.builds(Built, st.floats(1.0, 1.5), SPILLS), min_size=1, max_size=12)


@given(KERNELS)
def test_no_choice_is_slower_than_another_with_its_spills(kernels: list[Built]) -> None:
    """With 1 % for each spilled value, nothing that was compiled is faster than the choice, and nothing else can be."""
    kernels.sort(key=lambda kernel: kernel.us)
    with_spills = [kernel.us * (1 + SHARE_OF_A_SPILLED_VALUE * kernel.spill_bytes / 8) for kernel in kernels]
    choice = chosen_of(kernels)
    assert choice.us * (1 + SHARE_OF_A_SPILLED_VALUE * choice.spill_bytes / 8) == pytest.approx(min(with_spills))
    assert bool(choice.chosen) == bool(choice.spill_bytes)


def test_a_kernel_that_spills_much_is_never_taken() -> None:
    with pytest.raises(CompileFailed, match="rank 0 spills"):
        chosen_of([Built(1.0, 136)])
    assert chosen_of([Built(1.0, 136), Built(9.0, 0)]).us == 9.0
