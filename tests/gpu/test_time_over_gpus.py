"""Time over two GPUs: pieces side by side are what one GPU computes, by NCCL, and repeat bit by bit."""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
import os
import random
import statistics
import time as clock
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from support.patience import within

torch = pytest.importorskip("torch")

import minrnn_gen  # noqa: E402
import minrnn_gen.torch as wing  # noqa: E402
from minrnn_gen.errors import BadInput  # noqa: E402
from minrnn_gen.torch.sequence_group import graphs, on_rank, peer_buffers  # noqa: E402
from minrnn_gen.torch.sequence_group.clock import Clock  # noqa: E402
from minrnn_gen.torch.sequence_group.tuned import MARGIN  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed, each for a piece of time"),
    pytest.mark.timeout(400),
]

RANKS, TIME, BATCH, WIDTH = 2, 1 << 14, 2, 64
SPECS: dict[str, dict[str, Any]] = {
    "min_gru": {"model": "min_gru", "hidden_size": WIDTH},
    "selective": {"model": "selective", "hidden_size": WIDTH, "state_size": 8, "groups": 2},
}
MODELS = tuple(SPECS)
WAYS = ("correct", "summary", "pipeline", None)
# Of the norm: what fp32 rounds, twice; of bf16 its last digit, where a rounding goes the other way.
TOLERANCES = {"fp32": 2e-7, "bf16": 2.0**-7}
# States that forget nothing keep what each step rounds: in another order pieces keep twice as much as one GPU, at most.
ROUNDED_MOST = 2


# Calls on the same memory, of which the first are captured.
CALLS_AGAIN = 24
# Gates that keep so much remember a piece's first state at its end. A forward takes a GPU some two milliseconds, so that what
# is measured is the GPU and not its host.
REMEMBERED, REMEMBERING_TIME, REMEMBERING_WIDTH, REPEATED = 0.9999, 1 << 20, 1024, 11
# Of calls with random delays: 500 where much is to be seen, `MINRNN_TEST_DELAYED_RUNS=500`.
DELAYED_RUNS = int(os.environ.get("MINRNN_TEST_DELAYED_RUNS", "125"))
# Within it a group notices that a rank is gone, and then ends its process.
SHORT_SECONDS, ENDING_SECONDS = 10, 60


