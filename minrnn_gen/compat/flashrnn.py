"""FlashRNN's function, served by the kernels here."""

from __future__ import annotations

from typing import Any

import torch

from minrnn_gen.compat.flashrnn_kernel import kernel_of
from minrnn_gen.compat.flashrnn_request import BIAS, INPUT, OUTPUT, RECURRENT, Request, request_of
from minrnn_gen.compat.flashrnn_states import stacked
from minrnn_gen.errors import BadInput
from minrnn_gen.torch.operators.calls import arithmetic_dtype, storage_dtype
from minrnn_gen.torch.operators.functional import recurrence
from minrnn_gen.torch.tensors import check_devices, check_real


@torch.compiler.disable  # type: ignore[untyped-decorator]
def flashrnn(
    Wx: Any,
    R: Any,
    b: Any = None,
    states: Any = None,
    function: str = "lstm",
    config: Any = None,
    backend: str = "cuda_fused",
    dtype: str | None = "bfloat16",
) -> tuple[Any, Any]:
    """Return (states [S, B, T, N, D], last states [S, B, 1, N, D]), the output first, both in the dtype of Wx.

    Wx [B, T, G, N, D], R [Gr, N, D out, D in], b [Gt, N, D] (zeros where None), states [S, B, 1, N, D] (zeros where None).
    lstm, slstm: gates i, f, z, o; elman: one; gru: Wx of r, z, n, R of n, r, z, b of R's n, r, z, W's n. The same kernel serves
    all of FlashRNN's backends, in `dtype` with float32 states (float64 for float64), on a GPU and in host memory. A `config`
    replaces function, backend and dtype, and its shapes say the order of the axes.

    Gradients of Wx, R, b and the initial states go through the output at every step and through the last states. They do not go
    through the other states of every step: a backward that meets such a gradient raises BadInput. Raises BadInput for unknown
    names and for tensors that do not fit. Source: Poeppel et al., FlashRNN, arXiv 2412.07752.
    """
    request = request_of(function, config, backend, dtype)
    Wx = _ordered(Wx, "Wx", request.input_order, INPUT)
    batch, _, _, heads, size = Wx.shape
    kernel = kernel_of(request.function, heads, heads * size, request.precision, request.gradient_clip)
    gates = len(kernel.gates)
    _check(Wx, "Wx", request.input_order, INPUT, {"G": gates})
    R = _ordered(R, "R", request.recurrent_order, RECURRENT)
    _check(R, "R", request.recurrent_order, RECURRENT, {"G": gates, "H": heads, "D": size, "P": size})
    storage = storage_dtype(kernel)
    bias = recurrent_bias = None
    if b is not None:
        b = _ordered(b, "b", request.bias_order, BIAS)
        count = 4 if request.function == "gru" else gates
        _check(b, "b", request.bias_order, BIAS, {"G": count, "H": heads, "D": size})
        b = (b if b.dtype is torch.float32 else b.to(storage)).flatten(1)
        bias, recurrent_bias = _biases(request.function, b)
    state = None
    if states is not None:
        states = _ordered(states, "states", request.output_order, OUTPUT)
        sizes = {"S": len(kernel.states), "B": batch, "T": 1, "H": heads, "D": size}
        _check(states, "states", request.output_order, OUTPUT, sizes)
        rows = states.to(arithmetic_dtype(kernel)).flatten(2)
        # m only scales, which FlashRNN says by a gradient of 0.
        state = {name: rows[place].detach() if name == "m" else rows[place] for place, name in enumerate(kernel.states)}
    check_devices({"Wx": Wx, "R": R, "b": b, "states": states})
    y, final, *every = recurrence(
        kernel,
        Wx.to(storage).flatten(3),
        (R[[1, 2, 0]] if request.function == "gru" else R).to(storage),
        bias=bias,
        recurrent_bias=recurrent_bias,
        state=state,
        all_states=len(kernel.states) > 1,
    )
    others = [every[0][name] for name in kernel.states[1:]]
    after_every = stacked(y.to(Wx.dtype), [state_over_time.to(Wx.dtype) for state_over_time in others], kernel.states)
    after_last = torch.stack([final[name].unsqueeze(1) for name in kernel.states]).to(Wx.dtype)
    return _by_heads(after_every, heads, request), _by_heads(after_last, heads, request)


def _biases(function: str, b: Any) -> tuple[Any, Any]:
    """Return bias [G, H] and recurrent bias [Gr * H] from FlashRNN's bias [Gt, H]."""
    if function != "gru":
        return b, None
    of_R, r, z, n = b
    zero = torch.zeros_like(of_R)
    return torch.stack((r, z, n)), torch.cat((zero, zero, of_R))


def _ordered(tensor: Any, name: str, axis_order: str, wanted: str) -> Any:
    """Return a tensor whose axes are `given` with its axes as `wanted`."""
    check_real(tensor, name)
    if tensor.dim() != len(axis_order):
        raise BadInput(f"{name} has shape {list(tensor.shape)}; {len(axis_order)} axes {axis_order} are expected (H: head)")
    return tensor if axis_order == wanted else tensor.permute([axis_order.index(axis) for axis in wanted])


def _check(tensor: Any, name: str, axis_order: str, axes: str, sizes: dict[str, int]) -> None:
    """Refuse a tensor with axes `axes` if any has another size; the message has the shape as passed."""
    shape = dict(zip(axes, tensor.shape, strict=True))
    if any(shape[axis] != size for axis, size in sizes.items()):
        expected = [sizes.get(axis, shape[axis]) for axis in axis_order]
        raise BadInput(
            f"{name} has shape {[shape[axis] for axis in axis_order]}; {expected} is expected, {axis_order} (H: head)"
        )


def _by_heads(tensor: Any, heads: int, request: Request) -> Any:
    """Return states [S, B, T, H] with heads, their axes in the requested order."""
    split = tensor.unflatten(-1, (heads, -1))
    order = request.output_order
    return split if order == OUTPUT else split.permute([OUTPUT.index(axis) for axis in order])
