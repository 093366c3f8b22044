"""The speed of models, measured in virtual time, and the time of answers at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import anyio
import pytest

from cosd_api.endpoints import Endpoints
from cosd_api.speed import Speed, expected_time, measure_speeds
from cosd_api.types import EndpointEstimate, Range
from cosd_api.wording import duration
from cosd_providers import ConnectError
from cosd_providers.testing import Fault, ScriptedProvider, TableModel
from support import virtual_time

END, LETTERS = 0, [bytes([byte]) for byte in range(256)]
CHAT = [{"role": "user", "content": "Q"}]


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time.BACKEND


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosd_api.speed.perf_counter", anyio.current_time)


def writes(length: int | None = None) -> TableModel:
    """A model that writes `x`, and after so many of them its end."""

    def following(ids: Sequence[int]) -> list[float]:
        ends = length is not None and [*ids[-length:]] == [1 + ord("x")] * length
        return [float(at == (END if ends else 1 + ord("x"))) for at in range(257)]

    return TableModel([b"", *LETTERS], following, end_ids=(END,))


def model(name: str = "model", length: int | None = None, **options: Any) -> ScriptedProvider:
    return ScriptedProvider(writes(length), name, **{"request_delay": 0.5, "token_delay": 0.1, **options})


async def speed(provider: ScriptedProvider, prompt: Any = "Q", **options: Any) -> Speed:
    async with Endpoints(provider, provider) as endpoints:
        return (await measure_speeds(endpoints, prompt, **options))["draft"]


async def test_a_request_and_each_further_token() -> None:
    found = await speed(model())
    assert astuple(found) == pytest.approx((0.6, 0.1))


async def test_few_requests_of_few_tokens_that_do_not_have_the_users_prompt() -> None:
    draft, assistant = model(), model("one")
    async with Endpoints(draft, assistant) as endpoints:
        assert [*await measure_speeds(endpoints, "a secret")] == ["draft", "assistant"]
    assert [call.max_tokens for call in draft.calls] == [call.max_tokens for call in assistant.calls] == [1, 1, 16]
    assert not any("secret" in call.prompt for call in draft.calls)


async def test_messages_are_measured_as_messages() -> None:
    provider = model()
    await speed(provider, CHAT)
    assert all(call.prompt.startswith("user: ") for call in provider.calls)


async def test_a_model_that_ends_at_once_takes_a_request_for_each_token() -> None:
    found = await speed(ScriptedProvider.from_texts({"Q": []}, request_delay=0.5))
    assert found.request == found.token == pytest.approx(0.5)


async def test_what_the_server_refuses_is_its_error() -> None:
    with pytest.raises(ConnectError):
        await speed(model(faults=[Fault(ConnectError("no connection"))]))


def cost(requests: int, read: int, written: int) -> EndpointEstimate:
    several = (Range(low=0, expected=one, high=one) for one in (requests, read + written))
    return EndpointEstimate(
        prompt_tokens=100, counted=True, requests=next(several), billed_tokens=next(several), written_tokens=written
    )


def test_the_time_of_an_answer() -> None:
    one, other = Speed(0.5, 0.1), Speed(1.0, 0.2)
    assert one.time_of(cost(1, 100, 21), 20) == pytest.approx(0.5 + 20 * 0.1)
    assert one.time_of(cost(4, 440, 8), 20) == pytest.approx(4 * 0.5 + 4 * 0.1)
    assert one.time_of(cost(1, 1100, 0), 20) == pytest.approx(10 * 0.5)  # ten prompts in one request
    assert one.time_of(cost(0, 0, 0), 20) == 0
    both = expected_time(
        {"draft": cost(1, 100, 21), "assistant": cost(1, 110, 1)}, {"draft": one, "assistant": other}, 20
    )
    assert both == pytest.approx(2.5 + 1.0)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.01, "1 second"),
        (45.4, "45 seconds"),
        (99.4, "99 seconds"),
        (120, "2 minutes"),
        (5900, "98 minutes"),
        (9000, "2.5 hours"),
        (360_000, "100 hours"),
    ],
)
def test_durations_in_words(seconds: float, said: str) -> None:
    assert duration(seconds) == said
