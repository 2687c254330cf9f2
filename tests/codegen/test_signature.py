"""The launch ABI as data is that of the kernels' text, and what is packed by its names lies as C has it."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.build.target import Target
from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.codegen.parameter import Parameter, Signature, initializer_text, member_text, pack, parameter_text
from minrnn_gen.codegen.render import render
from minrnn_gen.codegen.signature import BEGIN, names_of, signature, stored_in_call, suffixes_of
from minrnn_gen.config.gpu_profile import load_profile, profile_bytes
from minrnn_gen.config.spec import Spec, load_spec
from minrnn_gen.gpu import driver
from minrnn_gen.plan.families import FAMILIES, MOVING
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.precision import precision_of
from minrnn_gen.raw_scan.filter_kernels import filter_spec
from minrnn_gen.run.dense.launch import BackwardArrays, scratch_sizes
from minrnn_gen.run.drafts import Draft

# A scan with a parameter and two states, of which a backward reads one that is not y.
TWIN = {
    "name": "twin",
    "equations": "f = sigmoid(W.f)\nc[t] = f * c[t-1] + W.x\nn[t] = f * n[t-1] + u",
    "output": "tanh(W.o) * (c[t] - c[t-1]) + u * n[t]",
    "parameters": ["u"],
}
LEAKY = {
    "name": "leaky",
    "parameters": ["leak"],
    "equations": "z = sigmoid(W.z + R.z)\nn = tanh(W.n + R.n)\nh[t] = sigmoid(leak) * z * h[t-1] + (1 - z) * n",
}
# A product of what another product gives.
NORMS = {"name": "norms", "equations": "r = mean(R.r, all)\nh[t] = tanh(W.n + rms_norm(R.n(r * h[t-1]), head, 1))"}
ROUNDS = {"name": "rounds", "equations": "r = sigmoid(W.r + R.r)\nh[t] = tanh(W.n + p * R.n(r * h[t-1]))", "parameters": ["p"]}
SPECS: tuple[dict[str, Any], ...] = (
    *({"model": model, "layout": layout} for model, layout in product((TWIN, "min_gru", "ind_rnn"), ("BTD", "BDT"))),
    {"model": "min_lstm", "layout": "TBD", "batch": 1, "time": 65536},
    {"model": "min_gru", "layout": "BDT", "batch": 1, "time": 65536},
    {"model": "lstm"},
    {"model": "lstm", "gpu": "a100"},
    {"model": LEAKY, "precision": "fp64"},
    {"model": ROUNDS},
    {"model": NORMS},
    {"model": "gru", "precision": "fp16", "gpu": "t4"},
    {"model": "min_gru", "hidden_size": 128, "input_size": 64},
    *({"model": "selective", "state_size": 4, "layout": layout} for layout in ("BTD", "BDT")),
    {"model": "complex_lru"},
)
PASSES: tuple[KernelPass, ...] = ("forward", "backward", "step", "joined", "dropout", "slots", "drafts")
FILTER = {"model": filter_spec("fp32", 2).model, "layout": "BDT", "precision": "fp32"}
FILTER_PASSES: tuple[KernelPass, ...] = ("filter", "filter_backward")
# Resets are bits of the parameters, kept states a parameter: with all of either, and with neither.
WAYS = ((False, "none"), (True, "storage"), (False, "arithmetic"))
Kernel = tuple[KernelPlan, Any]


def kind_of(variables: dict[str, int]) -> tuple[bool, ...]:
    """Variables of a plan that change its signature."""
    return tuple(variables.get(name, 0) > limit for name, limit in (("lookback", 0), ("cluster_blocks", 1), ("grid_blocks", 1)))


def plans_of(builder: Builder, kernel_pass: KernelPass) -> Iterator[KernelPlan]:
    """Yield a plan of every family that serves and of every kind, with resets and kept states and without, and on pools."""
    hinted = builder.hinted_specialization
    if kernel_pass in ("step", "slots", "drafts"):
        yield builder.solve(builder.key_of(kernel_pass, replace(hinted, pool="arithmetic"))).plan(0)
    if kernel_pass == "step" and builder.cell_source.has_vectors:
        yield builder.solve(builder.key_of(kernel_pass, replace(hinted, pool="arithmetic", replays=True))).plan(0)
    if kernel_pass in ("slots", "drafts"):
        return
    ways = {"forward": WAYS, "backward": ((False, "none"), (True, "none"))}
    for resets, states_out in ways.get(kernel_pass, WAYS[:1]):
        for solution in builder.solutions(builder.key_of(kernel_pass, replace(hinted, resets=resets, states_out=states_out))):
            kinds: dict[tuple[bool, ...], int] = {}
            for rank, candidate in enumerate(solution.candidates):
                kinds.setdefault(kind_of(dict(candidate)), rank)
            yield from map(solution.plan, kinds.values())
    if kernel_pass == "backward" and builder.programs.products_are_added:
        for solution in builder.solutions(builder.key_of(kernel_pass, replace(hinted, products_added=True))):
            yield solution.plan(0)
    if kernel_pass == "forward" and builder.spec.input_size:
        yield builder.solve(builder.key_of(kernel_pass, replace(hinted, input_size=builder.spec.input_size))).plan(0)


@functools.cache
def kernels() -> tuple[Kernel, ...]:
    """Every kind of kernel: its plan and its lowered cell."""
    found = []
    for spec in (*SPECS, FILTER):
        sizes = {"hidden_size": 64, "precision": "bf16"} | {name: value for name, value in spec.items() if name != "gpu"}
        gpu = spec.get("gpu", "h200")
        target = Target(load_profile(gpu), profile_bytes(gpu), "spec")
        builder = Builder(load_spec(sizes), target, Store(cache_folder()))
        of_rounds: tuple[KernelPass, ...] = ("arguments",) if builder.cell.rounds else ()
        for kernel_pass in FILTER_PASSES if spec is FILTER else (*PASSES, *of_rounds):
            found += [(plan, builder.lowered_for(kernel_pass)) for plan in plans_of(builder, kernel_pass)]
    return tuple(found)


def signatures() -> Iterator[tuple[KernelPlan, str, Signature]]:
    for plan, lowered in kernels():
        for suffix in suffixes_of(plan.entry):
            yield plan, suffix, signature(plan, names_of(lowered), suffix)


def declared(text: str) -> list[tuple[str, str]]:
    """Read (type, name) of each declaration of a parameter list or a struct."""
    code = re.sub(r"//.*", "", text)
    parts = [part.strip() for part in re.split(r"[,;]", code) if part.strip()]
    found: list[tuple[str, str]] = []
    for part in parts:
        ctype, _, name = part.rpartition(" ")
        found.append((ctype or found[-1][0], name))
    return found


def test_every_family_is_there() -> None:
    assert {plan.template for plan, _ in kernels()} == {family.template for family in (*FAMILIES, *MOVING)}
    kinds = {(plan.entry, kind_of(dict(plan.variables))) for plan, _ in kernels()}
    for entry, kind in (("scan_forward", 0), ("scan_backward", 1), ("persistent_forward", 1), ("persistent_backward", 2)):
        assert {found[kind] for name, found in kinds if name == entry} == {False, True}


def test_the_text_of_every_kernel_has_the_parameters_of_its_signature() -> None:
    for plan, lowered in kernels():
        text = render(plan, lowered, ())
        entries = re.findall(r'extern "C" __global__ void .*?(\w+)\(\n(.*?)\) \{\n', text, re.S)
        assert [entry for entry, _ in entries] == [plan.symbol + suffix for suffix in suffixes_of(plan.entry)]
        for suffix, (_, parameters) in zip(suffixes_of(plan.entry), entries, strict=True):
            expected = signature(plan, names_of(lowered), suffix)
            assert declared(parameters) == [(parameter.ctype, parameter.identifier) for parameter in expected]


def test_a_call_is_stored_in_the_order_of_its_members() -> None:
    checked = 0
    for plan, lowered in kernels():
        if suffixes_of(plan.entry) == ("",):
            continue
        text = render(plan, lowered, ())
        stored = stored_in_call(signature(plan, names_of(lowered), BEGIN))
        ((members,),) = [re.findall(r"struct Call \{\n(.*?)\n\};", text, re.S)]
        assert [name for _, name in declared(members)] == [parameter.identifier for parameter in stored]
        ((values,),) = [re.findall(r"\*call = Call\{\n(.*?)\n *\};", text, re.S)]
        assert re.findall(r"\w+", values) == [parameter.identifier for parameter in stored]
        # Each step reads its call from there.
        assert set(re.findall(r"call->(\w+)", text)) <= {parameter.identifier for parameter in stored}
        checked += 1
    assert checked


def test_names_are_unique_and_pointers_have_shapes() -> None:
    for _, _, parameters in signatures():
        assert len(set(parameters.names)) == len(parameters)
        for parameter in parameters:
            assert re.fullmatch(r"\w+", parameter.name) and parameter.comment.isascii()
            assert parameter.comment.startswith("[") == ("*" in parameter.ctype), parameter


# What a source begins with, and the names that may follow.
LAUNCH = {
    "float32_vectors", "keeps_storage", "workspace", "first_group", "first_step", "step_in_chunk", "round", "checkpoints",
    "part_ends", "phase", "preactivations", "source", "mask", "target", "row_stride", "rows", "row_length", "scale",
    "x", "y", "dy", "b", "a", "zi", "zf", "dx", "db", "da", "dzi", "dzf", "time", "channels", "reads", "writes",
    "keeps", "starts", "next_output", "left", "right", "resets_only", "shift", "sequences",
}  # fmt: skip


def names_behind(head: str) -> set[str]:
    dense = load_spec({"model": "lstm", "hidden_size": 64})
    precision: Any = precision_of(dense.precision)
    interface: Any = type("Interface", (), {
        "precision": precision, "hidden_size": 64, "states": ("h", "c"), "recurrent_gates": ("i",), "R_shape": (4, 1, 64, 64),
    })  # fmt: skip
    classes: dict[str, Any] = {
        "call": Call, "draft": Draft, "outputs": Outputs, "incoming": IncomingGradient, "gradients": Gradients,
        "arrays": BackwardArrays,
    }  # fmt: skip
    if head in classes:
        return {field.name for field in fields(classes[head])} | {*dir(classes[head])}
    if head == "scratch":
        return {*scratch_sizes(interface, 1, False), *scratch_sizes(interface, 1, True, rounds=1)}
    return set(Spec.model_fields) if head == "spec" else LAUNCH


def test_every_source_is_something_of_a_call() -> None:
    sources = {parameter.source for _, _, parameters in signatures() for parameter in parameters}
    for source in sources:
        head, name, *rest = source.split(".")
        assert name in names_behind(head), source
        if rest:
            assert source.startswith("call.sequences.") and rest[0] in {"resets", "cu_seqlens", "lengths"}


def test_the_same_plan_has_the_same_signature() -> None:
    for plan, lowered in kernels():
        suffix = suffixes_of(plan.entry)[0]
        assert signature(plan, names_of(lowered), suffix) is signature(plan, names_of(lowered), suffix)


# Of each type of the templates, that of ctypes; compute_t is here float.
C_TYPES: dict[str, Any] = {
    "int64": ctypes.c_int64,
    "unsigned": ctypes.c_uint32,
    "int": ctypes.c_int32,
    "compute_t": ctypes.c_float,
}


def c_type_of(parameter: Parameter) -> Any:
    return ctypes.c_uint64 if "*" in parameter.ctype else C_TYPES[parameter.ctype]


def value_of(parameter: Parameter) -> st.SearchStrategy[Any]:
    if parameter.ctype == "compute_t":
        return st.floats(width=32, allow_nan=False).map(np.float32)
    if parameter.ctype == "unsigned":
        return st.integers(0, 2**32 - 1).map(np.uint32)
    limits = {"int64": (-(2**63), 2**63 - 1), "int": (-(2**31), 2**31 - 1)}
    return st.integers(*limits.get(parameter.ctype, (0, 2**63 - 1)))


def read_by_driver(arguments: tuple[Any, ...], sizes: list[int]) -> list[bytes]:
    """Launch, and return of each parameter as many bytes as it has."""
    slots: list[bytes] = []

    class Driver:
        @staticmethod
        def cuLaunchKernelEx(_configuration: Any, _function: int, parameters: int, _extra: None) -> int:
            addresses = (ctypes.c_void_p * len(sizes)).from_address(parameters)
            slots.extend(ctypes.string_at(address, size) for address, size in zip(addresses, sizes, strict=True))
            return driver.SUCCESS

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_library", Driver)
        assert driver.launch(7, (1, 32, 0, 0, False), arguments) == driver.SUCCESS
    return slots


@given(data=st.data())
def test_what_is_packed_lies_as_in_a_struct_of_c(data: st.DataObject) -> None:
    """The driver copies each parameter, as wide as it is, to its place among them: that of a member of a struct."""
    parameters = data.draw(st.sampled_from(sorted({one for _, _, one in signatures()}, key=lambda one: one.names)))
    values = {parameter.name: data.draw(value_of(parameter)) for parameter in parameters}
    members = [(parameter.name, c_type_of(parameter)) for parameter in parameters]
    expected = type("Expected", (ctypes.Structure,), {"_fields_": members})
    struct = expected(**{name: value if isinstance(value, int) else value.item() for name, value in values.items()})
    shuffled = dict(data.draw(st.permutations(list(values.items()))))
    slots = read_by_driver(pack(parameters, shuffled), [ctypes.sizeof(kind) for _, kind in members])
    for (name, _), slot in zip(members, slots, strict=True):
        field = getattr(expected, name)
        assert slot == bytes(struct)[field.offset : field.offset + field.size], name


def parameters_of(*names: str) -> Signature:
    return Signature(Parameter(name, "int64", "", f"call.{name}") for name in names)


def test_a_name_that_is_missing_or_unknown_is_said() -> None:
    parameters = parameters_of("batch", "time")
    assert pack(parameters, {"time": 2, "batch": 1}) == (1, 2)
    with pytest.raises(TypeError, match="the kernel has a parameter 'time', for which there is no value"):
        pack(parameters, {"batch": 1, "times": 2})
    with pytest.raises(TypeError, match="there is a value for 'rows', which is no parameter of the kernel"):
        pack(parameters, {"batch": 1, "time": 2, "rows": 3})


def test_comments_are_aligned() -> None:
    parameters = Signature((
        Parameter("x", "const float* __restrict__", "[batch]", "call.x"),
        *parameters_of("a", "b"),
        Parameter("mask", "unsigned", "bits", "launch.mask"),
    ))  # fmt: skip
    assert parameter_text(parameters) == (
        "    const float* __restrict__ x,  // [batch]\n"
        "    int64 a, int64 b,\n"
        "    unsigned mask                 // bits\n"
    )  # fmt: skip
    assert parameter_text(parameters_of("a", "b")) == "    int64 a, int64 b"
    assert member_text(parameters) == "    const float* x;\n    int64 a, b, mask;"
    assert initializer_text(parameters) == "            x, a, b, mask,"
