"""Runner of mutants: a mutant runs on one problem after the other, each in its own process, until one kills it."""

from __future__ import annotations

import json
import os
import re
import resource
import select
import shutil
import signal
import struct
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import jinja2
from mutate.places import Mutant, mutants_of, templates
from support.small_problems import Prepared

from minrnn_gen.build.store import Store
from minrnn_gen.codegen import render
from minrnn_gen.codegen.signature import suffixes_of
from minrnn_gen.errors import CompileFailed
from minrnn_gen.interpret import library
from minrnn_gen.plan.kernel_plan import KernelPlan

SEEDS = tuple(range(3, 11))
# For all seeds of a problem, but two at least.
SEEDS_SECONDS = 1.0
# The limit for a mutant on one problem; the slowest original takes a tenth.
SECONDS_MOST = 30
# Beyond the memory at its begin: a mutant that copies without end stops before the machine is full.
MEMORY_BYTES_MOST = 4 << 30
# How a mutant may end a process; any other end is a fault of this test.
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
MARKER = "/*mutant {}*/"

Outcome = dict[str, Any]


class Templates:
    """The texts of all templates, as the renderer sees them."""

    def __init__(self) -> None:
        self.texts = templates()
        environment = render.environment()
        environment.loader = jinja2.FunctionLoader(self._load)
        assert environment.cache is not None
        environment.cache.clear()

    def _load(self, name: str) -> tuple[str, None, Callable[[], bool]]:
        text = self.texts[name]
        return text, None, lambda: self.texts[name] is text

    def with_markers(self, mutants: Sequence[Mutant]) -> dict[str, str]:
        """Return all texts with a comment at the place of each mutant."""
        marked = dict(self.texts)
        for number, mutant in sorted(enumerate(mutants), key=lambda numbered: -numbered[1].start):
            text = marked[mutant.template]
            marked[mutant.template] = text[: mutant.start] + MARKER.format(number) + text[mutant.start :]
        return marked


@dataclass
class Bench:
    """All mutants, the problems that render each, and the problems that killed the last mutants of a template."""

    prepared: list[Prepared]
    templates: Templates = field(default_factory=Templates)
    mutants: list[Mutant] = field(init=False)
    of_mutant: list[list[int]] = field(init=False)
    killers: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mutants = [mutant for name, text in self.templates.texts.items() for mutant in mutants_of(name, text)]
        self.of_mutant = [[] for _ in self.mutants]
        before = dict(self.templates.texts)
        self.templates.texts.update(self.templates.with_markers(self.mutants))
        for number, prepared in enumerate(self.prepared):
            texts = map(prepared.render, prepared.plans)
            for mutant in {int(marker) for text in texts for marker in re.findall(r"/\*mutant (\d+)\*/", text)}:
                self.of_mutant[mutant].append(number)
        self.templates.texts.update(before)

    def control(self, problem: int) -> bool:
        """Return True; raise where a problem kills a mutant without a change."""
        nothing = Mutant("parts/types.cuh.j2", 1, 1, "nothing", 0, 0, "", "", "")
        outcome = self._outcome_of(nothing, [problem])
        assert outcome == {"outcome": "survived", "problems": 1, "same_code": 1}, outcome
        return True

    def run(self, number: int) -> Outcome:
        """Run one mutant; return its outcome as plain data."""
        mutant, started = self.mutants[number], time.perf_counter()
        recent = self.killers.setdefault(mutant.template, [])
        order = sorted(
            self.of_mutant[number],
            key=lambda problem: (recent.index(problem) if problem in recent[:3] else 3, self.prepared[problem].seconds),
        )
        outcome = self._outcome_of(mutant, order) if order else {"outcome": "not rendered"}
        if "problem" in outcome:
            killer = outcome["problem"]
            recent[:] = [killer, *(problem for problem in recent if problem != killer)]
            outcome["problem"] = str(self.prepared[killer].problem)
        return {**mutant.place, **outcome, "seconds": round(time.perf_counter() - started, 2)}

    def _outcome_of(self, mutant: Mutant, order: Sequence[int]) -> Outcome:
        same = 0
        with tempfile.TemporaryDirectory(prefix="minrnn-mutant-") as folder:
            for tried, number in enumerate(order, 1):
                # In its own process: a process keeps the machine of every kernel that it loaded, and all its stacks.
                result = in_a_process(partial(self._tried, mutant, number, Path(folder)))
                if result["outcome"] == "killed":
                    return {"outcome": "killed", "problem": number, "by": result["by"], "problems": tried}
                same += result["same_code"]
        return {"outcome": "survived", "problems": len(order), "same_code": same}

    def _tried(self, mutant: Mutant, number: int, folder: Path) -> Outcome:
        self.templates.texts[mutant.template] = mutant.applied_to(self.templates.texts[mutant.template])
        libraries, prepared = _Libraries(folder), self.prepared[number]
        others = {text: prepared.render(plan) for text, plan in prepared.texts.items() if plan in prepared.plans}
        first, *seeds = SEEDS[: max(2, int(SEEDS_SECONDS / prepared.seconds))]
        is_original, is_same = all(text == other for text, other in others.items()), False
        try:
            if not (error := prepared.run(first, others)):
                is_same = all(libraries.are_same(*both, prepared) for both in others.items())
                # The same code does under other seeds what the original does, which runs under all of them.
                left = seeds if is_original or not is_same else ()
                error = next(filter(None, (prepared.run(seed, others) for seed in left)), "")
        except CompileFailed as refused:
            error = f"refused: {refused}"
        return {"outcome": "killed", "by": error[:300]} if error else {"outcome": "survived", "same_code": is_same}


