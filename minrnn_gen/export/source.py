"""A kernel as C sources that need neither Python nor headers of CUDA: its interface, its code, and a check of itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from minrnn_gen.call.embedding import Embedding
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.codegen.header import comment
from minrnn_gen.codegen.render import environment
from minrnn_gen.errors import BadInput
from minrnn_gen.plan.problem import Sizes

Target = Literal["cpu", "cuda"]
# Axes of arrays by their names in strides.
AXIS_WORDS = {
    "b": "batch",
    "t": "time",
    "d": "direction",
    "g": "gate",
    "h": "channel",
    "i": "channel",
    "k": "group",
    "n": "value",
}
_STORAGE = {
    "float64": ("double", "fp64"),
    "float32": ("float", "fp32"),
    "float16": ("uint16_t", "the bits of fp16"),
    "bfloat16": ("uint16_t", "the bits of bf16"),
}
# Memory that launches and products use in turn.
SHARED = ("workspace", "products")
# Kernels that copy elements of either type.
MOVES = ("move_storage", "move_real")
# The kernels that copy states between a pool and rows, and find the places of drafts, and the most arguments of one.
MOVES_SLOTS, MOVES_SLOTS_ARGUMENTS = ("move_slots", "find_places"), 14


class ExportArray(NamedTuple):
    """One array of a call in C: the kind of its elements, "storage", "real" or a type of C, and its shape in words.

    Its strides are a second array; an array that is not an input is written.
    """

    name: str
    kind: str
    comment: str
    is_input: bool = True
    is_strides: bool = False

    def declaration(self, prefix: str) -> str:
        """Return the member of the structure of a call."""
        if self.is_strides:
            return f"{prefix}_strides {self.name}"
        kind = f"{prefix}_{self.kind}" if self.kind in {"storage", "real"} else self.kind
        return f"{'const ' if self.is_input else ''}{kind} *{self.name}"


class Widening(NamedTuple):
    """The calls of `outer`, with projected units, that an export with H units serves; `embedding` maps to its arrays."""

    outer: ExportSource
    embedding: Embedding


@dataclass(frozen=True)
class ExportSource:
    """Context of an export's templates: the interface, the prefix of all names in C, and the kernels' text.

    `left_out`: features of the spec that the export lacks, a sentence each; `absent`: members that no call has.
    `multiplies_steps`: some kernels for GPUs take steps one by one, between products. `takes_logarithms`: the cell takes
    logarithms of states, so none is negative. `kept_states` are the states that a forward keeps for a backward. `projected_at`:
    the fewest steps at which a scan multiplies x itself. `widening`: the calls serve a cell with projected units.
    """

    name: str
    target: Target
    interface: Interface
    passes: tuple[str, ...]
    kept_states: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    multiplies_steps: bool = False
    takes_logarithms: bool = False
    projected_at: Sizes | None = None
    widening: Widening | None = None

    @property
    def macro(self) -> str:
        """The name in macros."""
        return self.name.upper()

    @property
    def served(self) -> ExportSource:
        """The export as its header declares it; a kernel with another interface may serve its calls."""
        return self.widening.outer if self.widening else self

    @property
    def runs(self) -> int:
        """How many directions there are."""
        return len(self.interface.runs_reversed)

    @property
    def has_backward(self) -> bool:
        """Whether gradients are exported."""
        return "backward" in self.passes

    @property
    def accumulates(self) -> bool:
        """Whether a backward multiplies outside of the recurrence."""
        return self.has_backward and bool(self.interface.input_size or self.interface.recurrent_gates)

    @property
    def multiplies(self) -> bool:
        """Whether anything is multiplied outside of the recurrence, in either direction of time."""
        return bool(self.interface.input_size) or self.accumulates or self.multiplies_steps

    @property
    def has_states(self) -> bool:
        """Whether a call may have the states after every step."""
        return "states" not in self.absent

    @property
    def has_cu_seqlens(self) -> bool:
        """Whether sequences may be packed."""
        return self.interface.layout == "BTD" and "cu_seqlens" not in self.absent

    @property
    def has_step(self) -> bool:
        """Whether single steps are exported: in one direction."""
        return self.runs == 1

    @property
    def state_widths(self) -> tuple[tuple[str, int], ...]:
        """Each state and its elements of one sequence."""
        interface = self.interface
        return tuple((name, math.prod(interface.shape_of_state(name, 1)[1:])) for name in interface.states)

    @property
    def is_dispatched(self) -> bool:
        """Whether a call chooses among compiled kernels, none of them for features that the interface leaves out."""
        return self.target == "cuda"

    @property
    def rounds(self) -> bool:
        """Whether arrays have fewer bits than the kernels' arithmetic."""
        return self.storage_type != self.real_type

    @property
    def other_kernels(self) -> tuple[str, ...]:
        """The kernels for GPUs outside the recurrence: of gradients, and of copies between arrays of other widths."""
        gradients = ("add_up", "add_parts", "store", "zero_beyond") if self.has_backward else ()
        return (*gradients, *(MOVES if self.widening else ()), *(MOVES_SLOTS if self.has_step else ()))

    @property
    def casts_states(self) -> bool:
        """Whether a caller may have saved states in another type than a backward reads."""
        is_kept = bool(self.kept_states) and not self.interface.recurrent_gates
        return self.rounds and is_kept and self.has_states

    @property
    def storage_type(self) -> str:
        """The type of x, R, weight and y in C."""
        return _STORAGE[self.interface.precision.storage_dtype][0]

    @property
    def storage_comment(self) -> str:
        """Comment that says which arrays have the storage type."""
        return f"x, weights and y: {_STORAGE[self.interface.precision.storage_dtype][1]}"

    @property
    def real_type(self) -> str:
        """The type of states, biases and parameters in C."""
        return _STORAGE[self.interface.precision.arithmetic_dtype][0]

    @property
    def required(self) -> tuple[str, ...]:
        """The arrays other than x and y that every call needs."""
        interface = self.interface
        weights = [*(["weight"] if interface.input_size else []), *self.matrices]
        named = [*(f"parameter_{name}" for name in interface.parameters), *(f"shared_{name}" for name in interface.shared)]
        return (*weights, *named, *(f"input_{name}" for name in interface.inputs))

    @property
    def matrices(self) -> tuple[str, ...]:
        """The arrays of R: one, or one for each gate where products have several shapes."""
        gates = self.interface.recurrent_gates
        return tuple(f"R_{gate}" for gate in gates) if self.interface.has_unequal_products else ("R",)[: len(gates)]

    @property
    def recurrent_biases(self) -> tuple[str, ...]:
        """The arrays of the recurrent bias: one, or one of each gate that has a bias."""
        interface = self.interface
        if not interface.has_unequal_biases:
            return ("recurrent_bias",) if interface.takes_recurrent_bias else ()
        return tuple(f"recurrent_bias_{gate}" for gate in interface.recurrent_gates if gate not in interface.unbiased)

    @property
    def sums(self) -> tuple[tuple[str, str, int, int], ...]:
        """The gradients that are sums over batch and time: the array, its kind, its first vector, and its number of vectors."""
        interface = self.interface
        gates, products = len(interface.gates), len(interface.recurrent_gates)
        sums = [("dbias", "real", 0, gates)]
        if interface.takes_recurrent_bias:
            sums.append(("drecurrent_bias", "real", gates, products))
        parameters = enumerate(interface.summed_parameters, gates + products)
        return (*sums, *((f"dparameter_{name}", "real", place, 1) for place, name in parameters))

    def axes(self, array: str) -> str:
        """Return the axes of x, of inputs S.*, or of y in the layout."""
        interface = self.interface
        axes = {"x": interface.x_axes, "shared": interface.shared_axes}
        if interface.vector_states:
            axes["states"] = interface.states_axes(interface.vector_states[0])
        return axes.get(array, Y_AXES[interface.layout])

    def contiguous(self, array: str, units: int = 0) -> list[tuple[str, str]]:
        """Return the stride along each axis of x or y without gaps, as expressions of `rows` and `time`.

        `units`: those of each direction of y, where they are not H.
        """
        interface, axes = self.interface, self.axes(array)
        channels = (units or interface.hidden_size) * (self.runs if array == "y" else 1)
        sizes = {"b": "rows", "t": "time", "d": "2", "g": str(len(interface.gates)), "h": str(channels)}
        sizes["i"] = str(interface.input_size)
        behind = [" * ".join(sizes[axis] for axis in axes[place + 1 :]) or "1" for place in range(len(axes))]
        return [(AXIS_WORDS[axis], f"(int64_t){stride}") for axis, stride in zip(axes, behind, strict=True)]

    @property
    def cleared(self) -> tuple[tuple[str, str, str], ...]:
        """The gradients that are sums over sequences: the array, its number of elements, and their kind."""
        interface = self.interface
        cleared = [(name, f"DIRECTIONS * {count} * HIDDEN", kind) for name, kind, _, count in self.sums]
        values = f"DIRECTIONS * HIDDEN * {interface.state_size}"
        cleared += [(f"dparameter_{name}", values, "real") for name in interface.vector_parameters]
        cleared += [("dR", "DIRECTIONS * RECURRENT_ROWS * HEAD_DIM", "storage")] if interface.recurrent_gates else []
        return (*cleared, *([("dweight", "PREACTIVATIONS * INPUTS", "storage")] if interface.input_size else []))

    @property
    def innermost(self) -> tuple[str, str, str]:
        """The axis along which elements of x and y follow each other: its name in strides, and in words elements and stride."""
        return ("time", "steps", "time") if self.interface.layout == "BDT" else ("channel", "channels", "channels")

    def kept_count(self, state: str) -> str:
        """Return in C the elements of a state over all steps; without the axis n as many as y, gaps included."""
        if state not in self.interface.vector_states:
            return "span_of(call)"
        return f"rows_of(call) * call->time * OUTPUTS * {self.interface.state_size}"

    def shape(self, axes: str, units: str = "H") -> str:
        """Return axes in words; `units`: those of the hidden axis."""
        interface = self.interface
        words = {"b": "B", "t": "T", "d": "2", "g": "G", "h": "H", "i": "I", "k": "K", "n": "n"}
        words["h"] = units if "g" in axes or not interface.directions else f"2 * {units}"
        return f"[{', '.join(words[axis] for axis in axes)}]"

    def _with_values(self, name: str, shape: str) -> str:
        return f"{shape[:-1]}, n]" if name in self._vectors else shape

    @property
    def _vectors(self) -> tuple[str, ...]:
        return (*self.interface.vector_states, *self.interface.vector_parameters)

    @cached_property
    def arrays(self) -> tuple[ExportArray, ...]:
        """The arrays of a call, in their order."""
        return tuple(self._arrays())

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The arrays of a call, further ones of a backward, and others that launches share, in the order of slots."""
        states = (f"states_{state}" for state in self.interface.states)
        named = (array.name for array in self.arrays if not array.is_strides)
        shared = SHARED if self.is_dispatched else ("saved_products", "counts")
        return tuple(dict.fromkeys((*named, *states, "projected", *shared)))

    def _arrays(self) -> list[ExportArray]:
        interface = self.interface
        two = "2, " if interface.directions else ""
        x, y = self.shape(self.axes("x")), self.shape(self.axes("y"), "P" if interface.output_size else "H")
        resets = "1" if self.is_dispatched else "not 0"
        arrays = [
            ExportArray("x", "storage", x),
            ExportArray("x_strides", "", "of x", is_strides=True),
        ]
        if interface.input_size:
            arrays.append(ExportArray("weight", "storage", f"[{two.replace(', ', ' * ')}G * H, I]"))
        arrays += [ExportArray(name, "storage", f"[{two}{shape}]") for name, shape in self._shapes_of_matrices()]
        arrays.append(ExportArray("bias", "real", f"[{two}G, H], or null"))
        arrays += [ExportArray(name, "real", f"[{two}{shape}], or null") for name, shape in self._shapes_of_biases()]
        arrays += [
            ExportArray(f"parameter_{name}", "real", self._with_values(name, f"[{two}{self._units(name)}]"))
            for name in interface.parameters
        ]
        arrays += [ExportArray(f"shared_{name}", "storage", f"{self.shape(self.axes('shared'))}") for name in interface.shared]
        as_y = f"{self.shape(self.axes('y'))} without gaps" if interface.output_size else f"{y}, strides as y"
        arrays += [ExportArray(f"input_{name}", "storage", as_y) for name in interface.inputs]
        state_of = {name: self._with_values(name, f"[{two}B, {self._units(name)}]") for name in interface.states}
        zeros = "or null: zeros" + ("; none is negative" if self.takes_logarithms else "")
        arrays += [ExportArray(f"initial_{name}", "real", f"{state_of[name]}, {zeros}") for name in interface.states]
        arrays += [
            ExportArray("resets", "uint8_t", f"[B, T], {resets}: states are 0 before that step; or null"),
            ExportArray("resets_strides", "", "of resets: batch and time", is_strides=True),
            ExportArray("lengths", "int64_t", "[B], or null: all have T steps"),
            self._cu_seqlens(),
            ExportArray("y", "storage", f"{y}, written by a forward", is_input=False),
            ExportArray("y_strides", "", f"of y, dy and states{' as y' if interface.projection_size else ''}", is_strides=True),
            *(ExportArray(f"final_{name}", "real", f"{state_of[name]}, or null", is_input=False) for name in interface.states),
        ]
        arrays += [
            ExportArray(f"states_{name}", "real", f"after every step, {self._as_y(name)}; or null", is_input=False)
            for name in interface.states
        ]
        arrays = [array for array in arrays if not self._is_absent(array.name.removesuffix("_strides"))]
        if not self.has_backward:
            return arrays
        saved = f"written by a forward for its backward, {self.name}_saved_bytes; null: no backward comes"
        arrays += [
            ExportArray("saved", "void", saved, is_input=False),
            ExportArray("dy", "storage", f"{y}, the gradient of y"),
            *(ExportArray(f"dfinal_{name}", "real", f"{state_of[name]}, or null: zeros") for name in interface.states),
            ExportArray("dx", "storage", f"{x}, or null", is_input=False),
            ExportArray("dx_strides", "", "of dx", is_strides=True),
        ]
        arrays += [
            ExportArray(f"d{name}", "storage", f"as {name}, or null", is_input=False)
            for name in ("weight", *self.matrices)
            if name in self.required
        ]
        summed = ("bias", *self.recurrent_biases, *(f"parameter_{name}" for name in interface.summed_parameters))
        arrays += [ExportArray(f"d{name}", "real", f"as {name}, or null", is_input=False) for name in summed]
        vectors = [*(("dparameter", "real", name) for name in interface.vector_parameters)]
        vectors += [("dshared", "storage", name) for name in interface.shared]
        vectors += [("dinput", "storage", name) for name in interface.inputs]
        arrays += [
            ExportArray(f"{prefix}_{name}", kind, f"as {prefix[1:]}_{name}, or null", is_input=False)
            for prefix, kind, name in vectors
        ]
        arrays += [
            ExportArray(f"dinitial_{name}", "real", f"{state_of[name]}, or null", is_input=False) for name in interface.states
        ]
        return arrays

    def _as_y(self, state: str) -> str:
        interface = self.interface
        if state in interface.vector_states:
            return f"{self.shape(self.axes('states'))} without gaps"
        is_as_y = interface.units_of_state(state) == interface.units_of_output
        return "as y" if is_as_y else f"{self.shape(self.axes('y'), self._units(state))} without gaps"

    def _units(self, name: str) -> str:
        """Return the units of a state or a parameter in words."""
        return "P" if name in (*self.interface.projected_states, *self.interface.projected_parameters) else "H"

    def _shapes_of_matrices(self) -> list[tuple[str, str]]:
        """Return the arrays of R with their shapes of one direction in words."""
        shapes, names = self.interface.product_shapes, self.matrices
        if not self.interface.products:
            return [(name, "Gr, N, D (out), D (in)") for name in names]
        words = [f"{heads}, {out} (out), {of} (in)" for heads, out, of in shapes]
        return [(name, word if len(names) > 1 else f"Gr, {word}") for name, word in zip(names, words, strict=False)]

    def _shapes_of_biases(self) -> list[tuple[str, str]]:
        """Return the arrays of the recurrent bias with their shapes of one direction in words."""
        interface, names = self.interface, self.recurrent_biases
        if not interface.has_unequal_biases:
            return [(name, f"Gr, {interface.product_shapes[0].rows if interface.products else 'H'}") for name in names]
        shapes = zip(interface.recurrent_gates, interface.product_shapes, strict=True)
        words = [f"{shape.heads}, {shape.out}" for gate, shape in shapes if gate not in interface.unbiased]
        return list(zip(names, words, strict=True))

    def _is_absent(self, array: str) -> bool:
        return array in self.absent or (array.startswith("states_") and "states" in self.absent)

    def _cu_seqlens(self) -> ExportArray:
        packed = "[B + 1], the first step of each sequence of x [1, T, ...], and T; or null"
        return ExportArray("cu_seqlens", "int64_t", packed if self.interface.layout == "BTD" else "null: needs layout BTD")


def left_out_of(interface: Interface) -> tuple[str, ...]:
    """Return the features that an interface's export lacks, a sentence each."""
    if len(interface.runs_reversed) == 1:
        return ()
    return ("a single step of a bidirectional spec cannot be exported, since it runs one way",)


def demand_whole(left_out: Sequence[str], partial: bool) -> None:
    """Raise BadInput where something is left out, unless a partial export was requested."""
    if left_out and not partial:
        raise BadInput(f"export: {left_out[0]}; export the rest with --partial, in Python partial=True")


def rendered(template: str, header: tuple[str, ...], **context: object) -> str:
    """Render a template of an export under comments of the lines `header`."""
    return environment().get_template(f"export/{template}").render(header=tuple(map(comment, header)), **context)
