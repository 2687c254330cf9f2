"""Behaviour of a process in which optional libraries are stubs, as JSON: `python -m support.optional_libraries LIBRARY…`.

The stubs are first on the path, put there by whoever starts it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from minrnn_gen.errors import MinrnnError


def _onnx() -> None:
    from minrnn_gen.torch import onnx_translations as wing

    module = sys.modules[wing.__module__]
    module.check_program = module.is_exported = lambda _: True  # type: ignore[attr-defined]
    operator = SimpleNamespace(_schema=SimpleNamespace(name="library::layer", arguments=[]))
    node = SimpleNamespace(target=operator, args=[], meta={"val": []})
    wing(SimpleNamespace(graph=SimpleNamespace(nodes=[SimpleNamespace(**{**vars(node), "target": _Hashable(operator)})])))


class _Hashable:
    """An operator of torch: a key that has a schema."""

    def __init__(self, operator: Any) -> None:
        self._schema = operator._schema


def _compiles() -> None:
    from minrnn_gen.build.nvrtc import compile_source

    text = 'extern "C" __global__ void probe(float* a) { a[threadIdx.x] = 1.0f; }'
    compile_source(text, SimpleNamespace(entry="probe", arch="sm_80", shared_bytes=0))  # type: ignore[arg-type]


def _runs_on_a_gpu() -> None:
    from minrnn_gen.gpu import cublas, device

    device.cupy_module()
    cublas.load_library()


def _plots() -> None:
    from benchmarks.report.plot import need_matplotlib

    need_matplotlib()


def _imports(name: str) -> Callable[[], Any]:
    return lambda: importlib.import_module(name)


def _installs(front: str) -> Callable[[], Any]:
    return lambda: importlib.import_module(f"minrnn_gen.compat.{front}").install()


# What needs a library, by the library's module: it works, or raises one sentence.
USES: dict[str, Callable[[], Any]] = {
    "cupy": _runs_on_a_gpu,
    "cupy_backends": _compiles,
    "cuda": _compiles,
    "torch": _imports("minrnn_gen.torch"),
    "jax": _imports("minrnn_gen.jax"),
    "onnx": _onnx,
    "onnxscript": _onnx,
    "xlstm": _installs("xlstm"),
    "transformers": _installs("recurrent_gemma"),
    "minGRU_pytorch": _installs("mingru_pytorch"),
    "torchrl": _installs("torchrl"),
    "matplotlib": _plots,
}


def host_calls() -> None:
    """Call kernels and a raw scan with host arrays."""
    import minrnn_gen

    rng = np.random.default_rng(0)
    for model, gates in (("min_gru", 2), ("lstm", 4)):
        kernel = minrnn_gen.compile({"model": model, "hidden_size": 4})
        x = rng.standard_normal((2, 3, gates, 4)).astype(np.float32)
        R = {"R": rng.standard_normal((gates, 1, 4, 4)).astype(np.float32)} if model == "lstm" else {}
        y, _, saved = kernel.forward(x, **R)
        expected, _ = kernel.reference(x, **R)
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)
        assert np.isfinite(kernel.backward(saved, np.ones_like(y))["x"]).all()
    a = np.full((1, 5, 2), 0.5, np.float32)
    np.testing.assert_allclose(minrnn_gen.scan(a, a)[1], 1 - 0.5**5, rtol=1e-6)


def doctor() -> dict[str, Any]:
    """Return the findings of `minrnn-gen doctor` by their names."""
    from minrnn_gen.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()) as said:
        main(["doctor", "--json"])
    return {finding["name"]: finding for finding in json.loads(said.getvalue())["findings"]}


def sentence_of(use: Callable[[], Any]) -> str:
    """Return what a use of a library says where it refuses, nothing where it works."""
    try:
        use()
    except MinrnnError as error:
        return str(error)
    return ""


def main(libraries: list[str]) -> None:
    """Print what is said of each library, and by `doctor`; any other exception than the package's own ends the process."""
    for library in libraries:
        with contextlib.suppress(Exception):
            importlib.import_module(library)  # half of one stays in this process, as a program's own attempt leaves it
    from minrnn_gen.gpu import device

    device.has_device = lambda: True  # a GPU, as far as one sees without CuPy
    host_calls()
    said = {library: sentence_of(USES[library]) for library in libraries if library in USES}
    print(json.dumps({"said": said, "doctor": doctor()}))


if __name__ == "__main__":
    main(sys.argv[1:])