class Pair:
    """Two processes, each with a GPU, in one NCCL group; `timeout`: seconds after which it gives up."""

    def __init__(self, folder: Path, timeout: float | None = None) -> None:
        context = torch.multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(RANKS)]
        self.pipes = [ours for ours, _ in pipes]
        self.processes = [
            context.Process(target=_serve, args=(rank, str(folder / "meeting"), theirs, timeout or within(60)), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()

    def run(self, case: str, **arguments: Any) -> list[Any]:
        """Return what each rank returns for a case by its name."""
        for pipe in self.pipes:
            pipe.send((case, arguments))
        answers = [pipe.recv() for pipe in self.pipes]
        assert not any(failed for failed, _ in answers), "\n".join(str(answer) for _, answer in answers)
        return [answer for _, answer in answers]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    started = Pair(tmp_path_factory.mktemp("pair"))
    yield started
    _end(started)


def _end(pair: Pair) -> None:
    for process in pair.processes:
        process.kill()
        process.join()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("keep", [None, 0.999, 0.99999])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", MODELS)
def test_pieces_on_two_gpus_are_the_whole(pair: Pair, model: str, precision: str, keep: float | None, way: str | None) -> None:
    call = {"model": model, "precision": precision, "keep": keep, "way": way}
    for errors, _ in pair.run("compared", **call):
        for name, (of_pieces, of_whole) in errors.items():
            assert of_pieces <= max(TOLERANCES[precision], ROUNDED_MOST * of_whole), (name, errors)
    first, second = (final for _, final in pair.run("compared", **call))
    assert first == second


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_channels_on_two_gpus_are_the_whole(pair: Pair, precision: str) -> None:
    """A cell with n values per channel runs with a group of its channels on each GPU."""
    for errors in pair.run("over_heads", precision=precision):
        for name, (of_share, of_whole) in errors.items():
            assert of_share <= max(TOLERANCES[precision], ROUNDED_MOST * of_whole), (name, errors)


def test_random_delays_change_no_bit(pair: Pair) -> None:
    assert all(pair.run("delayed", runs=DELAYED_RUNS))


@pytest.mark.parametrize("by", ["peer_buffers", "backend"])
@pytest.mark.parametrize("way", ["correct", "summary", "pipeline"])
@pytest.mark.parametrize("keep", [None, 0.99999])
@pytest.mark.parametrize("model", MODELS)
def test_calls_on_the_same_memory_are_launched_as_graphs_and_change_no_bit(
    pair: Pair, model: str, keep: float | None, way: str, by: str
) -> None:
    """With other values in the same arrays each call has the bits of one that was not captured, and keeps them afterwards."""
    for launched, refusals in pair.run("again", model=model, keep=keep, way=way, by=by):
        # A pipeline cuts the channels of cells with one value alone in place.
        assert launched or (model, way) == ("selective", "pipeline"), refusals


@pytest.mark.parametrize("records", [False, True])
def test_the_tuned_way_is_not_slower_than_the_chosen_one_where_gates_remember(pair: Pair, records: bool) -> None:
    """The formula's choice runs a piece twice there; the measured way is one for both ranks, and repeats bit for bit."""
    first, second = pair.run("tuned", records=records)
    assert first == second
    way, times_ms, tuned_ms, chosen_ms = first
    assert set(times_ms) == {None, "summary", "correct", "pipeline"}
    assert way is None or times_ms[way] * (1 + MARGIN) < times_ms[None]
    # A way that was faster by the margin, or the same one, measured again.
    assert tuned_ms <= chosen_ms * (1 + MARGIN), first


def test_a_caller_who_captures_gets_one_graph(pair: Pair) -> None:
    assert all(pair.run("captured_by_caller"))


def test_gpus_of_one_machine_open_peer_buffers(pair: Pair) -> None:
    assert pair.run("opened") == [True, True]


@pytest.mark.parametrize("by", ["peer_buffers", "backend"])
def test_a_rank_that_is_killed_while_graphs_are_launched_ends_the_other(tmp_path: Path, by: str) -> None:
    """Neither NCCL nor a kernel that reads a buffer waits for a rank longer than the group's timeout."""
    pair = Pair(tmp_path, timeout=SHORT_SECONDS)
    try:
        assert all(launched for launched, _ in pair.run("again", model="min_gru", keep=None, way="correct", by=by))
        for pipe in pair.pipes:
            pipe.send(("endless", {"by": by}))
        clock.sleep(1)
        survivor, killed = pair.processes
        killed.kill()
        assert wait([survivor.sentinel, pair.pipes[0]], within(ENDING_SECONDS)), "it ends, or says what CUDA refuses"
    finally:
        _end(pair)


def test_a_mismatch_is_refused_on_both_ranks_at_once(pair: Pair) -> None:
    for message, seconds in pair.run("mismatched"):
        assert "rank 1 of the sequence group has spec" in message and seconds < within(10)


@pytest.mark.parametrize("way", ["correct", "summary"])
@pytest.mark.parametrize("model", MODELS)
def test_no_host_waits_for_its_gpu(pair: Pair, model: str, way: str) -> None:
    """While the GPUs are kept busy, calls with all their gradients are enqueued behind."""
    busy_seconds = within(0.2)
    for seconds in pair.run("enqueued", model=model, way=way, busy_seconds=busy_seconds):
        assert 2 * seconds < busy_seconds


def _serve(rank: int, meeting: str, pipe: Connection, timeout: float) -> None:
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl", init_method=f"file://{meeting}", rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=timeout)
    )
    while True:
        case, arguments = pipe.recv()
        try:
            pipe.send((False, CASES[case](rank, **arguments)))
        except BaseException:
            pipe.send((True, traceback.format_exc()))


Arrays = dict[str, Any]
"""The arrays of a call by name, those of time with the axes [batch, time, …]."""


def _call(model: str, precision: str, keep: float | None = None) -> tuple[Any, Arrays, Any]:
    """Return a kernel with the arrays of a call and the gradient of y, the same on both ranks."""
    kernel = minrnn_gen.compile({**SPECS[model], "precision": precision})
    interface, generator = kernel.interface, torch.Generator("cuda").manual_seed(1)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", generator=generator)

    arrays = {name: normal(BATCH, TIME, interface.groups, interface.state_size) for name in interface.shared}
    arrays |= {"x": normal(BATCH, TIME, len(interface.gates), WIDTH)}
    parameters = {name: normal(*interface.shape_of_parameter(name)) for name in interface.parameters}
    if keep is not None and model == "min_gru":
        arrays["x"][:, :, interface.gates.index("z")] = torch.logit(torch.tensor(1 - keep))
    elif keep is not None:
        arrays["x"][:, :, interface.gates.index("dt")] = 0
        parameters["a"].fill_(math.log(-math.log(keep) / math.log(2)))  # of softplus(0)
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    dy = normal(BATCH, TIME, WIDTH).to(dtype)
    return kernel, {**{name: array.to(dtype) for name, array in arrays.items()}, **parameters}, dy


def _in_double(model: str, arrays: Arrays) -> tuple[Any, Arrays]:
    kernel = minrnn_gen.compile({**SPECS[model], "precision": "fp64"})
    return kernel, {name: array.double() for name, array in arrays.items()}


def _run(kernel: Any, arrays: Arrays, dy: Any, dfinal: float, **asked: Any) -> dict[str, Any]:
    """Return y, the final state, and the gradients of all arrays."""
    given = {name: array.clone().requires_grad_() for name, array in arrays.items()}
    named = {of: {name: given[name] for name in getattr(kernel, of)} or None for of in ("parameters", "shared")}
    y, final = wing.recurrence(kernel, given["x"], **named, **asked)
    gradients = torch.autograd.grad([y, final["h"]], [*given.values()], [dy, torch.full_like(final["h"], dfinal)])
    return {
        "y": y.detach(),
        "final": final["h"].detach(),
        **{f"d{name}": one for name, one in zip(given, gradients, strict=True)},
    }


def _piece(tensor: Any, rank: int) -> Any:
    """Return the piece of a rank, uneven ones, of an array of time; all of any other."""
    begins = (0, TIME // 2 + 96, TIME)
    return tensor[:, begins[rank] : begins[rank + 1]] if tensor.shape[:2] == (BATCH, TIME) else tensor


def _pieces(arrays: Arrays, rank: int) -> Arrays:
    return {name: _piece(array, rank) for name, array in arrays.items()}


def _relative(found: Any, expected: Any) -> float:
    return float(torch.linalg.vector_norm(found.double() - expected) / torch.linalg.vector_norm(expected))


def _summed(kernel: Any, outcome: Arrays) -> Arrays:
    """Return results whose gradients of parameters, of which each rank has its own, are summed over the ranks."""
    for name in kernel.parameters:
        summed = outcome[f"d{name}"].double()
        torch.distributed.all_reduce(summed)
        outcome = {**outcome, f"d{name}": summed}
    return outcome


def compared(
    rank: int, model: str, precision: str, keep: float | None, way: Any
) -> tuple[dict[str, tuple[float, float]], list[float]]:
    """Return how far a rank's results, and those of one GPU, are from float64, beside their norm, and its final state."""
    kernel, arrays, dy = _call(model, precision, keep)
    # The gradient of the final states is summed over the ranks.
    whole = _run(kernel, arrays, dy, RANKS)
    exact = _run(*_in_double(model, arrays), dy.double(), RANKS)
    group = wing.SequenceGroup(torch.distributed.group.WORLD, way)
    outcomes = [_run(kernel, _pieces(arrays, rank), _piece(dy, rank), 1, sequence_group=group) for _ in range(2)]
    assert all(torch.equal(outcomes[0][name], outcomes[1][name]) for name in whole)
    found, errors = _summed(kernel, outcomes[0]), {}
    for name, values in exact.items():
        of_whole, expected = _piece(whole[name], rank), _piece(values, rank)
        errors[name] = (_relative(found[name], expected), _relative(of_whole, expected))
    return errors, outcomes[0]["final"].flatten().tolist()


def over_heads(_rank: int, precision: str) -> dict[str, tuple[float, float]]:
    """Return how far results with channels over both ranks, and those of one GPU, are from float64, beside their norm."""
    kernel, arrays, dy = _call("selective", precision)
    whole = _run(kernel, arrays, dy, 1)
    exact = _run(*_in_double("selective", arrays), dy.double(), 1)
    outcome = _summed(kernel, _run(kernel, arrays, dy, 1, head_group=torch.distributed.group.WORLD))
    return {name: (_relative(outcome[name], values), _relative(whole[name], values)) for name, values in exact.items()}


def delayed(rank: int, runs: int) -> bool:
    """Return whether runs with random delays before calls have the same bits."""
    kernel, arrays, dy = _call("min_gru", "fp32")
    delays, first = random.Random(rank), {}
    for _ in range(runs):
        for way in WAYS:
            clock.sleep(delays.choice((0.0, 0.0, 0.001, 0.003)))
            group = wing.SequenceGroup(torch.distributed.group.WORLD, way)  # type: ignore[arg-type]
            outcome = _run(kernel, _pieces(arrays, rank), _piece(dy, rank), 1, sequence_group=group)
            for name, value in outcome.items():
                if not torch.equal(first.setdefault((way, name), value), value):
                    return False
    return True


@contextlib.contextmanager
def _counted_launches() -> Iterator[list[int]]:
    """Count the calls, forward or backward, that are launched as graphs."""
    counted = [0]

    def counting(recorded: Any, into: Any, launch: Any = graphs.Recorded.launch) -> Any:
        counted[0] += 1
        return launch(recorded, into)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs.Recorded, "launch", counting)
        yield counted


@contextlib.contextmanager
def _refusals() -> Iterator[list[str]]:
    """Note why calls could not be captured."""
    noted: list[str] = []

    def noting(held: Any, *arguments: Any, capture: Any = graphs.Graphs._captured) -> Any:
        recorded = capture(held, *arguments)
        noted.extend([held.refusal] * (recorded is None))
        return recorded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs.Graphs, "_captured", noting)
        yield noted


