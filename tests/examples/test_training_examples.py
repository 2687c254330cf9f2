"""Every example runs by its one command and writes what the page is made of; what is to be learned is learned."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import write_page  # noqa: E402, the folder is the conftest's
from support.uncompiled_kernels import compiled_again  # noqa: E402
from training.model import ATTENTION, SequenceModel  # noqa: E402
from training.record import read_records, svg_of  # noqa: E402
from training.text import BLOCK_BYTES, split  # noqa: E402

from minrnn_gen.cell.files import library_names  # noqa: E402

TINY = {
    "parity": "--cells elman min_gru --time 6 --width 8 --batch 4 --tests 8",
    "selective_copy": "--cells min_lstm --layers 1 2 --time 6 --copied 2 --width 8 --batch 4 --tests 8",
    "char_lm": "--models slstm rg_lru torch.nn.GRU torch.nn.LSTM-bf16 attention --width 8 --heads 4 --batch 2 --time 8",
}
COLUMNS = {
    "parity": ["cell", "length 6", "length 12", "length 24", "length 48"],
    "selective_copy": ["cell", "1 layer", "2 layers"],
    "char_lm": ["model", "heads", "arithmetic", "parameters", "bits per byte", "step, ms", "bytes/s"],
}
TIMES = ("step, ms", "bytes/s")


def run(name: str, options: str, folder: Path) -> list[dict[str, Any]]:
    """Run an example's small setting on the CPU, with these options too; return the rows of its table."""
    example = importlib.import_module(name)
    assert example.main(["--small", "--device", "cpu", "--out", str(folder), *options.split()]) == 0
    return json.loads((folder / f"{name}_cpu.json").read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize("name", write_page.IN_TORCH)
def test_an_example_writes_its_table_its_record_and_its_plot(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run(name, f"{TINY[name]} --steps 2", tmp_path)
    printed = capsys.readouterr().out
    (record,) = read_records(tmp_path, name).values()
    assert record.is_complete and record.command == f"python examples/{name}.py --small {TINY[name]} --steps 2"
    assert [list(row) for row in rows] == [COLUMNS[name]] * len(rows)
    assert [row[COLUMNS[name][0]] for row in rows] == TINY[name].split(" --")[0].split()[1:]
    assert record.provenance in printed and record.table in printed and f"| {' | '.join(COLUMNS[name])} |" in printed

    # The same seed, the same numbers; times are another matter.
    again = run(name, f"{TINY[name]} --steps 2", tmp_path)
    assert [{key: row[key] for key in row if key not in TIMES} for row in again] == [
        {key: row[key] for key in row if key not in TIMES} for row in rows
    ]

    pytest.importorskip("matplotlib")
    plot = (tmp_path / f"{name}_cpu.svg").read_text(encoding="utf-8")
    assert all(f">{line.name}</text>" in plot for line in record.lines)
    assert svg_of(record) == svg_of(record)


@pytest.mark.matrix_full
def test_an_lstm_learns_parity_and_a_scan_does_not(tmp_path: Path) -> None:
    lstm, scan = run(
        "parity", "--cells lstm min_gru --time 8 --longer 1 4 --width 16 --batch 16 --steps 300 --tests 256", tmp_path
    )
    assert (lstm["length 8"], lstm["length 32"]) == (1, 1)
    # Of 256 random answers 128 are right, give or take 8; five times that.
    assert abs(scan["length 32"] - 0.5) < 5 * 8 / 256


@pytest.mark.matrix_full
def test_spiking_neurons_learn_to_tell_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = importlib.import_module("spiking_digits")
    assert example.main(["--small", "--device", "cpu", "--out", str(tmp_path)]) == 0
    told, untrained, rate = map(float, re.findall(r"(?:told:|untrained|step) ([0-9.]+)", capsys.readouterr().out))
    chance, deviation = 1 / example.SMALL.words, 0.5 / example.SMALL.tests**0.5
    assert abs(untrained - chance) < 6 * deviation and told > chance + 12 * deviation
    assert 0 < rate < 1


@pytest.mark.matrix_full
def test_audio_effects_learn_the_settings_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = importlib.import_module("audio_effects")
    assert example.main(["--small", "--device", "cpu", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    errors = [tuple(map(float, found)) for found in re.findall(r"error ([0-9.]+), then ([0-9.]+)", printed)]
    assert len(errors) == 2 and all(last < 0.02 * first for first, last in errors)
    learned = {name: float(value) for name, value in re.findall(r"(\w+) (-?[0-9.]+) of", printed)}
    assert learned == pytest.approx(learned | example.PHASER, abs=0.01)


def test_what_is_copied_is_what_was_there() -> None:
    copy = importlib.import_module("selective_copy")
    tokens, targets = copy.copies(32, copy.SMALL, torch.Generator().manual_seed(0), torch.device("cpu"))
    time, copied = copy.SMALL.time, copy.SMALL.copied
    for sequence, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
        assert [token for token in sequence[:time] if token != copy.NOISE] == wanted[time:]
        assert sequence[time:] == [copy.SMALL.letters + 1] * copied
        assert set(wanted[:time]) == {copy.IGNORED}


def test_the_language_models_are_of_every_cell_and_its_test_is_not_trained_on() -> None:
    language = importlib.import_module("char_lm")
    assert set(language.OF_HERE.split()) == set(library_names())
    whole = bytes(range(256)) * 1024  # 32 blocks, one of which is a 20th
    trained, tested = split(whole)
    assert len(trained) + len(tested) == len(whole) and len(tested) == BLOCK_BYTES
    pieces, following = next(language.batches(trained, language.SMALL, 0, torch.device("cpu")))
    assert torch.equal(pieces[:, 1:], following[:, :-1])


@pytest.mark.parametrize("mixer", [ATTENTION, "torch.nn.LSTM", "torch.nn.GRU-bf16", "gru", "min_lstm"])
def test_no_model_looks_ahead(mixer: str) -> None:
    torch.manual_seed(0)
    model = SequenceModel(mixer, tokens=5, classes=3, width=8, layers=2, heads=2, feed_forward=True)
    tokens = torch.randint(5, (2, 9))
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 5
    same = model(tokens) == model(changed)
    assert same[:, :6].all() and not same[:, 6:].all(-1).any()


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("parity", "--cells lsmt", "did you mean 'lstm'?"),
        ("parity", "--steps 0", "--steps is 0; numbers above 0 are expected"),
        ("selective_copy", "--copied 40", "--copied is 40; at most --time, which is 24, is expected"),
        ("char_lm", "--models attention --heads 3", "width is 64; a multiple of twice the heads"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    name: str, options: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = importlib.import_module(name)
    try:
        status = example.main(["--small", "--device", "cpu", "--out", str(tmp_path), *options.split()])
    except SystemExit as leave:  # argparse's own
        status = leave.code
    assert status == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_the_page_has_the_tables_of_the_records(tmp_path: Path) -> None:
    page = (write_page.ROOT / write_page.PAGE).read_text(encoding="utf-8")
    assert write_page.filled(page, write_page.RESULTS) == page, "run: python examples/write_page.py"
    empty = write_page.filled(page, tmp_path)
    assert all(f"Not measured yet; `python examples/{name}.py` does." in empty for name in write_page.EXAMPLES)
    assert "Made by" not in empty


@pytest.mark.gpu
# Of torch's own layers in 16 bits, once in a process.
@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk:UserWarning")
@pytest.mark.parametrize("name", write_page.IN_TORCH)
def test_an_example_runs_on_a_gpu(name: str, tmp_path: Path) -> None:
    example = importlib.import_module(name)
    sizes = TINY[name].replace("--width 8", "--width 64")
    with compiled_again():
        assert example.main(["--small", "--device", "cuda", "--out", str(tmp_path), *sizes.split(), "--steps", "2"]) == 0
    (record,) = read_records(tmp_path, name).values()
    assert record.device.startswith("an NVIDIA") and record.is_complete
