"""Samples of an answer that the draft itself writes: the decisions of a fusion that never replaces, place by place."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import toys
from cosd_api import FusionResult, RuleVerifier, fuse
from cosd_api.alignment import Unit
from cosd_api.training.teacher_forcing import TeacherForcing
from cosd_providers.contract import Context
from cosd_providers.testing import ScriptedProvider
from cosd_providers.usage import Usage
from drawn import costly
from reference import generate, text_of, whole

Said = tuple[float, float, bool, int, str, str]
"""p, q, agreed, start, and what both wrote."""


@pytest.fixture(scope="module", autouse=True)
def no_ties() -> Iterator[None]:
    """Of equals a fusion takes the draft's word for the assistant's; held to a reference, nobody knows of any draft."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toys, "SHAPES", toys.CLEAR)
        yield


def served(model: toys.ToyModel) -> ScriptedProvider:
    return ScriptedProvider(toys.Plain(model), end_prob=not model.hides_end)


def reads_itself(model: toys.ToyModel, prompt: bytes, text: bytes) -> bool:
    """Test whether the model's every word, from every place of the text on, is in the tokens of its own encoding."""
    encode = model.vocabulary.encode
    for at in range(len(text) + 1):
        before = prompt + text[:at]
        said = next(generate(model, before, patience=3), None) if whole(before) == len(before) else None
        if said and whole(before + said.data) == len(before + said.data):
            ids = tuple(one for one in said.ids if one != model.vocabulary.end)
            if encode(before + said.data) != encode(before) + ids:
                return False
    return True


def decided(result: FusionResult) -> tuple[list[Said], int]:
    """The decisions of an answer, each once; and of how many a probability is not told."""
    found, silent, at, stop = list[Said](), 0, 0, -1
    for token in result.tokens:
        for one in token.decisions if at >= stop else ():  # it stands at every token of its span
            stop = at + len(one.draft_text.encode())
            if one.draft_prob is None or one.prob is None:
                silent += 1
            else:
                found.append((one.draft_prob, one.prob, one.agreed, at, one.draft_text, one.text))
        at += len(token.data)
    return found, silent


async def sampled(
    pair: Sequence[toys.ToyModel], prompt: str, answer: bytes, unit: Unit, *, ends: bool
) -> TeacherForcing:
    draft, assistant = map(served, pair)
    told = [await one.propose(Context(prompt, answer), None, usage=Usage()) for one in (draft, assistant)]
    forcing = TeacherForcing(answer, *told, unit=unit, ends=ends)
    assert not forcing.missing  # with one tokenizer
    return forcing


def drawn(chance: random.Random, shared: toys.Vocabulary) -> tuple[toys.ToyModel, toys.ToyModel]:
    """Two models of one language and one tokenizer."""
    language = chance.randrange(2**16)
    draft, assistant = (
        toys.ToyModel(
            shared, chance.randrange(2**16), language, chance.choice((16, 15, 14, 10)), chance.random() < 0.15
        )
        for _ in range(2)
    )
    return draft, assistant


def vocabulary(chance: random.Random) -> toys.Vocabulary:
    """A tokenizer; no two tokens have the same bytes."""
    tokens = [*toys.SINGLE, *chance.sample(toys.LONGER, chance.choice((6, 12, 20))), b""]
    chance.shuffle(tokens)
    return toys.Vocabulary(tuple(tokens), tokens.index(b""), chance.choice(("ranks", "longest")))


@costly(120)
@given(st.integers(0, 2**32).map(random.Random), st.text(st.sampled_from(toys.CHARACTERS), min_size=1, max_size=5))
async def test_a_fusion_that_never_replaces_decides_what_is_sampled(chance: random.Random, prompt: str) -> None:
    """Asked after texts, token by token.

    By words a fusion judges all that lies between two safe cuts at once, and samples are taken at every token's end.
    """
    await check(drawn(chance, vocabulary(chance)), prompt, chance.randint(3, 14), "token")


WORDS = tuple(f" {word}".encode() for word in ("a", "ba", "bb", "1", "é", "b1é"))
"""None begins another: samples leave out a word with which the assistant's only begins, a fusion judges it."""


@costly(120)
@given(st.integers(0, 2**32).map(random.Random), st.lists(st.sampled_from(WORDS), min_size=1, max_size=5))
async def test_by_words_too_where_each_is_a_token(chance: random.Random, prompt: list[bytes]) -> None:
    """Then every token lies between two safe cuts."""
    tokens = [*WORDS, b""]
    chance.shuffle(tokens)
    shared = toys.Vocabulary(tuple(tokens), tokens.index(b""), "longest")
    await check(drawn(chance, shared), b"".join(prompt).decode(), chance.randint(3, 14), "word")


async def check(pair: tuple[toys.ToyModel, toys.ToyModel], prompt: str, limit: int, unit: Unit) -> None:
    """Hold the samples of the draft's own answer to the decisions of a fusion that never replaces."""
    draft, before = pair[0], prompt.encode()
    answer = text_of([*islice(generate(draft, before), limit)])
    assume(answer and answer.decode("utf-8", "ignore").encode() == answer)
    if unit == "token":  # words are always encoded one by one
        assume(all(reads_itself(one, before, answer) for one in pair))
    result = await fuse(
        prompt,
        draft=served(draft),
        assistant=served(pair[1]),
        verifier=RuleVerifier(alpha=0),
        ask="all",
        unit=unit,
        max_tokens=limit,
    )
    assert result.text.encode() == answer
    forcing = await sampled(pair, prompt, answer, unit, ends=result.tokens[-1].end)
    samples, skipped = forcing.samples()
    assert ([(one.p, one.q, one.agreed, one.start, one.draft, one.assistant) for one in samples], skipped) == decided(
        result
    )
    assert {one.label for one in samples} <= {0}