class _Libraries:
    """The libraries that kernels are compiled to, in a folder for the problems of one mutant; none is kept for others."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._compiled, self._compiled_to = folder, library.compiled, dict[str, bytes]()
        library.compiled = self._keeping
        Store.put = lambda *_: None  # type: ignore[method-assign,assign,return-value]

    def _keeping(self, text: str, entries: Sequence[str], is_bfloat16: bool, store: Store) -> bytes:
        kept = self._folder / sha256(repr((text, entries, is_bfloat16)).encode()).hexdigest()
        if not kept.exists():
            kept.write_bytes(self._compiled(text, entries, is_bfloat16, store))
        self._compiled_to[text] = content = kept.read_bytes()
        return content

    def are_same(self, text: str, other: str, prepared: Prepared) -> bool:
        """Say whether the compiler makes the same code of both."""
        if text == other:
            return True
        plan: KernelPlan = prepared.texts[text]
        entries = [f"{plan.symbol}{part}" for part in suffixes_of(plan.entry)]
        original = self._compiled(text, entries, plan.problem.storage_dtype == "bfloat16", prepared.kernel.builder.store)
        return other in self._compiled_to and code_of(original) == code_of(self._compiled_to[other])


def code_of(library: bytes) -> bytes:
    """Return the section .text of an ELF file of 64 bits."""
    (table,) = struct.unpack_from("<Q", library, 40)
    size, count, names = struct.unpack_from("<HHH", library, 58)
    headers = [struct.unpack_from("<IIQQQQ", library, table + size * index) for index in range(count)]
    for name, *_, start, length in headers:
        at = headers[names][4] + name
        if library[at : library.index(b"\0", at)] == b".text":
            return library[start : start + length]
    raise ValueError("a library without code")


def in_a_process(work: Callable[[], Outcome]) -> Outcome:
    """Return what `work` does in a process of its own, which may crash or never end."""
    folder = tempfile.mkdtemp(prefix="minrnn-mutant-")
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.setsid()
        tempfile.tempdir = folder
        there = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (there + MEMORY_BYTES_MOST, there + MEMORY_BYTES_MOST))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        try:
            os.write(writing, json.dumps(work()).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    answer, ends = b"", False
    while select.select([reading], [], [], SECONDS_MOST)[0]:
        piece = os.read(reading, 1 << 16)
        if not piece:
            ends = True
            break
        answer += piece
    if not ends:
        os.killpg(process, signal.SIGKILL)
    os.close(reading)
    _, status = os.waitpid(process, 0)
    shutil.rmtree(folder, ignore_errors=True)
    if not ends:
        return {"outcome": "killed", "by": f"does not end within {SECONDS_MOST} s"}
    if os.WTERMSIG(status) in CRASHES:
        return {"outcome": "killed", "by": f"crashes by {signal.Signals(os.WTERMSIG(status)).name}"}
    if not answer:
        raise RuntimeError(f"a mutant's process ended with status {status}")
    outcome: Outcome = json.loads(answer)
    return outcome
