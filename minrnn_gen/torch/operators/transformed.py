"""A call under transforms of torch.func and with dual numbers: its rules in reverse, in forward mode and for a batch of calls.

Two functions, a call and its gradients, have all rules, each in terms of both. The tangent's kernel computes their derivatives;
its own would be of third order and are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from minrnn_gen.build.tangent_cells import tangent_recipe
from minrnn_gen.build.widened_recipes import without_projection
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.call.slots import CU_SEQLENS, LENGTHS, RESETS, SEQUENCES, R, X, has_gradient
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.run.tangent import TangentCall, sum_of
from minrnn_gen.torch.operators import calls, heads, kernel_operator
from minrnn_gen.torch.operators.backward_operator import in_order
from minrnn_gen.torch.operators.dispatch import UNDER_TRANSFORMS, unbatched
from minrnn_gen.torch.operators.recorded import Tensors

# Two sizes of the batch, and a time: the batch axis is the one whose size differs.
_BATCHES, _TIME = (3, 5), 2


@dataclass(frozen=True)
class _Call:
    """The call of a kernel, by its recipe."""

    recipe: str
    all_states: bool = False

    @cached_property
    def kernel(self) -> Kernel:
        return kernel_by(self.recipe)

    @property
    def final_count(self) -> int:
        return len(self.kernel.states)

    def sequence_axes(self) -> list[int | None]:
        """Return the batch axis of each slot's array, None where it has none."""
        interface, slots = self.kernel.interface, self.kernel.interface.slots
        axes: list[int | None] = [None] * slots.total
        axes[X], axes[RESETS], axes[LENGTHS] = interface.x_axes.index("b"), 0, 0
        axes[slots.states] = [len(interface.directions)] * len(interface.states)
        axes[slots.shared] = [interface.shared_axes.index("b")] * len(interface.shared)
        axes[slots.inputs] = [interface.channel_axes.index("b")] * len(interface.inputs)
        return axes

    def result_axes(self, on_cpu: bool) -> list[int]:
        """Return the batch axis of y, of each final state and of each array that only a backward needs."""
        interface = self.kernel.interface
        executor = self.kernel.executor
        layouts = [executor.saved_layouts(batch, _TIME, on_cpu=on_cpu, all_states=self.all_states) for batch in _BATCHES]
        saved = [
            next(axis for axis, (size, other) in enumerate(zip(shape, larger, strict=True)) if size != other)
            for (shape, _), (larger, _) in zip(*layouts, strict=True)
        ]
        return [Y_AXES[interface.layout].index("b"), *[len(interface.directions)] * self.final_count, *saved]

    def with_heads(self, count: int) -> _Call:
        """Return the call with `count` times the heads."""
        recipe = heads.wider_recipe(self.recipe, count)
        assert recipe is not None
        return _Call(recipe, self.all_states)

    def head_axes(self, tensors: Tensors, is_batched: Sequence[bool], count: int) -> Sequence[heads.HeadAxis] | None:
        """Return for each result its axis of calls as heads; None where resets, lengths or cu_seqlens differ."""
        if any(is_batched[SEQUENCES]) or heads.wider_recipe(self.recipe, count) is None:
            return None
        return heads.axes_of_results(self.recipe, tensors[X].device.type == "cpu", self.all_states)

    def folds(self, tensors: Tensors, is_batched: Sequence[bool]) -> bool:
        """Say whether calls fold into one call of more sequences, which needs an axis of sequences in each batched array."""
        of_sequences = (axis is not None for axis in self.sequence_axes())
        pairs = zip(of_sequences, is_batched, strict=True)
        return tensors[CU_SEQLENS] is None and all(axis or not batched for axis, batched in pairs)


def call(recipe: str, tensors: Tensors, all_states: bool = False) -> tuple[Any, ...]:
    """Return y, the final states and a backward's arrays on pre-activations, under any transforms."""
    interface = kernel_by(recipe).interface
    x, matrix, weight, bias, recurrent_bias, *others = tensors
    if weight is not None:
        recipe, x = without_projection(recipe), _preactivations(interface, x, weight)
    shapes = (interface.R_shape, interface.shape(interface.gate_axes, 0, 0), interface.recurrent_bias_shape)
    pairs = zip((matrix, bias, recurrent_bias), shapes, strict=True)
    matrix, bias, recurrent_bias = (_shaped(tensor, shape) for tensor, shape in pairs)
    of = _Call(recipe, all_states)
    return _CallFunction.apply(of, x, matrix, None, bias, recurrent_bias, *others)  # type: ignore[no-any-return]


