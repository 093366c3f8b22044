"""The draft's path through one answer across tokenizers. Drafts, assistants and replacements share this path."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import anyio
import anyio.lowlevel

from cosd_api.alignment import Decision
from cosd_api.decoding.commands import DRAFT, Report
from cosd_api.decoding.hearings import AboutTokens, PathHearing, PathMark
from cosd_api.decoding.run import AnswerJob
from cosd_api.decoding.stops import StopFinder
from cosd_api.paths import DraftPath, Encoder
from cosd_providers.contract import Token

LOOKAHEAD = 16
"""Maximum number of tokens that the draft writes after the answer's end, so that the last places can be encoded."""


class AnswerPath(DraftPath):
    """The draft's path, with facts about its tokens and the progress of the assistants.

    Args:
        job: the models, limits, settings and record of the answer.
        encoder: the draft's encoder; None if the draft accepts only text.

    Attributes:
        marks: facts about each token.
        hearings: the progress of each assistant that is not lost, by the index of the model.
        decisions: the decisions about tokens that are not final yet.
        counts: a report in which the counts are kept.
        judged: number of tokens that every assistant has judged.
        stop_end: byte offset of the end of the stop string that ends the answer; None if no stop string was found.
        draft: number of the most recent draft, which may be in progress.
        numbers: counter from which drafts, continuations and watches take their numbers.
        asks: counter from which questions take their numbers.
        news: event that is set when the path or the progress next changes.
    """

    def __init__(self, job: AnswerJob, encoder: Encoder | None) -> None:
        super().__init__()
        self.job = job
        self.encoder = encoder
        self.marks: list[PathMark] = []
        self.hearings: dict[int, PathHearing] = {}
        self.decisions: list[AboutTokens] = []
        self.counts = Report(off_path=0, unjudged=0)
        self.judged = 0
        self.stop_end: int | None = None
        self.draft = 0
        self.numbers = count(1)
        self.asks = count(1)
        self._stops = StopFinder(job.stop)
        self.news = anyio.Event()

    # ------------------------------------------------------------------------------------------------------- news

    def tell(self) -> None:
        """Wake all tasks that wait for a change."""
        news, self.news = self.news, anyio.Event()
        news.set()

    async def changed(self) -> None:
        """Wait for a change. A task that is cancelled while it waits ends here."""
        await self.news.wait()
        await anyio.lowlevel.checkpoint_if_cancelled()

    # ------------------------------------------------------------------------------------------------- the tokens

    def mark(self, source: int = DRAFT, winner: Decision | None = None, replaced: tuple[Token, ...] = ()) -> PathMark:
        """Make the facts about a token that is being written now."""
        return PathMark(source, winner, replaced, draft=self.draft, at=self.job.timeline.now())

    def append(self, token: Token, mark: PathMark) -> None:
        """Append a token and the facts about it."""
        self.add(token)
        self.marks.append(mark)

    def cut_back(self, count: int) -> None:
        """Remove all tokens except the first `count`."""
        super().cut_back(count)
        del self.marks[count:]

    def known_end(self, token: Token) -> Token:
        """Return the token, marked as an end of sequence if its id ends the answer of any model with these ids."""
        return replace(token, data=b"", end=True) if token.id in self.job.ends else token

    def find_stop(self, grown: int) -> None:
        """Search for a stop string that ends within the last `grown` bytes, unless one was found earlier."""
        if self.stop_end is None and (stop := self._stops.find(self.text, grown)) is not None:
            self.stop_end = len(self.text) - stop.distance + len(stop.text.encode())

    @property
    def bound(self) -> int:
        """The number of tokens that can become part of the answer; later tokens are lookahead."""
        most = self.job.max_tokens
        if self.stop_end is None:
            return most
        return min(most, next((at for at, end in enumerate(self.ends, 1) if end >= self.stop_end), most))

    @property
    def bound_bytes(self) -> int:
        """The value of `bound` as a byte offset, as far as the path reaches."""
        most = self.job.max_tokens
        limit = self.ends[most - 1] if len(self.ends) >= most else len(self.text)
        return limit if self.stop_end is None else min(limit, self.stop_end)

    def fixed(self, first: int) -> int:
        """The number of leading tokens that remain if the token `first` is replaced; see `DraftPath.fixed`."""
        return first if self.encoder is None else super().fixed(first)

    def is_end(self, first: int) -> bool:
        """Test whether neither the token `first` nor any token after it will be judged."""
        return first >= self.bound or ((self.ended or self.over) and first >= len(self.tokens))

    # ---------------------------------------------------------------------------------------------- the assistants

    @property
    def starving(self) -> bool:
        """Test whether any assistant waits for the draft to write more."""
        return any(one.starving for one in self.hearings.values() if one.open)

    def is_heard(self, hearing: PathHearing) -> bool:
        """Test whether a hearing is current: no replacement has ended it, and its assistant is not lost."""
        return self.hearings.get(hearing.model) is hearing

    def judged_bytes(self, assistant: int) -> int | None:
        """The byte offset up to which an assistant has judged the answer; None if the assistant is lost."""
        hearing = self.hearings.get(assistant + 1)
        return None if hearing is None else self.offset(hearing.first)

    def count(self, hearing: PathHearing, **more: int) -> None:
        """Increase the counts on behalf of a hearing, provided that the hearing is still current."""
        if self.is_heard(hearing):
            for name, count in more.items():
                setattr(self.counts, name, (getattr(self.counts, name) or 0) + count)
