"""Models with the same ids, through a whole fusion: the naive reference, null control, ties, texts and traces."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import (
    AgreementVerifier,
    Average,
    Fusion,
    FusionResult,
    MatchVerifier,
    RuleVerifier,
    SurpriseVerifier,
    Trace,
    fuse,
)
from cosd_providers import Context, Provider, ResponseError, ServerError, Token
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.engines.sglang import Sglang
from cosd_providers.engines.vllm import Vllm
from cosd_providers.testing import Fault, ScriptedProvider
from cosd_providers.text import sendable
from fakes.llama_cpp import FakeLlamaCpp
from fakes.sglang import StandInSglang
from fakes.vllm import FakeVllm
from naive import reference_ids
from support import virtual_time
from support.drawn import examples
from toys.id_models import (
    AB,
    END,
    HALF,
    MARK,
    OTHER_END,
    REST,
    TOKENS,
    TWIN,
    Always,
    IdModel,
    Task,
    Written,
    is_open,
    tasks,
)
from toys.unsteady import Order, by_ids, orders

WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"draft_length": 1},
    {"draft_length": 3},
    {"max_ahead": 2},
    {"ask": "all"},
    {"ask": "all", "draft_length": 3},
)
"""Settings that change what an answer costs, and not its text."""
DELAYS = st.tuples(*[st.sampled_from((0.0, 0.1, 0.35))] * 3)
"""Seconds for a request, for a token of the draft, and for a request to an assistant."""
WATCHED = st.lists(st.booleans(), min_size=3, max_size=3)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time.BACKEND


def providers(
    task: Task, places: int, delays: Sequence[float] = (0, 0, 0), watch: Sequence[bool] = ()
) -> dict[str, Any]:
    """The models of a task, with their delays; some of the assistants are watched, and write as the draft does."""
    request, token, question = delays
    draft = ScriptedProvider(
        task.draft, name="draft", ids=True, hides_parts=task.hides, request_delay=request, token_delay=token
    )
    assistants = [
        ScriptedProvider(one, name=f"assistant {at}", ids=True, places=places, request_delay=question * (1 + at))
        for at, one in enumerate(task.assistants)
    ]
    for assistant, wanted in zip(assistants, watch, strict=False):
        assistant.watch, assistant.token_delay, assistant.hides_parts = wanted, token * question, task.hides
    return {"draft": draft, "assistant": assistants}


async def fused(task: Task, servers: dict[str, Any], **settings: Any) -> FusionResult:
    limits: dict[str, Any] = {"max_tokens": task.max_tokens, "stop": [one.decode() for one in task.stop]}
    return await fuse(task.prompt, **servers, verifier=task.verifier, tie=task.tie, **limits, **settings)


def check(result: FusionResult, task: Task, *, skip: bool = True) -> None:
    """The answer is the reference's; its tokens join to its text; judged again, it is the same."""
    wanted = task.expected()
    assert (result.settings.contexts, result.settings.unit, result.settings.tie) == ("ids", "token", task.tie)
    names = ["draft", *(one.name for one in result.assistants)]
    tokens = [(one.id, one.data, one.source) for one in result.tokens]
    assert tokens == [(one.id, one.data, names[one.source + 1]) for one in wanted.tokens]
    assert result.text == sendable(wanted.text) == "".join(one.text for one in result.tokens)
    assert "\ufffd" not in result.text
    assert result.finish_reason == wanted.finish_reason
    assert wanted.stop is None or result.stop_reason == wanted.stop.decode()
    assert result.replacements == sum(one.source >= 0 for one in wanted.written)
    assert result.kept_tokens == sum(one.source < 0 for one in wanted.tokens)
    asked = judged(task, wanted, skip=skip)
    assert result.ties == sum(bool(one.tied) for one, heard in zip(wanted.written, asked, strict=True) if heard)
    for one, heard in zip(result.tokens, asked, strict=False):
        assert one.asked == bool(one.decisions) == heard
        if heard and one.source == "draft":
            assert [decision.assistant for decision in one.decisions] == names[1:]
    assert (result.units, result.off_path) == (len(result.tokens), 0)
    assert result.wasted_tokens == result.drafted_tokens - (result.kept_tokens or 0)
    again = task.verifier if isinstance(task.verifier, Always) else None
    assert result.trace.replay(again) == result.text
    whole = FusionResult.model_validate_json(result.model_dump_json())
    assert whole == result
    assert [one.data for one in whole.tokens] == [one.data for one in result.tokens]


