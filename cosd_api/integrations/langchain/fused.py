"""Asking the fusion behind a model of LangChain's, in the running event loop or for code that has none."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage

from cosd_api.errors import SettingError
from cosd_api.fusion import Fusion
from cosd_api.integrations.langchain.errors import on_their_tree
from cosd_api.integrations.langchain.fields import Fields
from cosd_api.integrations.langchain.messages import conversation
from cosd_api.records import FusedToken
from cosd_api.result import FusionResult
from cosd_api.sync import iterated, synchronous
from cosd_providers.errors import ProviderError, UnsupportedError
from cosd_providers.messages import ChatProvider, Message

__all__ = ["Fused"]

_T = TypeVar("_T")


class Fused(Fields):
    """A model that is a fusion."""

    async def _opened(self) -> Fusion:
        """The fusion of this event loop."""
        return await self._held.opened(self._make)

    async def _fused(
        self, prompt: str | Sequence[Message], stop: Sequence[str] | None, given: Mapping[str, Any]
    ) -> AsyncGenerator[FusedToken | FusionResult]:
        """The tokens of an answer, and then its result.

        Raises:
            ProviderError: which is one of LangChain's errors, too. One that may pass is so only after `max_retries`.
        """
        call = self._asked_with(stop, given)
        tries = 0
        while True:
            begun = False
            try:
                async with (await self._opened()).stream(prompt, **call.bounds) as stream:
                    async for token in stream:
                        if token.text:  # an end of sequence has none
                            begun = True
                            yield token
                    yield stream.result
                    return
            except ProviderError as error:
                tries += 1
                if begun or tries > call.retries or not error.retryable:
                    raise on_their_tree(error) from error

    def get_token_ids(self, text: str) -> list[int]:
        """The ids of a text's tokens, in the tokenizer of the draft; without any special token.

        Raises:
            UnsupportedError: the draft's server encodes no text: `connect(url, tokenizer=...)` gives one.
        """
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return synchronous(self._token_ids, "get_token_ids")(text)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        """How many tokens a conversation has as the draft reads it, its chat template's included: about so many.

        About, as a special token counts as the text that it is written as where the server encodes it so.

        Raises:
            SettingError: there are tools, or messages that a fusion does not take.
            UnsupportedError: the draft has no chat template, or its server encodes no text.
        """
        if tools:
            raise SettingError("tools are not counted: a fusion writes text, and calls no tools. Leave them out.")
        return synchronous(self._count, "get_num_tokens_from_messages")(conversation(messages))

    async def _token_ids(self, text: str) -> list[int]:
        draft = (await self._opened()).endpoints.draft
        try:
            return [piece.id for piece in await draft.tokenize(text)]
        except ProviderError as error:
            raise on_their_tree(error) from error

    async def _count(self, messages: Sequence[Message]) -> int:
        draft = (await self._opened()).endpoints.draft
        try:
            if not isinstance(draft, ChatProvider):
                raise UnsupportedError("the draft's provider takes no messages", endpoint=draft.name)
            return len(await self._token_ids((await draft.render_prompt(messages)).prompt))
        except ProviderError as error:
            raise on_their_tree(error) from error

    def _plainly(self, chunks: Callable[[], AsyncGenerator[_T]]) -> Generator[_T]:
        """An async generator's items, for code that is not async."""

        async def work(emit: Callable[[_T], None]) -> None:
            async with aclosing(chunks()) as items:
                async for item in items:
                    emit(item)

        return iterated(work, type(self).__name__)
