"""The trace of an answer: what it holds, that it can be read back, and that judging it again gives the same text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from cosd_api import (
    AgreementVerifier,
    DiffVerifier,
    FusionResult,
    RandomVerifier,
    RuleVerifier,
    SurpriseVerifier,
    Trace,
    TraceError,
    TreeVerifier,
    fuse,
)
from cosd_api.records import FusedToken
from cosd_providers import ResponseError
from cosd_providers.contract import Context, Proposal, Token
from cosd_providers.testing import ScriptedProvider
from support import virtual_time
from toys.lima import FUSED, assistant, draft

TREE = TreeVerifier.model_validate(
    {"nodes": [{"feature": "p", "threshold": 0.5, "left": 1, "right": 2}, {"value": 1}, {"value": 0}]}
)


async def traced(tmp_path: Path, **settings: Any) -> tuple[FusionResult, Path]:
    given: dict[str, Any] = {"draft": draft(), "assistant": assistant(), **settings}
    result = await fuse("Q:", **given)
    path = tmp_path / "trace.jsonl"
    result.trace.save(path)
    return result, path


def lima(result: FusionResult) -> FusedToken:
    return next(token for token in result.tokens if token.text == " Li")


async def test_a_token_says_how_it_came_there(tmp_path: Path) -> None:
    result, _ = await traced(tmp_path)
    token = lima(result)
    (decision,) = token.decisions
    assert (decision.draft_text, decision.draft_prob, decision.text, decision.prob) == (" Rome", 0.3, " Lima", 0.9)
    assert [(one.text, one.prob, one.end) for one in token.replaced_tokens] == [(" Rome", 0.3, False)]
    assert decision.request == 1
    assert token.placed_at is not None and token.final_at is not None
    assert 0 < token.placed_at <= token.final_at <= result.timings.total
    # " The", " capital", " is", " Lima" and what follows: units and rounds, and the drafts that wrote them.
    assert [token.unit for token in result.tokens] == [0, 1, 1, 2, 3, 3, 4, 5, 5, 5]
    assert [token.round for token in result.tokens] == [1] * 6 + [2] * 4
    assert [token.draft for token in result.tokens] == [1] * 6 + [2] * 4


async def test_the_time_line_has_every_request(tmp_path: Path) -> None:
    result, _ = await traced(tmp_path)
    kinds = [(one.kind, one.number, one.endpoint, one.at, one.places) for one in result.requests]
    assert kinds == [
        ("draft", 1, "draft", 0, 0),
        ("question", 1, "assistant", len(" The capital is"), 1),
        ("draft", 2, "draft", len(" The capital is Lima"), 0),
    ]
    assert result.requests[1].outcome == "done"
    assert sum(one.tokens for one in result.requests) == result.drafted_tokens
    for one in result.requests:
        assert 0 <= one.start <= one.end <= result.timings.total
        assert one.first is None or one.start <= one.first <= one.end


@pytest.mark.parametrize("anyio_backend", [virtual_time.BACKEND], ids=["virtual time"])
async def test_a_draft_that_is_left_behind_a_replacement_is_told_as_cancelled(tmp_path: Path) -> None:
    """The draft goes on while its assistant answers, and both are seen to be under way at the same time."""
    released = anyio.Event()

    class Slow(ScriptedProvider):
        async def propose(self, *args: Any, **options: Any) -> Any:
            with anyio.fail_after(30):
                await released.wait()
            return await super().propose(*args, **options)

    class Telling(ScriptedProvider):
        async def generate(self, *args: Any, **options: Any) -> Any:
            count = 0
            async for item in super().generate(*args, **options):
                yield item
                count += 1
                if count == 8:
                    released.set()

    script: dict[str, Any] = {"Q:": [" a", (" b", 0.2), *[" on"] * 100], "Q: c": ["."]}
    writer = Telling.from_texts(script, token_delay=0.001)
    result, _ = await traced(tmp_path, draft=writer, assistant=Slow.from_texts({"Q: a": [(" c", 0.9)]}), max_tokens=60)
    left, question, *_ = result.requests
    assert (left.kind, left.outcome) == ("draft", "cancelled")
    assert left.start <= question.start and left.first is not None
    assert left.end >= question.end and left.tokens >= 8


async def test_a_token_that_comes_with_the_replacement_is_of_a_draft_that_is_left() -> None:
    """The draft's next token comes some turns of the event loop after the answer: before the word, or with it."""

    def set_after(turns: int, event: anyio.Event) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(set_after, turns - 1, event)
        else:
            event.set()

    script: dict[str, Any] = {"Q:": [" a", (" b", 0.2), *[" on"] * 100]}
    tokens: set[int] = set()
    for turns in range(24):
        waits, goes_on = anyio.Event(), anyio.Event()

        class Waiting(ScriptedProvider):
            async def generate(self, *args: Any, waits: Any = waits, goes_on: Any = goes_on, **options: Any) -> Any:
                count = 0
                async for item in super().generate(*args, **options):
                    if count == 8:
                        waits.set()
                        await goes_on.wait()
                    yield item
                    count += 1

        class Slow(ScriptedProvider):
            async def propose(
                self, *args: Any, turns: int = turns, waits: Any = waits, goes_on: Any = goes_on, **options: Any
            ) -> Any:
                with anyio.fail_after(30):
                    await waits.wait()
                found = await super().propose(*args, **options)
                set_after(turns, goes_on)
                return found

        writer, asked = Waiting.from_texts(script), Slow.from_texts({"Q: a": [(" c", 0.9)]})
        result = await fuse("Q:", draft=writer, assistant=asked, max_tokens=60)
        assert (result.text, result.requests[0].outcome) == (" a c", "cancelled"), turns
        tokens.add(result.requests[0].tokens)
    assert {8, 9} <= tokens  # it was left before the next token, and behind it


