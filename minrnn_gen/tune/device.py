"""The GPU at hand as a measurer."""

from __future__ import annotations

import sys

from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.gpu import device
from minrnn_gen.gpu.driver import has_device
from minrnn_gen.tune.measurer import Measurer
from minrnn_gen.tune.subprocess import ChildMeasurer

# Not imported here: what measures is another process.
CHILD = (sys.executable, "-m", "minrnn_gen.tune.worker")


def open_measurer() -> Measurer:
    """Return what measures on the GPU here, in a process of its own; raises ToolchainMissing where there is none."""
    if device.live_device() is None:
        why = "the one here needs CuPy, which is not installed" if has_device() else "none is found here"
        raise ToolchainMissing(f"tuning measures on a GPU, and {why}; 'minrnn-gen doctor' looks closer")
    return ChildMeasurer(CHILD)
