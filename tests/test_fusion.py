"""The public face, over scripted models: what it gives, what it refuses, and that it leaves nothing open."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal

import anyio
import anyio.lowlevel
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import (
    AgreementVerifier,
    CoSD,
    Fusion,
    FusionClosedError,
    FusionResult,
    MatchVerifier,
    RuleVerifier,
    SettingError,
    Speculative,
    TreeVerifier,
    connect,
    fuse,
    fuse_sync,
)
from cosd_api.answer_warnings import cost
from cosd_api.checks import missing_members
from cosd_api.circuit_breaker import OPEN_SECONDS, CircuitBreaker
from cosd_api.records import EndpointUsage
from cosd_providers import (
    BudgetError,
    ConnectError,
    ContextLengthError,
    InvalidRequestError,
    Message,
    ModelChoiceError,
    ProviderError,
    ResponseError,
    ServerError,
    ServerInfo,
    UnsupportedError,
)
from cosd_providers.contract import Context, DraftEnd, Proposal, Token
from cosd_providers.messages import RenderedPrompt
from cosd_providers.testing import Fault, ScriptedProvider, ScriptToken, TableModel, TextModel
from fakes.llama_cpp import FakeLlamaCpp
from fakes.openai import FakeOpenAI
from naive import reference
from support.drawn import costly
from support.visits import until
from toys import toy_models as toys
from toys.lima import ASSISTANT, DRAFT, FUSED, Unheard, assistant, before_error, draft


async def test_fuse_says_where_every_token_comes_from() -> None:
    result = await fuse("Q:", draft=draft(), assistant=assistant())
    assert str(result) == result.text == FUSED == "".join(token.text for token in result.tokens)
    assert (result.finish_reason, result.stop_reason) == ("stop", "</s>")
    lima = next(token for token in result.tokens if token.text == " Li")
    assert (lima.source, lima.draft_prob, lima.assistant_prob, lima.replaced, lima.asked) == (
        "assistant",
        0.3,
        0.9,
        " Rome",
        True,
    )
    assert lima.reason == "0.3 < 0.9 and 0.9 > 1 x 0.3"
    assert result.tokens[-1].end
    assert not result.tokens[0].asked
    assert (result.replacements, result.iterations, result.assistant_requests) == (1, 2, 1)
    assert (result.kept_tokens, result.replaced_tokens) == (8, 1)
    assert result.acceptance_rate == 8 / 9
    assert result.usage["assistant"].requests == 1
    assert result.settings.unit == "word"
    assert result.off_path == 1  # the one place that was asked about
    assert result.timings.total >= (result.timings.first_token or 0) > 0


async def test_the_result_goes_through_json_and_pickle() -> None:
    result = await fuse("Q:", draft=draft(), assistant=assistant(), verifier=RuleVerifier(beta=float("inf")))
    text = result.model_dump_json()
    assert json.loads(text)["schema_version"] == 2
    assert json.loads(text)["settings"]["verifier"]["beta"] == "Infinity"
    json.loads(text, parse_constant=lambda name: pytest.fail(f"a bare {name}"))
    assert FusionResult.model_validate_json(text) == result
    assert FusionResult.model_validate_json(json.dumps(result.model_dump(mode="json"), allow_nan=False)) == result
    assert pickle.loads(pickle.dumps(result)) == result


async def test_a_tree_decides() -> None:
    nodes = [{"feature": "p", "threshold": 0.5, "left": 1, "right": 2}, {"value": 1}, {"value": 0}]
    tree = TreeVerifier.model_validate({"nodes": nodes})
    result = await fuse("Q:", draft=draft(), assistant=assistant(), verifier=tree)
    assert result.text == FUSED
    assert FusionResult.model_validate_json(result.model_dump_json()).settings.verifier == tree


async def test_a_verifier_of_the_users_own_is_named_in_the_result() -> None:
    class Mine(RuleVerifier):
        def replaces(self, p: float, q: float) -> bool:
            return q > 0.8

    class Own:
        def replaces(self, p: float, q: float) -> bool:
            return p < 0.5

        def contestable(self, p: float) -> bool:
            return p < 0.5

        def explain(self, p: float, q: float) -> str:
            return "because"

    result = await fuse("Q:", draft=draft(), assistant=assistant(), verifier=Own())
    assert result.text == FUSED
    assert result.settings.verifier is not None
    assert result.settings.verifier.kind == "custom"
    subclass = await fuse("Q:", draft=draft(), assistant=assistant(), verifier=Mine())
    assert subclass.settings.verifier is not None
    assert subclass.settings.verifier.kind == "custom"
    assert next(token for token in result.tokens if token.text == " Li").reason == "because"


async def test_several_assistants_and_the_surest_wins() -> None:
    other = ScriptedProvider.from_texts({"Q: The capital is": [(" Paris", 0.6)]})
    result = await fuse("Q:", draft=draft(), assistant=[other, assistant()])
    assert result.text == FUSED
    lima = next(token for token in result.tokens if token.text == " Li")
    assert lima.source == "assistant 2"
    assert {(said.assistant, said.text, said.fired) for said in lima.decisions} == {
        ("assistant 1", " Paris", True),
        ("assistant 2", " Lima", True),
    }
    assert set(result.usage) == {"draft", "assistant 1", "assistant 2"}


async def test_streaming_gives_tokens_as_they_become_final() -> None:
    async with Fusion(draft=draft(token_delay=0.005), assistant=assistant()) as fusion:
        async with fusion.stream("Q:") as stream:
            with pytest.raises(FusionClosedError, match="read the stream to its end"):
                _ = stream.result
            texts = [token.text async for token in stream]
            assert "".join(texts) == stream.result.text == FUSED
        assert [token.text for token in stream.result.tokens] == texts


async def test_leaving_a_stream_cancels_upstream() -> None:
    writer, asked = draft(token_delay=0.01), assistant(request_delay=60)
    async with Fusion(draft=writer, assistant=asked) as fusion:
        async with fusion.stream("Q:") as stream:
            async for _ in stream:
                break
            assert writer.open_requests == 1
        assert writer.open_requests == asked.open_requests == 0


async def test_cancelling_the_caller_cancels_upstream() -> None:
    writer, asked = draft(), assistant(request_delay=60)
    async with Fusion(draft=writer, assistant=asked) as fusion:
        with anyio.move_on_after(0.05) as scope:
            await fusion.generate("Q:")
        assert scope.cancelled_caught
        assert writer.open_requests == asked.open_requests == 0


@costly(20)
@given(st.integers(0, 60))
async def test_cancellation_at_any_await_leaves_nothing_open(steps: int) -> None:
    writer, asked = draft(), assistant()

    async def work() -> None:
        async with Fusion(draft=writer, assistant=asked) as fusion:
            await fusion.generate("Q:")

    task = asyncio.create_task(work())  # noqa: TID251 - to be cancelled after an exact number of steps
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert writer.open_requests == asked.open_requests == 0
    assert not [one for one in asyncio.all_tasks() if "FusionStream" in repr(one.get_coro())]


@pytest.mark.parametrize("order", ["given", "completed"])
async def test_map_reads_ahead_no_further_than_its_buffer(order: Literal["given", "completed"]) -> None:
    taken = 0

    def prompts() -> Iterator[str]:
        nonlocal taken
        for number in range(40):
            taken += 1
            yield f"{number}:"

    scripts = {f"{number}:": [f" {number}"] for number in range(40)}
    writer = ScriptedProvider.from_texts(scripts, request_delay=0.001)
    results = []
    async with Fusion(draft=writer, assistant=assistant()) as fusion:
        async for result in fusion.map(prompts(), concurrency=3, order=order):
            results.append(result.text)
            assert taken <= len(results) + 4 * 3
            assert writer.open_requests <= 3
    numbers = range(40)
    assert results == [f" {number}" for number in numbers] or order == "completed"
    assert sorted(results) == sorted(f" {number}" for number in numbers)


class OneIsSlow(ScriptedProvider):
    """A draft whose answer to one prompt does not begin before it is let go."""

    slow: str
    go: anyio.Event
    asked: set[str]

    async def generate(self, context: Context, **options: Any) -> AsyncGenerator[Token | DraftEnd, None]:
        prompt = context.prompt
        self.asked.add(prompt)
        if prompt == self.slow:
            await self.go.wait()
        async with aclosing(super().generate(context, **options)) as items:
            async for item in items:
                yield item


def one_slow(slow: str) -> OneIsSlow:
    writer = OneIsSlow.from_texts({f"{number}:": [f" {number}"] for number in range(40)})
    assert isinstance(writer, OneIsSlow)
    writer.slow, writer.go, writer.asked = slow, anyio.Event(), set()
    return writer


async def test_map_works_on_while_its_first_answer_is_slow() -> None:
    writer = one_slow("0:")
    results: list[str] = []
    async with Fusion(draft=writer, assistant=assistant()) as fusion:

        async def read() -> None:
            async for result in fusion.map([f"{number}:" for number in range(40)], concurrency=3):
                results.append(result.text)  # noqa: PERF401

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            while len(writer.asked) < 4 * 3:  # the slow one, and as many more as are kept
                await anyio.lowlevel.checkpoint()
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            assert (results, len(writer.asked)) == ([], 4 * 3)
            writer.go.set()
    assert results == [f" {number}" for number in range(40)]


async def test_map_gives_answers_as_they_are_completed() -> None:
    writer = one_slow("1:")
    results: list[str] = []
    async with Fusion(draft=writer, assistant=assistant()) as fusion:
        prompts = [f"{number}:" for number in range(40)]
        async for result in fusion.map(prompts, concurrency=2, order="completed"):
            results.append(result.text)
            if len(results) == 39:  # all but one
                writer.go.set()
    assert results[-1] == " 1"
    assert sorted(results) == sorted(f" {number}" for number in range(40))


@pytest.mark.parametrize("order", ["given", "completed"])
async def test_an_error_in_the_prompts_of_a_map_comes_in_its_turn(order: Literal["given", "completed"]) -> None:
    def prompts() -> Iterator[str]:
        yield "Q:"
        raise OSError("the file is gone")

    async with Fusion(draft=draft(), assistant=assistant()) as fusion:
        answers = fusion.map(prompts(), order=order, on_error="return")
        results, _ = await before_error(answers, OSError, "the file is gone")
    assert results == ([FUSED] if order == "given" else [])


async def test_map_passes_its_limits_on() -> None:
    async with Fusion(draft=draft(), assistant=assistant()) as fusion:
        assert [result.text async for result in fusion.map(["Q:"], max_tokens=2)] == [" The cap"]
        assert [result.text async for result in fusion.map(["Q:"], stop=" is")] == [" The capital"]


async def test_twins_are_judged_token_by_token_where_they_take_ids() -> None:
    result = await fuse("Q:", draft=draft(ids=True), assistant=draft(ids=True))
    assert (result.settings.unit, result.settings.contexts) == ("token", "ids")
    result = await fuse("Q:", draft=draft(), assistant=draft())
    assert (result.settings.unit, result.settings.contexts) == ("word", "text")


async def test_leaving_a_map_cancels_what_is_under_way() -> None:
    writer = draft(token_delay=0.001)
    async with Fusion(draft=writer, assistant=assistant()) as fusion:
        results = fusion.map(["Q:"] * 50, concurrency=5)
        async for _ in results:
            break
        await results.aclose()
        assert writer.open_requests == 0


async def test_one_fusion_serves_many_prompts_at_once() -> None:
    writer, asked = draft(), assistant()
    async with Fusion(draft=writer, assistant=asked) as fusion:
        results = [result async for result in fusion.map(["Q:"] * 200, concurrency=200)]
    assert {result.text for result in results} == {FUSED}
    assert writer.open_requests == asked.open_requests == 0


async def test_an_endpoints_error_reaches_the_caller_and_ends_everything() -> None:
    error = ServerError("the server broke", endpoint="http://gpu2:8080", status=500)
    writer, asked = draft(token_delay=0.001), assistant(faults=[Fault(error)])
    async with Fusion(draft=writer, assistant=asked) as fusion:
        with pytest.raises(ServerError, match="http://gpu2:8080: the server broke"):
            await fusion.generate("Q:")
        assert writer.open_requests == asked.open_requests == 0
        assert (await fusion.generate("Q:")).text == FUSED


async def test_an_error_in_a_stream_comes_after_the_tokens_that_were_final() -> None:
    error = ServerError("the server broke", status=500)
    async with Fusion(draft=draft(), assistant=assistant(faults=[Fault(error)])) as fusion:
        async with fusion.stream("Q:") as stream:
            texts, _ = await before_error(stream, ServerError)
        assert "".join(texts) == " The capital is"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"temperature": 0.7}, "temperature must be 0 or 1, not 0.7: 0 takes the most probable tokens"),
        ({"temperature": 1, "method": "cool"}, "temperature is not accepted by the method 'cool'"),
        ({"seed": 3}, "seed is not accepted: the method 'cosd' draws nothing, as the draft of CoSD is greedy by def"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"top_p": 0.9}, "greedy by definition"),
        ({"n": 2}, "one answer"),
        ({"logprobs": 5}, "carries its probabilities already"),
        ({"repetition_penalty": 1.1}, "compares the models' own probabilities"),
        ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1, not 0"),
        ({"max_tokens": 2.5}, "max_tokens must be a whole number"),
        ({"draft_length": 0}, "draft_length must be a whole number"),
        ({"ask": "nobody"}, 'ask must be "contestable" or "all"'),
        ({"unit": "sentence"}, 'unit must be "token", "word", "literal" or None'),
        ({"unit": "sentence", "method": "average"}, 'unit must be "token", "word", "literal" or None'),
        ({"stop": 5}, "stop must be a string or several, not 5"),
        ({"stop": [""]}, "stop must be strings of at least one character"),
        ({"verifier": 0.5}, "verifier must be a RuleVerifier"),
        ({"verifier": RuleVerifier}, "verifier must be a RuleVerifier"),
        ({"assistant": []}, "assistant is empty"),
        ({"assistant": 7}, "assistant must be a URL or a provider"),
        ({"draft": None}, "draft is missing: give the URL of a server, or a provider"),
        ({"draft": 7}, "draft must be a URL or a provider"),
        ({"stop": "a\ud800"}, "stop is not valid Unicode"),
        ({"prompt": ""}, "prompt is empty"),
        (
            {"prompt": {"role": "user", "content": "Q"}},
            "a string or a list of messages, not dict; one message is a list, too",
        ),
        ({"prompt": [{"role": "user"}]}, r"the content of messages\[0\] must be text, not NoneType"),
        ({"prompt": "a\ud800"}, "not valid Unicode text at character 1"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0, not 0"),
        ({"timeout": float("nan")}, "timeout must be a number of seconds above 0, not nan"),
        ({"timeout": "1"}, "timeout must be a number of seconds above 0, not '1'"),
        ({"max_requests": 0}, "max_requests must be a whole number of at least 1, not 0"),
        ({"max_billed_tokens": 1.5}, "max_billed_tokens must be a whole number of at least 1, not 1.5"),
        ({"on_budget": "stop"}, 'on_budget must be "raise" or "end", not \'stop\''),
        ({"on_assistant_error": "ignore"}, 'on_assistant_error must be "raise" or "draft", not \'ignore\''),
    ],
)
async def test_settings_are_checked_in_words(setting: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"prompt": "Q:", "draft": draft(), "assistant": assistant()} | setting
    with pytest.raises(SettingError, match=words):
        await fuse(**arguments)


async def test_unknown_arguments_name_the_nearest() -> None:
    with pytest.raises(TypeError, match="unknown argument 'max_token'; did you mean 'max_tokens'"):
        await fuse("Q:", draft=draft(), assistant=assistant(), max_token=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        await fuse("Q:", draft(), assistant())  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^unknown argument 'max_cost'$"):
        await fuse("Q:", draft=draft(), assistant=assistant(), max_cost=5)  # type: ignore[call-arg]
    async with Fusion(draft=draft(), assistant=assistant()) as fusion:
        with pytest.raises(TypeError, match="unknown argument 'max_token'; did you mean 'max_tokens'"):
            await fusion.estimate("Q:", max_token=2)  # type: ignore[arg-type]
        with pytest.raises(
            TypeError, match=r"^max_ahead is not accepted here: it is the same for all answers: give it to Fusion$"
        ):
            await fusion.generate("Q:", max_ahead=1)  # type: ignore[call-arg]
        with pytest.raises(
            TypeError, match="timeout is not accepted here: it bounds one answer: give it to generate, "
        ):
            await fusion.estimate("Q:", timeout=2)  # type: ignore[arg-type]
        with pytest.raises(
            TypeError, match="unit is not accepted here: it is the same for all answers: give it to Fusion"
        ):
            fusion.stream("Q:", unit="word")  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["max_tokens", "timeout", "stop", "max_requests", "on_budget"])
def test_what_bounds_one_answer_is_no_setting_of_a_fusion(name: str) -> None:
    with pytest.raises(TypeError, match=f"^{name} is not accepted here: .* give it to generate, stream or map$"):
        Fusion(draft=draft(), assistant=assistant(), **{name: 5})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["model", "api_key", "strategy", "engine", "http_client"])
async def test_what_is_a_servers_own_goes_to_connect(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name} is not accepted here: .* draft=connect\(url, {name}=\.\.\.\)$"):
        await fuse("Q:", draft=draft(), assistant=assistant(), **{name: "x"})  # type: ignore[arg-type]


async def test_used_closed() -> None:
    fusion = Fusion(draft=draft(), assistant=assistant())
    with pytest.raises(FusionClosedError, match="open the fusion first"):
        await fusion.generate("Q:")
    async with fusion:
        stream = fusion.stream("Q:")
        with pytest.raises(FusionClosedError, match="open the stream first"):
            await anext(stream)
        with pytest.raises(FusionClosedError, match="open already"):
            await fusion.__aenter__()


async def test_fuse_sync_works_inside_a_running_loop() -> None:
    assert fuse_sync("Q:", draft=draft(), assistant=assistant()).text == FUSED


def test_fuse_sync_works_again_and_again() -> None:
    writer, asked = draft(), assistant()
    assert {fuse_sync("Q:", draft=writer, assistant=asked).text for _ in range(3)} == {FUSED}
    assert writer.open_requests == 0


async def test_asking_everything_leaves_the_text_and_shows_more() -> None:
    result = await fuse("Q:", draft=draft(), assistant=assistant(), ask="all")
    assert result.text == FUSED
    assert all(token.asked for token in result.tokens)


@pytest.mark.parametrize("option", [{"draft_length": 1}, {"draft_length": 3}, {"max_ahead": 2}, {"unit": "word"}])
async def test_settings_of_cost_leave_the_text(option: dict[str, Any]) -> None:
    assert (await fuse("Q:", draft=draft(), assistant=assistant(), **option)).text == FUSED


async def test_limits_and_stops() -> None:
    async with Fusion(draft=draft(), assistant=assistant()) as fusion:
        short = await fusion.generate("Q:", max_tokens=5)
        assert (short.text, short.finish_reason, short.stop_reason) == (" The capital is Li", "length", "max_tokens")
        stopped = await fusion.generate("Q:", stop="ma. R")
        assert (stopped.text, stopped.finish_reason, stopped.stop_reason) == (" The capital is Li", "stop", "ma. R")


async def test_of_a_prompt_that_is_far_too_long_only_the_start_is_counted() -> None:
    class Counting(ScriptedProvider):
        counted: list[int]

        async def count_tokens(self, text: str) -> int:
            self.counted.append(len(text))
            return len(await self.tokenize(text))

    draft = Counting(TextModel({"Q:": ["a"]}), context=9)
    for length, words in ((300, "has 600 tokens"), (1_000_000, "has more than 8 tokens")):
        draft.counted = []
        with pytest.raises(ContextLengthError, match=f"the prompt {words}, and the draft takes at most 8"):
            await fuse("Q:" * length, draft=draft, assistant=assistant())
        assert draft.counted == [min(2 * length, 16 * 8 + 1024)]


class Rendering(ScriptedProvider):
    """A model that notes what it renders, and the characters that it counts."""

    rendered = 0
    counted = 0

    async def render_prompt(self, messages: Sequence[Message], **options: Any) -> RenderedPrompt:
        self.rendered += sum(len(one.content) for one in messages)
        return await super().render_prompt(messages, **options)

    async def count_tokens(self, text: str) -> int:
        self.counted += len(text)
        return len(await self.tokenize(text))


@pytest.mark.parametrize(("ids", "times"), [(True, 1), (False, 2)])
async def test_a_prompt_is_counted_once_by_models_with_the_same_ids(ids: bool, times: int) -> None:
    tokens = [b"", *(bytes([byte]) for byte in range(256)), b"QQ"]
    table = TableModel(tokens, lambda _: [1.0, *[0.0] * 257], end_ids=(0,))
    models = [Rendering(table, context=60, ids=ids) for _ in range(2)]
    await fuse("QQ" * 45, draft=models[0], assistant=models[1])
    assert sum(one.counted for one in models) == times * 90


def talk(*contents: str) -> list[Message]:
    """A conversation in which user and assistant take turns."""
    return [Message("assistant" if at % 2 else "user", content) for at, content in enumerate(contents)]


async def test_a_conversation_that_is_far_too_long_is_not_rendered() -> None:
    model = TextModel({"user: Q": ["a"]})
    long = talk("Q" * 500_000, "", "Q" * 500_000)
    room = 16 * 8 + 1024 + 16 * 24  # characters that are counted: by the room, and by two messages' ends
    short = [Message("user", "Q"), *[Message("assistant", "")] * 8]  # nine messages, and the model takes 8 tokens
    for prompt, count in ((long, room), ([Message("system", "Q" * 1_000_000), *talk("Q")], room), (short, 0)):
        writer, asked = Rendering(model, context=9), Rendering(model)
        with pytest.raises(
            ContextLengthError, match="the prompt has more than 8 tokens, and the draft takes at most 8"
        ):
            await fuse(prompt, draft=writer, assistant=asked)
        assert (writer.rendered, asked.rendered) == (0, 0)
        assert writer.counted == count
    own = {"draft": [Message("user", "Q" * 1_000_000)]}
    writer, asked = Rendering(model, context=9), Rendering(model)
    with pytest.raises(ContextLengthError, match="more than 8 tokens, and the draft"):
        await fuse(talk("Q"), draft=writer, assistant=asked, own=own)
    assert writer.rendered == 0


async def test_what_a_template_may_leave_out_is_rendered() -> None:
    writer = Rendering(TextModel({"Q": ["a"]}), context=400)
    thoughts = "<think>" + "x" * 100_000 + "</think>"
    with pytest.raises(ContextLengthError):  # this template leaves nothing out
        await fuse(talk("Q", thoughts, "Q"), draft=writer, assistant=writer)
    assert writer.rendered > 100_000


async def test_an_assistant_without_room_or_down_is_left_out_before_it_renders() -> None:
    class Down(Rendering):
        async def count_tokens(self, text: str) -> int:
            raise ConnectError("it is down")

    prompt = talk("Q" * 100_000)
    writer = Rendering(TextModel({"": []}))
    for asked in (Rendering(writer.model, context=9), Down(writer.model, context=9)):
        async with Fusion(draft=writer, assistant=asked, on_assistant_error="draft") as fusion:
            result = await fusion.generate(prompt, max_tokens=1)
        assert asked.rendered == 0
        assert result.warnings
        with pytest.raises((ContextLengthError, ConnectError)):
            await fuse(prompt, draft=writer, assistant=asked)


async def test_a_full_context_ends_the_answer() -> None:
    while_drafting = await fuse("Q:", draft=draft(context=5), assistant=assistant())
    assert (while_drafting.text, while_drafting.finish_reason, while_drafting.stop_reason) == (
        " The capital",
        "length",
        "context",
    )
    unjudged = await fuse("Q:", draft=draft(context=8), assistant=assistant())  # nobody knows what follows the word
    assert (unjudged.text, unjudged.stop_reason, unjudged.unjudged) == (" The capital is Rome.", "context", 1)
    after_a_replacement = await fuse("Q:", draft=draft(context=9), assistant=assistant())
    assert (after_a_replacement.text, after_a_replacement.stop_reason) == (" The capital is Lima", "context")
    with pytest.raises(ContextLengthError, match="the prompt has 2 tokens, and the draft takes at most 0"):
        await fuse("Q:", draft=draft(context=1), assistant=assistant())


async def test_an_end_without_probability_is_warned_of() -> None:
    result = await fuse("Q:", draft=draft(end_prob=False), assistant=assistant())
    assert result.text == FUSED
    assert any("draft does not report the probability of its end" in warning for warning in result.warnings)


async def test_a_text_only_draft_that_reads_itself_otherwise_is_warned_of() -> None:
    vocabulary = toys.Vocabulary((b"a", b"aa", b""), 2)
    writes = toys.ScriptedModel(vocabulary, {b"a" * n: {b"a": 1.0} for n in range(1, 9)})
    writer = ScriptedProvider(toys.Plain(writes), token_ids=False)
    asked = ScriptedProvider(toys.Plain(writes))
    result = await fuse("a", draft=writer, assistant=asked, unit="token", draft_length=2, max_tokens=8)
    assert any("takes text only" in warning for warning in result.warnings)
    fine = await fuse("Q:", draft=draft(token_ids=False), assistant=assistant(), draft_length=2)
    assert fine.text == FUSED
    assert fine.warnings == ()


class _Odd(ScriptedProvider):
    """A provider that breaks the contract in one way."""

    odd = ""

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        match self.odd:
            case "nothing":
                return
            case "no end":
                yield Token(b" a", 0.9)
                return
            case "end without an end":
                yield Token(b" a", 0.9)
                yield DraftEnd("end")
            case "limit without a token":
                yield DraftEnd("limit")

    async def propose(self, *args: Any, **kwargs: Any) -> Any:
        return []


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ("nothing", "generate\\(\\) ended without a DraftEnd"),
        ("no end", "generate\\(\\) ended without a DraftEnd"),
        ("end without an end", "generate\\(\\) ended without an end token before"),
        ("limit without a token", "generate\\(\\) reached its limit without a token"),
    ],
)
async def test_a_provider_that_breaks_the_contract_is_named(odd: str, words: str) -> None:
    writer = _Odd(TextModel(DRAFT), name="odd one")
    writer.odd = odd
    with pytest.raises(ResponseError, match=f"odd one: {words}"):
        await fuse("Q:", draft=writer, assistant=assistant())


async def test_too_few_answers_are_named() -> None:
    with pytest.raises(ResponseError, match=r"propose\(\) gave 0 answers to 1 questions"):
        await fuse("Q:", draft=draft(), assistant=_Odd(TextModel(ASSISTANT)))


async def test_a_users_verifier_that_raises_is_heard_as_it_is() -> None:
    class Broken(RuleVerifier):
        def replaces(self, p: float, q: float) -> bool:
            raise ZeroDivisionError("mine")

    writer, asked = draft(), assistant()
    with pytest.raises(ZeroDivisionError, match="mine"):
        await fuse("Q:", draft=writer, assistant=asked, verifier=Broken())
    assert writer.open_requests == asked.open_requests == 0


@pytest.mark.parametrize("delay", [0, 0.05])
async def test_what_nobody_waits_for_may_fail(delay: float) -> None:
    """The draft breaks behind a word that is replaced, sooner or later: the answer does not depend on when."""
    error = ServerError("the server broke", status=500)
    scripts = DRAFT | {"Q:": [*DRAFT["Q:"][:5], " and", " so", " on"]}
    writer = ScriptedProvider.from_texts(scripts, faults=[Fault(error, tokens=7)])
    assert (await fuse("Q:", draft=writer, assistant=assistant(request_delay=delay))).text == FUSED


async def test_a_draft_that_breaks_where_the_answer_needs_it() -> None:
    error = ServerError("the server broke", status=500)
    writer = draft(faults=[Fault(error, tokens=3)])
    async with Fusion(draft=writer, assistant=assistant()) as fusion, fusion.stream("Q:") as stream:
        texts, _ = await before_error(stream, ServerError)
    assert "".join(texts) == " The"  # " capital" is a word that was not ended yet


class _SlowToClose(ScriptedProvider):
    """Takes a while to close a request, as a real connection does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.closing = anyio.Event()

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        try:
            async with aclosing(super().generate(*args, **kwargs)) as stream:
                async for item in stream:
                    yield item
        finally:
            self.closing.set()
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
            self.requests = -1


