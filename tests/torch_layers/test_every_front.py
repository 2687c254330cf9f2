"""Autograd's demands on every front: tensors changed between forward and backward, second derivatives, transforms.

Each call is right or refused, never silently wrong. The lists of fronts, functions, ways and operators are made from the code.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.needed import needed

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

from support.differentiable import (  # noqa: E402
    Front,
    Watched,
    alone,
    change,
    exports,
    fronts,
    fronts_over,
    loss_of,
    nodes_of,
)

import minrnn_gen.compat  # noqa: E402
from minrnn_gen.errors import BadInput  # noqa: E402
from minrnn_gen.torch.operators import dispatch, recorded  # noqa: E402

NAMES = fronts()
# By names of code: what of it the calls of this process have reached.
REACHED: set[str] = set()
# Finite differences of functions whose values and derivatives are of size 1, in float64.
STEP, DIFFERENCE = 1e-5, 1e-6
# Of fronts, those of cells with surrogates, or with detached values that reach a result.
WITHOUT_DIFFERENCES = ("slstm", "xlstm", "spikingjelly.", "snntorch.", "lif")


@functools.cache
def front_of(name: str) -> Front:
    return NAMES[name]()


# Layers of other cells go through the same functions.
OF_EVERY_DAY = [name for name in NAMES if not name.startswith("layer ") or name.endswith((" RNN", " MinGRU"))]
CASES = [pytest.param(name, marks=() if name in OF_EVERY_DAY else pytest.mark.matrix_full) for name in NAMES]
# Fronts of other libraries go through the same functions.
TWICE = [
    name
    if name.split()[0] in ("recurrence", "scan", "nn.LSTM", "layers")
    else pytest.param(name, marks=pytest.mark.matrix_full)
    for name in NAMES
]
MODES: dict[str, Callable[[], Any]] = {"plain": contextlib.nullcontext, "dispatched": Watched}


@pytest.fixture(scope="module")
def over_ranks() -> Iterator[dict[str, Front]]:
    if not torch.distributed.is_available():
        pytest.skip("this torch lacks torch.distributed")
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        pytest.skip("gloo finds no address of this machine")
    with alone() as group:
        yield fronts_over(group)


def reach(results: Any) -> None:
    """Note what the graph of results has gone through."""
    for node in nodes_of(results):
        function = getattr(type(node), "_forward_cls", None)
        if function is not None and function.__module__.startswith("minrnn_gen"):
            REACHED.add(f"{function.__module__}.{function.__qualname__}")
            if (way := getattr(node, "way", None)) is not None:
                REACHED.add(f"{type(way).__module__}.{type(way).__qualname__}")


def gradients_of(total: Any, leaves: dict[str, Any], **options: Any) -> list[Any]:
    return list(torch.autograd.grad(total, list(leaves.values()), allow_unused=True, **options))


def check_changes(front: Front, mode: str) -> None:
    """Change each tensor and each result between forward and backward: the gradient is right, or torch refuses it."""
    leaves, others = front.leaves(), front.without_gradients()
    with MODES[mode]() as watched:
        results = front.results({**leaves, **others})
        reach(results)
        expected = gradients_of(loss_of(results), leaves)
    REACHED.update(watched.names if watched else ())
    names = [*leaves, *others, *(f"result {place}" for place in range(len(results)))]
    for name in names:
        leaves, others = front.leaves(), front.without_gradients()
        with MODES[mode]():
            results = front.results({**leaves, **others})
            total = loss_of(results)
            tensors = {**leaves, **others, **{f"result {place}": one for place, one in enumerate(results)}}
            change(tensors[name])
            try:
                found = gradients_of(total, leaves)
            except RuntimeError as refused:
                assert "modified by an inplace operation" in str(refused), name
                continue
        for leaf, one, other in zip(leaves, found, expected, strict=True):
            assert one is other is None or torch.equal(one, other), f"{name} changed: gradient of {leaf}"


# Every day each front in one mode.
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(
            name, mode, marks=() if name in OF_EVERY_DAY and (at + turn) % len(MODES) == 0 else pytest.mark.matrix_full
        )
        for at, name in enumerate(NAMES)
        for turn, mode in enumerate(MODES)
    ],
)
def test_a_tensor_changed_before_the_backward_is_refused_or_not_needed(name: str, mode: str) -> None:
    check_changes(front_of(name), mode)


def test_so_it_is_over_ranks(over_ranks: dict[str, Front]) -> None:
    for front in over_ranks.values():
        check_changes(front, "plain")


def refused(error: BadInput) -> None:
    text = str(error)
    assert "\n" not in text and ("of minrnn_gen" in text or "without memory" in text), text


def check_second_derivatives(front: Front) -> None:
    """Differentiate every gradient once more: the derivative is that of finite differences, or refused."""
    leaves, others = front.leaves(), front.without_gradients()
    results = front.results({**leaves, **others})
    first = gradients_of(loss_of(results), leaves, create_graph=True)
    reach([one for one in first if one is not None])
    directions = {name: 0.1 * torch.randn_like(leaf) for name, leaf in leaves.items()}

    def penalty(gradients: list[Any], kept: str) -> Any:
        return loss_of([one for name, one in zip(leaves, gradients, strict=True) if name == kept and one is not None])

    for kept, gradient in zip(leaves, first, strict=True):
        if gradient is None:
            continue
        found: Any = 0.0
        if gradient.requires_grad:
            try:
                second = gradients_of(penalty(first, kept), leaves, retain_graph=True)
            except BadInput as error:
                refused(error)
                continue
            pairs = zip(second, directions.values(), strict=True)
            found = sum((one.conj() * along).real.sum() for one, along in pairs if one is not None)
        moved = []
        for sign in (1, -1):
            others = front.without_gradients()
            there = {name: (leaf + sign * STEP * directions[name]).detach().requires_grad_() for name, leaf in leaves.items()}
            total = loss_of(front.results({**there, **others}))
            moved.append(float(penalty(gradients_of(total, there), kept)))
        assert abs(float(found) - (moved[0] - moved[1]) / (2 * STEP)) <= DIFFERENCE, f"penalty on the gradient of {kept}"


@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives_are_right_or_refused(name: str) -> None:
    if any(part in name.lower() for part in WITHOUT_DIFFERENCES):
        pytest.skip("a surrogate and a detached value are no limits of differences; test_plain_equations.py has their cells")
    torch.manual_seed(0)
    check_second_derivatives(front_of(name))


def test_so_they_are_over_ranks(over_ranks: dict[str, Front]) -> None:
    for front in over_ranks.values():
        check_second_derivatives(front)


def check_transforms(front: Front) -> None:
    """Ask for derivatives by every other name that torch has for them: they are right, or refused."""
    leaves, others = front.leaves(), front.without_gradients()
    names = list(leaves)
    results = front.results({**leaves, **others})
    expected = gradients_of(loss_of(results), leaves, retain_graph=True)

    def of_all(*tensors: Any) -> Any:
        return loss_of(front.results({**dict(zip(names, tensors, strict=True)), **others}))

    plain = [leaf.detach() for leaf in leaves.values()]
    tangents = [torch.randn_like(one) for one in plain]
    along = sum((one.conj() * tangent).real.sum() for one, tangent in zip(expected, tangents, strict=True) if one is not None)

    def rows() -> list[Any]:
        weights = torch.randn(2, *results[0].shape, dtype=results[0].dtype)
        batched = torch.autograd.grad(
            results[0], list(leaves.values()), weights, is_grads_batched=True, retain_graph=True, allow_unused=True
        )
        single = [
            torch.autograd.grad(results[0], list(leaves.values()), one, retain_graph=True, allow_unused=True) for one in weights
        ]
        return [
            (one, torch.stack(pair)) for one, pair in zip(batched, zip(*single, strict=True), strict=True) if one is not None
        ]

    def dual() -> list[Any]:
        with torch.autograd.forward_ad.dual_level():
            pairs = zip(plain, tangents, strict=True)
            total = of_all(*(torch.autograd.forward_ad.make_dual(one, tangent) for one, tangent in pairs))
            return [(torch.autograd.forward_ad.unpack_dual(total).tangent, along)]

    def pairs(found: Any) -> list[Any]:
        return [(one, other) for one, other in zip(found, expected, strict=True) if other is not None]

    everything = tuple(range(len(plain)))
    asked: dict[str, Callable[[], list[Any]]] = {
        "torch.func.grad": lambda: pairs(torch.func.grad(of_all, everything)(*plain)),
        "torch.func.jvp": lambda: [(torch.func.jvp(of_all, tuple(plain), tuple(tangents))[1], along)],
        "torch.func.vmap": lambda: [
            (torch.func.vmap(of_all, randomness="same")(*(torch.stack((one, one)) for one in plain)), of_all(*plain).expand(2))
        ],
        "a dual number": dual,
        "is_grads_batched": rows,
    }
    for name, ask in asked.items():
        try:
            found = ask()
        except BadInput as error:
            refused(error)
            continue
        for one, other in found:
            assert one is not None, f"{name} is nothing"
            torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, for derivatives in forward mode
@pytest.mark.parametrize("name", CASES)
def test_transforms_are_right_or_refused(name: str) -> None:
    torch.manual_seed(0)
    check_transforms(front_of(name))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_so_they_are_over_ranks_too(over_ranks: dict[str, Front]) -> None:
    for name, front in over_ranks.items():
        if name != "shares of heads":  # what calls its functions has refused transforms before
            check_transforms(front)


def test_every_export_is_called() -> None:
    assert exports() == {name for front in map(front_of, NAMES) for name in front.covers}


def test_every_function_way_and_operator_is_reached(over_ranks: dict[str, Front]) -> None:
    """Repeats what this process ran of the tests above, so that the order of tests does not matter."""
    for front in (*map(front_of, NAMES), *over_ranks.values()):
        for mode in MODES if front not in over_ranks.values() else ("plain",):
            leaves = front.leaves()
            with MODES[mode]() as watched:
                results = front.results({**leaves, **front.without_gradients()})
                first = gradients_of(loss_of(results), leaves, create_graph=True)
                reach([*results, *(one for one in first if one is not None)])
                gradients_of(loss_of(results), leaves)
            REACHED.update(watched.names if watched else ())
    reach_by_tangents(front_of(next(name for name in NAMES if name.startswith("recurrence of"))))
    reach_by_tangents(front_of("scan"))
    with Watched() as watched:
        layer = wing.RNN("min_gru", 3, 3)
        slots = torch.zeros(1, dtype=torch.int64)
        layer.step(torch.randn(1, 3), cache=layer.cache(1), slots=slots)
        layer(torch.randn(1, 1, 3), cache=layer.cache(1), slots=slots)
        layer.verify_draft(torch.randn(1, 1, 3), cache=layer.cache(1, draft=1), slots=slots)
    REACHED.update(watched.names)
    assert code() - REACHED == set()


def reach_by_tangents(front: Front) -> None:
    """Note what calls on dual numbers go through, and their gradients."""
    leaves = front.leaves()
    with torch.autograd.forward_ad.dual_level():
        duals = {name: torch.autograd.forward_ad.make_dual(leaf, torch.ones_like(leaf)) for name, leaf in leaves.items()}
        results = front.results({**duals, **front.without_gradients()})
        first = gradients_of(loss_of(results), leaves, create_graph=True)
        reach([*results, *(one for one in first if one is not None)])


def code() -> set[str]:
    """Return the functions of autograd, the ways and the operators that the package defines."""
    for package in (wing, minrnn_gen.compat):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    kinds = [*subclasses(torch.autograd.Function)]
    found = {kind for kind in kinds if kind.__module__.startswith("minrnn_gen")}
    for name, module in sorted(sys.modules.items()):
        if name.startswith(("minrnn_gen.torch", "minrnn_gen.compat")):
            found |= {
                value
                for value in vars(module).values()
                if isinstance(value, type) and hasattr(value, "read_again") and value is not recorded.Way
            }
    return {f"{kind.__module__}.{kind.__qualname__}" for kind in found} | set(dispatch.LIBRARY._op_defs)


def subclasses(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)
