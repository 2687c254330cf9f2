"""Layers of cells with n values per channel: the same as linear maps and recurrences, in every kind of call."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.needed import needed

import minrnn_gen
from minrnn_gen.cell.files import vector_library_names
from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
gradients_are_right = needed("support.gradients_checked").gradients_are_right
kernels = needed("minrnn_gen.layers.kernels")
CELLS = needed("support.vector_cells").CELLS
linear = torch.nn.functional.linear

BATCH, TIME, INPUTS, HIDDEN, N = 3, 5, 4, 6, 3
WRITTEN = {name: {"name": name.replace(" ", "_"), **cell.file} for name, cell in CELLS.items()}
MODELS: dict[str, Any] = {**{name: name for name in vector_library_names()}, **WRITTEN}
# Sums of a few dozen products of numbers of size 1, in two orders.
TOLERANCE = 1e-11


def has_shared(name: str) -> bool:
    return name not in ("s4d", "one of many")


@cache
def kernel_of(name: str, direction: str, groups: int) -> Any:
    sizes = {"state_size": N} | ({"groups": groups} if has_shared(name) else {})
    spec = {"model": MODELS[name], "hidden_size": HIDDEN, "precision": "fp64", "direction": direction, **sizes}
    return minrnn_gen.compile(spec, gpu="h200")


def layer_of(name: str, groups: int = 1, **options: Any) -> Any:
    sizes = {"state_size": N} | ({"groups": groups} if has_shared(name) else {})
    return wing.RNN(MODELS[name], INPUTS, HIDDEN, dtype=torch.float64, **{**sizes, **options})


def spelled_out(layer: Any, name: str, x: Any, states: Any, **sequences: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return what a layer does by a linear map of each input and a recurrence of each direction; x is [B, T, I]."""
    groups, parameters, runs = layer.groups or 1, dict(layer.named_parameters()), itertools.count()
    final: list[dict[str, Any]] = []
    for level in range(layer.num_layers):
        outputs = []
        for direction, suffix in (("forward", ""), ("reverse", "_reverse"))[: 2 if layer.bidirectional else 1]:
            end = f"_l{level}{suffix}"
            own = {key.removesuffix(end): one for key, one in parameters.items() if key.endswith(end)}
            kernel, run = kernel_of(name, direction, groups), next(runs)
            gates = linear(x, own["weight_ih"], own.get("bias_ih")).unflatten(-1, (len(kernel.interface.gates), HIDDEN))
            shared = {}
            for place, one in enumerate(kernel.interface.shared):
                rows = slice(place * groups * N, (place + 1) * groups * N)
                bias = own["bias_shared"][rows] if "bias_shared" in own else None
                shared[one] = linear(x, own["weight_shared"][rows], bias).unflatten(-1, (groups, N))
            y, last = wing.recurrence(
                kernel,
                gates,
                parameters={one: own[one] for one in kernel.parameters},
                shared=shared or None,
                state=None if states is None else {one: state[run] for one, state in zip(kernel.states, states, strict=True)},
                **sequences,
            )
            outputs.append(y)
            final.append(last)
        x = torch.cat(outputs, -1)
    return x, tuple(torch.stack([last[one] for last in final]) for one in layer.states)


def as_tuple(states: Any) -> tuple[Any, ...]:
    return states if isinstance(states, tuple) else (states,)


def initial_of(layer: Any, sequences: int) -> tuple[Any, ...]:
    runs = layer.num_layers * (2 if layer.bidirectional else 1)
    shapes = [(runs, sequences, *layer._made.values[one]) for one in layer.states]
    return tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)


def assert_same(layer: Any, inputs: list[Any], found: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    """Compare outputs, states and all gradients of them."""
    flat = [[y, *as_tuple(states)] for y, states in (found, expected)]
    weights = [torch.randn(one.shape, dtype=one.dtype) for one in flat[0]]
    leaves = [*inputs, *layer.parameters()]
    gradients = [
        torch.autograd.grad(sum((one * weight).sum() for one, weight in zip(ones, weights, strict=True)), leaves)
        for ones in flat
    ]
    for one, other in zip([*flat[0], *gradients[0]], [*flat[1], *gradients[1]], strict=True):
        # Terms of a sum that cancel are as large as the largest sums beside it.
        torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE * max(1.0, float(other.detach().abs().max())))


