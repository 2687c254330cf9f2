"""Errors of every function of the equation language, accurate and fast, against float64, on the GPU; from the checkout:

`python -m benchmarks.function_accuracy OUT.json`; `python -m benchmarks.write_pages` then fills the table of docs/numerics.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.report.functions import (
    ARGUMENT_COUNTS,
    PUBLISHED_FUNCTIONS,
    Array,
    FunctionRecord,
    call_text,
    error_of,
    samples_of,
)
from minrnn_gen import __version__
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.nvrtc import compile_source, nvrtc_version
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.build.target import Target
from minrnn_gen.codegen.render import environment
from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.config.spec import load_spec
from minrnn_gen.gpu import device, memory
from minrnn_gen.gpu.module import LoadedKernel
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.precision import FunctionAccuracy

ROOT = Path(__file__).resolve().parent.parent
CHOICES: tuple[FunctionAccuracy, ...] = ("accurate", "fast")
THREADS = 256
# One kernel for each function; `plan` and `cell` as in every template.
TEXT = """\
{% include "parts/types.cuh.j2" %}
{% include "parts/functions.cuh.j2" %}
{% include "parts/functions_behind_sums.cuh.j2" %}
{% for name, call in cell.calls %}
// a, b, y: [count]; b of a function of one argument is a
extern "C" __global__ void apply_{{ name }}(const compute_t* a, const compute_t* b, compute_t* y, int64 count) {
    const int64 at = int64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) y[at] = {{ call }};
}
{% endfor %}
"""


@dataclass(frozen=True)
class Calls:
    """Calls that the kernels' text prints: (name, call) of every function."""

    calls: tuple[tuple[str, str], ...]


def plan_for(profile: GpuProfile, accuracy: FunctionAccuracy) -> KernelPlan:
    """Return a plan in float32 for the GPU with this choice of functions, for the text and the compiler."""
    spec = load_spec({"model": "min_gru", "hidden_size": 512, "precision": "fp32", "functions": accuracy})
    builder = Builder(spec, Target(profile, b"", "device"), Store(cache_folder()))
    plan = builder.solve(builder.key_of("forward", builder.hinted_specialization)).plan()
    return replace(plan, entry="functions", budget=replace(plan.budget, shared_bytes=0))


def text_for(plan: KernelPlan) -> str:
    """Return the CUDA text, with a kernel for every function."""
    calls = tuple((name, call_text(name, ("a[at]", "b[at]"))) for name in ARGUMENT_COUNTS)
    return environment().from_string(TEXT).render(plan=plan, cell=Calls(calls), header=())


def results(cubin: bytes, plan: KernelPlan, name: str, arguments: tuple[Array, ...]) -> Array:
    """Return the results of one function at `arguments`, computed on the GPU."""
    kernel = LoadedKernel(cubin, f"apply_{name}", plan.problem.arch, 0)
    inputs = [memory.inspect(memory.to_device(argument), "sample") for argument in arguments]
    count = len(arguments[0])
    y = memory.new_array(inputs[0], (count,), "float32")
    pointers = [inputs[0].pointer, inputs[-1].pointer, y.pointer]
    kernel.launch(inputs[0], -(-count // THREADS), THREADS, [*pointers, count])
    values: Array = memory.to_host(y.owner)
    return values


def measured(profile: GpuProfile, gpu: str, versions: Mapping[str, str]) -> FunctionRecord:
    """Return the errors of every function in both choices."""
    errors = []
    for accuracy in CHOICES:
        plan = plan_for(profile, accuracy)
        cubin = compile_source(text_for(plan), plan).cubin
        for name in ARGUMENT_COUNTS:
            arguments = samples_of(name)
            errors.append(error_of(name, accuracy, arguments, results(cubin, plan, name, arguments)))
            print(f"{accuracy} {name}: {errors[-1].ulp:.3g} ulp, absolute {errors[-1].absolute:.2e}", flush=True)
    return FunctionRecord(gpu=gpu, versions=dict(versions), sample_count=len(samples_of("exp")[0]), errors=tuple(errors))


def main() -> None:
    live = device.live_device()
    if live is None:
        sys.exit("no GPU was found: the functions of a GPU are measured on one")
    versions = {"minrnn-gen": __version__, "NVRTC": nvrtc_version()}
    record = measured(live.profile, live.name, versions)
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / PUBLISHED_FUNCTIONS
    path.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