async def test_the_bill_of_a_draft_may_come_a_moment_after_its_last_token() -> None:
    class Bills(_SlowToClose):
        async def generate(self, *args: Any, usage: Any, **kwargs: Any) -> Any:
            async with aclosing(super().generate(*args, usage=usage, **kwargs)) as stream:
                async for item in stream:
                    yield item
            await anyio.sleep(0.02)
            usage.completion_tokens += 1000

    result = await fuse("Q:", draft=Bills(TextModel(DRAFT)), assistant=assistant(), verifier=RuleVerifier(alpha=0))
    assert result.usage["draft"].completion_tokens == 1007


@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_a_cancellation_while_a_stream_is_left_waits_for_the_closing(how: str) -> None:
    writer = _SlowToClose(TextModel(DRAFT), token_delay=0.01)
    fusion = Fusion(draft=writer, assistant=assistant())

    async def leave() -> None:
        async with fusion, fusion.stream("Q:") as stream:
            await anext(stream)

    limit = asyncio.timeout(None)

    async def work() -> None:
        async with limit:
            await leave()

    task = asyncio.create_task(work())  # noqa: TID251 - to be cancelled by asyncio, not by anyio
    await writer.closing.wait()
    if how == "cancel":
        task.cancel()
    else:
        limit.reschedule(asyncio.get_running_loop().time())
    await asyncio.wait([task])
    assert task.cancelled() or isinstance(task.exception(), TimeoutError)
    assert writer.requests == -1


