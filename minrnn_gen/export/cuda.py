"""Export for GPUs: compiled kernels for several GPUs and size classes, and by which of them a call in C is launched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.nvrtc import compile_source
from minrnn_gen.build.target import Target
from minrnn_gen.call.interface import RUNS_REVERSED, Interface
from minrnn_gen.cell.lowering_steps import LoweredSteps
from minrnn_gen.codegen.render import Gradients, Types, render_gradients
from minrnn_gen.codegen.signature import names_of, signature, suffixes_of
from minrnn_gen.codegen.signature_groups import ArrayNames
from minrnn_gen.errors import BadInput, ToolchainMissing, shown
from minrnn_gen.export.cuda_arguments import expressions
from minrnn_gen.export.cuda_code import CudaCode, Dispatch, ExportedGpu, ExportedKernel
from minrnn_gen.export.source import ExportSource, demand_whole
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization, StatesOut
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes, step_sequences_max
from minrnn_gen.plan.size_classes import BATCHES, TIMES, SizeClasses, rows_in_memory
from minrnn_gen.run.ahead import step_specialization

# Members of a call that an export may go without, and so without their kernels.
OPTIONAL = ("resets", "cu_seqlens", "states")
# Of a pass and its options, where no sizes are asked for: the first lose least in all sizes together; more make files larger.
KERNELS_OF_ALL_SIZES = 8


def targets_of(builder: Builder, gpus: Sequence[str]) -> tuple[Target, ...]:
    """Return the GPUs to compile for: profiles by name or path, or the builder's own; raises BadInput for an unknown one."""
    return tuple(map(Target.named, dict.fromkeys(gpus))) or (builder.target,)


def checked_absent(without: Sequence[str]) -> tuple[str, ...]:
    """Return which members calls go without; raises BadInput for a name that is none of `OPTIONAL`."""
    for name in without:
        if name not in OPTIONAL:
            raise BadInput(f"without has {shown(name)}; allowed: {', '.join(OPTIONAL)}")
    return tuple(name for name in OPTIONAL if name in without)


def cuda_export(
    name: str,
    interface: Interface,
    builder: Builder,
    targets: Sequence[Target],
    sizes: Sequence[Sizes],
    partial: bool,
    without: Sequence[str] = (),
) -> tuple[ExportSource, CudaCode]:
    """Compile the kernels of a spec for each GPU, and return what NAME.c is made of; raises BadInput where there is none.

    With `sizes`, only the kernels that calls of these sizes run; with `partial` something may be left out. Calls go `without`
    some of `OPTIONAL`.
    """
    absent = checked_absent(without)
    collected = _Collected(interface, [replace(builder, target=target) for target in targets], tuple(sizes), absent)
    left_out = []
    is_one_way = len(interface.runs_reversed) == 1
    if not is_one_way:
        left_out.append("a single step of a bidirectional spec cannot be exported, since it runs one way")
    elif not collected.has_step:
        left_out.append("a single step cannot be exported for cuda, since no kernel of its own serves it on every GPU")
    demand_whole(left_out, partial)
    passes: tuple[str, ...] = ("forward", "backward") if collected.has_backward else ("forward",)
    lowered = builder.lowered_backward if collected.has_backward and not interface.has_vectors else None
    code = collected.code()
    source = ExportSource(
        name,
        "cuda",
        interface,
        passes,
        clip=builder.spec.recurrent_gradient_clip,
        kept_states=lowered.needs_saved_states if lowered else (),
        backward_states=lowered.read_states if lowered else (),
        left_out=tuple(left_out),
        has_step_kernel=is_one_way and collected.has_step,
        absent=absent,
        multiplies_steps=code.has_stepwise,
    )
    return source, code


