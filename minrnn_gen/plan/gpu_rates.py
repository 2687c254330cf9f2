"""Quantities that the cost models count, and a GPU's speed at each relative to the GPU that the models were fitted on."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from minrnn_gen.config.gpu_profile import DEFAULT_GPU, GpuProfile, load_profile
from minrnn_gen.plan.problem import Problem

# The constants of the models are times on an H200.
FITTED_ON = DEFAULT_GPU
# Multiply-adds in 16 bits, with sums in fp32, that the tensor cores of an SM make in a cycle: what datasheets say of dense
# products, over SMs and clock (A100, RTX 3090, L40S, H200, RTX 5090). B200 has other instructions for more; as Hopper's.
TENSOR_PRODUCTS_PER_SM_CYCLE = {"8.0": 1024, "8.6": 256, "8.9": 512, "9.0": 2048, "10.0": 2048, "12.0": 256}
# The fraction of this rate that products of all steps reach (docs/lab-notes.md); by an H200's datasheet, products in other
# dtypes take so many times as long.
PRODUCT_EFFICIENCY = 0.65
TIMES_OF_16_BITS = {"fp16": 1, "bf16": 1, "tf32": 2, "fp32": 16, "fp64": 16}
# Special-function results per SM and cycle (CUDA C++ Programming Guide, arithmetic instruction throughput).
TRANSCENDENTALS_PER_SM_CYCLE = 16.0
# Time from a launch on an idle stream to the kernel's end, measured with empty kernels on an H200.
LAUNCH_US = 2.5
# Cells over complex numbers call no functions.
INSTRUCTIONS_PER_TRANSCENDENTAL = {"fp64": 20.0, "fp32": 4.5, "fp16": 4.3, "bf16": 4.3, "complex64": 0.0, "complex128": 0.0}
INSTRUCTIONS_PER_THREAD = 13.0  # where a thread begins: its indices and addresses, counted in the source of the single step
CYCLES_PER_L2_TRIP = 270.0  # there and back (arXiv 2402.13499)
L2_BANDWIDTH_FACTOR = 1.6  # what L2 gives to all SMs, so many times as much as memory
SM_BYTES_PER_CYCLE = 64.0  # what one SM draws from L2 when the others do not (arXiv 2402.13499)


@dataclass(frozen=True)
class Scales:
    """Times relative to the GPU that the models were fitted on."""

    instruction: float
    product: float
    transcendental: float
    block: float
    cluster: float
    grid: float


def operations_per_element(problem: Problem, per_transcendental: float | None = None) -> float:
    """Return the instructions per channel and time step: the cell's own, two passes over each state, unpacking and packing."""
    cell = problem.cell
    if per_transcendental is None:
        per_transcendental = INSTRUCTIONS_PER_TRANSCENDENTAL[problem.precision.name]
    own = cell.operation_count + cell.transcendental_count * per_transcendental
    return own + 2 * cell.read_count + cell.written_count - 1 + 4 * len(cell.states)


def bytes_per_s(gpu: GpuProfile, working_set_bytes: int) -> float:
    """Return the bandwidth to data that is read again and again: that of L2 where it fits, else that of memory."""
    return gpu.bandwidth_bytes_per_s * (L2_BANDWIDTH_FACTOR if working_set_bytes <= gpu.l2_bytes else 1.0)


def transcendentals_per_sm_cycle(gpu: GpuProfile) -> float:
    """Return the measured rate, else the guide's."""
    return gpu.transcendentals_per_sm_cycle or TRANSCENDENTALS_PER_SM_CYCLE


def launch_us(gpu: GpuProfile) -> float:
    """Return the measured rate, else that of an H200."""
    return gpu.launch_us or LAUNCH_US


class Measured(NamedTuple):
    """Properties of one GPU that scales depend on."""

    compute_capability: str
    sm_clock_hz: float
    products_per_sm_cycle: float | None
    transcendentals_per_sm_cycle: float | None
    block_exchange_ns: float | None
    cluster_exchange_ns: float | None
    grid_exchange_ns: float | None


def scales_of(gpu: GpuProfile) -> Scales:
    """Return the factors on the models' times for a GPU: 1 for the GPU that they were fitted on."""
    return _scales(Measured(*(getattr(gpu, field) for field in Measured._fields)))


@functools.lru_cache(maxsize=64)  # asked for every candidate, of few GPUs
def _scales(gpu: Measured) -> Scales:
    fitted = load_profile(FITTED_ON)
    cycle = fitted.sm_clock_hz / gpu.sm_clock_hz

    def ratio(field: str, assumed: float) -> float:
        """Return the ratio of the measurements on both GPUs, else the ratio `assumed` from clock and architecture."""
        here, there = getattr(gpu, field), getattr(fitted, field)
        return float(here / there) if here and there else assumed

    products = tensor_products(gpu.compute_capability) / tensor_products(fitted.compute_capability)
    return Scales(
        instruction=cycle,
        product=cycle / ratio("products_per_sm_cycle", products),
        transcendental=cycle / ratio("transcendentals_per_sm_cycle", 1.0),
        block=ratio("block_exchange_ns", cycle),
        cluster=ratio("cluster_exchange_ns", cycle),
        grid=ratio("grid_exchange_ns", cycle),
    )


def products_per_s(gpu: GpuProfile, dtype: str) -> float:
    """Return the multiply-adds that products of all steps make in a second, in a dtype of `TIMES_OF_16_BITS`."""
    per_s = tensor_products(gpu.compute_capability) * gpu.sm_count * gpu.sm_clock_hz
    return PRODUCT_EFFICIENCY * per_s / TIMES_OF_16_BITS[dtype]


def tensor_products(compute_capability: str) -> float:
    """Return the multiply-adds of an SM and cycle; an architecture that is not listed has the rate of the newest before it."""

    def number(capability: str) -> tuple[int, ...]:
        return tuple(map(int, capability.split(".")))

    capability = number(compute_capability)
    known = {number(name): count for name, count in TENSOR_PRODUCTS_PER_SM_CYCLE.items()}
    return known[max((listed for listed in known if listed <= capability), default=min(known))]
