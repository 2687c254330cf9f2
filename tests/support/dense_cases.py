"""Calls of dense cells, drawn: their arrays as a kernel takes them, and what plain loops in float64 make of them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from support.one_step import lower_step, lower_step_backward

from minrnn_gen.cell.language import Cell

Array = Any
# A gate without a product in front of those with one, a kink, and parameters.
LIGHT_GRU = {
    "name": "light_gru",
    "equations": (
        "z = sigmoid(W.z + R.z + u)\na = W.c + R.c\nc = max(a, 0) + leak * min(a, 0)\n"
        "h[t] = z * h[t-1] + (1 - z) * c * tanh(W.o)"
    ),
    "gates": ["o", "z", "c"],
    "parameters": ["leak", "u"],
}
# Nothing but the product.
LINEAR = {"name": "linear", "equations": "h[t] = W.h + R.h"}
MODELS: dict[str, Any] = {
    **{name: name for name in ("elman", "gru", "lstm", "slstm")},
    "light_gru": LIGHT_GRU,
    "linear": LINEAR,
}


@dataclass(frozen=True)
class DenseCell:
    """A cell with its sizes and dtypes; `lowered` is that of each pass."""

    cell: Cell
    heads: int
    head_dim: int
    storage: Any
    real: Any
    lowered: Mapping[str, Any]
    in_tf32: bool = field(default=False, kw_only=True)  # whether what R multiplies, and R, are rounded to tf32

    def multiplied(self, array: Array) -> Array:
        """Return what is multiplied in place of an array, in float64."""
        if not self.in_tf32:
            return array.astype(self.storage).astype(np.float64)
        # To 11 significant bits, ties away from zero.
        significand, exponent = np.frexp(array.astype(self.storage).astype(np.float64))
        return np.ldexp(np.trunc(significand * 2**11 + np.copysign(0.5, significand)), exponent - 11)

    @property
    def hidden(self) -> int:
        return self.heads * self.head_dim

    def forward(self, case: Case) -> Forward:
        """Run the forward kernel, on outputs that are poisoned."""
        raise NotImplementedError

    def backward(self, case: Case, saved: dict[str, Array]) -> Backward:
        """Run the backward kernel on what a forward saved, {state: [B, T, H]}."""
        raise NotImplementedError


def numpy_dtype(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def pointer(array: Array | None) -> Any:
    """The address of an array, which lives as long as this does."""
    address: Any = ctypes.c_void_p(None if array is None else array.ctypes.data)
    address.array = array
    return address


def integers(*values: int) -> tuple[ctypes.c_int64, ...]:
    return tuple(map(ctypes.c_int64, values))


def strides(name: str, array: Array) -> dict[str, ctypes.c_int64]:
    """The strides of an array [B, T, ..., H] by the names of their parameters."""
    axes = {2: ("batch", "time"), 3: ("batch", "time", "channel"), 4: ("batch", "time", "gate", "channel")}[array.ndim]
    counts = integers(*(stride // array.itemsize for stride in array.strides))
    return {f"{name}_{axis}_stride": count for axis, count in zip(axes, counts, strict=True)}


def strided(name: str, array: Array) -> dict[str, Any]:
    """The parameters of an array with strides, by name."""
    return {name: pointer(array), **strides(name, array)}


def named(prefix: str, arrays: Mapping[str, Array | None]) -> dict[str, Any]:
    """The parameters of the arrays that a cell has by name."""
    return {f"{prefix}_{name}": pointer(array) for name, array in arrays.items()}


def bits_of_float32(*vectors: Array | None) -> ctypes.c_uint:
    """Which of the optional vectors are float32."""
    are_float32 = [vector is not None and vector.dtype == np.float32 for vector in vectors]
    return ctypes.c_uint(sum(1 << bit for bit, is_float32 in enumerate(are_float32) if is_float32))


# Of logical [B, T, ..., H] to memory, as the axes are ordered there.
LAYOUTS = {"BTD": lambda n: range(n), "TBD": lambda n: (1, 0, *range(2, n)), "BDT": lambda n: (0, *range(2, n), 1)}


@dataclass(frozen=True, repr=False)
class Case:
    """A call; arrays are logical [B, T, ..., H] in any memory order, `sequences` are (batch row, begin, end)."""

    kernels: DenseCell
    x: Array
    R: Array
    bias: Array | None
    recurrent_bias: Array | None
    parameters: dict[str, Array]
    initial: dict[str, Array] | None
    resets: Array | None
    sequences: list[tuple[int, int, int]]
    packed: bool
    begins: Array | None
    ends: Array | None
    reverse: bool
    kept: str
    dy: Array
    dfinal: dict[str, Array] | None
    clip: float
    with_sums: bool
    layout: str
    rows_by_time: bool
    gap: int
    seed: int

    def __repr__(self) -> str:
        arrays = {name: one.shape for name, one in vars(self).items() if isinstance(one, np.ndarray)}
        kernels = (self.kernels.cell.name, self.kernels.heads, self.kernels.storage.name)
        return str({**vars(self), **arrays, "kernels": kernels, "initial": bool(self.initial), "dfinal": bool(self.dfinal)})

    @property
    def time(self) -> int:
        return max((end - begin for _, begin, end in self.sequences), default=self.x.shape[1])

    def rows(self, sequence: int) -> list[int]:
        """The rows of a sequence in the order in which time runs."""
        _, begin, end = self.sequences[sequence]
        return list(range(begin, end))[:: -1 if self.reverse else 1]

    def initial_of(self, name: str) -> Array:
        shape = (len(self.sequences), self.kernels.hidden)
        return np.zeros(shape) if self.initial is None else self.initial[name].astype(np.float64)

    def empty_like(self, array: Array, dtype: Any = None) -> Array:
        """An array of the same axes, poisoned, in this case's layout."""
        return in_layout(np.full(array.shape, np.nan), self.layout, dtype or self.kernels.storage, self.gap)


