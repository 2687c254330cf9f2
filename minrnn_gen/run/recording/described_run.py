"""A run on the arrays of a call, described before it is performed; conversions by the arrays' library are done at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from minrnn_gen.call.address import pointer_divisor
from minrnn_gen.call.array import Array
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.call.results import ResultT
from minrnn_gen.gpu import memory
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.program.data import At, Program
from minrnn_gen.run.recording.describer import Describer, PlannedKernels
from minrnn_gen.run.recording.replay import Finished, MetadataT, Replay, Trace, owners_of, without_owners


class DescribedRun(Describer):
    """A run on existing arrays: the arrays of `keyed` have slots, and arrays of a call without a key have none.

    `is_kept`: whether the run, as described so far, may be performed again for other calls of its key.
    """

    def __init__(
        self,
        like: Array,
        keyed: KeyedArrays | None,
        kernels: PlannedKernels | None = None,
        resident_blocks: Callable[[KernelPlan], int] = lambda plan: plan.launch.resident_blocks,
        gives_workspace: bool = False,
    ) -> None:
        """Begin a run on the device of `like`."""
        self.keyed = KeyedArrays((), [like.owner], [int(like.pointer)]) if keyed is None else keyed
        self.is_kept = keyed is not None
        self.made: list[Array] = []
        """What the library made of arrays of the call, held until the run is performed."""
        super().__init__(like, len(self.keyed.arrays), kernels, resident_blocks, gives_workspace)

    def cast(self, array: Array, dtype: str) -> Array:
        """Return a whole array of the call in a dtype, itself where it has that already."""
        slot = array.address.slot
        if array.dtype == dtype or (slot is not None and slot < self._inputs and array.is_contiguous):
            return super().cast(array, dtype)
        return self.hold(memory.inspect(memory.cast(array.owner, dtype), array.name))

    def contiguous(self, array: Array) -> Array:
        """Return a whole array as a contiguous one, aligned for its elements; a run on a copy is not kept."""
        is_plain = array.is_contiguous and pointer_divisor(array.pointer) % array.itemsize == 0
        return array if is_plain else self.hold(memory.without_gaps(array))

    def zeroed_beyond(self, x: Array, axes: str, lengths: Array) -> Array:
        """Return an array with zeros beyond lengths; a run on it is not kept."""
        return self.hold(memory.zeroed_beyond(x, axes, lengths))

    def stop(self) -> None:
        """Keep nothing of this run."""
        self.is_kept = False

    def program(self, result: ResultT, metadata: Any) -> Program:
        """End the run and return its program; the run is not kept where a result is in no slot."""
        program = super().program(result, metadata)
        results, slots = self._listed(result), self._listed(program.results)
        self.is_kept = self.is_kept and len(results) == len(slots) and None not in slots
        return program

    @staticmethod
    def _listed(result: Any) -> list[Any]:
        """Return the arrays of a result, or their slots; those that it lacks are not among them."""
        listed: list[Any] = []
        result.mapped(listed.append)
        return listed

    def hold(self, array: Array) -> Array:
        """Hold an array made from the call's arrays until the run is performed, and do not keep the run; return it."""
        self.stop()
        self.made.append(array)
        return array

    def _at(self, pointer: int) -> At:
        at = super()._at(pointer)
        self.is_kept = self.is_kept and at.slot is not None
        return at


class TracedRun(DescribedRun):
    """A run that is performed as a trace, which may be kept."""

    def finish(self, result: ResultT, metadata: MetadataT) -> Finished[ResultT, MetadataT]:
        """Perform the run, and return it with its results."""
        replay = self.perform(result, metadata)
        if self.is_kept:
            return Finished(replay.result, replay.trace.metadata, replay)
        return Finished(owners_of(result, replay.arrays), replay.metadata(), None)

    def perform(self, result: ResultT, metadata: MetadataT) -> Replay[ResultT, MetadataT]:
        """Perform the run, and return it as a replay of its trace."""
        program = self.program(result, metadata)
        if self.is_kept:
            program = replace(program, metadata=without_owners(metadata))
        return self._trace(program).replay(self.keyed)

    def _trace(self, program: Program) -> Trace[Any, Any]:
        """Return the executor of a program."""
        raise NotImplementedError
