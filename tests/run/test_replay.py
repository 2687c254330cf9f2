"""A call whose key was met before does what the first one did, on its own arrays; whatever differs is looked at anew."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.emulated_code import HAS_COMPILER
from support.everyday import one_in
from support.fake_device import as_if_on_a_device, set_bytes_on_host
from support.fake_device import contiguous as memory_at
from support.fake_plan import plan_with
from support.fake_torch import Device, Parameter, Tensor, as_arrays, as_tensors, torch_on_host
from support.kernel_inputs import LAYOUTS
from support.patience import within
from support.persistent_on_cpu import persistent_kernels
from support.sequence_cases import HIDDEN, X_ORDERS, X_ORDERS_OF_BOTH, Y_ORDERS, assert_close, cell_named, kernel_of
from support.uncompiled_kernels import compiled_for_host

from minrnn_gen.call.address import Address, PointerDifference
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.array import Array
from minrnn_gen.call.key import keyed
from minrnn_gen.call.results import StepResult
from minrnn_gen.codegen.signature import names_of, signature
from minrnn_gen.errors import BadInput
from minrnn_gen.gpu import cublas, memory, stream
from minrnn_gen.gpu.cublas import Product, factor
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.run import executor
from minrnn_gen.run.cuda import CudaRecorder
from minrnn_gen.run.dense.stepwise import StepwiseRun
from minrnn_gen.run.launch import Launch
from minrnn_gen.run.recording import replay
from minrnn_gen.run.recording.replay import TraceCache

INPUTS = 4


@pytest.fixture(autouse=True)
def _torch() -> Any:
    with torch_on_host():
        yield


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The checks that calls have gone through."""
    return count_checks(monkeypatch)


def count_checks(patch: pytest.MonkeyPatch) -> list[str]:
    def counted(name: str, check: Any, found: list[str]) -> Any:
        def then_checked(*given: Any, **named: Any) -> Any:
            found.append(name)
            return check(*given, **named)

        return then_checked

    found: list[str] = []
    for name in ("check_call", "check_gradient"):
        patch.setattr(executor, name, counted(name, getattr(executor, name), found))
    return found


def arguments_of(model: str, layout: str, direction: str, projects: bool, given: frozenset[str], seed: int) -> dict[str, Any]:
    """Return a call of 2 sequences of 5 steps with other numbers for every seed, and gaps in x."""
    random, cell, both = np.random.default_rng(seed), cell_named(model), (2,) if direction == "bidirectional" else ()
    gates = len(cell.gates)
    order = X_ORDERS_OF_BOTH[layout] if both else X_ORDERS[layout]
    x = random.normal(size=(2, 5, *both, gates, HIDDEN))
    arguments: dict[str, Any] = {"x": np.ascontiguousarray(x.transpose(order)).repeat(2, 1)[:, ::2]}
    if projects:
        arguments["x"] = np.ascontiguousarray(random.normal(size=(2, 5, INPUTS)).transpose(Y_ORDERS[layout]))
        arguments["weight"] = random.normal(size=((2 if both else 1) * gates * HIDDEN, INPUTS))
    arguments["parameters"] = {name: random.normal(size=(*both, HIDDEN)) for name in cell.parameters}
    optional = {
        "bias": random.normal(size=(*both, gates, HIDDEN)),
        "state": {name: random.normal(size=(*both, 2, HIDDEN)) for name in cell.states},
        "resets": random.random((2, 5)) < 0.3,
    }
    return arguments | {name: one for name, one in optional.items() if name in given}