def judged(task: Task, wanted: reference_ids.Fused, *, skip: bool) -> list[bool]:
    """For each place, whether the assistants are heard."""
    found, path, at = list[bool](), list[int](), 0
    for out in wanted.written:
        own = task.draft.token([*task.draft.encode(task.prompt.encode()), *path], 0)
        assert own.id is not None
        hidden = task.hides and not own.end and is_open([*path, own.id])
        found.append(not skip or task.contestable(out, at, hidden=hidden))
        path.append(out.id)
        at += len(out.data)
    return found


@examples(60)
@given(tasks(), st.sampled_from(WAYS), st.sampled_from((1, 64)), DELAYS)
async def test_equal_to_the_reference(task: Task, way: dict[str, Any], places: int, delays: Any) -> None:
    servers = providers(task, places, delays)
    result = await fused(task, servers, **way)
    check(result, task, skip=way.get("ask") != "all")
    draft, assistants = servers["draft"], servers["assistant"]
    assert draft.open_requests == 0
    for call in [call for one in assistants for call in one.calls]:
        assert call.kind == "next_tokens"
        assert call.contexts is not None
        assert len(call.contexts) <= places
        for context in call.contexts:
            assert context.ids is not None
            assert b"".join(TOKENS[one] for one in context.ids) == context.text
    if not task.hides:
        assert {call.kind for call in draft.calls} == {"generate"}


@examples(60)
@given(tasks(), st.sampled_from(WAYS), DELAYS, WATCHED)
async def test_watched_assistants_change_nothing(
    task: Task, way: dict[str, Any], delays: Any, watch: list[bool]
) -> None:
    servers = providers(task, 1, delays, watch)
    result = await fused(task, servers, **way)
    check(result, task, skip=way.get("ask") != "all")
    assert all(one.open_requests == 0 for one in (servers["draft"], *servers["assistant"]))
    kinds = {one.number: (one.kind, one.endpoint) for one in result.requests if one.kind in ("question", "watch")}
    places: Counter[str] = Counter()
    for decision in (decision for token in result.tokens for decision in token.decisions):
        assert decision.request is not None
        kind, endpoint = kinds[decision.request]
        assert endpoint == decision.assistant
        assert (decision.strategy == "watch") == (kind == "watch")
        places[endpoint] += kind == "watch"
    for (name, usage), wanted in zip(list(result.usage.items())[1:], watch, strict=False):
        assert usage.strategies.get("watch", 0) >= places[name]  # of places that a replacement took away, too
        assert wanted or not any(one == ("watch", name) for one in kinds.values())
    assert sum(one.places for one in result.requests if one.kind == "watch") == sum(
        usage.strategies.get("watch", 0) for usage in result.usage.values()
    )


@given(tasks(same=True, most=1), st.integers(1, 6), st.sampled_from(("max_requests", "max_billed_tokens")), DELAYS)
async def test_watches_count_against_the_limits(task: Task, most: int, limit: str, delays: Any) -> None:
    given: dict[str, Any] = {limit: most if limit == "max_requests" else 8 * most, "on_budget": "end"}
    result = await fused(task, providers(task, 1, delays, [True]), **given)
    assert sendable(task.expected().text).startswith(result.text)
    sent = sum(usage.requests + usage.retries for usage in result.usage.values())
    assert result.draft_requests + result.assistant_requests >= sent
    assert limit != "max_requests" or sent <= most


