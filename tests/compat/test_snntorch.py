"""The front of snnTorch: its neurons over a sequence beside their equations, and beside the library's loop."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.spiking import arctan, assert_equal, results, spike_above  # noqa: E402

from minrnn_gen.compat import snntorch as ours  # noqa: E402
from minrnn_gen.errors import BadInput  # noqa: E402

BATCH, WIDTH, FIRST, LAST = 3, 5, 5, 4
LEARNED = {"learn_beta": True, "learn_threshold": True}
# Neurons and their arguments; every reset, at once and in the next step, and vectors in place of numbers.
NEURONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Leaky", {"beta": 0.8, "threshold": 0.9, **LEARNED}),
    ("Leaky", {"beta": 0.8, "reset_mechanism": "zero", "reset_delay": False, **LEARNED}),
    (
        "Leaky",
        {"beta": torch.linspace(0.2, 0.9, WIDTH), "threshold": torch.linspace(0.6, 0.9, WIDTH), "reset_mechanism": "zero"},
    ),
    ("Synaptic", {"alpha": 0.7, "beta": 0.8, "learn_alpha": True, **LEARNED}),
    ("Synaptic", {"alpha": 0.7, "beta": 0.8, "reset_mechanism": "none", "learn_alpha": True, **LEARNED}),
    ("Alpha", {"alpha": 0.8, "beta": 0.6, "threshold": 0.5, "learn_alpha": True, **LEARNED}),
    ("Alpha", {"alpha": 0.8, "beta": 0.6, "threshold": 0.5, "reset_mechanism": "subtract", "learn_alpha": True, **LEARNED}),
    ("RLeaky", {"beta": 0.8, "linear_features": WIDTH, **LEARNED}),
    ("RLeaky", {"beta": 0.8, "V": 0.3, "all_to_all": False, "reset_mechanism": "zero", "reset_delay": False, **LEARNED}),
)
# The other resets, beside the library alone.
MORE: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("Leaky", {"beta": 0.8, "reset_mechanism": how, "reset_delay": False, **LEARNED}) for how in ("subtract", "none")),
    *(
        ("Synaptic", {"alpha": 0.7, "beta": 0.8, "reset_mechanism": "zero", "reset_delay": late, **LEARNED})
        for late in (True, False)
    ),
    ("Alpha", {"alpha": 0.8, "beta": 0.6, "reset_mechanism": "none", **LEARNED}),
    ("RLeaky", {"beta": 0.8, "linear_features": WIDTH, "reset_mechanism": "zero", "reset_delay": False, **LEARNED}),
    ("Leaky", {"beta": 0.8, "graded_spikes_factor": 0.7, "learn_graded_spikes_factor": True, **LEARNED}),
)


def sequence(steps: int, seed: int, dtype: Any = torch.float64) -> Any:
    drawn = torch.randn(steps, BATCH, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.3
    return drawn.to(dtype).requires_grad_()


def loop(kind: str, x: Any, numbers: dict[str, Any], options: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Step by step, the equations of Eshraghian et al., arXiv 2109.12894, from zeros; `numbers` by the names of parameters."""
    beta, threshold = numbers["beta"], numbers["threshold"]
    alpha = numbers.get("alpha")
    how = options.get("reset_mechanism", "zero" if kind == "Alpha" else "subtract")
    mem, syn, inhibited, spk = (torch.zeros(BATCH, WIDTH, dtype=x.dtype) for _ in range(4))
    spikes = []
    for one in x:
        fired = (mem > threshold).to(x.dtype)
        kept = 0 if how == "zero" else 1
        if kind == "Alpha":
            e, i = alpha * syn + one, beta * inhibited - one
            u = (torch.log(alpha) / (torch.log(beta) - torch.log(alpha)) + 1) * (e + i)
            before = inhibited
            if how == "subtract":
                syn, inhibited, u = e - threshold * fired, i * (1 - fired), u + before * fired
            else:
                syn, inhibited, u = (torch.where(fired > 0, kept * value, value) for value in (e, i, u))
        else:
            fed = one
            if kind == "Synaptic":
                syn = alpha * syn + one
                fed = syn
            if kind == "RLeaky":
                again = spk @ numbers["W"].T + numbers["b"] if "W" in numbers else numbers["V"] * spk
                fed = fed + again
            u = beta * mem + fed
            if how == "subtract":
                u = u - fired * threshold
            elif how == "zero":
                u = beta * (1 - fired) * mem + fed if kind == "Leaky" else (1 - fired) * u
        spk = spike_above(u - threshold, arctan(2.0))
        mem = u
        if not options.get("reset_delay", True):
            mem = u - (spk - fired) * (threshold if how == "subtract" else u)
        spikes.append(spk)
    states = {"Leaky": [mem], "Synaptic": [syn, mem], "Alpha": [syn, inhibited, mem], "RLeaky": [mem]}[kind]
    return torch.stack(spikes), states


