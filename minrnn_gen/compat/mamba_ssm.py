"""mamba_ssm's selective scan, its single step and the block around it, served by cells with n values per channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import torch
import torch.nn.functional as F

from minrnn_gen.api import compile_arguments
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel
from minrnn_gen.torch.dtypes import PRECISIONS, STATES
from minrnn_gen.torch.operators.dispatch import refuse_transforms
from minrnn_gen.torch.operators.functional import recurrence
from minrnn_gen.torch.tensors import check_devices, check_real, check_shape, check_slots

_CALLER = "mamba_ssm"


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
    T] or [batch, groups, N, T]; D and delta_bias [dim]. Δ is delta + delta_bias, through softplus where asked for. In addition
    to theirs: initial_state [batch, dim, N], and gradients of it and of the last state, which have the dtype of the arithmetic,
    float32 (float64 for float64). dtypes may differ: the widest is computed in, and out has that of u. There are no gradients
    of gradients. Raises BadInput for tensors that do not fit.
    """
    sizes = _Sizes.of(u, "u", A, has_time=True)
    tensors = {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias}
    kernel, arrays = _arrays(sizes, tensors | {"initial_state": initial_state}, bool(delta_softplus))
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
    negative ones and, in addition to theirs, `pad_slot_id` are padding, whose out is 0. dtypes may differ: the widest is
    computed in, and out has that of x. There are no gradients. Raises BadInput for tensors that do not fit.
    """
    refuse_transforms()
    tensors = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    has_heads = isinstance(x, torch.Tensor) and x.dim() == 3
    if has_heads:
        tensors = _without_heads(tensors)
    sizes = _Sizes.of(tensors["x"], "x", tensors["A"], has_time=False)
    rows = sizes.batch if state_batch_indices is None else "slots"
    check_shape(state, "state", (rows, *(x.shape[1:] if has_heads else (sizes.dim,)), sizes.n))
    with torch.no_grad():
        if state_batch_indices is None:
            kernel, arrays = _arrays(sizes, tensors | {"state": state.reshape(sizes.states)}, bool(dt_softplus))
            out, after = kernel.step(**_detached(arrays))
            state.copy_(after["h"].view(state.shape))
        else:
            slots = _slots(sizes, state, state_batch_indices, pad_slot_id)
            out = _step_in_slots(sizes, tensors, state, slots, bool(dt_softplus))
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
    """Form of a selective scan: the optional arguments that are present, and which of B and C vary by step."""

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
    of_groups = {"groups": groups} if "shared" in form.cell else {}
    return compile_arguments({**spec, "layout": "BDT", **of_groups}, _CALLER)


@dataclass(frozen=True)
class _Sizes:
    """The sizes of a call; `steps` is (T,) of a scan and () of a single step."""

    batch: int
    dim: int
    n: int
    steps: tuple[int, ...]

    @classmethod
    def of(cls, u: Any, name: str, A: Any, has_time: bool) -> _Sizes:
        """Return the sizes that the input and A have; raises BadInput for what none have."""
        check_real(u, name, 3 if has_time else 2)
        check_real(A, "A", 2)
        batch, dim, *steps = u.shape
        check_shape(A, "A", (dim, "N"))
        return cls(batch, dim, A.shape[1], tuple(steps))

    @property
    def states(self) -> tuple[int, int, int]:
        """The shape of the states of all sequences."""
        return (self.batch, self.dim, self.n)

    @property
    def x(self) -> tuple[int, ...]:
        """The shape of x, Δ, z and the output."""
        return (self.batch, self.dim, *self.steps)

    def groups_of(self, tensor: Any, name: str) -> int:
        """Return the groups of a B or C of each step, 0 for one that is the same at all times; refuses other shapes."""
        shapes: list[tuple[int | str, ...]] = [(self.batch, self.n, *self.steps)]
        shapes += [(self.batch, "groups", self.n, *self.steps), *([(self.dim, self.n)] if self.steps else [])]
        check_shape(tensor, name, *shapes)
        axes = tensor.dim() - len(self.steps)
        groups = 0 if self.steps and tensor.dim() == 2 else 1 if axes == 2 else int(tensor.shape[1])
        if axes == 3 and (not groups or self.dim % groups):
            raise BadInput(f"{name} has {groups} groups; a divisor of the {self.dim} channels is expected")
        return groups


def _arrays(sizes: _Sizes, tensors: Mapping[str, Any], softplus: bool) -> tuple[Kernel, dict[str, Any]]:
    """Return the kernel of a call and the arrays that it takes; `tensors` by the names of the caller."""
    _, dt_name, *_, bias_name, state_name = tensors
    x, dt, A, B, C, D, z, bias, state = tensors.values()
    for name, tensor, shape in (
        (dt_name, dt, sizes.x),
        ("z", z, sizes.x),
        ("D", D, (sizes.dim,)),
        (bias_name, bias, (sizes.dim,)),
        (state_name, state, sizes.states),
    ):
        # Of these Δ alone has to be there, and the state of a step.
        if tensor is not None or name in (dt_name, "state"):
            check_shape(tensor, name, shape)
    of_steps = {name: sizes.groups_of(tensor, name) for name, tensor in (("B", B), ("C", C))}
    groups = max(1, *of_steps.values())
    for name, own in of_steps.items():
        if own not in (0, 1, groups):
            raise BadInput(f"{name} has {own} groups; {groups}, those of the other, or 1 is expected")
    check_devices(tensors)
    stored = [tensor for tensor in (x, dt, z, *(tensors[name] for name, own in of_steps.items() if own)) if tensor is not None]
    is_double = any(tensor.dtype is torch.float64 for tensor in tensors.values() if tensor is not None)
    wide = torch.float64 if is_double else reduce(torch.promote_types, (tensor.dtype for tensor in stored))
    arithmetic = STATES[PRECISIONS[wide]]
    form = _Form(softplus, D is not None, z is not None, bool(of_steps["B"]), bool(of_steps["C"]))
    try:
        kernel = _kernel(form, sizes.dim, sizes.n, groups if any(of_steps.values()) else 1, PRECISIONS[wide])
    except BadInput as refused:
        reason = str(refused).removeprefix(f"{_CALLER}: ")
        raise BadInput(f"A has shape {list(A.shape)}, for which there is no kernel: {reason}") from None
    gates = [tensor.to(wide) for tensor in (dt, x, z) if tensor is not None]
    vectors = {"a": A, "b": B, "c": C, "d": D}
    by_group = {name.lower(): tensors[name] for name, own in of_steps.items() if own}
    return kernel, {
        "x" if sizes.steps else "x_t": torch.stack(gates, dim=1),
        "bias": None if bias is None else _of_gates(bias.to(arithmetic), len(gates)),
        "parameters": {name: vectors[name].to(arithmetic).contiguous() for name in kernel.parameters},
        "shared": {name: _by_group(tensor.to(wide), groups, sizes) for name, tensor in by_group.items()},
        "state": None if state is None else {"h": state.to(arithmetic).contiguous()},
    }


def _without_heads(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors of a step with heads, whose channels are one axis; refuses shapes that do not fit."""
    x, A = tensors["x"], tensors["A"]
    check_real(x, "x", 3)
    check_real(A, "A", 3)
    (batch, heads, width), n = x.shape, A.shape[2]
    of_rows, of_channels = (batch, heads, width), (heads, width)
    shapes: dict[str, tuple[int | str, ...]] = {"dt": of_rows, "A": (*of_channels, n), "D": of_channels, "z": of_rows}
    shapes |= {"dt_bias": of_channels, "B": (batch, "groups", n), "C": (batch, "groups", n)}
    for name, shape in shapes.items():
        if tensors[name] is not None or name in ("dt", "B", "C"):
            check_shape(tensors[name], name, shape)
    for name in ("B", "C"):
        if not (groups := tensors[name].shape[1]) or heads % groups:
            raise BadInput(f"{name} has {groups} groups; a divisor of the {heads} heads is expected")
    channels = {"x": 1, "dt": 1, "z": 1, "A": 0, "D": 0, "dt_bias": 0}
    joined = {name: tensors[name].flatten(axis, axis + 1) for name, axis in channels.items() if tensors[name] is not None}
    return tensors | joined


