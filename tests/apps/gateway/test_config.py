"""Settings files of the gateway: several fusions, keys by their variables, and faults with line and field."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from cosd_api import SettingError
from cosd_api.apps.gateway import ClientKey, GatewayConfig
from cosd_api.apps.gateway.config import keys_of

WHOLE = """\
schema_version: 1
fusions:
  small:
    draft: http://gpu1:8080
    assistants: [http://gpu2:8080]
    limits: {max_tokens: 100, stop: ["\\n\\n"]}
  trees/best:
    draft: {url: http://gpu1:8080, model: a, api_key_env: MY_KEY}
    assistants:
      - http://gpu2:8080
      - http://gpu3:8080
    method: cosd
    verifier: {kind: rule, alpha: 1}
keys:
  - {name: team-a, env: TEAM_A, concurrency: 4, billed_tokens_per_minute: 100000}
  - name: team-b
    env: TEAM_B
limits:
  max_tokens: 2000
cors: ["https://app.example.com"]
ignore: [temperature, top_p]
"""
KEY = "k" * 16


def loaded(tmp_path: Path, text: str, name: str = "fusion.yaml") -> GatewayConfig:
    path = tmp_path / name
    path.write_text(text)
    return GatewayConfig.load(path)


def test_several_fusions_keys_and_limits(tmp_path: Path) -> None:
    found = loaded(tmp_path, WHOLE)
    assert [*found.fusions] == ["small", "trees/best"]
    assert found.fusions["small"].answer_options() == {"max_tokens": 100, "stop": ["\n\n"]}
    assert [one.name for one in found.keys] == ["team-a", "team-b"]
    assert (found.limits.max_tokens, found.limits.concurrency, found.cors) == (2000, 256, ["https://app.example.com"])
    assert loaded(tmp_path, json.dumps(yaml.safe_load(WHOLE)), "fusion.json") == found


def test_the_settings_file_of_one_fusion_is_served_as_cosd(tmp_path: Path) -> None:
    for text in (
        "draft: http://gpu1:8080\nassistants: [http://gpu2:8080]\n",
        "models: [http://a, http://b]\nmethod: cool",
    ):
        assert [*loaded(tmp_path, text).fusions] == ["cosd"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("assistants: [http://gpu2:8080]", "asistants: [http://gpu2:8080]", "line 5: fusions.small.asistants: there"),
        ("alpha: 1", "alpha: -7", "line 13: fusions.trees/best.verifier.alpha: input should be greater than"),
        ("model: a,", "modle: a,", r"line 8: fusions.trees/best.draft.modle: .*did you mean 'model'"),
        ("method: cosd", "method: cozd", "line 12: fusions.trees/best.method: there is no method 'cozd'; did you mean"),
        ("  trees/best:", "  -trees:", "line 7: fusions.-trees: a model name has letters"),
        ("env: TEAM_B", "env: my-key", "line 17: keys[1].env: string should match"),
        ("env: TEAM_B", "enf: TEAM_B", "line 17: keys[1].enf: there is no such field; there are name, env"),
        ("name: team-b", "name: team-a", "line 16: keys[1].name: another key has this name"),
        ("env: TEAM_B", "concurrency: 3", "line 16: keys[1]: a key is in an environment variable"),
        ("env: TEAM_B", "env: A\n    file: b", "line 16: keys[1]: a key is in an environment variable"),
        ("concurrency: 4", "concurrency: 0", "line 15: keys[0].concurrency: input should be greater"),
        ("max_tokens: 2000", "max_token: 2000", "line 19: limits.max_token: there is no such field; did you mean 'max"),
        ("https://app.example.com", "*", "line 20: cors[0]: string should match"),
        ("schema_version: 1", "schema_version: 2", "line 1: schema_version: input should be 1"),
        ("cors:", "cros:", "line 20: cros: there is no such field; did you mean 'cors'"),
        ("api_key_env: MY_KEY", "api_key: sk-1234567890abcdef", "line 8: .*api_key: this looks like a key"),
        ("[temperature, top_p]", "[temperature, n]", "line 21: ignore[1]: 'n' cannot be ignored, only fields that"),
        ("ignore:", "ignored:", "line 21: ignored: there is no such field; did you mean 'ignore'"),
        (WHOLE, "fusions:\n  one: http://gpu1:8080", "line 2: fusions.one: it holds no fields"),
        (WHOLE, "fusions:\n", "line 1: fusions: it must hold at least one fusion"),
        (WHOLE, "keys: []\n", "it has no fusions:, and no draft: of a single one"),
        (WHOLE, "- a\n", "holds no fields; a file for cosd serve begins with fusions:"),
    ],
)  # fmt: skip
def test_faults_are_named_by_line_and_field(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in WHOLE
    pattern = words.replace("[", r"\[").replace("]", r"\]")
    with pytest.raises(SettingError, match=pattern) as caught:
        loaded(tmp_path, WHOLE.replace(old, new))
    assert "sk-1234" not in str(caught.value)


@pytest.mark.extended
def test_the_schema_takes_what_is_read(tmp_path: Path) -> None:
    schema = GatewayConfig.model_json_schema()
    whole = yaml.safe_load(WHOLE)
    jsonschema.validate({**whole, "ignore": ["top_p", "think"]}, schema)
    for wrong in ({"fusions": {"a": {"drafd": "http://a"}}}, {**whole, "ignore": ["n"]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_A", KEY)
    other = "j" * 16
    monkeypatch.setenv("COSD_SERVE_KEYS", f" {other} , {'i' * 20}; name=b ;concurrency=3;billed_tokens_per_minute=5,")
    found = keys_of([ClientKey(name="a", env="TEAM_A", concurrency=2)])
    assert [*found] == [KEY, other, "i" * 20]
    assert [one.name for one in found.values()] == ["a", "key-1", "b"]
    assert (found["i" * 20].concurrency, found["i" * 20].billed_tokens_per_minute) == (3, 5)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("short", "COSD_SERVE_KEYS, key 1: a key has at least 16 characters"),
        (f"{KEY},{KEY}", "key 2: another key is the same"),
        (f"{KEY};name=a,{'j' * 16};name=a", "key 2: another key is the same, or has the same name"),
        (f"{KEY};concurrency=many", "key 1: its 'concurrency' is invalid"),
        (f"{KEY};env=HOME", "key 1: a key may be followed by name"),
        (f"{KEY};colour=red", "key 1: a key may be followed by name, concurrency, requests_per_minute, billed"),
    ],
)
def test_keys_that_are_invalid_are_not_shown(monkeypatch: pytest.MonkeyPatch, keys: str, words: str) -> None:
    monkeypatch.setenv("COSD_SERVE_KEYS", keys)
    with pytest.raises(SettingError, match=words) as caught:
        keys_of([])
    assert KEY not in str(caught.value)


def test_keys_come_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is that from the settings file."""
    (tmp_path / "secret").write_text(f"{KEY}\n")
    text = WHOLE.replace("env: TEAM_B", "file: secret\n    requests_per_minute: 30")
    config = loaded(tmp_path, text)
    monkeypatch.chdir("/")
    monkeypatch.setenv("TEAM_A", "t" * 16)
    found = keys_of(config.keys)
    assert {name: one.name for name, one in found.items()} == {"t" * 16: "team-a", KEY: "team-b"}
    assert found[KEY].requests_per_minute == 30
    (tmp_path / "secret").write_bytes(b"\xff" * 20)
    with pytest.raises(SettingError, match="secret: a key has at least 16 characters of ASCII"):
        keys_of(config.keys)
    (tmp_path / "secret").unlink()
    with pytest.raises(SettingError, match=r"keys: .*secret, which should contain a key: No such file or directory"):
        keys_of(config.keys)


def test_a_key_whose_variable_is_not_set_is_named() -> None:
    with pytest.raises(SettingError, match="the environment variable TEAM_A, which should contain a key, is not set"):
        keys_of([ClientKey(name="a", env="TEAM_A")])
