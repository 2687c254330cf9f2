"""mamba_ssm's selective scan, its single step and the block around it, served by cells with n values per channel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from minrnn_gen.api import compile
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel
from minrnn_gen.torch.dtypes import PRECISIONS, STATES
from minrnn_gen.torch.tensors import check_tensor


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
    T] or [batch, groups, N, T]; D and delta_bias [dim]. Δ is delta + delta_bias, through softplus where asked for. Beside
    theirs: initial_state [batch, dim, N], and gradients of it and of the last state, which have the dtype of the arithmetic,
    float32 (float64 for float64). Raises BadInput for tensors that do not fit.
    """
    _check_real(u, "u", 3)
    _check_real(A, "A", 2)
    batch, dim, time = u.shape
    for name, tensor in (("delta", delta), ("z", z)):
        if tensor is not None:
            _check_shape(tensor, name, (batch, dim, time))
    has_steps = {name: _has_steps(tensor, name, 3) for name, tensor in (("B", B), ("C", C))}
    groups = max(_groups(tensor) if has_steps[name] else 1 for name, tensor in (("B", B), ("C", C)))
    of_steps = {name: _by_group(tensor, name, groups) for name, tensor in (("B", B), ("C", C)) if has_steps[name]}
    form = _Form(bool(delta_softplus), D is not None, z is not None, has_steps["B"], has_steps["C"])
    x = torch.stack([delta.to(u.dtype), u, *([] if z is None else [z.to(u.dtype)])], dim=1)
    initial = None if initial_state is None else initial_state.to(STATES[PRECISIONS[u.dtype]])
    kernel = _kernel(form, dim, A.shape[1], groups if of_steps else 1, PRECISIONS[u.dtype])
    parameters = _parameters(kernel, u.dtype, a=A, b=B, c=C, d=D)
    shared = [of_steps[name.upper()].to(u.dtype).contiguous() for name in kernel.interface.shared]
    bias = _bias(kernel, delta_bias, u.dtype)
    out, last = _SelectiveScan.apply(kernel, x, bias, initial, *parameters, *shared)
    return (out, last) if return_last_state else out


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
) -> Any:
    """Return out [batch, dim] of one step of the scan, and write the state after it into `state` [batch, dim, N].

    x, dt and z [batch, dim]; A [dim, N], real; B and C [batch, N] or [batch, groups, N]; D and dt_bias [dim]. No gradients.
    Raises BadInput for tensors that do not fit, those of several heads among them.
    """
    _check_real(x, "x", 2)
    _check_real(A, "A", 2)
    _check_shape(state, "state", (*x.shape, A.shape[1]))
    for name, tensor in (("dt", dt), ("z", z)):
        if tensor is not None:
            _check_shape(tensor, name, tuple(x.shape))
    for name, tensor in (("B", B), ("C", C)):
        if not _has_steps(tensor, name, 2, with_constant=False):
            raise BadInput(f"{name} has shape {list(tensor.shape)}; [batch, N] or [batch, groups, N] is expected")
    groups = max(_groups(tensor, 2) for tensor in (B, C))
    with torch.no_grad():
        kernel = _kernel(
            _Form(bool(dt_softplus), D is not None, z is not None, True, True),
            x.shape[1],
            A.shape[1],
            groups,
            PRECISIONS[x.dtype],
        )
        gates = torch.stack([dt.to(x.dtype), x, *([] if z is None else [z.to(x.dtype)])], dim=1)
        shared = {name: _by_group(tensor, name, groups, 2).to(x.dtype).contiguous() for name, tensor in (("b", B), ("c", C))}
        parameters = _parameters(kernel, x.dtype, a=A, d=D)
        out, after = kernel.step(
            gates.detach(),
            bias=_detached(_bias(kernel, dt_bias, x.dtype)),
            parameters=dict(zip(kernel.parameters, map(_detached, parameters), strict=True)),
            shared={name: tensor.detach() for name, tensor in shared.items()},
            state={"h": state.detach().to(STATES[PRECISIONS[x.dtype]]).contiguous()},
        )
        state.copy_(after["h"])
    return out


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
    """Return [batch, T, width], a Mamba block behind its first map: convolution, projections, scan, with all gradients.

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
    _check_real(A, "A", 2)
    _check_real(xz, "xz", 3)
    _check_real(delta_proj_weight, "delta_proj_weight", 2)
    (dim, state_size), rank = A.shape, delta_proj_weight.shape[1]
    _check_shape(xz, "xz", (xz.shape[0], 2 * dim, xz.shape[2]))
    _check_real(conv1d_weight, "conv1d_weight", 3)
    _check_shape(conv1d_weight, "conv1d_weight", (dim, 1, max(1, conv1d_weight.shape[2])))
    _check_real(x_proj_weight, "x_proj_weight", 2)
    rows = rank + state_size * sum(tensor is None for tensor in (B, C))
    _check_shape(x_proj_weight, "x_proj_weight", (max(rows, x_proj_weight.shape[0]), dim))
    _check_shape(delta_proj_weight, "delta_proj_weight", (dim, rank))
    _check_real(out_proj_weight, "out_proj_weight", 2)
    _check_shape(out_proj_weight, "out_proj_weight", (out_proj_weight.shape[0], dim))
    vectors = {"conv1d_bias": (conv1d_bias, dim), "out_proj_bias": (out_proj_bias, out_proj_weight.shape[0])}
    vectors |= {"B_proj_bias": (B_proj_bias, state_size), "C_proj_bias": (C_proj_bias, state_size)}
    vectors |= {"b_rms_weight": (b_rms_weight, state_size), "c_rms_weight": (c_rms_weight, state_size)}
    for name, (tensor, size) in (vectors | {"dt_rms_weight": (dt_rms_weight, dim)}).items():
        if tensor is not None:
            _check_shape(tensor, name, (size,))

    def like_xz(tensor: Any) -> Any:
        return None if tensor is None else tensor.to(xz.dtype)

    x, z = xz.chunk(2, dim=1)
    # One step of zeros more than the first output reads: torch convolves nothing that is shorter than the weights.
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


@dataclass(frozen=True)
class _Form:
    """What a call of theirs leaves out, and which of B and C are of each step."""

    softplus: bool
    has_d: bool
    has_z: bool
    b_of_steps: bool
    c_of_steps: bool

    @property
    def cell(self) -> dict[str, Any]:
        """The cell file, as a mapping."""
        delta = "softplus(W.dt)" if self.softplus else "W.dt"
        b, c = ("S.b" if self.b_of_steps else "b"), ("S.c" if self.c_of_steps else "c")
        output = f"sum({c} * h[t])" + (" + d * W.x" if self.has_d else "")
        parameters: dict[str, Any] = {"a": "n"}
        parameters |= {name: "n" for name, is_shared in (("b", self.b_of_steps), ("c", self.c_of_steps)) if not is_shared}
        parameters |= {"d": 1} if self.has_d else {}
        shared = [name for name, is_shared in (("b", self.b_of_steps), ("c", self.c_of_steps)) if is_shared]
        return {
            "name": "selective_scan",
            "gates": ["dt", "x", *(["z"] if self.has_z else [])],
            "states": {"h": "n"},
            "parameters": parameters,
            **({"shared": shared} if shared else {}),
            "equations": f"dt = {delta}\nh[t] = exp(dt * a) * h[t-1] + dt * W.x * {b}",
            "output": f"({output}) * silu(W.z)" if self.has_z else output,
        }


@cache
def _kernel(form: _Form, dim: int, state_size: int, groups: int, precision: str) -> Kernel:
    spec: dict[str, Any] = {"model": form.cell, "hidden_size": dim, "state_size": state_size, "precision": precision}
    return compile({**spec, "layout": "BDT", **({"groups": groups} if "shared" in form.cell else {})})


class _SelectiveScan(torch.autograd.Function):
    """A kernel's forward and backward; the tensors are x, bias, the initial state, the parameters and the inputs S.*."""

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, *tensors: Any) -> tuple[Any, Any]:
        x, bias, initial, *named = (_detached(tensor) for tensor in tensors)
        count = len(kernel.parameters)
        y, final, saved = kernel.forward(
            x,
            bias=bias,
            state=None if initial is None else {"h": initial.contiguous()},
            parameters=dict(zip(kernel.parameters, named[:count], strict=True)),
            shared=dict(zip(kernel.interface.shared, named[count:], strict=True)),
        )
        ctx.kernel, ctx.saved = kernel, saved
        ctx.zeros_like_y = partial(torch.zeros, y.shape, dtype=y.dtype, device=y.device)
        ctx.set_materialize_grads(False)
        return y, final["h"]

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dy: Any, dlast: Any) -> tuple[Any, ...]:
        kernel, needed = ctx.kernel, ctx.needs_input_grad[1:]
        dy = ctx.zeros_like_y() if dy is None else dy.contiguous()
        gradients = kernel.backward(ctx.saved, dy, None if dlast is None else {"h": dlast.contiguous()})
        in_order = [gradients["x"], gradients.get("bias"), gradients["state"]["h"]]
        in_order += [gradients["parameters"][name] for name in kernel.parameters]
        in_order += [gradients["shared"][name] for name in kernel.interface.shared]
        return (None, *(gradient if wanted else None for gradient, wanted in zip(in_order, needed, strict=True)))


