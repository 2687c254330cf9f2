"""Advantages and returns of reinforcement learning, each a scan against time, on the arrays of any library."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from minrnn_gen.errors import BadInput, shown


@dataclass(frozen=True, slots=True)
class Library:
    """Functions of an array library in addition to operators; `array`: the word for an array in errors.

    `checked` returns a named array of real numbers, of one of the shapes, if any; `marks` returns flags, of dtype `flag`.
    `cast` returns an array in the dtype and on the device of another; `widest` returns the dtypes of results and of the
    arithmetic. `check_together` refuses named arrays, any of which may be None, in different places.
    """

    array: str
    is_array: Callable[[Any], bool]
    scan: Callable[..., tuple[Any, Any]]
    concatenate: Callable[[Sequence[Any], int], Any]
    exp: Callable[[Any], Any]
    minimum: Callable[[Any, Any], Any]
    ones_like: Callable[[Any], Any]
    checked: Callable[..., Any]
    marks: Callable[[Any, str], Any]
    flag: Any
    cast: Callable[[Any, Any], Any]
    in_dtype: Callable[[Any, Any], Any]
    widest: Callable[[Sequence[Any]], tuple[Any, Any]]
    check_together: Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of episodes along `axis`; arrays of one shape and dtype.

    next_value: the value of the state after a step. goes_on: 1 where the next step belongs to the same episode, else 0.
    discount: gamma, or 0 where that state is terminal. gamma, lmbda: numbers, or arrays that broadcast.
    """

    library: Library
    axis: int
    reward: Any
    next_value: Any
    goes_on: Any
    discount: Any
    gamma: Any
    lmbda: Any

    def sums(self, decay: Any, terms: Any) -> Any:
        """Return s[t] = terms[t] + decay[t] gamma[t] lmbda[t] s[t+1], within episodes."""
        sums, _ = self.library.scan(decay * (self.gamma * self.lmbda), terms, reverse=True, axis=self.axis)
        return sums


def steps_of(
    library: Library,
    reward: Any,
    alike: Mapping[str, Any],
    next_value: Any,
    done: Any,
    terminated: Any,
    gamma: Any,
    lmbda: Any,
    axis: Any,
) -> tuple[Steps, list[Any], Any]:
    """Return the steps in the dtype of the arithmetic, arrays `alike` reward in it, and the dtype of results.

    Raises BadInput for arguments that do not fit.
    """
    reward = library.checked(reward, "reward")
    shape = tuple(reward.shape)
    along = axis_in(shape, axis)
    arrays = {name: library.checked(array, name, shape) for name, array in alike.items()}
    next_value = library.checked(next_value, "next_value", *shapes_of_next_value(shape, along, len(alike) > 0))
    is_last_only = next_value.ndim < len(shape)
    check_ends(is_last_only, terminated)
    library.check_together({"reward": reward, **arrays, "next_value": next_value, "done": done, "terminated": terminated})
    every = (reward, next_value, *arrays.values())
    dtype, wide = library.widest(every)
    reward, next_value, *others = (library.in_dtype(array, wide) for array in every)
    goes_on = _unmarked(library, done, "done", reward)
    bootstraps = goes_on if terminated is None else _unmarked(library, terminated, "terminated", reward)
    if is_last_only:
        next_value = _following(library, others[0], next_value, along)
    gamma, lmbda = factor(library, gamma, "gamma", reward), factor(library, lmbda, "lmbda", reward)
    return Steps(library, along, reward, next_value, goes_on, gamma * bootstraps, gamma, lmbda), others, dtype


def _unmarked(library: Library, marks: Any, name: str, like: Any) -> Any:
    """Return 1 where a step is not marked, 0 where it is."""
    if marks is None:
        return library.ones_like(like)
    flags = library.marks(marks, name)
    if flags.dtype != library.flag or flags.shape != like.shape:
        raise BadInput(
            f"{name} has dtype {marks.dtype} and shape {list(marks.shape)}; bool, or numbers 0 and 1, of shape "
            f"{list(like.shape)} are expected"
        )
    return library.cast(~flags, like)


def factor(library: Library, value: Any, name: str, like: Any) -> Any:
    """Return a number as it is, and an array in the dtype of the arithmetic."""
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    if not library.is_array(value):
        raise BadInput(f"{name} is {shown(value)}; a number or {library.array} is expected")
    return library.cast(library.checked(value, name, (), tuple(like.shape)), like)


