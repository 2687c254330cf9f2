"""Processes that are the ranks of gloo groups, started once and sent cases; and what a case computes on its rank."""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib
import itertools
import json
import multiprocessing
import os
import random
import sys
import time as clock
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint
from support.patience import within
from support.software_graphs import software_graphs
from support.uncompiled_kernels import nothing_compiled, planned_again

import minrnn_gen
import minrnn_gen.torch as wing
from minrnn_gen.build.recipe import spec_from
from minrnn_gen.errors import BadInput
from minrnn_gen.layers import kernels
from minrnn_gen.torch.sequence_group import ranks as sequence_ranks
from minrnn_gen.torch.sequence_group.piece import Piece

RANKS = 3
# What is tested where a rank no longer answers.
SHORT = datetime.timedelta(seconds=3)


class Ranks:
    """Processes of one group, of three if not asked for more; cases for two run on the first two of them."""

    def __init__(self, folder: Path, count: int, timeout: datetime.timedelta) -> None:
        context = _processes()
        pairs = [context.Pipe() for _ in range(count)]
        self._pipes = [ours for ours, _ in pairs]
        common = (str(folder / "meeting"), timeout, {**os.environ})
        self._processes = [
            context.Process(target=_serve, args=(rank, count, theirs, *common), daemon=True)
            for rank, (_, theirs) in enumerate(pairs)
        ]
        for process in self._processes:
            process.start()

    def run(self, size: int, case: str, **arguments: Any) -> list[Any]:
        """Return what each of `size` ranks returns for a case of this module by its name."""
        for pipe in self._pipes[:size]:
            pipe.send((size, case, arguments))
        answers = [pipe.recv() for pipe in self._pipes[:size]]
        failures = [f"rank {rank}: {text}" for rank, (failed, text) in enumerate(answers) if failed]
        assert not failures, "\n".join(failures)
        return [answer for _, answer in answers]

    def survivors(self, case: str, **arguments: Any) -> list[str]:
        """Return how a case failed on all ranks but the last one, which does not answer."""
        for pipe in self._pipes:
            pipe.send((len(self._pipes), case, arguments))
        answers = [pipe.recv() for pipe in self._pipes[:-1]]
        assert all(failed for failed, _ in answers)
        return [text for _, text in answers]

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


@functools.cache
def _processes() -> Any:
    """Return how ranks are started: where it is safe, as forks of a process that imported torch once for all of them."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "minrnn_gen.torch"])
    return context


def _serve(
    rank: int, count: int, pipe: Connection, meeting: str, timeout: datetime.timedelta, environment: dict[str, str]
) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=count, timeout=timeout)
    groups = {count: dist.group.WORLD, 2: dist.new_group([0, 1], timeout=timeout)}
    with nothing_compiled():
        while True:
            size, case, arguments = pipe.recv()
            try:
                pipe.send((False, CASES[case](groups[size], rank, **arguments)))
            except BaseException:
                pipe.send((True, traceback.format_exc()))


@functools.cache
def _kernel(spec: str) -> minrnn_gen.Kernel:
    return minrnn_gen.compile(json.loads(spec), gpu="h200")


def kernel_of(spec: Mapping[str, Any]) -> minrnn_gen.Kernel:
    """Return the kernel of a spec, the same for the same in this process."""
    with nothing_compiled():
        return _kernel(json.dumps(spec))


def sliced(tensor: Any, axis: int, pieces: Sequence[int] | None, rank: int) -> Any:
    """Return the piece of a rank; the whole where there are no pieces."""
    if tensor is None or pieces is None:
        return tensor
    return tensor.narrow(axis, sum(pieces[:rank]), pieces[rank])


def cell(
    group: Any,
    rank: int,
    *,
    spec: Mapping[str, Any],
    tensors: Mapping[str, Any],
    pieces: Sequence[int] | None,
    way: str | None = None,
    micro_batches: int | None = None,
    all_states: bool = False,
    repeats: int = 1,
    over_heads: bool = False,
) -> dict[str, Any]:
    """Run a recurrence and its backward, on the piece of a rank or, without a group, as a whole.

    The loss weighs y and, on rank r, the final states by `tensors["weights of y"]` and `tensors["weights of state"][r]`.
    """
    outcomes = []
    for _ in range(repeats):
        asked = {} if group is None else {"sequence_group": wing.SequenceGroup(group, way, micro_batches)}  # type: ignore[arg-type]
        asked = {"head_group": group} if over_heads else asked
        outcomes.append(_cell(rank, spec, tensors, pieces, asked, all_states))
    return same_in_all(outcomes)


def cell_in_place(group: Any, rank: int, **arguments: Any) -> dict[str, Any]:
    """Run a recurrence as `cell` does, as on a GPU: by the kernels' own text, into arrays that are there."""
    with _in_place():
        return cell(group, rank, **arguments)


