"""Answers of each front for each class of cells: calls of small sizes, for which nothing is compiled unless it says so."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.call_corpus import PlannedKernels
from support.fake_compiler import Compiler
from support.fake_device import as_if_on_a_device, executor_on
from support.fake_measurer import FakeMeasurer
from support.input_cells import GAPS, HIGHWAY
from support.round_cells import RESET_BEFORE

import minrnn_gen
from minrnn_gen.build.store import Store
from minrnn_gen.build.target import Target
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.errors import BadInput
from minrnn_gen.interpret.cases import Case, Inputs, inputs_of
from minrnn_gen.interpret.kernel import InterpretedKernel, interpreted
from minrnn_gen.interpret.verify import Verification
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.problem import KernelPass, Sizes
from minrnn_gen.raw_scan.kernels import raw_builder
from minrnn_gen.run.cpu.native import NativeKernels
from minrnn_gen.tune.history import History
from minrnn_gen.tune.tuner import Limits, tune

GPU, HIDDEN, INPUTS = "h200", 8, 3
SIZES = Sizes(2, 3)
N_DIAGONAL = {
    "name": "mixed",
    "states": {"h": "n"},
    "shared": ["b", "c"],
    "equations": "h[t] = sigmoid(W.z) * h[t-1] + tanh(sum(h[t-1])) * S.b",
    "output": "sum(S.c * h[t]) + W.x",
}


@dataclass(frozen=True)
class Row:
    """A class of cells, with a kernel of it; `is_raw`: a scan of given coefficients, which is a function and no cell.

    `is_altered`: calls have reset states and holds.
    """

    kernel: Kernel
    is_raw: bool = False
    is_altered: bool = False

    @functools.cached_property
    def inputs(self) -> Inputs:
        """Arrays of a call, its backward and its step."""
        inputs = inputs_of(self.kernel.interface, Case(*SIZES))
        return replace(inputs, forward=inputs.forward | altering(self.kernel)) if self.is_altered else inputs

    @functools.cached_property
    def served(self) -> Row:
        """The row of the kernel that serves its calls: where products have several shapes, or calls reset states, another."""
        if self.is_altered:
            return Row(self.kernel.altered(begins=True, holds=True)[0])
        return self if self.kernel.embedded is None else Row(self.kernel.embedded)

    @property
    def asked(self) -> dict[str, bool]:
        """The tools that need no call."""
        return {"reset_states": True, "holds": True} if self.is_altered else {}

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of a layer, besides model and sizes."""
        spec = self.kernel.spec
        vectors = {"state_size": spec.state_size} if spec.state_size else {}
        vectors |= {"projection_size": spec.projection_size} if spec.projection_size else {}
        both = {"bidirectional": True} if spec.direction == "bidirectional" else {}
        return {"scan_arithmetic": spec.scan_arithmetic, **vectors, **both}

    @property
    def scanned(self) -> tuple[Any, Any]:
        """The coefficients of a scan of complex numbers."""
        x = self.inputs.forward["x"]
        return x[:, :, 0].copy(), x[:, :, 1].copy()


SPECS: dict[str, dict[str, Any]] = {
    "a scan": {"model": "min_gru"},
    "a scan with `scan_arithmetic: log`": {"model": "min_gru_log", "scan_arithmetic": "log"},
    "a scan of complex numbers": {},
    "block-affine": {"model": "biquad"},
    "diagonal": {"model": "ind_rnn"},
    "dense": {"model": "gru"},
    "dense, rounds of products": {"model": RESET_BEFORE},
    "dense, norms within a step": {"model": "layer_norm_lstm"},
    "a scan with inputs X.*": {"model": HIGHWAY},
    "dense, with inputs X.*": {"model": GAPS},
    "dense, products of several shapes": {"model": "lstm_projected", "projection_size": 4},
    "n values per channel, a scan": {"model": "selective", "state_size": 4},
    "n values per channel, diagonal": {"model": N_DIAGONAL, "state_size": 4},
    "both directions": {"model": "min_gru", "direction": "bidirectional"},
    "with its projection": {"model": "min_gru", "input_size": INPUTS},
    "with `reset_states` and `holds`": {"model": "min_gru"},
}
ALTERED = "with `reset_states` and `holds`"


