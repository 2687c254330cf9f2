"""Second derivatives on a GPU, of torch's and CuPy's arrays and within torch's compiler, compared with fp64 on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.needed import needed

import minrnn_gen

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

DEVICE = "cuda"
BATCH, TIME, INPUTS, HIDDEN = 3, 37, 24, 64
# Of a whole gradient. Each second gradient is of two passes, whose products and states round.
TOLERANCES = {"fp64": 1e-11, "fp32": 1e-4, "bf16": 6e-2}
DTYPES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16"}
# A joint backward of kept gradients serves the first three, scans over dual numbers the last three.
MODELS = ("lstm", "elman", "slstm", "gru", "min_gru", "min_lstm", "qrnn")


def kernel_of(model: str, precision: str, **spec: Any) -> minrnn_gen.Kernel:
    return minrnn_gen.compile({"model": model, "hidden_size": HIDDEN, "precision": precision, **spec})


def drawn_arrays(kernel: minrnn_gen.Kernel) -> dict[str, Any]:
    """Return x and the matrices of a call in bfloat16's values."""
    interface, generator = kernel.interface, torch.Generator().manual_seed(0)
    shapes = {"x": interface.shape(interface.x_axes, BATCH, TIME)}
    if interface.input_size:
        shapes["weight"] = (interface.weight_rows, INPUTS)
    if interface.recurrent_gates:
        shapes["R"] = interface.R_shape
    drawn = {name: torch.randn(shape, generator=generator) * shape[-1] ** -0.5 for name, shape in shapes.items()}
    return {name: array.bfloat16().double() for name, array in drawn.items()}


def second_gradients(kernel: minrnn_gen.Kernel, arrays: dict[str, Any], dtype: Any, device: str, **sequences: Any) -> list[Any]:
    """Return the second gradients along all first ones, and those of dy, in float64 on the host."""
    leaves = {name: array.to(device, dtype).requires_grad_() for name, array in arrays.items()}
    y, _ = wing.recurrence(kernel, **leaves, **{name: array.to(device) for name, array in sequences.items()})
    generator = torch.Generator().manual_seed(1)
    dy, *along = (torch.randn(array.shape, generator=generator).bfloat16().to(device, dtype) for array in (y, *leaves.values()))
    first = torch.autograd.grad(y, [*leaves.values()], dy.requires_grad_(), create_graph=True)
    second = torch.autograd.grad(first, [*leaves.values(), dy], along, materialize_grads=True)
    return [gradient.double().cpu() for gradient in second]


def assert_near(found: list[Any], expected: list[Any], tolerance: float) -> None:
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).norm()) <= tolerance * float(other.norm())


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("sizes", [{}, {"input_size": INPUTS}, {"direction": "bidirectional", "layout": "TBD"}])
@pytest.mark.parametrize("has_lengths", [False, True])
def test_they_are_those_of_the_host(model: str, precision: str, sizes: dict[str, Any], has_lengths: bool) -> None:
    sequences = {"lengths": torch.tensor([TIME, 1, 20], dtype=torch.int32)} if has_lengths else {}
    exact = kernel_of(model, "fp64", **sizes)
    arrays = drawn_arrays(exact)
    expected = second_gradients(exact, arrays, torch.float64, "cpu", **sequences)
    dtype = getattr(torch, DTYPES[precision])
    found = second_gradients(kernel_of(model, precision, **sizes), arrays, dtype, DEVICE, **sequences)
    assert_near(found, expected, TOLERANCES[precision])


@pytest.mark.parametrize("model", ["lstm", "min_gru"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_of_cupy_arrays(model: str, precision: str, is_packed: bool) -> None:
    """With a weight, and with packed sequences, whose choices among 16-bit numbers CuPy makes in float32."""
    cupy = pytest.importorskip("cupy")
    from minrnn_gen.gpu.memory import numpy_dtype

    results = []
    for name, place in (("fp64", np.asarray), (precision, cupy.asarray)):
        kernel = kernel_of(model, name, input_size=INPUTS)
        rows = 1 if is_packed else BATCH
        generator = np.random.default_rng(0)
        shapes = {"x": (rows, TIME, INPUTS), "weight": (kernel.interface.weight_rows, INPUTS)}
        shapes |= {"R": kernel.interface.R_shape} if kernel.interface.recurrent_gates else {}
        drawn = [{key: generator.standard_normal(shape) * shape[-1] ** -0.5 for key, shape in shapes.items()} for _ in range(2)]
        bf16 = numpy_dtype("bfloat16")
        arrays, tangents = (
            {key: place(array.astype(bf16).astype(numpy_dtype(DTYPES[name]))) for key, array in of.items()} for of in drawn
        )
        ends = {"cu_seqlens": place(np.array([0, 5, TIME], np.int32))} if is_packed else {}
        y, _, saved = kernel.forward(**arrays, **ends)
        dy = place(generator.standard_normal(y.shape).astype(bf16).astype(numpy_dtype(DTYPES[name])))
        second = kernel.second_backward(saved, dy, tangents)
        values = [second[key] for key in ("x", "weight", "dy")]
        results.append([torch.from_numpy(np.asarray(getattr(one, "get", lambda one=one: one)(), np.float64)) for one in values])
    assert_near(results[1], results[0], TOLERANCES[precision])


@pytest.mark.filterwarnings("ignore")  # of torch's compiler, about our frames
@pytest.mark.parametrize("model", ["lstm", "min_gru"])
def test_within_a_compiled_function(model: str) -> None:
    """Transforms of torch.func stay out of the graph and keep their values."""
    kernel = kernel_of(model, "fp32")
    arrays = {name: array.to(DEVICE, torch.float32) for name, array in drawn_arrays(kernel).items()}

    def total(x: Any) -> Any:
        return wing.recurrence(kernel, **{**arrays, "x": x})[0].square().sum()

    def twice(x: Any) -> Any:
        (first,) = torch.autograd.grad(total(x), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    def penalty(x: Any) -> Any:
        return torch.func.grad(lambda x: torch.func.grad(total)(x).square().sum())(x)

    x = arrays["x"].requires_grad_()
    torch.compiler.reset()
    expected = twice(x)
    assert_near([torch.compile(penalty)(x).detach()], [expected], TOLERANCES["fp32"])


def test_transforms_are_those_of_the_host() -> None:
    """A Hessian-vector product in both modes, and a batch of them."""
    exact = kernel_of("lstm", "fp64")
    arrays = drawn_arrays(exact)
    along = torch.randn(2, *arrays["x"].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def products(device: str) -> list[Any]:
        placed = {name: array.to(device) for name, array in arrays.items()}

        def gradient(x: Any) -> Any:
            return torch.func.grad(lambda x: wing.recurrence(exact, **{**placed, "x": x})[0].square().sum())(x)

        def product(v: Any) -> Any:
            return torch.func.jvp(gradient, (placed["x"],), (v,))[1]

        moved = along.to(device)
        reverse = torch.func.vjp(gradient, placed["x"])[1](moved[0])[0]
        return [reverse.cpu(), product(moved[0]).cpu(), torch.func.vmap(product)(moved).cpu()]

    assert_near(products(DEVICE), products("cpu"), TOLERANCES["fp64"])
