"""Kernels that are planned and said to be built, and do nothing when they are launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.codegen.gradients import ADD_UP, ADD_UP_STORED, STORE
from minrnn_gen.gpu import cublas
from minrnn_gen.plan.problem import KernelKey
from minrnn_gen.run import kernels
from minrnn_gen.run.dense.stepwise import StepwiseRun

RESIDENT_BLOCKS = 132


class Nothing:
    """A loaded kernel that does nothing when it is launched."""

    def launch(self, *_: Any) -> None: ...

    launch_on = launch

    @staticmethod
    def is_loaded(_device: int) -> bool:
        return True

    @staticmethod
    def resident_blocks(*_: Any) -> int:
        return RESIDENT_BLOCKS


def build_nothing(patch: pytest.MonkeyPatch, begin: Callable[[KernelKey], None] = lambda _: None) -> list[KernelKey]:
    """Let builders plan kernels and compile none, and runs do nothing; returns what is built from now on.

    `begin` is called before a kernel is.
    """
    built: list[KernelKey] = []

    def build(builder: Builder, key: KernelKey) -> BuiltKernel:
        built.append(key)
        begin(key)
        plan = builder.solve(key).plan()
        return BuiltKernel(plan, builder.cell_shape, "", "", b"", (), (), cached=False, seconds=0.0, folder=None)

    patch.setattr(Builder, "build", build)
    patch.setattr(kernels, "loaded_kernel", lambda *_: Nothing())
    end = {name: Nothing() for name in (ADD_UP, ADD_UP_STORED, STORE)}
    patch.setattr(kernels.CompiledKernels, "gradient_kernels", lambda *_: end)
    patch.setattr(kernels.CompiledKernels, "prepare_gradients", lambda _: None)
    patch.setattr(cublas, "multiply", lambda *_, **__: None)
    patch.setattr(StepwiseRun, "run", lambda *_: None)
    return built
