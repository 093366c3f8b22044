"""Samples for gates: both models' probabilities of a reference's tokens, with the draft's lists or hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from cosd_api.forcing.samples import DeferralSample
from cosd_api.forcing.states import state_in_text
from cosd_providers.contract import Proposal, State, Token
from cosd_providers.text import readable

__all__ = ["deferral_samples"]


def deferral_samples(
    proposals: tuple[Sequence[Proposal | None], Sequence[Proposal | None]],
    scores: tuple[Sequence[Token], Sequence[Token]],
    *,
    listed: int,
    states: Mapping[int, State] | None = None,
) -> tuple[tuple[DeferralSample, ...], int]:
    """Create a sample for each token of a reference that occurs in both models' encodings.

    Args:
        proposals: the most probable tokens of the draft and of the assistant, at every boundary of each model's own
            encoding. The draft's proposals also list alternatives.
        scores: the tokens of the reference, with their probabilities, in the draft's encoding and in the assistant's.
        listed: maximum number of alternative tokens to list with each of the draft's choices.
        states: the draft's hidden states, by byte offset; None if the samples should not contain any.

    Returns:
        The samples, and the number of the draft's tokens for which there is no sample.
    """
    mine, theirs = ({one.start: one.tokens[0] for one in several if one is not None} for several in proposals)
    read = {(start, token.data, token.end): token.prob for start, token in _placed(scores[1])}
    found: list[DeferralSample] = []
    for start, token in _placed(scores[0]):
        key = token.data, token.end
        p, q = token.prob, read.get((start, *key))
        ours, other = mine.get(start), theirs.get(start)
        if p is None or q is None or ours is None or other is None or ours.prob is None:
            continue
        if states is not None and start not in states:
            continue
        others = [one.prob for one in ours.alternatives[:listed] if one.prob]
        found.append(
            DeferralSample(
                start=start,
                draft=readable(ours.data),
                listed=(ours.prob, *others),
                p=p,
                q=q,
                handed=(other.data, other.end) == key != (ours.data, ours.end),
                state=None if states is None else state_in_text(states[start]),
            )
        )
    return tuple(found), len(scores[0]) - len(found)


def _placed(tokens: Sequence[Token]) -> Iterator[tuple[int, Token]]:
    """Pair each token with its byte offset."""
    starts = accumulate((len(token.data) for token in tokens), initial=0)
    return zip(starts, tokens, strict=False)
