"""Scores of a text in one request, by `echo` with `logprobs`, from servers that have passed a test.

Servers may ignore or refuse these two fields, or report the distribution of the next position at each position. So a
known text is scored first, and the model also generates a token at some positions of this text. The echo is used only
if it shows the same distributions as the model's own answers. (llama-cpp-python's is shifted by one position if the
model has no beginning-of-sequence token.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cosd_providers.concurrency import Lazy
from cosd_providers.contract import Token
from cosd_providers.distributions import agree, cuts, power_of
from cosd_providers.engines.openai.client import EchoProof, OpenAIClient, Prefix
from cosd_providers.engines.openai.logprobs import Listing, TokenAligner, ranked
from cosd_providers.engines.openai.wire import Completion, WireAnswer, steps
from cosd_providers.errors import ContextLengthError, InvalidRequestError, ResponseError, ServerError, UnsupportedError
from cosd_providers.greedy import Choice, Position, with_alternatives
from cosd_providers.text import LOST, join, sendable
from cosd_providers.usage import Usage

_GROWN = 4  # the echo is tested again for a text more than this many times as long as tested texts
_PLACES = 3  # number of positions to compare
_AGREEING = 2  # number of positions that must agree
_NOISE = 1e-3  # allowance for rounding in a sum of probabilities
_ECHO = {"echo": True}


@dataclass(frozen=True, slots=True)
class Scored:
    """A text with the model's distribution at each of its tokens."""

    specials: int  # number of special tokens before the text
    positions: Sequence[Position]  # a position for each token of the text; its pick is the text's own token
    after: Position  # the position after the text
    # whether no unlisted token is more probable than the listed tokens. (A hidden end of sequence may be more
    # probable.)
    all_told: bool

    def tokens(self, alternatives: int = 0) -> list[Token]:
        """Return the tokens of the text, each with up to `alternatives` other tokens.

        A token without bytes shares a character with later tokens, and is joined with them. The joined token has no
        alternatives.
        """
        tokens: list[Token] = []
        parts: list[Token] = []
        for position in self.positions:
            parts.append(with_alternatives(position, alternatives))
            if position.pick.token.data:
                tokens.append(join(parts))
                parts = []
        return tokens

    def likely(self) -> list[Position | None]:
        """Return the model's greedy choice at each token of the text, and after the text; None for an uncertain choice.

        The text's own tokens have id 0. A choice is uncertain if several tokens are equally probable, or if a listed
        token has no bytes, because one string may represent several tokens.
        """
        found = [_likely(one, all_told=self.all_told) for one in self.positions]
        return [*found, self.after]