async def test_a_watch_is_closed_where_an_answer_is_left() -> None:
    model = IdModel(written=(*b"ab",))
    task = Task("Q", model, (model,), RuleVerifier(alpha=1, beta=1), 200, (), 0.0, hides=False)
    servers = providers(task, 1, (0, 0.1, 1), [True])
    [assistant] = servers["assistant"]
    async with Fusion(**servers, verifier=task.verifier) as fusion, fusion.stream("Q", max_tokens=200) as stream:
        async for _ in stream:
            assert assistant.open_requests == 1
            break
    assert assistant.open_requests == 0
    assert stream.usage["assistant"].completion_tokens < 9


async def test_a_watch_that_fails_becomes_a_single_question() -> None:
    model = IdModel(written=(*b"ab",))
    task = Task("Q", model, (model,), RuleVerifier(alpha=1, beta=1), 12, (), 0.0, hides=False)
    servers = providers(task, 1, watch=[True])
    [assistant] = servers["assistant"]
    assistant.faults = [Fault(ServerError("it broke", status=500), tokens=3)]
    result = await fused(task, servers)
    check(result, task)
    assert result.usage["assistant"].strategies["watch"] == 11
    assert [one.kind for one in result.requests if one.endpoint == "assistant"] == ["watch", "question", "watch"]
    assert not result.warnings


@examples(40)
@given(tasks(same=True), st.sampled_from(WAYS), DELAYS, WATCHED)
async def test_a_model_fused_with_itself_replaces_nothing(
    task: Task, way: dict[str, Any], delays: Any, watch: list[bool]
) -> None:
    servers = providers(task, 1, delays, watch)
    result = await fused(task, servers, **way)
    check(result, task, skip=way.get("ask") != "all")
    alone = replace(task, assistants=()).expected()
    assert [one.id for one in result.tokens] == [one.id for one in alone.tokens]
    assert (result.replacements, result.ties) == (0, 0)
    assert not any(call.kind == "next_tokens" for call in servers["draft"].calls)  # no probability is asked for
    for assistant, watched in zip(servers["assistant"], watch, strict=False):
        assert {call.kind for call in assistant.calls} <= {"generate" if watched else "next_tokens"}


@given(tasks(most=1), st.sampled_from(WAYS))
async def test_what_always_replaces_writes_the_assistants_own_text(task: Task, way: dict[str, Any]) -> None:
    task = replace(task, verifier=MatchVerifier())
    result = await fused(task, providers(task, 64), **way)
    check(result, task, skip=way.get("ask") != "all")
    [assistant] = task.assistants
    alone = replace(task, draft=assistant, verifier=RuleVerifier(alpha=0)).expected()
    if not result.ties:
        assert [one.data for one in result.tokens] == [one.data for one in alone.tokens]  # of two ends the draft's


@st.composite
def places(draw: st.DrawFn) -> Callable[[int, int], bool]:
    """Places, by model and byte, at which something breaks."""
    salt, share = draw(st.integers(0, 2**16)), draw(st.sampled_from((1, 2, 4)))
    return lambda model, at: zlib.crc32(repr((salt, model, at)).encode()) % share == 0


SOME = st.sets(st.integers(0, 2))


@examples(40)
@given(tasks(), orders(), places(), SOME, WATCHED, st.sampled_from(WAYS))
async def test_early_questions_and_watches_that_fail_change_nothing(
    task: Task, order: Order, odd: Callable[[int, int], bool], early: set[int], watch: list[bool], way: dict[str, Any]
) -> None:
    servers = by_ids(task, order, early=early, watch=watch, breaks=lambda model, at: model >= 0 and odd(model, at))
    check(await fused(task, servers, **way), task, skip=way.get("ask") != "all")
    assert all(one.open_requests == 0 for one in (servers["draft"], *servers["assistant"]))


