"""Log-likelihoods under the gated mixture, against its definition and against what the fusion writes."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import httpx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cosd_api import (
    AgreementVerifier,
    DiffVerifier,
    Fusion,
    FusionClosedError,
    RandomVerifier,
    RuleVerifier,
    SettingError,
    TreeVerifier,
    log_likelihood,
    log_likelihood_sync,
)
from cosd_api.extend import Place, Verifier
from cosd_api.types import LogLikelihood
from cosd_api.verification import verifier_at
from cosd_providers import BudgetError, ProviderError, ServerError, ServerInfo, UnsupportedError, connect
from cosd_providers.testing import Fault, ScriptedProvider, TableModel
from naive.gated import gated
from support.drawn import costly
from toys import ngrams
from toys import toy_models as toys
from toys.on_paths import PROMPT, TEXTS, Reciter

NODES = [{"feature": "p", "threshold": 0.5, "left": 1, "right": 2}, {"value": 1}, {"value": 0}]


class Whatever:
    """A verifier of a user's own, which looks at both."""

    def replaces(self, p: float, q: float) -> bool:
        return q >= p

    def contestable(self, p: float) -> bool:
        return True

    def explain(self, p: float, q: float) -> str:
        return f"{q} or {p}"


class Always(Whatever):
    """A verifier that always replaces."""

    def replaces(self, p: float, q: float) -> bool:
        return True


VERIFIERS: list[Verifier] = [
    RuleVerifier(),
    RuleVerifier(alpha=1, beta=1),
    RuleVerifier(alpha=0),
    TreeVerifier.model_validate({"nodes": NODES}),
    AgreementVerifier(alpha=0.6),
    AgreementVerifier(alpha=0.7),
    DiffVerifier(tau=0.1),
    RandomVerifier(rate=0.6, seed=1),
    Whatever(),
    Always(),
]


def placed(verifier: Verifier, prompt: bytes, start: int) -> Verifier:
    """The verifier at a byte of the continuation."""
    return verifier_at(verifier, Place(hashlib.blake2b(prompt, digest_size=16).digest(), start))


LETTERS = (b"", b"a", b"b", b"c")
"""The end of sequence, and three letters: every text has one encoding."""
LENGTH = 3


def letters(seed: int) -> TableModel:
    """A model over `LETTERS`: sixteenths, often tied, after any text."""

    def following(ids: Sequence[int]) -> list[float]:
        rng = random.Random(repr((seed, tuple(ids))))
        shape = rng.choice([shape for shape in toys.SHAPES if len(shape) <= len(LETTERS)])
        ranked = rng.sample(range(len(LETTERS)), len(shape))
        probs = [0.0] * len(LETTERS)
        for at, sixteenths in zip(ranked, shape, strict=True):
            probs[at] = sixteenths / 16
        return probs

    return TableModel(LETTERS, following, end_ids=(0,))


def continuations() -> Iterator[tuple[str, bool]]:
    """All texts that end within `LENGTH` tokens, and all that do not."""
    for length in range(LENGTH):
        yield from (("".join(text), True) for text in product("abc", repeat=length))
    yield from (("".join(text), False) for text in product("abc", repeat=LENGTH))


SEEDS = st.lists(st.integers(0, 2**16), min_size=2, max_size=4)


@costly(40)
@given(SEEDS, st.sampled_from(VERIFIERS))
async def test_all_continuations_together_are_certain(seeds: list[int], verifier: Verifier) -> None:
    draft, *assistants = [ScriptedProvider(letters(seed)) for seed in seeds]
    total = 0.0
    async with Fusion(draft=draft, assistant=assistants, verifier=verifier, unit="token") as fusion:
        answer = await fusion.generate("ab", max_tokens=LENGTH)
        ended = answer.tokens[-1].end
        for text, end in continuations():
            found = await fusion.log_likelihood("ab", text, end=end)
            total += math.exp(found.total)
            assert found.total == math.fsum(token.logprob for token in found.tokens)
            assert found.is_greedy == ((text, end) == (answer.text, ended))
    assert math.isclose(total, 1)


