"""Export for GPUs: compiled kernels for several GPUs and size classes, and by which of them a call in C is launched."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder, Target
from minrnn_gen.call.interface import RUNS_REVERSED, Interface
from minrnn_gen.codegen.parameter import Parameter, Signature
from minrnn_gen.codegen.signature import signature
from minrnn_gen.codegen.signature_groups import AXES, ArrayNames
from minrnn_gen.errors import BadInput, ToolchainMissing
from minrnn_gen.export.source import ExportSource, demand_whole
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes, step_sequences_max
from minrnn_gen.plan.size_classes import BATCHES, TIMES, SizeClasses, rows_in_memory
from minrnn_gen.run.ahead import step_specialization

# A forward without and with resets is a kernel each, in each direction; a step has neither.
_VARIANTS = (False, True)


@dataclass(frozen=True)
class Dispatch:
    """One pass of one variant on one GPU: its kernels' numbers, and for each place of the grid of sizes which of them."""

    kernels: tuple[int, ...]
    places: tuple[int, ...]


@dataclass(frozen=True)
class ExportedKernel:
    """A compiled kernel as NAME.c has it: `image` is the number of its cubin, `form` that of its list of arguments.

    A launch has ceil(ceil(batch / sequences) * units / units_per_block) * cluster_blocks blocks, where `units` are columns,
    channels or heads of a sequence, or of several.
    """

    built: BuiltKernel
    image: int
    form: int
    units: int
    units_per_block: int
    sequences: int

    @property
    def plan(self) -> KernelPlan:
        """The plan."""
        return self.built.plan

    @property
    def cluster_blocks(self) -> int:
        """Blocks of a cluster."""
        return self.plan.variables.get("cluster_blocks", 1)

    @property
    def lookback(self) -> int:
        """Whether any blocks take tiles of a sequence."""
        return int(bool(self.plan.variables.get("lookback")))

    @property
    def tile_state_bytes(self) -> int:
        """Bytes of a tile's state in a look-back's workspace."""
        return 2 * self.plan.arithmetic_bytes * self.plan.packets_per_tile if self.lookback else 0

    @property
    def exchange_bytes(self) -> int:
        """Bytes through which the blocks of a group hand outputs on."""
        return self.plan.group_exchange_bytes if self.plan.is_persistent else 0

    @property
    def grid_blocks(self) -> int:
        """Blocks of such a group."""
        return self.plan.grid_blocks if self.exchange_bytes else 0


@dataclass(frozen=True)
class ExportedGpu:
    """A GPU that kernels were compiled for: those from `first` on are its own; `dispatch` by pass, resets and direction.

    `is_exact`: some have instructions of one architecture alone. A step of more than `step_sequences_most` is a forward of one.
    """

    target: Target
    first: int
    count: int
    dispatch: tuple[Dispatch, ...]
    is_exact: bool
    step_sequences_most: str

    @property
    def capability(self) -> int:
        """The compute capability, as 90."""
        return int(self.target.profile.compute_capability.replace(".", ""))


@dataclass(frozen=True)
class CudaCode:
    """What the template of NAME.c for GPUs reads beside the interface."""

    gpus: tuple[ExportedGpu, ...]
    kernels: tuple[ExportedKernel, ...]
    images: tuple[bytes, ...]
    forms: tuple[tuple[str, ...], ...]
    batches: tuple[int, ...] = BATCHES
    times: tuple[int, ...] = TIMES

    @property
    def slots_most(self) -> int:
        """The most arguments that a kernel has."""
        return max(map(len, self.forms))

    @staticmethod
    def words(image: bytes) -> list[str]:
        """Return a cubin as rows of numbers of 8 bytes, zeros behind its end."""
        padded = image + bytes(-len(image) % 8)
        numbers = [f"0x{int.from_bytes(padded[at : at + 8], 'little'):x}" for at in range(0, len(padded), 8)]
        return [",".join(numbers[at : at + 8]) for at in range(0, len(numbers), 8)]


