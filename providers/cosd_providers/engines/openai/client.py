"""Requests to a server that speaks OpenAI's protocol: for single answers, streams and lists of prompts.

The client also checks that the server read the whole prompt.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, Literal, Self, cast

from pydantic import PlainSerializer

from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Context
from cosd_providers.drafting import billed
from cosd_providers.engine import miscounted
from cosd_providers.engines.openai.dialects import GREEDY, NEUTRAL, Dialect
from cosd_providers.engines.openai.logprobs import CheckedAligner, Listing
from cosd_providers.engines.openai.stream_checks import StreamCheck, checked
from cosd_providers.engines.openai.wire import Billed, Completion, Conversation, WireAnswer, steps
from cosd_providers.errors import ContextLengthError, InvalidRequestError, ResponseError, ServerError, UnsupportedError
from cosd_providers.greedy import TIES, Position
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.text import sendable
from cosd_providers.token_counts import Counts, Recent
from cosd_providers.tokenizers import Tokenizer, beside, count
from cosd_providers.usage import Usage
from cosd_providers.vocabulary import SURE_ENDS

OWNED = {
    *("add_generation_prompt", "continue_final_message", "echo", "logit_bias", "logprobs", "max_completion_tokens"),
    *("max_tokens", "messages", "model", "n", "prompt", "stop", "stream", "stream_options", "suffix", "temperature"),
    *("top_logprobs", "top_p", "tools", "response_format", "best_of", "return_tokens_as_token_ids"),
}
"""Fields that a user's `extra_body` may not set, in addition to the dialect's own fields."""

_LIST = 64  # greatest number of prompts in one request
_REMEMBERED = 64  # number of prompts to remember
_ADDED = 8  # tokens that the server may add to a text
_WRAPPED = 32  # tokens that a chat template may add to a conversation
_NUMBER = re.compile(r"\d+")

_DISPENSABLE = (
    *("continuous_usage_stats", "include_usage", "stream_options"),
    *(name for name in (*GREEDY, *NEUTRAL) if name != "temperature"),
)
"""Fields that no answer depends on: they ask for the bill, or have the value that is the protocol's default.

If a server refuses such a field by name, requests are sent without it from then on.
"""

_NO_FIELDS: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class Prefix:
    """The input of a request: the user's prompt, and the start of the answer."""

    prompt: str
    text: str

    @property
    def whole(self) -> str:
        """The prompt and the start of the answer, as one text."""
        return self.prompt + self.text

    @classmethod
    def of(cls, context: Context) -> Self:
        """Return the input that continues a context, as far as text can represent the context."""
        return cls(context.prompt, sendable(context.text))


def _is_unspelt(answer: Completion) -> bool:
    """True if no token has a string, although the text has visible ASCII characters, which need no second token."""
    found = steps(answer)
    seen = any("!" <= character <= "~" for character in answer.written)
    return bool(found) and seen and not any(step.pick.text or step.pick.data for step in found)


@dataclass(frozen=True, slots=True)
class EchoProof:
    """The result of testing a server's `echo`."""

    works: bool
    # whether the echo lists the most probable tokens at each position, as well as the text's own token
    lists: bool = False


@dataclass
class OpenAIFacts:
    """Facts about a server that speaks OpenAI's protocol."""

    model: str
    context: int | None  # size of the context in tokens, prompt and answer together; None if unknown
    probs: bool  # whether the server returns log probabilities
    lists: bool | None  # whether the server accepts a list of prompts in one request; None before the test
    repeats: bool  # whether the answer to a continued message repeats that message
    # whether the server strips white space from the start of its answers; None before the test
    trims: bool | None = None
    # strings and ids of the known ends of sequence
    ends: Annotated[set[str | int], PlainSerializer(lambda ends: sorted(ends, key=str))] = field(
        default_factory=lambda: {*SURE_ENDS}
    )
    echo: EchoProof | None = None  # the result of testing `echo`; None before the test
    # name of the local tokenizer that was checked against the server; None if there is none
    tokenizer: str | None = None
    # the largest number of tokens that the server lists at a position; None unless the server has refused a larger
    # number
    most: int | None = None
    spaced: bool = False  # whether strings of listed tokens keep the space before a word
    # names of dispensable fields that the server has refused
    refused: Annotated[set[str], PlainSerializer(sorted)] = field(default_factory=set[str])
    texts: bool = True  # whether tokens come with their strings; False once an answer had only empty ones


