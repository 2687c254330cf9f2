"""Decisions on record, so that a change of the cost model shows what it decides otherwise.

After a change that was meant: PYTHONPATH=tests python tests/plan/golden_plans.py.
Read the difference before it is committed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.planning_problems import real_solution

FOLDER = Path(__file__).parent / "golden"

# One file each: every cell and every GPU, layout, precision, pass and alignment, few channels and many.
CASES: tuple[dict[str, Any], ...] = (
    {"model": "min_gru", "gpu": "h200", "hidden_size": 1536, "precision": "fp32"},
    {"model": "min_gru", "gpu": "h200", "hidden_size": 1536, "precision": "bf16"},
    {"model": "min_gru", "gpu": "h200", "hidden_size": 512, "precision": "bf16", "layout": "BDT"},
    {"model": "min_gru", "gpu": "h100", "hidden_size": 33, "precision": "bf16"},
    {"model": "min_lstm", "gpu": "h200", "hidden_size": 1536, "precision": "fp32"},
    {"model": "min_lstm", "gpu": "t4", "hidden_size": 768, "precision": "fp16"},
    {"model": "hgrn", "gpu": "a100", "hidden_size": 1024, "precision": "fp32", "layout": "TBD"},
    {"model": "qrnn", "gpu": "b200", "hidden_size": 2048, "precision": "bf16"},
    {"model": "rg_lru", "gpu": "rtx5090", "hidden_size": 2560, "precision": "fp64"},
    {"model": "rg_lru", "gpu": "l4", "hidden_size": 5, "precision": "fp32", "layout": "BDT", "alignment_bytes": 4},
    {"model": "min_gru_log", "gpu": "rtx3090", "hidden_size": 64, "precision": "fp16"},
    {"model": "min_lstm_log", "gpu": "l40s", "hidden_size": 1 << 20, "precision": "bf16"},
    {"model": "min_gru_tanh", "gpu": "rtx4090", "hidden_size": 512, "precision": "fp32", "kernel_pass": "step"},
    {"model": "gru", "gpu": "h200", "hidden_size": 1024, "precision": "bf16"},
    {"model": "lstm", "gpu": "h200", "hidden_size": 768, "precision": "fp32", "kernel_pass": "backward", "heads": 4},
    {"model": "slstm", "gpu": "t4", "hidden_size": 64, "precision": "fp64", "kernel_pass": "backward"},
    {"model": "elman", "gpu": "a100", "hidden_size": 256, "precision": "fp16", "kernel_pass": "step"},
    {"model": "lstm", "gpu": "h200", "hidden_size": 512, "precision": "bf16", "kernel_pass": "step"},
    {"model": "lstm", "gpu": "h100", "hidden_size": 256, "precision": "bf16"},
    {"model": "gru", "gpu": "rtx4090", "hidden_size": 512, "precision": "fp16", "kernel_pass": "backward", "heads": 8},
    {"model": "lstm", "gpu": "h200", "hidden_size": 512, "precision": "fp32", "fp32_product": "tf32"},
    {"model": "gru", "gpu": "a100", "hidden_size": 256, "fp32_product": "tf32", "kernel_pass": "backward"},
    {"model": "lstm", "gpu": "h200", "hidden_size": 2048, "precision": "bf16", "batch": 1024},
    {"model": "gru", "gpu": "h100", "hidden_size": 2048, "precision": "fp16", "kernel_pass": "backward", "batch": 256},
    {"model": "ind_rnn", "gpu": "h200", "hidden_size": 512, "precision": "fp32"},
    {"model": "ind_rnn", "gpu": "h200", "hidden_size": 1536, "precision": "bf16", "kernel_pass": "backward"},
    {"model": "ind_rnn", "gpu": "a100", "hidden_size": 512, "precision": "bf16", "layout": "BDT"},
)
# What is decided and what is promised; the predictions that led there change with every measurement.
DECIDED = ("template", "arch", "variables", "threads", "copy_bytes", "copies_are_asynchronous", "functions")
PROMISED = ("registers_per_thread", "shared_bytes", "blocks_per_sm")


def file_of(case: dict[str, Any]) -> Path:
    return FOLDER / f"{'-'.join(str(value) for value in case.values())}.json"


def decision(case: dict[str, Any]) -> dict[str, Any]:
    plan = real_solution(**case).plan().to_json()
    plain = plan | plan["problem"] | plan["launch"] | plan["budget"] | {"template": f"{plan['name']}.cu.j2"}
    return {"case": case, "decided": {key: plain[key] for key in DECIDED}, "promised": {key: plain[key] for key in PROMISED}}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        path.unlink()
    for case in CASES:
        file_of(case).write_text(json.dumps(decision(case), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
