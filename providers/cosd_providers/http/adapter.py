"""What the adapters of all servers have in common: one server, entered and left with its connections, and a name."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Self
from urllib.parse import urlsplit

from cosd_providers.http.transport import Transport

__all__ = ["Adapter", "checked_extra"]


class Adapter:
    """One model behind one server. An adapter sets both attributes when it is made."""

    _transport: Transport
    _model: str | None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._transport.endpoint!r}, model={self._model!r})"

    @property
    def name(self) -> str:
        """Host and port, with the model before it where one was named."""
        host = urlsplit(self._transport.endpoint).netloc
        return f"{self._model}@{host}" if self._model else host

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._transport.__aexit__(*exc)


def checked_extra(extra_body: Mapping[str, object] | None, owned: AbstractSet[str]) -> Mapping[str, object]:
    """What a user wants merged into every generation request.

    Raises:
        ValueError: it sets what the fusion itself decides (`owned`).
    """
    taken = sorted(owned & set(extra_body or {}))
    if taken:
        raise ValueError(f"extra_body cannot set {', '.join(taken)}: decoding is greedy, and the fusion sets it")
    return extra_body or {}
