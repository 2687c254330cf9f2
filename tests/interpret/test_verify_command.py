"""`minrnn-gen verify`, and what it refuses, each in one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.emulated_calls import faulty, kernel_of

from minrnn_gen.cli.main import main
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import CompileFailed, MinrnnError
from minrnn_gen.interpret import toolchain
from minrnn_gen.interpret.cases import Case
from minrnn_gen.interpret.verify import Verification
from minrnn_gen.run.target import target_of

EXAMPLES = Path(__file__).parents[2] / "examples"
needs_compiler = pytest.mark.skipif(
    not toolchain.has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none"
)


@needs_compiler
def test_verified_kernels_are_listed_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--set", "hidden_size=12", "--gpu", "h200", "--candidates", "1", "--json"]
    assert main(["verify", str(EXAMPLES / "min_gru.yaml"), *small]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["right"]
    assert [(kernel["candidate"], kernel["pass"]) for kernel in said["kernels"]] == [
        (0, "forward"), (0, "backward"), (0, "step"), (1, "forward"), (1, "backward"),
    ]  # fmt: skip
    assert all(kernel["right"] and kernel["error_share"] <= 1 and not kernel["findings"] for kernel in said["kernels"])
    # A plain call, and a call with sequences that begin and end; other candidates have both in one call.
    assert [len(kernel["calls"]) for kernel in said["kernels"]] == [2, 2, 1, 1, 1]


def test_without_a_compiler_the_status_is_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    toolchain._compiler.cache_clear()
    try:
        assert main(["verify", str(EXAMPLES / "min_gru.yaml"), "--gpu", "h200"]) == 1
    finally:
        toolchain._compiler.cache_clear()
    said = capsys.readouterr()
    assert said.out == ""
    assert (
        said.err.strip() == "error: emulating kernels on a CPU needs a C++ compiler, and there is none: install g++ or clang++"
    )


@pytest.mark.matrix_full
@needs_compiler
def test_what_would_take_hours_is_refused_with_an_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    large = ["--set", "hidden_size=30720", "--gpu", "h200"]
    assert main(["verify", str(EXAMPLES / "lstm.yaml"), *large]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "hidden_size is 30720, whose kernels would take about" in said.err and "minutes" in said.err
    assert "--yes-really" in said.err and said.err.count("\n") == 1


@needs_compiler
@pytest.mark.parametrize("instruction", ["minrnn_host::brand_new(3u)", "__brand_new(3u)"])
def test_an_instruction_without_a_twin_is_named(instruction: str) -> None:
    def change(text: str) -> str:
        # Where it is called, not where it is defined.
        changed, count = re.subn(r"(?<== )cluster_rank\(\)", instruction, text)
        return changed if count else text.replace("__syncwarp()", instruction)

    kernel: Any = faulty(kernel_of(model="min_gru", hidden_size=8, training=False), change)
    message = r"the emulated machine has no (__)?brand_new.*belongs into interpret/cuda_on_host\.h"
    with pytest.raises(CompileFailed, match=message):
        kernel(np.zeros((1, 3, 2, 8), np.float32))


@needs_compiler
def test_a_reference_that_is_nan_everywhere_is_an_error_and_no_verdict() -> None:
    model = {"name": "nowhere", "equations": "h[t] = sigmoid(W.z) * h[t-1] + log(-exp(W.h))"}
    spec = load_spec({"model": model, "hidden_size": 4, "gpu": "h200", "training": False})
    verification = Verification(spec, target_of(spec), candidates=0)
    exact = verification._exact(verification._kernel(0))
    with pytest.raises(MinrnnError, match=r"y of the fp64 forward is NaN everywhere"):
        verification._inputs(exact, Case(2, 3))
