"""Clients: who may ask, how much at a time, and how much in a minute."""

from __future__ import annotations

import hmac
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address

from cosd_api.gateway.api_errors import ApiError
from cosd_api.gateway.body_sizes import places
from cosd_api.gateway.config import ClientKey

__all__ = ["Admission", "Client", "Clients", "is_local"]

_MINUTE = 60.0
_SOON = 1.0  # seconds after which a place may be free


class Client:
    """The use that one key is put to.

    Args:
        key: the key's name and limits; None for clients without keys.
        clock: seconds.

    Attributes:
        in_progress: requests.
    """

    def __init__(self, key: ClientKey | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = key
        self._clock = clock
        self._bills: deque[tuple[float, int]] = deque()
        self._minute = 0
        self.in_progress = 0

    @property
    def name(self) -> str:
        """The name of its key; empty without one."""
        return "" if self._key is None else self._key.name

    def bill(self, tokens: int) -> None:
        """Count tokens that were billed for it, or most likely were, if they are limited."""
        if tokens and self._key is not None and self._key.billed_tokens_per_minute is not None:
            self._forget()
            self._bills.append((self._clock(), tokens))
            self._minute += tokens

    def _forget(self) -> None:
        """Drop what is older than a minute."""
        while self._bills and self._bills[0][0] + _MINUTE <= self._clock():
            self._minute -= self._bills.popleft()[1]

    def check(self) -> None:
        """Check its limits before a request.

        Raises:
            ApiError: one of them is reached.
        """
        if self._key is None:
            return
        most = self._key.concurrency
        if most is not None and self.in_progress >= most:
            words = f"this key has {self.in_progress} requests in progress, and at most {most} are allowed"
            raise _limited(words, _SOON)
        most = self._key.billed_tokens_per_minute
        if most is None:
            return
        self._forget()
        if self._minute >= most:
            wait = self._bills[0][0] + _MINUTE - self._clock()
            words = f"{self._minute} tokens were billed for this key in the last minute, and {most} are allowed"
            raise _limited(words, wait)


class Clients:
    """All clients of a gateway.

    Args:
        keys: their keys, by the keys' texts. Without any, clients on this machine are served.
        concurrency: places for requests in progress, of all together; see `body_sizes.places`.
        clock: seconds.
    """

    def __init__(
        self, keys: Mapping[str, ClientKey], concurrency: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._known = [(text.encode(), Client(key, clock)) for text, key in keys.items()]
        self._anybody = Client(None, clock)
        self._concurrency = concurrency
        self._taken = 0

    @property
    def secured(self) -> bool:
        """True if clients need a key."""
        return bool(self._known)

    def recognize(self, authorization: str, host: str, address: str | None) -> Client:
        """The client of a request.

        Args:
            authorization: the header of that name.
            host: the header of that name.
            address: of the client; None where it has none, as on a socket of this machine's.

        Raises:
            ApiError: its key is missing or wrong; or there are no keys, and the request came from another machine, or
                by a foreign name, as from a web page that has its own name point here.
        """
        if not self._known:
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
        for text, client in self._known:  # all of them: the time tells nothing about which one was near
            if hmac.compare_digest(text, given):
                found = client
        if found is None:
            words = "the API key is wrong" if given else "an API key is required: Authorization: Bearer KEY"
            raise ApiError(words, status=401, kind="authentication_error", code="invalid_api_key")
        return found

    @contextmanager
    def admitted(self, client: Client) -> Iterator[Admission]:
        """A request in progress. It has one place, until its size is known.

        Raises:
            ApiError: a limit is reached.
        """
        client.check()
        admission = Admission(self)
        admission.weigh(0)
        client.in_progress += 1
        try:
            yield admission
        finally:
            self._taken -= admission.places
            client.in_progress -= 1

    def take(self, count: int) -> None:
        """Take places among all requests.

        Raises:
            ApiError: there are not as many.
        """
        if self._taken + count > self._concurrency:
            words = f"the requests in progress take {self._taken} places, and at most {self._concurrency} are allowed"
            raise _limited(words, _SOON)
        self._taken += count

    def places(self, size: int) -> int:
        """The places that a body of `size` bytes takes."""
        return places(size, self._concurrency)


class Admission:
    """The places of a request in progress.

    Args:
        clients: among whose requests it is.

    Attributes:
        places: that it has.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.places = 0

    def weigh(self, size: int) -> None:
        """Take the places for a body of `size` bytes, as far as it has not got them.

        Raises:
            ApiError: there are not as many.
        """
        more = self._clients.places(size) - self.places
        if more > 0:
            self._clients.take(more)
            self.places += more


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def is_local(host: str) -> bool:
    """Test whether a host, with or without a port, is `localhost` or an address: neither is anybody's to point here."""
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
