"""Warnings about an answer, as sentences."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

from cosd_api.decoding.commands import Handover, Loss
from cosd_api.records import DRAFT, EndpointUsage, FusedToken
from cosd_api.verification import Verifier

_TIMES = 10  # ratio of asking to drafting (in weighted tokens) above which a warning is given
_CACHED = 0.1  # weight of a cached token, which takes little time and is cheap at most services


def reencoded(seen: bool) -> list[str]:
    """A warning that the draft endpoint re-encoded its own text into tokens that it had not written, if it did."""
    note = (
        "the draft endpoint takes text only and read its own text back as other tokens than it wrote: "
        "the answer may depend on draft_length and max_ahead"
    )
    return [note] if seen else []


def unanswered(places: int, silent: Mapping[str, str]) -> list[str]:
    """A warning about the places at which an assistant gave no answer.

    Args:
        places: the number of these places.
        silent: the endpoints of the assistants whose servers show no text of a token, by name.
    """
    if not silent or not places:
        return [f"an assistant could not answer at {places} places: the draft's tokens are kept there"] * bool(places)
    return [
        f"{name} could not answer: {endpoint} sends only empty strings for its tokens, so its answers cannot be "
        "divided into tokens, and the draft's tokens are kept. Update that server, connect to it by its own protocol "
        '(without engine="openai"), or choose another assistant'
        for name, endpoint in silent.items()
    ]


def losses(lost: Mapping[int, Loss], names: Sequence[str], tokens: Sequence[FusedToken]) -> list[str]:
    """A warning for each failed assistant without which the answer continued, with the place and the reason."""
    notes: list[str] = []
    for assistant, loss in sorted(lost.items()):
        unverified = sum(not token.verified for token in tokens[loss.token :])
        stand = "token that it could have changed is" if unverified == 1 else "tokens that it could have changed are"
        if loss.before:
            since = f"failed before this answer began and was not asked; {unverified}"
        else:
            since = f"failed and was not asked any more from token {loss.token + 1} on, where {unverified}"
        notes.append(f"{names[assistant]} {since} {stand} unverified: {loss.error}")
    return notes


def seams(found: Sequence[Handover], names: Sequence[str], tokens: Sequence[FusedToken]) -> list[str]:
    """A warning for each model that wrote alone, because the one before it had failed.

    Args:
        found: the seams.
        names: names of all models, the draft's first.
        tokens: the tokens of the answer.
    """
    notes: list[str] = []
    before = names[0]
    for seam, following in zip_longest(found, found[1:]):
        name = names[seam.source + 1]
        if seam.error is not None:
            end = len(tokens) if following is None else following.token
            count = f"{max(0, end - seam.token)} tokens"
            back = f", until the draft returned at token {end + 1}" if following and following.error is None else ""
            words = f"{before} failed at token {seam.token + 1}, and the {name} wrote {count} alone{back}"
            notes.append(f"the {words}; they are unverified: {seam.error}")
        before = name
    return notes


def unreported(usage: Mapping[str, EndpointUsage], names: Collection[str]) -> list[str]:
    """A warning for each endpoint that does not report the tokens that it reads, with the part of its bill that is
    estimated.

    Args:
        usage: usage of each endpoint, by name.
        names: the endpoints that did not report the tokens of a whole answer.
    """
    return [
        f"{name} does not always report how many tokens it reads: {one.estimated_tokens} of the {one.prompt_tokens} "
        "prompt tokens in its usage are estimated from the length of the text; limits and prices count them"
        for name, one in usage.items()
        if name in names and one.estimated_tokens
    ]


def cost(usage: Mapping[str, EndpointUsage], verifier: Verifier | None) -> list[str]:
    """A warning with remedies if asking cost many times as much as drafting. A cached token counts as 0.1 tokens.

    Args:
        usage: usage of each endpoint, by name.
        verifier: the verifier of the method; None if it has none.
    """
    mine, others = usage[DRAFT], [one for name, one in usage.items() if name != DRAFT]
    drafting, asking = _weight([mine]), _weight(others)
    if not drafting or asking <= _TIMES * drafting:
        return []
    asked, cached = sum(one.billed_tokens for one in others), sum(one.cached_tokens for one in others)
    drafted = f"{mine.billed_tokens}"
    if mine.estimated_tokens:
        drafted += " (partly an estimate)"
    elif mine.cached_tokens:
        drafted += f" ({mine.cached_tokens} of them from a cache)"
    tenth = ", which count a tenth" if cached or mine.cached_tokens else ""
    remedies = "A lower alpha asks less often; a" if hasattr(verifier, "alpha") else "A"
    note = (
        f"asking has billed {asked} tokens ({cached} of them from a cache{tenth}), {asking / drafting:.0f} times the "
        f"draft's {drafted}: every place that is asked about reads the text before it again. "
        f"{remedies} server that keeps its prefix cache reads less; strategy= of the assistant says how it is asked"
    )
    return [note]


def _weight(several: Sequence[EndpointUsage]) -> float:
    """The number of tokens read and written, in which each cached token has a lower weight."""
    return sum(one.billed_tokens - (1 - _CACHED) * one.cached_tokens for one in several)
