"""What the tests of all adapters ask a provider, and how they compare what it says."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import strategies as st

from cosd_api.apps.demo.questions import sample
from cosd_providers import Question, Token, Usage
from cosd_providers.contract import Context
from cosd_providers.testing import LanguageModel
from cosd_providers.text import Merger, merge, whole
from toys import toy_models as toys

Inquiry = tuple[bytes, bytes, list[Question]]
"""A prompt, a text, and questions within it."""


async def draft(provider: Any, prompt: str = "Q", text: bytes = b"", limit: int = 20, **more: Any) -> list[Any]:
    """All items of a draft."""
    usage = more.pop("usage", Usage())
    return [item async for item in provider.generate(Context(prompt, text), max_tokens=limit, usage=usage, **more)]


def in_turn(count: int, seed: int) -> list[str]:
    """Questions for the bundled models: a sum, a fact, both in one, and so on."""
    kinds = (sample(kind, count, seed=seed) for kind in ("sum", "capital", "mixed"))
    return [question.prompt for three in zip(*kinds, strict=True) for question in three][:count]


def near(prob: float) -> Any:
    """A probability that went through a logarithm."""
    return pytest.approx(prob)


def valid(tokens: Sequence[Token]) -> bool:
    """Whether the bytes are text: what is none, some servers cannot show."""
    try:
        codecs.utf_8_decode(b"".join(token.data for token in tokens), "strict", True)
    except UnicodeDecodeError:
        return False
    return True


def close(ours: Sequence[Any], theirs: Sequence[Any], rel: float = 1e-9) -> None:
    """Equal tokens, with probabilities equal but for the rounding of a logarithm."""
    assert [t.data for t in ours] == [t.data for t in theirs]
    assert [t.end for t in ours] == [t.end for t in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert (one.prob is None) == (other.prob is None)
        assert other.prob is None or one.prob == pytest.approx(other.prob, rel=rel)


def check_alternatives(
    model: LanguageModel,
    prompt: bytes,
    tokens: Sequence[Token],
    count: int,
    *,
    complete: bool = True,
    path: tuple[Sequence[int], Sequence[int]] | None = None,
) -> None:
    """Each token has the model's own other choices there; a merged one has none.

    As many as were asked for where they are to be `complete`: elsewhere what cannot be known for sure is left out.
    The tokens are the greedy ones after `prompt`, or those of a `path`: the ids before it, and its own.
    """
    ids, merger, given = list(model.encode(prompt) if path is None else path[0]), Merger(), list(tokens)
    taken = [] if path is None else list(path[1])
    while given:
        probs = model.next(tuple(ids))
        own = taken.pop(0) if path is not None else max(range(len(probs)), key=lambda n: (probs[n], -n))
        says = [(data, n in model.end_ids) for n, data in enumerate(model.tokens)]
        alone = not merger.parts
        for at, one in enumerate(merger.feed(Token(says[own][0], probs[own], end=says[own][1]))):
            token = given.pop(0)
            assert (token.data, token.end) == (one.data, one.end)
            if (alone or at) and whole(one.data) == len(one.data):
                _check_told(token, list(zip(says, probs, strict=True)), count, complete=complete)
            else:
                assert token.alternatives == ()
            if not given:
                return
        ids.append(own)


def check_proposed(model: LanguageModel, before: bytes, token: Token, count: int, *, complete: bool = True) -> None:
    """The first token of a proposal after a text: it has the model's own other choices, or is a merged one."""
    probs = model.next(tuple(model.encode(before)))
    says = [(data, n in model.end_ids) for n, data in enumerate(model.tokens)]
    best = [one for one, prob in zip(says, probs, strict=True) if prob == max(probs)]
    own = (token.data, token.end)
    if own not in best or whole(token.data) < len(token.data):
        assert token.alternatives == ()
    elif best == [own] or token.alternatives:  # a tied token may be a merged one with the same bytes
        _check_told(token, list(zip(says, probs, strict=True)), count, complete=complete)


def check_scored(
    model: LanguageModel, prompt: bytes, scored: Sequence[Token], count: int, *, complete: bool = True
) -> None:
    """A scored text, and the end after it: each token has the model's own other choices; a cut one has none.

    Args:
        model: the model.
        prompt: the prompt.
        scored: its tokens, with the end of sequence as the last one.
        count: the number of alternatives that were asked for.
        complete: whether all of them are shown.
    """
    *given, end = scored
    text = prompt + b"".join(token.data for token in given)
    ids, data, at = list(model.encode(text)), b"", 0
    while len(data) < len(prompt) or whole(data) < len(data):  # a token that begins in the prompt is cut
        data, at = data + model.tokens[ids[at]], at + 1
    while len(text) - sum(len(token.data) for token in given) < len(data):
        assert given.pop(0).alternatives == ()
    check_alternatives(model, b"", given, count, complete=complete, path=(ids[:at], ids[at:]))
    assert end.end
    probs = model.next(tuple(ids))
    best = max(sorted(model.end_ids), key=lambda n: probs[n])
    if end.prob is not None:
        assert end.prob == pytest.approx(probs[best])
        says = [(token, n in model.end_ids) for n, token in enumerate(model.tokens)]
        _check_told(end, list(zip(says, probs, strict=True)), count, complete=complete)