# Every day each layout in one direction or two, and each direction.
@pytest.mark.parametrize(
    ("layout", "direction"), one_in(2, itertools.product(LAYOUTS, ("forward", "reverse", "bidirectional")))
)
@settings(max_examples=6)
@given(
    model=st.sampled_from(("min_gru", "qrnn", "rg_lru")),
    projects=st.booleans(),
    keeps=st.booleans(),
    with_dstate=st.booleans(),
    given_arrays=st.frozensets(st.sampled_from(("bias", "state", "resets"))),
)
def test_what_is_replayed_is_what_the_host_does(
    layout: str, direction: str, model: str, projects: bool, keeps: bool, with_dstate: bool, given_arrays: frozenset[str]
) -> None:
    sized = {"input_size": INPUTS} if projects else {}
    one = kernel_of(model, direction, layout, **sized)
    channels = HIDDEN * (2 if direction == "bidirectional" else 1)
    for seed in range(3):
        arguments = arguments_of(model, layout, direction, projects, given_arrays, seed)
        random = np.random.default_rng(seed)
        dy = np.ascontiguousarray(random.normal(size=(2, 5, channels)).transpose(Y_ORDERS[layout]))
        both = (2,) if direction == "bidirectional" else ()
        dstate = {name: random.normal(size=(*both, 2, HIDDEN)) for name in one.states} if with_dstate else None
        y, state, saved = one.forward(**arguments, all_states=keeps)
        plain = one(**arguments, all_states=keeps)
        expected = one.backward(saved, dy, dstate)
        with as_if_on_a_device(one), pytest.MonkeyPatch.context() as patch:
            checks = count_checks(patch)
            y_found, state_found, saved = one.forward(**as_tensors(arguments), all_states=keeps)
            plain_found = one(**as_tensors(arguments), all_states=keeps)
            found = [one.backward(saved, Tensor(dy), as_tensors(dstate)) for _ in range(2)]
            assert seed == 0 or not checks
        for each, other in ((y_found, y), (state_found, state), (plain_found[0], plain[0]), (plain_found[1], plain[1])):
            assert_close(as_arrays(each), other)
        for each in found:
            assert_close(as_arrays(each), expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("model", ["min_gru", "qrnn"])
def test_arrays_by_slot_are_a_call_whose_key_was_met_before(model: str, training: bool) -> None:
    """y, states and what a backward needs as `forward` has them; nothing before, nor where the spec has no training."""
    one = kernel_of(model, training=training)
    given = as_tensors(arguments_of(model, "BTD", "forward", False, frozenset(("bias", "state", "resets")), 0))
    arrays = CallArguments(**given).flat(one.interface)

    def assert_same_results(found: Any, *expected: Any) -> None:
        assert found is not None
        for each, other in zip((found.y, *found.final, *found.saved), expected, strict=True):
            assert_close(as_arrays(each), as_arrays(other))

    with as_if_on_a_device(one):
        assert one.executor.replay_forward(arrays, False, saves=False) is None
        y, state = one(**given)
        assert_same_results(one.executor.replay_forward(arrays, False, saves=False), y, *state.values())
        if training:
            y, state, saved = one.forward(**given)
            found = one.executor.replay_forward(arrays, False, saves=True)
            assert_same_results(found, y, *state.values(), *saved.arrays())
        else:
            assert one.executor.replay_forward(arrays, False, saves=True) is None


def test_arguments_and_their_flat_order_are_one_to_one() -> None:
    one = kernel_of("rg_lru", input_size=INPUTS)
    given = arguments_of("rg_lru", "BTD", "forward", True, frozenset(("bias", "state", "resets")), 0)
    for absent in ({}, {"state": None}, {"bias": None, "resets": None}):
        arguments = CallArguments(**(given | absent))
        assert CallArguments.from_flat(one.interface, arguments.flat(one.interface)) == arguments
    for wrong in ({"state": {}}, {"state": {"g": given["x"]}}, {"parameters": {**given["parameters"], "other": given["x"]}}):
        assert CallArguments(**(given | wrong)).flat(one.interface) is None


@pytest.mark.parametrize(("layout", "model"), one_in(2, itertools.product(LAYOUTS, ("min_gru", "qrnn", "rg_lru"))))
@settings(max_examples=4)
@given(
    direction=st.sampled_from(("forward", "bidirectional")),
    projects=st.booleans(),
    keeps=st.booleans(),
    given_arrays=st.frozensets(st.sampled_from(("bias", "state", "resets"))),
)
def test_what_a_backward_needs_is_arrays(
    layout: str, model: str, direction: str, projects: bool, keeps: bool, given_arrays: frozenset[str]
) -> None:
    """A backward from the arrays of a forward alone, wherever they were in between, is that of what the forward saved."""
    one = kernel_of(model, direction, layout, **({"input_size": INPUTS} if projects else {}))
    channels = HIDDEN * len(one.interface.runs_reversed)
    for seed in range(2):
        arguments = arguments_of(model, layout, direction, projects, given_arrays, seed)
        dy = np.ascontiguousarray(np.random.default_rng(seed).normal(size=(2, 5, channels)).transpose(Y_ORDERS[layout]))
        y, _, saved = one.forward(**arguments, all_states=keeps)
        expected, final = one.backward(saved, dy), one(**arguments)[1]
        assert_layouts(one, saved.arrays(), keeps, on_cpu=True)
        assert_close(dict(zip(one.states, saved.final(), strict=True)), final)
        restored = one.executor.restore(CallArguments(**arguments), y, saved.arrays(), keeps)
        assert_close(one.backward(restored, dy), expected)
        with as_if_on_a_device(one), pytest.MonkeyPatch.context() as patch:
            tensors = as_tensors(arguments)
            y_found, _, saved = one.forward(**tensors, all_states=keeps)
            arrays = saved.arrays()
            assert_close(as_arrays(dict(zip(one.states, saved.final(), strict=True))), final)
            checks, restore = count_checks(patch), partial(one.executor.restore, CallArguments(**tensors))
            restored = restore(y_found, arrays, keeps)
            assert checks == []
            with pytest.raises(BadInput, match="that the forward of this kernel saved"):
                restore(y_found, (*arrays, y_found), keeps)
            patch.setattr(one.executor.gpu.forwards, "find", lambda _: None)
            looked_at = restore(y_found, arrays, keeps)
            assert_layouts(one, arrays, keeps, on_cpu=False)
            for each in (restored, looked_at):
                assert_close(as_arrays(one.backward(each, Tensor(dy))), expected)
            with pytest.raises(BadInput, match="y has strides"):
                restore(Tensor(y_found.values.repeat(2, 0)[::2]), arrays, keeps)
            with pytest.raises(BadInput, match="that the forward of this kernel saved"):
                restore(y_found, (*arrays, y_found), keeps)


def assert_layouts(one: Kernel, arrays: Any, keeps: bool, on_cpu: bool) -> None:
    layouts = tuple((each.shape, str(each.dtype).removeprefix("torch.")) for each in arrays)
    assert one.executor.saved_layouts(2, 5, on_cpu=on_cpu, all_states=keeps) == layouts


@pytest.mark.skipif(not HAS_COMPILER, reason="the kernel's text is compiled by a host C++ compiler, and there is none")
@pytest.mark.parametrize("is_persistent", [True, False])
def test_a_dense_cell_is_replayed_where_one_launch_takes_all_steps(
    monkeypatch: pytest.MonkeyPatch, checked: list[str], folder: Path, is_persistent: bool
) -> None:
    hidden, batch, time = 16, 3, 5
    code = persistent_kernels(
        folder, "lstm", hidden, 1, "fp64", Specialization(16), "tf32x3", False, False, cluster_blocks=1
    ).code("forward")
    one = compiled_for_host({"model": "lstm", "hidden_size": hidden, "precision": "fp64"})
    plan = code.plan if is_persistent else replace(code.plan, entry="stepwise_forward", strategy="stepwise")
    walked: list[Any] = []

    def run(_: StepwiseRun, recorder: CudaRecorder, *_others: Any) -> None:
        recorder.stop()
        walked.append(1)

    monkeypatch.setattr(StepwiseRun, "run", run)

    def launch(_like: Any, blocks: int, _threads: int, arguments: Any) -> None:
        code.run(blocks, arguments)

    for turn in range(3):
        random = np.random.default_rng(turn)
        x, R = random.normal(size=(batch, time, 4, hidden)), random.normal(size=(4, 1, hidden, hidden)) / 4
        state = {name: random.normal(size=(batch, hidden)) for name in ("h", "c")}
        with as_if_on_a_device(one, lambda *_: (SimpleNamespace(launch=launch), plan)):
            y, final = one(as_tensors(x), as_tensors(R), state=as_tensors(state))
        expected, states = one(x, R, state=state)
        assert len(walked) == (0 if is_persistent else turn + 1)
        if is_persistent:
            assert_close(as_arrays(y), expected)
            assert_close(as_arrays(final), states)
    # Looked at once, and then again only where nothing was recorded.
    assert checked.count("check_call") == 3 + (1 if is_persistent else 3)


@pytest.mark.parametrize("model", ["min_gru", "qrnn", "rg_lru"])
@pytest.mark.parametrize("with_state", [False, True])
def test_a_step_is_launched_again_on_its_own_arrays(checked: list[str], model: str, with_state: bool) -> None:
    one, launched = kernel_of(model, precision="fp32"), []
    loaded = SimpleNamespace(launch=lambda _like, blocks, threads, arguments: launched.append((blocks, threads, arguments)))
    plan = plan_with(
        entry="scan_step",
        layout="BTD",
        hidden_size=HIDDEN,
        threads=32,
        specialization=Specialization(16),
        variables={},
        strategy="channels",
        group_exchange_bytes=0,
        is_cooperative=False,
    )
    seen = []
    for seed in range(2):
        arguments = arguments_of(model, "BTD", "forward", False, frozenset({"bias", "state"} if with_state else {"bias"}), seed)
        x, *rest = (as_tensors(each) for each in (arguments.pop("x")[:, 2].astype("f"), single(arguments)))
        with as_if_on_a_device(one, lambda *_: (loaded, plan)):
            y, state = one.step(x, **rest[0])
        named = {"x": x, "bias": rest[0]["bias"], "y": y}
        named |= {f"initial {name}": each for name, each in rest[0].get("state", {}).items()}
        named |= {f"final {name}": each for name, each in state.items()} | rest[0]["parameters"]
        names = {each.data_ptr(): name for name, each in named.items()}
        blocks, threads, addresses = launched.pop()
        seen.append((blocks, threads, [names.get(int(each), int(each)) for each in addresses]))
        assert set(names.values()) <= set(seen[-1][2])
    assert seen[0] == seen[1]
    assert checked == ["check_call"]


@pytest.mark.parametrize("with_state", [False, True])
def test_so_is_a_step_of_a_dense_cell(checked: list[str], with_state: bool) -> None:
    one, launched = compiled_for_host({"model": "lstm", "hidden_size": 16, "precision": "fp64"}), []
    plan = one.builder.solve(one.builder.key_of("step", one.plan.problem.specialization)).plan()
    loaded = SimpleNamespace(launch=lambda _like, blocks, threads, arguments: launched.append((blocks, threads, arguments)))
    seen = []
    for _ in range(2):
        x, R, bias = np.zeros((3, 4, 16)), np.zeros((4, 1, 16, 16)), np.zeros((4, 16))
        given = {name: Tensor(np.zeros((3, 16))) for name in ("h", "c")} if with_state else {}
        named = {"x": Tensor(x), "R": Tensor(R), "bias": Tensor(bias)}
        with as_if_on_a_device(one, lambda *_: (loaded, plan)):
            y, state = one.step(named["x"], named["R"], bias=named["bias"], state=given or None)
        named |= {"y": y} | {f"initial {name}": each for name, each in given.items()}
        named |= {f"final {name}": each for name, each in state.items()}
        names = {each.data_ptr(): name for name, each in named.items()}
        blocks, threads, addresses = launched.pop()
        seen.append((blocks, threads, [names.get(int(each or 0), int(each or 0)) for each in addresses]))
        assert set(names.values()) <= set(seen[-1][2])
    assert seen[0] == seen[1]
    assert checked == ["check_call"]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("model", ["min_gru", "lstm"])
def test_so_is_a_step_on_a_pool(checked: list[str], model: str, dtype: str) -> None:
    """On other slots of another pool addresses are exchanged, and nothing is looked at again."""
    one = compiled_for_host({"model": model, "hidden_size": 16, "precision": "fp64"})
    gates, states = len(one.interface.gates), one.interface.states
    plans = {
        name: one.builder.solve(one.builder.key_of(name, Specialization(16, pool="arithmetic"))).plan()
        for name in ("step", "slots")
    }
    launched: list[tuple[str, dict[str, Any]]] = []

    def load(key: Any, *_: Any) -> Any:
        kernel_pass, plan = key.kernel_pass, plans[key.kernel_pass]

        def launch(_like: Any, _blocks: int, _threads: int, arguments: tuple[Any, ...]) -> None:
            names = signature(plan, names_of(one.builder.lowered_for("step"))).names
            launched.append((kernel_pass, dict(zip(names, arguments, strict=True))))

        return SimpleNamespace(launch=launch), plan

    for turn in range(2):
        x, R = Tensor(np.zeros((3, gates, 16))), Tensor(np.zeros((gates, 1, 16, 16))) if model == "lstm" else None
        pool = {name: Tensor(np.zeros((7, 16))) for name in states}
        slots, into = Tensor(np.arange(3, dtype=dtype)), Tensor(np.arange(3, 6, dtype=dtype))
        with as_if_on_a_device(one, load):
            y, state = one.step(x, R, state=pool, slots=slots, into_slots=into, pad_slot=6)
        assert all(state[name] is pool[name] for name in states)
        assert [name for name, _ in launched] == (["step"] if R is None else ["step", "slots"])
        for _, arguments in launched:
            assert [arguments[name] for name in ("slots", "into_slots")] == [slots.data_ptr(), into.data_ptr()]
            assert [arguments[f"pool_{name}"] for name in states] == [pool[name].data_ptr() for name in states]
            numbers = [int(arguments[name]) for name in ("wide_slots", "slot_count", "pad_slot", "batch", "slots_stride")]
            assert numbers == [3 if dtype == "int64" else 0, 7, 6, 3, 1]
        assert launched[0][1]["y"] == y.data_ptr()
        launched.clear()
        assert checked == ["check_call"], turn


def single(value: Any) -> Any:
    return {name: single(each) for name, each in value.items()} if isinstance(value, dict) else value.astype("f")


X = np.zeros((2, 5, 2, HIDDEN))
STATE = np.zeros((2, HIDDEN))
# What follows a call that was right: everything that a call may be refused for, and what it says of that.
WRONG: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("a tensor that records gradients", {"x": Tensor(X, requires_grad=True)}, "requires grad"),
    ("a bias that does", {"bias": Parameter(np.zeros((2, HIDDEN)), requires_grad=True)}, "requires grad"),
    ("a gate too many", {"x": Tensor(np.zeros((2, 5, 3, HIDDEN)))}, "gates axis is 3"),
    ("another dtype", {"x": Tensor(X.astype(np.float32))}, "float32"),
    ("gaps along channels", {"x": Tensor(X.repeat(2, 3)[..., ::2])}, "stride 2"),
    (
        "an address between elements",
        {"x": Tensor(np.frombuffer(bytes(8 * X.size + 8), "u1")[4:-4].view("f8").reshape(X.shape))},
        "multiple of",
    ),
    ("states of another batch", {"state": {"h": Tensor(STATE[:1])}}, r"\[1, 3\]"),
    ("a state that is none", {"state": {"h": None}}, "NoneType"),
    ("an unknown state", {"state": {"h": Tensor(STATE), "c": Tensor(STATE)}}, "unknown name 'c'"),
    ("no mapping", {"state": Tensor(STATE)}, "mapping of h"),
    ("another device", {"state": {"h": Tensor(STATE, device=Device("cuda", 1))}}, "CUDA device 1"),
    ("host memory", {"bias": np.zeros((2, HIDDEN))}, "host memory"),
    ("host memory of torch", {"bias": Tensor(np.zeros((2, HIDDEN)), device=Device("cpu", -1))}, "host memory"),
    ("no array", {"bias": [0.0]}, "list"),
    ("a weight", {"weight": Tensor(np.zeros((6, 4)))}, "input_size"),
    ("a matrix", {"R": Tensor(np.zeros((1, 1, 3, 3)))}, "no recurrent product"),
    ("a number for a flag", {"all_states": 0}, "True or False"),
    ("lengths beyond time", {"lengths": np.array([6, 0])}, "0 to 5"),
)


