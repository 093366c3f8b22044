"""A comparison as plain text: a table, and findings in sentences. The HTML page uses the same words and cells."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from cosd_api.comparison.advice import WIDTH, WORTH
from cosd_api.comparison.contestants import LeftOut
from cosd_api.comparison.contrasts import PairedDifference, ThirdModel
from cosd_api.comparison.standings import FailedAnswer, ModelCalibration, Standing
from cosd_api.comparison.statistics import Estimated
from cosd_api.extend import counted, in_words, with_article, with_notes

if TYPE_CHECKING:
    from cosd_api.comparison.result import Comparison


_HEADS = ("", "right", "accuracy", "95 %")
_COSTS = ("kept", "ms", "requests", "tokens")
MOST_NAMES = 40
"""Maximum length of a row's name in the table; longer lists of ways with equal texts are shortened."""


def heads_of(found: Comparison) -> list[str]:
    """The column headings of the table of standings; the four columns for the difference from a model are adjacent."""
    apart = [head for name in found.models for head in (f"to {name}", "95 %", "won:lost", "p")]
    return [*_HEADS, *apart, *_COSTS]


def rows_of(found: Comparison) -> list[Standing]:
    """The standings that have their own row; ways to fuse that wrote the same texts share the row of the cheapest."""
    return [one for one in found.standings if one.same_texts_as is None]


def same_texts(found: Comparison) -> dict[str, list[Standing]]:
    """Group the ways to fuse that wrote the same texts: map the cheapest one's name to the other standings."""
    several: dict[str, list[Standing]] = {}
    for one in found.standings:
        if one.same_texts_as is not None:
            several.setdefault(one.same_texts_as, []).append(one)
    return several


def row_name(one: Standing, same: Mapping[str, Sequence[Standing]]) -> str:
    """The name of a row: the names of all ways that share it or, if that is too long, one name and a count."""
    others = [other.name for other in same.get(one.name, ())]
    name = " = ".join([one.name, *others])
    if len(name) > MOST_NAMES:
        name = f"{one.name} = {counted(len(others), 'other')}"
    return name + (" *" if one.on_frontier else "")


def comparison_report(found: Comparison, worth: float = WORTH) -> str:
    """Format the comparison as a table followed by sentences; the last paragraph is the advice (see `Advice`)."""
    standings, same = rows_of(found), same_texts(found)
    more = optional_columns(standings)
    heads = [*heads_of(found), *more]
    rows = [
        [*standing_cells(one, found, same), *(cells[at] for cells in more.values())] for at, one in enumerate(standings)
    ]
    widths = [max(len(row[at]) for row in [heads, *rows]) for at in range(len(heads))]
    lines = [
        "  ".join(f"{cell:{'<' if not at else '>'}{widths[at]}}" for at, cell in enumerate(row)).rstrip()
        for row in [heads, *rows]
    ]
    parts = [_title(found), *lines, "", *map(_filled, about_standings(found))]
    parts += [f"Billed tokens: {found.billed_tokens:,}, {found.spent_tokens:,} of them in this run."]
    parts += ["", *map(_filled, findings(found))]
    parts += ["", *(_about_calibration(name, one) for name, one in found.calibration.items())]
    if places := [words for one in standings if (words := _about_places(one))]:
        parts += ["", "Replaced places, judged by the reference if the answer has followed it so far:", *places]
    if found.failures:
        parts += ["", "Failed:", *(f"  {name}, {n}: {error}" for name, n, error in failures_counted(found.failures))]
    if found.left_out:
        parts += ["", "Left out:"]
        parts += [f"  {'; '.join(names)}: {reason}" for reason, names in by_reason(found.left_out).items()]
    if found.stopped is not None:
        parts += ["", f"Not complete: {found.stopped}."]
    else:
        parts += ["", _filled(str(found.advice(worth=worth)))]
    return with_notes("\n".join(parts), found.warnings)


def _filled(words: str) -> str:
    return fill(words, WIDTH)


def _title(found: Comparison) -> str:
    words = f"{roles_in_words([one.model for one in found.models.values()])}, graded by {found.grader}: "
    words += counted(found.questions, "test question")
    if found.clusters < found.questions:
        words += f" in {counted(found.clusters, 'group')}"
    if found.development:
        words += f", {len(found.development)} to set baselines"
    return f"{words}; {limits_in_words(found)}\n"


