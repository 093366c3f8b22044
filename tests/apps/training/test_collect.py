"""`collect` over scripted models: what is asked, what is kept, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from cosd_api import Example, Samples, SettingError, collect
from cosd_providers import ConnectError, UnsupportedError
from cosd_providers.contract import Capabilities, ServerInfo
from cosd_providers.testing import Fault, ScriptedProvider

#: Gives both models the same tokens.
SHARED: dict[str, list[Any]] = {"tokens": [" a", " b", " c", " d", " e"]}
#: The draft is wrong and unsure where the assistant is right, and right where the assistant is wrong.
DRAFT: dict[str, list[Any]] = {**SHARED, "Q": [" a", (" b", 0.2)], "Q a c": [(" d", 0.9)], "Q a c d": [("", 0.75)]}
ASSISTANT: dict[str, list[Any]] = {**SHARED, "Q": [" a", (" c", 0.8), (" e", 0.4)], "Q a c d": [("", 0.5)]}
EXAMPLES: list[dict[str, Any]] = [{"prompt": "Q", "answer": " a c d"}, {"prompt": "Q", "answer": " a"}]
MANY = [{"prompt": f"Q{at}", "answer": " a"} for at in range(6)]


def pair(**options: Any) -> tuple[ScriptedProvider, ScriptedProvider]:
    return (
        ScriptedProvider.from_texts(DRAFT, name="small", **options),
        ScriptedProvider.from_texts(ASSISTANT, name="large"),
    )


def asked(*providers: ScriptedProvider) -> list[int]:
    return [provider.requests for provider in providers]


async def test_two_scoring_requests_an_example() -> None:
    draft, assistant = pair()
    found = await collect(EXAMPLES, draft=draft, assistant=assistant)
    assert asked(draft, assistant) == [2, 2]
    assert [call.questions for call in (*draft.calls, *assistant.calls)] == [None] * 4
    assert {name: usage.requests for name, usage in found.usage.items()} == {"draft": 2, "assistant": 2}
    assert found.usage["draft"].billed_tokens > 0


async def test_with_other_tokens_only_the_assistant_is_asked_again_and_only_where_its_tokens_do_not_end() -> None:
    draft = ScriptedProvider.from_texts({"Q": [" a", " b", " c"]})
    assistant = ScriptedProvider.from_texts({"Q": [" ab", " b", " c"], "Q a": [" b", " c"]})
    found = await collect([{"prompt": "Q", "answer": " a b c"}], draft=draft, assistant=assistant)
    assert (found.unit, asked(draft, assistant)) == ("word", [1, 1])
    other = ScriptedProvider.from_texts({"Q": [" a b", " c"], "Q a": [" b", " c"]})
    found = await collect([{"prompt": "Q", "answer": " a b c"}], draft=draft, assistant=other)
    assert asked(draft, other) == [2, 2]
    places = other.calls[1].questions
    assert places is not None and [one.start for one in places] == [2] and places[0].word
    assert all(one.label == 0 for one in found.examples[0].samples)


async def test_the_literal_rule_takes_samples_of_tokens_by_text_whatever_the_ids() -> None:
    draft = ScriptedProvider.from_texts({"tokens": [" c"], "Q": [" a", " b", (" x", 0.3)]}, ids=True)
    assistant = ScriptedProvider.from_texts({"Q": [" a b", (" c", 0.8)], "Q a": [" b", " c"]}, ids=True)
    examples = [{"prompt": "Q", "answer": " a b c", "ends": False}]
    with pytest.raises(UnsupportedError, match='unit="literal" compares any models token by token'):
        await collect(examples, draft=draft, assistant=assistant, unit="token")
    found = await collect(examples, draft=draft, assistant=assistant, unit="literal")
    assert (found.unit, found.contexts) == ("literal", "text")
    assert [(one.draft, one.assistant, one.label) for one in found.examples[0].samples] == [
        (" a", " a b", 0),  # the assistant's token is longer, so it is another one
        (" b", " b", 0),
        (" x", " c", 1),
    ]


async def test_what_both_would_have_written() -> None:
    draft, assistant = pair()
    found = await collect(EXAMPLES, draft=draft, assistant=[assistant])
    first, second = found.examples
    assert [(one.draft, one.assistant, one.reference, one.p, one.q, one.label) for one in first.samples] == [
        (" a", " a", " a", 1.0, 1.0, 0),
        (" b", " c", " c", 0.2, 0.8, 1),
        (" d", " e", " d", 0.9, 0.4, 0),
        ("", "", "", 0.75, 0.5, 0),
    ]
    assert [one.label for one in second.samples] == [0, None]  # the answer is over behind " a": both would go on
    assert (found.positions, found.agreeing, found.labelled, found.dropped, found.skipped) == (6, 3, 2, 1, 0)
    assert (found.unit, found.contexts) == ("word", "text")  # as a fusion of models that take text only
    assert found.draft is not None and found.draft.model == "small"
    assert found.assistant is not None and (found.assistant.name, found.assistant.model) == ("assistant", "large")


async def test_each_model_reads_a_conversation_in_its_own_way() -> None:
    draft = ScriptedProvider.from_texts({"<Q>": [" a"]}, template=lambda messages: f"<{messages[0].content}>")
    assistant = ScriptedProvider.from_texts({"user: Q\nassistant: ": [" a"]})
    chat = {"prompt": [{"role": "user", "content": "Q"}], "answer": " a"}
    found = await collect([chat], draft=draft, assistant=assistant)
    assert [one.label for one in found.examples[0].samples] == [0, 0]
    assert [one.calls[0].prompt for one in (draft, assistant)] == ["<Q>", "user: Q\nassistant: "]


async def test_warnings() -> None:
    draft, assistant = pair(answer_cue="<answer>", end_prob=False)
    found = await collect(EXAMPLES, draft=draft, assistant=assistant)
    assert len(found.warnings) == 2
    assert any(one.startswith("draft is a chat model, and the prompt is raw text") for one in found.warnings)
    assert any("does not report the probability of its end of sequence" in one for one in found.warnings)
    assert found.skipped == 1  # the end of the first; of the second it is not what the draft would write


async def test_models_that_never_differ() -> None:
    (draft, _), (same, _) = pair(), pair()
    found = await collect(EXAMPLES, draft=draft, assistant=same)
    assert found.warnings == ("the two models agree at all 6 places: are they the same model?",)


# The file.


async def test_a_second_run_asks_only_what_is_missing(tmp_path: Path) -> None:
    path, (draft, assistant) = tmp_path / "samples.jsonl", pair()
    first = await collect(EXAMPLES[:1], draft=draft, assistant=assistant, path=path)
    before, told = path.read_bytes(), list[tuple[int, int]]()
    found = await collect(
        [*EXAMPLES, *EXAMPLES], draft=draft, assistant=assistant, path=path, progress=lambda *n: told.append(n)
    )
    assert asked(draft, assistant) == [2, 2]
    assert told == [(1, 2), (2, 2)]
    assert found.examples[:1] == first.examples
    assert path.read_bytes().startswith(before)
    assert Samples.load(path).examples == found.examples
    again = await collect(EXAMPLES[1:], draft=draft, assistant=assistant, path=str(path))
    assert asked(draft, assistant) == [2, 2]
    assert again.examples == found.examples[1:]  # what was given, and no more
    assert again.usage["draft"].requests == 0


async def test_a_target_may_change_without_asking_again(tmp_path: Path) -> None:
    path, (draft, assistant) = tmp_path / "samples.jsonl", pair()
    await collect(EXAMPLES, draft=draft, assistant=assistant, path=path)
    found = await collect([{**EXAMPLES[0], "target": "d"}], draft=draft, assistant=assistant, path=path)
    assert found.examples[0].example.target == "d"
    assert asked(draft, assistant) == [2, 2]


async def test_a_line_that_was_cut_is_asked_about_again(tmp_path: Path) -> None:
    path, (draft, assistant) = tmp_path / "samples.jsonl", pair()
    found = await collect(EXAMPLES, draft=draft, assistant=assistant, path=path, concurrency=1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    again = await collect(EXAMPLES, draft=draft, assistant=assistant, path=path)
    assert asked(draft, assistant) == [3, 3]
    assert again.examples == found.examples
    assert path.read_bytes() == whole


async def test_samples_of_other_models_are_left_alone(tmp_path: Path) -> None:
    path, (draft, assistant) = tmp_path / "samples.jsonl", pair()
    await collect(EXAMPLES, draft=draft, assistant=assistant, path=path)
    before = path.read_bytes()
    with pytest.raises(SettingError) as caught:
        await collect(MANY, draft=assistant, assistant=draft, path=path)
    assert str(caught.value) == (
        f"{path} holds samples with the draft small, not large: give collect another file, or move this one away"
    )
    await collect(EXAMPLES, draft=draft, assistant=assistant, path=path)  # the right ones, and nothing to ask
    assert path.read_bytes() == before
    assert asked(draft, assistant) == [2, 2]


async def test_samples_judged_otherwise_are_left_alone(tmp_path: Path) -> None:
    path, (draft, assistant) = tmp_path / "samples.jsonl", pair()
    await collect(EXAMPLES, draft=draft, assistant=assistant, path=path)
    path.write_text(path.read_text().replace('"unit":"word"', '"unit":"token"'))
    with pytest.raises(SettingError, match="samples of unit='token', but these endpoints are judged by 'word'"):
        await collect(EXAMPLES, draft=draft, assistant=assistant, path=path)


@pytest.mark.parametrize("content", ['{"prompt": "Q", "answer": " a"}\n', "Dear diary", "\x00\x01"])
async def test_a_file_that_is_not_ours_is_never_touched(tmp_path: Path, content: str) -> None:
    path, (draft, assistant) = tmp_path / "mine", pair()
    path.write_text(content)
    with pytest.raises(SettingError, match="is not a file of samples and was not changed"):
        await collect(EXAMPLES, draft=draft, assistant=assistant, path=path)
    assert path.read_text() == content
    assert asked(draft, assistant) == [0, 0]


async def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    draft, assistant = pair()
    with pytest.raises(FileNotFoundError):
        await collect(EXAMPLES, draft=draft, assistant=assistant, path=tmp_path / "no" / "samples.jsonl")
    assert asked(draft, assistant) == [0, 0]


# What goes wrong.


def kept(path: Path) -> list[str]:
    return [json.loads(line)["prompt"] for line in path.read_text().splitlines()[1:]]


def failing(request: int) -> tuple[ScriptedProvider, ScriptedProvider]:
    draft, assistant = pair()
    draft.faults = [Fault(ConnectError("refused", endpoint="http://draft"), request=request)]
    return draft, assistant


async def test_an_error_ends_the_run_and_what_was_done_is_kept(tmp_path: Path) -> None:
    path, (draft, assistant) = tmp_path / "samples.jsonl", failing(3)
    with pytest.raises(ConnectError, match="refused") as caught:
        await collect(MANY, draft=draft, assistant=assistant, path=path, concurrency=1)
    assert caught.value.__notes__ == ["at example 3 of the given examples"]
    assert kept(path) == ["Q0", "Q1"]
    found = await collect(MANY, draft=draft, assistant=assistant, path=path, concurrency=1)
    assert (len(found.examples), found.there) == (6, 2)
    assert draft.requests == 7  # the one that failed was sent, too
    assert draft.open_requests == assistant.open_requests == 0


async def test_an_example_that_fails_may_be_left_out(tmp_path: Path) -> None:
    path, (draft, assistant) = tmp_path / "samples.jsonl", failing(3)
    told: list[int] = []
    found = await collect(
        MANY,
        draft=draft,
        assistant=assistant,
        path=path,
        concurrency=1,
        on_error="skip",
        progress=lambda done, _: told.append(done),
    )
    assert [(one.number, one.example.prompt, one.error) for one in found.failed] == [(3, "Q2", "http://draft: refused")]
    assert [one.example.prompt for one in found.examples] == kept(path) == ["Q0", "Q1", "Q3", "Q4", "Q5"]
    assert told == [0, 1, 2, 3, 4, 5, 6]
    again = await collect(MANY, draft=draft, assistant=assistant, path=path)
    assert not again.failed and len(again.examples) == 6


async def test_leaving_it_cancels_what_is_under_way_and_keeps_what_was_done(tmp_path: Path) -> None:
    path, (draft, assistant) = tmp_path / "samples.jsonl", pair()
    draft.faults = [Fault(None, request=3)]  # hangs

    with anyio.CancelScope() as scope:

        async def leave() -> None:
            while draft.requests < 3:
                await anyio.lowlevel.checkpoint()
            scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(leave)
            await collect(MANY, draft=draft, assistant=assistant, path=path, concurrency=1)
    assert scope.cancelled_caught
    assert kept(path) == ["Q0", "Q1"]
    assert draft.open_requests == assistant.open_requests == 0


async def test_an_error_of_the_callers_own_comes_as_it_is(tmp_path: Path) -> None:
    path, (draft, assistant) = tmp_path / "samples.jsonl", pair()

    def progress(done: int, _: int) -> None:
        if done == 2:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        await collect(MANY, draft=draft, assistant=assistant, path=path, concurrency=1, progress=progress)
    assert kept(path) == ["Q0", "Q1"]


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (3, 3), (50, 6)])
async def test_so_many_examples_are_under_way_at_once(concurrency: int, most: int) -> None:
    draft, assistant = pair()
    draft.faults = [Fault(None, request=at) for at in range(1, 7)]  # all of them hang
    with anyio.CancelScope() as scope:

        async def look() -> None:
            await anyio.wait_all_tasks_blocked()
            assert draft.open_requests == most
            scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(look)
            await collect(MANY, draft=draft, assistant=assistant, concurrency=concurrency)
    assert draft.requests == most


# What is refused before anything is asked.


class Deaf(ScriptedProvider):
    """Neither encodes a text nor scores one."""

    async def describe(self) -> ServerInfo:
        return ServerInfo("http://deaf", "ollama", "deaf", None, None, Capabilities(False, False, False, False))


@pytest.mark.parametrize("role", ["draft", "assistant"])
@pytest.mark.parametrize(
    ("other", "words"),
    [
        (ScriptedProvider.from_texts({}, probs=False), "reports no probabilities of its tokens"),
        (Deaf.from_texts({}), "'s server neither tokenizes nor scores texts"),
    ],
)
async def test_endpoints_that_cannot_be_asked(tmp_path: Path, role: str, other: Any, words: str) -> None:
    path, (one, _) = tmp_path / "samples.jsonl", pair()
    endpoints: dict[str, Any] = {"draft": one, "assistant": one, role: other}
    with pytest.raises(UnsupportedError) as caught:
        await collect(EXAMPLES, path=path, **endpoints)
    assert f"the {role}{'' if words.startswith(chr(39)) else ' '}{words}" in str(caught.value)
    assert caught.value.hint
    assert asked(one, other) == [0, 0]
    assert not path.exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"assistant": [pair()[1], pair()[1]]},
            "samples compare two models, but there are 2 assistants: collect samples for each",
        ),
        ({"assistant": []}, "assistant is empty"),
        ({"draft": 7}, "draft must be a URL or a provider"),
        ({"concurrency": 0}, "concurrency must be a whole number of at least 1"),
        ({"on_error": "ignore"}, 'on_error must be "raise" or "skip"'),
        ({"on_special_tokens": "eat"}, 'on_special_tokens must be "warn" or "refuse"'),
        ({"examples": []}, "there are no examples"),
        ({"examples": [{"prompt": "Q"}]}, r"examples\[0\]: the field 'answer' is missing"),
    ],
)
async def test_settings_that_cannot_be(more: dict[str, Any], words: str) -> None:
    draft, assistant = pair()
    examples: Sequence[Example | dict[str, Any]] = more.pop("examples", EXAMPLES)
    with pytest.raises(SettingError, match=words):
        await collect(examples, **{"draft": draft, "assistant": assistant, **more})
    assert asked(draft, assistant) == [0, 0]
