"""What follows from the answers: whether a server can draft and assist, what is missing, what would make it better."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cosd_providers.greedy import TIES
from cosd_providers.probe.asking import Inquiry
from cosd_providers.probe.lines import Way

__all__ = ["advice", "missing"]


def missing(inquiry: Inquiry, found: Sequence[Way]) -> tuple[list[str], list[str]]:
    """What is missing for a draft, and for an assistant."""
    both: list[str] = []
    if inquiry.value("probabilities") == "degenerate":
        both.append("at temperature 0 it shows no probabilities but 1 and 0")
    if inquiry.value("probabilities") == "changed":
        both.append("the probabilities that it shows at temperature 0 are not the model's own")
    if inquiry.value("whole") is False:
        both.append("it does not read all of a prompt, and does not say so")
    if inquiry.value("bytes") is False:
        both.append("the bytes of its tokens are not those of the text")
    drafts, assists = list(both), list(both)
    if not inquiry.value("draft") and not inquiry.short:
        drafts.append(_why(inquiry, "draft", "no draft"))
    if inquiry.short:
        if inquiry.value("logprobs") is False:  # all that the short answers leave to go by
            drafts.append(_why(inquiry, "logprobs", "no probabilities"))
    elif not inquiry.value("propose") and not any(way.proved for way in found):
        assists.append(_why(inquiry, "propose", "no proposals"))
    elif found and not any(way.proved for way in found):
        assists.append("no strategy gave the draft's own tokens back")
    return drafts, assists


def _why(inquiry: Inquiry, name: str, words: str) -> str:
    line = next((line for line in inquiry.lines if line.name == name), None)
    return line.seen if line is not None else words


def advice(inquiry: Inquiry, found: Sequence[Way]) -> list[str]:
    """What would make it better: flags by the server's kind, for what was not found."""
    value, depth, told = inquiry.value, inquiry.value("depth"), inquiry.settings
    lacks = {
        "cache told": value("cache") is None,
        "cache": value("cache") is False,
        "raw": value("probabilities") in ("changed", "degenerate"),
        "depth": isinstance(depth, int) and depth < TIES,
        "scoring": not inquiry.info.capabilities.score,
        "tokenizer": value("tokenizer") is False,
        "context": 0 < (inquiry.info.context or 0) < told.get("trained", 0),
        "echo": any(way.name == "echo" and way.proved and not way.cached for way in found),
        "slots": told.get("slots") == 1,
    }
    right = [way.name for way in found if way.proved]
    wrong = [way.name for way in found if way.wrong]
    words = [f"strategy={right[0]!r}: asked by {' or '.join(wrong)} it says something else"] if right and wrong else []
    rows = (*_ADVICE.get(inquiry.info.engine, ()), *_ADVICE[""])
    return [*words, *(_for_version(row, inquiry.info.build) for lack, row in rows if lacks[lack])]


def _for_version(words: str, version: str | None) -> str:
    """The advice, behind an update for a server that is too old for the flag."""
    since = _SINCE.get(words.partition(" ")[0])
    found = re.match(r"v?(\d+)\.(\d+)", version or "")
    if since is None or found is None or (int(found[1]), int(found[2])) >= since:
        return words
    return f"update the server to {'.'.join(map(str, since))} or newer, which has {words}"


_ADVICE: dict[str, Sequence[tuple[str, str]]] = {
    "": (("tokenizer", "give the model's tokenizer, connect(url, tokenizer=...): it encodes and counts on this side"),),
    "llama.cpp": (
        ("context", "-c (--ctx-size): the model was trained for a longer context than it is given"),
        ("slots", "-np (--parallel) above 1: prompts of a list are then read at the same time"),
    ),
    "vllm": (
        ("cache told", "--enable-prompt-tokens-details: answers then tell what came from the prefix cache"),
        ("cache", "--enable-prefix-caching: lists and singles then read only what is new"),
        ("echo", "for long prompts 'list' or 'singles': 'echo' reads all of a prompt each time, past the prefix cache"),
        ("raw", "--logprobs-mode raw_logprobs: it then shows the model's own probabilities"),
        ("depth", "--max-logprobs 20: it then lists more tokens at a place"),
    ),
    "tgi": (("scoring", "--enable-prefill-logprobs: it then scores a prompt, which the strategy 'filter' needs"),),
    "ollama": (("context", "OLLAMA_CONTEXT_LENGTH: the model was trained for a longer context than it is given"),),
}
"""What helps against what is lacking, by the server's kind; "" is for all."""

_SINCE = {"--logprobs-mode": (0, 10)}
"""The first version with a flag, where older ones are still in use."""
