"""Cells of coupled states in the kernels that run them, thread by thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.small_problems import WantedBuilder

from minrnn_gen.build.store import Store
from minrnn_gen.build.target import Target
from minrnn_gen.cell.files import coupled_library_names
from minrnn_gen.config.spec import load_spec
from minrnn_gen.interpret.backend import EmulatedBackend
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.interpret.verify import Verification
from minrnn_gen.kernel import Kernel

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

WAYS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("biquad", {"hidden_size": 3, "precision": "fp32", "layout": "BDT"}, "h200"),
    ("complex_lru", {"hidden_size": 40, "precision": "bf16", "direction": "bidirectional"}, "h100"),
    ("conv_min_gru", {"hidden_size": 24, "precision": "fp32", "layout": "TBD", "input_size": 8}, "h200"),
    ("holt", {"hidden_size": 33, "precision": "fp16", "direction": "reverse"}, "a100"),
    ("linoss", {"hidden_size": 24, "precision": "fp64"}, "t4"),
)


@pytest.mark.matrix_full
@pytest.mark.parametrize(("model", "options", "gpu"), WAYS)
def test_kernels_of_coupled_states_are_right(model: str, options: dict[str, Any], gpu: str) -> None:
    """Against float64, without a race, whatever the order in which threads run."""
    spec = load_spec({"model": model, "batch": 3, "time": 5, **options})
    verdicts = list(Verification(spec, Target.named(gpu), candidates=1).run())
    assert verdicts and [verdict for verdict in verdicts if not verdict.is_right] == []


ROTATION = """
u[t] = p * u[t-1] - q * v[t-1] + W.a
v[t] = q * u[t-1] + p * v[t-1] + W.b
"""


@pytest.mark.matrix_full
def test_a_rotation_of_modulus_1_keeps_its_digits(tmp_path: Path) -> None:
    """Over many tiles, all of which repeat the error of the same power."""
    time = 1 << 15
    model = {"name": "rotating", "equations": ROTATION, "parameters": ["p", "q"], "gates": ["a", "b"]}
    spec = load_spec({"model": model, "hidden_size": 1, "precision": "fp32", "layout": "BDT", "batch": 1, "time": time})
    wanted = (("threads", 64), ("stages", 16), ("chunk_tiles", 1))
    builder = WantedBuilder(spec, Target.named("h200"), Store(tmp_path), wanted=wanted)
    kernel = Kernel(builder, (), EmulatedBackend(builder, ()))
    turn = np.complex64(np.exp(0.3j))
    x = np.random.default_rng(0).normal(size=(1, 2, 1, time)).astype(np.float32)
    y, _ = kernel(x, parameters={"p": turn.real.reshape(1), "q": turn.imag.reshape(1)})
    state, exact = np.clongdouble(0), np.empty(time, np.clongdouble)
    for step, value in enumerate(x[0, 0, 0].astype(np.clongdouble) + 1j * x[0, 1, 0]):
        state = exact[step] = turn * state + value
    # Of tiles in float32 that repeat no error: a prototype's.
    assert np.abs(y[0, 0] - exact.real).max() <= 1e-4 * np.abs(exact).max()


def test_every_coupled_cell_is_tried() -> None:
    assert tuple(model for model, _, _ in WAYS) == coupled_library_names()
