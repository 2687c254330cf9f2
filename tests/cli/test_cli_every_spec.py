"""Commands on every kind of spec: each runs, renders and explains, or says in one sentence why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command_runner import Command
from support.everyday import one_in

from minrnn_gen.cell.files import library_names
from minrnn_gen.cli.accuracy import compare
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import ToolchainMissing

# The built-in cells that log space is for.
LOG_CELLS = {"min_gru_log", "min_lstm_log"}
# Cells of a user's own in which not every state may be.
DEMANDING = {
    "a logarithm": "h[t] = sigmoid(W.z) * log(h[t-1] + 1) + exp(W.h)",
    "a root": "h[t] = sqrt(h[t-1]) + exp(W.h)",
    "a quotient": "h[t] = exp(W.h) / (h[t-1] + 1)",
}
NOWHERE = "h[t] = sigmoid(W.z) * h[t-1] + log(-exp(W.h))"


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels are rendered and not compiled, which takes most of the time; the CPU target runs them all the same."""

    def missing(*_: Any) -> None:
        raise ToolchainMissing("not wanted here")

    monkeypatch.setenv("MINRNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("minrnn_gen.build.builder.compile_source", missing)


@pytest.fixture
def spec_of(tmp_path: Path) -> Any:
    def written(**spec: Any) -> Path:
        path = tmp_path / "spec.yaml"
        path.write_text(json.dumps({"hidden_size": 16, "gpu": "h200", "training": False} | spec))
        return path

    return written


# In everyday runs the cells that log space is for, and a few of the others, which it refuses; tests/cpu has each cell.
@pytest.mark.parametrize(
    ("model", "arithmetic"),
    [
        *((model, arithmetic) for model in library_names() for arithmetic in ("linear", "log") if model in LOG_CELLS),
        *one_in(3, ((model, "linear") for model in library_names() if model not in LOG_CELLS)),
        *one_in(6, ((model, "log") for model in library_names() if model not in LOG_CELLS)),
    ],
)
def test_run_agrees_with_the_reference_whatever_the_spec(command: Command, spec_of: Any, model: str, arithmetic: str) -> None:
    path = spec_of(model=model, scan_arithmetic=arithmetic, direction="reverse" if model == "hgrn" else "bidirectional")
    answer = command("run", path, "--device", "cpu", "--batch", 3, "--time", 9, "--json")
    if arithmetic == "log" and model not in LOG_CELLS:
        assert answer.status == 2 and "scan_arithmetic" in answer.json["error"]
        return
    assert answer.status == 0 and answer.json["within_tolerance"]
    assert 0 <= answer.json["share_of_tolerance"] <= 1


@pytest.mark.parametrize("equations", DEMANDING.values(), ids=DEMANDING.keys())
def test_states_are_drawn_that_the_cell_allows(command: Command, spec_of: Any, equations: str) -> None:
    path = spec_of(model={"name": "demanding", "equations": equations})
    answer = command("run", path, "--device", "cpu", "--batch", 3, "--time", 9, "--json")
    assert answer.status == 0 and answer.json["within_tolerance"], answer.json


def test_a_reference_that_is_nan_everywhere_is_an_error(command: Command, spec_of: Any) -> None:
    answer = command(
        "run", spec_of(model={"name": "nowhere", "equations": NOWHERE}), "--device", "cpu", "--batch", 2, "--time", 3
    )
    assert (answer.status, answer.out) == (1, "")
    (sentence,) = answer.error.splitlines()
    assert sentence.startswith("error: ") and "NaN everywhere" in sentence


@pytest.mark.parametrize("where", ["y", "state", "both", "one element"])
def test_a_result_that_is_nan_is_no_agreement(where: str) -> None:
    """Not even with a reference that is NaN."""
    values = np.ones((2, 3, 4), np.float32)
    result = {"y": values.copy(), "state": values[:, -1].copy()}
    for name in result:
        if where in (name, "both"):
            result[name][...] = np.nan
    if where == "one element":
        result["y"][0, 0, 0] = np.nan
    for expected in (values, result["y"]):
        found = (result["y"], {"h": result["state"]})
        accuracy = compare(load_spec({"model": "min_gru", "hidden_size": 4}), found, (expected, {"h": expected[:, -1]}))
        assert not accuracy.is_within
        assert accuracy.verdict.startswith("EXCEEDED: a result is NaN")


WAYS = (("forward", "BTD"), ("reverse", "BDT"), ("bidirectional", "TBD"))
# In everyday runs each cell goes one way, all ways in turn.
SPECS = [
    pytest.param(model, *way, marks=[] if (number + turn) % len(WAYS) == 0 else [pytest.mark.matrix_full])
    for number, model in enumerate(library_names())
    for turn, way in enumerate(WAYS)
]


@pytest.mark.parametrize(("model", "direction", "layout"), SPECS)
@pytest.mark.parametrize("which", ["forward", "step"])
def test_render_and_explain_serve_every_spec_or_say_why_not(
    command: Command, spec_of: Any, model: str, direction: str, layout: str, which: str
) -> None:
    for name in ("render", "explain"):
        answer = command(name, spec_of(model=model, direction=direction, layout=layout), "--pass", which)
        if which == "step" and direction == "bidirectional":
            assert (answer.status, answer.out) == (2, "")
            (sentence,) = answer.error.splitlines()
            assert "a step needs one direction" in sentence
            continue
        assert (answer.status, answer.error) == (0, "")
        # A dense cell has kernels of its own for a step, and others step by one kernel for all.
        assert ("step" in answer.out) if which == "step" else (model in answer.out)
