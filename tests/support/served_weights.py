"""Weights of the model that `examples/serve` serves, drawn, and as the file that it reads."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np


def weights() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(11)
    hidden, inputs = 64, 32
    shapes = {
        "embedding": (256, inputs),
        "weight_ih": (3 * hidden, inputs),
        "bias_ih": (3 * hidden,),
        "weight_hh": (3 * hidden, hidden),
        "bias_hh": (3 * hidden,),
        "head": (256, hidden),
    }
    return {
        name: (generator.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32) * 2 for name, shape in shapes.items()
    }


def write_safetensors(path: Path, arrays: dict[str, np.ndarray]) -> None:
    entries, first = {}, 0
    for name, array in arrays.items():
        entries[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [first, first + array.nbytes]}
        first += array.nbytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"".join(array.tobytes() for array in arrays.values()))
