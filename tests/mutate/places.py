"""Mutants of the templates: every synchronization, guard and bound, and how each is weakened."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from minrnn_gen.config.package_files import package_folder

# Microbenchmarks are no kernels, nor is what a C compiler takes for hosts; bounded waits are of debug builds, and their clock
# stands still when emulated.
OUT_OF_SCOPE = ("microbenchmarks/", "ranks/", "cpu/", "export/", "ptx/bounded_wait.cuh.j2")
# Functions whose call is removed, and the kind of mutant that is.
REMOVED = {
    "__syncthreads": "no barrier",
    "__syncwarp": "no barrier",
    "sync_some": "no barrier",
    "sync_warpgroup": "no barrier",
    "cluster_sync": "no barrier",
    "wait_copy_groups": "no wait",
    "mbarrier_wait": "no wait",
    "counter_wait_for": "no wait",
    "all_gather_wait": "no wait",
    "wait_multiplications": "no wait",
    "close_copy_group": "no commit",
    "close_multiplications": "no commit",
    "fence_async_proxy": "no fence",
    "fence_multiplications": "no fence",
    "mbarrier_init": "no init",
    "mbarrier_arrive": "no arrival",
    "mbarrier_arrive_expect_tx": "no expect_tx",
    "announce": "no store",
    "add_release": "no store",
    "store_operand": "no store",
    "store_piece": "no store",
    "publish": "no store",
    "publish_lane": "no store",
    "store_unit": "no store",
    "st_async": "no store",
    "bulk_copy": "no copy",
    "copy_piece": "no copy",
    "copy_piece_where": "no copy",
    "load_units": "no load",
    "load_matrices": "no load",
}
# Relaxed and atomic accesses, and the plain access that takes their place: {0} and {1} are the arguments.
PLAIN = {
    "load_unit": "*({0})",
    "load_units": "({0}[0] = *({1}), {0}[1] = *({1} + 1))",
    "store_unit": "(*({0}) = {1})",
    "load_piece": "*reinterpret_cast<const Piece*>({0})",
    "store_piece": "(*reinterpret_cast<Piece*>({0}) = {1})",
    "add_release": "(++*({0}))",
    "load_acquire": "*({0})",
    "atomicAdd": "((*({0}) += {1}) - {1})",
}
LANES = "ALL_LANES"
OFF_BY_ONE = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
OPENING, CLOSING = "([{", ")]}"
# Masked text: it has no name that is known only when a kernel runs.
HIDDEN, GAP = "\x01", "\x02"


@dataclass(frozen=True)
class Mutant:
    """One change of a template: `text[start:end]` becomes `replacement`, at `column` of the line `line_text`."""

    template: str
    line: int
    column: int
    kind: str
    start: int
    end: int
    was: str
    replacement: str
    line_text: str
    nth: int = 1  # of equal mutants in the same template

    @property
    def name(self) -> str:
        """The name in a report."""
        return f"{self.template}:{self.line}:{self.column} {self.kind}: {self.was} -> {self.replacement or 'nothing'}"

    @property
    def key(self) -> str:
        """The identity of the mutant, wherever the line has moved to."""
        nth = f" | {self.nth}" if self.nth > 1 else ""
        return f"{self.template} | {self.line_text} | {self.column} | {self.kind} | {self.replacement}{nth}"

    @property
    def place(self) -> dict[str, object]:
        """What a result says of the mutant, wherever the line is today."""
        return {
            "key": self.key, "template": self.template, "line": self.line, "column": self.column, "kind": self.kind,
            "was": self.was, "replacement": self.replacement, "text": self.line_text,
        }  # fmt: skip

    def applied_to(self, text: str) -> str:
        """Return the template's text with the change."""
        return text[: self.start] + self.replacement + text[self.end :]


def templates() -> dict[str, str]:
    """Return the text of every template by name."""
    folder = Path(package_folder("templates"))
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*.j2"))}