def roles_in_words(models: Sequence[str]) -> str:
    """Name the models with their roles: the draft, then the assistants."""
    draft, *assistants = models
    return f"{draft} as the draft, {in_words(assistants)} as the assistant{'s' * (len(assistants) > 1)}"


def limits_in_words(found: Comparison) -> str:
    """Describe the limits of the answers."""
    words = f"answers of at most {counted(found.max_tokens, 'token')}"
    if found.stop:
        words += f", ending before {' or '.join(map(repr, found.stop))}"
    if found.unit is not None:
        words += f", by the unit {found.unit}"
    return f"{words}, seed {found.seed}"


def about_standings(found: Comparison) -> list[str]:
    """Write paragraphs that explain the columns and name the ways that share a row."""
    both = "both" if len(found.models) == 2 else "all"
    apart = "Differences are to each model alone, in points, on the questions that both have answered. "
    apart += "Their intervals hold simultaneously, and exclude 0 exactly if p is at most 0.05. Both come from sign "
    apart += "flips, by the maximum over all differences of this table."
    if found.clusters < found.questions:
        apart += " The questions of a group count as one; the numbers in brackets after won:lost are groups."
    costs = f"kept: share of the draft's tokens. ms: median. Requests and tokens: means per answer, {both} endpoints "
    costs += "together. A name that ends in *: nothing that bills fewer tokens comes within one standard error of it."
    return [
        apart,
        costs,
        *(
            f"{first} wrote the same texts as "
            f"{'; '.join(f'{one.name} ({one.billed or 0:,.0f} tokens)' for one in others)}: they share a row, which "
            f"has the numbers of {first}."
            for first, others in same_texts(found).items()
        ),
    ]


def findings(found: Comparison) -> list[str]:
    """Put the result into sentences: ways that beat each model, effects of failures, and the worth of a third model."""
    tested = [one for one in rows_of(found) if one.kind in ("method", "baseline") and one.differences]
    if not any(difference.interval is not None for one in tested for difference in one.differences.values()):
        return _about_the_grader(found)
    better = [one.name for one in tested if one.better_than_all]
    each = "both models" if len(found.models) == 2 else "each of the models"
    if better:
        words = f"Better than {each} alone, with an error of at most 5 % for all together: {in_words(better)}."
    else:
        words = f"No way is shown to be better than {each} alone, with an error of at most 5 % for all ways together."
    sentences = [*_about_the_grader(found), words, *_about_failures(tested, found)]
    if found.third is not None:
        sentences.append(third_in_words(found.third))
    elif found.more_assistants and len(found.models) == _TRIO:
        sentences.append(
            "Whether the third model is worth its price is not known: the ways to fuse two of the models have to be "
            "compared, too (--pairs)."
        )
    return sentences


_TRIO = 3


def _about_the_grader(found: Comparison) -> list[str]:
    """Write a sentence if no graded answer is right, because the grader may not fit the answers."""
    graded = [one for one in found.standings if one.answered]
    if not graded or any(one.right for one in graded):
        return []
    words = f"No answer of any model or way is right by the grader {found.grader!r}. Compare some answers with the "
    words += "references: another grader may fit them, such as 'contains' if the answers are sentences (--grader)."
    return [words]


def _about_failures(tested: Sequence[Standing], found: Comparison) -> list[str]:
    """Write a sentence about each significant gain that the failed questions could have cancelled."""
    sentences: list[str] = []
    for one in tested:
        doubtful = [
            (name, apart.bounded)
            for name, apart in one.differences.items()
            if apart.interval is not None and apart.bounded is not None and apart.interval.low > 0 >= apart.bounded.low
        ]
        for name, bounded in doubtful:
            sentences.append(
                f"{one.name} is ahead of {with_article(name)} only on the questions that both have answered "
                f"({one.name} failed at {counted(one.failed, 'question')}, {with_article(name)} at "
                f"{found[name].failed}): with these, the difference may be {_interval(bounded, signed=True)} points."
            )
    return sentences


