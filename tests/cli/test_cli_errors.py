"""Failures are one sentence with an exit status, never a traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.command_runner import EXAMPLES, Command
from support.examples import examples

from minrnn_gen.build.cpu_kernel import why_no_native_code
from minrnn_gen.cli.main import main
from minrnn_gen.config.gpu_profile import load_profile
from minrnn_gen.config.spec import Spec
from minrnn_gen.errors import INSTALL_CUDA, ToolchainMissing

SPEC = str(EXAMPLES / "min_gru.yaml")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        # The latter by typer before 0.26 with Click from 8.3 on.
        (["compile"], 2, "missing argument 'SPEC'|where a spec is needed"),
        (["compil", SPEC], 2, "did you mean 'compile'"),
        (["compile", SPEC, "--jsn"], 2, "--json"),
        (["compile", SPEC, "more"], 2, "more"),
        (["compile", "missing.yaml"], 2, "missing.yaml: no such file"),
        (["compile", str(EXAMPLES)], 2, "folder"),
        (["compile", SPEC, "--set", "hiden_size=3"], 2, "did you mean 'hidden_size'"),
        (["compile", SPEC, "--set", "hidden_size=0"], 2, "hidden_size: 0 is given"),
        (["compile", SPEC, "--set", "hidden_size='512'"], 2, "'512'"),
        (["compile", SPEC, "--set", "hidden_size=1000000000"], 2, "1048576"),
        (["compile", SPEC, "--set", "heads=7"], 2, "nearest is 8"),
        (["compile", SPEC, "--set", "training=yes"], 2, "error: --set: training: 'yes' is given; allowed: true or false"),
        (["compile", SPEC, "--set", "hiden_size=3", "--set", "precison=fp32"], 2, "and 'precison' (did you mean 'precision'?)"),
        (["compile", SPEC, "--set", "hidden_size"], 2, "KEY=VALUE"),
        (["compile", SPEC, "--set", "heads=1", "--set", "heads=2"], 2, "twice"),
        (["compile", SPEC, "--set", "heads=1\nlayout: TBD"], 2, "several lines"),
        (["compile", SPEC, "--set", "heads=!!python/object:x {}"], 2, "tag"),
        (["compile", SPEC, "--set", "model=min_gro"], 2, "did you mean 'min_gru'"),
        (["compile", SPEC, "--gpu", "h1000"], 2, "did you mean 'h100'"),
        (["compile", SPEC, "--gpu", "missing.yaml"], 2, "missing.yaml"),
        (["render", SPEC, "--pass", "gradient"], 2, "'forward', 'backward', 'step'"),
        (["run", SPEC, "--device", "tpu"], 2, "'cpu', 'cuda'"),
        (["run", SPEC, "--batch", "0"], 2, "--batch"),
        (["run", SPEC, "--batch", "many"], 2, "--batch"),
        (["run", SPEC, "--device", "cpu", "--time", str(10**12)], 2, "268435456"),
        (["cells", "show", "min_gro"], 2, "did you mean 'min_gru'"),
        (["cells", "shwo", "gru"], 2, "did you mean 'show'"),
        (["cache"], 2, "missing command"),
        (["schema", "profile"], 2, "'spec', 'cell', 'gpu'"),
        (["compile", SPEC, "--set", "scan_arithmetic=log"], 2, "never negative"),
        (["compile", SPEC, "--set", "scan_arithmetic=log", "--set", "model=lstm"], 2, "which has no scan; allowed: linear"),
        (["compile", SPEC, "--set", "scan_arithmetic=log", "--set", "model=biquad"], 2, "whose states have no scan each"),
    ],
)
def test_one_sentence_and_the_exit_status(command: Command, arguments: list[str], status: int, said: str) -> None:
    answer = command(*arguments)
    assert (answer.status, answer.out) == (status, "")
    (sentence,) = answer.error.splitlines()
    assert sentence.startswith("error: ")
    assert any(part in sentence for part in said.split("|"))
    as_json = command(*arguments, "--json")
    assert (as_json.status, as_json.json["exit_status"]) == (status, status)
    assert "error" in as_json.json


def test_an_unknown_gpu_is_said_of_the_line_that_names_it(command: Command, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("model: min_gru\nhidden_size: 64\ngpu: h20\n")
    sentence = command("compile", tmp_path / "spec.yaml").error
    assert "spec.yaml:3: gpu: no GPU profile is called 'h20' (did you mean 'h200'?)" in sentence
    assert "error: --gpu: no GPU profile is called 'h1000'" in command("compile", SPEC, "--gpu", "h1000").error


@pytest.mark.parametrize("key", list(Spec.model_fields))
def test_a_wrong_value_is_the_fault_of_who_gave_it(command: Command, tmp_path: Path, key: str) -> None:
    (tmp_path / "wrong.yaml").write_text(f"{Path(SPEC).read_text(encoding='utf-8')}\nlayout: [1]\n")
    assert command("explain", SPEC, "--set", f"{key}=[1]").error.startswith(f"error: --set: {key}: [1] is given")
    if key != "layout":
        both = command("explain", tmp_path / "wrong.yaml", "--set", f"{key}=[1]").error
        assert f"--set: {key}: [1] is given" in both and re.search(r"wrong.yaml:\d+: layout|also line \d+: layout", both)


def test_infeasible_names_the_constraint(command: Command, tmp_path: Path) -> None:
    tiny = load_profile("t4").model_dump() | {"name": "tiny", "registers_per_thread_max": 16}
    (tmp_path / "tiny.yaml").write_text(json.dumps(tiny))
    answer = command("compile", SPEC, "--gpu", tmp_path / "tiny.yaml", "--json")
    assert (answer.status, answer.json["exit_status"]) == (1, 1)
    assert "does not fit tiny" in answer.json["error"]
    assert "registers_per_thread" in answer.json["error"]


@pytest.mark.matrix_full
def test_without_nvrtc_only_compile_fails(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise ToolchainMissing(f"NVRTC cannot be loaded (no such library): {INSTALL_CUDA}")

    monkeypatch.setenv("MINRNN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("minrnn_gen.build.builder.compile_source", missing)
    monkeypatch.setattr("minrnn_gen.build.nvrtc.nvrtc_version", missing)
    answer = command("compile", SPEC, "--gpu", "h100")
    assert (answer.status, answer.out) == (1, "")
    assert "pip install 'cupy-cuda13x[ctk]'" in answer.error
    assert "scan_forward" in command("render", SPEC, "--gpu", "h100").out
    assert "not compiled" in command("explain", SPEC, "--gpu", "h100").out
    run = command("run", SPEC, "--gpu", "h100", "--device", "cpu", "--batch", 1, "--time", 2)
    assert (run.status, run.error) == (0, "")
    assert "not compiled" in run.out
    doctor = command("doctor")
    assert doctor.status == 1
    assert any(line.startswith("missing  NVRTC") and "pip install" in line for line in doctor.out.splitlines())


@pytest.mark.usefixtures("no_libraries_imported")
def test_doctor_compiles_a_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where libnvrtc is here and the library that it compiles by is not."""

    def fails(*_: Any) -> None:
        raise ToolchainMissing("NVRTC cannot be loaded (failed to open libnvrtc-builtins)")

    monkeypatch.setattr("minrnn_gen.build.nvrtc.nvrtc_version", lambda: "13.0")
    monkeypatch.setattr("minrnn_gen.build.nvrtc.compile_source", fails)
    answer = command("doctor", "--json")
    row = {finding["name"]: finding for finding in answer.json["findings"]}["NVRTC"]
    assert answer.status == 1 and not answer.json["can_compile"]
    assert not row["is_well"] and "libnvrtc-builtins" in row["state"] and "pip install 'cupy-cuda13x[ctk]'" in row["mend"]


