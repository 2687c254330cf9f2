"""Interface of a kernel: the sizes of its spec, the names of its cell, and the array shapes that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from minrnn_gen.call.product_shapes import ProductShape
from minrnn_gen.call.slots import CallSlots
from minrnn_gen.precision import Precision

# The axes of x and y in each layout: batch, time, gate, hidden (channel), input.
X_AXES = {"BTD": "btgh", "TBD": "tbgh", "BDT": "bght"}
Y_AXES = {"BTD": "bth", "TBD": "tbh", "BDT": "bht"}
INPUT_AXES = {"BTD": "bti", "TBD": "tbi", "BDT": "bit"}
# S.* of all channels of a group: batch, time, group, value (n).
SHARED_AXES = {"BTD": "btkn", "TBD": "tbkn", "BDT": "bknt"}
# For each direction of a spec, whether time runs in reverse in each of its runs.
RUNS_REVERSED = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@dataclass(frozen=True)
class Interface:
    """Interface of a kernel: the spec's sizes and the cell's names.

    Where both directions run, every array but x of an input projection has both: an axis of 2 in front of the gates of x, in
    front of states, R, biases and parameters, and within the rows of weight and the channels of y, forward before reverse. Only
    a dense cell has `recurrent_gates`. Only a cell with the axis n has a `state_size`, n: an axis of `vector_states` and
    `vector_parameters` after the hidden axis, and of the inputs `shared` after the axis of `groups`. Only a cell with the axis
    p has a `projection_size`, P, which `projected_states` and `projected_parameters` have instead of H. In a cell that lists
    products, `products` are the shapes of all, `unbiased` gates have no recurrent bias, and `model` is the cell's name.
    `inputs` are the inputs X.*, each with one value for each value of y; `step_inputs` among them have one value for each step,
    with the axes batch and time in every layout. `block_diagonal` has the gates with block-diagonal matrices, each with its
    number of equal blocks.
    """

    layout: str
    precision: Precision
    hidden_size: int
    input_size: int | None
    gates: tuple[str, ...]
    states: tuple[str, ...]
    parameters: tuple[str, ...]
    direction: str = "forward"
    recurrent_gates: tuple[str, ...] = ()
    heads: int = 1
    takes_recurrent_bias: bool = False
    vector_states: tuple[str, ...] = ()
    vector_parameters: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    state_size: int = 0
    groups: int = 1
    projection_size: int = 0
    projected_states: tuple[str, ...] = ()
    projected_parameters: tuple[str, ...] = ()
    output_size: int = 0
    products: tuple[ProductShape, ...] = ()
    unbiased: tuple[str, ...] = ()
    model: str = ""
    inputs: tuple[str, ...] = ()
    step_inputs: tuple[str, ...] = ()
    block_diagonal: tuple[tuple[str, int], ...] = ()

    @cached_property
    def slots(self) -> CallSlots:
        """The slots of a call's arrays."""
        return CallSlots.of(len(self.parameters), len(self.states), len(self.shared), len(self.inputs))

    @property
    def runs_reversed(self) -> tuple[bool, ...]:
        """For each run over time, whether it is in reverse."""
        return RUNS_REVERSED[self.direction]

    @property
    def directions(self) -> tuple[int, ...]:
        """The axis of directions in front of vectors and states: none for a single one."""
        return (2,) if len(self.runs_reversed) == 2 else ()

    @property
    def gate_axes(self) -> str:
        """The axes of the pre-activations of one step of one sequence."""
        return "dgh" if self.directions else "gh"

    @property
    def preactivation_axes(self) -> str:
        """The axes of pre-activations in the layout."""
        return X_AXES[self.layout].replace("gh", self.gate_axes)

    @property
    def x_axes(self) -> str:
        """The axes of x in the layout."""
        return INPUT_AXES[self.layout] if self.input_size else self.preactivation_axes

    @property
    def has_vectors(self) -> bool:
        """Whether something has the axis n."""
        return self.state_size > 0

    @property
    def shared_axes(self) -> str:
        """The axes of an input S.* in the layout."""
        return SHARED_AXES[self.layout].replace("k", "dk" if self.directions else "k")

    @property
    def channel_axes(self) -> str:
        """The axes of an input X.* in the layout; it is laid out as y."""
        return Y_AXES[self.layout].replace("h", "dh" if self.directions else "h")

    def axes_of_input(self, name: str) -> str:
        """Return the axes of an input X.* by its name."""
        return "bt" if name in self.step_inputs else self.channel_axes

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """The shape of a parameter without the axis n."""
        return (*self.directions, self.hidden_size)

    def shape_of_parameter(self, name: str) -> tuple[int, ...]:
        """Return the shape of a parameter by its name."""
        if name in self.projected_parameters:
            return (*self.directions, self.projection_size)
        return (*self.parameter_shape, self.state_size) if name in self.vector_parameters else self.parameter_shape

    @property
    def head_dim(self) -> int:
        """D, the units of one head."""
        return self.hidden_size // self.heads

    @property
    def product_shapes(self) -> tuple[ProductShape, ...]:
        """The shape of each product, in R's order."""
        return self.products or (ProductShape(self.heads, self.head_dim, self.head_dim),) * len(self.recurrent_gates)

    @property
    def has_unequal_products(self) -> bool:
        """Whether products have several shapes: R is then one axis, of the matrices one after the other."""
        return len({*self.products}) > 1

    @property
    def has_unequal_biases(self) -> bool:
        """Whether the recurrent bias is one axis of all products, with zeros for `unbiased` ones."""
        return len({(shape.heads, shape.out) for shape in self.products}) > 1 or bool(self.unbiased)

    @property
    def R_shape(self) -> tuple[int, ...]:
        """The shape of R: [gate, head, unit of the product, unit of what it multiplies]; one axis where shapes are unequal."""
        shapes = self.product_shapes
        if self.has_unequal_products:
            return (*self.directions, sum(shape.elements for shape in shapes))
        return (*self.directions, len(shapes), *(shapes[0] if shapes else (self.heads, self.head_dim, self.head_dim)))

    def clear_beyond_blocks(self, R: Any) -> Any:
        """Return R [.., Gr, 1, D, D], in place with zeros outside of the blocks of block-diagonal matrices."""
        for gate, count in self.block_diagonal:
            units, place = self.head_dim // count, self.recurrent_gates.index(gate)
            for first in range(0, self.head_dim, units):
                rows = R[..., place, :, first : first + units, :]
                rows[..., :first] = 0
                rows[..., first + units :] = 0
        return R

    @property
    def R_shape_of_run(self) -> tuple[int, ...]:
        """The shape of R of one direction."""
        return self.R_shape[len(self.directions) :]

    @property
    def recurrent_bias_shape(self) -> tuple[int, ...]:
        """The shape of the recurrent bias: [gate, head, unit]; one axis where shapes are unequal."""
        shapes = self.product_shapes
        if self.has_unequal_biases:
            return (*self.directions, sum(shape.rows for shape in shapes))
        return (*self.directions, len(shapes), *((shapes[0].heads, shapes[0].out) if shapes else (self.heads, self.head_dim)))

    @property
    def recurrent_rows(self) -> int:
        """How many recurrent products one step of one sequence has."""
        return math.prod(self.directions) * sum(shape.rows for shape in self.product_shapes)

    @property
    def summed_parameters(self) -> tuple[str, ...]:
        """The parameters without the axis n; their gradients are summed with the gradients of biases."""
        return tuple(name for name in self.parameters if name not in self.vector_parameters)

    @property
    def summed_count(self) -> int:
        """The number of vectors whose gradients are sums over batch and time: gates of both biases, then parameters."""
        return len(self.gates) + len(self.recurrent_gates) + len(self.summed_parameters)

    @property
    def weight_rows(self) -> int:
        """How many pre-activations one step of one sequence has."""
        return math.prod(self.directions) * len(self.gates) * self.hidden_size

    def shape(self, axes: str, batch: int, time: int) -> tuple[int, ...]:
        """Return the sizes of `axes`; the hidden axis of y, which both directions share, is not among them."""
        sizes = {"b": batch, "t": time, "d": 2, "g": len(self.gates), "h": self.hidden_size, "i": self.input_size or 0}
        sizes |= {"k": self.groups, "n": self.state_size}
        return tuple(sizes[axis] for axis in axes)

    def y_shape(self, batch: int, time: int) -> tuple[int, ...]:
        """Return the shape of y in the layout."""
        return self._shape_over_time(self.units_of_output, batch, time)

    def _shape_over_time(self, units: int, batch: int, time: int) -> tuple[int, ...]:
        sizes = {"b": batch, "t": time, "h": math.prod(self.directions) * units}
        return tuple(sizes[axis] for axis in Y_AXES[self.layout])

    @property
    def units_of_output(self) -> int:
        """The units of y: H, or P."""
        return self.output_size or self.hidden_size

    def units_of_state(self, name: str) -> int:
        """Return the units of a state by its name: H, or P."""
        return self.projection_size if name in self.projected_states else self.hidden_size

    def state_shape(self, sequences: int) -> tuple[int, ...]:
        """Return the shape of a state with H units and without the axis n, for a number of sequences."""
        return (*self.directions, sequences, self.hidden_size)

    def step_shape(self, sequences: int) -> tuple[int, ...]:
        """Return the shape of y of a single step, for a number of sequences."""
        return (*self.directions, sequences, self.units_of_output)

    @property
    def step_widths(self) -> dict[str, int]:
        """The elements that x and each input S.* and X.* have of a sequence at a step, under their names in exports."""
        axes = {"x": self.x_axes, **{f"shared_{name}": self.shared_axes for name in self.shared}}
        axes |= {f"input_{name}": self.axes_of_input(name) for name in self.inputs}
        return {name: math.prod(self.shape(of.replace("t", ""), 1, 1)) for name, of in axes.items()}

    def shape_of_state(self, name: str, sequences: int) -> tuple[int, ...]:
        """Return the shape of a state by its name, for a number of sequences."""
        shape = (*self.directions, sequences, self.units_of_state(name))
        return (*shape, self.state_size) if name in self.vector_states else shape

    def states_shape(self, name: str, batch: int, time: int) -> tuple[int, ...]:
        """Return the shape of a state after every step, by its name: as y, with the axis n after the channels."""
        shape = self._shape_over_time(self.units_of_state(name), batch, time)
        if name not in self.vector_states:
            return shape
        behind = Y_AXES[self.layout].index("h") + 1
        return (*shape[:behind], self.state_size, *shape[behind:])

    def states_axes(self, name: str) -> str:
        """Return the axes of a state after every step, by its name."""
        axes = Y_AXES[self.layout]
        return axes.replace("h", "hn") if name in self.vector_states else axes