def in_layout(array: Array, layout: str, dtype: Any, gap: int = 1) -> Array:
    """Return a copy whose memory has the layout's order, with room for `gap` values behind each innermost run."""
    order = list(LAYOUTS[layout](array.ndim))
    inner = array.transpose(order)
    room = np.empty((*inner.shape[:-1], inner.shape[-1] + gap), dtype)
    room[..., :-gap] = inner
    return room[..., :-gap].transpose(np.argsort(order))


def of_sequence(case: Case, array: Array) -> Array:
    """Stretch the batch axis: where sequences are packed into one row, all of them start from it."""
    return np.lib.stride_tricks.as_strided(
        array, (len(case.sequences), *array.shape[1:]), (0, *array.strides[1:])
    ) if case.packed else array  # fmt: skip


@st.composite
def cases(
    draw: st.DrawFn,
    of_kernels: st.SearchStrategy[DenseCell],
    layouts: tuple[str, ...] = tuple(LAYOUTS),
    gap: int = 1,
    kept: tuple[str, ...] = ("none", "storage", "real"),
    reverse: tuple[bool, ...] = (False, True),
    has_resets: tuple[bool, ...] = (False, True),
) -> Case:
    kernels = draw(of_kernels)
    cell, hidden = kernels.cell, kernels.hidden
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    time, packed = draw(st.sampled_from((0, 1, 2, 9))), draw(st.booleans())
    batch, layout = 1 if packed else draw(st.integers(0, 5)), draw(st.sampled_from(layouts))
    has_ends = draw(st.booleans())
    lengths = draw(st.lists(st.integers(0, time), min_size=batch, max_size=batch)) if has_ends else [time] * batch
    sequences = [(row, 0, length) for row, length in enumerate(lengths)]
    if packed:
        cuts = [0, *sorted(draw(st.lists(st.integers(0, time), max_size=6))), time]
        sequences = [(0, begin, end) for begin, end in pairwise(cuts)]
    vector_dtypes = st.sampled_from((None, kernels.storage, np.dtype(np.float32)))

    def vector(*shape: int) -> Array | None:
        dtype = draw(vector_dtypes)
        return None if dtype is None else random.normal(size=shape).astype(dtype)

    def states() -> dict[str, Array]:
        return {name: random.normal(size=(len(sequences), hidden)).astype(kernels.real) for name in cell.states}

    products = len(cell.recurrent_gates)
    return Case(
        kernels,
        x=in_layout(random.normal(size=(batch, time, len(cell.gates), hidden)), layout, kernels.storage, gap),
        # Of norm below 1: errors do not grow.
        R=(random.uniform(-1, 1, (products, kernels.heads, kernels.head_dim, kernels.head_dim)) / kernels.head_dim).astype(
            kernels.storage
        ),
        bias=vector(len(cell.gates), hidden),
        recurrent_bias=vector(products, hidden),
        parameters={
            name: random.normal(size=hidden).astype(draw(vector_dtypes) or kernels.storage) for name in cell.parameters
        },
        initial=states() if draw(st.booleans()) else None,
        resets=random.random((batch, time)) < draw(st.sampled_from((0, 0.3, 1))) if draw(st.sampled_from(has_resets)) else None,
        sequences=sequences,
        packed=packed,
        begins=np.array([begin for _, begin, _ in sequences], np.int64) if packed else None,
        ends=np.array([end for *_, end in sequences], np.int64) if packed or has_ends else None,
        reverse=draw(st.sampled_from(reverse)),
        kept=draw(st.sampled_from(kept)),
        dy=in_layout(random.normal(size=(batch, time, hidden)), layout, kernels.storage, gap),
        dfinal=states() if draw(st.booleans()) else None,
        clip=draw(st.sampled_from((0.0, 0.1))),
        with_sums=draw(st.booleans()),
        layout=layout,
        rows_by_time=draw(st.booleans()),
        gap=gap,
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@dataclass
class Forward:
    y: Array
    kept: dict[str, Array]
    final: dict[str, Array]


@dataclass
class Backward:
    x: Array
    products: Array
    first_products: Array
    initial: dict[str, Array]
    sums: Array | None


def poisoned_forward(case: Case) -> Forward:
    """Return what a forward writes, before it does."""
    kernels, cell = case.kernels, case.kernels.cell
    kept_dtype = kernels.storage if case.kept == "storage" else kernels.real
    return Forward(
        case.empty_like(case.dy),
        {name: case.empty_like(case.dy, kept_dtype) for name in cell.states},
        {name: np.full((len(case.sequences), kernels.hidden), np.nan, kernels.real) for name in cell.states},
    )


def poisoned_backward(case: Case) -> Backward:
    """Return what a backward writes, before it does; 0 is what it leaves alone."""
    kernels, cell, count = case.kernels, case.kernels.cell, len(case.sequences)
    inner = (kernels.heads, len(cell.recurrent_gates), kernels.head_dim)
    first_products = np.full((count, *inner), np.nan, kernels.storage)
    for sequence in range(count):
        if not case.rows(sequence):
            first_products[sequence] = 0
    values = len(cell.gates) + len(cell.recurrent_gates) + len(cell.parameters)
    return Backward(
        case.empty_like(case.x),
        np.zeros((case.x.shape[0] * case.x.shape[1], *inner), kernels.storage),
        first_products,
        {name: np.full((count, kernels.hidden), np.nan, kernels.real) for name in cell.states},
        np.full((values, count, kernels.hidden), np.nan, kernels.real) if case.with_sums else None,
    )


def poison_rows_of_sequences(case: Case, written: Backward) -> None:
    """Poison the gradients of products at every row of a sequence, for a kernel that writes them all."""
    poisoned = np.zeros((*case.x.shape[:2], *written.products.shape[1:]), written.products.dtype)
    for sequence, (batch, _, _) in enumerate(case.sequences):
        poisoned[batch, case.rows(sequence)] = np.nan
    written.products[...] = by_rows(case, poisoned)


def backward_arguments(case: Case, saved: dict[str, Array], products: tuple[Array, Array], written: Backward) -> dict[str, Any]:
    """The arguments of a backward, by name, beside those that both passes have and what the steps share."""
    read = case.kernels.lowered["backward"].read_states
    saved_arrays = {name: in_layout(saved[name], case.layout, saved[name].dtype, case.gap) for name in read}
    states = case.kernels.cell.states
    by_batch, by_time = integers(*row_strides(case))
    return {
        **named("saved", saved_arrays),
        **strides("y", of_sequence(case, case.empty_like(case.dy))),
        **strided("dy", of_sequence(case, case.dy)),
        **named("dfinal", {name: None if case.dfinal is None else case.dfinal[name] for name in states}),
        "products": pointer(products[0]),
        "first_products": pointer(products[1]),
        "row_batch_stride": by_batch,
        "row_time_stride": by_time,
        **strided("dx", of_sequence(case, written.x)),
        "dproducts": pointer(written.products),
        "first_dproducts": pointer(written.first_products),
        **named("dinitial", written.initial),
        "sums": pointer(written.sums),
    }


def products_read(case: Case, saved: dict[str, Array]) -> tuple[Array, Array]:
    """Return R by the outputs of all rows and by the initial one, as a backward reads them."""
    kernels, output = case.kernels, case.kernels.lowered["backward"].output_state
    of_rows = products_of(case, by_rows(case, saved[output]))
    of_initial = products_of(case, case.initial_of(output).astype(kernels.storage))
    return of_rows.astype(kernels.storage), of_initial.astype(kernels.storage)


def shared_arguments(case: Case) -> dict[str, Any]:
    """The arguments that both passes have, by name: the input, and the boundaries of sequences."""
    resets: dict[str, Any] = {"resets": pointer(None), "resets_batch_stride": 0, "resets_time_stride": 0}
    if case.resets is not None:
        resets = strided("resets", of_sequence(case, case.resets))
    batch, time = integers(len(case.sequences), case.time)
    states = case.kernels.cell.states
    return {
        **strided("x", of_sequence(case, case.x)),
        "bias": pointer(case.bias),
        "recurrent_bias": pointer(case.recurrent_bias),
        **named("parameter", case.parameters),
        "float32_vectors": bits_of_float32(case.bias, case.recurrent_bias, *case.parameters.values()),
        **named("initial", {name: None if case.initial is None else case.initial[name] for name in states}),
        **resets,
        "begins": pointer(case.begins),
        "ends": pointer(case.ends),
        "batch": batch,
        "time": time,
    }


def outputs_by_name(case: Case, written: Forward) -> dict[str, Any]:
    """Outputs of a forward, as arguments by name."""
    return {
        **strided("y", of_sequence(case, written.y)),
        **named("kept", {name: None if case.kept == "none" else array for name, array in written.kept.items()}),
        **named("final", written.final),
    }


def products_of(case: Case, outputs: Array) -> Array:
    """R by [..., H] in float64, both rounded as a kernel multiplies them: [..., HEADS, PRODUCTS, case.kernels.head_dim]."""
    multiplied = case.kernels.multiplied
    by_head = multiplied(outputs).reshape(*outputs.shape[:-1], case.kernels.heads, case.kernels.head_dim)
    return np.ascontiguousarray(np.einsum("gnoi,...ni->...ngo", multiplied(case.R), by_head))


def loops_forward(case: Case) -> Forward:
    """The same by loops in float64; what R multiplies is rounded as a kernel does it."""
    kernels, cell = case.kernels, case.kernels.cell
    step, output = lower_step(cell), kernels.lowered["forward"].output_state
    y, final = np.full(case.dy.shape, np.nan), {name: np.array(case.initial_of(name)) for name in cell.states}
    kept = {name: np.full(case.dy.shape, np.nan) for name in cell.states}
    for sequence, (batch, _, _) in enumerate(case.sequences):
        state = {name: case.initial_of(name)[sequence] for name in cell.states}
        for row in case.rows(sequence):
            is_reset = case.resets is not None and case.resets[batch, row]
            product = products_of(case, state[output]).swapaxes(0, 1).reshape(-1, kernels.hidden)
            if is_reset:
                state, product = {name: np.zeros(kernels.hidden) for name in state}, np.zeros(product.shape)
            after = step.evaluate(inputs(case, batch, row, product, state))
            state = {name: after[f"state_{name}"] for name in cell.states}
            y[batch, row] = after["y"]
            for name, one in state.items():
                kept[name][batch, row] = one
        for name, one in state.items():
            final[name][sequence] = one
    return Forward(y, kept, final)


def inputs(case: Case, batch: int, row: int, product: Array, previous: dict[str, Array]) -> dict[str, Array]:
    """The inputs of a step by name, of products [PRODUCTS, H] without their bias."""
    cell = case.kernels.cell
    gates = case.x[batch, row].astype(np.float64) + (0 if case.bias is None else case.bias.astype(np.float64))
    biased = product + (0 if case.recurrent_bias is None else case.recurrent_bias.astype(np.float64))
    named = {f"W_{gate}": gates[index] for index, gate in enumerate(cell.gates)}
    named |= {f"R_{gate}": biased[index] for index, gate in enumerate(cell.recurrent_gates)}
    named |= {f"previous_{name}": one for name, one in previous.items()}
    return named | {f"parameter_{name}": one.astype(np.float64) for name, one in case.parameters.items()}


def row_strides(case: Case) -> tuple[int, int]:
    batch, time = case.x.shape[:2]
    return (0, 1) if case.packed else (1, batch) if case.rows_by_time else (time, 1)


def by_rows(case: Case, array: Array) -> Array:
    """[B, T, ...] as rows in the order of `row_strides`."""
    ordered = array.swapaxes(0, 1) if case.rows_by_time else array
    return np.ascontiguousarray(ordered.reshape(-1, *array.shape[2:]))


def loops_backward(case: Case, saved: dict[str, Array]) -> Backward:
    """The same by loops in float64; what R multiplies is rounded as a kernel does it."""
    kernels, cell, count = case.kernels, case.kernels.cell, len(case.sequences)
    lowered, step = kernels.lowered["backward"], lower_step_backward(cell)
    output, products = lowered.output_state, len(cell.recurrent_gates)
    inner = (kernels.heads, products, kernels.head_dim)
    dx, dproducts = np.full(case.x.shape, np.nan), np.zeros((*case.x.shape[:2], *inner))
    first_dproducts, dinitial = np.zeros((count, *inner)), {}
    sums = np.zeros((len(cell.gates) + products + len(cell.parameters), count, kernels.hidden))
    zeros = np.zeros(kernels.hidden)
    for name in cell.states:
        dinitial[name] = np.zeros((count, kernels.hidden)) if case.dfinal is None else case.dfinal[name].astype(np.float64)
    for sequence, (batch, _, _) in enumerate(case.sequences):
        dstate, dhidden = {name: one[sequence] for name, one in dinitial.items()}, zeros
        rows = case.rows(sequence)
        for t in reversed(range(len(rows))):
            row, is_reset = rows[t], case.resets is not None and case.resets[batch, rows[t]]
            before = {name: case.initial_of(name)[sequence] for name in cell.states}
            if t:
                before |= {name: saved[name][batch, rows[t - 1]].astype(np.float64) for name in lowered.read_states}
                before[output] = saved[output][batch, rows[t - 1]].astype(np.float64)
            product = products_of(case, before[output]).swapaxes(0, 1).reshape(-1, kernels.hidden)
            if is_reset:
                before, product = dict.fromkeys(before, zeros), np.zeros(product.shape)
            incoming = {f"gradient_state_{name}": one for name, one in dstate.items()}
            incoming[f"gradient_state_{output}"] = incoming[f"gradient_state_{output}"] + dhidden
            if case.clip and t + 1 < len(rows):
                incoming[f"gradient_state_{output}"] = np.clip(incoming[f"gradient_state_{output}"], -case.clip, case.clip)
            incoming["gradient_y"] = case.dy[batch, row].astype(np.float64)
            found = step.evaluate(inputs(case, batch, row, product, before) | incoming)
            of_gates = np.stack([found[f"gradient_W_{gate}"] for gate in cell.gates])
            of_products = np.stack([found[f"gradient_R_{gate}"] for gate in cell.recurrent_gates])
            dx[batch, row] = of_gates
            of_parameters = [found[f"gradient_parameter_{name}"] for name in cell.parameters]
            sums[:, sequence] += np.concatenate([of_gates, of_products, *(one[None] for one in of_parameters)])
            dstate = {name: zeros if is_reset else found[f"gradient_previous_{name}"] for name in cell.states}
            cut = np.zeros(of_products.shape) if is_reset else of_products
            cut = (
                cut.astype(kernels.storage)
                .reshape(products, kernels.heads, case.kernels.head_dim)
                .swapaxes(0, 1)
                .astype(np.float64)
            )
            (first_dproducts if t == 0 else dproducts)[(sequence,) if t == 0 else (batch, rows[t - 1])] = cut
            dhidden = np.einsum("gnoi,ngo->ni", kernels.multiplied(case.R), kernels.multiplied(cut)).reshape(-1)
        for name, one in dstate.items():
            dinitial[name][sequence] = one + (dhidden if name == output else 0)
    return Backward(dx, by_rows(case, dproducts), first_dproducts, dinitial, sums if case.with_sums else None)


# Steps of few roundings each, of numbers of size 1, whose errors do not grow because R's norm is below 1; in bf16 one rounding
# that falls the other way is a whole unit in the last place, 2 u, of what R multiplies, and of y. In tf32 of the former.
TOLERANCES = {
    "float64": 2.0**-53 * 2**10, "float32": 2.0**-24 * 2**10,
    "bfloat16": 2.0**-8 * 4, "float16": 2.0**-11 * 4, "tf32": 2.0**-11 * 4,
}  # fmt: skip


def assert_close(case: Case, found: Array, expected: Array, what: str) -> None:
    tolerance = TOLERANCES["tf32" if case.kernels.in_tf32 else case.kernels.storage.name]
    size = np.nanmax(np.abs(expected), initial=1)
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=tolerance, atol=tolerance * size, err_msg=what)


