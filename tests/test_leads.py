"""Models whose templates write white space before an answer, asked by ids: it is the beginning of their paths."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Fusion, FusionResult, Message, RuleVerifier, fuse, log_likelihood
from cosd_api.types import LogLikelihood
from cosd_providers import DraftEnd, Token, UnsupportedError, Usage
from cosd_providers.chat.leading_space import AfterLead, led
from cosd_providers.contract import Context
from cosd_providers.messages import RenderedPrompt
from cosd_providers.testing import LanguageModel, ScriptedProvider, TableModel
from cosd_providers.text import sendable
from naive import reference_paths as naive
from naive.gated import gated
from support import virtual_time
from support.drawn import costly, examples, partly
from toys import ngrams
from toys.ngrams import NGram, learned

NAMES = ("gpt2", "llama3", "o200k", "spaces")
LEADS = (" ", "\n", "\n\n", " \n")
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"draft_length": 1},
    {"draft_length": 3},
    {"max_ahead": 2},
    {"ask": "all", "draft_length": 5},
)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time.BACKEND


@dataclass(frozen=True)
class Leading:
    """A model that begins its answer to one prompt with white space, in tokens of its own or in that of a word."""

    model: LanguageModel
    prompt: str
    lead: str
    obeys: bool = True

    @property
    def tokens(self) -> Sequence[bytes]:
        return self.model.tokens

    @property
    def end_ids(self) -> tuple[int, ...]:
        return tuple(self.model.end_ids)

    def encode(self, text: bytes) -> list[int]:
        return self.model.encode(text)

    @cached_property
    def begin(self) -> list[int]:
        """The ids of the prompt."""
        return self.encode(self.prompt.encode())

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        probs, size = self.model.next(ids), len(self.begin)
        if not self.obeys or [*ids[:size]] != self.begin:
            return probs
        left = self.lead.encode()
        for one in ids[size:]:
            data = self.tokens[one]
            left = left[len(data) :] if goes_along(data, left) else b""
        if not left:
            return probs
        fitting = [prob if goes_along(data, left) else 0.0 for prob, data in zip(probs, self.tokens, strict=True)]
        return [prob / sum(fitting) for prob in fitting]


def goes_along(data: bytes, left: bytes) -> bool:
    """Test whether a token begins with what is left of the white space, or is a part of it."""
    return bool(left) and bool(data) and (data.startswith(left) or left.startswith(data))


@dataclass(frozen=True)
class Behind:
    """A model as the reference sees it: for tokens at its beginning there are others, with the bytes behind the space.

    The token `n` with `k` bytes of the space before it is the token `(k + 1) * size + n`.
    """

    own: Leading

    @cached_property
    def size(self) -> int:
        return len(self.own.tokens)

    @cached_property
    def space(self) -> bytes:
        return self.own.lead.encode()

    @property
    def tokens(self) -> Sequence[bytes]:
        return self._tokens

    @cached_property
    def _tokens(self) -> Sequence[bytes]:
        found = [*self.own.tokens]
        for before in range(len(self.space)):
            found += [data[len(self.space) - before :] for data in self.own.tokens]
        return found

    @property
    def end_ids(self) -> tuple[int, ...]:
        return self.own.end_ids

    def encode(self, text: bytes) -> list[int]:
        if text == self.own.prompt.encode():
            return self.own.begin
        ids = self.own.encode(self.space + text)
        starts = accumulate((len(self.own.tokens[one]) for one in ids), initial=0)
        return [one + self.size * (at + 1) * (at < len(self.space)) for one, at in zip(ids, starts, strict=False)]

    def apart(self, text: bytes) -> list[int]:
        return self.own.encode(text)

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        probs, begin = self.own.next([one % self.size for one in ids]), len(self.own.begin)
        left = self.space
        for one in ids[begin:]:
            data = self.own.tokens[one % self.size]
            left = left[len(data) :] if goes_along(data, left) else b""
        found = [*probs, *[0.0] * (len(self.tokens) - self.size)]
        for one, data in enumerate(self.own.tokens if left else ()):
            if goes_along(data, left):
                found[one + self.size * (1 + len(self.space) - len(left))], found[one] = found[one], 0.0
        return found


@dataclass
class Templated(ScriptedProvider):
    """A provider whose template writes white space before an answer."""

    lead: str = ""
    rendered: list[RenderedPrompt] = field(default_factory=list[RenderedPrompt])

    async def render_prompt(self, messages: Sequence[Message], **options: Any) -> RenderedPrompt:
        found = await super().render_prompt(messages, **options)
        return led(self, self.lead, found.prompt) if self.lead else found


def served(model: LanguageModel, lead: str, **options: Any) -> Templated:
    return Templated(model, ids=True, lead=lead, template=lambda messages: messages[-1].content, **options)


@dataclass(frozen=True)
class Task:
    """Everything that defines an answer: for each model, the draft first, what its template writes."""

    prompt: str
    models: tuple[NGram, ...]
    leads: tuple[str, ...]
    obeys: tuple[bool, ...]
    max_tokens: int = 30
    alpha: float = 0.7
    beta: float = 0.5
    tie: float = 0.0

    @property
    def verifier(self) -> RuleVerifier:
        return RuleVerifier(alpha=self.alpha, beta=self.beta)

    @property
    def leading(self) -> list[Leading]:
        several = zip(self.models, self.leads, self.obeys, strict=True)
        return [Leading(model, self.prompt, lead, obeys and bool(lead)) for model, lead, obeys in several]

    def servers(self, **options: Any) -> list[Templated]:
        return [served(one, one.lead, **options) for one in self.leading]

    def expected(self) -> naive.Fused:
        """The answer of the naive reference."""
        draft, *assistants = [Behind(one) for one in self.leading]
        return naive.Reference(
            self.prompt.encode(),
            draft,
            assistants,
            lambda _, p, q: self.verifier.replaces(p, q),
            contestable=lambda _, p: self.verifier.contestable(p),
            max_tokens=self.max_tokens,
            stop=[],
            tie=self.tie,
        ).fuse()

    async def fused(self, servers: Sequence[Templated], **settings: Any) -> FusionResult:
        draft, *assistants = servers
        limits: dict[str, Any] = {"max_tokens": self.max_tokens, "tie": self.tie, "verifier": self.verifier}
        told = [Message("user", self.prompt)]
        return await fuse(told, draft=draft, assistant=assistants, **{**limits, **settings})


@st.composite
def prompts(draw: st.DrawFn) -> str:
    """A few characters of a passage."""
    text = draw(st.sampled_from(ngrams.passages()))
    at = draw(st.integers(0, max(0, len(text) - 60)))
    return text[at : at + draw(st.sampled_from((5, 20)))] or "a"


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    """Answers of models of different passages: at least one has such a template."""
    count = draw(st.sampled_from((2, 2, 3)))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=count, max_size=count))
    leads = draw(st.lists(st.sampled_from(("", *LEADS)), min_size=count, max_size=count).filter(any))
    alpha, beta = draw(st.sampled_from(((0.5, 0.5), (0.7, 0.5), (0.9, 0.2), (1.01, 0.0))))
    return Task(
        prompt=draw(prompts()),
        models=tuple(learned(name, int(at > 0)) for at, name in enumerate(names)),
        leads=tuple(leads),
        obeys=tuple(draw(st.sampled_from((True, True, True, False))) for _ in names),
        max_tokens=draw(st.sampled_from((1, 2, 3, 20))),
        alpha=alpha,
        beta=beta,
    )


@costly(40)
@given(tasks(), st.sampled_from(WAYS), st.sampled_from((1, 64)))
async def test_equal_to_the_reference(task: Task, way: dict[str, Any], places: int) -> None:
    servers = task.servers(places=places)
    result, wanted = await task.fused(servers, unit="word", **way), task.expected()
    assert result.text == sendable(wanted.text)
    assert result.settings.contexts == "ids"
    assert not any(call.kind == "propose" for server in servers for call in server.calls)
    if not any(one.ends for one in wanted.firings):
        assert tuple(one.id for one in result.tokens) == tuple(one % len(task.models[0].tokens) for one in wanted.path)
    assert result.trace.replay() == result.text


@pytest.mark.parametrize("lead", partly(LEADS, 2))
async def test_watches_and_assistants_that_take_text_only(lead: str) -> None:
    """The draft's white space is nobody else's, and an assistant's own is not the answer's."""
    draft, assistant = learned("gpt2", 0), learned("llama3", 1)
    task = Task("The draft", (draft, assistant), (lead, lead), (True, True), alpha=0.9, beta=0.2, max_tokens=40)
    results = [await task.fused(task.servers(places=1, watch=watch), unit="word") for watch in (False, True)]
    assert results[0].text == results[1].text == sendable(task.expected().text)
    assert "watch" in {one.kind for one in results[1].requests}
    servers = task.servers()
    servers[1].ids = False
    by_text = await task.fused(servers, unit="word")
    assert by_text.trace.replay() == by_text.text
    assert all(question.tokens[0] for call in servers[1].calls for question in call.questions or () if not call.text)


@examples(2, most=25)
@given(prompts(), st.sampled_from(NAMES), st.sampled_from(LEADS), st.sampled_from(WAYS), st.booleans(), st.booleans())
async def test_a_model_fused_with_itself_writes_what_it_writes_alone(
    prompt: str, name: str, lead: str, way: dict[str, Any], same: bool, obeys: bool
) -> None:
    """Its path begins with the white space, and it is asked after that; the answer begins behind it."""
    model = learned(name, 0)
    task = Task(prompt, (model, model), (lead, lead), (obeys, obeys), alpha=1.01, beta=0.0)
    servers = task.servers()
    result = await task.fused(servers, unit="token" if same else "word", **way)
    writer, ids = task.leading[0], list[int]()
    while len(ids) < task.max_tokens and model.end not in ids:
        probs = writer.next([*writer.begin, *ids])
        ids.append(probs.index(max(probs)))
    assert result.settings.contexts == "ids"
    if same:
        assert [one.id for one in result.tokens] == ids
        assert result.replacements == 0
        text = b"".join(model.tokens[one] for one in ids)
        assert result.text == sendable(text.removeprefix(lead.encode()))
    for server in servers:
        for context in [one for call in server.calls for one in call.contexts or ()]:
            assert context.ids is not None
            spelled = b"".join(model.tokens[one] for one in context.ids)
            assert not obeys or spelled == context.text


async def test_one_vocabulary_and_two_templates() -> None:
    """Their paths are not the same, so that they are judged by words, but each is asked after its own ids."""
    model = learned("llama3", 0)
    task = Task("The draft", (model, model), ("", "\n"), (True, True), alpha=1.01, beta=0.0)
    servers = task.servers()
    result = await task.fused(servers)
    assert (result.settings.unit, result.settings.contexts) == ("word", "ids")
    assert result.text == sendable(task.expected().text)
    first = min((one.ids or () for call in servers[1].calls for one in call.contexts or ()), key=len)
    assert first == ()
    asked = [one.ids or () for call in servers[1].calls for one in call.contexts or ()]
    assert all(model.tokens[ids[0]] == b"\n" for ids in asked if ids)


async def test_the_view_by_ids() -> None:
    """White space in tokens of its own has no bytes; a token that goes on has the rest; a pause changes nothing."""
    model = learned("llama3", 0)
    writer = Leading(model, "The draft", " \n")
    view = AfterLead(served(writer, ""), b" \n")
    assert (await view.describe()).capabilities.ids
    tokens = await drafted(view, (), b"", 6)
    own = b"".join(model.tokens[one.id or 0] for one in tokens)
    assert own.startswith(b" \n") and own != b" \n"
    assert b"".join(one.data for one in tokens) == own.removeprefix(b" \n")
    for count in range(1, 6):
        other = AfterLead(served(writer, ""), b" \n")  # which has seen none of these ids
        ids, text = tuple(one.id or 0 for one in tokens[:count]), b"".join(one.data for one in tokens[:count])
        assert await drafted(other, ids, text, 6 - count) == tokens[count:]
        [found] = await other.next_tokens([Context("The draft", text, ids)], usage=Usage())
        assert found is not None
        assert (found.id, found.data) == (tokens[count].id, tokens[count].data)


async def drafted(view: AfterLead, ids: tuple[int, ...], text: bytes, limit: int) -> list[Token]:
    stream = view.generate(Context("The draft", text, ids), max_tokens=limit, usage=Usage())
    return [replace(one, alternatives=()) async for one in stream if not isinstance(one, DraftEnd)]


@pytest.mark.parametrize("method", ["average", "safe", "cool", "rerank"])
@pytest.mark.parametrize("lead", [" ", "\n\n"])
async def test_other_methods_write_what_the_model_writes_alone(method: str, lead: str) -> None:
    model = learned("llama3", 0)
    task = Task("The draft", (model, model), (lead, lead), (True, True), max_tokens=24)
    servers = task.servers()
    draft, assistant = servers
    result = await fuse(
        [Message("user", task.prompt)], draft=draft, assistant=assistant, method=method, max_tokens=task.max_tokens
    )
    writer, ids = task.leading[0], list[int]()
    while len(ids) < task.max_tokens + len(lead):
        probs = writer.next([*writer.begin, *ids])
        ids.append(probs.index(max(probs)))
    alone = b"".join(model.tokens[one] for one in ids).removeprefix(lead.encode())
    assert len(result.text) > len(lead)
    assert sendable(alone).startswith(result.text)
    assert result.settings.contexts == "ids"
    assert {call.kind for server in servers for call in server.calls} <= {"generate", "next_tokens", "score_ids"}


@pytest.mark.parametrize("lead", [" ", "\n"])
async def test_models_that_take_text_only_score_it_behind_the_prompt(lead: str) -> None:
    task = Task("The draft", (learned("gpt2", 0), learned("llama3", 1)), (lead, lead), (True, True), max_tokens=24)
    servers = task.servers()
    for server in servers:
        server.ids = False
    draft, assistant = servers
    told = [Message("user", task.prompt)]
    result = await fuse(told, draft=draft, assistant=assistant, method="safe", max_tokens=task.max_tokens)
    scored = [call for server in servers for call in server.calls if call.kind == "score"]
    assert {call.prompt for call in scored} == {task.prompt}
    assert all(call.text.startswith(lead.encode() + result.text.encode()[:4]) for call in scored)


@pytest.mark.parametrize("leads", [("\n", "\n"), ("", "\n")])
async def test_an_estimate_is_of_words_where_the_paths_are_apart(leads: tuple[str, str]) -> None:
    task = Task("The draft", (learned("gpt2", 0), learned("gpt2", 1)), leads, (True, True))
    told, estimates = [Message("user", task.prompt)], []
    for unit in (None, "word"):
        draft, assistant = task.servers()
        async with Fusion(draft=draft, assistant=assistant, unit=unit) as fusion:
            estimates.append(await fusion.estimate(told, max_tokens=8))
    assert (estimates[0].endpoints == estimates[1].endpoints) == (leads[0] != leads[1])


# ---------------------------------------------------------------------------------------------------- likelihoods


@costly(40)
@given(
    prompts(),
    st.sampled_from(NAMES),
    st.sampled_from(LEADS),
    st.tuples(st.booleans(), st.booleans()),
    st.sampled_from(((0.5, 0.5), (0.9, 0.2), (1.01, 0.0))),
    st.integers(0, 10_000),
    st.booleans(),
)
async def test_a_likelihood_is_that_of_the_path_that_begins_with_the_white_space(
    prompt: str, name: str, lead: str, obeys: tuple[bool, bool], rule: tuple[float, float], start: int, end: bool
) -> None:
    """By the definition, one next token after the other; the white space's own tokens are some of them."""
    models = learned(name, 0), learned(name, 1)
    alpha, beta = rule
    task = Task(prompt, models, (lead, lead), obeys, alpha=alpha, beta=beta)
    passage = ngrams.passages()[start % len(ngrams.passages())]
    text = passage[start % len(passage) :][:24] or "a"
    servers = task.servers()
    found = await likelihood(task, servers, text, end=end)
    draft, assistant = task.leading
    begin, ids = draft.begin, draft.encode((lead + text).encode())
    assert "".join(token.text for token in found.tokens) == text
    assert len(found.tokens) == len(ids) + end
    for count, token in enumerate(found.tokens):
        own = ids[count] if count < len(ids) else models[0].end
        here = [*begin, *ids[:count]]
        model, choice = gated(draft.next, [assistant.next], task.verifier.replaces, here)
        prob = model(here)[own]
        assert math.isclose(token.logprob, math.log(prob) if prob else -math.inf)
        assert token.is_greedy == (own == choice)
        assert token.source == ("draft" if model == draft.next else "assistant")
        assert token.end == (own == models[0].end)
    kinds = {call.kind for server in servers for call in server.calls}
    assert kinds <= {"score_ids", "next_tokens"}


