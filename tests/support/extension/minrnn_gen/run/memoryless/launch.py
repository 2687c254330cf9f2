"""The grid of a launch of a memoryless cell and its arguments, by the names of the kernel's signature."""

from __future__ import annotations

from minrnn_gen.call.arguments import Call, Outputs
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.signature import signature
from minrnn_gen.codegen.signature_groups import ArrayNames
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.program.number import divided_up, most
from minrnn_gen.run.launch import Launch, inputs_of, launch_in_grid, named, row_strides


def forward_launch_of(plan: KernelPlan, names: ArrayNames, call: Call, outputs: Outputs) -> Launch:
    """Return the launch of a forward of one direction on the arrays of `call` (x already projected), writing `outputs`."""
    values = {
        **inputs_of(plan, names, call),
        "y": outputs.y.address,
        **row_strides(plan, call, "y", outputs.y),
        **(named("kept", names.states, outputs.kept) if outputs.kept else {}),
        **named("final", names.states, outputs.final),
        "batch": call.batch,
        "time": call.time,
    }
    threads = call.batch * most(1, call.time) * plan.problem.hidden_size
    return launch_in_grid(divided_up(threads, plan.launch.threads), pack(signature(plan, names), values))
