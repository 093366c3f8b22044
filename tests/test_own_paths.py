"""Models with different ids, through a whole fusion: the naive reference, null control, other ids, faults, traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Fusion, FusionResult, MatchVerifier, RuleVerifier, SurpriseVerifier, fuse
from cosd_providers import Context, DraftEnd, ServerError, Token, UnsupportedError
from cosd_providers.contract import Piece
from cosd_providers.testing import Fault, ScriptedProvider, TableModel
from cosd_providers.text import sendable
from naive import reference_paths as naive
from support import virtual_time
from support.drawn import costly, examples, partly
from toys import ngrams
from toys.ngrams import NGram, Pieces, learned, pieces

NAMES = ("gpt2", "digits", "llama3", "o200k", "spaces")
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"draft_length": 1},
    {"draft_length": 3},
    {"max_ahead": 2},
    {"ask": "all"},
    {"ask": "all", "draft_length": 5},
)
"""Settings that change what an answer costs, and not its text."""
_SECONDS = st.sampled_from((0.0, 0.1, 0.35))
DELAYS = st.tuples(_SECONDS, _SECONDS, _SECONDS, st.sampled_from((0.0, 0.1, 9.0)))
"""Seconds for a request, for a token of the draft, for a request to an assistant, and for an encoding."""


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time.BACKEND


@dataclass(frozen=True)
class Task:
    """Everything that defines an answer."""

    prompt: str
    draft: NGram
    assistants: tuple[NGram, ...]
    max_tokens: int = 40
    stop: tuple[str, ...] = ()
    alpha: float = 0.7
    beta: float = 0.5
    tie: float = 0.02

    @property
    def verifier(self) -> RuleVerifier:
        """The rule."""
        return RuleVerifier(alpha=self.alpha, beta=self.beta)

    def expected(self) -> naive.Fused:
        """The answer of the naive reference."""
        return naive.Reference(
            self.prompt.encode(),
            self.draft,
            self.assistants,
            lambda _, p, q: self.verifier.replaces(p, q),
            contestable=lambda _, p: self.verifier.contestable(p),
            max_tokens=self.max_tokens,
            stop=[one.encode() for one in self.stop],
            tie=self.tie,
        ).fuse()


@st.composite
def prompts(draw: st.DrawFn) -> str:
    """A few characters of a passage."""
    text = draw(st.sampled_from(ngrams.passages()))
    at = draw(st.integers(0, max(0, len(text) - 60)))
    return text[at : at + draw(st.sampled_from((5, 20, 60)))]


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    """Answers of models of different passages, with one assistant or two."""
    count, order = draw(st.sampled_from((1, 1, 2))), st.sampled_from((2, 3, 3, 4))
    made = (*NAMES, "phrases", "symbols")
    names = draw(st.lists(st.sampled_from(made), min_size=count + 1, max_size=count + 1))
    alpha, beta = draw(st.sampled_from(((0.5, 0.5), (0.7, 0.5), (0.9, 0.2), (1.01, 0.0), (0.3, 1.0))))
    return Task(
        prompt=draw(prompts()),
        draft=learned(names[0], 0, order=draw(order)),
        assistants=tuple(learned(name, 1, order=draw(order)) for name in names[1:]),
        max_tokens=draw(st.sampled_from((1, 3, 7, 20, 40))),
        stop=draw(st.sampled_from(((), (), ("\n",), (". ",), ("e",), ("\n\n", "the")))),
        alpha=alpha,
        beta=beta,
        tie=draw(st.sampled_from((0.0, 0.02, 0.3))),
    )


class Encodes(ScriptedProvider):
    """Takes its time to encode a text, as a server does that is asked for it."""

    encode_delay = 0.0

    async def encode(self, text: str) -> list[Piece]:
        if self.encode_delay:
            await anyio.sleep(self.encode_delay)
        return await super().encode(text)


def served(model: Any, name: str = "model", **options: Any) -> Encodes:
    return Encodes(model, name=name, ids=True, **options)


def providers(
    task: Task,
    places: int = 64,
    delays: Sequence[float] = (0, 0, 0, 0),
    watch: Sequence[bool] = (),
    *,
    hides: bool = False,
) -> dict[str, Any]:
    """The models of a task, with their delays; those watched write as the draft does, and may hide what parts have."""
    request, token, question, encoding = delays
    draft = served(task.draft, "draft", request_delay=request, token_delay=token)
    assistants = [
        served(one, f"assistant {at}", places=places, request_delay=question * (1 + at))
        for at, one in enumerate(task.assistants)
    ]
    for one in (draft, *assistants):
        one.encode_delay = encoding
    for assistant, wanted in zip(assistants, watch, strict=False):
        assistant.watch, assistant.token_delay, assistant.hides_parts = wanted, token * question, hides
    return {"draft": draft, "assistant": assistants}


async def fused(task: Task, servers: dict[str, Any], **settings: Any) -> FusionResult:
    limits: dict[str, Any] = {"max_tokens": task.max_tokens, "stop": task.stop, "tie": task.tie}
    return await fuse(task.prompt, **servers, **{"unit": "word", "verifier": task.verifier, **limits, **settings})


def check_record(result: FusionResult, most: int) -> None:
    """Its tokens join to its text, they are as many as it may have, and it is the same judged again."""
    assert result.text == "".join(one.text for one in result.tokens)
    assert result.text == sendable(b"".join(one.data for one in result.tokens))
    assert "\ufffd" not in result.text
    assert len(result.tokens) <= most
    assert result.replacements is not None
    cut = result.replacements - sum(one.replaced is not None for one in result.tokens)
    # A stop string may begin with the last one, or with several.
    assert 0 <= cut <= max((len(one) for one in result.settings.stop), default=0)
    assert FusionResult.model_validate_json(result.model_dump_json()) == result


def check_requests(servers: dict[str, Any], places: int) -> None:
    """All were sent with ids that spell the text, and all are closed."""
    for server in (servers["draft"], *servers["assistant"]):
        assert server.open_requests == 0
        for call in server.calls:
            assert call.kind in ("generate", "next_tokens")
            assert call.kind == "next_tokens" or call.ids is not None
            contexts = call.contexts or ()
            assert len(contexts) <= max(places, 64)
            for context in contexts:
                assert context.ids is not None
                assert b"".join(server.model.tokens[one] for one in context.ids) == context.text


@costly(60)
@given(tasks(), st.sampled_from(WAYS), st.sampled_from((1, 64)), DELAYS)
async def test_equal_to_the_reference(task: Task, way: dict[str, Any], places: int, delays: Any) -> None:
    servers = providers(task, places, delays)
    check(await fused(task, servers, **way), task)
    check_requests(servers, places)


async def test_a_replacement_that_came_too_late_is_no_decision() -> None:
    """One assistant changes an earlier byte than another one, whose word began with a token of the draft's."""
    task = Task(
        prompt='file.\n\n```json\n{"prompt": "Q: In Peru a book costs 17 and a ',
        draft=learned("gpt2", 0, order=4),
        assistants=(learned("gpt2", 1, order=4), learned("gpt2", 1, order=3)),
        max_tokens=3,
        stop=(),
        alpha=1.01,
        beta=0.0,
        tie=0.0,
    )
    result = await fused(task, providers(task, 1))
    check(result, task)
    assert [one.source for one in result.tokens] == ["assistant 1", "draft", "assistant 2"]
    assert [decision.fired for token in result.tokens for decision in token.decisions] == [True, False, True]


