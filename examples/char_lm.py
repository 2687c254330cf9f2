"""A language model over bytes: Python's own documentation and standard library, every cell against layers of torch.

Nothing is downloaded: the text is what comes with the interpreter, so losses are to be compared within one run; the record has
the hash of the text.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import training  # noqa: F401

# isort: split
import torch
from training.command import Command, run_command
from training.course import progress_bar
from training.loop import loss_of, train
from training.model import ATTENTION, IN_BF16, OF_TORCH, WITH_HEADS, SequenceModel
from training.record import Line, finish, new_record, save
from training.text import split, text

# Every built-in cell.
OF_HERE = "lstm gru slstm elman min_gru min_gru_log min_gru_tanh min_lstm min_lstm_log hgrn rg_lru qrnn ind_rnn"
OF_HERE += " peephole_lstm lif recurrent_lif gru_reset_before layer_norm_lstm"


@dataclass(frozen=True)
class Settings:
    """Settings of a run: `width` of every layer, `heads` of attention and of cells with a recurrent product."""

    models: tuple[str, ...] = (*OF_HERE.split(), *OF_TORCH, *IN_BF16, ATTENTION)
    width: int = 768
    heads: int = 12
    layers: int = 2
    batch: int = 16
    time: int = 1024
    steps: int = 1000
    learning_rate: float = 1e-3
    tests: int = 4
    seed: int = 0


SMALL = Settings(
    models=(*OF_HERE.split(), *OF_TORCH, ATTENTION),
    width=64,
    heads=2,
    layers=1,
    batch=8,
    time=64,
    steps=100,
    learning_rate=5e-3,
    tests=8,
)


def batches(part: bytes, settings: Settings, seed: int, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield pieces from random places and their next bytes, both [B, T], the same for every model."""
    generator = torch.Generator().manual_seed(seed)
    data = torch.frombuffer(bytearray(part), dtype=torch.uint8).to(device)
    steps = torch.arange(settings.time + 1, device=device)
    while True:
        starts = torch.randint(len(data) - settings.time, (settings.batch, 1), generator=generator).to(device)
        pieces = data[starts + steps].long()
        yield pieces[:, :-1], pieces[:, 1:]


def arithmetic(name: str, in_bf16: bool) -> str:
    """Return the precision of the layers; autocast runs torch's recurrent layers in fp16, whatever it is set to."""
    if name in IN_BF16:
        return "bf16"
    return "fp32" if not in_bf16 else "fp16" if name in OF_TORCH else "bf16"


def example(command: Command[Settings]) -> None:
    """Train every model on the same pieces, and record its loss on held-out text and its speed."""
    settings, device = command.settings, torch.device(command.device)
    whole = text()
    trained, tested = split(whole)
    in_bf16 = device.type == "cuda"
    record = new_record(command, "training steps", "training loss, nats per byte")
    origin = {"text bytes": len(whole), "text sha256": hashlib.sha256(whole).hexdigest()}
    with progress_bar() as progress:
        for name in settings.models:
            torch.manual_seed(settings.seed)
            model = SequenceModel(
                name,
                tokens=256,
                classes=256,
                width=settings.width,
                layers=settings.layers,
                heads=settings.heads,
                feed_forward=True,
            ).to(device)
            course = train(
                model,
                batches(trained, settings, settings.seed, device),
                progress,
                name,
                steps=settings.steps,
                learning_rate=settings.learning_rate,
                in_bf16=in_bf16,
            )
            # Another seed than that of training, and another text.
            held_out = batches(tested, settings, settings.seed + 1, device)
            with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=in_bf16):
                loss = sum(loss_of(model, *next(held_out)).item() for _ in range(settings.tests)) / settings.tests
            row = {
                "model": name,
                "heads": settings.heads if name in (*WITH_HEADS, ATTENTION) else 1 if name in (*OF_TORCH, *IN_BF16) else "",
                "arithmetic": arithmetic(name, in_bf16),
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
                "bits per byte": loss / math.log(2),
                "step, ms": course.step_ms,
                "bytes/s": round(settings.batch * settings.time / course.step_ms * 1e3),
            }
            record = record.with_row(row, {"model": name, **origin}, [Line(name=name, x=course.steps, y=course.losses)])
            save(record, command)
    finish(record, command)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command("char_lm", __doc__.splitlines()[0], Settings(), SMALL, example, arguments)


if __name__ == "__main__":
    sys.exit(main())
