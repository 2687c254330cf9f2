"""Layers on top of each other as one operator, which autograd records as one node.

The order of a call: x, resets, lengths, cu_seqlens, then for each layer R, weight, bias, recurrent_bias and the cell's own
vectors, then the initial states of all layers, all or none, then with dropout the masks of all layers but the last; None where
absent. Results: y, the final states of all layers, and the arrays that only a backward needs: those that each layer's kernel
saves, then the outputs of all layers but the last, before dropout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from minrnn_gen.call.slots import SEQUENCES, StackSlots, X
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.run.expected_time import BackwardOrForward
from minrnn_gen.torch.layers.beside import Beside, beside_each_other
from minrnn_gen.torch.layers.dropout import dropped
from minrnn_gen.torch.operators import calls, kernel_operator
from minrnn_gen.torch.operators.backward_operator import define_backward, in_order
from minrnn_gen.torch.operators.dispatch import below_autograd, define, is_plain, records
from minrnn_gen.torch.operators.recorded import RecurrenceFunction, Tensors

_CALL = "Tensor x, Tensor? resets, Tensor? lengths, Tensor? cu_seqlens, Tensor[] masks, Tensor?[] parameters, Tensor[] state"
# A stack takes all arrays of sequences, after x.
_SEQUENCES_COUNT = SEQUENCES.stop - SEQUENCES.start
_SEQUENCES = slice(X + 1, X + 1 + _SEQUENCES_COUNT)


def run_layers(recipes: Sequence[str], states: int, tensors: tuple[Any, ...], dropout: float = 0.0) -> Sequence[Any]:
    """Return y and the final states of a call, recorded where a tensor requires grad; `states` says how many the cell has.

    `dropout` is the probability with which masks among the tensors were drawn, 0 without masks.
    """
    layers = _Layers(tuple(recipes), dropout)
    if is_plain(tensors):
        if records(tensors):
            return RecurrenceFunction.of(layers, tensors)  # type: ignore[no-any-return]
        return layers.run(tensors, False)
    if not torch.compiler.is_compiling():
        layers.check(tensors)
    return layers.dispatched(tensors, states, records(tensors))[: 1 + states]


def infer(recipes: Sequence[str], states: int, tensors: tuple[Any, ...]) -> Sequence[Any]:
    """Return y and the final states of a call without dropout by the operator, which saves nothing for a backward."""
    return _Layers(tuple(recipes)).dispatched(tensors, states, False)


@dataclass(frozen=True)
class _Layers:
    """Layers of these kernels, from the first one up, with `dropout` between them; calls go straight to them."""

    recipes: tuple[str, ...]
    dropout: float = 0.0

    @cached_property
    def kernels(self) -> list[Kernel]:
        """The kernels of the layers."""
        return [kernel_by(recipe) for recipe in self.recipes]

    @property
    def results_count(self) -> int:
        """y and the final states."""
        return 1 + len(self.kernels[0].states)

    @property
    def returned_count(self) -> int | None:
        """Number of outputs returned to autograd."""
        return self.results_count

    def call(self, tensors: Tensors, layer: int, x: Any) -> tuple[Any, ...]:
        """Return the tensors of a layer's call, whose input is `x`."""
        slots = self.slots(tensors, self.results_count - 1)
        states = (state if state is None else of_layer(state, layer, self.has_directions) for state in tensors[slots.states])
        return tuple(slots.call(tensors, layer, x, tensors[slots.sequences], [*states]))

    @property
    def masks_count(self) -> int:
        """The number of masks of a call: one for each layer but the last, none without dropout."""
        return len(self.recipes) - 1 if self.dropout else 0

    def slots(self, tensors: Tensors, states: int) -> StackSlots:
        """Return the slots of a call, given the cell's number of states."""
        layers = len(self.recipes)
        fixed = StackSlots.of(_SEQUENCES_COUNT, layers, 0, states, self.masks_count)
        return StackSlots.of(_SEQUENCES_COUNT, layers, (len(tensors) - fixed.masks.stop) // layers, states, self.masks_count)

    def by_schema(self, tensors: Tensors, states: int) -> tuple[Any, ...]:
        """Return the tensors of a call as the operators take them: masks, parameters and states as three lists."""
        slots = self.slots(tensors, states)
        present = [state for state in tensors[slots.states] if state is not None]
        return (tensors[X], *tensors[slots.sequences], [*tensors[slots.masks]], [*tensors[slots.own]], present)

    def dispatched(self, tensors: Tensors, states: int, saves: bool) -> Sequence[Any]:
        """Call the operator, given the cell's number of states."""
        return OPERATOR([*self.recipes], saves, self.dropout, *self.by_schema(tensors, states))  # type: ignore[no-any-return]

    def dropped_below(self, tensors: Tensors, layer: int, values: Any) -> Any:
        """Apply dropout to the output that a layer reads, or to its gradient; x and its gradient stay as they are."""
        if not (layer and self.dropout):
            return values
        return dropped(values, tensors[layer - 1 - self.masks_count], self.dropout)

    @property
    def has_directions(self) -> bool:
        """Whether states of a layer have an axis of directions."""
        return bool(self.kernels[0].interface.directions)

    def beside_each_other(self, tensors: Tensors, kernel_pass: BackwardOrForward) -> Beside | None:
        """Return how the layers run concurrently, where that is faster than in sequence."""
        x, _, lengths, cu_seqlens = tensors[X], *tensors[_SEQUENCES]
        if not x.is_cuda or lengths is not None or cu_seqlens is not None:
            return None
        axes = self.kernels[0].interface.x_axes
        return beside_each_other(self.recipes, kernel_pass, x.shape[axes.index("b")], x.shape[axes.index("t")])

    def check(self, tensors: Tensors) -> None:
        """Check the first layer's call; the shapes of the others follow from their parameters."""
        calls.check_tensors(self.kernels[0], self.call(tensors, 0, tensors[0]))

    def run(self, tensors: Tensors, saves: bool) -> list[Any]:
        """Run all layers; where the call `saves`, return the arrays that a backward needs too."""
        if beside := self.beside_each_other(tensors, "forward"):
            if saves and (back := self.beside_each_other(tensors, "backward")):
                back.expect()
            return beside.run.forward(_whole(tensors), beside.choice.cut, saves, self.dropout)
        x, count = tensors[0], self.results_count
        final: list[Any] = []
        extra: list[Any] = []
        inner: list[Any] = []
        for layer, kernel in enumerate(self.kernels):
            x = self.dropped_below(tensors, layer, x)
            x, *others = calls.forward(kernel, self.call(tensors, layer, x), saves)
            final.append(others[: count - 1])
            extra += others[count - 1 :]
            inner.append(x)
        of_all = [together(states, self.has_directions) for states in zip(*final, strict=True)]
        return [x, *of_all, *extra, *inner[:-1]] if saves else [x, *of_all]

    def run_back(self, tensors: Tensors, results: Tensors, dy: Any, dstate: Tensors, reads_x: bool = True) -> list[Any]:
        """Return the gradients of `tensors`; `results`: y, and the arrays that only a backward needs; `dstate`: all or none.

        Without `reads_x`, the gradient of x may be None.
        """
        if beside := self.beside_each_other(tensors, "backward"):
            incoming = _without_gaps((dy, *(dstate or (None,) * (self.results_count - 1))))
            whole, cut = _whole(tensors), beside.choice.cut
            dx, *others = beside.run.backward(whole, _without_gaps(results), incoming, cut, self.dropout)
            return [dx, *(None,) * _SEQUENCES_COUNT, *others[1:]]
        y, *saved = results
        count = len(self.recipes)
        per_layer = (len(saved) - count + 1) // count
        outputs = [*saved[count * per_layer :], y]
        parameters: list[Any] = []
        initial: list[list[Any]] = []
        for layer in reversed(range(count)):
            kernel, below = self.kernels[layer], outputs[layer - 1] if layer else tensors[0]
            call = self.call(tensors, layer, self.dropped_below(tensors, layer, below))
            own_results = (outputs[layer], *saved[layer * per_layer : (layer + 1) * per_layer])
            own_dstate = [of_layer(gradient, layer, self.has_directions) for gradient in dstate]
            gradients = calls.backward(kernel, call, own_results, dy, own_dstate, reads_x=bool(layer) or reads_x)
            dy = self.dropped_below(tensors, layer, gradients[X])
            slots = kernel.interface.slots
            parameters = [*StackSlots.own_of(gradients, slots.parameters), *parameters]
            initial.insert(0, gradients[slots.states])
        of_all = [None if states[0] is None else together(states, self.has_directions) for states in zip(*initial, strict=True)]
        return [dy, *(None,) * _SEQUENCES_COUNT, *parameters, *of_all, *(None,) * self.masks_count]

    def arriving(self, tensors: Tensors, y: Any, gradients: Tensors) -> tuple[Any, list[Any]]:
        """Return the gradients of y and of the final states, all or none; if only some are None, zeros replace them."""
        return calls.arriving(self.kernels[0], lambda: self.states_shapes(tensors), y, gradients)

    def states_shapes(self, tensors: Tensors) -> list[tuple[Any, ...]]:
        """Return the shape of each state of all layers."""
        kernel = self.kernels[0]
        shapes = calls.states_shapes(kernel, self.call(tensors, 0, tensors[0]))
        behind = len(kernel.interface.directions)
        return [(len(self.recipes) * len(kernel.interface.runs_reversed), *shape[behind:]) for shape in shapes]

    # The interface of a recorded call.

    def forward(self, tensors: Tensors) -> Tensors:
        return self.run(tensors, True)

    def read_again(self, tensors: Tensors) -> Tensors:
        return tensors

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        if torch.is_grad_enabled():
            return self.recorded_back(tensors, results, gradients)
        if is_plain(tensors):
            dy, dstate = self.arriving(tensors, results[0], gradients)
            return self.run_back(tensors, results, dy, dstate, tensors[0].requires_grad)
        return _Dispatched(self.recipes, self.dropout).backward(tensors, results, gradients)

    def recorded_back(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> list[Any]:
        """Return the gradients of `tensors`, recorded as a node for each layer from the results at hand."""
        y, *saved = results
        count, (dy, dstate) = len(self.recipes), self.arriving(tensors, y, gradients)
        per_layer = (len(saved) - count + 1) // count
        outputs = [*saved[count * per_layer :], y]
        # Gradients stop at these tensors, even where one is computed from another.
        apart = [tensor if tensor is None or not tensor.requires_grad else torch.ops.aten.alias(tensor) for tensor in tensors]
        x, arriving = apart[0], list[tuple[Any, Any]]()
        for layer, kernel in enumerate(self.kernels):
            call = self.call(apart, layer, self.dropped_below(apart, layer, x))
            final = [y.new_empty(shape, dtype=calls.arithmetic_dtype(kernel)) for shape in calls.states_shapes(kernel, call)]
            extra = saved[layer * per_layer : (layer + 1) * per_layer]
            x, *states = kernel_operator.recorded(kernel, call, (outputs[layer], *final, *extra))
            of_states = (of_layer(gradient, layer, self.has_directions) for gradient in dstate)
            arriving += zip(states, of_states, strict=False)
        pairs = [(result, gradient) for result, gradient in ((x, dy), *arriving) if result.requires_grad]
        wanted = [tensor for tensor in apart if tensor is not None and tensor.requires_grad]
        of, arrived = zip(*pairs, strict=True)
        in_order = iter(torch.autograd.grad(of, wanted, arrived, create_graph=True, allow_unused=True))
        return [next(in_order) if tensor is not None and tensor.requires_grad else None for tensor in apart]


class _Dispatched(_Layers):
    """Calls the layers through the dispatcher, below autograd."""

    @property
    def returned_count(self) -> int | None:
        return None

    def forward(self, tensors: Tensors) -> Tensors:
        call = self.by_schema(tensors, self.results_count - 1)
        return below_autograd(OPERATOR, [*self.recipes], True, self.dropout, *call)  # type: ignore[no-any-return]

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        if torch.is_grad_enabled():
            return self.recorded_back(tensors, results, gradients)
        y, *extra = results
        dy, dstate = self.arriving(tensors, y, gradients)
        call = self.by_schema(tensors, self.results_count - 1)
        in_order = iter(_BACKWARD([*self.recipes], self.dropout, *call, y, extra, dy, dstate))
        return [next(in_order) if has_gradient else None for has_gradient in _have_gradients(tensors)]


def _whole(tensors: Tensors) -> list[Any]:
    """Return the tensors of a call without lengths in the order of a run of all layers, without gaps."""
    x, resets, _, _, *others = tensors
    return _without_gaps((x, resets, *others))


def _without_gaps(tensors: Tensors) -> list[Any]:
    return [tensor if tensor is None else calls.without_gaps(tensor) for tensor in tensors]


def of_layer(states: Any, layer: int, has_directions: bool) -> Any:
    """Return a layer's part of a state of all layers, with an axis of directions only where there are two."""
    return states[2 * layer : 2 * layer + 2] if has_directions else states[layer]


def together(states: Sequence[Any], has_directions: bool) -> Any:
    """Return one state of all layers as one tensor."""
    return (torch.cat if has_directions else torch.stack)(tuple(states))


def _have_gradients(tensors: Tensors) -> list[bool]:
    """Say for each tensor of a call whether a backward returns its gradient; sequences and masks have none."""
    return [
        tensor is not None and not _SEQUENCES.start <= place < _SEQUENCES.stop and tensor.dtype is not torch.bool
        for place, tensor in enumerate(tensors)
    ]


def _run(recipes: Sequence[str], saves: bool, dropout: float, *call: Any) -> list[Any]:
    layers = _Layers(tuple(recipes), dropout)
    return layers.run(in_order(call, layers.results_count - 1), saves)


def _run_backward(recipes: Sequence[str], dropout: float, *arguments: Any) -> list[Any]:
    *call, y, extra, dy, dstate = arguments
    layers = _Layers(tuple(recipes), dropout)
    tensors = in_order(call, layers.results_count - 1)
    gradients = layers.run_back(tensors, (y, *extra), dy, dstate)
    return [gradient for gradient, has_gradient in zip(gradients, _have_gradients(tensors), strict=True) if has_gradient]


def _fake(recipes: Sequence[str], saves: bool, dropout: float, *call: Any) -> list[Any]:
    layers = _Layers(tuple(recipes), dropout)
    states = layers.results_count - 1
    tensors = in_order(call, states)
    x, extra, inner = tensors[0], [], []
    for layer, recipe in enumerate(recipes):
        x, *others = kernel_operator.fake(recipe, saves, layers.call(tensors, layer, x))
        extra += others[states:]
        inner.append(x)
    shapes = zip(layers.states_shapes(tensors), others, strict=False)
    final = [x.new_empty(shape, dtype=state.dtype) for shape, state in shapes]
    return [x, *final, *extra, *inner[:-1]] if saves else [x, *final]


def _record(recipes: Sequence[str], saves: bool, dropout: float, *call: Any) -> list[Any]:
    if saves and records(in_order(call, 0)):
        layers = _Dispatched(tuple(recipes), dropout)
        return list(RecurrenceFunction.apply(layers, *in_order(call, layers.results_count - 1)))
    return below_autograd(OPERATOR, [*recipes], saves, dropout, *call)  # type: ignore[no-any-return]


OPERATOR = define(f"layers(str[] recipes, bool saves, float dropout, {_CALL}) -> Tensor[]", _run, _fake, _record)
_BACKWARD = define_backward("layers_backward", ("str[] recipes", "float dropout"), _CALL, _run_backward, _have_gradients)
