"""Log probabilities: alignment of an answer's tokens with its text, byte by byte, and checks of the probabilities.

A server returns a text and, for each token, a string and a log probability. The text is correct, but the strings often
are not. A token that leaves a character unfinished has an empty string, or U+FFFD. Some servers drop the space before a
word. The end of sequence has a string but no text, or no entry at all. `TokenAligner` finds the bytes of each token in
the text, however many tokens an event of a stream contains.

Strings are *bare* if each string lacks one space at its front. This happens if the tokens of a SentencePiece vocabulary
are decoded one by one: two spaces become one, and a single space disappears. The text shows the missing spaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from cosd_providers.contract import Token
from cosd_providers.engine import no_probs
from cosd_providers.engines.openai.wire import Candidate, Completion, Step, check_finish, steps
from cosd_providers.errors import ResponseError, UnsupportedError
from cosd_providers.greedy import Choice, Position, check_greedy, check_own
from cosd_providers.text import LOST, first_character, readable, sendable, whole
from cosd_providers.vocabulary import is_plain, keeps_spaces

_LOST = LOST.encode()

_OPEN = 3  # the greatest number of bytes in an unfinished character
_AHEAD = 16  # number of later tokens to check if a token's position in the text is ambiguous
_PART = 8  # bytes that a token without a string may add before a character that it does not complete
_WINDOW = 256  # number of bytes to search for the token after an unfinished character
_NO_PROBS = "Not every server, model and route has them; is there another one?"
_NO_STREAMED = (
    "Not every server, model and route has them in a stream. LiteLLM, for example, drops them from streams of"
    ' /v1/completions and not from those of its chat route: give engine="openai", api="chat", dialect="llama.cpp", or'
    " the dialect of the server behind it."
)
_NOISE = 1e-3  # allowance for rounding in a sum of probabilities


@dataclass(frozen=True, slots=True)
class Listing:
    """The properties of the lists of most probable tokens in a server's answer."""

    asked: int  # the number of tokens requested at each position
    ranked: bool  # whether the server is known to list the most probable tokens; see `Dialect.ranked`
    ends: bool  # whether the end of sequence is listed if it is probable enough
    spaced: bool = False  # whether the listed strings are known to keep the space before a word


