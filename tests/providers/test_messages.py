"""Conversations as given: those accepted, and the messages for the others."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from cosd_providers.messages import Message, checked_messages

USER: Mapping[str, Any] = {"role": "user", "content": "Hello"}


def test_messages_and_dictionaries() -> None:
    mine = Message("user", "Hello")
    assert checked_messages([USER]) == checked_messages((mine,)) == (mine,)
    assert checked_messages([MappingProxyType({**USER, "name": "Ann", "refusal": None})]) == (mine,)
    whole = [{"role": "system", "content": "Be brief."}, mine, {"role": "assistant", "content": "Hi"}]
    assert [one.role for one in checked_messages(whole)] == ["system", "user", "assistant"]
    assert checked_messages([{"role": "developer", "content": "Be brief."}, mine])[0] == Message("system", "Be brief.")


def test_content_in_turn() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert checked_messages([{"role": "user", "content": parts}]) == (Message("user", "Hello"),)
    assert checked_messages([{"role": "user", "content": ["Hel", {"text": "lo"}]}]) == (Message("user", "Hello"),)
    assert checked_messages([{"role": "user", "content": []}]) == (Message("user", ""),)


def test_white_space_stays() -> None:
    assert checked_messages([{"role": "user", "content": " a\r\n"}])[0].content == " a\r\n"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("Hello", "a conversation is a list of messages, not str"),
        (b"Hello", "a conversation is a list of messages, not bytes"),
        (iter([USER]), "a conversation is a list of messages, not list_iterator"),
        (dict(USER), "a conversation is a list of messages, not dict"),
        ([], "the conversation is empty: there is nothing to answer"),
        ([{**USER, "role": "system"}], "the conversation has no user message: there is nothing to answer"),
        ([USER, "Hello"], 'messages[1] must be a Message or {"role": ..., "content": ...}, not str'),
        ([USER, {"content": "a"}], "messages[1] has the role None; known are 'system', 'user', 'assistant'"),
        ([{**USER, "role": "tool"}], "messages[0] has the role 'tool'; known are 'system', 'user', 'assistant'"),
        ([{**USER, "role": 7}], "messages[0] has the role of type int; known are 'system', 'user', 'assistant'"),
        (
            [{**USER, "role": ["user"]}],
            "messages[0] has the role of type list; known are 'system', 'user', 'assistant'",
        ),
        ([USER, {"role": "user"}], "the content of messages[1] must be text, not NoneType"),
        ([{**USER, "content": 7}], "the content of messages[0] must be text, not int"),
        ([{**USER, "content": b"Hello"}], "the content of messages[0] must be text, not bytes"),
        ([{**USER, "content": [{"type": "image_url"}]}], "messages[0] has a part of the type 'image_url'"),
        ([{**USER, "content": [{"type": "text"}]}], "the text of a part of messages[0] must be text, not NoneType"),
        ([{**USER, "content": [7]}], "the text of a part of messages[0] must be text, not int"),
        ([{**USER, "content": "ab\ud800"}], "messages[0] is not valid Unicode text at character 2"),
        ([Message("user", None)], "the content of messages[0] must be text, not NoneType"),  # type: ignore[arg-type]
        ([USER, {"role": "assistant", "tool_calls": [{}]}], "messages[1] has tool_calls: a fusion takes no tools"),
        ([USER, {**USER, "tool_call_id": "a"}], "messages[1] has tool_call_id: a fusion takes no tools"),
    ],
)
def test_what_is_refused(given: object, words: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - all of its words follow
        checked_messages(given)
    assert str(caught.value).startswith(words)


def test_no_error_repeats_what_somebody_says() -> None:
    """Role and content, or type and text, swapped."""
    secret = "My number is 5550123."
    parts = [{"type": secret, "text": "text"}]
    for given in ({"role": secret, "content": "user"}, {"role": "user", "content": parts}):
        with pytest.raises(ValueError, match=r"'\.\.\.'") as caught:
            checked_messages([given])
        assert "5550123" not in str(caught.value)
