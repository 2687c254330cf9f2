"""A run of any family: the order in which a call's kernels are launched, requested from a recorder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from minrnn_gen.build.builder import Builder
from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.results import Places
from minrnn_gen.codegen.signature import names_of
from minrnn_gen.codegen.signature_groups import ArrayNames
from minrnn_gen.plan.kernel_plan import StatesOut
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.run.backend import Recorder, WideGradients
from minrnn_gen.run.dense.direction_choice import DirectionsChoice
from minrnn_gen.run.drafts import Draft, launch_places
from minrnn_gen.run.expected_time import BackwardOrForward
from minrnn_gen.run.saved import Forward
from minrnn_gen.run.slots import new_rows, rows_from_pool, rows_into_pool


@dataclass(frozen=True)
class CellRun(ABC):
    """The kernels of one builder, of a cell of one family; methods that are not abstract serve most families."""

    interface: Interface
    builder: Builder

    @cached_property
    def names(self) -> ArrayNames:
        """The names of the arrays of a forward or a step; nothing is lowered for them."""
        interface = self.interface
        of_vectors = (interface.vector_states, interface.vector_parameters, interface.shared)
        is_dual = self.builder.cell_shape.is_dual
        return ArrayNames(
            interface.states, interface.parameters, (), None, *of_vectors, inputs=interface.inputs, is_dual=is_dual
        )

    @cached_property
    def names_backward(self) -> ArrayNames:
        """The names of the arrays of a backward."""
        return names_of(self.builder.lowered_for("backward"))

    def move_slots(self, recorder: Recorder, call: Call, clears: bool) -> None:
        """Copy states of a pool from the slots that a call reads to those that it writes, or zeros where it `clears`."""
        hinted = self.builder.hinted_specialization
        rows = new_rows(recorder, call, fill=0) if clears else rows_from_pool(recorder, hinted, self.names, call).initial
        rows_into_pool(recorder, hinted, self.names, call, rows)

    def places(self, recorder: Recorder, draft: Draft) -> Places:
        """Return the places of the steps of a draft, and note it."""
        return launch_places(recorder, self.builder, self.names, draft)

    def run_draft(self, _recorder: Recorder, _call: Call, _outputs: Outputs, _draft: Draft, /) -> None:
        """Run a draft after the kept steps of the last draft; raises where drafted steps are not run again."""
        raise NotImplementedError

    def states_from_pool(self, recorder: Recorder, call: Call) -> Call:
        """Return a call on the states of its sequences, read from the pool where it has one."""
        hinted = self.builder.hinted_specialization
        return call if call.pool is None or not call.batch else rows_from_pool(recorder, hinted, self.names, call)

    def states_into_pool(self, recorder: Recorder, call: Call, outputs: Outputs) -> None:
        """Write the final states of a call into its pool, where it has one, and zeros into y of padding."""
        if call.pool is not None and call.batch:
            rows_into_pool(recorder, self.builder.hinted_specialization, self.names, call, outputs.final, outputs.y)

    def expect_backward(self, _call: Call, /) -> None:  # noqa: B027 -- most families build nothing ahead
        """Begin to build the kernels of the backward: by default none, since the backward's arrays choose them."""

    def beside(self, _kernel_pass: BackwardOrForward, _sizes: Sizes, /) -> DirectionsChoice | None:
        """Return how both directions of a pass of these sizes run concurrently; None where they do not."""
        return None

    def forward_from_inputs(
        self, _recorder: Recorder, _call: Call, _outputs: Outputs, _states_out: StatesOut, _saves: bool, /
    ) -> Call | None:
        """Run a call whose x is not projected yet, and return it with the pre-activations where it `saves`.

        Returns None where the projection is a product before the run, which is the default.
        """
        return None

    @abstractmethod
    def forward(self, recorder: Recorder, runs: Sequence[tuple[Call, Outputs]], states_out: StatesOut, /) -> None:
        """Run a call in each direction: each of `runs` is a direction's part of the call, and its outputs."""

    @abstractmethod
    def step(self, recorder: Recorder, call: Call, outputs: Outputs, /) -> None:
        """Run one step."""

    @abstractmethod
    def backward(
        self, recorder: Recorder, forward: Forward, incoming: IncomingGradient, gradients: Gradients, /
    ) -> WideGradients:
        """Run against time in each direction."""
