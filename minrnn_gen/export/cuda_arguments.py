"""What a compiled kernel is launched with from C: its arguments as expressions, by the sources in its signature."""

from __future__ import annotations

import struct
from collections.abc import Callable

from minrnn_gen.call.interface import Interface
from minrnn_gen.codegen.parameter import Parameter, Signature
from minrnn_gen.codegen.signature_groups import AXES

# What steps that are taken one by one hand on.
_SCRATCH = tuple(f"scratch.{name}" for name in ("state", "hidden", "packed", "product", "dstate", "dhidden", "dproduct"))
_CLIP_FORMATS = {"float32": "<f4x", "float64": "<d"}


def expressions(interface: Interface, parameters: Signature, clip: float | None) -> tuple[str, ...]:
    """Return the arguments of a kernel in the order of its signature, as expressions in C; `clip` is that of a backward."""

    def values(parameter: Parameter) -> str:
        name = parameter.name.partition("_")[2]
        return str(interface.state_size if name in (*interface.vector_states, *interface.vector_parameters) else 1)

    def of_state(parameter: Parameter) -> str:
        return f"direction * call->batch * HIDDEN * {values(parameter)}"

    by_source: dict[str, Callable[[Parameter], str]] = {
        "call.x": lambda parameter: _array("x", parameter),
        "outputs.y": lambda parameter: _array("y", parameter),
        "call.R": lambda _: _part("call->R", "direction * (int64_t)RECURRENT_ROWS * HEAD_DIM"),
        "call.bias": lambda _: _part("call->bias", "direction * GATES * HIDDEN"),
        "call.recurrent_bias": lambda _: _recurrent_bias(interface),
        "call.parameters": lambda parameter: _part(f"call->{parameter.name}", f"direction * HIDDEN * {values(parameter)}"),
        "call.initial": lambda parameter: _part(f"call->{parameter.name}", of_state(parameter)),
        "outputs.final": lambda parameter: f"ADDRESS(run->{parameter.name} + {of_state(parameter)})",
        "outputs.kept": lambda parameter: _kept(interface, parameter),
        "call.shared": lambda parameter: _shared(parameter, "shared"),
        "gradients.dshared": lambda parameter: _shared(parameter, "dshared"),
        "gradients.vectors": lambda parameter: f"run->{parameter.name}",
        "launch.checkpoints": lambda _: "run->checkpoints",
        "launch.part_ends": lambda _: "run->part_ends",
        "launch.phase": lambda _: "run->phase",
        "call.sequences.resets": lambda parameter: _array("resets", parameter),
        "call.sequences.cu_seqlens": lambda _: "ADDRESS(CU_SEQLENS(call))",
        "call.sequences.lengths": lambda _: "run->ends",
        "call.batch": lambda _: "call->batch",
        "call.time": lambda _: "call->time",
        "launch.workspace": lambda _: "run->handed_on",
        "launch.first_group": lambda _: "run->first_group",
        "launch.float32_vectors": lambda _: _mask(interface),
        "arrays.read_states": lambda parameter: _read_state(parameter, parameters),
        "incoming.dy": lambda parameter: "run->dy" if parameter.name == "dy" else f"run->y_strides.{_axis(parameter)}",
        "incoming.dfinal": lambda parameter: _part(f"call->{parameter.name}", of_state(parameter)),
        "gradients.dx": lambda parameter: _array("dx", parameter),
        "gradients.dinitial": lambda parameter: f"ADDRESS(run->{parameter.name} + {of_state(parameter)})",
        "gradients.sums": lambda _: "run->sums",
        "arrays.products": lambda parameter: (
            "run->products" if parameter.name == "products" else f"run->row_strides.{_axis(parameter)}"
        ),
        "arrays.first_products": lambda _: "run->first_products",
        "arrays.dproducts": lambda _: "run->dproducts",
        "arrays.first_dproducts": lambda _: "run->first_dproducts",
        "arrays.neighbours": lambda _: "0",
        "call.reverse": lambda _: "run->is_reverse",
        "launch.keeps_storage": lambda _: "run->keeps_storage",
        "launch.first_step": lambda _: "0",
        "launch.step_in_chunk": lambda _: "run->step",
        "scratch.call": lambda _: "run->call_in_memory",
        "spec.recurrent_gradient_clip": lambda _: _bits_of(clip or 0.0, interface.precision.arithmetic_dtype),
    }
    by_source |= dict.fromkeys(_SCRATCH, lambda parameter: f"run->{parameter.name}")
    return tuple(f"(uint64_t)({by_source[parameter.source](parameter)})" for parameter in parameters)


def _axis(parameter: Parameter) -> str:
    """The axis of a stride."""
    return next(axis for axis in AXES.values() if parameter.name.endswith(f"_{axis}_stride"))


def _array(name: str, parameter: Parameter) -> str:
    """The address of an array, or its stride along an axis."""
    return f"run->{name}" if parameter.name == name else f"run->{name}_strides.{_axis(parameter)}"


def _read_state(parameter: Parameter, parameters: Signature) -> str:
    """The address of a state after every step, or a stride of all of them; without any the kernel takes no strides."""
    if parameter.name.startswith("saved_"):
        return f"run->{parameter.name}"
    has_any = any(name.startswith("saved_") for name in parameters.names)
    return f"run->y_strides.{_axis(parameter)}" if has_any else "0"


def _kept(interface: Interface, parameter: Parameter) -> str:
    """The address of a state after every step, or a stride of those with the axis n."""
    if parameter.name.startswith("kept_"):
        return f"run->{parameter.name}"
    return f"run->states_strides.{_axis(parameter)}" if interface.vector_states else "0"


def _shared(parameter: Parameter, array: str) -> str:
    """The address of an input S.* or of parts of its gradient, or a stride of either."""
    if parameter.name.startswith(f"{array}_"):
        return f"run->{parameter.name}"
    return "run->dshared_part" if _axis(parameter) == "part" else f"run->shared_strides.{_axis(parameter)}"


def _part(pointer: str, offset: str) -> str:
    """The address of one direction's part of an array that may be absent."""
    return f"{pointer} ? ADDRESS({pointer} + {offset}) : 0"


def _recurrent_bias(interface: Interface) -> str:
    return _part("call->recurrent_bias", "direction * RECURRENT_ROWS") if interface.takes_recurrent_bias else "0"


def _mask(interface: Interface) -> str:
    """Which vectors are float32, bit by bit: those that are there, unless the arithmetic is float64."""
    if interface.precision.arithmetic_dtype != "float32":
        return "0"
    biases = ["bias", *(["recurrent_bias"] if interface.takes_recurrent_bias else [])]
    first = 2 if interface.recurrent_gates else 1
    bits = [f"(call->{bias} != 0) << {bit}" for bit, bias in enumerate(biases)]
    bits += [f"1 << {bit}" for bit, _ in enumerate(interface.parameters, first)]
    return " | ".join(bits)


def _bits_of(number: float, dtype: str) -> str:
    """A number as the bits of its slot."""
    return f"{int.from_bytes(struct.pack(_CLIP_FORMATS[dtype], number), 'little'):#x}u"
