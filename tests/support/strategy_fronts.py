"""Answers of each front for each strategy: whether the kernel of a call that a strategy serves best reaches it."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.call_corpus import Options, PlannedKernels, arguments_of, gradients_of
from support.exported_launches import not_compiled
from support.fake_compiler import Compiler
from support.fake_device import HostBackend, as_if_on_a_device, executor_on
from support.fake_measurer import FakeMeasurer
from support.norm_cells import OF_ROUNDS
from support.round_cells import RESET_BEFORE

import minrnn_gen
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.projected import projected_at
from minrnn_gen.build.store import Store
from minrnn_gen.call.key import keyed
from minrnn_gen.config.spec import load_spec
from minrnn_gen.export.cuda import cuda_export
from minrnn_gen.gpu import memory
from minrnn_gen.interpret.builder import EmulatedBuilder
from minrnn_gen.interpret.verify import Verification
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.families import FAMILIES
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import ASSUMED_TIME, KernelKey, KernelPass, Sizes
from minrnn_gen.raw_scan import filters, filters_device
from minrnn_gen.raw_scan.filter_kernels import filter_builder
from minrnn_gen.raw_scan.filter_results import PASSED
from minrnn_gen.run.layers.dropout import Dropout
from minrnn_gen.run.layers.stack import StackResult
from minrnn_gen.run.recording.replay import TraceCache
from minrnn_gen.run.target import target_of
from minrnn_gen.tune.candidates import CandidatePool
from minrnn_gen.tune.history import History
from minrnn_gen.tune.tuner import KernelTuning

GPU = "h200"
# Of a call that any kernel serves, whatever sizes it is planned for.
CALL = Options(2, 128, dstate=True)


class Served(NamedTuple):
    """A call of a spec, whose kernel is of the strategy."""

    spec: dict[str, Any]
    kernel_pass: KernelPass
    sizes: Sizes


_SCAN: dict[str, Any] = {"model": "min_gru", "hidden_size": 256}
_LAST: dict[str, Any] = {"model": "min_gru", "hidden_size": 64, "layout": "BDT"}
_LSTM: dict[str, Any] = {"model": "lstm", "hidden_size": 256, "precision": "bf16"}
_WIDE: dict[str, Any] = {"model": "lstm", "hidden_size": 2048, "precision": "fp64"}
_ROUNDS: dict[str, Any] = {"model": RESET_BEFORE, "hidden_size": 64}
_NORMS: dict[str, Any] = {"model": OF_ROUNDS, "hidden_size": 64, "heads": 2}
_DIAGONAL: dict[str, Any] = {"model": "ind_rnn", "hidden_size": 64}
_COUPLED: dict[str, Any] = {"model": "biquad", "hidden_size": 64}
_VECTORS: dict[str, Any] = {"model": "s4d", "hidden_size": 64, "state_size": 4}
_PROJECTED: dict[str, Any] = {"model": "min_gru", "hidden_size": 512, "input_size": 512, "precision": "bf16"}
_FEW, _MANY, _LONG = Sizes(4, 16), Sizes(1024, 64), Sizes(1, 65536)
SERVED: dict[str, Served] = {
    "scan_forward_channels": Served(_SCAN, "forward", _FEW),
    "scan_backward_channels": Served(_SCAN, "backward", _FEW),
    "scan_forward_time": Served(_LAST, "forward", _FEW),
    "scan_backward_time": Served(_LAST, "backward", _FEW),
    "scan_forward_cooperative": Served(_SCAN, "forward", _LONG),
    "scan_backward_cooperative": Served(_SCAN, "backward", _LONG),
    "scan_forward_projected": Served(_PROJECTED, "forward", Sizes(64, 512)),
    "scan_step": Served(_SCAN, "step", _FEW),
    "large_batch_forward": Served(_LSTM | {"hidden_size": 512}, "forward", _MANY),
    "large_batch_backward": Served(_LSTM, "backward", _MANY),
    "persistent_forward": Served(_LSTM, "forward", _FEW),
    "persistent_backward": Served(_LSTM, "backward", _FEW),
    "decode_step": Served(_LSTM, "step", _FEW),
    "decode_rounds": Served(_ROUNDS | {"layout": "BDT"}, "step", _FEW),
    "backward_arguments": Served(_ROUNDS, "arguments", _FEW),
    "stepwise_forward": Served(_WIDE, "forward", Sizes(2, 8)),
    "stepwise_backward": Served(_WIDE, "backward", Sizes(2, 8)),
    "normed_forward": Served(_NORMS, "forward", _FEW),
    "normed_backward": Served(_NORMS, "backward", _FEW),
    "normed_arguments": Served(_NORMS, "arguments", _FEW),
    "coupled_forward": Served(_COUPLED, "forward", _LONG),
    "diagonal_forward": Served(_DIAGONAL, "forward", _FEW),
    "diagonal_backward": Served(_DIAGONAL, "backward", _FEW),
    "diagonal_backward_scan": Served(_DIAGONAL, "backward", _LONG),
    "diagonal_step": Served(_DIAGONAL, "step", _FEW),
    "dropout": Served(_LSTM, "dropout", _FEW),
    "filter_forward": Served(_LSTM, "filter", _LONG),
    "filter_backward": Served(_LSTM, "filter_backward", _LONG),
    "vector_forward": Served(_VECTORS, "forward", _FEW),
    "vector_backward": Served(_VECTORS, "backward", _FEW),
    "vector_step": Served(_VECTORS, "step", _FEW),
}
# What a backward runs: its kernel, and before it those of what products multiplied.
BACK = ("backward", "arguments")
STRATEGIES = tuple(family.name for family in FAMILIES)
# A filter is a function of arrays: it has no spec, and so nothing that begins with one.
_ORDER = 2


@functools.cache
def _kernel(spec: str) -> Kernel:
    return minrnn_gen.compile(json.loads(spec), gpu=GPU)


def kernel_of(served: Served) -> Kernel:
    """Return the kernel of a spec; called within `nothing_compiled(plans_sizes=True)`."""
    return _kernel(json.dumps(served.spec))


def specialization_of(served: Served, builder: Builder) -> Specialization:
    """Return the specialization of a call of the sizes."""
    projected = projected_at(builder, served.sizes)
    return builder.hinted_specialization if projected is None else projected


def key_of(served: Served, builder: Builder) -> KernelKey:
    """Return the kernel that a call of the sizes runs."""
    return builder.choose(served.kernel_pass, specialization_of(served, builder), served.sizes)


def of_a_call(served: Served, _: Path) -> set[str]:
    """The cost model's own choice, of all kernels."""
    if served.kernel_pass in PASSED:
        return _filtered(served)
    builder = kernel_of(served).builder
    return {builder.solve(key_of(served, builder)).family.name}


