"""Options of every command that takes a spec: the spec, its overrides, and the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minrnn_gen.cli import completion
from minrnn_gen.cli.terminal import print_note, progress
from minrnn_gen.errors import BadInput, shown

if TYPE_CHECKING:  # imported where a request is answered: other commands do without
    from minrnn_gen.build.artifact import BuiltKernel
    from minrnn_gen.build.builder import Builder
    from minrnn_gen.build.target import Target
    from minrnn_gen.config.spec import Spec
    from minrnn_gen.kernel import Kernel

SpecPath = Annotated[
    str,
    typer.Argument(metavar="SPEC", help="The spec: a YAML file.", show_default=False, autocompletion=completion.specs),
]
GpuName = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        help="The GPU: a profile's name, or the path of a profile file.",
        show_default=False,
        autocompletion=completion.gpus,
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Replace a key of the spec; may be repeated.",
        show_default=False,
        autocompletion=completion.assignments,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


class Pass(StrEnum):
    """The kernels of a spec."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


WhichPass = Annotated[Pass, typer.Option("--pass", help="Which kernel: over time, against it, or of one step.")]


_CHOICES = {"spec": "as asked for", "device": "the GPU here", "default": "the default: no GPU here serves, and none was named"}


@dataclass(frozen=True)
class Request:
    """A spec and the GPU to compile it for."""

    spec: Spec
    target: Target

    @property
    def gpu_choice(self) -> str:
        """Who chose the GPU, as a phrase."""
        return _CHOICES[self.target.origin]

    def say_default(self) -> None:
        """Say on stderr where the GPU is only the default."""
        if self.target.origin == "default":
            from minrnn_gen.gpu.device import why_no_gpu

            print_note(
                f"{why_no_gpu()} and none named with --gpu: compiled for the default profile, {self.target.profile.name}"
            )

    @cached_property
    def builder(self) -> Builder:
        """Builder of the kernels, which uses earlier measurements."""
        from minrnn_gen.api import builder_for

        return builder_for(self.spec, self.target)

    @cached_property
    def builder_of_kernels(self) -> Builder:
        """Builder of the kernels of calls; a cell with products of several shapes uses those of the cell that serves it."""
        from minrnn_gen.build.embedded import builder_of_kernels

        return builder_of_kernels(self.builder)

    def build(self, quiet: bool = False) -> tuple[BuiltKernel, ...]:
        """Compile the kernels of plain calls, or find them in the cache; a terminal shows it, unless `quiet`."""
        from minrnn_gen.run.ahead import build_ahead

        with progress(f"compiling for {self.target.profile.name}", quiet):
            return build_ahead(self.builder_of_kernels)

    def compile(self, quiet: bool = False) -> Kernel:
        """Compile the callable, or find its kernels in the cache, as `build` does."""
        return self.kernel(self.build(quiet))

    def kernel(self, built: tuple[BuiltKernel, ...] = ()) -> Kernel:
        """Return the callable, with the kernels that are `built` already."""
        from minrnn_gen.build.recipe import check_sizes_of_vectors
        from minrnn_gen.kernel import Kernel

        check_sizes_of_vectors(self.spec, self.builder.cell_source)
        return Kernel(self.builder, built)

    def compile_pass(self, which: Pass) -> BuiltKernel:
        """Compile the kernel of one pass, or find it in the cache; raises BadInput for a pass that the spec lacks."""
        from minrnn_gen.run.ahead import build_plain

        with progress(f"compiling for {self.target.profile.name}"):
            return build_plain(self.builder_of_kernels, which.value)


def read_request(path: str, gpu: str | None, assignments: Sequence[str] | None) -> Request:
    """Read the spec at `path` with `assignments` ("key=value", values as in YAML) and for `gpu`, where given.

    A relative path in `gpu` starts at the working directory, others where the spec's own do. Raises BadInput.
    """
    from minrnn_gen.build.target import Target
    from minrnn_gen.config.gpu_profile import load_profile, profile_bytes, shipped_name
    from minrnn_gen.config.spec import overridden_spec
    from minrnn_gen.run.target import target_of

    overrides = {"--set": _assigned(assignments or ())}
    if gpu is None:
        spec = overridden_spec(path, overrides)
        return Request(spec, target_of(spec))
    # The path of a profile says nothing about what is generated, so it does not enter the spec.
    shipped = shipped_name(gpu)
    spec = overridden_spec(path, {**overrides, "--gpu": {"gpu": shipped}})
    if shipped:
        return Request(spec, target_of(spec))
    profile = load_profile(gpu, lambda message: BadInput(f"--gpu: {message}"))
    return Request(spec, Target(profile, profile_bytes(gpu), "spec"))


def _assigned(assignments: Sequence[str]) -> dict[str, Any]:
    from minrnn_gen.config.documents import parse_document

    overrides: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals or not key:
            raise BadInput(f"--set: {shown(assignment)} is given; allowed: KEY=VALUE, as in --set hidden_size=256")
        if key in overrides:
            raise BadInput(f"--set: {shown(key)} is given twice; give it once")
        if len(text.splitlines()) > 1:
            raise BadInput(f"--set: the value of {shown(key)} has several lines; give one, or write it into the spec")
        # Only the spec's own keys are read as YAML; of any other, load_spec says what is wrong.
        overrides[key] = parse_document(f"{key}: {text}", "--set").data.get(key) if key.isidentifier() else text
    return overrides
