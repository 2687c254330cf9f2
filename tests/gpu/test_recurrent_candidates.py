"""Candidates of the persistent kernels, not only those that are chosen, against torch's autograd of the equations in fp64."""

from __future__ import annotations

import pytest
from support.persistent_candidates import PASSES, kernel_of_sample, sampled
from test_dense import Y_TOLERANCE, check_call

from minrnn_gen.build.store import Store
from minrnn_gen.errors import CompileFailed
from minrnn_gen.plan.problem import KernelPass

pytestmark = pytest.mark.gpu

# Of each pass: four or five candidates, those of forwards compiled twice, for calls with and without states kept.
GROUPS = 60
# More than the deepest ring holds, and an odd number of steps.
TIME = 19


@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.parametrize("kernel_pass", PASSES)
def test_candidates_are_right(shared_store: Store, kernel_pass: KernelPass, group: int) -> None:
    """A tile of sequences and one more, so that a second tile is almost empty; all that a call may be given but sequences."""
    import torch

    samples = sampled(kernel_pass)
    if not samples:
        pytest.skip("this GPU has no persistent kernels")
    torch.manual_seed(group)
    wrong, dropped = [], []
    its = samples[group::GROUPS]
    for sample in its:
        variables = dict(sample.variables)
        try:
            kernel = kernel_of_sample(sample, shared_store)
            given, y = check_call(torch, kernel, variables["batch_tile"] + 1, TIME)
            # In a call that keeps no states another kernel runs, of the same candidate.
            repeated, _ = kernel(**given)
            difference = torch.linalg.vector_norm(repeated.double() - y.double()) / torch.linalg.vector_norm(y.double())
            assert float(difference) <= 2 * Y_TOLERANCE[sample.precision]
        except CompileFailed as failed:
            if "kept its promise" not in str(failed):
                raise
            dropped.append(str(sample))  # nobody is ever given it
        except AssertionError as failed:
            wrong.append(f"{sample}: {failed}")
        else:
            ran = [plan for key, plan in kernel.plans.items() if key.kernel_pass == kernel_pass]
            assert all(plan.is_persistent and plan.variables == variables for plan in ran), sample
    assert not wrong, "\n".join(wrong)
    assert 2 * len(dropped) <= len(its), f"the estimate of registers is wrong: {dropped}"
