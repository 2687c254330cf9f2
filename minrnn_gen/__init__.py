"""A recurrent-kernel compiler: a few lines of spec in, a specialised CUDA kernel with a CPU twin out."""

from __future__ import annotations

__version__ = "0.1.0"
