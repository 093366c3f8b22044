"""One self-contained page about a comparison: `comparison_page(found)`. It loads nothing and has no script."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from xml.etree.ElementTree import Element

from cosd_api.comparison.choice import LEAST_QUESTIONS
from cosd_api.comparison.contestants import LeftOut
from cosd_api.comparison.drawings import accuracy_bar, calibration_plot, frontier_plot, places_bar, share
from cosd_api.comparison.questions import questions_by_key
from cosd_api.comparison.report import limits_in_words
from cosd_api.comparison.result import Comparison, FailedAnswer, ModelCalibration, Standing
from cosd_api.errors import SettingError
from cosd_api.report.html.document import document, footer, section, table, text_of, without_credentials
from cosd_api.report.html.elements import Child, element, in_line, seconds, visible
from cosd_api.training.dataset import Example
from cosd_api.wording import counted, the

__all__ = [
    "about_results",
    "about_the_best",
    "comparison_page",
    "endpoints_table",
    "failures_table",
    "left_out_table",
    "results_table",
    "roles",
]

_FUSED = ("method", "baseline")
_MOST_ROWS = 50  # questions that are shown of each kind
_LONGEST = 600  # characters of a text that is shown
_ABOUT_ADVICE = (
    "Two fifths of the test questions chose the way to fuse, and the others tested it: the table below counts all of "
    "them, so its best may be another one."
)
_NO_ADVICE = (
    f"There is no advice here: it takes {LEAST_QUESTIONS} test questions that {{all}} models have answered, "
    "better a hundred."
)


def comparison_page(
    found: Comparison, *, examples: Iterable[Example] = (), title: str = "Does it help to fuse these models?"
) -> str:
    """The report of a comparison, as an HTML document.

    Args:
        found: the comparison; `Comparison.model_validate_json(text)` for a saved one.
        examples: the questions, to show them beside the answers: a comparison has only their keys.
        title: the headline.
    """
    several = [*examples]
    return document(
        title,
        _header(found, title),
        element("main", None, *_sections(found, questions_by_key(several) if several else {})),
        footer(found.library_version),
        style=text_of("page.css", "cosd_api.comparison"),
    )


def _sections(found: Comparison, examples: Mapping[str, Example]) -> Iterator[Element]:
    if found.warnings:
        yield section("Notes", *(element("p", "warning", visible(warning)) for warning in found.warnings))
    if (words := _advice(found)) is not None:
        yield section("Advice", element("p", None, visible(words)), element("p", "note", _ABOUT_ADVICE))
    notes = [*about_results(found), about_the_best()]
    if words is None and found.stopped is None:
        notes.append(element("p", "note", _NO_ADVICE.format(all="all" if found.more_assistants else "both")))
    yield section("Results", results_table(found), *notes)
    yield section("Quality and cost", frontier_plot(found))
    replaced = [one for one in found.standings if one.replaced is not None]
    if replaced:
        yield section("Who was right at the replaced places", _places(replaced), *_about_places())
    if found.calibration:
        yield section("Calibration", *_calibration(found))
    if (best := _best(found)) is not None:
        yield section("Questions that make the difference", *_questions(found, best, examples))
    if found.failures:
        yield section("Failed", failures_table(found.failures))
    if found.left_out:
        yield section("Left out", left_out_table(found.left_out))
    yield section("Endpoints", endpoints_table(found))


def _advice(found: Comparison) -> str | None:
    """Advice by the comparison, in words; None where it is not complete, or has too few questions."""
    if found.stopped is not None:
        return None
    try:
        return str(found.advice())
    except SettingError:
        return None


# The headline.


def _header(found: Comparison, title: str) -> Element:
    stopped = None
    if found.stopped is not None:
        stopped = element("p", "warning", f"This comparison is not complete: {in_line(found.stopped)}")
    return element(
        "header",
        None,
        element("p", "kicker", "cosd-api · a comparison"),
        element("h1", None, visible(title), dir="auto"),
        roles([one.model for one in found.models.values()], found.grader),
        element("p", "under", in_line(limits_in_words(found))),
        _figures(found),
        stopped,
    )


def roles(models: Sequence[str], grader: str) -> Element:
    """The line with the models by their roles, the draft first, and the grader."""
    draft, first, *more = (element("b", None, in_line(one)) for one in models)
    others: list[Child] = [first]
    for at, one in enumerate(more, 1):
        others += [" and " if at == len(more) else ", ", one]
    words = f" as the assistant{'s' * bool(more)} · graded by {in_line(grader)}"
    return element("p", "under", draft, " as the draft, ", *others, words)


def _figures(found: Comparison) -> Element:
    def one(number: str, words: str) -> Element:
        return element("li", None, element("b", None, number), " ", element("span", None, words))

    better, best = _named(found, found.better), _best(found)
    held = f"test questions, and {len(found.development):,} for development"
    figures = element("ul", "figures", one(f"{found.questions:,}", held))
    if better is not None and better.answered:
        figures.append(one(share(better.accuracy.value), f"right by the better model alone ({found.better})"))
    if best is not None:
        figures.append(one(share(best.accuracy.value), f"right by {in_line(best.name)}, the best of {_asking(found)}"))
        if best.difference is not None and not math.isnan(best.difference.value):
            low, high = (f"{100 * end:+z.1f}" for end in (best.difference.low, best.difference.high))
            words = f"points of difference (95 %: {low} to {high}), p = {_p(best.holm)}"
            figures.append(one(f"{100 * best.difference.value:+z.1f}", words))
    figures.append(one(f"{found.billed_tokens:,}", "tokens billed for the comparison"))
    return figures


def _asking(found: Comparison) -> str:
    return counted(sum(one.kind in _FUSED for one in found.standings), "method", "methods and baselines")


def _named(found: Comparison, name: str) -> Standing | None:
    return next((one for one in found.standings if one.name == name), None)


def _best(found: Comparison) -> Standing | None:
    """The method or baseline with the most right answers; of equals the one with the fewest tokens.

    One that failed, or was not asked everything, is not ahead for the answers that it lacks.
    """
    answered = [one for one in found.standings if one.kind in _FUSED and one.answered]
    return max(answered, key=lambda one: (one.right, -(one.billed or 0.0)), default=None)


# The table.


def results_table(found: Comparison) -> Element:
    """Table of the standings."""
    money = any(one.money is not None for one in found.standings)
    heads = (
        "",
        "right",
        "accuracy",
        "",
        "95 %",
        "difference",
        "95 %",
        "won",
        "lost",
        "p",
        "kept",
        "time",
        "requests",
        "tokens",
    )
    better = _named(found, found.better)
    mark = better.accuracy.value if better is not None else math.nan
    more = {"cached": _cached} if _reports_cached(found) else {}
    more |= {"per 1,000": _money} if money else {}
    rows = [(*_row(one, mark), *(cell(one) for cell in more.values())) for one in found.standings]
    made = table((*heads, *more), rows, range(4, 16), "Results of all contestants")
    for one, row in zip(found.standings, made.iterfind(".//tbody/tr"), strict=True):
        if one.name == found.better:
            row.set("class", "better")
    made.set("class", "scrolling whole")
    return made


def _row(one: Standing, mark: float) -> tuple[Child, ...]:
    counts = one.counts if one.counts is not None and one.counts.total else None
    return (
        in_line(one.name) + (" *" if one.on_frontier else ""),
        element("span", "short", f"{one.right} of {one.answered}" + (f", {one.failed} failed" if one.failed else "")),
        element("span", "short", share(one.accuracy.value)),
        accuracy_bar(one.accuracy, mark),
        f"{100 * one.accuracy.low:.0f} to {100 * one.accuracy.high:.0f}" if one.answered else "",
        "" if counts is None or one.difference is None else f"{100 * one.difference.value:+z.1f}",
        "" if counts is None or one.difference is None else _ends(one.difference.low, one.difference.high),
        "" if counts is None else str(counts.won),
        "" if counts is None else str(counts.lost),
        "" if one.holm is None else _p(one.holm),
        "" if one.acceptance is None else f"{one.acceptance:.0%}",
        "" if one.seconds is None else seconds(one.seconds),
        f"{sum(one.requests.values()):.1f}" if one.answered else "",
        "" if one.billed is None else f"{one.billed:,.0f}",
    )


def _ends(low: float, high: float) -> str:
    return f"{100 * low:+z.0f} to {100 * high:+z.0f}"


def _reports_cached(found: Comparison) -> bool:
    return any(any(one.cached.values()) for one in found.standings)


def _cached(one: Standing) -> str:
    return f"{sum(one.cached.values()):,.0f}" if one.answered else ""


def _money(one: Standing) -> str:
    return "" if one.money is None else f"{1000 * one.money:,.4g}"


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if value >= 0.0005 else "< 0.001"


def about_results(found: Comparison) -> Iterator[Element]:
    """Notes below the table of standings."""
    money = any(one.money is not None for one in found.standings)
    chose = "the development questions" if found.development else "these questions"
    which = "best" if found.more_assistants else "better"
    words = (
        f"Differences are to {the(found.better)} alone, which was {which} on {chose}; won and lost",
        "are questions that only one of the two answered right. Intervals: Wilson's for accuracies, Newcombe's method",
        "10 for differences. p: McNemar's exact test, adjusted by Holm for all contestants. kept: share of the draft's",
        "tokens. time: median. Requests and tokens: means of an answer,",
        "all models together." if found.more_assistants else "both models together.",
        "*: nothing is better for",
        "as many tokens.",
        *(["cached: those of them from the cache of a server."] if _reports_cached(found) else []),
        *(["per 1,000: the price of 1,000 answers."] if money else []),
    )
    yield element("p", "note", " ".join(words))


def about_the_best() -> Element:
    """Note where the best of many is shown."""
    words = "The best of many owes a part of its lead to luck: expect less of it on other questions."
    return element("p", "note", words)


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
    key = element("ul", "legend")
    for name, words in (
        ("assistant", "the assistant's text continues the reference"),
        ("draft", "the draft's does"),
        ("neither", "neither does"),
        ("unknown", "the answer had left the reference before"),
    ):
        key.append(element("li", None, element("span", f"swatch {name}"), f" {words}"))
    yield key
    words = "Answers: those with a replaced place; the grader says which of them the replacements put right or spoilt."
    yield element("p", "note", words)


# Calibration.


def _calibration(found: Comparison) -> Iterator[Element]:
    yield element("div", "pair", *(_one_calibration(found, name, one) for name, one in found.calibration.items()))
    words = "A rule that asks the assistant where the draft is unsure can mend only what the draft is unsure of."
    yield element("p", "note", words)


def _one_calibration(found: Comparison, name: str, one: ModelCalibration) -> Element:
    words = f"{in_line(found.models[name].model)} ({in_line(name)}): expected calibration error {one.mean.error:.2f}; "
    words += f"{share(one.mean.accuracy)} right, mean probability {one.mean.confidence:.2f}. "
    if one.least.wrong:
        wrong = counted(one.least.wrong, "wrong answer")
        words += f"Every token has at least {one.least.alpha:g} in {one.least.confident_wrong:,} of {wrong}."
    else:
        words += "No answer is wrong."
    return element("div", "stack", calibration_plot(name, one), element("p", "note", words))


# Questions.


def _questions(found: Comparison, best: Standing, examples: Mapping[str, Example]) -> Iterator[Element]:
    """Those that only one of the better model and the best method answers right."""
    theirs, mine = found.answers_of(found.better), found.answers_of(best.name)
    common = [key for key in mine if key in theirs]
    better, name = in_line(the(found.better)), in_line(best.name)
    for words, wins in ((f"Only {name} is right", True), (f"Only {better} alone is right", False)):
        keys = [key for key in common if mine[key].right is wins and theirs[key].right is not wins]
        if not keys:
            yield element("p", "note", f"{words}: no question.")
            continue
        rows: list[tuple[Child, ...]] = []
        for number, key in enumerate(keys[:_MOST_ROWS], 1):
            example = examples.get(key)
            asked = ("", "") if example is None else (_prompt(example), example.target or example.answer)
            texts = (*(asked if examples else ()), theirs[key].text, mine[key].text)
            rows.append((str(number), *(element("bdi", "said", _shown(text)) for text in texts)))
        heads = ("", *(("question", "reference") if examples else ()), f"{better} alone", name)
        made = table(heads, rows, range(0), words)
        made.set("class", "scrolling texts")
        more = f", of which {_MOST_ROWS} are shown" if len(keys) > _MOST_ROWS else ""
        yield element("div", None, element("p", "note", f"{words}: {counted(len(keys), 'question')}{more}."), made)


def _prompt(example: Example) -> str:
    if isinstance(example.prompt, str):
        return example.prompt
    return "\n\n".join(f"{one.role}: {one.content}" for one in example.prompt)


def _shown(text: str) -> str:
    return visible(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…").strip()


# The rest.


def failures_table(failures: Iterable[FailedAnswer]) -> Element:
    """Table of the contestants that failed, at how many questions, and why."""
    why = Counter((one.contestant, one.development, one.error) for one in failures)
    rows = [
        (in_line(name), counted(n, "development question" if held else "question"), visible(error))
        for (name, held, error), n in why.items()
    ]
    return table(("contestant", "questions", "because"), rows, range(0), "Failed")


def left_out_table(left_out: Iterable[LeftOut]) -> Element:
    """Table of the contestants that the endpoints cannot serve, and why."""
    reasons: dict[str, list[str]] = {}
    for out in left_out:
        reasons.setdefault(out.reason, []).append(out.name)
    rows = [(in_line(", ".join(names)), in_line(reason)) for reason, names in reasons.items()]
    return table(("contestants", "because"), rows, range(0), "Left out")


def endpoints_table(found: Comparison) -> Element:
    """Table of the models and their servers."""
    rows = [
        (
            in_line(one.name),
            visible(one.model),
            element("code", None, without_credentials(one.endpoint)),
            " ".join(filter(None, (visible(one.engine), visible(one.build or "")))),
        )
        for one in found.models.values()
    ]
    return table(("", "model", "endpoint", "server"), rows, range(0), "Endpoints")
