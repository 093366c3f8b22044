"""A self-contained HTML page without scripts or external files: `comparison_page(found)`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from xml.etree.ElementTree import Element

from cosd_api import Example
from cosd_api.comparison.contestants import LeftOut
from cosd_api.comparison.contrasts import PairedDifference
from cosd_api.comparison.drawings import accuracy_bar, calibration_plot, frontier_plot, places_bar, share
from cosd_api.comparison.questions import prompt_text, questions_by_key
from cosd_api.comparison.report import (
    about_standings,
    by_reason,
    difference_cells,
    failures_counted,
    findings,
    limits_in_words,
    optional_columns,
    p_in_words,
    row_name,
    rows_of,
    same_texts,
)
from cosd_api.comparison.result import (
    Comparison,
    standing_of,
)
from cosd_api.comparison.standings import FailedAnswer, ModelCalibration, Standing
from cosd_api.comparison.statistics import Estimated
from cosd_api.extend import counted, with_article
from cosd_api.report.html.charts import swatch
from cosd_api.report.html.document import (
    document,
    endpoint_cells,
    figure,
    footer,
    header,
    note,
    section,
    table,
    text_of,
    warnings,
)
from cosd_api.report.html.elements import Child, element, in_line, seconds, visible

_FUSED = ("method", "baseline")
_MOST_ROWS = 50  # maximum number of questions shown, for each kind of difference
_LONGEST = 600  # maximum number of characters shown of a text


def comparison_page(
    found: Comparison, *, examples: Iterable[Example] = (), title: str = "Does it help to fuse these models?"
) -> str:
    """Write the report of a comparison as an HTML document.

    Args:
        found: the comparison; `Comparison.model_validate_json(text)` reads a saved one.
        examples: the questions to show next to the answers; the comparison itself contains only their keys.
        title: the headline.
    """
    several = [*examples]
    stopped = None
    if found.stopped is not None:
        stopped = element("p", "warning", f"This comparison is not complete: {in_line(found.stopped)}")
    return _document(
        title,
        header(
            "a comparison",
            title,
            _roles([one.model for one in found.models.values()], found.grader),
            element("p", "under", in_line(limits_in_words(found))),
            element("ul", "figures", *_figures(found)),
            stopped,
        ),
        _sections(found, questions_by_key(several) if several else {}),
        found.library_version,
    )


def _document(title: str, top: Element, sections: Iterable[Element], version: str) -> str:
    main = element("main", None, *sections)
    return document(title, top, main, footer(version), style=text_of("page.css", "cosd_api.comparison"))


def _sections(found: Comparison, examples: Mapping[str, Example]) -> Iterator[Element]:
    if found.warnings:
        yield warnings(found.warnings)
    yield section("Advice", element("p", None, visible(str(found.advice()))))
    shown = [note(in_line(words)) for words in findings(found)]
    notes = [*shown, _about_results(found), _about_the_best()]
    yield section("Results", _results_table(found), *notes)
    yield section("Quality and cost", frontier_plot(found))
    replaced = [one for one in rows_of(found) if one.replaced is not None]
    if replaced:
        yield section("Who was right at the replaced places", _places(replaced), *_about_places())
    if found.calibration:
        yield section("Calibration", *_calibration(found))
    if (best := _best(found)) is not None:
        yield section("Questions that make the difference", *_questions(found, best, examples))
    if found.failures:
        yield section("Failed", _failures_table(found.failures))
    if found.left_out:
        yield section("Left out", _left_out_table(found.left_out))
    yield section("Endpoints", _endpoints_table(found))


def _roles(models: Sequence[str], grader: str) -> Element:
    """Make the line that names the models, with their roles, and the grader."""
    draft, first, *more = (element("b", None, in_line(one)) for one in models)
    others: list[Child] = [first]
    for at, one in enumerate(more, 1):
        others += [" and " if at == len(more) else ", ", one]
    words = f" as the assistant{'s' * bool(more)} · graded by {in_line(grader)}"
    return element("p", "under", draft, " as the draft, ", *others, words)


def _figures(found: Comparison) -> Iterator[Element]:
    held = f", and {len(found.development):,} to set baselines" if found.development else ""
    yield figure(f"{found.questions:,}", f"test questions{held}")
    better, best = standing_of(found, found.better), _best(found)
    if better is not None and better.answered:
        yield figure(share(better.accuracy.value), f"right by the better model alone ({found.better})")
    if best is not None:
        several = counted(sum(one.kind in _FUSED for one in found.standings), "method", "methods and baselines")
        yield figure(share(best.accuracy.value), f"right by {in_line(best.name)}, the best of {several}")
        apart = best.differences.get(found.better)
        if apart is not None and apart.interval is not None:
            words = f"points of difference ({_interval(apart.interval)}), p = {p_in_words(apart.p)}"
            yield figure(f"{100 * apart.value:+z.1f}", words)
    yield figure(f"{found.billed_tokens:,}", "tokens billed for the comparison")


def _interval(one: Estimated) -> str:
    return f"95 %: {100 * one.low:+z.1f} to {100 * one.high:+z.1f}"


def _best(found: Comparison) -> Standing | None:
    """Find the method or baseline with the most right answers; ties go to the one with the fewest billed tokens.

    The ranking uses the number of right answers rather than their share, because missing answers must not be an
    advantage.
    """
    answered = [one for one in found.standings if one.kind in _FUSED and one.answered]
    return max(answered, key=lambda one: (one.right, -(one.billed or 0.0)), default=None)


# The table.


def _results_table(found: Comparison) -> Element:
    better, standings, same = standing_of(found, found.better), rows_of(found), same_texts(found)
    mark = better.accuracy.value if better is not None else math.nan
    more = optional_columns(standings)
    heads = (
        "",
        "right",
        "accuracy",
        "",
        *(f"to {name}" for name in found.models),
        "kept",
        "time",
        "requests",
        "tokens",
    )
    rows = [
        (*_row(one, found, same, mark), *(cells[at] for cells in more.values())) for at, one in enumerate(standings)
    ]
    made = table((*heads, *more), rows, range(4, len(heads) + len(more)), "Results of all contestants")
    for one, row in zip(standings, made.iterfind(".//tbody/tr"), strict=True):
        if one.name == found.better:
            row.set("class", "better")
    made.set("class", "scrolling whole")
    return made


def _row(one: Standing, found: Comparison, same: Mapping[str, Sequence[Standing]], mark: float) -> tuple[Child, ...]:
    within = f"{100 * one.accuracy.low:.0f} to {100 * one.accuracy.high:.0f}" if one.answered else ""
    return (
        in_line(row_name(one, same)),
        _lines(
            f"{one.right} of {one.answered}",
            f"{one.failed} failed ({share(one.of_asked)} of all)" if one.failed else "",
        ),
        _lines(share(one.accuracy.value), within),
        accuracy_bar(one.accuracy, mark),
        *(_difference(one.differences.get(name)) for name in found.models),
        "" if one.acceptance is None else f"{one.acceptance:.0%}",
        "" if one.seconds is None else seconds(one.seconds),
        f"{sum(one.requests.values()):.1f}" if one.answered else "",
        "" if one.billed is None else f"{one.billed:,.0f}",
    )


def _difference(one: PairedDifference | None) -> Child:
    """Make one cell with a difference, its interval, the questions won and lost, and p; four columns would not fit."""
    value, interval, counts, p = difference_cells(one)
    return _lines(value, interval, f"{counts}, p = {p}" if p else counts)


def _lines(first: str, *below: str) -> Element:
    made = element("div", "short", first)
    made.extend(element("div", "below", one) for one in below if one)
    return made


def _about_results(found: Comparison) -> Element:
    more = optional_columns(found.standings)
    words = (
        *about_standings(found),
        "Intervals of accuracies are Wilson's, of 95 %.",
        *(["cached: tokens from the cache of a server."] if "cached" in more else []),
        *(["per 1,000: the price of 1,000 answers."] if "per 1,000" in more else []),
    )
    return note(in_line(" ".join(words)))


def _about_the_best() -> Element:
    """Explain that the best of many contestants looks better than it is."""
    return note("The best of many owes part of its lead to luck: expect less of it on other questions.")


# Replaced places.


def _places(standings: Sequence[Standing]) -> Element:
    rows: list[tuple[Child, ...]] = []
    for one in standings:
        counts = one.replaced
        assert counts is not None
        numbers = (counts.places, counts.assistant, counts.draft, counts.neither, counts.unknown)
        answers = counts.answers
        texts = (*(f"{number:,}" for number in numbers), f"{answers.total:,}", f"{answers.won:,}", f"{answers.lost:,}")
        rows.append((in_line(one.name), places_bar(counts), *texts))
    heads = ("", "", "places", "assistant", "draft", "neither", "not known", "answers", "put right", "spoilt")
    return table(heads, rows, range(2, 10), "Who was right at the replaced places")


def _about_places() -> Iterator[Element]:
    yield element(
        "ul",
        "legend",
        swatch("assistant", "the assistant's text continues the reference"),
        swatch("draft", "the draft's does"),
        swatch("neither", "neither does"),
        swatch("unknown", "the answer had already left the reference"),
    )
    words = (
        "Answers: answers with a replaced place. The grader says which of them the replacements put right or spoilt."
    )
    yield note(words)


# Calibration.


def _calibration(found: Comparison) -> Iterator[Element]:
    yield element("div", "pair", *(_one_calibration(found, name, one) for name, one in found.calibration.items()))
    yield note("A rule that asks the assistant where the draft is unsure can correct only what the draft is unsure of.")


def _one_calibration(found: Comparison, name: str, one: ModelCalibration) -> Element:
    words = f"{in_line(found.models[name].model)} ({in_line(name)}): expected calibration error {one.mean.error:.2f}; "
    words += f"{share(one.mean.accuracy)} right, mean probability {one.mean.confidence:.2f}. "
    if one.least.wrong:
        wrong = counted(one.least.wrong, "wrong answer")
        words += f"Every token has at least {one.least.alpha:g} in {one.least.confident_wrong:,} of {wrong}."
    else:
        words += "No answer is wrong."
    return element("div", "stack", calibration_plot(name, one), note(words))


# Questions.


def _questions(found: Comparison, best: Standing, examples: Mapping[str, Example]) -> Iterator[Element]:
    """Show the questions that either only the best method or only the better model answered right."""
    theirs, mine = found.answers_of(found.better), found.answers_of(best.name)
    common = [key for key in mine if key in theirs]
    better, name = in_line(with_article(found.better)), in_line(best.name)
    for words, wins in ((f"Only {name} is right", True), (f"Only {better} alone is right", False)):
        keys = [key for key in common if mine[key].right is wins and theirs[key].right is not wins]
        if not keys:
            yield note(f"{words}: no question.")
            continue
        rows: list[tuple[Child, ...]] = []
        for number, key in enumerate(keys[:_MOST_ROWS], 1):
            example = examples.get(key)
            asked = ("", "") if example is None else (prompt_text(example), example.target or example.answer)
            texts = (*(asked if examples else ()), theirs[key].text, mine[key].text)
            rows.append((str(number), *(element("bdi", "said", _shown(text)) for text in texts)))
        heads = ("", *(("question", "reference") if examples else ()), f"{better} alone", name)
        made = table(heads, rows, range(0), words)
        made.set("class", "scrolling texts")
        more = f", of which {_MOST_ROWS} are shown" if len(keys) > _MOST_ROWS else ""
        yield element("div", None, note(f"{words}: {counted(len(keys), 'question')}{more}."), made)


def _shown(text: str) -> str:
    return visible(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…").strip()


# The rest.


def _failures_table(failures: Iterable[FailedAnswer]) -> Element:
    rows = [(in_line(name), number, visible(error)) for name, number, error in failures_counted(failures)]
    return table(("contestant", "questions", "because"), rows, range(0), "Failed")


def _left_out_table(left_out: Iterable[LeftOut]) -> Element:
    rows = [(in_line(", ".join(names)), in_line(reason)) for reason, names in by_reason(left_out).items()]
    return table(("contestants", "because"), rows, range(0), "Left out")


def _endpoints_table(found: Comparison) -> Element:
    rows = [endpoint_cells(one) for one in found.models.values()]
    return table(("", "model", "endpoint", "server"), rows, range(0), "Endpoints")
