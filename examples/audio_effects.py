"""Audio effects: a compressor and a phaser learn the settings of other ones from what these make of noise.

Each is a cell of one channel, compressor.yaml and phaser.yaml. The gradient goes through every step of the recurrence: nothing
is truncated, and no filter is approximated by a convolution.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import training  # noqa: F401

# isort: split
import torch
from training.command import Command, run_command
from training.course import progress_bar, run_spans

import minrnn_gen.torch


@dataclass(frozen=True)
class Settings:
    """Settings of a run: `batch` signals of so many `samples`."""

    samples: int = 16384
    batch: int = 16
    steps: int = 400
    learning_rate: float = 3e-2
    seed: int = 0


SMALL = Settings(samples=1024, batch=8, steps=150, learning_rate=5e-2)
# The settings that made the targets, and those from which training starts.
COMPRESSOR = {"threshold": -1.5, "amount": 1.5, "attack": 2.0, "release": 4.0}
COMPRESSOR_START = {"threshold": -0.5, "amount": 0.0, "attack": 1.0, "release": 3.0}
# The angle of the poles swings around `middle`, by at most `depth`, and back in SWING samples.
PHASER = {"radius": 3.0, "middle": 0.8, "depth": 0.3}
PHASER_START = {"radius": 2.0, "middle": 0.7, "depth": 0.1}
SWING = 512
Effect = Callable[[torch.Tensor, Mapping[str, torch.Tensor]], torch.Tensor]


def effects() -> dict[str, Effect]:
    """Return both effects, functions of signals [B, T] and settings."""
    folder = Path(__file__).parent
    kernels = {
        name: minrnn_gen.compile({"model": str(folder / f"{name}.yaml"), "hidden_size": 1, "precision": "fp32"})
        for name in ("compressor", "phaser")
    }

    def compressor(x: torch.Tensor, settings: Mapping[str, torch.Tensor]) -> torch.Tensor:
        y, _ = minrnn_gen.torch.recurrence(kernels["compressor"], x[..., None, None], parameters=dict(settings))
        return y[..., 0]

    def phaser(x: torch.Tensor, settings: Mapping[str, torch.Tensor]) -> torch.Tensor:
        swing = torch.sin(2 * torch.pi / SWING * torch.arange(x.shape[1], device=x.device))
        angle = settings["middle"] + settings["depth"] * swing
        gates = torch.stack((x, angle.expand_as(x)), -1)[..., None]
        y, _ = minrnn_gen.torch.recurrence(kernels["phaser"], gates, parameters={"radius": settings["radius"]})
        return y[..., 0]

    return {"compressor": compressor, "phaser": phaser}


def learned(
    effect: Effect, target: Mapping[str, float], start: Mapping[str, float], settings: Settings, device: torch.device
) -> tuple[dict[str, float], float, float]:
    """Return the settings that an effect learns from signals before and after, and its first and last relative error."""
    generator = torch.Generator().manual_seed(settings.seed)
    wanted = {name: torch.full((1,), value, device=device) for name, value in target.items()}
    own = {name: torch.full((1,), value, device=device, requires_grad=True) for name, value in start.items()}
    optimizer = torch.optim.Adam(own.values(), lr=settings.learning_rate)
    errors = []

    def step() -> torch.Tensor:
        loudness = torch.rand(settings.batch, settings.samples // 128, generator=generator).repeat_interleave(128, 1)
        x = (loudness * torch.randn(loudness.shape, generator=generator)).to(device)
        with torch.no_grad():
            made = effect(x, wanted)
        loss = ((effect(x, own) - made) ** 2).mean() / (made**2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors.append(loss.detach())
        return errors[-1]

    with progress_bar() as progress:
        run_spans(step, settings.steps, progress, "training")
    return {name: float(value.detach()) for name, value in own.items()}, float(errors[0]), float(errors[-1])


def example(command: Command[Settings]) -> None:
    """Train both effects, and print the settings that they learned."""
    settings, device = command.settings, torch.device(command.device)
    print(f"Made by `{command.text}`.")
    tasks = {"compressor": (COMPRESSOR, COMPRESSOR_START), "phaser": (PHASER, PHASER_START)}
    for name, effect in effects().items():
        target, start = tasks[name]
        own, first, last = learned(effect, target, start, settings, device)
        found = ", ".join(f"{key} {value:.2f} of {target[key]:.2f}" for key, value in own.items())
        print(f"{name}: error {first:.3f}, then {last:.6f}; {found}")


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command("audio_effects", __doc__.splitlines()[0], Settings(), SMALL, example, arguments)


if __name__ == "__main__":
    sys.exit(main())
