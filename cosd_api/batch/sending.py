"""A fusion on its way to another process, and its servers' limits divided among several processes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from cosd_api import Fusion, FusionConfig, SettingError
from cosd_api.extend import Method, ServerConfig, ServerLimitsConfig, check_count, config_of

__all__ = ["SentFusion", "divided"]


@dataclass(frozen=True, slots=True)
class SentFusion:
    """A fusion that can be pickled; calling it makes the fusion in the process at hand.

    It has no key: a process finds the keys in its own environment. Trained parts travel whole; other files that the
    settings name must have the same paths on every machine.

    Attributes:
        config: servers, settings and limits.
        method: a method with its trained parts, in place of the method of `config`; None without trained parts.
    """

    config: FusionConfig
    method: Method | None = None

    @classmethod
    def of(cls, fusion: Fusion) -> Self:
        """The settings of a fusion of this process.

        Raises:
            SettingError: a part of the fusion cannot be sent.
        """
        endpoints = fusion.endpoints
        try:
            config, trained = config_of(
                fusion.settings, fusion.limits, endpoints.draft, endpoints.assistants, Path("fusion.yaml").absolute()
            )
        except SettingError as error:
            raise SettingError(f"this fusion cannot be sent to another process: {error}") from None
        if not trained:
            return cls(config)
        own = {"method", "verifier", "unit", "temperature"}
        left = {name: getattr(config, name) for name in config.model_fields_set - own}
        return cls(FusionConfig.model_construct(**left), fusion.settings.method)

    def part(self, actors: int, number: int) -> Self:
        """The fusion for process `number` of several, from 0, with its part of the limits."""
        return replace(self, config=divided(self.config, actors, number))

    def __call__(self) -> Fusion:
        """Make the fusion. Sends nothing yet.

        Raises:
            OSError: a file that the settings name cannot be read here.
            SettingError: the settings cannot be used here, for example because the variable of a key is not set.
        """
        return Fusion.load(self.config) if self.method is None else Fusion.load(self.config, method=self.method)


def divided(config: FusionConfig, actors: int, number: int | None = None) -> FusionConfig:
    """The settings of one of several actors, with its part of the limits of every server.

    Args:
        config: the settings of all actors.
        actors: number of actors.
        number: number of this actor, from 0. The remainder of the division goes to the first actors, one request each;
            with None, no actor gets any of the remainder.

    Raises:
        SettingError: a server takes fewer requests at a time than there are actors.
    """
    check_count("actors", actors)
    changed: dict[str, Any] = {}
    for name in ("draft", "models", "assistants"):
        given: ServerConfig | list[ServerConfig] | None = getattr(config, name)
        if isinstance(given, list):
            changed[name] = [_part(f"{name}[{at}]", one, actors, number) for at, one in enumerate(given)]
        elif given is not None:
            changed[name] = _part(name, given, actors, number)
    return config.model_copy(update=changed)


def _part(name: str, server: ServerConfig, actors: int, number: int | None) -> ServerConfig:
    limits = server.limits
    if limits is None or actors == 1:
        return server
    each: int | None = None
    if limits.concurrency is not None:
        each, left = divmod(limits.concurrency, actors)
        if not each:
            words = f"{name}: its limit of {limits.concurrency} requests at a time cannot be divided"
            raise SettingError(f"{words} among {actors} actors: take {limits.concurrency}, or fewer")
        each += number is not None and number < left
    rates = limits.requests_per_minute, limits.tokens_per_minute
    requests, tokens = (None if rate is None else rate / actors for rate in rates)
    part = ServerLimitsConfig(concurrency=each, requests_per_minute=requests, tokens_per_minute=tokens)
    return server.model_copy(update={"limits": part})