@settings(max_examples=examples(15))
@given(
    name=st.sampled_from(sorted(MODELS)),
    groups=st.sampled_from((1, 2, 3)),
    layers=st.integers(1, 3),
    bidirectional=st.booleans(),
    bias=st.booleans(),
    batch_first=st.booleans(),
    has_states=st.booleans(),
    sequences=st.sampled_from(("", "resets", "lengths", "cu_seqlens", "packed")),
)
def test_a_layer_is_linear_maps_and_recurrences(
    name: str, groups: int, layers: int, bidirectional: bool, bias: bool, batch_first: bool, has_states: bool, sequences: str
) -> None:
    torch.manual_seed(0)
    batch_first = batch_first or sequences == "cu_seqlens"  # which needs it
    layer = layer_of(name, groups, num_layers=layers, bidirectional=bidirectional, bias=bias, batch_first=batch_first)
    batch = 1 if sequences == "cu_seqlens" else BATCH
    x = torch.randn(batch, TIME, INPUTS, dtype=torch.float64, requires_grad=True)
    kinds: dict[str, Any] = {
        "resets": torch.rand(batch, TIME) < 0.4,
        "lengths": torch.tensor([2, 5, 4]),
        "cu_seqlens": torch.tensor([0, 2, 5]),
    }
    states = initial_of(layer, 2 if sequences == "cu_seqlens" else batch) if has_states else None
    hx = states if states is None or len(states) > 1 else states[0]
    inputs = [x, *(states or ())]
    given_x = x if batch_first else x.transpose(0, 1)
    if sequences == "packed":
        packed = torch.nn.utils.rnn.pack_padded_sequence(given_x, kinds["lengths"], batch_first, enforce_sorted=False)
        y, last = layer(packed, hx)
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first)
        expected = spelled_out(layer, name, x, states, lengths=kinds["lengths"])
    else:
        asked = {sequences: kinds[sequences]} if sequences else {}
        marks = {"resets": kinds["resets"].t()} if sequences == "resets" and not batch_first else asked
        y, last = layer(given_x, hx, **marks)
        expected = spelled_out(layer, name, x, states, **asked)
    assert_same(layer, inputs, (y if batch_first else y.transpose(0, 1), last), expected)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("selective", {"num_layers": 2}),
        ("gated_linear", {"bidirectional": True}),
        *(
            pytest.param(name, options, marks=pytest.mark.matrix_full)
            for name, options in (("s4d", {"num_layers": 2}), ("scalar and vector states", {}), ("delta rule", {"bias": False}))
        ),
    ],
)
def test_gradients_beside_finite_differences(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = wing.RNN(MODELS[name], 2, 2, dtype=torch.float64, state_size=2, **options)
    names = [key for key, _ in layer.named_parameters()]
    x = torch.randn(1, 3, 2, dtype=torch.float64, requires_grad=True)
    runs = layer.num_layers * (2 if layer.bidirectional else 1)
    states = [torch.randn(runs, 1, *layer._made.values[one], dtype=torch.float64) for one in layer.states]

    def run(x: Any, *others: Any) -> Any:
        states, parameters = others[: len(layer.states)], others[len(layer.states) :]
        y, last = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x, states))
        return y, *as_tuple(last)

    others = [one.detach().clone().requires_grad_() for one in (*states, *layer.parameters())]
    assert gradients_are_right(run, (x, *others))


