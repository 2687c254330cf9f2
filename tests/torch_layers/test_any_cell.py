"""Layers of every cell, and of cells of the user's: what they compute, and what becomes of them."""

from __future__ import annotations

import copy
import io
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.needed import needed

import minrnn_gen
from minrnn_gen.build.recipe import spec_from
from minrnn_gen.cell.files import library_names

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
kernels = needed("minrnn_gen.layers.kernels")

BATCH, TIME, INPUTS, HIDDEN = 2, 6, 5, 6
NAMED = {
    "min_gru": wing.MinGRU,
    "min_gru_log": wing.MinGRULog,
    "min_gru_tanh": wing.MinGRUTanh,
    "min_lstm": wing.MinLSTM,
    "min_lstm_log": wing.MinLSTMLog,
    "hgrn": wing.HGRN,
    "rg_lru": wing.RGLRU,
    "qrnn": wing.QRNN,
    "ind_rnn": wing.IndRNN,
    "elman": wing.Elman,
    "lstm": wing.LSTM,
    "gru": wing.GRU,
    "slstm": wing.SLSTM,
    "peephole_lstm": wing.PeepholeLSTM,
    "lif": wing.LIF,
    "recurrent_lif": wing.RecurrentLIF,
}
# Cells without a class of their own.
LAYERS = NAMED | {name: partial(wing.RNN, name) for name in ("gru_reset_before", "layer_norm_lstm")}
LEAKY = {"name": "leaky", "equations": "h[t] = keep * h[t-1] + (1 - keep) * tanh(W.h + R.h)", "parameters": ["keep"]}


def kernel_of(layer: Any, precision: str = "fp32", at: int = 0) -> minrnn_gen.Kernel:
    return kernels.kernel_by(layer._made.recipes[precision][at])


def test_every_built_in_cell_has_its_layer() -> None:
    assert sorted(LAYERS) == sorted(library_names())
    others = {
        "HeadGroup",
        "RNN",
        "SelectiveScan",
        "SequenceGroup",
        "export_operators",
        "gae",
        "lambda_returns",
        "lfilter",
        "onnx_translations",
        "nn",
        "recurrence",
        "replace",
        "scan",
        "sosfilt",
        "sum_gradients",
        "tune_sequence_group",
        "vtrace",
    }
    assert {one.__name__ for one in NAMED.values()} | others == set(wing.__all__)


