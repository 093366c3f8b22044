"""The naive reference of a fusion, written from the definition (`semantics.md`) alone.

It asks the models one token at a time, judges every unit with every assistant, and throws everything away at
a replacement: no batches, no skipped questions, no events. It is the oracle for the tests of the engine.
"""

from __future__ import annotations

import codecs
import math
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Literal

from toys.toy_models import Model

Fires = Callable[[float, float], bool]
LONGEST_UNIT = LONGEST_REPLACEMENT = 8
UNSPACED = (
    *("CJK UNIFIED", "CJK COMPATIBILITY IDEOGRAPH", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA"),
    *("THAI", "LAO", "KHMER", "MYANMAR"),
)


@dataclass(frozen=True)
class Tok:
    """A whole-character token of a model: bytes, probability if known, and the ids it was made of."""

    data: bytes
    prob: float | None
    end: bool = False
    ids: tuple[int, ...] = ()


Decides = Callable[[Model, bytes, Tok, float, float | None], bool]


@dataclass(frozen=True)
class Out:
    """A token of the answer. `source` is -1 for the draft, else the index of the assistant.

    `verified`: whether every assistant was heard that could have changed it.
    """

    data: bytes
    source: int
    end: bool = False
    verified: bool = True


class UnheardError(Exception):
    """An assistant cannot be heard about a unit from one of its tokens on (their index)."""


@dataclass(frozen=True)
class Firing:
    """One assistant's first disagreement in a unit that fires: `replaced` draft tokens after `kept` ones."""

    assistant: int
    kept: int
    replaced: int
    p: float
    q: float | None
    tokens: tuple[Tok, ...]


@dataclass(frozen=True)
class Fused:
    """An answer. `firings` are its replacements in order, before any cut by a limit or a stop.

    `iterations` is how often drafting began.
    """

    tokens: tuple[Out, ...]
    finish_reason: str
    stop_reason: str
    firings: tuple[Firing, ...] = ()
    iterations: int = 1

    @property
    def text(self) -> bytes:
        """The answer's bytes."""
        return text_of(self.tokens)

    @property
    def replacements(self) -> int:
        """How many times a verifier fired."""
        return len(self.firings)


def rule(alpha: float = 0.5, beta: float = 0.5) -> Fires:
    """The paper's rule, both comparisons strict."""
    return lambda p, q: p < alpha and q > beta * p


def text_of(tokens: Sequence[Tok] | Sequence[Out]) -> bytes:
    """The bytes of `tokens`, joined."""
    return b"".join(token.data for token in tokens)


def chars(data: bytes) -> str:
    """The characters of `data`; each invalid byte is one."""
    return data.decode("utf-8", "surrogateescape")


def whole(data: bytes) -> int:
    """How many bytes of `data` come before a last character that could still be completed."""
    return codecs.utf_8_decode(data, "surrogateescape", False)[1]


def least(*probs: float | None) -> float | None:
    """The least probability; unknown if one of them is."""
    known = [prob for prob in probs if prob is not None]
    return min(known, default=1.0) if len(known) == len(probs) else None


def pick(model: Model, ids: Sequence[int], wish: Tok | None) -> int:
    """The most probable next id: of equals the one that is `wish`, else the lowest."""
    probs, vocabulary = model.next(ids), model.vocabulary
    top = max(probs)
    best = [n for n, prob in enumerate(probs) if prob == top]
    if model.hides_end and vocabulary.end in best:  # nobody can see that it ties
        best = best[:1] if best[0] == vocabulary.end else [n for n in best if n != vocabulary.end]
    same = [n for n in best if wish and (vocabulary.tokens[n], n == vocabulary.end) == (wish.data, wish.end)]
    return (same or best)[0]


def generate(model: Model, text: bytes, wishes: Sequence[Tok] = (), patience: float = math.inf) -> Iterator[Tok]:
    """The model's greedy continuation of its encoding of `text`, in whole-character tokens.

    Where it has written just what the first of `wishes` are, the next of them is preferred among equals.
    At most `patience` more tokens are taken to complete a character; what is incomplete then is dropped,
    and nothing follows.
    """
    sent = text.decode("utf-8", "ignore").encode()  # bytes that are no characters cannot be sent to a server
    ids, written = list(model.vocabulary.encode(sent)), b""
    preferred = {text_of(wishes[:n]): wish for n, wish in enumerate(wishes)}
    while True:
        data, start, more = b"", len(ids), 0
        prob: float | None = 1.0
        while not data or whole(data) < len(data):
            if data and (more := more + 1) > patience:
                break
            one = pick(model, ids, None if data else preferred.get(written))
            end = one == model.vocabulary.end
            known = None if end and model.hides_end else model.next(ids)[one]
            if end and data:  # never to be completed: a token of its own, and then the end
                yield Tok(data, prob, ids=tuple(ids[start:]))
                prob, start = 1.0, len(ids)
            ids.append(one)
            prob, data = least(prob, known), data + model.vocabulary.tokens[one]
            if end:
                yield Tok(b"", prob, end=True, ids=tuple(ids[start:]))
                return
        complete = data[: whole(data)]
        if complete:
            yield Tok(complete, prob, ids=tuple(ids[start:]))
        if complete != data:
            return
        written += data


def drafted(model: Model, text: bytes, round_length: int | None) -> Iterator[Tok]:
    """The draft from `text` on: on its own ids, or encoded again after every `round_length` tokens."""
    while True:
        for token in islice(generate(model, text), round_length):
            yield token
            if token.end:
                return
            text += token.data


def split(before: bytes, draft: Sequence[Tok], unit: Literal["token", "word"]) -> list[list[Tok]]:
    """The units of `draft`, which follows the text `before`."""
    units: list[list[Tok]] = []
    for token in draft:
        first, last = chars(token.data)[:1], chars(before)[-1:]
        unit_so_far = chars(text_of(units[-1])) if units else ""
        space_before_word = unit_so_far.isspace() and unit_so_far.endswith(" ")
        starts = first.isspace() or (last.isspace() and not space_before_word) or token.end
        starts = starts or unicodedata.name(first or "\0", "").startswith(UNSPACED)
        if unit == "token" or not units or starts or len(units[-1]) == LONGEST_UNIT:
            units.append([])
        units[-1].append(token)
        before += token.data
    return units


def judge_token(
    model: Model, before: bytes, unit: Sequence[Tok], fires: Decides, index: int, ask: Callable[[int], None]
) -> Firing | None:
    """Algorithm 1: the draft's token against the assistant's one."""
    (ours,) = unit
    ask(0)
    theirs = next(generate(model, before, unit, patience=3), None)
    if theirs is None or (ours.data, ours.end) == (theirs.data, theirs.end):
        return None
    p, q = ours.prob, theirs.prob
    return Firing(index, 0, 1, p, q, (theirs,)) if p is not None and fires(model, before, ours, p, q) else None


def judge_word(
    model: Model, before: bytes, unit: Sequence[Tok], fires: Decides, index: int, ask: Callable[[int], None]
) -> Firing | None:
    """Section 3: walk the unit and the assistant's chain by bytes, from `b` (in draft tokens) on."""
    b = 0
    while b < len(unit):
        ask(b)
        chain = generate(model, before + text_of(unit[:b]), unit[b:], patience=3)
        span: list[Tok] = []  # the assistant's tokens since b
        while b < len(unit):
            answer = next(chain, None)
            span += [answer] if answer else []
            ours, theirs = symbols(unit[b:]), symbols(span)
            differing = [n for n, (x, y) in enumerate(zip(ours, theirs, strict=False)) if x != y]
            ends = [len(symbols(unit[b : b + n])) for n in range(1, len(unit) - b + 1)]
            if differing or not answer:
                at = differing[0] if differing else len(theirs)
                replaced = next(n for n, end in enumerate(ends, 1) if at < end)
                p, q = (least(*(t.prob for t in tokens)) for tokens in (unit[b : b + replaced], span))
                start = before + text_of(unit[:b])
                if differing and p is not None and fires(model, start, unit[b], p, q):
                    return Firing(index, b, replaced, p, q, (*span, *rest_of_word(span, chain)))
                b += replaced
                break  # a new chain
            if len(theirs) in ends:  # agreement; the chain goes on
                b, span = b + ends.index(len(theirs)) + 1, []
            elif len(theirs) > len(ours):
                return None  # the next unit judges the rest
    return None


def verdict(
    judge: Callable[..., Firing | None],
    model: Model,
    before: bytes,
    unit: Sequence[Tok],
    fires: Decides,
    index: int,
    fails_at: Callable[[int, int, Sequence[Tok]], bool],
) -> Firing | int | None:
    """What one assistant says of a unit; or the index of the token from which on it cannot be heard."""

    def ask(b: int) -> None:
        if fails_at(index, len(before) + len(text_of(unit[:b])), unit[b:]):
            raise UnheardError(b)

    try:
        return judge(model, before, unit, fires, index, ask)
    except UnheardError as error:
        return int(error.args[0])


def decided(verdicts: Sequence[Firing | int | None]) -> tuple[Firing | None, dict[int, int]]:
    """Of those that fire the surest, the first of equals; and who was not heard and could have been surer."""
    best = max((v for v in verdicts if isinstance(v, Firing)), key=lambda v: v.q or 0.0, default=None)
    sure = best.assistant if best and best.q == 1 else len(verdicts)
    return best, {k: v for k, v in enumerate(verdicts) if isinstance(v, int) and k < sure}


def symbols(tokens: Sequence[Tok]) -> list[int]:
    """Bytes, and 256 for the end."""
    return [symbol for token in tokens for symbol in ([256] if token.end else token.data)]


def rest_of_word(span: Sequence[Tok], chain: Iterator[Tok]) -> list[Tok]:
    """What of `chain` continues the word at the end of `span`: letters or digits directly after one."""
    rest: list[Tok] = []
    while len(span) + len(rest) < LONGEST_REPLACEMENT:
        following = next(chain, None)
        if not (following and chars(following.data)[:1].isalnum()):
            break
        if not chars(text_of([*span, *rest]))[-1:].isalnum():
            break
        rest.append(following)
    return rest


def finished(answer: Sequence[Out], stop: Sequence[bytes], max_tokens: int) -> Fused | None:
    """The whole answer if it ends with its last token."""
    text = text_of(answer)
    found = min(((text.index(s) + len(s), -len(s), s) for s in stop if s in text), default=None)
    if found:
        left, kept = found[0] + found[1], list[Out]()
        for token in answer:
            data, left = token.data[:left], max(0, left - len(token.data))
            kept += [Out(data, token.source, verified=token.verified)] if data else []
        return Fused(tuple(kept), "stop", found[2].decode())
    if answer and answer[-1].end:
        return Fused(tuple(answer), "stop", "end")
    return Fused(tuple(answer), "length", "max_tokens") if len(answer) >= max_tokens else None


def fuse(
    prompt: bytes,
    draft: Model,
    assistants: Sequence[Model],
    fires: Fires,
    *,
    unit: Literal["token", "word"],
    max_tokens: int,
    stop: Sequence[bytes] = (),
    ids_kept: bool = True,
    round_length: int | None = None,
    fails: Callable[[int, int, tuple[bytes, ...]], bool] = lambda *_: False,
    contestable: Callable[[float, int], bool] = lambda *_: True,
    needs_q: bool = True,
    placed: Callable[[Model, bytes, Tok], Fires] | None = None,
) -> Fused:
    """Fuse one answer: draft to the end, replace the first thing that a verifier replaces, draft again.

    `ids_kept`: the draft goes on from its own ids until a replacement, whatever `round_length` is. Otherwise
    its text is encoded again after every `round_length` of its tokens since the start or the last replacement.
    `fails`: whether an assistant fails for good when it is asked, at a byte of the response, about some of the draft's
    tokens; it is asked where one of them is `contestable`, by its probability and its byte of the response. From that
    unit on it is not asked any more.
    `needs_q`: whether an assistant's unknown probability is a reason not to fire.
    `placed`: in place of `fires`: the one for an assistant, the text before, and the draft's token there.
    """
    assert max_tokens > 0
    judge = judge_token if unit == "token" else judge_word
    answer: list[Out] = []
    firings: list[Firing] = []
    gone: set[int] = set()

    def fails_at(index: int, place: int, unit: Sequence[Tok]) -> bool:
        start = place - len(prompt)
        starts = [start + len(text_of(unit[:n])) for n in range(len(unit))]
        pairs = zip(unit, starts, strict=True)
        asked = any(token.prob is not None and contestable(token.prob, at) for token, at in pairs)
        return asked and (index in gone or fails(index, start, tuple(token.data for token in unit)))

    def decides(model: Model, before: bytes, ours: Tok, p: float, q: float | None) -> bool:
        here = placed(model, before, ours) if placed else fires
        return (q is not None or not needs_q) and here(p, math.nan if q is None else q)

    for iterations in count(1):
        text, plan = prompt + text_of(answer), list[Tok]()
        ahead = drafted(draft, text, None if ids_kept else round_length)
        while not finished([*answer, *(Out(t.data, -1, t.end) for t in plan)], stop, max_tokens):
            plan.append(next(ahead))
        new, fired = [Out(t.data, -1, t.end) for t in plan], 0
        for part in split(text, plan, unit):
            verdicts = [verdict(judge, model, text, part, decides, k, fails_at) for k, model in enumerate(assistants)]
            best, unheard = decided(verdicts)
            since = min(unheard.values(), default=len(part))
            for n in range(since, len(part)):
                new[fired + n] = replace(new[fired + n], verified=False)
            gone |= set(unheard)
            if best:
                new[fired + best.kept :] = [
                    Out(t.data, best.assistant, t.end, verified=since == len(part)) for t in best.tokens
                ]
                firings.append(best)
                break
            text, fired = text + text_of(part), fired + len(part)
        for token in new:
            answer.append(token)
            if done := finished(answer, stop, max_tokens):
                return Fused(done.tokens, done.finish_reason, done.stop_reason, tuple(firings), iterations)
    raise AssertionError  # a loop without an end
