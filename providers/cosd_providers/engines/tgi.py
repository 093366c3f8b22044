"""Adapter for Hugging Face TGI (text-generation-inference), over its native `/generate` and `/generate_stream`.

The adapter was run against TGI 3.3.6 in part: model server live on the CPU, router imitated (`make test-tgi`). The rest
follows the server's source from 3.0 to 3.3.7, its API documentation, and the 299 answers that are recorded in the
server's own tests:

- The server accepts only text. A draft continues from text; if the draft needs more tokens, it is requested again from
  the same text, with a higher limit.
- Decoding is greedy if no sampling field is sent. Probabilities come from the raw softmax, also for the end of
  sequence; null means NaN. The adapter checks that every token is the most probable of the listed tokens
  (`top_n_tokens`). Two backends are refused: the neuron backend has no probabilities, and the llama.cpp backend always
  samples.
- An answer of the requested length has the finish reason "length", even if its last token is an end of sequence. If
  that token may be an end, the request is repeated with room for another token.
- A token that leaves a character unfinished has an empty text; the token that completes the character has the text of
  both tokens. After fewer than five tokens, TGI may lose such a character. Listed tokens are decoded one by one, with
  U+FFFD in place of a part of a character.
- `/tokenize` reports positions in bytes. Without a fast tokenizer, the server reports zeros, so it is refused.
- The tokens of a prompt have probabilities only with `--enable-prefill-logprobs`, and never have alternatives. So a
  text can be scored, but the answer does not show what the model would have written instead. Encoder-decoder models are
  refused.
- At most five tokens are listed, and their strings are not always their text. So drafts have those alternatives whose
  text is known, but proposals have none (`top_k` is 0).
- The adapter does not sample, although drawn tokens have raw probabilities if the temperature is left out.
- `/chat_tokenize` renders messages. The adapter removes the beginning of sequence from the rendered text, because
  `/generate` adds one. The server parses special tokens in a user's text, which cannot be avoided because no request
  accepts ids.
- `/generate_stream` reports errors as events of the stream, after a status of 200.
- Only the last event of a stream reports the number of prompt tokens. Because a draft may be closed earlier, its prompt
  tokens are counted separately, or estimated if the text is long and resembles a counted text.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self, TypeVar, Unpack

from pydantic import BaseModel

from cosd_providers.chat.templates import TemplateRefusal
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Capabilities, Context, Piece, Proposal, Question, ServerInfo, Token
from cosd_providers.drafting import IdsDraft, Next, RequestBill, billed
from cosd_providers.engine import (
    NO_TEMPLATE,
    Engine,
    EngineOptions,
    ServerFacts,
    answer_cue,
    ask_only,
    broken_off,
    own_stop,
    silent,
)
from cosd_providers.engines.openai.probe_client import ProbeClient, RawReply, RawRequest, RawScores
from cosd_providers.engines.tgi_wire import (
    OWNED,
    EncodedText,
    TgiAnswer,
    TgiEncoding,
    TgiEvent,
    TgiInfo,
    TgiPrompt,
    TgiToken,
    parameters,
)
from cosd_providers.errors import (
    ContextLengthError,
    InvalidRequestError,
    ModelChoiceError,
    ProviderError,
    ResponseError,
    UnsupportedError,
)
from cosd_providers.greedy import (
    TIES,
    Choice,
    Continuation,
    Position,
    check_greedy,
    check_own,
    with_alternatives,
    within,
)
from cosd_providers.http.retries import until_answered
from cosd_providers.http.transport import MANY_IDLE, Transport
from cosd_providers.parsing import parse
from cosd_providers.proposing import Rounds
from cosd_providers.sampling import DraftOptions
from cosd_providers.text import LOST, readable, sendable
from cosd_providers.token_counts import Counts, Recent
from cosd_providers.usage import Usage
from cosd_providers.vocabulary import SURE_ENDS, is_plain, keeps_spaces

_TOP = re.compile(r"`top_n_tokens` must be >= 0 and <= (\d+)")

_REMEMBERED = 4  # number of encodings to cache; they may be long
_LONG = 2000  # characters; encoding a shorter text costs little
_ATTEMPTS = 2  # number of attempts from the same text; later attempts continue the text received so far
_MORE = 4  # additional raw tokens to request, to finish a character
_EACH = 4  # a whole token has at most this many raw tokens, apart from special tokens

_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class TgiFacts(ServerFacts):
    """Facts about a TGI server."""

    longest: int  # the largest number of tokens in a prompt
    before: tuple[int, ...]  # the special tokens before every text
    prefill: bool  # whether the server reports the probabilities of a prompt's tokens
    top: int  # the number of most probable tokens that the server lists, up to `TIES`
    ends: set[int] = field(default_factory=set[int])  # ids that have ended an answer
    others: set[int] = field(default_factory=set[int])  # ids of tokens that looked like ends, but do not end an answer


class TgiClient:
    """Requests to one TGI server."""

    facts: TgiFacts

    def __init__(self, transport: Transport, extra: Mapping[str, object]) -> None:
        # whether special tokens in an answer count as text, as they do in the answer to a conversation
        self.shows = False
        self._transport = transport
        self.endpoint = transport.endpoint
        self._extra = extra  # fields merged into the `parameters` of every generation
        self._encodings = Recent[str, EncodedText](_REMEMBERED)
        self._counts = Counts()

    # Discovery.

    async def info(self) -> TgiInfo:
        """Request `/info`, a route that only TGI has."""
        return await ask_only(
            self._transport, TgiInfo, "/info", looks="TGI (text-generation-inference)", url="the server"
        )

    async def discover(self, info: TgiInfo) -> TgiFacts:
        """Find out whether the server scores and lists tokens, by encoding a letter and requesting one answer.

        Raises:
            UnsupportedError: a fusion cannot use the server's answers.
        """
        letter = await self._tokenize("a")
        wide = next((at for at, span in enumerate(letter.root) if span.stop > span.start), None)
        if wide is None:
            words = "the server does not report the positions of tokens (/tokenize)"
            raise self._unsupported(words, "Serve a model that has a fast tokenizer.")
        answered, top = await self._first_answer()
        read = [word.id for word in answered.details.prefill]
        if read and read != [span.id for span in letter.root]:
            words = "the model does not read the tokens of its prompt: it answers a text and cannot continue it"
            raise self._unsupported(words, "Is it an encoder-decoder? Serve a decoder-only model.")
        described = ServerInfo(
            endpoint=self.endpoint,
            engine="tgi",
            model=info.model_id,
            build=info.version,
            context=info.max_total_tokens,
            capabilities=Capabilities(token_ids=False, end_prob=True, tokenize=True, score=bool(read)),
            longest_prompt=info.max_input_tokens,
            answer_cue=await answer_cue(lambda content: self.render([{"role": "user", "content": content}])),
        )
        before = tuple(span.id for span in letter.root[:wide])
        self.facts = TgiFacts(described, info.max_input_tokens, before, bool(read), top)
        if event := answered.last():
            self.position(event)
        return self.facts

    async def _first_answer(self) -> tuple[TgiAnswer, int]:
        """Request the answer to a letter, with the prompt's probabilities; also return the number of listed tokens."""
        top = TIES
        while top:
            try:
                return await self._post("a", 1, top, prefill=True), top
            except InvalidRequestError as error:
                allowed = _TOP.search(str(error))
                if allowed is None or int(allowed[1]) >= top:
                    raise
                top = int(allowed[1])
        words = "the server does not list the most probable tokens, so its own token may not be the most probable one"
        hint = (
            "Start it without --max-top-n-tokens 0. TGI's llama.cpp backend always samples: use llama.cpp's own server."
        )
        raise self._unsupported(words, hint)

    # Text.

    async def encode(self, text: str) -> EncodedText:
        """Encode `text` on the server; the encodings of the last few texts are cached."""
        if text not in self._encodings:
            own = EncodedText.of(await self._tokenize(text), text, self.facts.before)
            self._counts.add(text, len(own.all))
            self._encodings.keep(text, own)
        return self._encodings[text]

    async def pieces(self, text: str) -> list[Piece]:
        """Encode `text` into tokens, without added special tokens."""
        own = await self.encode(text)
        return [Piece(token_id, data) for token_id, data in zip(own.ids, own.data, strict=True)]

    async def count(self, text: str) -> int:
        """Count the tokens that the model reads for `text`, including special tokens."""
        known = self._counts.exact(text)
        return len((await self.encode(text)).all) if known is None else known

    async def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render a conversation with the model's chat template, up to the answer.

        Raises:
            TemplateRefusal: the template refuses the conversation.
            UnsupportedError: there is no template.
        """
        try:
            data = await self._transport.post("/chat_tokenize", {"messages": list(messages)})
        except InvalidRequestError as error:
            said = str(error.args[0])
            if "template not found" in said:
                raise self._unsupported("the model has no chat template", NO_TEMPLATE) from None
            raise TemplateRefusal(said) from None
        return self._parse(TgiPrompt, data).templated_text

    async def without_beginning(self, text: str) -> str:
        """Strip the special tokens that the server puts before every text, if the text starts with them."""
        before = self.facts.before
        own = await self.encode(text)
        if tuple(own.ids[: len(before)]) != before:
            return text
        return text.encode()[sum(map(len, own.data[: len(before)])) :].decode()

    async def room(self, text: str, wanted: int) -> int:
        """Return the number of tokens to request after `text`: `wanted`, or as many as fit, which may be 0 or less."""
        context = self.facts.info.context or 0
        if self._counts.fits(text, min(self.facts.longest, context - wanted)):
            return wanted
        read = await self.count(text)
        return min(wanted, context - read) if read <= self.facts.longest else 0

    # Generation.

    def position(self, event: TgiEvent, *, check: bool = True) -> Position:
        """Convert one event of a greedy generation. With `check`, test that its token is the most probable token.

        Raises:
            UnsupportedError: the list of the most probable tokens is missing, or the server chose a less probable
                token.
            ResponseError: a probability is missing or is not a number.
        """
        word, top = event.token, event.top_tokens or []
        if check:
            check_own(word.logprob, self.endpoint)
            if not top:
                words = "the server does not list the most probable tokens, although asked (top_n_tokens)"
                hint = "TGI's neuron backend has no probabilities. Update the server, or use another backend."
                raise self._unsupported(words, hint)
            check_greedy(word.prob, (other.prob for other in top), self.endpoint)
        # Listed tokens are decoded separately. If this changes the text of the server's own token, the tokenizer
        # decodes some tokens differently at the start of a text, so the texts of listed tokens cannot be compared.
        alone = next((other.text for other in top if other.id == word.id), None)
        comparable = alone is not None and (not word.text or alone == word.text)
        others = [Choice(one.id, Token(one.text.encode(), one.prob)) for one in top if self._is_text(one)]
        return Position(self._pick(event, alone), others if comparable else [])

    def _end(self, event: TgiEvent | None) -> Token:
        """Return the end of sequence at the position of an event; its probability is None if no end is listed."""
        if event is not None and event.details is not None and event.details.finish_reason == "eos_token":
            return self._pick(event, None).token
        ends = [one for one in (event.top_tokens if event else None) or () if self._is_end(one)]
        best = max(ends, key=lambda one: one.prob or 0.0, default=None)
        return Token(b"", best.prob if best else None, end=True, name=best.text or None if best else None)

    def _pick(self, event: TgiEvent, alone: str | None) -> Choice:
        word = event.token
        finish = event.details.finish_reason if event.details else None
        if finish == "eos_token":
            return Choice(word.id, Token(b"", word.prob, end=True, name=word.text or None))
        if finish == "stop_sequence":
            raise own_stop(self.endpoint)
        if word.special and not self.shows:
            return Choice(word.id, Token(b"", word.prob))
        unfinished = not word.text and alone != ""
        return Choice(word.id, Token(word.text.replace(LOST, "").encode(), word.prob), open=unfinished)

    def _is_end(self, word: TgiToken) -> bool:
        """True if the token is known to end an answer, by its id or by a name that ends every model."""
        facts = self.facts
        return word.id in facts.ends or (word.text in SURE_ENDS and word.id not in facts.others)

    def _is_text(self, word: TgiToken) -> bool:
        return bool(word.text) and not (word.special or self._is_end(word) or LOST in word.text)

    @asynccontextmanager
    async def stream(
        self, text: str, limit: int, usage: Usage, *, attempt: int, top: int, whole: bool = True
    ) -> AsyncGenerator[AsyncIterator[TgiEvent]]:
        """Stream the events of a generation of at most `limit` tokens; leaving the context closes the request.

        Only the last event reports the number of prompt tokens. So unless the caller reads the `whole` stream, they are
        counted separately. `attempt` is as in `Transport.stream`.
        """
        first: list[Any] = []
        async with AsyncExitStack() as stack:
            bill = stack.enter_context(billed(usage, partial(self._counts.upward, text)))

            async def begin() -> None:
                body = self._body(text, limit, top)
                stream = self._transport.stream("/generate_stream", body, usage=usage, attempt=attempt, draft=not whole)
                events = await stack.enter_async_context(stream)
                first[:] = await anext(events, None), events

            async def count_beside() -> None:
                if not whole:
                    await self._count_once(text)

            await concurrently([begin, count_beside])
            async with aclosing(self._events(first[0], first[1], text, limit, bill, usage)) as events:
                yield events

    async def _events(
        self, data: Any, events: AsyncIterator[dict[str, Any]], text: str, limit: int, bill: RequestBill, usage: Usage
    ) -> AsyncGenerator[TgiEvent]:
        last = 0
        while data is not None:
            event = self._parse(TgiEvent, data)
            if event.index > last:  # ignore an event that was sent twice
                last = event.index
                bill.written += 1
                if event.details is not None:
                    break
                yield event
            data = await anext(events, None)
        else:
            raise broken_off(self.endpoint)
        with suppress(ProviderError):  # the answer is complete, even if the connection now breaks
            async for _ in events:  # no event follows, but reading the end frees the connection
                pass
        self._check_read(text, event.details.input_length)
        bill.read, bill.final = event.details.input_length, True
        await self._check_end(text, limit, event, usage)
        yield event

    async def _check_end(self, text: str, limit: int, event: TgiEvent, usage: Usage) -> None:
        """Correct the finish reason of an answer with at most `limit` tokens, and remember its end of sequence."""
        end = event.details
        if end is not None and end.finish_reason == "eos_token":
            self.facts.ends.add(event.token.id)
        elif end is not None and end.finish_reason == "length" and await self._ends(text, limit, event.token, usage):
            end.finish_reason = "eos_token"

    async def _ends(self, text: str, limit: int, word: TgiToken, usage: Usage) -> bool:
        """Find out whether `word`, the last of `limit` allowed tokens, is an end of sequence.

        Each possible end is tested once: the request is repeated with a higher limit, to see whether another token
        follows. If the context has no room for another token, a special token and a common name count as an end.
        """
        facts = self.facts
        if word.id in facts.ends or word.id in facts.others or not word.may_end:
            return word.id in facts.ends
        if await self.room(text, limit + 1) <= limit:
            return word.special or self._is_end(word)
        await self._count_once(text)
        with billed(usage, partial(self._counts.upward, text)) as bill:
            found = (await self._post(text, limit + 1, facts.top, usage)).details
            bill.written = found.generated_tokens
        # If the second answer has a different token at this position, nothing is learnt.
        if [token.id for token in found.tokens[limit - 1 : limit]] == [word.id]:
            (facts.others if len(found.tokens) > limit else facts.ends).add(word.id)
        return word.id in facts.ends

    async def prefill(self, text: str, own: EncodedText, usage: Usage) -> tuple[list[Token], Token]:
        """Request the probabilities of the tokens in `text` (with the encoding `own`) and of the end of sequence.

        Raises:
            UnsupportedError: the server does not report these probabilities.
            ContextLengthError: the server read only a part of the text.
            ResponseError: the tokens in the answer differ from the encoding.
        """
        with billed(usage, lambda: (len(own.all), False)) as bill:
            answered = await self._post(text, 1, self.facts.top, usage, prefill=True)
            bill.written = answered.details.generated_tokens
        read = answered.details.prefill
        if not read:
            raise self.unscored()
        if len(read) < len(own.all):
            raise self._truncated(len(read), len(own.all))
        if [word.id for word in read] != own.all:
            words = "the tokens of the prompt are not those of /tokenize"
            raise ResponseError(words, endpoint=self.endpoint, retryable=True)
        if event := answered.last():
            await self._check_end(text, 1, event, usage)
            self.position(event)  # raises an error if the token is not the most probable token
        return [*own.scored(word.prob for word in read[own.special :])], self._end(event)

    async def _count_once(self, text: str) -> None:
        """Count the tokens in `text` for a bill, unless it is long and resembles a counted text."""
        if len(text) <= _LONG or not self._counts.resembles(text):
            await self.count(text)

    def _check_read(self, text: str, read: int) -> None:
        """Check and remember the number of tokens in `text`, which the server reports at the end of a stream.

        Raises:
            ContextLengthError: the server read only a part of the text.
        """
        known = self._counts.exact(text)
        if known is not None and read < known:
            raise self._truncated(read, known)
        self._counts.seen(text, read)

    # Requests.

    def _body(self, text: str, limit: int, top: int, *, prefill: bool = False) -> dict[str, object]:
        return {"inputs": text, "parameters": {**self._extra, **parameters(limit, top, prefill=prefill)}}

    async def _post(
        self, text: str, limit: int, top: int, usage: Usage | None = None, *, prefill: bool = False
    ) -> TgiAnswer:
        body = self._body(text, limit, top, prefill=prefill)
        return self._parse(TgiAnswer, await self._transport.post("/generate", body, usage=usage))

    async def _tokenize(self, text: str) -> TgiEncoding:
        return self._parse(TgiEncoding, await self._transport.post("/tokenize", {"inputs": text}))

    def _parse(self, kind: type[_M], data: object) -> _M:
        return parse(kind, data, self.endpoint)

    # Errors.

    def _unsupported(self, words: str, hint: str = "") -> UnsupportedError:
        return UnsupportedError(words, endpoint=self.endpoint, hint=hint)

    def unscored(self) -> UnsupportedError:
        """Create the error for a server that does not report the probabilities of a prompt's tokens."""
        words = "the server gives no probabilities for the tokens of a prompt"
        return self._unsupported(words, "Start it with --enable-prefill-logprobs.")

    async def too_long(self, text: str) -> ContextLengthError:
        """Create the error for a text that leaves no room for an answer."""
        limits = f"at most {self.facts.longest}, and {self.facts.info.context} with the answer"
        words = f"the text has {await self.count(text)} tokens; the server takes {limits}"
        return ContextLengthError(words, endpoint=self.endpoint)

    def _truncated(self, read: int, tokens: int) -> ContextLengthError:
        words = f"the server cut the text: it read {read} of {tokens} tokens"
        hint = "Shorten the prompt, or start the server with a larger --max-input-tokens."
        return ContextLengthError(words, endpoint=self.endpoint, hint=hint)


