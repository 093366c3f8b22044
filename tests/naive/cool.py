"""Cool-Fusion and reranking, transcribed from their definition alone: one question after another, nothing is kept.

Shares no code with the library. Models are those of `reference`: toys, or servers over plain HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from types import MappingProxyType

import regex

from naive.reference import Out, finished, generate, text_of, whole
from toys.toy_models import Model


@dataclass
class Option:
    """A text that is proposed, and the models that propose it; `ahead` is what the first of them wrote behind it."""

    text: bytes
    end: bool
    tokens: list[Out]
    models: list[int]
    perplexities: list[float | None] = field(default_factory=list)
    mean: float | None = None
    ahead: bytes = b""


@dataclass
class Answered:
    """An answer: its tokens (with the index of the model that wrote each), and the contests that it came from."""

    tokens: tuple[Out, ...]
    finish_reason: str
    stop_reason: str
    contests: list[tuple[list[Option], int]]

    @property
    def text(self) -> bytes:
        """The answer's bytes."""
        return text_of(self.tokens)


def readable_by_servers(text: bytes) -> bytes:
    """The text without bytes that are no characters."""
    return text.decode("utf-8", "ignore").encode()


def probabilities(
    model: Model, prompt: bytes, before: bytes, text: bytes, *, end: bool, ahead: bytes = b""
) -> list[tuple[int, float]]:
    """For each token of the model that ends in `text`, where it follows prompt and `before`: bytes, probability.

    Tokens that share a character are one. The end of sequence is last: it counts as one byte, and is -1 if unknown.
    With text `ahead`, the token that crosses the end of `text` counts, too.
    """
    sent = readable_by_servers(before + text)
    start, ids = len(readable_by_servers(before)), model.vocabulary.encode(prompt + sent + ahead)
    found: list[tuple[int, float]] = []
    at, data, least = -len(prompt), b"", 1.0
    for number, one in enumerate(ids):
        if at >= len(sent):
            break
        data += model.vocabulary.tokens[one]
        at += len(model.vocabulary.tokens[one])
        if at > 0:
            least = min(least, model.next(ids[:number])[one])
        if data and whole(data) == len(data):
            if at > start:
                found.append((min(len(data), at), least))
            data, least = b"", 1.0
    if end:
        found.append((1, -1.0 if model.hides_end else model.next(ids)[model.vocabulary.end]))
    return found


def perplexity(tokens: Sequence[tuple[int, float]], normalisation: str) -> float | None:
    """PPL of these tokens; None if there are none, or one is not known."""
    if not tokens or any(prob < 0 for _, prob in tokens):
        return None
    if any(prob == 0 for _, prob in tokens):
        return math.inf
    total = -math.fsum(math.log(prob) for _, prob in tokens)
    size = {"token": len(tokens), "byte": sum(length for length, _ in tokens), "sum": 1}[normalisation]
    return math.exp(total / size)


def contest(
    models: Sequence[Model],
    prompt: bytes,
    before: bytes,
    proposals: Sequence[tuple[int, Option]],
    normalisation: str,
    deaf: Collection[int] = (),
) -> tuple[list[Option], int]:
    """The distinct proposals, each scored by every model that is not `deaf`; and the index of the best."""
    options: list[Option] = []
    for model, one in proposals:
        same = [other for other in options if (other.text, other.end) == (one.text, one.end)]
        (same[0].models if same else one.models).append(model)
        options += [] if same else [one]
    something = [one for one in options if one.text or one.end]
    options = something or options[:1]
    if len(options) == 1:
        return options, 0
    for one in options:
        scored = [
            None if at in deaf else probabilities(model, prompt, before, one.text, end=one.end, ahead=one.ahead)
            for at, model in enumerate(models)
        ]
        whole_texts = [None if tokens is None else perplexity(tokens, normalisation) for tokens in scored]
        only_text = [
            None if tokens is None else perplexity(tokens[: len(tokens) - one.end], normalisation) for tokens in scored
        ]
        one.perplexities = whole_texts if any(ppl is not None for ppl in whole_texts) else only_text
        known = [ppl for ppl in one.perplexities if ppl is not None]
        one.mean = math.fsum(known) / len(known) if known else None
    if options[0].mean is None:
        return options, 0
    least = min(one.mean for one in options if one.mean is not None)
    best = [one.mean is not None and (one.mean == least or one.mean <= least * (1 + 1e-9)) for one in options]
    return options, best.index(True)


def rerank(
    prompt: bytes,
    models: Sequence[Model],
    *,
    max_tokens: int,
    stop: Sequence[bytes] = (),
    normalisation: str = "token",
    mute: Collection[int] = (),
    deaf: Collection[int] = (),
) -> Answered:
    """Every model answers whole, every model scores every answer. The `mute` do neither, the `deaf` do not score."""
    proposals: list[tuple[int, Option]] = []
    ends: dict[int, tuple[str, str]] = {}
    for at, model in enumerate(models):
        if at in mute:
            continue
        tokens: list[Out] = []
        for token in islice(generate(model, prompt), max_tokens):
            tokens.append(Out(token.data, at, token.end))
            done = finished(tokens, stop, max_tokens)
            if done:
                break
        assert done
        ends[at] = (done.finish_reason, done.stop_reason)
        ended = bool(done.tokens) and done.tokens[-1].end
        proposals.append((at, Option(done.text, ended, list(done.tokens), [])))
    options, best = contest(models, prompt, b"", proposals, normalisation, {*mute, *deaf})
    winner = options[best]
    reason, why = ends[winner.models[0]]
    return Answered(tuple(winner.tokens), reason, why, [(options, best)])


LONGEST_SEGMENT = 32
Split = Callable[[str], Sequence[str]]


