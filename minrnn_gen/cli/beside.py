"""Reference times for a call on the CPU: torch's layer of the same sizes where there is one, NumPy otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from minrnn_gen.config.environment import numpy_alone

if TYPE_CHECKING:
    from minrnn_gen.cli.request import Request
    from minrnn_gen.kernel import Kernel

# How the layers of torch.nn call the cells that they have.
_LAYERS = {"lstm": "LSTM", "gru": "GRU", "elman": "RNN"}

Timed = Callable[[Callable[[], Any]], float]


class Beside(NamedTuple):
    """Another way to run the same sizes on the CPU, and its seconds per call."""

    name: str
    seconds: float


def code_of(kernel: Kernel) -> str:
    """Return the name of the code that runs host arrays, and the reason if it is NumPy."""
    reason = (kernel.embedded or kernel).executor.cpu.native.kernels.why_not
    return f"NumPy, since {reason}" if reason else "native code"


def measured_beside(request: Request, kernel: Kernel, arguments: dict[str, Any], timed: Timed) -> Beside | None:
    """Measure torch's layer, or else NumPy; None where NumPy runs the kernel itself."""
    layer = torch_layer_of(kernel, arguments["x"])
    if layer is not None:
        return Beside(layer[0], timed(layer[1]))
    if (kernel.embedded or kernel).executor.cpu.native.kernels.why_not:
        return None
    with numpy_alone():
        by_numpy = request.compile(quiet=True)
        return Beside("NumPy", timed(lambda: by_numpy(**arguments)))


def torch_layer_of(kernel: Kernel, x: Any) -> tuple[str, Callable[[], Any]] | None:
    """Return the name and a call of torch's layer of these sizes; None where torch is missing or has no such layer."""
    spec, interface, name = kernel.spec, kernel.interface, _LAYERS.get(kernel.builder.cell_source.name)
    if name is None or not spec.input_size or spec.heads != 1 or interface.directions or interface.layout == "BDT":
        return None
    try:
        from minrnn_gen.torch.drop_in.same_sizes import torch_layer
    except Exception:  # an installation of torch may fail in any way, and nothing else is asked of it here
        return None
    precision = interface.precision
    if precision.storage_dtype != precision.arithmetic_dtype:
        return None
    is_batch_first = interface.layout == "BTD"
    return f"torch.nn.{name}", torch_layer(name, spec.input_size, spec.hidden_size, x, is_batch_first=is_batch_first)
