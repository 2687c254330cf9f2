"""The kernels of selective scans and single steps that compute other libraries' functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import torch

from minrnn_gen.api import compile_arguments
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel
from minrnn_gen.torch.dtypes import PRECISIONS, STATES
from minrnn_gen.torch.tensors import check_devices, check_real, check_shape, check_slots

_CALLER = "mamba_ssm"


@dataclass(frozen=True)
class _Form:
    """Form of a selective scan: the optional arguments that are present, which of B and C vary by step, and whether A is tied.

    A tied A is one value of a channel, as in Mamba-2: one exponential, and nothing to read for each sequence.
    """

    softplus: bool
    has_d: bool
    has_z: bool
    b_of_steps: bool
    c_of_steps: bool
    ties_a: bool = False

    @property
    def cell(self) -> dict[str, Any]:
        """The cell file, as a mapping."""
        delta = "softplus(W.dt)" if self.softplus else "W.dt"
        b, c = ("S.b" if self.b_of_steps else "b"), ("S.c" if self.c_of_steps else "c")
        output = f"sum({c} * h[t])" + (" + d * W.x" if self.has_d else "")
        parameters: dict[str, Any] = {"a": 1 if self.ties_a else "n"}
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
class Sizes:
    """The sizes of a call; `steps` is (T,) of a scan and () of a single step."""

    batch: int
    dim: int
    n: int
    steps: tuple[int, ...]

    @classmethod
    def of(cls, u: Any, name: str, A: Any, has_time: bool) -> Sizes:
        """Return the sizes from the shapes of the input and A; raises BadInput for shapes that no call has."""
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


def arrays_of_step(sizes: Sizes, tensors: Mapping[str, Any], softplus: bool) -> tuple[Kernel, dict[str, Any]]:
    """Return the kernel of a call and its arrays; `tensors` have the caller's names."""
    _, dt_name, *_, bias_name, state_name = tensors
    x, dt, A, B, C, D, z, bias, state = tensors.values()
    for name, tensor, shape in (
        (dt_name, dt, sizes.x),
        ("z", z, sizes.x),
        ("D", D, (sizes.dim,)),
        (bias_name, bias, (sizes.dim,)),
        (state_name, state, sizes.states),
    ):
        # Only Δ is required among these, and a step's state.
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
    ties_a = not sizes.steps and _is_tied(A)
    form = _Form(softplus, D is not None, z is not None, bool(of_steps["B"]), bool(of_steps["C"]), ties_a)
    try:
        kernel = _kernel(form, sizes.dim, sizes.n, groups if any(of_steps.values()) else 1, PRECISIONS[wide])
    except BadInput as refused:
        reason = str(refused).removeprefix(f"{_CALLER}: ")
        raise BadInput(f"A has shape {list(A.shape)}, for which there is no kernel: {reason}") from None
    gates = [tensor.to(wide) for tensor in (dt, x, z) if tensor is not None]
    vectors = {"a": A[:, 0] if ties_a else A, "b": B, "c": C, "d": D}
    by_group = {name.lower(): tensors[name] for name, own in of_steps.items() if own}
    return kernel, {
        "x" if sizes.steps else "x_t": torch.stack(gates, dim=1),
        "bias": None if bias is None else _of_gates(bias.to(arithmetic), len(gates)),
        "parameters": {name: vectors[name].to(arithmetic).contiguous() for name in kernel.parameters},
        "shared": {name: _by_group(tensor.to(wide), groups, sizes) for name, tensor in by_group.items()},
        "state": None if state is None else {"h": state.to(arithmetic).contiguous()},
    }


def without_heads(tensors: dict[str, Any]) -> dict[str, Any]:
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
    if _is_tied(A):
        joined["A"] = A[..., :1].flatten(0, 1).expand(-1, n)
    return tensors | joined


