"""Cases of `minrnn-gen verify`: candidates that combine every strategy, in calls that reach their counters' limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.everyday import in_turn

from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.config.spec import load_spec
from minrnn_gen.interpret.builder import TOGETHER, EmulatedBuilder
from minrnn_gen.interpret.cases import Case, cases_of, inputs_of
from minrnn_gen.interpret.verify import Verification
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import ASSUMED_TIME, KernelPass, Sizes
from minrnn_gen.precision import precision_of
from minrnn_gen.raw_scan.kernels import RawSpec
from minrnn_gen.run.target import target_of

RAW: dict[str, Any] = {"name": "raw", "equations": "h[t] = W.a * h[t-1] + W.b", "gates": ["a", "b"]}


def plans_of(others: int, **given: Any) -> list[KernelPlan]:
    spec = load_spec({"gpu": "h200", **given})
    builders = (
        EmulatedBuilder(spec, target_of(spec), Store(cache_folder()), other=n, sizes=Sizes(1, 65536)) for n in range(others + 1)
    )
    return [one.build(one.key_of("forward", one.hinted_specialization)).plan for one in builders]


def together(plan: KernelPlan) -> tuple[str, ...]:
    return tuple(name for name in TOGETHER if plan.variables.get(name, 0) > (name != "lookback"))


@pytest.mark.parametrize(
    ("spec", "ways"),
    [
        ({"model": "min_gru", "hidden_size": 256, "precision": "bf16"}, {"lookback", "cluster_blocks", "time_warps"}),
        ({"model": "min_gru", "hidden_size": 3, "layout": "BDT"}, {"lookback", "time_warps"}),
        ({"model": "gru", "hidden_size": 64, "precision": "fp32"}, {"cluster_blocks", "split_k_warps"}),
    ],
)
def test_three_others_work_together_in_other_ways(spec: dict[str, Any], ways: set[str]) -> None:
    plans = plans_of(3, **spec)
    assert len({(plan.name, together(plan)) for plan in plans}) == (3 if spec.get("layout") == "BDT" else 4)
    assert ways <= {name for plan in plans for name in together(plan)}


@pytest.mark.parametrize(
    ("model", "kernel_pass", "gpu"), in_turn(["min_gru", "gru", "ind_rnn"], ["forward", "backward"], ["h200", "t4"])
)
def test_every_strategy_that_serves_a_cell_is_verified(model: str, kernel_pass: KernelPass, gpu: str) -> None:
    spec = load_spec({"model": model, "hidden_size": 64, "precision": "fp16", "gpu": gpu})
    found, wanted = set(), set()
    for number in range(Verification.candidates + 1):
        sizes = Sizes(1, ASSUMED_TIME) if number else None
        builder = EmulatedBuilder(spec, target_of(spec), Store(cache_folder()), other=number, sizes=sizes)
        key = builder.choose(kernel_pass, builder.hinted_specialization, builder.hinted_sizes)
        found.add(builder.build(key).plan.name)
        wanted |= {solution.family.name for solution in builder.solutions(key)}
    assert found == wanted


def test_more_others_than_ways_are_still_others() -> None:
    plans = plans_of(4, model="ind_rnn", hidden_size=20)
    assert len({tuple(plan.variables.items()) for plan in plans[1:]}) > 1


@pytest.mark.parametrize("layout", ["BTD", "BDT"])
def test_tickets_reach_a_second_group(layout: str) -> None:
    plans = [one for one in plans_of(3, model="min_gru", hidden_size=24, layout=layout) if one.launch.group_tiles]
    assert plans
    for plan in plans:
        for at_once in (False, True):
            longest = cases_of([plan], at_once=at_once)[0].time
            assert longest > plan.launch.group_tiles * plan.launch.tile_steps


@pytest.mark.parametrize("batch", [3, 4, 9])
def test_sequences_end_and_begin_with_tiles(batch: int) -> None:
    spec = load_spec({"model": "min_gru", "hidden_size": 4, "gpu": "h200"})
    builder = EmulatedBuilder(spec, target_of(spec), Store(cache_folder()))
    case = Case(batch, 70, True, 16)
    given = inputs_of(
        Kernel(builder, (builder.build(builder.key_of("forward", builder.hinted_specialization)),)).interface, case
    ).forward
    assert {16, 0, 70} <= set(given["lengths"].tolist())
    ends = np.flatnonzero(given["resets"][2])
    # Behind an end, before one, and none at the third.
    assert ends.tolist() == [16, 31, 64]
    assert given["resets"][0].any()


def test_raw_scans_of_complex_numbers_are_given_both_parts() -> None:
    spec = RawSpec(model=RAW, hidden_size=4, precision="complex64", gpu="h200")
    builder = EmulatedBuilder(spec, target_of(spec), Store(cache_folder()))
    interface = Kernel(builder, (builder.build(builder.key_of("forward", builder.hinted_specialization)),)).interface
    inputs = inputs_of(interface, Case(2, 5))
    for one in (inputs.forward["x"], inputs.forward["state"]["h"], inputs.dy, inputs.dstate["h"]):
        assert one.dtype.name == "complex64" == precision_of("complex64").storage_dtype
        assert one.real.any() and one.imag.any()
    assert inputs.in_float64().forward["x"].dtype == np.complex128
