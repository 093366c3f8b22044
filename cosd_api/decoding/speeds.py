"""The speeds of a fusion's models, measured in the fusion's answers. They affect only the cost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from cosd_api.decoding.timeline import RequestKind

_ENOUGH = 16  # number of tokens after which a model's speed counts as known
_CANCEL = 2  # number of tokens that a server writes until it has noticed that a stream was cancelled


@dataclass(slots=True)
class Mean:
    """A mean of measured times.

    Attributes:
        count: number of times.
        seconds: their sum.
    """

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Add a time."""
        self.count, self.seconds = self.count + 1, self.seconds + seconds

    @property
    def value(self) -> float:
        """The mean in seconds; 0 if nothing was measured."""
        return self.seconds / self.count if self.count else 0.0


class Speeds:
    """The speeds of the models in all answers so far.

    Attributes:
        tokens: for each model, the draft first, the time between two tokens of a stream.
        questions: the time until an assistant has answered a question.
        start: the shortest time to the first token of a draft that continues an answer, in seconds.
    """

    def __init__(self) -> None:
        self.tokens = defaultdict[int, Mean](Mean)
        self.questions = Mean()
        self.start = math.inf

    def slower(self, model: int) -> float | None:
        """The model's time per token divided by the draft's; None until both are known."""
        theirs, own = self.tokens[model], self.tokens[0]
        if min(theirs.count, own.count) < _ENOUGH or not own.value:
            return None
        return theirs.value / own.value

    def short_draft(self, between: float) -> int | None:
        """The length of a draft that ends by itself when its first token is judged; None if a long one costs less.

        A short draft costs the start of one more request. A longer one is often cancelled, after which its server is
        busy for some tokens more.

        Args:
            between: the average number of tokens between two replacements.
        """
        token = self.tokens[0].value
        if not (token and self.questions.count):
            return None
        length = 1 + max(1, round(self.questions.value / token))
        return length if self.start - token < _CANCEL * token * length / between else None


class Clock:
    """The times of one request in which a model writes.

    Args:
        speeds: takes the times.
        model: index of the model.
        kind: the kind of the request.
        now: returns the time in seconds.
        continues: whether the request continues an answer. Others read the prompt, and their start is not counted.
    """

    def __init__(
        self, speeds: Speeds, model: int, kind: RequestKind, now: Callable[[], float], *, continues: bool
    ) -> None:
        self._speeds, self._model, self._kind, self._continues = speeds, model, kind, continues
        self._now = now
        self._first = True
        self.start()

    def start(self) -> None:
        """Wait for the next token from now on."""
        self._began = self._now()

    def token(self) -> None:
        """Note that a token has arrived."""
        seconds = self._now() - self._began
        if not self._first:
            self._speeds.tokens[self._model].add(seconds)
        elif self._continues and self._kind == "draft":
            self._speeds.start = min(self._speeds.start, seconds)
        elif self._continues and self._model:
            self._speeds.questions.add(seconds)
        self._first = False
