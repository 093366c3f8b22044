"""AdaFuse, transcribed from its definition alone: one question after another, nothing is kept.

Shares no code with the library. Models are those of `reference`: toys, or servers over plain HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from types import MappingProxyType

from naive.cool import LONGEST_SEGMENT, Answered, Option, Split, perplexity, probabilities, readable_by_servers, words
from naive.reference import Out, Tok, finished, generate, text_of, whole
from toys.toy_models import Model


@dataclass(frozen=True)
class Settings:
    """The numbers of the method."""

    margin: float = 0.7
    words: int = 3
    beams: int = 3
    outliers: float = 10.0


@dataclass
class Doubts:
    """The margins by which decisions fell.

    Attributes:
        margins: of probabilities, to the limit; and between a model's two most probable tokens.
        ratios: of the largest NLL of a text to the least, to the limit of outliers; and between the last next token
            that is taken and the first one that is not.
        means: of NLLs, between the best two.
    """

    margins: list[float]
    ratios: list[float]
    means: list[float]

    @property
    def close(self) -> bool:
        """One of them is near enough for a server's last digits to decide."""
        limits = ((self.margins, 1e-3), (self.ratios, 1e-2), (self.means, 1e-3))
        return any(one < limit for found, limit in limits for one in found)


def beside(model: Model, ids: Sequence[int], token: Tok) -> list[tuple[bytes, bool, float]]:
    """Other tokens in the place of one, the most probable first; nothing of a character of several tokens."""
    if len(token.ids) > 1 or whole(token.data) < len(token.data) or token.prob is None:
        return []
    probs = model.next(ids)
    found = {(token.data, token.end): token.prob}
    for n in sorted(range(len(probs)), key=lambda n: -probs[n]):
        end = n == model.vocabulary.end
        data = b"" if end else model.vocabulary.tokens[n]
        if probs[n] and (end or (data and readable_by_servers(data) == data)):
            found.setdefault((data, end), probs[n])
    return [(data, end, prob) for (data, end), prob in found.items()][1:]


def margin(token: Tok, others: Sequence[tuple[bytes, bool, float]]) -> float:
    """The lead of a token over the next one, in probability."""
    if token.prob is None:
        return -1.0
    return token.prob - (others[0][2] if others else 1 - token.prob)


def ends(text: bytes, splits: Sequence[Split]) -> list[int]:
    """Where words of a text end for everybody, in bytes; the last word does not count."""
    shown = text.decode("utf-8", "surrogateescape")
    used = splits if readable_by_servers(text) == text else [words]
    marks = list[set[int]]()
    for split in used:
        parts = split(shown)
        marks.append({len("".join(parts[:n]).encode("utf-8", "surrogateescape")) for n in range(1, len(parts))})
    first, *others = marks
    return sorted(first.intersection(*others) - {0, len(text)})


def cut(tokens: Sequence[Tok], at: int, length: int | None) -> list[Out]:
    """The first bytes of some tokens; all of them for None."""
    if length is None:
        return [Out(token.data, at, token.end) for token in tokens]
    kept: list[Out] = []
    for token in tokens:
        kept += [Out(token.data[:length], at)] if length > 0 else []
        length -= len(token.data)
    return kept


def option(tokens: Sequence[Out]) -> Option:
    """A proposal."""
    return Option(text_of(tokens), bool(tokens) and tokens[-1].end, list(tokens), [])


def begun(tokens: Sequence[Tok], start: int) -> int:
    """The index of the token with the byte at `start`."""
    return next(n for n in range(len(tokens)) if len(text_of(tokens[: n + 1])) > start)


