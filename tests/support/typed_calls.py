"""Calls for a type checker, checked by mypy: an ignored error that is none is an error."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import minrnn_gen
import minrnn_gen.torch

Array = NDArray[np.float32]


def right(x: Array, x_t: Array) -> None:
    """Calls that are right, and the types of their results."""
    kernel = minrnn_gen.compile({"model": "min_gru"}, hidden_size=64, precision="bf16", gpu=None, tune=False)
    assert_type(kernel, minrnn_gen.Kernel)
    y, state = kernel(x)
    assert_type(y, Array)
    assert_type(state, dict[str, Any])
    assert_type(kernel.step(x_t)[0], Array)
    assert_type(kernel.forward(x)[0], Array)
    output, _ = minrnn_gen.torch.RNN("gru", 32, 64)(x)
    assert_type(output, Array)
    assert_type(minrnn_gen.torch.nn.LSTM(32, 64)(x)[0], Array)


def wrong() -> None:
    """Calls that are wrong: each is told."""
    minrnn_gen.compile("spec.yaml", precison="bf16")  # type: ignore[call-arg]
    minrnn_gen.compile("spec.yaml", precision="bf61")  # type: ignore[arg-type]
    minrnn_gen.compile("spec.yaml", hidden_size="64")  # type: ignore[arg-type]
    minrnn_gen.compile("spec.yaml", layout="btd")  # type: ignore[arg-type]
    minrnn_gen.compile("spec.yaml", training="yes")  # type: ignore[arg-type]
    minrnn_gen.torch.RNN("gru", 32, 64, bidirectoinal=True)  # type: ignore[call-arg]
