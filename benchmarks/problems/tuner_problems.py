"""Problems by which the cost model is judged: some its constants were fitted to, the others held out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.raw_scan.filter_kernels import filter_spec

# The raw scan of `minrnn_gen.scan`, which is no built-in cell.
RAW_SCAN = {"name": "scan", "equations": "h[t] = W.a * h[t-1] + W.b", "gates": ["a", "b"]}
# As a filter is called, before its order.
FILTER = "filter of order "
PASSES: tuple[KernelPass, ...] = ("forward", "backward")


@dataclass(frozen=True)
class TunerProblem:
    """Spec of a swept problem; `is_fitted`: the constants of the cost model were fitted to times of its candidates.

    `state_size` is n of a cell with n values per channel. A filter of an order takes the place of a cell, its signals that of
    sequences.
    """

    model: str
    batch: int
    time: int
    hidden_size: int
    precision: str
    heads: int = 1
    layout: str = "BTD"
    state_size: int = 0
    is_fitted: bool = False
    passes: tuple[KernelPass, ...] = PASSES

    @property
    def label(self) -> str:
        """The problem as the first cell of a row."""
        parts = f" in {self.heads} heads" if self.heads > 1 else f" of {self.state_size}" if self.state_size else ""
        return f"{self.model} {self.batch} x {self.time} x {self.hidden_size}{parts} {self.precision} {self.layout}"

    @property
    def elements(self) -> int:
        """How many states the steps of all sequences have."""
        return self.batch * self.time * self.hidden_size * (self.state_size or 1)

    @property
    def spec(self) -> dict[str, Any]:
        """The spec of its kernels."""
        return {
            "model": self._cell,
            "hidden_size": self.hidden_size,
            "heads": self.heads,
            "precision": self.precision,
            "layout": self.layout,
            "batch": self.batch,
            "time": self.time,
            **({"state_size": self.state_size} if self.state_size else {}),
        }

    @property
    def is_filter(self) -> bool:
        """Whether its kernels are those of a filter."""
        return self.model.startswith(FILTER)

    @property
    def _cell(self) -> Any:
        if self.is_filter:
            return filter_spec("fp32", int(self.model.removeprefix(FILTER))).model
        return RAW_SCAN if self.model == "scan" else self.model


# Sizes, cells, precisions and layouts that FITTED does not have, between its sizes and beyond them.
HELD_OUT = (
    TunerProblem("ind_rnn", 8, 2048, 1024, "fp32"),
    TunerProblem("lstm", 1, 1024, 256, "bf16"),
    TunerProblem("min_gru", 8, 2048, 768, "fp32", layout="BDT"),
    TunerProblem("min_gru", 4, 2048, 2048, "bf16"),
    TunerProblem("lstm", 32, 512, 512, "bf16", heads=8),
    TunerProblem("scan", 3, 7001, 640, "fp32"),
    TunerProblem("gru", 8, 512, 512, "bf16"),
    TunerProblem("min_lstm", 2, 8192, 768, "fp32"),
    TunerProblem("elman", 16, 512, 1024, "bf16", heads=4),
    TunerProblem("slstm", 8, 512, 512, "bf16", heads=4),
    TunerProblem("hgrn", 8, 4096, 1024, "bf16"),
    TunerProblem("min_gru", 32, 256, 512, "fp32"),
    TunerProblem("gru", 64, 256, 256, "fp16", heads=2),
    TunerProblem("lstm", 16, 512, 384, "fp32", heads=6),
    TunerProblem("scan", 1, 32768, 1024, "bf16", layout="BDT"),
    TunerProblem("rg_lru", 4, 4096, 2560, "bf16"),
)
FITTED = (
    TunerProblem("lstm", 16, 1024, 768, "bf16", heads=12, is_fitted=True),
    TunerProblem("min_gru", 8, 4096, 1024, "bf16", is_fitted=True),
    TunerProblem("lstm", 16, 1024, 768, "bf16", heads=3, is_fitted=True),
    TunerProblem("min_gru", 1, 65536, 512, "fp32", is_fitted=True),
    TunerProblem("gru", 16, 1024, 256, "bf16", is_fitted=True),
    TunerProblem("min_gru", 64, 512, 1024, "fp32", is_fitted=True),
    TunerProblem("slstm", 16, 1024, 768, "bf16", heads=12, is_fitted=True),
    TunerProblem("scan", 8, 16384, 1536, "fp32", is_fitted=True),
    TunerProblem("lstm", 16, 1024, 768, "fp32", heads=12, is_fitted=True),
    TunerProblem("min_lstm", 1, 65536, 512, "bf16", is_fitted=True),
    TunerProblem("elman", 16, 1024, 768, "bf16", is_fitted=True),
    TunerProblem("min_gru", 16, 1024, 768, "bf16", layout="BDT", is_fitted=True),
)
PROBLEMS = HELD_OUT + FITTED
