"""Strategies of cells with n values per channel whose sums are over anything: states, inputs, parameters alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st
from support.emulated_calls import kernel_of as emulated_kernel_of
from support.uncompiled_kernels import nothing_compiled
from support.vector_calls import VectorCall, in_float64, results_of

import minrnn_gen
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.interpret.verify import share_of
from minrnn_gen.kernel import Kernel
from minrnn_gen.precision import PRECISION_NAMES, error_allowed, remembered_error

# Of a channel, and of each of its n values; what is summed may be constant over time.
NARROW = ("W.v", "W.w", "d", "sigmoid(W.w)")
WIDE = ("S.q", "p", "tanh(p)", "S.q * p", "W.v * p", "S.q + W.w", "exp(-abs(p))")
SUMMED = (*WIDE, "h[t]", "S.q * h[t]", "p * h[t]", "h[t-1] * S.q", "p * p")
KEPT = ("sigmoid(W.w)", "sigmoid(p)", "sigmoid(W.w + p)", "exp(-abs(S.q * p))", "0.5")
# Each name at least once, as cells must have it, and so that no sum takes two of them.
EACH_NAME = "0.125 * (sum(h[t]) + W.v + W.w) + sum(S.q) * 0.25 + sum(p) * d"


@st.composite
def vector_cells(draw: st.DrawFn) -> dict[str, Any]:
    """Cells that are scans, as a spec has them: states h of n values, inputs S.q, parameters p of n values and d."""
    term = st.tuples(st.sampled_from(NARROW), st.sampled_from(SUMMED)).map(lambda pair: f"{pair[0]} * sum({pair[1]})")
    terms = draw(st.lists(term, max_size=3, unique=True))
    return {
        "name": "drawn",
        "states": {"h": "n"},
        "shared": ["q"],
        "parameters": {"p": "n", "d": 1},
        "equations": f"h[t] = {draw(st.sampled_from(KEPT))} * h[t-1] + {draw(st.sampled_from(WIDE))}",
        "output": " + ".join([*terms, EACH_NAME]),
    }


def drawn_kernels(file: Mapping[str, Any], **keys: Any) -> tuple[InterpretedKernel, Kernel]:
    """Return the emulated kernel of a cell that no other test has, and the same in float64."""
    spec = {"model": {"name": "written", **file}, "gpu": "h200", "training": True, "precision": "fp64"} | keys
    with nothing_compiled():
        return emulated_kernel_of({}, **spec), minrnn_gen.compile(spec | {"precision": "fp64"})


def compare(
    kernel: InterpretedKernel,
    exact: Kernel,
    arguments: Mapping[str, Any],
    name: str,
    all_states: bool = False,
    *,
    gradients_cancel: bool = False,
) -> None:
    """Hold results and gradients against float64, each array by its own size.

    gradients_cancel: a sum of few terms may cancel, and a product of derivatives be small; such a gradient has the errors of
    its terms, which are as large as the largest of all gradients.
    """
    found = results_of(kernel, arguments, all_states)
    with np.errstate(all="ignore"):
        expected = results_of(exact, in_float64(dict(arguments)), all_states)
    precision = kernel.interface.precision
    slack = error_allowed(precision) + remembered_error(precision, "linear")
    for of_pass, exact_of_pass in zip(found, expected, strict=True):
        assert set(of_pass) == set(exact_of_pass)
        for label, array in exact_of_pass.items():
            assert of_pass[label].shape == array.shape
            is_right = share_of(of_pass[label], array, slack) <= 1
            if not is_right and gradients_cancel and exact_of_pass is expected[1]:
                largest = max(float(np.abs(one[np.isfinite(one)]).max(initial=0)) for one in exact_of_pass.values())
                is_right = np.allclose(of_pass[label], array, rtol=0, atol=slack * largest, equal_nan=True)
            assert is_right, (name, label)


def check_drawn_vectors(draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
    """Draw a cell of few channels and a call, and hold the emulated kernels against float64."""
    keys: dict[str, Any] = {"hidden_size": draw(st.integers(1, 5)), "state_size": draw(st.integers(1, 9))}
    keys |= {"layout": draw(st.sampled_from(("BTD", "TBD", "BDT"))), "precision": draw(st.sampled_from(PRECISION_NAMES))}
    kernel, exact = drawn_kernels(draw(vector_cells()), **keys)
    call = VectorCall(draw(st.integers(1, 3)), draw(st.integers(0, 12)), has_resets=draw(st.booleans()))
    compare(kernel, exact, call.arguments(kernel.interface), "drawn", draw(st.booleans()))
