"""The progress of a batch, and its summary."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from cosd_api.batch.reply import Reply
from cosd_api.batch.usage import LineUsage, Usages, billed_tokens, money, together_cost
from cosd_api.comparison.prices import Price
from cosd_api.extend import Record, Seconds, counted

__all__ = ["BatchSummary", "BatchTally"]


class BatchSummary(Record):
    """The summary of one run of a batch.

    Attributes:
        lines: the number of input lines.
        known: the number of lines that earlier runs answered.
        answered: the number of lines that this run answered.
        failed: the number of lines whose output is an error, including lines of earlier runs.
        missing: the number of lines that were not sent, or whose answers are incomplete.
        others: the number of output lines whose ids do not occur in the input.
        seconds: the duration of this run in seconds, from the first request for an answer.
        tokens: the number of tokens in this run's answers.
        acceptance_rate: draft tokens kept / (kept + replaced), in this run; None if no draft token was judged.
        usage: the cost of this run, by endpoint.
        total_usage: the cost of all runs, by endpoint.
        money: the price of all runs; None if the prices are unknown.
        stopped: the reason why the run ended early; None if it did not end early.
    """

    lines: int
    known: int
    answered: int
    failed: int
    missing: int
    others: int = 0
    seconds: Seconds
    tokens: int
    acceptance_rate: float | None
    usage: dict[str, LineUsage]
    total_usage: dict[str, LineUsage]
    money: float | None = None
    stopped: str | None = None

    @property
    def complete(self) -> bool:
        """True if every line has an answer."""
        return not (self.failed or self.missing)

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
        if self.money is not None:
            rows.append(f"price: {self.money:,.4g}")
        if self.others:
            rows.append(f"{counted(self.others, 'line')} of the output with ids that the input does not have")
        return "\n".join(rows)


@dataclass
class BatchTally:
    """The progress of one run.

    Attributes:
        lines: the number of input lines.
        known: the number of lines that earlier runs answered.
        known_failed: the number of lines that failed in earlier runs and are not retried.
        others: the number of output lines whose ids do not occur in the input.
        before: the cost of earlier runs, by endpoint.
        total: the cost of all runs, by endpoint.
        prices: the prices of the endpoints; None if they are unknown.
        answered: the number of lines that this run answered.
        failed: the number of lines that failed in this run.
        tokens: the number of tokens in this run's answers.
        kept: the number of draft tokens that were kept in this run's answers.
        replaced: the number of draft tokens that were replaced in this run's answers.
        started: the time just before the first request for an answer, in seconds of the monotonic clock.
        stopped: the reason why the run ended early; None if it did not end early.
    """

    lines: int
    known: int
    known_failed: int
    others: int
    before: Usages
    prices: Mapping[str, Price] | None
    total: Usages = field(default_factory=dict[str, LineUsage])
    answered: int = 0
    failed: int = 0
    tokens: int = 0
    kept: int = 0
    replaced: int = 0
    started: float = field(default_factory=time.monotonic)
    stopped: str | None = None

    def take(self, reply: Reply, total: Usages) -> None:
        """Count a line that was written.

        Args:
            reply: the reply to the line.
            total: the cost of all runs, including this line.
        """
        self.total = total
        if reply.error is not None:
            self.failed += not reply.cut
            return
        self.answered += 1
        self.tokens += reply.tokens
        self.kept += reply.kept
        self.replaced += reply.replaced

    @property
    def done(self) -> int:
        """The number of lines that this run no longer has to process."""
        return self.known + self.known_failed + self.answered + self.failed

    @property
    def seconds(self) -> float:
        """The time since the first line was sent, in seconds."""
        return time.monotonic() - self.started

    @property
    def acceptance_rate(self) -> float | None:
        """Draft tokens kept / (kept + replaced), not counting unverified tokens; None if no draft token was judged."""
        return self.kept / (self.kept + self.replaced) if self.kept + self.replaced else None

    @property
    def billed_tokens(self) -> int:
        """The number of billed tokens of all runs."""
        return billed_tokens(self.total)

    @property
    def money(self) -> float | None:
        """The price of all runs; None if the prices are unknown."""
        return money(self.total, self.prices)

    def summary(self) -> BatchSummary:
        """Return the summary of the run so far."""
        return BatchSummary(
            lines=self.lines,
            known=self.known,
            answered=self.answered,
            failed=self.known_failed + self.failed,
            missing=self.lines - self.done,
            others=self.others,
            seconds=self.seconds,
            tokens=self.tokens,
            acceptance_rate=self.acceptance_rate,
            usage=together_cost([self.total], self.before),
            total_usage=dict(self.total),
            money=self.money,
            stopped=self.stopped,
        )
