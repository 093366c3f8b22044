"""Answers whose draft fails: up to the seam they are Algorithm 1's, after it an assistant's own greedy continuation."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar
from unittest.mock import patch

import pytest

from cosd_api import Fusion, FusionResult, SettingError, fuse
from cosd_api.decoding import failover
from cosd_api.decoding.failover import Failover
from cosd_api.endpoints import Endpoints
from cosd_api.records import Seam
from cosd_providers import DraftEnd, ServerError, Token
from cosd_providers.messages import RenderedPrompt
from cosd_providers.testing import Fault, ScriptedProvider
from cosd_providers.text import sendable
from naive.reference_mixed import MixedReference
from naive.reference_paths import DRAFT, Fused, bounds, first_stop, ranked
from support import virtual_time
from test_every_pair import ORDERS, SOME, Breaks, Task, drawn, seeds, writers


def greedy(model: Any, ids: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """A model's own continuation: each id with its bytes, and the end."""
    path = [*ids]
    while True:
        (best, _), _ = ranked(model, path)
        yield best, b"" if best in model.end_ids else model.tokens[best]
        path.append(best)


def alone(task: Task, source: int, before: Sequence[Any], text: bytes) -> Iterator[tuple[int, bytes]]:
    """The continuation by an assistant: after the draft's ids, its own encoding, or the text."""
    model, prompt = task.assistants[source], task.prompt.encode()
    route = task.routes[source]
    if route == "text" or (route == "own" and sendable(text).encode() != text):
        return greedy(model, model.encode(prompt + sendable(text).encode()))
    ids = [one.id for one in before] if route == "same" else model.encode(text)
    return greedy(model, [*model.encode(prompt), *ids])


def check_alone(result: FusionResult, task: Task, first: int, last: int, source: int) -> None:
    """The tokens from `first` to `last` are an assistant's own greedy continuation of the text before them."""
    before, tokens = result.tokens[:first], result.tokens[first:last]
    text = b"".join(one.data for one in before)
    shared = frozenset(task.draft.end_ids).union(*(task.assistants[at].end_ids for at in task.of("same")))
    ends = shared if task.routes[source] == "same" else task.assistants[source].end_ids
    wanted, size, ended = b"", sum(len(one.data) for one in tokens), False
    for best, data in alone(task, source, before, text):
        if len(wanted) >= size + 40 or best in ends:
            ended = best in ends
            break
        wanted += data
    whole = b"".join(one.data for one in tokens)
    assert wanted.startswith(whole)
    if len(result.seams) > 1:
        pass
    elif result.finish_reason == "stop":
        found = first_stop(text + wanted, [one.encode() for one in task.stop])
        if tokens[-1:] and tokens[-1].end:
            assert ended and wanted == whole
        else:
            assert found is not None and text + whole == (text + wanted)[: found[0] - len(found[1])]
    else:
        assert len(result.tokens) == task.max_tokens
    names = [one.name for one in result.assistants]
    assert {(one.source, one.verified, one.alone) for one in tokens} <= {(names[source], False, True)}


async def never(_: Endpoints) -> bool:
    return False


def failing(seed: int) -> tuple[Task, Breaks]:
    """A task, and its draft, which fails for good after some bytes."""
    chance = random.Random(f"failover {seed}")
    task = replace(drawn(f"failover {seed}"), room=None)
    return task, Breaks(task.draft, task.prompt, chance.randint(-1, 40), ServerError("the draft is down", status=500))


@pytest.mark.parametrize("seed", seeds(SOME * 2))
def test_an_assistant_writes_on_alone(seed: int) -> None:
    task, draft = failing(seed)
    reference = task.reference()
    wanted = reference.fuse()
    for order in range(ORDERS):
        servers = task.servers(f"{seed} {order}")
        servers["draft"].model = draft
        with patch.object(Endpoints, "draft_is_back", never):
            result = virtual_time.run(partial(task.survived, servers, on_draft_error="assistant"))
        judged, seams = result.tokens, result.seams
        if seams:
            [seam] = seams
            assert (seam.source, seam.error) == (result.assistants[0].name, "ServerError")
            assert result.failures == {"draft": "ServerError"}
            assert "the draft failed at token" in " ".join(result.warnings)
            judged = result.tokens[: seam.token]
            check_alone(result, task, seam.token, len(result.tokens), 0)
        text = b"".join(one.data for one in judged)
        told = [(byte, source) for byte, source in writers(result)][: len(text)]
        assert told == [*zip(wanted.text, reference.writers, strict=False)][: len(text)]
        assert seams or result.text == sendable(wanted.text)
        assert result.trace.replay(task.verifier) == result.text


