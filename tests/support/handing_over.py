"""Common ground of the tests of methods in which a gate hands over single tokens."""

from __future__ import annotations

from typing import Any

from cosd_providers.testing import ScriptToken

SETTINGS: list[dict[str, Any]] = [
    {},
    {"draft_length": 3},
    {"max_ahead": 2},
    {"ask": "all"},
]


def readable(data: bytes) -> bool:
    """True for text: an unfinished character at its end is cut by the limit, and is none that is wrong."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


WRITTEN: dict[str, list[ScriptToken]] = {"Q": [(" a", 0.9), (" b", 0.3), (" c", 0.7)], "Q a x": [(" c", 0.9)]}
OTHER: dict[str, list[ScriptToken]] = {"Q": [(" y", 0.9)], "Q a": [(" x", 0.2), (" c", 0.4)]}
