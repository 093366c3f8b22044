"""The owner of a fusion in a process of a cluster, in this one."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from cosd_api import Fusion, FusionConfig, SettingError
from cosd_api.apps.batch import FusionActor
from cosd_api.config import ServerConfig, ServerLimitsConfig
from cosd_providers import ServerError
from cosd_providers.testing import Fault
from toys.batches import fusion, pair
from toys.lima import ASSISTANT, DRAFT, FUSED, read, scripted


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


def limits(models: list[ServerConfig] | None) -> list[ServerLimitsConfig | None]:
    return [one.limits for one in models or ()]


def test_limits_are_divided_among_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[FusionConfig] = []

    def load(config: FusionConfig) -> Fusion:
        loaded.append(config)
        return fusion()

    monkeypatch.setattr(Fusion, "load", load)
    bounds = {"concurrency": 7, "requests_per_minute": 90, "tokens_per_minute": 1}
    servers = [{"url": "http://a", "limits": bounds}, {"url": "http://b", "limits": {"requests_per_minute": 4}}]
    given = FusionConfig.model_validate({"models": servers, "method": "rerank"})
    for actors in (3, 1):
        FusionActor(given, actors=actors)
    third = {"concurrency": 2, "requests_per_minute": 30, "tokens_per_minute": 1 / 3}
    less = {"concurrency": None, "requests_per_minute": 4 / 3, "tokens_per_minute": None}
    assert [one and one.model_dump() for one in limits(loaded[0].models)] == [third, less]
    assert loaded[1].models == given.models
    draft = FusionConfig.model_validate({"draft": servers[0], "assistants": [{"url": "http://b"}]})
    FusionActor(draft, actors=2)
    assert loaded[2].draft is not None and loaded[2].draft.limits is not None
    assert loaded[2].draft.limits.concurrency == 3


def test_a_settings_file_can_be_pickled(tmp_path: Path) -> None:
    path = tmp_path / "fusion.json"
    path.write_text('{"draft": "http://a", "assistants": ["http://b"], "verifier": {"kind": "diff", "tau": 0.5}}')
    found = FusionConfig.load(path)
    again = pickle.loads(pickle.dumps(found))
    assert again.document() == found.document() and again.verifier == found.verifier


def test_keys_are_not_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    server = {"url": "http://a", "api_key_env": "MY_KEY"}
    data = pickle.dumps(FusionConfig.model_validate({"draft": server, "assistants": ["http://b"]}))
    assert b"MY_KEY" in data and b"sk-secret" not in data
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(
        SettingError, match="draft: the environment variable MY_KEY, which should contain its key, is not"
    ):
        FusionActor(pickle.loads(data))