class Resumed(MixedReference):
    """The reference of an answer that goes on after a text that another model wrote."""

    def after(self, path: Sequence[Any], start: int, own: int, most: int) -> Fused:
        """The rest of the answer, with the draft's own ids of the text so far."""
        self.beginning = [*path], start, (own, start)
        self.max_tokens = most
        self.writers = [DRAFT] * start
        return self.fuse()

    def begin(self) -> tuple[list[Any], int, tuple[int, int] | None]:
        """Where the answer begins."""
        return self.beginning


@pytest.mark.parametrize("seed", seeds(SOME * 2))
def test_the_draft_returns(seed: int) -> None:
    """From the second seam on, the answer is Algorithm 1's after a text that the assistant wrote."""
    chance = random.Random(f"returns {seed}")
    task = replace(drawn(f"returns {seed}"), room=None, max_tokens=chance.choice((12, 20, 30)))
    first, last = chance.randrange(3), chance.randrange(4)
    error = ServerError("the draft is down", status=500)
    for order in range(ORDERS):
        servers = task.servers(f"{seed} {order}")
        down = partial(is_down, servers["draft"], error, first)
        servers["draft"].broken = down
        looks = iter([*[False] * last, *[True] * 99])

        async def is_back(_: Endpoints, looks: Iterator[bool] = looks, draft: Any = servers["draft"]) -> bool:
            back = next(looks)
            draft.broken = None if back else draft.broken
            return back

        with patch.object(Endpoints, "draft_is_back", is_back), patch.object(failover, "RETURN_SECONDS", 0.3):
            result = virtual_time.run(partial(task.survived, servers, on_draft_error="assistant"))
        assert result.trace.replay(task.verifier) == result.text
        if len(result.seams) < 2:
            continue
        alone, back = result.seams
        assert (alone.source, back.source, back.error) == (result.assistants[0].name, "draft", None)
        check_alone(result, task, alone.token, back.token, 0)
        before = result.tokens[: back.token]
        text = b"".join(one.data for one in before)
        if all(route == "same" for route in task.routes):
            path: list[Any] = [one.id for one in before]
        else:
            path = [text] if task.by_text else [*task.draft.encode(text)]
        data = b"".join(one.data for one in result.tokens)
        if task.by_text or len(text) in bounds(task.draft, task.draft.encode(sendable(data).encode())):
            wanted = task.referred(Resumed).after(path, len(text), 0, task.max_tokens - back.token + len(path))
            assert result.text == sendable(wanted.text)
        # Otherwise the reference would encode the text before the seam again, and the library never does.


@pytest.mark.parametrize("seed", seeds(SOME))
def test_a_draft_that_returns_but_cannot_encode_leaves_the_answer_to_the_assistant(seed: int) -> None:
    chance = random.Random(f"cannot encode {seed}")
    task = replace(drawn(f"cannot encode {seed}"), room=None)
    error, first = ServerError("the draft is down", status=500), chance.randrange(3)

    async def is_back(_: Endpoints) -> bool:
        return True

    servers = task.servers(f"{seed}")
    failed = list[bool]()

    def broken(method: str, before: int) -> Exception | None:
        failed.extend([True] * (method == "generate" and before >= first))
        return error if failed and method in ("generate", "encode") else None

    servers["draft"].broken = broken
    with patch.object(Endpoints, "draft_is_back", is_back), patch.object(failover, "RETURN_SECONDS", 0.1):
        result = virtual_time.run(partial(task.survived, servers, on_draft_error="assistant"))
    assert result.trace.replay(task.verifier) == result.text
    if len(result.seams) == 1 and result.tokens[-1:] and result.tokens[-1].alone:
        check_alone(result, task, result.seams[0].token, len(result.tokens), 0)


def is_down(draft: Any, error: Exception, first: int, method: str, before: int) -> Exception | None:
    """The error of every draft from a number on."""
    return error if method == "generate" and before >= first else None


# ------------------------------------------------------------------------------------------------------------ by hand


def servers(*faults: Fault, **assistants: Any) -> dict[str, Any]:
    """Two models, of which the draft fails as told."""
    draft = ScriptedProvider.from_texts({"Q:": [" The", " capital", " is", (" Rome", 0.3), "."]}, faults=faults)
    return {"draft": draft, "assistant": assistant(**assistants)}


def assistant(**options: Any) -> ScriptedProvider:
    return ScriptedProvider.from_texts({"Q:": [" The", " capital", " is", (" Li", 0.9), ("ma", 0.8), "!"]}, **options)


DOWN = ServerError("the server said 503", endpoint="http://draft", status=503)