class _TgiStream:
    """The streams of one draft; see `drafting.IdsStream`.

    If a draft needs more tokens, the same text is sent again with a higher limit, as long as the server repeats its
    answer. If the server writes a different answer, or stops early, the text received so far is continued instead.
    """

    def __init__(self, client: TgiClient, context: Context, usage: Usage, alternatives: int) -> None:
        self._client = client
        self._prompt = context.prompt
        self._text = context.text
        self._usage = usage
        self._alternatives = alternatives
        self._spaced = False  # whether listed tokens keep the space before a word
        self._skipped = 0  # number of the draft's ids that are part of the text to send
        self._data = b""  # bytes of the draft's later ids
        self._left = 0  # number of whole tokens to write after this text
        self._wanted = 0  # number of raw tokens to request; 0 means the likely number

    async def __call__(self, ids: Sequence[int], left: int, attempt: int) -> AsyncGenerator[Next, None]:
        if attempt > _ATTEMPTS and self._data:
            self._restart(ids)
        known, before = ids[self._skipped :], self._prompt + sendable(self._text)
        self._left = self._left if known else left
        wanted = self._wanted = self._wanted or self._likely(len(known), left)
        limit = await self._client.room(before, wanted)
        if limit <= len(known):
            if not self._text and not ids:
                raise await self._client.too_long(before)
            yield "full"
            return
        top, seen, written = min(1 + self._alternatives, self._client.facts.top), 0, [*ids]
        stream = self._client.stream(before, limit, self._usage, attempt=attempt, top=top, whole=False)
        async with stream as events:
            async for event in events:
                choice = self._with_alternatives(self._client.position(event), event)
                seen += 1
                if seen > len(known):
                    written.append(choice.id)
                    self._data += choice.token.data
                    yield choice
                elif choice.id != known[seen - 1]:
                    self._restart(ids)
                    return
        self._wanted = 0
        if seen < limit:
            self._restart(written)
        elif limit < wanted:
            yield "full"
        elif not self._data:  # the new tokens only begin a character: the next answer need not repeat them
            self._skipped, self._wanted = len(written), 2 * seen + _MORE

    def _likely(self, known: int, left: int) -> int:
        """Return the number of raw tokens to request; after a first answer, allow for characters of several tokens."""
        each = min(known / max(self._left - left, 1), _EACH)
        return known + math.ceil(left * each) + _MORE if known else left

    def _with_alternatives(self, position: Position, event: TgiEvent) -> Choice:
        """Return the server's own token, with alternatives if the listed texts are known to keep their spaces."""
        self._spaced = self._spaced or keeps_spaces(word.text for word in event.top_tokens or ())
        if not self._alternatives or not self._spaced:
            return position.pick
        plain = [one for one in position.top if is_plain(readable(one.token.data))]
        return replace(position.pick, token=with_alternatives(Position(position.pick, plain), self._alternatives))

    def _restart(self, ids: Sequence[int]) -> None:
        if not self._data:
            raise silent(self._client.endpoint)
        self._text += self._data
        self._skipped, self._data, self._wanted = len(ids), b"", 0


