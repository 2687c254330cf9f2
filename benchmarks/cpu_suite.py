"""The suite of `python -m benchmarks cpu`."""

from __future__ import annotations

import platform
from importlib import metadata

from benchmarks.report.cpu_record import CpuRecord
from minrnn_gen.build.c_compiler import c_compiler
from minrnn_gen.config.environment import thread_count
from minrnn_gen.errors import needing


def measure(quick: bool, busy: int = 0) -> CpuRecord:
    """Measure all tables, and a few sizes again while `busy` other processes compute.

    Raises ToolchainMissing where torch, or a C compiler, is not installed.
    """
    with needing("torch", "the benchmark", "pip install torch"):
        from benchmarks.contenders.cpu_layers import (
            cpu_name,
            rows_beside_processes,
            rows_of_layers,
            rows_of_raw_scans,
            rows_of_scan_layers,
        )
        from benchmarks.contenders.cpu_scans import rows_of_log_scans, rows_of_selective_scans
    c_compiler()
    versions = {"python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in ("minrnn-gen", "torch", "numpy")}
    return CpuRecord(
        command="python -m benchmarks cpu" + (" --quick" if quick else "") + (f" --busy {busy}" if busy else ""),
        cpu=cpu_name(),
        threads=thread_count(),
        versions=versions,
        rows=(
            *rows_of_raw_scans(quick),
            *rows_of_selective_scans(quick),
            *rows_of_log_scans(quick),
            *rows_of_scan_layers(quick),
            *rows_of_layers(quick),
            *rows_beside_processes(busy),
        ),
    )
