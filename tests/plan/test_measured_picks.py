"""Picks of scans whose candidates were measured on an H200: none was seen to be much slower than the best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.everyday import one_in
from support.planning_problems import profile

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store
from minrnn_gen.build.target import Target
from minrnn_gen.config.gpu_profile import profile_bytes
from minrnn_gen.config.spec import load_spec
from minrnn_gen.plan.problem import Sizes

RECORD = Path(__file__).resolve().parents[2] / "benchmarks" / "candidates_h200.json"
MEASURED: list[dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))
# Of what was measured the picks lose 9 % at worst (docs/lab-notes.md).
LOSS_MOST = 0.09
FAMILY = {"BTD": "channels", "BDT": "time"}
RAW_SCAN = {"name": "scan", "equations": "h[t] = W.a * h[t-1] + W.b", "gates": ["a", "b"]}


def label_of(measured: dict[str, Any]) -> str:
    names = ("model", "precision", "layout", "batch", "time", "hidden_size", "pass")
    return "-".join(str(measured[name]) for name in names)


@pytest.mark.parametrize("measured", one_in(5, MEASURED), ids=label_of)
def test_what_a_call_gets_is_nearly_the_fastest_that_was_measured(measured: dict[str, Any], tmp_path: Path) -> None:
    kernel_pass, sizes = measured["pass"], Sizes(measured["batch"], measured["time"])
    spec = {name: measured[name] for name in ("model", "hidden_size", "precision", "layout")}
    if spec["model"] == "scan":
        spec["model"] = RAW_SCAN
    builder = Builder(load_spec(spec), Target(profile("h200"), profile_bytes("h200"), "spec"), Store(tmp_path))
    specialization = builder.hinted_specialization
    classes = builder.classes(kernel_pass, specialization)
    chosen = classes.sizes.choose(builder.problem_of(classes.cell, builder.key_of(kernel_pass, specialization, sizes)))
    times = {json.dumps(candidate["variables"]): candidate["ms"] for candidate in measured["candidates"] if candidate.get("ms")}
    if chosen.family != f"scan_{kernel_pass}_{FAMILY[measured['layout']]}" or json.dumps(dict(chosen.variables)) not in times:
        pytest.skip("its candidate was not measured: the record has some of one family")
    assert times[json.dumps(dict(chosen.variables))] <= (1 + LOSS_MOST) * min(times.values())