class OpenAIClient:
    """Requests to one server.

    Args:
        dialect: the server's variant of the protocol.
        api: the route to use.
        tokenizer: a local tokenizer, which counts tokens; None if there is none.
        partial: whether the route for messages continues a partial answer.
    """

    def __init__(
        self,
        transport: Transport,
        dialect: Dialect,
        api: Literal["completions", "chat"],
        tokenizer: Tokenizer | None,
        extra: Mapping[str, object],
        *,
        partial: bool = True,
    ) -> None:
        self.partial = partial
        self.api: Literal["completions", "chat"] = api  # the route in use
        self.endpoint = transport.endpoint
        self.dialect = dialect
        self.facts = OpenAIFacts(
            model="",
            context=None,
            probs=dialect.probs is not False,
            lists=dialect.lists if api == "completions" else False,
            repeats=dialect.repeats,
            spaced=dialect.spaced,
        )
        self.conversation = Conversation()  # the messages around the prompt and the text, for the route for messages
        self._transport = transport
        self.tokenizer = tokenizer
        self._extra = extra
        self._counted = Recent[bytes, int](_REMEMBERED)
        self._read = Counts(_WRAPPED if api == "chat" else _ADDED)

    @property
    def path(self) -> str:
        """The path of the route in use.

        Raises:
            UnsupportedError: the server has no such route.
        """
        path = self.dialect.completions if self.api == "completions" else self.dialect.chat
        if path is None:
            other = "chat" if self.api == "completions" else "completions"
            words = f"{self.dialect.engine} has no route for api={self.api!r}"
            raise UnsupportedError(words, endpoint=self.endpoint, hint=f"Give api={other!r}.")
        return path

    @property
    def samples(self) -> bool:
        """True if the server is known to draw from the model's own distribution and to report raw probabilities."""
        return self.facts.probs and self.dialect.sampling is not None

    @property
    def asks_usage(self) -> bool:
        """False if the server has refused to report the usage of a stream."""
        return not self.facts.refused & {"stream_options", "include_usage"}

    def without_probs(self) -> Self:
        """Return a view of this client that requests no probabilities."""
        view = copy(self)
        view.facts = replace(self.facts, probs=False)
        return view

    def of_chat(self, conversation: Conversation) -> Self:
        """Return a view of this client within a conversation. In the view, everything that the model writes is text."""
        view = copy(self)
        view.conversation = conversation
        view._counted = Recent(_REMEMBERED)
        view._extra = {**self._extra, **self.dialect.special}
        return view

    # One answer.

    async def one(
        self,
        prefix: Prefix,
        limit: int,
        usage: Usage,
        fields: Mapping[str, object] = _NO_FIELDS,
        *,
        alternatives: int = 0,
        check: bool = True,
    ) -> WireAnswer:
        """Request at most `limit` raw tokens after a prefix, each with `alternatives` other tokens if possible.

        Raises:
            ContextLengthError: `check` is set, and the server read only a part of the prefix.
        """
        body = {**self.body(prefix, limit), **self._listed(alternatives), **fields}
        with billed(usage, partial(self.size, prefix)) as bill:
            answer = self.read(await self._posted(body, usage))
            answer.report(bill)
            bill.final = True
        if len(answer.choices) != 1:
            raise ResponseError(f"{len(answer.choices)} answers to one prompt", endpoint=self.endpoint)
        self.note_size(prefix, answer.usage)
        if check:
            await self.check_read(prefix, answer.usage)
        [choice] = answer.choices
        if self.facts.repeats and choice.message and choice.message.content:
            choice.message.content = choice.message.content.removeprefix(self.conversation.answer(prefix.text))
        return answer

    async def _posted(self, body: Mapping[str, object], usage: Usage) -> Any:
        """Send a request, and send it again with less if the server refuses something that is dispensable."""
        while True:
            try:
                return await self._transport.post(self.path, body, usage=usage)
            except InvalidRequestError as error:
                body = self._reduced(body, error)

    def _reduced(self, body: Mapping[str, object], error: InvalidRequestError) -> Mapping[str, object]:
        """Return the request without what the server refuses, and remember it: alternatives, or a dispensable field.

        Raises:
            InvalidRequestError: `error`, which names nothing of this kind.
        """
        asked, says = _number(body), str(error.args[0])
        if asked > TIES and "logprobs" in says:
            self.facts.most = max((n for n in map(int, _NUMBER.findall(says)) if TIES <= n < asked), default=TIES)
            return {**body, **self.shown(asked)}
        for name in _DISPENSABLE:
            if re.search(rf"\b{name}\b", says) and (less := _without(body, {name})) != body:
                self.facts.refused.add(name)
                return less
        raise error

    @asynccontextmanager
    async def stream(
        self,
        prefix: Prefix,
        limit: int,
        usage: Usage,
        fields: Mapping[str, object] = _NO_FIELDS,
        *,
        attempt: int = 0,
        alternatives: int = 0,
    ) -> AsyncGenerator[AsyncIterator[WireAnswer]]:
        """Send a request like `one`, but stream the answer as events; `attempt` is as in `Transport.stream`."""
        options = self.dialect.stream_options
        more = {"stream_options": dict(options)} if options else {}
        whole_body = {**self.body(prefix, limit), **self._listed(alternatives), **fields, "stream": True, **more}
        body = _without(whole_body, self.facts.refused)
        async with AsyncExitStack() as stack:
            keep = self.dialect.keep_alive
            stream = partial(self._transport.stream, self.path, usage=usage, keep_alive=keep, attempt=attempt)

            async def begin(body: Mapping[str, object]) -> AsyncIterator[dict[str, Any]]:
                await stack.aclose()  # the server may handle only one request at a time
                return await stack.enter_async_context(stream(body))

            events = self._answers(begin, body)
            check = StreamCheck(hides=not self.dialect.shows_parts, probs=self.facts.probs)

            async def whole() -> WireAnswer:
                await stack.aclose()
                answer = await self.one(prefix, limit, usage, fields, alternatives=alternatives, check=False)
                return check.rest(answer, self.endpoint, usage)

            async with aclosing(checked(events, check, whole)) as answers:
                yield answers

    async def _answers(
        self,
        begin: Callable[[Mapping[str, object]], Awaitable[AsyncIterator[dict[str, Any]]]],
        body: Mapping[str, object],
    ) -> AsyncGenerator[WireAnswer]:
        """Parse the events; if the server refuses something that is dispensable, send the request again without it.

        Some servers refuse a stream in its first event.
        """
        while True:
            begun = False
            try:
                async for event in await begin(body):
                    begun = True
                    yield self.read(event)
                return
            except InvalidRequestError as error:
                if begun:
                    raise
                body = self._reduced(body, error)

    def read(self, data: object) -> WireAnswer:
        """Parse a whole answer, or an event of a stream."""
        return parse(WireAnswer, data, self.endpoint, raw=self.dialect.raw)

    def positions(self, choice: Completion, alternatives: int = 0) -> list[Position]:
        """Convert a whole answer to a request for `alternatives`; raises the same errors as `CheckedAligner.feed`."""
        aligner = self.aligner(alternatives)
        positions = [*aligner.feed(choice)]
        self.facts.texts = self.facts.texts and not _is_unspelt(choice)
        self.facts.spaced = self.facts.spaced or aligner.spaced
        return positions

    def aligner(
        self, alternatives: int, *, ranked: bool = True, proxied: bool = False, drawn: bool = False
    ) -> CheckedAligner:
        """Return the reader of an answer to a request for `alternatives`; other arguments are as in `CheckedAligner`.

        Without `ranked`, the listed tokens are not sorted, because the caller does not read them.
        """
        listing, ends = self.listing(alternatives) if ranked else None, self.facts.ends
        return CheckedAligner(self.endpoint, ends, listing=listing, proxied=proxied, drawn=drawn)

    def body(self, prefix: Prefix, limit: int) -> dict[str, object]:
        """Build the body of a greedy request that asks for the most probable tokens at each position."""
        dialect = self.dialect
        greedy = _without(dialect.greedy, self.facts.refused)
        common = {**dialect.extra, **self._extra, "model": self.facts.model, **greedy, **dialect.whole}
        common["max_tokens"] = limit
        if self.api == "completions":
            return {**common, "prompt": prefix.whole, **self.shown()}
        messages = self.conversation.messages(prefix.prompt, prefix.text, dialect.continued)
        common |= (dialect.continues or {}) if messages[-1]["role"] == "assistant" else {}
        return {**common, "messages": messages, **self.shown()}

    @property
    def most(self) -> int:
        """The largest number of most probable tokens that the server lists at a position, including its own token."""
        known = self.dialect.most if self.api == "completions" else self.dialect.chat_most
        return known if self.facts.most is None else min(known, self.facts.most)

    def shown(self, listed: int = TIES) -> dict[str, object]:
        """Return fields that request the `listed` most probable tokens, or as many as the server allows."""
        if not self.facts.probs:
            return {}
        if self.api == "completions":
            return {"logprobs": min(listed, self.most)}
        return {"logprobs": True, "top_logprobs": min(listed, self.most)}

    def _listed(self, alternatives: int) -> dict[str, object]:
        """Return fields that request `alternatives` other tokens, or as many as the server allows."""
        return self.shown(max(TIES, 1 + alternatives))

    def listing(self, alternatives: int) -> Listing:
        """Describe the token lists that the server returns to a request for `alternatives`."""
        asked, dialect = min(max(TIES, 1 + alternatives), self.most), self.dialect
        return Listing(asked, dialect.ranked, dialect.end_prob, self.facts.spaced)

    # Several answers.

    async def many(
        self, prefixes: Sequence[Prefix], limit: int, usage: Usage, alternatives: int = 0
    ) -> list[Completion]:
        """Request at most `limit` raw tokens after each prefix, in as few requests as the server allows."""
        if self.facts.lists is False or len(prefixes) < 2:
            return await self.singles(prefixes, limit, usage, alternatives)
        answers: list[Completion] = []
        for at in range(0, len(prefixes), _LIST):
            asked = prefixes[at : at + _LIST]
            found = await self._list(asked, limit, usage, alternatives) if len(asked) > 1 else None
            if found is None:
                return [*answers, *await self.singles(prefixes[at:], limit, usage, alternatives)]
            answers += found
        return answers

    async def singles(
        self, prefixes: Sequence[Prefix], limit: int, usage: Usage, alternatives: int = 0
    ) -> list[Completion]:
        """Send one request for each prefix, several at a time."""
        ask = partial(self.one, alternatives=alternatives)
        answers = await concurrently([partial(ask, prefix, limit, usage) for prefix in prefixes])
        return [choice for answer in answers for choice in answer.choices]

    async def _list(
        self, prefixes: Sequence[Prefix], limit: int, usage: Usage, alternatives: int
    ) -> list[Completion] | None:
        """Request answers to a list of prompts; None if the server does not accept lists, or mixes up the answers.

        The first time, the last prompt is also sent alone, because the server may return the answers in the wrong
        order.
        """
        facts = self.facts
        plain = {**self.body(prefixes[0], limit), **self._listed(alternatives)}
        body = {**plain, "prompt": [prefix.whole for prefix in prefixes]}
        if self.dialect.list_bills_first:
            await self.count_first(prefixes)
        try:
            with billed(usage, partial(self._sizes, prefixes)) as bill:
                answer = self.read(await self._posted(body, usage))
                answer.report(bill)
                bill.final = True
                if self.dialect.list_bills_first:
                    self.note_size(prefixes[0], answer.usage)
                    bill.read, bill.final = 0, False
                    bill.written = sum(len(steps(choice)) for choice in answer.choices)
        except (InvalidRequestError, ServerError) as error:
            if facts.lists or error.status not in (400, 422, 500):
                raise
            facts.lists = False
            return None
        choices = sorted(answer.choices, key=lambda choice: choice.index)
        if [choice.index for choice in choices] != [*range(len(prefixes))]:
            if facts.lists:
                raise miscounted(len(prefixes), len(choices), self.endpoint)
            facts.lists = False
            return None
        if facts.lists is None and len({choice.written for choice in choices}) > 1:
            alone = (await self.one(prefixes[-1], limit, usage)).choices[0]
            facts.lists = alone.written == choices[-1].written
        return None if facts.lists is False else choices

    # The bill.

    def note_size(self, prefix: Prefix, reported: Billed | None) -> None:
        """Remember the number of tokens that the server reads for a prefix, if it reports it."""
        if reported is not None and reported.prompt_tokens:
            self._read.add(self._sent(prefix), reported.prompt_tokens)

    def size(self, prefix: Prefix) -> tuple[int, bool]:
        """The number of tokens that the server reads for a prefix, and whether it is an estimate, which is upwards."""
        known, estimated = self._read.upward(self._sent(prefix))
        counted = self.count(prefix) if estimated else None
        # The server may add a beginning of sequence to what a local tokenizer counts.
        return known if counted is None else counted + 1, estimated

    def _sizes(self, prefixes: Sequence[Prefix]) -> tuple[int, bool]:
        sizes = [self.size(prefix) for prefix in prefixes]
        return sum(tokens for tokens, _ in sizes), any(estimated for _, estimated in sizes)

    def _sent(self, prefix: Prefix) -> str:
        """The text of a request, with the roles of its messages."""
        if self.api == "completions":
            return prefix.whole
        messages = self.conversation.messages(prefix.prompt, prefix.text, _NO_FIELDS)
        return "".join(f"{one['role']}\n{one['content']}\n" for one in messages)

    # Checks that the server reads the whole prompt.

    def count(self, prefix: Prefix) -> int | None:
        """Count the tokens in a prefix; None without a tokenizer, or for messages, which a chat template wraps."""
        if self.tokenizer is None or self.api == "chat":
            return None
        key = _key(prefix)
        if key not in self._counted:
            self._counted.keep(key, count(self.tokenizer, prefix.whole))
        return self._counted[key]

    async def count_first(self, prefixes: Sequence[Prefix]) -> None:
        """Count long prefixes in a thread, before `count` needs the results, so that the event loop is not blocked."""
        if self.tokenizer is None or self.api == "chat":
            return
        for prefix in prefixes:
            if _key(prefix) not in self._counted:
                self._counted.keep(_key(prefix), await beside(count, self.tokenizer, prefix.whole))

    async def check_read(self, prefix: Prefix, billed: Billed | None) -> None:
        """Check that the number of billed prompt tokens is not less than the local tokenizer's count.

        Raises:
            ContextLengthError: the server read only a part of the prefix.
        """
        if not (billed and billed.prompt_tokens):
            return
        await self.count_first([prefix])
        given = self.count(prefix)
        if self.tokenizer is not None and given and billed.prompt_tokens < given:
            words = f"the server has read {billed.prompt_tokens} tokens of a text that has {given}: it cut it silently"
            hint = f"{self.dialect.longer} Or is {self.tokenizer.name!r} not the tokenizer of this model?"
            raise ContextLengthError(words, endpoint=self.endpoint, hint=hint)


def _key(prefix: Prefix) -> bytes:
    return sha256(prefix.whole.encode()).digest()


def is_too_long(error: InvalidRequestError | ContextLengthError) -> bool:
    """True if a lower limit may help: some servers refuse a request whose prompt and answer do not fit together."""
    return isinstance(error, ContextLengthError) or "max_tokens" in str(error) or "max_completion" in str(error)


def _without(body: Mapping[str, object], names: AbstractSet[str]) -> dict[str, object]:
    """Strip fields from a request, and from its `stream_options`, which are left out if nothing remains of them."""
    less = {name: value for name, value in body.items() if name not in names}
    if isinstance(options := less.pop("stream_options", None), Mapping):
        given = cast("Mapping[str, object]", options)
        kept = {name: value for name, value in given.items() if name not in names}
        less |= {"stream_options": kept} if kept else {}
    return less


def _number(body: Mapping[str, object]) -> int:
    """The number of most probable tokens that a request body asks for."""
    asked = body.get("top_logprobs", body.get("logprobs"))
    return asked if isinstance(asked, int) else 0
