"""`minrnn-gen explain`: the decision in words."""

from __future__ import annotations

import sys

from minrnn_gen.cli.request import Assignments, GpuName, Pass, SpecPath, WhichPass, read_request


def explain(spec: SpecPath, gpu: GpuName = None, assignments: Assignments = None, which: WhichPass = Pass.FORWARD) -> None:
    """Say what was decided, and why."""
    from minrnn_gen.build.explain import explain as in_words

    request = read_request(spec, gpu, assignments)
    built = request.compile_pass(which)
    sys.stdout.write(in_words(built, note=f", {request.gpu_choice}") + "\n")
