"""The classes of `minrnn_gen.torch.nn` and `replace` on a GPU, beside torch.nn there."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from support.needed import needed

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
models = needed("support.models_of_torch")

NAMES = ("LSTM", "GRU", "RNN")
# Both sides round: torch's layers in tf32 where it may, and all results in 16 bits.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-3, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def flat(results: Any) -> list[Any]:
    return [tensor for result in results for tensor in flat(result)] if isinstance(results, tuple) else [results]


def pair(name: str, **options: Any) -> tuple[Any, Any]:
    """Return torch's layer on the GPU, and a copy that the kernels compute."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, name)(24, 32, device="cuda", **options)
    ours = copy.deepcopy(theirs)
    assert wing.replace(ours).replaced
    return ours, theirs


def an_input(dtype: Any) -> Any:
    torch.manual_seed(1)
    return torch.randn(9, 3, 24, device="cuda", dtype=dtype)


def assert_like_torchs(name: str, ours: Any, theirs: Any, x: Any) -> None:
    for result, expected in zip(flat(ours(x)), flat(theirs(x)), strict=True):
        assert result.dtype is expected.dtype, name
        torch.testing.assert_close(result, expected, rtol=0, atol=TOLERANCES[result.dtype])


# torch never lays out bf16 weights of a layer as cuDNN takes them, and says so at every call.
@pytest.mark.filterwarnings("ignore:RNN module weights:UserWarning")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_results_have_the_values_and_dtypes_of_torchs(name: str, dtype: Any) -> None:
    assert_like_torchs(name, *pair(name, dtype=dtype), an_input(dtype))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("autocast", [torch.float16, torch.bfloat16])
def test_results_under_autocast_have_the_values_and_dtypes_of_torchs(name: str, autocast: Any) -> None:
    ours, theirs = pair(name)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        with torch.autocast("cuda", dtype=autocast):
            assert_like_torchs(name, ours, theirs, an_input(dtype))
            with torch.backends.cudnn.flags(enabled=False):
                assert_like_torchs(name, ours, theirs, an_input(dtype))


@pytest.mark.parametrize("kind", models.KINDS)
def test_models_compute_and_learn_the_same(kind: Any) -> None:
    torch.manual_seed(0)
    before = kind().double().cuda()
    after = copy.deepcopy(before)
    wing.replace(after)
    arguments = before.inputs(torch.Generator().manual_seed(1))
    for expected, result in zip(before(*arguments), after(*arguments), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)
    assert models.losses_of(after) == pytest.approx(models.losses_of(before), rel=1e-6)
