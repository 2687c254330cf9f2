"""A call accepts what it should and leaves it unchanged; anything else is refused in one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kernel_inputs import LAYOUTS, arranged, drawn_gates, drawn_parameters, drawn_state
from support.uncompiled_kernels import host_kernel, planned_again

from minrnn_gen import Kernel
from minrnn_gen.api import compile as compile_kernel
from minrnn_gen.call.array import inspect_array, numpy_dtype
from minrnn_gen.errors import BadInput, MinrnnError
from minrnn_gen.precision import PRECISION_NAMES, precision_of

BATCH, TIME, HIDDEN, INPUTS = 3, 6, 4, 5
X = np.zeros((BATCH, TIME, 2, HIDDEN), np.float32)  # of min_gru, whose gates are z and h
X_3 = np.zeros((BATCH, TIME, 3, HIDDEN), np.float32)  # of rg_lru: r, i, x; its parameter is decay
RAW_X = np.zeros((BATCH, TIME, INPUTS), np.float32)
WEIGHT = np.zeros((2 * HIDDEN, INPUTS), np.float32)
STATE = np.zeros((BATCH, HIDDEN), np.float32)
DECAY = np.zeros(HIDDEN, np.float32)
R_3 = np.zeros((3, 2, 2, 2), np.float32)  # of gru: r, z, n; of two heads


class OnlyDlpack:
    """An array of a library that this package has never heard of."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, *positional: Any, **named: Any) -> Any:
        return self._array.__dlpack__(*positional, **named)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class HalfDlpack:
    def __dlpack__(self, **_: Any) -> object:
        return object()


class NoSuchDevice:
    __cuda_array_interface__ = ("not", "a", "mapping")


