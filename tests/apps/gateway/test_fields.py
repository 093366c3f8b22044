"""The table of fields: values that change nothing, values that would, and what the operator may have ignored."""

from __future__ import annotations

import json
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import openai
import openai.types.chat.completion_create_params as of_chat
import openai.types.completion_create_params as of_text
import pytest

from cosd_api import Fusion, SettingError
from cosd_api.apps.gateway import Gateway
from cosd_api.apps.gateway.api_errors import ApiError
from cosd_api.apps.gateway.bodies import ChatBody, CompletionBody, read_chat, read_completion
from cosd_api.apps.gateway.config import GatewayLimits
from cosd_api.apps.gateway.fields import FIELDS, GROUPS, Fitting
from cosd_api.apps.gateway.responses import ResponsesBody
from support.visits import opened, visit
from toys.lima import FUSED, assistant, draft, sampled

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
BEGUN: list[Any] = [*HELLO, {"role": "assistant", "content": "Well"}]
CHAT: dict[str, Any] = {"model": "fused", "messages": HELLO}
TEXT: dict[str, Any] = {"model": "fused", "prompt": "Q:"}
BODIES = pytest.mark.parametrize("body", [CHAT, TEXT], ids=["chat", "text"])
UNKNOWN = ("think", "provider", "options", "zzz")

PROGRAMS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("bodies.json").read_text(encoding="utf-8"))
"""Fields of other programs: those that llama.cpp's web client sends, with all of its samplers set to nothing; those of
a body of Open WebUI's own API, and what it sends to a server; and those that vLLM fills in where a client leaves them
out.
"""


def read(body: Mapping[str, Any], *ignore: str, **more: Any) -> Any:
    reader = read_chat if "messages" in body else read_completion
    return reader(json.dumps({**body, **more}).encode(), GatewayLimits(), ignore)


def greedy() -> Fusion:
    return Fusion(draft=draft(), assistant=assistant())


def test_the_fields_of_openais_client_are_known() -> None:
    kinds: Any = (of_chat.CompletionCreateParamsBase, of_text.CompletionCreateParamsBase)
    assert {name for kind in kinds for name in kind.__annotations__} <= FIELDS.keys()


def test_the_fields_that_are_used_are_those_of_the_bodies() -> None:
    used = {name for group in GROUPS if not group.reason for name, values in group.values.items() if values is not None}
    assert used == {name for kind in (ChatBody, CompletionBody, ResponsesBody) for name in kind.model_fields}
    assert len(FIELDS) == sum(len(group.values) for group in GROUPS)


@BODIES
def test_null_is_absent(body: dict[str, Any]) -> None:
    for name in {*FIELDS, *UNKNOWN} - body.keys():
        assert read(body, **{name: None}) == read(body), name
    assert read(body, **dict.fromkeys({*FIELDS, *UNKNOWN} - body.keys())) == read(body)


@BODIES
def test_a_value_that_changes_nothing_is_accepted(body: dict[str, Any]) -> None:
    for name, group in FIELDS.items():
        values = group.values[name]
        for value in [[1], {"a": {}}, "x", 3, True] if values is None else values:
            given = value.of(body) if isinstance(value, Fitting) else value
            for ignore in ((), (name,)):  # what changes nothing is not named, either
                assert read(body, *ignore, **{name: given}) == read(body), (name, given)


@BODIES
@pytest.mark.parametrize("value", [{"type": "other"}, ["other"], "other", 17], ids=repr)
def test_another_value_is_refused_in_words_unless_it_is_ignored(body: dict[str, Any], value: Any) -> None:
    for name in (*(name for name, group in FIELDS.items() if group.reason), *UNKNOWN):
        group = FIELDS.get(name)
        words = f"unknown field {name!r}" if group is None else f"{name} is refused: {group.reason}"
        if group is None or group.ignorable:
            words += (
                f"{'. Leave it out' if group else ''}; whoever runs the gateway can have it ignored (ignore: [{name}])"
            )
            assert read(body, name, **{name: value}).ignored(greedy()) == [name]
        else:
            with pytest.raises(SettingError, match=f"{name!r} cannot be ignored, only fields that leave the form"):
                Gateway({"m": greedy()}, ignore=["top_p", name])
        with pytest.raises(ApiError) as caught:
            read(body, **{name: value})
        assert (str(caught.value), caught.value.param, caught.value.status) == (words, name, 400)


def test_true_is_not_one_and_zero_is_not_false() -> None:
    for name, value in (("n", True), ("echo", 0), ("min_p", False), ("skip_special_tokens", 1)):
        with pytest.raises(ApiError, match=f"{name} is refused"):
            read(TEXT, **{name: value})


def test_objects_may_lack_members_or_have_them_null() -> None:
    text: dict[str, Any] = {"type": "text", "json_schema": None}
    off: dict[str, Any] = {"web_search": False, "voice": None, "later": None}
    assert read(CHAT, response_format=text, features=off) == read(CHAT)
    for more in ({"response_format": {**text, "json_schema": {}}}, {"features": {"web_search": True}}):
        with pytest.raises(ApiError, match="is refused"):
            read(CHAT, **more)


