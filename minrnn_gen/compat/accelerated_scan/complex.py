"""accelerated_scan.complex."""

from __future__ import annotations

from typing import Any

from minrnn_gen.compat.accelerated_scan.channels import scan_channels
from minrnn_gen.errors import BadInput
from minrnn_gen.torch.tensors import check_tensor


def scan(forget: Any, inputs: Any) -> Any:
    """Return h[t] = forget[t] h[t-1] + inputs[t] from h = 0 on, with gradients of both in torch's convention.

    forget, inputs and the result [B, C, T], forget complex64 or complex128, inputs the same or real. Raises BadInput for
    tensors that do not fit.
    """
    for name, tensor in (("forget", forget), ("inputs", inputs)):
        check_tensor(tensor, name)
    if not forget.is_complex():
        raise BadInput(f"forget has dtype {forget.dtype}; complex64 or complex128 is expected, or take the module scalar")
    return scan_channels({"forget": forget, "inputs": inputs.to(forget.dtype) if inputs.is_floating_point() else inputs})