def _check_real(tensor: Any, name: str, axes: int) -> None:
    check_tensor(tensor, name)
    if tensor.dtype not in PRECISIONS:
        raise BadInput(f"{name} has dtype {tensor.dtype}; float64, float32, float16 or bfloat16 is expected")
    if tensor.dim() != axes:
        raise BadInput(f"{name} has shape {list(tensor.shape)}; {axes} axes are expected")


def _check_shape(tensor: Any, name: str, shape: tuple[int, ...]) -> None:
    _check_real(tensor, name, len(shape))
    if tuple(tensor.shape) != shape:
        raise BadInput(f"{name} has shape {list(tensor.shape)}; {list(shape)} is expected")


def _has_steps(tensor: Any, name: str, axes: int, with_constant: bool = True) -> bool:
    """Say whether B or C is of each step, of so many axes with one group; else it is the same at all times, [dim, N]."""
    check_tensor(tensor, name)
    allowed = ((2,) if with_constant else ()) + (axes, axes + 1)
    _check_real(tensor, name, tensor.dim() if tensor.dim() in allowed else axes)
    return not with_constant or tensor.dim() >= axes


def _of_steps(projected: Any, bias: Any) -> Any:
    """Return a B or C [batch, N, T] of the projected [batch, T, N]."""
    return (projected if bias is None else projected + bias.to(projected.dtype)).transpose(1, 2)


