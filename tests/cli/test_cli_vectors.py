"""The command line with cells of n values per channel: shown, listed and run, and their kernels explained and rendered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.everyday import one_in

from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.cell.files import vector_library_names

Command = Any


@pytest.fixture
def spec_of(tmp_path: Path) -> Any:
    def written(**spec: Any) -> Path:
        path = tmp_path / "spec.yaml"
        path.write_text(json.dumps({"hidden_size": 8, "state_size": 4, "gpu": "h200"} | spec))
        return path

    return written


@pytest.mark.parametrize("model", one_in(3, vector_library_names()))
def test_run_agrees_with_the_reference(command: Command, spec_of: Any, model: str) -> None:
    path = spec_of(model=model, direction="bidirectional", **({} if model == "s4d" else {"groups": 2}))
    answer = command("run", path, "--device", "cpu", "--batch", 3, "--time", 9, "--json")
    assert answer.status == 0 and answer.json["within_tolerance"]
    assert {kernel["pass"] for kernel in answer.json["kernels"]} == ({"forward"} if toolchain_version() else set())
    text = command("run", path, "--device", "cpu", "--batch", 3, "--time", 9)
    assert text.status == 0 and "share the 4 values of a channel" in text.out.replace("one lane has", "lanes share")


@pytest.mark.parametrize("kernel_pass", ["forward", "backward", "step"])
def test_every_pass_is_explained_and_rendered(command: Command, spec_of: Any, kernel_pass: str) -> None:
    path = spec_of(model="selective")
    explained = command("explain", path, "--pass", kernel_pass)
    assert explained.status == 0 and "vectors: each channel has n values" in explained.out
    rendered = command("render", path, "--pass", kernel_pass)
    assert rendered.status == 0 and f"vector_{kernel_pass}(" in rendered.out


def test_cells_with_n_are_listed_and_shown_with_their_axes(command: Command) -> None:
    listed = command("cells", "--json").json["cells_with_n"]
    assert [cell["name"] for cell in listed] == list(vector_library_names())
    shown = command("cells", "show", "selective", "--json").json
    assert (shown["states"], shown["shared"], shown["with_n"]) == (["h"], ["b", "c"], ["h", "a", "b", "c"])
    text = command("cells", "show", "selective").out
    assert "h [n]" in text and "a [n], d" in text and "b [n], c [n]" in text
    assert "what has the axis n counts once, and S.* not" in " ".join(text.split())
    assert "axis n" not in command("cells", "show", "min_gru").out
