"""The cost formula of a group of ranks: the way of passing states, and the number of groups that a pipeline cuts.

The unit of time is a pass: one rank's forward over its whole piece. A way costs its passes and its hops, messages that wait for
each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from minrnn_gen.torch.sequence_group.group import Way

# From zero, and again with the states that enter.
SUMMARY_PASSES = 2.0
# From zero; what is corrected where gates forget are a few steps, whose time is that of `CORRECTION_SECONDS`.
CORRECT_PASSES = 1.0
# Where a gate does not forget: from zero, and again.
CORRECT_PASSES_WORST = 2.0
# The products of coefficients, of pieces that are neither first nor last, where end states are folded: of a cell a forward with
# as many states again, of the raw scan one of the three words that a pass moves.
PRODUCT_PASSES_OF_CELL, PRODUCT_PASSES_OF_SCAN = 1.0, 1 / 3
# A few steps with and without what enters, their comparison, and the launch that ends at once: what one of many calls in a row
# over two H100 took longer than half of one GPU's time and the gathers, 80 to 250 us.
CORRECTION_SECONDS = 100e-6
# The same in a graph, whose kernels follow each other more closely, over two H200.
CORRECTION_SECONDS_IN_GRAPHS = 60e-6
# With more than two ranks, besides: launches for the maps of pieces, which end at once, and their fold, over four H200.
FOLD_SECONDS_IN_GRAPHS = 30e-6
# Of a pipeline with several groups, where kernels do not write into y of all of them: it is put together, a copy of one of the
# three words that a pass moves.
JOIN_PASSES_OF_SCAN = 2 / 3
# What the host takes for a group of a pipeline, two messages and a launch: it was 260 to 380 us with an H200, 160 to 230 in a
# loop of calls without gradients with an H100. A group takes no less, nor does the wait for the first.
HOST_SECONDS_OF_GROUP = 300e-6
# What a group of a pipeline in a graph takes besides its bytes: few columns of channels keep blocks of a scan waiting for each
# other. It was 27 to 47 us over two and four H200, with 4 and 8 groups.
GROUP_SECONDS = 40e-6
# What a pipeline takes besides, the copy of the final states among it: 40 to 360 us over two H100.
PIPELINE_SECONDS = 200e-6
# The host's time of an operator of torch, of a collective, of a run of a kernel, and of autograd in a step. They fit the 1.2 ms
# of a forward and the 3.5 ms of a step of `correct` over four H200. The step asked for 138 operators; the forward of the
# busiest rank for some 62, of which 52 on the last rank were counted.
OPERATOR_SECONDS, COLLECTIVE_SECONDS, RUN_SECONDS, RECORDED_SECONDS = 13e-6, 60e-6, 40e-6, 800e-6
# A launch of a graph: an assumption, that of a kernel and what torch does around it.
GRAPH_SECONDS = 15e-6
# A launch of the kernel that exchanges through buffers, outside graphs; an assumption.
PEER_SECONDS = 10e-6
# Of a piece's x: a GPU reads so much in a millisecond, longer than the host takes for any way, and what graphs have of memory
# is kept from others. Longer pieces are not captured.
BYTES_CAPTURED_MOST = 1 << 32
# Operators of the host for each rank after the fourth in a step: gradients of final states are added in the order of ranks.
OPERATORS_OF_RANK = 1
# A step, forward and backward, next to a forward: a scan moves three times the bytes.
PASSES_OF_STEP = 3.0
# An exchange before its first byte: two launches of 3 to 5 us, one of them NCCL's kernel, its ring's 3.6 us (baseLat in NCCL's
# src/graph/tuning.cc), and events between the two streams; an assumption, as is all that follows.
HOP_SECONDS = 20e-6
# A step of a ring to the next GPU of a node, and to that of another (hwLat there, protocol LL: 0.47 us, times 1.8 where there
# are other nodes, and 2.7 us).
NVLINK_STEP_SECONDS, NVLINK_STEP_SECONDS_OF_NODES, NETWORK_STEP_SECONDS = 0.47e-6, 0.85e-6, 2.7e-6
# One direction of an H200's NVLink by its data sheet, of which protocol LL has a third; over several nodes a quarter of the
# network's.
NVLINK_BYTES_PER_SECOND = 450e9 / 3
# A network card of 400 Gb/s for each GPU.
NETWORK_BYTES_PER_SECOND = 50e9 / 4
# An exchange through buffers: its kernel took 3.6 to 6 us over two and four H200, between neighbours in a graph. What one block
# stores in a second is an assumption.
PEER_HOP_SECONDS, PEER_BYTES_PER_SECOND = 6e-6, 50e9
# GPUs that NVLink connects.
GPUS_OF_A_NODE = 8
# Bytes that a scan reads and writes in a second: the memory of a large GPU.
BYTES_PER_SECOND = 4e12
# A step of a dense cell on a CPU, which runs its sequences in turn, and on a GPU without a plan.
DENSE_STEP_SECONDS = 1.5e-6
# A lower bound on the time of a pass, for tiny ones.
SECONDS_LEAST = 20e-9
# More groups than this leave kernels too few sequences to fill a GPU.
MICRO_BATCHES_MOST = 8


@dataclass(frozen=True)
class HostCounts:
    """Operators, collectives and runs of kernels that a call asks of its host."""

    operators: int
    collectives: int
    runs: int


# For a way, and a forward or a step: of the busiest rank of two, and of four; counted in a scan of one state.
HOST_COUNTS: dict[tuple[Way, bool], tuple[HostCounts, HostCounts]] = {
    ("correct", False): (HostCounts(20, 2, 4), HostCounts(41, 3, 5)),
    ("correct", True): (HostCounts(35, 4, 5), HostCounts(94, 6, 10)),
    ("summary", False): (HostCounts(6, 2, 1), HostCounts(20, 2, 2)),
    ("summary", True): (HostCounts(15, 4, 2), HostCounts(35, 4, 4)),
}
# The same of calls that are launched as graphs, whose number is that of the runs.
GRAPH_COUNTS: dict[tuple[Way, bool], tuple[HostCounts, HostCounts]] = {
    ("correct", False): (HostCounts(2, 2, 2), HostCounts(2, 3, 3)),
    ("correct", True): (HostCounts(4, 4, 4), HostCounts(5, 6, 7)),
    ("summary", False): (HostCounts(2, 2, 1), HostCounts(2, 2, 2)),
    ("summary", True): (HostCounts(4, 4, 4), HostCounts(5, 4, 5)),
}


@dataclass(frozen=True)
class Carried:
    """How a call over ranks is carried out: launched as graphs or not; exchanges through buffers of GPUs or by the backend."""

    in_graphs: bool = False
    by_peer_buffers: bool = False

    @property
    def at_once(self) -> bool:
        """Whether one graph contains a direction of a call, exchanges included."""
        return self.in_graphs and self.by_peer_buffers


ENQUEUED = Carried()


@dataclass(frozen=True)
class Choice:
    """A way, its groups of sequences, and its predicted time relative to one rank's piece alone."""

    way: Way
    micro_batches: int
    passes: float