def run(kind: str, neuron: Any, x: Any, more: Any) -> tuple[Any, list[Any]]:
    """Run two pieces of a sequence, the states of the first given to the second."""
    first, *states = neuron(x)
    last, *states = neuron(more, *([first[-1]] if kind == "RLeaky" else []), *states)
    return torch.cat([first, last]), states


@pytest.mark.parametrize(("kind", "options"), NEURONS)
def test_neurons_are_their_equations(kind: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    neuron = getattr(ours, kind)(**options).double()
    x, more = sequence(FIRST, 0), sequence(LAST, 1)
    own = dict(neuron.named_parameters())
    found = results(*run(kind, neuron, x, more), {"x": x, "more": more, **own})
    copies = {name: one.detach().clone().requires_grad_() for name, one in own.items()}
    numbers = {name: getattr(neuron, name, None) for name in ("alpha", "beta", "threshold", "V")} | copies
    if options.get("linear_features"):
        numbers |= {"W": copies["recurrent.weight"], "b": copies["recurrent.bias"]}
    expected = loop(kind, torch.cat([x, more]), numbers, options)
    assert_equal(found, results(*expected, {"x": x, "more": more, **copies}))


@pytest.mark.matrix_full
@pytest.mark.parametrize(("kind", "options"), (*NEURONS, *MORE))
def test_neurons_of_the_library(kind: str, options: dict[str, Any]) -> None:
    """In float32, in which the library emits spikes whatever the dtype of the input. Its Alpha cannot learn alpha."""
    theirs = pytest.importorskip("snntorch")
    options = {name: value for name, value in options.items() if (kind, name) != ("Alpha", "learn_alpha")}
    torch.manual_seed(0)
    pair = [getattr(module, kind)(**options, spike_grad=theirs.surrogate.fast_sigmoid(4)) for module in (ours, theirs)]
    pair[0].load_state_dict(pair[1].state_dict())
    pair[1].load_state_dict(pair[0].state_dict())
    found = []
    for module in pair:
        x, more = sequence(FIRST, 0, torch.float32), sequence(LAST, 1, torch.float32)
        if module is pair[0]:
            spikes, states = run(kind, module, x, more)
        else:
            states, every = [], []
            for one in torch.cat([x, more]):
                spk, *states = module(one, *([every[-1]] if kind == "RLeaky" and every else []), *states)
                every.append(spk)
            spikes = torch.stack(every)
        tensors = {"x": x, "more": more, **dict(module.named_parameters())}
        found.append(results(spikes, states, tensors))
    if options.get("learn_graded_spikes_factor"):
        assert torch.equal(found[0].pop("spikes"), found[1].pop("spikes"))
    assert_equal(*found, roundoffs=2048)


SURROGATES: dict[str, tuple[float, ...]] = {
    "atan": (1.5,), "fast_sigmoid": (7,), "sigmoid": (5,), "straight_through_estimator": (), "triangular": (0.7,),
    "heaviside": (), "spike_rate_escape": (2, 3), "SFS": (5, 0.1),
}  # fmt: skip


def gradient_by(neuron: Any) -> Any:
    x = torch.randn(1, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64).mul(2).requires_grad_()
    y = neuron(x if type(neuron).__module__.startswith("snntorch") else x[None])[0]
    return torch.autograd.grad((y * torch.arange(64) / 64).sum(), x)[0]  # in float32 without rounding


@pytest.mark.parametrize("name", SURROGATES)
def test_every_surrogate_has_a_gradient(name: str) -> None:
    gradient = gradient_by(ours.Leaky(0.5, spike_grad=getattr(ours.surrogate, name)(*SURROGATES[name])))
    assert gradient.isfinite().all() and gradient.abs().max() > 0


@pytest.mark.matrix_full
@pytest.mark.parametrize("name", SURROGATES)
def test_surrogates_of_the_library(name: str) -> None:
    theirs = pytest.importorskip("snntorch")
    made = getattr(theirs.surrogate, name)(*SURROGATES[name])
    expected = gradient_by(theirs.Leaky(0.5, spike_grad=made))
    for given in (made, getattr(ours.surrogate, name)(*SURROGATES[name])):
        torch.testing.assert_close(
            gradient_by(ours.Leaky(0.5, spike_grad=given)), expected, rtol=2**-23, atol=1e-13
        )  # theirs in float32


@pytest.mark.parametrize("kind", ["Leaky", "Synaptic", "Alpha", "RLeaky"])
def test_a_call_has_the_names_of_the_library(kind: str) -> None:
    theirs = pytest.importorskip("snntorch")
    there, own = (inspect.signature(getattr(one, kind).forward).parameters.values() for one in (theirs, ours))
    assert [(one.name, one.default) for one in own] == [(one.name, one.default) for one in there]


def test_states_are_kept_where_nothing_is_given() -> None:
    x = sequence(6, 0, torch.float32).detach()
    hidden = ours.Leaky(0.9, init_hidden=True)
    whole, last = ours.Leaky(0.9)(x)
    assert torch.equal(torch.cat([hidden(x[:2]), hidden(x[2:])]), whole) and torch.equal(hidden.mem, last)
    hidden.reset_mem()
    assert torch.equal(hidden(x), whole)
    hidden.mem.requires_grad_()
    ours.Leaky.detach_hidden()
    assert not hidden.mem.requires_grad and hidden.mem.any()
    ours.Leaky.reset_hidden()
    assert not hidden.mem.any()
    hidden.reset_mechanism = "none"
    assert int(hidden.reset_mechanism_val) == 2 and not torch.equal(hidden(x), whole)
    assert ours.Leaky(0.9, init_hidden=True, output=True)(x)[1].shape == last.shape
    with pytest.raises(TypeError, match="mem is given, but init_hidden=True keeps the states in the layer") as caught:
        hidden(x, last)
    assert isinstance(caught.value, BadInput)


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 3, 1, 1)])
def test_images_and_channels_of_their_own(shape: tuple[int, ...]) -> None:
    x = torch.randn(4, 2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    beta = torch.tensor([0.5, 0.7, 0.9]).view(shape)
    spikes, mem = ours.Leaky(beta)(x)
    for channel in range(3):
        alone, its_mem = ours.Leaky(beta.flatten()[channel].item())(x[:, :, channel])
        assert torch.equal(spikes[:, :, channel], alone)
        torch.testing.assert_close(mem[:, channel], its_mem)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ours.Leaky(0.9, inhibition=True), "inhibition is True, which no kernel supports"),
        (lambda: ours.Leaky(0.9, state_quant=torch.round), "state_quant is given, but no kernel here quantises states"),
        (lambda: ours.Leaky(0.9, reset_mechanism="half"), "reset_mechanism is 'half'; one of subtract, zero, none is expected"),
        (lambda: ours.Leaky(0.9, spike_grad=torch.sigmoid), "spike_grad is .*; what one of atan, .* returns is expected"),
        (
            lambda: ours.Leaky(torch.ones(4))(torch.zeros(2, 3, 5)),
            r"beta has shape \[4\]; a number, or a shape that broadcasts",
        ),
        (lambda: ours.Alpha(0.5, 0.6), "alpha has to be greater than beta"),
        (lambda: ours.RLeaky(0.5, kernel_size=3, conv2d_channels=2), "no kernel here convolves spikes"),
        (lambda: ours.RLeaky(0.5), "all_to_all is True and linear_features None"),
        (lambda: ours.RLeaky(0.5, linear_features=4)(torch.zeros(2, 3, 5)), r"input_ has shape .*; \[time, batch, 4\]"),
        (lambda: ours.surrogate.fast_sigmoid(0), "slope is 0; more than 0 is expected"),
    ],
)
def test_what_is_refused_is_one_sentence(make: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)
