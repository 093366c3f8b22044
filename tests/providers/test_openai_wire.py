"""The shapes of OpenAI's routes, as servers were seen to write them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cosd_providers import ResponseError
from cosd_providers.drafting import RequestBill
from cosd_providers.engine import Models
from cosd_providers.engines.openai.wire import Candidate, Completion, Step, WireAnswer, steps
from cosd_providers.greedy import prob
from cosd_providers.parsing import parse

LEGACY: dict[str, Any] = {
    "text": " ab",
    "logprobs": {
        "text_offset": [0, 2],
        "tokens": [" a", "b"],
        "token_logprobs": [None, 0.0],
        "top_logprobs": [None, {"b": 0.0, "c": -9999.0}],
    },
}


def test_the_legacy_shape() -> None:
    assert steps(Completion.model_validate(LEGACY)) == [
        Step(Candidate(" a", None), []),
        Step(Candidate("b", 1.0), [Candidate("b", 1.0), Candidate("c", 0.0)]),
    ]
    listed = {"tokens": ["a"], "token_logprobs": [0.0], "top_logprobs": None}
    assert steps(Completion.model_validate({"logprobs": listed})) == [Step(Candidate("a", 1.0), [])]


def test_the_chat_shape() -> None:
    own = {"id": 7, "token": "é", "bytes": [195, 169], "logprob": 0.0}
    part = {"id": 8, "token": "\ufffd", "bytes": [169], "logprob": -1.0}
    other = {"token": "x", "bytes": None, "logprob": None}
    [step] = steps(Completion.model_validate({"logprobs": {"content": [{**own, "top_logprobs": [part, other]}]}}))
    assert step.pick == Candidate("é", 1.0, None, 7)
    assert step.top == [Candidate("\ufffd", math.exp(-1), b"\xa9", 8), Candidate("x", None)]


def test_tokens_that_are_written_as_ids_or_bytes() -> None:
    logprobs = {"tokens": ["token_id:49", "bytes:\\xe2\\x82"], "token_logprobs": [0.0, 0.0]}
    [one, two] = steps(Completion.model_validate({"logprobs": logprobs}))
    assert one.pick == Candidate("", 1.0, None, 49)
    assert two.pick == Candidate("", 1.0, b"\xe2\x82")


def test_ids_beside_the_tokens() -> None:
    assert [s.pick.id for s in steps(Completion.model_validate({**LEGACY, "token_ids": [3, 4]}))] == [3, 4]
    assert [s.pick.id for s in steps(Completion.model_validate({**LEGACY, "token_ids": [3]}))] == [None, None]


def test_no_logprobs() -> None:
    assert steps(Completion.model_validate({"text": "a", "logprobs": None})) == []
    assert steps(Completion.model_validate({"text": "a", "logprobs": {}})) == []


@pytest.mark.parametrize(
    ("choice", "written"),
    [
        ({"text": "a"}, "a"),
        ({"delta": {"content": "b"}}, "b"),
        ({"message": {"content": "c"}}, "c"),
        ({"delta": {"role": "assistant", "content": None}}, ""),
        ({"delta": {}}, ""),
    ],
)
def test_text_of_either_route(choice: dict[str, Any], written: str) -> None:
    assert Completion.model_validate(choice).written == written


@pytest.mark.parametrize(
    ("logprob", "expected"), [(0.0, 1.0), (1e-7, 1.0), (-9999.0, 0.0), (-3.4e38, 0.0), (None, None), (math.nan, None)]
)
def test_probabilities(logprob: float | None, expected: float | None) -> None:
    assert prob(logprob) == expected


def test_usage() -> None:
    data = {"usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}}
    shown = {"choices": [LEGACY]}
    for answer, expected in (
        (data, RequestBill(5, 2, 4)),
        ({**shown, "usage": {"prompt_tokens": 1, "prompt_tokens_details": None}}, RequestBill(1, 2)),
        ({**shown, "usage": {"prompt_tokens": 0, "completion_tokens": 1}}, RequestBill(0, 1)),
        (shown, RequestBill(0, 2)),
    ):
        bill = RequestBill()
        parse(WireAnswer, answer, "http://gpu").report(bill)
        assert bill == expected


def test_what_servers_write_as_null() -> None:
    nothing = {"choices": None, "usage": {"prompt_tokens": None, "completion_tokens": None}}
    answer = parse(WireAnswer, nothing, "http://gpu")
    assert answer.choices == []
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (0, None)
    [choice] = parse(WireAnswer, {"choices": [{"index": None, "text": None, "finish_reason": None}]}, "").choices
    assert (choice.index, choice.written, choice.finish_reason) == (0, "", None)


@pytest.mark.parametrize("reason", ["stop", "eos", "eos_token", "end_turn"])
def test_reasons_that_are_the_end_of_sequence(reason: str) -> None:
    assert Completion.model_validate({"finish_reason": reason}).finish_reason == "stop"
    assert Completion.model_validate({"finish_reason": "length"}).finish_reason == "length"


def test_models_and_their_contexts() -> None:
    data = [
        {"id": "a", "max_model_len": 512},
        {"id": "b", "meta": {"n_ctx": 256}},
        {"id": "c", "meta": None},
        {"id": "d", "context_length": 9},
    ]
    assert [model.max_model_len for model in parse(Models, {"data": data}, "").data] == [512, 256, None, 9]


def test_what_is_not_as_expected_is_named_and_not_quoted() -> None:
    with pytest.raises(ResponseError, match=r"http://gpu: the answer is not as expected: choices.0.text") as caught:
        parse(WireAnswer, {"choices": [{"text": ["secret"]}]}, "http://gpu")
    assert "secret" not in str(caught.value)
    with pytest.raises(ResponseError, match="all of it"):
        parse(WireAnswer, [], "http://gpu")


def offset(tokens: list[str], offsets: list[int], text: str) -> list[tuple[bytes | None, list[str]]]:
    """The bytes of each token and the tokens listed beside it, where a server sends offsets."""
    tops = [{token: -0.1, "x": -3.0, "": -0.2} for token in tokens]
    logprobs = {"tokens": tokens, "token_logprobs": [-0.1] * len(tokens), "top_logprobs": tops, "text_offset": offsets}
    choice = Completion.model_validate({"text": text, "logprobs": logprobs})
    return [(step.pick.data, [other.text for other in step.top]) for step in steps(choice)]


def test_offsets_tell_what_a_token_without_a_string_completes() -> None:
    found = offset(["a", "", "", " ", "b"], [9, 10, 10, 11, 12], "a\u6771 b")
    assert [data for data, _ in found] == [b"a", None, "\u6771".encode(), b" ", None]
    # Several tokens have no string: one that is listed without is still another one for all that is known.
    assert [listed for _, listed in found][:3] == [["x", ""], ["", "x"], ["", "x"]]


@pytest.mark.parametrize(
    ("tokens", "offsets", "text"),
    [
        (["a", "", " "], [0, 1], "a\u6771 "),  # too few
        (["a", "", "c"], [0, 2, 3], "a\u6771 c"),  # the first one does not stand there
        (["a", "", "c"], [0, 2, 1], "a\u6771c"),
        (["a", "", "c"], [0, 1, 9], "a\u6771c"),
        (["a", "b", "c"], [0, 1, 2], "abc"),  # all have strings: nothing is in doubt
    ],
)
def test_offsets_that_are_not_used(tokens: list[str], offsets: list[int], text: str) -> None:
    found = offset(tokens, offsets, text)
    assert [data for data, _ in found] == [None] * len(found)


def test_a_string_before_a_token_without_one_may_not_be_all() -> None:
    logprobs = {"tokens": ["a", " ", "", "", "b", "c"], "token_logprobs": [-0.1] * 6}
    found = steps(Completion.model_validate({"text": "a \u6771bc", "logprobs": logprobs}))
    assert [step.sure for step in found] == [True, False, True, True, True, False]
    plain = {"tokens": ["a", "b"], "token_logprobs": [-0.1, -0.1]}
    assert all(step.sure for step in steps(Completion.model_validate({"text": "ab", "logprobs": plain})))