async def test_a_word_behind_which_the_assistant_ends_is_not_the_longer_one_of_the_draft() -> None:
    """It writes `.` and ends where the draft writes `...`: that is no agreement in other tokens."""

    def model(tokens: tuple[bytes, ...], dots: float, dot: float) -> TableModel:
        def following(ids: Sequence[int]) -> list[float]:
            after = tokens[ids[-1]] if ids else b""
            found = {b"Q": {b" a": 0.9}, b" a": {b"...": dots, b".": dot}}.get(after, {b"": 0.9})
            return [found.get(one, 0.01) for one in tokens]

        return TableModel(tokens, following, end_ids=(0,))

    draft = model((b"", b"Q", b" a", b".", b"..."), 0.34, 0.3)
    assistant = model((b"", b"Q", b"..", b".", b" a"), 0.0, 0.5)
    result = await fuse(
        "Q", draft=served(draft), assistant=served(assistant), unit="word", verifier=RuleVerifier(), max_tokens=8
    )
    assert result.text == " a."
    assert result.trace.replay() == " a."
    assert [token.replaced for token in result.tokens] == [None, "...", None]


def reciting(tokens: Sequence[bytes], says: Sequence[bytes], prob: float) -> TableModel:
    """A model that writes these tokens, each with this probability, and then ends."""
    known = (b"", b"Q", *tokens)

    def following(ids: Sequence[int]) -> list[float]:
        text = b"".join(known[one] for one in ids)[1:]
        size = next((at for at in range(len(says)) if b"".join(says[:at]) == text), len(says))
        wanted = (*says, b"")[size]
        return [prob if one == wanted else (1 - prob) / len(known) for one in known]

    return TableModel(known, following, end_ids=(0,))


