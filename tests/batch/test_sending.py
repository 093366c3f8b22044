"""A fusion on its way to another process (sending), and the limits of its servers divided."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from batches import fusion
from cosd_api import Fusion, FusionConfig, Rerank, RuleVerifier, SettingError, TreeVerifier, connect
from cosd_api.batch.sending import SentFusion, divided
from cosd_api.verification.tree import TreeNode
from cosd_providers import Limits


def config(**limits: Any) -> FusionConfig:
    given = {"draft": {"url": "http://a", "limits": limits}, "assistants": ["http://b"]}
    return FusionConfig.model_validate(given)


def limits_of(config: FusionConfig) -> tuple[int | None, float | None, float | None]:
    assert config.draft is not None and config.draft.limits is not None
    found = config.draft.limits
    return found.concurrency, found.requests_per_minute, found.tokens_per_minute


def test_limits_are_divided() -> None:
    given = config(concurrency=7, requests_per_minute=90, tokens_per_minute=1)
    parts = [limits_of(divided(given, 3, at)) for at in range(3)]
    assert parts == [(3, 30, 1 / 3), (2, 30, 1 / 3), (2, 30, 1 / 3)]
    assert limits_of(divided(given, 3)) == (2, 30, 1 / 3)
    assert divided(given, 1) == given
    assert limits_of(divided(config(requests_per_minute=4), 4)) == (None, 1, None)
    models = [{"url": "http://a", "limits": {"concurrency": 4}}, "http://b"]
    several = FusionConfig.model_validate({"models": models, "method": "rerank"})
    assert several.models is not None
    first, second = divided(several, 2).models or []
    assert (first.limits and first.limits.concurrency, second) == (2, several.models[1])


def test_limits_that_cannot_be_divided() -> None:
    with pytest.raises(SettingError) as refused:
        divided(config(concurrency=2), 3)
    words = "draft: its limit of 2 requests at a time cannot be divided among 3 actors: take 2, or fewer"
    assert str(refused.value) == words
    with pytest.raises(SettingError, match="actors must be a whole number"):
        divided(config(), 0)


def test_settings_are_made_again_elsewhere() -> None:
    draft = connect("http://a", limits=Limits(concurrency=4), engine="vllm")
    made = Fusion(draft=draft, assistant=["http://b"], verifier=RuleVerifier(alpha=0.25), unit="word", draft_length=5)
    made.limits = {"max_tokens": 7, "stop": ["\n"]}
    sent: SentFusion = pickle.loads(pickle.dumps(SentFusion.of(made).part(2, 0)))
    again = sent()
    assert (again.settings, again.limits) == (made.settings, made.limits)
    assert limits_of(sent.config) == (2, None, None)
    assert again.endpoints.draft.name == made.endpoints.draft.name
    method = Fusion(models=["http://a", "http://b"], method=Rerank())
    assert pickle.loads(pickle.dumps(SentFusion.of(method)))().settings == method.settings


def test_trained_parts_travel_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tree = TreeVerifier(nodes=(TreeNode(value=1),))
    made = Fusion(draft="http://a", assistant="http://b", verifier=tree, unit="token", ask="all")
    again = pickle.loads(pickle.dumps(SentFusion.of(made)))()
    assert again.settings == made.settings
    assert not [*tmp_path.iterdir()]


def test_keys_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    server = {"url": "http://a", "api_key_env": "MY_KEY"}
    made = Fusion.load(FusionConfig.model_validate({"draft": server, "assistants": ["http://b"]}))
    data = pickle.dumps(SentFusion.of(made))
    assert b"MY_KEY" in data and b"sk-secret" not in data
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(SettingError, match="draft: the environment variable MY_KEY, which is to hold its key, is not"):
        pickle.loads(data)()


def test_objects_of_this_process_cannot_be_sent() -> None:
    with pytest.raises(SettingError) as refused:
        SentFusion.of(fusion())
    words = "this fusion cannot be sent to another process: draft is a ScriptedProvider, which was not made of a URL"
    assert str(refused.value).startswith(words)


def test_a_settings_file_can_be_pickled(tmp_path: Path) -> None:
    path = tmp_path / "fusion.json"
    path.write_text('{"draft": "http://a", "assistants": ["http://b"], "verifier": {"kind": "diff", "tau": 0.5}}')
    found = FusionConfig.load(path)
    again = pickle.loads(pickle.dumps(found))
    assert again.document() == found.document() and again.verifier == found.verifier
