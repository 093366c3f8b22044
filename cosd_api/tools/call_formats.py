"""The formats in which families of models write tool calls.

The markers of some formats are special tokens of their models. The text of an answer contains them only on servers that
show special tokens. So a fusion never relies on a model's own marker: `grammar` requires the marker as text, and all
models read it as text that is encoded by their own tokenizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cosd_api.errors import SettingError
from cosd_providers.messages import SAMPLE_NAME, ToolCall
from cosd_providers.suggestions import suggestion


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The text around the names and the arguments of tool calls.

    The calls of an answer are `opening`, then for each call `start`, the name, `middle`, the arguments and `end`, with
    `separator` between calls, and at last `closing`.

    Attributes:
        name: name of the format.
        marker: text that only calls begin with. If it is empty, an answer with calls consists only of calls, and is
            recognised by its first character.
        start: text before the name of a tool.
        middle: text between the name and the arguments.
        end: text after the arguments.
        separator: text between two calls; None if the models make only one call at a time.
        opening: text before the first call.
        closing: text after the last call.
    """

    name: str
    marker: str
    start: str
    middle: str
    end: str
    separator: str | None
    opening: str = ""
    closing: str = ""

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Write calls in this format."""
        each = [f"{self.start}{call.name}{self.middle}{call.arguments}{self.end}" for call in calls]
        return f"{self.opening}{(self.separator or '').join(each)}{self.closing}"

    def shown_in(self, sample: str) -> bool:
        """Test whether a chat template writes calls in this format, given its `ToolTemplate.tool_sample`."""
        begun = f"{self.opening}{self.start}{SAMPLE_NAME}{self.middle}"
        return "".join(begun.split()) in "".join(sample.split())


_CALLS, _CALL = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"
_ENDS, _END = "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>"
_SEP = "<｜tool▁sep｜>"

FORMATS = (
    CallFormat("hermes", "<tool_call>", '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", "\n"),
    CallFormat("deepseek-v3", _CALLS, f"{_CALL}function{_SEP}", "\n```json\n", f"\n```{_END}", "\n", _CALLS, _ENDS),
    CallFormat("deepseek-v3.1", _CALLS, _CALL, _SEP, _END, "", _CALLS, _ENDS),
    CallFormat("mistral", "[TOOL_CALLS]", '{"name": "', '", "arguments": ', "}", ", ", "[TOOL_CALLS][", "]"),
    CallFormat("mistral-v11", "[TOOL_CALLS]", "[TOOL_CALLS]", "[ARGS]", "", ""),
    CallFormat("llama", "", '{"name": "', '", "parameters": ', "}", None),
    CallFormat("json", "", '{"name": "', '", "arguments": ', "}", "\n"),
)
"""All known formats. A format that also fits the calls of another one follows the other."""

DEFAULT_FORMAT = FORMATS[0]
"""The format if the draft's template does not render tools."""


def format_named(name: str) -> CallFormat:
    """Return the format of this name.

    Raises:
        SettingError: there is no such format.
    """
    names = [one.name for one in FORMATS]
    if name not in names:
        words = f"call_format must be one of {', '.join(map(repr, names))}, not {name!r}"
        raise SettingError(f"{words}{suggestion(name, names)}")
    return FORMATS[names.index(name)]


def recognized(sample: str) -> CallFormat | None:
    """Return the format that a chat template writes, given its `tool_sample`; None if it is unknown."""
    return next((one for one in FORMATS if one.shown_in(sample)), None)