async def test_a_draft_that_fails_while_one_assistant_waits_for_it_ends_the_answer() -> None:
    """The other one has found a difference already, and cannot change the answer before the first was heard."""
    words, letters = (b" ab", b" cd", b" ef", b" gh", b" ij"), (b" ", *(bytes([one]) for one in b"abcdefghij"))
    draft = served(reciting((*words, b" xy", *letters), words, 0.3), "draft", token_delay=0.1)
    draft.faults = [Fault(down(), request=2)]
    differs = served(reciting((*words, b" xy", *letters), (b" xy", b" cd", b" ef"), 0.9), "differs")
    waits = served(reciting((b" ab c", *words, *letters), (b" ab c", b"d", b" ef"), 0.9), "waits")
    with anyio.fail_after(1000), pytest.raises(ServerError):
        await fuse("Q", draft=draft, assistant=[differs, waits], unit="word", draft_length=3)


async def test_a_draft_starts_after_the_judges_have_drawn_their_conclusions() -> None:
    """A watch has answered before the last token of a draft arrives: no draft is started to be cancelled."""
    words, letters = (b" ab", b" cd", b" ef", b" gh", b" ij"), [bytes([one]) for one in range(256)]
    draft = served(reciting((*words, b" xy", *letters), words, 0.3), "draft", token_delay=0.1)
    says = (b" ab", b" cd", b" xy", b" gh", b" ij")
    differs = served(reciting((*letters, *words, b" xy"), says, 0.9), "differs", watch=True)
    draft.encode_delay = differs.encode_delay = 0.001
    result = await fuse("Q", draft=draft, assistant=differs, unit="word", max_ahead=4)
    assert result.text == " ab cd xy gh ij"
    assert {one.outcome for one in result.requests if one.endpoint == "draft"} == {"done"}


WATCHED = st.tuples(st.booleans(), st.booleans())


@costly(60)
@given(tasks(), st.sampled_from(WAYS), DELAYS, WATCHED, st.booleans())
async def test_watches_change_nothing(
    task: Task, way: dict[str, Any], delays: Any, watch: tuple[bool, bool], hides: bool
) -> None:
    servers = providers(task, 1, delays, watch, hides=hides)
    result = await fused(task, servers, **way)
    check(result, task)
    check_requests(servers, 1)
    for (name, usage), wanted in zip(list(result.usage.items())[1:], watch, strict=False):
        watches = [one for one in result.requests if (one.kind, one.endpoint) == ("watch", name)]
        assert wanted or not watches
        assert sum(one.places for one in watches) == usage.strategies.get("watch", 0)


def check(result: FusionResult, task: Task) -> None:
    """The answer is the reference's, and the same judged again."""
    wanted = task.expected()
    assert result.text == sendable(wanted.text)
    assert result.finish_reason == wanted.finish_reason
    assert wanted.stop is None or result.stop_reason == wanted.stop.decode()
    check_record(result, task.max_tokens)
    assert result.trace.replay() == result.text
    assert result.replacements is not None
    assert result.replacements <= len(wanted.firings)  # some are written over before they are out
    if all(one.shared == one.start for one in wanted.firings):
        assert result.replacements == len(wanted.firings)
    if wanted.stop is None and not any(one.ends for one in wanted.firings):
        assert tuple(one.id for one in result.tokens) == wanted.path


