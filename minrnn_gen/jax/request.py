"""Request of an XLA program: one operation on arrays of fixed shapes, as self-contained text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from minrnn_gen.call.interface import Interface
from minrnn_gen.call.slots import CU_SEQLENS, has_gradient
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.precision import precision_storing
from minrnn_gen.raw_scan.filter_results import FILTER_PASSES
from minrnn_gen.raw_scan.map_arguments import Form

Kind = Literal["forward", "backward", "step", "step_on_pool", "scan", "scan_backward", "filter", "filter_backward"]


class Shaped(NamedTuple):
    """The shape and the dtype of an array."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, array: Any) -> Shaped:
        """Return the form of an array of JAX, or of a tracer."""
        return cls(tuple(array.shape), array.dtype.name)


@dataclass(frozen=True, slots=True)
class Request:
    """One operation. `present`: which of its slots have an array, those of `CallArguments.flat`, or of a raw scan a, b, h0.

    Of a filter these are x, b, a, zi, and of its backward x, b, a, y, dy, dzf; x is [N, C, T]. `recipe` is of the kernel, empty
    of a raw scan, which has the other keywords, and of a filter. A scan of form "full" has an h0, and a map for each step.
    `keeps`: the states after every step are written by a forward, and read by a backward. `trains`: a backward follows this
    forward. A step on a pool has the slots that it reads, those that it writes and None after those of its call, and writes the
    pool, its states, in place.
    """

    kind: Kind
    present: tuple[bool, ...]
    recipe: str = ""
    keeps: bool = False
    trains: bool = False
    log_a: bool = False
    reverse: bool = False
    axis: int = 0
    form: Form = "scalar"
    pad_slot: int = -1

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots of the first operands, in their order."""
        return tuple(slot for slot, is_there in enumerate(self.present) if is_there)

    @property
    def interface(self) -> Interface:
        """Interface of the kernel."""
        return kernel_by(self.recipe).interface

    @property
    def gradient_slots(self) -> tuple[int, ...]:
        """The slots whose gradients a backward of a kernel returns, in their order."""
        return tuple(filter(has_gradient, self.slots))

    @property
    def aliases(self) -> dict[int, int]:
        """Operands that are written in place, each with its result."""
        if self.kind != "step_on_pool":
            return {}
        states = self.interface.slots.states
        written = (self.slots.index(slot) for slot in range(states.start, states.stop))
        return {operand: result for result, operand in enumerate(written, start=1)}

    def results(self, operands: Sequence[Shaped]) -> tuple[Shaped, ...]:
        """Return the form of the results."""
        x = operands[0]
        if self.form == "full":
            return tuple(operands[1:]) if self.kind == "scan" else (x, operands[2], operands[4])
        if self.kind in ("scan", "scan_backward"):
            precision = precision_storing(x.dtype)
            assert precision is not None
            state = Shaped(x.shape[: self.axis] + x.shape[self.axis + 1 :], precision.arithmetic_dtype)
            return (x, state) if self.kind == "scan" else (x, x, state)
        if self.kind in FILTER_PASSES:
            coefficients = operands[1]
            state = Shaped((*x.shape[:2], coefficients.shape[1] - 1), coefficients.dtype)
            return (x, state) if self.kind == "filter" else (x, coefficients, coefficients, state)
        if self.kind == "backward":
            return tuple(operands[self.slots.index(slot)] for slot in self.gradient_slots)
        interface = self.interface
        storage, carried = interface.precision.storage_dtype, interface.precision.arithmetic_dtype
        if self.kind == "step_on_pool":
            return (Shaped(interface.step_shape(x.shape[0]), storage), *(operands[index] for index in self.aliases))
        if self.kind == "step":
            of_step = (Shaped(interface.shape_of_state(name, x.shape[0]), carried) for name in interface.states)
            return (Shaped(interface.step_shape(x.shape[0]), storage), *of_step)
        rows, time = (x.shape[interface.x_axes.index(axis)] for axis in "bt")
        count = self.sequences(operands)
        final = (Shaped(interface.shape_of_state(name, count), carried) for name in interface.states)
        kept = (Shaped(interface.states_shape(name, rows, time), carried) for name in (interface.states if self.keeps else ()))
        return (Shaped(interface.y_shape(rows, time), storage), *final, *kept)

    def sequences(self, operands: Sequence[Shaped]) -> int:
        """Return the number of sequences of a kernel's call."""
        if self.present[CU_SEQLENS]:
            return operands[self.slots.index(CU_SEQLENS)].shape[0] - 1
        return operands[0].shape[0 if self.kind in ("step", "step_on_pool") else self.interface.x_axes.index("b")]


class CallSite(NamedTuple):
    """A request at one place of an XLA program, with operands of these shapes."""

    request: Request
    operands: tuple[Shaped, ...]

    def text(self) -> str:
        """Return the call as JSON, from which any process can rebuild it: programs are cached and exported."""
        return json.dumps([asdict(self.request), self.operands], separators=(",", ":"), ensure_ascii=True)

    @classmethod
    def of(cls, text: str) -> CallSite:
        """Parse a call's text."""
        fields, operands = json.loads(text)
        request = Request(**{**fields, "present": tuple(fields["present"])})
        return cls(request, tuple(Shaped(tuple(shape), dtype) for shape, dtype in operands))


def digest_of(text: str) -> int:
    """Return 63 bits that identify a call, as the key of a table."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
