"""Drawn cells, with any names and any numbers in every array, give what the oracle gives: on the CPU and as emulated kernels.

`make fuzz` goes on where these few examples end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from hypothesis import strategies as st
from support import cell_oracle
from support.bounded import FUNCTIONS, Arithmetic, exact
from support.cell_evaluation import Tree
from support.cell_tape import Tape
from support.drawn_calls import Subject, check
from support.drawn_cells import DrawnCall, DrawnCell, calls, cells, expressions
from support.examples import examples

from minrnn_gen.build.cpu_kernel import why_no_native_code
from minrnn_gen.errors import Infeasible
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.precision import precision_of

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
# To shrink a failure takes minutes, which `make fuzz` has.
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)


# An affine cell whose next value is (1 - z) * h + z * p in a scan; as it is written, two equal infinities give NaN.
DIFFERENCE = DrawnCell(
    "affine",
    (("h[t]", ("+", ("leaf", "h[t-1]"), ("*", ("sigmoid", ("leaf", "W.z")), ("-", ("leaf", "p"), ("leaf", "h[t-1]"))))),),
    ("h",),
    ("p",),
    None,
)
# An infinite parameter, and a reset before the first of four steps.
INFINITE = DrawnCall("fp32", "BTD", "forward", 1, 1, 1, 4, frozenset({"resets"}), 2, 275)


# R has a NaN, and no initial state is given.
WITHOUT_STATE = DrawnCell("dense", (("h[t]", ("tanh", ("+", ("leaf", "W.h"), ("leaf", "R.h")))),), ("h",), (), None)
ODD = DrawnCall("fp32", "BTD", "forward", 1, 1, 2, 4, frozenset(), 2, 1)

# A state that is a function of this step alone, behind an infinite initial one.
FORGETTING = DrawnCell(
    "affine", (("h[t]", ("tanh", ("leaf", "W.h"))),), ("h",), (), ("+", ("leaf", "h[t]"), ("leaf", "h[t-1]"))
)
FROM_INFINITY = DrawnCall("fp32", "BTD", "forward", 1, 3, 2, 9, frozenset({"state", "dstate", "all_states", "lengths"}), 2, 5)


@settings(max_examples=examples(6), suppress_health_check=SLOW, phases=UNSHRUNK)
@given(cells(), calls())
@example(DIFFERENCE, INFINITE)
@example(FORGETTING, FROM_INFINITY)
def test_the_cpu_target_is_the_oracles(cell: DrawnCell, call: DrawnCall) -> None:
    subject = Subject(cell, call)
    with refused_as_too_large():
        assert check(subject, subject.on_cpu).wrong == ()


@pytest.mark.matrix_full
@pytest.mark.skipif(bool(why_no_native_code()), reason="no native code")
@settings(max_examples=examples(6), suppress_health_check=SLOW, phases=UNSHRUNK)
@given(cells(), calls())
@example(WITHOUT_STATE, ODD)
def test_native_code_is_the_oracles(cell: DrawnCell, call: DrawnCall) -> None:
    subject = Subject(cell, call)
    assert check(subject, subject.native).wrong == ()


@contextlib.contextmanager
def refused_as_too_large() -> Iterator[None]:
    """Draw another cell for one that has too many operations for any candidate."""
    try:
        yield
    except Infeasible:
        assume(False)


@pytest.mark.skipif(not has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none")
@settings(max_examples=examples(2), suppress_health_check=SLOW, phases=UNSHRUNK)
@given(cells(), calls(), st.integers(0, 2))
def test_emulated_kernels_are_the_oracles(cell: DrawnCell, call: DrawnCall, other: int) -> None:
    subject = Subject(cell, call, other)
    with refused_as_too_large():
        assert check(subject, subject.emulated).wrong == ()


@settings(max_examples=examples(3), suppress_health_check=SLOW, phases=UNSHRUNK)
@given(cells(), calls())
@example(DIFFERENCE, INFINITE)
def test_a_state_that_is_reset_is_as_unsure_as_one_that_is_not_given(cell: DrawnCell, call: DrawnCall) -> None:
    problem = Subject(cell, replace(call, given=call.given - {"state", "resets"})).problem(0)
    first = problem.resets.copy()
    for sequence in range(call.batch):
        first[sequence, problem.steps(sequence)[:1]] = True
    with np.errstate(all="ignore"):
        fresh, reset = (cell_oracle.forward(one)[0] for one in (problem, replace(problem, resets=first)))
    for name, value in fresh.items():
        # A product with R has no rounding where the state is known to be 0, so that it is surer.
        assert (value.is_unknown >= reset[name].is_unknown).all(), name
        if cell.kind == "affine":
            assert (value.is_unknown == reset[name].is_unknown).all(), name


@settings(max_examples=examples(16), suppress_health_check=SLOW)
@example(("sigmoid", ("min", ("log", ("leaf", "a")), ("leaf", "a"))), [-1.0, 0.0])
@given(expressions(("a", "b"), 3), st.lists(st.floats(-2, 2), min_size=2, max_size=2))
def test_the_oracles_gradients_are_torchs(tree: Tree, point: list[float]) -> None:
    """Where those are numbers: torch lets a branch that is not taken pass on its NaN, and halves the gradient of a tie."""
    import torch

    tape = Tape(Arithmetic(precision_of("fp64")), ())
    leaves = {name: tape.leaf(exact(value)) for name, value in zip("ab", point, strict=True)}
    tensors = {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in zip("ab", point, strict=True)
    }
    with np.errstate(all="ignore"):
        node = tape.evaluate(tree, leaves)
        tape.backward([(node, exact(1.0))])
    result = in_torch(tree, tensors)
    # Of a number and NaN, min and max take NaN as the language has it, and the number as they are written for torch.
    if not result.requires_grad or not result.isfinite() or not np.isfinite(node.value.value):
        return
    result.backward()
    for name, tensor in tensors.items():
        gradient = tape.gradient_of(leaves[name])
        if tensor.grad is not None and tensor.grad.isfinite() and not gradient.is_unknown:
            assert abs(gradient.value - tensor.grad.item()) <= gradient.radius + 1e-9 * abs(tensor.grad.item()), name


def in_torch(tree: Tree, names: dict[str, object]) -> object:
    import torch

    name, *parts = tree
    if name == "leaf":
        return names[parts[0]]
    if name == "number":
        return torch.tensor(float(parts[0]), dtype=torch.float64)
    if name == "where":
        (comparison, *compared), *branches = parts
        left, right, yes, no = (in_torch(part, names) for part in (*compared, *branches))
        operators = {"<": torch.lt, "<=": torch.le, ">": torch.gt, ">=": torch.ge, "==": torch.eq, "!=": torch.ne}
        return torch.where(operators[comparison](left, right), yes, no)
    if name == "**":
        return in_torch(parts[0], names) ** parts[1]
    inner = [in_torch(part, names) for part in parts]
    if name == "-" and len(inner) == 1:
        return -inner[0]
    first = {"min": torch.le, "max": torch.ge}
    if name in first:
        return torch.where(first[name](*inner), *inner)
    if len(inner) == 2:
        return {"+": torch.add, "-": torch.sub, "*": torch.mul, "/": torch.div}[name](*inner)
    if name == "detach":
        return inner[0].detach()
    return getattr(torch, name, None)(*inner) if hasattr(torch, name) else getattr(torch.nn.functional, name)(*inner)


def test_most_numbers_are_judged() -> None:
    """The oracle's bounds are of use: of moderate calls hardly a number is left unjudged."""
    judged = total = 0
    for seed, model in enumerate(MODERATE):
        call = DrawnCall("bf16", "BTD", "forward", 1, 4, 2, 12, frozenset({"bias", "state", "resets", "lengths"}), 0, seed)
        subject = Subject(model, call)
        verdict = check(subject, subject.on_cpu)
        assert verdict.wrong == ()
        judged, total = judged + verdict.judged, total + verdict.total
    assert judged > 0.99 * total
    assert set(FUNCTIONS) >= {"sigmoid", "tanh", "relu"}


def _leaf(name: str) -> Tree:
    return "leaf", name


_GATED: Tree = ("+", ("*", ("sigmoid", _leaf("W.f")), _leaf("h[t-1]")), ("tanh", _leaf("W.x")))
MODERATE = (
    DrawnCell("affine", (("h[t]", _GATED),), ("h",), (), None),
    DrawnCell("diagonal", (("h[t]", ("tanh", ("+", _GATED, ("*", _leaf("p"), _leaf("h[t-1]"))))),), ("h",), ("p",), None),
    DrawnCell("dense", (("h[t]", ("+", ("*", ("number", "0.5"), _GATED), ("sigmoid", _leaf("R.f")))),), ("h",), (), None),
)