def saved_of(case: Case) -> dict[str, Array]:
    """Saved arrays of a forward: y in storage, the other states unrounded; rows of no sequence are poisoned."""
    kernels, output = case.kernels, case.kernels.lowered["backward"].output_state
    kept = loops_forward(case).kept
    return {name: one.astype(kernels.storage if name == output else kernels.real) for name, one in kept.items()}


def check_forward(case: Case) -> None:
    found, expected = case.kernels.forward(case), loops_forward(case)
    assert_close(case, found.y, expected.y, "y")
    for name, one in expected.final.items():
        assert_close(case, found.final[name], one, f"final {name}")
        # What is not asked for is not written.
        kept = expected.kept[name] if case.kept != "none" else np.full(case.dy.shape, np.nan)
        assert_close(case, found.kept[name], kept, f"kept {name}")


def check_backward(case: Case) -> None:
    saved = saved_of(case)
    found, expected = case.kernels.backward(case, saved), loops_backward(case, saved)
    assert_close(case, found.x, expected.x, "dx")
    assert_close(case, found.products, expected.products, "dproducts")
    assert_close(case, found.first_products, expected.first_products, "dproducts of the initial output")
    for name, one in expected.initial.items():
        assert_close(case, found.initial[name], one, f"dinitial {name}")
    if expected.sums is not None:
        assert_close(case, found.sums, expected.sums, "sums")


