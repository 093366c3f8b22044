"""Two scripted models that call tools: about the weather of a city, on which they disagree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cosd_api import Fusion
from cosd_providers import Message
from cosd_providers.testing import ScriptedProvider, ScriptToken

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "Weather of a city", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]
QUESTION: list[Any] = [{"role": "user", "content": "Is it hot in New Lima?"}]
HEAD: list[ScriptToken] = ["<tool_call>", "\n", '{"name": "', "weather", '", "arguments": ', '{"city": "']
TAIL: list[ScriptToken] = ['"', "}", "}", "\n</tool_call>"]
NOW: list[ScriptToken] = ['\n<tool_call>\n{"name": "', "now", '", "arguments": ', "{}}", "\n</tool_call>"]
ROME: list[ScriptToken] = [*HEAD, "New", (" Rome", 0.3), *TAIL]
LIMA: list[ScriptToken] = [*HEAD, "New", " Lima", *TAIL]
CALLED = '<tool_call>\n{"name": "weather", "arguments": {"city": "New Lima"}}\n</tool_call>'


def asked(messages: Sequence[Message]) -> str:
    """The prompt of a model: the name of the script that it follows, from what the conversation contains."""
    text = "\n".join(message.content for message in messages)
    assert all(not message.tool_calls and message.toolset is None for message in messages)
    told = "T" if "Weather of a city" in text else ""
    return told + ("result:" if "Result of weather:\nsunny" in text else "question:")


class Watched(ScriptedProvider):
    """Remembers the conversations that it renders."""

    conversations: list[Sequence[Message]]

    async def render_prompt(self, messages: Sequence[Message], **options: Any) -> Any:
        self.conversations = [*getattr(self, "conversations", []), messages]
        return await super().render_prompt(messages, **options)


def fused(draft: Sequence[ScriptToken], assistant: Sequence[ScriptToken] | None = None, **options: Any) -> Fusion:
    """A pair of models: both answer a result with the same words, and a question without tools, too."""
    same: dict[str, Sequence[ScriptToken]] = {"Tresult:": ["It", " is", " hot", "."], "question:": ["Hello"]}
    both = {"-": [*draft, *(assistant or ())], **same}  # the same tokens for both
    if assistant:
        both["Tquestion:" + "".join(str(one) for one in [*HEAD, "New Lima"])] = TAIL
    scripts = ({**both, "Tquestion:": draft}, {**both, "Tquestion:": assistant or draft})
    models = [Watched.from_texts(one, template=asked, **options) for one in scripts]
    return Fusion(draft=models[0], assistant=models[1])
