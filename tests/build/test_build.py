"""From candidates to a kernel: broken promises fall to the next, what was built is found again, what was edited is not."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.everyday import one_in
from support.patience import within

import minrnn_gen
from minrnn_gen.build import builder as build
from minrnn_gen.build import store
from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.explain import explain
from minrnn_gen.build.nvrtc import CompiledSource, KernelResources, toolchain_version
from minrnn_gen.build.promises import ATTEMPTS
from minrnn_gen.build.store import Store
from minrnn_gen.build.target import Target
from minrnn_gen.config.gpu_profile import load_profile, profile_bytes
from minrnn_gen.config.package_files import package_folder
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import CompileFailed, PromiseBroken, ToolchainMissing
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import Problem, Sizes
from minrnn_gen.plan.solver import ATTEMPTS_AT_ONCE

needs_nvrtc = pytest.mark.skipif(toolchain_version() is None, reason="NVRTC is not installed (the extras cuda13 and cuda12)")
REGIME = Specialization(16)
SPEC = {"model": "min_gru", "hidden_size": 64}


class Compiler:
    """In place of NVRTC: keeps every promise but those of the candidates that are `spilling`, and counts."""

    def __init__(self) -> None:
        self.spilling: Sequence[Mapping[str, int]] = ()
        self.calls = 0

    def __call__(self, text: str, plan: KernelPlan) -> CompiledSource:
        self.calls += 1
        spill_bytes = 400 * (self.spilling.index(plan.variables) + 1) if plan.variables in self.spilling else 0
        kernel = KernelResources(plan.entry, plan.budget.registers_per_thread, plan.budget.shared_bytes, spill_bytes, 0)
        return CompiledSource(f"cubin of {len(text)} characters".encode(), (kernel,))


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    monkeypatch.setattr(build, "compile_source", made)
    return made


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("MINRNN_CACHE_DIR", str(folder))
    return folder


def builder_of(folder: Path, gpu: str = "h200", **spec: Any) -> Builder:
    return Builder(load_spec(SPEC | spec), Target(load_profile(gpu), profile_bytes(gpu), "spec"), Store(folder))


def test_the_first_candidate_that_keeps_its_promise_is_taken(compiler: Compiler, cache: Path) -> None:
    builder = builder_of(cache)
    solution = builder.solve(builder.key_of("forward", REGIME))
    first, *rest = solution.attempts(ATTEMPTS)
    assert len(first) == 1 and all(len(ranks) == ATTEMPTS_AT_ONCE for ranks in rest[:2])
    *broken, kept = (solution.candidates[rank] for rank in (*first, *rest[0], rest[1][0]))
    compiler.spilling = broken
    built = builder.build(builder.key_of("forward", REGIME))
    # What is tried at once with the one that is taken is compiled, no more.
    assert built.plan.variables == kept and compiler.calls == len(broken) + ATTEMPTS_AT_ONCE
    assert built.dropped == tuple(
        f"{dict(candidate)}: scan_forward spills {400 * number} bytes" for number, candidate in enumerate(broken, start=1)
    )
    # Nor is it forgotten: the next to ask is told the same, and compiles nothing.
    again = builder_of(cache).build(builder_of(cache).key_of("forward", REGIME))
    assert compiler.calls == len(broken) + ATTEMPTS_AT_ONCE
    assert (again.cached, again.dropped, again.plan) == (True, built.dropped, built.plan)
    assert all(dropped in explain(again) for dropped in built.dropped)


def test_debug_builds_and_others_do_not_mix(compiler: Compiler, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the request nor the content of one is that of the other, and each is found again."""
    found = []
    for asked in ("0", "1", "0", "1"):
        monkeypatch.setenv("MINRNN_DEBUG", asked)
        found.append(builder_of(cache).build(builder_of(cache).key_of("forward", REGIME)))
    release, debug, *again = found
    assert compiler.calls == 2 and [one.cached for one in found] == [False, False, True, True]
    assert release.digest != debug.digest and [one.plan for one in again] == [release.plan, debug.plan]
    assert [one.plan.waits_are_bounded for one in found] == [False, True, False, True]
    for one in found:
        is_debug = one.plan.waits_are_bounded
        assert ("debug" in explain(one)) == ("debug build" in one.source) == is_debug