@pytest.mark.parametrize(("wrong", "sentence"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG])
def test_after_a_good_call_a_bad_one_is_refused_as_ever(wrong: dict[str, Any], sentence: str) -> None:
    one = kernel_of("min_gru")
    good = {"x": Tensor(X), "bias": Tensor(np.zeros((2, HIDDEN))), "state": {"h": Tensor(STATE)}}
    with as_if_on_a_device(one):
        for arguments in (good, good | {"bias": Parameter(np.zeros((2, HIDDEN)))}, good | {"state": None}):
            one(**arguments)
        with pytest.raises(BadInput, match=sentence):
            one(**(good | wrong))
        one(**good)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"dy": Tensor(np.zeros((2, 5, 4)))}, r"\[2, 5, 3\] is expected"),
        ({"dy": Tensor(np.zeros((2, 5, 3), "f"))}, "float32"),
        ({"dy": None}, "NoneType"),
        ({"dstate": {"c": Tensor(STATE)}}, "unknown name"),
        ({"dstate": {"h": Tensor(STATE, device=Device("cuda", 1))}}, "CUDA device 1"),
    ],
)
def test_a_bad_backward_is_refused_as_ever(wrong: dict[str, Any], sentence: str) -> None:
    one = kernel_of("min_gru")
    with as_if_on_a_device(one):
        for _ in range(2):
            y, _, saved = one.forward(Tensor(X))
            good = {"dy": Tensor(np.zeros(y.shape)), "dstate": {"h": Tensor(STATE)}}
            one.backward(saved, **good)
            with pytest.raises(BadInput, match=sentence):
                one.backward(saved, **(good | wrong))
        saved.release()
        with pytest.raises(BadInput, match="released"):
            one.backward(saved, **good)


