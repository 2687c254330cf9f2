"""Specs tuned by many workers: each task is plain, every spec is tuned once, and what is known when it is interrupted stays."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest
from support.fake_measurer import FakeMeasurer

from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import BadInput, ToolchainMissing
from minrnn_gen.tune import pool, session
from minrnn_gen.tune.pool import executor_of_gpus, gpus_named, task_of, tune_specs
from minrnn_gen.tune.tuner import Limits

SPECS = [{"model": model, "hidden_size": 64, "training": False, "gpu": "h200"} for model in ("min_gru", "min_lstm", "hgrn")]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeMeasurer:
    made = FakeMeasurer()
    monkeypatch.setattr(session, "open_measurer", lambda: made)
    return made


@pytest.mark.usefixtures("compiler", "cache", "fake")
def test_any_executor_tunes_every_spec_once() -> None:
    tasks = [task_of(load_spec(spec), Limits(60.0, 2, 1)) for spec in SPECS]
    assert [pickle.loads(pickle.dumps(task)) for task in tasks] == tasks
    with ThreadPoolExecutor(1) as executor:
        found = dict(tune_specs(tasks, executor))
    assert sorted(found) == [0, 1, 2]
    for number, tuned in found.items():
        assert not tuned.is_interrupted
        assert [one["pass"] for one in tuned.kernels] == ["forward", "step"]
        assert {one["model"] for one in tuned.kernels} == {SPECS[number]["model"]}
        assert all(one["candidates"]["measured"] == 2 and one["variables"] for one in tuned.kernels)
        assert pickle.loads(pickle.dumps(tuned)) == tuned


class Interrupted(Executor):
    """The first task is done, the second is still running when Ctrl-C comes, the third has not begun."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.futures.append(future)
        if len(self.futures) == 1:
            future.set_result(fn(*args, **kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        assert wait and cancel_futures
        self.futures[1].set_result("what was known")
        self.futures[2].cancel()


@pytest.mark.usefixtures("compiler", "cache", "fake")
def test_an_interruption_keeps_what_had_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(futures: dict[Future[Any], int]) -> Any:
        yield next(iter(futures))
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "as_completed", interrupted)
    tasks = [task_of(load_spec(spec), Limits(60.0, 2, 1)) for spec in SPECS]
    found = list(tune_specs(tasks, Interrupted()))
    assert [number for number, _ in found] == [0, 1] and found[1][1] == "what was known"


def test_gpus_are_named_as_the_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(pool, "device_count", lambda: 3)
    assert gpus_named("all") == ("0", "1", "2") and gpus_named("2, 0") == ("2", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,5, 7")
    assert gpus_named("all") == ("GPU-a", "5", "7") and gpus_named("1") == ("5",)
    for wrong in ("3", "-1", "a", "0,0", "", "0;1"):
        with pytest.raises(BadInput, match="allowed: all, or different numbers from 0 to 2"):
            gpus_named(wrong)
    monkeypatch.setattr(pool, "device_count", lambda: 0)
    with pytest.raises(ToolchainMissing, match="none is found here"):
        gpus_named("all")


def seen_gpu(_: int) -> tuple[int, str | None]:
    return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES")


def test_each_process_sees_a_gpu_of_its_own() -> None:
    with executor_of_gpus(("4", "GPU-x")) as executor:
        seen = set(executor.map(seen_gpu, range(64), chunksize=1))
    assert {name for _, name in seen} <= {"4", "GPU-x"} and len({pid for pid, _ in seen}) == len(seen)
