"""The recurrence of a kernel as an operator that torch records, traces and compiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from minrnn_gen.build.tangent_cells import joint_recipe, tangent_recipe
from minrnn_gen.build.widened_recipes import without_projection
from minrnn_gen.call.altered import permuted
from minrnn_gen.call.slots import RESETS, WEIGHT, R, X, has_gradient
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.run.joint import JointCall
from minrnn_gen.run.scan.apart import scanned
from minrnn_gen.run.tangent import TangentCall
from minrnn_gen.torch.operators import calls
from minrnn_gen.torch.operators.backward_operator import define_backward, in_order
from minrnn_gen.torch.operators.dispatch import below_autograd, define, is_plain, records
from minrnn_gen.torch.operators.recorded import RecurrenceFunction, Tensors

_CALL = (
    "Tensor x, Tensor? R, Tensor? weight, Tensor? bias, Tensor? recurrent_bias, Tensor? resets, Tensor? lengths, "
    "Tensor? cu_seqlens, Tensor[] shared, Tensor[] parameters, Tensor[] state"
)


def infer(recipe: str, tensors: tuple[Any, ...], all_states: bool) -> Sequence[Any]:
    """Return y, the final states and, with `all_states`, the states of all steps; the operator saves nothing else."""
    kernel = kernel_by(recipe)
    results = OPERATOR(recipe, all_states, all_states, *kernel.interface.slots.by_schema(tensors))
    return results[: returned_count(len(kernel.states), all_states)]  # type: ignore[no-any-return]


def returned_count(states: int, all_states: bool) -> int:
    """Return the number of a call's results: y, the final states and, with `all_states`, the states of all steps."""
    return 1 + (2 if all_states else 1) * states


class Straight:
    """Calls the kernel directly, bypassing the dispatcher."""

    __slots__ = ("all_states", "kernel", "results_count", "returned_count")

    def __init__(self, kernel: Kernel, all_states: bool) -> None:
        states = len(kernel.states)
        self.kernel, self.all_states = kernel, all_states
        self.results_count, self.returned_count = 1 + states, returned_count(states, all_states)

    def forward(self, tensors: Tensors) -> Tensors:
        return calls.forward(self.kernel, tensors, True, self.all_states)

    def read_again(self, tensors: Tensors) -> Tensors:
        return tensors

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        if is_plain(tensors) and not torch.is_grad_enabled():
            dy, dstate = calls.arriving(self.kernel, lambda: calls.states_shapes(self.kernel, tensors), results[0], gradients)
            return calls.backward(self.kernel, tensors, results, dy, dstate, self.all_states, tensors[0].requires_grad)
        return _Dispatched(self.kernel.recipe, self.all_states).backward(tensors, results, gradients)


class _Given(Straight):
    """A call that ran before, with its results."""

    __slots__ = ("_results",)

    def __init__(self, kernel: Kernel, results: Tensors) -> None:
        super().__init__(kernel, False)
        self._results = results

    def forward(self, _tensors: Tensors) -> Tensors:
        return [result.detach() for result in self._results]


def recorded(kernel: Kernel, tensors: Tensors, results: Tensors) -> Tensors:
    """Record a call that has run, and return y and the final states; `results`: all results of the forward, which saved."""
    return RecurrenceFunction.of(_Given(kernel, results), tensors)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class _Dispatched:
    """Calls the kernel through the dispatcher, below autograd."""

    recipe: str
    all_states: bool
    returned_count: int | None = None

    @property
    def results_count(self) -> int:
        return 1 + len(kernel_by(self.recipe).states)

    def forward(self, tensors: Tensors) -> Tensors:
        call = kernel_by(self.recipe).interface.slots.by_schema(tensors)
        return below_autograd(OPERATOR, self.recipe, True, self.all_states, *call)  # type: ignore[no-any-return]

    def read_again(self, tensors: Tensors) -> Tensors:
        return tensors

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        kernel = kernel_by(self.recipe)
        y, *extra = results
        dy, dstate = calls.arriving(kernel, lambda: calls.states_shapes(kernel, tensors), y, gradients)
        return gradients_of(kernel, tensors, y, extra, dy, dstate, self.all_states)


def gradients_of(
    kernel: Kernel, tensors: Tensors, y: Any, extra: Tensors, dy: Any, dstate: Tensors, all_states: bool = False
) -> list[Any]:
    """Return the gradients of a call's tensors by the operator, None for tensors without one."""
    call = kernel.interface.slots.by_schema(tensors)
    in_order = iter(_BACKWARD(kernel.recipe, all_states, *call, y, [*extra], dy, [*dstate]))
    return [next(in_order) if has_gradient else None for has_gradient in _have_gradients(tensors)]


