"""Bodies of requests: what is taken, and the words for what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cosd_api import Fusion, Message
from cosd_api.apps.gateway import bodies
from cosd_api.apps.gateway.api_errors import ApiError
from cosd_api.apps.gateway.bodies import read_chat, read_completion
from cosd_api.apps.gateway.config import GatewayLimits
from toys.lima import assistant, draft, sampled

LIMITS = GatewayLimits(max_tokens=100, messages=3, prompts=2)
HELLO = [{"role": "user", "content": "Hello"}]


def chat(**more: Any) -> Any:
    return read_chat(json.dumps({"model": "m", "messages": HELLO, **more}).encode(), LIMITS)


def text(**more: Any) -> Any:
    return read_completion(json.dumps({"model": "m", "prompt": "Q:", **more}).encode(), LIMITS)


NEUTRAL: dict[str, Any] = {
    "n": 1,
    "temperature": 0,
    "top_p": 1,
    "stop": None,
    "frequency_penalty": 0,
    "presence_penalty": 0.0,
    "logit_bias": {},
    "user": "somebody",
    "seed": -7,
    "stream": False,
}


def test_what_means_nothing_else_is_taken() -> None:
    of_chat = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"]}
    found = chat(
        **NEUTRAL, **of_chat, top_logprobs=1, stream_options={}, metadata={"a": "b"}, store=False, service_tier="auto"
    )
    assert (found.options, found.stream, found.logprobs, found.of_method) == ({}, False, False, {"temperature": 0})
    assert text(**NEUTRAL, best_of=1, echo=False, suffix=None, own={}, logprobs=None).prompts == ("Q:",)
    assert chat(own=None).options == chat(own={}).options == {}
    assert chat(own={"draft": None, "assistant": []}).options == {"own": {"draft": (), "assistant": ()}}


def test_lengths_and_stops_are_those_of_an_answer() -> None:
    assert chat(max_completion_tokens=7, stop="x").options == {"max_tokens": 7, "stop": "x"}
    assert text(max_completion_tokens=7).options == {"max_tokens": 7}
    assert chat(max_tokens=9, max_completion_tokens=7).options == {"max_tokens": 7}  # the newer name
    assert text(max_tokens=7.0, stop=["x", "y"]).options == {"max_tokens": 7, "stop": ["x", "y"]}


def test_messages_are_read_as_the_library_reads_them() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    found = chat(
        messages=[{"role": "developer", "content": "Be brief"}, {"role": "user", "content": parts, "name": "a"}]
    )
    assert [(one.role, one.content) for one in found.prompts[0]] == [("system", "Be brief"), ("user", "Hello")]


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({"tools": [{"type": "function"}]}, "tools", r"tools\[0\] must be "),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice needs tools"),
        ({"functions": [{"name": "f"}]}, "functions", "functions is refused: give tools and tool_choice"),
        ({"json_schema": {}}, "json_schema", "json_schema is refused: give response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format", "with a schema inside"),
        ({"modalities": ["audio"]}, "modalities", "a fusion reads and writes text only"),
        ({"audio": {"voice": "a"}}, "audio", "a fusion reads and writes text only"),
        ({"temperature": 1.5}, "temperature", "give 0, or leave it out"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "give a number of tokens to list at each place, 0 to"),
        ({"top_logprobs": 3}, "top_logprobs", "give logprobs: true, too"),
        ({"max_token": 5}, "max_token", "unknown field 'max_token'; did you mean 'max_tokens'"),
        ({"zzz": 5}, "zzz", "unknown field 'zzz'"),
        ({"not a name": 5}, "...", r"unknown field '\.\.\.'"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens: input should be greater than or equal to 1"),
        ({"max_tokens": "5"}, "max_tokens", "max_tokens: input should be a valid integer"),
        ({"stop": 5}, "stop", "stop is refused: it must be text"),
        ({"stop": ""}, "stop", "stop is refused: it must be text, or a list of up to 16 texts, none of them empty"),
        ({"messages": []}, "messages", "the conversation is empty"),
        ({"messages": HELLO * 4}, "messages", "messages has 4 messages, and at most 3 are allowed here"),
        ({"messages": "Hello"}, "messages", "messages: input should be a valid list"),
        ({"messages": [{"role": "x", "content": "x"}]}, "messages", "has the role 'x'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "a fusion takes text only"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages", r"tool_calls\[0\] must be"),
        ({"own": "x"}, "own", "own must map names of models to their messages, not str"),
        ({"own": {"draft": 3}}, "own", r"own\['draft'\]: messages must be a list of messages, not int"),
        ({"own": {"draft": [{"role": "x", "content": ""}]}}, "own", r"messages\[0\] has the role 'x'"),
        ({"own": {"draft": [*HELLO, {"role": "system", "content": ""}]}}, "own", "only the first of a model's own"),
        ({"own": {"x" * 5000: ""}}, "own", "own has messages for a name of 5000 characters"),
        ({"own": {"draft": HELLO * 2, "assistant": ""}}, "own", "own has 3 messages, and at most 2 are allowed here"),
        ({"own": {f"{at}": [] for at in range(50_000)}}, "own", "own has 50000 messages, and at most 2 are allowed"),
    ],
)
def test_what_a_fusion_cannot_do_is_refused_with_the_reason(given: Any, param: str, words: str) -> None:
    with pytest.raises(ApiError, match=words.replace("(", r"\(").replace(")", r"\)")) as caught:
        chat(**given)
    assert (caught.value.status, caught.value.param, caught.value.kind) == (400, param, "invalid_request_error")


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        (
            {"prompt": [1, 2]},
            "prompt",
            "it must be text, or a list of texts: the models of a fusion may have different",
        ),
        ({"prompt": [[1, 2]]}, "prompt", "it must be text"),
        ({"prompt": ""}, "prompt", "it must be text"),
        ({"prompt": ["a", "b", "c"]}, "prompt", "prompt has 3 texts, and at most 2 are allowed here"),
        ({"logprobs": 6}, "logprobs", "for completions a number of tokens to list at each place, 0 to 5"),
        ({"logprobs": True}, "logprobs", "for completions a number"),
        ({"echo": True}, "echo", "a fusion writes what follows a text, not what comes"),
        ({"echo": 0}, "echo", "a fusion writes what follows a text, not what comes"),
        ({"suffix": "x"}, "suffix", "not what comes before or between"),
        ({"own": {"draft": "x"}}, "own", "own is refused: it is a field of /v1/chat/completions"),
    ],
)
def test_what_cannot_be_continued_is_refused_with_the_reason(given: Any, param: str, words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        text(**given)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the body is not valid JSON"),
        (b'{"model": "m"', "the body is not valid JSON"),
        (b"\xff", "the body is not valid JSON"),
        (b"[1]", "the body must be a JSON object"),
        (json.dumps({"x" * 3_000_000: 1}).encode(), "unknown field of 3000000 characters"),
        (json.dumps({f"x{at}": 1 for at in range(50_000)}).encode(), "unknown field 'x0'"),
        (json.dumps({"model": "m", "messages": [], "stop": [1] * 90_000}).encode(), "stop is refused"),
        (json.dumps({"model": "m", "stop": [1] * 500_000}).encode(), "the body has more than 100000 values"),
        (b"{}", "messages is required"),
        (b'{"model": "m"}', "messages is required"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}', "is not valid"),
    ],
)
def test_bodies_that_are_none(data: bytes, words: str) -> None:
    with pytest.raises(ApiError, match=words):
        read_chat(data, LIMITS)


def test_the_limits_of_an_answer_are_within_the_fusions_and_the_gateways() -> None:
    fusion = Fusion(draft=draft(), assistant=assistant())
    assert text().options_for(fusion, LIMITS) == {"timeout": 600, "max_tokens": 100}
    assert text().options_for(fusion, GatewayLimits()) == {"timeout": 600, "max_tokens": 256}
    fusion.limits = {"max_tokens": 500, "timeout": 5, "stop": "x", "max_billed_tokens": 9, "seed": 3}
    found = text(seed=-1, stop="y").options_for(fusion, LIMITS)
    assert found == {"max_tokens": 100, "timeout": 5, "stop": ["x", "y"], "max_billed_tokens": 9}
    fusion.limits = {"max_tokens": 5}
    for asked, most in ((50, 5), (3, 3)):
        assert text(max_tokens=asked).options_for(fusion, LIMITS)["max_tokens"] == most
    with pytest.raises(ApiError, match="max_completion_tokens is more than the 100 that are allowed here"):
        chat(max_completion_tokens=101, max_tokens=5)
    with pytest.raises(ApiError, match="max_tokens is more than the 100 that are allowed here"):
        text(max_tokens=1e300)


def test_own_messages_stand_after_those_of_the_fusion() -> None:
    fusion = Fusion(draft=draft(), assistant=assistant())
    found = chat(own={"assistant": "theirs"}).options_for(fusion, LIMITS)
    assert found["own"] == {"assistant": [Message("system", "theirs")]}
    fusion.limits = {"own": {"draft": "a pirate", "assistant": "mine"}}
    assert chat().options_for(fusion, LIMITS)["own"] == fusion.limits["own"]
    found = chat(own={"assistant": [{"role": "developer", "content": "theirs"}, *HELLO]}).options_for(fusion, LIMITS)
    assert found["own"] == {
        "draft": [Message("system", "a pirate")],
        "assistant": [Message("system", "mine\n\ntheirs"), Message("user", "Hello")],
    }
    words = "own has messages for 'judge', and the models are draft, assistant"
    with pytest.raises(ApiError, match=words) as caught:
        chat(own={"assistant": "x", "judge": None}).options_for(fusion, LIMITS)
    assert (caught.value.status, caught.value.param) == (400, "own")


def test_temperature_and_seed_are_the_methods() -> None:
    greedy = Fusion(draft=draft(), assistant=assistant())
    with pytest.raises(ApiError, match=r"temperature=1 is refused: this fusion has 0, as its tokens are the most"):
        text(temperature=1).options_for(greedy, LIMITS)
    settings = {name: one for name, one in sampled().items() if name != "seed"}
    draws = Fusion(**settings)
    assert text(temperature=1, seed=-1).options_for(draws, LIMITS)["seed"] == 2**31 - 1
    with pytest.raises(ApiError, match=r"temperature=0 is refused: this fusion has 1, as it draws its tokens"):
        text(temperature=0).options_for(draws, LIMITS)


@pytest.mark.parametrize("part", ["[]", "{}", '""', "1", '{"":""}'])
def test_a_body_of_very_many_values_is_refused_before_it_is_read(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "from_json", lambda _: pytest.fail("it was read"))
    with pytest.raises(ApiError, match="the body has more than 100000 values, which is too large for a conversation"):
        read_completion(b'{"user": [' + b",".join([part.encode()] * 100_000) + b"]}", LIMITS)


def test_a_body_may_have_a_value_for_each_part_of_a_message_that_is_allowed() -> None:
    many = [*HELLO * 40_000, *HELLO]
    found = read_chat(json.dumps({"model": "m", "messages": many}).encode(), GatewayLimits(messages=50_000))
    assert len(found.prompts[0]) == 40_001


# ------------------------------------------------------------------------------------------------- fields to be ignored


def ignoring(*ignore: str, **more: Any) -> Any:
    return read_chat(json.dumps({"model": "m", "messages": HELLO, **more}).encode(), LIMITS, ignore)


@pytest.mark.parametrize(
    "given",
    [{"temperature": 0.7}, {"temperature": 7}, {"temperature": "hot"}, {"top_p": 0.9}, {"logit_bias": {"5": 1}},
     {"reasoning_effort": "high"}, {"chat_template_kwargs": {"enable_thinking": False}}, {"top_k": 40}],
)  # fmt: skip
def test_a_field_is_refused_unless_the_operator_has_it_ignored(given: Any) -> None:
    [name] = given
    greedy = Fusion(draft=draft(), assistant=assistant())
    for ignore in ((), ("presence_penalty",)):
        with pytest.raises(ApiError) as caught:
            ignoring(*ignore, **given).options_for(greedy, LIMITS)
        assert str(caught.value).endswith(f"whoever runs the gateway can have it ignored (ignore: [{name}])")
    found = ignoring(name, **given)
    assert found.ignored(greedy) == [name]
    assert found.options_for(greedy, LIMITS) == chat().options_for(greedy, LIMITS)
    with pytest.raises(ApiError) as caught:  # a batch has no operator
        chat(**given).options_for(greedy, LIMITS)
    assert "ignore" not in str(caught.value)


def test_what_would_change_nothing_is_not_named() -> None:
    greedy = Fusion(draft=draft(), assistant=assistant())
    assert ignoring("temperature", temperature=0).ignored(greedy) == []
    draws = Fusion(**{name: one for name, one in sampled().items() if name != "seed"})
    assert ignoring("temperature", temperature=0).ignored(draws) == ["temperature"]
    assert ignoring("temperature", temperature=1).ignored(draws) == []
    found = ignoring("top_p", "temperature", temperature=0.7, top_p=0.5, seed=3)
    assert found.ignored(greedy) == ["temperature", "top_p"]  # as they came