@pytest.fixture
def without_return() -> Iterator[None]:
    """The draft never comes back."""
    with patch.object(Endpoints, "draft_is_back", never):
        yield


@pytest.mark.usefixtures("without_return")
async def test_a_result_tells_who_wrote_what_and_why() -> None:
    given = servers(Fault(DOWN, tokens=3))
    result = await fuse("Q:", **given, on_draft_error="assistant", max_tokens=8)
    assert result.text == " The capital is Lima!"
    [seam] = result.seams
    assert seam == Seam(token=seam.token, source="assistant", error="ServerError") and 0 < seam.token <= 3
    assert result.failures == {"draft": "ServerError"}
    assert result.shares == {"draft": seam.token / 7, "assistant": 1 - seam.token / 7}
    assert [one.alone for one in result.tokens] == [at >= seam.token for at in range(7)]
    assert {one.reason for one in result.tokens if one.alone} == {
        "unverified: the draft failed (ServerError), and the assistant writes alone"
    }
    [warning] = [one for one in result.warnings if "alone" in one]
    words = f"the draft failed at token {seam.token + 1}, and the assistant wrote {7 - seam.token} tokens alone"
    assert warning == f"{words}; they are unverified: {DOWN}"
    assert FusionResult.model_validate_json(result.model_dump_json()) == result


@pytest.mark.usefixtures("without_return")
async def test_the_next_assistant_writes_on_if_the_first_fails_too() -> None:
    gone = ServerError("gone", endpoint="http://first", status=500)
    first = assistant(faults=[Fault(gone, request=one, tokens=1) for one in range(1, 30)])
    given: dict[str, Any] = {**servers(Fault(DOWN, tokens=3)), "assistant": [first, assistant()]}
    settings: dict[str, Any] = {"on_draft_error": "assistant", "on_assistant_error": "draft", "max_tokens": 8}
    result = await fuse("Q:", **given, **settings)
    assert result.text == " The capital is Lima!"
    assert result.seams[-1].source == "assistant 2" and set(result.failures) == {"draft", "assistant 1"}


@pytest.mark.usefixtures("without_return")
async def test_an_assistant_that_was_lost_writes_on_if_no_other_is_left() -> None:
    """It was down when it was asked, and the next answer left it out; its server is back when the draft fails."""
    given = servers(*[Fault(DOWN, request=one, tokens=3) for one in (2, 3)])
    given["assistant"] = assistant(faults=[Fault(DOWN, request=1)])
    async with Fusion(**given, on_draft_error="assistant", on_assistant_error="draft") as fusion:
        assert (await fusion.generate("Q:", max_tokens=8)).text == " The capital is Rome."
        result = await fusion.generate("Q:", max_tokens=8)
    assert result.text == " The capital is Lima!" and [one.source for one in result.seams] == ["assistant"]
    assert set(result.failures) == {"draft", "assistant"} and result.trace.replay() == result.text
    assert "assistant failed before this answer began" in " ".join(result.warnings)


@pytest.mark.parametrize("seed", seeds(SOME))
def test_an_assistant_that_was_lost_judges_no_more(seed: int) -> None:
    """Whatever fails first: after the draft's return, the answer is the draft's own."""
    chance = random.Random(f"lost {seed}")
    task = replace(drawn(f"lost {seed}"), room=None, max_tokens=20)
    given, error, first = task.servers(f"{seed}"), ServerError("down", status=500), chance.randrange(3)
    for server in given["assistant"]:
        server.broken = lambda method, before: error if method != "describe" and before < 1 else None
    given["draft"].broken = partial(is_down, given["draft"], error, first)

    async def is_back(_: Endpoints) -> bool:
        given["draft"].broken = None
        return True

    with patch.object(Endpoints, "draft_is_back", is_back), patch.object(failover, "RETURN_SECONDS", 0.3):
        result = virtual_time.run(partial(task.survived, given, on_draft_error="assistant"))
    assert result.trace.replay(task.verifier) == result.text
    lost = {one.name for one in result.assistants if one.name in result.failures}
    after = result.seams[-1].token if result.seams else len(result.tokens)
    assert not [one for one in result.tokens[after:] if one.source in lost and not one.alone]


@pytest.mark.usefixtures("without_return")
async def test_with_no_model_left_the_text_so_far_is_kept() -> None:
    given = servers(Fault(DOWN, tokens=4))
    with (
        patch.object(Failover, "_write", side_effect=ServerError("gone", endpoint="http://a", status=500)),
        pytest.raises(ServerError, match="gone") as failed,
    ):
        await fuse("Q:", **given, on_draft_error="assistant", max_tokens=8)
    assert failed.value.partial is not None and failed.value.partial.text.startswith(" The")
    assert failed.value.partial.failures == {"draft": "ServerError", "assistant": "ServerError"}


