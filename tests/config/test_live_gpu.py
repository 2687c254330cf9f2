"""Profiles of live GPUs, from attributes as drivers report them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minrnn_gen.config.gpu_profile import load_profile, profile_from_attributes, profile_mismatches
from minrnn_gen.errors import BadInput

# What CuPy reports on an H200, of its attributes those used here.
H200 = {
    "ClockRate": 1980000,
    "GlobalMemoryBusWidth": 6016,
    "L2CacheSize": 62914560,
    "MaxBlocksPerMultiprocessor": 32,
    "MaxRegistersPerBlock": 65536,
    "MaxRegistersPerMultiprocessor": 65536,
    "MaxSharedMemoryPerBlock": 49152,
    "MaxSharedMemoryPerBlockOptin": 232448,
    "MaxSharedMemoryPerMultiprocessor": 233472,
    "MaxThreadsPerBlock": 1024,
    "MaxThreadsPerMultiProcessor": 2048,
    "MemoryClockRate": 3201000,
    "MultiProcessorCount": 132,
    "ReservedSharedMemoryPerBlock": 1024,
    "WarpSize": 32,
}
# What deviceQuery prints: name, capability, SMs, threads per SM, clock MHz, memory clock MHz, bus bits, L2 bytes, memory bytes.
DEVICE_QUERIES = {
    "h100": ("NVIDIA H100 80GB HBM3", "9.0", 132, 2048, 1980, 2619, 5120, 52428800, 85045477376),
    "a100": ("NVIDIA A100-SXM4-80GB", "8.0", 108, 2048, 1410, 1593, 5120, 41943040, 85100068864),
    "l40s": ("NVIDIA L40S", "8.9", 142, 1536, 2520, 9001, 384, 100663296, 47576711168),
    "l4": ("NVIDIA L4", "8.9", 58, 1536, 2040, 6251, 192, 50331648, 23612293120),
    "t4": ("Tesla T4", "7.5", 40, 1024, 1590, 5001, 256, 4194304, 15843721216),
    "rtx3090": ("NVIDIA GeForce RTX 3090", "8.6", 82, 1536, 1740, 9751, 384, 6291456, 25414860800),
    "rtx4090": ("NVIDIA GeForce RTX 4090", "8.9", 128, 1536, 2535, 10501, 384, 75497472, 25756696576),
    "rtx5090": ("NVIDIA GeForce RTX 5090", "12.0", 170, 1536, 2407, 14001, 512, 100663296, 33668857856),
}
RTX_5080 = {
    **{
        name: H200[name] for name in ("MaxRegistersPerBlock", "MaxRegistersPerMultiprocessor", "MaxThreadsPerBlock", "WarpSize")
    },
    "GlobalMemoryBusWidth": 256,
    "L2CacheSize": 67108864,
    "MaxBlocksPerMultiprocessor": 24,
    "MaxSharedMemoryPerBlockOptin": 101376,
    "MaxSharedMemoryPerMultiprocessor": 102400,
    "MaxThreadsPerMultiProcessor": 1536,
    "MemoryClockRate": 15001000,
    "MultiProcessorCount": 84,
    "ReservedSharedMemoryPerBlock": 1024,
}


def queried(name: str) -> tuple[str, str, dict[str, int]]:
    device_name, capability, sms, threads, clock_mhz, memory_mhz, bus_bits, l2_bytes, memory_bytes = DEVICE_QUERIES[name]
    attributes = {
        "MultiProcessorCount": sms,
        "MaxThreadsPerMultiProcessor": threads,
        "ClockRate": clock_mhz * 1000,
        "MemoryClockRate": memory_mhz * 1000,
        "GlobalMemoryBusWidth": bus_bits,
        "L2CacheSize": l2_bytes,
        "TotalGlobalMem": memory_bytes,
    }
    return device_name, capability, attributes


def test_the_h200_file_agrees_with_an_h200() -> None:
    assert profile_mismatches(load_profile("h200"), "NVIDIA H200", "9.0", {**H200, "TotalGlobalMem": 150109880320}) == []


@pytest.mark.parametrize("name", DEVICE_QUERIES)
def test_each_file_agrees_with_a_device_query(name: str) -> None:
    assert profile_mismatches(load_profile(name), *queried(name)) == []


@pytest.mark.parametrize(
    ("attribute", "value", "field"),
    [
        ("MultiProcessorCount", 114, "sm_count"),
        ("WarpSize", 64, "warp_threads"),
        ("MaxThreadsPerMultiProcessor", 1536, "max_threads_per_sm"),
        ("MaxThreadsPerBlock", 512, "max_threads_per_block"),
        ("MaxBlocksPerMultiprocessor", 24, "max_blocks_per_sm"),
        ("MaxRegistersPerMultiprocessor", 131072, "registers_per_sm"),
        ("MaxRegistersPerBlock", 32768, "registers_per_block_max"),
        ("MaxSharedMemoryPerMultiprocessor", 102400, "shared_bytes_per_sm"),
        ("MaxSharedMemoryPerBlockOptin", 101376, "shared_bytes_per_block_max"),
        ("ReservedSharedMemoryPerBlock", 0, "shared_bytes_reserved_per_block"),
        ("L2CacheSize", 52428800, "l2_bytes"),
        ("ClockRate", 1500000, "sm_clock_hz"),
        ("MemoryClockRate", 2619000, "memory_bandwidth_bytes_per_s"),
        ("GlobalMemoryBusWidth", 5120, "memory_bandwidth_bytes_per_s"),
        ("TotalGlobalMem", 100 * 2**30, "memory_bytes"),
    ],
)
def test_a_fact_that_differs_is_the_one_that_is_told(attribute: str, value: int, field: str) -> None:
    told = profile_mismatches(load_profile("h200"), "NVIDIA H200", "9.0", {**H200, attribute: value})
    assert [sentence.split(":")[0] for sentence in told] == [field]


def test_another_device_is_told_by_name_and_capability() -> None:
    assert profile_mismatches(load_profile("h200"), "NVIDIA B300", "10.3", H200) == [
        "device_names: the profile has NVIDIA H200, the device NVIDIA B300",
        "compute_capability: the profile has 9.0, the device 10.3",
    ]


@given(st.sets(st.sampled_from(sorted(H200))))
def test_what_the_driver_does_not_tell_is_not_compared(missing: set[str]) -> None:
    attributes = {name: value for name, value in H200.items() if name not in missing}
    assert profile_mismatches(load_profile("h200"), "NVIDIA H200", "9.0", attributes) == []


def test_a_gpu_without_a_file_takes_the_rest_from_the_nearest_of_its_kind() -> None:
    profile = profile_from_attributes("NVIDIA GeForce RTX 5080", "12.0", RTX_5080)
    assert profile.name == "nvidia_geforce_rtx_5080"
    assert profile.arch == "sm_120"
    assert profile.sm_count == 84
    assert profile.sources["sm_count"] == "CUDA device attribute MultiProcessorCount"
    assert profile.memory_bandwidth_bytes_per_s == pytest.approx(960e9, rel=1e-3)
    # Nothing told of these: the file of the other sm_120 GPU stands in, and says so.
    similar = load_profile("rtx5090")
    for field in ("sm_clock_hz", "memory_latency_ns", "memory_bytes", "partitions_per_sm", "cluster_size_max"):
        assert getattr(profile, field) == getattr(similar, field)
        assert profile.sources[field] == "assumed, as rtx5090"
    assert profile_mismatches(profile, "NVIDIA GeForce RTX 5080", "12.0", RTX_5080) == []


def test_a_bandwidth_measured_on_another_gpu_is_not_taken_over() -> None:
    assert profile_from_attributes("NVIDIA H200 NVL", "9.0", H200).copy_bandwidth_bytes_per_s is None


@pytest.mark.parametrize(
    ("capability", "similar"), [("8.7", "rtx3090"), ("10.3", "b200"), ("11.0", "b200"), ("12.1", "rtx5090")]
)
def test_an_unknown_architecture_is_taken_for_the_newest_older_one(capability: str, similar: str) -> None:
    profile = profile_from_attributes("NVIDIA Something New", capability, {})
    assert profile.arch == "sm_" + capability.replace(".", "")
    assert profile.sources["memory_latency_ns"] == f"assumed, as {similar}"


@given(st.sampled_from(sorted(DEVICE_QUERIES)), st.sets(st.sampled_from(sorted(queried("t4")[2]))))
def test_a_live_gpu_always_has_a_profile_that_agrees_with_it(name: str, missing: set[str]) -> None:
    device_name, capability, attributes = queried(name)
    told = {attribute: value for attribute, value in attributes.items() if attribute not in missing}
    profile = profile_from_attributes(device_name, capability, told)
    assert profile_mismatches(profile, device_name, capability, told) == []


def test_an_old_gpu_is_refused() -> None:
    with pytest.raises(BadInput, match=r"Tesla V100.* compute capability 7\.0, older than .* 7\.5"):
        profile_from_attributes("Tesla V100-SXM2-16GB", "7.0", {})


def test_attributes_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(BadInput, match="shared_bytes_per_sm"):
        profile_from_attributes("NVIDIA H200", "9.0", {**H200, "MaxSharedMemoryPerMultiprocessor": 65536})


def test_the_nearest_of_a_kind_has_the_nearest_number_of_sms() -> None:
    for name, sm_count in (("l40s", 142), ("rtx4090", 120), ("l4", 46), ("l4", 10)):
        profile = profile_from_attributes("NVIDIA Something Ada", "8.9", {"MultiProcessorCount": sm_count})
        assert profile.sources["memory_latency_ns"] == f"assumed, as {name}"
