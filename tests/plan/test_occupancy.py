"""The occupancy arithmetic against the CUDA toolkit's own, and the properties planning relies on."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minrnn_gen.config.gpu_profile import GpuProfile, load_profile
from minrnn_gen.plan.occupancy import blocks_per_sm, clusters_at_once, registers_per_thread_budget, shared_bytes_allocated

# One profile for each of 7.5, 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0, and one where a block may not have all the registers.
PROFILES = (
    *map(load_profile, ("t4", "a100", "rtx3090", "l4", "h200", "b200", "rtx5090")),
    load_profile("h200").model_copy(update={"name": "half_the_registers_per_block", "registers_per_block_max": 32768}),
)
KIB = 1024
THREADS = (1, 31, 32, 33, 64, 96, 100, 128, 160, 192, 224, 256, 320, 384, 480, 512, 640, 768, 896, 992, 1000, 1024, 1025, 2048)
REGISTERS = (*range(0, 256, 8), 1, 25, 33, 65, 81, 85, 129, 255)
SHARED_BYTES = tuple(
    bytes_below + extra
    for bytes_below in (0, 1023, 9 * KIB, 20_000, *(KIB * kib for kib in (48, 64, 99, 112, 163, 227)))
    for extra in (0, 1)
)

Point = tuple[GpuProfile, int, int, int]
Oracle = Callable[[list[Point]], list[tuple[int, int]]]
ORACLE = """
#include <cuda_occupancy.h>
#include <cstdio>

int main() {
  int major, minor, block_threads_max, sm_threads, block_registers, sm_registers, threads, registers;
  long sm_shared, block_shared_max, reserved, shared;
  while (scanf("%d %d %d %d %d %d %ld %ld %ld %d %d %ld", &major, &minor, &block_threads_max, &sm_threads, &block_registers,
               &sm_registers, &sm_shared, &block_shared_max, &reserved, &threads, &registers, &shared) == 12) {
    cudaOccDeviceProp device;
    device.computeMajor = major;
    device.computeMinor = minor;
    device.maxThreadsPerBlock = block_threads_max;
    device.maxThreadsPerMultiprocessor = sm_threads;
    device.regsPerBlock = block_registers;
    device.regsPerMultiprocessor = sm_registers;
    device.warpSize = 32;
    device.sharedMemPerBlock = 48 * 1024;
    device.sharedMemPerMultiprocessor = sm_shared;
    device.numSms = 1;
    device.sharedMemPerBlockOptin = block_shared_max;
    device.reservedSharedMemPerBlock = reserved;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = 1 << 20;
    kernel.numRegs = registers;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.maxDynamicSharedSizeBytes = shared;
    kernel.numBlockBarriers = 1;
    cudaOccDeviceState state;
    cudaOccResult result;
    cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared);
    if (error != CUDA_OCC_SUCCESS) return error;
    printf("%d %lu\\n", result.activeBlocksPerMultiprocessor, (unsigned long)result.allocatedSharedMemPerBlock);
  }
}
"""


def header_folders() -> Iterable[Path]:
    """Yield the include folders of every CUDA toolkit in sight: in the Python environment, named by CUDA_HOME, or nvcc's."""
    packages = importlib.util.find_spec("nvidia")
    for folder in packages.submodule_search_locations or () if packages else ():
        yield from sorted(path.parent for path in Path(folder).glob("*/include/cuda_occupancy.h"))
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    if nvcc := shutil.which("nvcc"):
        homes.append(str(Path(nvcc).resolve().parent.parent))
    includes = [Path(home) / "include" for home in homes]
    yield from (include for include in includes if (include / "cuda_occupancy.h").is_file())


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """Return what the toolkit says of many points: each one's blocks per SM and the shared bytes it allocates to a block."""
    include = next(iter(header_folders()), None)
    if include is None:
        pytest.skip("no CUDA toolkit with cuda_occupancy.h: pip install 'cuda-toolkit[cudart]', or set CUDA_HOME")
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler: install g++, or set CXX")
    folder = tmp_path_factory.mktemp("oracle")
    (folder / "oracle.cpp").write_text(ORACLE)
    subprocess.run([compiler, "-O1", "-w", f"-I{include}", "oracle.cpp", "-o", "oracle"], cwd=folder, check=True)

    def ask(points: list[Point]) -> list[tuple[int, int]]:
        lines = []
        for profile, *launch in points:
            limits = (
                profile.max_threads_per_block,
                profile.max_threads_per_sm,
                profile.registers_per_block_max,
                profile.registers_per_sm,
                profile.shared_bytes_per_sm,
                profile.shared_bytes_per_block_max,
                profile.shared_bytes_reserved_per_block,
            )
            lines.append(" ".join(map(str, (*profile.compute_capability.split("."), *limits, *launch))))
        run = subprocess.run([folder / "oracle"], input="\n".join(lines), capture_output=True, text=True, check=False)
        if run.returncode == 2:  # CUDA_OCC_ERROR_UNKNOWN_DEVICE
            pytest.skip(f"the cuda_occupancy.h found is older than this architecture, {points[0][0].arch}")
        assert run.returncode == 0
        answers = [(int(blocks), int(allocated)) for blocks, allocated in map(str.split, run.stdout.splitlines())]
        assert len(answers) == len(points)
        return answers

    return ask


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_occupancy_is_the_toolkits(oracle: Oracle, profile: GpuProfile) -> None:
    points = [(profile, *launch) for launch in itertools.product(THREADS, REGISTERS, SHARED_BYTES)]
    for point, (expected, allocated) in zip(points, oracle(points), strict=True):
        assert blocks_per_sm(*point) == expected, point[1:]
        assert shared_bytes_allocated(profile, point[3]) == allocated


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_the_register_budget_is_the_most_the_toolkit_allows(oracle: Oracle, profile: GpuProfile) -> None:
    asked = [
        (threads, blocks, registers_per_thread_budget(profile, threads, blocks))
        for threads in THREADS
        for blocks in range(1, profile.max_blocks_per_sm + 2)
    ]
    with_budget = oracle([(profile, threads, max(1, budget), 0) for threads, _, budget in asked])
    with_one_more = oracle([(profile, threads, budget + 1, 0) for threads, _, budget in asked])
    for (threads, blocks, budget), (fits, _), (overshoots, _) in zip(asked, with_budget, with_one_more, strict=True):
        assert (fits >= blocks) == (budget > 0), (threads, blocks, budget)
        assert overshoots < blocks or budget == profile.registers_per_thread_max, (threads, blocks, budget)


