"""The kernel of dropout, emulated, gives what torch gives by the same mask, to the last bit; pieces of time, and in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.emulated_code import HAS_COMPILER
from support.needed import needed
from support.small_problems import WantedBuilder

from minrnn_gen.build.store import Store
from minrnn_gen.call.pieces import Piece
from minrnn_gen.config.spec import load_spec
from minrnn_gen.gpu import memory
from minrnn_gen.interpret.backend import EmulatedBackend
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.run.layers.dropout import Dropout, scale_of
from minrnn_gen.run.layers.stack import StackResult
from minrnn_gen.run.target import target_of

torch = pytest.importorskip("torch")
dropout = needed("minrnn_gen.torch.layers.dropout")

pytestmark = pytest.mark.skipif(
    not HAS_COMPILER, reason="the kernels' text is compiled by a host C++ compiler, and there is none"
)

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
EVERYDAY = {("bf16", 24), ("fp32", 5)}
TIME, FILL = 7, 5.0


def backend_of(precision: str, folder: Path) -> EmulatedBackend:
    spec = load_spec({"model": "gru", "hidden_size": 24, "precision": precision, "gpu": "h200"})
    return EmulatedBackend(WantedBuilder(spec, target_of(spec), Store(folder), wanted=(("threads", 64),)), ())


def of_arrays(source: Any, mask: Any, target: Any, probability: float) -> Dropout:
    return Dropout(*(memory.inspect(array, "an array") for array in (source, mask, target)), probability)


@pytest.mark.parametrize(
    ("precision", "hidden"),
    [
        pytest.param(precision, hidden, marks=() if (precision, hidden) in EVERYDAY else pytest.mark.matrix_full)
        for precision in DTYPES
        for hidden in (24, 5)
    ],
)
def test_it_is_what_torch_makes_of_the_same_mask(precision: str, hidden: int, folder: Path) -> None:
    torch.manual_seed(0)
    backend, probability = backend_of(precision, folder), 0.3
    for shape, axes in (((5, TIME, hidden), "bth"), ((TIME, 5, hidden), "tbh")):
        source = torch.randn(shape).to(DTYPES[precision])
        source[0, 0, :3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
        (mask,) = dropout.draw_masks(source, hidden, 1, probability)
        expected = dropout.dropped(source, mask, probability)
        for piece in (Piece(0, TIME, TIME), Piece(2, 3, TIME)):
            for is_in_place in (False, True):
                target = source.clone() if is_in_place else torch.full_like(source, FILL)
                wanted = of_arrays(target if is_in_place else source, mask, target, probability)
                recorder = backend.begin(wanted.source, None, (wanted.source, wanted.mask, wanted.target))
                outside = target.clone()
                wanted.piece(axes, piece).run(recorder)
                recorder.finish(StackResult(()), None)
                steps = slice(piece.start, piece.start + piece.steps)
                where: Any = (slice(None), steps) if axes == "bth" else steps
                outside[where] = expected[where]
                torch.testing.assert_close(target, outside, rtol=0, atol=0, equal_nan=True)


def test_vectors_are_as_wide_as_rows_are_aligned() -> None:
    source = torch.zeros(3, TIME, 24, dtype=torch.bfloat16)
    mask = torch.ones(3 * TIME * 24 + 8, dtype=torch.bool)
    for offset, hidden, bytes_wide in ((0, 24, 16), (4, 24, 8), (1, 24, 2), (0, 12, 8), (0, 5, 2)):
        part = source.reshape(-1)[: 3 * TIME * hidden].view(3, TIME, hidden)
        kept = mask[offset : offset + part.numel()].view(part.shape)
        assert part.data_ptr() % 16 == 0 and mask.data_ptr() % 16 == 0
        piece = of_arrays(part, kept, part, 0.5).piece("bth", Piece(1, 3, TIME))
        assert piece._alignment_bytes == bytes_wide


def test_a_launch_has_its_arrays_by_slot_and_no_more_blocks_than_the_gpu_holds(folder: Path) -> None:
    backend, launches = backend_of("bf16", folder), list[Any]()
    for resident, blocks in ((1000, 3), (2, 2)):  # of 64 threads, for 5 x 9 x 3 vectors of 8 values

        class Kernel:
            plan = backend.plan(backend.choose("dropout", Specialization(16), Sizes(5, 9)))
            launch = staticmethod(launches.append)
            resident_blocks = staticmethod(lambda resident=resident: resident)

        class Recorder:
            choose = staticmethod(backend.choose)
            load = staticmethod(lambda _key: Kernel)

        source = torch.zeros(5, TIME + 4, 24, dtype=torch.bfloat16)
        wanted = of_arrays(source, source.bool(), source, 0.5)
        arrays = (array.with_slot(slot) for slot, array in enumerate((wanted.source, wanted.mask, wanted.target)))
        recorder: Any = Recorder
        Dropout(*arrays, 0.5).piece("bth", Piece(2, 9, TIME + 4)).run(recorder)
        (launch,) = launches
        launches.clear()
        assert launch.blocks == blocks
        pointers = [(pointer.slot, pointer.offset_bytes) for pointer in launch.arguments[:3]]
        assert pointers == [(0, 2 * 24 * 2), (1, 2 * 24), (2, 2 * 24 * 2)]
        assert launch.arguments[3:] == ((TIME + 4) * 24, 5, 9 * 24, 2.0)


def test_a_probability_of_one_leaves_zeros_whatever_there_was(folder: Path) -> None:
    source = torch.full((2, TIME, 24), float("inf"), dtype=torch.bfloat16)
    (mask,) = dropout.draw_masks(source, 24, 1, 1.0)
    assert scale_of(1.0) == 0 and not mask.any()
    wanted = of_arrays(source, mask, source, 1.0)
    recorder = backend_of("bf16", folder).begin(wanted.source, None, (wanted.source, wanted.mask))
    wanted.run(recorder)
    recorder.finish(StackResult(()), None)
    assert torch.equal(source, torch.zeros_like(source))


def test_nothing_is_launched_for_no_values(folder: Path) -> None:
    backend, source = backend_of("fp32", folder), torch.zeros(0, TIME, 24)
    wanted = of_arrays(source, source.bool(), source, 0.5)
    wanted.run(backend.begin(wanted.source, None, ()))
    assert not backend.built