@pytest.mark.parametrize("model", library_names())
def test_a_layer_is_its_kernel(model: str) -> None:
    """Two layers, cut in the middle of time, are two calls of kernels on the parameters in torch's shapes."""
    heads = 2 if model == "slstm" else 1
    layer = LAYERS[model](INPUTS, HIDDEN, 2, heads=heads)
    x = torch.randn(BATCH, TIME, INPUTS)
    with torch.no_grad():
        y, last = layer(x)
        first, states = layer(x[:, :2])
        second, again = layer(x[:, 2:], states)
        expected = x
        for at in range(2):
            kernel = kernel_of(layer, at=at)
            got = {name.removesuffix(f"_l{at}"): one for name, one in layer.named_parameters() if name.endswith(f"_l{at}")}
            arguments = {"weight": got["weight_ih"], "bias": got["bias_ih"]}
            if "weight_hh" in got:
                R = got["weight_hh"].view(-1, heads, HIDDEN // heads, HIDDEN // heads)
                arguments |= {"R": R, "recurrent_bias": got["bias_hh"].view(R.shape[:-1])}
            expected, final = kernel(expected, **arguments, parameters={name: got[name] for name in kernel.parameters})
    last, again = (one if isinstance(one, tuple) else (one,) for one in (last, again))
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    for name, one in zip(kernel.states, last, strict=True):
        assert one.shape == (2, BATCH, HIDDEN)
        torch.testing.assert_close(one[1], final[name], rtol=0, atol=0)
    torch.testing.assert_close(torch.cat([first, second], 1), y)
    for one, other in zip(again, last, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("model", ["min_gru", "slstm"])
def test_sequences_of_padded_and_of_joined_batches(model: str) -> None:
    layer, x, lengths = NAMED[model](INPUTS, HIDDEN, 2), torch.randn(BATCH, TIME, INPUTS), torch.tensor([4, 6])
    with torch.no_grad():
        y, last = layer(x, lengths=lengths)
        joined = torch.cat([x[0, :4], x[1]])[None]
        y_joined, last_joined = layer(joined, cu_seqlens=torch.tensor([0, 4, 10]))
        assert not y[0, 4:].any()
        torch.testing.assert_close(torch.cat([y[0, :4], y[1]])[None], y_joined)
        torch.testing.assert_close(last, last_joined)
        resets = torch.zeros(1, 10, dtype=torch.bool)
        resets[0, 4] = True
        torch.testing.assert_close(layer(joined, resets=resets)[0], y_joined)


def test_a_cell_of_the_users_is_in_the_layer_and_not_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "leaky.yaml"
    file.write_text("\n".join(f"{key}: {value if key != 'equations' else repr(value)}" for key, value in LEAKY.items()))
    from_file, from_mapping = wing.RNN(file, INPUTS, HIDDEN), wing.RNN(LEAKY, INPUTS, HIDDEN)
    assert list(from_file.state_dict()) == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "keep_l0"]
    from_mapping.load_state_dict(from_file.state_dict())
    file.unlink()
    x = torch.randn(BATCH, TIME, INPUTS)
    y, last = from_file(x)
    torch.testing.assert_close(from_mapping(x), (y, last), rtol=0, atol=0)
    y.sum().backward()
    assert from_file.keep_l0.grad.abs().min() > 0
    (recipe,) = from_file._made.recipes["bf16"]
    assert spec_from(recipe).precision == "bf16" and "leaky" in recipe and str(tmp_path) not in recipe


def test_copies_and_files_of_a_layer() -> None:
    layer, x = wing.SLSTM(INPUTS, HIDDEN, 2, bidirectional=True), torch.randn(BATCH, TIME, INPUTS)
    y, _ = layer(x)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for one in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
        assert torch.equal(one(x)[0], y)
    assert "num_layers=2, bidirectional=True" in repr(layer)
    # A layer that is called after its cell says the cell once.
    assert repr(minrnn_gen.torch.LSTM(3, 4, heads=2)) == "LSTM(3, 4, heads=2)"
    assert repr(minrnn_gen.torch.RNN("lstm", 3, 4)) == "RNN('lstm', 3, 4)"


def test_the_parameters_may_be_put_in_their_place_by_others() -> None:
    """As torch.func.functional_call, parametrisations and sharded training do."""
    layer, x = wing.GRU(INPUTS, HIDDEN), torch.randn(BATCH, TIME, INPUTS)
    zeros = {name: torch.zeros_like(one) for name, one in layer.named_parameters()}
    assert not torch.func.functional_call(layer, zeros, (x,))[0].any()
    torch.nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")
    before = layer(x)[0]
    before.sum().backward()
    assert layer.parametrizations.weight_hh_l0.original0.grad is not None
    with torch.no_grad():
        layer.parametrizations.weight_hh_l0.original0.zero_()
        assert not torch.equal(layer(x)[0], before)


def test_the_forget_gate_may_start_open() -> None:
    for layer in (
        wing.LSTM(INPUTS, HIDDEN, 2, forget_bias=1.5),
        wing.SLSTM(INPUTS, HIDDEN, bidirectional=True, forget_bias=1.5),
    ):
        for name, one in layer.named_parameters():
            gate = one[HIDDEN : 2 * HIDDEN]
            assert bool((gate == 1.5).all()) is name.startswith("bias_ih")


def test_the_decay_of_rg_lru_starts_where_its_paper_has_it() -> None:
    decay = wing.RGLRU(INPUTS, 512).decay_l0.detach().double()
    coefficient = torch.exp(-8 * torch.nn.functional.softplus(decay))
    assert 0.9 <= coefficient.min() < 0.91 and 0.99 < coefficient.max() <= 0.999


def test_coupled_states_start_within_the_unit_circle() -> None:
    """Checks biquad's poles, and complex_lru's moduli in the ring of its paper; linoss is stable whatever it starts with."""
    biquad, lru = wing.RNN("biquad", INPUTS, 512).double(), wing.RNN("complex_lru", INPUTS, 512).double()
    a1, a2 = biquad.a1_l0.detach(), biquad.a2_l0.detach()
    poles = torch.linalg.eigvals(torch.stack((-a1, torch.ones_like(a1), -a2, torch.zeros_like(a1)), -1).reshape(-1, 2, 2))
    assert poles.abs().max() < 1 and bool((biquad.b0_l0 == 1).all())
    moduli, phases = torch.exp(-torch.exp(lru.nu_l0.detach())), lru.theta_l0.detach()
    assert 0.9 <= moduli.min() < 0.905 and 0.995 < moduli.max() <= 0.999
    assert 0 <= phases.min() < 0.1 and 6.2 < phases.max() < 2 * torch.pi


@pytest.mark.parametrize("kind", [wing.LIF, wing.RecurrentLIF])
def test_membranes_start_with_time_constants_of_five_to_twenty_five_steps(kind: Any) -> None:
    constants = -1 / torch.log(torch.sigmoid(kind(INPUTS, 512).decay_l0.detach().double()))
    assert 5 <= constants.min() < 5.2 and 23 < constants.max() <= 25.001


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float64, "fp64"), (torch.bfloat16, "bf16"), (torch.float16, "fp16")])
def test_the_dtype_of_the_input_is_the_precision(dtype: Any, precision: str) -> None:
    layer, x = wing.LSTM(INPUTS, HIDDEN).to(dtype), torch.randn(BATCH, TIME, INPUTS, dtype=dtype, requires_grad=True)
    y, (h, c) = layer(x)
    assert y.dtype is dtype and h.dtype is c.dtype is (dtype if precision == "fp64" else torch.float32)
    y.float().sum().backward()
    assert x.grad.dtype is dtype and layer.weight_ih_l0.grad.dtype is dtype
    torch.testing.assert_close(layer(x, (h, c))[0], layer(x, (h.to(dtype), c.to(dtype)))[0], rtol=0, atol=0.02)


@pytest.mark.parametrize("model", ["lstm", "min_gru", "rg_lru"])
def test_autocast_and_a_precision_cast_what_is_multiplied(model: str) -> None:
    torch.manual_seed(0)
    layer, x = NAMED[model](INPUTS, HIDDEN), torch.randn(BATCH, TIME, INPUTS)
    asked = NAMED[model](INPUTS, HIDDEN, precision="bf16")
    asked.load_state_dict(layer.state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = layer(x)
    found, _ = asked(x.bfloat16())
    assert y.dtype is torch.bfloat16 and torch.equal(y, found)
    loss = y.float().square().sum()
    loss.backward()
    assert all(one.grad is not None and one.grad.dtype is torch.float32 for one in layer.parameters())
    torch.testing.assert_close(y.float(), layer(x)[0], rtol=0, atol=0.05)
    asked.to(torch.float16)(x.bfloat16())[0].sum().backward()
    assert all(one.grad.dtype is torch.float16 for one in asked.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):  # as torch does it, float64 stays what it is
        assert layer.double()(x.double())[0].dtype is torch.float64
