"""Samples of an answer that the draft itself writes: the decisions of a fusion that never replaces, place by place."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cosd_api import FusionResult, RuleVerifier, collect, fuse
from cosd_api.alignment import Unit
from cosd_api.forcing.samples import ExampleSamples
from cosd_providers.testing import ScriptedProvider
from cosd_providers.text import readable
from cosd_providers.tokenizers import load_tokenizer, word_ends
from naive.reference import generate, text_of, whole
from support.drawn import costly
from toys import ngrams
from toys import toy_models as toys
from toys.ngrams import learned

Said = tuple[float, float, bool, int, str, str]
"""p, q, agreed, start, and what both wrote."""
NAMES = ("gpt2", "digits", "llama3", "o200k", "spaces")
BEHIND = 64 + 8
"""Characters behind the beginning of a unit that its judgement may look at."""


@pytest.fixture(scope="module", autouse=True)
def no_ties() -> Iterator[None]:
    """Of equals a fusion takes the draft's word for the assistant's; held to a reference, nobody knows of any draft."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toys, "SHAPES", toys.CLEAR)
        yield


def served(model: toys.ToyModel) -> ScriptedProvider:
    return ScriptedProvider(toys.Plain(model), end_prob=not model.hides_end)


def reads_itself(model: toys.ToyModel, prompt: bytes, text: bytes) -> bool:
    """Test whether the model's every word that the text has is, at any place, in the tokens of its own encoding."""
    encode = model.vocabulary.encode
    for at in range(len(text) + 1):
        before = prompt + text[:at]
        said = next(generate(model, before, patience=3), None) if whole(before) == len(before) else None
        if said and text.startswith(said.data, at):
            ids = tuple(one for one in said.ids if one != model.vocabulary.end)
            if encode(before + said.data) != encode(before) + ids:
                return False
    return True


def decided(result: FusionResult) -> tuple[list[Said], int]:
    """The decisions of an answer, one for each unit; and of how many a probability is not told.

    Where both differ, the difference begins where the draft's text that is recorded does.
    """
    found, silent, at, unit = list[Said](), 0, 0, -1
    for token in result.tokens:
        for one in token.decisions if token.unit != unit else ():  # it stands at every token of its unit
            if one.draft_prob is None or one.prob is None:
                silent += 1
            else:
                start = at if one.agreed else -1
                found.append((one.draft_prob, one.prob, one.agreed, start, one.draft_text, one.text))
        unit = token.unit
        at += len(token.data)
    return found, silent


def said_in(example: ExampleSamples) -> list[Said]:
    """The same of samples."""
    return [
        (one.p, one.q, one.agreed, one.start if one.agreed else -1, one.draft, one.assistant) for one in example.samples
    ]


async def held(
    pair: Sequence[ScriptedProvider], prompt: str, answer: bytes, unit: Unit, *, ends: bool
) -> ExampleSamples:
    """The samples of an answer."""
    example: dict[str, Any] = {"prompt": prompt, "answer": answer.decode(), "ends": ends}
    found = await collect([example], draft=pair[0], assistant=pair[1], unit=unit)
    assert found.unit == unit
    [samples] = found.examples
    for one in samples.samples:
        stands = [readable(answer[one.start : end]) for end in range(one.start, len(answer) + 1)]
        assert one.draft in stands and one.reference in stands
    return samples


async def fused(pair: Sequence[ScriptedProvider], prompt: str, unit: Unit, limit: int) -> FusionResult:
    """The draft's own text, judged at every place."""
    models: dict[str, Any] = {"draft": pair[0], "assistant": pair[1]}
    return await fuse(prompt, **models, verifier=RuleVerifier(alpha=0), ask="all", unit=unit, max_tokens=limit)


def drawn(chance: random.Random, vocabularies: Sequence[toys.Vocabulary]) -> list[toys.ToyModel]:
    """Two models of one language."""
    language = chance.randrange(2**16)
    return [
        toys.ToyModel(one, chance.randrange(2**16), language, chance.choice((16, 15, 14, 10)), chance.random() < 0.15)
        for one in vocabularies
    ]


def vocabulary(chance: random.Random) -> toys.Vocabulary:
    """A tokenizer; no two tokens have the same bytes."""
    tokens = [*toys.SINGLE, *chance.sample(toys.LONGER, chance.choice((6, 12, 20))), b""]
    chance.shuffle(tokens)
    return toys.Vocabulary(tuple(tokens), tokens.index(b""), chance.choice(("ranks", "longest")))


PROMPTS = st.text(st.sampled_from(toys.CHARACTERS), min_size=1, max_size=5)


