"""NVRTC through CuPy: what the compiler module relies on, what it reads out of the log, and what it says when refused."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.patience import within
from support.rendered_kernels import rendered_case

from minrnn_gen.build import nvrtc
from minrnn_gen.build.nvrtc import KernelResources, broken_promises, compile_source, parse_resources, toolchain_version
from minrnn_gen.errors import CompileFailed, ToolchainMissing

needs_nvrtc = pytest.mark.skipif(toolchain_version() is None, reason="NVRTC is not installed (the extras cuda13 and cuda12)")
PLAN = rendered_case("min_gru").plan
TINY = 'extern "C" __global__ void __launch_bounds__(64, 1) tiny(float* a) { a[threadIdx.x] = 1.0f; }'

# Reports of ptxas as they came, release by release.
LOG_OF_13_4 = """\
ptxas info    : Overriding maximum register limit 256 for 'k2' with  32 of maxrregcount option
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k2' for 'sm_75'
ptxas info    : Function properties for k2
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 6 registers, used 1 barriers, 308 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 1.327 ms
ptxas info    : Compiling entry function 'k' for 'sm_75'
ptxas info    : Function properties for k
ptxas         .     936 bytes stack frame, 932 bytes spill stores, 1500 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 936 bytes cumulative stack size, 364 bytes cmem[0]
ptxas info    : Compile time = 41.784 ms
"""
LOG_OF_12_4 = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'scan_forward' for 'sm_90'
ptxas info    : Function properties for scan_forward
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 96 registers, 8192 bytes smem
"""


def test_a_report_is_read_kernel_by_kernel() -> None:
    assert parse_resources(LOG_OF_13_4, 100) == (
        KernelResources("k2", registers=6, shared_bytes=408, spill_bytes=0, stack_bytes=0),
        KernelResources("k", registers=32, shared_bytes=100, spill_bytes=2432, stack_bytes=936),
    )
    assert parse_resources(LOG_OF_12_4, 0) == (KernelResources("scan_forward", 96, 8192, 0, 0),)
    assert parse_resources("", 0) == ()


@pytest.mark.parametrize("lost", ["Used 96 registers", "spill stores", "spill loads"])
def test_a_report_that_says_less_is_refused(lost: str) -> None:
    """A release that words its report differently must not pass for a kernel that takes nothing."""
    with pytest.raises(CompileFailed, match="scan_forward"):
        parse_resources(LOG_OF_12_4.replace(lost, "something else"), 0)


def taking(**changes: int) -> KernelResources:
    kept = KernelResources("scan_forward", PLAN.budget.registers_per_thread, PLAN.budget.shared_bytes, 0, 0)
    return dataclasses.replace(kept, **changes)


@pytest.mark.parametrize(
    ("kernels", "phrases"),
    [
        ((taking(),), ()),
        ((taking(registers=1),), ()),
        ((taking(spill_bytes=8),), ("scan_forward spills 8 bytes",)),
        (
            (taking(registers=PLAN.budget.registers_per_thread + 1),),
            (f"scan_forward uses {PLAN.budget.registers_per_thread + 1} registers of {PLAN.budget.registers_per_thread}",),
        ),
        ((taking(shared_bytes=PLAN.budget.shared_bytes + 4),), (f"the plan {PLAN.budget.shared_bytes}",)),
        ((taking(shared_bytes=0),), ("0 bytes of shared memory",)),
        ((), ("no kernel",)),
        ((taking(), taking(spill_bytes=8, shared_bytes=0)), ("spills", "shared memory")),
    ],
)
def test_promises_are_held_against_the_plan(kernels: tuple[KernelResources, ...], phrases: tuple[str, ...]) -> None:
    broken = broken_promises(PLAN, kernels)
    assert len(broken) == len(phrases)
    assert all(phrase in text for phrase, text in zip(phrases, broken, strict=True))


@needs_nvrtc
def test_the_private_class_is_as_it_was() -> None:
    """CuPy promises nothing of it: this says what changed, and where to look."""
    from cupy.cuda import compiler as cupy_compiler

    made = list(inspect.signature(cupy_compiler._NVRTCProgram.__init__).parameters)
    assert made[:3] == ["self", "src", "name"] and "method" in made
    assert list(inspect.signature(cupy_compiler._NVRTCProgram.compile).parameters)[:3] == ["self", "options", "log_stream"]
    assert issubclass(cupy_compiler.CompileException, Exception)
    log = io.StringIO()
    program = cupy_compiler._NVRTCProgram(TINY, "tiny.cu", method="cubin")
    cubin, _ = program.compile(("-arch=sm_90", *nvrtc.OPTIONS), log)
    assert "Compiling entry function 'tiny'" in log.getvalue()
    # An ELF file ends with its tables (ELF64 header: their offsets at 32 and 40, entry sizes and counts at 54 and 58).
    program_offset, section_offset = struct.unpack_from("<QQ", cubin, 32)
    program_size, programs, section_size, sections = struct.unpack_from("<HHHH", cubin, 54)
    end = max(program_offset + program_size * programs, section_offset + section_size * sections)
    assert len(cubin) + 1 == end, "CuPy no longer drops the last byte: append none in compiler.py"


