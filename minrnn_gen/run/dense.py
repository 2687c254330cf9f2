"""Running dense cells on a GPU: all steps by one launch where R fits the chip, else by products and pointwise kernels."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.directions import gradients_of_run, incoming_of_run, outputs_of_run, runs_of
from minrnn_gen.call.gradients import RawGradients
from minrnn_gen.errors import MinrnnError
from minrnn_gen.gpu import memory
from minrnn_gen.gpu.graph import Scratch, copy_heads_first
from minrnn_gen.plan.kernel_plan import KeptStates, Regime
from minrnn_gen.plan.problem import KernelPass, Sizes, alignment_of, step_sequences_max
from minrnn_gen.run.dense_launch import (
    BackwardArrays,
    NamedArguments,
    backward_arguments,
    forward_arguments,
    persistent_launches,
    recurrent_gradient,
    row_products,
    step_launch_of,
    workspace_bytes_of,
)
from minrnn_gen.run.replay import Steps
from minrnn_gen.run.saved import Forward
from minrnn_gen.run.scan import DeviceRun
from minrnn_gen.run.scan_launch import alignment_of_call
from minrnn_gen.run.stepwise import AlternatingWalk, Prepare


class DenseRun(DeviceRun):
    """The kernels of one builder of a dense cell on GPUs; may be used from several threads.

    A persistent kernel takes all steps of a run in one launch; where the plan is of another family, `AlternatingWalk` takes
    them one after the other. What can be multiplied for all steps at once is, before and after.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._alternating = AlternatingWalk(self._contract)

    def step(self, call: Call) -> Outputs:
        """Run one step: by a kernel of its own, or, of many sequences and where that does not fit, as a forward of one step."""
        contract = self._contract
        shape, carried = contract.state_shape(call.batch), contract.precision.arithmetic_dtype
        steps = self._begin(call.x, call.reading, call)
        y = steps.new_array(shape, contract.precision.storage_dtype)
        outputs = Outputs(y, (), tuple(steps.new_array(shape, carried) for _ in contract.states))
        if call.batch:
            call = self._projected(steps, call, "bgh")
            regime = self._step_regime(call)
            if regime is None:
                x = call.x
                if x.strides[-1] != 1:  # these kernels read a row of channels at once
                    x = memory.without_gaps(x)
                    steps.forget()
                self._walk_forward(steps, replace(call, x=x), outputs, single_step=True)
            else:
                loaded, plan = self._load("step", regime)
                steps.launch(loaded, step_launch_of(plan, self._names, call, outputs), plan.threads)
        self._tapes.keep(steps.played((outputs.y, *outputs.final), None))
        return outputs

    def backward(self, forward: Forward, incoming: IncomingGradient) -> RawGradients:
        """Run against time, from the gradients of what `forward` returned."""
        contract, call, projected = self._contract, forward.call, forward.projected
        carried = contract.precision.arithmetic_dtype
        assert call.R is not None
        steps = self._begin(call.x, incoming.reading, forward, incoming)
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
        results = (dx, *gradients.dinitial, gradients.sums, dweight, dR)
        self._tapes.keep(steps.played(results, call))
        return self._raw([None if one is None else one.owner for one in results])

    @staticmethod
    def _raw(results: Sequence[Any]) -> RawGradients:
        *others, dR = results
        return replace(DeviceRun._raw(others), dR=dR.swapaxes(1, 2))

    def _expect_backward(self) -> None:
        """Begin to build the hinted backward, whose plan says how all are walked, while the forward is built and runs."""
        regime = self._builder.hinted_regime
        if ("backward", regime) not in self._built:
            threading.Thread(target=self._try_to_compile, args=("backward", regime), name="minrnn_gen backward").start()

    def _try_to_compile(self, kernel_pass: KernelPass, regime: Regime) -> None:
        with suppress(MinrnnError):  # who needs the kernel is told
            self._compiled(kernel_pass, regime)

    def _run_forward(self, steps: Steps, part: Call, outputs: Outputs, kept: KeptStates) -> None:
        del kept
        self._walk_forward(steps, part, outputs)

    def _walk_forward(self, steps: Steps, part: Call, outputs: Outputs, single_step: bool = False) -> None:
        contract = self._contract
        assert part.R is not None
        kept: KeptStates = "none"
        if outputs.kept:
            kept = "storage" if outputs.kept[0].dtype == contract.precision.storage_dtype else "arithmetic"
        self._walk(
            "forward",
            kept,
            (part.x, part.R, outputs.y),
            steps,
            part,
            lambda scratch: forward_arguments(
                self._names, part, contract.layout, outputs, kept == "storage", scratch, single_step
            ),
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
        tail = (contract.heads, len(contract.recurrent_gates), contract.head_dim)
        rows, y = part.rows * part.time, outputs.y
        products = steps.new_array((rows, *tail), precision.arithmetic_dtype)
        assert part.R is not None
        read_states = self._read_states(outputs)
        arrays_of_rows = (part.x, part.R, incoming.dy, *read_states)
        # A persistent kernel writes every row of a sequence.
        plan = self._compiled("backward", self._dense_regime("backward", part, "none", *arrays_of_rows))[1]
        writes_all = plan.is_persistent and part.sequences.lengths is None and part.sequences.cu_seqlens is None
        dproducts = steps.new_array((rows, *tail), precision.storage_dtype, fill=None if writes_all else 0)
        first_products = steps.new_array((part.batch, *tail), precision.arithmetic_dtype, fill=0)
        first_dproducts = steps.new_array((part.batch, *tail), precision.storage_dtype, fill=0)
        arrays = BackwardArrays(read_states, incoming, products, first_products, gradients, dproducts, first_dproducts)

        packed = part.R
        if contract.heads > 1:
            packed = steps.new_array((math.prod(part.R.shape),), precision.storage_dtype)
            steps.copy_heads_first(part.R, packed)
        for product in row_products(contract, contract.layout, packed.address, y, products) if rows else ():
            steps.multiply(product)
        if first is not None:
            (product,) = row_products(contract, "BTD", packed.address, _as_rows(first), first_products)
            steps.multiply(product)

        def prepare(scratch: Scratch, stream: int) -> None:
            assert part.R is not None
            copy_heads_first(part.x.device, stream, part.R, int(part.R.pointer), scratch["packed"])
            scratch.clear(part.x.device, stream, "dproduct")

        clip = self._builder.spec.recurrent_gradient_clip or 0.0
        self._walk(
            "backward",
            "none",
            arrays_of_rows,
            steps,
            part,
            lambda scratch: backward_arguments(self._names_backward, part, contract.layout, arrays, clip, scratch),
            prepare,
        )
        for product in recurrent_gradient(contract, contract.layout, y, dproducts, dR) if rows else ():
            steps.multiply(product)
        if first is not None:
            (product,) = recurrent_gradient(contract, "BTD", _as_rows(first), first_dproducts, dR)
            steps.multiply(product)

    def _initial_output(self, call: Call) -> Array | None:
        """The initial value of the output in the storage dtype, as the first product had it; None for zeros."""
        output = self._builder.lowered_backward.output_state
        initial = call.initial[self._contract.states.index(str(output))]
        return None if initial is None else self._in_storage(initial)

    def _walk(
        self,
        kernel_pass: KernelPass,
        kept: KeptStates,
        rows: tuple[Array, ...],
        steps: Steps,
        part: Call,
        arguments: Callable[[Scratch | None], NamedArguments],
        prepare: Prepare = lambda _scratch, _stream: None,
    ) -> None:
        """Run all steps of a call of one direction, by whichever kernel serves."""
        regime = self._dense_regime(kernel_pass, part, kept, *rows)
        kernel = self._compiled(kernel_pass, regime)
        if kernel[1].is_persistent:
            loaded, plan = self._load(kernel_pass, regime)
            workspace = steps.workspace(workspace_bytes_of(plan, part.batch))
            waits_for_others = plan.variables["grid_blocks"] > 1
            resident = loaded.resident_blocks(part.x.device, plan.threads) if waits_for_others else 0
            for launch in persistent_launches(plan, part, arguments(None), workspace, resident):
                steps.launch(loaded, launch, plan.threads)
        else:
            steps.forget()  # launches in graphs are as fast as they would be again
            self._alternating.run(kernel_pass, kernel, steps, part, arguments, prepare)

    def _step_regime(self, call: Call) -> Regime | None:
        """The regime of a step by a kernel of its own, or None where it is a forward of one."""
        contract, builder = self._contract, self._builder
        assert call.R is not None
        if call.batch > step_sequences_max(builder.target.profile, math.prod(contract.R_shape)):
            return None
        rows = (call.R, *(state for state in call.initial if state is not None))
        alignment = alignment_of(alignment_of_call(*rows), contract.head_dim * contract.precision.storage_bytes)
        regime = builder.regime_of(Sizes(call.batch, 1), alignment)
        _, plan = self._compiled("step", regime)
        return regime if plan.entry == "decode_step" else None

    def _dense_regime(self, kernel_pass: KernelPass, part: Call, kept: KeptStates, *rows: Array) -> Regime:
        """The regime of a call of one direction; `rows` are the arrays of which a head of a row is read at once.

        What takes a call step by step reads at run time how it is called: of it there is one kernel.
        """
        hinted = self._builder.hinted_regime
        head_bytes = self._contract.head_dim * self._contract.precision.storage_bytes
        its_own = replace(
            hinted,
            alignment_bytes=alignment_of(alignment_of_call(*rows), head_bytes),
            reverse=part.reverse,
            resets=part.sequences.resets is not None,
            kept_states=kept,
        )
        if (kernel_pass, its_own) in self._built or self._compiled(kernel_pass, hinted)[1].is_persistent:
            return its_own
        return hinted


def _as_rows(initial: Array) -> Array:
    """View the initial output [batch, hidden] as the y of one sequence in layout BTD: its products are those of rows."""
    return replace(initial, shape=(1, *initial.shape), strides=(initial.shape[0] * initial.strides[0], *initial.strides))
