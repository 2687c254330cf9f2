"""The search space of scan_backward_channels.cu.j2."""

from __future__ import annotations

from minrnn_gen.plan.scan_channels import family

FAMILY = family("scan_backward_channels")
