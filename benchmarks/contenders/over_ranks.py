"""One rank alone, and all ranks in every way, at one problem: run on all ranks of the group at once.

Each rank draws its own piece. The first one has the whole besides, from the same seeds, and what it computes alone is what the
pieces are compared with.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.harness.rounds import Limits, failure_of, quartiles, rounds_for
from benchmarks.problems.distributed_problems import (
    MICRO_BATCHES,
    REMEMBERING_LOGIT,
    REMEMBERING_RATE,
    DistributedProblem,
    KernelPass,
)
from benchmarks.report.distributed_record import ALONE, DistributedRow
from minrnn_gen.kernel import Kernel
from minrnn_gen.torch.operators.functional import recurrence
from minrnn_gen.torch.sequence_group.cells import expected_ways
from minrnn_gen.torch.sequence_group.clock import Clock
from minrnn_gen.torch.sequence_group.exchange import watched
from minrnn_gen.torch.sequence_group.group import HeadGroup, SequenceGroup, member_of
from minrnn_gen.torch.sequence_group.tuned import tune_sequence_group

# Runs that are watched: events around every exchange disturb, so that they are no rounds.
WATCHED_RUNS = 3

Run = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Host(Clock):
    """Ranks on one kind of device, with its clock; `graphs`: whether their calls are launched as graphs."""

    graphs: bool = True

    @property
    def rank(self) -> int:
        """This rank in the group."""
        return int(dist.get_rank(self.group))

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return int(dist.get_world_size(self.group))

    def all_of(self, value: Any) -> list[Any]:
        """Return the values of all ranks, which are none of arrays."""
        values = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values


@dataclass
class _Contender:
    """A way of a call; `run` is None on ranks that are idle then."""

    row: DistributedRow
    run: Run | None
    times_ms: list[float] = field(default_factory=list)


def rows_of(
    problem: DistributedProblem, kernel_pass: KernelPass, kernel: Kernel, host: Host, limits: Limits
) -> tuple[DistributedRow, ...]:
    """Return the rows of a problem, the same on all ranks; a failure but of the one rank alone ends the run on all of them."""
    inputs = Inputs(problem, kernel, host)
    records = kernel_pass != "forward"
    alone, expected = _alone(problem, kernel_pass, inputs, records)
    contenders = [_Contender(*alone)]
    calls = [*asked_of(problem, kernel_pass, kernel, host)]
    if not problem.is_dense:
        tuned = _tuned(inputs, records)
        calls.append((_row_of("tuned", tuned, problem, kernel_pass, kernel, host), {"sequence_group": tuned}))
    for row, asked in calls:
        run = inputs.run_of(inputs.of(asked), asked, records)
        errors = _errors(run(), expected, "head_group" in asked, host)
        share, contributed = _exchange(run, host)
        row = row.model_copy(update={"errors": errors, "exchange_share": share, "bytes_contributed": contributed})
        contenders.append(_Contender(row, run))
    expected.clear()
    _time(contenders, host, limits)
    return tuple(contender.row for contender in contenders)


def asked_of(
    problem: DistributedProblem, kernel_pass: KernelPass, kernel: Kernel, host: Host
) -> Iterator[tuple[DistributedRow, dict[str, Any]]]:
    """Yield rows without times, and what the call is given besides its arrays."""
    if problem.is_dense:
        row = DistributedRow(problem=problem, kernel_pass=kernel_pass, contender="heads", passes=1.0)
        yield row, {"head_group": host.group}
        yield row.model_copy(update={"contender": "own heads"}), {"head_group": HeadGroup(host.group, gathers=False)}
        groups = [("micro-batches", SequenceGroup(host.group, "pipeline", MICRO_BATCHES))]
    else:
        groups = [(way, SequenceGroup(host.group, way, graphs=host.graphs)) for way in ("summary", "correct", "pipeline")]
    for name, group in [*groups, ("chosen", SequenceGroup(host.group, graphs=host.graphs))]:
        yield _row_of(name, group, problem, kernel_pass, kernel, host), {"sequence_group": group}


def _row_of(
    name: str, group: SequenceGroup, problem: DistributedProblem, kernel_pass: KernelPass, kernel: Kernel, host: Host
) -> DistributedRow:
    """Return a row with the way that runs over a group, and the cost formula's prediction of it."""
    records = kernel_pass != "forward"
    choice = expected_ways(kernel, problem.batch, problem.time, member_of(group), host.has_events, records)[0]
    return DistributedRow(
        problem=problem, kernel_pass=kernel_pass, contender=name, way=choice.way, micro_batches=choice.micro_batches,
        passes=choice.passes,
    )  # fmt: skip


