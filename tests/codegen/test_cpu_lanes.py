"""Native code stays vectors, whatever a compiler is tuned to: its assembly has no scalar lanes."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.patience import within

import minrnn_gen
from minrnn_gen.build.c_compiler import OPTIONS
from minrnn_gen.cell.files import find_cell
from minrnn_gen.cell.language import parse_cell
from minrnn_gen.cell.lowering_steps import lower_steps, lower_steps_backward
from minrnn_gen.codegen.cpu_source import CpuPass, CpuPlan, cpu_source
from minrnn_gen.precision import PRECISION_NAMES, precision_of

X86 = (
    "haswell", "skylake-avx512", "cascadelake", "icelake-server", "sapphirerapids", "znver2", "znver4",
    "x86-64-v3", "x86-64-v4",
)  # fmt: skip
ARM = ("armv8-a", "armv8.2-a+sve")
# Every function of the language, and a product.
CELL = {
    "name": "every",
    "states": ["h", "c"],
    "equations": """
        a = exp(W.x) + expm1(W.x) + tanh(W.x) + sqrt(abs(W.x)) + log(abs(W.x) + 1) + log1p(abs(W.x))
        b = sigmoid(W.y + R.y) + silu(W.y) + logsigmoid(W.y) + softplus(W.y) + relu(W.y)
        c[t] = a * c[t-1] + where(W.x > 0.5, min(a, b), max(a, b))
        h[t] = b * tanh(c[t])
    """,
}
SCALAR_FMA = re.compile(
    r"\bv?fn?m(?:add|sub)(?:132|213|231)?s[sd]\b|\bfn?m(?:add|sub)\s+[hsd]\d|\b(?:callq?|bl|b|jmp)\s+fmaf?\b"
)
SCALAR = re.compile(
    r"\bv?(?:fn?m(?:add|sub)\d*|add|sub|mul|div|min|max|sqrt|cvt\w*|u?comi|cmp\w*)s[sd]\b|\bv?(?:pextr|pinsr)[bwdq]\b"
    r"|\bv?(?:extract|insert)ps\b"
    r"|\bf(?:n?m(?:add|sub|ul)|add|sub|div|sqrt|min\w*|max\w*|cmp\w*|csel|cvt\w*)\s+[hsdwx]\d|\b[su]cvtf\s+[hsd]\d|\b[us]mov\s"
    r"|\bmov\s+v\d+\.[bhsd]\[|\bmov\s+[hsdwx]\d+, v\d+\.[bhsd]\["
)
CALLED = re.compile(r"\t(?:callq?|bl|b|jmp)\s+([a-z_]\w*)")
PACKED_FMA = re.compile(r"\bvfn?m(?:add|sub)\d+p[sd]\b|\bfml[as]\s+v")
INLINE = re.compile(r"^INLINE (\w+) (\w+)\(([^)]*)\)", re.MULTILINE)
BY_LANE = re.compile(r"^BY_LANE\((\w+),", re.MULTILINE)


@dataclass(frozen=True)
class Target:
    """A compiler, and the instructions that it compiles for."""

    compiler: str
    march: str
    triple: str = ""

    @functools.cache  # noqa: B019
    def why_not(self) -> str:
        """Return why it compiles nothing here; nothing where it does."""
        if shutil.which(self.compiler) is None:
            return f"no {self.compiler}"
        refused = self.run("#include <math.h>\n#include <pthread.h>\n")
        return f"{self.compiler} does not compile for {self.march} here" if isinstance(refused, int) else ""

    def run(self, text: str) -> str | int:
        """Return the assembly of a text, or the exit status where it is refused."""
        target = (f"--target={self.triple}",) if self.triple else ()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "kernel.c").write_text(text, encoding="utf-8")
            command = [self.compiler, *target, *OPTIONS, f"-march={self.march}", "-fPIC", "-S", "-o", "kernel.s", "kernel.c"]
            finished = subprocess.run(command, cwd=folder, capture_output=True, timeout=within(300), check=False)
            return finished.returncode or (folder / "kernel.s").read_text(encoding="utf-8")

    def assembly(self, text: str) -> str:
        """Return the assembly of a text; skips where there is none of its kind here."""
        if reason := self.why_not():
            pytest.skip(reason)
        found = self.run(text)
        assert isinstance(found, str)
        return found


TARGETS = [
    *(Target(compiler, march) for compiler in ("gcc", "clang") for march in X86),
    *(Target("aarch64-linux-gnu-gcc", march) for march in ARM),
    *(Target("clang", march, "aarch64-linux-gnu") for march in ARM),
]
EVERY_DAY = {
    (Target("gcc", "haswell"), "bf16"),
    (Target("clang", "cascadelake"), "fp16"),
}


def plan_of(kernel_pass: CpuPass, precision: str) -> CpuPlan:
    cell, named = parse_cell(find_cell(CELL, Path("."), "<test>")), precision_of(precision)
    lowered = lower_steps(cell) if kernel_pass == "forward" else lower_steps_backward(cell)
    return CpuPlan(kernel_pass, lowered, precision, named.arithmetic_dtype, named.storage_dtype, named.storage_dtype)


def probes_of(text: str) -> str:
    """Return a function `probe_...` around each operation on whole vectors that a text defines."""
    probes = []
    functions = {name: (result, parameters) for result, name, parameters in INLINE.findall(text)}
    functions |= dict.fromkeys(BY_LANE.findall(text), ("vr", "vr x"))
    for name, (result, parameters) in functions.items():
        words = [parameter.rpartition(" ")[2].lstrip("*") for parameter in parameters.split(", ")]
        if re.search(r"\bv[rmhui]\b", f"{result} {parameters}") and not re.search(r"struct|\bsums\b", parameters):
            given = ", ".join({"stride": "1", "width": "LANES"}.get(word, word) for word in words)
            probes.append(
                f"{result} probe_{name}({parameters})\n{{\n    {'' if result == 'void' else 'return '}{name}({given});\n}}\n"
            )
    return "".join(probes)


PRODUCT = """
void probe_product(long depth, const real *operand, long row, const real *panel, long line, vr *sums)
{
    multiply_rows(ROWS, depth, operand, row, panel, line, sums);
}
"""


def functions_of(assembly: str) -> dict[str, str]:
    """Return the probes of an assembly by name."""
    return dict(re.findall(r"^probe_(\w+):[^\n]*\n(.*?)^\t\.size\tprobe_", assembly, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize(
    ("target", "precision"),
    [
        pytest.param(
            target,
            precision,
            marks=() if (target, precision) in EVERY_DAY else pytest.mark.matrix_full,
            id=f"{target.compiler}-{target.march}-{precision}",
        )
        for target in TARGETS
        for precision in PRECISION_NAMES
        if not precision.startswith("complex")
    ],
)
def test_operations_on_vectors_have_no_scalar_lanes(target: Target, precision: str) -> None:
    """Functions, conversions, choices, loads, stores and a product; but for what the C library computes, number by number."""
    text = cpu_source(plan_of("forward", precision))
    library = {called for name, called in re.findall(r"^BY_LANE\((\w+), (\w+)\)", text, re.MULTILINE)}
    assembly = target.assembly(text + probes_of(text) + PRODUCT)
    assert not SCALAR_FMA.findall(assembly)
    probes = functions_of(assembly)
    assert {"fused", "choose", "fn_exp", "fn_max", "load_storage", "store_storage", "product"} <= probes.keys()
    for name, body in probes.items():
        called = {call.partition("@")[0] for call in CALLED.findall(body)}
        if not called & library:
            assert not SCALAR.findall(body), (name, SCALAR.findall(body), body)
    # Loops over rows and vectors are unrolled: sums stay in registers.
    assert len(PACKED_FMA.findall(probes["product"])) >= 12


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(
            target,
            marks=() if target.march == "cascadelake" else pytest.mark.matrix_full,
            id=f"{target.compiler}-{target.march}",
        )
        for target in TARGETS
    ],
)
def test_exported_code_has_no_scalar_products(target: Target, tmp_path: Path) -> None:
    """Both passes and the products outside the recurrence, of exported code."""
    kernel = minrnn_gen.compile({"model": "lstm", "hidden_size": 40, "input_size": 24, "gpu": "h200"})
    kernel.export(tmp_path, target="cpu")
    (header,) = tmp_path.glob("*.h")
    text = header.with_suffix(".c").read_text(encoding="utf-8")
    text = text.replace(f'#include "{header.name}"', header.read_text(encoding="utf-8"))
    assembly = target.assembly(text)
    assert not SCALAR_FMA.findall(assembly) and len(PACKED_FMA.findall(assembly)) >= 100
