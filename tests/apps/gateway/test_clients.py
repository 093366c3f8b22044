"""Clients: keys, requests at a time, and billed tokens in a minute."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import anyio
import pytest

from cosd_api.apps.gateway.api_errors import ApiError
from cosd_api.apps.gateway.client_limits import Client, Clients, IncomingBody, is_local
from cosd_api.apps.gateway.config import ClientKey

ONE, TWO = "a" * 16, "b" * 16


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def clients(clock: Clock | None = None, **limits: Any) -> Clients:
    keys = {ONE: ClientKey(name="one", env="ONE", **limits), TWO: ClientKey(name="two", env="TWO")}
    return Clients(keys, 10, clock or Clock())


def test_a_key_is_recognized() -> None:
    several = clients()
    assert several.secured
    assert several.recognize(f"Bearer {ONE}", "anywhere.example", "203.0.113.5").name == "one"
    assert several.recognize(f"bearer  {TWO} ", "", None).name == "two"


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("", "an API key is required"),
        (ONE, "an API key is required"),
        (f"Basic {ONE}", "an API key is required"),
        (f"Bearer {ONE}x", "the API key is wrong"),
        ("Bearer é", "the API key is wrong"),
    ],
)
def test_another_is_not(header: str, words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        clients().recognize(header, "localhost", "127.0.0.1")
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")


def test_without_keys_a_foreign_name_is_refused() -> None:
    nobody = Clients({}, 1)
    assert not nobody.secured
    assert nobody.recognize("Bearer whatever", "localhost:8000", "127.0.0.1").name == ""
    with pytest.raises(ApiError, match="not to another name") as caught:
        nobody.recognize("", "rebound.example:8000", "::1")
    assert caught.value.status == 403


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("LOCALHOST:80", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("10.0.0.7", True),
        ("localhost.example", False),
        ("example.com:80", False),
        ("", False),
        ("[evil]:1", False),
    ],
)
def test_names_of_this_machine(host: str, local: bool) -> None:
    assert is_local(host) is local


def test_requests_at_a_time_are_limited_by_key_and_by_all_together() -> None:
    several = Clients({ONE: ClientKey(name="one", env="ONE", concurrency=1), TWO: ClientKey(name="two", env="TWO")}, 2)
    one, two = (several.recognize(f"Bearer {key}", "", "10.0.0.1") for key in (ONE, TWO))
    with several.admitted(one, 0):
        with pytest.raises(ApiError, match="this key has 1 requests in progress, and at most 1 are allowed") as caught:
            several.admitted(one, 0).__enter__()
        assert (caught.value.status, caught.value.retry_after, caught.value.retryable) == (429, 1, True)
        with several.admitted(two, 0), pytest.raises(ApiError, match="progress take 2 places, and at most 2 are all"):
            several.admitted(two, 0).__enter__()
    with pytest.raises(ValueError, match="broke"), several.admitted(one, 0):
        raise ValueError("broke")
    with several.admitted(one, 0), several.admitted(two, 0):
        pass


def test_a_large_body_takes_several_places() -> None:
    several = Clients({}, 3)
    nobody = several.recognize("", "localhost", "127.0.0.1")
    with several.admitted(nobody, 70_000):
        with pytest.raises(ApiError, match="take 2 places, and at most 3 are allowed"):
            several.admitted(nobody, 70_000).__enter__()
        with several.admitted(nobody, 60_000):
            pass
    with several.admitted(nobody, 9_000_000), pytest.raises(ApiError, match="take 3 places"):  # it has all of them
        several.admitted(nobody, 0).__enter__()
    with several.admitted(nobody, 0), several.admitted(nobody, 0), several.admitted(nobody, 0):
        pass


async def test_of_too_many_bodies_on_their_way_the_oldest_of_the_greediest_client_is_refused() -> None:
    several = clients()  # with 10 places
    one, two = (several.recognize(f"Bearer {key}", "", None) for key in (ONE, TWO))
    with ExitStack() as stack:

        def arriving(client: Client) -> IncomingBody:
            return stack.enter_context(several.incoming(client, anyio.CancelScope()))

        small = arriving(two)
        many = [arriving(one) for _ in range(9)]
        assert not any(body.refused for body in many)
        late = arriving(two)  # the eleventh
        assert [body.refused is None for body in (small, late, *many)] == [True, True, False, *[True] * 8]
        assert many[0].refused is not None
        words = "too many bodies of requests are on their way, and this one has taken longest"
        assert (str(many[0].refused), many[0].refused.status, many[0].refused.retry_after) == (words, 429, 1)
        several.grow(many[8], 200_000)  # takes three more places
        assert [body.refused is None for body in many] == [False] * 4 + [True] * 5
        several.grow(many[8], 210_000)
        with several.admitted(one, 600_000):  # bodies on their way take no places of requests in progress
            pass
    assert (one.incoming, two.incoming) == (0, 0)


def test_billed_tokens_are_limited_in_any_minute() -> None:
    clock = Clock()
    client = clients(clock, billed_tokens_per_minute=100).recognize(f"Bearer {ONE}", "", "10.0.0.1")
    client.check()
    client.bill(60)
    clock.now += 20
    client.bill(39)
    client.check()
    client.bill(41)  # what is in progress may overshoot
    with pytest.raises(
        ApiError, match="140 tokens were billed for this key in the last minute, and 100 are all"
    ) as caught:
        client.check()
    assert caught.value.retry_after == 40
    clock.now += 40
    client.check()
    clock.now += 19
    client.bill(20)
    with pytest.raises(ApiError, match="100 tokens were billed"):
        client.check()
    clock.now += 100
    client.check()


@pytest.mark.parametrize(
    ("address", "good"),
    [("127.0.0.1", True), ("::1", True), (None, True), ("203.0.113.5", False), ("client", False)],
)
def test_without_keys_other_machines_are_refused(address: str | None, good: bool) -> None:
    nobody = Clients({}, 1)
    if good:
        assert nobody.recognize("", "203.0.113.5:8000", address).name == ""
    else:
        with pytest.raises(ApiError, match="serves clients on its own machine only") as caught:
            nobody.recognize("", "localhost", address)
        assert (caught.value.status, caught.value.code) == (403, "foreign_client")


def test_bills_are_kept_for_a_minute_and_only_where_they_are_limited() -> None:
    clock = Clock()
    for limits, kept in (({}, 0), ({"concurrency": 2}, 0), ({"billed_tokens_per_minute": 5}, 60)):
        client = clients(clock, **limits).recognize(f"Bearer {ONE}", "", None)
        for _ in range(200):
            clock.now += 1
            client.bill(1)
        assert len(client._tokens._entries) == kept


def test_requests_are_limited_in_any_minute() -> None:
    clock = Clock()
    client = clients(clock, requests_per_minute=2).recognize(f"Bearer {ONE}", "", None)
    client.count_request()
    clock.now += 20
    client.count_request()
    with pytest.raises(ApiError, match="this key has made 2 requests in the last minute, and 2 are allowed") as caught:
        client.count_request()
    assert (caught.value.status, caught.value.retry_after) == (429, 40)
    clock.now += 40
    client.count_request()  # those that were refused do not count
    with pytest.raises(ApiError):
        client.count_request()


def test_cached_tokens_weigh_less() -> None:
    for weight, left in ((None, "10"), (0, "100"), (1, "0"), (0.25, "0")):
        given: dict[str, Any] = {} if weight is None else {"cached_weight": weight}
        client = clients(billed_tokens_per_minute=1000, **given).recognize(f"Bearer {ONE}", "", None)
        client.bill(1800, cached=900)
        assert client.headers["x-ratelimit-remaining-tokens"] == left


def test_limits_have_openais_headers() -> None:
    clock = Clock()
    assert clients(clock).recognize(f"Bearer {ONE}", "", None).headers == {}
    several = clients(clock, requests_per_minute=3, billed_tokens_per_minute=500)
    client = several.recognize(f"Bearer {ONE}", "", None)
    names = [f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")]
    assert client.headers == dict(zip(names, ("3", "3", "0s", "500", "500", "0s"), strict=True))
    client.count_request()
    clock.now += 12.25
    client.bill(600)
    assert client.headers == dict(zip(names, ("3", "2", "47.75s", "500", "0", "1m0s"), strict=True))
    clock.now += 47.25
    assert client.headers["x-ratelimit-reset-requests"] == "500ms"
    assert several.recognize(f"Bearer {TWO}", "", None).headers == {}


def test_other_keys_are_taken_and_counts_go_on() -> None:
    several = clients(requests_per_minute=1, concurrency=1)
    one = several.recognize(f"Bearer {ONE}", "", None)
    one.count_request()
    with several.admitted(one, 0):
        several.change({"n" * 16: ClientKey(name="one", requests_per_minute=2, concurrency=1)})
        same = several.recognize(f"Bearer {'n' * 16}", "", None)
        with pytest.raises(ApiError, match="this key has 1 requests in progress"):
            same.check()
        for gone in (ONE, TWO):
            with pytest.raises(ApiError, match="the API key is wrong"):
                several.recognize(f"Bearer {gone}", "", None)
    same.count_request()
    with pytest.raises(ApiError, match="this key has made 2 requests in the last minute, and 2 are allowed"):
        same.count_request()
