"""FlashRNN, whose kernels are compiled by nvcc for every shape: built beforehand, each in a process of its own.

Its fused kernels ask for properties of the device that CUDA 13 has no longer, so that the question does not compile. The
numbers that it wants of the answer come from the profile of the GPU instead; nothing else of it is changed.
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

from minrnn_gen.bench.contenders.baselines import NOT_INSTALLED, failure_in_process, is_installed
from minrnn_gen.bench.harness.gpu import Gpu
from minrnn_gen.bench.harness.rounds import Arrays, Contender, Run
from minrnn_gen.bench.problems.dense_problems import is_of_cells
from minrnn_gen.bench.problems.scan_problems import Problem
from minrnn_gen.bench.reference.dense_inputs import Inputs
from minrnn_gen.bench.report.tables import FIRST_CALL
from minrnn_gen.build.store import digest
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.gpu import device as gpu_device

DISTRIBUTION = "flashrnn"
# Its backends by the names of the peers: all steps in one launch, and products and pointwise kernels in turn.
BACKENDS = {"flashrnn.cuda_fused": "cuda_fused", "flashrnn.cuda": "cuda"}
NO_FUSED = "no fused kernel"
CHANGED = "the query of the device's properties, which does not compile with CUDA 13, is answered by minrnn-gen's profile"
BUILD = (sys.executable, "-m", "minrnn_gen.bench.contenders.flash_build")
LIBRARY_FILE = "library.json"
DTYPE = "bfloat16"

# (Wx [B, T, G, N, D], R [Gr, N, D, D], b) to (states [S, B, T, N, D], last [S, B, 1, N, D]), output first.
Function = Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Build:
    """A backend's kernels for one cell and shape, all lengths."""

    peer: str
    model: str
    heads: int
    head_dim: int
    batch: int
    device: str

    @property
    def label(self) -> str:
        """The peer at this shape."""
        return f"{self.peer} {self.model} {self.heads} x {self.head_dim}, {self.batch}"

    @property
    def program(self) -> tuple[str, ...]:
        """What makes it."""
        return (*BUILD, self.peer, self.model, *map(str, (self.heads, self.head_dim, self.batch)), str(self.folder))

    @cached_property
    def folder(self) -> Path:
        """Where it is kept, with other extensions of torch: one for each version of what made it."""
        extensions = os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions"
        made_by = [f"{name} {metadata.version(name)}" for name in (DISTRIBUTION, "torch")]
        return Path(extensions) / "minrnn-gen-bench" / digest(self.label, self.device, *made_by)[:16]

    @property
    def made(self) -> dict[str, Any] | None:
        """What is known of the finished build, None where there is none: `library`, its path, and `seconds`."""
        try:
            found: dict[str, Any] = json.loads((self.folder / LIBRARY_FILE).read_text())
        except (OSError, ValueError):
            return None
        return found if Path(found["library"]).exists() else None


def build_of(peer: str, problem: Problem, device: str) -> Build | None:
    """Return what `peer` needs for `problem`; None where its fused backend has no kernel."""
    if problem.model == "gru" and BACKENDS[peer] == "cuda_fused":
        return None
    return Build(peer, str(problem.model), problem.heads or 1, problem.head_dim, problem.batch, device)


def refusals(gpu: Gpu, peers: Sequence[str], problems: Sequence[Problem], seconds: float) -> dict[str, str]:
    """Build everything that `problems` take, in parallel, and return {peer, or `Build.label`: why not}.

    All of it may take `seconds`; what is not there by then, or fails, is refused, what an earlier run made is used again.
    """
    chosen = [peer for peer in peers if peer in BACKENDS]
    if not is_installed(DISTRIBUTION):
        return dict.fromkeys(chosen, NOT_INSTALLED)
    wanted = [build_of(peer, problem, gpu.name) for peer in chosen for problem in problems if is_of_cells(problem)]
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
    """Return how many processors this process may use, which may be fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def contenders(
    problem: Problem, gpu: Gpu, inputs: Inputs, peers: Collection[str], refused: Mapping[str, str]
) -> list[Contender]:
    """Return its backends, where the table `cells` has this shape: elsewhere a build would cost a minute for one number."""
    if not is_of_cells(problem):
        return []
    return [_contender(peer, problem, gpu, inputs, refused) for peer in BACKENDS if peer in peers]


def _contender(peer: str, problem: Problem, gpu: Gpu, inputs: Inputs, refused: Mapping[str, str]) -> Contender:
    build = None if peer in refused else build_of(peer, problem, gpu.name)
    why = refused.get(peer) or (refused.get(build.label) if build is not None else NO_FUSED)

    def prepare() -> Run:
        assert build is not None
        return run_of(problem, gpu.torch, inputs, loaded(build))

    def judged(results: Arrays) -> dict[str, float]:
        return inputs.judged(as_ours(problem, results))

    def facts() -> dict[str, int | float | str]:
        made = build.made if build is not None else None
        return {"changed": CHANGED} | ({} if made is None else {FIRST_CALL: round(made["seconds"], 3)})

    return Contender(peer, prepare, judged, facts=facts, refused=why)


def their_order(model: str) -> list[int]:
    """Return for each of its gates of R which of ours it is: gru n, r, z of our r, z, n; every other as ours."""
    return [2, 0, 1] if model == "gru" else list(range({"elman": 1}.get(model, 4)))


def bias_count(model: str) -> int:
    """Return how many biases its cell has: that of gru has one for W.n and one for R.n."""
    return {"elman": 1}.get(model, 4)


def run_of(problem: Problem, torch: Any, inputs: Inputs, function: Function) -> Run:
    """Return the run of one of its functions on our arrays; its results are in its own shapes and orders."""
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
    """Return its results in our shapes and orders: y [B, T, H], dx [B, T, G, H], dR [Gr, N, D, D], states [B, H]."""
    order = their_order(str(problem.model))
    shapes = {"y": (problem.batch, problem.time, -1), "dx": (problem.batch, problem.time, -1, problem.channels)}
    found = {name: one.reshape(shapes.get(name, (problem.batch, -1))) for name, one in results.items() if name != "dR"}
    if "dR" in results:
        found["dR"] = results["dR"][[order.index(gate) for gate in range(len(order))]]
    return found


def loaded(build: Build) -> Function:
    """Return its function with the library that was built for it: nothing is compiled, solved or tried once more."""
    made = build.made
    if made is None:
        raise ToolchainMissing(f"{build.label} was not built")
    with contextlib.redirect_stdout(sys.stderr):
        module = its_module()
    path = Path(made["library"])
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    module.load = module.load_parametric_and_test_and_bisect = lambda **_: library
    return function_of(module, build)


def its_module() -> Any:
    """Import the module that builds and calls the kernels, its query of the device answered by our profile."""
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
    """Return its function for one cell by one backend."""

    def function(Wx: Any, R: Any, b: Any) -> tuple[Any, Any]:
        states, last = module.flashrnn(Wx, R, b, function=build.model, backend=BACKENDS[build.peer], dtype=DTYPE)
        return states, last

    return function
