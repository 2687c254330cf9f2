"""Timeline of a step or of a call as the cost model predicts it: its terms as bars, in sequence and stacked."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from minrnn_gen.plan.kernel_plan import SEQUENTIAL_TERMS, KernelPlan, total_us
from minrnn_gen.plan.summary import term_in_words
from minrnn_gen.report.drawing import PARTS

# Terms of a step of a stepwise kernel, in this order; the launch occurs once for all steps.
ORDER_OF_STEP = ("step", "shared_matrix", "products", "pointwise", "reduce_split_k", "rounds", "cells", "exchange", "prefetch")
LONG_STEP_US = 10.0  # from here on the times of a step are in us
LEAST_WIDTH = 0.7  # of the widths of all lanes, in hundredths: what is short is seen too


@dataclass(frozen=True)
class Span:
    """A term of the cost model from `start` to `end`."""

    term: str
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """Spans in a unit of time, and the subject of the timeline in words."""

    title: str
    words: str
    unit: str
    spans: tuple[Span, ...]


def timeline_of(plan: KernelPlan) -> Timeline:
    """Return the timeline of one step where the kernel goes step by step, else of a whole call."""
    terms = {name: us for name, us in plan.prediction.predicted_us.items() if us > 0}
    of_step = {name: terms[name] for name in ORDER_OF_STEP if name in terms}
    # Kernels that go step by step multiply in each; a scan may have an exchange, of its tiles.
    if "products" in of_step:
        per_us, unit = (1e3, "ns") if sum(of_step.values()) < LONG_STEP_US * plan.problem.time else (1.0, "us")
        spans = _spans({name: us * per_us / plan.problem.time for name, us in of_step.items()})
        words = f"Predicted, one thing after the other; the {plan.problem.time:,} steps of a call follow each other."
        return Timeline("Timeline of a step", words, unit, spans)
    launch = {name: us for name, us in terms.items() if name == "launch"}
    words = "Predicted, for all steps together. Bars above each other overlap, though never fully."
    return Timeline("Timeline of a call", words, "us", _spans({**launch, **terms}))


def _spans(terms: dict[str, float]) -> tuple[Span, ...]:
    """Return the begin and end of each term: sequential terms in order, overlapping ones at the same time."""
    overlapping = {name: value for name, value in terms.items() if name not in SEQUENTIAL_TERMS}
    together = float(total_us(overlapping)) if overlapping else 0.0
    spans, at, begun = [], 0.0, None
    for name, value in terms.items():
        if name in overlapping:
            if begun is None:
                begun, at = at, at + together
            spans.append(Span(name, begun, begun + value))
        else:
            spans.append(Span(name, at, at + value))
            at += value
    return tuple(spans)


def _digits(value: float) -> str:
    """Return a number with at least three digits, without an exponent where it is large."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def html_of(timeline: Timeline) -> str:
    """Return a timeline as a table with a lane for each term."""
    last = max((span.end for span in timeline.spans), default=1.0)
    rows = []
    for lane, span in enumerate(timeline.spans):
        x, width = 100 * span.start / last, max(100 * (span.end - span.start) / last, LEAST_WIDTH)
        drawn = (
            '<svg class="span" viewBox="0 0 100 10" preserveAspectRatio="none"><rect class="free" width="100" height="10"/>'
            f'<rect class="part{lane % PARTS}" x="{min(x, 100 - width):.2f}" width="{width:.2f}" height="10"/></svg>'
        )
        words, us = escape(term_in_words(span.term)), _digits(span.end - span.start)
        rows.append(f'<tr title="{escape(span.term)}"><th>{words}</th><td>{drawn}</td><td>{us}</td></tr>')
    return f'<table class="bars"><tr><th>term</th><th></th><th>{timeline.unit}</th></tr>{"".join(rows)}</table>'
