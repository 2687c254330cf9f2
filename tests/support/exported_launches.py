"""Calls that a kernel exported for GPUs makes to a driver and a cuBLAS without a GPU, compared with a call in Python."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self
from unittest.mock import patch

from support.exported import PASSES, WARNINGS, compiler_environment, run_in

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.c_compiler import c_compiler
from minrnn_gen.build.nvrtc import CompiledSource, KernelResources
from minrnn_gen.call.address import plain_numbers
from minrnn_gen.call.arguments import Call, IncomingGradient
from minrnn_gen.call.array import Array, contiguous_strides
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.sequences import Sequences
from minrnn_gen.export.source import ExportSource
from minrnn_gen.gpu.cublas import CUDA_TYPES, WORKSPACE_BYTES, Product
from minrnn_gen.gpu.driver import packed
from minrnn_gen.gpu.graph import Scratch
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization, StatesOut
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.run.cuda import STRIDING_BLOCKS
from minrnn_gen.run.gpu import GpuRun
from minrnn_gen.run.launch import Launch
from minrnn_gen.run.recording.replay import Finished
from minrnn_gen.run.saved import owner_of

FOLDER = Path(__file__).parent
STREAM = 0x77
# Where arrays lie, at which nothing is read: those of a call, what Python allocates besides, and the workspaces in C.
FIRST_ADDRESS, FIRST_SCRATCH, FIRST_WORKSPACE, NEXT_ARRAY = 1 << 36, 1 << 37, 1 << 38, 1 << 28
# Kernels of gradients outside the recurrence, which Python leaves to a library of arrays.
OTHER_KERNELS = ("add_up", "add_parts", "store", "zero_beyond")
# Calls a kernel in a process of its own, whose libraries are the fake ones.
SCRIPT = """
import ctypes, json, os, sys
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
answers.append([code, function("message", ctypes.c_char_p)().decode(), 0, 0])
for one in request["calls"] if not code else ():
    with open(os.environ["FAKE_DRIVER_LOG"], "a") as log:
        log.write("call\\n")
    call = Call(one["batch"], one["time"])
    for array, value in one["arrays"].items():
        setattr(call, array, Strides(**value) if isinstance(value, dict) else value)
    number = request["passes"][one["pass"]]
    size = function("workspace_bytes", ctypes.c_int64)(kernel, ctypes.byref(call), number)
    stream, workspace = ctypes.c_void_p(request["stream"]), ctypes.c_void_p(one["workspace"])
    code = function(one["pass"])(kernel, ctypes.byref(call), workspace, ctypes.c_int64(size), stream)
    saved = function("saved_bytes", ctypes.c_int64)(kernel, ctypes.byref(call)) if "saved" in one["arrays"] else 0
    answers.append([code, function("message", ctypes.c_char_p)().decode() if code else "", size, saved])
if not answers[0][0]:
    function("destroy", None)(kernel)
print(json.dumps(answers))
"""


class SeenLaunch(NamedTuple):
    """One launch: the kernel's cubin by its hash, its name, the blocks and threads, shared bytes, cooperation, arguments."""

    image: int
    entry: str
    blocks: int
    threads: int
    shared_bytes: int
    is_cooperative: bool
    arguments: tuple[int, ...]


class SeenFill(NamedTuple):
    """Bytes of one value."""

    address: int
    value: int
    size_bytes: int


class SeenCopy(NamedTuple):
    """Rows of bytes, some way apart."""

    source: int
    source_row: int
    target: int
    target_row: int
    width: int
    height: int


class SeenProduct(NamedTuple):
    """The arguments of cublasGemmStridedBatchedEx behind the handle, and how that one is set."""

    workspace: int
    workspace_bytes: int
    mode: int
    arguments: tuple[int, ...]


Seen = SeenLaunch | SeenFill | SeenCopy | SeenProduct


