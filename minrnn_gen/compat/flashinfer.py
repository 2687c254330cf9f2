"""flashinfer's single and multi token steps of Mamba layers on a cache of states, by kernels of steps on slots."""

from __future__ import annotations

from typing import Any

import torch

from minrnn_gen.compat.selective_kernels import (
    Sizes,
    arrays_of_step,
    detached,
    slots_of_rows,
    step_in_slots,
    without_heads,
)
from minrnn_gen.errors import BadInput, shown
from minrnn_gen.torch.operators.dispatch import refuse_transforms
from minrnn_gen.torch.tensors import check_real, check_shape

_ALGORITHMS = ("auto", "simple", "vertical", "horizontal", "async_horizontal")
# Tensors with an axis of tokens.
_OF_TOKENS = ("x", "dt", "B", "C", "z")
_BACKENDS = ("auto", "flashinfer", "cake")


@torch.compiler.disable  # type: ignore[untyped-decorator]
def selective_state_update(
    state: Any,
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any,
    z: Any = None,
    dt_bias: Any = None,
    dt_softplus: bool = False,
    state_batch_indices: Any = None,
    pad_slot_id: int = -1,
    state_scale: Any = None,
    out: Any = None,
    disable_state_update: bool = False,
    intermediate_states_buffer: Any = None,
    intermediate_state_indices: Any = None,
    intermediate_state_scales: Any = None,
    rand_seed: Any = None,
    philox_rounds: int = 10,  # noqa: ARG001 -- of the seed, which is refused
    cache_steps: int = 0,
    algorithm: str = "auto",
    dst_state_batch_indices: Any = None,
    cu_seqlens: Any = None,
    num_accepted_tokens: Any = None,
    backend: str = "auto",
) -> Any:
    """Return the output of one token of each row, or of several, and write states into `state`.

    state [slots, dim, N] or [slots, heads, dim, N]. One token: x, dt and z [batch, dim] or [batch, heads, dim], B and C [batch,
    N] or [batch, groups, N]. Several tokens (x has four axes, or cache_steps is given): an axis of tokens follows the batch;
    with cu_seqlens [rows + 1], rows of at most cache_steps tokens are packed along the batch. A [dim, N] or [heads, dim, N], D
    and dt_bias [dim] or [heads, dim]; axes may have stride 0. state_batch_indices [batch] or [batch, tokens] are the slots that
    a row reads, dst_state_batch_indices those that it writes: with tokens, the state after each. Slots that are negative or
    `pad_slot_id` are padding, whose output is 0. num_accepted_tokens [batch]: a row begins with the state of the last accepted
    token. intermediate_states_buffer [buffers, tokens, heads, dim, N] takes the state after each token, of row b in buffer
    intermediate_state_indices[b]. disable_state_update leaves `state` as it is.

    `algorithm` and `backend` change nothing. Raises BadInput for scales, integer states and a seed of stochastic rounding,
    which are not supported, and for tensors that do not fit.
    """
    refuse_transforms()
    for name, scale in (("state_scale", state_scale), ("intermediate_state_scales", intermediate_state_scales)):
        if scale is not None:
            raise BadInput(
                f"{name} was given, but integer states are not supported; give states in a floating dtype, and no scale"
            )
    if rand_seed is not None:
        raise BadInput("rand_seed was given, but states are rounded to nearest; leave it out")
    for name, word, allowed in (("algorithm", algorithm, _ALGORITHMS), ("backend", backend, _BACKENDS)):
        if word not in allowed:
            raise BadInput(f"{name} is {shown(word)}; one of {', '.join(allowed)} is expected")
    if intermediate_states_buffer is not None and dst_state_batch_indices is not None:
        raise BadInput("intermediate_states_buffer and dst_state_batch_indices were both given; states go to one of them")
    check_real(state, "state")
    if not state.is_floating_point():
        raise BadInput(f"state has dtype {state.dtype}, but integer states are not supported; a floating dtype is expected")
    tensors = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    indices = (state_batch_indices, dst_state_batch_indices, num_accepted_tokens)
    with torch.no_grad():
        is_packed, has_tokens = cu_seqlens is not None, isinstance(x, torch.Tensor) and x.dim() == 4
        if not (cache_steps or is_packed or has_tokens):
            if num_accepted_tokens is not None or intermediate_states_buffer is not None:
                raise BadInput("accepted tokens and intermediate states are of several tokens; give cache_steps, their number")
            y = _one_token(tensors, state, indices, pad_slot_id, disable_state_update, bool(dt_softplus))
        else:
            into = (intermediate_states_buffer, intermediate_state_indices)
            y = _tokens(
                tensors, state, indices, (cu_seqlens, cache_steps), pad_slot_id, disable_state_update, into, dt_softplus
            )
    y = y.reshape(x.shape).to(x.dtype)
    return y if out is None else out.copy_(y.view(out.shape))