@examples(40)
@given(tasks(), orders(), orders(), places(), st.sampled_from(WAYS[:-2]), st.integers(0, 20), st.integers(0, 20))
async def test_whether_an_answer_succeeds_does_not_depend_on_timing(
    task: Task, one: Order, other: Order, odd: Callable[[int, int], bool], way: dict[str, Any], draft: int, ask: int
) -> None:
    """Servers that break at some places of the text: the same answer, or the same error, every time."""

    def refuses(model: int, at: int) -> bool:
        return at > ask if model >= 0 else odd(model, at)

    found = list[tuple[str, str]]()
    for order, settings in ((one, {}), (other, way)):
        servers = by_ids(task, order, refuses=refuses, breaks=lambda model, at: model < 0 and at > draft)
        try:
            found.append(("", (await fused(task, servers, **settings)).text))
        except ServerError as error:
            partial: Any = error.partial
            assert sendable(task.expected().text).startswith(partial.text)
            found.append((str(error), ""))
    assert found[0] == found[1]


@examples(40)
@given(tasks(), orders(), orders(), places(), SOME, SOME, WATCHED, st.sampled_from(WAYS[:-2]))
async def test_an_assistant_is_lost_at_the_same_place_under_every_schedule(
    task: Task,
    one: Order,
    other: Order,
    odd: Callable[[int, int], bool],
    failing: set[int],
    early: set[int],
    watch: list[bool],
    way: dict[str, Any],
) -> None:
    found = list[Any]()
    ways: list[tuple[Order, dict[str, Any], dict[str, Any]]] = [
        (one, {}, {}),
        (other, {"early": early, "watch": watch}, way),
    ]
    for order, more, settings in ways:
        servers = by_ids(task, order, refuses=lambda model, at: model in failing and odd(model, at), **more)
        result = await fused(task, servers, on_assistant_error="draft", **settings)
        found.append(([(one.id, one.data, one.source, one.verified) for one in result.tokens], result.failures))
    assert found[0] == found[1]


def served(model: Any, **options: Any) -> ScriptedProvider:
    return ScriptedProvider(model, ids=True, **options)


async def test_contexts_are_the_drafts_own_ids() -> None:
    """No text is encoded again: "ab" in two tokens stays two tokens."""
    draft, assistant = served(Written((97, 98, 97))), served(Written((97, 98, TWIN)), places=1)
    result = await fuse("Q", draft=draft, assistant=assistant, verifier=RuleVerifier.paper())
    paths = [context.ids for call in assistant.calls for context in call.contexts or ()]
    assert paths == [(), (97,), (97, 98), (97, 98, TWIN)][: len(paths)]
    assert [one.id for one in result.tokens] == [97, 98, TWIN, END]
    assert result.text == "aba"
    assert (result.replacements, result.replaced_tokens) == (1, 1)
    assert [call.ids for call in draft.calls if call.kind == "generate"] == [(), (97, 98, TWIN)]
    assert result.trace.replay() == "aba"


async def test_a_character_of_several_tokens_takes_no_more_requests() -> None:
    """Its hidden parts are agreed on without their probability, and one token of the limit each."""
    ids = (97, *"😀".encode(), HALF, REST, 98)
    for hides in (False, True):
        draft = served(Written(ids), hides_parts=hides)
        assistant = served(Written(ids, prob=0.9))
        result = await fuse("Q", draft=draft, assistant=assistant)
        assert [call.kind for call in draft.calls] == ["generate"]
        assert result.text == "a😀😀b"
        assert [one.text for one in result.tokens] == ["a", "", "", "", "😀", "", "😀", "b", ""]
        assert [one.raw for one in result.tokens][1:7] == ["f0", "9f", "98", "80", "f09f", "9880"]
        assert [one.draft_prob is None for one in result.tokens] == [
            hides and 1 <= at <= 5 and at != 4 for at in range(9)
        ]
        assert all(one.asked and one.decisions[0].agreed for one in result.tokens)
        short = await fuse("Q", draft=draft, assistant=assistant, max_tokens=4)
        assert (short.text, len(short.tokens), short.finish_reason) == ("a", 4, "length")
        assert short.trace.replay() == "a"