def _slots(sizes: _Sizes, state: Any, indices: Any, pad_slot: Any) -> Any:
    """Return the slot of each row, -1 of padding; refuses what are none, in host memory slots beyond the state too."""
    if not isinstance(indices, torch.Tensor) or indices.dtype not in (torch.int32, torch.int64):
        raise BadInput("state_batch_indices is no tensor of int32 or int64; one slot for each row of x is expected")
    if indices.shape != (sizes.batch,):
        raise BadInput(f"state_batch_indices has shape {list(indices.shape)}; [{sizes.batch}] is expected")
    check_devices({"state": state, "state_batch_indices": indices})
    slots = torch.where((indices < 0) | (indices == pad_slot), -1, indices)
    check_slots(slots, "state_batch_indices", state.shape[0])
    return slots


def _step_in_slots(sizes: _Sizes, tensors: dict[str, Any], state: Any, slots: Any, softplus: bool) -> Any:
    """Return out [batch, dim] of a step on slots of `state`, which is written in place; nothing is read back from a GPU."""
    check_devices({"x": tensors["x"], "state": state})
    pool = state.detach().flatten(1, -2)
    is_double = any(tensor is not None and tensor.dtype is torch.float64 for tensor in tensors.values())
    in_place = state.dtype is torch.float32 and not is_double and pool.data_ptr() == state.data_ptr()
    if in_place and pool.stride()[1:] == (sizes.n, 1):
        kernel, arrays = _arrays(sizes, tensors | {"rows": None}, softplus)
        return kernel.step(**_detached(arrays) | {"state": {"h": pool}, "slots": slots})[0]
    # States of another dtype: those of the rows are read and written by torch.
    is_live = (slots >= 0) & (slots < state.shape[0])
    source = torch.where(is_live, slots, 0).long()
    rows = torch.where(is_live[:, None, None], state[source].reshape(sizes.states), 0)
    kernel, arrays = _arrays(sizes, tensors | {"state": rows}, softplus)
    out, after = kernel.step(**_detached(arrays))
    # Padding writes again what the first row that is none writes, so that the order of writes does not matter.
    first = is_live.long().argmax()
    row = torch.where(is_live, torch.arange(sizes.batch, device=slots.device), first)
    target, written = source[row], after["h"][row].to(state.dtype).view(sizes.batch, *state.shape[1:])
    state[target] = torch.where(is_live.any(), written, state[target])
    return torch.where(is_live[:, None], out, 0)


def _of_gates(of_delta: Any, count: int) -> Any:
    """Return a bias of all gates, of which that of Δ is the first and the others are 0."""
    return torch.stack([of_delta, *(torch.zeros_like(of_delta) for _ in range(count - 1))])


def _by_group(tensor: Any, groups: int, sizes: _Sizes) -> Any:
    """Return B or C of each step with an axis of all groups."""
    own = tensor if tensor.dim() - len(sizes.steps) == 3 else tensor.unsqueeze(1)
    return own.expand(sizes.batch, groups, *own.shape[2:]).contiguous()


def _detached(arrays: Any) -> Any:
    """Return arrays, in mappings too, without their graphs."""
    if isinstance(arrays, dict):
        return {name: _detached(inner) for name, inner in arrays.items()}
    return None if arrays is None else arrays.detach()


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
