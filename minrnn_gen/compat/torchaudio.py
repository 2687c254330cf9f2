"""torchaudio.functional.lfilter."""

from __future__ import annotations

from typing import Any

from minrnn_gen.errors import BadInput, shown
from minrnn_gen.torch.operators.filters import lfilter as filtered
from minrnn_gen.torch.tensors import check_devices, check_real


def lfilter(waveform: Any, a_coeffs: Any, b_coeffs: Any, clamp: bool = True, batching: bool = True) -> Any:
    """Return the filtered waveform [..., T], with gradients of all tensors; a gradient where `clamp` cuts is 0.

    a_coeffs, b_coeffs: [n + 1], coefficients of lower delays first; or [filters, n + 1]: with `batching` filter i takes the
    waveforms [..., i, T], without it every filter takes every waveform, and the result is [..., filters, T].
    clamp: cut the result to -1 to 1. Raises BadInput for arguments that do not fit.
    """
    check_real(waveform, "waveform")
    check_real(a_coeffs, "a_coeffs")
    check_real(b_coeffs, "b_coeffs")
    check_devices({"waveform": waveform, "a_coeffs": a_coeffs, "b_coeffs": b_coeffs})
    if not waveform.dim():
        raise BadInput("waveform has no axes; [..., T] is expected, with time as its last axis")
    for name, flag in (("clamp", clamp), ("batching", batching)):
        if not isinstance(flag, bool):
            raise BadInput(f"{name} is {shown(flag)}; True or False is expected")
    if a_coeffs.shape != b_coeffs.shape:
        raise BadInput(
            f"a_coeffs has shape {list(a_coeffs.shape)} and b_coeffs {list(b_coeffs.shape)}; two of one shape are expected"
        )
    if a_coeffs.dim() == 2 and not batching:
        waveform = waveform.unsqueeze(-2).expand(*waveform.shape[:-1], a_coeffs.shape[0], -1)
    y = filtered(waveform, a_coeffs, b_coeffs)
    return y.clamp(-1.0, 1.0) if clamp else y