# (what is wrong, model, arguments, what the sentence has to name: the array, what it is, what is allowed)
BAD = (
    ("R without a product", "min_gru", {"R": np.zeros((1, 1, 4, 4), np.float32)}, ("R", "no recurrent product")),
    ("no R", "gru", {"x": X_3}, ("R is missing", "[gates, heads, out, in] = [3, 2, 2, 2]")),
    ("R as one matrix", "gru", {"x": X_3, "R": np.zeros((12, 4), np.float32)}, ("R", "[12, 4]", "[3, 2, 2, 2]")),
    ("R without heads", "gru", {"x": X_3, "R": np.zeros((3, 1, 4, 4), np.float32)}, ("R", "[3, 1, 4, 4]", "[3, 2, 2, 2]")),
    ("a wider R", "gru", {"x": X_3, "R": R_3.astype(float)}, ("R", "float64", "float32")),
    ("R turned", "gru", {"x": X_3, "R": R_3.swapaxes(2, 3)}, ("R", "[8, 4, 1, 2]", "[8, 4, 2, 1]", "contiguous")),
    ("a list of R", "gru", {"x": X_3, "R": [[1.0]]}, ("R", "list", "array")),
    (
        "a short recurrent bias",
        "gru",
        {"x": X_3, "R": R_3, "recurrent_bias": np.zeros((3, 4), np.float32)},
        ("recurrent_bias", "[3, 4]", "[3, 2, 2]"),
    ),
    (
        "a wide recurrent bias",
        "gru",
        {"x": X_3, "R": R_3, "recurrent_bias": np.zeros((3, 2, 2))},
        ("recurrent_bias", "float64", "float32"),
    ),
    (
        "a recurrent bias nobody asked for",
        "elman",
        {"x": X[:, :, :1], "R": R_3[:1], "recurrent_bias": np.zeros((1, 2, 2), np.float32)},
        ("recurrent_bias", "recurrent_bias: false", "leave it out"),
    ),
    ("its bias as well", "min_gru", {"recurrent_bias": np.zeros((1, 1, 4), np.float32)}, ("recurrent_bias", "leave it out")),
    ("a list", "min_gru", {"x": [[1.0]]}, ("x", "list", "NumPy")),
    ("nothing", "min_gru", {"x": None}, ("x", "NoneType", "array")),
    ("a masked array", "min_gru", {"x": np.ma.masked_equal(X, 0)}, ("x", "masked", "plain")),
    ("half a protocol", "min_gru", {"x": HalfDlpack()}, ("x", "HalfDlpack", "DLPack")),
    ("a broken protocol", "min_gru", {"x": NoSuchDevice()}, ("x", "NoSuchDevice", "DLPack")),
    ("a class", "min_gru", {"x": np.ndarray}, ("x", "type", "array")),
    ("an empty dtype", "min_gru", {"x": np.zeros(X.shape, "V0")}, ("x", "void", "float32")),
    ("bytes in the other order", "min_gru", {"x": X.astype(">f4")}, ("x", ">f4", "float32")),
    ("objects", "min_gru", {"x": X.astype(object)}, ("x", "object", "float32")),
    ("a wider dtype", "min_gru", {"x": X.astype(np.float64)}, ("x", "float64", "float32")),
    ("a narrower dtype", "min_gru", {"x": X.astype(np.float16)}, ("x", "float16", "float32")),
    ("integers", "min_gru", {"x": X.astype(np.int64)}, ("x", "int64", "float32")),
    ("too few axes", "min_gru", {"x": X[0]}, ("x", "[6, 2, 4]", "[batch, time, gates=2, hidden=4]")),
    ("a linear layer's output", "min_gru", {"x": X.reshape(BATCH, TIME, -1)}, ("x", "[3, 6, 8]", "gates=2, hidden=4")),
    ("a gate too many", "min_gru", {"x": X_3}, ("x", "[3, 6, 3, 4]", "gates=2", "gates axis is 3")),
    ("another hidden size", "min_gru", {"x": X[..., :3]}, ("x", "[3, 6, 2, 3]", "hidden=4", "hidden axis is 3")),
    (
        "a stride",
        "min_gru",
        {"x": np.zeros((BATCH, TIME, 2, 8), np.float32)[..., ::2]},
        ("x", "stride 2", "hidden", "stride 1"),
    ),
    ("a reversed axis", "min_gru", {"x": X[..., ::-1]}, ("x", "stride -1", "hidden", "stride 1")),
    ("odd strides", "min_gru", {"x": np.ndarray(X.shape, np.float32, bytes(999), strides=(7, 1, 2, 4))}, ("x", "7", "4-byte")),
    ("a state of another batch", "min_gru", {"state": {"h": STATE[:2]}}, ("state['h']", "[2, 4]", "[3, 4]")),
    ("a state in double", "min_gru", {"state": {"h": STATE.astype(float)}}, ("state['h']", "float64", "float32")),
    ("a state with strides", "min_gru", {"state": {"h": STATE.repeat(2, 1)[:, ::2]}}, ("state['h']", "[8, 2]", "[4, 1]")),
    ("an unknown state", "min_gru", {"state": {"c": STATE}}, ("state", "'c'", "h")),
    ("a state's array", "min_gru", {"state": STATE}, ("state", "ndarray", "mapping of h")),
    ("a state of no name", "min_gru", {"state": {3: STATE}}, ("state", "3", "h")),
    ("a state that is none", "min_gru", {"state": {"h": None}}, ("state['h']", "NoneType", "array")),
    ("one bias per channel", "min_gru", {"bias": DECAY}, ("bias", "[4]", "[2, 4]")),
    ("a bias in double", "min_gru", {"bias": np.zeros((2, HIDDEN))}, ("bias", "float64", "float32")),
    ("a bias with strides", "min_gru", {"bias": np.zeros((4, 4), np.float32)[::2]}, ("bias", "[8, 1]", "[4, 1]")),
    ("a parameter too many", "min_gru", {"parameters": {"decay": DECAY}}, ("parameters", "'decay'", "no parameters")),
    ("a missing parameter", "rg_lru", {"x": X_3}, ("parameters", "'decay'", "[hidden]")),
    ("a misspelled parameter", "rg_lru", {"x": X_3, "parameters": {"decai": DECAY}}, ("'decai'", "did you mean 'decay'")),
    ("a short parameter", "rg_lru", {"x": X_3, "parameters": {"decay": DECAY[:3]}}, ("parameters['decay']", "[3]", "[4]")),
    ("a weight nobody asked for", "min_gru", {"weight": WEIGHT}, ("weight", "input_size")),
    ("no weight", "projected", {"x": RAW_X}, ("weight", "missing", "[gates * hidden, input]")),
    ("a weight turned", "projected", {"x": RAW_X, "weight": WEIGHT.T}, ("weight", "[5, 8]", "[8, 5]")),
    ("a weight in columns", "projected", {"x": RAW_X, "weight": np.asfortranarray(WEIGHT)}, ("weight", "[1, 8]", "[5, 1]")),
    ("x with gaps", "projected", {"x": RAW_X[:, ::2], "weight": WEIGHT}, ("x", "[30, 10, 1]", "[15, 5, 1]")),
    ("pre-activations", "projected", {"x": X, "weight": WEIGHT}, ("x", "[3, 6, 2, 4]", "[batch, time, input=5]")),
)
# A call with sequences: (what is wrong, the kernel's further spec, arguments, what the sentence has to name)
BAD_SEQUENCES = (
    ("resets as numbers", {}, {"resets": np.full((BATCH, TIME), 2, np.uint8)}, ("resets", "uint8", "0 and 1", "bool")),
    ("resets as complex numbers", {}, {"resets": np.zeros((BATCH, TIME), "F")}, ("resets", "complex64", "bool")),
    ("resets by time", {}, {"resets": np.zeros((TIME, BATCH), bool)}, ("resets", "[6, 3]", "[3, 6]")),
    ("a list of floats", {}, {"lengths": [1.0, 2, 3]}, ("lengths[0]", "1.0", "an integer")),
    ("a list of lists", {}, {"lengths": [[1, 2], [3]]}, ("lengths[0]", "[1, 2]", "an integer")),
    ("a list of flags", {}, {"lengths": [1, True, 3]}, ("lengths[1]", "true", "an integer")),
    ("a list with nothing", {}, {"x": X[:1], "cu_seqlens": [0, None]}, ("cu_seqlens[1]", "null", "an integer")),
    ("a list beyond 64 bits", {}, {"lengths": [1, 2, 2**63]}, ("lengths[2]", "9223372036854775808", "64 bits")),
    ("a list too short", {}, {"lengths": [1, 2]}, ("lengths", "[2]", "[3]")),
    ("a listed length beyond time", {}, {"lengths": (6, 7, 0)}, ("lengths[1]", "7", "0 to 6")),
    ("an empty list of bounds", {}, {"x": X[:1], "cu_seqlens": []}, ("cu_seqlens", "[0]", "[sequences + 1]")),
    ("a number of lengths", {}, {"lengths": 3}, ("lengths", "int", "array")),
    ("lengths as floats", {}, {"lengths": np.ones(BATCH, np.float32)}, ("lengths", "float32", "int64 or int32")),
    ("unsigned lengths", {}, {"lengths": np.ones(BATCH, np.uint32)}, ("lengths", "uint32", "int64 or int32")),
    ("a length too few", {}, {"lengths": np.ones(BATCH - 1, int)}, ("lengths", "[2]", "[3]")),
    ("lengths with gaps", {}, {"lengths": np.ones(2 * BATCH, int)[::2]}, ("lengths", "[2]", "[1]", "contiguous")),
    ("a length beyond time", {}, {"lengths": np.array([6, 7, 0], np.int32)}, ("lengths[1]", "7", "0 to 6")),
    ("a negative length", {}, {"lengths": np.array([6, 6, -1])}, ("lengths[2]", "-1", "0 to 6")),
    ("a length beyond bits", {}, {"lengths": np.array([6, 2**62, 0])}, ("lengths[1]", "0 to 6")),
    ("both", {}, {"lengths": np.ones(1, int), "cu_seqlens": np.array([0, 6])}, ("lengths", "cu_seqlens", "both")),
    ("packed by time", {"layout": "TBD"}, {"cu_seqlens": np.array([0, 3])}, ("cu_seqlens", "TBD", "BTD")),
    ("packed with a batch", {}, {"cu_seqlens": np.array([0, 6])}, ("cu_seqlens", "batch of 3", "[1, total, ...]")),
    ("no bounds", {}, {"x": X[:1], "cu_seqlens": np.zeros(0, int)}, ("cu_seqlens", "[0]", "[sequences + 1]")),
    ("a table of bounds", {}, {"x": X[:1], "cu_seqlens": np.zeros((1, 2), int)}, ("cu_seqlens", "[1, 2]")),
    ("bounds as floats", {}, {"x": X[:1], "cu_seqlens": np.array([0.0, 6.0])}, ("cu_seqlens", "float64", "int64")),
    ("a late start", {}, {"x": X[:1], "cu_seqlens": np.array([1, 6])}, ("cu_seqlens", "starts with 1", "0 is")),
    ("an early end", {}, {"x": X[:1], "cu_seqlens": np.array([0, 5])}, ("cu_seqlens", "ends with 5", "6")),
    ("bounds that fall", {}, {"x": X[:1], "cu_seqlens": np.array([0, 7, 6])}, ("cu_seqlens[2]", "6", "less than 7")),
    (
        "states by row",
        {},
        {"x": X[:1], "cu_seqlens": np.array([0, 2, 6]), "state": {"h": STATE[:1]}},
        ("state['h']", "[1, 4]", "[2, 4]"),
    ),
    ("a flag of numbers", {}, {"all_states": np.array([True, False])}, ("all_states", "ndarray", "True or False")),
    ("one direction", {"direction": "bidirectional"}, {}, ("x", "[3, 6, 2, 4]", "directions=2, gates=2, hidden=4")),
    (
        "states of one direction",
        {"direction": "bidirectional"},
        {"x": np.stack([X, X], 2), "state": {"h": STATE}},
        ("state['h']", "[3, 4]", "[2, 3, 4]"),
    ),
    (
        "a bias of one direction",
        {"direction": "bidirectional"},
        {"x": np.stack([X, X], 2), "bias": np.zeros((2, HIDDEN), np.float32)},
        ("bias", "[2, 4]", "[2, 2, 4]"),
    ),
)


