"""Calls of kernels with projected units, run by a kernel without them; calls on the CPU run unchanged in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from minrnn_gen.build.builder import Builder
from minrnn_gen.call.arguments import Call, CallArguments
from minrnn_gen.call.array import contiguous_strides
from minrnn_gen.call.embedding import Embedding
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.pool import PoolArguments
from minrnn_gen.call.pool_checks import with_pool
from minrnn_gen.call.results import ForwardResult, StepResult
from minrnn_gen.call.validate import check_call, check_gradient
from minrnn_gen.gpu import memory
from minrnn_gen.run.executor import Executor
from minrnn_gen.run.saved import Forward, ForwardReplay


class EmbeddedExecutor(Executor):
    """Executes the calls of a kernel with projected units: by `inner` where that has kernels for the call, else by NumPy."""

    def __init__(self, interface: Interface, builder: Builder, inner: Executor, mask: str | None) -> None:
        super().__init__(interface, builder, inner.backend)
        self.inner, self.embedding = inner, Embedding(interface, inner.interface, mask)

    def forward(
        self, arguments: CallArguments, all_states: bool, saves: bool, of_layer: bool = False
    ) -> tuple[ForwardResult, Forward | ForwardReplay]:
        """Run over time."""
        call = self.checked(arguments)
        if not self.serves(call):
            return super().forward(arguments, all_states, saves, of_layer)
        embedding = self.embedding
        result, forward = self.inner.forward(
            embedding.arguments(_owned(self.interface, arguments, call)), all_states, saves, of_layer
        )
        states = embedding.over_time(result.states) if all_states else result.states
        return result._replace(y=embedding.y(result.y), states=states, final=embedding.final(result.final)), forward

    def step(self, arguments: CallArguments, pool: PoolArguments | None = None) -> StepResult:
        """Run one step; on a pool, from rows of its states that are written back."""
        if pool is not None:
            return self._step_on_pool(arguments, pool)
        call = self.checked(arguments, single_step=True)
        if not self.serves(call):
            return super().step(arguments)
        result = self.inner.step(self.embedding.arguments(_owned(self.interface, arguments, call)))
        return StepResult(self.embedding.y_of_step(result.y), self.embedding.final(result.final))

    def writes_y(self, _call: Call) -> bool:
        """Return False: a step on a pool is one on rows of it, and its y is a part of the inner kernel's."""
        return False

    def backward(
        self, forward: Forward | ForwardReplay, dy: Any, dstate: Mapping[str, Any] | None, given_only: bool = False
    ) -> dict[str, Any]:
        """Return the gradients of a forward by the names of its arguments."""
        checked, embedding = forward if isinstance(forward, Forward) else forward.metadata(), self.embedding
        if not self.serves(checked.call):
            return super().backward(forward, dy, dstate, given_only)
        call, shape = checked.call, self.interface.y_shape(checked.call.rows, checked.call.time)
        y = replace(checked.outputs.y, shape=shape, strides=contiguous_strides(shape))
        incoming = check_gradient(self.interface, memory.inspect, y, dy, dstate, call.batch)
        states = dict(zip(self.interface.states, (array and array.owner for array in incoming.dfinal), strict=True))
        present = {name: state for name, state in embedding.states(states).items() if state is not None}
        gradients = self.inner.backward(forward, embedding.dy(incoming.dy.owner), present or None, given_only)
        return embedding.gradients(gradients)

    def reference(self, arguments: CallArguments, all_states: bool) -> ForwardResult:
        """Run in float64, step by step, with the cell's own products, including those with other numbers of units."""
        if self.interface.products:
            return super().reference(arguments, all_states)
        self.checked(arguments)
        return self.inner.reference(self.embedding.arguments(arguments), all_states)

    def forward_on_pool(self, arguments: CallArguments, pool: PoolArguments) -> Any:
        """Run over time from rows of the states of a pool, which are written back, and return y."""
        call = check_call(self.interface, memory.inspect, lambda _: None, arguments._replace(state=None))
        call = with_pool(self.interface, memory.inspect, call, arguments.state, pool)

        def run(state: Mapping[str, Any]) -> StepResult:
            result, _ = self.forward(arguments._replace(state=state), all_states=False, saves=False)
            return StepResult(result.y, result.final)

        return self._on_rows(call, run).y

    def _step_on_pool(self, arguments: CallArguments, pool: PoolArguments) -> StepResult:
        call = self.checked(arguments, single_step=True, pool=pool)
        return self._on_rows(call, lambda state: self.step(arguments._replace(state=state)))

    def _on_rows(self, call: Call, run: Callable[[Mapping[str, Any]], StepResult]) -> StepResult:
        """Run from rows of the states of a pool, and write them back; y of padding is 0."""
        names = self.interface.states
        if self.backend.takes(call):
            result = run(dict(zip(names, self.gpu.rows_of(call).final, strict=True)))
            self.gpu.write_rows(call, result)
            return StepResult(result.y, ())

        # It imports NumPy, which calls on a GPU do without.
        from minrnn_gen.run.cpu.slots import step_on_pool

        def on_host(rows: Call) -> StepResult:
            return run(dict(zip(names, (array.owner for array in rows.initial if array is not None), strict=True)))

        return step_on_pool(self.interface, on_host, call)

    def serves(self, call: Call) -> bool:
        """Say whether the inner kernel has kernels for a call."""
        has_own = bool(self.interface.products)
        return not has_own or self.backend.takes(call) or self.inner.cpu.native.kernels.forward is not None


def _owned(interface: Interface, arguments: CallArguments, call: Call) -> CallArguments:
    """Return the arguments of a call as arrays of their libraries, whatever protocol the caller's arrays support."""
    parameters = dict(zip(interface.parameters, (array.owner for array in call.parameters), strict=True))
    pairs = zip(interface.states, call.initial, strict=True)
    state = {name: array.owner for name, array in pairs if array is not None}
    inputs = {name: array.owner for name, array in zip(interface.inputs, call.inputs, strict=True)}
    return arguments._replace(
        R=None if call.R is None else call.R.owner,
        recurrent_bias=None if call.recurrent_bias is None else call.recurrent_bias.owner,
        parameters=parameters or None,
        state=state or None,
        inputs=inputs or None,
    )
