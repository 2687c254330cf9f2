"""The language: the author's operations in the author's order, exact orders of names, and errors that say where."""

from __future__ import annotations

import ast
import itertools
import math
import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.cell_evaluation import Tree, built_in, cell_of, tree_text, trees
from support.examples import examples
from support.one_step import lower_step

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.files import find_cell, library_names
from minrnn_gen.cell.functions import FREE_NAMES, FUNCTIONS
from minrnn_gen.cell.language import parse_cell
from minrnn_gen.cell.printing import equation_text
from minrnn_gen.errors import BadInput

# W gates | R gates | states | parameters, from docs/cells.md.
ORDERS = {
    "min_gru": "zh||h|",
    "min_gru_log": "zh||h|",
    "min_gru_tanh": "zh||h|",
    "min_lstm": "fih||h|",
    "min_lstm_log": "fih||h|",
    "hgrn": "fi||h|",
    "rg_lru": "rix||h|decay",
    "qrnn": "zfo||c|",
    "ind_rnn": "h||h|u",
    "elman": "h|h|h|",
    "lstm": "ifzo|ifzo|hc|",
    "layer_norm_lstm": "ifzo|ifzo|hc|gigfgzgogcbc",
    "gru": "rzn|rzn|h|",
    "gru_reset_before": "zrn|zrn|h|",
    "slstm": "ifzo|ifzo|hcnm|",
    "peephole_lstm": "ifzo|ifzo|hc|p_ip_fp_o",
    "lif": "x||sm|decay",
    "recurrent_lif": "x|x|sm|decay",
}


@pytest.mark.parametrize("name", library_names())
def test_the_orders_of_a_built_in_cell(name: str) -> None:
    cell = built_in(name)
    assert (
        "|".join("".join(names) for names in (cell.gates, cell.recurrent_gates, cell.states, cell.parameters)) == ORDERS[name]
    )


def plainly(tree: Tree, values: dict[str, Any]) -> Any:
    """Evaluate a tree by the definitions of docs/cells.md."""
    name, *parts = tree
    if name == "leaf":
        return values[parts[0]]
    if name == "number":
        return np.float64(parts[0])
    if name == "**":
        base = plainly(parts[0], values)
        square = base * base
        return {2: square, 3: square * base, 4: square * square, 5: (square * square) * base}[parts[1]]
    x, *rest = (plainly(part, values) for part in parts)
    y = rest[0] if rest else None

    def line() -> Any:
        sixth = np.float64(1 / 6) * x + 0.5
        return np.where(sixth <= 0, 0.0, np.where(sixth >= 1, 1.0, sixth))

    def small() -> Any:
        return np.exp(-np.abs(x))

    plain = {
        "+": lambda: x + y,
        "-": lambda: -x if y is None else x - y,
        "*": lambda: x * y,
        "/": lambda: x / y,
        "<": lambda: x < y,
        "<=": lambda: x <= y,
        ">": lambda: x > y,
        ">=": lambda: x >= y,
        "==": lambda: x == y,
        "!=": lambda: x != y,
        "sigmoid": lambda: np.where(x >= 0, 1, small()) / (1 + small()),
        "silu": lambda: x * (np.where(x >= 0, 1, small()) / (1 + small())),
        "softplus": lambda: np.maximum(x, 0) + np.log1p(small()),
        "logsigmoid": lambda: np.minimum(x, 0) - np.log1p(small()),
        "relu": lambda: np.where(x < 0, 0.0, x),  # the sign of a zero of np.maximum is the processor's
        # NaN wins; of equal ones the first, which shows where one is -0.
        "min": lambda: np.where(np.isnan(x) | ~((y < x) | np.isnan(y)), x, y),
        "max": lambda: np.where(np.isnan(x) | ~((y > x) | np.isnan(y)), x, y),
        "where": lambda: np.where(x, y, rest[1]),
        "detach": lambda: x,
        "atan": lambda: np.arctan(x),  # its other name is of NumPy 2
        "erf": lambda: np.vectorize(math.erf, otypes=[float])(x),
        "softsign": lambda: x / (1 + np.abs(x)),
        "hard_sigmoid": lambda: line(),
        "gelu": lambda: 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(np.sqrt(0.5) * x)),
    }
    return plain[name]() if name in plain else getattr(np, name)(x)


