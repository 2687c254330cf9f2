"""Programs in stages as C over vectors of channels: statements once per channel, loops over the n values, sums over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.cuda_names import cuda_name
from minrnn_gen.cell.preparation import names_in
from minrnn_gen.cell.printing import c_text
from minrnn_gen.cell.program import Statement
from minrnn_gen.cell.stages import Stage, StagedProgram, statements_of

LOOP = "for (long k = 0; k < n; k++) {"


class Target(NamedTuple):
    """Destination of a result: its label, and C with `{}` for the value; at a place with n values `k` is the value's number."""

    label: str
    text: str
    is_wide: bool


@dataclass(frozen=True)
class PrintedStages:
    """Stages of a program in C; `places` has the value of each input, `room` keeps the n values of names for later loops."""

    program: StagedProgram
    stages: tuple[Stage, ...]
    places: Mapping[str, str]
    targets: tuple[Target, ...]
    room: str

    @property
    def rooms(self) -> int:
        """How many names are kept from one loop to another."""
        return len(self._kept)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The lines of C, which read `n`."""
        lines, declared = list[str](), set[str]()
        for stage in self.stages:
            names = [name for statement in statements_of(stage) for name in names_in(statement.expression)]
            lines += self._declared_once(names, declared)
            lines += [_constant(statement.name, statement.c) for statement in stage.narrow]
            if stage.wide or stage.sums:
                lines += self._loop(stage)
        lines += self._declared_once([self._names[target.label] for target in self.targets if not target.is_wide], declared)
        lines += [target.text.format(cuda_name(self._names[target.label])) for target in self.targets if not target.is_wide]
        return (*lines, *self._late_targets(declared))

    @cached_property
    def _names(self) -> dict[str, str]:
        return dict(self.program.results)

    @cached_property
    def _made(self) -> dict[str, int]:
        return {statement.name: number for number, stage in enumerate(self.stages) for statement in statements_of(stage)}

    @cached_property
    def _kept(self) -> tuple[str, ...]:
        """Names with n values that a later loop reads."""
        kept = dict[str, None]()
        for number, stage in enumerate(self.stages):
            for statement in statements_of(stage):
                names = names_in(statement.expression)
                earlier = (name for name in names if name in self.program.wide and self._made.get(name, number) < number)
                kept |= dict.fromkeys(earlier)
        return tuple(kept)

    def _declared_once(self, names: Iterable[str], declared: set[str]) -> list[str]:
        """Declare the inputs without the axis n that are not yet declared; the template declares inputs without a place."""
        wanted = [name for name in dict.fromkeys(names) if name in self.places and name not in self.program.wide]
        new = [name for name in wanted if name not in declared]
        declared |= {*new}
        return [_constant(name, self.places[name]) for name in new]

    def _loop(self, stage: Stage) -> list[str]:
        read = [name for statement in (*stage.wide, *stage.sums) for name in names_in(statement.expression)]
        made = {statement.name for statement in stage.wide}
        lines = [f"vr {cuda_name(summed.name)} = number(0);" for summed in stage.sums]
        lines.append(LOOP)
        inputs = [name for name in dict.fromkeys(read) if name in self.program.wide and name not in made]
        lines += [f"    {_constant(name, self._room(name) if name in self._made else self.places[name])}" for name in inputs]
        for statement in stage.wide:
            lines.append(f"    {_constant(statement.name, statement.c)}")
            if statement.name in self._kept:
                lines.append(f"    {self._room(statement.name)} = {cuda_name(statement.name)};")
            lines += [f"    {target.text.format(cuda_name(statement.name))}" for target in self._targets_of(statement.name)]
        lines += [f"    {_added(summed)}" for summed in stage.sums]
        return [*lines, "}"]

    def _targets_of(self, name: str) -> list[Target]:
        return [target for target in self.targets if target.is_wide and self._names[target.label] == name]

    def _late_targets(self, declared: set[str]) -> list[str]:
        """Return a loop for the results with n values that no loop makes: inputs, and values that a channel has once."""
        wide = {statement.name for stage in self.stages for statement in stage.wide}
        late = [target for target in self.targets if target.is_wide and self._names[target.label] not in wide]
        names = [self._names[target.label] for target in late]
        inputs = [name for name in dict.fromkeys(names) if name in self.program.wide]
        lines = [f"    {_constant(name, self.places[name])}" for name in inputs]
        lines += [f"    {target.text.format(cuda_name(self._names[target.label]))}" for target in late]
        return [*self._declared_once(names, declared), LOOP, *lines, "}"] if late else []

    def _room(self, name: str) -> str:
        return f"{self.room}[{self._kept.index(name)} * n + k]"


def _constant(name: str, value: str) -> str:
    return f"const vr {cuda_name(name)} = {value};"


def _added(summed: Statement) -> str:
    """Add to a sum over n; a product of two and the addition are rounded once."""
    total, (operation, operands) = cuda_name(summed.name), ex.operation(summed.expression)
    if operation == "multiply":
        left, right = map(c_text, operands)
        return f"{total} = fused({left}, {right}, {total});"
    return f"{total} = {total} + {c_text(summed.expression) if operation == 'symbol' else f'({summed.c})'};"