async def test_the_draft_is_asked_for_a_hidden_probability_where_they_differ() -> None:
    other = Written((97, *"é".encode(), 98), prob=0.9)
    draft, assistant = served(Written((97, HALF, REST, 98)), hides_parts=True), served(other)
    result = await fuse("Q", draft=draft, assistant=assistant, verifier=RuleVerifier.paper())
    assert result.text == "aéb"
    assert [call.kind for call in draft.calls] == ["generate", "next_tokens", "generate", "generate"]
    [asked] = [call for call in draft.calls if call.kind == "next_tokens"]
    assert [context.ids for context in asked.contexts or ()] == [(97,)]
    token, _ = (one for one in result.tokens if one.replaced is not None)
    assert (token.draft_prob, token.assistant_prob) == (0.4, 0.9)
    numbers = {one.number for one in result.requests if one.kind == "question" and one.endpoint == "assistant"}
    assert {decision.request for one in result.tokens for decision in one.decisions} <= numbers
    sure = served(Written((97, HALF, REST, 98), prob=0.8), hides_parts=True)
    result = await fuse("Q", draft=sure, assistant=served(other), verifier=RuleVerifier.paper())
    assert result.text == "a😀b"  # the probability that the draft told keeps its token
    assert result.replacements == 0


async def test_a_question_to_the_draft_that_fails_ends_the_answer_that_waits_for_it() -> None:
    draft = served(Written((HALF, REST)), hides_parts=True, faults=[Fault(ResponseError("gone"), request=2)])
    with pytest.raises(ResponseError, match="gone"):
        await fuse("Q", draft=draft, assistant=served(Written((97,), prob=0.9)))


async def test_an_early_question_that_fails_is_asked_again() -> None:
    error = ResponseError("not yet")
    for delay in (0.0, 1.0):
        assistant = served(Written((98,), prob=0.9), request_delay=delay, faults=[Fault(error)])
        result = await fuse("Q", draft=served(Written((97,)), token_delay=0.5), assistant=assistant)
        assert result.text == "b"
        assert assistant.calls[0].contexts == assistant.calls[1].contexts


async def test_a_question_about_the_start_goes_out_with_the_draft() -> None:
    for verifier, kinds in ((RuleVerifier(), ["next_tokens"]), (RuleVerifier(alpha=0), [])):
        draft, assistant = served(Written((97,)), request_delay=9), served(Written((97,), prob=0.9))
        async with Fusion(draft=draft, assistant=assistant, verifier=verifier) as fusion:
            with anyio.move_on_after(1):
                await fusion.generate("Q", max_tokens=1)
        assert [call.kind for call in assistant.calls] == kinds


async def test_an_early_question_is_left_behind_where_the_answer_does_not_need_it() -> None:
    assistant = served(Written((98,), prob=0.9), request_delay=9)
    with anyio.fail_after(1):
        result = await fuse("Q", draft=served(Written((97,), prob=0.95)), assistant=assistant, max_tokens=1)
    assert (result.text, [token.asked for token in result.tokens]) == ("a", [False])
    assert [one.outcome for one in result.requests if one.kind == "question"] == ["cancelled"]
    assert assistant.open_requests == 0


async def test_the_draft_is_asked_once_how_probable_its_token_is() -> None:
    """Two assistants differ from a token whose probability was not shown; the surer one's token replaces it."""
    draft = served(Written((0xC3, 0xA9)), hides_parts=True)
    others = [served(Written((one,), prob=prob), request_delay=prob) for one, prob in ((97, 0.6), (98, 0.8))]
    result = await fuse("Q", draft=draft, assistant=others, verifier=RuleVerifier.paper(), max_tokens=1)
    assert [call.kind for call in draft.calls].count("next_tokens") == 1
    [token] = result.tokens
    assert (token.text, token.source, token.draft_prob) == ("b", "assistant 2", 0.4)
    assert [decision.draft_prob for decision in token.decisions] == [0.4, 0.4]


class Elsewhere(ScriptedProvider):
    """Answers a question otherwise than it wrote."""

    says: Token | None = None

    async def next_tokens(self, contexts: Sequence[Context], **options: Any) -> list[Token | None]:
        await super().next_tokens(contexts, **options)
        return [self.says]


C3 = Token(TOKENS[0xC3], 0.4, id=0xC3)


