"""How a report is written for people: a title and a text on each line, none wider than 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from cosd_providers.probe.lines import Line, Spent, Way

__all__ = ["EXAMPLE", "UNTRUSTED", "line", "prices", "spent", "wrapped"]

EXAMPLE = (100, 4, 4000)
"""Verifications, places in each, and tokens before them: what the strategies are priced for."""

UNTRUSTED = "; with servers of this kind a fusion does not rely on it, and says so"
"""Behind what was seen of an end, where the adapter takes it for hidden."""

_LETTERS = {
    "o": "o: places that are left open, and asked by themselves",
}

_WIDTH = 80
_INDENT = 19

_TITLES = {
    "server": "server",
    "models": "models",
    "context": "context",
    "tokenizer": "tokenizer",
    "logprobs": "streamed logprobs",
    "depth": "alternatives",
    "probabilities": "probabilities",
    "scoring": "prompt scoring",
    "lists": "prompt lists",
    "ids": "token-id prompts",
    "template": "chat template",
    "prefill": "answer prefill",
    "end": "end of sequence",
    "bytes": "exact bytes",
    "whole": "whole prompt read",
    "cache": "prefix cache",
    "round_trip": "round trip",
    "draft": "a draft, resumed",
    "propose": "its draft proposed",
}

_YES = {
    "bytes": "yes",
    "end": "told, with its probability",
    "cache": "seen",
}
_NO = {
    "end": "hidden",
    "cache": "none seen",
    "server": "refused",
}
_SHOWN = 4  # models that are named
_ALWAYS = ("probabilities", "bytes", "cache", "draft", "propose", "scoring")


def line(one: Line) -> list[str]:
    """A line of the report; nothing for what is only for programs."""
    if one.name not in _TITLES or (one.name == "server" and one.value is not False):  # it is in the first line
        return []
    return wrapped(_TITLES[one.name], _said(one))


def _said(one: Line) -> str:
    match one.value:
        case None:
            return f"unknown: {one.seen}"
        case True:
            told = f": {one.seen}" if one.name in _ALWAYS or one.seen.endswith(UNTRUSTED) else ""
            return _YES.get(one.name, "yes") + told
        case False:
            return f"{_NO.get(one.name, 'no')}: {one.seen}"
        case tuple():
            more = len(one.value) - _SHOWN
            return ", ".join(one.value[:_SHOWN]) + (f" and {more} more" if more > 0 else "") or "none"
        case _:
            return _worded(one, one.value)


def _worded(one: Line, value: float | str) -> str:
    match one.name:
        case "context":
            return f"{value} tokens, as the server says"
        case "depth":
            return f"{value}" + (" or more" if one.seen.endswith(f": {value}") else "")
        case "round_trip":
            return f"{float(value) * 1000:.0f} ms"
        case "template":
            return f"writes {value!r} before an answer"
        case "tokenizer":
            return "the server's own" if value == "endpoint" else "local"
        case "prefill":
            return f"yes, by {value}"
        case "draft":
            return f"by {value}: {one.seen}"
        case _:
            return f"{value}: {one.seen}" if one.name in _ALWAYS else str(value)


def prices(ways: Sequence[Way]) -> list[str]:
    """What the strategies cost, as a table, and those that were not proved."""
    proved = [way for way in ways if way.proved]
    rows: list[str] = []
    if proved:
        requests, places, context = EXAMPLE
        rows += [
            "",
            f"One verification of K places behind C tokens, and {requests} with K = {places}, C = {context:,}:",
        ]
        rows.append(f"  {'':<13}{'requests':<10}{'tokens':<12}{f'{requests} of them':<36}cached")
    for way in proved:
        least = "from " if "+" in way.requests else ""
        total = f"{least}{way.example[0]:,} requests, {way.example[1]:,} tokens"
        cached = "untold" if way.cached is None else f"{way.cached:.0%}"
        rows.append(f"  {way.name:<13}{way.requests:<10}{way.tokens:<12}{total:<36}{cached}")
    rows += [f"  {words}" for letter, words in _LETTERS.items() if any(f"+ {letter}" in way.tokens for way in proved)]
    for way in ways:
        if not way.proved:
            rows += wrapped(f"  {way.name}", f"not used: {way.seen}")
    return [*rows, ""] if rows else []


def spent(cost: Spent) -> str:
    """What the probe has cost."""
    tokens = f"{cost.prompt_tokens:,} tokens read, {cost.completion_tokens:,} written"
    return f"{cost.requests} requests, {tokens}, {cost.seconds:.1f} s"


def wrapped(title: str, text: str) -> list[str]:
    """A title and its text, as many lines as it needs."""
    lines = textwrap.wrap(text, _WIDTH - _INDENT, break_long_words=True, break_on_hyphens=False) or [""]
    return [f"{title if not at else '':<{_INDENT}}{part}" for at, part in enumerate(lines)]