@contextlib.contextmanager
def _in_place() -> Iterator[None]:
    """Let kernels run as on a GPU: by their own text, into arrays that are there."""
    with pytest.MonkeyPatch.context() as patch:

        def emulated(spec: Any) -> minrnn_gen.Kernel:
            return minrnn_gen.compile(spec, gpu="h200", device="interpret")

        patch.setattr(kernels, "_KERNELS", {})
        patch.setattr(kernels, "_made", lambda recipe: emulated(spec_from(recipe)))
        patch.setattr(sys.modules[__name__], "_kernel", functools.cache(lambda spec: emulated(json.loads(spec))))
        patch.setattr(Piece, "runs_in_place", lambda piece, _: not piece.kernel.interface.input_size)
        yield


@_in_place()
def in_graphs(group: Any, rank: int, *, way: Any, calls: int, time: int) -> list[int]:
    """Return how many calls on the same memory, forward and backward, were launched as graphs.

    Each has other values, and the bits of one without graphs; results that are kept do not change.
    """
    kernel = kernel_of({"model": "min_gru", "hidden_size": 4, "precision": "fp32"})
    asked = wing.SequenceGroup(group, way, 2, graphs=True)
    generator, kept = torch.Generator().manual_seed(rank), list[tuple[Any, Any]]()
    x = torch.empty(2, time + rank, 2, 4, requires_grad=True)
    dy, dfinal = torch.randn(2, time + rank, 4, generator=generator), torch.randn(2, 4, generator=generator)

    def run() -> list[Any]:
        y, final = wing.recurrence(kernel, x, sequence_group=asked)
        dx = torch.autograd.grad([y, final["h"]], [x], [dy, dfinal])[0]
        return [y.detach(), final["h"].detach(), dx]

    values = [torch.randn(x.shape, generator=generator) for _ in range(calls)]
    plain = []
    for value in values:
        with torch.no_grad():
            x.copy_(value)
        plain.append([result.clone() for result in run()])
    with software_graphs() as counted:
        for place, value in enumerate(values):
            with torch.no_grad():
                x.copy_(value)
            found = run()
            assert all(map(torch.equal, found, plain[place]))
            kept = [*kept[:1], (found, plain[place])]
            assert all(torch.equal(*pair) for results, copies in kept for pair in zip(results, copies, strict=True))
    return counted


def cell_with_all_heads(group: Any, rank: int, **arguments: Any) -> dict[str, Any]:
    """Run a recurrence as `cell` does over heads, as where the gather would take longer than it saves."""
    with pytest.MonkeyPatch.context() as patch:
        agree_on_heads = sequence_ranks.agree_on_heads
        patch.setattr(sequence_ranks, "agree_on_heads", lambda *asked: not agree_on_heads(*asked))
        return cell(group, rank, over_heads=True, **arguments)


