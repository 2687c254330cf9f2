"""The steps of a dense cell as a product of cuBLAS and a pointwise kernel in turn: few are recorded, many in CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from minrnn_gen.call.address import Address
from minrnn_gen.call.arguments import Call
from minrnn_gen.call.interface import Interface
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.signature import BEGIN, STEP, STEP_SIGNATURE
from minrnn_gen.gpu.graph import Scratch
from minrnn_gen.plan.problem import KernelKey
from minrnn_gen.run.backend import Backend, GraphOnStream, Queue, Recorder
from minrnn_gen.run.dense.launch import NamedArguments, blocks_of_rows, scratch_sizes
from minrnn_gen.run.dense.products import GateRounds, step_products
from minrnn_gen.run.launch import Launch

# Launching a graph takes about the time of one step; a longer graph wastes more where the time is no multiple of its steps.
GRAPH_STEPS = 32


@dataclass(frozen=True)
class StepwiseRun:
    """The pointwise kernels of one cell, step by step; may be used from several threads.

    A step is a product and a launch, and another pair for each further round of products. Few steps are recorded one by one,
    and replayed. `GRAPH_STEPS` steps of one batch size are a CUDA graph, captured when first needed; on a stream that is itself
    being captured, they are enqueued one by one.
    """

    interface: Interface
    backend: Backend
    gates: GateRounds

    def run(
        self,
        recorder: Recorder,
        kernel: KernelKey,
        part: Call,
        arguments: Callable[[Scratch], NamedArguments],
        packed: Address | None = None,
    ) -> None:
        """Run all steps of a call of one direction, and one more, which writes the last states or first gradients.

        `packed` is R with its heads first, for a backward; a forward copies its own.
        """
        steps, is_backward = part.time + 1, _is_backward(kernel)
        sizes = scratch_sizes(self.interface, part.batch, is_backward, len(self.gates.rounds))
        graph = None
        if self.backend.has_graphs and steps >= GRAPH_STEPS:
            # Graphs are as fast as a replay of their launches, and one of many steps would be held for each length.
            recorder.stop()
            enqueue = partial(self._enqueue, kernel, part.batch)
            graph = self.backend.graph(part.x, (kernel, part.batch), sizes, enqueue)
        # The begin kernel writes the inputs of all steps, and strides over the values prepared before the first step.
        blocks = self.backend.striding_blocks(part.batch)
        if graph is not None:
            recorder.enqueue(partial(self._run_graph, graph, kernel, part, arguments, blocks))
            return
        if packed is not None:
            del sizes["packed"]
        scratch = recorder.scratch(sizes)
        if packed is not None:
            scratch = scratch.beside(packed=packed)
        begin = recorder.load(kernel, BEGIN)
        begin.launch(Launch(blocks, arguments(scratch).packed(begin.plan, BEGIN, call=scratch["call"], first_step=0)))
        multiply, take = self._step(kernel, part.batch, scratch, recorder)
        # The last step of a forward reads no product, nor does the first one of a backward, after which there is no step.
        if is_backward:
            take(0)
        for index in recorder.loop(1, steps) if is_backward else recorder.loop(0, part.time):
            multiply()
            take(index)
        if not is_backward:
            take(part.time)

    def _run_graph(
        self,
        on_stream: GraphOnStream,
        kernel: KernelKey,
        part: Call,
        arguments: Callable[[Scratch], NamedArguments],
        blocks: int,
        address: Callable[[Any], Any],
    ) -> None:
        """Run all steps by a graph, launched once for each `GRAPH_STEPS` of them; `address` gives those of pointers."""
        graph, stream = on_stream
        begin, scratch = stream.load(kernel, BEGIN), graph.scratch
        with graph.on(stream.handle) as launch:
            if _is_backward(kernel):
                assert part.R is not None
                stream.copy_heads_first(replace(part.R, pointer=address(part.R.address)), scratch["packed"])
                stream.clear(scratch["dproduct"], scratch.sizes_bytes["dproduct"])
            named = arguments(scratch)
            for first_step in range(0, part.time + 1, GRAPH_STEPS):
                packed = named.packed(begin.plan, BEGIN, call=scratch["call"], first_step=first_step)
                begin.launch(Launch(1 if first_step else blocks, tuple(map(address, packed))))
                launch()

    def _enqueue(self, kernel: KernelKey, batch: int, scratch: Scratch, queue: Queue) -> None:
        """Enqueue the steps of a graph."""
        multiply, take = self._step(kernel, batch, scratch, queue)
        for index in range(GRAPH_STEPS):
            multiply()
            take(index)

    def _step(
        self, kernel: KernelKey, batch: int, scratch: Scratch, queue: Queue
    ) -> tuple[Callable[[], None], Callable[[int], None]]:
        """Return a function that enqueues the product before a step, and one that takes a step by its index."""
        step, is_backward, gates = queue.load(kernel, STEP), _is_backward(kernel), self.gates
        blocks = blocks_of_rows(step.plan, batch)
        of_rounds = list(enumerate(gates.rounds, start=1))

        def multiply(runs: tuple[range, ...], number: int = 0) -> None:
            for product in step_products(self.interface, scratch, batch, is_backward, runs, number):
                queue.multiply(product, scratch["cublas"])

        def take(index: int) -> None:
            launches = index * (1 + len(of_rounds))
            for before, (number, runs) in enumerate(reversed(of_rounds) if is_backward else of_rounds):
                step.launch(Launch(blocks, _packed(scratch, launches + before)))
                multiply(runs, number)
            step.launch(Launch(blocks, _packed(scratch, launches + len(of_rounds))))

        return lambda: multiply(gates.of_output), take


def _packed(scratch: Scratch, launch: int) -> tuple[Any, ...]:
    return pack(STEP_SIGNATURE, {"call": scratch["call"], "step_in_chunk": launch})


def _is_backward(kernel: KernelKey) -> bool:
    return kernel.kernel_pass == "backward"