def _second_gradients(
    settings: tuple[str, bool], saved_count: int, states_count: int, arguments: Tensors, along: Tensors, dx: Any
) -> list[Any]:
    """Return the gradients of a backward's `arguments`, from those of its results, `along`; see `Twice`.

    y has no gradient of its own: it is a function of the call's tensors, whose gradients include it.
    """
    kernel = kernel_by(settings[0])
    slots = kernel.interface.slots
    split = len(arguments) - states_count - saved_count - 2
    present, results, (dy, *dstate) = (
        arguments[:split],
        arguments[split : split + 1 + saved_count],
        arguments[split + 1 + saved_count :],
    )
    absent = () if split == slots.total else (None,) * len(kernel.states)
    tensors = (*present[: slots.states.start], *absent, *present[slots.states.start :])
    in_order = iter(along)
    tangents = [next(in_order) if has_gradient else None for has_gradient in _have_gradients(tensors)]
    first = _First(tensors, results, dy, dstate, dx)
    gradients, ddy, ddstate = _second_gradients_of(kernel, settings[1], first, tangents)
    of_present = [*gradients[: slots.states.start], *gradients[slots.states.start + len(absent) :]]
    of_tensors = [None if tensor is None else gradient for tensor, gradient in zip(present, of_present, strict=True)]
    return [*of_tensors, *(None,) * len(results), ddy, *(ddstate if dstate else ())]


def _keep(recipe: str, all_states: bool, *arguments: Any) -> Callable[[], tuple[Tensors, Any]] | None:
    """Return a backward that also returns the gradients of pre-activations; None where second gradients do not read them."""
    *call, y, extra, dy, dstate = arguments
    tensors = in_order(call, len(kernel_by(recipe).states))
    # A reset would cut the gradient of the total.
    if tensors[RESETS] is not None or joint_recipe(recipe) is None:
        return None
    # Native code saves the product of x and a 16-bit weight in float32; rounded, it would give other first gradients.
    if tensors[WEIGHT] is not None and extra[-1].dtype is not tensors[X].dtype:
        return None
    return partial(_kept, recipe, all_states, tensors, (y, *extra), dy, dstate)


def _kept(recipe: str, all_states: bool, tensors: Tensors, results: Tensors, dy: Any, dstate: Tensors) -> tuple[list[Any], Any]:
    """Return the gradients of a backward's tensors, and those of pre-activations."""
    kernel, (y, *extra), on_products = kernel_by(recipe), results, list(tensors)
    if tensors[WEIGHT] is not None:
        on_products[X], on_products[WEIGHT] = _projected(kernel, extra.pop()), None
        kernel = kernel_by(without_projection(recipe))
    with torch._C._AutoDispatchBelowAutograd():
        gradients = gradients_of(kernel, on_products, y, extra, dy, dstate, all_states)
        x = gradients[X]
        if tensors[WEIGHT] is not None:
            nothing = (None,) * len(tensors)
            call = TangentCall(kernel_by(recipe).interface, tangent_recipe(recipe, False), torch, tensors, nothing, y)
            gradients[X], gradients[WEIGHT] = call.through_weight(x)
    return [gradient for gradient, has in zip(gradients, _have_gradients(tensors), strict=True) if has], x


def _projected(kernel: Kernel, saved: Any) -> Any:
    """Return x times the weight, as a call saved it, in the axes of pre-activations."""
    run = kernel.executor.cpu if saved.device.type == "cpu" else kernel.executor.gpu
    return permuted(saved, [run.preactivation_axes.index(axis) for axis in kernel.interface.preactivation_axes])


class _First(NamedTuple):
    """A first backward: the tensors of its call, what it read, and the gradients of pre-activations, None if not kept."""

    tensors: Tensors
    results: Tensors
    dy: Any
    dstate: Tensors
    dx: Any


def _second_gradients_of(
    kernel: Kernel, all_states: bool, first: _First, tangents: Tensors
) -> tuple[list[Any], Any, list[Any]]:
    """Return the gradients of sum(gradient * tangent) over the gradients of a call: of its tensors by slot, dy and dstate.

    The last two are the derivatives of y and of the final states along the tangents.
    """
    tensors, (own_y, *own_extra), dy, dstate, _ = first
    recipe = tangent_recipe(kernel.recipe, tangents[R] is not None)
    moving = kernel_by(recipe.recipe)
    projected = None if first.dx is None or tensors[WEIGHT] is None else _projected(kernel, own_extra[-1])
    as_called = TangentCall(kernel.interface, recipe, torch, tensors, tangents, own_y, projected)
    computed = _scanned(moving, first, as_called)
    if computed is not None:
        return computed
    arrays = as_called.arguments()
    y, *others = OPERATOR(recipe.recipe, True, False, *moving.interface.slots.by_schema(arrays))
    final, extra = others[: len(moving.states)], others[len(moving.states) :]
    gradients = _joint_gradients(kernel, first, as_called, arrays[X], (y, final, extra))
    if gradients is not None:
        return gradients, y, as_called.final(final)
    gradients = gradients_of(moving, arrays, y, extra, dy, as_called.incoming(dstate))

    def backward(dy: Any) -> list[Any]:
        return gradients_of(kernel, tensors, own_y, own_extra, dy, (), all_states)

    return as_called.gradients(gradients, backward), y, as_called.final(final)


