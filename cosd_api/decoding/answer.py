"""One answer in progress: the draft's path, the facts about its tokens, and the progress of each assistant.

The path grows by the draft's tokens and is changed only by replacements. Drafts, judges and replacements share it, and
`notify` wakes all tasks that wait for a change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

import anyio
import anyio.lowlevel

from cosd_api.alignment import Decision
from cosd_api.decoding.answer_job import AnswerJob
from cosd_api.decoding.commands import DRAFT, Report
from cosd_api.decoding.said import Ids, Said
from cosd_api.decoding.stops import StopFinder
from cosd_api.paths.encoding import DraftPath, Encoder
from cosd_api.paths.units import PathUnit
from cosd_providers.contract import Token

LOOKAHEAD = 16
"""Maximum number of tokens that the draft writes after the answer's end, so that the last places can be encoded."""

_MANY = 64  # number of places above which an assistant's knowledge about final text is dropped


@dataclass(slots=True)
class Mark:
    """Facts about one token of the path.

    Attributes:
        source: the model that wrote the token, as in `Placed`.
        winner: on each token of a replacement, the decision that put the token there.
        replaced: on the first token of a replacement, the draft's tokens that were replaced.
        draft: number of the draft that wrote the token, or the text that the token replaced.
        at: time at which the token was written.
        silent: whether an assistant was asked about the token and gave no answer.
        unanswered, unjudged, off_path: for the units that begin with the token, the counts of the same names in
            `Report`, which are added up when the token is final.
        looked_up: whether the draft was asked for the token's probability; None while the request is in progress.
        failover: the reason why an assistant wrote the token alone; None if it did not.
    """

    source: int = DRAFT
    winner: Decision | None = None
    replaced: tuple[Token, ...] = ()
    draft: int = 0
    at: float = 0.0
    silent: bool = False
    unanswered: int = 0
    unjudged: int = 0
    off_path: int = 0
    looked_up: bool | None = False
    failover: str | None = None


@dataclass(slots=True)
class Recorded:
    """A decision about the path's tokens from `first` up to, but not including, `last`."""

    first: int
    last: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Replacement:
    """An assistant's word in the place of draft tokens.

    Attributes:
        unit: the unit that was judged.
        decision: the decision to replace.
        at: byte offset of the place.
        changed: first byte of the answer that changes.
        said: the assistant's own tokens from the place on.
        keep: number of the path's tokens that remain.
        ids: the ids of the new tokens in the draft's encoding; each is None if the draft takes no ids.
        ends: byte offset of the end of each new token.
        text: the answer up to the end of the word; None if the answer ends at the place.
        whole: whether whole tokens of the draft are exchanged, so that nothing is encoded again.
        cut: whether the draft has to continue a cut text.
    """

    unit: PathUnit
    decision: Decision
    at: int
    changed: int
    said: tuple[Token, ...]
    keep: int
    ids: tuple[int | None, ...] = ()
    ends: tuple[int, ...] = ()
    text: bytes | None = None
    whole: bool = False
    cut: bool = False


