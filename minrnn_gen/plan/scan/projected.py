"""The search space of scans with their input projection in one kernel: a persistent product by warpgroups, along time."""

from __future__ import annotations

from collections.abc import Mapping

from minrnn_gen.errors import Infeasible
from minrnn_gen.plan import gpu_rates, limits
from minrnn_gen.plan.limits import Quantity
from minrnn_gen.plan.many_sizes import Amount, ceil, maximum
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES, Problem
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources, solve
from minrnn_gen.program.number import Number, divided_up, least, most, overlapped

# No other architecture, older or newer, has products of warpgroups (PTX ISA, wgmma).
ARCH, COMPUTE_CAPABILITY = "sm_90a", "9.0"
WARPGROUP_THREADS, WARPGROUP_CHANNELS = 128, 64
# Columns of a product: with so many the operands of two warpgroups arrive from L2 as fast as they are multiplied.
TILE_STEPS = 128
ROW_BYTES = 128  # of an operand in shared memory
TENSOR_MAP_BYTES = 128
# Registers of a thread (PTX ISA, setmaxnreg): warps that copy need few, and the others share the rest.
PRODUCER_REGISTERS = 24
# Of a lane that multiplies and scans, besides its sums: maps, states, biases, addresses and the functions of a step. With so
# many kernels of two gates do not spill, compiled by NVRTC 13.0; those of three would.
CONSUMER_REGISTERS_FIXED = 50
# What follows was fitted to two sizes on an H200 (docs/lab-notes.md). Of the peak of the tensor cores while a tile is
# multiplied, with endless stages, and of a library's product.
SHARE_OF_PEAK, PRODUCT_SHARE_OF_PEAK = 0.85, 0.68
SCAN_SHARE_OF_BANDWIDTH = 0.9  # of a scan alone
CYCLES_PER_SCAN = 4000.0  # of a tile's, which the products of the other warpgroup do not hide
# From the end of a tile's products to its states in the block that waits for them, through L2: an upper bound, since no long
# chain was measured.
HOP_US = 1.5
WORTH = 0.95  # a smaller gain is within the error of the predictions
FS_PER_US = 10**9  # whole numbers of femtoseconds, which an exported call computes too
ENDS_US = 5.0  # the maps of the operands and the first chunks, and the last states stored


def refusal(problem: Problem) -> str:
    """Return why such a kernel cannot serve calls of `problem`, whatever their sizes; empty if it can."""
    specialization, storage_bytes = problem.specialization, problem.precision.storage_bytes
    if problem.gpu.compute_capability != COMPUTE_CAPABILITY:
        return f"{problem.gpu.name} has no products of warpgroups, which only sm_90 has"
    if problem.layout != "BTD":
        return f"the rows of a sequence do not lie behind each other in layout {problem.layout}, only in BTD"
    if not problem.cell.is_scan or problem.state_size:
        return f"{problem.cell.name} is no scan of one value per channel and state"
    if storage_bytes != 2 or problem.precision.arithmetic_dtype != "float32":
        return f"products in {problem.precision.name} are not those of warpgroups in 16 bits"
    if specialization.reverse or specialization.resets or specialization.packed or specialization.states_out != "none":
        return "it runs forward, without resets, over whole sequences, and writes no states but y"
    if specialization.alignment_bytes < WIDEST_COPY_BYTES:
        return f"rows start at multiples of {specialization.alignment_bytes} bytes, not of {WIDEST_COPY_BYTES}"
    return ""


def variables(_: Problem) -> Mapping[str, tuple[int, ...]]:
    return {"channel_warpgroups": (2,), "stages": (2, 3, 4)}


