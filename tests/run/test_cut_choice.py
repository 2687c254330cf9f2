"""Whether and how layers are cut: by what the cost model expects, and within what the GPU holds at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.everyday import one_in

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store
from minrnn_gen.build.target import Target
from minrnn_gen.config.environment import layers_run_beside_each_other
from minrnn_gen.config.gpu_profile import load_profile
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import BadInput
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.run.expected_time import GAIN_LEAST, BackwardOrForward
from minrnn_gen.run.layers.cut_choice import PIECE_STEPS_LEAST, CutChoice, choose_cut
from minrnn_gen.run.layers.wavefront import wavefront

H200 = load_profile("h200")
WIDE = {"model": "lstm", "hidden_size": 768, "precision": "bf16", "input_size": 768}
CHAIN = Sizes(16, 1024)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def builder_of(asked: dict[str, Any], store: Store, share: int = 1) -> Builder:
    return Builder(load_spec(asked), Target(H200, b"", "spec").share(share), store)


def choice_of(
    asked: dict[str, Any], store: Store, kernel_pass: BackwardOrForward = "forward", sizes: Sizes = CHAIN, layers: int = 4
) -> CutChoice | None:
    whole = Builder(load_spec(asked), Target(H200, b"", "spec"), store)
    return choose_cut(kernel_pass, [whole] * layers, lambda count: builder_of(asked, store, count), sizes)


@pytest.mark.parametrize("kernel_pass", ["forward", "backward"])
def test_layers_whose_recurrences_are_chains_are_cut(kernel_pass: BackwardOrForward, store: Store) -> None:
    choice = choice_of(WIDE, store, kernel_pass)
    assert choice is not None
    assert choice.predicted_us * GAIN_LEAST <= choice.one_by_one_us
    assert choice.piece.time * choice.cut.pieces >= CHAIN.time and choice.piece.time >= PIECE_STEPS_LEAST


@pytest.mark.parametrize(
    "asked",
    [
        WIDE | {"direction": "bidirectional"},  # whose second layer needs all of the first
        WIDE | {"recurrent_gradient_clip": 1.0},
        WIDE | {"layout": "BDT"},
        {"model": "min_gru", "hidden_size": 512, "input_size": 512},
    ],
)
def test_what_has_no_pieces_is_not_cut(asked: dict[str, Any], store: Store) -> None:
    assert choice_of(asked, store) is None


def test_one_layer_and_few_steps_are_not_cut(store: Store) -> None:
    assert choice_of(WIDE, store, layers=1) is None
    assert choice_of(WIDE, store, sizes=Sizes(16, PIECE_STEPS_LEAST)) is None
    assert choice_of(WIDE, store, sizes=Sizes(0, 1024)) is None


@pytest.mark.parametrize("kernel_pass", ["forward", "backward"])
@pytest.mark.parametrize("hidden_size", one_in(3, [768, 512, 1024]))
def test_blocks_that_wait_for_each_other_are_resident_at_once(
    hidden_size: int, kernel_pass: BackwardOrForward, store: Store
) -> None:
    asked = WIDE | {"hidden_size": hidden_size, "input_size": hidden_size}
    choice = choice_of(asked, store, kernel_pass)
    assert choice is not None
    builder = builder_of(asked, store, choice.shares)
    key = builder.choose(kernel_pass, builder.hinted_specialization, choice.piece)
    plan = next(solution.plan() for solution in builder.solutions(key))
    lanes = {step.lane for step in wavefront(4, choice.cut.pieces, choice.cut.lanes, True) if step.kind == "recurrence"}
    assert not plan.is_cooperative or len(lanes) * plan.launch.resident_blocks <= H200.sm_count * plan.budget.blocks_per_sm


def test_shares_are_gpus_with_fewer_sms() -> None:
    third = H200.share(3)
    assert third.sm_count == H200.sm_count // 3
    assert third.model_copy(update={"sm_count": H200.sm_count, "sources": H200.sources}) == H200
    target = Target(H200, b"", "spec")
    assert target.share(3).profile_bytes != target.share(2).profile_bytes


def test_the_environment_may_forbid_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINRNN_WAVEFRONT", raising=False)
    assert layers_run_beside_each_other()
    monkeypatch.setenv("MINRNN_WAVEFRONT", "never")
    assert not layers_run_beside_each_other()
    monkeypatch.setenv("MINRNN_WAVEFRONT", "sometimes")
    with pytest.raises(BadInput, match="MINRNN_WAVEFRONT is 'sometimes'"):
        layers_run_beside_each_other()
