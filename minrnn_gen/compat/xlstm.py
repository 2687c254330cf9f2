"""The sLSTM cell of the package `xlstm`, computed by the kernels here instead of by an extension that nvcc builds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from minrnn_gen.api import compile_arguments
from minrnn_gen.compat.flashrnn_states import stacked
from minrnn_gen.compat.installed import Exchange
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel
from minrnn_gen.torch.operators.calls import arithmetic_dtype, storage_dtype
from minrnn_gen.torch.operators.dispatch import refuse_transforms
from minrnn_gen.torch.operators.functional import recurrence


def _cells() -> Any:
    from xlstm.blocks.slstm import cell

    return cell


_EXCHANGE = Exchange(_cells, "xlstm==2.0.6")
# The built-in cell bounds n by 1 from below, as FlashRNN does; `xlstm` does not, so that states that no step returns count too.
_SLSTM = {
    "name": "xlstm_slstm",
    "gates": ["i", "f", "z", "o"],
    "states": ["h", "c", "n", "m"],
    "equations": """\
i    = W.i + R.i
f    = logsigmoid(W.f + R.f) + m[t-1]
m[t] = detach(where(n[t-1] == 0, i, max(i, f)))
new  = exp(min(i - m[t], 0))
kept = exp(min(f - m[t], 0))
c[t] = kept * c[t-1] + new * tanh(W.z + R.z)
n[t] = kept * n[t-1] + new
h[t] = sigmoid(W.o + R.o) * c[t] / n[t]
""",
}
# Storage of a kernel by the dtype of its products' operands.
_PRECISIONS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}


def install() -> None:
    """Let the kernels here compute each sLSTM cell of `xlstm` made from now on with `backend="cuda"`; TiRex's cells are these.

    On a GPU and in host memory, without a compiler for CUDA. Parameters, state_dict, shapes and dtypes stay; cells with
    `backend="vanilla"` stay as they are. `uninstall` takes it back. Raises ToolchainMissing where `xlstm` is not installed or
    has other functions than version 2.0.6. Source: Beck et al., xLSTM, arXiv 2405.04517.
    """
    _EXCHANGE.install({"sLSTMCellFuncGenerator": _function_of})


def uninstall() -> None:
    """Give `xlstm` its extension back; cells made meanwhile keep the kernels here."""
    _EXCHANGE.uninstall()


def _function_of(training: bool, config: Any) -> _CellFunction:
    """Return the function of a cell as `xlstm` requests it; raises BadInput where no kernel here computes it."""
    del training  # a backward runs whenever a gradient is requested
    if config.gradient_recurrent_cut:
        raise BadInput("gradient_recurrent_cut is True, which no kernel supports; leave it False, or take backend 'vanilla'")
    if config.forward_clipval is not None:
        raise BadInput(
            f"forward_clipval is {config.forward_clipval}, but no kernel here bounds outputs; leave it None, or take backend "
            f"'vanilla'"
        )
    return _CellFunction(config)


@dataclass(frozen=True)
class _CellFunction:
    """A cell over time, with gradients; its config is that of `xlstm`."""

    config: Any

    def apply(self, _training: bool, x: Any, state: Any, R: Any, bias: Any) -> Any:
        """Return the states before the first step and after each, [S, T + 1, B, N D]: h, c and, of sLSTM, n, m.

        x [T, B, N 4 D], gates i, f, z, o; state [S, B, N D]; R [N, D in, 4 D out]; bias [N 4 D].
        """
        config = self.config
        heads, gates, size = config.num_heads, config.num_gates, config.head_dim
        is_mixed = config.enable_automatic_mixed_precision and x.dtype is not torch.float64
        kernel = self._kernel(config.torch_dtype_w if is_mixed else x.dtype)
        dtype = config.torch_dtype_s if is_mixed else x.dtype
        storage, arithmetic = storage_dtype(kernel), arithmetic_dtype(kernel)
        with torch.autocast(x.device.type, enabled=False):
            y, final, every = recurrence(
                kernel,
                _laid_out(x.unflatten(-1, (heads, gates, size)).permute(1, 0, 3, 2, 4), storage).flatten(3),
                _laid_out(R.unflatten(-1, (gates, size)).permute(2, 0, 3, 1), storage),
                bias=_laid_out(bias.view(heads, gates, size).transpose(0, 1), arithmetic).flatten(1),
                state={name: state[place].to(arithmetic) for place, name in enumerate(kernel.states)},
                all_states=True,
            )
            others = kernel.states[1:]
            if not y.requires_grad:
                refuse_transforms(y)
                states = x.new_empty((len(kernel.states), x.shape[0] + 1, *state.shape[1:]), dtype=dtype)
                states[:, 0] = state
                for place, between in enumerate((y, *(every[name] for name in others))):
                    states[place, 1:] = between.transpose(0, 1)
                return states
            between = stacked(y.to(dtype), [every[name].to(dtype) for name in others], kernel.states).transpose(1, 2)
            last = torch.stack([between[0, -1], *(final[name].to(dtype) for name in others)])
        return torch.cat((state.to(dtype).unsqueeze(1), between[:, :-1], last.unsqueeze(1)), 1)

    def _kernel(self, dtype: Any) -> Kernel:
        config = self.config
        return _kernel_of(
            config.function, config.num_heads, config.hidden_size, _PRECISIONS[dtype], config.gradient_recurrent_clipval
        )


def _laid_out(view: Any, dtype: Any) -> Any:
    """Return a permuted view as a contiguous tensor of a dtype, by one copy."""
    return view.to(dtype, memory_format=torch.contiguous_format).contiguous()


@cache
def _kernel_of(function: str, heads: int, hidden_size: int, precision: str, gradient_clip: float | None) -> Kernel:
    model = _SLSTM if function == "slstm" else function
    sizes = {"hidden_size": hidden_size, "heads": heads, "precision": precision}
    return compile_arguments({"model": model, **sizes, "recurrent_gradient_clip": gradient_clip}, "xlstm")
