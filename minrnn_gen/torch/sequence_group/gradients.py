"""Gradients of weights, each rank's from its own piece, summed over the group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from minrnn_gen.torch.sequence_group.group import member_of


def sum_gradients(parameters: Iterable[Any], sequence_group: Any) -> None:
    """Sum the gradients of `parameters` over the ranks of a group: each rank has those of its own piece of time.

    parameters: a model's, in the same order on all ranks. sequence_group: as a call takes it; of a mesh with several axes, the
    time axis: mesh["time"]. A parameter that requires grad and has none counts as zero. Sums, no averages. Raises BadInput for
    anything but a group.
    """
    member = member_of(sequence_group)
    by_dtype: dict[Any, list[Any]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            by_dtype.setdefault((parameter.grad.dtype, parameter.grad.device), []).append(parameter.grad)
    for gradients in by_dtype.values():
        # One message of each dtype.
        joined = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(joined, group=member.process_group)
        for gradient, summed in zip(gradients, joined.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))
