"""One place of SAFE: the models' own tokens and distributions there, and the decision from them. Pure.

`safe` defines the steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from cosd_api.decoding.commands import Contender
from cosd_api.decoding.passage import Passage
from cosd_api.methods.lists import ROUNDING, Key, key_of, probs_of
from cosd_api.methods.mean import (
    SURE,
    MeanBounds,
    MeanChoice,
    contender,
    is_proved,
    largest,
    mean_of,
    reason_for,
    token_of,
)
from cosd_providers.contract import Token

_SHARPENED = 0.1  # a token with more of the mean than this also counts for the tokens that begin with it
_SUM = 1e-6  # rounding of the sum of a list

Encoding = Mapping[int, bytes]
"""Tokens of a text, by the byte at which they begin."""


@dataclass(slots=True)
class DraftAhead:
    """A text whose last tokens were written ahead, with the models' encodings and lists.

    Attributes:
        text: the answer with all of these tokens.
        tokens: these tokens, each with its listed alternatives.
        starts: the byte at which each of them begins.
        encodings: of the text, by verifier; None if it is not known.
        lists: by model and token: the model's most probable token in its place, with its listed alternatives.
    """

    text: bytes
    tokens: tuple[Token, ...]
    starts: list[int]
    encodings: dict[int, Encoding | None] = field(default_factory=dict[int, Encoding | None])
    lists: dict[tuple[int, int], Token | None] = field(default_factory=dict[tuple[int, int], Token | None])

    @classmethod
    def of(cls, before: bytes, passage: Passage) -> DraftAhead:
        """The tokens of a passage, written ahead after a text."""
        *starts, _ = accumulate((len(token.data) for token in passage.tokens), initial=len(before))
        made = cls(before + passage.data, passage.tokens, starts)
        made.lists |= {(0, at): token for at, token in enumerate(passage.tokens)}
        return made

    def own(self, model: int, at: int) -> Key | None:
        """A model's own token where token `at` begins (step 4); None if none of its tokens begins there (step 3)."""
        if not model:
            return key_of(self.tokens[at])
        encoding = self.encodings[model]
        if encoding is None or self.tokens[at].end:
            return None if encoding is None else (b"", True)
        data = encoding.get(self.starts[at])
        return None if data is None else (data, False)


