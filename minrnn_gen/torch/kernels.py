"""The kernels of this process by their recipes: what a graph of torch, which holds text and numbers, calls a kernel by."""

from __future__ import annotations

from minrnn_gen.api import compile
from minrnn_gen.build.recipe import spec_from
from minrnn_gen.kernel import Kernel

_KERNELS: dict[str, Kernel] = {}


def kernel_by(recipe: str) -> Kernel:
    """Return the kernel of a recipe, compiled where this process has none yet; raises what `compile` does."""
    kernel = _KERNELS.get(recipe)
    return kernel or _KERNELS.setdefault(recipe, compile(spec_from(recipe)))


def known(kernel: Kernel) -> str:
    """Return the recipe of a kernel, by which it is found from now on; kernels of one recipe stand for each other."""
    _KERNELS.setdefault(kernel.recipe, kernel)
    return kernel.recipe
