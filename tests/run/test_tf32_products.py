"""Every product of cuBLAS is in tf32 where the spec says so, and none else: arithmetic as data, with no setting beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rendered_kernels import builder_of

from minrnn_gen.call.array import wrap_numpy
from minrnn_gen.call.interface import Interface
from minrnn_gen.config.spec import load_spec
from minrnn_gen.gpu.cublas import Product
from minrnn_gen.gpu.graph import Scratch
from minrnn_gen.precision import precision_of
from minrnn_gen.run.dense.launch import scratch_sizes
from minrnn_gen.run.dense.products import GateRounds, recurrent_gradient, row_products, step_products
from minrnn_gen.run.interface import interface_of
from minrnn_gen.run.projection import projection, weight_gradient, x_gradient

# cublasComputeType_t (cublas_api.h).
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77


def interface(spec: dict[str, Any]) -> Interface:
    builder = builder_of(**spec)
    return interface_of(builder, builder.cell_shape)


def array(*shape: int, dtype: str = "float32") -> Any:
    return wrap_numpy(np.zeros(shape, dtype), "array")


def products_of(interface: Interface, layout: str) -> list[Product]:
    """Return all products of a training step of a dense cell with a projection."""
    hidden, rows = interface.hidden_size, interface.recurrent_rows
    y = array(2, hidden, 3) if layout == "BDT" else array(2, 3, hidden)
    x, weight, gates = array(2, 3, 5), array(7, 5), array(2, 3, 7)
    of_R = GateRounds.of(interface, ()).of_output
    made = [
        projection(x, weight, gates, False, interface.precision.multiplies_in_tf32),
        x_gradient(gates, weight, x, False, interface.precision.multiplies_in_tf32),
        *weight_gradient(gates, x, weight, False, interface.precision.multiplies_in_tf32),
        *row_products(interface, layout, 0, y, array(6, rows), of_R),
        *recurrent_gradient(interface, layout, y, array(6, rows), array(rows, interface.head_dim), of_R),
    ]
    for backward in (False, True):
        sizes = scratch_sizes(interface, 2, backward)
        made += step_products(interface, Scratch(sizes, dict.fromkeys(sizes, 0)), 2, backward, of_R)
    return made


@given(
    product=st.sampled_from(("tf32x3", "tf32", "fma")),
    precision=st.sampled_from(("fp32", "fp64", "fp16", "bf16")),
    layout=st.sampled_from(("BTD", "TBD", "BDT")),
    heads=st.sampled_from((1, 2)),
)
def test_products_of_dense_cells(product: str, precision: str, layout: str, heads: int) -> None:
    spec = {"model": "lstm", "hidden_size": 8, "heads": heads, "precision": precision, "layout": layout}
    made = products_of(interface({**spec, "fp32_product": product}), layout)
    assert {one.in_tf32 for one in made} == {precision == "fp32" and product == "tf32"}


@pytest.mark.parametrize(("dtype", "in_tf32", "compute"), [
    ("float32", False, COMPUTE_32F), ("float32", True, COMPUTE_32F_FAST_TF32),
    ("float64", False, COMPUTE_64F), ("float16", False, COMPUTE_32F),
])  # fmt: skip
def test_what_cublas_is_asked_for(dtype: str, in_tf32: bool, compute: int) -> None:
    square = array(4, 4, dtype=dtype)
    assert projection(square, square, square, False, in_tf32).compute_type == compute


@pytest.mark.parametrize(("input_size", "expected"), [(None, False), (5, True)])
def test_a_scan_has_no_product_but_its_projection(input_size: int | None, expected: bool) -> None:
    given = interface({"model": "min_gru", "hidden_size": 8, "fp32_product": "tf32", "input_size": input_size})
    assert given.precision.multiplies_in_tf32 is expected


def test_only_fp32_has_the_choice() -> None:
    for name in ("fp64", "fp16", "bf16"):
        assert precision_of(name).with_product("tf32") == precision_of(name)
    fp32 = precision_of("fp32")
    assert fp32.with_product("tf32x3") == fp32.with_product("fma") == fp32
    assert fp32.with_product("tf32") == replace(fp32, multiplies_in_tf32=True)
    assert (fp32.operand_roundoff, fp32.with_product("tf32").operand_roundoff) == (2.0**-24, 2.0**-11)
    assert load_spec({"model": "lstm", "hidden_size": 8}).fp32_product == "tf32x3"
