"""A cell as C for the host's CPU: its arguments, and the text of a pass for every size, layout and direction."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from minrnn_gen.cell.lowering_steps import LoweredSteps, LoweredStepsBackward
from minrnn_gen.cell.printing import complex_c_text
from minrnn_gen.cell.program import Program
from minrnn_gen.cell.rounds import places_by_round
from minrnn_gen.codegen.cpu_rounds import MeansOfUnits, NativeRound, native_rounds
from minrnn_gen.codegen.header import comment
from minrnn_gen.codegen.render import environment

CpuPass = Literal["forward", "backward"]
# A panel of R has about so many vectors of outputs for each input: fewer would wait for their sums, more would not fit.
PANEL_VECTORS = 4


class Field(NamedTuple):
    """One argument of a kernel, 8 bytes wide."""

    ctype: str
    name: str
    comment: str

    @property
    def declaration(self) -> str:
        """The field as a member of a C structure."""
        return self.ctype.format(self.name) if "{}" in self.ctype else f"{self.ctype} {self.name}"

    @property
    def format(self) -> str:
        """The format of the field for `struct`: a pointer is a number."""
        return "d" if self.ctype == "double" else "q"


class Storage(NamedTuple):
    """The type of an array's elements, and its name as part of function names."""

    name: str
    ctype: str


_STORAGE = {
    "float64": Storage("double", "double"),
    "float32": Storage("float", "float"),
    "float16": Storage("float16", "uint16_t"),
    "bfloat16": Storage("bfloat16", "uint16_t"),
    "complex64": Storage("float", "float"),
    "complex128": Storage("double", "double"),
}


class StatementText(NamedTuple):
    """One statement of a program in C."""

    name: str
    text: str


@dataclass(frozen=True)
class NativePlan:
    """Common base of every kernel for the CPU: a pass of a cell in a precision, whatever the sizes.

    `x_dtype` is the dtype of the pre-activations and of their gradients. A complex number is two elements of a vector, real
    part first.
    """

    kernel_pass: CpuPass
    cell: Any
    precision: str
    arithmetic_dtype: str
    storage_dtype: str
    x_dtype: str

    @property
    def real(self) -> str:
        """The arithmetic type."""
        return _STORAGE[self.arithmetic_dtype].ctype

    @property
    def storage(self) -> Storage:
        """The type of R, inputs S.*, y and dy."""
        return _STORAGE[self.storage_dtype]

    @property
    def x(self) -> Storage:
        """The type of pre-activations and their gradients."""
        return _STORAGE[self.x_dtype]

    @property
    def is_complex(self) -> bool:
        """Whether numbers are complex."""
        return self.arithmetic_dtype.startswith("complex")

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates of x."""
        return tuple(self.cell.gates)

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the states."""
        return tuple(self.cell.states)

    @property
    def saved_states(self) -> tuple[str, ...]:
        """The states whose values before a step a backward reads."""
        return ()

    @property
    def kept_states(self) -> tuple[str, ...]:
        """The saved states that a forward writes for a backward, since y lacks them."""
        return ()

    @property
    def places_by_round(self) -> tuple[tuple[int, ...], ...]:
        """The places in R of the gates that multiply the previous output, and of those of each round."""
        return ()

    @property
    def shares_gradients(self) -> bool:
        """Whether the gradients of pre-activations equal the gradients of the products with R, gate by gate and in type."""
        return False

    @property
    def template(self) -> str:
        """The template of the pass."""
        raise NotImplementedError

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The arguments, in their order; the first three are the interpreter's."""
        raise NotImplementedError

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The indices of the arguments by name."""
        return {field.name: place for place, field in enumerate(self.fields)}

    @cached_property
    def packer(self) -> struct.Struct:
        """Packing of all arguments' values, in their order."""
        return struct.Struct("".join(field.format for field in self.fields))


