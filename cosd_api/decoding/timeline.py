"""A record of the requests of one answer and their times. It affects no decision."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

from cosd_providers.usage import Usage

RequestKind = Literal["draft", "question", "score", "watch"]
Outcome = Literal["done", "cancelled", "failed"]


@dataclass(slots=True)
class RequestSpan:
    """One request.

    Attributes:
        who: index of the model: 0 for the draft, 1 for the first assistant.
        kind: the kind of the request, as in `Request.kind`.
        number: the number that the decoder gave the draft or question.
        at: byte offset in the response from which the request continues, or at which its first place lies.
        start: seconds from the start of the answer until the request was sent.
        first: seconds from the start of the answer until the first token; None before the first token, and for
            questions.
        end: seconds from the start of the answer until the request was over; None while it is in progress.
        tokens: number of tokens that a draft or a watch wrote.
        places: number of places that the request was about, or that a watch answered.
        outcome: result of the request, as in `Request.outcome`.
        max_tokens: maximum number of tokens that a draft may write.
        temperature: temperature of a draft.
        seed: seed of a draft whose tokens are drawn.
        ids: number of ids of the answer that the request continues, if the model was sent ids.
        other_prompt: whether the request reads a prompt other than the answer's, as in methods that ask models
            questions in words.
        finish: the reason why a draft ended by itself, as in `DraftEnd`.
        usage: bill of the request, which is complete when the request is over; None if the request was refused before
            it was sent.
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
"""A function that returns a context manager for a request, for example to trace it."""


class Timeline:
    """The requests of one answer, in the order in which they were sent.

    Args:
        began: time at which the answer started, from `time.perf_counter`.
        observer: returns a context manager that is entered for each request.
    """

    def __init__(self, began: float, observer: Observer | None = None) -> None:
        self._began = began
        self._observer: Observer = observer or (lambda _: nullcontext())
        self.spans: list[RequestSpan] = []

    def now(self) -> float:
        """The number of seconds since the answer began."""
        return time.perf_counter() - self._began

    @contextmanager
    def request(self, who: int, kind: RequestKind, number: int, *, at: int, places: int = 0) -> Iterator[RequestSpan]:
        """Record a request that is in progress during the `with` block."""
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