def _consumer_registers(problem: Problem) -> int:
    """Return the registers of a lane: its sums, and those of the scan of a tile."""
    return len(problem.cell.gates) * (WARPGROUP_CHANNELS * TILE_STEPS // WARPGROUP_THREADS) + CONSUMER_REGISTERS_FIXED


def _launch_registers(problem: Problem, warpgroups: int) -> int:
    """Return the registers of a thread at the launch, when all have as many."""
    gpu = problem.gpu
    return min(gpu.registers_per_block_max // (warpgroups * WARPGROUP_THREADS) // 8 * 8, gpu.registers_per_thread_max)


def _registers_left(problem: Problem, consumers: int) -> int:
    """Return the registers of a thread that multiplies, after the threads that copy released theirs."""
    left = _launch_registers(problem, consumers + 1) * (consumers + 1) - PRODUCER_REGISTERS
    return min(left // consumers // 8 * 8, problem.gpu.registers_per_thread_max // 8 * 8)


def _shared_map(problem: Problem, consumers: int, stages: int) -> Mapping[str, int]:
    channels = consumers * WARPGROUP_CHANNELS
    mbarriers_bytes = (2 * stages + 1) * limits.MBARRIER_BYTES
    return {
        "stages": stages * (len(problem.cell.gates) * channels + TILE_STEPS) * ROW_BYTES,
        "rows": consumers * TILE_STEPS * ROW_BYTES,
        "maps": 2 * TENSOR_MAP_BYTES,
        "mbarriers": -(-mbarriers_bytes // TENSOR_MAP_BYTES) * TENSOR_MAP_BYTES,
    }


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    inputs_bytes = problem.specialization.input_size * problem.precision.storage_bytes
    return (
        Constraint(
            "whole_channel_tiles",
            "a block multiplies whole tiles of channels, so hidden_size must be a multiple of one",
            ("channel_warpgroups",),
            lambda consumers: problem.hidden_size % (consumers * WARPGROUP_CHANNELS),
            lambda _: 0,
            "channels left over",
        ),
        Constraint(
            "whole_chunks",
            f"rows of both operands are multiplied {ROW_BYTES} bytes at a time, so input_size must be a multiple of that",
            ("stages",),
            lambda _: inputs_bytes % ROW_BYTES,
            lambda _: 0,
            "bytes left over",
        ),
        Constraint(
            "kept_steps",
            "what a tile's steps come to, and what their outputs need besides, takes the registers of their pre-activations",
            ("stages",),
            lambda _: 2 * len(problem.cell.states) + problem.cell.carried_count,
            lambda _: len(problem.cell.gates),
            "values of a step",
        ),
        Constraint(
            "registers_of_warpgroup",
            "the sums of a tile live in registers, and so does what scans them",
            ("channel_warpgroups",),
            lambda _: _consumer_registers(problem),
            lambda consumers: _registers_left(problem, consumers),
            "registers",
        ),
        *limits.hardware_constraints(
            problem.gpu,
            Quantity(("channel_warpgroups",), lambda consumers: (consumers + 1) * WARPGROUP_THREADS),
            Quantity(("channel_warpgroups",), lambda consumers: _launch_registers(problem, consumers + 1)),
            Quantity(
                ("channel_warpgroups", "stages"),
                lambda consumers, stages: sum(_shared_map(problem, consumers, stages).values()),
            ),
        ),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    consumers = candidate["channel_warpgroups"]
    registers = _launch_registers(problem, consumers + 1)
    return Resources(
        threads=(consumers + 1) * WARPGROUP_THREADS,
        channels_per_block=consumers * WARPGROUP_CHANNELS,
        registers_estimated=registers,
        registers_per_thread=registers,
        shared_map=_shared_map(problem, consumers, candidate["stages"]),
        blocks_per_sm=1,
        tile_steps=TILE_STEPS,
        partition={"consumer_registers": _registers_left(problem, consumers), "producer_registers": PRODUCER_REGISTERS},
    )


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """Return the cost model's terms in microseconds.

    `product`: the consecutive tiles of a block, and `cells` their scans. `chain`: the tiles of a sequence, each waiting for the
    state of the tile before. `fill_and_drain`: what does not overlap at both ends. `launch`: includes the launch that fills the
    workspace with ones.
    """
    along_time = ceil(problem.time / TILE_STEPS)
    tiles = problem.batch * along_time * _channel_tiles(problem, candidate)
    rounds = maximum(1, ceil(tiles / problem.gpu.sm_count))
    return {
        "product": rounds * _product_us(problem, candidate),
        "cells": rounds * _cells_us(problem),
        "chain": along_time * HOP_US,
        "fill_and_drain": ENDS_US,
        "launch": 2 * gpu_rates.launch_us(problem.gpu),
    }


def _channel_tiles(problem: Problem, candidate: Candidate) -> int:
    return -(-problem.hidden_size // (candidate["channel_warpgroups"] * WARPGROUP_CHANNELS))


def _product_us(problem: Problem, candidate: Candidate) -> float:
    """Return the time of the product of a tile."""
    channels = candidate["channel_warpgroups"] * WARPGROUP_CHANNELS
    products = len(problem.cell.gates) * channels * TILE_STEPS * problem.specialization.input_size
    # Chunks of other stages are under way while one is multiplied.
    cycles = products / (_products_per_cycle(problem) * SHARE_OF_PEAK) * (1 + 1 / candidate["stages"] ** 2)
    return cycles * 1e6 / problem.gpu.sm_clock_hz


def _cells_us(problem: Problem) -> float:
    """Return the time of the scan of a tile."""
    return CYCLES_PER_SCAN * 1e6 / problem.gpu.sm_clock_hz


def is_feasible(problem: Problem) -> Number:
    """Say whether there is a kernel for `problem`, which has the sizes of a call.

    If sizes are expressions, so is the answer: an exported call decides as a call in Python does.
    """
    has_whole_tiles: Number = problem.time // TILE_STEPS * TILE_STEPS == problem.time
    return has_whole_tiles if _best(problem.at(1, TILE_STEPS)) else 0


def serves(problem: Problem) -> Number:
    """Say whether there is a kernel for `problem` (see `is_feasible`) that is faster than two kernels in sequence."""
    tile, along_time = problem.at(1, TILE_STEPS), problem.time // TILE_STEPS
    candidate = _best(tile)
    if candidate is None:
        return 0
    is_faster = _one_fs(tile, candidate, problem.batch, along_time) < _apart_fs(tile, problem.batch * along_time)
    return least(is_feasible(problem), is_faster)


def _best(problem: Problem) -> Candidate | None:
    """Return the fastest candidate, which is the fastest at all sizes; None where there is none."""
    try:
        return None if refusal(problem) else solve(problem, FORWARD).candidates[0]
    except Infeasible:
        return None


def _one_fs(tile: Problem, candidate: Candidate, batch: Number, along_time: Number) -> Number:
    """Return the combined terms of `predicted_us` for sequences of so many tiles, in femtoseconds.

    `tile` is the problem of one tile.
    """
    rounds = most(1, divided_up(batch * along_time * _channel_tiles(tile, candidate), tile.gpu.sm_count))
    times_us = _product_us(tile, candidate), _cells_us(tile), HOP_US, ENDS_US + 2 * gpu_rates.launch_us(tile.gpu)
    product, cells, hop, ends = (round(us * FS_PER_US) for us in times_us)
    return overlapped(rounds * product, along_time * hop) + rounds * cells + ends


def _apart_fs(tile: Problem, tiles: Number) -> Number:
    """Return the weighted time of two kernels (see `apart_us`) for so many tiles of all sequences, in femtoseconds."""
    no_tile_us, tile_us = (WORTH * apart_us(tile.at(batch, TILE_STEPS)) for batch in (0, 1))
    return tiles * round((tile_us - no_tile_us) * FS_PER_US) + round(no_tile_us * FS_PER_US)


def apart_us(problem: Problem) -> float:
    """Return the time of a library's product and a scan at the bandwidth of memory, in microseconds."""
    gpu = problem.gpu
    products = len(problem.cell.gates) * problem.element_count * problem.specialization.input_size
    product_us = products / (_products_per_cycle(problem) * PRODUCT_SHARE_OF_PEAK * gpu.sm_count * gpu.sm_clock_hz) * 1e6
    scan_us = problem.traffic_bytes / (gpu.bandwidth_bytes_per_s * SCAN_SHARE_OF_BANDWIDTH) * 1e6
    return product_us + scan_us + 2 * gpu_rates.launch_us(gpu)


def _products_per_cycle(problem: Problem) -> float:
    return float(gpu_rates.TENSOR_PRODUCTS_PER_SM_CYCLE[problem.gpu.compute_capability])


FORWARD = Family(
    name="scan_forward_projected",
    entry="projected_forward",
    strategy="projected",
    copies=True,
    variables=variables,
    constraints=constraints,
    resources=resources,
    predicted_us=predicted_us,
    arch=lambda _: ARCH,
)
