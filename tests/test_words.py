"""Words of the code and the pages: the field's nouns, subjects first, no pronouns as identifiers, and texts in their place."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import jinja2.nodes
from support.documentation import PAGES, ROOT, name_of

import minrnn_gen
from minrnn_gen.codegen.render import environment
from minrnn_gen.config.package_files import package_folder

PACKAGE = Path(minrnn_gen.__file__).parent
TEMPLATES = package_folder("templates")
LINES_MOST = 400

FORBIDDEN_WORDS = re.compile(r"\b(tell|tells|told|tell_[a-z_]+|hear|hears|heard|mail|mailbox|whoever)\b", re.IGNORECASE)
# What a pronoun stands for has a name.
PRONOUNS = {"one", "its", "given", "found", "each", "taken"}
# A kernel's family and pass are fields of its plan; its names are not parsed for them.
PARSED_NAMES = {"entry", "template"}
PARSERS = {"startswith", "endswith", "removeprefix", "removesuffix", "split", "partition", "rpartition", "find", "replace"}

# A sentence begins with its subject. A docstring may still ask what something is, and few sentences of pages do.
OPENING = r"(?:What|That|Those|Of)\b"
DOCSTRINGS_OPENING_MOST, SENTENCES_OPENING_MOST = 10, 40
SENTENCE = re.compile(rf"(?:(?<=[.:!?] )|(?<=[.:!?]\n)|(?<=\n\n)|(?<=- )|(?<=\| )|(?<=\*\* )){OPENING}[^\n]*")
# After, next to, lacks, passed: words that say which.
VAGUE = re.compile(r"\b(?:behind|beside|has\s+not|of\s+which|handed\s+on)\b", re.IGNORECASE)
VAGUE_MOST = 60
# A comment of C++ or Jinja, to the end of its line.
COMMENT = re.compile(r"(?://|\{#)[^\n]*")
# The change log says what was, in the words of its day.
READ = [page for page in PAGES if page.name != "CHANGELOG.md"]

SUFFIXES = {".py", ".j2", ".h", ".cpp", ".yaml"}
TEXTS = {
    f"{folder.name}/{path.relative_to(folder).as_posix()}": path
    for folder in (PACKAGE, TEMPLATES)
    for path in sorted(folder.rglob("*"))
    if path.suffix in SUFFIXES
}
PYTHON_FILES = {name: path for name, path in TEXTS.items() if path.suffix == ".py"}
TEMPLATE_FILES = {name: path for name, path in TEXTS.items() if path.suffix == ".j2"}
CPP_FILES = {name: path for name, path in TEXTS.items() if path.suffix in {".h", ".cpp"}}

# Comments and literals of C++, of which a scan for names takes nothing; a ' between digits groups them.
IGNORED_CPP = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])'", re.DOTALL)
# What opens a brace that is no function's body; its text is what stands between the brace and the statement before.
SCOPE = re.compile(r"^\s*(?:template\s*<.*>\s*)?(?:namespace|struct|class|union|enum|extern)\b[^()]*$", re.DOTALL)


@functools.cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def template_tree(path: Path) -> jinja2.nodes.Template:
    return environment().parse(text_of(path))


def python_identifiers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each identifier that Python code declares or uses, and its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.keyword(arg=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name, node.lineno
            case ast.MatchStar(name=str(name)):
                yield name, node.lineno
            case ast.MatchClass(kwd_attrs=names):
                yield from ((name, node.lineno) for name in names)
            case ast.alias(name=name, asname=asname):
                yield asname or name.rpartition(".")[2], node.lineno


def jinja_identifiers(tree: jinja2.nodes.Template) -> Iterator[tuple[str, int]]:
    """Yield each identifier in the statements and expressions of a template, and its line."""
    for node in tree.find_all((jinja2.nodes.Name, jinja2.nodes.Getattr, jinja2.nodes.Keyword, jinja2.nodes.Macro)):
        match node:
            case jinja2.nodes.Name(name=name) | jinja2.nodes.Getattr(attr=name) | jinja2.nodes.Macro(name=name):
                yield name, node.lineno
            case jinja2.nodes.Keyword(key=name):
                yield name, node.lineno


def cpp_identifiers(text: str) -> Iterator[tuple[str, int]]:
    """Yield each word of C++ code outside its comments and literals, and its line."""
    code = IGNORED_CPP.sub(lambda ignored: "\n" * ignored[0].count("\n") or " ", text)
    for number, line in enumerate(code.splitlines(), 1):
        yield from ((name, number) for name in re.findall(r"[A-Za-z_]\w*", line))


def cpp_of(text: str) -> str:
    """Return the C++ of a template: its statements and expressions of Jinja blank, its lines where they were."""
    jinja = re.compile(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}", re.DOTALL)
    return jinja.sub(lambda removed: " " + "\n" * removed[0].count("\n"), text)


class Braces:
    """The braces that are open at a place of a template, each with whether it opens a function's body or lies in one."""

    def __init__(self) -> None:
        self.open: tuple[bool, ...] = ()
        self.statement = ""

    @property
    def in_function(self) -> bool:
        return bool(self.open) and self.open[-1]

    def read(self, text: str) -> None:
        for character in text:
            if character == "{":
                self.open += (self.in_function or not SCOPE.match(self.statement),)
            elif character == "}":
                self.open = self.open[:-1]
            self.statement = "" if character in "{};" else self.statement + character


