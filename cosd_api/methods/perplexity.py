"""Perplexities of proposed texts, and the choice between the texts, for Cool-Fusion and reranking.

::

    PPL_v(s) = exp(mean of -log p_v(t) over the tokens t of s)          (equation 2; v's own tokens)     `perplexity`
    s* = argmin over s of the mean of PPL_v(s) over the models v        (equation 3; arithmetic)         `mean`, `least`

The equations are from Cool-Fusion (arXiv 2407.19807). The published equation 2 has a sum, but the perplexities that the
paper reports (Table 3) can only be means, so `normalisation="token"` is the default. `"sum"` follows the published
equation. `"byte"` divides by the number of bytes of the text, which makes models with long and short tokens comparable.

All computations use logarithms, because the perplexity of a long text may be too large for a float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from cosd_api.decoding.commands import Contender, DecidedSegment
from cosd_api.decoding.model import Model
from cosd_api.decoding.passage import Passage, joined
from cosd_api.decoding.program import Answer
from cosd_api.methods.base import Program
from cosd_api.methods.needs import RoleNeeds
from cosd_providers.contract import Token

Normalisation = Literal["token", "byte", "sum"]
"""The divisor of a text's negative log-likelihood: its number of tokens, its number of bytes (the end of sequence
counts as one byte), or 1."""

ROUNDING = 1e-9
"""The largest difference between the logarithms of two mean perplexities at which the texts count as equal."""


def perplexity(tokens: Sequence[Token], normalisation: Normalisation) -> float | None:
    """Compute the logarithm of a text's perplexity; None if there are no tokens, or a probability is unknown."""
    probs = [token.prob for token in tokens]
    known = [prob for prob in probs if prob is not None]
    if not known or len(known) < len(probs):
        return None
    total = math.fsum(-math.log(prob) if prob else math.inf for prob in known)
    match normalisation:
        case "token":
            return total / len(tokens)
        case "byte":
            return total / sum(len(token.data) or token.end for token in tokens)
        case "sum":
            return total


def mean(logs: Sequence[float]) -> float:
    """Compute the logarithm of the arithmetic mean of perplexities, which are given as logarithms."""
    most = max(logs)
    return most if math.isinf(most) else most + math.log(math.fsum(math.exp(one - most) for one in logs) / len(logs))


def least(means: Sequence[float | None]) -> int:
    """Return the index of the lowest mean, the first one if several are equal; 0 if the first text has no mean."""
    if means[0] is None:
        return 0
    best = min(one for one in means if one is not None)
    return next(at for at, one in enumerate(means) if one is not None and (one == best or one - best <= ROUNDING))


@dataclass(frozen=True, kw_only=True)
class ByPerplexity(Program):
    """A method in which all models score the proposed texts by their perplexity.

    Attributes:
        normalisation: the divisor of a text's negative log-likelihood: `"token"`, `"byte"` or `"sum"`.

    Raises:
        SettingError: there is no such normalisation.
    """

    symmetric: ClassVar[bool] = True

    needs: ClassVar[RoleNeeds] = {"models": ("scores",)}

    normalisation: Normalisation = "token"


@dataclass(slots=True)
class ProposedText:
    """A text that one or several models propose.

    Attributes:
        text: the bytes of the text.
        end: whether the answer ends after the text, with a model's own end of sequence.
        passage: the tokens of the first model that proposed the text.
        models: the models that propose the text, in the order in which they were added.
        own: the tokens of each model that wrote the whole text in one request.
        ahead: the text that the first of `models` wrote after this text.
    """

    text: bytes
    end: bool
    passage: Passage
    models: list[int] = field(default_factory=list[int])
    own: dict[int, Sequence[Token]] = field(default_factory=dict[int, Sequence[Token]])
    ahead: bytes = b""

    @classmethod
    def of(cls, passage: Passage, length: int) -> ProposedText:
        """Create a proposal, without an end of sequence, from the first `length` bytes of a passage."""
        return cls(passage.data[:length], False, passage.first(length), ahead=passage.data[length:])

    def written_by(self, model: int) -> Sequence[Token] | None:
        """Return a model's own tokens if they make up exactly this text and all have probabilities; otherwise None."""
        tokens = self.own.get(model, ())
        whole = joined(tokens) == self.text and (bool(tokens) and tokens[-1].end) == self.end
        return tokens if whole and all(token.prob is not None for token in tokens) else None


