"""Every example in JAX runs by its one command and writes what the page is made of; what is to be learned is learned."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")

import numpy as np  # noqa: E402
import write_page  # noqa: E402, the folder is the conftest's
from support.uncompiled_kernels import compiled_again  # noqa: E402
from training.record import read_records  # noqa: E402

PARITY = "--time 6 --width 8 --batch 4 --tests 8"
TINY = {
    "jax_parity": f"--cells min_gru {PARITY}",
    "jax_flax": f"--cells gru min_lstm {PARITY}",
    "jax_equinox": f"--cells gru min_lstm {PARITY}",
    "jax_char_lm": "--models slstm rg_lru lax.scan-lstm --width 8 --heads 4 --batch 2 --time 8 --tests 1",
    "jax_recall": "--cells gru min_gru --environments 4 --time 12 --width 8 --tests 1",
}
LENGTHS = ["cell", "length 6", "length 12", "length 24", "length 48"]
COLUMNS = {
    "jax_parity": LENGTHS,
    "jax_flax": LENGTHS,
    "jax_equinox": LENGTHS,
    "jax_char_lm": ["model", "heads", "arithmetic", "parameters", "bits per byte", "step, ms", "bytes/s"],
    "jax_recall": ["cell", "before", "after", "reset at every step", "steps/s"],
}
TIMES = ("step, ms", "bytes/s", "steps/s")


@pytest.fixture(scope="module", autouse=True)
def _quick_to_compile() -> Iterator[None]:
    # Programs of a few elements: they take longer to optimise than to run.
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def imported(name: str) -> Any:
    """Import an example; it is skipped where its library is missing."""
    for library in ("flax", "equinox"):
        if name.endswith(library):
            pytest.importorskip(library, reason=f"{library} is not installed: pip install {library}")
    return importlib.import_module(name)


def run(name: str, options: str, folder: Path, device: str = "cpu") -> list[dict[str, Any]]:
    """Run an example's small setting, with these options too; return the rows of its table."""
    assert imported(name).main(["--small", "--device", device, "--out", str(folder), *options.split()]) == 0
    (path,) = folder.glob(f"{name}_*.json")
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


# A program takes a second or two to compile, even so.
SLOW = ("jax_char_lm", "jax_equinox", "jax_recall")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.matrix_full] * (name in SLOW)) for name in write_page.IN_JAX]
)
def test_an_example_writes_its_table_and_its_record(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run(name, f"{TINY[name]} --steps 2", tmp_path)
    printed = capsys.readouterr().out
    (record,) = read_records(tmp_path, name).values()
    assert record.is_complete and record.command == f"python examples/{name}.py --small {TINY[name]} --steps 2"
    assert "jax" in record.versions and "torch" not in record.versions
    assert [list(row) for row in rows] == [COLUMNS[name]] * len(rows)
    assert [row[COLUMNS[name][0]] for row in rows] == TINY[name].split(" --")[0].split()[1:]
    assert record.provenance in printed and record.table in printed


@pytest.mark.matrix_full
def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    first, second = (run("jax_recall", f"{TINY['jax_recall']} --steps 2", tmp_path) for _ in range(2))
    assert [{key: row[key] for key in row if key not in TIMES} for row in first] == [
        {key: row[key] for key in row if key not in TIMES} for row in second
    ]


@pytest.mark.matrix_full
def test_an_lstm_learns_parity_and_a_scan_does_not(tmp_path: Path) -> None:
    options = "--cells lstm min_gru --time 8 --longer 1 4 --width 16 --batch 16 --steps 300 --tests 256"
    lstm, scan = run("jax_parity", options, tmp_path)
    assert (lstm["length 8"], lstm["length 32"]) == (1, 1)
    # Of 256 random answers 128 are right, give or take 8; five times that.
    assert abs(scan["length 32"] - 0.5) < 5 * 8 / 256


@pytest.mark.matrix_full
def test_an_agent_remembers_a_cue_and_is_lost_without_memory(tmp_path: Path) -> None:
    options = "--cells gru --environments 128 --cues 2 --delay 2 --time 12 --width 16 --steps 80"
    (row,) = run("jax_recall", options, tmp_path)
    answers = 4 * 128 * 12 / 4  # four tests; an episode takes at most four steps
    assert row["after"] > 0.9
    # Random answers of two, give or take; five times that.
    assert abs(row["reset at every step"] - 0.5) < 5 * 0.5 / answers**0.5


@pytest.mark.matrix_full
def test_an_episode_shows_its_cue_once_and_pays_for_it_alone() -> None:
    recall = imported("jax_recall")
    agent = recall.Agent("gru", recall.Settings(environments=16, time=40, cues=3, delay=4, width=4))
    start = recall.world(agent, jax.random.key(0))
    _, steps = jax.jit(lambda params, start: recall.rollout(agent, params, start))(agent.init(jax.random.key(1)), start)
    shown = np.asarray(steps.observation)
    for environment in range(16):
        cue = None
        for step in range(40):
            begins, asks = bool(steps.begins[environment, step]), bool(steps.asks[environment, step])
            assert shown[environment, step, :3].sum() == begins and shown[environment, step, 3] == asks
            cue = int(shown[environment, step, :3].argmax()) if begins else cue
            is_right = asks and int(steps.action[environment, step]) == cue
            assert float(steps.reward[environment, step]) == is_right


@pytest.mark.matrix_full
def test_a_layer_by_lax_scan_is_ours() -> None:
    models = imported("training.jax_model")
    model = models.SequenceModel("lstm", tokens=5, classes=3, width=8, layers=2, feed_forward=True)
    by_scan = models.SequenceModel(models.BY_LAX_SCAN, tokens=5, classes=3, width=8, layers=2, feed_forward=True)
    params, tokens = model.init(jax.random.key(0)), np.arange(18).reshape(2, 9) % 5
    np.testing.assert_allclose(model.apply(params, tokens), by_scan.apply(params, tokens), rtol=1e-4, atol=1e-5)


def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = imported("jax_parity")
    assert example.main(["--small", "--device", "cpu", "--out", str(tmp_path), "--cells", "lsmt"]) == 2
    assert "did you mean 'lstm'?" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.gpu
@pytest.mark.parametrize("name", write_page.IN_JAX)
def test_an_example_runs_on_a_gpu(name: str, tmp_path: Path) -> None:
    if not importlib.import_module("training.library").JAX.has_gpu():
        pytest.skip("jax has no CUDA platform: pip install 'jax[cuda13]'")
    with compiled_again():
        run(name, f"{TINY[name].replace('--width 8', '--width 64')} --steps 2", tmp_path, "cuda")
    (record,) = read_records(tmp_path, name).values()
    assert record.device.startswith("an NVIDIA") and record.is_complete