def _scanned(moving: Kernel, first: _First, as_called: TangentCall) -> tuple[list[Any], Any, list[Any]] | None:
    """Return `_second_gradients_of` by scans that read gates and tangents where they are; None where none serves."""
    tensors, (own_y, *own_extra), dy, dstate, _ = first
    observed = [tensor for tensor in (*tensors, *as_called.tangents, dy, *dstate, own_y) if tensor is not None]
    # Otherwise autograd or a compiler has to see the operators.
    is_here = dy.is_cuda and is_plain(observed, takes_transforms=True) and not torch.is_grad_enabled()
    computed = scanned(moving.executor, as_called, own_extra, dy, dstate) if is_here else None
    if computed is None:
        return None
    result, gradients = computed
    return gradients, result.y, as_called.final(result.final)


def _joint_gradients(
    kernel: Kernel, first: _First, of_tangent: TangentCall, gates: Any, moved: tuple[Any, Tensors, Tensors]
) -> list[Any] | None:
    """Return the second gradients of a call's tensors by one backward; None where the first one's are not kept.

    `of_tangent`: the tangent's call; `gates`: its x, which may be written; `moved`: its y, final states and saved arrays.
    """
    tensors, (own_y, *own_extra), dy, dstate, dx = first
    recipe = None if dx is None else joint_recipe(kernel.recipe)
    if recipe is None:
        return None
    y, final, extra = moved
    joint, x = kernel_by(recipe.recipe), tensors[X]
    of_call = (kernel.interface, recipe, torch, tensors, of_tangent.tangents, own_y, of_tangent.preactivations)
    as_called = JointCall(*of_call, of_tangent.recipe, gates, y, dx, dy)
    batch, time = (x.shape[kernel.interface.x_axes.index(axis)] for axis in "bt")
    layouts = joint.executor.saved_layouts(batch, time, on_cpu=x.device.type == "cpu", all_states=False)
    own_saved = own_extra if tensors[WEIGHT] is None else own_extra[:-1]
    saved = as_called.saved(layouts, own_saved, extra)
    if saved is None:
        return None
    incoming = as_called.dstate(dstate, final)
    return as_called.gradients_of_call(
        gradients_of(joint, as_called.arguments(), own_y, saved, as_called.dy_of_joint(), incoming)
    )


def _have_gradients(tensors: Tensors) -> list[bool]:
    """Say for each tensor of a call whether a backward returns its gradient."""
    return [tensor is not None and has_gradient(slot) for slot, tensor in enumerate(tensors)]


def _run(recipe: str, saves: bool, all_states: bool, *call: Any) -> list[Any]:
    kernel = kernel_by(recipe)
    return calls.forward(kernel, in_order(call, len(kernel.states)), saves, all_states)


def _run_backward(recipe: str, all_states: bool, *arguments: Any) -> list[Any]:
    *call, y, extra, dy, dstate = arguments
    kernel = kernel_by(recipe)
    tensors = in_order(call, len(kernel.states))
    gradients = calls.backward(kernel, tensors, (y, *extra), dy, dstate, all_states)
    pairs = zip(gradients, _have_gradients(tensors), strict=True)
    return [gradient for gradient, has_gradient in pairs if has_gradient]


def _fake(recipe: str, saves: bool, all_states: bool, *call: Any) -> list[Any]:
    return fake(recipe, saves, in_order(call, len(kernel_by(recipe).states)), all_states)


def fake(recipe: str, saves: bool, tensors: Tensors, all_states: bool = False) -> list[Any]:
    """Return the results of a call without values: shapes may be symbols."""
    kernel = kernel_by(recipe)
    interface, x = kernel.interface, tensors[0]
    if len(x.shape) != len(interface.x_axes):
        raise BadInput(f"x has shape {list(x.shape)}; {len(interface.x_axes)} axes are expected")
    sizes = dict(zip(interface.x_axes, x.shape, strict=True))
    batch, time = sizes["b"], sizes["t"]
    results = [x.new_empty(interface.y_shape(batch, time), dtype=calls.storage_dtype(kernel))]
    dtype = calls.arithmetic_dtype(kernel)
    results += [x.new_empty(shape, dtype=dtype) for shape in calls.states_shapes(kernel, tensors)]
    if saves:
        on_cpu = x.device.type == "cpu"
        layouts = kernel.executor.saved_layouts(batch, time, on_cpu=on_cpu, all_states=all_states)
        results += [x.new_empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in layouts]
    return results


def _record(recipe: str, saves: bool, all_states: bool, *call: Any) -> list[Any]:
    if saves and records(in_order(call, 0)):
        tensors = in_order(call, len(kernel_by(recipe).states))
        return list(RecurrenceFunction.apply(_Dispatched(recipe, all_states), *tensors))
    return below_autograd(OPERATOR, recipe, saves, all_states, *call)  # type: ignore[no-any-return]


OPERATOR = define(f"recurrence(str recipe, bool saves, bool all_states, {_CALL}) -> Tensor[]", _run, _fake, _record)
_BACKWARD = define_backward(
    "recurrence_backward",
    ("str recipe", "bool all_states"),
    _CALL,
    _run_backward,
    _have_gradients,
    _second_gradients,
    _keep,
)