def gathering_passes(ranks: int, runs_again: bool, product_passes: float) -> dict[Way, float]:
    """Return the passes of the gathering ways; `runs_again`: a piece is never corrected in part, as where sequences end.

    `product_passes`: passes for the products of coefficients.
    """
    summary = SUMMARY_PASSES + (product_passes if ranks > 2 else 0.0)
    return {"correct": summary if runs_again else CORRECT_PASSES, "summary": summary}


def groups_in_turn(ranks: int, micro_batches: int) -> int:
    """Return a pipeline's time in groups: the last rank starts when P - 1 groups have passed through the others."""
    return micro_batches + ranks - 1


def counts_up_to(size: int, asked: int | None) -> tuple[int, ...]:
    """Return the numbers of groups into which `size` sequences or channels may be cut, at most `asked` if set."""
    return tuple(range(1, max(1, min(size, asked or MICRO_BATCHES_MOST)) + 1))


def seconds_of_bytes(piece_bytes: float, counts: Iterable[int]) -> dict[int, float]:
    """Return {groups of a piece: time of a pass over one group} where moving the piece's bytes takes all of the time."""
    return {count: max(piece_bytes / count / BYTES_PER_SECOND, SECONDS_LEAST) for count in counts}


def host_counts(way: Way, ranks: int, records: bool, carried: Carried = ENQUEUED) -> HostCounts:
    """Return what a forward of a gathering way, or a step where it `records`, asks of its host."""
    counts = (GRAPH_COUNTS if carried.in_graphs else HOST_COUNTS)[way, records][ranks > 2]
    if carried.at_once:
        return HostCounts(counts.operators, 0, 2 if records else 1)
    more = OPERATORS_OF_RANK * max(0, ranks - 4) if records and not carried.in_graphs else 0
    return HostCounts(counts.operators + more, counts.collectives, counts.runs)


def host_seconds(way: Way, ranks: int, records: bool, carried: Carried = ENQUEUED) -> float:
    """Return the time of `host_counts`."""
    counts = host_counts(way, ranks, records, carried)
    seconds = counts.operators * OPERATOR_SECONDS
    seconds += counts.collectives * (PEER_SECONDS if carried.by_peer_buffers else COLLECTIVE_SECONDS)
    seconds += counts.runs * (GRAPH_SECONDS if carried.in_graphs else RUN_SECONDS)
    return seconds + (RECORDED_SECONDS if records else 0.0)


