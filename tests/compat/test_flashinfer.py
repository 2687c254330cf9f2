"""flashinfer's steps of one token and of several, next to their equations in float64 on states of each token."""

from __future__ import annotations

from typing import Any

import pytest
from support.needed import needed

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
flashinfer = needed("minrnn_gen.compat.flashinfer")

SLOTS, BATCH, TOKENS, HEADS, DIM, N, GROUPS = 9, 4, 3, 4, 2, 4, 2
TOKEN = ("x", "dt", "B", "C", "z")


def inputs(*lead: int) -> dict[str, Any]:
    """Return arrays of tokens; A, D and dt of a head are tied, with strides of 0."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator)

    def tied(*shape: int) -> Any:
        return normal(*shape)[..., None].expand(*shape, DIM)

    A = -torch.rand(HEADS, generator=generator)[:, None, None].expand(HEADS, DIM, N)
    of_heads = {"dt": tied(*lead, HEADS), "D": tied(HEADS), "dt_bias": tied(HEADS)}
    return {
        "x": normal(*lead, HEADS, DIM), "A": A, "B": normal(*lead, GROUPS, N), "C": normal(*lead, GROUPS, N),
        "z": normal(*lead, HEADS, DIM), **of_heads,
    }  # fmt: skip


def stepped(h: Any, token: dict[str, Any]) -> tuple[Any, Any]:
    """Return (y, h) of one token of a row in float64."""
    x, dt, A, B, C, D, z, bias = (token[name].double() for name in ("x", "dt", "A", "B", "C", "D", "z", "dt_bias"))
    delta = torch.nn.functional.softplus(dt + bias)
    B, C = (one.repeat_interleave(HEADS // GROUPS, 0)[:, None] for one in (B, C))
    h = torch.exp(delta[..., None] * A) * h + (delta * x)[..., None] * B
    return ((h * C).sum(-1) + D * x) * torch.nn.functional.silu(z), h


def tokens_of(arrays: dict[str, Any], *at: int) -> dict[str, Any]:
    return {name: array[at] if name in TOKEN else array for name, array in arrays.items()}


def new_state() -> Any:
    return torch.randn(SLOTS, HEADS, DIM, N, generator=torch.Generator().manual_seed(1))


def test_one_token_reads_a_slot_and_writes_another() -> None:
    arrays, state = inputs(BATCH), new_state()
    before, reads, writes = state.clone(), torch.tensor([3, -5, 0, 3]), torch.tensor([1, 2, -5, 8], dtype=torch.int32)
    out = torch.empty(BATCH, HEADS, DIM)
    indices = {"state_batch_indices": reads, "dst_state_batch_indices": writes, "pad_slot_id": -5}
    y = flashinfer.selective_state_update(state, **arrays, **indices, out=out, dt_softplus=True)
    assert y is out and not y[1].any()
    expected = before.clone()
    for row in (0, 2, 3):
        of_row, h = stepped(before[reads[row]].double(), tokens_of(arrays, row))
        torch.testing.assert_close(y[row].double(), of_row, rtol=1e-5, atol=1e-5)
        if writes[row] >= 0:
            expected[writes[row]] = h
    torch.testing.assert_close(state, expected, rtol=1e-5, atol=1e-5)
    before = state.clone()
    flashinfer.selective_state_update(state, **arrays, state_batch_indices=reads, pad_slot_id=-5, disable_state_update=True)
    assert torch.equal(state, before)


@pytest.mark.parametrize("has_accepted", [False, True])
@pytest.mark.parametrize("is_packed", [False, True])
def test_tokens_leave_the_state_after_each(has_accepted: bool, is_packed: bool) -> None:
    lengths = [2, 0, TOKENS, 1] if is_packed else [TOKENS] * BATCH
    ends = torch.tensor([0, *lengths]).cumsum(0)
    arrays, state = inputs(int(ends[-1])) if is_packed else inputs(BATCH, TOKENS), new_state()
    before, reads = state.clone(), torch.tensor([[0, 1, 2], [-1, -1, -1], [3, 4, 5], [6, 7, 8]])
    accepted = torch.tensor([0, 1, 3, 2])
    extra: dict[str, Any] = {"cu_seqlens": ends.int()} if is_packed else {}
    if has_accepted:
        extra |= {"num_accepted_tokens": accepted, "dst_state_batch_indices": reads}
    given = {"state_batch_indices": reads if has_accepted else reads[:, 0], "dt_softplus": True}
    if is_packed or has_accepted:  # x of four axes says how many tokens there are
        given["cache_steps"] = TOKENS
    y = flashinfer.selective_state_update(state, **arrays, **given, **extra)
    expected, wanted = before.clone(), torch.zeros_like(y, dtype=torch.float64)
    for row, length in enumerate(lengths):
        if row == 1:
            continue
        h = before[reads[row, max(int(accepted[row]) - 1, 0) if has_accepted else 0]].double()
        for t in range(length):
            at = (int(ends[row]) + t,) if is_packed else (row, t)
            wanted[at], h = stepped(h, tokens_of(arrays, *at))
            if has_accepted:
                expected[reads[row, t]] = h
        if not has_accepted and length:
            expected[reads[row, 0]] = h
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, expected, rtol=1e-5, atol=1e-5)


def test_states_of_tokens_go_into_a_buffer() -> None:
    arrays, state = inputs(BATCH, TOKENS), new_state().bfloat16()
    before, buffer = state.clone(), torch.zeros(6, TOKENS, HEADS, DIM, N)
    given = {"intermediate_states_buffer": buffer, "intermediate_state_indices": torch.tensor([5, 0, 2, 1])}
    flashinfer.selective_state_update(
        state, **arrays, **given, state_batch_indices=torch.arange(BATCH), cache_steps=TOKENS, disable_state_update=True
    )
    assert torch.equal(state, before) and not buffer[[3, 4]].any() and buffer[[5, 0, 2, 1]].flatten(2).any(-1).all()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "scale": ({"state_scale": 1}, "state_scale was given, but integer states are not supported"),
    "seed": ({"rand_seed": 1}, "rand_seed was given, but states are rounded to nearest"),
    "algorithm": ({"algorithm": "fast"}, "algorithm is 'fast'; one of auto, simple"),
    "integers": ({"state": torch.zeros(SLOTS, HEADS, DIM, N, dtype=torch.int16)}, "state has dtype torch.int16"),
    "accepted": ({"num_accepted_tokens": torch.zeros(BATCH)}, "accepted tokens and intermediate states are of several tokens"),
    "indices": ({"state_batch_indices": torch.tensor([0, 1, 2, SLOTS])}, "state_batch_indices"),
    "both": ({"intermediate_states_buffer": 1, "dst_state_batch_indices": 1}, "states go to one of them"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_is_not_there_is_refused(wrong: str) -> None:
    changes, sentence = REFUSED[wrong]
    with pytest.raises(BadInput, match=sentence):
        flashinfer.selective_state_update(**{"state": new_state(), **inputs(BATCH), **changes})
