"""Values of the forward that a backward of a dense cell recomputes, for all steps at once: operands of products, and means."""

from __future__ import annotations

from dataclasses import dataclass, replace

from minrnn_gen.call.address import Address
from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Interface
from minrnn_gen.cell.levels import MEANS_OF_ROW, rows_of_means
from minrnn_gen.codegen.signature_groups import ArrayNames
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.run.backend import Recorder
from minrnn_gen.run.dense.launch import BackwardArrays, arguments_launch
from minrnn_gen.run.dense.products import GateRounds, one_sequence, row_products
from minrnn_gen.run.scan.runs import sizes_of


@dataclass(frozen=True)
class MadeAgain:
    """The pass before a backward; `names`: the names of the backward's arrays."""

    interface: Interface
    names: ArrayNames
    gates: GateRounds
    specialization: Specialization

    def arguments(
        self, recorder: Recorder, part: Call, of_run: BackwardArrays, packed: Address, fill: int | None
    ) -> tuple[Array, ...]:
        """Recompute the operands of each round, and their products."""
        interface, rows, made = self.interface, part.rows * part.time, []
        for number, runs in enumerate(self.gates.rounds if rows else (), start=1):
            kernel = recorder.load(recorder.choose("arguments", self.specialization, sizes_of(part)))
            arguments = recorder.new_array((rows, interface.hidden_size), interface.precision.storage_dtype, fill=fill)
            kernel.launch(arguments_launch(kernel.plan, self.names, part, interface.layout, of_run, number, arguments))
            assert of_run.apart is not None
            for product in row_products(interface, "BTD", packed, one_sequence(arguments), of_run.apart.products, runs):
                recorder.multiply(product)
            made.append(arguments)
        return tuple(made)

    def means(self, recorder: Recorder, part: Call, of_run: BackwardArrays) -> Array:
        """Recompute the means over units."""
        interface, rows = self.interface, part.rows * part.time
        row = rows_of_means(self.names.known_means) * MEANS_OF_ROW
        heads = interface.heads * self.names.norm_parts
        means = recorder.new_array((rows, heads, row), interface.precision.arithmetic_dtype)
        if rows:
            kernel = recorder.load(recorder.choose("arguments", self.specialization, sizes_of(part)))
            arrays, number = replace(of_run, means=means), len(self.gates.rounds) + 1
            kernel.launch(arguments_launch(kernel.plan, self.names, part, interface.layout, arrays, number))
        return means
