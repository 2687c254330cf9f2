"""Exchanges of persistent kernels: how the blocks that share a head of R pass on the results of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Exchange:
    """One exchange; its CUDA is the struct `Exchange` in `templates/exchanges/<name>.cuh.j2`.

    `serves` says whether a pass with these variables takes the exchange. Blocks exchange the operands of the product, all to
    all (`passes_operands`), or the sums of their partial products (`passes_sums`), or nothing. `arguments` are the kernel's
    arguments for the struct's constructor, after the block's shared memory and the thread. Means over units are exchanged
    within `scope`, through `means_memory` if the blocks share memory for them.
    """

    name: str
    serves: Callable[[str, Mapping[str, int]], bool]
    passes_operands: bool = False
    passes_sums: bool = False
    arguments: tuple[str, ...] = ()
    scope: str = "block"
    means_memory: tuple[str, ...] = ()


def _is_cluster(variables: Mapping[str, int]) -> bool:
    return variables["cluster_blocks"] > 1


# The first that serves is taken.
EXCHANGES = (
    Exchange(
        "reduce_scatter",
        lambda kernel_pass, variables: kernel_pass == "backward" and _is_cluster(variables),
        passes_sums=True,
        scope="cluster",
    ),
    Exchange("cluster", lambda _, variables: _is_cluster(variables), passes_operands=True, scope="cluster"),
    Exchange(
        "grid",
        lambda _, variables: variables["grid_blocks"] > 1,
        passes_operands=True,
        arguments=("group_exchanges", "first_group"),
        scope="grid",
        means_memory=("exchange.words",),
    ),
    Exchange("block", lambda *_: True),
)


def exchange_of(kernel_pass: str, variables: Mapping[str, int]) -> Exchange:
    """Return the exchange of a persistent kernel."""
    return next(exchange for exchange in EXCHANGES if exchange.serves(kernel_pass, variables))