def words(text: str) -> list[str]:
    """Unicode's words; white space is put before the next one, unless a line ends."""
    joined: list[str] = []
    for part in regex.split(r"(?V1w)\b", text):
        if joined and joined[-1].isspace() and (joined[-1][-1] not in "\n\r\x85\u2028\u2029" or part.isspace()):
            joined[-1] += part
        elif part:
            joined.append(part)
    return joined


def common(text: bytes, splits: Sequence[Split]) -> bytes:
    """The longest proper prefix that consists of whole words for everybody, the last word left out; or nothing."""
    shown = text.decode("utf-8", "surrogateescape")
    prefixes = [
        {"".join(parts[:n]) for n in range(1, len(parts))}
        for parts in (split(shown) for split in (splits if readable_by_servers(text) == text else [words]))
    ]
    return max(set.intersection(*prefixes), key=len, default="").encode("utf-8", "surrogateescape")


def segment(
    model: Model, at: int, text: bytes, left: int, splits: Sequence[Split], begun: bytes, *, by_ids: bool
) -> tuple[Option, list[Out]]:
    """One model's proposal for the next segment, and all that it wrote; `begun` is the rest of a token of its own."""
    tokens: list[Out] = []
    longer = generate(model, text + begun)
    for data, ends in chain([(begun, False)] if begun else [], ((one.data, one.end) for one in longer)):
        tokens.append(Out(data, at, ends))
        prefix = b"" if ends else common(text_of(tokens), splits)
        if prefix:
            rest, kept = len(prefix), list[Out]()
            for one in tokens:
                kept += [Out(one.data[:rest], at)] if rest > 0 else []
                rest -= len(one.data)
            ahead = text_of(tokens)[len(prefix) :] if by_ids else b""
            return Option(prefix, False, kept, [], ahead=ahead), tokens
        if len(tokens) == min(left, LONGEST_SEGMENT):
            break
    return Option(text_of(tokens), tokens[-1].end, tokens, []), tokens


def inside(written: bytes, tokens: Sequence[Out]) -> bytes:
    """The rest of the token in which a text ends that begins as `tokens` do; nothing if it ends with one."""
    ends = accumulate(len(one.data) for one in tokens)
    end = next((end for end in ends if end >= len(written)), len(written))
    whole_text = text_of(tokens)
    return whole_text[len(written) : end] if whole_text.startswith(written) else b""


def cool(
    prompt: bytes,
    models: Sequence[Model],
    *,
    max_tokens: int,
    stop: Sequence[bytes] = (),
    normalisation: str = "token",
    align: bool = False,
    splits: Sequence[Split] | None = None,
    fails: Mapping[int, int] = MappingProxyType({}),
    by_ids: bool = False,
) -> Answered:
    """Segment by segment. `splits`: each model's own words. `fails`: the request at which a model is gone for good.

    `by_ids`: the models are sent ids. They score a segment with what was written behind it, and go on behind a token
    of their own in which the answer ends.
    """
    answer: list[Out] = []
    contests: list[tuple[list[Option], int]] = []
    own = splits or [words] * len(models)
    sent, here = [0] * len(models), list(range(len(models)))
    written: dict[int, tuple[int, list[Out]]] = {}
    while True:
        text, left, heard = text_of(answer), max_tokens - len(answer), list(here)
        proposals: list[tuple[int, Option]] = []
        for at in heard:
            sent[at] += 1
            if sent[at] == fails.get(at):
                here.remove(at)
            else:
                used = [own[at]] if align else [own[other] for other in heard]
                start, tokens = written.get(at, (0, []))
                begun = inside(text[start:], tokens) if by_ids else b""
                one, tokens = segment(models[at], at, prompt + text, left, used, begun, by_ids=by_ids)
                proposals.append((at, one))
                written[at] = len(text), tokens
        distinct = len({(one.text, one.end) for _, one in proposals if one.text or one.end})
        for at in list(here) if distinct > 1 else []:
            if sent[at] < fails.get(at, 0) <= sent[at] + distinct:
                here.remove(at)
            sent[at] += distinct
        deaf = [at for at in range(len(models)) if at not in here]
        options, best = contest(models, prompt, text, proposals, normalisation, deaf)
        contests.append((options, best))
        for token in options[best].tokens:
            answer.append(token)
            if done := finished(answer, stop, max_tokens):
                return Answered(done.tokens, done.finish_reason, done.stop_reason, contests)


def cool_and_rerank(
    prompt: bytes, models: Sequence[Model], *, max_tokens: int, stop: Sequence[bytes] = (), normalisation: str = "token"
) -> Answered:
    """The answer of `cool` among the whole answers of the models."""
    fused = cool(prompt, models, max_tokens=max_tokens, stop=stop, normalisation=normalisation)
    ended = bool(fused.tokens) and fused.tokens[-1].end
    mine = Option(fused.text, ended, list(fused.tokens), [])
    whole_answers = rerank(prompt, models, max_tokens=max_tokens, stop=stop, normalisation=normalisation)
    ((others, _),) = whole_answers.contests
    authors = sorted({token.source for token in fused.tokens})
    everything = [(at, one) for one in others for at in list(one.models)]
    if (mine.text, mine.end) not in [(one.text, one.end) for one in others]:
        everything += [(at, mine) for at in authors]
    for one in others:
        one.models.clear()
    options, best = contest(models, prompt, b"", everything, normalisation)
    by_itself = {
        at: rerank(prompt, [model], max_tokens=max_tokens, stop=stop, normalisation=normalisation)
        for at, model in enumerate(models)
    }
    winner = options[best]
    ends = fused if winner is mine else by_itself[winner.models[0]]
    return Answered(tuple(winner.tokens), ends.finish_reason, ends.stop_reason, [(options, best)])