@dataclass
class Answers:
    """Results of a program: for `create` and each call a code and a sentence, and the requests to the libraries.

    `sizes`: the bytes of workspace and of `saved` of each call. `handles`: of cuBLAS, made and dropped.
    """

    codes: list[tuple[int, str]]
    sizes: list[tuple[int, int]]
    by_call: list[list[Seen]] = field(default_factory=list)
    attributes: list[tuple[int, int]] = field(default_factory=list)
    unloaded: int = 0
    images: list[int] = field(default_factory=list)
    handles: list[int] = field(default_factory=lambda: [0, 0])

    @property
    def launches(self) -> list[SeenLaunch]:
        """The launches alone."""
        return [seen for calls in self.by_call for seen in calls if isinstance(seen, SeenLaunch)]


def fake_library(folder: Path, source: str = "fake_driver.c", name: str = "libcuda.so.1") -> Path:
    """Put a library without a GPU into a folder of `folder`, and return that one."""
    to = folder / "libraries"
    to.mkdir(exist_ok=True)
    (to / name).write_bytes(_fake_library(source, name))
    return to


@functools.cache
def _fake_library(source: str, name: str) -> bytes:
    options = ("-std=c99", *WARNINGS, "-O1", "-shared", "-fPIC", f"-Wl,-soname,{name}")
    with tempfile.TemporaryDirectory() as folder:
        built = run_in(Path(folder), c_compiler().program, *options, str(FOLDER / source), "-o", name, "-lm", "-ldl")
        assert built.returncode == 0, built.stderr
        return (Path(folder) / name).read_bytes()


def run_calls(
    folder: Path,
    source: ExportSource,
    calls: Iterable[Mapping[str, Any]],
    device: int = 0,
    cublas: str | None = "libcublas.so.12",
    **driver: str,
) -> Answers:
    """Build an exported kernel and call it on a driver without a GPU, by addresses at which nothing lies.

    `cublas` is the file of the fake cuBLAS, None for none.
    """
    library = folder / "kernel.so"
    if not library.exists():
        options = ("-std=c99", "-O1", *WARNINGS, "-Wpedantic", "-shared", "-fPIC")
        built = run_in(folder, c_compiler().program, *options, f"{source.name}.c", "-o", library.name, "-ldl", "-pthread")
        assert built.returncode == 0, built.stderr
    libraries = fake_library(folder)
    if source.multiplies and cublas:
        fake_library(folder, "fake_cublas.c", cublas)
    log = folder / "log"
    log.write_text("")
    request = {
        "library": str(library),
        "name": source.name,
        "members": [(array.name, array.is_strides) for array in source.arrays],
        "device": device,
        "stream": STREAM,
        "passes": PASSES,
        "calls": list(calls),
    }
    environment = compiler_environment() | {"LD_LIBRARY_PATH": str(libraries), "FAKE_DRIVER_LOG": str(log)}
    environment |= {f"FAKE_{name.upper()}": value for name, value in driver.items()}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(request), env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return _answers(json.loads(ran.stdout), log.read_text().splitlines())


def _answers(returned: list[list[Any]], lines: list[str]) -> Answers:
    codes = [(code, sentence) for code, sentence, *_ in returned]
    answers = Answers(codes, [(size, saved) for *_, size, saved in returned])
    for line in lines:
        what, *words = line.split()
        if what == "launch":
            module, entry, *rest = words
            blocks, block_y, block_z, threads, thread_y, thread_z, shared, stream, is_cooperative, *slots = map(int, rest)
            assert (block_y, block_z, thread_y, thread_z, stream) == (1, 1, 1, 1, STREAM)
            image = answers.images[int(module)]
            answers.by_call[-1].append(SeenLaunch(image, entry, blocks, threads, shared, bool(is_cooperative), tuple(slots)))
            continue
        numbers = list(map(int, words))
        if what == "call":
            answers.by_call.append([])
        elif what == "module":
            answers.images.append(numbers[0])
        elif what == "attribute":
            answers.attributes.append((numbers[1], numbers[2]))
        elif what == "unloaded":
            answers.unloaded += 1
        elif what in {"handle", "handle_dropped"}:
            answers.handles[what == "handle_dropped"] += 1
        elif what == "memset":
            address, value, size_bytes, stream = numbers
            assert stream == STREAM
            answers.by_call[-1].append(SeenFill(address, value, size_bytes))
        elif what == "copy":
            assert numbers[0] == STREAM
            answers.by_call[-1].append(SeenCopy(*numbers[1:]))
        elif what == "product":
            assert numbers[0] == STREAM
            answers.by_call[-1].append(SeenProduct(*numbers[1:4], tuple(numbers[4:])))
    return answers


