"""Replay of a recorded answer, which rebuilds its text from the recorded tokens and probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from cosd_api.errors import SettingError, TraceError
from cosd_api.records import DRAFT, FusedToken, Segment, TokenDecision
from cosd_api.verification import Place, Verifier, needs_of, verifier_at
from cosd_providers.text import readable

_ROUNDING = 1e-9  # tolerance relative to the lowest mean, as in the methods


def replayed(
    tokens: Sequence[FusedToken], verifier: Verifier, assistants: Sequence[str], *, stops: bool, drawn: bool = False
) -> bytes:
    """Build the text from the recorded decisions, and judge each decision again (Algorithm 1, lines 8 to 14).

    Args:
        tokens: the tokens of the whole answer.
        verifier: the verifier that judges each decision again, from the recorded probabilities.
        assistants: names of the assistants, in the order in which the user gave them.
        stops: whether a stop string may have ended the answer.
        drawn: whether tokens were drawn at random; if so, a replacement may be any token that the assistant could have
            drawn.

    Returns:
        The answer as bytes.

    Raises:
        TraceError: a decision differs from the record, or the record is inconsistent.
    """
    text = b""
    numbered = enumerate(tokens, 1)
    for due, (unit, members) in enumerate(groupby(numbered, key=lambda one: one[1].unit)):
        found = list(members)
        first, last = found[0][0], found[-1][0]
        if unit != due:
            raise TraceError(f"token {first} belongs to unit {unit}, but unit {due} is expected there")
        replacing = [decision for number, token in found for decision in _fired(token, number, verifier, assistants)]
        winner = max(replacing, key=lambda one: (one.prob or 0.0, -assistants.index(one.assistant)), default=None)
        word = _replacement(found)
        # A stop string may have removed a replacement, although the decision is still recorded on the tokens before it.
        cut = stops and last == len(tokens)
        if winner is None and word:
            number, token = word[0]
            raise TraceError(f"token {number} ({token.text!r}) replaced {token.replaced!r}, but no decision does")
        if winner is not None and not word and not cut:
            words = f"{winner.draft_text!r} by {winner.text!r}"
            raise TraceError(
                f"a decision replaced {words} before token {last + 1}, but the answer has no such replacement"
            )
        if winner is not None and word:
            _check_word(winner, word, whole=last < len(tokens), drawn=drawn)
        text += b"".join(token.data for _, token in found)
    return text


def rewritten(tokens: Sequence[FusedToken], segments: Sequence[Segment]) -> bytes:
    """Build the text from the chosen segments, and check each choice again.

    If the models' measures are recorded, the candidate with the lowest mean wins; of candidates with equal means, the
    first one wins. A stop string, a limit or an error may have cut off the end of the text, even across several
    segments.

    Raises:
        TraceError: a different text should have been chosen, or the tokens do not spell the chosen text.
    """
    text = b""
    for number, segment in enumerate(segments):
        if not 0 <= segment.winner < len(segment.candidates):
            raise TraceError(f"segment {number + 1} has no candidate {segment.winner}")
        winner = segment.candidates[segment.winner]
        means = [one.mean for one in segment.candidates]
        known = [mean for mean in means if mean is not None]
        if len(known) == len(means) and min(known) < math.inf and segment.winner != _least(known):
            words = f"{winner.text!r} was taken, but another text has a lower mean"
            raise TraceError(f"segment {number + 1}: {words}")
        members = [token for token in tokens if token.unit == number]
        data = b"".join(token.data for token in members)
        whole = any(token.unit > number for token in tokens)
        if {token.source for token in members} - {*winner.sources}:
            raise TraceError(f"segment {number + 1} is by {', '.join(winner.sources)}, but its tokens are not")
        if readable(data) != winner.text and (whole or not winner.text.startswith(readable(data))):
            raise TraceError(f"segment {number + 1} is {readable(data)!r}, but {winner.text!r} was taken")
        text += data
    if sum(token.unit < len(segments) for token in tokens) < len(tokens):
        raise TraceError(f"a token belongs to no segment: there are {len(segments)}")
    return text


def _least(means: Sequence[float]) -> int:
    """The index of the lowest mean, or of the first one if several lowest means differ only by rounding."""
    least = min(means)
    return next(at for at, one in enumerate(means) if one == least or one - least <= _ROUNDING * abs(least))


def _replacement(unit: Sequence[tuple[int, FusedToken]]) -> Sequence[tuple[int, FusedToken]]:
    """The numbered tokens of a unit that form an assistant's word: all tokens from the first replacement on."""
    start = next((at for at, (_, token) in enumerate(unit) if token.replaced is not None), len(unit))
    for at, (number, token) in enumerate(unit):
        spelled = token.id is not None or readable(token.data) == token.text  # with ids, `text` is whole characters
        if not spelled or (token.end and token.data):
            raise TraceError(f"token {number} ({token.text!r}) has bytes that differ from its text")
        if at > start and token.replaced is not None:
            raise TraceError(
                f"token {number} ({token.text!r}) replaced {token.replaced!r}, in a unit that was replaced"
            )
        source = DRAFT if at < start else unit[start][1].source
        if token.alone and not (token.verified or token.decisions or token.source == DRAFT):
            continue
        if token.source != source or (at >= start and source == DRAFT):
            raise TraceError(
                f"token {number} ({token.text!r}) has the source {token.source!r}, which is impossible there"
            )
    return unit[start:]