class TokenAligner:
    """Aligner that finds the bytes of each token of an answer in the answer's text, event by event.

    Args:
        ends: known strings and ids of ends of sequence; newly found ones are added.
        bare: whether the strings lack one space at their front; None if this is unknown and must be found out.
        listing: properties of the lists of tokens. If given, a listed token is `sure` only if its text is known and no
            unlisted token can be more probable.
    """

    def __init__(
        self, endpoint: str, ends: set[str | int], *, bare: bool | None = None, listing: Listing | None = None
    ) -> None:
        self.count = 0  # number of tokens received
        # whether the listed tokens keep the space before a word
        self.spaced = bare is False or bool(listing and listing.spaced)
        self._listing = listing
        self._endpoint = endpoint
        self._ends = ends
        self._bare = bare
        self._begun = False  # whether some text has been assigned to a token
        self._trimmed = False  # whether the text lacks the space at the front of its first token
        self._listed = False  # whether the last position came with a list of tokens
        self._own: float | None = None  # log probability of the last position's own token, as received
        self._steps: list[Step] = []  # tokens whose bytes are still unknown
        self._text = b""  # text that is not yet assigned to a token
        self._lost = False  # whether the text contained U+FFFD, which may represent any bytes
        self._owed = b""  # bytes that were assigned to tokens before their text arrived

    def feed(self, answer: Completion) -> Iterator[Position]:
        """Read an event, or a whole answer; yield the positions whose bytes are now known.

        A token that leaves a character unfinished is `open`, unless the server sends its bytes. The end of sequence
        is yielded with the last event; its probability is None if the server does not report it.

        Raises:
            ResponseError: the tokens do not spell the text.
        """
        found, written = steps(answer), answer.written
        self.count += len(found)
        self.spaced = self._bare is not True and (self.spaced or any(map(_keeps_spaces, found)))
        ended, lost = answer.finish_reason == "stop", LOST in written
        if len(found) == 1 and written == found[0].pick.text and self._is_plain(found[0]) and not (ended or lost):
            self._begun, self._trimmed = True, False
            yield self._position(found[0], written.encode())  # the common case
            return
        self._steps += found
        self._text += written.encode("utf-8", "replace")
        self._lost = self._lost or lost
        yield from self._known(ended=ended, over=answer.finish_reason is not None)
        if answer.finish_reason is not None:
            yield from self._rest(ended=ended)

    def _is_plain(self, step: Step) -> bool:
        """True if no earlier text or token is pending, and the token's string determines its bytes."""
        waits = self._steps or self._text or self._owed
        return not (waits or self._bare or step.pick.data) and bool(step.pick.text)

    def _known(self, *, ended: bool, over: bool) -> Iterator[Position]:
        """Yield the leading pending tokens whose text has arrived."""
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
        """Find the first pending token with bytes: its index and bytes; None while the text does not determine them."""
        for at, step in enumerate(self._steps):
            if step.pick.data:
                self._owed += step.pick.data
                return at, step.pick.data
            _, lost, core = step.pick.text.rpartition(LOST)
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
                return None  # the token's text has not arrived yet
            # The token is special: it has a string but no text.
        to_come = not over and any(_says(step.pick) for step in self._steps)
        if ended or to_come or not self._text or self._text.endswith(_LOST):
            return None
        return self._before(len(self._steps))

    def _before(self, count: int) -> tuple[int, bytes]:
        """Return the index and bytes of one of the first `count` pending tokens, none of which has a usable string.

        The text before the string of the next token completes a character; if there is no next token, the whole text
        does.
        """
        size, known = len(self._text), count
        if count < len(self._steps):
            string = self._steps[count].pick.text
            size = self._text.find(string.encode())
            if self._bare and self._text.startswith(readings(string, bare=True), count):
                return self._byte_by_byte(count, count) or (count - 1, self._take_first(size))
        elif self._bare and size < count <= size + _OPEN:  # the last tokens begin a further character
            known = size
        return self._byte_by_byte(known, size) or (count - 1, self._take_first(size))

    def _is_space(self) -> bool:
        """True if the first pending token, which has no string, is the space at the front of the text.

        If the token is part of a character instead, the space belongs to the next token, whose string lacks it.
        """
        later = self._steps[1:]
        if self._bare is False or not self._text.startswith(b" ") or not any(_says(step.pick) for step in later):
            return False  # without a later string, the number of tokens decides
        exact = not self._bare and _spells(self._steps, self._text, bare=False)
        if exact or not _spells(later, self._text[1:], bare=True):
            return False
        self._learn()
        return True

    def _byte_by_byte(self, count: int, size: int) -> tuple[int, bytes] | None:
        """Remove the text's first character if each of `count` tokens without strings is one of the first `size` bytes.

        Such a token is a space whose string is missing, or one byte of a character that is not in the vocabulary. If
        strings are bare, a space at the end may belong to the next token. Returns the index of the token that completes
        the character, and the character; None if the tokens are not single bytes.
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
        """Remember that strings lack spaces. The first token proves nothing, because servers treat it specially."""
        if self._bare is None and self._begun:
            self._bare = True

    def _completed(self, core: bytes, later: Sequence[Step], *, goes_on: bool) -> int:
        """Find the length of the text up to the end of a token after unfinished characters; 0 if no position fits.

        The token's string may occur several times in the text, so the later tokens must fit after it.
        `core` is the token's string without the character that it completes, if it begins with one (`goes_on`).
        """
        for bare in (False, True):
            for end in endings(core, self._text, goes_on=goes_on):
                if _spells(later, self._text[end:], bare=bare):
                    return end
        return 0

    def _take(self, string: str, later: Sequence[Step], *, over: bool) -> bytes | None:
        """Remove a token's string from the front of the text, with the space before it; None if it does not fit.

        If several spellings fit, the later tokens decide.
        """
        while self._text.startswith(_LOST):
            self._text = self._text.removeprefix(_LOST)
        plain, bare = string.encode(), readings(string, bare=True)
        ways = (*bare, plain) if self._bare else (plain, b" " + plain)
        fits = [data for data in (*ways, plain.removeprefix(b" ")) if data and self._text.startswith(data)]
        if not fits or (self._bare and not over and len(bare[0]) > len(self._text) and bare[0].startswith(self._text)):
            return None  # the rest of the token may not have arrived yet
        following = (data for data in fits if _spells(later, self._text[len(data) :], bare=data in bare))
        data = next(following, fits[0]) if len(fits) > 1 else fits[0]
        if data == b" " + plain:
            self._learn()
        self._trimmed = not self._begun and data == plain.removeprefix(b" ") != plain
        return self._take_first(len(data))

    def _take_first(self, size: int) -> bytes:
        """Remove and return the first `size` bytes of the text."""
        self._begun = True
        data, self._text = self._text[:size], self._text[size:]
        return data.replace(_LOST, b"")

    def _settle(self) -> None:
        """Remove bytes that are already assigned to tokens from the text."""
        while True:
            pairs = list(zip(self._owed, self._text, strict=False))
            same = next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs))
            self._owed, self._text = self._owed[same:], self._text[same:]
            if not self._owed or not self._text:
                return
            # The text cannot show bytes that do not form a character. An unfinished character may follow such bytes.
            size = whole(self._owed)
            shown = self._owed[:size].decode("utf-8", "replace").encode()
            if not self._text.startswith(shown):
                size, shown = len(self._owed), b""
            self._owed, self._text = self._owed[size:], self._text.removeprefix(shown)
            if not size:
                return

    def _rest(self, *, ended: bool) -> Iterator[Position]:
        """Yield the remaining tokens of a finished answer. After a cut-off, they do not complete a character."""
        self._settle()
        left, self._steps = self._steps, []
        text, self._text = self._text.replace(_LOST, b""), b""
        end: Step | None = None
        if ended:
            shown = left and (not text or self._is_end(left)) and LOST not in left[-1].pick.text
            end = left.pop() if shown else Step(Candidate("", None))
        if not ended and len(text) <= _PART:
            text = b""  # it belongs to a token that the server does not show, because the answer was cut off inside it
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
        """True if the last of several remaining tokens is the end of sequence, so that the text belongs to the rest."""
        pick = left[-1].pick
        return len(left) > 1 and (bool(pick.text) or pick.id is not None)

    def _position(self, step: Step, data: bytes, *, is_open: bool = False, end: bool = False) -> Position:
        """Create a position. Tokens without ids are numbered: 0 for the server's own token, negative for the rest."""
        pick = step.pick
        known = None if step.hides or _completes(step, data) else pick.prob
        token = Token(data, known, end=end, name=pick.text or None if end else None)
        first = Choice(0 if pick.id is None else pick.id, token, is_open, step.sure)
        self._listed, self._own = bool(step.top), pick.logprob
        others = [other for other in step.top if not _same(other, pick)]
        top = [self._other(other, -n) for n, other in enumerate(others, 1)]
        if self._listing is None:
            return Position(first, top)
        least = min((choice.token.prob or 0.0 for choice in top), default=0.0)
        # The server's own token may be listed even if it is not one of the most probable tokens.
        beside = len(others) < len(step.top) and (pick.prob or 0.0) <= least
        return Position(first, self._marked(self._listing, first, top, len(step.top) - beside))

    def _marked(self, listing: Listing, pick: Choice, top: Sequence[Choice], told: int) -> list[Choice]:
        """Mark each listed token as `sure` if it may be an alternative; `told` counts the tokens listed by rank."""
        if not listing.ranked:
            return [replace(choice, sure=self.spaced and self._reads(choice)) for choice in top]
        own, least, sure = pick.token, 0.0, pick.sure or pick.token.end
        # If tokens are keyed by their strings, a token hides other tokens with the same string, and the list is
        # shorter.
        if not listing.ends or told < listing.asked:
            least = 1 - sum(choice.token.prob or 0.0 for choice in (pick, *top)) + _NOISE
        read = (replace(one, sure=sure and self._reads(one) and (one.token.prob or 0.0) > least) for one in top)
        return ranked(read, own)

    def _reads(self, choice: Choice) -> bool:
        """True if the text of a listed token is known."""
        data = choice.token.data
        return choice.token.end or (self.spaced and sendable(data).encode() == data and is_plain(readable(data)))

    def _other(self, candidate: Candidate, number: int) -> Choice:
        """Create a choice for a listed token that the server did not choose."""
        token_id = number if candidate.id is None else candidate.id
        if candidate.text in self._ends or candidate.id in self._ends:
            return Choice(token_id, Token(b"", candidate.prob, end=True, name=candidate.text or None))
        data = candidate.data or (candidate.text.encode() if _says(candidate) else b"")
        return Choice(token_id, Token(data, candidate.prob), not data)


