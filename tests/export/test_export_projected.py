"""Cells with projected units exported for the CPU: their own arrays, copied into wider ones and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.c_programs import needs_c_compiler
from support.exported import ExportedLibrary, check
from support.projected_cells import OVER_ALL, TWO_ROUNDS, call_of
from support.uncompiled_kernels import nothing_compiled

import minrnn_gen
from minrnn_gen.export.cpu import cpu_export
from minrnn_gen.export.source import ExportSource
from minrnn_gen.kernel import Kernel
from minrnn_gen.run.cpu.native import NativeKernels
from minrnn_gen.run.embedded import EmbeddedExecutor

pytestmark = needs_c_compiler

BATCH, TIME = 3, 7
SIZES = {"hidden_size": 24, "projection_size": 8}
# Another bias than the spec's alone, and an output that is not projected beside a state that is.
BIASED = {
    "name": "biased",
    "states": ["h"],
    "products": {"a": {"bias": True}},
    "equations": "h[t] = tanh(W.z + R.a + sigmoid(R.b(h[t-1])))",
    "output": "h",
}
BESIDE = {
    "name": "beside",
    "states": {"m": "p", "h": 1},
    "products": {"a": {"to": "p"}},
    "equations": "m[t] = tanh(R.a(h[t-1]) + m[t-1])\nh[t] = tanh(W.z + R.b(m[t]))",
    "output": "h",
}
SPECS: dict[str, dict[str, Any]] = {
    "two_rounds": {"model": TWO_ROUNDS, "heads": 2, "direction": "bidirectional", **SIZES},
    "lstm_projected": {"model": "lstm_projected", "layout": "BDT", **SIZES},
    "over_all": {"model": OVER_ALL, "heads": 2, "layout": "TBD", **SIZES},
    "beside": {"model": BESIDE, "direction": "reverse", **SIZES},
    "biased": {"model": BIASED, "hidden_size": 24},
}
EVERY_DAY, WHOLE = "beside", pytest.mark.matrix_full


@pytest.fixture(scope="module", autouse=True)
def native_kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINRNN_CACHE_DIR", str(tmp_path_factory.mktemp("native")))
        patch.setenv("MINRNN_CPU", "native")
        with nothing_compiled():
            yield


def exported(folder: Path, spec: Mapping[str, Any]) -> tuple[Kernel, ExportSource]:
    kernel = minrnn_gen.compile(spec, gpu="h200")
    kernel.export(folder, target="cpu", name="cell", partial=True)
    assert kernel.embedded is not None and isinstance(kernel.executor, EmbeddedExecutor)
    native = NativeKernels(kernel.embedded.interface, kernel.embedded.builder)
    return kernel, cpu_export("rnn_cell", native, kernel.spec.training, kernel.executor.embedding).served


def in_c(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays by their names in C; those of mappings have the key behind the name."""
    named = {"state": "initial", "parameters": "parameter"}
    arrays: dict[str, Any] = {}
    for name, value in arguments.items():
        one = named.get(name, name)
        arrays |= {f"{one}_{key}": array for key, array in value.items()} if isinstance(value, dict) else {one: value}
    return arrays


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == EVERY_DAY else WHOLE) for name in SPECS])
def test_results_are_those_of_python(tmp_path: Path, name: str) -> None:
    """Bit by bit but for gradients that are products and sums of another library, with what any call may have."""
    kernel, source = exported(tmp_path, SPECS[name])
    interface, library = kernel.interface, ExportedLibrary(tmp_path, source, 2)
    arguments, generator = call_of(interface, BATCH, TIME, "float32"), np.random.default_rng(2)
    packed_x = call_of(interface, 1, TIME, "float32")["x"]
    lengths, resets = np.array([TIME, 0, 3]), generator.random((BATCH, TIME)) < 0.3
    packed = {"cu_seqlens": np.array([0, 4, 4, TIME]), "resets": resets[:1], "x": packed_x}
    calls: list[dict[str, Any]] = [{}, {"lengths": lengths}, {"resets": resets}, *([packed] if source.has_cu_seqlens else [])]
    for place, extra in enumerate(calls):
        given, after_steps = {**arguments, **extra}, place in (0, 3)
        y, states, saved = kernel.forward(**given, all_states=after_steps)
        final = kernel(**given)[1]
        dy = generator.standard_normal(y.shape).astype(np.float32)
        dfinal = {state: generator.standard_normal(array.shape).astype(np.float32) for state, array in final.items()}
        gradients = {f"d{key}": array for key, array in in_c(kernel.backward(saved, dy, dfinal)).items()}
        expected = {"y": y, **{f"final_{state}": array for state, array in final.items()}}
        expected |= {f"states_{state}": array for state, array in states.items()} if after_steps else {}
        results = {key: np.full_like(array, np.nan) for key, array in {**expected, **gradients}.items()}
        dfinals = {f"dfinal_{state}": array for state, array in dfinal.items()}
        rows, time = (3, TIME) if "cu_seqlens" in extra else (BATCH, TIME)
        call = library.call(rows, time, {**in_c(given), **results, "dy": dy, **dfinals})
        memory = library.saved(call)
        call.saved = memory.ctypes.data
        assert library.run("forward", call) == 0, library.message
        assert library.run("backward", call) == 0, library.message
        for key, values in {**expected, **gradients}.items():
            if key.startswith(("dR", "drecurrent_bias", "dbias", "dparameter")):
                np.testing.assert_allclose(results[key], values, rtol=2e-5, atol=2e-5, err_msg=key)
            else:
                assert np.array_equal(results[key], values), key


