"""Running dense cells on a GPU by a product of cuBLAS and a pointwise kernel in turn, step after step, in CUDA graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from minrnn_gen import cublas, cuda
from minrnn_gen.addresses import Address
from minrnn_gen.alternating_launch import (
    BackwardArrays,
    backward_arguments,
    forward_arguments,
    recurrent_gradient,
    row_products,
    scratch_sizes,
    step_product,
)
from minrnn_gen.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.arrays import Array
from minrnn_gen.cuda_graphs import Recorded, Scratch, copy_transposed, scratch_bytes_of
from minrnn_gen.device_run import DeviceRun
from minrnn_gen.directions import gradients_of_run, incoming_of_run, outputs_of_run, runs_of
from minrnn_gen.forms import Reading
from minrnn_gen.gradients import RawGradients
from minrnn_gen.plan.kernel_plan import KeptStates, KernelPlan
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.prepared import Steps
from minrnn_gen.saved import Forward

# A graph is launched in about the time of one step; a longer one wastes more where the time is no multiple of it.
GRAPH_STEPS = 32
# Graphs of other batch sizes that a kernel keeps; each holds the workspace of cuBLAS besides its own.
GRAPHS_HELD = 8
# Of the kernel that only prepares: it strides over what there is.
BEGIN_BLOCKS = 264

Arguments = Callable[[Scratch], tuple[Any, ...]]
Prepare = Callable[[Scratch, int], None]


class AlternatingRun(DeviceRun):
    """The kernels of one builder of a dense cell on GPUs, all in one regime; may be used from several threads.

    A step is a product and a launch. Runs of `GRAPH_STEPS` steps of one batch size are a CUDA graph, recorded when first
    needed; few steps, and those on a stream that is itself being recorded, are enqueued one by one.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._pairs: dict[tuple[KernelPass, int], _Pair] = {}
        self._graphs: dict[tuple[KernelPass, int, int], Recorded] = {}
        self._graphs_lock = threading.Lock()

    def step(self, call: Call) -> Outputs:
        """Run one step."""
        contract = self._contract
        shape, carried = contract.state_shape(call.batch), contract.precision.arithmetic_dtype
        steps = self._steps(call.x, None)
        y = steps.new_array(shape, contract.precision.storage_dtype)
        outputs = Outputs(y, (), tuple(steps.new_array(shape, carried) for _ in contract.states))
        if call.batch:
            self._walk_forward(steps, self._projected(steps, call, "bgh"), outputs, single_step=True)
        return outputs

    def backward(self, forward: Forward, incoming: IncomingGradient) -> RawGradients:
        """Run against time, from the gradients of what `forward` returned."""
        contract, call, projected = self._contract, forward.call, forward.projected
        carried = contract.precision.arithmetic_dtype
        assert call.R is not None
        steps = self._steps(call.x, None)
        fill = None if call.sequences.lengths is None else 0
        gradients = Gradients(
            dx=steps.new_array(projected.x.shape, call.x.dtype, fill=fill),
            dinitial=tuple(steps.new_array(contract.state_shape(call.batch), carried) for _ in contract.states),
            sums=None,
        )
        if call.bias is not None or call.recurrent_bias is not None or call.parameters:
            shape = (len(contract.runs_reversed), 1, contract.summed_count, call.batch, contract.hidden_size)
            gradients = replace(gradients, sums=steps.new_array(shape, carried, fill=None if call.batch else 0))
        packed_shape = (contract.heads, len(contract.recurrent_gates), contract.head_dim, contract.head_dim)
        dR = steps.new_array((len(contract.runs_reversed), *packed_shape), carried, fill=0)
        if call.batch:
            first = self._initial_output(call)
            for run, part in runs_of(contract, projected):
                self._run_back(
                    steps,
                    part,
                    None if first is None else first.selected(0, run) if contract.directions else first,
                    outputs_of_run(contract, forward.outputs, run),
                    incoming_of_run(contract, incoming, run),
                    gradients_of_run(contract, projected.x_axes, gradients, run),
                    dR.selected(0, run),
                )
        dx, dweight = self._through_projection(steps, call, gradients.dx)
        owners = [None if one is None else one.owner for one in (dx, *gradients.dinitial, gradients.sums, dweight)]
        return replace(self._raw(owners), dR=dR.owner.swapaxes(1, 2))

    def _steps(self, like: Array, reading: Reading | None) -> Steps:
        del reading  # a run in graphs is not noted down: it is launched as fast as it would be again
        return Steps(like, None)

    def _run_forward(self, steps: Steps, part: Call, outputs: Outputs, kept: KeptStates) -> None:
        del kept
        self._walk_forward(steps, part, outputs)

    def _walk_forward(self, steps: Steps, part: Call, outputs: Outputs, single_step: bool = False) -> None:
        contract = self._contract
        kept_is_storage = bool(outputs.kept) and outputs.kept[0].dtype == contract.precision.storage_dtype
        self._walk(
            "forward",
            steps,
            part,
            lambda scratch: forward_arguments(part, contract.layout, outputs, kept_is_storage, scratch, single_step),
        )

    def _run_back(
        self,
        steps: Steps,
        part: Call,
        first: Array | None,
        outputs: Outputs,
        incoming: IncomingGradient,
        gradients: Gradients,
        dR: Array,
    ) -> None:
        contract, precision = self._contract, self._contract.precision
        assert part.x.device is not None
        device, stream = part.x.device, cuda.current_stream(part.x)
        tail = (contract.heads, len(contract.recurrent_gates), contract.head_dim)
        rows, y = part.rows * part.time, outputs.y
        products = steps.new_array((rows, *tail), precision.arithmetic_dtype)
        dproducts = steps.new_array((rows, *tail), precision.storage_dtype, fill=0)
        first_products = steps.new_array((part.batch, *tail), precision.arithmetic_dtype, fill=0)
        first_dproducts = steps.new_array((part.batch, *tail), precision.storage_dtype, fill=0)
        arrays = BackwardArrays(
            self._read_states_of(outputs), incoming, products, first_products, gradients, dproducts, first_dproducts
        )

        def prepare(scratch: Scratch, stream: int) -> None:
            self._pack(part, scratch, stream)
            scratch.clear(device, stream, "dproduct")
            for product in row_products(contract, contract.layout, scratch, y, products) if rows else ():
                cublas.multiply(device, stream, product, scratch["cublas"])
            if first is not None:
                (product,) = row_products(contract, "BTD", scratch, _as_rows(first), first_products)
                cublas.multiply(device, stream, product, scratch["cublas"])

        clip = self._builder.spec.recurrent_gradient_clip or 0.0
        self._walk(
            "backward",
            steps,
            part,
            lambda scratch: backward_arguments(part, contract.layout, arrays, clip, scratch),
            prepare,
        )
        for product in recurrent_gradient(contract, contract.layout, y, dproducts, dR) if rows else ():
            cublas.multiply(device, stream, product)
        if first is not None:
            (product,) = recurrent_gradient(contract, "BTD", _as_rows(first), first_dproducts, dR)
            cublas.multiply(device, stream, product)

    def _read_states_of(self, outputs: Outputs) -> tuple[Array, ...]:
        """The states that a backward reads, y where it is one of them."""
        lowered = self._builder.lowered_backward
        kept = dict(zip(self._contract.states, outputs.kept, strict=True)) if outputs.kept else {}
        return tuple(outputs.y if name == lowered.output_state else kept[name] for name in lowered.read_states)

    def _initial_output(self, call: Call) -> Array | None:
        """The initial value of the output in the storage dtype, as the first product had it; None for zeros."""
        output = self._builder.lowered_backward.output_state
        initial = call.initial[self._contract.states.index(str(output))]
        return None if initial is None else self._in_storage(initial)

    def _pack(self, part: Call, scratch: Scratch, stream: int) -> None:
        """Enqueue a copy of R with its heads first, so that the gates of a head are one matrix."""
        assert part.R is not None and part.R.device is not None
        copy_transposed(part.R.device, stream, part.R, (1, 0, 2, 3), scratch["packed"])

    def _walk(
        self,
        kernel_pass: KernelPass,
        steps: Steps,
        part: Call,
        arguments: Arguments,
        prepare: Prepare = lambda _scratch, _stream: None,
    ) -> None:
        """Run all steps of a call of one direction, and one more, which writes the last states or first gradients.

        `prepare` enqueues what has to be in the scratch before the first step.
        """
        assert part.x.device is not None
        device, stream, due = part.x.device, cuda.current_stream(part.x), part.time + 1
        pair = self._pair(kernel_pass, device)
        if due < GRAPH_STEPS or cuda.is_capturing(part.x):
            sizes = scratch_sizes(self._contract, part.batch, kernel_pass == "backward")
            scratch = Scratch(sizes, int(steps.new_array((scratch_bytes_of(sizes),), "uint8").pointer))
            prepare(scratch, stream)
            pair.begin(device, stream, scratch, 0, arguments(scratch))
            self._enqueue(kernel_pass, pair, device, part.batch, due, scratch, stream)
            return
        recorded = self._recorded(kernel_pass, pair, device, part.batch)
        with recorded.on(stream) as launch:
            prepare(recorded.scratch, stream)
            its_arguments = arguments(recorded.scratch)
            for first_step in range(0, due, GRAPH_STEPS):
                pair.begin(device, stream, recorded.scratch, first_step, its_arguments)
                launch()

    def _enqueue(
        self, kernel_pass: KernelPass, pair: _Pair, device: int, batch: int, count: int, scratch: Scratch, stream: int
    ) -> None:
        """Enqueue `count` steps, each a product and a launch."""
        product = step_product(self._contract, scratch, batch, kernel_pass == "backward")
        for step in range(count):
            cublas.multiply(device, stream, product, scratch["cublas"])
            pair.step(device, stream, scratch, step, batch)

    def _recorded(self, kernel_pass: KernelPass, pair: _Pair, device: int, batch: int) -> Recorded:
        key = (kernel_pass, device, batch)
        with self._graphs_lock:
            if key not in self._graphs:
                if len(self._graphs) >= GRAPHS_HELD:
                    self._graphs.pop(next(iter(self._graphs))).finish()
                sizes = scratch_sizes(self._contract, batch, kernel_pass == "backward")
                record = partial(self._enqueue, kernel_pass, pair, device, batch, GRAPH_STEPS)
                self._graphs[key] = Recorded(device, sizes, record)
            return self._graphs[key]

    def _pair(self, kernel_pass: KernelPass, device: int) -> _Pair:
        key = (kernel_pass, device)
        if key not in self._pairs:
            cubin, plan = self._compiled(kernel_pass, self._builder.hinted_regime)
            begin, step = (cuda.loaded_kernel(cubin, plan, f"_{part}") for part in ("begin", "step"))
            step.function(device)  # nothing can be loaded while a graph is recorded
            self._pairs[key] = _Pair(begin, step, plan)
        return self._pairs[key]


@dataclass(frozen=True)
class _Pair:
    """The two kernels of one pass: that which takes the arguments of a call, and that of a step."""

    _begin: cuda.LoadedKernel
    _step: cuda.LoadedKernel
    _plan: KernelPlan

    def begin(self, device: int, stream: int, scratch: Scratch, first_step: int, arguments: tuple[Any, ...]) -> None:
        blocks = 1 if first_step else BEGIN_BLOCKS
        values = [int(one) if isinstance(one, Address) else one for one in arguments]
        self._begin.launch_on(device, stream, blocks, self._plan.threads, (scratch["call"], first_step, *values))

    def step(self, device: int, stream: int, scratch: Scratch, step_in_chunk: int, batch: int) -> None:
        blocks = -(-batch * self._plan.hidden_size // self._plan.threads)
        self._step.launch_on(device, stream, blocks, self._plan.threads, (scratch["call"], step_in_chunk))


def _as_rows(initial: Array) -> Array:
    """View the initial output [batch, hidden] as the y of one sequence in layout BTD: its products are those of rows."""
    return replace(initial, shape=(1, *initial.shape), strides=(initial.shape[0] * initial.strides[0], *initial.strides))
