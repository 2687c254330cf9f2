"""Signatures of the fronts beside those of the libraries: whatever a caller writes is taken, or the difference is documented.

Signatures are read from a package where it is installed; those of packages that need a GPU to be installed are recorded here.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.differentiable import exchanged  # noqa: E402

from minrnn_gen import compat  # noqa: E402

MIGRATION = Path(__file__).parents[2] / "docs" / "migration.md"

# What neurons of a library have in common.
NODE = "v_threshold=1.0, v_reset=0.0, surrogate_function=Sigmoid(), detach_reset=False, step_mode='s', store_v_seq=False"
SPIKES = "threshold=1.0, spike_grad=None, surrogate_disable=False, init_hidden=False, inhibition=False"
# {module of theirs and function: (version, parameters)}; of a parameter with a default, the default in Python's words.
RECORDED: dict[str, tuple[str, str]] = {
    "accelerated_scan.warp.scan": ("accelerated-scan 0.3.1", "gates, tokens"),
    "accelerated_scan.scalar.scan": ("accelerated-scan 0.3.1", "forget, inputs"),
    "accelerated_scan.complex.scan": ("accelerated-scan 0.3.1", "forget, inputs"),
    "accelerated_scan.ref.scan": (
        "accelerated-scan 0.3.1",
        "gates, tokens, mul=torch.mul, add=torch.add, zeros_like=torch.zeros_like, ones_like=torch.ones_like, reverse=False",
    ),
    "flashrnn.flashrnn": (
        "flashrnn 1.0.8",
        "Wx, R, b, states=None, function='lstm', config=None, backend='cuda_fused', dtype='bfloat16'",
    ),
    "fla.ops.hgrn.chunk_hgrn": ("fla-core 0.6.0", "x, g, initial_state=None, output_final_state=False"),
    "fla.ops.hgrn.fused_recurrent_hgrn": (
        "fla-core 0.6.0",
        "x, g, initial_state=None, output_final_state=False, cu_seqlens=None",
    ),
    "mamba_ssm.ops.selective_scan_interface.selective_scan_fn": (
        "mamba-ssm 2.3.2",
        "u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False",
    ),
    "mamba_ssm.ops.selective_scan_interface.mamba_inner_fn": (
        "mamba-ssm 2.3.2",
        "xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, B=None, C=None, "
        "D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True, checkpoint_lvl=1, "
        "b_rms_weight=None, c_rms_weight=None, dt_rms_weight=None, b_c_dt_rms_eps=1e-6",
    ),
    "mamba_ssm.ops.triton.selective_state_update.selective_state_update": (
        "mamba-ssm 2.3.2",
        "state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None",
    ),
    "flashinfer.mamba.selective_state_update": (
        "flashinfer-python 0.6.18",
        "state, x, dt, A, B, C, D, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None, pad_slot_id=-1, "
        "state_scale=None, out=None, disable_state_update=False, intermediate_states_buffer=None, "
        "intermediate_state_indices=None, intermediate_state_scales=None, rand_seed=None, philox_rounds=10, cache_steps=0, "
        "algorithm='auto', dst_state_batch_indices=None, cu_seqlens=None, num_accepted_tokens=None, backend='auto'",
    ),
    "torchaudio.functional.lfilter": (
        "torchaudio 2.8.0",
        "waveform, a_coeffs, b_coeffs, clamp=True, batching=True",
    ),
    "spikingjelly.activation_based.functional.reset_net": ("spikingjelly 2.0.0", "net"),
    "spikingjelly.activation_based.neuron.IFNode": ("spikingjelly 2.0.0", NODE),
    "spikingjelly.activation_based.neuron.LIFNode": ("spikingjelly 2.0.0", f"tau=2.0, decay_input=True, {NODE}"),
    "spikingjelly.activation_based.neuron.ParametricLIFNode": (
        "spikingjelly 2.0.0",
        f"init_tau=2.0, decay_input=True, {NODE}",
    ),
    "snntorch.Leaky": (
        "snntorch 1.0.0",
        f"beta, {SPIKES}, learn_beta=False, learn_threshold=False, reset_mechanism='subtract', state_quant=False, "
        "output=False, graded_spikes_factor=1.0, learn_graded_spikes_factor=False, reset_delay=True",
    ),
    "snntorch.Synaptic": (
        "snntorch 1.0.0",
        f"alpha, beta, {SPIKES}, learn_alpha=False, learn_beta=False, learn_threshold=False, reset_mechanism='subtract', "
        "state_quant=False, output=False, reset_delay=True",
    ),
    "snntorch.Alpha": (
        "snntorch 1.0.0",
        f"alpha, beta, {SPIKES}, learn_alpha=False, learn_beta=False, learn_threshold=False, reset_mechanism='zero', "
        "state_quant=False, output=False",
    ),
    "snntorch.RLeaky": (
        "snntorch 1.0.0",
        f"beta, V=1.0, all_to_all=True, linear_features=None, conv2d_channels=None, kernel_size=None, {SPIKES}, "
        "learn_beta=False, learn_threshold=False, learn_recurrent=True, reset_mechanism='subtract', state_quant=False, "
        "output=False, reset_delay=True",
    ),
}
OURS = {
    "spikingjelly.activation_based.functional.reset_net": "spikingjelly.reset_net",
    **{
        f"spikingjelly.activation_based.neuron.{kind}": f"spikingjelly.{kind}"
        for kind in ("IFNode", "LIFNode", "ParametricLIFNode")
    },
    "flashrnn.flashrnn": "flashrnn.flashrnn",
    "flashinfer.mamba.selective_state_update": "flashinfer.selective_state_update",
    "torchaudio.functional.lfilter": "torchaudio.lfilter",
    "fla.ops.hgrn.chunk_hgrn": "fla.chunk_hgrn",
    "fla.ops.hgrn.fused_recurrent_hgrn": "fla.fused_recurrent_hgrn",
    "mamba_ssm.ops.selective_scan_interface.selective_scan_fn": "mamba_ssm.selective_scan_fn",
    "mamba_ssm.ops.selective_scan_interface.mamba_inner_fn": "mamba_ssm.mamba_inner_fn",
    "mamba_ssm.ops.triton.selective_state_update.selective_state_update": "mamba_ssm.selective_state_update",
}
# Parameters that only the fronts have, which docs/migration.md names.
MORE = {
    "fla.ops.hgrn.chunk_hgrn": ("cu_seqlens",),
    "mamba_ssm.ops.selective_scan_interface.selective_scan_fn": ("initial_state",),
    "mamba_ssm.ops.triton.selective_state_update.selective_state_update": ("pad_slot_id",),
}
# {drop-in: (module of theirs, attributes)}.
EXCHANGED: dict[str, Sequence[str]] = {
    "transformers_mamba": (
        "transformers.models.mamba.modeling_mamba",
        "transformers.models.falcon_mamba.modeling_falcon_mamba",
        "transformers.models.jamba.modeling_jamba",
        "transformers.models.zamba.modeling_zamba",
    ),
    "recurrent_gemma": ("transformers.models.recurrent_gemma.modeling_recurrent_gemma:RecurrentGemmaRglru",),
    "xlstm": ("xlstm.blocks.slstm.cell",),
    "mingru_pytorch": ("minGRU_pytorch.minGRU:minGRU", "minGRU_pytorch.minLSTM:minLSTM"),
    "torchrl": ("torchrl.modules.tensordict_module.rnn:LSTMModule", "torchrl.modules.tensordict_module.rnn:GRUModule"),
}
OF_NAMES = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def front(name: str) -> Any:
    module, _, function = f"minrnn_gen.compat.{OURS.get(name, name)}".rpartition(".")
    return getattr(importlib.import_module(module), function)


def recorded(text: str) -> inspect.Signature:
    """Return a signature in words."""
    made: dict[str, Any] = {}
    exec(f"def function({text}): pass", {"torch": torch, "Sigmoid": front("spikingjelly.Sigmoid")}, made)
    return inspect.signature(made["function"])


def theirs_of(name: str) -> inspect.Signature:
    """Return the signature in the package that is installed, or the recorded one."""
    module, _, function = name.rpartition(".")
    try:
        return inspect.signature(getattr(importlib.import_module(module), function))
    except Exception:  # a package that is absent, or finds no GPU, fails in ways of its own
        return recorded(RECORDED[name][1])


def check(theirs: inspect.Signature, ours: inspect.Signature, more: Sequence[str] = (), receiver: bool = False) -> None:
    """Compare names, places and defaults: what calls theirs calls ours, with the same meaning."""
    their, our = list(theirs.parameters.values()), list(ours.parameters.values())
    if {parameter.kind for parameter in our} == {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        return  # takes whatever comes, and reads nothing of it
    if receiver:
        their, our = their[1:], our[1:]
    assert all(kind in {one.kind for one in our} for kind in {one.kind for one in their if one.kind not in OF_NAMES})
    named, own = ([one for one in each if one.kind in OF_NAMES] for each in (their, our))
    assert [one.name for one in own] == [*(one.name for one in named), *more]
    for one, other in zip(named, own, strict=False):
        assert one.kind is other.kind, one.name
        if one.default is not one.empty:
            assert one.default is other.default or repr(one.default) == repr(other.default), one.name
    assert all(one.default is not one.empty for one in own[len(named) :])


@pytest.mark.parametrize("name", RECORDED)
def test_a_function_has_their_signature(name: str) -> None:
    check(theirs_of(name), inspect.signature(front(name)), MORE.get(name, ()))
    check(recorded(RECORDED[name][1]), inspect.signature(front(name)), MORE.get(name, ()))


def test_every_function_is_compared() -> None:
    from support.differentiable import NO_FRONTS, exports

    fronts = {name for name in exports() | NO_FRONTS if "." in name and not name.startswith("nn.")}
    functions = {OURS.get(name, name) for name in RECORDED} | {"accelerated_scan.channels.scan_channels"}
    assert {name for name in fronts if name.partition(".")[0] not in EXCHANGED} == functions


@pytest.mark.parametrize("drop_in", EXCHANGED)
def test_a_drop_in_has_their_signature(drop_in: str) -> None:
    ours = exchanged(importlib.import_module(f"minrnn_gen.compat.{drop_in}"))
    compared: set[str] = set()
    for place in EXCHANGED[drop_in]:
        module, _, inner = place.partition(":")
        pytest.importorskip(module.partition(".")[0])
        holder = importlib.import_module(module)
        holder = getattr(holder, inner) if inner else holder
        for name, function in ours.items():
            if hasattr(holder, name):
                theirs = inspect.signature(getattr(holder, name))
                check(theirs, inspect.signature(function), receiver=next(iter(theirs.parameters)) == "self")
                compared.add(name)
    assert compared == set(ours)


def overloaded(kind: type) -> inspect.Signature:
    """Return the signature of a constructor in torch's overloads, which the constructor itself hides behind *args."""
    from typing import get_overloads

    return inspect.signature(get_overloads(kind.__init__)[0])


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_layers_of_torch_nn_have_its_signatures(name: str) -> None:
    import minrnn_gen.torch.nn as by_kernels

    theirs, ours = getattr(torch.nn, name), getattr(by_kernels, name)
    for method, own in inspect.getmembers(ours, inspect.isfunction):
        there = getattr(theirs, method, None)
        if there is None or there is own or method in ("__init__", "_slow_forward"):
            continue
        check(inspect.signature(there), inspect.signature(own), receiver=True)
    constructor = inspect.signature(ours.__init__)
    refused = [one for one in constructor.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    check(overloaded(theirs), constructor.replace(parameters=refused), receiver=True)


@pytest.mark.parametrize("name", ["GRU", "RNN"])
def test_what_torch_refuses_is_refused_in_its_words(name: str) -> None:
    import minrnn_gen.torch.nn as by_kernels

    for keywords in ({"proj_size": 2}, {"proj_size": 0}, {"projection": 2}):
        said = []
        for module in (torch.nn, by_kernels):
            with pytest.raises((ValueError, TypeError)) as caught:
                getattr(module, name)(3, 4, **keywords)
            said.append((type(caught.value), str(caught.value)))
        assert said[0] == said[1]


def test_further_parameters_are_documented() -> None:
    text = MIGRATION.read_text(encoding="utf-8")
    assert all(f"`{parameter}`" in text for more in MORE.values() for parameter in more)


KEYWORDS: Mapping[str, Mapping[str, Any]] = {
    "scalar": {"forget": 0, "inputs": 1},
    "complex": {"forget": 0, "inputs": 1},
    "ref": {"gates": 0, "tokens": 1},
    "warp": {"gates": 0, "tokens": 1},
}


@pytest.mark.parametrize("part", KEYWORDS)
def test_modules_of_accelerated_scan_by_their_keywords(part: str) -> None:
    torch.manual_seed(0)
    dtype = torch.complex128 if part == "complex" else torch.float64
    a, b = torch.randn(2, 3, 5, dtype=dtype), torch.randn(2, 3, 5, dtype=torch.float64)
    scan = importlib.import_module(f"minrnn_gen.compat.accelerated_scan.{part}").scan
    y = scan(**{name: (a, b)[place] for name, place in KEYWORDS[part].items()})
    h, expected = torch.zeros(2, 3, dtype=dtype), []
    for t in range(5):
        h = a[..., t] * h + b[..., t]
        expected.append(h)
    torch.testing.assert_close(y, torch.stack(expected, -1))
    if part == "ref":
        reverse = scan(a.flip(2), b.flip(2), reverse=True).flip(2)
        torch.testing.assert_close(reverse, y)
        with pytest.raises(Exception, match=r"mul is .*; only torch\.mul is supported"):
            scan(a, b, mul=torch.add)


MODULES = (
    "minrnn_gen",
    "minrnn_gen.torch",
    "minrnn_gen.torch.nn",
    "minrnn_gen.jax",
    *(module.name for module in pkgutil.walk_packages(compat.__path__, f"{compat.__name__}.")),
)


@pytest.mark.parametrize("module", MODULES)
def test_messages_of_arguments_that_are_missing_or_unknown_have_public_names(module: str) -> None:
    try:
        front = importlib.import_module(module)
    except Exception as error:
        pytest.skip(f"{module} is not there: {error}")
    for name, offered in vars(front).items():
        is_ours = getattr(offered, "__module__", "").startswith("minrnn_gen") and not name.startswith("_")
        if not is_ours or not callable(offered) or (isinstance(offered, type) and issubclass(offered, Exception)):
            continue
        for positional, keywords in (((), {}), ((None,), {}), ((), {"no_such": 1})):
            try:
                offered(*positional, **keywords)
            except Exception as error:
                assert not re.search(r"(?<!\w)_[A-Za-z]|<l", str(error)), f"{name}: {error}"
