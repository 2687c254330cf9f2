"""The cost model of a block that takes time tile by tile: terms that overlap, and what is added to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minrnn_gen.plan.gpu_rates import SM_BYTES_PER_CYCLE, launch_us, transcendentals_per_sm_cycle
from minrnn_gen.plan.kernel_plan import total_us
from minrnn_gen.plan.limits import WARP_LANES
from minrnn_gen.plan.many_sizes import Amount, ceil, log2, maximum, where
from minrnn_gen.plan.problem import Problem

# Memory is read in bursts of 64 bytes: half of a shorter row is fetched for nothing.
DUAL_ALIGNMENT = 16  # of a map of dual numbers in shared memory, in bytes
BURST_BYTES = 64


@dataclass(frozen=True)
class MemoryModel:
    """How a family's copies fill the memory, fitted to measured candidates (docs/lab-notes.md).

    For every value that a step reads, `wanted_per_read` times the bytes that hide an idle memory's latency should be in flight.
    With fewer the time grows as the ratio of wanted to actual bytes to the power `missing_power`, with more by `excess_share`
    for each doubling. `tiles_not_overlapped`: the first tile is loaded and the last one scanned without overlap. Where a block
    reads rows of one burst at a time, the memory takes longer by `narrow_share`, of two bursts half that, and so on.

    A tile that is asked for only when the one before has arrived lets the memory idle for `latencies_per_tile` times its
    latency. That is Little's law, so `wanted_per_read` is empty then.
    """

    wanted_per_read: Mapping[str, float]  # forward and backward
    missing_power: float
    excess_share: float
    tiles_not_overlapped: float
    narrow_share: float
    latencies_per_tile: float = 0.0


@dataclass(frozen=True)
class TiledWork:
    """Work of one block over time: its tiles, and a warp's instructions and waits in each; `at_once` blocks are resident.

    `shared_waves`: the accesses of a warp's tile to shared memory, of which an SM makes one in a cycle, of 128 bytes.
    `full_congestion`: `congestion_of` as many blocks as are resident. `excess_share` adds to that of the memory model. Every
    number may be an array, with a row for each of several candidates.
    """

    blocks: Amount
    at_once: Amount
    warps: Amount
    tile_steps: Amount
    in_flight_bytes: Amount
    instructions: Amount
    latency_cycles: Amount
    elements_per_lane: Amount
    memory: MemoryModel
    row_bytes: Amount
    full_congestion: Amount
    shared_waves: Amount = 0.0
    excess_share: Amount = 0.0


def _congestion(problem: Problem, memory: MemoryModel, in_flight_bytes: Amount, excess_share: Amount) -> Amount:
    """Return the time of memory relative to a copy, with so many bytes in flight on each SM."""
    if not memory.wanted_per_read:
        return 1.0
    gpu = problem.gpu
    wanted = memory.wanted_per_read[problem.kernel_pass] * problem.cell.read_count
    ratio = in_flight_bytes / (wanted * gpu.bytes_in_flight_per_sm)
    enough = 1 + (memory.excess_share + excess_share) * log2(maximum(ratio, 1.0))
    # Never better than an idle memory would allow (Little's law).
    missing = maximum(ratio**-memory.missing_power, gpu.bytes_in_flight_per_sm / in_flight_bytes)
    return where(ratio >= 1, enough, missing)


def congestion_of(
    problem: Problem, memory: MemoryModel, blocks: Amount, in_flight_bytes: Amount, excess_share: Amount = 0.0
) -> Amount:
    """Return the congestion, times their number, of so many blocks with so many bytes in flight each."""
    return blocks * _congestion(problem, memory, blocks / problem.gpu.sm_count * in_flight_bytes, excess_share)


def idle_us(problem: Problem, memory: MemoryModel, tiles: Amount) -> Amount:
    """Return how long the memory idles between so many consecutive tiles of a block."""
    return tiles * memory.latencies_per_tile * problem.gpu.memory_latency_ns * 1e-3


def _congestion_of_rounds(problem: Problem, work: TiledWork) -> Amount:
    """Return the congestion on average over the blocks: in the last round there may be few of them, with little in flight."""
    rounds, left = work.blocks // work.at_once, work.blocks % work.at_once
    of_last = congestion_of(problem, work.memory, maximum(left, 1), work.in_flight_bytes, work.excess_share)
    # Of no blocks it is 0, whatever their congestion.
    return (rounds * work.full_congestion + where(left > 0, of_last, 0.0)) / work.blocks


def predicted_us(problem: Problem, work: TiledWork) -> dict[str, Amount]:
    """Return the cost model's terms in microseconds.

    `memory`: bytes over the bandwidth that the bytes in flight sustain, and what it idles between tiles. `busiest_sm`: the
    bytes of the SM with the most blocks over what one SM can draw. `issue`: its instructions. `transcendental`: its special
    functions. `shared_memory`: its accesses to shared memory. `chain`: the time-serial part, tiles times the latency of one.
    `fill_and_drain`: what does not overlap at both ends.
    """
    gpu = problem.gpu
    cycles_per_us = gpu.sm_clock_hz / 1e6
    blocks_of_busiest_sm = ceil(work.blocks / gpu.sm_count)
    rounds = ceil(work.blocks / work.at_once)
    tiles = ceil(problem.time / work.tile_steps)
    warp_tiles = blocks_of_busiest_sm * tiles * work.warps
    special = work.elements_per_lane * WARP_LANES * problem.cell.transcendental_count
    narrow = 1 + work.memory.narrow_share * BURST_BYTES / work.row_bytes
    moved_us = problem.traffic_bytes / gpu.bandwidth_bytes_per_s * _congestion_of_rounds(problem, work) * narrow * 1e6
    overlapping = {
        "memory": moved_us + idle_us(problem, work.memory, rounds * tiles),
        "busiest_sm": problem.traffic_bytes / work.blocks * blocks_of_busiest_sm / SM_BYTES_PER_CYCLE / cycles_per_us,
        "issue": warp_tiles * work.instructions / gpu.partitions_per_sm / cycles_per_us,
        "transcendental": warp_tiles * special / transcendentals_per_sm_cycle(gpu) / cycles_per_us,
        "shared_memory": warp_tiles * work.shared_waves / cycles_per_us,
        "chain": rounds * tiles * work.latency_cycles / cycles_per_us,
    }
    alone = work.memory.tiles_not_overlapped / tiles
    ends = total_us(overlapping) * alone if work.memory.tiles_not_overlapped else 0.0
    return {**overlapping, "fill_and_drain": ends, "launch": launch_us(gpu)}
