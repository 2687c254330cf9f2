"""Picks of dense cells whose candidates were measured on an H200, by the cost model among these."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.planning_problems import profile

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store
from minrnn_gen.build.target import Target
from minrnn_gen.config.gpu_profile import profile_bytes
from minrnn_gen.config.spec import load_spec
from minrnn_gen.plan.dense import large_batch, persistent
from minrnn_gen.plan.problem import Problem

RECORD = Path(__file__).resolve().parents[2] / "benchmarks" / "dense_candidates_h200.json"
SPEC = ("model", "hidden_size", "precision", "layout", "batch", "time", "heads")
# What picks lose to the best measured candidate, at worst and on average (docs/lab-notes.md); of cells with rounds of products.
LOSS_MOST, LOSS_ON_AVERAGE, LOSS_OF_ROUNDS = 0.20, 0.02, 0.01


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Return what the pick of each measured pass loses, of cells with and without rounds of products."""
    store, found = Store(tmp_path_factory.mktemp("plans")), dict[str, list[float]](plain=[], rounds=[])
    for measured in json.loads(RECORD.read_text(encoding="utf-8")):
        spec = load_spec({name: measured[name] for name in SPEC})
        builder = Builder(spec, Target(profile("h200"), profile_bytes("h200"), "spec"), store)
        problem = builder.problem(builder.key_of(measured["pass"], builder.hinted_specialization))
        problem = replace(problem, batch=measured["batch"], time=measured["time"])
        times = [candidate["ms"] for candidate in measured["candidates"]]
        _, picked = min(zip(predictions(problem, measured["candidates"]), times, strict=True))
        found["rounds" if problem.cell.rounds else "plain"].append(picked / min(times) - 1)
    return found


def predictions(problem: Problem, candidates: list[dict[str, Any]]) -> Iterator[float]:
    backward = problem.kernel_pass == "backward"
    # Candidates of forwards in 16 bits are older than tiles of two products.
    given = {} if backward or problem.matrix_product != "mma_16bit" else {"products_per_tile": 1}
    for variables in (candidate["variables"] for candidate in candidates):
        of = large_batch if "row_tiles" in variables else persistent
        family = of.BACKWARD if backward else of.FORWARD
        yield float(sum(family.predicted_us(problem, variables if of is large_batch else given | variables).values()))


def test_picks_lose_little_to_what_was_measured(losses: dict[str, list[float]]) -> None:
    assert max(losses["plain"]) <= LOSS_MOST
    assert statistics.mean(losses["plain"]) <= LOSS_ON_AVERAGE


def test_picks_of_cells_with_rounds_lose_little(losses: dict[str, list[float]]) -> None:
    assert losses["rounds"] and max(losses["rounds"]) <= LOSS_OF_ROUNDS
