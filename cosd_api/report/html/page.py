"""A self-contained HTML page about a fused answer: `page(result)`.

The page loads no external resources; its content security policy enforces this. The script only shows the hover cards.
Without the script, the answer, the charts and the tables are still complete.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from xml.etree.ElementTree import Element

from cosd_api import FusionResult
from cosd_api.extend import WithOutline, counted
from cosd_api.report.decisions import JudgedPlace, judged
from cosd_api.report.html.cards import Cards, Standing, request_key, standing
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
from cosd_api.report.html.elements import (
    Child,
    element,
    in_line,
    name_of,
    prob,
    script_json,
    seconds,
    visible,
)
from cosd_api.report.html.plots import acceptance, plane, points, rule_in_words
from cosd_api.report.html.timeline import timeline
from cosd_api.report.terminal import definition, measure, unchanged
from cosd_api.types import FusedToken

_LONGEST = 30  # longer outlines of a verifier are not shown; a full tree of depth 4 fits
_MOST_ROWS = 100  # keeps the page fast; `cosd explain` prints all rows
_KEYS = "Move over a word, or press Tab and the arrow keys: ← → word by word, ↑ ↓ from one disagreement to the next."
_PLAIN = {"agreed", "open", "sure"}


def page(result: FusionResult, *, title: str = "A fused answer") -> str:
    """Write the report of one answer as an HTML document.

    Args:
        result: the answer; `Trace.load(path).result` reads a saved one.
        title: the headline, such as the question; the result itself does not contain the prompt.
    """
    cards = Cards(result)
    found = list(judged(result.tokens))
    script = text_of("page.js")
    return document(
        title,
        _header(cards, title),
        element("main", None, *_sections(cards, found)),
        footer(result.library_version),
        element("div", "card", id="card", role="tooltip", hidden=""),
        element("script", None, script_json(_data(cards, found)), id="data", type="application/json"),
        element("script", None, script),
        script=script,
    )


def _data(cards: Cards, found: list[JudgedPlace]) -> dict[str, object]:
    """Collect the data for the script: the cards, the points of the plot, and the tokens with disagreements."""
    result = cards.result
    return {
        "tokens": [asdict(cards.token(at)) for at in range(len(result.tokens))],
        "requests": {request_key(request): asdict(cards.request(request)) for request in result.requests},
        "points": points(found),
        "decisive": sorted({one.at for one in found if one.outcome != "agreed"}),
    }


def _header(cards: Cards, title: str) -> Element:
    result = cards.result
    judges = ", ".join(cards.models[one.name] for one in result.assistants)
    verb = "is asked" if len(result.assistants) == 1 else "are asked"
    rule, chosen = _decides(result), not result.judged
    error = None
    if result.finish_reason == "error":
        error = element("p", "warning", f"The answer was cut short by an error: {in_line(result.stop_reason)}")
    return header(
        "why each token is there",
        title,
        element(
            "p",
            "under",
            element("b", None, cards.models["draft"]),
            " and " if chosen else " drafts, ",
            element("b", None, judges),
            f" {'write and choose' if chosen else verb} · {rule}",
        ),
        _figures(result),
        error,
    )


def _figures(result: FusionResult) -> Element:
    per_token = result.timings.per_token
    asked = counted(result.assistant_requests, "question")
    return element(
        "ul",
        "figures",
        *_outcome(result),
        figure(f"{result.draft_requests + result.assistant_requests:,}", f"requests, {asked} among them"),
        figure(seconds(result.timings.total), "" if per_token is None else f"{seconds(per_token)} per token"),
    )


def _decides(result: FusionResult) -> str:
    """Describe the verifier's condition, or the method and its settings."""
    if result.settings.verifier is not None:
        return rule_in_words(result.settings.verifier)
    options = ", ".join(f"{name}={value}" for name, value in result.settings.method_options.items())
    return in_line(f"{result.settings.method} ({options})" if options else result.settings.method)


def _segments(result: FusionResult) -> Element:
    """A table of the segments at which the models differed: each proposed text, with each model's score."""
    names = [result.draft.name, *(one.name for one in result.assistants)]
    differing = [one for one in enumerate(result.segments) if not unchanged(one[1], result)]
    first = {token.unit: at for at, token in reversed(list(enumerate(result.tokens)))}
    rows: list[tuple[Child, ...]] = []
    for number, segment in differing:
        for at, one in enumerate(segment.candidates):
            wins = at == segment.winner
            place: Child = str(number + 1)
            if number in first:
                place = element("a", None, place, href=f"#t{first[number]}", data_go=first[number])
            text = _name(one.text) if one.text else element("bdi", "said", "")
            if one.end:
                text.append(element("i", "end", "end"))
            scores = (measure(one.scores.get(name)) for name in names)
            verdict = element("span", "verdict replaced", "taken") if wins else None
            because = in_line(segment.reason) if wins else ""
            rows.append((place, in_line(", ".join(one.sources)), text, *scores, measure(one.mean), verdict, because))
    equal = len(result.segments) - len(differing)
    why = "all models wrote the same" if not result.judged else "the draft's token was kept"
    same = note(f"{equal:,} of {counted(len(result.segments), 'segment')}: {why}.")
    if not rows:
        return same
    heads = ("segment", "by", "text", *(in_line(name) for name in names), "mean", "", "because")
    shown = table(heads, rows[:_MOST_ROWS], range(3, 4 + len(names)), "Texts that were proposed, and their measures")
    more = len(rows) - _MOST_ROWS
    rest = note(f"{more:,} more: print them all with `cosd explain`.") if more > 0 else None
    return element("div", None, shown, rest, same if equal else None)


