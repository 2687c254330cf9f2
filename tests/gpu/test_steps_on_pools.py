"""Steps on pools of states on a GPU: as steps on rows, replayed for other slots, and captured in CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.pools import CALLS, SLOTS, on_pool

from minrnn_gen.kernel import Kernel

pytestmark = pytest.mark.gpu

SPECS: tuple[dict[str, Any], ...] = (
    {"model": "min_gru", "hidden_size": 96},
    {"model": "ind_rnn", "hidden_size": 96},
    {"model": "selective", "hidden_size": 64, "state_size": 16},
    {"model": "lstm", "hidden_size": 128},
    {"model": "gru_reset_before", "hidden_size": 128},
)


def on_device(arrays: dict[str, Any], torch: Any) -> dict[str, Any]:
    """Copy arrays to the GPU with their strides; a pool's gaps too."""

    def there(array: Any) -> Any:
        if isinstance(array, dict):
            return {name: there(value) for name, value in array.items()}
        if not hasattr(array, "strides"):
            return array
        strides = [stride // array.itemsize for stride in array.strides]
        target = torch.empty_strided(array.shape, strides, dtype=torch.from_numpy(array.copy()).dtype, device="cuda")
        return target.copy_(torch.from_numpy(array.copy()))

    return {name: there(array) for name, array in arrays.items()}


def as_strided_as(state: Any) -> Any:
    """Return a copy whose slots are as far apart, so that it is aligned alike."""
    return state.new_empty_strided(state.shape, state.stride()).copy_(state)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec["model"])
def test_a_step_in_place_is_a_step_on_rows(spec: dict[str, Any], compiled: Callable[..., Kernel]) -> None:
    torch = pytest.importorskip("torch")
    kernel = compiled(precision="fp32", training=False, **spec)
    for call in CALLS:
        for pad in (None, SLOTS, -5):
            step = on_pool(kernel, call)
            if pad is not None and call == "in place":
                step.arrays["slots"][1] = pad  # a slot that the pool lacks
            y, final = kernel.step(**on_device(step.plain, torch))
            arrays = on_device(step.arrays, torch)
            expected = {name: state.clone() for name, state in arrays["state"].items()}
            for name in kernel.states:
                for row, slot in enumerate(step.written):
                    if slot >= 0:
                        expected[name][slot] = final[name][row]
            y_on_pool, _ = kernel.step(**arrays)
            is_live = torch.from_numpy(step.is_live).cuda()
            # Rows and slots may lie at other multiples of 16 bytes, from which the order of a product's sums follows.
            assert not y_on_pool[~is_live].any()
            torch.testing.assert_close(y_on_pool[is_live], y[is_live])
            for name in kernel.states:
                torch.testing.assert_close(arrays["state"][name], expected[name], equal_nan=True)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec["model"])
def test_a_graph_takes_other_slots_at_every_replay(spec: dict[str, Any], compiled: Callable[..., Kernel]) -> None:
    torch = pytest.importorskip("torch")
    kernel = compiled(precision="fp32", training=False, **spec)
    arrays = on_device(on_pool(kernel, "in place").arrays, torch)
    arrays["x_t"].normal_()
    for state in arrays["state"].values():
        state.uniform_(1, 2)
    apart = {name: as_strided_as(state) for name, state in arrays["state"].items()}
    kernel.step(**{**arrays, "state": {name: as_strided_as(state) for name, state in apart.items()}})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, _ = kernel.step(**arrays)
    for slots in ([0, 1, 2, 3, 4], [8, -1, 0, 7, 1], [-1, -1, 3, -1, -1]):
        arrays["slots"].copy_(torch.tensor(slots))
        graph.replay()
        expected, _ = kernel.step(**{**arrays, "state": apart})
        assert torch.equal(y, expected)
        for name in kernel.states:
            assert torch.equal(arrays["state"][name], apart[name])
