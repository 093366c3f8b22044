"""What a server that speaks OpenAI's protocol is asked: one answer, many short ones, and whether it cut the prompt."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Literal, Self

from cosd_providers.concurrency import concurrently
from cosd_providers.engines.openai.dialects import ENDS, Dialect
from cosd_providers.engines.openai.hidden import whole_characters
from cosd_providers.engines.openai.wire import Answer, Billed, Completion, Conversation, bill
from cosd_providers.errors import (
    ContextLengthError,
    InvalidRequestError,
    ResponseError,
    ServerError,
    UnsupportedError,
)
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.scoring import TIES
from cosd_providers.tokenizers import Tokenizer, count
from cosd_providers.usage import Usage

__all__ = ["OWNED", "Asking", "Prefix", "is_too_long"]

OWNED = {
    *("add_generation_prompt", "continue_final_message", "echo", "logit_bias", "logprobs", "max_completion_tokens"),
    *("max_tokens", "messages", "model", "n", "prompt", "stop", "stream", "stream_options", "suffix", "temperature"),
    *("top_logprobs", "top_p", "tools", "response_format", "best_of", "return_tokens_as_token_ids"),
}
"""What a user's `extra_body` may not set, beside the fields of the dialect."""

_LIST = 64  # prompts in one request
_LONG = 2000  # bytes; what is shorter fits everywhere
_FILLER = "one two three four five six seven eight " * 8  # 64 words
_GROWN = 32  # tokens, at least, that the filler makes
_REMEMBERED = 64  # prompts


@dataclass(frozen=True, slots=True)
class Prefix:
    """What is given: the user's prompt, and the start of the answer."""

    prompt: str
    text: str

    @property
    def whole(self) -> str:
        """Both as one text."""
        return self.prompt + self.text


