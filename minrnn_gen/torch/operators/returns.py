"""`minrnn_gen.torch.gae`, `vtrace` and `lambda_returns`: advantages and returns of reinforcement learning, by one scan each."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from minrnn_gen.raw_scan import returns
from minrnn_gen.raw_scan.returns import Library
from minrnn_gen.torch.operators.raw_scan import scan
from minrnn_gen.torch.tensors import check_devices, check_real, check_shape, check_tensor, marks_in


def _checked(value: Any, name: str, *shapes: tuple[int, ...]) -> Any:
    check_shape(value, name, *shapes) if shapes else check_real(value, name)
    return value


def _marks(marks: Any, name: str) -> Any:
    check_tensor(marks, name)
    return marks_in(marks, name)


def _widest(tensors: Sequence[Any]) -> tuple[torch.dtype, torch.dtype]:
    dtype = functools.reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
    return dtype, torch.promote_types(dtype, torch.float32)


_TORCH = Library(
    array="a torch tensor",
    is_array=lambda value: isinstance(value, torch.Tensor),
    scan=scan,
    concatenate=torch.cat,
    exp=torch.exp,
    minimum=lambda tensor, bound: tensor.clamp(max=bound),
    ones_like=torch.ones_like,
    checked=_checked,
    marks=_marks,
    flag=torch.bool,
    cast=lambda tensor, like: tensor.to(like.device, like.dtype),
    in_dtype=lambda tensor, dtype: tensor.to(dtype),
    widest=_widest,
    check_together=check_devices,
)


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
    """Return (advantage, value target) of generalized advantage estimation, with gradients of all tensors.

    advantage[t] = delta[t] + gamma lmbda (1 - done[t]) advantage[t+1], with delta[t] = reward[t] + gamma (1 - terminated[t])
    next_value[t] - value[t]; the value target is advantage + value.

    All tensors have the shape of `reward`, with time along `axis`: [B, T], or [T, B] with axis=0, or any other. next_value: the
    value of the state after each step, or, without `axis`, only after the last step: the other steps take value[t+1]. done:
    bool, or numbers 0 and 1, True where step t ends its episode; nowhere where None. terminated: True where it ends in a
    terminal state, whose value counts as 0; as `done` where None. gamma, lmbda: numbers, or tensors without axes or of the
    shape of `reward`. Floating-point dtypes may differ; results have the widest. 16 bits are computed in float32 and rounded
    once. Raises BadInput for arguments that do not fit. Source: Schulman et al., arXiv 1506.02438.
    """
    steps, (value,), dtype = returns.steps_of(
        _TORCH, reward, {"value": value}, next_value, done, terminated, gamma, lmbda, axis
    )
    advantage, target = returns.gae(steps, value)
    return advantage.to(dtype), target.to(dtype)


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
    """Return G[t] = reward[t] + gamma ((1 - lmbda) v[t] + lmbda G[t+1]), with gradients of all tensors.

    v[t] is next_value[t], the value of the state after step t, 0 where `terminated`. At the last step, and where `done`,
    G[t] = reward[t] + gamma v[t]. Arguments are those of `gae`; next_value has the shape of `reward`.
    Raises BadInput for arguments that do not fit. Source: Sutton & Barto, Reinforcement Learning, 2nd edition, section 12.3.
    """
    steps, _, dtype = returns.steps_of(_TORCH, reward, {}, next_value, done, terminated, gamma, lmbda, axis)
    return returns.lambda_returns(steps).to(dtype)


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
    """Return (advantage, value target) of V-trace, with gradients of all tensors.

    log_rho: the logarithm of the ratio of an action's probabilities, new policy over acting policy. With rho = exp(log_rho),
    target[t] = value[t] + delta[t] + gamma lmbda c[t] (1 - done[t]) (target[t+1] - value[t+1]), where
    delta[t] = min(rho, rho_thresh) (reward[t] + gamma (1 - terminated[t]) next_value[t] - value[t]) and c = min(rho, c_thresh).
    The advantage, for the gradient of the policy, is min(rho, pg_rho_thresh) (reward[t] + gamma v[t] - value[t]): v[t] is
    lmbda target[t+1] + (1 - lmbda) value[t+1] within an episode, next_value[t] at its end, and 0 where `terminated`.

    The other arguments are those of `gae`. The thresholds are numbers, or tensors as gamma; pg_rho_thresh is rho_thresh where
    None. Raises BadInput for arguments that do not fit. Source: Espeholt et al., IMPALA, arXiv 1802.01561.
    """
    alike = {"value": value, "log_rho": log_rho}
    steps, (value, log_rho), dtype = returns.steps_of(_TORCH, reward, alike, next_value, done, terminated, gamma, lmbda, axis)
    bounds = returns.thresholds(rho_thresh, c_thresh, pg_rho_thresh)
    thresholds = (returns.factor(_TORCH, bound, name, steps.reward) for name, bound in bounds.items())
    advantage, target = returns.vtrace(steps, value, log_rho, *thresholds)
    return advantage.to(dtype), target.to(dtype)
