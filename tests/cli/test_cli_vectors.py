"""The command line with cells of n values per channel: shown, listed and run in host memory, and refused for a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minrnn_gen.cell.files import vector_library_names

Command = Any


@pytest.fixture
def spec_of(tmp_path: Path) -> Any:
    def written(**spec: Any) -> Path:
        path = tmp_path / "spec.yaml"
        path.write_text(json.dumps({"hidden_size": 8, "state_size": 4, "gpu": "h200"} | spec))
        return path

    return written


@pytest.mark.parametrize("model", vector_library_names())
def test_run_agrees_with_the_reference(command: Command, spec_of: Any, model: str) -> None:
    path = spec_of(model=model, direction="bidirectional", **({} if model == "s4d" else {"groups": 2}))
    answer = command("run", path, "--device", "cpu", "--batch", 3, "--time", 9, "--json")
    assert answer.status == 0 and answer.json["within_tolerance"] and answer.json["kernels"] == []
    text = command("run", path, "--device", "cpu", "--batch", 3, "--time", 9)
    assert text.status == 0 and f"Kernel({model}" in text.out


@pytest.mark.parametrize("name", ["explain", "render", "compile"])
def test_what_is_of_a_gpu_refuses_in_one_sentence(command: Command, spec_of: Any, name: str) -> None:
    answer = command(name, spec_of(model="selective"))
    (sentence,) = answer.error.splitlines()
    assert (answer.status, answer.out) == (2, "") and "for which there are no GPU kernels yet" in sentence


def test_cells_with_n_are_listed_and_shown_with_their_axes(command: Command) -> None:
    listed = command("cells", "--json").json["cells_with_n"]
    assert [cell["name"] for cell in listed] == list(vector_library_names())
    shown = command("cells", "show", "selective", "--json").json
    assert (shown["states"], shown["shared"], shown["with_n"]) == (["h"], ["b", "c"], ["h", "a", "b", "c"])
    text = command("cells", "show", "selective").out
    assert "h [n]" in text and "a [n], d" in text and "b [n], c [n]" in text
    assert "what has the axis n counts once, and S.* not" in " ".join(text.split())
    assert "axis n" not in command("cells", "show", "min_gru").out
