"""Native code on host arrays: the same functions as NumPy's, of every kind of cell, storage, layout, direction and sequence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.c_programs import needs_c_compiler
from support.everyday import in_turn
from support.native_store import native_store
from support.patience import within

import minrnn_gen
from minrnn_gen.build.c_compiler import HostCompiler, c_compiler
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.call.interface import Interface
from minrnn_gen.codegen.cpu_source import pool_source
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel
from minrnn_gen.precision import precision_of

pytestmark = needs_c_compiler

BATCH, TIME = 5, 9
# Of values and of gradients that went through all steps: so many roundings of the arithmetic, and one of storage.
ROUNDINGS = 64


@pytest.fixture(scope="module", autouse=True)
def native_kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with native_store(tmp_path_factory):
        yield


@dataclass(frozen=True)
class Case:
    """A spec and what its call is given; `sequences` names how the sequences of x begin and end."""

    model: str
    precision: str = "fp32"
    hidden: int = 24
    layout: str = "BTD"
    direction: str = "forward"
    heads: int = 1
    inputs: int | None = None
    sequences: str = ""
    has_state: bool = True
    clip: float | None = None
    batch: int = BATCH
    time: int = TIME
    arithmetic: str | None = None

    @property
    def spec(self) -> dict[str, Any]:
        optional = {"input_size": self.inputs, "recurrent_gradient_clip": self.clip, "scan_arithmetic": self.arithmetic}
        heads = {} if self.heads == 1 else {"heads": self.heads}
        return {
            "model": self.model, "hidden_size": self.hidden, "precision": self.precision, "layout": self.layout, "gpu": "h200",
            "direction": self.direction, **heads, **{key: value for key, value in optional.items() if value is not None},
        }  # fmt: skip

    @property
    def states_batch(self) -> int:
        return 4 if self.sequences == "packed" else self.batch

    def call(self, interface: Interface) -> dict[str, Any]:
        """Return the arguments of a call, drawn."""
        random = np.random.default_rng(7)
        storage = numpy_dtype(interface.precision.storage_dtype)
        is_packed = self.sequences == "packed"
        rows, time = (1, self.batch * self.time) if is_packed else (self.batch, self.time)

        def drawn(shape: tuple[int, ...], scale: float = 1.0, dtype: Any = storage) -> Any:
            return (scale * random.standard_normal(shape)).astype(dtype)

        call = {
            "x": drawn(interface.shape(interface.x_axes, rows, time)),
            "bias": drawn((*interface.directions, len(interface.gates), self.hidden)),
        }
        if self.inputs:
            call["weight"] = drawn((interface.weight_rows, self.inputs), 0.3)
        if interface.recurrent_gates:
            call["R"] = drawn(interface.R_shape, 0.2)
            if interface.takes_recurrent_bias:
                call["recurrent_bias"] = drawn(interface.recurrent_bias_shape)
        if interface.parameters:
            call["parameters"] = {name: drawn(interface.parameter_shape) for name in interface.parameters}
        if self.has_state:
            carried = numpy_dtype(interface.precision.arithmetic_dtype)
            shape = interface.state_shape(self.states_batch)
            states = {name: drawn(shape, dtype=carried) for name in interface.states}
            call["state"] = {name: abs(state) if self.arithmetic == "log" else state for name, state in states.items()}
        if self.sequences == "lengths":
            call["lengths"] = np.array([time, 0, 1, time // 2, time - 1])
        if self.sequences == "resets":
            call["resets"] = random.random((self.batch, time)) < 0.3
        if is_packed:
            call["cu_seqlens"] = np.array([0, 7, 7, 8, time])
        return call


CASES = [
    *(Case(model) for model in ("lstm", "min_gru", "slstm")),
    Case("lstm", layout="TBD", heads=2, direction="bidirectional", inputs=6),
    Case("lstm", layout="BDT", direction="reverse", clip=0.02),
    Case("lstm", sequences="lengths", direction="reverse"),
    Case("lstm", sequences="resets", has_state=False),
    Case("lstm", sequences="packed", inputs=6),
    Case("lstm", hidden=64, batch=20, time=3),
    Case("lstm", hidden=64, time=1),
    Case("lstm", hidden=192, batch=3, time=2, has_state=False, inputs=6),
    Case("lstm", precision="bf16", inputs=6),
    Case("min_gru", layout="TBD", sequences="lengths"),
    Case("min_gru", layout="BDT", sequences="resets"),
    Case("min_gru", sequences="packed", direction="reverse"),
    Case("min_gru", precision="bf16", hidden=100),
    Case("min_gru", precision="fp16", direction="bidirectional"),
    Case("min_gru", precision="fp64"),
    Case("min_gru_log", arithmetic="log", sequences="resets", direction="bidirectional", inputs=6),
    Case("min_lstm_log", arithmetic="log", layout="BDT", sequences="lengths", precision="bf16"),
    Case("min_lstm_log", arithmetic="log", sequences="packed", direction="reverse", precision="fp64"),
    Case("min_gru_log", arithmetic="log", layout="TBD", hidden=100, precision="fp16"),
    Case("gru_reset_before", layout="TBD", heads=2, direction="bidirectional", inputs=6),
    Case("gru_reset_before", layout="BDT", direction="reverse", sequences="lengths", clip=0.02, hidden=100),
    Case("gru_reset_before", precision="bf16", sequences="resets", has_state=False),
    Case("gru_reset_before", precision="fp16", sequences="packed", inputs=6),
    Case("gru_reset_before", precision="fp64", hidden=64, time=1, has_state=False),
    Case("layer_norm_lstm", layout="TBD", heads=2, direction="bidirectional", inputs=6),
    Case("layer_norm_lstm", layout="BDT", direction="reverse", sequences="lengths", clip=0.02, hidden=100),
    Case("layer_norm_lstm", precision="bf16", sequences="packed", has_state=False),
    Case("layer_norm_lstm", precision="fp16", sequences="resets", inputs=6),
]


def results_of(case: Case, all_states: bool = False) -> tuple[Kernel, dict[str, Any]]:
    """Return a kernel, and all that a forward and a backward of it return, by name."""
    kernel = minrnn_gen.compile(case.spec)
    interface = kernel.interface
    call = case.call(interface)
    y, final, saved = kernel.forward(**call, all_states=all_states)
    random = np.random.default_rng(8)
    carried = numpy_dtype(interface.precision.arithmetic_dtype)
    shape = interface.state_shape(case.states_batch)
    dstate = {name: random.standard_normal(shape).astype(carried) for name in interface.states}
    gradients = kernel.backward(saved, random.standard_normal(y.shape).astype(y.dtype), dstate)
    results = {"y": y} | {f"final {name}": value for name, value in final.items()}
    for name, value in gradients.items():
        results |= {f"{name} {part}": value[part] for part in value} if isinstance(value, dict) else {f"d{name}": value}
    return kernel, results


def assert_near(found: dict[str, Any], expected: dict[str, Any], precision: str) -> None:
    """Norm by norm, as far apart as roundings bring them."""
    named = precision_of(precision)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        wide, other = value.astype(np.float64), found[name].astype(np.float64)
        is_stored = value.dtype != np.dtype(named.arithmetic_dtype)
        allowed = 2 * named.storage_roundoff if is_stored else ROUNDINGS * named.arithmetic_roundoff
        if named.storage_dtype != named.arithmetic_dtype and name != "y":
            allowed = 8 * named.storage_roundoff  # a y that rounds otherwise is read again
        assert np.linalg.norm(other - wide) <= allowed * np.linalg.norm(wide), name


# Every day both kinds of cells, with heads, a projection, both directions, and each layout; a case takes seconds to compile.
EVERYDAY = (0, 1, 3, 11, 16, 23)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if at in EVERYDAY else pytest.mark.matrix_full) for at, case in enumerate(CASES)],
    ids=str,
)
def test_native_code_computes_what_numpy_does(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results, final states and every gradient."""
    _, expected = results_of(case)
    monkeypatch.setenv("MINRNN_CPU", "native")
    kernel, found = results_of(case)
    kernels = kernel.executor.cpu.native.kernels
    assert kernels.why_not == ""
    assert kernels.backward is not None
    assert_near(found, expected, case.precision)


