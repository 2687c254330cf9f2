"""Export for GPUs: compiled kernels for several GPUs and size classes, and the dispatch of calls in C."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import product, starmap

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.at_once import Watch, made_at_once, unwatched
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.nvrtc import compile_source
from minrnn_gen.build.projected import first_projected
from minrnn_gen.build.target import Target
from minrnn_gen.call.embedding import Embedding
from minrnn_gen.call.interface import RUNS_REVERSED, Interface
from minrnn_gen.codegen.render import Gradients, Types, render_gradients
from minrnn_gen.errors import BadInput, ToolchainMissing, shown
from minrnn_gen.export.calls import PLAIN, ExportedCalls, Variant
from minrnn_gen.export.cuda_code import CudaCode, Dispatch, ExportedGpu, ExportedKernel
from minrnn_gen.export.describe import Backend, Paths
from minrnn_gen.export.emit_c import Functions
from minrnn_gen.export.source import ExportSource, demand_whole, left_out_of
from minrnn_gen.export.widened import widened
from minrnn_gen.plan.kernel_plan import Specialization, StatesOut
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.plan.size_classes import BATCHES, TIMES, SizeClasses, rows_in_memory
from minrnn_gen.run.ahead import step_specialization

# Members of a call that an export may go without, and so without their kernels.
OPTIONAL = ("resets", "cu_seqlens", "states")
# Of a pass and its options, where no sizes are asked for: the first lose least in all sizes together; more make files larger.
KERNELS_OF_ALL_SIZES = 8
ALL_SIZES = sorted(starmap(Sizes, product(BATCHES, TIMES)), key=math.prod)


def targets_of(builder: Builder, gpus: Sequence[str]) -> tuple[Target, ...]:
    """Return the GPUs to compile for: profiles by name or path, or the builder's own; raises BadInput for an unknown one."""
    return tuple(map(Target.named, dict.fromkeys(gpus))) or (builder.target,)


def checked_absent(without: Sequence[str]) -> tuple[str, ...]:
    """Return the members that calls lack; raises BadInput for a name that is not in `OPTIONAL`."""
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
    watch: Watch = unwatched,
    embedding: Embedding | None = None,
) -> tuple[ExportSource, CudaCode]:
    """Compile the kernels of a spec for each GPU, and return the contents of NAME.c; raises BadInput where no kernel serves.

    With `sizes`, only the kernels that calls of these sizes run; with `partial` something may be left out. Calls lack the
    members `without`, some of `OPTIONAL`. `watch(done, of)` is called as kernels are ready. `embedding` maps calls to calls of
    the spec.
    """
    absent = checked_absent(without)
    builders = [replace(builder, target=target) for target in targets]
    collected = _Collected(interface, builders, tuple(sizes), absent, moves=embedding is not None)
    collected.compile(watch)
    left_out = left_out_of(interface)
    demand_whole(left_out, partial)
    passes: tuple[str, ...] = ("forward", "backward") if collected.has_backward else ("forward",)
    lowered = builder.lowered_backward if collected.has_backward and not interface.has_vectors else None
    source = ExportSource(
        name,
        "cuda",
        interface,
        passes,
        kept_states=lowered.needs_saved_states if lowered else (),
        left_out=left_out,
        absent=absent,
        takes_logarithms=builder.spec.scan_arithmetic == "log",
        projected_at=collected.projected_at,
    )
    code = collected.code(source)
    return widened(replace(source, multiplies_steps=code.has_stepwise), name, embedding), code