def mutants_of(name: str, text: str) -> list[Mutant]:
    """Return every mutant of a template, in the order of its text."""
    if name.startswith(OUT_OF_SCOPE):
        return []
    code = _masked(text)
    mutants: dict[tuple[int, int, str], Mutant] = {}

    def add(kind: str, start: int, end: int, replacement: str) -> None:
        line_start = text.rfind("\n", 0, start) + 1
        line_text = text[line_start : text.find("\n", start)]
        indent = len(line_text) - len(line_text.lstrip())
        mutant = Mutant(
            name, text.count("\n", 0, start) + 1, start - line_start - indent + 1, kind, start, end, text[start:end],
            replacement, line_text.strip(),
        )  # fmt: skip
        mutants.setdefault((start, end, replacement), mutant)

    for kind, start, end, replacement in (*_calls(code), *_conditions(code)):
        add(kind, start, end, replacement)
    copies = Counter[str]()
    numbered = []
    for mutant in sorted(mutants.values(), key=lambda mutant: (mutant.start, mutant.end)):
        copies[mutant.key] += 1
        numbered.append(replace(mutant, nth=copies[mutant.key]))
    return numbered


def _masked(text: str) -> str:
    """Return the text at its length, without what is not emulated: comments, strings, Jinja, assembly, constants."""
    code = text

    def hide(pattern: str, by: str) -> None:
        nonlocal code
        code = re.sub(pattern, lambda match: re.sub(r"[^\n]", by, match[0]), code, flags=re.S | re.M)

    hide(r"\{\{.*?\}\}", HIDDEN)
    hide(r"\{%.*?%\}|\{#.*?#\}", GAP)
    hide(r"//[^\n]*", " ")
    hide(r'"[^"\n]*"', HIDDEN)
    hide(r"#ifdef __CUDACC__.*?(?:#else|#endif)", " ")
    hide(r"^ *(?:#|static_assert|constexpr|template|typedef)[^\n]*", " ")
    hide(r"^[^\n]*(?:minrnn_host::|check_timeout)[^\n]*", " ")
    for choice in re.finditer(r"if constexpr \(", code):
        end = _closed(code, choice.end() - 1) + 1
        code = code[: choice.start()] + " " * (end - choice.start()) + code[end:]
    return code


def _calls(code: str) -> Iterator[tuple[str, int, int, str]]:
    names = "|".join(REMOVED)
    for call in re.finditer(rf"(?<![\w:.])({names})(<[^;()]*>)?\(", code):
        end = _closed(code, call.end() - 1) + 1
        if not re.match(r"\s*;", code[end:]) or re.search(r"\bvoid\s+$", code[: call.start()]):
            continue
        yield REMOVED[call[1]], call.start(), end, "(void)0"
        if call[1] in ("wait_copy_groups", "wait_multiplications"):
            yield "weaker wait", call.end() - 2, call.end() - 2, " + 1"
        if call[1] == "mbarrier_arrive_expect_tx":
            yield "weaker expect_tx", end - 1, end - 1, " - 4"
    for call in re.finditer(rf"(?<![\w:.])({'|'.join(PLAIN)})\(", code):
        inside, last = call.end(), _closed(code, call.end() - 1)
        if re.match(r"\s*\{", code[last + 1 :]):
            continue  # where it is defined
        ends = [at for at in range(inside, last + 1) if at == last or _is_comma_of(code, inside, at)]
        arguments = [code[start:end].strip() for start, end in pairwise([inside, *ends])]
        yield "plain access", call.start(), last + 1, PLAIN[call[1]].format(*(argument.lstrip(", ") for argument in arguments))
    for mask in re.finditer(rf"\b{LANES}(?=,)", code):
        yield "fewer lanes", mask.start(), mask.end(), f"{LANES} >> 1"


