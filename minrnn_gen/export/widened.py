"""Calls of an exported kernel with projected units by the kernel that serves it: arrays copied into wider ones, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from minrnn_gen.call.embedding import Embedding
from minrnn_gen.call.product_shapes import ProductShape
from minrnn_gen.codegen.gradients import MOVED_AXES
from minrnn_gen.export.emit_c import body_of, called_in, wrapped
from minrnn_gen.export.source import ExportSource, Widening

# Arguments of the kernel that copies: both arrays, and of each axis its size and strides.
MOVE_SLOTS = 2 + 3 * MOVED_AXES
# One axis: its size, and the strides along it in the call's array and in the wide one, as C.
Axis = tuple[int | str, int | str, int | str]


# Expressions that statements read from the calls.
_VALUES = {
    "batch": "const int64_t batch = wide->call.batch;",
    "rows": "const int64_t rows = rows_of(&wide->call);",
    "time": "const int64_t time = wide->call.time;",
    "span": "const int64_t span = span_of(&wide->call);",
    "narrow_y": "const {name}_strides narrow_y = narrow_strides(wide);",
    "wide_y": "const {name}_strides wide_y = y_strides_of(&wide->call);",
}


class Block(NamedTuple):
    """A copy between an array of the call and a wide one, from its element `first` on; without a `name` it is ones.

    The axes are in C, the innermost last.
    """

    name: str
    axes: tuple[Axis, ...]
    first: int = 0

    @property
    def in_c(self) -> str:
        """The sizes and both strides as a structure."""
        axes = ((1, 0, 0),) * (MOVED_AXES - len(self.axes)) + self.axes
        members = ", ".join("{" + ", ".join(map(str, numbers)) + "}" for numbers in zip(*axes, strict=True))
        return f"(struct Block){{{members}}}"


class WideArray(NamedTuple):
    """An array of the serving kernel, with `size` elements in C, and the call's arrays in it; 0 beyond them.

    It is present where one of these is, or always.
    """

    name: str
    kind: str
    size: str
    blocks: tuple[Block, ...]
    is_optional: bool = True

    @property
    def present(self) -> str:
        """The condition in C that it is present; empty where it always is."""
        return " || ".join(f"wide->narrow->{block.name}" for block in self.blocks) if self.is_optional else ""


def widened(source: ExportSource, name: str, embedding: Embedding | None) -> ExportSource:
    """Return the export of a kernel served by `source`; `source` itself where nothing is embedded."""
    if embedding is None:
        return source
    outer = replace(source, name=name, interface=embedding.outer)
    return replace(source, name=f"{name}_wide", widening=Widening(outer, embedding))


def wide_code(source: ExportSource) -> WideCode | None:
    """Return the code that serves calls by wider arrays; None where no array is wider."""
    return None if source.widening is None else WideCode(*source.widening)


@dataclass(frozen=True)
class WideCode:
    """How calls of `outer`, with P units, are served: by arrays with H units in a workspace, laid out by `embedding`.

    Arrays without P units are passed unchanged.
    """

    outer: ExportSource
    embedding: Embedding

    @property
    def axes(self) -> int:
        """How many axes a copy has."""
        return MOVED_AXES

    @property
    def calls(self) -> frozenset[str]:
        """The functions that these call."""
        return called_in([*self.functions.values()])

    @property
    def absent_in_a_step(self) -> list[str]:
        """The members of a call that a single step does not read."""
        known = [array.name for array in self.outer.arrays]
        return [name for name in known if name in ("resets", "cu_seqlens") or name.startswith("states_")]

    @property
    def has_outputs(self) -> bool:
        """Whether any array with P units is written after every step."""
        return bool(self._outputs)

    def passed_on(self, inner: ExportSource) -> list[str]:
        """Return the members of a call that both kernels take unchanged."""
        arrays = (*self._inputs, *self._incoming, *self._outputs, *self._final, *self._gradients)
        own = {*(array.name for array in arrays), *(["y_strides"] if self.embedding.outer.output_size else []), "saved"}
        known = {array.name for array in self.outer.arrays}
        return [array.name for array in inner.arrays if array.name in known - own]

    @cached_property
    def functions(self) -> dict[str, str]:
        """The functions of a wide call by name: they lay out its arrays' rooms, and copy into and out of them."""
        bodies = {
            "lay_out_call": (*self._rooms(self._outputs, "wide->outputs"), *self._rooms(self._inputs)),
            "lay_out_final": self._rooms(self._final),
            "widen_inputs": self._widened(self._inputs),
            "cut_results": self._cut((*self._outputs, *self._final)),
        }
        if self.outer.has_backward:
            bodies |= {
                "lay_out_gradients": self._rooms((*self._incoming, *self._gradients)),
                "widen_incoming": self._widened(self._incoming),
                "cut_gradients": self._cut(self._gradients),
            }
        return {name: self._body(statements) for name, statements in bodies.items()}

    def _body(self, statements: Iterable[str]) -> str:
        lines = [wrapped(statement) for statement in statements]
        used = {*re.findall(r"\w+", "\n".join(lines))}
        values = [value.format(name=self.outer.name) for name, value in _VALUES.items() if name in used]
        return body_of([*values, *lines] or ["(void)wide;"])

    def _rooms(self, arrays: Iterable[WideArray], room: str = "&wide->room") -> Iterator[str]:
        for array in arrays:
            target = f"wide->call.{array.name}"
            if array.present:
                yield f"if ({array.present})"
            yield f"{'    ' if array.present else ''}{target} = room_of({room}, {array.size}, sizeof(*{target}));"

    def _widened(self, arrays: Iterable[WideArray]) -> Iterator[str]:
        for array in arrays:
            target = f"wide->call.{array.name}"
            yield f"clear(wide, {target}, {array.size}, sizeof(*{target}));"
            for block in array.blocks:
                if block.name:
                    yield f"widen(wide, {self._at(array, block)}, wide->narrow->{block.name}, {self._copied(array, block)});"
                else:
                    yield f"mark(wide, {target}, {block.in_c});"

    def _cut(self, arrays: Iterable[WideArray]) -> Iterator[str]:
        for array in arrays:
            for block in array.blocks:
                yield f"cut(wide, {self._at(array, block)}, wide->narrow->{block.name}, {self._copied(array, block)});"

    def _at(self, array: WideArray, block: Block) -> str:
        first = f", {block.first}" if block.first else ", 0"
        return f"wide->call.{array.name}{first}"

    def _copied(self, array: WideArray, block: Block) -> str:
        return f"{int(array.kind == 'real')}, {block.in_c}"

    @property
    def _inputs(self) -> tuple[WideArray, ...]:
        """The arrays that all passes read."""
        return (*self._weights(""), *self._mask(), *self._states("initial"))

    @property
    def _incoming(self) -> tuple[WideArray, ...]:
        """The gradients that a backward reads."""
        return (*self._over_time("dy"), *self._states("dfinal"))

    @property
    def _outputs(self) -> tuple[WideArray, ...]:
        """The arrays that a forward writes after every step, and its backward reads."""
        states = self.embedding.outer.projected_states if self.outer.has_states else ()
        return (*self._over_time("y"), *(self._after_steps(f"states_{name}", "real") for name in states))

    @property
    def _final(self) -> tuple[WideArray, ...]:
        return tuple(self._states("final"))

    @property
    def _gradients(self) -> tuple[WideArray, ...]:
        return (*self._weights("d"), *self._states("dinitial"))

    @property
    def _runs(self) -> int:
        return self.outer.runs

    def _weights(self, prefix: str) -> Iterator[WideArray]:
        inner = self.embedding.inner
        if {*self.embedding.outer.product_shapes} != {(inner.heads, inner.head_dim, inner.head_dim)}:
            yield self._matrices(prefix)
        if self.embedding.inner.takes_recurrent_bias:
            yield self._biases(prefix)
        for name in self.embedding.outer.projected_parameters:
            axes = (self._runs, self._narrow, self._wide), *self._units()
            own = f"{prefix}parameter_{name}"
            yield WideArray(own, "real", str(self._runs * self._wide), (Block(own, axes),), is_optional=bool(prefix))

    def _matrices(self, prefix: str) -> WideArray:
        outer, inner = self.embedding.outer, self.embedding.inner
        shapes, square = outer.product_shapes, inner.head_dim * inner.hidden_size
        of_run, blocks = len(shapes) * square, []
        for place, (name, shape) in enumerate(zip(self.outer.matrices, shapes, strict=False)):
            of_gate = self._axes_of(shape)
            if len(self.outer.matrices) > 1:
                axes: tuple[Axis, ...] = (self._runs, shape.elements, of_run), *of_gate
            else:
                elements = shape.elements
                axes = (self._runs, len(shapes) * elements, of_run), (len(shapes), elements, square), *of_gate
            blocks.append(Block(f"{prefix}{name}", axes, place * square))
        return WideArray(f"{prefix}R", "storage", str(self._runs * of_run), tuple(blocks), is_optional=bool(prefix))

    def _axes_of(self, shape: ProductShape) -> tuple[Axis, ...]:
        """Return the axes of the matrices of a product in those of the kernel that serves it."""
        width, of_head = self.embedding.inner.head_dim, self._of_head
        if shape.heads == 1 and self.embedding.outer.heads > 1:
            groups = self.embedding.outer.heads
            out, of = shape.out // groups, shape.of // groups
            rows = (groups, out * shape.of, of_head * width), (out, shape.of, width)
            return *rows, (groups, of, of_head), (of, 1, 1)
        # Products of a head for a kernel with one head are blocks along the diagonal of its matrix.
        between = width * width if shape.heads == self.embedding.inner.heads else of_head * (width + 1)
        return (shape.heads, shape.out * shape.of, between), (shape.out, shape.of, width), (shape.of, 1, 1)

    @property
    def _of_head(self) -> int:
        """How many units of the serving kernel hold one head of the cell."""
        return self._wide // self.embedding.outer.heads

    def _biases(self, prefix: str) -> WideArray:
        outer = self.embedding.outer
        gates, heads = outer.recurrent_gates, outer.heads
        of_run, blocks, names = len(gates) * self._wide, [], iter(self.outer.recurrent_biases)
        for place, (gate, shape) in enumerate(zip(gates, outer.product_shapes, strict=True)):
            of_gate = (heads, shape.rows // heads, self._of_head), (shape.rows // heads, 1, 1)
            if not outer.has_unequal_biases:
                rows = shape.rows
                axes: tuple[Axis, ...] = (self._runs, len(gates) * rows, of_run), (len(gates), rows, self._wide), *of_gate
                blocks = [Block(f"{prefix}recurrent_bias", axes)]
            elif gate not in outer.unbiased:
                axes = (self._runs, shape.rows, of_run), *of_gate
                blocks.append(Block(f"{prefix}{next(names)}", axes, place * self._wide))
        return WideArray(f"{prefix}recurrent_bias", "real", str(self._runs * of_run), tuple(blocks))

    def _mask(self) -> Iterator[WideArray]:
        if self.embedding.mask is not None:
            block = Block("", ((self._runs, 0, self._wide), *self._units()))
            yield WideArray(
                f"parameter_{self.embedding.mask}", "real", str(self._runs * self._wide), (block,), is_optional=False
            )

    def _states(self, prefix: str) -> Iterator[WideArray]:
        narrow, wide = self._narrow, self._wide
        for name in self.embedding.outer.projected_states:
            of_states = (self._runs, f"batch * {narrow}", f"batch * {wide}"), ("batch", narrow, wide), *self._units()
            own = f"{prefix}_{name}"
            yield WideArray(own, "real", f"{self._runs * wide} * batch", (Block(own, of_states),))

    def _over_time(self, name: str) -> Iterator[WideArray]:
        if self.embedding.outer.output_size:
            yield self._after_steps(name, "storage")

    def _after_steps(self, name: str, kind: str) -> WideArray:
        axes: list[Axis] = [("rows", "narrow_y.batch", "wide_y.batch"), ("time", "narrow_y.time", "wide_y.time")]
        for size, of_call, of_wide in ((self._runs, self._narrow, self._wide), *self._units()):
            axes.append((size, _times(of_call, "narrow_y.channel"), _times(of_wide, "wide_y.channel")))
        return WideArray(name, kind, "span", (Block(name, tuple(axes)),), is_optional=name != "y")

    @property
    def _narrow(self) -> int:
        return self.embedding.outer.projection_size

    @property
    def _wide(self) -> int:
        return self.embedding.inner.hidden_size

    def _units(self) -> tuple[Axis, Axis]:
        """Return the axes of heads and their units: of each head the first ones are the P units."""
        heads = self.embedding.outer.heads
        units = self._narrow // heads
        return (heads, units, self._of_head), (units, 1, 1)


def _times(count: int | str, stride: str) -> str:
    return stride if count == 1 else f"{count} * {stride}"