def not_compiled(text: str, plan: Any) -> CompiledSource:
    """Return in place of a cubin, which no fake driver runs, a header of its size and what tells its kernel from others."""
    own = hashlib.sha256(f"{plan.problem.arch} {text}".encode()).digest()
    header = bytearray(64)
    struct.pack_into("<Q", header, 40, len(header) + len(own))  # where it ends, as `hash_of` reads it
    shared_bytes, registers = plan.budget.shared_bytes, getattr(plan.budget, "registers_per_thread", 32)
    return CompiledSource(bytes(header) + own, (KernelResources(plan.entry, registers, shared_bytes, 0, 0),))


def hash_of(cubin: bytes) -> int:
    """Return FNV-1a of a cubin up to where its headers say that it ends, as the fake driver computes it."""
    segments, sections = struct.unpack_from("<QQ", cubin, 32)
    sizes = struct.unpack_from("<4H", cubin, 54)
    value = 14695981039346656037
    for byte in cubin[: max(segments + sizes[0] * sizes[1], sections + sizes[2] * sizes[3])]:
        value = (value ^ byte) * 1099511628211 % 2**64
    return value


@dataclass(frozen=True)
class Owner:
    """An array of a library in which nothing is added up: it stays what it is."""

    pointer: int
    shape: tuple[int, ...]

    def sum(self, _axes: object) -> Self:
        return self

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, _index: int) -> Self:
        return self

    def astype(self, *_how: object, **_else: object) -> Self:
        return self

    def swapaxes(self, *_axes: int) -> Self:
        return self

    def reshape(self, *_shape: int) -> Self:
        return self


