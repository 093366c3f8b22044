"""Two models held to a reference, against teacher forcing that asks them place by place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import toys
from cosd_api.alignment import Unit
from cosd_api.training.dataset import Label, Sample
from cosd_api.training.teacher_forcing import TeacherForcing
from cosd_providers.contract import Context, Proposal, Question, Token
from cosd_providers.testing import ScriptedProvider
from cosd_providers.usage import Usage
from drawn import costly
from reference import Tok, generate, least, split, symbols, text_of, whole

Row = tuple[float, float, Label | None, bool, int]
"""p, q, label, agreed, start."""


def rows(samples: Sequence[Sample]) -> list[Row]:
    return [(one.p, one.q, one.label, one.agreed, one.start) for one in samples]


# LabelledPlace by place: each model is asked for one token behind one prefix at a time.


def marks(model: toys.ToyModel, prompt: bytes, answer: bytes) -> list[int]:
    """Where the answer's characters end and a token of the model's encoding does, too."""
    text, found = b"", {0}
    for one in model.vocabulary.encode(prompt + answer):
        text += model.vocabulary.tokens[one]
        if whole(text) == len(text):
            found.add(len(text))
    return sorted(mark - len(prompt) for mark in found if mark >= len(prompt))


def said(model: toys.ToyModel, prompt: bytes, answer: bytes, at: int) -> Tok:
    token = next(generate(model, prompt + answer[:at], patience=3), None)
    assert token is not None
    return token


def forced_by_tokens(
    draft: toys.ToyModel, assistant: toys.ToyModel, prompt: bytes, answer: bytes, *, ends: bool
) -> list[Row | None]:
    """Section 6 to the letter, for one tokenizer; None where a probability is not told."""
    places = marks(draft, prompt, answer)
    found: list[Row | None] = [None] if places[0] > 0 else []
    for at, after in zip(places, [*places[1:], None], strict=True):
        if after is None and not ends:
            break
        right = (b"", True) if after is None else (answer[at:after], False)
        mine, theirs = said(draft, prompt, answer, at), said(assistant, prompt, answer, at)
        ours = [(one.data, one.end) for one in (mine, theirs)]
        label: Label | None = 0 if ours[0] == right else 1 if ours[1] == right else None
        told = mine.prob is not None and theirs.prob is not None
        found.append((mine.prob or 0.0, theirs.prob or 0.0, label, ours[0] == ours[1], at) if told else None)
    return found


def path(model: toys.ToyModel, prompt: bytes, answer: bytes, at: int, unit: Sequence[Tok], i: int) -> list[Tok]:
    """What the model would write in the unit from its token `i` on: those, and the first that is none of them.

    Unless that begins another unit: then it is judged there.
    """
    tokens: list[Tok] = []
    for n, token in enumerate(unit[i:], i):
        new = said(model, prompt, answer, at)
        if tokens and len(split(b"", [*unit[:n], new], "word")) > 1:
            break
        tokens.append(new)
        if (tokens[-1].data, tokens[-1].end) != (token.data, token.end):
            break
        at += len(token.data)
    return tokens


def encoded_path(model: toys.ToyModel, prompt: bytes, answer: bytes, at: int, ours: Sequence[Tok]) -> list[Tok]:
    """What the model would write from `at` on, by its own encoding of the answer, as long as that is the answer."""
    tokens: list[Tok] = []
    stop = at + len(text_of(ours))
    places = [mark for mark in marks(model, prompt, answer) if mark >= at]
    for begin, after in zip(places, [*places[1:], None], strict=True):
        tokens.append(said(model, prompt, answer, begin))
        if after is None or after >= stop or tokens[-1].end or tokens[-1].data != answer[begin:after]:
            break
    return tokens


def ends_of(tokens: Sequence[Tok]) -> list[int]:
    return [len(symbols(tokens[:n])) for n in range(1, len(tokens) + 1)]


def forced_by_words(
    draft: toys.ToyModel, assistant: toys.ToyModel, prompt: bytes, answer: bytes, *, ends: bool
) -> list[Row | None]:
    """Section 3 along the reference: each unit walked symbol by symbol (the end is one), as a draft's would be."""
    places = marks(draft, prompt, answer)
    tokens = [Tok(answer[at:after], None) for at, after in pairwise(places)]
    tokens += [Tok(b"", None, end=True)] if ends else []
    found: list[Row | None] = [None] if places[0] > 0 else []
    at = places[0]
    for unit in split(b"", tokens, "word"):
        found += forced_in_unit(draft, assistant, prompt, answer, unit, at, ends=ends)
        at += len(text_of(unit))
    return found