@pytest.mark.parametrize("case", [CASES[0], CASES[1]], ids=str)
def test_a_sequence_may_be_cut_anywhere(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step by step, and in two pieces: within roundings, since one step multiplies R as it lies."""
    monkeypatch.setenv("MINRNN_CPU", "native")
    kernel = minrnn_gen.compile(case.spec)
    call = case.call(kernel.interface)
    whole, states = kernel(**call, all_states=True)
    x, state = call.pop("x"), call.pop("state")
    for time in range(case.time):
        y, state = kernel.step(x[:, time], **call, state=state)
        assert_near({"y": y, **state}, {"y": whole[:, time], **{name: states[name][:, time] for name in states}}, "fp32")


# The largest error of each function in fp32, in units of the last place, for results that are no subnormal numbers.
ULPS = {"exp": 1.5, "expm1": 2, "tanh": 3, "sigmoid": 3, "softplus": 4, "logsigmoid": 4, "log": 1}
# The same in fp64, of those that are not the C library's.
ULPS_FP64 = {"exp": 1.5, "sigmoid": 3, "softplus": 3, "logsigmoid": 3, "log": 1}


SPECIALS = (0, np.inf, -np.inf, np.nan)


def exact(name: str, x: Any) -> Any:
    """The functions in the dtype of x, as the equation language defines them."""
    small = np.exp(-abs(x))
    rest = np.log1p(small)
    return {
        "exp": np.exp, "expm1": np.expm1, "tanh": np.tanh, "sigmoid": lambda x: np.where(x >= 0, 1, small) / (1 + small),
        "softplus": lambda x: np.maximum(x, 0) + rest, "logsigmoid": lambda x: np.minimum(x, 0) - rest, "log": np.log,
    }[name](x)  # fmt: skip


@pytest.mark.parametrize(
    ("precision", "errors_ulps"), [pytest.param("fp32", ULPS, marks=pytest.mark.matrix_full), ("fp64", ULPS_FP64)]
)
def test_functions_have_the_errors_that_are_documented(
    precision: str, errors_ulps: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over all magnitudes, to infinity, and NaN stays NaN."""
    monkeypatch.setenv("MINRNN_CPU", "native")
    dtype, wide = (np.float32, np.float64) if precision == "fp32" else (np.float64, np.longdouble)
    if np.finfo(wide).nmant < np.finfo(dtype).nmant + 8:
        pytest.skip("this processor has no numbers to measure those of fp64 by")
    states = [f"s_{name}" for name in errors_ulps]
    equations = "\n".join(f"s_{name}[t] = {name}(W.x)" for name in errors_ulps)
    output = " + ".join(f"{state}[t]" for state in states)
    cell = {"name": "functions", "states": states, "equations": equations, "output": output}
    kernel = minrnn_gen.compile({"model": cell, "hidden_size": 1, "precision": precision, "gpu": "h200"})
    limits = np.finfo(dtype)
    greatest = np.log(limits.max) * 1.25
    magnitudes = 10.0 ** np.linspace(np.log10(limits.smallest_subnormal), 3, 40_001)
    large = 10.0 ** np.linspace(0, 0.999 * np.log10(limits.max), 40_001)
    x = np.concatenate(
        [np.linspace(-greatest, greatest, 200_001), np.linspace(0.5, 2, 40_001), magnitudes, -magnitudes, large, SPECIALS]
    ).astype(dtype)
    _, found = kernel(x.reshape(1, -1, 1, 1), all_states=True)
    for name, ulps in errors_ulps.items():
        with np.errstate(all="ignore"):
            expected = exact(name, x.astype(wide))
            rounded = expected.astype(dtype)
            value = found[f"s_{name}"].reshape(-1)
            np.testing.assert_array_equal(np.isnan(value), np.isnan(rounded), err_msg=name)
            np.testing.assert_array_equal(np.isinf(value), np.isinf(rounded), err_msg=name)
            is_normal = np.isfinite(rounded) & (abs(rounded) >= limits.tiny)
            errors = abs(value - expected)[is_normal] / np.spacing(abs(rounded[is_normal])).astype(wide)
            assert errors.max() <= ulps, name
            is_small = np.isfinite(rounded) & ~is_normal
            assert (abs(value - expected)[is_small] <= limits.tiny).all(), name


def test_results_do_not_depend_on_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits again, with threads that share units and with threads that share rows; results, for any number."""
    monkeypatch.setenv("MINRNN_CPU", "native")
    sizes = ({"hidden": 192, "batch": 2, "time": 20}, {"hidden": 64, "batch": 40, "time": 20})
    for case in (Case(model, **of_case) for model in ("lstm", "gru_reset_before") for of_case in sizes):
        by_threads = {}
        for threads in ("1", "2", "3"):
            monkeypatch.setenv("OMP_NUM_THREADS", threads)
            monkeypatch.delitem(sys.modules, "torch", raising=False)
            first, second = results_of(case)[1], results_of(case)[1]
            for name, value in first.items():
                np.testing.assert_array_equal(value, second[name], err_msg=name)
            by_threads[threads] = first
        for threads in ("2", "3"):
            for name in (name for name in first if name.startswith(("y", "final", "dx", "state"))):
                np.testing.assert_array_equal(by_threads["1"][name], by_threads[threads][name], err_msg=name)


def test_a_forked_process_has_threads_of_its_own() -> None:
    """In a process of its own: libraries that other tests have loaded here warn of every fork."""
    program = """
import os, sys
sys.modules["cupy"] = None  # the driver's library crashes under sanitizers
import numpy as np, minrnn_gen
kernel = minrnn_gen.compile({"model": "lstm", "hidden_size": 64, "precision": "fp32", "gpu": "h200"})
interface = kernel.interface
arrays = {
    "x": np.ones(interface.shape(interface.x_axes, 40, 20), np.float32),
    "R": np.full(interface.R_shape, 0.1, np.float32),
}
y, _ = kernel(**arrays)
child = os.fork()
if child == 0:
    again, _ = kernel(**arrays)
    os._exit(0 if np.array_equal(again, y) else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    environment = {**os.environ, "MINRNN_CPU": "native", "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=within(60))


def test_without_a_compiler_numpy_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where the compiler refuses the text: a call is none of its errors."""
    monkeypatch.setenv("MINRNN_CPU", "native")
    case = Case("ind_rnn")
    for command, reason in (("no-such-compiler", "not installed"), ("false", "refuses")):
        monkeypatch.setenv("CC", command)
        kernel, found = results_of(case)
        assert reason in kernel.executor.cpu.native.kernels.why_not
        assert np.isfinite(found["y"]).all()


def test_what_is_asked_for_is_one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINRNN_CPU", "fast")
    with pytest.raises(BadInput, match="MINRNN_CPU is 'fast'; allowed: numpy"):
        results_of(Case("min_gru"))


def test_another_cpu_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache may be shared between machines."""
    here = c_compiler().key
    monkeypatch.setattr("minrnn_gen.build.c_compiler.host_identity", lambda: "another CPU")
    assert c_compiler().key != here


def test_headers_that_tests_read_once_change_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    text, compile_text = pool_source(), c_compiler().compile
    once = compile_text(text)
    monkeypatch.setattr(HostCompiler, "_run", HostCompiler._run.__wrapped__)  # type: ignore[attr-defined]
    assert compile_text(text) == once


@pytest.mark.parametrize(("layer", "has_state"), in_turn([("LSTM", 20), ("GRU", 64), ("RNN", 5)], [False, True]))
def test_layers_of_torch_are_replayed(layer: tuple[str, int], has_state: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is met again has the values and the gradients of the first, and those of torch, of new tensors."""
    torch = pytest.importorskip("torch")
    from minrnn_gen.torch import nn

    monkeypatch.setenv("MINRNN_CPU", "native")
    monkeypatch.setattr("minrnn_gen.layers.kernels._KERNELS", {})
    torch.manual_seed(3)
    name, inputs = layer
    theirs = getattr(torch.nn, name)(inputs, 24, batch_first=True)
    ours = getattr(nn, name)(inputs, 24, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    for batch, time in ((3, 1), (4, 6), (3, 1), (4, 6)):
        x = torch.randn(batch, time, inputs, requires_grad=time > 1)
        states = [torch.randn(1, batch, 24, requires_grad=True) for _ in range(2 if name == "LSTM" else 1)]
        hx = None if not has_state else tuple(states) if name == "LSTM" else states[0]
        wanted = [*([x] if x.requires_grad else []), *(states if has_state else [])]
        results = []
        for module in (ours, theirs):
            y, final = module(x, hx)
            last = sum(state.square().sum() for state in (final if name == "LSTM" else (final,)))
            gradients = torch.autograd.grad(y.square().sum() + last, [*wanted, *module.parameters()])
            results.append([y, *gradients])
        for found, expected in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("is_batch_first", [False, True])
@pytest.mark.parametrize("name", ["LSTM", "RNN"])
def test_long_calls_run_in_pieces(name: str, is_batch_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call whose pre-activations nobody keeps projects as many steps as stay in cache."""
    torch = pytest.importorskip("torch")
    from minrnn_gen.run.cpu import native_run, products
    from minrnn_gen.torch import nn

    monkeypatch.setenv("MINRNN_CPU", "native")
    torch.manual_seed(4)
    layer = getattr(nn, name)(24, 24, batch_first=is_batch_first, dtype=torch.float64)
    x = torch.randn((5, 19, 24) if is_batch_first else (19, 5, 24), dtype=torch.float64)
    results, counts = [], []
    project_steps = products.project_steps

    def counted(*arrays: Any, count: int, **place: int) -> None:
        counts.append(count)
        project_steps(*arrays, count=count, **place)

    monkeypatch.setattr(products, "project_steps", counted)
    for size_bytes in (1, 1 << 15 if name == "LSTM" else 1 << 13):  # the weight exceeds one byte: all at once
        monkeypatch.setattr("minrnn_gen.layers.kernels._KERNELS", {})
        monkeypatch.setattr(native_run, "PIECE_BYTES", size_bytes)
        counts.clear()
        with torch.no_grad():
            layer(x)
            y, final = layer(x)
        assert counts == ([] if size_bytes == 1 else [8, 8, 3, 8, 8, 3])
        results.append([y, *(final if name == "LSTM" else [final])])
    for whole, in_pieces in zip(*results, strict=True):
        torch.testing.assert_close(whole, in_pieces, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_the_gradient_of_R_of_several_heads_is_a_tensor(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from minrnn_gen.torch.operators.functional import recurrence

    kernel = minrnn_gen.compile({"model": "gru", "hidden_size": 6, "heads": 2, "precision": "fp64", "direction": direction})
    interface, generator = kernel.interface, torch.Generator().manual_seed(5)
    x = torch.randn(interface.shape(interface.x_axes, 3, 4), generator=generator, dtype=torch.float64)
    R = torch.randn(interface.R_shape, generator=generator, dtype=torch.float64, requires_grad=True)
    found = []
    for target in ("numpy", "native"):
        monkeypatch.setenv("MINRNN_CPU", target)
        for _ in range(2):  # the second call of a form is another path
            y, _ = recurrence(kernel, x, R)
            found += torch.autograd.grad(y.square().sum(), R)
    for gradient in found[1:]:
        torch.testing.assert_close(gradient, found[0], rtol=1e-12, atol=1e-12)