def _completes(step: Step, data: bytes) -> bool:
    """True if `data` exceeds the token's own bytes, so that the server may have hidden earlier tokens.

    The list shows the token's own bytes. A drawn token may be missing from the list; if its text begins with ASCII, the
    token itself begins a character.
    """
    if step.pick.id is None:
        return False
    shown = {one.id: one.data for one in step.top if one.id is not None}
    if not shown:
        return False
    alone = shown.get(step.pick.id, b"" if data[:1].isascii() else data[:1]) or data
    return len(alone) < len(data)


def ranked(choices: Iterable[Choice], own: Token) -> list[Choice]:
    """Sort choices by probability, the most probable first. After a choice that is not sure, none stays sure.

    A list with a gap would not consist of the most probable tokens. A choice with the same bytes as `own` leaves no
    gap.
    """
    found: list[Choice] = []
    sure = True
    for choice in sorted(choices, key=lambda one: (-(one.token.prob or 0.0), not one.sure)):
        token = choice.token
        sure = sure and (choice.sure or (not choice.open and (token.data, token.end) == (own.data, own.end)))
        found.append(replace(choice, sure=sure))
    return found


def _keeps_spaces(step: Step) -> bool:
    """True if a listed token has the space before a word. (In the answer's own token, it may be from earlier text.)"""
    return keeps_spaces(one.data.decode(errors="replace") if one.data else one.text for one in step.top)