@pytest.mark.parametrize(
    ("says", "prob"),
    [
        (Token(b"b", 0.41, id=98, alternatives=(C3,)), 0.4),  # listed second
        (None, None),
        (Token(b"a", 0.9, id=97), None),
    ],
)
async def test_a_probability_that_stays_unknown_replaces_nothing(says: Token | None, prob: float | None) -> None:
    draft = Elsewhere(Written((0xC3, 0xA9)), ids=True, hides_parts=True)
    draft.says = says
    result = await fuse("Q", draft=draft, assistant=served(Written((97,), prob=0.9)), max_tokens=1)
    [token] = result.tokens
    [decision] = token.decisions
    assert (decision.draft_prob, decision.fired) == (prob, prob is not None)
    assert token.id == (0xC3 if prob is None else 97)


async def test_bytes_that_never_complete_a_character_are_left_out_of_the_text() -> None:
    ids = (97, 0xFF, 0xC3, 98, HALF)
    result = await fuse("Q", draft=served(Written(ids)), assistant=served(Written(ids)))
    assert result.text == "ab" == "".join(one.text for one in result.tokens)
    assert [one.id for one in result.tokens] == [*ids, END]
    assert b"".join(one.data for one in result.tokens) == b"a\xff\xc3b\xf0\x9f"
    assert result.trace.replay() == "ab"


async def test_a_trace_by_ids_is_read_back(tmp_path: Path) -> None:
    draft = served(Written((97, HALF, REST, 0xFF, 98)), hides_parts=True)
    result = await fuse("Q", draft=draft, assistant=served(Written((97, *"é".encode(), 0xFF, AB), prob=0.9)))
    path = tmp_path / "trace.jsonl"
    result.trace.save(path)
    read = Trace.load(path)
    assert read.result == result
    assert [one.data for one in read.result.tokens] == [one.data for one in result.tokens]
    assert read.replay() == result.text == "aéab"
    assert '"routes":{"draft":"ids","assistant":"ids"}' in path.read_text().partition("\n")[0]
    assert read.result.settings.route == "ids to ids"


async def test_a_stop_string_is_found_in_the_bytes_of_several_tokens() -> None:
    ids = (97, 0xC3, 0xA9, 98, 97)
    for stop, text in (("é", "a"), ("éb", "a"), ("b", "aé"), ("aé", "")):
        result = await fuse("Q", draft=served(Written(ids)), assistant=served(Written(ids)), stop=[stop])
        assert (result.text, result.finish_reason, result.stop_reason) == (text, "stop", stop)
        assert "".join(one.text for one in result.tokens) == text
        assert result.trace.replay() == text


async def test_a_typed_end_of_turn_stays_text() -> None:
    """Written by ordinary ids, the characters of a special token are its name and nothing else."""
    name = tuple(b"<|im_end|>")
    ends = frozenset({END, MARK})
    draft, assistant = (served(Written((97, *name, 98), end_ids=ends)) for _ in range(2))
    result = await fuse("Q", draft=draft, assistant=assistant)
    assert result.text == "a<|im_end|>b"
    assert [one.id for one in result.tokens] == [97, *name, 98, END]
    assert not any(one.end for one in result.tokens[:-1])
    typed = await fuse(
        "Q",
        draft=served(Written((97, *name, 98), end_ids=ends)),
        assistant=served(Written((97, MARK), end_ids=ends, prob=0.9)),
    )
    assert (typed.text, typed.tokens[-1].id, typed.tokens[-1].end) == (
        "a",
        MARK,
        True,
    )  # the special token is another id


async def test_either_models_end_is_agreed_on_as_the_end() -> None:
    draft, assistant = served(Written((97, END))), served(Written((97, OTHER_END), prob=0.9))
    result = await fuse("Q", draft=draft, assistant=assistant, ask="all")
    assert [one.id for one in result.tokens] == [97, END]
    assert result.tokens[-1].decisions[0].agreed
    assert result.replacements == 0
    assert result.trace.replay() == "a"


