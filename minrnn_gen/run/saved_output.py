"""The output of a call as the operand of R: products over all steps in one multiplication, and their gradients.

Arrays over time have the axes [directions, B, T, …] here, with 1 where a call runs in one direction; products have
[directions, B, T, G, H].
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from minrnn_gen.call.altered import gathered, permuted, sequence_of_step
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.joined import zeros_like
from minrnn_gen.call.slots import CU_SEQLENS, LENGTHS, RESETS
from minrnn_gen.gpu.memory import cast
from minrnn_gen.precision import Precision

WORD_BYTES = 16  # of a complex number of two doubles


class SavedOutput:
    """The output before each step of a call: y of the step before, the initial state at first steps, zeros at resets."""

    def __init__(self, interface: Interface, xp: Any, arrays: Sequence[Any], y: Any, state: int) -> None:
        """Take the arrays of the call by slot and its y; `state`: the index of the output's state."""
        self._interface, self.xp, self._y = interface, xp, y
        self._resets, self._lengths, self._ends = (arrays[slot] for slot in (RESETS, LENGTHS, CU_SEQLENS))
        self._initial = arrays[interface.slots.states][state]
        order = interface.channel_axes
        sizes = dict(zip(order.replace("d", ""), y.shape, strict=True)) | {"d": 2, "h": interface.hidden_size}
        self._rows, self._time = sizes["b"], sizes["t"]
        self.shape = tuple(sizes[axis] for axis in order)
        self._whole = self.by_run(y.reshape(self.shape), order)

    def by_run(self, array: Any, axes: str) -> Any:
        """Return an array with these axes in this file's order of axes."""
        order = "".join(axis for axis in "dbtgh" if axis in axes)
        ordered = permuted(array, [axes.index(axis) for axis in order])
        return ordered if "d" in axes else ordered[None]

    def in_layout(self, array: Any, axes: str) -> Any:
        """Return an array in this file's order of axes in another order."""
        own = "".join(axis for axis in "dbtgh" if axis in axes)
        return permuted(array if "d" in axes else array[0], [own.index(axis) for axis in axes])

    @cached_property
    def before(self) -> Any:
        """The output before each step."""
        before = self._together([self._before(run) for run in range(len(self._whole))])
        # CuPy chooses among numbers of 16 bits in float32.
        return cast(before, self._interface.precision.storage_dtype)

    def products(self, matrix: Any, bias: Any) -> Any:
        """Return the products with a matrix of the shape of R, with a bias of each gate or None."""
        results = [self._product(*pair) for pair in zip(self.before, self._by_run_of(matrix), strict=True)]
        products = self._together(results)
        if bias is None:
            return products
        flat = bias.reshape((len(results), 1, 1, -1, self._interface.hidden_size))
        return products + cast(flat, self._interface.precision.storage_dtype)

    @property
    def adds_in_place(self) -> bool:
        """Whether `add_products` serves: torch adds while it multiplies, to a step's gates where they are a row in memory."""
        return self._interface.heads == 1 and self._interface.layout != "BDT" and is_eager(self.xp, self._y)

    def add_products(self, sums: Any, matrix: Any) -> None:
        """Add the products with a matrix in place to `sums`, pre-activations with at least as many gates, to the first ones."""
        axes = self._interface.preactivation_axes
        order = ["bt".index(axis) for axis in axes if axis in "bt"]
        for run, (before, own) in enumerate(zip(self.before, self._by_run_of(matrix), strict=True)):
            of_run = sums.select(axes.index("d"), run) if self._interface.directions else sums
            rows = permuted(before, (*order, 2)).reshape((-1, own.shape[-1]))
            of_run[:, :, : own.shape[0]].view((rows.shape[0], -1)).addmm_(rows, own.reshape((-1, own.shape[-1])).T)

    def of_matrix(self, gradient: Any) -> Any:
        """Return the gradient of the matrix from the gradient of products."""
        heads, dim = self._interface.heads, self._interface.head_dim
        matrices = []
        for before, of_products in zip(self.before, gradient, strict=True):
            gates = of_products.shape[2]
            left = permuted(of_products.reshape((-1, gates, heads, dim)), (2, 1, 3, 0)).reshape((heads, gates * dim, -1))
            right = permuted(before.reshape((-1, heads, dim)), (1, 0, 2))
            matrices.append(permuted(self._multiplied(left, right).reshape((heads, gates, dim, dim)), (1, 0, 2, 3)))
        shape = self._interface.directions + tuple(matrices[0].shape)
        return self.xp.stack(matrices).reshape(shape)

    def of_bias(self, gradient: Any, like: Any) -> Any:
        """Return the gradient of the bias from the gradient of products."""
        total = cast(gradient, self._interface.precision.arithmetic_dtype).sum((1, 2))
        return cast(total, str(like.dtype).removeprefix("torch.")).reshape(tuple(like.shape))

    def of_output(self, gradient: Any, matrix: Any) -> tuple[Any, Any]:
        """Return the gradients of y and of the initial state from the gradient of products with a matrix."""
        heads, dim = self._interface.heads, self._interface.head_dim
        of_runs = []
        for of_products, own in zip(gradient, self._by_run_of(matrix), strict=True):
            gates = of_products.shape[2]
            left = permuted(of_products.reshape((-1, gates, heads, dim)), (2, 0, 1, 3)).reshape((heads, -1, gates * dim))
            right = permuted(own, (1, 0, 2, 3)).reshape((heads, gates * dim, dim))
            product = permuted(self._multiplied(left, right), (1, 0, 2))
            of_runs.append(product.reshape((self._rows, self._time, heads * dim)))
        return self.of_last(of_runs)

    def of_last(self, gradient: Any) -> tuple[Any, Any]:
        """Return the gradients of y and of the initial state from the gradient of `before`."""
        of_y, of_initial = zip(*(self._after(run, of_run) for run, of_run in enumerate(gradient)), strict=True)
        whole = self.in_layout(self._together(of_y), self._interface.channel_axes).reshape(tuple(self._y.shape))
        initial = self.xp.stack(of_initial) if self._interface.directions else of_initial[0]
        precision = self._interface.precision
        return cast(whole, precision.storage_dtype), cast(initial, precision.arithmetic_dtype)

    def _together(self, of_runs: Sequence[Any]) -> Any:
        return self.xp.stack(of_runs) if len(of_runs) > 1 else of_runs[0][None]

    def _by_run_of(self, matrix: Any) -> Any:
        return matrix if self._interface.directions else matrix[None]

    def _product(self, before: Any, matrix: Any) -> Any:
        """Return the products of one run, [B, T, G, H]."""
        heads, dim, gates = self._interface.heads, self._interface.head_dim, matrix.shape[0]
        left = permuted(before.reshape((-1, heads, dim)), (1, 0, 2))
        right = permuted(matrix, (1, 3, 0, 2)).reshape((heads, dim, gates * dim))
        product = permuted(self._multiplied(left, right).reshape((heads, -1, gates, dim)), (1, 2, 0, 3))
        return product.reshape((self._rows, self._time, gates, heads * dim))

    def _before(self, run: int) -> Any:
        y, is_reversed = self._whole[run], self._interface.runs_reversed[run]
        shifted = self._shifted(y, forward=not is_reversed)
        if self._initial is not None:
            initial = cast(self._initial_of(run), self._interface.precision.storage_dtype)
            shifted = self.xp.where(self._first(run)[..., None], initial, shifted)
        elif self._ends is not None:
            shifted = self._zero_at(self._first(run), shifted)
        return shifted if self._resets is None else self._zero_at(self._resets, shifted)

    def _after(self, run: int, gradient: Any) -> tuple[Any, Any]:
        """Return the gradients of one run's y and initial state from the gradient of `_before`."""
        if self._resets is not None:
            gradient = self._zero_at(self._resets, gradient)
        is_reversed = self._interface.runs_reversed[run]
        if self._ends is None and not (self._lengths is not None and is_reversed):
            edge = gradient[:, -1:] if is_reversed else gradient[:, :1]
            return self._shifted(gradient, forward=is_reversed), edge.sum(1)
        first = self._first(run)
        rows = self._rows if self._ends is None else int(self._ends.shape[0]) - 1
        initial = gathered(self.xp, "bth", first, gradient, rows, self._sequence)
        return self._shifted(self._zero_at(first, gradient), forward=is_reversed), initial

    def _shifted(self, array: Any, forward: bool) -> Any:
        """Return an array [B, T, H] shifted by a step, with zeros at the step without a predecessor."""
        words = in_words(self.xp, array)
        return self._moved(array, forward) if words is array else self._moved(words, forward).view(array.dtype)

    def _moved(self, array: Any, forward: bool) -> Any:
        zeros = zeros_like(array, (array.shape[0], 1, array.shape[2]))
        parts = [zeros, array[:, :-1]] if forward else [array[:, 1:], zeros]
        return self.xp.concatenate(parts, axis=1)[:, : self._time]

    def _zero_at(self, marks: Any, array: Any) -> Any:
        return self.xp.where(marks[..., None], zeros_like(array, (1, 1, 1)), array)

    def _first(self, run: int) -> Any:
        """Return the marks of first steps, [B or 1, T]."""
        is_reversed, steps = self._interface.runs_reversed[run], self._steps
        if self._ends is not None:
            ends = self._beside(self._ends)
            first = ends[1:][self._sequence] - 1 if is_reversed else ends[:-1][self._sequence]
            return (steps == first)[None]
        if self._lengths is not None and is_reversed:
            return steps[None] == self._beside(self._lengths)[:, None] - 1
        return (steps == (self._time - 1 if is_reversed else 0))[None]

    def _initial_of(self, run: int) -> Any:
        """Return the initial states at all steps, [B or 1, T or 1, H]."""
        states = self._initial[run] if self._interface.directions else self._initial
        return states[:, None] if self._sequence is None else states[self._sequence][None]

    @cached_property
    def _sequence(self) -> Any:
        """The packed sequence of each step."""
        return None if self._ends is None else sequence_of_step(self.xp, self._beside(self._ends), self._steps)

    @cached_property
    def _steps(self) -> Any:
        return self.xp.arange(self._time, **({"device": self._y.device} if self.xp.__name__ == "torch" else {}))

    def _beside(self, integers: Any) -> Any:
        return integers.to(self._y.device) if hasattr(integers, "to") else self.xp.asarray(integers)

    def _multiplied(self, left: Any, right: Any) -> Any:
        return multiplied(self.xp, self._interface.precision, left, right)


