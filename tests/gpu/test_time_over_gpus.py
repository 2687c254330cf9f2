"""Time over two GPUs: pieces side by side are what one GPU computes, by NCCL, and repeat bit by bit."""

from __future__ import annotations

import datetime
import random
import time as clock
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from support.patience import within

torch = pytest.importorskip("torch")

import minrnn_gen  # noqa: E402
import minrnn_gen.torch as wing  # noqa: E402
from minrnn_gen.errors import BadInput  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed, each for a piece of time"),
    pytest.mark.timeout(400),
]

RANKS, TIME, BATCH, WIDTH = 2, 1 << 14, 2, 64
SPEC = {"model": "min_gru", "hidden_size": WIDTH}
WAYS = ("correct", "summary", "pipeline", None)
BUSY_SECONDS = within(0.2)
# Of the norm: what fp32 rounds, twice; of bf16 its last digit, where a rounding goes the other way.
TOLERANCES = {"fp32": 2e-7, "bf16": 2.0**-7}
# States that forget nothing keep what each step rounds: in another order pieces keep twice as much as one GPU, at most.
ROUNDED_MOST = 2


class Pair:
    """Two processes, each with a GPU, in one NCCL group."""

    def __init__(self, folder: Path) -> None:
        context = torch.multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(RANKS)]
        self.pipes = [ours for ours, _ in pipes]
        self.processes = [
            context.Process(target=_serve, args=(rank, str(folder / "meeting"), theirs), daemon=True)
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
    for process in started.processes:
        process.kill()
        process.join()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("keep", [None, 0.999, 0.99999])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_pieces_on_two_gpus_are_the_whole(pair: Pair, precision: str, keep: float | None, way: str | None) -> None:
    for errors, _ in pair.run("compared", precision=precision, keep=keep, way=way):
        for name, (of_pieces, of_whole) in errors.items():
            assert of_pieces <= max(TOLERANCES[precision], ROUNDED_MOST * of_whole), (name, errors)
    first, second = (final for _, final in pair.run("compared", precision=precision, keep=keep, way=way))
    assert first == second


def test_random_delays_change_no_bit(pair: Pair) -> None:
    assert all(pair.run("delayed", runs=125))


def test_a_mismatch_is_refused_on_both_ranks_at_once(pair: Pair) -> None:
    for message, seconds in pair.run("mismatched"):
        assert "rank 1 of the sequence group has spec" in message and seconds < within(10)


@pytest.mark.parametrize("way", ["correct", "summary"])
def test_no_host_waits_for_its_gpu(pair: Pair, way: str) -> None:
    """While the GPUs are kept busy, calls with all their gradients are enqueued behind."""
    for seconds in pair.run("enqueued", way=way):
        assert 2 * seconds < BUSY_SECONDS


def _serve(rank: int, meeting: str, pipe: Connection) -> None:
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl", init_method=f"file://{meeting}", rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=within(60))
    )
    while True:
        case, arguments = pipe.recv()
        try:
            pipe.send((False, CASES[case](rank, **arguments)))
        except BaseException:
            pipe.send((True, traceback.format_exc()))


def _call(precision: str, keep: float | None) -> tuple[Any, Any, Any]:
    """Return a kernel with x and the gradient of y, the same on both ranks."""
    kernel = minrnn_gen.compile({**SPEC, "precision": precision})
    generator = torch.Generator("cuda").manual_seed(1)
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    x, dy = (torch.randn(BATCH, TIME, *of, device="cuda", generator=generator) for of in ((2, WIDTH), (WIDTH,)))
    if keep is not None:
        x[:, :, kernel.interface.gates.index("z")] = torch.logit(torch.tensor(1 - keep))
    return kernel, x.to(dtype), dy.to(dtype)


def _run(kernel: Any, x: Any, dy: Any, dfinal: float, **asked: Any) -> dict[str, Any]:
    x = x.clone().requires_grad_()
    y, final = wing.recurrence(kernel, x, **asked)
    (dx,) = torch.autograd.grad([y, final["h"]], [x], [dy, torch.full_like(final["h"], dfinal)])
    return {"y": y.detach(), "final": final["h"].detach(), "dx": dx}


def _piece(tensor: Any, rank: int) -> Any:
    # Uneven ones.
    begins = (0, TIME // 2 + 96, TIME)
    return tensor[:, begins[rank] : begins[rank + 1]]


def _relative(found: Any, expected: Any) -> float:
    return float(torch.linalg.vector_norm(found.double() - expected) / torch.linalg.vector_norm(expected))


def compared(rank: int, precision: str, keep: float | None, way: Any) -> tuple[dict[str, tuple[float, float]], list[float]]:
    """Return how far a rank's results, and those of one GPU, are from float64, beside their norm, and its final state."""
    kernel, x, dy = _call(precision, keep)
    # The gradient of the final states is summed over the ranks.
    whole = _run(kernel, x, dy, RANKS)
    exact = _run(minrnn_gen.compile({**SPEC, "precision": "fp64"}), x.double(), dy.double(), RANKS)
    group = wing.SequenceGroup(torch.distributed.group.WORLD, way)
    outcomes = [_run(kernel, _piece(x, rank), _piece(dy, rank), 1, sequence_group=group) for _ in range(2)]
    assert all(torch.equal(outcomes[0][name], outcomes[1][name]) for name in whole)
    errors = {}
    for name, values in exact.items():
        of_whole, expected = (array if name == "final" else _piece(array, rank) for array in (whole[name], values))
        errors[name] = (_relative(outcomes[0][name], expected), _relative(of_whole, expected))
    return errors, outcomes[0]["final"].flatten().tolist()


def delayed(rank: int, runs: int) -> bool:
    """Return whether runs with random delays before calls have the same bits."""
    kernel, x, dy = _call("fp32", None)
    delays, first = random.Random(rank), {}
    for _ in range(runs):
        for way in WAYS:
            clock.sleep(delays.choice((0.0, 0.0, 0.001, 0.003)))
            group = wing.SequenceGroup(torch.distributed.group.WORLD, way)  # type: ignore[arg-type]
            outcome = _run(kernel, _piece(x, rank), _piece(dy, rank), 1, sequence_group=group)
            for name, value in outcome.items():
                if not torch.equal(first.setdefault((way, name), value), value):
                    return False
    return True


def enqueued(rank: int, way: Any) -> float:
    """Return the seconds in which a call and its gradients are enqueued on a GPU that is busy for longer."""
    kernel, x, dy = _call("bf16", None)
    group = wing.SequenceGroup(torch.distributed.group.WORLD, way)
    for _ in range(3):
        _run(kernel, _piece(x, rank), _piece(dy, rank), 1, sequence_group=group)
    torch.cuda.synchronize()
    torch.cuda._sleep(int(BUSY_SECONDS * 1.7e9))  # cycles of a clock that is at most a little faster
    began = clock.perf_counter()
    _run(kernel, _piece(x, rank), _piece(dy, rank), 1, sequence_group=group)
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


CASES = {"compared": compared, "delayed": delayed, "mismatched": mismatched, "enqueued": enqueued}
