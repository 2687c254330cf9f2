"""A T-maze by recurrent PPO: a cue at the entrance says which way to turn at the end of a corridor.

Rows of a rollout hold several mazes, so the update runs the layer with `resets`, one kernel forward and one backward.
With `--step-by-step` it calls the layer once per step instead, which is what most libraries do, and reaches the same score.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import training  # noqa: F401

# isort: split
import torch

import minrnn_gen.torch

# What an agent sees: a cue, left or right, in the first step, then the corridor, and at last the junction.
CORRIDOR, JUNCTION, SYMBOLS = 2, 3, 4
CLIP, GAMMA, LMBDA, ENTROPY = 0.2, 0.95, 0.95, 0.01
# The score is the share of right turns in this part of the updates, the last ones.
SCORED = 0.2


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


class Mazes:
    """`rows` mazes, each followed by the next one."""

    def __init__(self, rows: int, longest: int, device: torch.device) -> None:
        self.longest, self.device = longest, device
        self.cue = self.left = torch.zeros(rows, dtype=torch.int64, device=device)
        self.start = torch.ones(rows, dtype=torch.bool, device=device)
        self._enter()

    def _enter(self) -> None:
        rows = len(self.cue)
        self.cue = torch.where(self.start, torch.randint(2, (rows,), device=self.device), self.cue)
        self.left = torch.where(self.start, torch.randint(2, self.longest, (rows,), device=self.device), self.left)
        seen = torch.where(self.left == 0, JUNCTION, CORRIDOR)
        self.seen = torch.where(self.start, self.cue, seen)

    def turn(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Go on by a step and return (reward, whether the maze ended): 1 for the right turn at the junction, else 0."""
        end = self.left == 0
        reward = (end & (action == self.cue)).float()
        self.left, self.start = self.left - 1, end
        self._enter()
        return reward, end


def with_resets(layer: Any, x: torch.Tensor, state: Any, starts: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Return (y, state) of one call over all steps."""
    return layer(x, state, resets=starts)  # type: ignore[no-any-return]


def step_by_step(layer: Any, x: torch.Tensor, state: Any, starts: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Return the same by a call per step, with states set to 0 before it."""
    outputs = []
    for x_t, start in zip(x.split(1, 1), starts.unbind(1), strict=True):
        y_t, state = layer(x_t, tuple(part * ~start[:, None] for part in state))
        outputs.append(y_t)
    return torch.cat(outputs, 1), state


class Agent(torch.nn.Module):
    """A policy and a value on an LSTM, which `over_time` runs."""

    def __init__(self, width: int, over_time: Callable[..., tuple[torch.Tensor, Any]]) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(SYMBOLS, width)
        self.layer = minrnn_gen.torch.LSTM(width, width)
        self.policy, self.value = torch.nn.Linear(width, 2), torch.nn.Linear(width, 1)
        self.over_time = over_time

    def forward(self, seen: torch.Tensor, state: Any, starts: torch.Tensor) -> tuple[Any, torch.Tensor, Any]:
        """Return the policy's distribution and the value at each step, and the last state."""
        y, state = self.over_time(self.layer, self.embed(seen), state, starts)
        return torch.distributions.Categorical(logits=self.policy(y)), self.value(y).squeeze(-1), state


def run(settings: Settings, over_time: Callable[..., tuple[torch.Tensor, Any]], device: torch.device) -> float:
    """Train an agent and return its score."""
    torch.manual_seed(settings.seed)
    agent = Agent(settings.width, over_time).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), settings.learning_rate)
    mazes = Mazes(settings.rows, settings.longest, device)
    state: Any = tuple(torch.zeros(1, settings.rows, settings.width, device=device) for _ in range(2))
    turns: list[tuple[float, float]] = []
    for _ in range(settings.updates):
        first, steps = state, []
        with torch.no_grad():
            for _ in range(settings.steps):
                seen, start = mazes.seen[:, None], mazes.start[:, None]
                policy, value, state = agent(seen, state, start)
                action = policy.sample()
                reward, end = mazes.turn(action[:, 0])
                steps.append((seen, start, action, policy.log_prob(action), value, reward[:, None], end[:, None]))
            _, last, _ = agent(mazes.seen[:, None], state, mazes.start[:, None])
        seen, start, action, log_prob, value, reward, end = (torch.cat(parts, 1) for parts in zip(*steps, strict=True))
        advantage, target = minrnn_gen.torch.gae(reward, value, last[:, 0], end, gamma=GAMMA, lmbda=LMBDA)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(settings.epochs):
            policy, value, _ = agent(seen, first, start)
            ratio = (policy.log_prob(action) - log_prob).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
            loss = 0.5 * (value - target).square().mean() - gain - ENTROPY * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
        turns.append((float(reward.sum()), float(end.sum())))
    right, all_turns = (sum(column) for column in zip(*turns[-max(1, int(SCORED * len(turns))) :], strict=True))
    return right / all_turns


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as the command line says, and print the score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--step-by-step", action="store_true", help="call the layer once per step in updates too")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name in ("updates", "rows", "steps", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Settings, name))
    asked = vars(parser.parse_args(arguments))
    over_time, device = step_by_step if asked.pop("step_by_step") else with_resets, torch.device(asked.pop("device"))
    print(f"right turns: {run(Settings(**asked), over_time, device):.3f}")


if __name__ == "__main__":
    main()