async def test_a_stream_that_was_left_says_what_it_has_cost() -> None:
    async with Fusion(draft=draft(), assistant=assistant()) as fusion:
        unopened = fusion.stream("Q:")
        assert {name: one.billed_tokens for name, one in unopened.usage.items()} == {"draft": 0, "assistant": 0}
        async with fusion.stream("Q:") as stream:
            await anext(stream)
        assert stream.usage["draft"].billed_tokens > 0
        async with fusion.stream("Q:") as whole:
            result = await whole.finished()
        assert whole.usage == result.usage


async def test_a_stream_that_is_not_read_pauses_the_draft() -> None:
    writer, other = (ScriptedProvider.from_texts({"Q:": [" a"] * 500}) for _ in range(2))
    async with Fusion(draft=writer, assistant=other) as fusion:
        stream = fusion.stream("Q:", max_tokens=300)
        stream.most_unread = 10
        async with stream:
            await anext(stream)
            written = -1
            while written != (written := stream.usage["draft"].completion_tokens + len(stream._all)):
                for _ in range(200):
                    await anyio.lowlevel.checkpoint()
            assert len(stream._all) < 100 and writer.open_requests == 1
            text = [token.text async for token in stream]
        assert len(text) == 299
        assert stream.result.text == " a" * 300