@pytest.mark.matrix_full
def test_y_and_its_gradient_may_have_gaps_and_biases_be_absent(tmp_path: Path) -> None:
    kernel, source = exported(tmp_path, SPECS["two_rounds"])
    library, arguments = ExportedLibrary(tmp_path, source, 1), call_of(kernel.interface, BATCH, TIME, "float32")
    given = in_c(arguments)
    biases = [name for name in given if name.startswith("recurrent_bias")]
    arguments["recurrent_bias"] = None
    y, _, saved = kernel.forward(**arguments)
    dx = kernel.backward(saved, np.ones_like(y))["x"]
    shape = (BATCH, TIME + 1, 3 * y.shape[2])
    gaps, dy = np.full(shape, np.nan, np.float32), np.ones(shape, np.float32)
    strides = {"batch": gaps[0].size, "time": gaps.shape[2], "channel": 3}
    results = {"y": gaps, "y_strides": strides, "dy": dy, "dx": np.empty_like(dx)}
    call = library.call(BATCH, TIME, {**{name: array for name, array in given.items() if name not in biases}, **results})
    memory = library.saved(call)
    call.saved = memory.ctypes.data
    assert (library.run("forward", call), library.run("backward", call)) == (0, 0), library.message
    assert np.array_equal(gaps[:, :TIME, ::3], y)
    assert np.array_equal(results["dx"], dx)
    gaps[:, :TIME, ::3] = np.nan
    assert np.isnan(gaps).all()


def test_a_step_advances_states_in_place_and_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    kernel, source = exported(tmp_path, {"model": "lstm_projected", "training": False, **SIZES})
    library, arguments = ExportedLibrary(tmp_path, source, 1), call_of(kernel.interface, BATCH, TIME, "float32")
    states = {name: array.copy() for name, array in arguments["state"].items()}
    y, R, x, state = np.zeros((BATCH, 8), np.float32), arguments["R"], arguments["x"], arguments["state"]
    for time in range(TIME):
        of_step = {"x": np.ascontiguousarray(x[:, time]), "y": y}
        of_step |= {f"{kind}_{name}": array for kind in ("initial", "final") for name, array in states.items()}
        assert library.run("step", library.call(BATCH, 1, {**in_c({"R": R}), **of_step})) == 0, library.message
        expected, state = kernel.step(x[:, time], R, state=state)
        assert np.array_equal(y, expected)
    assert all(np.array_equal(states[name], state[name]) for name in state)
    arrays = {**in_c(arguments), "y": np.zeros((BATCH, TIME, 8), np.float32)}
    cases = {
        "batch or time is negative": library.call(-1, 2, arrays),
        "R_p is null": library.call(1, 2, {**arrays, "R_p": None}),
        "x or y is null": library.call(1, 2, {**arrays, "y": None}),
        "a length is below 0": library.call(1, 2, {**arrays, "lengths": np.array([3])}),
    }
    for sentence, call in cases.items():
        assert library.run("forward", call) == 1
        assert sentence in library.message
    assert library.run("forward", library.call(1, 2, arrays), workspace_bytes=8) == 1
    assert "smaller than rnn_cell_workspace_bytes" in library.message
    assert "wide" not in (tmp_path / "rnn_cell.h").read_text()


@pytest.mark.matrix_full
@pytest.mark.parametrize("name", SPECS)
def test_the_sanitizers_of_the_compiler_find_nothing(tmp_path: Path, name: str) -> None:
    exported(tmp_path, SPECS[name])
    ran = check(tmp_path, "rnn_cell", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    assert (ran.returncode, ran.stderr) == (0, "")
