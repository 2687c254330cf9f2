"""Backward kernels keep what their plans promise, on architectures from the oldest to the newest."""

from __future__ import annotations

import pytest
from support.rendered_kernels import builder_of

from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.plan.kernel_plan import Specialization

pytestmark = pytest.mark.skipif(toolchain_version() is None, reason="NVRTC is not installed (the extras cuda13 and cuda12)")

# Every cell with a backward on a GPU, every precision, both lane arrangements, four architectures, narrow and wide copies.
CASES = (
    ("min_gru", "fp32", "BTD", "h200", 16),
    ("min_gru", "bf16", "BDT", "h100", 16),
    ("min_gru_log", "fp16", "TBD", "t4", 8),
    ("min_gru_tanh", "bf16", "BTD", "a100", 2),
    ("min_lstm", "bf16", "BTD", "rtx4090", 16),
    ("min_lstm", "fp32", "BDT", "t4", 4),
    ("min_lstm_log", "fp64", "BDT", "h200", 16),
    ("hgrn", "fp64", "TBD", "b200", 16),
    ("rg_lru", "fp16", "BDT", "rtx5090", 2),
    ("rg_lru", "fp32", "BTD", "h200", 16),
    ("ind_rnn", "fp32", "BTD", "h200", 16),
    ("ind_rnn", "bf16", "BDT", "t4", 16),
    ("entangled", "fp16", "BTD", "b200", 2),
    ("entangled", "bf16", "BDT", "h100", 4),
    ("veiled", "fp64", "TBD", "a100", 8),
    ("veiled", "bf16", "BTD", "h200", 8),
    ("rotating", "fp32", "BDT", "rtx5090", 16),
    ("rotating", "fp32", "BTD", "rtx3090", 4),
)


# Every day a fifth of them.
@pytest.mark.parametrize(
    ("model", "precision", "layout", "gpu", "alignment"),
    [pytest.param(*case, marks=pytest.mark.matrix_full if number % 5 else ()) for number, case in enumerate(CASES)],
)
def test_a_backward_keeps_its_promise(model: str, precision: str, layout: str, gpu: str, alignment: int) -> None:
    builder = builder_of(model, gpu, hidden_size=96, precision=precision, layout=layout)
    built = builder.build(builder.key_of("backward", Specialization(alignment)))
    assert built.resources is not None
    (kernel,) = built.resources
    assert kernel.name == built.plan.symbol and kernel.spill_bytes == 0
    assert kernel.registers <= built.plan.budget.registers_per_thread and kernel.shared_bytes == built.plan.budget.shared_bytes