def third_in_words(third: ThirdModel) -> str:
    """Say in a sentence whether a third model is worth its price."""
    apart, (three, two) = third.difference, third.billed
    words = f"The third model: {third.three}, the best way to fuse all three, is {_signed(apart.value)} points"
    if apart.interval is not None:
        words += f" ({_interval(apart.interval, signed=True)})"
    words += (
        f" to {third.two}, the best way to fuse two, and bills {three / two if two else math.inf:.1f} times the tokens"
    )
    if third.money is not None:
        words += f" ({1000 * third.money[0]:,.4g} instead of {1000 * third.money[1]:,.4g} for 1,000 answers)"
    if apart.low > 0 and three <= two:
        return f"{words}. So it gains, and costs nothing."
    if apart.low > 0:
        return f"{words}. So it gains; each additional right answer costs {(three - two) / apart.value:,.0f} tokens."
    if apart.interval is not None and apart.interval.high <= 0:
        return f"{words}. So it gains nothing."
    return f"{words}. A gain is not shown: on these questions, it is not worth its price."


def standing_cells(one: Standing, found: Comparison, same: Mapping[str, Sequence[Standing]]) -> list[str]:
    """The cells of one standing's row; see `heads_of`."""
    failed = f" ({one.failed} failed, {_percent(one.of_asked)} of all)" if one.failed else ""
    return [
        row_name(one, same),
        f"{one.right}/{one.answered}{failed}",
        _percent(one.accuracy.value),
        _interval(one.accuracy),
        *(cell for name in found.models for cell in difference_cells(one.differences.get(name))),
        "" if one.acceptance is None else f"{one.acceptance:.0%}",
        "" if one.seconds is None else f"{1000 * one.seconds:,.0f}",
        f"{sum(one.requests.values()):.1f}" if one.answered else "",
        "" if one.billed is None else f"{one.billed:,.0f}",
    ]


def difference_cells(one: PairedDifference | None) -> list[str]:
    """The four cells of a difference: value, interval, questions won and lost, and p."""
    if one is None or not one.counts.total:
        return [""] * 4
    groups = "" if one.groups is None else f" ({one.groups[0]}:{one.groups[1]})"
    return [
        _signed(one.value),
        "" if one.interval is None else _interval(one.interval, signed=True),
        f"{one.counts.won}:{one.counts.lost}{groups}",
        p_in_words(one.p),
    ]


def p_in_words(value: float | None) -> str:
    """Format a p-value with three decimals; an empty text if there is none."""
    return "" if value is None else f"{value:.3f}" if value >= 0.0005 else "<0.001"


def optional_columns(standings: Sequence[Standing]) -> dict[str, list[str]]:
    """Columns that are shown only if these standings have values for them: cached tokens, price of 1,000 answers."""
    found: dict[str, list[str]] = {}
    if any(any(one.cached.values()) for one in standings):
        found["cached"] = [f"{sum(one.cached.values()):,.0f}" if one.answered else "" for one in standings]
    if any(one.money is not None for one in standings):
        found["per 1,000"] = ["" if one.money is None else f"{1000 * one.money:,.4g}" for one in standings]
    return found


def failures_counted(failures: Iterable[FailedAnswer]) -> list[tuple[str, str, str]]:
    """Group failures by contestant and reason: the contestant, the number of questions in words, and the reason."""
    why = Counter((one.contestant, one.development, one.error) for one in failures)
    return [
        (name, counted(n, "question") + " that set baselines" * held, error) for (name, held, error), n in why.items()
    ]


def by_reason(left_out: Iterable[LeftOut]) -> dict[str, list[str]]:
    """Map each reason to the names of the contestants that were left out for it."""
    found: dict[str, list[str]] = {}
    for one in left_out:
        found.setdefault(one.reason, []).append(one.name)
    return found


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
    words = f"Calibration of {with_article(name)}: mean probability {mean.confidence:.2f}, right {mean.accuracy:.2f}; "
    words += f"expected calibration error {mean.error:.2f}"
    if least.wrong:
        words += f"; nowhere unsure in {least.confident_wrong} of {counted(least.wrong, 'wrong answer')}"
    return words + "."


def _about_places(one: Standing) -> str:
    found = one.replaced
    if found is None or not found.places:
        return ""
    words = f"  {one.name}: {found.places:,}; the assistant's text was right at {found.assistant}, the draft's at "
    words += f"{found.draft}, neither at {found.neither}, not known at {found.unknown}; of "
    words += f"{counted(found.answers.total, 'answer')} with one, {found.answers.won} put right"
    return f"{words} and {found.answers.lost} spoilt"