def _outcome(result: FusionResult) -> Iterator[Element]:
    """Yield the header's figures about a judged draft, or about the segments of an answer."""
    if not result.judged:
        yield figure(f"{len(result.tokens):,}", f"tokens in {counted(len(result.segments), 'segment')}")
        return
    replacements, rounds = result.replacements or 0, result.iterations or 0
    if result.acceptance_rate is not None:
        yield figure(f"{result.acceptance_rate:.1%}".replace(".0%", "%"), "of the draft kept")
    if result.unverified_tokens:
        yield figure(f"{result.unverified_tokens:,}", "unverified")
    yield figure(f"{replacements:,}", "replacement" if replacements == 1 else "replacements")
    yield figure(f"{len(result.tokens):,}", f"tokens in {counted(rounds, 'round')}")


def _sections(cards: Cards, found: list[JudgedPlace]) -> Iterator[Element]:
    result = cards.result
    verifier = result.settings.verifier
    outline = None
    if isinstance(verifier, WithOutline) and (words := verifier.outline()).count("\n") < _LONGEST:
        outline = element("pre", "tree", words)
    keys = element("p", "note scripted", _KEYS)
    yield section("The answer", _answer(result), _legend(result), keys, classes="panel reading")
    made = section("How it was made", _settings(result))
    if verifier is None or not result.judged:
        yield made
        yield section("Segments", _segments(result))
    else:
        kept_tokens, replaced = result.verified_kept_tokens, result.replaced_tokens or 0
        kept = (
            f"{kept_tokens:,} of {counted(kept_tokens + replaced, 'draft token')} kept. Bars: "
            "stretches of the answer. Line: the answer so far. Ticks below: replacements."
        )
        share = acceptance(result.tokens, result.acceptance_rate)
        kept_share = section("How much of the draft was kept", share, note(kept))
        surety = section("How sure each was", plane(verifier, found), outline)
        yield element("div", "pair", surety, element("div", "stack", kept_share, made))
    yield section("Requests over time", timeline(cards))
    if result.judged and not result.segments:
        yield section("Disagreements", _disagreements(cards, found))
    yield section("Cost", _costs(cards))
    yield section("Endpoints", _endpoints(result))
    if result.warnings:
        yield warnings(result.warnings)


# The answer: one element for each token. It is readable even without the style sheet.


def _answer(result: FusionResult) -> Element:
    """Mark up the answer: `<ins>` for an assistant's word, `<del>` for the draft's word that it replaced."""
    holder = element(
        "p", "answer", id="answer", role="group", aria_label="The answer, token by token", data_roving="", dir="auto"
    )
    several = len(result.assistants) > 1
    number = {one.name: at for at, one in enumerate(result.assistants, 1)}
    for at, token in enumerate(result.tokens):
        if token.replaced is not None:
            ends = not token.replaced or any(one.end for one in token.replaced_tokens)
            holder.append(element("del", None, *_text(token.replaced, ends=ends)))
        holder.append(_token(at, token, number.get(token.source) if several else None))
    if not result.tokens:
        holder.append(element("em", "empty", "(an empty answer)"))
    return holder


def _token(at: int, token: FusedToken, assistant: int | None) -> Element:
    status = standing(token)
    tag = "ins" if status == "replaced" else "span"
    classes = ["" if status in _PLAIN else status, "line" if "\n" in token.text else ""]
    made = element(tag, " ".join(filter(None, classes)) or None, *_text(token.text, ends=token.end), data_t=at)
    if assistant is not None and token.replaced is not None:
        made.append(element("sub", None, str(assistant)))
    return made


def _text(text: str, *, ends: bool) -> tuple[Element | str, ...]:
    mark = element("i", "end", "end")  # not part of the text, so not copied with it
    return (visible(text), mark) if text and ends else (mark,) if ends else (visible(text),)


def _legend(result: FusionResult) -> Element:
    """Make a legend for the marks that occur in this answer."""
    found: set[Standing] = {standing(token) for token in result.tokens}
    several = len(result.assistants) > 1
    if not result.judged:
        return _authors(found)
    assistants = ", ".join(f"{at} is {visible(one.model)}" for at, one in enumerate(result.assistants, 1))
    entries = [element("li", None, element("span", None, "plain"), " the draft's own")]
    if "replaced" in found:
        words = f" the assistants' in its place ({assistants})" if several else " the assistant's in its place"
        entries.append(element("li", None, element("del", None, "struck"), " the draft's word that was replaced"))
        entries.append(element("li", None, element("ins", None, "underlined"), words))
    if "kept" in found:
        dotted = element("span", "kept", "dotted")
        entries.append(element("li", None, dotted, " the draft's, kept though an assistant wrote something else"))
    if "unheard" in found:
        wavy = element("span", "unheard", "wavy")
        entries.append(element("li", None, wavy, " not verified: an assistant had failed"))
    return element("ul", "legend", *entries)