def tied(second: float, *, third: bool = False) -> Written:
    """An assistant that says "a", and finds "b" its second choice, or its third."""
    return Written((97,), {0: {97: 0.4, 99: second, 98: second / 1.01} if third else {97: 0.4, 98: second}})


async def test_ties_are_told() -> None:
    async def told(assistant: Written, tie: float | None = None, **settings: Any) -> tuple[str, int | None]:
        settings = {"verifier": RuleVerifier.paper(), **settings}
        result = await fuse("Q", draft=served(Written((98,))), assistant=served(assistant), tie=tie, **settings)
        [decision] = result.tokens[0].decisions
        assert decision.tied == decision.agreed == (not decision.fired)
        assert result.trace.replay() == result.text
        return result.text, result.ties

    assert await told(tied(0.396)) == ("b", 1)  # by default, 0.02
    assert await told(tied(0.396), 0.0) == ("a", 0)
    assert await told(tied(0.4), 0.0) == ("b", 1)
    assert await told(tied(0.3), 0.1) == ("a", 0)
    assert await told(tied(0.396, third=True), 1.0) == ("a", 0)
    assert await told(tied(0.396), 1.0, verifier=MatchVerifier()) == ("a", 0)
    assert await told(tied(0.4), 1.0, verifier=MatchVerifier()) == ("b", 1)
    assert await told(tied(0.396), 1.0, verifier=AgreementVerifier(alpha=0.5)) == ("b", 1)
    assert await told(tied(0.396, third=True), 1.0, verifier=SurpriseVerifier(gamma=0.9)) == ("a", 0)


async def test_another_id_of_the_same_bytes_is_no_tie() -> None:
    near, far = (Written((TWIN,), {0: {TWIN: 0.4, 97: prob}}) for prob in (0.39, 0.1))
    for assistant, wanted in ((near, (0, 1)), (far, (1, 0)), (Written((TWIN,)), (1, 0))):
        draft = served(Written((97,), prob=0.3))
        result = await fuse("Q", draft=draft, assistant=served(assistant), tie=0.05, max_tokens=1)
        assert (result.replacements, result.ties) == wanted


@pytest.mark.parametrize("seconds", [(0, 1), (1, 0)])
async def test_a_tie_counts_once_and_only_where_the_token_stands(seconds: tuple[float, float]) -> None:
    tie, sure = Written((97,), {0: {97: 0.4, 98: 0.4}}), Written((97,), prob=1.0)
    for models, wanted in (((sure, tie), (0, 1)), ((tie, tie), (1, 0))):
        assistants = [served(one, request_delay=delay) for one, delay in zip(models, seconds, strict=True)]
        result = await fuse("Q", draft=served(Written((98,), prob=0.3)), assistant=assistants, max_tokens=1)
        assert (result.ties, result.replacements) == wanted


async def test_other_ids_are_fused_on_their_own_paths_or_by_text() -> None:
    """Where the models have other ids, each is asked after its own; where one shows none, after text."""

    class Shifted(Written):
        def encode(self, text: bytes) -> list[int]:
            return list(text)

    draft = Written((97, 32, 98))
    other = served(Shifted(draft.ids))
    for writer, assistant, contexts, route, ties in (
        (served(draft), other, "ids", "own", 0),
        (served(draft), ScriptedProvider(draft), "text", "text", None),
        (ScriptedProvider(draft), other, "text", "own", 0),
        (ScriptedProvider(draft), ScriptedProvider(draft), "text", "text", None),
    ):
        result = await fuse("Q", draft=writer, assistant=assistant)
        assert (result.settings.contexts, result.ties, result.text) == (contexts, ties, "a b")
        assert result.settings.routes == {"draft": "ids" if writer.ids else "text", "assistant": route}
        assert all((one.id is not None) == writer.ids for one in result.tokens)


