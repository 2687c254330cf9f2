"""The T-maze of recurrent_ppo.py in JAX: a cue at the entrance says which way to turn at the end of a corridor.

Rollout and update are one program. Its layer runs over all steps of an update with `resets`, and advantages are a scan as well.
With `--step-by-step` updates call the layer once per step, in `lax.scan`, and reach the same score.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import training  # noqa: F401

# isort: split
import jax
import jax.numpy as jnp
from training.jax_model import linear
from training.jax_training import Moments, adamw, no_moments

import minrnn_gen.jax

# What an agent sees: a cue, left or right, in the first step, then the corridor, and at last the junction.
CORRIDOR, JUNCTION, SYMBOLS = 2, 3, 4
CLIP, GAMMA, LMBDA, ENTROPY = 0.2, 0.95, 0.95, 0.01
# The score is the share of right turns in this part of the updates, the last ones.
SCORED = 0.2

OverTime = Callable[..., tuple[Any, dict[str, Any]]]


@dataclass(frozen=True)
class Settings:
    """Settings of a run; a maze has from 3 to `longest` steps."""

    updates: int = 30
    rows: int = 64
    steps: int = 16
    longest: int = 5
    width: int = 32
    epochs: int = 4
    learning_rate: float = 1e-2
    seed: int = 0


class Mazes(NamedTuple):
    """Mazes, each followed by the next one: the cue, the steps until the junction, and whether a maze begins."""

    cue: Any
    left: Any
    start: Any

    @property
    def seen(self) -> Any:
        """Observations of the agents."""
        return jnp.where(self.start, self.cue, jnp.where(self.left == 0, JUNCTION, CORRIDOR))


def entered(mazes: Mazes, longest: int, key: Any) -> Mazes:
    """Return the mazes with a new one where one begins."""
    of_cue, of_length = jax.random.split(key)
    cue = jax.random.randint(of_cue, mazes.cue.shape, 0, 2)
    left = jax.random.randint(of_length, mazes.left.shape, 2, longest)
    return Mazes(jnp.where(mazes.start, cue, mazes.cue), jnp.where(mazes.start, left, mazes.left), mazes.start)


def turned(mazes: Mazes, action: Any, longest: int, key: Any) -> tuple[Mazes, Any, Any]:
    """Return the mazes a step later, the reward, 1 for the right turn at the junction, and where a maze ended."""
    end = mazes.left == 0
    return entered(Mazes(mazes.cue, mazes.left - 1, end), longest, key), (end & (action == mazes.cue)) * 1.0, end


def first_mazes(settings: Settings, key: Any) -> Mazes:
    """Return mazes that begin."""
    nothing = jnp.zeros(settings.rows, jnp.int32)
    return entered(Mazes(nothing, nothing, jnp.ones(settings.rows, bool)), settings.longest, key)


def with_resets(layer: Any, params: Any, x: Any, state: Any, starts: Any) -> tuple[Any, dict[str, Any]]:
    """Return (y, state) of one call over all steps."""
    return layer.apply(params, x, state, resets=starts)  # type: ignore[no-any-return]


def step_by_step(layer: Any, params: Any, x: Any, state: Any, starts: Any) -> tuple[Any, dict[str, Any]]:
    """Return the same by a call per step, with states set to 0 before it."""

    def step(state: Any, now: Any) -> tuple[Any, Any]:
        x_t, start = now
        y_t, state = layer.step(params, x_t, {name: jnp.where(start[:, None], 0, one) for name, one in state.items()})
        return state, y_t

    state, y = jax.lax.scan(step, state, (x.swapaxes(0, 1), starts.T))
    return y.swapaxes(0, 1), state


@dataclass(frozen=True)
class Agent:
    """A policy and a value on an LSTM, which `over_time` runs."""

    width: int
    over_time: OverTime = with_resets

    @property
    def layer(self) -> minrnn_gen.jax.RNN:
        """The LSTM."""
        return minrnn_gen.jax.RNN("lstm", self.width, self.width)

    def init(self, key: Any) -> dict[str, Any]:
        """Return parameters."""
        of_symbols, of_layer, of_readout = jax.random.split(key, 3)
        symbols, readout = linear(of_symbols, SYMBOLS, self.width), linear(of_readout, self.width, 3)
        return {"symbols": symbols * SYMBOLS**0.5, "layer": self.layer.init(of_layer), "readout": readout}

    def no_memory(self, rows: int) -> dict[str, Any]:
        """Return the states before anything was seen."""
        return {name: jnp.zeros((1, rows, self.width)) for name in self.layer.states}

    def apply(self, params: Any, seen: Any, state: Any, starts: Any) -> tuple[Any, Any, Any]:
        """Return the logarithms of the policy and the value at each step, and the last state."""
        y, state = self.over_time(self.layer, params["layer"], params["symbols"][seen], state, starts)
        readout = y @ params["readout"]
        return jax.nn.log_softmax(readout[..., :2]), readout[..., 2], state


class Steps(NamedTuple):
    """A rollout, each with the axes of rows and time."""

    seen: Any
    start: Any
    action: Any
    log_policy: Any
    value: Any
    reward: Any
    end: Any


class World(NamedTuple):
    """The mazes, the agents' memory in them, and the key of what happens next."""

    mazes: Mazes
    state: Any
    key: Any