async def test_a_draft_that_waits_long_for_its_reader_leaves_its_server_and_continues_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cosd_api.decoding.calls.HELD_SECONDS", 0.01)
    texts = {"Q:": [f" {at}" for at in range(200)]}
    writer, other = (ScriptedProvider.from_texts(texts, ids=True) for _ in range(2))
    read: list[str] = []
    async with Fusion(draft=writer, assistant=other) as fusion:
        stream = fusion.stream("Q:", max_tokens=150)
        stream.most_unread = 10
        async with stream:
            for _ in range(13):
                await until(lambda: stream.unread > 10 and not writer.open_requests)
                read += [(await anext(stream)).text for _ in range(11)]
            read += [token.text async for token in stream]
    assert read == texts["Q:"][:150]
    drafts = [one for one in writer.calls if one.kind == "generate"]
    assert len(drafts) == stream.result.draft_requests + 13  # one more at each wait
    assert [len(one.ids or ()) for one in drafts[1:]] == [len(one.text.split()) for one in drafts[1:]]


async def test_an_answer_ends_while_its_reader_is_far_behind() -> None:
    """Its end waits for no reader, and leaves no coroutine that nobody waits for, which Python would warn of."""
    writer, other = (ScriptedProvider.from_texts({"Q:": [" a"] * 20}) for _ in range(2))
    async with Fusion(draft=writer, assistant=other) as fusion:
        stream = fusion.stream("Q:", max_tokens=3)
        stream.most_unread = 2
        async with stream:
            assert (await stream.finished()).text == " a" * 3


async def test_a_stream_that_was_left_is_no_stream_that_ended() -> None:
    async with Fusion(draft=draft(token_delay=0.01), assistant=assistant()) as fusion:
        async with fusion.stream("Q:") as stream:
            await anext(stream)
        await before_error(stream, FusionClosedError, "left before its end")
        with pytest.raises(FusionClosedError):
            _ = stream.result


async def test_two_readers_share_a_stream() -> None:
    texts: list[str] = []

    async with Fusion(draft=draft(), assistant=assistant()) as fusion, fusion.stream("Q:") as stream:

        async def read() -> None:
            async for token in stream:
                texts.append(token.text)
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(read)
    assert "".join(texts) == FUSED