def _one_token(
    tensors: dict[str, Any], state: Any, indices: tuple[Any, Any, Any], pad_slot: int, leaves_state: bool, softplus: bool
) -> Any:
    """Return the output [batch, dim] of one token."""
    joined = without_heads(tensors) if tensors["x"].dim() == 3 else tensors
    sizes = Sizes.of(joined["x"], "x", joined["A"], has_time=False)
    check_shape(state, "state", ("slots", *tensors["x"].shape[1:], sizes.n))
    reads, writes, _ = indices
    indices_of_rows = torch.arange(sizes.batch, device=state.device) if reads is None else reads.reshape(-1)
    slots = slots_of_rows(sizes.batch, state, indices_of_rows, pad_slot, are_written=writes is None and not leaves_state)
    into = None
    if writes is not None:
        into = slots_of_rows(sizes.batch, state, writes.reshape(-1), pad_slot, "dst_state_batch_indices")
    return step_in_slots(sizes, joined, state, slots, softplus, torch.full_like(slots, -1) if leaves_state else into)


def _tokens(
    tensors: dict[str, Any],
    state: Any,
    indices: tuple[Any, Any, Any],
    sequences: tuple[Any, int],
    pad_slot: int,
    leaves_state: bool,
    into: tuple[Any, Any],
    softplus: bool,
) -> Any:
    """Return the output of several tokens of each row, as successive steps on copies of their states."""
    x, (ends, count) = tensors["x"], sequences
    is_packed = ends is not None
    if not is_packed and isinstance(x, torch.Tensor) and x.dim() == 3:  # one token
        tensors = tensors | {name: None if tensors[name] is None else tensors[name].unsqueeze(1) for name in _OF_TOKENS}
        x = tensors["x"]
    if x.dim() != (3 if is_packed else 4):
        wanted = "[tokens, heads, dim]" if is_packed else "[batch, tokens, heads, dim]"
        raise BadInput(f"x has shape {list(x.shape)}; {wanted} is expected")
    batch = ends.shape[0] - 1 if is_packed else x.shape[0]
    count = count if is_packed else x.shape[1]
    reads, writes, accepted = indices
    row = torch.arange(batch, device=state.device)
    first = row if reads is None else reads.reshape(batch, -1)[:, 0]
    if accepted is not None:
        if reads is None or reads.dim() != 2:
            raise BadInput("num_accepted_tokens was given without state_batch_indices of two axes; give a slot for each token")
        first = reads[row, (accepted.long() - 1).clamp(0, reads.shape[1] - 1)]
    slots = slots_of_rows(batch, state, first, pad_slot, are_written=writes is None and not leaves_state)
    is_live = (slots >= 0) & (slots < state.shape[0])
    h = torch.where(is_live.view(-1, *[1] * (state.dim() - 1)), state[slots.clamp(0, state.shape[0] - 1).long()], 0)
    h = h.to(torch.float64 if h.dtype is torch.float64 else torch.float32)
    begins = ends[:-1].long() if is_packed else None
    lengths = ends[1:].long() - begins if is_packed else torch.full_like(row, count)
    out = x.new_zeros((x.shape[0] + 1, *x.shape[1:]) if is_packed else x.shape)
    for t in range(count):
        runs = is_live & (t < lengths)
        # Rows without a token read any, and write one more than there are.
        at = None if begins is None else (begins + t).clamp(0, max(x.shape[0] - 1, 0))
        y, after = _step(tensors, h, t, at, softplus)
        mask = runs.view(-1, *[1] * (h.dim() - 1))
        h = torch.where(mask, after, h)
        y = torch.where(runs.view(-1, 1, 1), y, 0).to(x.dtype)
        if at is None:
            out[:, t] = y
        else:
            out[torch.where(runs, at, x.shape[0])] = y
        if into[0] is not None:
            _write(into[0][:, t], row if into[1] is None else into[1], runs, h)
        elif writes is not None and writes.dim() == 2:
            _write(state, torch.where(writes[:, t] == pad_slot, -1, writes[:, t]), runs, h)
    if not leaves_state and (writes is None or writes.dim() == 1):
        _write(state, slots if writes is None else torch.where(writes == pad_slot, -1, writes), is_live & (lengths > 0), h)
    return out[:-1] if is_packed else out


def _step(tensors: dict[str, Any], h: Any, t: int, at: Any, softplus: bool) -> tuple[Any, Any]:
    """Return the output [batch, heads, dim] of token t of each row, or of the tokens `at`, and the states after it."""
    token = {
        name: tensor if tensor is None or name not in _OF_TOKENS else tensor[:, t] if at is None else tensor[at]
        for name, tensor in tensors.items()
    }
    joined = without_heads(token)
    sizes = Sizes.of(joined["x"], "x", joined["A"], has_time=False)
    kernel, arrays = arrays_of_step(sizes, joined | {"state": h.reshape(sizes.states)}, bool(softplus))
    y, after = kernel.step(**detached(arrays))
    return y.view(token["x"].shape), after["h"].view(h.shape)


def _write(target: Any, slots: Any, runs: Any, h: Any) -> None:
    """Write the states of running rows into their slots, except rows without a slot."""
    is_written = runs & (slots >= 0) & (slots < target.shape[0])
    row = torch.where(is_written, torch.arange(len(slots), device=slots.device), is_written.long().argmax())
    places = slots.clamp(0, target.shape[0] - 1).long()[row]
    target[places] = torch.where(is_written.any(), h[row].to(target.dtype), target[places])
