"""The language of an answer that may call tools, as a Lark grammar for llguidance.

Free text may come before a call, if the format has a marker: a call begins wherever the marker is written. In a format
without a marker, the first character of the answer decides. No text follows a call. An answer without calls does not
begin with the first character of a call, because models imitate the calls in a conversation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from cosd_api.errors import SettingError
from cosd_api.structured import Language, LarkGrammar
from cosd_api.tools.call_formats import CallFormat
from cosd_api.tools.tool_definitions import ToolChoice
from cosd_providers.messages import Tool

_SHORT = 8192  # maximum number of characters of a schema that is cached


def answer_grammar(
    tools: Sequence[Tool], choice: ToolChoice, form: CallFormat, content: Mapping[str, Any] | None = None
) -> LarkGrammar:
    """Write the grammar of an answer.

    Args:
        tools: the tools.
        choice: the calls that the answer may contain.
        form: the format of the calls.
        content: JSON schema of an answer without calls, if the format has a marker; None for free text.

    Raises:
        SettingError: a schema is not supported.
    """
    begun, several = form.opening + form.start, choice.parallel and form.separator is not None
    plain = f"/([^{_escaped(begun[0])}](?s:.*))?/"
    if choice.mode == "none":
        return LarkGrammar(f"start: {plain}")
    callable_ = [tool for tool in tools if choice.name in ("", tool.name)]
    more = f" ({_text(f'{form.separator}{form.start}')} call)*" if several else ""
    rest = f"call{more}{_text(form.closing)}"
    if choice.mode == "required":
        rules = [f"start: {_text(begun)} {rest}"]
    elif content is not None:
        rules = [f"start: content | {_text(begun)} {rest}", f"content: {_embedded(json.dumps(content))}"]
    elif form.marker:
        rules = [
            f"start: TEXT | preface {_text(begun.removeprefix(form.marker))} {rest}",
            r"TEXT: /(?s:.*)/",
            f"preface[lazy]: /(?s:.*){_escaped(form.marker)}/",
        ]
    else:
        rules = [f"start: TEXT | {_text(begun)} {rest}", f"TEXT: {plain}"]
    rules.append("call: " + " | ".join(f"tool_{at}" for at in range(len(callable_))))
    for at, tool in enumerate(callable_):
        rules += [f"tool_{at}: {_text(f'{tool.name}{form.middle}')} arguments_{at} {_text(form.end)}"]
        rules += [f"arguments_{at}: {_embedded(tool.parameters)}"]
    return LarkGrammar("\n".join(rules))


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", "\\/")


def _embedded(schema: str) -> str:
    """Embed a schema, given as text, in the form that `Language.json_schema` gives it. Short schemas are cached."""
    return (_cached if len(schema) <= _SHORT else _cached.__wrapped__)(schema)


@lru_cache(maxsize=1024)
def _cached(schema: str) -> str:
    [grammar] = json.loads(Language.json_schema(json.loads(schema)).grammar)["grammars"]
    return f"%json {json.dumps(grammar['json_schema'])}"


def check_parameters(tools: Sequence[Tool]) -> None:
    """Check that the parameters of each tool can be enforced.

    Raises:
        SettingError: a schema is not supported; the message says which and why.
    """
    for at, tool in enumerate(tools):
        try:
            _embedded(tool.parameters)
        except SettingError as error:
            raise SettingError(f"tools[{at}].function.parameters: {error}") from None