def kernel_of(model: str) -> Kernel:
    if model == "projected":
        return host_kernel("min_gru", HIDDEN, "fp32", input_size=INPUTS)
    heads = 2 if model in ("gru", "elman") else 1
    return host_kernel(model, HIDDEN, "fp32", heads=heads)


def one_sentence(error: MinrnnError) -> str:
    text = str(error)
    assert text and text.isprintable() and len(text) < 400 and not text.endswith("."), text
    return text


@pytest.mark.parametrize(("model", "arguments", "named"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_arrays_are_named(model: str, arguments: dict[str, Any], named: tuple[str, ...]) -> None:
    if isinstance(arguments.get("x"), NoSuchDevice):
        pytest.importorskip(
            "cupy", reason="CuPy is not installed, which reads what says that it is on a GPU", exc_type=ImportError
        )
    with pytest.raises(BadInput) as caught:
        kernel_of(model)(**({"x": X} | arguments))
    text = one_sentence(caught.value)
    assert [part for part in named if part not in text] == [], text


@pytest.mark.parametrize(
    ("spec", "arguments", "named"), [row[1:] for row in BAD_SEQUENCES], ids=[row[0] for row in BAD_SEQUENCES]
)
def test_bad_sequences_are_named(spec: dict[str, Any], arguments: dict[str, Any], named: tuple[str, ...]) -> None:
    kernel = host_kernel("min_gru", HIDDEN, "fp32", **spec)
    for run in (kernel, kernel.forward, kernel.reference):
        with pytest.raises(BadInput) as caught:
            run(**({"x": X} | arguments))
        text = one_sentence(caught.value)
        assert [part for part in named if part not in text] == [], text


@pytest.mark.parametrize("kind", [list, tuple])
def test_lengths_and_boundaries_may_be_listed(kind: type) -> None:
    kernel = kernel_of("min_gru")
    for name, x, values in (("lengths", X, [6, 0, 3]), ("cu_seqlens", X[:1], [0, 2, 2, 6])):
        y, state, saved = kernel.forward(x, **{name: kind(values)})
        expected, expected_state, expected_saved = kernel.forward(x, **{name: np.array(values)})
        assert (y == expected).all() and (state["h"] == expected_state["h"]).all()
        assert (kernel.backward(saved, y)["x"] == kernel.backward(expected_saved, y)["x"]).all()
        assert (kernel.reference(x, **{name: kind(values)})[0] == kernel.reference(x, **{name: np.array(values)})[0]).all()


@pytest.mark.parametrize("model", ["min_gru", "gru", "projected"])
def test_steps_take_a_step_of_a_sequence(model: str) -> None:
    """x[:, t] has gaps between its rows, and a part of its channels gaps between them."""
    random, kernel = np.random.default_rng(0), kernel_of(model)
    wide = random.normal(size=(BATCH, TIME, *kernel.interface.shape(kernel.interface.x_axes[2:], 0, 0)))
    x = wide.astype(np.float32).repeat(2, -1)[..., ::2]
    shapes = {"gru": {"R": R_3.shape}, "projected": {"weight": WEIGHT.shape}}.get(model, {})
    arguments = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    whole, state = kernel(np.ascontiguousarray(x), **arguments)[0], None
    for t in range(TIME):
        y, state = kernel.step(x[:, t], **arguments, state=state)
        np.testing.assert_allclose(y, whole[:, t], rtol=0, atol=1e-6)


GAPS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda dy: dy.transpose(1, 0, 2).copy().transpose(1, 0, 2),
    "turned": lambda dy: dy.transpose(2, 1, 0).copy().transpose(2, 1, 0),
    "reversed": lambda dy: dy[:, ::-1].copy()[:, ::-1],
    "every other": lambda dy: dy.repeat(2, 2)[..., ::2],
    "expanded": lambda dy: np.broadcast_to(dy[:1, :1, :1], dy.shape),
}


@pytest.mark.parametrize("gaps", GAPS)
@pytest.mark.parametrize("model", ["min_gru", "gru", "projected"])
def test_dy_may_have_any_strides(model: str, gaps: str) -> None:
    random, kernel = np.random.default_rng(0), kernel_of(model)
    x = random.normal(size={"gru": X_3, "projected": RAW_X}.get(model, X).shape).astype(np.float32)
    shapes = {"gru": {"R": R_3.shape}, "projected": {"weight": WEIGHT.shape}}.get(model, {})
    arguments = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    y, _, saved = kernel.forward(x, **arguments)
    dy = GAPS[gaps](random.normal(size=y.shape).astype(np.float32))
    assert not dy.flags.c_contiguous
    gradients, expected = kernel.backward(saved, dy), kernel.backward(saved, np.ascontiguousarray(dy))
    for name in ("x", *arguments):
        assert (gradients[name] == expected[name]).all(), name


def test_a_step_needs_one_direction() -> None:
    with pytest.raises(BadInput) as caught:
        host_kernel("min_gru", HIDDEN, "fp32", direction="bidirectional").step(X[:, 0])
    assert "bidirectional" in one_sentence(caught.value)


def test_gradients_are_those_of_the_kernel_that_saved() -> None:
    kernel = kernel_of("min_gru")
    y, _, saved = kernel.forward(X)
    first, second = kernel.backward(saved, y), kernel.backward(saved, y)
    assert (first["x"] == second["x"]).all() and (first["state"]["h"] == second["state"]["h"]).all()
    with pytest.raises(BadInput, match="another kernel"):
        host_kernel("min_gru", HIDDEN, "fp32", batch=7).backward(saved, y)
    with pytest.raises(BadInput, match="dy has shape"):
        kernel.backward(saved, y[1:])
    saved.release()
    with pytest.raises(BadInput, match="released"):
        kernel.backward(saved, y)


def test_a_spec_without_training_has_no_forward_for_gradients() -> None:
    with pytest.raises(BadInput, match="training"):
        host_kernel("min_gru", HIDDEN, "fp32", training=False).forward(X)


def test_a_cell_without_logarithms_is_named() -> None:
    with pytest.raises(BadInput) as caught:
        host_kernel("min_gru", HIDDEN, "fp32", scan_arithmetic="log")
    assert "scan_arithmetic: 'log'" in one_sentence(caught.value)


JUNK = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=3),
    st.just({"h": STATE}),
    st.builds(OnlyDlpack, st.just(STATE)),
    st.tuples(
        st.lists(st.integers(0, 4), max_size=5).map(tuple),
        st.sampled_from(["f2", "f4", "f8", ">f4", "i4", "i8", "?", "c8", "U1", "V4", ml_dtypes.bfloat16]),
    ).map(lambda drawn: np.zeros(*drawn)),
)