async def likelihood(
    task: Task, servers: Sequence[Templated], text: str, *, end: bool = False, **settings: Any
) -> LogLikelihood:
    draft, *assistants = servers
    options: dict[str, Any] = {"verifier": task.verifier, "tie": task.tie, "end": end, **settings}
    return await log_likelihood([Message("user", task.prompt)], text, draft=draft, assistant=assistants, **options)


BYTES = tuple(bytes([byte]) for byte in range(256))
"""With them every text has ids."""


@dataclass(frozen=True)
class Vocabulary:
    """White space before answers, and the tokens that models write; each text has one path."""

    lead: str
    letters: tuple[bytes, ...]
    others: tuple[bytes, ...] = ()

    @property
    def tokens(self) -> tuple[bytes, ...]:
        return (b"", *BYTES, *self.others)

    def paths(self, length: int) -> Iterator[tuple[str, bool]]:
        """The texts of all paths of models that obey: those that end within so many tokens, and those that do not."""
        for size in range(1, length + 1):
            for path in product(self.letters, repeat=size):
                if goes_along(path[0], self.lead.encode()):
                    text = b"".join(path).removeprefix(self.lead.encode()).decode()
                    yield text, size < length

    def model(self, seed: int) -> TableModel:
        """A model of its letters, all of which are possible everywhere, and sometimes two equally probable."""

        def following(ids: Sequence[int]) -> list[float]:
            rng, probs = random.Random(repr((seed, tuple(ids)))), [0.0] * len(self.tokens)
            weights = rng.sample(rng.choice(((1, 2, 4, 9), (1, 2, 4, 4))), 4)
            for letter, weight in zip((b"", *self.letters), weights, strict=True):
                probs[self.tokens.index(letter)] = weight / sum(weights)
            return probs

        return TableModel(self.tokens, following, end_ids=(0,))