def same_in_all(outcomes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the first of outcomes, which have the same bits by name."""
    first, *others = outcomes
    for outcome in others:
        for name, value in outcome.items():
            assert value is None or torch.equal(value, first[name]), name
    return first


def _cell(
    rank: int,
    spec: Mapping[str, Any],
    tensors: Mapping[str, Any],
    pieces: Sequence[int] | None,
    asked: Mapping[str, Any],
    all_states: bool,
) -> dict[str, Any]:
    kernel = kernel_of(spec)
    layout = spec.get("layout", "BTD")
    axis = layout.index("T") if layout != "BDT" else kernel.interface.x_axes.index("t")
    y_axis = layout.index("T")
    named: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if name in ("x", "R", "weight", "bias", "recurrent_bias"):
            value = sliced(tensor, axis, pieces, rank) if name == "x" else tensor
            named[name] = value.clone().requires_grad_()
    parameters = {name: tensor.clone().requires_grad_() for name, tensor in tensors.get("parameters", {}).items()}
    state = {name: tensor.clone().requires_grad_() for name, tensor in tensors.get("state", {}).items()}
    shared_axis = kernel.interface.shared_axes.index("t")
    shared = {
        name: sliced(tensor, shared_axis, pieces, rank).clone().requires_grad_()
        for name, tensor in tensors.get("shared", {}).items()
    }
    input_axis = kernel.interface.channel_axes.index("t")
    inputs = {
        name: sliced(tensor, input_axis, pieces, rank).clone().requires_grad_()
        for name, tensor in tensors.get("inputs", {}).items()
    }
    begins = {name: tensor.clone().requires_grad_() for name, tensor in tensors.get("reset_states", {}).items()}
    weights = sliced(tensors["weights of y"], y_axis, pieces, rank)
    y, final, *steps = wing.recurrence(
        kernel,
        **named,
        parameters=parameters or None,
        state=state or None,
        shared=shared or None,
        inputs=inputs or None,
        resets=sliced(tensors.get("resets"), 1, pieces, rank),
        reset_states=begins or None,
        holds=sliced(tensors.get("holds"), 1, pieces, rank),
        lengths=tensors.get("lengths"),
        cu_seqlens=tensors.get("cu_seqlens"),
        all_states=all_states,
        **asked,
    )
    loss = (y.to(weights.dtype) * weights).sum()
    for name, value in final.items():
        of_ranks = tensors["weights of state"][name]
        loss = loss + (value * (of_ranks[rank] if pieces is not None else of_ranks.sum(0))).sum()
    loss.backward()
    result = {"y": y.detach(), **{f"final {name}": value.detach() for name, value in final.items()}}
    result |= {f"d{name}": tensor.grad for name, tensor in {**named, **parameters, **state, **shared, **inputs}.items()}
    result |= {f"dreset {name}": tensor.grad for name, tensor in begins.items()}
    for states in steps:
        result |= {f"steps {name}": value.detach() for name, value in states.items()}
    return result


def own_heads(group: Any, rank: int, *, spec: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Run a recurrence and its backward on this rank's own heads, of which nothing is gathered."""
    size = dist.get_world_size(group)
    kernel = kernel_of(spec)
    interface = kernel.interface
    of_state = -2 if interface.has_vectors else -1

    def own(tensor: Any, axis: int) -> Any:
        return tensor.chunk(size, axis)[rank]

    x = tensors["x"] if interface.input_size else own(tensors["x"], interface.x_axes.index("h"))
    named = {"x": x, **{name: tensors[name] for name in ("R", "weight", "recurrent_bias") if name in tensors}}
    named = {name: tensor.clone().requires_grad_() for name, tensor in named.items()}
    state = {name: own(tensor, of_state).clone().requires_grad_() for name, tensor in tensors["state"].items()}
    parameters = {name: tensor.clone().requires_grad_() for name, tensor in tensors["parameters"].items()}
    shared = {
        name: (tensor if interface.groups % size else own(tensor, interface.shared_axes.index("k"))).clone().requires_grad_()
        for name, tensor in tensors["shared"].items()
    }
    inputs = {
        name: own(tensor, interface.channel_axes.index("h")).clone().requires_grad_()
        for name, tensor in tensors["inputs"].items()
    }
    begins = {name: own(tensor, -1).clone().requires_grad_() for name, tensor in tensors.get("reset_states", {}).items()}
    asked = wing.HeadGroup(group, gathers=False)
    arrays: dict[str, Any] = {"state": state, "parameters": parameters or None, "shared": shared or None}
    arrays |= {"reset_states": begins or None, "resets": tensors.get("resets"), "holds": tensors.get("holds")}
    arrays["inputs"] = inputs or None
    y, final = wing.recurrence(kernel, **named, **arrays, head_group=asked)
    weights = own(tensors["weights of y"], spec.get("layout", "BTD").index("D"))
    loss = (y * weights).sum()
    for name, value in final.items():
        loss = loss + (value * own(tensors["weights of state"][name].sum(0), of_state)).sum()
    loss.backward()
    result = {"y": y.detach(), **{f"final {name}": value.detach() for name, value in final.items()}}
    result |= {f"d{name}": tensor.grad for name, tensor in {**named, **state, **parameters, **shared, **inputs}.items()}
    result |= {f"dreset {name}": tensor.grad for name, tensor in begins.items()}
    arrays |= {name: tensor for name, tensor in named.items() if name != "x"}
    with pytest.raises(BadInput) as refused:
        wing.recurrence(kernel, named["x"].detach().float(), **arrays, head_group=asked)
    return {**result, "refusal": str(refused.value)}


def full_runs(group: Any, rank: int, *, pieces: Sequence[int], **arguments: Any) -> tuple[int, int]:
    """Return how often the kernel runs over all steps of the piece, forward and backward, in a correction."""
    counted = [0, 0]
    with pytest.MonkeyPatch.context() as patch:
        for place, name in enumerate(("forward", "backward")):
            function = getattr(Piece, name)

            def counting(
                piece: Piece, call: Sequence[Any], *others: Any, place: int = place, function: Any = function
            ) -> list[Any]:
                counted[place] += call[0].shape[piece.time_axis] == pieces[rank]
                return list(function(piece, call, *others))

            patch.setattr(Piece, name, counting)
        cell(group, rank, way="correct", pieces=pieces, **arguments)
    return counted[0], counted[1]


def scan(
    group: Any,
    rank: int,
    *,
    tensors: Mapping[str, Any],
    pieces: Sequence[int] | None,
    axis: int,
    log_a: bool,
    reverse: bool,
    way: Any = None,
    micro_batches: int | None = None,
    repeats: int = 1,
) -> dict[str, Any]:
    """Run a raw scan and its backward, on the piece of a rank or, without a group, as a whole."""
    outcomes = []
    for _ in range(repeats):
        a, b = (sliced(tensors[name], axis, pieces, rank).clone().requires_grad_() for name in "ab")
        h0 = None if tensors["h0"] is None else tensors["h0"].clone().requires_grad_()
        asked = {} if group is None else {"sequence_group": wing.SequenceGroup(group, way, micro_batches)}
        y, final = wing.scan(a, b, h0, log_a=log_a, reverse=reverse, axis=axis, **asked)
        weights = sliced(tensors["weights of y"], axis, pieces, rank)
        of_final = tensors["weights of final"]
        loss = (y * weights).sum() + (final * (of_final.sum(0) if pieces is None else of_final[rank])).sum()
        (loss.real if loss.is_complex() else loss).backward()
        outcomes.append(
            {"y": y.detach(), "final": final.detach(), "da": a.grad, "db": b.grad, "dh0": None if h0 is None else h0.grad}
        )
    return same_in_all(outcomes)


def layers(
    group: Any,
    rank: int,
    *,
    x: Any,
    targets: Any,
    pieces: Sequence[int] | None,
    checkpointed: bool = False,
    compiled: bool = False,
    in_mesh: bool = False,
    has_vectors: bool = False,
    over_heads: bool = False,
) -> dict[str, Any]:
    """Run a model of layers and its backward on a piece, gradients of weights summed over the ranks; or as a whole."""
    torch.manual_seed(0)
    model = Model(has_vectors, "head_group" if over_heads else "sequence_group").double()
    called: Any = model
    if in_mesh:
        # Data over one axis, of one rank, and time over the other.
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("data", "time"))
        called = torch.nn.parallel.DistributedDataParallel(model, process_group=mesh["data"].get_group())
        group = mesh["time"]
    if compiled:
        called = torch.compile(called, backend="eager")
    x = sliced(x, 1, pieces, rank).clone().requires_grad_()
    run = functools.partial(torch.utils.checkpoint.checkpoint, called, use_reentrant=False) if checkpointed else called
    y = run(x, group)
    loss = (y - sliced(targets, 1, pieces, rank)).square().sum()
    loss.backward()
    if group is not None:
        wing.sum_gradients(model.parameters(), group)
    result = {"y": y.detach(), "dx": x.grad, "loss": loss.detach()}
    return result | {name: parameter.grad for name, parameter in model.named_parameters()}


