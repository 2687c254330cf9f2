"""Small CUDA texts that use the wrappers of PTX instructions, run by the emulated machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from support.fake_plan import plan_with

from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.codegen.render import environment
from minrnn_gen.interpret.findings import Finding
from minrnn_gen.interpret.library import EmulatedKernel, Memory, emulated_kernel

ENTRY = "machine_case"


def wrappers(batch_tile: int) -> str:
    """Return the text of the wrappers of mbarriers, bulk copies, counters and warpgroups, for products of bf16."""
    plan = plan_with(
        variables={"batch_tile": batch_tile},
        sums_of_lane=range(batch_tile // 2),
        storage_dtype="bfloat16",
        storage_bytes=2,
        waits_are_bounded=False,
        has_clusters=True,
        partition={"consumer_registers": 1},
    )
    names = ("mbarrier", "bulk_copy", "counter", "async_fetch", "warpgroup", "warpgroup_product")
    return "".join(environment().get_template(f"ptx/{name}.cuh.j2").render(plan=plan) for name in names)


@dataclass(frozen=True)
class MachineKernel:
    """The entry `machine_case` of a text: a switch over cases, so that all are compiled at once."""

    kernel: EmulatedKernel

    def launch(
        self,
        arguments: Sequence[Any],
        seed: int,
        threads: int = 128,
        blocks: int = 1,
        shared_bytes: int = 1 << 14,
        cluster: int = 1,
    ) -> tuple[Finding, ...]:
        """Run a grid whose blocks are all there at once; arrays are watched, and full before the launch."""
        plan: Any = shape(threads, shared_bytes, {"grid_blocks": blocks, "cluster_blocks": cluster})
        memory = [
            Memory(f"array {n}", int(array.ctypes.data), array.nbytes, is_given=True)
            for n, array in enumerate(arguments)
            if isinstance(array, np.ndarray)
        ]
        words = [int(word.ctypes.data) if isinstance(word, np.ndarray) else word for word in arguments]
        return replace(self.kernel, plan=plan).launch(blocks, words, seed, memory)


def shape(threads: int, shared_bytes: int, variables: dict[str, int]) -> Any:
    """Return what the machine reads of a plan."""
    return plan_with(
        entry=ENTRY,
        symbol=ENTRY,
        storage_dtype="bfloat16",
        threads=threads,
        shared_bytes=shared_bytes,
        variables=variables,
        is_cooperative=variables.get("grid_blocks", 1) > 1,
    )


def machine_kernel(text: str) -> MachineKernel:
    """Compile a text behind the wrappers."""
    plan: Any = shape(0, 0, {})
    return MachineKernel(emulated_kernel(text, plan, Store(cache_folder())))


def bf16_bits(values: Any) -> Any:
    """Return float32 values as bfloat16, to the nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def bf16_values(bits: Any) -> Any:
    """Return the float32 values of bfloat16."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def swizzled_rows(rows: Any) -> Any:
    """Return rows of 128 bytes as bytes in the 128-byte swizzle."""
    pieces = np.ascontiguousarray(rows).view(np.uint8).reshape(-1, 8, 16)
    order = np.arange(8)[None] ^ np.arange(len(pieces))[:, None] % 8
    return np.take_along_axis(pieces, order[:, :, None], 1).reshape(-1)
