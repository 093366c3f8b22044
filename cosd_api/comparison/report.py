"""Report of a comparison as plain text: the table of standings, and what it says about the models."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cosd_api.comparison.statistics import Estimated
from cosd_api.wording import counted, in_words, the, with_notes

if TYPE_CHECKING:
    from cosd_api.comparison.result import Comparison, ModelCalibration, Standing

__all__ = ["HEADS", "comparison_report", "limits_in_words", "roles_in_words", "standing_cells"]

HEADS = ("", "right", "accuracy", "95 %", "difference", "95 %", "won", "lost", "p", "kept", "ms", "requests", "tokens")
"""Column heads of the table of standings."""
_CACHED, _MONEY = "cached", "per 1,000"


def comparison_report(found: Comparison) -> str:
    """The comparison in words and a table."""
    rows = [standing_cells(one) for one in found.standings]
    heads = [*HEADS]
    if any(any(one.cached.values()) for one in found.standings):
        heads.append(_CACHED)
        for row, one in zip(rows, found.standings, strict=True):
            row.append(f"{sum(one.cached.values()):,.0f}" if one.answered else "")
    if any(one.money is not None for one in found.standings):
        heads.append(_MONEY)
        for row, one in zip(rows, found.standings, strict=True):
            row.append("" if one.money is None else f"{1000 * one.money:,.4g}")
    widths = [max(len(row[at]) for row in [heads, *rows]) for at in range(len(heads))]
    lines = [
        "  ".join(f"{cell:{'<' if not at else '>'}{widths[at]}}" for at, cell in enumerate(row)).rstrip()
        for row in [heads, *rows]
    ]
    parts = [_title(found), *lines, "", *_about_table(found)]
    parts += ["", *(_about_calibration(name, one) for name, one in found.calibration.items())]
    if places := [words for one in found.standings if (words := _about_places(one))]:
        parts += ["", "Replaced places, judged by the reference where the answer has followed it so far:", *places]
    if found.failures:
        why = Counter((one.contestant, one.development, one.error) for one in found.failures)
        parts += ["", "Failed:", *(_about_failures(*failed, n) for failed, n in why.items())]
    if found.left_out:
        reasons: dict[str, list[str]] = {}
        for out in found.left_out:
            reasons.setdefault(out.reason, []).append(out.name)
        parts += ["", "Left out:", *(f"  {'; '.join(names)}: {reason}" for reason, names in reasons.items())]
    if found.stopped is not None:
        parts += ["", f"Not complete: {found.stopped}."]
    return with_notes("\n".join(parts), found.warnings)


def _title(found: Comparison) -> str:
    words = f"{roles_in_words([one.model for one in found.models.values()])}, graded by {found.grader}: "
    words += f"{counted(found.questions, 'test question')}, {len(found.development)} for development"
    return f"{words}; {limits_in_words(found)}\n"


def roles_in_words(models: Sequence[str]) -> str:
    """The models by their roles: the draft, then the assistants."""
    draft, *assistants = models
    return f"{draft} as the draft, {in_words(assistants)} as the assistant{'s' * (len(assistants) > 1)}"


def limits_in_words(found: Comparison) -> str:
    """The limits with which the answers were made."""
    words = f"answers of at most {counted(found.max_tokens, 'token')}"
    if found.stop:
        words += f", ending before {' or '.join(map(repr, found.stop))}"
    if found.unit is not None:
        words += f", by the unit {found.unit}"
    return f"{words}, seed {found.seed}"


def _about_table(found: Comparison) -> list[str]:
    pair, better = len(found.models) == 2, found.models[found.better].model
    which, both = ("better of the two", "both") if pair else ("best of the models", "all")
    chose = "the development questions" if found.development else "these questions"
    return [
        f"Differences are to {better} ({found.better}), the {which} on {chose}.",
        "p: McNemar's exact test, adjusted by Holm. kept: the draft's tokens. ms: median. Requests and tokens: means",
        f"of an answer, {both} endpoints together. Names that end in *: no better answer costs fewer tokens.",
        f"Billed tokens: {found.billed_tokens:,}, {found.spent_tokens:,} of them in this run.",
    ]


def standing_cells(one: Standing) -> list[str]:
    """The cells of one standing; see `HEADS`."""
    failed = f" ({one.failed} failed)" if one.failed else ""
    counts = one.counts
    return [
        one.name + (" *" if one.on_frontier else ""),
        f"{one.right}/{one.answered}{failed}",
        _percent(one.accuracy.value),
        _interval(one.accuracy),
        "" if one.difference is None else _signed(one.difference.value),
        "" if one.difference is None else _interval(one.difference, signed=True),
        "" if counts is None or not counts.total else str(counts.won),
        "" if counts is None or not counts.total else str(counts.lost),
        "" if one.holm is None else f"{one.holm:.3f}" if one.holm >= 0.0005 else "<0.001",
        "" if one.acceptance is None else f"{one.acceptance:.0%}",
        "" if one.seconds is None else f"{1000 * one.seconds:,.0f}",
        f"{sum(one.requests.values()):.1f}" if one.answered else "",
        "" if one.billed is None else f"{one.billed:,.0f}",
    ]


def _percent(value: float) -> str:
    return "" if math.isnan(value) else f"{100 * value:.1f}"


def _signed(value: float) -> str:
    return "" if math.isnan(value) else f"{100 * value:+z.1f}"


def _interval(one: Estimated, *, signed: bool = False) -> str:
    if math.isnan(one.value):
        return ""
    sign = "+" if signed else ""
    return f"{100 * one.low:{sign}z.0f} to {100 * one.high:{sign}z.0f}"


def _about_calibration(name: str, one: ModelCalibration) -> str:
    mean, least = one.mean, one.least
    words = f"Calibration of {the(name)}: mean probability {mean.confidence:.2f}, right {mean.accuracy:.2f}; "
    words += f"expected calibration error {mean.error:.2f}"
    if least.wrong:
        words += f"; nowhere unsure in {least.confident_wrong} of {counted(least.wrong, 'wrong answer')}"
    return words + "."


def _about_failures(name: str, development: bool, error: str, n: int) -> str:
    return f"  {name}, {counted(n, 'development question' if development else 'question')}: {error}"


def _about_places(one: Standing) -> str:
    found = one.replaced
    if found is None or not found.places:
        return ""
    words = f"  {one.name}: {found.places:,}; the assistant's text was right at {found.assistant}, the draft's at "
    words += f"{found.draft}, neither at {found.neither}, not known at {found.unknown}; of "
    words += f"{counted(found.answers.total, 'answer')} with one, {found.answers.won} put right"
    return f"{words} and {found.answers.lost} spoilt"
