"""TiRex with random weights, its sLSTM by kernels here and by its own backends: `python -m benchmarks.forecasts`.

The published shape: 12 blocks of 512 channels in 4 heads, patches of 32 values, 64 series with a context of 2,048. First one
sLSTM cell over the 64 patches alone, then a whole forecast of 32 values, in milliseconds. Its backend `cuda` is the extension
that xlstm compiles with nvcc, whose seconds are printed. In brackets: the share of that time that ours takes. `apart` is the
distance of the cell's outputs from ours, relative in the 2-norm.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.harness.turns import line_of, milliseconds
from minrnn_gen.compat import xlstm as by_kernels

SERIES, CONTEXT, HORIZON = 64, 2048, 32
BLOCKS = {"num_blocks": 12, "embedding_dim": 512, "num_heads": 4}
QUANTILES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


def _model(backend: str) -> Any:
    sizes = {"input_patch_size": 32, "output_patch_size": 32, "input_ff_dim": 2048}
    config: dict[str, Any] = {**sizes, "quantiles": QUANTILES, "block_kwargs": BLOCKS}
    torch.manual_seed(0)
    model = importlib.import_module("tirex.models.tirex").TiRexZero(backend, config, train_ctx_len=CONTEXT)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        else:
            torch.nn.init.ones_(parameter) if parameter.mean() == 1 else torch.nn.init.zeros_(parameter)
    return model.cuda().eval()


def _first(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measure() -> None:
    """Print the rows of a cell and of a forecast."""
    series = torch.randn(SERIES, CONTEXT, device="cuda").cumsum(1)
    x = torch.randn(SERIES, CONTEXT // 32, 4 * BLOCKS["embedding_dim"], device="cuda")
    cells: dict[str, Callable[[], Any]] = {}
    forecasts: dict[str, Callable[[], Any]] = {}
    for name in ("minrnn_gen", "tirex.cuda", "tirex.torch"):
        (by_kernels.install if name == "minrnn_gen" else by_kernels.uninstall)()
        try:
            model = _model("torch" if name == "tirex.torch" else "cuda")
            cell = model.blocks[0].slstm_layer.slstm_cell
            seconds = _first(partial(cell, x, None))
            print(f"{name}: first call of a cell {seconds:.1f} s", flush=True)
            # What a cell calls is bound at its first call, so later ones take no notice of install().
            model._forecast_quantiles(series, HORIZON)
            cells[name] = partial(cell, x, None)
            forecasts[name] = partial(model._forecast_quantiles, series, HORIZON, output_device="cuda")
        except Exception as error:  # of a library that is absent, or whose extension does not build
            print(f"{name}: {type(error).__name__}: {str(error)[-300:]}", file=sys.stderr)
    found = {name: run()[0].double() for name, run in cells.items()}
    apart = {name: float((y - found["minrnn_gen"]).norm() / found["minrnn_gen"].norm()) for name, y in found.items()}
    title = f"sLSTM cell {SERIES} x {CONTEXT // 32} x {BLOCKS['num_heads']} heads of 128"
    print(line_of(f"{title}, by events", milliseconds(cells)), f"; apart {apart}", flush=True)
    print(line_of("  by the host's clock", milliseconds(cells, on_host=True)), flush=True)
    print(line_of(f"forecast of {SERIES} series", milliseconds(forecasts, on_host=True)), flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        measure()
