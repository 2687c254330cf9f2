"""Text of a cell that runs step after step: its statements, rounds of products, and gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from minrnn_gen.cell.cuda_names import cuda_name
from minrnn_gen.cell.late import bias_name, step_behind_sums, sum_name
from minrnn_gen.cell.levels import MEANS_OF_ROW, Level, rows_of_means
from minrnn_gen.cell.lowering import Program
from minrnn_gen.cell.lowering_steps import LoweredSteps, LoweredStepsBackward, ProductRound
from minrnn_gen.cell.preparation import CutProgram, cut
from minrnn_gen.cell.waits import Wait, step_in_parts
from minrnn_gen.codegen.cell_names import GradientNames
from minrnn_gen.codegen.levels_text import LevelledText, ProgramText, level_texts, mean_places
from minrnn_gen.codegen.products_text import ProductNames
from minrnn_gen.codegen.rounds_text import Places, RoundText, result_names, statements_of
from minrnn_gen.codegen.waits_text import PartsText, WaitText, parts_text

_NOTHING = Program((), (), ())
NO_MEANS: Mapping[str, str] = {}
Levelled = tuple[str, Sequence[Level], Program, Places]
"""A program's name, its levels, itself, and (place, label) of each of its results."""


@dataclass(frozen=True)
class _StepsNames(ProductNames):
    """Text of a cell that runs step after step, in either pass."""

    @property
    def output_state(self) -> str | None:
        return self.lowered.output_state

    @property
    def output_place(self) -> int:
        """The index of the output among the states; -1 if it is not a state."""
        output = self.lowered.output_state
        return -1 if output is None else self.states.index(output)

    @property
    def arguments(self) -> tuple[RoundText, ...]:
        """Arguments that the products of each round multiply."""
        return tuple(
            self._round(number, gates, CutProgram(_NOTHING, program), (("", result_names(program)["argument"]),))
            for number, (gates, program) in enumerate(self._argument_programs, start=1)
        )

    @property
    def _argument_programs(self) -> tuple[tuple[tuple[str, ...], Program], ...]:
        """The gates of each round with the program of their operand."""
        lowered = self.lowered
        rounds = lowered.arguments if isinstance(lowered, LoweredStepsBackward) else lowered.rounds
        return tuple((of_round.gates, of_round.program) for of_round in rounds)

    def _round(self, number: int, gates: tuple[str, ...], parts: CutProgram, results: Places) -> RoundText:
        prepared = tuple(map(cuda_name, parts.values))
        return RoundText(
            number=number,
            products=", ".join(f"R.{gate}" for gate in gates),
            gates=tuple(map(self.products.index, gates)),
            inputs=_handed_on(self._placed(parts.rest), prepared),
            statements=statements_of(parts.rest),
            results=results,
            prepared=prepared,
            prepared_inputs=self._placed(parts.preparation),
            prepared_statements=statements_of(parts.preparation),
        )

    @property
    def levelled(self) -> tuple[LevelledText, ...]:
        """The programs of a step, if any has levels, each with the levels before it: those of rounds, then the step's own."""
        programs = self._levelled_programs
        if not any(levels for _, levels, _, _ in programs):
            return ()
        return tuple(self._levelled(*parts) for parts in programs)

    @property
    def _levelled_programs(self) -> tuple[Levelled, ...]:
        raise NotImplementedError

    def _levelled(self, name: str, levels: Sequence[Level], program: Program, labels: Places) -> LevelledText:
        means, names = mean_places(levels), result_names(program)

        def placed(program: Program) -> Places:
            return tuple(
                (name, place if place in means.values() else f"inputs.{place}") for name, place in self._placed(program, means)
            )

        results = tuple((place, names[label]) for place, label in labels)
        text = ProgramText(placed(program), statements_of(program), results)
        return LevelledText(name, level_texts(levels, [placed(level.program) for level in levels]), text)

    @property
    def waits(self) -> tuple[WaitText, ...]:
        """The waits of a step in parts; empty for a step that is not in parts."""
        return self.in_parts.waits if self.in_parts else ()

    @cached_property
    def in_parts(self) -> PartsText | None:
        """A step in parts between which it waits for means, as persistent kernels take it; None without means."""
        if self.lowered.whole is None:
            return None

        def round_of(wait: Wait) -> tuple[tuple[int, ...], str]:
            gates = self.lowered.rounds[wait.round - 1].gates
            return tuple(map(self.products.index, gates)), ", ".join(f"R.{gate}" for gate in gates)

        known = self.lowered.known_means if isinstance(self.lowered, LoweredStepsBackward) else ()
        places = {name: f"known_mean.at[{place}]" for place, name in enumerate(known)}

        def placed(program: Program, others: Mapping[str, str]) -> Places:
            return self._placed(program, {**places, **others})

        return parts_text(step_in_parts(self.lowered), placed, self._results_placed, round_of, self.lowered.norm_parts)

    def _results_placed(self, names: Mapping[str, str]) -> Places:
        """Return (place, name) of each result of a step, from `names` by label."""
        raise NotImplementedError

    @property
    def argument_programs(self) -> tuple[LevelledText, ...]:
        """Arguments that the products of each round multiply, with the levels before it."""
        return tuple(levelled for levelled in self.levelled if levelled.name.startswith("argument_"))

    @property
    def norm_parts(self) -> int:
        """The equal parts of a head that means over a head are over, each over one."""
        return self.lowered.norm_parts

    @property
    def mean_count(self) -> int:
        """The means over units that one program takes at most."""
        return max(sum(len(level.means) for level in levels) for _, levels, _, _ in self._levelled_programs)

    @property
    def summand_count(self) -> int:
        """The means of one level at most."""
        return max(len(level.means) for _, levels, _, _ in self._levelled_programs for level in levels)

    def _levelled_arguments(self, rounds: Sequence[ProductRound]) -> tuple[Levelled, ...]:
        return tuple(
            (f"argument_{number}", of_round.levels, of_round.program, (("argument", "argument"),))
            for number, of_round in enumerate(rounds, start=1)
        )

    def _placed(self, program: Program, means: Mapping[str, str] = NO_MEANS) -> Places:
        """(name, where its value is) of each input of `program`."""
        places = {"gradient_y": "dy"}
        for label, names, place in (
            ("R", self.products, "product"),
            ("previous", self.states, "previous"),
            ("parameter", self.parameters, "parameter"),
            ("gradient_state", self.states, "dstate"),
        ):
            places |= {f"{label}_{name}": f"{place}.at[{index}]" for index, name in enumerate(names)}
        places |= {label: f"gate.at[{index}]" for index, label in enumerate(self.known_labels)}
        places |= {f"gradient_argument_{number}": f"dargument.at[{number}]" for number in range(len(self.lowered.rounds))}
        for index, name in enumerate(self.products):
            places |= {sum_name(name): f"sum.at[{index}]", bias_name(name): f"product_bias.at[{index}]"}
        places |= means
        return tuple((cuda_name(name), places.get(name, "")) for name in program.inputs)


