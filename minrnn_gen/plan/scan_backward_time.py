"""The search space of scan_backward_time.cu.j2."""

from __future__ import annotations

from minrnn_gen.plan.scan_time import family

FAMILY = family("scan_backward_time")
