"""A plan is plain data that never changes: through JSON and back, in another process, under another hash seed."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from support.examples import examples
from support.planning_problems import problems, real_solution, solved

from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import Problem

PLAN = real_solution("rg_lru", "h200").plan()


@settings(max_examples=examples(40))
@given(problems())
def test_json_there_and_back(problem: Problem) -> None:
    plan = solved(problem).plan()
    text = json.dumps(plan.to_json(), allow_nan=False)
    again = KernelPlan.from_json(json.loads(text))
    assert again == plan
    assert again.to_json() == plan.to_json()
    # In the cache keys keep their order, and the order of constraints means something.
    assert list(again.prediction.rejected) == list(plan.prediction.rejected)


def test_json_has_every_field_and_no_cuda() -> None:
    plain = PLAN.to_json()
    assert set(plain) == {field.name for field in dataclasses.fields(KernelPlan)}
    text = json.dumps(plain)
    assert "__" not in text and "#" not in text


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.pop("launch"),
        lambda data: data["launch"].pop("threads"),
        lambda data: data["problem"].pop("specialization"),
        lambda data: data["prediction"].pop("margins"),
        lambda data: data.update(colour="blue"),
        lambda data: data["budget"].update(colour="blue"),
    ],
)
def test_other_json_is_no_plan(damage: object) -> None:
    data = PLAN.to_json()
    damage(data)  # type: ignore[operator]
    with pytest.raises(TypeError):
        KernelPlan.from_json(data)


def test_a_plan_cannot_be_changed() -> None:
    for part in (PLAN, PLAN.problem, PLAN.launch, PLAN.budget, PLAN.prediction):
        for field in dataclasses.fields(part):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(part, field.name, None)
            if isinstance(value := getattr(part, field.name), Mapping):
                with pytest.raises(TypeError):
                    value["other"] = 1  # type: ignore[index]
            assert not isinstance(value, list | dict | set)
    with pytest.raises(dataclasses.FrozenInstanceError):
        PLAN.entry = "other"  # type: ignore[misc]
    assert PLAN.prediction.runners_up
    with pytest.raises(TypeError):
        PLAN.prediction.runners_up[0].variables["steps_per_lane"] = 1  # type: ignore[index]


def test_the_json_of_a_plan_is_a_copy() -> None:
    before = json.dumps(PLAN.to_json())
    PLAN.to_json()["variables"]["steps_per_lane"] = 0
    assert json.dumps(PLAN.to_json()) == before


PROGRAM = """
import json
from support.planning_problems import real_builder
from minrnn_gen.codegen.header import header_lines
from minrnn_gen.codegen.render import render

for case in ("qrnn h200 bf16 BTD", "rg_lru t4 fp16 BDT", "min_lstm b200 fp64 TBD"):
    model, gpu, precision, layout = case.split()
    builder = real_builder(model, gpu, 384, precision, layout)
    for kernel_pass in ("forward", "step"):
        solution = builder.solve(builder.key_of(kernel_pass, builder.hinted_specialization))
        plan = solution.plan()
        print(json.dumps(plan.to_json()))
        print(render(plan, builder.lowered, header_lines(plan, builder.spec.canonical(), "digest", solution.constraints)))
"""


@pytest.mark.matrix_full
def test_plan_and_source_are_the_same_under_any_hash_seed() -> None:
    printed = set()
    for seed in ("0", "1", "4294967295"):
        # As here, but for the seed; the working directory and the time differ anyway.
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        answer = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, encoding="utf-8", check=False
        )
        assert answer.returncode == 0, answer.stderr
        printed.add(answer.stdout)
    assert len(printed) == 1
    assert printed.pop().count("__global__") == 6
