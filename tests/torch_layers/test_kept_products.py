"""Second backwards that read the gradients of products which the first backward kept."""

from __future__ import annotations

from typing import Any

import pytest
from support.needed import needed

import minrnn_gen
from minrnn_gen.build.tangent_cells import joint_recipe
from minrnn_gen.cell.files import library_names
from minrnn_gen.run import saved_output

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
operators = needed("minrnn_gen.torch.operators.kernel_operator")

BATCH, TIME, HIDDEN = 3, 5, 4
TOLERANCE = {"rtol": 1e-10, "atol": 1e-12}


def kernel_of(name: str, **spec: Any) -> minrnn_gen.Kernel:
    return minrnn_gen.compile({"model": name, "hidden_size": HIDDEN, "precision": "fp64", **spec})


KEEPING = [name for name in library_names() if joint_recipe(kernel_of(name).recipe) is not None]


class Second:
    """A second backward along drawn tangents of some gradients, and the backwards of kernels that it takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernel: minrnn_gen.Kernel, moves_R: bool, **arrays: Any) -> None:
        self.kernel, self.moves_R, self.arrays, self.backwards = kernel, moves_R, arrays, 0
        run = operators.calls.backward

        def counted(*arguments: Any, **keywords: Any) -> Any:
            self.backwards += 1
            return run(*arguments, **keywords)

        monkeypatch.setattr(operators.calls, "backward", counted)

    def gradients(self, factor: float | None = None) -> list[Any]:
        """Return all second gradients; with a `factor`, the first gradient of x is multiplied by it in place at last."""
        generator, interface, leaves = torch.Generator().manual_seed(3), self.kernel.interface, []

        def leaf(shape: tuple[int, ...]) -> Any:
            leaves.append((torch.randn(shape, dtype=torch.float64, generator=generator) / 2).requires_grad_())
            return leaves[-1]

        arrays = {"x": leaf(interface.shape(interface.x_axes, BATCH, TIME)), "R": leaf(interface.R_shape)}
        if interface.input_size:
            arrays["weight"] = leaf((interface.weight_rows, interface.input_size))
        if self.kernel.spec.recurrent_bias:
            arrays["recurrent_bias"] = leaf(interface.recurrent_bias_shape)
        arrays["parameters"] = {name: leaf(interface.shape_of_parameter(name)) for name in interface.parameters}
        arrays["state"] = {name: leaf(interface.shape_of_state(name, BATCH)) for name in interface.states}
        y, final = wing.recurrence(self.kernel, **arrays, **self.arrays)
        dy = torch.randn(y.shape, dtype=y.dtype, generator=generator).requires_grad_()
        total = (y * dy).sum() + sum(state.sum() for state in final.values())
        moved = leaves if self.moves_R else leaves[:1]
        first = torch.autograd.grad(total, moved, create_graph=True)
        along = [torch.randn(one.shape, dtype=one.dtype, generator=generator) for one in first]
        loss = sum((one * other).sum() for one, other in zip(first, along, strict=True))
        if factor is not None:
            with torch.no_grad():
                first[0].mul_(factor)
        self.backwards = 0
        return list(torch.autograd.grad(loss, [*leaves, dy], materialize_grads=True))


def all_calls() -> list[Any]:
    """Return the cases: a cell, keys of its spec, arrays of its call, and whether all of it moves; a few run every day."""
    lengths = {"lengths": torch.tensor([5, 2, 3], dtype=torch.int32)}
    cases = [
        (name, keys, arrays, moves)
        for name in KEEPING
        for keys in (
            {},
            {"recurrent_bias": True},
            {"input_size": 3},
            {"direction": "bidirectional", "layout": "TBD", "heads": 2},
            {"direction": "reverse", "input_size": 3, "layout": "BDT"},
        )
        for arrays in ({}, lengths)
        for moves in (False, True)
    ]
    everyday = [("lstm", {"input_size": 3}, lengths, True), ("elman", {}, {}, False)]
    full = [pytest.param(*case, marks=pytest.mark.matrix_full) for case in cases if case not in everyday]
    return [*(pytest.param(*case) for case in everyday), *full]


@pytest.mark.parametrize(("name", "keys", "arrays", "moves_R"), all_calls())
def test_one_backward_gives_what_two_give(
    monkeypatch: pytest.MonkeyPatch, name: str, keys: dict[str, Any], arrays: dict[str, Any], moves_R: bool
) -> None:
    second = Second(monkeypatch, kernel_of(name, **keys), moves_R, **arrays)
    found = second.gradients()
    assert second.backwards == 1
    monkeypatch.setattr(operators, "joint_recipe", lambda _: None)
    expected = second.gradients()
    assert second.backwards == 2
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE)


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize("layout", ["BTD", "TBD"])
@pytest.mark.parametrize("moves_R", [False, True])
def test_products_added_in_place_are_sums(monkeypatch: pytest.MonkeyPatch, direction: str, layout: str, moves_R: bool) -> None:
    second = Second(monkeypatch, kernel_of("lstm", direction=direction, layout=layout), moves_R)
    found = second.gradients()
    monkeypatch.setattr(saved_output, "is_eager", lambda *_: False)
    for one, other in zip(found, second.gradients(), strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE)


def test_a_gradient_that_was_written_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    second = Second(monkeypatch, kernel_of("elman"), True)
    expected = second.gradients()
    found = second.gradients(factor=0)
    assert second.backwards == 2
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE)


def test_resets_take_two(monkeypatch: pytest.MonkeyPatch) -> None:
    second = Second(monkeypatch, kernel_of("elman"), True, resets=torch.zeros(BATCH, TIME, dtype=torch.bool))
    second.gradients()
    assert second.backwards == 2
