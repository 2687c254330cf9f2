"""A kernel written as C sources: a folder that needs neither Python nor headers of CUDA."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from minrnn_gen import __version__
from minrnn_gen.build.at_once import Watch, unwatched
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.embedded import builder_of_kernels
from minrnn_gen.build.output_files import refused_by_option, write_output
from minrnn_gen.build.recipe import recipe_of
from minrnn_gen.build.store import digest
from minrnn_gen.errors import BadInput, shown
from minrnn_gen.export.cpu import cpu_code, cpu_export
from minrnn_gen.export.cuda import cuda_export, targets_of
from minrnn_gen.export.cuda_code import manifest_of
from minrnn_gen.export.recorded import recorded_cases
from minrnn_gen.export.source import ExportSource, demand_whole, rendered
from minrnn_gen.export.widened import wide_code
from minrnn_gen.run.ahead import sizes_from
from minrnn_gen.run.cpu.native import NativeKernels
from minrnn_gen.run.embedded import EmbeddedExecutor
from minrnn_gen.run.executor import Executor

TARGETS = ("cpu", "cuda")
# Begins every file, target and name in C: without it they would meet words of C, macros and headers of a system (X_OK, linux,
# math.h), functions of its libraries (pthread_create), targets of CMake (test), and check.c.
PREFIX = "rnn_"
_LENGTH = 40
_NAME = re.compile(rf"[a-z][a-z0-9_]{{0,{_LENGTH - 1}}}")


class Exported(NamedTuple):
    """Result of an export: the files, and a sentence for each thing left out."""

    files: tuple[Path, ...]
    left_out: tuple[str, ...]


def export(
    builder: Builder,
    executor: Executor,
    folder: str | os.PathLike[str],
    target: str,
    name: str | None = None,
    partial: bool = False,
    gpus: Sequence[str] = (),
    sizes: Iterable[Sequence[int]] = (),
    without: Sequence[str] = (),
    watch: Watch = unwatched,
) -> Exported:
    """Write rnn_NAME.h, .c and .json, CMakeLists.txt and check.c; raises BadInput for what cannot be exported.

    With `partial`, export what is possible and report the rest. `gpus` are profiles by name or path, `sizes` the pairs (batch,
    time) whose kernels are compiled, and `without` the members that no call has. All three are for the target cuda, as is
    `watch(done, of)`, which is called as kernels are ready.
    """
    if target not in TARGETS:
        raise BadInput(f"target is {shown(target)}; allowed: {', '.join(TARGETS)}")
    chosen = prefixed_name(name, builder.cell_source.name)
    recipe = recipe_of(builder.spec, builder.cell_source)
    asked, serving = sizes_from(sizes), builder_of_kernels(builder)
    embedding = executor.embedding if isinstance(executor, EmbeddedExecutor) else None
    interface = embedding.inner if embedding else executor.interface
    if embedding and embedding.outer.projection_size and interface.inputs:
        input_name = interface.inputs[0]
        raise BadInput(
            f"{builder.cell_source.name} reads X.{input_name} next to projected units, for which a C interface has no array; "
            f"call the kernel from Python, or make it a gate, W.{input_name}"
        )
    if target == "cpu":
        if gpus or asked or without:
            raise BadInput(
                "export: gpus, sizes or without are given, but code for the cpu serves all calls; "
                "leave them out, or export for cuda"
            )
        native = NativeKernels(interface, serving)
        source, kernels = cpu_export(chosen, native, builder.spec.training, embedding), dict[str, Any]()
        demand_whole(source.left_out, partial)
        header = _header(source, recipe, builder)
        code = cpu_code(source, header, native)
    else:
        targets = targets_of(builder, gpus)
        source, compiled = cuda_export(chosen, interface, serving, targets, asked, partial, without, watch, embedding)
        header, kernels = _header(source, recipe, builder), manifest_of(compiled)
        code = rendered("cuda.c.j2", header, plan=source, wide=wide_code(source), code=compiled)
    source = source.served
    files: dict[str, str] = {
        f"{chosen}.h": rendered("kernel.h.j2", header, plan=source),
        f"{chosen}.c": code,
        "check.c": rendered("check.c.j2", header, plan=source, cases=recorded_cases(source, executor)),
        "CMakeLists.txt": rendered("CMakeLists.txt.j2", header, plan=source),
    }
    files[f"{chosen}.json"] = json.dumps(_manifest(source, recipe, files) | kernels, indent=2, sort_keys=True) + "\n"
    return Exported(written(Path(folder), files), source.left_out)


def prefixed_name(name: str | None, model: str) -> str:
    """Return rnn_NAME, the prefix of files, targets and names in C; NAME is `name`, or derived from the model's.

    Raises BadInput for a `name` of other characters.
    """
    if name is None:
        name = plain_name(model)
    elif not _NAME.fullmatch(name):
        raise BadInput(
            f"name is {shown(name)}; allowed: a small letter, then at most {_LENGTH - 1} small letters, digits and underscores"
        )
    return name if name.startswith(PREFIX) else f"{PREFIX}{name}"


def plain_name(model: str) -> str:
    """Return a model's name in small letters, digits and underscores."""
    return re.sub(r"[^a-z0-9_]", "_", model.lower())[:_LENGTH]


def _header(source: ExportSource, recipe: str, builder: Builder) -> tuple[str, ...]:
    interface = source.interface
    return (
        f"{builder.cell_source.name} for {source.target}, {interface.precision.name}, exported by minrnn-gen {__version__}.",
        "The spec:",
        *(f"  {line}" for line in recipe.strip().splitlines()),
    )


def _manifest(source: ExportSource, recipe: str, files: Mapping[str, str]) -> dict[str, Any]:
    return {
        "generator": f"minrnn-gen {__version__}",
        "name": source.name,
        "target": source.target,
        "spec": recipe,
        "passes": [*source.passes, *(["step"] if source.has_step else [])],
        "left_out": list(source.left_out),
        "arrays": {array.name: array.comment for array in source.arrays},
        "files": {name: {"bytes": len(text.encode()), "digest": digest(text)} for name, text in files.items()},
    }


def written(folder: Path, files: Mapping[str, str]) -> tuple[Path, ...]:
    """Write texts into a folder, made where there is none, and return their paths; raises BadInput where that fails."""
    with refused_by_option("out", folder, "a folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_output(folder / name, text.encode())
    return tuple(folder / name for name in files)
