"""Model of the examples in torch: an embedding, residual blocks with a mixer over time, and a readout of every step."""

from __future__ import annotations

import torch
from torch import nn

import minrnn_gen.torch
from minrnn_gen.errors import BadInput

ATTENTION = "attention"
# torch's own layers by their names there, and the same in bfloat16: autocast runs them in float16 on a GPU.
OF_TORCH = {"torch.nn.LSTM": nn.LSTM, "torch.nn.GRU": nn.GRU}
IN_BF16 = {f"{name}-bf16": layer for name, layer in OF_TORCH.items()}
# The cells whose recurrent product is split into heads; all others have none.
WITH_HEADS = ("elman", "gru", "lstm", "slstm")


class SequenceModel(nn.Module):
    """Tokens [B, T] to logits [B, T, classes] through `layers` residual blocks of one width.

    mixer: a cell of minrnn_gen, built in or a file, a key of OF_TORCH or IN_BF16, or ATTENTION. heads: those of attention, and
    of cells with a recurrent product. feed_forward: whether a feed-forward block of twice the width follows every mixer.
    """

    def __init__(
        self, mixer: str, *, tokens: int, classes: int, width: int, layers: int, heads: int = 1, feed_forward: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts.append(Residual(width, mixer_of(mixer, width, heads)))
            if feed_forward:
                parts.append(
                    Residual(width, nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)))
                )
        self.blocks = nn.Sequential(*parts)
        self.readout = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.readout(self.blocks(self.embedding(tokens)))


class Residual(nn.Module):
    """Residual block x + part(norm(x)); a recurrent part contributes its output, without its states."""

    def __init__(self, width: int, part: nn.Module) -> None:
        super().__init__()
        self.norm, self.part = nn.LayerNorm(width), part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.part(self.norm(x))
        return x + (y[0] if isinstance(y, tuple) else y)


class InBfloat16(nn.Module):
    """Layer of torch with parameters in bfloat16, which casts its input and runs outside autocast."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer.bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return self.layer(x.bfloat16())[0]


class CausalAttention(nn.Module):
    """Causal attention of torch with rotary positions (arXiv 2104.09864), from [B, T, width] to the same shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % (2 * heads):
            raise BadInput(
                f"width is {width}; a multiple of twice the heads of attention, of which there are {heads}, is expected"
            )
        self.heads = heads
        self.queries_keys_values, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.queries_keys_values(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key = rotated(query), rotated(key)
        y = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(y.transpose(1, 2).flatten(2))


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of the channels of x [B, heads, T, channels] by angles that grow with time, in the dtype of x."""
    time, half = x.shape[-2], x.shape[-1] // 2
    # 10000: the longest wavelength of the paper.
    speeds = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.outer(torch.arange(time, device=x.device), speeds)
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)


def mixer_of(name: str, width: int, heads: int) -> nn.Module:
    """Return the layer over time called `name`; BadInput for an unknown cell."""
    if name == ATTENTION:
        return CausalAttention(width, heads)
    if name in OF_TORCH:
        return OF_TORCH[name](width, width, batch_first=True)
    if name in IN_BF16:
        return InBfloat16(IN_BF16[name](width, width, batch_first=True))
    return minrnn_gen.torch.RNN(name, width, width, heads=heads if name in WITH_HEADS else 1)
