"""Readiness: every model of every fusion is known and its server answers now."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

import anyio

from cosd_api import Fusion
from cosd_api.extend import DRAFT, Alive, concurrently
from cosd_providers import Provider, ProviderError

__all__ = ["Readiness"]

_FRESH_SECONDS = 2.0  # for which a finding is kept: the route needs no key
_SECONDS = 15.0


class Readiness:
    """Tests the models' servers.

    Each model is found out about once, as an answer would do it; what was found is kept, and from then on its server
    is asked for something that no model is needed for. An assistant without which answers continue is not needed.

    Args:
        fusions: by their names.
    """

    def __init__(self, fusions: Mapping[str, Fusion]) -> None:
        self._fusions = fusions
        self._found: dict[str, dict[str, str]] = {}
        self._at = 0.0
        self._lock = anyio.Lock()

    async def check(self) -> dict[str, dict[str, str]]:
        """By fusion and endpoint: `"ready"`, or the kind of the error."""
        async with self._lock:
            if not self._found or time.monotonic() - self._at > _FRESH_SECONDS:
                found: dict[str, dict[str, str]] = {name: {} for name in self._fusions}
                work = [
                    partial(self._check, found[name], endpoint, provider)
                    for name, fusion in self._fusions.items()
                    for endpoint, provider in _endpoints(fusion)
                ]
                await concurrently(work)
                self._found, self._at = found, time.monotonic()
            return self._found

    def needed(self, found: Mapping[str, Mapping[str, str]]) -> bool:
        """Test whether all that is needed is ready."""
        return all(
            state == "ready" or (endpoint != DRAFT and self._fusions[name].endpoints.spares)
            for name, states in found.items()
            for endpoint, state in states.items()
        )

    async def _check(self, found: dict[str, str], endpoint: str, provider: Provider) -> None:
        found[endpoint] = "timeout"
        with anyio.move_on_after(_SECONDS):
            try:
                await provider.describe()
                if isinstance(provider, Alive):
                    await provider.check_alive()
                found[endpoint] = "ready"
            except ProviderError as error:
                found[endpoint] = type(error).__name__


def _endpoints(fusion: Fusion) -> list[tuple[str, Provider]]:
    endpoints = fusion.endpoints
    return [(DRAFT, endpoints.draft), *zip(endpoints.names, endpoints.assistants, strict=True)]
