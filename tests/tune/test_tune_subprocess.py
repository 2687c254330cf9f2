"""A child that measures: it answers as the measurer in it does, and a candidate that hangs or faults costs that candidate."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_compiler import BuilderOf
from support.fake_measurer import FakeMeasurer, key, spread_us
from support.patience import within

from minrnn_gen.build.tuned_choice import Trial
from minrnn_gen.tune.measurer import CannotMeasure, MeasurementFailed, MeasurementHung
from minrnn_gen.tune.subprocess import ChildMeasurer

FAKE = str(Path(__file__).parents[1] / "support" / "fake_measurer.py")
GREETING = json.dumps({"gpu": "h200", "device": "NVIDIA H200", "driver": "1"})
# Says who it is, and then does to every request what the test wants, but for what is only prepared.
PROGRAM = f"""
import os, sys, time
print('''{GREETING}''', flush=True)
for line in sys.stdin:
    if line.startswith('{{"prepare"'):
        print('{{}}', flush=True)
        continue
    DOES
"""


@pytest.fixture
def trial(builder_of: BuilderOf) -> Trial:
    builder = builder_of()
    solution = builder.solve(builder.key_of("forward", builder.hinted_specialization))
    return Trial(builder.recipe, solution.problem.cell, solution.plan(), b"\x00 cubin")


@pytest.fixture
def child() -> Iterator[ChildMeasurer]:
    measurer = ChildMeasurer((sys.executable, FAKE))
    yield measurer
    measurer.close()


def test_a_child_answers_as_its_measurer_does(child: ChildMeasurer, trial: Trial) -> None:
    inside = FakeMeasurer()
    assert (child.gpu, child.device, child.driver) == (inside.gpu, inside.device, inside.driver)
    assert child.error_share(trial) == inside.error_share(trial)
    assert list(child.times_us(trial, 5)) == inside.times_us(trial, 5)
    assert abs(child.times_us(trial, 1)[0] / spread_us(key(trial)) - 1) < 0.1


@pytest.mark.parametrize(
    ("does", "error", "says"),
    [
        ("time.sleep(600)", MeasurementHung, "no end after 0.5 s"),
        ("os.abort()", MeasurementFailed, "ended with status -6"),
        ("sys.exit(3)", MeasurementFailed, "ended with status 3"),
        ("print('a fault', flush=True)", MeasurementFailed, "said 'a fault"),
        ('print(\'{"failed": "illegal address"}\', flush=True)', MeasurementFailed, "illegal address"),
    ],
    ids=["hangs", "faults", "ends", "babbles", "fails"],
)
def test_what_hangs_or_faults_costs_itself_and_the_next_has_a_new_child(
    trial: Trial, does: str, error: type[MeasurementFailed], says: str
) -> None:
    reply_seconds = 0.5 if error is MeasurementHung else within(30)
    child = ChildMeasurer((sys.executable, "-c", PROGRAM.replace("DOES", does)), reply_seconds=reply_seconds)
    assert child.device == "NVIDIA H200"
    lost = child._process
    with pytest.raises(error, match=says):
        child.times_us(trial, 1)
    assert lost is not None and lost.wait(within(10)) is not None
    child.command = (sys.executable, FAKE)
    child.reply_seconds = within(30)
    assert len(child.times_us(trial, 3)) == 3
    child.close()


def test_what_cannot_be_prepared_is_no_fault_of_the_candidate(trial: Trial) -> None:
    program = PROGRAM.replace("{}", '{"failed": "out of memory"}').replace("DOES", "pass")
    child = ChildMeasurer((sys.executable, "-c", program))
    with pytest.raises(CannotMeasure, match="out of memory"):
        child.error_share(trial)
    child = ChildMeasurer((sys.executable, "-c", PROGRAM.replace("print('{}', flush=True)", "time.sleep(60)")), 0.5, 0.5)
    with pytest.raises(CannotMeasure, match=r"no end after 0\.5 s"):
        child.times_us(trial, 1)


def test_a_child_that_cannot_start_is_said(trial: Trial) -> None:
    child = ChildMeasurer((sys.executable, "-c", "raise SystemExit(7)"))
    with pytest.raises(CannotMeasure, match="ended with status 7"):
        child.error_share(trial)
