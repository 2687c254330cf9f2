"""Cells with n values per channel on the GPU: the same as in host memory in float64, and the same bits again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.needed import needed
from support.scan_strategies import Strategy, kernel_taking
from support.uncompiled_kernels import nothing_compiled
from support.vector_calls import VectorCall, in_float64, results_of, with_decays

import minrnn_gen
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.cell.files import vector_library_names
from minrnn_gen.interpret.verify import share_of
from minrnn_gen.kernel import Kernel
from minrnn_gen.precision import PRECISION_NAMES, error_allowed, remembered_error

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
vector_cells = needed("support.vector_cells")
CELLS = {name: cell.file for name, cell in vector_cells.CELLS.items() if name != "selective"}
NAMES = (*vector_library_names(), *CELLS)


def on_gpu(given: Any) -> Any:
    """Return NumPy arrays as tensors on the GPU."""
    if isinstance(given, dict):
        return {name: on_gpu(array) for name, array in given.items()}
    if given.dtype.name == "bfloat16":
        return torch.tensor(given.astype(np.float32)).to(torch.bfloat16).cuda()
    return torch.tensor(given).cuda()


def on_host(results: Any) -> dict[str, Any]:
    return {name: array.double().cpu().numpy() for name, array in results.items()}


def kernels_of(name: str, strategy: Strategy | None = None, **keys: Any) -> tuple[Kernel, Kernel]:
    """Return a kernel, of the strategy if one is given, and the same in float64."""
    spec = {"model": {"name": "written", **CELLS[name]} if name in CELLS else name, **keys}
    if "shared" not in CELLS[name] if name in CELLS else name == "s4d":
        spec.pop("groups", None)
    with nothing_compiled():
        exact = minrnn_gen.compile(spec | {"precision": "fp64"})
    if strategy:
        return kernel_taking(strategy, Store(cache_folder()), spec), exact
    return minrnn_gen.compile(spec), exact


def gradients_on_gpu(kernel: Kernel, arguments: dict[str, Any], results: Any) -> Any:
    """Return the results of a call and its gradients, of the same incoming gradients as `results_of` draws."""
    y, state, saved = kernel.forward(**on_gpu({name: given for name, given in arguments.items() if given is not None}))
    random = np.random.default_rng(tuple(y.shape))
    dy = random.normal(size=tuple(y.shape))
    dstate = {name: random.normal(size=tuple(value.shape)) for name, value in state.items()}
    found = kernel.backward(
        saved,
        torch.tensor(dy).to(y.dtype).cuda(),
        {name: torch.tensor(value).to(state[name].dtype).cuda() for name, value in dstate.items()},
    )
    flat = {"x": found["x"]}
    for key in ("state", "parameters", "shared"):
        flat |= {f"{key} {name}": value for name, value in found.get(key, {}).items()}
    if "bias" in found:
        flat["bias"] = found["bias"]
    assert set(flat) == set(results)
    return {"y": y, **state}, flat


def check(name: str, call: VectorCall, strategy: Strategy | None = None, **keys: Any) -> None:
    kernel, exact = kernels_of(name, strategy, **keys)
    compare(kernel, exact, call.arguments(kernel.interface), name)


def compare(kernel: Kernel, exact: Kernel, arguments: dict[str, Any], name: str) -> None:
    if name == "delta rule":  # it is stable for keys of length one
        keys = arguments["shared"]["k"]
        arguments["shared"]["k"] = (keys.astype(np.float64) / np.sqrt(keys.shape[-1])).astype(keys.dtype)
    expected = results_of(exact, in_float64(arguments))
    precision = kernel.interface.precision
    slack = error_allowed(precision) + remembered_error(precision, "linear")
    for _ in range(2):  # the second time it is replayed
        found = gradients_on_gpu(kernel, arguments, expected[1])
        for of_pass, exact_of_pass in zip(map(on_host, found), expected, strict=True):
            for label, array in exact_of_pass.items():
                assert share_of(of_pass[label], array, slack) <= 1, (name, label)


@pytest.mark.parametrize("precision", PRECISION_NAMES)
@pytest.mark.parametrize("layout", ["BTD", "TBD", "BDT"])
@pytest.mark.parametrize("name", NAMES)
def test_results_and_gradients(name: str, layout: str, precision: str) -> None:
    check(name, VectorCall(3, 128), hidden_size=70, state_size=16, groups=2, layout=layout, precision=precision)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("state_size", "groups"),
    [(1, 4), (4, 1), (16, 4), (16, 1), (20, 2), (40, 1), (64, 4), (128, 1), (200, 1), (256, 4)],
)
def test_every_state_size_and_direction(state_size: int, groups: int, direction: str) -> None:
    call = VectorCall(2, 77, has_resets=True, has_lengths=True)
    check("selective", call, hidden_size=48, state_size=state_size, groups=groups, precision="fp32", direction=direction)


@pytest.mark.parametrize("time", [0, 1, 31, 1000, 1 << 14, 1 << 17])
def test_every_length(time: int) -> None:
    # Of the longest few channels, for the reference in host memory.
    check("selective", VectorCall(1, time), hidden_size=64 if time < 1 << 17 else 16, state_size=16, precision="fp32")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_values_decay_at_any_rate(precision: str) -> None:
    """From one that a million steps do not forget to one that is gone after the next."""
    kernel, exact = kernels_of("selective", hidden_size=64, state_size=16, precision=precision)
    arguments = with_decays(VectorCall(2, 500, has_bias=False).arguments(kernel.interface), kernel.interface, 1e-6, 50)
    compare(kernel, exact, arguments, "selective")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("layout", "direction"), [("BTD", "forward"), ("BDT", "reverse"), ("TBD", "bidirectional")])
@pytest.mark.parametrize("time_parts", [2, 32])
@pytest.mark.parametrize("time", [5, 1000])
def test_time_in_parts(time: int, time_parts: int, layout: str, direction: str, precision: str) -> None:
    """Many more steps than parts, and fewer tiles than these."""
    keys = {"layout": layout, "direction": direction, "precision": precision}
    in_parts = Strategy("in parts", {"time_parts": time_parts})
    call = VectorCall(3, time, has_resets=time > time_parts, has_lengths=True)
    check("selective", call, in_parts, hidden_size=40, state_size=16, groups=2, **keys)


@pytest.mark.parametrize("name", ["selective", "delta rule"])
def test_packed_sequences(name: str) -> None:
    call = VectorCall(1, 200, has_resets=True, ends=(0, 4, 4, 133, 134, 200))
    check(name, call, hidden_size=48, state_size=16, groups=2, precision="fp32")


def test_a_backward_gives_the_same_bits_every_time() -> None:
    kernel, _ = kernels_of("selective", hidden_size=512, state_size=16, groups=1, precision="fp32")
    arguments = on_gpu(VectorCall(4, 300, has_resets=True).arguments(kernel.interface))
    y, _, saved = kernel.forward(**arguments)
    first = kernel.backward(saved, y)
    for _ in range(3):
        again = kernel.backward(saved, y)
        for name, gradient in first["shared"].items():
            assert torch.equal(gradient, again["shared"][name])
        assert torch.equal(first["x"], again["x"]) and torch.equal(first["parameters"]["a"], again["parameters"]["a"])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_steps_are_the_call(name: str, precision: str) -> None:
    kernel, _ = kernels_of(name, hidden_size=40, state_size=12, groups=2, precision=precision)
    arguments = on_gpu(VectorCall(3, 4).arguments(kernel.interface))
    y, final = kernel(**arguments)
    x, shared, state = arguments.pop("x"), arguments.pop("shared", {}), arguments.pop("state")
    for t in range(4):
        at_t = {label: values[:, t].contiguous() for label, values in shared.items()} or None
        y_t, state = kernel.step(x[:, t].contiguous(), shared=at_t, state=state, **arguments)
        torch.testing.assert_close(y_t, y[:, t], rtol=2e-2 if precision == "bf16" else 1e-4, atol=1e-3)
    for label, value in final.items():
        torch.testing.assert_close(state[label], value, rtol=1e-4, atol=1e-4)


def test_fronts_of_torch_and_mamba() -> None:
    """A module and mamba_ssm's function: on the GPU as in host memory, in float64."""
    from minrnn_gen.compat.mamba_ssm import selective_scan_fn
    from minrnn_gen.torch import SelectiveScan

    torch.manual_seed(0)
    scan = SelectiveScan(32, 8, groups=2, dtype=torch.float64)
    x, z = torch.randn(2, 50, 32, dtype=torch.float64), torch.randn(2, 50, 32, dtype=torch.float64)
    results = []
    for place in ("cpu", "cuda"):
        scan = scan.to(place)
        scan.zero_grad()
        y, last = scan(x.to(place), z.to(place))
        (y.sin().sum() + last.sum()).backward()
        results.append([y, last, *(parameter.grad.clone() for parameter in scan.parameters())])  # a move takes them along
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other.cpu(), one)
    u, delta = torch.randn(2, 2, 32, 50, dtype=torch.float64)
    A, B, C = -torch.rand(32, 8), torch.randn(2, 8, 50), torch.randn(2, 8, 50)
    given = [tensor.double() for tensor in (u, delta, A, B, C)]
    found = []
    for place in ("cpu", "cuda"):
        leaves = [tensor.to(place).requires_grad_() for tensor in given]
        out, last = selective_scan_fn(*leaves, delta_softplus=True, return_last_state=True)
        found.append([out, last, *torch.autograd.grad(out.sin().sum() + last.sum(), leaves)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other.cpu(), one)


def test_a_block_of_mamba() -> None:
    """Beside the scan torch convolves and projects: outputs and gradients as in host memory, in float64; and one step."""
    from minrnn_gen.compat.mamba_ssm import mamba_inner_fn, selective_state_update

    torch.manual_seed(0)
    shapes = {"xz": (2, 64, 50), "conv1d_weight": (32, 1, 4), "conv1d_bias": (32,), "x_proj_weight": (2 + 8 + 8, 32)}
    shapes |= {"delta_proj_weight": (32, 2), "out_proj_weight": (16, 32), "out_proj_bias": (16,), "D": (32,)}
    shapes |= {"delta_bias": (32,), "b_rms_weight": (8,), "c_rms_weight": (8,), "dt_rms_weight": (32,)}
    given = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    given["A"] = -torch.rand(32, 8, dtype=torch.float64)
    step = [torch.randn(2, 32, dtype=torch.float64) for _ in range(3)]
    b, c = torch.randn(2, 2, 8, dtype=torch.float64)
    found = []
    for place in ("cpu", "cuda"):
        leaves = {name: tensor.to(place).requires_grad_() for name, tensor in given.items()}
        out = mamba_inner_fn(**leaves)
        state = torch.ones(2, 32, 8, dtype=torch.float64, device=place)
        x, dt, z = (tensor.to(place) for tensor in step)
        y = selective_state_update(state, x, dt, leaves["A"], b.to(place), c.to(place), leaves["D"], z, dt_softplus=True)
        found.append([out, y, state, *torch.autograd.grad(out.sin().sum(), [*leaves.values()])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other.cpu(), one)
