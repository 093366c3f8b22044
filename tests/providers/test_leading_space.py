"""A model whose answers begin with its template's white space: the shared view of it against the model itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cosd_providers import BudgetError, DraftEnd, Proposal, Provider, Question, Token, Usage
from cosd_providers.chat.leading_space import AfterLead, WithoutLeadingSpace
from cosd_providers.chat.leading_space import led as led_by
from cosd_providers.contract import Context, Piece, Ready
from cosd_providers.sampling import other_seed
from cosd_providers.strategies import counted
from cosd_providers.testing import ScriptedProvider, TableModel
from naive import reference
from naive.reference import Tok, text_of
from support.asked import draft
from toys import toy_models as toys

LEADS = (b" ", b"\n", b"  ", b" \n", b"\n\n", b"\n ")
MOST = 24


@dataclass(frozen=True)
class Leading(toys.Plain):
    """A toy model that begins every answer to one prompt with white space, tokenized in its own way."""

    prompt: bytes = b""
    lead: bytes = b""
    obeys: bool = True

    @property
    def vocabulary(self) -> toys.Vocabulary:
        return self.toy.vocabulary

    @property
    def hides_end(self) -> bool:
        return False

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        probs, text = self.toy.next(ids), self.toy.vocabulary.decode(ids)
        said = text[len(self.prompt) :]
        if not self.obeys or not text.startswith(self.prompt) or not self.lead.startswith(said) or said == self.lead:
            return probs
        left = self.lead[len(said) :]
        fits = [bool(data) and (left.startswith(data) or data.startswith(left)) for data in self.tokens]
        fitting = [prob if fit else 0.0 for prob, fit in zip(probs, fits, strict=True)]
        if any(fitting):
            return fitting
        first = self.toy.vocabulary.ids[left[:1]]
        return [0.5 if n == first else 0.0 for n in range(len(probs))]


def bare(raws: Sequence[Tok], lead: bytes) -> list[Tok]:
    """The tokens of an answer without its leading space, by bytes: a token of only space belongs to the next one."""
    text = text_of(raws)
    size = len(lead)
    if not text.startswith(lead):  # as far as whole tokens of it are there
        size = 0
        for raw in raws:
            if raw.end or not lead.startswith(text[: size + len(raw.data)]):
                break
            size += len(raw.data)
    found, held = list[Tok](), list[Tok]()
    for raw in raws:
        data, size = raw.data[size:], max(0, size - len(raw.data))
        held.append(replace(raw, data=data))
        if data or raw.end:
            found.append(replace(held[-1], prob=reference.least(*(one.prob for one in held))))
            held = []
    return found


def own(model: Leading, text: bytes = b"", wishes: Sequence[Tok] = ()) -> list[Tok]:
    """The model's continuation of its prompt and the shared text, as shared."""
    if text:
        return list(islice(reference.generate(model, model.prompt + model.lead + text, wishes), MOST))
    return bare(list(islice(reference.generate(model, model.prompt, wishes), MOST)), model.lead)


def led(model: Leading, **options: Any) -> WithoutLeadingSpace:
    return WithoutLeadingSpace(ScriptedProvider(model, **options), model.lead)


def same(ours: Sequence[Token], theirs: Sequence[Tok]) -> None:
    assert [(t.data, t.prob, t.end) for t in ours] == [(t.data, t.prob, t.end) for t in theirs]


@st.composite
def leadings(draw: st.DrawFn, *, obeys: bool | None = None) -> Leading:
    lead = draw(st.sampled_from(LEADS))
    model = draw(toys.models(may_hide_end=False))
    if draw(st.booleans()):  # its own tokenizer joins what the template writes before and after
        tokens = (*model.vocabulary.tokens, b"b" + lead[:1], lead)
        model = replace(model, vocabulary=replace(model.vocabulary, tokens=tokens))
    prompt = draw(toys.prompts().filter(bool)) + b"b"
    return Leading(model, prompt, lead, draw(st.booleans()) if obeys is None else obeys)


