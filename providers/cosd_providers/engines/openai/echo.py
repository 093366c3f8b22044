"""Scoring a text in one request, by `echo` with `logprobs`: used only where it is proved.

Servers that know the two fields may still ignore them, refuse them, or give each position the distribution of the next
one. So a known text is scored first, and what it gives at some places is held against what the server says when asked
there: only if both agree is anything scored. An echo that agrees one position later is *shifted*: its entries are
then read one place further on. It says what the model would have said, and not how probable the text's own tokens were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cosd_providers.contract import Token
from cosd_providers.engines.openai.asking import Asking, Prefix
from cosd_providers.engines.openai.dialects import Dialect
from cosd_providers.engines.openai.logprobs import TokenAligner, read
from cosd_providers.engines.openai.wire import Answer, Completion, steps
from cosd_providers.errors import ContextLengthError, InvalidRequestError, ResponseError, ServerError, UnsupportedError
from cosd_providers.findings import agree, powered
from cosd_providers.lazy import Lazy
from cosd_providers.scoring import Choice, Position
from cosd_providers.text import join, whole
from cosd_providers.usage import Usage

__all__ = ["Echo", "Proof", "Scored", "hidden_tokens", "spelt"]

_GROWN = 4  # times what was proved: so much longer a text may be without being proved again
_PLACES = 3  # that are compared
_AGREEING = 2  # of them, at least, that can be compared
_NOISE = 1e-3  # of a sum of probabilities
_SHIFTS = (0, 1)  # that are known: an entry is of its own token's position, or of the next one


@dataclass(frozen=True, slots=True)
class Scored:
    """A text with what the model says at each of its tokens.

    Attributes:
        specials: how many special tokens stand before the text.
        positions: one for each token of the text; the pick is the text's own token.
        after: what the model says after the text; None where it is not shown.
        all_told: whether no token is left out that is more probable than those that are listed; a server that hides
            the end of sequence does that.
        shifted: whether a token of the text that is not listed has no probability: it is less probable than those are.
    """

    specials: int
    positions: Sequence[Position]
    after: Position | None
    all_told: bool
    shifted: bool = False

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
            likely = _likely(position, all_told=self.all_told, listed=self.shifted)
            if likely is None:
                return found
            found.append(likely)
        return [*found, self.after] if self.after else found


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found out of a server's echo: how far it is shifted; None where it cannot be used."""

    shift: int | None


