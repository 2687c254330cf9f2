"""Each command's answer on the examples."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
from support.command_runner import EXAMPLES, Command
from support.uncompiled_kernels import nothing_compiled, planned_again

import minrnn_gen
from minrnn_gen.cell.files import library_names
from minrnn_gen.cli import doctor
from minrnn_gen.config.gpu_profile import DEFAULT_GPU, load_profile, profile_names
from minrnn_gen.plan.kernel_plan import KernelPlan


@pytest.fixture(autouse=True)
def _compiled_where_it_is_asked_for(request: pytest.FixtureRequest) -> Iterator[None]:
    """Most commands compute on the host or show a text, for which no kernel has to be compiled."""
    with contextlib.nullcontext() if "nvrtc" in request.fixturenames else nothing_compiled():
        yield


class KernelEntry(pydantic.BaseModel):
    name: str
    registers: pydantic.PositiveInt
    shared_bytes: pydantic.NonNegativeInt
    spill_bytes: pydantic.NonNegativeInt
    registers_expected: pydantic.PositiveInt
    shared_bytes_expected: pydantic.NonNegativeInt


class CompileReport(pydantic.BaseModel):
    model: str
    gpu: str
    arch: str
    digest: str
    cached: bool
    seconds: pydantic.PositiveFloat
    candidates: pydantic.PositiveInt
    rejected: dict[str, pydantic.NonNegativeInt]
    plan: dict[str, Any]
    kernels: list[KernelEntry]
    files: list[Path]


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("example", ["min_gru", "min_lstm", "inline_cell"])
def test_compile_reports_every_kernel_beside_its_plan(command: Command, example: str) -> None:
    arguments = ("compile", EXAMPLES / f"{example}.yaml", "--gpu", "h100", "--json")
    first, second = command(*arguments), command(*arguments)
    assert (first.status, second.status) == (0, 0)
    report = CompileReport.model_validate_json(first.out)
    plan = KernelPlan.from_json(report.plan)
    assert (
        (plan.problem.gpu, plan.problem.arch, plan.problem.model)
        == (report.gpu, report.arch, report.model)
        == ("h100", "sm_90", report.model)
    )
    names = {f"cell_{report.model}_{entry}" for entry in ("scan_forward", "scan_step")}
    assert {kernel.name for kernel in report.kernels} == names
    for kernel in report.kernels:
        assert kernel.spill_bytes == 0
        assert kernel.registers <= kernel.registers_expected
        assert kernel.shared_bytes == kernel.shared_bytes_expected
    assert all(path.is_file() for path in report.files)
    assert second.json["cached"]
    assert second.json["digest"] == report.digest
    assert second.json["plan"] == report.plan


@pytest.mark.usefixtures("nvrtc")
def test_compile_writes_files_of_stable_names_and_bytes(command: Command, min_gru: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    report = command("compile", min_gru, "--gpu", "h100", "--out", out, "--json").json
    passes = ("forward", "backward", "step")
    expected = {f"min_gru_{one}_sm_90.{suffix}" for one in passes for suffix in ("cu", "cubin", "json")}
    assert {path.name for path in out.iterdir()} == expected
    assert {Path(path).name for path in report["files"]} == expected
    assert (out / "min_gru_forward_sm_90.cu").read_text() == command("render", min_gru, "--gpu", "h100").out
    assert (out / "min_gru_forward_sm_90.cubin").read_bytes().startswith(b"\x7fELF")
    description = json.loads((out / "min_gru_forward_sm_90.json").read_text())
    assert description["plan"] == report["plan"]
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    said = command("compile", min_gru, "--gpu", "h100", "--out", out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert all(name in said.out for name in expected)


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("training", [True, False])
def test_compile_writes_what_gradients_need(command: Command, min_gru: Path, tmp_path: Path, training: bool) -> None:
    """A dense cell's forward for a backward is another kernel than that of a plain call."""
    settings = ("--set", "model=lstm", "--set", "hidden_size=64", "--set", f"training={str(training).lower()}")
    answer = command("compile", min_gru, "--gpu", "h100", "--out", tmp_path, "--json", *settings)
    assert answer.status == 0
    kinds = ("forward", "forward_saving", "backward") if training else ("forward",)
    assert {path.name for path in tmp_path.glob("*.cu")} == {f"lstm_{kind}_sm_90.cu" for kind in kinds}
    assert len(answer.json["kernels"]) == len(kinds)
    if training:
        shown = command("render", min_gru, "--gpu", "h100", "--pass", "backward", *settings).out
        assert (tmp_path / "lstm_backward_sm_90.cu").read_text() == shown