class Model(torch.nn.Module):
    """A scan cell in both directions, two layers of it, and a dense cell above; between them one of n values per channel."""

    def __init__(self, has_vectors: bool = False, keyword: str = "sequence_group") -> None:
        super().__init__()
        self.keyword = keyword
        self.below = wing.MinGRU(3, 4, 2, bidirectional=True)
        options = {"bidirectional": True, "state_size": 3, "groups": 2}
        self.between = wing.RNN("selective", 8, 4, **options) if has_vectors else None
        self.above = wing.LSTM(8, 4, heads=2)

    def forward(self, x: Any, group: Any) -> Any:
        asked = {} if group is None else {self.keyword: group}
        x, _ = self.below(x, **asked)
        x = x if self.between is None else self.between(x, **asked)[0]
        x, _ = self.above(torch.tanh(x), **asked)
        return x


def refusal(group: Any, rank: int, *, calls: Sequence[Mapping[str, Any]]) -> str:
    """Return what a layer's call is refused with, each rank's its own."""
    call = calls[rank]
    layer = wing.RNN(call.get("model", "min_gru"), 3, 4, dtype=torch.float64)
    asked = {"head_group": group} if "over_heads" in call else {"sequence_group": wing.SequenceGroup(group, call.get("way"))}
    arguments = {name: value for name, value in call.items() if name not in ("model", "way", "x", "over_heads")}
    with pytest.raises(BadInput) as refused:
        layer(call["x"], **arguments, **asked)
    return str(refused.value)


