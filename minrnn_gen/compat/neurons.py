"""Spiking neurons on tensors of any shape: the cells of spiking libraries, with one value per neuron or with R."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from minrnn_gen.api import compile_arguments
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel
from minrnn_gen.torch.dtypes import PRECISIONS, STATES
from minrnn_gen.torch.operators.functional import recurrence
from minrnn_gen.torch.tensors import check_devices, check_real

# Neurons that share no vector may be arranged in rows of any width that divides their number; rows are no wider than this, so
# that one kernel serves many shapes.
_WIDEST_ROW = 1024


@dataclass(frozen=True)
class Surrogate:
    """A smooth function of `over`, a membrane above its threshold, whose derivative is the gradient of the spikes."""

    text: str

    def spike(self, comparison: str) -> str:
        """Return the expression of a spike: 1 where `over` compares with 0 by this operator, else 0."""
        return f"surrogate(where(over {comparison} 0, 1, 0), {self.text})"


def number(value: float, name: str) -> str:
    """Return a number as text for equations; refuses infinity and NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadInput(f"{name} is {value!r}; a finite number is expected")
    return f"({float(value)!r})" if value < 0 else repr(float(value))


def cell(name: str, gates: Sequence[str], states: Sequence[str], equations: Sequence[str], **keys: Any) -> str:
    """Return a cell as text, the key of its kernels."""
    return json.dumps({"name": name, "gates": [*gates], "states": [*states], "equations": "\n".join(equations), **keys})


@dataclass(frozen=True)
class Spikes:
    """Spikes of all steps, shaped like the input, and the states after the last step and, if requested, after every step."""

    spikes: Any
    final: dict[str, Any]
    every: dict[str, Any] | None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def run(
    text: str,
    x: Any,
    state: Mapping[str, Any],
    parameters: Mapping[str, Any],
    every: bool = False,
    product: tuple[Any, Any] | None = None,
    called: str = "x",
) -> Spikes:
    """Run the neurons of a cell over x [T, B, ...]; `product`: (R [H, H], recurrent bias [H] or None) of a dense cell.

    state: {name: as one step of x, or None for zeros}; parameters: {name: a tensor of one number, or one that broadcasts over a
    step of x without its first axis}. `every`: return the states after every step too, without gradients. `called`: the name of
    x in the library. Raises BadInput for tensors that do not fit.
    """
    check_real(x, called)
    if x.dim() < 2:
        raise BadInput(f"{called} has shape {list(x.shape)}; [time, batch, ...] is expected")
    tensors = {name: tensor for name, tensor in state.items() if tensor is not None}
    check_devices({called: x, **tensors, **parameters})
    steps, *one_step = x.shape
    varied = any(tensor.dim() for tensor in parameters.values())
    own = tuple(one_step[1:])
    count = math.prod(one_step)
    width = math.prod(own) if varied or product is not None else row_width(count)
    precision = PRECISIONS[x.dtype]
    kernel = kernel_of(text, width, precision, product is not None and product[1] is not None)
    wide = STATES[precision]
    rows = count // width if width else 0
    vectors = {name: _vector(name, tensor, own if varied else (), width).to(wide) for name, tensor in parameters.items()}
    arrays: dict[str, Any] = {}
    if product is not None:
        R, bias = product
        arrays["R"] = R.to(x.dtype)[None, None]
        if bias is not None:
            arrays["recurrent_bias"] = bias.to(wide)[None, None]
    # Zeros are read where another state is given; where none is, no kernel reads any.
    starts = {name: x.new_zeros(one_step) if tensor is None else tensor for name, tensor in state.items()} if tensors else {}
    y, final, *more = recurrence(
        kernel,
        x.reshape(steps, rows, 1, width),
        **arrays,
        parameters=vectors or None,
        state={name: tensor.to(wide).reshape(rows, width) for name, tensor in starts.items()} or None,
        all_states=every,
    )
    return Spikes(
        y.reshape(x.shape),
        {name: tensor.reshape(one_step) for name, tensor in final.items()},
        {name: tensor.reshape(x.shape) for name, tensor in more[0].items()} if more else None,
    )


@cache
def row_width(count: int) -> int:
    """Return the width of rows that hold `count` neurons: the widest divisor, or all in one row where divisors are small."""
    widest = next((width for width in range(min(_WIDEST_ROW, count), 0, -1) if count % width == 0), 1)
    return widest if widest >= 32 or count >= 2**20 else max(count, 1)


def _vector(name: str, value: Any, shape: tuple[int, ...], width: int) -> Any:
    """Return a parameter as [width], which is flat over the axes `shape`."""
    if value.dim() == 0:
        return value.expand(width)
    own = value.squeeze(0) if value.dim() == len(shape) + 1 else value
    try:
        return own.expand(shape).reshape(width)
    except RuntimeError:
        raise BadInput(
            f"{name} has shape {list(value.shape)}; a number, or a shape that broadcasts over {list(shape)}, is expected"
        ) from None


@cache
def kernel_of(text: str, width: int, precision: str, has_bias: bool) -> Kernel:
    """Return the kernel of a cell of `cell`, time first; made once."""
    spec = {"model": json.loads(text), "hidden_size": width, "precision": precision, "layout": "TBD"}
    return compile_arguments({**spec, "recurrent_bias": has_bias} if "R." in text else spec, "neurons")
