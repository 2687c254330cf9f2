"""Faults planted into the text of a correct kernel are found, within 20 seeds."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.emulated_calls import arguments_of, faulty, findings, kernel_of

from minrnn_gen.interpret.toolchain import has_compiler

pytestmark = pytest.mark.skipif(not has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none")

SEEDS = 20
SCAN = {"model": "min_gru", "hidden_size": 40, "training": False}
LSTM = {"model": "lstm", "hidden_size": 64, "precision": "bf16", "training": False, "wanted": {"cluster_blocks": 2}}


def without(old: str, new: str = "", count: int = -1, after: str = "") -> Callable[[str], str]:
    def change(text: str) -> str:
        at = text.index(after)
        assert old in text[at:], old
        return text[:at] + text[at:].replace(old, new, count)

    return change


PUBLISHED = "publish_aggregate(lane, prefix, shared"
CHANNEL_LANES = SCAN | {"wanted": {"channel_lanes": 8, "cluster_blocks": 1}}
LOOKBACK = {"channel_lanes": 16, "time_warps": 2, "lookback": 1}
LONG = SCAN | {"batch": 1, "time": 65536, "wanted": LOOKBACK}
GRID = {"model": "lstm", "hidden_size": 40, "precision": "bf16", "gpu": "a100", "training": False, "wanted": {"grid_blocks": 2}}
LARGE = {"row_tiles": 1, "split_k_warpgroups": 1, "column_groups": 1, "batch_tile": 8}
WARPGROUPS = {"model": "elman", "hidden_size": 128, "precision": "bf16", "training": False, "wanted": LARGE}
# A long time without any write.
SLOWLY = "const volatile unsigned* slow = shared.tile_number; for (int n = 0; n < 40000; ++n) (void)slow[n % 2]; "
PUBLISH = "if (segment == 0 && place + 1 < GROUP_TILES && !is_last) publish("
OPENED = "mbarrier_init(&shared.mbarrier[1]);"
BARRIERS = "}\n    __syncthreads();\n    cluster_sync();"
SHUFFLE = "const Affine earlier = shuffle_up"
# Planted faults: (spec, batch, steps, the change, the kind of finding).
FAULTS: dict[str, tuple[dict[str, Any], int, int, Callable[[str], str], str]] = {
    "no barrier between warps": (SCAN, 2, 300, without("__syncthreads();", after=PUBLISHED), "race"),
    "no wait for a copy": (SCAN, 1, 100, without("wait_copy_groups<STAGES - 1>();"), "race"),
    "lanes that do not wait for copies": (
        SCAN,
        1,
        100,
        without("__syncwarp();", after="wait_copy_groups<STAGES - 1>();"),
        "race",
    ),
    "a row too many": (SCAN, 2, 37, without("|| row < steps_left) && has", "|| row <= steps_left) && has"), "out of bounds"),
    "no expect_tx": (
        LSTM,
        2,
        4,
        without("is_wanted) mbarrier_arrive", "is_wanted && step < 1) mbarrier_arrive"),
        "deadlock",
    ),
    "an operand word that is not sent": (
        LSTM,
        2,
        4,
        without("RANK_STEP) st_async(", "RANK_STEP) if (threadIdx.x != 8) st_async("),
        "deadlock",
    ),
    "an aggregate that is not published": (LONG, 1, 300, without("&& !is_last) publish(", "&& tile > 0) publish("), "deadlock"),
    "an operand word that is not published": (
        GRID,
        2,
        4,
        without(") publish(exchange", " && threadIdx.x != 8) publish(exchange"),
        "deadlock",
    ),
    "mbarriers that may be uninitialized": (LSTM, 2, 4, without("cluster_sync();", count=1, after=OPENED), "race"),
    "an mbarrier initialized too late": (
        LSTM,
        2,
        4,
        without(f"{OPENED}\n    {BARRIERS}", f"{BARRIERS} if (threadIdx.x == 0) {OPENED}"),
        "race",
    ),
    "no wait on the mbarrier": (
        LSTM,
        2,
        4,
        without("mbarrier_wait(&shared.mbarrier[t % 2]", "if (t > 9) mbarrier_wait(&shared.mbarrier[t % 2]"),
        "race",
    ),
    "a barrier for some": (
        SCAN,
        2,
        300,
        without("__syncthreads();", "if (warp) __syncthreads();", after=PUBLISHED),
        "divergence",
    ),
    "no wait for a chunk": (WARPGROUPS, 2, 4, without("mbarrier_wait(&shared.full[column_group][slot], round);"), "race"),
    "no fence behind the flags of a chunk": (
        WARPGROUPS,
        2,
        4,
        without("fence_async_proxy();", count=1, after="void order_copies() {"),
        "proxy",
    ),
    "lanes that do not wait for the flags of a chunk": (
        WARPGROUPS,
        2,
        4,
        without("__syncwarp();", count=1, after="void order_copies() {"),
        "race",
    ),
    "a chunk that is not announced": (
        WARPGROUPS,
        2,
        4,
        without("if (t + 1 < steps && thread == 0)", "if (t + 2 < steps && thread == 0)"),
        "deadlock",
    ),
    "an arrival too many for a slot": (
        WARPGROUPS,
        2,
        6,
        without("], ROW_TILES * WARPGROUP_WARPS);", "], ROW_TILES * WARPGROUP_WARPS + 1);"),
        "deadlock",
    ),
    "no fence before a product": (
        WARPGROUPS,
        2,
        4,
        without("fence_multiplications();", after="struct WarpgroupMatrix"),
        "registers",
    ),
    "a shuffle for some": (CHANNEL_LANES, 2, 300, without(SHUFFLE, "if (lane > 30) continue; " + SHUFFLE), ""),
}


# Every day the first fault of each kind of finding.
EVERY_DAY = {fault[-1]: name for name, fault in reversed(FAULTS.items())}.values()


@functools.cache
def findings_as_it_stands(spec: str, batch: int, time: int) -> tuple[Any, ...]:
    """Return what is found in a call of a kernel of a spec, JSON, whose faults are planted by several tests."""
    return findings(kernel_of(**json.loads(spec)), 0, batch, time)


@pytest.mark.parametrize(
    ("spec", "batch", "time", "change", "kind"),
    [
        pytest.param(*fault, id=name, marks=() if name in EVERY_DAY else pytest.mark.matrix_full)
        for name, fault in FAULTS.items()
    ],
)
def test_a_planted_fault_is_found(spec: dict[str, Any], batch: int, time: int, change: Callable[[str], str], kind: str) -> None:
    assert findings_as_it_stands(json.dumps(spec), batch, time) == ()
    kernel = faulty(kernel_of(**spec), change)
    reported = next(filter(None, (findings(kernel, seed, batch, time) for seed in range(SEEDS))), ())
    assert reported and (not kind or kind in {finding.kind for finding in reported})
    assert all(finding.lines for finding in reported), reported


@pytest.mark.matrix_full
def test_a_long_wait_is_no_deadlock() -> None:
    kernel = faulty(kernel_of(**LONG), without(PUBLISH, SLOWLY + PUBLISH))
    assert [findings(kernel, seed, 1, 300) for seed in range(3)] == [()] * 3


def test_uninitialized_registers_show_in_the_result() -> None:
    kernel = faulty(kernel_of(**LONG), without("Affine all = Affine::identity();", "Affine all;"))
    y, _ = kernel(**arguments_of(kernel, 1, 300))
    assert not np.isfinite(y).all()
