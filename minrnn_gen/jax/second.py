"""Second derivatives of requests: primitives linear in tangents, which JAX transposes, by the tangent's kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from minrnn_gen.build.tangent_cells import tangent_recipe
from minrnn_gen.call.interface import Y_AXES
from minrnn_gen.call.slots import R, X, has_gradient
from minrnn_gen.errors import BadInput
from minrnn_gen.jax.request import Request
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.run.tangent import TangentCall

Bind = Callable[[Request, Sequence[Any]], list[Any]]
Present = tuple[bool, ...]


_NO_SECOND = (
    "a gradient of a gradient, or a derivative in forward mode, was asked for, which this call of minrnn_gen does not have; "
    "differentiate it once by jax.grad or jax.vjp, or write the equations in jax.lax.scan for that"
)
_NO_THIRD = (
    "a third derivative of a recurrence of minrnn_gen was asked for, which has two; take the outermost one by differences of "
    "second derivatives"
)


@jax.custom_jvp  # type: ignore[untyped-decorator]
def differentiated_once(array: Any) -> Any:
    """Return an array as it is; its gradient rule has no derivative."""
    return array


@differentiated_once.defjvp  # type: ignore[untyped-decorator]
def _refuse_second(*_: Any) -> Any:
    raise BadInput(_NO_SECOND)


class SecondDerivatives:
    """The rules of a primitive, which `bind` binds, for its derivatives.

    Operands of a forward are a call's arrays by slot; a backward adds y, perhaps states after every step, dy, and the gradients
    of the final states. The tangent of a forward also takes the arrays that a backward reads, so that its transpose is that
    backward and no forward runs again.
    """

    def __init__(self, bind: Bind) -> None:
        self._bind = bind
        self._tangent = self._linear("minrnn_gen_tangent", self._run_tangent, self._transpose_tangent, self._like_results)
        self._second = self._linear("minrnn_gen_second", self._run_second, self._transpose_second, self._run_second)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, request: Request) -> tuple[list[Any], list[Any]]:
        """Return the results of a request and their derivatives along tangents."""
        if request.kind == "step":
            return self._of_step(request, primals, tangents)
        if request.kind not in ("forward", "backward"):
            raise BadInput(_NO_SECOND)
        moved = tuple(type(tangent) is not ad.Zero and jnp.issubdtype(tangent.dtype, jnp.inexact) for tangent in tangents)
        present = [tangent for tangent, is_moved in zip(tangents, moved, strict=True) if is_moved]
        if request.kind == "backward":
            return self._bind(request, primals), self._second.bind(*primals, *present, request=request, moved=moved)
        if not kernel_by(request.recipe).spec.training:
            raise BadInput("the spec says training: false; leave it out for gradients")
        count = 1 + len(request.interface.states)
        saving = replace(request, keeps=request.keeps or backward_reads_states(request.recipe), trains=True)
        saved = self._bind(saving, primals)
        along = self._tangent.bind(*primals, saved[0], *saved[count:], *present, request=request, moved=moved)
        results = saved if request.keeps else saved[:count]
        # States after every step are for a backward, whose derivative needs the derivatives of its arguments.
        return results, [*along, *map(jnp.zeros_like, results[count:])]

    def _of_step(self, request: Request, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the results of one step and their derivatives, by the same call over time."""
        axes = _time_axes(request)
        over_time = [
            [array if axis is None or type(array) is ad.Zero else jnp.expand_dims(array, axis) for array, axis in pairs]
            for pairs in (zip(primals, axes, strict=True), zip(tangents, axes, strict=True))
        ]
        both = self.jvp(*over_time, request=replace(request, kind="forward"))
        time = Y_AXES[request.interface.layout].index("t")
        results, along = ((y.squeeze(time), *states) for y, *states in both)
        return [*results], [*along]

    def _linear(
        self, name: str, run: Callable[..., list[Any]], transpose: Callable[..., list[Any]], like: Callable[..., list[Any]]
    ) -> Primitive:
        """Return a primitive that is `run` and whose results have the shapes of those of `like`."""
        primitive = Primitive(name)
        primitive.multiple_results = True

        def flat(*operands: Any, request: Request, moved: Present, run: Callable[..., list[Any]] = run) -> list[Any]:
            primals, saved, tangents = _parts(moved, operands)
            return run(request, primals, saved, _spread(moved, tangents))

        def abstract(*operands: Any, **settings: Any) -> list[Any]:
            shapes = jax.eval_shape(partial(flat, run=like, **settings), *operands)
            return [jax.core.ShapedArray(shape.shape, shape.dtype) for shape in shapes]

        def batch(operands: Sequence[Any], axes: Sequence[Any], **settings: Any) -> tuple[list[Any], list[int]]:
            results = jax.vmap(partial(flat, **settings), in_axes=tuple(axes))(*operands)
            return results, [0] * len(results)

        def transposed(cotangents: Sequence[Any], *operands: Any, request: Request, moved: Present) -> list[Any]:
            primals, saved, _ = _parts(moved, operands)
            if all(type(cotangent) is ad.Zero for cotangent in cotangents):
                return [None] * len(operands)
            arriving = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
            by_operand = transpose(request, primals, saved, arriving)
            constant = [None] * (len(primals) + len(saved))
            return [*constant, *(by_operand[place] for place, is_moved in enumerate(moved) if is_moved)]

        primitive.def_impl(jax.jit(flat, static_argnames=("request", "moved")))
        primitive.def_abstract_eval(abstract)
        mlir.register_lowering(primitive, mlir.lower_fun(flat, multiple_results=True))
        batching.primitive_batchers[primitive] = batch
        ad.primitive_transposes[primitive] = transposed
        ad.primitive_jvps[primitive] = _refuse_third
        return primitive

    def _moving(
        self, request: Request, arrays: Sequence[Any], y: Any, tangents: Sequence[Any], keeps: bool
    ) -> tuple[Request, TangentCall, list[Any], list[Any]]:
        """Return the request of the tangent's forward, its `TangentCall`, its arrays by slot, and its results."""
        recipe = tangent_recipe(request.recipe, tangents[R] is not None)
        as_called = TangentCall(request.interface, recipe, jnp, arrays, tangents, y)
        of_tangent = as_called.arguments()
        present = tuple(array is not None for array in of_tangent)
        forward = Request("forward", present, recipe.recipe, keeps=keeps, trains=keeps)
        return forward, as_called, of_tangent, self._bind(forward, [array for array in of_tangent if array is not None])

    def _like_results(
        self, request: Request, primals: Sequence[Any], _saved: Sequence[Any], _tangents: Sequence[Any]
    ) -> list[Any]:
        """Return y and the final states: gradients ask for shapes alone, and some cells with gradients have no tangent."""
        return [*self._bind(request, primals)[: 1 + len(request.interface.states)]]

    def _run_tangent(
        self, request: Request, primals: Sequence[Any], saved: Sequence[Any], tangents: Sequence[Any]
    ) -> list[Any]:
        arrays, moved = _by_slot(request, primals), _gradients_by_slot(request, tangents)
        forward, as_called, _, results = self._moving(request, arrays, saved[0], moved, False)
        return [results[0], *as_called.final(results[1 : 1 + len(forward.interface.states)])]

    def _transpose_tangent(
        self, request: Request, primals: Sequence[Any], saved: Sequence[Any], arriving: Sequence[Any]
    ) -> list[Any]:
        """Return the gradients of the operands: those of the first backward."""
        backward = replace(request, kind="backward", keeps=len(saved) > 1)
        gradients = self._bind(backward, (*primals, *saved, *arriving))
        by_slot = dict(zip(request.gradient_slots, gradients, strict=True))
        return [by_slot.get(slot) for slot in request.slots]

    def _run_second(
        self, request: Request, primals: Sequence[Any], _saved: Sequence[Any], tangents: Sequence[Any]
    ) -> list[Any]:
        count, states = len(request.slots), len(request.interface.states)
        dy, *dstate = primals[len(primals) - 1 - states :]
        of_call, of_arriving = tangents[:count], tangents[len(primals) - 1 - states :]
        totals: list[Any] = [jnp.zeros_like(primals[request.slots.index(slot)]) for slot in request.gradient_slots]
        if any(tangent is not None for tangent in of_arriving):
            pairs = zip((dy, *dstate), of_arriving, strict=True)
            arriving = [jnp.zeros_like(array) if tangent is None else tangent for array, tangent in pairs]
            first = self._bind(request, (*primals[: len(primals) - 1 - states], *arriving))
            totals = [total + gradient for total, gradient in zip(totals, first, strict=True)]
        if any(tangent is not None for tangent in of_call):
            second, _ = self._gradients(request, primals, _gradients_by_slot(request, of_call))
            totals = [total + gradient for total, gradient in zip(totals, second, strict=True)]
        return totals

    def _transpose_second(
        self, request: Request, primals: Sequence[Any], _saved: Sequence[Any], arriving: Sequence[Any]
    ) -> list[Any]:
        """Return the gradients of tangents: a Hessian is symmetric, and the gradient of dy is the derivative of y."""
        states = len(request.interface.states)
        by_slot = dict(zip(request.gradient_slots, arriving, strict=True))
        tangents = [by_slot.get(slot) for slot in range(len(request.present))]
        second, moved = self._gradients(request, primals, tangents)
        of_slots = dict(zip(request.gradient_slots, second, strict=True))
        between = len(primals) - 1 - states - len(request.slots)
        return [*(of_slots.get(slot) for slot in request.slots), *(None,) * between, *moved]

    def _gradients(self, request: Request, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the gradients of sum(gradient * tangent), and the derivatives of y and of the final states."""
        states, arrays = len(request.interface.states), _by_slot(request, primals[: len(request.slots)])
        split = len(primals) - 1 - states
        known, (dy, *dstate) = primals[:split], primals[split:]
        recipe = tangent_recipe(request.recipe, tangents[R] is not None)
        keeps = backward_reads_states(recipe.recipe)
        y = known[len(request.slots)]
        forward, as_called, of_tangent, results = self._moving(request, arrays, y, tangents, keeps)
        count = 1 + len(forward.interface.states)
        operands = [array for array in of_tangent if array is not None]
        backward = replace(forward, kind="backward")
        incoming = (results[0], *results[count:], dy, *as_called.incoming(dstate))
        gradients = dict(zip(backward.gradient_slots, self._bind(backward, (*operands, *incoming)), strict=True))

        def first(dy: Any) -> list[Any]:
            gradients_of_y = self._bind(request, (*known, dy, *map(jnp.zeros_like, dstate)))
            by_slot = dict(zip(request.gradient_slots, gradients_of_y, strict=True))
            return [by_slot.get(slot) for slot in range(len(request.present))]

        by_slot = as_called.gradients([gradients.get(slot) for slot in range(len(of_tangent))], first)
        return [by_slot[slot] for slot in request.gradient_slots], [results[0], *as_called.final(results[1:count])]


def backward_reads_states(recipe: str) -> bool:
    """Say whether a forward writes states after every step for the backward, on a CPU or on a GPU.

    With n values per channel these are n times as much as y, so that a GPU's backward computes them again; a CPU's, which reads
    some or all of them, runs the forward once more, as it does where a program has none because a compiler failed.
    """
    kernel = kernel_by(recipe)
    platforms = (False,) if kernel.interface.has_vectors else (False, True)
    return any(kernel.executor.keeps_states(on_cpu=on_cpu) for on_cpu in platforms)


def _time_axes(request: Request) -> list[int | None]:
    """Return the axis of time that each operand of a step has in the same call over time, None where it has none."""
    interface = request.interface
    slots = interface.slots
    axes = {X: interface.x_axes.index("t"), **dict.fromkeys(range(slots.total)[slots.shared], interface.shared_axes.index("t"))}
    axes |= dict.fromkeys(range(slots.total)[slots.inputs], interface.channel_axes.index("t"))
    return [axes.get(slot) for slot in request.slots]


def _parts(moved: Present, operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Return the primals, the saved arrays and the present tangents of a linear primitive."""
    behind = len(operands) - sum(moved)
    return operands[: len(moved)], operands[len(moved) : behind], operands[behind:]


def _spread(moved: Present, tangents: Sequence[Any]) -> list[Any]:
    in_order = iter(tangents)
    return [next(in_order) if is_moved else None for is_moved in moved]


def _by_slot(request: Request, operands: Sequence[Any]) -> list[Any]:
    in_order = iter(operands)
    return [next(in_order) if is_there else None for is_there in request.present]


def _gradients_by_slot(request: Request, tangents: Sequence[Any]) -> list[Any]:
    by_slot = dict(zip(request.slots, tangents, strict=True))
    return [by_slot.get(slot) if has_gradient(slot) else None for slot in range(len(request.present))]


def _refuse_third(*_arguments: Any, **_keywords: Any) -> Any:
    raise BadInput(_NO_THIRD)
