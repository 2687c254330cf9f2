"""`minrnn_gen.jax.gae`, `vtrace` and `lambda_returns`: advantages and returns of reinforcement learning, by one scan each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from minrnn_gen.call.sequences import are_numbers, as_marks
from minrnn_gen.errors import BadInput
from minrnn_gen.jax.arrays import as_array, check_real, check_static, is_traced
from minrnn_gen.jax.raw_scan import scan
from minrnn_gen.raw_scan import returns
from minrnn_gen.raw_scan.returns import Library, Steps


def _checked(value: Any, name: str, *shapes: tuple[int, ...]) -> Any:
    array = as_array(value, name)
    check_real(array, name, *shapes)
    return array


def _marks(marks: Any, name: str) -> Any:
    marks = as_array(marks, name)
    if is_traced(marks) and are_numbers(marks):
        raise BadInput(f"{name} has dtype {marks.dtype} and values that are not known yet; give {name}.astype(bool)")
    return as_marks(marks, name)


def _widest(arrays: Sequence[Any]) -> tuple[Any, Any]:
    dtype = jnp.result_type(*arrays)
    return dtype, jnp.promote_types(dtype, jnp.float32)


def _in_dtype(array: Any, dtype: Any) -> Any:
    return array.astype(dtype)


_JAX = Library(
    array="an array",
    is_array=lambda value: hasattr(value, "dtype"),
    scan=scan,
    concatenate=jnp.concatenate,
    exp=jnp.exp,
    minimum=jnp.minimum,
    ones_like=jnp.ones_like,
    checked=_checked,
    marks=_marks,
    flag=jnp.bool_,
    cast=lambda array, like: array.astype(like.dtype),
    in_dtype=_in_dtype,
    widest=_widest,
    check_together=lambda _: None,
)


def _steps(reward: Any, alike: Mapping[str, Any], *others: Any) -> tuple[Steps, list[Any], Any]:
    """Call `returns.steps_of`, whose last argument must not be a tracer."""
    check_static(others[-1], "axis")
    return returns.steps_of(_JAX, reward, alike, *others)


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
    thresholds = (returns.factor(_JAX, bound, name, steps.reward) for name, bound in bounds.items())
    advantage, target = returns.vtrace(steps, value, log_rho, *thresholds)
    return advantage.astype(dtype), target.astype(dtype)
