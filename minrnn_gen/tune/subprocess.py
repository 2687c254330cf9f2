"""Measuring in a process of its own: a candidate that hangs or faults takes that process with it, and nothing else."""

from __future__ import annotations

import base64
import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from minrnn_gen.build.artifact import cell_shape_from
from minrnn_gen.build.tuned_choice import Trial
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.tune.measurer import CannotMeasure, MeasurementFailed, MeasurementHung, Measurer

# Candidates take milliseconds, the slowest of them a second; what else a reply needs is loading a cubin, and compiling CuPy's
# own kernels for the first comparison.
REPLY_SECONDS = 20.0
# Importing CuPy, and a context on a GPU of a machine with many; or compiling another kernel, and the fp64 reference.
START_SECONDS = 120.0
# From a kill to the end of a process; one that hangs within the driver is left to it.
END_SECONDS = 10.0


@dataclass
class ChildMeasurer:
    """A measurer in a child process, started on demand and restarted after it was lost.

    `command` starts a process that runs `serve`. Parent and child exchange lines of JSON: one request, one reply.
    """

    command: Sequence[str]
    reply_seconds: float = REPLY_SECONDS
    prepare_seconds: float = START_SECONDS
    _process: subprocess.Popen[str] | None = field(default=None, init=False)
    _replies: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue, init=False)
    _prepared: tuple[Any, ...] = field(default=(), init=False)
    _greeting: dict[str, Any] = field(default_factory=dict, init=False)

    @property
    def gpu(self) -> str:
        """The name of the GPU's profile."""
        return self._said("gpu")

    @property
    def device(self) -> str:
        """The driver's name of the GPU."""
        return self._said("device")

    @property
    def driver(self) -> str:
        """The driver's release."""
        return self._said("driver")

    def prepare(self, trial: Trial) -> None:
        """Ask the child, unless it is prepared; see `Measurer`."""
        if self._process is not None and self._prepared == trial.kernel:
            return
        try:
            self._ask({"prepare": _plain(trial)}, self.prepare_seconds)
        except MeasurementFailed as failed:
            raise CannotMeasure(f"candidates cannot be measured here: {failed}") from failed
        self._prepared = trial.kernel

    def error_share(self, trial: Trial) -> float:
        """Ask the child; see `Measurer`."""
        # A child that was started anew has nothing prepared, and that is no fault of the candidate's.
        self.prepare(trial)
        share = self._ask({"check": _plain(trial)}, self.reply_seconds)["share"]
        return float("nan") if share is None else float(share)

    def times_us(self, trial: Trial, repeats: int) -> Sequence[float]:
        """Ask the child; see `Measurer`."""
        self.prepare(trial)
        times_us = self._ask({"time": _plain(trial), "repeats": repeats}, self.reply_seconds)["times_us"]
        return [float(time_us) for time_us in times_us]

    def close(self) -> None:
        """End the child."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe and pipe.close()

    def _said(self, name: str) -> str:
        if not self._greeting:
            self._start()
        return str(self._greeting[name])

    def _start(self) -> subprocess.Popen[str]:
        if self._process is not None:
            return self._process
        # In a group of its own: Ctrl-C is for the parent to answer, which ends the child.
        self._process = process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._replies = queue.SimpleQueue()
        threading.Thread(target=_read_into, args=(process.stdout, self._replies), daemon=True).start()
        self._greeting = self._reply(START_SECONDS)
        return process

    def _ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        process = self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except OSError as gone:
            self.close()
            raise MeasurementFailed(f"the process that measures is gone ({gone})") from gone
        except BaseException:
            # Half a request is none.
            self.close()
            raise
        return self._reply(seconds)

    def _reply(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._replies.get(timeout=seconds)
        except queue.Empty:
            self.close()
            raise MeasurementHung(f"no end after {seconds:g} s") from None
        except BaseException:
            # Its reply would be taken for that to the next request.
            self.close()
            raise
        if not line:
            process = self._process
            self.close()
            raise MeasurementFailed(f"the process that measures ended with status {process and process.returncode}")
        try:
            reply: dict[str, Any] = json.loads(line)
        except ValueError:
            self.close()
            raise MeasurementFailed(f"the process that measures said {line[:80]!r}") from None
        if "failed" in reply:
            # After an error on the device its context is of no use.
            self.close()
            raise MeasurementFailed(str(reply["failed"]))
        return reply


def serve(measurer: Measurer, requests: IO[str], replies: IO[str]) -> None:
    """Answer the requests of a ChildMeasurer until there are no more."""

    def say(reply: dict[str, Any]) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    say({"gpu": measurer.gpu, "device": measurer.device, "driver": measurer.driver})
    for line in requests:
        request = json.loads(line)
        try:
            if "prepare" in request:
                measurer.prepare(_trial_from(request["prepare"]))
                say({})
            elif "check" in request:
                share = measurer.error_share(_trial_from(request["check"]))
                say({"share": share if abs(share) < float("inf") else None})
            else:
                say({"times_us": list(measurer.times_us(_trial_from(request["time"]), request["repeats"]))})
        except Exception as error:
            say({"failed": f"{type(error).__name__}: {error}"})


def _plain(trial: Trial) -> dict[str, Any]:
    cubin = base64.b64encode(trial.cubin).decode()
    return {"recipe": trial.recipe, "cell": asdict(trial.cell), "plan": trial.plan.to_json(), "cubin": cubin}


def _trial_from(data: dict[str, Any]) -> Trial:
    cell, plan = cell_shape_from(data["cell"]), KernelPlan.from_json(data["plan"])
    return Trial(data["recipe"], cell, plan, base64.b64decode(data["cubin"]))


def _read_into(pipe: IO[str], replies: queue.SimpleQueue[str]) -> None:
    with contextlib.suppress(OSError, ValueError):
        for line in pipe:
            replies.put(line)
    replies.put("")
