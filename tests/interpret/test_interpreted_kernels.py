"""Kernels' own text, run on the host, gives what the CPU target gives: every family, scope, precision, layout and direction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.emulated_calls import arguments_of, kernel_of

from minrnn_gen import compile
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import BadInput, ToolchainMissing
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.interpret.verify import PROJECTED, Verification
from minrnn_gen.run.target import target_of

needs_compiler = pytest.mark.skipif(not has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none")

# All that `minrnn-gen verify` runs but other candidates: kernels with and without resets, backwards, steps, of small sizes.
SPECS: tuple[dict[str, Any], ...] = (
    {"model": "min_lstm", "hidden_size": 3, "precision": "fp16", "layout": "TBD", "direction": "bidirectional"},
)
MORE: tuple[dict[str, Any], ...] = (
    {"model": "lstm", "hidden_size": 32, "precision": "bf16", "input_size": 12},
    {"model": "min_lstm", "hidden_size": 24, "precision": "fp16", "layout": "TBD", "direction": "bidirectional"},
    {"model": "min_gru", "hidden_size": 40, "precision": "bf16"},
    {"model": "min_gru", "hidden_size": 6, "precision": "fp64", "layout": "BDT", "direction": "reverse"},
    {"model": "min_gru_log", "hidden_size": 33, "precision": "fp32", "scan_arithmetic": "log", "gpu": "t4"},
    {"model": "min_gru", "hidden_size": 3, "precision": "fp32", "batch": 1, "time": 65536, "layout": "BDT"},
    {"model": "min_gru", "hidden_size": 32, "precision": "fp32", "batch": 1, "time": 65536},
    {"model": "ind_rnn", "hidden_size": 20, "precision": "bf16"},
    {"model": "ind_rnn", "hidden_size": 5, "precision": "fp32", "layout": "BDT", "direction": "reverse"},
    {"model": "lstm", "hidden_size": 128, "precision": "fp64", "gpu": "t4"},
    {"model": "gru", "hidden_size": 64, "precision": "fp32", "direction": "reverse"},
    {"model": "slstm", "hidden_size": 24, "heads": 2, "precision": "fp16", "direction": "bidirectional"},
    {"model": "gru", "hidden_size": 64, "precision": "bf16", "gpu": "a100", "layout": "TBD"},
    {"model": "gru", "hidden_size": 48, "precision": "fp32", "fp32_product": "tf32", "input_size": 12},
    {"model": "lstm", "hidden_size": 24, "precision": "fp32", "fp32_product": "tf32", "layout": "BDT"},
)


@needs_compiler
@pytest.mark.parametrize(
    "spec",
    [*SPECS, *(pytest.param(spec, marks=pytest.mark.matrix_full) for spec in MORE)],
    ids=lambda spec: " ".join(map(str, spec.values())),
)
def test_chosen_kernels_are_right(spec: dict[str, Any]) -> None:
    loaded = load_spec({"gpu": "h200", **spec})
    verdicts = list(Verification(loaded, target_of(loaded), seeds=1, candidates=0).run())
    passes = {"forward", "backward"} | ({"step"} if loaded.direction != "bidirectional" else set())
    assert {verdict.kernel_pass for verdict in verdicts} == passes
    for verdict in verdicts:
        assert verdict.is_right, (verdict.share, *map(str, verdict.findings))


@needs_compiler
def test_results_are_the_same_bits_in_every_order_of_threads() -> None:
    kernel = kernel_of(model="lstm", hidden_size=64, wanted={"cluster_blocks": 2})
    arguments = arguments_of(kernel, 3, 4)
    results = []
    for seed in range(4):
        with kernel.seeded(seed):
            y, state = kernel(**arguments)
        results.append(b"".join(array.tobytes() for array in (y, *state.values())))
    assert len(set(results)) == 1


@needs_compiler
def test_one_product_in_tf32_is_as_coarse_as_its_factors() -> None:
    """Beside fp64, after one step: each factor of a gate's products is off by 2^-11 of itself at most, and no digit more."""
    sizes = {"model": "elman", "hidden_size": 32, "input_size": 24, "gpu": "h200"}
    random = np.random.default_rng(3)
    shapes = ((4, 1, 24), (1, 1, 32, 32), (32, 24), (4, 32))
    x, R, weight, h = (random.normal(scale=0.4, size=shape).astype(np.float32) for shape in shapes)
    exact = compile({**sizes, "precision": "fp64"})
    wide = [array.astype(float) for array in (x, R, weight, h)]
    expected = np.arctanh(exact(*wide[:2], weight=wide[2], state={"h": wide[3]})[0])
    sizes_of_products = np.abs(x) @ np.abs(weight).T + (np.abs(h) @ np.abs(R[0, 0]).T)[:, None]
    kernel = compile({**sizes, "precision": "fp32", "fp32_product": "tf32"}, device="interpret")
    assert kernel.plan.is_persistent
    y, _ = kernel(x, R, weight=weight, state={"h": h})
    # tanh keeps fewer digits of larger arguments.
    error = (np.abs(np.arctanh(y.astype(float)) - expected) / sizes_of_products)[np.abs(expected) < 2].max()
    assert 2.0**-15 < error < 2 * 2.0**-11 + 2.0**-22 + 2.0**-18


