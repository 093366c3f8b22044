"""Views of a model that hide the white space before each answer, if its chat template writes such a space.

After the prompt `"[INST] Q[/INST]"`, such a model writes `" The"`. A different model with a different template begins
the same answer with `"The"`. So the first model's own text consists of the space and the answer, while the models share
only the answer.

With contexts by ids (`AfterLead`), the model's path begins with the space. The space may consist of separate tokens,
which have no bytes in the shared text, or be the beginning of the answer's first token. With contexts by text
(`WithoutLeadingSpace`), the view adds the space to each request and removes it from each answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from cosd_providers.allowed import by_allowed
from cosd_providers.contract import (
    Context,
    DraftEnd,
    IdContexts,
    IdScores,
    Piece,
    Proposal,
    Provider,
    Question,
    ServerInfo,
    State,
    Token,
)
from cosd_providers.errors import UnsupportedError
from cosd_providers.forwarding import Forwarding, by_states
from cosd_providers.messages import RenderedPrompt
from cosd_providers.sampling import other_seed
from cosd_providers.text import join
from cosd_providers.usage import Usage

_ANYTHING = b"\0"
"""A placeholder for any token, in a question about the token that follows the space."""


@runtime_checkable
class TakesIds(Provider, IdContexts, IdScores, Protocol):
    """A provider that has all methods for ids. Its capabilities say whether its server really accepts ids."""


def led(provider: Provider, lead: str, prompt: str, warnings: tuple[str, ...] = ()) -> RenderedPrompt:
    """Build the prompt for a model whose template writes the white space `lead` (not empty) before every answer."""
    space = lead.encode()
    path = AfterLead(provider, space, prompt) if isinstance(provider, TakesIds) else None
    return RenderedPrompt(WithoutLeadingSpace(provider, space, prompt), prompt, warnings, lead, path)


class WithoutLeadingSpace(Forwarding):
    """A view of a provider for contexts by text, in which answers begin after the space."""

    def __init__(self, provider: Provider, space: bytes, prompt: str = "") -> None:
        super().__init__(provider)
        self._space = space  # the white space; not empty
        self._prompt = prompt  # the prompt that the model answers, for `tokenize`

    def generate(self, context: Context, **options: Any) -> AsyncGenerator[Token | DraftEnd, None]:
        """See `contract.Provider`. If the first token consists only of the space, it is joined to the next token."""
        return self._draft(self._provider.generate, context, **options)

    def generate_with_states(self, context: Context, **options: Any) -> AsyncGenerator[Token | DraftEnd, None]:
        """See `contract.HiddenStates`. The first token has the hidden state before the space."""
        return self._draft(by_states(self._provider).generate_with_states, context, **options)

    async def hidden_states(self, context: Context, *, usage: Usage) -> dict[int, State]:
        """See `contract.HiddenStates`. The first state is the one before the space."""
        prompt, text = context.prompt, context.text
        size = len(self._space)
        found = await by_states(self._provider).hidden_states(Context(prompt, self._space + text), usage=usage)
        return {at and at - size: state for at, state in found.items() if not at or at > size}

    async def _draft(
        self,
        generate: Callable[..., AsyncGenerator[Token | DraftEnd, None]],
        context: Context,
        *,
        max_tokens: int,
        continuation: Any = None,
        usage: Usage,
        **options: Any,
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Write a draft with one of the provider's methods, `generate` or `generate_with_states`."""
        prompt, text = context.prompt, context.text
        begins = continuation is None and not text
        strip, left = _Strip(self._space if begins else b""), max_tokens
        text = b"" if begins else self._space + text
        while True:
            items = generate(Context(prompt, text), max_tokens=left, continuation=continuation, usage=usage, **options)
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
            if not (end.reason == "limit" and left and strip.held):
                yield end
                return
            continuation, strip.held = end.continuation, 0  # held tokens do not count, so more tokens can be written
            if "seed" in options:
                options["seed"] = other_seed(options["seed"], 1)

    async def propose(
        self, context: Context, questions: Sequence[Question] | None, *, alternatives: int = 0, usage: Usage
    ) -> list[Proposal | None]:
        """See `contract.Provider`."""
        prompt, text = context.prompt, context.text
        options: dict[str, Any] = {"alternatives": alternatives, "usage": usage}
        size, whole = len(self._space), self._space + text
        if questions is None:
            found = await self._provider.propose(Context(prompt, whole), None, **options)
            later = [one and replace(one, start=one.start - size) for one in found if one is None or one.start > size]
            first = await self.propose(context, [Question(0, ())], **options)
            return [*first, *later]
        asked = [self._own(question) for question in questions]
        answers = await self._provider.propose(Context(prompt, whole), asked, **options)
        found = [self._shared(one) for one in answers]
        more = [self._more(*one) for one in zip(questions, asked, answers, found, strict=True)]
        again = [at for at, one in enumerate(more) if one is not None]
        if again:
            asked = [one for one in more if one is not None]
            rest = await self._provider.propose(Context(prompt, whole), asked, **options)
            for at, one in zip(again, rest, strict=True):
                shared = self._shared(one)
                if shared is not None and not questions[at].word:
                    shared = replace(shared, tokens=shared.tokens[:1])
                found[at] = shared
        return [one if one is None or one.tokens else None for one in found]

    def _more(
        self, question: Question, asked: Question, answer: Proposal | None, found: Proposal | None
    ) -> Question | None:
        """Return a second question about the beginning of the answer, in the model's own text; None if not needed."""
        if answer is None or found is None or answer.start:
            return None
        first, *rest = question.tokens or (b"",)
        size = sum(len(token.data) for token in answer.tokens)
        if not found.tokens:  # the model wrote only the space, so the second question is about the next token
            if question.word and first:
                return None  # the model cannot continue
            own = [token.data for token in answer.tokens]
            begun = self._space[size:] + (first or _ANYTHING)
            return replace(asked, tokens=(*own, begun), word=True)
        taken = size - sum(len(token.data) for token in found.tokens)
        if question.word and taken < len(self._space) and not found.tokens[0].end:
            # The model began without the space, but was compared with a text that has it, so it may have stopped early.
            return replace(question, tokens=(self._space[:taken] + first, *rest))
        return None

    def _own(self, question: Question) -> Question:
        """Convert a question about the shared text to a question about the model's own text."""
        if question.start:
            return replace(question, start=question.start + len(self._space))
        first, *rest = question.tokens or (b"",)
        return replace(question, tokens=(self._space + first, *rest) if first else question.tokens)

    def _shared(self, proposal: Proposal | None) -> Proposal | None:
        """Convert a proposal from the model's own text to the shared text. The space alone becomes empty."""
        if proposal is None or proposal.start:
            return proposal and replace(proposal, start=proposal.start - len(self._space))
        strip = _Strip(self._space)
        tokens = [token for one in proposal.tokens for token in strip.feed(one)]
        return replace(proposal, tokens=tuple(tokens))

    async def score(self, context: Context, *, alternatives: int = 0, end: bool = False, usage: Usage) -> list[Token]:
        """See `contract.Provider`."""
        prompt, text = context.prompt, context.text
        strip = _Strip(self._space)
        whole = Context(prompt, self._space + text)
        scored = await self._provider.score(whole, alternatives=alternatives, end=end, usage=usage)
        return [token for one in scored for token in strip.feed(one)]

    async def list_allowed(self, context: Context, allowed: Callable[[bytes], bool], *, usage: Usage) -> list[Token]:
        """See `contract.AllowedTokens`. The space is removed before `allowed` receives the bytes of a token."""
        left = await self._left(context)

        def own(data: bytes) -> bool:
            rest = _cut(Token(data, None), left).data
            return bool(rest or not data) and allowed(rest)

        found = await by_allowed(self._provider).list_allowed(self._sent(context, left), own, usage=usage)
        return [_cut(token, left) for token in found] if left else found

    async def tokenize(self, text: str) -> list[Piece]:
        """See `contract.Provider`.

        If a text begins with the prompt, the space is inserted after the prompt before encoding, and removed from the
        result.
        """
        answer = text.removeprefix(self._prompt)
        if not self._prompt or answer in ("", text):
            return await self._provider.tokenize(text)
        pieces, at = list[Piece](), -len(self._prompt.encode())  # the start of a piece, relative to the space
        for piece in await self._provider.tokenize(self._prompt + self._space.decode() + answer):
            start, stop = max(-at, 0), max(len(self._space) - at, 0)
            pieces.append(replace(piece, data=piece.data[:start] + piece.data[max(start, stop) :]))
            at += len(piece.data)
        return pieces

    async def _left(self, context: Context) -> bytes:
        """Return the bytes of the space that the model's own text does not yet contain."""
        return b"" if context.text else self._space

    def _sent(self, context: Context, left: bytes) -> Context:
        """Put the space, without its last bytes `left`, before the text of a context."""
        return replace(context, text=self._space[: len(self._space) - len(left)] + context.text)