class Echo:
    """Scorer of texts on one server."""

    def __init__(self, client: OpenAIClient) -> None:
        self._client = client
        self._proof: Lazy[EchoProof] = Lazy()
        self._sound = len(client.dialect.known_text)  # size in bytes of the longest text with a tested echo

    async def works(self, usage: Usage) -> bool:
        """Find out, with a single test, whether the echo can be used."""
        if self._client.dialect.echo is False:
            return False
        facts = self._client.facts
        if facts.echo is None:
            facts.echo = await self._proof.get(lambda: self._prove(usage))
        return facts.echo.works

    @property
    def proved(self) -> bool:
        """True if the echo has already passed the test."""
        echo = self._client.facts.echo
        return echo is not None and echo.works

    @property
    def lists(self) -> bool:
        """True if a test has shown that the echo lists the most probable tokens, and not only the text's own tokens."""
        echo = self._client.facts.echo
        return echo is not None and echo.lists

    async def score(self, prefix: Prefix, usage: Usage, alternatives: int = 0) -> Scored:
        """Score a text: return its tokens with the model's distribution and up to `alternatives` other tokens at each.

        An echo may be right for a short text and wrong for a long one. So for a text that is much longer than any
        tested text, the echo is compared with the model's answers at two positions near the end.

        Raises:
            ResponseError: the echo is less complete than the echo of the known text, or contradicts the model's answers
                near the end of a long text.
        """
        text = prefix.whole.encode()
        answer = await self._client.one(prefix, 1, usage, _ECHO, alternatives=alternatives)
        scored = self._read(answer, text, alternatives)
        if scored is None:
            words = "the echo of the text is less complete than the echo of a known text"
            raise ResponseError(words, endpoint=self._client.endpoint, retryable=True)
        if len(text) > _GROWN * self._sound:
            if await self._agreeing(scored, usage, 2, since=len(text) - len(text) // _GROWN) is None:
                words = "the echo of a long text does not agree with what the model says there"
                raise ResponseError(words, endpoint=self._client.endpoint)
            self._sound = len(text)
        return scored

    def _read(self, answer: WireAnswer, text: bytes, alternatives: int = 0) -> Scored | None:
        """Read the echo of `text` from an answer; None if the answer is not a usable echo."""
        [choice] = answer.choices
        raw = steps(choice)
        if not raw or raw[0].pick.prob is not None:
            return None
        listing = self._client.listing(alternatives)
        shown, rest = spelt(choice, text, self._client.endpoint, self._client.facts.ends, listing)
        hidden = hidden_tokens(answer, len(shown))
        # If a token leaves a character unfinished, all listed tokens may have the same string, and are then lost.
        known = all(position.top or position.pick.open or position.pick.token.prob for position in shown[1:])
        known = known and all(position.pick.token.prob is not None for position in shown[1:])
        if not (shown and rest and known) or hidden is None:
            return None
        specials = 1 if raw[0].pick.text and not shown[0].pick.token.data else 0
        return Scored(specials + hidden, shown[specials:], rest[0], self._client.dialect.end_prob)

    async def _prove(self, usage: Usage) -> EchoProof:
        """Test the echo: score a known text, and compare the result with the model's answers at some positions."""
        text = self._client.dialect.known_text
        try:
            answer = await self._client.one(Prefix(text, ""), 1, usage, _ECHO)
            scored = self._read(answer, text.encode())
            agreeing = None if scored is None else await self._agreeing(scored, usage)
            if scored is not None and agreeing and len(agreeing) >= _AGREEING and power_of(agreeing) is None:
                return EchoProof(works=True, lists=all(position.top for position in scored.positions[1:]))
        except (InvalidRequestError, ContextLengthError, ResponseError, UnsupportedError):
            pass
        except ServerError as error:
            if error.status != 500:
                raise
        return EchoProof(works=False)

    async def _agreeing(
        self, scored: Scored, usage: Usage, most: int = 3 * _PLACES, *, since: int = 0
    ) -> list[tuple[Position, Position]] | None:
        """Compare the scored distributions at some positions with the model's answers at the same positions.

        Answers are requested from byte `since` of the text on, at `most` positions.

        Returns:
            Pairs of a scored and a generated position that agree, and whose distribution differs from the distributions
            at the neighbouring positions; None if a scored and a generated position disagree.
        """
        places = [(at, before) for at, before in cuts(scored.positions) if len(before) >= since]
        agreeing: list[tuple[Position, Position]] = []
        for at, text in places[:: max(1, len(places) // (_PLACES + 2))][:most]:
            answer = await self._client.one(Prefix(text.decode("utf-8", "ignore"), ""), 1, usage)
            read_tokens = answer.usage.prompt_tokens if answer.usage else 0
            positions = self._client.positions(answer.choices[0])
            if (read_tokens and read_tokens != at + scored.specials) or not positions:
                continue  # on its own, the text up to this position is encoded differently
            if not agree(scored.positions[at], positions[0]):
                return None
            beside = [scored.positions[at - 1], (*scored.positions, scored.after)[at + 1]]
            if any(agree(other, positions[0]) for other in beside):
                continue  # a shift would be invisible at this position
            agreeing.append((scored.positions[at], positions[0]))
            if len(agreeing) == _PLACES:
                break
        return agreeing


def spelt(
    choice: Completion, text: bytes, endpoint: str, ends: set[str | int], listing: Listing | None = None
) -> tuple[list[Position], list[Position]]:
    """Split an answer into the tokens of the echoed text (with special tokens before it) and the generated tokens.

    A server may have no entry for a generated token. Both lists are empty if the answer is not an echo of the text.
    `listing` is as in `TokenAligner`.
    """
    written = choice.written.encode()
    ways = [choice]
    if written.startswith(text):
        alone = {"text": text.decode("utf-8", "replace"), "message": None, "finish_reason": "length"}
        ways.append(choice.model_copy(update=alone))
    for way in ways:
        try:
            found = list(TokenAligner(endpoint, ends, listing=listing).feed(way))
        except ResponseError:
            continue
        spelled = b"".join(position.pick.token.data for position in found)
        if way is choice and len(ways) > 1 and LOST not in choice.written and spelled != written:
            continue  # the generated token has no entry
        count = _tokens_of(text, found)
        if way is not choice and written != text:
            found[count:] = [Position(Choice(0, Token(written[len(text) :], None)))]
        if count:
            return found[:count], found[count:]
    return [], []


def _tokens_of(text: bytes, positions: Sequence[Position]) -> int:
    """Count the leading tokens that spell the text exactly; 0 if no number of tokens does."""
    data = b""
    for count, position in enumerate(positions, 1):
        data += position.pick.token.data
        if data == text:
            return count
    return 0


def hidden_tokens(answer: WireAnswer, shown: int) -> int | None:
    """The number of prompt tokens that the echo does not show: 0, or 1 for a beginning of sequence; None otherwise."""
    read_tokens = answer.usage.prompt_tokens if answer.usage else 0
    hidden = read_tokens - shown if read_tokens else 0
    return hidden if hidden in (0, 1) else None


def _likely(position: Position, *, all_told: bool) -> Position | None:
    """Return the position with the model's own choice as its pick; None if the choice is uncertain."""
    choices = [position.pick, *position.top]
    best = max(choice.token.prob or 0.0 for choice in choices)
    first = [choice for choice in choices if choice.token.prob == best]
    if position.pick.token.prob is None or len(first) != 1 or any(choice.open for choice in choices):
        return None
    if not all_told and best <= 1 - sum(choice.token.prob or 0.0 for choice in choices) + _NOISE:
        return None
    return Position(first[0], ranked([_among(position), *position.top], first[0].token))


def _among(position: Position) -> Choice:
    """The text's own token as a listed token; it is not `sure` if it is less probable than all listed tokens."""
    pick, least = position.pick, min((choice.token.prob or 0.0 for choice in position.top), default=1.0)
    says = pick.sure and not pick.open and sendable(pick.token.data).encode() == pick.token.data
    return replace(pick, sure=says and (pick.token.prob or 0.0) >= least)


def end_at(position: Position | None, alternatives: int) -> Token:
    """Return the end of sequence at a position, with up to `alternatives` other tokens.

    If several ends are listed, the most probable end is returned. An unlisted end has no probability and no
    alternatives.
    """
    if position is None:
        return Token(b"", None, end=True)
    choices = [_among(position), *position.top]
    listed = [choice.token for choice in choices if choice.token.end]
    end = max(listed, key=lambda token: token.prob or 0.0, default=Token(b"", None, end=True))
    return with_alternatives(Position(Choice(0, end), ranked(choices, end)), alternatives)


def cannot_score(endpoint: str) -> UnsupportedError:
    """Create the error for scoring on a server without a correct echo."""
    words = "the server does not give the probabilities of a given text, or gives wrong ones (echo, logprobs)"
    hint = "Use it without `score` and strategy='echo', and with a `tokenizer` if every boundary is asked about."
    return UnsupportedError(words, endpoint=endpoint, hint=hint)
