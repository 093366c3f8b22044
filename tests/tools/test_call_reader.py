"""Calls in the text of an answer, which arrives in pieces of any size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api.tools import FORMATS, CallFormat, CallReader, read_answer
from cosd_api.tools import format_named as named
from cosd_api.tools.call_reader import ArgumentsPiece, CallBegun, Part
from cosd_providers.messages import ToolCall

EACH = pytest.mark.parametrize("form", FORMATS, ids=lambda one: one.name)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)
)
CALLS = st.lists(
    st.tuples(st.from_regex(r"[A-Za-z0-9_-]{1,9}", fullmatch=True), st.dictionaries(st.text(), VALUES)), max_size=3
)


def known(calls: Sequence[ToolCall]) -> list[tuple[str, str]]:
    return [(one.name, one.arguments) for one in calls]


@EACH
@given(before=st.text(), calls=CALLS, escaped=st.booleans(), cuts=st.lists(st.integers(0, 400)))
def test_pieces_of_any_size(
    form: CallFormat, before: str, calls: list[tuple[str, object]], escaped: bool, cuts: list[int]
) -> None:
    """The parts are those of the whole text, and the arguments are exactly as written."""
    wanted = [ToolCall("", name, json.dumps(value, ensure_ascii=escaped)) for name, value in calls]
    wanted = wanted[:1] if form.separator is None else wanted
    before = before if form.marker or not wanted else ""
    text = before + (form.write(wanted) if wanted else "")
    ends = sorted({*cuts, 0, len(text)})
    reader, parts = CallReader(form), list[Part]()
    for start, end in pairwise(ends):
        parts += reader.read(text[start:end])
    content = "".join(part for part in parts if isinstance(part, str)) + reader.rest()
    names = [(part.index, part.name) for part in parts if isinstance(part, CallBegun)]
    pieces = [part for part in parts if isinstance(part, ArgumentsPiece)]
    assert content == before and names == [(at, one.name) for at, one in enumerate(wanted)]
    assert ["".join(one.text for one in pieces if one.index == at) for at, _ in names] == [a for _, a in known(wanted)]
    assert all(one.text for one in pieces) and reader.complete is bool(wanted)
    again, found, complete = read_answer(text, form)
    assert (again, known(found), complete) == (before, known(wanted), bool(wanted))


@EACH
def test_a_cut_answer(form: CallFormat) -> None:
    """Of a call that is cut, the beginning is known. A marker, or a part of it, is never text."""
    text = form.write([ToolCall("", "now", '{"a": 1}')])
    begun = len(form.opening + form.start)
    for length in range(1, len(text)):
        content, calls, complete = read_answer(text[:length], form)
        assert not complete
        assert bool(calls) is (length >= begun + len("now" + form.middle))
        assert content in ("", text[: min(length, len(form.marker or text[:begun]) - 1)])
        assert not calls or '{"a": 1}'.startswith(calls[0].arguments)


def test_text_that_resembles_a_call() -> None:
    for text in ("<tool_cal", "<tool_call>Hm", "a<tool_call>\n[", "<<tool_call", "<tool_call>"[:-1] + "<"):
        assert read_answer(text, named("hermes")) == (text, [], False)
    for text in ("{", '{"name"', '{"names": 1}', 'a{"name": "b", "arguments": {}}', ""):
        assert read_answer(text, named("json")) == (text, [], False)


def test_text_is_held_only_as_long_as_a_marker_is_possible() -> None:
    reader = CallReader(named("hermes"))
    assert reader.read("Hi <to") == ["Hi "] and reader.read("ol") == [] and reader.rest() == "<tool"
    assert reader.read("ing>") == ["<tooling>"] and reader.rest() == ""
    plain = CallReader(named("llama"))
    assert plain.read('{"na') == [] and plain.read("no") == ['{"nano'] and plain.read("{") == ["{"]


def test_each_call_has_an_id_of_its_own() -> None:
    form = named("hermes")
    calls = [read_answer(form.write([ToolCall("a", "now", "{}")] * 2), form)[1] for _ in range(50)]
    ids = {call.id for several in calls for call in several}
    assert len(ids) == 100 and all(one.startswith("call_") and len(one) == 29 for one in ids)
