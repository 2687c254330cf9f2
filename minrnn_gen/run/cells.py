"""The run of each family of kernels."""

from __future__ import annotations

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.projected import Projects
from minrnn_gen.call.interface import Interface
from minrnn_gen.run.backend import Backend
from minrnn_gen.run.cell_run import CellRun
from minrnn_gen.run.dense.runs import DenseRun
from minrnn_gen.run.scan.runs import ScanRun
from minrnn_gen.run.vectors.runs import VectorsRun


def run_of(interface: Interface, builder: Builder, backend: Backend, projects: Projects) -> CellRun:
    """Return the run of a builder's kernels; `projects` decides which scans multiply x themselves."""
    match builder.family:
        case "scan" | "diagonal":
            return ScanRun(interface, builder, projects)
        case "dense":
            return DenseRun(interface, builder, backend)
        case "vectors":
            return VectorsRun(interface, builder)