@pytest.mark.parametrize("name", ["selective", *(pytest.param(one, marks=pytest.mark.matrix_full) for one in WRITTEN)])
def test_steps_and_cuts_go_on(name: str) -> None:
    """A call over a prompt, then tokens; and without a batch."""
    torch.manual_seed(0)
    layer = layer_of(name, 2, num_layers=2)
    x = torch.randn(BATCH, TIME, INPUTS, dtype=torch.float64)
    with torch.no_grad():
        whole, last = layer(x)
        first, state = layer(x[:, :2])
        y, again = layer(x[:, 2:], state)
        alone, last_alone = layer(x[0])
    torch.testing.assert_close(torch.cat([first, y], 1), whole)
    torch.testing.assert_close(again, last)
    torch.testing.assert_close(
        (alone, last_alone), (whole[0], tuple(one[:, 0] for one in last) if isinstance(last, tuple) else last[:, 0])
    )
    for t in range(2, TIME):
        y_t, state = layer.step(x[:, t], state)
        torch.testing.assert_close(y_t, whole[:, t])
    torch.testing.assert_close(state, last)
    y_t, state_t = layer.step(x[0, 0])
    torch.testing.assert_close(y_t, whole[0, 0])
    assert as_tuple(state_t)[0].shape[:2] == (2, HIDDEN)


def test_dropout_between_layers() -> None:
    layer, x = layer_of("selective", num_layers=2, dropout=0.5), torch.randn(BATCH, TIME, INPUTS, dtype=torch.float64)
    torch.manual_seed(1)
    first, _ = layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x)[0], first) and not torch.equal(layer.eval()(x)[0], first)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_precision_is_kept_under_autocast(precision: str) -> None:
    """Autocast's precision differs: S.* are products in the layer's own, as pre-activations are."""
    torch.manual_seed(0)
    layer = wing.RNN("gated_linear", INPUTS, HIDDEN, 2, state_size=N, precision=precision)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    x = torch.randn(BATCH, TIME, INPUTS)
    expected, state = layer(x.to(dtype))
    with torch.autocast("cpu", dtype=torch.float16):
        found, _ = layer(x)
        step, _ = layer.step(x[:, 0])
    assert found.dtype is expected.dtype is step.dtype is dtype and state.dtype is torch.float32
    assert torch.equal(found, expected)
    with torch.no_grad():
        torch.testing.assert_close(step, expected[:, 0])
    expected.float().sum().backward()
    assert all(one.grad.dtype is torch.float32 for one in layer.parameters())


def test_it_is_prepared_and_explained() -> None:
    layer = wing.RNN("selective", INPUTS, HIDDEN, 2, state_size=N, groups=2)
    layer.prepare([(2, 3)])
    passes = [{key.kernel_pass for key in kernels.kernel_by(recipe).plans} for recipe in layer._recipes("fp32")]
    assert passes == [{"forward", "backward", "step"}] * 2
    for which in ("forward", "backward", "step"):
        assert f"selective, hidden_size {HIDDEN}, fp32" in layer.explain(which, batch=2, time=9)


def test_numbers_that_state_spaces_start_with() -> None:
    torch.manual_seed(0)
    rates = torch.arange(1, 17, dtype=torch.float64)
    selective = wing.RNN("selective", 8, 512, state_size=16, dtype=torch.float64, bidirectional=True)
    for suffix in ("", "_reverse"):
        assert torch.allclose(getattr(selective, f"a_l0{suffix}").exp(), rates.expand(512, 16))
        assert bool((getattr(selective, f"d_l0{suffix}") == 1).all())
        bias = getattr(selective, f"bias_ih_l0{suffix}").detach()
        steps = torch.nn.functional.softplus(bias[:512])
        assert 0.001 <= float(steps.min()) < 0.002 and 0.05 < float(steps.max()) <= 0.1 * (1 + 1e-6)
        assert float(bias[512:].abs().max()) <= 1 / math.sqrt(512)
    s4d = wing.RNN("s4d", 8, 512, state_size=16, dtype=torch.float64).requires_grad_(False)
    assert torch.allclose(s4d.a_l0.exp(), rates.expand(512, 16))
    assert 0.001 <= float(s4d.step_l0.exp().min()) < 0.002 and 0.05 < float(s4d.step_l0.exp().max()) <= 0.1 * (1 + 1e-6)
    assert abs(float(s4d.c_l0.std()) - 1) < 0.05 and float(s4d.weight_ih_l0.abs().max()) <= 1 / math.sqrt(512)
    # Who passes queries scales them.
    attention = wing.RNN("gated_linear", 8, 64, state_size=16, groups=2).requires_grad_(False)
    of_f, of_k, of_q = attention.weight_shared_l0.chunk(3)
    assert 0.12 < float(of_f.abs().max()) <= 1 / 8 and 0.12 < float(of_k.abs().max()) <= 1 / 8
    assert 0.03 < float(of_q.abs().max()) <= 1 / 32 >= float(attention.bias_shared_l0[-32:].abs().max())
    written = wing.RNN(WRITTEN["delta rule"], 8, 64, state_size=4).requires_grad_(False)
    assert float(written.keep_l0.abs().max()) <= 1 / 8 and len(written.keep_l0.unique()) > 64


