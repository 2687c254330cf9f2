"""Uses of second derivatives beside torch's own layers, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.needed import needed

import minrnn_gen
from minrnn_gen.cell.files import library_names, projected_library_names, vector_library_names

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
gradients_are_right = needed("support.gradients_checked").gradients_are_right

INPUTS, HIDDEN, BATCH, TIME = 3, 4, 3, 5
TOLERANCE = {"rtol": 1e-9, "atol": 1e-11}


def pair_of(kind: str, **options: Any) -> tuple[Any, Any]:
    """Return a layer here and torch's with the same weights."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, kind)(INPUTS, HIDDEN, batch_first=True, dtype=torch.float64, **options)
    ours = getattr(wing.nn, kind)(INPUTS, HIDDEN, batch_first=True, dtype=torch.float64, **options)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def drawn(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def penalty(layer: Any) -> list[Any]:
    """The gradient penalty of a WGAN, of Gulrajani et al., arXiv 1704.00028."""
    x = drawn(BATCH, TIME, INPUTS).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x)[0][:, -1].sum(), x, create_graph=True)
    loss = (gradient.flatten(1).norm(dim=1) - 1).square().mean()
    return list(torch.autograd.grad(loss, [x, *layer.parameters()], materialize_grads=True))


def adapted(layer: Any) -> list[Any]:
    """A step of MAML, of Finn et al., arXiv 1703.03400: the loss of adapted weights, differentiated by the weights before."""
    weights = dict(layer.named_parameters())

    def loss(weights: dict[str, Any], x: Any) -> Any:
        y, last = torch.func.functional_call(layer, weights, (x,))
        return y.square().mean() + sum(state.sum() for state in (last if isinstance(last, tuple) else (last,)))

    inner = torch.autograd.grad(loss(weights, drawn(BATCH, TIME, INPUTS)), [*weights.values()], create_graph=True)
    moved = {name: weight - 0.1 * step for (name, weight), step in zip(weights.items(), inner, strict=True)}
    return list(torch.autograd.grad(loss(moved, 0.5 * drawn(BATCH, TIME, INPUTS)), [*weights.values()]))


def packed(layer: Any) -> list[Any]:
    """Second gradients of packed sequences of several lengths, with initial states."""
    x, h = drawn(BATCH, TIME, INPUTS).requires_grad_(), drawn(layer.num_layers, BATCH, HIDDEN).requires_grad_()
    together = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([2, 5, 3]), batch_first=True, enforce_sorted=False)
    y, last = layer(together, (h, h) if layer.mode == "LSTM" else h)
    total = y.data.square().sum() + sum(state.sum() for state in (last if isinstance(last, tuple) else (last,)))
    leaves = [x, h, *layer.parameters()]
    first = torch.autograd.grad(total, leaves, create_graph=True)
    return list(torch.autograd.grad(sum(gradient.square().sum() for gradient in first), leaves))


def hessian(layer: Any) -> list[Any]:
    """A Hessian by jacrev over jacrev where a layer is torch's, which has no derivatives in forward mode."""
    outer = torch.func.jacrev if type(layer).__module__.startswith("torch.") else torch.func.jacfwd
    energy = torch.func.jacrev(lambda x: layer(x)[0].square().sum())
    return [outer(energy)(drawn(1, 3, INPUTS))]


USES = (penalty, adapted, packed, hessian)


@pytest.mark.parametrize(
    ("kind", "options", "use"),
    [
        pytest.param(kind, options, use, marks=() if use is penalty and kind == "GRU" else pytest.mark.matrix_full)
        for kind in ("LSTM", "GRU", "RNN")
        for options in ({}, {"num_layers": 2, "bidirectional": False})
        for use in USES
    ],
)
def test_uses(kind: str, options: dict[str, Any], use: Callable[[Any], list[Any]]) -> None:
    ours, theirs = pair_of(kind, **options)
    for gradient, expected in zip(use(ours), use(theirs), strict=True):
        torch.testing.assert_close(gradient, expected, **TOLERANCE)


@pytest.mark.matrix_full
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_both_directions(kind: str) -> None:
    ours, theirs = pair_of(kind, bidirectional=True, num_layers=2)
    for gradient, expected in zip(penalty(ours), penalty(theirs), strict=True):
        torch.testing.assert_close(gradient, expected, **TOLERANCE)


@pytest.mark.matrix_full
@pytest.mark.parametrize("kind", ["LSTM", "MinGRU"])
def test_gradients_per_sample(kind: str) -> None:
    torch.manual_seed(0)
    layer, x = getattr(wing, kind)(INPUTS, HIDDEN, dtype=torch.float64), drawn(BATCH, TIME, INPUTS)
    parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}

    def loss(parameters: dict[str, Any], sample: Any) -> Any:
        return torch.func.functional_call(layer, parameters, (sample[None],))[0].square().sum()

    together = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for number, sample in enumerate(x):
        for name, gradient in torch.func.grad(loss)(parameters, sample).items():
            torch.testing.assert_close(together[name][number], gradient, **TOLERANCE)


@pytest.mark.matrix_full
@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("layers", [1, 2])
def test_gradients_per_sample_by_opacus(kind: str, layers: int) -> None:
    """Opacus samples gradients of a module that returns one tensor."""
    opacus = needed("opacus.grad_sample")
    ours, theirs = pair_of(kind, num_layers=layers)
    own = type(ours)

    class Output(own):  # type: ignore[misc, valid-type]
        def forward(self, x: Any) -> Any:
            return super().forward(x)[0]

    module = Output(INPUTS, HIDDEN, layers, batch_first=True, dtype=torch.float64)
    module.load_state_dict(theirs.state_dict())
    x = drawn(BATCH, TIME, INPUTS)
    sampled = opacus.GradSampleModule(module, loss_reduction="sum")
    sampled(x).square().sum().backward()
    for (name, parameter), found in zip(theirs.named_parameters(), module.parameters(), strict=True):
        samples = [torch.autograd.grad(theirs(sample[None])[0].square().sum(), parameter)[0] for sample in x]
        torch.testing.assert_close(found.grad_sample, torch.stack(samples), msg=name, **TOLERANCE)


