"""Launches of a kernel exported for GPUs, as a driver without a GPU sees them, beside those of a call in Python."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.exported import WARNINGS, compiler_environment, run_in

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.c_compiler import c_compiler
from minrnn_gen.call.address import plain_numbers
from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array, contiguous_strides
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.sequences import Sequences
from minrnn_gen.export.source import ExportSource
from minrnn_gen.gpu.driver import packed
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.run.gpu import GpuRun
from minrnn_gen.run.scan_launch import Launch

FAKE = Path(__file__).with_name("fake_driver.c")
STREAM = 0x77
# Of every array, at which nothing is read.
FIRST_ADDRESS, NEXT_ARRAY = 1 << 32, 1 << 24
# Calls a kernel in a process of its own, whose libcuda is the fake one.
SCRIPT = """
import ctypes, json, sys
request = json.load(sys.stdin)
library, name = ctypes.CDLL(request["library"]), request["name"]
class Strides(ctypes.Structure):
    _fields_ = [(axis, ctypes.c_int64) for axis in ("batch", "time", "direction", "gate", "channel")]
class Call(ctypes.Structure):
    _fields_ = [(array, Strides if strided else ctypes.c_void_p) for array, strided in request["members"]]
    _fields_ = [("batch", ctypes.c_int64), ("time", ctypes.c_int64), *_fields_]
def function(suffix, result=ctypes.c_int):
    found = getattr(library, name + "_" + suffix)
    found.restype = result
    return found
kernel, answers = ctypes.c_void_p(), []
code = function("create")(ctypes.byref(kernel), request["device"])
answers.append([code, function("message", ctypes.c_char_p)().decode()])
for one in request["calls"] if not code else ():
    call = Call(one["batch"], one["time"])
    for array, value in one["arrays"].items():
        setattr(call, array, Strides(**value) if isinstance(value, dict) else value)
    number = {"forward": 0, "step": 1}[one["pass"]]
    size = function("workspace_bytes", ctypes.c_int64)(kernel, ctypes.byref(call), number)
    stream, workspace = ctypes.c_void_p(request["stream"]), ctypes.c_void_p(one["workspace"])
    code = function(one["pass"])(kernel, ctypes.byref(call), workspace, ctypes.c_int64(size), stream)
    answers.append([code, function("message", ctypes.c_char_p)().decode() if code else ""])
if not answers[0][0]:
    function("destroy", None)(kernel)
print(json.dumps(answers))
"""


@dataclass(frozen=True)
class SeenLaunch:
    """One launch: the kernel's cubin by its hash, its name, the blocks and threads, shared bytes, cooperation, arguments."""

    image: int
    entry: str
    blocks: int
    threads: int
    shared_bytes: int
    is_cooperative: bool
    arguments: tuple[int, ...]


@dataclass
class Answers:
    """What a program got: for `create` and each call a code and a sentence, and what the driver was asked for."""

    codes: list[tuple[int, str]]
    launches: list[SeenLaunch]
    memsets: list[tuple[int, int, int]]
    attributes: list[tuple[int, int]]
    unloaded: int
    images: list[int]


