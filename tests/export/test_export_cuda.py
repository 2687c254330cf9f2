"""Kernels exported for GPUs: on a driver that only writes down, their launches are those of a call in Python."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from support.exported import WARNINGS, check, run_in
from support.exported_launches import fake_library, hash_of, planned_call, planned_launches, run_calls

import minrnn_gen
from minrnn_gen.build.c_compiler import c_compiler
from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.errors import BadInput, ToolchainMissing
from minrnn_gen.export.cuda import cuda_export, targets_of
from minrnn_gen.export.recorded import BATCH, TIME
from minrnn_gen.plan.problem import Sizes


def can_compile() -> bool:
    try:
        c_compiler()
    except ToolchainMissing:
        return False
    return toolchain_version() is not None


pytestmark = pytest.mark.skipif(not can_compile(), reason="no C compiler, or no NVRTC")

H200_SMS = 132
SCAN = {"model": "min_gru", "hidden_size": 64, "training": False}
DENSE = {"model": "lstm", "hidden_size": 64, "heads": 2, "precision": "bf16", "training": False}
# Of which the second has few channels and many steps.
BY_SIZES = [(4, 16), (1, 65536)]
# A scan by one block and by a look-back, a dense cell in one block and over a grid, both directions, every layout.
CASES: tuple[Any, ...] = (
    pytest.param(SCAN, [(4, 16)], id="scan"),
    pytest.param(SCAN, BY_SIZES, id="look-back", marks=pytest.mark.matrix_full),
    pytest.param(DENSE, [(4, 16)], id="dense"),
    pytest.param(
        {"model": "qrnn", "hidden_size": 24, "direction": "bidirectional", "precision": "fp16", "training": False},
        [(3, 8)],
        id="both-directions",
    ),
    pytest.param(
        {
            "model": "ind_rnn",
            "hidden_size": 40,
            "layout": "TBD",
            "direction": "reverse",
            "precision": "fp64",
            "training": False,
        },
        [(2, 4)],
        id="diagonal",
        marks=pytest.mark.matrix_full,
    ),
    pytest.param({**SCAN, "layout": "BDT"}, [(2, 33)], id="time-last", marks=pytest.mark.matrix_full),
    pytest.param(
        {"model": "lstm", "hidden_size": 1024, "precision": "bf16", "training": False},
        [(2, 1024), (256, 128)],
        id="grid",
        marks=pytest.mark.matrix_full,
    ),
    pytest.param(
        {"model": "gru", "hidden_size": 512, "precision": "bf16", "training": False},
        [(4, 1024)],
        id="clusters",
        marks=pytest.mark.matrix_full,
    ),
)


@functools.cache
def kernel_of(spec: str) -> minrnn_gen.Kernel:
    return minrnn_gen.compile(json.loads(spec), gpu="h200")


def exported(folder: Path, spec: dict[str, Any], sizes: list[tuple[int, int]], *gpus: str) -> tuple[minrnn_gen.Kernel, Any]:
    kernel = kernel_of(json.dumps(spec))
    kernel.export(folder, target="cuda", name="cell", partial=True, gpus=gpus, sizes=sizes)
    targets = targets_of(kernel.builder, gpus)
    source, _ = cuda_export("cell", kernel.interface, kernel.builder, targets, tuple(Sizes(*pair) for pair in sizes), True)
    return kernel, source


@pytest.mark.parametrize(("spec", "sizes"), CASES)
def test_launches_are_those_of_python(tmp_path: Path, spec: dict[str, Any], sizes: list[tuple[int, int]]) -> None:
    kernel, source = exported(tmp_path, spec, sizes)
    planned, calls = [], []
    for batch, time in sizes:
        ways = [{}, {"resets": True}, {"lengths": True}, *([{"is_step": True}] if source.has_step else [])]
        for way in ways:
            options = {"is_step": False, "lengths": False, "resets": False, **way}
            call = planned_call(kernel.interface, batch, 1 if options["is_step"] else time, **options)
            run, passed = planned_launches(kernel, call, options["is_step"], resident=H200_SMS)
            planned.append(run)
            calls.append(passed)
    answers = run_calls(tmp_path, source, calls)
    assert answers.codes == [(0, "")] * (len(calls) + 1)
    assert answers.launches == [launch for run in planned for launch in run.launches]
    # What Python fills, C does: y beyond lengths, and what blocks hand states on through.
    assert sorted(answers.memsets) == sorted(fill for run in planned for fill in run.fills)
    kernels = json.loads((tmp_path / "cell.json").read_text())["kernels"]
    assert answers.unloaded == len(kernels)
    attributes = []
    for built in kernels:  # bytes of shared memory, and clusters that not every GPU takes
        attributes += [(8, built["shared_bytes"])] if built["shared_bytes"] else []
        attributes += [(14, 1)] if built["variables"].get("cluster_blocks", 1) > 8 else []
    assert answers.attributes == attributes


def test_the_gpu_is_found_by_its_name_then_by_its_capability(tmp_path: Path) -> None:
    names, sizes = ("h100", "h200", "a100"), (4096, 64)
    kernel, source = exported(tmp_path, SCAN, [sizes], *names)
    _, code = cuda_export("cell", kernel.interface, kernel.builder, targets_of(kernel.builder, names), (Sizes(*sizes),), True)
    cubins = {
        gpu.target.profile.name: [hash_of(one.built.cubin or b"") for one in code.kernels[gpu.first : gpu.first + gpu.count]]
        for gpu in code.gpus
    }
    assert tuple(cubins) == names
    device_names = {gpu.target.profile.name: gpu.target.profile.device_names[-1] for gpu in code.gpus}
    for asked, capability, chosen in (("h100", "90", "h100"), ("h200", "90", "h200"), ("", "90", "h100"), ("", "86", "a100")):
        answers = run_calls(tmp_path, source, [], capability=capability, name=device_names.get(asked, "another"))
        assert answers.codes[0][0] == 0
        assert answers.images == cubins[chosen]
    for capability in ("75", "100"):
        answers = run_calls(tmp_path, source, [], capability=capability)
        assert answers.codes[0][0] == 2
        assert f"capability {capability[:-1]}.{capability[-1]}" in answers.codes[0][1]


def test_what_is_refused_says_why(tmp_path: Path) -> None:
    kernel, source = exported(tmp_path, SCAN, [(4, 16)])
    call = planned_call(kernel.interface, 4, 16, is_step=False, lengths=True, resets=False)
    _, passed = planned_launches(kernel, call, False, 1)
    arrays = passed["arrays"]
    contiguous = {"batch": 16 * 64, "time": 64, "channel": 1}
    cases = {
        "there is no kernel here; align them": {**passed, "arrays": {**arrays, "x": arrays["x"] + 4}},
        "the channels of x or y have gaps": {
            **passed,
            "arrays": {**arrays, "x_strides": {"batch": 1, "time": 4, "channel": 8}},
        },
        "lengths with strides of y": {**passed, "arrays": {**arrays, "y_strides": contiguous}},
        "x or y is null": {**passed, "arrays": {**arrays, "y": 0}},
        "the workspace is null": {**passed, "workspace": 0},
        "batch or time is negative": {**passed, "batch": -1},
    }
    answers = run_calls(tmp_path, source, cases.values())
    for sentence, (code, said) in zip(cases, answers.codes[1:], strict=True):
        assert code in {1, 4}
        assert sentence in said
    assert answers.launches == []
    assert run_calls(tmp_path, source, [], device=2).codes[0][0] == 2
    refused = run_calls(tmp_path, source, [passed], refuses="1").codes[1]
    assert refused[0] == 5
    assert "error 700" in refused[1]


def nearest(sizes: tuple[int, ...], size: int) -> int:
    return min(range(len(sizes)), key=lambda place: abs(math.log(size / sizes[place])))


@pytest.mark.matrix_full
def test_a_call_has_the_kernel_of_the_nearest_size(tmp_path: Path) -> None:
    kernel, source = exported(tmp_path, SCAN, BY_SIZES)
    targets = (kernel.builder.target,)
    _, code = cuda_export("cell", kernel.interface, kernel.builder, targets, tuple(Sizes(*pair) for pair in BY_SIZES), True)
    plain = code.gpus[0].dispatch[0]
    assert len(set(plain.places)) == len(plain.kernels) > 1
    sizes = [(1, 1), (1, 2**20), (1, 2**30), (3, 1000), (5, 17), (7, 100), (4096, 64), (100_000, 3), (2, 60_000), (20, 9000)]
    calls = []
    for batch, time in sizes:
        call = planned_call(kernel.interface, batch, time, is_step=False, lengths=False, resets=False)
        calls.append(planned_launches(kernel, call, False, 1)[1])
    places = [nearest(code.batches, batch) * len(code.times) + nearest(code.times, time) for batch, time in sizes]
    chosen = [code.kernels[plain.kernels[plain.places[place]]].built for place in places]
    launched = [launch.image for launch in run_calls(tmp_path, source, calls).launches]
    assert launched == [hash_of(built.cubin or b"") for built in chosen]


def test_the_check_builds_without_cuda_and_finds_kernels_that_do_nothing(tmp_path: Path) -> None:
    exported(tmp_path, DENSE, [(4, 16)])
    options = ("-std=c99", "-Wpedantic", *WARNINGS, "check.c", "cell.c", "-o", "check", "-lm", "-ldl", "-pthread")
    assert run_in(tmp_path, c_compiler().program, *options).stderr == ""
    variables = {"LD_LIBRARY_PATH": str(fake_library(tmp_path)), "FAKE_DRIVER_LOG": str(tmp_path / "log")}
    ran = run_in(tmp_path, str(tmp_path / "check"), **variables)
    assert ran.returncode == 1
    assert "is expected" in ran.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("spec", [SCAN, DENSE], ids=["scan", "dense"])
def test_the_check_passes_on_a_gpu(tmp_path: Path, spec: dict[str, Any]) -> None:
    minrnn_gen.compile(spec).export(tmp_path, target="cuda", name="cell", sizes=[(BATCH, TIME)])
    ran = check(tmp_path, "cell", *WARNINGS)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "as recorded" in ran.stdout


def test_what_cannot_be_exported_says_so(tmp_path: Path) -> None:
    projected = minrnn_gen.compile({**SCAN, "input_size": 8}, gpu="h200")
    with pytest.raises(BadInput, match="leave input_size out"):
        projected.export(tmp_path, target="cuda", partial=True)
    with pytest.raises(BadInput, match="gradients cannot be exported"):
        minrnn_gen.compile({**SCAN, "training": True}, gpu="h200").export(tmp_path, target="cuda")
    with pytest.raises(BadInput, match="no GPU profile is called"):
        kernel_of(json.dumps(SCAN)).export(tmp_path, target="cuda", gpus=["h2000"])
    with pytest.raises(BadInput, match="export for cuda"):
        kernel_of(json.dumps(SCAN)).export(tmp_path, target="cpu", gpus=["h200"])
    assert list(tmp_path.iterdir()) == []