def gae(steps: Steps, value: Any) -> tuple[Any, Any]:
    """Return (advantage, value target). Source: Schulman et al., arXiv 1506.02438, equation 16."""
    advantage = steps.sums(steps.goes_on, steps.reward + steps.discount * steps.next_value - value)
    return advantage, advantage + value


def lambda_returns(steps: Steps) -> Any:
    """Return G[t] = r[t] + gamma ((1 - lmbda) v[t+1] + lmbda G[t+1]); the last G of an episode is r + gamma v."""
    inner, last = cut(steps.goes_on, steps.axis, 0, -1), cut(steps.goes_on, steps.axis, -1, None)
    goes_on = steps.library.concatenate((inner, 0 * last), steps.axis)
    one_step = steps.reward + steps.discount * steps.next_value * (1 - steps.lmbda * goes_on)
    return steps.sums(goes_on, one_step)


def vtrace(steps: Steps, value: Any, log_rho: Any, rho_thresh: Any, c_thresh: Any, pg_rho_thresh: Any) -> tuple[Any, Any]:
    """Return (advantage, value target). Source: Espeholt et al., IMPALA, arXiv 1802.01561, equation 1 and section 4.2."""
    least, rho = steps.library.minimum, steps.library.exp(log_rho)
    errors = least(rho, rho_thresh) * (steps.reward + steps.discount * steps.next_value - value)
    target = value + steps.sums(steps.goes_on * least(rho, c_thresh), errors)
    ahead = steps.lmbda * _next(steps, target) + (1 - steps.lmbda) * _next(steps, value)
    ahead = steps.goes_on * ahead + (1 - steps.goes_on) * steps.next_value
    return least(rho, pg_rho_thresh) * (steps.reward + steps.discount * ahead - value), target


def _next(steps: Steps, array: Any) -> Any:
    """Return a quantity of the state after each step from the same quantity of the state before it."""
    return steps.library.concatenate((cut(array, steps.axis, 1, None), cut(steps.next_value, steps.axis, -1, None)), steps.axis)


def cut(array: Any, axis: int, start: int | None, stop: int | None) -> Any:
    """Return the steps from `start` to `stop`."""
    return array[(slice(None),) * axis + (slice(start, stop),)]


def _following(library: Library, value: Any, last: Any, axis: int) -> Any:
    """Return the value of the state after each step; `last`, the value after the last step, lacks `axis`."""
    return library.concatenate((cut(value, axis, 1, None), last[(slice(None),) * axis + (None,)]), axis)


def axis_in(shape: Sequence[int], axis: Any) -> int:
    """Return the axis of time of the reward, counted from the first; raises BadInput where there is none."""
    count = len(shape)
    if not count:
        raise BadInput("reward has no axes; an array with an axis of time is expected")
    try:
        index = operator.index(axis)
    except TypeError:
        index = count
    if isinstance(axis, bool) or not -count <= index < count:
        raise BadInput(
            f"axis is {shown(axis)}, but reward has shape {list(shape)}; allowed are the integers {-count} to {count - 1}"
        )
    return index % count


def shapes_of_next_value(shape: tuple[int, ...], axis: int, has_values: bool) -> tuple[tuple[int, ...], ...]:
    """Return the shapes that next_value may have: reward's shape, and with values of all steps also that without time."""
    return (shape, (*shape[:axis], *shape[axis + 1 :])) if has_values else (shape,)


def thresholds(rho_thresh: Any, c_thresh: Any, pg_rho_thresh: Any) -> dict[str, Any]:
    """Return the thresholds of V-trace by name, in the order in which `vtrace` takes them."""
    pg_rho_thresh = rho_thresh if pg_rho_thresh is None else pg_rho_thresh
    return {"rho_thresh": rho_thresh, "c_thresh": c_thresh, "pg_rho_thresh": pg_rho_thresh}


def check_ends(has_last_value_only: bool, terminated: Any) -> None:
    """Refuse `terminated` where the value of a truncated episode's last state is missing."""
    if has_last_value_only and terminated is not None:
        raise BadInput(
            "terminated is given, but next_value is of the last step only, so that the states in which episodes were truncated "
            "have no values; give next_value in the shape of reward, or done alone"
        )
