"""Mbarriers, barriers of warps, copies of chunks, counters and warpgroups of the emulated machine, used rightly and wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.machine_kernels import MachineKernel, bf16_bits, bf16_values, machine_kernel, swizzled_rows, wrappers

from minrnn_gen.interpret.backend import LAUNCHES_PER_SEED, WARP_FALLS_BEHIND
from minrnn_gen.interpret.findings import Finding
from minrnn_gen.interpret.toolchain import has_compiler

pytestmark = pytest.mark.skipif(not has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none")

TEXT = Path(__file__).with_name("machine_cases.cu")
RECURRENCE, PRODUCT, MISUSE = 0, 1, 2
STEPS, BATCH, UNITS, SLOT_BYTES = 5, 16, 64, 2048
SEEDS = 20


@pytest.fixture(scope="module")
def kernel() -> MachineKernel:
    return machine_kernel(wrappers(BATCH) + TEXT.read_text(encoding="utf-8"))


def recurrence(kernel: MachineKernel, fault: int, is_shared: bool, seed: int) -> tuple[tuple[Finding, ...], bool]:
    """Return what is found in the recurrence over two blocks, and whether its results are right."""
    random = np.random.default_rng(seed)
    left = bf16_bits(random.integers(-2, 3, (UNITS, UNITS)))
    h = random.integers(-4, 5, (BATCH, UNITS)).astype(np.float32)
    memory = np.full((STEPS + 1, SLOT_BYTES), 0xFF, np.uint8)
    memory[0] = swizzled_rows(bf16_bits(h))
    y, counter = np.full((STEPS, UNITS, BATCH), np.nan, np.float32), np.zeros(1, np.uint32)
    found = kernel.launch((RECURRENCE, fault, is_shared, STEPS, 0, memory, counter, left, y), seed, threads=256, blocks=2)
    expected = np.empty_like(y)
    for t in range(STEPS):
        expected[t] = bf16_values(left).astype(np.float64) @ h.T
        h = bf16_values(bf16_bits(expected[t].T * 0.125)).reshape(BATCH, UNITS)
    return found, np.array_equal(y, expected)


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_recurrence_over_the_grid_is_right_in_every_order(kernel: MachineKernel, is_shared: bool) -> None:
    assert [recurrence(kernel, 0, is_shared, seed) for seed in range(SEEDS)] == [((), True)] * SEEDS


# By number of the fault in the text: the kind of finding that some seed has, or "" where results are wrong.
RECURRENCE_FAULTS = {
    2: "proxy", 4: "", 5: "proxy", 6: "race", 7: "race", 8: "copy", 10: "copy", 12: "race", 13: "",
    14: "divergence", 15: "deadlock",
}  # fmt: skip


@pytest.mark.parametrize(("fault", "kind"), RECURRENCE_FAULTS.items())
def test_a_fault_in_the_recurrence_is_found(kernel: MachineKernel, fault: int, kind: str) -> None:
    runs = (recurrence(kernel, fault, True, seed) for seed in range(SEEDS))
    assert any(not is_right if not kind else kind in {finding.kind for finding in found} for found, is_right in runs)


MISUSES = {
    1: "mbarrier", 2: "misaligned", 3: "misaligned", 4: "out of bounds", 5: "out of bounds", 6: "mbarrier", 7: "copy",
    8: "out of bounds", 9: "divergence", 10: "divergence", 11: "deadlock", 12: "divergence", 13: "misaligned",
    14: "out of bounds", 15: "copy", 16: "deadlock", 17: "registers", 18: "divergence", 19: "", 20: "mbarrier",
    21: "deadlock", 22: "out of bounds", 23: "", 24: "race", 25: "", 26: "race", 27: "race",
    28: "", 29: "registers", 30: "", 31: "registers", 32: "", 33: "registers", 34: "divergence", 35: "deadlock",
    36: "", 37: "race", 38: "deadlock", 39: "race", 40: "mbarrier",
}  # fmt: skip


def misuse(kernel: MachineKernel, fault: int, seed: int) -> set[str]:
    """Return the kinds of what is found."""
    h, counter = np.zeros(16 * SLOT_BYTES, np.uint8), np.zeros(2, np.uint32)
    left, y = np.zeros(1, np.uint32), np.zeros(128, np.float32)
    return {finding.kind for finding in kernel.launch((MISUSE, fault, 0, 0, 0, h, counter, left, y), seed)}


@pytest.mark.parametrize(("fault", "kind"), MISUSES.items())
def test_misuse_of_an_instruction_is_found(kernel: MachineKernel, fault: int, kind: str) -> None:
    kinds = [misuse(kernel, fault, seed) for seed in range(SEEDS if kind else 4)]
    assert any(kind in of_seed for of_seed in kinds) if kind else not any(kinds)


@pytest.mark.parametrize(("late", "kinds"), [(0, set()), (1, set()), (2, {"deadlock"})])
def test_a_warp_that_falls_behind_misses_a_phase(kernel: MachineKernel, late: int, kinds: set[str]) -> None:
    first = late * WARP_FALLS_BEHIND * LAUNCHES_PER_SEED
    assert [misuse(kernel, 41, first + seed) for seed in range(6)] == [kinds] * 6


def decoded(element: str, rows: Any) -> Any:
    """Return the numbers in rows of 32 bytes."""
    if element == "tf32":
        return (rows.view(np.uint32) & ~np.uint32(0x1FFF)).view(np.float32).astype(np.float64)
    return (bf16_values(rows.view(np.uint16)) if element == "bf16" else rows.view(np.float16)).astype(np.float64)


@pytest.mark.parametrize("element", ["bf16", "f16", "tf32"])
@pytest.mark.parametrize(
    ("is_shared", "columns", "slice_number"), [(False, 8, 0), (True, 16, 3), (False, 72, 2), (True, 256, 1)]
)
def test_a_product_has_the_layouts_of_wgmma(
    kernel: MachineKernel, element: str, is_shared: bool, columns: int, slice_number: int
) -> None:
    random = np.random.default_rng(columns)

    def matrix(rows: int) -> Any:
        values = random.normal(size=(rows, 32 if element == "tf32" else 64)).astype(np.float32)
        return bf16_bits(values) if element == "bf16" else values.astype(np.float16 if element == "f16" else np.float32)

    left, right = matrix(UNITS), matrix(columns)
    y = np.full((UNITS, columns), np.nan, np.float32)
    number = ["bf16", "f16", "tf32"].index(element)
    arguments = (PRODUCT, number, is_shared, columns, slice_number, swizzled_rows(right), np.zeros(1, np.uint32))
    found = kernel.launch((*arguments, swizzled_rows(left), y), 1, shared_bytes=(UNITS + columns) * 128)
    assert found == ()
    a, b = (decoded(element, np.ascontiguousarray(m.view(np.uint8)[:, 32 * slice_number :][:, :32])) for m in (left, right))
    np.testing.assert_allclose(y, a @ b.T, rtol=1e-5, atol=1e-4)
