"""mamba_ssm's selective scan and its single step, served by cells with n values per channel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from minrnn_gen.api import compile
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel
from minrnn_gen.torch.dtypes import PRECISIONS, STATES
from minrnn_gen.torch.tensors import check_tensor


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