class _TgiRounds(Rounds):
    """The rounds of requests for one `propose` call, with one request for each place."""

    by_text = True

    def __init__(self, client: TgiClient, context: Context, usage: Usage) -> None:
        super().__init__(context)
        self._client = client
        self._usage = usage

    async def _room(self, one: Continuation, wanted: int) -> int:
        return await self._client.room(self._asked(one), wanted)

    async def _too_long(self, one: Continuation) -> ContextLengthError:
        return await self._client.too_long(self._asked(one))

    def _asked(self, one: Continuation) -> str:
        """The text to send, which ends with the last token for which the continuation overrode the server's choice."""
        return self._prompt + sendable(self._text[: one.question.start] + one.turned[1])

    async def _written(self, open_: Sequence[Continuation], count: int) -> Sequence[Sequence[Position]]:
        return await concurrently([partial(self._new, one, count) for one in open_])

    async def _new(self, one: Continuation, count: int) -> Sequence[Position]:
        async def read(attempt: int) -> list[Position]:
            top = self._client.facts.top
            stream = self._client.stream(self._asked(one), count, self._usage, attempt=attempt, top=top)
            async with stream as events:
                return [self._client.position(event) async for event in events]

        positions, again = await until_answered(read), one.ids[one.turned[0] :]
        if [position.pick.id for position in positions[: len(again)]] != again:
            return []  # the server wrote a different answer this time, so the known tokens cannot be continued
        return positions[len(again) :]


