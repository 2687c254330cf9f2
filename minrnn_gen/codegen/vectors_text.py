"""What the templates read of a cell with the axis n: its stages, each value with the place where it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from minrnn_gen.cell.cuda_names import cuda_name
from minrnn_gen.cell.lowering_vectors import LoweredVectors, LoweredVectorsBackward
from minrnn_gen.cell.program import Statement
from minrnn_gen.cell.stages import Stage, StagedProgram, names_in, statements_of
from minrnn_gen.codegen.header import comment

Pair = tuple[str, str]
"""An identifier and the text of its value."""


@dataclass(frozen=True)
class StageText:
    """A stage: statements once per channel, then a loop over a lane's values, then sums over n.

    `inputs` are read once. The loop reads `loop_inputs`, computes `loop`, stores in arrays of `stored` what is read behind it,
    and adds up `sums`.
    """

    inputs: tuple[Pair, ...]
    narrow: tuple[Pair, ...]
    loop_inputs: tuple[Pair, ...]
    loop: tuple[Pair, ...]
    stored: tuple[str, ...]
    sums: tuple[Pair, ...]


@dataclass(frozen=True)
class FunctionText:
    """A function of a lane: its stages, and its results as (place, value), of a channel and of each of its n values."""

    result: str
    name: str
    parameters: str
    stages: tuple[StageText, ...]
    narrow_results: tuple[Pair, ...]
    wide_results: tuple[Pair, ...]


@dataclass(frozen=True)
class _Printer:
    """Prints stages; `places` has the place of each input, and what `held` has is read from there by the steps."""

    program: StagedProgram
    places: Mapping[str, str]

    def stages(self, stages: tuple[Stage, ...], results: tuple[str, ...]) -> tuple[StageText, ...]:
        """Print `stages`, of which `results` are read behind the last one."""
        made = {statement.name: number for number, stage in enumerate(stages) for statement in statements_of(stage)}
        wide = {name for name in made if name in self.program.wide}
        readers: dict[str, set[int]] = {name: {len(stages)} if name in results else set() for name in wide}
        for number, stage in enumerate(stages):
            for statement in statements_of(stage):
                for name in names_in(statement.expression):
                    if name in wide:
                        readers[name].add(number)
        kept = {name for name in wide if readers[name] - {made[name]}}
        texts, read = [], set[str]()
        for number, stage in enumerate(stages):
            names = [name for statement in statements_of(stage) for name in names_in(statement.expression)]
            if number == len(stages) - 1:
                names += [name for name in results if name not in self.program.wide]
            inputs = [name for name in dict.fromkeys(names) if name not in made]
            narrow = [name for name in inputs if name not in self.program.wide and name not in read]
            read |= {*narrow}
            of_loop = [name for one in (*stage.wide, *stage.sums) for name in names_in(one.expression)]
            from_before = [name for name in dict.fromkeys(of_loop) if name in wide and made[name] < number]
            loop_inputs = [name for name in dict.fromkeys(of_loop) if name in inputs and name in self.program.wide]
            texts.append(
                StageText(
                    inputs=tuple((cuda_name(name), self.places[name]) for name in narrow),
                    narrow=tuple(map(_pair, stage.narrow)),
                    loop_inputs=(
                        *((cuda_name(name), self.places[name]) for name in loop_inputs),
                        *((cuda_name(name), f"{stored_name(name)}.at[k]") for name in from_before),
                    ),
                    loop=tuple(map(_pair, stage.wide)),
                    stored=tuple(cuda_name(one.name) for one in stage.wide if one.name in kept),
                    sums=tuple(map(_pair, stage.sums)),
                )
            )
        return tuple(texts)

    def value(self, name: str) -> str:
        """Return where the value of a name is behind all stages; of one with the axis, value `k`."""
        made = {statement.name for stage in (*self.program.steps,) for statement in statements_of(stage)}
        if name not in made and name in self.places:
            return self.places[name]
        return f"{stored_name(name)}.at[k]" if name in self.program.wide else cuda_name(name)


def stored_name(name: str) -> str:
    """Return the identifier of the array that has a lane's values of a name."""
    return f"all_{cuda_name(name)}"


def _pair(statement: Statement) -> Pair:
    return cuda_name(statement.name), statement.cuda