@settings(max_examples=examples(200))
@given(trees(), trees())
def test_a_program_computes_the_authors_operations_in_the_authors_order(early: Tree, tree: Tree) -> None:
    early = ("+", ("leaf", "W.x"), ("leaf", "W.y")) if "early" in tree_text(early) else early
    first = f"early = {tree_text(early)}\n" if "early" in tree_text(tree) else ""  # what nothing reads is refused
    equations = f"{first}h[t] = {tree_text(tree)} + 0 * (W.x + W.y + p)"
    program = lower_step(cell_of(equations, parameters=["p"], gates=["x", "y"]))
    draws = np.random.default_rng(0).normal(size=(4, 33)) * np.array([[0.1], [1.0], [3.0], [0.5]])
    x, y, h, p = draws
    values = {"W.x": x, "W.y": y, "h[t-1]": h, "p": p}
    with np.errstate(all="ignore"):
        values["early"] = np.broadcast_to(plainly(early, values), 33)
        expected = plainly(tree, values) + 0 * ((x + y) + p)
    found = program.evaluate({"W_x": x, "W_y": y, "previous_h": h, "parameter_p": p})["state_h"]
    np.testing.assert_array_equal(found, expected)  # equal to the last bit: nothing is rewritten


@settings(max_examples=examples(200))
@given(trees(depth=5))
def test_an_expression_written_as_text_reads_back_as_itself(tree: Tree) -> None:
    equations = "early = W.x + W.y + p\nh[t] = c[t-1] + early\nc[t] = "
    cell = cell_of(equations + tree_text(tree), parameters=["p"])
    again = cell_of(equations + equation_text(cell.next_states[1][1]), parameters=["p"])
    assert again.next_states == cell.next_states


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", "1/10"),
        ("1e-3", "1/1000"),
        (".5", "1/2"),
        ("2.", "2"),
        ("1 / 3", "1/3"),
        ("-2 ** 2", "-4"),
        ("2 ** -2", "1/4"),
        ("0.1 + 0.2", "3/10"),
        ("12345678901234567890.123", "12345678901234567890.123"),
    ],
)
def test_numbers_are_exact(text: str, value: str) -> None:
    assert dict(cell_of(f"c = {text}\nh[t] = c * W.x").lets)["c"] == ex.number(value)


def test_names_default_to_the_order_of_first_use_and_the_output_to_the_first_state() -> None:
    cell = cell_of("u = sigmoid(W.b) * n[t-1]\nm[t] = u + W.a\nn[t] = W.b + R.a * R.b + m[t]")
    assert (cell.gates, cell.recurrent_gates, cell.states) == (("b", "a"), ("b", "a"), ("n", "m"))
    assert cell.output == ex.current("n")


def test_a_product_of_the_state_that_is_the_output_is_one_of_the_previous_output() -> None:
    text = "r = sigmoid(R.r(h[t-1]) + W.r)\nh[t] = W.h + R.n(r * h[t-1]) + r * R.k(r * h[t-1])"
    cell = cell_of(text)
    assert cell.recurrent_gates == ("r", "n", "k")  # W's gates first, then in the order of their first use
    assert {gate: equation_text(argument) for gate, argument in cell.arguments} == {"n": "r * h[t-1]", "k": "r * h[t-1]"}
    assert [together.gates for together in cell.rounds] == [("n", "k")]
    assert cell_of("h[t] = tanh(W.h + R.h(h[t-1]))").rounds == ()


def test_rounds_follow_what_products_read_and_share_one_argument() -> None:
    cell = cell_of("a = R.a\nb = R.b(a)\nc = R.c(2 * h[t-1]) + R.d(a)\nh[t] = W.h + R.e(b) + c")
    shown = [(together.gates, equation_text(together.argument)) for together in cell.rounds]
    assert shown == [(("c",), "2 * h[t-1]"), (("b", "d"), "a"), (("e",), "b")]


