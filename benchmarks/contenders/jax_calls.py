"""The JAX front against what JAX has: jitted calls by the host's clock, from an idle device until it is done."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any

from benchmarks.contenders import jax_equations as equations
from benchmarks.contenders.fused_cells import Inputs as ScanInputs
from benchmarks.harness.gpu import Gpu
from benchmarks.harness.rounds import Arrays, Contender, Run
from benchmarks.problems.jax_problems import ENSEMBLE
from benchmarks.problems.scan_problems import CALLS_IN_A_ROW, Problem
from benchmarks.reference.dense_inputs import Inputs, ProjectedInputs
from benchmarks.report.tables import FIRST_CALL, GROWN, OURS, RECORDED, TARGETS
from minrnn_gen.api import builder_for
from minrnn_gen.config.spec import load_spec
from minrnn_gen.kernel import Kernel
from minrnn_gen.precision import PrecisionName
from minrnn_gen.run.target import target_of

TORCH_FRONT, VMAP, NOTHING = "minrnn_gen.torch", "vmap", "jit of x + 1"
BY_PYTHON = "by Python"
LAX_SCAN, ASSOCIATIVE, CUDNN = "lax.scan", "lax.associative_scan", "jax.experimental.rnn"
NAMES = (LAX_SCAN, ASSOCIATIVE, CUDNN)
# Facts of the calls: what many of them leave behind.
CALLS, RETRACES = 10_000, 100

Function = Callable[..., Any]


class Subject:
    """Arrays of a problem as JAX has them, and the judge of results; products of a scan problem are none."""

    def __init__(self, problem: Problem, gpu: Gpu) -> None:
        # JAX would take three quarters of the memory at its start.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax

        self.jax, self.problem, self.gpu = jax, problem, gpu
        self.is_dense = problem.model != "min_gru"
        self.names = ("x", "R", "dy") if self.is_dense else ("x", "dy")

    @cached_property
    def dense(self) -> Inputs:
        """The inputs of a dense cell."""
        return Inputs(self.problem, self.gpu)

    @cached_property
    def scanned(self) -> ScanInputs:
        """The inputs of a scan."""
        return ScanInputs(self.problem, self.gpu)

    def tensor(self, name: str) -> Any:
        """Return an array of the problem as a tensor of torch."""
        return self.dense.array(name) if self.is_dense else self.scanned.array(name, "BTD")

    def arrays(self, names: Collection[str]) -> list[Any]:
        """Return arrays of the problem on JAX's device."""
        return [self.as_jax(self.tensor(name)) for name in names]

    def as_jax(self, tensor: Any) -> Any:
        """Return a tensor as an array of JAX, in the same memory."""
        tensor = tensor.detach().contiguous()
        self.gpu.finish()
        return self.jax.dlpack.from_dlpack(tensor)

    def judged(self, results: Arrays) -> dict[str, float]:
        """Return the relative errors of results of JAX or of torch."""
        arrays = {
            name: array if isinstance(array, self.gpu.torch.Tensor) else self.gpu.torch.from_dlpack(array)
            for name, array in results.items()
        }
        if self.is_dense:
            return self.dense.judged(arrays)
        return self.scanned.judge("BTD")({name: arrays[name] for name in ("dx" if "dx" in arrays else "y",)})


def contenders(problem: Problem, gpu: Gpu, chosen: Collection[str], refused: Mapping[str, str]) -> list[Contender]:
    """Return the contenders of a problem: ours, and the chosen ways of JAX that have the cell."""
    subject = Subject(problem, gpu)
    match problem.table:
        case "dispatch":
            return _dispatched(subject)
        case "ensemble":
            return [_jitted(OURS, subject, _ours(subject)), _jitted(VMAP, subject, _mapped(subject))]
    ways: dict[str, Function | None] = {
        LAX_SCAN: equations.by_scan(str(problem.model)),
        ASSOCIATIVE: None if subject.is_dense else equations.by_associative_scan,
    }
    entries = [_jitted(OURS, subject, _ours(subject)), _of_torch(subject)]
    entries += [
        _jitted(name, subject, function, refused.get(name))
        for name, function in ways.items()
        if function is not None and name in chosen
    ]
    if problem.model == "lstm" and CUDNN in chosen:
        entries.append(_cudnn(subject, refused.get(CUDNN)))
    return entries


