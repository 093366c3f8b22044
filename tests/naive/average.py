"""Averaging, transcribed from its definition alone: all tokens of the vocabulary, added up one by one.

Shares no code with the library. Models are those of `reference`: toys, or servers over plain HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence

from naive import reference
from toys import toy_models as toys


def average(
    prompt: bytes,
    models: Sequence[toys.Model],
    weights: Sequence[float],
    *,
    max_tokens: int,
    stop: Sequence[bytes] = (),
) -> tuple[reference.Fused, list[float]]:
    """The answer, and the mean of each token.

    The first model continues its own ids until another token than its own is written; all others encode the text.
    """
    vocabulary = models[0].vocabulary
    answer: list[reference.Out] = []
    means: list[float] = []
    while True:
        own = list(vocabulary.encode(prompt + reference.text_of(answer)))
        while True:
            text = vocabulary.encode(prompt + reference.text_of(answer))
            probs = [model.next(text if at else own) for at, model in enumerate(models)]
            total = mean(probs, weights)
            drafted = probs[0].index(max(probs[0]))
            listed = {n for p in probs for n in range(len(p)) if p[n]} - {drafted}
            ranked = [drafted, *sorted(listed, key=vocabulary.tokens.__getitem__)]
            best = ranked[0]
            for n in ranked:
                if total[n] > total[best] * (1 + 1e-9):
                    best = n
            answer.append(reference.Out(vocabulary.tokens[best], 0, best == vocabulary.end))
            means.append(total[best])
            done = reference.finished(answer, stop, max_tokens)
            if done:
                return done, means
            own.append(best)
            if best != drafted:
                break


def mean(probs: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float]:
    """The weighted sum of distributions."""
    return [sum(w * p for w, p in zip(weights, column, strict=True)) for column in zip(*probs, strict=True)]
