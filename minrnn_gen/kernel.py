"""Kernel: the callable that `compile` returns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from minrnn_gen import cuda
from minrnn_gen.arguments import (
    X_AXES,
    Y_AXES,
    Call,
    Contract,
    Gradients,
    IncomingGradient,
    Outputs,
    check_call,
    check_gradient,
)
from minrnn_gen.arrays import Array, as_numpy, numpy_dtype
from minrnn_gen.build import Builder, BuiltKernel
from minrnn_gen.compiler import KernelResources
from minrnn_gen.errors import BadInput, NotGenerated, ToolchainMissing
from minrnn_gen.explain import explain
from minrnn_gen.launch import alignment_of_call, backward_launch_of, forward_launch_of, step_launch_of
from minrnn_gen.plan.kernel_plan import KeptStates, KernelPlan, Regime
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.precision import precision_of
from minrnn_gen.saved import Saved
from minrnn_gen.spec import Spec

if TYPE_CHECKING:  # NumPy is imported only where a host array comes in
    from minrnn_gen.cpu_recurrence import ScanMethod

State = dict[str, Any]


class Kernel:
    """A specialised recurrent kernel.

    Valid for every batch and time. CUDA arrays (CuPy, torch, or anything with DLPack) run the compiled kernel on the caller's
    current stream, without synchronising; host arrays run the same equations in NumPy. Results come in the caller's library.
    Thread-safe; the first call with another alignment of the arrays compiles once more.
    """

    def __init__(self, builder: Builder, built: tuple[BuiltKernel, ...]) -> None:
        self._builder = builder
        self._built = {(one.plan.kernel_pass, one.plan.regime): one for one in built}
        self._hinted = built[0]
        self._loaded: dict[tuple[str, Regime], cuda.LoadedKernel] = {}
        self._lock = threading.Lock()
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
        )

    @property
    def spec(self) -> Spec:
        """The spec this kernel was compiled from."""
        return self._builder.spec

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
        """The plan of the forward kernel for the hinted regime."""
        return self._hinted.plan

    @property
    def plans(self) -> Mapping[tuple[str, Regime], KernelPlan]:
        """Every plan so far, by (pass, regime)."""
        return MappingProxyType({key: built.plan for key, built in self._built.copy().items()})

    @property
    def source(self) -> str:
        """The CUDA text of the forward kernel for the hinted regime."""
        return self._hinted.source

    @property
    def resources(self) -> tuple[KernelResources, ...] | None:
        """What the compiler reported of it; None where NVRTC is not installed."""
        return self._hinted.resources

    @property
    def built(self) -> tuple[BuiltKernel, ...]:
        """Every kernel built so far, the hinted forward first."""
        return tuple(self._built.copy().values())

    def explain(self) -> str:
        """Return the decision in words: resources, memory map, slack of each constraint, runners-up, rejected."""
        return explain(self._hinted)

    def __repr__(self) -> str:
        spec = self.spec
        return f"Kernel({self.plan.model}, hidden_size={spec.hidden_size}, precision={spec.precision}, gpu={self.plan.gpu})"

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
        Raises BadInput for an array that does not fit, NotGenerated for what this version does not do yet.
        """
        self._refuse(R=R, recurrent_bias=recurrent_bias)
        wanted = None if all_states is False else all_states
        self._not_yet(resets=resets, lengths=lengths, cu_seqlens=cu_seqlens, all_states=wanted)
        _, y, final = self._run("forward", x, weight, bias, parameters, state)
        return y.owner, final

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
        """Run one step and return (y_t [B, H], state); x_t is x without its time axis: [B, G, H], or [B, I] with weight."""
        self._refuse(R=R, recurrent_bias=recurrent_bias)
        _, y, final = self._run("step", x_t, weight, bias, parameters, state)
        return y.owner, final

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
        self._refuse(R=R, recurrent_bias=recurrent_bias)
        wanted = None if all_states is False else all_states
        self._not_yet(resets=resets, lengths=lengths, cu_seqlens=cu_seqlens, all_states=wanted)
        if weight is not None:
            raise NotGenerated("gradients through the input projection are not generated yet; project x before the call")
        call, y, final = self._run("forward", x, weight, bias, parameters, state)
        return y.owner, final, Saved(self, call, y)

    def backward(self, saved: Saved, dy: Any, dstate: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the gradients of sum(dy * y) + sum(dstate * final state).

        dy: like y. dstate {name: [B, H]}: the dtype of the state, zeros where None or absent. The result has "x", "state"
        {name: [B, H]}, "parameters" {name: [H]} where the cell has any and "bias" where one was given, each of the shape and
        dtype of its array; sums over batch and time are accumulated in float32 (float64 for fp64). Raises BadInput for arrays
        that do not fit and for a `saved` that is released or another kernel's, NotGenerated for what has no backward yet.
        """
        call, y = saved.open_for(self)
        gradient = check_gradient(self._contract, cuda.inspect, y, dy, dstate, call.batch)
        run = self._backward_on_host if call.x.device is None else self._backward_on_device
        return run(call, y, gradient)

    def _refuse(self, **given: Any) -> None:
        for name, value in given.items():
            if value is not None:
                raise BadInput(f"{name} was given, but {self.plan.model} has no recurrent product; leave it out")

    def _not_yet(self, **given: Any) -> None:
        for name, value in given.items():
            if value is not None:
                raise NotGenerated(f"{name} was given, but no kernel with it is generated yet; leave it out")

    def _run(
        self,
        kernel_pass: KernelPass,
        x: Any,
        weight: Any,
        bias: Any,
        parameters: Mapping[str, Any] | None,
        state: Mapping[str, Any] | None,
    ) -> tuple[Call, Array, State]:
        """Check the arrays, run where x is, and return the checked call with y and the final states."""
        call = check_call(
            self._contract,
            cuda.inspect,
            x,
            weight=weight,
            bias=bias,
            parameters=parameters,
            state=state,
            single_step=kernel_pass == "step",
        )
        run = self._run_on_host if call.x.device is None else self._run_on_device
        y, final = run(kernel_pass, call)
        return call, y, self._named(final)

    def _named(self, arrays: tuple[Array, ...]) -> State:
        return {name: array.owner for name, array in zip(self.states, arrays, strict=True)}

    def _run_on_device(self, kernel_pass: KernelPass, call: Call) -> tuple[Array, tuple[Array, ...]]:
        contract = self._contract
        storage, carried = contract.precision.storage_dtype, contract.precision.arithmetic_dtype
        y = cuda.new_array(call.x, self._y_shape(kernel_pass, call), storage)
        final = tuple(cuda.new_array(call.x, (call.batch, contract.hidden_size), carried) for _ in contract.states)
        if not call.batch:
            return y, final
        if call.weight is not None:
            call = self._projected(kernel_pass, call, call.weight)
        step = kernel_pass == "step"
        regime = self._builder.hinted_regime if step else _regime_of(call, "none", call.x, y)
        loaded, plan = self._load(kernel_pass, regime)
        launch = (step_launch_of if step else forward_launch_of)(plan, call, Outputs(y, (), final))
        loaded.launch(call.x, launch.blocks, plan.threads, launch.arguments)
        return y, final

    def _backward_on_device(self, call: Call, y: Array, gradient: IncomingGradient) -> dict[str, Any]:
        contract = self._contract
        carried = contract.precision.arithmetic_dtype
        dx = cuda.new_array(call.x, call.x.shape, call.x.dtype)
        dinitial = tuple(cuda.new_array(call.x, (call.batch, contract.hidden_size), carried) for _ in contract.states)
        sums = None
        if call.bias is not None or call.parameters:
            count = contract.gate_count + len(contract.parameters)
            sums = cuda.new_array(call.x, (1, count, call.batch, contract.hidden_size), carried)
        if call.batch:
            loaded, plan = self._load("backward", _regime_of(call, "none", call.x, y, gradient.dy, dx))
            states = tuple(y for _ in self._builder.lowered_backward.read_states)
            launch = backward_launch_of(plan, call, states, gradient, Gradients(dx, dinitial, sums))
            loaded.launch(call.x, launch.blocks, plan.threads, launch.arguments)
        # Few values are left to add; the libraries do it in an order that does not change.
        total = None if sums is None else sums.owner.sum((0, 2))
        return self._gradients(call, dx.owner, self._named(dinitial), total, cuda.cast_like)

    def _backward_on_host(self, call: Call, y: Array, gradient: IncomingGradient) -> dict[str, Any]:
        import numpy

        from minrnn_gen import host

        contract, lowered = self._contract, self._builder.lowered_backward
        view = host.host_call(contract, call, contract.precision.arithmetic_dtype)
        states = {}
        if lowered.output_state is not None:
            states[lowered.output_state] = host.y_by_time(as_numpy(y), contract.layout)
        if missing := lowered.needs_saved_states:
            # What y does not hold is computed once more.
            shape = (call.time, call.batch, contract.hidden_size)
            states |= {name: numpy.empty(shape, view.arithmetic) for name in missing}
            host.scan(contract, self._builder.lowered, view, numpy.empty_like(as_numpy(y)), states)
        dx = numpy.empty(call.x.shape, numpy_dtype(call.x.dtype))
        dfinal = {name: as_numpy(one) for name, one in zip(contract.states, gradient.dfinal, strict=True) if one is not None}
        order = [call.x_axes.index(axis) for axis in "tbgh"]
        found = host.scan_backward(contract, lowered, view, states, as_numpy(gradient.dy), dfinal, dx.transpose(order))
        sums = numpy.concatenate([found.bias, *(found.parameters[name][None] for name in contract.parameters)])
        in_library = {name: self._to_library(call.x, found.initial[name]).owner for name in self.states}
        return self._gradients(call, self._to_library(call.x, dx).owner, in_library, sums, self._sum_in_library)

    def _gradients(self, call: Call, dx: Any, state: State, sums: Any, like: Callable[[Array, Any], Any]) -> dict[str, Any]:
        """Return the result of a backward; `like(array, sum)` gives a row of `sums` the library, shape and dtype of `array`."""
        gates = self._contract.gate_count
        gradients: dict[str, Any] = {"x": dx, "state": state}
        if call.bias is not None:
            gradients["bias"] = like(call.bias, sums[:gates])
        if call.parameters:
            pairs = zip(self._contract.parameters, call.parameters, strict=True)
            gradients["parameters"] = {name: like(one, sums[gates + index]) for index, (name, one) in enumerate(pairs)}
        return gradients

    def _sum_in_library(self, like: Array, value: Any) -> Any:
        return self._to_library(like, value.reshape(like.shape).astype(numpy_dtype(like.dtype))).owner

    def _projected(self, kernel_pass: KernelPass, call: Call, weight: Array) -> Call:
        """Multiply x by the weight; the result has the axes of pre-activations."""
        axes = "bgh" if kernel_pass == "step" else X_AXES[self._contract.layout]
        sizes = {"b": call.batch, "t": call.time, "g": self._contract.gate_count, "h": self._contract.hidden_size}
        product = cuda.new_array(call.x, tuple(sizes[axis] for axis in axes), call.x.dtype)
        if call.batch and call.time:
            cuda.project(call.x, weight, product, time_is_last=axes[-1] == "t")
        return replace(call, x=product, x_axes=axes, weight=None)

    def _load(self, kernel_pass: KernelPass, regime: Regime) -> tuple[cuda.LoadedKernel, KernelPlan]:
        key = (kernel_pass, regime)
        loaded = self._loaded.get(key)
        if loaded is None:
            with self._lock:
                if key not in self._built:
                    self._built[key] = self._builder.build(kernel_pass, regime)
                built = self._built[key]
                if built.cubin is None:
                    raise ToolchainMissing(
                        "the kernel was not compiled because NVRTC is not installed: pip install 'minrnn-gen[cuda13]'"
                    )
                plan = built.plan
                loaded = cuda.LoadedKernel(built.cubin, plan.entry, plan.arch, plan.shared_bytes)
                self._loaded[key] = loaded
        return loaded, self._built[key].plan

    def _y_shape(self, kernel_pass: KernelPass, call: Call) -> tuple[int, ...]:
        sizes = {"b": call.batch, "t": call.time, "h": self._contract.hidden_size}
        return tuple(sizes[axis] for axis in ("bh" if kernel_pass == "step" else Y_AXES[self._contract.layout]))

    def _run_on_host(self, kernel_pass: KernelPass, call: Call) -> tuple[Array, tuple[Array, ...]]:
        precision = self._contract.precision
        y, final = self._host_scan(kernel_pass, call, precision.arithmetic_dtype, precision.storage_dtype)
        return self._to_library(call.x, y), tuple(self._to_library(call.x, final[name]) for name in self.states)

    def _host_scan(
        self, kernel_pass: KernelPass, call: Call, arithmetic: str, storage: str, method: ScanMethod | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Run the CPU target and return NumPy results; `arithmetic` and `storage` are dtype names."""
        import numpy

        from minrnn_gen import host

        y = numpy.empty(self._y_shape(kernel_pass, call), numpy_dtype(storage))
        lowered = self._builder.lowered
        return y, host.scan(self._contract, lowered, host.host_call(self._contract, call, arithmetic), y, method=method)

    def reference(
        self,
        x: Any,
        *,
        weight: Any = None,
        bias: Any = None,
        parameters: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Run the same equations sequentially in float64 on host arrays and return NumPy (y, final state), unrounded.

        Takes the arrays that a call takes, in the dtypes that a call takes; the yardstick of every error in this package.
        Raises BadInput for arrays on a GPU.
        """
        call = check_call(
            self._contract,
            cuda.inspect,
            x,
            weight=weight,
            bias=bias,
            parameters=parameters,
            state=state,
            single_step=False,
        )
        if call.x.device is not None:
            raise BadInput(f"x is on CUDA device {call.x.device}; the reference runs on host arrays, so copy it there")
        return self._host_scan("forward", call, "float64", "float64", "sequential")

    @staticmethod
    def _to_library(like: Array, value: Any) -> Array:
        if like.library == "numpy":
            return cuda.inspect(value, "result")
        result = cuda.new_array(like, value.shape, value.dtype.name)
        as_numpy(result)[...] = value
        return result


def _regime_of(call: Call, kept_states: KeptStates, *rows: Array) -> Regime:
    """The regime of a call in one direction whose arrays of x and y are `rows`."""
    return Regime(alignment_of_call(*rows), call.reverse, call.resets is not None, kept_states)