async def test_a_question_that_failed_is_told_as_failed(tmp_path: Path) -> None:

    from cosd_providers import ServerError

    class Failing(ScriptedProvider):
        async def propose(self, *args: Any, **options: Any) -> Any:
            raise ServerError("down", endpoint="scripted:")

    result, path = await traced(tmp_path, assistant=Failing.from_texts({"Q:": [" x"]}), on_assistant_error="draft")
    assert [one.outcome for one in result.requests if one.kind == "question"] == ["failed"]
    assert Trace.load(path).replay() == result.text


@pytest.mark.parametrize(
    "propose",
    [lambda questions: [], lambda questions: [Proposal(one.start, (Token(b" Li", 2.0),)) for one in questions]],
)
async def test_a_question_with_a_useless_answer_is_told_as_failed(propose: Callable[[Any], Any]) -> None:
    class Odd(ScriptedProvider):
        async def propose(self, context: Context, questions: Any, *, usage: Any, **options: Any) -> Any:
            return propose(questions)

    result = await fuse("Q:", draft=draft(), assistant=Odd(assistant().model), on_assistant_error="draft")
    assert [one.outcome for one in result.requests if one.kind == "question"] == ["failed"]


async def test_a_draft_without_an_end_is_told_as_failed() -> None:
    class Endless(ScriptedProvider):
        async def generate(self, *args: Any, **options: Any) -> Any:
            async for item in super().generate(*args, **options):
                if isinstance(item, Token) and not item.end:
                    yield item

    with pytest.raises(ResponseError) as caught:
        await fuse("Q:", draft=Endless(draft().model), assistant=draft())
    partial: Any = caught.value.partial
    assert [one.outcome for one in partial.requests if one.kind == "draft"] == ["failed"]


async def test_a_word_that_two_drafts_wrote_names_the_one_whose_token_was_replaced() -> None:
    writer = ScriptedProvider.from_texts({"Q:": [" a", (" Ro", 0.3), "me"]})
    result = await fuse(
        "Q:", draft=writer, assistant=ScriptedProvider.from_texts({"Q: a": [(" Oslo", 0.9)]}), draft_length=1
    )
    token = next(token for token in result.tokens if token.replaced is not None)
    drafts = [one for one in result.requests if one.kind == "draft"]
    assert (token.replaced, token.draft) == (" Rome", drafts[1].number)  # the first wrote " a", the third "me"


