"""Cells on NumPy arrays that own their weights, one sequence at a time, on the CPU or on a GPU."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from minrnn_gen.api import compile_arguments
from minrnn_gen.errors import BadInput, ToolchainMissing, constructed_by_own_name, kind_of, shown
from minrnn_gen.gpu import device, memory
from minrnn_gen.kernel import Kernel


class LinearLayer:
    """One gate's product, `weights` [output_size, input_size] and `bias` [output_size], both assignable.

    Weights start as by Glorot and Bengio (2010), normal with variance 2 / (input_size + output_size), the bias at 0.
    """

    def __init__(self, input_size: int, output_size: int) -> None:
        """Draw the weights from a generator of its own."""
        self.input_size, self.output_size = input_size, output_size
        deviation = np.sqrt(2 / (input_size + output_size))
        self.weights = np.random.default_rng().normal(0, deviation, (output_size, input_size))
        self.bias = np.zeros(output_size)

    def forward(self, x: Any) -> Any:
        """Return weights x + bias for x [..., input_size]."""
        return np.asarray(x) @ np.asarray(self.weights).T + self.bias


class _Cell:
    """A cell of `_GATES`, in the order of its kernel, each with a layer `linear_{gate}` that every call reads again."""

    _MODEL: ClassVar[str]
    _GATES: ClassVar[tuple[str, ...]]
    # NumPy's default.
    _PRECISION: ClassVar[str] = "fp64"
    _DTYPE: ClassVar[Any] = np.float64

    def __init_subclass__(cls) -> None:
        constructed_by_own_name(cls)

    def __init__(self, input_size: int, hidden_size: int) -> None:
        """Draw the weights; the kernel is made in the first call."""
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise BadInput(f"{name} is {shown(size)}; an integer from 1 on is expected")
        self.input_size, self.hidden_size = input_size, hidden_size
        for gate in self._GATES:
            setattr(self, f"linear_{gate}", LinearLayer(input_size, hidden_size))

    def forward(self, x_t: Any, h_prev: Any) -> Any:
        """Return the state [H] after one step with x_t [I] from h_prev [H]."""
        x = self._given(x_t, "x_t", (self.input_size,))
        state = self._state(h_prev, "h_prev")
        h, _ = self._kernel.step(self._there(x[None]), **self._projection(), state={"h": self._there(state)})
        return self._back(h)[0]

    def process_sequence(self, x: Any, h0: Any = None, seq_length: int | None = None) -> Any:
        """Return the states [T, H] after every step of x [T, I], or of its first `seq_length`; h0 [H], zeros where None."""
        rows = self._sequence(x, seq_length)
        state = {"h": self._there(self._state(h0, "h0"))}
        h, _ = self._kernel(self._there(rows[None]), **self._projection(), state=state)
        return self._back(h)[0]

    def process_sequence_parallel(self, x: Any, h0: Any = None, seq_length: int | None = None) -> Any:
        """Return the same as `process_sequence`: the kernel chooses how to compute a sequence."""
        return self.process_sequence(x, h0, seq_length)

    def extract_scan_params(self, x: Any, seq_length: int | None = None) -> tuple[Any, Any]:
        """Return (a, b), both [T, H], of the recurrence h[t] = a[t] h[t-1] + b[t] that x [T, I] makes."""
        rows = self._sequence(x, seq_length)
        # Every step as a separate sequence: b is its result from a state of 0, and a the derivative by that state.
        state = {"h": self._there(np.zeros((len(rows), self.hidden_size), self._DTYPE))}
        b, _, saved = self._kernel.forward(self._there(rows[:, None]), **self._projection(), state=state)
        ones = self._there(np.ones((len(rows), 1, self.hidden_size), self._DTYPE))
        return self._back(self._kernel.backward(saved, ones)["state"]["h"]), self._back(b)[:, 0]

    @cached_property
    def _kernel(self) -> Kernel:
        sizes = {"input_size": self.input_size, "hidden_size": self.hidden_size, "precision": self._PRECISION}
        return compile_arguments({"model": self._MODEL, **sizes}, type(self).__name__)

    def _projection(self) -> dict[str, Any]:
        """Return the current weights and biases in a kernel's form."""
        weights, biases = [], []
        for gate in self._GATES:
            layer, name = getattr(self, f"linear_{gate}"), f"linear_{gate}"
            weights.append(self._given(layer.weights, f"{name}.weights", (self.hidden_size, self.input_size)))
            biases.append(self._given(layer.bias, f"{name}.bias", (self.hidden_size,)))
        return {"weight": self._there(np.concatenate(weights)), "bias": self._there(np.stack(biases))}

    def _sequence(self, x: Any, seq_length: int | None) -> Any:
        rows = self._cast(x, "x")
        if rows.ndim != 2 or rows.shape[1] != self.input_size:
            raise BadInput(f"x has shape {list(rows.shape)}; [steps, {self.input_size}] is expected, the latter is input_size")
        if seq_length is None:
            return rows
        if not isinstance(seq_length, int | np.integer) or not 0 <= seq_length <= len(rows):
            raise BadInput(f"seq_length is {shown(seq_length)}, but x has {len(rows)} steps; 0 to {len(rows)} are allowed")
        return rows[:seq_length]

    def _state(self, h: Any, name: str) -> Any:
        """Return a state [1, H]."""
        shape = (self.hidden_size,)
        return (np.zeros(shape, self._DTYPE) if h is None else self._given(h, name, shape))[None]

    def _given(self, array: Any, name: str, shape: tuple[int, ...]) -> Any:
        cast = self._cast(array, name)
        if cast.shape != shape:
            raise BadInput(f"{name} has shape {list(cast.shape)}; {list(shape)} is expected")
        return cast

    def _cast(self, array: Any, name: str) -> Any:
        try:
            values = np.asarray(array)
        except (TypeError, ValueError) as refused:
            raise BadInput(f"{name} is {kind_of(array)} that is no array of NumPy's; pass one") from refused
        if values.dtype.kind not in "fiub":
            raise BadInput(f"{name} has dtype {values.dtype}; real numbers of NumPy's are expected")
        return values.astype(self._DTYPE, copy=False)

    def _there(self, array: Any) -> Any:
        """Return a NumPy array where the kernel runs, without gaps."""
        return np.ascontiguousarray(array)

    def _back(self, array: Any) -> Any:
        """Return an array of the kernel's as a NumPy array."""
        return array


