"""Gradients in torch and finite differences: along one drawn direction every day, element by element in the whole matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from support.examples import is_whole


def gradients_are_right(function: Callable[..., Any], tensors: Sequence[Any], **options: bool) -> bool:
    """Compare the gradients of a function at fp64 tensors with differences; raises an error that says which differs.

    `options` are those of torch.autograd.gradcheck.
    """
    return torch.autograd.gradcheck(function, tuple(tensors), fast_mode=not is_whole(), **options)
