"""SAFE, transcribed from its definition alone: token by token, everything is looked up, nothing is kept.

Shares no code with the library. Models are those of `reference`: toys, or servers over plain HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from naive.reference import Out, Tok, finished, generate, text_of, whole
from toys.toy_models import Model

Key = tuple[bytes, bool]
ROUNDING = 1e-9
ASKED = 20  # of a verifier's most probable tokens the probabilities are known: behind its own encoding of the text


@dataclass
class Written:
    """An answer; and for each token why it stands: `cut`, `agreed`, `mean`, or `mixed` with E of each candidate."""

    tokens: tuple[Out, ...]
    finish_reason: str
    stop_reason: str
    why: list[tuple[str, Mapping[Key, float]]]

    @property
    def text(self) -> bytes:
        """The answer's bytes."""
        return text_of(self.tokens)


def shown(text: bytes) -> bytes:
    """The text without bytes that are no characters."""
    return text.decode("utf-8", "ignore").encode()


def characters(model: Model, prompt: bytes, text: bytes) -> dict[int, tuple[bytes, float]]:
    """The model's tokens of prompt and text, joined to whole characters: by where they begin in the text, each with
    the least probability of its parts.
    """
    sent = shown(text)
    ids = model.vocabulary.encode(prompt + sent)
    found: dict[int, tuple[bytes, float]] = {}
    data, least, at = b"", 1.0, -len(prompt)
    for number, one in enumerate(ids):
        data += model.vocabulary.tokens[one]
        if at + len(data) > 0:
            least = min(least, model.next(ids[:number])[one])
        if data and whole(data) == len(data):
            found[at] = (data, least)
            at, data, least = at + len(data), b"", 1.0
    return found


def begins(model: Model, prompt: bytes, text: bytes) -> dict[int, bytes]:
    """The model's tokens of prompt and text, in whole characters, by where they begin in the text."""
    sent = shown(text)
    found: dict[int, bytes] = {}
    data, at = b"", -len(prompt)
    for one in model.vocabulary.encode(prompt + sent):
        data += model.vocabulary.tokens[one]
        if data and whole(data) == len(data):
            found[at] = data
            at, data = at + len(data), b""
    return found


def most_probable(model: Model, ids: Sequence[int], first: Tok, count: int) -> dict[Key, float]:
    """The `count` most probable tokens, of which `first` is the first one; parts of characters do not count."""
    probs, vocabulary = model.next(ids), model.vocabulary
    found: dict[Key, float] = {(first.data, first.end): first.prob or 0.0}
    if len(first.ids) == 1 and whole(first.data) == len(first.data):
        for n in sorted(range(len(probs)), key=lambda n: (-probs[n], n)):
            data = vocabulary.tokens[n] if probs[n] else b""
            if probs[n] and (n == vocabulary.end or (data and shown(data) == data)):
                found.setdefault((data, n == vocabulary.end), probs[n])
    return dict(islice(found.items(), count))


@dataclass
class Found:
    """The probability that a model gives to a token that it does not list; is it all of the token, is it as listed?"""

    prob: float
    whole: bool = False
    listed: bool = False


def looked_up(model: Model, prompt: bytes, text: bytes, key: Key, listed: Mapping[Key, float]) -> Found:
    """The probability of the model's first token of `key` behind the text."""
    data, end = key
    if end:
        return Found(model.next(model.vocabulary.encode(prompt + shown(text)))[model.vocabulary.end], whole=True)
    first = characters(model, prompt, text + data).get(len(shown(text)))
    if first is None or shown(data) != data:
        return Found(0.0)
    told = (first[0], False) in listed
    return Found(listed[first[0], False] if told else first[1], whole=first[0] == data, listed=told)


def largest(candidates: Mapping[Key, float], drafted: Key) -> Key:
    """The token with the largest E: of equals the drafter's, then the end, then in the order of bytes."""
    best = drafted
    for key in sorted(candidates):
        if candidates[key] > candidates[best] * (1 + ROUNDING):
            best = key
    return best


def distribution(model: Model, ids: Sequence[int], first: Tok, count: int) -> tuple[Key, dict[Key, float]]:
    """The most probable token, and the list of a model behind some ids."""
    return (first.data, first.end), most_probable(model, ids, first, count)


