"""The decisions on record still stand; tests/plan/golden_plans.py says how to record others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from golden_plans import CASES, FOLDER, decision, file_of
from support.planning_problems import GENERATED_CELLS

from minrnn_gen.config.gpu_profile import profile_names


@pytest.mark.parametrize("case", CASES, ids=lambda case: file_of(case).stem)
def test_the_decision_stands(case: dict[str, Any]) -> None:
    recorded = json.loads(file_of(case).read_text(encoding="utf-8"))
    assert decision(case) == recorded, "if this was meant: the command in golden_plans.py, and read the difference"


def test_the_records_are_those_of_the_cases() -> None:
    assert sorted(FOLDER.iterdir()) == sorted(map(file_of, CASES))


def test_the_cases_cover_what_there_is() -> None:
    assert {case["model"] for case in CASES} == set(GENERATED_CELLS)
    assert {case["gpu"] for case in CASES} == set(profile_names())
