"""Messages of single models: they stand before the conversation, and reach no other server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cosd_api import Fusion, FusionConfig, Message, SettingError, fuse
from cosd_providers import connect
from cosd_providers.messages import after_own, checked_own
from toys.lima import ASSISTANT, DRAFT, FUSED, read, scripted

DOCUMENT = "SECRET-4711"
ASKED = [{"role": "user", "content": "Hi"}]
PROMPT = "user: Hi\nassistant: "


@pytest.mark.parametrize(
    ("own", "front"),
    [
        (f"Know {DOCUMENT}.", f"system: Know {DOCUMENT}.\n"),
        ([Message("user", DOCUMENT), Message("assistant", "Yes.")], f"user: {DOCUMENT}\nassistant: Yes.\n"),
        ([{"role": "developer", "content": DOCUMENT}], f"system: {DOCUMENT}\n"),
    ],
)
async def test_only_the_assistant_reads_them(own: Any, front: str) -> None:
    draft, assistant = scripted(DRAFT, PROMPT), scripted(ASSISTANT, front + PROMPT)
    result = await fuse(ASKED, draft=draft, assistant=assistant, own={"assistant": own})
    assert result.text == FUSED
    assert DOCUMENT in read(assistant)
    assert DOCUMENT not in read(draft)
    assert DOCUMENT not in result.model_dump_json()


async def test_only_the_draft_reads_them_also_by_fusion() -> None:
    draft, assistant = scripted(DRAFT, f"system: {DOCUMENT}\n{PROMPT}"), scripted(ASSISTANT, PROMPT)
    async with Fusion(draft=draft, assistant=assistant) as fusion:
        fusion.limits = {"own": {"draft": DOCUMENT}}
        result = await fusion.generate(ASKED)
        async for other in fusion.map([ASKED]):
            assert other.text == result.text == FUSED
        with pytest.raises(SettingError, match="a settings file has no messages for single answers"):
            fusion.save("unused.yaml")
    assert DOCUMENT in read(draft)
    assert DOCUMENT not in read(assistant)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"judge": "x"}, "own has messages for 'judge', and the models are draft, assistant"),
        ({"draft": 3}, r"own\['draft'\]: messages must be a list of messages, not int"),
        ({"draft": [{"role": "x", "content": ""}]}, r"own\['draft'\]: messages\[0\] has the role 'x'"),
        ("x", "own must map names of models to their messages, not str"),
        (
            {"draft": [Message("user", "a"), Message("system", "b")]},
            "only the first of a model's own messages may be a system message",
        ),
    ],
)
async def test_invalid_ones_are_refused(own: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        await fuse(ASKED, draft=scripted(DRAFT, PROMPT), assistant=scripted(ASSISTANT, PROMPT), own=own)


async def test_a_text_as_the_prompt_is_refused() -> None:
    words = "assistant has messages of its own, and the prompt is text, which no template renders: give a list of mess"
    draft, assistant = scripted(DRAFT, "Q:"), scripted(ASSISTANT, "Q:")
    with pytest.raises(SettingError, match=words):
        await fuse("Q:", draft=draft, assistant=assistant, own={"assistant": "x"})
    assert not draft.calls
    assert not assistant.calls


def test_one_system_message_stands_first() -> None:
    conversation = [Message("system", "shared"), Message("user", "Hi")]
    own = checked_own("mine", [Message("user", "document"), Message("assistant", "ok")])
    assert after_own(own, conversation) == [
        Message("system", "mine\n\nshared"),
        Message("user", "document"),
        Message("assistant", "ok"),
        Message("user", "Hi"),
    ]
    assert after_own(own[1:], conversation) == [conversation[0], *own[1:], conversation[1]]
    assert list(after_own(own, conversation[1:])) == [*own, conversation[1]]
    assert list(after_own((), conversation)) == conversation


def test_connect_checks_them() -> None:
    with pytest.raises(ValueError, match="system must be text, not int"):
        connect("http://gpu1:8080", system=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="messages must be a list of messages, not str"):
        connect("http://gpu1:8080", messages="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", [None, "llama.cpp"])
def test_a_provider_does_not_show_them(engine: str | None) -> None:
    assert DOCUMENT not in repr(connect("http://gpu1:8080", engine=engine, system=DOCUMENT))


def test_a_settings_file_keeps_those_of_a_server(tmp_path: Path) -> None:
    own: Any = [{"role": "user", "content": "document"}, Message("assistant", "ok")]
    draft = connect("http://gpu1:8080", system="a pirate")
    assistant = connect("http://gpu2:8080", engine="vllm", messages=own)
    Fusion(draft=draft, assistant=assistant).save(tmp_path / "fusion.yaml")
    servers: Any = FusionConfig.load(tmp_path / "fusion.yaml").servers()
    assert servers["draft"].own_messages == (Message("system", "a pirate"),)
    assert [one.own_messages for one in servers["assistant"]] == [checked_own(None, own)]