@dataclass(slots=True)
class SafePlace:
    """One place, with the distributions there.

    Attributes:
        text: the answer before it.
        own: each model's own token (step 4); the drafter's is t_j.
        firsts: each model's most probable token, with its listed alternatives.
        listed: each model's most probable tokens that are candidates.
        weights: of the models.
        known: probabilities that were looked up, by model and token.
        whole: whether a token is in the drafter's vocabulary, if it was looked up.
        lists: all that each model lists.
        tops: of these, its candidates.
        keys: the candidates: t_j first, then in the order of bytes.
    """

    text: bytes
    own: Mapping[int, Key]
    firsts: Mapping[int, Token | None]
    listed: int
    weights: Mapping[int, float]
    known: dict[tuple[int, Key], float] = field(default_factory=dict[tuple[int, Key], float])
    whole: dict[Key, bool] = field(default_factory=dict[Key, bool])
    lists: dict[int, dict[Key, float]] = field(init=False)
    tops: dict[int, dict[Key, float]] = field(init=False)
    keys: list[Key] = field(init=False)

    def __post_init__(self) -> None:
        self.lists = {model: probs_of(token) for model, token in self.firsts.items()}
        self.tops = {model: dict([*probs.items()][: self.listed]) for model, probs in self.lists.items()}
        self.keys = [self.own[0], *sorted({key for probs in self.tops.values() for key in probs} - {self.own[0]})]

    # ---------------------------------------------------------------------------------------------------- step 5

    @property
    def agreed(self) -> bool:
        """True if every verifier would write its own token."""
        return all(self._first(model) == own for model, own in self.own.items() if model)

    @property
    def own_mean(self) -> MeanBounds:
        """The mean of the probabilities of the models' own tokens."""
        return self._mean(self.own)

    @property
    def own_unknown(self) -> list[tuple[int, Key]]:
        """The models' own tokens that must be looked up."""
        return [(model, key) for model, key in self.own.items() if self.weights[model] and not self._knows(model, key)]

    # ---------------------------------------------------------------------------------------------- steps 6 to 8

    @property
    def means(self) -> dict[Key, MeanBounds]:
        """E of every candidate (step 6)."""
        return {key: self._mean(dict.fromkeys(self.weights, key)) for key in self.keys}

    @property
    def members(self) -> dict[Key, bool | None]:
        """The candidates, and whether the drafter's vocabulary has them; None if they were not looked up."""
        return {key: True if key in self.tops[0] else self.whole.get(key) for key in self.keys}

    @property
    def unknown(self) -> list[tuple[int, Key]]:
        """The next tokens to look up: of the candidates that may have the largest mean, then of all."""
        means = self.means
        least = max(mean.low for mean in means.values())
        heard = [model for model, weight in self.weights.items() if weight or not model]
        for keys in ([key for key, mean in means.items() if mean.high >= least], self.keys):
            if cells := [(model, key) for key in keys for model in heard if not self._knows(model, key)]:
                return cells
        return []

    def choice(self, best: Key, count: int) -> MeanChoice:
        """The choice of a token, with the record of the tokens compared with it; `count` models in all."""
        plain = self.means
        means = sharpened(plain, self.members)
        models = [model for model in self.weights if self._first(model) == best]
        models = models or [max(self.weights, key=lambda model: self.tops[model].get(best, -1.0))]
        firsts = {self._first(model) for model in self.weights}
        compared = [key for key in self.keys if key in (best, self.keys[0]) or key in firsts]
        contenders = [self._contender(key, means[key], models if key == best else None, count) for key in compared]
        words = "with the tokens that begin so, the " if means[best] != plain[best] else ""
        reason = words + reason_for(best, means)
        token = token_of(best, [self.firsts[models[0]]])
        return MeanChoice.of(token, models[0], contenders, reason, at=compared.index(best))

    def _contender(self, key: Key, mean: MeanBounds, models: Sequence[int] | None, count: int) -> Contender:
        """The record of a candidate."""
        if models is None:
            models = [model for model in self.weights if self._first(model) == key]
        bounds = {model: self._bounds(model, key) for model in self.weights}
        probs = {model: one.low for model, one in bounds.items() if one.low == one.high}
        return contender(key, models, [probs.get(model) for model in range(count)], mean)

    def kept(self, reason: str) -> MeanChoice:
        """The drafter's token, which is kept; beside it the tokens of the other models."""
        found: dict[Key, list[int]] = {self.own[0]: [-1]}
        for model in self.weights:
            if model and (first := self._first(model)) is not None:
                found.setdefault(first, []).append(model - 1)
        token = self.firsts[0]
        assert token is not None, "the drafter wrote it"
        return MeanChoice.of(token, 0, [Contender(tuple(sources), *key) for key, sources in found.items()], reason)

    def _first(self, model: int) -> Key | None:
        """A model's most probable token."""
        token = self.firsts[model]
        return None if token is None else key_of(token)

    def _knows(self, model: int, key: Key) -> bool:
        return key in self.told(model) or (model, key) in self.known

    def _mean(self, cells: Mapping[int, Key]) -> MeanBounds:
        """The mean over the models, each with the probability of a token of its own."""
        return mean_of((weight, self._bounds(model, cells[model])) for model, weight in self.weights.items())

    def _bounds(self, model: int, key: Key) -> MeanBounds:
        """The probability of a token: as listed, as looked up, or from 0 to its upper bound."""
        known = self.told(model).get(key, self.known.get((model, key)))
        if known is not None:
            return MeanBounds(known, known)
        data, end = key
        begun = (prob for (one, ends), prob in self.told(model).items() if ends == end and data.startswith(one))
        return MeanBounds(0.0, max(self.rest(model), *begun, 0.0))

    def told(self, model: int) -> Mapping[Key, float]:
        """The probabilities that need not be looked up: the drafter's follow tokens of its own."""
        return self.lists[model] if model else self.tops[model]

    def rest(self, model: int) -> float:
        """The probability that these tokens leave over."""
        rest = max(0.0, 1 - math.fsum(self.told(model).values()))
        return min(1.0, rest + _SUM) if model else rest


def sharpened(means: Mapping[Key, MeanBounds], members: Mapping[Key, bool | None]) -> dict[Key, MeanBounds]:
    """Step 7: every mean with its additions."""
    limit = SURE * (1 - ROUNDING)
    surely = max(mean.high for mean in means.values()) < limit
    maybe = max(mean.low for mean in means.values()) < limit
    found: dict[Key, MeanBounds] = {}
    for key, mean in means.items():
        longer = [other for one, other in means.items() if one != key and key[0] and one[0].startswith(key[0])]
        low, high = mean.low, mean.high
        if surely and members[key] and mean.low > _SHARPENED * (1 + ROUNDING):
            low += sum(one.low for one in longer)
        if maybe and members[key] is not False and mean.high > _SHARPENED * (1 + ROUNDING):
            high += sum(one.high for one in longer)
        found[key] = MeanBounds(low, high)
    return found


def settled(means: Mapping[Key, MeanBounds]) -> Key | None:
    """Step 8: the token with the largest mean, of equals the first listed; None while the bounds leave it open."""
    best = largest(means)
    return best if all(mean.low == mean.high for mean in means.values()) or is_proved(best, means) else None