@given(leadings(), st.integers(1, 12))
async def test_a_draft_is_the_models_own_without_the_lead(model: Leading, limit: int) -> None:
    *tokens, end = await draft(led(model), model.prompt.decode(), limit=limit)
    expected = own(model)[:limit]
    same(tokens, expected)
    assert isinstance(end, DraftEnd)
    assert end.reason == ("end" if expected[-1].end else "limit")
    assert (end.continuation is not None) == (end.reason == "limit")


@given(leadings(), st.lists(st.integers(1, 4), min_size=2, max_size=5))
async def test_rounds_on_its_own_ids_are_one_draft(model: Leading, rounds: list[int]) -> None:
    provider, tokens, continuation = led(model), list[Token](), None
    for limit in rounds:
        text = b"".join(token.data for token in tokens)
        *more, end = await draft(provider, model.prompt.decode(), text, limit, continuation=continuation)
        tokens, continuation = tokens + more, end.continuation
        if continuation is None:
            break
        assert len(more) == limit
    same(tokens, own(model)[: sum(rounds)])


@given(leadings(obeys=True), st.integers(1, 4))
async def test_after_a_pause_the_text_goes_on_behind_the_lead(model: Leading, limit: int) -> None:
    provider, text = led(model), b""
    for _ in range(4):
        *tokens, end = await draft(provider, model.prompt.decode(), text, limit)
        same(tokens, own(model, text)[:limit])
        text += b"".join(token.data for token in tokens)
        if end.reason == "end" or not is_text(text):
            return


def is_text(text: bytes) -> bool:
    """Test whether it can be sent to a server."""
    return text.decode("utf-8", "ignore").encode() == text


def single(found: Sequence[Token]) -> bool:
    """Test whether it is one token; bytes that begin a character may stand before the end, which completes nothing."""
    return len(found) == 1 or (len(found) == 2 and found[-1].end and not is_text(found[0].data))


def enough(found: Sequence[Token], question: Question) -> bool:
    """Test whether a proposal is complete: it covers the tokens, or differs and has ended its word."""
    text, judged = b"".join(token.data for token in found), b"".join(question.tokens)
    differs = any(one != other for one, other in zip(text, judged, strict=False)) or not judged
    *_, last = found
    whole = "".join(one.data.decode("utf-8", "surrogateescape") for one in found)
    over = not whole[-1:].isalnum() or not last.data[:1].isalnum() or len(found) >= 6
    return not question.word or last.end or (over if differs else len(text) >= len(judged))


@st.composite
def asked(draw: st.DrawFn) -> tuple[Leading, bytes, list[Question]]:
    """A model, a text close to its own answer, and questions about the beginning and later places."""
    model = draw(leadings())
    tokens = [token.data for token in own(model) if not token.end][:5]
    if draw(st.booleans()):
        tokens.insert(draw(st.integers(0, min(2, len(tokens)))), b"b1")
    word, count = draw(st.booleans()), draw(st.integers(1, 3))
    starts = range(len(tokens) + 1 if model.obeys else 1)
    questions = [Question(len(b"".join(tokens[:n])), tuple(tokens[n : n + count]) or (b"",), word=word) for n in starts]
    return model, b"".join(tokens), questions


@given(asked())
async def test_proposals_are_what_it_would_write(inquiry: tuple[Leading, bytes, list[Question]]) -> None:
    model, text, questions = inquiry
    assume(is_text(text) and clear(model))
    found = await led(model).propose(Context(model.prompt.decode(), text), questions, usage=Usage())
    for question, proposal in zip(questions, found, strict=True):
        wishes = [Tok(one, 1.0, not one) for one in question.tokens]
        expected = own(model, text[: question.start], wishes if question.start else ())
        assert proposal is not None
        assert proposal.start == question.start
        same(proposal.tokens, expected[: len(proposal.tokens)])
        assert question.word or single(proposal.tokens)
        assert enough(proposal.tokens, question)


def clear(model: Leading) -> bool:
    """Test that its first tokens have no tie, which would be decided for the draft."""
    ids = list(model.encode(model.prompt))
    for _ in range(MOST):
        probs = model.next(tuple(ids))
        if list(probs).count(max(probs)) > 1:
            return False
        ids.append(max(range(len(probs)), key=probs.__getitem__))
        if ids[-1] in model.end_ids:
            break
    return True


