"""The search space of scan_step.cu.j2."""

from __future__ import annotations

from minrnn_gen.plan.step import family

FAMILY = family("scan_step")
