"""`minrnn-gen doctor`: what is installed, what is missing, and how to fix it."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata

from minrnn_gen.cli.request import AsJson
from minrnn_gen.cli.terminal import console, print_json
from minrnn_gen.config.package_files import package_folder
from minrnn_gen.errors import INSTALL_CUDA, INSTALL_JAX, INSTALL_ONNX, INSTALL_TORCH, MinrnnError

# The smallest kernel; an architecture that every NVRTC of CUDA 12 and 13 knows.
_PROBE = 'extern "C" __global__ void probe(float* y) { y[threadIdx.x] = expf(y[threadIdx.x]); }'
_PROBE_ARCH = "sm_80"
_REASON_CHARACTERS = 400


@dataclass(frozen=True)
class Finding:
    """Result of one check. `mend` says how to fix a failure; `is_needed`: compiling needs it."""

    name: str
    is_well: bool
    state: str
    mend: str = ""
    is_needed: bool = False


def doctor(as_json: AsJson = False) -> int:
    """Check libraries by importing them, NVRTC by compiling a line, driver, GPU, CPU, a C++ compiler, cache and launches."""
    nvrtc = _nvrtc()
    version = nvrtc.state if nvrtc.is_well else ""
    of_gpu = [_cupy(), nvrtc, *_cublas(), _driver(version), _gpu()]
    with ThreadPoolExecutor() as pool:  # importing each takes a second or two
        fronts = list(pool.map(lambda look: look(), (_torch, _jax, _onnx)))
    findings = [_package(), _python(), _solver(), *of_gpu, *fronts, _cpu(), _cpp(), _cache(), _host()]
    can_compile = all(finding.is_well for finding in findings if finding.is_needed)
    if as_json:
        print_json({"can_compile": can_compile, "findings": [asdict(finding) for finding in findings]})
    else:
        _print(findings, can_compile)
    return 0 if can_compile else 1


def _print(findings: list[Finding], can_compile: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for finding in findings:
        color = "green" if finding.is_well else "red" if finding.is_needed else "yellow"
        mark = Text("ok" if finding.is_well else "missing", color)
        text = finding.state if finding.is_well else f"{finding.state}: {finding.mend}"
        table.add_row(mark, finding.name, text)
    screen = console()
    screen.print(table)
    screen.print()
    screen.print("kernels can be compiled" if can_compile else "kernels cannot be compiled; the CPU serves NumPy arrays")


def _package() -> Finding:
    from minrnn_gen import __version__

    try:
        package_folder("templates")
    except MinrnnError as error:
        return Finding("minrnn-gen", False, __version__, str(error), is_needed=True)
    return Finding("minrnn-gen", True, __version__)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("Python", sys.version_info >= (3, 11), version, "install Python 3.11 or later", is_needed=True)


def _solver() -> Finding:
    from minrnn_gen.errors import ToolchainMissing
    from minrnn_gen.plan.solver import search_library

    try:
        search_library()
    except ToolchainMissing as missing:
        state, _, mend = str(missing).partition(": ")
        return Finding("python-constraint2", False, state, mend, is_needed=True)
    return Finding("python-constraint2", True, metadata.version("python-constraint2"), is_needed=True)


def _cupy() -> Finding:
    from minrnn_gen.gpu.device import why_no_cupy

    for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy"):
        try:
            state = f"{metadata.version(name)} ({name})"
        except metadata.PackageNotFoundError:
            continue
        if why := why_no_cupy():
            return Finding("CuPy", False, f"{state}, {why}", f"reinstall it: {INSTALL_CUDA}", is_needed=True)
        return Finding("CuPy", True, state, is_needed=True)
    return Finding("CuPy", False, "not installed", INSTALL_CUDA, is_needed=True)


def _cublas() -> list[Finding]:
    """Look for cuBLAS where a GPU could use it: compiling does without."""
    from minrnn_gen.errors import ToolchainMissing
    from minrnn_gen.gpu.cublas import load_library
    from minrnn_gen.gpu.driver import has_device

    if not has_device():
        return []
    try:
        load_library()
    except ToolchainMissing as missing:
        return [Finding("cuBLAS", False, str(missing).removesuffix(f": {INSTALL_CUDA}"), INSTALL_CUDA)]
    return [Finding("cuBLAS", True, "dense cells and projections multiply by it")]


def _nvrtc() -> Finding:
    from minrnn_gen.build.nvrtc import compile_source, nvrtc_version
    from minrnn_gen.codegen.render import Microbenchmark, Types
    from minrnn_gen.errors import ToolchainMissing

    try:
        version = nvrtc_version()
    except ToolchainMissing as missing:
        return Finding("NVRTC", False, str(missing).removesuffix(f": {INSTALL_CUDA}"), INSTALL_CUDA, is_needed=True)
    # A library that can be loaded may lack the one it compiles by.
    try:
        compile_source(_PROBE, Microbenchmark("probe", Types(_PROBE_ARCH, "float32")))
    except MinrnnError as error:
        state = f"{version} is here, but compiles nothing ({error})"
        return Finding("NVRTC", False, state, f"reinstall it: {INSTALL_CUDA}, with --force-reinstall", is_needed=True)
    return Finding("NVRTC", True, version, is_needed=True)


def _torch() -> Finding:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Finding("torch", False, "not installed, and minrnn_gen.torch needs it", INSTALL_TORCH)
    if why := _why_not("minrnn_gen.torch"):
        return Finding("torch", False, f"{version} cannot be imported ({why})", f"reinstall it: {INSTALL_TORCH}")
    serves = "for CPUs alone" if version.endswith("+cpu") else "minrnn_gen.torch can be imported"
    if "+rocm" in version:
        serves = "for AMD GPUs, which are not supported: layers run on the CPU"
    return Finding("torch", True, f"{version}, {serves}")


def _jax() -> Finding:
    """Look for JAX, and say how XLA calls kernels."""
    from minrnn_gen.build.ffi_handler import why_no_handler
    from minrnn_gen.native.trip import LIBRARY

    try:
        version = metadata.version("jax")
    except metadata.PackageNotFoundError:
        return Finding("JAX", False, "not installed, and minrnn_gen.jax needs it", INSTALL_JAX)
    if why := _why_not("minrnn_gen.jax"):
        return Finding("JAX", False, f"{version} cannot be imported ({why})", f"reinstall it: {INSTALL_JAX}")
    reason = why_no_handler() or ("" if LIBRARY is not None else "the package was installed without its C part")
    if reason:
        return Finding(
            "JAX",
            False,
            f"{version}, XLA calls kernels by Python, since {reason}",
            "a call takes the host several times as long",
        )
    return Finding("JAX", True, f"{version}, XLA calls kernels by C")


def _onnx() -> Finding:
    """Look for the libraries that write ONNX files."""
    try:
        state = ", ".join(f"{name} {metadata.version(name)}" for name in ("onnx", "onnxscript"))
    except metadata.PackageNotFoundError as missing:
        return Finding("ONNX", False, f"{missing.name} is not installed, and torch.onnx.export needs it", INSTALL_ONNX)
    if why := _why_not("onnx.defs, onnxscript.values"):
        return Finding("ONNX", False, f"{state} cannot be imported ({why})", f"reinstall it: {INSTALL_ONNX}")
    return Finding("ONNX", True, state)


def _why_not(modules: str) -> str:
    """Return why an import fails, or nothing; imports in a separate process, which a broken library may crash."""
    import os
    import subprocess

    program = f"try:\n    import {modules}\nexcept Exception as error:\n    print(type(error).__name__, error, sep=': ')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"importing it ends Python with status {done.returncode}"
    return " ".join(done.stdout.split())[:_REASON_CHARACTERS]


def _cpp() -> Finding:
    from minrnn_gen.errors import ToolchainMissing
    from minrnn_gen.interpret.toolchain import cpp_compiler

    try:
        compiler = cpp_compiler()
    except (ToolchainMissing, OSError) as missing:
        lost = "'minrnn-gen verify' runs kernels on a CPU by one; install g++ or clang++"
        return Finding("C++ compiler", False, str(missing).partition(":")[0], lost)
    return Finding("C++ compiler", True, f"{compiler.version or 'of unknown version'} ({compiler.program})")


def _driver(nvrtc: str) -> Finding:
    from minrnn_gen.gpu.driver import driver_version

    version = driver_version()
    if version is None:
        return Finding("driver", False, "no NVIDIA driver", "install it to run on a GPU; compiling does without")
    if nvrtc and int(version.split(".")[0]) < int(nvrtc.split(".")[0]):
        mend = "update the driver, or pip install 'cupy-cuda12x[ctk]' in the place of the one for CUDA 13"
        return Finding("driver", False, f"it serves CUDA {version}, kernels are compiled by {nvrtc}", mend)
    return Finding("driver", True, f"serves CUDA {version}")


def _gpu() -> Finding:
    from minrnn_gen.gpu.device import live_device, why_no_gpu

    try:
        live = live_device()
    except MinrnnError as error:
        return Finding("GPU", False, str(error), "kernels run on the CPU")
    if live is None:
        return Finding("GPU", False, why_no_gpu(), "kernels run on the CPU, and are compiled for the GPU named with --gpu")
    profile = f"profile {live.profile.name}" if live.profile_is_shipped else "a profile made of the driver's attributes"
    return Finding("GPU", True, f"{live.name}, compute capability {live.compute_capability}, {profile}")


def _cache() -> Finding:
    import os
    import tempfile

    from minrnn_gen.build.store import NO_FOLDER, WHY_NO_FOLDER, cache_folder
    from minrnn_gen.build.trust import Untrusted, demand_trust, make_private_folder

    folder = cache_folder()
    if folder == NO_FOLDER:
        return Finding("cache", False, WHY_NO_FOLDER, "set MINRNN_CACHE_DIR to a folder")
    try:
        make_private_folder(folder)
        demand_trust(folder, ())
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"writable")
    except Untrusted as untrusted:
        return Finding(
            "cache", False, f"not used, since {untrusted}", "set MINRNN_CACHE_DIR to a folder that only you may write"
        )
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return Finding("cache", False, f"{folder} cannot be written ({reason})", "set MINRNN_CACHE_DIR to a folder that can")
    return Finding("cache", True, f"{os.fspath(folder)} can be written")


def _host() -> Finding:
    from minrnn_gen.native.trip import LIBRARY

    if LIBRARY is not None:
        return Finding("launches", True, "by C")
    lost = "a call takes the host up to twice as long; install minrnn-gen again with a C compiler and Python's headers"
    return Finding("launches", False, "by Python", lost)


def _cpu() -> Finding:
    import numpy

    from minrnn_gen.build.c_compiler import c_compiler
    from minrnn_gen.build.cpu_kernel import why_no_native_code

    library = f"NumPy {numpy.__version__}"
    if reason := why_no_native_code():
        return Finding("CPU", False, f"host arrays run in {library}, since {reason}", "native code is several times as fast")
    return Finding(
        "CPU", True, f"host arrays run native code, compiled by {c_compiler().program}, and {library} where it has none"
    )