def fake_library(folder: Path) -> Path:
    """Build the driver without a GPU, and return its folder."""
    to = folder / "driver"
    to.mkdir(exist_ok=True)
    options = ("-std=c99", *WARNINGS, "-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    built = run_in(to, c_compiler().program, *options, str(FAKE), "-o", "libcuda.so.1")
    assert built.returncode == 0, built.stderr
    return to


def run_calls(
    folder: Path, source: ExportSource, calls: Iterable[Mapping[str, Any]], device: int = 0, **driver: str
) -> Answers:
    """Build an exported kernel and call it on a driver without a GPU, by addresses at which nothing lies."""
    library = folder / "kernel.so"
    if not library.exists():
        options = ("-std=c99", "-O1", *WARNINGS, "-shared", "-fPIC")
        built = run_in(folder, c_compiler().program, *options, f"{source.name}.c", "-o", library.name, "-ldl", "-pthread")
        assert built.returncode == 0, built.stderr
    log = folder / "log"
    log.write_text("")
    request = {
        "library": str(library),
        "name": source.name,
        "members": [(array.name, array.is_strides) for array in source.arrays],
        "device": device,
        "stream": STREAM,
        "calls": list(calls),
    }
    environment = compiler_environment() | {"LD_LIBRARY_PATH": str(fake_library(folder)), "FAKE_DRIVER_LOG": str(log)}
    environment |= {f"FAKE_DRIVER_{name.upper()}": value for name, value in driver.items()}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(request), env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return _answers(json.loads(ran.stdout), log.read_text().splitlines())


def _answers(codes: list[list[Any]], lines: list[str]) -> Answers:
    answers, images = Answers([(code, sentence) for code, sentence in codes], [], [], [], 0, []), list[int]()
    for line in lines:
        what, *words = line.split()
        if what == "module":
            images.append(int(words[0]))
            answers.images.append(images[-1])
        elif what == "attribute":
            answers.attributes.append((int(words[1]), int(words[2])))
        elif what == "unloaded":
            answers.unloaded += 1
        elif what == "memset":
            address, value, size_bytes, stream = map(int, words)
            assert stream == STREAM
            answers.memsets.append((address, value, size_bytes))
        elif what == "launch":
            module, entry, *numbers = words
            blocks, block_y, block_z, threads, thread_y, thread_z, shared, stream, is_cooperative, *slots = map(int, numbers)
            assert (block_y, block_z, thread_y, thread_z, stream) == (1, 1, 1, 1, STREAM)
            seen = SeenLaunch(images[int(module)], entry, blocks, threads, shared, bool(is_cooperative), tuple(slots))
            answers.launches.append(seen)
    return answers


def hash_of(cubin: bytes) -> int:
    """Return FNV-1a of a cubin up to where its headers say that it ends, as the fake driver computes it."""
    segments, sections = struct.unpack_from("<QQ", cubin, 32)
    sizes = struct.unpack_from("<4H", cubin, 54)
    value = 14695981039346656037
    for byte in cubin[: max(segments + sizes[0] * sizes[1], sections + sizes[2] * sizes[3])]:
        value = (value ^ byte) * 1099511628211 % 2**64
    return value


@dataclass
class PlannedRun:
    """A run in Python whose launches are noted: a backend, its recorder, and a stream in one, on memory that is not there."""

    builder: Builder
    resident: int = 1
    built: dict[KernelKey, Any] = field(default_factory=dict)
    launches: list[SeenLaunch] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    fills: list[tuple[int, int, int]] = field(default_factory=list)
    free: int = FIRST_ADDRESS << 1
    has_graphs: bool = False

    def begin(self, *_: Any) -> PlannedRun:
        return self

    def finish(self, *_: Any) -> None:
        return None

    def plan(self, kernel: KernelKey) -> KernelPlan:
        return self.builder.build(kernel).plan

    def build_ahead(self, *_: Any) -> None:
        return None

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> KernelKey:
        return self.builder.choose(kernel_pass, specialization, sizes)

    def new_array(self, shape: tuple[int, ...], dtype: str, *, fill: int | None = None) -> Array:
        self.free += NEXT_ARRAY
        array = array_at(self.free, shape, dtype)
        self.written.append(self.free)
        if fill is not None:
            self.fills.append((self.free, fill, math.prod(shape) * array.itemsize))
        return array

    def workspace(self, size_bytes: int) -> Array | None:
        if not size_bytes:
            return None
        self.fills.append((workspace_address(), 255, size_bytes))
        return array_at(workspace_address(), (size_bytes,), "uint8")

    def load(self, kernel: KernelKey, _part: str = "") -> PlannedKernel:
        built = self.builder.build(kernel)
        assert built.cubin is not None
        return PlannedKernel(self, built.plan, hash_of(built.cubin))


@dataclass(frozen=True)
class PlannedKernel:
    """A kernel whose launches are noted."""

    run: PlannedRun
    plan: KernelPlan
    image: int

    def launch(self, launch: Launch) -> None:
        plan, slots = self.plan, packed(plain_numbers(launch.arguments))
        arguments = struct.unpack(f"<{len(slots) // 8}Q", slots)
        is_cooperative = plan.group_exchange_bytes > 0
        seen = SeenLaunch(self.image, plan.entry, launch.blocks, plan.threads, plan.shared_bytes, is_cooperative, arguments)
        self.run.launches.append(seen)

    def resident_blocks(self) -> int:
        return self.run.resident


def workspace_address() -> int:
    """Return where a call works."""
    return FIRST_ADDRESS << 2


def array_at(address: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Describe an array without gaps on a device."""
    return Array("array", "cupy", None, address, shape, contiguous_strides(shape), dtype, 0)


def planned_call(interface: Interface, batch: int, time: int, *, is_step: bool, lengths: bool, resets: bool) -> Call:
    """Return a call of arrays without gaps, at addresses at which nothing lies."""
    storage, real = interface.precision.storage_dtype, interface.precision.arithmetic_dtype
    free = FIRST_ADDRESS

    def new(shape: tuple[int, ...], dtype: str) -> Array:
        nonlocal free
        free += NEXT_ARRAY
        return array_at(free, shape, dtype)

    axes = interface.x_axes.replace("t", "") if is_step else interface.x_axes
    is_dense = bool(interface.recurrent_gates)
    return Call(
        x=new(interface.shape(axes, batch, time), storage),
        x_axes=axes,
        rows=batch,
        time=time,
        weight=None,
        bias=new((*interface.directions, len(interface.gates), interface.hidden_size), real),
        parameters=tuple(new(interface.parameter_shape, real) for _ in interface.parameters),
        initial=tuple(new(interface.state_shape(batch), real) for _ in interface.states),
        sequences=Sequences(batch, new((batch, time), "bool") if resets else None, new((batch,), "int64") if lengths else None),
        R=new(interface.R_shape, storage) if is_dense else None,
        recurrent_bias=new(interface.recurrent_bias_shape, real) if interface.takes_recurrent_bias else None,
    )


def planned_launches(kernel: Kernel, call: Call, is_step: bool, resident: int) -> tuple[PlannedRun, dict[str, Any]]:
    """Return what a call in Python launches on a GPU, and the same call as C takes it."""
    interface = kernel.interface
    run = PlannedRun(kernel.builder, resident)
    gpu_run = GpuRun(interface, kernel.builder, run)
    if is_step:
        gpu_run.step(call)
    else:
        gpu_run.forward(call, "none", saves=False)
    y, *finals = run.written
    arrays: dict[str, Any] = {"x": call.x.pointer, "y": y}
    arrays |= {f"final_{name}": address for name, address in zip(interface.states, finals, strict=True)}
    named = {"R": call.R, "bias": call.bias, "recurrent_bias": call.recurrent_bias}
    named |= {"resets": call.sequences.resets, "lengths": call.sequences.lengths}
    named |= {f"parameter_{name}": array for name, array in zip(interface.parameters, call.parameters, strict=True)}
    named |= {f"initial_{name}": array for name, array in zip(interface.states, call.initial, strict=True)}
    arrays |= {name: array.pointer for name, array in named.items() if array is not None}
    passed = {"pass": "step" if is_step else "forward", "batch": call.rows, "time": call.time, "arrays": arrays}
    return run, passed | {"workspace": workspace_address()}
