"""Kernels as files in a folder of the user's."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.output_files import refused_by_option, write_output
from minrnn_gen.config.spec import Spec


def write_kernel(built: BuiltKernel, spec: Spec, folder: str) -> list[str]:
    """Write <model>_<pass>_<arch>.cu, .cubin and .json to `folder` and return their paths.

    The name marks a reverse pass, and a forward that saves a backward's arrays or includes the projection.

    Each file is replaced as a whole or not at all; an existing link or pipe is written to. A folder that cannot be written is
    BadInput.
    """
    plan = built.plan
    contents = {"cu": built.source.encode(), "cubin": built.cubin or b"", "json": _description(built, spec)}
    direction = "_reverse" if plan.problem.specialization.reverse else ""
    # A forward that keeps the states for a backward is a kernel of its own.
    saving = "_saving" if plan.problem.kernel_pass == "forward" and plan.problem.specialization.states_out != "none" else ""
    projected = "_projected" if plan.problem.specialization.input_size else ""
    name = f"{plan.problem.model}_{plan.problem.kernel_pass}{projected}{saving}{direction}_{plan.problem.arch}"
    paths = [Path(folder) / f"{name}.{suffix}" for suffix in contents]
    with refused_by_option("--out", folder, "a folder"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        for path, content in zip(paths, contents.values(), strict=True):
            write_output(path, content)
    return [str(path) for path in paths]


def _description(built: BuiltKernel, spec: Spec) -> bytes:
    """Everything that a loader needs in addition to the cubin, and the decision; the same bytes for the same kernel."""
    described = {
        "entry": built.plan.entry,
        "digest": built.digest,
        "spec": json.loads(spec.canonical()),
        "plan": built.plan.to_json(),
        "kernels": [asdict(kernel) for kernel in built.resources or ()],
    }
    return json.dumps(described, indent=2, sort_keys=True).encode() + b"\n"