@costly(40)
@given(SEEDS, st.sampled_from(VERIFIERS), st.text("abc", max_size=6), st.booleans())
async def test_each_token_has_the_probability_of_the_definition(
    seeds: list[int], verifier: Verifier, text: str, end: bool
) -> None:
    if not text and not end:
        return
    models = [letters(seed) for seed in seeds]
    draft, *assistants = [ScriptedProvider(model) for model in models]
    options: dict[str, Any] = {"draft": draft, "assistant": assistants, "verifier": verifier, "unit": "token"}
    found = await log_likelihood("c", text, end=end, **options)
    ids = models[0].encode(b"c")
    names = ["draft", *(["assistant"] if len(seeds) == 2 else [f"assistant {n}" for n in range(1, len(seeds))])]
    nexts = [model.next for model in models]
    assert "".join(token.text for token in found.tokens) == text
    for token in found.tokens:
        here = placed(verifier, b"c", len(ids) - 1)
        model, choice = gated(nexts[0], nexts[1:], here.replaces, ids)
        own = LETTERS.index(token.text.encode())
        prob = model(ids)[own]
        assert token.logprob == (math.log(prob) if prob else -math.inf)
        assert token.is_greedy == (own == choice)
        assert token.source == names[nexts.index(model)]
        assert token.end == (own == 0)
        assert token.draft_prob == max(nexts[0](ids))
        assert bool(token.decisions) == here.contestable(token.draft_prob)
        ids.append(own)
    for name, used in found.usage.items():
        kinds = [request.kind for request in found.requests if request.endpoint == name]
        assert kinds in (["score"], ["score", "question"])
        assert used.requests == len(kinds)


@costly(40)
@given(
    toys.model_sets(same_tokenizer=True, may_hide_end=False, max_assistants=2),
    st.text(st.sampled_from(toys.CHARACTERS), min_size=1, max_size=6).map(str.encode),
    st.sampled_from(VERIFIERS),
    st.integers(0, 2**16),
)
async def test_where_tokens_are_parts_of_characters_it_is_exact_or_refused(
    toy: tuple[toys.ToyModel, tuple[toys.ToyModel, ...]], prompt: bytes, verifier: Verifier, seed: int
) -> None:
    """Exact on any vocabulary, or refused in words; and not refused where no part of a character is probable."""
    models = [toy[0], *toy[1]]
    draft, *assistants = [model.next for model in models]
    vocabulary, rng = toy[0].vocabulary, random.Random(seed)
    ids = list(vocabulary.encode(prompt))
    first = len(ids)
    while len(ids) < first + 6:  # mostly what the models would write
        probs = rng.choice(models).next(ids)
        following = [n for n, prob in enumerate(probs) if prob and n != vocabulary.end]
        if not following:
            break
        ids.append(rng.choice(following))
    while len(ids) > first and not is_read_back(vocabulary, ids, first):
        ids.pop()
    assume(len(ids) > first)
    text = vocabulary.decode(ids[first:]).decode()
    total, refusable, twins = 0.0, False, False
    for at in range(first, len(ids)):
        here = placed(verifier, prompt, len(vocabulary.decode(ids[first:at])))
        model, _ = gated(draft, assistants, here.replaces, ids[:at])
        prob = model(ids[:at])[ids[at]]
        total += math.log(prob) if prob else -math.inf
        probable = {ids[at], *(n for model in models for n, prob in enumerate(model.next(ids[:at])) if prob)}
        tokens = [vocabulary.tokens[n] for n in probable if n != vocabulary.end]
        twins = twins or len({*tokens}) < len(tokens)
        refusable = refusable or twins or not all(map(is_text, tokens))
    providers = [ScriptedProvider(toys.Plain(model)) for model in models]
    options: dict[str, Any] = {"draft": providers[0], "assistant": providers[1:], "verifier": verifier}
    try:
        found = await log_likelihood(prompt.decode(), text, unit="token", **options)
    except UnsupportedError:
        if not refusable:
            raise
    else:
        # Tokens of the same bytes cannot always be told apart by what an endpoint shows.
        assert twins or found.total == total or math.isclose(found.total, total)


