"""The cost of a line of a batch, by endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from pydantic import TypeAdapter

from cosd_api.comparison.prices import Price
from cosd_api.extend import Record
from cosd_api.types import EndpointUsage

__all__ = ["LineUsage", "Usages", "billed_tokens", "dumped", "loaded", "money", "together_cost", "usages_of"]


class LineUsage(Record):
    """The cost of a line, or of many lines, at one endpoint.

    Attributes:
        prompt_tokens: the number of tokens read, including tokens from a cache.
        completion_tokens: the number of tokens written.
        cached_tokens: the number of tokens read from the server's cache; 0 if the server does not report this number.
        estimated_tokens: the part of `prompt_tokens` that is an estimate, because the server did not report it.
        requests: the number of generation requests, including retries.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated_tokens: int = 0
    requests: int = 0

    @classmethod
    def of(cls, usage: EndpointUsage) -> Self:
        """Convert the usage that a result reports for one endpoint."""
        return cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            estimated_tokens=usage.estimated_tokens,
            requests=usage.requests + usage.retries,
        )


Usages = Mapping[str, LineUsage]
"""The cost by endpoint."""

_FORM: TypeAdapter[dict[str, LineUsage]] = TypeAdapter(dict[str, LineUsage])
_FIELDS = tuple(LineUsage.model_fields)


def usages_of(usage: Mapping[str, EndpointUsage]) -> dict[str, LineUsage]:
    """Convert the usage that a result reports for all endpoints."""
    return {name: LineUsage.of(one) for name, one in usage.items()}


def together_cost(several: Sequence[Usages], less: Usages | None = None) -> dict[str, LineUsage]:
    """Return the sum of several costs, minus the cost `less`."""
    names = dict.fromkeys(name for one in several for name in one)
    taken = less or {}
    return {
        name: LineUsage(
            **{
                part: sum(getattr(one[name], part) for one in several if name in one)
                - (getattr(taken[name], part) if name in taken else 0)
                for part in _FIELDS
            }
        )
        for name in names
    }


def billed_tokens(usages: Usages) -> int:
    """Return the number of tokens that all endpoints read and wrote."""
    return sum(one.prompt_tokens + one.completion_tokens for one in usages.values())


def money(usages: Usages, prices: Mapping[str, Price] | None) -> float | None:
    """Compute the price of all endpoints' tokens; None if the prices are unknown."""
    if prices is None:
        return None
    return sum(
        prices[name].of(one.prompt_tokens, one.completion_tokens, one.cached_tokens) for name, one in usages.items()
    )


def dumped(usages: Usages) -> str:
    """Convert costs to JSON."""
    return _FORM.dump_json(dict(usages), exclude_defaults=True).decode()


def loaded(text: str | None) -> dict[str, LineUsage]:
    """Read costs from JSON; return an empty dictionary for None."""
    return {} if text is None else _FORM.validate_json(text)