class AfterLead(WithoutLeadingSpace):
    """A view of a provider for contexts by ids, in which the model's path begins with the space.

    The bytes of the space are removed from the tokens, so a token that consists only of the space has no bytes. If the
    model begins without the space, its tokens remain unchanged. Contexts by text work as in `WithoutLeadingSpace`.
    """

    def __init__(self, provider: TakesIds, space: bytes, prompt: str = "") -> None:
        super().__init__(provider, space, prompt)
        self._model = provider
        self._known: dict[int, bytes] = {}  # the bytes of tokens that have occurred at the beginning of a path, by id

    async def describe(self) -> ServerInfo:
        """Return the provider's description, which includes its abilities with ids."""
        return await self._model.describe()

    async def generate(self, context: Context, **options: Any) -> AsyncGenerator[Token | DraftEnd, None]:
        """See `contract.Provider`."""
        left = b"" if context.ids is None else await self._left(context)
        if context.ids is None:
            items = super().generate(context, **options)
        else:
            items = self._model.generate(self._sent(context, left), **options)
        async with aclosing(items):
            async for item in items:
                if left and isinstance(item, Token):
                    yield self._without_space(item, left)
                    left = _rest(left, item)
                else:
                    yield item

    async def next_tokens(
        self, contexts: Sequence[Context], *, alternatives: int = 1, usage: Usage
    ) -> list[Token | None]:
        """See `contract.IdContexts`."""
        lefts = [await self._left(context) for context in contexts]
        asked = [self._sent(*one) for one in zip(contexts, lefts, strict=True)]
        found = await self._model.next_tokens(asked, alternatives=alternatives, usage=usage)
        return [token and self._without_space(token, left) for token, left in zip(found, lefts, strict=True)]

    async def score_ids(
        self, context: Context, first: int, *, alternatives: int = 0, end: bool = False, usage: Usage
    ) -> list[Token]:
        """See `contract.IdScores`."""
        ids = context.ids or ()
        options: dict[str, Any] = {"alternatives": alternatives, "end": end}
        found = await self._model.score_ids(
            self._sent(context, await self._left(context)), first, usage=usage, **options
        )
        for at, token in enumerate(found if alternatives else ()):
            left = await self._left(replace(context, text=b"", ids=ids[: first + at]))
            if not left:
                break
            found[at] = self._without_space(token, left)
        return found

    async def encode(self, text: str) -> list[Piece]:
        """Encode a text with the provider: the space followed by an answer, or a later part of an answer."""
        pieces = await self._model.encode(text)
        self._known |= {piece.id: piece.data for piece in pieces[: len(self._space)]}
        return pieces

    async def decode(self, ids: Sequence[int]) -> str:
        """See `contract.IdContexts`. The text includes the space."""
        return await self._model.decode(ids)

    def _without_space(self, token: Token, left: bytes) -> Token:
        """Remove the remaining bytes of the space, `left`, from a token and its alternatives."""
        if not left:
            return token
        if token.id is not None and token.data:
            self._known[token.id] = token.data
        others = tuple([_cut(one, left) for one in token.alternatives])
        return replace(_cut(token, left), alternatives=others)

    async def _left(self, context: Context) -> bytes:
        """Return the bytes of the space that the path of a context does not yet contain."""
        left = await super()._left(context)
        for token_id in context.ids or ():
            if not left:
                break
            left = _rest(left, Token(await self._bytes(token_id), None))
        return left

    async def _bytes(self, token_id: int) -> bytes:
        if token_id not in self._known:
            try:
                self._known[token_id] = (await self.decode([token_id])).encode()
            except UnsupportedError:  # assume that the token does not contain the space
                return b""
        return self._known[token_id]


