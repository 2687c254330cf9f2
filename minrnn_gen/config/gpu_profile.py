"""Profile of a GPU: one YAML file per GPU, and the same facts asked of a live device.

Nothing here touches a GPU: a live device arrives as its name and the driver's attributes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import pydantic

from minrnn_gen.config import documents
from minrnn_gen.config.gpu_bounds import COMPUTE_CAPABILITIES, bounded, contradictions
from minrnn_gen.config.gpu_names import is_path
from minrnn_gen.config.gpu_names import profile_names as profile_names
from minrnn_gen.config.gpu_names import shipped_name as shipped_name
from minrnn_gen.config.package_files import package_folder
from minrnn_gen.errors import BadInput, nearest_name, shown

DEFAULT_GPU = "h200"

# Where nobody measured the copy bandwidth: the lowest share of the datasheet's that a copy was seen to reach (A100 0.89,
# H200 0.89, L40 0.92, A40 0.94: a device copy on the H200, gpu-benches gpu-stream "scale" on the others).
COPY_EFFICIENCY = 0.88
# Datasheets round (4.8 TB/s on the H200, 4.81 by its clocks) and board makers raise clocks (RTX 3090 boards report 1.695 to
# 1.74 GHz); a GPU with another memory or of another model differs by more.
CLOCK_TOLERANCE = 0.1
# The numbers that `minrnn-gen calibrate` measures; one GPU's say nothing about another's.
MEASURED = (
    "copy_bandwidth_bytes_per_s",
    "memory_latency_ns",
    "launch_us",
    "block_exchange_ns",
    "cluster_exchange_ns",
    "grid_exchange_ns",
    "products_per_sm_cycle",
    "transcendentals_per_sm_cycle",
)

# The source of such a number, if copied from another GPU's profile.
NOT_MEASURED = "not measured on this GPU"

DeviceName = Annotated[str, pydantic.Field(pattern=r"^[ -~]+$")]


class GpuProfile(pydantic.BaseModel):
    """Facts about one GPU model that planning needs; `docs/gpu-profiles.md` says where each number is found.

    A *partition* is one of the quarters of an SM, each with its own scheduler and its own share of the registers.
    `device_names` are the driver's names of the devices for which every number holds; `sources` says of each number where it
    comes from. `cluster_size_max` is in blocks, 1 where the GPU has no clusters; above `cluster_size_portable_max` a kernel
    must opt in. Optional numbers are measured ones: `launch_us` of an empty kernel, an exchange of values and the barrier with
    it within a block, a cluster or the grid, and what the tensor cores of an SM (multiply-adds in 16 bits) and its special
    functions do in a cycle. `checked` says what was run on such a GPU, and when; without it nothing ever was.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, pydantic.Field(pattern=r"^[a-z0-9_]+$")]
    device_names: Annotated[tuple[DeviceName, ...], pydantic.Field(min_length=1)]
    checked: Annotated[str, pydantic.Field(pattern=r"^[ -~]*[!-~][ -~]*$")] | None = None
    compute_capability: Annotated[str, pydantic.Field(pattern=r"^[1-9][0-9]?\.[0-9]$")]
    sm_count: Annotated[int, bounded("sm_count")]
    partitions_per_sm: Annotated[int, bounded("partitions_per_sm")]
    warp_threads: Literal[32]
    max_threads_per_sm: Annotated[int, bounded("max_threads_per_sm")]
    max_threads_per_block: Annotated[int, bounded("max_threads_per_block")]
    max_blocks_per_sm: Annotated[int, bounded("max_blocks_per_sm")]
    registers_per_sm: Annotated[int, bounded("registers_per_sm")]
    registers_per_block_max: Annotated[int, bounded("registers_per_block_max")]
    registers_per_thread_max: Annotated[int, bounded("registers_per_thread_max")]
    register_unit_per_warp: Annotated[int, bounded("register_unit_per_warp")]
    shared_bytes_per_sm: Annotated[int, bounded("shared_bytes_per_sm")]
    shared_bytes_per_block_max: Annotated[int, bounded("shared_bytes_per_block_max")]
    shared_bytes_reserved_per_block: Annotated[int, bounded("shared_bytes_reserved_per_block")]
    shared_unit_bytes: Annotated[int, bounded("shared_unit_bytes")]
    l2_bytes: Annotated[int, bounded("l2_bytes")]
    memory_bytes: Annotated[int, bounded("memory_bytes")]
    memory_bandwidth_bytes_per_s: Annotated[float, bounded("memory_bandwidth_bytes_per_s")]
    copy_bandwidth_bytes_per_s: Annotated[float, bounded("copy_bandwidth_bytes_per_s")] | None = None
    memory_latency_ns: Annotated[float, bounded("memory_latency_ns")]
    launch_us: Annotated[float, bounded("launch_us")] | None = None
    block_exchange_ns: Annotated[float, bounded("block_exchange_ns")] | None = None
    cluster_exchange_ns: Annotated[float, bounded("cluster_exchange_ns")] | None = None
    grid_exchange_ns: Annotated[float, bounded("grid_exchange_ns")] | None = None
    products_per_sm_cycle: Annotated[float, bounded("products_per_sm_cycle")] | None = None
    transcendentals_per_sm_cycle: Annotated[float, bounded("transcendentals_per_sm_cycle")] | None = None
    sm_clock_hz: Annotated[float, bounded("sm_clock_hz")]
    cluster_size_portable_max: Annotated[int, bounded("cluster_size_portable_max")]
    cluster_size_max: Annotated[int, bounded("cluster_size_max")]
    sources: Mapping[str, str]

    @pydantic.field_validator("compute_capability", mode="before")
    @classmethod
    def _capability_is_text(cls, value: object) -> object:
        if isinstance(value, float):
            raise ValueError(f'{value} is a number, and 8.10 would be 8.1; write it in quotes, "{value}"')
        return value

    @pydantic.model_validator(mode="after")
    def _every_number_has_a_source(self) -> GpuProfile:
        numbers, wrong = self._numbers(), []
        if without := [field for field in numbers if not self.sources.get(field, "").strip()]:
            have = "has no source" if len(without) == 1 else "have no source"
            wrong.append(f"{', '.join(without)} {have}; sources must say where each number comes from")
        for field in self.sources:
            if field in MEASURED and field not in numbers:
                wrong.append(f"{field} is missing, but sources says where it comes from; give the number, or remove its source")
            elif field not in numbers:
                wrong.append(f"sources names {field}, which is no number of a profile{nearest_name(field, numbers)}")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    @pydantic.model_validator(mode="after")
    def _numbers_agree(self) -> GpuProfile:
        if wrong := contradictions(dict(self)):
            raise ValueError("; ".join(wrong))
        return self

    def share(self, count: int) -> GpuProfile:
        """Return the GPU with one of `count` equal shares of its SMs, for concurrent kernels."""
        sources = {**self.sources, "sm_count": f"a share of {self.sm_count} SMs, one of {count}"}
        return self.model_copy(update={"sm_count": max(1, self.sm_count // count), "sources": sources})

    @property
    def arch(self) -> str:
        """The name NVRTC knows the architecture by, as "sm_90"."""
        return "sm_" + self.compute_capability.replace(".", "")

    @property
    def has_async_copy(self) -> bool:
        """Whether `cp.async` exists (compute capability 8.0)."""
        return self._capability >= (8, 0)

    @property
    def has_bulk_copy(self) -> bool:
        """Whether bulk copies exist (compute capability 9.0)."""
        return self._capability >= (9, 0)

    @property
    def divides_registers(self) -> bool:
        """Whether warpgroups may redistribute a block's registers by `setmaxnreg`, which ptxas ignores for sm_120."""
        return (9, 0) <= self._capability < (12, 0)

    @property
    def has_bf16_arithmetic(self) -> bool:
        """Whether bf16 conversions, arithmetic and tensor-core products exist, and tf32 products (compute capability 8.0)."""
        return self._capability >= (8, 0)

    @property
    def has_clusters(self) -> bool:
        """Whether blocks can form clusters and read each other's shared memory (compute capability 9.0)."""
        return self.cluster_size_max > 1

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Bandwidth of a copy, bytes read and written together: measured, else `COPY_EFFICIENCY` of the datasheet's."""
        return self.copy_bandwidth_bytes_per_s or COPY_EFFICIENCY * self.memory_bandwidth_bytes_per_s

    @property
    def bytes_in_flight_per_sm(self) -> int:
        """Bytes each SM must have under way to keep the memory busy: latency times bandwidth (Little's law), over the SMs.

        Uses the latency of an idle memory and so is a lower bound: under load the latency is higher.
        """
        return math.ceil(self.memory_latency_ns * 1e-9 * self.bandwidth_bytes_per_s / self.sm_count)

    @property
    def assumed(self) -> tuple[str, ...]:
        """The numbers of `MEASURED` that this GPU has but that were never measured on it."""
        has_none = {"cluster_exchange_ns": not self.has_clusters, "products_per_sm_cycle": not self.has_bf16_arithmetic}
        measured = {field for field in MEASURED if NOT_MEASURED not in self.sources.get(field, NOT_MEASURED)}
        return tuple(field for field in MEASURED if field not in measured and not has_none.get(field))

    @property
    def _capability(self) -> tuple[int, int]:
        return _two_numbers(self.compute_capability)

    def _numbers(self) -> dict[str, int | float]:
        return {field: value for field in type(self).model_fields if isinstance(value := getattr(self, field), int | float)}


@cache
def _two_numbers(capability: str) -> tuple[int, int]:
    # Kept, since planning asks for it thousands of times.
    major, minor = capability.split(".")
    return int(major), int(minor)


def _refused(message: str) -> BadInput:
    return BadInput(f"gpu: {message}")


def profile_bytes(name_or_path: str, refusal: Callable[[str], BadInput] = _refused, neighbours_in: Path | None = None) -> bytes:
    """Return the bytes of a profile's file, for the cache key; an unknown name or unreadable file is `BadInput`.

    `refusal` makes the error of an unknown name, so that it says who named it; `neighbours_in` is as in `read_bytes`.
    """
    path = _file_of(name_or_path, refusal)
    content = documents.read_bytes(path, name_or_path, ordinary=True, neighbours_in=neighbours_in)
    documents.demand_key(content, "compute_capability", name_or_path, "GPU profile")
    return content


def load_profile(
    name_or_path: str, refusal: Callable[[str], BadInput] = _refused, neighbours_in: Path | None = None
) -> GpuProfile:
    """Read the shipped profile of that name, or the YAML file at that path.

    An unknown name (as `refusal` says it), an unreadable file and a file that is no valid profile are `BadInput`.
    """
    content = profile_bytes(name_or_path, refusal, neighbours_in)
    profile = read_profile(content, name_or_path)
    if profile.compute_capability not in COMPUTE_CAPABILITIES:
        raise documents.document_of(content, name_or_path).error(
            ("compute_capability",),
            f"'{profile.compute_capability}' is given, which no GPU has; allowed: {', '.join(COMPUTE_CAPABILITIES)}",
        )
    return profile


def read_profile(content: bytes, where: str) -> GpuProfile:
    """Read the profile of a GPU that exists, of any compute capability: it may be newer than `COMPUTE_CAPABILITIES`.

    An invalid profile is `BadInput`; `where` is the file's name in the error.
    """
    return documents.validated(documents.document_of(content, where), GpuProfile)


def _file_of(name_or_path: str, refusal: Callable[[str], BadInput]) -> Path:
    if name := shipped_name(name_or_path):
        return package_folder("gpu_profiles") / f"{name}.yaml"
    path = Path(name_or_path)
    if not is_path(name_or_path):
        names = profile_names()
        nearest = nearest_name(name_or_path, names)
        allowed = f"give one of {', '.join(names)}, or the path of a .yaml file"
        raise refusal(f"no GPU profile is called {shown(name_or_path)}{nearest}; {allowed}")
    return path


def profile_for_device(device_name: str, compute_capability: str) -> GpuProfile | None:
    """Return the shipped profile that lists the driver's `device_name` and has that compute capability ("9.0"), or None."""
    for name in profile_names():
        # Most files are ruled out by their bytes: parsing all of them would take longer than a warm compile.
        if device_name.encode() in profile_bytes(name):
            profile = load_profile(name)
            if device_name in profile.device_names and compute_capability == profile.compute_capability:
                return profile
    return None


# Field: the driver's attribute with the same meaning and unit, as CuPy spells it.
_ATTRIBUTE_OF = {
    "sm_count": "MultiProcessorCount",
    "warp_threads": "WarpSize",
    "max_threads_per_sm": "MaxThreadsPerMultiProcessor",
    "max_threads_per_block": "MaxThreadsPerBlock",
    "max_blocks_per_sm": "MaxBlocksPerMultiprocessor",
    "registers_per_sm": "MaxRegistersPerMultiprocessor",
    "registers_per_block_max": "MaxRegistersPerBlock",
    "shared_bytes_per_sm": "MaxSharedMemoryPerMultiprocessor",
    "shared_bytes_per_block_max": "MaxSharedMemoryPerBlockOptin",
    "shared_bytes_reserved_per_block": "ReservedSharedMemoryPerBlock",
    "l2_bytes": "L2CacheSize",
}


def _live_rates(attributes: Mapping[str, int]) -> dict[str, tuple[float, str]]:
    """Return each rate that the attributes give (clocks in kHz, 0 where the driver no longer reports them), and from which."""
    rates = {}
    if clock_khz := attributes.get("ClockRate"):
        rates["sm_clock_hz"] = (clock_khz * 1e3, "ClockRate")
    if (memory_khz := attributes.get("MemoryClockRate")) and (bus_bits := attributes.get("GlobalMemoryBusWidth")):
        # Every memory since GDDR5 and HBM moves two words per reported clock.
        bandwidth = 2 * memory_khz * 1e3 * bus_bits / 8
        rates["memory_bandwidth_bytes_per_s"] = (bandwidth, "MemoryClockRate and GlobalMemoryBusWidth")
    return rates


def profile_from_attributes(device_name: str, compute_capability: str, attributes: Mapping[str, int]) -> GpuProfile:
    """Return a profile for a live GPU of that compute capability ("9.0") that no file describes.

    `attributes` are the driver's, named as `cupy.cuda.Device.attributes` names them, and optionally `TotalGlobalMem` (bytes).
    Missing ones come from the most similar shipped profile; `sources` says so field by field. A GPU older than every shipped
    one and attributes that contradict each other are `BadInput`.
    """
    shipped = [load_profile(name) for name in profile_names()]
    similar = _most_similar(shipped, device_name, compute_capability, attributes.get("MultiProcessorCount"))
    reported_rates: dict[str, tuple[float, str]] = {
        field: (attributes[attribute], attribute) for field, attribute in _ATTRIBUTE_OF.items() if attribute in attributes
    }
    reported_rates |= _live_rates(attributes)
    if "TotalGlobalMem" in attributes:
        reported_rates["memory_bytes"] = (attributes["TotalGlobalMem"], "TotalGlobalMem")
    # Measurements on the similar GPU say nothing about this one, except for a latency, which every GPU needs.
    values = similar.model_dump(exclude={*MEASURED, "checked", "sources"} - {"memory_latency_ns"})
    sources = {field: f"assumed, as {similar.name}" for field in similar.sources if field in values}
    values |= {field: value for field, (value, _) in reported_rates.items()}
    sources |= {field: f"CUDA device attribute {attribute}" for field, (_, attribute) in reported_rates.items()}
    name = re.sub(r"[^a-z0-9]+", "_", device_name.lower()).strip("_")
    values |= {"name": name, "device_names": [device_name], "compute_capability": compute_capability, "sources": sources}
    return documents.validated(documents.Document(device_name, values), GpuProfile)


def _most_similar(profiles: list[GpuProfile], device_name: str, capability: str, sm_count: int | None) -> GpuProfile:
    """Return the profile of the newest architecture that is no newer than `capability`, with the nearest number of SMs."""
    major, minor = capability.split(".")
    older = [profile for profile in profiles if profile._capability <= (int(major), int(minor))]
    if not older:
        oldest = min(profiles, key=lambda profile: profile._capability)
        raise BadInput(
            f"gpu: {device_name} has compute capability {capability}, older than the oldest supported, "
            f"{oldest.compute_capability}; name a GPU with gpu:, or use the CPU"
        )
    newest = max(profile._capability for profile in older)
    kin = [profile for profile in older if profile._capability == newest]
    return min(kin, key=lambda profile: (abs(profile.sm_count - (sm_count or profile.sm_count)), profile.name))


def profile_mismatches(
    profile: GpuProfile, device_name: str, compute_capability: str, attributes: Mapping[str, int]
) -> list[str]:
    """Return one sentence for each fact of `profile` that the live device contradicts; attributes it lacks are not compared.

    `attributes` as for `profile_from_attributes`. Clock, bandwidth and memory may differ by `CLOCK_TOLERANCE`,
    everything else must be equal.
    """
    mismatches = []
    if device_name not in profile.device_names:
        mismatches.append(f"device_names: the profile has {', '.join(profile.device_names)}, the device {device_name}")
    reported: dict[str, object] = {
        field: attributes[attribute] for field, attribute in _ATTRIBUTE_OF.items() if attribute in attributes
    }
    for field, value in (reported | {"compute_capability": compute_capability}).items():
        if value != getattr(profile, field):
            mismatches.append(f"{field}: the profile has {getattr(profile, field)}, the device {value}")
    rates = {field: rate for field, (rate, _) in _live_rates(attributes).items()}
    if "TotalGlobalMem" in attributes:
        rates["memory_bytes"] = attributes["TotalGlobalMem"]
    for field, rate in rates.items():
        stated = getattr(profile, field)
        if abs(rate - stated) > CLOCK_TOLERANCE * stated:
            mismatches.append(f"{field}: the profile has {stated:.4g}, the device {rate:.4g}")
    return mismatches
