"""The recurrence of a kernel over the pieces of a group: agreement, the choice of a way, forward and backward."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from minrnn_gen.build.builder import builder_of
from minrnn_gen.build.recipe import spec_from
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.array import Array, contiguous_strides
from minrnn_gen.call.key import keyed
from minrnn_gen.call.slots import CU_SEQLENS, LENGTHS
from minrnn_gen.call.validate import check_call
from minrnn_gen.errors import BadInput, Infeasible
from minrnn_gen.gpu import memory
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import kernel_by, recipe_in_direction, recipe_of_heads, stages_of
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.run.expected_time import expected_of
from minrnn_gen.run.recording.replay import ByKey
from minrnn_gen.torch.operators import calls
from minrnn_gen.torch.operators.dispatch import is_plain, records
from minrnn_gen.torch.operators.recorded import RecurrenceFunction, Tensors
from minrnn_gen.torch.sequence_group import peer_buffers
from minrnn_gen.torch.sequence_group.agreement import Agreement, agree, device_of
from minrnn_gen.torch.sequence_group.cost import (
    BYTES_CAPTURED_MOST,
    DENSE_STEP_SECONDS,
    PRODUCT_PASSES_OF_CELL,
    SECONDS_LEAST,
    Carried,
    Choice,
    choices,
    gathering_passes,
    seconds_of_bytes,
)
from minrnn_gen.torch.sequence_group.cuts import Along, cuts_of
from minrnn_gen.torch.sequence_group.fold import first_steps
from minrnn_gen.torch.sequence_group.gathered import Gathered
from minrnn_gen.torch.sequence_group.group import Member, Way, is_alive, is_on_gpu
from minrnn_gen.torch.sequence_group.on_rank import OnRank
from minrnn_gen.torch.sequence_group.peers import meet
from minrnn_gen.torch.sequence_group.piece import Piece
from minrnn_gen.torch.sequence_group.pieces import Directions, check_global_sequences, digest_of, with_local_sequences
from minrnn_gen.torch.sequence_group.pipeline import Pipeline
from minrnn_gen.torch.sequence_group.summary import Summary

# A rank's message has the digest of a recipe that is longer than this.
_RECIPE_CHARACTERS = 400


@dataclass(frozen=True)
class _Settled:
    """Consequences of a call's form alone: the agreement of all ranks, the method, and the axis that a pipeline cuts."""

    agreement: Agreement
    choice: Choice
    along: Along
    parts: dict[tuple[Kernel, bool], OnRank] = field(default_factory=dict)


# By keys of calls with CUDA tensors, whose checks would keep a GPU waiting.
_SETTLED: dict[Any, ByKey[_Settled]] = {}


def run_pieces(kernel: Kernel, tensors: tuple[Any, ...], member: Member, all_states: bool = False) -> list[Any]:
    """Return y of this rank's piece, the final states of whole sequences and, with `all_states`, those of the piece's steps.

    Recorded on every rank where a tensor of any rank requires grad. Raises BadInput on every rank for wrong arguments.
    """
    held, key = _settled_in(member.process_group), None
    if is_on_gpu(tensors[0]):
        asked = (kernel.recipe, all_states, member.way, member.micro_batches, member.graphs, records(tensors))
        with torch.no_grad():
            key = keyed(asked, [*tensors])
    settled = None if key is None else held.get(key.key)
    if settled is None:
        settled = _settled(kernel, tensors, member, all_states)
        if key is not None:
            held.keep(key.key, settled)
    check_global_sequences(tensors, settled.agreement)
    if not kernel.interface.directions:
        return _run_direction(kernel, tensors, member, settled, all_states)
    directions = Directions(kernel.interface)
    forward, reverse = (
        _run_direction(
            kernel_by(recipe_in_direction(kernel, name)), directions.part(tensors, place), member, settled, all_states
        )
        for place, name in enumerate(("forward", "reverse"))
    )
    return directions.together(forward, reverse, len(kernel.states))


def _settled_in(process_group: Any) -> ByKey[_Settled]:
    """Return the settled calls of a group; those of groups that were destroyed, and their graphs, are let go of."""
    if process_group not in _SETTLED:
        for other in [*_SETTLED]:
            if not is_alive(other):
                del _SETTLED[other]
                peer_buffers.forget(other)
        _SETTLED[process_group] = ByKey()
    return _SETTLED[process_group]


