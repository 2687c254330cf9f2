"""The search space of diagonal_backward_scan.cu.j2: all blocks of a GPU share the time of few channels."""

from __future__ import annotations

from collections.abc import Mapping

from minrnn_gen.plan import diagonal, gpu_rates, limits
from minrnn_gen.plan.limits import LINE_BYTES, Quantity
from minrnn_gen.plan.many_sizes import Amount, ceil, maximum, minimum
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.scan import cost
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

# A map of m states has m x m + m numbers, which a thread keeps twice where it composes two.
STATES_MOST = 4
# Bytes of maps of other blocks that a thread has under way, and how many maps of one number: registers that tiles have before.
BYTES_UNDER_WAY, READS_MOST = 128, 4
# Of a thread, in addition to those of the sequential kernel: the place of its segment, and of its block.
REGISTERS_OF_PLACE = 24
# With time contiguous a thread reads a row of its own, piece by piece: of the bursts that hold a piece so much is fetched
# again for the next one. Fitted to 14 candidates on an H200 with pieces of 8 to 32 bytes.
NARROW_SHARE_BY_TIME = 0.55
# Rows of sums over time that the launch after this one adds up at once, of each parameter, and the cycles that they take.
ROWS_SUMMED_AT_ONCE, CYCLES_PER_ROW_SUMMED = 16, 340.0
# Of a round of composition in shared memory: two barriers, a load and a store, and the latency of a product of maps.
CYCLES_PER_ROUND = 120.0
# Of the maps of other blocks that a thread loads at once: through L2, where some are not there yet.
TRIPS_PER_READ = 2.0
# A map published until other blocks have it.
TRIPS_OF_EXCHANGE = 4.0


def refusal(problem: Problem) -> str:
    """Return why the time of `problem` is not divided, one sentence; empty where it may be."""
    states = len(problem.cell.states)
    if states <= STATES_MOST:
        return ""
    why = f"a step of {states} states takes maps of {states} x {states}, and at most {STATES_MOST} states have room"
    return f"time is not divided among blocks: {why}"


def variables(problem: Problem) -> Mapping[str, tuple[int, ...]]:
    return {
        "threads": (64, 128, 256),
        # As of the sequential kernel.
        "channels_per_lane": (1,) if problem.layout == "BDT" else (1, 2, 4),
        "stages": (2, 4, 8, 16),
        "segments": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    }


def _map_values(problem: Problem) -> int:
    states = len(problem.cell.states)
    return states * states + states


def _map_bytes(problem: Problem) -> int:
    """Bytes of a map: of several states in float64."""
    number_bytes = 8 if len(problem.cell.states) > 1 else problem.precision.arithmetic_bytes
    return _map_values(problem) * number_bytes


