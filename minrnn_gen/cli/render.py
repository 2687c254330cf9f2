"""`minrnn-gen render`: the generated CUDA, on stdout."""

from __future__ import annotations

import sys

from minrnn_gen.cli.request import Assignments, GpuName, Pass, SpecPath, WhichPass, read_request


def render(spec: SpecPath, gpu: GpuName = None, assignments: Assignments = None, which: WhichPass = Pass.FORWARD) -> None:
    """Print the generated CUDA; needs neither GPU nor NVRTC."""
    request = read_request(spec, gpu, assignments)
    built = request.compile_pass(which)
    request.say_default()
    sys.stdout.write(built.source)
