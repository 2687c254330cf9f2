"""Models made of torch.nn's recurrent layers, each with a task that it learns; random inputs are those of a generator."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

STEPS = 50


class SpeechEncoder(torch.nn.Module):
    """Four layers in both directions over packed sequences of frames, with a class for every frame."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.LSTM(6, 5, num_layers=4, batch_first=True, bidirectional=True)
        self.classes = torch.nn.Linear(10, 2)

    def forward(self, frames: Any, lengths: Any) -> tuple[Any, ...]:
        packed = pack_padded_sequence(frames, lengths, batch_first=True, enforce_sorted=False)
        y, (h, c) = self.layers(packed)
        y, _ = pad_packed_sequence(y, batch_first=True)
        return self.classes(y), h, c

    def inputs(self, generator: Any) -> tuple[Any, ...]:
        frames = torch.randn(3, 7, 6, generator=generator, dtype=torch.float64)
        return frames.to(self.classes.weight), torch.tensor([4, 7, 2])

    def loss(self, generator: Any) -> Any:
        frames, lengths = self.inputs(generator)
        return torch.nn.functional.cross_entropy(self(frames, lengths)[0].flatten(0, 1), (frames.sum(2) > 0).long().flatten())


class LanguageModel(torch.nn.Module):
    """Layers between an embedding and a softmax of the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 8)
        self.layers = torch.nn.GRU(8, 8, num_layers=2)
        self.scores = torch.nn.Linear(8, 11)
        self.scores.weight = self.embedding.weight

    def forward(self, tokens: Any, hx: Any = None) -> tuple[Any, Any]:
        y, h = self.layers(self.embedding(tokens), hx)
        return self.scores(y), h

    def inputs(self, generator: Any) -> tuple[Any, ...]:
        """Return tokens, each the successor of the one before."""
        first = torch.randint(11, (1, 4), generator=generator)
        return (((first + torch.arange(9)[:, None]) % 11).to(self.scores.weight.device),)

    def loss(self, generator: Any) -> Any:
        (tokens,) = self.inputs(generator)
        scores, h = self(tokens[:4])
        more, _ = self(tokens[4:8], h)
        return torch.nn.functional.cross_entropy(torch.cat([scores, more]).flatten(0, 1), tokens[1:].flatten())


class Translator(torch.nn.Module):
    """An encoder, and a decoder that is called step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 6)
        self.encoder = torch.nn.RNN(6, 5, nonlinearity="relu", bidirectional=True)
        self.start = torch.nn.Linear(10, 8)
        self.decoder = torch.nn.LSTMCell(6, 8)
        self.scores = torch.nn.Linear(8, 7)

    def forward(self, source: Any, target: Any) -> tuple[Any, ...]:
        _, h = self.encoder(self.embedding(source))
        start = self.start(h.transpose(0, 1).flatten(1))
        state, steps = (start, torch.zeros_like(start)), []
        for token in target:
            state = self.decoder(self.embedding(token), state)
            steps.append(self.scores(state[0]))
        return torch.stack(steps), *state

    def inputs(self, generator: Any) -> tuple[Any, ...]:
        source = torch.randint(7, (5, 3), generator=generator).to(self.scores.weight.device)
        return source, source.flip(0)

    def loss(self, generator: Any) -> Any:
        source, target = self.inputs(generator)
        return torch.nn.functional.cross_entropy(self(source, target)[0].flatten(0, 1), target.flatten())


KINDS = (SpeechEncoder, LanguageModel, Translator)


def losses_of(model: Any) -> list[float]:
    """Return the loss before every step of a training."""
    generator, losses = torch.Generator().manual_seed(7), []
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model.loss(generator)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
