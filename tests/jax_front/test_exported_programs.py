"""Programs that JAX exports: a process that has called nothing yet runs them; what export needs to be told; symbolic sizes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.needed import needed
from support.patience import within

from minrnn_gen.errors import BadInput

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
jnp = pytest.importorskip("jax.numpy")
export = pytest.importorskip("jax.export")
front = needed("minrnn_gen.jax")

ROOT = Path(__file__).resolve().parents[2]
SPEC = {"model": "lstm", "hidden_size": 4}
LAYER = front.RNN("min_gru", 3, 4)
SAFE = [export.DisabledSafetyCheck.custom_call("minrnn_gen")]
# What a server does: it imports the package, and calls nothing of it.
SECOND = """
import sys
import jax.export, numpy
import minrnn_gen.jax
program, arrays, results = sys.argv[1:]
exported = jax.export.deserialize(bytearray(open(program, "rb").read()))
given = numpy.load(arrays)
for _ in range(2):
    y = exported.call(*(given[name] for name in given.files))
numpy.save(results, numpy.asarray(y))
"""


def lstm(x: Any, R: Any) -> Any:
    return front.recurrence(SPEC, x, R)[0]


def gradient(a: Any, b: Any) -> Any:
    return jax.grad(lambda a, b: (front.scan(a, b)[0] ** 2).sum())(a, b)


def filtered(x: Any, a: Any, b: Any, zi: Any) -> Any:
    return jax.grad(lambda x: sum((one**2).sum() for one in front.lfilter(x, 1 + a, b, zi)))(x)


LSTM_SHAPES, SCAN_SHAPES = ((2, 5, 4, 4), (4, 1, 4, 4)), ((2, 5, 3), (2, 5, 3))
BY_PYTHON = {"MINRNN_JAX": "python"}


@pytest.mark.parametrize(
    ("function", "shapes", "variables"),
    [
        pytest.param(lstm, LSTM_SHAPES, {}, id="lstm"),
        pytest.param(lstm, LSTM_SHAPES, BY_PYTHON, id="lstm by Python", marks=pytest.mark.matrix_full),
        pytest.param(gradient, SCAN_SHAPES, {}, id="gradient", marks=pytest.mark.matrix_full),
        pytest.param(gradient, SCAN_SHAPES, BY_PYTHON, id="gradient by Python"),
        # On a CPU by Python in any case.
        pytest.param(filtered, ((2, 3, 9), (3,), (3, 2), (2, 3, 2)), {}, id="filter", marks=pytest.mark.matrix_full),
    ],
)
def test_another_process_runs_it_before_any_call_of_its_own(
    function: Callable[..., Any], shapes: Any, variables: dict[str, str], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(0.1, 0.9, shape).astype(np.float32) for shape in shapes]
    exported = export.export(jax.jit(function), disabled_checks=SAFE)(*arrays)
    (tmp_path / "program").write_bytes(exported.serialize())
    np.savez(tmp_path / "arrays.npz", *arrays)
    environment = {**os.environ, **variables, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    files = [str(tmp_path / name) for name in ("program", "arrays.npz", "results.npy")]
    done = subprocess.run([sys.executable, "-c", SECOND, *files], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    np.testing.assert_allclose(np.load(tmp_path / "results.npy"), function(*arrays), rtol=1e-6, atol=1e-6)


def test_export_wants_to_be_told_of_the_target() -> None:
    x = np.zeros((2, 5, 3), np.float32)
    with pytest.raises(ValueError, match="minrnn_gen"):
        export.export(jax.jit(gradient))(x, x)


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        (lambda x: front.recurrence(SPEC, x, jnp.zeros((4, 1, 4, 4), jnp.float32))[0], "b, 5, 4, 4"),
        (lambda x: front.recurrence(SPEC, x, jnp.zeros((4, 1, 4, 4), jnp.float32))[0], "2, t, 4, 4"),
        (lambda x: front.step({"model": "min_gru", "hidden_size": 4}, x)[0], "b, 2, 4"),
        (lambda x: front.scan(x, x)[0], "b, 5, 3"),
        (lambda x: front.lfilter(x, jnp.ones(2), jnp.ones(2)), "b, 5, 3"),
        (lambda x: LAYER.apply(LAYER.init(jax.random.key(0)), x)[0], "b, 5, 3"),
    ],
    ids=["recurrence", "time", "step", "scan", "filter", "layer"],
)
def test_symbolic_sizes_are_refused_in_a_sentence(call: Callable[[Any], Any], shape: str) -> None:
    x = jax.ShapeDtypeStruct(export.symbolic_shape(shape), jnp.float32)
    with pytest.raises(BadInput, match=r"has shape \[.*\], whose sizes are symbols, but .*export one for each size"):
        export.export(jax.jit(call), disabled_checks=SAFE)(x)


_UNREAD = """
import sys
import jax, numpy
import minrnn_gen.jax as front
layer = front.RNN("lstm", 4, 6, num_layers=2)
params = layer.init(jax.random.key(0))
run = jax.jit(lambda x: layer.apply(params, x)[0])
y = run(numpy.ones((2, 5, 4), "f"))
"""


def test_a_process_ends_whose_last_results_nobody_read() -> None:
    subprocess.run([sys.executable, "-c", _UNREAD], check=True, cwd=Path(__file__).parents[2], timeout=within(60))
