"""What a reader of an answer should know of its making, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cosd_api.decoding.pending import Loss
from cosd_api.result import EndpointUsage, FusedToken

DRAFT = "draft"
"""The draft's name among the endpoints of a fusion."""

_TIMES = 10  # as much as the draft's, billed by the assistants: worth a word


def of_losses(lost: Mapping[int, Loss], names: Sequence[str], tokens: Sequence[FusedToken]) -> list[str]:
    """Which assistants the answer went on without; since where, and why."""
    notes: list[str] = []
    for assistant, loss in sorted(lost.items()):
        unverified = sum(not token.verified for token in tokens[loss.token :])
        notes.append(
            f"{names[assistant]} failed and was not asked any more from token {loss.token + 1} on, where {unverified} "
            f"token{'' if unverified == 1 else 's'} that it could have changed stand unverified: {loss.error}"
        )
    return notes


def of_cost(usage: Mapping[str, EndpointUsage]) -> list[str]:
    """Whether asking has cost many times what drafting did, and what would help."""
    drafted = usage[DRAFT].billed_tokens
    others = [one for name, one in usage.items() if name != DRAFT]
    asked, cached = sum(one.billed_tokens for one in others), sum(one.cached_tokens for one in others)
    if not drafted or asked <= _TIMES * drafted:
        return []
    note = (
        f"asking has billed {asked} tokens ({cached} of them from a cache), {asked / drafted:.0f} times the draft's "
        f"{drafted}: every place that is asked about reads the text before it again. A lower alpha asks less often; a "
        "server that keeps its prefix cache reads less; strategy= of the assistant says how it is asked"
    )
    return [note]