def is_read_back(vocabulary: toys.Vocabulary, ids: Sequence[int], first: int) -> bool:
    """True if a server that is given the text behind the first ids reads these ids."""
    data = vocabulary.decode(ids)
    return is_text(vocabulary.decode(ids[first:])) and list(vocabulary.encode(data)) == list(ids)


def is_text(data: bytes) -> bool:
    """True if it is whole characters, and at least one."""
    return bool(data) and data.decode("utf-8", "ignore").encode() == data


# ----------------------------------------------------------------------------------------------------------- examples


def sure(text: str, prob: float = 0.9, **options: Any) -> ScriptedProvider:
    """A model over `LETTERS` that writes a text again and again, each letter with this probability."""

    def following(ids: Sequence[int]) -> list[float]:
        probs = [(1 - prob) / 3] * len(LETTERS)
        probs[LETTERS.index(text[len(ids) % len(text)].encode())] = prob
        return probs

    return ScriptedProvider(TableModel(LETTERS, following, end_ids=(0,)), **options)


async def test_it_says_whose_distribution_counts_and_why() -> None:
    found = await log_likelihood("a", "bc", draft=sure("abb", 0.4), assistant=sure("abc"), unit="token")
    assert found.is_greedy
    assert [token.source for token in found.tokens] == ["draft", "assistant"]
    assert [token.text for token in found.tokens] == ["b", "c"]
    first, second = found.tokens
    assert (first.logprob, first.draft_prob) == (math.log(0.4), 0.4)
    assert [(said.agreed, said.reason) for said in first.decisions] == [(True, "both agree")]
    assert (second.logprob, second.draft_text, second.draft_prob) == (math.log(0.9), "b", 0.4)
    assert [(said.fired, said.reason) for said in second.decisions] == [(True, "0.4 < 0.9 and 0.9 > 1 x 0.4")]
    assert math.isclose(found.total, math.log(0.4 * 0.9))
    assert math.isclose(found.perplexity, 1 / math.sqrt(0.4 * 0.9))
    assert {request.kind for request in found.requests} == {"score"}
    assert {name: used.requests for name, used in found.usage.items()} == {"draft": 1, "assistant": 1}
    assert [endpoint.name for endpoint in (found.draft, *found.assistants)] == ["draft", "assistant"]


async def test_the_most_confident_of_several_assistants_counts() -> None:
    assistants = [sure("ab", 0.6), sure("ac", 0.8), sure("ac", 0.8)]
    found = await log_likelihood("a", "c", draft=sure("aa", 0.4), assistant=assistants, unit="token")
    [token] = found.tokens
    assert token.source == "assistant 2"
    assert [said.fired for said in token.decisions] == [True, True, True]


async def test_the_end_alone() -> None:
    found = await log_likelihood("a", "", end=True, draft=sure("ab"), assistant=sure("ab"), unit="token")
    [token] = found.tokens
    assert (token.text, token.end) == ("", True)
    assert math.isclose(found.total, math.log(0.1 / 3))


async def test_what_is_impossible_goes_through_json() -> None:
    found = await log_likelihood("a", "ca", draft=sure("ab", 1.0), assistant=sure("ab"), unit="token")
    assert found.total == -math.inf
    assert found.perplexity == math.inf
    assert LogLikelihood.model_validate_json(found.model_dump_json()) == found


async def test_messages_are_rendered_for_each_model() -> None:
    draft, assistant = (sure("ab", template=lambda _, text=text: text) for text in ("a", "b"))
    messages = [{"role": "user", "content": "a"}]
    await log_likelihood(messages, "b", draft=draft, assistant=assistant, unit="token")
    assert [provider.calls[0].prompt for provider in (draft, assistant)] == ["a", "b"]


