"""Probe of one baseline, in a process of its own: `python -m MODULE BASELINE`; the last line printed is why it fails."""

from __future__ import annotations

import sys

from benchmarks.contenders.baselines import baseline_of, load
from benchmarks.harness.gpu import open_gpu
from benchmarks.harness.rounds import failure_of

# Small, and within every baseline's limits: a power of two of at least 32 steps, and channels enough for a block.
BATCH, TIME, CHANNELS = 2, 128, 64


def main(name: str) -> int:
    """Return the exit status: 0 where the baseline called `name` builds and runs here."""
    try:
        gpu, baseline = open_gpu(), baseline_of(name)
        shape = (BATCH, TIME, CHANNELS) if baseline.layout == "B,T,C" else (BATCH, CHANNELS, TIME)
        coefficients = gpu.uniform(*shape)
        load(baseline)(coefficients.log() if baseline.takes_log_a else coefficients, gpu.normal(*shape))
        gpu.finish()
    except Exception as error:
        print(failure_of(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
