"""Gradients in float64 against finite differences, for every built-in cell; and what has none is said."""

from __future__ import annotations

from typing import Any

import pytest
from support.cell_evaluation import built_in
from support.everyday import one_in
from support.needed import needed
from support.uncompiled_kernels import host_kernel

from minrnn_gen.cell.files import library_names

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
gradients_are_right = needed("support.gradients_checked").gradients_are_right

BATCH, TIME, INPUTS, HIDDEN = 2, 3, 3, 2
# A surrogate gradient is no limit of differences; test_plain_equations.py has those cells.
SMOOTH = [name for name in library_names() if "surrogate(" not in built_in(name).equations]


def tensor(*shape: int, low: float | None = None) -> Any:
    drawn = torch.randn(shape, dtype=torch.float64) if low is None else low + torch.rand(shape, dtype=torch.float64)
    return drawn.requires_grad_()


def call_of(model: str, projects: bool, **spec: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a function of tensors that all have gradients, and such tensors."""
    dense = bool(built_in(model).recurrent_gates)
    kernel = host_kernel(
        model,
        HIDDEN,
        "fp64",
        **({"input_size": INPUTS} if projects else {}),
        **({"recurrent_bias": True} if dense else {}),
        **spec,
    )
    interface = kernel.interface
    named = {"x": tensor(BATCH, TIME, INPUTS) if projects else tensor(BATCH, TIME, *interface.shape(interface.gate_axes, 0, 0))}
    if dense:
        named |= {"R": tensor(*interface.R_shape), "recurrent_bias": tensor(interface.recurrent_rows)}
    if projects:
        named["weight"] = tensor(interface.weight_rows, INPUTS)
    named["bias"] = tensor(interface.weight_rows)
    parameters = {name: tensor(*interface.parameter_shape) for name in kernel.parameters}
    # The normaliser of slstm is 0 at the start and at least 1 later on; at 0 and at 1 there is no derivative.
    state = {name: tensor(*interface.state_shape(BATCH), low=1.5 if name == "n" else None) for name in kernel.states}
    names, own, states = tuple(named), tuple(parameters), tuple(state)

    def run(*tensors: Any) -> Any:
        given = iter(tensors)
        arguments = {name: next(given) for name in names}
        vectors = {name: next(given) for name in own}
        y, final = wing.recurrence(kernel, **arguments, parameters=vectors, state={name: next(given) for name in states})
        # m is detached in slstm, which leaves y as it is, but not c, n and m themselves.
        return y if model == "slstm" else (y, *final.values())

    return run, (*named.values(), *parameters.values(), *state.values())


@pytest.mark.parametrize("projects", [True, pytest.param(False, marks=pytest.mark.matrix_full)])
@pytest.mark.parametrize("model", SMOOTH)
def test_of_every_cell(model: str, projects: bool) -> None:
    torch.manual_seed(0)
    run, tensors = call_of(model, projects)
    assert gradients_are_right(run, tensors)


@pytest.mark.parametrize("model", ["lstm", "rg_lru"])
def test_in_both_directions(model: str) -> None:
    torch.manual_seed(0)
    run, tensors = call_of(model, True, direction="bidirectional")
    assert gradients_are_right(run, tensors)


@pytest.mark.matrix_full
@pytest.mark.parametrize("projects", [True, False])
@pytest.mark.parametrize("model", SMOOTH)
def test_gradients_of_gradients_of_every_cell(model: str, projects: bool) -> None:
    torch.manual_seed(0)
    run, tensors = call_of(model, projects)
    assert torch.autograd.gradgradcheck(run, tensors)


@pytest.mark.matrix_full
@pytest.mark.parametrize("model", ["lstm", "rg_lru"])
def test_gradients_of_gradients_in_both_directions(model: str) -> None:
    torch.manual_seed(0)
    run, tensors = call_of(model, True, direction="bidirectional")
    assert torch.autograd.gradgradcheck(run, tensors)


@pytest.mark.parametrize("sequences", ["lengths", "cu_seqlens", "resets"])
def test_of_sequences(sequences: str) -> None:
    kernel = host_kernel("min_lstm", HIDDEN, "fp64")
    x, count = tensor(BATCH, TIME, 3, HIDDEN), BATCH
    given = {"lengths": torch.tensor([2, 3]), "resets": torch.tensor([[False, True, False], [True, False, True]])}
    if sequences == "cu_seqlens":
        x, count = tensor(1, 6, 3, HIDDEN), 3
        given["cu_seqlens"] = torch.tensor([0, 2, 2, 6])
    h = tensor(count, HIDDEN)

    def run(x: Any, h: Any) -> Any:
        y, final = wing.recurrence(kernel, x, state={"h": h}, **{sequences: given[sequences]})
        return y, final["h"]

    assert gradients_are_right(run, (x, h))
    assert torch.autograd.gradgradcheck(run, (x, h))


OF_SCANS = [
    (torch.float64, 1, False),
    (torch.complex128, 1, False),
    (torch.complex128, 0, True),
    (torch.float64, 0, True),
    (torch.float64, -1, False),
    (torch.complex128, -1, False),
]


@pytest.mark.parametrize(("dtype", "axis", "reverse"), one_in(2, OF_SCANS))
def test_of_the_raw_scan(dtype: Any, axis: int, reverse: bool) -> None:
    a, b = (torch.randn(3, 4, 2, dtype=dtype, requires_grad=True) for _ in range(2))
    h0 = torch.randn(a.select(axis, 0).shape, dtype=dtype, requires_grad=True)
    assert gradients_are_right(lambda a, b, h0: wing.scan(a, b, h0, axis=axis, reverse=reverse), (a, b, h0))
    assert gradients_are_right(lambda a, b: wing.scan(a, b, axis=axis, reverse=reverse)[0], (a, b))
    assert torch.autograd.gradgradcheck(lambda a, b, h0: wing.scan(a, b, h0, axis=axis, reverse=reverse), (a, b, h0))


def test_of_the_raw_scan_in_logarithms() -> None:
    a, b, h0 = tensor(2, 4, 3), tensor(2, 4, 3), tensor(2, 3)
    assert gradients_are_right(lambda a, b, h0: wing.scan(a, b, h0, log_a=True), (a, b, h0))
    assert torch.autograd.gradgradcheck(lambda a, b, h0: wing.scan(a, b, h0, log_a=True), (a, b, h0))


@pytest.mark.parametrize(("model", "clip"), [("gru", None), ("gru", 0.05), ("lstm", None), ("slstm", None), ("elman", None)])
def test_what_a_call_records_is_what_the_kernel_returns(model: str, clip: float | None) -> None:
    kernel = host_kernel(model, HIDDEN, "fp64", recurrent_gradient_clip=clip)
    x, R, dy = (
        tensor(BATCH, TIME, len(kernel.interface.gates), HIDDEN),
        tensor(*kernel.interface.R_shape),
        torch.randn(BATCH, TIME, HIDDEN, dtype=torch.float64),
    )
    y, final = wing.recurrence(kernel, x, R)
    dx, dR = torch.autograd.grad(y, (x, R), dy)
    with torch.no_grad():
        expected, last, saved = kernel.forward(x, R)
        found = kernel.backward(saved, dy)
    assert torch.equal(y, expected) and all(torch.equal(final[name], last[name]) for name in kernel.states)
    assert torch.equal(dx, found["x"]) and torch.equal(dR, found["R"])


@pytest.mark.parametrize("model", ["min_gru", "qrnn", "lstm"])
def test_all_states_are_values_beside_what_has_gradients(model: str) -> None:
    kernel = host_kernel(model, HIDDEN, "fp32", input_size=INPUTS)
    R = {"R": torch.randn(kernel.interface.R_shape)} if model == "lstm" else {}
    x, weight = torch.randn(BATCH, TIME, INPUTS), torch.randn(kernel.interface.weight_rows, INPUTS)
    _, expected = kernel(x, **R, weight=weight, all_states=True)
    x.requires_grad_()

    def run(all_states: bool) -> Any:
        return wing.recurrence(kernel, x, **R, weight=weight, all_states=all_states)

    (y, final), (also_y, also_final, every) = run(False), run(True)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")(True)
    with torch.no_grad():
        plain = run(True)
    for one, its_final, its_every in ((also_y, also_final, every), compiled, plain):
        assert torch.equal(one, y)
        for name in kernel.states:
            assert torch.equal(its_every[name], expected[name]) and not its_every[name].requires_grad
            assert torch.equal(its_final[name], final[name])
    (dx,) = torch.autograd.grad(y.sum() + final[kernel.states[-1]].sum(), x)
    for one, its_final, _ in ((also_y, also_final, every), compiled):
        assert torch.equal(torch.autograd.grad(one.sum() + its_final[kernel.states[-1]].sum(), x)[0], dx)