@costly(120)
@given(st.integers(0, 2**32).map(random.Random), PROMPTS)
async def test_token_by_token(chance: random.Random, prompt: str) -> None:
    """Asked after texts."""
    shared, limit = vocabulary(chance), chance.randint(3, 14)
    draft, assistant = drawn(chance, [shared, shared])
    answer = text_of([*islice(generate(draft, prompt.encode()), limit)])
    assume(answer and answer.decode("utf-8", "ignore").encode() == answer)
    assume(all(reads_itself(one, prompt.encode(), answer) for one in (draft, assistant)))
    pair = served(draft), served(assistant)
    result = await fused(pair, prompt, "token", limit)
    assert result.text.encode() == answer
    example = await held(pair, prompt, answer, "token", ends=result.tokens[-1].end)
    assert (said_in(example), example.skipped) == decided(result)
    assert {one.label for one in example.samples} <= {0}


LETTERS = "ab1 \n,"
PARTS = (" a", " b", " ab", " ba1", " b1", " 1,", "ab", "b1", "a1b", ", ", ",\n", "\n\n", "\na", "a,", "b a", "a b1")
"""Tokens of which most lie between two safe cuts."""


def words(chance: random.Random) -> toys.Vocabulary:
    """A tokenizer of plain letters, which has words."""
    tokens = [*LETTERS, *chance.sample(PARTS, chance.randint(5, len(PARTS)))]
    chance.shuffle(tokens)
    data = tuple([one.encode() for one in (*tokens, "")])
    return toys.Vocabulary(data, len(tokens), chance.choice(("ranks", "longest")))


@costly(120)
@given(st.integers(0, 2**32).map(random.Random), st.text(st.sampled_from(LETTERS), min_size=1, max_size=5))
async def test_by_words_after_texts(chance: random.Random, prompt: str) -> None:
    """The units of a fusion of models that take text only: all that lies between two safe cuts."""
    draft, assistant = drawn(chance, [words(chance), words(chance)])
    limit = chance.randint(10, 90)
    written = [*islice(generate(draft, prompt.encode()), limit)]
    ids = tuple(id_ for one in written for id_ in one.ids if not one.end)
    encode = draft.vocabulary.encode
    assume(encode(prompt.encode() + text_of(written)) == encode(prompt.encode()) + ids)  # else it is another path
    await check((served(draft), served(assistant)), prompt, limit)


@costly(60)
@given(
    st.lists(st.sampled_from(NAMES), min_size=2, max_size=2),
    st.sampled_from((2, 3)),
    st.integers(0, 10_000),
    st.booleans(),
    st.booleans(),
)
async def test_by_words_after_texts_and_after_ids(
    names: Sequence[str], order: int, start: int, drafts_by_ids: bool, known: bool
) -> None:
    """Of real tokenizers, which look ahead; a draft that takes ids and an assistant that does not, or both do not.

    The assistant's own words may be `known`.
    """
    text = ngrams.passages()[start % len(ngrams.passages())]
    at = start % max(1, len(text) - 40)
    prompt = text[at : at + 30] or "The"
    draft, assistant = learned(names[0], 0, order=3), learned(names[1], 1, order=order)
    ids, before = ngrams.alone(draft, prompt, 90), draft.encode(prompt.encode())
    answer = b"".join(draft.tokens[one] for one in ids)
    assume(answer and answer.decode("utf-8", "ignore").encode() == answer)
    own = [one for one in ids if one != draft.end]
    if drafts_by_ids:
        assume(draft.encode(answer) == own)
    else:
        assume(draft.encode(prompt.encode() + answer) == [*before, *own])
    asked = ScriptedProvider(assistant)
    asked.words = word_ends(load_tokenizer(assistant.pieces.tokenizer)) if known else None
    await check((ScriptedProvider(draft, ids=drafts_by_ids), asked), prompt, 90)


async def check(pair: Sequence[ScriptedProvider], prompt: str, limit: int) -> None:
    """Hold the samples of the draft's own answer to the decisions of a fusion that never replaces."""
    result = await fused(pair, prompt, "word", limit)
    assume(result.text)
    answer, ended = result.text.encode(), result.tokens[-1].end
    example = await held(pair, prompt, answer, "word", ends=ended)
    assert {one.label for one in example.samples} <= {0}
    found, (expected, silent) = said_in(example), decided(result)
    if ended:
        assert found == expected
        assert example.skipped >= silent  # units that nobody can judge are skipped, too
        return
    # Behind a reference that goes on nobody knows what follows.
    bound = len(answer.decode()[:-BEHIND].encode())
    count = sum(one.start < bound for one in example.samples)
    assert found[:count] == expected[:count]