@given(leadings(obeys=True))
async def test_proposals_everywhere_begin_where_the_answer_does(model: Leading) -> None:
    text = text_of([token for token in own(model) if not token.end][:4])
    assume(is_text(text) and clear(model))
    found = await led(model).propose(Context(model.prompt.decode(), text), None, usage=Usage())
    starts = [one.start for one in found if one]
    assert starts == sorted(set(starts))
    assert starts[0] == 0
    for one in found:
        assert one is not None
        same(one.tokens, own(model, text[: one.start])[: len(one.tokens)])
        assert single(one.tokens)


@given(leadings(obeys=True), st.integers(1, 3))
async def test_alternatives_are_other_beginnings_behind_the_lead(model: Leading, count: int) -> None:
    prompt = model.prompt.decode()
    *ours, _ = await draft(led(model), prompt, limit=6, alternatives=count)
    *raws, _ = await draft(ScriptedProvider(model), prompt, limit=12, alternatives=count)
    same(ours, own(model)[:6])
    first, raw = ours[0], raws[0]
    told = [(one.data, one.end) for one in first.alternatives]
    assert len({(first.data, first.end), *told}) == 1 + len(told)
    if len(raw.data) > len(model.lead):
        behind = [one for one in raw.alternatives if one.end or one.data.startswith(model.lead)]
        behind = [replace(one, data=one.data.removeprefix(model.lead)) for one in behind if one.data != model.lead]
        assert list(first.alternatives) == behind
    else:
        assert not told  # several tokens, whose alternatives are unknown


@given(leadings(), st.text(st.sampled_from(toys.CHARACTERS), max_size=6))
async def test_scores_are_those_behind_the_lead(model: Leading, text: str) -> None:
    scored = await led(model).score(Context(model.prompt.decode(), text.encode()), usage=Usage())
    whole = await ScriptedProvider(model).score(
        Context(model.prompt.decode(), model.lead + text.encode()), usage=Usage()
    )
    assert b"".join(token.data for token in scored) == text.encode()
    same(scored, bare([Tok(token.data, token.prob) for token in whole], model.lead))


@given(asked(), st.integers(1, 3))
async def test_proposed_alternatives_are_those_behind_the_lead(
    inquiry: tuple[Leading, bytes, list[Question]], count: int
) -> None:
    model, text, questions = inquiry
    assume(is_text(text))
    prompt = model.prompt.decode()
    alone = await led(model).propose(Context(prompt, text), questions, usage=Usage())
    found = await led(model).propose(Context(prompt, text), questions, alternatives=count, usage=Usage())
    later = [question for question in questions if question.start]
    moved = [replace(question, start=question.start + len(model.lead)) for question in later]
    raws = iter(
        await ScriptedProvider(model).propose(
            Context(prompt, model.lead + text), moved, alternatives=count, usage=Usage()
        )
    )
    for question, one, other in zip(questions, found, alone, strict=True):
        assert one is not None
        assert replace(one, tokens=tuple(replace(token, alternatives=()) for token in one.tokens)) == other
        if question.start:
            raw = next(raws)
            assert raw is not None
            assert one.tokens == raw.tokens
        for token in one.tokens:
            told = [(token.data, token.end), *((another.data, another.end) for another in token.alternatives)]
            assert len({*told}) == len(told) <= 1 + count


@given(leadings(), st.text(st.sampled_from(toys.CHARACTERS), max_size=6), st.integers(0, 3))
async def test_the_end_of_an_answer_is_that_behind_the_lead(model: Leading, text: str, count: int) -> None:
    options: dict[str, Any] = {"alternatives": count, "end": True}
    prompt, plain = model.prompt.decode(), ScriptedProvider(model)
    *scored, end = await led(model).score(Context(prompt, text.encode()), usage=Usage(), **options)
    assert b"".join(token.data for token in scored) == text.encode()
    *whole, last = await plain.score(Context(prompt, model.lead + text.encode()), usage=Usage(), **options)
    same([*scored, end], bare([Tok(token.data, token.prob, token.end) for token in (*whole, last)], model.lead))
    if text:
        assert end == last
        assert scored[1:] == whole[len(whole) + 1 - len(scored) :]


# By hand: a template that writes a line break before an answer, and a model that writes it as a token of its own.