def test_memory_that_a_library_aligns_otherwise_is_shifted(checked: list[str]) -> None:
    """An allocator may give any address that a dtype can have; kernels are made for arrays that start where copies may."""
    one, allocate = kernel_of("min_gru"), Tensor.new_empty
    x = np.random.default_rng(3).normal(size=(2, 6, 2, HIDDEN))
    expected, _ = one(x)

    def elsewhere(_: Tensor, shape: tuple[int, ...], dtype: str) -> Tensor:
        whole = allocate(Tensor(x), (*shape, 3), dtype)
        start = (whole.data_ptr() // 8 + 1) % 2  # not at a multiple of 16 bytes
        return Tensor(whole.values.reshape(-1)[start : start + int(np.prod(shape))].reshape(shape))

    for new_empty in (allocate, elsewhere, elsewhere, allocate):
        with as_if_on_a_device(one), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Tensor, "new_empty", new_empty)
            y, _ = one(Tensor(x))
        assert_close(as_arrays(y), expected)
        assert y.data_ptr() % 16 == 0
    assert checked == ["check_call"] * 2  # on the host, and for the first


def test_traces_are_held_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "TRACES_HELD", 3)
    one, traces = kernel_of("min_gru"), TraceCache()
    for steps in (1, 2, 3, 4, 5, 6, 1, 2, 6):
        x = np.random.default_rng(steps).normal(size=(1, steps, 2, HIDDEN))
        expected, _ = one(x)
        with as_if_on_a_device(one), pytest.MonkeyPatch.context() as patch:
            patch.setattr(one.executor.gpu, "forwards", traces)
            y, _ = one(Tensor(x))
        assert 1 <= len(traces) <= 3
        assert_close(as_arrays(y), expected)


