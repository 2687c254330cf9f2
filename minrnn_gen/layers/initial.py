"""Initial values of layers in every library, for parameters that are not drawn uniformly over ±1/sqrt(H)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

# (module, drawn) to the values: torch or jax.numpy, and numbers of the parameter's shape, uniform over 0 to 1.
Start = Callable[[Any, Any], Any]

# Of rg_lru: the coefficient exp(-8 softplus(decay)) that a step has with an open gate is drawn from here, as its paper does,
# arXiv 2402.19427 section 2.4.
RG_LRU_RANGE = (0.9, 0.999)
RG_LRU_SHARPNESS = 8
# Of lif: a membrane keeps this part of itself in a step, uniform between time constants of 5 and of 25 steps: Bittar and
# Garner, A surrogate gradient spiking baseline for speech command recognition, Frontiers in Neuroscience 16, 2022.
LIF_RANGE = (math.exp(-1 / 5), math.exp(-1 / 25))
# Steps of state spaces are between these, uniform as logarithms, so that channels remember from about ten steps to a thousand:
# Gu and Dao, Mamba, arXiv 2312.00752, section 3.6, and Gu et al., S4D, arXiv 2206.11893.
STEP_LEAST, STEP_MOST = 0.001, 0.1
# Moduli of complex_lru, uniform over the ring between these, and phases over the whole circle: arXiv 2303.06349, section 3.3.
# gamma, sqrt(1 - modulus^2) there, is that of a modulus of 0.95.
RING = (0.9, 0.999)
GAMMA = math.sqrt(1 - 0.95**2)
# Poles of a biquad lie within the unit circle where |a2| < 1 and |a1| < 1 + a2.
BIQUAD_MOST = {"a1": 0.5, "a2": 0.4}


def _decays(module: Any, drawn: Any) -> Any:
    least, most = RG_LRU_RANGE
    return module.log(module.expm1(-module.log(least + (most - least) * drawn) / RG_LRU_SHARPNESS))


def _leaks(module: Any, drawn: Any) -> Any:
    """Return the numbers whose sigmoid is the kept part."""
    least, most = LIF_RANGE
    kept = least + (most - least) * drawn
    return module.log(kept / (1 - kept))


def _log_rates(module: Any, drawn: Any) -> Any:
    """The logarithms of the rates 1 to n, the real part of S4D's."""
    return module.log(module.cumsum(module.ones_like(drawn), -1))


def _log_steps(_: Any, drawn: Any) -> Any:
    return math.log(STEP_LEAST) + (math.log(STEP_MOST) - math.log(STEP_LEAST)) * drawn


def _step_biases(module: Any, drawn: Any) -> Any:
    """Biases whose softplus is the step."""
    step = module.exp(_log_steps(module, drawn))
    return step + module.log(-module.expm1(-step))


def _log_log_moduli(module: Any, drawn: Any) -> Any:
    least, most = RING
    return module.log(-module.log(least**2 + (most**2 - least**2) * drawn) / 2)


def _phases(_: Any, drawn: Any) -> Any:
    return 2 * math.pi * drawn


def _drawn(_: Any, drawn: Any) -> Any:
    return drawn


def _of_gamma(module: Any, drawn: Any) -> Any:
    return GAMMA * module.ones_like(drawn)


def _within(bound: float) -> Start:
    """Return a start that is uniform over ±bound."""
    return lambda _, drawn: bound * (2 * drawn - 1)


def _ones(module: Any, drawn: Any) -> Any:
    return module.ones_like(drawn)


def _of_variance_one(_: Any, drawn: Any) -> Any:
    return math.sqrt(3) * (2 * drawn - 1)


# Vectors of built-in cells with initial values of their own: cell, vector.
VECTOR_STARTS: dict[tuple[str, str], Start] = {
    ("rg_lru", "decay"): _decays,
    ("lif", "decay"): _leaks,
    ("recurrent_lif", "decay"): _leaks,
    ("selective", "a"): _log_rates,
    ("selective", "d"): _ones,
    ("s4d", "a"): _log_rates,
    ("s4d", "step"): _log_steps,
    ("s4d", "c"): _of_variance_one,
    ("s4d", "d"): _ones,
    ("biquad", "b0"): _ones,
    **{("biquad", name): _within(bound) for name, bound in BIQUAD_MOST.items()},
    ("complex_lru", "nu"): _log_log_moduli,
    ("complex_lru", "theta"): _phases,
    ("complex_lru", "gamma"): _of_gamma,
    ("complex_lru", "c"): _of_variance_one,
    ("complex_lru", "d"): _of_variance_one,
    # As torch's convolution of 4 taps.
    **{("conv_min_gru", f"c{tap}"): _within(0.5) for tap in range(4)},
    ("linoss", "stiffness"): _drawn,
    ("linoss", "step"): _drawn,
}
# The same of input-side biases: cell, gate.
GATE_STARTS: dict[tuple[str, str], Start] = {("selective", "dt"): _step_biases}
# Inputs S.* that callers scale by n^(-1/2): cell, input.
SCALED_INPUTS = {("gated_linear", "q")}
