"""Set-up of every test: a cache of its own, and GPU tests only where there is a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from support.examples import is_whole
from support.patience import within
from support.worker_folder import folder_of_all_workers

# Workers have a core each: threads of torch and BLAS would wait for each other, and that is most of what their tests took.
if "PYTEST_XDIST_WORKER" in os.environ:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")

# A solution is a thousand small dictionaries, half a megabyte; a grid has as many rows of times.
SOLUTIONS_KEPT, GRIDS_KEPT = 256, 128

# Rooms whose tests compute on host arrays, for which a kernel is planned; to compile it too takes half of their time.
UNCOMPILED = {"bench", "call", "cell", "cpu", "jax_front", "report"}

# Modules and tests are no garbage: to look for some while they are collected takes a sixth of the time.
gc.disable()

# Before JAX starts: it would take three quarters of the GPU's memory from the other tests.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# No deadline: on two busy cores the time of one example says nothing. In CI the same examples every time: a failure there is a
# failure everywhere. Elsewhere new ones, and in the whole matrix many more, which is how new failures are found.
hypothesis.settings.register_profile("everyday", deadline=None, max_examples=15)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, max_examples=10)
hypothesis.settings.register_profile("whole", deadline=None, print_blob=True, max_examples=200)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "everyday")


@functools.cache
def cuda_device_count() -> int:
    """Return how many CUDA devices the driver offers, asked through the driver alone: milliseconds, and no library of ours."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        count = ctypes.c_int(0)
        # CUDA driver API: cuInit(0), then the count; CUDA_SUCCESS is 0.
        return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0
    except OSError:
        return 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and cuda_device_count() == 0:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        elif item.get_closest_marker("alone") and "PYTEST_XDIST_WORKER" in os.environ:
            item.add_marker(pytest.mark.skip(reason="judges times, and other workers are on the same GPU: run it without -n"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Give a test the more time the slower the machine is now: its limit ends what hangs, which other work makes nothing do."""
    own = item.get_closest_marker("timeout")
    limit = float(own.args[0]) if own and own.args else float(item.config.getini("timeout") or 0)
    if limit and item.config.getoption("timeout", None) is None:
        item.add_marker(pytest.mark.timeout(within(limit)), append=False)
    return (yield)


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "append each failure to FILE as it happens: of a run that may be cut off, where the summary would be lost"
    parser.addoption("--failures", metavar="FILE", help=told)
    told = "of COUNT GPUs, let each worker of -n see one; tests over several GPUs are skipped then"
    parser.addoption("--one-gpu-each", metavar="COUNT", type=int, default=0, help=told)


class FailuresAtOnce:
    """Writes what fails into a file while the others run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{report.nodeid}, {report.when}\n{report.longreprtext}\n\n")


def pytest_configure(config: pytest.Config) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if (gpus := config.getoption("--one-gpu-each")) and worker:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(int(worker) % gpus)
    if (path := config.getoption("--failures")) and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(FailuresAtOnce(Path(path)))


def pytest_collection_finish() -> None:
    """Leave modules and thousands of tests, which stay until the end, out of every garbage collection."""
    gc.collect()
    gc.freeze()
    gc.enable()
    # Tests make little garbage in cycles: to look for it as often as Python does by itself takes a twentieth of their time.
    gc.set_threshold(10_000, 10, 10)


def has_torch() -> bool:
    """Say whether torch is installed, without importing it; an installation that is broken is one."""
    try:
        return importlib.util.find_spec("torch") is not None
    except ModuleNotFoundError:
        return False


def _skipped_without_torch() -> Generator[None, Any, Any]:
    """Skip what ends for want of torch where torch cannot be had: a mirror or a system without it."""
    try:
        return (yield)
    except ImportError as missing:
        if has_torch() or (missing.name or "").partition(".")[0] != "torch":
            raise
    pytest.skip("torch is not installed: pip install torch, or without a GPU its CPU build (make test tries both)")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    return (yield from _skipped_without_torch())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    return (yield from _skipped_without_torch())


@pytest.fixture(scope="session", autouse=True)
def cache_of_this_run(tmp_path_factory: pytest.TempPathFactory, emulated_kernels: Path) -> Iterator[None]:
    """Keep the tests out of the user's cache, and old kernels of the user's out of the tests; all workers share theirs."""
    from support.headers_once import read_headers_once

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINRNN_CACHE_DIR", str(folder_of_all_workers(tmp_path_factory) / "cache"))
        # A kernel takes the C compiler a second: tests of native code ask for it, all others run in NumPy.
        patch.setenv("MINRNN_CPU", os.environ.get("MINRNN_CPU", "numpy"))
        patch.setattr("minrnn_gen.build.store._tree_digest", _digest_of_a_tree())
        _plan_once(patch)
        read_headers_once(patch, folder_of_all_workers(tmp_path_factory) / "headers")
        # It guards against a loss of power, which no test has, and a disk takes milliseconds for every file.
        patch.setattr("os.fsync", lambda _: None)
        # It takes five seconds to compile, and is the same whatever the store of the kernels that are linked with it.
        machine = _machine_of_all_stores(emulated_kernels)
        patch.setattr("minrnn_gen.interpret.toolchain.machine_in", machine)
        patch.setattr("minrnn_gen.interpret.verify.machine_in", machine)
        yield


@pytest.fixture(scope="module", autouse=True)
def _nothing_compiled(request: pytest.FixtureRequest, cache_of_this_run: None) -> Iterator[None]:  # noqa: ARG001 - its cache
    """Plan and render kernels for host arrays every day; in the whole matrix, and for a GPU, they are compiled too."""
    from support.uncompiled_kernels import nothing_compiled

    plans_only = request.path.parent.name in UNCOMPILED and not is_whole()
    if plans_only:
        plans_only = not any(item.get_closest_marker("gpu") for item in request.session.items if item.path == request.path)
    with nothing_compiled() if plans_only else contextlib.nullcontext():
        yield


def _digest_of_a_tree() -> Callable[..., str]:
    """Return what reads the package's own templates once; every kernel that is planned would read them all anew."""
    from minrnn_gen.build.store import _tree_digest
    from minrnn_gen.config.package_files import package_folder

    own, once = package_folder("templates"), functools.cache(_tree_digest)
    return lambda folder, *which, **without: (once if folder == own else _tree_digest)(folder, *which, **without)


def _plan_once(patch: pytest.MonkeyPatch) -> None:
    """Let a worker plan each problem once for all tests: most have the cells and sizes that others have too.

    Solutions are immutable, and functions of a problem and a family alone, as are the times of all candidates over a grid.
    `tests/plan` plans anew.
    """
    from minrnn_gen.plan import families, size_classes, solver

    solve = _kept(solver.solve, SOLUTIONS_KEPT)
    for module in (families, size_classes):
        patch.setattr(module, "solve", solve)
    patch.setattr(size_classes, "grid_of", _kept(size_classes.grid_of, GRIDS_KEPT))


@dataclass(frozen=True)
class _Asked:
    """A problem by its values: a profile has mappings, so that it has no hash."""

    problem: Any = field(compare=False)
    values: tuple[Any, ...]


def _kept(function: Callable[..., Any], most: int) -> Callable[..., Any]:
    """Return a function of a problem, and of what has a hash, that keeps its last results."""
    last = functools.lru_cache(most)(lambda asked, *others: function(asked.problem, *others))

    @functools.wraps(function)
    def result(problem: Any, *others: Any) -> Any:
        values = tuple(value for name, value in vars(problem).items() if name != "gpu")
        return last(_Asked(problem, (*values, problem.gpu.model_dump_json())), *others)

    return result


def _machine_of_all_stores(folder: Path) -> Callable[[object], bytes]:
    """Return what compiles the emulator's machine in one store, whichever it is asked for."""
    from minrnn_gen.build.store import Store
    from minrnn_gen.interpret.toolchain import machine_in

    return lambda _store: machine_in(Store(folder))


@pytest.fixture(scope="session")
def emulated_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of emulated kernels, one for all workers of a run: each of them, and the machine below, is compiled once."""
    return folder_of_all_workers(tmp_path_factory) / "emulated-kernels"
