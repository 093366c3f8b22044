"""How proposals are asked of a server that speaks OpenAI's protocol: by lists, singles or echo."""

from __future__ import annotations

from collections.abc import Sequence

from cosd_providers.contract import Proposal, Question
from cosd_providers.engines.openai.chains import Chains
from cosd_providers.engines.openai.client import OpenAIClient, Prefix
from cosd_providers.engines.openai.echo import Echo, Scored, cannot_score
from cosd_providers.errors import ResponseError
from cosd_providers.greedy import answer, boundaries
from cosd_providers.strategies import Strategy, counted, marked
from cosd_providers.text import sendable
from cosd_providers.tokenizers import Tokenizer
from cosd_providers.usage import Usage

__all__ = ["Proposing"]


class Proposing:
    """One call of `propose`.

    Unless it is named, an echo is asked for only at every boundary of a text, where a tokenizer shows which places it
    answers and the server is already proved to give one.

    Args:
        client: requests to the server.
        echo: scores texts.
        tokenizer: the model's own, where there is one.
        strategy: how questions are asked; None for the rule above.
        raw: whether the model is given prompt and text as they are.
        prompt: the prompt.
        text: the response so far.
        usage: where requests are counted.
    """

    def __init__(
        self,
        client: OpenAIClient,
        echo: Echo,
        tokenizer: Tokenizer | None,
        strategy: Strategy | None,
        *,
        raw: bool,
        prompt: str,
        text: bytes,
        usage: Usage,
    ) -> None:
        self._client = client
        self._echo = echo
        self._tokenizer = tokenizer
        self._strategy: Strategy | None = strategy
        self._raw = raw
        self._prompt = prompt
        self._text = text
        self._usage = usage
        self._whole = Prefix(prompt, sendable(text))

    async def answer(self, questions: Sequence[Question] | None) -> list[Proposal | None]:
        """What the model says at each question; see `contract.Provider`."""
        way, scored = self._strategy, None
        everywhere = questions is None
        if way == "echo" or (questions is None and self._tokenizer is None):
            scored = await self._scored(must=questions is None)
        if questions is None:
            own = [piece.data for piece in self._tokenizer.encode(self._whole.whole)] if self._tokenizer else []
            if scored is not None:
                own = [position.pick.token.data for position in scored.positions]
            questions = boundaries(own, len(self._prompt.encode()))
        if way is None:
            several = everywhere or len(questions) > 1
            way = "list" if several and self._client.facts.lists is not False else "singles"
            if everywhere and self._exact and self._echo.proved:
                way = "echo"
        if way == "echo":
            chains = self._chains(scored or await self._scored())
        else:
            chains = self._chains(singly=way == "singles")
        found = await answer(questions, chains.ask)
        if way != "singles":
            rest: Strategy = "singles" if self._client.facts.lists is False else "list"
            found = marked(found, rest, but=chains.from_text if way == "echo" else ())
        return counted(found, way, self._usage)

    @property
    def _exact(self) -> bool:
        """Whether it is known of which tokens the text is made that the model reads."""
        return self._raw and self._tokenizer is not None

    def _chains(self, scored: Scored | None = None, *, singly: bool = False) -> Chains:
        return Chains(self._client, self._prompt, self._text, self._usage, scored, self._tokenizer, singly=singly)

    async def _scored(self, *, must: bool = False) -> Scored | None:
        """The whole text; None where it cannot be scored, unless it must.

        Raises:
            UnsupportedError: the server is not proved to do it.
        """
        if not (self._raw and (await self._echo.prove(self._usage)).shift is not None):
            raise cannot_score(self._client.endpoint)
        if not self._whole.whole:
            return None
        try:
            return await self._echo.score(self._whole, self._usage)
        except ResponseError:  # of this text it does not hold what it should: the places are asked one by one
            if must:
                raise
            return None