@functools.cache
def _group(by: str) -> Any:
    """Return the group of both ranks, or one that exchanges through its backend."""
    group = torch.distributed.group.WORLD
    if by == "backend":
        # Without a timeout of its own a group has the backend's, ten minutes.
        timeout = group._get_backend(torch.device("cuda")).options._timeout
        group = torch.distributed.new_group([*range(RANKS)], timeout=timeout)
        peer_buffers.keep(group, None)
    return group


def opened(_rank: int) -> bool:
    """Return whether a call opened peer_buffers."""
    kernel, arrays, _ = _call("min_gru", "bf16")
    wing.recurrence(kernel, arrays["x"], sequence_group=_group("peer_buffers"))
    return peer_buffers.peer_buffers_of(_group("peer_buffers")) is not None


def again(rank: int, model: str, keep: float | None, way: Any, by: str) -> tuple[int, list[str]]:
    """Return how many calls on the same memory were launched as graphs, and why others were not.

    Each is compared with the same call without graphs.
    """
    kernel, arrays, dy = _call(model, "bf16", keep)
    group = wing.SequenceGroup(_group(by), way)
    arrays, dy = _pieces(arrays, rank), _piece(dy, rank)
    given = {name: array.clone().requires_grad_() for name, array in arrays.items()}
    kept: list[tuple[Arrays, Arrays]] = []

    def run() -> Arrays:
        named = {of: {name: given[name] for name in getattr(kernel, of)} or None for of in ("parameters", "shared")}
        y, final = wing.recurrence(kernel, given["x"], **named, sequence_group=group)
        gradients = torch.autograd.grad([y, final["h"]], [*given.values()], [dy, torch.ones_like(final["h"])])
        of_inputs = {f"d{name}": one for name, one in zip(given, gradients, strict=True)}
        return {"y": y.detach(), "final": final["h"].detach(), **of_inputs}

    with _counted_launches() as counted, _refusals() as refusals:
        for _ in range(CALLS_AGAIN):
            with torch.no_grad():
                given["x"].copy_(given["x"].roll(1, 1))
            kept.append((run(), {}))
            if len(kept) > 2:
                del kept[1]
            found = kept[-1][0]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(on_rank, "may_capture", lambda _: False)
                expected = run()
            kept[-1][1].update({name: value.clone() for name, value in expected.items()})
            assert all(torch.equal(found[name], value) for name, value in expected.items())
            assert all(torch.equal(values[name], value) for values, copies in kept for name, value in copies.items())
            del found, expected
    return counted[0], refusals


