"""The short description of a kernel: names, one line each, a small table, the class and the limit."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import minrnn_gen
from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.build.overview import call_bytes, matrix_bytes, memory_warning, overview
from minrnn_gen.config.gpu_profile import load_profile
from minrnn_gen.kernel import Kernel

LINE_LIMIT = 400


def kernel_of(**spec: Any) -> Kernel:
    return minrnn_gen.compile({"hidden_size": 64, "gpu": "h200", **spec})


class _Rows(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: dict[str, str] = {}
        self.label, self.inside = "", ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("table", "tr", "th", "td") and not [name for name, _ in attrs if name != "style"]
        self.inside = tag

    def handle_data(self, data: str) -> None:
        if self.inside == "th":
            self.label = data
        else:
            self.rows[self.label] = data


def test_completion_shows_all_that_is_offered_without_importing_it() -> None:
    with pytest.raises(AttributeError) as raised:
        minrnn_gen.compil  # noqa: B018
    assert raised.value.name == "compil" and raised.value.obj is minrnn_gen  # Python's suggestion is made of these
    program = "import sys, minrnn_gen; print(*dir(minrnn_gen)); sys.exit('minrnn_gen.kernel' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert {*minrnn_gen.__all__, "torch", "compat", "__version__"} <= {*shown}
    assert not [name for name in shown if name.startswith("_") and not name.startswith("__")]


@pytest.mark.parametrize("model", ["min_gru", "ind_rnn", "lstm"])
def test_objects_are_one_line_and_a_small_table(model: str) -> None:
    kernel = kernel_of(model=model)
    assert len(repr(kernel.builder)) < 1000
    for shown in (kernel, kernel.plan, *kernel.built):
        assert len(repr(shown)) <= LINE_LIMIT and "\n" not in repr(shown)
        assert model in repr(shown)
        rows = _Rows(shown._repr_html_()).rows
        assert {"kernel", "gpu", "chosen", "block", "predicted", "limit"} <= {*rows}
        assert shown is kernel.plan or rows["class"]


def test_what_a_user_names_is_text_in_a_table() -> None:
    profile = load_profile("h200")
    built = kernel_of(model={"name": "own", "equations": "h[t] = where(W.a < 0, 1, W.b) * h[t-1] + W.a"}).built[0]
    assert "<" in built.cell.proof
    assert _Rows(built._repr_html_()).rows["proof"] == dict(overview(built.plan, built.cell, profile.memory_bytes))["proof"]


@pytest.mark.parametrize(
    ("model", "said"),
    (("min_gru", "scan: steps are composed in parallel"), ("ind_rnn", "step by step"), ("lstm", "step by step")),
)
def test_the_class_and_its_proof_are_said_from_the_cache_too(model: str, said: str) -> None:
    for _ in range(2):
        built = kernel_of(model=model).built[0]
        rows = dict(overview(built.plan, built.cell))
        assert said in rows["class"] and rows["proof"] == built.cell.proof.rstrip(".")
        assert f"class      {rows['class']}" in kernel_of(model=model).explain()
    assert built.cached or toolchain_version() is None  # what was not compiled is not kept


def test_the_limit_is_the_longest_term() -> None:
    (built,) = kernel_of(model="lstm").built
    name = max(built.plan.prediction.predicted_us, key=lambda term: built.plan.prediction.predicted_us[term])
    assert f"(term {name})" in dict(overview(built.plan, built.cell))["limit"]


def test_arrays_beyond_the_memory_of_the_gpu_are_warned_of() -> None:
    """R of one head of 100,000 units in fp32: 4 gates, 160 GB."""
    profile = load_profile("h200")
    built = kernel_of(model="lstm", hidden_size=100_000, training=False).built[0]
    assert matrix_bytes(built.plan, built.cell) == 160_000_000_000
    assert "R alone takes 149.0 GiB" in memory_warning(built.plan, built.cell, profile.memory_bytes)
    assert "R alone takes" in kernel_of(model="lstm", hidden_size=100_000, training=False).explain()
    small = kernel_of(model="lstm").built[0]
    assert call_bytes(small.plan, small.cell) < profile.memory_bytes and not memory_warning(
        small.plan, small.cell, profile.memory_bytes
    )
    assert "calls of these sizes fail" in memory_warning(small.plan, small.cell, call_bytes(small.plan, small.cell) - 1)


def test_without_torch_the_import_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "try:\n    import minrnn_gen.torch\n"
        "except ImportError as missing:\n    print(type(missing).__name__, missing)\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert answer.stdout.startswith("TorchMissing ") and "pip install torch" in answer.stdout
    assert "download.pytorch.org/whl/cpu" in answer.stdout