@examples(2, most=25)
@given(st.sampled_from(NAMES), prompts(), st.sampled_from(WAYS), st.booleans(), DELAYS)
async def test_a_model_fused_with_itself_writes_what_it_writes_alone(
    name: str, prompt: str, way: dict[str, Any], always: bool, delays: Any
) -> None:
    model = learned(name, 0)
    task = Task(prompt, model, (model,), alpha=1.01, beta=0.0)
    verifier = MatchVerifier() if always else task.verifier
    result = await fused(task, providers(task, 64, delays), verifier=verifier, **way)
    check_alone(result, model, model, task)


@examples(2, most=25)
@given(st.sampled_from(NAMES), prompts(), st.sampled_from(WAYS), DELAYS)
async def test_a_copy_with_other_ids_writes_what_the_model_writes_alone(
    name: str, prompt: str, way: dict[str, Any], delays: Any
) -> None:
    model, copy = learned(name, 0), learned(name, 0, permuted=True)
    assert [model.tokens[one] for one in model.encode(b"The end.")] == [
        copy.tokens[one] for one in copy.encode(b"The end.")
    ]
    assert model.encode(b"The end.") != copy.encode(b"The end.")
    task = Task(prompt, model, (copy,), alpha=1.01, beta=0.0, tie=0.0)
    result = await fused(task, providers(task, 64, delays), **way)
    check_alone(result, model, model, task)


@examples(2, most=25)
@given(st.sampled_from(NAMES), prompts(), st.sampled_from(WAYS))
async def test_other_ids_change_nothing_where_everything_is_replaced(
    name: str, prompt: str, way: dict[str, Any]
) -> None:
    """The text is that of the rule for the same ids, which is the assistant's own."""
    draft, other, same = learned(name, 0), learned(name, 1, permuted=True), learned(name, 1)
    task = Task(prompt, draft, (other,), max_tokens=60, tie=0.0)
    result = await fused(task, providers(task), verifier=MatchVerifier(), **way)
    check_alone(result, draft, same, task)
    by_ids = replace(task, assistants=(same,))
    alike = await fused(by_ids, providers(by_ids), verifier=MatchVerifier(), unit="token")
    assert alike.settings.contexts == "ids"
    assert alike.text == sendable(naive_text(same, ngrams.alone(same, prompt, task.max_tokens)))


@pytest.mark.parametrize("name", partly(NAMES, 2))
@pytest.mark.parametrize("permuted", [False, True])
async def test_a_model_watched_by_itself_takes_one_stream(name: str, permuted: bool) -> None:
    model, other = learned(name, 0), learned(name, 0, permuted=permuted)
    task = Task("The draft ", model, (other,), max_tokens=120, alpha=1.01, beta=0.0, tie=0.0)
    result = await fused(task, providers(task, 1, watch=[True]))
    check_alone(result, model, model, task)
    [watch] = (one for one in result.requests if one.endpoint == "assistant")
    assert (watch.kind, result.assistant_requests) == ("watch", 1)
    assert watch.places == len(result.tokens) == 120
    assert watch.tokens <= 120 + naive.BEHIND + 1


async def test_a_watch_runs_on_behind_its_own_word() -> None:
    """Its next tokens are the lookahead of the replacement, and then the answers to the next places."""
    texts = "one two three four five six", "one two seven four five nine ten"
    draft, assistant = Says(GPT, texts[:1], prob=0.3), Says(LLAMA, texts[1:])
    results = [await fuse("Q", draft=served(draft), assistant=one, unit="word") for one in both(assistant)]
    assert [result.text for result in results] == [texts[1], texts[1]]
    assert results[0].replacements == results[1].replacements
    singles, watched = ([one.kind for one in result.requests if one.endpoint != "draft"] for result in results)
    assert watched == ["watch"]
    assert {*singles} == {"question"}
    assert len(singles) > 5


def both(assistant: Says) -> list[ScriptedProvider]:
    """The same assistant, asked by singles and by a watch."""
    return [served(assistant, places=1, watch=watch) for watch in (False, True)]


