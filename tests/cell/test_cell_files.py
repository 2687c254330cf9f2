"""A cell is found by name, by path or as a mapping, and whatever is wrong with it is one sentence that says where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.cell_evaluation import cell_of

from minrnn_gen.cell.files import find_cell, library_names
from minrnn_gen.cell.language import parse_cell
from minrnn_gen.config.documents import parse_document
from minrnn_gen.errors import BadInput

EQUATIONS = "z = sigmoid(W.z)\nh[t] = (1 - z) * h[t-1] + z * W.h\n"
MAPPING = {"name": "mine", "equations": EQUATIONS}
FILE = "name: mine\nequations: |\n  z = sigmoid(W.z)\n  h[t] = (1 - z) * h[t-1] + z * W.h\n"


def test_the_built_in_cells_are_those_of_the_documentation() -> None:
    documented = (
        "elman gru gru_reset_before hgrn ind_rnn layer_norm_lstm lif lstm min_gru min_gru_log min_gru_tanh min_lstm "
        "min_lstm_log peephole_lstm qrnn recurrent_lif rg_lru slstm"
    )
    assert library_names() == tuple(documented.split())


@pytest.mark.parametrize("name", library_names())
def test_a_built_in_cell_is_called_as_its_file_and_says_where_it_is_published(name: str, tmp_path: Path) -> None:
    source = find_cell(name, tmp_path, "spec.yaml")
    assert source.name == name
    assert source.document.data["source"] and source.document.data["description"]


def test_finding_a_cell_imports_neither_sympy_nor_numpy() -> None:
    program = (
        "import sys, pathlib, minrnn_gen.cell.files as files\n"
        "files.find_cell('min_gru', pathlib.Path('.'), 'spec.yaml')\n"
        "print([name for name in ('sympy', 'numpy') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("suffix", ["yaml", "yml"])
def test_a_path_and_a_mapping_give_the_same_cell(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "cells"
    folder.mkdir()
    (folder / f"mine.{suffix}").write_text(FILE)
    by_path = find_cell(f"cells/mine.{suffix}", tmp_path, "spec.yaml")
    by_name_in_folder = find_cell(f"mine.{suffix}", folder, "spec.yaml")
    assert by_path.canonical == by_name_in_folder.canonical == FILE.encode()
    assert parse_cell(by_path) == parse_cell(find_cell(MAPPING, tmp_path, "<dict>"))


def test_a_mapping_has_the_same_canonical_bytes_in_any_order_and_others_with_other_content(tmp_path: Path) -> None:
    one, other = (find_cell(dict(items), tmp_path, "<dict>") for items in (MAPPING.items(), reversed(MAPPING.items())))
    assert one.canonical == other.canonical
    assert one.canonical != find_cell({**MAPPING, "gates": ["h", "z"]}, tmp_path, "<dict>").canonical


@pytest.mark.parametrize(
    ("model", "fragment"),
    [
        (
            "min_gur",
            "spec.yaml: model: there is no built-in cell 'min_gur' (did you mean 'min_gru'?); give one that",
        ),
        ("", "there is no built-in cell ''"),
        ("nowhere.yaml", "spec.yaml: model: nowhere.yaml: no such file; give the path of a YAML file"),
        ("latim.yaml", "latim.yaml: no such file (did you mean 'latin.yaml'?)"),
        ("./", "this is a folder"),
        ("/dev/zero", "/dev/zero: this is a pipe or a device"),
        ("a\0b.yaml", "cannot be read"),
        ("x" * 5000 + ".yaml", "cannot be read"),
        ("latin.yaml", "latin.yaml:2: byte 0xe9 is not UTF-8"),
        ("huge.yaml", "huge.yaml: the text has 10000000 bytes; at most 65536 are allowed"),
        ({"name": "mine"}, "model.equations"),
        ({**MAPPING, "gate": ["z"]}, "model.gate: unknown key (did you mean 'gates'?)"),
        ({**MAPPING, "name": "no name"}, "model.name"),
        ({**MAPPING, "equations": ["h"]}, "model.equations"),
        ({**MAPPING, "gates": "z"}, "model.gates"),
        ({**MAPPING, "gates": ["z", "__import__"]}, "model.gates.1"),
        ({**MAPPING, "source": object()}, "source"),
    ],
)
def test_what_is_no_cell_is_one_sentence(tmp_path: Path, model: object, fragment: str) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: mine\ndescription: \xe9\nequations: h[t] = W.h\n")
    (tmp_path / "huge.yaml").write_bytes(b"#" * 10_000_000)
    with pytest.raises(BadInput) as caught:
        find_cell(model, tmp_path, "spec.yaml")  # type: ignore[arg-type]
    message = str(caught.value)
    assert fragment in message and "\n" not in message and len(message) < 600


def test_an_inline_cell_given_as_a_document_has_its_line_in_messages(tmp_path: Path) -> None:
    document = parse_document("hidden_size: 8\nmodel:\n  name: mine\n  equation: h[t] = W.h\n", "spec.yaml")
    with pytest.raises(BadInput, match=r"^spec\.yaml:4: model\.equation: unknown key"):
        find_cell(document.part("model"), tmp_path, "spec.yaml")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("name: mine\nequations: |\n  z = sigmoid(W.z)\n  h[t] = q * W.h\n", "mine.yaml:4:10: "),
        ("# a cell\nname: mine\nequations: |\n\n    # what\n    h[t] = q * W.h\ndescription: later\n", "mine.yaml:6:12: "),
        ("name: mine\r\nequations: |\r\n  z = sigmoid(W.z)\r\n  h[t] = q * W.h\r\n", "mine.yaml:4:10: "),
        ("name: mine\nequations: 'h[t] = q * W.h'\n", "mine.yaml:2:20: "),
    ],
)
def test_errors_in_equations_point_into_the_file(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "mine.yaml").write_bytes(text.encode())
    with pytest.raises(BadInput) as caught:
        parse_cell(find_cell("mine.yaml", tmp_path, "spec.yaml"))
    assert str(caught.value).startswith(f"{place}'q' is not defined")


def test_equations_in_a_dict_may_be_indented() -> None:
    indented = """
        z = sigmoid(W.z)  # ζ: comments may hold any character
        h[t] = (1 - z) * h[t-1] + z * W.h
    """
    assert cell_of(indented).definitions == cell_of(EQUATIONS).definitions
    with pytest.raises(BadInput, match=r"^<dict>: model\.equations: line 3, column 16: 'y' is not defined"):
        cell_of(indented.replace("(1 - z)", "y"))