def proposals(
    model: Model, at: int, text: bytes, left: int, splits: Sequence[Split], settings: Settings, doubts: Doubts
) -> tuple[list[Option], int]:
    """The proposal of one model, and the number of its requests."""
    room = min(left, LONGEST_SEGMENT)
    ids = list(model.vocabulary.encode(readable_by_servers(text)))
    tokens: list[Tok] = []
    margins: list[float] = []
    first_others: list[tuple[bytes, bool, float]] = []
    length: int | None = None
    for token in islice(generate(model, text), room):
        others = beside(model, ids, token)
        ids += token.ids
        first_others = first_others if tokens else others
        tokens.append(token)
        margins.append(margin(token, others))
        doubts.margins.append(abs(margins[-1]))
        if token.end:
            break
        starts = [0, *ends(text_of(tokens), splits)]
        for number, (start, end) in enumerate(pairwise(starts), 1):
            sure = margins[begun(tokens, start)] >= settings.margin
            doubts.margins.append(abs(margins[begun(tokens, start)] - settings.margin))
            if not sure or number == settings.words:
                length = end
                break
        if length is not None:
            break
    found, asked = [option(cut(tokens, at, length))], 1
    doubts.margins.append(abs(margins[0] - settings.margin))
    if margins[0] >= settings.margin:
        return found, asked
    if 0 < settings.beams - 1 < len(first_others):
        (*_, last), (_, _, beyond) = first_others[settings.beams - 2 : settings.beams]
        doubts.ratios.append(1 - beyond / last)
    for data, end, prob in first_others[: settings.beams - 1]:
        beam = [Tok(data, prob, end)]
        if not end and not ends(data, splits) and room > 1:
            asked += 1
            more: Iterator[Tok] = islice(generate(model, text + data), room - 1)
            for token in more:
                beam.append(token)
                if token.end or ends(text_of(beam), splits):
                    break
        complete = [] if beam[-1].end else ends(text_of(beam), splits)
        found.append(option(cut(beam, at, complete[0] if complete else None)))
    return found, asked


def combined(nlls: Sequence[float], settings: Settings, doubts: Doubts) -> float | None:
    """The mean, without outliers; None of nothing."""
    if not nlls:
        return None
    low, high = min(nlls), max(nlls)
    doubts.ratios += [abs(high / low / settings.outliers - 1)] if low and len(nlls) > 2 else []
    used = sorted(nlls)[1:-1] if len(nlls) > 2 and high > settings.outliers * low else nlls
    return sum(used) / len(used)


def contest(
    models: Sequence[Model],
    prompt: bytes,
    before: bytes,
    options: list[Option],
    deaf: Collection[int],
    settings: Settings,
    doubts: Doubts,
) -> int:
    """The best proposal; each is scored by every model that is not `deaf`."""
    if len(options) == 1:
        return 0
    means: list[float | None] = []
    for one in options:
        one.perplexities = [
            None if at in deaf else perplexity(probabilities(model, prompt, before, one.text, end=one.end), "token")
            for at, model in enumerate(models)
        ]
        nll = combined([math.log(ppl) for ppl in one.perplexities if ppl is not None], settings, doubts)
        means.append(nll)
        one.mean = None if nll is None else math.inf if math.isinf(nll) else math.exp(nll)
    if means[0] is None:
        return 0
    least, *more = sorted(mean for mean in means if mean is not None)
    doubts.means += [more[0] - least] if more else []
    return next(n for n, mean in enumerate(means) if mean is not None and (mean == least or mean - least <= 1e-9))


def adafuse(
    prompt: bytes,
    models: Sequence[Model],
    *,
    max_tokens: int,
    stop: Sequence[bytes] = (),
    splits: Sequence[Split] | None = None,
    fails: Mapping[int, int] = MappingProxyType({}),
    settings: Settings = Settings(),
    doubts: Doubts | None = None,
) -> Answered:
    """Span by span. `splits`: each model's own words. `fails`: the request at which a model is gone for good."""
    answer: list[Out] = []
    contests: list[tuple[list[Option], int]] = []
    own, doubts = splits or [words] * len(models), doubts or Doubts([], [], [])
    sent, here = [0] * len(models), list(range(len(models)))
    while True:
        text, left, heard = text_of(answer), max_tokens - len(answer), list(here)
        options: list[Option] = []
        for at in heard:
            found, asked = proposals(
                models[at], at, prompt + text, left, [own[other] for other in heard], settings, doubts
            )
            if sent[at] < fails.get(at, 0) <= sent[at] + asked:
                here.remove(at)
                continue
            sent[at] += asked
            for one in found:
                same = [other for other in options if (other.text, other.end) == (one.text, one.end)]
                options += [] if same else [one]
                if at not in (same or [one])[0].models:
                    (same or [one])[0].models.append(at)
        options = [one for one in options if one.text or one.end] or options[:1]
        for at in list(here) if len(options) > 1 else []:
            if sent[at] < fails.get(at, 0) <= sent[at] + len(options):
                here.remove(at)
            sent[at] += len(options)
        deaf = [at for at in range(len(models)) if at not in here]
        best = contest(models, prompt, text, options, deaf, settings, doubts)
        contests.append((options, best))
        for token in options[best].tokens:
            answer.append(token)
            if done := finished(answer, stop, max_tokens):
                return Answered(done.tokens, done.finish_reason, done.stop_reason, contests)
