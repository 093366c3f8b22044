"""The pace of an answer: how far the draft runs ahead, and what is asked together. It cannot change a token."""

from __future__ import annotations

from collections.abc import Iterable

from cosd_api.decoding.answer import AnswerPath
from cosd_api.decoding.pace import LEAST, Pace
from cosd_api.paths.cuts import look, word_around

_MOST_UNITS = 32  # maximum number of units in one request, if the server recommends no number of places
_SHARE = 0.7  # the draft may be this many times the average distance between two replacements ahead


class Pacing:
    """Decides what is worth its cost.

    Args:
        settings: the settings.
        answer: the answer.
        cuts: whether every safe cut is a token boundary of all models.
        pauses: whether the draft can be paused anywhere, because it continues its own ids.
    """

    def __init__(self, settings: Pace, answer: AnswerPath, *, cuts: bool, pauses: bool) -> None:
        self.settings = settings
        self._answer, self._cuts, self._pauses = answer, cuts, pauses
        self._restarts = 0

    def replaced(self) -> None:
        """Count a replacement."""
        self._restarts += 1

    def over(self) -> None:
        """Add the answer to the rate of its fusion."""
        self._answer.job.drafts.rate.add(self._answer.judged, self._restarts)

    # ---------------------------------------------------------------------------------------------------- the draft

    def room(self) -> int:
        """The number of tokens that the draft may write now; 0 if it has to wait."""
        answer, written = self._answer, len(self._answer.tokens)
        most = answer.bound + answer.lookahead - written
        if most <= 0 or answer.complete or self.is_futile or (self.reaches() and not answer.awaited):
            return 0
        ahead, awaited = written - answer.judged, answer.awaited
        most = min(most, self._short or most)
        if self.settings.draft_length is not None:
            return min(most, self.settings.draft_length) if self._is_idle() else 0
        window = self.window
        if window is None:
            return most
        if awaited:  # a unit that has begun is always completed
            return min(most, window)
        return 0 if ahead > window // 2 else min(most, max(1, window - ahead))

    @property
    def _short(self) -> int | None:
        """The length of drafts that end by themselves before a replacement cancels them; None for longer drafts.

        A draft that continues a text may write on differently after a pause.
        """
        settings = self.settings
        chosen = settings.draft_length is not None or settings.max_ahead is not None
        able = settings.leases and self._pauses and not chosen
        return self._answer.job.drafts.speeds.short_draft(self._between) if able else None

    @property
    def _between(self) -> float:
        """The average number of tokens between two replacements."""
        return self._answer.job.drafts.rate.between(self._answer.judged, self._restarts)

    @property
    def window(self) -> int | None:
        """The number of tokens by which the draft may be ahead of the judged text; None means no limit.

        By default, the draft runs ahead as far as it is likely to be kept, given how often drafts are replaced.
        """
        if self.settings.max_ahead is not None or not self._pauses:
            return self.settings.max_ahead
        return max(LEAST, int(_SHARE * self._between))

    @property
    def is_futile(self) -> bool:
        """Test whether everything that the draft would write now is sure to be replaced."""
        answer, judges = self._answer, self._answer.judges.values()
        sure = min((one.first for one in judges if one.conflict or one.replacement is not None), default=None)
        if sure is None:
            return False
        # Other assistants may need more text, of which they judge a whole word; without lookahead, a token is enough.
        others = [one for one in judges if not (one.stopped or one.conflict)]
        return not any(answer.is_idle(one) and (answer.lookahead or one.first <= sure) for one in others)

    def _is_idle(self) -> bool:
        """Test whether every assistant that is still judging waits for the draft."""
        judging = [one for one in self._answer.judges.values() if not one.stopped]
        return all(self._answer.is_idle(one) for one in judging) and (bool(judging) or not self._answer.judges)

    def reaches(self) -> bool:
        """Test whether the draft has most likely written far enough after the answer's end to encode its last word."""
        answer, bound = self._answer, self._answer.bound
        if not answer.lookahead:
            return len(answer.tokens) >= bound
        if len(answer.tokens) <= bound or not answer.by_ids:
            return False
        text = answer.written
        _, end = word_around(text, answer.offset(bound))
        return end < len(text) and look(text, end, ended=False, cuts=self._cuts) is not None

    # ------------------------------------------------------------------------------------------------ the questions

    def asks_singly(self, model: int) -> bool:
        """Test whether an assistant is best asked about one place at a time: its cache then reads no token twice."""
        places = self.settings.places
        return self.is_watched(model) or (bool(places) and places[model - 1] == 1)

    def is_watched(self, model: int) -> bool:
        """Test whether an assistant is asked by an open stream."""
        return model - 1 in self.settings.watched

    def runs_on(self, model: int) -> bool:
        """Test whether an assistant writes some tokens more after each answer, which may answer the next places.

        It does so if it is idle most of the time, because it writes faster than the draft.
        """
        if self.is_watched(model) or not self.asks_singly(model) or model - 1 in self.settings.questions_only:
            return False
        slower = self._answer.job.drafts.speeds.slower(model)
        return slower is not None and slower < 1

    def places_per_question(self, model: int) -> int:
        """The number of units to ask about in one request."""
        if self.asks_singly(model):
            return 1
        places = self.settings.places
        # A unit of one token is one place; how many places a longer unit has is not known beforehand.
        return _MOST_UNITS if self._answer.lookahead or not places else places[model - 1]

    def waits(self, asks: Iterable[bool]) -> bool:
        """Test whether a question waits while the draft is being written.

        Args:
            asks: for each token that is known, whether an assistant has to be asked about it.
        """
        window = self.settings.needs.window
        return self.settings.draft_length is not None or (window > 1 and sum(asks) < window)
