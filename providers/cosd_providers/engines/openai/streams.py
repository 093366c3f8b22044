"""How an answer of OpenAI's routes becomes part of a draft or of a chain, and what makes it unusable."""

from __future__ import annotations

from cosd_providers.alternatives import is_plain, with_alternatives
from cosd_providers.contract import Token
from cosd_providers.engines.openai.reading import Spelling
from cosd_providers.engines.openai.wire import Answer, Billed, Completion, bill, steps
from cosd_providers.errors import ResponseError, UnsupportedError
from cosd_providers.parsing import check_own
from cosd_providers.scoring import Draft, Position
from cosd_providers.text import readable
from cosd_providers.usage import Usage

__all__ = ["Run", "read"]

_CLOSE = 1e-6
"""How much more probable another token may look than the one that was taken."""

_FINISHES = ("stop", "length", "content_filter")


def read(choice: Completion, endpoint: str, ends: set[str | int]) -> list[Position]:
    """The positions of a whole answer, each checked.

    Raises:
        UnsupportedError: the server does not do what was asked.
        ResponseError: the answer is not what it should be.
    """
    spelling = Spelling(endpoint, ends)
    _check_told(choice, spelling, endpoint)
    positions: list[Position] = []
    for position in spelling.feed(choice):
        _check_greedy(position, len(positions), spelling, endpoint)
        positions.append(position)
    _check_finish(choice, endpoint)
    return positions


class Run:
    """Reads one stream into a draft.

    Args:
        endpoint: of the server.
        ends: strings and ids of ends of sequence.
        draft: takes what is new.
        known: the bytes of the raw tokens that an earlier run from the same text gave; grows.
        alternatives: how many each token comes with, as far as they are listed and their strings can be trusted.

    Attributes:
        finish: why the answer ended; None before it did.
        billed: what it has cost, as far as it was told.
        differs: whether the server has written another token than in an earlier run: nothing after it counts.
    """

    def __init__(
        self, endpoint: str, ends: set[str | int], draft: Draft, known: list[bytes], alternatives: int = 0
    ) -> None:
        self.finish: str | None = None
        self.billed: Billed | None = None
        self.differs = False
        self._endpoint = endpoint
        self._spelling = Spelling(endpoint, ends)
        self._draft = draft
        self._known = known
        self._alternatives = alternatives
        self._at = 0

    @property
    def written(self) -> int:
        """How many raw tokens the model has written, hidden ones included where they are told."""
        told = self.billed.completion_tokens if self.billed else None
        return max(told or 0, self._spelling.count)

    def feed(self, event: Answer) -> list[Token]:
        """Takes one event; gives the whole tokens that it completes."""
        self.billed = event.usage or self.billed
        tokens: list[Token] = []
        for choice in event.choices:
            if self.finish is not None:
                break
            _check_told(choice, self._spelling, self._endpoint)
            for position in self._spelling.feed(choice):
                tokens += self._take(position)
                if self.differs:
                    return tokens
            _check_finish(choice, self._endpoint)
            self.finish = choice.finish_reason
        return tokens

    def bill(self, usage: Usage, read: int) -> None:
        """Counts what it has cost; of a stream that was left early, what is known: `read` tokens and those seen."""
        told = self.billed or Billed(prompt_tokens=read, completion_tokens=self._spelling.count)
        bill(usage, told)

    def _take(self, position: Position) -> list[Token]:
        at, token = self._at, position.pick.token
        self._at += 1
        _check_greedy(position, at, self._spelling, self._endpoint)
        if at < len(self._known):
            before, self._known[at] = self._known[at], token.data
            if before == token.data:
                return []
            if before:  # a server that is busy may round in another way, and two tokens be about as probable
                self.differs = True
                return []
        else:
            self._known.append(token.data)
        return self._draft.feed(position.pick.id, self._told(position))

    def _told(self, position: Position) -> Token:
        """The server's own token with its alternatives: none where a string may have lost a space, or be no text."""
        if not self._alternatives or not self._spelling.spaced:
            return position.pick.token
        plain = [one for one in position.top if one.token.end or is_plain(readable(one.token.data))]
        return with_alternatives(Position(position.pick, plain), self._alternatives)


def _check_told(choice: Completion, spelling: Spelling, endpoint: str) -> None:
    """An error where there is text and no probability with it, or where a part of the text was taken away."""
    if choice.message is not None and choice.message.reasoning:
        words = "the server takes what the model thinks out of its answer (reasoning), which cannot be continued then"
        hint = "Start it without a reasoning parser, or have the model not think."
        raise UnsupportedError(words, endpoint=endpoint, hint=hint)
    if choice.logprobs is not None and choice.logprobs.alone:
        words = "the server tells how probable its own token is, and not which ones are the most probable (logprobs)"
        hint = "Is there another server for this model, such as vLLM or llama.cpp's?"
        raise UnsupportedError(words, endpoint=endpoint, hint=hint)
    if spelling.count or steps(choice) or not choice.written or choice.written.endswith("\ufffd"):
        return  # a text that breaks off within a character: what there is of it may be hidden
    words = "the server gives no probabilities with its tokens, although asked (logprobs)"
    hint = "Not every server, model and route has them; is there another one?"
    raise UnsupportedError(words, endpoint=endpoint, hint=hint)


def _check_greedy(position: Position, at: int, spelling: Spelling, endpoint: str) -> None:
    """An error where the server has not taken the most probable token, or does not show it, or its probability."""
    own = position.pick.token.prob
    if spelling.trimmed:
        words = "the server takes white space off the beginning of its answers"
        hint = "A fusion goes on with an answer many times, and would lose spaces. Is there a setting against it?"
        raise UnsupportedError(words, endpoint=endpoint, hint=hint)
    if position.pick.token.end and own is None:
        return
    check_own(spelling.told, endpoint)
    if not spelling.listed and (own is None or own == 1.0) and at:
        words = "the server does not tell the probabilities of all its tokens, only of the first ones"
        hint = "If it decodes speculatively, start it without a draft model."
        raise UnsupportedError(words, endpoint=endpoint, hint=hint)
    likely = max((choice.token.prob or 0.0 for choice in position.top), default=0.0)
    if own is not None and likely > own + _CLOSE:
        words = "the server does not take the most probable token, although asked for greedy decoding"
        hint = "Is it started with samplers, penalties, a grammar or a bias that a request cannot undo?"
        raise UnsupportedError(words, endpoint=endpoint, hint=hint)


def _check_finish(choice: Completion, endpoint: str) -> None:
    """An error where the answer ended for a reason that is none of the model's."""
    if isinstance(choice.stop_reason, str) and choice.stop_reason:
        words = "the server stops at a text of its own"
        hint = "Start it without stop strings, in its generation settings too."
        raise UnsupportedError(words, endpoint=endpoint, hint=hint)
    if choice.finish_reason is not None and choice.finish_reason not in _FINISHES:
        words = f"the answer ended for a reason that is not known: {choice.finish_reason[:40]!r}"
        raise ResponseError(words, endpoint=endpoint)
