"""One self-contained page about advice: `advice_page(advice)`. It loads nothing and has no script."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from xml.etree.ElementTree import Element

from cosd_api.comparison.advice import Advice
from cosd_api.comparison.drawings import frontier_plot, share
from cosd_api.comparison.page import (
    about_results,
    about_the_best,
    endpoints_table,
    failures_table,
    left_out_table,
    results_table,
    roles,
)
from cosd_api.comparison.report import limits_in_words
from cosd_api.comparison.result import Comparison
from cosd_api.report.html.document import document, footer, section, text_of
from cosd_api.report.html.elements import element, in_line, visible
from cosd_api.wording import counted, the

__all__ = ["advice_page"]


def advice_page(advice: Advice, *, title: str | None = None) -> str:
    """The report of `advise`, as an HTML document: the advice, the test, the ways to choose from, and what failed.

    Args:
        advice: the advice; `Advice.model_validate_json(text)` for a saved one.
        title: the headline, by default a question.
    """
    title = title or f"Fuse these{' two' * (not advice.more_assistants)} models?"
    return document(
        title,
        _header(advice, title),
        element("main", None, *_sections(advice)),
        footer(advice.library_version),
        style=text_of("page.css", "cosd_api.comparison"),
    )


def _header(advice: Advice, title: str) -> Element:
    limits = [element("p", "under", in_line(limits_in_words(part))) for part in advice.parts[:1]]
    return element(
        "header",
        None,
        element("p", "kicker", "cosd-api · advice"),
        element("h1", None, visible(title), dir="auto"),
        roles([one.model for one in advice.models.values()], advice.grader),
        *limits,
        _figures(advice),
    )


def _figures(advice: Advice) -> Element:
    def one(number: str, words: str) -> Element:
        return element("li", None, element("b", None, number), " ", element("span", None, words))

    decisions = {"fuse": "fuse them", "alone": f"{the(advice.model)} alone", "unknown": "not known yet"}
    figures = element("ul", "figures", one(decisions[advice.decision], "is the advice"))
    if (better := advice.accuracy.get(advice.model)) is not None:
        figures.append(one(share(better.value), f"right by the better model alone ({advice.model})"))
    if (fused := advice.accuracy.get("fused")) is not None and advice.gain is not None:
        figures.append(one(share(fused.value), f"right by {in_line(advice.way or '')}"))
        low, high = (f"{100 * end:+z.1f}" for end in (advice.gain.low, advice.gain.high))
        figures.append(one(f"{100 * advice.gain.value:+z.1f}", f"points of gain (95 %: {low} to {high})"))
    figures.append(one(f"{advice.billed_tokens:,}", "tokens billed for it"))
    return figures


def _sections(advice: Advice) -> Iterator[Element]:
    if warnings := dict.fromkeys(chain.from_iterable(part.warnings for part in advice.parts)):
        yield section("Notes", *(element("p", "warning", visible(warning)) for warning in warnings))
    yield section("Advice", element("p", None, visible(str(advice))))
    if len(advice.parts) > 1:
        models = "each model" if advice.more_assistants else "both models"
        words = f"{counted(advice.others, 'question')} that had no part in the choice: {advice.way} beside {models}."
        part = advice.parts[-1]
        yield section("The test", element("p", "note", in_line(words)), results_table(part), *about_results(part))
    for part in advice.parts[:1]:
        yield _ways(advice, part)
        yield section("Quality and cost", frontier_plot(part))
    if failures := [*chain.from_iterable(part.failures for part in advice.parts)]:
        yield section("Failed", failures_table(failures))
    if advice.left_out:
        yield section("Left out", left_out_table(advice.left_out))
    for part in advice.parts[:1]:
        yield section("Endpoints", endpoints_table(part))


def _ways(advice: Advice, part: Comparison) -> Element:
    """The ways to choose from; of one comparison that advised, all of its contestants on all of its questions."""
    if len(advice.parts) == 1 and advice.way is not None:
        return section("Results", results_table(part), *about_results(part), about_the_best())
    words = f"{counted(part.questions, 'question')} that choose"
    if advice.way is not None:
        words += f": the first way, {advice.way}, was tested"
    elif advice.stopped is None:
        words += ": no way was ahead of the better model alone"
    ranked = results_table(_ranked(part))
    return section("Ways to choose from", element("p", "note", f"{in_line(words)}."), ranked, about_the_best())


def _ranked(part: Comparison) -> Comparison:
    """The comparison with the models first, and then the ways as they were chosen from: see `choose`."""
    order = sorted(part.standings, key=lambda one: (one.kind != "alone", -one.right, one.billed or 0.0))
    return part.model_copy(update={"standings": tuple(order)})
