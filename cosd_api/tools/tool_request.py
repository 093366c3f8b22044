"""The tools of one answer: their check, and the form in which the models of a fusion are asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cosd_api.errors import SettingError
from cosd_api.structured import LarkGrammar, ResponseFormat
from cosd_api.tools.call_formats import DEFAULT_FORMAT, CallFormat, format_named
from cosd_api.tools.call_reader import CallReader
from cosd_api.tools.grammar import answer_grammar, check_parameters
from cosd_api.tools.prompting import find_format, with_toolset
from cosd_api.tools.tool_definitions import ToolChoice, checked_choice, checked_tools
from cosd_providers.contract import Provider
from cosd_providers.errors import ProviderError
from cosd_providers.messages import Message, Tool, Toolset


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """The tools of a request.

    Attributes:
        tools: the tools.
        choice: the calls that the answer may contain.
        content: JSON schema of an answer without calls; None for text.
    """

    tools: tuple[Tool, ...]
    choice: ToolChoice
    content: Mapping[str, Any] | None

    @classmethod
    def checked(
        cls,
        tools: object,
        choice: object,
        messages: Sequence[Message],
        *,
        parallel: bool | None = None,
        content: ResponseFormat | None = None,
    ) -> ToolRequest | None:
        """Check tools in OpenAI's format; None if they cannot affect the answer.

        Args:
            tools: the tools.
            choice: the tool choice.
            messages: the conversation.
            parallel: whether an answer may contain several calls; None means that it may.
            content: the format of an answer without calls; None for text.

        Raises:
            SettingError: a value is invalid, or the tools cannot be enforced. The message begins with `tools` or
                `tool_choice`, whichever is wrong.
        """
        found = checked_tools(tools or [])
        chosen = checked_choice(choice, found, parallel=parallel is not False)
        if not found or (chosen.mode == "none" and content is not None):
            return None
        if content is not None and not content.is_json:
            raise SettingError("tools are refused: with tools, a response_format must be JSON")
        if chosen.mode != "none" and messages[-1].role == "assistant":
            raise SettingError("tools are refused: an answer that has begun, in the last message, calls none")
        check_parameters(found)
        schema = None if content is None else content.record.get("json_schema", {}).get("schema", {"type": "object"})
        return cls(found, chosen, schema)

    @property
    def calls(self) -> bool:
        """True if the answer may call a tool."""
        return self.choice.mode != "none"

    async def prepared(
        self, messages: Sequence[Message], providers: Iterable[Provider], call_format: str | None = None
    ) -> tuple[tuple[Message, ...], LarkGrammar, CallReader | None]:
        """Prepare an answer.

        Args:
            messages: the conversation.
            providers: the models. The chat template of the first one that can be asked determines the format of calls.
                If the answer's content is JSON, only formats with a marker distinguish it from a call.
            call_format: name of the format of calls, instead of the template's.

        Returns:
            The conversation with the tools that may be called, the format of the answer, and the reader of its calls,
            which is None if it may call none.
        """
        form = await self._format(providers) if call_format is None else format_named(call_format)
        form = DEFAULT_FORMAT if self.content is not None and not form.marker else form
        grammar = answer_grammar(self.tools, self.choice, form, self.content)
        if not self.calls:
            return tuple(messages), grammar, None
        return with_toolset(messages, Toolset(self.tools, form.name)), grammar, CallReader(form)

    async def _format(self, providers: Iterable[Provider]) -> CallFormat:
        for provider in providers:
            with suppress(ProviderError):  # the answer itself raises it, or continues without the model
                return await find_format(provider) or DEFAULT_FORMAT
        return DEFAULT_FORMAT
