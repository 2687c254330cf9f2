"""A check of a GPU as a page of Markdown, to attach to an issue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def markdown_of(check: Mapping[str, Any]) -> str:
    """Return the findings of a check, `GpuCheck.summary()`, as a page of Markdown."""
    sections = [
        f"# minrnn-gen check-gpu: {check['device']}",
        _listed([f"profile `{check['profile']}`, {check['checked_before'] or 'never run before'}", *_versions(check)]),
        f"## Faults\n\n{_listed(check['faults'])}",
        f"## Remarks\n\n{_listed(check['remarks'])}",
        "## Rates\n\n" + _table(("rate", "profile", "here", "ratio"), map(_rate_row, check["rates"]), "lrrr"),
        "## Kernels\n\nEach family once, next to the fp64 reference; of its tolerance an error may take 100 %.\n\n"
        + _table(("family", "problem", "pass", "outcome", "error", "time"), map(_kernel_row, check["kernels"]), "llllrr"),
        "## Picks\n\nThe cost model's pick and the fastest of the candidates raced with it.\n\n"
        + _table(("problem", "pass", "predicted", "pick", "fastest", "ratio", "of"), map(_pick_row, check["picks"]), "llrrrrr"),
    ]
    return "\n\n".join(sections) + "\n"


def _versions(check: Mapping[str, Any]) -> list[str]:
    kind = "with --quick: fewer problems" if check["is_quick"] else "every problem"
    versions = (f"{name} {version}" for name, version in check["versions"].items())
    return [f"compute capability {check['compute_capability']}", kind, *versions]


def _rate_row(rate: Mapping[str, Any]) -> Sequence[str]:
    known = "not measured" if rate["of_profile"] is None else f"{rate['of_profile']:.4g}"
    return rate["name"], known, f"{rate['here']:.4g}", _ratio(rate["ratio"])


def _kernel_row(kernel: Mapping[str, Any]) -> Sequence[str]:
    outcome = "right" if kernel["outcome"] == "measured" else kernel["outcome"]
    error = "-" if kernel["error_share"] is None else f"{kernel['error_share']:.1%}"
    return kernel["family"] or "-", kernel["problem"], kernel["kernel_pass"], outcome, error, _us(kernel["time_us"])


def _pick_row(pick: Mapping[str, Any]) -> Sequence[str]:
    times = (_us(pick[name]) for name in ("predicted_us", "pick_us", "best_us"))
    return pick["problem"], pick["kernel_pass"], *times, _ratio(pick["regret"]), str(pick["measured"])


def _us(time_us: float | None) -> str:
    return "-" if time_us is None else f"{time_us:,.1f} us"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def _listed(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {' '.join(sentence.split())}" for sentence in sentences) or "none"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], sides: str) -> str:
    """Return a table; `sides` has a letter for each column, r for numbers."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (headings, *rows)]
    if len(lines) == 1:
        return "none"
    rule = "|" + "|".join("---:" if side == "r" else "---" for side in sides) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
