"""The operator of a backward: its results for tensors without values, and its own gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from minrnn_gen.torch.operators.dispatch import below_autograd, define, records
from minrnn_gen.torch.operators.recorded import Tensors, gradients_twice

_BEHIND_CALL = "Tensor y, Tensor[] saved, Tensor dy, Tensor[] dstate"


def in_order(call: Sequence[Any], states: int) -> tuple[Any, ...]:
    """Return an operator's arguments, lists of parameters and states last, as the tensors of a call with `states` states.

    Another list before those two, of inputs S.* and X.* or of masks, comes after both.
    """
    *head, parameters, state = call
    shared = head.pop() if isinstance(head[-1], (list, tuple)) else ()
    return (*head, *parameters, *(state or (None,) * states), *shared)


def define_backward(
    name: str,
    settings: Sequence[str],
    call: str,
    run: Callable[..., Any],
    have_gradients: Callable[[Tensors], list[bool]],
    twice: Callable[..., Tensors] | None = None,
    keep: Callable[..., Callable[[], tuple[Tensors, Any]] | None] | None = None,
) -> Any:
    """Define and return the operator `name` of `settings`, a call, and the gradients that arrive at its results.

    `run` takes its arguments; `have_gradients` says for each tensor of a call whether its gradient is returned. `twice`, for an
    operator with gradients, takes its settings, the number of saved arrays and of arriving gradients of states, then the
    arguments of `Twice`. `keep` takes what `run` takes, and returns what `gradients_twice` takes as `keeping`.
    """

    def fake(*arguments: Any) -> list[Any]:
        *of_call, _y, _saved, _dy, _dstate = arguments[len(settings) :]
        tensors = in_order(of_call, 0)
        pairs = zip(tensors, have_gradients(tensors), strict=True)
        return [tensor.new_empty(tensor.shape) for tensor, has_gradient in pairs if has_gradient]

    def record(*arguments: Any) -> list[Any]:
        *of_call, y, saved, dy, dstate = arguments[len(settings) :]
        tensors = (*in_order(of_call, 0), y, *saved, dy, *dstate)
        again = None if twice is None else partial(twice, arguments[: len(settings)], len(saved), len(dstate))
        keeping = keep(*arguments) if keep is not None and records(tensors) else None
        return list(gradients_twice(lambda: below_autograd(operator, *arguments), again, tensors, keeping=keeping))

    operator = define(f"{name}({', '.join(settings)}, {call}, {_BEHIND_CALL}) -> Tensor[]", run, fake, record)
    return operator