def why_not_on_gpus(interface: Interface) -> str:
    """Return why a spec cannot be exported for GPUs, as a part of a sentence; nothing where it can."""
    if interface.has_vectors:
        return "its cell has states of n values per channel, whose kernels take inputs that an exported call has not"
    if interface.input_size:
        return "it has an input_size, and the projection is a library's product; leave input_size out and pass pre-activations"
    if interface.recurrent_gates and interface.layout == "BDT":
        return "it is a dense cell in layout BDT, whose channels have gaps; use BTD or TBD"
    return ""


def targets_of(builder: Builder, gpus: Sequence[str]) -> tuple[Target, ...]:
    """Return the GPUs to compile for: profiles by name or path, or the builder's own; raises BadInput for an unknown one."""
    return tuple(map(Target.named, dict.fromkeys(gpus))) or (builder.target,)


def cuda_export(
    name: str, interface: Interface, builder: Builder, targets: Sequence[Target], sizes: Sequence[Sizes], partial: bool
) -> tuple[ExportSource, CudaCode]:
    """Compile the kernels of a spec for each GPU, and return what NAME.c is made of; raises BadInput where there is none.

    With `sizes`, only the kernels that calls of these sizes run; with `partial` something may be left out.
    """
    if reason := why_not_on_gpus(interface):
        raise BadInput(f"export: this spec cannot be exported for cuda, since {reason}; or export for cpu")
    collected = _Collected(interface, [replace(builder, target=target) for target in targets], tuple(sizes))
    left_out = []
    if builder.spec.training:
        left_out.append("gradients cannot be exported for cuda, since a library adds up their sums over the batch")
    is_one_way = len(interface.runs_reversed) == 1
    if not is_one_way:
        left_out.append("a single step of a bidirectional spec cannot be exported, since it runs one way")
    elif not collected.has_step:
        left_out.append("a single step cannot be exported for cuda, since no kernel of its own serves it on every GPU")
    demand_whole(left_out, partial)
    has_step = is_one_way and collected.has_step
    source = ExportSource(name, "cuda", interface, ("forward",), left_out=tuple(left_out), has_step_kernel=has_step)
    return source, collected.code()