def safe(
    prompt: bytes,
    models: Sequence[Model],
    *,
    max_tokens: int,
    stop: Sequence[bytes] = (),
    weights: Sequence[float] | None = None,
    ahead: int = 5,
    listed: int = 10,
    gone: Mapping[int, int] = MappingProxyType({}),
    ids_kept: bool = True,
) -> Written:
    """`gone`: from which token of the answer on a model is not heard. `ids_kept`: the drafter continues its own ids."""
    answer: list[Out] = []
    why: list[tuple[str, Mapping[Key, float]]] = []
    ids: list[int] = []  # as the drafter has read and written them
    pen = generate(models[0], prompt)
    fresh = True
    while True:
        if fresh or not ids_kept:
            ids = list(models[0].vocabulary.encode(shown(prompt + text_of(answer))))
            pen = generate(models[0], prompt + text_of(answer))
        fresh = False
        draft = list(islice(pen, min(ahead, max_tokens - len(answer))))
        text = text_of(answer) + text_of(draft)
        for ours in draft:
            heard = [n for n in range(len(models)) if len(answer) < gone.get(n, math.inf)]
            share = shares(heard, weights or [1.0] * len(models))
            best, reason, mixture = decide(prompt, text_of(answer), text, models, share, ours, ids, listed)
            answer.append(Out(best[0], 0, best[1]))
            why.append((reason, mixture))
            if done := finished(answer, stop, max_tokens):
                return Written(done.tokens, done.finish_reason, done.stop_reason, why)
            if best != (ours.data, ours.end):
                fresh = True
                break
            ids += ours.ids


def shares(heard: Sequence[int], weights: Sequence[float]) -> dict[int, float]:
    """The weights of those who are heard."""
    total = sum(weights[n] for n in heard)
    return {n: weights[n] / total if total else 1 / len(heard) for n in heard}


def decide(
    prompt: bytes,
    place: bytes,
    text: bytes,
    models: Sequence[Model],
    share: Mapping[int, float],
    ours: Tok,
    ids: Sequence[int],
    listed: int,
) -> tuple[Key, str, dict[Key, float]]:
    """The token behind `place` where the drafter wrote `ours` and, with all that it wrote ahead, `text`."""
    verifiers = [n for n in share if n]
    own: dict[int, Key] = {0: (ours.data, ours.end)}
    for n in verifiers:
        token = b"" if ours.end else begins(models[n], prompt, text).get(len(shown(place)))
        if token is None:
            return own[0], "cut", {}
        own[n] = (token, ours.end)
    if not verifiers:
        return own[0], "cut", {}
    firsts, lists = dict[int, Key](), dict[int, dict[Key, float]]()
    firsts[0], lists[0] = distribution(models[0], ids, ours, listed)
    for n in verifiers:
        first = next(generate(models[n], prompt + place, [Tok(own[n][0], None, end=own[n][1])]))
        encoded = models[n].vocabulary.encode(shown(prompt + place))
        firsts[n], lists[n] = distribution(models[n], encoded, first, max(listed, ASKED))
    if all(firsts[n] == own[n] for n in verifiers):
        return own[0], "agreed", {}

    def prob(n: int, key: Key) -> float:
        if key in lists[n]:
            return lists[n][key]
        found = looked_up(models[n], prompt, place, key, lists[n])
        return found.prob if n or found.listed else min(found.prob, max(0.0, 1 - math.fsum(lists[n].values())))

    if sum(share[n] * prob(n, own[n]) for n in share) > 0.5 * (1 + ROUNDING):
        return own[0], "mean", {}
    candidates = {key for one in lists.values() for key in islice(one, listed)}
    mixture = {key: sum(share[n] * prob(n, key) for n in share) for key in candidates}
    if max(mixture.values()) < 0.5 * (1 - ROUNDING):
        plain = dict(mixture)
        for key in candidates:
            its_own = key in lists[0] or looked_up(models[0], prompt, place, key, lists[0]).whole
            if its_own and key[0] and plain[key] > 0.1 * (1 + ROUNDING):
                mixture[key] += sum(plain[one] for one in candidates if one != key and one[0].startswith(key[0]))
    return largest(mixture, own[0]), "mixed", mixture