async def test_map_takes_a_list_and_no_text() -> None:
    async with Fusion(draft=draft(), assistant=assistant()) as fusion:
        with pytest.raises(SettingError, match="map takes several prompts"):
            await anext(fusion.map("Q:"))
        with pytest.raises(SettingError, match="prompt must be a string or a list of messages, not NoneType"):
            [result async for result in fusion.map(["Q:", None])]  # type: ignore[list-item]
        prompts: list[Any] = ["Q:", None, 5, "", "Q:"]
        results = [result async for result in fusion.map(prompts, on_error="return")]
        assert [type(one) for one in results] == [FusionResult, *[SettingError] * 3, FusionResult]


async def test_what_a_stop_cut_away_is_not_counted_as_kept() -> None:
    result = await fuse("Q:", draft=draft(), assistant=assistant(), stop=" is")
    assert result.text == " The capital"
    assert result.kept_tokens == len(result.tokens) == 3
    empty = await fuse("Q:", draft=draft(), assistant=assistant(), stop=" The")
    assert (empty.text, empty.tokens, empty.kept_tokens, empty.timings.first_token) == ("", (), 0, None)


async def test_no_answer_leaves_the_draft_and_is_warned_of() -> None:
    class Silent(ScriptedProvider):
        async def propose(self, context: Context, questions: Any, *, usage: Any, **options: Any) -> Any:
            return [None for _ in questions]

    result = await fuse("Q:", draft=draft(), assistant=Silent(TextModel(ASSISTANT)))
    assert result.text == " The capital is Rome."
    assert result.warnings == ("an assistant could not answer at 1 places: the draft's tokens are kept there",)
    assert next(token for token in result.tokens if token.text == " Rome").reason == "kept: nothing to judge"


@pytest.mark.parametrize("shape", ["legacy", "chat"])
async def test_an_assistant_without_the_text_of_its_tokens_is_warned_of_once(shape: Literal["legacy", "chat"]) -> None:
    class Empty(FakeOpenAI):
        def _choice(self, *args: Any, **options: Any) -> Any:
            choice = super()._choice(*args, **options)
            logprobs = choice["logprobs"] or {}
            for entry in logprobs.get("content", ()):
                entry.update(token="", bytes=[])
            if "tokens" in logprobs:
                logprobs["tokens"] = [""] * len(logprobs["tokens"])
            return choice

    warned = dict[str, tuple[str, ...]]()
    for kind in (FakeOpenAI, Empty):
        server = kind(TextModel(ASSISTANT), shape=shape)
        told = connect("http://gpu", engine="openai", http_client=server.client())
        result = await fuse("Q:", draft=draft(), assistant=told)
        assert result.text == (FUSED if kind is FakeOpenAI else " The capital is Rome.")
        warned[kind.__name__] = tuple(one for one in result.warnings if "end of sequence" not in one)
    assert warned["FakeOpenAI"] == ()
    [warning] = warned["Empty"]
    assert warning == (
        "assistant could not answer: http://gpu sends only empty strings for its tokens, so its answers cannot be "
        "divided into tokens, and the draft's tokens are kept. Update that server, connect to it by its own protocol "
        '(without engine="openai"), or choose another assistant'
    )


def test_fuse_sync_is_refused_where_it_would_wait_for_itself() -> None:
    class Nested(RuleVerifier):
        def replaces(self, p: float, q: float) -> bool:
            fuse_sync("Q:", draft=draft(), assistant=assistant())
            return True

    with pytest.raises(RuntimeError, match="use `await fuse"):
        fuse_sync("Q:", draft=draft(), assistant=assistant(), verifier=Nested())


@pytest.mark.skipif(sys.platform == "win32", reason="no signal can be sent to a process of one's own there")
def test_an_interrupt_of_fuse_sync_cancels_the_work() -> None:
    writer = draft(request_delay=60)

    def interrupt() -> None:
        while not writer.open_requests:
            time.sleep(0.001)
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        fuse_sync("Q:", draft=writer, assistant=assistant())
    thread.join()
    deadline = time.monotonic() + 10
    while writer.open_requests and time.monotonic() < deadline:
        time.sleep(0.01)
    assert writer.open_requests == 0


@costly(30)
@given(
    toys.model_sets(may_hide_end=False),
    toys.thresholds(),
    st.integers(1, 16),
    toys.stops(),
    st.one_of(st.none(), st.integers(1, 5)),
    st.integers(0, 2**16),
    st.booleans(),
)
async def test_the_whole_way_equals_the_reference(
    models: Any, bounds: Any, limit: int, stop: tuple[bytes, ...], length: int | None, seed: int, ids: bool
) -> None:
    """Fusion, driver, decoder and providers together, with delays that nobody ordered.

    By tokens: `test_text_paths` holds words against their own reference, which knows nothing of exact ties, and these
    models have many. Servers that accept ids are sent text as well if the user asks for equation 3 as printed.
    """
    writer, asked = models
    rng = random.Random(seed)

    def served(model: toys.ToyModel) -> ScriptedProvider:
        delays: dict[str, Any] = {"request_delay": rng.choice((0, 0.001)), "token_delay": rng.choice((0, 0, 0.0005))}
        return ScriptedProvider(toys.Plain(model), ids=ids, **delays)

    providers = [served(writer), *map(served, asked)]
    verifier = RuleVerifier(alpha=bounds[0], beta=bounds[1])
    result = await fuse(
        "a b",
        draft=providers[0],
        assistant=providers[1:],
        verifier=verifier,
        unit="literal" if ids else "token",
        max_tokens=limit,
        stop=[one.decode() for one in stop],
        draft_length=length,
    )
    wanted = reference.fuse(b"a b", writer, asked, verifier.replaces, unit="token", max_tokens=limit, stop=stop)
    assert result.settings.contexts == "text"
    assert result.text == wanted.text.decode("utf-8", "backslashreplace")
    assert result.finish_reason == wanted.finish_reason
    assert result.replacements == wanted.replacements
    assert all(provider.open_requests == 0 for provider in providers)


# What is known before the first token.


async def test_a_chat_model_that_is_given_raw_text() -> None:
    draft = ScriptedProvider.from_texts({"Q": ["a"]}, answer_cue="<|end|>\n<|assistant|>\n")
    assistant = ScriptedProvider.from_texts({"Q": ["a"]}, answer_cue="\n")  # says nothing by which it can be known
    async with Fusion(draft=draft, assistant=assistant) as fusion:
        raw = await fusion.generate("Q")
        rendered = await fusion.generate("<|user|>\nQ<|end|>\n<|assistant|>\n")
    [warning] = raw.warnings
    assert warning == (
        "draft is a chat model, and the prompt is raw text without '<|end|>\\n<|assistant|>', which its chat template "
        "writes before an answer; a list of messages is rendered for each model"
    )
    assert rendered.warnings == ()


@pytest.mark.parametrize(("short", "name"), [("draft", "draft"), ("assistant", "assistant")])
async def test_a_prompt_that_is_too_long_for_one_model_is_refused_before_anything_is_drafted(
    short: str, name: str
) -> None:
    prompt = "Q" * 20
    models = {role: ScriptedProvider.from_texts({prompt: ["a"]}) for role in ("draft", "assistant")}
    models[short].context = len(await models[short].tokenize(prompt))
    async with Fusion(**models) as fusion:  # type: ignore[arg-type]
        with pytest.raises(ContextLengthError, match=rf"the prompt has \d+ tokens, and the {name} takes at most \d+"):
            await fusion.generate(prompt)
    assert all(model.requests == 0 for model in models.values())
    models[short].context += 1  # type: ignore[operator]
    async with Fusion(**models) as fusion:  # type: ignore[arg-type]
        assert (await fusion.generate(prompt)).text == "a"


@pytest.mark.parametrize("prob", [1.5, -0.1, float("nan"), float("-inf")])
@pytest.mark.parametrize("role", ["draft", "assistant"])
async def test_a_number_that_is_no_probability_is_refused(role: str, prob: float) -> None:
    class Logarithms(ScriptedProvider):
        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            yield Token(b" a", 0.3 if role == "assistant" else prob)
            yield Token(b"", 1.0, end=True)
            yield DraftEnd("end")

        async def propose(self, context: Context, questions: Any, *, usage: Any, **options: Any) -> Any:
            return [Proposal(question.start, (Token(b" b", 1.0), Token(b"", prob, end=True))) for question in questions]

    named = Logarithms(TextModel(DRAFT), name="gpu2")
    writer = named if role == "draft" else Logarithms(TextModel(DRAFT), name="gpu1")
    words = rf"gpu2: the probability of a token is {prob!r}, which is not between 0 and 1\. A logarithm becomes"
    with pytest.raises(ResponseError, match=words):
        await fuse("Q:", draft=writer, assistant=named if role == "assistant" else assistant())


