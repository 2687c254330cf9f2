"""A recurrent-kernel compiler: a few lines of spec in, a specialised CUDA kernel with a CPU twin out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minrnn_gen.api import compile
    from minrnn_gen.config.spec import Spec
    from minrnn_gen.errors import BadInput, CompileFailed, Infeasible, MinrnnError, ToolchainMissing
    from minrnn_gen.kernel import Kernel
    from minrnn_gen.raw_scan.scan import scan, scan_backward

__version__ = "0.1.0"

__all__ = [
    "BadInput",
    "CompileFailed",
    "Infeasible",
    "Kernel",
    "MinrnnError",
    "Spec",
    "ToolchainMissing",
    "compile",
    "scan",
    "scan_backward",
]

_MODULES = {
    "compile": "api",
    "Kernel": "kernel",
    "Spec": "config.spec",
    "scan": "raw_scan.scan",
    "scan_backward": "raw_scan.scan",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, and no more: `import minrnn_gen` costs nothing."""
    if name not in __all__:
        import sys

        # Its name and its module, from which Python makes a suggestion.
        raise AttributeError(f"module 'minrnn_gen' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    import importlib

    return getattr(importlib.import_module(f"minrnn_gen.{_MODULES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    """Return the names that completion offers: those imported on demand, and the fronts of other libraries."""
    return sorted({*__all__, "compat", "jax", "torch", *(name for name in globals() if name.startswith("__"))})