def test_the_output_may_be_a_state_or_an_expression() -> None:
    text = "c[t] = W.f * c[t-1]\nd[t] = W.f + c[t]"
    assert cell_of(text, output="d").output == ex.current("d")
    assert equation_text(cell_of(text, output=" W.o * d[t] + c[t-1] ").output) == "W.o * d[t] + c[t-1]"


def chain(products: int) -> str:
    """Return equations in which each product multiplies the one before."""
    lines = ["a0 = R.g0", *(f"a{number} = R.g{number}(a{number - 1})" for number in range(1, products))]
    return "\n".join([*lines, f"h[t] = W.h + a{products - 1}"])


WRONG = [
    ("h[t] = W.h + q", 1, 14, "'q' is not defined before this point"),
    ("zeta = W.h\nh[t] = zeto * W.h", 2, 8, "(did you mean 'zeta'?)"),
    ("a = b + W.h\nb = a\nh[t] = a", 1, 5, "'b' is not defined before this point"),
    ("h[t] = c[t] + W.h\nc[t] = h[t]", 1, 8, "c[t] is used before it is defined"),
    ("h[t] = h[t] + W.h", 1, 8, "h[t] is used before it is defined"),
    ("h[t] = W.h\nh[t] = W.h", 2, 1, "h[t] is defined twice, first on line 1"),
    ("a = W.h\na = W.h\nh[t] = a", 2, 1, "a is defined twice, first on line 1"),
    ("h[t] = W.h + c[t-1]", 1, 14, "the state c has no equation"),
    ("h[t-1] = W.h", 1, 1, "h[t-1] is the previous step's value"),
    ("h[t] = W.h + h", 1, 14, "'h' is a state; write h[t-1] or h[t]"),
    ("h[t] = W.h + h[t-2]", 1, 14, "a state is written h[t-1] or h[t]"),
    ("h[t] = W.h + h[t+1]", 1, 14, "a state is written h[t-1] or h[t]"),
    ("h[t] = W.h + h[True]", 1, 14, "a state is written"),
    ("h[t] = W.h + h[t-True]", 1, 14, "a state is written"),
    ("h[t] = W.h + h[t-1.0]", 1, 14, "a state is written"),
    ("h[t-False] = W.h", 1, 1, "a state is written"),
    ("h[0] = W.h", 1, 1, "a state is written"),
    ("h = W.h\nh[t] = h", 2, 1, "'h' is not a state"),
    ("h[t] = W.h\nh = W.h", 2, 1, "'h' is a state"),
    ("h[t] = W.h + W", 1, 14, "'W' needs a gate"),
    ("h[t] = W.h + W.h.real", 1, 14, "'W.h.real' has no meaning"),
    ("h[t] = (W.h).__class__", 1, 8, "has no meaning"),
    ("h[t] = W.__class__", 1, 8, "is not a gate's name"),
    ("h[t] = W.h + W.t", 1, 14, "'t' is a word of the language and cannot be a gate's name; choose another name"),
    ("h[t] = W.h + R.R", 1, 14, "'R' is a word of the language"),
    ("h[t] = Y.h", 1, 8, "a dot is only in W.<gate> and R.<gate>"),
    ("h[t] = W.h + R(h[t-1])", 1, 14, "R needs a gate; write R.<gate>(value), or R.<gate> for the previous output"),
    ("h[t] = W.h + R.h()", 1, 14, "R.h takes one argument, the value that R multiplies; write R.h(value)"),
    ("h[t] = W.h + R.h(W.h, h[t-1])", 1, 14, "R.h takes one argument"),
    ("h[t] = W.h + R.h(x=h[t-1])", 1, 14, "R.h takes one argument"),
    ("h[t] = W.h + R.h(W.h)", 1, 14, "R.h multiplies W.h, which no previous step reaches; project it before the layer"),
    ("h[t] = W.h + R.h(R.h)", 1, 14, "R.h multiplies R.h here and the previous output on line 1; give one of these products"),
    ("h[t] = W.h + R.tanh(h[t-1])", 1, 14, "'tanh' is a word of the language and cannot be a gate's name"),
    (chain(9), 9, 6, "R.g8 is the last of 9 products that each need the one before; a step has at most 8"),
    (
        "\n".join(f"a{gate} = R.g{gate}(2 * h[t-1])" for gate in range(17))
        + "\nh[t] = W.h + "
        + " + ".join(f"a{gate}" for gate in range(17)),
        17,
        7,
        "R has 17 gates; a cell has at most 16 products",
    ),
    ("h[t] = W(W.h)", 1, 8, "W takes no argument, it always multiplies the input; write W.<gate>"),
    ("h[t] = W.h + R.(h[t-1])", 1, 14, "'R.' needs a gate's name; write R.<gate>"),
    ("h[t] = W.h + R.", 1, 14, "'R.' needs a gate's name"),
    ("h[t] = W . (h[t-1])", 1, 8, "'W.' needs a gate's name"),
    ("h[t] = W.h + R * h[t-1]", 1, 14, "'R' needs a gate; write R.<gate>"),
    ("h[t] = W.h + sigmoid(W)", 1, 22, "'W' needs a gate; write W.<gate>"),
    ("h[t] = tanh(R) + W.h", 1, 13, "'R' needs a gate; write R.<gate>"),
    ("h[t] = W.h + R.h[t-1]", 1, 14, "a state is written h[t-1] or h[t]"),
    (
        "h[t] = W.h\nz = sigmoid(W.z)",
        2,
        1,
        "z reaches neither the output, which is h[t], the first state, nor a state that does; add `output: z`, use it",
    ),
    (
        "h[t] = W.h + R.h\nz = tanh(h[t])",
        2,
        1,
        "z reaches neither the output, which is h[t], the first state, nor a state that does; use it, or remove",
    ),
    ("h[t] = sigmoid(W_h)", 1, 16, "'W_h' is not defined before this point (did you mean 'W.h'?)"),
    ("h[t] = W.h + R_h", 1, 14, "'R_h' is not defined before this point (did you mean 'R.h'?)"),
    ("h[t] = W.h @ h[t-1]", 1, 12, "the character '@' has no meaning in an equation; W.<gate> and R.<gate> are products"),
    ("z = W.z\nu = z\nh[t] = W.h", 2, 1, "u reaches neither the output"),
    ("h[t] = W.h\nc[t] = c[t-1] + W.h", 2, 1, "c[t] reaches neither the output, which is h[t], the first state,"),
    ("h[t] = W.h\nc[t] = d[t-1]\nd[t] = c[t-1] + h[t]", 2, 1, "c[t] reaches neither the output"),
    ("h[t] = W.h + R[t-1]", 1, 14, "'R' cannot be a state's name"),
    ("__import__('os')", 1, 12, 'the character "\'" has no meaning'),
    ("h[t] = __import__(os)", 1, 8, "'__import__' is not a function of the language"),
    ("h[t] = sigmoyd(W.h)", 1, 8, "(did you mean 'sigmoid'?)"),
    ("h[t] = sigmoid(W.h)(W.h)", 1, 8, "is not a function of the language"),
    ("h[t] = sigmoid(W.h, W.h)", 1, 8, "sigmoid takes 1 argument"),
    ("h[t] = max(W.h)", 1, 8, "max takes 2 arguments"),
    ("h[t] = sigmoid(x=W.h)", 1, 8, "sigmoid takes 1 argument"),
    ("h[t] = max(*W.h)", 1, 8, "max takes 2 arguments"),
    ("h[t] = W.h + sigmoid", 1, 14, "'sigmoid' is a function; write sigmoid("),
    ("h[t] = where(W.h, 1, 2)", 1, 14, "where needs one comparison"),
    ("h[t] = where(0 < W.h < 1, 1, 2)", 1, 14, "where needs one comparison"),
    ("h[t] = where(W.h in W.z, 1, 2)", 1, 14, "where needs one comparison"),
    ("h[t] = W.h > 0", 1, 8, "a comparison can only be the first argument of where"),
    ("h[t] = 1 if W.h else 2", 1, 8, "is written where(condition, a, b)"),
    ("h[t] = not W.h", 1, 8, "nesting where"),
    ("h[t] = W.h and W.h", 1, 8, "nesting where"),
    ("h[t] = W.h // 2", 1, 8, "the operator in 'W.h // 2'"),
    ("h[t] = W.h ** 0.5", 1, 15, "an exponent is a whole number from -16 to 16"),
    ("h[t] = W.h ** 17", 1, 15, "an exponent is a whole number"),
    ("h[t] = W.h ** W.h", 1, 15, "an exponent is a whole number"),
    ("h[t] = W.h / (1 - 1)", 1, 8, "divides by zero"),
    ("h[t] = W.h * 0 ** -1", 1, 14, "divides by zero"),
    ("h[t] = W.h * 1e300", 1, 14, "the number 1e300 is out of range"),
    ("h[t] = W.h * 1e-999999999", 1, 14, "is out of range"),
    ("h[t] = W.h * (1e30 * 1e30)", 1, 15, "is out of range"),
    ("h[t] = W.h + 0x10", 1, 14, "'0x10' is neither a number"),
    ("h[t] = W.h + 1_000", 1, 14, "is neither a number"),
    ("h[t] = W.h + 2j", 1, 14, "is neither a number"),
    ("h[t] = W.h + True", 1, 14, "'True' is not part of the equation language"),
    ("h[t] = [W.h]", 1, 8, "'[W.h]' is not part of the equation language"),
    ("h[t] = (W.h, W.h)", 1, 8, "is not part of the equation language"),
    ("h[t] = W.h; import os", 1, 11, "the character ';'"),
    ("import os\nh[t] = W.h", 1, 1, "'import os' is not an equation"),
    ("h[t] += W.h", 1, 1, "is not an equation"),
    ("a = b = W.h\nh[t] = a", 1, 1, "is not an equation"),
    ("W.h = h[t-1]", 1, 1, "'W.h' cannot be defined"),
    ("(a, b) = W.h", 1, 1, "cannot be defined"),
    ("sigmoid = W.h\nh[t] = sigmoid", 1, 1, "'sigmoid' is a word of the language"),
    ("t = W.h\nh[t] = t", 1, 1, "'t' is a word of the language"),
    ("_a = W.h\nh[t] = _a", 1, 1, "'_a' is not a name"),
    ("h[t] = W.h +", 1, 13, "this cannot be read"),
    ("h[t] = (W.h", 1, 8, "this cannot be read"),
    ("h[t] = W.h\n  z = W.h", 2, 2, "this cannot be read"),
    ("h[t] = W.hé", 1, 11, "the character 'é'"),
    ("h[t] = 1", 1, 1, "no gate is used"),
    ("a = W.h", 1, 1, "there is no state"),
    ("", 1, 1, "no gate is used"),
]


