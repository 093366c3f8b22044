"""The margins at which a live answer parts from the naive one.

A server computes a batch in another order than a single token: the last digits of its probabilities differ, and where a
decision hangs on these, either text is right. Nothing else is excused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import takewhile

from toys.toy_models import Model

CLOSE = 1e-2
"""Margins below this, in probability, are no difference."""

Mixes = Callable[[Sequence[Sequence[float]]], Sequence[float]]


def margin(
    prompt: bytes,
    models: Sequence[Model],
    texts: tuple[bytes, bytes],
    *,
    bounds: tuple[float, float] | None = None,
    mixed: Mixes | None = None,
) -> float:
    """The margin of the closest decision in the word in which two answers part.

    Args:
        prompt: the prompt of both.
        models: the models, the draft first.
        texts: the two answers.
        bounds: alpha and beta of a rule that decided.
        mixed: the one distribution that the tokens were taken from; by default each model's own count.
    """
    common = bytes(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    word = max(common.rfind(b" "), 0)
    found = math.inf
    for at in range(word, len(common) + 1):
        before = prompt + common[:at]
        if before.decode("utf-8", "ignore").encode() != before:
            continue
        lists = [model.next(model.vocabulary.encode(before)) for model in models]
        for probs in [mixed(lists)] if mixed else lists:
            first, second = sorted(probs)[-1:-3:-1]
            found = min(found, first - second)
        if bounds:
            alpha, beta = bounds
            p, *others = map(max, lists)
            found = min(found, abs(p - alpha), *(abs(q - beta * p) for q in others))
    return found


def closest(prompt: bytes, models: Sequence[Model], text: bytes) -> float:
    """The least margin between the two most probable tokens of a model, anywhere in an answer."""
    places = [at for at in range(len(text)) if text[:at].decode("utf-8", "ignore").encode() == text[:at]]
    lists = (model.next(model.vocabulary.encode(prompt + text[:at])) for at in places for model in models)
    return min(first - second for first, second in (sorted(probs)[-1:-3:-1] for probs in lists))


def tied(prompt: bytes, models: Sequence[Model], texts: tuple[bytes, bytes], **decided: object) -> bool:
    """Test whether two answers differ by a decision that hangs on the last digits; see `margin`."""
    return texts[0] != texts[1] and margin(prompt, models, texts, **decided) < CLOSE  # type: ignore[arg-type]
