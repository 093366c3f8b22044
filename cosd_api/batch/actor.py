"""An owner of one fusion in a process of a cluster. Only the code that starts the process needs Ray."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Generator, Mapping
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import anyio

from cosd_api import Fusion, FusionConfig, SettingError, __version__
from cosd_api.batch.lines import BatchLine, line_of
from cosd_api.batch.reply import Answerer, Reply, failed
from cosd_api.batch.sending import divided
from cosd_api.extend import check_count, together

__all__ = ["ActorState", "FusionActor", "FusionSource", "LineActor"]

FusionSource: TypeAlias = Callable[[], Fusion]
"""Maker of a fusion; called in the process that owns the fusion."""

_TAKEN = ("custom_id", "prompt", "messages", "own", "max_tokens", "stop", "seed", "temperature")
"""Columns that are read as the fields of a plain line."""


class ActorState(NamedTuple):
    """State of an actor that has started.

    Attributes:
        machine: the name of its machine.
        version: version of this library there.
        problem: the reason why it has no fusion; None if it has a fusion.
    """

    machine: str
    version: str
    problem: str | None


class LineActor:
    """Owner of a fusion that answers lines of a batch; the first use makes and opens the fusion.

    Args:
        source: makes the fusion.
    """

    def __init__(self, source: FusionSource) -> None:
        self._source = source
        self._opening = anyio.Lock()
        self._fusion: Fusion | None = None

    async def state(self) -> ActorState:
        """Open the fusion, and report the actor's state."""
        problem = None
        try:
            await self._opened()
        except (OSError, SettingError) as error:
            problem = str(error)
        return ActorState(socket.gethostname(), __version__, problem)

    async def answer(self, line: BatchLine, allowed: int | None) -> Reply:
        """Answer one line; see `cosd_api.batch.reply.LineAnswerer`."""
        try:
            fusion = await self._opened()
        except (OSError, SettingError) as error:  # Ray may have restarted this process elsewhere
            return failed(line, type(error).__name__, str(error))
        return await Answerer(fusion).answer(line, allowed)

    async def _opened(self) -> Fusion:
        async with self._opening:
            if self._fusion is None:
                made = self._source()
                await made.__aenter__()  # until the process ends
                self._fusion = made
        return self._fusion


class FusionActor:
    """Owner of one fusion, as a class for Ray's `Dataset.map_batches`.

    A row has a `prompt`, or `messages`, and may have `max_tokens`, `stop`, `seed` and `temperature`, and with messages
    `own`. It gets the columns `text`, `finish_reason`, `error` and `billed_tokens`; other columns stay. A failed row
    has empty text, and a successful row an empty `error`, so that every column has one type.

    Args:
        source: the settings of the fusion; the path of their file on the actor's machine; or a function that makes the
            fusion there.
        actors: number of actors among which the servers' limits are divided; a function has to divide its own limits.
        concurrency: rows that are answered at a time, in however many batches.

    Raises:
        OSError: the settings file cannot be read.
        SettingError: the settings file is invalid, or its limits cannot be divided.
    """

    def __init__(self, source: FusionConfig | str | Path | FusionSource, actors: int = 1, concurrency: int = 8) -> None:
        self._concurrency = check_count("concurrency", concurrency)
        self._room = anyio.Semaphore(concurrency)
        made = source
        if isinstance(source, FusionConfig | str | Path):
            config = source if isinstance(source, FusionConfig) else FusionConfig.load(source)
            fusion = Fusion.load(divided(config, actors))
            made = lambda: fusion  # noqa: E731
        self._lines = LineActor(cast("FusionSource", made))
        self._numbers = count(1)

    async def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Answer the rows of a batch, given as a column for each name."""
        columns = {name: [*values] for name, values in batch.items()}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

        def work() -> Generator[Any]:
            return (self._row(row) for row in rows)

        async with aclosing(together(work(), self._concurrency, "given")) as complete:
            found = [one.result() async for one in complete]
        return columns | {name: [one[name] for one in found] for name in _GIVEN}

    async def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: _plain(one) for name, one in row.items() if name in _TAKEN}
        try:
            line = line_of(next(self._numbers), {name: one for name, one in given.items() if one is not None})
        except SettingError as error:
            return dict(zip(_GIVEN, ("", "", str(error), 0), strict=True))
        async with self._room:
            reply = await self._lines.answer(line, None)
        words = "" if reply.error is None else reply.error["message"]
        found = reply.content.get("text") or "", reply.content.get("finish_reason", ""), words, reply.billed_tokens
        return dict(zip(_GIVEN, found, strict=True))


_GIVEN = ("text", "finish_reason", "error", "billed_tokens")
"""Columns that a row gets."""


def _plain(value: Any) -> Any:
    """A value of a table in JSON's types: NumPy's arrays and numbers become lists and numbers."""
    made = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(made, list | tuple):
        return [_plain(one) for one in cast("list[Any]", made)]
    if isinstance(made, Mapping):
        return {name: _plain(one) for name, one in cast("Mapping[str, Any]", made).items() if one is not None}
    return None if isinstance(made, float) and math.isnan(made) else made  # a missing number of pandas