def _fired(token: FusedToken, number: int, verifier: Verifier, assistants: Sequence[str]) -> list[TokenDecision]:
    """Judge each decision at a token again, and return the decisions that fire."""
    for decision in token.decisions:
        p, q = decision.draft_prob, decision.prob
        where = f"token {number} ({token.text!r}): {decision.draft_text!r}"
        if decision.assistant not in assistants:
            raise TraceError(f"{where} was judged by {decision.assistant!r}, but there is no such assistant")
        if decision.agreed and not decision.tied and decision.text != decision.draft_text:
            raise TraceError(f"{where} and {decision.text!r} are recorded as the same")
        if decision.agreed or p is None or (q is None and needs_of(verifier).q):
            replaces, words = False, "both agree" if decision.agreed else "a probability is not known"
        else:
            sure = math.nan if q is None else q
            try:
                here = verifier_at(verifier, Place(coin=decision.coin, draft_q=decision.draft_text_prob))
            except SettingError as error:
                raise TraceError(f"{where}: {error}") from error
            replaces, words = here.replaces(p, sure), f"the verifier says {here.explain(p, sure)}"
        if replaces != decision.fired:
            raise TraceError(f"{where} was {'replaced' if decision.fired else 'kept'}, but {words}")
    return [decision for decision in token.decisions if decision.fired]


def _check_word(winner: TokenDecision, word: Sequence[tuple[int, FusedToken]], *, whole: bool, drawn: bool) -> None:
    """Check that the replacement is the word that the winning decision chose."""
    number, token = word[0]
    if token.source != winner.assistant:
        words = f"is the word of {token.source}, but {winner.assistant} was more confident"
        raise TraceError(f"token {number} ({token.text!r}) {words}")
    if token.replaced != winner.draft_text or winner not in token.decisions:
        words = f"replaced {token.replaced!r}, but the decision was about {winner.draft_text!r}"
        raise TraceError(f"token {number} ({token.text!r}) {words}")
    data = b"".join(one.data for _, one in word)
    stands = readable(data)
    if drawn or (stands.startswith(winner.text) and bool(stands) == bool(winner.text)):
        return
    cut = winner.text.startswith(stands) or winner.text.encode().startswith(data)  # the cut may be inside a character
    # Only the last word may be cut off. The cut may even lie in the white space that a template writes before an
    # answer.
    if whole or (not stands and token.end) or not cut:
        raise TraceError(f"token {number} is {token.text!r}, but the decision put {winner.text!r} there")
