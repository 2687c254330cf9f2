"""A measurer on CuPy's GPU number 0; run as a program, one that serves a parent process."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minrnn_gen.build.store import Store
from minrnn_gen.build.target import Target
from minrnn_gen.build.tuned_choice import Trial
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.gpu import device as gpu_device
from minrnn_gen.gpu.device import LiveDevice
from minrnn_gen.gpu.driver import driver_release
from minrnn_gen.gpu.timer import ColdClock, poison, release_memory, repeated
from minrnn_gen.kernel import Kernel
from minrnn_gen.tune.subprocess import serve
from minrnn_gen.tune.workload import Workload, demand_specialization

# Time of all runs of one measurement: slower candidates run fewer times, at least once.
MEASUREMENT_US = 20e3


@dataclass
class GpuMeasurer:
    """Measures candidates in this process; a candidate that hangs or faults takes the process with it (see `ChildMeasurer`)."""

    live: LiveDevice
    folder: Path
    clock: ColdClock
    _workload: Workload | None = field(default=None, init=False)
    _last: tuple[Trial, Kernel] | None = field(default=None, init=False)

    @property
    def gpu(self) -> str:
        """The name of the GPU's profile."""
        return self.live.profile.name

    @property
    def device(self) -> str:
        """The driver's name of the GPU."""
        return self.live.name

    @property
    def driver(self) -> str:
        """The driver's release."""
        return driver_release() or ""

    def prepare(self, trial: Trial) -> None:
        """Compile the other kernels of a trial's call, and compute its expected results."""
        self._workload_of(trial).prepare()
        # The garbage collector need not scan the objects shared by all candidates after each.
        gc.collect()
        gc.freeze()

    def error_share(self, trial: Trial) -> float:
        """Run the trial; see `Measurer`."""
        workload, kernel = self._workload_of(trial), self._kernel_of(trial)
        run = workload.checked_run(kernel)
        sizes_bytes = [array.nbytes for array in run().values()]
        # Results must be right in the memory that held these, too.
        poison(sizes_bytes)
        results = run()
        gpu_device.synchronize()
        demand_specialization(kernel, trial.plan)
        return workload.error_share(results)

    def times_us(self, trial: Trial, repeats: int) -> Sequence[float]:
        """Time the trial; see `Measurer`."""
        workload, kernel = self._workload_of(trial), self._kernel_of(trial)
        run = workload.timed_run(kernel)
        # The first takes the memory, loads the kernel and is recorded, the second is replayed, as all others are.
        for _ in range(2):
            run()
        demand_specialization(kernel, trial.plan)
        times_us = [self.clock.time_us(run)]
        while len(times_us) < repeats and sum(times_us) < MEASUREMENT_US:
            times_us.append(self.clock.time_us(run))
        # The object that remembers its arrays is in a reference cycle.
        del run, kernel
        self._last = None
        gc.collect()
        return times_us

    def close(self) -> None:
        """Release the memory."""
        self._workload, self._last = None, None
        gc.unfreeze()
        gc.collect()
        release_memory()

    def _kernel_of(self, trial: Trial) -> Kernel:
        """Return a kernel that runs the candidate, loaded once for the check and the timing."""
        if self._last is None or self._last[0] != trial:
            self._last = trial, self._workload_of(trial).kernel_of(trial)
        return self._last[1]

    def _workload_of(self, trial: Trial) -> Workload:
        if self._workload is None or self._workload.trial.kernel != trial.kernel:
            self.close()
            profile = self.live.profile
            target = Target(profile, profile.model_dump_json().encode(), "device")
            self._workload = Workload(trial, target, Store(self.folder), repeated)
        return self._workload


def gpu_measurer(folder: Path) -> GpuMeasurer:
    """Return the measurer, with its kernels in `folder`; raises ToolchainMissing where there is no GPU for it."""
    live = gpu_device.live_device()
    if live is None:
        raise ToolchainMissing("measuring needs a GPU, and CuPy to use it")
    return GpuMeasurer(live, folder, ColdClock(live.profile.l2_bytes, live.profile.bandwidth_bytes_per_s))


def main() -> None:
    """Serve the parent, and end with it."""
    # Other output must not come between the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        with tempfile.TemporaryDirectory() as folder:
            serve(gpu_measurer(Path(folder)), sys.stdin, replies)
    except ToolchainMissing as missing:
        sys.exit(str(missing))


if __name__ == "__main__":
    main()
