"""Tools: definitions, prompts, and the format, the language and the reading of calls.

The package knows nothing of the gateway. The models of a fusion continue the same text, so all of them see the same
tools and write calls in one format, but each reads the conversation in its own form.
"""

from __future__ import annotations

from cosd_api.tools.call_formats import DEFAULT_FORMAT, FORMATS, CallFormat, format_named
from cosd_api.tools.call_reader import CallBegun, CallReader, Part, read_answer
from cosd_api.tools.grammar import answer_grammar, check_parameters
from cosd_api.tools.prompting import as_model_reads, find_format, with_toolset
from cosd_api.tools.tool_definitions import ToolChoice, checked_choice, checked_tools
from cosd_api.tools.tool_request import ToolRequest

__all__ = [
    "DEFAULT_FORMAT",
    "FORMATS",
    "CallBegun",
    "CallFormat",
    "CallReader",
    "Part",
    "ToolChoice",
    "ToolRequest",
    "answer_grammar",
    "as_model_reads",
    "check_parameters",
    "checked_choice",
    "checked_tools",
    "find_format",
    "format_named",
    "read_answer",
    "with_toolset",
]
