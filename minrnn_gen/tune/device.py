"""The GPU at hand as a measurer."""

from __future__ import annotations

import sys

from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.gpu import device
from minrnn_gen.tune.measurer import Measurer
from minrnn_gen.tune.subprocess import ChildMeasurer

# Not imported here: another process measures.
CHILD = (sys.executable, "-m", "minrnn_gen.tune.worker")


def open_measurer() -> Measurer:
    """Return a measurer for the GPU here, in a process of its own; raises ToolchainMissing where there is none."""
    if device.live_device() is None:
        raise ToolchainMissing(
            f"tuning measures on a GPU, but {device.why_no_gpu()}; run 'minrnn-gen doctor' to check the installation"
        )
    return ChildMeasurer(CHILD)