def _settled(kernel: Kernel, tensors: tuple[Any, ...], member: Member, all_states: bool) -> _Settled:
    """Check a call and agree on it with the other ranks."""
    time, refusal, seconds = 0, None, {}
    asked = {"all_states": all_states, "way": member.way, "micro_batches": member.micro_batches, "graphs": member.graphs}
    is_packed = tensors[CU_SEQLENS] is not None
    try:
        check_plain_call(kernel, tensors, is_global=True)
        _check_way(kernel, member)
        batch, time = (tensors[0].shape[kernel.interface.x_axes.index(axis)] for axis in "bt")
        along, counts = cuts_of(kernel, batch, is_packed, member.micro_batches)
        seconds = seconds_of(kernel, batch, time, (along, counts), is_on_gpu(tensors[0]))
    except BadInput as refused:
        refusal = refused
    form = {} if refusal else {**form_of(kernel, tensors), **asked}
    agreement = agree(
        member, device_of(tensors[0]), form, time=time, records=records(tensors), refusal=refusal, seconds=seconds
    )
    if member.graphs and is_on_gpu(tensors[0]):
        meet(member, kernel, tensors[0].device)
    mean = agreement.time / member.size
    has_sequences = Piece.has_sequences(tensors)
    on_gpu = is_on_gpu(tensors[0])
    choice = ways_of(kernel, batch, mean, agreement.seconds, member, has_sequences, agreement.records, on_gpu)[0]
    return _Settled(agreement, choice, along)


def seconds_of(kernel: Kernel, batch: int, time: float, cuts: tuple[Along, Sequence[int]], on_gpu: bool) -> dict[int, float]:
    """Return {groups of a piece of `time` steps: predicted time of a pass over one group}; `cuts` is from `cuts_of`.

    A scan takes the time of its bytes. The steps of a dense cell, and of coupled states, wait for each other, so that on a GPU
    half of the sequences take more than half of the time, and n values per channel take longer than their bytes: there the
    prediction is the kernel's own plan's.
    """
    interface, has_matrix = kernel.interface, kernel.builder.cell_shape.has_matrix
    along, counts = cuts
    if on_gpu and (has_matrix or interface.has_vectors or _is_coupled(kernel)):
        with contextlib.suppress(Infeasible):
            return {count: 1e-6 * _planned_us(kernel, along, count, batch, max(1, round(time))) for count in counts}
    if has_matrix:
        return {count: max(time * DENSE_STEP_SECONDS / count, SECONDS_LEAST) for count in counts}
    itemsize = calls.storage_dtype(kernel).itemsize
    return seconds_of_bytes(batch * time * interface.hidden_size * (len(interface.gates) + 1) * itemsize, counts)


def _is_coupled(kernel: Kernel) -> bool:
    """Whether pieces compose by maps of several states."""
    return bool(stages_of(kernel.recipe)) and not kernel.builder.cell_shape.is_scan


