"""`minrnn_gen.jax.gae`, `vtrace` and `lambda_returns`: advantages and returns of reinforcement learning, by one scan each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from minrnn_gen.call.sequences import are_numbers, as_marks
from minrnn_gen.errors import BadInput, shown
from minrnn_gen.jax.arrays import as_array, check_real, check_static, is_traced
from minrnn_gen.jax.raw_scan import scan
from minrnn_gen.raw_scan import returns
from minrnn_gen.raw_scan.returns import Library, Steps

_JAX = Library(scan, jnp.concatenate, jnp.exp, jnp.minimum)


def gae(
    reward: Any,
    value: Any,
    next_value: Any,
    done: Any = None,
    terminated: Any = None,
    *,
    gamma: Any,
    lmbda: Any,
    axis: int = 1,
) -> tuple[Any, Any]:
    """Return (advantage, value target) of generalized advantage estimation, with gradients of all floating-point arrays.

    Equations, shapes and dtypes are those of `minrnn_gen.torch.gae`. In a transformation `done` and `terminated` are bool.
    Raises BadInput for arguments that do not fit. Source: Schulman et al., arXiv 1506.02438.
    """
    steps, (value,), dtype = _steps(reward, {"value": value}, next_value, done, terminated, gamma, lmbda, axis)
    advantage, target = returns.gae(steps, value)
    return advantage.astype(dtype), target.astype(dtype)


def lambda_returns(
    reward: Any,
    next_value: Any,
    done: Any = None,
    terminated: Any = None,
    *,
    gamma: Any,
    lmbda: Any,
    axis: int = 1,
) -> Any:
    """Return the lambda-returns G of each step, with gradients of all floating-point arrays.

    Equations, shapes and dtypes are those of `minrnn_gen.torch.lambda_returns`. In a transformation `done` and `terminated`
    are bool. Raises BadInput for arguments that do not fit.
    """
    steps, _, dtype = _steps(reward, {}, next_value, done, terminated, gamma, lmbda, axis)
    return returns.lambda_returns(steps).astype(dtype)


def vtrace(
    log_rho: Any,
    reward: Any,
    value: Any,
    next_value: Any,
    done: Any = None,
    terminated: Any = None,
    *,
    gamma: Any,
    lmbda: Any = 1.0,
    rho_thresh: Any = 1.0,
    c_thresh: Any = 1.0,
    pg_rho_thresh: Any = None,
    axis: int = 1,
) -> tuple[Any, Any]:
    """Return (advantage, value target) of V-trace, with gradients of all floating-point arrays.

    Equations, shapes and dtypes are those of `minrnn_gen.torch.vtrace`. In a transformation `done` and `terminated` are bool.
    Raises BadInput for arguments that do not fit. Source: Espeholt et al., IMPALA, arXiv 1802.01561.
    """
    alike = {"value": value, "log_rho": log_rho}
    steps, (value, log_rho), dtype = _steps(reward, alike, next_value, done, terminated, gamma, lmbda, axis)
    bounds = returns.thresholds(rho_thresh, c_thresh, pg_rho_thresh)
    thresholds = (_factor(bound, name, steps.reward) for name, bound in bounds.items())
    advantage, target = returns.vtrace(steps, value, log_rho, *thresholds)
    return advantage.astype(dtype), target.astype(dtype)


def _steps(
    reward: Any,
    alike: Mapping[str, Any],
    next_value: Any,
    done: Any,
    terminated: Any,
    gamma: Any,
    lmbda: Any,
    axis: Any,
) -> tuple[Steps, list[Any], Any]:
    """Return the steps in the dtype of the arithmetic, arrays `alike` reward in it, and the dtype of results."""
    check_static(axis, "axis")
    reward, next_value = as_array(reward, "reward"), as_array(next_value, "next_value")
    shape = reward.shape
    along = returns.axis_in(shape, axis)
    arrays = {name: as_array(array, name) for name, array in alike.items()}
    for name, array in {"reward": reward, **arrays}.items():
        check_real(array, name, shape)
    check_real(next_value, "next_value", *returns.shapes_of_next_value(shape, along, bool(alike)))
    is_last_only = next_value.ndim < len(shape)
    returns.check_ends(is_last_only, terminated)
    dtype = jnp.result_type(reward, next_value, *arrays.values())
    wide = jnp.promote_types(dtype, jnp.float32)
    reward, next_value, *others = (array.astype(wide) for array in (reward, next_value, *arrays.values()))
    goes_on = _unmarked(done, "done", reward)
    bootstraps = goes_on if terminated is None else _unmarked(terminated, "terminated", reward)
    if is_last_only:
        next_value = returns.following(_JAX, others[0], next_value, along)
    gamma, lmbda = _factor(gamma, "gamma", reward), _factor(lmbda, "lmbda", reward)
    return Steps(_JAX, along, reward, next_value, goes_on, gamma * bootstraps, gamma, lmbda), others, dtype


def _unmarked(marks: Any, name: str, like: Any) -> Any:
    """Return 1 where a step is not marked, 0 where it is."""
    if marks is None:
        return jnp.ones_like(like)
    marks = as_array(marks, name)
    if is_traced(marks) and are_numbers(marks):
        raise BadInput(f"{name} has dtype {marks.dtype} and values that are not known yet; give {name}.astype(bool)")
    flags = as_marks(marks, name)
    if flags.dtype != jnp.bool_ or flags.shape != like.shape:
        raise BadInput(
            f"{name} has dtype {marks.dtype} and shape {list(marks.shape)}; bool, or numbers 0 and 1, of shape "
            f"{list(like.shape)} are expected"
        )
    return (~flags).astype(like.dtype)


def _factor(value: Any, name: str, like: Any) -> Any:
    """Return a number as it is, and an array in the dtype of the arithmetic."""
    if returns.is_number(value):
        return float(value)
    if not hasattr(value, "dtype"):
        raise BadInput(f"{name} is {shown(value)}; a number or an array is expected")
    array = as_array(value, name)
    check_real(array, name, (), like.shape)
    return array.astype(like.dtype)