def test_six_blocks_of_128_threads_leave_80_registers() -> None:
    # 65536 / (6 * 128) is 85, but a warp takes its registers in units of 256.
    h200 = load_profile("h200")
    assert registers_per_thread_budget(h200, threads=128, blocks_per_sm=6) == 80
    assert blocks_per_sm(h200, threads=128, registers_per_thread=85, shared_bytes=0) == 5


launches = st.tuples(st.sampled_from(PROFILES), st.integers(1, 1100), st.integers(1, 255), st.integers(0, 230 * KIB))


@given(launches, st.integers(0, 64), st.integers(0, 64), st.integers(0, 4096))
def test_asking_for_more_never_gives_more_blocks(launch: Point, threads: int, registers: int, shared_bytes: int) -> None:
    profile, *asked = launch
    more = (asked[0] + threads, asked[1] + registers, asked[2] + shared_bytes)
    assert blocks_per_sm(profile, *more) <= blocks_per_sm(*launch)


@given(launches)
def test_blocks_that_are_resident_keep_their_registers(launch: Point) -> None:
    profile, threads, registers, _ = launch
    resident = blocks_per_sm(*launch)
    if resident:
        assert registers_per_thread_budget(profile, threads, resident) >= registers


@pytest.mark.parametrize("profile", [load_profile("h200"), load_profile("b200")], ids=lambda profile: profile.name)
def test_clusters_take_no_more_sms_than_there_are(profile: GpuProfile) -> None:
    for blocks in range(1, 9):
        at_once = [clusters_at_once(profile, size, blocks) for size in (1, 2, 4, 8, 16)]
        assert all(count * size <= profile.sm_count * blocks for count, size in zip(at_once, (1, 2, 4, 8, 16), strict=True))
        assert at_once == sorted(at_once, reverse=True) and at_once[-1] >= 1
        # The two SMs of a TPC are always in the same GPC.
        assert at_once[1] == profile.sm_count // 2 * blocks
