"""A model whose answers begin with white space that its chat template writes, and that is no part of the answer.

After `"[INST] Q[/INST]"` such a model says `" The"`, another one after its own template `"The"`: both begin the same
answer. The model's own text is always its `lead` and then the answer; what is shared is the answer alone.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Self

from cosd_providers.contract import DraftEnd, Piece, Proposal, Provider, Question, Ready, ServerInfo, Token
from cosd_providers.text import join
from cosd_providers.usage import Usage

__all__ = ["WithoutLeadingSpace"]

_SOMETHING = b"\0"
"""Stands for whatever may follow, in a question about what does."""


class WithoutLeadingSpace:
    """A provider of which the `lead` is taken off. See `contract.Provider`.

    Args:
        provider: the model.
        lead: white space; not empty.
        prompt: what it answers, for `tokenize`.
    """

    def __init__(self, provider: Provider, lead: bytes, prompt: str = "") -> None:
        self._provider = provider
        self._lead = lead
        self._prompt = prompt

    @property
    def name(self) -> str:
        """As the provider's."""
        return self._provider.name

    async def __aenter__(self) -> Self:
        await self._provider.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._provider.__aexit__(*exc)

    async def describe(self) -> ServerInfo:
        """As the provider's."""
        return await self._provider.describe()

    async def keep_ready(self) -> None:
        """As the provider does it."""
        if isinstance(self._provider, Ready):
            await self._provider.keep_ready()

    async def generate(
        self,
        prompt: str,
        text: bytes,
        *,
        max_tokens: int,
        continuation: Any = None,
        alternatives: int = 0,
        usage: Usage,
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Streams a draft; see `contract.Provider`. A first token that is nothing but lead belongs to the next one."""
        also = {"alternatives": alternatives} if alternatives else {}
        begins = continuation is None and not text
        strip, left = _Strip(self._lead if begins else b""), max_tokens
        text = b"" if begins else self._lead + text
        while True:
            items = self._provider.generate(
                prompt, text, max_tokens=left, continuation=continuation, usage=usage, **also
            )
            async with aclosing(items):
                async for item in items:
                    if isinstance(item, DraftEnd):
                        end = item
                        break
                    text += item.data
                    for token in strip.feed(item):
                        left -= 1
                        yield token
                else:
                    return
            if not (end.reason == "limit" and left and strip.read):
                yield end
                return
            continuation, strip.read = end.continuation, 0  # one token was the lead alone: there is room for another

    async def propose(
        self, prompt: str, text: bytes, questions: Sequence[Question] | None, *, usage: Usage
    ) -> list[Proposal | None]:
        """What the model would say; see `contract.Provider`."""
        size, whole = len(self._lead), self._lead + text
        if questions is None:
            found = await self._provider.propose(prompt, whole, None, usage=usage)
            behind = [one and replace(one, start=one.start - size) for one in found if one is None or one.start > size]
            return [*await self.propose(prompt, text, [Question(0, ())], usage=usage), *behind]
        asked = [self._own(question) for question in questions]
        told = await self._provider.propose(prompt, whole, asked, usage=usage)
        found = [self._shared(one) for one in told]
        more = [self._more(*one) for one in zip(questions, asked, told, found, strict=True)]
        again = [at for at, one in enumerate(more) if one is not None]
        if again:
            rest = await self._provider.propose(prompt, whole, [one for one in more if one is not None], usage=usage)
            for at, one in zip(again, rest, strict=True):
                shared = self._shared(one)
                if shared is not None and not questions[at].word:
                    shared = replace(shared, tokens=shared.tokens[:1])
                found[at] = shared
        return [one if one is None or one.tokens else None for one in found]

    def _more(
        self, question: Question, asked: Question, told: Proposal | None, found: Proposal | None
    ) -> Question | None:
        """What is still to be asked where the answer begins, in the model's own text; None where nothing is."""
        if told is None or found is None or told.start:
            return None
        first, *rest = question.tokens or (b"",)
        if not found.tokens:  # the lead is a token by itself: the next one is what was asked for
            if question.word and first:
                return None  # it cannot go on
            own = [token.data for token in told.tokens]
            begun = self._lead[_size(told) :] + (first or _SOMETHING)
            return replace(asked, tokens=(*own, begun), word=True)
        taken = _size(told) - _size(found)
        if question.word and taken < len(self._lead) and not found.tokens[0].end:
            # It begins without the lead, and was compared with the lead: it may have stopped too early.
            return replace(question, tokens=(self._lead[:taken] + first, *rest))
        return None

    def _own(self, question: Question) -> Question:
        """A question in the model's own text."""
        if question.start:
            return replace(question, start=question.start + len(self._lead))
        first, *rest = question.tokens or (b"",)
        return replace(question, tokens=(self._lead + first, *rest) if first else question.tokens)

    def _shared(self, proposal: Proposal | None) -> Proposal | None:
        """A proposal in the text that is shared; without a token where all that was asked for is the lead."""
        if proposal is None or proposal.start:
            return proposal and replace(proposal, start=proposal.start - len(self._lead))
        strip = _Strip(self._lead)
        tokens = [token for one in proposal.tokens for token in strip.feed(one)]
        return replace(proposal, tokens=tuple(tokens))

    async def score(self, prompt: str, text: bytes, *, usage: Usage) -> list[Token]:
        """The probabilities of a text; see `contract.Provider`."""
        strip = _Strip(self._lead)
        scored = await self._provider.score(prompt, self._lead + text, usage=usage)
        return [token for one in scored for token in strip.feed(one)]

    async def tokenize(self, text: str) -> list[Piece]:
        """As the provider does it; what goes on from the prompt as the model reads it, and then without the lead."""
        answer = text.removeprefix(self._prompt)
        if not self._prompt or answer in ("", text):
            return await self._provider.tokenize(text)
        pieces, at = list[Piece](), -len(self._prompt.encode())  # where a piece begins, from the lead on
        for piece in await self._provider.tokenize(self._prompt + self._lead.decode() + answer):
            cut = slice(max(-at, 0), max(len(self._lead) - at, 0))
            pieces.append(replace(piece, data=piece.data[: cut.start] + piece.data[max(cut.start, cut.stop) :]))
            at += len(piece.data)
        return pieces


class _Strip:
    """Takes the lead off a stream of tokens.

    Attributes:
        read: tokens that were taken in and gave none yet.
    """

    def __init__(self, lead: bytes) -> None:
        self.read = 0
        self._lead = lead
        self._held: list[Token] = []

    def feed(self, token: Token) -> Iterator[Token]:
        """Takes the next token; yields it without what it has of the lead."""
        if not self._lead and not self._held:
            yield token
            return
        mine = self._lead
        if token.end or not (token.data.startswith(mine) or mine.startswith(token.data)):
            self._lead = b""  # the model begins without it
        size = min(len(token.data), len(self._lead))
        self._lead = self._lead[size:]
        data = token.data[size:]
        token = replace(token, data=data, alternatives=tuple(self._others(token, mine, data)))
        if not token.data and not token.end:
            self.read += 1
            self._held.append(token)
            return
        yield join([*self._held, token]) if self._held else token
        self._held = []

    @staticmethod
    def _others(token: Token, lead: bytes, data: bytes) -> Iterator[Token]:
        """Other beginnings of the answer than `data`; not one without the lead, which is another text."""
        for one in token.alternatives:
            rest = one.data[len(lead) :]
            if one.end:
                yield one
            elif one.data.startswith(lead) and rest not in (b"", data):
                yield replace(one, data=rest)


def _size(proposal: Proposal) -> int:
    return sum(len(token.data) for token in proposal.tokens)