@dataclass(slots=True, eq=False)
class Judge:
    """The progress of one assistant along the present path. Every replacement makes new judges.

    Attributes:
        model: index of the model.
        said: what the assistant has said; kept over replacements.
        first: index of the draft token at which its next unit begins.
        own: index of the token after its own last word, if it made the last replacement.
        units: its units so far, by their first token.
        starts: where its units began.
        waits: whether its next unit needs more text of the draft.
        seen: number of the path's tokens that it knew when it began to wait.
        conflict: whether its word is sure to replace what the draft wrote, and is still being written.
        replacement: its word, which is put into the path when all others have judged the text before it.
        error: the reason why it could not judge; raised only when the answer has to wait for it.
        drafts_error: whether `error` is the draft's.
        caught_up_to: number of the last change of the answer that it has taken into account.
        asks: whether it waits for the answer to a request.
        early: the place about which it is being asked early, if any.
        asked_early: the last place about which it was asked early.
        scope, early_scope: cancel its work, and the early question.
    """

    model: int
    said: Said = field(default_factory=Said)
    first: int = 0
    own: int | None = None
    units: dict[int, PathUnit] = field(default_factory=dict[int, PathUnit])
    starts: set[int] = field(default_factory=set[int])
    waits: bool = False
    seen: int = 0
    conflict: bool = False
    replacement: Replacement | None = None
    error: Exception | None = None
    drafts_error: bool = False
    caught_up_to: int = -1
    asks: bool = False
    early: object = None
    asked_early: object = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    early_scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    @property
    def stopped(self) -> bool:
        """Test whether it waits for its replacement to be made, or has failed."""
        return self.replacement is not None or self.error is not None

    @property
    def is_certain(self) -> bool:
        """Test whether its word has probability 1, so that no assistant after it in the list can win against it."""
        return self.replacement is not None and self.replacement.decision.q == 1

    def leave(self) -> None:
        """Cancel its work."""
        self.scope.cancel()
        self.early_scope.cancel()

    def forget(self, count: int, before: int) -> None:
        """Drop what is known about the first `count` tokens, which end at byte `before`, if that is much."""
        if len(self.said.sources) > _MANY:
            self.said.forget(before)
        if len(self.starts) > _MANY:
            self.units = {first: unit for first, unit in self.units.items() if unit.start >= before}
            self.starts = {first for first in self.starts if first >= count}


