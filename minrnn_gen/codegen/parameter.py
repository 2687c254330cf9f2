"""Parameters of a kernel as data: printed into its text, and packed by their names for its launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any

from minrnn_gen.cell.cuda_names import cuda_name

_INDENT, _NAMES_OF_LINE = "    ", 6
_INTEGER = "int64"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel.

    `name` is the argument's name in a launch. `identifier` is the parameter's name in CUDA text, with a prefix if the array is
    called after a state or a parameter of the cell (`is_of_cell`). The `comment` of a pointer begins with the shape. `source`
    is the path of the value in the arrays and numbers of a call: "call.x" for the address of x and for its strides.
    """

    name: str
    ctype: str
    comment: str
    source: str
    is_of_cell: bool = False

    @property
    def identifier(self) -> str:
        """The name in CUDA text."""
        return cuda_name(self.name) if self.is_of_cell else self.name


class Signature(tuple[Parameter, ...]):
    """The parameters of one entry, in order."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(parameter.name for parameter in self)

    @cached_property
    def in_order(self) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
        """A function that returns the values of a mapping by name in the order of the parameters."""
        return itemgetter(*self.names)


def pack(parameters: Signature, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return values by name in the order of the parameters; raises TypeError for a name that is missing or unknown."""
    try:
        packed = parameters.in_order(values)
    except KeyError as missing:
        raise TypeError(f"the kernel has a parameter {missing.args[0]!r}, for which there is no value") from None
    if len(values) != len(parameters):
        unknown = sorted(values.keys() - set(parameters.names))
        raise TypeError(f"there is a value for {unknown[0]!r}, which is no parameter of the kernel")
    return packed


def parameter_text(parameters: Signature) -> str:
    """Return the lines of a parameter list, comments aligned; those without a comment share a line with their neighbours."""
    lines: list[tuple[str, str]] = []
    for has_comment, group in groupby(parameters, lambda parameter: bool(parameter.comment)):
        declared = [(f"{parameter.ctype} {parameter.identifier},", parameter.comment) for parameter in group]
        lines += declared if has_comment else [(" ".join(text for text, _ in declared), "")]
    last, comment = lines.pop()
    lines.append((last.removesuffix(","), comment))
    width = max((len(text) for text, comment in lines if comment), default=0)
    text = "\n".join(_INDENT + (f"{text:{width}}  // {comment}" if comment else text) for text, comment in lines)
    return text + "\n" if comment else text


def member_text(parameters: Signature) -> str:
    """Return the members of a struct of the parameters, whose integers have 8 bytes each; neighbouring ones share a line."""
    lines: list[str] = []
    for ctype, group in groupby(parameters, _member_type):
        names = [parameter.identifier for parameter in group]
        lines += [f"{ctype} {', '.join(names)};"] if ctype == _INTEGER else [f"{ctype} {name};" for name in names]
    return "\n".join(_INDENT + line for line in lines)


def _member_type(parameter: Parameter) -> str:
    return _INTEGER if parameter.ctype == "unsigned" else parameter.ctype.removesuffix(" __restrict__")


def initializer_text(parameters: Signature) -> str:
    """Return the initialiser of a struct of the parameters."""
    names = [f"{parameter.identifier}," for parameter in parameters]
    starts = range(0, len(names), _NAMES_OF_LINE)
    return "\n".join(3 * _INDENT + " ".join(names[start : start + _NAMES_OF_LINE]) for start in starts)