def rows() -> dict[str, Row]:
    """Return a kernel of each class."""
    return {name: replace(_row(spec), is_altered=name == ALTERED) for name, spec in SPECS.items()}


def altering(kernel: Kernel) -> dict[str, Any]:
    """Return the reset states and holds of a call, and its resets."""
    interface, marks = kernel.interface, np.arange(SIZES.batch * SIZES.time).reshape(SIZES) % 2 == 0
    dtype = numpy_dtype(interface.precision.arithmetic_dtype)
    states = {name: np.ones(interface.shape_of_state(name, SIZES.batch), dtype) for name in interface.states}
    return {"resets": marks, "reset_states": states, "holds": ~marks}


def _row(spec: dict[str, Any]) -> Row:
    if spec:
        return Row(minrnn_gen.compile({"hidden_size": HIDDEN, "gpu": GPU, **spec}))
    builder = raw_builder("complex64", HIDDEN, "BTD", False, Target.named(GPU))
    key = builder.key_of("forward", builder.hinted_specialization, SIZES)
    return Row(Kernel(builder, (builder.build(key),)), is_raw=True)


class Front(NamedTuple):
    """A column: what asks it, what has to be installed for that, and whether it is too slow to be asked every day."""

    ask: Callable[[Row, Path], None]
    needs: str | None = None
    is_slow: bool = False


class NotThere(Exception):
    """A front does not have a class of cells at all: there is nothing to call."""


def mapped(arguments: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: mapped(value, change) if isinstance(value, dict) else change(value) for name, value in arguments.items()}


def library_of(name: str) -> tuple[Any, Any]:
    """Return a library, and the front of it."""
    return importlib.import_module(name), importlib.import_module(f"minrnn_gen.{name}")


def a_cell(row: Row) -> None:
    if row.is_raw:
        raise NotThere


def in_numpy(row: Row, _: Path) -> None:
    """Forward, backward, and for a scan of complex numbers its functions."""
    if row.is_raw:
        y, final = minrnn_gen.scan(*row.scanned)
        minrnn_gen.scan_backward(row.scanned[0], y, y, dfinal=final)
        return
    *_, saved = row.kernel.forward(**row.inputs.forward)
    row.kernel.backward(saved, row.inputs.dy, row.inputs.dstate)


def second_gradients(row: Row, _: Path) -> None:
    a_cell(row)
    *_, saved = row.kernel.forward(**row.inputs.forward)
    row.kernel.second_backward(saved, row.inputs.dy, {"x": row.inputs.forward["x"]}, row.inputs.dstate)


