"""Text of a cell with the axis n: its stages, and for each value where it is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from minrnn_gen.cell.cuda_names import cuda_name
from minrnn_gen.cell.lowering_vectors import LoweredVectors, LoweredVectorsBackward
from minrnn_gen.cell.preparation import names_in
from minrnn_gen.cell.stages import Stage, StagedProgram, restricted, statements_of
from minrnn_gen.codegen.cell_names import CellNames

Pair = tuple[str, str]
"""A label or a place, and what belongs to it."""

# A lane's value of what a channel has n times, and the loop over all of them.
VALUE, UNROLL, LOOP = ".at[k]", "#pragma unroll", "for (int k = 0; k < VALUES; ++k) {"


@dataclass(frozen=True)
class _Printer:
    """Prints stages as the lines of a lane's function; `places` has the index of each input, value `k` of an input with n.

    A stage is statements once per channel, a loop over the lane's values, and sums of these over the lanes; each lane keeps its
    own part of `shares`. Values of a loop that are read after it stay in arrays.
    """

    program: StagedProgram
    places: Mapping[str, str]
    shares: tuple[str, ...] = ()

    def lines(self, stages: tuple[Stage, ...], results: Iterable[Pair]) -> tuple[str, ...]:
        """Print `stages` and `results`, each (place, name)."""
        results = tuple(results)
        made = {statement.name: number for number, stage in enumerate(stages) for statement in statements_of(stage)}
        kept = self._read_later(stages, made, {name for _, name in results})
        lines, read = list[str](), set[str]()
        for number, stage in enumerate(stages):
            names = [name for statement in statements_of(stage) for name in names_in(statement.expression)]
            once = [name for name in dict.fromkeys(names) if name not in made and name not in self.program.wide]
            lines += [_declared(name, self.places[name]) for name in once if name not in read]
            read |= {*once}
            lines += [_declared(statement.name, statement.cuda) for statement in stage.narrow]
            if stage.wide or stage.sums:
                lines += self._loop(stage, {name for name, at in made.items() if at < number}, kept)
        lines += [f"result.{place} = {self._value(name, made)};" for place, name in results if VALUE not in place]
        wide = [f"    result.{place} = {self._value(name, made)};" for place, name in results if VALUE in place]
        return (*lines, *((UNROLL, LOOP, *wide, "}") if wide else ()))

    def _loop(self, stage: Stage, before: set[str], kept: set[str]) -> list[str]:
        """Print a loop over a lane's values, and the sums of them over lanes; `before` are the names of earlier stages."""
        read = [name for statement in (*stage.wide, *stage.sums) for name in names_in(statement.expression)]
        made = {statement.name for statement in statements_of(stage)}
        inputs = [name for name in dict.fromkeys(read) if name in self.program.wide and name not in made]
        lines = [
            f"Values<compute_t, VALUES> {stored_name(made_here.name)};" for made_here in stage.wide if made_here.name in kept
        ]
        lines += [f"compute_t {cuda_name(summed.name)} = compute_t(0);" for summed in stage.sums]
        lines += [UNROLL, LOOP]
        lines += [
            f"    {_declared(name, f'{stored_name(name)}{VALUE}' if name in before else self.places[name])}" for name in inputs
        ]
        for statement in stage.wide:
            lines.append(f"    {_declared(statement.name, statement.cuda)}")
            if statement.name in kept:
                lines.append(f"    {stored_name(statement.name)}{VALUE} = {cuda_name(statement.name)};")
        lines += [f"    if (has_value(lane, k)) {cuda_name(summed.name)} += {summed.cuda};" for summed in stage.sums]
        lines.append("}")
        return lines + [
            f"{cuda_name(made_here.name)} = sum_over_lanes({cuda_name(made_here.name)});"
            for made_here in stage.sums
            if made_here.name not in self.shares
        ]

    def _read_later(self, stages: tuple[Stage, ...], made: Mapping[str, int], results: set[str]) -> set[str]:
        """Return the names with n values that are read after the loop which makes them."""
        kept = {name for name in results if name in made and name in self.program.wide}
        for number, stage in enumerate(stages):
            for statement in statements_of(stage):
                names = names_in(statement.expression)
                kept |= {name for name in names if name in self.program.wide and made.get(name, number) < number}
        return kept

    def _value(self, name: str, made: Mapping[str, int]) -> str:
        if name not in made:
            return self.places[name]
        return f"{stored_name(name)}{VALUE}" if name in self.program.wide else cuda_name(name)


def stored_name(name: str) -> str:
    """Return the identifier of the array that has a lane's values of a name."""
    return cuda_name(f"all_{name}")


def _declared(name: str, value: str) -> str:
    return f"const compute_t {cuda_name(name)} = {value};"


