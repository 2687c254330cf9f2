"""Kernels of an export outside the recurrence take as many arguments as its C gives them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.c_programs import needs_c_compiler
from support.exported import check
from support.exported_launches import OTHER_KERNELS, fake_library, not_compiled
from support.uncompiled_kernels import one_for_all_sizes

import minrnn_gen
from minrnn_gen.codegen.render import Gradients, Types, render_gradients
from minrnn_gen.export.source import MOVES, MOVES_SLOTS

pytestmark = needs_c_compiler

SPECS: dict[str, dict[str, Any]] = {
    "vectors": {"model": "selective", "hidden_size": 32, "state_size": 4, "groups": 2, "precision": "bf16"},
    "dense": {"model": "lstm", "hidden_size": 64, "heads": 2, "precision": "bf16", "input_size": 12},
    "projected": {"model": "lstm_projected", "hidden_size": 24, "projection_size": 8, "precision": "bf16"},
}
# Words of a launch in the log before its arguments.
BEFORE_ARGUMENTS = 12


def parameters_of(source: str) -> dict[str, int]:
    """Return the number of parameters of each kernel in CUDA."""
    code = re.sub(r"//.*", "", source)
    kernels = re.findall(r'extern "C" __global__ void (?:__launch_bounds__\(.*?\) )?(\w+)\((.*?)\) \{', code, re.DOTALL)
    return {name: parameters.count(",") + 1 for name, parameters in kernels}


def test_launches_have_as_many_arguments_as_kernels_have_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver reads as many arguments as a kernel has: too few are whatever lies behind them, and more shift in silence."""
    monkeypatch.setenv("MINRNN_CACHE_DIR", str(tmp_path / "cache"))
    for module in ("build.builder", "export.cuda"):
        monkeypatch.setattr(f"minrnn_gen.{module}.compile_source", not_compiled)
    monkeypatch.setattr("minrnn_gen.plan.size_classes.size_classes", one_for_all_sizes)
    monkeypatch.setattr("minrnn_gen.export.recorded.PRODUCTS_MOST", 0)
    others = parameters_of(render_gradients(Gradients(Types("sm_90", "float32", "float32"), moves=True, slots=True)))
    given = set()
    for name, spec in SPECS.items():
        folder = tmp_path / name
        minrnn_gen.compile(spec, gpu="h200").export(folder, target="cuda", name="cell", partial=True, sizes=[(3, 8)])
        libraries, log = fake_library(folder), folder / "log"
        fake_library(folder, "fake_cublas.c", "libcublas.so.13")
        check(folder, "rnn_cell", LD_LIBRARY_PATH=str(libraries), FAKE_DRIVER_LOG=str(log))
        launches = [line.split() for line in log.read_text().splitlines() if line.startswith("launch ")]
        given |= {(words[2], len(words) - BEFORE_ARGUMENTS) for words in launches if words[2] in others}
    assert given == {(entry, others[entry]) for entry in (*OTHER_KERNELS, *MOVES, *MOVES_SLOTS)}
