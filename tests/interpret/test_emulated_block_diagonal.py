"""Block-diagonal products next to products over all heads in the kernels themselves, thread by thread."""

from __future__ import annotations

from typing import Any

import pytest
from support.projected_cells import NORMS_BY_HEAD

from minrnn_gen.build.builder import builder_of
from minrnn_gen.build.embedded import builder_of_kernels
from minrnn_gen.build.target import Target
from minrnn_gen.config.spec import load_spec
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.interpret.verify import Verification

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

# Blocks of R of one block of a cluster, of several, and of a part of one; in 32 bits, where all of a matrix is multiplied.
WAYS: list[dict[str, Any]] = [
    {"hidden_size": 64, "heads": 4},
    {"hidden_size": 128, "heads": 2},
    {"hidden_size": 64, "heads": 2, "projection_size": 32},
    {"hidden_size": 96, "heads": 3, "precision": "fp16", "layout": "TBD"},
    {"hidden_size": 128, "heads": 8},
    {"hidden_size": 64, "heads": 4, "precision": "fp32"},
    # Norms over a head: heads of a block, blocks of a head, one block, P units of each head, and what no blocks have whole.
    {"model": NORMS_BY_HEAD, "hidden_size": 64, "heads": 4},
    {"model": NORMS_BY_HEAD, "hidden_size": 256, "heads": 2, "precision": "fp16"},
    {"model": NORMS_BY_HEAD, "hidden_size": 24, "heads": 2, "projection_size": 12, "precision": "fp64"},
    {"model": NORMS_BY_HEAD, "hidden_size": 54, "heads": 2, "precision": "fp32"},
]


@pytest.mark.matrix_full
@pytest.mark.parametrize("options", WAYS)
def test_kernels_with_block_diagonal_products_are_right(options: dict[str, Any]) -> None:
    keys = {"model": "block_gru", "batch": 3, "time": 5, "precision": "bf16", "projection_size": options["hidden_size"]}
    target = Target.named("h100")
    spec = builder_of_kernels(builder_of(load_spec(keys | options), target)).spec
    verdicts = list(Verification(spec, target, candidates=4).run())
    assert verdicts and [verdict for verdict in verdicts if not verdict.is_right] == []
