"""How many blocks one SM holds at once, and how many registers that leaves to each thread.

The arithmetic of the CUDA occupancy calculator, compute capability 7.5 and later. The toolkit's `cuda_occupancy.h` is the
oracle it is tested against.
"""

from __future__ import annotations

from minrnn_gen.config.gpu_profile import GpuProfile

# A cluster lies within a GPC, whose SMs are 16 or 18 on an H200. A profile does not know how many GPCs there are; with these
# numbers no more clusters are expected at once than were seen to be.
SMS_PER_GPC_MOST, SMS_PER_GPC_USED = 18, 16
# The SMs of a TPC, all of which are in the same GPC.
SMS_PER_TPC = 2


def blocks_per_sm(profile: GpuProfile, threads: int, registers_per_thread: int, shared_bytes: int) -> int:
    """Return how many blocks of `threads` (1 or more) threads one SM holds at once, 0 where the kernel cannot be launched.

    Each block has `shared_bytes` bytes of shared memory, static and dynamic.
    """
    limits = (
        _blocks_by_threads(profile, threads),
        profile.max_blocks_per_sm,
        _blocks_by_registers(profile, threads, registers_per_thread),
        _blocks_by_shared(profile, shared_bytes),
    )
    return min(limit for limit in limits if limit is not None)


def clusters_at_once(profile: GpuProfile, cluster_blocks: int, blocks_per_sm: int) -> int:
    """Return how many clusters the GPU holds at once, at least 1, where an SM holds so many of their blocks."""
    if cluster_blocks == 1:
        return max(1, profile.sm_count * blocks_per_sm)
    if cluster_blocks == SMS_PER_TPC:
        return max(1, profile.sm_count // SMS_PER_TPC * blocks_per_sm)
    of_gpc = SMS_PER_GPC_USED * blocks_per_sm // cluster_blocks
    return max(1, profile.sm_count // SMS_PER_GPC_MOST * of_gpc)


def registers_per_thread_budget(profile: GpuProfile, threads: int, blocks_per_sm: int) -> int:
    """Return the largest register count per thread with which an SM holds `blocks_per_sm` blocks, 0 if none does."""
    if min(_blocks_by_threads(profile, threads), profile.max_blocks_per_sm) < blocks_per_sm:
        return 0
    warps = _warps(profile, threads)
    resident_warps_per_partition = -(-blocks_per_sm * warps // profile.partitions_per_sm)
    per_warp_by_sm = profile.registers_per_sm // profile.partitions_per_sm // resident_warps_per_partition
    per_warp_by_block = profile.registers_per_block_max // _launched_warps(profile, warps)
    per_warp = min(per_warp_by_sm, per_warp_by_block) // profile.register_unit_per_warp * profile.register_unit_per_warp
    return min(per_warp // profile.warp_threads, profile.registers_per_thread_max)


def shared_bytes_allocated(profile: GpuProfile, shared_bytes: int) -> int:
    """Return the bytes of the SM's shared memory that one block takes, the driver's share and the rounding included."""
    unit = profile.shared_unit_bytes
    return -(-(shared_bytes + profile.shared_bytes_reserved_per_block) // unit) * unit


def _warps(profile: GpuProfile, threads: int) -> int:
    return -(-threads // profile.warp_threads)


def _launched_warps(profile: GpuProfile, warps: int) -> int:
    # The launch check counts registers as if every partition held equally many warps of the block.
    return -(-warps // profile.partitions_per_sm) * profile.partitions_per_sm


def _blocks_by_threads(profile: GpuProfile, threads: int) -> int:
    if threads > profile.max_threads_per_block:
        return 0
    return profile.max_threads_per_sm // profile.warp_threads // _warps(profile, threads)


def _blocks_by_registers(profile: GpuProfile, threads: int, registers_per_thread: int) -> int | None:
    if registers_per_thread == 0:
        return None
    unit = profile.register_unit_per_warp
    per_warp = -(-registers_per_thread * profile.warp_threads // unit) * unit
    warps = _warps(profile, threads)
    if registers_per_thread > profile.registers_per_thread_max:
        return 0
    if per_warp * _launched_warps(profile, warps) > profile.registers_per_block_max:
        return 0
    # A warp lives in one partition and takes its registers there, so each partition holds a whole number of warps.
    warps_per_partition = profile.registers_per_sm // profile.partitions_per_sm // per_warp
    return warps_per_partition * profile.partitions_per_sm // warps


def _blocks_by_shared(profile: GpuProfile, shared_bytes: int) -> int | None:
    if shared_bytes > profile.shared_bytes_per_block_max:
        return 0
    allocated = shared_bytes_allocated(profile, shared_bytes)
    return profile.shared_bytes_per_sm // allocated if allocated else None
