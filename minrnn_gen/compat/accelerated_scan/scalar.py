"""accelerated_scan.scalar."""

from __future__ import annotations

from typing import Any

from minrnn_gen.compat.accelerated_scan.channels import scan_channels


def scan(forget: Any, inputs: Any) -> Any:
    """Return h[t] = forget[t] h[t-1] + inputs[t] from h = 0 on, as `accelerated_scan.warp.scan` does."""
    return scan_channels({"forget": forget, "inputs": inputs})
