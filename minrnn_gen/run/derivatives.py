"""Derivatives of a call along tangents, and gradients of its gradients: calls of the kernel of the cell's tangent."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from minrnn_gen.build.tangent_cells import tangent_recipe
from minrnn_gen.call.altered import spread
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.joined import joined
from minrnn_gen.call.known_names import known_names
from minrnn_gen.call.slots import FIXED, SEQUENCES, R, X, has_gradient
from minrnn_gen.call.validate import check_place, check_plain
from minrnn_gen.errors import BadInput, nearest_name
from minrnn_gen.gpu import memory
from minrnn_gen.run.altered import AlteredSaved
from minrnn_gen.run.embedded import EmbeddedExecutor
from minrnn_gen.run.saved import Forward, ForwardReplay, Saved
from minrnn_gen.run.scan.apart import scanned
from minrnn_gen.run.tangent import TangentCall

# The arguments of a call that have tangents.
NAMED = tuple(name for name in CallArguments._fields if name not in FIXED[SEQUENCES])


class DerivedKernel(Protocol):
    """The parts of a `Kernel` that its derivatives need."""

    recipe: str
    executor: Any

    @property
    def interface(self) -> Any: ...

    @property
    def states(self) -> tuple[str, ...]: ...

    @property
    def embedded(self) -> Any: ...

    def of_recipe(self, recipe: str, /) -> Any: ...


@dataclass(frozen=True)
class SavedCall:
    """Arrays that a forward of `owner` saved, by slot of `kernel`, which is `owner` or its kernel without the axis p."""

    owner: DerivedKernel
    kernel: DerivedKernel
    arrays: list[Any]
    forward: Forward | ForwardReplay
    y: Any
    embedding: Any = None

    @classmethod
    def of(cls, kernel: DerivedKernel, saved: Saved) -> SavedCall:
        """Return the call of a kernel's `saved`; raises BadInput for one that is released or another kernel's.

        Also raises for a cell with inputs of one value per step; torch and JAX expand these to all channels themselves.
        """
        for name in kernel.interface.step_inputs:
            raise BadInput(
                f"the cell reads X.{name}, one value per step, and kernels take no tangent of it; list it as `{name}: 1` and "
                "pass its value in all channels, or take the derivative by minrnn_gen.torch.recurrence"
            )
        opened = saved.open_for(kernel.executor)
        forward = opened if isinstance(opened, Forward) else opened.metadata()
        call, y = forward.call, forward.outputs.y.owner
        arrays = [None if array is None else array.owner for array in call.flat()]
        if not isinstance(kernel.executor, EmbeddedExecutor):
            return cls(kernel, kernel, arrays, opened, y)
        assert kernel.embedded is not None
        embedding = kernel.executor.embedding
        if not kernel.executor.serves(call):
            outer = CallArguments.from_flat(kernel.interface, arrays)
            arrays = embedding.arguments(outer).flat(embedding.inner) or []
        return cls(kernel, kernel.embedded, arrays, opened, y, embedding)

    def tangents(self, by_name: Mapping[str, Any]) -> list[Any]:
        """Return tangents by slot, from tangents by the names of `owner`'s arguments; raises BadInput for a wrong array."""
        for name in by_name:
            if name not in NAMED:
                allowed = ", ".join(NAMED)
                raise BadInput(f"tangents has an unknown name {name!r}; allowed are {allowed}{nearest_name(name, NAMED)}")
        interface = self.owner.interface
        arguments = joined(interface, CallArguments(**{"x": None, **by_name}))
        states = known_names(arguments.state, interface.states, "tangents['state']")
        if self.embedding is not None:
            arguments = self._embedded(arguments, states)
            interface = self.kernel.interface
            states = known_names(arguments.state, interface.states, "tangents['state']")
        names = {"parameters": interface.parameters, "shared": interface.shared, "inputs": interface.inputs}
        mapped = {what: known_names(getattr(arguments, what), of, f"tangents['{what}']") for what, of in names.items()}
        flat = [*arguments[: len(FIXED)], *(mapped["parameters"].get(name) for name in interface.parameters)]
        flat += [states.get(name) for name in interface.states]
        flat += [mapped["shared"].get(name) for name in interface.shared]
        flat += [mapped["inputs"].get(name) for name in interface.inputs]
        labels = [*FIXED, *(f"{what}['{name}']" for what, of in _slots_of(interface) for name in of)]
        checked = [self._checked(slot, tangent, labels[slot]) for slot, tangent in enumerate(flat)]
        return self._with_all_states(checked)

    def _embedded(self, arguments: CallArguments, states: Mapping[str, Any]) -> CallArguments:
        """Return tangents in the shapes of the kernel without the axis p. The mask of the P units has no tangent."""
        embedding = self.embedding
        named = {name: array for name, array in (arguments.parameters or {}).items() if array is not None}
        widened = {
            name: embedding.widened(array) if name in embedding.outer.projected_parameters else array
            for name, array in known_names(named, embedding.outer.parameters, "tangents['parameters']").items()
        }
        bias, matrix = arguments.recurrent_bias, arguments.R
        return arguments._replace(
            R=None if matrix is None else embedding.matrices(matrix),
            recurrent_bias=None if bias is None else embedding.biases(bias),
            parameters=widened or None,
            state=embedding.states({name: state for name, state in states.items() if state is not None}) or None,
        )

    def _checked(self, slot: int, tangent: Any, label: str) -> Any:
        if tangent is None or not has_gradient(slot):
            return None
        name, array = f"tangents: {label}", self.arrays[slot]
        inspected, x = memory.inspect(tangent, name), memory.inspect(self.arrays[X], "x")
        if array is None and not self._is_state(slot):
            raise BadInput(f"{name} was given, but the call has no {label}; leave it out")
        shape, dtype = self._form_of(slot)
        inspected = memory.without_gaps(inspected) if not inspected.is_contiguous else inspected
        check_plain(inspected, (dtype,), shape)
        check_place(inspected, x)
        return inspected.owner

    def _is_state(self, slot: int) -> bool:
        states = self.kernel.interface.slots.states
        return bool(states.start <= slot < states.stop)

    def _form_of(self, slot: int) -> tuple[tuple[int, ...], str]:
        interface = self.kernel.interface
        if self._is_state(slot):
            name = interface.states[slot - interface.slots.states.start]
            return interface.shape_of_state(name, self._sequences), interface.precision.arithmetic_dtype
        array = memory.inspect(self.arrays[slot], "array")
        return (interface.R_shape if slot == R else array.shape), array.dtype

    @property
    def _sequences(self) -> int:
        ends, x = self.arrays[SEQUENCES][2], self.arrays[X]
        rows = x.shape[self.kernel.interface.x_axes.index("b")]
        return int(rows if ends is None else ends.shape[0] - 1)

    def _with_all_states(self, tangents: list[Any]) -> list[Any]:
        """Return tangents with zeros for the absent states, where other states have a tangent."""
        places, interface = self.kernel.interface.slots.states, self.kernel.interface
        present = [array for array in tangents[places] if array is not None]
        if present and len(present) < len(interface.states):
            zeros = partial(self.xp.zeros, dtype=present[0].dtype, **self._place)
            shapes = [interface.shape_of_state(name, self._sequences) for name in interface.states]
            pairs = zip(tangents[places], shapes, strict=True)
            tangents[places] = [zeros(shape) if array is None else array for array, shape in pairs]
        return tangents

    @property
    def xp(self) -> Any:
        """The namespace of the arrays' library."""
        return sys.modules[memory.inspect(self.arrays[X], "x").library]

    @property
    def _place(self) -> dict[str, Any]:
        return {"device": self.arrays[X].device} if self.xp.__name__ == "torch" else {}


