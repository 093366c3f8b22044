"""Tools in chat templates: the exact prompts, and templates that drop tools in silence."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from cosd_providers import Message, connect
from cosd_providers.chat.templates import TemplateRefusal, load_template
from cosd_providers.engines import LlamaCpp
from cosd_providers.forwarding import ForwardingProvider
from cosd_providers.messages import SAMPLE_NAME, Tool, ToolCall, Toolset, ToolTemplate
from cosd_providers.testing import ScriptedProvider
from fakes.llama_cpp import FakeLlamaCpp
from toys.tool_templates import CHATML, DEEPSEEK, HERMES, MISTRAL, TEMPLATES

URL = "http://gpu:8080"
SCHEMA = '{"type": "object", "properties": {"city": {"type": "string"}}}'
WEATHER = Tool("weather", "Weather of a city", SCHEMA)
DEFINITION = (
    '{"type": "function", "function": {"name": "weather", "description": "Weather of a city", "parameters": ' + SCHEMA
) + "}}"
TOLD = Message("system", "", toolset=Toolset((WEATHER,), "hermes"))
ASKED = Message("user", "Hot?")
LIMA, ROME = (ToolCall(f"call_{city}", "weather", f'{{"city": "{city}"}}') for city in ("Lima", "Rome"))
CALLED = Message("assistant", "", (LIMA,))
SUNNY = Message("tool", "sunny", tool_call_id="call_Lima")
TALK = [TOLD, ASKED, CALLED, SUNNY]


class Byte:
    """A model of bytes, and of tokens that are special or look so, without an answer."""

    tokens = [bytes([n]) for n in range(256)] + [b"", b"<|im_end|>", b"[1]"]
    end_ids = frozenset({256})

    def encode(self, text: bytes) -> list[int]:
        parts = re.split(rb"(<\|im_end\|>|\[1\])", text)
        return [n for part in parts for n in ([self.tokens.index(part)] if part in self.tokens[257:] else part)]

    def next(self, ids: Sequence[int]) -> list[float]:
        return [0.0] * 256 + [1.0, 0.0, 0.0]


class Server(FakeLlamaCpp):
    """llama.cpp's server, which passes tools to its template, or drops them."""

    def __init__(self, template: str, *, drops: bool = False) -> None:
        super().__init__(Byte(), beginning=False)
        self.template: Any = load_template(template)
        self.drops = drops
        self.rendered: list[dict[str, Any]] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path != "/apply-template":
            return super().handle(request)
        body = json.loads(request.content)
        self.rendered.append(body)
        try:
            text = self.template(body["messages"], () if self.drops else body.get("tools", ()))
        except TemplateRefusal as error:
            return httpx.Response(400, json={"error": {"code": 400, "message": str(error)}})
        return httpx.Response(200, json={"prompt": text})


def served(server: Server) -> LlamaCpp:
    return LlamaCpp(URL, http_client=server.client())


def local(template: Any) -> LlamaCpp:
    """A server without a template of its own: the user gives one."""
    provider = connect(URL, engine="llama.cpp", http_client=Server("{{ 1 }}").client(), chat_template=template)
    assert isinstance(provider, LlamaCpp)
    return provider


async def prompt(provider: LlamaCpp, messages: Sequence[Message]) -> str:
    return (await provider.render_prompt(messages)).prompt


@pytest.mark.parametrize("name", TEMPLATES)
async def test_a_sample_shows_what_a_template_renders(name: str) -> None:
    for provider in (served(Server(TEMPLATES[name])), local(TEMPLATES[name])):
        sample = await provider.tool_sample()
        assert SAMPLE_NAME in sample.text
        assert sample.parsed is (name != "deepseek-v3.1")
        assert sample.defines is (name != "deepseek-v3.1")


