"""Layers that step in place on slots of a cache: as on states that are passed along, compiled too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.needed import needed

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
layers = needed("minrnn_gen.torch")
drop_ins = needed("minrnn_gen.torch.nn")

FULL = pytest.mark.matrix_full


@pytest.fixture(autouse=True)
def dynamo_takes_classes_of_torch() -> Iterator[None]:
    """Let torch.compile trace subclasses of torch.nn.LSTM, as its setting allows."""
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


SLOTS, INPUTS, HIDDEN = 5, 6, 8
MADE: dict[str, Callable[[], Any]] = {
    "two of LSTM": lambda: layers.RNN("lstm", INPUTS, HIDDEN, 2),
    "a scan in bf16": lambda: layers.RNN("min_gru", INPUTS, HIDDEN, dtype=torch.bfloat16),
    "projected units": lambda: drop_ins.LSTM(INPUTS, HIDDEN, 2, proj_size=4, batch_first=True),
    "n values": lambda: layers.RNN("gated_linear", INPUTS, HIDDEN, 2, state_size=3),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=FULL)])
def test_steps_on_a_cache_are_steps_on_states(name: str, is_compiled: bool) -> None:
    torch.manual_seed(0)
    layer = MADE[name]()
    dtype = next(layer.parameters()).dtype
    cache, slots, state = layer.cache(SLOTS), torch.tensor([4, -1, 2], dtype=torch.int32), None

    def step(x: Any) -> Any:
        return layer.step(x, cache=cache, slots=slots)[0]

    step_in_place = torch.compile(step, fullgraph=True, backend="aot_eager") if is_compiled else step
    for _ in range(3):
        x = torch.randn(3, INPUTS, dtype=dtype)
        expected, state = layer.step(x, state)
        x[1] = torch.nan
        y = step_in_place(x)
        torch.testing.assert_close(y[::2], expected[::2], rtol=0, atol=0)
        assert not y[1].any()
    for pool, last in zip(cache.states.values(), state if isinstance(state, tuple) else (state,), strict=True):
        # Projected units have zeros beyond their own.
        assert torch.equal(pool[:, [4, 2], : last.shape[2]], last[:, [0, 2]]) and not pool[:, [0, 1, 3]].any()


@pytest.mark.parametrize("name", [*MADE][:1] + [pytest.param(name, marks=FULL) for name in [*MADE][1:2] + [*MADE][3:]])
@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=FULL)])
def test_calls_on_a_cache_are_calls_on_states(name: str, is_compiled: bool) -> None:
    torch.manual_seed(0)
    layer = MADE[name]()
    dtype = next(layer.parameters()).dtype
    cache, slots, lengths = layer.cache(SLOTS), torch.tensor([4, -1, 2, 0], dtype=torch.int32), torch.tensor([3, 2, 0, 1])
    for states in cache.states.values():
        states.normal_()
    before = {name: states.clone() for name, states in cache.states.items()}
    has_state, into = torch.tensor([True, True, True, False]), torch.tensor([4, 1, 3, 0])

    def call(x: Any) -> Any:
        on_cache = {"cache": cache, "slots": slots, "into_slots": into, "has_state": has_state}
        return layer(x, lengths=lengths, **on_cache)[0]

    x = torch.randn(4, 3, INPUTS, dtype=dtype)
    hx = tuple(torch.stack([states[:, 4], states[:, 2] * 0, states[:, 2], states[:, 0] * 0], 1) for states in before.values())
    expected, final = layer(x, hx if len(hx) > 1 else hx[0], lengths=lengths)
    x[1] = torch.nan
    y = (torch.compile(call, fullgraph=True, backend="aot_eager") if is_compiled else call)(x)
    torch.testing.assert_close(y[::2], expected[::2], rtol=0, atol=0)
    torch.testing.assert_close(y[3], expected[3], rtol=0, atol=0)
    assert not y[1].any()
    for (name, pool), last in zip(cache.states.items(), final if isinstance(final, tuple) else (final,), strict=True):
        # A sequence without steps copies its slot; nothing else changes.
        assert torch.equal(pool[:, [4, 3, 0]], last[:, [0, 2, 3]]) and torch.equal(pool[:, [1, 2]], before[name][:, [1, 2]])


def test_states_in_slots_may_be_in_the_dtype_of_the_weights() -> None:
    layer = layers.RNN("min_gru", INPUTS, HIDDEN, dtype=torch.bfloat16)
    cache = layer.cache(SLOTS, state_dtype=torch.bfloat16)
    y, _ = layer.step(torch.randn(2, INPUTS, dtype=torch.bfloat16), cache=cache, slots=torch.tensor([3, 1]))
    (states,) = cache.states.values()
    assert states.dtype is torch.bfloat16 and torch.equal(states[0, [3, 1]], y)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=FULL)])
def test_drafts_are_steps_whatever_is_kept(name: str, is_compiled: bool) -> None:
    torch.manual_seed(0)
    layer, draft = MADE[name](), 2
    dtype = next(layer.parameters()).dtype
    cache, steps, slots = layer.cache(SLOTS, draft), layer.cache(SLOTS), torch.tensor([4, -1, 2], dtype=torch.int32)

    def verify(x: Any, accepted: Any) -> Any:
        return layer.verify_draft(x, cache=cache, slots=slots, accepted=accepted)[0]

    verify_in_place = torch.compile(verify, fullgraph=True, backend="aot_eager") if is_compiled else verify
    accepted = torch.zeros(3, dtype=torch.int64)
    for kept in ([2, 0, 1], [0, 0, 2], [1, 0, 0]):
        x = torch.randn(3, draft, INPUTS, dtype=dtype)
        y, ahead = verify_in_place(x, accepted), layer.cache(SLOTS)
        for states, target in zip(steps.states.values(), ahead.states.values(), strict=True):
            target.copy_(states)
        accepted = torch.tensor(kept)
        for t in range(draft):
            expected, _ = layer.step(x[:, t], cache=ahead, slots=slots)
            assert torch.equal(y[:, t], expected) and not expected[1].any()
            layer.step(x[:, t], cache=steps, slots=torch.where(t < accepted, slots, -1))
    cache.commit(slots[::2], accepted[::2])
    for states, expected in zip(cache.states.values(), steps.states.values(), strict=True):
        assert torch.equal(states, expected)


def test_slots_are_copied_and_cleared() -> None:
    layer = MADE["two of LSTM"]()
    cache = layer.cache(SLOTS)
    for states in cache.states.values():
        states.normal_()
    before = {name: states.clone() for name, states in cache.states.items()}
    cache.copy([0, 1], torch.tensor([1, 0]))
    cache.clear(4)
    for name, states in cache.states.items():
        assert torch.equal(states[:, [1, 0, 2, 3]], before[name][:, :4]) and not states[:, 4].any()


def test_what_has_no_cache_and_what_is_none_say_so() -> None:
    layer, x, slots = MADE["two of LSTM"](), torch.zeros(3, INPUTS), torch.tensor([0, 1, 2])
    other = drop_ins.LSTM(INPUTS, HIDDEN)
    refusals = {
        "what layer.cache returns is expected": lambda: layer.step(x, cache={}, slots=slots),
        "cache is of 1 layers; one of 2 is expected": lambda: layer.step(x, cache=other.cache(3), slots=slots),
        "without slots; give the slot of each sequence": lambda: layer.step(x, cache=layer.cache(3)),
        "slots were given without a cache": lambda: layer.step(x, slots=slots),
        "a cache was given with hx; sequences are whole": lambda: layers.RNN("lstm", INPUTS, HIDDEN)(
            x[:, None], (torch.zeros(1, 3, HIDDEN),) * 2, cache=layers.RNN("lstm", INPUTS, HIDDEN).cache(3), slots=slots
        ),
        r"input has shape \[3, 6\]; \[batch, time, 6\] is expected": lambda: layer(x, cache=layer.cache(3), slots=slots),
        "with state or resets": lambda: layer.step(x, torch.zeros(1), cache=layer.cache(3), slots=slots),
        "draft is 2.0; the steps of the longest draft, 0 for none": lambda: layer.cache(3, 2.0),
        "x has 2 steps, but a draft of the cache has 1 to 1": lambda: layer.verify_draft(
            x[:, None].expand(3, 2, INPUTS), cache=layer.cache(3, 1), slots=slots
        ),
        "the layer is bidirectional": lambda: drop_ins.GRU(INPUTS, HIDDEN, bidirectional=True).cache(3),
        r"slots\[1\] is 3; a slot of the pool, 0 to 2": lambda: layer.step(
            x, cache=layer.cache(3), slots=torch.tensor([0, 3, 1])
        ),
    }
    for sentence, call in refusals.items():
        with pytest.raises(BadInput, match=sentence):
            call()
