"""The profile of the GPU at hand with measured numbers, from a process with a limit of two minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from minrnn_gen import __version__
from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.gpu import device
from minrnn_gen.gpu.calibration import with_rates
from minrnn_gen.gpu.driver import driver_release

# The rulers take some seconds, most of them for compiling and for the first use of the GPU.
SECONDS_MOST = 120.0
CHILD = (sys.executable, "-m", "minrnn_gen.tune.microbenchmarks")


def calibrate(command: Sequence[str] = CHILD) -> GpuProfile:
    """Measure the GPU at hand and return its profile with the numbers, and with device, driver, clock and versions as sources.

    Raises ToolchainMissing where there is no GPU or no NVRTC, or where the measurement does not finish.
    """
    live = device.live_device()
    if live is None:
        raise ToolchainMissing(
            f"calibrating measures a GPU, but {device.why_no_gpu()}; run 'minrnn-gen doctor' to check the installation"
        )
    rates, clock_hz = measured_rates(command)
    when = datetime.now(UTC).date().isoformat()
    source = (
        f"measured: minrnn-gen {__version__} calibrate on {live.name}, driver {driver_release() or 'unknown'}, SMs at "
        f"{clock_hz / 1e9:.3g} GHz, {toolchain_version()}, {when}"
    )
    return with_rates(live.profile, rates, dict.fromkeys(rates, source))


def measured_rates(command: Sequence[str] = CHILD) -> tuple[dict[str, float], float]:
    """Return the rates of the GPU at hand, by the names of `MEASURED`, and the clock of its SMs in Hz.

    Raises ToolchainMissing where the measurement does not finish.
    """
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS_MOST, check=True)
        reply = json.loads(done.stdout)
        return dict(reply["rates"]), float(reply["sm_clock_hz"])
    except subprocess.TimeoutExpired:
        raise ToolchainMissing(f"measuring did not end within {SECONDS_MOST:g} s; is this GPU busy with other work?") from None
    except subprocess.CalledProcessError as failed:
        last = failed.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["nothing was said"]
        raise ToolchainMissing(f"measuring ended with status {failed.returncode}: {last[0][:300]}") from failed
    except (ValueError, KeyError, TypeError) as damaged:
        raise ToolchainMissing(f"measuring gave no numbers ({damaged})") from damaged