@pytest.mark.parametrize(("text", "line", "column", "fragment"), WRONG, ids=[each[0][:40] for each in WRONG])
def test_what_is_no_equation_is_one_sentence_with_its_place(text: str, line: int, column: int, fragment: str) -> None:
    with pytest.raises(BadInput) as caught:
        cell_of(text)
    message = str(caught.value)
    assert fragment in message and "\n" not in message
    assert message.startswith(f"<dict>: model.equations: line {line}, column {column}: ")


@pytest.mark.parametrize("states", list(itertools.permutations("hcg")), ids="".join)
@pytest.mark.parametrize("axis", ["", "n"])
def test_a_message_names_the_default_output_and_its_advice_mends_the_cell(states: tuple[str, ...], axis: str) -> None:
    """Each state reads those above it: the last alone may be the output, and by default the first is."""
    above = [f"{name}[t]" for name in states]
    lines = [f"{name}[t] = {' + '.join([f'{name}[t-1]', *above[:index]])} + W.x" for index, name in enumerate(states)]
    cell: dict[str, Any] = {"equations": "\n".join(lines)}
    if axis:  # the first state is one value per channel, so that it can be the output
        cell["states"] = {name: 1 if name == states[0] else "n" for name in states}
    with pytest.raises(BadInput, match=rf"which is {states[0]}\[t\], the first state,") as caught:
        cell_of(**cell)
    (advised,) = re.findall(r"add `output: ([^`]*)`", str(caught.value))
    assert ex.current(states[-1]) in ex.symbols_of(cell_of(**cell, output=advised).output)