@dataclass(frozen=True)
class _VectorsNames(CellNames):
    """Text of a cell with the axis n in either pass: names in the order of the arrays."""

    lowered: LoweredVectors | LoweredVectorsBackward

    @property
    def shared(self) -> tuple[str, ...]:
        """The inputs S.* in their order."""
        return self.lowered.vectors.shared

    @property
    def wide_states(self) -> tuple[str, ...]:
        """The states with the axis n."""
        return self.lowered.vectors.states

    @property
    def narrow_states(self) -> tuple[str, ...]:
        """The states without it."""
        return self.lowered.vectors.narrow(self.states)

    @property
    def wide_parameters(self) -> tuple[str, ...]:
        """The parameters with the axis n, each with its place among all."""
        return self.lowered.vectors.parameters

    @property
    def narrow_parameters(self) -> tuple[str, ...]:
        """The parameters without it."""
        return tuple(name for name in self.parameters if name not in self.wide_parameters)

    @property
    def parameter_bits(self) -> Mapping[str, int]:
        """The bit of each parameter in the mask of those that are float32."""
        return {name: bit for bit, name in enumerate(self.parameters, 1)}

    @cached_property
    def held_wide(self) -> tuple[str, ...]:
        """Values that are constant over the steps and have the axis n."""
        return tuple(name for name in self._held if name in self._whole.wide)

    @cached_property
    def held_narrow(self) -> tuple[str, ...]:
        """Values that are constant over the steps and lack the axis n."""
        return tuple(name for name in self._held if name not in self.held_wide)

    @property
    def _held(self) -> tuple[str, ...]:
        return self._whole.held

    @property
    def _whole(self) -> StagedProgram:
        """The program whose constants all steps read."""
        return self.lowered.step if isinstance(self.lowered, LoweredVectors) else self.lowered.whole

    @property
    def constants_lines(self) -> tuple[str, ...]:
        """Statements that depend on the parameters alone, computed before the first step."""
        results = [(f"narrow.at[{place}]", name) for place, name in enumerate(self.held_narrow)]
        results += [(f"wide.at[{place}].at[k]", name) for place, name in enumerate(self.held_wide)]
        return _Printer(self._whole, self._parameter_places).lines(self._whole.constants, results)

    @property
    def _parameter_places(self) -> dict[str, str]:
        places = {f"parameter_{name}": f"parameter.wide.at[{place}].at[k]" for place, name in enumerate(self.wide_parameters)}
        return places | {
            f"parameter_{name}": f"parameter.narrow.at[{place}]" for place, name in enumerate(self.narrow_parameters)
        }

    @property
    def _places(self) -> dict[str, str]:
        places = {f"W_{gate}": f"gate.at[{place}]" for place, gate in enumerate(self.gates)}
        places |= {f"S_{name}": f"shared.at({place}, k)" for place, name in enumerate(self.shared)}
        places |= {"gradient_y": "dy"}
        for label, of in (("previous", "previous"), ("gradient_state", "arriving")):
            places |= {f"{label}_{name}": f"{of}.{self._state_place(name)}" for name in self.states}
        places |= {name: f"constant.narrow.at[{place}]" for place, name in enumerate(self.held_narrow)}
        return places | {name: f"constant.wide.at[{place}].at[k]" for place, name in enumerate(self.held_wide)}

    @property
    def prepared(self) -> tuple[str, ...]:
        """Values of its channel that a step reads: gates, and values that depend on gates alone."""
        return self.lowered.prepared.values

    @property
    def prepared_lines(self) -> tuple[str, ...]:
        """Statements that depend on a step's gates alone."""
        results = ((name, f"at[{place}]") for place, name in enumerate(self.prepared))
        return self._step(self.lowered.prepared.preparation, results)

    def _state_place(self, name: str) -> str:
        if name in self.wide_states:
            return f"wide.at[{self.wide_states.index(name)}].at[k]"
        return f"narrow.at[{self.narrow_states.index(name)}]"

    def _step(self, program: StagedProgram, results: Iterable[Pair]) -> tuple[str, ...]:
        """Print the steps of `program`, with `results` as (label, place)."""
        return self._lines(program, results, self._places)

    def _prepared_step(self, program: StagedProgram, results: Iterable[Pair], shares: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Print the steps of `program`, which reads what is prepared."""
        return self._lines(program, results, self._places | self._prepared_places, shares)

    @property
    def _prepared_places(self) -> dict[str, str]:
        return {name: f"prepared.at[{place}]" for place, name in enumerate(self.prepared)}

    def _lines(
        self, program: StagedProgram, results: Iterable[Pair], places: Mapping[str, str], shares: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        names = dict(program.results)
        return _Printer(program, places, shares).lines(program.steps, ((place, names[label]) for label, place in results))

    def _of_states(self, label: str, member: str) -> tuple[Pair, ...]:
        return tuple((f"{label}_{name}", f"{member}{self._state_place(name)}") for name in self.states)


@dataclass(frozen=True)
class VectorsText(_VectorsNames):
    """A step of a cell with the axis n as the templates read it."""

    lowered: LoweredVectors

    @property
    def sum_count(self) -> int:
        """The number of sums over n in y: the sums that the rest of a step leaves, or y itself."""
        return max(1, len(self.lowered.finished.sums))

    @property
    def step_lines(self) -> tuple[str, ...]:
        """The rest of one step, with a lane's share in each sum that y is made of."""
        finished = self.lowered.finished
        states = self._of_states("state", "state.")
        if not finished.sums:
            of_first = "if (lane > 0) result.share.at[0] = compute_t(0);"
            return (*self._prepared_step(finished.steps, (*states, ("y", "share.at[0]"))), of_first)
        shares = tuple((name, f"share.at[{place}]") for place, name in enumerate(finished.sums))
        return self._prepared_step(finished.steps, (*states, *shares), finished.sums)

    @property
    def exponents(self) -> tuple[str, ...]:
        """The states, if all coefficients are powers of a constant, so that the exponents of several steps add up."""
        return tuple(self.lowered.exponents)

    @property
    def ends_lines(self) -> tuple[str, ...]:
        """The states of one step of a scan, with its coefficients or its addends to their exponents."""
        by = tuple((f"exponent_{name}", f"coefficient.at[{place}]") for place, name in enumerate(self.exponents))
        coefficients = by or self._of_states("coefficient", "coefficient.")
        return self._prepared_step(self.lowered.ends, (*self._of_states("state", "state."), *coefficients))

    @property
    def product_lines(self) -> tuple[str, ...]:
        """The products of coefficients, from the sums of their exponents."""
        constants = (self._places[constant] for constant, _ in self.lowered.exponents.values())
        return tuple(
            f"result.{self._state_place(name)} = fn_exp2({constant} * of_steps.at[{place}]);"
            for place, (name, constant) in enumerate(zip(self.exponents, constants, strict=True))
        )

    @property
    def ends_prepared_lines(self) -> tuple[str, ...]:
        """Statements that prepare a step for the end of a part of time."""
        read = restricted(self.lowered.prepared.preparation, self.lowered.ends.inputs)
        results = ((name, f"at[{place}]") for place, name in enumerate(self.prepared) if name in dict(read.results))
        return self._step(read, results)

    @property
    def y_lines(self) -> tuple[str, ...]:
        """Statements that depend on the sums."""
        finished = self.lowered.finished
        if not finished.sums:
            return ("result.y = sum.at[0];",)
        sums = {name: f"sum.at[{place}]" for place, name in enumerate(finished.sums)}
        return self._lines(finished.finish, (("y", "y"),), self._places | self._prepared_places | sums)


@dataclass(frozen=True)
class VectorsBackwardText(_VectorsNames):
    """The vector-Jacobian product of a step of a cell with the axis n as the templates read it."""

    lowered: LoweredVectorsBackward
    exponents: tuple[str, ...] = ()

    @property
    def advance_lines(self) -> tuple[str, ...]:
        """The states of one step."""
        return self._prepared_step(self.lowered.advance, self._of_states("state", ""))

    @property
    def ends_lines(self) -> tuple[str, ...]:
        """The states of one step of a scan, with its coefficients."""
        states = (*self._of_states("state", "state."), *self._of_states("coefficient", "coefficient."))
        return self._prepared_step(self.lowered.prepared.steps, states)

    @property
    def arrivals_lines(self) -> tuple[str, ...]:
        """The gradients of the states before a step."""
        return self._prepared_step(self.lowered.arrivals, self._of_states("gradient_previous", ""))

    @property
    def finish_lines(self) -> tuple[str, ...]:
        """Statements that turn sums over steps into gradients of parameters."""
        gradients = {f"gradient_{label}": place for label, place in self._parameter_places.items()}
        totals = {f"total_{label}": place.replace("parameter.", "total.") for label, place in gradients.items()}
        results = ((label, place.removeprefix("parameter.")) for label, place in gradients.items())
        return self._lines(self.lowered.summed.finish, results, self._places | totals)

    @property
    def backward_lines(self) -> tuple[str, ...]:
        """One step back."""
        results = (
            *((f"gradient_W_{gate}", f"gate.at[{place}]") for place, gate in enumerate(self.gates)),
            *self._of_states("gradient_previous", "previous."),
            *((f"gradient_S_{name}", f"shared.at[{place}].at[k]") for place, name in enumerate(self.shared)),
            *((f"gradient_{label}", place) for label, place in self._parameter_places.items()),
        )
        after = {name: f"after.{self._state_place(state)}" for state, name in self.lowered.computed_states.items()}
        return self._lines(self.lowered.backward, results, self._places | self._prepared_places | after)