def test_without_async() -> None:
    found = log_likelihood_sync("a", "b", draft=sure("ab"), assistant=sure("ab"), unit="token", timeout=20)
    assert isinstance(found, LogLikelihood)


async def test_models_with_one_tokenizer_are_known_by_their_ids() -> None:
    """Those that take text only are fused by words, unless the user says that they have one tokenizer."""
    texts = {"a": ["b"]}
    draft, assistant = ScriptedProvider.from_texts(texts), ScriptedProvider.from_texts(texts)
    assert (await log_likelihood("a", "b", draft=draft, assistant=assistant, unit="token")).is_greedy
    with pytest.raises(UnsupportedError, match='give unit="token"'):
        await log_likelihood("a", "b", draft=draft, assistant=assistant)
    model = ngrams.learned("gpt2", 0)
    draft, assistant = (ScriptedProvider(model, ids=True) for _ in range(2))
    assert (await log_likelihood("The", " end", draft=draft, assistant=assistant)).tokens


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"unit": "word"}, 'not defined for unit="word": words have no next-token distribution'),
        ({"unit": "literal"}, 'not defined for unit="literal": tokens of two vocabularies have no next-token'),
        ({"continuation": ""}, "continuation is empty: there is nothing to score. With end=True the end alone is"),
        ({"continuation": b"b"}, "continuation must be a string, not bytes"),
        ({"continuation": "b\ud800"}, "not valid Unicode text at character 1"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0"),
        ({"max_requests": 0}, "max_requests must be a whole number"),
        ({"end": 1}, "end must be True or False, not 1"),
        ({"temperature": 0.5}, "temperature must be 0 or 1"),
    ],
)
async def test_invalid_arguments_are_refused(options: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"prompt": "a", "continuation": "b", "draft": sure("ab"), "assistant": sure("ab")}
    with pytest.raises(SettingError, match=words):
        await log_likelihood(**given | options)


@pytest.mark.parametrize(("name", "words"), [("max_tokens", "it bounds one answer"), ("ends", "did you mean 'end'")])
async def test_other_keywords_are_refused(name: str, words: str) -> None:
    given: dict[str, Any] = {"draft": sure("ab"), "assistant": sure("ab"), name: 1}
    with pytest.raises(TypeError, match=words):
        await log_likelihood("a", "b", **given)


class WithoutScores(ScriptedProvider):
    """A provider that scores no text."""

    async def describe(self) -> ServerInfo:
        info = await super().describe()
        return replace(info, capabilities=replace(info.capabilities, score=False))


@pytest.mark.parametrize(
    ("draft", "assistant", "words"),
    [
        (sure("ab", top_k=0), sure("ab"), "the draft does not list the most probable tokens beside"),
        (sure("ab"), sure("ab", end_prob=False), "the assistant does not report the probability of its end"),
        (sure("ab"), WithoutScores(letters(1)), "the assistant does not score a given text"),
    ],
)
async def test_endpoints_that_report_too_little_are_refused_before_anything_is_sent(
    draft: ScriptedProvider, assistant: ScriptedProvider, words: str
) -> None:
    with pytest.raises(UnsupportedError, match=words) as error:
        await log_likelihood("a", "b", draft=draft, assistant=assistant, unit="token")
    assert "llama.cpp" in error.value.hint
    assert not draft.calls
    assert not assistant.calls


async def test_two_tokenizers_are_refused() -> None:
    draft = ScriptedProvider.from_texts({"a": ["bc"]})
    assistant = ScriptedProvider.from_texts({"a": ["b", "c"]})
    with pytest.raises(UnsupportedError, match="not known to have one tokenizer"):
        await log_likelihood("a", "bc", draft=draft, assistant=assistant)
    with pytest.raises(UnsupportedError, match=r"the assistant cuts the continuation into other tokens .* from byte 0"):
        await log_likelihood("a", "bc", draft=draft, assistant=assistant, unit="token")


