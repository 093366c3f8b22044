"""The base of engines whose server accepts ids, encodes and decodes text, and renders conversations: vLLM and SGLang.

A rendered conversation is continued by a view of the engine (`TokenizingEngine._for_chat`). In this view, the beginning
of sequence is part of the prompt's text, and special tokens in an answer, such as `<think>`, are text. If a message
contains the text of a special token, the start of the prompt is sent as ids (`Head`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Self, TypeVar, Unpack, cast

from pydantic import BaseModel

from cosd_providers.chat.templates import TemplateRefusal
from cosd_providers.contract import Context, Piece, Provider
from cosd_providers.engine import NO_TEMPLATE, Engine, EngineOptions, ServerFacts, nothing_to_continue
from cosd_providers.errors import InvalidRequestError, ResponseError, StatusError, UnsupportedError
from cosd_providers.http.transport import Transport
from cosd_providers.token_counts import Recent
from cosd_providers.tokenizers import Tokenizer
from cosd_providers.vocabulary import ENDS, looks_special

__all__ = [
    "Encoding",
    "Head",
    "TokenizedFacts",
    "TokenizingClient",
    "TokenizingEngine",
    "unspaced",
]

_REMEMBERED = 32  # number of encodings to cache; they may be long
_REFUSALS = (400, 422, 500)  # HTTP statuses that report an error in the chat template
_MARKER = re.compile(r"<[^<>\s]{1,60}>|\[[^\[\]\s]{1,60}\]")  # a string that may be a special token
_TALK = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "a"})  # shows the end of a turn


class Encoding(BaseModel):
    """A text encoded as ids, in the format of the server's response.

    Attributes:
        tokens: the ids.
        token_strs: the vocabulary entries for the ids; None if the server does not show them.
        max_model_len: size of the model's context in tokens.
    """

    tokens: list[int]
    token_strs: list[str] | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """The start of a prompt, whose ids are fixed; empty if the whole prompt is encoded as text.

    Attributes:
        text: the text of the start.
        ids: the ids of the start.
    """

    text: str = ""
    ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class TokenizedFacts(ServerFacts):
    """Facts about a server that encodes and decodes text.

    Attributes:
        beginning: the special tokens that the server puts before every text.
        anchor: the id of a plain token; tokens that are decoded after it keep the space before a word.
    """

    beginning: list[int]
    anchor: int


_F = TypeVar("_F", bound=TokenizedFacts)


class TokenizingClient(ABC, Generic[_F]):
    """Requests to one server.

    Args:
        transport: the server.
        extra: fields merged into every generation request.
        special_tokens: whether to put the model's special tokens before a text, if it has any.
        tokenizer: the model's own tokenizer; None if the user gave none.

    Attributes:
        facts: known facts about the server, available after discovery.
        model: the model's name.
        head: the start of all prompts, which is sent as fixed ids and never encoded by the server.
        is_chat: whether texts are rendered conversations.
    """

    facts: _F
    model: str
    head = Head()
    is_chat = False

    def __init__(
        self, transport: Transport, extra: Mapping[str, object], special_tokens: bool, tokenizer: Tokenizer | None
    ) -> None:
        self.transport = transport
        self.tokenizer = tokenizer
        self._extra = extra
        self._special_tokens = special_tokens
        self._ids = Recent[str, list[int]](_REMEMBERED)  # ids of recent texts, without added special tokens

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without texts and facts."""
        kept = {name: value for name, value in self.__dict__.items() if name != "facts"}
        return {**kept, "_ids": Recent[str, list[int]](_REMEMBERED)}

    def take(self, facts: _F) -> None:
        """Use these facts about the server."""
        self.facts = replace(facts, beginning=[]) if self.is_chat else facts
        self.model = facts.info.model

    def of_chat(self, head: Head) -> Self:
        """Return a view of this client for rendered conversations, whose start is sent as ids."""
        view = copy(self)
        view.is_chat, view.head, view._special_tokens = True, head, False
        return view

    def check_something(self, prompt: str | Sequence[int]) -> None:
        """Refuse an empty prompt unless a beginning of sequence is added.

        Raises:
            InvalidRequestError: prompt and text are empty, and the model has no beginning of sequence.
        """
        if not prompt and not (self._special_tokens and self.facts.beginning):
            raise nothing_to_continue(self.transport.endpoint)

    @abstractmethod
    async def encode_alone(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode each text separately, without added special tokens."""

    @abstractmethod
    async def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text, with special tokens shown."""

    @abstractmethod
    async def templated(self, messages: Sequence[Mapping[str, str]]) -> Encoding:
        """Render a conversation with the model's chat template, up to the answer."""

    @abstractmethod
    def without_template(self, error: StatusError) -> UnsupportedError | None:
        """Return the error to raise if the refusal means that the server cannot render; None for other refusals."""

    async def possible_ends(self) -> list[int]:
        """Find the tokens with common names of ends of sequence, and the special tokens of the chat template."""
        ids = await self._named_ends()
        with suppress(StatusError, ResponseError):  # the model may lack a template, or the template may fail
            talk = await self.templated(_TALK)
            shown = talk.token_strs
            ids |= {n for at, n in enumerate(talk.tokens) if shown is None or looks_special(shown[at])}
        return sorted(ids)

    async def _named_ends(self) -> set[int]:
        """Find the single tokens that encode a common name of an end, possibly after a token for a space."""
        own = self.tokenizer
        if own is None:
            found = [one.tokens for one in await self.encode_alone(ENDS)]
        else:
            found = []
            for name in ENDS:
                with suppress(UnsupportedError):  # the tokenizer may have no token for some of the characters
                    found.append([piece.id for piece in own.encode(name)])
        return {ids[-1] for ids in found if 0 < len(ids) < 3}

    def split(self, text: str) -> tuple[Head, str]:
        """Split a text into its head and its rest; the head is empty if the text does not begin with `self.head`."""
        return (self.head, text[len(self.head.text) :]) if text.startswith(self.head.text) else (Head(), text)

    async def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without added special tokens; the ids of recent texts are cached."""
        known = {text: self._ids[text] for text in texts if text in self._ids}
        new = [self.split(text) for text in dict.fromkeys(texts) if text not in known]
        if new:
            for (head, rest), found in zip(new, await self.encode_alone([rest for _, rest in new]), strict=True):
                known[head.text + rest] = [*head.ids, *found.tokens]
        for text, ids in known.items():
            self.encoded(text, ids)
        return [known[text] for text in texts]

    def encoded(self, text: str, ids: list[int]) -> None:
        """Cache the ids of a text, without added special tokens."""
        self._ids.keep(text, ids)

    async def path(self, context: Context) -> list[int]:
        """Return the ids to send for a context by ids: the encoding of the prompt alone, then the context's ids."""
        [prompt] = await self.ids([context.prompt])
        found = [*(self.facts.beginning if self._special_tokens else ()), *prompt, *(context.ids or ())]
        self.check_something(found)
        return found

    async def headed(self, pieces: Sequence[str]) -> Head | None:
        """Encode each piece separately, and return all but the last as a head; None if the ids decode differently.

        The ids decode to a different text if the tokenizer puts a space before every text that it encodes.
        """
        found = await self.encode_alone(pieces)
        if not await self.spell([n for one in found for n in one.tokens], "".join(pieces)):
            return None
        return Head("".join(pieces[:-1]), [n for one in found[:-1] for n in one.tokens])

    async def spell(self, ids: Sequence[int], text: str) -> bool:
        """Test whether ids decode to this text."""
        return await self.decode(ids) == text

    async def template(self, content: str) -> str | None:
        """Render a user's message with the model's chat template, up to the answer.

        The result is None if there is no template or it fails, because some templates refuse this message.
        """
        try:
            return await self.decode((await self.templated([{"role": "user", "content": content}])).tokens)
        except (StatusError, ResponseError):
            return None

    async def rendered(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render a conversation with the model's chat template, up to the answer.

        The text is decoded from the ids that the server's own chat route reads, and is checked to encode to the same
        ids.

        Raises:
            TemplateRefusal: the template refuses the conversation.
            UnsupportedError: the server does not render conversations, or the text encodes to other ids.
        """
        try:
            found = await self.templated(messages)
            text = await self.decode(found.tokens)
        except StatusError as error:
            if (unsupported := self.without_template(error)) is not None:
                raise unsupported from None
            if error.status not in _REFUSALS:
                raise
            raise TemplateRefusal(str(error.args[0])) from None
        shown = found.token_strs
        names = _MARKER.findall(text) if shown is None else filter(looks_special, shown)
        for one in (text, unspaced(text, names)):
            if await self.ids([one]) == [found.tokens]:
                return one
        words = "the server does not give back the text of a rendered conversation: its tokenizer changes it"
        raise UnsupportedError(words, endpoint=self.transport.endpoint, hint=NO_TEMPLATE)


def unspaced(text: str, names: Iterable[str]) -> str:
    """Remove the space after each of the special tokens `names` from a decoded text.

    Some SentencePiece tokenizers put a space after every special token, and their decoders keep it. Removing it
    restores the text that was encoded.
    """
    known = "|".join(sorted({re.escape(name) for name in names}))
    return re.sub(f"({known}) ", r"\1", text) if known else text


_C = TypeVar("_C", bound=TokenizingClient[Any])


class TokenizingEngine(Engine[_F], Generic[_F, _C]):
    """An engine whose server encodes, decodes and renders text. Each subclass documents its arguments."""

    strategies = ("echo", "list", "singles")
    by_ids = True

    _client: _C
    _client_type: type[_C]
    _owned: AbstractSet[str]
    """Fields that a user's `extra_body` may not set."""

    def __init__(
        self,
        url: str,
        *,
        tokenizer: object = None,
        strategy: Literal["echo", "list", "singles", "watch"] | None = None,
        add_special_tokens: bool = True,
        **options: Unpack[EngineOptions],
    ) -> None:
        super().__init__(url, owned=self._owned, strategy=strategy, tokenizer=tokenizer, **options)
        self._client = self._client_type(self._transport, self._extra, add_special_tokens, self._tokenizer)

    async def facts(self) -> _F:
        """Return the facts about the server, and pass them to the client of this view."""
        self._client.take(await self.discovered())
        facts: _F = self._client.facts
        return facts

    async def _render(self, messages: list[dict[str, str]]) -> str:
        await self.facts()
        return await self._client.rendered(messages)

    async def begun(self, prompt: str) -> str:
        """Add the beginning of sequence to a rendered prompt if the user's own template has not written it."""
        await self.facts()
        own = (await self.discovered()).beginning
        if self._template is None or not own:
            return prompt
        try:
            beginning = await self._client.decode(own)
        except InvalidRequestError:  # older versions of SGLang have no route for decoding
            return prompt
        return prompt if prompt.startswith(beginning) else beginning + prompt

    async def literal(self, pieces: Sequence[str]) -> Provider | None:
        """Return a view whose prompts are sent as ids up to the last piece, with each piece encoded separately."""
        await self.facts()
        head = await self._client.headed(pieces)
        return None if head is None else cast("Provider", self._continuing(head))

    async def encode(self, text: str) -> list[Piece]:
        """Encode the beginning of a response like any other text; see `contract.IdContexts`.

        Raises:
            UnsupportedError: the text may contain a special token, which the server would parse.
        """
        if _MARKER.search(text):
            words = "the server parses special tokens in a text, and this one may hold some"
            raise UnsupportedError(words, endpoint=self._transport.endpoint)
        return await self.tokenize(text)

    async def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text, with special tokens shown; see `contract.IdContexts`."""
        await self.facts()
        return await self._client.decode(ids)

    async def _for_chat(self) -> Self:
        """Return a view that continues rendered prompts."""
        await self.discovered()
        return self._continuing(Head())

    def _continuing(self, head: Head) -> Self:
        view = copy(self)
        view._client = self._client.of_chat(head)
        return view
