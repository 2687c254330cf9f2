"""The generated text: every cell, precision, layout and alignment; what its header promises; and no way out of a comment."""

from __future__ import annotations

import datetime
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.kernel_inputs import LAYOUTS
from support.rendered_kernels import MODELS, Rendered, builder_of, rendered_case

from minrnn_gen.build import builder as build
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store
from minrnn_gen.cell.cuda_names import PREFIX
from minrnn_gen.codegen.header import comment, folded
from minrnn_gen.config.gpu_profile import profile_bytes
from minrnn_gen.config.package_files import package_folder
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import BadInput, ToolchainMissing
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES
from minrnn_gen.precision import PRECISION_NAMES, precision_of
from minrnn_gen.run.target import target_of


def code_of(source: str) -> list[str]:
    """Return the lines that are more than a comment, with the comments at their ends."""
    return [line for line in source.splitlines() if not line.lstrip().startswith("//")]


# Every day each cell in each precision and in each layout, with one alignment, in turn, and the step in one layout.
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.matrix_full)])
@pytest.mark.parametrize(
    ("model", "precision", "layout"),
    [
        pytest.param(model, precision, layout, marks=pytest.mark.matrix_full if (m + p + n) % 2 else ())
        for (m, model), (p, precision), (n, layout) in itertools.product(*map(enumerate, (MODELS, PRECISION_NAMES, LAYOUTS)))
    ],
)
def test_everything_renders(model: str, precision: str, layout: str, whole: bool) -> None:
    alignments = [width for width in (2, 4, 8, WIDEST_COPY_BYTES) if width >= precision_of(precision).storage_bytes]
    cases = list(zip(alignments, ("t4", "h200") * 2, strict=False))
    turn = list(MODELS).index(model) + LAYOUTS.index(layout)
    for alignment, gpu in cases if whole else cases[turn % len(cases) :][:1]:
        check_text(rendered_case(model, gpu, "forward", alignment, precision=precision, layout=layout))
    if whole or turn % len(LAYOUTS) == 0:
        check_text(rendered_case(model, kernel_pass="step", precision=precision, layout=layout))


def check_text(rendered: Rendered) -> None:
    source, plan = rendered.source, rendered.plan
    assert source.isascii() and "\\" not in source
    assert not re.search(r"\{%|\{#|#\}|%\}", "\n".join(code_of(source)))
    assert source.count('extern "C" __global__') == 1 and f" {plan.symbol}(" in source
    assert source.startswith("// ")
    for name, value in {"HIDDEN_SIZE": plan.problem.hidden_size, "BLOCKS_PER_SM": plan.budget.blocks_per_sm}.items():
        assert f"constexpr int {name} = {value};" in source
    if plan.budget.shared_bytes:
        assert f"constexpr int SHARED_BYTES = {plan.budget.shared_bytes};" in source


def test_the_header_promises_what_the_plan_does() -> None:
    rendered = rendered_case("qrnn", "a100", precision="bf16", layout="TBD")
    plan, header = rendered.plan, "\n".join(rendered.header)
    for part in (
        plan.template,
        "qrnn",
        '"hidden_size":384',
        "spec digest " + "0" * 64,
        "gpu a100 (sm_80)",
        "layout TBD",
        "bf16",
        f"at most {plan.budget.registers_per_thread} registers per thread (about {plan.budget.registers_estimated})",
        f"{plan.budget.shared_bytes} bytes of shared memory",
        f"{plan.budget.blocks_per_sm} blocks per SM",
        "no spills",
        f"{plan.prediction.candidate_count} feasible candidates",
    ):
        assert part in header
    shown = [(name, int(count)) for count, name in re.findall(r"^ +(\d+)  (\w+): \S", header, re.M)]
    assert shown == [(name, count) for name, count in plan.prediction.rejected.items() if count]
    head = rendered.source.splitlines()[: len(rendered.header)]
    assert head == [f"// {line}" for line in rendered.header]


