"""What is wrong with a kernel is found, within 20 seeds: each fault is planted into a text that is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from interpreted_cases import faulty, findings, kernel_of

from minrnn_gen.interpret.toolchain import has_compiler

pytestmark = pytest.mark.skipif(not has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none")

SEEDS = 20
SCAN = {"model": "min_gru", "hidden_size": 40, "training": False}
LSTM = {"model": "lstm", "hidden_size": 64, "precision": "bf16", "training": False, "wanted": {"cluster_blocks": 2}}
GRU = {"model": "gru", "hidden_size": 32, "precision": "fp32", "training": False}


def without(old: str, new: str = "", count: int = -1, after: str = "") -> Callable[[str], str]:
    def change(text: str) -> str:
        at = text.index(after)
        assert old in text[at:], old
        return text[:at] + text[at:].replace(old, new, count)

    return change


# (spec, batch, steps, what is planted, kind of the finding)
FAULTS: tuple[tuple[str, dict[str, Any], int, int, Callable[[str], str], str], ...] = (
    ("no barrier between warps", SCAN, 2, 300, without("__syncthreads();", after="tell_block(lane, composed, shared"), "race"),
    ("no wait for a copy", SCAN, 1, 100, without("wait_copy_groups<STAGES - 1>();"), "race"),
    ("lanes that do not wait for copies", SCAN, 1, 100, without("__syncwarp();", after="wait_copy_groups<STAGES - 1>();"), "race"),
    ("a row too many of y", SCAN, 2, 37, without("|| row < steps_left) && has_channel", "|| row <= steps_left) && has_channel"), ""),
    ("a mailbox that is told nothing", LSTM, 2, 4, without("t + 1 < steps) expect_bytes", "t + 1 < 2) expect_bytes"), "deadlock"),
    ("a word that is not told", LSTM, 2, 4, without("rank += RANK_STEP) send(", "rank += RANK_STEP) if (threadIdx.x != 8) send("), "deadlock"),
    ("no wait for the mail", LSTM, 2, 4, without("if (t > 0) wait_for_mail", "if (t > 9) wait_for_mail"), "race"),
    ("a barrier for some", SCAN, 2, 300, without("__syncthreads();", "if (warp) __syncthreads();", after="tell_block(lane, composed, shared"), "parted"),
    ("a shuffle for some", SCAN | {"wanted": {"channel_lanes": 8, "cluster_blocks": 1}}, 2, 300, without("const Affine earlier = shuffle_up", "if (lane > 30) continue; const Affine earlier = shuffle_up"), ""),
)  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "batch", "time", "change", "kind"), [one[1:] for one in FAULTS], ids=[one[0] for one in FAULTS]
)
def test_a_planted_fault_is_found(spec: dict[str, Any], batch: int, time: int, change: Callable[[str], str], kind: str) -> None:
    assert findings(kernel_of(**spec), 0, batch, time) == ()
    kernel = faulty(kernel_of(**spec), change)
    for seed in range(SEEDS):
        found = findings(kernel, seed, batch, time)
        if found:
            break
    print("\n", seed, *found, sep="\n")
    assert found and (not kind or kind in {one.kind for one in found})
    assert found[0].lines