def rollout(settings: Settings, agent: Agent, params: Any, world: World) -> tuple[World, Steps]:
    """Return the world after `steps` steps, and these."""

    def step(now: World, _: None) -> tuple[World, Steps]:
        key, of_action, of_mazes = jax.random.split(now.key, 3)
        seen, start = now.mazes.seen, now.mazes.start
        log_policy, value, state = agent.apply(params, seen[:, None], now.state, start[:, None])
        action = jax.random.categorical(of_action, log_policy[:, 0])
        mazes, reward, end = turned(now.mazes, action, settings.longest, of_mazes)
        chosen = jnp.take_along_axis(log_policy[:, 0], action[:, None], -1)[:, 0]
        return World(mazes, state, key), Steps(seen, start, action, chosen, value[:, 0], reward, end)

    after, steps = jax.lax.scan(step, world, length=settings.steps)
    return after, jax.tree.map(jnp.transpose, steps)


def loss_of(agent: Agent, params: Any, steps: Steps, state: Any, advantage: Any, target: Any) -> Any:
    """Return the loss of PPO on a rollout that began with these states."""
    log_policy, value, _ = agent.apply(params, steps.seen, state, steps.start)
    ratio = jnp.exp(jnp.take_along_axis(log_policy, steps.action[..., None], -1)[..., 0] - steps.log_policy)
    gain = jnp.minimum(ratio * advantage, ratio.clip(1 - CLIP, 1 + CLIP) * advantage).mean()
    entropy = -(jnp.exp(log_policy) * log_policy).sum(-1).mean()
    return 0.5 * ((value - target) ** 2).mean() - gain - ENTROPY * entropy


@partial(jax.jit, static_argnums=(0, 1))
def update(
    settings: Settings, agent: Agent, params: Any, moments: Moments, world: World
) -> tuple[tuple[Any, Moments, World], tuple[Any, Any]]:
    """Return parameters, moments and world after a rollout and the epochs on it; and how many turns were right, of how many."""
    after, steps = rollout(settings, agent, params, world)
    _, last, _ = agent.apply(params, after.mazes.seen[:, None], after.state, after.mazes.start[:, None])
    advantage, target = minrnn_gen.jax.gae(steps.reward, steps.value, last[:, 0], steps.end, gamma=GAMMA, lmbda=LMBDA)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

    def epoch(_: int, trained: tuple[Any, Moments]) -> tuple[Any, Moments]:
        gradients = jax.grad(partial(loss_of, agent))(trained[0], steps, world.state, advantage, target)
        return adamw(trained[0], gradients, trained[1], settings.learning_rate)

    params, moments = jax.lax.fori_loop(0, settings.epochs, epoch, (params, moments))
    return (params, moments, after), (steps.reward.sum(), steps.end.sum())


def run(settings: Settings, over_time: OverTime) -> float:
    """Train an agent and return its score."""
    agent = Agent(settings.width, over_time)
    of_params, of_mazes, of_world = jax.random.split(jax.random.key(settings.seed), 3)
    params = agent.init(of_params)
    world = World(first_mazes(settings, of_mazes), agent.no_memory(settings.rows), of_world)
    trained, turns = (params, no_moments(params), world), []
    for _ in range(settings.updates):
        trained, of_update = update(settings, agent, *trained)
        turns.append(of_update)
    right, all_turns = (sum(map(float, column)) for column in zip(*turns[-max(1, int(SCORED * len(turns))) :], strict=True))
    return right / all_turns


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as the command line says, and print the score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--step-by-step", action="store_true", help="call the layer once per step in updates too")
    for name in ("updates", "rows", "steps", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Settings, name))
    asked = vars(parser.parse_args(arguments))
    over_time = step_by_step if asked.pop("step_by_step") else with_resets
    print(f"right turns: {run(Settings(**asked), over_time):.3f}")


if __name__ == "__main__":
    main()