async def test_a_watch_is_closed_where_it_differs_for_nothing() -> None:
    """Nothing that it writes behind a difference that stands is of use."""
    draft = Says(GPT, ("one two three four five " * 20,), prob=0.3)
    assistant = Says(LLAMA, ("one two seven " + "and so on and on " * 20,), prob=0.1)
    ids = [assistant.encode(one.encode()) for one in (draft.texts[0], assistant.texts[0])]
    parted = next(at for at, (one, other) in enumerate(zip(*ids, strict=False)) if one != other)
    servers: dict[str, Any] = {"draft": served(draft, token_delay=0.1), "assistant": both(assistant)[1:]}
    servers["assistant"][0].token_delay = 0.1
    result = await fuse("Q", **servers, unit="word", max_tokens=40)
    assert (result.replacements, result.text[:18]) == (0, "one two three four")
    first = next(one for one in result.requests if one.kind == "watch")
    assert (first.outcome, first.places) == ("cancelled", parted + 1)
    assert first.tokens <= parted + 12  # what it wrote until the draft was two words behind the place
    check_requests(servers, 1)


async def test_what_a_watch_does_not_show_is_asked_where_it_decides() -> None:
    """The parts of a character have no probability; where they are agreed on nobody needs it."""
    draft, other = Says(GPT, ("a 😀 b c",), prob=0.3), "a 😂 b c"
    for text, replacements, kinds in (("a 😀 b c", 0, {"watch"}), (other, 1, {"watch", "question"})):
        assistant = served(Says(LLAMA, (text,)), places=1, watch=True, hides_parts=True)
        result = await fuse("Q", draft=served(draft), assistant=assistant, unit="word")
        assert (result.text, {one.kind for one in result.requests if one.endpoint != "draft"}) == (text, kinds)
        assert (result.replacements or 0) >= replacements
        assert result.trace.replay() == text


def naive_text(model: NGram, ids: Sequence[int]) -> bytes:
    """The bytes of ids."""
    return b"".join(model.tokens[one] for one in ids)


def check_alone(result: FusionResult, draft: NGram, writer: NGram, task: Task) -> None:
    """The answer is what a model writes alone, up to the first place whose ids are not its text's encoding."""
    ids = ngrams.alone(writer, task.prompt, task.max_tokens + naive.BEHIND)
    text = naive_text(writer, ids)
    whole = sendable(text).encode()
    bound = len(whole)
    for model in (writer, draft):
        ends = {*naive.bounds(model, ids if model is writer else model.encode(whole))}
        canonical = naive.bounds(model, model.encode(whole))
        strange = [end for end in ends ^ {*canonical} if end <= len(whole)]
        bound = min([bound, *strange])
    if bound < len(whole) or len(whole) < len(text):
        bound = max([at for at in range(bound) if whole[at : at + 1] == b" "], default=0)
    if draft is not writer:  # the last words stand if the draft does not write far enough behind them
        bound = min(bound, len(result.text.encode()) - 2 * naive.FARTHEST)
    common = max(0, min(bound, len(result.text.encode())))
    assert result.text.encode()[:common] == whole[:common]
    check_record(result, task.max_tokens)
    if bound == len(whole) and draft is writer:
        assert [one.id for one in result.tokens] == ids[: task.max_tokens]
        assert result.replacements == 0


# ------------------------------------------------------------------------------------------------------------ faults


def example(**changes: Any) -> Task:
    """An answer with several replacements by each of two assistants."""
    models = (learned("gpt2", 1), learned("spaces", 1))
    return replace(Task("The draft ", learned("llama3", 0), models, alpha=0.9, beta=0.2), **changes)


def faulty(task: Task, server: int, request: int) -> dict[str, Any]:
    """The models of a task, of which one fails from a request on: 0 is the draft."""
    servers = providers(task)
    one = [servers["draft"], *servers["assistant"]][server]
    one.faults = [Fault(down(), request=at) for at in range(request, 200)]
    return servers


def down() -> ServerError:
    """An error that trying again does not mend."""
    return ServerError("down", status=500)


@pytest.mark.parametrize("request_", [1, 3])
@pytest.mark.parametrize("server", [0, 1, 2])
async def test_a_model_that_fails_ends_the_answer(server: int, request_: int) -> None:
    servers = faulty(example(), server, request_)
    with pytest.raises(ServerError, match="down"):
        await fused(example(), servers, on_assistant_error="raise")
    check_requests(servers, 64)


