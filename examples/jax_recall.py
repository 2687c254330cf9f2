"""Recall, reinforced: many environments that show a cue, wait, and ask for it, and an agent that is reset with each episode.

Environments and agent are stepped together in one `lax.scan`, under `vmap`; learning runs over the whole rollout at once, with
the steps where episodes begin as `resets`. Who remembers nothing is right once in as many times as there are cues.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import training  # noqa: F401

# isort: split
import jax
import jax.numpy as jnp
from training.command import Command, run_command
from training.course import progress_bar, run_spans
from training.jax_model import linear
from training.jax_training import Moments, adamw, learning_rate_at, no_moments
from training.library import JAX
from training.record import Line, finish, new_record, save

import minrnn_gen.jax

# How much a step later counts, and what the loss has in addition to the policy's gradient.
DISCOUNT = 0.9
OF_VALUE, OF_ENTROPY = 0.5, 0.01


@dataclass(frozen=True)
class Settings:
    """Settings of a run: an episode waits for up to `delay` steps; an update learns from `time` steps of all `environments`."""

    cells: tuple[str, ...] = ("gru", "lstm", "min_gru")
    environments: int = 2048
    time: int = 64
    cues: int = 4
    delay: int = 16
    width: int = 128
    steps: int = 1000
    learning_rate: float = 3e-3
    tests: int = 8
    seed: int = 0


SMALL = Settings(environments=256, time=24, delay=5, width=32, steps=200, learning_rate=1e-2, tests=4)


class Episode(NamedTuple):
    """An environment: the cue of its episode, the steps until it asks, and whether the episode begins."""

    cue: Any
    left: Any
    begins: Any


class Steps(NamedTuple):
    """Observations, actions and rewards, each with the axes of environments and time."""

    observation: Any
    begins: Any
    action: Any
    reward: Any
    asks: Any


def begun(settings: Settings, key: Any) -> Episode:
    """Return a new episode."""
    of_cue, of_delay = jax.random.split(key)
    left = jax.random.randint(of_delay, (), 1, settings.delay + 1)
    return Episode(jax.random.randint(of_cue, (), 0, settings.cues), left, jnp.array(True))


def observed(settings: Settings, episode: Episode) -> Any:
    """Return what an agent sees: the cue at the beginning, and whether it is asked."""
    cue = jax.nn.one_hot(episode.cue, settings.cues) * episode.begins
    return jnp.append(cue, (episode.left == 0).astype(jnp.float32))


def stepped(settings: Settings, episode: Episode, action: Any, key: Any) -> tuple[Episode, Any]:
    """Return the environment after an action, and the reward; an episode that asked is followed by another one."""
    asks = episode.left == 0
    reward = jnp.where(asks & (action == episode.cue), 1.0, 0.0)
    going_on = Episode(episode.cue, episode.left - 1, jnp.array(False))
    return jax.tree.map(partial(jnp.where, asks), begun(settings, key), going_on), reward


@dataclass(frozen=True)
class Agent:
    """A recurrence with the logits of actions and a value of its state as readouts."""

    cell: str
    settings: Settings

    @property
    def layer(self) -> minrnn_gen.jax.RNN:
        """The recurrence."""
        return minrnn_gen.jax.RNN(self.cell, self.settings.cues + 1, self.settings.width)

    def init(self, key: Any) -> dict[str, Any]:
        """Return parameters."""
        of_layer, of_readout = jax.random.split(key)
        readout = linear(of_readout, self.settings.width, self.settings.cues + 1)
        return {"recurrence": self.layer.init(of_layer), "readout": readout}

    def no_memory(self, environments: int) -> dict[str, Any]:
        """Return the states before anything was seen."""
        return {name: jnp.zeros((environments, 1, self.settings.width)) for name in self.layer.states}

    def step(self, params: Any, observation: Any, begins: Any, state: Any, key: Any) -> tuple[Any, Any]:
        """Return the action of one environment, and the state after it."""
        state = jax.tree.map(lambda array: jnp.where(begins, 0.0, array)[None], state)
        y, state = self.layer.step(params["recurrence"], observation[None], state)
        action = jax.random.categorical(key, (y[0] @ params["readout"])[:-1])
        return action, jax.tree.map(lambda array: array[0], state)

    def loss(self, params: Any, steps: Steps, state: Any) -> Any:
        """Return the loss of a rollout that began with these states: a policy gradient with a baseline."""
        initial = jax.tree.map(lambda array: jnp.moveaxis(array, 1, 0), state)
        y, _ = self.layer.apply(params["recurrence"], steps.observation, initial, resets=steps.begins)
        readout = y @ params["readout"]
        log_policy, value = jax.nn.log_softmax(readout[..., :-1]), readout[..., -1]
        # What an episode still earns is a scan too, backwards, that no reward crosses an end of.
        earned, _ = minrnn_gen.jax.scan(jnp.where(steps.asks, 0.0, DISCOUNT), steps.reward, reverse=True)
        advantage = jax.lax.stop_gradient(earned - value)
        chosen = jnp.take_along_axis(log_policy, steps.action[..., None], axis=-1)[..., 0]
        entropy = -(jnp.exp(log_policy) * log_policy).sum(-1)
        return (OF_VALUE * (earned - value) ** 2 - advantage * chosen - OF_ENTROPY * entropy).mean()


class World(NamedTuple):
    """All environments, the agent's states in them, and the key of what happens next."""

    episodes: Episode
    states: Any
    key: Any