def _tuned(inputs: Inputs, records: bool) -> SequenceGroup:
    """Return the group with the way that is measured to be the fastest with these arrays."""
    host, arrays = inputs.host, inputs.piece(inputs.host.rank)
    # One run for each way: a call that comes again with its arrays is launched as graphs.
    run_over = functools.cache(lambda group: inputs.run_of(arrays, {"sequence_group": group}, records))
    return tune_sequence_group(SequenceGroup(host.group, graphs=host.graphs), lambda group: run_over(group)())


def _alone(
    problem: DistributedProblem, kernel_pass: KernelPass, inputs: Inputs, records: bool
) -> tuple[tuple[DistributedRow, Run | None], dict[str, Any]]:
    """Return the first rank's row and run, and on every rank what its own piece of the results is; none where it fails."""
    host, failure, run, results = inputs.host, None, None, {}
    if host.rank == 0:
        try:
            run = inputs.run_of(inputs.whole(), {}, records)
            results = run()
        except (RuntimeError, MemoryError) as error:  # most often the memory of one device
            failure, run = failure_of(error), None
            inputs.forget()
    failure = host.all_of(failure)[0]
    row = DistributedRow(problem=problem, kernel_pass=kernel_pass, contender=ALONE, failure=failure)
    return (row, run), {} if failure else _scattered(results, inputs)


