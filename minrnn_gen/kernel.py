"""Kernel: the callable that `compile` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.explain import explain
from minrnn_gen.build.nvrtc import KernelResources
from minrnn_gen.build.recipe import recipe_of
from minrnn_gen.call.arguments import Call, Given, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.gradients import gradients_by_name
from minrnn_gen.call.interface import Contract
from minrnn_gen.call.key import Reading, read
from minrnn_gen.call.validate import check_call, check_gradient, check_place, check_plain
from minrnn_gen.config.spec import Spec
from minrnn_gen.errors import BadInput
from minrnn_gen.gpu import memory
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization, StatesOut
from minrnn_gen.precision import precision_of
from minrnn_gen.run.dense import DenseRun
from minrnn_gen.run.replay import Played
from minrnn_gen.run.saved import Forward, Saved, played_again
from minrnn_gen.run.scan import DeviceRun
from minrnn_gen.run.slots import numbered_call, numbered_gradient, read_call, read_gradient

if TYPE_CHECKING:  # NumPy is imported only where a host array comes in
    from minrnn_gen.run.cpu import CpuRun

State = dict[str, Any]


class Kernel:
    """A specialised recurrent kernel. `recipe` is its spec as text that stands by itself.

    Valid for every batch and time. CUDA arrays (CuPy, torch, or anything with DLPack) run the compiled kernel on the caller's
    current stream, without synchronising (but to check the values of `lengths` and `cu_seqlens` that are there); host arrays
    run the same equations in NumPy. Results come in the caller's library. Thread-safe; the first call in another specialization
    (alignment of the arrays, with resets, with all states), and the first step of a dense cell, compile once more. The first
    call with CUDA arrays of other shapes, strides or dtypes is checked and prepared; every later one is launched at once.
    """

    def __init__(self, builder: Builder, built: tuple[BuiltKernel, ...]) -> None:
        """Serve the spec of `builder` with what it built, the hinted forward first."""
        self._builder = builder
        self._hinted = built[0]
        spec = builder.spec
        cell = self._hinted.cell
        self._contract = Contract(
            layout=spec.layout,
            precision=precision_of(spec.precision),
            hidden_size=spec.hidden_size,
            input_size=spec.input_size,
            gates=cell.gates,
            states=cell.states,
            parameters=cell.parameters,
            direction=spec.direction,
            recurrent_gates=cell.recurrent_gates,
            heads=spec.heads,
            takes_recurrent_bias=builder.takes_recurrent_bias,
        )
        run = DenseRun if cell.kind == "dense" else DeviceRun
        self._on_device = run(self._contract, builder, built)
        self.recipe = recipe_of(spec, builder.cell_source)

    @cached_property
    def _on_host(self) -> CpuRun:
        from minrnn_gen.run.cpu import CpuRun

        return CpuRun(self._contract, self._builder)

    @cached_property
    def _backward_reads_kept(self) -> bool:
        return bool(self._builder.lowered_backward.needs_saved_states)

    @property
    def spec(self) -> Spec:
        """The spec this kernel was compiled from."""
        return self._builder.spec

    @property
    def contract(self) -> Contract:
        """What a call has to look like: sizes, names, and the shapes that follow from them."""
        return self._contract

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates of x, in the order of its gate axis."""
        return self._contract.gates

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the states, the output's first."""
        return self._contract.states

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the learned vectors that a call needs, each [H]."""
        return self._contract.parameters

    @property
    def plan(self) -> KernelPlan:
        """The plan of the forward kernel for the hinted specialization."""
        return self._hinted.plan

    @property
    def plans(self) -> Mapping[tuple[str, Specialization], KernelPlan]:
        """Every plan so far, by (pass, specialization)."""
        return MappingProxyType({key: built.plan for key, built in self._on_device.built.items()})

    @property
    def source(self) -> str:
        """The CUDA text of the forward kernel for the hinted specialization."""
        return self._hinted.source

    @property
    def resources(self) -> tuple[KernelResources, ...] | None:
        """What the compiler reported of it; None where NVRTC is not installed."""
        return self._hinted.resources

    @property
    def built(self) -> tuple[BuiltKernel, ...]:
        """Every kernel built so far, the hinted forward first."""
        return tuple(self._on_device.built.values())

    def explain(self) -> str:
        """Return the decision in words: resources, memory map, slack of each constraint, runners-up, rejected."""
        return explain(self._hinted)

    def __repr__(self) -> str:
        spec = self.spec
        model, gpu = self._builder.cell_source.name, self._builder.target.profile.name
        return f"Kernel({model}, hidden_size={spec.hidden_size}, precision={spec.precision}, gpu={gpu})"

    def __call__(
        self,
        x: Any,
        R: Any = None,
        *,
        weight: Any = None,
        bias: Any = None,
        recurrent_bias: Any = None,
        parameters: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        resets: Any = None,
        lengths: Any = None,
        cu_seqlens: Any = None,
        all_states: bool = False,
    ) -> tuple[Any, State]:
        """Run over time and return (y, final state).

        x: pre-activations [B, T, G, H] (TBD: [T, B, G, H]; BDT: [B, G, H, T]), or with input_size [B, T, I] and weight
        [G * H, I]; storage dtype. bias [G, H] and parameters {name: [H]}: storage dtype or float32. state {name: [B, H]}:
        float32 (float64 for fp64), zeros where None. y [B, T, H] (TBD: [T, B, H]; BDT: [B, H, T]) in the storage dtype.

        Of a dense cell with gates R.g, and of no other: R [Gr, N, D, D] (gate, head, out, in; H = N * D) in the storage dtype,
        and, where the spec or the cell has a recurrent bias, recurrent_bias [Gr, N, D] in that or float32, zeros where None;
        the same memory as [Gr * H, D] and [Gr * H] too.

        resets: bool [B, T] in every layout; all states are set to 0 before such a step. lengths: int32 or int64 [B]; y is 0
        beyond them. cu_seqlens: int32 or int64 [S + 1], in layout BTD without lengths; sequence s is steps cu_seqlens[s] to
        cu_seqlens[s + 1] of x [1, total, ...], and states are [S, H]. all_states: instead of the final state, the states after
        every step, each shaped like y.

        direction reverse: time runs from the last step of each sequence to its first, and y stays at its own step.
        bidirectional: x [B, T, 2, G, H] (BDT: [B, 2, G, H, T]), weight [2 * G * H, I], bias [2, G, H], R [2, Gr, N, D, D],
        recurrent_bias [2, Gr, N, D], parameters [2, H], states [2, B, H], forward first, and y [B, T, 2 * H], forward before
        reverse.

        Raises BadInput for an array that does not fit.
        """
        kept: StatesOut = "arithmetic" if _flag(all_states, "all_states") else "none"
        given = Given(x, R, weight, bias, recurrent_bias, parameters, state, resets, lengths, cu_seqlens)
        (y, *states), _ = self._forward(given, kept, saves=False)
        return y, dict(zip(self.states, states, strict=False))  # those that are kept come before the final ones

    def step(
        self,
        x_t: Any,
        R: Any = None,
        *,
        weight: Any = None,
        bias: Any = None,
        recurrent_bias: Any = None,
        parameters: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> tuple[Any, State]:
        """Run one step and return (y_t [B, H], state); x_t is x without its time axis: [B, G, H], or [B, I] with weight.

        Of a reverse kernel it is the next earlier step. Raises what a call does, and BadInput where the spec is bidirectional.
        """
        if self._contract.directions:
            raise BadInput("step needs one direction, but the spec is bidirectional; call the kernel on whole sequences")
        given = Given(x_t, R, weight, bias, recurrent_bias, parameters, state)
        reading = read_call(self._contract, ("step",), given)
        played = self._on_device.again(reading)
        if played is None:
            call = self._checked(given, reading, single_step=True)
            outputs = self._run_of(call).step(call)
            return outputs.y.owner, self._named(outputs.final)
        y, *final = played.results
        return y, dict(zip(self.states, final, strict=True))

    def forward(
        self,
        x: Any,
        R: Any = None,
        *,
        weight: Any = None,
        bias: Any = None,
        recurrent_bias: Any = None,
        parameters: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        resets: Any = None,
        lengths: Any = None,
        cu_seqlens: Any = None,
        all_states: bool = False,
    ) -> tuple[Any, State, Saved]:
        """Run over time like a call and return (y, final state, saved), what `backward` needs.

        `saved` holds the arrays themselves, no copies: they must not change before the last backward. Raises what a call does,
        and BadInput where the spec says `training: false`.
        """
        if not self.spec.training:
            raise BadInput("the spec says training: false; compile with training: true for gradients, or call the kernel")
        returns_all = _flag(all_states, "all_states")
        given = Given(x, R, weight, bias, recurrent_bias, parameters, state, resets, lengths, cu_seqlens)
        (y, *states), forward = self._forward(given, self._kept_for_backward(returns_all), saves=True)
        if not returns_all:
            states = states[-len(self.states) :]  # behind those that only the backward needs
        return y, dict(zip(self.states, states, strict=False)), Saved(self, forward)

    def backward(self, saved: Saved, dy: Any, dstate: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the gradients of sum(dy * y) + sum(dstate * final state).

        dy: like y; beyond a length it counts for nothing. dstate {name: [B, H]}: the dtype of the state, zeros where None or
        absent; of the final states with `all_states` too. The result has "x", "state" {name: [B, H]}, and where they were given
        "R", "weight", "bias", "recurrent_bias" and "parameters" {name: [H]}, each of the shape (of R and recurrent_bias: the
        longer one) and dtype of its array; sums over batch and time are accumulated in float32 (float64 for fp64) or wider.
        Raises BadInput for arrays that do not fit and for a `saved` that is released or another kernel's.
        """
        before = saved.open_for(self)
        played = before if isinstance(before, Played) else None
        reading = None if played is None else read_gradient(self._contract, played, dy, dstate)
        again = self._on_device.backward_again(reading)
        if again is not None:
            return gradients_by_name(self._contract, *again, self._on_device.in_form_of)
        forward: Forward = before.notes() if isinstance(before, Played) else before
        call = forward.call
        checked = check_gradient(self._contract, memory.inspect, forward.outputs.y, dy, dstate, call.batch)
        run = self._run_of(call)
        raw = run.backward(forward, numbered_gradient(checked, played, reading))
        return gradients_by_name(self._contract, call, raw, run.in_form_of)

    def again(self, arrays: Sequence[Any], saves: bool, all_states: bool) -> tuple[Any, list[Any], list[Any]] | None:
        """Run a call of a form met before; return y, the final states, and what `Saved.arrays` has of it, else None.

        arrays: x, R, weight, bias, recurrent_bias, resets, then the initial states and the parameters, None where not given.
        For callers who keep arrays and nothing else and have no time to lose, such as a layer of torch.
        """
        if saves and not self.spec.training:
            return None  # `forward` says why not
        kept = self._kept_for_backward(all_states) if saves else "arithmetic" if all_states else "none"
        played = self._on_device.again(read(("forward", kept), arrays))
        if played is None:
            return None
        y, *others = played.results
        first, count = len(self.states) if kept != "none" else 0, len(self.states)
        return y, others[first : first + count], others[:first] + others[first + count :]

    def saved_from(self, given: Given, y: Any, arrays: Sequence[Any], all_states: bool = False) -> Saved:
        """Return what `forward` saved of a call, from what it was `given`, its y and `Saved.arrays()`.

        For callers who keep arrays and nothing else, such as a graph of torch. Raises BadInput for arrays that do not fit.
        """
        reading = read_call(self._contract, ("forward", self._kept_for_backward(all_states)), given)
        played = played_again(self._on_device.tape_of(reading), reading, y, arrays)
        if played is not None:
            return Saved(self, played)
        # Values of lengths were checked before the forward; reading them back again would wait for the stream.
        call = check_call(self._contract, memory.inspect, lambda _: None, given)
        run, contract = self._run_of(call), self._contract
        call = run.with_sequences_beside_x(call)
        forms = self._saved_forms(run, call.rows, call.time, all_states)
        if len(arrays) != len(forms):
            raise BadInput(
                f"saved has {len(arrays)} arrays; the {len(forms)} that the forward of this kernel saved are expected"
            )
        written = [
            check_plain(memory.inspect(one, "saved"), (dtype,), shape)
            for one, (shape, dtype) in zip(arrays, forms, strict=True)
        ]
        y = check_plain(memory.inspect(y, "y"), (contract.precision.storage_dtype,), contract.y_shape(call.rows, call.time))
        for one in (y, *written):
            check_place(one, call.x)
        projected = call
        if call.weight is not None:
            projected = replace(call, x=written.pop(), x_axes=run.preactivation_axes, weight=None)
        return Saved(self, Forward(call, projected, Outputs(y, tuple(written), ())))

    def saved_forms(
        self, batch: int, time: int, *, on_host: bool, all_states: bool = False
    ) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Return shape and dtype of each of `Saved.arrays()` of a call with so many rows and steps."""
        return self._saved_forms(self._on_host if on_host else self._on_device, batch, time, all_states)

    def reference(
        self,
        x: Any,
        R: Any = None,
        *,
        weight: Any = None,
        bias: Any = None,
        recurrent_bias: Any = None,
        parameters: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        resets: Any = None,
        lengths: Any = None,
        cu_seqlens: Any = None,
        all_states: bool = False,
    ) -> tuple[Any, dict[str, Any]]:
        """Run the same equations sequentially in float64 on host arrays and return NumPy (y, final state), unrounded.

        Takes the arrays that a call takes, in the dtypes that a call takes; the yardstick of every error in this package.
        Raises BadInput for arrays on a GPU.
        """
        call = self._checked(Given(x, R, weight, bias, recurrent_bias, parameters, state, resets, lengths, cu_seqlens))
        if call.x.device is not None:
            raise BadInput(f"x is on CUDA device {call.x.device}; the reference runs on host arrays, so copy it there")
        outputs = self._on_host.reference(call, _flag(all_states, "all_states"))
        return outputs.y.owner, self._named(outputs.kept or outputs.final)

    def _forward(self, given: Given, kept: StatesOut, saves: bool) -> tuple[list[Any], Forward | Played]:
        """Run over time; return y, the states that are kept and the final ones, and what a backward needs where it is saved."""
        reading = read_call(self._contract, ("forward", kept), given)
        played = self._on_device.again(reading)
        if played is not None:
            return played.results[: 1 + (1 + (kept != "none")) * len(self.states)], played
        call = self._checked(given, reading)
        forward = self._run_of(call).forward(call, kept, saves)
        outputs = forward.outputs
        return [one.owner for one in (outputs.y, *outputs.kept, *outputs.final)], forward.played or forward

    def _saved_forms(
        self, run: DeviceRun | CpuRun, batch: int, time: int, all_states: bool
    ) -> tuple[tuple[tuple[int, ...], str], ...]:
        contract, kept = self._contract, run.kept_dtype(self._kept_for_backward(all_states), True)
        forms = [] if kept is None else [(contract.y_shape(batch, time), kept) for _ in contract.states]
        if contract.input_size:
            forms.append((contract.shape(run.preactivation_axes, batch, time), run.preactivation_dtype))
        return tuple(forms)

    def _kept_for_backward(self, returns_all: bool) -> StatesOut:
        if returns_all or self._backward_reads_kept:
            return "arithmetic" if returns_all or self._contract.recurrent_gates else "storage"
        return "none"

    def _checked(self, given: Given, reading: Reading | None = None, single_step: bool = False) -> Call:
        call = check_call(self._contract, memory.inspect, memory.read_back, given, single_step=single_step)
        return numbered_call(call, reading)

    def _run_of(self, call: Call) -> DeviceRun | CpuRun:
        """What runs a call: the target that is where its arrays are."""
        return self._on_host if call.x.device is None else self._on_device

    def _named(self, arrays: tuple[Array, ...]) -> State:
        return {name: array.owner for name, array in zip(self.states, arrays, strict=True)}


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"{name} is a {type(value).__name__}; True or False is expected")
    return value
