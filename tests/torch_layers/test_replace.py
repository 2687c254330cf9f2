"""`minrnn_gen.torch.replace`: models of torch.nn's layers before and after, and what it leaves as it is."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import warnings
from typing import Any

import pytest
from support.needed import needed

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
models = needed("support.models_of_torch")
prune = pytest.importorskip("torch.nn.utils.prune")


@pytest.mark.parametrize("kind", models.KINDS)
def test_models_compute_and_learn_the_same(kind: Any) -> None:
    torch.manual_seed(0)
    before = kind().double()
    after, arguments = copy.deepcopy(before), before.inputs(torch.Generator().manual_seed(1))
    report = wing.replace(after)
    assert report.replaced and all("torch launches a single step faster" in layer.reason for layer in report.left)
    for expected, result in zip(before(*arguments), after(*arguments), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)
    assert list(before.state_dict()) == list(after.state_dict())
    expected_losses, losses = models.losses_of(before), models.losses_of(after)
    assert losses[-1] < 0.95 * losses[0]
    assert losses == pytest.approx(expected_losses, rel=1e-6)


def test_everything_that_belongs_to_a_layer_stays() -> None:
    model = torch.nn.ModuleDict({"first": torch.nn.LSTM(3, 3, 2, dropout=0.5), "second": torch.nn.LSTM(3, 3, 2)}).double()
    layer = model["first"]
    model["second"].weight_hh_l1 = layer.weight_hh_l0
    layer.bias_hh_l0.requires_grad_(False)
    layer.own = torch.nn.Linear(1, 1)
    layer.remark = "kept"
    calls: list[str] = []
    layer.register_forward_pre_hook(lambda *_: calls.append("forward pre"))
    layer.register_forward_hook(lambda *_: calls.append("forward"))
    layer.register_full_backward_hook(lambda *_: calls.append("backward"))
    layer.weight_ih_l0.register_hook(lambda _: calls.append("gradient"))
    layer.register_state_dict_post_hook(lambda *_: calls.append("state"))
    layer.register_load_state_dict_post_hook(lambda *_: calls.append("load"))
    model.eval()
    model["second"].train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    parameters, modules = list(model.named_parameters()), list(model.named_modules())
    wing.replace(model)
    assert type(layer) is wing.nn.LSTM
    assert all(one is other for (_, one), (_, other) in zip(parameters, model.named_parameters(), strict=True))
    assert all(one is other for (_, one), (_, other) in zip(modules, model.named_modules(), strict=True))
    assert [name for name, _ in parameters] == [name for name, _ in model.named_parameters()]
    assert layer.remark == "kept" and not layer.training and model["second"].training
    assert not layer.bias_hh_l0.requires_grad and model["second"].weight_hh_l1 is layer.weight_hh_l0
    x = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    before = layer.weight_ih_l0.detach().clone()
    layer(x)[0].sum().backward()
    model.load_state_dict(model.state_dict())
    assert calls == ["forward pre", "forward", "gradient", "backward", "state", "load"]
    optimizer.step()
    assert not torch.equal(layer.weight_ih_l0, before)


def test_a_layer_at_several_places_is_replaced_once() -> None:
    shared = torch.nn.GRU(3, 3)
    model = torch.nn.ModuleDict({"one": shared, "others": torch.nn.ModuleList([shared, torch.nn.RNN(3, 3)])})
    report = wing.replace(model)
    assert [layer.names for layer in report.replaced] == [("one", "others.0"), ("others.1",)]
    assert model["one"] is model["others"][0] is shared and type(shared) is wing.nn.GRU
    assert str(report) == (
        "replaced 2 of 2 recurrent layers\n"
        "  one and others.0: torch.nn.GRU(3, 3) is now minrnn_gen.torch.nn.GRU\n"
        "  others.1: torch.nn.RNN(3, 3) is now minrnn_gen.torch.nn.RNN"
    )


def test_a_model_that_is_a_layer_is_replaced_and_goes_back() -> None:
    layer, x = torch.nn.LSTM(3, 4, 2).double(), torch.randn(5, 2, 3).double()
    expected = layer(x)[0]
    assert "the model itself" in str(wing.replace(layer))
    assert type(layer) is wing.nn.LSTM and not torch.equal(layer(x)[0], expected + 1)
    before = layer(x)[0]
    back = wing.replace(layer, back=True)
    assert type(layer) is torch.nn.LSTM and torch.equal(layer(x)[0], expected)
    assert back.replaced[0].before == "minrnn_gen.torch.nn.LSTM(3, 4, num_layers=2)" and not back.left
    torch.testing.assert_close(before, expected, rtol=0, atol=1e-12)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x)[0], expected)
    with torch.no_grad():
        layer.weight_hh_l0.zero_()
    assert not torch.equal(layer(x)[0], expected)


class Peephole(torch.nn.LSTM):
    """A layer of somebody's own."""