class _Collected:
    """The kernels of every GPU, each with its place in the lists of NAME.c."""

    def __init__(self, interface: Interface, builders: Sequence[Builder], sizes: tuple[Sizes, ...]) -> None:
        self._interface, self._builders, self._sizes = interface, builders, sizes
        self._names = ArrayNames(interface.states, interface.parameters)
        self._images: list[bytes] = []
        self._forms: list[tuple[str, ...]] = []

    @cached_property
    def has_step(self) -> bool:
        """Whether every GPU has a kernel for a single step."""
        return all(self._keys(builder, "step", step_specialization(builder)) for builder in self._builders)

    def code(self) -> CudaCode:
        """Compile all."""
        gpus, kernels = [], list[ExportedKernel]()
        for builder in self._builders:
            first, dispatch, numbers = len(kernels), list[Dispatch](), dict[KernelKey, int]()
            for kernel_pass, specialization in self._variants(builder):
                keys = self._keys(builder, kernel_pass, specialization)
                if not keys:
                    raise BadInput(
                        f"export: this spec cannot be exported for {builder.target.profile.name}, since R does not fit the "
                        f"chip and steps one by one need cuBLAS; take fewer units or more heads, or export for cpu"
                    )
                for key in keys:
                    numbers.setdefault(key, first + len(numbers))
                dispatch.append(Dispatch(tuple(numbers[key] for key in keys), self._places(builder, keys)))
            kernels += map(self._kernel, builder.build_all(tuple(numbers)))
            is_exact = any(not kernel.plan.arch[-1].isdigit() for kernel in kernels[first:])
            gpus.append(
                ExportedGpu(builder.target, first, len(numbers), tuple(dispatch), is_exact, self._step_sequences_most(builder))
            )
        return CudaCode(tuple(gpus), tuple(kernels), tuple(self._images), tuple(self._forms))

    def _step_sequences_most(self, builder: Builder) -> str:
        if not self._interface.recurrent_gates:
            return "INT64_MAX"
        return str(step_sequences_max(builder.target.profile, math.prod(self._interface.R_shape)))

    def _variants(self, builder: Builder) -> list[tuple[KernelPass, Specialization]]:
        """Return the passes and specializations in the order in which NAME.c finds them."""
        hinted = self._hinted(builder)
        forwards = product(_VARIANTS, RUNS_REVERSED[builder.spec.direction])
        variants: list[tuple[KernelPass, Specialization]] = [
            ("forward", replace(hinted, reverse=reverse, resets=resets)) for resets, reverse in forwards
        ]
        if len(self._interface.runs_reversed) == 1 and self.has_step:
            variants.append(("step", step_specialization(builder)))
        return variants

    def _hinted(self, builder: Builder) -> Specialization:
        """That of contiguous arrays; where time is the last axis, their alignment changes with it."""
        if self._interface.layout == "BDT":
            reverse = builder.spec.direction == "reverse"
            return Specialization(self._interface.precision.storage_bytes, reverse=reverse)
        return builder.hinted_specialization

    def _keys(self, builder: Builder, kernel_pass: KernelPass, specialization: Specialization) -> tuple[KernelKey, ...]:
        """Return the kernels that serve alone: of a dense cell, those that need no product by a library."""
        kernels = builder.classes(kernel_pass, specialization).sizes.kernels
        keys = [builder.key_of(kernel_pass, specialization, kernel.sizes) for kernel in kernels]
        if self._interface.recurrent_gates:
            strategy = "decode" if kernel_pass == "step" else "persistent"
            keys = [key for key in keys if builder.build(key).plan.strategy == strategy]
        asked = {builder.choose(kernel_pass, specialization, sizes) for sizes in self._sizes}
        return tuple(key for key in dict.fromkeys(keys) if key in asked) or tuple(dict.fromkeys(keys))

    def _places(self, builder: Builder, keys: tuple[KernelKey, ...]) -> tuple[int, ...]:
        """Return which of `keys` serves each place of the grid of sizes, times within batches; nothing where there is one."""
        if len(keys) == 1:
            return ()
        kernel_pass, specialization = keys[0].kernel_pass, keys[0].specialization
        classes = builder.classes(kernel_pass, specialization)
        by_sizes = {builder.key_of(kernel_pass, specialization, kernel.sizes): kernel for kernel in classes.sizes.kernels}
        served = SizeClasses(tuple(by_sizes[key] for key in keys), classes.sizes.predicted_loss)
        places: list[int] = []
        for batch in BATCHES:
            for time in TIMES if kernel_pass == "forward" else TIMES[:1]:
                problem = builder.problem_of(classes.cell, builder.key_of(kernel_pass, specialization, Sizes(batch, time)))
                if time > 1 and batch * time > rows_in_memory(problem):
                    places.append(places[-1])
                    continue
                places.append(served.kernels.index(served.choose(problem)))
        return tuple(places)

    def _kernel(self, built: BuiltKernel) -> ExportedKernel:
        plan = built.plan
        if built.cubin is None:
            raise ToolchainMissing(
                "export: kernels cannot be compiled, since NVRTC is not installed; install its package, or export for cpu"
            )
        if built.cubin not in self._images:
            self._images.append(built.cubin)
        form = expressions(self._interface, signature(plan, self._names))
        if form not in self._forms:
            self._forms.append(form)
        units, per_block, sequences = _grid_of(plan)
        return ExportedKernel(built, self._images.index(built.cubin), self._forms.index(form), units, per_block, sequences)