class JudgedPath(DraftPath, ABC):
    """The draft's path as the readers see it: with its ids, and up to the end of the answer."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: list[int] = []
        self._shift = 0  # number of tokens for which there is no id

    def add(self, token: Token) -> None:
        """Append a token."""
        super().add(token)
        self._ids.append(token.id or 0)

    def cut_back(self, count: int) -> None:
        """Remove all tokens except the first `count`."""
        super().cut_back(count)
        del self._ids[max(count - self._shift, 0) :]

    def ids(self, count: int) -> Ids:
        """The ids of the first `count` tokens."""
        return tuple(self._ids[: max(count - self._shift, 0)])

    def encode_again(self, ids: Ids) -> None:
        """Replace the ids of all tokens by other ids of the same text. No token so far can be replaced after this."""
        self._ids, self._shift, self.kept = [*ids], len(self.tokens) - len(ids), len(self.tokens)

    @property
    @abstractmethod
    def bound_bytes(self) -> int:
        """The byte offset before which a place is judged."""


class AnswerPath(JudgedPath):
    """The draft's path, with facts about its tokens and the progress of the assistants.

    Args:
        job: the models, limits and settings.
        encoder: encodes as the draft does; None if no assistant's word is encoded again.
        by_ids: whether the draft continues its own ids.
        lookahead: number of tokens to draft after the answer's end; 0 if no assistant encodes the text itself.

    Attributes:
        marks: facts about each token.
        judges: the assistants that are not lost, by the index of the model.
        decisions: the decisions about tokens that are not final yet.
        counts: a report in which the counts are kept.
        stop_end: byte offset of the end of the stop string that ends the answer; None if no stop string was found.
        draft: number of the most recent draft, which may be in progress.
        drafts_error: the last failure of the draft's server to encode a text.
        numbers: counter of drafts and of continuations.
        asks: counter of questions and of open streams.
        news: event that is set when the path or the progress next changes.
        changes: number of changes so far.
    """

    def __init__(self, job: AnswerJob, encoder: Encoder | None, *, by_ids: bool, lookahead: int) -> None:
        super().__init__()
        self.job, self.encoder, self.by_ids, self.lookahead = job, encoder, by_ids, lookahead
        self.marks: list[Mark] = []
        self.judges: dict[int, Judge] = {}
        self.decisions: list[Recorded] = []
        self.counts = Report()
        self.stop_end: int | None = None
        self.draft = 0
        self.drafts_error: Exception | None = None
        self.numbers, self.asks = count(1), count(1)
        self.news, self.changes = anyio.Event(), 0
        self._progress = anyio.Event()
        self._stops = StopFinder(job.stop)
        self._stop_count = 0  # number of tokens up to the stop string's end

    # ------------------------------------------------------------------------------------------------------- news

    def notify(self) -> None:
        """Wake all tasks that wait for a change."""
        self.changes += 1
        news, self.news = self.news, anyio.Event()
        news.set()

    async def changed(self) -> None:
        """Wait for a change. A task that is cancelled while it waits ends here."""
        await self.news.wait()
        await anyio.lowlevel.checkpoint_if_cancelled()

    def caught_up(self, judge: Judge, change: int, *, asks: bool = False) -> None:
        """Note that a judge has taken the changes up to number `change` into account, or that it `asks` a question."""
        judge.caught_up_to, judge.asks = change, asks
        self._progress.set()

    async def judges_caught_up(self, limit: float) -> None:
        """Wait until every judge has drawn its conclusions from the last change, but at most `limit` seconds."""
        last = self.changes
        with anyio.move_on_after(limit):
            while any(one.caught_up_to < last and not one.asks for one in self.judges.values()):
                self._progress = anyio.Event()
                await self._progress.wait()

    # ------------------------------------------------------------------------------------------------- the tokens

    def mark(self, source: int = DRAFT, winner: Decision | None = None, replaced: tuple[Token, ...] = ()) -> Mark:
        """Make the facts about a token that is being written now."""
        return Mark(source, winner, replaced, self.draft, self.job.timeline.now())

    def known_end(self, token: Token) -> Token:
        """Return the token, marked as an end of sequence if its id ends the answer of any model with these ids."""
        return replace(token, data=b"", end=True) if token.id in self.job.drafts.ends else token

    def append(self, token: Token, mark: Mark) -> None:
        """Append a token with its facts, and look for a stop string."""
        self.add(token)
        self.marks.append(mark)
        if self.stop_end is None and (stop := self._stops.find(self.text, len(token.data))) is not None:
            self.stop_end = len(self.text) - stop.distance + len(stop.text.encode())
            self._stop_count = len(self.tokens)

    def cut_back(self, count: int) -> None:
        """Remove all tokens except the first `count`."""
        super().cut_back(count)
        del self.marks[count:]
        if self._stop_count > count:
            self.stop_end, self._stop_count = None, 0

    # ------------------------------------------------------------------------------------------------------ limits

    @property
    def bound(self) -> int:
        """The number of tokens that can become part of the answer; later tokens are lookahead."""
        return min(self.job.max_tokens, self._stop_count or self.job.max_tokens)

    @property
    def bound_bytes(self) -> int:
        """The value of `bound` as a byte offset, as far as the path reaches."""
        most = self.job.max_tokens
        limit = self.ends[most - 1] if len(self.ends) >= most else len(self.text)
        return limit if self.stop_end is None else min(limit, self.stop_end)

    @property
    def complete(self) -> bool:
        """Test whether the draft has nothing more to write."""
        return self.over or self.ended

    def is_end(self, first: int) -> bool:
        """Test whether neither the token `first` nor any token after it will be judged."""
        return first >= self.bound or (self.complete and first >= len(self.tokens))

    def settled(self, first: int) -> int:
        """The number of tokens that remain if the token `first` is replaced."""
        return first if self.encoder is None else self.fixed(first)

    # -------------------------------------------------------------------------------------------------- the judges

    def is_current(self, judge: Judge) -> bool:
        """Test whether no replacement has ended this judge, and its assistant is not lost."""
        return self.judges.get(judge.model) is judge

    def is_idle(self, judge: Judge) -> bool:
        """Test whether a judge that has not stopped can do nothing before the path grows."""
        size = len(self.tokens)
        return judge.first >= min(size, self.bound) or (judge.waits and judge.seen == size)

    @property
    def judged(self) -> int:
        """The number of tokens that every assistant has judged."""
        return min([one.first for one in self.judges.values()], default=len(self.tokens))

    @property
    def awaited(self) -> bool:
        """Test whether an assistant waits for the draft to write more."""
        size = len(self.tokens)
        return any((one.waits or one.first >= size) and not one.stopped for one in self.judges.values())

    def decided(self, wanted: Callable[[Recorded], bool]) -> list[Decision]:
        """The decisions for which `wanted` returns True."""
        return [one.decision for one in self.decisions if wanted(one)]
