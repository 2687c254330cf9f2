"""Kernels exported for GPUs: on a driver that only writes down, their launches are those of a call in Python."""

from __future__ import annotations

import functools
import json
import math
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.c_programs import has_c_compiler
from support.exported import WARNINGS, check, cublas_folders, run_in
from support.exported_launches import (
    NEXT_ARRAY,
    OTHER_KERNELS,
    Answers,
    Matching,
    Seen,
    SeenFill,
    SeenLaunch,
    Way,
    fake_library,
    hash_of,
    not_compiled,
    planned_call,
    planned_launches,
    run_calls,
)
from support.exported_runs import exported_of
from support.input_cells import DIAGONAL, GAPS, HIGHWAY, IN_ROUNDS
from support.norm_cells import OF_BOTH, OF_ROUNDS
from support.projected_cells import OVER_ALL, TWO_ROUNDS
from support.round_cells import DEEP, RESET_BEFORE
from support.steps_in_place import emulated

import minrnn_gen
from minrnn_gen.build.c_compiler import c_compiler
from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.build.projected import projected_at
from minrnn_gen.config.gpu_profile import load_profile
from minrnn_gen.errors import BadInput
from minrnn_gen.export.cuda import cuda_export, targets_of
from minrnn_gen.export.recorded import BATCH, TIME
from minrnn_gen.export.source import ExportSource
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.plan.problem import Sizes

pytestmark = pytest.mark.skipif(not has_c_compiler() or toolchain_version() is None, reason="no C compiler, or no NVRTC")

H200_SMS = 132
NO_DEVICE = 2
SCAN = {"model": "min_gru", "hidden_size": 64, "training": False}
DENSE = {"model": "lstm", "hidden_size": 64, "heads": 2, "precision": "bf16", "training": False}
# Whose channels have gaps, so that no kernel takes all of its steps.
STEPS = {"model": "lstm", "hidden_size": 64, "heads": 2, "precision": "bf16", "layout": "BDT", "input_size": 12}
# Of which a state is saved that y is not, in its own type or, where the caller has it, in a wider one.
BOTH = {"model": "qrnn", "hidden_size": 24, "direction": "bidirectional", "precision": "fp16"}
N_VALUES_BOTH = {
    "model": "selective",
    "hidden_size": 32,
    "state_size": 8,
    "groups": 2,
    "direction": "bidirectional",
    "precision": "bf16",
    "input_size": 12,
}
# Of which the second has few channels and many steps.
BY_SIZES = [(4, 16), (1, 65536)]
WITHOUT = ("resets", "cu_seqlens", "states")
# A scan of all blocks together, and sizes at which it is the fastest.
TOGETHER = {"model": "min_gru", "hidden_size": 256, "precision": "bf16"}
LONG = (1, 65536)

# A scan that multiplies x by its weight itself, and sizes at which that is faster.
PROJECTED = {"model": "min_gru", "hidden_size": 512, "input_size": 512, "precision": "bf16"}
PROJECTED_AT = (64, 512)
PLAIN = Way()


def case(name: str, spec: dict[str, Any], *sizes: tuple[int, int], without: tuple[str, ...] = (), whole: bool = True) -> Any:
    marks = [pytest.mark.matrix_full] if whole else []
    return pytest.param(spec, list(sizes), without, id=name, marks=marks)


