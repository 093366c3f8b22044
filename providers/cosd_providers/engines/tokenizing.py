"""Engines whose server takes ids, encodes and decodes text, and renders conversations: vLLM and SGLang.

A view of the engine (`TokenizingEngine._for_chat`) continues a rendered conversation: its beginning of sequence is in
the text, and special tokens of an answer, such as `<think>`, are text. If a message holds a special token as text, the
start of the prompt is sent as ids (`Head`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, Self, TypeVar, Unpack, cast

from pydantic import BaseModel

from cosd_providers.chat.templates import TemplateRefusal
from cosd_providers.contract import Context, Piece, Provider
from cosd_providers.engine import NO_TEMPLATE, Engine, EngineOptions, ServerFacts, nothing_to_continue
from cosd_providers.errors import InvalidRequestError, ResponseError, StatusError, UnsupportedError
from cosd_providers.http.transport import Transport
from cosd_providers.token_counts import Recent
from cosd_providers.tokenizers import Tokenizer
from cosd_providers.usage import Usage
from cosd_providers.vocabulary import ENDS, looks_special

__all__ = [
    "Encoding",
    "Head",
    "TokenizedFacts",
    "TokenizingClient",
    "TokenizingEngine",
    "unspaced",
]

_REMEMBERED = 32  # encodings that are kept: they are long
_REFUSALS = (400, 422, 500)  # the status of an error of the chat template
_MARKER = re.compile(r"<[^<>\s]{1,60}>|\[[^\[\]\s]{1,60}\]")  # perhaps a special token
_TALK = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "a"})  # with an end of turn, if any


class Encoding(BaseModel):
    """A text as ids, in the format of the server's route.

    Attributes:
        tokens: the ids.
        token_strs: the entries of the vocabulary; None if the server does not show them.
        max_model_len: the model's context, in tokens.
    """

    tokens: list[int]
    token_strs: list[str] | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """The start of prompts that is sent as ids; empty if all is sent as text.

    Attributes:
        text: its text.
        ids: its ids.
    """

    text: str = ""
    ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class TokenizedFacts(ServerFacts):
    """Facts of a server that encodes and decodes text.

    Attributes:
        beginning: the special tokens before every text.
        anchor: a plain token; tokens decoded after it keep the space before a word.
        sought: the names of ends of sequence that were looked up; see `TokenizingClient.seek_ends`.
    """

    beginning: list[int]
    anchor: int
    sought: set[str] = field(default_factory=set[str], kw_only=True)


_F = TypeVar("_F", bound=TokenizedFacts)


class TokenizingClient(ABC, Generic[_F]):
    """Requests to one server.

    Args:
        transport: the server.
        extra: merged into every generation request.
        special_tokens: special tokens are put before a text, if the model has some.
        tokenizer: the model's own, if it was given.

    Attributes:
        facts: known facts about the server, after its discovery.
        model: the model's name.
        head: the start of texts that is sent as these ids, whatever the text looks like.
        is_chat: texts are rendered conversations.
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
        self._ids = Recent[str, list[int]](_REMEMBERED)  # of the last texts, without special tokens

    def __getstate__(self) -> dict[str, Any]:
        """Everything but texts and facts."""
        kept = {name: value for name, value in self.__dict__.items() if name != "facts"}
        return {**kept, "_ids": Recent[str, list[int]](_REMEMBERED)}

    def take(self, facts: _F) -> None:
        """Take the facts of the server."""
        self.facts = replace(facts, beginning=[]) if self.is_chat else facts
        self.model = facts.info.model

    def of_chat(self, head: Head) -> Self:
        """The same requests for rendered conversations, whose start is sent as ids."""
        view = copy(self)
        view.is_chat, view.head, view._special_tokens = True, head, False
        return view

    def check_something(self, prompt: str | Sequence[int]) -> None:
        """Refuse a prompt of no tokens.

        Raises:
            InvalidRequestError: prompt and text are empty, and the model has no beginning of sequence.
        """
        if not prompt and not (self._special_tokens and self.facts.beginning):
            raise nothing_to_continue(self.transport.endpoint)

    @abstractmethod
    async def encode_alone(self, texts: Sequence[str]) -> list[Encoding]:
        """Each text encoded by itself, without special tokens."""

    @abstractmethod
    async def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens shown."""

    @abstractmethod
    async def templated(self, messages: Sequence[Mapping[str, str]]) -> Encoding:
        """A conversation rendered by the model's chat template, up to the answer."""

    @abstractmethod
    def without_template(self, error: StatusError) -> UnsupportedError | None:
        """The error to raise if a refusal means that the server renders nothing; None if it has another reason."""

    @abstractmethod
    async def _try_ends(self, ids: Sequence[int], usage: Usage) -> None:
        """Note which of these tokens are special and end an answer."""

    async def seek_ends(self, usage: Usage) -> None:
        """Find the ends of sequence and of a turn, once: special tokens with a common name, or of the chat template."""
        if self.facts.sought.issuperset(ENDS):
            return
        ids = await self._named_ends()
        with suppress(StatusError, ResponseError):  # there is no template, or it fails
            talk = await self.templated(_TALK)
            shown = talk.token_strs
            ids |= {n for at, n in enumerate(talk.tokens) if shown is None or looks_special(shown[at])}
        await self._try_ends(sorted(ids), usage)
        self.facts.sought.update(ENDS)

    async def _named_ends(self) -> set[int]:
        """The tokens that encode such a name as a whole, perhaps after a space."""
        own = self.tokenizer
        if own is None:
            found = [one.tokens for one in await self.encode_alone(ENDS)]
        else:
            found = []
            for name in ENDS:
                with suppress(UnsupportedError):  # it has no token for some of the characters
                    found.append([piece.id for piece in own.encode(name)])
        return {ids[-1] for ids in found if 0 < len(ids) < 3}

    def split(self, text: str) -> tuple[Head, str]:
        """The head of a text, and its rest."""
        return (self.head, text[len(self.head.text) :]) if text.startswith(self.head.text) else (Head(), text)

    async def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special tokens; the ids of recent texts are kept."""
        known = {text: self._ids[text] for text in texts if text in self._ids}
        new = [self.split(text) for text in dict.fromkeys(texts) if text not in known]
        if new:
            for (head, rest), found in zip(new, await self.encode_alone([rest for _, rest in new]), strict=True):
                known[head.text + rest] = [*head.ids, *found.tokens]
        for text, ids in known.items():
            self.encoded(text, ids)
        return [known[text] for text in texts]

    def encoded(self, text: str, ids: list[int]) -> None:
        """Keep the ids of a text, without special tokens."""
        self._ids.keep(text, ids)

    async def path(self, context: Context) -> list[int]:
        """The ids to send for a context by ids: the encoding of the prompt by itself, then the context's ids."""
        [prompt] = await self.ids([context.prompt])
        found = [*(self.facts.beginning if self._special_tokens else ()), *prompt, *(context.ids or ())]
        self.check_something(found)
        return found

    async def headed(self, pieces: Sequence[str]) -> Head | None:
        """All of the pieces but the last as ids, each encoded by itself; None if these ids spell another text.

        Some tokenizers put a space before every text that they encode.
        """
        found = await self.encode_alone(pieces)
        if not await self.spell([n for one in found for n in one.tokens], "".join(pieces)):
            return None
        return Head("".join(pieces[:-1]), [n for one in found[:-1] for n in one.tokens])

    async def spell(self, ids: Sequence[int], text: str) -> bool:
        """Test whether ids decode to this text."""
        return await self.decode(ids) == text

    async def template(self, content: str) -> str | None:
        """A user's message rendered by the model's chat template, up to the answer.

        None without a template, or if it fails: some templates refuse this message, and nothing depends on the result.
        """
        try:
            return await self.decode((await self.templated([{"role": "user", "content": content}])).tokens)
        except (StatusError, ResponseError):
            return None

    async def rendered(self, messages: Sequence[Mapping[str, str]]) -> str:
        """A conversation rendered by the model's chat template, up to the answer.

        The text decodes the ids that the server's own chat route reads, and encodes to the same ids again.

        Raises:
            TemplateRefusal: the template refuses the conversation.
            UnsupportedError: the server does not render it; or the text encodes to other ids.
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
    """A decoded text without a space after each of these special tokens.

    Some SentencePiece tokenizers put a space after every special token, and their decoders keep it: without this space,
    the result is the text that was encoded.
    """
    known = "|".join(sorted({re.escape(name) for name in names}))
    return re.sub(f"({known}) ", r"\1", text) if known else text


_C = TypeVar("_C", bound=TokenizingClient[Any])


class TokenizingEngine(Engine[_F], Generic[_F, _C]):
    """An engine whose server encodes, decodes and renders text; each class documents its arguments."""

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
        """The facts, which the client of this view then has too."""
        self._client.take(await self.discovered())
        facts: _F = self._client.facts
        return facts

    async def _render(self, messages: list[dict[str, str]]) -> str:
        await self.facts()
        return await self._client.rendered(messages)

    async def begun(self, prompt: str) -> str:
        """A rendered prompt with the beginning of sequence, even if a user's own template did not write it."""
        await self.facts()
        own = (await self.discovered()).beginning
        if self._template is None or not own:
            return prompt
        try:
            beginning = await self._client.decode(own)
        except InvalidRequestError:  # older versions of SGLang have no route that decodes
            return prompt
        return prompt if prompt.startswith(beginning) else beginning + prompt

    async def literal(self, pieces: Sequence[str]) -> Provider | None:
        """A view whose prompts are ids except for the last piece, each piece encoded by itself."""
        await self.facts()
        head = await self._client.headed(pieces)
        return None if head is None else cast("Provider", self._continuing(head))

    async def encode(self, text: str) -> list[Piece]:
        """The encoding of a response, which is the encoding of a text; see `contract.IdContexts`.

        Raises:
            UnsupportedError: the text may hold a special token, which the server would parse.
        """
        if _MARKER.search(text):
            words = "the server parses special tokens in a text, and this one may hold some"
            raise UnsupportedError(words, endpoint=self._transport.endpoint)
        return await self.tokenize(text)

    async def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens shown; see `contract.IdContexts`."""
        await self.facts()
        return await self._client.decode(ids)

    async def _for_chat(self) -> Self:
        """The same server, to continue rendered prompts."""
        await self.discovered()
        return self._continuing(Head())

    def _continuing(self, head: Head) -> Self:
        view = copy(self)
        view._client = self._client.of_chat(head)
        return view
