"""The model provider `cosd` over a stand-in for Inspect."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cosd_api import SettingError
from cosd_providers import InvalidRequestError, ServerError
from cosd_providers.testing import ScriptedProvider
from shipped import ROOT
from stand_in_evaluators import inspect_modules, installed

USER = SimpleNamespace(role="user", content="Capital of Peru?")


@pytest.fixture
def provider() -> Iterator[Any]:
    """Our module over the stand-in, as the entry point names it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (entry,) = project["entry-points"]["inspect_ai"].values()
    with installed(inspect_modules(), "cosd_api.integrations.inspect"):
        yield importlib.import_module(entry).cosd()


def servers() -> dict[str, Any]:
    said = {"user: Capital of Peru?\nassistant: ": [(" Lima", 0.9), (" it", 0.9), ("\n", 0.9), (" is", 0.9)]}
    return {name: ScriptedProvider.from_texts(said, name=name) for name in ("draft", "assistant")}


def config(**given: Any) -> Any:
    """A configuration of generation, as Inspect gives it: None for all that a task leaves open."""
    names = ("max_tokens", "stop_seqs", "temperature", "seed", "num_choices", "response_schema")
    more = ("top_p", "top_k", "frequency_penalty", "presence_penalty", "logit_bias", "best_of")
    return SimpleNamespace(**{**dict.fromkeys((*names, *more)), **given})


async def test_an_answer_with_its_usage_and_the_call(provider: Any) -> None:
    made = provider("pair", config=None, **servers(), timeout=60)
    assert made.connection_key() == "draft assistant"
    output, (asked, answered) = await made.generate([USER], [], "auto", config(stop_seqs=["\n"], max_tokens=9, seed=1))
    assert (output.content, output.stop_reason, output.model) == (" Lima it", "stop", "pair")
    assert output.usage.total_tokens == output.usage.input_tokens + output.usage.output_tokens > 0
    assert output.metadata == {"acceptance_rate": 1.0, "warnings": []}
    assert asked["max_tokens"] == 9 and asked["timeout"] == 60 and "seed" not in asked
    assert answered["text"] == output.content and "tokens" not in answered
    output, _ = await made.generate([USER], [], "auto", config(max_tokens=1))
    assert (output.content, output.stop_reason) == (" Lima", "max_tokens")


async def test_the_length_of_answers_where_the_task_names_none(provider: Any) -> None:
    assert provider("pair", **servers()).max_tokens() is None
    assert provider("pair", **servers(), max_tokens=9).max_tokens() == 9  # Inspect puts it into the configuration
    with pytest.raises(SettingError, match="max_tokens must be a whole number of at least 1, not 'many'"):
        provider("pair", **servers(), max_tokens="many")


async def test_a_full_context_is_an_answer_with_its_reason(provider: Any) -> None:
    full = ScriptedProvider.from_texts({}, name="draft", context=8)
    made = provider("pair", **{**servers(), "draft": full})
    output, (asked, answered) = await made.generate([USER], [], "auto", config(max_tokens=9))
    assert (output.content, output.stop_reason) == ("", "model_length")
    assert "the draft takes at most 7" in output.error
    assert (asked["max_tokens"], answered) == (9, {"error": output.error})


async def test_content_of_parts_is_text_without_the_reasoning(provider: Any) -> None:
    parts = [SimpleNamespace(type="reasoning", reasoning="hm"), SimpleNamespace(type="text", text=USER.content)]
    made = provider("pair", **servers())
    output, _ = await made.generate([SimpleNamespace(role="user", content=parts)], [], "auto", config(max_tokens=1))
    assert output.content == " Lima"
    with pytest.raises(SettingError, match="part of the type 'image': a fusion takes text only"):
        await made.generate([SimpleNamespace(role="user", content=[SimpleNamespace(type="image")])], [], "", config())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"temperature": 0.7},
            "the task's temperature is 0.7, and this fusion's 0: leave it out, or give -M temperature=1",
        ),
        ({"top_p": 0.9}, "top_p is not accepted"),
        ({"frequency_penalty": 0.1}, "frequency_penalty is not accepted"),
        ({"num_choices": 2}, "n is not accepted: a fusion has one answer"),
        ({"response_schema": {}}, "response_schema is not supported: a fusion writes text. Leave it out"),
    ],
)
async def test_what_a_fusion_does_not_have_is_refused(provider: Any, given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError) as caught:
        await provider("pair", **servers()).generate([USER], [], "auto", config(**given))
    assert words in str(caught.value)


async def test_tools_and_one_url_are_refused(provider: Any) -> None:
    made = provider("pair", **servers())
    with pytest.raises(SettingError, match="tools are not supported: a fusion writes text and calls no tools"):
        await made.generate([USER], [object()], "auto", config())
    with pytest.raises(SettingError, match="a fusion has several servers: give -M draft=URL and -M assistant=URL"):
        provider("pair", base_url="http://gpu1:8080", **servers())
    with pytest.raises(SettingError, match="there is no draft"):
        provider("pair")
    assert made.should_retry(ServerError("busy", retryable=True))
    assert not made.should_retry(InvalidRequestError("no"))
    assert not made.should_retry(ValueError("no"))


def test_without_inspect_one_line_says_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module("cosd_api.integrations.inspect")
    assert str(caught.value).endswith('needs Inspect: pip install ".[inspect]" in a clone of the repository')