async def test_an_id_that_ends_the_draft_alone_is_agreed_on_as_its_end() -> None:
    """The assistant's server shows the same id as text."""
    draft = served(Written((97, MARK), end_ids=frozenset({END, MARK})))
    result = await fuse("Q", draft=draft, assistant=served(Written((97, MARK), prob=0.9)))
    assert (result.text, result.finish_reason, result.replacements) == ("a", "stop", 0)
    [decision] = result.tokens[-1].decisions
    assert (decision.agreed, decision.text, decision.draft_text) == (True, "", "")
    assert result.trace.replay() == "a"


def on_llama_cpp(model: Written) -> LlamaCpp:
    return LlamaCpp("http://llama", http_client=FakeLlamaCpp(model).client())


def on_vllm(model: Written) -> Vllm:
    server = FakeVllm(model)
    server.specials = {MARK: "<|im_end|>"}
    return Vllm("http://vllm", http_client=server.client())


def on_sglang(model: Written) -> Sglang:
    return Sglang("http://sglang", http_client=StandInSglang(model, specials={MARK: "<|im_end|>"}).client())


@pytest.mark.parametrize("serve", [served, on_llama_cpp, on_vllm, on_sglang])
@pytest.mark.parametrize("drafts_end", [False, True])
async def test_an_id_that_ends_either_model_ends_the_answer(
    drafts_end: bool, serve: Callable[[Written], Provider]
) -> None:
    """Written by the draft, it ends the assistant; put there by the assistant, it ends the draft."""
    both, one = frozenset({END, MARK}), frozenset({END})
    if drafts_end:
        draft, assistant = Written((97, 98), end_ids=both), Written((97, MARK), end_ids=one, prob=0.9)
    else:
        draft, assistant = Written((97, MARK, 98), end_ids=one, prob=0.9), Written((97, MARK), end_ids=both)
    result = await fuse("Q", draft=serve(draft), assistant=serve(assistant))
    assert [token.id for token in result.tokens] == [97, MARK]
    assert result.text == "a"


@pytest.mark.parametrize("serve", [on_llama_cpp, on_vllm, on_sglang])
@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("ask", ["contestable", "all"])
async def test_the_second_end_of_an_assistant_is_never_part_of_a_text(
    serve: Callable[[Written], Provider], unit: Literal["token", "word"], ask: Literal["contestable", "all"]
) -> None:
    draft = Written((97, 32, 98, 32, 97), end_ids=frozenset({END}))
    assistant = Written((97, MARK, 97), end_ids=frozenset({END, MARK}), prob=0.9)
    result = await fuse("Q", draft=serve(draft), assistant=serve(assistant), unit=unit, ask=ask)
    assert (result.text, result.finish_reason, result.tokens[-1].end) == ("a", "stop", True)


async def test_an_assistant_that_is_left_out_leaves_the_others_their_places() -> None:
    error = ServerError("down", status=503)
    error.retryable = True
    down = served(Written((97,), prob=0.9), faults=[Fault(error, request=at) for at in range(1, 9)])
    async with Fusion(
        draft=served(Written((97, 98))),
        assistant=[down, served(Written((98,), prob=0.9), places=1)],
        on_assistant_error="draft",
    ) as fusion:
        results = [await fusion.generate("Q") for _ in range(2)]
    assert [result.text for result in results] == ["b", "b"]
    assert results[1].settings.routes == {"draft": "ids", "assistant 2": "ids"}  # the first answer lost assistant 1


@pytest.mark.parametrize("settings", [{"temperature": 1}, {"method": Average(temperature=1)}])
@pytest.mark.parametrize("ids", [False, True])
async def test_a_method_without_ties_says_how_it_asked(settings: dict[str, Any], ids: bool) -> None:
    draft, assistant = served(Written((97, 0xFF))), ScriptedProvider(Written((97, 0xFF), prob=0.9), ids=ids)
    given: dict[str, Any] = settings if ids else settings | {"unit": "token"}
    result = await fuse("Q", draft=draft, assistant=assistant, max_tokens=2, seed=1, **given)
    assert (result.settings.contexts, result.settings.tie, result.ties) == ("ids" if ids else "text", 0.0, None)
    assert (result.settings.routes, result.settings.route) == ({}, "")  # each model continues its own path
    assert result.trace.replay() == result.text