def includes_in_functions(tree: jinja2.nodes.Template) -> list[jinja2.nodes.Include]:
    """Return the includes that stand inside a function's body."""
    braces = Braces()
    includes: list[jinja2.nodes.Include] = []

    def visit(nodes: list[jinja2.nodes.Node]) -> None:
        for node in nodes:
            match node:
                case jinja2.nodes.Include():
                    includes.extend([node] * braces.in_function)
                case jinja2.nodes.Output(nodes=parts):
                    # An expression may stand in a comment or between quotes: the text around it is read at once.
                    text = "".join(part.data if isinstance(part, jinja2.nodes.TemplateData) else "x" for part in parts)
                    braces.read(IGNORED_CPP.sub(" ", text))
                case jinja2.nodes.If():
                    before = braces.open
                    visit(node.body)
                    for branch in (*(other.body for other in node.elif_), node.else_):
                        if branch:  # alternatives open the same braces
                            braces.open = before
                            visit(branch)
                case jinja2.nodes.For(body=body) | jinja2.nodes.With(body=body) | jinja2.nodes.Scope(body=body):
                    visit(body)
                case jinja2.nodes.Macro(body=body) | jinja2.nodes.CallBlock(body=body) | jinja2.nodes.FilterBlock(body=body):
                    visit(body)

    visit(tree.body)
    assert not braces.open, "braces of the template do not pair"
    return includes


def parsed_plan_names(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that take a kernel's entry point or template apart."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=method, value=ast.Attribute(attr=name))):
                if method in PARSERS and name in PARSED_NAMES:
                    yield node.lineno
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[ast.Attribute(attr=name)]):
                if name in PARSED_NAMES:
                    yield node.lineno


def test_words_are_the_fields() -> None:
    places = [
        f"{name}:{number}: {line.strip()}"
        for name, path in TEXTS.items()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if FORBIDDEN_WORDS.search(line)
    ]
    assert places == []


def docstrings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each docstring of a module, and its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text, node.body[0].lineno


def unfenced(page: Path) -> str:
    """Return a page with its fenced blocks blank, line for line."""
    return re.sub(r"(?ms)^```.*?^```$", lambda block: "\n" * block[0].count("\n"), text_of(page))


def found_in_pages(pattern: re.Pattern[str]) -> list[str]:
    texts = {page: unfenced(page) for page in READ}
    return [
        f"{name_of(page)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for page, text in texts.items()
        for match in pattern.finditer(text)
    ]


def test_docstrings_open_with_their_subject() -> None:
    places = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for folder in ("minrnn_gen", "tests", "benchmarks", "examples", "docs", "release")
        for path in sorted((ROOT / folder).rglob("*.py"))
        # Few files have such a string at all, and to parse the others takes seconds.
        if re.search(rf"[\"']\\?\s*{OPENING}", text_of(path))
        for text, line in docstrings(ast.parse(text_of(path)))
        if re.match(OPENING, text)
    ]
    assert len(places) <= DOCSTRINGS_OPENING_MOST, "\n".join(places)


def test_comments_of_templates_open_with_their_subject() -> None:
    places = [
        f"{name}:{number}: {line.strip()}"
        for name, path in TEMPLATE_FILES.items()
        for before, (number, line) in pairwise([(0, ""), *enumerate(text_of(path).splitlines(), 1)])
        for comment in COMMENT.findall(line)
        if VAGUE.search(comment) or (not COMMENT.match(before[1].strip()) and re.match(rf"(?://|\{{#)\s*{OPENING}", comment))
    ]
    assert not places, "\n".join(places)


