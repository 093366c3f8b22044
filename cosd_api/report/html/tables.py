"""The tables of the page: disagreements, cost, endpoints, settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element

from cosd_api.report.html.markup import Child, counted, element, in_line, name_of, prob, seconds, visible
from cosd_api.report.html.plane import rule_in_words
from cosd_api.report.html.view import View
from cosd_api.report.judged import Judged
from cosd_api.result import FusionResult

__all__ = ["costs", "disagreements", "endpoints", "settings"]

_MOST = 100  # rows: the page stays quick, and `cosd explain` prints them all


def _table(heads: Sequence[str], rows: Iterable[Sequence[Child]], numbers: range, caption: str) -> Element:
    """A table whose first cells name their rows; the columns in `numbers` are set to the right."""
    table = element("table", "wide" if len(heads) > 2 else None, element("caption", None, caption))
    first = element("tr")
    for at, head in enumerate(heads):
        first.append(element("th", "number" if at in numbers else None, head, scope="col"))
    table.append(element("thead", None, first))
    body = element("tbody")
    for row in rows:
        line = element("tr")
        for at, cell in enumerate(row):
            made = element("td", "number", cell) if at in numbers else element("td", None, cell)
            line.append(made if at else element("th", None, cell, scope="row"))
        body.append(line)
    table.append(body)
    return element("div", "scrolling", table)


def disagreements(view: View, found: Sequence[Judged]) -> Element:
    """Where an assistant wrote something else: a row each."""
    differing = [one for one in found if one.kind != "agreed"]
    if not differing:
        return element("p", "note", "Whoever was asked wrote what the draft wrote.")
    words = {"kept": "kept", "replaced": "replaced", "outvoted": "another was surer"}
    rows = (
        (
            element("a", None, str(one.at + 1), href=f"#t{one.at}", data_go=one.at),
            _name(one.decision.draft_text),
            _short(prob(one.decision.draft_prob)),
            _name(view.word(one.at)[1] if one.kind == "replaced" else one.decision.text),
            _short(prob(one.decision.prob)),
            element("span", f"verdict {one.kind}", words[one.kind]),
            in_line(one.decision.reason),
            in_line(f"{one.decision.assistant}{f', by {one.decision.strategy}' if one.decision.strategy else ''}"),
            str(view.result.tokens[one.at].round),
        )
        for one in islice(differing, _MOST)
    )
    heads = ("token", "draft", "p", "assistant", "q", "", "decided", "asked", "round")
    table = _table(heads, rows, range(0), "Disagreements, in the order of the answer")
    if len(differing) <= _MOST:
        return table
    more = f"{len(differing) - _MOST:,} more: move over the answer, or print them all with `cosd explain`."
    return element("div", None, table, element("p", "note", more))


def _short(words: str) -> Element:
    return element("span", "short", words)


def _name(text: str) -> Element:
    return element("bdi", "said", name_of(text, end=True))


def costs(view: View) -> Element:
    """What was sent to each endpoint and billed, and the sum."""
    usage = view.result.usage
    rows = [
        (
            view.who(name),
            f"{one.requests:,}",
            f"{one.retries:,}",
            f"{one.prompt_tokens:,}",
            f"{one.cached_tokens:,}",
            f"{one.completion_tokens:,}",
            seconds(one.first_token_seconds),
            seconds(one.busy_seconds),
        )
        for name, one in usage.items()
    ]
    fields = ("requests", "retries", "prompt_tokens", "cached_tokens", "completion_tokens")
    sums = (f"{sum(getattr(one, field) for one in usage.values()):,}" for field in fields)
    heads = ("", "requests", "sent again", "read", "of it cached", "written", "first answer", "busy")
    caption = "Requests, and tokens as the servers bill them"
    return _table(heads, [*rows, ("together", *sums, "", "")], range(1, 8), caption)


def endpoints(result: FusionResult) -> Element:
    """The models and servers."""
    rows = [
        (
            in_line(one.name),
            visible(one.model),
            element("code", None, _without_credentials(one.endpoint)),
            " ".join(filter(None, (visible(one.engine), visible(one.build or "")))),
            "–" if one.context is None else f"{one.context:,}",
        )
        for one in (result.draft, *result.assistants)
    ]
    return _table(("", "model", "endpoint", "server", "context"), rows, range(4, 5), "Endpoints")


def _without_credentials(url: str) -> str:
    """An endpoint without a user, a password or a query. Results hold none of these; a file may have been edited."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return visible(parts._replace(netloc=host, query="", fragment="").geturl())
    except ValueError:
        return "?"


def settings(result: FusionResult) -> Element:
    """How the answer was made, and how it ended."""
    chosen = result.settings
    defaults = type(chosen).model_fields
    rows: list[tuple[str, Child]] = [
        ("verifier", rule_in_words(chosen.verifier)),
        ("unit", f"judged by {chosen.unit}"),
        ("ended", f"{result.finish_reason} ({in_line(result.stop_reason) or 'no reason given'})"),
        ("at most", counted(chosen.max_tokens, "token")),
        ("drafted", f"{counted(result.drafted_tokens, 'token')} in {counted(result.draft_requests, 'draft')}"),
        ("asked", counted(result.assistant_requests, "question")),
    ]
    if result.hedged_drafts:
        ahead = f"{counted(result.hedged_drafts, 'draft')} ahead of a verdict, {result.hedge_hits} of use"
        rows.append(("hedged", ahead))
    said = {"verifier", "unit", "max_tokens"}
    rows += [
        (name.replace("_", " "), in_line(str(value)))
        for name, value in chosen.model_dump(mode="json").items()
        if name not in said and value != defaults[name].default and value != []
    ]
    return _table(("setting", "value"), rows, range(0), "Settings")
