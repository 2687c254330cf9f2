"""The NumPy cells beside plain loops over the equations of their paper, and their signatures on the CPU and on a GPU."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minrnn_gen.compat import numpy_cells
from minrnn_gen.compat.numpy_cells import LinearLayer, MinGRUCell, MinGRUCellCUDA, MinLSTMCell, MinLSTMCellCUDA
from minrnn_gen.errors import BadInput, ToolchainMissing

Array = Any
INPUTS, HIDDEN, TIME = 3, 4, 9
CELLS = [(MinGRUCell, MinGRUCellCUDA), (MinLSTMCell, MinLSTMCellCUDA)]


def sigmoid(v: Array) -> Array:
    return 1 / (1 + np.exp(-v))


def coefficients(cell: Any, x: Array) -> tuple[Array, Array]:
    """Return a and b of every step, by the layers' own product."""
    if hasattr(cell, "linear_z"):
        z = sigmoid(cell.linear_z.forward(x))
        return 1 - z, z * cell.linear_h.forward(x)
    f, i = sigmoid(cell.linear_f.forward(x)), sigmoid(cell.linear_i.forward(x))
    return f / (f + i), i / (f + i) * cell.linear_h.forward(x)


def loop(cell: Any, x: Array, h: Array) -> Array:
    after = []
    for a, b in zip(*coefficients(cell, x), strict=True):
        h = a * h + b
        after.append(h)
    return np.array(after)


@pytest.fixture
def inputs() -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    return random.standard_normal((TIME, INPUTS)), random.standard_normal(HIDDEN)


@pytest.fixture
def a_gpu_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = {"to_device": lambda array: array, "to_host": lambda array: array}
    monkeypatch.setattr(numpy_cells, "device", SimpleNamespace(live_device=lambda: True))
    monkeypatch.setattr(numpy_cells, "memory", SimpleNamespace(**copies))


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("kinds", CELLS)
@pytest.mark.usefixtures("a_gpu_that_is_none")
def test_of_every_method(kinds: tuple[Any, Any], on_gpu: bool, inputs: tuple[Array, Array]) -> None:
    cell, (x, h0) = kinds[on_gpu](INPUTS, HIDDEN), inputs
    dtype, atol = (np.float32, 1e-6) if on_gpu else (np.float64, 1e-14)
    a, b = coefficients(cell, x)
    expected = loop(cell, x, h0)
    for got, wanted in (
        (cell.forward(x[0], h0), expected[0]),
        (cell.process_sequence(x, h0), expected),
        (cell.process_sequence_parallel(x, h0, TIME), expected),
        (cell.process_sequence(x, h0, 4), expected[:4]),
        (cell.process_sequence(x), loop(cell, x, np.zeros(HIDDEN))),
        (cell.extract_scan_params(x)[0], a),
        (cell.extract_scan_params(x, 2)[1], b[:2]),
    ):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", [one for one, _ in CELLS])
def test_weights_are_read_when_they_are_used(kind: Any, inputs: tuple[Array, Array]) -> None:
    cell, (x, h0) = kind(INPUTS, HIDDEN), inputs
    cell.process_sequence(x, h0)
    cell.linear_h.weights[...] = 1
    np.testing.assert_allclose(cell.process_sequence(x, h0), loop(cell, x, h0), rtol=0, atol=1e-14)
    cell.linear_h.bias = np.arange(HIDDEN)
    np.testing.assert_allclose(cell.process_sequence(x, h0), loop(cell, x, h0), rtol=0, atol=1e-14)
    cell.linear_h = LinearLayer(INPUTS, HIDDEN)
    np.testing.assert_allclose(cell.forward(x[0], h0), loop(cell, x, h0)[0], rtol=0, atol=1e-14)


def test_a_gate_that_is_0_is_no_division_by_0() -> None:
    cell = MinLSTMCell(INPUTS, HIDDEN)
    cell.linear_f.bias[:] = cell.linear_i.bias[:] = -1000
    a, _ = cell.extract_scan_params(np.zeros((2, INPUTS)))
    assert (a == 0.5).all()


@pytest.mark.parametrize("kind", [MinGRUCellCUDA, MinLSTMCellCUDA])
def test_without_a_gpu(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_cells, "device", SimpleNamespace(live_device=lambda: None))
    with pytest.raises(ToolchainMissing, match=f"{kind.__name__} needs a GPU and CuPy; take {kind.__name__[:-4]},"):
        kind(INPUTS, HIDDEN)


def test_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; import minrnn_gen.compat.numpy_cells as cells; print(cells.MinGRUCell(2, 3))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_what_does_not_fit_is_said(inputs: tuple[Array, Array]) -> None:
    cell, (x, h0) = MinGRUCell(INPUTS, HIDDEN), inputs
    wrong = MinGRUCell(INPUTS, HIDDEN)
    wrong.linear_z.weights = np.zeros((HIDDEN, HIDDEN))
    for call, message in (
        (lambda: cell.process_sequence(x[0], h0), r"x has shape \[3\]; \[steps, 3\] is expected"),
        (lambda: cell.process_sequence(x, x), r"h0 has shape \[9, 3\]; \[4\] is expected"),
        (lambda: cell.process_sequence(x, h0, 10), "seq_length is 10, but x has 9 steps"),
        (lambda: cell.forward(x, h0), r"x_t has shape \[9, 3\]; \[3\] is expected"),
        (lambda: cell.forward(x[0] + 1j, h0), "x_t has dtype complex128"),
        (lambda: cell.process_sequence([[1.0], [1.0, 2.0]]), "x is a list that is no array"),
        (lambda: wrong.forward(x[0], h0), r"linear_z.weights has shape \[4, 4\]; \[4, 3\] is expected"),
    ):
        with pytest.raises(BadInput, match=message):
            call()


@pytest.mark.parametrize("size", [None, "3", 3.0, True, 0, -1, [3]])
def test_sizes_are_integers(size: Any) -> None:
    for sizes in ((size, 3), (3, size)):
        with pytest.raises(BadInput, match=r"_size is .*; an integer from 1 on is expected"):
            MinGRUCell(*sizes)