def verified(served: Served, folder: Path) -> set[str]:
    kernel, found = kernel_of(served), set[str]()
    if served.kernel_pass == "dropout" or served.kernel_pass in PASSED:
        return found
    for number in range(Verification.candidates + 1):
        sizes = Sizes(1, ASSUMED_TIME) if number else served.sizes
        builder = EmulatedBuilder(kernel.spec, kernel.builder.target, Store(folder), other=number, sizes=sizes)
        key = builder.choose(served.kernel_pass, builder.hinted_specialization, sizes)
        found.add(builder.build(key).plan.name)
    if projecting := Verification(kernel.spec, kernel.builder.target).projecting():
        found |= {built.plan.name for built in projecting.builder._built.values()}
    return found


def _recorded(served: Served, record: Callable[[Kernel, Any, Any, Any], Any]) -> set[str]:
    """Return what a call that `record` records is run by, each kernel planned for the sizes."""
    kernel = kernel_of(served)
    kernels = PlannedKernels(kernel.builder, served.sizes)
    call = Options(2, 1, is_step=True) if served.kernel_pass == "step" else CALL
    if kernel.interface.input_size:
        call = Options(*served.sizes)  # where alone it is faster
    arguments, executor = arguments_of(kernel.interface, call), executor_on(kernel, kernels)
    with as_if_on_a_device(kernel, executor=executor), pytest.MonkeyPatch.context() as patch:
        patch.setattr("minrnn_gen.gpu.cublas.multiply", lambda *_, **__: None)
        assert record(kernel, executor, arguments, gradients_of(kernel.interface, call)) is not None
    return {plan.name for plan in kernels.plans.values()}


