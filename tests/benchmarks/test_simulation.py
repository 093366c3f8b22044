"""The simulated models are functions of the text with the asked statistics, and the server shows just them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from itertools import islice

import anyio
import httpx
import pytest

from benchmarks.invented import WORDS, Role, Speech, encode, prompt_of
from benchmarks.simulated import Simulated, Speeds, simulated
from cosd_api import RuleVerifier
from cosd_providers import connect
from cosd_providers.contract import Context, Question, Token
from cosd_providers.text import sendable
from cosd_providers.usage import Usage
from support.drawn import partly

RULE = RuleVerifier.paper()


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Simulated]:
    async with simulated(Speeds(0, 0, 0)) as running:
        yield running


# --- the models ---


def fused(speech: Speech, text: bytes, count: int) -> Iterator[tuple[float, bool, bool, bool]]:
    """Algorithm 1, one place after another: p, whether it is replaced, whether that is a hit, whether both agree."""
    for _ in range(count):
        place = speech.after(text)
        (mine, p), (theirs, q) = place.draft[0], place.assistant[0]
        replaced = mine != theirs and p < RULE.alpha and q > RULE.beta * p
        yield p, replaced, place.draft[1].id == theirs, mine == theirs
        text += WORDS[theirs if replaced else mine]


def near(found: float, wanted: float, count: int) -> bool:
    """Within five standard deviations of so many draws."""
    return abs(found - wanted) < 5 * math.sqrt(wanted * (1 - wanted) / count)


@pytest.mark.parametrize("acceptance", partly([0.98, 0.7, 0.8, 0.9]))
def test_acceptance_hits_and_unsure_tokens_are_as_asked(acceptance: float) -> None:
    speech, count = Speech(acceptance=acceptance, hit=0.7, unsure=0.15), 6000
    places = [*fused(speech, prompt_of(16, 1).encode(), count)]
    replaced = [place for place in places if place[1]]
    kept = [place for place in places if not place[1]]
    unsure = [place for place in kept if place[0] < 0.5]
    assert near(len(kept) / count, acceptance, count)
    assert near(sum(place[2] for place in replaced) / len(replaced), 0.7, len(replaced))
    assert near(len(unsure) / len(kept), 0.15, len(kept))
    assert near(sum(place[3] for place in unsure) / len(unsure), 0.5, len(unsure))


def test_a_branch_that_will_be_thrown_away_has_the_same_statistics() -> None:
    speech, text = Speech(acceptance=0.8), prompt_of(16, 2).encode()
    found: list[bool] = []
    while len(found) < 4000:
        place = speech.after(text)
        if place.replaced:  # what the draft writes behind a word that will not stand
            wrong = text + WORDS[place.draft[0].id]
            for said in islice(speech.said("draft", wrong), 10):
                found.append(speech.after(wrong).replaced)
                wrong += WORDS[said[0].id]
        text += WORDS[place.assistant[0].id if place.replaced else place.draft[0].id]
    assert near(sum(found) / len(found), 0.2, len(found))


def test_what_is_said_is_a_function_of_the_text() -> None:
    speech, text = Speech(seed=3), prompt_of(20, 3).encode()
    roles: tuple[Role, ...] = ("draft", "assistant", "alone")
    for role in roles:
        whole = [*islice(speech.said(role, text), 30)]
        behind = text + b"".join(WORDS[said[0].id] for said in whole[:10])
        assert [*islice(speech.said(role, behind), 20)] == whole[10:]
    assert speech.after(text) == Speech(seed=3).after(text)
    assert speech.after(text) != Speech(seed=4).after(text)
    assert speech.after(text) != speech.after(text + WORDS[1])


def test_every_list_is_a_distribution_with_the_pick_first() -> None:
    speech, text = Speech(acceptance=0.7), b""
    for _ in range(500):
        place = speech.after(text)
        for said in (place.draft, place.assistant):
            probs = [one.prob for one in said]
            assert len({one.id for one in said}) == len(said)
            assert probs == sorted(probs, reverse=True) and probs[0] > probs[1] and sum(probs) <= 1
        text += WORDS[place.draft[0].id]


def test_the_one_that_writes_alone_writes_the_fused_text() -> None:
    speech, text = Speech(acceptance=0.7), prompt_of(10, 4).encode()
    alone = b"".join(WORDS[said[0].id] for said in islice(speech.said("alone", text), 50))
    for _ in range(50):
        place = speech.after(text)
        text += WORDS[place.assistant[0].id if place.replaced else place.draft[0].id]
    assert text.endswith(alone)


def test_prompts_have_as_many_tokens_as_asked() -> None:
    for tokens in (1, 512, 4000):
        prompt = prompt_of(tokens, 5)
        ids = encode(prompt)
        assert len(ids) == tokens and b"".join(WORDS[id] for id in ids).decode() == prompt
    assert prompt_of(512, 5) != prompt_of(512, 6)


# The server.


async def test_a_provider_hears_what_the_models_say(server: Simulated) -> None:
    speech, prompt, said = Speech(seed=6), prompt_of(12, 6), list[Token]()
    async with connect(server.model(speech, "draft", "said")) as draft:
        async for item in draft.generate(Context(prompt, b""), max_tokens=20, alternatives=2, usage=Usage()):
            if isinstance(item, Token):
                said.append(item)
    expected = [*islice(speech.said("draft", prompt.encode()), 20)]
    assert [token.data for token in said] == [WORDS[one[0].id] for one in expected]
    assert [token.prob for token in said] == pytest.approx([one[0].prob for one in expected])
    alternatives = [[other.data for other in token.alternatives] for token in said]
    assert alternatives == [[WORDS[other.id] for other in one[1:3]] for one in expected]


async def test_a_list_is_answered_place_by_place(server: Simulated) -> None:
    speech, prompt, text = Speech(seed=7), prompt_of(12, 7), prompt_of(9, 8).encode()
    places = [at for at, byte in enumerate(text) if byte == 32]
    url = server.model(speech, "assistant", "listed")
    async with connect(url, engine="llama.cpp", strategy="list") as assistant:
        questions = [Question(place, (b" x",)) for place in places]
        proposals = await assistant.propose(Context(prompt, text), questions, usage=Usage())
    for place, proposal in zip(places, proposals, strict=True):
        expected = speech.after((prompt + sendable(text[:place])).encode()).assistant[0]
        assert proposal is not None and proposal.tokens[0].data == WORDS[expected.id]
        assert proposal.tokens[0].prob == pytest.approx(expected.prob)
    counts = await server.counts("assistant", "listed")
    assert (counts.requests, counts.completion_tokens) == (1, 9)
    assert counts.prompt_tokens == sum(12 + at for at in range(9))


async def test_the_server_counts_what_it_sees(server: Simulated) -> None:
    url = server.model(Speech(), "draft", "counted")
    async with connect(url) as draft:
        for limit in (5, 7):
            async for _ in draft.generate(Context(prompt_of(30, 9), b" ba"), max_tokens=limit, usage=Usage()):
                pass
    counts = await server.counts("draft", "counted")
    assert (counts.requests, counts.connections, counts.cancelled) == (2, 2, 0)
    assert (counts.prompt_tokens, counts.completion_tokens) == (62, 12)
    assert (await server.counts("draft", "another")).requests == 0


async def test_a_stream_that_nobody_reads_any_more_ends_and_is_counted() -> None:
    async with simulated(Speeds(first=0, rate=20, verify=0)) as slow:
        body = {"prompt": prompt_of(5, 1), "n_predict": 10_000, "n_probs": 1, "stream": True}
        async with httpx.AsyncClient() as client:
            url = slow.model(Speech(), "draft", "left") + "/completion"
            async with client.stream("POST", url, json=body) as response:
                await anext(response.aiter_lines())
        with anyio.fail_after(20):
            while not (counts := await slow.counts("draft", "left")).cancelled:  # noqa: ASYNC110 - a process of its own
                await anyio.sleep(0.01)
    assert counts.completion_tokens < 10_000


async def test_an_unknown_route_is_not_there(server: Simulated) -> None:
    async with httpx.AsyncClient() as client:
        answer = await client.get(server.model(Speech(), "draft", "asked") + "/slots")
    assert answer.status_code == 404
