"""Every kind of kernel, in its own text and on calls drawn around its tiles, gives what the CPU target gives in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.kernel_kinds import CHOOSING, EVERYDAY, KINDS, Call, Kind, Made, made, results_of, times_of
from support.last_steps import unlike_final_state

from minrnn_gen.errors import Infeasible
from minrnn_gen.interpret.cases import PIECE_STEPS, SLOW
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.interpret.verify import share_of
from minrnn_gen.precision import PRECISION_NAMES

pytestmark = pytest.mark.skipif(not has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none")

# Cells whose gates are sigmoids stay moderate where these are slow.
SATURATING = {"min_gru", "min_lstm", "qrnn", "rg_lru", "own_scan", "own_diagonal"}
# Cells whose gradients jump where the pre-activation of a gate is 0, and a bias far from there: a product that is rounded
# otherwise would lie on the other side.
JUMPING, FAR = {"min_gru_log": "h"}, 8.0
needs_R = pytest.mark.parametrize("kind", [kind for kind in KINDS if EVERYDAY.get(kind.name) and kind.has_R], ids=str)
# Of each class and layout.
CHOOSERS = ("channels cluster", "diagonal time", "recurrent block")
SEEDS = st.tuples(st.integers(0, 2**16), st.integers(0, 2**16))


@st.composite
def calls(draw: Any, kind: Kind, subject: Made, with_resets: bool) -> Call:
    plan = subject.kernel.plan
    time = draw(st.sampled_from(times_of(plan)))
    if plan.problem.layout == "BDT":
        # Rows begin where they may be copied in the widest pieces, or, of the other kinds, where they may not.
        time = time - time % PIECE_STEPS if "vectors" in kind.name else time | 1
    batch = draw(st.sampled_from((3, 1, 4, plan.variables.get("batch_tile", 1) + 1)))
    slow = draw(st.sampled_from((SLOW, 0.0))) if plan.problem.model in SATURATING else 0.0
    always = set() if kind.is_raw else {"bias"} | ({"resets"} if with_resets else set())
    optional = st.sampled_from(("state", "dstate", "lengths")[: 2 if kind.is_raw else 3])
    return Call(batch, time, slow, frozenset(always | draw(st.sets(optional))))


def check(subject: Made, call: Call, seeds: tuple[int, int]) -> None:
    """Hold a call against float64; under another seed it gives the same bits."""
    inputs, interface = call.inputs(subject.kernel), subject.kernel.interface
    if interface.input_size is not None and subject.kernel.plan.problem.model in JUMPING:
        bias = inputs.forward["bias"][interface.gates.index(JUMPING[subject.kernel.plan.problem.model])]
        bias[:] = np.where(bias > 0, FAR, -FAR)
    first, second = (results_of(subject.kernel, inputs, seed) for seed in seeds)
    for results, repeated, expected in zip(first, second, subject.expected(inputs), strict=True):
        for name, exact in expected.items():
            assert share_of(results[name], exact, subject.slack) <= 1, name
            assert np.asarray(results[name]).tobytes() == np.asarray(repeated[name]).tobytes(), name
    assert not unlike_final_state(subject.kernel, inputs.forward, first[0])


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind.name in EVERYDAY else [pytest.mark.matrix_full]) for kind in KINDS], ids=str
)
@settings(max_examples=2, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_calls_around_the_tiles(kind: Kind, data: Any) -> None:
    subject = made(kind)
    # With and without are two kernels; both take twice as long to compile.
    check(subject, data.draw(calls(kind, subject, EVERYDAY.get(kind.name, True))), data.draw(SEEDS))


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if EVERYDAY.get(kind.name) else [pytest.mark.matrix_full])
        for kind in KINDS
        if not kind.is_raw
    ],
    ids=str,
)
def test_nan_passes_every_step_but_a_reset(kind: Kind) -> None:
    """NaN in all gates, at the first step and later: they are where the CPU target has them, tiles and groups on."""
    subject = made(kind)
    kernel = subject.kernel
    time = max(times_of(kernel.plan)) if kernel.plan.family == "scan" else 5
    inputs = Call(4, time, 0.0, frozenset({"bias", "resets", "state", "dstate"})).inputs(kernel)
    axes = kernel.interface.x_axes
    x = np.moveaxis(inputs.forward["x"], (axes.index("b"), axes.index("t")), (0, 1))
    resets = inputs.forward["resets"]
    resets[1], resets[3] = False, True  # never, and before every step
    x[:3, [0, -1]], x[3, time // 2] = np.nan, np.nan
    x[:, 1 : time // 4] = 200  # gates of 0 and 1, which are no resets
    results, expected = results_of(kernel, inputs), subject.expected(inputs)
    for of_pass, exact_of_pass in zip(results, expected, strict=True):
        for name, exact in exact_of_pass.items():
            np.testing.assert_array_equal(np.isnan(of_pass[name].astype(np.float64)), np.isnan(exact), name)


@pytest.mark.parametrize("name", ["channels one warp", "time two columns"])
def test_the_last_step_has_the_sign_of_a_final_zero(name: str) -> None:
    """Half of the least number below 0 is -0, which not every sum keeps; the end of a sequence within a tile, too."""
    subject = made(next(kind for kind in KINDS if kind.name == name))
    inputs = Call(2, subject.kernel.plan.launch.tile_steps + 1, 0.0, frozenset({"resets", "state"})).inputs(subject.kernel)
    inputs.forward["x"][:], inputs.forward["resets"][:] = -np.finfo(np.float32).smallest_subnormal, False
    inputs.forward["state"]["h"][:] = -0.0
    y, state = subject.kernel(**inputs.forward)
    assert np.signbit(y).any() and not y.any()
    assert not unlike_final_state(subject.kernel, inputs.forward, {"y": y, **state})


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind.name in CHOOSERS else [pytest.mark.matrix_full])
        for kind in KINDS
        # Behind a projection no argument is an element of x; these cells have no axis n.
        if not kind.is_raw and kind.spec.get("scan_arithmetic") != "log" and not {"input_size", "state_size"} & kind.spec.keys()
    ],
    ids=str,
)
def test_the_gradient_goes_to_the_argument_that_is_taken(kind: Kind) -> None:
    """NaN is taken, of two the first; what is passed over has a gradient of exactly 0, in every family and strategy."""
    family = "dense" if kind.has_R else "diagonal" if kind.name.startswith(("diagonal", "own diagonal")) else "scan"
    cell = {"name": f"choosing_{family}", "equations": CHOOSING[family]}
    subject = made(replace(kind, spec={**kind.spec, "model": cell}))
    time = subject.kernel.plan.launch.tile_steps + 2 if family == "scan" else 5
    inputs = Call(3, time, 0.0, frozenset({"resets", "state", "dstate"})).inputs(subject.kernel)
    x = inputs.forward["x"]
    x[np.random.default_rng(5).random(x.shape) < 0.02] = np.nan
    results, expected = results_of(subject.kernel, inputs), subject.expected(inputs)
    for of_pass, exact_of_pass in zip(results, expected, strict=True):
        for name, exact in exact_of_pass.items():
            np.testing.assert_array_equal(np.isnan(of_pass[name].astype(np.float64)), np.isnan(exact), name)
    passed_over = expected[1]["x"] == 0
    assert passed_over.any() and not results[1]["x"][passed_over].any()


@needs_R
def test_nan_in_R_ends_at_a_reset(kind: Kind) -> None:
    """Resets before every step: neither the outputs nor the gradients depend on R, whatever it holds."""
    subject = made(kind)
    inputs = Call(3, 5, 0.0, frozenset({"bias", "resets", "state", "dstate"})).inputs(subject.kernel)
    inputs.forward["resets"][:] = True
    without = results_of(subject.kernel, inputs)
    for value in (np.nan, np.inf):
        inputs.forward["R"][:] = value
        for results, exact in zip(results_of(subject.kernel, inputs), without, strict=True):
            for name, array in exact.items():
                np.testing.assert_array_equal(results[name].astype(np.float64), array.astype(np.float64), name)


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