# A scan by one block and by a look-back, a dense cell in one block, in clusters and over a grid, both directions, every layout.
CASES: tuple[Any, ...] = (
    case("scan", {"model": "min_gru", "hidden_size": 64}, (4, 16), without=("resets", "states")),
    case("look-back", {"model": "min_gru", "hidden_size": 64}, *BY_SIZES),
    case("cooperative", TOGETHER, LONG, without=WITHOUT, whole=False),
    case("cooperative-whole", {**TOGETHER, "direction": "reverse"}, LONG),
    case("scan-whole", {"model": "min_gru", "hidden_size": 40, "precision": "fp16"}, (4, 16)),
    case("states-narrower", {"model": "min_lstm", "hidden_size": 64, "precision": "bf16"}, (4, 16)),
    case("dense", DENSE, (4, 16), without=("cu_seqlens", "states"), whole=False),
    case("both-directions", BOTH, (3, 8)),
    case("both-look-back", {"model": "min_gru", "hidden_size": 32, "direction": "bidirectional"}, *BY_SIZES),
    case(
        "diagonal",
        {"model": "ind_rnn", "hidden_size": 40, "layout": "TBD", "direction": "reverse", "precision": "fp64"},
        (2, 4),
        LONG,  # whose backward has its time divided
    ),
    case("time-last", {**SCAN, "layout": "BDT", "training": True}, (2, 33)),
    case("dense-whole", DENSE, (4, 16)),
    case(
        "dense-gradients",
        {"model": "lstm", "hidden_size": 64, "heads": 2, "precision": "bf16", "input_size": 24},
        (4, 16),
        without=WITHOUT,
        whole=False,
    ),
    case(
        "dense-both-directions",
        {
            "model": "gru",
            "hidden_size": 64,
            "direction": "bidirectional",
            "layout": "TBD",
            "recurrent_gradient_clip": 0.5,
            "fp32_product": "tf32",
        },
        (4, 16),
    ),
    case("steps", STEPS, (3, 8), whole=False),
    case("steps-both-directions", {"model": "gru", "hidden_size": 48, "layout": "BDT", "direction": "bidirectional"}, (3, 8)),
    case("steps-of-a-large-layer", {"model": "lstm", "hidden_size": 2048}, (2, 8)),
    case("rounds", {"model": DEEP, "hidden_size": 64, "precision": "bf16", "input_size": 24}, (4, 16), without=WITHOUT),
    case("rounds-step-by-step", {"model": RESET_BEFORE, "hidden_size": 48, "layout": "BDT"}, (3, 8), whole=False),
    case("norms", {"model": OF_ROUNDS, "hidden_size": 48, "heads": 2, "input_size": 12}, (3, 8), without=WITHOUT),
    case("inputs", {"model": HIGHWAY, "hidden_size": 64, "precision": "bf16"}, (4, 16)),
    case("inputs-time-last", {"model": HIGHWAY, "hidden_size": 32, "layout": "BDT", "direction": "bidirectional"}, (2, 33)),
    case("inputs-dense", {"model": GAPS, "hidden_size": 64, "direction": "bidirectional", "input_size": 24}, (4, 16)),
    case("inputs-step-by-step", {"model": IN_ROUNDS, "hidden_size": 48, "layout": "BDT"}, (3, 8), whole=False),
    case("inputs-diagonal", {"model": DIAGONAL, "hidden_size": 40, "layout": "TBD", "direction": "reverse"}, (2, 4)),
    case("dense-fp64", {"model": "slstm", "hidden_size": 32, "precision": "fp64", "input_size": 8}, (4, 16)),
    case("projection", {"model": "min_gru", "hidden_size": 64, "input_size": 24, "direction": "bidirectional"}, (4, 16)),
    case("projection-tbd", {"model": "min_lstm", "hidden_size": 64, "input_size": 24, "layout": "TBD"}, (4, 16)),
    case(
        "projection-time-last",
        {"model": "qrnn", "hidden_size": 32, "input_size": 16, "precision": "fp16", "layout": "BDT"},
        (2, 33),
    ),
    case("projection-in-scan", PROJECTED, PROJECTED_AT, without=WITHOUT, whole=False),
    case("projection-in-scan-whole", {**PROJECTED, "model": "hgrn"}, PROJECTED_AT, (8, 4096), (4, 16)),
    case("n-values", {"model": "selective", "hidden_size": 32, "state_size": 4}, (4, 16), without=WITHOUT, whole=False),
    case("n-values-whole", {"model": "selective", "hidden_size": 32, "state_size": 4, "precision": "fp16"}, (4, 16)),
    case("n-values-both-directions", N_VALUES_BOTH, (4, 16)),
    case("n-values-time-last", {"model": "selective", "hidden_size": 32, "state_size": 4, "layout": "BDT"}, (4, 15)),
    case("n-values-in-parts", N_VALUES_BOTH, *BY_SIZES),
    case("steps-of-many", {**DENSE, "layout": "BDT", "input_size": 12}, (200, 2), without=WITHOUT),
    case("dense-of-many", {**DENSE, "input_size": 12}, (200, 2), without=WITHOUT),
    case("grid-gradients", {"model": "lstm", "hidden_size": 1024, "precision": "bf16"}, (2, 1024), without=WITHOUT),
    case("grid", {"model": "lstm", "hidden_size": 1024, "precision": "bf16", "training": False}, (2, 1024), (256, 128)),
    case("streamed", {"model": "lstm", "hidden_size": 512, "fp32_product": "tf32", "training": False}, (1024, 2)),
    case("clusters", {"model": "gru", "hidden_size": 512, "precision": "bf16", "training": False}, (4, 1024)),
)


