"""Every kind of kernel, in its own text and on calls drawn around its tiles, gives what the CPU target gives in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from kinds import KINDS, Kind, Made, made

from minrnn_gen.errors import Infeasible
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.interpret.trial_inputs import PIECE_STEPS, SLOW, Inputs, Trial, inputs_of
from minrnn_gen.interpret.verify import Arrays, backward_of, forward_of, share_of
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.precision import PRECISION_NAMES

pytestmark = pytest.mark.skipif(not has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none")

# Cells whose gates are sigmoids stay moderate where these are slow.
SATURATING = {"min_gru", "min_lstm", "qrnn", "rg_lru", "own_scan", "own_diagonal"}
# Those whose like is among the others, and whose kernels take long to compile or to run.
WIDE = {
    "channels tickets fp64",
    "recurrent cluster of halves",
    "recurrent grid fp32",
    "recurrent four columns",
    "recurrent shared",
}
SEEDS = st.tuples(st.integers(0, 2**16), st.integers(0, 2**16))


def times_of(plan: KernelPlan) -> tuple[int, ...]:
    """Return lengths around everything that a kernel counts by, the longest first."""
    if not plan.entry.startswith("scan"):
        ahead = plan.variables.get("ahead", plan.variables.get("prefetch_steps", 1))
        return (2 * ahead + 1, ahead, 1, ahead + 1, 0)
    tile, ring = plan.tile_steps, plan.variables.get("stages", 1) + 1
    whole = tile * plan.variables.get("cluster_blocks", 1) * ring
    longest = (plan.group_tiles + 1) * tile if plan.group_tiles else whole
    return (longest + 1, longest, tile + 1, tile - 1, tile, 1, 0)


@dataclass(frozen=True)
class Call:
    """A call that is drawn: its sizes, and what it is given."""

    batch: int
    time: int
    slow: float
    given: frozenset[str]

    def inputs(self, its: Made) -> Inputs:
        """Return arrays for it, the same for the same call."""
        contract, plan = its.kernel.contract, its.kernel.plan
        inputs = inputs_of(contract, Trial(self.batch, self.time, True, plan.tile_steps), self.slow)
        optional = {"lengths", "resets", "bias", "state"} - self.given
        forward = {name: one for name, one in inputs.forward.items() if name not in optional}
        if plan.model == "log_raw":
            forward["x"] = -np.abs(forward["x"])
        return replace(inputs, forward=forward, dstate=inputs.dstate if "dstate" in self.given else {})


@st.composite
def calls(draw: Any, kind: Kind, its: Made, with_resets: bool) -> Call:
    plan, is_raw = its.kernel.plan, "raw" in kind.name
    time = draw(st.sampled_from(times_of(plan)))
    if plan.layout == "BDT":
        # Rows begin where they may be copied in the widest pieces, or, of the other kinds, where they may not.
        time = time - time % PIECE_STEPS if "vectors" in kind.name else time | 1
    batch = draw(st.sampled_from((3, 1, 4, plan.variables.get("batch_tile", 1) + 1)))
    slow = draw(st.sampled_from((SLOW, 0.0))) if plan.model in SATURATING else 0.0
    given = set() if is_raw else {"bias"} | ({"resets"} if with_resets else set())
    optional = st.sampled_from(("state", "dstate", "lengths")[: 2 if is_raw else 3])
    return Call(batch, time, slow, frozenset(given | draw(st.sets(optional))))


def results_of(its: Made, inputs: Inputs, seed: int) -> tuple[Arrays, Arrays]:
    with its.kernel.seeded(seed):
        forward, saved = forward_of(its.kernel, inputs)
        return forward, backward_of(its.kernel, inputs, saved)


def check(its: Made, call: Call, seeds: tuple[int, int]) -> None:
    """Hold a call against float64; under another seed it gives the same bits."""
    inputs = call.inputs(its)
    found, again = (results_of(its, inputs, seed) for seed in seeds)
    for results, repeated, expected in zip(found, again, its.expected(inputs), strict=True):
        for name, one in expected.items():
            assert share_of(results[name], one, its.slack) <= 1, name
            assert np.asarray(results[name]).tobytes() == np.asarray(repeated[name]).tobytes(), name


@pytest.mark.parametrize(
    ("kind", "with_resets"),
    [
        pytest.param(kind, number % 2 == 0, marks=[pytest.mark.matrix_full] if kind.name in WIDE else [])
        for number, kind in enumerate(KINDS)
    ],
    ids=str,
)
@settings(max_examples=2, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_calls_around_the_tiles(kind: Kind, with_resets: bool, data: Any) -> None:
    its = made(kind)
    check(its, data.draw(calls(kind, its, with_resets)), data.draw(SEEDS))


@pytest.mark.matrix_full
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.is_complex], ids=str)
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data())
def test_in_every_precision_layout_and_direction(kind: Kind, data: Any) -> None:
    changes = {"precision": PRECISION_NAMES, "direction": ("forward", "reverse", "bidirectional")}
    if kind.spec.get("layout") != "BDT":
        changes["layout"] = ("BTD", "TBD")
    spec = {name: data.draw(st.sampled_from(allowed), name) for name, allowed in changes.items()}
    try:
        its = made(replace(kind, spec={**kind.spec, **spec}))
        call = data.draw(calls(kind, its, data.draw(st.booleans(), "resets")))
        check(its, call, data.draw(SEEDS))
    except Infeasible:
        assume(False)  # what is wanted of the kind is not for every precision
