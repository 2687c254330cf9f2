"""FlashRNN, whose kernels nvcc compiles for every shape: every build runs beforehand, in a process of its own.

Its fused kernels query properties of the device that CUDA 13 has removed, so that the query does not compile. The numbers that
it needs come from the profile of the GPU instead; nothing else of it is changed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.contenders.baselines import NOT_INSTALLED, failure_in_process, is_installed
from benchmarks.harness.gpu import Gpu
from benchmarks.harness.rounds import Arrays, Contender, Run
from benchmarks.problems.dense_problems import is_of_cells
from benchmarks.problems.scan_problems import Problem
from benchmarks.reference.dense_inputs import Inputs
from benchmarks.report.tables import FIRST_CALL
from minrnn_gen.build.store import digest
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.gpu import device as gpu_device

DISTRIBUTION = "flashrnn"
# {baseline: backend of FlashRNN}: all steps in one launch, and products alternating with pointwise kernels.
BACKENDS = {"flashrnn.cuda_fused": "cuda_fused", "flashrnn.cuda": "cuda"}
NO_FUSED = "no fused kernel"
CHANGED = "the query of the device's properties, which does not compile with CUDA 13, is answered by minrnn-gen's profile"
BUILD = (sys.executable, "-m", "benchmarks.contenders.flash_build")
LIBRARY_FILE = "library.json"
DTYPE = "bfloat16"

# (Wx [B, T, G, N, D], R [Gr, N, D, D], b) to (states [S, B, T, N, D], last [S, B, 1, N, D]), output first.
Function = Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Build:
    """Build of a backend's kernels for one cell and shape, which run at all lengths."""

    baseline: str
    model: str
    heads: int
    head_dim: int
    batch: int
    device: str

    @property
    def label(self) -> str:
        """The baseline and the shape, as failures name them."""
        return f"{self.baseline} {self.model} {self.heads} x {self.head_dim}, {self.batch}"

    @property
    def program(self) -> tuple[str, ...]:
        """The command that makes this build."""
        return (*BUILD, self.baseline, self.model, *map(str, (self.heads, self.head_dim, self.batch)), str(self.folder))

    @cached_property
    def folder(self) -> Path:
        """The folder of the build among torch's extensions, one for every pair of versions of FlashRNN and torch."""
        extensions = os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions"
        made_by = [f"{name} {metadata.version(name)}" for name in (DISTRIBUTION, "torch")]
        return Path(extensions) / "minrnn-gen-bench" / digest(self.label, self.device, *made_by)[:16]

    @property
    def made(self) -> dict[str, Any] | None:
        """The finished build as {`library`: its path, `seconds`: its duration}, None where there is none."""
        try:
            record: dict[str, Any] = json.loads((self.folder / LIBRARY_FILE).read_text())
        except (OSError, ValueError):
            return None
        return record if Path(record["library"]).exists() else None


def build_of(baseline: str, problem: Problem, device: str) -> Build | None:
    """Return the build that `baseline` needs for `problem`, None where its fused backend has no kernel."""
    if problem.model == "gru" and BACKENDS[baseline] == "cuda_fused":
        return None
    return Build(baseline, str(problem.model), problem.heads or 1, problem.head_dim, problem.batch, device)


def refusals(gpu: Gpu, baselines: Sequence[str], problems: Sequence[Problem], seconds: float) -> dict[str, str]:
    """Run the builds of `problems` in parallel and return {baseline, or `Build.label`: reason} of those that are missing.

    All builds together may take `seconds`. A build that fails, or is unfinished by then, is refused; builds of earlier runs
    are used again.
    """
    chosen = [baseline for baseline in baselines if baseline in BACKENDS]
    if not is_installed(DISTRIBUTION):
        return dict.fromkeys(chosen, NOT_INSTALLED)
    wanted = [build_of(baseline, problem, gpu.name) for baseline in chosen for problem in problems if is_of_cells(problem)]
    builds = [build for build in dict.fromkeys(wanted) if build is not None and build.made is None]
    ends_at = time.monotonic() + seconds

    def failure(build: Build) -> str | None:
        left = ends_at - time.monotonic()
        why = failure_in_process(build.program, left) if left > 0 else "not begun"
        return why and (f"not built in {seconds:g} s" if time.monotonic() >= ends_at else why)

    with ThreadPoolExecutor(min(len(builds), _processors()) or 1) as pool:
        reasons = pool.map(failure, builds)
        return {build.label: why for build, why in zip(builds, reasons, strict=True) if why is not None}


def _processors() -> int:
    """Return the number of processors that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def contenders(
    problem: Problem, gpu: Gpu, inputs: Inputs, baselines: Collection[str], refused: Mapping[str, str]
) -> list[Contender]:
    """Return FlashRNN's backends where the table `cells` has this shape; other shapes are not worth a build of a minute."""
    if not is_of_cells(problem):
        return []
    return [_contender(baseline, problem, gpu, inputs, refused) for baseline in BACKENDS if baseline in baselines]


