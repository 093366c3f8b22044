"""Call formats: the exact text of calls, and the formats of chat templates."""

from __future__ import annotations

import pytest

from cosd_api import SettingError
from cosd_api.tools import DEFAULT_FORMAT, FORMATS, find_format, format_named
from cosd_providers.chat.templates import load_template
from cosd_providers.engines import LlamaCpp
from cosd_providers.messages import ToolCall
from cosd_providers.testing import ScriptedProvider
from toys.tool_templates import CHATML, HERMES, TEMPLATES

CALLS = [ToolCall("1", "weather", '{"city": "Lima"}'), ToolCall("2", "now", "{}")]
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Lima"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "deepseek-v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
    '```json\n{"city": "Lima"}\n```<｜tool▁call▁end｜>\n'
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek-v3.1": "<｜tool▁calls▁begin｜>"
    '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Lima"}<｜tool▁call▁end｜>'
    "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Lima"}}, {"name": "now", "arguments": {}}]',
    "mistral-v11": '[TOOL_CALLS]weather[ARGS]{"city": "Lima"}[TOOL_CALLS]now[ARGS]{}',
    "json": '{"name": "weather", "arguments": {"city": "Lima"}}\n{"name": "now", "arguments": {}}',
}


def test_calls_are_written() -> None:
    assert {one.name: one.write(CALLS) for one in FORMATS if one.separator is not None} == WRITTEN
    assert format_named("llama").write(CALLS[:1]) == '{"name": "weather", "parameters": {"city": "Lima"}}'


def templated(source: str) -> LlamaCpp:
    provider = LlamaCpp("http://localhost:1")
    provider.use_template(load_template(source))
    return provider


@pytest.mark.parametrize("name", TEMPLATES)
async def test_the_format_of_a_template(name: str) -> None:
    assert await find_format(templated(TEMPLATES[name])) is format_named(name)


async def test_templates_without_a_known_format() -> None:
    assert await find_format(templated(CHATML)) is None
    assert await find_format(templated(HERMES.replace("arguments", "args"))) is None
    assert await find_format(ScriptedProvider.from_texts({})) is None
    plain = HERMES.replace("<tool_call>", "").replace("</tool_call>", "")
    assert await find_format(templated(plain)) is format_named("json")


def test_formats_by_name() -> None:
    assert format_named("hermes") is DEFAULT_FORMAT
    known = "'hermes', 'deepseek-v3', 'deepseek-v3.1', 'mistral', 'mistral-v11', 'llama', 'json'"
    with pytest.raises(SettingError) as caught:
        format_named("lama")
    assert str(caught.value) == f"call_format must be one of {known}, not 'lama'; did you mean 'llama'?"
