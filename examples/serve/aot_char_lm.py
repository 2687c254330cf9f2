"""A language model over bytes for a server without Python: exported, its layers operators in C++, compiled ahead of time.

    python examples/serve/aot_char_lm.py out [weights.pt]

writes out/char_lm.pt2, the model compiled by AOTInductor, and out/operators, the library that it needs, in C and C++. Without a
file of weights, a state_dict, they are drawn. examples/serve/aot_char_lm.cpp serves what was written.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import minrnn_gen.torch

BYTES, EMBEDDED, HIDDEN, LAYERS = 256, 32, 64, 2


class CharLM(torch.nn.Module):
    """An embedding, recurrent layers and a linear one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(BYTES, EMBEDDED)
        self.layers = minrnn_gen.torch.GRU(EMBEDDED, HIDDEN, num_layers=LAYERS, batch_first=True)
        self.head = torch.nn.Linear(HIDDEN, BYTES)

    def forward(self, tokens: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [B, T, 256] of tokens [B, T], and the state [layers, B, H] after them."""
        output, state = self.layers(self.embedding(tokens), state)
        return self.head(output), state


def main(folder: Path, weights: str | None = None) -> None:
    """Export and compile a model into a folder."""
    model = CharLM().eval()
    if weights is not None:
        model.load_state_dict(torch.load(weights, weights_only=True))
    batch, time = torch.export.Dim("batch"), torch.export.Dim("time")
    example = (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(LAYERS, 2, HIDDEN))
    program = torch.export.export(model, example, dynamic_shapes=({0: batch, 1: time}, {1: batch}))
    program = minrnn_gen.torch.export_operators(program, folder / "operators", name="char_lm")
    torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "char_lm.pt2"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
