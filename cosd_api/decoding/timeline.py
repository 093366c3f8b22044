"""The requests of one answer and their times; only a record, which affects no decision."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

from cosd_providers.usage import Usage

RequestKind = Literal["draft", "hedge", "question", "score", "watch"]
Outcome = Literal["done", "cancelled", "failed"]


@dataclass(slots=True)
class RequestSpan:
    """One request.

    Attributes:
        who: 0 is the draft, 1 the first assistant, and so on.
        kind: a draft, a draft ahead of a verdict, a question about places, a text to score, or a stream that answers
            each place that it passes.
        number: the decoder's number of the draft or question.
        at: byte offset in the response that it continues, or of its first place.
        start: seconds from the start of the answer until it was sent.
        first: seconds until its first token; None before it, and for questions.
        end: seconds until it was over; None while it is in progress.
        tokens: tokens that it wrote, of a draft or a watch.
        places: places that it asked about, or answered.
        outcome: its end.
        max_tokens: the most tokens that a draft may write.
        temperature: of a draft.
        seed: of a draft that is drawn.
        ids: number of tokens of the answer that it continues, if it was asked after ids.
        other_prompt: whether it reads another prompt than the answer's, in methods that ask in words.
        finish: the reason why a draft ended by itself, as in `DraftEnd`.
        usage: its own bill, complete when it is over; None if it was refused before it was sent.
    """

    who: int
    kind: RequestKind
    number: int
    at: int
    start: float
    first: float | None = None
    end: float | None = None
    tokens: int = 0
    places: int = 0
    outcome: Outcome = "cancelled"
    max_tokens: int = 0
    temperature: float = 0.0
    seed: int | None = None
    ids: int | None = None
    other_prompt: bool = False
    finish: str | None = None
    usage: Usage | None = None


Observer = Callable[[RequestSpan], AbstractContextManager[None]]
"""Context manager around a request, such as one that traces it."""


class Timeline:
    """The requests of one answer, in the order in which they were sent.

    Args:
        began: start of the answer, by `time.perf_counter`.
        observer: entered around each request.
    """

    def __init__(self, began: float, observer: Observer | None = None) -> None:
        self._began = began
        self._observer: Observer = observer or (lambda _: nullcontext())
        self.spans: list[RequestSpan] = []

    def now(self) -> float:
        """Seconds since the answer began."""
        return time.perf_counter() - self._began

    @contextmanager
    def request(self, who: int, kind: RequestKind, number: int, *, at: int, places: int = 0) -> Iterator[RequestSpan]:
        """Record a request that lasts as long as the block."""
        span = RequestSpan(who, kind, number, at, self.now(), places=places)
        self.spans.append(span)
        with self._observer(span):
            try:
                yield span
                span.outcome = "done"
            except Exception:
                span.outcome = "failed"
                raise
            finally:
                span.end = self.now()