@given(
    x=JUNK,
    named=st.dictionaries(
        st.sampled_from(("weight", "bias", "R", "resets", "lengths", "cu_seqlens", "all_states", "recurrent_bias")), JUNK
    ),
    states=st.one_of(JUNK, st.dictionaries(st.sampled_from(("h", "c", 1)), JUNK)),
    parameters=st.one_of(JUNK, st.dictionaries(st.sampled_from(("decay", "h", None)), JUNK)),
    model=st.sampled_from(("min_gru", "rg_lru", "gru", "projected")),
    is_step=st.booleans(),
)
def test_junk_is_refused_in_one_sentence(
    x: Any, named: dict[str, Any], states: Any, parameters: Any, model: str, is_step: bool
) -> None:
    kernel = kernel_of(model)
    if is_step:
        named = {name: value for name, value in named.items() if name in ("weight", "bias", "R", "recurrent_bias")}
    try:
        (kernel.step if is_step else kernel)(x, state=states, parameters=parameters, **named)
    except BadInput as error:
        one_sentence(error)


def valid_call(precision_name: str, layout: str = "BTD") -> dict[str, Any]:
    precision = precision_of(precision_name)
    storage, carried = numpy_dtype(precision.storage_dtype), numpy_dtype(precision.arithmetic_dtype)
    return {
        "x": arranged(np, drawn_gates("rg_lru", "slow", 0, (TIME, BATCH, HIDDEN)), layout).astype(storage),
        "bias": np.linspace(-1, 1, 3 * HIDDEN, dtype=np.float32).reshape(3, HIDDEN).astype(storage),
        "parameters": {name: one.astype(storage) for name, one in drawn_parameters("rg_lru", 0, HIDDEN).items()},
        "state": {name: one.astype(carried) for name, one in drawn_state("rg_lru", 0, BATCH, HIDDEN).items()},
    }


