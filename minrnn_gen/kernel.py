"""Kernel: the callable that `compile` returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, Unpack

from minrnn_gen.build.altered_cells import AlteredRecipe, altered_recipe
from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.at_once import Watch, unwatched
from minrnn_gen.build.builder import Builder, builder_of
from minrnn_gen.build.embedded import builder_of_kernels, embedded_builder
from minrnn_gen.build.explain import explain
from minrnn_gen.build.nvrtc import KernelResources
from minrnn_gen.build.overview import overview
from minrnn_gen.build.recipe import recipe_of, spec_from
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.joined import joined
from minrnn_gen.call.keywords import CallArrays, call_arguments, shows_call
from minrnn_gen.call.pool import PAD_SLOT
from minrnn_gen.call.pool_checks import pool_arguments
from minrnn_gen.call.sequences import as_marks
from minrnn_gen.config.spec import Spec
from minrnn_gen.errors import BadInput, kind_of
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import KernelKey
from minrnn_gen.plan.summary import html_table
from minrnn_gen.run.ahead import build_ahead, build_plain, prepare, sizes_from
from minrnn_gen.run.altered import Alteration, AlteredSaved, as_of_channels
from minrnn_gen.run.backend import Backend
from minrnn_gen.run.cuda import CudaBackend
from minrnn_gen.run.derivatives import Derivatives
from minrnn_gen.run.embedded import EmbeddedExecutor
from minrnn_gen.run.executor import Executor
from minrnn_gen.run.folded import folded_by, folded_in_words
from minrnn_gen.run.interface import interface_of
from minrnn_gen.run.kernels import CompiledKernels
from minrnn_gen.run.saved import Saved
from minrnn_gen.run.steps import AnyArray, State, Steps
from minrnn_gen.run.target import NamedProfile, profile_named_by, target_again

if TYPE_CHECKING:
    from minrnn_gen.build.tuned_choice import Preferred
    from minrnn_gen.export.folder import Exported


def _from_recipe(recipe: str, profile: NamedProfile, preferred: Callable[[], Preferred] | None) -> Kernel:
    """Return the kernel of a recipe for the GPU of a profile, or without one for the local GPU."""
    spec = spec_from(recipe)
    return Kernel(builder_of(spec, target_again(spec, profile), preferred))


class Kernel(Derivatives, Steps):
    """A specialised recurrent kernel. `recipe` is its spec as self-contained text.

    A pickle of a kernel is its recipe, and the profile of a GPU that its spec names. Copies are the kernel itself.

    Valid for every batch and time. CUDA arrays (CuPy, torch, or anything with DLPack) run the compiled kernel on the caller's
    current stream, without synchronising (except to check values of `lengths` and `cu_seqlens` there); host arrays run native
    code, or NumPy. Results come in the caller's library. Thread-safe. A pass has a few kernels, and the sizes of a call choose
    one (docs/kernels/plan.md). The first call that needs a kernel, by its sizes or its specialization (alignment, resets, all
    states), compiles it. The first call of a form is checked and prepared; later ones are launched at once.
    """

    def __init__(self, builder: Builder, built: tuple[BuiltKernel, ...] = (), backend: Backend | None = None) -> None:
        """Serve the spec of `builder` with the kernels `built` so far; `backend` is by default a GPU's.

        The first of these is the forward of the typical sizes; if it is missing, the first call builds it.
        """
        self._builder = builder
        self._built = built
        embedded = embedded_builder(builder)
        self.embedded = None if embedded is None else Kernel(embedded[0], built, backend)
        self._interface = interface_of(builder, built[0].cell if built and not embedded else builder.cell_shape)
        self.folded = None if embedded is None else folded_by(builder, self._interface, Kernel)
        self.executor: Executor
        if embedded is None or self.embedded is None:
            self.executor = Executor(self._interface, builder, backend or CudaBackend(CompiledKernels(builder, built)))
        else:
            self.executor = EmbeddedExecutor(self._interface, builder, self.embedded.executor, embedded[1])
        self.recipe = recipe_of(builder.spec, builder.cell_source)
        self._others: dict[str, Kernel] = {}

    @property
    def builder(self) -> Builder:
        """Builder of its kernels."""
        return self._builder

    @cached_property
    def _hinted(self) -> BuiltKernel:
        return self._built[0] if self._built else build_plain(self._compiled, "forward")

    @property
    def _compiled(self) -> Builder:
        """Builder of the compiled kernels: the builder of `embedded`, if any."""
        return self._builder if self.embedded is None else self.embedded.builder

    @property
    def spec(self) -> Spec:
        """The spec this kernel was compiled from."""
        return self._builder.spec

    @property
    def interface(self) -> Interface:
        """Interface of a call: sizes, names, and the shapes that follow from them."""
        return self._interface

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates of x, in the order of its gate axis."""
        return self._interface.gates

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the states, the output's first."""
        return self._interface.states

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the learned vectors that a call needs, each [H], or [H, n]."""
        return self._interface.parameters

    @property
    def shared(self) -> tuple[str, ...]:
        """The names of the inputs S.* that a call needs, which all channels of a group share."""
        return self._interface.shared

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs X.* that a call needs, each with one value per channel and step."""
        return self._interface.inputs

    @property
    def plan(self) -> KernelPlan:
        """The plan of the forward kernel for the hinted specialization."""
        return self._hinted.plan

    @property
    def plans(self) -> Mapping[KernelKey, KernelPlan]:
        """Every plan so far, by pass, specialization and the sizes that it is planned for."""
        return {key: built.plan for key, built in self.executor.backend.built.items()}

    @property
    def source(self) -> str:
        """The CUDA text of the forward kernel for the hinted specialization."""
        return self._hinted.source

    @property
    def resources(self) -> tuple[KernelResources, ...] | None:
        """The compiler's report on the kernel; None where NVRTC is not installed."""
        return self._hinted.resources

    @property
    def built(self) -> tuple[BuiltKernel, ...]:
        """Every kernel built so far, the hinted forward first."""
        return tuple(self.executor.backend.built.values())

    def explain(self, draft: int = 0) -> str:
        """Return the decision in words: resources, memory map, slack of constraints, runners-up, rejected, others.

        Further lines describe directions that run concurrently, and how a cache with a `draft` takes steps back.
        """
        text = explain(self._hinted, memory_bytes=self._builder.target.profile.memory_bytes)
        beside = (self.embedded or self).executor.gpu.directions_beside("forward", self._builder.hinted_sizes)
        before = (self.executor.draft_plan(draft).in_words if draft else "", beside.in_words if beside else "")
        return "\n\n".join(filter(None, (*before, text, folded_in_words(self._builder))))

    def prepare(
        self,
        sizes: Iterable[Sequence[int]],
        watch: Watch = unwatched,
        *,
        resets: bool = False,
        reset_states: bool = False,
        holds: bool = False,
        slots: bool = False,
    ) -> None:
        """Compile ahead, in parallel, the kernels of calls of these sizes: pairs (batch, time), with contiguous arrays.

        These are a forward, a step, and where the spec says `training` the forward that saves for a backward, and the backward;
        with `resets`, `reset_states` or `holds`, the kernels of calls that have them; with `slots`, also steps and drafts on
        slots. Calls with all states compile their kernels on first use. `watch(done, of)` is called as kernels are ready.
        Raises BadInput for other sizes, and what `compile` raises.
        """
        if reset_states or holds:
            self.altered(reset_states, holds)[0].prepare(sizes, watch, resets=resets or reset_states, slots=slots)
        elif self.embedded is not None:
            self.embedded.prepare(sizes := tuple(sizes), watch, resets=resets, slots=slots)
            if self.folded:
                self.folded[0].prepare(sizes, watch, resets=resets)
        else:
            prepare(self._builder, self.executor.backend, self.executor.gpu, sizes_from(sizes), watch, resets, slots)

    def export(
        self,
        folder: str | os.PathLike[str],
        *,
        target: str = "cpu",
        name: str | None = None,
        partial: bool = False,
        gpus: Sequence[str] = (),
        sizes: Iterable[Sequence[int]] = (),
        without: Sequence[str] = (),
        reset_states: bool = False,
        holds: bool = False,
        watch: Watch = unwatched,
    ) -> Exported:
        """Write the kernel as C sources that need neither Python nor headers of CUDA, and return what was written.

        In `folder`: rnn_NAME.h and rnn_NAME.c, the interface and the code; check.c, which repeats recorded calls;
        CMakeLists.txt; and rnn_NAME.json, their source. Names in C begin with rnn_NAME too, or with NAME where it begins with
        rnn_. NAME is by default the model's. For the target "cuda", `gpus` are profiles by name or path (by default this
        kernel's), and `sizes`, pairs (batch, time), limit what is compiled. Calls of an export `without` "resets", "cu_seqlens"
        or "states" (after every step) have none. With `reset_states` or `holds` calls have these, as inputs X.*. As kernels are
        ready, `watch(done, of)` is called. Raises BadInput where a part of the spec cannot be exported; with `partial` the rest
        is written, and the result's `left_out` names the missing parts.
        """
        from minrnn_gen.export.folder import export

        kernel = self.altered(reset_states, holds)[0] if reset_states or holds else self
        if kernel.embedded is not None and not kernel.interface.products:
            kernel = kernel.embedded
        return export(kernel.builder, kernel.executor, folder, target, name, partial, gpus, sizes, without, watch)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return self  # callers cannot change a kernel

    def __reduce__(self) -> tuple[Any, ...]:
        # Code is compiled again, or comes from the cache there: a pickle holds only text.
        return _from_recipe, (self.recipe, profile_named_by(self._builder.target), self._builder.preferred)

    def __repr__(self) -> str:
        spec = self.spec
        model, gpu = self._builder.cell_source.name, self._builder.target.profile.name
        return f"Kernel({model}, hidden_size={spec.hidden_size}, precision={spec.precision}, gpu={gpu})"

    def _repr_html_(self) -> str | None:
        known = overview(self.plan, self._hinted.cell, self._builder.target.profile.memory_bytes)
        return html_table({**dict(self.plan.summary), **dict(known)}.items())

    @shows_call
    def __call__(
        self,
        x: AnyArray,
        R: Any = None,
        *,
        all_states: bool = False,
        slots: Any = None,
        into_slots: Any = None,
        has_state: Any = None,
        pad_slot: int = PAD_SLOT,
        **arrays: Unpack[CallArrays],
    ) -> tuple[AnyArray, State]:
        """Run over time and return (y, final state).

        x: pre-activations [B, T, G, H] (TBD: [T, B, G, H]; BDT: [B, G, H, T]), or with input_size [B, T, I] and weight
        [G * H, I]; storage dtype. bias [G, H] and parameters {name: [H]}: storage dtype or float32. state {name: [B, H]}:
        float32 (float64 for fp64), zeros where None. y [B, T, H] (TBD: [T, B, H]; BDT: [B, H, T]) in the storage dtype.

        Dense cells with gates R.g only: R [Gr, N, D, D] (gate, head, out, in; H = N * D) in the storage dtype, and, where the
        spec or the cell has a recurrent bias, recurrent_bias [Gr, N, D] in the storage dtype or float32, zeros where None; also
        the same memory as [Gr * H, D] and [Gr * H].

        Cells with the axis n only: shared {name: [B, T, groups, n]} (TBD: [T, B, groups, n]; BDT: [B, groups, n, T]), the
        inputs S.*, storage dtype; parameters and states that the cell lists with n are [H, n] and [B, H, n].

        Cells with inputs X.* only: inputs {name: [B, T, H]}, contiguous in the layout of y (TBD: [T, B, H]; BDT: [B, H, T]),
        storage dtype. No weight multiplies them, and no bias is added.

        resets: bool [B, T] in every layout, or numbers 0 and 1; all states are set to 0 before such a step.
        reset_states {name: [B, H] or [H]}, of all states: set there instead of 0; float32 (float64 for fp64) or the storage
        dtype, to which they are rounded. holds: bool [B, T], or numbers 0 and 1; such a step leaves all states as they are,
        after a reset. The first call with either compiles a kernel of its own.
        lengths: int32 or int64 [B]; y is 0 beyond them. cu_seqlens: int32 or int64 [S + 1], in layout BTD without lengths;
        sequence s is steps cu_seqlens[s] to cu_seqlens[s + 1] of x [1, total, ...], and states are [S, H]. all_states: instead
        of the final state, the states after every step, each shaped like y, with n after the channels where it has the axis.

        direction reverse: time runs from the last step of each sequence to its first, and y stays at its own step.
        bidirectional: x [B, T, 2, G, H] (BDT: [B, 2, G, H, T]), weight [2 * G * H, I], bias [2, G, H], R [2, Gr, N, D, D],
        recurrent_bias [2, Gr, N, D], parameters [2, H], states [2, B, H], reset_states [2, B, H] or [2, H],
        shared [B, T, 2, groups, n], inputs [B, T, 2, H], forward first, and y [B, T, 2 * H], forward before reverse.

        slots, into_slots, pad_slot: as of `step`, of each sequence; states are read before the first step, zeros where
        has_state, bool [B], is False, and the final ones are written. Lengths and cu_seqlens on a GPU are then not read back.

        Raises BadInput for an array that does not fit.
        """
        returns_all = _flag(all_states, "all_states")
        pool = pool_arguments(slots, into_slots, pad_slot, has_state)
        kernel, arguments, _ = self._of_call(x, R, arrays)
        if pool is not None:
            return self._on_pool(kernel.executor, arguments, pool, returns_all)
        result, _ = kernel.executor.forward(arguments, returns_all, saves=False)
        return result.y, self._named(result.states if returns_all else result.final)

    @shows_call
    def forward(
        self,
        x: AnyArray,
        R: Any = None,
        *,
        all_states: bool = False,
        **arrays: Unpack[CallArrays],
    ) -> tuple[AnyArray, State, Saved | AlteredSaved]:
        """Run over time like a call and return (y, final state, saved); `backward` takes `saved`.

        `saved` holds the arrays themselves, no copies: they must not change before the last backward. Raises what a call does,
        and BadInput where the spec says `training: false`.
        """
        if not self.spec.training:
            raise BadInput("the spec says training: false; compile with training: true for gradients, or call the kernel")
        returns_all = _flag(all_states, "all_states")
        kernel, arguments, altered = self._of_call(x, R, arrays)
        result, forward = kernel.executor.forward(arguments, returns_all, saves=True)
        final, saved = result.states if returns_all else result.final, Saved(kernel.executor, result, forward)
        return result.y, self._named(final), saved if altered is None else AlteredSaved(saved, altered)

    def backward(self, saved: Saved | AlteredSaved, dy: Any, dstate: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the gradients of sum(dy * y) + sum(dstate * final state).

        dy: like y; ignored beyond a length. dstate {name: [B, H]}: the dtype of the state, zeros where None or absent; of the
        final states even with `all_states`. The result has "x", "state" {name: [B, H]}, and where they were given "R",
        "weight", "bias", "recurrent_bias", "parameters" {name: [H]}, "shared", "inputs" and "reset_states", each of the shape
        (of R and recurrent_bias: the longer one) and dtype of its array; sums over batch and time are accumulated in float32
        (float64 for fp64) or wider. Raises BadInput for arrays that do not fit and for a `saved` that is released or another
        kernel's.
        """
        if isinstance(saved, AlteredSaved):
            if isinstance(self.executor, EmbeddedExecutor) and self.embedded is not None:
                return self.executor.embedding.gradients(self.embedded.backward(saved, dy, dstate))
            alteration = saved.alteration
            executor = self.altered(bool(alteration.states), alteration.recipe.hold is not None)[0].executor
            return alteration.gradients(executor.backward(saved.saved.open_for(executor), dy, dstate))
        return self.executor.backward(saved.open_for(self.executor), dy, dstate)

    @shows_call
    def reference(
        self,
        x: Any,
        R: Any = None,
        *,
        all_states: bool = False,
        **arrays: Unpack[CallArrays],
    ) -> tuple[Any, dict[str, Any]]:
        """Run the same equations sequentially in float64 on host arrays and return NumPy (y, final state), unrounded.

        Takes the arrays of a call in the same dtypes; all errors in this package are measured against it. Raises BadInput for
        arrays on a GPU.
        """
        returns_all = _flag(all_states, "all_states")
        kernel, arguments, _ = self._of_call(x, R, arrays)
        result = kernel.executor.reference(arguments, returns_all)
        return result.y, self._named(result.states if returns_all else result.final)

    def altered(self, begins: bool, holds: bool) -> tuple[Kernel, AlteredRecipe]:
        """Return the kernel of calls with reset states (`begins`), holds, or both, and its recipe.

        Raises BadInput for a spec that supports neither.
        """
        recipe = altered_recipe(self.recipe, begins, holds)
        return self.of_recipe(recipe.recipe), recipe

    def of_recipe(self, recipe: str) -> Kernel:
        """Return the kernel of another recipe, which runs where this kernel does; the same object every time."""
        made = self._others.get(recipe) or Kernel(builder_of(spec_from(recipe), self._builder.target, self._builder.preferred))
        return self._others.setdefault(recipe, made)

    def _of_call(self, x: Any, R: Any, arrays: CallArrays) -> tuple[Kernel, CallArguments, Alteration | None]:
        """Return the kernel that runs a call, its arguments, and the reset states and holds of the call, if any."""
        reset_states, holds = arrays.pop("reset_states", None), arrays.pop("holds", None)
        if "resets" in arrays:
            arrays["resets"] = as_marks(arrays["resets"])
        arguments = joined(self._interface, call_arguments(x, R, arrays))
        if reset_states is None and holds is None:
            return self, arguments, None
        if self.embedded is not None and not self._interface.products:
            return self.embedded._of_call(*as_of_channels(self._interface, arguments, reset_states, holds))
        kernel, recipe = self.altered(reset_states is not None, holds is not None)
        alteration = Alteration.of(self._interface, recipe, arguments, reset_states, holds)
        return kernel, arguments._replace(inputs=alteration.added_to(arguments.inputs)), alteration

    def _named(self, states: tuple[Any, ...]) -> State:
        return dict(zip(self._interface.states, states, strict=True))


def kernel_from(builder: Builder) -> Kernel:
    """Compile the spec of `builder`: the kernels of plain calls, ahead of the first one."""
    return Kernel(builder, build_ahead(builder_of_kernels(builder)))


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"{name} is {kind_of(value)}; True or False is expected")
    return value
