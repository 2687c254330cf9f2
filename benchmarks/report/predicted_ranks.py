"""Predictions of the cost formula for several GPUs, and its constants, as tables of a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minrnn_gen.torch.sequence_group import cost

COST_PAGE = "docs/several-gpus-cost.md"
PUBLISHED_DISTRIBUTED = (
    "benchmarks/results/distributed_four_h100.json",
    "benchmarks/results/distributed_h200.json",
    "benchmarks/results/distributed_two_h100.json",
    # Before exchanges went through buffers; it has the LSTM.
    "benchmarks/results/distributed_h100.json",
)
RANKS = (2, 4, 8, 64)
# min_gru in bf16: two gates read and y written; states in fp32.
_BYTES_OF_STEP, _STATE_BYTES = 3 * 2, 4


@dataclass(frozen=True)
class _Call:
    batch: int
    time: int
    width: int

    @property
    def label(self) -> str:
        return f"{self.batch} x {self.time} x {self.width}"

    @property
    def seconds(self) -> float:
        """Time of one GPU by the formula, forward."""
        return self.batch * self.time * self.width * _BYTES_OF_STEP / cost.BYTES_PER_SECOND


_CALLS = (
    _Call(1, 1 << 20, 1024),
    _Call(1, 1 << 18, 4096),
    _Call(8, 1 << 19, 512),
    _Call(1, 1 << 24, 512),
    _Call(64, 1 << 24, 8),
)


def predicted_text() -> str:
    """Return a table of forward passes over 2, 4, 8 and 64 GPUs: how often as fast as one, in every way."""
    titles = ("min_gru, batch x time x channels", "one GPU", "way", *(f"{count} GPUs" for count in RANKS))
    lines = [f"| {' | '.join(titles)} |", "|---|---:|---|" + "---:|" * len(RANKS)]
    for call in _CALLS:
        label, alone = call.label, f"{1e3 * call.seconds:.1f} ms"
        for name in ("summary", "correct", "correct, no gate forgets", "pipeline"):
            cells = " | ".join(_speed_up(call, count, name) for count in RANKS)
            lines.append(f"| {label} | {alone} | {name} | {cells} |")
            label = alone = ""
    return "\n".join(lines) + "\n"


def _speed_up(call: _Call, ranks: int, name: str) -> str:
    way = "pipeline" if name == "pipeline" else "summary" if name == "summary" else "correct"
    ways = _ways(call, ranks, name)
    passes = next(choice.passes for choice in ways if choice.way == way)
    speed_up = f"{ranks / passes:.2f}"
    is_chosen = ways[0].way == way and name == way
    return f"**{speed_up}**" if is_chosen else speed_up


def _ways(call: _Call, ranks: int, name: str, records: bool = False) -> list[cost.Choice]:
    # One run has a piece's map and its end states.
    allowed = {**cost.gathering_passes(ranks, False, 0.0), "pipeline": 0.0}
    if name.endswith("forgets"):
        # With more than two ranks the products of coefficients are taken then.
        allowed["correct"] = cost.CORRECT_PASSES_WORST + (cost.PRODUCT_PASSES_OF_CELL if ranks > 2 else 0.0)
    states = call.batch * call.width * _STATE_BYTES
    counts = cost.counts_up_to(call.batch * call.width, None)
    seconds = cost.seconds_of_bytes(call.batch * call.time * call.width * _BYTES_OF_STEP / ranks, counts)
    return cost.choices(ranks, seconds, states, allowed, None, None, records, _carried(call, ranks))


def _carried(call: _Call, ranks: int) -> cost.Carried:
    """Return how a call is carried out: by peer_buffers within a machine, as graphs where its pieces are not too long."""
    x_bytes = call.seconds * cost.BYTES_PER_SECOND * 2 / 3 / ranks
    return cost.Carried(x_bytes <= cost.BYTES_CAPTURED_MOST, ranks <= cost.GPUS_OF_A_NODE)


def constants_text() -> str:
    """Return a table of the formula's constants and where each is from."""
    rows = [
        (
            f"{cost.BYTES_PER_SECOND / 1e12:g} TB/s",
            "what a scan reads and writes",
            "below the 4.8 TB/s of an H200's data sheet",
        ),
        (
            f"{1e6 * cost.HOP_SECONDS:g} us",
            "an exchange before its first byte",
            "assumed: two launches of 3 to 5 us, 3.6 us of NCCL's ring (`baseLat`, src/graph/tuning.cc), events of streams",
        ),
        (
            f"{1e6 * cost.NVLINK_STEP_SECONDS:g} us, over several nodes {1e6 * cost.NVLINK_STEP_SECONDS_OF_NODES:g} us",
            "to the next GPU of a node",
            "NCCL's own estimate for a ring with protocol LL (`hwLat`, the same file), times 1.8 where there are other nodes",
        ),
        (
            f"{1e6 * cost.PEER_HOP_SECONDS:g} us, {cost.PEER_BYTES_PER_SECOND / 1e9:g} GB/s",
            "an exchange through buffers, and its bytes",
            "measured over two and four H200: its kernel, and what comes before it starts; bytes assumed",
        ),
        (f"{1e6 * cost.NETWORK_STEP_SECONDS:g} us", "to a GPU of another node", "NCCL's own estimate, the same place"),
        (
            f"{cost.NVLINK_BYTES_PER_SECOND / 1e9:g} GB/s",
            "bytes within a node",
            "a third, as NCCL counts protocol LL, of the 450 GB/s in one direction of an H200's data sheet",
        ),
        (f"{cost.NETWORK_BYTES_PER_SECOND / 1e9:g} GB/s", "bytes between nodes", "assumed: a quarter of 400 Gb/s for each GPU"),
        (f"{cost.GPUS_OF_A_NODE}", "GPUs of a node", "assumed: those that NVLink connects in an HGX board"),
        (
            f"{cost.SUMMARY_PASSES:g}, {cost.CORRECT_PASSES:g}, {cost.CORRECT_PASSES_WORST:g}",
            "passes of `summary`, of `correct` where gates forget, and where none does",
            "counted, from what is run again",
        ),
        (
            f"{cost.PRODUCT_PASSES_OF_CELL:g}",
            "passes for the products of coefficients, with more than two ranks, where no gate forgets",
            "counted: a forward with as many states again; of m coupled states m for each stage, none for a power; a summary "
            "of one stage takes one less, since the same run has the end states",
        ),
        (
            f"{1e6 * cost.OPERATOR_SECONDS:g}, {1e6 * cost.COLLECTIVE_SECONDS:g}, {1e6 * cost.RUN_SECONDS:g} us",
            "the host's time of an operator of torch, of a collective, and of a run of a kernel",
            "fitted to the 1.2 ms of a forward and 3.5 ms of a step of `correct` over four H200, with some 62 (52 were counted "
            "on the last rank) and 138 operators",
        ),
        (
            f"{1e6 * cost.GRAPH_SECONDS:g}, {1e6 * cost.PEER_SECONDS:g} us",
            "the host's time of a launch of a graph, and of an exchange through buffers outside of one",
            "assumed",
        ),
        (
            f"{cost.BYTES_CAPTURED_MOST / 2**30:g} GiB",
            "x of a piece that is captured, at most",
            "assumed: a GPU reads it in a millisecond, in which the host is done",
        ),
        (
            f"{1e6 * cost.RECORDED_SECONDS:g} us",
            "what autograd takes of a step's host besides",
            "measured on one H200 ([lab notes](lab-notes.md#time-over-several-gpus))",
        ),
        (f"{cost.PASSES_OF_STEP:g}", "passes of a step", "measured of scans: forward and backward over forward alone"),
        (
            f"{cost.OPERATORS_OF_RANK}",
            "operators of a step's host for each rank after the fourth",
            "counted: gradients of final states are added in the order of ranks",
        ),
        (
            f"{1e6 * cost.CORRECTION_SECONDS:g} us",
            "a correction where gates forget",
            "measured: what calls in a row over two H100 took longer than half of one GPU's time",
        ),
        (
            f"{1e6 * cost.CORRECTION_SECONDS_IN_GRAPHS:g}, {1e6 * cost.FOLD_SECONDS_IN_GRAPHS:g} us",
            "the same in a graph, and besides with more than two ranks",
            "measured over two and four H200: what calls took longer than a piece and exchanges",
        ),
        (
            f"{cost.JOIN_PASSES_OF_SCAN:.2f}",
            "passes of a pipeline of `scan`, or of a cell with `input_size`, that puts y of several groups together",
            "counted: one of three words, read and written",
        ),
        (
            f"{1e6 * cost.HOST_SECONDS_OF_GROUP:g} us",
            "what a host takes for a group of a pipeline, at least",
            "measured over two H200: two messages and a launch",
        ),
        (
            f"{1e6 * cost.GROUP_SECONDS:g} us",
            "a group of a pipeline within a graph, besides its bytes",
            "measured over two and four H200: 27 to 47 us with 4 and 8 groups",
        ),
        (
            f"{1e6 * cost.PIPELINE_SECONDS:g} us",
            "a pipeline besides, outside of a graph",
            "measured over two H100, calls in a row",
        ),
        (f"{cost.MICRO_BATCHES_MOST}", "groups of a pipeline at most", "assumed: with more, kernels have too few sequences"),
    ]
    return "\n".join(["| constant | of | source |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def host_text() -> str:
    """Return a table of what each way asks of a host on two and on four GPUs."""
    titles = ("way", "pass", *(f"{ranks} GPUs: operators, collectives, runs | ms" for ranks in (2, 4)))
    lines = [f"| {' | '.join(titles)} |", "|---|---|---|---:|---|---:|"]
    kinds = {
        "": cost.ENQUEUED,
        ", as graphs": cost.Carried(True, False),
        ", as graphs, by peer_buffers": cost.Carried(True, True),
    }
    for kind, carried in kinds.items():
        for way, records in cost.HOST_COUNTS:
            cells = []
            for ranks in (2, 4):
                counts = cost.host_counts(way, ranks, records, carried)
                ms = 1e3 * cost.host_seconds(way, ranks, records, carried)
                cells.append(f"{counts.operators}, {counts.collectives}, {counts.runs} | {ms:.2f}")
            lines.append(f"| `{way}`{kind} | {'with gradients' if records else 'forward'} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


SECTIONS: Mapping[str, Callable[[], str]] = {
    "predicted ranks": predicted_text,
    "constants of ranks": constants_text,
    "hosts of ranks": host_text,
}