def _conditions(code: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield every condition replaced by true, and every bound moved by one."""
    loops = [(match.end() - 1, _closed(code, match.end() - 1)) for match in re.finditer(r"\bfor \(", code)]
    whiles = [(match.end() - 1, _closed(code, match.end() - 1)) for match in re.finditer(r"\bwhile \(", code)]
    places: set[tuple[int, int]] = set()
    for match in re.finditer(r"\bif \(|\bwhile \(", code):
        places.add(_atom(code, match.end()))
    for match in re.finditer(r" (?:&&|\|\|) ", code):
        places |= {_atom(code, match.start()), _atom(code, match.end())}
    for match in re.finditer(r" \? ", code):
        places.add(_atom(code, match.start()))
    for match in re.finditer(r" (<|<=|>|>=|==|!=) ", code):
        start, end = _atom(code, match.start())
        places.add((start, end))
        header = next((loop for loop in loops if loop[0] < start < loop[1]), None)
        if match[1] in OFF_BY_ONE and (header is None or _is_known_late(code, header)) and _runs(code[start:end]):
            yield "off by one", match.start() + 1, match.end() - 1, OFF_BY_ONE[match[1]]
    for start, end in sorted(places):
        condition = code[start:end]
        # A group of conditions, or a declaration in a condition, is not mutated as a whole.
        if not _runs(condition) or condition.startswith("const ") or re.match(r"\(.* (?:&&|\|\|) .*\)$", condition, re.S):
            continue
        if any(first < start < last for first, last in loops):
            continue
        waits = any(first < start < last for first, last in whiles)
        yield ("no wait", start, end, "false") if waits else ("always", start, end, "true")


def _is_known_late(code: str, header: tuple[int, int]) -> bool:
    """Whether where a loop begins or ends is known only when the kernel runs."""
    begin, condition = code[header[0] : header[1]].split(";")[:2]
    operator = re.search(r" (?:<|<=|>|>=) ", condition)
    return _runs(begin.partition("=")[2]) or bool(operator and _runs(condition[operator.end() :]))


def _runs(code: str) -> bool:
    """Whether code has a name that is not a constant's."""
    return any(
        re.search("[a-z]", name) for name in re.findall(r"[A-Za-z_]\w*", code) if name not in ("int", "sizeof", "storage_t")
    )


def _closed(code: str, at: int) -> int:
    depth = 0
    for place in range(at, len(code)):
        depth += (code[place] in OPENING) - (code[place] in CLOSING)
        if not depth:
            return place
    raise ValueError(code[at : at + 40])


def _is_comma_of(code: str, start: int, at: int) -> bool:
    """Whether there is a comma between the arguments that begin at `start`."""
    before = code[start:at]
    return code[at] == "," and sum(map(before.count, OPENING)) == sum(map(before.count, CLOSING))


def _ends_atom(code: str, at: int) -> bool:
    if code[at] in ",;?" + GAP or code[at : at + 3] in ("&& ", "|| "):
        return True
    if code[at] == ":":
        return ":" not in (code[at - 1], code[at + 1])
    return code[at] == "=" and code[at + 1].isspace() and code[at - 1] not in "=<>!"


def _atom(code: str, at: int) -> tuple[int, int]:
    """Return where the condition that `at` is in begins and ends."""
    depth, start = 0, at
    while start and (depth or not (code[start - 1] in OPENING or _ends_atom(code, start - 1))):
        depth += (code[start - 1] in CLOSING) - (code[start - 1] in OPENING)
        start -= 1
        if not depth and re.search(r"\breturn $", code[max(0, start - 7) : start]):
            break
        # Behind an operator of two characters, its second one is met first.
        if not depth and code[start - 2 : start] in ("&&", "||"):
            break
    depth, end = 0, at
    while end < len(code) and (depth or not (code[end] in CLOSING or _ends_atom(code, end))):
        depth += (code[end] in OPENING) - (code[end] in CLOSING)
        end += 1
    while code[start : start + 1].isspace():
        start += 1
    while code[end - 1].isspace():
        end -= 1
    return start, end
