"""Runs of dense cells: all steps by one launch where R fits the chip, else by products and pointwise kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

from minrnn_gen.call.address import Address
from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.directions import gradients_of_run, incoming_of_run, outputs_of_run, runs_of
from minrnn_gen.config.environment import layers_run_beside_each_other
from minrnn_gen.gpu.graph import Scratch
from minrnn_gen.plan.kernel_plan import Specialization, StatesOut
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes, alignment_of
from minrnn_gen.run.backend import Backend, Recorder, WideGradients
from minrnn_gen.run.cell_run import CellRun
from minrnn_gen.run.dense.backward import Backward, RunBack
from minrnn_gen.run.dense.direction_choice import DIRECTIONS, DirectionsChoice, choose_directions
from minrnn_gen.run.dense.joined import JoinedProducts, joined_specialization
from minrnn_gen.run.dense.launch import (
    BackwardArrays,
    NamedArguments,
    ProductArrays,
    backward_arguments,
    forward_arguments,
    persistent_launches,
    row_strides_of,
    workspace_bytes_of,
)
from minrnn_gen.run.dense.made_again import MadeAgain
from minrnn_gen.run.dense.products import GateRounds, as_rows, one_sequence, recurrent_gradient, row_products
from minrnn_gen.run.dense.step import DenseStep
from minrnn_gen.run.dense.stepwise import StepwiseRun
from minrnn_gen.run.expected_time import BackwardOrForward
from minrnn_gen.run.kept import kept_by_name
from minrnn_gen.run.launch import alignment_of_call
from minrnn_gen.run.saved import Forward
from minrnn_gen.run.scan.runs import read_states, sizes_of

# The number of sizes of calls whose choice is remembered.
CHOICES_HELD = 1024


@dataclass(frozen=True)
class DenseRun(CellRun):
    """The kernels of one builder of a dense cell.

    A persistent kernel takes all steps of a run in one launch; where the plan is of another family, `StepwiseRun` takes them
    one by one. Products that do not depend on the recurrence are batched over all steps, before and after it. Both directions
    of a call run concurrently where that is predicted to be faster.

    `at_once`: the number of runs whose waiting blocks the GPU holds at once.
    """

    backend: Backend
    at_once: int = 1

    @cached_property
    def stepwise(self) -> StepwiseRun:
        """Run that takes steps one by one."""
        return StepwiseRun(self.interface, self.backend, self.gates)

    @cached_property
    def gates(self) -> GateRounds:
        """The gates of R by their operand."""
        return GateRounds.of(self.interface, self.builder.cell_shape.rounds)

    @cached_property
    def half(self) -> DenseRun:
        """The kernels for half of the GPU, so that two runs fit concurrently."""
        return DenseRun(self.interface, self.builder.half, self.backend.half, DIRECTIONS)

    def beside(self, kernel_pass: BackwardOrForward, sizes: Sizes) -> DirectionsChoice | None:
        """Return how both directions of a pass of these sizes run concurrently; None where they do not."""
        can_be = self.interface.directions and self.backend.has_lanes and layers_run_beside_each_other()
        return self._choice_for(kernel_pass, sizes) if can_be else None

    @cached_property
    def _choice_for(self) -> Callable[[BackwardOrForward, Sizes], DirectionsChoice | None]:
        return lru_cache(CHOICES_HELD)(partial(choose_directions, self.builder))

    def expect_backward(self, call: Call) -> None:
        """Begin to build the backward for arrays of this layout, while the forward is built and runs."""
        if not call.batch:
            return
        assert call.R is not None
        sizes = sizes_of(call)
        dense = self.half if self.beside("backward", sizes) else self
        # The product of x and the weight is contiguous.
        rows = (call.R,) if call.weight is not None else (call.R, call.x)
        added = self._joins(call)
        for reverse in self.interface.runs_reversed:
            exact = self._specialization(replace(call, reverse=reverse), "none", *rows, products_added=added)
            dense.backend.build_ahead("backward", exact, sizes)
        if added:
            joined = joined_specialization(call.x.shape[-1], self.interface.hidden_size, self.interface.precision)
            dense.backend.build_ahead("joined", joined, sizes)
        if self.builder.cell_shape.makes_again:
            dense.backend.build_ahead("arguments", dense.builder.hinted_specialization, sizes)

    def forward(self, recorder: Recorder, runs: Sequence[tuple[Call, Outputs]], _states_out: StatesOut) -> None:
        """Run a call in each direction."""

        def chosen(dense: DenseRun) -> Iterator[KernelKey]:
            return (dense._choose_forward(recorder, part, outputs) for part, outputs in runs)

        with self._on_lanes(recorder, "forward", runs[0][0], chosen) as (dense, on_lane):
            for lane, (part, outputs) in enumerate(runs):
                with on_lane(lane):
                    dense.run_forward(recorder, part, outputs)

    def step(self, recorder: Recorder, call: Call, outputs: Outputs) -> None:
        """Run one step."""
        by_forward = self.run_forward, self._choose_forward
        DenseStep(self.interface, self.builder, self.backend, self.names, *by_forward).run(recorder, call, outputs)

    def backward(self, recorder: Recorder, forward: Forward, incoming: IncomingGradient, gradients: Gradients) -> WideGradients:
        """Run against time in each direction."""
        interface, call, projected = self.interface, forward.call, forward.projected
        carried, directions, sums = interface.precision.arithmetic_dtype, len(interface.runs_reversed), None
        if call.bias is not None or call.recurrent_bias is not None or call.parameters:
            shape = (directions, 1, interface.summed_count, call.batch, interface.hidden_size)
            sums = recorder.new_array(shape, carried, fill=None if call.batch else 0)
        written = replace(gradients, sums=sums)
        packed_shape = (interface.heads, len(interface.recurrent_gates), interface.head_dim, interface.head_dim)
        joins = self._joins(call)
        dR = recorder.new_array((directions, *packed_shape), carried, fill=None if joins else 0)
        dweight = recorder.new_array(call.weight.shape, carried) if joins and call.weight else None
        if call.batch:
            first = self._initial_output(recorder, call)
            runs: list[RunBack] = []
            for number, part in runs_of(interface, projected):
                initial = first.selected(0, number) if first is not None and interface.directions else first
                outputs = outputs_of_run(interface, forward.outputs, number)
                arriving = incoming_of_run(interface, incoming, number)
                of_run = gradients_of_run(interface, projected.x_axes, written, number)
                joined = self._joined(call, part, outputs.y, initial, dweight, number)
                runs.append(RunBack(part, initial, outputs, arriving, of_run, dR.selected(0, number), joined))

            def chosen(dense: DenseRun) -> Iterator[KernelKey]:
                return (
                    dense._choose_back(recorder, run.part, run.incoming, dense._read_states(run.outputs), products_added=joins)
                    for run in runs
                )

            with self._on_lanes(recorder, "backward", projected, chosen) as (dense, on_lane):
                for lane, run in enumerate(runs):
                    with on_lane(lane):
                        dense._run_back(recorder, run)
        return WideGradients(sums, dR, weight=dweight)

    @contextmanager
    def _on_lanes(
        self,
        recorder: Recorder,
        kernel_pass: BackwardOrForward,
        call: Call,
        chosen: Callable[[DenseRun], Iterator[KernelKey]],
    ) -> Iterator[tuple[DenseRun, Callable[[int], AbstractContextManager[None]]]]:
        """Give the run of each direction of a call, and its lane: on halves of the GPU where that is faster, else in turn.

        `chosen` gives the kernels of all directions.
        """
        if self.beside(kernel_pass, sizes_of(call)):
            with recorder.by_half():
                # Steps that run one by one may be a graph, which cannot be launched on a lane.
                if all(self.half.backend.plan(key).is_persistent for key in chosen(self.half)):
                    with recorder.lanes(DIRECTIONS) as lanes:
                        yield self.half, lambda lane: lanes.step(lane, ())
                    return
        yield self, lambda _: nullcontext()

    def run_forward(self, recorder: Recorder, part: Call, outputs: Outputs, single_step: bool = False) -> None:
        """Run a call of one direction, or a piece of one."""
        layout, is_storage = self.interface.layout, self._states_out(outputs) == "storage"
        kept = kept_by_name(self.builder, outputs.kept)
        self._run_steps(
            recorder,
            self._choose_forward(recorder, part, outputs),
            part,
            lambda scratch: forward_arguments(self.names, part, layout, outputs, kept, is_storage, scratch, single_step),
        )

    def begin_back(
        self,
        recorder: Recorder,
        part: Call,
        outputs: Outputs,
        incoming: IncomingGradient,
        gradients: Gradients,
        *,
        first: Array | None,
        is_persistent: bool,
    ) -> Backward:
        """Return a backward of a call of one direction, with the products of all outputs; `first` is the initial output.

        `is_persistent`: one launch takes all steps, or those of a piece, and writes every row of a sequence.
        """
        interface, precision, R = self.interface, self.interface.precision, part.R
        assert R is not None
        tail = (interface.heads, len(interface.recurrent_gates), interface.head_dim)
        rows = part.rows * part.time
        writes_all = is_persistent and part.sequences.lengths is None and part.sequences.cu_seqlens is None
        products = recorder.new_array((rows, *tail), precision.storage_dtype)
        dproducts = recorder.new_array((rows, *tail), precision.storage_dtype, fill=None if writes_all else 0)
        first_products = recorder.new_array((part.batch, *tail), precision.storage_dtype, fill=0)
        first_dproducts = recorder.new_array((part.batch, *tail), precision.storage_dtype, fill=0)
        packed = R.address
        if interface.heads > 1:
            packed = recorder.new_array((math.prod(R.shape),), precision.storage_dtype).address
            recorder.copy_heads_first(R, packed)
        # The products of the last output, or of the only one, belong to no step.
        if rows and part.time > 1:
            layout, of_output = interface.layout, self.gates.of_output
            for product in row_products(interface, layout, packed, outputs.y, products, of_output, recorder.loop):
                recorder.multiply(product)
        if first is not None:
            for product in row_products(interface, "BTD", packed, as_rows(first), first_products, self.gates.of_output):
                recorder.multiply(product)
        of_run = BackwardArrays(
            self._read_states(outputs),
            incoming,
            gradients,
            ProductArrays(products, first_products, dproducts, first_dproducts, row_strides_of(part, interface.layout)),
        )
        again = MadeAgain(interface, self.names_backward, self.gates, self.builder.hinted_specialization)
        of_run = replace(of_run, arguments=again.arguments(recorder, part, of_run, packed, None if writes_all else 0))
        means = again.means(recorder, part, of_run) if is_persistent and self.names_backward.known_means else None
        return Backward(part, outputs.y, first, replace(of_run, means=means), packed)

    def run_back(self, recorder: Recorder, backward: Backward, kernel: KernelKey | None = None) -> None:
        """Run all steps of a backward, or of a piece of one, against time."""
        part, arrays, clip = backward.part, backward.arrays, self.builder.spec.recurrent_gradient_clip or 0.0
        kernel = kernel or self._choose_back(recorder, part, arrays.incoming, arrays.read_states)
        assert not arrays.neighbours or self.backend.plan(kernel).is_persistent, "only these go on where a later piece ended"
        self._run_steps(
            recorder,
            kernel,
            part,
            lambda scratch: backward_arguments(self.names_backward, part, self.interface.layout, arrays, clip, scratch),
            backward.packed,
        )

    def finish_back(self, recorder: Recorder, backward: Backward, dR: Array) -> None:
        """Add up the gradient of R, of all rows at once."""
        interface, part, arrays, first = self.interface, backward.part, backward.arrays, backward.first
        apart = arrays.apart
        assert apart is not None
        if part.rows and part.time > 1:
            layout, of_output = interface.layout, self.gates.of_output
            for product in recurrent_gradient(interface, layout, backward.y, apart.dproducts, dR, of_output, recorder.loop):
                recorder.multiply(product)
        if first is not None:
            rows = as_rows(first)
            for product in recurrent_gradient(interface, "BTD", rows, apart.first_dproducts, dR, self.gates.of_output):
                recorder.multiply(product)
        for arguments, runs in zip(arrays.arguments, self.gates.rounds, strict=False):
            for product in recurrent_gradient(interface, "BTD", one_sequence(arguments), apart.dproducts, dR, runs):
                recorder.multiply(product)

    def _states_out(self, outputs: Outputs) -> StatesOut:
        if not outputs.kept:
            return "none"
        return "storage" if outputs.kept[0].dtype == self.interface.precision.storage_dtype else "arithmetic"

    def _read_states(self, outputs: Outputs) -> tuple[Array, ...]:
        return read_states(self.builder, outputs)

    def _choose_forward(self, recorder: Recorder, part: Call, outputs: Outputs) -> KernelKey:
        assert part.R is not None
        return self._choose(recorder, "forward", part, self._states_out(outputs), part.x, part.R, outputs.y, *part.inputs)

    def _choose_back(
        self,
        recorder: Recorder,
        part: Call,
        incoming: IncomingGradient,
        states: tuple[Array, ...],
        *,
        products_added: bool = False,
    ) -> KernelKey:
        assert part.R is not None
        read = (part.x, part.R, incoming.dy, *states, *part.inputs)
        return self._choose(recorder, "backward", part, "none", *read, products_added=products_added)

    def _run_back(self, recorder: Recorder, run: RunBack) -> None:
        part, first, outputs, incoming, gradients, dR, joined = run
        states = self._read_states(outputs)
        if joined:
            R = part.R
            assert R is not None
            operand = joined.operand(recorder)
            part = replace(part, x=joined.sums(recorder, operand))
            kernel = self._choose_back(recorder, part, incoming, states, products_added=True)
            arrays = BackwardArrays(states, incoming, gradients)
            self.run_back(recorder, Backward(part, outputs.y, first, arrays, R.address), kernel)
            joined.write_gradients(recorder, operand, gradients.dx, dR)
            return
        kernel = self._choose_back(recorder, part, incoming, states)
        is_persistent = self.backend.plan(kernel).is_persistent
        backward = self.begin_back(recorder, part, outputs, incoming, gradients, first=first, is_persistent=is_persistent)
        self.run_back(recorder, backward, kernel)
        self.finish_back(recorder, backward, dR)

    def _initial_output(self, recorder: Recorder, call: Call) -> Array | None:
        """The initial output in the storage dtype, the operand of the first product; None for zeros."""
        output = self.builder.lowered_backward.output_state
        initial = call.initial[self.interface.states.index(str(output))]
        return None if initial is None else recorder.cast(initial, self.interface.precision.storage_dtype)

    def _run_steps(
        self,
        recorder: Recorder,
        key: KernelKey,
        part: Call,
        arguments: Callable[[Scratch | None], NamedArguments],
        packed: Address | None = None,
    ) -> None:
        """Run all steps of a call of one direction, by the kernel that serves; `packed` as `StepwiseRun` takes it."""
        if not self.backend.plan(key).is_persistent:
            self.stepwise.run(recorder, key, part, arguments, packed)
            return
        kernel = recorder.load(key)
        workspace = recorder.workspace(workspace_bytes_of(kernel.plan, part.batch))
        resident = kernel.resident_blocks() // self.at_once if kernel.plan.group_exchange_bytes else 0
        for launch in persistent_launches(kernel.plan, part, arguments(None), workspace, resident, recorder.loop):
            kernel.launch(launch)

    def _joins(self, call: Call) -> bool:
        """Say whether the backward of a call joins the operands of its products."""
        if call.weight is None or not (self.backend.joins_products and call.rows and call.time and call.batch):
            return False
        return self.builder.joins_products(call.batch)

    def _joined(
        self, call: Call, part: Call, y: Array, first: Array | None, dweight: Array | None, run: int
    ) -> JoinedProducts | None:
        """The joined products of a direction, whose `part` is a call with x projected; None without `dweight` to write."""
        if dweight is None or call.weight is None:
            return None
        rows = call.weight.shape[0] // len(self.interface.runs_reversed)
        weight, of_run = (array.narrowed(0, run * rows, rows) for array in (call.weight, dweight))
        direct = replace(part, x=call.x, x_axes=call.x_axes, weight=weight)
        return JoinedProducts(self.interface, direct, part, y, first, of_run)

    def _choose(
        self,
        recorder: Recorder,
        kernel_pass: KernelPass,
        part: Call,
        states_out: StatesOut,
        *rows: Array,
        products_added: bool = False,
    ) -> KernelKey:
        """The kernel for a call of one direction; `rows`: the arrays that it reads by a head of a row at once."""
        specialization = self._specialization(part, states_out, *rows, products_added=products_added)
        return recorder.choose(kernel_pass, specialization, sizes_of(part))

    def _specialization(self, part: Call, states_out: StatesOut, *rows: Array, products_added: bool = False) -> Specialization:
        head_bytes = self.interface.head_dim * self.interface.precision.storage_bytes
        return Specialization(
            alignment_bytes=alignment_of(alignment_of_call(*rows), head_bytes),
            reverse=part.reverse,
            resets=part.sequences.resets is not None,
            states_out=states_out,
            products_added=products_added,
        )