def _operator(recipe: str, saves: bool, all_states: bool, *arguments: Any) -> list[Any]:
    """Return what the operator does."""
    states = len(kernel_by(recipe).states)
    results = call(recipe, in_order(arguments, states), all_states)
    return [*results] if saves else [*results[: 1 + states]]


UNDER_TRANSFORMS["recurrence"] = _operator


def _preactivations(interface: Interface, x: Any, weight: Any) -> Any:
    """Return x times the weight; torch multiplies, batches included."""
    own = interface.x_axes.replace("i", "") + interface.gate_axes
    product = torch.matmul(x.movedim(interface.x_axes.index("i"), -1), weight.transpose(0, 1))
    product = product.unflatten(-1, interface.shape(interface.gate_axes, 0, 0))
    return product.permute([own.index(axis) for axis in interface.preactivation_axes])


def _shaped(tensor: Any, shape: tuple[int, ...]) -> Any:
    """Return a tensor in the shape that kernels take; a wrong size stays, for the checks of all tensors to refuse."""
    is_other = tensor is not None and tuple(tensor.shape) != shape and tensor.numel() == math.prod(shape)
    return tensor.reshape(shape) if is_other else tensor


class _CallFunction(torch.autograd.Function):
    """The call of a kernel; its results after y and the final states have no gradients."""

    @staticmethod
    def forward(of: _Call, *tensors: Any) -> Any:
        slots = of.kernel.interface.slots
        return tuple(kernel_operator.OPERATOR(of.recipe, True, of.all_states, *slots.by_schema(tensors)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        of, *tensors = inputs
        ctx.of, ctx.count = of, len(tensors)
        ctx.save_for_backward(*tensors, *output)
        ctx.save_for_forward(*tensors, *output)
        ctx.mark_non_differentiable(*output[1 + of.final_count :])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        of, tensors, results = ctx.of, ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        arriving = unbatched(gradients[: 1 + of.final_count])
        wanted = _wanted(tensors, ctx.needs_input_grad[1:])
        if all(gradient is None for gradient in arriving) or not any(wanted):
            return (None,) * (1 + ctx.count)
        dy, dstate = calls.arriving(of.kernel, lambda: calls.states_shapes(of.kernel, tensors), results[0], arriving)
        return (None, *_gradients(of, wanted, tensors, results, dy, dstate))

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        of, tensors = ctx.of, ctx.saved_tensors[: ctx.count]
        moved = [tangent if has_gradient(slot) else None for slot, tangent in enumerate(unbatched(tangents))]
        moving, as_called = _tangent(of, tensors, moved, ctx.saved_tensors[ctx.count])
        results = call(moving.recipe, as_called.arguments())
        final = as_called.final(results[1 : 1 + moving.final_count])
        return (results[0], *final, *(None,) * (len(ctx.saved_tensors) - ctx.count - 1 - of.final_count))

    @staticmethod
    def vmap(info: Any, in_dims: Any, of: _Call, *tensors: Any) -> Any:
        dims, count = in_dims[1:], info.batch_size
        is_batched = [dim is not None for dim in dims]
        if not of.folds(tensors, is_batched):
            if (behind := of.head_axes(tensors, is_batched, count)) is None:
                return _one_by_one(lambda own: _CallFunction.apply(of, *own), tensors, dims, count)
            slots = heads.axes_of_call(of.kernel.interface)

            def run(of: _Call, own: list[Any]) -> Tensors:
                return _CallFunction.apply(of, *own)  # type: ignore[no-any-return]

            return _by_heads(run, of, tensors, dims, slots, behind, count)
        folded = _folded(tensors, dims, of.sequence_axes(), info.batch_size)
        axes = of.result_axes(on_cpu=folded[X].device.type == "cpu")
        return _unfolded(_CallFunction.apply(of, *folded), axes, info.batch_size), tuple(axes)


@dataclass(frozen=True)
class _Gradients:
    """The gradients of a call for its `wanted` tensors by slot, from its `results` and the gradients of its `states`."""

    of: _Call
    wanted: tuple[bool, ...]
    results: int
    states: int

    def parts(self, arguments: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Any, Sequence[Any]]:
        """Return the tensors of the call, its results, dy and the gradients of the final states."""
        tensors, behind = len(self.wanted), len(self.wanted) + self.results
        return arguments[:tensors], arguments[tensors:behind], arguments[behind], arguments[behind + 1 :]

    def by_slot(self, gradients: Sequence[Any]) -> list[Any]:
        in_order = iter(gradients)
        return [next(in_order) if wanted else None for wanted in self.wanted]


def _gradients(of: _Call, wanted: tuple[bool, ...], tensors: Tensors, results: Tensors, dy: Any, dstate: Tensors) -> list[Any]:
    """Return the wanted gradients of a call by slot."""
    how = _Gradients(of, wanted, len(results), len(dstate))
    return how.by_slot(_GradientsFunction.apply(how, *tensors, *results, dy, *dstate))


class _GradientsFunction(torch.autograd.Function):
    """The gradients of a call; the call's results count as functions of its tensors, without gradients here."""

    @staticmethod
    def forward(how: _Gradients, *arguments: Any) -> Any:
        tensors, results, dy, dstate = how.parts(arguments)
        y, extra = results[0], results[1 + how.of.final_count :]
        gradients = kernel_operator.gradients_of(how.of.kernel, tensors, y, extra, dy, dstate, how.of.all_states)
        return tuple(gradient for gradient, wanted in zip(gradients, how.wanted, strict=True) if wanted)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004 - torch gives them by name
        ctx.how, *arguments = inputs
        ctx.save_for_backward(*arguments)
        ctx.save_for_forward(*arguments)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *along: Any) -> Any:
        how, arriving = ctx.how, unbatched(along)
        tensors, results, dy, dstate = how.parts(ctx.saved_tensors)
        if all(tangent is None for tangent in arriving):
            return (None,) * (1 + len(ctx.saved_tensors))
        needed = ctx.needs_input_grad[1 : 1 + len(tensors)]
        wanted = _wanted(tensors, needed)
        gradients, moved, final = _second(how.of, tensors, results, how.by_slot(arriving), dy, dstate, wanted)
        return (None, *gradients, *(None,) * how.results, moved, *(final if dstate else ()))

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        how = ctx.how
        tensors, results, dy, dstate = how.parts(ctx.saved_tensors)
        of_tensors, _, of_dy, of_states = how.parts(unbatched(tangents))
        moved = [tangent if has_gradient(slot) else None for slot, tangent in enumerate(of_tensors)]
        totals: list[Any] = [None] * len(tensors)
        if any(tangent is not None for tangent in (of_dy, *of_states)):
            dy_moved = torch.zeros_like(dy) if of_dy is None else of_dy
            pairs = zip(dstate, of_states, strict=True)
            states_moved = [torch.zeros_like(state) if tangent is None else tangent for state, tangent in pairs]
            totals = _gradients(how.of, how.wanted, tensors, results, dy_moved, states_moved)
        if any(tangent is not None for tangent in moved):
            second, _, _ = _second(how.of, tensors, results, moved, dy, dstate, how.wanted)
            totals = [sum_of(*pair) for pair in zip(second, totals, strict=True)]
        # Forward mode takes no part of a larger array as a tangent, such as the half of a joined one.
        return tuple(
            total.clone() if total._is_view() else total for total, wanted in zip(totals, how.wanted, strict=True) if wanted
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, how: _Gradients, *arguments: Any) -> Any:
        tensors, results, _, _ = how.parts(arguments)
        dims, of_call = in_dims[1:], how.of.sequence_axes()
        batched = [dim is not None for dim in dims[: len(tensors)]]
        is_of_sequences = all(axis is not None for axis, wanted in zip(of_call, how.wanted, strict=True) if wanted)
        if not (is_of_sequences and how.of.folds(tensors, batched)):
            # Each call has its own gradients of weights.
            if (behind := how.of.head_axes(tensors, batched, info.batch_size)) is None:
                return _one_by_one(lambda own: _GradientsFunction.apply(how, *own), arguments, dims, info.batch_size)
            slots = heads.axes_of_call(how.of.kernel.interface)
            axes_of_all = [*slots, *behind[: len(results)], *behind[: 1 + how.states]]
            wanted = [axis for axis, is_wanted in zip(slots, how.wanted, strict=True) if is_wanted]

            def run(of: _Call, own: list[Any]) -> Tensors:
                return _GradientsFunction.apply(replace(how, of=of), *own)  # type: ignore[no-any-return]

            return _by_heads(run, how.of, arguments, dims, axes_of_all, wanted, info.batch_size)
        of_results = how.of.result_axes(on_cpu=tensors[X].device.type == "cpu")
        arriving = of_results[: 1 + how.states]
        folded = _folded(arguments, dims, [*of_call, *of_results[: len(results)], *arriving], info.batch_size)
        axes = [axis for axis, wanted in zip(of_call, how.wanted, strict=True) if wanted and axis is not None]
        return _unfolded(_GradientsFunction.apply(how, *folded), axes, info.batch_size), tuple(axes)


def _tangent(of: _Call, tensors: Tensors, tangents: Tensors, y: Any) -> tuple[_Call, TangentCall]:
    """Return the call of the tangent's kernel for a call with this y, and the maker of its arrays."""
    recipe = tangent_recipe(of.recipe, tangents[R] is not None)
    return _Call(recipe.recipe), TangentCall(of.kernel.interface, recipe, torch, tensors, tangents, y)


def _second(
    of: _Call,
    tensors: Tensors,
    own_results: Tensors,
    tangents: Tensors,
    dy: Any,
    dstate: Tensors,
    wanted: tuple[bool, ...],
) -> tuple[list[Any], Any, list[Any]]:
    """Return the gradients of sum(gradient * tangent): those wanted by slot, and of dy and the gradients of states."""
    moving, as_called = _tangent(of, tensors, tangents, own_results[0])
    arrays = as_called.arguments()
    results = call(moving.recipe, arrays)
    final = as_called.final(results[1 : 1 + moving.final_count])
    needs = _wanted(arrays, [True] * len(arrays))
    axes = of.sequence_axes()
    if all(axis is not None for axis, is_wanted in zip(axes, wanted, strict=True) if is_wanted):
        needs = tuple(need and axis is not None for need, axis in zip(needs, moving.sequence_axes(), strict=True))
    if not any(wanted):
        return [None] * len(tensors), results[0], final
    gradients = _gradients(moving, needs, arrays, results, dy, as_called.incoming(dstate))
    by_slot = as_called.gradients(gradients, lambda dy: _gradients(of, wanted, tensors, own_results, dy, ()))
    return [gradient if is_wanted else None for gradient, is_wanted in zip(by_slot, wanted, strict=True)], results[0], final


def _wanted(tensors: Tensors, needed: Sequence[bool]) -> tuple[bool, ...]:
    """Say for each tensor of a call whether its gradient exists and is needed."""
    return tuple(
        tensor is not None and need and has_gradient(slot)
        for slot, (tensor, need) in enumerate(zip(tensors, needed, strict=True))
    )


def _folded(tensors: Tensors, dims: Sequence[int | None], axes: Sequence[int | None], count: int) -> list[Any]:
    """Return tensors with an axis of `count` calls within that of their batch."""
    folded = []
    for tensor, dim, axis in zip(tensors, dims, axes, strict=True):
        if tensor is not None and axis is not None:
            if dim is None:
                tensor = tensor.unsqueeze(axis).expand(*tensor.shape[:axis], count, *tensor.shape[axis:])
            else:
                tensor = tensor.movedim(dim, axis)
            tensor = tensor.flatten(axis, axis + 1)
        folded.append(tensor)
    return folded


def _unfolded(tensors: Tensors, axes: Sequence[int], count: int) -> tuple[Any, ...]:
    pairs = zip(tensors, axes, strict=True)
    return tuple(tensor.unflatten(axis, (count, tensor.shape[axis] // count)) for tensor, axis in pairs)


def _by_heads(
    run: Callable[[_Call, list[Any]], Tensors],
    of: _Call,
    tensors: Tensors,
    dims: Sequence[int | None],
    axes: Sequence[heads.HeadAxis | None],
    axes_of_results: Sequence[heads.HeadAxis | None],
    count: int,
) -> Any:
    """Return the stacked results of `count` calls, run as heads of one call, and their stacked axes."""

    def run_together(size: int, own: list[Any]) -> list[Any]:
        pairs = zip(own, axes, strict=True)
        results = run(
            of if size == 1 else of.with_heads(size),
            [tensor if tensor is None or axis is None else axis.fold(tensor) for tensor, axis in pairs],
        )
        return [axis.unfold(result, size) for result, axis in zip(results, axes_of_results, strict=True) if axis]

    rows = heads.in_pieces(run_together, tensors, dims, [axis is None for axis in axes], count)
    return rows, (0,) * len(rows)


def _one_by_one(run: Callable[[list[Any]], Tensors], tensors: Tensors, dims: Sequence[int | None], count: int) -> Any:
    """Return the stacked results of `count` calls, and their stacked axes."""
    rows = []
    for number in range(count):
        pairs = zip(tensors, dims, strict=True)
        rows.append(run([tensor if dim is None else tensor.select(dim, number) for tensor, dim in pairs]))
    return tuple(torch.stack(row) for row in zip(*rows, strict=True)), (0,) * len(rows[0])
