"""Runs of kernels into existing memory; values beyond lengths stay as they are.

With lengths of 0 or all steps, the GPU decides which sequences run again, and the host does not wait for the decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minrnn_gen.call.arguments import Call, CallArguments, IncomingGradient, Outputs, with_slots
from minrnn_gen.call.array import Array
from minrnn_gen.call.gradients import AnyGradients
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.key import KeyedArrays, keyed
from minrnn_gen.call.results import ForwardResult
from minrnn_gen.call.validate import check_call, check_dtype, check_exact_shape
from minrnn_gen.gpu import memory
from minrnn_gen.run.gpu import GpuRun
from minrnn_gen.run.kept import StatesAsked
from minrnn_gen.run.saved import Forward


@dataclass(frozen=True)
class InPlace:
    """Runs the calls of one kernel in place; x is not projected, and values of lengths are not read.

    All arrays shaped like y have its strides.
    """

    interface: Interface
    gpu: GpuRun

    def forward(self, arrays: Sequence[Any], into: Sequence[Any], states_out: StatesAsked) -> ForwardResult:
        """Run a call, its arrays by slot, over time; write `into` y and the states of `states_out`."""
        call_key = keyed(("forward in place", states_out), [*arrays, *into])
        replay = self.gpu.forwards.replay(call_key)
        if replay is not None:
            return replay.result
        call = self._checked(arrays, call_key)
        written = self._described(call, into)
        check_dtype(written[0], (self.interface.precision.storage_dtype,))
        check_exact_shape(written[0], self.interface.y_shape(call.rows, call.time))
        for name, array in zip(self.gpu.states_written(states_out), written[1:], strict=False):  # those that it asks for
            check_exact_shape(array, self.interface.states_shape(name, call.rows, call.time))
        return self.gpu.forward(call, states_out, False, into=written).result

    def backward(
        self, arrays: Sequence[Any], results: Sequence[Any], incoming: Sequence[Any], dx: Any, states_out: StatesAsked
    ) -> AnyGradients:
        """Run a call, its arrays by slot, against time, and write the gradient of x into `dx`.

        `results`: y and the states that its forward wrote; `incoming`: the gradients of y and of the final states.
        """
        others = (*results, *incoming, dx)
        call_key = keyed(("backward in place", states_out), [*arrays, *others])
        replayed = self.gpu.replay_backward(call_key)
        if replayed is not None:
            return replayed[1]
        call = self._checked(arrays, call_key)
        described = self._described(call, others)
        (y, *kept), (dy, *dfinal, into) = described[: len(results)], described[len(results) :]
        check_dtype(into, (call.x.dtype,))
        check_exact_shape(into, call.x.shape)
        forward = Forward(call, call, Outputs(y, tuple(kept), ()))
        return self.gpu.backward(forward, IncomingGradient(dy, tuple(dfinal), call_key), into)

    def _checked(self, arrays: Sequence[Any], call_key: KeyedArrays | None) -> Call:
        arguments = CallArguments.from_flat(self.interface, arrays)
        return check_call(self.interface, memory.inspect, lambda _: None, arguments).with_slots(call_key)

    @staticmethod
    def _described(call: Call, arrays: Sequence[Any]) -> list[Array]:
        """Describe arrays, in the slots after the call's where it has slots."""
        described = (memory.inspect(array, "result") for array in arrays)
        in_slots = described if call.keyed is None else with_slots(described, len(call.flat()))
        return [array for array in in_slots if array is not None]
