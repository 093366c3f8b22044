"""One place of SAFE: the models' own tokens, their distributions, and the decision. All functions are pure.

The docstring of the module `safe` defines the steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cosd_api.decoding.commands import Contender
from cosd_api.decoding.passage import Passage, numbered
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

_SHARPENED = 0.1  # step 7 adds the means of longer tokens only to tokens whose own mean is above this number
_SUM = 1e-6  # the largest rounding error of the sum of the probabilities in a list

Encoding = Mapping[int, bytes]
"""The tokens of a text, by the byte offset at which each token begins."""


@dataclass(slots=True)
class DraftAhead:
    """A text whose last tokens were written ahead, with the models' encodings and lists.

    Attributes:
        text: the answer, including the tokens written ahead.
        tokens: the tokens written ahead, each with its listed alternatives.
        starts: the byte offset at which each of `tokens` begins.
        encodings: each verifier's encoding of the text; None if it is unknown.
        lists: for each model and token, the model's most probable token at that place, with its listed alternatives.
    """

    text: bytes
    tokens: tuple[Token, ...]
    starts: list[int]
    encodings: dict[int, Encoding | None] = field(default_factory=dict[int, Encoding | None])
    lists: dict[tuple[int, int], Token | None] = field(default_factory=dict[tuple[int, int], Token | None])

    @classmethod
    def of(cls, passage: Passage) -> DraftAhead:
        """Create the instance for a passage of the drafter."""
        starts = [start for start, _ in numbered(passage.tokens, len(passage.before))]
        made = cls(passage.before + passage.data, passage.tokens, starts)
        made.lists |= {(0, at): token for at, token in enumerate(passage.tokens)}
        return made

    def own(self, model: int, at: int) -> Key | None:
        """Return a model's own token that begins where token `at` begins (step 4); None if there is none (step 3)."""
        if not model:
            return key_of(self.tokens[at])
        encoding = self.encodings[model]
        if encoding is None or self.tokens[at].end:
            return None if encoding is None else (b"", True)
        data = encoding.get(self.starts[at])
        return None if data is None else (data, False)


@dataclass(slots=True)
class SafePlace:
    """One place, with the models' distributions at that place.

    Attributes:
        text: the answer before the place.
        own: each model's own token (step 4); the drafter's is t_j.
        firsts: each model's most probable token, with its listed alternatives.
        listed: the number of each model's most probable tokens that are candidates.
        weights: the weights of the models.
        known: the probabilities that were looked up, by model and token.
        whole: for each token that was looked up, whether it is in the drafter's vocabulary.
        lists: all tokens that each model lists, with their probabilities.
        tops: the `listed` most probable tokens of each model, with their probabilities.
        keys: all candidates: t_j first, then the others sorted by bytes.
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
        """Bounds on the weighted mean of the probabilities of the models' own tokens."""
        return self._mean(self.own)

    @property
    def own_unknown(self) -> list[tuple[int, Key]]:
        """The models whose own tokens must be looked up, with these tokens."""
        return [(model, key) for model, key in self.own.items() if self.weights[model] and not self._knows(model, key)]

    # ---------------------------------------------------------------------------------------------- steps 6 to 8

    @property
    def means(self) -> dict[Key, MeanBounds]:
        """Bounds on E for every candidate (step 6)."""
        return {key: self._mean(dict.fromkeys(self.weights, key)) for key in self.keys}

    @property
    def members(self) -> dict[Key, bool | None]:
        """For each candidate, whether it is in the drafter's vocabulary; None if it was not looked up."""
        return {key: True if key in self.tops[0] else self.whole.get(key) for key in self.keys}

    @property
    def unknown(self) -> list[tuple[int, Key]]:
        """The next pairs of model and token to look up, first for candidates that may win, then for all others."""
        means = self.means
        least = max(mean.low for mean in means.values())
        heard = [model for model, weight in self.weights.items() if weight or not model]
        for keys in ([key for key, mean in means.items() if mean.high >= least], self.keys):
            if cells := [(model, key) for key in keys for model in heard if not self._knows(model, key)]:
                return cells
        return []

    def choice(self, best: Key, count: int) -> MeanChoice:
        """Choose the token `best`, and record the tokens compared with it; `count` is the number of all models."""
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
        """Return the record of a candidate."""
        if models is None:
            models = [model for model in self.weights if self._first(model) == key]
        bounds = {model: self._bounds(model, key) for model in self.weights}
        probs = {model: one.low for model, one in bounds.items() if one.low == one.high}
        return contender(key, models, [probs.get(model) for model in range(count)], mean)

    def kept(self, reason: str) -> MeanChoice:
        """Keep the drafter's token, and record the most probable tokens of the other models."""
        found: dict[Key, list[int]] = {self.own[0]: [-1]}
        for model in self.weights:
            if model and (first := self._first(model)) is not None:
                found.setdefault(first, []).append(model - 1)
        token = self.firsts[0]
        assert token is not None, "the drafter wrote it"
        return MeanChoice.of(token, 0, [Contender(tuple(sources), *key) for key, sources in found.items()], reason)

    def _first(self, model: int) -> Key | None:
        """Return a model's most probable token."""
        token = self.firsts[model]
        return None if token is None else key_of(token)

    def _knows(self, model: int, key: Key) -> bool:
        return key in self.told(model) or (model, key) in self.known

    def _mean(self, cells: Mapping[int, Key]) -> MeanBounds:
        """Compute bounds on the weighted mean of the probabilities that the models give to their tokens in `cells`."""
        return mean_of((weight, self._bounds(model, cells[model])) for model, weight in self.weights.items())

    def _bounds(self, model: int, key: Key) -> MeanBounds:
        """Return bounds on a token's probability, which are equal if the probability was listed or looked up."""
        known = self.told(model).get(key, self.known.get((model, key)))
        if known is not None:
            return MeanBounds(known, known)
        data, end = key
        begun = (prob for (one, ends), prob in self.told(model).items() if ends == end and data.startswith(one))
        return MeanBounds(0.0, max(self.rest(model), *begun, 0.0))

    def told(self, model: int) -> Mapping[Key, float]:
        """Return the listed probabilities that replace look-ups: a verifier's whole list, or the drafter's candidates.

        The rest of the drafter's list is not used, because the list follows the tokens that the drafter wrote, whereas
        a look-up follows the drafter's encoding of the text.
        """
        return self.lists[model] if model else self.tops[model]

    def rest(self, model: int) -> float:
        """Return 1 minus the sum of the probabilities in `told`."""
        rest = max(0.0, 1 - math.fsum(self.told(model).values()))
        return min(1.0, rest + _SUM) if model else rest


def sharpened(means: Mapping[Key, MeanBounds], members: Mapping[Key, bool | None]) -> dict[Key, MeanBounds]:
    """Step 7: add the means of longer tokens; if the bounds do not decide a condition, only the upper bound grows."""
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
    """Step 8: return the first token with the largest mean; None if the bounds do not decide which token that is."""
    best = largest(means)
    return best if all(mean.low == mean.high for mean in means.values()) or is_proved(best, means) else None