@needs_nvrtc
def test_a_cubin_is_a_whole_elf_file() -> None:
    compiled = compile_source(TINY, dataclasses.replace(PLAN, entry="tiny"))
    assert compiled.cubin.startswith(b"\x7fELF") and compiled.cubin.endswith(b"\0")
    (kernel,) = compiled.kernels
    assert (kernel.name, kernel.shared_bytes, kernel.spill_bytes) == ("tiny", PLAN.budget.shared_bytes, 0)


@needs_nvrtc
def test_compiling_is_repeatable() -> None:
    rendered = rendered_case("qrnn", precision="bf16")
    assert compile_source(rendered.source, rendered.plan) == compile_source(rendered.source, rendered.plan)


@needs_nvrtc
def test_the_first_program_of_a_process_is_compiled_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC 13.0 refuses each source that is compiled while another thread opens its built-in functions."""
    from cupy.cuda import compiler as cupy_compiler

    both_came, opening, opened = threading.Barrier(2), threading.Lock(), threading.Event()

    class AsOf130(cupy_compiler._NVRTCProgram):  # type: ignore[misc]
        def compile(self, *arguments: object) -> object:
            if not opened.is_set():
                if not opening.acquire(blocking=False):
                    opened.set()
                    raise cupy_compiler.CompileException("nvrtc: error: failed to open libnvrtc-builtins.so.13.0.", "", "", ())
                opened.wait(within(0.2))
                opened.set()
            return super().compile(*arguments)

    def compile_tiny(_: int) -> str:
        both_came.wait()
        return compile_source(TINY, dataclasses.replace(PLAN, entry="tiny")).kernels[0].name

    monkeypatch.setattr(cupy_compiler, "_NVRTCProgram", AsOf130)
    nvrtc._compile_nothing.cache_clear()
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(compile_tiny, range(2))) == ["tiny", "tiny"]


@needs_nvrtc
@pytest.mark.parametrize(
    ("text", "arch", "part"),
    [
        ("int f() { return nowhere; }", "sm_90", 'scan_forward.cu(1): error: identifier "nowhere" is undefined'),
        ("#error stop", "sm_90", "#error directive: stop"),
        ("void f() {", "sm_90", "error"),
        (TINY, "sm_10", "sm_10"),
    ],
)
def test_a_refusal_is_one_sentence(text: str, arch: str, part: str) -> None:
    with pytest.raises(CompileFailed) as caught:
        compile_source(text, dataclasses.replace(PLAN, problem=dataclasses.replace(PLAN.problem, arch=arch)))
    message = str(caught.value)
    assert message.startswith(f"NVRTC refused the source of scan_forward for {arch}: ") and part in message
    assert message.isprintable() and len(message) < 400


@pytest.mark.parametrize("module", ["cupy.cuda", "cupy_backends.cuda.libs"])
def test_without_cupy_the_package_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.suppress(ImportError):
        importlib.import_module("cupy")  # whole: an import that ends halfway cannot be made again in this process
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ToolchainMissing, match=r"pip install 'cupy-cuda13x\[ctk\]'"):
        compile_source(TINY, PLAN)


@needs_nvrtc
def test_without_nvrtc_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from cupy.cuda import compiler as cupy_compiler

    class Unloadable:
        def __init__(self, *_: object, **__: object) -> None: ...

        def compile(self, *_: object) -> None:
            raise RuntimeError("CuPy failed to load libnvrtc.so.13")

    monkeypatch.setattr(cupy_compiler, "_NVRTCProgram", Unloadable)
    nvrtc._compile_nothing.cache_clear()
    with pytest.raises(ToolchainMissing, match=r"libnvrtc\.so\.13.*cupy-cuda13x\[ctk\]"):
        compile_source(TINY, PLAN)


def test_the_toolchain_is_known_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    def version(name: str) -> str:
        if name in installed:
            return "1.2"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    installed = {"nvidia-cuda-nvrtc", "cupy-cuda13x"}
    assert toolchain_version.__wrapped__() == "nvidia-cuda-nvrtc 1.2, cupy-cuda13x 1.2"
    installed = {"nvidia-cuda-nvrtc"}
    assert toolchain_version.__wrapped__() is None


@given(st.text())
def test_any_log_is_read_or_refused(log: str) -> None:
    try:
        parse_resources(log, 0)
    except CompileFailed as refused:
        assert str(refused).isprintable()