def refused_scan(group: Any, rank: int, *, shapes: Sequence[tuple[int, ...]], log_a: Sequence[Any]) -> str:
    """Return what a raw scan is refused with."""
    a = torch.full(shapes[rank], 0.5)
    with pytest.raises(BadInput) as refused:
        wing.scan(a, a, log_a=log_a[rank], sequence_group=group)
    return str(refused.value)


def one_sided(group: Any, rank: int, *, asking: int) -> tuple[bool, Any]:
    """Record on every rank where only the rank `asking` has a tensor that requires grad; return its gradient there."""
    x = torch.ones(1, 2, 2, 3, dtype=torch.float64, requires_grad=rank == asking)
    kernel = kernel_of({"model": "min_gru", "hidden_size": 3, "precision": "fp64"})
    y, _ = wing.recurrence(kernel, x, sequence_group=group)
    y.sum().backward()
    return y.requires_grad, x.grad


def bytes_sent(group: Any, _rank: int, *, way: str, spec: Mapping[str, Any] | None, batch: int, time: int) -> tuple[int, int]:
    """Return the bytes that a rank gathers and sends, forward and backward, but for what all agree on in bytes."""
    counted = [0, 0]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_gather", "isend"):
            function = getattr(dist, name)

            def counting(*arguments: Any, function: Any = function, **keywords: Any) -> Any:
                own = next(value for value in reversed(arguments) if isinstance(value, torch.Tensor))
                counted[torch._C._current_graph_task_id() != -1] += 0 if own.dtype is torch.uint8 else own.nbytes
                return function(*arguments, **keywords)

            patch.setattr(dist, name, counting)
        asked = wing.SequenceGroup(group, way)  # type: ignore[arg-type]
        if spec is None:
            a = torch.rand(batch, time, 8, requires_grad=True)
            y, _ = wing.scan(a, a, sequence_group=asked)
        else:
            interface = kernel_of(spec).interface
            x = torch.randn(*interface.shape("btgh", batch, time), requires_grad=True)
            arrays: dict[str, Any] = {
                "parameters": {name: torch.zeros(interface.shape_of_parameter(name)) for name in interface.parameters} or None,
                "shared": {name: torch.ones(interface.shape("btkn", batch, time)) for name in interface.shared} or None,
            }
            y, _ = wing.recurrence(kernel_of(spec), x, **arrays, sequence_group=asked)
        y.sum().backward()
    return counted[0], counted[1]