def _contender(baseline: str, problem: Problem, gpu: Gpu, inputs: Inputs, refused: Mapping[str, str]) -> Contender:
    build = None if baseline in refused else build_of(baseline, problem, gpu.name)
    why = refused.get(baseline) or (refused.get(build.label) if build is not None else NO_FUSED)

    def prepare() -> Run:
        assert build is not None
        return run_of(problem, gpu.torch, inputs, loaded(build))

    def judged(results: Arrays) -> dict[str, float]:
        return inputs.judged(as_ours(problem, results))

    def facts() -> dict[str, int | float | str]:
        made = build.made if build is not None else None
        return {"changed": CHANGED} | ({} if made is None else {FIRST_CALL: round(made["seconds"], 3)})

    return Contender(baseline, prepare, judged, facts=facts, refused=why)


def their_order(model: str) -> list[int]:
    """Return our index of each gate of R in FlashRNN's order: its gru has n, r, z for our r, z, n; other cells agree."""
    return [2, 0, 1] if model == "gru" else list(range({"elman": 1}.get(model, 4)))


def bias_count(model: str) -> int:
    """Return the number of biases of FlashRNN's cell, of which gru has one for W.n and one for R.n."""
    return {"elman": 1}.get(model, 4)


def run_of(problem: Problem, torch: Any, inputs: Inputs, function: Function) -> Run:
    """Return the run of a function of FlashRNN on our arrays; the results are in its shapes and orders."""
    heads, units = problem.heads or 1, problem.head_dim
    x, R = inputs.array("x"), inputs.array("R")[their_order(str(problem.model))]
    Wx = x.reshape(problem.batch, problem.time, -1, heads, units)
    b = torch.zeros((bias_count(str(problem.model)), heads, units), dtype=x.dtype, device=x.device)

    def forward() -> Arrays:
        with torch.no_grad():
            states, last = function(Wx, R, b)
        named = dict(zip(inputs.cell.states, last, strict=True))
        return {"y": states[0]} | {name: named[name] for name in inputs.states_out}

    if problem.task == "forward":
        return forward
    Wx, R = Wx.detach().requires_grad_(), R.detach().requires_grad_()
    dy = inputs.array("dy").reshape(problem.batch, problem.time, heads, units)

    def both() -> Arrays:
        states, _ = function(Wx, R, b)
        dx, dR = torch.autograd.grad(states[0], (Wx, R), dy)
        return {"y": states[0], "dx": dx, "dR": dR}

    return both


def as_ours(problem: Problem, results: Arrays) -> dict[str, Any]:
    """Return FlashRNN's results in our shapes and orders: y [B, T, H], dx [B, T, G, H], dR [Gr, N, D, D], states [B, H]."""
    order = their_order(str(problem.model))
    shapes = {"y": (problem.batch, problem.time, -1), "dx": (problem.batch, problem.time, -1, problem.channels)}
    ours = {name: array.reshape(shapes.get(name, (problem.batch, -1))) for name, array in results.items() if name != "dR"}
    if "dR" in results:
        ours["dR"] = results["dR"][[order.index(gate) for gate in range(len(order))]]
    return ours


def loaded(build: Build) -> Function:
    """Return FlashRNN's function with its finished build loaded: nothing is compiled, solved or tried again."""
    made = build.made
    if made is None:
        raise ToolchainMissing(f"{build.label} was not built")
    with contextlib.redirect_stdout(sys.stderr):
        module = flashrnn_module()
    path = Path(made["library"])
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    module.load = module.load_parametric_and_test_and_bisect = lambda **_: library
    return function_of(module, build)


def flashrnn_module() -> Any:
    """Return the module that builds and calls the kernels, its query of the device answered by our profile."""
    module: Any = importlib.import_module("flashrnn.flashrnn.flashrnn")
    live = gpu_device.live_device()
    if live is None:
        raise ToolchainMissing("there is no GPU")
    gpu = live.profile
    module.get_gpu_info = lambda **_: {
        "maxThreadsPerBlock": gpu.max_threads_per_block,
        "regsPerMultiprocessor": gpu.registers_per_sm,
        "multiProcessorCount": gpu.sm_count,
        "sharedMemPerBlockOptin": gpu.shared_bytes_per_block_max,
    }
    return module


def function_of(module: Any, build: Build) -> Function:
    """Return FlashRNN's function for one cell by one backend."""

    def function(Wx: Any, R: Any, b: Any) -> tuple[Any, Any]:
        states, last = module.flashrnn(Wx, R, b, function=build.model, backend=BACKENDS[build.baseline], dtype=DTYPE)
        return states, last

    return function
