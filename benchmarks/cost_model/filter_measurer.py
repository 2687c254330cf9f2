"""Candidates of filters, which no call of a cell runs, on the GPU at hand, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
from scipy import signal  # type: ignore[import-untyped]

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.recipe import spec_from
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.build.target import Target
from minrnn_gen.build.tuned_choice import Trial
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.gpu import memory
from minrnn_gen.gpu.device import live_device
from minrnn_gen.gpu.timer import ColdClock, repeated
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.precision import LARGEST_OF_NORM, error_allowed, precision_of
from minrnn_gen.raw_scan import filters_device
from minrnn_gen.run.cuda import CudaRecorder
from minrnn_gen.run.kernels import CompiledKernels
from minrnn_gen.tune.measurer import Measurer
from minrnn_gen.tune.workload import RANDOM_VALUES, TrialBuilder

# Poles lie between it and its negative: a filter remembers some 50 steps.
LARGEST_POLE = 0.98
CHECKED_ROWS = 2


@dataclass
class FilterMeasurer:
    """Measures forwards of filters; the GPU's names are those of `measurer`."""

    measurer: Measurer
    _last: tuple[Trial, CompiledKernels] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        live = live_device()
        assert live is not None  # since `measurer` measures there
        self._target = Target(live.profile, live.profile.model_dump_json().encode(), "device")
        self._clock = ColdClock(live.profile.l2_bytes, live.profile.bandwidth_bytes_per_s)

    @property
    def gpu(self) -> str:
        """The name of the GPU's profile."""
        return self.measurer.gpu

    @property
    def device(self) -> str:
        """The driver's name of the GPU."""
        return self.measurer.device

    @property
    def driver(self) -> str:
        """The driver's release."""
        return self.measurer.driver

    def prepare(self, trial: Trial) -> None:
        """Prepare nothing: candidates share no arrays."""

    def error_share(self, trial: Trial) -> float:
        """Filter two rows; return the largest error against scipy in float64 as a share of what the precision allows."""
        problem = trial.plan.problem
        arrays, run = self._run(trial, Sizes(CHECKED_ROWS, problem.time))
        x, (a,), (b,) = (_wide(arrays[name].owner) for name in ("x", "a", "b"))
        expected = signal.lfilter(b, a, x)
        error = float(abs(_wide(run().y) - expected).max())
        return error / (LARGEST_OF_NORM * error_allowed(precision_of(problem.precision)) * float(abs(expected).max()))

    def times_us(self, trial: Trial, repeats: int) -> Sequence[float]:
        """Time a candidate; see `Measurer`."""
        _, run = self._run(trial, Sizes(trial.plan.problem.batch, trial.plan.problem.time))
        run()
        return [self._clock.time_us(run) for _ in range(repeats)]

    def close(self) -> None:
        """Release the kernels."""
        self._last = None

    def _run(self, trial: Trial, sizes: Sizes) -> tuple[dict[str, Any], Callable[[], Any]]:
        """Return the arrays of a call, x [rows, 1, T], and the call."""
        problem, order, kernels = trial.plan.problem, len(trial.cell.states), self._kernels_of(trial)
        x = (
            numpy.random.default_rng(0)
            .standard_normal(RANDOM_VALUES)
            .astype(numpy_dtype(precision_of(problem.precision).storage_dtype))
        )
        a, b = numpy.poly(numpy.linspace(-LARGEST_POLE, LARGEST_POLE, order)), numpy.full(order + 1, 0.1)
        placed = {"x": repeated(x, (sizes.batch, 1, sizes.time), problem.specialization.alignment_bytes)}
        placed |= {name: repeated(values, (1, order + 1), values.itemsize) for name, values in (("a", a), ("b", b))}
        arrays = {name: memory.inspect(values, name) for name, values in placed.items()}

        def run() -> Any:
            recorder = CudaRecorder(arrays["x"], None, kernels)
            return recorder.finish(filters_device.run("filter", arrays | {"zi": None}, recorder), None).result

        return arrays, run

    def _kernels_of(self, trial: Trial) -> CompiledKernels:
        """Return kernels that are the candidate alone, loaded once for the check and the timing."""
        if self._last is None or self._last[0] != trial:
            built = BuiltKernel(trial.plan, trial.cell, "", "", trial.cubin, None, (), False, 0.0, None)
            builder = TrialBuilder(spec_from(trial.recipe), self._target, Store(cache_folder()), trial=built)
            self._last = trial, CompiledKernels(builder, (built,))
        return self._last[1]


def _wide(array: Any) -> Any:
    """Return an array of the GPU in float64 on the host, of 16 bits by way of float32: no library need convert those."""
    return (array if array.itemsize > 4 else array.astype(numpy.float32)).get().astype(float)