def test_threads_share_a_trace_and_not_their_arrays() -> None:
    one = kernel_of("min_gru")
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for _ in range(20):
                x = np.full((2, 4, 2, HIDDEN), float(seed))
                y, _, saved = one.forward(Tensor(x))
                gradients = one.backward(saved, y)
                assert_close(as_arrays(y), expected[seed][0])
                assert_close(as_arrays(gradients), expected[seed][1])
        except BaseException as failure:
            failures.append(failure)

    expected = []
    for seed in range(4):
        y, _, saved = one.forward(np.full((2, 4, 2, HIDDEN), float(seed)))
        expected.append((y, one.backward(saved, y)))
    with as_if_on_a_device(one):
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert failures == []


class Launched:
    """A kernel that only notes what it is launched with."""

    def __init__(self) -> None:
        self.arguments: list[list[int]] = []

    def launch(self, _like: Any, _blocks: int, _threads: int, arguments: Any) -> None:
        self.arguments.append(list(arguments))


class OneKernel:
    """A kernel that serves everything."""

    built: ClassVar[dict[Any, Any]] = {}

    def __init__(self, loaded: Any) -> None:
        self.loaded = loaded

    def load(self, _kernel: Any, _part: str) -> tuple[Any, Any]:
        return self.loaded, plan_with(threads=32)


