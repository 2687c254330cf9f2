"""Lowered scans over dual numbers: the programs of a step and of its gradient."""

from __future__ import annotations

from dataclasses import dataclass

from minrnn_gen.cell.program import Program

Pair = tuple[str, str]
"""A state, and the one that is its tangent in the scan."""


@dataclass(frozen=True)
class LoweredDual:
    """A cell whose states are pairs, as programs per element.

    `coefficients` gives `a_<number>` and `b_<number>` of each pair, their tangents `da_<number>` and `db_<number>`, and each of
    `carried`; `output` is as of a `LoweredScan`.
    """

    pairs: tuple[Pair, ...]
    coefficients: Program
    carried: tuple[str, ...]
    output: Program


@dataclass(frozen=True)
class LoweredDualBackward:
    """The gradient of a `LoweredDual`, as programs per element.

    `adjoint` gives `a_<number>` and `da_<number>` of each pair, and `f_<state>`, the gradients that y passes to the states
    before a step. `gradients` takes `gradient_state_<state>`, the gradients that later steps pass to the states after it, and
    gives the gradients of gates, parameters and inputs.
    """

    pairs: tuple[Pair, ...]
    adjoint: Program
    gradients: Program
