"""What a stream hides: characters that are made of several tokens, or why a request was refused.

llama-cpp-python decodes each token of a stream by itself and drops the bytes that are no character. A whole answer has
them. A token that shows nothing tells of it; so do the offsets, where a token has both a whole character and a part of
another: they count what the stream has not shown, one event later, so that an event is held until the next one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing

from cosd_providers.engines.openai.wire import Answer, Billed, rest_of, steps
from cosd_providers.errors import ResponseError

__all__ = ["whole_characters"]


async def whole_characters(
    answers: AsyncGenerator[Answer], stream: AsyncExitStack, ask: Callable[[], Awaitable[Answer]], endpoint: str
) -> AsyncGenerator[Answer]:
    """The events of a stream, up to one that hides something, and then the rest of the same answer as one.

    Some servers end a stream without a word where they refuse a request: asked for a whole answer they tell why.

    Args:
        answers: the events.
        stream: closes the stream: first of all, for a server may do one thing at a time.
        ask: asks the same for a whole answer.
        endpoint: of the server, for errors.

    Raises:
        ResponseError: the whole answer begins in another way.
    """
    shown, began = _Shown(), False
    async with aclosing(answers):
        async for answer in answers:
            began = True
            if shown.lacks(answer):
                break
            if shown.held is not None:
                yield shown.give(shown.held)
            if _is_silent(answer):
                break
            if _offset(answer) is None:
                yield shown.give(answer)
            else:
                shown.held = answer
        else:
            if shown.held is not None:
                yield shown.held
            if began:
                return
    await stream.aclose()
    whole = await ask()
    rest = rest_of(whole.choices[0], shown.strings, shown.text)
    if rest is None:
        words = "asked again, the server writes something else: it does not always take the most probable token"
        raise ResponseError(words, endpoint=endpoint, retryable=True)
    read = whole.usage.prompt_tokens if whole.usage else 0
    of_the_stream = Billed(prompt_tokens=read, completion_tokens=len(shown.strings))
    yield Answer(choices=[rest], usage=of_the_stream)


class _Shown:
    """What was given out of a stream.

    Attributes:
        strings: of the tokens.
        text: what they say.
        held: an event that was not given out yet: what follows it may tell that it hides something.
    """

    def __init__(self) -> None:
        self.strings: list[str] = []
        self.text = ""
        self.held: Answer | None = None
        self._start: int | None = None

    def give(self, answer: Answer) -> Answer:
        """Gives an event out."""
        self.held = None
        self.strings += [step.pick.text for choice in answer.choices for step in steps(choice)]
        self.text += _text(answer)
        return answer

    def lacks(self, answer: Answer) -> bool:
        """Whether this event tells of more characters than all before it have shown."""
        offset = _offset(answer)
        if offset is None:
            return False
        if self._start is None:
            self._start = offset
        return offset - self._start > len(self.text) + (len(_text(self.held)) if self.held else 0)


def _text(answer: Answer) -> str:
    return "".join(choice.written for choice in answer.choices)


def _is_silent(answer: Answer) -> bool:
    """Whether it has a token that shows nothing."""
    found = [step.pick for choice in answer.choices for step in steps(choice)]
    return not _text(answer) and any(not pick.text and not pick.data for pick in found)


def _offset(answer: Answer) -> int | None:
    """How many characters are before it, where it tells."""
    told = [choice.logprobs.text_offset for choice in answer.choices if choice.logprobs]
    return told[0][0] if told and told[0] else None
