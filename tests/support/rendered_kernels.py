"""From a spec to the text of its kernel, without a compiler and without the cache."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from support.reference_loops import DIAGONAL_CELLS

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.build.target import Target
from minrnn_gen.codegen.header import header_lines
from minrnn_gen.codegen.render import render
from minrnn_gen.config.gpu_profile import load_profile, profile_bytes
from minrnn_gen.config.spec import load_spec
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelPass

# What no built-in cell has: two states, an output that looks back, a parameter in it, and a value carried from a gate to it.
TWIN_CELL = {
    "name": "twin",
    "equations": "f = sigmoid(W.f)\nc[t] = f * c[t-1] + W.x\nn[t] = f * n[t-1] + u",
    "output": "tanh(W.o) * (c[t] - c[t-1]) + u * n[t]",
    "parameters": ["u"],
}
RAW_CELL = {"name": "raw", "equations": "h[t] = W.a * h[t-1] + W.b"}
# Every cell that is generated, by name.
MODELS: dict[str, Any] = {
    **{name: name for name in ("hgrn", "min_gru", "min_gru_log", "min_gru_tanh", "min_lstm", "min_lstm_log", "qrnn", "rg_lru")},
    "raw": RAW_CELL,
    "twin": TWIN_CELL,
    "ind_rnn": "ind_rnn",
    **{cell["name"]: cell for cell in DIAGONAL_CELLS},
}
profile = functools.cache(load_profile)


@dataclass(frozen=True)
class Rendered:
    plan: KernelPlan
    source: str
    header: tuple[str, ...]


def builder_of(model: Any, gpu: str = "h200", **spec: Any) -> Builder:
    loaded = load_spec({"model": MODELS.get(model, model) if isinstance(model, str) else model, "hidden_size": 384, **spec})
    return Builder(loaded, Target(profile(gpu), profile_bytes(gpu), "spec"), Store(cache_folder()))


def rendered_case(
    model: Any, gpu: str = "h200", kernel_pass: KernelPass = "forward", alignment_bytes: int | None = None, **spec: Any
) -> Rendered:
    builder = builder_of(model, gpu, **spec)
    solution = builder.solve(
        builder.key_of(kernel_pass, Specialization(alignment_bytes) if alignment_bytes else builder.hinted_specialization)
    )
    plan = solution.plan()
    header = header_lines(plan, builder.spec.canonical(), "0" * 64, solution.constraints)
    return Rendered(plan, render(plan, builder.lowered, header), header)