def recorder_on(*tensors: Tensor, loaded: Any = None) -> tuple[CudaRecorder, Any, list[Array]]:
    """Return a recorder, what launches its kernel, and its arrays."""
    arrays = [memory.inspect(one, "x").with_slot(slot) for slot, one in enumerate(tensors)]
    kernels: Any = OneKernel(loaded or Launched())
    recorder, kernel = CudaRecorder(arrays[0], keyed("test", [*tensors]), kernels), "kernel"
    return recorder, lambda *arguments: recorder.load(kernel).launch(Launch(1, arguments)), arrays  # type: ignore[arg-type]


class Nothing(NamedTuple):
    """The result of a run that has none."""

    def mapped(self, _change: Any) -> Nothing:
        return self


@given(offsets=st.lists(st.integers(0, 40), min_size=2, max_size=2), bytes_in=st.integers(0, 5))
def test_pointers_into_arrays_and_differences_between_them_are_rebound(offsets: list[int], bytes_in: int) -> None:
    traces, loaded = TraceCache(), Launched()
    for again in range(2):
        whole = np.zeros(100)
        a, b = (Tensor(whole[2 * offset + 10 * again :][:4]) for offset in offsets)
        replayed = traces.replay(keyed("test", [a, b]))
        assert (replayed is not None) == bool(again)
        if replayed is None:
            recorder, launch, (first, second) = recorder_on(a, b, loaded=loaded)
            difference = PointerDifference(first.pointer, second.pointer, 8)
            launch(first.address + bytes_in, 3, difference, second.address, 0)
            traces.keep(recorder.finish(Nothing(), None).replay)
        gap = (b.data_ptr() - a.data_ptr()) // 8
        assert loaded.arguments.pop() == [a.data_ptr() + bytes_in, 3, gap, b.data_ptr(), 0]


