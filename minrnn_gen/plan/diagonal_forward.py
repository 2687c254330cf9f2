"""The search space of diagonal_forward.cu.j2."""

from __future__ import annotations

from minrnn_gen.plan.diagonal import family

FAMILY = family("diagonal_forward")
