"""Every kind of kernel, in its own text and on calls drawn around its tiles, gives what the CPU target gives in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.kernel_kinds import EVERYDAY, KINDS, Call, Kind, Made, made, results_of, times_of

from minrnn_gen.errors import Infeasible
from minrnn_gen.interpret.cases import PIECE_STEPS, SLOW
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.interpret.verify import share_of
from minrnn_gen.precision import PRECISION_NAMES

pytestmark = pytest.mark.skipif(not has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none")

# Cells whose gates are sigmoids stay moderate where these are slow.
SATURATING = {"min_gru", "min_lstm", "qrnn", "rg_lru", "own_scan", "own_diagonal"}
SEEDS = st.tuples(st.integers(0, 2**16), st.integers(0, 2**16))


@st.composite
def calls(draw: Any, kind: Kind, subject: Made, with_resets: bool) -> Call:
    plan = subject.kernel.plan
    time = draw(st.sampled_from(times_of(plan)))
    if plan.layout == "BDT":
        # Rows begin where they may be copied in the widest pieces, or, of the other kinds, where they may not.
        time = time - time % PIECE_STEPS if "vectors" in kind.name else time | 1
    batch = draw(st.sampled_from((3, 1, 4, plan.variables.get("batch_tile", 1) + 1)))
    slow = draw(st.sampled_from((SLOW, 0.0))) if plan.model in SATURATING else 0.0
    always = set() if kind.is_raw else {"bias"} | ({"resets"} if with_resets else set())
    optional = st.sampled_from(("state", "dstate", "lengths")[: 2 if kind.is_raw else 3])
    return Call(batch, time, slow, frozenset(always | draw(st.sets(optional))))


def check(subject: Made, call: Call, seeds: tuple[int, int]) -> None:
    """Hold a call against float64; under another seed it gives the same bits."""
    inputs = call.inputs(subject.kernel)
    first, second = (results_of(subject.kernel, inputs, seed) for seed in seeds)
    for results, repeated, expected in zip(first, second, subject.expected(inputs), strict=True):
        for name, exact in expected.items():
            assert share_of(results[name], exact, subject.slack) <= 1, name
            assert np.asarray(results[name]).tobytes() == np.asarray(repeated[name]).tobytes(), name


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind.name in EVERYDAY else [pytest.mark.matrix_full]) for kind in KINDS], ids=str
)
@settings(max_examples=2, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_calls_around_the_tiles(kind: Kind, data: Any) -> None:
    subject = made(kind)
    # With and without are two kernels; both take twice as long to compile.
    check(subject, data.draw(calls(kind, subject, EVERYDAY.get(kind.name, True))), data.draw(SEEDS))


@pytest.mark.matrix_full
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.is_complex], ids=str)
@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data())
def test_in_every_precision_layout_and_direction(kind: Kind, data: Any) -> None:
    changes = {"precision": PRECISION_NAMES, "direction": ("forward", "reverse", "bidirectional")}
    if kind.spec.get("layout") != "BDT":
        changes["layout"] = ("BTD", "TBD")
    spec = {name: data.draw(st.sampled_from(allowed), name) for name, allowed in changes.items()}
    try:
        subject = made(replace(kind, spec={**kind.spec, **spec}))
        call = data.draw(calls(kind, subject, data.draw(st.booleans(), "resets")))
        check(subject, call, data.draw(SEEDS))
    except Infeasible:
        assume(False)  # what is wanted of the kind is not for every precision


def test_the_everyday_ones_are_there() -> None:
    assert set(EVERYDAY) <= {kind.name for kind in KINDS}
    assert len({kind.name for kind in KINDS}) == len(KINDS)
