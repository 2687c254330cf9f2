"""Cells need SymPy only to prove that something cancels; cells of the library do not need it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.cell_evaluation import cell_of

from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.files import library_names, vector_library_names

# Nothing is compiled: NVRTC knows nothing of cells.
WITHOUT = """
import json, sys
sys.modules |= {"sympy": None, "cupy": None, "cupy_backends": None}
from dataclasses import replace
from minrnn_gen.api import builder_for
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import BadInput, Infeasible
from minrnn_gen.run.target import target_of

refused = []
for keys in json.loads(sys.argv[1]):
    spec = load_spec({"hidden_size": 64, **keys}, gpu="h100")
    builder = builder_for(spec, target_of(spec))
    try:
        for kernel_pass in ("forward", "backward", "step"):
            for states_out in ("none", "storage", "arithmetic"):
                _ = builder.lowered_for(kernel_pass), builder.programs.shape(kernel_pass, states_out)
            source = builder.build(builder.key_of(kernel_pass, builder.hinted_specialization)).source
            assert source.startswith("//"), source[:80]
    except BadInput as why:
        refused.append([keys["model"], str(why)])
print(json.dumps(refused))
"""


def built_without_sympy(specs: list[dict[str, Any]], cache: Path) -> list[tuple[str, str]]:
    """Build every pass of specs in a process that has no SymPy; returns the models that were refused, and why."""
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT, json.dumps(specs)],
        env={"PATH": "", "MINRNN_CACHE_DIR": str(cache), "PYTHONPATH": ":".join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return [(model, why) for model, why in json.loads(process.stdout)]


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.matrix_full), "bf16"])
def test_no_cell_of_the_library_needs_sympy(precision: str, tmp_path: Path) -> None:
    specs = [{"model": name, "precision": precision} for name in library_names()]
    specs += [{"model": name, "precision": precision, "state_size": 4} for name in vector_library_names()]
    assert built_without_sympy(specs, tmp_path) == []


def test_nor_does_any_in_log_space(tmp_path: Path) -> None:
    specs = [{"model": name, "precision": "fp32", "scan_arithmetic": "log"} for name in library_names()]
    refused = dict(built_without_sympy(specs, tmp_path))
    assert not {"min_gru_log", "min_lstm_log"} & set(refused)
    assert all("'log'" in why for why in refused.values())


def test_what_cancels_is_proved_zero_and_nothing_else() -> None:
    text = "z = sigmoid(W.z)\nh[t] = {} + W.h"
    assert classify(cell_of(text.format("h[t-1] * (z + 1) * (z + 2) * h[t-1] - (z * z + 3 * z + 2) * h[t-1] * h[t-1]"))).a
    assert not classify(cell_of(text.format("h[t-1] * (z + 1) * (z + 2) * h[t-1] - (z * z + 3 * z) * h[t-1] * h[t-1]"))).a


def test_a_product_of_inputs_and_numbers_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minrnn_gen.cell.zeros", None)
    for factor in ("u", "-u", "2 * u * W.x", "u / W.x", "(u * W.x) ** 2"):
        assert classify(cell_of(f"h[t] = tanh({factor} * h[t-1] + W.x)", parameters=["u"])).kind == "diagonal"
    with pytest.raises(ImportError):  # the name of a value may stand for zero
        classify(cell_of("v = W.x - W.x\nh[t] = tanh(v * h[t-1] + W.x)"))
