"""A model that is restricted to a language: a provider whose every token continues a text of the language.

For a response *b* that begins a text of the language, the next token of the model is:

1. the end of sequence, if nothing may follow *b*;
2. else, if the bytes *f* must follow, the first token of *f* in the model's own encoding, without asking the model. The
   last token of *f* stays *open*: the model may write a longer token, unless the answer ends after *f*;
3. else the most probable listed token that the language accepts and that covers all open bytes. The end of sequence is
   accepted where the answer may end. If none is listed, it is the open token or, if no byte is forced, the most
   probable token that `contract.AllowedTokens` finds.

Its probability is the model's, divided by that of all accepted listed tokens and of everything that is not listed. The
token is a function of *b* and of the ids before it, as it is for a model that is not restricted. A fusion of restricted
models is therefore defined, batched and judged like any other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from cosd_api.paths.encoding import Encoder
from cosd_providers.allowed import LISTED
from cosd_providers.contract import (
    AllowedTokens,
    Context,
    DraftEnd,
    Piece,
    Proposal,
    Provider,
    Question,
    ServerInfo,
    Token,
)
from cosd_providers.errors import UnsupportedError
from cosd_providers.forwarding import ForwardingProvider, by_ids
from cosd_providers.greedy import Choice, Continuation, Position
from cosd_providers.messages import RenderedPrompt
from cosd_providers.text import whole
from cosd_providers.usage import Usage

if TYPE_CHECKING:
    from cosd_api.structured.language import AllowedNext, Language

_ASKED: dict[str, Any] = {"continuation": None, "alternatives": 0}


def constrained(turn: RenderedPrompt, language: Language, *, cuts: bool = False, forces: bool = True) -> RenderedPrompt:
    """Restrict a model's answers to a language.

    Args:
        turn: the model with its rendered prompt.
        language: the texts that are allowed.
        cuts: see `paths.encoding.Encoder`.
        forces: whether bytes that must follow are written without asking the model. Without it, every token is asked
            for, and no token is open.
    """

    def around(provider: Provider, lead: str) -> Constrained:
        return Constrained(provider, language, lead=lead, cuts=cuts, forces=forces)

    led = None if turn.led is None else around(turn.led, turn.lead)
    return replace(turn, provider=around(turn.provider, "" if turn.led else turn.lead), led=led)


class Constrained(ForwardingProvider):
    """A provider whose answers are restricted to a language; see `constrained`."""

    _no_states = "The states belong to tokens that a restricted model might not write."

    def __init__(
        self, provider: Provider, language: Language, *, lead: str = "", cuts: bool = False, forces: bool = True
    ) -> None:
        super().__init__(provider)
        self._language, self._forces, self._lead = language, forces, len(lead.encode())
        self._by_ids = Encoder(self._encode, lead, cuts=cuts)
        self._by_text = Encoder(provider.tokenize)
        self._listed = -1

    async def describe(self) -> ServerInfo:
        """Describe the wrapped provider, without the abilities that a restricted model does not have."""
        info = await super().describe()
        able = replace(info.capabilities, hidden_states=0, sampling=False, draws=False)
        return replace(info, capabilities=able)

    async def generate(self, context: Context, **options: Any) -> AsyncGenerator[Token | DraftEnd, None]:
        """Stream the most probable text that the language accepts; see `contract.Provider`."""
        if options.get("temperature"):
            raise UnsupportedError("a restricted model draws no tokens", endpoint=self.name)
        left, token = options["max_tokens"], None
        asked: dict[str, Any] = {name: options.get(name, default) for name, default in _ASKED.items()}
        while left:
            token, open_ = await self._forced(context, self._language.after(context.text))
            if token is not None:
                yield token
                left, context = left - 1, _after(context, token)
            else:
                async with aclosing(self._asked(context, open_, left, usage=options["usage"], **asked)) as items:
                    async for item in items:
                        yield item
                        if isinstance(item, DraftEnd):
                            return
                        token, left, context = item, left - 1, _after(context, item)
            if token is not None and token.end:
                yield DraftEnd("end")
                return
            asked["continuation"] = None
        yield DraftEnd("limit")

    async def _asked(
        self, context: Context, open_: Token | None, left: int, *, continuation: Any, alternatives: int, usage: Usage
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Stream tokens of one request for as long as the language accepts them, and the first other one."""
        options: dict[str, Any] = {"continuation": continuation, "alternatives": await self._most(alternatives)}
        stream = self._provider.generate(context, max_tokens=left, usage=usage, **options)
        async with aclosing(stream) as items:
            async for item in items:
                if isinstance(item, DraftEnd):
                    if item.reason != "end":  # the caller yields an end of its own
                        yield item
                    return
                position = self._language.after(context.text)
                token = self._chosen([item, *item.alternatives], position, self._least(context, open_), alternatives)
                if token is None and item.prob is None and context.ids is not None:  # a stream may show no list here
                    [token] = await self.next_tokens([context], alternatives=alternatives, usage=usage)
                token = token or open_ or await self._found(context, position, alternatives, usage)
                yield token
                if token.end or (token.data, token.id) != (item.data, item.id):
                    return
                context, open_ = _after(context, token), None
                position = self._language.after(context.text)
                if position.stopped or (self._forces and position.forced):
                    return

    async def next_tokens(
        self, contexts: Sequence[Context], *, alternatives: int = 1, usage: Usage
    ) -> list[Token | None]:
        """Return the restricted model's token after each context by ids; see `contract.IdContexts`."""
        positions = [self._language.after(one.text) for one in contexts]
        forced = [await self._forced(*one) for one in zip(contexts, positions, strict=True)]
        asked = [one for one, (token, _) in zip(contexts, forced, strict=True) if token is None]
        provider, listed = by_ids(self._provider), await self._most(alternatives)
        answers = iter(await provider.next_tokens(asked, alternatives=listed, usage=usage) if asked else ())
        found = list[Token | None]()
        for context, position, (token, open_) in zip(contexts, positions, forced, strict=True):
            answer = token or next(answers)
            if answer is not None and token is None:
                least = self._least(context, open_)
                answer = self._chosen([answer, *answer.alternatives], position, least, alternatives)
                answer = answer or open_ or await self._found(context, position, alternatives, usage)
            found.append(answer)
        return found

    async def propose(
        self, context: Context, questions: Sequence[Question] | None, **options: Any
    ) -> list[Proposal | None]:
        """Return the restricted model's text at each place; see `contract.Provider`."""
        if questions is None:
            raise UnsupportedError("a restricted model is asked at given places only", endpoint=self.name)
        return [await self._written(context, one, options) for one in questions]

    async def _written(self, context: Context, question: Question, options: Mapping[str, Any]) -> Proposal | None:
        """Let the model write from a place, until its text answers the question."""
        written, here = Continuation(question), replace(context, text=context.text[: question.start])
        while not written.enough:
            async with aclosing(self.generate(here, max_tokens=written.wanted, **options)) as items:
                async for item in items:
                    if isinstance(item, DraftEnd):
                        if item.reason != "limit":
                            return written.proposal()
                        break
                    written.feed([Position(Choice(0, item))])
                    here = _after(here, item)
                    if written.enough:
                        break
        return written.proposal()

    # ------------------------------------------------------------------------------------------------- the next token

    async def _forced(self, context: Context, position: AllowedNext) -> tuple[Token | None, Token | None]:
        """The token that follows in any case, or else the open token, if any."""
        if position.stopped:
            ends = (await self._provider.describe()).ends
            return Token(b"", 1.0, end=True, id=ends[0] if ends and context.ids is not None else None), None
        if not (self._forces and position.forced):
            return None, None
        spelled = await self._spelled(context, position.forced)
        if len(spelled) != 1 or self._language.after(context.text + position.forced).stopped:
            return (spelled[0], None) if spelled else (None, None)
        return None, spelled[0]

    async def _spelled(self, context: Context, forced: bytes) -> list[Token]:
        """Forced bytes in the model's own tokens; an empty list if it cannot spell them from here."""
        with_ids = context.ids is not None
        if not (with_ids or (await self._provider.describe()).capabilities.tokenize):
            return [Token(forced, 1.0)]
        encoder, text, start = self._by_ids if with_ids else self._by_text, context.text + forced, len(context.text)
        text = text[: whole(text)]
        encoding = await encoder.upto(text, len(text))
        count = None if encoding is None else encoding.count(start)
        if encoding is not None and context.ids and not start:  # only white space of the template is written
            same = encoding.ids[: len(context.ids)] == context.ids
            count = len(context.ids) if same else bisect_right(encoding.ends, 0)
        if encoding is None or count is None:
            encoding, count, text, start = await encoder.apart(forced), 0, forced, 0
        if encoding is None:
            return []
        found, parts = list[Token](), start
        for number, end in zip(encoding.ids[count:], encoding.ends[count:], strict=True):
            if with_ids or whole(text[parts:end]) == end - parts:
                found.append(Token(text[parts:end], 1.0, id=number if with_ids else None))
                parts = end
        return found

    async def _encode(self, text: str) -> list[Piece]:
        return await by_ids(self._provider).encode(text)

    async def _most(self, alternatives: int) -> int:
        """The number of other tokens to request with each token."""
        if self._listed < 0:
            self._listed = min(LISTED - 1, (await self._provider.describe()).capabilities.top_k)
        return max(self._listed, alternatives)

    def _least(self, context: Context, open_: Token | None) -> int:
        """The least number of bytes of the next token. Only the white space of a template has none."""
        leads = not context.text and len(context.ids or ()) < self._lead
        return len(open_.data) if open_ is not None else int(not leads)

    def _chosen(self, listed: Sequence[Token], position: AllowedNext, least: int, alternatives: int) -> Token | None:
        """The most probable listed token that the language accepts and that is long enough, renormalised."""
        accepted = [one for one in listed if _is_accepted(one, position, least)]
        if not accepted:
            return None
        known = (one for one in listed if one.data or one.end or not least)  # a server may not show a token's bytes
        unlisted = max(0.0, 1 - sum(one.prob or 0 for one in known))
        mass = unlisted + sum(one.prob or 0 for one in accepted)
        best, *others = [
            replace(one, prob=None if one.prob is None else min(1.0, one.prob / mass) if mass else 0.0, alternatives=())
            for one in accepted
        ]
        return replace(best, alternatives=tuple(others[:alternatives]))

    async def _found(self, context: Context, position: AllowedNext, alternatives: int, usage: Usage) -> Token:
        """The most probable accepted token, which is not among those that the server lists in general.

        Raises:
            UnsupportedError: the server cannot be asked for it, or there is none.
        """
        accepts = cache(position.accepts)

        def allowed(data: bytes) -> bool:  # of a whole vocabulary, most tokens are refused for their first two bytes
            begins = accepts(data[:1]) and accepts(data[:2]) and accepts(data) if data else position.accepting
            return begins and can_send(data)

        def can_send(data: bytes) -> bool:  # a text ends with a whole character
            return context.ids is not None or whole(data) == len(data)

        words = "the model's most probable tokens all violate the requested format"
        hint = "Ask for a format with fewer fixed choices, or use llama.cpp, vLLM or SGLang, which list more tokens."
        if isinstance(self._provider, AllowedTokens):
            listed = await self._provider.list_allowed(context, allowed, usage=usage)
            token = self._chosen([one for one in listed if can_send(one.data)], position, 1, alternatives)
            if token is not None:
                return token
            words = "the model has no token that may follow in the requested format"
            hint = "Its vocabulary lacks the bytes: change the format, or use another model."
        raise UnsupportedError(words, endpoint=self.name, hint=hint)


def _is_accepted(token: Token, position: AllowedNext, least: int) -> bool:
    """Test whether a token may follow, and has at least the given number of bytes."""
    if token.end:
        return position.accepting
    return len(token.data) >= least and position.accepts(token.data)


def _after(context: Context, token: Token) -> Context:
    """The context after a token."""
    ids = None if context.ids is None else (*context.ids, token.id or 0)
    return replace(context, text=context.text + token.data, ids=ids)
