"""`jax.shard_map` over batch, heads and time: what one device gives. Four devices are a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.needed import needed

from minrnn_gen.errors import BadInput

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
front = needed("minrnn_gen.jax")

ROOT = Path(__file__).resolve().parents[2]
# Products and sums of some dozen values of size 1 in another order, each rounded to 2⁻⁵³.
DIFFERENCE_MOST = 64 * 2.0**-53
# Every day those that are unlike each other: each takes two programs of XLA, which take seconds to compile.
CASES = (
    "batch",
    "time, lengths",
    "time, selective in reverse",
)
MORE_CASES = (
    "heads",
    "time, stages",
    "time, raw scan in logarithms",
    "time, packed",
    "time, complex raw scan",
    "time, layers",
    "time, resets",
    "time, biquad",
    "time, stages of n values",
    "time, min_gru",
    "time, selective",
    "time, rg_lru",
    "time, raw scan",
    "time, layers of n values",
)


def differences_of(*cases: str) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    program = [sys.executable, "-m", "support.sharded_in_jax", *cases]
    answer = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr[-3000:]
    measured: dict[str, float] = json.loads(answer.stdout)
    return measured


@pytest.fixture(scope="module")
def differences() -> dict[str, float]:
    return differences_of(*CASES)


@pytest.mark.parametrize("case", CASES)
def test_four_devices_give_what_one_gives(case: str, differences: dict[str, float]) -> None:
    assert differences[case] <= DIFFERENCE_MOST


@pytest.mark.matrix_full
def test_so_do_they_in_every_other_case() -> None:
    measured = differences_of()
    assert set(measured) == {*CASES, *MORE_CASES}
    assert max(measured.values()) <= DIFFERENCE_MOST


X = np.zeros((2, 4, 2, 4), np.float32)
SPEC = {"model": "min_gru", "hidden_size": 4}


@pytest.mark.parametrize(
    ("spec", "keywords", "sentence"),
    [
        (SPEC, {}, "axis_name is 'time', which no jax.shard_map around this call has"),
        (
            {**SPEC, "model": "lstm"},
            {},
            "axis_name was given, but the steps of lstm are not affine, so that its pieces are not folded",
        ),
        ({**SPEC, "direction": "bidirectional"}, {}, "axis_name was given, but the spec is bidirectional"),
        ({**SPEC, "training": False}, {}, "axis_name was given, which needs the backward of the kernel"),
        (SPEC, {"all_states": True}, "axis_name was given with all_states"),
    ],
    ids=str,
)
def test_what_cannot_be_split_is_refused(spec: Any, keywords: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=f"^{sentence}"):
        front.recurrence(spec, X, axis_name="time", **keywords)


def test_a_raw_scan_needs_the_axis_too() -> None:
    with pytest.raises(BadInput, match=r"^axis_name is 'time', which no jax\.shard_map around this call has"):
        front.scan(X, X, axis_name="time")
