"""The Python interface: `compile`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from minrnn_gen.build.builder import Builder, builder_of
from minrnn_gen.build.target import Target
from minrnn_gen.config.spec import Spec, SpecKeys, load_spec, spec_of_arguments
from minrnn_gen.errors import BadInput, shown
from minrnn_gen.run.target import target_of

if TYPE_CHECKING:  # the command line compiles without importing the runtime
    from minrnn_gen.build.tuned_choice import Preferred
    from minrnn_gen.kernel import Kernel


def compile(
    spec: str | os.PathLike[str] | Mapping[str, Any] | Spec,
    *,
    tune: bool = False,
    device: str | None = None,
    allow_long: bool = False,
    **overrides: Unpack[SpecKeys],
) -> Kernel:
    """Compile a spec (a path, a dict or a Spec; `overrides` replace its keys) to a callable kernel.

    The GPU is the spec's `gpu`, else the one at hand, else the default profile. Plans, renders and compiles the forward and
    the step kernel, or takes them from the cache; without NVRTC the kernel still serves host arrays. `tune`: measure candidates
    on the GPU here first, for half a minute at most, and take the fastest; later calls reuse it automatically.
    `device="interpret"`: host arrays run the kernel's own text, compiled by a C++ compiler, thread by thread and watched; calls
    that would take too long are refused unless `allow_long`. Raises BadInput for a spec or cell that is wrong, Infeasible where
    nothing fits the GPU, CompileFailed where NVRTC refuses the source, ToolchainMissing where `tune` finds no GPU to measure
    on.
    """
    for name, flag in (("tune", tune), ("allow_long", allow_long)):
        if not isinstance(flag, bool):
            raise BadInput(f"{name} is {shown(flag)}; True or False is expected")
    loaded = load_spec(spec, **overrides)
    target = target_of(loaded)
    if device is not None:
        if device != "interpret":
            raise BadInput(f"device is {shown(device)}; allowed: 'interpret', or leave it out to run where the arrays are")
        if tune:
            raise BadInput("tune measures candidates on a GPU, and device='interpret' runs on none; leave one of them out")
        from minrnn_gen.interpret.kernel import interpreted

        return interpreted(loaded, target, allow_long=allow_long)
    if tune:
        from minrnn_gen.build.embedded import builder_of_kernels
        from minrnn_gen.kernel import kernel_from
        from minrnn_gen.tune.lookup import Winners, remembered
        from minrnn_gen.tune.session import tune_here

        builder = builder_of(loaded, target, remembered)
        tuned = tuple(tune_here(builder_of_kernels(builder)))
        if tuned and tuned[-1].ended == "interrupted":
            raise KeyboardInterrupt
        winners = tuple(result.winner for result in tuned if result.winner)
        return kernel_from(replace(builder, preferred=Winners(winners)))
    return kernel_of(loaded, target)


def compile_arguments(keys: Mapping[str, Any], caller: str) -> Kernel:
    """Compile the spec that another front built from its arguments; errors about it begin with `caller`."""
    return compile(spec_of_arguments(keys, caller))


def kernel_of(spec: Spec, target: Target) -> Kernel:
    """Compile `spec` for `target`, with earlier measurements."""
    from minrnn_gen.kernel import kernel_from

    return kernel_from(builder_for(spec, target))


def builder_for(spec: Spec, target: Target) -> Builder:
    """Return the builder of the kernels of `spec` for `target`, with earlier measurements."""
    return builder_of(spec, target, _remembered)


def _remembered() -> Preferred:
    from minrnn_gen.tune.lookup import remembered  # only where the cache has no answer

    return remembered()