def test_what_is_launched_on_arrays_of_unknown_origin_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor(X)
    copied = Tensor(X.copy())
    for unknown in (Address(copied.data_ptr()), PointerDifference(x.data_ptr(), copied.data_ptr(), 8)):
        loaded = Launched()
        recorder, launch, (first,) = recorder_on(x, loaded=loaded)
        launch(first.address, unknown)
        assert recorder.finish(Nothing(), None).replay is None
        assert loaded.arguments == [[x.data_ptr(), int(unknown)]]
    recorder, _, _ = recorder_on(x)
    unknown_too = factor(memory.inspect(copied, "copied"), 1)
    multiplied: list[Any] = []
    monkeypatch.setattr(cublas, "multiply", lambda *arguments: multiplied.append(arguments[3]))
    monkeypatch.setattr(stream, "current_stream", lambda _: 0)
    recorder.multiply(Product(1, 1, 1, unknown_too, unknown_too, unknown_too))
    assert recorder.finish(Nothing(), None).replay is None
    assert multiplied == [(copied.data_ptr(),) * 3]
    recorder, _, _ = recorder_on(x)
    finished = recorder.finish(StepResult(memory.inspect(copied, "copied"), ()), None)
    assert finished.replay is None and finished.result.y is copied
    recorder, _, _ = recorder_on(x)
    assert recorder.finish(Nothing(), None).replay is not None


def test_a_workspace_is_filled_for_every_launch_and_kept_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "set_bytes", set_bytes_on_host)
    traces, filled = TraceCache(), []

    def launch_on(_like: Any, _blocks: int, _threads: int, arguments: Any) -> None:
        filled.append(bytes(memory_at(arguments[1], 24, dtype="uint8")))

    for _ in range(2):
        x = Tensor(X)
        replayed = traces.replay(keyed("test", [x]))
        if replayed is None:
            recorder, launch, (first,) = recorder_on(x, loaded=SimpleNamespace(launch=launch_on))
            workspace = recorder.workspace(24)
            assert workspace is not None
            result = recorder.new_array((3,), "float64", fill=0)
            launch(first.address, workspace.address, result.address)
            replayed = traces.keep(recorder.finish(StepResult(result, ()), None).replay)
        assert replayed is not None
        assert (replayed.result.y.values == 0).all()
        assert replayed.arrays == [x, None, replayed.result.y]
    assert filled == [b"\xff" * 24] * 2


