"""Questions to a server that tells no probabilities: what it would write is cut into words, and that is all there is.

So it can be asked only whether it agrees (`unit="word"`): a word is what a replacement is made of, and a server that
shows nothing but text shows nothing smaller for certain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from cosd_providers.contract import Token
from cosd_providers.engines.openai.client import OpenAIClient, Prefix
from cosd_providers.engines.openai.wire import Completion
from cosd_providers.greedy import Choice, Continuation, Position
from cosd_providers.text import sendable
from cosd_providers.usage import Usage

__all__ = ["Agreement", "words"]

_WORD = re.compile(r"\s*(?:[^\W_]+|\S)|\s+\Z")
"""White space and a word, or one sign; white space alone at the very end."""

_FIRST, _MOST = 8, 256  # tokens that are asked for at first, and at most


class Agreement:
    """Goes on with the chains of one call of `propose`, a word for a token.

    Args:
        client: requests to the server.
        prompt: the prompt.
        text: the response so far.
        usage: where requests are counted.
    """

    def __init__(self, client: OpenAIClient, prompt: str, text: bytes, usage: Usage) -> None:
        self._client = client
        self._prompt = prompt
        self._text = text
        self._usage = usage
        self._limit = _FIRST

    async def ask(self, chains: list[Continuation]) -> list[Iterable[Position]]:
        """The words after those that each chain has; none where the server writes none that is whole."""
        self._limit = max(self._limit, *(len(chain.ids) + 2 * chain.wanted for chain in chains))
        found: dict[int, list[Position]] = {}
        while left := [at for at in range(len(chains)) if at not in found]:
            prefixes = [Prefix(self._prompt, sendable(self._text[: chains[at].question.start])) for at in left]
            answers = await self._client.many(prefixes, self._limit, self._usage)
            for at, answer in zip(left, answers, strict=True):
                positions = words(answer)[len(chains[at].ids) :]
                if positions or answer.finish_reason != "length" or self._limit >= _MOST:
                    found[at] = positions
            self._limit = min(2 * self._limit, _MOST)
        return [found[at] for at in range(len(chains))]


def words(answer: Completion) -> list[Position]:
    """The whole words of an answer, each with the white space before it and no probability; the end of sequence too.

    The last word is whole only if something follows it, or if the model ended there.
    """
    ended = answer.finish_reason == "stop"
    text = answer.written.rstrip("\ufffd")  # of a character that was cut off
    found = [match.group() for match in _WORD.finditer(text)]
    if not ended:
        found = found[:-1]
    tokens = [Token(word.encode(), None) for word in found]
    if ended:
        tokens.append(Token(b"", None, end=True))
    return [Position(Choice(number, token)) for number, token in enumerate(tokens)]
