"""Results of measuring candidates, each with its setting: one line of JSON each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import KernelPass, Problem

# measured: right, with times; wrong: its results are; broken: takes more than its plan promised; refused: does not compile;
# failed: it, or the process that measured it, came to an error; hung: it had not ended after the time it was given.
Outcome = Literal["measured", "wrong", "broken", "refused", "failed", "hung"]
# The line of a candidate with all its times has about a thousand bytes.
LINE_BYTES_MOST = 1 << 16
TIMES_MOST = 1024

_Text = Annotated[str, Field(max_length=512)]
_Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]{0,128}$")]
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Count = Annotated[int, Field(ge=0, le=2**62)]
_Variable = Annotated[int, Field(ge=-(2**62), le=2**62)]
# Years: sums of a few stay finite.
_Microseconds = Annotated[float, Field(gt=0, le=1e15)]
_Seconds = Annotated[float, Field(ge=0, le=1e9)]
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
CandidateKey = tuple[str, tuple[tuple[str, int], ...]]


@dataclass(frozen=True)
class Setting:
    """Setting of a time: a problem with typical sizes, on a GPU, with a driver, a toolchain and templates.

    `gpu` is the profile's name, `device` the driver's name of the GPU. `device` and `driver` are empty where there is no GPU,
    `toolchain` where there is no NVRTC. `sources` is the digest of the templates.
    """

    gpu: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,128}$")]
    arch: _Word
    sm_count: _Count
    device: _Text
    driver: _Text
    toolchain: _Text
    sources: _Digest
    cell: _Word
    cell_digest: _Digest
    kernel_pass: KernelPass
    precision: _Word
    functions: _Word
    layout: _Word
    matrix_product: _Word
    specialization: Specialization
    hidden_size: _Count
    heads: _Count
    batch: _Count
    time: _Count

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Fields that may differ between a setting and its nearest."""
        return self.hidden_size, self.heads, self.batch, self.time

    @property
    def without_sizes(self) -> Setting:
        """Fields that must be equal, whatever the sizes, the driver and the toolchain."""
        return replace(self, hidden_size=0, heads=0, batch=0, time=0, device="", driver="", toolchain="")


@dataclass(frozen=True)
class Result:
    """Result of one visit to a candidate; results of several visits add up.

    `error_share` is the largest error of an element as a share of its tolerance. `note` says what went wrong. `compile_seconds`
    and `when` (UTC, ISO 8601) are for readers.
    """

    setting: Setting
    family: _Word
    variables: Annotated[Mapping[_Word, _Variable], Field(min_length=1, max_length=64)]
    outcome: Outcome
    times_us: Annotated[tuple[_Microseconds, ...], Field(max_length=TIMES_MOST)] = ()
    predicted_us: _Amount | None = None
    error_share: _Amount | None = None
    compile_seconds: _Seconds | None = None
    note: _Text = ""
    when: Annotated[str, Field(max_length=40)] = ""

    @property
    def candidate(self) -> CandidateKey:
        """The candidate, as a key."""
        return key_of(self.family, self.variables)

    def line(self) -> str:
        """Return the result as one line of JSON, without its end."""
        import json

        data = asdict(self)
        data["variables"] = dict(self.variables)
        data = {name: value for name, value in data.items() if value not in (None, "", (), [])}
        return json.dumps(data, separators=(",", ":"), allow_nan=False)


def result_from(line: str | bytes) -> Result:
    """Read a result back; raises ValueError for a line that is none."""
    if len(line) > LINE_BYTES_MOST:
        raise ValueError(f"{len(line)} bytes")
    result = _RESULT.validate_json(line, strict=True)
    if result.outcome == "measured" and not result.times_us:
        raise ValueError("measured, but without times")
    return result


def key_of(family: str, variables: Mapping[str, int]) -> CandidateKey:
    """Return the key that distinguishes a candidate from the others."""
    return family, tuple(sorted(variables.items()))


def setting_of(problem: Problem, cell_digest: str, *, device: str, driver: str, toolchain: str, sources: str) -> Setting:
    """Return the setting of a problem."""
    return Setting(
        gpu=problem.gpu.name,
        arch=problem.gpu.arch,
        sm_count=problem.gpu.sm_count,
        device=device,
        driver=driver,
        toolchain=toolchain,
        sources=sources,
        cell=problem.cell.name,
        cell_digest=cell_digest,
        kernel_pass=problem.kernel_pass,
        precision=problem.precision.name,
        functions=problem.precision.functions,
        layout=problem.layout,
        matrix_product=problem.matrix_product if problem.cell.has_matrix else "",
        specialization=problem.specialization,
        hidden_size=problem.hidden_size,
        heads=problem.heads,
        batch=problem.batch,
        time=problem.time,
    )


def distance(setting: Setting, other: Setting) -> float:
    """Return how far apart two settings' sizes are: the sum of the powers of two between them."""
    return sum(abs(math.log2(a / b)) if a and b else math.inf * (a != b) for a, b in _pairs(setting, other) if a != b)


def median_us(times_us: tuple[float, ...]) -> float:
    """Return the median time of a candidate."""
    return statistics.median(times_us)


def _pairs(setting: Setting, other: Setting) -> list[tuple[int, int]]:
    return list(zip(setting.sizes, other.sizes, strict=True))


_RESULT = TypeAdapter(Result)