@dataclass(frozen=True)
class _VectorsNames:
    """What the templates read of a cell with the axis n in either pass: names in the order of the arrays."""

    lowered: LoweredVectors | LoweredVectorsBackward

    @property
    def name(self) -> str:
        return self.lowered.name

    @property
    def equation_lines(self) -> tuple[str, ...]:
        return tuple(comment(line) for line in self.lowered.equations.splitlines() if line.strip())

    @property
    def gates(self) -> tuple[str, ...]:
        return self.lowered.gates

    @property
    def states(self) -> tuple[str, ...]:
        return self.lowered.states

    @property
    def parameters(self) -> tuple[str, ...]:
        return self.lowered.parameters

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
        return tuple(name for name in self.states if name not in self.wide_states)

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
        """What is constant over the steps and has the axis n."""
        return tuple(name for name in self._held if name in self._whole.wide)

    @cached_property
    def held_narrow(self) -> tuple[str, ...]:
        """What is constant over the steps and has it not."""
        return tuple(name for name in self._held if name not in self.held_wide)

    @property
    def _held(self) -> tuple[str, ...]:
        return self._whole.held

    @property
    def _whole(self) -> StagedProgram:
        """The program whose constants all steps read."""
        return self.lowered.step if isinstance(self.lowered, LoweredVectors) else self.lowered.whole

    @cached_property
    def _constants(self) -> FunctionText:
        """What is computed of the parameters before the first step."""
        program, places = self._whole, self._parameter_places
        printer = _Printer(program, places)
        stages = printer.stages(program.constants, program.held)
        made = {statement.name for stage in program.constants for statement in statements_of(stage)}

        def value(name: str) -> str:
            if name not in made:
                return places[name]
            return f"{stored_name(name)}.at[k]" if name in program.wide else cuda_name(name)

        return FunctionText(
            "Constants",
            "constants_of",
            "const Parameters& parameter, int lane",
            stages,
            tuple((f"narrow.at[{place}]", value(name)) for place, name in enumerate(self.held_narrow)),
            tuple((f"wide.at[{place}].at[k]", value(name)) for place, name in enumerate(self.held_wide)),
        )

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

    def _state_place(self, name: str) -> str:
        if name in self.wide_states:
            return f"wide.at[{self.wide_states.index(name)}].at[k]"
        return f"narrow.at[{self.narrow_states.index(name)}]"

    def _step(self, result: str, name: str, more: str, program: StagedProgram, results: tuple[Pair, ...]) -> FunctionText:
        """Print the steps of `program`, with `results` as (label, place); `more` are parameters beside those of a step."""
        names = dict(program.results)
        printer = _Printer(program, self._places)
        stages = printer.stages(program.steps, tuple(names[label] for label, _ in results))
        values = [(place, printer.value(names[label])) for label, place in results]
        return FunctionText(
            result,
            name,
            f"const Gates& gate, const Shared& shared, const States& previous, const Constants& constant, {more}int lane",
            stages,
            tuple((place, value) for place, value in values if "[k]" not in place),
            tuple((place, value) for place, value in values if "[k]" in place),
        )

    def _of_states(self, label: str, member: str) -> tuple[Pair, ...]:
        return tuple((f"{label}_{name}", f"{member}{self._state_place(name)}") for name in self.states)


@dataclass(frozen=True)
class VectorsText(_VectorsNames):
    """A step of a cell with the axis n as the templates read it."""

    lowered: LoweredVectors

    @cached_property
    def functions(self) -> tuple[FunctionText, ...]:
        """What is constant, and one step."""
        results = (*self._of_states("state", "state."), ("y", "y"))
        return self._constants, self._step("Next", "step_of", "", self.lowered.step, results)


@dataclass(frozen=True)
class VectorsBackwardText(_VectorsNames):
    """The vector-Jacobian product of a step of a cell with the axis n as the templates read it."""

    lowered: LoweredVectorsBackward

    @cached_property
    def functions(self) -> tuple[FunctionText, ...]:
        """What is constant, the states after a step, and one step back."""
        results = (
            *((f"gradient_W_{gate}", f"gate.at[{place}]") for place, gate in enumerate(self.gates)),
            *self._of_states("gradient_previous", "previous."),
            *((f"gradient_S_{name}", f"shared.at[{place}].at[k]") for place, name in enumerate(self.shared)),
            *((f"gradient_{label}", place) for label, place in self._parameter_places.items()),
        )
        return (
            self._constants,
            self._step("States", "advanced", "", self.lowered.advance, self._of_states("state", "")),
            self._step("Gradients", "gradients_of", "const States& arriving, compute_t dy, ", self.lowered.backward, results),
        )
