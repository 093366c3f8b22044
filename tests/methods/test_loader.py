"""Methods in files of their own: every place that names one, and the words about a file that is not right."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no type hints
import pytest

from cosd_api import Fusion, FusionConfig, SettingError, compare, fuse
from cosd_api.apps.gateway.api_errors import ApiError
from cosd_api.apps.gateway.bodies import read_completion
from cosd_api.apps.gateway.config import GatewayConfig, GatewayLimits
from cosd_api.config.document import read_document
from cosd_api.methods.base import method_named
from cosd_providers.testing import ScriptedProvider
from fakes.commands import cosd

HEAD = """\
from dataclasses import dataclass
from typing import Annotated, ClassVar

from cosd_api.extend import Answer, Model, Program, between


"""
LOUD = f'''{HEAD}@dataclass(frozen=True, kw_only=True)
class Loud(Program):
    """The assistant's answer, with a mark."""

    name: ClassVar[str] = "loud"
    needs = {{"draft": ("probs",)}}

    share: Annotated[float, between(0, 1)] = 0.5

    async def write(self, answer: Answer, draft: Model, assistant: Model) -> None:
        answer.append(await assistant.write(), f"share {{self.share:g}}", whole=True)
'''


@pytest.fixture
def loud(tmp_path: Path) -> Path:
    path = tmp_path / "loud.py"
    path.write_text(LOUD)
    return path


def models() -> dict[str, Any]:
    return {
        "draft": ScriptedProvider.from_texts({f"Q{at}": [" short", "."] for at in range(20)}),
        "assistant": ScriptedProvider.from_texts({f"Q{at}": [" long", "."] for at in range(20)}),
    }


async def test_a_fusion_and_a_comparison_name_it(loud: Path) -> None:
    result = await fuse("Q1", **models(), method=f"{loud}:Loud")
    assert (result.text, result.segments[0].reason) == (" long.", "share 0.5")
    assert (result.settings.method, result.settings.method_options) == ("loud", {"share": 0.5})
    assert type(method_named(f"{loud}:Loud", share=1)) is type(method_named(f"{loud}:Loud"))  # it is loaded once
    questions = [{"prompt": f"Q{at}", "answer": "x"} for at in range(20)]
    found = await compare(questions, **models(), methods=["cosd", f"{loud}:Loud"], max_tokens=5)
    assert "loud" in {one.name for one in found.standings}


def test_a_settings_file_names_it_relative_to_its_folder(loud: Path, tmp_path: Path) -> None:
    settings, schema = tmp_path / "fusion.yaml", jsonschema.Draft202012Validator(FusionConfig.model_json_schema())
    servers = "draft: http://a:1\nassistants: [http://b:1]\n"
    for method, share in (("loud.py:Loud", 0.5), ("{name: 'loud.py:Loud', share: 0.25}", 0.25)):
        settings.write_text(f"{servers}method: {method}\n")
        schema.validate(read_document(settings).value)
        fusion = Fusion.load(settings)
        assert fusion.settings.method == method_named(f"{loud}:Loud", share=share)
        fusion.save(tmp_path / "again.yaml")
        assert "loud.py:Loud" in (tmp_path / "again.yaml").read_text()
        assert str(tmp_path) not in (tmp_path / "again.yaml").read_text()
        assert Fusion.load(tmp_path / "again.yaml").settings == fusion.settings
    for wrong, words in (("{name: 'loud.py:Loud', shar: 1}", "no setting 'shar'"), ("none.py:Loud", "no such file")):
        settings.write_text(f"{servers}method: {wrong}\n")
        with pytest.raises(SettingError, match=words) as found:
            Fusion.load(settings)
        assert "fusion.yaml, line 3" in str(found.value)


def test_a_gateways_file_names_it_and_no_request_does(loud: Path, tmp_path: Path) -> None:
    settings = tmp_path / "gateway.yaml"
    fusion = "{draft: 'http://a:1', assistants: ['http://b:1'], method: 'loud.py:Loud'}"
    settings.write_text(f"fusions:\n  mine: {fusion}\n")
    config = GatewayConfig.load(settings).fusions["mine"]
    assert pickle.loads(pickle.dumps(config)) == config
    assert Fusion.load(config).settings.method == method_named(f"{loud}:Loud")
    loud.write_text("raise RuntimeError('loaded')")
    with pytest.raises(ApiError, match="unknown field 'method'"):
        read_completion(
            json.dumps({"model": "mine", "prompt": "Q", "method": f"{loud}:Loud"}).encode(), GatewayLimits(), ()
        )


def test_the_command_line_names_it(loud: Path) -> None:
    servers = ("--draft", "http://127.0.0.1:9", "--assistant", "http://127.0.0.1:9")
    found = cosd("fuse", "Q", *servers, "--method", f"{loud}:Loud", "--set", "share=2")
    assert found.exit_code == 2
    assert "share must be a number between 0 and 1, not 2.0" in " ".join(found.output.split())


WRONG = [
    ("def", "line 1: SyntaxError: invalid syntax. Correct the file, and load it again"),
    ("import nowhere_at_all", "line 1: ModuleNotFoundError: No module named 'nowhere_at_all'. Correct the file"),
    (
        LOUD.replace('{"draft"', '{"drafts"'),
        "line 8: Loud.needs names 'drafts', which is no parameter of its write",
    ),
    (
        LOUD.replace('("probs",)', '("prob",)'),
        "line 8: Loud.needs names 'prob', which is no capability: the ca",
    ),
    (LOUD.replace("class Loud", "class Laud"), r"has no class 'Loud'; did you mean 'Laud'\?"),
    (LOUD.replace("class Loud", "class Other"), r"has no class 'Loud'; it has Other \(line 8\)"),
    (
        LOUD.replace("class Loud(Program)", "class Loud"),
        "line 8: Loud is no method: derive it from cosd_api.ext",
    ),
    (LOUD.replace("async def write", "async def wrote"), "line 8: Loud writes no answer: give it async def write"),
    (LOUD.replace("async ", "").replace("await ", ""), "line 8: Loud writes no answer: give it async def write"),
    (LOUD.replace('"loud"', '"cosd"'), "line 8: Loud has the name of the method 'cosd': give it one of its own, name:"),
    (LOUD.replace('    name: ClassVar[str] = "loud"\n', ""), "line 8: Loud has no name for results: give it one of"),
    (LOUD.replace("@dataclass(frozen=True, kw_only=True)\n", ""), "line 7: Loud is no dataclass: put @dataclass"),
]


@pytest.mark.parametrize(("text", "words"), WRONG, ids=lambda one: one[:30] if one.startswith(("line", "has")) else "")
def test_a_file_that_is_not_right_is_refused_in_one_line(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "loud.py"
    path.write_text(text)
    with pytest.raises(SettingError, match=words) as found:
        method_named(f"{path}:Loud")
    assert "\n" not in str(found.value)
    assert str(found.value).startswith(str(path))


def test_a_file_that_was_corrected_is_loaded_again(loud: Path) -> None:
    loud.write_text("def")
    with pytest.raises(SettingError, match="SyntaxError"):
        method_named(f"{loud}:Loud")
    loud.write_text(LOUD)
    assert method_named(f"{loud}:Loud").name == "loud"
    loud.write_text(LOUD.replace('"loud"', '"louder"'))
    assert method_named(f"{loud}:Loud").name == "louder"


def test_an_address_needs_a_file_and_a_class(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"loud\.py: give the file and the name of the class, as .*loud\.py:My"):
        method_named(str(tmp_path / "loud.py"))
    with pytest.raises(SettingError, match=r"there is no such file\. A method is a name, an object, or FILE\.py"):
        method_named(str(tmp_path / "loud.py:Loud"))
