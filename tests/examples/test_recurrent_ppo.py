"""The agent in the T-maze: with resets it learns what it learns step by step."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import recurrent_ppo  # noqa: E402, the folder is the conftest's
from recurrent_ppo import Settings  # noqa: E402

CPU = torch.device("cpu")
# Of some 500 turns; a policy that knows the cue takes the wrong one in a few of a hundred, as it samples its actions.
LEARNED, NOISE = 0.95, 0.05


@pytest.mark.matrix_full
@pytest.mark.parametrize("seed", range(5))
def test_the_score_with_resets_is_that_of_a_loop(seed: int) -> None:
    scores = [
        recurrent_ppo.run(Settings(seed=seed), way, CPU) for way in (recurrent_ppo.with_resets, recurrent_ppo.step_by_step)
    ]
    assert min(scores) >= LEARNED and abs(scores[0] - scores[1]) <= NOISE


def test_both_ways_are_one_function() -> None:
    torch.manual_seed(0)
    agents = [recurrent_ppo.Agent(8, way).double() for way in (recurrent_ppo.with_resets, recurrent_ppo.step_by_step)]
    agents[1].load_state_dict(agents[0].state_dict())
    seen, starts = torch.randint(4, (3, 9)), torch.rand(3, 9) < 0.3
    state = tuple(torch.randn(1, 3, 8, dtype=torch.float64) for _ in range(2))
    results: list[Any] = []
    for agent in agents:
        policy, value, last = agent(seen, state, starts)
        loss = policy.logits.sin().sum() + value.square().sum() + last[1].sum()
        results.append([policy.logits, value, *last, *torch.autograd.grad(loss, [*agent.parameters()])])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


def test_a_maze_pays_the_right_turn_at_its_end() -> None:
    torch.manual_seed(0)
    mazes = recurrent_ppo.Mazes(64, 5, CPU)
    cues = torch.where(mazes.start, mazes.seen, -1)
    assert set(cues.tolist()) == {0, 1}
    ends, length = 0, torch.zeros(64, dtype=torch.int64)
    for _ in range(20):
        is_junction, length = mazes.seen == recurrent_ppo.JUNCTION, length + 1
        reward, end = mazes.turn(cues)
        assert torch.equal(end, is_junction) and torch.equal(reward.bool(), end) and torch.equal(mazes.start, end)
        assert set(length[end].tolist()) <= {3, 4, 5}
        cues, length = torch.where(end, mazes.seen, cues), torch.where(end, 0, length)
        ends += int(end.sum())
    assert ends > 64


def test_one_command_prints_a_score(capsys: pytest.CaptureFixture[str]) -> None:
    recurrent_ppo.main(["--updates", "1", "--rows", "4", "--step-by-step", "--device", "cpu"])
    assert capsys.readouterr().out.startswith("right turns: ")
