"""The agent in the T-maze in JAX: with resets it learns what it learns step by step."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")

import jax_recurrent_ppo as example  # noqa: E402, the folder is the conftest's

BOTH_WAYS = (example.with_resets, example.step_by_step)
# Of some 500 turns; a policy that knows the cue takes the wrong one in a few of a hundred, as it samples its actions.
LEARNED, NOISE = 0.95, 0.05


@pytest.mark.matrix_full
@pytest.mark.parametrize("seed", range(5))
def test_the_score_with_resets_is_that_of_a_loop(seed: int) -> None:
    scores = [example.run(example.Settings(seed=seed), way) for way in BOTH_WAYS]
    assert min(scores) >= LEARNED and abs(scores[0] - scores[1]) <= NOISE


# A program takes some seconds to compile.
@pytest.mark.matrix_full
def test_both_ways_are_one_function() -> None:
    settings = example.Settings(rows=3, steps=9, width=8)
    results: list[Any] = []
    for way in BOTH_WAYS:
        agent = example.Agent(settings.width, way)
        params = agent.init(jax.random.key(0))
        mazes = example.first_mazes(settings, jax.random.key(1))
        world = example.World(mazes, agent.no_memory(settings.rows), jax.random.key(2))
        if not results:
            _, steps = jax.jit(partial(example.rollout, settings, agent))(params, world)
        loss = partial(example.loss_of, agent, steps=steps, state=world.state, advantage=steps.reward, target=steps.value)
        results.append(jax.jit(jax.value_and_grad(loss))(params))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6), *results)


def test_a_maze_pays_the_right_turn_at_its_end() -> None:
    settings = example.Settings(rows=64)
    mazes, turned = example.first_mazes(settings, jax.random.key(0)), jax.jit(example.turned, static_argnums=2)
    cues = np.asarray(mazes.seen)
    assert {*cues} == {0, 1}
    ends, length = 0, np.zeros(64, int)
    for step in range(20):
        is_junction, length = np.asarray(mazes.seen == example.JUNCTION), length + 1
        mazes, reward, end = turned(mazes, cues, settings.longest, jax.random.key(step))
        end = np.asarray(end)
        assert (end == is_junction).all() and (reward == end).all() and (np.asarray(mazes.start) == end).all()
        assert {*length[end]} <= {3, 4, 5}
        cues, length = np.where(end, mazes.seen, cues), np.where(end, 0, length)
        ends += int(end.sum())
    assert ends > 64


@pytest.mark.matrix_full
def test_one_command_prints_a_score(capsys: pytest.CaptureFixture[str]) -> None:
    example.main(["--updates", "1", "--rows", "4", "--steps", "6"])
    assert capsys.readouterr().out.startswith("right turns: ")