class _CudaCell(_Cell):
    """The same on a GPU: arrays go there and come back in every call."""

    _PRECISION = "fp32"
    _DTYPE = np.float32

    def __init__(self, input_size: int, hidden_size: int) -> None:
        """Draw the weights; raises ToolchainMissing where there is no GPU or no CuPy."""
        if device.live_device() is None:
            name = type(self).__name__
            raise ToolchainMissing(f"{name} needs a GPU and CuPy; take {name.removesuffix('CUDA')}, which runs on the CPU")
        super().__init__(input_size, hidden_size)

    def _there(self, array: Any) -> Any:
        return memory.to_device(super()._there(array))

    def _back(self, array: Any) -> Any:
        return memory.to_host(array)


class MinGRUCell(_Cell):
    """h[t] = (1 - z) h[t-1] + z (linear_h x), z = sigmoid(linear_z x), in float64. Source: arXiv 2410.01201, section 3.1."""

    linear_z: LinearLayer
    linear_h: LinearLayer
    _MODEL = "min_gru"
    _GATES = ("z", "h")


class MinGRUCellCUDA(_CudaCell, MinGRUCell):
    """`MinGRUCell` on a GPU, in float32."""


class MinLSTMCell(_Cell):
    """h[t] = f / (f + i) h[t-1] + i / (f + i) (linear_h x), f and i the sigmoids of linear_f x and linear_i x, in float64.

    Source: arXiv 2410.01201, section 3.2.
    """

    linear_f: LinearLayer
    linear_i: LinearLayer
    linear_h: LinearLayer
    _MODEL = "min_lstm"
    _GATES = ("f", "i", "h")


class MinLSTMCellCUDA(_CudaCell, MinLSTMCell):
    """`MinLSTMCell` on a GPU, in float32."""
