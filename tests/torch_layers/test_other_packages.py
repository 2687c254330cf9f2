"""`replace` on models of other packages: their layers are replaced, and compute and learn what they did."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
from support.needed import needed

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
packages = needed("support.other_packages")

STEPS = 3
pytestmark = [pytest.mark.matrix_full, pytest.mark.filterwarnings("ignore")]  # theirs, of all kinds


def outcome(model: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """Return the results of a model and the gradients of its parameters."""
    model.zero_grad()
    torch.manual_seed(5)  # what a model draws
    results = packages.tensors_of(model(*copy.deepcopy(inputs)))
    sum(result.square().mean() for result in results if result.requires_grad).backward()
    return [*results, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]


def losses(model: Any, inputs: tuple[Any, ...]) -> list[float]:
    optimizer, found = torch.optim.SGD(model.parameters(), 0.01), []
    for _ in range(STEPS):
        results = outcome(model, inputs)
        found.append(float(sum(result.square().mean() for result in results[:1])))
        optimizer.step()
    return found


@pytest.mark.parametrize("name", packages.MODELS)
def test_layers_of_a_package_are_replaced(name: str) -> None:
    packaged = packages.MODELS[name]
    packages.allow_unused()
    if not packaged.is_installed():
        pytest.skip(f"{packaged.package} is not installed; make test-all does")
    with warnings.catch_warnings(action="ignore"):
        torch.manual_seed(0)
        model, inputs = packaged.make()
        before, after = model.train(), copy.deepcopy(model)
        if packaged.subclasses:
            report = wing.replace(after)
            assert not report.replaced and all("subclasses=True) takes it" in layer.reason for layer in report.left)
        report = wing.replace(after, subclasses=packaged.subclasses)
        assert len(report.replaced) == packaged.layers and not report.left, str(report)
        layers = [layer for layer in after.modules() if isinstance(layer, torch.nn.RNNBase)]
        assert all(isinstance(layer, wing.nn.ByKernels) for layer in layers)
        for one, other in zip(outcome(after, inputs), outcome(before, inputs), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert losses(after, inputs) == pytest.approx(losses(before, inputs), rel=1e-4)
        assert list(after.state_dict()) == list(before.state_dict())
        again = wing.replace(copy.deepcopy(after), back=True)
        assert len(again.replaced) == packaged.layers
