"""Programs of calls as C: functions that lay out memory and launch, and rows of the numbers in which programs differ."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from minrnn_gen.export.describe import Paths, Room
from minrnn_gen.export.source import SHARED, ExportSource
from minrnn_gen.program import data
from minrnn_gen.program.data import At
from minrnn_gen.program.number import Decisions, Expr, bounds

_WIDTH, _INDENT = 120, "    "
_STRIDES = ("batch", "time", "direction", "gate", "channel")
# Symbols of a program, and their expressions in C.
_SYMBOLS = {
    "batch": "run->call->batch",
    "rows": "rows_of(run->call)",
    "time": "run->call->time",
    "span": "span_of(run->call)",
    "steps": "run->steps",
    "has_lengths": "run->call->lengths != 0",
    "has_initial": "any_initial(run)",
    "lies_whole": "is_whole(run)",
    "is_packed": "CU_SEQLENS(run->call) != 0",
    "has_wide_states": "state_bytes(run->states_out) > (int64_t)sizeof({name}_storage)",
    "most_threads": "run->kernel->threads",
    **{name: f"run->schedule.{name}" for name in ("threads", "splits_units", "packs")},
    **{f"{array}_{axis}": f"run->{array}_strides.{axis}" for array in ("x", "y", "dx", "resets") for axis in _STRIDES},
}
_SYMBOL = re.compile(rf"(?<![.>\w])({'|'.join(_SYMBOLS)})\b")


@dataclass
class Functions:
    """The functions of an export, each once, and its calls: a function and a row of numbers for each."""

    source: ExportSource
    texts: list[str] = field(default_factory=list)
    slots_most: int = 0
    rooms_most: int = 0

    def serving(self, programs: Sequence[Paths]) -> list[tuple[int, tuple[int, ...]]]:
        """Print one function for programs that differ only in numbers; return each program's function and numbers."""
        forms: list[list[int]] = []
        for number, program in enumerate(programs):
            for form in forms:
                if _in_common([*(programs[at] for at in form), program]):
                    form.append(number)
                    break
            else:
                forms.append([number])
        served: dict[int, tuple[int, tuple[int, ...]]] = {}
        for form in forms:
            common, rows = _in_common([programs[at] for at in form]) or (programs[form[0]], [])
            function = self._function(common)
            served |= {at: (function, row) for at, row in zip(form, rows, strict=True)}
        return [served[number] for number in range(len(programs))]

    def _function(self, program: Paths) -> int:
        printer = Printer(self.source)
        text = printer.body(program)
        self.slots_most = max(self.slots_most, printer.slots_most)
        self.rooms_most = max(self.rooms_most, len(printer.rooms))
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)


class _Unlike(Exception):
    """Programs differ in more than numbers."""


def _in_common(programs: Sequence[Paths]) -> tuple[Paths, list[tuple[int, ...]]] | None:
    """Return the common form of programs, with symbols k[..] for numbers that differ, and each program's numbers; or None."""
    columns: list[tuple[int, ...]] = []
    try:
        common = _merged(tuple(programs), columns)
    except _Unlike:
        return None
    return common, [tuple(column[at] for column in columns) for at in range(len(programs))]


def _merged(parts: tuple[Any, ...], columns: list[tuple[int, ...]]) -> Any:
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        raise _Unlike
    if type(first) is int:
        if len(set(parts)) > 1:
            if parts not in columns:
                columns.append(parts)
            return Expr("symbol", (f"k[{columns.index(parts)}]",), min(parts), max(parts))
    elif isinstance(first, Expr):
        operands = _merged(tuple((part.operator, part.operands) for part in parts), columns)[1]
        return Expr(first.operator, operands, min(part.low for part in parts), max(part.high for part in parts))
    elif data.has_members(first):
        members = [data.members_of(part) for part in parts]
        if len(set(map(len, members))) > 1:
            raise _Unlike
        merged = iter([_merged(part, columns) for part in zip(*members, strict=True)])
        return data.changed(first, lambda _: next(merged))
    elif any(part != first for part in parts):
        raise _Unlike
    return first


