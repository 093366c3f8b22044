"""The assistant's probability of the draft's token, as the definition of `SurpriseVerifier` has it."""

from __future__ import annotations

import math

from cosd_api import SurpriseVerifier
from naive import reference
from toys.toy_models import Model


def draft_q(model: Model, before: bytes, ours: reference.Tok, verifier: SurpriseVerifier) -> float:
    """A token's probability at the end of a text, by the model's list there, or the most that it can be."""
    wanted = math.floor(1 / verifier.gamma)
    theirs = next(reference.generate(model, before, [ours], patience=3))
    listed = {(theirs.data, theirs.end): theirs.prob or 0.0}
    if len(theirs.ids) == 1 and theirs.prob is not None:  # else a character of several tokens, which has no list
        sent = before.decode("utf-8", "ignore").encode()
        probs = list(enumerate(model.next(list(model.vocabulary.encode(sent)))))
        for one, prob in sorted(probs, key=lambda pair: -pair[1]):
            end = one == model.vocabulary.end
            hidden = end and model.hides_end
            if prob > 0 and not hidden and len(listed) <= wanted and (end or is_text(model.vocabulary.tokens[one])):
                listed.setdefault((model.vocabulary.tokens[one], end), prob)
    if (ours.data, ours.end) in listed:
        return listed[ours.data, ours.end]
    left = max(0.0, 1 - math.fsum(listed.values()))
    return min(left, *listed.values()) if len(listed) > 1 and not ours.end and ours.data.isascii() else left


def is_text(data: bytes) -> bool:
    """True if the bytes are whole characters, and some."""
    try:
        return bool(data.decode())
    except UnicodeDecodeError:
        return False
