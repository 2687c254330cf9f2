"""The kernels of an export are compiled at once, those of dense cells too, of which only compiling says which serve."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from support.everyday import one_in
from support.exported_launches import not_compiled
from support.patience import within

import minrnn_gen
from minrnn_gen.build.nvrtc import CompiledSource, toolchain_version


class Company:
    """A compiler whose first call waits until another is at work too."""

    def __init__(self) -> None:
        self._met, self._running = threading.Event(), 0
        self._lock = threading.Lock()
        self.compiled, self.alone = list[str](), False

    def __call__(self, text: str, plan: Any) -> CompiledSource:
        with self._lock:
            self._running += 1
            self.compiled.append(text)
            if self._running > 1:
                self._met.set()
        # However late a loaded machine plans the next kernel; one that compiles in turn never sets it.
        self.alone |= not self._met.wait(within(10) if not self.alone else 0)
        with self._lock:
            self._running -= 1
        return not_compiled(text, plan)


@pytest.mark.skipif(toolchain_version() is None, reason="no NVRTC")
@pytest.mark.parametrize(
    "spec",
    one_in(
        2,
        [
            {"model": "lstm", "hidden_size": 64, "heads": 2, "precision": "bf16"},
            {"model": "min_gru", "hidden_size": 64, "precision": "fp32", "training": False},
        ],
    ),
    ids=["dense", "scan"],
)
def test_kernels_of_an_export_are_compiled_at_once(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINRNN_CACHE_DIR", str(tmp_path / "cache"))
    kernel, company, seen = minrnn_gen.compile(spec, gpu="h100"), Company(), list[tuple[int, int]]()
    for module in ("build.builder", "export.cuda"):
        monkeypatch.setattr(f"minrnn_gen.{module}.compile_source", company)
    kernel.export(tmp_path, target="cuda", sizes=[(4, 16), (64, 256)], watch=lambda done, of: seen.append((done, of)))
    bodies = {re.sub(r"\A(//[^\n]*\n|\n)*", "", text) for text in company.compiled}
    assert len(company.compiled) == len(bodies) > 4
    assert not company.alone
    assert seen and seen == [(done, len(seen)) for done in range(1, len(seen) + 1)]
