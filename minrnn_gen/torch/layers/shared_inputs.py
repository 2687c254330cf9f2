"""The inputs S.* of cells with n values per channel, which a layer computes as projections of its own input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from minrnn_gen.torch.tensors import autocasts


def project_shared(x: Any, weight: Any, bias: Any, shape: Sequence[int], has_directions: bool) -> tuple[Any, ...]:
    """Return all inputs S.* of x [..., I], by one product: each [..., groups, n], in both directions [..., 2, groups, n].

    weight [rows, I] and bias [rows], or None, in dtypes that are cast to that of x; `shape`: [names, groups, n].
    """
    weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
    if autocasts(x) and torch.get_autocast_dtype(x.device.type) is not x.dtype:  # a layer may have a precision of its own
        with torch.autocast(x.device.type, enabled=False):
            product = torch.nn.functional.linear(x, weight, bias)
    else:
        product = torch.nn.functional.linear(x, weight, bias)
    by_name = product.unflatten(-1, (*((2,) if has_directions else ()), *shape)).unbind(-3)
    return tuple(inputs.contiguous() for inputs in by_name)
