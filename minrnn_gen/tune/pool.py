"""Specs tuned by many workers, each with a GPU of its own: those of this machine, or of any executor."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from minrnn_gen.build.builder import builder_of
from minrnn_gen.build.embedded import builder_of_kernels
from minrnn_gen.build.recipe import cell_source_of, recipe_of, spec_from
from minrnn_gen.config.spec import Spec
from minrnn_gen.errors import BadInput, ToolchainMissing, shown
from minrnn_gen.gpu.driver import device_count
from minrnn_gen.run.target import target_of
from minrnn_gen.tune.lookup import remembered
from minrnn_gen.tune.measurer import CannotMeasure
from minrnn_gen.tune.session import tune_here
from minrnn_gen.tune.tuner import DEFAULT_LIMITS, Limits, TunedKernel

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue

ALL = "all"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Task:
    """A spec, by its recipe, for a worker to tune: plain values, which any executor can send."""

    recipe: str
    limits: Limits


@dataclass(frozen=True)
class Tuned:
    """Result of a spec: `summary_of` for each kernel that was raced, and whether it was interrupted."""

    kernels: tuple[dict[str, Any], ...]
    is_interrupted: bool


def task_of(spec: Spec, limits: Limits = DEFAULT_LIMITS) -> Task:
    """Return the task of tuning a spec."""
    return Task(recipe_of(spec, cell_source_of(spec)), limits)


def run_task(task: Task) -> Tuned:
    """Tune a spec on the first GPU that this process sees; raises what `tune_here` does."""
    spec = spec_from(task.recipe)
    return tuned_of(tuple(tune_here(builder_of_kernels(builder_of(spec, target_of(spec), remembered)), task.limits)))


def tuned_of(kernels: Sequence[TunedKernel]) -> Tuned:
    """Return the results of a spec's kernels, in their order."""
    return Tuned(tuple(map(summary_of, kernels)), bool(kernels) and kernels[-1].ended == "interrupted")


def summary_of(tuned: TunedKernel) -> dict[str, Any]:
    """Return the result of one kernel as plain data."""
    setting = tuned.setting
    return {
        "model": setting.cell,
        "pass": setting.kernel_pass,
        "gpu": setting.gpu,
        "device": setting.device,
        "feasible": tuned.feasible_count,
        "candidates": dict(tuned.outcomes),
        "ended": tuned.ended,
        "first_us": tuned.first_us,
        "best_us": tuned.best_us,
        "family": tuned.winner.plan.name if tuned.winner else None,
        "variables": dict(tuned.winner.plan.variables) if tuned.winner else None,
        "raced": list(map(asdict, tuned.raced)),
    }


def tune_specs(tasks: Sequence[Task], executor: Executor) -> Iterator[tuple[int, Tuned]]:
    """Yield (number of the task, its result) as tasks finish on the workers of any executor.

    Each worker needs a GPU and this package; results go to the history in its cache folder. After an interruption, a task that
    had begun is yielded if its worker still finishes it. Raises what tuning raises, see `tune_here`, and CannotMeasure where a
    worker is lost.
    """
    numbers: dict[Future[Tuned], int] = {executor.submit(run_task, task): number for number, task in enumerate(tasks)}
    left = set(numbers)
    try:
        for future in as_completed(numbers):
            left.discard(future)
            yield numbers[future], future.result()
    except BrokenExecutor as broken:
        raise CannotMeasure(f"a worker ended before its spec was tuned ({broken}); what it measured is remembered") from broken
    except KeyboardInterrupt:
        # A key stroke reaches the workers of this machine too, and each gives what it knows.
        executor.shutdown(wait=True, cancel_futures=True)
        for future in left:
            with contextlib.suppress(Exception):
                if not future.cancelled():
                    yield numbers[future], future.result(0)


def gpus_named(devices: str) -> tuple[str, ...]:
    """Return the GPUs that "all" or numbers as "0,2" mean, as CUDA_VISIBLE_DEVICES names them; raises BadInput for others."""
    visible = os.environ.get(_VISIBLE)
    count = device_count()
    if not count:
        raise ToolchainMissing(
            "tuning measures on GPUs, and none is found here; run 'minrnn-gen doctor' to check the installation"
        )
    names = [name.strip() for name in visible.split(",")][:count] if visible else [str(number) for number in range(count)]
    if devices == ALL:
        return tuple(names)
    numbers = [number.strip() for number in devices.split(",")]
    if not all(number.isdecimal() and int(number) < count for number in numbers) or len(set(numbers)) < len(numbers):
        raise BadInput(
            f"--devices: {shown(devices)} is given; allowed: all, or different numbers from 0 to {count - 1}, as in 0,2"
        )
    return tuple(names[int(number)] for number in numbers)


def executor_of_gpus(gpus: Sequence[str]) -> ProcessPoolExecutor:
    """Return an executor with a process for each of these GPUs, which sees that one alone."""
    context = multiprocessing.get_context("spawn")
    names: SimpleQueue[str] = context.SimpleQueue()
    for name in gpus:
        names.put(name)
    return ProcessPoolExecutor(len(gpus), context, _take_gpu, (names,))


def _take_gpu(names: SimpleQueue[str]) -> None:
    os.environ[_VISIBLE] = names.get()
