"""The search space of diagonal_step.cu.j2."""

from __future__ import annotations

from minrnn_gen.plan.step import family

FAMILY = family("diagonal_step")
