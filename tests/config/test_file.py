"""Settings files of fusions: what is saved is loaded, keys stay outside, and faults are named by line and field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cosd_api import (
    AgreementVerifier,
    Average,
    CoLLMVerifier,
    CoolFusion,
    CoSD,
    Defer,
    DiffVerifier,
    Fusion,
    FusionConfig,
    MatchVerifier,
    RandomVerifier,
    RuleVerifier,
    SettingError,
    Speculative,
    SurpriseVerifier,
    TreeVerifier,
    connect,
)
from cosd_api.config.document import read_document
from cosd_api.config.shape import is_trained, method_hints
from cosd_api.extend import Method
from cosd_api.methods.base import METHODS, method_class, method_named
from cosd_providers import Limits
from cosd_providers.testing import ScriptedProvider
from naive.defer import gate
from support.drawn import costly, partly
from support.method_files import AdaFuse

URLS: dict[str, Any] = {"draft": "http://gpu1:8080", "assistant": "http://gpu2:8080"}
TREE = TreeVerifier.model_validate({"nodes": [{"value": 1}]})
HEAD = "draft: http://gpu1:8080\nassistants: [http://gpu2:8080]\n"


STATES = CoLLMVerifier(width=2, bias=0.5, weights=(1.5, -2.0), eta=0.25)


def example(name: str) -> Method:
    """A method with its defaults; a trained part is some gate."""
    hints = method_hints(method_class(name))
    options: dict[str, Any] = {one: gate(eta=0.25, top=-1.5) for one, hint in hints.items() if is_trained(hint)}
    options |= {"temperature": 1} if name == "speculative" else {}
    return method_named(name, **options)


def again(fusion: Fusion, folder: Path, name: str = "fusion.yaml") -> Fusion:
    fusion.save(folder / name)
    VALIDATOR.validate(read_document(folder / name).value)
    return Fusion.load(folder / name)


VALIDATOR = jsonschema.Draft202012Validator(FusionConfig.model_json_schema())
NUMBERS = st.floats(0, 1)
OTHERS = st.one_of(
    st.builds(
        CoSD,
        verifier=st.builds(RuleVerifier, alpha=NUMBERS, beta=st.floats(0, 1e300)),
        unit=st.sampled_from(["token", "word", "literal", None]),
    ),
    st.builds(CoSD, verifier=st.builds(DiffVerifier, tau=NUMBERS)),
    st.builds(
        AdaFuse, margin=NUMBERS, words=st.integers(1, 5), normalisation=st.sampled_from(["token", "byte", "sum"])
    ),
    st.builds(Average, weights=st.tuples(st.floats(0.1, 9), NUMBERS) | st.just("route"), ahead=st.integers(1, 99)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings")


# ------------------------------------------------------------------------------------------------------------ and back


@pytest.mark.parametrize("name", partly(sorted(METHODS), 4))
def test_every_method_comes_back(name: str, folder: Path) -> None:
    for file in ("fusion.yaml", "fusion.json"):
        fusion = Fusion(**URLS, method=example(name))
        assert again(fusion, folder, file).settings == fusion.settings


def test_a_gate_of_either_kind_comes_back(folder: Path) -> None:
    fusion = Fusion(**URLS, method=Defer(gate=STATES))
    assert again(fusion, folder).settings == fusion.settings


@pytest.mark.parametrize(
    "verifier",
    [
        RuleVerifier(alpha=1, beta=3),
        AgreementVerifier(alpha=0.3),
        DiffVerifier(tau=0.1),
        MatchVerifier(),
        RandomVerifier(rate=0.2, seed=7),
        SurpriseVerifier(gamma=0.2, window=3),
        TREE,
        gate(eta=0.25),
        STATES,
    ],
    ids=lambda one: str(one.kind),
)
def test_every_verifier_comes_back(verifier: Any, folder: Path) -> None:
    fusion = Fusion(**URLS, verifier=verifier, unit="token")
    assert again(fusion, folder).settings == fusion.settings


@pytest.mark.extended
@costly(30)
@given(OTHERS)
def test_settings_of_methods_come_back(folder: Path, method: Method) -> None:
    fusion = Fusion(**URLS, method=method)
    assert again(fusion, folder).settings == fusion.settings


def test_an_infinite_bound_comes_back(folder: Path) -> None:
    fusion = Fusion(**URLS, verifier=RuleVerifier(beta=float("inf")))
    for name in ("fusion.yaml", "fusion.json"):
        fusion.save(folder / name)
        assert Fusion.load(folder / name).settings == fusion.settings


def test_all_else_comes_back(folder: Path) -> None:
    fusion = Fusion(
        **URLS,
        unit="token",
        tie=0.05,
        ask="all",
        on_assistant_error="draft",
        on_special_tokens="refuse",
        max_ahead=2,
    )
    fusion.limits = {"max_tokens": 9, "stop": "\n", "timeout": 2.5, "max_billed_tokens": 100, "on_budget": "end"}
    found = again(fusion, folder)
    assert (found.settings, found.limits) == (fusion.settings, fusion.limits)
    fusion = Fusion(**URLS, method=Average(weights=(2, 1), temperature=1))
    assert again(fusion, folder).settings == fusion.settings
    for method in (CoSD(temperature=1, unit="token"), Speculative(temperature=1, listed=5)):
        fusion = Fusion(**URLS, method=method, unit="token", draft_length=4)
        assert again(fusion, folder).settings == fusion.settings


def test_servers_come_back(folder: Path) -> None:
    (folder / "chat.jinja").write_text("{{ messages }}")
    draft = connect(
        "http://gpu1:8080/v1", engine="openai", model="m", api="completions", context=512, timeout=3,
        extra_body={"a": [1]}, limits=Limits(concurrency=2), chat_template=folder / "chat.jinja",
    )  # fmt: skip
    fusion = Fusion(draft=draft, assistant=["http://gpu2:8080", connect("http://gpu3:8080", model="other")])
    found = again(fusion, folder)
    text = (folder / "fusion.yaml").read_text()
    assert "  chat_template: chat.jinja\n" in text and "  - url: http://gpu3:8080\n    model: other\n" in text
    assert found.endpoints.draft.name == draft.name
    found.save(folder / "again.yaml")
    assert (folder / "again.yaml").read_text() == text


def test_a_template_given_as_text_comes_back(tmp_path: Path) -> None:
    text = "Basic conversation:\n{% for one in messages %}{{ one.content }}{% endfor %}"
    fusion = Fusion(draft=connect("http://gpu1:8080", chat_template=text), assistant="http://gpu2:8080")
    again(fusion, tmp_path)
    config = FusionConfig.load(tmp_path / "fusion.yaml")
    assert config.draft is not None and config.draft.chat_template == text
    config.save(tmp_path / "again.json")
    assert FusionConfig.load(tmp_path / "again.json") == config


def test_a_folder_with_links_can_be_moved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "shared.json").symlink_to(tmp_path / "real" / "fusion.tree.json")
    Fusion(**URLS, verifier=TREE).save(tmp_path / "link" / "fusion.yaml")
    assert "  file: fusion.tree.json\n" in (tmp_path / "real" / "fusion.yaml").read_text()
    (tmp_path / "real" / "by_link.yaml").write_text(HEAD + "verifier: {kind: tree, file: shared.json}\n")
    for come, gone in (("link", "real"), ("real", "link")):
        FusionConfig.load(tmp_path / come / "by_link.yaml").save(tmp_path / gone / "by_link.yaml")
        assert "  file: shared.json\n" in (tmp_path / "real" / "by_link.yaml").read_text()
    moved = (tmp_path / "real").rename(tmp_path / "moved")
    assert Fusion.load(moved / "fusion.yaml").settings.verifier == TREE


def test_an_empty_field_has_its_default(tmp_path: Path) -> None:
    empty = "verifier:\nlimits:\nmethod:\nask:\nunit:\n"
    (tmp_path / "fusion.yaml").write_text(HEAD + empty)
    assert Fusion.load(tmp_path / "fusion.yaml").settings == Fusion(**URLS).settings


def test_trained_parts_are_files_beside_it(tmp_path: Path) -> None:
    Fusion(**URLS, method=example("defer")).save(tmp_path / "pair.yaml")
    Fusion(**URLS, verifier=TREE).save(tmp_path / "other.yaml")
    Fusion(**URLS, verifier=STATES, unit="token").save(tmp_path / "states.yaml")
    files = {"pair.yaml", "pair.gate.json", "other.yaml", "other.tree.json", "states.yaml", "states.co-llm.json"}
    assert {one.name for one in tmp_path.iterdir()} == files
    assert "  gate: pair.gate.json\n" in (tmp_path / "pair.yaml").read_text()
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert Fusion.load(moved / "other.yaml").settings.verifier == TREE
    assert Fusion.load(moved / "states.yaml").settings.verifier == STATES


def test_a_comment_stands_above_it(tmp_path: Path) -> None:
    Fusion(**URLS).save(tmp_path / "fusion.yaml", comment="Two lines\n\nof words")
    assert (tmp_path / "fusion.yaml").read_text().startswith("# Two lines\n#\n# of words\nschema_version: 1\ndraft:")


# ---------------------------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize(
    "line",
    [
        "api_key: abc-secret",
        "key: abc-secret",
        "model: sk-aaaaaaaaaaaa-secret",
        "extra_body: {Authorization: Bearer-secret}",
        "api_key_env: sk-aaa-secret",
    ],
)
def test_a_key_is_refused_and_not_shown(line: str, tmp_path: Path) -> None:
    path = tmp_path / "fusion.yaml"
    path.write_text(f"assistants: [http://b]\ndraft:\n  url: http://a\n  {line}\n")
    with pytest.raises(SettingError) as caught:
        Fusion.load(path)
    words = str(caught.value)
    assert "secret" not in words and "line 4: draft." in words
    assert "keys are never kept in a settings file" in words or "the name of an environment variable" in words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("draft: http://me:secret@a\nassistants: [http://b]", "the URL holds credentials"),
        ("draft: {url: http://a, headers: {X: secret}}\nassistants: [http://b]", "headers may hold keys"),
        ("draft: http://a\nassistants: [{url: 'http://me:secret@a'}]", "the URL holds credentials"),
        ("draft: http://a\nassistants: ['http://me:secret@a']", "credentials"),
    ],
)
def test_other_places_of_keys(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "fusion.yaml").write_text(text)
    with pytest.raises(SettingError, match=words) as caught:
        Fusion.load(tmp_path / "fusion.yaml")
    assert "secret" not in str(caught.value)


def test_a_key_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fusion.yaml"
    path.write_text("draft: {url: http://a, api_key_env: MY_KEY}\nassistants: [http://b]\n")
    words = "draft: the environment variable MY_KEY, which should contain its key, is not set. Set it, or leave out"
    with pytest.raises(SettingError, match=words):
        Fusion.load(path)
    monkeypatch.setenv("MY_KEY", "abc-secret")
    Fusion.load(path).save(tmp_path / "again.yaml")
    text = (tmp_path / "again.yaml").read_text()
    assert "api_key_env: MY_KEY" in text and "secret" not in text


@pytest.mark.parametrize(
    "body",
    [
        {"api_key": "abc-secret"},
        {"metadata": [{"token": "abc-secret"}]},
        {"provider": {"openai_api_key": "abc-secret"}},
        {"x": "sk-aaaaaaaaaaaa-secret"},
        {"x": "Bearer abc-secret"},
        {"proxy": "http://me:secret@host:1"},
        {"headers": {"X": "secret"}},
    ],
)
def test_a_key_that_a_request_carries_is_not_saved(body: dict[str, Any], tmp_path: Path) -> None:
    url = {"url": "http://a", "extra_body": body}
    config = FusionConfig.model_validate({"draft": url, "assistants": ["http://b"]})
    fusion = Fusion(draft=connect("http://a", extra_body=body), assistant="http://b", method=example("defer"))
    for save in (fusion.save, config.save):
        with pytest.raises(SettingError, match=r"fusion\.yaml: draft\.extra_body\.") as caught:
            save(tmp_path / "fusion.yaml")
        assert "secret" not in str(caught.value)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("url", ["http://me:secret@b:1", "me:secret@b", "http://b?key=secret"])
def test_a_key_in_a_url_is_refused_before_it_can_be_shown(url: str, tmp_path: Path) -> None:
    (tmp_path / "fusion.yaml").write_text(f"draft: http://a\nassistants:\n  - {url}\n")
    with pytest.raises(SettingError, match="keys are never kept in a settings file") as caught:
        FusionConfig.load(tmp_path / "fusion.yaml")
    assert "secret" not in str(caught.value) and r"line 3: assistants[0]" in str(caught.value)
    with pytest.raises(ValidationError) as refused:
        FusionConfig.model_validate({"draft": {"url": url}, "assistants": ["http://b"]})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("stop", ["Token predictions", "Basic arithmetic", "http://a@"])
def test_text_that_ends_an_answer_is_no_key(stop: str, tmp_path: Path) -> None:
    fusion = Fusion(**URLS)
    fusion.limits = {"stop": [stop]}
    assert again(fusion, tmp_path).limits == {"stop": [stop]}


def test_keys_are_not_saved(tmp_path: Path) -> None:
    Fusion(draft=connect("http://a", api_key="abc-secret"), assistant="http://b").save(tmp_path / "fusion.yaml")
    assert "secret" not in (tmp_path / "fusion.yaml").read_text()


# -------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- 1", "holds no fields; a settings file begins with draft: and assistants:"),
        ("", "holds no fields"),
        ("schema_version: 2\n" + HEAD, "line 1: schema_version: this version of cosd-api reads 1: update cosd-api"),
        ("draft: http://a", "line 1: it needs draft and assistants, or models"),
        (HEAD + "models: [http://a, http://b]", "give either models, or draft and assistants"),
        (HEAD + "asistant: http://b", "line 3: asistant: there is no such field; did you mean 'assistants'?"),
        (
            "draft: {url: http://a, modl: x}\nassistants: [http://b]",
            "line 1: draft.modl: there is no such field; did you",
        ),
        ("draft: {model: x}\nassistants: [http://b]", "line 1: draft: its 'url' is missing"),
        ("draft: a\nassistants: [http://b]", "draft: 'a' is not a URL; did you mean 'http://a'?"),
        (
            "draft: {url: http://a, strategy: list}\nassistants: [http://b]",
            "draft: 'strategy' is an option of some engines",
        ),
        (HEAD + "method: coool", "line 3: method: there is no method 'coool'; did you mean 'cool'?"),
        (HEAD + "method: zzz", "there is no method 'zzz'; there are cosd, rerank"),
        (HEAD + "method: {align: true}", "line 3: method: it needs a name: cosd, rerank"),
        (HEAD + "method: defer", "line 3: method: its 'gate' is missing"),
        (
            HEAD + "method: {name: defer, gate: no.json}",
            "no.json cannot be read: No such file or directory. Paths are rel",
        ),
        (
            HEAD + "method:\n  name: cool\n  normalisation: bits",
            "line 5: method.normalisation: input should be 'token'",
        ),
        (
            HEAD + "method:\n  name: cool\n  alin: true",
            "line 5: method.alin: there is no such field; did you mean 'align'?",
        ),
        (HEAD + "method: {name: average, ahead: 0}", "line 3: method: ahead must be a whole number"),
        (HEAD + "verifier: treee", "line 3: verifier: there is no verifier 'treee'; did you mean 'tree'?"),
        (HEAD + "verifier: {alpha: 1}", "line 3: verifier: it needs a kind: rule, agreement"),
        (
            HEAD + "verifier:\n  kind: rule\n  alpha: -1",
            "line 5: verifier.alpha: input should be greater than or equal to 0",
        ),
        (HEAD + "verifier: {kind: tree, file: fusion.yaml}", "line 3: verifier: "),
        (HEAD + "max_ahead: -1", "line 3: max_ahead must be a whole number of at least 1, not -1"),
        (HEAD + "limits:\n  max_tokens: 0", "line 3: limits: max_tokens must be a whole number of at least 1, not 0"),
        (HEAD + "limits: {max_token: 1}", "limits.max_token: there is no such field; did you mean 'max_tokens'?"),
        (HEAD + "max_aheads: 1", "max_aheads: there is no such field; did you mean 'max_ahead'?"),
        (HEAD + "method: cool\nunit: token", "line 4: unit means nothing to the method 'cool'"),
        (HEAD + 'max_ahead: "1"', "line 3: max_ahead: it must be a number, without quotes"),
        (HEAD + "limits: {max_tokens: true}", "line 3: limits.max_tokens: it must be a number, not true or false"),
        (
            HEAD + "limits: {stop: [x]}\nmethod: {name: cool, align: 1}",
            "line 4: method.align: it must be true or false",
        ),
        (HEAD + "method: {name: safe, weights: [1, '2']}", "line 3: method.weights[1]: it must be a number, without"),
        (HEAD + "verifier: {kind: rule, alpha: '1'}", "line 3: verifier.alpha: it must be a number, without quotes"),
        (HEAD + "schema_version: true", "line 3: schema_version: "),
        (HEAD + "limits: {seed: 1}", "seed is not accepted: the method 'cosd' draws nothing"),
    ],
)
def test_faults_are_named_by_line_and_field(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "fusion.yaml"
    path.write_text(text)
    with pytest.raises(SettingError, match=re.escape(words)):
        Fusion.load(path)


def test_several_faults_at_once(tmp_path: Path) -> None:
    path = tmp_path / "fusion.yaml"
    path.write_text(HEAD + "".join(f"field{number}: 1\n" for number in range(7)))
    with pytest.raises(SettingError) as caught:
        Fusion.load(path)
    first, *_, last = str(caught.value).splitlines()
    assert first.startswith(f"{path}, line 3: field0: ") and last == "and 2 more"


def test_values_of_other_types_are_faults_like_others(tmp_path: Path) -> None:
    path = tmp_path / "fusion.yaml"
    path.write_text(HEAD + 'tie: true\nmax_ahead: "1"\nlimts: {}\n')
    with pytest.raises(SettingError) as caught:
        Fusion.load(path)
    assert [line.split(", ", 1)[1] for line in str(caught.value).splitlines()] == [
        "line 3: tie: it must be a number, not true or false",
        "line 4: max_ahead: it must be a number, without quotes",
        "line 5: limts: there is no such field; did you mean 'limits'?",
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"draft": ScriptedProvider.from_texts({})},
            "draft is a ScriptedProvider, which was not created from a URL by connect",
        ),
        ({"verifier": type("Own", (AgreementVerifier,), {})()}, "the verifier is a Own of your own"),
        ({"draft": connect("http://a", chat_template=lambda _: "")}, "chat_template of draft is a function, which"),
    ],
)
def test_what_a_file_cannot_hold_is_refused(settings: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=re.escape(words)):
        Fusion(**URLS | settings).save(tmp_path / "fusion.yaml")
    assert not [*tmp_path.iterdir()]


# ----------------------------------------------------------------------------------------------------------- overrides


def test_overrides_stand_in_place_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "fusion.yaml"
    path.write_text(HEAD + "verifier: {kind: rule, alpha: 1}\nunit: word\nmax_ahead: 1\nlimits: {max_tokens: 9}\n")
    other = ScriptedProvider.from_texts({}, name="other")
    found = Fusion.load(path, draft=other, verifier=AgreementVerifier(), max_tokens=3, stop="\n")
    assert found.endpoints.draft is other and found.limits == {"max_tokens": 3, "stop": "\n"}
    assert found.settings.method == CoSD(verifier=AgreementVerifier(), unit="word")
    assert Fusion.load(path, method="cool").settings.method == CoolFusion()
    assert Fusion.load(path, method=CoSD()).settings == Fusion(**URLS, max_ahead=1).settings
    both = Fusion.load(path, models=[other, ScriptedProvider.from_texts({}, name="b")], method="cool")
    assert both.endpoints.draft is other
    with pytest.raises(TypeError, match=r"unknown argument 'verifer'; did you mean 'verifier'\?"):
        Fusion.load(path, verifer=1)


def test_no_key_is_needed_for_a_server_that_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "fusion.yaml"
    path.write_text("draft: {url: http://a, api_key_env: NOT_SET}\nassistants: [http://b]\n")
    assert Fusion.load(path, draft="http://c").endpoints.draft.name == "c"
    path.write_text("draft: http://a\nassistants: [{url: http://b, api_key_env: NOT_SET}]\n")
    assert Fusion.load(path, assistant="http://c").endpoints.assistants[0].name == "c"
    with pytest.raises(SettingError, match="NOT_SET"):
        Fusion.load(path, draft="http://c")


def test_one_of_several_equal_models_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "fusion.yaml"
    path.write_text("models: [{url: http://a, api_key_env: NOT_SET}, http://b, http://c]\nmethod: cool\n")
    models = Fusion.load(path, draft="http://d").endpoints
    assert [one.name for one in (models.draft, *models.assistants)] == ["d", "b", "c"]
    path.write_text("models: [http://a, {url: http://b, api_key_env: NOT_SET}]\nmethod: cool\n")
    models = Fusion.load(path, assistant=["http://d", "http://e"]).endpoints
    assert [one.name for one in (models.draft, *models.assistants)] == ["a", "d", "e"]


def test_models_of_equals(tmp_path: Path) -> None:
    path = tmp_path / "fusion.yaml"
    path.write_text("models: [http://a, http://b, http://c]\nmethod: cool\n")
    assert len(Fusion.load(path).endpoints.assistants) == 2
    config = FusionConfig.load(path)
    config.save(tmp_path / "again.yaml")
    assert FusionConfig.load(tmp_path / "again.yaml") == config
    with pytest.raises(SettingError, match="models is for methods in which all models are equal"):
        Fusion.load(path, method="cosd")


async def test_limits_of_the_file_hold_for_every_answer(tmp_path: Path) -> None:
    path = tmp_path / "fusion.yaml"
    path.write_text(HEAD + "limits: {max_tokens: 2, stop: [x]}\n")
    texts = {"Q": [" a", " b", " c"]}
    draft, other = (ScriptedProvider.from_texts(texts, name=name) for name in ("draft", "other"))
    async with Fusion.load(path, draft=draft, assistant=other) as fusion:
        assert (await fusion.generate("Q")).text == " a b"
        assert (await fusion.generate("Q", max_tokens=1)).text == " a"
        assert [one.text async for one in fusion.map(["Q"])] == [" a b"]
        result = await fusion.generate("Q", stop=" b")
        assert (result.text, result.settings.max_tokens) == (" a", 2)
