"""Readiness: background probes check that the models of all fusions are known and that their servers answer."""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

import anyio
from anyio.abc import TaskGroup

from cosd_api import Fusion
from cosd_api.extend import DRAFT
from cosd_providers import Provider, ProviderError
from cosd_providers.contract import Alive
from cosd_providers.http.retries import RetriedFailures

__all__ = ["Readiness", "Ready"]

_log = logging.getLogger("cosd_api.apps.gateway")

_READY = "ready"
_UNKNOWN = "unknown"
_TIMEOUT = "timeout"
_WAIT_SECONDS = 1.0  # maximum time that a check waits for results, since load balancers often wait no longer
_EVERY_SECONDS = 2.0  # pause between two probes of one server
_ALIVE_SECONDS = 3.0  # timeout of a probe if the server's model is already known
_MODEL_SECONDS = 15.0  # timeout of a probe that must look up the model
_FRESH_SECONDS = 2.0 * (_EVERY_SECONDS + _ALIVE_SECONDS)  # age up to which a result is valid: time for two probes
_ASKED_SECONDS = 60.0  # time for which probes continue after the last check

Ready = Literal["ready", "degraded", "not ready"]
"""State of all models together.

`"degraded"` means that some assistants are not ready, but that answers continue without them.
"""


@dataclass
class _Watched:
    """A model's server, and the result of its most recent probe.

    Attributes:
        fusion: the name of the fusion.
        endpoint: the model's name in the fusion.
        provider: the provider for the server.
        spared: whether answers continue without this model if it fails.
        state: `"ready"`, the name of an error's class, `"timeout"`, `"internal"`, or `"unknown"` before the first
            probe.
        at: time at which the most recent probe ended; None before the first probe.
        error: the error of the most recent probe; None if it had none.
        known: whether the server's model is known.
        news: event that is set when the next probe ends.
    """

    fusion: str
    endpoint: str
    provider: Provider
    spared: bool
    state: str = _UNKNOWN
    at: float | None = None
    error: ProviderError | None = None
    known: bool = False
    news: anyio.Event = field(default_factory=anyio.Event)

    @property
    def age(self) -> float:
        """Seconds since the most recent probe ended."""
        return float("inf") if self.at is None else anyio.current_time() - self.at

    async def probe(self) -> None:
        """Look up the server's model, as for an answer; then, if possible, check that the server is alive."""
        state, self.error, failures = _TIMEOUT, None, RetriedFailures()
        with failures.recorded(), anyio.move_on_after(_ALIVE_SECONDS if self.known else _MODEL_SECONDS):
            try:
                await self.provider.describe()
                self.known = True
                if isinstance(self.provider, Alive):
                    await self.provider.check_alive()
                state = _READY
            except ProviderError as error:
                state, self.error = type(error).__name__, error
            except Exception as error:  # noqa: BLE001 - a bug in one provider must not end the probes of others
                state = "internal"
                frames = "".join(traceback.format_tb(error.__traceback__))  # the message is left out: it may be private
                _log.error("a probe: unexpected %s raised at\n%s", type(error).__name__, frames)
        if state == _TIMEOUT and failures.last is not None:  # it was being retried
            state, self.error = type(failures.last).__name__, failures.last
        self.state, self.at = state, anyio.current_time()
        self.news.set()
        self.news = anyio.Event()


class Readiness:
    """Background probes of the models' servers, and checks that return their results.

    Each server is probed about every two seconds. A minute after the last check, the probes pause, so that an unused
    gateway sends nothing to the servers. A check waits up to a second for recent results. A server whose probe has not
    ended by then keeps its previous state, but `"ready"` becomes `"unknown"` after ten seconds.

    Args:
        fusions: the fusions, by name.
    """

    def __init__(self, fusions: Mapping[str, Fusion]) -> None:
        self._watched = [
            _Watched(name, endpoint, provider, fusion.endpoints.can_spare(endpoint))
            for name, fusion in fusions.items()
            for endpoint, provider in _endpoints(fusion)
        ]
        self._asked_at = float("-inf")
        self._asked = anyio.Event()
        self._group: TaskGroup | None = None

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[None]:
        """Probe the servers for as long as the block runs, beginning with the first check."""
        async with anyio.create_task_group() as group:
            for one in self._watched:
                group.start_soon(self._watch, one)
            self._group = group
            try:
                yield
            finally:
                self._group = None
                group.cancel_scope.cancel()

    def report(self, say: Callable[[str], None]) -> None:
        """Probe every server once, in the background, and report the results to the operator.

        Args:
            say: function that receives the report: a line for each server that does not answer, or a single line that
                lists the models if all servers answer.
        """
        if self._group is not None:
            self._group.start_soon(self._report, say)

    async def check(self) -> tuple[Ready, dict[str, dict[str, str]], float | None]:
        """Return the overall state, the state of each endpoint by fusion, and the age of the oldest result in seconds.

        The state of an endpoint is `"ready"`, the name of an error's class, `"timeout"`, `"internal"`, or `"unknown"`
        if there is no recent result. The age is None if there is no result at all.
        """
        self._wake()
        with anyio.move_on_after(_WAIT_SECONDS):
            for one in self._watched:
                while one.age > _EVERY_SECONDS:
                    await one.news.wait()
        found: dict[str, dict[str, str]] = {one.fusion: {} for one in self._watched}
        for one in self._watched:
            stale = one.state == _READY and one.age > _FRESH_SECONDS
            found[one.fusion][one.endpoint] = _UNKNOWN if stale else one.state
        lacking = [one for one in self._watched if found[one.fusion][one.endpoint] != _READY]
        ages = [one.age for one in self._watched if one.at is not None]
        alive = {one.fusion for one in self._watched if one not in lacking}
        spared = all(one.spared and one.fusion in alive for one in lacking)
        state: Ready = "ready" if not lacking else "degraded" if spared else "not ready"
        return state, found, max(ages) if ages else None

    def _wake(self) -> None:
        self._asked_at = anyio.current_time()
        self._asked.set()

    async def _watch(self, one: _Watched) -> None:
        while True:
            while anyio.current_time() - self._asked_at > _ASKED_SECONDS:
                if self._asked.is_set():
                    self._asked = anyio.Event()
                await self._asked.wait()
            await one.probe()
            await anyio.sleep(_EVERY_SECONDS)

    async def _report(self, say: Callable[[str], None]) -> None:
        async with anyio.create_task_group() as group:
            for one in self._watched:
                group.start_soon(one.probe)
        silent = [one for one in self._watched if one.state != _READY]
        for one in silent:
            say(_line(one))
        if not silent:
            models = dict.fromkeys([(await one.provider.describe()).model for one in self._watched])
            say(f"the server of every model answers; found: {', '.join(models)}")


def _line(one: _Watched) -> str:
    """Describe a server that does not answer."""
    which = f"the server of the model {one.endpoint!r} of {one.fusion!r} does not answer as it should"
    if one.error is not None:
        return f"{which} ({one.state}): {one.error}"
    if one.state == _TIMEOUT:
        why = f"nothing came within {_MODEL_SECONDS:g} seconds; it may be loading its model, or hang"
        return f"{which} ({one.state}): {one.provider.name}: {why}"
    return f"{which} ({one.state}): {one.provider.name}: the log says where"


def _endpoints(fusion: Fusion) -> list[tuple[str, Provider]]:
    endpoints = fusion.endpoints
    return [(DRAFT, endpoints.draft), *zip(endpoints.names, endpoints.assistants, strict=True)]