def test_what_is_said_about_the_last_message_must_be_so() -> None:
    for messages, goes_on in ((HELLO, False), (BEGUN, True)):
        right = {"continue_final_message": goes_on, "add_generation_prompt": not goes_on}
        assert read(CHAT, messages=messages, **right) == read(CHAT, messages=messages)
        for name, value in right.items():
            with pytest.raises(ApiError, match=f"{name} is refused: each model reads the whole prompt"):
                read(CHAT, messages=messages, **{name: not value})
    for body, special in ((CHAT, False), (TEXT, True)):
        assert read(body, add_special_tokens=special) == read(body)
        if body is TEXT:
            read_completion(
                json.dumps({**TEXT, "messages": None, "add_special_tokens": True}).encode(), GatewayLimits()
            )
        with pytest.raises(ApiError, match="add_special_tokens is refused"):
            read(body, add_special_tokens=not special)


def test_drawing_must_fit_the_method() -> None:
    draws = Fusion(**{name: one for name, one in sampled().items() if name != "seed"})
    for fusion, fits in ((greedy(), False), (draws, True)):
        read(TEXT, do_sample=fits).options_for(fusion, GatewayLimits())
        assert read(TEXT, "do_sample", do_sample=fits).ignored(fusion) == []
        assert read(TEXT, "do_sample", do_sample=not fits).ignored(fusion) == ["do_sample"]
        words = f"do_sample={str(not fits).lower()} is refused: this fusion has {str(fits).lower()}, as it.* tokens"
        with pytest.raises(ApiError, match=words) as caught:
            read(TEXT, do_sample=not fits).options_for(fusion, GatewayLimits())
        assert str(caught.value).endswith("can have it ignored (ignore: [do_sample])")


def test_a_field_of_the_other_route_is_refused_with_its_name() -> None:
    for body, name, value, route in (
        (TEXT, "messages", HELLO, "/v1/chat/completions"),
        (TEXT, "top_logprobs", 3, "/v1/chat/completions"),
        (CHAT, "prompt", "Q:", "/v1/completions"),
    ):
        reader = read_completion if body is TEXT else read_chat
        with pytest.raises(ApiError, match=f"^{name} is refused: it is a field of {route}$"):
            reader(json.dumps({**body, name: value}).encode(), GatewayLimits(), ())


@pytest.mark.parametrize("more", PROGRAMS.values(), ids=PROGRAMS)
async def test_bodies_of_other_programs_are_answered(more: dict[str, Any]) -> None:
    async with opened(greedy()) as app:
        reply = await visit(app, "/v1/chat/completions", {**CHAT, **more})
    assert reply.status == 200, reply.body
    assert b"ignored" not in reply.body


async def test_openais_client_may_send_all_of_its_fields() -> None:
    more: Any = {
        "audio": None, "frequency_penalty": 0, "function_call": "none", "functions": [], "logit_bias": {},
        "logprobs": False, "max_completion_tokens": 5, "metadata": {"a": "b"}, "modalities": ["text"],
        "moderation": None, "n": 1, "parallel_tool_calls": True, "presence_penalty": 0,
        "prediction": {"type": "content", "content": "Lima"}, "prompt_cache_key": "k", "prompt_cache_retention": "24h",
        "reasoning_effort": None, "response_format": {"type": "text"}, "safety_identifier": "s", "seed": 3,
        "service_tier": "auto", "stop": [], "store": False, "temperature": 0, "tool_choice": "auto", "tools": [],
        "top_logprobs": 0, "top_p": 1, "user": "u", "verbosity": "medium",
    }  # fmt: skip
    texts: Any = {"best_of": 1, "echo": False, "suffix": None, "logprobs": None, "n": 1, "logit_bias": {}, "user": "u"}
    async with opened(greedy(), ignore=("think",)) as app:
        http: Any = httpx.AsyncClient(transport=httpx.ASGITransport(app=app))
        async with openai.AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key="none", http_client=http) as client:
            chat = await client.chat.completions.create(**CHAT, **more, extra_body={"think": False, "min_p": 0})
            text = await client.completions.create(**TEXT, **texts)
            with pytest.raises(openai.BadRequestError, match=r"unknown field 'options'.*\(ignore: \[options\]\)"):
                await client.completions.create(**TEXT, extra_body={"options": {"num_ctx": 4096}})
    assert chat.model_extra is not None and chat.model_extra["cosd"]["ignored"] == ["think"]
    assert text.choices[0].text == FUSED
    assert text.model_extra is not None and "ignored" not in text.model_extra["cosd"]


def test_the_table_of_the_documentation_is_this_one() -> None:
    docs = Path(__file__).resolve().parents[3] / "docs"
    text = (docs / "gateway.md").read_text(encoding="utf-8")
    made: dict[str, Any] = runpy.run_path(str(docs / "generate_fields.py"))
    assert made["page"](text) == text, "run `make docs`"
    listed = text.partition(made["BEGIN"])[2].partition(made["END"])[0]
    assert all(f"`{name}`" in listed for name in FIELDS)