class _Collected:
    """The kernels of every GPU, each with its place in the lists of NAME.c."""

    def __init__(
        self, interface: Interface, builders: Sequence[Builder], sizes: tuple[Sizes, ...], absent: tuple[str, ...]
    ) -> None:
        self._interface, self._builders, self._sizes, self._absent = interface, builders, sizes, absent
        self._images: list[bytes] = []
        self._forms: list[tuple[str, ...]] = []

    @cached_property
    def has_step(self) -> bool:
        """Whether every GPU has a kernel for a single step."""
        return all(self._keys(builder, "step", step_specialization(builder)) for builder in self._builders)

    @property
    def has_backward(self) -> bool:
        """Whether there are gradients."""
        return self._builders[0].spec.training

    def code(self) -> CudaCode:
        """Compile all."""
        gpus, kernels = [], list[ExportedKernel]()
        for builder in self._builders:
            first, dispatch, numbers = len(kernels), list[Dispatch](), dict[KernelKey, int]()
            for kernel_pass, specialization in self._variants(builder):
                keys = self._keys(builder, kernel_pass, specialization)
                new = [key for key in keys if key not in numbers]
                for key, built in zip(new, builder.build_all(new), strict=True):
                    kernel = self._kernel(builder, built)
                    # Many that are chosen apart are compiled to the same, which is loaded once.
                    alike = (at for at, other in enumerate(kernels[first:], first) if other.is_launched_as(kernel))
                    numbers[key] = next(alike, len(kernels))
                    kernels += [kernel] if numbers[key] == len(kernels) else []
                dispatch.append(Dispatch(tuple(numbers[key] for key in keys), self._places(builder, keys)))
            is_exact = any(not kernel.plan.problem.arch[-1].isdigit() for kernel in kernels[first:])
            most = self._step_sequences_most(builder)
            gradients = self._gradients(builder.target) if self.has_backward else None
            steps_forward = any(
                len(kernel.forms) > 1 and kernel.plan.problem.kernel_pass == "forward" for kernel in kernels[first:]
            )
            rest = is_exact, most, gradients, steps_forward
            gpus.append(ExportedGpu(builder.target, first, len(kernels) - first, tuple(dispatch), *rest))
        lowered = self._builders[0].lowered
        output_state = lowered.output_state if isinstance(lowered, LoweredSteps) and self._interface.recurrent_gates else None
        return CudaCode(
            tuple(gpus),
            tuple(kernels),
            tuple(self._images),
            tuple(self._forms),
            self._states_out,
            self._states_out.index(self._saved_states_out) if self.has_backward else 0,
            output_state,
            len(self._packed) > 1,
        )

    def _step_sequences_most(self, builder: Builder) -> str:
        if not self._interface.recurrent_gates:
            return "INT64_MAX"
        return str(step_sequences_max(builder.target.profile, math.prod(self._interface.R_shape)))

    def _variants(self, builder: Builder) -> list[tuple[KernelPass, Specialization]]:
        """Return the passes and specializations in the order in which NAME.c finds them."""
        variants = self._forwards(builder, self._states_out)
        variants += self._backwards(builder) if self.has_backward else []
        if len(self._interface.runs_reversed) == 1 and self.has_step:
            variants.append(("step", step_specialization(builder)))
        return variants

    def _forwards(self, builder: Builder, states_out: Sequence[StatesOut]) -> list[tuple[KernelPass, Specialization]]:
        ways = product(self._packed, self._resets, states_out, RUNS_REVERSED[builder.spec.direction])
        hinted = self._hinted(builder)
        return [
            ("forward", replace(hinted, packed=packed, resets=resets, states_out=states, reverse=reverse))
            for packed, resets, states, reverse in ways
        ]

    def _backwards(self, builder: Builder) -> list[tuple[KernelPass, Specialization]]:
        forwards = self._forwards(builder, ("none",))
        return [("backward", specialization) for _, specialization in forwards]

    @property
    def _packed(self) -> tuple[bool, ...]:
        """Whether sequences are packed: a kernel of a dense cell serves either."""
        has_others = not self._interface.recurrent_gates and self._interface.layout == "BTD"
        return (False, True) if has_others and "cu_seqlens" not in self._absent else (False,)

    @property
    def _resets(self) -> tuple[bool, ...]:
        return (False,) if "resets" in self._absent else (False, True)

    @cached_property
    def _states_out(self) -> tuple[StatesOut, ...]:
        """The types in which a forward writes the states after every step."""
        saved = [self._saved_states_out] if self.has_backward else []
        asked: list[StatesOut] = [] if "states" in self._absent else [self._as_named("arithmetic")]
        return tuple(dict.fromkeys(("none", *saved, *asked)))

    @property
    def _saved_states_out(self) -> StatesOut:
        """That in which a backward reads them: a recurrent product takes outputs as they were before they were rounded."""
        if self._interface.has_vectors or not self._builders[0].lowered_backward.needs_saved_states:
            return "none"
        return self._as_named("arithmetic" if self._interface.recurrent_gates else "storage")

    def _as_named(self, states_out: StatesOut) -> StatesOut:
        """Where nothing is rounded the two are one kernel."""
        precision = self._interface.precision
        is_equal = precision.storage_dtype == precision.arithmetic_dtype and not self._interface.has_vectors
        return "storage" if is_equal else states_out

    def _hinted(self, builder: Builder) -> Specialization:
        """That of contiguous arrays; where time is the last axis, their alignment changes with it."""
        if self._interface.layout == "BDT":
            reverse = builder.spec.direction == "reverse"
            return Specialization(self._interface.precision.storage_bytes, reverse=reverse)
        return builder.hinted_specialization

    def _keys(self, builder: Builder, kernel_pass: KernelPass, specialization: Specialization) -> tuple[KernelKey, ...]:
        """Return the kernels that serve: of a dense cell those with R on the chip, else those that multiply step by step.

        The latter read at run time how they are called: every call has the kernel of contiguous arrays.
        """
        keys = self._served(builder, kernel_pass, specialization, {"persistent", "decode"})
        if keys or kernel_pass == "step":
            return keys
        return self._served(builder, kernel_pass, builder.hinted_specialization, {"stepwise"})

    def _served(
        self, builder: Builder, kernel_pass: KernelPass, specialization: Specialization, strategies: set[str]
    ) -> tuple[KernelKey, ...]:
        classes = builder.classes(kernel_pass, specialization).sizes.kernels
        keys = tuple(dict.fromkeys(builder.key_of(kernel_pass, specialization, kernel.sizes) for kernel in classes))
        asked = {builder.choose(kernel_pass, specialization, sizes) for sizes in self._sizes}

        def serving(wanted: Sequence[KernelKey]) -> tuple[KernelKey, ...]:
            if not self._interface.recurrent_gates:
                return tuple(wanted)
            return tuple(key for key in wanted if builder.build(key).plan.strategy in strategies)

        return serving([key for key in keys if key in asked]) or serving(keys[:KERNELS_OF_ALL_SIZES])

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
            for time in TIMES[:1] if kernel_pass == "step" else TIMES:
                problem = builder.problem_of(classes.cell, builder.key_of(kernel_pass, specialization, Sizes(batch, time)))
                if time > 1 and batch * time > rows_in_memory(problem):
                    places.append(places[-1])
                    continue
                places.append(served.kernels.index(served.choose(problem)))
        return tuple(places)

    def _kernel(self, builder: Builder, built: BuiltKernel) -> ExportedKernel:
        plan = built.plan
        if built.cubin is None:
            raise ToolchainMissing(
                "export: kernels cannot be compiled, since NVRTC is not installed; install its package, or export for cpu"
            )
        interface = self._interface
        with_values = interface.vector_states, interface.vector_parameters, interface.shared
        names = ArrayNames(interface.states, interface.parameters, (), None, *with_values)
        if plan.problem.kernel_pass == "backward" and not interface.has_vectors:
            names = names_of(builder.lowered_backward)
        forms = []
        for suffix in suffixes_of(plan.entry):
            form = expressions(self._interface, signature(plan, names, suffix), builder.spec.recurrent_gradient_clip)
            if form not in self._forms:
                self._forms.append(form)
            forms.append(self._forms.index(form))
        return ExportedKernel(built, self._image(built.cubin), tuple(forms), *_grid_of(plan))

    def _gradients(self, target: Target) -> int:
        """Compile the kernels of gradients outside the recurrence, and return the number of their cubin."""
        profile, precision = target.profile, self._interface.precision
        arch = f"sm_{profile.compute_capability.replace('.', '')}"
        plan = Gradients(Types(arch, precision.storage_dtype, precision.arithmetic_dtype, profile.has_bf16_arithmetic))
        return self._image(compile_source(render_gradients(plan), plan).cubin)

    def _image(self, cubin: bytes) -> int:
        if cubin not in self._images:
            self._images.append(cubin)
        return self._images.index(cubin)


def _grid_of(plan: KernelPlan) -> tuple[int, int, int]:
    """Return the units of a sequence, how many a block has, and the sequences that share them."""
    if plan.family == "vectors":
        if plan.problem.kernel_pass == "step":
            return plan.problem.hidden_size * plan.variables["lanes"], plan.launch.threads, 1
        return plan.launch.partition["blocks_per_sequence"], 1, 1
    if plan.strategy == "persistent":
        return plan.problem.heads, 1, plan.group_sequences
    if plan.strategy == "decode":
        return plan.problem.heads * -(-plan.head_dim // plan.launch.channels_per_block), 1, plan.variables["batch_tile"]
    if plan.problem.kernel_pass == "step" or plan.strategy == "stepwise":
        return plan.problem.hidden_size, plan.launch.threads, 1
    if plan.problem.layout == "BDT":
        return plan.problem.hidden_size, plan.launch.channels_per_block, 1
    return -(-plan.problem.hidden_size // plan.launch.channels_per_block), 1, 1
