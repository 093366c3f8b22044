"""Arguments of evaluation tools, read as a fusion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cosd_api import (
    Average,
    ChowVerifier,
    CoSD,
    Fusion,
    MatchVerifier,
    RandomVerifier,
    RuleVerifier,
    SettingError,
    TreeVerifier,
    Tuning,
)
from cosd_api.integrations.arguments import FusionArguments
from cosd_providers import connect

SERVERS = {"draft": "http://gpu1:8080", "assistant": "http://gpu2:8080"}


def names(found: FusionArguments) -> list[str]:
    endpoints = found.fusion.endpoints
    return [one.name for one in (endpoints.draft, *endpoints.assistants)]


def read(**given: Any) -> FusionArguments:
    return FusionArguments.read({**SERVERS, **given})


def test_servers_are_urls_or_providers_with_their_models(monkeypatch: pytest.MonkeyPatch) -> None:
    made = connect("http://gpu3:8080")
    found = read(assistant=["http://gpu2:8080", made], assistant_model=["large", None], draft_model="small")
    assert found.fusion.endpoints.assistants[1] is made
    assert names(found) == [
        "small@gpu1:8080",
        "large@gpu2:8080",
        "gpu3:8080",
    ]
    found = read(draft_model=405, assistant=["http://gpu2:8080", "http://gpu3:8080"], assistant_model=[7, "b"])
    assert names(found) == ["405@gpu1:8080", "7@gpu2:8080", "b@gpu3:8080"]  # the harness reads digits as a number
    monkeypatch.setenv("COSD_DRAFT_URL", "http://gpu4:8080")
    monkeypatch.setenv("COSD_ASSISTANT_URL", "http://gpu5:8080 http://gpu6:8080")
    found = FusionArguments.read({"draft": None})
    assert names(found) == [
        "gpu4:8080",
        "gpu5:8080",
        "gpu6:8080",
    ]


def test_settings_of_the_verifier_and_of_the_method() -> None:
    assert read().fusion.settings.method == CoSD()
    assert read(alpha=0.6, beta=1).fusion.settings.verifier == RuleVerifier(alpha=0.6, beta=1)
    assert read(verifier="chow", tau=0.1).fusion.settings.verifier == ChowVerifier(tau=0.1)
    assert read(verifier="random", rate=0.2, seed=3).fusion.settings.verifier == RandomVerifier(rate=0.2, seed=3)
    assert read(verifier=RuleVerifier(alpha=0)).fusion.settings.verifier == RuleVerifier(alpha=0)
    found = read(method="average", weights=[2, 1], unit=None, temperature=1, seed=4)
    method = found.fusion.settings.method
    assert isinstance(method, Average)
    assert (method.weights, method.temperature, found.limits) == ((2, 1), 1, {"seed": 4})
    assert read(verifier="match", unit="token").fusion.settings.verifier == MatchVerifier()
    assert read(method=Average()).fusion.settings.method == Average()
    found = read(method="cosd", unit="token", tuning={"hedge": 1}, timeout=5, max_billed_tokens=100)
    assert found.fusion.settings.tuning == Tuning(hedge=1)
    assert found.fusion.settings.unit == "token"
    assert found.limits == {"timeout": 5, "max_billed_tokens": 100}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"draft": None}, "there is no draft: give draft=URL, or set COSD_DRAFT_URL"),
        ({"assistant": ""}, "there is no assistant: give assistant=URL, or set COSD_ASSISTANT_URL"),
        ({"draft": ["http://gpu1:8080"] * 2}, "draft is one server: the others are assistants"),
        ({"assistant_model": ["a", "b"]}, "assistant_model names 2 models for 1 servers: give one for each"),
        ({"max_tokens": 5}, "max_tokens is the task's own, for each answer. Leave it out"),
        ({"stop": "a"}, "stop is the task's own"),
        ({"alhpa": 0.5}, "there is no argument 'alhpa'; did you mean 'alpha'?"),
        ({"tau": 0.5}, "there is no argument 'tau': the verifier 'rule' does not take it"),
        ({"alpha": "much"}, "the verifier 'rule' is invalid: alpha: Input should be a valid number"),
        ({"verifier": "rules"}, "the verifier 'rules' is invalid: Input tag 'rules'"),
        ({"verifier": RuleVerifier(), "alpha": 1}, "alpha: the given verifier has its own settings. Leave them out"),
        ({"method": Average(), "weights": 1}, "weights: the given method has its own settings. Leave them out"),
        ({"method": "avarage"}, "there is no method 'avarage'; did you mean 'average'?"),
        ({"method": "average", "alpha": 1}, "the method 'average' has no setting 'alpha'"),
    ],
)
def test_what_is_invalid_is_refused_in_words(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError) as caught:
        read(**given)
    assert words in str(caught.value)


def test_a_tree_is_read_from_its_file(tmp_path: Path) -> None:
    tree = TreeVerifier.model_validate({"nodes": [{"value": 1}]})
    tree.save(tmp_path / "tree.json")
    for given in ({}, {"verifier": "tree"}):
        assert read(tree=str(tmp_path / "tree.json"), **given).fusion.settings.verifier == tree


def test_a_settings_file_and_what_is_given_in_place_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pair.json"
    written = Fusion(**SERVERS, verifier=RuleVerifier(alpha=0.6), unit="token")  # type: ignore[arg-type]
    written.limits = {"timeout": 5, "max_tokens": 9, "max_requests": 7}
    written.save(path)
    monkeypatch.setenv("COSD_DRAFT_URL", "http://gpu4:8080")  # a file has its servers
    found = FusionArguments.read({"config": str(path)})
    assert names(found) == ["gpu1:8080", "gpu2:8080"]
    assert (found.fusion.settings.verifier, found.fusion.settings.unit) == (RuleVerifier(alpha=0.6), "token")
    assert found.limits == {"timeout": 5, "max_requests": 7}  # the length is the task's
    found = FusionArguments.read({"config": str(path), "assistant": "http://gpu3:8080", "alpha": 0.9, "timeout": 1})
    assert names(found) == ["gpu1:8080", "gpu3:8080"]
    assert (found.fusion.settings.verifier, found.limits["timeout"]) == (RuleVerifier(alpha=0.9), 1)
    with pytest.raises(OSError, match="missing"):
        FusionArguments.read({"config": str(tmp_path / "missing.yaml")})