def _norm_over_n(tensor: Any, name: str, weight: Any, eps: float) -> Any:
    """Return B or C, of any form, with values of root mean square 1 along N, times a weight."""
    axis = -2 if _has_steps(tensor, name, 3) else -1
    if tensor.shape[axis] != weight.shape[0]:
        raise BadInput(f"{name} has shape {list(tensor.shape)}; {weight.shape[0]} values along n are expected")
    return _rms_norm(tensor.transpose(axis, -1), weight, eps).transpose(axis, -1)


def _rms_norm(tensor: Any, weight: Any, eps: float) -> Any:
    """Return a tensor with root mean square 1 along its last axis, times a weight, computed in at least float32."""
    arithmetic = STATES[PRECISIONS[tensor.dtype]]
    return F.rms_norm(tensor.to(arithmetic), weight.shape, weight.to(arithmetic), eps).to(tensor.dtype)


def _groups(tensor: Any, axes: int = 3) -> int:
    return int(tensor.shape[1]) if tensor.dim() > axes else 1


def _by_group(tensor: Any, name: str, groups: int, axes: int = 3) -> Any:
    """Return B or C of each step with an axis of all groups."""
    own = tensor if tensor.dim() > axes else tensor.unsqueeze(1)
    if own.shape[1] not in (1, groups):
        raise BadInput(f"{name} has {own.shape[1]} groups; {groups}, those of the other, or 1 is expected")
    return own.expand(own.shape[0], groups, *own.shape[2:])


def _parameters(kernel: Kernel, dtype: torch.dtype, **tensors: Any) -> list[Any]:
    """Return the parameters of a kernel in their order, in the dtype of its arithmetic."""
    arithmetic = STATES[PRECISIONS[dtype]]
    named = {name: tensor for name, tensor in tensors.items() if name in kernel.parameters}
    for name, tensor in named.items():
        check_tensor(tensor, name.upper())
        _check_real(tensor, name.upper(), tensor.dim())  # the kernel checks its axes
    return [named[name].to(arithmetic).contiguous() for name in kernel.parameters]


def _bias(kernel: Kernel, delta_bias: Any, dtype: torch.dtype) -> Any:
    """Return a bias of all gates, of which that of Δ is given."""
    if delta_bias is None:
        return None
    _check_shape(delta_bias, "delta_bias", (kernel.interface.hidden_size,))
    own = delta_bias.to(STATES[PRECISIONS[dtype]])
    return torch.stack([own, *(torch.zeros_like(own) for _ in kernel.gates[1:])])


def _detached(tensor: Any) -> Any:
    return None if tensor is None else tensor.detach()
