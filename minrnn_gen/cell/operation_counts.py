"""Cost of one element in one time step: values moved, operations, special functions."""

from __future__ import annotations

from dataclasses import dataclass

from minrnn_gen.cell.lowering import Lowered, LoweredBackward
from minrnn_gen.cell.lowering_steps import LoweredStepsBackward


@dataclass(frozen=True)
class Work:
    """Per element and time step of one pass.

    `words_read` and `words_written` are the values of arrays over time that must cross the memory bus, each once. `operations`
    are those of the cell's programs, a scan's own multiply-add and the products with R not counted; `special_functions` are
    exponentials, logarithms, roots and reciprocals among them.
    """

    words_read: int
    words_written: int
    operations: int
    special_functions: int

    @property
    def words(self) -> int:
        """Values moved."""
        return self.words_read + self.words_written


def forward_work(lowered: Lowered) -> Work:
    """Return the work of a forward that saves nothing: it reads gates and inputs and writes y; products with R stay on chip."""
    return Work(len(lowered.gates) + len(lowered.inputs), 1, lowered.operation_count, lowered.transcendental_count)


def backward_work(lowered: LoweredBackward) -> Work:
    """Return the work of a backward.

    It reads dy and the gates, products and states on which gradients depend. It writes the gradients of all gates, and of the
    products where these differ.
    """
    products, gradients = 0, len(lowered.gates) + len(lowered.inputs)
    if isinstance(lowered, LoweredStepsBackward):
        products = len(lowered.read_products)
        names = dict(lowered.backward.results)
        gradients += sum(names[f"gradient_R_{gate}"] != names.get(f"gradient_W_{gate}") for gate in lowered.recurrent_gates)
    read = len(lowered.read_gates) + len(lowered.read_inputs) + products + len(lowered.read_states) + 1
    return Work(read, gradients, lowered.operation_count, lowered.transcendental_count)