def test_what_a_provider_lacks() -> None:
    class Half:
        name = "half"

        async def describe(self) -> None: ...

        async def propose(self) -> None: ...

        async def __aenter__(self) -> None: ...

    assert missing_members(Half()) == ["__aexit__()", "generate()", "score()", "tokenize()"]
    assert missing_members(None)[:2] == ["name", "__aenter__()"]
    assert missing_members(draft()) == []


# What a result says of its making.


async def test_timings_and_version() -> None:
    result = await fuse("Q:", draft=draft(), assistant=assistant())
    timings = result.timings
    assert timings.per_token == (timings.total - timings.discovery) / len(result.tokens)
    assert result.library_version == importlib.metadata.version("cosd-api")
    empty = await fuse("Q:", draft=draft(), assistant=assistant(), stop=" The")
    assert empty.timings.per_token is None


async def test_finding_out_about_the_servers_is_told_apart() -> None:
    class SlowToDescribe(ScriptedProvider):
        async def describe(self) -> ServerInfo:
            await anyio.sleep(0.05)
            return await super().describe()

    slow = SlowToDescribe(draft().model)
    result = await fuse("Q:", draft=slow, assistant=assistant())
    timings = result.timings
    assert 0.05 <= timings.discovery <= timings.total
    assert timings.per_token == (timings.total - timings.discovery) / len(result.tokens)
    assert FusionResult.model_validate_json(result.model_dump_json()).timings == timings


@pytest.mark.parametrize("faulty", ["draft", "assistant"])
async def test_an_error_of_a_description_names_the_endpoint(faulty: str) -> None:
    class Odd(ScriptedProvider):
        async def describe(self) -> ServerInfo:
            raise ResponseError("the answer is odd")

    models: Any = {"draft": draft(), "assistant": assistant()}
    models[faulty] = Odd(models[faulty].model, name="gpu7:8080")
    with pytest.raises(ResponseError, match=r"^gpu7:8080: the answer is odd$"):
        await fuse("Q:", **models)


async def test_connect_passes_on_what_it_is_given_and_the_cache_is_billed() -> None:
    model = TextModel({"Q:": [" The", " capital"]})
    server = FakeLlamaCpp(model)
    server.changes = {"timings/cache_n": 5}
    seen: list[tuple[str, str | None]] = []

    def watch(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.path, request.headers.get("x-team")))
        return server.handle(request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(watch)) as client:
        options: dict[str, Any] = {"headers": {"X-Team": "blue"}, "extra_body": {"id_slot": 3}, "http_client": client}
        provider = connect("http://gpu1", **options)
        result = await fuse("Q:", draft=provider, assistant=assistant())
    assert result.text == " The capital"
    assert {team for _, team in seen} == {"blue"}
    bodies = [body for path, body in server.requests if path == "/completion"]
    assert bodies and all(body["id_slot"] == 3 for body in bodies)
    assert result.usage["draft"].cached_tokens == 5
    assert result.usage["assistant"].cached_tokens == 0