def tuned(rank: int, records: bool) -> tuple[Any, dict[Any, float], float, float]:
    """Return the way that is tuned where gates remember, by what times, and its median beside the chosen way's, measured anew.

    Repeated calls have the bits of the group with that way by its name.
    """
    kernel = minrnn_gen.compile({"model": "min_gru", "hidden_size": REMEMBERING_WIDTH, "precision": "bf16"})
    generator = torch.Generator("cuda").manual_seed(rank)
    shape = (1, REMEMBERING_TIME // RANKS, REMEMBERING_WIDTH)
    gates = {
        name: torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=generator) for name in kernel.interface.gates
    }
    gates["z"].fill_(math.log((1 - REMEMBERED) / REMEMBERED))
    x, dy = torch.stack([*gates.values()], 2).requires_grad_(records), gates["z"].clone().normal_(generator=generator)
    del gates

    def step(group: Any) -> Arrays:
        with torch.set_grad_enabled(records):
            y, final = wing.recurrence(kernel, x, sequence_group=group)
        results = {"y": y.detach(), "final": final["h"].detach()}
        return {**results, "dx": torch.autograd.grad(y, [x], dy)[0]} if records else results

    group = torch.distributed.group.WORLD
    found = wing.tune_sequence_group(group, step)
    expected = step(wing.SequenceGroup(group, found.way))
    for _ in range(REPEATED):
        results = step(found)
        assert all(torch.equal(results[name], value) for name, value in expected.items())
        del results
    del expected
    ranks_clock = Clock.of(group)
    times_ms = [[ranks_clock.ms_of(functools.partial(step, asked)) for asked in (found, group)] for _ in range(REPEATED)]
    tuned_ms, chosen_ms = map(statistics.median, zip(*ranks_clock.slowest(times_ms), strict=True))
    return found.way, {**found.times_ms}, tuned_ms, chosen_ms