def forced_in_unit(
    draft: toys.ToyModel,
    assistant: toys.ToyModel,
    prompt: bytes,
    answer: bytes,
    unit: Sequence[Tok],
    start: int,
    *,
    ends: bool,
) -> list[Row | None]:
    found: list[Row | None] = []
    own = marks(assistant, prompt, answer)
    i, asked = 0, False
    while i < len(unit):
        at = start + len(text_of(unit[:i]))
        ours = path(draft, prompt, answer, at, unit, i)
        theirs = [] if asked or at not in own else encoded_path(assistant, prompt, answer, at, ours)
        spans, passed = compared(ours, theirs)
        if not passed:  # its own boundaries do not tell: it is asked, and from here on in this unit
            asked = True
            chain = generate(assistant, prompt + answer[:at], ours, patience=3)
            spans, passed = compared(ours, [*islice(chain, len(symbols(ours)) + 1)])
            if not passed:
                found.append(None)
        for mine, other, since, agreed in spans:
            place = at + since
            right = [mine_is(tokens, answer, place, ends=ends) for tokens in (mine, other)]
            p, q = least(*(one.prob for one in mine)), least(*(one.prob for one in other))
            label: Label | None = 0 if right[0] else 1 if right[1] and not agreed else None
            found.append(None if p is None or q is None else (p, q, label, agreed, place))
        if passed == len(ours) and not right_to(ours, unit[i:]) and not (spans and ends_all(ours, spans)):
            found.append(None)  # what it would have written behind its wrong token is not known
        i += passed or 1
    return found


def mine_is(tokens: Sequence[Tok], answer: bytes, at: int, *, ends: bool) -> bool:
    said_there, reference = symbols(tokens), [*answer, *([256] if ends else [])]
    return said_there == reference[at : at + len(said_there)]


def right_to(ours: Sequence[Tok], unit: Sequence[Tok]) -> bool:
    return all((a.data, a.end) == (b.data, b.end) for a, b in zip(ours, unit, strict=False))


def ends_all(ours: Sequence[Tok], spans: Sequence[Spans]) -> bool:
    """Whether the last span holds the last token."""
    return any(one is ours[-1] for one in spans[-1][0])


Spans = tuple[list[Tok], list[Tok], int, bool]
"""The tokens of both, where they start (in bytes), and whether they agree."""


def compared(ours: Sequence[Tok], theirs: Sequence[Tok]) -> tuple[list[Spans], int]:
    """The spans of two paths from one place on, and how many of our tokens they pass; 0 where theirs gives out."""
    a, b = symbols(ours), symbols(theirs)
    differing = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    both = sorted({*ends_of(ours)} & {*ends_of(theirs)})
    common = [n for n in both if differing is None or n <= differing]
    found: list[Spans] = [
        (within(ours, since, n - 1), within(theirs, since, n - 1), since, True) for since, n in pairwise([0, *common])
    ]
    since = common[-1] if common else 0
    if differing is not None:
        found.append((within(ours, since, differing), within(theirs, since, differing), since, False))
        return found, next(n for n, end in enumerate(ends_of(ours), 1) if differing < end)
    if len(b) < len(a):
        return found, next((n for n, end in enumerate(ends_of(ours), 1) if end == since), 0)
    return found, len(ours)


def within(tokens: Sequence[Tok], first: int, last: int) -> list[Tok]:
    """The tokens that hold the symbols from `first` to `last`."""
    stops = ends_of(tokens)
    return [one for one, start, stop in zip(tokens, [0, *stops], stops, strict=False) if stop > first and start <= last]


@st.composite
def forced(draw: st.DrawFn, *, same_tokenizer: bool) -> tuple[toys.ToyModel, toys.ToyModel, bytes, bytes, bool]:
    """Two models, a prompt, and an answer that one or the other would partly have written."""
    draft, assistant = draw(toys.model_pairs(same_tokenizer))
    prompt, answer = draw(toys.prompts()), b""
    for model in draw(st.lists(st.sampled_from([draft, assistant]), min_size=1, max_size=3)):
        answer += text_of([*islice(generate(model, prompt + answer, patience=3), draw(st.integers(1, 4)))])
        answer += draw(st.sampled_from((b"", b"", b"a", b" b", "é".encode(), "😀".encode())))
    try:
        answer.decode()
    except UnicodeDecodeError:
        answer = answer.decode("utf-8", "ignore").encode()
    assume(answer and prompt)
    return draft, assistant, prompt, answer, draw(st.booleans())


