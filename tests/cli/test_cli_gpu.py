"""The command line where there is a GPU."""

from __future__ import annotations

import pytest
from support.command_runner import EXAMPLES, Command

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16", "bf16"])
@pytest.mark.parametrize("settings", [[], ["--set", "input_size=96"], ["--set", "layout=BDT"], ["--set", "model=rg_lru"]])
def test_run_keeps_the_tolerance_on_the_gpu(command: Command, precision: str, settings: list[str]) -> None:
    answer = command(
        "run",
        EXAMPLES / "min_gru.yaml",
        "--device",
        "cuda",
        "--set",
        f"precision={precision}",
        *settings,
        "--time",
        301,
        "--json",
    )
    assert (answer.status, answer.json["device"], answer.json["within_tolerance"]) == (0, "cuda", True)


def test_the_gpu_here_is_taken_and_named(command: Command) -> None:
    live = [gpu["name"] for gpu in command("gpus", "--json").json["gpus"] if gpu["live"]]
    report = command("compile", EXAMPLES / "min_gru.yaml", "--json").json
    assert ([report["gpu"]], report["gpu_chosen_by"]) == (live, "device")
    said = command("run", EXAMPLES / "min_gru.yaml")
    assert (said.status, said.error) == (0, "")
    assert "on the GPU here" in said.out