def captured_by_caller(rank: int) -> bool:
    """Return whether a graph that the caller captures, exchanges included, computes what the call does."""
    kernel, arrays, _ = _call("min_gru", "bf16")
    x = _pieces(arrays, rank)["x"].contiguous()
    group = wing.SequenceGroup(torch.distributed.group.WORLD)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            wing.recurrence(kernel, x, sequence_group=group)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        y, final = wing.recurrence(kernel, x, sequence_group=group)
    x.copy_(x.roll(1, 1))
    graph.replay()
    with torch.no_grad():
        expected, of_state = wing.recurrence(kernel, x, sequence_group=group)
    return bool(torch.equal(y, expected) and torch.equal(final["h"], of_state["h"]))


def endless(rank: int, by: str) -> None:
    """Call again and again, launched as graphs, until a rank is gone."""
    kernel, arrays, _ = _call("min_gru", "bf16")
    x = _pieces(arrays, rank)["x"].contiguous()
    group = wing.SequenceGroup(_group(by), "correct")
    with torch.no_grad():
        while True:
            wing.recurrence(kernel, x, sequence_group=group)
            torch.cuda.synchronize()


def enqueued(rank: int, model: str, way: Any, busy_seconds: float) -> float:
    """Return the seconds in which a call and its gradients are enqueued on a GPU that is busy for longer."""
    kernel, arrays, dy = _call(model, "bf16")
    group = wing.SequenceGroup(torch.distributed.group.WORLD, way)
    for _ in range(3):
        _run(kernel, _pieces(arrays, rank), _piece(dy, rank), 1, sequence_group=group)
    torch.cuda.synchronize()
    torch.cuda._sleep(int(busy_seconds * 1.7e9))  # cycles of a clock that is at most a little faster
    began = clock.perf_counter()
    _run(kernel, _pieces(arrays, rank), _piece(dy, rank), 1, sequence_group=group)
    seconds = clock.perf_counter() - began
    torch.cuda.synchronize()
    return seconds


def mismatched(rank: int) -> tuple[str, float]:
    """Return what a rank raises where the other has another cell, and after how many seconds."""
    kernel = minrnn_gen.compile({"model": ("min_gru", "min_gru_tanh")[rank], "hidden_size": 8, "precision": "fp32"})
    x = torch.zeros(1, 4, 2, 8, device="cuda", dtype=torch.float32)
    began = clock.perf_counter()
    with pytest.raises(BadInput) as refused:
        wing.recurrence(kernel, x, sequence_group=torch.distributed.group.WORLD)
    return str(refused.value), clock.perf_counter() - began


CASES = {
    "compared": compared,
    "over_heads": over_heads,
    "delayed": delayed,
    "mismatched": mismatched,
    "enqueued": enqueued,
    "again": again,
    "opened": opened,
    "tuned": tuned,
    "captured_by_caller": captured_by_caller,
    "endless": endless,
}
