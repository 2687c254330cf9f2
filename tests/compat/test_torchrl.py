"""Recurrent mode of torchrl's modules by the kernels: each sequence by itself in torch, and the library's own backends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from support.needed import needed

torch = pytest.importorskip("torch")
front = needed("minrnn_gen.compat.torchrl")

from support.differentiable import exchanged  # noqa: E402

from minrnn_gen.errors import BadInput  # noqa: E402

BATCH, TIME, INPUTS, HIDDEN = 3, 8, 4, 5
KINDS: dict[str, Any] = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
# Sums of some ten terms of size 1 over eight steps, in two orders.
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


@pytest.fixture(autouse=True)
def _theirs_again() -> Iterator[None]:
    yield
    front.uninstall()


def layer_of(name: str, layers: int = 2, **options: Any) -> Any:
    torch.manual_seed(0)
    return KINDS[name](INPUTS, HIDDEN, layers, batch_first=True, dtype=torch.float64, **options)


def marks() -> Any:
    """Marks in the first step of a row, in later ones and in the last."""
    is_init = torch.zeros(BATCH, TIME, dtype=torch.bool)
    is_init[0, [0, 3]] = is_init[1, [2, 3, 7]] = True
    return is_init


def drawn(name: str, layers: int) -> tuple[Any, list[Any]]:
    generator = torch.Generator().manual_seed(1)
    sizes = [(BATCH, TIME, INPUTS), *[(BATCH, TIME, layers, HIDDEN)] * (2 if name == "lstm" else 1)]
    x, *states = (torch.randn(size, dtype=torch.float64, generator=generator).requires_grad_() for size in sizes)
    return x, states


def call(name: str, layer: Any, x: Any, states: list[Any], by: Any = None, **rows: Any) -> list[Any]:
    method = by or exchanged(front)[f"_{name}"]
    module = SimpleNamespace(recurrent_mode=True, **{name: layer})
    return list(method(module, x, BATCH, TIME, x.device, x.dtype, *states, **rows))


def one_by_one(name: str, layer: Any, x: Any, states: list[Any], is_init: Any) -> list[Any]:
    """Run each sequence by itself, from the state that its first step is given."""
    y = x.new_zeros(BATCH, TIME, HIDDEN * (2 if layer.bidirectional else 1))
    ends = [torch.zeros_like(state) for state in states]
    for row in range(BATCH):
        starts = [0, *(t for t in range(1, TIME) if is_init[row, t]), TIME]
        for start, stop in pairwise(starts):
            first = [state[row, start].unsqueeze(1) for state in states]
            output, last = layer(x[row : row + 1, start:stop], tuple(first) if name == "lstm" else first[0])
            y[row, start:stop] = output[0]
            for end, state in zip(ends, last if name == "lstm" else [last], strict=True):
                end[row, stop - 1] = state.squeeze(1)
    return [y, *ends]


def gradients_of(results: list[Any], leaves: list[Any]) -> list[Any]:
    loss = sum((one * torch.linspace(-1, 1, one.numel(), dtype=one.dtype).view(one.shape)).sum() for one in results)
    return list(torch.autograd.grad(loss, leaves))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}], ids=["forward", "both"])
def test_a_sequence_starts_from_the_state_that_it_is_given(name: str, options: dict[str, bool]) -> None:
    layer = layer_of(name, **options)
    x, states = drawn(name, 2 * (1 + len(options)))
    leaves = [x, *states, *layer.parameters()]
    found, expected = (
        call(name, layer, x, states, is_init=marks()),
        one_by_one(name, layer, x, states, marks()),
    )
    torch.testing.assert_close(found, expected, **CLOSE)
    torch.testing.assert_close(gradients_of(found, leaves), gradients_of(expected, leaves), **CLOSE)


@pytest.mark.parametrize("name", KINDS)
def test_states_may_be_absent(name: str) -> None:
    layer, (x, states) = layer_of(name), drawn(name, 2)
    zeros = [torch.zeros_like(state) for state in states]
    expected = one_by_one(name, layer, x, zeros, marks())
    torch.testing.assert_close(call(name, layer, x, [], is_init=marks()), expected, **CLOSE)
    unmarked = one_by_one(name, layer, x, zeros, torch.zeros_like(marks()))
    torch.testing.assert_close(call(name, layer, x, []), unmarked, **CLOSE)


@pytest.mark.parametrize("name", KINDS)
def test_padded_rows_have_lengths(name: str) -> None:
    layer, (x, states) = layer_of(name), drawn(name, 2)
    lengths = torch.tensor([8, 3, 1])
    found = call(name, layer, x, states, splits=lengths)
    for row, length in enumerate(lengths.tolist()):
        first = [state[row, 0].unsqueeze(1) for state in states]
        output, last = layer(x[row : row + 1, :length], tuple(first) if name == "lstm" else first[0])
        torch.testing.assert_close(found[0][row, :length], output[0], **CLOSE)
        for one, state in zip(found[1:], last if name == "lstm" else [last], strict=True):
            torch.testing.assert_close(one[row, length - 1], state.squeeze(1), **CLOSE)
            assert int(one[row].count_nonzero()) == int(state.count_nonzero())


@pytest.mark.parametrize("name", KINDS)
def test_marks_are_resets_where_states_at_ends_are_not_wanted(name: str) -> None:
    layer, (x, states) = layer_of(name), drawn(name, 2)
    method = getattr(front, f"_{name}_of")(by_resets=True)
    later = marks()
    later[:, 0] = False
    zeroed = [torch.where(later[..., None, None], 0, state) for state in states]
    y, *last = call(name, layer, x, zeroed, method, is_init=marks())
    expected, *ends = one_by_one(name, layer, x, zeroed, marks())
    torch.testing.assert_close(y, expected, **CLOSE)
    for one, end in zip(last, ends, strict=True):
        torch.testing.assert_close(one[:, -1], end[:, -1], **CLOSE)
        assert not one[:, :-1].any()
    with pytest.raises(BadInput, match="is_init marks a step that is given a state other than 0"):
        call(name, layer, x, states, method, is_init=marks())


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("end_states", [True, False])
def test_a_module_is_theirs(name: str, end_states: bool) -> None:
    """Beside `recurrent_backend="pad"`; states at marks that are resets have no gradients."""
    modules = pytest.importorskip("torchrl.modules", reason="torchrl is not installed")
    from tensordict import TensorDict

    x, states = drawn(name, 2)
    is_init = marks()
    if not end_states:
        later = is_init & (torch.arange(TIME) > 0)
        states = [torch.where(later[..., None, None], 0, state).detach().requires_grad_() for state in states]
    keys = [f"state{place}" for place in range(len(states))]
    kind = {"lstm": modules.LSTMModule, "gru": modules.GRUModule}[name]
    names = {"in_keys": ["x", *keys], "out_keys": ["y", *(("next", key) for key in keys)], name: layer_of(name)}
    module = kind(**names, default_recurrent_mode=True)

    def results(backend: str) -> tuple[list[Any], list[Any]]:
        module.recurrent_backend = backend
        given = {"x": x, "is_init": is_init[..., None], **dict(zip(keys, states, strict=True))}
        after = module(TensorDict(given, [BATCH, TIME]))
        found = [after["y"], *((after["next", key] if end_states else after["next", key][:, -1]) for key in keys)]
        of_x, *of_others = gradients_of(found, [x, *states, *module.parameters()])
        of_states = [one if end_states else one[:, 0] for one in of_others[: len(states)]]
        return found, [of_x, *of_states, *of_others[len(states) :]]

    expected = results("pad")
    front.install(end_states=end_states)
    for backend in ("scan", "pad"):
        torch.testing.assert_close(results(backend), expected, **CLOSE)
