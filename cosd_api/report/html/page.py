"""One self-contained page about a fused answer: `page(result)`.

Nothing in it is loaded from anywhere, and its own policy forbids it. Drawings and tables are made here; the script only
shows cards, and without it the answer, the drawings and the tables are all there.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from importlib import resources
from xml.etree.ElementTree import Element

from cosd_api.report.html import acceptance, plane, tables, timeline
from cosd_api.report.html.answer import answer, legend
from cosd_api.report.html.markup import Child, counted, element, html, in_line, script_json, seconds, visible
from cosd_api.report.html.view import View
from cosd_api.report.judged import Judged, judged
from cosd_api.result import FusionResult
from cosd_api.verification import TreeVerifier

__all__ = ["page"]

_LARGEST_TREE = 31  # nodes: a full one of depth 4
_KEYS = "Move over a word, or press Tab and the arrow keys: ← → word by word, ↑ ↓ from one disagreement to the next."


def page(result: FusionResult, *, title: str = "A fused answer") -> str:
    """The report of one answer, as an HTML document.

    Args:
        result: the answer; `Trace.load(path).result` is one that was kept.
        title: its headline, such as the question: a result does not hold its prompt.
    """
    view = View(result)
    found = list(judged(result.tokens))
    style, script = _file("page.css"), _file("page.js")
    head = element(
        "head",
        None,
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("link", rel="icon", href="data:,"),
        element("title", None, in_line(title)),
        element("style", None, style),
    )
    body = element("body", None, *_header(view, title), element("main", None, *_sections(view, found)), _footer(result))
    body.append(element("div", "card", id="card", role="tooltip", hidden=""))
    body.append(element("script", None, script_json(_data(view, found)), id="data", type="application/json"))
    body.append(element("script", None, script))
    return html(element("html", None, head, body, lang="en"))


def _file(name: str) -> str:
    return resources.files("cosd_api.report.html").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Nothing from anywhere; of what is in the page only this style and this script run."""

    def fingerprint(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; style-src {fingerprint(style)}; script-src {fingerprint(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _data(view: View, found: list[Judged]) -> dict[str, object]:
    """What the script needs: the cards, and where the points of the plane are."""
    result = view.result
    return {
        "tokens": [asdict(view.token(at)) for at in range(len(result.tokens))],
        "requests": {timeline.key_of(request): asdict(view.request(request)) for request in result.requests},
        "points": plane.points(found),
        "decisive": sorted({one.at for one in found if one.kind != "agreed"}),
    }


def _header(view: View, title: str) -> Iterator[Element]:
    result = view.result
    judges = ", ".join(view.models[one.name] for one in result.assistants)
    verb = "is asked" if len(result.assistants) == 1 else "are asked"
    rule = plane.rule_in_words(result.settings.verifier)
    yield element(
        "header",
        None,
        element("p", "kicker", "cosd-api · why each token is there"),
        element("h1", None, visible(title), dir="auto"),
        element(
            "p",
            "under",
            element("b", None, view.models["draft"]),
            " drafts, ",
            element("b", None, judges),
            f" {verb} · {rule}",
        ),
        _figures(result),
        *_cut_short(result),
    )


def _figures(result: FusionResult) -> Element:
    def one(number: str, words: str) -> Element:
        return element("li", None, element("b", None, number), " ", element("span", None, words))

    per_token = result.timings.per_token
    asked = counted(result.assistant_requests, "question")
    return element(
        "ul",
        "figures",
        one(f"{result.acceptance_rate:.1%}".replace(".0%", "%"), "of the draft kept"),
        one(f"{result.replacements:,}", "replacement" if result.replacements == 1 else "replacements"),
        one(f"{len(result.tokens):,}", f"tokens in {counted(result.iterations, 'round')}"),
        one(f"{result.draft_requests + result.assistant_requests:,}", f"requests, {asked} among them"),
        one(seconds(result.timings.total), "" if per_token is None else f"{seconds(per_token)} per token"),
    )


def _cut_short(result: FusionResult) -> Iterator[Element]:
    if result.finish_reason == "error":
        yield element("p", "warning", f"The answer was cut short by an error: {in_line(result.stop_reason)}")


def _sections(view: View, found: list[Judged]) -> Iterator[Element]:
    result = view.result
    plotted = plane.figure(result.settings.verifier, found)
    over = acceptance.figure(result.tokens, result.acceptance_rate)
    yield _section(
        "The answer", answer(result), legend(result), element("p", "note scripted", _KEYS), classes="panel reading"
    )
    beside = element(
        "div",
        "stack",
        _section("How much of the draft was kept", over, _kept(result)),
        _section("How it was made", tables.settings(result)),
    )
    yield element("div", "pair", _section("Who was how sure", plotted, *_tree(result)), beside)
    yield _section("Who was at work when", timeline.figure(view))
    yield _section("Where they differed", tables.disagreements(view, found))
    yield _section("What it cost", tables.costs(view))
    yield _section("Who took part", tables.endpoints(result))
    if result.warnings:
        notes = (element("p", "warning", visible(warning)) for warning in result.warnings)
        yield _section("What to know about it", *notes)


def _tree(result: FusionResult) -> Iterator[Element]:
    """The tree that decided, if one did and it is small enough to be read."""
    verifier = result.settings.verifier
    if isinstance(verifier, TreeVerifier) and len(verifier.nodes) <= _LARGEST_TREE:
        yield element("pre", "tree", verifier.outline())


def _section(name: str, *children: Child, classes: str = "panel") -> Element:
    return element("section", classes, element("h2", None, name), *children)


def _kept(result: FusionResult) -> Element:
    judged_tokens = result.kept_tokens + result.replaced_tokens
    return element(
        "p",
        "note",
        f"{result.kept_tokens:,} of {counted(judged_tokens, 'draft token')} kept. Bars: a stretch of the answer each. "
        "Line: all of the answer so far. Ticks below: replacements.",
    )


def _footer(result: FusionResult) -> Element:
    words = f"cosd-api {visible(result.library_version)} · Nothing on this page is loaded from anywhere."
    return element("footer", None, words)