def arrays_in(call: dict[str, Any]) -> list[Any]:
    return [one for value in call.values() for one in (value.values() if isinstance(value, dict) else (value,))]


@pytest.mark.parametrize("time", [0, TIME])
@pytest.mark.parametrize("precision", PRECISION_NAMES)
def test_inputs_are_left_alone(precision: str, time: int) -> None:
    """Not written to, even where the caller forbids it, and not handed back as results either."""
    call = valid_call(precision)
    call["x"] = call["x"][:, :time]
    before = [one.tobytes() for one in arrays_in(call)]
    for one in arrays_in(call):
        one.flags.writeable = False
    y, final = host_kernel("rg_lru", HIDDEN, precision)(**call)
    assert [one.tobytes() for one in arrays_in(call)] == before
    for result in (y, *final.values()):
        assert result.flags.writeable and result.flags.c_contiguous
        assert not any(np.shares_memory(result, one) for one in arrays_in(call))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", PRECISION_NAMES)
def test_outer_strides_do_not_matter(precision: str, layout: str) -> None:
    """Slices, reversed and repeated sequences are read in place; only the last axis has to be contiguous."""
    kernel, call = host_kernel("rg_lru", HIDDEN, precision, layout), valid_call(precision, layout)
    wide = np.repeat(np.repeat(call["x"], 2, axis=0), 3, axis=2)
    views = (
        wide[::2, :, ::3],
        np.repeat(call["x"], 2, axis=1)[:, ::2],
        call["x"][::-1, ::-1][::-1, ::-1],
        np.broadcast_to(call["x"][:1], call["x"].shape),
    )
    for view in views:
        with_view, _ = kernel(**(call | {"x": view}))
        with_copy, _ = kernel(**(call | {"x": np.ascontiguousarray(view)}))
        assert np.array_equal(with_view, with_copy)


