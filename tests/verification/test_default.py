"""The default rule is one, wherever a fusion comes from, and the paper's is one name away from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cosd_api import CoSD, Fusion, FusionResult, RuleVerifier, fuse
from cosd_api.methods.base import method_named
from cosd_api.settings import FusionSettings, Settings
from cosd_api.verification import default_of
from cosd_providers.testing import ScriptedProvider
from fakes.commands import cosd
from toys import lima

SERVERS: dict[str, Any] = {"draft": "http://a", "assistant": "http://b"}


@pytest.mark.parametrize(
    "made",
    [
        lambda: CoSD().verifier,
        lambda: default_of("rule"),
        lambda: method_named("cosd").judge,
        lambda: FusionSettings().verifier,
        lambda: Fusion(**SERVERS).settings.verifier,
        lambda: Fusion(**SERVERS, method="cosd", verifier=None).settings.verifier,
        lambda: Fusion(**SERVERS, method=CoSD()).settings.verifier,
    ],
)
def test_it_is_one(made: Callable[[], object]) -> None:
    assert made() == RuleVerifier() != RuleVerifier.paper()


async def test_fuse_decides_by_it() -> None:
    script: dict[str, list[Any]] = {"Q:": [(" Rome", 0.7), "."], "Q: Lima": ["."]}
    models: dict[str, Any] = {
        "draft": ScriptedProvider.from_texts(script),
        "assistant": ScriptedProvider.from_texts({"Q:": [" Lima"]}),
    }
    result = await fuse("Q:", **models)
    assert (result.text, result.settings.verifier) == (" Lima.", RuleVerifier())
    paper = await fuse("Q:", **models, verifier=RuleVerifier.paper())
    assert (paper.text, paper.settings.verifier) == (" Rome.", RuleVerifier(alpha=0.5, beta=0.5))
    less = {**models, "assistant": ScriptedProvider.from_texts({"Q:": [(" Lima", 0.6)]})}
    assert (await fuse("Q:", **less)).text == " Rome."  # the draft's guess is the better one


@pytest.mark.parametrize(
    ("lines", "verifier"),
    [
        ([], RuleVerifier()),
        (["verifier: rule"], RuleVerifier()),
        (["verifier: {kind: rule}"], RuleVerifier()),
        (["verifier: {kind: rule, alpha: 1}"], RuleVerifier(alpha=1, beta=1)),
        (["verifier:", "  kind: rule", "  alpha: 0.5", "  beta: 0.5"], RuleVerifier.paper()),
    ],
)
def test_a_settings_file(tmp_path: Path, lines: Sequence[str], verifier: RuleVerifier) -> None:
    path = tmp_path / "fusion.yaml"
    path.write_text("\n".join(["draft: http://a", "assistants: [http://b]", *lines]), encoding="utf-8")
    assert Fusion.load(path).settings.verifier == verifier
    Fusion.load(path).save(tmp_path / "again.yaml")
    assert "alpha: " in (tmp_path / "again.yaml").read_text(encoding="utf-8")  # a later default does not change it
    assert Fusion.load(tmp_path / "again.yaml").settings.verifier == verifier


@pytest.mark.parametrize(
    ("options", "verifier"),
    [
        ((), RuleVerifier()),
        (("--verifier", "rule"), RuleVerifier()),
        (("--alpha", "0.5", "--beta", "0.5"), RuleVerifier.paper()),
    ],
)
def test_the_command_line(monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], verifier: RuleVerifier) -> None:
    models = {"http://a": lima.draft(), "http://b": lima.assistant()}
    monkeypatch.setattr("cosd_api.apps.cli.options.connect", lambda url, **_: models[url])
    done = cosd("fuse", "Q:", "--draft", "http://a", "--assistant", "http://b", "--json", *options)
    assert done.exit_code == 0, done.stderr
    assert FusionResult.model_validate_json(done.stdout).settings.verifier == verifier


async def test_a_record_has_its_numbers_whatever_the_default_is() -> None:
    result = await fuse("Q:", draft=lima.draft(), assistant=lima.assistant(), verifier=RuleVerifier.paper())
    kept = result.settings.model_dump_json(exclude_defaults=False)
    assert '"verifier":{"kind":"rule","alpha":0.5,"beta":0.5}' in kept
    assert Settings.model_validate_json(kept).verifier == RuleVerifier.paper()