@functools.cache
def kernel_of(spec: str, cache: str = "") -> minrnn_gen.Kernel:
    assert cache in ("", os.environ["MINRNN_CACHE_DIR"])
    return minrnn_gen.compile(json.loads(spec), gpu="h200")


@pytest.fixture
def _compiled_in_the_whole_matrix(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every day kernels are not compiled, and apart from those that are: nothing runs them, nor a large call of the check."""
    if not request.node.get_closest_marker("matrix_full"):
        monkeypatch.setenv("MINRNN_CACHE_DIR", f"{os.environ['MINRNN_CACHE_DIR']}-not-compiled")
        for module in ("build.builder", "export.cuda"):
            monkeypatch.setattr(f"minrnn_gen.{module}.compile_source", not_compiled)
        monkeypatch.setattr("minrnn_gen.export.recorded.PRODUCTS_MOST", 0)


def exported(
    folder: Path, spec: dict[str, Any], sizes: list[tuple[int, int]], *gpus: str, without: tuple[str, ...] = ()
) -> tuple[minrnn_gen.Kernel, Any]:
    kernel = kernel_of(json.dumps(spec), os.environ["MINRNN_CACHE_DIR"])
    kernel.export(folder, target="cuda", name="cell", partial=True, gpus=gpus, sizes=sizes, without=without)
    return kernel, exported_of(kernel, sizes, gpus, without)[0]


def ways_of(source: ExportSource) -> list[Way]:
    """Return the ways in which an exported kernel is called, each thing at least once."""
    trains, resets, states = source.has_backward, "resets" not in source.absent, "states" not in source.absent
    ways = [Way(backward=trains), Way(lengths=True, backward=trains)]
    ways += [Way(resets=True, backward=trains)] if resets else []
    ways += [Way(states=True, backward=trains), Way(states=True, lengths=True)] if states else []
    ways += [Way(packed=True, resets=resets, states=states), Way(packed=True, backward=trains)] if source.has_cu_seqlens else []
    return ways + ([Way(is_step=True)] if source.has_step else [])


def compared(
    folder: Path, kernel: minrnn_gen.Kernel, source: ExportSource, ways: Sequence[tuple[int, int, Way]], blocks_per_sm: int = 1
) -> Answers:
    """Call an exported kernel with each batch and time in each way, and demand that it asks for what Python does.

    `blocks_per_sm`: so many blocks of a kernel whose blocks wait for each other the driver says that an SM holds.
    """
    planned_calls = []
    for batch, time, way in ways:
        call = planned_call(kernel.interface, batch, 1 if way.is_step else time, way)
        planned_calls.append(planned_launches(kernel, call, way, resident=H200_SMS * blocks_per_sm))
    asked = [passed for planned in planned_calls for passed in planned.passed]
    answers = run_calls(folder, source, asked, driver_blocks=str(blocks_per_sm))
    assert set(answers.codes) == {(0, "")}
    by_call, sizes_bytes = iter(answers.by_call), iter(answers.sizes[1:])
    for way, planned in zip(ways, planned_calls, strict=True):
        matching, seen, rooms = Matching(planned.run.allocated), list[Seen](), list[tuple[int, int]]()
        for passed, (workspace, saved) in zip(planned.passed, sizes_bytes, strict=False):
            seen += [one for one in next(by_call) if not (isinstance(one, SeenLaunch) and one.entry in OTHER_KERNELS)]
            arrays = passed["arrays"]
            rooms += [(passed["workspace"], workspace), (arrays.get("saved", 0), saved)]
            rooms += [(arrays[name], NEXT_ARRAY) for name in ("dR", "dweight") if name in arrays]
        assert len(seen) == len(planned.run.seen), way
        assert [matching.in_python(*pair) for pair in zip(planned.run.seen, seen, strict=True)] == planned.run.seen, way
        matching.check_apart(rooms)
    return answers


@pytest.mark.usefixtures("_compiled_in_the_whole_matrix")
@pytest.mark.parametrize(("spec", "sizes", "without"), CASES)
def test_calls_are_those_of_python(
    tmp_path: Path, spec: dict[str, Any], sizes: list[tuple[int, int]], without: tuple[str, ...]
) -> None:
    kernel, source = exported(tmp_path, spec, sizes, without=without)
    assert source.has_backward is spec.get("training", True)
    ways = [(batch, time, way) for batch, time in sizes for way in ways_of(source)]
    answers = compared(tmp_path, kernel, source, ways)
    kernels = json.loads((tmp_path / "rnn_cell.json").read_text())["kernels"]
    assert answers.unloaded == len(kernels) + bool(source.other_kernels)
    attributes = []
    for built in kernels:  # bytes of shared memory, and clusters that not every GPU takes
        attributes += [(8, built["shared_bytes"])] if built["shared_bytes"] else []
        attributes += [(14, 1)] if built["variables"].get("cluster_blocks", 1) > 8 else []
    assert answers.attributes == attributes


@pytest.mark.usefixtures("_compiled_in_the_whole_matrix")
def test_scans_of_all_blocks_together_have_as_many_as_the_device_holds(tmp_path: Path) -> None:
    """Both passes, launched together: no more blocks than the driver says are resident, nor than the plan expects."""
    kernel, source = exported(tmp_path, TOGETHER, [LONG], without=WITHOUT)
    targets, sizes = (kernel.builder.target,), (Sizes(*LONG),)
    _, code = cuda_export("rnn_cell", kernel.interface, kernel.builder, targets, sizes, True, WITHOUT)
    plans = {hash_of(one.built.cubin or b""): one.plan for one in code.kernels}
    grids = []
    for blocks_per_sm in (1, 2, 100):
        answers = compared(tmp_path, kernel, source, [(*LONG, Way(backward=True))], blocks_per_sm)
        together = [one for one in answers.launches if (plan := plans.get(one.image)) and plan.strategy == "cooperative"]
        assert [plans[one.image].problem.kernel_pass for one in together] == ["forward", "backward"]
        assert all(one.is_cooperative for one in together)
        for one in together:
            assert one.blocks <= min(blocks_per_sm * H200_SMS, plans[one.image].launch.resident_blocks)
        grids.append([one.blocks for one in together])
    assert grids[0] <= grids[1] <= grids[2] and max(grids[0]) > H200_SMS // 2


def passed_forward(kernel: minrnn_gen.Kernel, pair: tuple[int, int], way: Way = PLAIN) -> dict[str, Any]:
    """Return a forward as C takes it."""
    return planned_launches(kernel, planned_call(kernel.interface, *pair, way), way).passed[0]


@pytest.mark.usefixtures("_compiled_in_the_whole_matrix")
def test_a_scan_multiplies_x_itself_where_it_does_in_python(tmp_path: Path) -> None:
    """At drawn sizes, of which some are faster so, on two GPUs; in one whole tile more or less, of no steps and of many."""
    gpus, drawn = ("h200", "h100"), random.Random(3)
    _, source = exported(tmp_path, PROJECTED, [PROJECTED_AT], *gpus, without=WITHOUT)
    sizes = [(drawn.randint(1, 200), 128 * drawn.randint(1, 16)) for _ in range(60)]
    sizes += [(batch, time + drawn.randint(1, 127)) for batch, time in sizes[:4]] + [(1, 1 << 20), (64, 0)]
    for gpu in gpus:
        kernel = minrnn_gen.compile(PROJECTED, gpu=gpu)
        in_python = [projected_at(kernel.builder, Sizes(*pair)) is not None for pair in sizes]
        assert 10 < sum(in_python) < len(sizes) - 10
        calls = [passed_forward(kernel, pair) for pair in sizes]
        answers = run_calls(tmp_path, source, calls, driver_name=load_profile(gpu).device_names[-1])
        assert set(answers.codes) == {(0, "")}
        assert ["projected" in one.entry for one in answers.launches] == in_python


@pytest.mark.usefixtures("_compiled_in_the_whole_matrix")
def test_a_scan_that_multiplies_x_itself_is_asked_for_as_in_python(tmp_path: Path) -> None:
    """With as many blocks as are resident, and no product; where sequences have lengths or arrays have gaps, by two kernels."""
    kernel, source = exported(tmp_path, PROJECTED, [PROJECTED_AT], without=WITHOUT)
    fused = [pair for pair in ((64, 512), (96, 384), (200, 256), (130, 128)) if projected_at(kernel.builder, Sizes(*pair))]
    assert len(fused) > 2
    answers = compared(tmp_path, kernel, source, [(*pair, PLAIN) for pair in fused])
    assert all([type(one) for one in of_call] == [SeenFill, SeenLaunch] for of_call in answers.by_call)
    whole, lengths = passed_forward(kernel, fused[0]), passed_forward(kernel, fused[0], Way(lengths=True))
    arrays, gaps = whole["arrays"], {"batch": 520 * fused[0][1], "time": 512, "channel": 1}
    apart = [{"x": arrays["x"] + 2}, {"weight": arrays["weight"] + 8}, {"y_strides": gaps}]
    answers = run_calls(tmp_path, source, [lengths, *({**whole, "arrays": arrays | change} for change in apart)])
    assert set(answers.codes) == {(0, "")} and len(answers.launches) == 1 + len(apart)
    assert not any("projected" in one.entry for one in answers.launches)


@pytest.mark.matrix_full
@pytest.mark.parametrize("spec", [SCAN, DENSE], ids=["scan", "dense"])
def test_nothing_is_launched_for_no_sequences_and_little_for_no_steps(tmp_path: Path, spec: dict[str, Any]) -> None:
    kernel, source = exported(tmp_path, {**spec, "training": True}, [(3, 1)], without=WITHOUT)
    way = Way(backward=True)
    compared(tmp_path, kernel, source, [(3, 0, way), (3, 1, way)])
    calls = planned_launches(kernel, planned_call(kernel.interface, 4, 16, way), way).passed
    answers = run_calls(tmp_path, source, [{**call, "batch": 0} for call in calls])
    assert set(answers.codes) == {(0, "")}
    assert answers.launches == []
    forward, backward = answers.by_call
    wanted = {calls[1]["arrays"][name] for name in ("dbias", "dR") if name in calls[1]["arrays"]}
    assert forward == []
    assert {seen.address for seen in backward if isinstance(seen, SeenFill)} == wanted


@pytest.mark.matrix_full
def test_the_gpu_is_found_by_its_name_then_by_its_capability(tmp_path: Path) -> None:
    names, sizes = ("h100", "h200", "a100"), (4096, 64)
    kernel, source = exported(tmp_path, SCAN, [sizes], *names, without=WITHOUT)
    targets = targets_of(kernel.builder, names)
    _, code = cuda_export("rnn_cell", kernel.interface, kernel.builder, targets, (Sizes(*sizes),), True, WITHOUT)
    cubins = {
        gpu.target.profile.name: [hash_of(one.built.cubin or b"") for one in code.kernels[gpu.first : gpu.first + gpu.count]]
        for gpu in code.gpus
    }
    assert tuple(cubins) == names
    device_names = {gpu.target.profile.name: gpu.target.profile.device_names[-1] for gpu in code.gpus}
    for asked, capability, chosen in (("h100", "90", "h100"), ("h200", "90", "h200"), ("", "90", "h100"), ("", "86", "a100")):
        answers = run_calls(tmp_path, source, [], driver_capability=capability, driver_name=device_names.get(asked, "another"))
        assert answers.codes[0][0] == 0
        assert answers.images == cubins[chosen]
    for capability in ("75", "100"):
        answers = run_calls(tmp_path, source, [], driver_capability=capability)
        assert answers.codes[0][0] == 2
        assert f"capability {capability[:-1]}.{capability[-1]}" in answers.codes[0][1]


def test_what_is_refused_says_why(tmp_path: Path) -> None:
    kernel, source = exported(tmp_path, SCAN, [(4, 16)], without=WITHOUT)
    way = Way(lengths=True)
    (passed,) = planned_launches(kernel, planned_call(kernel.interface, 4, 16, way), way).passed
    arrays = passed["arrays"]
    contiguous = {"batch": 16 * 64, "time": 64, "channel": 1}
    cases = {
        "there is no kernel here; align them": {**passed, "arrays": {**arrays, "x": arrays["x"] + 4}},
        "the channels of x have gaps": {
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
    refused = run_calls(tmp_path, source, [passed], driver_refuses="1").codes[1]
    assert refused[0] == 5
    assert "error 700" in refused[1]


def numbers_in(seen: Any) -> set[int]:
    """Return all numbers of what a call asks for, addresses among them."""
    return set().union(*map(numbers_in, seen)) if isinstance(seen, tuple | list) else {seen}


@pytest.mark.usefixtures("_compiled_in_the_whole_matrix")
def test_gradients_that_are_absent_are_not_computed(tmp_path: Path) -> None:
    spec, way = {**DENSE, "training": True, "input_size": 24}, Way(lengths=True, backward=True)
    kernel, source = exported(tmp_path, spec, [(4, 16)], without=WITHOUT)
    forward, backward = planned_launches(kernel, planned_call(kernel.interface, 4, 16, way), way).passed
    arrays, names = backward["arrays"], ("dx", "dweight", "dR", "dbias")
    absent = [{**backward, "arrays": {one: at for one, at in arrays.items() if one != name}} for name in names]
    answers = run_calls(tmp_path, source, [forward, backward, *absent])
    assert set(answers.codes) == {(0, "")}
    (_, whole, *fewer), (_, _, (most, _), *sizes) = answers.by_call, answers.sizes
    for name, seen, (size, _) in zip(names, fewer, sizes, strict=True):
        assert arrays[name] in numbers_in(whole), name
        assert arrays[name] not in numbers_in(seen), name
        assert len(seen) < len(whole), name
        assert size < most or name == "dx", name  # into which a product writes at once


def nearest(sizes: tuple[int, ...], size: int) -> int:
    return min(range(len(sizes)), key=lambda place: abs(math.log(size / sizes[place])))


@pytest.mark.matrix_full
def test_a_call_has_the_kernel_of_the_nearest_size(tmp_path: Path) -> None:
    kernel, source = exported(tmp_path, SCAN, BY_SIZES, without=WITHOUT)
    asked, targets = tuple(Sizes(*pair) for pair in BY_SIZES), (kernel.builder.target,)
    _, code = cuda_export("rnn_cell", kernel.interface, kernel.builder, targets, asked, True, WITHOUT)
    plain = code.gpus[0].dispatch[0]
    assert len(set(plain.places)) == len(plain.kernels) > 1
    sizes = [(1, 1), (1, 2**20), (1, 2**30), (3, 1000), (5, 17), (7, 100), (4096, 64), (100_000, 3), (2, 60_000), (20, 9000)]
    calls = []
    for batch, time in sizes:
        call = planned_call(kernel.interface, batch, time, Way())
        calls.append(planned_launches(kernel, call, Way()).passed[0])
    places = [nearest(code.batches, batch) * len(code.times) + nearest(code.times, time) for batch, time in sizes]
    chosen = [code.kernels[plain.kernels[plain.places[place]][0]].built for place in places]
    launched = [launch.image for launch in run_calls(tmp_path, source, calls).launches]
    assert launched == [hash_of(built.cubin or b"") for built in chosen]


def test_the_check_builds_without_cuda_and_finds_kernels_that_do_nothing(tmp_path: Path) -> None:
    exported(tmp_path, DENSE, [(4, 16)], without=WITHOUT)
    options = ("-std=c99", "-Wpedantic", *WARNINGS, "check.c", "rnn_cell.c", "-o", "check", "-lm", "-ldl", "-pthread")
    assert run_in(tmp_path, c_compiler().program, *options).stderr == ""
    variables = {"LD_LIBRARY_PATH": str(fake_library(tmp_path)), "FAKE_DRIVER_LOG": str(tmp_path / "log")}
    ran = run_in(tmp_path, str(tmp_path / "check"), **variables)
    assert ran.returncode == 1
    assert "is expected" in ran.stderr


@pytest.mark.matrix_full
def test_the_check_repeats_a_call_whose_scan_multiplies_x_itself(tmp_path: Path) -> None:
    """The smallest one, which has many more products than the others."""
    _, source = exported(tmp_path, PROJECTED, [PROJECTED_AT], without=WITHOUT)
    assert source.projected_at is not None and math.prod(source.projected_at) < math.prod(PROJECTED_AT)
    log = tmp_path / "log"
    variables = {"LD_LIBRARY_PATH": str(fake_library(tmp_path)), "FAKE_DRIVER_LOG": str(log)}
    fake_library(tmp_path, "fake_cublas.c", "libcublas.so.12")
    ran = check(tmp_path, "rnn_cell", *WARNINGS, **variables)
    assert ran.returncode == 1  # of a driver that computes nothing
    assert sum("projected_forward" in line for line in log.read_text().splitlines()) == 1


@pytest.mark.matrix_full
def test_of_several_gpus_only_those_need_cublas_whose_steps_are_multiplied_one_by_one(tmp_path: Path) -> None:
    _, source = exported(tmp_path, DENSE, [(4, 16)], "h200", "t4", without=WITHOUT)
    for capability, cublas, code in (("90", None, 0), ("75", None, NO_DEVICE), ("75", "libcublas.so.11", 0)):
        (tmp_path / "libraries" / "libcublas.so.11").unlink(missing_ok=True)
        assert run_calls(tmp_path, source, [], cublas=cublas, driver_capability=capability).codes[0][0] == code


def test_threads_have_a_handle_of_cublas_each_while_they_multiply(tmp_path: Path) -> None:
    exported(tmp_path, {**SCAN, "input_size": 8}, [(4, 16)], without=WITHOUT)
    libraries = fake_library(tmp_path)
    fake_library(tmp_path, "fake_cublas.c", "libcublas.so.13")
    options = ("-std=c99", "-O1", *WARNINGS, f"-I{tmp_path}", "-ldl", "-pthread", "-o", "threads")
    program = Path(__file__).parents[1] / "support" / "exported_threads.c"
    assert run_in(tmp_path, c_compiler().program, str(program), "rnn_cell.c", *options).stderr == ""
    log = tmp_path / "log"
    ran = run_in(tmp_path, str(tmp_path / "threads"), LD_LIBRARY_PATH=str(libraries), FAKE_DRIVER_LOG=str(log))
    assert (ran.returncode, ran.stdout) == (0, "")
    products = [line.split()[1:] for line in log.read_text().splitlines() if line.startswith("product")]
    threads = range(1, 17)
    assert sorted({int(stream) for stream, *_ in products}) == list(threads)
    assert len(products) == 40 * len(threads)
    for stream, workspace, _, mode, *arguments in products:  # stream, workspace, weight and x are of one thread
        assert int(mode) == 16
        assert (int(workspace) >> 44, int(arguments[6]) >> 40, int(arguments[10]) >> 32) == (int(stream),) * 3


# A step whose units read each other's outputs, advanced in place.
EVERY_DAY = ("dense", "h200")
OF_P = {"hidden_size": 24, "projection_size": 8}
# On a GPU: every kind of pass, of product and of type in which something is kept.
ON_A_GPU: dict[str, dict[str, Any]] = {
    "scan": {"model": "min_gru", "hidden_size": 64},
    "cooperative": TOGETHER,
    "without-gradients": SCAN,
    "states-narrower": {"model": "min_lstm", "hidden_size": 64, "precision": "bf16"},
    "both-directions": BOTH,
    "diagonal": {"model": "ind_rnn", "hidden_size": 40, "layout": "TBD", "direction": "reverse", "precision": "fp64"},
    "time-last": {"model": "min_gru", "hidden_size": 32, "layout": "BDT", "input_size": 12},
    "projection": {"model": "min_lstm", "hidden_size": 64, "input_size": 24, "direction": "bidirectional", "precision": "bf16"},
    "projection-in-scan": PROJECTED,
    "dense": DENSE,
    "dense-gradients": {"model": "lstm", "hidden_size": 64, "heads": 2, "precision": "bf16", "input_size": 24},
    "dense-both-directions": {"model": "gru", "hidden_size": 64, "direction": "bidirectional", "layout": "TBD"},
    "dense-fp64": {"model": "slstm", "hidden_size": 32, "precision": "fp64", "recurrent_gradient_clip": 0.5},
    "steps": STEPS,
    "steps-both-directions": {"model": "gru", "hidden_size": 48, "layout": "BDT", "direction": "bidirectional"},
    "rounds": {"model": DEEP, "hidden_size": 64, "precision": "bf16", "input_size": 24},
    "rounds-both-directions": {"model": RESET_BEFORE, "hidden_size": 64, "heads": 2, "direction": "bidirectional"},
    "rounds-step-by-step": {"model": DEEP, "hidden_size": 48, "layout": "BDT"},
    "norms": {"model": OF_BOTH, "hidden_size": 48, "heads": 2, "precision": "bf16"},
    "norms-in-rounds": {"model": OF_ROUNDS, "hidden_size": 48, "direction": "bidirectional"},
    "inputs": {"model": HIGHWAY, "hidden_size": 64, "precision": "bf16"},
    "inputs-time-last": {"model": HIGHWAY, "hidden_size": 32, "layout": "BDT", "direction": "bidirectional"},
    "inputs-dense": {"model": GAPS, "hidden_size": 64, "heads": 2, "direction": "bidirectional", "input_size": 24},
    "inputs-step-by-step": {"model": IN_ROUNDS, "hidden_size": 48, "layout": "BDT"},
    "inputs-diagonal": {"model": DIAGONAL, "hidden_size": 40, "layout": "TBD", "direction": "reverse"},
    "n-values": {"model": "selective", "hidden_size": 32, "state_size": 4},
    "n-values-both-directions": N_VALUES_BOTH,
    "n-values-time-last": {"model": "selective", "hidden_size": 32, "state_size": 4, "layout": "BDT"},
    "n-values-in-parts": N_VALUES_BOTH,
    "projected": {"model": "lstm_projected", "hidden_size": 24, "projection_size": 8, "precision": "bf16", "input_size": 12},
    "projected-two-rounds": {**OF_P, "model": TWO_ROUNDS, "heads": 2, "direction": "bidirectional"},
    "projected-over-all": {**OF_P, "model": OVER_ALL, "heads": 4, "layout": "BDT"},
    "projected-forward": {**OF_P, "model": "lstm_projected", "precision": "fp64", "layout": "TBD", "training": False},
    "tf32": {"model": "gru", "hidden_size": 64, "input_size": 24, "fp32_product": "tf32"},
}
# The sizes that kernels are planned for, where these are not those of the call that is checked.
PLANNED_FOR = {"n-values-in-parts": BY_SIZES[-1], "cooperative": LONG, "projection-in-scan": PROJECTED_AT}
# As many products would take minutes emulated; `tests/interpret` has smaller calls of that kernel.
TOO_LARGE = {"projection-in-scan"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_A_GPU)
def test_the_check_passes_on_a_gpu(tmp_path: Path, name: str) -> None:
    sizes = [PLANNED_FOR.get(name, (BATCH, TIME))]
    minrnn_gen.compile(ON_A_GPU[name]).export(tmp_path, target="cuda", name="cell", sizes=sizes, partial=True)
    ran = check(tmp_path, "rnn_cell", *WARNINGS, LD_LIBRARY_PATH=cublas_folders())
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "as recorded" in ran.stdout


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        pytest.param(*case, marks=() if case == EVERY_DAY else pytest.mark.matrix_full)
        for case in [
            *((name, "h200") for name in ON_A_GPU if name not in TOO_LARGE),
            ("dense-both-directions", "t4"),
            ("dense", "t4"),
        ]
    ],
)
def test_the_check_passes_with_emulated_kernels(tmp_path: Path, name: str, gpu: str) -> None:
    """The program that checks results on a GPU, on a driver and a cuBLAS that compute on the host."""
    sizes = PLANNED_FOR.get(name, (BATCH, TIME))
    kernel, source = exported(tmp_path, ON_A_GPU[name], [sizes], gpu)
    plans = [one.plan for one in exported_of(kernel, [sizes], [gpu])[1].kernels]
    assert name != "n-values-in-parts" or any(plan.variables.get("time_parts", 1) > 1 for plan in plans)
    assert name != "cooperative" or sum(plan.strategy == "cooperative" for plan in plans) > 1
    ran = check(tmp_path, "rnn_cell", **emulated(kernel, tmp_path, sizes, gpu))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "as recorded" in ran.stdout
    assert source.multiplies is ("product" in (tmp_path / "log").read_text())


@pytest.mark.matrix_full
def test_without_cublas_what_multiplies_is_refused(tmp_path: Path) -> None:
    way = Way(backward=True)
    for folder, spec, refused in (
        ("projection", {**SCAN, "input_size": 8}, "create"),
        ("steps", STEPS, "create"),
        ("dense", {**DENSE, "training": True}, "backward"),
    ):
        to = tmp_path / folder
        kernel, source = exported(to, spec, [(4, 16)], without=WITHOUT)
        if refused == "create":
            answers = run_calls(to, source, [], cublas=None)
            assert answers.codes[0][0] == NO_DEVICE
            assert "there is no cuBLAS here" in answers.codes[0][1]
            assert answers.unloaded == len(answers.images)
            assert run_calls(to, source, [], cublas="libcublas.so.11").handles == [8, 8]
            refusing = run_calls(to, source, [], cublas_refuses="1")
            assert (refusing.codes[0][0], refusing.handles) == (NO_DEVICE, [0, 0])
            continue
        calls = planned_launches(kernel, planned_call(kernel.interface, 4, 16, way), way).passed
        codes = run_calls(to, source, calls, cublas=None).codes
        assert [code for code, _ in codes] == [0, 0, NO_DEVICE]
        assert "by which gradients are multiplied" in codes[-1][1]


def test_what_cannot_be_exported_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="allowed: resets, cu_seqlens, states"):
        kernel_of(json.dumps(SCAN)).export(tmp_path, target="cuda", without=["lengths"])
    with pytest.raises(BadInput, match="no GPU profile is called"):
        kernel_of(json.dumps(SCAN)).export(tmp_path, target="cuda", gpus=["h2000"])
    with pytest.raises(BadInput, match="export for cuda"):
        kernel_of(json.dumps(SCAN)).export(tmp_path, target="cpu", gpus=["h200"])
    assert list(tmp_path.iterdir()) == []
