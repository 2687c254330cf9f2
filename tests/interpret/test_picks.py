"""Plans for sizes in use, emulated in their own text; other tests use plans of their own."""

from __future__ import annotations

from typing import Any

import pytest
from support.emulated_calls import HavingBuilder
from support.kernel_kinds import Call, Made, results_of

from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.config.spec import load_spec
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.interpret.verify import share_of
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.precision import error_allowed
from minrnn_gen.run.target import target_of

pytestmark = pytest.mark.skipif(not has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none")

# Cell, heads, units of a head, sequences: as people train them, and as they serve them.
USED = (
    ("lstm", 1, 512, 16), ("lstm", 12, 64, 16), ("lstm", 6, 128, 16), ("lstm", 3, 256, 16), ("lstm", 1, 768, 16),
    ("gru", 1, 256, 16), ("lstm", 1, 128, 1), ("lstm", 1, 64, 64), ("slstm", 4, 64, 16), ("slstm", 1, 512, 8),
)  # fmt: skip
EVERYDAY = {("lstm", 1, 512, 16), ("slstm", 4, 64, 16)}
STEPS = 4


class PickedBuilder(HavingBuilder):
    """Builds what is planned for the sizes of the spec, whatever the sizes of a call."""

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, _sizes: Sizes) -> KernelKey:
        """Return the kernel for the sizes of the spec."""
        return self.key_of(kernel_pass, specialization, self.hinted_sizes)


@pytest.mark.parametrize(
    ("cell", "heads", "units", "batch"),
    [pytest.param(*used, marks=() if used in EVERYDAY else pytest.mark.matrix_full) for used in USED],
)
def test_what_runs_for_sizes_in_use_is_exact(cell: str, heads: int, units: int, batch: int) -> None:
    keys: dict[str, Any] = {"hidden_size": heads * units, "heads": heads, "layout": "TBD", "recurrent_bias": True}
    keys |= {"model": cell, "batch": batch, "time": 1024, "gpu": "h200"}
    spec = load_spec(keys | {"precision": "bf16"})
    builder = PickedBuilder(spec, target_of(spec), Store(cache_folder()))
    key = builder.choose("forward", builder.hinted_specialization, builder.hinted_sizes)
    kernel = InterpretedKernel(builder, (builder.build(key),))
    exact = Kernel(PickedBuilder(load_spec(keys | {"precision": "fp64"}), builder.target, builder.store), kernel.built)
    given = frozenset({"bias", "state", "dstate"})
    inputs = Call(kernel.plan.variables.get("batch_tile", 1) + 1, STEPS, 0.0, given).inputs(kernel)
    subject = Made(kernel, exact, error_allowed(kernel.interface.precision.with_functions(spec.functions)))
    for found, expected in zip(results_of(kernel, inputs), subject.expected(inputs), strict=True):
        for name, values in expected.items():
            assert share_of(found[name], values, subject.slack) <= 1, name