INDEX_PIECES = ["t", "t", " - ", "-", "+", "*", "1", "1", "1.0", "0", "1e0", "True", "False", "None", "(", ")", " ", "01"]


@given(st.lists(st.sampled_from(INDEX_PIECES), min_size=1, max_size=5).map("".join))
@example("t-True")
@example("t-1.0")
@example("t-False")
@example("t-0")
def test_a_state_is_indexed_by_t_and_t_minus_1_alone(index: str) -> None:
    def read_by_python(text: str) -> str | None:
        try:
            return ast.dump(ast.parse(text.strip(), mode="eval"))
        except SyntaxError:
            return None

    text = f"h[t] = W.h + h[{index}]"
    if read_by_python(index) == read_by_python("t - 1"):
        assert equation_text(cell_of(text).definitions[0][1]) == "W.h + h[t-1]"
        return
    with pytest.raises(BadInput) as caught:
        cell_of(text)
    assert "\n" not in str(caught.value)


# Letters that Python's parser reads as others: of an "ﬁ" it makes fi.
LOOKALIKES = [
    chr(code)
    for code in range(128, 0x20000)
    if (normal := unicodedata.normalize("NFKC", chr(code))).isascii() and normal.isidentifier()
]


@given(st.sampled_from(LOOKALIKES), st.sampled_from(["", "h", "new"]))
def test_a_letter_that_is_read_as_another_is_no_letter(letter: str, start: str) -> None:
    name = start + letter
    for text, keys in (
        (f"h[t] = W.{name} + h[t-1]", {}),
        (f"{name}[t] = W.x", {}),
        (f"{name} = W.x\nh[t] = {name}", {}),
        ("h[t] = W.x + p", {"parameters": ["p", name]}),
        ("h[t] = W.x", {"gates": ["x", name]}),
        ("h[t] = W.x", {"states": ["h", name]}),
    ):
        with pytest.raises(BadInput) as caught:
            cell_of(text, **keys)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("word", ["W", "R", "t", *sorted(FUNCTIONS.keys() - FREE_NAMES)])