def _planned_us(kernel: Kernel, along: Along, count: int, batch: int, time: int) -> float:
    if along == "sequences" or count == 1:
        return expected_of(kernel.builder, "forward", Sizes(-(-batch // count), time)).us
    spec = spec_from(recipe_of_heads(kernel, count))
    return expected_of(builder_of(spec, kernel.builder.target), "forward", Sizes(batch, time)).us


def expected_ways(
    kernel: Kernel, batch: int, time: int, member: Member, on_gpu: bool = True, records: bool = False
) -> list[Choice]:
    """Return the ways of a call of `batch` rows and `time` steps over all ranks, in even pieces, the cheapest first."""
    cuts, mean = cuts_of(kernel, batch, False, member.micro_batches), time / member.size
    seconds = seconds_of(kernel, batch, mean, cuts, on_gpu)
    return ways_of(kernel, batch, mean, seconds, member, records=records, on_gpu=on_gpu)


def ways_of(
    kernel: Kernel,
    batch: int,
    time: float,
    seconds: Mapping[int, float],
    member: Member,
    has_sequences: bool = False,
    records: bool = False,
    on_gpu: bool = True,
) -> list[Choice]:
    """Return the ways of a call of `batch` rows and `time` steps of a piece, the cheapest first.

    `seconds` and `records` as `choices` takes them; `has_sequences`: sequences begin or end within a row.
    """
    spec, interface = kernel.spec, kernel.interface
    has_matrix = kernel.builder.cell_shape.has_matrix
    words = len(interface.gates) + 1
    # Otherwise y of all groups is joined: a read and a write, negligible next to the steps of a dense cell.
    is_in_place = not (interface.input_size or interface.has_vectors)
    allowed: dict[Way, float] = {"pipeline": 0.0 if has_matrix or is_in_place else 2 / words}
    if (stages := stages_of(kernel.recipe)) and spec.training:
        steps = 0 if has_sequences else first_steps(round(time))
        # Filters and oscillators forget by their parameters, which hold for all of time: less is not counted on.
        runs_again = not steps or _is_coupled(kernel)
        # A constant map is a power; a later stage needs its end states alone.
        columns = [
            (place > 0) if stage.is_constant else len(stage.entries) / len(stage.states) for place, stage in enumerate(stages)
        ]
        product_passes = sum(columns) * PRODUCT_PASSES_OF_CELL
        # One run has the maps of a single stage and the end states.
        is_at_once = len(stages) == 1 and not stages[0].is_constant
        allowed |= gathering_passes(member.size, runs_again, product_passes - (1 if is_at_once else 0))
        # With the entering states and without.
        allowed["correct"] += 2 * steps / max(1.0, time)
    values = interface.hidden_size * (interface.state_size or 1)
    state_bytes = batch * values * len(interface.states) * calls.arithmetic_dtype(kernel).itemsize
    x_bytes = batch * time * interface.hidden_size * len(interface.gates) * calls.storage_dtype(kernel).itemsize
    in_graphs = member.graphs and on_gpu and not (interface.input_size or interface.inputs or has_sequences)
    boxes = peer_buffers.peer_buffers_of(member.process_group) if member.graphs else None
    # Of coefficients and end states, the largest message.
    by_peer_buffers = on_gpu and boxes is not None and 2 * state_bytes <= boxes.message_bytes
    carried = Carried(in_graphs and x_bytes <= BYTES_CAPTURED_MOST, by_peer_buffers)
    return choices(member.size, seconds, state_bytes, allowed, member.way, member.micro_batches, records, carried)


def ways_in_words(kernel: Kernel, batch: int, time: int, member: Member) -> str:
    """Return the ways of a call with their predicted passes, the chosen one first, and whether one GPU would be faster."""
    expected = expected_ways(kernel, batch, time, member)
    ways = [
        f"{choice.way}{f' of {choice.micro_batches} groups' * (choice.way == 'pipeline')}, {choice.passes:.2f} passes"
        for choice in expected
    ]
    # All of time is a pass for each rank.
    slower = "; one GPU with all of time is expected to be faster" * (expected[0].passes > member.size)
    return f"time over {member.size} ranks: {'; '.join([ways[0], *(f'or {way}' for way in ways[1:])])}{slower}"


def _run_direction(kernel: Kernel, tensors: Tensors, member: Member, settled: _Settled, all_states: bool) -> list[Any]:
    agreement = settled.agreement
    local = with_local_sequences(tensors, agreement.begin(member.rank), agreement.times[member.rank])
    form = (kernel, Piece.has_sequences(local))
    part = settled.parts.get(form)
    if part is None:
        piece = Piece(kernel, member, all_states, agreement.records)
        part = settled.parts[form] = OnRank(piece, _way_of(piece, settled, Piece.has_sequences(local)))
    if not agreement.records:
        return list(part.forward((*local, None)))
    # A rank without its own gradient takes part in the other ranks' backward.
    anchor = None if records(tensors) else torch.zeros((), requires_grad=True)
    return list(RecurrenceFunction.of(part, (*local, anchor)))


def _way_of(piece: Piece, settled: _Settled, has_sequences: bool) -> Gathered | Summary | Pipeline:
    choice = settled.choice
    if choice.way == "pipeline":
        return Pipeline(piece, settled.along, choice.micro_batches)
    corrects = choice.way == "correct" and not has_sequences
    return (None if corrects else Summary.of(piece)) or Gathered(piece, corrects)


def form_of(kernel: Kernel, tensors: Tensors) -> dict[str, Any]:
    """Return the properties of a kernel's call that all ranks share, whatever is split over them."""
    recipe = kernel.recipe
    if len(recipe) > _RECIPE_CHARACTERS:
        recipe = hashlib.sha256(recipe.encode()).hexdigest()
    x, on_cpu = tensors[0], tensors[0].device.type == "cpu"
    lengths, ends = tensors[LENGTHS], tensors[CU_SEQLENS]
    return {
        "spec": recipe,
        "batch": x.shape[kernel.interface.x_axes.index("b")],
        "device": x.device.type,
        "lengths": digest_of(lengths) if on_cpu else lengths is not None,
        "cu_seqlens": digest_of(ends) if on_cpu else None if ends is None else ends.numel(),
    }


def _check_way(kernel: Kernel, member: Member) -> None:
    """Refuse a way that the cell does not have."""
    if member.way not in ("summary", "correct"):
        return
    if not stages_of(kernel.recipe):
        raise BadInput(
            f"way is {member.way!r}, but the steps of {kernel.builder.cell_source.name} are not affine, so that nothing short "
            f"of them says what a piece makes of the states that enter it; leave way out, or give 'pipeline'"
        )
    if not kernel.spec.training:
        raise BadInput(f"way is {member.way!r}, which needs the backward of the kernel, but the spec has training: false")


def check_plain_call(kernel: Kernel, tensors: Tensors, is_global: bool) -> None:
    """Apply the kernel's own checks, except that global lengths and boundaries may exceed the piece."""
    interface = kernel.interface
    calls.check_tensors(kernel, tensors)
    if not is_plain(tensors):
        raise BadInput("a group of ranks was given with tensors of a subclass or without memory; give plain dense tensors")
    x = tensors[0]
    time = x.shape[interface.x_axes.index("t")] if x.dim() == len(interface.x_axes) else 0
    local = with_local_sequences(tensors, 0, time) if is_global else tensors
    detached = [tensor if tensor is None else tensor.detach() for tensor in local]
    check_call(interface, _inspect, memory.read_back, CallArguments.from_flat(interface, detached))


def _inspect(value: Any, name: str) -> Array:
    """Describe a tensor as if without gaps: a kernel takes a copy of one with gaps."""
    array = memory.inspect(value, name)
    return replace(array, strides=contiguous_strides(array.shape))