def _goes_along(data: bytes, left: bytes) -> bool:
    return bool(data) and (data.startswith(left) or left.startswith(data))


def _cut(token: Token, left: bytes) -> Token:
    """Remove the remaining bytes of the space, `left`, from a token that begins with them or is a prefix of them."""
    return replace(token, data=token.data[len(left) :]) if _goes_along(token.data, left) else token


def _rest(left: bytes, token: Token) -> bytes:
    """Return the bytes of the space that remain after a token; empty if the model leaves out the space."""
    return left[len(token.data) :] if _goes_along(token.data, left) else b"" if token.data else left


class _Strip:
    """A filter that removes the space from a stream of tokens."""

    def __init__(self, space: bytes) -> None:
        # number of tokens that are waiting to be joined to the next token, because they consist only of the space
        self.held = 0
        self._space = space
        self._parts: list[Token] = []

    def feed(self, token: Token) -> Iterator[Token]:
        """Add the next token; yield it without the space, unless it must wait for another token."""
        if not self._space and not self._parts:
            yield token
            return
        space = self._space
        if token.end or not (token.data.startswith(space) or space.startswith(token.data)):
            self._space = b""  # the model begins without the space
        size = min(len(token.data), len(self._space))
        self._space = self._space[size:]
        data = token.data[size:]
        token = replace(token, data=data, alternatives=tuple(_others(token, space, data)))
        if not token.data and not token.end:
            self.held += 1
            self._parts.append(token)
            return
        yield join([*self._parts, token]) if self._parts else token
        self._parts = []


def _others(token: Token, space: bytes, data: bytes) -> Iterator[Token]:
    """Yield the alternatives to `data` without the space; skip alternatives that do not begin with the space."""
    for one in token.alternatives:
        rest = one.data[len(space) :]
        if one.end:
            yield one
        elif one.data.startswith(space) and rest not in (b"", data):
            yield replace(one, data=rest)
