"""A comparison as plain text and as a page of HTML: a table, and findings in sentences."""

from __future__ import annotations

import base64
import hashlib
import io
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING, Any

from cosd_api.apps.comparison.statistics import Estimated
from cosd_api.apps.report.phrases import visible
from cosd_api.common.wording import counted, in_words, with_article, with_notes

if TYPE_CHECKING:
    from cosd_api.apps.comparison.standings import Advice, Comparison, Standing

WIDTH = 110
"""Characters per line of sentences."""
_WIDE = 1000  # the table is as wide as its content
_WIDTH, _HEIGHT = 760, 340  # of the plot's axes
_LABEL, _LINE = 150, 13  # of the longest label, about


def comparison_report(found: Comparison, advice: Advice) -> str:
    """Format the comparison as a table followed by sentences; the last paragraph is the advice (see `Advice`)."""
    last = f"Not complete: {found.stopped}." if found.stopped is not None else str(advice)
    parts = [_title(found), _table(found), *_notes(found), fill(last, WIDTH)]
    return with_notes("\n\n".join(parts), found.warnings)


def comparison_page(found: Comparison, advice: Advice) -> str:
    """Write the report of a comparison as an HTML document that loads nothing and runs no script."""
    from jinja2 import Environment, PackageLoader  # noqa: PLC0415 - needed only for a page

    environment = Environment(
        loader=PackageLoader("cosd_api.apps.comparison", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.finalize = _visible
    environment.filters["sha256"] = _sha256
    return environment.get_template("page.html.jinja").render(
        found=found,
        about=_title(found),
        advice=str(advice),
        table=_table(found),
        notes=[*_notes(found), *found.warnings],
        plot=_plot(found),
    )


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _visible(value: Any) -> Any:
    """Escape the hidden characters of a text."""
    return visible(value) if type(value) is str else value


def _title(found: Comparison) -> str:
    draft, *assistants = (one.model for one in found.models.values())
    words = f"{draft} as the draft, {in_words(assistants)} as the assistant{'s' * (len(assistants) > 1)}, graded by "
    words += f"{found.grader}: {counted(found.questions, 'test question')}"
    if found.clusters < found.questions:
        words += f" in {counted(found.clusters, 'group')}"
    if found.development:
        words += f", {len(found.development)} to set baselines"
    words += f"; answers of at most {counted(found.max_tokens, 'token')}"
    if found.stop:
        words += f", ending before {' or '.join(map(repr, found.stop))}"
    if found.unit is not None:
        words += f", by the unit {found.unit}"
    return f"{words}, seed {found.seed}"


# The table.


def _table(found: Comparison) -> str:
    """The table of standings, with one line for each contestant."""
    from rich.console import Console  # noqa: PLC0415 - needed only for a report
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    columns = _columns(found)
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for head, _ in columns:
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for one in found.standings:
        table.add_row(*(Text(cell(one)) for _, cell in columns))
    written = io.StringIO()
    Console(file=written, width=_WIDE, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def _columns(found: Comparison) -> list[tuple[str, Callable[[Standing], str]]]:
    """The columns of the table: each column's heading, and a function that makes its cells."""

    def known(value: float | None, shown: Callable[[float], str]) -> str:
        return "" if value is None or math.isnan(value) else shown(value)

    def right(one: Standing) -> str:
        failed = f" ({one.failed} failed, {100 * one.of_asked:.1f} of all)" if one.failed else ""
        return f"{one.right}/{one.answered}{failed}"

    columns: list[tuple[str, Callable[[Standing], str]]] = [
        ("", lambda one: one.name),
        ("right", right),
        ("accuracy", lambda one: known(one.accuracy.value, lambda value: f"{100 * value:.1f}")),
        ("95 %", lambda one: f"{100 * one.accuracy.low:.0f} to {100 * one.accuracy.high:.0f}" if one.answered else ""),
        *(
            (head, partial(_difference, name, at))
            for name in found.models
            for at, head in enumerate((f"to {name}", "95 %", "won:lost", "p"))
        ),
        *((head, partial(_difference, None, at)) for at, head in enumerate(("to ceiling", "95 %", "rescued:lost"))),
        ("kept", lambda one: known(one.acceptance, lambda value: f"{value:.0%}")),
        ("ms", lambda one: known(one.seconds, lambda value: f"{1000 * value:,.0f}")),
        ("requests", lambda one: f"{sum(one.requests.values()):.1f}" if one.answered else ""),
        ("tokens", lambda one: known(one.billed, lambda value: f"{value:,.0f}")),
    ]
    if any(any(one.cached.values()) for one in found.standings):
        columns.append(("cached", lambda one: f"{sum(one.cached.values()):,.0f}" if one.answered else ""))
    if any(one.money is not None for one in found.standings):
        columns.append(("per 1,000", lambda one: known(one.money, lambda value: f"{1000 * value:,.4g}")))
    return columns


def _difference(name: str | None, at: int, standing: Standing) -> str:
    """A cell of the difference to a model, or to the ceiling: points, interval, questions won and lost, or p."""
    one = standing.ceiling if name is None else standing.differences.get(name)
    if one is None or not one.counts.total:
        return ""
    interval = "" if one.interval is None else _interval(one.interval)
    p = "" if one.p is None else f"{one.p:.3f}" if one.p >= 0.0005 else "<0.001"
    return (f"{100 * one.value:+z.1f}", interval, f"{one.counts.won}:{one.counts.lost}", p)[at]


def _interval(one: Estimated) -> str:
    return f"{100 * one.low:+z.0f} to {100 * one.high:+z.0f}"


# Sentences.


def _notes(found: Comparison) -> Iterator[str]:
    """Yield the paragraphs between the table and the advice."""
    words = "Differences are to each model alone, in points, on the questions that both have answered. Their intervals "
    words += "hold simultaneously, and exclude 0 exactly if p is at most 0.05. Both come from sign flips, by the "
    words += "maximum over all differences of this table."
    if found.clusters < found.questions:
        words += " The questions of a group count as one."
    both = "both" if len(found.models) == 2 else "all"
    costs = f"kept: share of the draft's tokens. ms: median. Requests and tokens: means per answer, {both} endpoints "
    costs += "together."
    bill = f"Billed tokens: {found.billed_tokens:,}, {found.spent_tokens:,} of them in this run."
    yield from (fill(words, WIDTH), fill(costs, WIDTH), bill)
    if any(one.answered for one in found.standings if one.kind == "derived"):
        beta, low, high = (f"{100 * value:.1f}" for value in (found.beta.value, found.beta.low, found.beta.high))
        words = f"All models are wrong on {beta} % of the questions (beta, {low} to {high}). A router, vote or cascade "
        words += f"outputs one model's answer, so it has at most {100 * (1 - found.beta.value):.1f} % right: the "
        words += "ceiling. rescued: right though all models are wrong; lost: wrong though one is right. Their "
        words += "intervals hold for all ways simultaneously."
        yield fill(words, WIDTH)
    yield from (fill(one, WIDTH) for one in _findings(found))
    if found.failures:
        why = Counter((one.contestant, one.development, one.error) for one in found.failures)
        yield "Failed:\n" + "\n".join(
            f"  {name}, {counted(n, 'question')}{' that set baselines' * held}: {error}"
            for (name, held, error), n in why.items()
        )
    if found.left_out:
        reasons: dict[str, list[str]] = {}
        for one in found.left_out:
            reasons.setdefault(one.reason, []).append(one.name)
        yield "Left out:\n" + "\n".join(f"  {'; '.join(names)}: {reason}" for reason, names in reasons.items())


def _findings(found: Comparison) -> Iterator[str]:
    """Yield sentences on a grader that fits no answer, the ways that beat each model, and the effects of failures."""
    graded = [one for one in found.standings if one.answered]
    if graded and not any(one.right for one in graded):
        words = f"No answer of any model or way is right by the grader {found.grader}. Compare some answers with the "
        words += "references: another grader may fit them, such as 'contains' if the answers are sentences (--grader)."
        yield words
    tested = [one for one in found.standings if one.kind in ("method", "baseline") and one.differences]
    if not any(difference.interval is not None for one in tested for difference in one.differences.values()):
        return
    better = [one.name for one in tested if one.better_than_all]
    each = "both models" if len(found.models) == 2 else "each of the models"
    if better:
        yield f"Better than {each} alone, with an error of at most 5 % for all together: {in_words(better)}."
    else:
        yield f"No way is shown to be better than {each} alone, with an error of at most 5 % for all ways together."
    for one in tested:
        for name, apart in one.differences.items():
            if apart.interval and apart.bounded and apart.interval.low > 0 >= apart.bounded.low:
                yield (
                    f"{one.name} is ahead of {with_article(name)} only on the questions that both have answered "
                    f"({one.name} failed at {counted(one.failed, 'question')}, {with_article(name)} at "
                    f"{found[name].failed}): with these, the difference may be {_interval(apart.bounded)} points."
                )


# The plot.


def _plot(found: Comparison) -> Mapping[str, Any]:
    """Place the contestants by billed tokens (across, logarithmic) and accuracy (up), in pixels of the plot."""
    shown = [one for one in found.standings if one.billed and one.kind != "derived"]
    costs: Sequence[float] = [one.billed or 1.0 for one in shown] or [1.0]
    low, high = math.log(min(costs) / 1.5), math.log(max(costs) * 2)
    bottom = math.floor(10 * min([one.accuracy.low for one in shown], default=0)) / 10
    top = math.ceil(10 * max([one.accuracy.high for one in shown], default=1)) / 10

    def across(tokens: float) -> float:
        return round((math.log(tokens) - low) / (high - low) * _WIDTH, 1)

    def down(share: float) -> float:
        return round((top - share) / (top - bottom) * _HEIGHT, 1)

    taken: list[tuple[float, float]] = []
    labels: dict[str, float] = {}
    for one in sorted(shown, key=lambda one: -one.accuracy.value):  # labels move down until none overlaps
        x, y = across(one.billed or 1.0), down(one.accuracy.value)
        while any(abs(x - other) < _LABEL and abs(y - height) < _LINE for other, height in taken):
            y += 1
        taken.append((x, y))
        labels[one.name] = y
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "costs": [(across(cost), f"{cost:,.0f}") for cost in sorted({min(costs), max(costs)})],
        "shares": [(down(tenth / 10), f"{10 * tenth} %") for tenth in range(round(10 * bottom), round(10 * top) + 1)],
        "spots": [
            {
                "one": one,
                "x": across(one.billed or 1.0),
                "y": down(one.accuracy.value),
                "low": down(one.accuracy.low),
                "high": down(one.accuracy.high),
                "label": labels[one.name],
            }
            for one in shown
        ],
    }