def test_sentences_of_pages_open_with_their_subject() -> None:
    places = found_in_pages(SENTENCE)
    assert len(places) <= SENTENCES_OPENING_MOST, "\n".join(places)


def test_pages_name_what_they_mean() -> None:
    places = found_in_pages(VAGUE)
    assert len(places) <= VAGUE_MOST, "\n".join(places)


def test_identifiers_are_no_pronouns() -> None:
    places = [
        f"{name}:{line}: {identifier}"
        for name, path in PYTHON_FILES.items()
        for identifier, line in python_identifiers(ast.parse(text_of(path)))
        if identifier in PRONOUNS
    ]
    assert places == []


def test_identifiers_of_templates_are_no_pronouns() -> None:
    places = [
        f"{name}:{line}: {identifier}"
        for name, path in TEMPLATE_FILES.items()
        for identifier, line in (*jinja_identifiers(template_tree(path)), *cpp_identifiers(cpp_of(text_of(path))))
        if identifier in PRONOUNS
    ]
    assert places == []


def test_identifiers_of_the_machine_are_no_pronouns() -> None:
    places = [
        f"{name}:{line}: {identifier}"
        for name, path in CPP_FILES.items()
        for identifier, line in cpp_identifiers(text_of(path))
        if identifier in PRONOUNS
    ]
    assert places == []


def test_statements_are_included_from_bodies_alone() -> None:
    """A part declares whole functions and types, which need no name of the place that includes it.

    A body is the exception: statements of several functions, which use their names. As functions of their own, with these names
    as arguments, they compile to other machine code: the compiler's choice of registers follows the scopes of variables.
    """
    trees = {name: template_tree(path) for name, path in TEMPLATE_FILES.items()}
    places = [
        f"{name}:{node.lineno}: {node.template.value}"
        for name, tree in trees.items()
        for node in includes_in_functions(tree)
        if not (isinstance(node.template, jinja2.nodes.Const) and node.template.value.startswith("bodies/"))
    ]
    assert places == []


def test_a_body_says_what_it_does() -> None:
    """A body is a phase of a kernel, or statements that several kernels share; either begins with a sentence."""
    bodies = [name for name in TEMPLATE_FILES if name.startswith("templates/bodies/")]
    for name in bodies:
        first = next(line for line in text_of(TEMPLATE_FILES[name]).splitlines() if not line.startswith(("{%", "#")))
        assert first.lstrip().startswith("// "), name
    assert bodies


def test_names_of_kernels_are_not_parsed() -> None:
    texts = {name: text_of(path) for name, path in PYTHON_FILES.items()}
    named = {name: text for name, text in texts.items() if any(word in text for word in PARSED_NAMES)}
    assert [f"{name}:{line}" for name, text in named.items() for line in parsed_plan_names(ast.parse(text))] == []


def test_no_file_is_long() -> None:
    lengths = {name: len(text_of(path).splitlines()) for name, path in TEXTS.items()}
    assert {name: lines for name, lines in lengths.items() if lines > LINES_MOST} == {}


def test_an_include_is_found_in_a_function_only() -> None:
    template = """
    {% include "a" %}
    namespace { struct Pair { {% include "b" %} int at[2]; }; }
    // a comment { {{ plan.symbol }}
    __device__ void f() {
        {% if plan.x %} if (true) { {% else %} while (true) { {% endif %}
        const char open = '{'; // {
        {% include "c" %}
        }
    }
    constexpr int SIZES[] = {1'000, 2};
    {% include "d" %}
    template <class T>
    __device__ T g(T value) { return value; }
    """
    assert [node.lineno for node in includes_in_functions(environment().parse(template))] == [8]


def test_a_pronoun_is_found_in_code_only() -> None:
    template = """{# one #}
    // found
    {% for given in plan.its %}int a = {{ given }}; const char* b = "each"; int taken = 1'000; // one
    {% endfor %}"""
    tree = environment().parse(template)
    names = {*jinja_identifiers(tree), *cpp_identifiers(cpp_of(template))}
    assert {(name, line) for name, line in names if name in PRONOUNS} == {("given", 3), ("its", 3), ("taken", 3)}
