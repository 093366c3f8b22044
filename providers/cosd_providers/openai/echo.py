"""Scoring a text in one request, by `echo` with `logprobs`: used only where it is proved.

Servers that know the two fields may still ignore them, refuse them, or give each position the distribution of the next
one. So a known text is scored first, and what it gives at some places is held against what the server says when asked
there: only if both agree is anything scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cosd_providers.contract import Token, Usage
from cosd_providers.errors import ContextLengthError, InvalidRequestError, ResponseError, ServerError, UnsupportedError
from cosd_providers.once import Once
from cosd_providers.openai.asking import Asking, Prefix
from cosd_providers.openai.dialects import Dialect
from cosd_providers.openai.reading import Spelling
from cosd_providers.openai.streams import read
from cosd_providers.openai.wire import Answer, steps
from cosd_providers.scoring import Choice, Position
from cosd_providers.text import join, whole

__all__ = ["Echo", "Scored"]

_PLACES = 3  # that are compared
_AGREEING = 2  # of them, at least, that can be compared
_RELATIVE, _ABSOLUTE = 1e-2, 1e-3
_COMPARED = 3  # tokens of each distribution

_Key = tuple[bytes, bool]


@dataclass(frozen=True, slots=True)
class Scored:
    """A text with what the model says at each of its tokens.

    Attributes:
        specials: how many special tokens stand before the text.
        positions: one for each token of the text; the pick is the text's own token.
        after: what the model says after the text.
        all_told: whether no token is left out that is more probable than those that are listed; a server that hides
            the end of sequence does that.
    """

    specials: int
    positions: Sequence[Position]
    after: Position
    all_told: bool

    def tokens(self) -> list[Token]:
        """The tokens of the text; those that share a character, and whose bytes are not shown, are one."""
        tokens: list[Token] = []
        parts: list[Token] = []
        for position in self.positions:
            parts.append(position.pick.token)
            if position.pick.token.data:
                tokens.append(join(parts))
                parts = []
        return tokens

    def along_from(self, at: int) -> list[Position]:
        """What the model would have said from the text's token `at` on, as far as that is certain.

        The text's own tokens have id 0. Equally probable tokens, and tokens whose bytes are not shown, are left to be
        asked for: strings, which are all that is told, may stand for several.
        """
        found: list[Position] = []
        for position in self.positions[at:]:
            likely = _likely(position, all_told=self.all_told)
            if likely is None:
                return found
            found.append(likely)
        return [*found, self.after]


class Echo:
    """Scores texts on one server.

    Args:
        asking: its requests.
        dialect: its ways.
    """

    def __init__(self, asking: Asking, dialect: Dialect) -> None:
        self._asking = asking
        self._dialect = dialect
        self._proved: Once[bool] = Once()

    async def proved(self, usage: Usage) -> bool:
        """Whether the server can do this; found out once."""
        return self._dialect.echo is not False and await self._proved.get(lambda: self._prove(usage))

    async def score(self, prefix: Prefix, usage: Usage) -> Scored:
        """A text's own tokens and what the model says at each.

        Raises:
            ResponseError: the answer is not what it was when it was proved.
        """
        scored = self._read(await self._asking.one(prefix, 1, usage, echo=True), prefix.whole.encode())
        if scored is None:
            words = "the echo of the text does not hold what that of a known text did"
            raise ResponseError(words, endpoint=self._asking.endpoint, retryable=True)
        return scored

    def _read(self, answer: Answer, text: bytes) -> Scored | None:
        """What an answer says of `text`; None where it is no echo of it."""
        [choice] = answer.choices
        raw = steps(choice)
        try:
            positions = list(Spelling(self._asking.endpoint, self._asking.ends).feed(choice))
        except ResponseError:
            return None
        if len(positions) < 2 or raw[0].pick.prob is not None:
            return None
        specials = 1 if raw[0].pick.text and not positions[0].pick.token.data else 0
        own, after = positions[specials:-1], positions[-1]
        if b"".join(position.pick.token.data for position in own) != text:
            return None
        inner = positions[1:-1]
        if any(position.pick.token.prob is None for position in inner):
            return None
        # An open token may share its string with all the others that are listed, and they are lost beside it.
        if not all(position.top or position.pick.open or position.pick.token.prob for position in inner):
            return None
        billed = answer.usage
        if billed and billed.prompt_tokens and billed.prompt_tokens != len(positions) - 1:
            return None
        return Scored(specials, own, after, self._dialect.end_prob)

    async def _prove(self, usage: Usage) -> bool:
        """Scores a known text, and asks at some places of it."""
        text = self._dialect.known_text
        try:
            scored = self._read(await self._asking.one(Prefix(text, ""), 1, usage, echo=True), text.encode())
            return scored is not None and await self._agrees(scored, usage)
        except (InvalidRequestError, ContextLengthError, ResponseError, UnsupportedError):
            return False
        except ServerError as error:
            if error.status == 500:
                return False
            raise

    async def _agrees(self, scored: Scored, usage: Usage) -> bool:
        """Whether the server says the same at some places when it is asked there."""
        cuts: list[tuple[int, bytes]] = []
        before = b""
        for at, position in enumerate(scored.positions):
            if at > 1 and position.pick.token.data and whole(before) == len(before):
                cuts.append((at, before))
            before += position.pick.token.data
        agreeing = 0
        for at, text in cuts[:: max(1, len(cuts) // (_PLACES + 2))]:
            answer = await self._asking.one(Prefix(text.decode("utf-8", "ignore"), ""), 1, usage)
            read_tokens = answer.usage.prompt_tokens if answer.usage else 0
            positions = read(answer.choices[0], self._asking.endpoint, self._asking.ends)
            if (read_tokens and read_tokens != at + scored.specials) or not positions:
                continue  # it is encoded in another way there
            if not _agree(scored.positions[at], positions[0]):
                return False
            beside = [scored.positions[at - 1], (*scored.positions, scored.after)[at + 1]]
            if any(_agree(other, positions[0]) for other in beside):
                continue  # it tells nothing of a shift
            agreeing += 1
            if agreeing == _PLACES:
                break
        return agreeing >= _AGREEING


def _likely(position: Position, *, all_told: bool) -> Position | None:
    """The position as if the model had chosen; None where it is not certain what."""
    choices = [position.pick, *position.top]
    best = max(choice.token.prob or 0.0 for choice in choices)
    first = [choice for choice in choices if choice.token.prob == best]
    if position.pick.token.prob is None or len(first) != 1 or any(choice.open for choice in choices):
        return None
    if not all_told and best <= 1 - sum(choice.token.prob or 0.0 for choice in choices) + _ABSOLUTE:
        return None
    return Position(first[0], choices)


def _agree(echoed: Position, asked: Position) -> bool:
    """Whether both distributions are the same, as far as both are told."""
    here = _table([echoed.pick, *echoed.top])
    there = sorted(_table([asked.pick, *asked.top]).items(), key=lambda item: -item[1])
    for key, prob in there[:_COMPARED]:
        if key not in here:
            if prob > _ABSOLUTE and len(here) >= _COMPARED:
                return False
        elif abs(here[key] - prob) > max(_RELATIVE * prob, _ABSOLUTE):
            return False
    return any(key in here for key, _ in there[:1])


def _table(choices: Sequence[Choice]) -> dict[_Key, float]:
    """Probabilities by what the tokens say."""
    return {
        (choice.token.data, choice.token.end): choice.token.prob
        for choice in choices
        if choice.token.prob is not None and not choice.open
    }
