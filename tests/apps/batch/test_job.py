"""A batch: what it writes, what a later run asks, and what it never does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from cosd_api import Fusion, SettingError
from cosd_api.apps.batch.lines import CHAT, BatchLine, near_each_other
from cosd_providers import ConnectError, ContextLengthError, InvalidRequestError, ServerError
from cosd_providers.contract import Context
from cosd_providers.testing import Fault, ScriptedProvider
from toys.batches import PROMPTS, batch_form, fusion, input_file, pair, read, run, texts
from toys.lima import ASSISTANT, DRAFT, FUSED, scripted
from toys.lima import read as given

ALL = {one[0]: " yes." for one in PROMPTS}


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    return input_file(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"


def sent(fused: Fusion) -> int:
    """Requests of both models so far."""
    endpoints = [fused.endpoints.draft, *fused.endpoints.assistants]
    return sum(one.requests for one in endpoints if isinstance(one, ScriptedProvider))


async def test_plain_lines(paths: tuple[Path, Path]) -> None:
    source, target = paths
    found = await run(source, target)
    assert texts(target) == ALL
    assert (found.lines, found.known, found.answered, found.failed, found.missing) == (6, 0, 6, 0, 0)
    assert found.complete and found.stopped is None and found.acceptance_rate == 2 / 3
    one = read(target)["b"]
    assert (one["finish_reason"], one["error"]) == ("stop", None)
    assert (one["cosd"]["line"], one["cosd"]["method"], one["cosd"]["models"]) == (2, "cosd", ["small", "large"])
    assert (one["cosd"]["replacements"], one["cosd"]["acceptance_rate"]) == (1, 2 / 3)
    usage = [row["cosd"]["usage"]["draft"]["prompt_tokens"] for row in read(target).values()]
    assert found.usage["draft"].prompt_tokens == sum(usage) > 0 and found.usage == found.total_usage


NOW = {"type": "function", "function": {"name": "now"}}


async def test_openais_form(tmp_path: Path) -> None:
    rows = [
        batch_form("one", "a:"),
        batch_form("two", "b:", chat=False, max_tokens=1),
        batch_form("both", ["a:", "c:"], chat=False),  # type: ignore[arg-type]
        batch_form("tools", "a:", tools=[{"type": "function"}]),
        batch_form("call", "a:", tools=[NOW], tool_choice=NOW, parallel_tool_calls=False),
        batch_form("stream", "a:", stream=True),
    ]
    target = tmp_path / "out.jsonl"
    found = await run(input_file(tmp_path / "in.jsonl", rows), target)
    assert (found.answered, found.failed) == (4, 2)
    lines = read(target)
    response = lines["one"]["response"]
    assert response["status_code"] == 200 and response["request_id"] and lines["one"]["id"]
    body = response["body"]
    assert (body["object"], body["model"]) == ("chat.completion", "any")
    assert body["choices"][0]["message"] == {"role": "assistant", "content": " yes.", "refusal": None}
    assert body["usage"]["completion_tokens"] == body["cosd"]["tokens"]
    two = lines["two"]["response"]["body"]["choices"][0]
    assert (two["text"], two["finish_reason"]) == (" yes", "length")
    assert [one["text"] for one in lines["both"]["response"]["body"]["choices"]] == [" yes.", " yes."]
    refused = lines["tools"]["response"]
    assert (refused["status_code"], refused["body"]["error"]["param"]) == (400, "tools")
    assert lines["tools"]["error"] == {
        "code": "invalid_request_error",
        "message": 'tools[0] must be {"type": "function", "function": {"name": ..., "parameters": {...}}}',
        "param": "tools",
    }
    called = lines["call"]["response"]["body"]["choices"][0]
    assert called["finish_reason"] == "tool_calls"
    assert called["message"]["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
    assert lines["stream"]["error"]["message"] == "stream is refused: a batch returns whole answers"


async def test_conversations_and_limits_of_plain_lines(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a:"}]
    rows: list[dict[str, Any]] = [
        {"custom_id": "m", "messages": messages},
        {"custom_id": "short", "prompt": "a:", "max_tokens": 1},
        {"custom_id": "stop", "prompt": "b:", "stop": "."},
        {"custom_id": "warm", "prompt": "b:", "temperature": 1},
        {"custom_id": "none", "messages": []},
    ]
    target = tmp_path / "out.jsonl"
    await run(input_file(tmp_path / "in.jsonl", rows), target)
    assert texts(target) == {"m": " yes.", "short": " yes", "stop": " yes", "warm": None, "none": None}
    lines = read(target)
    assert "temperature=1 is refused" in lines["warm"]["error"]["message"]
    assert "the conversation is empty" in lines["none"]["error"]["message"]


async def test_plain_lines_have_formats(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"custom_id": "text", "prompt": "a:", "response_format": {"type": "choice", "choices": [" no.", " yes."]}},
        {"custom_id": "chat", "messages": [{"role": "user", "content": "a:"}], "response_format": {"enum": [" yes."]}},
        {
            "custom_id": "cut",
            "prompt": "a:",
            "response_format": {"type": "regex", "pattern": " yes.+"},
            "max_tokens": 1,
        },
        {"custom_id": "any", "prompt": "a:", "response_format": {"type": "text"}},
        {"custom_id": "wrong", "prompt": "a:", "response_format": {"not": {}}},
        {"custom_id": "word", "prompt": "a:", "response_format": "json"},
    ]
    target = tmp_path / "out.jsonl"
    await run(input_file(tmp_path / "in.jsonl", rows), target)
    lines = read(target)
    assert {name: one.get("parsed", "absent") for name, one in lines.items()} == {
        "text": " yes.",
        "chat": " yes.",
        "cut": None,
        "any": "absent",
        "wrong": "absent",
        "word": "absent",
    }
    assert lines["chat"]["text"] == '" yes."'
    assert lines["wrong"]["error"]["message"].startswith("schema: the keyword 'not' is not supported")
    assert lines["word"]["error"]["message"].startswith("response_format is invalid")


async def test_own_messages_of_a_line_reach_one_model_alone(tmp_path: Path) -> None:
    document, asked = "SECRET-4711", "user: Hi\nassistant: "
    messages, own = [{"role": "user", "content": "Hi"}], {"assistant": document}
    rows: list[dict[str, Any]] = [
        {"custom_id": "plain", "messages": messages, "own": own},
        batch_form("framed", "Hi", own=own),
        {"custom_id": "judge", "messages": messages, "own": {"judge": document}},
        {"custom_id": "wrong", "messages": messages, "own": {"draft": [{"role": "x", "content": document}]}},
        batch_form("text", "Hi", chat=False, own=own),
    ]
    draft, assistant = scripted(DRAFT, asked), scripted(ASSISTANT, f"system: {document}\n{asked}")
    target = tmp_path / "out.jsonl"
    async with Fusion(draft=draft, assistant=assistant) as fused:
        await run(input_file(tmp_path / "in.jsonl", rows), target, fused)
    lines = read(target)
    assert lines["plain"]["text"] == FUSED
    assert lines["framed"]["response"]["body"]["choices"][0]["message"]["content"] == FUSED
    assert document in given(assistant) and document not in given(draft)
    assert document not in target.read_text()
    errors = {name: one["error"] for name, one in lines.items() if one["error"] is not None}
    assert errors.keys() == {"judge", "wrong", "text"} and {one["param"] for one in errors.values()} == {"own"}
    assert errors["judge"]["message"] == "own has messages for 'judge', and the models are draft, assistant"
    assert "own['draft']: messages[0] has the role 'x'" in errors["wrong"]["message"]
    assert "own is refused: it is a field of /v1/chat/completions" in errors["text"]["message"]


async def test_other_own_messages_are_another_question(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a:"}]

    def answers(own: str, front: str) -> ScriptedProvider:
        return ScriptedProvider.from_texts({f"{front}user: a:\nassistant: ": [f" {own}", "."]})

    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    for own in ("one", "two"):
        input_file(source, [{"messages": messages, "own": {"draft": own, "assistant": own}}])
        models = [answers(own, f"system: {own}\n") for _ in range(2)]
        async with Fusion(draft=models[0], assistant=models[1]) as fused:
            assert (await run(source, target, fused)).answered == 1
            assert (await run(source, target, fused)).answered == 0
    assert [*texts(target).values()] == [" one.", " two."]


async def test_a_line_without_an_id_is_known_by_its_number_and_content(tmp_path: Path) -> None:
    source, target = input_file(tmp_path / "in.jsonl", [{"prompt": "a:"}, "", {"prompt": "a:"}]), tmp_path / "out.jsonl"
    assert (await run(source, target)).answered == 2
    assert sorted(one.rpartition("-")[0] for one in read(target)) == ["line-1", "line-3"]
    assert (await run(source, target)).answered == 0
    input_file(source, [{"prompt": "b:"}, "", {"prompt": "a:"}])
    found = await run(source, target)
    assert (found.answered, found.known) == (1, 1)


async def test_a_second_run_asks_nothing(paths: tuple[Path, Path]) -> None:
    await run(*paths)
    before = paths[1].read_bytes()
    async with fusion() as fused:
        found = await run(*paths, fused)
        assert sent(fused) == 0
    assert (found.known, found.answered, found.usage["draft"].prompt_tokens) == (6, 0, 0)
    assert found.complete and found.total_usage["draft"].prompt_tokens > 0
    assert paths[1].read_bytes() == before


async def test_an_output_that_was_cut_anywhere_is_completed(paths: tuple[Path, Path]) -> None:
    """As after a kill: what was written is a beginning of the file."""
    source, target = paths
    await run(source, target)
    whole = target.read_bytes()
    starts = [0, *(at + 1 for at, byte in enumerate(whole) if byte == 0x0A)]
    near = {at + by for at in starts for by in (-2, -1, 0, 1, 2)} | {*range(0, len(whole), 97)}
    async with fusion() as fused:
        for size in sorted(at for at in near if 0 <= at <= len(whole)):
            target.write_bytes(whole[:size])
            kept = sum(at <= size for at in starts[1:]) or 0
            found = await run(source, target, fused)
            assert texts(target) == ALL, size
            assert (
                found.known in (kept, kept + 1) and found.known + found.answered == 6
            )  # a whole line may lack its end
            assert target.read_bytes().endswith(b"}\n")


async def test_failed_lines_are_kept_until_they_are_retried(paths: tuple[Path, Path]) -> None:
    source, target = paths
    faults = [Fault(ServerError("it broke"), request=n) for n in (3, 4)]
    async with fusion(faults=faults) as fused:
        found = await run(source, target, fused, concurrency=1)
        assert (found.answered, found.failed, found.complete) == (4, 2, False)
        failed = {name: row for name, row in read(target).items() if row["error"] is not None}
        assert len(failed) == 2
        for row in failed.values():
            assert row["text"] is None
            assert row["error"] == {"code": "ServerError", "message": "small: it broke", "retryable": True}
        before = found.total_usage
        again = await run(source, target, fused)
        assert (again.known, again.answered, again.failed) == (4, 0, 2)
        final = await run(source, target, fused, retry_failed=True)
    assert (final.known, final.answered, final.failed) == (4, 2, 0)
    assert texts(target) == ALL  # each once: `read` looks
    total = {name: one.completion_tokens for name, one in final.total_usage.items()}
    spent = {name: one.completion_tokens for name, one in final.usage.items()}
    assert total == {name: one.completion_tokens + spent[name] for name, one in before.items()}
    rows = read(target).values()
    assert total["draft"] == sum(row["cosd"]["usage"]["draft"]["completion_tokens"] for row in rows)
    assert not [*target.parent.glob("*.shorter")]


async def test_a_retry_that_is_killed_loses_nothing(paths: tuple[Path, Path]) -> None:
    """Until the run ends the file has the failure and, behind it, the answer: a reader takes the last one."""
    source, target = paths
    async with fusion(faults=[Fault(ServerError("it broke"), request=3)]) as fused:
        await run(source, target, fused, concurrency=1)
        first = target.read_bytes()
        billed = sum(one.prompt_tokens for one in (await run(source, target, fused)).total_usage.values())
        await run(source, target, fused, retry_failed=True)
        answer = target.read_bytes().splitlines()[-1]
        for size in range(0, len(answer) + 1, 40):
            target.write_bytes(first + answer[:size])
            found = await run(source, target, fused, retry_failed=True)
            assert texts(target) == ALL
            assert sum(one.prompt_tokens for one in found.total_usage.values()) > billed


async def test_one_run_at_a_time_writes_a_file(paths: tuple[Path, Path]) -> None:
    source, target = paths
    async with fusion(token_delay=0.05) as fused:
        errors: list[Exception] = []

        async def second() -> None:
            await anyio.sleep(0.02)
            try:
                await run(source, target, fused)
            except SettingError as error:
                errors.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(run, source, target, fused)
            group.start_soon(second)
    assert [str(one) for one in errors] == [
        f"{target} is open in another run, which writes to it: wait until that one has ended, or give another place"
    ]
    assert texts(target) == ALL


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [{"custom_id": "x", "prompt": "a"}, {"custom_id": "x", "prompt": "b"}],
            "line 2: its custom_id is that of line 1: give each line one of its own",
        ),
        ([{"prompt": "a"}, "{"], "line 2: invalid JSON ("),
        (
            [{"custom_id": "x"}],
            'line 1: it has no prompt: give {"prompt": ...}, {"messages": [...]}, or OpenAI\'s batch format',
        ),
        ([{"prompt": "a", "messages": []}], "line 1: give prompt or messages, and not both"),
        ([{"prompt": "a", "max_token": 3}], "line 1: unknown field 'max_token'; did you mean 'max_tokens'?"),
        ([{"prompt": "a", "reference": 3}], "line 1: unknown field 'reference'; known are custom_id, "),
        ([{"prompt": "a"}, {"prompt": "a", "own": {"draft": "x"}}], "line 2: own has messages for one model alone"),
        ([{"messages": [], "own": "x"}], "line 1: own: Input should be a valid dictionary"),
        ([{"prompt": ["a"]}], "line 1: prompt: Input should be a valid string"),
        ([{"custom_id": "", "prompt": "a"}], "line 1: custom_id is empty"),
        (['{"custom_id": "\\ud800", "prompt": "a"}'], "line 1: custom_id: Input should be a valid string"),
        ([{**batch_form("x", "a"), "method": "GET"}], "line 1: method: Input should be 'POST'"),
        ([{**batch_form("x", "a"), "url": "/v1/embeddings"}], "line 1: url: Input should be '/v1/chat/comp"),
        ([{"method": "POST", "url": "/v1/completions", "body": {}}], "line 1: the field 'custom_id' is missing"),
        ([], " has no lines"),
    ],
)
async def test_an_invalid_input_is_refused_before_anything_is_sent(
    tmp_path: Path, rows: list[object], words: str
) -> None:
    source, target = input_file(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    async with fusion() as fused:
        with pytest.raises(SettingError) as caught:
            await run(source, target, fused)
        assert words in str(caught.value) and str(source) in str(caught.value)
        assert sent(fused) == 0 and not target.exists()


def written(model: str, version: int | None = 2) -> str:
    """A line that another fusion wrote."""
    own: dict[str, Any] = {"method": "cosd", "models": [model, "n"], "usage": {}}
    own |= {} if version is None else {"schema_version": version}
    return json.dumps({"custom_id": model, "error": None, "cosd": own}) + "\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            '{"prompt": "a"}\n',
            "line 1: not a line that cosd batch wrote, and nothing was changed: give another file (-o)",
        ),
        (
            '{"custom_id": "x", "cosd": {}, "error": null}\n',
            "line 1: the field 'cosd.method' is missing. Remove the line, and the next run will answer it again",
        ),
        (
            written("m"),
            " holds answers of m and n by the method cosd, not of small and large by cosd: give another file (-o)",
        ),
        (written("small", None), "another version of cosd-api (schema_version 1): give another file (-o)"),
        (written("small", 3), ": it was written by another version of cosd-api (schema_version 3): give another file"),
        (written("m") + written("o"), ": it holds answers of several fusions: give another file (-o)"),
        ("a diary\n", "line 1: invalid JSON"),
        (
            "{{ a template }}",
            "line 1: not a line that cosd batch wrote, and nothing was changed: give another file (-o)",
        ),
    ],
)
async def test_a_foreign_output_is_not_changed(paths: tuple[Path, Path], content: str, words: str) -> None:
    source, target = paths
    target.write_text(content)
    with pytest.raises(SettingError) as caught:
        await run(source, target)
    assert words in str(caught.value) and str(target) in str(caught.value)
    assert target.read_text() == content


async def test_lines_that_begin_alike_are_asked_near_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = ["b: 1", "a: 1", "b: 0", "c: 0", "a: 0", "b: 2"]
    rows = [{"prompt": one} for one in prompts]
    source = input_file(tmp_path / "in.jsonl", rows)
    asked: dict[int, list[str]] = {}
    for window in (1, 3, 100):
        monkeypatch.setattr("cosd_api.apps.batch.job.WINDOW", window)
        async with fusion(prompts) as fused:
            await run(source, tmp_path / f"out-{window}.jsonl", fused, concurrency=1)
            draft = fused.endpoints.draft
            assert isinstance(draft, ScriptedProvider)
            asked[window] = [*dict.fromkeys(one.prompt for one in draft.calls if one.kind == "generate")]
    assert asked[1] == prompts
    assert asked[3] == ["a: 1", "b: 0", "b: 1", "a: 0", "b: 2", "c: 0"]
    assert asked[100] == sorted(prompts)


def test_lines_with_one_document_begin_alike() -> None:
    def line(at: int, own: Any) -> BatchLine:
        return BatchLine(at, "", CHAT, {"messages": [{"role": "user", "content": f"{at}"}], "own": own}, plain=True)

    lines = [line(at, {"draft": f"{at % 2}", "assistant": "x"}) for at in range(3)]
    lines.append(line(3, {"assistant": "x", "draft": "1"}))
    assert [one.number for one in near_each_other(lines, 100, 1)] == [0, 2, 1, 3]


def test_lines_that_begin_alike_are_not_asked_at_the_same_time() -> None:
    lines = [BatchLine(at, "", "", {"prompt": f"{'abc'[at % 3]}: {at // 3}"}, plain=True) for at in range(9)]
    lanes = [line.asked for line in near_each_other(lines, 100, 3)]
    assert lanes == ["a: 0", "b: 0", "c: 0", "a: 1", "b: 1", "c: 1", "a: 2", "b: 2", "c: 2"]
    for window, several in ((4, 2), (7, 3), (1, 8), (100, 100)):
        assert sorted(line.number for line in near_each_other(lines, window, several)) == [*range(9)]
    assert [line.number for line in near_each_other(lines, 1, 8)] == [*range(9)]


async def test_the_limit_of_the_whole_batch(tmp_path: Path) -> None:
    prompts = [f"{at:03}:" for at in range(40)]
    source = input_file(tmp_path / "in.jsonl", [{"custom_id": one, "prompt": one, "max_tokens": 4} for one in prompts])
    target = tmp_path / "out.jsonl"
    async with fusion(prompts) as fused:
        fused.limits = {"max_tokens": 4}
        free = await run(source, tmp_path / "free.jsonl", fused)
        whole = sum(one.prompt_tokens + one.completion_tokens for one in free.usage.values())
        most, runs = 0, 0
        while True:
            most, runs = most + whole // 3, runs + 1
            found = await run(source, target, fused, max_billed_tokens=most, concurrency=4)
            billed = sum(one.prompt_tokens + one.completion_tokens for one in found.total_usage.values())
            assert billed <= most
            if found.complete:
                break
            assert found.stopped is not None and found.stopped.startswith(f"max_billed_tokens={most} is reached (")
            assert found.failed == 0 and 0 < found.missing <= 40 and runs < 8
    assert runs >= 3 and {*texts(target).values()} == {" yes."} and len(texts(target)) == 40


async def test_a_server_that_is_down_ends_it(tmp_path: Path) -> None:
    prompts = [f"{at:03}:" for at in range(40)]
    source, target = input_file(tmp_path / "in.jsonl", [{"prompt": one} for one in prompts]), tmp_path / "out.jsonl"
    faults = [Fault(ConnectError("no connection"), request=at) for at in range(3, 200)]
    async with fusion(prompts, faults=faults) as fused:
        found = await run(source, target, fused, concurrency=1)
    assert found.answered == 1 and 16 <= found.failed <= 18 and found.missing == 39 - found.failed
    assert found.stopped == (
        "16 lines in a row failed, the last one with: small: no connection. "
        "Check the servers, then run the command again with --retry-failed"
    )
    async with fusion(prompts) as fused:
        final = await run(source, target, fused, retry_failed=True)
    assert final.complete and len(texts(target)) == 40


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_lines_that_a_server_refuses_do_not_end_it(tmp_path: Path, concurrency: int) -> None:
    prompts = [f"{at:03}:" for at in range(30)]
    source, target = input_file(tmp_path / "in.jsonl", [{"prompt": one} for one in prompts]), tmp_path / "out.jsonl"
    faults = [Fault(InvalidRequestError("no such message"), request=at) for at in range(1, 21)]
    async with fusion(prompts, faults=faults) as fused:
        found = await run(source, target, fused, concurrency=concurrency)
    assert (found.answered, found.failed, found.missing, found.stopped) == (10, 20, 0, None)


async def test_failed_lines_are_asked_again_after_all_others(tmp_path: Path) -> None:
    prompts = [f"{at:03}:" for at in range(40)]
    source, target = input_file(tmp_path / "in.jsonl", [{"prompt": one} for one in prompts]), tmp_path / "out.jsonl"

    class Picky(ScriptedProvider):
        """Fails at the first twenty prompts whenever it is asked."""

        async def generate(self, context: Context, **given: Any) -> Any:
            prompt = context.prompt
            if prompt < "020":
                raise ServerError("it broke")
            async for one in super().generate(context, **given):
                yield one

    small, large = pair(prompts)
    picky = Picky(small.model, name="small")
    async with Fusion(draft=picky, assistant=large, unit="token") as fused:
        first = await run(source, target, fused, concurrency=1)
        assert first.stopped is not None and first.answered == 0
        second = await run(source, target, fused, concurrency=1, retry_failed=True)
    assert second.answered == 20 and second.stopped is not None
    assert {*texts(target).values()} == {None, " yes."}


async def test_a_server_that_hangs_ends_it(tmp_path: Path) -> None:
    prompts = [f"{at:03}:" for at in range(40)]
    source = input_file(tmp_path / "in.jsonl", [{"prompt": one} for one in prompts])
    async with fusion(prompts, faults=[Fault(None, request=at) for at in range(1, 60)]) as fused:
        fused.limits = {"timeout": 0.001}
        found = await run(source, tmp_path / "out.jsonl", fused, concurrency=8)
    assert found.stopped is not None and found.stopped.startswith("16 lines in a row failed, the last one with: ")
    assert found.missing > 0


async def test_an_input_that_can_be_read_once_only(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    try:
        with pytest.raises(SettingError) as caught:
            await run(Path(f"/dev/fd/{read_end}"), tmp_path / "out.jsonl")
    finally:
        os.close(read_end)
        os.close(write_end)
    words = "it is not a regular file, and a batch reads its input twice. Write the lines to a file first"
    assert str(caught.value) == f"/dev/fd/{read_end}: {words}"


async def test_an_input_that_became_shorter(paths: tuple[Path, Path]) -> None:
    def shorten(done: int, lines: int) -> None:
        input_file(paths[0], [{"custom_id": "a", "prompt": "a:"}])

    with pytest.raises(SettingError, match="has changed since it was read: run the command again"):
        await run(*paths, progress=shorten)


async def test_an_output_that_is_a_link(paths: tuple[Path, Path]) -> None:
    source, target = paths
    link = target.with_name("link.jsonl")
    link.symlink_to(target)
    async with fusion(faults=[Fault(ServerError("it broke"), request=3)]) as fused:
        assert (await run(source, link, fused, concurrency=1)).failed == 1
        assert (await run(source, link, fused, retry_failed=True)).complete
    assert link.is_symlink() and texts(target) == ALL


async def test_an_answer_without_a_token_is_none(paths: tuple[Path, Path]) -> None:
    source, target = paths
    async with fusion() as fused:
        fused.limits = {"max_billed_tokens": 1, "on_budget": "end"}
        found = await run(source, target, fused)
        assert (found.answered, found.failed) == (0, 6)
        words = "the limit max_billed_tokens of one answer ended it before its first token: allow more"
        assert {row["error"]["message"] for row in read(target).values()} == {words}
        fused.limits = {"max_billed_tokens": 100, "on_budget": "end"}
        assert (await run(source, target, fused, retry_failed=True)).answered == 6
    assert texts(target) == ALL


async def test_an_error_that_is_no_unicode(paths: tuple[Path, Path]) -> None:
    async with fusion(faults=[Fault(ServerError("it broke at \udc80"), request=3)]) as fused:
        assert (await run(*paths, fused, concurrency=1)).failed == 1
        assert (await run(*paths, fused)).known == 5
    assert [row["error"]["message"] for row in read(paths[1]).values() if row["error"]] == ["small: it broke at \udc80"]


async def test_lines_that_are_too_long_do_not_end_it(tmp_path: Path) -> None:
    prompts = [f"{at:03}:" for at in range(30)]
    source, target = input_file(tmp_path / "in.jsonl", [{"prompt": one} for one in prompts]), tmp_path / "out.jsonl"
    faults = [Fault(ContextLengthError("too long"), request=at) for at in range(1, 30)]
    async with fusion(prompts, faults=faults) as fused:
        found = await run(source, target, fused, concurrency=1)
    assert (found.answered, found.failed, found.missing) == (1, 29, 0)


async def test_a_server_that_is_down_at_first_is_an_error(paths: tuple[Path, Path]) -> None:
    class Down(ScriptedProvider):
        async def describe(self) -> Any:
            raise ConnectError("no connection")

    source, target = paths
    fused = fusion()
    async with Fusion(draft=Down(fused.endpoints.draft.model), assistant=fused.endpoints.assistants[0]) as down:  # type: ignore[attr-defined]
        with pytest.raises(ConnectError):
            await run(source, target, down)
    assert not target.exists()


async def test_an_input_that_changes_meanwhile(paths: tuple[Path, Path]) -> None:
    source, target = paths

    def change(done: int, lines: int) -> None:
        input_file(source, [{"custom_id": "other", "prompt": "a:"}])

    with pytest.raises(SettingError, match="has changed since it was read: run the command again"):
        await run(source, target, progress=change)