async def test_a_trace_by_another_tool_may_begin_with_a_mark_and_end_its_lines_otherwise(tmp_path: Path) -> None:
    result, path = await traced(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert Trace.load(path).result == result


async def test_a_result_of_before_there_were_traces_is_loaded_and_not_judged_again(tmp_path: Path) -> None:
    result, _ = await traced(tmp_path)
    whole = result.model_dump(mode="json")
    del whole["requests"]
    for token in whole["tokens"]:
        for name in ("replaced_tokens", "unit", "round", "draft", "placed_at", "final_at", "raw"):
            del token[name]
        for decision in token["decisions"]:
            for name in ("draft_text", "draft_prob", "strategy", "request"):
                del decision[name]
    older = FusionResult.model_validate(whole)
    assert older.text == result.text
    with pytest.raises(TraceError, match="made by a version of cosd-api that recorded no trace"):
        older.trace.replay()


async def test_the_last_line_takes_nothing_from_the_others(tmp_path: Path) -> None:
    result, path = await traced(tmp_path)
    path.write_text(path.read_text("utf-8").replace('"type":"end"', '"type":"end","tokens":[],"requests":[]'), "utf-8")
    assert Trace.load(path).result == result


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ask": "all"},
        {"unit": "token"},
        {"verifier": TREE},
        {"verifier": AgreementVerifier(alpha=0.5)},
        {"verifier": AgreementVerifier(alpha=0.4)},
        {"verifier": DiffVerifier(tau=0.2)},
        {"verifier": RandomVerifier(rate=0.6)},
        {"verifier": SurpriseVerifier(gamma=0.5, beta=0.1), "unit": "token"},
        {"verifier": RandomVerifier(rate=0.6, seed=2), "ask": "all", "unit": "word"},
        {"verifier": RuleVerifier(alpha=0)},
        {"verifier": RuleVerifier(beta=float("inf"))},
        {"stop": ["Re"]},
        {"stop": [" Li"]},
        {"max_tokens": 5},
        {"draft_length": 2},
    ],
)
async def test_a_trace_is_read_back_and_judged_again(tmp_path: Path, settings: dict[str, Any]) -> None:
    result, path = await traced(tmp_path, **settings)
    trace = Trace.load(path)
    assert trace.result == result
    assert trace.replay() == result.text


async def test_several_assistants_are_judged_again(tmp_path: Path) -> None:
    other = ScriptedProvider.from_texts({"Q: The capital is": [(" Paris", 0.6)]})
    result, path = await traced(tmp_path, assistant=[other, assistant()])
    assert Trace.load(path).replay() == result.text == FUSED


async def test_bytes_that_are_no_characters_are_kept(tmp_path: Path) -> None:
    writer = ScriptedProvider.from_texts({"Q:": [" a", b"\xff\xfe", b"\xe2\x86\x92"]})
    result, path = await traced(tmp_path, draft=writer)
    trace = Trace.load(path)
    assert trace.replay() == result.text
    assert b"".join(token.data for token in trace.result.tokens) == b" a" + b"\xff\xfe\xe2\x86\x92"
    assert [token.raw for token in trace.result.tokens if token.raw is not None]


async def test_a_line_for_each_token_and_request(tmp_path: Path) -> None:
    result, path = await traced(tmp_path)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert lines[0]["type"] == "header" and lines[0]["kind"] == "cosd-trace" and lines[0]["schema_version"] == 2
    assert [line["type"] for line in lines[1:]] == ["token"] * 10 + ["request"] * 3 + ["end"]
    assert lines[-1]["text"] == result.text
    assert "Q:" not in path.read_text("utf-8")  # the prompt is the user's


async def test_a_verifier_of_the_users_own_has_to_be_given_again(tmp_path: Path) -> None:
    class Own(RuleVerifier):
        pass

    result, path = await traced(tmp_path, verifier=Own())
    with pytest.raises(TraceError, match=r"verifier was one of your own \(.*Own\): give it, replay\(verifier=...\)"):
        Trace.load(path).replay()
    assert Trace.load(path).replay(Own()) == result.text


Lines = list[dict[str, Any]]


