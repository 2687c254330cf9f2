"""Drawn dense cells, some of their values normalised or averaged over units: forward and gradients against torch's autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from support.cell_evaluation import OVER_UNITS, Tree, over_units
from support.drawn_calls import Subject
from support.drawn_cells import DrawnCall, DrawnCell, normed_cells
from support.examples import examples

from minrnn_gen.build.cpu_kernel import why_no_native_code
from minrnn_gen.kernel import Kernel

torch = pytest.importorskip("torch")
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
# To shrink a failure takes minutes.
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
BATCH, TIME = 2, 4


def evaluated(tree: Tree, names: dict[str, Any], heads: int) -> Any:
    """Return the value of a tree, [rows, hidden], in torch."""
    name, *parts = tree
    if name == "leaf":
        return names[parts[0]]
    if name == "number":
        return torch.tensor(float(parts[0]), dtype=torch.float64)

    def of(part: Tree) -> Any:
        return evaluated(part, names, heads)

    if name in OVER_UNITS:
        x, trees, over, epsilon = over_units(tree)
        groups = heads if over == "head" else 1
        by_head, statistics = (
            torch.stack([of(value) for value in values]).unflatten(-1, (groups, -1)) for values in ((x,), trees)
        )
        mean = statistics.mean((0, -1), keepdim=True)
        if name == "mean":
            return mean[0].expand_as(by_head[0]).flatten(-2)
        centred, of_statistics = (values - mean if name == "layer_norm" else values for values in (by_head, statistics))
        variance = (of_statistics**2).mean((0, -1), keepdim=True)
        return (centred / torch.sqrt(variance + float(epsilon)))[0].flatten(-2)
    if name == "where":
        comparison, left, right = parts[0]
        compare = {"<": torch.lt, "<=": torch.le, ">": torch.gt, ">=": torch.ge, "==": torch.eq, "!=": torch.ne}[comparison]
        return torch.where(compare(of(left), of(right)), of(parts[1]), of(parts[2]))
    if name == "**":
        return of(parts[0]) ** parts[1]
    values = [of(part) for part in parts]
    functions: dict[str, Any] = {
        "+": torch.add,
        "*": torch.mul,
        "/": torch.div,
        "-": torch.sub if len(values) == 2 else torch.neg,
        "min": torch.minimum,
        "max": torch.maximum,
        "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
        "logsigmoid": lambda x: -torch.logaddexp(-x, torch.zeros_like(x)),
        "silu": lambda x: x * torch.sigmoid(x),
        "detach": lambda x: x.detach(),
    }
    return (functions.get(name) or getattr(torch, name))(*values)


def agree(cell: DrawnCell, heads: int, size: int, seed: int, code: str) -> None:
    call = DrawnCall("fp64", "BTD", "forward", heads, size, BATCH, TIME, frozenset(), 0, seed)
    subject = Subject(cell, call)
    kernel: Kernel = subject.native if code == "native" else subject.in_numpy
    interface, random, hidden = kernel.interface, np.random.default_rng(seed), heads * size
    arrays = {
        "x": random.standard_normal((BATCH, TIME, len(interface.gates), hidden)),
        "R": random.standard_normal((len(interface.recurrent_gates), heads, size, size)) / np.sqrt(size),
        **{f"parameter {name}": random.standard_normal(hidden) for name in interface.parameters},
        **{f"state {name}": random.standard_normal((BATCH, hidden)) for name in interface.states},
        **{f"input {name}": random.standard_normal((BATCH, TIME, hidden)) for name in interface.inputs},
    }
    dy = random.standard_normal((BATCH, TIME, hidden))
    at = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
    states, outputs = {name: at[f"state {name}"] for name in interface.states}, []
    for t in range(TIME):
        names = {name: at[f"parameter {name}"] + torch.zeros(BATCH, hidden) for name in interface.parameters}
        names |= {f"{name}[t-1]": state for name, state in states.items()}
        names |= {f"W.{gate}": at["x"][:, t, place] for place, gate in enumerate(interface.gates)}
        names |= {f"X.{name}": at[f"input {name}"][:, t] for name in interface.inputs}

        def product(gate: str, value: Any) -> Any:
            R = at["R"][interface.recurrent_gates.index(gate)]
            return torch.einsum("noi,bni->bno", R, value.unflatten(-1, (heads, size))).flatten(-2)

        named = {tree[1] for _, tree in cell.equations if tree[0] == "product"}
        output = states[interface.states[0]]
        names |= {f"R.{gate}": product(gate, output) for gate in interface.recurrent_gates if gate not in named}
        for name, tree in cell.equations:
            value = (
                product(tree[1], evaluated(tree[2], names, heads)) if tree[0] == "product" else evaluated(tree, names, heads)
            )
            names[name] = value.expand(BATCH, hidden)
        states = {name: names[f"{name}[t]"] for name in interface.states}
        outputs.append(states[interface.states[0]])
        # What is not finite, or grows without bound, is the business of the drawn cells that `cell_oracle` bounds.
        assume(all(np.isfinite(state.detach().numpy()).all() for state in states.values()))
    y = torch.stack(outputs, 1)
    (y * torch.tensor(dy)).sum().backward()
    gradients = {name: np.zeros(arrays[name].shape) if leaf.grad is None else leaf.grad.numpy() for name, leaf in at.items()}
    # What is not finite or grows without bound is the business of the drawn cells that `cell_oracle` bounds.
    assume(
        np.isfinite(y.detach().numpy()).all() and max(np.abs(gradient).max(initial=0) for gradient in gradients.values()) < 1e4
    )
    groups = {"parameters": "parameter", "state": "state", "inputs": "input"}
    given_arrays = {
        group: {name.partition(" ")[2]: array for name, array in arrays.items() if name.startswith(f"{word} ")}
        for group, word in groups.items()
    }
    computed, _, saved = kernel.forward(arrays["x"], arrays["R"], **given_arrays)
    np.testing.assert_allclose(computed, y.detach().numpy(), rtol=1e-7, atol=1e-8)
    found = kernel.backward(saved, dy)
    shown = {"x": found["x"], "R": found["R"]}
    shown |= {f"{word} {name}": value for group, word in groups.items() for name, value in found.get(group, {}).items()}
    for name, value in shown.items():
        scale = max(1.0, np.abs(gradients[name]).max(initial=0))
        np.testing.assert_allclose(value / scale, gradients[name] / scale, rtol=1e-6, atol=1e-7, err_msg=name)


@settings(max_examples=examples(20), suppress_health_check=SLOW, phases=UNSHRUNK, deadline=None)
@given(normed_cells(), st.integers(1, 3), st.integers(1, 5), st.integers(0, 2**16))
def test_numpy_is_autograd(cell: DrawnCell, heads: int, size: int, seed: int) -> None:
    agree(cell, heads, size, seed, "numpy")


@pytest.mark.matrix_full
@pytest.mark.skipif(bool(why_no_native_code()), reason="no C compiler")
@settings(max_examples=examples(3), suppress_health_check=SLOW, phases=UNSHRUNK, deadline=None)
@given(normed_cells(), st.integers(1, 3), st.integers(1, 20), st.integers(0, 2**16))
def test_native_code_is_autograd(cell: DrawnCell, heads: int, size: int, seed: int) -> None:
    agree(cell, heads, size, seed, "native")