def spelling(prob: float) -> ScriptedProvider:
    """A model whose letter é is two tokens, and which knows one token more that begins in `a`."""
    tokens = (b"", b"a", b"b", b"\xc3", b"\xa9", b"ab")

    def following(ids: Sequence[int]) -> list[float]:
        if ids and ids[-1] == 3:
            return [0.0, 0.0, 0.2, 0.0, 0.8, 0.0]
        return [0.1, 0.1, 0.8 - prob, prob, 0.0, 0.0]

    return ScriptedProvider(TableModel(tokens, following, end_ids=(0,)))


async def test_a_character_of_several_tokens_is_refused() -> None:
    models: dict[str, Any] = {"draft": spelling(0.3), "assistant": spelling(0.3), "unit": "token"}
    with pytest.raises(UnsupportedError, match="'é' at byte 1 of the continuation has no distribution of the draft"):
        await log_likelihood("b", "bé", **models)
    assert (await log_likelihood("b", "ba", **models)).tokens  # where it is possible, but not the choice


async def test_a_choice_that_is_a_character_of_several_tokens_is_refused() -> None:
    models: dict[str, Any] = {"draft": spelling(0.6), "assistant": spelling(0.3), "unit": "token"}
    with pytest.raises(UnsupportedError, match="the draft would write 'é' at byte 0 of the continuation, one char"):
        await log_likelihood("b", "a", **models)


async def test_a_token_that_begins_in_the_prompt_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"'b' at byte 0 .* begins in the prompt, or is one character") as error:
        await log_likelihood("a", "b", draft=spelling(0.3), assistant=spelling(0.3), unit="token")
    assert error.value.hint == "End the prompt before a space, and begin the continuation with it."


# ------------------------------------------------------------------------------------------------------- after ids


@costly(40)
@given(
    st.sampled_from(("gpt2", "llama3", "spaces")),
    st.sampled_from((2, 3)),
    st.integers(0, 10_000),
    st.sampled_from(VERIFIERS),
    st.booleans(),
)
async def test_models_with_the_same_ids_are_asked_after_the_texts_own(
    name: str, order: int, start: int, verifier: Verifier, end: bool
) -> None:
    """Also inside characters, where each part of one has a distribution."""
    models = [ngrams.learned(name, 0), ngrams.learned(name, 1, order=order)]
    passage = ngrams.passages()[start % len(ngrams.passages())]
    at = start % max(1, len(passage) - 60)
    prompt, text = passage[at : at + 20] or "The", passage[at + 20 : at + 60] or " end"
    draft, assistant = (ScriptedProvider(model, ids=True) for model in models)
    options: dict[str, Any] = {"draft": draft, "assistant": assistant, "verifier": verifier, "tie": 0.0}
    found = await log_likelihood(prompt, text, end=end, **options)
    begin, ids = models[0].encode(prompt.encode()), models[0].encode(text.encode())
    assert "".join(token.text for token in found.tokens) == text
    assert len(found.tokens) == len(ids) + end
    assert found.total == math.fsum(token.logprob for token in found.tokens)
    for count, token in enumerate(found.tokens):
        own = ids[count] if count < len(ids) else models[0].end
        here = placed(verifier, prompt.encode(), len(b"".join(models[0].tokens[one] for one in ids[:count])))
        model, choice = gated(models[0].next, [models[1].next], here.replaces, [*begin, *ids[:count]])
        prob = model([*begin, *ids[:count]])[own]
        assert math.isclose(token.logprob, math.log(prob))
        assert token.is_greedy == (own == choice)
        assert token.source == ("draft" if model == models[0].next else "assistant")
        assert token.end == (own == models[0].end)
    kinds = {call.kind for provider in (draft, assistant) for call in provider.calls}
    assert kinds <= {"score_ids", "next_tokens"}
    assert all(call.prompt == prompt for provider in (draft, assistant) for call in provider.calls)


