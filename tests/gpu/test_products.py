"""Products of matrices, and the gradients of weights that are such products, at sizes for which cuBLAS picks other kernels."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from minrnn_gen.gpu import cublas
from minrnn_gen.gpu.cublas import Matrix, Product
from minrnn_gen.kernel import Kernel

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
# Half a unit in the last place of a result in 16 bits, and of the sums in fp32; of each 16 terms at least one sum is rounded.
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
TERMS_OF_A_STEP = 16
# Relative errors of gradients, as tests/gpu/test_gradients.py has them; in 16 bits every step of a chain is rounded to storage.
GRADIENTS = {"fp64": 2.0**-44, "fp32": 2.0**-17, "fp16": 2.0**-8, "bf16": 2.0**-5}
WIDTHS = (1, 8, 20, 64, 96, 128, 192, 256, 320, 384, 512, 768, 1024)


def sizes(seed: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Draw m, n and k: of every three k one is a multiple of 8, as those are that other kernels take."""
    drawn = random.Random(seed)
    for number in range(count):
        k = int(2.0 ** drawn.uniform(8, 16))
        yield drawn.choice(WIDTHS), drawn.choice(WIDTHS), k - k % 8 if number % 3 == 0 else k


@pytest.mark.parametrize("turned", [(True, False), (False, True), (False, False)], ids=["tn", "nt", "nn"])
@pytest.mark.parametrize("dtypes", [("float16",) * 2, ("float16", "float32"), ("bfloat16",) * 2, ("bfloat16", "float32"),
                                    ("float32",) * 2, ("float64",) * 2], ids="-".join)  # fmt: skip
def test_products_have_all_terms(dtypes: tuple[str, str], turned: tuple[bool, bool]) -> None:
    factors, results = dtypes
    torch.manual_seed(len(factors))
    of_factors, of_results = getattr(torch, factors), getattr(torch, results)
    workspace = torch.empty(cublas.WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    for m, n, k in sizes(2 * turned[0] + turned[1], 300):
        left = torch.randn((k, m) if turned[0] else (m, k), device="cuda").to(of_factors)
        right = torch.randn((n, k) if turned[1] else (k, n), device="cuda").to(of_factors)
        result = torch.full((m, n), float("nan"), dtype=of_results, device="cuda")
        product = Product(
            m, n, k, Matrix(left.data_ptr(), factors, left.shape[1], transposed=turned[0]),
            Matrix(right.data_ptr(), factors, right.shape[1], transposed=turned[1]), Matrix(result.data_ptr(), results, n),
        )  # fmt: skip
        for part in product.parts:
            cublas.multiply(0, torch.cuda.current_stream().cuda_stream, part, None, workspace.data_ptr())
        exact = (left.T if turned[0] else left).double() @ (right.T if turned[1] else right).double()
        error = float((result.double() - exact).norm() / exact.norm())
        sums = ROUNDOFF["float64" if factors == "float64" else "float32"] * (2 + k / TERMS_OF_A_STEP)
        assert error <= ROUNDOFF[results] + sums, (m, n, k)


# (batch, time, inputs, hidden): sums over 2,561 to 65,537 rows, with each remainder of 64 at which terms were lost.
SHAPES = ((3, 2049, 192, 128), (1, 2561, 320, 160), (13, 197, 256, 96), (7, 929, 64, 64), (1, 6404, 96, 32), (5, 4097, 8, 128))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", ["BTD", "BDT"])
@pytest.mark.parametrize("precision", list(DTYPES))
@pytest.mark.parametrize("model", ["min_gru", "gru"])
def test_gradients_of_weights_are_those_of_fp64(
    compiled: Callable[..., Kernel], model: str, precision: str, layout: str, shape: tuple[int, ...]
) -> None:
    if model == "gru" and layout == "BDT":
        layout = "TBD"
    batch, time, inputs, hidden = shape
    generator = torch.Generator("cuda").manual_seed(batch * time)

    def drawn(*shape: int, scale: float = 1.0) -> Any:
        return (torch.randn(shape, generator=generator, device="cuda") * scale).to(getattr(torch, DTYPES[precision]))

    axes = {"BTD": (batch, time, inputs), "TBD": (time, batch, inputs), "BDT": (batch, inputs, time)}[layout]
    gates = {"min_gru": 2, "gru": 3}[model]
    x, weight = drawn(*axes), drawn(gates * hidden, inputs, scale=inputs**-0.5)
    given = {"weight": weight, "bias": drawn(gates, hidden)}
    if model == "gru":
        given["R"] = drawn(3, 1, hidden, hidden, scale=0.5 * hidden**-0.5)
    y_axes = [hidden if size == inputs else size for size in axes]
    dy = drawn(*y_axes)
    gradients = {}
    for of in (precision, "fp64"):
        kernel = compiled(model=model, hidden_size=hidden, input_size=inputs, precision=of, layout=layout)
        wide = {name: one.double() if of == "fp64" else one for name, one in {"x": x, **given}.items()}
        _, _, saved = kernel.forward(wide.pop("x"), wide.pop("R", None), **wide)
        gradients[of] = kernel.backward(saved, dy.double() if of == "fp64" else dy)
    for name in ("weight", *(["R"] if model == "gru" else [])):
        found, exact = gradients[precision][name].double(), gradients["fp64"][name]
        error = float((found - exact).norm() / exact.norm())
        assert error <= GRADIENTS[precision], name
