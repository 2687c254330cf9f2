"""Whether a peer builds and runs here: `python -m MODULE PEER`; if not, the reason is the last line printed."""

from __future__ import annotations

import sys

from minrnn_gen.bench.contenders.baselines import load, peer_of
from minrnn_gen.bench.harness.gpu import open_gpu
from minrnn_gen.bench.harness.rounds import failure_of

# Small, and within every peer's limits: a power of two of at least 32 steps, and channels enough for a block.
BATCH, TIME, CHANNELS = 2, 128, 64


def main(name: str) -> int:
    """Try the peer called `name` and return the exit status."""
    try:
        gpu, peer = open_gpu(), peer_of(name)
        shape = (BATCH, TIME, CHANNELS) if peer.layout == "B,T,C" else (BATCH, CHANNELS, TIME)
        coefficients = gpu.uniform(*shape)
        load(peer)(coefficients.log() if peer.takes_log_a else coefficients, gpu.normal(*shape))
        gpu.finish()
    except Exception as error:
        print(failure_of(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