def test_a_backward_says_what_it_reads_and_what_it_computes_again(compiler: Compiler, cache: Path) -> None:
    """As it is built, and as it comes from the cache."""
    for builds in range(2):
        built = builder_of(cache).build(builder_of(cache).key_of("backward", REGIME))
        assert (built.cached, compiler.calls) == (bool(builds), 1)
        assert built.cell.saved_values == built.plan.problem.saved_values == ("y",)
        assert "  saved      y\n  recomputed z\n" in explain(built)
    forward = builder_of(cache).build(builder_of(cache).key_of("forward", REGIME))
    assert "recomputed" not in explain(forward)


def paths_within(value: object) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key of a JSON mapping that is a dataclass's: of other mappings any key may be absent."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (key,)
            if key in ("plan", "cell", "problem", "launch", "budget", "prediction", "specialization"):
                yield from ((key, *path) for path in paths_within(inner))


@pytest.mark.usefixtures("compiler")
def test_a_sealed_request_that_lacks_a_key_is_damaged(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    builder = builder_of(cache)
    built = builder.build(builder.key_of("forward", REGIME))
    key = builder.request_key(builder.key_of("forward", REGIME))
    request = builder.store.find_request(key)
    assert request is not None
    paths = [path for path in paths_within(request) if path != ("chosen",)]
    assert {("content",), ("cell", "gates"), ("plan", "problem", "specialization", "resets")} <= set(paths)
    for path in paths:
        damaged = json.loads(json.dumps(request))
        part = damaged
        for name in path[:-1]:
            part = part[name]
        del part[path[-1]]
        builder.store.put_request(key, damaged)
        caplog.clear()
        again = builder.find(builder.key_of("forward", REGIME))
        # What has a default reads as it was.
        assert again is None or again.plan == built.plan, path
        assert [record.getMessage().count("damaged") for record in caplog.records] == [1] * (again is None), path
        assert (builder.store.find_request(key) is None) == (again is None), path


@pytest.mark.usefixtures("compiler")
def test_a_request_that_leads_to_another_kernel_is_damaged(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    builder, other = builder_of(cache), Specialization(16, resets=True)
    for specialization in (REGIME, other):
        builder.build(builder.key_of("forward", specialization))
    keys = [builder.request_key(builder.key_of("forward", specialization)) for specialization in (REGIME, other)]
    own, of_other = (builder.store.find_request(key) for key in keys)
    assert own is not None and of_other is not None
    for damaged in (of_other, {**own, "content": 3}, {**own, "content": "no key"}, {**own, "content": None}):
        builder.store.put_request(keys[0], damaged)
        assert builder.find(builder.key_of("forward", REGIME)) is None
    assert ["damaged" in record.getMessage() for record in caplog.records] == [True] * 4
    assert builder.build(builder.key_of("forward", REGIME)).plan.problem.specialization == REGIME


@pytest.mark.usefixtures("compiler")
def test_the_text_of_another_key_is_damaged(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A cubin belongs to its text, and that to its key: sealed as a whole under another key it is not run."""
    builder = builder_of(cache)
    built = builder.build(builder.key_of("forward", REGIME))
    entry = builder.store.find(built.digest)
    assert entry is not None
    builder.store.clear()
    text = entry.files[f"{built.plan.entry}.cu"] + b"// another\n"
    builder.store.put(built.digest, {**entry.files, f"{built.plan.entry}.cu": text}, entry.manifest)
    request = {"content": built.digest, "plan": built.plan.to_json(), "cell": asdict(built.cell), "dropped": []}
    builder.store.put_request(builder.request_key(builder.key_of("forward", REGIME)), request)
    assert builder.find(builder.key_of("forward", REGIME)) is None
    assert ["damaged" in record.getMessage() for record in caplog.records] == [True]
    again = builder.build(builder.key_of("forward", REGIME))
    assert (again.source, again.digest) == (built.source, built.digest)
    assert builder.find(builder.key_of("forward", REGIME)) is not None


def test_when_every_candidate_breaks_its_promise_the_error_says_how(compiler: Compiler, cache: Path) -> None:
    builder = builder_of(cache)
    solutions = tuple(builder.solutions(builder.key_of("forward", REGIME)))
    compiler.spilling = [candidate for solution in solutions for candidate in solution.candidates]
    with pytest.raises(CompileFailed) as caught:
        builder.build(builder.key_of("forward", REGIME))
    message = str(caught.value)
    assert compiler.calls == len(solutions) * ATTEMPTS
    assert "forward" in message and "scan_forward spills 400 bytes" in message and str(compiler.calls) in message
    assert message.isprintable() and len(message) < 400
    assert not list(Store(cache).entries())


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"registers": 256}, "scan_forward uses 256 registers of"),
        ({"shared_bytes": 1}, "scan_forward takes 1 bytes of shared memory"),
        ({"spill_bytes": 16}, "scan_forward spills 16 bytes"),
    ],
)
def test_one_candidate_can_be_asked_for(
    changes: dict[str, int], phrase: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its rank, without the cache and without falling to the next."""

    def compile_source(_: str, plan: KernelPlan) -> CompiledSource:
        taken = {
            "registers": plan.budget.registers_per_thread,
            "shared_bytes": plan.budget.shared_bytes,
            "spill_bytes": 0,
            "stack_bytes": 0,
        }
        return CompiledSource(b"cubin", (KernelResources(plan.entry, **(taken | changes)),))

    builder = builder_of(cache)
    solution = builder.solve(builder.key_of("forward", REGIME))
    monkeypatch.setattr(build, "compile_source", Compiler())
    assert builder.build_candidate(solution, 2).plan.variables == solution.candidates[2]
    monkeypatch.setattr(build, "compile_source", compile_source)
    with pytest.raises(PromiseBroken, match=phrase):
        builder_of(cache).build_candidate(solution, 2)  # which has compiled nothing
    assert not cache.exists()


def test_without_nvrtc_a_kernel_serves_the_host(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise ToolchainMissing("no NVRTC here")

    monkeypatch.setattr(build, "compile_source", missing)
    kernel = minrnn_gen.compile(SPEC, gpu="h200")
    assert kernel.resources is None
    assert all(built.cubin is None and built.folder is None and not built.cached for built in kernel.built)
    assert "__global__" in kernel.source and kernel.plan.problem.hidden_size == 64
    assert "not compiled: NVRTC is not installed" in kernel.explain()
    y, _ = kernel(np.zeros((2, 3, 2, 64), np.float32))
    assert y.shape == (2, 3, 64)
    # Nothing half done is left for the day NVRTC is installed.
    assert not list(Store(cache).entries())


def test_what_nvrtc_refuses_is_not_tried_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that does not compile is a mistake in a template, and the next candidate would have it too."""
    calls = []

    def refuse(_: str, plan: KernelPlan) -> CompiledSource:
        calls.append(plan)
        raise CompileFailed("NVRTC refused the source of scan_forward for sm_90: scan_forward.cu(7): error: expected a ;")

    monkeypatch.setattr(build, "compile_source", refuse)
    with pytest.raises(CompileFailed, match=r"scan_forward\.cu\(7\)"):
        builder_of(cache).build(builder_of(cache).key_of("forward", REGIME))
    assert len(calls) == 1


def same(first: BuiltKernel, second: BuiltKernel) -> bool:
    parts = ("plan", "cell", "source", "digest", "cubin", "resources", "dropped", "folder")
    return all(getattr(first, part) == getattr(second, part) for part in parts)


@pytest.mark.parametrize("model", ["min_gru", "qrnn", "rg_lru"])
@pytest.mark.parametrize("kernel_pass", ["forward", "step"])
def test_what_was_built_is_found_as_it_was(compiler: Compiler, cache: Path, model: str, kernel_pass: Any) -> None:
    first = builder_of(cache, model=model).build(builder_of(cache, model=model).key_of(kernel_pass, REGIME))
    second = builder_of(cache, model=model).build(builder_of(cache, model=model).key_of(kernel_pass, REGIME))
    assert (first.cached, second.cached, compiler.calls) == (False, True, 1)
    assert same(first, second)
    assert first.folder is not None
    assert (first.folder / f"{first.plan.entry}.cu").read_text() == first.source
    assert (first.folder / f"{first.plan.entry}.cubin").read_bytes() == first.cubin


CHANGES: dict[str, dict[str, Any]] = {
    "hidden_size": {"hidden_size": 65},
    "precision": {"precision": "bf16"},
    "layout": {"layout": "TBD"},
    "batch": {"batch": 9},
    "time": {"time": 9},
    "model": {"model": "min_gru_tanh"},
    "gpu": {"gpu": "h100"},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_spec_is_another_kernel(compiler: Compiler, cache: Path, change: dict[str, Any]) -> None:
    base = {"gpu": "h200"}

    def built(**spec: Any) -> BuiltKernel:
        builder = builder_of(cache, **spec)
        return builder.build(builder.key_of("forward", REGIME))

    built(**base)
    assert not built(**(base | change)).cached
    assert built(**base).cached
    assert compiler.calls == 2


def test_other_passes_and_specializations_are_other_kernels(compiler: Compiler, cache: Path) -> None:
    builder = builder_of(cache)
    passes = [("forward", Specialization(16)), ("forward", Specialization(4)), ("step", Specialization(16))]
    keys = [builder.key_of(kernel_pass, specialization) for kernel_pass, specialization in passes]
    assert [builder.build(key).cached for key in keys] == [False] * 3
    assert [builder.build(key).cached for key in keys] == [True] * 3
    assert compiler.calls == 3


@pytest.mark.usefixtures("compiler", "cache")
@pytest.mark.parametrize("edit", one_in(2, ["template", "profile", "cell", "toolchain"]))
def test_an_edited_file_is_noticed(tmp_path: Path, edit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of the profile, a comment in the cell file, a byte of a template, another NVRTC."""
    profile, cell = tmp_path / "mine.yaml", tmp_path / "cell.yaml"
    profile.write_bytes(profile_bytes("h200"))
    cell.write_text("name: mine\nequations: |\n  h[t] = W.a * h[t-1] + W.b\n")

    def built() -> BuiltKernel:
        return minrnn_gen.compile({"model": str(cell), "hidden_size": 64, "gpu": str(profile)}).built[0]

    assert not built().cached
    assert built().cached
    if edit == "profile":
        profile.write_text(profile.read_text().replace("sm_count: 132", "sm_count: 131"))
    elif edit == "cell":
        cell.write_text(cell.read_text() + "# another version\n")
    elif edit == "template":
        folder = tmp_path / "templates"
        subprocess.run(["cp", "-r", str(package_folder("templates")), str(folder)], check=True)
        with open(folder / "parts" / "types.cuh.j2", "a") as file:
            file.write("// one more line\n")
        monkeypatch.setattr(store, "package_folder", lambda name: tmp_path / name)
    else:
        monkeypatch.setattr(build, "toolchain_version", lambda: "nvidia-cuda-nvrtc 99.0, cupy-cuda13x 99.0")
    assert not built().cached


def refuse_to_write(*_: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def test_a_read_only_cache_is_read(
    compiler: Compiler, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = builder_of(cache).build(builder_of(cache).key_of("forward", REGIME))
    monkeypatch.setattr(Store, "_make_folder", refuse_to_write)
    assert same(builder_of(cache).build(builder_of(cache).key_of("forward", REGIME)), first)
    assert not caplog.records
    # What is not in it is built all the same, every time.
    for _ in range(2):
        other = builder_of(cache, hidden_size=65).build(builder_of(cache, hidden_size=65).key_of("forward", REGIME))
        assert (other.cached, other.folder) == (False, None) and other.cubin
    assert "Read-only" in caplog.text
    assert compiler.calls == 3


@pytest.mark.usefixtures("compiler")
def test_a_cache_that_cannot_be_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    built = builder_of(tmp_path / "file" / "cache").build(builder_of(tmp_path / "file" / "cache").key_of("forward", REGIME))
    assert built.cubin and built.folder is None and not built.cached


def run_python(program: str, cache: Path, *, background: bool = False) -> Any:
    environment = os.environ | {
        "MINRNN_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process if background else answer_of(process)


def answer_of(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=within(60))
    assert process.returncode == 0, err
    return json.loads(out)


COMPILE = """
import json, sys
import minrnn_gen
# The last is the parser of cells.
HEAVY = {"sympy", "cupy", "constraint", "jinja2", "numpy", "torch", "typer", "rich", "minrnn_gen.cell.reading"}
kernel = minrnn_gen.compile({"model": "qrnn", "hidden_size": 96, "precision": "bf16"}, gpu="a100")
print(json.dumps({
    "cached": [built.cached for built in kernel.built],
    "digests": [built.digest for built in kernel.built],
    "registers": [one.registers for one in kernel.resources],
    "imported": sorted(HEAVY & set(sys.modules)),
}))
"""


@needs_nvrtc
def test_a_warm_compile_imports_nothing_heavy(cache: Path) -> None:
    cold, warm = run_python(COMPILE, cache), run_python(COMPILE, cache)
    assert cold["cached"] == [False, False] and warm["cached"] == [True, True]
    assert "cupy" in cold["imported"] and not {"sympy", "torch"} & set(cold["imported"])
    assert warm["imported"] == []
    assert warm["digests"] == cold["digests"] and warm["registers"] == cold["registers"]


HOST_ONLY = """
import json, sys
sys.modules |= {"cupy": None, "cupy_backends": None, "torch": None}
import numpy
import minrnn_gen
kernel = minrnn_gen.compile({"model": "rg_lru", "hidden_size": 8, "precision": "bf16"})
import ml_dtypes
x, decay = numpy.ones((2, 3, 3, 8), ml_dtypes.bfloat16), numpy.ones(8, numpy.float32)
y, state = kernel(x, parameters={"decay": decay})
y_t, _ = kernel.step(x[:, 0], parameters={"decay": decay}, state=state)
print(json.dumps([y.shape, y_t.shape, str(y.dtype), str(state["h"].dtype), kernel.resources]))
"""


def test_the_host_needs_neither_cupy_nor_torch(cache: Path) -> None:
    assert run_python(HOST_ONLY, cache) == [[2, 3, 8], [2, 8], "bfloat16", "float32", None]


@pytest.mark.matrix_full
@needs_nvrtc
def test_many_processes_compile_one_kernel(cache: Path) -> None:
    """At once, into one cache: all get the same, and it is there once."""
    processes = [run_python(COMPILE, cache, background=True) for _ in range(4)]
    answers = [answer_of(process) for process in processes]
    assert len({tuple(answer["digests"]) for answer in answers}) == 1
    assert [entry.key for entry in Store(cache).entries()] == sorted(answers[0]["digests"])
    assert run_python(COMPILE, cache)["cached"] == [True, True]
    # The locks held: each kernel was compiled once.
    for index in (0, 1):
        assert [answer["cached"][index] for answer in answers].count(False) == 1


def test_many_threads_share_a_builder(compiler: Compiler, cache: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    builder = builder_of(cache)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: builder.build(builder.key_of("forward", REGIME)), range(16)))
    assert len({built.digest for built in results}) == 1
    assert compiler.calls == 1


def test_what_was_measured_is_opened_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For the size classes and the kernels of all passes together."""
    monkeypatch.setattr(build, "compile_source", Compiler())
    opened, asked = [], []

    class NothingMeasured:
        def choice(self, problem: Problem, _cell_digest: str) -> None:
            asked.append(problem.kernel_pass)

        def measured(self, problem: Problem, _cell_digest: str) -> tuple[()]:
            asked.append(problem.kernel_pass)
            return ()

        def accepts(self, *_: object) -> bool:
            return True

    def preferred() -> NothingMeasured:
        opened.append(1)
        return NothingMeasured()

    target = Target(load_profile("h200"), profile_bytes("h200"), "spec")
    builder = Builder(load_spec(SPEC), target, Store(tmp_path), preferred=preferred)
    for kernel_pass in ("forward", "backward"):
        builder.build(builder.choose(kernel_pass, builder.hinted_specialization, Sizes(2, 5)))
    assert asked == ["forward", "forward", "backward", "backward"] and opened == [1]