@pytest.mark.parametrize("kernel_pass", ["forward", "step"])
def test_nothing_of_this_machine_is_in_it(kernel_pass: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No path, though cell and profile are files; and no date."""

    def missing(*_: object) -> None:
        raise ToolchainMissing("only the text is wanted")

    monkeypatch.setattr(build, "compile_source", missing)
    (tmp_path / "cell.yaml").write_text(f"name: mine\nequations: {BENIGN['equations']}\n")
    (tmp_path / "profile.yaml").write_bytes(profile_bytes("h200"))
    spec = load_spec({"model": str(tmp_path / "cell.yaml"), "hidden_size": 64, "gpu": str(tmp_path / "profile.yaml")})
    builder = Builder(spec, target_of(spec), Store(tmp_path))
    source = builder.build_candidate(builder.solve(builder.key_of(kernel_pass, builder.hinted_specialization)), 0).source
    places = (tmp_path, Path.cwd(), Path.home(), package_folder("templates"))
    for trace in (*map(str, places), "profile.yaml", datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")):
        assert trace == "/" or trace not in source, trace
    assert "for mine" in source and '"gpu":"h200"' in source


HOSTILE = (
    "\\",
    "ends in a backslash \\",
    "??/",
    "*/ int injected; /*",
    "\u2028int injected;",
    "\u0085int injected;",
    "{{ 7 * 7 }} {% for name in plan %}{{ name }}{% endfor %}",
    "{{ cell.__class__.__mro__ }}",
    "{# #}",
    "%:include <stdio.h>",
    '#include "/etc/passwd"',
    "\N{RIGHT-TO-LEFT OVERRIDE} _ \N{LATIN SMALL LETTER E WITH ACUTE}",
    '__asm__("trap;");',
)
BENIGN = {"name": "mine", "equations": "h[t] = W.a * h[t-1] + W.b", "description": "plain"}


def hostile_cell(text: str) -> dict[str, Any]:
    equations = f"# {text}\nh[t] = W.a * h[t-1] + W.b  # {text}\n# {text}"
    return BENIGN | {"equations": equations, "description": text, "source": text}


def check_stays_in_comments(text: str) -> None:
    try:
        hostile = rendered_case(hostile_cell(text))
    except BadInput as refused:  # line breaks, control characters
        assert str(refused).isprintable()
        return
    assert code_of(hostile.source) == code_of(rendered_case(BENIGN).source)
    check_text(hostile)
    # What splitlines takes for a line's end and a compiler does not, or the reverse, must not be there at all.
    assert set(re.sub(r"[ -~]", "", hostile.source)) == {"\n"}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_in_comments(text: str) -> None:
    check_stays_in_comments(text)


@settings(max_examples=examples(25))
@given(st.text(max_size=30))
def test_any_text_stays_in_comments(text: str) -> None:
    check_stays_in_comments(text)


ODD_NAMES = (*HOSTILE, "int", "compute_t", "asm", "x; int y", "h\n", "__global__", "carry")


# Every day each text in two of the keys.
@pytest.mark.parametrize(
    ("text", "key"),
    [
        pytest.param(text, key, marks=pytest.mark.matrix_full if (t + k) % 2 else ())
        for (t, text), (k, key) in itertools.product(enumerate(ODD_NAMES), enumerate(("name", "parameters", "gates", "states")))
    ],
)
def test_names_are_names(key: str, text: str) -> None:
    """Names do reach the code: only identifiers get there, behind the prefix that nothing else has."""

    def source_with(name: str) -> str:
        equations = {
            "name": "h[t] = W.a * h[t-1] + W.b",
            "parameters": f"h[t] = W.a * h[t-1] + W.b * {name}",
            "gates": f"h[t] = W.a * h[t-1] + W.{name}",
            "states": f"{name}[t] = W.a * {name}[t-1] + W.b",
        }[key]
        names = {"name": name, "parameters": [name], "gates": ["a", name], "states": [name]}[key]
        return rendered_case(BENIGN | {"equations": equations, key: names}).source

    try:
        source = source_with(text)
    except BadInput as refused:
        assert str(refused).isprintable()
        return
    assert text.isidentifier()

    def words(code: str) -> set[str]:
        return set(re.findall(r"\w+", re.sub(r"//.*", "", code)))

    own = {word for word in words(source) - words(source_with("ordinary")) if not word.isdigit()}
    assert [word for word in own if not word.startswith(PREFIX)] == []


@given(st.text())
def test_comments_are_one_line_of_printable_ascii(text: str) -> None:
    made = comment(text)
    assert re.fullmatch(r"[ -\[\]-~]*", made)
    # But for the space in what would be a backslash.
    kept = [(was, now) for was, now in zip(text, made.replace("?? /", "??/"), strict=True) if was != now]
    assert all(now == "?" for _, now in kept)


def test_an_equation_is_shown_as_it_was_written() -> None:
    source = rendered_case(hostile_cell("a note")).source
    assert "//   h[t] = W.a * h[t-1] + W.b  # a note" in source


def test_the_spec_in_the_header_is_the_whole_spec_and_no_word_is_cut() -> None:
    header = rendered_case("min_gru", hidden_size=96, batch=3).header
    unfolded = "".join(line.removeprefix("  ") for line in header)
    spec = builder_of("min_gru", hidden_size=96, batch=3).spec.canonical()
    assert spec in unfolded
    words = re.findall(r"[^ ,]+", spec)
    assert [word for line in header for word in re.findall(r"[^ ,]+", line) if word in words] == words


@given(st.text(" ,ab", max_size=300) | st.lists(st.text("abc", min_size=1, max_size=40)).map(",".join), st.integers(8, 60))
def test_folded_text_is_the_text_and_only_words_that_fit_no_line_are_cut(text: str, columns: int) -> None:
    lines = folded(text, columns)
    assert "".join(lines) == text
    for line, following in itertools.pairwise(lines):
        word = re.search(r"[^ ,]*$", line)[0] + re.match(r"[^ ,]*", following)[0]  # type: ignore[index]
        assert not line or line[-1] in " ," or len(word) >= columns or len(line) == columns


@pytest.mark.parametrize("kernel_pass", ["forward", "step"])
@pytest.mark.parametrize(("model", "layout"), [("min_gru", "BTD"), ("min_gru", "BDT"), ("ind_rnn", "BTD")])
def test_a_line_has_one_comment_and_the_header_is_narrow(model: str, kernel_pass: Any, layout: str) -> None:
    rendered = rendered_case(model, kernel_pass=kernel_pass, layout=layout)
    assert [line for line in rendered.source.splitlines() if re.search(r"\S//|//.*\S.*//", line)] == []
    assert all(len(line) <= 125 for line in rendered.header)


def test_no_template_swallows_the_end_of_a_comment() -> None:
    """Without the +, Jinja takes the line break after a tag, and the next line goes on with the comment."""
    for path in package_folder("templates").rglob("*.j2"):
        assert not re.search(r"(?m)^\s*//.*[^+]%\}$", path.read_text(encoding="utf-8")), path
