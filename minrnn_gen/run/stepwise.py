"""The steps of a dense cell as a product of cuBLAS and a pointwise kernel in turn, in CUDA graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from minrnn_gen.call.arguments import Call
from minrnn_gen.call.interface import Contract
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.signature import BEGIN, STEP, STEP_SIGNATURE
from minrnn_gen.gpu import cublas, module
from minrnn_gen.gpu import stream as gpu_stream
from minrnn_gen.gpu.graph import Recorded, Scratch, scratch_bytes_of
from minrnn_gen.gpu.module import LoadedKernel
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.run.dense_launch import NamedArguments, scratch_sizes, step_product
from minrnn_gen.run.replay import Steps

# A graph is launched in about the time of one step; a longer one wastes more where the time is no multiple of it.
GRAPH_STEPS = 32
# Graphs of other batch sizes that a kernel keeps; each holds the workspace of cuBLAS besides its own.
GRAPHS_HELD = 8
# Of the kernel that only prepares: it strides over what there is.
BEGIN_BLOCKS = 264

Arguments = Callable[[Scratch], NamedArguments]
Prepare = Callable[[Scratch, int], None]


class AlternatingWalk:
    """The pointwise kernels of one cell, walking; may be used from several threads.

    A step is a product and a launch. Runs of `GRAPH_STEPS` steps of one batch size are a CUDA graph, recorded when first
    needed; few steps, and those on a stream that is itself being recorded, are enqueued one by one.
    """

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._pairs: dict[tuple[KernelPass, int], _Pair] = {}
        self._graphs: dict[tuple[KernelPass, int, int], Recorded] = {}
        self._graphs_lock = threading.Lock()

    def run(
        self,
        kernel_pass: KernelPass,
        kernel: tuple[bytes, KernelPlan],
        steps: Steps,
        part: Call,
        arguments: Arguments,
        prepare: Prepare,
    ) -> None:
        """Run all steps of a call of one direction, and one more, which writes the last states or first gradients.

        `prepare` enqueues what has to be in the scratch before the first step.
        """
        assert part.x.device is not None
        device, stream, due = part.x.device, gpu_stream.current_stream(part.x), part.time + 1
        pair = self._pair(kernel_pass, device, kernel)
        if due < GRAPH_STEPS or gpu_stream.is_capturing(part.x):
            sizes = scratch_sizes(self._contract, part.batch, kernel_pass == "backward")
            scratch = Scratch.laid_out(sizes, int(steps.new_array((scratch_bytes_of(sizes),), "uint8").pointer))
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
            cublas.multiply(device, stream, product, workspace=scratch["cublas"])
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

    def _pair(self, kernel_pass: KernelPass, device: int, kernel: tuple[bytes, KernelPlan]) -> _Pair:
        key = (kernel_pass, device)
        if key not in self._pairs:
            begin, step = (module.loaded_kernel(*kernel, suffix) for suffix in (BEGIN, STEP))
            step.function(device)  # nothing can be loaded while a graph is recorded
            self._pairs[key] = _Pair(begin, step, kernel[1])
        return self._pairs[key]


@dataclass(frozen=True)
class _Pair:
    """The two kernels of one pass: that which takes the arguments of a call, and that of a step."""

    _begin: LoadedKernel
    _step: LoadedKernel
    _plan: KernelPlan

    def begin(self, device: int, stream: int, scratch: Scratch, first_step: int, arguments: NamedArguments) -> None:
        blocks = 1 if first_step else BEGIN_BLOCKS
        packed = arguments.packed(self._plan, BEGIN, call=scratch["call"], first_step=first_step)
        self._begin.launch_on(device, stream, blocks, self._plan.threads, packed)

    def step(self, device: int, stream: int, scratch: Scratch, step_in_chunk: int, batch: int) -> None:
        blocks = -(-batch * self._plan.hidden_size // self._plan.threads)
        packed = pack(STEP_SIGNATURE, {"call": scratch["call"], "step_in_chunk": step_in_chunk})
        self._step.launch_on(device, stream, blocks, self._plan.threads, packed)