def _says(candidate: Candidate) -> bool:
    """True if the candidate has a string that contains no unfinished character."""
    return bool(candidate.text) and LOST not in candidate.text


def _same(candidate: Candidate, pick: Candidate) -> bool:
    """True if the candidate is the token that the server chose, as far as the answer shows."""
    if candidate.id is not None and pick.id is not None:
        return candidate.id == pick.id
    return (candidate.text, candidate.data) == (pick.text, pick.data)


def _spells(later: Sequence[Step], text: bytes, *, bare: bool) -> bool:
    """True if these tokens may spell `text`; only the first `_AHEAD` tokens are checked."""
    strings = [step.pick.data or step.pick.text for step in later[:_AHEAD]]
    return spells(strings, text, bare=bare, open_end=len(later) > _AHEAD)


class CheckedAligner(TokenAligner):
    """An aligner that refuses answers that a fusion cannot use.

    Args:
        proxied: whether the answer is a stream that a proxy may have stripped of its log probabilities.
        drawn: whether tokens are drawn at random; a drawn token is not always the most probable one.
    """

    def __init__(
        self,
        endpoint: str,
        ends: set[str | int],
        *,
        listing: Listing | None = None,
        proxied: bool = False,
        drawn: bool = False,
    ) -> None:
        super().__init__(endpoint, ends, listing=listing)
        self._proxied = proxied
        self._drawn = drawn
        self._first = True
        self._said = ""  # the last text received
        self._size = 0  # number of bytes of all text

    def feed(self, answer: Completion) -> Iterator[Position]:
        """Read an event, or a whole answer; yield the checked positions whose bytes are now known.

        Raises:
            UnsupportedError: a fusion cannot use the server's answers.
            ResponseError: the answer is invalid.
        """
        self._check_probs(answer)
        for position in super().feed(answer):
            self._check_position(position)
            yield position
            self._first = False
        check_finish(answer, self._endpoint)

    def _check_probs(self, answer: Completion) -> None:
        """Refuse text without probabilities, and text from which the model's reasoning was removed."""
        if answer.message is not None and answer.message.reasoning:
            words = "the server removes the model's reasoning from its answer, which cannot be continued then"
            hint = "Start it without a reasoning parser, or switch the model's thinking off."
            raise UnsupportedError(words, endpoint=self._endpoint, hint=hint)
        if answer.logprobs is not None and answer.logprobs.alone:
            words = "the server sends the probability of its own token without the most probable tokens (logprobs)"
            hint = "Is there another server for this model, such as vLLM or llama.cpp's?"
            raise UnsupportedError(words, endpoint=self._endpoint, hint=hint)
        self._said = answer.written or self._said
        self._size += len(answer.written.encode())
        # The probabilities may come after the text, in an event of their own. If the text breaks off inside a
        # character, all of its tokens may be hidden.
        shown = bool(self._said) and not self._said.endswith(LOST)
        cut = answer.finish_reason == "length" and self._size <= _PART
        if shown and answer.finish_reason is not None and not (cut or self.count or steps(answer)):
            raise no_probs("logprobs", self._endpoint, hint=_NO_STREAMED if self._proxied else _NO_PROBS)

    def _check_position(self, position: Position) -> None:
        """Refuse a token that is not the most probable, has no usable probability, or lacks its leading space."""
        own = position.pick.token.prob
        if self._trimmed:
            words = "the server takes white space off the beginning of its answers"
            hint = "A fusion continues an answer many times, and would lose spaces. Is there a setting against it?"
            raise UnsupportedError(words, endpoint=self._endpoint, hint=hint)
        if position.pick.token.end and own is None:
            return
        check_own(self._own, self._endpoint)
        if not self._listed and (own is None or own == 1.0) and not self._first:
            words = "the server sends the probabilities of its first tokens only"
            hint = "If it decodes speculatively, start it without a draft model."
            raise UnsupportedError(words, endpoint=self._endpoint, hint=hint)
        if not self._drawn:
            check_greedy(own, (choice.token.prob for choice in position.top), self._endpoint)


