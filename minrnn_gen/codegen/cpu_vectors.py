"""A cell with n values per channel as C for the host's CPU: its arguments, and its stages over vectors of channels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from minrnn_gen.cell.lowering_vectors import LoweredVectors, LoweredVectorsBackward
from minrnn_gen.cell.program import Program
from minrnn_gen.cell.stage_groups import GroupedPrograms, grouped
from minrnn_gen.cell.stages import Stage, StagedProgram, restricted
from minrnn_gen.codegen.cpu_source import Field, NativePlan, StatementText, call_fields, strides
from minrnn_gen.codegen.stages_in_c import PrintedStages, Target

# A forward keeps the states at the begin of so many steps, and a backward computes those between them again. Twice as many
# steps would halve the kept states, but the states that a backward recomputes would leave a core's cache for n above 16.
CHUNK_STEPS = 32
SHARED_AXES = ("row", "time", "group", "value")


@dataclass(frozen=True)
class CpuVectorsPlan(NativePlan):
    """A kernel for the CPU of a cell with the axis n, whatever n.

    States, constants and every value that a channel has n times are vectors of neighbouring channels, one for each of the n
    values.
    """

    cell: LoweredVectors | LoweredVectorsBackward

    @property
    def template(self) -> str:
        """The template of the pass."""
        return f"cpu/vectors_{self.kernel_pass}.c.j2"

    @property
    def chunk_steps(self) -> int:
        """How many steps lie between two states that are kept."""
        return CHUNK_STEPS

    @property
    def is_backward(self) -> bool:
        """Whether the pass is a backward."""
        return self.kernel_pass == "backward"

    # ---- names

    @property
    def shared(self) -> tuple[str, ...]:
        """The inputs S.*."""
        return self.cell.vectors.shared

    @property
    def wide_states(self) -> tuple[str, ...]:
        """The states with the axis n."""
        return tuple(name for name in self.states if name in self.cell.vectors.states)

    @property
    def entering(self) -> str:
        """Names of the arrays with the initial states, or with their gradients."""
        return "dfinal" if self.kernel_pass == "backward" else "initial"

    @property
    def narrow_states(self) -> tuple[str, ...]:
        """The states without the axis n."""
        return self.cell.vectors.narrow(self.states)

    @property
    def wide_parameters(self) -> tuple[str, ...]:
        """The parameters with the axis n."""
        return tuple(name for name in self.cell.parameters if name in self.cell.vectors.parameters)

    @property
    def narrow_parameters(self) -> tuple[str, ...]:
        """The parameters without the axis n."""
        return tuple(name for name in self.cell.parameters if name not in self.wide_parameters)

    @property
    def summed(self) -> tuple[str, ...]:
        """The results without the axis n that are added up over time and batch."""
        return (
            *(f"gradient_W_{name}" for name in self.gates),
            *(f"gradient_parameter_{name}" for name in self.narrow_parameters),
        )

    def state_place(self, name: str) -> str:
        """Return the index of a state among those of a block of channels."""
        if name in self.wide_states:
            return f"[{self.wide_states.index(name)} * n + k]"
        return f"[{len(self.wide_states)} * n + {self.narrow_states.index(name)}]"

    # ---- constants

    @property
    def _whole(self) -> StagedProgram:
        return self.cell.step if isinstance(self.cell, LoweredVectors) else self.cell.whole

    @cached_property
    def wide_constants(self) -> tuple[str, ...]:
        """Values that are constant over the steps and have the axis n."""
        return tuple(name for name in self._whole.held if name in self._whole.wide)

    @cached_property
    def narrow_constants(self) -> tuple[str, ...]:
        """Values that are constant over the steps and lack the axis n."""
        return tuple(name for name in self._whole.held if name not in self.wide_constants)

    @cached_property
    def constants(self) -> PrintedStages:
        """Statements that depend on the parameters alone, computed before the first step."""
        whole, held = self._whole, (*self.wide_constants, *self.narrow_constants)
        program = replace(whole, results=tuple((name, name) for name in held))
        targets = tuple(Target(name, f"{self._constant_place(name)} = {{}};", name in self.wide_constants) for name in held)
        places = {
            f"parameter_{name}": f"load_real(call->parameter_{name} + channel * n + k, n, width)"
            for name in self.wide_parameters
        }
        places |= {
            f"parameter_{name}": f"load_real(call->parameter_{name} + channel, 1, width)" for name in self.narrow_parameters
        }
        return PrintedStages(program, whole.constants, places, targets, "room")

    def _constant_place(self, name: str) -> str:
        if name in self.wide_constants:
            return f"constants[{self.wide_constants.index(name)} * n + k]"
        return f"constants[{len(self.wide_constants)} * n + {self.narrow_constants.index(name)}]"

    # ---- inputs S.*

    @cached_property
    def _grouped(self) -> GroupedPrograms:
        cell = self.cell
        programs = cell.programs if isinstance(cell, LoweredVectors) else (cell.advance, cell.backward)
        return grouped(programs, self.shared)

    @property
    def group_statements(self) -> list[StatementText]:
        """Statements that depend on inputs S.* alone."""
        return [StatementText(statement.name, statement.c) for statement in self._grouped.statements]

    @property
    def group_values(self) -> tuple[str, ...]:
        """The names of inputs S.* and of values computed from them alone, in the order of their places."""
        return (*(f"S_{name}" for name in self.shared), *self._grouped.names)

    # ---- steps

    @cached_property
    def _places(self) -> Mapping[str, str]:
        places = {name: self._constant_place(name) for name in (*self.wide_constants, *self.narrow_constants)}
        places |= {f"previous_{name}": f"before{self.state_place(name)}" for name in self.states}
        return places | {name: f"number(shared[{place} * padded_n + k])" for place, name in enumerate(self.group_values)}

    def _printed(
        self, program: StagedProgram, stages: tuple[Stage, ...], targets: Iterable[Target], more: Mapping[str, str]
    ) -> PrintedStages:
        return PrintedStages(program, stages, {**self._places, **more}, tuple(targets), "room")

    def _of_states(self, label: str, array: str) -> list[Target]:
        return [
            Target(f"{label}_{name}", f"{array}{self.state_place(name)} = {{}};", name in self.wide_states)
            for name in self.states
        ]

    @cached_property
    def step(self) -> PrintedStages:
        """A step of a forward."""
        (program,) = self._grouped.programs
        targets = [*self._of_states("state", "after"), Target("y", "const vr y = {};", False)]
        return self._printed(program, program.steps, targets, {})

    @property
    def read_gates(self) -> tuple[str, ...]:
        """The gates that a step of a forward reads, or the preparation of a backward's."""
        program = self._back.prepared.preparation if self.is_backward else self._grouped.programs[0]
        return tuple(gate for gate in self.gates if f"W_{gate}" in program.inputs)

    # ---- a backward

    @property
    def _back(self) -> LoweredVectorsBackward:
        assert isinstance(self.cell, LoweredVectorsBackward)
        return self.cell

    @property
    def prepared_values(self) -> tuple[str, ...]:
        """Values of gates that a backward step reads, computed once for both walks."""
        return self._back.prepared.values

    @cached_property
    def preparation(self) -> PrintedStages:
        """Statements that depend on a step's gates alone."""
        program = self._back.prepared.preparation
        targets = (Target(name, f"prepared[{place}] = {{}};", False) for place, name in enumerate(self.prepared_values))
        return self._printed(program, program.steps, targets, {})

    @property
    def _prepared_places(self) -> dict[str, str]:
        return {name: f"prepared[{place}]" for place, name in enumerate(self.prepared_values)}

    @cached_property
    def kept_values(self) -> tuple[str, ...]:
        """Values that the walk to a chunk's end computes with n values and the walk back reads, such as exponentials."""
        advance, backward = self._grouped.programs
        again = {statement.name for stage in backward.steps for statement in stage.wide}
        made = [statement for stage in advance.steps for statement in stage.wide if statement.name in again]
        return tuple(statement.name for statement in made if Program((), (statement,), ()).transcendental_count)

    @cached_property
    def advance(self) -> PrintedStages:
        """The states after a step of a chunk, and the values kept for the walk back."""
        program = self._grouped.programs[0]
        program = replace(program, results=(*program.results, *((name, name) for name in self.kept_values)))
        targets = self._of_states("state", "after")
        targets += [Target(name, f"kept[{place} * n + k] = {{}};", True) for place, name in enumerate(self.kept_values)]
        return self._printed(program, program.steps, targets, self._prepared_places)

    @cached_property
    def backward(self) -> PrintedStages:
        """One step back."""
        cell, program = self._back, self._grouped.programs[1]
        program = restricted(program, {label for label, _ in program.results}, self.kept_values)
        places = self._prepared_places | {name: f"kept[{place} * n + k]" for place, name in enumerate(self.kept_values)}
        places |= {name: f"after{self.state_place(state)}" for state, name in cell.computed_states.items()}
        places |= {f"gradient_state_{name}": f"arriving{self.state_place(name)}" for name in self.states}
        targets = [Target(f"gradient_W_{gate}", f"const vr dW_{gate} = {{}};", False) for gate in self.gates]
        targets += self._of_states("gradient_previous", "passed")
        targets += [
            Target(f"gradient_S_{name}", f"add_to(dshared + {place} * n + k, {{}}, within);", True)
            for place, name in enumerate(self.shared)
        ]
        targets += [
            Target(f"gradient_parameter_{name}", f"{self._total_place(name)} += {{}};", name in self.wide_parameters)
            for name in self.cell.parameters
        ]
        return self._printed(program, program.steps, targets, places)

    @property
    def backward_gates(self) -> tuple[str, ...]:
        """The gates that a step back reads in addition to what is prepared."""
        inputs = self._back.backward.inputs
        return tuple(gate for gate in self.gates if f"W_{gate}" in inputs and f"W_{gate}" not in self.prepared_values)

    def _total_place(self, name: str) -> str:
        if name in self.wide_parameters:
            return f"totals[{self.wide_parameters.index(name)} * n + k]"
        place = len(self.gates) + self.narrow_parameters.index(name)
        return f"totals[{len(self.wide_parameters)} * n + {place}]"

    @cached_property
    def finish(self) -> PrintedStages:
        """Statements that turn sums over all steps into gradients of parameters."""
        program = self._back.summed.finish
        places = {f"total_gradient_parameter_{name}": self._total_place(name) for name in self.cell.parameters}
        targets = [
            Target(f"gradient_parameter_{name}", f"write(call->vectors_{name} + channel * n + k, n, width, {{}});", True)
            for name in self.wide_parameters
        ]
        targets += [
            Target(
                f"gradient_parameter_{name}", f"write(call->sums + {place} * call->hidden + channel, 1, width, {{}});", False
            )
            for place, name in enumerate(self.narrow_parameters, len(self.gates))
        ]
        return self._printed(program, program.steps, targets, places)

    @property
    def rooms(self) -> int:
        """The number of names with n values that a block of channels keeps between loops."""
        of_steps = (self.advance, self.backward, self.finish) if self.is_backward else (self.step,)
        return max(self.constants.rooms, *(stages.rooms for stages in of_steps))

    # ---- arguments

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The arguments, in their order; the first three are the interpreter's."""
        fields = [
            *call_fields(),
            Field("long", "values", "n"),
            Field("long", "groups", "K, of channels that share inputs"),
            *strides("checkpoints", "row"),
            Field("real *", "checkpoints", "[B, chunks of T, values of all states, H]; null: none are kept"),
            *(Field("const x_t *", f"W_{gate}", "pre-activations") for gate in self.gates),
            Field("const real *", "bias", "[G, H]"),
            *(Field("const real *", f"parameter_{name}", self._shape(name, "[H]")) for name in self.cell.parameters),
            *(Field("const real *", f"initial_{name}", self._shape(name, "[B, H]")) for name in self.states),
            *self._shared_fields("S", "const storage_t *", "[B, T, K, n]"),
        ]
        finals = [Field("real *", f"final_{name}", self._shape(name, "[B, H]")) for name in self.states]
        if not self.is_backward:
            fields += [Field("storage_t *", "y", "output"), *finals, *strides("states", "row", "time", "channel", "value")]
            kept = {True: "after every step, strides of states", False: "after every step, strides of y"}
            return (*fields, *(Field("real *", f"kept_{name}", kept[name in self.wide_states]) for name in self.states))
        fields += [
            *strides("dx", "row", "time", "channel"),
            Field("const storage_t *", "dy", "strides of y"),
            *(Field("const real *", f"dfinal_{name}", self._shape(name, "[B, H]")) for name in self.states),
            *(Field("x_t *", f"dW_{gate}", "gradients of pre-activations") for gate in self.gates),
            *(Field("real *", f"dinitial_{name}", self._shape(name, "[B, H]")) for name in self.states),
            *self._shared_fields("dS", "storage_t *", "as S"),
            Field("double *", "sums", "[biases, parameters without n; H]"),
            *(Field("double *", f"vectors_{name}", "[H, n]") for name in self.wide_parameters),
        ]
        return tuple(fields)

    def _shape(self, name: str, shape: str) -> str:
        return f"{shape[:-1]}, n]" if name in (*self.wide_states, *self.wide_parameters) else shape

    def _shared_fields(self, array: str, ctype: str, comment: str) -> list[Field]:
        fields = []
        for name in self.shared:
            fields.append(Field(ctype, f"{array}_{name}", comment))
            fields += [Field("long", f"{axis}_{array}_{name}", "stride") for axis in SHARED_AXES]
        return fields
