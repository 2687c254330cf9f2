"""Results in the exchange format of autotuning tools: T4 results, version 1.0.0 (Open Autotuning Results)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minrnn_gen.tune.results import Outcome, Result, median_us

SCHEMA_VERSION = "1.0.0"
# The words of the format; its tools write and read "correct" where nothing is wrong.
_INVALIDITY: dict[Outcome, str] = {
    "measured": "correct",
    "wrong": "correctness",
    "broken": "constraints",
    "refused": "compile",
    "failed": "runtime",
    "hung": "timeout",
}
_US_PER_MS = 1e3


def t4_of(results: Iterable[Result]) -> dict[str, Any]:
    """Return results as one T4 document; times are in milliseconds, compilation too."""
    return {"schema_version": SCHEMA_VERSION, "results": [_entry(result) for result in results]}


def _entry(result: Result) -> dict[str, Any]:
    runtimes_ms = [time_us / _US_PER_MS for time_us in result.times_us]
    measurements = []
    if runtimes_ms:
        measurements.append({"name": "time", "value": median_us(result.times_us) / _US_PER_MS, "unit": "ms"})
    if result.predicted_us is not None:
        measurements.append({"name": "predicted_time", "value": result.predicted_us / _US_PER_MS, "unit": "ms"})
    return {
        "timestamp": result.when,
        # One document may hold many kernels: what was tuned stands with what was chosen.
        "configuration": {"kernel": _kernel_of(result), "family": result.family, **result.variables},
        "objectives": ["time"],
        "times": {
            "compilation_time": 1e3 * (result.compile_seconds or 0.0),
            "runtimes": runtimes_ms,
            "framework": 0.0,
            "search_algorithm": 0.0,
            "validation": 0.0,
        },
        "invalidity": _INVALIDITY[result.outcome],
        "correctness": 0 if result.outcome == "wrong" else 1,
        "measurements": measurements,
    }


def _kernel_of(result: Result) -> str:
    setting = result.setting
    flags = ("reverse", "resets", "packed")
    specialization = "".join(f"_{name}" for name in flags if getattr(setting.specialization, name))
    kept = "" if setting.specialization.states_out == "none" else f"_keeps_{setting.specialization.states_out}"
    return (
        f"{setting.cell}_{setting.kernel_pass}_{setting.precision}_{setting.layout}_h{setting.hidden_size}x{setting.heads}_b{setting.batch}_t{setting.time}"
        f"_a{setting.specialization.alignment_bytes}{specialization}{kept}_{setting.gpu}"
    )
