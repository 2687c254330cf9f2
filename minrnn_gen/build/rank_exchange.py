"""The kernel that passes states between the GPUs of one machine, compiled once for an architecture."""

from __future__ import annotations

from minrnn_gen.build.nvrtc import compile_source, toolchain_version
from minrnn_gen.build.store import Store, digest, package_digest
from minrnn_gen.codegen.render import RankExchange, Types, render_rank_exchange
from minrnn_gen.plan.limits import LINE_BYTES

_MODEL = "rank_exchange"
_NAME = f"{_MODEL}.cubin"
_WORD_BYTES = 4


def rank_exchange_on(arch: str) -> RankExchange:
    """Return the kernel for an architecture, as "sm_90"."""
    return RankExchange(Types(arch, "float32"))


def message_bytes(plan: RankExchange) -> int:
    """Return the size of the largest message."""
    return plan.slot_words * _WORD_BYTES


def buffer_bytes(plan: RankExchange, ranks: int) -> int:
    """Return the size of the buffer of one of `ranks` ranks: for each a line with its counters, and its messages."""
    return ranks * (LINE_BYTES + plan.slots * message_bytes(plan))


def rank_exchange_cubin(plan: RankExchange, store: Store) -> bytes:
    """Return the cubin of the kernel, compiled unless the store has it; raises ToolchainMissing without NVRTC."""
    text, arch = render_rank_exchange(plan), plan.problem.arch
    key = digest(package_digest(), text, arch, toolchain_version() or "")
    entry = store.find(key, lambda entry: entry.files[_NAME])
    if entry is None:
        cubin = compile_source(text, plan).cubin
        entry = store.put(key, {_NAME: cubin}, {"model": _MODEL, "pass": "exchange", "arch": arch})
    return entry.files[_NAME]