def _authors(found: Container[Standing]) -> Element:
    """Make a legend for the marks in an answer that consists of segments."""
    entries = [element("li", None, element("span", None, "plain"), " the first model's")]
    if "replaced" in found:
        entries.append(element("li", None, element("ins", None, "underlined"), " another model's"))
    if "unheard" in found:
        wavy = element("span", "unheard", "wavy")
        entries.append(element("li", None, wavy, " without a model that had failed"))
    return element("ul", "legend", *entries)


# Tables.


def _disagreements(cards: Cards, found: Sequence[JudgedPlace]) -> Element:
    """A table with a row for each place where an assistant wrote a different text."""
    differing = [one for one in found if one.outcome != "agreed"]
    if not differing:
        return note("Every assistant wrote the same as the draft wherever it was asked.")
    words = {"tied": "a tie", "kept": "kept", "replaced": "replaced", "outvoted": "another was surer"}
    rows = (
        (
            element("a", None, str(one.at + 1), href=f"#t{one.at}", data_go=one.at),
            _name(one.decision.draft_text),
            element("span", "short", prob(one.decision.draft_prob)),
            _name(cards.word(one.at)[1] if one.outcome == "replaced" else one.decision.text),
            element("span", "short", prob(one.decision.prob)),
            element("span", f"verdict {one.outcome}", words[one.outcome]),
            in_line(one.decision.reason),
            in_line(f"{one.decision.assistant}{f', by {one.decision.strategy}' if one.decision.strategy else ''}"),
            str(cards.result.tokens[one.at].round),
        )
        for one in islice(differing, _MOST_ROWS)
    )
    heads = ("token", "draft", "p", "assistant", "q", "", "decided", "asked", "round")
    shown = table(heads, rows, range(0), "Disagreements, in the order of the answer")
    if len(differing) <= _MOST_ROWS:
        return shown
    more = f"{len(differing) - _MOST_ROWS:,} more: move over the answer, or print them all with `cosd explain`."
    return element("div", None, shown, note(more))


def _name(text: str) -> Element:
    return element("bdi", "said", name_of(text, end=True))


def _costs(cards: Cards) -> Element:
    """A table of the requests and billed tokens of each endpoint, with totals."""
    usage = cards.result.usage
    fields = ("requests", "retries", "prompt_tokens", "cached_tokens", "estimated_tokens", "completion_tokens")
    rows = [
        (
            cards.who(name),
            *(f"{getattr(one, field):,}" for field in fields),
            seconds(one.first_token_seconds),
            seconds(one.busy_seconds),
        )
        for name, one in usage.items()
    ]
    sums = (f"{sum(getattr(one, field) for one in usage.values()):,}" for field in fields)
    heads = ("", "requests", "retries", "read", "of it cached", "of it estimated", "written", "first answer", "busy")
    caption = "Requests, and tokens as billed by the servers"
    return table(heads, [*rows, ("together", *sums, "", "")], range(1, 9), caption)


def _endpoints(result: FusionResult) -> Element:
    several = (result.draft, *result.assistants)
    rows = [(*endpoint_cells(one), "–" if one.context is None else f"{one.context:,}") for one in several]
    return table(("", "model", "endpoint", "server", "context"), rows, range(4, 5), "Endpoints")


def _settings(result: FusionResult) -> Element:
    """A table that shows how the answer was made, why it ended, and which settings differ from the defaults."""
    chosen = result.settings
    defaults = type(chosen).model_fields
    rows: list[tuple[str, Child]] = [
        ("method", _decides(result)),
        *([("judged", definition(result))] if chosen.unit else []),
        ("ended", f"{result.finish_reason} ({in_line(result.stop_reason) or 'no reason given'})"),
        ("at most", counted(chosen.max_tokens, "token")),
        ("drafted", f"{counted(result.drafted_tokens, 'token')} in {counted(result.draft_requests, 'draft')}"),
        ("asked", counted(result.assistant_requests, "question")),
    ]
    if result.hedged_drafts:
        hedged = f"{counted(result.hedged_drafts, 'draft')} ahead of a verdict, {result.hedge_hits} used"
        rows.append(("hedged", hedged))
    shown = {"method", "method_options", "verifier", "unit", "max_tokens", "contexts", "tie"}
    rows += [
        (name.replace("_", " "), in_line(str(value)))
        for name, value in chosen.model_dump(mode="json").items()
        if name not in shown and value != defaults[name].default and value != []
    ]
    return table(("setting", "value"), rows, range(0), "Settings")