SCRIPT: Mapping[str, Sequence[Any]] = {"Q": [("\n", 0.4), ("The", 0.9), (" end", 0.8)], "Q\nA": [("n", 0.7)]}


def scripted(
    script: Mapping[str, Sequence[Any]] = SCRIPT, **options: Any
) -> tuple[ScriptedProvider, WithoutLeadingSpace]:
    provider = ScriptedProvider.from_texts(script, **options)
    return provider, WithoutLeadingSpace(provider, b"\n")


async def test_a_token_that_is_the_lead_alone_belongs_to_the_next_one() -> None:
    """It has the lower probability, drafted, proposed and scored alike; and a limit of one is one token."""
    provider, one = scripted()
    assert await draft(one, limit=1) == [Token(b"The", 0.4), DraftEnd("limit", (*provider.model.encode(b"Q\nThe"),))]
    assert [call.max_tokens for call in provider.calls] == [1, 1]
    assert [token.prob for token in (await draft(one, limit=2))[:-1]] == [0.4, 0.8]
    for word in (False, True):
        [found] = await one.propose(Context("Q", b"The"), [Question(0, (b"The",), word=word)], usage=Usage())
        assert found == Proposal(0, (Token(b"The", 0.4),))
    [found] = await one.propose(Context("Q", b""), [Question(0, (b"",))], usage=Usage())
    assert found == Proposal(0, (Token(b"The", 0.4),))
    assert await one.score(Context("Q", b"The"), usage=Usage()) == [Token(b"The", 0.4)]


async def test_samples_are_the_models_own_without_the_lead() -> None:
    """A second request of one draft draws by other random numbers."""
    provider, one = scripted()
    options: dict[str, Any] = {"temperature": 1, "seed": 0}
    assert await draft(one, limit=1, **options) == await draft(one, limit=1)
    assert [(call.temperature, call.seed) for call in provider.calls[:2]] == [(1, 0), (1, other_seed(0, 1))]
    await draft(one, limit=1, temperature=1)
    assert [(call.temperature, call.seed) for call in provider.calls[-2:]] == [(1, None), (1, None)]


async def test_it_keeps_in_which_way_a_place_was_answered() -> None:
    class Listing(ScriptedProvider):
        async def propose(self, *asked: Any, usage: Usage, **options: Any) -> list[Proposal | None]:
            return counted(await super().propose(*asked, usage=usage, **options), "list", usage)

    one = WithoutLeadingSpace(Listing.from_texts(SCRIPT), b"\n")
    found = await one.propose(Context("Q", b"The"), [Question(0, (b"The",)), Question(3, (b" end",))], usage=Usage())
    assert [one and one.strategy for one in found] == ["list", "list"]


async def test_a_model_that_begins_without_the_lead() -> None:
    """It is compared unchanged, though the words in a unit end before the unit does."""
    said = ["A", ".", "b", ".", "c"]
    _, one = scripted({"Q": [*said, ("", 0.8)]})
    assert [token.data.decode() for token in (await draft(one))[:-1]] == [*said, ""]
    for last in ("c", "d"):
        unit = tuple(text.encode() for text in (*said[:-1], last))
        [found] = await one.propose(Context("Q", b"".join(unit)), [Question(0, unit, word=True)], usage=Usage())
        assert found is not None
        assert [token.data.decode() for token in found.tokens][:5] == said


async def test_alternatives_to_a_beginning_without_the_lead() -> None:
    """None with the same text."""
    texts = [b"", b"Q", b"The", b"\nThe", b"\nA", b"An", b"\n"]
    probs = [0.1, 0.0, 0.4, 0.2, 0.15, 0.1, 0.05]

    def following(ids: Sequence[int]) -> Sequence[float]:
        return probs if len(ids) == 1 else [1.0] + [0.0] * 6

    one = WithoutLeadingSpace(ScriptedProvider(TableModel(texts, following, end_ids=(0,))), b"\n")
    first, *_ = await draft(one, alternatives=6)
    assert [(token.data, token.prob) for token in first.alternatives] == [(b"A", 0.15), (b"", 0.1)]


