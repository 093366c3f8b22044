"""Checks of a stream's events: what a stream hides or repeats is requested again, without a stream.

- Some servers hide parts of an answer in a stream only. For example, llama-cpp-python decodes each token of a stream
  separately and drops bytes that are not a character.
- Some servers end a stream silently instead of refusing the request with an error.
- Some proxies send an event twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from cosd_providers.engines.openai.wire import WireAnswer, marks, rest_of, steps, strings
from cosd_providers.errors import ResponseError
from cosd_providers.usage import Usage


class RestOfAnswer(WireAnswer):
    """The rest of an answer that was requested once more, without a stream; that request has a bill of its own."""


class StreamCheck:
    """Check of the events of one stream.

    - A token without text hides a part of a character. It may also be the end of sequence, which shows no bytes either;
      then only the reason for the answer's end follows.
    - A token may contain a whole character and a part of the next one. Text offsets reveal this case, because the
      offset of the following event counts the hidden part. So each event with an offset is held back until the next
      event arrives.
    - If an event comes twice, its tokens have the same strings and the same probabilities both times, which hardly
      happens otherwise. If it does happen, the whole answer has these tokens twice, too.
    """

    def __init__(self, *, hides: bool, probs: bool) -> None:
        # whether the stream hides or repeats something, so that the rest of the answer must be requested
        self.broken = False
        self._hides = hides  # whether the server may hide parts of characters
        # whether probabilities were requested; without them, an event that comes twice is not noticed
        self._probs = probs
        self._strings: list[str] = []  # tokens of the events that have been returned
        self._text = ""
        self._start: int | None = None  # the first offset
        self._seen: set[tuple[object, ...]] = set()
        self._again: list[str] = []  # tokens of an event that came before, and of an event held back before it
        self._held: WireAnswer | None = None
        self._begun = False

    def feed(self, answer: WireAnswer) -> list[WireAnswer]:
        """Read an event, and return the events that are now certain."""
        self._begun = True
        if self._probs and self._came_before(answer):
            self._again = [*(_strings(self._held) if self._held else ()), *_strings(answer)]
            self.broken = True
            return []
        if not self._hides or not answer.choices:
            return [self._given(answer)]
        offset, held, self._held = _offset(answer), self._held, None
        self._start = offset if self._start is None else self._start
        if offset is not None and offset - (self._start or 0) > len(self._text) + (len(_text(held)) if held else 0):
            self.broken = True
            return []
        if held is not None and _is_silent(held) and not _only_ends(answer):
            self.broken = True
            return []
        found = [] if held is None else [self._given(held)]
        if _is_silent(answer) and not _may_end(answer):
            self.broken = True
        elif offset is None and not _is_silent(answer):
            found.append(self._given(answer))
        else:
            self._held = answer
        return found

    def end(self) -> list[WireAnswer]:
        """Return the event that was held back, if the stream may end after it."""
        held = self._held
        if self._hides and (not self._begun or (held is not None and _is_silent(held) and not _finishes(held))):
            self.broken = True
            return []
        return [] if held is None else [held]

    def rest(self, whole: WireAnswer, endpoint: str, usage: Usage) -> RestOfAnswer:
        """Return the part of the whole answer after the events that have been returned, as one event.

        `whole` answers the same request without a stream. `usage` gets a warning if the stream has repeated something.

        Raises:
            ResponseError: the whole answer does not begin with these events.
        """
        rest = rest_of(whole.choices[0], self._strings, self._text)
        if rest is None:
            words = "the repeated request has another answer: the server does not always take the most probable token"
            raise ResponseError(words, endpoint=endpoint, retryable=True)
        if self._again and strings(rest)[: len(self._again)] != self._again:
            usage.warn(
                f"{endpoint}: a part of a stream came twice, so the answer was requested once more, without a stream. "
                "Is there a proxy that repeats events?"
            )
        return RestOfAnswer(choices=[rest], usage=whole.usage)

    def _came_before(self, answer: WireAnswer) -> bool:
        found = [mark for choice in answer.choices for mark in marks(choice)]
        before = not self._seen.isdisjoint(found)
        self._seen.update(found)
        return before

    def _given(self, answer: WireAnswer) -> WireAnswer:
        self._strings += _strings(answer)
        self._text += _text(answer)
        return answer


async def checked(
    events: AsyncGenerator[WireAnswer], check: StreamCheck, rest: Callable[[], Awaitable[WireAnswer]]
) -> AsyncGenerator[WireAnswer]:
    """Yield the events of a stream, as far as they are sound; `rest` closes it, and returns the rest of the answer."""
    async with aclosing(events):
        async for event in events:
            for answer in check.feed(event):
                yield answer
            if check.broken:
                break
        else:
            for answer in check.end():
                yield answer
    if check.broken:
        yield await rest()


def _text(answer: WireAnswer) -> str:
    return "".join(choice.written for choice in answer.choices)


def _strings(answer: WireAnswer) -> list[str]:
    return [string for choice in answer.choices for string in strings(choice)]


def _finishes(answer: WireAnswer) -> bool:
    return any(choice.finish_reason is not None for choice in answer.choices)


def _only_ends(answer: WireAnswer) -> bool:
    """True if the answer adds nothing but the reason for its end."""
    return _finishes(answer) and not _text(answer) and not _strings(answer)


def _is_silent(answer: WireAnswer) -> bool:
    """True if the answer adds no text, although it has a token."""
    found = (step.pick for choice in answer.choices for step in steps(choice))
    return not _text(answer) and any(not pick.text and not pick.data for pick in found)


def _may_end(answer: WireAnswer) -> bool:
    """True if the answer's only token is shown without bytes, as the end of sequence is."""
    return [step.pick.data for choice in answer.choices for step in steps(choice)] == [b""]


def _offset(answer: WireAnswer) -> int | None:
    """The number of characters before the answer, if the server reports text offsets."""
    offsets = [choice.logprobs.text_offset for choice in answer.choices if choice.logprobs]
    return offsets[0][0] if offsets and offsets[0] else None
