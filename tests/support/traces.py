"""Traces of calls on tensors in host memory, on which nothing runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.call_corpus import Options, arguments_of, gradients_of

from minrnn_gen.call.arguments import flat_gradient
from minrnn_gen.call.key import keyed
from minrnn_gen.call.validate import check_call, check_gradient
from minrnn_gen.gpu import cublas, graph, memory, stream
from minrnn_gen.kernel import Kernel
from minrnn_gen.run.cuda import CudaBackend
from minrnn_gen.run.executor import Executor


class OnHost(CudaBackend):
    """A backend that takes tensors in host memory for tensors on a device."""

    def takes(self, _call: Any) -> bool:
        return True

    def without_graphs(self) -> OnHost:
        return type(self)(self._kernels, has_graphs=False)


@contextmanager
def nothing_runs() -> Iterator[None]:
    """Have launches, products, copies and fills do nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((cublas, "multiply"), (graph, "copy_heads_first"), (memory, "set_bytes")):
            patch.setattr(owner, name, lambda *_arguments, **_named: None)
        patch.setattr(stream, "current_stream", lambda _: 0)
        patch.setattr(stream, "is_capturing", lambda _: False)
        yield


def traces_of_call(kernel: Kernel, backend: Any, call: Options) -> Iterator[tuple[str, Any]]:
    """Yield the traces of a call's step, or forward and backward."""
    interface, arguments = kernel.interface, arguments_of(kernel.interface, call)
    executor = Executor(interface, kernel.builder, backend)
    gpu = executor.recorded
    with nothing_runs():
        if call.is_step:
            key = keyed("step", arguments.flat(interface))
            gpu.step(executor.checked(arguments, single_step=True).with_slots(key))
            yield "step", gpu.steps.find(key)
            return
        states_out = executor._states_out(call.all_states, call.saves)
        key = keyed(("forward", states_out, call.saves), arguments.flat(interface))
        checked = check_call(interface, memory.inspect, lambda _: None, arguments).with_slots(key)
        replay = gpu.forward(checked, states_out, call.saves).replay
        yield "forward", None if replay is None else replay.trace
        if replay is None or not call.saves:
            return
        dy, dstate = gradients_of(interface, call)
        arriving = keyed(replay.trace, flat_gradient(interface, dy, dstate))
        assert arriving is not None
        key, forward = arriving.behind(replay.arrays, replay.addresses), replay.metadata()
        incoming = check_gradient(interface, memory.inspect, forward.outputs.y, dy, dstate, forward.call.batch)
        gpu.backward(forward, incoming.with_slots(key))
        yield "backward", gpu.backwards.find(key)