async def test_an_allowed_token_is_one_behind_the_lead() -> None:
    """A token that is the lead alone has no bytes to allow; behind the lead, tokens are the model's own."""
    texts = [b"", b"Q", b"The", b"\nThe", b"\nA", b"An", b"\n"]
    probs = [0.1, 0.0, 0.4, 0.2, 0.15, 0.1, 0.05]
    provider = ScriptedProvider(TableModel(texts, lambda _: probs, end_ids=(0,)), ids=True)
    view = led_by(provider, "\n", "Q")
    assert isinstance(view.provider, WithoutLeadingSpace) and isinstance(view.led, AfterLead)
    for one, start in ((view.provider, None), (view.led, ())):
        refuse = Mock(return_value=False)
        assert await one.list_allowed(Context("Q", b"", start), refuse, usage=Usage()) == []
        assert [asked.args[0] for asked in refuse.call_args_list] == [b"The", b"The", b"A", b"", b"An"]
        found = await one.list_allowed(Context("Q", b"", start), b"A".__eq__, usage=Usage())
        assert [(token.data, token.prob) for token in found][:3] == [(b"The", 0.4), (b"The", 0.2), (b"A", 0.15)]
        later = Context("Q", b"The", None if start is None else (3,))
        assert await one.list_allowed(later, b"A".__eq__, usage=Usage()) == []
        assert provider.calls[-1].text == b"\nThe"


async def test_an_answer_that_is_its_end() -> None:
    for script in ({"Q": [("", 0.8)]}, {"Q": ["\n", ("", 0.8)]}):
        _, one = scripted(script)
        end = Token(b"", 0.8, end=True, name="</s>")
        assert await draft(one) == [end, DraftEnd("end")]
        for tokens in ((b"",), (b"The",)):
            for word in (False, True):
                [found] = await one.propose(Context("Q", tokens[0]), [Question(0, tokens, word=word)], usage=Usage())
                assert found == Proposal(0, (end,))


async def test_a_context_that_is_full_behind_the_lead() -> None:
    _, one = scripted(context=2)
    assert await draft(one) == [DraftEnd("context")]
    assert await one.propose(Context("Q", b"The"), [Question(0, (b"The",), word=True)], usage=Usage()) == [None]


async def test_every_request_asks_the_budget() -> None:
    provider, one = scripted()
    usage = Usage()

    def guard() -> None:
        if usage.requests:
            raise BudgetError("enough")

    usage.guard = guard
    with pytest.raises(BudgetError, match="enough"):
        await draft(one, limit=1, usage=usage)
    assert (provider.requests, provider.open_requests) == (1, 0)


async def test_leaving_a_draft_closes_its_request() -> None:
    provider, one = scripted()
    items: Any = one.generate(Context("Q", b""), max_tokens=9, usage=Usage())
    assert (await anext(items)).data == b"The"
    assert provider.open_requests == 1
    await items.aclose()
    assert provider.open_requests == 0


async def test_it_is_a_provider() -> None:
    provider, one = scripted()
    async with one as entered:
        assert entered is one
        assert isinstance(one, Provider)
        assert isinstance(one, Ready)
        await one.keep_ready()
        assert one.name == provider.name
        assert await one.describe() == await provider.describe()
        assert await one.tokenize("The") == await provider.tokenize("The")


class Words(ScriptedProvider):
    """Makes a token of each word with the space before it, as most tokenizers do."""

    async def tokenize(self, text: str) -> list[Piece]:
        return [Piece(number, word.encode()) for number, word in enumerate(re.findall(r" ?[^ \[]+|\[[^]]*\]| ", text))]


@pytest.mark.parametrize(
    ("lead", "text", "expected"),
    [
        (b" ", "[Q]The end", [b"[Q]", b"The", b" end"]),
        (b"  ", "[Q]The end", [b"[Q]", b"", b"The", b" end"]),
        (b" ", "[Q]", [b"[Q]"]),
        (b" ", "no prompt", [b"no", b" prompt"]),
    ],
)
async def test_an_answer_is_encoded_as_the_model_reads_it(lead: bytes, text: str, expected: list[bytes]) -> None:
    """Otherwise a text-only model would seem to tokenize its own text differently than it wrote it."""
    pieces = await WithoutLeadingSpace(Words.from_texts({"Q": ["a"]}), lead, "[Q]").tokenize(text)
    assert [piece.data for piece in pieces] == expected