def captured(served: Served, _: Path) -> set[str]:
    """A record of the pass, which a graph takes: it reads nothing back, and allocates nothing."""
    if served.kernel_pass in PASSED:
        return _filtered(served)
    if served.kernel_pass == "dropout":
        return _dropped(served)

    def record(_: Kernel, executor: Any, arguments: Any, gradients: Any) -> Any:
        if served.kernel_pass == "step":
            return executor.record_step(arguments)
        forward = executor.record_forward(arguments, served.kernel_pass in BACK, served.kernel_pass in BACK)
        if forward is None or served.kernel_pass == "forward":
            return forward
        dy, dstate = gradients
        return executor.record_backward(forward, dy, dstate)

    return _recorded(served, record)


def _dropped(served: Served) -> set[str]:
    torch = importlib.import_module("torch")
    kernel = kernel_of(served)
    kernels = PlannedKernels(kernel.builder, served.sizes)
    source, target = torch.zeros(2, 3, 256, dtype=torch.bfloat16), torch.zeros(2, 3, 256, dtype=torch.bfloat16)
    given = [source, torch.ones(2, 3, 256, dtype=torch.bool), target]
    with as_if_on_a_device(kernel, executor=executor_on(kernel, kernels)):
        call_key = keyed("dropout", given)
        arrays = [memory.inspect(array, "an array").with_slot(slot) for slot, array in enumerate(given)]
        recorder = HostBackend(kernels).begin(arrays[0], call_key, arrays)
        Dropout(arrays[0], arrays[1], arrays[2], 0.5).run(recorder)
        assert recorder.finish(StackResult(()), None).replay is not None
    return {plan.name for plan in kernels.plans.values()}


def _filtered(served: Served, record: Callable[[Any, list[Any]], Any] = filters.recorded) -> set[str]:
    """A record of a filter, which a call replays and a graph takes."""
    torch = importlib.import_module("torch")
    spec = load_spec({"model": "min_gru", "hidden_size": 1, "gpu": GPU})
    kernels = PlannedKernels(filter_builder("fp32", _ORDER, target_of(spec)), served.sizes)
    shapes = {"b": (1, _ORDER + 1), "a": (1, _ORDER + 1), "zi": (2, 1, _ORDER), "dzf": (2, 1, _ORDER)}
    passed = [
        torch.zeros(shapes.get(name, (2, 1, 128)), dtype=torch.float64 if name in shapes else torch.float32)
        for name in PASSED[served.kernel_pass]
    ]
    kernel = kernel_of(SERVED["dropout"])  # of any: a recorder of another's runs
    with as_if_on_a_device(kernel, executor=executor_on(kernel, kernels)), pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters, "inspected", lambda array, name: replace(memory.inspect(array, name), device=0))
        patch.setattr(filters, "_CALLS", {kernel_pass: TraceCache() for kernel_pass in PASSED})
        patch.setattr(filters_device, "filter_kernels", lambda *_: kernels)
        assert record(served.kernel_pass, passed) is not None
    return {plan.name for plan in kernels.plans.values()}


