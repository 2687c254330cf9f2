"""Bounds of a GPU's numbers, with unit and reason, and contradictions between numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pydantic


@dataclass(frozen=True)
class Bound:
    """The unit of a number, the least and the greatest value that a profile may have, and why."""

    unit: str
    least: float
    most: float
    reason: str


# The targets of NVRTC 13, from the first with 16-bit tensor cores that it still knows.
COMPUTE_CAPABILITIES = ("7.5", "8.0", "8.6", "8.7", "8.8", "8.9", "9.0", "10.0", "10.3", "10.7", "11.0", "12.0", "12.1")

# A number of a shipped GPU that is 1,000 times off is beyond its bounds; GPUs several times larger are within.
BOUNDS = {
    "sm_count": Bound("SMs", 1, 1024, "an instance of MIG has as few as 14, a whole GPU up to 170"),
    "partitions_per_sm": Bound("partitions", 1, 16, "4 since 2014"),
    "max_threads_per_sm": Bound("threads", 1024, 8192, "1,024 on Turing, at most 2,048 since"),
    "max_threads_per_block": Bound("threads", 512, 4096, "1,024 since 2010"),
    "max_blocks_per_sm": Bound("blocks", 8, 128, "16 to 32"),
    "registers_per_sm": Bound("registers of 32 bits", 2**15, 2**19, "65,536 since 2012"),
    "registers_per_block_max": Bound("registers of 32 bits", 2**15, 2**19, "65,536 since 2014"),
    "registers_per_thread_max": Bound("registers of 32 bits", 16, 1023, "255, for which an instruction has 8 bits"),
    "register_unit_per_warp": Bound("registers of 32 bits", 32, 4096, "256 since 2012"),
    "shared_bytes_per_sm": Bound("bytes", 48 * 2**10, 2**21, "64 KiB on Turing, 228 KiB on Hopper"),
    "shared_bytes_per_block_max": Bound(
        "bytes", 48 * 2**10, 2**21, "every block has 48 KiB, and up to 227 KiB after opting in"
    ),
    "shared_bytes_reserved_per_block": Bound("bytes", 0, 2**14, "1 KiB since compute capability 8.0"),
    "shared_unit_bytes": Bound("bytes", 32, 2**14, "128 or 256"),
    "l2_bytes": Bound("bytes", 2**18, 2**31, "512 KiB on a small Turing, 126 MiB on a B200"),
    "memory_bytes": Bound("bytes", 2**30, 2**43, "2 GiB on a small Turing, 288 GB on a B300"),
    "memory_bandwidth_bytes_per_s": Bound("bytes per second", 2e10, 1e14, "3.4e10 on a Jetson Orin Nano, 8e12 on a B200"),
    "copy_bandwidth_bytes_per_s": Bound("bytes per second", 1e10, 1e14, "some nine tenths of the memory's"),
    "memory_latency_ns": Bound("ns", 50, 10_000, "250 to 850"),
    "launch_us": Bound("us", 0.2, 1000, "2 to 10, more in a virtual machine"),
    "block_exchange_ns": Bound("ns", 2, 5000, "25.5 on an H200"),
    "cluster_exchange_ns": Bound("ns", 10, 50_000, "133.7 on an H200"),
    "grid_exchange_ns": Bound("ns", 50, 200_000, "931 on an H200"),
    "products_per_sm_cycle": Bound("multiply-adds per SM and cycle", 16, 2**17, "512 on Turing, 4,096 on Blackwell"),
    "transcendentals_per_sm_cycle": Bound("functions per SM and cycle", 1, 512, "16 since 2016"),
    "sm_clock_hz": Bound("Hz", 1e8, 2e10, "0.6e9 on a Jetson, 2.6e9 on a GeForce"),
    "cluster_size_portable_max": Bound("blocks", 1, 64, "8 since compute capability 9.0, 1 below"),
    "cluster_size_max": Bound("blocks", 1, 64, "16 on Hopper, 1 below"),
}


def bounded(field: str) -> Any:
    """Return the bounds of a profile's field for pydantic; its JSON schema has the unit and the reason too."""
    bound = BOUNDS[field]
    return pydantic.Field(ge=bound.least, le=bound.most, json_schema_extra={"unit": bound.unit, "reason": bound.reason})


def contradictions(profile: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each number of a profile that another one forbids."""
    in_use = "shared_bytes_per_block_max + shared_bytes_reserved_per_block"
    numbers = {**profile, in_use: profile["shared_bytes_per_block_max"] + profile["shared_bytes_reserved_per_block"]}
    at_most = (
        ("max_threads_per_block", "max_threads_per_sm"),
        ("registers_per_block_max", "registers_per_sm"),
        (in_use, "shared_bytes_per_sm"),
        ("copy_bandwidth_bytes_per_s", "memory_bandwidth_bytes_per_s"),
        ("cluster_size_portable_max", "cluster_size_max"),
    )
    multiples = (
        ("shared_bytes_per_sm", "shared_unit_bytes"),
        ("shared_bytes_per_block_max", "shared_unit_bytes"),
        ("shared_bytes_reserved_per_block", "shared_unit_bytes"),
        ("max_threads_per_sm", "warp_threads"),
    )
    wrong = [
        f"{field} is {numbers[field]}, more than {most}, {numbers[most]}"
        for field, most in at_most
        if (numbers[field] or 0) > numbers[most]
    ]
    wrong += [
        f"{field} is {numbers[field]}, no multiple of {unit}, {numbers[unit]}"
        for field, unit in multiples
        if numbers[field] % numbers[unit]
    ]
    if numbers["cluster_size_max"] > 1 and float(profile["compute_capability"]) < 9:
        wrong.append(f"cluster_size_max is {numbers['cluster_size_max']}, but clusters need compute capability 9.0: give 1")
    return wrong
