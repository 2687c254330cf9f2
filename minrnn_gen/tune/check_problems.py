"""Work of a GPU check: calls that together use every kernel family, and problems whose picks are judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store
from minrnn_gen.build.target import Target
from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import Infeasible
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES, KernelKey, KernelPass
from minrnn_gen.plan.scan.projected import refusal
from minrnn_gen.run.interface import interface_of
from minrnn_gen.run.layers.dropout import plain_dropout

OVER_TIME: tuple[KernelPass, ...] = ("forward", "backward")
# Without a kink, at which a rounding difference would change the gradient.
DIAGONAL: Mapping[str, Any] = {"name": "tanh_rnn", "equations": "h[t] = tanh(W.h + u * h[t-1])", "parameters": ["u"]}
# With a norm of a product, of a later product's operand, and of that product.
NORMED: Mapping[str, Any] = {
    "name": "normed_gru",
    "equations": """
        r = sigmoid(W.r + layer_norm(R.r, head, 1e-5))
        n = tanh(W.n + layer_norm(R.n(r * rms_norm(h[t-1], head, 1e-3)), head, 1e-5))
        h[t] = r * h[t-1] + (1 - r) * n
    """,
}
EVERY_PASS: tuple[KernelPass, ...] = (*OVER_TIME, "step")


@dataclass(frozen=True)
class CheckedProblem:
    """One pass of a spec, in fp32 or in the GPU's 16-bit precision."""

    spec: Mapping[str, Any]
    kernel_pass: KernelPass
    precision: str

    @property
    def label(self) -> str:
        """The problem as the first cell of a row."""
        spec = self.spec
        heads = f" in {spec['heads']} heads" if "heads" in spec else ""
        layout = f" {spec['layout']}" if "layout" in spec else ""
        sizes = f"{spec['batch']} x {spec['time']} x {spec['hidden_size']}"
        model = spec["model"] if isinstance(spec["model"], str) else spec["model"]["name"]
        return f"{model} {sizes}{heads} {self.precision}{layout}"

    def builder(self, target: Target, store: Store) -> Builder:
        """Return the builder of its kernels for `target`; earlier measurements are ignored."""
        return Builder(load_spec({**self.spec, "precision": self.precision}), target, store)

    def key(self, builder: Builder) -> KernelKey:
        """Return the kernel of contiguous arrays of the spec's sizes; with `input_size`, a kernel that includes the projection.

        Raises Infeasible where a GPU has no kernels with projections.
        """
        specialization = builder.hinted_specialization
        if self.kernel_pass == "dropout":
            specialization = plain_dropout(interface_of(builder, builder.cell_shape))
        elif builder.spec.input_size:
            specialization = Specialization(WIDEST_COPY_BYTES, input_size=builder.spec.input_size)
        key = builder.key_of(self.kernel_pass, specialization)
        if specialization.input_size and (why := refusal(builder.problem(key))):
            raise Infeasible(why)
        return key


# One of each class and layout, large enough for kernels of many sequences; then what has passes of its own.
FAMILIES: tuple[tuple[Mapping[str, Any], tuple[KernelPass, ...]], ...] = (
    ({"model": "min_gru", "hidden_size": 512, "batch": 4, "time": 1024}, EVERY_PASS),
    ({"model": "min_lstm", "hidden_size": 256, "batch": 4, "time": 1024, "layout": "BDT"}, OVER_TIME),
    ({"model": "lstm", "hidden_size": 256, "batch": 128, "time": 128}, EVERY_PASS),
    ({"model": "gru_reset_before", "hidden_size": 256, "batch": 8, "time": 128}, (*OVER_TIME, "arguments")),
    ({"model": "gru_reset_before", "hidden_size": 256, "batch": 4, "time": 128, "layout": "BDT"}, ("step",)),
    ({"model": NORMED, "hidden_size": 256, "batch": 8, "time": 32}, (*OVER_TIME, "arguments")),
    ({"model": DIAGONAL, "hidden_size": 256, "batch": 8, "time": 256}, EVERY_PASS),
    ({"model": "complex_lru", "hidden_size": 64, "batch": 2, "time": 4096}, ("forward",)),
    ({"model": "selective", "hidden_size": 256, "state_size": 16, "batch": 4, "time": 256}, EVERY_PASS),
)
IN_16_BITS: tuple[tuple[Mapping[str, Any], tuple[KernelPass, ...]], ...] = (
    ({"model": "min_gru", "hidden_size": 512, "input_size": 512, "batch": 4, "time": 512}, ("forward",)),
    ({"model": "lstm", "hidden_size": 256, "batch": 8, "time": 256}, ("dropout",)),
)
# Scans that are bound by memory, by few channels and by a layout; dense cells whose R one SM, a cluster or the grid holds.
PICKS: tuple[Mapping[str, Any], ...] = (
    {"model": "min_gru", "hidden_size": 1024, "batch": 8, "time": 4096},
    {"model": "lstm", "hidden_size": 512, "heads": 8, "batch": 32, "time": 512},
    {"model": "min_lstm", "hidden_size": 512, "batch": 1, "time": 16384},
    {"model": "min_gru", "hidden_size": 768, "batch": 16, "time": 1024, "layout": "BDT"},
    {"model": "gru", "hidden_size": 512, "batch": 8, "time": 512},
    {"model": "ind_rnn", "hidden_size": 1024, "batch": 8, "time": 1024},
)
QUICK_PICKS = 2


def family_problems(profile: GpuProfile, is_quick: bool) -> Iterator[CheckedProblem]:
    """Yield the problems that every family of kernels serves: in 16 bits and then, unless quick, in fp32."""
    for precision in (_16_bits(profile),) if is_quick else (_16_bits(profile), "fp32"):
        for spec, passes in FAMILIES if precision == "fp32" else FAMILIES + IN_16_BITS:
            for kernel_pass in passes:
                yield CheckedProblem(spec, kernel_pass, precision)


def pick_problems(profile: GpuProfile, is_quick: bool) -> Iterator[CheckedProblem]:
    """Yield the problems whose picks are measured next to other candidates."""
    for spec in PICKS[:QUICK_PICKS] if is_quick else PICKS:
        for kernel_pass in OVER_TIME:
            yield CheckedProblem(spec, kernel_pass, _16_bits(profile))


def _16_bits(profile: GpuProfile) -> str:
    return "bf16" if profile.has_bf16_arithmetic else "fp16"