async def test_a_watch_that_fails_becomes_a_single_question() -> None:
    """Behind two in a row, all are."""
    model = learned("gpt2", 0)
    task = Task("The draft ", model, (learned("gpt2", 0, permuted=True),), alpha=1.01, beta=0.0, tie=0.0)
    wanted = await fused(task, providers(task))
    for faults, kinds in (([(1, 3)], "wqw"), ([(1, 0), (3, 0)], "wqwq")):
        servers = providers(task, 1, watch=[True])
        servers["assistant"][0].faults = [Fault(down(), request=at, tokens=tokens) for at, tokens in faults]
        result = await fused(task, servers)
        assert result.text == wanted.text
        assert not any("down" in one for one in result.warnings)
        sent = "".join(one.kind[0] for one in result.requests if one.endpoint == "assistant")
        assert sent.startswith(kinds)
        assert sent.count("w") == len([one for one in kinds if one == "w"])
        check_requests(servers, 1)


class ShortOfBreath(ScriptedProvider):
    """A server that refuses requests for more than a few words."""

    async def generate(self, context: Context, *, max_tokens: int, **options: Any) -> AsyncGenerator[Token | DraftEnd]:
        if max_tokens > 2 * naive.BEHIND:
            raise down()
        async for item in super().generate(context, max_tokens=max_tokens, **options):
            yield item


async def test_a_server_that_fails_in_every_watch_is_asked_by_requests() -> None:
    task = example()
    wanted = await fused(task, providers(task, 1))
    servers = providers(task, 1)
    servers["assistant"] = [ShortOfBreath(one, ids=True, places=1, watch=True) for one in task.assistants]
    result = await fused(task, servers)
    assert result.text == wanted.text
    watches = Counter(one.endpoint for one in result.requests if one.kind == "watch")
    assert [*watches.values()] == [2, 2]
    assert {usage.strategies.get("watch", 0) for usage in result.usage.values()} == {0}
    check_record(result, task.max_tokens)


@pytest.mark.parametrize("request_", [1, 3])
async def test_an_answer_continues_without_an_assistant_that_failed(request_: int) -> None:
    texts = set[str]()
    for delay in (0.0, 0.3):
        task = example()
        servers = faulty(task, 1, request_)
        servers["draft"].token_delay = delay
        result = await fused(task, servers, on_assistant_error="draft")
        check_record(result, task.max_tokens)
        check_requests(servers, 64)
        assert any("down" in one for one in result.warnings)
        texts.add(result.text)
    without = await fused(task, providers(replace(task, assistants=task.assistants[1:])))
    if request_ == 1:
        assert texts == {without.text}


async def test_without_any_assistant_the_draft_writes_alone() -> None:
    task = example(assistants=(learned("gpt2", 1),))
    servers = faulty(task, 1, 1)
    result = await fused(task, servers, on_assistant_error="draft")
    alone = ngrams.alone(task.draft, task.prompt, task.max_tokens)
    assert [one.id for one in result.tokens] == alone
    assert not any(one.verified for one in result.tokens if one.draft_prob is not None and one.draft_prob < 0.5)


async def test_a_full_context_ends_the_answer() -> None:
    task = example()
    servers = providers(task)
    servers["draft"].context = len(task.draft.encode(task.prompt.encode())) + 20
    result = await fused(task, servers)
    assert (result.finish_reason, result.stop_reason) == ("length", "context")
    assert 0 < len(result.tokens) <= 20
    check_record(result, 20)
    assert result.trace.replay() == result.text


async def test_a_budget_ends_the_answer() -> None:
    task = example()
    whole = await fused(task, providers(task))
    for most in range(1, 9):
        servers = providers(task)
        result = await fused(task, servers, max_requests=most, on_budget="end")
        assert result.finish_reason == "budget"
        assert whole.text.startswith(result.text)
        assert sum(one.requests for one in (servers["draft"], *servers["assistant"])) <= most
        check_record(result, task.max_tokens)
        check_requests(servers, 64)


@pytest.mark.parametrize("seconds", [0.05, 0.5, 1.5, 4.0])
@pytest.mark.parametrize("watch", [False, True])
async def test_cancellation_leaves_no_request_open(seconds: float, watch: bool) -> None:
    task = example()
    servers = providers(task, 64, (0.1, 0.1, 0.35, 0.1), [watch, watch])
    with anyio.move_on_after(seconds) as scope:
        await fused(task, servers)
    assert scope.cancelled_caught
    check_requests(servers, 64)


