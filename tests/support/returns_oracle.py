"""Advantages and returns from the papers' sums, step by step in float64: the oracle of the functions by scans.

Arrays are [T], of one trajectory in which episodes may end; `over` applies a sum to every trajectory of arrays with more axes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def gae(r: Any, v: Any, nv: Any, done: Any, terminated: Any, gamma: Any, lmbda: Any) -> tuple[Any, Any]:
    """Schulman et al. 2016, equation 16: the sum of (gamma lambda)^l delta[t+l] to the end of the episode."""
    delta = r + gamma * ~terminated * nv - v
    advantage = np.zeros_like(r)
    for t in range(len(r)):
        weight = 1.0
        for k in range(t, len(r)):
            advantage[t] += weight * delta[k]
            if done[k]:
                break
            weight *= gamma[k] * lmbda[k]
    return advantage, advantage + v


def lambda_returns(r: Any, nv: Any, done: Any, terminated: Any, gamma: Any, lmbda: Any) -> tuple[Any]:
    """Sutton & Barto, equation 12.3: n-step returns, weighed by (1 - lambda) lambda^(n-1), the longest by lambda^(n-1)."""
    found = np.zeros_like(r)
    for t in range(len(r)):
        rewards, discount, weight = 0.0, 1.0, 1.0
        for k in range(t, len(r)):
            rewards += discount * r[k]
            discount *= gamma[k]
            n_step = rewards + discount * (0.0 if terminated[k] else nv[k])
            if done[k] or k == len(r) - 1:
                found[t] += weight * n_step
                break
            found[t] += weight * (1 - lmbda[k]) * n_step
            weight *= lmbda[k]
    return (found,)


def vtrace(
    log_rho: Any, r: Any, v: Any, nv: Any, done: Any, terminated: Any, gamma: Any, lmbda: Any, thresholds: tuple[float, ...]
) -> tuple[Any, Any]:
    """Espeholt et al. 2018, equation 1, and the advantage of section 4.2; c is multiplied by lambda (remark 2)."""
    rho_thresh, c_thresh, pg_rho_thresh = thresholds
    rho = np.exp(log_rho)
    delta = np.minimum(rho, rho_thresh) * (r + gamma * ~terminated * nv - v)
    target = v.copy()
    for s in range(len(r)):
        weight = 1.0
        for t in range(s, len(r)):
            target[s] += weight * delta[t]
            if done[t]:
                break
            weight *= gamma[t] * lmbda[t] * min(rho[t], c_thresh)
    advantage = np.zeros_like(r)
    for s in range(len(r)):
        ahead = nv[s] if done[s] or s == len(r) - 1 else lmbda[s] * target[s + 1] + (1 - lmbda[s]) * v[s + 1]
        advantage[s] = min(rho[s], pg_rho_thresh) * (r[s] + gamma[s] * (0.0 if terminated[s] else ahead) - v[s])
    return advantage, target


def over(function: Callable[..., tuple[Any, ...]], arrays: tuple[Any, ...], axis: int, *others: Any) -> list[Any]:
    """Return the results of a function of [T] for all trajectories of arrays with time along `axis`."""
    moved = [np.moveaxis(np.asarray(array), axis, -1) for array in arrays]
    rows = [array.reshape(-1, array.shape[-1]) for array in moved]
    found = [function(*row, *others) for row in zip(*rows, strict=True)]
    return [np.moveaxis(np.reshape(one, moved[0].shape), -1, axis) for one in zip(*found, strict=True)]


class Drawn:
    """Arrays of a call in float64, of a shape with time along `axis`. Where an episode ends, half are truncated."""

    def __init__(self, shape: tuple[int, ...], axis: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.axis = axis % len(shape)
        self.reward, self.value, self.next_value = random.standard_normal((3, *shape))
        self.log_rho = 0.5 * random.standard_normal(shape)
        self.done = random.random(shape) < 0.2
        self.terminated = self.done & (random.random(shape) < 0.5)
        self.gamma, self.lmbda = random.uniform(0.8, 1, (2, *shape))

    @property
    def last(self) -> Any:
        return np.take(self.next_value, -1, self.axis)

    @property
    def following(self) -> Any:
        """The value of the state after each step, as far as `value` has it."""
        first = (slice(None),) * self.axis + (slice(1, None),)
        return np.concatenate([self.value[first], np.expand_dims(self.last, self.axis)], self.axis)