@pytest.mark.usefixtures("nvrtc")
def test_compile_says_what_a_person_wants_to_know(command: Command, min_gru: Path) -> None:
    answer = command("compile", min_gru, "--gpu", "t4")
    assert (answer.status, answer.error) == (0, "")
    for said in (
        "min_gru",
        "hidden_size 512",
        "bf16",
        "t4",
        "sm_75",
        "scan_forward",
        "registers per thread",
        "bytes",
        "class",
        "limit",
    ):
        assert said in answer.out


def test_overrides_are_typed_as_in_the_spec(command: Command, min_gru: Path) -> None:
    settings = ("--set", "hidden_size=256", "--set", "precision=fp32", "--set", "input_size=null", "--set", "gpu=a100")
    source = command("render", min_gru, *settings).out
    assert '"hidden_size":256' in source
    assert '"precision":"fp32"' in source
    assert "sm_80" in source


def test_a_profile_file_is_a_gpu_too(command: Command, min_gru: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = load_profile("l4").model_dump() | {"name": "mine"}
    (tmp_path / "mine.yaml").write_text(json.dumps(profile))
    monkeypatch.chdir(tmp_path)  # where a path on the command line starts, whatever the spec's folder
    answer = command("render", min_gru, "--gpu", "mine.yaml")
    assert answer.status == 0
    assert "gpu mine (sm_89)" in answer.out
    assert "mine.yaml" not in answer.out


@pytest.mark.parametrize("which", ["forward", "step", "backward"])
def test_render_and_explain_are_of_the_same_kernel(command: Command, min_gru: Path, which: str) -> None:
    source = command("render", min_gru, "--gpu", "h100", "--pass", which).out
    assert f"scan_{which}" in source.splitlines()[0]
    explained = command("explain", min_gru, "--gpu", "h100", "--pass", which).out
    for heading in ("constraints (used of limit)", "resources", "predicted time", "h100 (sm_90), as asked for"):
        assert heading in explained
    data = command("explain", min_gru, "--gpu", "h100", "--pass", which, "--json").json
    plan = KernelPlan.from_json(data["plan"])
    assert (plan.problem.kernel_pass, data["class"], data["warnings"]) == (which, "affine-diagonal", [])
    assert data["proof"].rstrip(".") in explained and f"(term {data['limit']})" in explained


def test_explain_of_sizes_is_json_too(command: Command, min_gru: Path) -> None:
    sizes = ("--batch", 37, "--time", 300)
    with planned_again():
        data = command("explain", min_gru, "--gpu", "h100", "--json", *sizes).json
        words = command("explain", min_gru, "--gpu", "h100", *sizes).out
    assert f"planned for batch {data['plan']['problem']['batch']}" in words
    program = command("explain", min_gru, "--gpu", "h100", "--program", *sizes).out
    assert program.startswith("program of a forward with batch 37, time 300\nbuffers\n") and "  launch scan_forward" in program
    answer = command("explain", min_gru, "--gpu", "h100", "--json", "--classes")
    assert answer.status == 2 and "--classes" in answer.json["error"]


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_the_step_of_a_dense_cell_is_a_kernel_of_its_own(command: Command, min_gru: Path, direction: str) -> None:
    of_lstm = (min_gru, "--gpu", "h100", "--pass", "step", "--set", "model=lstm", "--set", f"direction={direction}")
    assert "decode_step" in command("render", *of_lstm).out.splitlines()[0]
    assert "decode: one step in one launch" in command("explain", *of_lstm).out
    many = command("explain", *of_lstm, "--set", "batch=4096", "--set", "hidden_size=2048")
    assert "one step as a product and a pointwise kernel: " in many.out


@pytest.mark.parametrize("model", ["min_gru", "lstm"])
@pytest.mark.parametrize("line", ["render", "explain"])
def test_a_bidirectional_spec_has_no_step(command: Command, min_gru: Path, model: str, line: str) -> None:
    settings = ("--set", f"model={model}", "--set", "hidden_size=64", "--set", "direction=bidirectional")
    assert command(line, min_gru, "--gpu", "h100", *settings).status == 0
    answer = command(line, min_gru, "--gpu", "h100", *settings, "--pass", "step")
    assert (answer.status, answer.out) == (2, "")
    assert answer.error.count("\n") == 1 and "the spec is bidirectional; allowed for it: pass forward" in answer.error


@pytest.mark.parametrize(
    ("settings", "said"),
    (
        ("precision=bf16", "multiplied by tensor cores"),
        ("precision=fp32", "multiplied by tensor cores, three products in tf32 for each of fp32"),
        ("precision=fp32 fp32_product=tf32", "multiplied by tensor cores, one product in tf32"),
        ("precision=fp32 fp32_product=fma", "multiplied by fused multiply-adds"),
        ("precision=fp64", "multiplied by fused multiply-adds"),
        (
            "precision=fp32 layout=BDT",
            "not contiguous in layout BDT, only in BTD and TBD",
        ),
    ),
)
def test_explain_says_how_a_dense_cell_takes_its_steps(command: Command, min_gru: Path, settings: str, said: str) -> None:
    asked = f"model=lstm hidden_size=64 {settings}".split()
    answer = command("explain", min_gru, "--gpu", "h100", *(word for one in asked for word in ("--set", one)))
    assert answer.status == 0
    assert [line for line in answer.out.splitlines() if "strategy" in line and line.endswith(said)]


@pytest.mark.usefixtures("nvrtc")
def test_a_debug_build_is_said(command: Command, min_gru: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for asked in ("0", "1"):
        monkeypatch.setenv("MINRNN_DEBUG", asked)
        for line in ("explain", "compile", "render"):
            assert ("debug" in command(line, min_gru, "--gpu", "h100").out) == (asked == "1")
    monkeypatch.setenv("MINRNN_DEBUG", "on")
    answer = command("compile", min_gru, "--gpu", "h100")
    assert answer.status == 2 and "MINRNN_DEBUG is 'on'" in answer.error


def test_without_a_gpu_the_default_is_taken_and_said(command: Command, min_gru: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minrnn_gen.gpu.driver.has_device", lambda: False)
    monkeypatch.setattr("minrnn_gen.gpu.device.live_device", lambda: None)
    answer = command("render", min_gru)
    assert f"gpu {DEFAULT_GPU}" in answer.out
    assert answer.error.count("\n") == 1
    assert DEFAULT_GPU in answer.error
    said = command("run", min_gru, "--batch", 1, "--time", 3)
    assert (said.status, said.error) == (0, "")
    assert f"no GPU found: planned for {DEFAULT_GPU}, run on the CPU" in said.out.splitlines()


@pytest.mark.parametrize(
    ("example", "precision"), [("min_gru", "fp64"), ("min_gru", "bf16"), ("inline_cell", "fp32"), ("inline_cell", "fp16")]
)
def test_run_keeps_the_tolerance_on_the_cpu(command: Command, example: str, precision: str) -> None:
    settings = ("--set", f"precision={precision}", "--set", "hidden_size=64", "--device", "cpu", "--gpu", "h100")
    answer = command("run", EXAMPLES / f"{example}.yaml", *settings, "--batch", 3, "--time", 65, "--json")
    assert answer.status == 0
    report = answer.json
    assert report["within_tolerance"]
    assert report["share_of_tolerance"] <= 1
    assert report["x_shape"] == [3, 65, 2, 64]
    assert report["seconds_per_call"] > 0
    if precision == "fp64":
        assert report["largest_error"] <= 1e-12


def test_run_on_the_cpu_says_which_code_ran_beside_what(
    command: Command, min_gru: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy where it ran; native code beside torch's layer where there is one, else beside NumPy."""
    sizes = (
        "--set",
        "hidden_size=24",
        "--set",
        "precision=fp32",
        "--device",
        "cpu",
        "--gpu",
        "h100",
        "--batch",
        2,
        "--time",
        5,
    )
    monkeypatch.setenv("MINRNN_CPU", "numpy")
    by_numpy = command("run", min_gru, *sizes, "--json").json
    assert (by_numpy["code"], "beside" in by_numpy) == ("NumPy, since MINRNN_CPU is numpy", False)
    if shutil.which("cc") is None:
        return
    monkeypatch.setenv("MINRNN_CPU", "native")
    beside_numpy = command("run", min_gru, *sizes, "--json").json
    assert (beside_numpy["code"], beside_numpy["beside"]["name"]) == ("native code", "NumPy")
    assert os.environ["MINRNN_CPU"] == "native"
    pytest.importorskip("torch")
    layer = ("--set", "model=lstm", "--set", "input_size=8")
    assert "by native code; " in (said := command("run", min_gru, *sizes, *layer).out) and "by torch.nn.LSTM" in said


def test_compare_times_ours_a_copy_and_the_layer_of_torch(command: Command, min_gru: Path) -> None:
    sizes = ("--device", "cpu", "--gpu", "h100", "--batch", 2, "--time", 5, "--set", "hidden_size=8")
    plain = command("compare", min_gru, *sizes, "--json").json["seconds_per_call"]
    assert list(plain) == ["minrnn-gen", "a copy of the same bytes"] and all(seconds > 0 for seconds in plain.values())
    pytest.importorskip("torch")
    layer = ("--set", "model=lstm", "--set", "input_size=8", "--set", "precision=fp32")
    said = command("compare", min_gru, *sizes, *layer)
    assert said.status == 0 and all(name in said.out for name in ("minrnn-gen", "torch.nn.LSTM", "a copy", "1.00"))


def test_run_with_a_projection_and_parameters(command: Command, min_gru: Path) -> None:
    settings = ("--set", "input_size=24", "--set", "hidden_size=32", "--set", "model=rg_lru", "--set", "layout=BDT")
    answer = command("run", min_gru, *settings, "--device", "cpu", "--gpu", "h100", "--batch", 2, "--time", 9, "--json")
    assert (answer.status, answer.json["x_shape"]) == (0, [2, 24, 9])


@pytest.mark.parametrize("model", ["gru", "slstm", "ind_rnn"])
def test_run_draws_what_a_cell_needs(command: Command, min_gru: Path, model: str) -> None:
    settings = ("--set", f"model={model}", "--set", "hidden_size=24", "--set", "heads=2" if model != "ind_rnn" else "heads=1")
    answer = command("run", min_gru, *settings, "--device", "cpu", "--gpu", "h100", "--batch", 2, "--time", 20, "--json")
    assert answer.status == 0 and answer.json["within_tolerance"]


def test_fast_functions_have_their_own_tolerance_where_storage_does_not_hide_them(command: Command, min_gru: Path) -> None:
    arguments = ("run", min_gru, "--device", "cpu", "--gpu", "h100", "--batch", 1, "--time", 3, "--set", "hidden_size=8")
    for precision, functions, has_own in (("fp32", "fast", True), ("fp32", "accurate", False), ("bf16", "fast", False)):
        settings = ("--set", f"precision={precision}", "--set", f"functions={functions}")
        assert ("for fast functions" in command(*arguments, *settings).out) == has_own


def test_run_is_the_same_for_the_same_seed(command: Command, min_gru: Path) -> None:
    def errors(seed: int) -> tuple[float, float]:
        report = command("run", min_gru, "--device", "cpu", "--batch", 2, "--time", 20, "--seed", seed, "--json").json
        return report["largest_error"], report["largest_value"]

    assert errors(1) == errors(1) != errors(2)


@pytest.mark.usefixtures("nvrtc")
def test_run_fails_where_the_result_is_wrong(command: Command, min_gru: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from minrnn_gen.kernel import Kernel

    called = Kernel.__call__

    def one_element_off(self: Kernel, *args: Any, **kwargs: Any) -> Any:
        y, state = called(self, *args, **kwargs)
        y[0, 1, 2] = float("nan")
        return y, state

    monkeypatch.setattr(Kernel, "__call__", one_element_off)
    wrong = command("run", min_gru, "--device", "cpu", "--batch", 1, "--time", 3, "--json")
    assert (wrong.status, wrong.json["within_tolerance"], wrong.json["largest_error"]) == (1, False, None)
    assert "EXCEEDED" in command("run", min_gru, "--device", "cpu", "--batch", 1, "--time", 3).out


def test_gpus_lists_every_profile_with_its_numbers(command: Command) -> None:
    report = command("gpus", "--json").json
    listed = {gpu["name"]: gpu for gpu in report["gpus"]}
    assert set(profile_names()) <= set(listed)
    assert report["default"] == DEFAULT_GPU
    assert listed["h200"]["bandwidth_source"] == "measured"
    assert listed["t4"]["sm_count"] == load_profile("t4").sm_count
    assert sum(gpu["live"] for gpu in report["gpus"]) == (report["device"] is not None)
    table = command("gpus").out
    assert all(name in table for name in profile_names())
    assert listed["h200"]["checked"] and table.count("never run") == sum(not gpu["checked"] for gpu in report["gpus"]) > 0


def test_gpus_marks_the_live_device_and_its_mismatches(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from minrnn_gen.gpu.device import LiveDevice

    live = LiveDevice("NVIDIA L4", "8.9", {"MultiProcessorCount": 57}, load_profile("l4"), profile_is_shipped=True)
    monkeypatch.setattr("minrnn_gen.gpu.device.live_device", lambda: live)
    report = command("gpus", "--json").json
    assert [gpu["name"] for gpu in report["gpus"] if gpu["live"]] == ["l4"]
    assert report["device"]["profile"] == "l4"
    assert any("sm_count" in mismatch for mismatch in report["device"]["mismatches"])
    assert "mismatch: sm_count" in command("gpus").out


def test_cells_lists_every_cell(command: Command) -> None:
    cells = {cell["name"]: cell for cell in command("cells", "--json").json["cells"]}
    assert set(cells) == set(library_names())
    assert {name for name, cell in cells.items() if cell["class"] == "dense"} == {
        *("elman", "gru", "gru_reset_before", "layer_norm_lstm", "lstm", "peephole_lstm", "recurrent_lif", "slstm")
    }
    assert cells["min_lstm"]["gates"] == ["f", "i", "h"]
    assert all(name in command("cells").out for name in cells)


def test_cells_show_proves_the_class(command: Command, tmp_path: Path) -> None:
    affine = command("cells", "show", "min_gru").out
    assert "a = 1 - z" in affine
    assert "arXiv 2410.01201" in affine
    assert "relu" in command("cells", "show", "ind_rnn").out
    assert "R.r" in command("cells", "show", "gru").out
    assert command("cells", "show", "rg_lru", "--json").json["parameters"] == ["decay"]
    file = tmp_path / "leaky.yaml"
    file.write_text("name: leaky\nequations: 'h[t] = 0.5 * h[t-1] + W.v'\n")
    assert command("cells", "show", file, "--json").json["a"] == {"h": "0.5"}


def test_cells_counts_what_a_step_takes(command: Command) -> None:
    """The words of the scans are the least there can be: docs/kernels/scan.md."""
    work = {cell["name"]: cell["work"] for cell in command("cells", "--json").json["cells"]}
    for name, words in {"min_gru": (3, 6), "min_lstm": (4, 8)}.items():
        assert (work[name]["forward"]["words"], work[name]["backward"]["words"]) == words
    assert all(one["operations"] >= one["special_functions"] >= 0 for each in work.values() for one in each.values())
    assert "3 / 6" in command("cells").out


def test_cells_show_derives_the_gradient(command: Command) -> None:
    file = EXAMPLES / "leaky_light_gru.yaml"
    report = command("cells", "show", file, "--json").json
    assert report["equations"][0] == "z    = sigmoid(W.z + R.z)"
    assert {"d.h[t] = in.h[t] + in.y", "dW.z = d.z * (z * shared.2)", "dR.z = dW.z"} <= set(report["gradient"])
    assert (report["recurrent_gates"], report["saved_states"]) == (["z", "n"], [])
    shown = command("cells", "show", file).out
    assert all(f"    {line}\n" in shown for line in (*report["equations"], *report["gradient"]))
    assert command("cells", "show", "lstm", "--json").json["saved_states"] == ["c"]
    assert "d_h[t] = (1 - " in command("cells", "show", "elman", "--tangent").out
    assert command("cells", "show", "elman", "--tangent", "--json").json["states"] == ["d_h", "h"]


@pytest.mark.usefixtures("nvrtc")
def test_cache_lists_and_clears(command: Command, min_gru: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINRNN_CACHE_DIR", str(tmp_path / "cache"))
    assert command("cache", "path").out == f"{tmp_path / 'cache'}\n"
    assert command("cache", "list", "--json").json["entries"] == []
    compiled = command("compile", min_gru, "--gpu", "h100", "--json").json
    listed = command("cache", "list", "--json").json
    assert {entry["pass"] for entry in listed["entries"]} == {"forward", "step"}
    assert {entry["model"] for entry in listed["entries"]} == {"min_gru"}
    assert compiled["digest"] in {entry["digest"] for entry in listed["entries"]}
    assert sum(entry["size_bytes"] for entry in listed["entries"]) < listed["size_bytes"]
    assert compiled["digest"][:12] in command("cache", "list").out
    assert command("cache", "clear").out.startswith("removed 2 kernels, ")
    assert command("cache", "list", "--json").json["entries"] == []
    assert not command("compile", min_gru, "--gpu", "h100", "--json").json["cached"]


@pytest.mark.parametrize("kind", ["spec", "cell", "gpu"])
def test_schema_is_of_that_kind_of_file(command: Command, kind: str) -> None:
    required = {"spec": "hidden_size", "cell": "equations", "gpu": "sm_count"}
    schema = command("schema", kind).json
    assert required[kind] in schema["properties"]
    assert schema["$schema"].endswith("2020-12/schema")
    assert kind != "spec" or command("schema").json == schema


def test_doctor_tells_whether_a_compile_is_possible(command: Command, nvrtc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._why_not("json") == ""
    assert doctor._why_not("json, no_such_module") == "ModuleNotFoundError: No module named 'no_such_module'"
    monkeypatch.setattr(doctor, "_why_not", lambda _: "")  # of the other libraries, which take seconds
    answer = command("doctor", "--json")
    findings = {finding["name"]: finding for finding in answer.json["findings"]}
    assert (answer.status, answer.json["can_compile"]) == (0, True)
    assert findings["NVRTC"]["state"] == nvrtc
    assert findings["minrnn-gen"]["state"] == minrnn_gen.__version__
    assert all(finding["is_well"] or finding["mend"] for finding in findings.values())


def test_version_and_help(command: Command) -> None:
    assert command("--version").out == f"minrnn-gen {minrnn_gen.__version__}\n"
    names = ("compile", "explain", "render", "run", "gpus", "cells", "cache", "schema", "doctor")
    for arguments in ((), ("--help",), ("-h",)):
        answer = command(*arguments)
        assert (answer.status, answer.error) == (0, "")
        assert all(name in answer.out for name in names)
    for name in names:
        assert command(name, "--help").status == 0


def test_no_option_is_written_twice() -> None:
    """An option of several commands is one annotated type, which they share."""
    found: Counter[tuple[str, str]] = Counter()
    for path in sorted((Path(minrnn_gen.__file__).parent / "cli").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "typer.Option":
                texts = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                found[ast.unparse(node.args[0]), texts["help"]] += 1
    assert [option for option, count in found.items() if count > 1] == []
