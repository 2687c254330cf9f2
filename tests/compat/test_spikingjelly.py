"""The front of SpikingJelly: its neurons and surrogate functions beside their equations, and beside the library itself."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.spiking import arctan, assert_equal, logistic, results, spike_from  # noqa: E402

from minrnn_gen.compat import spikingjelly as ours  # noqa: E402
from minrnn_gen.compat import spikingjelly_surrogate  # noqa: E402
from minrnn_gen.errors import BadInput  # noqa: E402

SHAPE = (3, 5, 2)
NODES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("IFNode", {"v_reset": None}),
    ("LIFNode", {"tau": 1.7}),
    ("LIFNode", {"tau": 3.0, "decay_input": False, "v_reset": -0.25, "detach_reset": True}),
    ("ParametricLIFNode", {"init_tau": 2.5, "v_reset": None, "detach_reset": True}),
    ("ParametricLIFNode", {"init_tau": 2.5, "decay_input": False, "v_reset": -0.25}),
)


def sequence(steps: int, seed: int, dtype: Any = torch.float64) -> Any:
    drawn = torch.randn(steps, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.3
    return drawn.to(dtype).requires_grad_()


def loop(x: Any, v: Any, leak: Any, options: dict[str, Any], slope: Any) -> tuple[Any, Any]:
    """Charge, fire where the threshold is reached, reset: Fang et al., arXiv 2310.16620, with 1 / tau = leak, None for IF."""
    rest, threshold = options.get("v_reset", 0.0), options.get("v_threshold", 1.0)
    spikes = []
    for one in x:
        if leak is None:
            u = v + one
        elif options.get("decay_input", True):
            u = v + leak * (one - (v - (rest or 0)))
        else:
            u = v - leak * (v - (rest or 0)) + one
        s = spike_from(u - threshold, slope)
        spent = s.detach() if options.get("detach_reset") else s
        v = u - spent * threshold if rest is None else (1 - spent) * u + spent * rest
        spikes.append(s)
    return torch.stack(spikes), v


@pytest.mark.parametrize(("kind", "options"), NODES)
def test_neurons_are_their_equations(kind: str, options: dict[str, Any]) -> None:
    """Two calls, of which the second goes on from the first, and a reset in front of both."""
    node = getattr(ours, kind)(surrogate_function=ours.ATan(1.5), step_mode="m", v_threshold=0.9, **options).double()
    node(sequence(2, 9))
    node.reset()
    x, more = sequence(7, 0), sequence(4, 1)
    found = results(torch.cat([node(x), node(more)]), [node.v], {"x": x, "more": more, **dict(node.named_parameters())})
    w = torch.tensor(-torch.log(torch.tensor(1.5, dtype=torch.float64)).item(), dtype=torch.float64, requires_grad=True)
    leak = {"IFNode": None, "LIFNode": 1 / options.get("tau", 2.0), "ParametricLIFNode": torch.sigmoid(w)}[kind]
    start = torch.full(SHAPE, options.get("v_reset", 0.0) or 0.0, dtype=torch.float64)
    parameters = {"w": w} if kind == "ParametricLIFNode" else {}
    if parameters:
        torch.testing.assert_close(node.w.detach(), w.detach(), rtol=0, atol=1e-7)  # made in float32
        with torch.no_grad():
            w.copy_(node.w)
        leak = torch.sigmoid(w)
    spikes, v = loop(torch.cat([x, more]), start, leak, {"v_threshold": 0.9, **options}, arctan(1.5))
    assert_equal(found, results(spikes, [v], {"x": x, "more": more, **parameters}))


def test_single_steps_are_the_sequence() -> None:
    x = sequence(6, 0)
    nodes = [ours.LIFNode(step_mode=mode, store_v_seq=True) for mode in ("m", "s")]
    with torch.no_grad():
        # States as arguments: nothing is kept, and the call starts as if there had been none.
        (spikes,), (last,) = nodes[0].functional_forward((x,), tuple(nodes[0].memories()))
        assert nodes[0].v == 0.0
        whole, steps = nodes[0](x), torch.stack([nodes[1](one) for one in x])
    assert torch.equal(spikes, whole) and torch.equal(last, dict(nodes[0].named_memories())["v"])
    assert torch.equal(whole, steps) and torch.equal(nodes[0].v, nodes[1].v)
    assert torch.equal(nodes[0].v_seq, nodes[1].v_seq) and torch.equal(nodes[0].v_seq[-1], nodes[0].v)
    nodes[0].store_v_seq = False
    assert nodes[0].v_seq is None


@pytest.mark.parametrize("mode", ["m", "s"])
@pytest.mark.parametrize("v", [0.0, 0.5, torch.full(SHAPE, 0.25, dtype=torch.float64)], ids=["zero", "number", "tensor"])
def test_materialized_states_are_tensors(mode: str, v: Any) -> None:
    x = sequence(3, 0)
    (start,) = ours.IFNode().materialize_states((x if mode == "m" else x[0],), (v,), mode)
    assert torch.equal(start, torch.as_tensor(v, dtype=torch.float64).expand(SHAPE))


@pytest.mark.parametrize("precision", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_spikes_are_zero_or_one_in_every_precision(precision: Any) -> None:
    y = ours.LIFNode(step_mode="m")(sequence(8, 2, precision).detach() * 4)
    assert y.dtype is precision and set(y.unique().tolist()) == {0.0, 1.0}


def test_states_are_kept_reset_and_cut() -> None:
    network = torch.nn.Sequential(ours.IFNode(step_mode="m"), ours.LIFNode(step_mode="m"))
    x = sequence(3, 0, torch.float32)
    network(x)
    assert all(node.v.requires_grad for node in network)
    for node in network:
        node.detach()
    assert not any(node.v.requires_grad for node in network)
    first, kept = network[0](x.detach()), network[0].v
    ours.reset_net(network)
    assert [node.v for node in network] == [0.0, 0.0]
    anew = network[0](x.detach())
    assert not torch.equal(network[0].v, kept) and anew.shape == first.shape
    # A batch of another size starts anew.
    network(x[:, :2])
    assert network[0].v.shape == (2, *SHAPE[1:])
    network.double()
    assert network[0].v.dtype is torch.float64


SURROGATES = [getattr(ours, name) for name in spikingjelly_surrogate._TEXTS]


def gradient_by(node: Any) -> Any:
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64).mul(2).requires_grad_()
    y = node(x)
    return torch.autograd.grad((y * torch.linspace(0, 1, y.numel(), dtype=y.dtype).reshape(y.shape)).sum(), x)[0]


def test_gradients_of_surrogates_with_their_parameters() -> None:
    for made, slope in ((ours.ATan(3.0), arctan(3.0)), (ours.Sigmoid(2.0), logistic(2.0))):
        x = torch.linspace(-2, 3, 64, dtype=torch.float64).reshape(1, 8, 8).requires_grad_()
        y = ours.IFNode(step_mode="m", surrogate_function=made)(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(gradient, slope(x.detach() - 1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", SURROGATES, ids=lambda kind: kind.__name__)
def test_every_surrogate_has_a_gradient(kind: Any) -> None:
    """None is silently zero."""
    x = torch.linspace(-1.9, 2.9, 40, dtype=torch.float64).reshape(1, 1, 40).requires_grad_()
    (gradient,) = torch.autograd.grad(ours.IFNode(step_mode="m", surrogate_function=kind())(x).sum(), x)
    assert gradient.isfinite().all() and (gradient >= 0).all() and gradient.abs().max() > 0


@pytest.mark.matrix_full
@pytest.mark.parametrize("kind", SURROGATES, ids=lambda kind: kind.__name__)
def test_surrogates_of_the_library(kind: Any) -> None:
    theirs = pytest.importorskip("spikingjelly.activation_based.surrogate")
    neuron = pytest.importorskip("spikingjelly.activation_based.neuron")
    function = getattr(theirs, kind.__name__)()
    expected = gradient_by(neuron.LIFNode(surrogate_function=function, step_mode="m"))
    for given in (function, kind()):
        found = gradient_by(ours.LIFNode(surrogate_function=given, step_mode="m"))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    assert repr(kind()) == repr(function)


@pytest.mark.matrix_full
@pytest.mark.parametrize(("kind", "options"), NODES)
def test_neurons_of_the_library(kind: str, options: dict[str, Any]) -> None:
    neuron = pytest.importorskip("spikingjelly.activation_based.neuron")
    found = []
    for module in (ours, neuron):
        node = getattr(module, kind)(step_mode="m", store_v_seq=True, **options).double()
        x, more = sequence(7, 0), sequence(4, 1)
        spikes = torch.cat([node(x), node(more)])
        found.append(results(spikes, [node.v], {"x": x, "more": more, **dict(node.named_parameters())}))
        found[-1]["v_seq"] = node.v_seq.detach()
        node.reset()
        found[-1]["again"] = node(sequence(3, 2)).detach()
    assert_equal(*found)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ours.LIFNode(tau=1.0), "tau is 1.0; more than 1 is expected"),
        (lambda: ours.IFNode(step_mode="x"), "step_mode is 'x'; 's' or 'm' is expected"),
        (lambda: ours.IFNode(v_threshold=float("nan")), "v_threshold is nan; a finite number is expected"),
        (
            lambda: ours.IFNode(surrogate_function=torch.sigmoid),
            "surrogate_function is .*; one of ATan, Sigmoid, .* is expected",
        ),
        (lambda: ours.IFNode(surrogate_function=ours.ATan(-1.0)), "alpha of ATan is -1.0; more than 0 is expected"),
        (lambda: ours.IFNode(surrogate_function=ours.ATan(spiking=False)), "ATan with spiking=False, which emits no spikes"),
        (lambda: ours.IFNode(step_mode="m")(torch.zeros(3)), r"x has shape \[3\]; \[time, batch, ...\] is expected"),
        (lambda: ours.IFNode()([1.0]), "x is a list; a torch tensor is expected"),
    ],
)
def test_what_is_refused_is_one_sentence(make: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(0, 2, 3), (4, 0, 3), (4, 1, 1031), (2, 3, 7, 5, 4)])
def test_any_number_of_neurons_in_any_shape(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 2
    node = ours.LIFNode(step_mode="m")
    y = node(x)
    assert y.shape == x.shape and node.v.shape == x.shape[1:]
    v = torch.zeros(x.shape[1:])
    for t in range(x.shape[0]):
        v = v + (x[t] - v) / 2
        assert torch.equal(y[t], (v >= 1).float())
        v = torch.where(v >= 1, 0.0, v)
