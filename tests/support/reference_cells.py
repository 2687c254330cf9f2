"""One step of every built-in cell in torch, written down from its publication a second time, for autograd to differentiate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


def step_of(model: str) -> Callable[..., tuple[Any, ...]]:
    """Return a step: pre-activations W and recurrent products R by gate order, states, vectors to states, the output first."""
    import torch
    from torch.nn.functional import logsigmoid, silu, softplus

    sigmoid, tanh = torch.sigmoid, torch.tanh

    def positive(v: Any) -> Any:
        return torch.where(v >= 0, v + 0.5, sigmoid(v))

    def min_gru(candidate: Callable[[Any], Any]) -> Callable[..., tuple[Any, ...]]:
        def step(W: Any, _R: Any, s: Any, _v: Any) -> tuple[Any, ...]:
            z = sigmoid(W[0])
            return ((1 - z) * s[0] + z * candidate(W[1]),)

        return step

    def min_lstm(candidate: Callable[[Any], Any]) -> Callable[..., tuple[Any, ...]]:
        def step(W: Any, _R: Any, s: Any, _v: Any) -> tuple[Any, ...]:
            f, i = sigmoid(W[0]), sigmoid(W[1])
            return (f / (f + i) * s[0] + i / (f + i) * candidate(W[2]),)

        return step

    def hgrn(W: Any, _R: Any, s: Any, _v: Any) -> tuple[Any, ...]:
        f = sigmoid(W[0])
        return (f * s[0] + (1 - f) * silu(W[1]),)

    def rg_lru(W: Any, _R: Any, s: Any, v: Any) -> tuple[Any, ...]:
        log_a = -8 * softplus(v[0]) * sigmoid(W[0])
        return (torch.exp(log_a) * s[0] + torch.sqrt(1 - torch.exp(2 * log_a)) * sigmoid(W[1]) * W[2],)

    def qrnn(W: Any, _R: Any, s: Any, _v: Any) -> tuple[Any, ...]:
        z, f, o = tanh(W[0]), sigmoid(W[1]), sigmoid(W[2])
        c = f * s[0] + (1 - f) * z
        return o * c, c

    def ind_rnn(W: Any, _R: Any, s: Any, v: Any) -> tuple[Any, ...]:
        return (torch.relu(W[0] + v[0] * s[0]),)

    def elman(W: Any, R: Any, _s: Any, _v: Any) -> tuple[Any, ...]:
        return (tanh(W[0] + R[0]),)

    def lstm(W: Any, R: Any, s: Any, _v: Any) -> tuple[Any, ...]:
        i, f, z, o = (one + other for one, other in zip(W, R, strict=True))
        c = sigmoid(f) * s[1] + sigmoid(i) * tanh(z)
        return sigmoid(o) * tanh(c), c

    def gru(W: Any, R: Any, s: Any, _v: Any) -> tuple[Any, ...]:
        r, z = sigmoid(W[0] + R[0]), sigmoid(W[1] + R[1])
        n = tanh(W[2] + r * R[2])
        return ((1 - z) * n + z * s[0],)

    def layer_norm_lstm(W: Any, R: Any, s: Any, v: Any) -> tuple[Any, ...]:
        def normed(x: Any) -> Any:
            by_head = x.unflatten(-1, (R.heads, -1))
            return torch.nn.functional.layer_norm(by_head, by_head.shape[-1:], eps=1e-5).flatten(-2)

        i, f, z, o = (W[gate] + v[gate] * normed(R[gate]) for gate in range(4))
        c = sigmoid(f) * s[1] + sigmoid(i) * tanh(z)
        return sigmoid(o) * tanh(v[4] * normed(c) + v[5]), c

    def gru_reset_before(W: Any, R: Any, s: Any, _v: Any) -> tuple[Any, ...]:
        z, r = sigmoid(W[0] + R[0]), sigmoid(W[1] + R[1])
        n = tanh(W[2] + R.of(2, r * s[0]))
        return (z * s[0] + (1 - z) * n,)

    def slstm(W: Any, R: Any, s: Any, _v: Any) -> tuple[Any, ...]:
        i, f, z, o = (one + other for one, other in zip(W, R, strict=True))
        _, c, n, m = s
        forget = logsigmoid(f) + m
        top = torch.where(n == 0, i, torch.maximum(i, forget)).detach()
        new, kept = torch.exp(torch.clamp(i - top, max=0)), torch.exp(torch.clamp(forget - top, max=0))
        c, n = kept * c + new * tanh(z), kept * n + new
        n = torch.where(n >= 1, n, 1.0)
        return sigmoid(o) * c / n, c, n, top

    def peephole_lstm(W: Any, R: Any, s: Any, v: Any) -> tuple[Any, ...]:
        i, f, z, o = (one + other for one, other in zip(W, R, strict=True))
        c = sigmoid(f + v[1] * s[1]) * s[1] + sigmoid(i + v[0] * s[1]) * tanh(z)
        return sigmoid(o + v[2] * c) * tanh(c), c

    class Spike(torch.autograd.Function):
        """1 above 0; the gradient of atan(pi u) / pi."""

        @staticmethod
        def forward(ctx: Any, u: Any) -> Any:
            ctx.save_for_backward(u)
            return (u > 0).to(u.dtype)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            (u,) = ctx.saved_tensors
            return gradients[0] / (1 + (torch.pi * u) ** 2)

    def lif(W: Any, R: Any, s: Any, v: Any) -> tuple[Any, ...]:
        m = sigmoid(v[0]) * s[1] + W[0] + (0 if R is None else R[0]) - s[0]
        return Spike.apply(m - 1), m

    def itself(v: Any) -> Any:
        return v

    table: dict[str, Callable[..., tuple[Any, ...]]] = {
        "min_gru": min_gru(itself),
        "min_gru_log": min_gru(positive),
        "min_gru_tanh": min_gru(tanh),
        "min_lstm": min_lstm(itself),
        "min_lstm_log": min_lstm(positive),
        "hgrn": hgrn,
        "rg_lru": rg_lru,
        "qrnn": qrnn,
        "ind_rnn": ind_rnn,
        "elman": elman,
        "lstm": lstm,
        "gru": gru,
        "gru_reset_before": gru_reset_before,
        "layer_norm_lstm": layer_norm_lstm,
        "slstm": slstm,
        "peephole_lstm": peephole_lstm,
        "lif": lif,
        "recurrent_lif": lif,
    }
    return table[model]


# How many states and how many vectors a cell has; the state of qrnn is not its output.
STATES = {"lstm": 2, "layer_norm_lstm": 2, "slstm": 4, "peephole_lstm": 2, "lif": 2, "recurrent_lif": 2}
VECTORS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(["rg_lru", "lif", "recurrent_lif"], ("decay",)),
    "ind_rnn": ("u",),
    "peephole_lstm": ("p_i", "p_f", "p_o"),
    "layer_norm_lstm": ("gi", "gf", "gz", "go", "gc", "bc"),
}


@dataclass(frozen=True)
class Products:
    """The products of a step by gate order: R[gate] of the previous output, and R.of(gate, value)."""

    weight: Any
    bias: Any
    heads: int
    output: Any

    def of(self, gate: int, value: Any) -> Any:
        import torch

        rows, hidden = value.shape
        size = hidden // self.heads
        block = self.weight.view(-1, self.heads, size, size)[gate]
        product = torch.einsum("noi,bni->bno", block, value.view(rows, self.heads, size)).reshape(rows, hidden)
        return product + self.bias.view(-1, hidden)[gate]

    def __getitem__(self, gate: int) -> Any:
        return self.of(gate, self.output)

    def __len__(self) -> int:
        return len(self.weight) // self.output.shape[1]

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))


def plain_layer(
    model: str, parameters: Mapping[str, Any], x: Any, heads: int = 1, storage: Any = None
) -> tuple[Any, Sequence[Any]]:
    """Run one layer over x [B, T, I] from zero states by its parameters, named as torch's without layer; y and final states.

    The projection is rounded to the dtype `storage`, as kernels are given it, and gradients pass as if it were not: next to a
    kink the rounding decides on which side of it a cell is.
    """
    import torch

    step = step_of(model)
    W = x @ parameters["weight_ih"].T
    if storage is not None:
        W = W + (W.to(storage).to(W.dtype) - W).detach()
    W = W + parameters["bias_ih"]
    weight = parameters.get("weight_hh")
    vectors = [parameters[name] for name in VECTORS.get(model, ())]
    hidden = (weight.shape[1] * heads) if weight is not None else None
    if hidden is None:
        gates = {"min_gru": 2, "hgrn": 2, "ind_rnn": 1, "lif": 1}.get(model.removesuffix("_log").removesuffix("_tanh"), 3)
        hidden = W.shape[-1] // gates
    states: tuple[Any, ...] = tuple(x.new_zeros(x.shape[0], hidden) for _ in range(STATES.get(model, 1)))
    outputs = []
    for t in range(x.shape[1]):
        products = None
        if weight is not None:
            products = Products(weight, parameters["bias_hh"], heads, states[0])
        y, *after = step(W[:, t].split(hidden, -1), products, states, vectors)
        states = tuple(after) if model == "qrnn" else (y, *after)
        outputs.append(y)
    return torch.stack(outputs, 1), states