@pytest.mark.parametrize("text", TEXTS)
async def test_a_model_fused_with_itself_has_its_own_likelihood(text: str) -> None:
    """Asked after the text that a place cuts off, this model would say nonsense."""
    model: Any = Reciter(text)
    draft, assistant = (ScriptedProvider(model, ids=True) for _ in range(2))
    for verifier in (RuleVerifier(alpha=1.01, beta=0), Always()):
        found = await log_likelihood(PROMPT, text, end=True, draft=draft, assistant=assistant, verifier=verifier)
        assert found.is_greedy
        assert {token.source for token in found.tokens} == {"draft"}
        assert {token.logprob for token in found.tokens} == {math.log(0.7)}
        assert {said.agreed for token in found.tokens for said in token.decisions} == {True}


async def test_what_an_assistant_finds_as_probable_is_a_tie() -> None:
    """As in the fusion: its first and second choice are equal, and the second is the draft's."""

    tokens = (b"", *(bytes([byte]) for byte in range(256)))  # with which every text has ids

    def model(first: float, second: float) -> ScriptedProvider:
        probs = [0.0] * len(tokens)
        probs[tokens.index(b"a")], probs[tokens.index(b"b")] = first, second
        probs[0] = 1 - first - second

        def following(ids: Sequence[int]) -> list[float]:
            return probs

        return ScriptedProvider(TableModel(tokens, following, end_ids=(0,)))

    for ids, tie, source in ((True, 0.02, "draft"), (True, 0.0, "assistant"), (False, 0.02, "assistant")):
        draft, assistant = model(0.4, 0.35), model(0.400, 0.404)
        draft.ids = assistant.ids = ids
        found = await log_likelihood(
            "c", "a", draft=draft, assistant=assistant, unit="token", tie=tie, verifier=RuleVerifier(alpha=1, beta=0.5)
        )
        assert [token.source for token in found.tokens] == [source]
        assert found.tokens[0].decisions[0].tied == (source == "draft")


async def test_limits_hold() -> None:
    models: dict[str, Any] = {"assistant": sure("ab"), "unit": "token"}
    draft = sure("ab", request_delay=60)
    with pytest.raises(BudgetError, match=r"longer than timeout=0.05 seconds. Allow more.") as error:
        await log_likelihood("a", "b", draft=draft, timeout=0.05, **models)
    assert (error.value.limit, draft.open_requests) == ("timeout", 0)
    with pytest.raises(BudgetError, match=r"max_requests=1 is reached \(1 were sent\). Allow more.$") as error:
        await log_likelihood("a", "b", draft=sure("ab"), max_requests=1, **models)
    with pytest.raises(BudgetError, match="max_billed_tokens=1 is reached") as error:
        await log_likelihood("a", "b", draft=sure("ab"), max_billed_tokens=1, **models)


async def test_without_an_assistant_there_is_no_likelihood() -> None:
    down = sure("ab", faults=[Fault(ServerError("down", endpoint="scripted:"))])
    async with Fusion(draft=sure("ab"), assistant=down, unit="token", on_assistant_error="draft") as fusion:
        with pytest.raises(ProviderError, match="down"):
            await fusion.log_likelihood("a", "b")
        assert (await fusion.log_likelihood("a", "b")).tokens
    with pytest.raises(FusionClosedError):
        await fusion.log_likelihood("a", "b")


async def test_a_time_limit_hides_no_failure() -> None:
    """The servers are loading their model, and are asked again until the time is over."""
    loading = httpx.Response(503, json={"error": {"message": "Loading model"}})
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: loading)) as client:
        models: Any = {"draft": connect("http://gpu1:8080", http_client=client), "assistant": sure("ab")}
        words = r"timeout=0\.5 seconds; the last failure was http://gpu1:8080: 503: Loading model\. Allow more\.$"
        with pytest.raises(BudgetError, match=words) as error:
            await log_likelihood("a", "b", timeout=0.5, unit="token", **models)
    assert (error.value.limit, error.value.status) == ("timeout", 503)
    assert isinstance(error.value.__cause__, ServerError)