def readings(string: str, *, bare: bool) -> tuple[bytes, ...]:
    """Return the byte strings that a token with this string may have added to the text."""
    data = string.encode()
    if not bare:
        return (data,)
    return (b" " + data,) if string.startswith(" ") else (data, b" " + data)


def endings(core: bytes, text: bytes, *, goes_on: bool = True) -> Iterator[int]:
    """Yield the end of each occurrence of `core` in `text`; with `goes_on`, the first character is not searched."""
    at = text.find(core, len(first_character(text).encode()) if goes_on else 0)
    while at >= 0:
        yield at + len(core)
        at = text.find(core, at + 1)


def spells(strings: Sequence[str | bytes], text: bytes, *, bare: bool, open_end: bool = False) -> bool:
    """Decide whether tokens with these strings may spell `text`, or begin with it.

    A token without a string leaves a character unfinished; if strings are bare, it may also be a space. In the text,
    any number of U+FFFD may represent bytes of such tokens that do not form a character. A token whose string continues
    after U+FFFD completes an unfinished character.
    With `bare`, the strings lack one space at their front; with `open_end`, more tokens follow. Instead of a string, a
    token may have its bytes.
    """
    while text.endswith(_LOST):  # U+FFFD at the end is a character that was cut off
        text = text.removesuffix(_LOST)

    @cache
    def follow(index: int, at: int) -> bool:
        if at == len(text) or index == len(strings):
            return at == len(text) or open_end
        string = strings[index]
        if isinstance(string, bytes):
            return any(follow(index + 1, end) for end in _ends_of(string, text, at))
        _, lost, core = string.rpartition(LOST)
        if lost and core:
            return any(follow(index + 1, at + end) for end in endings(core.encode(), text[at : at + _WINDOW]))
        said = readings(core, bare=bare and not lost)
        if any(data and text.startswith(data, at) and follow(index + 1, at + len(data)) for data in said):
            return True
        if any(core and text.startswith(data, at) for data in said):
            return False
        if follow(index + 1, at):  # the token leaves a character unfinished, or has no text
            return True
        lost_at = text.find(_LOST, at, at + _PART + len(_LOST)) if not core else -1
        if lost_at >= 0 and follow(index, lost_at + len(_LOST)):  # lost bytes, and the characters before them
            return True
        size = len(first_character(text[at:]).encode())
        return bare and not core and size > 1 and follow(index + 1, at + size)

    return follow(0, 0)


def _ends_of(data: bytes, text: bytes, at: int) -> Sequence[int]:
    """Return the possible ends of a token with these bytes that starts at `at`."""
    if text.startswith(data, at):
        return [at + len(data)]
    # If the bytes do not form a character, U+FFFD represents them alone, or together with the next token's bytes.
    return [at + len(_LOST), at] if text.startswith(_LOST, at) else []
