"""`minrnn_gen.torch.recurrence`: a kernel as a function that autograd knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Unpack

import torch

from minrnn_gen.build.altered_cells import refuse_projected
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.keywords import CallArrays, call_arguments, shows_call
from minrnn_gen.call.known_names import known_names
from minrnn_gen.errors import BadInput, kind_of
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import kernel_by, known
from minrnn_gen.torch.operators.altered import added_inputs, altered
from minrnn_gen.torch.operators.calls import storage_dtype
from minrnn_gen.torch.operators.embedded import embedded_recurrence
from minrnn_gen.torch.operators.recurrence import run
from minrnn_gen.torch.sequence_group.ranks import Ranks
from minrnn_gen.torch.tensors import autocasts, check_tensor, integers_in, marks_in


@shows_call
def recurrence(
    kernel: Kernel,
    x: Any,
    R: Any = None,
    *,
    all_states: bool = False,
    sequence_group: Any = None,
    head_group: Any = None,
    **arrays: Unpack[CallArrays],
) -> tuple[Any, ...]:
    """Return what `kernel(x, R, …)` does, (y, final state), with gradients for every tensor that requires them.

    With `all_states` a third one follows, the states after every step, each shaped like y; gradients do not go through them.

    Shapes and dtypes are those of the kernel's call (docs/python.md), but no tensor has to be contiguous. Under autocast x, R
    and weight are cast to the kernel's storage dtype. Gradients have gradients, and transforms of torch.func are supported
    (docs/how-to/derivatives.md). sequence_group: a process group whose ranks split time; head_group: a process group whose
    ranks split heads, or the channels of a cell without R (docs/how-to/several-gpus.md). Raises BadInput for tensors that do
    not fit.
    """
    reset_states, holds = arrays.pop("reset_states", None), arrays.pop("holds", None)
    arguments = call_arguments(x, R, arrays)
    if isinstance(kernel, Kernel) and kernel.embedded is not None:
        altering: Any = {"reset_states": reset_states, "holds": holds}
        if kernel.interface.products:
            refuse_projected(kernel.builder.cell_source.name, reset_states, holds)
            altering = {}
        check_tensor(x, "x")
        if head_group is not None and not getattr(head_group, "gathers", True):
            if not kernel.interface.products:
                why = f"X.{kernel.interface.step_inputs[0]} is of one value per step, whose gradient is a sum over all heads"
                raise BadInput(f"head_group has gathers=False, but {why}; leave it out")
            raise BadInput("head_group has gathers=False, but each rank's units are no whole heads of P; leave it out")
        call = partial(recurrence, all_states=all_states, sequence_group=sequence_group, head_group=head_group, **altering)
        is_whole = sequence_group is None and head_group is None and not all_states
        return embedded_recurrence(call, kernel, arguments, folds=is_whole)
    if sequence_group is not None or head_group is not None:
        groups = (sequence_group, head_group)
        over_ranks = _over_ranks_uncompiled if torch.compiler.is_compiling() else _over_ranks
        return over_ranks(kernel, arguments, all_states, groups, (reset_states, holds))
    tensors = _tensors_of(kernel, arguments, all_states)
    recipe = kernel.recipe if torch.compiler.is_compiling() else known(kernel)
    count = len(kernel.states)
    own: Kernel | None = kernel
    if reset_states is not None or holds is not None:
        recipe, begins = altered(recipe, reset_states is not None, holds is not None)
        tensors = (*tensors, *added_inputs(kernel.interface, begins, tensors, reset_states, holds))
        own = None if torch.compiler.is_compiling() else kernel_by(recipe)
    return _named(run(recipe, count, len(kernel.parameters), tensors, own, all_states), kernel.states, all_states)


def _over_ranks(
    kernel: Kernel, arguments: CallArguments, all_states: bool, groups: tuple[Any, Any], altering: tuple[Any, Any]
) -> tuple[Any, ...]:
    """Return the results of a call on this rank's piece of time, of heads, or both."""
    ranks = Ranks.of(*groups)
    with ranks.refused_everywhere(arguments.x):
        tensors, own = _tensors_of(kernel, arguments, all_states), kernel
        if altering != (None, None):
            recipe, begins = altered(kernel.recipe, *(array is not None for array in altering))
            tensors = (*tensors, *added_inputs(kernel.interface, begins, tensors, *altering, ranks))
            own = kernel_by(recipe)
    return _named(ranks.run(own, tensors, all_states), kernel.states, all_states)


# Breaks the graph of torch.compile. Elsewhere the function is called as it is, which costs the host less.
_over_ranks_uncompiled: Any = torch.compiler.disable(_over_ranks)


def _tensors_of(kernel: Kernel, arguments: CallArguments, all_states: bool) -> tuple[Any, ...]:
    """Return the tensors of a call in the order of slots, cast as autocast says; refuses anything else."""
    x, R, weight, bias, recurrent_bias, resets, lengths, cu_seqlens, parameters, state, shared, inputs = arguments
    if not isinstance(kernel, Kernel):
        raise BadInput(f"kernel is {kind_of(kernel)}; the result of minrnn_gen.compile is expected")
    if not isinstance(all_states, bool):
        raise BadInput(f"all_states is {kind_of(all_states)}; True or False is expected")
    check_tensor(x, "x")
    resets = marks_in(resets)
    lengths, cu_seqlens = integers_in(lengths, "lengths"), integers_in(cu_seqlens, "cu_seqlens")
    if autocasts(x):
        dtype = storage_dtype(kernel)
        x, R, weight = (
            tensor.to(dtype) if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() else tensor
            for tensor in (x, R, weight)
        )
        shared, inputs = (
            {name: tensor.to(dtype) if isinstance(tensor, torch.Tensor) else tensor for name, tensor in named.items()}
            if isinstance(named, Mapping)
            else named
            for named in (shared, inputs)
        )
    named = _in_order(parameters, kernel.parameters, "parameters")
    streams = (*_in_order(shared, kernel.shared, "shared"), *_in_order(inputs, kernel.inputs, "inputs"))
    starts_at_zero = state is None or (isinstance(state, Mapping) and not state)
    initial = (None,) * len(kernel.states) if starts_at_zero else _in_order(state, kernel.states, "state")
    absent = [name for name, tensor in zip(kernel.states, initial, strict=True) if tensor is None]
    if 0 < len(absent) < len(initial):
        raise BadInput(f"state['{absent[0]}'] is None; give all of {', '.join(kernel.states)}, or none for zeros")
    return (x, R, weight, bias, recurrent_bias, resets, lengths, cu_seqlens, *named, *initial, *streams)


def _named(results: Sequence[Any], names: tuple[str, ...], all_states: bool) -> tuple[Any, ...]:
    """Return y and the states by their names: the final ones, and for `all_states` those of all steps."""
    y, *states = results
    final = dict(zip(names, states[: len(names)], strict=True))
    return (y, final, dict(zip(names, states[len(names) :], strict=True))) if all_states else (y, final)


def _in_order(mapping: Mapping[str, Any] | None, names: tuple[str, ...], what: str) -> tuple[Any, ...]:
    """Return the tensors of a mapping in the order of `names`; the mapping must have exactly these names."""
    mapping = known_names(mapping, names, what)
    for name in names:
        if name not in mapping:
            raise BadInput(f"{what} lacks '{name}'; give all of {', '.join(names)}")
    return tuple(mapping[name] for name in names)
