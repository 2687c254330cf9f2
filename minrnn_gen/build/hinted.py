"""A builder that plans for one size: the baseline for kernels that serve every size."""

from __future__ import annotations

from minrnn_gen.build.builder import Builder
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes


class HintedBuilder(Builder):
    """Builder whose calls all run the kernel that is planned for exactly the spec's typical sizes, whatever their own."""

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, _sizes: Sizes) -> KernelKey:
        """Return the kernel that is planned for the typical sizes."""
        return self.key_of(kernel_pass, specialization)
