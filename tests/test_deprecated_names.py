"""Names that end with release 0.2: each still works, with a warning of what to write instead; records are just read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import cosd_api
from cosd_api import (
    AgreementVerifier,
    CoLLMVerifier,
    CoolFusion,
    CoSD,
    Defer,
    DiffVerifier,
    Example,
    Fusion,
    FusionConfig,
    Samples,
    SettingError,
    Trace,
    fuse,
    train_deferral,
)
from cosd_api.comparison.contestants import contestants_of, method_of
from cosd_api.extend import Method
from cosd_api.forcing.samples import DeferralSample, ExampleSamples, state_in_text
from cosd_api.integrations.arguments import FusionArguments
from cosd_api.integrations.langchain import ChatCoSD
from cosd_api.methods.base import method_from_text, method_named
from cosd_api.methods.words import unicode_words
from cosd_api.training import DeferralTraining
from cosd_providers.testing import ScriptedProvider

URLS: dict[str, Any] = {"draft": "http://a", "assistant": "http://b"}
SERVERS: dict[str, Any] = {"draft": "http://a", "assistants": ["http://b"]}
STATES = CoLLMVerifier(width=2, bias=0.5, weights=(1.5, -2.0), eta=0.25)
FORMER: list[tuple[str, dict[str, Any], Method, str]] = [
    (
        "cool-align",
        {"normalisation": "byte"},
        CoolFusion(align=True, normalisation="byte"),
        "'cool' with align=True (CoolFusion(align=True), --method cool --set align=true)",
    ),
    (
        "cool+rerank",
        {"normalisation": "byte"},
        CoolFusion(rerank=True, normalisation="byte"),
        "'cool' with rerank=True (CoolFusion(rerank=True), --method cool --set rerank=true)",
    ),
    ("co-llm", {"gate": STATES}, Defer(gate=STATES), "'defer' (Defer(gate=...), --method defer --set gate=FILE)"),
]


def ends(old: str, new: str) -> Any:
    """The warning of a name, at a line of this file."""
    return pytest.warns(
        DeprecationWarning, match=f"^{re.escape(f'{old} is {new} now; the old name ends with release 0.2')}$"
    )


def here(told: Any) -> bool:
    return {one.filename for one in told} == {__file__}


@pytest.mark.parametrize(
    ("old", "options", "method", "new"), FORMER, ids=lambda one: one if isinstance(one, str) else ""
)
def test_a_method_by_a_name_that_it_had(
    old: str, options: dict[str, Any], method: Method, new: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate.json"
    STATES.save(gate)
    written = {name: str(gate) if name == "gate" else value for name, value in options.items()}
    (tmp_path / "fusion.json").write_text(json.dumps({**SERVERS, "method": {"name": old, **written}}))
    kept = options if old != "co-llm" else {"gate": STATES.model_dump(mode="json")}
    ways: list[Callable[[], object]] = [
        lambda: method_named(old, **options),
        lambda: method_from_text(old, written),
        lambda: Fusion.load(tmp_path / "fusion.json").settings.method,
        lambda: Fusion.load(FusionConfig.load(tmp_path / "fusion.json")).settings.method,
        lambda: FusionArguments.read({**URLS, "method": old, **written}).fusion.settings.method,
        lambda: ChatCoSD.model_validate({**URLS, "method": {"name": old, **kept}}).method,
    ]
    for way in ways:
        with ends(f"the method {old!r}", new) as told:
            assert way() == method
        assert here(told)


@pytest.mark.parametrize(
    ("old", "method"), [("cool-align", CoolFusion(align=True)), ("cool+rerank", CoolFusion(rerank=True))]
)
async def test_its_settings_are_recorded_by_the_name_that_it_has(old: str, method: Method, tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match=re.escape(old)) as told:
        fusion = Fusion(**URLS, method=old)
    assert (fusion.settings.method, here(told)) == (method, True)
    fusion.save(tmp_path / "fusion.json")
    assert json.loads((tmp_path / "fusion.json").read_text())["method"]["name"] == "cool"
    text = json.dumps({**SERVERS, "method": old})
    (tmp_path / "former.json").write_text(text)
    with pytest.warns(DeprecationWarning, match=re.escape(old)):
        assert Fusion.load(tmp_path / "former.json").settings == fusion.settings
    with pytest.warns(DeprecationWarning, match=re.escape(old)):
        assert Fusion.load(FusionConfig.model_validate(SERVERS), method=old).settings.method == method
    scripts = {"Q": [" a", "."], "Q a": ["."]}
    models = [ScriptedProvider.from_texts(scripts, words=unicode_words) for _ in range(2)]
    with pytest.warns(DeprecationWarning, match=re.escape(old)):
        result = await fuse("Q", models=models, method=old)
    assert (result.settings.method, result.settings.method_options) == ("cool", method.options())


def test_a_setting_of_such_a_method_is_checked() -> None:
    with (
        pytest.warns(DeprecationWarning, match="cool-align"),
        pytest.raises(SettingError, match="the method 'cool' has no setting 'x'"),
    ):
        method_named("cool-align", x=1)
    with (
        pytest.warns(DeprecationWarning, match="co-llm"),
        pytest.raises(SettingError, match="'co-llm' has no defaults: the method 'defer' needs a gate"),
    ):
        contestants_of(["co-llm"])
    with (
        pytest.warns(DeprecationWarning, match="co-llm"),
        pytest.raises(SettingError, match="the method 'defer' needs a gate"),
    ):
        Fusion(**URLS, method="co-llm")


# Chow's rule.


def test_chow_is_agreement() -> None:
    with ends("ChowVerifier(tau=0.25)", "AgreementVerifier(alpha=0.75)") as told:
        assert cosd_api.ChowVerifier(tau=0.25) == AgreementVerifier(alpha=0.75)  # type: ignore[attr-defined]
    assert here(told)
    with ends("ChowVerifier(tau=0.5)", "AgreementVerifier(alpha=0.5)"):
        assert cosd_api.ChowVerifier() == AgreementVerifier()  # type: ignore[attr-defined]
    for bad in (-0.1, 1.1, "x", None, float("nan")):
        with pytest.raises(ValueError, match="chow has one number, tau, between 0 and 1"):
            cosd_api.ChowVerifier(tau=bad)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("written", "alpha"), [("chow", 0.5), ({"kind": "chow"}, 0.5), ({"kind": "chow", "tau": 0.25}, 0.75)]
)
def test_chow_in_settings(written: Any, alpha: float, tmp_path: Path) -> None:
    path = tmp_path / "fusion.json"
    path.write_text(json.dumps({**SERVERS, "verifier": written}))
    fields = {"kind": written} if isinstance(written, str) else written
    ways: list[Callable[[], object]] = [
        lambda: Fusion.load(path).settings.verifier,
        lambda: FusionArguments.read({**URLS, "verifier": "chow", "tau": 1 - alpha}).fusion.settings.verifier,
        lambda: ChatCoSD.model_validate({**URLS, "verifier": fields}).verifier,
    ]
    for way in ways:
        new = f"'agreement' with alpha = 1 - tau, here {alpha},"
        with ends("the verifier 'chow'", new) as told:
            assert way() == AgreementVerifier(alpha=alpha)
        assert here(told)


def test_what_chow_cannot_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fusion.json"
    for fields in ({"tau": 2}, {"tau": "much"}, {"tau": 0.5, "alpha": 0.5}):
        written = {"kind": "chow", **fields}
        path.write_text(json.dumps({**SERVERS, "verifier": written}))
        with pytest.raises(SettingError, match="verifier: chow has one number, tau, between 0 and 1"):
            Fusion.load(path)
    with pytest.raises(SettingError, match="the verifier 'chow' is invalid: chow has one number, tau"):
        FusionArguments.read({**URLS, "verifier": "chow", "tau": 2})
    with pytest.raises(ValidationError, match="chow has one number, tau"):
        ChatCoSD.model_validate({**URLS, "verifier": {"kind": "chow", "tau": 2}})


def test_a_contestant_by_a_name_that_it_had() -> None:
    for methods in (["cosd-chow"], {"mine": "cosd-chow"}):
        with ends("the contestant 'cosd-chow'", "'cosd-agreement'") as told:
            found, _ = contestants_of(methods, both_ways=False)
        assert (found[0].method, here(told)) == (CoSD(verifier=AgreementVerifier()), True)
    assert [one.name for one in contestants_of([CoSD(verifier=AgreementVerifier())], both_ways=False)[0]] == [
        "cosd-agreement"
    ]


# Records are read without a word: a warning would be an error here.


async def test_a_trace_with_former_names_is_read(tmp_path: Path) -> None:
    draft = ScriptedProvider.from_texts({"Q": [(" a", 0.6), (" b", 0.2), "."], "Q c": ["."], "Q a c": ["."]})
    assistant = ScriptedProvider.from_texts({"Q": [" a", (" c", 0.3), "."], "Q a b": ["."]})
    result = await fuse("Q", draft=draft, assistant=assistant, verifier=AgreementVerifier(alpha=0.25))
    result.trace.save(tmp_path / "trace")
    lines = (tmp_path / "trace").read_text().splitlines()
    header = json.loads(lines[0])
    header["settings"]["verifier"] = {"kind": "chow", "tau": 0.75}
    header["settings"]["method"] = "cool-align"
    (tmp_path / "trace").write_text("\n".join([json.dumps(header), *lines[1:]]))
    found = Trace.load(tmp_path / "trace")
    assert found.result.replacements == 1
    assert found.result.settings.verifier == AgreementVerifier(alpha=0.25)
    assert found.replay() == result.text


def test_advice_with_former_names_is_read() -> None:
    chow = {"method": "cosd", "options": {}, "verifier": {"kind": "chow", "tau": 0.25}}
    assert method_of(chow) == CoSD(verifier=AgreementVerifier(alpha=0.75))
    diff = {"method": "cosd", "options": {}, "verifier": {"kind": "diff", "tau": 0.25}}
    assert method_of(diff) == CoSD(verifier=DiffVerifier(tau=0.25))
    assert method_of({"method": "co-llm", "options": Defer(gate=STATES).options()}) == Defer(gate=STATES)


# The gate of Co-LLM.


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("CoLLM", "cosd_api.Defer", Defer),
        ("CoLLMTraining", "cosd_api.training.DeferralTraining", DeferralTraining),
    ],
)
def test_a_class_by_a_name_that_it_had(old: str, new: str, found: type) -> None:
    with ends(f"cosd_api.{old}", new) as told:
        assert getattr(cosd_api, old) is found
    assert here(told)
    assert old not in cosd_api.__all__


def test_training_by_the_name_that_it_had() -> None:
    def place(start: int, handed: bool) -> DeferralSample:
        p, q = (0.1, 0.9) if handed else (0.9, 0.1)
        return DeferralSample(start, "a", (0.5,), p, q, handed, state_in_text([float(handed), 1.0]))

    example = ExampleSamples(
        example=Example(prompt="Q", answer=" a"),
        samples=(),
        deferral=(place(0, True), place(1, False)),
        deferral_skipped=0,
    )
    samples = Samples(examples=(example,), unit="token", hidden_states=2)
    with ends("train_co_llm(samples)", "train_deferral(samples, hidden_states=True)") as told:
        found = cosd_api.train_co_llm(samples, folds=3, seed=1)  # type: ignore[attr-defined]
    assert here(told)
    assert found == train_deferral(samples, hidden_states=True, folds=3, seed=1)
