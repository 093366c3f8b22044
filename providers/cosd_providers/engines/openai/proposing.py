"""How proposals are asked of a server that speaks OpenAI's protocol: by lists, singles, echo or continuation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from cosd_providers.continuation import Continuation
from cosd_providers.contract import Proposal, Question
from cosd_providers.engines.openai.asking import Asking, Prefix
from cosd_providers.engines.openai.chains import Chains
from cosd_providers.engines.openai.echo import Echo, Scored
from cosd_providers.errors import ResponseError, UnsupportedError
from cosd_providers.scoring import Choice, answer, boundaries
from cosd_providers.strategies import Chooser, Strategy, Task, Ways, marked
from cosd_providers.text import sendable
from cosd_providers.tokenizers import Tokenizer
from cosd_providers.usage import Usage

__all__ = ["Proposing", "cannot_score"]

_PROOF = 6 / 32
"""Round trips that the proof of an echo adds to each of the calls within which it is to have paid."""


class Proposing:
    """One call of `propose`.

    Without being named, an echo is asked for only where a tokenizer says which places it answers, and proved only
    where that is expected to pay; and a continuation only where a tokenizer says whether it goes on from the same
    tokens. That is seen by their bytes: of two tokens of a vocabulary with the same bytes, a model is taken to write
    the one that the tokenizer gives.

    Args:
        asking: requests to the server.
        echo: scores texts.
        tokenizer: the model's own, where there is one.
        chooser: says how questions are asked.
        raw: whether the model is given prompt and text as they are.
        prompt: the prompt.
        text: the response so far.
        usage: where requests are counted.
    """

    def __init__(
        self,
        asking: Asking,
        echo: Echo,
        tokenizer: Tokenizer | None,
        chooser: Chooser,
        *,
        raw: bool,
        prompt: str,
        text: bytes,
        usage: Usage,
    ) -> None:
        self._asking = asking
        self._echo = echo
        self._tokenizer = tokenizer
        self._chooser = chooser
        self._raw = raw
        self._prompt = prompt
        self._text = text
        self._usage = usage
        self._whole = Prefix(prompt, sendable(text))

    async def answer(self, questions: Sequence[Question] | None) -> list[Proposal | None]:
        """What the model says at each question; see `contract.Provider`."""
        chooser, fixed, scored = self._chooser, self._chooser.fixed, None
        everywhere = questions is None
        if fixed == "echo" or (questions is None and self._tokenizer is None):
            scored = await self._scored(must=questions is None)
        if questions is None:
            own = [piece.data for piece in self._tokenizer.encode(self._whole.whole)] if self._tokenizer else []
            if scored is not None:
                own = [position.pick.token.data for position in scored.positions]
            questions = boundaries(own, len(self._prompt.encode()))
        asked, task = questions, Task.of(self._prompt, self._text, questions)
        ways: Ways = {
            "list": lambda: self._plain(asked),
            "singles": lambda: answer(asked, self._chains(singly=True).ask),
            "echo": lambda: self._echoed(asked, scored),
            "continuation": lambda: Continuation(
                self._text, asked, self._chains(singly=True).ask, self._encode if self._exact else None, key=_key
            ).answer(),
        }
        echoes = self._echo.examined if self._exact else False
        able = {"list": self._asking.lists is not False, "echo": echoes is not False, "continuation": self._exact}
        ways = {way: ask for way, ask in ways.items() if way == fixed or able.get(way, True)}
        dues: dict[Strategy, float] = {"echo": _PROOF} if echoes is None else {}
        if everywhere and able["list"]:
            chooser = Chooser(fixed or ("echo" if echoes else "list"))  # one request
        return await chooser.answer(task, ways, self._usage, dues=dues)

    @property
    def _exact(self) -> bool:
        """Whether it is known of which tokens the text is made that the model reads."""
        return self._raw and self._tokenizer is not None

    def _chains(self, scored: Scored | None = None, *, singly: bool = False) -> Chains:
        return Chains(self._asking, self._prompt, self._text, self._usage, scored, self._tokenizer, singly=singly)

    async def _plain(self, asked: Sequence[Question]) -> list[Proposal | None]:
        found = await answer(asked, self._chains().ask)
        return marked(found, "singles" if self._asking.lists is False else "list")

    async def _echoed(self, asked: Sequence[Question], scored: Scored | None) -> list[Proposal | None]:
        chains = self._chains(scored or await self._scored())
        found = await answer(asked, chains.ask)
        return marked(found, "singles" if self._asking.lists is False else "list", but=chains.from_text)

    async def _scored(self, *, must: bool = False) -> Scored | None:
        """The whole text; None where it cannot be scored, unless it must.

        Raises:
            UnsupportedError: the server is not proved to do it.
        """
        if not (self._raw and await self._echo.proved(self._usage)):
            raise cannot_score(self._asking.endpoint)
        if not self._whole.whole:
            return None
        try:
            return await self._echo.score(self._whole, self._usage)
        except ResponseError:  # of this text it does not hold what it should: the places are asked one by one
            if must:
                raise
            return None

    async def _encode(self, place: int) -> list[Hashable] | None:
        """The bytes of the tokens up to a place."""
        if self._tokenizer is None:
            return None
        try:
            return [piece.data for piece in self._tokenizer.encode(self._prompt + sendable(self._text[:place]))]
        except UnsupportedError:
            return None


def _key(choice: Choice) -> Hashable:
    """The bytes of a token where they are known for certain, to be its own alone."""
    token = choice.token
    certain = token.data and token.prob is not None and choice.sure and not choice.open
    return token.data if certain else object()


def cannot_score(endpoint: str) -> UnsupportedError:
    """The server has no echo, or none that is right."""
    words = "the server does not give the probabilities of a given text, or not the right ones (echo, logprobs)"
    hint = "Use it without `score` and strategy='echo', and with a `tokenizer` where every boundary is asked."
    return UnsupportedError(words, endpoint=endpoint, hint=hint)
