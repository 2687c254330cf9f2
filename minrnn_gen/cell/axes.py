"""The axis n of a cell: which of its names have n values per channel, and which operations combine them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr
from minrnn_gen.cell.files import CellFile, CellSource, named_with
from minrnn_gen.cell.functions import Sum
from minrnn_gen.cell.liveness import names_in_order
from minrnn_gen.cell.printing import equation_text
from minrnn_gen.cell.projected_units import ProjectedUnits
from minrnn_gen.cell.projection import Projection
from minrnn_gen.cell.syntax import Place
from minrnn_gen.errors import BadInput, nearest_name


@dataclass(frozen=True)
class Vectors:
    """The names of a cell that have the axis n; inputs S.* all have it."""

    states: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.states or self.parameters or self.shared)

    def narrow(self, states: Sequence[str]) -> tuple[str, ...]:
        """Return the states of a cell that have one value per channel."""
        return tuple(name for name in states if name not in self.states)


NO_VECTORS = Vectors()


class Axes:
    """Which values have the axis n, as a cell is read from the top."""

    def __init__(self, file: CellFile) -> None:
        self.units = ProjectedUnits(file)
        self._states, self._shared = named_with("n", file.states), file.shared or ()
        self._wide = {ex.named(name) for name in named_with("n", file.parameters)}
        self._wide |= {ex.shared(name) for name in self._shared}
        self._wide |= {symbol for name in self._states for symbol in (ex.previous(name), ex.current(name))}

    def is_wide(self, expression: Expr) -> bool:
        """Whether `expression` has n values per channel."""
        name, operands = ex.operation(expression)
        if name == "symbol":
            return expression in self._wide
        return not isinstance(expression, Sum) and any(map(self.is_wide, operands))

    def define(self, place: Place, name: str, expression: Expr) -> None:
        """Set the axis of a defined symbol; raises `BadInput` for a state whose equation has another axis."""
        self.units.define(place, name, expression)
        is_wide, state = self.is_wide(expression), name.removesuffix("[t]")
        if state == name:
            if is_wide:
                self._wide.add(ex.named(name))
        elif is_wide and state not in self._states:
            raise place.error(
                f"{name} is one value per channel, but its expression has the axis n; add over n with sum(…), or list the "
                f"state as `states: {{{state}: n}}`"
            )
        elif not is_wide and state in self._states:
            raise place.error(
                f"{name} has n values per channel, but its expression lacks the axis n; use a name that has it, such as "
                f"{state}[t-1], a parameter of [H, n] or S.<name>, or list the state as `{state}: 1`"
            )

    def why_not_shared(self, name: str) -> str | None:
        """Return why S.name is not an input; None if it is."""
        if name in self._shared:
            return None
        return f"S.{name} is not listed{nearest_name(name, self._shared)}; list it, `shared: [{name}]`"

    def why_no_sum(self, operand: Expr) -> str | None:
        """Return why `operand` cannot be summed over n; None if it can."""
        if self.is_wide(operand):
            return None
        return (
            f"sum adds over the axis n, and {equation_text(operand)[:60]} lacks it: one value per channel; "
            "use a state or a parameter listed with n, or S.<name>, or leave sum out"
        )

    def why_no_output(self, output: Expr, default: str | None) -> str | None:
        """Return why `output` cannot be the output, which is one value per channel; None where it can.

        `default`: the state that is the output because the file names no output.
        """
        if not self.is_wide(output):
            return None
        chosen = ", the output because it is the first state," if default else ""
        return (
            f"the output is one value per channel, but {equation_text(output)[:60]}{chosen} has the axis n; give an output "
            f"that adds over n, such as `output: sum(S.c * {default or 'h'}[t])`"
        )

    def vectors(self, states: tuple[str, ...], parameters: tuple[str, ...], shared: tuple[str, ...]) -> Vectors:
        """Return those of a cell's names that have the axis."""
        return Vectors(
            tuple(name for name in states if ex.current(name) in self._wide),
            tuple(name for name in parameters if ex.named(name) in self._wide),
            shared,
        )


def check_no_product(vectors: Vectors, product_uses: Mapping[str, Place]) -> None:
    """Raise `BadInput` for a recurrent product in a cell with the axis n."""
    if vectors and product_uses:
        gate, place = next(iter(product_uses.items()))
        raise place.error(
            f"R.{gate} multiplies the previous output, which a cell with the axis n cannot; leave R out, or list every state "
            "and parameter with one value per channel"
        )


def check_norms(vectors: Vectors, norm_uses: Mapping[str, Place], product_uses: Mapping[str, Place]) -> None:
    """Raise `BadInput` for a norm or a mean over units in a cell with the axis n, or without a recurrent product."""
    for name, place in norm_uses.items():
        if vectors:
            raise place.error(
                f"{name} is over units, which cells with the axis n do not support; leave it out, or list every state and "
                "parameter with one value per channel"
            )
        if not product_uses:
            raise place.error(
                f"{name} is computed between two products by R, and this cell has none; use R.<gate> in an equation, or leave "
                f"{name} out"
            )


def check_no_vectors(projection: Projection, vectors: Vectors, uses: Mapping[str, Place]) -> None:
    """Raise `BadInput` for a cell with both axes, n and p; `uses` are the places of its states and parameters."""
    for name in (*projection.states, *projection.parameters) if vectors else ():
        raise uses[name].error(f"{name} has the axis p in a cell with the axis n, which exclude each other; leave one out")


def check_no_input(
    vectors: Vectors, projection: Projection, input_uses: Mapping[str, Place], step_inputs: Collection[str]
) -> None:
    """Raise `BadInput` for an input X.* in a cell with the axis n, or with one value per step next to listed products."""
    for name, place in input_uses.items():
        if name in step_inputs and not projection and not projection.is_plain:
            raise place.error(
                f"X.{name} has one value per step in a cell that lists products, which takes none; list it as `{name}: 1`, and "
                "pass its value in all channels"
            )
        if not vectors:
            return
        raise place.error(
            f"X.{name} is an input of a cell with the axis n, which takes none; pass it as a gate, W.{name}, "
            "or list every state and parameter with one value per channel"
        )


def names_with_axes(
    source: CellSource, key: str, listed: tuple[str, ...] | Mapping[str, object] | None, used: Mapping[str, Place], form: str
) -> tuple[str, ...]:
    """Return the names `used`, in the order `listed` or, where a mapping gives their axes, in order of first use."""
    if not isinstance(listed, Mapping):
        return names_in_order(source, key, listed, used, form)
    _check_listed(source, key, listed, used, form)
    return names_in_order(source, key, tuple(used), used, form)


def _check_listed(source: CellSource, key: str, listed: Mapping[str, object], used: Mapping[str, Place], form: str) -> None:
    for name in listed:
        if name not in used:
            raise _never_used(source, key, name, form)
    for name, place in used.items():
        if name not in listed:
            axis = "p" if "p" in listed.values() else "n"
            raise place.error(
                f"'{name}' is used here but not listed under {key}; list it with its axis, `{name}: {axis}` or `{name}: 1`"
            )


def _never_used(source: CellSource, key: str, name: str, form: str) -> BadInput:
    return source.document.error((key, name), f"'{name}' is never used as {form.format(name)}; remove it or use it")