async def found_by(
    unit: Unit, draft: toys.ToyModel, assistant: toys.ToyModel, prompt: bytes, answer: bytes, *, ends: bool
) -> tuple[list[Row], int]:
    providers = [ScriptedProvider(toys.Heard(model), end_prob=not model.hides_end) for model in (draft, assistant)]
    told = [await provider.propose(Context(prompt.decode(), answer), None, usage=Usage()) for provider in providers]
    forcing = TeacherForcing(answer, *told, unit=unit, ends=ends)
    if forcing.missing:
        forcing.add_answers(
            await providers[1].propose(Context(prompt.decode(), answer), forcing.missing, usage=Usage())
        )
    samples, skipped = forcing.samples()
    return rows(samples), skipped


def silent_within(*models: toys.ToyModel) -> bool:
    """Whether one has a token without bytes beside its end: a special token, which no text of a model is cut by."""
    return any(model.vocabulary.tokens.count(b"") > 1 for model in models)


@costly(40)
@given(forced(same_tokenizer=True))
async def test_one_tokenizer_is_section_6_to_the_letter(
    given_: tuple[toys.ToyModel, toys.ToyModel, bytes, bytes, bool],
) -> None:
    draft, assistant, prompt, answer, ends = given_
    assume(not silent_within(draft, assistant))
    expected = forced_by_tokens(draft, assistant, prompt, answer, ends=ends)
    found, skipped = await found_by("token", draft, assistant, prompt, answer, ends=ends)
    assert found == [row for row in expected if row is not None]
    assert skipped == expected.count(None)


@costly(40)
@given(forced(same_tokenizer=False))
async def test_two_tokenizers_are_judged_as_a_draft_along_the_reference_would_be(
    given_: tuple[toys.ToyModel, toys.ToyModel, bytes, bytes, bool],
) -> None:
    draft, assistant, prompt, answer, ends = given_
    assume(not silent_within(draft, assistant))
    expected = forced_by_words(draft, assistant, prompt, answer, ends=ends)
    found, skipped = await found_by("word", draft, assistant, prompt, answer, ends=ends)
    assert found == [row for row in expected if row is not None]
    assert skipped == expected.count(None)


# By hand.


def told(*tokens: tuple[int, str | None, float | None]) -> list[Proposal | None]:
    """Proposals: place, text (None is the end) and probability."""
    return [Proposal(at, (Token((text or "").encode(), prob, end=text is None),)) for at, text, prob in tokens]


def aligned(answer: bytes, draft: Any, assistant: Any, *, unit: Unit, ends: bool = True) -> tuple[Any, int]:
    """What comes of it where nothing has to be asked beside."""
    forcing = TeacherForcing(answer, draft, assistant, unit=unit, ends=ends)
    assert forcing.missing == []
    return forcing.samples()


def test_the_four_kinds_of_a_place() -> None:
    draft = told((0, " a", 0.9), (2, " x", 0.3), (4, " y", 0.2), (6, " d", 0.8), (8, None, 0.7))
    assistant = told((0, " a", 0.8), (2, " b", 0.6), (4, " z", 0.1), (6, " e", 0.4), (8, " f", 0.5))
    samples, skipped = aligned(b" a b c d", draft, assistant, unit="token")
    assert samples == (
        Sample(0.9, 0.8, 0, True, 0, " a", " a", " a"),
        Sample(0.3, 0.6, 1, False, 2, " x", " b", " b"),
        Sample(0.2, 0.1, None, False, 4, " y", " z", " c"),
        Sample(0.8, 0.4, 0, False, 6, " d", " e", " d"),
        Sample(0.7, 0.5, 0, False, 8, "", " f", ""),
    )
    assert skipped == 0


def test_behind_an_answer_that_does_not_end_nothing_counts() -> None:
    samples, skipped = aligned(
        b" a", told((0, " a", 0.9), (2, None, 0.7)), told((0, " a", 0.8)), unit="token", ends=False
    )
    assert (len(samples), skipped) == (1, 0)


MULTI = told((0, " Mul", 0.9), (4, "ti", 0.4), (6, "task", 0.6), (10, "ing", 0.3), (13, None, 1.0))


