"""Two models held to a reference token by token, against teacher forcing that asks them place by place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cosd_api.decoding.readers import Literal
from cosd_api.decoding.route import Routes
from cosd_api.forcing.forced_pair import WantedSamples, teacher_force
from cosd_api.forcing.reading import ForcedModel, ReferenceReading
from cosd_api.forcing.samples import Example, Label, Sample
from cosd_api.forcing.teacher_forcing import TeacherForcing
from cosd_providers.contract import Proposal, Question, Token
from cosd_providers.messages import RenderedPrompt
from cosd_providers.testing import ScriptedProvider
from cosd_providers.usage import Usage
from naive.reference import Tok, generate, text_of, whole
from support.drawn import costly
from toys import toy_models as toys

Row = tuple[float, float, Label | None, bool, int]
"""p, q, label, agreed, start."""


def rows(samples: Sequence[Sample]) -> list[Row]:
    return [(one.p, one.q, one.label, one.agreed, one.start) for one in samples]


# Place by place: each model is asked for one token behind one prefix at a time.


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


@st.composite
def forced(draw: st.DrawFn) -> tuple[toys.ToyModel, toys.ToyModel, bytes, bytes, bool]:
    """Two models, a prompt, and an answer that one or the other would partly have written."""
    draft, assistant = draw(toys.model_pairs(same_tokenizer=True))
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
    draft: toys.ToyModel, assistant: toys.ToyModel, prompt: bytes, answer: bytes, *, ends: bool
) -> tuple[list[Row], int]:
    turns = [
        RenderedPrompt(ScriptedProvider(toys.Heard(model), end_prob=not model.hides_end), prompt.decode())
        for model in (draft, assistant)
    ]
    example = Example(prompt=prompt.decode(), answer=answer.decode(), ends=ends)
    ledgers, routes = (Usage(), Usage()), Routes("text", ("literal",))
    found = await teacher_force((turns[0], turns[1]), example, WantedSamples(), ledgers, routes)
    return rows(found.samples), found.skipped


def silent_within(*models: toys.ToyModel) -> bool:
    """Whether one has a token without bytes beside its end: a special token, which no text of a model is cut by."""
    return any(model.vocabulary.tokens.count(b"") > 1 for model in models)


@costly(40)
@given(forced())
async def test_one_tokenizer_is_section_6_to_the_letter(
    given_: tuple[toys.ToyModel, toys.ToyModel, bytes, bytes, bool],
) -> None:
    draft, assistant, prompt, answer, ends = given_
    assume(not silent_within(draft, assistant))
    expected = forced_by_tokens(draft, assistant, prompt, answer, ends=ends)
    found, skipped = await found_by(draft, assistant, prompt, answer, ends=ends)
    assert found == [row for row in expected if row is not None]
    assert skipped == expected.count(None)


# By hand.


def told(*tokens: tuple[int, str | None, float | None]) -> list[Proposal | None]:
    """Proposals: place, text (None is the end) and probability."""
    return [Proposal(at, (Token((text or "").encode(), prob, end=text is None),)) for at, text, prob in tokens]


class Told:
    """A model that answers every question with the same token, or not at all; it notes what it is asked."""

    name = "told"

    def __init__(self, token: Token | None = None) -> None:
        self.token, self.asked = token, list[Question]()

    async def propose(self, context: Any, questions: Sequence[Question], *, usage: Usage) -> list[Proposal | None]:
        self.asked += questions
        return [None if self.token is None else Proposal(one.start, (self.token,)) for one in questions]


async def recited(answer: bytes, draft: Any, assistant: Any, provider: Any, *, ends: bool = True) -> tuple[Any, int]:
    """The samples of two models of which everything is told, but what a provider is asked for."""
    own, known = ReferenceReading.of(answer, draft), ReferenceReading.of(answer, assistant)
    model = ForcedModel(RenderedPrompt(provider, "Q"), Usage())
    return await TeacherForcing(model, own, model, known, Literal(1, 0), ends=ends).samples()


async def aligned(answer: bytes, draft: Any, assistant: Any, *, ends: bool = True) -> tuple[Any, int]:
    """What comes of it where nothing has to be asked beside."""
    provider = Told()
    found = await recited(answer, draft, assistant, provider, ends=ends)
    assert provider.asked == []
    return found


async def test_the_four_kinds_of_a_place() -> None:
    draft = told((0, " a", 0.9), (2, " x", 0.3), (4, " y", 0.2), (6, " d", 0.8), (8, None, 0.7))
    assistant = told((0, " a", 0.8), (2, " b", 0.6), (4, " z", 0.1), (6, " e", 0.4), (8, " f", 0.5))
    samples, skipped = await aligned(b" a b c d", draft, assistant)
    assert samples == (
        Sample(0.9, 0.8, 0, True, 0, " a", " a", " a"),
        Sample(0.3, 0.6, 1, False, 2, " x", " b", " b"),
        Sample(0.2, 0.1, None, False, 4, " y", " z", " c"),
        Sample(0.8, 0.4, 0, False, 6, " d", " e", " d"),
        Sample(0.7, 0.5, 0, False, 8, "", " f", ""),
    )
    assert skipped == 0


async def test_behind_an_answer_that_does_not_end_nothing_counts() -> None:
    samples, skipped = await aligned(b" a", told((0, " a", 0.9), (2, None, 0.7)), told((0, " a", 0.8)), ends=False)
    assert (len(samples), skipped) == (1, 0)


async def test_a_place_inside_the_assistants_token_is_asked_about() -> None:
    draft = told((0, " Mul", 0.9), (4, "ti", 0.4), (6, None, 1.0))
    assistant = told((0, " Multi", 0.7), (6, None, 1.0))
    silent = Told()
    samples, skipped = await recited(b" Multi", draft, assistant, silent)
    assert silent.asked == [Question(4, (b"ti",))]
    assert ([one.start for one in samples], skipped) == ([0, 6], 1)
    assert await recited(b" Multi", draft, assistant, Told(Token(b"ply", 0.2))) == (
        (
            Sample(0.9, 0.7, 0, False, 0, " Mul", " Multi", " Mul"),
            Sample(0.4, 0.2, 0, False, 4, "ti", "ply", "ti"),
            Sample(1, 1, 0, True, 6, "", "", ""),
        ),
        0,
    )


async def test_a_beginning_of_what_the_other_writes_is_another_token() -> None:
    samples, skipped = await aligned(b" cap", told((0, " cap", 0.9)), told((0, " capital", 0.8)), ends=False)
    assert (rows(samples), skipped) == ([(0.9, 0.8, 0, False, 0)], 0)


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
async def test_what_cannot_be_known_is_skipped(draft: list[Proposal | None], skipped: int) -> None:
    assistant = told((0, " x", 0.5), (2, " y", 0.5), (4, " z", 0.5))
    samples, count = await aligned(b" a b", draft, assistant)
    assert count == skipped
    assert all(sample.label == 0 for sample in samples)
