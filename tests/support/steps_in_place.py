"""Exports whose check program repeats a step in place, on the CPU and by emulated kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from support.exported import check
from support.exported_launches import fake_library
from support.exported_runs import emulated_kernels, exported_of

import minrnn_gen

SIZES = (3, 8)
DENSE = ("lstm", "gru", "slstm", "elman")
OTHERS = ("min_gru", "min_lstm", "qrnn", "rg_lru", "ind_rnn")


@st.composite
def stepping_specs(draw: st.DrawFn) -> dict[str, Any]:
    """Specs of one direction, which have a step: cells whose units read each other's outputs, mostly."""
    spec = {
        "model": draw(st.sampled_from((*DENSE, *DENSE, *OTHERS))),
        "precision": draw(st.sampled_from(("fp64", "fp32", "fp16", "bf16"))),
        "layout": draw(st.sampled_from(("BTD", "TBD", "BDT"))),
        "direction": draw(st.sampled_from(("forward", "reverse"))),
        "training": False,
    }
    head_dim, heads = draw(st.integers(1, 100)), draw(st.integers(1, 2))
    spec |= {"hidden_size": head_dim * heads} | ({"heads": heads} if spec["model"] in DENSE else {})
    return spec


def check_steps_in_place(spec: Mapping[str, Any], folder: Path) -> None:
    """Build and run the check programs of a spec's exports; raises AssertionError with what they say."""
    for target in ("cpu", "cuda"):
        (folder / target).mkdir()
    kernel = minrnn_gen.compile(spec, gpu="h200")
    kernel.export(folder / "cpu", target="cpu", name="cell")
    ran = check(folder / "cpu", "rnn_cell")
    assert (ran.returncode, ran.stderr) == (0, ""), spec
    kernel.export(folder / "cuda", target="cuda", name="cell", partial=True, sizes=[SIZES])
    ran = check(folder / "cuda", "rnn_cell", **emulated(kernel, folder / "cuda", SIZES, "h200"))
    assert (ran.returncode, ran.stderr) == (0, ""), spec


def emulated(kernel: minrnn_gen.Kernel, folder: Path, sizes: tuple[int, int], gpu: str) -> dict[str, str]:
    """Return the environment in which an exported folder runs on a driver and a cuBLAS that compute on the host."""
    _, code = exported_of(kernel, [sizes], [gpu])
    libraries = fake_library(folder)
    fake_library(folder, "fake_cublas.c", "libcublas.so.13")
    return {
        "LD_LIBRARY_PATH": str(libraries),
        "FAKE_DRIVER_LOG": str(folder / "log"),
        "FAKE_DRIVER_CAPABILITY": str(code.gpus[0].capability),
        "FAKE_DRIVER_KERNELS": str(emulated_kernels(folder, kernel, code)),
    }
