"""Drafted steps on caches on a GPU: as single steps whatever is kept, and captured in CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minrnn_gen.interpret.cases import Case, inputs_of
from minrnn_gen.kernel import Kernel

pytestmark = pytest.mark.gpu

SPECS: tuple[dict[str, Any], ...] = (
    {"model": "min_gru", "hidden_size": 96},
    {"model": "selective", "hidden_size": 64, "state_size": 16},
    {"model": "lstm", "hidden_size": 128},
    {"model": "gru_reset_before", "hidden_size": 128},
)
SLOTS, DRAFT, ROWS = 9, 3, (7, -1, 2, 99, 5)
LIVE = [0, 2, 4]


@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec["model"])
def test_drafts_are_single_steps_whatever_is_kept(
    spec: dict[str, Any], is_graph: bool, compiled: Callable[..., Kernel]
) -> None:
    torch = pytest.importorskip("torch")
    kernel = compiled(precision="fp32", training=False, **spec)

    def there(array: Any) -> Any:
        if isinstance(array, dict):
            return {name: there(inner) for name, inner in array.items()}
        return torch.from_numpy(array).cuda()

    names = {"state", "resets", "lengths", "cu_seqlens"}
    given = inputs_of(kernel.interface, Case(len(ROWS), DRAFT)).forward
    arrays = {name: there(array) for name, array in given.items() if name not in names}
    x = arrays.pop("x")
    shared = {name: array.clone() for name, array in arrays.get("shared", {}).items()}
    like = torch.empty(0, device="cuda")
    cache, steps = kernel.cache(SLOTS, DRAFT, like=like), kernel.cache(SLOTS, like=like)
    slots, accepted = torch.tensor(ROWS, device="cuda"), torch.zeros(len(ROWS), dtype=torch.int32, device="cuda")

    def verify() -> Any:
        return kernel.verify_draft(x, **arrays, cache=cache, slots=slots, accepted=accepted)[0]

    def advance(pool: Any, counts: Any) -> Any:
        ys = []
        for t in range(DRAFT):
            beside = {name: value for name, value in arrays.items() if name != "shared"}
            beside |= {"shared": {name: array[:, t] for name, array in shared.items()}} if shared else {}
            read = torch.where(t < counts, slots, -1)
            ys.append(kernel.step(x[:, t], **beside, state=pool, slots=read)[0])
        return torch.stack(ys, 1)

    verify()
    run = verify
    if is_graph:
        graph, whole = torch.cuda.CUDAGraph(), {name: states.clone() for name, states in cache.states.items()}
        with torch.cuda.graph(graph):
            y = verify()
        assert all(torch.equal(cache.states[name], states) for name, states in whole.items())

        def replayed() -> Any:
            graph.replay()
            return y

        run = replayed
    cache.clear([7, 2, 5])
    for kept in ([3, 0, 1, 2, 0], [0, 3, 2, 9, 3], [1, 1, 1, 1, 1]):
        x.normal_()
        found, ahead = run(), {name: states.clone() for name, states in steps.states.items()}
        expected = advance(ahead, torch.full_like(slots, DRAFT))
        torch.testing.assert_close(found[LIVE], expected[LIVE])
        assert not found[[1, 3]].any()
        accepted.copy_(torch.tensor(kept))
        advance(steps.states, accepted)
    cache.commit(slots, accepted)
    for name, states in cache.states.items():
        torch.testing.assert_close(states[[7, 2, 5]], steps.states[name][[7, 2, 5]])
        assert not states[[0, 1, 3, 4, 6, 8]].any()
    wrong = torch.full_like(accepted, DRAFT + 1)
    before = {name: states.clone() for name, states in cache.states.items()}
    assert not kernel.verify_draft(x, **arrays, cache=cache, slots=slots, accepted=wrong)[0].any()
    assert all(torch.equal(cache.states[name], states) for name, states in before.items())