@given(seed=st.integers(0, 9), again=st.integers(1, 3))
def test_an_array_of_a_call_is_converted_by_every_replay(seed: int, again: int) -> None:
    """And what works on the converted array is replayed; one of unknown origin is not known to be there again."""
    traces, loaded, random = TraceCache(), Launched(), np.random.default_rng(seed)
    for turn in range(1 + again):
        x, half = Tensor(random.normal(size=4)), Tensor(random.normal(size=4).astype("f"))
        replayed = traces.replay(keyed("test", [x, half]))
        assert (replayed is not None) == bool(turn)
        if replayed is None:
            recorder, launch, (first, second) = recorder_on(x, half, loaded=loaded)
            assert recorder.cast(first, "float64") is first
            converted = recorder.cast(second, "float64")
            result = recorder.new_array((3,), "float64")
            launch(converted.address, result.address)
            replayed = traces.keep(recorder.finish(StepResult(result, (converted,)), None).replay)
        assert replayed is not None
        (wide,) = replayed.result.final
        np.testing.assert_array_equal(wide.values, half.values.astype("f8"))
        assert loaded.arguments.pop() == [wide.data_ptr(), replayed.result.y.data_ptr()]
    recorder, launch, _ = recorder_on(Tensor(X))
    unknown = recorder.cast(memory.inspect(Tensor(X.astype("f")), "unknown"), "float64")
    launch(unknown.address)
    assert recorder.finish(Nothing(), None).replay is None


def test_a_call_costs_the_host_little() -> None:
    """Measured at 12 microseconds without torch and CuPy's launch; ten times that is for slow and busy machines."""
    one = kernel_of("min_gru", precision="fp32")
    x, bias, state = Tensor(X.astype("f")), Tensor(np.zeros((2, HIDDEN), "f")), {"h": Tensor(STATE.astype("f"))}
    sizes = {"hidden_size": HIDDEN, "channels_per_block": 32, "threads": 32}
    loaded = Launched()
    plan = plan_with(
        entry="scan_forward",
        layout="BTD",
        specialization=Specialization(16),
        variables={},
        strategy="channels",
        group_exchange_bytes=0,
        is_cooperative=False,
        **sizes,
    )
    with as_if_on_a_device(one, lambda *_: (loaded, plan)):
        best = float("inf")
        for _ in range(20):
            started = time.process_time()
            for _ in range(20):
                one(x, bias=bias, state=state)
            best = min(best, (time.process_time() - started) / 20)
    assert best < within(250e-6)


def test_every_array_has_the_slot_that_it_was_keyed_under() -> None:
    one, random = kernel_of("gru", precision="fp32", input_size=INPUTS), np.random.default_rng(0)
    shapes = {"x": (2, 5, INPUTS), "R": (3, 1, HIDDEN, HIDDEN), "weight": (3 * HIDDEN, INPUTS), "bias": (3, HIDDEN)}
    shapes |= {"recurrent_bias": (3, 1, HIDDEN)}
    arrays = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    state, resets = {"h": np.zeros((2, HIDDEN), np.float32)}, np.zeros((2, 5), bool)
    given = CallArguments(**as_tensors(arrays | {"state": state, "resets": resets}))
    call_key = keyed("forward", given.flat(one.interface))
    assert call_key is not None
    call = one.executor.checked(given).with_slots(call_key)
    checked = {name: getattr(call, name) for name in shapes} | {"resets": call.sequences.resets}
    for name, array in checked.items():
        assert call_key.arrays[array.address.slot] is array.owner is getattr(given, name), name
    assert call_key.arrays[call.initial[0].address.slot] is given.state["h"]
    without = keyed("forward", given._replace(recurrent_bias=None).flat(one.interface))
    assert without is not None and without.key != call_key.key
