"""Running calls whose arrays are on a GPU: a kernel for each regime, built and loaded when it is first met."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from minrnn_gen import cuda
from minrnn_gen.arguments import Call, Contract, Gradients, IncomingGradient, Outputs
from minrnn_gen.arrays import Array
from minrnn_gen.build import Builder, BuiltKernel
from minrnn_gen.directions import gradients_of_run, incoming_of_run, outputs_of_run, runs_of
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.gradients import RawGradients
from minrnn_gen.launch import alignment_of_call, backward_launch_of, forward_launch_of, parts_of, step_launch_of
from minrnn_gen.plan.kernel_plan import KeptStates, KernelPlan, Regime
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.saved import Forward


class DeviceRun:
    """The kernels of one builder on GPUs; may be used from several threads.

    Everything runs on the stream that is current in the library of x, and is not waited for.
    """

    def __init__(self, contract: Contract, builder: Builder, built: tuple[BuiltKernel, ...]) -> None:
        self._contract = contract
        self._builder = builder
        self._built = {(one.plan.kernel_pass, one.plan.regime): one for one in built}
        self._loaded: dict[tuple[KernelPass, Regime], cuda.LoadedKernel] = {}
        self._lock = threading.Lock()

    @property
    def built(self) -> Mapping[tuple[str, Regime], BuiltKernel]:
        """Every kernel so far, by (pass, regime), in the order in which they were built."""
        return MappingProxyType(self._built.copy())

    def forward(self, call: Call, kept: KeptStates) -> Forward:
        """Run over time; `kept` says in which dtype the states after every step are kept."""
        contract = self._contract
        storage, carried = contract.precision.storage_dtype, contract.precision.arithmetic_dtype
        if storage == carried and kept != "none":
            kept = "storage"  # the same kernel by either name
        call = self._with_sequences_beside_x(call)
        # Beyond a length a kernel writes nothing.
        has_padding = call.sequences.lengths is not None
        shape, state_shape = contract.y_shape(call.rows, call.time), contract.state_shape(call.batch)
        outputs = Outputs(
            y=cuda.new_array(call.x, shape, storage, zeroed=has_padding),
            kept=tuple(
                cuda.new_array(call.x, shape, storage if kept == "storage" else carried, zeroed=has_padding)
                for _ in (contract.states if kept != "none" else ())
            ),
            final=tuple(cuda.new_array(call.x, state_shape, carried) for _ in contract.states),
        )
        projected = self._projected(call, contract.preactivation_axes)
        if call.batch:
            for run, part in runs_of(contract, projected):
                its = outputs_of_run(contract, outputs, run)
                loaded, plan = self._load("forward", _regime(part, kept, part.x, its.y))
                launch = forward_launch_of(plan, part, its)
                loaded.launch(call.x, launch.blocks, plan.threads, launch.arguments)
        return Forward(call, projected, outputs)

    def step(self, call: Call) -> Outputs:
        """Run one step."""
        contract = self._contract
        shape = contract.state_shape(call.batch)
        y = cuda.new_array(call.x, shape, contract.precision.storage_dtype)
        final = tuple(cuda.new_array(call.x, shape, contract.precision.arithmetic_dtype) for _ in contract.states)
        outputs = Outputs(y, (), final)
        if call.batch:
            call = self._projected(call, "bgh")
            loaded, plan = self._load("step", self._builder.hinted_regime)
            launch = step_launch_of(plan, call, outputs)
            loaded.launch(call.x, launch.blocks, plan.threads, launch.arguments)
        return outputs

    def backward(self, forward: Forward, incoming: IncomingGradient) -> RawGradients:
        """Run against time, from the gradients of what `forward` returned."""
        contract, call, projected = self._contract, forward.call, forward.projected
        carried = contract.precision.arithmetic_dtype
        gradients = Gradients(
            dx=cuda.new_array(call.x, projected.x.shape, call.x.dtype, zeroed=call.sequences.lengths is not None),
            dinitial=tuple(cuda.new_array(call.x, contract.state_shape(call.batch), carried) for _ in contract.states),
            sums=None,
        )
        runs = list(self._runs_back(forward, incoming, gradients)) if call.batch else []
        if call.bias is not None or call.parameters:
            parts = {parts_of(one.plan) for one in runs} or {1}
            count = len(contract.gates) + len(contract.parameters)
            shape = (len(contract.runs_reversed), max(parts), count, call.batch, contract.hidden_size)
            # A run of fewer parts than the other leaves the rest as it is.
            gradients = replace(gradients, sums=cuda.new_array(call.x, shape, carried, zeroed=len(parts) > 1))
        for run, one in enumerate(runs):
            its = gradients_of_run(contract, projected.x_axes, gradients, run)
            launch = backward_launch_of(one.plan, one.call, one.read_states, one.incoming, its)
            one.loaded.launch(call.x, launch.blocks, one.plan.threads, launch.arguments)
        dx, dweight = self._through_projection(call, gradients.dx)
        return RawGradients(
            x=dx,
            weight=dweight,
            initial=gradients.dinitial,
            # Few values are left to add; the libraries do it in an order that does not change.
            sums=None if gradients.sums is None else gradients.sums.owner.sum((1, 3)),
        )

    @staticmethod
    def in_form_of(array: Array, gradient: Any) -> Any:
        """Return a torch tensor or CuPy array in the shape and dtype of `array`."""
        return cuda.cast(gradient.reshape(array.shape), array.dtype)

    def _with_sequences_beside_x(self, call: Call) -> Call:
        lengths, cu_seqlens = (
            None if array is None else cuda.int64_beside(call.x, array)
            for array in (call.sequences.lengths, call.sequences.cu_seqlens)
        )
        return replace(call, sequences=replace(call.sequences, lengths=lengths, cu_seqlens=cu_seqlens))

    def _runs_back(self, forward: Forward, incoming: IncomingGradient, gradients: Gradients) -> Iterator[_RunBack]:
        contract, projected = self._contract, forward.projected
        read = Outputs(forward.outputs.y, self._read_states(forward.outputs), ())
        for run, part in runs_of(contract, projected):
            states, arriving = outputs_of_run(contract, read, run).kept, incoming_of_run(contract, incoming, run)
            dx = gradients_of_run(contract, projected.x_axes, gradients, run).dx
            loaded, plan = self._load("backward", _regime(part, "none", part.x, arriving.dy, dx, *states))
            yield _RunBack(part, states, arriving, loaded, plan)

    def _read_states(self, outputs: Outputs) -> tuple[Array, ...]:
        """The states that a backward reads, in the storage dtype, y where it is one of them."""
        lowered, storage = self._builder.lowered_backward, self._contract.precision.storage_dtype
        kept = dict(zip(self._contract.states, outputs.kept, strict=True)) if outputs.kept else {}
        return tuple(
            outputs.y if name == lowered.output_state else cuda.inspect(cuda.cast(kept[name].owner, storage), name)
            for name in lowered.read_states
        )

    def _projected(self, call: Call, axes: str) -> Call:
        """Multiply x by the weight, if there is one; the result has the axes of pre-activations."""
        if call.weight is None:
            return call
        product = cuda.new_array(call.x, self._contract.shape(axes, call.rows, call.time), call.x.dtype)
        if call.rows and call.time:
            cuda.project(call.x, call.weight, product, time_is_last=axes[-1] == "t")
        return replace(call, x=product, x_axes=axes, weight=None)

    def _through_projection(self, call: Call, gradient: Array) -> tuple[Array, Any]:
        """Return the gradients of x and of the weight, given that of the pre-activations."""
        if call.weight is None:
            return gradient, None
        time_is_last = call.x_axes[-1] == "t"
        has_rows = bool(call.rows and call.time)
        dx = cuda.new_array(call.x, call.x.shape, call.x.dtype)
        carried = self._contract.precision.arithmetic_dtype
        dweight = cuda.new_array(call.x, call.weight.shape, carried, zeroed=not has_rows)
        if has_rows:
            x, lengths = call.x, call.sequences.lengths
            if lengths is not None:
                # What lies beyond a length has no gradient, but a NaN there times zero would have.
                x = cuda.zeroed_beyond(x, call.x_axes, lengths)
            cuda.project_x_gradient(gradient, call.weight, dx, time_is_last)
            cuda.project_weight_gradient(gradient, x, dweight, time_is_last)
        return dx, dweight.owner

    def _load(self, kernel_pass: KernelPass, regime: Regime) -> tuple[cuda.LoadedKernel, KernelPlan]:
        key = (kernel_pass, regime)
        loaded = self._loaded.get(key)
        if loaded is None:
            with self._lock:
                if key not in self._built:
                    self._built[key] = self._builder.build(kernel_pass, regime)
                built = self._built[key]
                if built.cubin is None:
                    raise ToolchainMissing(
                        "the kernel was not compiled because NVRTC is not installed: pip install 'minrnn-gen[cuda13]'"
                    )
                plan = built.plan
                loaded = cuda.LoadedKernel(built.cubin, plan.entry, plan.arch, plan.shared_bytes)
                self._loaded[key] = loaded
        return loaded, self._built[key].plan


@dataclass(frozen=True)
class _RunBack:
    """One run of a backward: its part of the call, of the states that are read and of what arrives, and the kernel for it."""

    call: Call
    read_states: tuple[Array, ...]
    incoming: IncomingGradient
    loaded: cuda.LoadedKernel
    plan: KernelPlan


def _regime(call: Call, kept: KeptStates, *rows: Array) -> Regime:
    """The regime of a call of one direction whose arrays of x and y are `rows`."""
    return Regime(alignment_of_call(*rows), call.reverse, call.sequences.resets is not None, kept)