OF_LIBRARY = [*library_names(), *projected_library_names(), *vector_library_names()]
KEYS = {
    **{name: {"projection_size": 2} for name in projected_library_names()},
    **{name: {"state_size": 2} for name in vector_library_names()},
}
# Their derivatives are not those of their values.
OF_OTHER_VALUES = ("lif", "recurrent_lif", "slstm")
STEPS = 3
# Each ends, begins or leaves out a sequence within the steps.
SEQUENCES: tuple[dict[str, list[Any]], ...] = (
    {},
    {"resets": [[False, True, False], [True, False, True]]},
    {"lengths": [3, 1]},
    {"lengths": [2, 0], "resets": [[False, True, False], [True, False, True]]},
    {"cu_seqlens": [0, 2, 3]},
    {"cu_seqlens": [0, 0, 3], "resets": [[True, False, True]]},
)


@pytest.mark.matrix_full
@pytest.mark.parametrize("name", [name for name in OF_LIBRARY if name not in OF_OTHER_VALUES])
@pytest.mark.parametrize("sequences", SEQUENCES, ids=lambda sequences: "and".join(sequences) or "whole")
def test_gradgradcheck(name: str, sequences: dict[str, Any]) -> None:
    """Of every cell in both directions, with states, and with resets, lengths and packed sequences, by torch's own check."""
    spec = {"model": name, "hidden_size": 2, "precision": "fp64", "direction": "bidirectional", **KEYS.get(name, {})}
    kernel, generator = minrnn_gen.compile(spec), torch.Generator().manual_seed(2)
    interface, leaves = kernel.interface, []
    ends = sequences.get("cu_seqlens")
    rows, count = (1, len(ends) - 1) if ends else (2, 2)

    def leaf(shape: tuple[int, ...]) -> Any:
        leaves.append((torch.randn(shape, dtype=torch.float64, generator=generator) / 2).requires_grad_())
        return leaves[-1]

    shapes: dict[str, Any] = {"x": interface.shape(interface.x_axes, rows, STEPS)}
    if interface.recurrent_gates:
        pairs = zip(interface.recurrent_gates, interface.product_shapes, strict=True)
        shapes["R"] = {gate: (2, *shape) for gate, shape in pairs} if interface.has_unequal_products else interface.R_shape
    shapes["parameters"] = {one: interface.shape_of_parameter(one) for one in interface.parameters}
    shapes["state"] = {one: interface.shape_of_state(one, count) for one in interface.states}
    shapes["shared"] = {one: interface.shape(interface.shared_axes, rows, STEPS) for one in interface.shared}
    shapes["inputs"] = {one: interface.shape(interface.channel_axes, rows, STEPS) for one in interface.inputs}
    for shape in torch.utils._pytree.tree_leaves(shapes, is_leaf=lambda one: isinstance(one, tuple)):
        leaf(shape)

    def run(*tensors: Any) -> Any:
        in_order = iter(tensors)
        named = {
            key: {one: next(in_order) for one in of} if isinstance(of, dict) else next(in_order) for key, of in shapes.items()
        }
        y, final = wing.recurrence(kernel, **{key: of for key, of in named.items() if not isinstance(of, dict) or of}, **placed)
        return y, *final.values()

    placed = {key: torch.tensor(of, dtype=None if key == "resets" else torch.int32) for key, of in sequences.items()}
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


@pytest.mark.matrix_full
@pytest.mark.filterwarnings("ignore")  # of torch's compiler, about our frames
def test_transforms_within_a_compiled_function() -> None:
    """torch's compiler leaves them out of its graph; as constants in it they had zeros for gradients."""
    kernel, x = minrnn_gen.compile({"model": "min_gru", "hidden_size": 2, "precision": "fp64"}), drawn(1, 2, 2, 2)

    def penalty(x: Any) -> Any:
        gradient = torch.func.grad(lambda x: wing.recurrence(kernel, x)[0].square().sum())
        return torch.func.grad(lambda x: gradient(x).square().sum())(x)

    expected = penalty(x)
    torch.testing.assert_close(torch.compile(penalty, backend="aot_eager")(x), expected, **TOLERANCE)
    assert expected.abs().max() > 0


@pytest.mark.matrix_full
@pytest.mark.parametrize("is_constant", [True, False])
def test_full_maps_have_derivatives_of_any_order(is_constant: bool) -> None:
    torch.manual_seed(0)
    shape = (2, 4, 1, 2)
    a = 0.5 * torch.randn(*(shape[2:] if is_constant else shape), 2, dtype=torch.float64)
    tensors = [a, torch.randn(shape, dtype=torch.float64), torch.randn(2, 1, 2, dtype=torch.float64)]

    def scanned(*tensors: Any) -> Any:
        return wing.scan(*tensors, form="full", reverse=is_constant)

    leaves = [one.clone().requires_grad_() for one in tensors]
    assert gradients_are_right(scanned, leaves, check_forward_ad=True) and torch.autograd.gradgradcheck(scanned, leaves)

    def loss(a: Any) -> Any:
        return scanned(a, *tensors[1:])[0].square().sum()

    torch.testing.assert_close(torch.func.hessian(loss)(a), torch.autograd.functional.hessian(loss, a))
