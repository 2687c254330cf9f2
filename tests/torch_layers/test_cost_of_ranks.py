"""What is chosen over ranks: no way that is expected to take longer than another one, or than one rank alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import examples

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch lacks torch.distributed", allow_module_level=True)

from support import ranks  # noqa: E402

from minrnn_gen.torch.sequence_group import cost, fold, heads  # noqa: E402
from minrnn_gen.torch.sequence_group.agreement import Agreement  # noqa: E402

LSTM = {"model": "lstm", "hidden_size": 768, "heads": 12, "precision": "bf16"}
BATCH, TIME = 256, 1024


def _is_split(size: int, records: bool, whole: float, share: float, batch: int = BATCH, time: int = TIME) -> bool:
    x = torch.empty(batch, time, 4, 768, dtype=torch.bfloat16, device="meta")
    agreement = Agreement((time,) * size, records, {1: whole, size: share})
    return heads._is_split(ranks.kernel_of(LSTM), x, SimpleNamespace(size=size), agreement)  # type: ignore[arg-type]


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize(("size", "gains"), [(2, (1.30, 1.86)), (4, (1.63, 2.72))])
def test_heads_are_not_split_where_the_gather_takes_longer(size: int, gains: tuple[float, float], records: bool) -> None:
    """Measured on GPUs: a share alone is `gains` times as fast as one rank, forward and step; gathered, 0.54 to 0.59."""
    whole = 1.075e-3
    assert not _is_split(size, records, whole, whole / gains[records])
    # A kernel that takes a hundred times as long is.
    assert _is_split(size, records, 100 * whole, 100 * whole / gains[records])


@settings(max_examples=examples(100))
@given(st.sampled_from((2, 3, 4, 6, 12)), st.booleans(), st.floats(1e-6, 1.0), st.floats(0.05, 1.5), st.integers(1, 64))
def test_heads_are_split_only_where_that_is_expected_to_be_faster(
    size: int, records: bool, whole: float, part: float, batch: int
) -> None:
    is_split = _is_split(size, records, whole, whole * part, batch, 16)
    passes = cost.PASSES_OF_STEP if records else 1.0
    y_bytes = batch * 16 * 768 * 2
    takes = cost.heads_seconds(size, whole * part, y_bytes, 4 * y_bytes, records)
    assert is_split == (takes < whole * passes)


@settings(max_examples=examples(100))
@given(st.integers(2, 64), st.integers(1, 8), st.floats(1e-6, 1.0), st.floats(1, 1e8), st.booleans(), st.booleans())
@example(4, 8, 0.1e-3, 4096.0, False, True)  # pieces of a tenth of a millisecond, which the host takes longer for
def test_the_choice_is_the_fastest_and_counts_the_host(
    size: int, groups: int, seconds: float, state_bytes: float, records: bool, is_scan: bool
) -> None:
    allowed: dict[Any, float] = {"pipeline": 0.0}
    allowed |= cost.gathering_passes(size, False, 0.0) if is_scan else {}
    of_groups = {count: seconds * (1 + 1 / count) / 2 for count in range(1, groups + 1)}
    chosen, *others = cost.choices(size, of_groups, state_bytes, allowed, None, None, records)
    assert all(chosen.passes <= other.passes for other in others)
    for choice in (chosen, *others):
        takes = choice.passes * seconds * (cost.PASSES_OF_STEP if records else 1.0)
        if choice.way != "pipeline":
            assert takes >= cost.host_seconds(choice.way, size, records) * (1 - 1e-9)
    # Not worse than the pieces one after the other, and the messages between them.
    group = max(seconds + cost.message_seconds(size, state_bytes), cost.HOST_SECONDS_OF_GROUP)
    assert chosen.passes * seconds <= (size * group + cost.PIPELINE_SECONDS) * (1 + 1e-9)


@settings(max_examples=examples(100))
@given(st.integers(2, 8), st.floats(2e-4, 1.0), st.integers(0, 1 << 16), st.booleans())
def test_nothing_is_chosen_that_is_slower_than_one_rank(size: int, seconds: float, state_bytes: int, records: bool) -> None:
    """As graphs over GPUs of one machine, of pieces of a scan that take 0.2 ms or more, and forget."""
    allowed: dict[Any, float] = {"pipeline": 0.0, **cost.gathering_passes(size, False, 0.0)}
    carried = cost.Carried(in_graphs=True, by_peer_buffers=True)
    chosen, *_ = cost.choices(size, {1: seconds, 2: seconds / 2}, state_bytes, allowed, None, None, records, carried)
    assert chosen.passes < size


@settings(max_examples=examples(60))
@given(st.integers(1, 9), st.integers(0, 1 << 30), st.booleans())
def test_pieces_fold_at_once_as_they_do_in_turn(count: int, seed: int, is_complex: bool) -> None:
    """What is before a product of zero counts in no way, even as NaN."""
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.complex128 if is_complex else torch.float64
    products, ends = (torch.randn(count, 6, dtype=dtype, generator=generator) for _ in range(2))
    products[torch.rand(count, 6, generator=generator) < 0.3] = 0
    for array in (products, ends):
        array[torch.rand(count, 6, generator=generator) < 0.1] = float("nan")
    state = ends[0]
    for product, end in zip(products[1:], ends[1:], strict=True):
        state = torch.where(product == 0, end, product * state + end)
    pieces = [*zip(products, ends, strict=True)]
    for folded in (fold.fold(pieces), fold._folded_at_once(pieces) if count > 1 else state):
        is_nan = state.isnan()
        assert torch.equal(folded.isnan(), is_nan)
        torch.testing.assert_close(folded[~is_nan], state[~is_nan], rtol=1e-12, atol=1e-12)