@pytest.mark.usefixtures("no_libraries_imported")
def test_doctor_has_rows_for_torch_and_a_compiler(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows() -> dict[str, Any]:
        return {finding["name"]: finding for finding in command("doctor", "--json").json["findings"]}

    here = rows()
    assert here["CPU"]["is_well"] == (not why_no_native_code()) and numpy.__version__ in here["CPU"]["state"]
    assert not here["torch"]["is_needed"] and not here["C++ compiler"]["is_needed"]
    monkeypatch.setenv("CXX", "no-such-compiler")
    installed = metadata.version

    def version(name: str) -> str:
        if name in ("torch", "jax"):
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    gone = rows()
    assert not gone["JAX"]["is_well"] and not gone["JAX"]["is_needed"] and "pip install jax" in gone["JAX"]["mend"]
    assert not gone["torch"]["is_well"] and "download.pytorch.org/whl/cpu" in gone["torch"]["mend"]
    assert not gone["C++ compiler"]["is_well"] and "g++" in gone["C++ compiler"]["mend"]


def test_cuda_without_a_gpu_is_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minrnn_gen.gpu.driver.has_device", lambda: False)
    monkeypatch.setattr("minrnn_gen.gpu.device.live_device", lambda: None)
    answer = command("run", SPEC, "--device", "cuda", "--gpu", "h100")
    assert (answer.status, answer.out) == (1, "")
    assert "no GPU found" in answer.error


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("folder", ["file", "file/below", "nul\0"])
def test_a_folder_that_cannot_be_written(command: Command, tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    answer = command("compile", SPEC, "--gpu", "h100", "--out", tmp_path / folder)
    assert (answer.status, answer.out) == (2, "")
    assert answer.error.startswith("error: --out: ")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("raised", "status"), [(KeyboardInterrupt(), 130), (MemoryError(), 1), (OSError(28, "No space"), 1)])
def test_what_comes_from_outside_ends_quietly(
    command: Command, monkeypatch: pytest.MonkeyPatch, raised: BaseException, status: int
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr("minrnn_gen.cli.compile.read_request", fail)
    answer = command("compile", SPEC)
    assert (answer.status, answer.out) == (status, "")
    assert answer.error.count("\n") <= 1


# Sizes stay small and kernels few, so that nearly every example is quick.
WORDS = [
    *("compile", "explain", "render", "run", "gpus", "cells", "cache", "schema", "doctor", "show", "path", "list", "cell"),
    *(
        "--json",
        "--gpu",
        "--set",
        "--out",
        "--pass",
        "--device",
        "--batch",
        "--time",
        "--seed",
        "--version",
        "--help",
        "--",
        "-x",
    ),
    *(SPEC, "examples", "no.yaml", "h100", "cpu", "step", "1", "-1", "", "\udcff", "a\0b", "[bold]", ":smile:", "gru"),
    *("hidden_size=64", "hidden_size=", "model={name: x}", "=", "a=b", "gpu=h100", "precision=[", "batch=99999999999"),
]
STARTS = [["compile", SPEC, "--gpu", "h100"], ["run", SPEC, "--gpu", "h100", "--batch", "1", "--time", "1"], ["cells"], []]


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(STARTS), st.lists(st.sampled_from(WORDS), max_size=4))
@example(["compile", SPEC], ["--set", "gpu=\udcff"])
@example([], ["cells", "show", "\udcff.yaml"])
def test_no_argument_list_ends_in_a_traceback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: list[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # where --out may write
    status = main([*start, *words])
    captured = capsys.readouterr()
    assert status in (0, 1, 2)
    assert "Traceback" not in captured.out + captured.err
    if "--json" in [*start, *words] and status:
        json.loads(captured.out)
    elif status == 2:
        assert captured.out == ""
        assert captured.err.splitlines()[-1].startswith("error: ")


def test_a_reader_that_leaves_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = [sys.executable, "-m", "minrnn_gen.cli.main", "render", SPEC, "--gpu", "h100"]
    try:
        done = subprocess.run(program, stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")