@given(swapped=st.booleans(), order=st.permutations(range(3)))
def test_a_step_takes_any_strides(swapped: bool, order: list[int]) -> None:
    call = valid_call("fp32")
    x_t = call.pop("x")[:, 0]
    scattered = np.ascontiguousarray(x_t.transpose(order)).transpose(np.argsort(order))
    if swapped:
        scattered = scattered.repeat(2, axis=2)[..., ::2]
    kernel = host_kernel("rg_lru", HIDDEN, "fp32")
    assert np.array_equal(kernel.step(scattered, **call)[0], kernel.step(x_t, **call)[0])


def test_subclasses_count_as_plain_arrays() -> None:
    """A matrix would multiply as one, and a memory map is just memory."""
    call, kernel = valid_call("fp32"), host_kernel("rg_lru", HIDDEN, "fp32")
    expected, _ = kernel(**call)
    state = {"h": call["state"]["h"].view(np.matrix)}
    for time in (0, TIME):
        y, final = kernel(**(call | {"x": call["x"][:, :time], "state": state, "bias": call["bias"].view(np.matrix)}))
        assert np.array_equal(y, expected[:, :time])
        assert type(final["h"]) is np.ndarray


def test_a_foreign_array_is_read_through_dlpack() -> None:
    call, kernel = valid_call("fp32"), host_kernel("rg_lru", HIDDEN, "fp32")
    expected, _ = kernel(**call)
    y, final = kernel(OnlyDlpack(call.pop("x")), **call)
    assert np.array_equal(y, expected)
    assert type(y) is type(final["h"]) is np.ndarray


