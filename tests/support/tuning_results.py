"""Settings and results that a test may change in whatever it is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.tune.results import Result, Setting

SETTING = Setting(
    gpu="h200",
    arch="sm_90",
    sm_count=132,
    device="NVIDIA H200",
    driver="580.1",
    toolchain="nvrtc 13.4",
    sources="0" * 64,
    cell="min_gru",
    cell_digest="1" * 64,
    kernel_pass="forward",
    precision="bf16",
    functions="fast",
    layout="BTD",
    matrix_product="",
    specialization=Specialization(16),
    hidden_size=512,
    heads=1,
    batch=8,
    time=2048,
)


def measured(us: float, candidate: int = 0, setting: Setting = SETTING, **changes: Any) -> Result:
    result = Result(setting, "scan_forward_channels", {"tile": candidate}, "measured", (us,), predicted_us=1.0)
    return replace(result, **changes)


_WORD = st.from_regex(r"[A-Za-z0-9_.+-]{1,12}", fullmatch=True)
_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40)
_TIME = st.floats(1e-3, 1e9)
SETTINGS = st.builds(
    replace,
    st.just(SETTING),
    gpu=st.sampled_from(["h200", "t4", "l4"]),
    device=_TEXT,
    cell=_WORD,
    specialization=st.builds(
        Specialization, st.sampled_from([2, 16]), st.booleans(), st.booleans(), st.sampled_from(["none", "storage"])
    ),
    hidden_size=st.integers(1, 2**20),
    batch=st.integers(1, 2**40),
)
_WHAT = st.one_of(
    st.tuples(st.just("measured"), st.lists(_TIME, min_size=1, max_size=4).map(tuple)),
    st.tuples(st.sampled_from(["wrong", "broken", "refused", "failed", "hung"]), st.just(())),
)
RESULTS = st.builds(
    lambda setting, family, variables, what, note: Result(setting, family, variables, *what, note=note),
    SETTINGS,
    _WORD,
    st.dictionaries(_WORD, st.integers(-(2**31), 2**31), min_size=1, max_size=4),
    _WHAT,
    _TEXT,
)
