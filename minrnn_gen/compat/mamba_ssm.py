"""mamba_ssm's selective scan, its single step and the block around it, served by cells with n values per channel."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from minrnn_gen.compat.selective_kernels import (
    Sizes,
    arrays_of_step,
    detached,
    slots_of_rows,
    step_in_slots,
    without_heads,
)
from minrnn_gen.errors import BadInput
from minrnn_gen.torch.dtypes import PRECISIONS, STATES
from minrnn_gen.torch.operators.dispatch import refuse_transforms
from minrnn_gen.torch.operators.functional import recurrence
from minrnn_gen.torch.tensors import check_devices, check_real, check_shape


@torch.compiler.disable  # type: ignore[untyped-decorator]
def selective_scan_fn(
    u: Any,
    delta: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    delta_bias: Any = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    initial_state: Any = None,
) -> Any:
    """Return out, or (out, last state), of h[t] = exp(Δ A) h[t-1] + Δ u B, out = (Σ C h + D u) · silu(z), with all gradients.

    u, delta, z and out [batch, dim, T]; A [dim, N], real; B and C the same at all times, [dim, N], or of each step, [batch, N,
    T] or [batch, groups, N, T]; D and delta_bias [dim]. Δ is delta + delta_bias, through softplus if delta_softplus. In
    addition to mamba_ssm's arguments: initial_state [batch, dim, N]. It and the last state have gradients, in the dtype of the
    arithmetic, float32 (float64 for float64). dtypes may differ: arithmetic uses the widest, and out has u's. There are no
    gradients of gradients. Raises BadInput for tensors that do not fit.
    """
    sizes = Sizes.of(u, "u", A, has_time=True)
    tensors = {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias}
    kernel, arrays = arrays_of_step(sizes, tensors | {"initial_state": initial_state}, bool(delta_softplus))
    out, last = recurrence(kernel, **arrays)
    out = out.to(u.dtype)
    return (out, last["h"]) if return_last_state else out


@torch.compiler.disable  # type: ignore[untyped-decorator]
def selective_state_update(
    state: Any,
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    dt_bias: Any = None,
    dt_softplus: bool = False,
    state_batch_indices: Any = None,
    pad_slot_id: int = -1,
) -> Any:
    """Return out of one step of the scan, and write the state after it into `state`.

    Without heads: x, dt, z and out [batch, dim], state [batch, dim, N]; A [dim, N], real; B and C [batch, N] or [batch, groups,
    N]; D and dt_bias [dim]. With heads dim is two axes, [heads, head_dim], and B and C are [batch, groups, N]; axes may have
    stride 0. state_batch_indices, int32 or int64 [batch]: state is [slots, ...] then, of which row b reads and writes its own;
    negative ones and, in addition to mamba_ssm, `pad_slot_id` are padding, whose out is 0. dtypes may differ: arithmetic uses
    the widest, and out has x's. There are no gradients. Raises BadInput for tensors that do not fit.
    """
    refuse_transforms()
    tensors = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    has_heads = isinstance(x, torch.Tensor) and x.dim() == 3
    if has_heads:
        tensors = without_heads(tensors)
    sizes = Sizes.of(tensors["x"], "x", tensors["A"], has_time=False)
    rows = sizes.batch if state_batch_indices is None else "slots"
    check_shape(state, "state", (rows, *(x.shape[1:] if has_heads else (sizes.dim,)), sizes.n))
    with torch.no_grad():
        if state_batch_indices is None:
            kernel, arrays = arrays_of_step(sizes, tensors | {"state": state.reshape(sizes.states)}, bool(dt_softplus))
            out, after = kernel.step(**detached(arrays))
            state.copy_(after["h"].view(state.shape))
        else:
            slots = slots_of_rows(sizes.batch, state, state_batch_indices, pad_slot_id)
            out = step_in_slots(sizes, tensors, state, slots, bool(dt_softplus))
    return out.view(x.shape).to(x.dtype)


def mamba_inner_fn(
    xz: Any,
    conv1d_weight: Any,
    conv1d_bias: Any,
    x_proj_weight: Any,
    delta_proj_weight: Any,
    out_proj_weight: Any,
    out_proj_bias: Any,
    A: Any,
    B: Any = None,
    C: Any = None,
    D: Any = None,
    delta_bias: Any = None,
    B_proj_bias: Any = None,
    C_proj_bias: Any = None,
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
    b_rms_weight: Any = None,
    c_rms_weight: Any = None,
    dt_rms_weight: Any = None,
    b_c_dt_rms_eps: float = 1e-6,
) -> Any:
    """Return [batch, T, width], a Mamba block after its first map: convolution, projections, scan, with all gradients.

    xz [batch, 2 dim, T] is x and z. u is silu of the causal convolution of x with conv1d_weight [dim, 1, K] and conv1d_bias
    [dim]. x_proj_weight [rank + N + N, dim] maps u to a small Δ and, where they are None, B and C, to which B_proj_bias and
    C_proj_bias [N] are added; without one of the two, its N rows may be left out. delta_proj_weight [dim, rank] makes Δ of
    the small one. out_proj_weight [width, dim] and out_proj_bias [width] map the result. A, B, C, D, delta_bias and
    delta_softplus are those of `selective_scan_fn`. Weights b_rms_weight and c_rms_weight [N] and dt_rms_weight [dim] divide
    B, C and Δ before its bias by their root mean square. Products are in the dtype of xz, or in autocast's. checkpoint_lvl is
    0 or 1, and changes nothing. Raises BadInput for tensors that do not fit.
    """
    if checkpoint_lvl not in (0, 1):
        raise BadInput(f"checkpoint_lvl is {checkpoint_lvl}; 0 or 1 is expected")
    check_real(A, "A", 2)
    check_real(xz, "xz", 3)
    check_real(delta_proj_weight, "delta_proj_weight", 2)
    (dim, state_size), rank = A.shape, delta_proj_weight.shape[1]
    check_shape(xz, "xz", (xz.shape[0], 2 * dim, xz.shape[2]))
    check_real(conv1d_weight, "conv1d_weight", 3)
    check_shape(conv1d_weight, "conv1d_weight", (dim, 1, max(1, conv1d_weight.shape[2])))
    check_real(x_proj_weight, "x_proj_weight", 2)
    rows = rank + state_size * sum(tensor is None for tensor in (B, C))
    check_shape(x_proj_weight, "x_proj_weight", (max(rows, x_proj_weight.shape[0]), dim))
    check_shape(delta_proj_weight, "delta_proj_weight", (dim, rank))
    check_real(out_proj_weight, "out_proj_weight", 2)
    check_shape(out_proj_weight, "out_proj_weight", (out_proj_weight.shape[0], dim))
    vectors = {"conv1d_bias": (conv1d_bias, dim), "out_proj_bias": (out_proj_bias, out_proj_weight.shape[0])}
    vectors |= {"B_proj_bias": (B_proj_bias, state_size), "C_proj_bias": (C_proj_bias, state_size)}
    vectors |= {"b_rms_weight": (b_rms_weight, state_size), "c_rms_weight": (c_rms_weight, state_size)}
    vectors |= {"dt_rms_weight": (dt_rms_weight, dim)}
    for name, (tensor, size) in vectors.items():
        if tensor is not None:
            check_shape(tensor, name, (size,))
    own = {"conv1d_weight": conv1d_weight, "x_proj_weight": x_proj_weight, "delta_proj_weight": delta_proj_weight}
    own |= {"out_proj_weight": out_proj_weight, "A": A, "B": B, "C": C, "D": D, "delta_bias": delta_bias}
    for name in ("B", "C", "D", "delta_bias"):
        if own[name] is not None:
            check_real(own[name], name)
    check_devices({"xz": xz, **own, **{name: tensor for name, (tensor, _) in vectors.items()}})

    def like_xz(tensor: Any) -> Any:
        return None if tensor is None else tensor.to(xz.dtype)

    x, z = xz.chunk(2, dim=1)
    # One more step of zeros than the first output reads: torch convolves nothing shorter than the weights.
    padded = F.pad(x, (conv1d_weight.shape[2], 0))
    u = F.silu(F.conv1d(padded, like_xz(conv1d_weight), like_xz(conv1d_bias), groups=dim)[..., 1:])
    projected = F.linear(u.transpose(1, 2), like_xz(x_proj_weight))
    delta = F.linear(projected[..., :rank], like_xz(delta_proj_weight))
    if dt_rms_weight is not None:
        delta = _rms_norm(delta, dt_rms_weight, b_c_dt_rms_eps)
    if B is None:
        B = _of_steps(projected[..., rank : rank + state_size], B_proj_bias)
    if C is None:
        C = _of_steps(projected[..., -state_size:], C_proj_bias)
    if b_rms_weight is not None:
        B = _norm_over_n(B, "B", b_rms_weight, b_c_dt_rms_eps)
    if c_rms_weight is not None:
        C = _norm_over_n(C, "C", c_rms_weight, b_c_dt_rms_eps)
    out = selective_scan_fn(u, delta.transpose(1, 2), A, B, C, D, z, delta_bias, delta_softplus)
    return F.linear(out.transpose(1, 2), like_xz(out_proj_weight), like_xz(out_proj_bias))


def _of_steps(projected: Any, bias: Any) -> Any:
    """Return a B or C [batch, N, T] of the projected [batch, T, N]."""
    return (projected if bias is None else projected + bias.to(projected.dtype)).transpose(1, 2)


def _norm_over_n(tensor: Any, name: str, weight: Any, eps: float) -> Any:
    """Return B or C, of any form, with values of root mean square 1 along N, times a weight."""
    check_real(tensor, name)
    if tensor.dim() not in (2, 3, 4):
        raise BadInput(f"{name} has shape {list(tensor.shape)}; 2, 3 or 4 axes are expected")
    axis = -1 if tensor.dim() == 2 else -2
    if tensor.shape[axis] != weight.shape[0]:
        raise BadInput(f"{name} has shape {list(tensor.shape)}; {weight.shape[0]} values along n are expected")
    return _rms_norm(tensor.transpose(axis, -1), weight, eps).transpose(axis, -1)


def _rms_norm(tensor: Any, weight: Any, eps: float) -> Any:
    """Return a tensor with root mean square 1 along its last axis, times a weight, computed in at least float32."""
    arithmetic = STATES[PRECISIONS[tensor.dtype]]
    return F.rms_norm(tensor.to(arithmetic), weight.shape, weight.to(arithmetic), eps).to(tensor.dtype)