def _is_tied(A: Any) -> bool:
    """Say whether all N values of a channel are one in memory."""
    return bool(A.shape[-1] > 1 and A.stride(-1) == 0)


def slots_of_rows(
    batch: int, state: Any, indices: Any, pad_slot: Any, name: str = "state_batch_indices", are_written: bool = True
) -> Any:
    """Return the slot of each row, -1 for padding; refuses anything but slots, and host slots beyond the state."""
    if not isinstance(indices, torch.Tensor) or indices.dtype not in (torch.int32, torch.int64):
        raise BadInput(f"{name} is no tensor of int32 or int64; one slot for each row of x is expected")
    if indices.shape != (batch,):
        raise BadInput(f"{name} has shape {list(indices.shape)}; [{batch}] is expected")
    check_devices({"state": state, name: indices})
    slots = torch.where((indices < 0) | (indices == pad_slot), -1, indices)
    check_slots(slots, name, state.shape[0], are_written)
    return slots


def step_in_slots(sizes: Sizes, tensors: dict[str, Any], state: Any, slots: Any, softplus: bool, into_slots: Any = None) -> Any:
    """Return out [batch, dim] of a step on slots of `state`, which is written in place; nothing is read back from a GPU."""
    check_devices({"x": tensors["x"], "state": state})
    pool = state.detach().flatten(1, -2)
    is_double = any(tensor is not None and tensor.dtype is torch.float64 for tensor in tensors.values())
    in_16_bits = state.dtype in (torch.bfloat16, torch.float16)
    stored = [tensors[name].dtype for name in ("x", "dt", "B", "C", "z") if tensors[name] is not None]
    has_dtype = state.dtype is torch.float32 or (in_16_bits and {*stored} == {state.dtype})
    in_place = has_dtype and not is_double and pool.data_ptr() == state.data_ptr()
    if in_place and pool.stride()[1:] == (sizes.n, 1):
        kernel, arrays = arrays_of_step(sizes, tensors | {"rows": None}, softplus)
        on_pool = {"state": {"h": pool}, "slots": slots, "into_slots": into_slots}
        return kernel.step(**detached(arrays) | on_pool)[0]
    # States of another dtype: those of the rows are read and written by torch.
    is_live = (slots >= 0) & (slots < state.shape[0])
    source = torch.where(is_live, slots, 0).long()
    written = slots if into_slots is None else into_slots
    is_written = is_live & (written >= 0) & (written < state.shape[0])
    rows = torch.where(is_live[:, None, None], state[source].reshape(sizes.states), 0)
    kernel, arrays = arrays_of_step(sizes, tensors | {"state": rows}, softplus)
    out, after = kernel.step(**detached(arrays))
    # A row that is not written repeats the first written row's write, so that the order of writes does not matter.
    row = torch.where(is_written, torch.arange(sizes.batch, device=slots.device), is_written.long().argmax())
    target, states = written.clamp(0, state.shape[0] - 1).long()[row], after["h"][row].to(state.dtype)
    state[target] = torch.where(is_written.any(), states.view(sizes.batch, *state.shape[1:]), state[target])
    return torch.where(is_live[:, None], out, 0)


def _of_gates(of_delta: Any, count: int) -> Any:
    """Return a bias of all gates: the first is Δ's, the others are 0."""
    return torch.stack([of_delta, *(torch.zeros_like(of_delta) for _ in range(count - 1))])


def _by_group(tensor: Any, groups: int, sizes: Sizes) -> Any:
    """Return B or C of each step with an axis of all groups."""
    own = tensor if tensor.dim() - len(sizes.steps) == 3 else tensor.unsqueeze(1)
    return own.expand(sizes.batch, groups, *own.shape[2:]).contiguous()


def detached(arrays: Any) -> Any:
    """Return arrays, in mappings too, without their graphs."""
    if isinstance(arrays, dict):
        return {name: detached(inner) for name, inner in arrays.items()}
    return None if arrays is None else arrays.detach()
