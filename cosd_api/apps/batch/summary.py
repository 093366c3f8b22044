"""The cost of a batch, by endpoint, and the summary of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from pydantic import TypeAdapter

from cosd_api.common.wording import counted
from cosd_api.extend import Record, Seconds
from cosd_api.types import EndpointUsage


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


def together_cost(several: Sequence[Usages], less: Usages | None = None) -> dict[str, LineUsage]:
    """Return the sum of several costs, minus the cost `less`."""
    found: dict[str, dict[str, int]] = {}
    for sign, usages in [*((1, one) for one in several), (-1, less or {})]:
        for name, usage in usages.items():
            sums = found.setdefault(name, dict.fromkeys(LineUsage.model_fields, 0))
            for part in sums:
                sums[part] += sign * getattr(usage, part)
    return {name: LineUsage(**sums) for name, sums in found.items()}


def billed_tokens(usages: Usages) -> int:
    """Return the number of tokens that all endpoints read and wrote."""
    return sum(one.prompt_tokens + one.completion_tokens for one in usages.values())


def dumped(usages: Usages) -> str:
    """Convert costs to JSON."""
    return _FORM.dump_json(dict(usages), exclude_defaults=True).decode()


def loaded(text: str | None) -> dict[str, LineUsage]:
    """Read costs from JSON; return an empty dictionary for None."""
    return {} if text is None else _FORM.validate_json(text)


class BatchSummary(Record):
    """The summary of one run of a batch, so far or at its end.

    Attributes:
        lines: the number of input lines.
        known: the number of lines that earlier runs answered.
        answered: the number of lines that this run answered.
        failed: the number of lines whose output is an error, including lines of earlier runs that are not retried.
        missing: the number of lines that were not sent, or whose answers are incomplete.
        seconds: the duration of this run in seconds, from the first request for an answer.
        tokens: the number of tokens in this run's answers.
        acceptance_rate: draft tokens kept / (kept + replaced), in this run; None if no draft token was judged.
        usage: the cost of this run, by endpoint.
        total_usage: the cost of all runs, by endpoint.
        stopped: the reason why the run ended early; None if it did not end early.
    """

    lines: int
    known: int
    answered: int
    failed: int
    missing: int
    seconds: Seconds
    tokens: int
    acceptance_rate: float | None
    usage: dict[str, LineUsage]
    total_usage: dict[str, LineUsage]
    stopped: str | None = None

    @property
    def complete(self) -> bool:
        """True if every line has an answer."""
        return not (self.failed or self.missing)

    @property
    def done(self) -> int:
        """The number of lines that this run no longer has to process."""
        return self.lines - self.missing

    @property
    def billed_tokens(self) -> int:
        """The number of billed tokens of all runs."""
        return billed_tokens(self.total_usage)

    def __str__(self) -> str:
        words = f"{counted(self.known + self.answered, 'line')} of {self.lines:,} answered"
        words += f" ({self.known:,} by earlier runs)" if self.known else ""
        words += f", {self.failed:,} failed" if self.failed else ""
        words += f", {self.missing:,} not asked" if self.missing else ""
        rows = [words]
        if self.answered:
            rate = f"{self.answered / self.seconds:,.3g} lines/s" if self.seconds else ""
            speed = f"{self.tokens / self.seconds:,.3g} tokens/s" if self.seconds else ""
            kept = "" if self.acceptance_rate is None else f"acceptance {self.acceptance_rate:.1%}"
            rows.append(", ".join(part for part in (f"{self.seconds:,.1f} s", rate, speed, kept) if part))
        for name, one in self.total_usage.items():
            cached = f" ({one.cached_tokens:,} cached)" if one.cached_tokens else ""
            estimated = f" ({one.estimated_tokens:,} estimated)" if one.estimated_tokens else ""
            read = f"{one.prompt_tokens:,} tokens read{cached}{estimated}"
            rows.append(f"{name}: {read}, {one.completion_tokens:,} written, {counted(one.requests, 'request')}")
        return "\n".join(rows)