def _reads_at_once(problem: Problem, channels_per_lane: int) -> int:
    return max(1, min(READS_MOST, BYTES_UNDER_WAY // (_map_bytes(problem) * channels_per_lane)))


def _registers(problem: Problem, channels_per_lane: int, stages: int) -> int:
    of_maps = 2 * channels_per_lane * _map_bytes(problem) // 4
    return diagonal.registers(problem, channels_per_lane, stages) + REGISTERS_OF_PLACE + of_maps


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    storage_bytes, tile = problem.precision.storage_bytes, ("channels_per_lane", "stages")
    states = len(problem.cell.states)
    return (
        limits.whole_vectors_constraint(problem),
        limits.vector_width_constraint(problem),
        Constraint(
            "lanes_of_segments",
            "each segment of a block's time has equally many threads",
            ("threads", "segments"),
            lambda _, segments: segments,
            lambda threads, _: threads,
            "segments",
        ),
        Constraint(
            "channels_per_block",
            "a block much wider than the hidden size is dominated: its lanes idle",
            ("threads", "channels_per_lane", "segments"),
            lambda threads, channels_per_lane, segments: threads // segments * channels_per_lane,
            lambda *_: max(2 * problem.hidden_size - 1, 1),
            "channels",
            drops_dominated=True,
        ),
        Constraint(
            "rows_of_bursts",
            "lanes that read less of a row than a burst of the memory has leave the rest of it",
            ("threads", "channels_per_lane", "segments"),
            lambda *_: 0 if problem.layout == "BDT" else min(problem.hidden_size * storage_bytes, cost.BURST_BYTES),
            lambda threads, channels_per_lane, segments: threads // segments * channels_per_lane * storage_bytes,
            "bytes",
            drops_dominated=True,
        ),
        *limits.hardware_constraints(
            problem.gpu,
            Quantity(("threads",), lambda threads: threads),
            Quantity(tile, lambda *of_tile: _registers(problem, *of_tile)),
            Quantity(
                ("threads", "channels_per_lane"),
                lambda threads, channels_per_lane: threads * channels_per_lane * _map_bytes(problem),
            ),
        ),
        # A step stands there twice, and in the first pass its gradients once for each state.
        limits.unrolled_constraint(
            problem, Quantity(tile, lambda channels_per_lane, steps: channels_per_lane * steps * (3 + states) // 2)
        ),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    threads, channels_per_lane = candidate["threads"], candidate["channels_per_lane"]
    steps, segments = candidate["stages"], candidate["segments"]
    return limits.resident(
        problem,
        threads=threads,
        channels_per_block=threads // segments * channels_per_lane,
        registers_estimated=_registers(problem, channels_per_lane, steps),
        shared_map={"exchange": threads * channels_per_lane * _map_bytes(problem)},
        tile_steps=segments * steps,
        partition={"map_bytes": _map_bytes(problem), "reads_at_once": _reads_at_once(problem, channels_per_lane)},
    )


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """Return the cost model's terms in microseconds.

    `chain`: two passes over a thread's tiles. `exchange`: maps
    composed in shared memory, published, and read by every later block; then the sums of the blocks. `launch`: also that of the
    workspace's ones, where blocks share a column.
    """
    cell, gpu, block = problem.cell, problem.gpu, resources(problem, candidate)
    threads, channels_per_lane = candidate["threads"], candidate["channels_per_lane"]
    steps, segments, states = candidate["stages"], candidate["segments"], len(problem.cell.states)
    cycles_per_us = gpu.sm_clock_hz / 1e6
    resident = gpu.sm_count * block.blocks_per_sm
    columns = problem.batch * -(-problem.hidden_size // block.channels_per_block)
    column_blocks = maximum(1, minimum(resident // columns, ceil(problem.time / block.tile_steps)))
    blocks = columns * column_blocks
    rounds = ceil(blocks / resident)
    tiles = ceil(problem.time / steps / (segments * column_blocks))
    work = diagonal.work_of_tile(problem, channels_per_lane, steps)
    # The first pass has its gradients once for each state, and once for dy, and writes none of them.
    first = diagonal.work_of_tile(problem, channels_per_lane, steps, gradients=1 + states, writes=False)
    memory_cycles = gpu.memory_latency_ns * 1e-9 * gpu.sm_clock_hz
    latency = work.latency_cycles + first.latency_cycles
    warps = threads // limits.WARP_LANES * minimum(ceil(blocks / gpu.sm_count), block.blocks_per_sm)
    row_bytes = (
        steps if problem.layout == "BDT" else threads // segments * channels_per_lane
    ) * problem.precision.storage_bytes
    narrow_share = NARROW_SHARE_BY_TIME if problem.layout == "BDT" else diagonal.MEMORY.narrow_share
    narrow = 1 + narrow_share * cost.BURST_BYTES / row_bytes
    read_bytes = problem.element_count * cell.read_count * problem.precision.storage_bytes
    is_shared = minimum(column_blocks - 1, 1)
    map_bytes = _map_bytes(problem) * block.channels_per_block
    workspace_us = is_shared * blocks * map_bytes / gpu.bandwidth_bytes_per_s * 1e6
    # All blocks of a column read the same lines at once, which L2 gives no faster than the memory.
    gathered_us = workspace_us * (column_blocks - 1) / 2
    cycles_per_operation = diagonal.CYCLES_PER_OPERATION * (2 if states > 1 else 1)  # in fp64
    composed = states * states * (states + 1) * channels_per_lane * cycles_per_operation
    reads = ceil((column_blocks - 1) / segments)
    per_read = TRIPS_PER_READ * gpu_rates.CYCLES_PER_L2_TRIP / block.partition["reads_at_once"] + composed
    folds = (1 + is_shared) * (segments.bit_length() - 1)
    exchanged = folds * (CYCLES_PER_ROUND + composed) + reads * per_read
    exchanged = exchanged + is_shared * TRIPS_OF_EXCHANGE * gpu_rates.CYCLES_PER_L2_TRIP
    summed = ceil(column_blocks * problem.batch / ROWS_SUMMED_AT_ONCE) * CYCLES_PER_ROW_SUMMED * len(cell.parameters)
    lines = 0.0
    if problem.layout == "BDT":
        # As of the sequential kernel, but for lanes whose segments of one row are near enough to share lines.
        in_row = max(1, limits.WARP_LANES * segments // threads)
        lines = limits.WARP_LANES // in_row * maximum(1, in_row * minimum(1, tiles * row_bytes / LINE_BYTES))
    special = steps * channels_per_lane * limits.WARP_LANES * cell.transcendental_count
    warp_tiles = rounds * tiles * warps
    moved_us = (problem.traffic_bytes + read_bytes) / gpu.bandwidth_bytes_per_s * narrow * 1e6
    return {
        "memory": moved_us + cost.idle_us(problem, diagonal.MEMORY, 2 * rounds * tiles),
        "issue": warp_tiles * (work.instructions + first.instructions) / gpu.partitions_per_sm / cycles_per_us,
        "transcendental": 2 * warp_tiles * special / gpu_rates.transcendentals_per_sm_cycle(gpu) / cycles_per_us,
        "shared_memory": warp_tiles * (work.accesses + first.accesses) * lines / cycles_per_us,
        "chain": rounds * tiles * latency / cycles_per_us,
        "exchange": (rounds * exchanged + summed) / cycles_per_us + gathered_us,
        "fill_and_drain": rounds * 2 * (work.latency_cycles + memory_cycles) / cycles_per_us,
        "launch": (1 + is_shared) * gpu_rates.launch_us(gpu) + workspace_us,
    }


BACKWARD = Family(
    name="diagonal_backward_scan",
    entry="diagonal_backward",
    strategy="cooperative",
    copies=False,
    variables=variables,
    constraints=constraints,
    resources=resources,
    predicted_us=predicted_us,
)
