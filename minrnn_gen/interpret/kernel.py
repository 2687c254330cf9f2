"""A kernel whose host arrays run the kernel's own text."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.embedded import builder_of_kernels
from minrnn_gen.build.recipe import spec_from
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.build.target import Target
from minrnn_gen.call.arguments import Call
from minrnn_gen.call.interface import RUNS_REVERSED, Interface
from minrnn_gen.config.spec import Spec
from minrnn_gen.errors import BadInput
from minrnn_gen.interpret.backend import EmulatedBackend
from minrnn_gen.interpret.builder import EmulatedBuilder
from minrnn_gen.interpret.toolchain import cpp_compiler
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.run.target import NamedProfile, profile_named_by, target_again

# The cost, measured on a core of 2.5 GHz, of a gate of one step, and in a dense cell of a product of two numbers.
GATE_NS, PRODUCT_NS = 2000.0, 40.0
SECONDS_MOST = 600.0


def _from_recipe(
    recipe: str, profile: NamedProfile, allow_long: bool, other: int, sizes: tuple[int, int] | None
) -> InterpretedKernel:
    spec = spec_from(recipe)
    return interpreted(
        spec, target_again(spec, profile), allow_long=allow_long, other=other, sizes=Sizes(*sizes) if sizes else None
    )


class InterpretedKernel(Kernel):
    """A `Kernel` that runs host arrays thread by thread, as the GPU it was planned for would, and watches what its threads do.

    Exact except for the order of sums in products, and slow; raises KernelMisbehaved for a thread's errors.
    """

    def __init__(self, builder: EmulatedBuilder, built: tuple[BuiltKernel, ...], allow_long: bool = False) -> None:
        self.backend = EmulatedBackend(builder_of_kernels(builder), built, self._refuse)
        super().__init__(builder, built, self.backend)
        self._emulated_builder, self._allow_long = builder, allow_long

    def __reduce__(self) -> tuple[Any, ...]:
        builder = self._emulated_builder
        settings = (self._allow_long, builder.other, builder.sizes and tuple(builder.sizes))
        return _from_recipe, (self.recipe, profile_named_by(builder.target), *settings)

    def _like(self, spec: Spec) -> InterpretedKernel:
        builder = self._emulated_builder
        return interpreted(spec, builder.target, allow_long=self._allow_long, other=builder.other, sizes=builder.sizes)

    @property
    def builder(self) -> EmulatedBuilder:
        """Builder of its kernels."""
        return self._emulated_builder

    def seeded(self, seed: int) -> AbstractContextManager[None]:
        """Interleave the threads of launches in this context by `seed`, reproducibly."""
        return self.backend.seeded(seed)

    def _refuse(self, call: Call) -> None:
        """Refuse arrays on a GPU, and calls that take very long."""
        if call.x.device is not None:
            raise BadInput(
                f"x is on CUDA device {call.x.device}; device='interpret' runs on host arrays, so copy it, or leave it out"
            )
        seconds = seconds_of(self.interface, call.rows, call.time)
        if seconds > SECONDS_MOST and not self._allow_long:
            raise BadInput(
                f"x has {call.rows} rows of {call.time} steps, which would take about {seconds / 60:.0f} minutes here; "
                f"give smaller ones, or allow_long (--yes-really)"
            )


def seconds_of(interface: Interface, rows: int, time: int) -> float:
    """Return about how long a forward takes on the host."""
    gates = len(interface.gates) * interface.hidden_size * max(1, interface.state_size)
    products = interface.recurrent_rows * interface.head_dim // len(interface.runs_reversed)
    return rows * time * len(interface.runs_reversed) * (gates * GATE_NS + products * PRODUCT_NS) * 1e-9


def interpreted(
    spec: Spec, target: Target, *, allow_long: bool = False, other: int = 0, sizes: Sizes | None = None
) -> InterpretedKernel:
    """Return the kernel of `spec` for `target`, to run on the host; `other` and `sizes`: as for `EmulatedBuilder`.

    Raises ToolchainMissing where there is no C++ compiler, and what `compile` raises for the spec and its cell.
    """
    cpp_compiler()
    builder = EmulatedBuilder(spec, target, Store(cache_folder()), other=other, sizes=sizes)
    compiled = builder_of_kernels(builder)
    specialization = replace(builder.hinted_specialization, reverse=RUNS_REVERSED[spec.direction][0])
    forward = compiled.build(compiled.choose("forward", specialization, builder.hinted_sizes))
    return InterpretedKernel(builder, (forward,), allow_long)