class _Collected:
    """The kernels of every GPU, each with its place in the lists of NAME.c."""

    def __init__(
        self,
        interface: Interface,
        builders: Sequence[Builder],
        sizes: tuple[Sizes, ...],
        absent: tuple[str, ...],
        moves: bool,
    ) -> None:
        self._interface, self._builders, self._sizes, self._absent = interface, builders, sizes, absent
        self._moves, self._has_steps = moves, len(interface.runs_reversed) == 1
        self._images: list[bytes] = []
        self._kernels: list[ExportedKernel] = []
        self._built: dict[str, BuiltKernel] = {}
        self._chosen: dict[tuple[int, KernelPass, Specialization], list[KernelKey]] = {}
        self._cubins_of_gradients: dict[Gradients, bytes] = {}

    def compile(self, watch: Watch) -> None:
        """Compile in parallel the kernels that calls of every variant are expected to run, on every GPU."""
        made_at_once(lambda make: make(), self._expected(), watch)

    def _expected(self) -> Iterator[Callable[[], object]]:
        """Yield a function that compiles a kernel, for each expected kernel; backwards take the longest and come first."""
        requests = set[str]()
        variants = self._variants()
        variants.sort(key=lambda variant: variant.kernel_pass != "backward")
        for builder in self._builders:
            if self._has_others:
                yield partial(self._expect_gradients, builder.target)
            yield partial(self._projecting, builder)
            for variant in variants:
                for key in dict.fromkeys(self._expected_keys(builder, variant)):
                    if (request := builder.request_key(key)) not in requests:
                        requests.add(request)
                        yield partial(self._kernel, builder, key)

    def _expected_keys(self, builder: Builder, variant: Variant) -> Iterator[KernelKey]:
        # Which candidates of dense cells serve is known when they are compiled.
        expected = self._candidates if self._interface.recurrent_gates else self._at_places
        for kernel_pass, specialization in self._launched(builder, variant):
            yield from expected(builder, kernel_pass, specialization)

    def _expect_gradients(self, target: Target) -> None:
        with suppress(ToolchainMissing):  # which is said of the kernels
            self._cubin_of_gradients(target)

    def _kernel(self, builder: Builder, key: KernelKey) -> BuiltKernel:
        request = builder.request_key(key)
        if request not in self._built:
            self._built[request] = builder.build(key)
        return self._built[request]

    @property
    def has_backward(self) -> bool:
        """Whether there are gradients."""
        return self._builders[0].spec.training

    @property
    def _has_others(self) -> bool:
        """Whether there are kernels outside the recurrence."""
        return self.has_backward or self._moves or self._has_steps

    def code(self, source: ExportSource) -> CudaCode:
        """Compile the remaining kernels, and print the calls that run all of them."""
        variants = self._variants()
        described: list[list[Paths]] = [[] for _ in variants]
        gpus = [self._gpu(builder, source, variants, described) for builder in self._builders]
        functions, programs = Functions(source), dict[tuple[int, tuple[int, ...]], int]()
        numbers = [
            [programs.setdefault(function, len(programs)) for function in functions.serving(of_variant)]
            for of_variant in described
        ]
        for gpu in gpus:
            gpu.dispatch[:] = [
                replace(entry, programs=tuple(of_variant[at] for at in entry.programs))
                for entry, of_variant in zip(gpu.dispatch, numbers, strict=True)
            ]
        output_state = getattr(self._builders[0].lowered, "output_state", None) if self._interface.recurrent_gates else None
        return CudaCode(
            tuple(gpus),
            tuple(self._kernels),
            tuple(self._images),
            tuple(programs),
            functions,
            self._states_out,
            self._states_out.index(self._saved_states_out) if self.has_backward else 0,
            output_state,
            len(self._packed) > 1,
            self._moves,
            self._has_steps,
        )

    def _gpu(
        self, builder: Builder, source: ExportSource, variants: Sequence[Variant], described: Sequence[list[Paths]]
    ) -> ExportedGpu:
        """Compile the kernels of a GPU, and append the calls that run them to each variant's."""
        first, numbers, dispatch = len(self._kernels), dict[KernelKey, int](), list[Dispatch]()
        for variant, programs in zip(variants, described, strict=True):
            by_place = self._by_place(builder, variant)
            chosen = list(dict.fromkeys(by_place))
            self._build(builder, [key for keys in chosen for key in keys], first, numbers)
            places = tuple(map(chosen.index, by_place)) if len(chosen) > 1 else ()
            kernels = tuple(tuple(numbers[key] for key in keys) for keys in chosen)
            dispatch.append(Dispatch(tuple(range(len(programs), len(programs) + len(chosen))), kernels, places))
            backends = [Backend(source, builder, keys, numbers) for keys in chosen]
            programs += [ExportedCalls(backend, self._saved_states_out).of(variant) for backend in backends]
        own = self._kernels[first:]
        return ExportedGpu(
            builder.target,
            first,
            len(own),
            dispatch,
            is_exact=any(not kernel.plan.problem.arch[-1].isdigit() for kernel in own),
            gradients=self._gradients(builder.target) if self._has_others else None,
            needs_cublas=any(kernel.is_stepwise and kernel.plan.problem.kernel_pass == "forward" for kernel in own),
        )

    def _build(self, builder: Builder, keys: Sequence[KernelKey], first: int, numbers: dict[KernelKey, int]) -> None:
        """Compile kernels, and number them: many separate choices compile to the same cubin, which is loaded once."""
        for key in dict.fromkeys(keys):
            if key in numbers:
                continue
            built = self._kernel(builder, key)
            if built.cubin is None:
                raise ToolchainMissing(
                    "export: kernels cannot be compiled, since NVRTC is not installed; install its package, or export for cpu"
                )
            image = self._image(built.cubin)
            alike = (at for at, other in enumerate(self._kernels[first:], first) if other.image == image)
            numbers[key] = next(alike, len(self._kernels))
            self._kernels += [ExportedKernel(built, image)] if numbers[key] == len(self._kernels) else []

    def _variants(self) -> list[Variant]:
        """Return the variants of calls in the order in which NAME.c finds them."""
        forwards = product(self._packed, self._resets, self._states_out)
        variants = [Variant("forward", *choices) for choices in forwards]
        if self.has_backward:
            variants += [Variant("backward", *choices) for choices in product(self._packed, self._resets)]
        if self._has_steps:
            variants.append(Variant("step"))
        return variants

    def _by_place(self, builder: Builder, variant: Variant) -> list[tuple[KernelKey, ...]]:
        """Return the kernels of a variant, for each place of the grid of sizes."""
        specializations = self._specializations(builder, variant)
        if variant.kernel_pass == "step":
            if not self._interface.recurrent_gates:
                return [(key,) for key in self._at_places(builder, "step", specializations[False])]
            # More sequences than a step's kernels take run as a forward of one step, as does a cell without such kernels.
            forwards = self._by_place(builder, Variant("forward"))[:: len(TIMES)]
            if not self._keys(builder, "step", specializations[False]):
                return forwards
            steps = self._at_places(builder, "step", specializations[False])
            return [(key, *forward) for key, forward in zip(steps, forwards, strict=True)]
        runs = [self._at_places(builder, *launched) for launched in self._launched(builder, variant)]
        projecting = self._projecting(builder) if variant == PLAIN else []
        return list(zip(*runs, *([projecting] if projecting else []), strict=True))

    def _projecting(self, builder: Builder) -> list[KernelKey]:
        """Return the kernels of each place that project x and scan in one launch; none where two launches are always faster."""
        first = first_projected(builder, self._sizes or ALL_SIZES)
        return self._at_places(builder, "forward", first[1]) if first else []

    @property
    def projected_at(self) -> Sizes | None:
        """The fewest steps of all sequences at which the kernel of a GPU multiplies x itself; None where none does."""
        firsts = (first_projected(builder, ALL_SIZES) for builder in self._builders if self._projecting(builder))
        return next((first[0] for first in firsts if first), None)

    def _launched(self, builder: Builder, variant: Variant) -> Iterator[tuple[KernelPass, Specialization]]:
        """Yield the pass and the specialization of each run of a variant; a backward ends with the pass "arguments"."""
        for specialization in self._specializations(builder, variant).values():
            yield variant.kernel_pass, specialization
        if variant.kernel_pass == "backward" and builder.cell_shape.makes_again:
            yield "arguments", builder.hinted_specialization

    def _specializations(self, builder: Builder, variant: Variant) -> dict[bool, Specialization]:
        """Return the specialization of each run of a variant, by whether it is in reverse."""
        if variant.kernel_pass == "step":
            return {False: step_specialization(builder)}
        hinted, names = self._hinted(builder), variant._asdict()
        del names["kernel_pass"]
        return {reverse: replace(hinted, **names, reverse=reverse) for reverse in RUNS_REVERSED[builder.spec.direction]}

    def _at_places(self, builder: Builder, kernel_pass: KernelPass, specialization: Specialization) -> list[KernelKey]:
        asked = (id(builder), kernel_pass, specialization)
        if asked not in self._chosen:
            keys = self._keys(builder, kernel_pass, specialization)
            places = self._places(builder, keys) or (0,) * (len(BATCHES) * (1 if kernel_pass == "step" else len(TIMES)))
            self._chosen[asked] = [keys[place] for place in places]
        return self._chosen[asked]

    @property
    def _packed(self) -> tuple[bool, ...]:
        """The variants of packing: a dense cell's kernel serves packed sequences and others."""
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
        """Dtype of the saved states that a backward reads: a recurrent product takes outputs before they were rounded."""
        if self._interface.has_vectors or not self._builders[0].lowered_backward.needs_saved_states:
            return "none"
        return self._as_named("arithmetic" if self._interface.recurrent_gates else "storage")

    def _as_named(self, states_out: StatesOut) -> StatesOut:
        """Return one name for both types where nothing is rounded: they are one kernel."""
        precision = self._interface.precision
        is_equal = precision.storage_dtype == precision.arithmetic_dtype and not self._interface.has_vectors
        return "storage" if is_equal else states_out

    def _hinted(self, builder: Builder) -> Specialization:
        """Specialization of contiguous arrays; where time is the last axis, their alignment changes with it."""
        if self._interface.layout == "BDT":
            reverse = builder.spec.direction == "reverse"
            return Specialization(self._interface.precision.storage_bytes, reverse=reverse)
        return builder.hinted_specialization

    def _keys(self, builder: Builder, kernel_pass: KernelPass, specialization: Specialization) -> tuple[KernelKey, ...]:
        """Return the serving kernels: for a dense cell, kernels with R on the chip and kernels that multiply step by step.

        Stepwise kernels read strides at run time, so those of contiguous arrays serve every call where no other kernel does.
        """
        if kernel_pass == "arguments":
            return self._served(builder, kernel_pass, specialization, {"elementwise"})
        on_chip = {"persistent", "decode"}
        if kernel_pass == "step":
            return self._served(builder, kernel_pass, specialization, on_chip)
        keys = self._served(builder, kernel_pass, specialization, {*on_chip, "stepwise"})
        dense = bool(self._interface.recurrent_gates)
        if dense and not any(self._kernel(builder, key).plan.strategy in on_chip for key in keys):
            return self._served(builder, kernel_pass, builder.hinted_specialization, {"stepwise"})
        return keys

    def _served(
        self, builder: Builder, kernel_pass: KernelPass, specialization: Specialization, strategies: set[str]
    ) -> tuple[KernelKey, ...]:
        def serving(wanted: Sequence[KernelKey]) -> tuple[KernelKey, ...]:
            if not self._interface.recurrent_gates:
                return tuple(wanted)
            return tuple(key for key in wanted if self._kernel(builder, key).plan.strategy in strategies)

        candidates = self._candidates(builder, kernel_pass, specialization)
        first = self._keys_of_classes(builder, kernel_pass, specialization)[:KERNELS_OF_ALL_SIZES]
        return serving(candidates) or serving(first)

    def _candidates(self, builder: Builder, kernel_pass: KernelPass, specialization: Specialization) -> tuple[KernelKey, ...]:
        """Return the kernels of the requested sizes, else the first of all sizes, whether or not they serve."""
        asked = dict.fromkeys(builder.choose(kernel_pass, specialization, sizes) for sizes in self._sizes)
        keys = self._keys_of_classes(builder, kernel_pass, specialization)
        return tuple(key for key in keys if key in asked) or keys[:KERNELS_OF_ALL_SIZES]

    def _keys_of_classes(
        self, builder: Builder, kernel_pass: KernelPass, specialization: Specialization
    ) -> tuple[KernelKey, ...]:
        kernels = builder.classes(kernel_pass, specialization).sizes.kernels
        return tuple(dict.fromkeys(builder.key_of(kernel_pass, specialization, kernel.sizes) for kernel in kernels))

    def _places(self, builder: Builder, keys: tuple[KernelKey, ...]) -> tuple[int, ...]:
        """Return, for each place of the grid of sizes, times within batches, the index of its key; nothing for a single key."""
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

    def _gradients(self, target: Target) -> int:
        """Return the number of the cubin with the kernels of gradients outside the recurrence."""
        return self._image(self._cubin_of_gradients(target))

    def _cubin_of_gradients(self, target: Target) -> bytes:
        profile, precision = target.profile, self._interface.precision
        arch = f"sm_{profile.compute_capability.replace('.', '')}"
        types = Types(arch, precision.storage_dtype, precision.arithmetic_dtype, profile.has_bf16_arithmetic)
        plan = Gradients(types, moves=self._moves, slots=self._has_steps)
        if plan not in self._cubins_of_gradients:
            self._cubins_of_gradients[plan] = compile_source(render_gradients(plan), plan).cubin
        return self._cubins_of_gradients[plan]

    def _image(self, cubin: bytes) -> int:
        if cubin not in self._images:
            self._images.append(cubin)
        return self._images.index(cubin)
