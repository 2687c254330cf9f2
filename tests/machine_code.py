"""Machine code of many kernels, compared before and after a change: the proof that a change of words is one.

`PYTHONPATH=tests python tests/machine_code.py record FILE` writes digests of the machine code of every golden plan on every
GPU profile, and of a small kernel of every family, strategy and scope; `compare FILE`, after the change, compiles the same
candidates and lists the kernels that differ. `--renamed OLD=NEW` names a variable of plans that the change renamed, and
`--only PATTERN` keeps the kernels whose family or name has the pattern, while a change is being written.
A kernel whose text is the same but for comments and whitespace has the same machine code, and is not compiled. `--texts`
records texts alone, in a tenth of the time and without NVRTC: enough where a change moves text between templates.
`compare FILE --restamp gpu_profiles/tuned/*.jsonl` then makes results that were tuned on the recorded templates count for the
new ones, where no kernel of their kind differs. `python -m mutate.moved` does the same for the results of mutants.
Needs no GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import struct
import sys
from collections.abc import Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "plan"))

from golden_plans import CASES
from support.norm_cells import OF_ROUNDS
from support.small_problems import FAMILIES, STEPS, most_wanted, solution_wanted

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.nvrtc import compile_source
from minrnn_gen.build.store import Store, cache_folder, templates_digest
from minrnn_gen.build.target import Target
from minrnn_gen.call.interface import RUNS_REVERSED
from minrnn_gen.codegen.render import render
from minrnn_gen.config.gpu_profile import load_profile, profile_bytes, profile_names
from minrnn_gen.config.spec import load_spec
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.raw_scan.filter_kernels import filter_spec
from minrnn_gen.raw_scan.filter_results import FILTER_PASSES
from minrnn_gen.raw_scan.kernels import RawSpec

# Sections of a cubin that decide what a kernel does: instructions, launch attributes with the offsets of parameters, constants.
SECTIONS = (".text.", ".nv.info.", ".nv.constant", ".nv.shared")
SPEC_KEYS = {"model", "precision", "layout", "hidden_size", "heads", "fp32_product"}
NO_BITS = 8  # SHT_NOBITS of the ELF format: a section without contents
# Passes of kernels around those of a cell, each by a spec that has it.
GRU = {"model": "gru", "hidden_size": 64, "precision": "bf16"}
OTHERS: tuple[tuple[str, dict[str, Any], tuple[KernelPass, ...]], ...] = (
    ("around a pool", GRU, ("slots", "drafts", "dropout")),
    ("operands of rounds", GRU | {"model": "gru_reset_before"}, ("arguments",)),
    ("operands of rounds with means", GRU | {"model": OF_ROUNDS}, ("arguments",)),
    *((f"order {order}", filter_spec("fp32", order).model_dump(), FILTER_PASSES) for order in (1, 2, 4)),
)
# The first words of families that serve dense cells, whose results are compared with each other.
DENSE = ("persistent", "large", "stepwise", "normed", "decode", "backward")


@dataclass(frozen=True)
class Case:
    """A kernel to compile: one candidate of one pass of a spec on a GPU."""

    name: str
    spec: Mapping[str, Any]
    gpu: str
    kernel_pass: KernelPass
    specialization: Specialization
    family: str
    variables: Mapping[str, int]


def cases() -> Iterator[Case]:
    """Yield the first candidate of every golden plan on every profile, then the wanted ones of the small problems."""
    for gpu in profile_names():
        for golden in CASES:
            spec = {name: value for name, value in golden.items() if name in SPEC_KEYS}
            kernel_pass, alignment = golden.get("kernel_pass", "forward"), golden.get("alignment_bytes")
            builder = _builder(spec, gpu)
            specialization = Specialization(alignment) if alignment else builder.hinted_specialization
            solution = builder.solve(builder.key_of(kernel_pass, specialization))
            name = f"golden {'-'.join(map(str, golden.values()))} on {gpu}"
            yield Case(name, spec, gpu, kernel_pass, specialization, solution.family.name, solution.candidates[0])
    yield from small_cases()
    yield from other_cases()


def small_cases(kinds: Container[str] = ()) -> Iterator[Case]:
    """Yield the wanted candidates of the small problems, where `kinds` are named of these alone."""
    small = [
        (f"{family} {name}", spec, wanted, passes)
        for family, problems in FAMILIES.items()
        for name, spec, wanted, _, passes in problems
    ]
    small += [(name, spec, wanted, ("step",)) for name, spec, wanted in STEPS]
    for name, given, wanted, passes in small:
        if kinds and name not in kinds:
            continue
        gpu, spec = (
            given.get("gpu", "h200"),
            {"precision": "fp32"} | {key: value for key, value in given.items() if key != "gpu"},
        )
        builder = _builder(spec, gpu)
        plain = replace(builder.hinted_specialization, reverse=RUNS_REVERSED[builder.spec.direction][0])
        for kernel_pass in passes:
            for label, specialization in _specializations(kernel_pass, plain, wanted, builder.spec.input_size or 0):
                solution = solution_wanted(builder.solutions(builder.key_of(kernel_pass, specialization)), wanted)
                variables = solution.candidates[most_wanted(solution, wanted)]
                yield Case(
                    f"{name} {kernel_pass} {label}", spec, gpu, kernel_pass, specialization, solution.family.name, variables
                )


def other_cases() -> Iterator[Case]:
    """Yield the first candidates of kernels around those of a cell, and of filters."""
    for name, spec, passes in OTHERS:
        builder = _builder(spec, "h200")
        for kernel_pass in passes:
            for pool in ("arithmetic", "storage") if kernel_pass in ("slots", "drafts") else ("none",):
                specialization = replace(builder.hinted_specialization, pool=pool)
                solution = builder.solve(builder.key_of(kernel_pass, specialization))
                yield Case(
                    f"{name} {kernel_pass} {pool}", spec, "h200", kernel_pass, specialization, solution.family.name,
                    solution.candidates[0],
                )  # fmt: skip


def text_of(case: Case) -> tuple[str, KernelPlan] | None:
    """Return the text of a case, its entry called `kernel`, since ptxas orders by names; None where it is no candidate."""
    builder = _builder(case.spec, case.gpu)
    for solution in builder.solutions(builder.key_of(case.kernel_pass, case.specialization)):
        if solution.family.name == case.family and dict(case.variables) in map(dict, solution.candidates):
            plan = solution.plan([dict(candidate) for candidate in solution.candidates].index(dict(case.variables)))
            text = render(plan, builder.lowered_for(case.kernel_pass), ())
            return re.sub(rf"\b{plan.symbol}", "kernel", text), plan
    return None


def digests(cubin: bytes) -> list[list[Any]]:
    """Return (kind, bytes, digest) of the sections of a cubin that decide what its kernels do."""
    found = []
    for name, data in _sections(cubin):
        kind = next((kind for kind in SECTIONS if name.startswith(kind)), None)
        if kind:
            found.append([kind, len(data), hashlib.sha256(data).hexdigest()[:16]])
    return sorted(found)


def _builder(spec: Mapping[str, Any], gpu: str) -> Builder:
    is_raw = str(spec.get("precision")).startswith("complex") or "training" in spec  # which filter_spec gives in full
    loaded = RawSpec.model_validate(spec) if is_raw else load_spec(dict(spec))
    return Builder(loaded, Target(load_profile(gpu), profile_bytes(gpu), "spec"), Store(cache_folder()))


def _specializations(
    kernel_pass: KernelPass, plain: Specialization, wanted: Mapping[str, int], input_size: int
) -> Iterator[tuple[str, Specialization]]:
    yield "plain", plain
    if kernel_pass == "step":
        yield "pool", replace(plain, pool="arithmetic")
        return
    if kernel_pass == "forward" and "channel_warpgroups" in wanted:
        yield "projected", replace(plain, input_size=input_size)
    states_out = "none" if kernel_pass == "backward" else "arithmetic"
    yield "resets", replace(plain, resets=True, reverse=not plain.reverse, states_out=states_out)
    if kernel_pass == "forward":
        yield "storage", replace(plain, states_out="storage")


def _sections(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the contents of each section of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    heads = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + index * size) for index in range(count)]
    strings = cubin[heads[names][4] : heads[names][4] + heads[names][5]]
    for name, kind, _, _, offset, length, *_ in heads:
        contents = str(length).encode() if kind == NO_BITS else cubin[offset : offset + length]
        yield strings[name : strings.index(b"\0", name)].decode(), contents


def digest_of(text: str) -> str:
    """Return a digest of a kernel's text without comments and whitespace."""
    return hashlib.sha256(" ".join(re.sub("//[^\n]*", "", text).split()).encode()).hexdigest()[:16]