def multiplied(xp: Any, precision: Precision, left: Any, right: Any) -> Any:
    """Return a product of matrices as exact as a kernel's; NumPy and CuPy lack products of some 16-bit dtypes."""
    if xp.__name__ == "jax.numpy":
        return xp.matmul(left, right, precision="highest")
    if xp.__name__ == "torch":
        return xp.matmul(left, right)
    wide = (cast(side, precision.arithmetic_dtype) for side in (left, right))
    return cast(xp.matmul(*wide), precision.storage_dtype)


def is_eager(xp: Any, array: Any) -> bool:
    """Say whether an array is torch's, and neither autograd nor a transform nor a compiler has to see what is done to it."""
    if xp.__name__ != "torch" or (array.requires_grad and xp.is_grad_enabled()):
        return False
    return not xp._C._are_functorch_transforms_active() and not xp.compiler.is_compiling()


def in_words(xp: Any, array: Any) -> Any:
    """View a tensor on a GPU as words of 16 bytes, if it can be, for a copy: torch copies 16-bit numbers at half the speed."""
    if not is_eager(xp, array) or not array.is_cuda or array.stride(-1) != 1:
        return array
    sizes = (array.shape[-1], array.storage_offset(), *array.stride()[:-1])
    is_aligned = array.data_ptr() % WORD_BYTES == 0 and all(size * array.itemsize % WORD_BYTES == 0 for size in sizes)
    return array.view(xp.complex128) if is_aligned else array
