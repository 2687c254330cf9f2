"""The ranks of a group open each other's buffers, where all of them are GPUs of one machine."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import torch

from minrnn_gen.build.rank_exchange import buffer_bytes, message_bytes, rank_exchange_cubin, rank_exchange_on
from minrnn_gen.config.environment import makes_graphs
from minrnn_gen.errors import MinrnnError
from minrnn_gen.gpu import peer_memory
from minrnn_gen.gpu.module import LoadedKernel
from minrnn_gen.kernel import Kernel
from minrnn_gen.torch.sequence_group import peer_buffers
from minrnn_gen.torch.sequence_group.agreement import exchanged
from minrnn_gen.torch.sequence_group.group import Member
from minrnn_gen.torch.sequence_group.peer_buffers import PeerBuffers

# Of a group that says nothing else: NCCL's own.
SECONDS_LONGEST = 600.0
# GPUs that NVLink or a switch of PCIe connects; a buffer has room for messages of all of them.
RANKS_MOST = 16
# Another number after each start of a machine.
_MACHINE = Path("/proc/sys/kernel/random/boot_id")
# CuPy's errors, those of a compiler, and of a path.
_REFUSALS = (RuntimeError, OSError, MinrnnError)


def meet(member: Member, kernel: Kernel, device: torch.device) -> None:
    """Open buffers between all ranks, which call this together, or note that exchanges go through the group's backend.

    Every rank of the group, on one machine, has to have opened those of all others.
    """
    if peer_buffers.has_met(member.process_group) or device.type != "cuda" or not 1 < member.size <= RANKS_MOST:
        return
    plan, own, handle, exchange = rank_exchange_on(_arch(kernel)), 0, b"", None
    with contextlib.suppress(*_REFUSALS):
        exchange = LoadedKernel(rank_exchange_cubin(plan, kernel.builder.store), plan.entry, plan.problem.arch, 0)
        exchange.function(device.index)
        own, handle = peer_memory.allocate_shared(device.index, buffer_bytes(plan, member.size))
    machine = _MACHINE.read_text().strip() if handle and makes_graphs() and _MACHINE.is_file() else ""
    everyone = [json.loads(text) for text in exchanged(json.dumps([machine, handle.hex()]), device, member)]
    addresses = [own] * member.size
    is_open = bool(machine) and all(of_rank[0] == machine for of_rank in everyone)
    if is_open:
        try:
            for rank, (_, of_rank) in enumerate(everyone):
                if rank != member.rank:
                    addresses[rank] = peer_memory.open_shared(device.index, bytes.fromhex(of_rank))
        except _REFUSALS:
            is_open = False
    buffers = None
    if all(json.loads(text) for text in exchanged(json.dumps(is_open), device, member)) and exchange is not None:
        places = peer_memory.addresses_on(device.index, addresses)
        longest_ns = int(1e9 * _timeout_seconds(member.process_group, device))
        buffers = PeerBuffers(exchange, plan.threads, message_bytes(plan), device, member.rank, member.size, places, longest_ns)
    peer_buffers.keep(member.process_group, buffers)


def _arch(kernel: Kernel) -> str:
    return f"sm_{kernel.builder.target.profile.compute_capability.replace('.', '')}"


def _timeout_seconds(process_group: Any, device: torch.device) -> float:
    """Return the longest time for which ranks of a group wait for each other."""
    try:
        return float(process_group._get_backend(device).options._timeout.total_seconds())
    except (AttributeError, RuntimeError):  # a backend of others
        return SECONDS_LONGEST
