"""The steps of a dense cell as a product of cuBLAS and a pointwise kernel in turn, in CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from minrnn_gen.call.arguments import Call
from minrnn_gen.call.interface import Interface
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.signature import BEGIN, STEP, STEP_SIGNATURE
from minrnn_gen.gpu.graph import Scratch
from minrnn_gen.plan.problem import KernelKey
from minrnn_gen.run.backend import Backend, Prepare, Recorder, Stream
from minrnn_gen.run.dense_launch import NamedArguments, scratch_sizes, step_product
from minrnn_gen.run.scan_launch import Launch

# A graph is launched in about the time of one step; a longer one wastes more where the time is no multiple of it.
GRAPH_STEPS = 32


@dataclass(frozen=True)
class StepwiseRun:
    """The pointwise kernels of one cell, step by step; may be used from several threads.

    A step is a product and a launch. `GRAPH_STEPS` steps of one batch size are a CUDA graph, captured when first needed; few
    steps, and those on a stream that is itself being captured, are enqueued one by one.
    """

    interface: Interface
    backend: Backend

    def run(
        self,
        recorder: Recorder,
        kernel: KernelKey,
        part: Call,
        arguments: Callable[[Scratch], NamedArguments],
        prepare: Prepare,
    ) -> None:
        """Run all steps of a call of one direction, and one more, which writes the last states or first gradients.

        `prepare` enqueues what has to be in the scratch before the first step.
        """
        stream, steps = recorder.unrecorded_stream(), part.time + 1
        sizes = scratch_sizes(self.interface, part.batch, _is_backward(kernel))
        graph = None
        if steps >= GRAPH_STEPS:
            enqueue = partial(self._enqueue, kernel, part.batch, GRAPH_STEPS)
            graph = self.backend.graph(part.x, (kernel, part.batch), sizes, enqueue)
        begin = stream.load(kernel, BEGIN)
        # It writes what all steps read, and strides over what is prepared before the first of them.
        blocks = self.backend.striding_blocks(part.batch)
        if graph is None:
            scratch = recorder.scratch(sizes)
            prepare(scratch, stream)
            packed = arguments(scratch).packed(begin.plan, BEGIN, call=scratch["call"], first_step=0)
            begin.launch(Launch(blocks, packed))
            self._enqueue(kernel, part.batch, steps, scratch, stream)
            return
        with graph.on(stream.handle) as launch:
            prepare(graph.scratch, stream)
            named = arguments(graph.scratch)
            for first_step in range(0, steps, GRAPH_STEPS):
                packed = named.packed(begin.plan, BEGIN, call=graph.scratch["call"], first_step=first_step)
                begin.launch(Launch(1 if first_step else blocks, packed))
                launch()

    def _enqueue(self, kernel: KernelKey, batch: int, count: int, scratch: Scratch, stream: Stream) -> None:
        """Enqueue `count` steps, each a product and a launch."""
        step, product = stream.load(kernel, STEP), step_product(self.interface, scratch, batch, _is_backward(kernel))
        blocks = -(-batch * step.plan.hidden_size // step.plan.threads)
        for index in range(count):
            stream.multiply(product, scratch["cublas"])
            step.launch(Launch(blocks, pack(STEP_SIGNATURE, {"call": scratch["call"], "step_in_chunk": index})))


def _is_backward(kernel: KernelKey) -> bool:
    return kernel.kernel_pass == "backward"