def heads_seconds(ranks: int, share: float, y_bytes: float, x_bytes: float, records: bool) -> float:
    """Return the time of a call whose heads are split and whose results are gathered.

    `share`: the seconds of a forward of one rank's heads; the bytes are those of all heads. A call that `records` also sums the
    gradient of x over ranks.
    """
    seconds = share * (PASSES_OF_STEP if records else 1.0) + gather_seconds(ranks, y_bytes / ranks)
    return seconds + (2 * gather_seconds(ranks, x_bytes / ranks) if records else 0.0)


def gather_seconds(ranks: int, count: float, carried: Carried = ENQUEUED) -> float:
    """Return the time of an all-gather of `count` bytes of each rank: around a ring, rank by rank; through buffers at once."""
    if carried.by_peer_buffers:
        return message_seconds(ranks, (ranks - 1) * count, carried)
    nodes = -(-ranks // GPUS_OF_A_NODE)
    step = NVLINK_STEP_SECONDS if nodes == 1 else NVLINK_STEP_SECONDS_OF_NODES
    steps = (ranks - nodes) * step + (nodes - 1) * NETWORK_STEP_SECONDS
    return HOP_SECONDS + steps + (ranks - 1) * count / _bytes_per_second(ranks)


def message_seconds(ranks: int, count: float, carried: Carried = ENQUEUED) -> float:
    """Return the time of a message of `count` bytes to the next rank, the slowest of them."""
    if carried.by_peer_buffers:
        return PEER_HOP_SECONDS + count / PEER_BYTES_PER_SECOND
    is_one_node = ranks <= GPUS_OF_A_NODE
    return HOP_SECONDS + (NVLINK_STEP_SECONDS if is_one_node else NETWORK_STEP_SECONDS) + count / _bytes_per_second(ranks)


def _bytes_per_second(ranks: int) -> float:
    return NVLINK_BYTES_PER_SECOND if ranks <= GPUS_OF_A_NODE else NETWORK_BYTES_PER_SECOND


def _correction_seconds(ranks: int, carried: Carried) -> float:
    """Return the time of a correction where gates forget."""
    if not carried.in_graphs:
        return CORRECTION_SECONDS
    return CORRECTION_SECONDS_IN_GRAPHS + (FOLD_SECONDS_IN_GRAPHS if ranks > 2 else 0.0)


def choices(
    ranks: int,
    seconds: Mapping[int, float],
    state_bytes: float,
    allowed: dict[Way, float],
    way: Way | None,
    micro_batches: int | None,
    records: bool = False,
    carried: Carried = ENQUEUED,
) -> list[Choice]:
    """Return the `allowed` ways, each by its passes, the cheapest first; `records`: for a step rather than a forward alone.

    `carried`: of calls that come again with their arrays, if they are launched as graphs.

    A pipeline's passes follow from its groups; with several groups the `allowed` passes are added. `seconds`: {number of
    groups: time of a pass over one group}, 1 among the numbers; `state_bytes`: bytes of all states of the call. A `way` that is
    not None is the only choice; `micro_batches` fixes the number of groups: the largest possible one up to it.
    """
    of_pass, counts = seconds[1], sorted(seconds)
    # A coefficient and a state of each; and the final states, which the last rank has.
    gathers = (gather_seconds(ranks, 2 * state_bytes, carried) + message_seconds(ranks, state_bytes, carried)) / of_pass

    def of_group(count: int) -> float:
        """Return the time of a group and its message."""
        seconds_of = seconds[count] + message_seconds(ranks, state_bytes / count, carried)
        return seconds_of + GROUP_SECONDS if carried.at_once and count > 1 else max(seconds_of, least)

    def besides(count: int) -> float:
        """Return the time of a pipeline in addition to its groups' passes."""
        joins = allowed["pipeline"] * of_pass if count > 1 else 0.0
        return joins + (0.0 if carried.at_once else PIPELINE_SECONDS)

    least = 0.0 if carried.at_once else HOST_SECONDS_OF_GROUP
    costed = []
    for name, passes in allowed.items():
        if way not in (None, name):
            continue
        if name != "pipeline":
            correction = _correction_seconds(ranks, carried) / of_pass if name == "correct" else 0.0
            of_host = host_seconds(name, ranks, records, carried) / (of_pass * (PASSES_OF_STEP if records else 1.0))
            costed.append(Choice(name, 1, max(passes + gathers + correction, of_host)))
            continue
        if micro_batches is not None:
            counts = [max(count for count in counts if count <= micro_batches)]
        pipelines = [
            Choice(name, count, (groups_in_turn(ranks, count) * of_group(count) + besides(count)) / of_pass) for count in counts
        ]
        costed.append(min(pipelines, key=lambda choice: choice.passes))
    return sorted(costed, key=lambda choice: choice.passes)