LONG = 4000


@pytest.mark.parametrize("name", vector_library_names())
def test_a_built_in_cell_starts_without_diverging(name: str) -> None:
    torch.manual_seed(0)
    layer = wing.RNN(name, 8, 8, state_size=16)
    y, _ = layer(torch.randn(1, LONG, 8))
    y.square().mean().backward()
    assert float(y.detach().abs().max()) < 100 and all(bool(one.grad.isfinite().all()) for one in layer.parameters())


NAMED_LIKE_A_BIAS = {
    "name": "own",
    "states": {"h": "n"},
    "shared": ["b"],
    "parameters": {"bias_shared": "n"},
    "equations": "h[t] = bias_shared * h[t-1] + W.v * S.b",
    "output": "sum(h[t])",
}
REFUSED = {
    "no state_size": (lambda: wing.RNN("selective", 4, 6), "selective has n values per channel; give n, a whole number"),
    "a cell without n": (lambda: wing.LSTM(4, 6, state_size=3), "3 is given, but nothing of the cell lstm has the axis n"),
    "groups without S.*": (lambda: wing.RNN("s4d", 4, 6, state_size=3, groups=2), "the cell s4d has no inputs S"),
    "groups that do not divide": (
        lambda: wing.RNN("selective", 4, 6, state_size=3, groups=4),
        "4 does not divide hidden_size 6",
    ),
    "a vector's name": (
        lambda: wing.RNN(NAMED_LIKE_A_BIAS, 4, 6, state_size=3),
        "has a vector bias_shared, a name that layers have",
    ),
    "hx": (
        lambda: wing.RNN("selective", 4, 6, state_size=3)(torch.zeros(2, 3, 4), torch.zeros(1, 2, 6)),
        r"\[1, 2, 6\]; \[1, 2, 6, 3\] is expected, \[num_layers \* directions, batch, hidden_size, state_size\]",
    ),
    "hx without a batch": (
        lambda: wing.RNN("selective", 4, 6, state_size=3)(torch.zeros(3, 4), torch.zeros(1, 2, 6, 3)),
        r"\[1, 6, 3\] is expected, \[num_layers \* directions, hidden_size, state_size\]",
    ),
    "a weight of S.*": (
        lambda: exchanged(torch.zeros(5, 4)),
        r"parameter weight_shared_l0 has shape \[5, 4\]; \[6, 4\] is expected",
    ),
    "a weight of another dtype": (
        lambda: exchanged(torch.zeros(6, 4, dtype=torch.float64)),
        "input has dtype torch.float32, but parameter weight_shared_l0 has torch.float64",
    ),
    "a size of a layer that exists": (
        lambda: setattr(wing.RNN("s4d", 4, 6, state_size=3), "state_size", 4),
        "state_size cannot be set to 4 after the layer was made",
    ),
}


def exchanged(weight: Any) -> Any:
    layer = wing.RNN("selective", 4, 6, state_size=3)
    layer.weight_shared_l0 = torch.nn.Parameter(weight)
    return layer(torch.zeros(2, 3, 4))


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_one_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_layer_on_the_meta_device_has_shapes() -> None:
    layer = wing.RNN("selective", 4, 6, 2, state_size=3, bidirectional=True, device="meta")
    y, last = layer(torch.zeros(2, 3, 4, device="meta"))
    assert (y.shape, last.shape) == ((2, 3, 12), (4, 2, 6, 3)) and y.is_meta
