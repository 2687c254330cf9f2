"""Inputs of kernels in tests: gates drawn where scans go wrong, and their arrangement in every layout.

With gates in (0, 1) drawn uniformly a state is forgotten within 64 steps, and a scan whose carry between tiles is broken
returns the right numbers. So states have to be kept: for thousands of steps, exactly, with changing signs, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from support.oracle import CELLS

Array = Any  # of numpy or cupy

LAYOUTS = ("BTD", "TBD", "BDT")
# From [T, B, G, H] and from [T, B, H] to each layout.
_X_ORDER = {"BTD": (1, 0, 2, 3), "TBD": (0, 1, 2, 3), "BDT": (1, 2, 3, 0)}
_Y_ORDER = {"BTD": (1, 0, 2), "TBD": (0, 1, 2), "BDT": (1, 2, 0)}

# The sign of the pre-activation that keeps the state, for the gates that decide it.
_KEEPS = {
    "min_gru": {"z": -1},
    "min_gru_log": {"z": -1},
    "min_gru_tanh": {"z": -1},
    "min_lstm": {"f": 1, "i": -1},
    "min_lstm_log": {"f": 1, "i": -1},
    "hgrn": {"f": 1},
    "qrnn": {"f": 1},
    "rg_lru": {"r": -1},
}
# Pre-activations of the deciding gates; sigmoid(6) is 0.9975, sigmoid(11) is 0.99998, sigmoid(100) is 1 in every precision.
GATE_KINDS = ("ordinary", "slow", "slower", "saturated", "alternating", "wild", "zero")
# The coefficient a of h[t] = a h[t-1] + b itself.
RAW_KINDS = ("slow", "slower", "one", "zero", "signs", "mixed", "denormal", "fp16_denormal", "powers")


def drawn_gates(cell: str, kind: str, seed: int, shape: tuple[int, int, int]) -> dict[str, Array]:
    """Return {gate: [T, B, H]} in float64 for a built-in cell; `kind` is one of `GATE_KINDS`."""
    random = np.random.default_rng(seed)
    gates = {name: random.normal(size=shape) for name in CELLS[cell].gates}
    for name, sign in _KEEPS[cell].items():
        noise = gates[name]
        if kind == "wild":
            gates = {each: 40 * value for each, value in gates.items()}
            break
        gates[name] = {
            "ordinary": noise,
            "slow": sign * (6 + noise / 2),
            "slower": sign * (11 + noise / 2),
            "saturated": sign * 100 + noise,
            "alternating": 12 * np.sign(noise),
            "zero": np.zeros(shape),
        }[kind]
    return gates


def drawn_coefficients(kind: str, seed: int, shape: tuple[int, int, int]) -> dict[str, Array]:
    """Return {"a", "b"}: [T, B, H] in float64 for the raw cell; `kind` is one of `RAW_KINDS`."""
    random = np.random.default_rng(seed)
    b = random.normal(size=shape)
    a = {
        "slow": random.uniform(0.99, 1, shape),
        "slower": random.uniform(0.9999, 1, shape),
        "one": np.ones(shape),
        "zero": np.zeros(shape),
        "signs": random.choice([-1.0, 1.0], shape),
        "mixed": random.uniform(-1, 1, shape),
        "denormal": random.uniform(-1, 1, shape),
        "fp16_denormal": random.uniform(-1, 1, shape),
        "powers": 2.0 ** random.integers(-3, 2, shape),
    }[kind]
    if "denormal" in kind:
        # Numbers that fp32 and bf16, or fp16, have only as denormals.
        scale = 2.0**-20 if kind == "fp16_denormal" else 2.0**-130
        a, b = a * np.where(random.integers(0, 2, shape), scale, 1), b * scale
    return {"a": a, "b": b}


def drawn_parameters(cell: str, seed: int, hidden_size: int) -> dict[str, Array]:
    """Return {parameter: [H]} in float64."""
    random = np.random.default_rng([seed, 1])
    return {name: random.normal(size=hidden_size) for name in CELLS[cell].parameters}


def drawn_state(cell: str, seed: int, batch: int, hidden_size: int) -> dict[str, Array]:
    """Return {state: [B, H]} in float64, nowhere 0."""
    random = np.random.default_rng([seed, 2])
    size = random.uniform(0.5, 2, (batch, hidden_size))
    return {CELLS[cell].state: size * random.choice([-1.0, 1.0], size.shape)}


def arranged(xp: Any, gates: Mapping[str, Array], layout: str) -> Array:
    """Return x in `layout`, contiguous, of gates {name: [T, B, H]} in the order of the mapping."""
    return xp.ascontiguousarray(xp.stack(list(gates.values()), axis=2).transpose(_X_ORDER[layout]))


def by_time(y: Array, layout: str) -> Array:
    """Return y of `layout` as a view [T, B, H]."""
    order = _Y_ORDER[layout]
    return y.transpose([order.index(axis) for axis in range(3)])


def laid_out(y: Array, layout: str) -> Array:
    """Return [T, B, H] as a view in the order of `layout`."""
    return y.transpose(_Y_ORDER[layout])
