"""Backwards of many sequences, whose products share an operand, against NumPy in fp64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import minrnn_gen
from minrnn_gen.interpret.cases import Case, inputs_of
from minrnn_gen.interpret.verify import leaves
from minrnn_gen.kernel import Kernel

pytestmark = pytest.mark.gpu

# Relative error of a whole gradient, as in test_gradients; products in tf32 round their factors to 11 bits.
TOLERANCE = {"fp32": 2.0**-9, "fp16": 2.0**-8, "bf16": 2.0**-5}
# Kernels of one block and of clusters, of warps and of warpgroups; no number of sequences is a whole number of tiles.
CALLS: dict[str, tuple[dict[str, Any], Case]] = {
    "warpgroups": ({"model": "lstm", "hidden_size": 128, "input_size": 64, "precision": "bf16"}, Case(517, 9)),
    "resets": ({"model": "lstm", "hidden_size": 128, "input_size": 40, "precision": "fp16"}, Case(515, 11, True)),
    "tf32": (
        {"model": "lstm", "hidden_size": 64, "input_size": 33, "precision": "fp32", "fp32_product": "tf32"},
        Case(1027, 6),
    ),
    "both directions": (
        {"model": "lstm", "hidden_size": 64, "input_size": 24, "precision": "bf16", "direction": "bidirectional"},
        Case(1025, 7, True),
    ),
    "steps first": (
        {"model": "slstm", "hidden_size": 128, "input_size": 20, "precision": "bf16", "layout": "TBD"},
        Case(513, 8, True),
    ),
    "wide": (
        {"model": "lstm", "hidden_size": 256, "input_size": 48, "precision": "bf16", "recurrent_bias": True},
        Case(301, 6, True),
    ),
}


def gradients_of(
    kernel: Kernel, place: Callable[[Any], Any], forward: Mapping[str, Any], dy: Any, dstate: Any
) -> dict[str, Any]:
    placed = {name: {key: place(one) for key, one in value.items()} if isinstance(value, dict) else place(value)
              for name, value in forward.items()}  # fmt: skip
    _, _, saved = kernel.forward(**placed)
    return dict(leaves(kernel.backward(saved, place(dy), {name: place(state) for name, state in dstate.items()})))


@pytest.mark.parametrize("call", tuple(CALLS))
def test_gradients_of_joined_products(compiled: Callable[..., Kernel], call: str) -> None:
    torch = pytest.importorskip("torch")
    spec, case = CALLS[call]
    kernel = compiled(**spec)
    inputs = inputs_of(kernel.interface, case)

    def wide(array: Any) -> Any:
        return array if array.dtype.kind in "bi" else array.astype(np.float64)

    def on_gpu(array: Any) -> Any:
        return torch.from_numpy(wide(array)).to(getattr(torch, array.dtype.name)).cuda()

    found = gradients_of(kernel, on_gpu, inputs.forward, inputs.dy, inputs.dstate)
    assert "joined" in {key.kernel_pass for key in kernel.plans}
    exact = minrnn_gen.compile({**spec, "precision": "fp64", "fp32_product": "tf32x3"})
    expected = gradients_of(exact, wide, inputs.forward, inputs.dy, inputs.dstate)
    for name, gradient in expected.items():
        error = np.linalg.norm(found[name].double().cpu().numpy() - gradient) / np.linalg.norm(gradient)
        assert error <= TOLERANCE[spec["precision"]], (name, error)
