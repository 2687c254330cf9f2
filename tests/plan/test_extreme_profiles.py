"""Profiles are not trusted: extreme numbers are refused in one sentence, or planned for like any other GPU."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.planning_problems import real_builder

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.target import Target
from minrnn_gen.config.documents import parse_document, validated
from minrnn_gen.config.gpu_profile import GpuProfile, load_profile
from minrnn_gen.errors import BadInput, Infeasible
from minrnn_gen.plan.problem import KernelPass

SCHEMA = GpuProfile.model_json_schema()["properties"]
NUMBERS = sorted(name for name, value in load_profile("h200").model_dump().items() if isinstance(value, int | float))
PASSES: tuple[KernelPass, ...] = ("forward", "backward", "step")
# A cell of each class, in sizes whose candidates are few.
CELLS = {"min_gru": {"hidden_size": 48}, "ind_rnn": {"hidden_size": 48}, "lstm": {"hidden_size": 48, "precision": "bf16"}}


@functools.cache
def builder_of(model: str) -> Builder:
    return real_builder(model, "h200", **CELLS[model])  # type: ignore[arg-type]


def bounds_of(name: str) -> tuple[float, float]:
    """Return the least and the greatest number that a field allows."""
    (number,) = (branch for branch in SCHEMA[name].get("anyOf", [SCHEMA[name]]) if branch.get("type") != "null")
    if "const" in number:
        return number["const"], number["const"]
    least = number.get("minimum", number.get("exclusiveMinimum", -1) + (number["type"] == "integer"))
    return least, number["maximum"]


def planned(changes: dict[str, Any], model: str) -> str | None:
    """Plan every pass for the profile with these numbers; return the sentence with which it is refused, None if it is not."""
    values = load_profile("h200").model_dump(exclude_none=True) | changes
    # As a file would have them.
    text = json.dumps(values, default=dict)
    try:
        profile = validated(parse_document(text, "profile.yaml"), GpuProfile)
    except BadInput as refused:
        return str(refused)
    builder = replace(builder_of(model), target=Target(profile, text.encode(), "spec"))
    for kernel_pass in PASSES:
        try:
            plan = next(builder.solutions(builder.key_of(kernel_pass, builder.hinted_specialization))).plan()
        except Infeasible as refused:
            assert "\n" not in str(refused)
        else:
            assert math.isfinite(plan.predicted_total_us) and plan.predicted_total_us > 0
            assert len(json.dumps(plan.to_json(), allow_nan=False)) > 0
    return None


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_bounds(name: str) -> None:
    least, greatest = bounds_of(name)
    assert 0 <= least <= getattr(load_profile("h200"), name) <= greatest < 2**64 and math.isfinite(greatest)


@st.composite
def extreme_numbers(draw: st.DrawFn) -> dict[str, Any]:
    """Draw numbers for some fields: anything finite, and what the bounds just allow."""
    changes: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=4, unique=True)):
        is_integer = isinstance(getattr(load_profile("h200"), name), int)
        anything = st.integers(-(2**63), 2**64 - 1) if is_integer else st.floats(allow_nan=False, allow_infinity=False)
        changes[name] = draw(st.sampled_from(bounds_of(name)) | anything)
    return changes


@settings(max_examples=examples(20))
@given(extreme_numbers(), st.sampled_from(sorted(CELLS)))
@example({"memory_latency_ns": 1e308}, "min_gru")
@example({"memory_latency_ns": 5e-324}, "min_gru")
@example({"sm_clock_hz": 1e-308}, "lstm")
def test_extreme_numbers_are_refused_in_one_sentence_or_planned_for(changes: dict[str, Any], model: str) -> None:
    refusal = planned(changes, model)
    if refusal is not None:
        sentences = refusal.split("; also ")
        assert "\n" not in refusal and refusal.startswith("profile.yaml") and all(len(sentence) < 400 for sentence in sentences)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.matrix_full] if number % 3 else []) for number, name in enumerate(NUMBERS)],
)
def test_what_the_bounds_just_allow_is_planned_for(name: str) -> None:
    """Alone, or refused for what it contradicts; each by a cell of one class, all classes in turn."""
    model = sorted(CELLS)[NUMBERS.index(name) // 3 % len(CELLS)]
    for number in bounds_of(name):
        changes = {name: number}
        if name == "memory_bandwidth_bytes_per_s":
            changes["copy_bandwidth_bytes_per_s"] = min(number, 4e12)
        refusal = planned(changes, model)
        assert refusal is None or "allowed" not in refusal, refusal
