"""Blocks of states that feed each other, each an affine map of its own previous values: consecutive scans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.polynomials import NotAffine, Polynomials, plus
from minrnn_gen.cell.printing import shown_equation

BlockForm = Literal["memory", "scalar", "rotation", "dual", "full"]

STATES_MOST = 4
WIDE_STATES_MOST = 2
SCANS_MOST = 3


@dataclass(frozen=True)
class Block:
    """States that depend on each other: s[t] = A s[t-1] + b, with A and b known before the scan.

    `a` are the rows of A, `b` one value per state; both read gates, parameters, inputs and states of earlier blocks. `form`:
    "memory" has A = 0, so it reads no previous value of its own; "rotation" is [[p, -q], [q, p]], "dual" is [[p, 0], [q, p]]
    with the states in this order. `is_constant`: A is made of parameters and numbers. `level` counts the consecutive scans up
    to this block. `reads` are the values of earlier blocks in A and in b.
    """

    states: tuple[str, ...]
    a: tuple[tuple[Expr, ...], ...]
    b: tuple[Expr, ...]
    form: BlockForm
    is_constant: bool
    level: int
    reads: tuple[tuple[Symbol, ...], tuple[Symbol, ...]]

    @property
    def is_scan(self) -> bool:
        """Whether its steps wait for each other."""
        return self.form != "memory"


def partition(cell: Cell) -> tuple[tuple[str, ...], ...]:
    """Return the states in blocks that depend on each other, earlier blocks first.

    A state depends on another if the other's previous value reaches its next value, through any values of the step.
    """
    reached = _reached_by(cell, {ex.previous(state): {state} for state in cell.states})
    reads = {state: reached[ex.current(state)] for state in cell.states}
    for middle in cell.states:  # Warshall's transitive closure
        for state in cell.states:
            if middle in reads[state]:
                reads[state] |= reads[middle]
    blocks: list[tuple[str, ...]] = []
    waiting = list(cell.states)
    while waiting:
        first = next(state for state in waiting if all(state in reads[other] for other in reads[state] if other in waiting))
        block = tuple(state for state in waiting if state == first or (state in reads[first] and first in reads[state]))
        blocks.append(block)
        waiting = [state for state in waiting if state not in block]
    return tuple(blocks)


def affine_blocks(cell: Cell) -> tuple[Block, ...]:
    """Return the blocks of a cell without products, each proved affine; raises `NotAffine` with a clause that says why not."""
    blocks: list[Block] = []
    for states in partition(cell):
        block = _proved(cell, states, blocks)
        if block.level > SCANS_MOST:
            scans = f"{block.level} scans, one after the other"
            raise NotAffine(f"{states[0]}[t] needs {scans}; at most {SCANS_MOST} may wait for each other")
        blocks.append(block)
    return tuple(blocks)


def dual_blocks(cell: Cell) -> tuple[Block, ...]:
    """Return pairs of states, each a scan over dual numbers; empty for a cell whose states are no such pairs.

    The second state of a pair is a scan after the first one's, with the same coefficient, as a state's tangent is.
    """
    blocks: list[Block] = []
    waiting = [states[0] for states in partition(cell) if len(states) == 1]
    if len(waiting) != len(cell.states) or not set(waiting).isdisjoint(cell.vectors.states):
        return ()
    while waiting:
        first, *others = waiting
        pairs = ((other, _pair(cell, (first, other))) for other in others)
        partner = next(((other, block) for other, block in pairs if block is not None), None)
        if partner is None:
            return ()
        blocks.append(partner[1])
        waiting = [state for state in others if state != partner[0]]
    return tuple(blocks)


def _pair(cell: Cell, states: tuple[str, str]) -> Block | None:
    try:
        block = _proved(cell, states, [])
    except NotAffine:
        return None
    return block if block.form == "dual" and block.states == states and block.a[1][0] != ex.ZERO else None


def _proved(cell: Cell, states: tuple[str, ...], earlier: list[Block]) -> Block:
    is_wide = not set(states).isdisjoint(cell.vectors.states)
    most = WIDE_STATES_MOST if is_wide else STATES_MOST
    if len(states) > most:
        kind = " with n values per channel" if is_wide else ""
        raise NotAffine(f"{len(states)} states{kind}, {', '.join(states)}, depend on each other; at most {most} may")
    polynomials = Polynomials(cell, states, [state for block in earlier for state in block.states])
    rows = [polynomials.affine(state, states) for state in states]
    a = tuple(tuple(ex.ZERO if polynomials.is_zero(entry) else entry for entry in row) for row, _ in rows)
    states, a, b, form = _in_form(states, a, tuple(b for _, b in rows), polynomials)
    expanded = Expanded(polynomials.lets)
    of_a, of_b = (expanded.symbols(values) for values in ([entry for row in a for entry in row], b))
    known = {symbol: block.level for block in earlier for state in block.states for symbol in _values_of(state)}
    reads = tuple(symbol for symbol in of_a if symbol in known), tuple(symbol for symbol in of_b if symbol in known)
    level = max((known[symbol] for symbol in (*reads[0], *reads[1])), default=0) + (form != "memory")
    is_constant = set(of_a) <= {ex.named(parameter) for parameter in cell.parameters}
    return Block(states, a, b, form, is_constant, level, reads)


def _in_form(
    states: tuple[str, ...], a: tuple[tuple[Expr, ...], ...], b: tuple[Expr, ...], polynomials: Polynomials
) -> tuple[tuple[str, ...], tuple[tuple[Expr, ...], ...], tuple[Expr, ...], BlockForm]:
    """Return states, A, b and the form of A; a dual number begins with the state that does not read the other."""
    if all(entry == ex.ZERO for row in a for entry in row):
        return states, a, b, "memory"
    if len(states) == 1:
        return states, a, b, "scalar"
    if len(states) > 2:
        return states, a, b, "full"
    (first, upper), (lower, last) = a
    is_zero, lets = polynomials.is_zero, polynomials.lets
    named_alike = lets.get(first, first) == lets.get(last, last)  # type: ignore[call-overload]
    if not named_alike and not is_zero(ex.subtract(first, last)):  # algebra is imported only where it is needed
        return states, a, b, "full"
    if upper == ex.ZERO:
        return states, a, b, "dual"
    if lower == ex.ZERO:
        return states[::-1], ((last, lower), (upper, first)), b[::-1], "dual"
    is_rotation = ex.negate(upper) == lower or ex.negate(lower) == upper or is_zero(plus(upper, lower))
    return states, a, b, "rotation" if is_rotation else "full"


def _values_of(state: str) -> tuple[Symbol, Symbol]:
    return ex.previous(state), ex.current(state)


def _reached_by(cell: Cell, sources: Mapping[Symbol, set[str]]) -> dict[Symbol, set[str]]:
    """Return the names of the sources that reach each value of a step."""
    reached = {symbol: set(names) for symbol, names in sources.items()}
    for symbol, expression in cell.definitions:
        reached[symbol] = set().union(*(reached.get(used, ()) for used in ex.symbols_of(expression)))
    return reached


class Expanded:
    """The symbols in values, with named values replaced by the symbols of their definitions."""

    def __init__(self, lets: Mapping[Symbol, Expr]) -> None:
        self._lets = lets

    def symbols(self, values: Iterable[Expr]) -> tuple[Symbol, ...]:
        """Return the symbols of `values`, each once, in order of first use."""
        symbols: dict[Symbol, None] = {}
        waiting, followed = list(values)[::-1], set[Symbol]()
        while waiting:
            for symbol in ex.symbols_of(waiting.pop()):
                if symbol not in self._lets:
                    symbols[symbol] = None
                elif symbol not in followed:
                    followed.add(symbol)
                    waiting.append(self._lets[symbol])
        return tuple(symbols)


def shown_blocks(blocks: tuple[Block, ...]) -> str:
    """Return the proved facts about blocks, in sentences."""
    scans = sorted((block for block in blocks if block.is_scan), key=lambda block: block.level)
    levels = sorted({block.level for block in scans})
    texts = ["; ".join(_shown(block) for block in scans if block.level == level) for level in levels]
    sentences = [f"{'scan after scan' if len(levels) > 1 else 'block-affine'}: {'; then '.join(texts)}."] if scans else []
    for block in scans:
        if len(block.states) > 1:
            form = f"{block.form}{'' if block.form == 'rotation' else ' map'}"
            sentences.append(f"A of {_joined(block.states)} is a {'constant ' if block.is_constant else ''}{form}.")
    memory = [state for block in blocks if not block.is_scan for state in block.states]
    if memory:
        prefix = "" if scans else "block-affine: "
        sentences.append(f"{prefix}{_joined(memory)} {'is' if len(memory) == 1 else 'are'} finite memory.")
    return " ".join(sentences)


def _shown(block: Block) -> str:
    names, (of_a, of_b) = block.states, block.reads
    if len(names) == 1:
        a, b = block.a[0][0], block.b[0]
        known = {"a": of_a, "b": of_b}
        shown_a, shown_b = (
            ex.named(name) if read else value for (name, read), value in zip(known.items(), (a, b), strict=True)
        )
        text = f"{names[0]}[t] = {shown_equation(plus(ex.multiply(shown_a, ex.previous(names[0])), shown_b))}"
    else:
        known = {"A": of_a, "b": of_b}
        vector = f"({', '.join(names)})"
        rows = ", ".join(f"[{', '.join(map(shown_equation, row))}]" for row in block.a)
        text = f"{vector}[t] = A {vector}[t-1] + b with A = [{rows}], free of {'both' if len(names) == 2 else 'all of them'}"
    readers = [name for name, read in known.items() if read]
    if readers:
        symbols = dict.fromkeys((*of_a, *of_b))
        verb = "reads" if len(readers) == 1 else "read"
        text += f", where {' and '.join(readers)} {verb} {_joined([symbol.name for symbol in symbols])}"
    return text


def _joined(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
