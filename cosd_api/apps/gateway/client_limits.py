"""Clients: their keys, and their limits on requests in progress and per minute."""

from __future__ import annotations

import hmac
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address

import anyio

from cosd_api.apps.gateway.api_errors import ApiError
from cosd_api.apps.gateway.body_sizes import places
from cosd_api.apps.gateway.config import ClientKey

__all__ = ["Client", "Clients", "IncomingBody", "is_local"]

_MINUTE = 60.0
_SOON = 1.0  # seconds after which a client that found no free place should try again


class Client:
    """The counts of requests and tokens for one key.

    Args:
        key: the key's name and limits; None for clients without a key.
        clock: function that returns the time in seconds.

    Attributes:
        in_progress: number of requests in progress.
        incoming: number of places that the bodies take that have not arrived completely.
    """

    def __init__(self, key: ClientKey | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = key
        self._requests = _Minute(clock)
        self._tokens = _Minute(clock)
        self.in_progress = self.incoming = 0

    def change(self, key: ClientKey) -> None:
        """Change the limits, but keep the counts."""
        self._key = key

    @property
    def name(self) -> str:
        """The name of the client's key; empty if the client has no key."""
        return "" if self._key is None else self._key.name

    def bill(self, tokens: int, cached: int = 0) -> None:
        """Count tokens that were billed for the client, including estimated numbers.

        Args:
            tokens: total number of tokens.
            cached: number of these tokens that came from a cache. Cached tokens count less.
        """
        if self._key is not None and self._key.billed_tokens_per_minute is not None:
            self._tokens.add(tokens - cached * (1 - self._key.cached_weight))

    def check(self) -> None:
        """Check the client's limits on requests in progress and on tokens before a request is admitted.

        Raises:
            ApiError: a limit has been reached.
        """
        if self._key is None:
            return
        most = self._key.concurrency
        if most is not None and self.in_progress >= most:
            words = f"this key has {self.in_progress} requests in progress, and at most {most} are allowed"
            raise _limited(words, _SOON)
        most = self._key.billed_tokens_per_minute
        if most is not None and self._tokens.sum >= most:
            words = f"{self._tokens.sum:.0f} tokens were billed for this key in the last minute, and {most} are allowed"
            raise _limited(words, self._tokens.until_next)

    def count_request(self) -> None:
        """Count a request that `check` has admitted.

        Raises:
            ApiError: the limit on requests per minute has been reached.
        """
        most = None if self._key is None else self._key.requests_per_minute
        if most is None:
            return
        if self._requests.sum >= most:
            words = f"this key has made {self._requests.sum:g} requests in the last minute, and {most} are allowed"
            raise _limited(words, self._requests.until_next)
        self._requests.add(1)

    @property
    def headers(self) -> dict[str, str]:
        """Rate limit headers as in OpenAI's API: limits per minute, remaining amounts, and times to a full reset."""
        found: dict[str, str] = {}
        if self._key is not None:
            limits = {"requests": self._key.requests_per_minute, "tokens": self._key.billed_tokens_per_minute}
            counts = {"requests": self._requests, "tokens": self._tokens}
            for name, most in limits.items():
                if most is not None:
                    found[f"x-ratelimit-limit-{name}"] = str(most)
                    found[f"x-ratelimit-remaining-{name}"] = str(max(0, most - math.ceil(counts[name].sum)))
                    found[f"x-ratelimit-reset-{name}"] = _duration(counts[name].until_none)
        return found


class _Minute:
    """A running sum of the amounts that were added in the last minute.

    Args:
        clock: function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, count: float) -> None:
        """Add an amount to the sum."""
        self._forget()
        if count:
            self._entries.append((self._clock(), count))
            self._sum += count

    @property
    def sum(self) -> float:
        """The sum of the amounts that were added in the last minute."""
        self._forget()
        return self._sum

    @property
    def until_next(self) -> float:
        """Seconds until the oldest entry expires."""
        self._forget()
        return self._entries[0][0] + _MINUTE - self._clock() if self._entries else 0.0

    @property
    def until_none(self) -> float:
        """Seconds until all entries have expired."""
        self._forget()
        return self._entries[-1][0] + _MINUTE - self._clock() if self._entries else 0.0

    def _forget(self) -> None:
        while self._entries and self._entries[0][0] + _MINUTE <= self._clock():
            self._sum -= self._entries.popleft()[1]
        if not self._entries:
            self._sum = 0.0  # discard accumulated rounding errors


def _duration(seconds: float) -> str:
    """Format a time as OpenAI's API does: `0s`, `17ms`, `7.66s`, `1m0s`."""
    if seconds >= _MINUTE:
        return f"{int(seconds // _MINUTE)}m{seconds % _MINUTE:g}s"
    if 0 < seconds < 1:
        return f"{math.ceil(1000 * seconds)}ms"
    return f"{round(seconds, 2):g}s"


class Clients:
    """All clients of a gateway.

    Args:
        keys: the name and the limits of each key, indexed by the key's text. Without keys, only clients on this machine
            are served.
        concurrency: total number of places for requests in progress; see `body_sizes.places`. Bodies that have not
            arrived completely have as many places of their own.
        clock: function that returns the time in seconds.
    """

    def __init__(
        self, keys: Mapping[str, ClientKey], concurrency: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._known: list[tuple[bytes, Client]] = []
        self.change(keys)
        self._anybody = Client(None, clock)
        self._concurrency = concurrency
        self._taken = 0
        self._incoming: dict[IncomingBody, None] = {}  # in the order of arrival

    def change(self, keys: Mapping[str, ClientKey]) -> None:
        """Replace the keys. Requests in progress continue, and names that remain keep their counts."""
        former = {client.name: client for _, client in self._known}
        known: list[tuple[bytes, Client]] = []
        for text, key in keys.items():
            client = former.get(key.name) or Client(key, self._clock)
            client.change(key)
            known.append((text.encode(), client))
        self._known = known  # replaced in a single step, because another thread may be reading it

    @property
    def secured(self) -> bool:
        """True if clients need a key."""
        return bool(self._known)

    def recognize(self, authorization: str, host: str, address: str | None) -> Client:
        """Identify the client of a request.

        Args:
            authorization: the header `authorization`.
            host: the header `host`.
            address: address of the client; None if it has none, as with a Unix socket.

        Raises:
            ApiError: the key is missing or wrong; or the gateway has no keys and the request comes from another machine
                or names a foreign host. A foreign host is a sign of a web page's DNS rebinding attack.
        """
        known = self._known
        if not known:
            if address is not None and not _is_loopback(address):
                words = "without keys the gateway serves clients on its own machine only"
                raise ApiError(words, status=403, kind="permission_error", code="foreign_client")
            if not is_local(host):
                words = "without keys the gateway answers to localhost and to addresses only, not to another name"
                raise ApiError(words, status=403, kind="permission_error", code="foreign_host")
            return self._anybody
        scheme, _, key = authorization.partition(" ")
        given = key.strip().encode() if scheme.lower() == "bearer" else b""
        found: Client | None = None
        for text, client in known:  # every key is compared, so that the time taken reveals nothing about the keys
            if hmac.compare_digest(text, given):
                found = client
        if found is None:
            words = "the API key is wrong" if given else "an API key is required: Authorization: Bearer KEY"
            raise ApiError(words, status=401, kind="authentication_error", code="invalid_api_key")
        return found

    @contextmanager
    def incoming(self, client: Client, scope: anyio.CancelScope) -> Iterator[IncomingBody]:
        """Receive a body during the block, which `scope` surrounds; see `IncomingBody`."""
        body = IncomingBody(client, scope)
        self._incoming[body] = None
        try:
            self.grow(body, 0)
            yield body
        finally:
            del self._incoming[body]
            client.incoming -= body.places

    def grow(self, body: IncomingBody, size: int) -> None:
        """Record that `size` bytes of a body have arrived. If all bodies take too many places, refuse the oldest ones.

        Bodies of the client whose bodies take the most places are refused, so that no client keeps others out.
        """
        more = places(size, self._concurrency) - body.places
        body.places += more
        body.client.incoming += more
        several = [one for one in self._incoming if not one.refused] if more else []
        while sum(one.places for one in several) > self._concurrency:
            refused = max(several, key=lambda one: one.client.incoming)
            several.remove(refused)
            refused.refuse()

    @contextmanager
    def admitted(self, client: Client, size: int) -> Iterator[None]:
        """Admit a request with a body of `size` bytes for as long as the block runs.

        Raises:
            ApiError: a limit has been reached.
        """
        client.check()
        count = places(size, self._concurrency)
        if self._taken + count > self._concurrency:
            words = f"the requests in progress take {self._taken} places, and at most {self._concurrency} are allowed"
            raise _limited(words, _SOON)
        self._taken += count
        client.in_progress += 1
        try:
            yield
        finally:
            self._taken -= count
            client.in_progress -= 1


class IncomingBody:
    """A body that has not arrived completely.

    Args:
        client: the client that sends it.
        scope: the scope that is cancelled if the body is refused.

    Attributes:
        places: number of places that the bytes take that have arrived.
        refused: the reason why the body is refused, if it is.
    """

    def __init__(self, client: Client, scope: anyio.CancelScope) -> None:
        self.client, self.places = client, 0
        self.refused: ApiError | None = None
        self._scope = scope

    def refuse(self) -> None:
        """Refuse the body, which has taken longest of its client's."""
        words = "too many bodies of requests are on their way, and this one has taken longest"
        self.refused = _limited(words, _SOON)
        self._scope.cancel()


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def is_local(host: str) -> bool:
    """Test whether a host, with or without a port, is `localhost` or an IP address. DNS rebinding can forge neither."""
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _limited(words: str, wait: float) -> ApiError:
    return ApiError(
        words, status=429, kind="rate_limit_error", code="rate_limit_exceeded", retry_after=wait, retryable=True
    )