def in_jax(served: Served, _: Path) -> set[str]:
    """A record of the pass, as XLA's custom call asks for it and replays it."""
    if served.kernel_pass == "dropout":
        return set()
    device, requests = importlib.import_module("minrnn_gen.jax.device"), importlib.import_module("minrnn_gen.jax.request")
    known = importlib.import_module("minrnn_gen.layers.kernels").known
    functional = importlib.import_module("minrnn_gen.jax.functional")

    def recorded(asked: Any, operands: list[Any]) -> Any:
        site = requests.CallSite(asked, tuple(requests.Shaped(tuple(one.shape), str(one.dtype)[6:]) for one in operands))
        return device._recorded(site, operands)

    if served.kernel_pass in PASSED:
        return _filtered(served, lambda asked, passed: recorded(requests.Request(asked, (True,) * len(passed)), passed))
    # Products outside the recurrence are XLA's there, so a kernel is that of pre-activations.
    spec = {name: value for name, value in served.spec.items() if name != "input_size"}
    served = served._replace(spec=spec)

    def record(kernel: Kernel, _executor: Any, arguments: Any, gradients: Any) -> Any:
        flat = arguments.flat(kernel.interface)
        present, keeps = tuple(array is not None for array in flat), served.kernel_pass in BACK
        assert functional.kernel_by(known(kernel)) is kernel
        asked = requests.Request("backward" if keeps else served.kernel_pass, present, known(kernel), keeps=keeps)
        operands = [array for array in flat if array is not None]
        if served.kernel_pass in BACK:
            dy, dstate = gradients
            kept = [dy] * (1 + len(kernel.states))  # y and the states, which the forward that is recorded writes
            operands += [*kept, dy, *dstate.values()]
        return recorded(asked, operands)

    return _recorded(served, record)


def exported(served: Served, _: Path) -> set[str]:
    if served.kernel_pass == "dropout" or served.kernel_pass in PASSED:
        return set()
    kernel = kernel_of(served)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("build.builder", "export.cuda"):
            patch.setattr(f"minrnn_gen.{module}.compile_source", not_compiled)
        without = ("resets", "cu_seqlens", "states")
        _, code = cuda_export(
            "rnn_cell", kernel.interface, kernel.builder, [kernel.builder.target], [served.sizes], True, without
        )
    return {one.plan.name for one in code.kernels}


def prepared(served: Served, _: Path) -> set[str]:
    if served.kernel_pass == "dropout":
        return _prepared_layers()
    if served.kernel_pass in PASSED:
        return set()
    kernel = kernel_of(served)
    kernel.prepare([served.sizes])
    return {built.plan.name for built in kernel.built}


def _prepared_layers() -> set[str]:
    """Layers beside each other, for which dropout is compiled ahead."""
    torch, front = importlib.import_module("torch"), importlib.import_module("minrnn_gen.torch")
    beside = importlib.import_module("minrnn_gen.torch.layers.beside")
    sizes = Sizes(4, 1024)
    layer = front.LSTM(256, 256, num_layers=4, dropout=0.5, dtype=torch.bfloat16)
    layer.prepare([sizes])
    chosen = beside.beside_each_other(layer._recipes("bf16"), "forward", *sizes)
    assert chosen is not None
    return {built.plan.name for built in chosen.kernel.built}


def tuned(served: Served, folder: Path) -> set[str]:
    """Measurements of the kernel where there are as few candidates as strategies."""
    if served.kernel_pass == "dropout" or served.kernel_pass in PASSED:
        return set()
    kernel, measurer, store = kernel_of(served), FakeMeasurer(), Store(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minrnn_gen.build.builder.compile_source", Compiler())
        for module in ("build.builder", "tune.candidates", "tune.tuner"):
            patch.setattr(f"minrnn_gen.{module}.toolchain_version", lambda: "nvrtc 13.4")
        builder = Builder(kernel.spec, kernel.builder.target, store)
        key = builder.key_of(served.kernel_pass, specialization_of(served, builder), served.sizes)
        pool = CandidatePool(builder, key, measurer, History(store), compilers=1)
        KernelTuning(pool, len(pool.solutions), 60.0, lambda _: None).run()
    return {family for family, _ in measurer.timed}


class Front(NamedTuple):
    """A column: what names the strategies that a call reaches, and what has to be installed."""

    ask: Callable[[Served, Path], set[str]]
    needs: str | None = None


FRONTS: dict[str, Front] = {
    "a call": Front(of_a_call),
    "`verify`": Front(verified),
    "JAX": Front(in_jax, "jax"),
    "C for GPUs": Front(exported),
    "`prepare`": Front(prepared),
    "`tune`": Front(tuned),
    "CUDA graphs": Front(captured, "torch"),
}


def takes(front: Front, strategy: str, folder: Path) -> bool:
    """Say whether a call that a strategy serves best has it at a front."""
    return strategy in front.ask(SERVED[strategy], folder)