def native(row: Row) -> str:
    """Return why host arrays are NumPy's, as far as that is known without compiling; nothing where they are not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MINRNN_CPU", raising=False)
        patch.setattr("minrnn_gen.run.cpu.native.why_no_native_code", lambda: "")
        return NativeKernels(row.served.kernel.interface, row.served.kernel.builder)._refusal


def in_native_code(row: Row, _: Path) -> None:
    if native(row):
        raise NotThere


def on_a_gpu(row: Row, _: Path) -> None:
    builder = row.served.kernel.builder
    passes: tuple[KernelPass, ...] = ("forward", "backward", "step")
    for kernel_pass in passes[: 2 if row.kernel.interface.directions else 3]:
        next(builder.solutions(builder.key_of(kernel_pass, builder.hinted_specialization))).plan()


def emulated(row: Row, _: Path) -> None:
    interpreted((row.served if row.is_altered else row).kernel.spec, row.kernel.builder.target)


def verified(row: Row) -> None:
    """Every pass of the kernel that a call has, run thread by thread; nobody else verifies a scan of complex numbers."""
    if not row.is_raw:
        verdicts = list(Verification(row.served.kernel.spec, row.kernel.builder.target, candidates=0).run())
        assert verdicts and all(verdict.is_right for verdict in verdicts)
        return
    kernel: InterpretedKernel = interpreted(row.kernel.spec, row.kernel.builder.target)
    y, _state = kernel(**row.inputs.forward)
    expected, _ = row.kernel(**row.inputs.forward)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def single_step(row: Row, _: Path) -> None:
    a_cell(row)
    if row.is_altered:
        raise NotThere
    row.kernel.step(**row.inputs.step)


def altered_calls(row: Row, _: Path) -> None:
    """A call with reset states and holds, and its gradients."""
    a_cell(row)
    *_, saved = row.kernel.forward(**row.inputs.forward | altering(row.kernel))
    row.kernel.backward(saved, row.inputs.dy, row.inputs.dstate)


def torch_recurrence(row: Row, _: Path) -> None:
    torch, front = library_of("torch")
    if row.is_raw:
        a, b = map(torch.from_numpy, row.scanned)
        front.scan(a.requires_grad_(), b)[0].abs().sum().backward()
        return
    arguments = mapped(row.inputs.forward, torch.from_numpy)
    arguments["x"].requires_grad_()
    front.recurrence(row.kernel, **arguments)[0].sum().backward()


def torch_twice(row: Row, _: Path) -> None:
    """A backward of gradients, which autograd recorded."""
    torch, front = library_of("torch")
    if row.is_raw:
        x, b = map(torch.from_numpy, row.scanned)
        y = front.scan(x.requires_grad_(), b)[0].abs()
    else:
        arguments = mapped(row.inputs.forward, torch.from_numpy)
        x = arguments["x"].requires_grad_()
        y = front.recurrence(row.kernel, **arguments)[0]
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    gradient.abs().sum().backward()


def torch_module(row: Row) -> tuple[Any, tuple[Any, ...]]:
    """Return a layer of the class, or the scan as a module, and what it is called with."""
    torch, front = library_of("torch")

    class WithInputs(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, layer: Any, names: tuple[str, ...]) -> None:
            super().__init__()
            self.layer, self.names = layer, names

        def forward(self, x: Any, *inputs: Any) -> Any:
            return self.layer(x, inputs=dict(zip(self.names, inputs, strict=True)))

    class Altered(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any, resets: Any, holds: Any, *states: Any) -> Any:
            return self.layer(x, resets=resets, holds=holds, reset_states=states)

    if not row.is_raw:
        layer, names = front.RNN(row.kernel.spec.model, INPUTS, HIDDEN, **row.options), row.kernel.inputs
        x = torch.zeros(2, 3, INPUTS)
        if row.is_altered:
            marks = torch.from_numpy(row.inputs.forward["resets"])
            return Altered(layer), (x, marks, ~marks, *(torch.ones(1, 2, HIDDEN) for _ in row.kernel.states))
        return (WithInputs(layer, names) if names else layer), (x, *(torch.zeros(2, 3, HIDDEN) for _ in names))

    class Scan(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, a: Any, b: Any) -> Any:
            return front.scan(a, b)[0]

    return Scan(), tuple(map(torch.from_numpy, row.scanned))


def torch_layer(row: Row, _: Path) -> None:
    a_cell(row)
    module, inputs = torch_module(row)
    module(*inputs)[0].sum().backward()


def torch_nn(row: Row, _: Path) -> None:
    torch, front = library_of("torch")
    spec = row.kernel.spec
    # Whatever the cell is: these classes are of other cells, which have both, too.
    if row.kernel.builder.cell_shape.kind != "dense" and not (spec.input_size or spec.direction == "bidirectional"):
        raise NotThere
    both, keywords = spec.direction == "bidirectional", dict[str, Any]()
    if row.is_altered:
        keywords = {name: torch.from_numpy(row.inputs.forward[name]) for name in ("resets", "holds")}
        keywords["reset_states"] = torch.zeros(1, 2, HIDDEN)
    layer = front.nn.GRU(INPUTS, HIDDEN, bidirectional=both, batch_first=True)
    layer(torch.zeros(2, 3, INPUTS), **keywords)[0].sum().backward()


def selective_scan(row: Row, _: Path) -> None:
    torch, front = library_of("torch")
    if row.kernel.spec.model != "selective" and not row.kernel.spec.input_size:
        raise NotThere
    front.SelectiveScan(HIDDEN, 4)(torch.zeros(2, 3, HIDDEN))[0].sum().backward()


def torch_compiled(row: Row, _: Path) -> None:
    torch, _ = library_of("torch")
    module, inputs = torch_module(row)
    torch.compiler.reset()
    torch.compile(module, fullgraph=True, backend="eager")(*inputs)


def torch_exported(row: Row, _: Path) -> None:
    torch, _ = library_of("torch")
    module, inputs = torch_module(row)
    torch.export.export(module.eval(), inputs)


def torch_autocast(row: Row, _: Path) -> None:
    torch, _ = library_of("torch")
    module, inputs = torch_module(row)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = module(*inputs)
    assert row.is_raw or y[0].dtype is torch.bfloat16


def operators(row: Row, folder: Path) -> None:
    torch, front = library_of("torch")
    module, inputs = torch_module(row)
    with torch.no_grad():
        front.export_operators(torch.export.export(module.eval(), inputs), folder, name="cell")


def jax_functions(row: Row, _: Path, batched: bool = False) -> None:
    """Both functions; `batched`: under vmap over one more axis."""
    jax, front = library_of("jax")
    if row.is_raw:
        calls = [(front.scan, dict(zip("ab", row.scanned, strict=True)))]
    else:
        calls = [(functools.partial(front.recurrence, row.kernel.spec), row.inputs.forward)]
        if not (row.kernel.interface.directions or row.is_altered):
            calls.append((functools.partial(front.step, row.kernel.spec), row.inputs.step))
    for function, arguments in calls:
        known = inspect.signature(function).parameters
        given = mapped({name: value for name, value in arguments.items() if name in known}, jax.numpy.asarray)
        if batched:
            given, function = mapped(given, lambda array: array[None]), _under_vmap(jax, function)
        jax.eval_shape(function, **given)


def _under_vmap(jax: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **given: jax.vmap(lambda one: function(**one))(given)


def jax_forward_mode(row: Row, _: Path) -> None:
    a_cell(row)
    jax, front = library_of("jax")
    arguments = mapped(row.inputs.forward, jax.numpy.asarray)

    def run(x: Any, others: dict[str, Any]) -> Any:
        return jax.jvp(lambda x: front.recurrence(row.kernel.spec, x, **others), (x,), (x,))

    jax.eval_shape(run, arguments.pop("x"), arguments)


def jax_layer(row: Row, _: Path) -> None:
    a_cell(row)
    jax, front = library_of("jax")
    layer = front.RNN(row.kernel.spec.model, INPUTS, HIDDEN, **row.options)
    zeros, names = jax.numpy.zeros, row.kernel.inputs
    inputs = {"inputs": {name: zeros((2, 3, HIDDEN)) for name in names}} if names else {}
    if row.is_altered:
        inputs = mapped({name: row.inputs.forward[name] for name in ("resets", "holds")}, jax.numpy.asarray)
        inputs["reset_states"] = {name: zeros((1, 2, HIDDEN)) for name in row.kernel.states}
    jax.eval_shape(lambda: layer.apply(layer.init(jax.random.key(0)), zeros((2, 3, INPUTS)), **inputs))


def export_for_cpus(row: Row, folder: Path) -> None:
    a_cell(row)
    row.kernel.export(folder, target="cpu", name="cell", partial=True, **row.asked)


def export_for_gpus(row: Row, folder: Path) -> None:
    a_cell(row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minrnn_gen.build.builder.compile_source", Compiler())
        row.kernel.export(folder, target="cuda", name="cell", sizes=[SIZES], partial=True, **row.asked)


@contextlib.contextmanager
def one_rank() -> Iterator[Any]:
    """Give a group of this process alone: all that a call checks and agrees on, it does there."""
    dist = importlib.import_module("torch.distributed")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def time_over_ranks(row: Row, _: Path, way: str) -> None:
    torch, front = library_of("torch")
    with one_rank() as group:
        asked = front.SequenceGroup(group, way=way)
        if row.is_raw:
            front.scan(*map(torch.from_numpy, row.scanned), sequence_group=asked)
        else:
            front.recurrence(row.kernel, **mapped(row.inputs.forward, torch.from_numpy), sequence_group=asked)


def heads_over_ranks(row: Row, _: Path) -> None:
    a_cell(row)
    torch, front = library_of("torch")
    with one_rank() as group:
        front.recurrence(row.kernel, **mapped(row.inputs.forward, torch.from_numpy), head_group=group)


def prepared(row: Row, _: Path) -> None:
    a_cell(row)
    done: list[int] = []
    row.kernel.prepare([SIZES], lambda now, _of: done.append(now), **row.asked)
    assert done


def tuned(row: Row, folder: Path) -> None:
    """Race one candidate of each kernel, on a GPU that is none."""
    a_cell(row)
    store = Store(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minrnn_gen.build.builder.compile_source", Compiler())
        for module in ("build.builder", "tune.candidates", "tune.tuner"):
            patch.setattr(f"minrnn_gen.{module}.toolchain_version", lambda: "nvrtc 13.4")
        builder = replace(row.served.kernel.builder, store=store)
        results = list(tune(builder, FakeMeasurer(), History(store), Limits(60.0, 1, 1)))
    assert results and all(result.winner for result in results)


def captured(row: Row, _: Path) -> None:
    """Record every pass: what is replayed reads nothing back and allocates nothing, so that a graph takes it."""
    torch, _ = library_of("torch")
    kernel, inputs = row.served.kernel, row.served.inputs
    executor = executor_on(kernel, PlannedKernels(kernel.builder, SIZES))

    def arguments_of(given: dict[str, Any]) -> CallArguments:
        x = given.get("x", given.get("x_t"))
        tensors = mapped({**given, "x": x}, torch.from_numpy)
        return CallArguments(**{name: tensors.get(name) for name in CallArguments._fields})

    dy, dstate = torch.from_numpy(inputs.dy), mapped(inputs.dstate, torch.from_numpy)
    with as_if_on_a_device(kernel, executor=executor), pytest.MonkeyPatch.context() as patch:
        patch.setattr("minrnn_gen.gpu.cublas.multiply", lambda *_: None)
        recorded = executor.record_forward(arguments_of(inputs.forward), kernel.spec.training, kernel.spec.training)
        assert recorded is not None and executor.record_backward(recorded, dy, dstate) is not None
        assert kernel.interface.directions or executor.record_step(arguments_of(inputs.step)) is not None


FRONTS: dict[str, Front] = {
    "NumPy": Front(in_numpy),
    "native C": Front(in_native_code),
    "GPU": Front(on_a_gpu),
    "`verify`": Front(emulated),
    "single step": Front(single_step),
    "`reset_states`, `holds`": Front(altered_calls),
    "second gradients": Front(second_gradients, is_slow=True),
    "torch `recurrence`": Front(torch_recurrence, "torch"),
    "double backward": Front(torch_twice, "torch", is_slow=True),
    "torch `RNN`": Front(torch_layer, "torch"),
    "`torch.nn`": Front(torch_nn, "torch"),
    "`SelectiveScan`": Front(selective_scan, "torch"),
    "`torch.compile`": Front(torch_compiled, "torch", is_slow=True),
    "`torch.export`": Front(torch_exported, "torch", is_slow=True),
    "autocast": Front(torch_autocast, "torch"),
    "JAX `recurrence`, `step`": Front(jax_functions, "jax"),
    "JAX `RNN`": Front(jax_layer, "jax"),
    "JAX `vmap`": Front(functools.partial(jax_functions, batched=True), "jax"),
    "JAX `jvp`": Front(jax_forward_mode, "jax", is_slow=True),
    "C for CPUs": Front(export_for_cpus),
    "C for GPUs": Front(export_for_gpus, is_slow=True),
    "operators": Front(operators, "torch", is_slow=True),
    "`pipeline`": Front(functools.partial(time_over_ranks, way="pipeline"), "torch"),
    "`correct`": Front(functools.partial(time_over_ranks, way="correct"), "torch"),
    "`summary`": Front(functools.partial(time_over_ranks, way="summary"), "torch"),
    "`head_group`": Front(heads_over_ranks, "torch"),
    "`prepare`": Front(prepared),
    "`tune`": Front(tuned),
    "CUDA graphs": Front(captured, "torch"),
}


def takes(front: Front, row: Row, folder: Path) -> bool:
    """Say whether a front takes a class of cells; raises AssertionError where it is refused in more than a sentence."""
    try:
        front.ask(row, folder)
    except NotThere:
        return False
    except BadInput as refused:
        assert "\n" not in str(refused)
        return False
    return True