class _Last(TgiEvent):
    """An event of a stream; the last event has the whole text."""

    generated_text: str | None = None


class TgiProbeClient(ProbeClient):
    """The probe's client for TGI, which sends additional request fields as `parameters`."""

    forcing = (lambda text: {"grammar": {"type": "regex", "value": re.escape(text)}},)

    def __init__(self, transport: Transport, client: TgiClient) -> None:
        super().__init__(transport, client.facts.info.model)
        self._client = client

    async def send(self, request: RawRequest, usage: Usage) -> list[RawReply]:
        """Send a request with a single text."""
        prompts, heat = request.prompts, request.temperature
        if len(prompts) != 1 or not isinstance(prompts[0], str):
            raise self.unable("/generate takes one text at a time")
        sampling: dict[str, object] = {"do_sample": True, "temperature": heat} if heat else {}
        body = {
            "inputs": prompts[0],
            "parameters": {**parameters(request.limit, request.top), **sampling, **request.fields},
        }
        async with self._transport.stream("/generate_stream", body, usage=usage) as stream:
            events = [parse(_Last, event, self._transport.endpoint) async for event in stream]
        last = events[-1] if events else None
        details = last.details if last else None
        read = details.input_length if details else None
        usage.bill(read or 0, len(events))
        return [
            RawReply(
                (last.generated_text or "") if last else "",
                [self._client.position(event, check=False) for event in events],
                read,
                written=len(events),
                ended=details is not None and details.finish_reason == "eos_token",
            )
        ]

    async def score(self, text: str, usage: Usage) -> RawScores:
        """Score a text with `decoder_input_details`, which reports only the probabilities of the text's own tokens."""
        own = await self._client.encode(text)
        body = {"inputs": text, "parameters": parameters(1, self._client.facts.top, prefill=True)}
        try:
            answer = await self._transport.post("/generate", body, usage=usage)
        except InvalidRequestError as error:
            raise self.unable(f"decoder_input_details is refused: {error.args[0]}") from error
        details = parse(TgiAnswer, answer, self._transport.endpoint).details
        usage.bill(len(own.all), details.generated_tokens)
        if not details.prefill:
            raise self.unable("decoder_input_details is ignored: the answer does not show the tokens of the prompt")
        if [word.id for word in details.prefill] != own.all:
            raise self.unable("the tokens of the prompt are not those of /tokenize")
        shown = zip(details.prefill[own.special :], own.data, strict=False)
        positions = [Position(Choice(word.id, Token(data, word.prob))) for word, data in shown]
        return RawScores("prefill", positions, own.special)


