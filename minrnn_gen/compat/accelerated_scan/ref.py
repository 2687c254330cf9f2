"""accelerated_scan.ref."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minrnn_gen.compat.accelerated_scan.channels import scan_channels
from minrnn_gen.errors import BadInput, shown

_OPERATIONS = {"mul": torch.mul, "add": torch.add, "zeros_like": torch.zeros_like, "ones_like": torch.ones_like}


def scan(
    gates: Any,
    tokens: Any,
    mul: Callable[..., Any] = torch.mul,
    add: Callable[..., Any] = torch.add,
    zeros_like: Callable[..., Any] = torch.zeros_like,
    ones_like: Callable[..., Any] = torch.ones_like,
    reverse: bool = False,
) -> Any:
    """Return the same as `accelerated_scan.warp.scan`; in reverse h[t] = gates[t] h[t+1] + tokens[t].

    Operations other than torch's own are refused: they are another recurrence. Raises BadInput for tensors that do not fit.
    """
    passed = {"mul": mul, "add": add, "zeros_like": zeros_like, "ones_like": ones_like}
    for name, function in passed.items():
        if function is not _OPERATIONS[name]:
            raise BadInput(f"{name} is {shown(function)}; only torch.{name} is supported, leave it out")
    if not isinstance(reverse, bool):
        raise BadInput(f"reverse is {shown(reverse)}; True or False is expected")
    return scan_channels({"gates": gates, "tokens": tokens}, reverse)