def world(agent: Agent, key: Any) -> World:
    """Return environments that have just begun."""
    keys = jax.random.split(key, agent.settings.environments + 1)
    episodes = jax.vmap(partial(begun, agent.settings))(keys[1:])
    return World(episodes, agent.no_memory(agent.settings.environments), keys[0])


def rollout(agent: Agent, params: Any, start: World, forgets: bool = False) -> tuple[World, Steps]:
    """Return the world after `time` steps, and these steps; an agent that `forgets` is reset at every step."""
    settings = agent.settings

    def step(now: World, _: None) -> tuple[World, Steps]:
        key, *own = jax.random.split(now.key, 3)
        of_agent, of_world = (jax.random.split(one, settings.environments) for one in own)
        observation = jax.vmap(partial(observed, settings))(now.episodes)
        resets = now.episodes.begins | forgets
        action, states = jax.vmap(partial(agent.step, params))(observation, resets, now.states, of_agent)
        episodes, reward = jax.vmap(partial(stepped, settings))(now.episodes, action, of_world)
        seen = Steps(observation, now.episodes.begins, action, reward, now.episodes.left == 0)
        return World(episodes, states, key), seen

    after, steps = jax.lax.scan(step, start, length=settings.time)
    return after, jax.tree.map(lambda array: jnp.moveaxis(array, 0, 1), steps)


@partial(jax.jit, static_argnums=(0, 4))
def share_right(agent: Agent, params: Any, start: World, seed: Any, forgets: bool) -> Any:
    """Return the share of right answers in a rollout."""
    _, steps = rollout(agent, params, start._replace(key=jax.random.key(seed)), forgets)
    return steps.reward.sum() / jnp.maximum(steps.asks.sum(), 1)


@partial(jax.jit, static_argnums=0)
def update(agent: Agent, params: Any, moments: Moments, start: World) -> tuple[Any, Moments, World, Any]:
    """Return parameters, moments and world after one rollout and one step on it, and the share of right answers."""
    after, steps = rollout(agent, params, start)
    gradients = jax.grad(agent.loss)(params, steps, start.states)
    rate = learning_rate_at(moments.steps, agent.settings.steps, agent.settings.learning_rate)
    params, moments = adamw(params, gradients, moments, rate)
    return params, moments, after, steps.reward.sum() / jnp.maximum(steps.asks.sum(), 1)


def example(command: Command[Settings]) -> None:
    """Train an agent for every cell, and record its share of right answers."""
    settings = command.settings
    record = new_record(command, "updates", "share of right answers")
    with progress_bar() as progress, jax.default_device(jax.devices(command.device)[0]):
        for cell in settings.cells:
            agent = Agent(cell, settings)
            of_params, of_world = jax.random.split(jax.random.key(settings.seed))
            params, now = agent.init(of_params), world(agent, of_world)
            moments, before = no_moments(params), float(share_right(agent, params, now, settings.seed, False))

            def step(agent: Agent = agent) -> Any:
                nonlocal params, moments, now
                params, moments, now, share = update(agent, params, moments, now)
                return share

            course = run_spans(step, settings.steps, progress, cell)
            seeds = range(settings.seed + 1, settings.seed + 1 + settings.tests)
            shares = [
                sum(float(share_right(agent, params, now, seed, forgets)) for seed in seeds) / settings.tests
                for forgets in (False, True)
            ]
            row = {
                "cell": cell,
                "before": before,
                "after": shares[0],
                "reset at every step": shares[1],
                "steps/s": round(settings.environments * settings.time / course.step_ms * 1e3),
            }
            record = record.with_row(
                row, {"cell": cell, "update ms": course.step_ms}, [Line(name=cell, x=course.steps, y=course.losses)]
            )
            save(record, command)
    finish(record, command)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command("jax_recall", __doc__.splitlines()[0], Settings(), SMALL, example, arguments, JAX)


if __name__ == "__main__":
    sys.exit(main())
