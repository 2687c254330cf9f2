"""Kernels whose plan chooses only the threads of a block: single steps by channels, joined rows, dropout, slots and drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from minrnn_gen.plan import gpu_rates, limits
from minrnn_gen.plan.classes import Strategy
from minrnn_gen.plan.gpu_rates import launch_us
from minrnn_gen.plan.limits import Quantity
from minrnn_gen.plan.many_sizes import Amount, ceil
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

REGISTERS_FIXED = 24
# Registers of a thread that drops a vector of 16 bytes of values, with a byte of the mask for each.
DROPOUT_REGISTERS = 40
# Registers of a thread that moves values of one slot: addresses, strides and places.
SLOTS_REGISTERS = 40
# Registers of a thread that copies two vectors of a row: their addresses, strides and the row's place in its sequence.
JOINED_REGISTERS = 64


def elementwise_family(
    name: str,
    strategy: Strategy,
    registers: Callable[[Problem], int],
    predicted_us: Callable[[Problem, Candidate], Mapping[str, Amount]],
) -> Family:
    """Return the family of the template `name`, whose threads need an estimate of `registers` each."""

    def constraints(problem: Problem) -> tuple[Constraint, ...]:
        return limits.hardware_constraints(
            problem.gpu,
            Quantity(("threads",), lambda threads: threads),
            Quantity(("threads",), lambda _: registers(problem)),
            Quantity(("threads",), lambda _: 0),
        )

    def resources(problem: Problem, candidate: Candidate) -> Resources:
        threads = candidate["threads"]
        return limits.resident(problem, threads, threads, registers(problem), {})

    return Family(
        name=name,
        entry=name,
        strategy=strategy,
        copies=False,
        variables=lambda _: {"threads": (64, 128, 256, 512)},
        constraints=constraints,
        resources=resources,
        predicted_us=predicted_us,
    )


def _registers(problem: Problem) -> int:
    cell = problem.cell
    words = problem.registers_per_value
    return REGISTERS_FIXED + words * (4 * cell.step_values + 4 * len(cell.states) + len(cell.parameters) + cell.carried_count)


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """A decoding step is bound by its launch; what is left is spreading few elements over many SMs."""
    elements = problem.batch * problem.hidden_size
    blocks = ceil(elements / candidate["threads"])
    blocks_of_busiest_sm = ceil(blocks / problem.gpu.sm_count)
    warps = blocks_of_busiest_sm * candidate["threads"] / limits.WARP_LANES
    instructions = warps * (gpu_rates.operations_per_element(problem) + gpu_rates.INSTRUCTIONS_PER_THREAD)
    return {
        "issue": instructions / problem.gpu.partitions_per_sm / (problem.gpu.sm_clock_hz / 1e6),
        "launch": launch_us(problem.gpu),
    }


def _slots_registers(_problem: Problem) -> int:
    return SLOTS_REGISTERS


def slots_us(problem: Problem, _candidate: Candidate) -> Mapping[str, Amount]:
    """States between a pool and rows are bound by memory: each is read and written."""
    values = problem.batch * problem.hidden_size * max(1, problem.state_size) * len(problem.cell.states)
    moved_bytes = 2 * values * problem.precision.arithmetic_bytes
    return {"memory": moved_bytes / problem.gpu.bandwidth_bytes_per_s * 1e6, "launch": launch_us(problem.gpu)}


def drafts_us(problem: Problem, _candidate: Candidate) -> Mapping[str, Amount]:
    """The places of drafts are a few integers for each sequence: the launch alone takes time."""
    return {"launch": launch_us(problem.gpu)}


def _joined_registers(_problem: Problem) -> int:
    return JOINED_REGISTERS


def joined_us(problem: Problem, _candidate: Candidate) -> Mapping[str, Amount]:
    """Joined rows are bound by memory: each value is read and written. Counted is the part as wide as y."""
    moved_bytes = 2 * problem.element_count * problem.precision.storage_bytes
    return {"memory": moved_bytes / problem.gpu.bandwidth_bytes_per_s * 1e6, "launch": launch_us(problem.gpu)}


def _dropout_registers(_problem: Problem) -> int:
    return DROPOUT_REGISTERS


def dropout_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """Dropout is bound by memory: each value is read and written, and a byte of the mask is read."""
    gpu, storage_bytes, threads = problem.gpu, problem.precision.storage_bytes, candidate["threads"]
    blocks = limits.resident(problem, threads, threads, DROPOUT_REGISTERS, {}).blocks_per_sm
    starved = max(1.0, gpu.bytes_in_flight_per_sm / (blocks * threads * problem.specialization.alignment_bytes))
    moved_bytes = problem.element_count * (2 * storage_bytes + 1)
    return {"memory": moved_bytes / gpu.bandwidth_bytes_per_s * 1e6 * starved, "launch": launch_us(gpu)}


SCAN = elementwise_family("scan_step", "elementwise", _registers, predicted_us)
DIAGONAL = elementwise_family("diagonal_step", "elementwise", _registers, predicted_us)
DROPOUT = elementwise_family("dropout", "elementwise", _dropout_registers, dropout_us)
JOINED = elementwise_family("joined", "elementwise", _joined_registers, joined_us)
SLOTS = elementwise_family("slots", "elementwise", _slots_registers, slots_us)
DRAFTS = elementwise_family("drafts", "elementwise", _slots_registers, drafts_us)