@dataclass(frozen=True)
class StepsText(_StepsNames):
    """One step of a cell as the templates read it."""

    lowered: LoweredSteps

    @property
    def _levelled_programs(self) -> tuple[Levelled, ...]:
        lowered = self.lowered
        labels = (*((f"state.at[{index}]", f"state_{state}") for index, state in enumerate(self.states)), ("y", "y"))
        return (*self._levelled_arguments(lowered.rounds), ("step", lowered.levels, lowered.step, labels))

    def _results_placed(self, names: Mapping[str, str]) -> Places:
        return (
            *((f"state.at[{index}]", names[f"state_{state}"]) for index, state in enumerate(self.states)),
            ("y", names["y"]),
        )

    @property
    def step_inputs(self) -> Places:
        return self._placed(self.lowered.step)

    @property
    def step_statements(self) -> Places:
        return statements_of(self.lowered.step)

    @property
    def step_results(self) -> Places:
        return self._results_placed(result_names(self.lowered.step))

    @property
    def prepared(self) -> tuple[str, ...]:
        """The values of a step that are free of recurrent sums and previous states, and are read with them."""
        return tuple(map(cuda_name, self._behind_sums.values))

    @property
    def prepared_inputs(self) -> Places:
        return self._placed(self._behind_sums.preparation)

    @property
    def prepared_statements(self) -> Places:
        return statements_of(self._behind_sums.preparation)

    @property
    def late_inputs(self) -> Places:
        return _handed_on(self._placed(self._behind_sums.rest), self.prepared)

    @property
    def late_statements(self) -> Places:
        """The rest of a step; a result that is itself a product keeps its name as an input of the whole step."""
        names, late = result_names(self.lowered.step), result_names(self._behind_sums.rest)
        renamed = {name: late[label] for label, name in names.items() if name != late[label]}
        return (*statements_of(self._behind_sums.rest), *renamed.items())

    @cached_property
    def _behind_sums(self) -> CutProgram:
        return step_behind_sums(self.lowered.step, self.products, self.states)

    @property
    def late_arguments(self) -> tuple[RoundText, ...]:
        """The operands of each round's products, from recurrent sums without bias; none for a step in parts."""
        if self.in_parts:
            return ()
        rounds = []
        for number, (gates, program) in enumerate(self._argument_programs, start=1):
            parts = step_behind_sums(program, self.products, self.states)
            rounds.append(self._round(number, gates, parts, (("", result_names(parts.rest)["argument"]),)))
        return tuple(rounds)