@needs_compiler
def test_it_is_a_device_of_compile() -> None:
    kernel = compile({"model": "min_gru", "hidden_size": 8, "gpu": "h200", "precision": "fp32"}, device="interpret")
    x = np.zeros((1, 2, 2, 8), np.float32)
    y, _ = kernel(x)
    np.testing.assert_allclose(y, kernel.reference(x)[0], rtol=1e-6, atol=1e-6)


@needs_compiler
def test_what_would_take_hours_is_refused() -> None:
    kernel = compile({"model": "lstm", "hidden_size": 512, "gpu": "h200", "precision": "fp32"}, device="interpret")
    x, R = np.zeros((64, 512, 4, 512), np.float32), np.zeros((4, 1, 512, 512), np.float32)
    with pytest.raises(BadInput, match=r"about \d+ minutes.*--yes-really"):
        kernel(x, R)


def test_another_device_is_refused() -> None:
    with pytest.raises(BadInput, match="device is 'cuda'; allowed: 'interpret'"):
        compile({"model": "min_gru", "hidden_size": 8}, device="cuda")
    with pytest.raises(BadInput, match="leave one of them out"):
        compile({"model": "min_gru", "hidden_size": 8}, device="interpret", tune=True)


@pytest.mark.parametrize(
    ("variable", "said"), [("PATH", "needs a C\\+\\+ compiler"), ("CXX", "'no-such-compiler', which is not installed")]
)
def test_without_a_compiler_it_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch, variable: str, said: str) -> None:
    from minrnn_gen.interpret import toolchain

    toolchain._compiler.cache_clear()
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(variable, "no-such-compiler")
    try:
        with pytest.raises(ToolchainMissing, match=said):
            compile({"model": "min_gru", "hidden_size": 8, "gpu": "h200"}, device="interpret")
    finally:
        toolchain._compiler.cache_clear()


@needs_compiler
def test_a_scan_behind_its_projection_is_verified() -> None:
    """Whatever is faster; a backward goes with it, from the pre-activations that it writes."""
    spec = load_spec({"model": "min_gru", "hidden_size": 128, "input_size": 64, "precision": "bf16", "gpu": "h200"})
    verification = Verification(spec, target_of(spec))
    kernel = verification.projecting()
    assert kernel is not None
    verdicts = verification._verdicts(1, kernel, verification._exact(kernel), PROJECTED, False)
    assert [(verdict.kernel_pass, verdict.entry) for verdict in verdicts] == [
        ("forward", "projected_forward"),
        ("backward", "scan_backward"),
    ]
    assert all(verdict.is_right for verdict in verdicts)
    for other in ({"precision": "fp32"}, {"direction": "reverse"}, {"input_size": None}, {"gpu": "a100"}, {"model": "lstm"}):
        loaded = load_spec({**spec.model_dump(exclude_none=True), **other})
        assert Verification(loaded, target_of(loaded)).projecting() is None
