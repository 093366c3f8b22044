"""A class for the workers of a cluster, such as a Ray cluster. Each instance has its own fusion."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Any, cast

import anyio

from cosd_api import Fusion, FusionConfig, SettingError
from cosd_api.apps.batch.lines import plain_line
from cosd_api.apps.batch.reply import answer
from cosd_api.common.bounded_map import bounded_map
from cosd_api.config import ServerConfig, ServerLimitsConfig
from cosd_api.extend import check_count

__all__ = ["FusionActor"]

_TAKEN = ("custom_id", "prompt", "messages", "own", "max_tokens", "stop", "seed", "temperature")
"""The columns that are read as the fields of a plain line."""


class FusionActor:
    """Answers batches of rows with a fusion. Pass this class to Ray's `Dataset.map_batches`.

    A row has either a `prompt`, or `messages` and optionally `own`. A row may also have `max_tokens`, `stop`, `seed`
    and `temperature`. The actor adds the columns `text`, `finish_reason`, `error` and `billed_tokens`, and keeps all
    other columns. In a failed row, `text` is empty, and in a successful row, `error` is empty, so that every column has
    a single type.

    Args:
        source: the settings of the fusion, the path of their file on the actor's machine, or a function that creates
            the fusion on that machine.
        actors: the number of actors among which the servers' limits are divided. If `source` is a function, it has to
            divide the limits itself.
        concurrency: the largest number of rows that are answered at the same time, over all batches.

    Raises:
        OSError: the settings file, or a file that it names, cannot be read.
        SettingError: the settings are invalid, or their limits cannot be divided.
    """

    def __init__(
        self, source: FusionConfig | str | Path | Callable[[], Fusion], actors: int = 1, concurrency: int = 8
    ) -> None:
        self._concurrency = check_count("concurrency", concurrency)
        self._room = anyio.Semaphore(concurrency)
        if isinstance(source, FusionConfig | str | Path):
            config = source if isinstance(source, FusionConfig) else FusionConfig.load(source)
            self._fusion = Fusion.load(_divided(config, actors))
        else:
            self._fusion = source()
        self._opening = anyio.Lock()
        self._open = False
        self._numbers = count(1)

    async def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Answer the rows of a batch.

        Args:
            batch: the columns, by name.

        Returns:
            All given columns, and the columns that the actor adds.
        """
        async with self._opening:
            if not self._open:
                await self._fusion.__aenter__()  # the fusion stays open until the process ends
                self._open = True
        columns = {name: [*values] for name, values in batch.items()}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

        def work() -> Generator[Any]:
            return (self._row(row) for row in rows)

        async with aclosing(bounded_map(work(), self._concurrency, "given")) as complete:
            found = [one.result() async for one in complete]
        return columns | {name: [one[name] for one in found] for name in _GIVEN}

    async def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: _plain(one) for name, one in row.items() if name in _TAKEN}
        try:
            line = plain_line(next(self._numbers), {name: one for name, one in given.items() if one is not None})
        except SettingError as error:
            return dict(zip(_GIVEN, ("", "", str(error), 0), strict=True))
        async with self._room:
            reply = await answer(self._fusion, line, None)
        words = "" if reply.error is None else reply.error["message"]
        found = reply.content.get("text") or "", reply.content.get("finish_reason", ""), words, reply.billed_tokens
        return dict(zip(_GIVEN, found, strict=True))


_GIVEN = ("text", "finish_reason", "error", "billed_tokens")
"""The columns that the actor adds."""


def _plain(value: Any) -> Any:
    """Convert a table's value to JSON types: NumPy arrays become lists, and NumPy numbers become Python numbers."""
    made = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(made, list | tuple):
        return [_plain(one) for one in cast("list[Any]", made)]
    if isinstance(made, Mapping):
        return {name: _plain(one) for name, one in cast("Mapping[str, Any]", made).items() if one is not None}
    return None if isinstance(made, float) and math.isnan(made) else made  # pandas represents missing numbers by NaN


def _divided(config: FusionConfig, actors: int) -> FusionConfig:
    """Return the settings for one of several actors, with its share of every server's limits.

    Raises:
        SettingError: a server's limit on concurrent requests is lower than the number of actors.
    """
    check_count("actors", actors)
    changed: dict[str, Any] = {}
    for name in ("draft", "models", "assistants"):
        given: ServerConfig | list[ServerConfig] | None = getattr(config, name)
        if isinstance(given, list):
            changed[name] = [_part(f"{name}[{at}]", one, actors) for at, one in enumerate(given)]
        elif given is not None:
            changed[name] = _part(name, given, actors)
    return config.model_copy(update=changed)


def _part(name: str, server: ServerConfig, actors: int) -> ServerConfig:
    limits = server.limits
    if limits is None or actors == 1:
        return server
    if limits.concurrency is not None and limits.concurrency < actors:
        words = f"{name}: its limit of {limits.concurrency} requests at a time cannot be divided"
        raise SettingError(f"{words} among {actors} actors: use {limits.concurrency}, or fewer")
    each = None if limits.concurrency is None else limits.concurrency // actors
    rates = limits.requests_per_minute, limits.tokens_per_minute
    requests, tokens = (None if rate is None else rate / actors for rate in rates)
    part = ServerLimitsConfig(concurrency=each, requests_per_minute=requests, tokens_per_minute=tokens)
    return server.model_copy(update={"limits": part})
