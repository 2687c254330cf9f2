"""The search space of diagonal_backward.cu.j2."""

from __future__ import annotations

from minrnn_gen.plan.diagonal import family

FAMILY = family("diagonal_backward")