async def test_a_template_without_tools_has_no_sample() -> None:
    raising = "{{ raise_exception('no tools') if tools }}"
    calls_as_text = HERMES.replace("c.function.arguments | tojson", "c.function.arguments | string | tojson")
    without_results = HERMES.replace("{{ m.content }}\n</tool_response>", "</tool_response>")
    for template in (CHATML, raising, calls_as_text, without_results):
        assert not (await served(Server(template)).tool_sample()).text
        assert not (await local(template).tool_sample()).text
    assert not (await local(lambda messages: str(messages[0]["content"])).tool_sample()).text
    dropped = await served(Server(HERMES, drops=True)).tool_sample()
    assert dropped.text and not dropped.defines


async def test_the_sample_is_rendered_once() -> None:
    server = Server(HERMES)
    provider = served(server)
    for _ in range(3):
        await provider.tool_sample()
        await provider.render_prompt(TALK)
    assert len([one for one in server.rendered if SAMPLE_NAME in str(one)]) == 1


async def test_forwarded_samples() -> None:
    provider = ForwardingProvider(served(Server(HERMES)))
    assert isinstance(provider, ToolTemplate)
    assert (await provider.tool_sample()).defines
    assert not (await ForwardingProvider(ScriptedProvider.from_texts({})).tool_sample()).text


async def test_definitions_calls_and_results() -> None:
    expected = f"<|im_start|>system\n<tools>\n{DEFINITION}\n</tools><|im_end|>\n<|im_start|>user\nHot?<|im_end|>\n"
    expected += '<|im_start|>assistant\n<tool_call>\n{"name": "weather", "arguments": {"city": "Lima"}}\n</tool_call>'
    expected += "<|im_end|>\n<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n"
    expected += "<|im_start|>assistant\n"
    for provider in (served(Server(HERMES)), local(HERMES)):
        assert await prompt(provider, TALK) == expected
    kind = Message("system", "Be kind.", toolset=TOLD.toolset)
    assert "system\nBe kind.\n\n<tools>" in await prompt(served(Server(HERMES)), [kind, *TALK[1:]])


async def test_ids_in_prompts_are_numbers_of_nine_characters() -> None:
    both = Message("assistant", "", (LIMA, ROME))
    wet = Message("tool", "wet", tool_call_id="call_Rome")
    for provider in (served(Server(MISTRAL)), local(MISTRAL)):
        text = await prompt(provider, [TOLD, ASKED, both, SUNNY, wet])
        assert '"arguments": {"city": "Lima"}, "id": "call00000"}, {"name": "weather"' in text
        assert '"call_id": "call00000"' in text and '"call_id": "call00001"' in text


async def test_arguments_that_a_template_expects_as_text() -> None:
    for provider in (served(Server(DEEPSEEK)), local(DEEPSEEK)):
        assert '<｜tool▁sep｜>{"city": "Lima"}<｜tool▁call▁end｜>' in await prompt(provider, TALK[1:])


async def test_results_and_messages_with_calls_are_not_joined() -> None:
    """This template refuses system messages, so the conversation is folded."""
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + HERMES
    said = [Message("system", "Be kind.", toolset=TOLD.toolset), ASKED, Message("assistant", "", (LIMA, ROME)), SUNNY]
    text = await prompt(served(Server(refusing)), [*said, Message("tool", "wet", tool_call_id="call_Rome")])
    assert f"<tools>\n{DEFINITION}\n</tools>" in text and "user\nBe kind.\n\nHot?<|im_end|>" in text
    assert text.count("<tool_response>") == text.count("<tool_call>") == 2


async def test_special_tokens_in_arguments_stay_text() -> None:
    """A cut inside of `[1]` would break the JSON, and the token has no special meaning."""
    said = Message("assistant", "", (ToolCall("a", "weather", '{"city": "<|im_end|>", "days": [1]}'),))
    server = Server(HERMES)
    turn = await served(server).render_prompt([ASKED, said, Message("tool", "x", tool_call_id="a")])
    assert '"arguments": {"city": "<|im_end|>", "days": [1]}' in turn.prompt and not turn.warnings
    pieces = [str(body.get("content")) for path, body in server.requests if path == "/tokenize"]
    assert any(piece.endswith('"arguments": {"city": "<') for piece in pieces)
    assert any(piece.startswith('|im_end|>", "days": [1]}') for piece in pieces)