#: A program that has fused, forks, and fuses again in the child: in its main thread, and in new ones.
FORKED = """
import os, sys, threading
from cosd_api import fuse_sync
from cosd_providers.testing import ScriptedProvider

draft = ScriptedProvider.from_texts({"Q:": [" The", (" Rome", 0.3)]})
assistant = ScriptedProvider.from_texts({"Q: The": [(" Lima", 0.9)]})

def work():
    sys.stdout.write(f"{fuse_sync('Q:', draft=draft, assistant=assistant)}\\n"); sys.stdout.flush()

work()
child = os.fork()
if child == 0:
    THREADS = [threading.Thread(target=work) for _ in range(4)] if sys.argv[1] == "threads" else []
    for thread in THREADS:
        thread.start()
    for thread in THREADS:
        thread.join()
    if not THREADS:
        work()
else:
    _, status = os.waitpid(child, 0)
    work()
    sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes of POSIX")
@pytest.mark.parametrize(("where", "answers"), [pytest.param("main", 3, marks=pytest.mark.extended), ("threads", 6)])
def test_a_forked_child_fuses_too(where: str, answers: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, where], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == " The Lima\n" * answers
    assert (done.returncode, done.stderr.replace("DeprecationWarning", "")) == (0, done.stderr)


async def test_a_provider_that_is_not_whole_is_told_what_it_lacks() -> None:
    class Half:
        name = "half"

        async def generate(self) -> None: ...

    with pytest.raises(SettingError, match=r"draft is not a whole provider: Half lacks __aenter__\(\), __aexit__\(\)"):
        Fusion(draft=Half(), assistant=assistant())  # type: ignore[arg-type]

    with pytest.raises(SettingError, match="draft must be a URL or a provider"):
        Fusion(draft=3, assistant=assistant())  # type: ignore[arg-type]


async def test_a_model_that_takes_shorter_prompts_than_fit_its_context() -> None:
    class Short(ScriptedProvider):
        async def describe(self) -> ServerInfo:
            return replace(await super().describe(), context=99, longest_prompt=3)

    async with Fusion(draft=draft(), assistant=Short(TextModel({"Q:": ["a"]}))) as fusion:
        with pytest.raises(ContextLengthError, match="the prompt has 30 tokens, and the assistant takes at most 3"):
            await fusion.generate("Q:" * 15)
    long = "Q:" * 15
    draws = ScriptedProvider.from_texts({long: [("a", 0.2), "b"]})
    for others in ([], [ScriptedProvider.from_texts({long: [("c", 0.9)], f"{long}c": ["d"]})]):
        assistants = [Short(TextModel({"Q:": ["a"]})), *others]
        async with Fusion(draft=draws, assistant=assistants, on_assistant_error="draft") as fusion:
            result = await fusion.generate(long)
        assert result.text == ("ab" if not others else "cd")
        assert not assistants[0].calls
        words = "assistant 1" if others else "assistant"
        assert result.warnings[0].startswith(f"{words} failed before this answer began and was not asked; ")
        assert "the prompt has 30 tokens, and the assistant" in result.warnings[0]


async def test_a_text_that_cannot_be_encoded_to_the_byte_is_not_counted() -> None:
    prompt = "Q:" + "x" * 40
    made = Unheard(TextModel({prompt: [" a"]}), context=50, token_ids=False)
    async with Fusion(draft=made, assistant=assistant(), unit="word") as fusion:
        assert (await fusion.generate(prompt)).text == " a"


async def test_an_error_says_which_endpoint_it_is_about() -> None:
    class Odd(ScriptedProvider):
        async def generate(self, *args: Any, **options: Any) -> Any:
            raise ResponseError("odd")
            yield

    with pytest.raises(ResponseError, match=r"^odd-one: odd"):
        await fuse("Q:", draft=Odd(TextModel({}), name="odd-one"), assistant=assistant())


# An assistant that fails for good.


class FailsFrom(ScriptedProvider):
    """Cannot be asked about anything from some byte of the answer on."""

    place = 0

    async def propose(self, context: Context, questions: Any, *, usage: Any, **options: Any) -> Any:
        proposals = await super().propose(context, questions, usage=usage, **options)
        if any(question.start >= self.place for question in questions):
            raise ServerError("the server broke", endpoint="http://gpu2", status=500)
        return proposals


def fails_from(place: int, model: Any, **options: Any) -> FailsFrom:
    made = FailsFrom(model, **options)
    made.place = place
    return made


async def test_an_error_holds_what_is_verified() -> None:
    error = ServerError("the server broke", endpoint="http://gpu2", status=500)
    with pytest.raises(ServerError) as caught:
        await fuse("Q:", draft=draft(), assistant=assistant(faults=[Fault(error)]))
    partial = caught.value.partial
    assert isinstance(partial, FusionResult)
    assert (partial.text, partial.finish_reason, partial.stop_reason) == (" The capital is", "error", "ServerError")
    assert partial.usage["assistant"].requests == 1
    assert partial.kept_tokens == len(partial.tokens) == 4
    assert FusionResult.model_validate_json(partial.model_dump_json()) == partial
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.partial, str(again), again.status) == (partial, str(error), 500)


async def test_an_error_before_anything_was_begun_holds_nothing() -> None:
    with pytest.raises(ContextLengthError) as caught:
        await fuse("Q:", draft=draft(context=1), assistant=assistant())
    assert caught.value.partial is None


async def test_the_rest_is_the_drafts_where_the_assistant_failed() -> None:
    script: dict[str, list[ScriptToken]] = DRAFT | {
        "Q: The capital is Lima": [(".", 0.4), " Really", (" so", 0.2), "."]
    }
    asked = fails_from(20, TextModel(ASSISTANT))
    options: dict[str, Any] = {"on_assistant_error": "draft"}
    result = await fuse("Q:", draft=ScriptedProvider.from_texts(script), assistant=asked, **options)
    assert result.text == " The capital is Lima. Really so."
    assert (result.finish_reason, result.replacements, result.iterations) == ("stop", 1, 2)
    unverified = [token.text for token in result.tokens if not token.verified]
    assert unverified == [".", " so"]  # that could have been changed
    assert [token.asked for token in result.tokens[-5:]] == [False] * 5
    assert result.tokens[-3].reason == "kept: an assistant that had failed could not be heard"
    (warning,) = result.warnings
    assert warning == (
        "assistant failed and was not asked any more from token 7 on, where 2 tokens that it could have changed are "
        "unverified: http://gpu2: the server broke"
    )
    assert result.settings.on_assistant_error == "draft"
    assert (result.failures, result.unverified_tokens) == ({"assistant": "ServerError"}, 2)
    assert result.kept_tokens is not None and result.replaced_tokens is not None
    assert result.verified_kept_tokens == result.kept_tokens - 2
    assert result.acceptance_rate == (result.kept_tokens - 2) / (result.kept_tokens - 2 + result.replaced_tokens)
    assert FusionResult.model_validate_json(result.model_dump_json()) == result


async def test_the_other_assistants_go_on() -> None:
    gone = ScriptedProvider.from_texts({}, faults=[Fault(ServerError("gone", status=500), request=n) for n in range(9)])
    result = await fuse("Q:", draft=draft(), assistant=[gone, assistant()], on_assistant_error="draft")
    assert result.text == FUSED
    lima = next(token for token in result.tokens if token.text == " Li")
    assert (lima.source, lima.verified) == ("assistant 2", False)
    assert [said.assistant for said in lima.decisions] == ["assistant 2"]
    assert gone.requests == 1
    (warning,) = result.warnings
    assert warning.startswith("assistant 1 failed and was not asked any more from token 5 on, where 2 tokens")


async def test_a_lost_assistant_is_asked_again_in_the_next_answer() -> None:
    asked = assistant(faults=[Fault(ServerError("gone", status=500))])
    now = 0.0
    async with Fusion(draft=draft(), assistant=asked, on_assistant_error="draft") as fusion:
        fusion.endpoints.breaker = CircuitBreaker(lambda: now)
        first, second = [await fusion.generate("Q:") for _ in range(2)]
        assert asked.requests == 1
        now = OPEN_SECONDS
        third, fourth = [await fusion.generate("Q:") for _ in range(2)]
    answers = (first, second, third, fourth)
    assert [result.text for result in answers] == [" The capital is Rome."] * 2 + [FUSED] * 2
    assert [all(token.verified for token in result.tokens) for result in answers] == [False, False, True, True]
    [note] = second.warnings
    assert note == (
        "assistant failed before this answer began and was not asked; 1 token that it could have changed is "
        "unverified: scripted: gone"
    )


def test_only_one_answer_tries_an_assistant_again() -> None:
    now = 0.0
    breaker, error = CircuitBreaker(lambda: now), ConnectError("gone")
    breaker.failed(1, error)
    now = OPEN_SECONDS - 1
    assert breaker.left_out() == {1: error}
    now = OPEN_SECONDS
    assert [breaker.left_out() for _ in range(2)] == [{}, {1: error}]
    breaker.answered(1)
    assert breaker.left_out() == {}
    for wait, left in ((2.0, 2.0), (100_000.0, 3600.0)):
        error.retry_after, began = wait, now
        breaker.failed(1, error)
        now = began + left - 1
        assert breaker.left_out() == {1: error}
        now = began + left
        assert breaker.left_out() == {}


class Down(ScriptedProvider):
    """Does not say what it is as long as there is an error."""

    error: ProviderError | None = None
    described = 0

    async def describe(self) -> ServerInfo:
        self.described += 1
        if self.error is not None:
            raise self.error
        return await super().describe()


async def test_an_assistant_that_is_down_from_the_start_is_left_out_and_tried_again_in_a_while() -> None:
    now = 0.0
    gone = Down(TextModel(ASSISTANT), name="gpu2")
    gone.error = ConnectError("no connection", endpoint="http://gpu2")
    options: dict[str, Any] = {"draft": draft(), "assistant": gone}
    async with Fusion(**options) as fusion:
        with pytest.raises(ConnectError):
            await fusion.generate("Q:")
    gone.described = 0
    async with Fusion(**options, on_assistant_error="draft") as fusion:
        fusion.endpoints.breaker = CircuitBreaker(lambda: now)
        first = await fusion.generate("Q:")
        again = [result async for result in fusion.map(["Q:"] * 5)]
        await fusion.estimate("Q:")
        assert (gone.described, gone.requests) == (1, 0)
        now = OPEN_SECONDS
        again += [result async for result in fusion.map(["Q:"] * 5)]
        assert (gone.described, gone.requests) == (2, 0)
        gone.error, now = None, 2 * OPEN_SECONDS
        back = [await fusion.generate("Q:") for _ in range(2)]
    assert {result.text for result in (first, *again)} == {" The capital is Rome."}
    assert [token.text for token in first.tokens if not token.verified] == [" Rome"]
    [note] = first.warnings
    assert note == (
        "assistant failed before this answer began and was not asked; 1 token that it could have changed is "
        "unverified: http://gpu2: no connection"
    )
    [known] = first.assistants
    assert (known.endpoint, known.engine, known.model) == ("http://gpu2", "unknown", "unknown")
    assert [result.text for result in back] == [FUSED] * 2
    assert back[0].assistants[0].engine == "scripted"
    assert back[0].warnings == ()


async def test_the_other_assistant_is_asked_where_one_is_down_from_the_start() -> None:
    gone = Down(TextModel({}))
    gone.error = ConnectError("no connection")
    result = await fuse("Q:", draft=draft(), assistant=[gone, assistant()], on_assistant_error="draft")
    assert result.text == FUSED
    lima = next(token for token in result.tokens if token.text == " Li")
    assert (lima.source, lima.verified) == ("assistant 2", False)
    assert result.settings.unit == "word"


@pytest.mark.parametrize("error", [ModelChoiceError("several models"), UnsupportedError("no logprobs")])
async def test_an_assistant_that_cannot_be_used_is_an_error_either_way(error: ProviderError) -> None:
    wrong = Down(TextModel({}))
    wrong.error = error
    with pytest.raises(type(error)):
        await fuse("Q:", draft=draft(), assistant=wrong, on_assistant_error="draft")


async def test_what_is_said_at_once_is_asked_again_by_every_answer() -> None:
    refused = [Fault(InvalidRequestError("this text is refused", status=400))]
    asked = assistant(faults=refused)
    async with Fusion(draft=draft(), assistant=asked, on_assistant_error="draft") as fusion:
        answers = [await fusion.generate("Q:") for _ in range(2)]
    assert [result.text for result in answers] == [" The capital is Rome.", FUSED]


@pytest.mark.parametrize("fault", ["budget", "mine"])
async def test_what_is_not_an_assistants_fault_is_raised_all_the_same(fault: str) -> None:
    class Broken(ScriptedProvider):
        async def propose(self, *args: Any, **kwargs: Any) -> Any:
            raise ZeroDivisionError("mine")

    async with Fusion(
        draft=draft(), assistant=Broken(TextModel({})) if fault == "mine" else assistant(), on_assistant_error="draft"
    ) as fusion:
        with pytest.raises(ZeroDivisionError if fault == "mine" else BudgetError) as caught:
            await fusion.generate("Q:", max_requests=None if fault == "mine" else 1)
    if isinstance(caught.value, BudgetError):
        assert caught.value.partial.text == " The capital is"  # and nothing that was not verified


@costly(40)
@given(
    toys.model_sets(may_hide_end=False),
    toys.thresholds(),
    st.integers(1, 16),
    st.lists(st.integers(0, 16), min_size=3, max_size=3),
    st.integers(0, 2**16),
)
async def test_the_whole_way_without_assistants_that_fail(
    models: Any, bounds: Any, limit: int, places: list[int], seed: int
) -> None:
    """Which token is verified does not depend on delays that nobody ordered."""
    writer, asked = models
    rng = random.Random(seed)
    verifier = RuleVerifier(alpha=bounds[0], beta=bounds[1])
    result = await fuse(
        "a b",
        draft=ScriptedProvider(toys.Plain(writer), token_delay=rng.choice((0, 0.0005))),
        assistant=[
            fails_from(place, toys.Plain(model), request_delay=rng.choice((0, 0.001)))
            for place, model in zip(places, asked, strict=False)
        ],
        verifier=verifier,
        unit="token",
        max_tokens=limit,
        on_assistant_error="draft",
    )
    wanted = reference.fuse(
        b"a b",
        writer,
        asked,
        verifier.replaces,
        unit="token",
        max_tokens=limit,
        fails=lambda assistant, place, _: place >= places[assistant],
        contestable=lambda p, _: verifier.contestable(p),
    )
    assert result.text == wanted.text.decode("utf-8", "backslashreplace")
    assert [token.verified for token in result.tokens] == [token.verified for token in wanted.tokens]


# An assistant that tells no probabilities.


async def test_an_assistant_without_probabilities_is_heard_by_agreement() -> None:
    asked = assistant(probs=False)
    result = await fuse("Q:", draft=draft(), assistant=asked, verifier=AgreementVerifier(alpha=0.4))
    assert result.text == FUSED
    lima = next(token for token in result.tokens if token.text == " Li")
    assert (lima.source, lima.draft_prob, lima.assistant_prob, lima.reason) == ("assistant", 0.3, None, "0.3 < 0.4")
    assert result.settings.verifier == AgreementVerifier(alpha=0.4)
    assert result.settings.unit == "word"
    assert result.warnings == ()
    assert FusionResult.model_validate_json(result.model_dump_json()) == result
    kept = await fuse("Q:", draft=draft(), assistant=asked, verifier=AgreementVerifier(alpha=0.4), ask="all")
    assert kept.text == FUSED


async def test_without_probabilities_equal_tokenizers_are_judged_in_words_too() -> None:
    result = await fuse("Q:", draft=draft(), assistant=draft(probs=False), verifier=AgreementVerifier())
    assert result.settings.unit == "word"


@pytest.mark.parametrize(
    ("options", "words", "hint"),
    [
        (
            {"draft": draft(probs=False), "verifier": AgreementVerifier()},
            "the draft does not report the probabilities of its tokens, which show where it is unsure",
            "It can be an assistant, with verifier=AgreementVerifier(alpha=0.5): let the other model draft.",
        ),
        (
            {"assistant": [assistant(), assistant(probs=False)]},
            "the assistant 2 does not report the probabilities of its tokens, which the verifier compares",
            "verifier=AgreementVerifier(alpha=0.5) decides without them, by the draft's probability alone.",
        ),
        (
            {"assistant": assistant(probs=False), "verifier": AgreementVerifier(), "unit": "token"},
            'the assistant does not report the probabilities of its tokens, and can be asked in unit="word" only',
            'Leave out unit="token".',
        ),
        (
            {"assistant": assistant(probs=False), "verifier": AgreementVerifier(), "unit": "literal"},
            'the assistant does not report the probabilities of its tokens, and can be asked in unit="word" only',
            'Leave out unit="literal".',
        ),
    ],
)
async def test_who_tells_no_probabilities_is_refused_before_the_first_token(
    options: dict[str, Any], words: str, hint: str
) -> None:
    providers: dict[str, Any] = {"draft": draft(), "assistant": assistant()} | options
    with pytest.raises(UnsupportedError) as caught:
        await fuse("Q:", **providers)
    assert str(caught.value) == f"scripted:: {words}. {hint}"
    assert providers["draft"].requests == 0


# What it cost.


async def test_a_result_says_how_the_assistant_answered() -> None:
    class Lists(ScriptedProvider):
        async def propose(self, context: Context, questions: Any, *, usage: Any, **options: Any) -> Any:
            usage.answered_by("list", len(questions))
            return await super().propose(context, questions, usage=usage, **options)

    result = await fuse("Q:", draft=draft(), assistant=Lists(TextModel(ASSISTANT)), ask="all")
    assert result.usage["draft"].strategies == {}
    places = result.usage["assistant"].strategies["list"]
    assert places >= 6
    assert FusionResult.model_validate_json(result.model_dump_json()) == result


@pytest.mark.parametrize(("times", "warned"), [(10, False), (11, True)])
async def test_asking_that_costs_many_times_the_drafting_is_warned_of(times: int, warned: bool) -> None:
    class Dear(ScriptedProvider):
        async def propose(self, context: Context, questions: Any, *, usage: Any, **options: Any) -> Any:
            proposals = await super().propose(context, questions, usage=usage, **options)
            usage.prompt_tokens = times * 30 - 1
            usage.completion_tokens = 1
            usage.cached_tokens = 7
            return proposals

    class Cheap(ScriptedProvider):
        async def generate(self, *args: Any, usage: Any, **kwargs: Any) -> Any:
            async with aclosing(super().generate(*args, usage=usage, **kwargs)) as stream:
                async for item in stream:
                    usage.prompt_tokens, usage.completion_tokens = 10, 5  # of two drafts
                    yield item

    result = await fuse("Q:", draft=Cheap(TextModel(DRAFT)), assistant=Dear(TextModel(ASSISTANT)))
    assert bool(result.warnings) == warned
    if warned:
        assert result.warnings[0].startswith(
            "asking has billed 330 tokens (7 of them from a cache, which count a tenth), 11 times the draft's 30: every"
        )


@pytest.mark.parametrize(
    ("asked", "drafted", "words"),
    [
        ((1000, 999), (10, 0), None),
        ((1000, 0), (50, 0), "(0 of them from a cache), 17 times the draft's 60: every"),
        ((2000, 0), (1000, 999), "a tenth), 18 times the draft's 1010 (999 of them from a cache): every"),
        (
            (2000, 900),
            (50, 0),
            "asking has billed 2010 tokens (900 of them from a cache, which count a tenth), 20 times",
        ),
    ],
)
def test_tokens_from_a_cache_count_a_tenth(asked: tuple[int, int], drafted: tuple[int, int], words: str | None) -> None:
    """Each question reads the whole path, and all but a token or two of it from a cache."""
    usage = {
        name: EndpointUsage(prompt_tokens=read, cached_tokens=cached, completion_tokens=10)
        for name, (read, cached) in (("draft", drafted), ("assistant", asked))
    }
    found = cost(usage, RuleVerifier())
    assert [words in note for note in found if words] == ([] if words is None else [True])
    assert bool(found) is (words is not None)


def test_the_cost_of_a_draft_that_is_partly_an_estimate() -> None:
    usage = {
        "draft": EndpointUsage(prompt_tokens=50, estimated_tokens=9, completion_tokens=10),
        "assistant": EndpointUsage(prompt_tokens=1000, completion_tokens=10),
    }
    [found] = cost(usage, RuleVerifier())
    assert "17 times the draft's 60 (partly an estimate): every place" in found


@pytest.mark.parametrize(
    ("settings", "alpha"),
    [
        ({}, True),
        ({"method": CoSD(verifier=AgreementVerifier())}, True),
        ({"verifier": MatchVerifier()}, False),
        ({"method": Speculative(temperature=1), "unit": "token", "seed": 1}, False),
    ],
)
async def test_only_who_has_an_alpha_is_told_to_lower_it(settings: dict[str, Any], alpha: bool) -> None:
    class Dear(ScriptedProvider):
        async def propose(self, context: Context, questions: Any, *, usage: Any, **options: Any) -> Any:
            usage.prompt_tokens = 10_000
            return await super().propose(context, questions, usage=usage, **options)

    result = await fuse("Q:", draft=draft(), assistant=Dear(TextModel(ASSISTANT)), **settings)
    [remedies] = [words.partition("before it again. ")[2] for words in result.warnings if "times the draft's" in words]
    assert remedies.startswith("A lower alpha asks less often; a server that" if alpha else "A server that")