def assert_same_bits(case: Case, other: Case) -> None:
    """All that both passes write."""
    for one, another in zip(_everything(case), _everything(other), strict=True):
        assert one.tobytes() == another.tobytes()


def _everything(case: Case) -> list[Array]:
    forward, backward = case.kernels.forward(case), case.kernels.backward(case, saved_of(case))
    arrays = [forward.y, *forward.kept.values(), *forward.final.values(), backward.x, backward.products]
    return [*arrays, backward.first_products, *backward.initial.values(), *(() if backward.sums is None else (backward.sums,))]


def check_that_nan_stays(case: Case, data: st.DataObject) -> None:
    """Poisoned at one step between two resets: no other step has it, forward or backward, nor has an initial gradient."""
    occupied = [sequence for sequence in range(len(case.sequences)) if case.rows(sequence)]
    if not occupied:
        return
    poisoned = data.draw(st.sampled_from(occupied))
    row, rows = case.sequences[poisoned][0], case.rows(poisoned)
    at = data.draw(st.integers(0, len(rows) - 1))
    resets = np.zeros(case.x.shape[:2], bool) if case.resets is None else case.resets.copy()
    resets[row, rows[at]] = True
    if at + 1 < len(rows):
        resets[row, rows[at + 1]] = True
    case = replace(case, resets=resets)
    bad = replace(case, x=case.x.copy(order="K"))
    bad.x[row, rows[at]] = np.nan
    found, expected = bad.kernels.forward(bad), case.kernels.forward(case)
    touched = np.zeros(case.x.shape[:2], bool)
    touched[row, rows[at]] = True
    assert np.isnan(found.y[touched].astype(float)).all()
    assert found.y[~touched].tobytes() == expected.y[~touched].tobytes()
    saved = saved_of(case)
    bad_saved = {name: np.where(touched[..., None], np.nan, one).astype(one.dtype) for name, one in saved.items()}
    found_back, expected_back = bad.kernels.backward(bad, bad_saved), case.kernels.backward(case, saved)
    assert found_back.x[~touched].tobytes() == expected_back.x[~touched].tobytes()
    for name, one in expected_back.initial.items():
        assert found_back.initial[name].tobytes() == one.tobytes()
