"""The owner of a fusion in another process (actor), in this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from batches import fusion, pair
from cosd_api import Fusion, FusionConfig, SettingError, __version__
from cosd_api.batch import FusionActor
from cosd_api.batch.actor import LineActor
from cosd_api.batch.lines import line_of
from cosd_providers import ServerError
from cosd_providers.testing import Fault
from lima import ASSISTANT, DRAFT, FUSED, read, scripted


async def test_rows_are_answered_and_errors_are_rows() -> None:
    actor = FusionActor(fusion, concurrency=2)
    asked = {"prompt": ["a:", None, "c:", ""], "max_tokens": [float("nan"), 5, 1, None], "kept": [1, 2, 3, 4]}
    found = await actor(asked)
    assert found["text"] == [" yes.", "", " yes", ""]
    assert found["finish_reason"] == ["stop", "", "length", ""]
    assert found["error"][1] == "give prompt or messages, and not both"
    assert found["error"][3].startswith("prompt is refused: it must be text")
    assert [bool(one) for one in found["error"]] == [False, True, False, True]
    assert [one > 0 for one in found["billed_tokens"]] == [True, False, True, False]
    assert {name: found[name] for name in asked} == asked
    assert await actor({"prompt": []}) == {name: [] for name in found if name not in ("max_tokens", "kept")}
    messages = await actor({"messages": [[{"role": "user", "content": "b:"}]], "unknown": [object()]})
    assert messages["text"] == [" yes."]


async def test_own_messages_of_a_row_reach_one_model_alone() -> None:
    document, asked = "SECRET-4711", "user: Hi\nassistant: "
    draft, assistant = scripted(DRAFT, asked), scripted(ASSISTANT, f"system: {document}\n{asked}")
    actor = FusionActor(lambda: Fusion(draft=draft, assistant=assistant))
    messages = [{"role": "user", "content": "Hi"}]
    own = [{"assistant": document, "draft": None}, {"assistant": None, "draft": 3}]  # as columns of a table have them
    found = await actor({"messages": [messages, messages], "own": own})
    assert found["text"] == [FUSED, ""]
    assert found["error"] == ["", "own['draft']: messages must be a list of messages, not int"]
    assert document in read(assistant) and document not in read(draft)


async def test_an_error_of_a_server_is_a_row() -> None:
    draft, assistant = pair(faults=[Fault(ServerError("it broke"), request=1)])
    actor = FusionActor(lambda: Fusion(draft=draft, assistant=assistant, unit="token"), concurrency=1)
    found = await actor({"prompt": ["a:", "b:"]})
    assert found["text"] == ["", " yes."] and "it broke" in found["error"][0]


def test_settings_are_checked_where_the_actor_is(tmp_path: Path) -> None:
    path = tmp_path / "fusion.json"
    path.write_text('{"draft": {"url": "http://a", "limits": {"concurrency": 2}}, "assistants": ["http://b"]}')
    for source in (path, str(path), FusionConfig.load(path)):
        FusionActor(source, actors=2)
        with pytest.raises(SettingError, match="cannot be divided among 3 actors"):
            FusionActor(source, actors=3)
    with pytest.raises(SettingError, match="concurrency must be"):
        FusionActor(path, concurrency=0)
    with pytest.raises(OSError, match=r"missing\.json"):
        FusionActor(tmp_path / "missing.json")


async def test_the_state_of_an_actor() -> None:
    good = await LineActor(fusion).state()
    assert (good.version, good.problem) == (__version__, None) and good.machine

    def broken() -> Fusion:
        raise SettingError("the variable MY_KEY is not set")

    actor = LineActor(broken)
    assert (await actor.state()).problem == "the variable MY_KEY is not set"
    reply = await actor.answer(line_of(1, {"prompt": "a:"}), None)
    assert reply.server_failed and reply.error is not None
    assert (reply.error["code"], reply.error["message"]) == ("SettingError", "the variable MY_KEY is not set")