def test_a_word_of_the_language_is_no_name(word: str) -> None:
    """Neither of a gate, nor of a state, a parameter or a value."""
    for text, keys in (
        (f"h[t] = W.h + W.{word}", {}),
        (f"h[t] = W.h + R.{word} + W.{word}", {}),
        (f"{word}[t] = W.h", {}),
        (f"h[t] = W.h + {word}[t-1]\n{word}[t] = W.h", {}),
        (f"h[t] = W.h * {word}", {"parameters": [word]}),
        (f"{word} = W.h\nh[t] = {word}", {}),
    ):
        with pytest.raises(BadInput) as caught:
            cell_of(text, **keys)
        message = str(caught.value)
        assert f"'{word}'" in message and "choose another name" in message and "\n" not in message


@pytest.mark.parametrize(
    ("keys", "fragment"),
    [
        ({"gates": ["z"]}, "line 2, column 31: 'h' is used here but not listed under gates"),
        ({"gates": ["z", "h", "q"]}, "model.gates.2: 'q' is never used as W.q"),
        ({"gates": ["z", "h", "z"]}, "model.gates.2: 'z' is listed twice"),
        ({"states": ["h", "c"]}, "model.states.1: 'c' is never used as c[t]"),
        ({"states": []}, "line 2, column 1: 'h' is used here but not listed under states"),
        ({"parameters": ["u"]}, "model.parameters.0: 'u' is never used as u"),
        ({"parameters": ["z"]}, "'z' is a parameter and cannot be defined"),
        ({"parameters": ["h"]}, "'h' is not a state"),
        ({"output": "q"}, "model.output: line 1, column 1: 'q' is not defined"),
        ({"output": "h[t"}, "model.output: line 1"),
        ({"output": ""}, "model.output: line 1"),
        ({"output": "z = 1"}, "model.output: line 1"),
        ({"output": "R.z"}, "model.output: line 1, column 1: with R the output must be a state"),
        ({"output": "W.o * h[t]", "gates": ["z", "h"]}, "model.output: line 1, column 1: 'o' is used here but not listed"),
        ({"output": "h[t] * c[t-1]"}, "model.output: line 1, column 8: the state c has no equation"),
    ],
)
def test_keys_that_contradict_the_equations(keys: dict[str, Any], fragment: str) -> None:
    with pytest.raises(BadInput) as caught:
        cell_of("z = sigmoid(W.z)\nh[t] = (1 - z) * h[t-1] + z * W.h", **keys)
    assert fragment in str(caught.value) and "\n" not in str(caught.value)


