"""The GPU at hand as a measurer."""

from __future__ import annotations

from minrnn_gen import cuda
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.tune.measurer import Measurer


def open_measurer() -> Measurer:
    """Return what measures on the GPU here, in a process of its own; raises ToolchainMissing where there is none."""
    live = cuda.live_device()
    if live is None:
        why = "the one here needs CuPy, which is not installed" if cuda.has_device() else "none is found here"
        raise ToolchainMissing(f"tuning measures on a GPU, and {why}; 'minrnn-gen doctor' looks closer")
    raise ToolchainMissing(f"measuring on {live.name} is not there yet; kernels are picked by the model")
