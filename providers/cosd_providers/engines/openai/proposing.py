"""Proposals: by a list of prompts, by single prompts, or by an echo of the whole text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cosd_providers.contract import Proposal, Question
from cosd_providers.engine import nothing_to_continue
from cosd_providers.engines.openai.client import OpenAIClient, Prefix, is_too_long
from cosd_providers.engines.openai.echo import Echo, Scored, cannot_score
from cosd_providers.errors import ContextLengthError, InvalidRequestError, ResponseError
from cosd_providers.greedy import Continuation, Position, along, answer, boundaries
from cosd_providers.strategies import Strategy, counted, marked
from cosd_providers.text import sendable
from cosd_providers.usage import Usage

__all__ = ["Proposing"]

_MORE = 3  # raw tokens that may be needed to finish a character


class Proposing:
    """One call of `propose`.

    By default several questions are sent as a list where the server takes one, else one by one. An echo is the default
    only for all boundaries of a text, where it is proved and a tokenizer shows which places it answers.

    Args:
        client: requests to the server.
        prompt: the prompt.
        text: the response so far.
        usage: where requests are counted.
        echo: scores texts; None where the server cannot.
        strategy: how to ask; None for the default.
    """

    def __init__(
        self,
        client: OpenAIClient,
        prompt: str,
        text: bytes,
        usage: Usage,
        *,
        echo: Echo | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        self._client = client
        self._prompt = prompt
        self._text = text
        self._usage = usage
        self._echo = echo if client.api == "completions" else None
        self._strategy: Strategy | None = strategy
        self._whole = Prefix(prompt, sendable(text))
        self._scored: Scored | None = None
        self._from_text = set[int]()  # places answered by the scored text

    async def answer(self, questions: Sequence[Question] | None) -> list[Proposal | None]:
        """The proposals for some places, or for every boundary; see `contract.Provider`.

        Raises:
            UnsupportedError: every boundary is asked, with neither a tokenizer nor a proved echo.
        """
        facts, tokenizer, way = self._client.facts, self._client.tokenizer, self._strategy
        scored: Scored | None = None
        everywhere = questions is None
        if way == "echo" or (everywhere and tokenizer is None):
            scored = await self._score(must=everywhere)
        if questions is None:
            own = [] if tokenizer is None else [piece.data for piece in tokenizer.encode(self._whole.whole)]
            if scored is not None:
                own = [position.pick.token.data for position in scored.positions]
            questions = boundaries(own, len(self._prompt.encode()))
        if way is None:
            several = everywhere or len(questions) > 1
            way = "list" if several and facts.lists is not False else "singles"
            if everywhere and tokenizer is not None and self._echo is not None and self._echo.proved:
                way, scored = "echo", await self._score()
        if way == "singles":
            return counted(await answer(questions, self._ask_singly), way, self._usage)
        self._scored = scored if way == "echo" else None
        found = await answer(questions, self._ask)
        rest: Strategy = "singles" if facts.lists is False else "list"
        return counted(marked(found, rest, but=self._from_text), way, self._usage)

    async def _score(self, *, must: bool = False) -> Scored | None:
        """The whole text, scored; None where its echo is wrong, unless it `must` be right.

        Raises:
            UnsupportedError: the server is not proved to score.
        """
        if self._echo is None or await self._echo.shift(self._usage) is None:
            raise cannot_score(self._client.endpoint)
        if not self._whole.whole:
            return None
        try:
            return await self._echo.score(self._whole, self._usage)
        except ResponseError:  # the places are asked one by one
            if must:
                raise
            return None

    async def _ask_singly(self, continuations: list[Continuation]) -> Sequence[Iterable[Position]]:
        return await self._generated(continuations, singly=True)

    async def _ask(self, continuations: list[Continuation]) -> list[Iterable[Position]]:
        """The next positions of each continuation, from the scored text where it has them; see `greedy.answer`."""
        found: dict[int, Iterable[Position]] = {}
        for at, one in enumerate(continuations):
            positions = self._along(one)
            if positions:  # the text's own tokens have id 0
                found[at] = along(one, [0] * len(positions), positions)
                self._from_text.add(one.question.start)
        left = [at for at in range(len(continuations)) if at not in found]
        found.update(zip(left, await self._generated([continuations[at] for at in left]), strict=True))
        return [found[at] for at in range(len(continuations))]

    def _along(self, one: Continuation) -> Sequence[Position]:
        """The greedy positions of the scored text from a new question's place on; none where they are uncertain.

        In mid-text they are certain where the encoding of the text up to there is the start of that of the whole text.
        """
        scored, tokenizer, start = self._scored, self._client.tokenizer, one.question.start
        if scored is None or one.ids:
            return []
        before, whole = self._prompt + sendable(self._text[:start]), self._whole.whole
        if before == whole:
            return [scored.after] if scored.after else []
        if tokenizer is None:
            return []
        pieces, first = tokenizer.encode(whole), tokenizer.encode(before)
        same = [piece.id for piece in pieces[: len(first)]] == [piece.id for piece in first]
        if not same or len(pieces) != len(scored.positions) or not (first or scored.specials):
            return []
        return scored.along_from(len(first))

    async def _generated(self, asked: Sequence[Continuation], *, singly: bool = False) -> list[Sequence[Position]]:
        """The positions that the server generates; each from where its continuation last overrode the server."""
        if not asked:
            return []
        prefixes = [Prefix(self._prompt, sendable(self._text[: one.question.start] + one.turned[1])) for one in asked]
        skipped = [len(one.ids) - one.turned[0] for one in asked]
        wanted = max(skip + one.wanted for skip, one in zip(skipped, asked, strict=True))
        try:
            found = await self._many(prefixes, skipped, wanted, singly=singly)
        except (ContextLengthError, InvalidRequestError) as error:
            if not is_too_long(error):
                raise
            if len(asked) > 1:
                return [positions for one in asked for positions in await self._generated([one], singly=singly)]
            found = await self._shorter(asked[0], prefixes[0], wanted, error)
        return [positions[skip:] for positions, skip in zip(found, skipped, strict=True)]

    async def _many(
        self, prefixes: list[Prefix], skipped: list[int], wanted: int, *, singly: bool
    ) -> list[list[Position]]:
        """The positions after each prefix; asked again for a few more where none is new and the answer was cut."""
        ask = self._client.singles if singly else self._client.many
        choices = await ask(prefixes, wanted, self._usage)
        found = [self._client.positions(choice) for choice in choices]
        cut = [choice.finish_reason == "length" for choice in choices]
        short = [at for at, positions in enumerate(found) if cut[at] and len(positions) <= skipped[at]]
        if not short:
            return found
        again = await ask([prefixes[at] for at in short], wanted + _MORE, self._usage)
        for at, choice in zip(short, again, strict=True):
            found[at] = self._client.positions(choice)
            if not found[at] and not prefixes[at].whole:
                raise nothing_to_continue(self._client.endpoint)
        return found

    async def _shorter(
        self, one: Continuation, prefix: Prefix, wanted: int, error: ContextLengthError | InvalidRequestError
    ) -> list[list[Position]]:
        """As many positions as fit; none where the continuation has reached the end of the context.

        Raises:
            ContextLengthError: the text itself is too long.
        """
        least = len(one.ids) - one.turned[0] + 1
        while wanted > least:
            wanted = max(wanted // 2, least)
            try:
                [choice] = await self._client.many([prefix], wanted, self._usage)
            except (ContextLengthError, InvalidRequestError) as refusal:
                error = refusal
            else:
                return [self._client.positions(choice)]
        if not one.ids:
            raise error
        return [[]]