def _ours(subject: Subject) -> Function:
    from minrnn_gen.jax.functional import recurrence

    spec = {name: value for name, value in subject.problem.spec.items() if value is not None}
    return lambda x, R=None: recurrence(spec, x, R)[0]


def _mapped(subject: Subject) -> Function:
    """Return the cells of an ensemble as one head each, mapped over the axes in which heads lie."""
    from minrnn_gen.jax.functional import recurrence

    problem = subject.problem
    spec = {name: value for name, value in problem.spec.items() if value is not None}
    spec |= {"heads": 1, "hidden_size": problem.head_dim}

    def run(x: Any, R: Any) -> Any:
        apart = x.reshape(*x.shape[:3], ENSEMBLE, problem.head_dim)
        mapped = subject.jax.vmap(lambda x, R: recurrence(spec, x, R[:, None])[0], in_axes=(3, 1), out_axes=2)
        return mapped(apart, R).reshape(problem.batch, problem.time, problem.channels)

    return run


def _jitted(name: str, subject: Subject, function: Function, refused: str | None = None) -> Contender:
    """Return a function of (x, R) with its gradients by a given dy, in one program."""
    jax, first_seconds, peaks = subject.jax, list[float](), list[Callable[[], int]]()

    def prepare() -> Run:
        *leaves, dy = subject.arrays(subject.names)

        def computed(leaves: Any, dy: Any) -> Any:
            y, backward = jax.vjp(lambda leaves: function(*leaves), leaves)
            return {"y": y, **dict(zip(("dx", "dR"), backward(dy)[0], strict=False))}

        program = jax.jit(computed)
        peaks.append(lambda: program_bytes(program, leaves, dy))

        def run() -> Arrays:
            results: Arrays = jax.block_until_ready(program(leaves, dy))
            return results

        began = subject.gpu.seconds()
        run()
        first_seconds.append(subject.gpu.seconds() - began)
        return run

    return Contender(
        name,
        prepare,
        subject.judged,
        on_host=True,
        facts=lambda: {FIRST_CALL: round(first_seconds[-1], 3)},
        refused=refused,
        warms_up=True,
        peak_bytes=lambda _: peaks[-1](),
    )


def program_bytes(program: Any, *arguments: Any) -> int:
    """Return the bytes of the results of a jitted program and of what XLA keeps in addition while it runs."""
    memory = program.lower(*arguments).compile().memory_analysis()
    return int(memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes)


def _of_torch(subject: Subject) -> Contender:
    """Return the same recurrence in our torch front."""
    gpu = subject.gpu

    def prepare() -> Run:
        from minrnn_gen.torch.operators.functional import recurrence

        spec = load_spec(subject.problem.spec)
        kernel = Kernel(builder_for(spec, target_of(spec)))
        *leaves, dy = (subject.tensor(name) for name in subject.names)
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]

        def run() -> Arrays:
            y, _ = recurrence(kernel, *leaves)
            gradients = gpu.torch.autograd.grad(y, leaves, dy)
            gpu.finish()
            return {"y": y, **dict(zip(("dx", "dR"), gradients, strict=False))}

        return run

    return Contender(TORCH_FRONT, prepare, subject.judged, on_host=True, warms_up=True, peak_bytes=gpu.peak_bytes)