FILE = """\
name: tried
gates: [z, h]   # z first
{keys}
equations: |

  z    = sigmoid(W.z + R.z)   # a gate
  h[t] = (1 - z) * h[t-1] + z * W.h
{more}
"""


@pytest.mark.parametrize(
    ("keys", "more", "start"),
    [
        ("", "  u    = z", "cell.yaml:8:3: u reaches neither the output, which is h[t], the first state, nor"),
        ("", "  c[t] = R(h[t-1])", "cell.yaml:8:10: R needs a gate"),
        ("output: z * h[t]", "", "cell.yaml:3:9: with R the output must be a state"),
        ("output: 'z * tanh(W)'", "", "cell.yaml:3:19: 'W' needs a gate"),
        ("parameters: [u]", "", "cell.yaml:3:14: parameters: 'u' is never used as u"),
        ("states:\n- h\n- c", "", "cell.yaml:5:3: states: 'c' is never used as c[t]"),
        ("states: [c, h, c]", "  c[t] = h[t-1]", "cell.yaml:3:16: states: 'c' is listed twice"),
        ("states: [h, h]", "", "cell.yaml:3:13: states: 'h' is listed twice"),
        ("states: []", "", "cell.yaml:7:3: 'h' is used here but not listed under states"),
    ],
)
def test_a_file_is_named_with_line_and_column(keys: str, more: str, start: str, tmp_path: Path) -> None:
    (tmp_path / "cell.yaml").write_text(FILE.format(keys=keys, more=more))
    with pytest.raises(BadInput) as caught:
        parse_cell(find_cell("cell.yaml", tmp_path, "spec.yaml"))
    assert str(caught.value).startswith(start) and "\n" not in str(caught.value)


def test_what_a_state_that_reaches_the_output_reads_is_read() -> None:
    """Through a state, a detached value and a condition, and for the products through the output itself."""
    cell = cell_of("u = W.u\nn[t] = max(n[t-1], W.n)\nh[t] = where(u > 0, detach(c[t-1]), R.u)\nc[t] = n[t]", output="h")
    assert cell.states == ("n", "h", "c")


OPERANDS = st.sampled_from(("z", "W.h", "h[t-1]", "(1 - z)", "0.5", "tanh(W.h)", "long_name", ".25", "2"))


@given(OPERANDS, OPERANDS.filter(lambda text: text[0] != "("), st.sampled_from((" ", "  ")))
def test_operands_side_by_side_lack_a_product(left: str, right: str, space: str) -> None:
    with pytest.raises(BadInput, match=r"a \* is missing between") as caught:
        cell_of(f"z = sigmoid(W.z)\nlong_name = tanh(W.q)\nh[t] = z * {left}{space}{right}")
    start = len("h[t] = z * ") + len(left) + len(space) + 1
    assert f"column {start}: " in str(caught.value)


def test_a_power_is_written_with_two_stars() -> None:
    with pytest.raises(BadInput, match=r"use \*\* for a power"):
        cell_of("h[t] = W.h^2 + h[t-1]")
    with pytest.raises(BadInput, match=r"unless a \* is missing"):
        cell_of("h[t] = (1 - W.z)(h[t-1])")