@dataclass(frozen=True)
class CpuPlan(MeansOfUnits, NativePlan):
    """A kernel for the CPU of a cell without the axis n.

    `saved_in_storage` is the state whose values a backward reads from y, in the storage dtype; others are in the arithmetic
    dtype.
    """

    cell: LoweredSteps | LoweredStepsBackward
    saved_in_storage: str | None = None

    @property
    def program(self) -> Program:
        """The program of one element of one step."""
        return self.cell.step if isinstance(self.cell, LoweredSteps) else self.cell.backward

    @property
    def statements(self) -> list[StatementText]:
        """The program in C."""
        statements = self.program.statements
        if not self.is_complex:
            return [StatementText(statement.name, statement.c) for statement in statements]
        # A gradient is multiplied by the conjugate of a derivative, which is the derivative at conjugates.
        is_backward = self.kernel_pass == "backward"
        conjugated = [name for name in self.program.inputs if is_backward and not name.startswith("gradient_")]
        return [StatementText(statement.name, complex_c_text(statement.expression, conjugated)) for statement in statements]

    def result(self, label: str, program: Program | None = None) -> str:
        """Return the variable that holds a result of a program, by default the program of a step."""
        return f"cell_{dict((program or self.program).results)[label]}"

    @property
    def is_dense(self) -> bool:
        """Whether there is a product with R."""
        return bool(self.cell.recurrent_gates)

    @property
    def recurrent_gates(self) -> tuple[str, ...]:
        """The gates of R."""
        return self.cell.recurrent_gates

    @cached_property
    def rounds(self) -> tuple[NativeRound, ...]:
        """The rounds of products after those of the previous output."""
        return native_rounds(self.cell)

    @property
    def places_by_round(self) -> tuple[tuple[int, ...], ...]:
        """The places in R of the gates that multiply the previous output, and of those of each round."""
        return places_by_round(self.recurrent_gates, [of_round.gates for of_round in self.rounds])

    @property
    def output_gates(self) -> tuple[str, ...]:
        """The gates of R that multiply the previous output."""
        return tuple(self.recurrent_gates[place] for place in self.places_by_round[0])

    @cached_property
    def inputs(self) -> frozenset[str]:
        """Arguments of a step; in a backward, also those of its rounds."""
        arguments = self.cell.arguments if isinstance(self.cell, LoweredStepsBackward) else ()
        return frozenset(self.program.inputs).union(*(argument.program.inputs for argument in arguments))

    @property
    def logarithms(self) -> tuple[str, ...]:
        """The states whose logarithms a forward carries, too."""
        return self.cell.logarithms if isinstance(self.cell, LoweredSteps) else ()

    @property
    def output_state(self) -> str | None:
        """The state that equals the output, if any."""
        return self.cell.output_state

    @property
    def read_gates(self) -> tuple[str, ...]:
        """The gates that the program reads."""
        return self.read_of(self.gates, "W", self.inputs)

    @property
    def read_inputs(self) -> tuple[str, ...]:
        """The inputs X.* that the program reads."""
        return self.read_of(self.cell.inputs, "X", self.inputs)

    @property
    def read_parameters(self) -> tuple[str, ...]:
        """The parameters that the program reads."""
        return self.read_of(self.cell.parameters, "parameter", self.inputs)

    @property
    def saved_states(self) -> tuple[str, ...]:
        """The states whose values before a step a backward reads."""
        read = self.cell.read_states if isinstance(self.cell, LoweredStepsBackward) else ()
        return tuple(name for name in self.states if name in read or (self.is_dense and name == self.output_state))

    @property
    def loaded_states(self) -> tuple[str, ...]:
        """The saved states that the program of a step reads itself, and the output that R multiplied."""
        multiplied = {self.output_state} if self.is_dense else set()
        return tuple(name for name in self.saved_states if name in multiplied or f"previous_{name}" in self.inputs)

    @property
    def kept_states(self) -> tuple[str, ...]:
        """The saved states that a forward writes for a backward, since y lacks them."""
        return tuple(state for state in self.saved_states if state != self.saved_in_storage)

    @property
    def summed(self) -> tuple[str, ...]:
        """The results that are added up over time and batch: gradients of biases, recurrent biases, parameters."""
        named = ("W", self.gates), ("R", self.recurrent_gates), ("parameter", self.cell.parameters)
        return tuple(f"gradient_{kind}_{name}" for kind, names in named for name in names)

    @property
    def shares_gradients(self) -> bool:
        """Whether the gradients of pre-activations equal the gradients of the products with R, gate by gate and in type."""
        if self.recurrent_gates != self.gates or self.x_dtype != self.arithmetic_dtype:
            return False
        return all(self.result(f"gradient_W_{gate}") == self.result(f"gradient_R_{gate}") for gate in self.gates)

    @staticmethod
    def read_of(names: tuple[str, ...], kind: str, inputs: Collection[str]) -> tuple[str, ...]:
        """Return the names of a kind that are among a program's inputs."""
        return tuple(name for name in names if f"{kind}_{name}" in inputs)

    @property
    def unit_vectors(self) -> int:
        """How many vectors of units a block of R has for each gate; in stages gates are multiplied one after the other."""
        return PANEL_VECTORS if self.is_staged else max(1, PANEL_VECTORS // len(self.recurrent_gates))

    def access_of(self, state: str) -> str:
        """Return the kind of load of a saved state."""
        return "storage" if state == self.saved_in_storage else "real"

    def region_of(self, state: str) -> int:
        """Return the index of a state among the regions of the workspace; the output of a dense cell has two regions."""
        place = self.states.index(state)
        if not self.is_dense or self.output_state is None:
            return place
        output = self.states.index(self.output_state)
        return 0 if place == output else place + (2 if place < output else 1)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The arguments, in their order."""
        return tuple(_fields(self))

    @property
    def template(self) -> str:
        """The template of the pass."""
        return f"cpu/{self.kernel_pass}.c.j2"


def _fields(plan: CpuPlan) -> list[Field]:
    """Return the arguments of a kernel."""
    backward = plan.kernel_pass == "backward"
    fields = [
        *call_fields(),
        Field("long", "heads", "N"),
        Field("long", "head_dim", "D; H = N * D"),
        Field("long", "packs", "whether R is packed: 1 by this launch, 2 by the one before"),
        *strides("products", "row"),
        *(Field("const x_t *", f"W_{gate}", "pre-activations") for gate in plan.gates),
        Field("const real *", "bias", "[G, H]"),
        *(Field("const real *", f"parameter_{name}", "[H]") for name in plan.cell.parameters),
        *(Field("const real *", f"initial_{state}", "[B, H]") for state in plan.states),
        *(Field("const storage_t *", f"X_{name}", "strides of y") for name in plan.cell.inputs),
    ]
    if plan.is_dense:
        fields += [
            Field("const storage_t *", "R", "[Gr, N, D, D]"),
            Field("real *", "products", "[B, T, Gr, H], of R and the output before each step"),
        ]
    if not backward:
        fields += [
            *((Field("const real *", "recurrent_bias", "[Gr, H]"),) if plan.is_dense else ()),
            Field("storage_t *", "y", "output"),
            *(Field("real *", f"kept_{state}", "after every step, strides of y") for state in plan.states),
            *(Field("real *", f"final_{state}", "[B, H]") for state in plan.states),
        ]
        return fields
    fields += strides("dx", "row", "time", "channel")
    fields += [
        Field("const storage_t *", "dy", "strides of y"),
        *(Field(f"const {_saved_type(plan, state)} *", f"state_{state}", "after every step") for state in plan.saved_states),
        *(Field("const real *", f"dfinal_{state}", "[B, H]") for state in plan.states),
        *(Field("x_t *", f"dW_{gate}", "gradients of pre-activations") for gate in plan.gates),
        *(Field("real *", f"dinitial_{state}", "[B, H]") for state in plan.states),
        *(Field("storage_t *", f"dX_{name}", "strides of y") for name in plan.cell.inputs),
        Field("double *", "sums", "[biases, recurrent biases, parameters; H]"),
    ]
    if plan.is_dense:
        fields += [
            Field("long", "clips", "whether gradients through time are bounded"),
            Field("double", "clip", "their bound"),
            *strides("outputs", "row", "time"),
            Field("real *", "outputs", "[B, T, H] or [T, B, H], before each step"),
            *(Field("real *", f"arguments_{of_round.number}", "of its round, as outputs") for of_round in plan.rounds),
            Field("real *", "dproducts", "[B, T, Gr, H], gradients of the products"),
        ]
    return fields


def call_fields() -> list[Field]:
    """Return the arguments that every kernel has, those of the interpreter first."""
    return [
        Field("void *(*{})(void)", "release", "lets go of the interpreter's lock; null: it is not held"),
        Field("void (*{})(void *)", "acquire", "takes it back"),
        Field("int (*{})(void)", "pending", "whether a signal ends the call; null: nobody asks"),
        Field("long", "rows", "sequences: B"),
        Field("long", "time", "T, the steps of x"),
        Field("long", "steps", "those of the longest sequence"),
        Field("long", "hidden", "H"),
        Field("long", "reverse", "whether time runs from each sequence's end"),
        Field("long", "fills", "whether what is behind a sequence is written, with zeros"),
        Field("long", "threads", "how many are asked for"),
        Field("long", "splits_units", "whether threads share units, else rows"),
        *strides("resets", "row", "time"),
        *strides("x", "row", "time", "channel"),
        *strides("y", "row", "time", "channel"),
        Field("void (*{})(void (*)(void *), void *, unsigned, unsigned)", "parallel", "runs a function on threads"),
        Field("int (*{})(void)", "team_size", "how many of them run it"),
        Field("void *", "workspace", "bytes as workspace_bytes says"),
        Field("const long *", "firsts", "first step of each sequence"),
        Field("const long *", "counts", "steps of each sequence"),
        Field("const unsigned char *", "resets", "[B, T]"),
    ]


def strides(array: str, *axes: str) -> list[Field]:
    """Return the arguments of an array's strides along axes."""
    return [Field("long", f"{array}_{axis}", "stride") for axis in axes]


def _saved_type(plan: CpuPlan, state: str) -> str:
    return {"storage": "storage_t", "real": "real"}[plan.access_of(state)]


def cpu_source(plan: NativePlan) -> str:
    """Render a kernel for the CPU."""
    header = (
        f"{plan.cell.name}: {plan.kernel_pass}, {plan.precision}, for the CPU; from {plan.template} by minrnn-gen.",
        "One step of one channel is, for all sizes, layouts and directions:",
        *(f"  {line}" for line in plan.cell.equations.strip().splitlines()),
    )
    return environment().get_template(plan.template).render(plan=plan, header=tuple(map(comment, header)))


def pool_source() -> str:
    """Render the threads that kernels share if the process has no runtime of its own for threads."""
    return environment().get_template("cpu/threads.c.j2").render(header=("Threads of kernels for the CPU; by minrnn-gen.",))
