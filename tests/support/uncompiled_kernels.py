"""Kernels for host arrays: planned and rendered, but not compiled, which host arrays do not need and which takes longest."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from support.examples import is_whole
from support.oracle import RAW_CELL

import minrnn_gen
from minrnn_gen import kernel
from minrnn_gen.build import builder, nvrtc
from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.recipe import check_sizes_of_vectors
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.plan import size_classes
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.size_classes import SizeClasses, SizedKernel
from minrnn_gen.run import ahead

_ALL_SIZES = size_classes.size_classes


def one_for_all_sizes(problem: Problem, _measured: Sequence[SizedKernel] = ()) -> SizeClasses:
    """Return the kernel of the problem's own sizes for all sizes, which saves most of what planning takes."""
    return SizeClasses((SizedKernel("scan_forward_channels", {}, problem.sizes),), 0.0)


def nothing_ahead(builder: Builder) -> tuple[BuiltKernel, ...]:
    """Check the sizes of a spec, and build none of its kernels."""
    check_sizes_of_vectors(builder.spec, builder.cell_source)
    return ()


@contextlib.contextmanager
def nothing_compiled(plans_sizes: bool = False) -> Iterator[None]:
    """Let kernels be planned and rendered as if there were no NVRTC; those of torch's layers are forgotten afterwards.

    One kernel is planned for all sizes, unless it `plans_sizes`, and kept apart from what others have in the cache. Every day
    it is planned when something asks for it, as a kernel's source does and host arrays do not; in the whole matrix always.
    """

    def missing(*_: object) -> None:
        raise ToolchainMissing("planned and rendered only")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "compile_source", missing)
        if not plans_sizes:
            patch.setattr(size_classes, "size_classes", one_for_all_sizes)
            patch.setenv("MINRNN_CACHE_DIR", f"{os.environ['MINRNN_CACHE_DIR']}-one-for-all-sizes")
        if not plans_sizes and not is_whole():
            patch.setattr(kernel, "build_ahead", nothing_ahead)
        yield
    _forget_kernels_of_torch()  # others want them compiled


@contextlib.contextmanager
def compiled_again() -> Iterator[None]:
    """Let kernels be compiled within `nothing_compiled`, as a GPU needs them."""
    with planned_again(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "compile_source", nvrtc.compile_source)
        yield


@contextlib.contextmanager
def planned_again() -> Iterator[None]:
    """Let kernels be planned for all sizes within `nothing_compiled`."""
    _forget_kernels_of_torch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(size_classes, "size_classes", _ALL_SIZES)
        patch.setattr(kernel, "build_ahead", ahead.build_ahead)
        patch.setenv("MINRNN_CACHE_DIR", os.environ["MINRNN_CACHE_DIR"].removesuffix("-one-for-all-sizes"))
        yield
    _forget_kernels_of_torch()


def _forget_kernels_of_torch() -> None:
    if "minrnn_gen.layers.kernels" in sys.modules:
        sys.modules["minrnn_gen.layers.kernels"]._KERNELS.clear()


def compiled_for_host(spec: Mapping[str, Any], plans_sizes: bool = False) -> minrnn_gen.Kernel:
    """Compile `spec` for the profile h200 as if there were no NVRTC; `plans_sizes` as `nothing_compiled` takes it."""

    with nothing_compiled(plans_sizes):
        return minrnn_gen.compile(spec, gpu="h200")


@functools.cache
def host_kernel(model: str, hidden_size: int, precision: str, layout: str = "BTD", **spec: Any) -> minrnn_gen.Kernel:
    """Return the kernel of a built-in cell, or of "raw", the cell whose gates are its coefficients; the same for the same."""
    sizes = {"hidden_size": hidden_size, "precision": precision, "layout": layout}
    return compiled_for_host({"model": RAW_CELL if model == "raw" else model, **sizes, **spec})