class Asking:
    """Requests to one server.

    Args:
        transport: the server.
        dialect: its ways.
        api: the route that is used.
        tokenizer: counts tokens, where there is one.
        extra: merged into every request.

    Attributes:
        endpoint: of the server.
        api: the route that is used.
        ends: strings and ids of ends of sequence; one is added when it is first seen.
        model: the model's id.
        lists: whether one request may hold a list of prompts; None before it was tried.
        probs: whether probabilities are asked for.
        conversation: what stands around prompt and text, over a route for messages.
    """

    def __init__(
        self,
        transport: Transport,
        dialect: Dialect,
        api: Literal["completions", "chat"],
        tokenizer: Tokenizer | None,
        extra: Mapping[str, object],
    ) -> None:
        self.api, self.model = api, ""
        self.ends: set[str | int] = {*ENDS}
        self.endpoint = transport.endpoint
        self.lists = dialect.lists if api == "completions" else False
        self.repeats = dialect.repeats
        self.probs = dialect.probs is not False
        self.conversation = Conversation()
        self._transport, self._dialect = transport, dialect
        self._tokenizer, self._extra = tokenizer, extra
        self._checked: OrderedDict[bytes, int] = OrderedDict()
        self._counted: OrderedDict[bytes, int] = OrderedDict()

    @property
    def path(self) -> str:
        """The route that is used.

        Raises:
            UnsupportedError: the server has no such route.
        """
        path = self._dialect.completions if self.api == "completions" else self._dialect.chat
        if path is None:
            other = "chat" if self.api == "completions" else "completions"
            words = f"{self._dialect.engine} has no route for api={self.api!r}"
            raise UnsupportedError(words, endpoint=self._transport.endpoint, hint=f"Give api={other!r}.")
        return path

    @asynccontextmanager
    async def stream(
        self, prefix: Prefix, limit: int, usage: Usage, attempt: int = 0, alternatives: int = 0
    ) -> AsyncGenerator[AsyncIterator[Answer]]:
        """An answer of at most `limit` raw tokens, as events; `attempt` as in `Transport.stream`.

        With so many `alternatives` to each token, as far as the server lists them.
        """
        listed = self.shown(max(TIES, 1 + alternatives))
        options = self._dialect.stream_options
        more = {"stream_options": dict(options)} if options else {}
        body = {**self._body(prefix, limit), **listed, "stream": True, **more}
        async with AsyncExitStack() as stack:
            keep = self._dialect.keep_alive
            stream = self._transport.stream(self.path, body, usage=usage, keep_alive=keep, attempt=attempt)
            events = self._answers(await stack.enter_async_context(stream))
            if not self._dialect.shows_parts:
                whole = partial(self.one, prefix, limit, usage, check=False, **listed)
                events = whole_characters(events, stack, whole, self.endpoint)
            async with aclosing(events) as answers:
                yield answers

    def of_chat(self, conversation: Conversation) -> Self:
        """The same requests in a conversation. Whatever the model answers is text, special tokens too."""
        view = copy(self)
        view.conversation, view._checked, view._counted = conversation, OrderedDict(), OrderedDict()
        view._extra = {**self._extra, **self._dialect.special}
        return view

    async def many(self, prefixes: Sequence[Prefix], limit: int, usage: Usage) -> list[Completion]:
        """At most `limit` raw tokens after each prefix, in as few requests as the server can do with."""
        if self.lists is False or len(prefixes) < 2:
            return await self.singles(prefixes, limit, usage)
        answers: list[Completion] = []
        for at in range(0, len(prefixes), _LIST):
            asked = prefixes[at : at + _LIST]
            found = await self._list(asked, limit, usage) if len(asked) > 1 else None
            if found is None:
                return [*answers, *await self.singles(prefixes[at:], limit, usage)]
            answers += found
        return answers

    async def one(self, prefix: Prefix, limit: int, usage: Usage, *, check: bool = True, **fields: object) -> Answer:
        """At most `limit` raw tokens after a prefix; an error where less of it was read, unless that is found out."""
        body = {**self._body(prefix, limit), **fields}
        answer = self.read(await self._transport.post(self.path, body, usage=usage))
        if len(answer.choices) != 1:
            raise ResponseError(f"{len(answer.choices)} answers to one prompt", endpoint=self._transport.endpoint)
        bill(usage, answer.usage)
        if check:
            self.check_read(prefix, answer.usage)
        [choice] = answer.choices
        if self.repeats and choice.message and choice.message.content:
            choice.message.content = choice.message.content.removeprefix(self.conversation.answer(prefix.text))
        return answer

    def read(self, data: object) -> Answer:
        """What the server says, whole or in one event."""
        return parse(Answer, data, self.endpoint)

    async def _answers(self, events: AsyncIterator[dict[str, Any]]) -> AsyncGenerator[Answer]:
        async for event in events:
            yield self.read(event)

    def count(self, prefix: Prefix) -> int | None:
        """How many tokens the server makes of it, without those of a chat template; None without a tokenizer."""
        if self._tokenizer is None or self.api == "chat":
            return None
        key = sha256(prefix.whole.encode()).digest()
        if key not in self._counted:
            _remember(self._counted, key, count(self._tokenizer, prefix.whole))
        return self._counted[key]

    def check_read(self, prefix: Prefix, billed: Billed | None) -> None:
        """An error where the server has read less than it was given."""
        given = self.count(prefix) if billed and billed.prompt_tokens else None
        if self._tokenizer is not None and given and billed and billed.prompt_tokens < given:
            words = f"the server has read {billed.prompt_tokens} tokens of a text that has {given}: it cut it silently"
            hint = f"{self._dialect.longer} Or is {self._tokenizer.name!r} not the tokenizer of this model?"
            raise ContextLengthError(words, endpoint=self._transport.endpoint, hint=hint)

    async def check_whole(self, prefix: Prefix, usage: Usage) -> None:
        """Finds out whether the server cuts this text silently; asked again only where the text has grown much.

        Without a tokenizer the text is sent twice, once with words before it that must make it longer.

        Raises:
            ContextLengthError: it does.
        """
        size = len(prefix.whole.encode())
        key = sha256(prefix.prompt.encode()).digest()
        if not self._dialect.truncates or size < self._checked.get(key, 0) + _LONG:
            return
        if self.count(prefix) is None:
            filled = await self.one(Prefix(_FILLER + prefix.prompt, prefix.text), self._dialect.least, usage)
            alone = await self.one(prefix, self._dialect.least, usage)
            if not filled.usage or not alone.usage or not alone.usage.prompt_tokens:
                words = "whether the server cuts long prompts cannot be known: it does not tell how much it has read"
                raise UnsupportedError(words, endpoint=self._transport.endpoint, hint=self._dialect.longer)
            if filled.usage.prompt_tokens < alone.usage.prompt_tokens + _GROWN:
                words = "the server cuts the prompt silently: more text before it did not make it longer"
                raise ContextLengthError(words, endpoint=self._transport.endpoint, hint=self._dialect.longer)
        else:
            await self.one(prefix, self._dialect.least, usage)  # compares what was read with what was given
        _remember(self._checked, key, size)

    def _body(self, prefix: Prefix, limit: int) -> dict[str, object]:
        """A request: greedy, with the most probable tokens."""
        dialect = self._dialect
        common = {**dialect.extra, **self._extra, "model": self.model, **dialect.greedy, **dialect.whole}
        common["max_tokens"] = max(limit, dialect.least)
        if self.api == "completions":
            return {**common, "prompt": prefix.whole, **self.shown()}
        messages = self.conversation.messages(prefix.prompt, prefix.text, dialect.continued)
        common |= (dialect.continues or {}) if messages[-1]["role"] == "assistant" else {}
        return {**common, "messages": messages, **self.shown()}

    def shown(self, listed: int = TIES) -> dict[str, object]:
        """What asks for probabilities: `listed` most probable tokens at each place, or as many as may be asked for."""
        if not self.probs:
            return {}
        if self.api == "completions":
            return {"logprobs": min(listed, self._dialect.most)}
        return {"logprobs": True, "top_logprobs": min(listed, self._dialect.chat_most)}

    async def _list(self, prefixes: Sequence[Prefix], limit: int, usage: Usage) -> list[Completion] | None:
        """The answers to a list of prompts; None where the server takes none.

        Where that is not known, the last prompt is asked alone, too: the answers may come in another order.
        """
        body = {**self._body(prefixes[0], limit), "prompt": [prefix.whole for prefix in prefixes]}
        try:
            found = await self._transport.post(self.path, body, usage=usage)
        except (InvalidRequestError, ServerError) as error:
            if self.lists or error.status not in (400, 422, 500):
                raise
            self.lists = False
            return None
        answer = self.read(found)
        choices = sorted(answer.choices, key=lambda choice: choice.index)
        if [choice.index for choice in choices] != [*range(len(prefixes))]:
            bill(usage, answer.usage)
            if self.lists:
                words = f"{len(prefixes)} prompts were asked, {len(choices)} answered"
                raise ResponseError(words, endpoint=self._transport.endpoint, retryable=True)
            self.lists = False
            return None
        bill(usage, self._of_all(answer, prefixes))
        if self.lists is None and len({choice.written for choice in choices}) > 1:
            alone = (await self.one(prefixes[-1], limit, usage)).choices[0]
            self.lists = alone.written == choices[-1].written
        return None if self.lists is False else choices

    def _of_all(self, answer: Answer, prefixes: Sequence[Prefix]) -> Billed | None:
        """What a list has cost.

        Where only the first prompt's cost is told, that of the others follows from their length in tokens, or in
        bytes: they are starts of one text.
        """
        billed = answer.usage
        if billed is None or not self._dialect.list_bills_first:
            return billed
        if self._tokenizer is not None:
            read = sum(self.count(prefix) or 0 for prefix in prefixes)
        else:
            sizes = [len(prefix.whole.encode()) for prefix in prefixes]
            read = round(billed.prompt_tokens * sum(sizes) / max(sizes[0], 1))
        written = (len(choice.logprobs.content or ()) if choice.logprobs else 1 for choice in answer.choices)
        return Billed(prompt_tokens=read, completion_tokens=sum(written))

    async def singles(self, prefixes: Sequence[Prefix], limit: int, usage: Usage) -> list[Completion]:
        """One request for each prefix, several at once."""
        answers = await concurrently([partial(self.one, prefix, limit, usage) for prefix in prefixes])
        return [choice for answer in answers for choice in answer.choices]


def _remember(table: OrderedDict[bytes, int], key: bytes, value: int) -> None:
    """Keeps what was found out; of very many prompts, the last ones."""
    table[key] = value
    table.move_to_end(key)
    if len(table) > _REMEMBERED:
        table.popitem(last=False)


def is_too_long(error: InvalidRequestError | ContextLengthError) -> bool:
    """Whether fewer tokens of an answer may be granted: some servers refuse what prompt and answer cannot both have."""
    return isinstance(error, ContextLengthError) or "max_tokens" in str(error) or "max_completion" in str(error)
