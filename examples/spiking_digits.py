"""Spiking digits: a network of two recurrent layers of spiking neurons learns to tell words by their spikes.

The data have the shape of the Spiking Heidelberg Digits (arXiv 1910.07407): 700 channels of a cochlea over time, in which each
of 20 words raises rates along a few tracks. They are made here: each speaker says a word sooner or later, faster or slower, and
higher or lower, and spikes are drawn by the rates. Neurons emit 0 or 1, whose gradient is a surrogate (docs/how-to/spiking.md).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import training  # noqa: F401

# isort: split
import torch
from training.command import Command, run_command
from training.course import progress_bar, run_spans

import minrnn_gen.torch


@dataclass(frozen=True)
class Settings:
    """Settings of a run: words of `time` steps on so many `channels`, told apart by layers of `width` neurons."""

    channels: int = 700
    words: int = 20
    time: int = 100
    width: int = 256
    batch: int = 128
    steps: int = 600
    learning_rate: float = 2e-3
    tests: int = 1024
    seed: int = 0


SMALL = Settings(channels=70, words=5, time=30, width=32, batch=32, steps=80, learning_rate=1e-2, tests=200)
# Tracks of a word, and spikes of a channel in a step: at the middle of a track, and anywhere.
TRACKS, PEAK, NOISE = 3, 0.5, 0.005


class Words:
    """The words: for each, tracks that rise or fall from a channel to another."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        drawn = torch.rand(settings.words, TRACKS, 2, generator=torch.Generator().manual_seed(settings.seed))
        self.settings, self.device, self.ends = settings, device, drawn

    def said(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Return spikes [B, T, channels], 0 or 1, of words drawn at random, and which word each is [B]."""
        settings = self.settings
        word = torch.randint(settings.words, (count,), generator=generator)
        start, pace, pitch = (torch.rand(count, 1, 1, generator=generator) for _ in range(3))
        moment = (torch.linspace(0, 1, settings.time)[None, :, None] - 0.2 * start) * (0.8 + 0.4 * pace)
        tracks = self.ends[word].unsqueeze(1)
        center = tracks[..., 0] + (tracks[..., 1] - tracks[..., 0]) * moment + 0.1 * (pitch - 0.5)
        channel = torch.linspace(0, 1, settings.channels)
        near = torch.exp(-((channel[:, None] - center[:, :, None]) ** 2) / (2 * 0.02**2)).sum(-1)
        rates = NOISE + PEAK * near * ((moment >= 0) & (moment <= 1))
        spikes = torch.rand(rates.shape, generator=generator) < rates
        return spikes.float().to(self.device), word.to(self.device)


class Network(torch.nn.Module):
    """Two recurrent layers of spiking neurons; a word's score is a weighed sum of the second layer's spikes."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.first = minrnn_gen.torch.RecurrentLIF(settings.channels, settings.width)
        self.second = minrnn_gen.torch.RecurrentLIF(settings.width, settings.width)
        self.score = torch.nn.Linear(settings.width, settings.words)
        # Spikes are sparse: enough of them arrive for neurons to fire from the start.
        for layer in (self.first, self.second):
            torch.nn.init.normal_(layer.weight_ih_l0, std=3 / math.sqrt(settings.width))

    def forward(self, spikes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores [B, words], and the spikes of the second layer [B, T, width]."""
        first, _ = self.first(spikes)
        second, _ = self.second(first)
        return self.score(second.mean(1)), second


def accuracy(network: Network, words: Words, settings: Settings) -> tuple[float, float]:
    """Return the accuracy on words not trained on, and how many spikes a neuron of the second layer emits in a step."""
    generator = torch.Generator().manual_seed(settings.seed + 2)
    right, fired, done = 0, 0.0, 0
    with torch.no_grad():
        while done < settings.tests:
            spikes, word = words.said(min(settings.batch, settings.tests - done), generator)
            scores, emitted = network(spikes)
            right += int((scores.argmax(1) == word).sum())
            fired += float(emitted.sum()) / emitted[0].numel()
            done += len(word)
    return right / settings.tests, fired / settings.tests


def example(command: Command[Settings]) -> None:
    """Train the network and print how many words it tells."""
    settings, device = command.settings, torch.device(command.device)
    torch.manual_seed(settings.seed)
    words, network = Words(settings, device), Network(settings).to(device)
    before, _ = accuracy(network, words, settings)
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    generator = torch.Generator().manual_seed(settings.seed + 1)

    def step() -> torch.Tensor:
        spikes, word = words.said(settings.batch, generator)
        loss = torch.nn.functional.cross_entropy(network(spikes)[0], word)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    with progress_bar() as progress:
        run_spans(step, settings.steps, progress, "training")
    after, rate = accuracy(network, words, settings)
    print(f"Made by `{command.text}`.")
    chance = 1 / settings.words
    print(f"words told: {after:.3f}; untrained {before:.3f}, chance {chance:.3f}; spikes per neuron and step {rate:.3f}")


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command("spiking_digits", __doc__.splitlines()[0], Settings(), SMALL, example, arguments)


if __name__ == "__main__":
    sys.exit(main())
