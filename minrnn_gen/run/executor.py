"""Calls of one kernel: checked, and executed where their arrays are, or replayed where their key is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

from minrnn_gen.build.builder import Builder
from minrnn_gen.call.arguments import Call, CallArguments, IncomingGradient, Outputs, flat_gradient
from minrnn_gen.call.array import Array
from minrnn_gen.call.gradients import AnyGradients, gradients_by_name
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.key import KeyedArrays, is_on_cpu, keyed
from minrnn_gen.call.pool import PoolArguments
from minrnn_gen.call.pool_checks import with_pool
from minrnn_gen.call.results import ForwardResult, StepResult
from minrnn_gen.call.slots import CU_SEQLENS, LENGTHS, BackwardSlots
from minrnn_gen.call.validate import check_call, check_gradient, check_place, check_plain
from minrnn_gen.errors import BadInput
from minrnn_gen.gpu import memory
from minrnn_gen.gpu.ranges import mark_ranges
from minrnn_gen.plan.drafts import DraftPlan, again_us, draft_plan
from minrnn_gen.plan.kernel_plan import StatesOut
from minrnn_gen.run.backend import Backend
from minrnn_gen.run.gpu import GpuRun, RestoredBackward
from minrnn_gen.run.in_place import InPlace
from minrnn_gen.run.kept import StatesAsked, asked_by_backward
from minrnn_gen.run.recording.replay import Trace
from minrnn_gen.run.saved import Forward, ForwardReplay, Saved, restored_replay

if TYPE_CHECKING:  # NumPy is imported only where a host array comes in
    from minrnn_gen.run.cpu.calls import CpuRun

Layout = tuple[tuple[int, ...], str]
"""The shape and dtype of an array."""


class Run(Protocol):
    """Runs checked calls: `GpuRun`, by a backend, or `CpuRun`, by native code or NumPy."""

    @property
    def preactivation_axes(self) -> str: ...

    @property
    def preactivation_dtype(self) -> str: ...

    def states_dtype(self, states_out: StatesAsked, saves: bool, /) -> str | None: ...

    def states_written(self, states_out: StatesAsked, /) -> tuple[str, ...]: ...

    def products_shape(self, rows: int, time: int, /) -> tuple[int, ...]: ...

    def forward(self, call: Call, asked: StatesAsked, saves: bool, of_layer: bool, /) -> Forward: ...

    def step(self, call: Call, /) -> StepResult: ...

    def backward(self, forward: Forward, incoming: IncomingGradient, /) -> AnyGradients: ...

    def in_form_of(self, array: Array, gradient: Any, /) -> Any: ...

    def with_sequences_beside_x(self, call: Call, /) -> Call: ...


class Executor:
    """Checks and executes the calls of one kernel; may be used from several threads.

    Calls that `backend` takes are run by it, others by NumPy.
    """

    def __init__(self, interface: Interface, builder: Builder, backend: Backend) -> None:
        self.interface, self.backend = interface, backend
        self.gpu = GpuRun(interface, builder, backend)
        self.builder = builder
        mark_ranges(self, builder.cell_source.name, ("forward", "replay_forward", "step", "backward", "replay_backward"))

    @cached_property
    def cpu(self) -> CpuRun:
        """Runs calls on host arrays."""
        from minrnn_gen.run.cpu.calls import CpuRun

        return CpuRun(self.interface, self.builder)

    def forward(
        self, arguments: CallArguments, all_states: bool, saves: bool, of_layer: bool = False
    ) -> tuple[ForwardResult, Forward | ForwardReplay]:
        """Run over time; return the results and, where it `saves`, what the backward needs.

        The results have the states after every step with `all_states`, and where only a backward reads them. `of_layer`: as
        of `GpuRun.forward`.
        """
        states_out = self._states_out(all_states, saves)
        call_key = self._keyed(("forward", states_out, saves, of_layer), arguments)
        replay = self.gpu.forwards.replay(call_key)
        if replay is not None:
            return replay.result, replay
        call = self.checked(arguments).with_slots(call_key)
        forward = self._run_of(call).forward(call, states_out, saves, of_layer)
        return forward.result, forward.replay or forward

    def forward_on_pool(self, arguments: CallArguments, pool: PoolArguments) -> Any:
        """Run over time on slots of a pool, which receive the final states, and return y.

        Values of lengths and ends on a GPU are not read.
        """
        call_key = self._keyed(("forward on a pool", pool.pad_slot), arguments, pool)
        replay = self.gpu.forwards.replay(call_key)
        if replay is not None:
            return replay.result.y
        call = check_call(self.interface, memory.inspect, lambda _: None, arguments._replace(state=None))
        call = with_pool(self.interface, memory.inspect, call, arguments.state, pool).with_slots(call_key)
        return self._run_of(call).forward(call, "none", False, False).result.y

    def step(self, arguments: CallArguments, pool: PoolArguments | None = None) -> StepResult:
        """Run one step; on a pool, whose states it writes, the result has none."""
        call_key = self._keyed(("step", None if pool is None else pool.pad_slot), arguments, pool)
        replay = self.gpu.steps.replay(call_key)
        if replay is not None:
            return replay.result
        if is_on_cpu(arguments.x) and (again := self.cpu.replay_step(call_key)):
            return again
        call = self.checked(arguments, single_step=True, pool=pool)
        if call.weight is not None and not call.x.is_contiguous:
            return self.step(arguments._replace(x=memory.without_gaps(call.x).owner), pool)
        call = call.with_slots(call_key)
        return self._run_of(call).step(call)

    def writes_y(self, call: Call) -> bool:
        """Whether steps on a pool write y where `PoolArguments.y` says; `call` has their arrays."""
        return self.backend.takes(call)

    def backward(
        self, forward: Forward | ForwardReplay, dy: Any, dstate: Mapping[str, Any] | None, given_only: bool = False
    ) -> dict[str, Any]:
        """Return the gradients of a forward by the names of its arguments; `given_only`: none of default states."""
        call_key = None
        if not isinstance(forward, Forward):
            # The trace of the forward identifies the arrays before these.
            call_key = keyed((forward.trace, given_only), flat_gradient(self.interface, dy, dstate))
            call_key = None if call_key is None else call_key.behind(forward.arrays, forward.addresses)
            replayed = self.gpu.replay_backward(call_key)
            if replayed is not None:
                return gradients_by_name(self.interface, *replayed, self.gpu.in_form_of)
        checked = forward if isinstance(forward, Forward) else forward.metadata()
        call, run = checked.call, self._run_of(checked.call)
        incoming = check_gradient(self.interface, memory.inspect, checked.outputs.y, dy, dstate, call.batch)
        if not incoming.dy.is_contiguous:
            return self.backward(forward, memory.without_gaps(incoming.dy).owner, dstate, given_only)
        raw = run.backward(checked, replace(incoming, given_only=given_only).with_slots(call_key))
        return gradients_by_name(self.interface, call, raw, run.in_form_of)

    def replay_forward(
        self, arrays: Sequence[Any], all_states: bool, saves: bool, of_layer: bool = False
    ) -> ForwardResult | None:
        """Replay a call whose key is known, on arrays by slot; None for a new key.

        For callers that keep only arrays, such as a layer of torch.
        """
        if saves and not self.builder.spec.training:
            return None  # `Kernel.forward` raises the reason
        if arrays[LENGTHS] is not None or arrays[CU_SEQLENS] is not None:
            return None  # their values are checked, call by call
        call_key = keyed(("forward", self._states_out(all_states, saves), saves, of_layer), [*arrays])
        if is_on_cpu(arrays[0]):
            return self.cpu.replay_forward(call_key)
        replay = self.gpu.forwards.replay(call_key)
        return None if replay is None else replay.result

    def replay_backward(
        self, arrays: Sequence[Any], results: Sequence[Any], incoming: Sequence[Any], all_states: bool, reads_x: bool = True
    ) -> AnyGradients | None:
        """Replay a backward whose key is known, on arrays by slot; None for a new key.

        For the callers of `replay_forward`: `results` are y and `Saved.arrays`, `incoming` the gradients of y and of the final
        states, None for zeros. Unless `reads_x`, the gradient of x may be missing.
        """
        if arrays[LENGTHS] is not None or arrays[CU_SEQLENS] is not None:
            return None
        states_out = self._states_out(all_states, True)
        flat = keyed(("backward", states_out, reads_x), [*arrays, *results, *incoming])
        if flat is None:
            return None
        if is_on_cpu(arrays[0]):
            return self.cpu.replay_backward(flat) or self._record_on_cpu(flat, arrays, results, incoming, all_states, reads_x)
        known = self.gpu.restored.get(flat.key)
        if known is None:
            known = self._restored(states_out, flat, BackwardSlots.of(len(arrays), len(results), len(incoming) - 1))
        return None if known is None else self.gpu.replay_restored(known, flat)

    def forward_in_place(self, arrays: Sequence[Any], into: Sequence[Any], all_states: bool, saves: bool) -> ForwardResult:
        """Run a call on a GPU, its arrays by slot, and write `into` y and states, except beyond lengths."""
        return self._in_place.forward(arrays, into, self._states_out(all_states, saves))

    def backward_in_place(
        self, arrays: Sequence[Any], results: Sequence[Any], incoming: Sequence[Any], dx: Any, all_states: bool
    ) -> AnyGradients:
        """Run the backward of a call on a GPU, as `InPlace.backward` does."""
        return self._in_place.backward(arrays, results, incoming, dx, self._states_out(all_states, True))

    @cached_property
    def _in_place(self) -> InPlace:
        return InPlace(self.interface, self.gpu)

    def _record_on_cpu(
        self,
        flat: KeyedArrays,
        arrays: Sequence[Any],
        results: Sequence[Any],
        incoming: Sequence[Any],
        all_states: bool,
        reads_x: bool,
    ) -> AnyGradients | None:
        """Run a backward on tensors in host memory for calls of its key to come; None where there is no native code for it."""
        if not all(tensor is None or tensor.is_contiguous() for tensor in flat.arrays):
            return None
        y, *extra = results
        forward = self.restore(CallArguments.from_flat(self.interface, arrays), y, extra, all_states).open_for(self)
        if not isinstance(forward, Forward):
            return None
        dy, *dfinal = incoming
        has_states = any(gradient is not None for gradient in dfinal)
        dstate = dict(zip(self.interface.states, dfinal, strict=True)) if has_states else None
        checked = check_gradient(self.interface, memory.inspect, forward.outputs.y, dy, dstate, forward.call.batch)
        return self.cpu.record_backward(flat, forward, checked, reads_x)

    def _restored(self, states_out: StatesAsked, flat: KeyedArrays, slots: BackwardSlots) -> RestoredBackward | None:
        """Return the backward of a forward, restored from the inputs and results in `slots`, if its trace is kept."""
        arrays = flat.arrays
        call = keyed(("forward", states_out, True, False), arrays[slots.inputs])
        y, *saved = arrays[slots.results]
        forward = restored_replay(self.gpu.forwards.find(call), call, y, saved)
        arriving = None if forward is None else keyed((forward.trace, True), arrays[slots.incoming])
        if forward is None or arriving is None:
            return None
        trace = self.gpu.backwards.find(arriving.behind(forward.arrays, forward.addresses))
        if trace is None:
            return None
        written, inputs = forward.trace.slots, slots.inputs.stop
        by_slot = dict(zip((written.y, *written.saved), range(inputs, slots.results.stop), strict=True))
        allocated = range(inputs, inputs + len(forward.trace.allocations))
        order = (*range(inputs), *(by_slot.get(slot, -1) for slot in allocated), *range(slots.incoming.start, len(arrays)))
        return self.gpu.restored.keep(flat.key, RestoredBackward(trace, itemgetter(*order)))

    def restore(self, arguments: CallArguments, y: Any, arrays: Sequence[Any], all_states: bool = False) -> Saved:
        """Return the saved state of a call, from the call's arguments, its y and `Saved.arrays()`.

        For callers that keep only arrays, such as a graph of torch. Raises BadInput for arrays that do not fit.
        """
        call_key = self._keyed(("forward", self._states_out(all_states, True), True, False), arguments)
        replay = restored_replay(self.gpu.forwards.find(call_key), call_key, y, arrays)
        if replay is not None:
            return Saved(self, replay.result, replay)
        # Values of lengths were checked before the forward; reading them back again would wait for the stream.
        call = check_call(self.interface, memory.inspect, lambda _: None, arguments)
        run, interface = self._run_of(call), self.interface
        call = run.with_sequences_beside_x(call)
        layouts = self._saved_layouts(run, call.rows, call.time, all_states)
        if len(arrays) != len(layouts):
            raise BadInput(
                f"saved has {len(arrays)} arrays; the {len(layouts)} that the forward of this kernel saved are expected"
            )
        written = [
            check_plain(memory.inspect(array, "saved"), (dtype,), shape)
            for array, (shape, dtype) in zip(arrays, layouts, strict=True)
        ]
        y = check_plain(memory.inspect(y, "y"), (interface.precision.storage_dtype,), interface.y_shape(call.rows, call.time))
        for array in (y, *written):
            check_place(array, call.x)
        projected = call
        if call.weight is not None:
            projected = replace(call, x=written.pop(), x_axes=run.preactivation_axes, weight=None)
        products = written.pop() if run.products_shape(call.rows, call.time) else None
        forward = Forward(call, projected, Outputs(y, tuple(written), (), products))
        return Saved(self, forward.result, forward)

    @cached_property
    def recorded(self) -> GpuRun:
        """Records whole runs, for callers that replay traces in their own memory, such as a program of XLA."""
        return GpuRun(self.interface, self.builder, self.backend.without_graphs())

    def draft_plan(self, steps: int, pool: StatesOut = "arithmetic") -> DraftPlan:
        """Return how drafts of that many steps are rolled back on a GPU; `pool`: the dtype of the cache's states."""
        builder, hinted = self.builder, replace(self.builder.hinted_specialization, pool=pool)
        problem, predicted = builder.problem_of(builder.cell_shape, builder.key_of("step", hinted)), None
        if self.interface.has_vectors:
            either = (replace(hinted, replays=replays) for replays in (False, True))
            single, again = (builder.solve(builder.key_of("step", kind)).plan() for kind in either)
            predicted = single.predicted_total_us, again_us(again.prediction.predicted_us, steps)
        return draft_plan(problem, steps, predicted)

    def record_forward(self, arguments: CallArguments, all_states: bool, trains: bool) -> ForwardReplay | None:
        """Run a call on a GPU without reading the values of lengths, and return it; None where it cannot be replayed.

        Where a forward `trains`, its backward is built meanwhile. `all_states`: it writes the states after every step.
        """
        states_out = self._states_out(all_states, saves=False)
        saves = trains and self.builder.spec.training
        call_key = keyed(("forward", states_out, saves), arguments.flat(self.interface))
        call = check_call(self.interface, memory.inspect, lambda _: None, arguments).with_slots(call_key)
        return self.recorded.forward(call, states_out, saves).replay

    def record_on_host(
        self, arguments: CallArguments, all_states: bool = False, single_step: bool = False
    ) -> Trace[Any, Any] | None:
        """Run a call on contiguous NumPy arrays, and return its trace; None where the call runs more than native kernels."""
        from minrnn_gen.run.cpu.trace import keyed_by_threads

        flat = arguments.flat(self.interface)
        if flat is None or self.cpu.native.kernels.forward is None:
            return None
        addresses = [0 if array is None else int(array.ctypes.data) for array in flat]
        call_key = KeyedArrays((object(),), flat, addresses)  # of this call alone
        kept = keyed_by_threads(call_key)
        call = self.checked(arguments, single_step).with_slots(call_key)
        if single_step:
            self.cpu.step(call)
            return self.cpu.native.steps.take(kept)
        self.cpu.forward(call, self._states_out(all_states, saves=False), False)
        return self.cpu.native.forwards.take(kept)

    def record_step(self, arguments: CallArguments, pool: PoolArguments | None = None) -> Trace[StepResult, None] | None:
        """Run one step on a GPU, and return its trace; None where it cannot be replayed."""
        call_key = self._keyed(("step", None if pool is None else pool.pad_slot), arguments, pool)
        self.recorded.step(self.checked(arguments, single_step=True, pool=pool).with_slots(call_key))
        return self.recorded.steps.find(call_key)

    def record_backward(
        self, forward: ForwardReplay, dy: Any, dstate: Mapping[str, Any]
    ) -> tuple[KeyedArrays, Trace[Any, Call]] | None:
        """Run the backward of a recorded forward, and return its arrays by slot and its trace; None as above."""
        arriving = keyed(forward.trace, flat_gradient(self.interface, dy, dstate))
        if arriving is None:
            return None
        call_key, checked = arriving.behind(forward.arrays, forward.addresses), forward.metadata()
        incoming = check_gradient(self.interface, memory.inspect, checked.outputs.y, dy, dstate, checked.call.batch)
        self.recorded.backward(checked, incoming.with_slots(call_key))
        trace = self.recorded.backwards.find(call_key)
        return None if trace is None else (call_key, trace)

    def saved_layouts(self, batch: int, time: int, *, on_cpu: bool, all_states: bool = False) -> tuple[Layout, ...]:
        """Return shape and dtype of each of `Saved.arrays()` of a call of `batch` x `time`."""
        return self._saved_layouts(self.cpu if on_cpu else self.gpu, batch, time, all_states)

    def keeps_states(self, *, on_cpu: bool) -> bool:
        """Whether a forward that saves writes states; on a CPU as expected before its code is compiled."""
        states_out = self._states_out(False, saves=True)
        if on_cpu:
            return states_out != "none" or self.cpu.expects_states
        return self.gpu.states_dtype(states_out, True) is not None

    def reference(self, arguments: CallArguments, all_states: bool) -> ForwardResult:
        """Run sequentially in float64 on host arrays; raises BadInput for arrays on a GPU."""
        call = self.checked(arguments)
        if call.x.device is not None:
            raise BadInput(f"x is on CUDA device {call.x.device}; the reference runs on host arrays, so copy it there")
        return self.cpu.reference(call, all_states)

    def checked(self, arguments: CallArguments, single_step: bool = False, pool: PoolArguments | None = None) -> Call:
        """Check the arrays of a call, with the values of lengths; raises BadInput."""
        if pool is None:
            return check_call(self.interface, memory.inspect, memory.read_back, arguments, single_step=single_step)
        call = self.checked(arguments._replace(state=None), single_step)
        return with_pool(self.interface, memory.inspect, call, arguments.state, pool)

    def _keyed(self, operation: Any, arguments: CallArguments, pool: PoolArguments | None = None) -> KeyedArrays | None:
        """Return the arrays of a call with their key, unchecked; None where they have none."""
        if arguments.lengths is not None or arguments.cu_seqlens is not None:
            return None  # their values are checked, call by call
        flat = arguments.flat(self.interface)
        if pool is None or flat is None:
            return keyed(operation, flat)
        # Slots in host memory are checked, call by call.
        return None if is_on_cpu(arguments.x) else keyed(operation, flat + pool.arrays)

    def _states_out(self, all_states: bool, saves: bool) -> StatesAsked:
        """Return which states a forward writes after every step, and in which dtype."""
        if all_states:
            return "arithmetic"
        return self._asked_by_backward if saves else "none"

    @cached_property
    def _asked_by_backward(self) -> StatesAsked:
        return asked_by_backward(self.builder)

    def _saved_layouts(self, run: Run, batch: int, time: int, all_states: bool) -> tuple[Layout, ...]:
        interface, asked = self.interface, self._states_out(all_states, True)
        dtype, names = run.states_dtype(asked, True), run.states_written(asked)
        layouts = [] if dtype is None else [(interface.states_shape(name, batch, time), dtype) for name in names]
        if shape := run.products_shape(batch, time):
            layouts.append((shape, interface.precision.arithmetic_dtype))
        if interface.input_size:
            layouts.append((interface.shape(run.preactivation_axes, batch, time), run.preactivation_dtype))
        return tuple(layouts)

    def _run_of(self, call: Call) -> Run:
        return self.gpu if self.backend.takes(call) else self.cpu
