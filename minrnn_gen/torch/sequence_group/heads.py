"""Heads over the ranks of a group: each rank computes its share of the channels for all of time, and all ranks get all of y."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection
from typing import Any

import torch

from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.call.key import keyed
from minrnn_gen.call.slots import SEQUENCES, WEIGHTS, X
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import groups_of_share, kernel_by, recipe_of_heads
from minrnn_gen.run.recording.replay import ByKey
from minrnn_gen.torch.operators.dispatch import records
from minrnn_gen.torch.operators.recorded import Tensors, gradients_once
from minrnn_gen.torch.sequence_group.agreement import Agreement, agree, device_of
from minrnn_gen.torch.sequence_group.cells import check_plain_call, form_of, seconds_of
from minrnn_gen.torch.sequence_group.cost import PASSES_OF_STEP, heads_seconds
from minrnn_gen.torch.sequence_group.exchange import all_gather, sum_over_ranks
from minrnn_gen.torch.sequence_group.group import Member, is_on_gpu

Run = Callable[[Kernel, tuple[Any, ...]], Any]

# Whether heads are split, by keys of calls with CUDA tensors, whose checks would keep a GPU waiting.
_SPLIT: weakref.WeakKeyDictionary[Any, ByKey[bool]] = weakref.WeakKeyDictionary()


def agree_on_heads(kernel: Kernel, tensors: tuple[Any, ...], member: Member, is_global: bool) -> bool:
    """Agree on a call, and say whether its heads are split; raises BadInput on every rank for arguments that do not fit.

    `is_global`: lengths and boundaries are those of a sequence group. Heads whose gather takes longer than the share saves are
    computed by every rank, which has all of their arrays.
    """
    held, key = _SPLIT.setdefault(member.process_group, ByKey()), None
    if is_on_gpu(tensors[0]):
        with torch.no_grad():
            key = keyed((kernel.recipe, member.gathers, is_global, records(tensors)), [*tensors])
    known = None if key is None else held.get(key.key)
    if known is not None:
        return known
    refusal, form, seconds = None, {}, {}
    try:
        _check_divides(kernel, member.size)
        check_plain_call(kernel, tensors if member.gathers else _as_of_all_heads(kernel.interface, tensors, member), is_global)
        form = {**form_of(kernel, tensors), "shape of x": [*tensors[0].shape], "gathers": member.gathers}
        seconds = _seconds_of_heads(kernel, tensors[0], member)
    except BadInput as refused:
        refusal = refused
    agreement = agree(member, device_of(tensors[0]), form, time=0, records=records(tensors), refusal=refusal, seconds=seconds)
    is_split = not seconds or _is_split(kernel, tensors[0], member, agreement)
    return is_split if key is None else held.keep(key.key, is_split)


def _seconds_of_heads(kernel: Kernel, x: Any, member: Member) -> dict[int, float]:
    """Return {1: time of a forward of all heads, ranks: of one rank's share}; nothing where heads are split in any case."""
    if not member.gathers or member.size == 1 or not is_on_gpu(x):
        return {}
    batch, time = (x.shape[kernel.interface.x_axes.index(axis)] for axis in "bt")
    return seconds_of(kernel, batch, time, ("channels", (1, member.size)), True)


def _is_split(kernel: Kernel, x: Any, member: Member, agreement: Agreement) -> bool:
    interface, rows = kernel.interface, math.prod(x.shape[kernel.interface.x_axes.index(axis)] for axis in "bt")
    y_bytes = rows * interface.hidden_size * len(interface.runs_reversed) * x.element_size()
    share, whole = agreement.seconds[member.size], agreement.seconds[1]
    split = heads_seconds(member.size, share, y_bytes, x.nbytes, agreement.records)
    return split < whole * (PASSES_OF_STEP if agreement.records else 1.0)


def run_heads(kernel: Kernel, tensors: tuple[Any, ...], member: Member, run: Run, is_split: bool = True) -> list[Any]:
    """Return the results of `run` for a call, each rank computing its share of the heads, or all where they are not split.

    Where the group gathers, every rank has all arrays and gets all results, and gradients of x and of initial states are whole
    on every rank. Those of weights and vectors are the rank's own share, zero elsewhere.
    """
    if member.size == 1:
        return list(run(kernel, tensors))
    share = _Share(kernel.interface, member)
    if not is_split:
        return list(run(kernel, share.counted(tensors)))
    results = run(kernel_by(recipe_of_heads(kernel, member.size)), share.of(tensors))
    return share.joined(results, len(kernel.states)) if member.gathers else list(results)


def _check_divides(kernel: Kernel, ranks: int) -> None:
    interface = kernel.interface
    if ranks > 1 and kernel.builder.cell_shape.means_over_all:
        raise BadInput(
            f"head_group has {ranks} ranks, but {kernel.builder.cell_shape.name} needs means over all heads within a step; "
            "write them over a head, mean(x, head), or leave head_group out"
        )
    count, what = (interface.heads, "heads") if interface.recurrent_gates else (interface.hidden_size, "channels")
    if count % ranks:
        raise BadInput(f"head_group has {ranks} ranks, but the kernel has {count} {what}; a divisor of {count} is expected")


def _as_of_all_heads(interface: Interface, tensors: tuple[Any, ...], member: Member) -> tuple[Any, ...]:
    """Return a call as if its pre-activations and states were of all heads, in no memory, to be checked."""

    def widened(tensor: Any, axis: int) -> Any:
        if not isinstance(tensor, torch.Tensor) or not -tensor.dim() <= axis < tensor.dim():
            return tensor
        shape = [*tensor.shape]
        shape[axis] *= member.size
        return tensor.new_empty(()).expand(shape)

    x, slots = tensors[X], interface.slots
    x = x if interface.input_size else widened(x, interface.x_axes.index("h"))
    states = zip(interface.states, tensors[slots.states], strict=True)
    shared = tensors[slots.shared]
    if _has_own_groups(interface, member):
        shared = tuple(widened(values, interface.shared_axes.index("k")) for values in shared)
    return (
        x,
        *tensors[X + 1 : slots.states.start],
        *(widened(state, _channels_axis(name, interface.vector_states)) for name, state in states),
        *shared,
        *(widened(values, interface.channel_axes.index("h")) for values in tensors[slots.inputs]),
    )


def _has_own_groups(interface: Interface, member: Member) -> bool:
    """Whether each group of channels, which shares inputs S.*, lies on one rank."""
    return interface.groups % member.size == 0


def _channels_axis(name: str, vectors: Collection[str]) -> int:
    """Return the axis of channels of a state or a parameter, before that of n where it is one of `vectors`."""
    return -2 if name in vectors else -1


class _Share:
    """This rank's share of the channels of a call: the r-th part of its heads, or of its channels where heads do not matter."""

    def __init__(self, interface: Interface, member: Member) -> None:
        self.interface, self.member = interface, member
        self.count = interface.hidden_size // member.size
        self.begin = member.rank * self.count

    def of(self, tensors: Tensors) -> tuple[Any, ...]:
        """Return a call's tensors on this share."""
        interface, slots = self.interface, self.interface.slots
        x, (R, weight, bias, recurrent_bias) = tensors[X], tensors[WEIGHTS]
        parameters = zip(interface.parameters, tensors[slots.parameters], strict=True)
        states = zip(interface.states, tensors[slots.states], strict=True)
        runs = len(interface.runs_reversed)
        gathers = self.member.gathers
        if gathers or interface.input_size:
            x = _shared(x, self.member)
        if gathers and not interface.input_size:
            x = self._channels(x, interface.x_axes.index("h"))
        if weight is not None:
            rows = weight.reshape(runs * len(interface.gates), interface.hidden_size, -1)
            weight = self._channels(rows, 1).flatten(0, 1)
        if bias is not None:
            bias = self._channels(bias.reshape(*interface.directions, len(interface.gates), interface.hidden_size), -1)
        heads = interface.heads // self.member.size
        first = self.member.rank * heads
        if R is not None:
            R = R.reshape(interface.R_shape).narrow(-3, first, heads)
        if recurrent_bias is not None:
            recurrent_bias = recurrent_bias.reshape(interface.recurrent_bias_shape).narrow(-2, first, heads)
        return (
            x,
            R,
            weight,
            bias,
            recurrent_bias,
            *tensors[SEQUENCES],
            *(self._channels(vector, _channels_axis(name, interface.vector_parameters)) for name, vector in parameters),
            *(self._of_state(name, state) for name, state in states),
            *(self._of_groups(values) for values in tensors[slots.shared]),
            *(self._of_channels(values) for values in tensors[slots.inputs]),
        )

    def counted(self, tensors: Tensors) -> tuple[Any, ...]:
        """Return all of a call's tensors; weights and vectors keep the share's part of their gradients, zero elsewhere."""
        interface, slots = self.interface, self.interface.slots
        x, (R, weight, bias, recurrent_bias) = tensors[X], tensors[WEIGHTS]
        runs, gates = len(interface.runs_reversed), len(interface.gates)
        parameters = zip(interface.parameters, tensors[slots.parameters], strict=True)
        heads = interface.heads // self.member.size
        own_heads = (self.member.rank * heads, heads)
        return (
            x,
            self._counted(R, interface.R_shape, -3, own_heads),
            self._counted(weight, (runs * gates, interface.hidden_size, -1), 1),
            self._counted(bias, (*interface.directions, gates, interface.hidden_size), -1),
            self._counted(recurrent_bias, interface.recurrent_bias_shape, -2, own_heads),
            *tensors[SEQUENCES],
            *(
                self._counted(vector, vector.shape, _channels_axis(name, interface.vector_parameters))
                for name, vector in parameters
            ),
            *tensors[slots.states],
            *tensors[slots.shared],
            *tensors[slots.inputs],
        )

    def _counted(self, tensor: Any, shape: tuple[int, ...], axis: int, part: tuple[int, int] | None = None) -> Any:
        """Return a tensor whose gradient, seen in a shape, is kept in a part of an axis, by default the share's channels."""
        return None if tensor is None else _CountedPart.apply(tensor, shape, axis, part or (self.begin, self.count))

    def _of_state(self, name: str, state: Any) -> Any:
        if state is None or not self.member.gathers:
            return state
        return self._channels(_shared(state, self.member), _channels_axis(name, self.interface.vector_states))

    def _of_channels(self, values: Any) -> Any:
        """Return an input X.* for the channels of the share, which a rank has alone where the group does not gather."""
        if not self.member.gathers:
            return values
        return self._channels(_shared(values, self.member), self.interface.channel_axes.index("h"))

    def _of_groups(self, values: Any) -> Any:
        """Return an input S.* for the groups of the share's kernel, each within one group of the whole."""
        interface = self.interface
        if not self.member.gathers and _has_own_groups(interface, self.member):
            return values
        channels = self.count // groups_of_share(interface.hidden_size, interface.groups, self.member.size)
        begins = range(self.begin, self.begin + self.count, channels)
        of_groups = [begin * interface.groups // interface.hidden_size for begin in begins]
        axis, values = interface.shared_axes.index("k"), _shared(values, self.member)
        if of_groups == [*range(of_groups[0], of_groups[0] + len(of_groups))]:
            return values.narrow(axis, of_groups[0], len(of_groups))
        return torch.cat([values.narrow(axis, group, 1) for group in of_groups], axis)

    def joined(self, results: Any, states: int) -> list[Any]:
        """Return the results of all ranks together: y and the states after every step, and the final states."""
        interface, member = self.interface, self.member
        y, *others = results
        axis, runs = Y_AXES[interface.layout].index("h"), len(interface.runs_reversed)
        final = (
            _Joined.apply(state, _channels_axis(name, interface.vector_states), member, 1)
            for name, state in zip(interface.states, others[:states], strict=True)
        )
        steps = (_Joined.apply(values, axis, member, runs) for values in others[states:])
        return [_Joined.apply(y, axis, member, runs), *final, *steps]

    def _channels(self, tensor: Any, axis: int) -> Any:
        return tensor.narrow(axis, self.begin, self.count)


def _shared(tensor: Any, member: Member) -> Any:
    return _Shared.apply(tensor, member)


class _Shared(torch.autograd.Function):
    """An array on all ranks; each uses a share, and the gradient is the sum over the ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, member: Member) -> Any:
        ctx.member = member
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (summed,) = gradients_once(lambda: (sum_over_ranks(gradient, ctx.member),), (gradient,))
        return summed, None


def counted_once(tensor: Any, member: Member) -> Any:
    """Return an array whose gradient is equal on all ranks; keep it on the first rank, and zero on the others."""
    return _CountedOnce.apply(tensor, member)


class _CountedOnce(_Shared):
    """An array whose gradient is the first rank's."""

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient if ctx.member.rank == 0 else torch.zeros_like(gradient), None


class _CountedPart(torch.autograd.Function):
    """An array whose gradient is kept in a part of an axis, and zero elsewhere."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, shape: tuple[int, ...], axis: int, part: tuple[int, int]) -> Any:
        ctx.shape, ctx.axis, ctx.part = shape, axis, part
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        own = torch.zeros_like(gradient, memory_format=torch.contiguous_format)
        target, source = own.view(ctx.shape), gradient.reshape(ctx.shape)
        target.narrow(ctx.axis, *ctx.part).copy_(source.narrow(ctx.axis, *ctx.part))
        return own, None, None, None


class _Joined(torch.autograd.Function):
    """The shares of all ranks, joined; its gradient is equal on all ranks, and each takes its share of it."""

    @staticmethod
    def forward(ctx: Any, share: Any, axis: int, member: Member, runs: int) -> Any:
        ctx.axis, ctx.member, ctx.runs = axis, member, runs
        parts = all_gather(share, member).unbind()
        # Both directions are adjacent along the channels of y.
        chunks = [part.chunk(runs, axis) for part in parts]
        return torch.cat([chunk[run] for run in range(runs) for chunk in chunks], axis)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        member = ctx.member
        of_runs = [whole.chunk(member.size, ctx.axis)[member.rank] for whole in gradient.chunk(ctx.runs, ctx.axis)]
        return torch.cat(of_runs, ctx.axis), None, None, None
