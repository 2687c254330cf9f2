"""Kernels exported for the CPU: by `cc -std=c99` alone they repeat recorded calls, and those of Python bit by bit."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.c_programs import needs_c_compiler
from support.everyday import one_in
from support.exported import WARNINGS, ExportedLibrary, check, run_in
from support.fake_compiler import Compiler
from support.input_cells import GAPS, HIGHWAY, IN_ROUNDS
from support.uncompiled_kernels import nothing_compiled

import minrnn_gen
from minrnn_gen.build.c_compiler import OPTIONS, c_compiler
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.codegen.c_names import declared_names, with_prefix
from minrnn_gen.config.environment import thread_count
from minrnn_gen.errors import BadInput
from minrnn_gen.export.cpu import cpu_export
from minrnn_gen.export.recorded import values_of
from minrnn_gen.kernel import Kernel
from minrnn_gen.run.cpu.native import NativeKernels

pytestmark = needs_c_compiler

BATCH, TIME = 3, 37


def named(model: str | dict[str, Any]) -> str:
    return model if isinstance(model, str) else str(model["name"])


SPECS: tuple[dict[str, Any], ...] = (
    {"model": "min_gru", "hidden_size": 40},
    {"model": "qrnn", "hidden_size": 17, "precision": "fp64", "direction": "reverse"},
    {"model": "gru", "hidden_size": 24, "input_size": 12, "recurrent_gradient_clip": 0.5},
    {"model": "lstm", "hidden_size": 48, "heads": 3, "precision": "bf16", "direction": "bidirectional", "input_size": 7},
    {"model": "slstm", "hidden_size": 32, "precision": "fp16", "layout": "BDT"},
    {"model": "ind_rnn", "hidden_size": 33, "layout": "TBD", "training": False},
    {"model": "min_gru_log", "hidden_size": 40, "scan_arithmetic": "log", "precision": "bf16"},
    {"model": "min_lstm_log", "hidden_size": 17, "scan_arithmetic": "log", "precision": "fp64", "layout": "BDT"},
    {"model": "selective", "hidden_size": 34, "state_size": 5, "groups": 2, "precision": "bf16", "direction": "bidirectional"},
    {"model": "s4d", "hidden_size": 20, "state_size": 17, "layout": "BDT", "direction": "reverse", "input_size": 6},
    {"model": "gru_reset_before", "hidden_size": 24, "heads": 2, "precision": "bf16", "direction": "reverse", "input_size": 12},
    {"model": "gated_linear", "hidden_size": 32, "state_size": 8, "groups": 4, "layout": "TBD", "training": False},
    {"model": "layer_norm_lstm", "hidden_size": 26, "heads": 2, "precision": "bf16", "input_size": 12},
    {"model": HIGHWAY, "hidden_size": 33, "layout": "BDT", "direction": "bidirectional", "precision": "bf16"},
    {"model": GAPS, "hidden_size": 24, "heads": 2, "input_size": 5},
    {"model": "lstm_projected", "hidden_size": 24, "projection_size": 8, "heads": 2, "precision": "bf16", "input_size": 12},
)
OF_INPUTS = {cell["name"]: cell for cell in (HIGHWAY, GAPS, IN_ROUNDS)}


@pytest.fixture(scope="module", autouse=True)
def native_kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Native code, in a store of its own; kernels of a GPU, of which there is nothing in these exports, are not compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINRNN_CACHE_DIR", str(tmp_path_factory.mktemp("native")))
        patch.setenv("MINRNN_CPU", "native")
        with nothing_compiled():
            yield


@dataclass(frozen=True)
class Folder:
    """An export: its kernel in Python, its folder."""

    kernel: Kernel
    path: Path


def exported(tmp_path: Path, spec: dict[str, Any], name: str = "rnn_cell") -> Folder:
    kernel = minrnn_gen.compile(spec, gpu="h200")
    kernel.export(tmp_path, target="cpu", name=name, partial=True)
    return Folder(kernel, tmp_path)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(spec, id=named(spec["model"]), marks=pytest.mark.matrix_full if at not in {1, 3, 5} else ())
        for at, spec in enumerate(SPECS)
    ],
)
def test_the_check_passes_with_the_compiler_alone(tmp_path: Path, spec: dict[str, Any]) -> None:
    folder = exported(tmp_path, spec).path
    files = {f"rnn_cell.{end}" for end in ("h", "c", "json")} | {"check.c", "CMakeLists.txt"}
    assert {path.name for path in folder.iterdir()} == files
    ran = check(folder, "rnn_cell", *WARNINGS, "-Wno-unknown-pragmas")
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.matrix_full
def test_a_wrong_result_fails_the_check(tmp_path: Path) -> None:
    folder = exported(tmp_path, SPECS[0]).path
    text = (folder / "rnn_cell.c").read_text()
    broken = text.replace("cell_previous_h = reset ? forward_number(0)", "cell_previous_h = reset ? forward_number(1)", 1)
    broken = broken.replace("forward_load_real(before_h, 1, width)", "-forward_load_real(before_h, 1, width)", 1)
    assert broken != text
    (folder / "rnn_cell.c").write_text(broken)
    ran = check(folder, "rnn_cell")
    assert ran.returncode == 1
    assert "is expected" in ran.stderr


def inputs_of(kernel: Kernel, draw: Any) -> dict[str, Any]:
    """Return arrays for all inputs of a call by their names in C."""
    interface = kernel.interface
    arrays = {"x": draw("x", interface.shape(interface.x_axes, BATCH, TIME), "storage")}
    if interface.recurrent_gates:
        arrays["R"] = draw("R", interface.R_shape, "storage") / 4
    arrays["bias"] = draw("bias", (*interface.directions, len(interface.gates), interface.hidden_size), "real")
    if interface.takes_recurrent_bias:
        arrays["recurrent_bias"] = draw("recurrent_bias", interface.recurrent_bias_shape, "real")
    for name in interface.parameters:
        arrays[f"parameter_{name}"] = draw(name, interface.shape_of_parameter(name), "real")
    for name in interface.shared:
        arrays[f"shared_{name}"] = draw(name, interface.shape(interface.shared_axes, BATCH, TIME), "storage")
    for name in interface.inputs:
        arrays[f"input_{name}"] = draw(name, interface.shape(interface.channel_axes, BATCH, TIME), "storage")
    for name in interface.states:
        arrays[f"initial_{name}"] = draw(name, interface.shape_of_state(name, BATCH), "real")
    return arrays


@pytest.mark.parametrize("model", one_in(7, ["gru", "min_gru", "lstm", "ind_rnn", "min_gru_log", "selective", "in_rounds"]))
def test_results_are_bit_by_bit_those_of_python(tmp_path: Path, model: str) -> None:
    # Products outside of the recurrence are another library's, and so no part of this.
    more = {"min_gru_log": {"scan_arithmetic": "log"}, "selective": {"state_size": 5, "groups": 2}}
    spec = {"model": OF_INPUTS.get(model, model), "hidden_size": 40, **more.get(model, {})}
    kernel = exported(tmp_path, spec).kernel
    interface = kernel.interface
    source = cpu_export("rnn_cell", NativeKernels(interface, kernel.builder), True)
    library = ExportedLibrary(tmp_path, source, thread_count())
    generator = np.random.default_rng(7)

    def draw(_name: str, shape: tuple[int, ...], _kind: str) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32)

    arrays = inputs_of(kernel, draw)
    arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
    if model == "min_gru_log":
        arrays["initial_h"] = abs(arrays["initial_h"])
    lengths, resets = np.array([TIME, 0, 3], np.int64), generator.random((BATCH, TIME)) < 0.3
    for extra in ({}, {"lengths": lengths}, {"resets": resets}):
        parameters = {name: arrays[f"parameter_{name}"] for name in interface.parameters}
        y, final, saved = kernel.forward(
            arrays["x"],
            arrays.get("R"),
            bias=arrays["bias"],
            recurrent_bias=arrays.get("recurrent_bias"),
            parameters=parameters or None,
            shared={name: arrays[f"shared_{name}"] for name in interface.shared} or None,
            inputs={name: arrays[f"input_{name}"] for name in interface.inputs} or None,
            state={name: arrays[f"initial_{name}"] for name in interface.states},
            **extra,
        )
        dy = draw("dy", y.shape, "storage")
        gradients = kernel.backward(saved, dy)

        results = {"y": np.full_like(y, np.nan), "dx": np.full_like(arrays["x"], np.nan)}
        results |= {f"final_{name}": np.full_like(final[name], np.nan) for name in interface.states}
        results |= {f"dinitial_{name}": np.full_like(final[name], np.nan) for name in interface.states}
        summed = ("bias", *(f"shared_{name}" for name in interface.shared), *(f"input_{name}" for name in interface.inputs))
        summed += tuple(f"parameter_{name}" for name in interface.vector_parameters)
        results |= {f"d{name}": np.full_like(arrays[name], np.nan) for name in summed}
        call = library.call(BATCH, TIME, {**arrays, **extra, **results, "dy": dy})
        memory = library.saved(call)
        call.saved = memory.ctypes.data
        assert library.saved(call).size == memory.size
        assert library.run("forward", call) == 0, library.message
        assert library.run("backward", call) == 0, library.message
        expected = {"y": y, "dx": gradients["x"], "dbias": gradients["bias"]}
        expected |= {f"final_{name}": final[name] for name in interface.states}
        expected |= {f"dinitial_{name}": gradients["state"][name] for name in interface.states}
        expected |= {f"dshared_{name}": gradients["shared"][name] for name in interface.shared}
        expected |= {f"dinput_{name}": gradients["inputs"][name] for name in interface.inputs}
        expected |= {f"dparameter_{name}": gradients["parameters"][name] for name in interface.vector_parameters}
        for name, values in expected.items():
            assert np.array_equal(results[name], values), name


def test_the_gradient_of_R_is_that_of_python_where_a_step_has_rounds(tmp_path: Path) -> None:
    """Within roundings of sums in another order: that of each gate, of what it multiplied."""
    spec = {"model": "gru_reset_before", "hidden_size": 24, "heads": 2, "direction": "bidirectional"}
    kernel = exported(tmp_path, spec).kernel
    library = ExportedLibrary(tmp_path, cpu_export("rnn_cell", NativeKernels(kernel.interface, kernel.builder), True), 2)
    generator = np.random.default_rng(7)
    arrays = inputs_of(kernel, lambda _name, shape, _kind: generator.standard_normal(shape).astype(np.float32))
    named = {name: arrays[name] for name in ("R", "bias", "recurrent_bias")}
    y, _, saved = kernel.forward(arrays["x"], **named, state={"h": arrays["initial_h"]})
    dy = np.ones_like(y)
    gradients = kernel.backward(saved, dy)
    results = {"y": np.empty_like(y), "dR": np.empty_like(arrays["R"]), "dinitial_h": np.empty_like(arrays["initial_h"])}
    call = library.call(BATCH, TIME, {**arrays, **results, "dy": dy})
    memory = library.saved(call)
    call.saved = memory.ctypes.data
    assert (library.run("forward", call), library.run("backward", call)) == (0, 0), library.message
    assert np.array_equal(results["y"], y)
    assert np.array_equal(results["dinitial_h"], gradients["state"]["h"])
    np.testing.assert_allclose(results["dR"], gradients["R"], rtol=1e-5, atol=1e-5)


def test_a_step_by_strides_advances_a_state_in_place(tmp_path: Path) -> None:
    kernel = exported(tmp_path, {"model": "min_gru", "hidden_size": 16, "training": False}).kernel
    source = cpu_export("rnn_cell", NativeKernels(kernel.interface, kernel.builder), False)
    library = ExportedLibrary(tmp_path, source, 1)
    x = np.random.default_rng(3).standard_normal((2, 5, 2, 16)).astype(np.float32)
    y, state = np.zeros((2, 16), np.float32), np.zeros((2, 16), np.float32)
    for time in range(5):
        strides = {"batch": 5 * 2 * 16, "gate": 16, "channel": 1}
        arrays = {"x": x[:, time], "x_strides": strides, "initial_h": state, "final_h": state, "y": y}
        assert library.run("step", library.call(2, 1, arrays)) == 0, library.message
    expected, final = kernel(x)
    assert np.array_equal(y, expected[:, -1])
    assert np.array_equal(state, final["h"])


@pytest.mark.matrix_full
def test_reset_states_and_holds_are_inputs_of_an_export(tmp_path: Path) -> None:
    kernel = minrnn_gen.compile({"model": "gru", "hidden_size": 16, "heads": 2}, gpu="h200")
    kernel.export(tmp_path, target="cpu", name="cell", reset_states=True, holds=True)
    ran = check(tmp_path, "rnn_cell", *WARNINGS, "-Wno-unknown-pragmas")
    assert (ran.returncode, ran.stderr) == (0, "")
    serving, generator = kernel.altered(begins=True, holds=True)[0], np.random.default_rng(4)
    library = ExportedLibrary(tmp_path, cpu_export("rnn_cell", NativeKernels(serving.interface, serving.builder), True), 2)
    shapes = {"x": (BATCH, TIME, 3, 16), "R": (3, 2, 8, 8), "begin": (BATCH, 16)}
    x, R, begin = (generator.standard_normal(shape).astype(np.float32) / 2 for shape in shapes.values())
    resets, holds = (generator.random((BATCH, TIME)) < 0.3 for _ in range(2))
    expected, final = kernel(x, R, resets=resets, reset_states={"h": begin}, holds=holds)
    y, last = np.empty_like(expected), np.empty_like(final["h"])
    inputs = {"input_begin0": np.where(resets[..., None], begin[:, None], 0).astype(np.float32)}
    inputs["input_hold0"] = np.broadcast_to(holds[..., None], y.shape).astype(np.float32)
    call = library.call(BATCH, TIME, {"x": x, "R": R, "resets": resets, **inputs, "y": y, "final_h": last})
    assert library.run("forward", call) == 0, library.message
    assert np.array_equal(y, expected)
    assert np.array_equal(last, final["h"])


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path: Path) -> None:
    kernel = exported(tmp_path, {"model": "gru", "hidden_size": 16, "training": False}).kernel
    library = ExportedLibrary(tmp_path, cpu_export("rnn_cell", NativeKernels(kernel.interface, kernel.builder), False), 1)
    x, y, R = (np.zeros(shape, np.float32) for shape in ((1, 2, 3, 16), (1, 2, 16), (3, 1, 16, 16)))
    cases = {
        "batch or time is negative": library.call(-1, 2, {"x": x, "y": y, "R": R}),
        "R is null": library.call(1, 2, {"x": x, "y": y}),
        "x or y is null": library.call(1, 2, {"x": x, "R": R}),
        "a length is below 0": library.call(1, 2, {"x": x, "y": y, "R": R, "lengths": np.array([3], np.int64)}),
        "cu_seqlens does not": library.call(1, 2, {"x": x, "y": y, "R": R, "cu_seqlens": np.array([0, 1], np.int64)}),
    }
    for sentence, call in cases.items():
        assert library.run("forward", call) == 1
        assert sentence in library.message
    assert library.run("forward", library.call(1, 2, {"x": x, "y": y, "R": R}), workspace_bytes=8) == 1
    assert "workspace" in library.message


def test_what_cannot_be_exported_says_so(tmp_path: Path) -> None:
    both = minrnn_gen.compile({"model": "min_gru", "hidden_size": 8, "direction": "bidirectional"}, gpu="h200")
    with pytest.raises(BadInput, match="single step of a bidirectional spec"):
        both.export(tmp_path, target="cpu")
    assert both.export(tmp_path, target="cpu", partial=True).left_out
    for name in ("Kernel", "a-b", "1a", "", "a" * 41, "a\n"):
        with pytest.raises(BadInput, match="allowed: a small letter"):
            both.export(tmp_path, target="cpu", name=name)


@pytest.mark.parametrize("layout", one_in(2, ["BTD", "TBD"]))
@pytest.mark.parametrize("model", one_in(4, ["highway", "s4d", "lstm", "gaps"]))
def test_arrays_with_gaps_and_packed_sequences_are_those_of_python(tmp_path: Path, model: str, layout: str) -> None:
    """In both directions, whose arrays have offsets that follow from strides."""
    more = {"s4d": {"state_size": 3}}.get(model, {})
    kernel = exported(
        tmp_path,
        {"model": OF_INPUTS.get(model, model), "hidden_size": 24, "layout": layout, "direction": "bidirectional", **more},
    ).kernel
    interface, generator = kernel.interface, np.random.default_rng(5)
    library = ExportedLibrary(tmp_path, cpu_export("rnn_cell", NativeKernels(interface, kernel.builder), True), 2)

    def draw(_name: str, shape: tuple[int, ...], _kind: str) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32)

    arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in inputs_of(kernel, draw).items()}
    x = arrays.pop("x")
    called = {"R": arrays.get("R"), "bias": arrays["bias"], "recurrent_bias": arrays.get("recurrent_bias")}
    called["parameters"] = {name: arrays[f"parameter_{name}"] for name in interface.parameters} or None
    called["shared"] = {name: arrays[f"shared_{name}"] for name in interface.shared} or None
    called["inputs"] = {name: arrays.pop(f"input_{name}") for name in interface.inputs}
    y, _, saved = kernel.forward(
        x, **called, state={name: arrays[f"initial_{name}"] for name in interface.states}, all_states=True
    )
    gradients = kernel.backward(saved, np.ones_like(y))
    dx = gradients["x"]
    words = {"b": "batch", "t": "time", "d": "direction", "g": "gate", "h": "channel"}

    def with_gaps(array: np.ndarray, axes: str) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
        whole = np.full([2 * size for size in array.shape], np.nan, np.float32)
        view = whole[tuple(slice(None, None, 2) for _ in axes)]
        view[...] = array
        return whole, view, {words[axis]: stride // 4 for axis, stride in zip(axes, view.strides, strict=True)}

    y_axes = "bth" if layout == "BTD" else "tbh"
    (wide_x, _, x_strides), (wide_y, found_y, y_strides) = with_gaps(x, interface.x_axes), with_gaps(y * np.nan, y_axes)
    (wide_dx, found_dx, dx_strides), (wide_dy, _, _) = with_gaps(x, interface.x_axes), with_gaps(np.ones_like(y), y_axes)
    strides = {"x_strides": x_strides, "y_strides": y_strides, "dx_strides": dx_strides}
    results = {"y": wide_y, "dx": wide_dx, "dy": wide_dy}
    found_inputs: dict[str, np.ndarray] = {}
    for name, values in called["inputs"].items():  # strides as y, whose channels are those of both directions
        arrays[f"input_{name}"], _, _ = with_gaps(values.reshape(y.shape), y_axes)
        results[f"dinput_{name}"], found_inputs[name], _ = with_gaps(y * np.nan, y_axes)
    call = library.call(BATCH, TIME, {"x": wide_x, **arrays, **results, **strides})
    memory = library.saved(call)
    call.saved = memory.ctypes.data
    assert (library.run("forward", call), library.run("backward", call)) == (0, 0), library.message
    assert np.array_equal(found_y, y)
    assert np.array_equal(found_dx, dx)
    for name, found in found_inputs.items():
        assert np.array_equal(found, gradients["inputs"][name].reshape(y.shape))
    # Gradients that nobody takes have room of their own, gaps included.
    of_nobody = {name: array for name, array in results.items() if not name.startswith("dinput_")}
    again = library.call(BATCH, TIME, {"x": wide_x, **arrays, **of_nobody, **strides})
    again.saved = memory.ctypes.data
    wide_dx[...] = np.nan
    assert library.run("backward", again) == 0, library.message
    assert np.array_equal(found_dx, dx)


def test_packed_sequences_are_those_of_python(tmp_path: Path) -> None:
    kernel = exported(tmp_path, {"model": "gru", "hidden_size": 24, "direction": "bidirectional"}).kernel
    library = ExportedLibrary(tmp_path, cpu_export("rnn_cell", NativeKernels(kernel.interface, kernel.builder), True), 2)
    generator, ends = np.random.default_rng(5), np.array([0, 9, 9, TIME], np.int64)
    shapes = {"x": (1, TIME, 2, 3, 24), "R": (2, 3, 1, 24, 24), "resets": (1, TIME), "y": (1, TIME, 48)}
    x, R, resets, dy = (generator.standard_normal(shape).astype(np.float32) / 4 for shape in shapes.values())
    more = {"resets": resets > 0.2, "cu_seqlens": ends}
    y, final, saved = kernel.forward(x, R, **more)
    gradients = kernel.backward(saved, dy)
    results = {"y": np.empty_like(y), "dx": np.empty_like(x), "final_h": np.empty_like(final["h"])}
    call = library.call(3, TIME, {"x": x, "R": R, **more, **results, "dy": dy})
    memory = library.saved(call)
    call.saved = memory.ctypes.data
    assert (library.run("forward", call), library.run("backward", call)) == (0, 0), library.message
    expected = {"y": y, "dx": gradients["x"], "final_h": final["h"]}
    assert {name: np.array_equal(results[name], values) for name, values in expected.items()} == dict.fromkeys(results, True)


def test_the_text_names_nothing_of_the_machine_and_is_the_same_again(tmp_path: Path) -> None:
    first, second = (exported(tmp_path / part, SPECS[2]).path for part in ("a", "b"))
    for path in first.iterdir():
        text = path.read_text()
        assert text == (second / path.name).read_text()
        assert str(tmp_path) not in text
    manifest = json.loads((first / "rnn_cell.json").read_text())
    assert manifest["passes"] == ["forward", "backward", "step"]


def test_two_kernels_fit_into_one_program_of_cpp(tmp_path: Path) -> None:
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    for name in ("first", "second"):
        exported(tmp_path, {"model": "min_gru", "hidden_size": 8, "training": False}, name)
        built = run_in(tmp_path, c_compiler().program, "-std=c99", "-c", f"rnn_{name}.c")
        assert built.returncode == 0, built.stderr
    (tmp_path / "main.cpp").write_text(
        '#include "rnn_first.h"\n#include "rnn_second.h"\n'
        "int main() { rnn_first *a; rnn_second *b; return rnn_first_create(&a, 1) + rnn_second_create(&b, 1); }\n"
    )
    built = run_in(tmp_path, "c++", "main.cpp", "rnn_first.o", "rnn_second.o", "-o", "main", "-lm", "-pthread")
    assert built.returncode == 0, built.stderr
    assert subprocess.run([tmp_path / "main"], check=False).returncode == 0


@pytest.mark.matrix_full
def test_the_sanitizers_of_the_compiler_find_nothing(tmp_path: Path) -> None:
    folder = exported(tmp_path, SPECS[2]).path
    ran = check(folder, "rnn_cell", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_inputs_are_exact_in_every_precision() -> None:
    values = values_of(3, 4096, 1.0, -0.5)
    assert np.array_equal(values.astype(np.float16).astype(np.float64), values)
    assert np.array_equal(values.astype(numpy_dtype("bfloat16")).astype(np.float64), values)
    assert np.abs(values).max() <= 0.5
    assert len(np.unique(values)) == 256


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_recorded_results_are_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Includes log space, in which a negative state gives NaN, to which nothing can be compared."""
    monkeypatch.setattr("minrnn_gen.build.builder.compile_source", Compiler())
    for model, arithmetic in (("min_gru", "linear"), ("min_gru_log", "log")):
        spec = {"model": model, "hidden_size": 8, "scan_arithmetic": arithmetic}
        sizes = {"sizes": [(1, 4)]} if target == "cuda" else {}
        minrnn_gen.compile(spec, gpu="h200").export(tmp_path / model, target=target, name="rnn_cell", **sizes)
        lines = [line.strip() for line in (tmp_path / model / "check.c").read_text().splitlines()]
        assert "nan," not in lines
        assert sum(line.removesuffix(",").lstrip("-").replace(".", "", 1).isdigit() for line in lines) > 50


def test_names_at_the_top_level_take_a_prefix_and_members_do_not() -> None:
    text = "struct Call {\n    int run;\n};\n\n// run it\nvoid run(const struct Call *call)\n{\n    (void)call->run;\n}\n"
    assert declared_names(text) == {"Call", "run"}
    renamed = with_prefix(text, "p_")
    assert "static void p_run(const struct p_Call *call)" in renamed
    assert "call->run" in renamed
    assert "// run it" in renamed


def test_the_options_of_an_export_are_those_of_native_code(tmp_path: Path) -> None:
    text = (exported(tmp_path, SPECS[0]).path / "CMakeLists.txt").read_text()
    assert [option for option in OPTIONS if option.startswith(("-O", "-f")) and option not in text] == []
