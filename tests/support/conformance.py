"""What every adapter has to do, against a running server: one class, with plain HTTP requests on the expected side.

A test module for one kind of server derives from `Conformance` and gives the fixture `given`: for each of the small
models, an adapter and the same server asked plainly (`plain.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio
import httpx
import pytest

from cosd_api import Fusion, RuleVerifier
from cosd_providers import (
    AuthenticationError,
    ConnectError,
    ContextLengthError,
    DraftEnd,
    InvalidRequestError,
    Provider,
    ProviderError,
    Question,
    RateLimitError,
    ServerError,
    Token,
    UnsupportedError,
    Usage,
)
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import AllowedTokens, Context, HiddenStates, IdScores
from fakes.breaking import waiting
from naive.plain_http import Plain, PlainModel, Raw, merged
from support.drawn import partly
from toys import recitals

MIXED = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"
ACCENT = "Q: What is the capital of Brazil?\nA:"
ANSWER = " The capital of Peru is Zürich 😀 and\nthe total is 東京 42."
ENDLESS = recitals.ENDLESS_PROMPT
PROMPTS = [
    ("sums", MIXED),
    ("facts", MIXED),
    ("facts", ACCENT),
    *(("reciter", prompt) for prompt in (*recitals.CERTAIN, recitals.UNSURE_PROMPT)),
]
TOLERANCE = 1e-2
"""Of a probability: servers give slightly other ones for the same position, by how it came into a batch or a cache."""


def some(cases: Sequence[tuple[str, str]]) -> list[Any]:
    """Models with prompts; an ordinary run takes the first, and the first of the model with rare characters."""
    first = {cases[0], next((case for case in cases if case[0] == "reciter"), cases[0])}
    return [case if case in first else pytest.param(*case, marks=pytest.mark.extended) for case in cases]


@dataclass(frozen=True)
class Subject:
    """One adapter over one server with one model.

    Attributes:
        make: makes the adapter; options are those of its constructor.
        plain: the same model, asked directly.
        parts: whether the probability of a character of several tokens is known.
        error: how this kind of server words an error: from status and message.
    """

    make: Callable[..., Provider]
    plain: Plain
    parts: bool = True
    error: Callable[[int, str], object] = lambda status, message: {"error": {"code": status, "message": message}}

    def draft(self, prompt: str, text: str = "", limit: int = 80, **more: Any) -> Any:
        return self.make().generate(
            Context(prompt, text.encode()), max_tokens=limit, usage=more.pop("usage", Usage()), **more
        )


async def read(draft: Any) -> tuple[list[Token], DraftEnd]:
    """All of a draft."""
    *tokens, end = [item async for item in draft]
    return tokens, end


def check_listed(token: Token, listed: Sequence[Raw], tolerance: float) -> None:
    """The alternatives of one token, up to three, against what the model might have said there, its own first."""
    own, *others = listed
    assert (own.data, own.end) == (token.data, token.end)
    said = [(other.data, other.end) for other in token.alternatives]
    probs = [other.prob for other in token.alternatives]
    assert len(said) <= 3
    assert len({*said, (token.data, token.end)}) == len(said) + 1
    assert probs == sorted(probs, key=lambda prob: -(prob or 0))
    expected: dict[tuple[bytes, bool], float] = {}
    for raw in others:
        expected.setdefault((raw.data, raw.end), raw.prob or 0)
    if said and others[0].data.isalpha():
        assert probs[0] == pytest.approx(others[0].prob, abs=tolerance)
    for one, prob in zip(said, probs, strict=True):
        assert prob == pytest.approx(expected[one], abs=tolerance)
        assert one[0].decode() or one[1]


def first(token: Token, listed: Sequence[Raw]) -> list[Raw]:
    """The same choices with a token of the text as the first one."""
    own = [raw for raw in listed if (raw.data, raw.end) == (token.data, token.end)]
    others = [raw for raw in listed if raw not in own]
    return [*(own[:1] or [Raw(token.data, token.prob, token.end)]), *others]


def unsure(plain: Plain) -> tuple[str, list[Raw]]:
    """The place where the model is least sure, within a text, and its choices there."""
    places = [MIXED + ANSWER[:at] for at in range(len(ANSWER))]
    return min(((place, plain.choices(place, 1)[0]) for place in places), key=lambda found: found[1][0].prob or 0)


class Proposals:
    """What holds of proposals however they are asked: derive from this for one more strategy; see the module."""

    tolerance = TOLERANCE

    @pytest.fixture
    def given(self) -> Callable[[str], Subject]:
        """From a model's name to the subject with that model: what a module for one kind of server gives."""
        raise NotImplementedError

    @pytest.fixture
    async def subject(self, given: Callable[[str], Subject]) -> AsyncIterator[Callable[[str], Subject]]:
        """The same, and what it has made is closed after the test."""
        made: list[Provider] = []

        def kept(subject: Subject) -> Subject:
            def make(**options: Any) -> Provider:
                made.append(subject.make(**options))
                return made[-1]

            return replace(subject, make=make)

        yield lambda model: kept(given(model))
        for provider in made:
            async with provider:
                pass

    def close(self, subject: Subject, ours: Sequence[Token], theirs: Sequence[Raw], *, sure: bool = True) -> None:
        """Equal tokens: bytes and ends to the letter, probabilities within the noise of servers."""
        assert [(token.data, token.end) for token in ours] == [(raw.data, raw.end) for raw in theirs]
        for token, raw in zip(ours, theirs, strict=True):
            if token.prob is None:
                assert token.end or (not subject.parts and len(token.data) > 1), token
            else:
                assert raw.prob is not None
                assert token.prob == pytest.approx(raw.prob, abs=self.tolerance)

    @pytest.mark.parametrize("word", partly([True, False]))
    @pytest.mark.parametrize(("model", "prompt"), some([("facts", MIXED), ("sums", MIXED), ("reciter", "Recite 1:")]))
    async def test_proposals_at_each_character(
        self, subject: Callable[[str], Subject], model: str, prompt: str, word: bool
    ) -> None:
        one = subject(model)
        text = ANSWER if model != "reciter" else recitals.CERTAIN[prompt]
        cuts = [len(text[:at].encode()) for at in range(len(text))]
        data = text.encode()
        questions = [Question(cut, (data[cut : cut + 4],), word=word) for cut in cuts]
        proposals = await one.make().propose(Context(prompt, data), questions, usage=Usage())
        for cut, proposal in zip(cuts, proposals, strict=True):
            expected = merged(one.plain.after(prompt + data[:cut].decode(), 14))
            assert proposal is not None
            assert proposal.start == cut
            assert proposal.tokens
            self.close(one, proposal.tokens, expected[: len(proposal.tokens)])
            assert word or len(proposal.tokens) == 1

    @pytest.mark.parametrize(("model", "prompt"), some([("facts", ACCENT), ("reciter", "Recite 1:")]))
    async def test_proposals_along_the_models_own_answer(
        self, subject: Callable[[str], Subject], model: str, prompt: str
    ) -> None:
        """Where one answer may hold those of all places. It says in which way it was found, and so does the ledger."""
        one, usage = subject(model), Usage()
        own = merged(one.plain.after(prompt, 40))
        tokens = [raw.data for raw in own if not raw.end]
        starts = [len(b"".join(tokens[:at])) for at in range(len(tokens))]
        questions = [Question(start, tuple(tokens[at : at + 2]), word=True) for at, start in enumerate(starts)]
        proposals = await one.make().propose(Context(prompt, b"".join(tokens)), questions, usage=usage)
        for start, proposal in zip(starts, proposals, strict=True):
            assert proposal is not None
            expected = merged(one.plain.after(prompt + b"".join(tokens)[:start].decode(), 14))
            self.close(one, proposal.tokens, expected[: len(proposal.tokens)])
        assert Counter(one.strategy for one in proposals if one is not None) == usage.strategies
        assert sum(usage.strategies.values()) == len(questions)

    @pytest.mark.parametrize("model", partly(["facts", "sums"]))
    async def test_alternatives_of_proposals(self, subject: Callable[[str], Subject], model: str) -> None:
        """They change nothing, and are what else the model might have said at each place."""
        one = subject(model)
        provider, data = one.make(), ANSWER.encode()
        most = (await provider.describe()).capabilities.top_k
        starts = [len(ANSWER[:at].encode()) for at in range(0, len(ANSWER), 4)]
        questions = [Question(start, (data[start : start + 4],)) for start in starts]
        alone = await provider.propose(Context(MIXED, data), questions, usage=Usage())
        found = await provider.propose(Context(MIXED, data), questions, alternatives=3, usage=Usage())
        seen = 0
        for start, proposal, other in zip(starts, found, alone, strict=True):
            assert proposal is not None
            assert other is not None
            token = proposal.tokens[0]
            assert [(one.data, one.end) for one in proposal.tokens] == [(one.data, one.end) for one in other.tokens]
            [listed] = one.plain.choices(MIXED + data[:start].decode(), 1)
            if most and (listed[0].data, listed[0].end) == (token.data, token.end):
                check_listed(token, listed, self.tolerance)
                seen += len(token.alternatives)
            else:  # several raw tokens, or an endpoint that lists none
                assert token.alternatives == ()
        assert seen >= len(questions) or not most

    async def test_alternatives_of_proposals_everywhere(self, subject: Callable[[str], Subject]) -> None:
        """Each place lists what it lists where it is asked about by itself."""
        one = subject("facts")
        provider, data = one.make(), ANSWER.encode()
        able = (await provider.describe()).capabilities
        if not able.tokenize:
            return
        found = await provider.propose(Context(MIXED, data), None, alternatives=3, usage=Usage())
        seen = 0
        for proposal in found:
            assert proposal is not None
            [token] = proposal.tokens
            [listed] = one.plain.choices(MIXED + data[: proposal.start].decode(), 1)
            if able.top_k and (listed[0].data, listed[0].end) == (token.data, token.end):
                check_listed(token, listed, self.tolerance)
                seen += len(token.alternatives)
            else:  # several raw tokens, or an endpoint that lists none
                assert token.alternatives == ()
        assert seen >= len(found) or not able.top_k

    async def test_proposals_everywhere(self, subject: Callable[[str], Subject]) -> None:
        one = subject("facts")
        provider = one.make()
        if not (await provider.describe()).capabilities.tokenize:
            with pytest.raises(UnsupportedError):
                await provider.propose(Context(MIXED, ANSWER.encode()), None, usage=Usage())
            return
        proposals = await provider.propose(Context(MIXED, ANSWER.encode()), None, usage=Usage())
        starts = [proposal.start for proposal in proposals if proposal is not None]
        pieces = [piece.data for piece in await provider.tokenize(ANSWER)]
        ends = {len(b"".join(pieces[:count])) for count in range(len(pieces) + 1)}
        whole = {len(ANSWER[:at].encode()) for at in range(len(ANSWER) + 1)}
        assert starts == sorted(ends & whole)
        for proposal in proposals[::3]:
            assert proposal is not None
            text = MIXED + ANSWER.encode()[: proposal.start].decode()
            self.close(one, proposal.tokens, merged(one.plain.after(text, 8))[:1])


