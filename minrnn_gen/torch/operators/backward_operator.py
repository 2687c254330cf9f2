"""The operator of a backward: its results for tensors without values, and its own gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from minrnn_gen.torch.operators.dispatch import below_autograd, define, records
from minrnn_gen.torch.operators.recorded import Tensors, gradients_twice

_BEHIND_CALL = "Tensor y, Tensor[] saved, Tensor dy, Tensor[] dstate"


def in_order(call: Sequence[Any], states: int) -> tuple[Any, ...]:
    """Return the arguments of an operator, lists of parameters and states last, as the tensors of a call of so many states.

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
    keeps: Callable[..., bool] = lambda *_: False,
) -> Any:
    """Define and return the operator `name` of `settings`, a call, and the gradients that arrive at its results.

    `run` takes its arguments; `have_gradients` says for each tensor of a call whether its gradient is returned. `twice`, for an
    operator with gradients, takes its settings, the number of saved arrays and of arriving gradients of states, then the
    arguments of `Twice`. `keeps` takes the settings and the tensors of a call, and says whether `twice` reads the first gradient.
    """

    def fake(*arguments: Any) -> list[Any]:
        *of_call, _y, _saved, _dy, _dstate = arguments[len(settings) :]
        tensors = in_order(of_call, 0)
        pairs = zip(tensors, have_gradients(tensors), strict=True)
        return [tensor.new_empty(tensor.shape) for tensor, has_gradient in pairs if has_gradient]

    def record(*arguments: Any) -> list[Any]:
        *of_call, y, saved, dy, dstate = arguments[len(settings) :]
        call, own = in_order(of_call, 0), arguments[: len(settings)]
        again = None if twice is None else partial(twice, own, len(saved), len(dstate))

        def run() -> Tensors:
            return below_autograd(operator, *arguments)  # type: ignore[no-any-return]

        tensors = (*call, y, *saved, dy, *dstate)
        return list(gradients_twice(run, again, tensors, keeps=records(tensors) and keeps(own, call)))

    operator = define(f"{name}({', '.join(settings)}, {call}, {_BEHIND_CALL}) -> Tensor[]", run, fake, record)
    return operator