def _cudnn(subject: Subject, refused: str | None) -> Contender:
    """Return the LSTM of jax.experimental.rnn, which is cuDNN's, in fp32, with its projection."""
    jax, problem = subject.jax, subject.problem
    projected = ProjectedInputs(problem, subject.gpu, subject.dense)
    precision: PrecisionName = "fp16"  # TF32, its default, has as many digits

    def prepare() -> Run:
        from jax.experimental import rnn

        jnp, units = jax.numpy, problem.channels
        x, weight, R, dy = (subject.as_jax(projected.array(name).float()) for name in ("x", "weight", "R", "dy"))
        packed = jnp.concatenate([weight.reshape(-1), R.reshape(-1), jnp.zeros(8 * units, jnp.float32)])
        lengths = jnp.full(problem.batch, problem.time, jnp.int32)
        initial = jnp.zeros((1, problem.batch, units), jnp.float32)

        def computed(x: Any, packed: Any, dy: Any) -> Any:
            def forward(x: Any, packed: Any) -> Any:
                return rnn.lstm(x, initial, initial, packed, lengths, units, units, 1, 0.0, False)[0]

            y, backward = jax.vjp(forward, x, packed)
            dx, dpacked = backward(dy)
            return {"y": y, "dx": dx, "dR": dpacked[weight.size : weight.size + R.size].reshape(R.shape)}

        program = jax.jit(computed)

        def run() -> Arrays:
            results: Arrays = jax.block_until_ready(program(x, packed, dy))
            return results

        return run

    def judged(results: Arrays) -> dict[str, float]:
        return projected.judged({name: subject.gpu.torch.from_dlpack(array) for name, array in results.items()})

    return Contender(CUDNN, prepare, judged, on_host=True, refused=refused, precision=precision, warms_up=True)


def _dispatched(subject: Subject) -> list[Contender]:
    """Return a call of ours, by C where that is here, the same by Python, and what a call of a program costs JAX."""
    from minrnn_gen.jax.c_handler import c_handler

    ours = _ours(subject)

    def contender(name: str, function: Function, facts: Callable[[], dict[str, int | float | str]] = dict) -> Contender:
        return Contender(name, lambda: _in_a_row(subject, function), on_host=True, facts=facts, warms_up=True)

    entries = [contender(OURS, ours, lambda: left_behind(subject, ours)), contender(NOTHING, lambda x, *_: x + 1)]
    handler = c_handler()
    if handler is None:
        return entries

    def by_python() -> Run:
        run = _in_a_row(subject, ours)

        def paused() -> Arrays:
            with handler.paused():
                return run()

        return paused

    return [entries[0], Contender(BY_PYTHON, by_python, on_host=True, warms_up=True), entries[1]]


def _in_a_row(subject: Subject, function: Function) -> Run:
    jax = subject.jax
    arrays = subject.arrays([name for name in subject.names if name != "dy"])
    program = jax.jit(function)

    def run() -> Arrays:
        for _ in range(CALLS_IN_A_ROW - 1):
            program(*arrays)
        return {"y": jax.block_until_ready(program(*arrays))}

    return run


def left_behind(subject: Subject, function: Function, calls: int = CALLS, retraces: int = RETRACES) -> dict[str, Any]:
    """Return what tracing anew and calling many times leave behind: targets, recorded calls, and bytes on the device."""
    from minrnn_gen.jax import target

    jax, arrays = subject.jax, subject.arrays([name for name in subject.names if name != "dy"])
    registered, recorded = target.serve_by_c.cache_info().currsize, len(target._DEVICE_CALLS)
    for _ in range(retraces):
        program = jax.jit(lambda *arrays: function(*arrays))
        y = program(*arrays)
    jax.block_until_ready(y)
    before = _held(arrays)
    for _ in range(calls):
        y = program(*arrays)
    jax.block_until_ready(y)
    return {
        GROWN: _held(arrays) - before,
        TARGETS: target.serve_by_c.cache_info().currsize - registered,
        RECORDED: len(target._DEVICE_CALLS) - recorded,
    }


def _held(arrays: Any) -> int:
    """Return the bytes that JAX holds on the device of arrays; 0 where it does not count them."""
    (device,) = arrays[0].devices()
    return int((device.memory_stats() or {}).get("bytes_in_use", 0))
