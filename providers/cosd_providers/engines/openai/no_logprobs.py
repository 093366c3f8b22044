"""Drafts and proposals from servers that return no log probabilities.

A draft has one token for each event, with the event's text. An assistant's text is split into words, and each word
either agrees or disagrees with the draft. Because text alone does not show the tokens, such servers work only with
`unit="word"`.

Some servers (such as mlx_lm.server) strip the space from the front of an answer. The first answer that follows its
prompt without a space is tested for this. If the server strips spaces, they are restored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from cosd_providers.contract import Context, Question, Token
from cosd_providers.engines.openai.client import OpenAIClient, Prefix
from cosd_providers.engines.openai.wire import Completion, check_finish
from cosd_providers.greedy import Choice, Continuation, Position
from cosd_providers.text import LOST, sendable
from cosd_providers.usage import Usage

AGREE = (
    "So it cannot draft. As an assistant it can be asked whether it agrees, word by word: give"
    " verifier=AgreementVerifier(alpha=0.5). Or is there another server for this model, such as vLLM or llama.cpp's?"
)
"""The hint of an error if the server returns no log probabilities."""

_WORD = re.compile(r"\s*(?:[^\W_]+|\S)|\s+\Z")
"""A word or a single punctuation mark, with the white space before it. At the very end, also white space alone."""

_FIRST, _MOST = 8, 256  # numbers of tokens in the first and in the longest request


class EventReader:
    """Reader of the events of one answer, whose tokens have no probabilities.

    Args:
        repeated: text that the server repeats at the front of the answer, although the model did not write it.
    """

    spaced = False  # always False, because no tokens are listed

    def __init__(self, endpoint: str, repeated: str = "") -> None:
        self.count = 0  # number of tokens so far
        self._endpoint = endpoint
        self._repeated = repeated
        self._held = ""
        self._cut = ""

    def feed(self, answer: Completion) -> Iterator[Position]:
        """Read an event, and yield its text as a token, followed by the end of sequence if the model ended."""
        new = self._cut + self._new(answer.written, last=answer.finish_reason is not None)
        text = new.rstrip(LOST)  # U+FFFD at the end is a character that was cut off
        self._cut = new[len(text) :]
        if text:
            yield self._position(Token(text.encode(), None))
        check_finish(answer, self._endpoint)
        if answer.finish_reason == "stop":
            yield self._position(Token(b"", None, end=True))

    def _new(self, text: str, *, last: bool) -> str:
        """Remove the repeated front of the text; hold text back until the front is complete or turns out to differ."""
        if not self._repeated:
            return text
        self._held += text
        if self._repeated.startswith(self._held) and self._held != self._repeated and not last:
            return ""
        new = self._held.removeprefix(self._repeated)
        self._repeated = self._held = ""
        return new

    def _position(self, token: Token) -> Position:
        self.count += 1
        return Position(Choice(self.count, token))


class Agreement:
    """The answers to the questions of one `propose` call, with words as tokens."""

    def __init__(self, client: OpenAIClient, context: Context, usage: Usage) -> None:
        self._client = client
        self._prompt = context.prompt
        self._text = context.text
        self._usage = usage
        self._limit = _FIRST

    async def ask(self, asked: list[Continuation]) -> list[Iterable[Position]]:
        """Request the next words of each continuation; an empty list if the server writes no whole word."""
        self._limit = max(self._limit, *(len(one.ids) + 2 * one.wanted for one in asked))
        found: dict[int, list[Position]] = {}
        while left := [at for at in range(len(asked)) if at not in found]:
            prefixes = [Prefix(self._prompt, sendable(self._text[: asked[at].question.start])) for at in left]
            answers = await self._client.many(prefixes, self._limit, self._usage)
            for at, prefix, answer in zip(left, prefixes, answers, strict=True):
                positions = await self._spaced(words(answer), prefix, asked[at].question)
                positions = positions[len(asked[at].ids) :]
                if positions or answer.finish_reason != "length" or self._limit >= _MOST:
                    found[at] = positions
            self._limit = min(2 * self._limit, _MOST)
        return [found[at] for at in range(len(asked))]

    async def _spaced(self, positions: list[Position], prefix: Prefix, question: Question) -> list[Position]:
        """Return the words, after restoring the white space that the server stripped from the first word."""
        word = _text(positions[0]) if positions else ""
        client, facts = self._client, self._client.facts
        before = prefix.whole if client.api == "completions" else client.conversation.answer(prefix.text)
        if not word or word[0].isspace() or not before or before[-1].isspace():
            return positions
        drafted = sendable(b"".join(question.tokens))
        space = drafted[: len(drafted) - len(drafted.lstrip())]
        first = _WORD.match(drafted)
        same = first is not None and first.group().strip() == word
        if not same and word[0].isalnum() and before[-1].isalnum():
            space = space or " "
        if not space or not (same or word[0].isalnum()):
            return positions
        later = next((at for at, one in enumerate(positions) if at and _text(one)[:1].isspace()), None)
        if facts.trims is None and later is not None:
            known = space + "".join(map(_text, positions[:later]))
            further = Prefix(prefix.prompt, prefix.text + known)
            [answer] = await client.singles([further], self._limit, self._usage)
            following, expected = "".join(map(_text, words(answer)[:1])), _text(positions[later])
            if following.strip() == expected.strip():
                facts.trims = following != expected
        if facts.trims or (facts.trims is None and same):
            pick = positions[0].pick
            token = replace(pick.token, data=(space + word).encode())
            return [Position(replace(pick, token=token)), *positions[1:]]
        return positions


def words(answer: Completion) -> list[Position]:
    """Split an answer into its whole words, and the end of sequence if the model ended.

    Each word includes the white space before it, and has no probability. The last word is left out unless the model
    ended after it, because it may be unfinished.
    """
    ended = answer.finish_reason == "stop"
    text = answer.written.rstrip(LOST)  # U+FFFD at the end is a character that was cut off
    found = [match.group() for match in _WORD.finditer(text)]
    if not ended:
        found = found[:-1]
    tokens = [Token(word.encode(), None) for word in found]
    if ended:
        tokens.append(Token(b"", None, end=True))
    return [Position(Choice(number, token)) for number, token in enumerate(tokens)]


def _text(position: Position) -> str:
    return position.pick.token.data.decode()
