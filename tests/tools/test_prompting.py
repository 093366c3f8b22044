"""Conversations with tools as each model reads them."""

from __future__ import annotations

import pytest

from cosd_api.tools import FORMATS, CallFormat, as_model_reads, format_named
from cosd_api.tools.prompting import in_turns
from cosd_providers.chat.templates import load_template
from cosd_providers.engines import LlamaCpp
from cosd_providers.messages import Message, Tool, ToolCall, Toolset
from toys.tool_templates import CHATML, DEEPSEEK, HERMES, LLAMA

SCHEMA = '{"type": "object", "properties": {"city": {"type": "string"}}}'
WEATHER, NOW = Tool("weather", 'Wetter für "Städte"', SCHEMA), Tool("now")
LIMA, ROME = (ToolCall(city, "weather", f'{{"city": "{city}"}}') for city in ("Lima", "Rome"))


def talk(call_format: str, *calls: ToolCall, system: str = "") -> list[Message]:
    told = Message("system", system, toolset=Toolset((WEATHER, NOW), call_format))
    results = [Message("tool", f"sunny in {call.arguments}", tool_call_id=call.id) for call in calls]
    return [told, Message("user", "Hot?"), Message("assistant", "", calls), *results]


def templated(source: str) -> LlamaCpp:
    provider = LlamaCpp("http://localhost:1")
    provider.use_template(load_template(source))
    return provider


async def test_a_template_that_knows_the_format_renders_the_conversation_itself() -> None:
    asked = talk("hermes", LIMA, ROME)
    assert await as_model_reads(templated(HERMES), asked) == asked
    assert await as_model_reads(templated(LLAMA), talk("llama", LIMA)) == talk("llama", LIMA)
    assert await as_model_reads(templated(HERMES), asked[1:]) == asked[1:]  # calls without tools
    assert await as_model_reads(templated(LLAMA), asked[1:]) == in_turns(asked[1:], format_named("llama"))


async def test_every_other_model_reads_text() -> None:
    expected = in_turns(talk("hermes", LIMA), format_named("hermes"))
    for template in (CHATML, LLAMA, HERMES.replace("<tool_call>", "<call>")):
        assert await as_model_reads(templated(template), talk("hermes", LIMA)) == expected
    both = talk("llama", LIMA, ROME)  # this template takes only one call at a time
    assert await as_model_reads(templated(LLAMA), both) == in_turns(both, format_named("llama"))


async def test_a_template_without_definitions_renders_the_calls() -> None:
    asked = talk("deepseek-v3.1", LIMA)
    text = in_turns(asked, format_named("deepseek-v3.1"))
    assert await as_model_reads(templated(DEEPSEEK), asked) == [text[0], *asked[1:]]


async def test_a_conversation_without_tools_stays_and_costs_nothing() -> None:
    asked = [Message("system", "Be kind."), Message("user", "Hi")]
    assert await as_model_reads(LlamaCpp("http://localhost:1"), asked) is asked


def test_the_text_of_a_conversation() -> None:
    form = format_named("hermes")
    told, user, said, result = in_turns(talk("hermes", LIMA, ROME, system="Be kind."), form)
    lines = told.content.split("\n")
    assert lines[:2] == ["Be kind.", ""]
    assert lines[2].startswith("You can call these tools.")
    assert '{"name": "weather", "description": "Wetter für \\"Städte\\"", "parameters": ' + SCHEMA + "}" in lines
    assert '{"name": "name", "arguments": {"argument": "value"}}' in lines and told.toolset is None
    assert user == Message("user", "Hot?")
    assert said == Message("assistant", form.write([LIMA, ROME]))
    results = [f'Result of weather:\nsunny in {{"city": "{city}"}}' for city in ("Lima", "Rome")]
    assert result == Message("user", "\n\n".join(results))


@pytest.mark.parametrize("form", FORMATS, ids=lambda one: one.name)
def test_instructions_show_the_format(form: CallFormat) -> None:
    [told, *_] = in_turns(talk(form.name, LIMA), form)
    assert form.write([ToolCall("", "name", '{"argument": "value"}')]) in told.content
    assert ("Several calls may follow each other." in told.content) is (form.separator is not None)


def test_text_before_a_call_stays() -> None:
    asked = [Message("user", "Hot?"), Message("assistant", "Let me see.", (LIMA,)), Message("tool", "x", (), "Lima")]
    assert in_turns(asked, format_named("llama"))[1].content == (
        'Let me see.\n\n{"name": "weather", "parameters": {"city": "Lima"}}'
    )
