"""Native calls as programs: one recorder describes them all, and every call of tensors with a key is replayed."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from support.native_store import native_store

import minrnn_gen
import minrnn_gen.raw_scan
import minrnn_gen.run
from minrnn_gen.build.cpu_kernel import why_no_native_code
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.run.recording.describer import Describer

SPECS = (
    {"model": "gru", "precision": "bf16", "heads": 2, "direction": "bidirectional", "input_size": 6},
    {"model": "min_gru", "precision": "fp64", "input_size": 5},
    {"model": "lstm", "precision": "fp32", "layout": "BDT", "input_size": 4},
    {"model": "selective", "precision": "fp16", "direction": "bidirectional", "state_size": 3, "groups": 2, "input_size": 4},
)


@pytest.fixture(autouse=True)
def native_kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with native_store(tmp_path_factory, MINRNN_CPU="native"):
        yield


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec['model']}-{spec['precision']}")
def test_every_call_with_a_key_is_replayed(spec: dict[str, Any]) -> None:
    """With 16 bits, heads, directions, layouts, and vectors in another dtype; a replay has the bits of the first call."""
    torch = pytest.importorskip("torch")
    if reason := why_no_native_code():
        pytest.skip(reason)
    from minrnn_gen.torch.operators import calls

    kernel = minrnn_gen.compile({**spec, "hidden_size": 8, "gpu": "h200"})
    interface, generator = kernel.interface, torch.Generator().manual_seed(1)

    def drawn(shape: tuple[int, ...], dtype: str) -> Any:
        return torch.randn(shape, generator=generator).to(getattr(torch, dtype))

    storage = interface.precision.storage_dtype
    given = {
        "x": drawn(interface.shape(interface.x_axes, 3, 5), storage),
        "weight": drawn((interface.weight_rows, interface.input_size or 0), storage),
        "bias": drawn((*interface.directions, len(interface.gates), 8), "float32"),
        "R": drawn(interface.R_shape, storage) if interface.recurrent_gates else None,
        "parameters": {name: drawn(interface.shape_of_parameter(name), storage) for name in interface.parameters} or None,
        "shared": {name: drawn(interface.shape(interface.shared_axes, 3, 5), storage) for name in interface.shared} or None,
    }
    flat = CallArguments(**given).flat(interface)
    dy = drawn(interface.y_shape(3, 5), storage)
    assert flat is not None
    found = []
    for is_replay in (False, True):
        assert (kernel.executor.replay_forward(flat, False, saves=True) is not None) == is_replay
        results = calls.forward(kernel, flat, saves=True)
        extra = results[1 + len(interface.states) :]
        found.append([*results, *calls.backward(kernel, flat, [results[0], *extra], dy, [])])
    backwards = kernel.executor.cpu.native.backwards
    assert len(backwards) == 1
    for first, again in zip(*found, strict=True):
        assert (first is None and again is None) or torch.equal(first, again)


def test_every_recorder_is_a_describer() -> None:
    """Allocation for a run performs nothing: there is no second recorder."""
    recorders = set()
    for package in (minrnn_gen.run, minrnn_gen.raw_scan):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for _, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
                if "new_array" in dir(kind) and not getattr(kind, "_is_protocol", False):
                    recorders.add(kind)
    assert recorders
    assert all(issubclass(kind, Describer) for kind in recorders), recorders
