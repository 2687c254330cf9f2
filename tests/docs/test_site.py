"""The documentation site: every page is in its menu, every public name in its reference, and its check sees what is wrong."""

from __future__ import annotations

import ast
import json
import posixpath
import sys
from pathlib import Path

import pytest
import yaml
from support.browser import BROWSER, needs_browser
from support.documentation import PAGES, ROOT, anchors, name_of

from minrnn_gen.cli.schema import Kind, schema_of

sys.path.append(str(ROOT / "docs" / "site"))
import check
import pages
import reports

GENERATED = {f"reference/{page}.md" for page in (*pages.API, *(f"{kind}-schema" for kind in Kind))}


def menu() -> list[str]:
    """Return every page of the menu."""

    def below(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        parts = entry.values() if isinstance(entry, dict) else entry
        return [page for part in parts for page in below(part)]  # type: ignore[attr-defined]

    return below(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])


def shown_of(package: str) -> list[str]:
    """Return the names of a package that the pages of the reference show."""
    return [name for topic in pages.API.values() if topic.package == package for name in topic.names]


def exported(module: str) -> set[str]:
    """Return the `__all__` of a module, without importing what it needs."""
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    return set(ast.literal_eval(assigned[0].value))


def test_every_page_is_in_the_menu_once() -> None:
    assert sorted(menu()) == sorted({pages.published_name(name_of(page)) for page in PAGES} | GENERATED)


def test_every_public_name_is_in_the_reference() -> None:
    from minrnn_gen import errors

    names = {name for name in exported("minrnn_gen/__init__.py") if not hasattr(errors, name)}
    assert set(shown_of("minrnn_gen")) == names | {"MinrnnError"}
    assert set(shown_of("minrnn_gen.torch")) == exported("minrnn_gen/torch/__init__.py")
    fronts = ROOT / "minrnn_gen" / "compat"
    texts = {file.stem: file.read_text(encoding="utf-8") for file in fronts.glob("[!_]*.py")}
    texts |= {file.parent.name: file.read_text(encoding="utf-8") for file in fronts.glob("*/__init__.py")}
    parts = {name for name in texts if any(f"minrnn_gen.compat.{name} import" in text for text in texts.values())}
    assert set(shown_of("minrnn_gen.compat")) == set(texts) - parts


def test_a_function_has_a_table_of_its_parameters() -> None:
    page = pages.api_page(pages.API["torch-functions"])
    assert page.count("| parameter | type | shape | default |") == len(pages.API["torch-functions"].names)
    assert "| `R` | array | [Gr, N, D, D] | `None` |" in page and "| `sos` | array | [sections, 6] | needed |" in page
    assert "| `gamma` | `Any` |  | needed |" in page
    compiled, layers = (pages.api_page(pages.API[topic]) for topic in ("minrnn_gen", "torch-layers"))
    assert "| `heads` | `int` |  | the spec's |" in compiled and "| `device` | `str | None` |  | `None` |" in compiled
    assert "| `bias` | `bool` |  | `True` |" in layers


def test_links_are_led_to_where_the_site_has_their_targets() -> None:
    text = "[a](docs/spec.md#keys) [b](LICENSE) [c](https://example.org/x.md)\n```text\n[d](docs/spec.md)\n```\n"
    assert pages.with_links(text, "README.md", "index.md") == (
        "[a](spec.md#keys) [b](files/LICENSE.txt) [c](https://example.org/x.md)\n```text\n[d](docs/spec.md)\n```\n"
    )
    assert (
        pages.with_links("[a](../../CONTRIBUTING.md)", "docs/kernels/plan.md", "kernels/plan.md") == "[a](../contributing.md)"
    )
    assert pages.with_links("![a](../examples/results/x.svg)", "docs/examples.md", "examples.md") == (
        "![a](files/examples/results/x.svg)"
    )


def test_every_report_is_linked_from_a_page() -> None:
    written = {name for name, _ in reports.records()} | {
        f"{reports.FOLDER}/{example}_{kernel_pass}.html" for example, kernel_pass in reports.DECISIONS.values()
    }
    linked = set()
    for page in (reports.RESULTS, *reports.DECISIONS):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        more = reports.with_reports(text, page)
        assert more.startswith(text.partition("\n\n")[0]) and more.endswith(text.split("\n\n", 2)[2])
        links = set(pages.LINK.findall(more)) - set(pages.LINK.findall(text))
        linked |= {posixpath.normpath(posixpath.join(posixpath.dirname(page), link)) for link in links}
    assert linked == written
    assert reports.with_reports("# A\n\nb", "spec.md") == "# A\n\nb"


def test_headings_have_the_anchors_that_links_use() -> None:
    headings = [line.lstrip("# ") for line in (ROOT / "docs/kernels/scan.md").read_text().splitlines() if line.startswith("#")]
    assert {pages.anchor_of(heading) for heading in headings} == anchors(ROOT / "docs/kernels/scan.md")


@pytest.mark.parametrize("kind", Kind)
def test_the_published_schema_is_that_of_the_package(kind: Kind) -> None:
    published = (ROOT / "docs" / "schemas" / f"{kind}.json").read_text(encoding="utf-8")
    assert json.loads(published) == schema_of(kind), f"write it anew: minrnn-gen schema {kind} > docs/schemas/{kind}.json"


@pytest.mark.parametrize("kind", Kind)
def test_the_page_of_a_schema_has_every_key(kind: Kind) -> None:
    text = pages.schema_page(kind)
    assert all(f"| `{key}` | " in text for key in schema_of(kind)["properties"])


# min_gru.yaml is three lines and nothing else, to show that they are a whole spec.
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.yaml") if path.name != "min_gru.yaml")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_names_its_schema(example: Path) -> None:
    first, *rest = example.read_text(encoding="utf-8").splitlines()
    kind = "cell" if any(line.startswith("equations:") for line in rest) else "spec"
    assert first == f"# yaml-language-server: $schema=../docs/schemas/{kind}.json"
    assert set(yaml.safe_load("\n".join(rest))) <= set(schema_of(Kind(kind))["properties"])


def test_the_check_sees_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text('<h1 id="top">x</h1><a href="#top">x</a><img src="data:,">')
    assert check.faults(tmp_path) == []
    (tmp_path / "bad.html").write_text(
        '<link rel="stylesheet" href="https://example.org/a.css"><a href="gone.html">x</a><a href="good.html#none">x</a>'
    )
    assert check.faults(tmp_path) == [
        "bad.html: gone.html is not there",
        "bad.html: good.html#none has no such heading",
        "bad.html: https://example.org/a.css comes from the network",
    ]


@needs_browser
def test_the_check_sees_what_a_phone_shows(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text("<p>narrow</p>")
    (tmp_path / "wide.html").write_text('<p style="width: 700px">wide</p>')
    (tmp_path / "loud.html").write_text('<script>console.error("loud")</script>')
    (tmp_path / "index.html").write_text("<p>start</p>")
    wrong = check.opened(str(BROWSER), tmp_path)
    assert len(wrong) == 2 and "loud" in wrong[0] and "wide.html" in wrong[1] and "on a phone of 400" in wrong[1]