async def test_by_default_the_failure_of_a_draft_is_an_error() -> None:
    with pytest.raises(ServerError, match="the server said 503"):
        await fuse("Q:", **servers(Fault(DOWN, tokens=3)))


@pytest.mark.usefixtures("without_return")
async def test_limits_count_what_an_assistant_writes_alone() -> None:
    given = servers(Fault(DOWN, tokens=3))
    result = await fuse("Q:", **given, on_draft_error="assistant", max_tokens=5)
    assert (len(result.tokens), result.finish_reason) == (5, "length")
    given = servers(Fault(DOWN, tokens=3))
    result = await fuse("Q:", **given, on_draft_error="assistant", max_billed_tokens=30, on_budget="end")
    assert result.finish_reason in ("stop", "budget")
    given = servers(Fault(DOWN, tokens=3))
    result = await fuse("Q:", **given, on_draft_error="assistant", stop="ma!")
    assert (result.text, result.stop_reason) == (" The capital is Li", "ma!")


@pytest.mark.usefixtures("without_return")
async def test_a_stream_goes_on_and_repeats_nothing() -> None:
    given = servers(Fault(DOWN, tokens=3))
    async with Fusion(**given, on_draft_error="assistant") as fusion, fusion.stream("Q:", max_tokens=8) as stream:
        assert "".join([token.text async for token in stream]) == stream.result.text == " The capital is Lima!"


async def test_other_methods_say_that_they_have_no_failover() -> None:
    with pytest.raises(SettingError, match="on_draft_error means nothing to the method 'rerank': only Algorithm 1"):
        Fusion(**servers(), method="rerank", on_draft_error="assistant")
    with pytest.raises(SettingError, match='on_draft_error must be "raise" or "assistant", not \'draft\''):
        Fusion(**servers(), on_draft_error="draft")  # type: ignore[arg-type]


class Falls(ScriptedProvider):
    """A draft that is down, from a time on: it renders nothing, and writes nothing."""

    down: ClassVar[bool] = False

    async def render_prompt(self, *given: Any, **settings: Any) -> RenderedPrompt:
        if Falls.down:
            raise DOWN
        return await super().render_prompt(*given, **settings)

    async def generate(self, *given: Any, **settings: Any) -> AsyncGenerator[Token | DraftEnd, None]:
        if Falls.down:
            raise DOWN
        async with aclosing(super().generate(*given, **settings)) as items:
            async for item in items:
                yield item


@pytest.mark.usefixtures("without_return")
async def test_answers_begin_without_a_draft_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text needs no rendering; a conversation is not rendered for the draft. The breaker spares the next answers."""
    asked = [{"role": "user", "content": "Q:"}]
    scripts = {"Q:": [" yes", " it", " is"], "user: Q:\nassistant: ": [" yes", " it", " is"]}
    given: dict[str, Any] = {"draft": Falls.from_texts(scripts), "assistant": ScriptedProvider.from_texts(scripts)}
    async with Fusion(**given, on_draft_error="assistant") as fusion:
        assert not (await fusion.generate(asked)).seams
        monkeypatch.setattr(Falls, "down", True)
        for prompt in ("Q:", asked, "Q:", asked):
            result = await fusion.generate(prompt)
            assert (result.text, result.shares["assistant"], result.seams[0].token) == (" yes it is", 1, 0)
            assert result.failures == {"draft": "ServerError"} and result.trace.replay() == result.text
        assert fusion.endpoints.breaker.left_out() == {-1: DOWN}
    async with Fusion(**given) as fusion:
        with pytest.raises(ServerError, match="the server said 503"):
            await fusion.generate(asked)


async def test_the_draft_is_the_last_resort() -> None:
    """No assistant is left, but the draft answers again: it writes on alone."""
    given = servers(Fault(DOWN, tokens=3))
    gone = ServerError("gone", endpoint="http://a", status=500)
    with patch.object(Failover, "_write", side_effect=gone):
        result = await fuse("Q:", **given, on_draft_error="assistant", on_assistant_error="draft", max_tokens=8)
        with pytest.raises(ServerError, match="gone"):
            await fuse("Q:", **servers(Fault(DOWN, tokens=3)), on_draft_error="assistant", max_tokens=8)
    assert result.text == " The capital is Rome."
    assert result.failures == {"draft": "ServerError", "assistant": "ServerError"}
    assert [one.source for one in result.seams] == ["assistant", "draft"]
    assert not any(one.alone for one in result.tokens) and result.unverified_tokens