def delayed(group: Any, rank: int, *, runs: int, seed: int) -> list[Any]:
    """Run scans and dense cells again and again, a random delay before each message; return the results, always the same."""
    delays = random.Random(seed + rank)
    generator = torch.Generator().manual_seed(seed + rank)
    dense = kernel_of({"model": "gru", "hidden_size": 2, "precision": "fp32"})
    affine = kernel_of({"model": "min_gru", "hidden_size": 2, "precision": "fp32"})
    R = torch.ones(3, 1, 2, 2) / 3
    xs = [torch.randn(3, 4, kernel_gates, 2, generator=generator) for kernel_gates in (3, 2)]
    a = torch.rand(3, 4, 2, generator=generator)
    outcomes: list[list[Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_gather", "broadcast", "isend", "irecv"):
            function = getattr(dist, name)

            def late(*arguments: Any, function: Any = function, **keywords: Any) -> Any:
                clock.sleep(delays.choice((0.0, 0.0, 0.001, 0.004)))
                return function(*arguments, **keywords)

            patch.setattr(dist, name, late)
        for _ in range(runs):
            outcome = []
            for kernel, x in zip((dense, affine), xs, strict=True):
                x = x.clone().requires_grad_()
                for way in ("pipeline", "summary") if kernel is affine else ("pipeline",):
                    asked = wing.SequenceGroup(group, way, 2)  # type: ignore[arg-type]
                    y, final = wing.recurrence(kernel, x, R if kernel is dense else None, sequence_group=asked)
                    (y.sum() + final["h"].sum()).backward()
                    outcome += [y.detach(), final["h"].detach(), x.grad.clone()]
            for way in ("summary", "pipeline"):
                outcome += wing.scan(a, a, sequence_group=wing.SequenceGroup(group, way, 2))  # type: ignore[arg-type]
            outcomes.append(outcome)
    assert all(torch.equal(*pair) for outcome in outcomes for pair in zip(outcome, outcomes[0], strict=True))
    return outcomes[0]


def in_mesh(_group: Any, rank: int, *, spec: Mapping[str, Any], tensors: Mapping[str, Any], pieces: Sequence[int]) -> Any:
    """Run a recurrence whose time is split over one axis of a mesh and whose heads over the other; return its results."""
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("time", "heads"))
    asked = {"sequence_group": mesh["time"], "head_group": mesh["heads"]}
    result = _cell(rank // 2, spec, tensors, pieces, asked, False)
    # The last rank alone has what no kernel takes: all others refuse with it.
    kernel = kernel_of(spec)
    x = tensors["x"] if rank < 3 else tensors["x"].float()
    with pytest.raises(BadInput) as refused:
        wing.recurrence(kernel, x, **{name: tensors.get(name) for name in ("R", "parameters", "shared")}, **asked)
    return {**result, "refusal": str(refused.value)}


def explained(group: Any, _rank: int, *, batch: int, time: int, model: str) -> str:
    """Return the line of a layer's explanation that says how its states go over the ranks."""
    sizes = {"state_size": 16} if model == "selective" else {}
    with planned_again():
        text = wing.RNN(model, 64, 1024, **sizes).explain(batch=batch, time=time, sequence_group=group)
    return next(line for line in text.splitlines() if line.startswith("time over"))


def example(group: Any, rank: int, *, steps: int, tune: bool = False) -> list[float]:
    """Return the losses of the example that splits time."""
    del rank
    folder = str(Path(__file__).resolve().parents[2] / "examples")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    losses = importlib.import_module("split_time").losses(group, steps, torch.device("cpu"), tune)
    return list(losses)


def selective(group: Any, rank: int, *, x: Any, pieces: Sequence[int] | None) -> dict[str, Any]:
    """Run a selective scan and its backward on a piece, gradients of weights summed over the ranks; or as a whole."""
    torch.manual_seed(0)
    layer = wing.SelectiveScan(4, 3).double()
    x = sliced(x, 1, pieces, rank).clone().requires_grad_()
    y, state = layer(x, torch.sin(x), sequence_group=group)
    # The final state is on every rank: its loss counts once.
    (y.square().sum() + (state.sum() if rank == 0 else 0)).backward()
    if group is not None:
        wing.sum_gradients(layer.parameters(), group)
    result = {"y": y.detach(), "state": state.detach(), "dx": x.grad}
    return result | {name: parameter.grad for name, parameter in layer.named_parameters()}


def dying(group: Any, rank: int, *, way: Any, exits: bool) -> None:
    """Call again and again, until the last rank exits, or sleeps for longer than anybody waits."""
    kernel = kernel_of({"model": "min_gru", "hidden_size": 3, "precision": "fp64"})
    x = torch.ones(2, 4, 2, 3, dtype=torch.float64)
    for count in itertools.count():
        if count == 2 and rank == dist.get_world_size(group) - 1:
            if exits:
                os._exit(1)
            clock.sleep(600)
        wing.recurrence(kernel, x, sequence_group=wing.SequenceGroup(group, way))


def benchmark(group: Any, _rank: int) -> str:
    """Return the record of the small problems of `python -m benchmarks distributed`, as JSON."""
    suite = importlib.import_module("benchmarks.distributed_suite")
    host = suite.Host(group, torch.device("cpu"))
    record = suite.measure(host, True, lambda _: None)
    return str(record.model_dump_json(exclude_defaults=True))


def elsewhere(group: Any, rank: int, *, module: str, named: str, **arguments: Any) -> Any:
    """Return what a rank returns for a case of another module."""
    return getattr(importlib.import_module(module), named)(group, rank, **arguments)


CASES = {
    "elsewhere": elsewhere,
    "benchmark": benchmark,
    "dying": dying,
    "selective": selective,
    "example": example,
    "explained": explained,
    "in_mesh": in_mesh,
    "cell": cell,
    "cell_in_place": cell_in_place,
    "in_graphs": in_graphs,
    "cell_with_all_heads": cell_with_all_heads,
    "full_runs": full_runs,
    "own_heads": own_heads,
    "scan": scan,
    "layers": layers,
    "refusal": refusal,
    "refused_scan": refused_scan,
    "one_sided": one_sided,
    "bytes_sent": bytes_sent,
    "delayed": delayed,
}


@contextlib.contextmanager
def started(folder: Path, count: int = RANKS, timeout: datetime.timedelta | None = None) -> Iterator[Ranks]:
    """Start the ranks, and stop them at the end; without a timeout they wait as long as other work may need."""
    ranks = Ranks(folder, count, timeout or datetime.timedelta(seconds=within(300)))
    try:
        yield ranks
    finally:
        ranks.stop()