def _grid_of(plan: KernelPlan) -> tuple[int, int, int]:
    """Return the units of a sequence, how many a block has, and the sequences that share them."""
    if plan.strategy == "persistent":
        return plan.heads, 1, plan.group_sequences
    if plan.strategy == "decode":
        return plan.heads * -(-plan.head_dim // plan.channels_per_block), 1, plan.variables["batch_tile"]
    if plan.kernel_pass == "step":
        return plan.hidden_size, plan.threads, 1
    if plan.layout == "BDT":
        return plan.hidden_size, plan.channels_per_block, 1
    return -(-plan.hidden_size // plan.channels_per_block), 1, 1


def expressions(interface: Interface, parameters: Signature) -> tuple[str, ...]:
    """Return the arguments of a kernel in the order of its signature, as expressions in C."""
    by_source: dict[str, Callable[[Parameter], str]] = {
        "call.x": lambda parameter: _array("x", parameter, "run->x"),
        "outputs.y": lambda parameter: _array("y", parameter, "run->y"),
        "call.R": lambda _: _part("call->R", "direction * (int64_t)RECURRENT_ROWS * HEAD_DIM"),
        "call.bias": lambda _: _part("call->bias", "direction * GATES * HIDDEN"),
        "call.recurrent_bias": lambda _: _recurrent_bias(interface),
        "call.parameters": lambda parameter: _part(f"call->{parameter.name}", "direction * HIDDEN"),
        "call.initial": lambda parameter: _part(f"call->{parameter.name}", "direction * call->batch * HIDDEN"),
        "outputs.final": lambda parameter: _part(f"run->{parameter.name}", "direction * call->batch * HIDDEN"),
        "outputs.kept": lambda _: "0",
        "call.sequences.resets": lambda parameter: _array("resets", parameter, "call->resets"),
        "call.sequences.cu_seqlens": lambda _: "0",
        "call.sequences.lengths": lambda _: "ADDRESS(call->lengths)",
        "call.batch": lambda _: "call->batch",
        "call.time": lambda _: "call->time",
        "launch.workspace": lambda _: "ADDRESS(run->workspace)",
        "launch.first_group": lambda _: "run->first_group",
        "launch.float32_vectors": lambda _: _mask(interface),
    }
    return tuple(_as_bits(by_source[parameter.source](parameter)) for parameter in parameters)


def _as_bits(expression: str) -> str:
    return f"(uint64_t)({expression})"


def _array(name: str, parameter: Parameter, pointer: str) -> str:
    """The address of an array, or its stride along an axis."""
    if parameter.name == name:
        return f"ADDRESS({pointer})"
    axis = next(axis for axis in AXES.values() if parameter.name == f"{name}_{axis}_stride")
    return f"run->{name}_strides.{axis}"


def _part(pointer: str, offset: str) -> str:
    """The address of one direction's part of an array that may be absent."""
    return f"{pointer} ? ADDRESS({pointer} + {offset}) : 0"


def _recurrent_bias(interface: Interface) -> str:
    return _part("call->recurrent_bias", "direction * RECURRENT_ROWS") if interface.takes_recurrent_bias else "0"


def _mask(interface: Interface) -> str:
    """Which vectors are float32, bit by bit: those that are there, unless the arithmetic is float64."""
    if interface.precision.arithmetic_dtype != "float32":
        return "0"
    biases = ["bias", *(["recurrent_bias"] if interface.takes_recurrent_bias else [])]
    first = 2 if interface.recurrent_gates else 1
    bits = [f"(call->{bias} != 0) << {bit}" for bit, bias in enumerate(biases)]
    bits += [f"1 << {bit}" for bit, _ in enumerate(interface.parameters, first)]
    return " | ".join(bits)


def manifest_of(code: CudaCode) -> dict[str, Any]:
    """Return what NAME.json says of the kernels."""
    kernels = [
        {
            "gpu": kernel.plan.gpu,
            "arch": kernel.plan.arch,
            "pass": kernel.plan.kernel_pass,
            "entry": kernel.plan.entry,
            "sizes": [kernel.plan.batch, kernel.plan.time],
            "specialization": vars(kernel.plan.specialization),
            "variables": dict(kernel.plan.variables),
            "shared_bytes": kernel.plan.shared_bytes,
            "digest": kernel.built.digest,
            "cubin_bytes": len(kernel.built.cubin or b""),
        }
        for kernel in code.kernels
    ]
    return {"gpus": [gpu.target.profile.name for gpu in code.gpus], "kernels": kernels}