class Conformance(Proposals):
    """Derive from this; see the module."""

    # What the server is.

    @pytest.mark.parametrize("model", partly(["sums", "facts", "reciter"]))
    async def test_description(self, subject: Callable[[str], Subject], model: str) -> None:
        one = subject(model)
        async with one.make() as provider:
            info = await provider.describe()
            *_, last = (await read(one.draft({"sums": MIXED, "facts": ACCENT, "reciter": "Recite 2:"}[model])))[0]
        assert info.endpoint == one.plain.url
        assert info.model == one.plain.name
        assert info.context in (one.plain.context, None)
        assert info.capabilities.end_prob == (last.prob is not None) or not last.end

    async def test_hidden_states(self, subject: Callable[[str], Subject]) -> None:
        """The servers of these tests are started without; tests/live/test_co_llm.py has one with."""
        one, usage = subject("sums"), Usage()
        async with one.make() as provider:
            assert (await provider.describe()).capabilities.hidden_states == 0
            if isinstance(provider, HiddenStates):
                with pytest.raises(UnsupportedError, match="does not report the model's hidden states"):
                    await provider.hidden_states(Context(MIXED, b" The"), usage=usage)
                with pytest.raises(UnsupportedError, match="does not report the model's hidden states"):
                    await anext(provider.generate_with_states(Context(MIXED, b""), max_tokens=2, usage=usage))
        assert usage.requests == 0

    # Drafts.

    @pytest.mark.parametrize(("model", "prompt"), some(PROMPTS))
    async def test_streamed_tokens(self, subject: Callable[[str], Subject], model: str, prompt: str) -> None:
        one, usage = subject(model), Usage()
        tokens, end = await read(one.draft(prompt, usage=usage))
        raws = one.plain.after(prompt, 120)
        self.close(one, tokens, merged(raws))
        assert end.reason == "end"
        assert tokens[-1].end
        assert usage.requests >= 1
        assert usage.prompt_tokens >= len(one.plain.ids(prompt))
        assert usage.completion_tokens >= len(raws) - 1

    @pytest.mark.parametrize(("model", "prompt"), some(PROMPTS))
    async def test_limits_and_going_on(self, subject: Callable[[str], Subject], model: str, prompt: str) -> None:
        one = subject(model)
        whole, _ = await read(one.draft(prompt))
        first, end = await read(one.draft(prompt, limit=5))
        assert [token.data for token in first] == [token.data for token in whole[:5]]
        assert end.reason == ("end" if len(whole) <= 5 else "limit")
        text = b"".join(token.data for token in first).decode()
        info = await one.make().describe()
        assert (end.continuation is not None) == (info.capabilities.token_ids and end.reason == "limit")
        if end.continuation is not None:
            rest, _ = await read(one.draft(prompt, text, continuation=end.continuation))
            assert [token.data for token in rest] == [token.data for token in whole[5:]]
        rest, _ = await read(one.draft(prompt, text))
        self.close(one, rest, merged(one.plain.after(prompt + text, 120)))

    @pytest.mark.parametrize(("model", "prompt"), some([PROMPTS[0], PROMPTS[1], PROMPTS[-1]]))
    async def test_alternatives(self, subject: Callable[[str], Subject], model: str, prompt: str) -> None:
        """They change nothing, and are what else the model might have said; what is in doubt is left out."""
        one = subject(model)
        alone, _ = await read(one.draft(prompt, limit=20))
        tokens, _ = await read(one.draft(prompt, limit=20, alternatives=3))
        assert not any(token.alternatives for token in alone)
        assert [(token.data, token.end) for token in tokens] == [(token.data, token.end) for token in alone]
        for token, other in zip(tokens, alone, strict=True):
            assert token.prob == (None if other.prob is None else pytest.approx(other.prob, abs=self.tolerance))
        steps, seen = iter(one.plain.choices(prompt, 80)), 0
        for token in tokens:
            taken = next(steps)
            while token.data.startswith(taken[0].data) and token.data != taken[0].data and not taken[0].end:
                assert token.alternatives == ()  # several raw tokens
                data, taken = taken[0].data, next(steps)
                taken = [replace(taken[0], data=data + taken[0].data), *taken[1:]]
            check_listed(token, taken, self.tolerance)
            seen += len(token.alternatives)
        assert seen >= len(tokens) or model == "reciter"  # whose next choices are parts of characters

    @pytest.mark.parametrize("model", partly(["facts", "sums"]))
    async def test_samples(self, subject: Callable[[str], Subject], model: str) -> None:
        """A seed draws the same tokens again, each with its raw probability; others draw others."""
        one = subject(model)
        provider, texts = one.make(), set[bytes]()
        if not (await provider.describe()).capabilities.sampling:
            with pytest.raises(UnsupportedError):
                await read(one.draft(MIXED, limit=3, temperature=1, seed=1))
            return
        place, _ = unsure(one.plain)
        compared = 0
        for seed in range(6):
            tokens, _ = await read(one.draft(place, limit=12, temperature=1, seed=seed, alternatives=3))
            again, _ = await read(one.draft(place, limit=12, temperature=1, seed=seed))
            assert [(token.data, token.end) for token in again] == [(token.data, token.end) for token in tokens]
            texts.add(b"".join(token.data for token in tokens))
            before = place
            for token in tokens:
                ids = one.plain.ids(before)
                text = before + token.data.decode()
                if not token.end and one.plain.ids(text)[:-1] != ids:
                    break  # several raw tokens, or not read as written: from here on the server would see other ids
                if token.prob is None and not token.end:  # written in parts, and read as one
                    assert not one.parts
                    assert len(token.data) > 1
                    break
                [listed] = one.plain.choices(before, 1)
                own, *others = first(token, listed)
                assert token.prob == pytest.approx(own.prob, abs=self.tolerance)
                check_listed(token, [own, *others], self.tolerance)
                compared += 1
                before = text
        assert len(texts) > 1
        assert compared > 6

    async def test_samples_follow_the_distribution(self, subject: Callable[[str], Subject]) -> None:
        """By a chi-squared test, at a place where the model is unsure."""
        one = subject("facts")
        if not (await one.make().describe()).capabilities.sampling:
            return
        place, listed = unsure(one.plain)
        count, drawn = 120, Counter[tuple[bytes, bool]]()

        async def draw(seed: int) -> None:
            tokens, _ = await read(one.draft(place, limit=1, temperature=1, seed=seed))
            drawn[tokens[0].data, tokens[0].end] += 1

        await concurrently([partial(draw, seed) for seed in range(count)])
        means = {(raw.data, raw.end): count * (raw.prob or 0) for raw in listed if raw.data.isascii()}
        means = {key: mean for key, mean in means.items() if mean >= 5}
        rest = count - sum(means.values())
        found = [(drawn[key], mean) for key, mean in means.items()]
        found.append((count - sum(drawn[key] for key in means), max(rest, 1.0)))
        assert len(means) > 1
        free = len(found) - 1
        assert sum((number - mean) ** 2 / mean for number, mean in found) < free + 5 * math.sqrt(2 * free) + 3

    async def test_a_character_that_is_never_finished(self, subject: Callable[[str], Subject]) -> None:
        """Its bytes are shown where the server shows them, and U+FFFD never."""
        one = subject("reciter")
        tokens, end = await read(one.draft(recitals.BROKEN_PROMPT))
        text = b"".join(token.data for token in tokens)
        assert text in (recitals.BROKEN_TEXT.encode(), recitals.BROKEN_TEXT.encode() + recitals.BROKEN_END)
        assert tokens[-1].end
        assert end.reason == "end"

    async def test_a_recital_is_exact(self, subject: Callable[[str], Subject]) -> None:
        one = subject("reciter")
        for prompt, text in recitals.CERTAIN.items():
            tokens, _ = await read(one.draft(prompt))
            assert b"".join(token.data for token in tokens).decode() == text

    @pytest.mark.parametrize("limit", partly([3, 1, 2, 7]))
    async def test_a_limit_counts_whole_characters(self, subject: Callable[[str], Subject], limit: int) -> None:
        one = subject("reciter")
        for prompt in recitals.CERTAIN:
            tokens, end = await read(one.draft(prompt, limit=limit))
            self.close(one, tokens, merged(one.plain.after(prompt, 40))[:limit])
            assert end.reason == "limit"

    async def test_the_context_ends_a_draft(self, subject: Callable[[str], Subject]) -> None:
        one = subject("reciter")
        tokens, end = await read(one.draft(ENDLESS, limit=4 * one.plain.context))
        assert end.reason == "context"
        raws = one.plain.after(ENDLESS, one.plain.context - len(one.plain.ids(ENDLESS)))
        assert b"".join(raw.data for raw in merged(raws)).startswith(b"".join(token.data for token in tokens))
        assert len(tokens) >= len(merged(raws)) - 2
        text = b"".join(token.data for token in tokens).decode() + "".join(
            raw.data.decode() for raw in merged(raws)[-9:]
        )
        assert (await read(one.draft(ENDLESS, text)))[1].reason == "context"

    async def test_what_does_not_fit_is_refused(self, subject: Callable[[str], Subject]) -> None:
        one = subject("reciter")
        long = "x" * (2 * one.plain.context)
        with pytest.raises(ContextLengthError):
            await read(one.draft(long))
        with pytest.raises(ContextLengthError):
            await one.make().propose(Context(long, b""), [Question(0, (b"x",))], usage=Usage())

    # Scores and encodings.

    @pytest.mark.parametrize("model", partly(["sums", "facts", "reciter"]))
    async def test_scores(self, subject: Callable[[str], Subject], model: str) -> None:
        one = subject(model)
        provider = one.make()
        if not (await provider.describe()).capabilities.score:
            with pytest.raises(UnsupportedError):
                await provider.score(Context(MIXED, ANSWER.encode()), usage=Usage())
            return
        for text in (ANSWER, "\tnaïve 👩‍🚀 café"):
            scored = await provider.score(Context(MIXED, text.encode()), usage=Usage())
            self.close(one, scored, merged(one.plain.scores(MIXED, text)))

    @pytest.mark.parametrize("model", partly(["facts", "sums"]))
    async def test_alternatives_of_scores(self, subject: Callable[[str], Subject], model: str) -> None:
        """Other tokens that the model might have said in the place of each token of a text, where it is one token."""
        one = subject(model)
        provider, before = one.make(), MIXED
        able = (await provider.describe()).capabilities
        if not able.score:
            with pytest.raises(UnsupportedError):
                await provider.score(Context(MIXED, ANSWER.encode()), alternatives=3, usage=Usage())
            return
        scored = await provider.score(Context(MIXED, ANSWER.encode()), alternatives=3, usage=Usage())
        assert b"".join(token.data for token in scored) == ANSWER.encode()
        whole, seen = one.plain.ids(MIXED + ANSWER), 0
        for token in scored:
            ids = one.plain.ids(before)
            before += token.data.decode()
            if not able.score_top_k or len(one.plain.ids(before)) > len(ids) + 1:
                assert token.alternatives == ()
            elif whole[: len(ids)] == ids:  # the text up to there is read in the same tokens
                [listed] = one.plain.choices(before.removesuffix(token.data.decode()), 1)
                check_listed(token, first(token, listed), self.tolerance)
                seen += len(token.alternatives)
        assert seen > len(scored) / 2 or not able.score_top_k  # lists end before a token without a text of its own

    @pytest.mark.parametrize("model", partly(["facts", "sums"]))
    async def test_the_end_of_a_text(self, subject: Callable[[str], Subject], model: str) -> None:
        """It is the model's end after all of the text: probable after a whole answer, improbable within one."""
        one = subject(model)
        provider = one.make()
        able = (await provider.describe()).capabilities
        if not able.score:
            with pytest.raises(UnsupportedError):
                await provider.score(Context(MIXED, ANSWER.encode()), end=True, usage=Usage())
            return
        own = b"".join(raw.data for raw in merged(one.plain.after(MIXED, 80))).decode()
        for text in (own, own[:9], ANSWER, ""):
            *scored, end = await provider.score(Context(MIXED, text.encode()), alternatives=3, end=True, usage=Usage())
            assert b"".join(token.data for token in scored) == text.encode()
            assert (end.data, end.end) == (b"", True)
            if end.prob is None:
                continue
            [listed] = one.plain.choices(MIXED + text, 1)
            ends = [raw.prob or 0 for raw in listed if raw.end]
            best = max(ends, default=min(end.prob, listed[-1].prob or 0))
            assert end.prob == pytest.approx(best, abs=self.tolerance)
            assert end.prob > 0.5 or text != own
            check_listed(end, first(end, listed), self.tolerance)
            assert end.alternatives or not able.score_top_k

    @pytest.mark.parametrize("model", partly(["facts", "sums"]))
    async def test_scores_of_ids(self, subject: Callable[[str], Subject], model: str) -> None:
        """Ids that the model wrote are as probable as when it wrote them; its end follows."""
        one = subject(model)
        provider = one.make()
        if not ((await provider.describe()).capabilities.ids and isinstance(provider, IdScores)):
            return
        start, written = Context(MIXED, b"", ()), list[Token]()
        async for item in provider.generate(start, max_tokens=80, alternatives=1, usage=Usage()):
            written += [item] if isinstance(item, Token) else []
        *own, end = written
        assert end.end
        ids = tuple(token.id or 0 for token in own)
        context = Context(MIXED, b"".join(token.data for token in own), ids)
        for first_ in (0, 1, len(ids)):
            *scored, last = await provider.score_ids(context, first_, end=True, alternatives=3, usage=Usage())
            assert [token.id for token in scored] == [*ids[first_:]]
            for was, told in zip((*own[first_:], end), (*scored, last), strict=True):
                if was.prob is not None:
                    assert told.prob == pytest.approx(was.prob, abs=self.tolerance)
            assert last.end and all(one.id is not None for one in last.alternatives)
            again = await provider.score_ids(context, first_, usage=Usage())
            assert [token.id for token in again] == [*ids[first_:]]

    @pytest.mark.parametrize("model", partly(["sums", "facts", "reciter"]))
    async def test_encodings(self, subject: Callable[[str], Subject], model: str) -> None:
        one = subject(model)
        provider = one.make()
        if not (await provider.describe()).capabilities.tokenize:
            with pytest.raises(UnsupportedError):
                await provider.tokenize("a")
            return
        for text in (MIXED, ANSWER, " a", "", "👩‍🚀\t\n한국어 ไทย"):
            pieces = await provider.tokenize(text)
            assert b"".join(piece.data for piece in pieces) == text.encode()
            special = len(one.plain.ids(text)) - len(pieces)
            assert special in (0, 1)
            assert [piece.id for piece in pieces] == one.plain.ids(text)[special:]

    @pytest.mark.parametrize("model", partly(["facts", "reciter"]))
    async def test_allowed_tokens(self, subject: Callable[[str], Subject], model: str) -> None:
        """By ids and by text, a token with the probability that the server lists; also one that it does not list."""
        one = subject(model)
        provider, prompt = one.make(), MIXED if model == "facts" else "Recite 1:"
        able = (await provider.describe()).capabilities
        assert able.finds_allowed == isinstance(provider, AllowedTokens) or not able.finds_allowed
        if not (able.finds_allowed and isinstance(provider, AllowedTokens)):
            return
        [listed] = one.plain.choices(prompt, 1)
        known = {raw.data: raw.prob for raw in listed if raw.data}
        if (await provider.describe()).engine != "llama.cpp":  # the others show no parts of characters
            known = {data: prob for data, prob in known.items() if data.decode(errors="ignore").encode() == data}
        least = min((raw.prob or 0 for raw in listed), default=0)
        for context in (Context(prompt), *([Context(prompt, b"", ())] if able.ids else [])):
            for data, prob in known.items():
                found = await provider.list_allowed(context, data.__eq__, usage=Usage())
                assert max(token.prob or 0 for token in found if token.data == data) == pytest.approx(
                    prob, abs=self.tolerance
                )
                assert [token.prob for token in found] == sorted((token.prob or 0 for token in found), reverse=True)
            found = await provider.list_allowed(
                context, lambda data: data.isalpha() and data not in known, usage=Usage()
            )
            best = next(token for token in found if token.data.isalpha() and token.data not in known)
            assert 0 < (best.prob or 0) <= least + self.tolerance
            assert sum(token.prob or 0 for token in found) < 1 + self.tolerance
            ends = await provider.list_allowed(context, lambda data: not data, usage=Usage())
            assert any(token.end for token in ends)
            assert await provider.list_allowed(context, lambda _: False, usage=Usage()) == []
            if isinstance(one.plain, PlainModel):  # of all tokens, which the server is asked for one by one
                before, some = one.plain.ids(prompt), [n for n, data in one.plain.tokens.items() if _is_rare(data)]
                probs = {n: math.exp(one.plain.logprob(before, n)) for n in some}
                found = await provider.list_allowed(context, _is_rare, usage=Usage())
                best = next(token for token in found if _is_rare(token.data))
                assert len(some) > 5 and best.prob == pytest.approx(max(probs.values()), rel=0.05)
                assert best.prob == pytest.approx(probs[best.id or 0], rel=0.05)

    # A fusion over it.

    async def test_stop_strings(self, subject: Callable[[str], Subject]) -> None:
        one = subject("facts")
        whole = b"".join(raw.data for raw in merged(one.plain.after(ACCENT, 80))).decode()
        never = RuleVerifier(alpha=0)
        async with Fusion(draft=one.make(), assistant=one.make(), verifier=never) as fusion:
            result = await fusion.generate(ACCENT, stop=["ília", "never"])
            assert (result.text, result.finish_reason, result.stop_reason) == (
                whole.partition("ília")[0],
                "stop",
                "ília",
            )
            result = await fusion.generate(ACCENT)
            assert (result.text, result.finish_reason) == (whole, "stop")
            result = await fusion.generate(ACCENT, max_tokens=3)
            assert (result.finish_reason, len(result.tokens)) == ("length", 3)
        assert whole.startswith(result.text)

    # Faults.

    @pytest.fixture
    def nobody_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No wait between attempts."""
        waiting(monkeypatch)

    @pytest.mark.parametrize(
        ("status", "kind", "retryable"),
        [
            (400, InvalidRequestError, False),
            (401, AuthenticationError, False),
            (403, AuthenticationError, False),
            (404, InvalidRequestError, False),
            (422, InvalidRequestError, False),
            (429, RateLimitError, True),
            (500, ServerError, True),
            (503, ServerError, True),
        ],
    )
    async def test_errors_by_status(
        self,
        subject: Callable[[str], Subject],
        status: int,
        kind: type[ProviderError],
        retryable: bool,
        nobody_waits: None,
    ) -> None:
        """The server describes itself, and then answers every generation with an error."""
        one = subject("facts")
        real = httpx.AsyncHTTPTransport()
        failing = False

        async def handle(request: httpx.Request) -> httpx.Response:
            if failing:
                return httpx.Response(status, json=one.error(status, "the server's own words"))
            response = await real.handle_async_request(request)
            await response.aread()
            return httpx.Response(
                response.status_code, content=response.content, headers={"content-type": "application/json"}
            )

        async with real, httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
            provider = one.make(http_client=client)
            await provider.describe()
            failing = True
            for ask in (
                lambda: read(provider.generate(Context("Q", b""), max_tokens=3, usage=Usage())),
                lambda: provider.propose(Context("Q", b""), [Question(0, (b"x",))], usage=Usage()),
            ):
                with pytest.raises(kind) as caught:
                    await ask()
                error: Any = caught.value
                assert (error.endpoint, error.status, error.retryable) == (one.plain.url, status, retryable)
                assert "the server's own words" in str(error)

    async def test_a_server_that_is_not_there(self, subject: Callable[[str], Subject], nobody_waits: None) -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(_refuse)) as client:
            with pytest.raises(ConnectError):
                await subject("facts").make(http_client=client).describe()

    @pytest.mark.parametrize("how", ["close", "cancel"])
    async def test_the_server_sees_a_cancellation(self, subject: Callable[[str], Subject], how: str) -> None:
        one = subject("reciter")
        limit = one.plain.context - len(one.plain.ids(ENDLESS)) - 8
        async with one.make() as provider:
            await provider.describe()
            # A small model on a busy machine may well have finished before its server hears of it: try on for a while.
            with anyio.move_on_after(60):
                while True:
                    before = one.plain.before(ENDLESS)
                    draft: Any = provider.generate(Context(ENDLESS, b""), max_tokens=limit, usage=Usage())
                    await leave(draft, how)
                    while one.plain.busy():  # noqa: ASYNC110
                        await anyio.sleep(0.01)
                    if one.plain.written() - before < limit:  # what it would have written, undisturbed
                        return
        pytest.fail("in a minute the server heard of no draft that was left, or too late, every time")


async def leave(draft: Any, how: str) -> None:
    """Leaves a draft after its first token: closes it, or is cancelled."""
    if how == "close":
        await anext(draft)
        await draft.aclose()
        return
    with anyio.CancelScope() as scope:
        async for _ in draft:
            scope.cancel()


def _refuse(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def _is_rare(data: bytes) -> bool:
    return data.lstrip()[:1].lower() in {b"q", b"v", b"w", b"x", b"z", b"7"}