@pytest.mark.parametrize("precision", PRECISION_NAMES)
def test_empty_calls_return_empty_results(precision: str) -> None:
    call = valid_call(precision)
    kernel = host_kernel("rg_lru", HIDDEN, precision)
    y, final = kernel(call["x"][:, :0], parameters=call["parameters"], state=call["state"])
    assert y.shape == (BATCH, 0, HIDDEN) and np.array_equal(final["h"], call["state"]["h"])
    y, final = kernel(call["x"][:0], parameters=call["parameters"], state={"h": call["state"]["h"][:0]})
    assert y.shape == (0, TIME, HIDDEN) and final["h"].shape == (0, HIDDEN)
    y, final = kernel(call["x"][:0, :0], parameters=call["parameters"])
    assert y.shape == (0, 0, HIDDEN) and final["h"].shape == (0, HIDDEN)
    y_t, final = kernel.step(call["x"][:0, 0], parameters=call["parameters"])
    assert y_t.shape == final["h"].shape == (0, HIDDEN)


def test_runs_repeat_to_the_last_bit_in_any_thread() -> None:
    from concurrent.futures import ThreadPoolExecutor

    call, kernel = valid_call("bf16"), host_kernel("rg_lru", HIDDEN, "bf16")
    expected, _ = kernel(**call)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: kernel(**call)[0].tobytes(), range(16)))
    assert set(results) == {expected.tobytes()}


def test_a_kernel_describes_itself() -> None:
    with planned_again():
        kernel = compile_kernel({"model": "rg_lru", "hidden_size": HIDDEN, "precision": "fp32", "gpu": "h200"})
    assert (kernel.gates, kernel.states, kernel.plan.problem.hidden_size) == (("r", "i", "x"), ("h",), HIDDEN)
    assert [plan for plan in kernel.plans.values() if plan.problem.kernel_pass == "forward"] == [kernel.plan]
    assert {key.kernel_pass for key in kernel.plans} == {"forward", "step"}
    kernel.plans.clear()  # what is shown is a copy
    assert kernel.plans
    assert "rg_lru" in repr(kernel) and "h200" in repr(kernel)
    assert "__global__" in kernel.source
    assert kernel.plan.template in kernel.explain()


class OnGpu:
    """An array of CuPy's, as far as describing it looks; `pointer` is where it starts."""

    __module__ = "cupy"
    dtype, shape, strides = np.dtype("float32"), (2, 3), (12, 4)

    def __init__(self, pointer: int) -> None:
        self.data, self.device = SimpleNamespace(ptr=pointer), SimpleNamespace(id=0)


def test_elements_that_a_gpu_cannot_load_are_refused() -> None:
    """A misaligned load ends the whole CUDA context, not the one call."""

    def foreign(value: Any, _: str) -> Any:
        return value

    assert inspect_array(OnGpu(4096), "x", foreign).pointer == 4096
    with pytest.raises(BadInput, match=r"^x starts at address 4098, no multiple of the 4 bytes of float32; copy it$"):
        inspect_array(OnGpu(4098), "x", foreign)