def _scattered(results: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
    """Return the piece of this rank of the first rank's results; of a dense cell all of them."""
    host, pieces = inputs.host, {}
    names = host.all_of({name: (tuple(value.shape), value.dtype) for name, value in results.items()})[0]
    for name, (shape, dtype) in names.items():
        if inputs.problem.is_dense or name == "final":
            value = results[name].contiguous() if host.rank == 0 else torch.empty(shape, dtype=dtype, device=host.device)
            dist.broadcast(value, group=host.group, group_src=0)
            pieces[name] = value
            continue
        for rank in range(1, host.size):
            begin, steps = inputs.place(rank)
            if host.rank == 0:
                dist.send(results[name].narrow(1, begin, steps).contiguous(), group=host.group, group_dst=rank)
            elif host.rank == rank:
                own = torch.empty((shape[0], steps, *shape[2:]), dtype=dtype, device=host.device)
                dist.recv(own, group=host.group, group_src=0)
                pieces[name] = own
        if host.rank == 0:
            pieces[name] = results[name].narrow(1, *inputs.place(0)).clone()
    return pieces


def _errors(results: dict[str, Any], expected: dict[str, Any], is_whole: bool, host: Host) -> dict[str, float]:
    """Return the largest difference of each result over the largest value, of all ranks."""
    by_result = {}
    for name, value in expected.items():
        begin, steps = _place(host, value.shape[1]) if name != "final" and not is_whole else (0, 0)
        own = results[name]
        if steps and value.shape != own.shape:
            value = value.narrow(1, begin, steps)
        if value.shape[-1] != own.shape[-1]:
            value = value.chunk(host.size, -1)[host.rank]
        # Piece by piece: a difference in float32 of all would take twice the memory of the results.
        pairs = list(zip(own.flatten().split(1 << 26), value.flatten().split(1 << 26), strict=True))
        difference = max(float((here.float() - there.float()).abs().max()) for here, there in pairs)
        by_result[name] = (difference, max(float(there.abs().max()) for _, there in pairs))
    of_ranks = host.all_of(by_result)
    return {
        name: max(ranks[name][0] for ranks in of_ranks) / (max(ranks[name][1] for ranks in of_ranks) or 1.0)
        for name in by_result
    }


def _exchange(run: Run, host: Host) -> tuple[float, int]:
    """Return the share of the time in exchanges, the mean of the ranks, and the most bytes that a rank contributes."""
    shares, contributed = [], 0
    for _ in range(WATCHED_RUNS):
        spans: list[tuple[Any, Any]] = []
        counts: list[int] = []

        @contextlib.contextmanager
        def around(count: int, spans: Any = spans, counts: Any = counts) -> Iterator[None]:
            began = host.mark()
            yield
            spans.append((began, host.mark()))
            counts.append(count)

        host.start_together()
        with watched(around):
            began = host.mark()
            run()
            ended = host.mark()
        whole = host.ms_between(began, ended)
        shares.append(sum(host.ms_between(*span) for span in spans) / whole)
        contributed = sum(counts)
    of_ranks = host.all_of((statistics.median(shares), contributed))
    return statistics.mean(share for share, _ in of_ranks), max(count for _, count in of_ranks)


def _time(contenders: Sequence[_Contender], host: Host, limits: Limits) -> None:
    """Run all contenders in turn, round after round, and give their rows their times."""
    able = [contender for contender in contenders if contender.row.failure is None]
    began = time.perf_counter()
    for contender in able:
        _time_run(contender, host)
    seconds = max(host.all_of(time.perf_counter() - began))
    for contender in able:
        contender.times_ms.clear()
    for _ in range(rounds_for(seconds, limits)):
        for contender in able:
            _time_run(contender, host)
    for contender in able:
        lower, middle, upper = quartiles(contender.times_ms)
        update = {"ms": middle, "quartiles_ms": (lower, upper), "rounds": len(contender.times_ms)}
        contender.row = contender.row.model_copy(update=update)


def _time_run(contender: _Contender, host: Host) -> None:
    ms = host.ms_of(contender.run or (lambda: None))
    contender.times_ms.append(max(host.all_of(ms)))


def _place(host: Host, time: int, rank: int | None = None) -> tuple[int, int]:
    """Return where a rank's piece of `time` steps begins, and its steps."""
    rank = host.rank if rank is None else rank
    begin = time * rank // host.size
    return begin, time * (rank + 1) // host.size - begin


@dataclass
class Inputs:
    """The arrays of a problem: pre-activations, the gradient of y and inputs S.*, piece by piece from seeds of their own."""

    problem: DistributedProblem
    kernel: Kernel
    host: Host
    _kept: dict[Any, tuple[Any, ...]] = field(default_factory=dict)

    def place(self, rank: int) -> tuple[int, int]:
        """Return where the piece of a rank begins, and its steps."""
        return _place(self.host, self.problem.time, rank)

    def piece(self, rank: int) -> tuple[Any, ...]:
        """Return x [B, steps, G, H], dy [B, steps, H] and each input S.* [B, steps, groups, n] of a rank's piece."""
        if rank not in self._kept:
            self._kept[rank] = self._drawn(rank)
        return self._kept[rank]

    def whole(self) -> tuple[Any, ...]:
        """Return the arrays of all pieces: of one rank alone, and of heads over ranks."""
        if "whole" not in self._kept:
            arrays = self._empty(self.problem.time)
            for rank in range(self.host.size):
                for target, part in zip(arrays, self._drawn(rank), strict=True):
                    target.narrow(1, *self.place(rank)).copy_(part)
            self._kept["whole"] = arrays
        return self._kept["whole"]

    def of(self, asked: dict[str, Any]) -> tuple[Any, ...]:
        """Return the arrays as a call takes them on this rank: its piece, all of them, or those of its own heads."""
        heads = asked.get("head_group")
        if heads is None:
            return self.piece(self.host.rank)
        if not isinstance(heads, HeadGroup):
            return self.whole()
        if "own heads" not in self._kept:
            parts = (array.chunk(self.host.size, -1)[self.host.rank].contiguous() for array in self.whole())
            self._kept["own heads"] = tuple(parts)
        return self._kept["own heads"]

    def forget(self) -> None:
        """Let go of all arrays that were drawn."""
        self._kept.clear()

    def run_of(self, arrays: tuple[Any, ...], asked: dict[str, Any], records: bool) -> Run:
        """Return a call, with its backward where it `records`, on arrays."""
        x, dy, *of_groups = arrays
        x, *of_groups = (array.detach().requires_grad_(records) for array in (x, *of_groups))
        R, parameters = self._R(records), self._parameters(records)
        named: dict[str, Any] = {"parameters": parameters or None}
        named["shared"] = dict(zip(self.kernel.shared, of_groups, strict=True)) or None
        wanted = [x, *([] if R is None else [R]), *parameters.values(), *of_groups]

        def run() -> dict[str, Any]:
            with torch.set_grad_enabled(records):
                y, final = recurrence(self.kernel, x, R, **named, **asked)
            results = {"y": y.detach(), "final": torch.stack([*final.values()]).detach()}
            if records:
                results["dx"] = torch.autograd.grad(y, wanted, dy)[0]
            return results

        return run

    def _R(self, records: bool) -> Any:
        if not self.problem.is_dense:
            return None
        shape = self.kernel.interface.R_shape
        R = torch.randn(shape, device=self.host.device, generator=self._generator(-1)) / shape[-1] ** 0.5
        return R.to(self._dtype).requires_grad_(records)

    def _parameters(self, records: bool) -> dict[str, Any]:
        """Return the parameters of a selective scan, in float32; none of other cells."""
        interface, generator = self.kernel.interface, self._generator(-1)
        parameters = {
            name: torch.randn(interface.shape_of_parameter(name), device=self.host.device, generator=generator)
            for name in interface.parameters
        }
        if parameters:
            # Rates 1 to n, as Mamba begins, or one that forgets nothing.
            rates = torch.arange(1, interface.state_size + 1, device=self.host.device).log()
            parameters["a"].copy_(rates if self.problem.gates == "normal" else torch.full_like(rates, REMEMBERING_RATE))
        return {name: values.requires_grad_(records) for name, values in parameters.items()}

    def _empty(self, steps: int) -> tuple[Any, ...]:
        """Return x, dy and the inputs S.* of so many steps, their values to come."""
        interface, batch = self.kernel.interface, self.problem.batch
        of_groups = [interface.shape(interface.shared_axes, batch, steps)] * len(interface.shared)
        shapes = (interface.shape(interface.x_axes, batch, steps), interface.y_shape(batch, steps), *of_groups)
        return tuple(torch.empty(shape, dtype=self._dtype, device=self.host.device) for shape in shapes)

    def _drawn(self, rank: int) -> tuple[Any, ...]:
        interface, generator = self.kernel.interface, self._generator(rank)
        x, *others = (array.normal_(generator=generator) for array in self._empty(self.place(rank)[1]))
        if self.problem.gates == "remembering":
            gate, value = ("dt", 0.0) if self.problem.model == "selective" else ("z", REMEMBERING_LOGIT)
            x.select(interface.x_axes.index("g"), interface.gates.index(gate)).fill_(value)
        return x, *others

    @property
    def _dtype(self) -> Any:
        return {"bf16": torch.bfloat16, "fp32": torch.float32}[self.problem.precision]

    def _generator(self, rank: int) -> Any:
        return torch.Generator(self.host.device).manual_seed(rank + 1)