@dataclass
class PlannedRun:
    """A run in Python that is noted: a backend, its recorder, and a stream in one, on memory that is not there."""

    builder: Builder
    resident: int = 1
    seen: list[Seen] = field(default_factory=list)
    allocated: dict[int, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    has_graphs: bool = False
    has_lanes: bool = False
    joins_products: bool = False

    def begin(self, *_: Any) -> PlannedRun:
        self.shared = {}
        return self

    def finish(self, result: Any, metadata: Any) -> Finished[Any, Any]:
        return Finished(result.mapped(owner_of), metadata, None)

    @property
    def ends_in_slots(self) -> bool:
        """False: exports have functions of their own for the end of a run."""
        return False

    @staticmethod
    def can_store(*, waits: bool) -> bool:  # noqa: ARG004
        """Leave the end of a run to libraries: exports have functions of their own for it."""
        return False

    def loop(self, start: int, stop: int, step: int = 1) -> range:
        return range(start, stop, step)

    def plan(self, kernel: KernelKey) -> KernelPlan:
        return self.builder.build(kernel).plan

    def build_ahead(self, *_: Any) -> None:
        return None

    @property
    def built(self) -> tuple[()]:
        return ()

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> KernelKey:
        return self.builder.choose(kernel_pass, specialization, sizes)

    def _shared(self, name: str, size_bytes: int) -> int:
        """Return memory that one use after the other has: in Python each has its own, which comes back from the pool."""
        if name not in self.shared:
            self.shared[name] = int(self.new_array((0,), "uint8").pointer)
        self.allocated[self.shared[name]] = max(size_bytes, self.allocated[self.shared[name]])
        return self.shared[name]

    def new_array(self, shape: tuple[int, ...], dtype: str, *, fill: int | None = None) -> Array:
        address = FIRST_SCRATCH + len(self.allocated) * NEXT_ARRAY
        array = array_at(address, shape, dtype)
        self.allocated[address] = math.prod(shape) * array.itemsize
        if fill is not None and self.allocated[address]:
            self.seen.append(SeenFill(address, fill, self.allocated[address]))
        return array

    def workspace(self, size_bytes: int) -> Array | None:
        if not size_bytes:
            return None
        address = self._shared("workspace", size_bytes)
        self.seen.append(SeenFill(address, 255, size_bytes))
        return array_at(address, (size_bytes,), "uint8")

    def cast(self, array: Array, dtype: str) -> Array:
        return array if array.dtype == dtype else self.new_array(array.shape, dtype)

    def zeroed_beyond(self, x: Array, *_: Any) -> Array:
        return self.new_array(x.shape, x.dtype)

    def multiply(self, product: Product, _workspace: int = 0) -> None:
        """Note the product as cuBLAS gets it, which thinks in columns."""
        left, right, result = product.left, product.right, product.result
        arguments = [right.transposed, left.transposed, product.n, product.m, product.k, 1]
        for matrix in (right, left):
            arguments += [matrix.pointer, CUDA_TYPES[matrix.dtype], matrix.row, matrix.stride]
        arguments += [product.adds, result.pointer, CUDA_TYPES[result.dtype], result.row, result.stride]
        arguments += [product.batch, product.compute_type, -1]
        self.seen.append(
            SeenProduct(self._shared("products", WORKSPACE_BYTES), WORKSPACE_BYTES, 16, tuple(map(int, arguments)))
        )

    def copy_heads_first(self, R: Array, target: int) -> None:
        gates, heads, *matrix = R.shape
        square = math.prod(matrix) * R.itemsize
        for gate in range(gates):
            source, to = int(R.pointer) + gate * heads * square, int(target) + gate * square
            self.seen.append(SeenCopy(source, square, to, gates * square, square, heads))

    def scratch(self, sizes_bytes: Mapping[str, int]) -> Scratch:
        pieces = {name: int(self.new_array((size,), "uint8").pointer) for name, size in sizes_bytes.items() if name != "cublas"}
        return Scratch(sizes_bytes, {"cublas": 0, **pieces})

    @staticmethod
    def striding_blocks(_rows: int) -> int:
        return STRIDING_BLOCKS

    def load(self, kernel: KernelKey, part: str = "") -> PlannedKernel:
        built = self.builder.build(kernel)
        assert built.cubin is not None
        return PlannedKernel(self, built.plan, hash_of(built.cubin), part)


@dataclass(frozen=True)
class PlannedKernel:
    """A kernel whose launches are noted."""

    run: PlannedRun
    plan: KernelPlan
    image: int
    part: str

    def launch(self, launch: Launch) -> None:
        plan, slots = self.plan, packed(plain_numbers(launch.arguments))
        arguments = struct.unpack(f"<{len(slots) // 8}Q", slots)
        is_cooperative = plan.is_cooperative
        seen = SeenLaunch(
            self.image,
            f"{plan.symbol}{self.part}",
            launch.blocks,
            plan.launch.threads,
            plan.budget.shared_bytes,
            is_cooperative,
            arguments,
        )
        self.run.seen.append(seen)

    def resident_blocks(self) -> int:
        return self.run.resident


class Matching:
    """Which memory in C is what Python allocated: the same places in it, however the two lie."""

    def __init__(self, scratch: Mapping[int, int]) -> None:
        self._scratch, self.bases = dict(scratch), dict[int, int]()

    def in_python(self, planned: Seen, seen: Seen) -> Seen:
        """Return what was seen in C with Python's addresses for those that can be the same."""
        assert type(planned) is type(seen), (planned, seen)
        values = [self._matched(*pair) for pair in zip(planned, seen, strict=True)]
        return type(seen)(*values)  # type: ignore[arg-type]  # of the same fields

    def _matched(self, planned: Any, seen: Any) -> Any:
        if isinstance(planned, tuple) and isinstance(seen, tuple) and len(planned) == len(seen):
            return tuple(self._matched(*pair) for pair in zip(planned, seen, strict=True))
        if isinstance(planned, bool) or not isinstance(planned, int) or planned == seen:
            return seen
        base = planned - (planned - FIRST_SCRATCH) % NEXT_ARRAY
        if base not in self._scratch:
            return seen
        return seen if self.bases.setdefault(base, seen - (planned - base)) != seen - (planned - base) else planned

    def check_apart(self, rooms: Sequence[tuple[int, int]]) -> None:
        """Demand that pieces do not overlap, and lie in one of `rooms`, each an address and a size in bytes."""
        assert max(self._scratch.values(), default=0) < NEXT_ARRAY
        pieces = sorted((address, self._scratch[base]) for base, address in self.bases.items() if self._scratch[base])
        for (address, size_bytes), (behind, _) in pairwise(pieces):
            assert address + size_bytes <= behind
        for address, size_bytes in pieces:
            assert any(first <= address and address + size_bytes <= first + size for first, size in rooms), hex(address)


def array_at(address: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Describe an array without gaps on a device."""
    return Array("array", "cupy", Owner(address, shape), address, shape, contiguous_strides(shape), dtype, 0)


@dataclass(frozen=True)
class Way:
    """How a kernel is called."""

    is_step: bool = False
    lengths: bool = False
    resets: bool = False
    packed: bool = False
    states: bool = False
    backward: bool = False


class Arrays:
    """Arrays of a call at addresses at which nothing lies."""

    def __init__(self, first: int = FIRST_ADDRESS) -> None:
        self._free = first

    def new(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return the next one."""
        self._free += NEXT_ARRAY
        return array_at(self._free, shape, dtype)


def planned_call(interface: Interface, batch: int, time: int, way: Way) -> Call:
    """Return a call of arrays without gaps; of packed sequences there are `batch`, of `time` steps on average."""
    storage, real, new = interface.precision.storage_dtype, interface.precision.arithmetic_dtype, Arrays().new
    axes = interface.x_axes.replace("t", "") if way.is_step else interface.x_axes
    shared_axes = interface.shared_axes.replace("t", "") if way.is_step else interface.shared_axes
    channel_axes = interface.channel_axes.replace("t", "") if way.is_step else interface.channel_axes
    rows, steps = (1, batch * time) if way.packed else (batch, time)
    is_dense = bool(interface.recurrent_gates)
    return Call(
        x=new(interface.shape(axes, rows, steps), storage),
        x_axes=axes,
        rows=rows,
        time=steps,
        weight=new((interface.weight_rows, interface.input_size), storage) if interface.input_size else None,
        bias=new((*interface.directions, len(interface.gates), interface.hidden_size), real),
        parameters=tuple(new(interface.shape_of_parameter(name), real) for name in interface.parameters),
        initial=tuple(new(interface.shape_of_state(name, batch), real) for name in interface.states),
        shared=tuple(new(interface.shape(shared_axes, rows, steps), storage) for _ in interface.shared),
        inputs=tuple(new(interface.shape(channel_axes, rows, steps), storage) for _ in interface.inputs),
        sequences=Sequences(
            batch,
            new((rows, steps), "bool") if way.resets else None,
            new((batch,), "int64") if way.lengths else None,
            new((batch + 1,), "int64") if way.packed else None,
        ),
        R=new(interface.R_shape, storage) if is_dense else None,
        recurrent_bias=new(interface.recurrent_bias_shape, real) if interface.takes_recurrent_bias else None,
    )


class PlannedCall(NamedTuple):
    """One call in Python: what it asks for, and the same calls as C takes them, a forward and where asked for its backward."""

    run: PlannedRun
    passed: tuple[dict[str, Any], ...]


def planned_launches(kernel: Kernel, call: Call, way: Way, resident: int = 1) -> PlannedCall:
    """Return what a call in Python asks a GPU for."""
    interface, builder = kernel.interface, kernel.builder
    run = PlannedRun(builder, resident)
    gpu_run = GpuRun(interface, builder, run)
    arrays = _inputs(interface, call)
    if way.is_step:
        result = gpu_run.step(call)
        arrays |= {"y": result.y.pointer} | _pointers("final", interface.states, result.final)
        return PlannedCall(run, (_passed("step", call, arrays, 0),))
    saves: StatesOut = "arithmetic" if interface.recurrent_gates else "storage"
    needs = way.backward and not interface.has_vectors and bool(builder.lowered_backward.needs_saved_states)
    forward = gpu_run.forward(call, "arithmetic" if way.states else saves if needs else "none", saves=way.backward)
    outputs = forward.outputs
    arrays |= {"y": outputs.y.pointer} | _pointers("final", interface.states, outputs.final)
    if way.states:
        arrays |= _pointers("states", interface.states, outputs.kept)
    if not way.backward:
        return PlannedCall(run, (_passed("forward", call, arrays, 0),))
    arrays["saved"] = FIRST_WORKSPACE + 2 * NEXT_ARRAY
    new, precision = Arrays(FIRST_WORKSPACE + 4 * NEXT_ARRAY).new, interface.precision
    dy = new(outputs.y.shape, precision.storage_dtype)
    dfinal = tuple(new(interface.shape_of_state(name, call.batch), precision.arithmetic_dtype) for name in interface.states)
    with patch("minrnn_gen.gpu.memory.zeroed_beyond", run.zeroed_beyond):
        raw = gpu_run.backward(forward, IncomingGradient(dy, dfinal))
    of_backward = {"dy": dy.pointer, "dx": raw.x.pointer} | _pointers("dfinal", interface.states, dfinal)
    of_backward |= _pointers("dinitial", interface.states, raw.initial) | _pointers("dinput", interface.inputs, raw.inputs)
    wanted = {"dbias": call.bias, "dweight": call.weight, "dR": call.R, "drecurrent_bias": call.recurrent_bias}
    wanted |= {f"dshared_{name}": array for name, array in zip(interface.shared, call.shared, strict=True)}
    wanted |= {f"dparameter_{name}": array for name, array in zip(interface.parameters, call.parameters, strict=True)}
    of_backward |= {name: new(array.shape, array.dtype).pointer for name, array in wanted.items() if array is not None}
    passed = _passed("forward", call, arrays, 0), _passed("backward", call, arrays | of_backward, 1)
    return PlannedCall(run, passed)


def _inputs(interface: Interface, call: Call) -> dict[str, int]:
    sequences = call.sequences
    named = {"x": call.x, "R": call.R, "weight": call.weight, "bias": call.bias, "recurrent_bias": call.recurrent_bias}
    named |= {"resets": sequences.resets, "lengths": sequences.lengths, "cu_seqlens": sequences.cu_seqlens}
    named |= {f"parameter_{name}": array for name, array in zip(interface.parameters, call.parameters, strict=True)}
    named |= {f"initial_{name}": array for name, array in zip(interface.states, call.initial, strict=True)}
    named |= {f"shared_{name}": array for name, array in zip(interface.shared, call.shared, strict=True)}
    named |= {f"input_{name}": array for name, array in zip(interface.inputs, call.inputs, strict=True)}
    return {name: int(array.pointer) for name, array in named.items() if array is not None}


def _pointers(prefix: str, names: tuple[str, ...], arrays: Sequence[Any]) -> dict[str, int]:
    return {f"{prefix}_{name}": int(array.pointer) for name, array in zip(names, arrays, strict=True)}


def _passed(kernel_pass: str, call: Call, arrays: dict[str, int], place: int) -> dict[str, Any]:
    workspace = FIRST_WORKSPACE + place * NEXT_ARRAY
    return {"pass": kernel_pass, "batch": call.batch, "time": call.time, "arrays": arrays, "workspace": workspace}