def _recorded(case: Case, texts_alone: bool) -> dict[str, Any]:
    rendered = text_of(case)
    assert rendered, case
    code = None if texts_alone else digests(compile_source(*rendered).cubin)
    return {"case": _plain(case), "text": digest_of(rendered[0]), "code": code}


def _is_equal(row: Mapping[str, Any], renamed: Mapping[str, str]) -> bool:
    rendered = text_of(_read(row["case"], renamed))
    if rendered is None:
        return False
    return digest_of(rendered[0]) == row["text"] or (
        row["code"] is not None and digests(compile_source(*rendered).cubin) == row["code"]
    )


def _plain(case: Case) -> dict[str, Any]:
    plain = {"specialization": asdict(case.specialization), "variables": dict(case.variables), "spec": dict(case.spec)}
    return vars(case) | plain


def _read(data: dict[str, Any], renamed: Mapping[str, str]) -> Case:
    variables = {renamed.get(name, name): value for name, value in data["variables"].items()}
    return Case(**data | {"variables": variables, "specialization": Specialization(**data["specialization"])})


def main() -> int:
    """Record or compare; 1 where kernels differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--renamed", action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("--only", default="", metavar="PATTERN")
    parser.add_argument("--texts", action="store_true")
    parser.add_argument("--restamp", nargs="+", default=[], type=Path, metavar="TUNED")
    asked = parser.parse_args()
    with ThreadPoolExecutor() as pool:  # NVRTC releases the interpreter's lock
        if asked.action == "record":
            kernels = [case for case in cases() if re.search(asked.only, f"{case.family} {case.name}")]
            rows = list(pool.map(lambda case: _recorded(case, asked.texts), kernels))
            asked.file.write_text(json.dumps({"templates": templates_digest(), "kernels": rows}), encoding="utf-8")
            print(f"{len(rows)} kernels recorded")
            return 0
        recorded = json.loads(asked.file.read_text(encoding="utf-8"))
        rows = [row for row in recorded["kernels"] if re.search(asked.only, f"{row['case']['family']} {row['case']['name']}")]
        renamed = dict(pair.split("=", 1) for pair in asked.renamed)
        equal = pool.map(lambda row: _is_equal(row, renamed), rows)
        different = [row["case"] for row, is_equal in zip(rows, equal, strict=True) if not is_equal]
    print(
        *(f"different: {case['name']}" for case in different),
        f"{len(rows) - len(different)} of {len(rows)} kernels are equal",
        sep="\n",
    )
    for path in asked.restamp:
        text = path.read_text(encoding="utf-8")
        path.write_text(
            restamped(text, recorded["templates"], {kind_of(case["family"]) for case in different}), encoding="utf-8"
        )
    return bool(different)


def kind_of(family: str) -> str:
    """Return the kind of cells that a family serves: a result says which family is the fastest of its kind."""
    first = family.partition("_")[0]
    return "dense" if first in DENSE else first


def restamped(tuned: str, recorded: str, different: Container[str]) -> str:
    """Return tuned results with the new digest of the templates, where they have the recorded one and no kernel differs."""
    lines = []
    for line in tuned.splitlines():
        result = json.loads(line)
        is_valid = result["setting"]["sources"] == recorded and kind_of(result["family"]) not in different
        lines.append(line.replace(recorded, templates_digest()) if is_valid else line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