def test_what_is_left_is_named_with_the_reason() -> None:
    overridden = torch.nn.LSTM(3, 4)
    overridden.forward = lambda x: x
    layers = {
        "mine": Peephole(3, 4),
        "normed": torch.nn.utils.parametrizations.weight_norm(torch.nn.GRU(3, 4), "weight_hh_l0"),
        "asked": torch.nn.GRU(3, 4),
        "overridden": overridden,
        "complex": torch.nn.RNN(3, 4, dtype=torch.complex64),
        "ours": wing.nn.RNN(3, 4),
        "cell": torch.nn.LSTMCell(3, 4),
        "linear": torch.nn.Linear(3, 4),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        layers["scripted"] = torch.jit.script(torch.nn.GRU(3, 4))
    model = torch.nn.ModuleDict(layers)
    kinds = [type(layer) for layer in model.values()]
    report = wing.replace(model, leave=["ask*"])
    assert [type(layer) for layer in model.values()] == kinds and not report.replaced
    reasons = {layer.names[0]: layer.reason for layer in report.left}
    assert reasons == {
        "mine": "it is a subclass of torch.nn.LSTM; replace(model, subclasses=True) takes it",
        "normed": "weight_hh_l0 has parametrizations; register them afterwards",
        "asked": "as asked for",
        "overridden": "it has a forward of its own, which may compute something else",
        "complex": "weight_ih_l0 has dtype torch.complex64; the kernels have torch.float64, torch.float32, torch.float16, "
        "torch.bfloat16",
        "ours": "it is computed by the kernels already",
        "cell": "torch launches a single step faster; a layer over whole sequences gains",
        "scripted": "torch.jit has compiled it; replace the layers of the model before",
    }
    assert f"mine: {__name__}.Peephole(3, 4) is left: it is a subclass" in str(report)
    assert str(wing.replace(torch.nn.Linear(2, 2))) == "no recurrent layers of torch.nn"


@pytest.mark.parametrize("reparametrize", ["weight_norm", "spectral_norm", "prune"])
def test_weights_that_a_hook_computes_are_computed_before_every_call(reparametrize: str) -> None:
    layer = torch.nn.GRU(3, 4, 2).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and still used
        if reparametrize == "prune":
            prune.l1_unstructured(layer, "weight_hh_l1", 0.5)
        else:
            getattr(torch.nn.utils, reparametrize)(layer, "weight_hh_l1")
    layer.eval()
    x = torch.randn(5, 2, 3).double()
    expected = layer(x)[0].detach()
    assert not wing.replace(layer).left
    torch.testing.assert_close(layer(x)[0], expected, rtol=0, atol=1e-12)
    layer(x)[0].sum().backward()
    (computed_from,) = [
        parameter
        for name, parameter in layer.named_parameters()
        if name.startswith("weight_hh_l1_") and not name.endswith("_g")
    ]
    assert computed_from.grad.any()
    with torch.no_grad():
        computed_from.mul_(-1)
    changed = layer(x)[0]
    assert not torch.equal(changed, expected)
    wing.replace(layer, back=True)
    torch.testing.assert_close(layer(x)[0], changed, rtol=0, atol=1e-12)


def test_parametrizations_may_be_registered_afterwards() -> None:
    layer, x = torch.nn.LSTM(3, 4).double(), torch.randn(5, 2, 3).double()
    theirs = copy.deepcopy(layer)
    wing.replace(layer)
    for module in (layer, theirs):
        torch.nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")
    torch.testing.assert_close(layer(x)[0], theirs(x)[0], rtol=0, atol=1e-12)
    assert wing.replace(layer, back=True).left[0].reason.startswith("weight_hh_l0 has parametrizations")


def test_compiled_models_compute_by_the_kernels_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.GRU(3, 4)

        def forward(self, x: Any) -> Any:
            return self.layer(x)[0][-1]

    model, x = Last(), torch.randn(5, 2, 3)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        expected = compiled(x)
        wing.replace(model)
        monkeypatch.setattr(wing.nn.GRU, "forward", lambda _, x: (x.new_ones(5, 2, 4), None))
        assert not torch.equal(compiled(x), expected)
        monkeypatch.undo()
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(x), expected)


def test_the_report_is_fixed_and_wrong_arguments_change_nothing() -> None:
    model = torch.nn.ModuleDict({"encoder": torch.nn.LSTM(3, 4), "decoder": torch.nn.GRU(3, 4)})
    with pytest.raises(BadInput, match=r"leave has 'decodr', which is no recurrent layer \(did you mean 'decoder'\?\)"):
        wing.replace(model, leave=["decodr"])
    with pytest.raises(BadInput, match="leave is 'decoder'; a list of names of layers is expected"):
        wing.replace(model, leave="decoder")
    with pytest.raises(BadInput, match="leave has 3; names of layers are expected"):
        wing.replace(model, leave=[3])
    with pytest.raises(BadInput, match="back is 1; True or False is expected"):
        wing.replace(model, back=1)
    with pytest.raises(BadInput, match=r"model is a list; a torch\.nn\.Module is expected"):
        wing.replace([model])
    assert type(model["encoder"]) is torch.nn.LSTM and type(model["decoder"]) is torch.nn.GRU
    report = wing.replace(model, leave=["decoder"])
    assert [type(layer) for layer in model.values()] == [wing.nn.LSTM, torch.nn.GRU]
    assert pickle.loads(pickle.dumps(report)) == report and hash(report)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.left = ()