# ----------------------------------------------------------------------------------------------------------- by hand


@dataclass(frozen=True)
class Says:
    """A model that writes the first of some texts that the answer begins with; `unsure`: by the byte, how much."""

    pieces: Pieces
    texts: tuple[str, ...]
    prob: float = 0.9
    unsure: dict[int, float] = field(default_factory=dict)
    apart: tuple[int, ...] = ()

    @property
    def tokens(self) -> Sequence[bytes]:
        """The bytes of every id."""
        return self.pieces.tokens

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The end of sequence."""
        return (len(self.tokens) - 1,)

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text."""
        return self.pieces.encode(text)

    def own(self, text: bytes, written: bytes) -> int:
        """The next id behind what is written of a text, which is cut at the bytes `apart`."""
        cuts = [0, *(at for at in self.apart if at < len(text)), len(text)]
        ids = [one for at, end in pairwise(cuts) for one in self.encode(text[at:end])]
        at = naive.bounds(self, ids)
        return ids[at.index(len(written))] if len(written) in at else self.encode(text[len(written) :])[0]

    def next(self, ids: Sequence[int]) -> list[float]:
        """The probability of every id after others, the first of which is the prompt."""
        written = b"".join(self.tokens[one] for one in ids[1:])
        text = next((one.encode() for one in self.texts if one.encode().startswith(written)), written)
        chosen = self.end_ids[0] if text == written else self.own(text, written)
        probs = [1e-9] * len(self.tokens)
        probs[chosen] = self.unsure.get(len(written), self.prob)
        return probs


async def told(draft: Says, *assistants: Says, **settings: Any) -> FusionResult:
    """A fusion by hand, the same whatever is asked and whenever."""
    results = list[FusionResult]()
    ways: list[tuple[dict[str, Any], bool | None]] = [({}, None), ({"ask": "all"}, None), ({"draft_length": 1}, None)]
    for way, watch in [*ways, ({}, True), ({}, False)]:
        servers = [served(one, f"assistant {at}", watch=watch) for at, one in enumerate(assistants)]
        result = await fuse("Q", draft=served(draft), assistant=servers, unit="word", **{**way, **settings})
        assert result.trace.replay() == result.text
        check_record(result, settings.get("max_tokens", 512))
        results.append(result)
    assert len({one.text for one in results}) == 1
    return results[0]


GPT, LLAMA = pieces("gpt2"), pieces("llama3")


async def test_an_end_is_replaced_and_replaces() -> None:
    more = await told(Says(GPT, ("The end",), prob=0.3), Says(LLAMA, ("The end of it all",)))
    assert (more.text, more.tokens[-1].source) == ("The end of it all", "draft")
    sure = await told(Says(GPT, ("The end",)), Says(LLAMA, ("The end of it all",)))
    assert sure.text == "The end"
    less = await told(Says(GPT, ("The end of it all",), prob=0.3), Says(LLAMA, ("The end",)))
    assert (less.text, less.finish_reason) == ("The end", "stop")
    assert less.tokens[-1].source == "assistant"
    nothing = await told(Says(GPT, ("The end",), prob=0.3), Says(LLAMA, ("",)))
    assert (nothing.text, nothing.finish_reason) == ("", "stop")


async def test_the_same_text_in_other_tokens_is_an_agreement() -> None:
    text = "The draft is here now."
    assistant = Says(LLAMA, (text,), apart=(6,))
    assert assistant.encode(b"The draft") != [*assistant.encode(b"The dr"), *assistant.encode(b"aft")]
    result = await told(Says(GPT, (text,), prob=0.3), assistant)
    assert (result.text, result.replacements) == (text, 0)
    assert any(one.agreed for token in result.tokens for one in token.decisions if one.text == " draft")


async def test_one_model_begins_with_a_space() -> None:
    result = await told(
        Says(GPT, (" Hello there, you", "Hello there, you"), prob=0.3), Says(LLAMA, ("Hello there, you",))
    )
    assert result.text == "Hello there, you"
    assert result.replacements == 1


async def test_what_is_typed_as_an_end_stays_text() -> None:
    text = "a </s> b <|im_end|> c"
    result = await told(Says(GPT, (text,), prob=0.3), Says(LLAMA, (text,)))
    assert result.text == text
    assert not any(one.end for one in result.tokens[:-1])


