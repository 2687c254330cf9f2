"""The kernels of this process by their recipes: what a graph, which holds text and numbers, calls a kernel by."""

from __future__ import annotations

from minrnn_gen.api import builder_for, compile
from minrnn_gen.assemble import target_of
from minrnn_gen.build.recipe import spec_from
from minrnn_gen.gpu import driver
from minrnn_gen.kernel import Kernel

_KERNELS: dict[str, Kernel] = {}


def kernel_by(recipe: str) -> Kernel:
    """Return the kernel of a recipe, made where this process has none yet; raises what `compile` does.

    Compiled ahead, where there is a GPU, is what the recipe has typical sizes for; anything else when a call needs it: of host
    tensors alone, nothing.
    """
    kernel = _KERNELS.get(recipe)
    return kernel or _KERNELS.setdefault(recipe, _made(recipe))


def _made(recipe: str) -> Kernel:
    spec = spec_from(recipe)
    is_ahead = (spec.batch or spec.time) and driver.has_device()
    return compile(spec) if is_ahead else Kernel(builder_for(spec, target_of(spec)))


def known(kernel: Kernel) -> str:
    """Return the recipe of a kernel, by which it is found from now on; kernels of one recipe stand for each other."""
    _KERNELS.setdefault(kernel.recipe, kernel)
    return kernel.recipe
