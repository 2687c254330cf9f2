"""Three models of torch.nn before and after `minrnn_gen.torch.replace`, trained on the GPU; from the checkout:

`python -m benchmarks.replaced_models`. Prints the median time of a training step by the host's clock, in turn, and the losses.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from typing import Any

import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import minrnn_gen.torch

STEPS, WARM = 50, 10


class SpeechEncoder(torch.nn.Module):
    """Four layers in both directions over packed sequences of frames."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.LSTM(80, 320, num_layers=4, batch_first=True, bidirectional=True)
        self.classes = torch.nn.Linear(640, 40)

    def loss(self) -> Any:
        frames, lengths = torch.randn(16, 400, 80, device="cuda"), torch.randint(200, 401, (16,))
        lengths[0] = 400
        packed = pack_padded_sequence(frames, lengths, batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.layers(packed)[0], batch_first=True)
        return torch.nn.functional.cross_entropy(self.classes(y).flatten(0, 1), (frames.sum(2) > 0).long().flatten())


class LanguageModel(torch.nn.Module):
    """Two layers between an embedding and a softmax of the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10_000, 640)
        self.layers = torch.nn.GRU(640, 640, num_layers=2)
        self.scores = torch.nn.Linear(640, 10_000)
        self.scores.weight = self.embedding.weight

    def loss(self) -> Any:
        tokens = (torch.randint(10_000, (1, 32), device="cuda") + torch.arange(65, device="cuda")[:, None]) % 10_000
        y, _ = self.layers(self.embedding(tokens[:-1]))
        return torch.nn.functional.cross_entropy(self.scores(y).flatten(0, 1), tokens[1:].flatten())


class Translator(torch.nn.Module):
    """An encoder, and a decoder that is called step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(1000, 256)
        self.encoder = torch.nn.GRU(256, 256, bidirectional=True)
        self.start = torch.nn.Linear(512, 512)
        self.decoder = torch.nn.LSTMCell(256, 512)
        self.scores = torch.nn.Linear(512, 1000)

    def loss(self) -> Any:
        source = torch.randint(1000, (30, 32), device="cuda")
        _, h = self.encoder(self.embedding(source))
        start = self.start(h.transpose(0, 1).flatten(1))
        state, steps = (start, torch.zeros_like(start)), []
        for token in self.embedding(source.flip(0)):
            state = self.decoder(token, state)
            steps.append(state[0])
        return torch.nn.functional.cross_entropy(self.scores(torch.stack(steps)).flatten(0, 1), source.flip(0).flatten())


def step_ms(model: Any, optimizer: Any, seed: int) -> tuple[float, float]:
    """Return the milliseconds of a training step on the inputs of a seed, and its loss."""
    torch.manual_seed(seed)
    torch.cuda.synchronize()
    began = time.perf_counter()
    optimizer.zero_grad()
    loss = model.loss()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began), float(loss)


def main() -> int:
    """Train each model and its copy in turn, and print what came of it."""
    for kind in (SpeechEncoder, LanguageModel, Translator):
        torch.manual_seed(0)
        before = kind().cuda()
        after = copy.deepcopy(before)
        replaced = minrnn_gen.torch.replace(after).replaced
        models = {"torch.nn": before, "replaced": after}
        optimizers = {name: torch.optim.Adam(model.parameters(), 1e-3) for name, model in models.items()}
        steps: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
        for seed in range(STEPS):
            for name, model in models.items():
                steps[name].append(step_ms(model, optimizers[name], seed))
        medians = {name: statistics.median(ms for ms, _ in taken[WARM:]) for name, taken in steps.items()}
        last = {name: statistics.mean(loss for _, loss in taken[-5:]) for name, taken in steps.items()}
        texts = [f"{name} {medians[name]:.2f} ms, loss {last[name]:.4f}" for name in models]
        share = medians["replaced"] / medians["torch.nn"]
        sys.stdout.write(f"{kind.__name__} ({len(replaced)} replaced): {'; '.join(texts)}; share {share:.2f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