APART = Vocabulary("\n", (b"\n", b"a", b"b"))
WITHIN = Vocabulary(" ", (b"a", b" a", b" b"), others=(b" a", b" b"))


@costly(40)
@given(st.sampled_from((APART, WITHIN)), st.lists(st.integers(0, 2**16), min_size=2, max_size=3))
async def test_all_answers_together_are_certain(vocabulary: Vocabulary, seeds: list[int]) -> None:
    """And of all of them one is greedy: the fusion's."""
    models = [Leading(vocabulary.model(seed), "ab", vocabulary.lead) for seed in seeds]
    draft, *assistants = [served(model, vocabulary.lead) for model in models]
    total, greedy, length, told = 0.0, list[tuple[str, bool]](), 3, [Message("user", "ab")]
    rule = RuleVerifier(alpha=0.9, beta=0.4)
    async with Fusion(draft=draft, assistant=assistants, verifier=rule, tie=0.0) as fusion:
        answer = await fusion.generate(told, max_tokens=length)
        for text, end in vocabulary.paths(length):
            found = await fusion.log_likelihood(told, text, end=end)
            assert found.total == math.fsum(token.logprob for token in found.tokens)
            total += math.exp(found.total)
            greedy += [(text, end)] * found.is_greedy
    assert math.isclose(total, 1)
    assert greedy == [(answer.text, answer.tokens[-1].end)]


async def test_different_white_space_is_no_common_path() -> None:
    """They have no likelihood, unless the user says that their tokens are the same: they are asked after text then."""
    task = Task("The draft", (learned("gpt2", 0), learned("gpt2", 1)), ("", " "), (True, True))
    servers = task.servers()
    with pytest.raises(UnsupportedError, match="different white space before an answer"):
        await likelihood(task, servers, "a draft")
    assert not any(call.kind in ("score", "score_ids") for server in servers for call in server.calls)
    found = await likelihood(task, servers, "a draft", unit="token")
    assert "".join(token.text for token in found.tokens) == "a draft"
    assert {call.kind for server in servers for call in server.calls} <= {"score", "propose"}