async def test_a_replacement_inside_a_character() -> None:
    result = await told(Says(GPT, ("a 😀 b c",), prob=0.3), Says(LLAMA, ("a 😂 b c",)))
    assert result.text.startswith("a 😂")


async def test_a_limit_within_a_word() -> None:
    draft, assistant = Says(GPT, ("The wordings of it all",), prob=0.3), Says(LLAMA, ("The answering of it all",))
    whole = await told(draft, assistant)
    for most in range(1, len(whole.tokens)):
        short = await told(draft, assistant, max_tokens=most)
        assert len(short.tokens) == most
        assert whole.text.startswith(short.text)


async def test_a_stop_within_the_lookahead() -> None:
    draft, assistant = Says(GPT, ("one two.\nthree four",), prob=0.3), Says(LLAMA, ("one six.\nthree four",))
    result = await told(draft, assistant, stop=["\n"])
    assert result.finish_reason == "stop"
    assert result.text.startswith("one six")


_BY_WORDS = 'Leave unit out, or give unit="word": such models are compared word by word, on the assistant\'s own ids. '


@pytest.mark.parametrize(("verifier", "more"), [(RuleVerifier(), _BY_WORDS), (SurpriseVerifier(), "")], ids=str)
async def test_single_tokens_are_refused_where_the_ids_are_others(verifier: Any, more: str) -> None:
    draft, assistant = served(learned("gpt2", 0)), served(learned("gpt2", 1, permuted=True))
    with pytest.raises(UnsupportedError) as refused:
        await fuse("The end", draft=draft, assistant=assistant, verifier=verifier, unit="token", max_tokens=3)
    words = 'unit="token" compares the ids of the models, and the assistant has other ids than the draft. '
    literally = 'unit="literal" compares any models token by token after the text (equation 3 as printed).'
    assert str(refused.value) == f"scripted:: {words}{more}{literally}"
    assert assistant.requests == draft.requests == 0


async def test_single_tokens_are_compared_as_text_where_the_ids_are_unknown() -> None:
    draft, assistant = served(learned("gpt2", 0)), ScriptedProvider(learned("gpt2", 1, permuted=True), ids=False)
    result = await fuse("The end", draft=draft, assistant=assistant, unit="token", max_tokens=3)
    assert (result.settings.unit, result.settings.contexts) == ("token", "text")


@pytest.mark.parametrize("verifier", [RuleVerifier(), SurpriseVerifier()], ids=str)
@pytest.mark.parametrize("permuted", [False, True])
async def test_the_literal_rule_sends_text_whatever_the_ids(verifier: Any, permuted: bool) -> None:
    draft, assistant = served(learned("gpt2", 0)), served(learned("gpt2", 1, permuted=permuted))
    result = await fuse("The end", draft=draft, assistant=assistant, verifier=verifier, unit="literal", max_tokens=8)
    assert (result.settings.unit, result.settings.contexts, result.ties) == ("literal", "text", None)
    assert {call.kind for call in assistant.calls} == {"propose"}
    assert all(call.ids is None for call in draft.calls)
    assert all(token.id is None for token in result.tokens)
    assert result.trace.replay() == result.text


async def test_no_place_after_the_answers_end_is_asked_early() -> None:
    """The draft writes some tokens after the end, so that the last places can be encoded."""
    text = ("forty-two", " seventy-seven", " thirty-three " * 8)
    draft = served(Says(GPT, ("".join(text),), prob=0.8), places=1, token_delay=0.1)
    assistant = served(Says(LLAMA, ("".join(text),), prob=0.9), places=1, watch=True, token_delay=0.02)
    async with Fusion(draft=draft, assistant=assistant, unit="word", verifier=RuleVerifier(alpha=1, beta=1)) as fusion:
        await fusion.generate("Q", max_tokens=60)  # by a watch of the whole answer: the speeds are known now
        assistant.watch = None
        for tokens in range(20, 28):
            result = await fusion.generate("Q", max_tokens=tokens)
            watches = [one for one in result.requests if one.kind == "watch"]
            assert watches
            assert all(one.at < len(result.text) for one in watches)
