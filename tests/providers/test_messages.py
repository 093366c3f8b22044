"""Conversations as given: those accepted, and the messages for the others."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from cosd_providers.messages import Message, Tool, ToolCall, Toolset, after_own, checked_messages, checked_own

USER: Mapping[str, Any] = {"role": "user", "content": "Hello"}
RESULT: Mapping[str, Any] = {"role": "tool", "content": "sunny", "tool_call_id": "call_1"}
ROLES = "known are 'system', 'user', 'assistant', 'tool'"
CALL_FORM = 'must be {"id": ..., "type": "function", "function": {"name": ..., "arguments": "{...}"}}'
NO_OBJECT = "has arguments that are not the text of a JSON object"
CALL_ID = "a message of the role 'tool', and no other, has a text as its tool_call_id"


def call(**function: Any) -> dict[str, Any]:
    about = {"name": "weather", "arguments": '{"city": "Lima"}', **function}
    return {"id": "call_1", "type": "function", "function": about}


def calling(*calls: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


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


def test_calls_and_their_results() -> None:
    weather = ToolCall("call_1", "weather", '{"city": "Lima"}')
    asked = [USER, calling(call()), RESULT]
    assert checked_messages(asked)[1:] == (
        Message("assistant", "", (weather,)),
        Message("tool", "sunny", tool_call_id="call_1"),
    )
    assert checked_messages(checked_messages(asked)) == checked_messages(asked)
    assert checked_messages([USER, calling(call(arguments="")), RESULT])[1].tool_calls[0].arguments == "{}"
    both = {**calling(call()), "content": "Let me see."}
    assert checked_messages([USER, both, RESULT])[1] == Message("assistant", "Let me see.", (weather,))
    assert checked_messages([{**USER, "tool_calls": None, "tool_call_id": None}]) == (Message("user", "Hello"),)


def test_a_models_own_system_message_leaves_tools_in_place() -> None:
    toolset = Toolset((Tool("weather"),), "hermes")
    asked = [Message("system", "", toolset=toolset), Message("user", "Hello")]
    assert after_own([Message("system", "Be brief.")], asked)[0] == Message("system", "Be brief.", toolset=toolset)
    asked[0] = Message("system", "Be kind.", toolset=toolset)
    whole = Message("system", "Be brief.\n\nBe kind.", toolset=toolset)
    assert after_own([Message("system", "Be brief.")], asked)[0] == whole


def test_a_models_own_messages_have_no_calls() -> None:
    for own in ([calling(call())], [RESULT]):
        with pytest.raises(ValueError, match="a model's own messages contain text only, without tool calls and thei"):
            checked_own(None, own)


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
        ([USER, {"content": "a"}], f"messages[1] has the role None; {ROLES}"),
        ([{**USER, "role": "function"}], f"messages[0] has the role 'function'; {ROLES}"),
        ([{**USER, "role": 7}], f"messages[0] has the role of type int; {ROLES}"),
        ([{**USER, "role": ["user"]}], f"messages[0] has the role of type list; {ROLES}"),
        ([USER, {"role": "user"}], "the content of messages[1] must be text, not NoneType"),
        ([{**USER, "content": 7}], "the content of messages[0] must be text, not int"),
        ([{**USER, "content": b"Hello"}], "the content of messages[0] must be text, not bytes"),
        ([{**USER, "content": [{"type": "image_url"}]}], "messages[0] has a part of the type 'image_url'"),
        ([{**USER, "content": [{"type": "text"}]}], "the text of a part of messages[0] must be text, not NoneType"),
        ([{**USER, "content": [7]}], "the text of a part of messages[0] must be text, not int"),
        ([{**USER, "content": "ab\ud800"}], "messages[0] is not valid Unicode text at character 2"),
        ([Message("user", None)], "the content of messages[0] must be text, not NoneType"),  # type: ignore[arg-type]
        ([USER, {"role": "assistant", "tool_calls": [{}]}], f"messages[1].tool_calls[0] {CALL_FORM}"),
        ([USER, {"role": "assistant", "tool_calls": "a"}], f"messages[1].tool_calls[0] {CALL_FORM}"),
        ([USER, calling(call(name=""))], f"messages[1].tool_calls[0] {CALL_FORM}"),
        ([USER, calling(call(), call(arguments=7))], f"messages[1].tool_calls[1] {CALL_FORM}"),
        ([USER, calling(call(arguments="{"))], f"messages[1].tool_calls[0] {NO_OBJECT}"),
        ([USER, calling(call(arguments="[]"))], f"messages[1].tool_calls[0] {NO_OBJECT}"),
        ([USER, calling(call(arguments='{"a": "\ud800"}'))], "messages[1] is not valid Unicode text at character 7"),
        (
            [{**calling(call()), "role": "user"}],
            "messages[0] has tool_calls, which only messages of the assistant have",
        ),
        ([USER, {**USER, "tool_call_id": "a"}], f"messages[1]: {CALL_ID}"),
        ([USER, calling(call()), {"role": "tool", "content": "1"}], f"messages[2]: {CALL_ID}"),
        ([USER, calling(call()), {**RESULT, "tool_call_id": 7}], f"messages[2]: {CALL_ID}"),
        ([USER, RESULT], "messages[1] is the result of a tool call that no earlier message makes"),
        ([USER, calling(call())], "the last message calls tools: append their results, "),
        ([USER, {"role": "assistant", "function_call": {"name": "a"}}], "messages[1] has function_call, which is obso"),
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