class Echo:
    """Scores texts on one server.

    Args:
        asking: its requests.
        dialect: its ways.
    """

    def __init__(self, asking: Asking, dialect: Dialect) -> None:
        self._asking = asking
        self._dialect = dialect
        self._proof: Lazy[Proof] = Lazy()
        self._sound = len(dialect.known_text)  # bytes of the longest text whose echo was seen to be right

    async def proved(self, usage: Usage) -> bool:
        """Whether the server can do this; found out once."""
        return (await self.found(usage)).shift is not None

    async def tells(self, usage: Usage) -> bool:
        """Whether it also tells the probabilities of the text's own tokens: where its echo is not shifted."""
        return (await self.found(usage)).shift == 0

    @property
    def examined(self) -> bool | None:
        """Whether the server can do this; None where that was not found out yet."""
        known = Proof(None) if self._dialect.echo is False else self._proof.found
        return None if known is None else known.shift is not None

    def recall(self, proof: Proof) -> None:
        """Takes what was found out before."""
        self._proof.found = proof

    async def found(self, usage: Usage) -> Proof:
        """What the server's echo is worth; found out once."""
        if self._dialect.echo is False:
            return Proof(None)
        return await self._proof.get(lambda: self._prove(usage))

    async def score(self, prefix: Prefix, usage: Usage) -> Scored:
        """A text's own tokens and what the model says at each.

        A server may echo a short text rightly and not a long one: where it has grown much, two places near its end are
        asked, too.

        Raises:
            ResponseError: the answer is not what it was when it was proved.
        """
        shift = (await self.found(usage)).shift or 0
        text = prefix.whole.encode()
        scored = self._read(await self._asking.one(prefix, 1, usage, echo=True), text, shift)
        if scored is None:
            words = "the echo of the text does not hold what that of a known text did"
            raise ResponseError(words, endpoint=self._asking.endpoint, retryable=True)
        if len(text) > _GROWN * self._sound:
            if await self._agreeing(scored, {}, usage, 2, since=len(text) - len(text) // _GROWN) is None:
                words = "the echo of a long text does not agree with what the model says there"
                raise ResponseError(words, endpoint=self._asking.endpoint)
            self._sound = len(text)
        return scored

    def _read(self, answer: Answer, text: bytes, shift: int) -> Scored | None:
        """What an answer says of `text`; None where it is no echo of it."""
        [choice] = answer.choices
        raw = steps(choice)
        if not raw or raw[0].pick.prob is not None:
            return None
        shown, rest = spelt(choice, text, self._asking.endpoint, self._asking.ends)
        hidden = hidden_tokens(answer, len(shown))
        # An open token may share its string with all the others that are listed, and they are lost beside it.
        told = all(position.top or position.pick.open or position.pick.token.prob for position in shown[1:])
        if not shown or not told or hidden is None:
            return None
        specials = 1 if raw[0].pick.text and not shown[0].pick.token.data else 0
        after = rest[0] if rest else None
        scored = Scored(specials + hidden, shown[specials:], after, self._dialect.end_prob)
        if shift:
            return _moved(scored, shown)
        if after is None or any(position.pick.token.prob is None for position in shown[1:]):
            return None
        return scored

    async def _prove(self, usage: Usage) -> Proof:
        """Scores a known text, and asks at some places of it."""
        text = self._dialect.known_text
        try:
            answer = await self._asking.one(Prefix(text, ""), 1, usage, echo=True)
            asked: dict[bytes, Answer] = {}
            for shift in _SHIFTS:
                scored = self._read(answer, text.encode(), shift)
                if scored is not None and await self._agrees(scored, asked, usage):
                    return Proof(shift)
        except (InvalidRequestError, ContextLengthError, ResponseError, UnsupportedError):
            return Proof(None)
        except ServerError as error:
            if error.status != 500:
                raise
        return Proof(None)

    async def _agrees(self, scored: Scored, asked: dict[bytes, Answer], usage: Usage) -> bool:
        """Whether the server says the same at some places when it is asked there; `asked` keeps what it says."""
        agreeing = await self._agreeing(scored, asked, usage)
        return agreeing is not None and len(agreeing) >= _AGREEING and powered(agreeing) is None

    async def _agreeing(
        self, scored: Scored, asked: dict[bytes, Answer], usage: Usage, most: int = 3 * _PLACES, *, since: int = 0
    ) -> list[tuple[Position, Position]] | None:
        """Places where the server, asked there, says the same, and not the same as beside them; None if it does not.

        Args:
            scored: the text, scored.
            asked: keeps what it says.
            usage: is billed.
            most: places that are asked.
            since: byte from which on they are.
        """
        cuts: list[tuple[int, bytes]] = []
        before = b""
        for at, position in enumerate(scored.positions):
            if at > 1 and len(before) >= since and position.pick.token.data and whole(before) == len(before):
                cuts.append((at, before))
            before += position.pick.token.data
        agreeing: list[tuple[Position, Position]] = []
        for at, text in cuts[:: max(1, len(cuts) // (_PLACES + 2))][:most]:
            if text not in asked:
                asked[text] = await self._asking.one(Prefix(text.decode("utf-8", "ignore"), ""), 1, usage)
            answer = asked[text]
            read_tokens = answer.usage.prompt_tokens if answer.usage else 0
            positions = read(answer.choices[0], self._asking.endpoint, self._asking.ends)
            if (read_tokens and read_tokens != at + scored.specials) or not positions:
                continue  # it is encoded in another way there
            if not agree(scored.positions[at], positions[0]):
                return None
            beside = [scored.positions[at - 1], (*scored.positions, scored.after)[at + 1]]
            if any(other is not None and agree(other, positions[0]) for other in beside):
                continue  # it tells nothing of a shift
            agreeing.append((scored.positions[at], positions[0]))
            if len(agreeing) == _PLACES:
                break
        return agreeing


def spelt(
    choice: Completion, text: bytes, endpoint: str, ends: set[str | int]
) -> tuple[list[Position], list[Position]]:
    """The tokens of an echoed text with the special ones before it, and those that were written after it.

    A server may show no entry of what it has written. Nothing where it is no echo of the text.
    """
    written = choice.written.encode()
    ways = [choice]
    if written.startswith(text):
        alone = {"text": text.decode("utf-8", "replace"), "message": None, "finish_reason": "length"}
        ways.append(choice.model_copy(update=alone))
    for way in ways:
        try:
            found = list(TokenAligner(endpoint, ends).feed(way))
        except ResponseError:
            continue
        count = _tokens_of(text, found)
        if way is not choice and written != text:
            found[count:] = [Position(Choice(0, Token(written[len(text) :], None)))]
        if count:
            return found[:count], found[count:]
    return [], []


def _tokens_of(text: bytes, positions: Sequence[Position]) -> int:
    """How many of the tokens, from the first on, make up the text; 0 if none do."""
    data = b""
    for count, position in enumerate(positions, 1):
        data += position.pick.token.data
        if data == text:
            return count
    return 0


def hidden_tokens(answer: Answer, shown: int) -> int | None:
    """How many tokens were read beside those that are shown: a beginning may be; None where it is no such echo."""
    read_tokens = answer.usage.prompt_tokens if answer.usage else 0
    hidden = read_tokens - shown if read_tokens else 0
    return hidden if hidden in (0, 1) else None


def _moved(scored: Scored, shown: Sequence[Position]) -> Scored:
    """A shifted echo, put right: what an entry says belongs to the token behind it."""
    first = len(shown) - len(scored.positions)  # special tokens that are shown
    before = [None, *shown][first : first + len(scored.positions)]
    positions = [_placed(own.pick, entry) for own, entry in zip(scored.positions, before, strict=True)]
    after = None if scored.after is None or scored.after.pick.open else _placed(scored.after.pick, shown[-1])
    known = after is not None and (after.pick.token.prob is not None or (after.pick.token.end and after.top))
    return replace(scored, positions=positions, after=after if known else None, shifted=True)


def _placed(own: Choice, entry: Position | None) -> Position:
    """A token where an entry tells what the model would have said; it has a probability if it is listed there."""
    listed = [] if entry is None else [entry.pick, *entry.top]
    told = [choice for choice in listed if choice.token.prob is not None]
    same = [c for c in told if not c.open and (c.token.data, c.token.end) == (own.token.data, own.token.end)]
    pick = replace(own, id=0, token=replace(own.token, prob=same[0].token.prob if same else None))
    others = [replace(choice, id=-n) for n, choice in enumerate(told, 1) if choice not in same]
    return Position(pick, others)


def _likely(position: Position, *, all_told: bool, listed: bool = False) -> Position | None:
    """The position as if the model had chosen; None where it is not certain what. For `listed` see `Scored.shifted`."""
    choices = [position.pick, *position.top]
    best = max(choice.token.prob or 0.0 for choice in choices)
    first = [choice for choice in choices if choice.token.prob == best]
    known = position.pick.token.prob is not None or listed
    if not known or len(first) != 1 or any(choice.open for choice in choices):
        return None
    if not all_told and best <= 1 - sum(choice.token.prob or 0.0 for choice in choices) + _NOISE:
        return None
    return Position(first[0], choices)