class Printer:
    """One function; a room that paths have in common is the same room in all of them."""

    head: Sequence[str] = ("uint64_t *const at = run->at;",)
    takes_numbers = True

    def __init__(self, source: ExportSource) -> None:
        self._export, self._names = source, dict[int, str]()
        self.rooms: dict[tuple[str, int], int] = {}
        self.slots_most = 0

    def body(self, program: Paths) -> str:
        """Return the body of a function of a run, and of k, a row of numbers."""
        paths = [(decisions, [*self._rooms(rooms), *self._path(operations)]) for decisions, (rooms, operations) in program]
        return self.with_symbols(joined(paths), self.head)

    def with_symbols(self, lines: Sequence[str], head: Sequence[str] = ()) -> str:
        """Return lines of a body after the values of their symbols."""
        body = "\n".join(lines)
        used = dict.fromkeys(_SYMBOL.findall(body))
        values = [f"const int64_t {symbol} = {_SYMBOLS[symbol].format(name=self._export.name)};" for symbol in used]
        unused = ["(void)k;"] if self.takes_numbers and "k[" not in body else []
        return body_of([*head, *values, *unused, body])

    def _rooms(self, rooms: tuple[Room, ...], source: str = "&run->room") -> Iterator[str]:
        slots, seen = self._export.slots, dict[str, int]()
        self._names = {slot: f"at[AT_{name}]" for slot, name in enumerate(slots)}
        self._absent = {slot for slot, name in enumerate(slots) if name not in {"x", "y", "dy", "R", "weight"}}
        for room in rooms:
            size = number_in_c(room.size_bytes)
            if room.slot >= len(slots):
                seen[size] = seen.get(size, 0) + 1
                place = self.rooms.setdefault((size, seen[size]), len(self.rooms))
                self._names[room.slot] = f"at[ROOMS + {place}]"
            name = self._names[room.slot]
            wanted = [self._names[slot] for slot in room.of]
            if wanted:
                self._absent.add(room.slot)
            elif room.slot < len(slots) and slots[room.slot] not in SHARED:
                wanted = [f"!{name}"]
            condition = f"if ({' || '.join(wanted)}) " if wanted else ""
            yield f"{condition}{name} = take({source}, {size});"

    def _path(self, operations: tuple[Any, ...]) -> Iterator[str]:
        yield "if (!begins(run))\n    return;"
        yield from map(self._operation, operations)

    def _at(self, place: At) -> str:
        assert place.slot is not None, "another process does not have this one's addresses"
        name, offset = self._names[place.slot], place.offset_bytes
        if not isinstance(offset, Expr) and not offset:
            return name
        if place.slot in self._absent:
            return f"here({name}, {number_in_c(offset)})"
        return f"{name} + {number_in_c(offset, is_operand=True)}"

    def _source(self, source: Any) -> str:
        match source:
            case At():
                return self._at(source)
            case data.Mask():
                return f"float32_vectors(at, {source.bits})"
        return number_in_c(source)

    def _matrix(self, matrix: data.Matrix) -> str:
        numbers = ", ".join(map(number_in_c, (matrix.row, matrix.stride, int(matrix.transposed))))
        storage = self._export.interface.precision.storage_dtype
        return f"{{{self._at(matrix.at)}, {'STORAGE_TYPE' if matrix.dtype == storage else 'REAL_TYPE'}, {numbers}}}"

    def _operation(self, operation: Any) -> str:
        match operation:
            case data.Loop():
                ends = ", ".join(map(number_in_c, (operation.stop, operation.step)))
                head = (
                    f"for (int64_t {operation.index} = {number_in_c(operation.start)}; goes_on(run, {operation.index}, {ends});"
                )
                body = textwrap.indent("\n".join(map(self._operation, operation.body)), _INDENT)
                return f"{head} {operation.index} += {number_in_c(operation.step)}) {{\n{body}\n}}"
            case data.Launch():
                slots = [self._source(argument) for argument in operation.arguments]
                self.slots_most = max(self.slots_most, len(slots))
                kernel = f"{number_in_c(operation.kernel.key)}, {int(operation.kernel.part == '_step')}"
                return _call(
                    "launch",
                    kernel,
                    number_in_c(operation.blocks),
                    f"(const uint64_t[]){{{', '.join(slots)}}}",
                    str(len(slots)),
                )
            case data.Multiply():
                matrices = map(self._matrix, (operation.left, operation.right, operation.result))
                sizes = map(number_in_c, (operation.m, operation.n, operation.k))
                product = ", ".join([*sizes, *matrices, number_in_c(operation.batch), str(int(operation.adds))])
                return _call("multiply", f"&(const struct Product){{{product}}}")
            case data.CopyHeadsFirst():
                return _call("pack_R", self._at(operation.source), self._at(operation.target))
            case data.ZeroBeyond():
                return _call("zero_beyond", self._at(operation.target))
            case data.Called():
                return _call(operation.function, *map(self._source, operation.arguments))
        raise TypeError(f"no C does {operation!r}")


