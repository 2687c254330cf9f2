"""First calls of layers at new sizes, on the GPU; from the checkout: `python -m benchmarks.first_calls`.

Each layer in two processes of its own: the first finds an empty cache, the second what the first one left. Libraries are loaded
and one small call and step of another layer is made before, so that what is timed is the plan, the compilation and the load.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

# (class, hidden size, batch, time, dtype)
CALLS = (
    ("LSTM", 512, 16, 1024, "float32"),
    ("LSTM", 1024, 256, 128, "bfloat16"),
    ("GRU", 256, 64, 256, "float16"),
    ("GRU", 128, 1, 1, "float32"),
    ("GRU", 768, 8, 512, "bfloat16"),
    ("MinGRU", 512, 1, 65536, "bfloat16"),
)


def seconds_of(call: Callable[[], Any]) -> float:
    """Return the seconds of a call until its results are there."""
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(name: str, hidden_size: int, batch: int, length: int, dtype: str) -> dict[str, float]:
    """Return the seconds of the first forward and of the first training step of a layer."""
    import torch

    import minrnn_gen.torch

    warm = minrnn_gen.torch.LSTM(16, 16, device="cuda")
    warm(torch.randn(2, 3, 16, device="cuda"))[0].sum().backward()
    layer = getattr(minrnn_gen.torch, name)(64, hidden_size, device="cuda", dtype=getattr(torch, dtype))
    x = torch.randn(batch, length, 64, device="cuda", dtype=getattr(torch, dtype))
    with torch.no_grad():
        forward = seconds_of(lambda: layer(x))
    return {"forward": forward, "step": seconds_of(lambda: layer(x)[0].sum().backward())}


def main() -> int:
    """Print the seconds of every call, in an empty cache and in the cache of another process."""
    if len(sys.argv) > 1:
        name, hidden_size, batch, length, dtype = json.loads(sys.argv[1])
        sys.stdout.write(json.dumps(measure(name, hidden_size, batch, length, dtype)))
        return 0
    for call in CALLS:
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, "-m", "benchmarks.first_calls", json.dumps(call)]
            environment = os.environ | {"MINRNN_CACHE_DIR": cache}
            new, met = (
                json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
                for _ in range(2)
            )
        name, hidden_size, batch, length, dtype = call
        sys.stdout.write(
            f"{name} {hidden_size}, {batch} x {length}, {dtype}: forward {new['forward']:.2f} s, step {new['step']:.2f} s; "
            f"in another process {met['forward']:.3f} s, {met['step']:.3f} s\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
