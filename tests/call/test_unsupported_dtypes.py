"""Dtypes that nothing here computes with: each front says so, whatever the library's name for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import minrnn_gen
from minrnn_gen.call import array
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel
from minrnn_gen.precision import PRECISION_NAMES, STORAGE_DTYPES, why_unsupported

NARROW, QUANTIZED = "floats of fewer than 16 bits are not supported", "quantized values are not supported"
SPEC: dict[str, Any] = {"model": "gru", "hidden_size": 8, "precision": "bf16", "gpu": "h200"}
SUPPORTED = {*STORAGE_DTYPES, *PRECISION_NAMES, "int16", "int32", "int64", "uint16", "uint64", "bool"}


def of_ml_dtypes() -> Iterator[tuple[str, str]]:
    """Yield (name, reason) of every dtype of ml_dtypes: what it adds to NumPy are narrow floats and integers, and bfloat16."""
    for name in dir(ml_dtypes):
        kind = getattr(ml_dtypes, name)
        if isinstance(kind, type) and issubclass(kind, np.generic) and name != "bfloat16" and "complex" not in name:
            yield name, NARROW if name.startswith("float") else QUANTIZED


def of_torch() -> Iterator[tuple[str, str]]:
    """Yield (name, reason) of every dtype of torch that is narrow or quantized."""
    torch = pytest.importorskip("torch")
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        name = str(dtype).removeprefix("torch.")
        if name.startswith("float") and dtype.itemsize < 2:
            yield str(dtype), NARROW
        elif "q" in name or ("int" in name and dtype.itemsize < 2):
            yield str(dtype), QUANTIZED
        else:
            assert why_unsupported(dtype) == "", dtype


def test_every_narrow_dtype_of_libraries_is_explained() -> None:
    assert {name for name, reason in of_ml_dtypes() if reason not in why_unsupported(name)} == set()
    assert len(dict(of_ml_dtypes())) >= 4


def test_every_narrow_dtype_of_torch_is_explained() -> None:
    assert {name for name, reason in of_torch() if reason not in why_unsupported(name)} == set()


def test_dtypes_that_are_supported_somewhere_are_not_said_to_be_none() -> None:
    assert {name for name in SUPPORTED if why_unsupported(name)} == set()
    assert why_unsupported(np.dtype("float64")) == why_unsupported(None) == why_unsupported(3) == ""


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return minrnn_gen.compile(SPEC)


def ones(dtype: str, *shape: int) -> Any:
    return np.ones(shape, getattr(ml_dtypes, dtype, dtype))


@pytest.mark.parametrize(
    ("dtype", "reason"), [("float8_e4m3fn", NARROW), ("float8_e5m2", NARROW), ("int4", QUANTIZED), ("int8", QUANTIZED)]
)
def test_each_front_of_numpy_says_so(kernel: Kernel, dtype: str, reason: str) -> None:
    x, R = ones("bfloat16", 1, 2, 3, 8), ones("bfloat16", 3, 1, 8, 8)
    calls: dict[str, Callable[[], Any]] = {
        "x": lambda: kernel(ones(dtype, 1, 2, 3, 8), R),
        "R": lambda: kernel(x, ones(dtype, 3, 1, 8, 8)),
        "bias": lambda: kernel(x, R, bias=ones(dtype, 3, 8)),
        "state": lambda: kernel(x, R, state={"h": ones(dtype, 1, 8)}),
        "scan": lambda: minrnn_gen.scan(ones(dtype, 1, 2, 4), ones(dtype, 1, 2, 4)),
        "spec": lambda: load_spec({**SPEC, "precision": dtype}),
    }
    for name, call in calls.items():
        with pytest.raises(BadInput, match=reason) as refused:
            call()
        assert (dtype in str(refused.value) and "bf16" in str(refused.value).replace("bfloat16", "bf16")) or name == "state"


@pytest.mark.parametrize(("dtype", "reason"), [("float8_e4m3fn", NARROW), ("int8", QUANTIZED)])
def test_each_front_of_torch_says_so(kernel: Kernel, dtype: str, reason: str) -> None:
    torch = pytest.importorskip("torch")
    front = importlib.import_module("minrnn_gen.torch")
    narrow = getattr(torch, dtype)
    x, R = torch.ones(1, 2, 3, 8, dtype=torch.bfloat16), torch.ones(3, 1, 8, 8, dtype=torch.bfloat16)
    calls: dict[str, Callable[[], Any]] = {
        "kernel": lambda: kernel(x.to(narrow), R),
        "recurrence": lambda: front.recurrence(kernel, x, R.to(narrow)),
        "scan": lambda: front.scan(x.to(narrow), x.to(narrow)),
        "gae": lambda: front.gae(*(torch.ones(2, 3).to(narrow) for _ in range(4)), gamma=0.9, lmbda=0.9),
        "layer": lambda: front.GRU(4, 8)(torch.ones(1, 2, 4).to(narrow)),
        "layer of a precision": lambda: front.GRU(4, 8, precision="fp32")(torch.ones(1, 2, 4).to(narrow)),
        "dtype": lambda: front.GRU(4, 8, dtype=narrow),
        "precision": lambda: front.GRU(4, 8, precision=narrow),
        "spec": lambda: load_spec({**SPEC, "precision": narrow}),
    }
    for name, call in calls.items():
        with pytest.raises(BadInput) as refused:
            call()
        assert reason in str(refused.value), name


def test_each_front_of_jax_says_so() -> None:
    jnp = pytest.importorskip("jax.numpy")
    front = importlib.import_module("minrnn_gen.jax")
    x, R = jnp.ones((1, 2, 3, 8), jnp.bfloat16), jnp.ones((3, 1, 8, 8), jnp.bfloat16)
    calls: dict[str, Callable[[], Any]] = {
        "x": lambda: front.recurrence(SPEC, x.astype(jnp.float8_e4m3fn), R),
        "R": lambda: front.recurrence(SPEC, x, R.astype(jnp.float8_e5m2)),
        "scan": lambda: front.scan(x.astype(jnp.float8_e4m3fn), x.astype(jnp.float8_e4m3fn)),
        "dtype": lambda: front.RNN("gru", 4, 8, dtype=jnp.float8_e4m3fn),
    }
    for name, call in calls.items():
        with pytest.raises(BadInput) as refused:
            call()
        assert NARROW in str(refused.value), name


def test_a_tensor_on_an_amd_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """There such a device is called cuda, too."""

    class Tensor:
        requires_grad = False
        device = SimpleNamespace(type="cuda")

        def resolve_conj(self) -> Tensor:
            return self

        resolve_neg = resolve_conj

    library = SimpleNamespace(Tensor=Tensor, is_grad_enabled=lambda: True, version=SimpleNamespace(hip="6.2"))
    monkeypatch.setitem(array.sys.modules, "torch", library)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="x is on an AMD GPU, which is not supported"):
        array._inspect_torch(Tensor(), "x")


def test_what_the_page_says_is_not_supported_the_errors_say() -> None:
    from support.documentation import ROOT, table

    rows = {row[0] for row in table(ROOT / "docs" / "versions.md", "what", "instead")}
    assert {"fp8 and fp4", "quantized weights (int8, int4)", "AMD GPUs (ROCm) and Intel GPUs"} <= rows