def body_of(lines: Sequence[str]) -> str:
    """Return lines as a body has them."""
    return textwrap.indent("\n".join(lines), _INDENT)


def _call(name: str, *arguments: str) -> str:
    return wrapped(f"{name}(run, {', '.join(arguments)});")


def wrapped(text: str) -> str:
    """Return a statement in lines that are no longer than a page is wide."""
    return "\n".join(textwrap.wrap(text, _WIDTH, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False))


def called_in(texts: Sequence[str]) -> frozenset[str]:
    """Return the names of functions that texts call."""
    return frozenset(re.findall(r"\b(\w+)\(", "\n".join(texts)))


def joined(program: Sequence[tuple[Decisions, list[str]]], depth: int = 0) -> list[str]:
    """Return the lines of all paths; lines of only some paths come under the conditions that lead to them."""
    if len(program) == 1:
        return program[0][1]
    condition = program[0][0][depth][0]
    sides = {side: [path for path in program if path[0][depth][1] is side] for side in (True, False)}
    holds, fails = (joined(sides[side], depth + 1) for side in (True, False))
    lines: list[str] = []
    for kind, first, last, begin, end in SequenceMatcher(None, holds, fails, autojunk=False).get_opcodes():
        if kind == "equal":
            lines += holds[first:last]
        elif first == last:
            lines.append(_block(_negated(condition), fails[begin:end]))
        else:
            other = f"\nelse {_body(fails[begin:end])}" if begin < end else ""
            lines.append(_block(condition, holds[first:last]) + other)
    return lines


def _negated(condition: Any) -> Expr:
    return Expr("not", (condition,), 0, 1)


def _block(condition: Expr, lines: list[str]) -> str:
    return f"{wrapped(f'if ({number_in_c(condition)})')} {_body(lines)}"


def _body(lines: list[str]) -> str:
    inner = textwrap.indent("\n".join(lines), _INDENT)
    return f"{{\n{inner}\n}}"


def _is_zero(condition: Expr) -> bool:
    return condition.operator == "==" and not isinstance(condition.operands[1], Expr) and condition.operands[1] == 0


def number_in_c(number: Any, is_operand: bool = False) -> str:
    """Print a number in C, in brackets where needed; C's division truncates, which rounds nonnegative numbers down."""
    if isinstance(number, float):
        return repr(number)
    if not isinstance(number, Expr):
        return str(int(number))
    operator, operands = number.operator, number.operands
    match operator:
        case "symbol":
            return str(operands[0])
        case "resident":
            return f"run->kernel->resident_blocks[{number_in_c(operands[0])}]"
        case "not":
            condition = operands[0]
            return number_in_c(condition.operands[0]) if _is_zero(condition) else f"!{number_in_c(condition, is_operand=True)}"
        case "==" if _is_zero(number):
            return f"!{number_in_c(operands[0], is_operand=True)}"
        case "up" | "min" | "max" | "overlapped":
            name = {"up": "divided_up", "min": "least", "max": "most"}.get(operator, operator)
            return f"{name}({', '.join(map(number_in_c, operands))})"
    if operator == "//":
        assert bounds(operands[0])[0] >= 0, "C rounds towards 0, which is down only of what is not negative"
    text = f" {'/' if operator == '//' else operator} ".join(number_in_c(operand, is_operand=True) for operand in operands)
    return f"({text})" if is_operand else text
