"""What tests of the tuner share: a compiler that keeps every promise it is not told to break, and a cache of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from minrnn_gen import api, build
from minrnn_gen.build import Builder, Target
from minrnn_gen.compiler import CompiledSource, KernelResources
from minrnn_gen.gpu_profile import load_profile, profile_bytes
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.spec import load_spec
from minrnn_gen.store import Store
from minrnn_gen.tune import remembered, tuner

SPEC = {"model": "min_gru", "hidden_size": 64, "training": False}
BuilderOf = Callable[..., Builder]


class Compiler:
    """In place of NVRTC; counts, and breaks the promises of the candidates for which `breaks` is true."""

    def __init__(self) -> None:
        self.calls = 0
        self.breaks: Callable[[Mapping[str, int]], bool] = lambda _: False

    def __call__(self, text: str, plan: KernelPlan) -> CompiledSource:
        self.calls += 1
        spill_bytes = 4 if self.breaks(plan.variables) else 0
        kernel = KernelResources(plan.entry, plan.registers_per_thread, plan.shared_bytes, spill_bytes, 0)
        return CompiledSource(f"cubin of {len(text)} characters".encode(), (kernel,))


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    monkeypatch.setattr(build, "compile_source", made)
    for module in (build, tuner, remembered):
        monkeypatch.setattr(module, "toolchain_version", lambda: "nvrtc 13.4")
    return made


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("MINRNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MINRNN_DEBUG", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def builder_of(cache: Path) -> BuilderOf:
    """Builders that ask the memory, as those of `compile()` do."""

    def made(gpu: str = "h200", **spec: Any) -> Builder:
        target = Target(load_profile(gpu), profile_bytes(gpu), "spec")
        return Builder(load_spec(SPEC | spec), target, Store(cache), preferred=api._remembered)

    return made