class Tgi(Engine[TgiFacts]):
    """A model served by TGI. See `contract.Provider`.

    Args:
        url: the server's URL.
        tokenizer: the model's own tokenizer, in any form that `load_tokenizer` accepts. It only splits text into words
            (`contract.WordSplitter`), because the server encodes text.
        options: as in `engine.Engine`. `model` is compared with the server's model. `extra_body` is merged into the
            `parameters` of every generation, e.g. `{"adapter_id": "name"}`.

    Raises:
        ValueError: `extra_body` sets a field that the fusion controls, or `tokenizer` cannot be read.
    """

    _facts_type = TgiFacts
    _ready_route = "/health"
    _idle = MANY_IDLE

    def __init__(self, url: str, *, tokenizer: object = None, **options: Unpack[EngineOptions]) -> None:
        super().__init__(url, owned=OWNED, strategy=None, tokenizer=tokenizer, **options)
        self._client = TgiClient(self._transport, self._extra)

    @property
    def encodes_locally(self) -> bool:
        """False, because the server encodes."""
        return False

    async def propose(
        self,
        context: Context,
        questions: Sequence[Question] | None,
        *,
        alternatives: int = 0,  # noqa: ARG002 - none are listed
        usage: Usage,
    ) -> list[Proposal | None]:
        """Send one request for each place, several at a time; see `contract.Provider`."""
        await self.facts()
        questions = await self._places(context, questions)
        return await _TgiRounds(self._client, context, usage).propose(questions, "singles", usage)

    async def score(
        self,
        context: Context,
        *,
        alternatives: int = 0,  # noqa: ARG002
        end: bool = False,
        usage: Usage,
    ) -> list[Token]:
        """Score a text in one request; see `contract.Provider`.

        The end of sequence has a probability if the server lists it and it has ended an earlier answer.
        """
        prompt, text = context.prompt, context.text
        if not (await self.facts()).prefill:
            raise self._client.unscored()
        whole = prompt + sendable(text)
        own = await self._client.encode(whole)
        if await self._client.room(whole, 1) < 1:
            raise await self._client.too_long(whole)
        scored, last = await self._client.prefill(whole, own, usage)
        return within(scored, len(prompt.encode())) + ([last] if end else [])

    async def tokenize(self, text: str) -> list[Piece]:
        """Encode a text on the server. If several tokens share a character, all of its bytes are in the last token."""
        await self.facts()
        return await self._client.pieces(text)

    async def begun(self, prompt: str) -> str:
        """Strip the beginning of sequence, which the server puts before every text, from a rendered prompt."""
        await self.facts()
        return await self._client.without_beginning(prompt)

    async def probe_client(self) -> TgiProbeClient:
        """Return a client without checks, for the probe."""
        await self.facts()
        return TgiProbeClient(self._transport, self._client)

    async def facts(self) -> TgiFacts:
        """Return the facts about the server, and pass them to the client of this view."""
        self._client.facts = await self.discovered()
        return self._client.facts

    async def _discover(self) -> TgiFacts:
        return await self._client.discover(await self._info())

    async def _draft(self, context: Context, max_tokens: int, options: DraftOptions, usage: Usage) -> IdsDraft:
        stream = _TgiStream(self._client, context, usage, options.alternatives)
        return IdsDraft(stream, (), max_tokens, alone=not context.text, repeats=True)

    async def _for_chat(self) -> Self:
        """Return a view in which special tokens in an answer are text."""
        view = copy(self)
        view._client = copy(self._client)
        view._client.shows = True
        return view

    async def _render(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),  # noqa: ARG002 - the route takes none
    ) -> str:
        return await self._client.render(messages)

    async def _served(self, model: str) -> dict[str, Any]:
        """Request the server's description of the model from `/info`."""
        info = await self._info()
        return {"id": info.model_id, "version": info.version} if info.model_id == model else {}

    async def _info(self) -> TgiInfo:
        info = await self._client.info()
        if self._model not in (None, info.model_id):
            words = f"no model {self._model!r}; the server has {info.model_id!r}"
            raise ModelChoiceError(words, endpoint=self._transport.endpoint, hint="Give that as `model`, or none.")
        return info
