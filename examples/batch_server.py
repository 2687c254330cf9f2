"""A batch scheduler for a language model over bytes: requests come and go, share prefixes, and a smaller model drafts tokens.

    python examples/batch_server.py

trains two models for some seconds, serves requests by both, and compares every token with those of the larger model alone.
Each round feeds every request up to `WINDOW` tokens: those of its prompt that are left, its last token, then drafts. A prompt
is thus a draft that is known to be right, and the model verifies prompts, tokens and drafts of all requests in one call.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import training  # noqa: F401

# isort: split
import torch
from training.text import text

import minrnn_gen.torch

BATCH, WINDOW, BYTES = 4, 5, 256
PREFIX = b'def main(arguments: list[str]) -> int:\n    """'
ENDINGS = (b"Return ", b"Run the ", b"Read a file", b"", b"Parse ", b"Write ", b"Open the ", b"The number of")


class ByteModel(torch.nn.Module):
    """An embedding, recurrent layers and a linear one."""

    def __init__(self, cell: str, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(BYTES, width)
        self.layers = minrnn_gen.torch.RNN(cell, width, width, num_layers=layers)
        self.head = torch.nn.Linear(width, BYTES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits [B, T, 256] of tokens [B, T]."""
        return self.head(self.layers(self.embedding(tokens))[0])

    def fit(self, data: torch.Tensor, steps: int) -> ByteModel:
        """Train on random pieces of text."""
        optimizer, generator = torch.optim.AdamW(self.parameters(), 5e-3), torch.Generator().manual_seed(0)
        for _ in range(steps):
            starts = torch.randint(len(data) - 65, (16, 1), generator=generator)
            pieces = data[(starts + torch.arange(65)).to(data.device)].long()
            loss = torch.nn.functional.cross_entropy(self(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return self.eval()

    @torch.no_grad()
    def alone(self, prompt: bytes, count: int) -> list[int]:
        """Return the `count` likeliest tokens after a prompt, one request at a time and token by token."""
        device = self.head.weight.device
        y, state = self.layers(self.embedding(torch.tensor([[*prompt]], device=device)))
        token, told = self.head(y[:, -1]).argmax(-1), []
        for _ in range(count):
            told.append(int(token))
            y, state = self.layers.step(self.embedding(token), state)
            token = self.head(y).argmax(-1)
        return told


@dataclass
class Request:
    """A prompt, and how many tokens are to come; `fed` of all tokens so far are in the states of its slot."""

    prompt: bytes
    count: int
    told: list[int] = field(default_factory=list)
    fed: int = 0
    rounds: int = 0

    @property
    def left(self) -> list[int]:
        """Known tokens that the models have not read."""
        return [*self.prompt, *self.told][self.fed :]


class Server:
    """Serves up to `BATCH` requests at once; slot BATCH of the models' caches has the states after a shared prefix.

    The larger model has drafts in its cache. The smaller one goes from slot to slot, one for each token of a round.
    """

    def __init__(self, large: ByteModel, small: ByteModel, prefix: bytes = b"") -> None:
        """Read the prefix into its slot."""
        self.large, self.small, self.prefix = large, small, prefix
        self.device = large.head.weight.device
        self.cache = large.layers.cache(BATCH + 1, WINDOW)
        self.ahead = small.layers.cache((BATCH + 1) * (WINDOW + 1))
        self.rows: list[Request | None] = [None] * BATCH
        self.kept = [0] * BATCH
        if prefix:
            request = Request(prefix, 0)
            self._begin(0, request)
            while request.left:
                self.round()
            self.cache.commit([0], [self.kept[0]])
            self._copy(0, BATCH)
            self.rows[0] = None

    def serve(self, waiting: Iterable[Request]) -> None:
        """Serve all requests, each in the first row that is free."""
        queue = deque(waiting)
        while queue or any(self.rows):
            for row in range(BATCH):
                if self.rows[row] is None and queue:
                    self._begin(row, queue.popleft())
            self.round()

    @torch.no_grad()
    def round(self) -> None:
        """Feed every request its known tokens and drafts after them, and keep what the larger model would have said."""
        slots = self._tensor([-1 if request is None else row for row, request in enumerate(self.rows)])
        known = [[] if request is None else request.left[:WINDOW] for request in self.rows]
        tokens = self._drafted(slots, known)
        y, _ = self.large.layers.verify_draft(
            self.large.embedding(tokens), cache=self.cache, slots=slots, accepted=self._tensor(self.kept)
        )
        fed, said = tokens.tolist(), self.large.head(y).argmax(-1).tolist()
        for row, request in enumerate(self.rows):
            if request is None:
                continue
            request.rounds += 1
            kept, is_known = len(known[row]), request.count > 0 and len(known[row]) == len(request.left)
            while is_known and kept < WINDOW and fed[row][kept] == said[row][kept - 1]:
                kept += 1
            if is_known:  # accepted drafts, and what comes after them
                request.told += said[row][len(known[row]) - 1 : kept]
            request.fed += kept
            self.kept[row] = kept
            if is_known and len(request.told) >= request.count:
                del request.told[request.count :]
                self.rows[row] = None
        live = [row for row in range(BATCH) if int(slots[row]) >= 0]
        first = [row * (WINDOW + 1) for row in live]
        self.ahead.copy([place + self.kept[row] for row, place in zip(live, first, strict=True)], first)

    def _drafted(self, slots: torch.Tensor, known: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return [BATCH, WINDOW] tokens: those that are known, and after them the smaller model's."""
        columns, token = [], torch.zeros_like(slots)
        first = torch.where(slots < 0, -1, slots * (WINDOW + 1))
        for place in range(WINDOW):
            given = self._tensor([tokens[place] if place < len(tokens) else -1 for tokens in known])
            columns.append(torch.where(given < 0, token, given))
            read, write = (torch.where(first < 0, -1, first + place + after) for after in (0, 1))
            x = self.small.embedding(columns[-1])
            y, _ = self.small.layers.step(x, cache=self.ahead, slots=read, into_slots=write)
            token = self.small.head(y).argmax(-1)
        return torch.stack(columns, 1)

    def _begin(self, row: int, request: Request) -> None:
        """Begin a request in a row, from the states of the prefix where its prompt has it."""
        self.rows[row], self.kept[row] = request, 0
        if self.prefix and request.prompt.startswith(self.prefix) and len(request.prompt) > len(self.prefix):
            self._copy(BATCH, row)
            request.fed = len(self.prefix)
        else:
            self.cache.clear(row)
            self.ahead.clear(row * (WINDOW + 1))

    def _copy(self, source: int, target: int) -> None:
        self.cache.copy(source, target)
        self.ahead.copy(source * (WINDOW + 1), target * (WINDOW + 1))

    def _tensor(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, device=self.device)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, serve and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=60, help="of training")
    parser.add_argument("--tokens", type=int, default=48, help="of each answer, at most")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    data = torch.frombuffer(bytearray(text()[:500_000]), dtype=torch.uint8).to(options.device)
    large = ByteModel("lstm", 96, 2).to(options.device).fit(data, options.steps)
    small = ByteModel("min_gru", 64, 1).to(options.device).fit(data, 3 * options.steps)
    prompts = [(PREFIX if number % 3 else b"import ") + ending for number, ending in enumerate(ENDINGS)]
    requests = [Request(prompt, options.tokens - 5 * number) for number, prompt in enumerate(prompts)]
    Server(large, small, PREFIX).serve(requests)
    are_equal = all(request.told == large.alone(request.prompt, request.count) for request in requests)
    tokens, rounds = (sum(map(of, requests)) for of in (lambda request: len(request.told), lambda request: request.rounds))
    print(requests[1].prompt.decode() + bytes(requests[1].told).decode(errors="replace"))
    print(f"{len(requests)} requests, {tokens} tokens, {tokens / rounds:.2f} per round of a request")
    print(f"as without batching: {'yes' if are_equal else 'no'}")
    return 0 if are_equal else 1


if __name__ == "__main__":
    sys.exit(main())
