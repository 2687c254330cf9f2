"""Running calls whose arrays are on a GPU: a kernel for each regime, built and loaded when it is first met."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.directions import gradients_of_run, incoming_of_run, outputs_of_run, runs_of
from minrnn_gen.call.gradients import RawGradients
from minrnn_gen.call.interface import Contract
from minrnn_gen.call.key import Reading
from minrnn_gen.codegen.signature import ArrayNames, names_of
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.gpu import memory, module
from minrnn_gen.gpu.module import LoadedKernel
from minrnn_gen.plan.kernel_plan import KeptStates, KernelPlan, Regime
from minrnn_gen.plan.problem import KernelPass, Sizes
from minrnn_gen.run.projection import projection, weight_gradient, x_gradient
from minrnn_gen.run.replay import Played, Steps, Tape, Tapes
from minrnn_gen.run.saved import Forward
from minrnn_gen.run.scan_launch import (
    alignment_of_call,
    backward_launch_of,
    forward_launch_of,
    parts_of,
    step_launch_of,
    workspace_bytes_of,
)


class DeviceRun:
    """The kernels of one builder on GPUs; may be used from several threads.

    Everything runs on the stream that is current in the library of x, and is not waited for. What was run once for a form of
    its arrays is run again, the next time, without being looked at: see `prepared`.
    """

    def __init__(self, contract: Contract, builder: Builder, built: tuple[BuiltKernel, ...]) -> None:
        self._contract = contract
        self._builder = builder
        self._built = {(one.plan.kernel_pass, one.plan.regime): one for one in built}
        self._loaded: dict[tuple[KernelPass, Regime], LoadedKernel] = {}
        self._lock = threading.Lock()
        self._locks: dict[tuple[KernelPass, Regime], threading.Lock] = {}
        self._tapes = Tapes()

    @property
    def built(self) -> Mapping[tuple[str, Regime], BuiltKernel]:
        """Every kernel so far, by (pass, regime), in the order in which they were built."""
        return MappingProxyType(self._built.copy())

    @property
    def preactivation_axes(self) -> str:
        """The axes of x once it is projected."""
        return self._contract.preactivation_axes

    @property
    def preactivation_dtype(self) -> str:
        """The dtype of x once it is projected."""
        return self._contract.precision.storage_dtype

    def kept_dtype(self, kept: KeptStates, saves: bool) -> str | None:
        """The dtype in which a forward keeps states, or None where it keeps none; with a backward to follow or without."""
        del saves
        precision = self._contract.precision
        return {"none": None, "storage": precision.storage_dtype, "arithmetic": precision.arithmetic_dtype}[kept]

    @cached_property
    def _names(self) -> ArrayNames:
        """The names of the arrays of a forward or a step."""
        return ArrayNames(self._contract.states, self._contract.parameters)

    @cached_property
    def _names_backward(self) -> ArrayNames:
        """The names of the arrays of a backward."""
        return names_of(self._builder.lowered_backward)

    def tape_of(self, reading: Reading | None) -> Tape | None:
        """Return how calls of this form are run again, if one was run before."""
        return self._tapes.find(reading)

    def again(self, reading: Reading | None) -> Played | None:
        """Run what was run before on arrays of this form, or return None where nothing was."""
        return self._tapes.play(reading)

    def forward(self, call: Call, kept: KeptStates, saves: bool) -> Forward:
        """Run over time; `kept` says in which dtype the states after every step are kept, `saves` whether a backward follows.

        The results of what is played again are y, the states that are kept, the final ones, and x where it was projected.
        """
        if saves:
            self._expect_backward()
        contract = self._contract
        storage, carried = contract.precision.storage_dtype, contract.precision.arithmetic_dtype
        if storage == carried and kept != "none":
            kept = "storage"  # the same kernel by either name
        call = self.with_sequences_beside_x(call)
        # Beyond a length a kernel writes nothing.
        fill = None if call.sequences.lengths is None else 0
        shape, state_shape = contract.y_shape(call.rows, call.time), contract.state_shape(call.batch)
        kept_dtype, kept_states = (storage if kept == "storage" else carried), (contract.states if kept != "none" else ())
        steps = self._begin(call.x, call.reading, call)
        outputs = Outputs(
            y=steps.new_array(shape, storage, fill=fill),
            kept=tuple(steps.new_array(shape, kept_dtype, fill=fill) for _ in kept_states),
            final=tuple(steps.new_array(state_shape, carried) for _ in contract.states),
        )
        projected = self._projected(steps, call, contract.preactivation_axes)
        if call.batch:
            for run, part in runs_of(contract, projected):
                self._run_forward(steps, part, outputs_of_run(contract, outputs, run), kept)
        forward = Forward(call, projected, outputs)
        results = (outputs.y, *outputs.kept, *outputs.final, *(() if call.weight is None else (projected.x,)))
        played = self._tapes.keep(steps.played(results, forward))
        return replace(forward, played=played)

    def step(self, call: Call) -> Outputs:
        """Run one step; the results of what is played again are y and the final states."""
        contract = self._contract
        shape, carried = contract.state_shape(call.batch), contract.precision.arithmetic_dtype
        steps = self._begin(call.x, call.reading, call)
        y = steps.new_array(shape, contract.precision.storage_dtype)
        outputs = Outputs(y, (), tuple(steps.new_array(shape, carried) for _ in contract.states))
        if call.batch:
            call = self._projected(steps, call, "bgh")
            loaded, plan = self._load("step", self._builder.hinted_regime)
            steps.launch(loaded, step_launch_of(plan, self._names, call, outputs), plan.threads)
        self._tapes.keep(steps.played((outputs.y, *outputs.final), None))
        return outputs

    def backward(self, forward: Forward, incoming: IncomingGradient) -> RawGradients:
        """Run against time, from the gradients of what `forward` returned."""
        contract, call, projected = self._contract, forward.call, forward.projected
        carried = contract.precision.arithmetic_dtype
        steps = self._begin(call.x, incoming.reading, forward, incoming)
        fill = None if call.sequences.lengths is None else 0
        gradients = Gradients(
            dx=steps.new_array(projected.x.shape, call.x.dtype, fill=fill),
            dinitial=tuple(steps.new_array(contract.state_shape(call.batch), carried) for _ in contract.states),
            sums=None,
        )
        runs = list(self._runs_back(forward, incoming, gradients)) if call.batch else []
        if call.bias is not None or call.parameters:
            parts = {parts_of(one.plan, call.time) for one in runs} or {1}
            shape = (len(contract.runs_reversed), max(parts), contract.summed_count, call.batch, contract.hidden_size)
            # A run of fewer parts than the other leaves the rest as it is.
            gradients = replace(gradients, sums=steps.new_array(shape, carried, fill=0 if len(parts) > 1 else None))
        for run, one in enumerate(runs):
            its = gradients_of_run(contract, projected.x_axes, gradients, run)
            workspace = steps.workspace(workspace_bytes_of(one.plan, one.call))
            arrays = (one.call, one.read_states, one.incoming, its, workspace)
            launch = backward_launch_of(one.plan, self._names_backward, *arrays)
            steps.launch(one.loaded, launch, one.plan.threads)
        dx, dweight = self._through_projection(steps, call, gradients.dx)
        results = (dx, *gradients.dinitial, gradients.sums, dweight)
        self._tapes.keep(steps.played(results, call))
        return self._raw([None if one is None else one.owner for one in results])

    def backward_again(self, reading: Reading | None) -> tuple[Call, RawGradients] | None:
        """Run a backward that was run before on arrays of this form, and return it with a call that looks like its own."""
        played = self._tapes.play(reading)
        return None if played is None else (played.tape.notes, self._raw(played.results))

    @staticmethod
    def _raw(results: Sequence[Any]) -> RawGradients:
        dx, *dinitial, sums, dweight = results
        # Few values are left to add; the libraries do it in an order that does not change.
        return RawGradients(dx, dweight, dinitial, None if sums is None else sums.sum((1, 3)))

    @staticmethod
    def in_form_of(array: Array, gradient: Any) -> Any:
        """Return a torch tensor or CuPy array in the shape and dtype of `array`."""
        return memory.cast(gradient.reshape(array.shape), array.dtype)

    def _begin(self, like: Array, reading: Reading | None, *given: Call | Forward | IncomingGradient) -> Steps:
        """Return what does a run beside `like`, on the arrays of what is `given`."""
        del given
        return Steps(like, reading)

    def _expect_backward(self) -> None:
        """Build what a backward needs whatever its arrays; of a scan it depends on them."""

    def _run_forward(self, steps: Steps, part: Call, outputs: Outputs, kept: KeptStates) -> None:
        """Run a call of one direction."""
        loaded, plan = self._load("forward", self._regime(part, kept, part.x, outputs.y, *outputs.kept))
        workspace = steps.workspace(workspace_bytes_of(plan, part))
        steps.launch(loaded, forward_launch_of(plan, self._names, part, outputs, workspace), plan.threads)

    def with_sequences_beside_x(self, call: Call) -> Call:
        """Return a call whose lengths and ends are where its kernels read them."""
        lengths, cu_seqlens = (
            None if array is None else memory.int64_beside(call.x, array)
            for array in (call.sequences.lengths, call.sequences.cu_seqlens)
        )
        return replace(call, sequences=replace(call.sequences, lengths=lengths, cu_seqlens=cu_seqlens))

    def _runs_back(self, forward: Forward, incoming: IncomingGradient, gradients: Gradients) -> Iterator[_RunBack]:
        contract, projected = self._contract, forward.projected
        read = Outputs(forward.outputs.y, tuple(map(self._in_storage, self._read_states(forward.outputs))), ())
        for run, part in runs_of(contract, projected):
            states, arriving = outputs_of_run(contract, read, run).kept, incoming_of_run(contract, incoming, run)
            dx = gradients_of_run(contract, projected.x_axes, gradients, run).dx
            loaded, plan = self._load("backward", self._regime(part, "none", part.x, arriving.dy, dx, *states))
            yield _RunBack(part, states, arriving, loaded, plan)

    def _read_states(self, outputs: Outputs) -> tuple[Array, ...]:
        """The states that a backward reads, as they were kept, y where it is one of them."""
        lowered = self._builder.lowered_backward
        kept = dict(zip(self._contract.states, outputs.kept, strict=True)) if outputs.kept else {}
        return tuple(outputs.y if name == lowered.output_state else kept[name] for name in lowered.read_states)

    def _in_storage(self, array: Array) -> Array:
        storage = self._contract.precision.storage_dtype
        return array if array.dtype == storage else memory.inspect(memory.cast(array.owner, storage), array.name)

    def _projected(self, steps: Steps, call: Call, axes: str) -> Call:
        """Multiply x by the weight, if there is one; the result has the axes of pre-activations."""
        if call.weight is None:
            return call
        product = steps.new_array(self._contract.shape(axes, call.rows, call.time), call.x.dtype)
        if call.rows and call.time:
            steps.multiply(projection(call.x, call.weight, product, axes[-1] == "t"))
        return replace(call, x=product, x_axes=axes, weight=None)

    def _through_projection(self, steps: Steps, call: Call, gradient: Array) -> tuple[Array, Array | None]:
        """Return the gradients of x and of the weight, given that of the pre-activations."""
        if call.weight is None:
            return gradient, None
        time_is_last = call.x_axes[-1] == "t"
        has_rows = bool(call.rows and call.time)
        dx = steps.new_array(call.x.shape, call.x.dtype)
        carried = self._contract.precision.arithmetic_dtype
        dweight = steps.new_array(call.weight.shape, carried, fill=None if has_rows else 0)
        if has_rows:
            x, lengths = call.x, call.sequences.lengths
            if lengths is not None:
                # What lies beyond a length has no gradient, but a NaN there times zero would have.
                x = memory.zeroed_beyond(x, call.x_axes, lengths)
            steps.multiply(x_gradient(gradient, call.weight, dx, time_is_last))
            for product in weight_gradient(gradient, x, dweight, time_is_last):
                steps.multiply(product)
        return dx, dweight

    def _regime(self, call: Call, kept: KeptStates, *rows: Array) -> Regime:
        """The regime of a call of one direction whose arrays of x and y are `rows`."""
        packed = call.sequences.cu_seqlens is not None
        return self._builder.regime_of(
            Sizes(call.batch, call.time // call.batch if packed else call.time),
            alignment_of_call(*rows),
            reverse=call.reverse,
            resets=call.sequences.resets is not None,
            kept_states=kept,
            packed=packed,
        )

    def _load(self, kernel_pass: KernelPass, regime: Regime) -> tuple[LoadedKernel, KernelPlan]:
        key = (kernel_pass, regime)
        if key not in self._loaded:
            cubin, plan = self._compiled(kernel_pass, regime)
            self._loaded.setdefault(key, module.loaded_kernel(cubin, plan))
        return self._loaded[key], self._built[key].plan

    def _compiled(self, kernel_pass: KernelPass, regime: Regime) -> tuple[bytes, KernelPlan]:
        """Return a kernel, built if it was not yet; raises ToolchainMissing where there is no NVRTC to compile it."""
        key = (kernel_pass, regime)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # others may be built meanwhile
            if key not in self._built:
                self._built[key] = self._builder.build(kernel_pass, regime)
            built = self._built[key]
        if built.cubin is None:
            raise ToolchainMissing(
                "the kernel was not compiled because NVRTC is not installed: pip install 'minrnn-gen[cuda13]'"
            )
        return built.cubin, built.plan


@dataclass(frozen=True, slots=True)
class _RunBack:
    """One run of a backward: its part of the call, of the states that are read and of what arrives, and the kernel for it."""

    call: Call
    read_states: tuple[Array, ...]
    incoming: IncomingGradient
    loaded: LoadedKernel
    plan: KernelPlan