def _slots_of(interface: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    named = (("parameters", interface.parameters), ("state", interface.states))
    return (*named, ("shared", interface.shared), ("inputs", interface.inputs))


class Derivatives:
    """Derivatives of a `Kernel` along tangents, and second ones."""

    def tangent(self, saved: Saved | AlteredSaved, tangents: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return (dy, dstate), the derivatives of y and of the final state along tangents of the arguments of a call.

        saved: of `forward`. tangents: by the names of the arguments, each of the shape (of R and recurrent_bias: the longer
        one) and dtype of its array; "parameters", "state", "shared", "inputs" and "reset_states" by name; absent tangents, or
        None, are zeros. dy is like y, and dstate like the state. The first call compiles a kernel of its own. Raises BadInput
        for arrays that do not fit, for a `saved` that is released or another kernel's, and for clipped gradients.
        """
        call, by_slot, _ = self._saved_call(saved, tangents)
        run = _TangentRun(call, by_slot)
        return run.outputs(run.forward(saves=False)[0])

    def second_backward(
        self, saved: Saved | AlteredSaved, dy: Any, tangents: Mapping[str, Any], dstate: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the gradients of sum(gradient * tangent) over the gradients that `backward(saved, dy, dstate)` returns.

        dy, dstate: as of `backward`; tangents: as of `tangent`. The result has the entries of `backward`'s, and "dy" and
        "dstate" {name: [B, H]}, the gradients of dy and dstate. Raises what both raise.
        """
        call, by_slot, alteration = self._saved_call(saved, tangents)
        run = _TangentRun(call, by_slot)
        result, gradients = run.scanned(dy, dstate) or run.both(dy, dstate)
        moved, final = run.outputs(result)
        gradients = gradients if alteration is None else alteration.gradients(gradients)
        return gradients | {"dy": moved, "dstate": final}

    def _saved_call(self: Any, saved: Any, tangents: Mapping[str, Any]) -> tuple[SavedCall, list[Any], Any]:
        """Return the call that was saved, its tangents by slot, and its reset states and holds, if any."""
        by_name = dict(tangents)
        if not isinstance(saved, AlteredSaved):
            if by_name.pop("reset_states", None):
                raise BadInput("tangents: reset_states was given, but the call has none; leave it out")
            call = SavedCall.of(self, saved)
            return call, call.tangents(by_name), None
        alteration = saved.alteration
        kernel = self.altered(bool(alteration.states), alteration.recipe.hold is not None)[0]
        begins = known_names(by_name.pop("reset_states", None), self.interface.states, "tangents['reset_states']")
        call, storage = SavedCall.of(kernel, saved.saved), self.interface.precision.storage_dtype
        inputs = dict(known_names(by_name.pop("inputs", None), self.interface.inputs, "tangents['inputs']"))
        for state, name in alteration.recipe.begins:
            if begins.get(state) is not None:
                values = memory.cast(begins[state], storage)
                inputs[name] = spread(
                    alteration.xp, self.interface.channel_axes, alteration.resets, values, alteration.sequence
                )
        return call, call.tangents({**by_name, "inputs": inputs or None}), alteration


class _TangentRun:
    """A call of the kernel of the tangent."""

    def __init__(self, call: SavedCall, tangents: list[Any]) -> None:
        kernel = call.kernel
        self._call = call
        self._recipe = tangent_recipe(kernel.recipe, tangents[R] is not None)
        self._kernel = call.owner.of_recipe(self._recipe.recipe)
        self._as_called = TangentCall(kernel.interface, self._recipe, call.xp, call.arrays, tangents, call.y)

    def forward(self, saves: bool) -> tuple[Any, Any]:
        arguments = CallArguments.from_flat(self._kernel.interface, self._as_called.arguments())
        result, forward = self._kernel.executor.forward(arguments, False, saves)
        return result, forward

    def outputs(self, result: Any) -> tuple[Any, dict[str, Any]]:
        states, embedding = self._as_called.final(result.final), self._call.embedding
        if embedding is None:
            return result.y, dict(zip(self._call.kernel.states, states, strict=True))
        return embedding.y(result.y), dict(zip(embedding.outer.states, embedding.final(states), strict=True))

    def scanned(self, dy: Any, dstate: Mapping[str, Any] | None) -> tuple[Any, dict[str, Any]] | None:
        """Return the results and gradients of scans that read gates and tangents where they are; None where none serves."""
        call, executor = self._call, self._kernel.executor
        metadata = call.forward if isinstance(call.forward, Forward) else call.forward.metadata()
        if call.embedding is not None or isinstance(executor, EmbeddedExecutor) or not executor.backend.takes(metadata.call):
            return None
        states = known_names(dstate, call.kernel.states, "dstate")
        incoming = [states.get(name) for name in call.kernel.states] if states else []
        computed = scanned(executor, self._as_called, [array.owner for array in metadata.outputs.kept], dy, incoming)
        if computed is None:
            return None
        result, gradients = computed
        of_call = CallArguments.from_flat(call.kernel.interface, gradients)._asdict()
        return result, {name: value for name, value in of_call.items() if value is not None}

    def both(self, dy: Any, dstate: Mapping[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Return the results of the tangent's forward, and the gradients."""
        result, forward = self.forward(saves=True)
        return result, self.gradients(forward, dy, dstate)

    def gradients(self, forward: Any, dy: Any, dstate: Mapping[str, Any] | None) -> dict[str, Any]:
        call, embedding = self._call, self._call.embedding
        if embedding is not None:
            named = known_names(dstate, embedding.outer.states, "dstate")
            dy, dstate = embedding.dy(dy), embedding.states(named) if named else None
        states = known_names(dstate, call.kernel.states, "dstate")
        pairs = zip(self._kernel.states, self._recipe.states, strict=True)
        of_tangents = {name: states.get(call.kernel.states[place]) for name, (place, is_tangent) in pairs if is_tangent}
        incoming = {name: state for name, state in of_tangents.items() if state is not None}
        arriving = self._backward(self._kernel, forward, dy, incoming or None)
        gradients = self._as_called.gradients(arriving, lambda dy: self._backward(call.kernel, call.forward, dy, None))
        of_call = CallArguments.from_flat(call.kernel.interface, gradients)._asdict()
        present = {name: value for name, value in of_call.items() if value is not None}
        return present if embedding is None else embedding.gradients(present)

    def _backward(self, kernel: Any, forward: Any, dy: Any, dstate: Mapping[str, Any] | None) -> list[Any]:
        """Return the gradients of a forward by slot."""
        named = kernel.executor.backward(forward, dy, dstate)
        by_name = CallArguments(**{name: named.get(name) for name in CallArguments._fields})
        return by_name.flat(kernel.interface) or []
