"""Kernels of cells whose output is a product of its own, with that product folded into all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.embedded import folded_builder
from minrnn_gen.call.folding import Folding
from minrnn_gen.call.interface import Interface


class _HasInterface(Protocol):
    @property
    def interface(self) -> Interface: ...


KernelT = TypeVar("KernelT", bound=_HasInterface)


def folded_by(builder: Builder, interface: Interface, made: Callable[[Builder], KernelT]) -> tuple[KernelT, Folding] | None:
    """Return the kernel `made` for calls with gradients and without initial states, and its folding; None where nothing folds.

    It merges two products into one where the output is itself a product, as in an LSTM with projected units.
    """
    folded = folded_builder(builder)
    if folded is None:
        return None
    kernel = made(folded[0])
    return kernel, Folding(interface, kernel.interface, folded[1])


def folded_in_words(builder: Builder) -> str:
    """Return a sentence on the product that such calls fold into others; empty where there is none."""
    folded = folded_builder(builder)
    if folded is None:
        return ""
    kernels, gate = folded
    products = ", ".join(f"R.{name} R.{gate}" for name in kernels.cell.recurrent_gates)
    return (
        f"folded: recurrence of torch and JAX, and layers of torch, without initial states multiply by {products} in every "
        f"step, one exchange fewer, and by R.{gate} after all steps"
    )
