"""Deferral by its definition: token by token, and every probability taken from the models' whole distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cosd_api import DeferralVerifier
from cosd_api.verification.deferral import DEFERRAL_FEATURES
from naive import reference
from toys.toy_models import Model

ZERO = dict.fromkeys(("bias", *DEFERRAL_FEATURES), 0.0)


def gate(eta: float = 0.5, listed: int = 3, **weights: float) -> DeferralVerifier:
    """A gate with these weights, and none for the others."""
    return DeferralVerifier.model_validate({"listed": listed, "weights": ZERO | weights, "eta": eta})


@dataclass(frozen=True)
class Place:
    """A token of the answer: whether the gate opened, and how far another outcome is, in probability."""

    opens: bool
    margin: float


def following(model: Model, text: bytes) -> Iterator[tuple[reference.Tok, list[float], list[int]]]:
    """The model's continuation by its own tokens: each with the probabilities of the others, and the ids before it."""
    vocabulary = model.vocabulary
    ids = list(vocabulary.encode(text))
    for token in reference.generate(model, text):
        others: dict[tuple[bytes, bool], float] = {}
        if len(token.ids) == 1:  # else a character of several tokens, beside which nothing is listed
            for one, prob in enumerate(model.next(ids)):
                if not prob:
                    continue
                data, end = vocabulary.tokens[one], one == vocabulary.end
                whole = end or (data and data.decode("utf-8", "ignore").encode() == data)
                if whole and not (end and model.hides_end):
                    others[data, end] = max(prob, others.get((data, end), 0))
            others.pop((token.data, token.end), None)
        yield token, sorted(others.values(), reverse=True), [*ids]
        ids += token.ids


def deferral(one: DeferralVerifier, token: reference.Tok, others: Sequence[float]) -> float:
    """The probability of deferral, from the documentation's table."""
    p = token.prob or 0.0
    a = others[: one.listed]
    r = max(0.0, 1 - p - sum(a))
    found = {"top": p, "margin": p - (a[0] if a else min(p, r))}
    found["entropy"] = sum(-x * math.log(x) for x in (p, *a, r) if x > 0)
    text = token.data.decode("utf-8", "backslashreplace")
    first = text.strip()[:1]
    spaced = text[:1].isspace()
    found["number"] = float(first.isdigit())
    found["word"] = float(first.isalpha() and spaced)
    found["part"] = float(first.isalpha() and not spaced)
    found["end"] = float(token.end)
    weights = one.weights.model_dump()
    return 1 / (1 + math.exp(-weights["bias"] - sum(weights[name] * value for name, value in found.items())))


def naive(
    prompt: bytes, draft: Model, assistant: Model, one: DeferralVerifier, *, max_tokens: int, stop: Sequence[bytes] = ()
) -> tuple[reference.Fused, list[Place]]:
    """The answer by a gate on what the draft lists, and what was seen at each of its tokens."""

    def found(token: reference.Tok, others: Sequence[float], _: Sequence[int]) -> float:
        return deferral(one, token, others)

    return by_gate(prompt, draft, assistant, found, one.eta, max_tokens=max_tokens, stop=stop)


def by_gate(
    prompt: bytes,
    draft: Model,
    assistant: Model,
    gate_of: Callable[[reference.Tok, Sequence[float], Sequence[int]], float],
    eta: float,
    *,
    max_tokens: int,
    stop: Sequence[bytes] = (),
) -> tuple[reference.Fused, list[Place]]:
    """The answer by any gate: from a token, the probabilities of the others there and the ids before it.

    The draft writes from the text so far; where the gate opens, the assistant encodes the text before and writes one
    token; if it is another than the draft's, the draft begins again behind it.
    """
    answer: list[reference.Out] = []
    seen: list[Place] = []
    while True:
        for ours, others, before in following(draft, prompt + reference.text_of(answer)):
            stands, wanted, opens = True, ours, False
            margin = (ours.prob or 0.0) - max([*others, 0.0])
            if ours.prob is not None:
                found = gate_of(ours, others, before)
                opens, margin = found > eta, min(margin, abs(found - eta))
            if opens:
                theirs, beside, _ = next(following(assistant, prompt + reference.text_of(answer)), (None, [], []))
                if theirs is not None and theirs.prob is not None and beside:
                    margin = min(margin, theirs.prob - beside[0])
                wish = reference.generate(assistant, prompt + reference.text_of(answer), [ours], patience=3)
                theirs = next(wish, None)  # of equally probable ones the draft's
                stands = theirs is None or (theirs.data, theirs.end) == (ours.data, ours.end)
                wanted = ours if theirs is None or stands else theirs
            answer.append(reference.Out(wanted.data, -1 if stands else 0, wanted.end))
            seen.append(Place(opens, margin))
            done = reference.finished(answer, stop, max_tokens)
            if done:
                return done, seen
            if not stands:
                break