def check_sampled(model: LanguageModel, prompt: bytes, tokens: Sequence[Token]) -> None:
    """Each token can be drawn where it stands, and has its own probability there, or an unknown one."""
    paths = {tuple(model.encode(prompt))}
    for token in tokens:
        ways = [way for ids in paths for way in _ways(model, ids, token.data, token.end)]
        paths = {ids for ids, prob in ways if token.prob is None or prob == pytest.approx(token.prob)}
        assert paths, token


def _ways(
    model: LanguageModel, ids: tuple[int, ...], data: bytes, end: bool
) -> Iterator[tuple[tuple[int, ...], float]]:
    """The raw tokens that a token may be made of, as the ids with them, and the lowest of their probabilities."""
    for n, prob in enumerate(model.next(ids)):
        one = model.tokens[n]
        if prob and n in model.end_ids and end and not data:
            yield (*ids, n), prob
        elif prob and n not in model.end_ids and data.startswith(one) and (data or end):
            if one == data and one and not end:
                yield (*ids, n), prob
            elif one != data or not one:
                yield from ((way, min(prob, least)) for way, least in _ways(model, (*ids, n), data[len(one) :], end))


def _check_told(
    token: Token, choices: Sequence[tuple[tuple[bytes, bool], float]], count: int, *, complete: bool
) -> None:
    told = [((other.data, other.end), other.prob) for other in token.alternatives]
    texts = [text for text, _ in told]
    assert len(told) <= count
    assert [prob for _, prob in told] == sorted((prob or 0 for _, prob in told), reverse=True)
    assert len({(token.data, token.end), *texts}) == 1 + len(told)
    for (data, end), prob in told:
        assert whole(data) == len(data)
        assert end or data
        assert any(prob == pytest.approx(chance) for text, chance in choices if text == (data, end))
    for text, prob in choices if complete else ():  # what is certainly among those that were asked for
        more = sum(other >= prob for _, other in choices) - ((token.prob or 0) >= prob * (1 - 1e-9))
        twins = [one for one, _ in choices].count(text) > 1  # some servers show one of them
        plain = text[0] and not text[1] and not twins and valid([Token(text[0], prob)])
        if prob and more <= count and plain and text != (token.data, token.end):
            assert text in texts


@st.composite
def inquiries(draw: st.DrawFn) -> Inquiry:
    """A prompt, a text, and questions within it."""
    words = st.text(st.sampled_from(toys.CHARACTERS), min_size=1, max_size=4).map(str.encode)
    tokens = draw(st.lists(words, max_size=8))
    asked = []
    for cut in draw(st.lists(st.integers(0, len(tokens)), max_size=4)):
        judged = tuple(tokens[cut : cut + 3]) or draw(st.sampled_from(((b"",), (b"a",))))
        asked.append(Question(len(b"".join(tokens[:cut])), judged, word=draw(st.booleans())))
    return draw(toys.prompts()), b"".join(tokens), asked


@st.composite
def along(draw: st.DrawFn, model: LanguageModel) -> Inquiry:
    """A prompt, a text that the model itself would write or nearly so, and questions within it."""
    prompt, ids, raw = draw(toys.prompts()), list[int](), list[Token]()
    ids += model.encode(prompt)
    for _ in range(draw(st.integers(1, 12))):
        probs = model.next(ids)
        best = [n for n, prob in enumerate(probs) if prob == max(probs)]
        ids.append(draw(st.sampled_from(best)))  # of equals, any
        if ids[-1] in model.end_ids:
            break
        raw.append(Token(model.tokens[ids[-1]], 1.0))
    tokens = [token.data for token in merge(raw)]
    if not valid(list(merge(raw))):  # no server can be sent such bytes
        tokens = []
    if draw(st.integers(0, 2)) == 2:
        tokens.insert(draw(st.integers(0, len(tokens))), draw(st.sampled_from(toys.CHARACTERS)).encode())
    cuts = draw(st.lists(st.integers(0, len(tokens)), min_size=1, max_size=6))
    count, word = draw(st.integers(1, 4)), draw(st.booleans())
    starts = [len(b"".join(tokens[:cut])) for cut in cuts]
    judged = [tuple(tokens[cut : cut + count]) or (b"",) for cut in cuts]
    asked = [Question(start, one, word=word) for start, one in zip(starts, judged, strict=True)]
    return prompt, b"".join(tokens), asked


@st.composite
def inquired(draw: st.DrawFn, models: st.SearchStrategy[toys.ToyModel]) -> tuple[toys.ToyModel, Inquiry]:
    """A model, and what is asked of it."""
    model = draw(models)
    return model, draw(inquiries() | along(toys.Plain(model)))


async def check_what_an_echo_leaves_open(provider: Any) -> None:
    """Its encoding up to one of the places is not the model's own, and the proposals say so.

    Args:
        provider: asks by echo; after "Q" its model says "ab" and "c", and it knows "a" and "b", too.
    """
    usage = Usage()
    questions = [Question(0, (b"ab",)), Question(1, (b"b",)), Question(2, (b"c",))]
    found = await provider.propose(Context("Q", b"abc"), questions, usage=usage)
    assert [one and (one.tokens[0].data, one.strategy) for one in found] == [
        (b"ab", "echo"),
        (b"b", "list"),
        (b"c", "echo"),
    ]
    assert usage.strategies == {"echo": 2, "list": 1}
