"""The kernel that passes states between GPUs: compiled for every GPU, and several ranks of it emulated in one launch."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from minrnn_gen.build.nvrtc import compile_source
from minrnn_gen.build.store import Store
from minrnn_gen.codegen.render import RankExchange, Types, render_rank_exchange
from minrnn_gen.config.gpu_profile import load_profile, profile_names
from minrnn_gen.interpret.library import Memory, emulated_kernel

THREADS, SLOTS, WORDS, LINE_BYTES = 32, 2, 48, 128
LONGEST_NS = 10**9


@pytest.mark.parametrize("arch", sorted({profile.arch for profile in map(load_profile, profile_names())}))
def test_the_exchange_compiles(arch: str) -> None:
    pytest.importorskip("cupy", reason="NVRTC comes with it")
    plan = RankExchange(Types(arch, "float32"))
    (kernel,) = compile_source(render_rank_exchange(plan), plan).kernels
    assert kernel.name == plan.entry and kernel.spill_bytes == 0


@dataclass
class Emulated:
    """All ranks of a group, their peer_buffers in host memory."""

    kernel: Any
    ranks: int

    def __post_init__(self) -> None:
        size = self.ranks * (LINE_BYTES + 4 * SLOTS * WORDS)
        self.memory = [ctypes.create_string_buffer(size + LINE_BYTES) for _ in range(self.ranks)]
        starts = [-(-ctypes.addressof(buffer) // LINE_BYTES) * LINE_BYTES for buffer in self.memory]
        self.addresses, self.size = numpy.array(starts, numpy.uint64), size

    def launch(
        self,
        own: Any,
        into: Any,
        seed: int,
        first: int = 0,
        ranks: int = 0,
        sends: int = -1,
        receives: int = -1,
        gathers: bool = True,
    ) -> None:
        """Launch the blocks of `ranks` ranks from `first` on; all by default."""
        at = self.addresses
        memory = [Memory("peer_buffers", at.ctypes.data, at.nbytes, True)]
        memory += [Memory(f"buffer {rank}", int(start), self.size, True) for rank, start in enumerate(at)]
        memory += [Memory(name, array.ctypes.data, array.nbytes, given) for name, array, given in
                   (("own", own, True), ("into", into, False)) if array is not None]  # fmt: skip
        pointers = [0 if array is None else array.ctypes.data for array in (own, into)]
        words = own.shape[-1] if own is not None else into.shape[-1]
        numbers = (words, first, self.ranks, sends, receives, int(gathers), LONGEST_NS)
        findings = self.kernel.launch((ranks or self.ranks) * self.ranks, (at.ctypes.data, *pointers, *numbers), seed, memory)
        assert not findings, findings


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Any:
    plan = RankExchange(Types("sm_90", "float32"), threads=THREADS, slots=SLOTS, slot_words=WORDS)
    launched = SimpleNamespace(
        entry=plan.entry, symbol=plan.entry, problem=plan.problem, budget=plan.budget, variables={}, is_cooperative=True,
        launch=SimpleNamespace(threads=THREADS),
    )  # fmt: skip
    return emulated_kernel(render_rank_exchange(plan), launched, Store(tmp_path_factory.mktemp("store")))  # type: ignore[arg-type]


@settings(max_examples=examples(20))
@given(st.integers(2, 4), st.integers(1, WORDS), st.integers(1, 6), st.integers(0, 1 << 30))
def test_every_rank_gathers_the_messages_of_all(kernel: Any, ranks: int, words: int, rounds: int, seed: int) -> None:
    """Whatever rank comes first: more rounds than slots, over memory whose writes become visible late."""
    group, draw = Emulated(kernel, ranks), numpy.random.default_rng(seed)
    for number in range(rounds):
        own = draw.integers(0, 1 << 32, (ranks, words), numpy.uint32)
        into = numpy.zeros((ranks, ranks, words), numpy.uint32)
        group.launch(own, into, seed + number)
        assert all(numpy.array_equal(gathered, own) for gathered in into)


@settings(max_examples=examples(10))
@given(st.integers(1, WORDS), st.integers(0, 1 << 30))
def test_a_rank_sends_as_many_messages_ahead_as_there_are_slots(kernel: Any, words: int, seed: int) -> None:
    group, draw = Emulated(kernel, 3), numpy.random.default_rng(seed)
    for _ in range(3):
        sent = [draw.integers(0, 1 << 32, (1, words), numpy.uint32) for _ in range(SLOTS)]
        for message in sent:
            group.launch(message, None, seed, 1, 1, sends=0b100, receives=0, gathers=False)
        for message in sent:
            into = numpy.zeros_like(message)
            group.launch(None, into, seed, 2, 1, sends=0, receives=0b010, gathers=False)
            assert numpy.array_equal(into, message)


def test_a_wait_ends_where_the_other_rank_is_gone(kernel: Any) -> None:
    group, own = Emulated(kernel, 2), numpy.zeros((1, 4), numpy.uint32)
    with pytest.raises(AssertionError, match="waits in vain"):
        group.launch(own, numpy.zeros((1, 2, 4), numpy.uint32), 0, 0, 1)
