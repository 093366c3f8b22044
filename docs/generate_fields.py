"""Write the table of request fields into `docs/gateway.md`: `python docs/generate_fields.py`."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from cosd_api.apps.gateway.fields import GROUPS, FieldGroup, Fitting

PAGE = Path(__file__).parent / "gateway.md"
BEGIN, END = "<!-- fields: `make docs` writes this table -->\n", "<!-- end of fields -->\n"


def _value(value: object) -> str:
    return value.words if isinstance(value, Fitting) else f"`{json.dumps(value)}`"


def _field(name: str, values: Collection[object] | None) -> str:
    return f"`{name}`" + (f" ({' or '.join(map(_value, values))})" if values else "")


def _others(group: FieldGroup) -> str:
    """Say what becomes of the values that are not listed."""
    if None in group.values.values():
        return "accepted"
    refused = "refused" if group.reason else "used"
    return f"{refused}, or ignored" if group.ignorable else refused


def table() -> str:
    """Return the table."""
    lines = ["| fields | values that change nothing | other values |", "| --- | --- | --- |"]
    for group in GROUPS:
        fields = ", ".join(_field(name, values) for name, values in group.values.items())
        lines.append(f"| {group.about} | {fields} | {_others(group)} |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """Return the page with the current table."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
