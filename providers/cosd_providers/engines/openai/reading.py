"""How the answers of OpenAI's routes are read: each token gets its bytes, whatever the server shows of it.

A server gives a text and, beside it, a string and a probability for each token. The text is right; the strings are
often not: a token that leaves a character unfinished has none, or U+FFFD; some servers leave out the space before a
word; the end of sequence has a string and no text, or no entry at all. `Spelling` walks both and gives each token
the bytes that the text has for it. So it does not matter how many tokens an event of a stream holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cosd_providers.alternatives import keeps_spaces
from cosd_providers.contract import Token
from cosd_providers.engines.openai.strings import endings, readings, spells
from cosd_providers.engines.openai.wire import Candidate, Completion, Step, steps
from cosd_providers.errors import ResponseError
from cosd_providers.scoring import Choice, Position
from cosd_providers.text import first_character, whole

__all__ = ["Spelling"]

_LOST = "\ufffd".encode()
"""What decoders write for bytes that are no character."""

_OPEN = 3  # bytes of a character that is not whole, at most
_AHEAD = 16  # tokens that are looked at behind one whose place in the text is in doubt


class Spelling:
    """Gives the tokens of one answer their bytes, event by event.

    Args:
        endpoint: of the server, for errors.
        ends: strings and ids of ends of sequence that were seen; one is added when it is first seen.
        bare: whether each string has lost a space at its front if it had one (see `strings`); None to find out.

    Attributes:
        count: how many tokens the server told of.
        listed: whether the server listed what is most probable at the position that came last.
        told: how probable it said its own token there is.
        trimmed: whether the text lacks the space that its first token begins with.
        spaced: whether what is listed is seen to keep the space before a word.
    """

    def __init__(self, endpoint: str, ends: set[str | int], *, bare: bool | None = None) -> None:
        self.count = 0
        self.listed = False
        self.told: float | None = None
        self.trimmed = False
        self.spaced = bare is False
        self._endpoint = endpoint
        self._ends = ends
        self._bare = bare
        self._begun = False  # whether a token was given text
        self._steps: list[Step] = []  # whose bytes are not known yet
        self._text = b""  # that no token was given yet
        self._lost = False  # whether it held what stands for bytes that are no character: then it tells less
        self._owed = b""  # given to tokens by their own bytes, before the text came

    def feed(self, answer: Completion) -> Iterator[Position]:
        """Takes an event, or a whole answer; yields the positions whose bytes are known now.

        A token that leaves a character unfinished is `open`, unless the server tells its bytes. The end of sequence
        comes with the last event, with no probability where the server does not tell it.

        Raises:
            ResponseError: the tokens do not spell the text.
        """
        found = steps(answer)
        self.count += len(found)
        self._steps += found
        self.spaced = self._bare is not True and (self.spaced or any(map(_keeps_spaces, found)))
        self._text += answer.written.encode("utf-8", "replace")
        self._lost = self._lost or "\ufffd" in answer.written
        ended = answer.finish_reason == "stop"
        yield from self._known(ended=ended, over=answer.finish_reason is not None)
        if answer.finish_reason is not None:
            yield from self._rest(ended=ended)

    def _known(self, *, ended: bool, over: bool) -> Iterator[Position]:
        """The tokens at the front that the text has spelt."""
        while self._steps:
            self._settle()
            found = self._next(ended=ended, over=over)
            if found is None:
                return
            at, data = found
            yield from (self._position(step, b"", is_open=True) for step in self._steps[:at])
            yield self._position(self._steps[at], data, is_open=not data)
            del self._steps[: at + 1]

    def _next(self, *, ended: bool, over: bool) -> tuple[int, bytes] | None:
        """The first of the tokens that has bytes, and which; None while the text does not tell."""
        for at, step in enumerate(self._steps):
            if step.pick.data:
                self._owed += step.pick.data
                return at, step.pick.data
            _, lost, core = step.pick.text.rpartition("\ufffd")
            if not core:
                if not at and not lost and self._is_space():
                    return 0, self._take_first(1)
                continue
            if lost or (at and _LOST in self._text):
                size = self._completed(core.encode(), self._steps[at + 1 :], goes_on=bool(lost))
                if size:
                    return at, self._take_first(size)
                if lost:
                    continue
            string = step.pick.text.encode()
            data = self._take(step.pick.text, self._steps[at + 1 :], over=over)
            if data is not None:
                return at, data
            if at and self._text.find(string) > 0:
                return self._before(at)
            coming = (b" " + string).startswith(self._text) or string.startswith(self._text)
            if not self._text or (coming and not over):
                return None  # its text is still to come
            # Else it is a special token, which has a string and no text.
        to_come = not over and any(_says(step.pick) for step in self._steps)
        if ended or to_come or not self._text or self._text.endswith(_LOST):
            return None
        return self._before(len(self._steps))

    def _before(self, count: int) -> tuple[int, bytes]:
        """The bytes of one of the first `count` tokens, none of which says anything, and which.

        What stands before the string of the token behind them completes a character; or else all of the text.
        """
        size, known = len(self._text), count
        if count < len(self._steps):
            string = self._steps[count].pick.text
            size = self._text.find(string.encode())
            if self._bare and self._text.startswith(readings(string, bare=True), count):
                return self._byte_by_byte(count, count) or (count - 1, self._take_first(size))
        elif self._bare and size < count <= size + _OPEN:  # the last ones have begun another character
            known = size
        return self._byte_by_byte(known, size) or (count - 1, self._take_first(size))

    def _is_space(self) -> bool:
        """Whether the token at the front, which has no string, is the space at the front of the text.

        A character that was left open cannot become one, but the token behind it may have lost its own.
        """
        later = self._steps[1:]
        if self._bare is False or not self._text.startswith(b" ") or not any(_says(step.pick) for step in later):
            return False  # if no other token says anything either, it is seen from how many they are
        exact = not self._bare and _spells(self._steps, self._text, bare=False)
        if exact or not _spells(later, self._text[1:], bare=True):
            return False
        self._learn()
        return True

    def _byte_by_byte(self, count: int, size: int) -> tuple[int, bytes] | None:
        """The first character of the text up to `size`, if `count` tokens without strings have made a byte of it each.

        So do a space without its string, and a character that is not in the vocabulary. Where strings are bare, a space
        at the end may be that of the token behind them.
        """
        gap = self._text[:size]
        same = len(gap) == count or (self._bare and len(gap) == count + 1 and gap.endswith(b" "))
        spaces = [step for byte, step in zip(gap, self._steps[:count], strict=False) if byte == ord(" ")]
        if self._bare is False or not same or _LOST in gap or any(step.pick.text for step in spaces):
            return None
        first = len(first_character(gap).encode())
        if spaces:
            self._learn()
        return first - 1, self._take_first(first)

    def _learn(self) -> None:
        """A string has lost a space. That of the first token of a text tells nothing: servers treat it by itself."""
        if self._bare is None and self._begun:
            self._bare = True

    def _completed(self, core: bytes, later: Sequence[Step], *, goes_on: bool) -> int:
        """How much of the text ends with a token that says `core` behind characters left open; 0 where none does.

        The same characters may stand there more than once: what the tokens behind it say has to follow.

        Args:
            core: what the token says, at its end.
            later: the tokens behind it.
            goes_on: whether it completes a character before that.
        """
        for bare in (False, True):
            for end in endings(core, self._text, goes_on=goes_on):
                if _spells(later, self._text[end:], bare=bare):
                    return end
        return 0

    def _take(self, string: str, later: Sequence[Step], *, over: bool) -> bytes | None:
        """Takes a token's string off the text: as it stands there, which is with the right space before it.

        Where the string itself is spaces, what the tokens behind it say has to follow.
        """
        while self._text.startswith(_LOST):
            self._text = self._text.removeprefix(_LOST)
        plain, bare = string.encode(), readings(string, bare=True)
        ways = (*bare, plain) if self._bare else (plain, b" " + plain)
        fits = [data for data in (*ways, plain.removeprefix(b" ")) if data and self._text.startswith(data)]
        if not fits or (self._bare and not over and len(bare[0]) > len(self._text) and bare[0].startswith(self._text)):
            return None  # perhaps there is more to come
        following = (data for data in fits if _spells(later, self._text[len(data) :], bare=data in bare))
        data = next(following, fits[0]) if len(fits) > 1 else fits[0]
        if data == b" " + plain:
            self._learn()
        self.trimmed = not self._begun and data == plain.removeprefix(b" ") != plain
        return self._take_first(len(data))

    def _take_first(self, size: int) -> bytes:
        """Takes the first bytes off the text."""
        self._begun = True
        data, self._text = self._text[:size], self._text[size:]
        return data.replace(_LOST, b"")

    def _settle(self) -> None:
        """Takes off the text what was given already."""
        while True:
            pairs = list(zip(self._owed, self._text, strict=False))
            same = next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs))
            self._owed, self._text = self._owed[same:], self._text[same:]
            if not self._owed or not self._text:
                return
            # Bytes that are no character: the text cannot show them. What has begun one behind them still may.
            size = whole(self._owed)
            shown = self._owed[:size].decode("utf-8", "replace").encode()
            if not self._text.startswith(shown):
                size, shown = len(self._owed), b""
            self._owed, self._text = self._owed[size:], self._text.removeprefix(shown)
            if not size:
                return

    def _rest(self, *, ended: bool) -> Iterator[Position]:
        """What is left when the answer is over. Where it was cut off, no character is complete."""
        self._settle()
        left, self._steps = self._steps, []
        text, self._text = self._text.replace(_LOST, b""), b""
        end: Step | None = None
        if ended:
            shown = left and (not text or self._is_end(left)) and "\ufffd" not in left[-1].pick.text
            end = left.pop() if shown else Step(Candidate("", None))
        if text and not left and not self._lost:
            raise ResponseError("the tokens of the answer do not spell its text", endpoint=self._endpoint)
        if not ended:
            text = b""
        yield from (self._position(step, b"", is_open=True) for step in left[:-1])
        yield from (self._position(step, text, is_open=not text) for step in left[-1:])
        if end is not None:
            self._ends |= {mark for mark in (end.pick.text, end.pick.id) if mark not in ("", None)}
            yield self._position(end, b"", end=True)

    @staticmethod
    def _is_end(left: Sequence[Step]) -> bool:
        """Whether the last of these, which have some text to share, has none: it may be a part of a character, too."""
        pick = left[-1].pick
        return len(left) > 1 and (bool(pick.text) or pick.id is not None)

    def _position(self, step: Step, data: bytes, *, is_open: bool = False, end: bool = False) -> Position:
        """A step as scoring takes it; its own token first, the others with numbers where they have no ids."""
        pick = step.pick
        # Where its own bytes are fewer, the server has hidden the tokens before it, and how sure they were.
        fewer = any(one.id == pick.id is not None and one.data and len(one.data) < len(data) for one in step.top)
        known = None if fewer or step.hides else pick.prob
        token = Token(data, known, end=end, name=pick.text or None if end else None)
        first = Choice(0 if pick.id is None else pick.id, token, is_open, step.sure)
        self.listed, self.told = bool(step.top), pick.prob
        others = [other for other in step.top if not _same(other, pick)]
        return Position(first, [self._other(other, -n) for n, other in enumerate(others, 1)])

    def _other(self, candidate: Candidate, number: int) -> Choice:
        """A token that the server did not take."""
        token_id = number if candidate.id is None else candidate.id
        if candidate.text in self._ends or candidate.id in self._ends:
            return Choice(token_id, Token(b"", candidate.prob, end=True, name=candidate.text or None))
        data = candidate.data or (candidate.text.encode() if _says(candidate) else b"")
        return Choice(token_id, Token(data, candidate.prob), not data)


def _keeps_spaces(step: Step) -> bool:
    """Whether what is listed has the space before a word. A token of the answer may have it from what stands before."""
    return keeps_spaces(one.data.decode(errors="replace") if one.data else one.text for one in step.top)


def _says(candidate: Candidate) -> bool:
    """Whether its string is whole."""
    return bool(candidate.text) and "\ufffd" not in candidate.text


def _same(candidate: Candidate, pick: Candidate) -> bool:
    """Whether it is the token that the server took, as far as that can be known."""
    if candidate.id is not None and pick.id is not None:
        return candidate.id == pick.id
    return (candidate.text, candidate.data) == (pick.text, pick.data)


def _spells(later: Sequence[Step], text: bytes, *, bare: bool) -> bool:
    """Whether these tokens may have made `text`, as far as is looked ahead."""
    strings = [step.pick.data or step.pick.text for step in later[:_AHEAD]]
    return spells(strings, text, bare=bare, open_end=len(later) > _AHEAD)