class ProposedTexts:
    """The distinct texts that were proposed at one place, in the order in which they were added."""

    def __init__(self) -> None:
        self._found: dict[tuple[bytes, bool], ProposedText] = {}

    def add(self, model: int, one: ProposedText, *, own: bool = True) -> None:
        """Add a model's proposal; equal texts with the same `end` count as one proposal.

        `own` is True if the model wrote all tokens in one request; their probabilities are then its score of the text.
        """
        same = self._found.setdefault((one.text, one.end), one)
        if model not in same.models:
            same.models.append(model)
        if own:
            same.own[model] = one.passage.tokens

    def join(self, one: ProposedText) -> None:
        """Add a joint proposal of several models, unless an equal text was already proposed."""
        self._found.setdefault((one.text, one.end), one)

    def distinct(self) -> list[ProposedText]:
        """Return all proposals that have a text or an end; if there is no such proposal, return one empty proposal."""
        found = list(self._found.values())
        return [one for one in found if one.text or one.end] or found[:1]


@dataclass(frozen=True, slots=True)
class _Measure:
    """The logarithms of one candidate's perplexity for one model, with and without the candidate's end of sequence."""

    whole: float | None
    text: float | None


async def choose_text(
    answer: Answer,
    candidates: Sequence[ProposedText],
    normalisation: Normalisation,
    combined: Callable[[Sequence[float]], float] = mean,
) -> tuple[ProposedText, DecidedSegment]:
    """Let every model score every candidate as the continuation of the answer so far, and choose the best one.

    A single candidate is not scored. A model does not score its own text either, if it reads the text as the tokens
    that it wrote. If a candidate ends the answer, models that cannot report the probability of their end of sequence
    are left out of its mean. If all models are left out, the candidate is scored without its end of sequence; a
    candidate without text then has no mean.

    Args:
        answer: the answer so far.
        candidates: the proposed texts.
        normalisation: the divisor of a text's negative log-likelihood.
        combined: combines the logarithms of a candidate's perplexities into one number; the lowest number wins.

    Returns:
        The winning candidate, and the record of the choice.

    Raises:
        ProviderError: a model failed, and the answer cannot continue without it.
    """
    if len(candidates) == 1:
        words = "all models wrote the same" if len(candidates[0].models) > 1 else "no other text was proposed"
        entry = Contender(_sources(candidates[0]), candidates[0].text, candidates[0].end)
        return candidates[0], DecidedSegment((entry,), 0, words)

    async def ask(model: Model) -> list[_Measure]:
        async def measure(one: ProposedText) -> _Measure:
            tokens = one.written_by(model.index)
            if tokens is None or not await model.reads_as(tokens):
                tokens = await model.score(one.text, end=one.end, ahead=one.ahead)
            text = [token for token in tokens if not token.end]
            return _Measure(perplexity(tokens, normalisation), perplexity(text, normalisation))

        return await model.several(measure, candidates)

    asked = {model.index: found for model, found in (await answer.all(ask)).items()}
    for model, found in asked.items():
        if any(one.end and measured.whole is None for one, measured in zip(candidates, found, strict=True)):
            answer.warn(
                f"{answer.name(model)} does not report the probability of its end of sequence: where a text ends the "
                "answer, the mean is that of the other models"
            )
    entries = [
        _entry(one, {model: found[at] for model, found in asked.items()}, answer, combined)
        for at, one in enumerate(candidates)
    ]
    winner = least([log for _, log in entries])
    contenders = tuple(entry for entry, _ in entries)
    return candidates[winner], DecidedSegment(contenders, winner, _reason(contenders, winner))


def _entry(
    one: ProposedText,
    measured: dict[int, _Measure],
    answer: Answer,
    combined: Callable[[Sequence[float]], float],
) -> tuple[Contender, float | None]:
    """Return the record of a candidate, and the logarithm of its mean perplexity; None if it has no mean."""
    whole: dict[int, float] = {model: of.whole for model, of in measured.items() if of.whole is not None}
    known = whole or {model: of.text for model, of in measured.items() if of.text is not None}
    log = combined(list(known.values())) if known else None
    scores = tuple(_exp(known[model]) if model in known else None for model in range(answer.count))
    return Contender(_sources(one), one.text, one.end, scores, None if log is None else _exp(log)), log


def _sources(one: ProposedText) -> tuple[int, ...]:
    return tuple(model - 1 for model in one.models)


def _exp(log: float) -> float:
    try:
        return math.exp(log)
    except OverflowError:
        return math.inf


def _reason(entries: Sequence[Contender], winner: int) -> str:
    own, others = entries[winner].mean, [one.mean for at, one in enumerate(entries) if at != winner]
    known = [one for one in others if one is not None]
    if own is None:
        return "no text can be compared with an end whose probability no model reports: the first one is taken"
    if not known:
        return f"mean perplexity {own:.4g}; no other could be measured"
    words = "least mean perplexity" if own < min(known) else "least mean perplexity, and listed first"
    return f"{words}: {own:.4g} against {', '.join(f'{one:.4g}' for one in known)}"