def test_a_span_is_as_sure_as_its_least_sure_token() -> None:
    assistant = told((0, " Multi", 0.7), (6, "-tasking", 0.5), (13, None, 1.0))
    forcing = TeacherForcing(b" Multitasking", MULTI, assistant, unit="word")
    # " Multi" is agreed on, "task" and "-tasking" are not; from behind it the assistant has to be asked.
    assert forcing.missing == [Question(10, (b"ing",), word=True)]
    forcing.add_answers([Proposal(10, (Token(b"ing", 0.2), Token(b" of", 0.9)))])
    samples, skipped = forcing.samples()
    assert rows(samples) == [
        (0.4, 0.7, 0, True, 0),
        (0.6, 0.5, 0, False, 6),
        (0.3, 0.2, 0, True, 10),
        (1, 1, 0, True, 13),
    ]
    assert skipped == 0


def test_where_the_draft_goes_wrong_the_assistant_is_judged_by_what_it_says_there() -> None:
    draft = told((0, " Mul", 0.9), (4, "ti", 0.4), (6, "plex", 0.6), (10, "ing", 0.3), (13, None, 1.0))
    assistant = told((0, " Multitasking", 0.7), (13, None, 1.0))  # of its own one token for all of it
    forcing = TeacherForcing(b" Multitasking", draft, assistant, unit="word")
    assert forcing.missing == [Question(10, (b"ing",), word=True)]
    forcing.add_answers([None])  # it cannot say
    samples, skipped = forcing.samples()
    assert samples[0] == Sample(0.4, 0.7, 1, False, 0, " Multiplex", " Multitasking", " Multitask")
    assert (len(samples), skipped) == (2, 1)


def test_what_the_draft_would_write_behind_a_wrong_token_is_not_known() -> None:
    """Its token is the beginning of the assistant's: they may agree, or not."""
    draft, assistant = told((0, " cap", 0.9), (8, None, 1.0)), told((0, " capital", 0.8), (8, None, 1.0))
    assert aligned(b" capital", draft, assistant, unit="word") == ((Sample(1, 1, 0, True, 8, "", "", ""),), 1)


def test_another_word_of_the_drafts_is_another_unit() -> None:
    """It would end, or go on with another word, where the reference goes on with the word: judged from there."""
    draft = told((0, " Mul", 0.9), (4, None, 0.4), (6, None, 1.0))
    assistant = told((0, " Multi", 0.7), (6, None, 1.0))
    forcing = TeacherForcing(b" Multi", draft, assistant, unit="word")
    assert forcing.missing == [Question(4, (b"",), word=True)]
    forcing.add_answers([Proposal(4, (Token(b"ti", 0.8),))])
    samples, skipped = forcing.samples()
    assert samples[0] == Sample(0.4, 0.8, 1, False, 4, "", "ti", "ti")
    assert (len(samples), skipped) == (2, 0)


@pytest.mark.parametrize(("unit", "expected"), [("token", [(0.9, 0.8, 0, False, 0)]), ("word", [])])
def test_a_beginning_of_what_the_other_writes_is_another_token_and_no_other_word(
    unit: Unit, expected: list[Row]
) -> None:
    draft, assistant = told((0, " cap", 0.9)), told((0, " capital", 0.8))
    samples, skipped = aligned(b" cap", draft, assistant, unit=unit, ends=False)
    assert (rows(samples), skipped) == (expected, 0)  # the next unit judges the rest


@pytest.mark.parametrize(
    ("draft", "skipped"),
    [
        ([None, *told((2, " b", 0.5), (4, None, 0.5))], 1),  # what stands before the first place that is known
        ([*told((0, " a", 0.5)), None, *told((4, None, 0.5))], 1),  # one place between two: both are one segment
        ([*told((0, " a", 0.5), (2, " b", 0.5)), None], 1),  # the last one stands behind the answer
        ([None, None, None], 2),
        ([*told((0, " a", None), (2, " b", 0.5), (4, None, None))], 2),
    ],
)
def test_what_cannot_be_known_is_skipped(draft: list[Proposal | None], skipped: int) -> None:
    assistant = told((0, " x", 0.5), (2, " y", 0.5), (4, " z", 0.5))
    samples, count = aligned(b" a b", draft, assistant, unit="token")
    assert count == skipped
    assert all(sample.label == 0 for sample in samples)