def _set(index: int, **fields: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[index].update(fields)


def _decision(index: int, **fields: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[index]["decisions"][0].update(fields)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            _decision(5, prob=0.2),
            r"token 5 \(' Li'\): ' Rome' was replaced, but the verifier says 0.3 < 0.9 and 0.2 <=",
        ),
        (_decision(5, draft_prob=0.95), r"was replaced, but the verifier says 0.95 >= 0.9"),
        (_decision(5, fired=False), "was kept, but the verifier says 0.3 < 0.9 and 0.9 > 1 x 0.3"),
        (_decision(5, text=" Paris"), "token 5 is ' Li', but the decision put ' Paris' there"),
        (
            lambda lines: [lines[n].update(decisions=[]) for n in (5, 6)],
            r"token 5 \(' Li'\) replaced ' Rome', but no decision does",
        ),
        (_decision(5, text=""), "token 5 is ' Li', but the decision put '' there"),
        (_decision(5, draft_text=" Oslo"), "token 5 .* replaced ' Rome', but the decision was about ' Oslo'"),
        (_decision(5, assistant="nobody"), "' Rome' was judged by 'nobody', but there is no such assistant"),
        (_decision(5, agreed=True), "' Rome' and ' Lima' are recorded as the same"),
        (_set(5, replaced=None), r"token 5 \(' Li'\) has the source 'assistant', which is impossible there"),
        (
            lambda lines: [lines[n].update(replaced=None, source="draft") for n in (5, 6)],
            "replaced ' Rome' by ' Lima' before token 7, but the answer has no such replacement",
        ),
        (_set(6, source="draft"), r"token 6 \('ma'\) has the source 'draft', which is impossible there"),
        (_set(6, replaced=" Oslo"), r"token 6 \('ma'\) replaced ' Oslo', in a unit that was replaced"),
        (_set(7, source="assistant"), r"token 7 \('.'\) has the source 'assistant', which is impossible there"),
        (_set(7, end=True), r"token 7 \('.'\) has bytes that differ from its text"),
        (_set(6, unit=9), "token 5 is ' Li', but the decision put ' Lima' there"),
        (_set(5, raw=b" Lo".hex()), r"token 5 \(' Li'\) has bytes that differ from its text"),
        (_set(5, text=" Lo"), "token 5 is ' Lo', but the decision put ' Lima' there"),
        (_set(1, text=" A"), "the recorded tokens are not the recorded text"),
    ],
)
async def test_a_record_that_was_changed_does_not_replay(
    tmp_path: Path, change: Callable[[Lines], object], words: str
) -> None:
    _, path = await traced(tmp_path)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    change(lines)
    path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    with pytest.raises(TraceError, match=words):
        Trace.load(path).replay()


def _line(at: int, old: str, new: str) -> Callable[[list[str]], list[str]]:
    def change(lines: list[str]) -> list[str]:
        assert old in lines[at]
        return [*lines[:at], lines[at].replace(old, new), *lines[at + 1 :]]

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: [], "this is not a trace"),
        (lambda lines: ["[1, 2]"], "line 1 is not a JSON object"),
        (lambda lines: ["The capital is Lima."], "line 1 is not JSON"),
        (lambda lines: ["[" * 100_000], "line 1 is not JSON"),
        (lambda lines: ['{"kind": "cosd-samples", "schema_version": 1}'], "this is not a trace"),
        (
            lambda lines: [lines[0].replace('"schema_version":2', '"schema_version":3'), *lines[1:]],
            "its schema_version is 3, and this version of cosd-api reads 1 and 2: update cosd-api",
        ),
        (lambda lines: lines[:-1], "has no end: it was cut off, or is still being written"),
        (lambda lines: [*lines[:3], lines[3][:20], *lines[4:]], "line 4 is not JSON"),
        (lambda lines: [*lines[:3], *lines[4:]], "entry 4, of type 'token', is out of place"),
        (lambda lines: [lines[0].replace('"alpha":0.9', '"alpha":-1'), *lines[1:]], r"settings.verifier.rule.alpha: "),
        (
            _line(0, '"kind":"rule"', '"kind":"chow"'),
            "settings.verifier: Input tag 'chow' found using 'kind' does not match",
        ),
        (lambda lines: [lines[0].replace('"draft"', '"draught"'), *lines[1:]], r"draft: Field required"),
        (_line(1, '"raw":null', '"raw":"zz"'), "tokens.0.raw: String should match"),
        (_line(5, '"prob":0.9', '"prob":NaN'), "tokens.4.decisions.0.prob: Input should be less than or equal"),
        (_line(5, '"draft_prob":0.3', '"draft_prob":1.3'), "tokens.4.draft_prob: Input should be less than or equal"),
        (_line(11, '"end":', '"end":Infinity,"last":'), "requests.0.end: Input should be a finite number"),
        (_line(1, '"text":" The"', r'"text":"\ud800"'), "line 2 is not JSON"),
    ],
)
async def test_what_is_no_trace_is_refused_in_words(
    tmp_path: Path, change: Callable[[list[str]], list[str]], words: str
) -> None:
    _, path = await traced(tmp_path)
    path.write_text("\n".join(change(path.read_text("utf-8").splitlines())), "utf-8")
    with pytest.raises(TraceError, match=words) as raised:
        Trace.load(path)
    assert str(raised.value).startswith(f"{path}: ")