@dataclass(frozen=True)
class StepsBackwardText(_StepsNames, GradientNames):
    """The vector-Jacobian product of one step as the templates read it; `products_added`: the gates include the products."""

    lowered: LoweredStepsBackward
    products_added: bool = False

    @property
    def _levelled_programs(self) -> tuple[Levelled, ...]:
        lowered = self.lowered
        of_rounds = tuple(
            (
                f"round_{number}",
                of_round.levels,
                of_round.program,
                tuple((f"at[{self.products.index(gate)}]", f"gradient_R_{gate}") for gate in of_round.gates),
            )
            for number, of_round in enumerate(lowered.rounds, start=1)
        )
        arguments = self._levelled_arguments(lowered.arguments)
        return (*arguments, *of_rounds, ("gradients", lowered.levels, lowered.backward, self._gradient_labels))

    @property
    def known_means(self) -> tuple[str, ...]:
        """The means of the forward that a backward step reads."""
        return self.lowered.known_means

    @property
    def known_row(self) -> int:
        """The means of a row in memory: as many as a warp has units, which are copied alike."""
        return MEANS_OF_ROW

    @property
    def known_rows(self) -> int:
        """The rows in memory that these means take."""
        return rows_of_means(len(self.known_means))

    @property
    def known_levels(self) -> LevelledText:
        """The levels of these means."""
        return self._levelled("means", self.lowered.known, _NOTHING, ())

    def _results_placed(self, names: Mapping[str, str]) -> Places:
        return tuple((place, names[label]) for place, label in self._gradient_labels)

    @property
    def round_gradients(self) -> tuple[LevelledText, ...]:
        """The gradients of the products of each round, with the levels before them."""
        return tuple(levelled for levelled in self.levelled if levelled.name.startswith("round_"))

    @property
    def read_products(self) -> tuple[int, ...]:
        """The indices of the products of the previous output that the gradients depend on."""
        return tuple(place for place in self._read_products if not self.round_of_products[place])

    @property
    def read_round_products(self) -> tuple[int, ...]:
        """The indices of the products of arguments that the gradients depend on."""
        return tuple(place for place in self._read_products if self.round_of_products[place])

    @property
    def _read_products(self) -> tuple[int, ...]:
        return () if self.products_added else tuple(self.products.index(gate) for gate in self.lowered.read_products)

    @property
    def rounds(self) -> tuple[RoundText, ...]:
        """The gradients of each round's products, from those of later rounds; last round first, none for a step in parts."""
        rounds = []
        if self.in_parts:
            return ()
        for number, products in enumerate(self.lowered.rounds, start=1):
            parts = cut(products.program, [name for name in products.program.inputs if name.startswith("gradient_")])
            names = result_names(parts.rest)
            places = {gate: f"at[{self.products.index(gate)}]" for gate in products.gates}
            results = tuple((place, names[f"gradient_R_{gate}"]) for gate, place in places.items())
            rounds.append(self._round(number, products.gates, parts, results))
        return tuple(reversed(rounds))

    @property
    def gates_of_products(self) -> tuple[int, ...]:
        """For each recurrent product, the index of the gate whose gradient equals its own, or -1."""
        names = result_names(self.lowered.backward)
        of_gates = [names[f"gradient_W_{gate}"] for gate in self.gates]
        of_products = [names[f"gradient_R_{product}"] for product in self.products]
        return tuple(of_gates.index(name) if name in of_gates else -1 for name in of_products)

    @property
    def saved_states(self) -> tuple[str, ...]:
        """The states whose values after each step the kernel reads."""
        return self.lowered.read_states

    @property
    def saved_dtypes(self) -> Places:
        """`saved_states` with their dtypes in memory: the output is read from y."""
        return tuple((state, "storage_t" if state == self.output_state else "compute_t") for state in self.saved_states)

    @property
    def saved_places(self) -> tuple[int, ...]:
        """The indices of `saved_states` among all states."""
        return tuple(self.states.index(state) for state in self.saved_states)

    @property
    def prepared(self) -> tuple[str, ...]:
        """The values of a step that do not depend on the arriving gradients, and are read with them."""
        return tuple(map(cuda_name, self._cut.values))

    @property
    def prepared_inputs(self) -> Places:
        return self._placed(self._cut.preparation)

    @property
    def prepared_statements(self) -> Places:
        return statements_of(self._cut.preparation)

    @property
    def backward_inputs(self) -> Places:
        return _handed_on(self._placed(self._cut.rest), self.prepared)

    @property
    def backward_statements(self) -> Places:
        return statements_of(self._cut.rest)

    @cached_property
    def _cut(self) -> CutProgram:
        program = self.lowered.backward
        return cut(program, [name for name in program.inputs if name.startswith("gradient_")])

    @property
    def backward_results(self) -> Places:
        return self._results_placed(result_names(self.lowered.backward))

    @property
    def _gradient_labels(self) -> Places:
        of_known = ((f"gate.at[{index}]", f"gradient_{label}") for index, label in enumerate(self.known_labels))
        of_others = (
            (f"{place}.at[{index}]", f"gradient_{label}_{name}")
            for label, listed, place in (
                ("R", self.products, "product"),
                ("previous", self.states, "previous"),
                ("parameter", self.parameters, "parameter"),
            )
            for index, name in enumerate(listed)
        )
        return (*of_known, *of_others)


def _handed_on(inputs: Places, prepared: tuple[str, ...]) -> Places:
    """Return (identifier, where its value is) of inputs; some of them may be `prepared`."""
    return tuple((name, f"prepared.{name}" if name in prepared else place) for name, place in inputs)
