"""Proposals that are requested with a list of prompts, single prompts, or an echo of the whole text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cosd_providers.contract import Context, Proposal, Question
from cosd_providers.engine import no_probs, nothing_to_continue
from cosd_providers.engines.openai.client import OpenAIClient, Prefix, is_too_long
from cosd_providers.engines.openai.echo import Echo, Scored, cannot_score
from cosd_providers.engines.openai.wire import Completion
from cosd_providers.errors import ContextLengthError, InvalidRequestError, ResponseError
from cosd_providers.greedy import Continuation, Position, boundaries
from cosd_providers.proposing import Rounds
from cosd_providers.strategies import Strategy
from cosd_providers.text import LOST, sendable
from cosd_providers.tokenizers import encoded
from cosd_providers.usage import Usage

_MORE = 3  # number of further raw tokens that may be needed to finish a character


class Proposing(Rounds):
    """The rounds of requests for one `propose` call.

    By default, several questions are sent as a list if the server accepts lists, and otherwise one by one. The echo is
    the default only if every boundary of a text is asked about, the echo has passed its test, and a tokenizer shows
    which places the echo answers.

    Args:
        echo: the scorer of texts; None if the server cannot score.
        strategy: the kind of request; None for the default.
    """

    by_text = True

    def __init__(
        self,
        client: OpenAIClient,
        context: Context,
        usage: Usage,
        *,
        echo: Echo | None = None,
        strategy: Strategy | None = None,
        alternatives: int = 0,
    ) -> None:
        super().__init__(context, alternatives)
        self._client = client
        self._usage = usage
        self._echo = echo if client.api == "completions" else None
        self._strategy: Strategy | None = strategy
        self._whole = Prefix.of(context)
        self._echoed: Scored | None = None
        self._singly = False  # whether each question is sent in a request of its own

    async def answer(self, questions: Sequence[Question] | None) -> list[Proposal | None]:
        """Find the proposals for the questions, or for every boundary of the text; see `contract.Provider`.

        Raises:
            UnsupportedError: the echo has not passed its test, but is needed because the strategy is `"echo"`, or
                because every boundary is asked about without a tokenizer.
        """
        facts, tokenizer, strategy = self._client.facts, self._client.tokenizer, self._strategy
        scored: Scored | None = None
        everywhere = questions is None
        if strategy == "echo" or (everywhere and tokenizer is None):
            scored = await self._score(must=everywhere)
        if questions is None:
            own = [] if tokenizer is None else [piece.data for piece in await encoded(tokenizer, self._whole.whole)]
            if scored is not None:
                own = [position.pick.token.data for position in scored.positions]
            questions = boundaries(own, len(self._prompt.encode()))
        if strategy is None:
            several = everywhere or len(questions) > 1
            strategy = "list" if several and facts.lists is not False else "singles"
            if everywhere and tokenizer is not None and self._echo is not None and self._echo.proved:
                strategy, scored = "echo", await self._score()
        self._singly, self._echoed = strategy == "singles", scored if strategy == "echo" else None
        return await self.propose(questions, strategy, self._usage)

    def _sent_by(self, strategy: Strategy) -> Strategy:  # noqa: ARG002 - the server may have refused a list
        return "singles" if self._singly or self._client.facts.lists is False else "list"

    async def _score(self, *, must: bool = False) -> Scored | None:
        """Score the whole text; None if the echo of this text is wrong, unless `must` is set.

        Raises:
            UnsupportedError: the server has not passed the test of its echo.
            ResponseError: the echo is wrong, and `must` is set.
        """
        if self._echo is None or not await self._echo.works(self._usage):
            raise cannot_score(self._client.endpoint)
        if not self._whole.whole:
            return None
        try:
            return await self._echo.score(self._whole, self._usage, self._alternatives)
        except ResponseError:  # without a usable echo, the places are sent as prompts
            if must:
                raise
            return None

    async def _scored(self, open_: Sequence[Continuation]) -> dict[int, Iterable[Position]]:
        """Find the continuations that the scored text answers; see `Rounds`.

        A place in the middle of the text is answered if the encoding of the text up to this place is a prefix of the
        encoding of the whole text.
        """
        if self._echoed is None:
            return {}
        scored, tokenizer, whole = self._echoed, self._client.tokenizer, self._whole.whole
        pieces = [] if tokenizer is None else await encoded(tokenizer, whole)
        places: dict[int, int] = {}
        for place in {one.question.start for one in open_}:
            before = self._before(place)
            if before == whole:
                places[place] = len(scored.positions)
            elif tokenizer is not None and len(pieces) == len(scored.positions):
                first = await encoded(tokenizer, before)
                same = [piece.id for piece in pieces[: len(first)]] == [piece.id for piece in first]
                if same and (first or scored.specials):
                    places[place] = len(first)
        own = [0] * len(scored.positions)  # the text's own tokens have id 0
        return self._along(open_, own, places, scored.likely())

    async def _room(self, one: Continuation, wanted: int) -> int:  # noqa: ARG002 - the server knows, and may refuse
        return wanted

    async def _too_long(self, one: Continuation) -> ContextLengthError:  # noqa: ARG002
        return ContextLengthError("the text does not fit into the model's context", endpoint=self._client.endpoint)

    async def _written(self, open_: Sequence[Continuation], count: int) -> list[Sequence[Position]]:
        """Request the new positions after each continuation; fewer if the server refuses an answer of this length."""
        prefixes = [Prefix(self._prompt, sendable(self._text[: one.question.start] + one.turned[1])) for one in open_]
        skipped = [one.again for one in open_]
        try:
            found = await self._many(prefixes, skipped, count)
        except (ContextLengthError, InvalidRequestError) as error:
            if not is_too_long(error):
                raise
            if len(open_) > 1:
                return [positions for one in open_ for positions in await self._generated([one])]
            found = await self._shorter(open_[0], prefixes[0], count, error)
        return [positions[skip:] for positions, skip in zip(found, skipped, strict=True)]

    async def _many(self, prefixes: list[Prefix], skipped: list[int], wanted: int) -> list[list[Position]]:
        """Request the positions after each prefix; if an answer ends before any new position, raise its limit once.

        The server may not show the first tokens of a character, so each skipped position may stand for several tokens.
        """
        ask = self._client.singles if self._singly else self._client.many
        choices = await ask(prefixes, wanted, self._usage, self._alternatives)
        found = [self._positions(choice) for choice in choices]
        cut = [choice.finish_reason == "length" for choice in choices]
        short = [at for at, positions in enumerate(found) if cut[at] and len(positions) <= skipped[at]]
        if not short:
            return found
        more = [prefixes[at] for at in short]
        limit = wanted + _MORE * (1 + max(skipped[at] for at in short))
        again = await ask(more, limit, self._usage, self._alternatives)
        for at, choice in zip(short, again, strict=True):
            found[at] = self._positions(choice)
            if not found[at] and choice.written and LOST not in choice.written:  # no character has as many tokens
                raise no_probs("logprobs", self._client.endpoint)
            if not found[at] and not prefixes[at].whole:
                raise nothing_to_continue(self._client.endpoint)
        return found

    async def _shorter(
        self, one: Continuation, prefix: Prefix, wanted: int, error: ContextLengthError | InvalidRequestError
    ) -> list[list[Position]]:
        """Request as many positions as fit; none if the continuation has filled the context.

        Raises:
            ContextLengthError: the text alone is too long.
        """
        least = one.again + 1
        while wanted > least:
            wanted = max(wanted // 2, least)
            try:
                [choice] = await self._client.many([prefix], wanted, self._usage, self._alternatives)
            except (ContextLengthError, InvalidRequestError) as refusal:
                error = refusal
            else:
                return [self._positions(choice)]
        if not one.ids:
            raise error
        return [[]]

    def _positions(self, choice: Completion) -> list[Position]:
        return self._client.positions(choice, self._alternatives)
