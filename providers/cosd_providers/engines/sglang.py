"""Adapter for SGLang, over its native `/generate`, `/v1/tokenize` and `/v1/detokenize`.

These facts were observed on 0.5.23, run on the CPU, or read in the source:

- A prompt is a text or ids, or a list of either. The server adds the model's special tokens to a text, but nothing to
  ids. This engine always sends ids. Every token of a prompt and an answer comes with its id, so that tokens never have
  to be compared by their text.
- `logprob_start_len` is the position from which the tokens of a prompt have probabilities. The token at that position
  has none, because its probability is computed at the token before it. All earlier tokens may come from the prefix
  cache, so scoring the end of a text costs little, however long the text before it is.
- In the probabilities of a prompt, the vocabulary's last id is shown as 0, but with the correct probability.
- The requested number of most probable tokens is listed in order, with ids. At temperature 0, the probabilities come
  from the raw softmax. Some versions report 1 and 0 instead, and are refused.
- Each event of a stream repeats all earlier tokens, unless the server was started with
  `--incremental-streaming-output`.
- The end of sequence is a token of the answer; `finish_reason` is then `"stop"` with its id. But an answer of the
  requested length always has the reason `"length"`, even if its last token is an end. So a special token that has not
  yet ended an answer is forced once, to find out whether it is an end. A plain token that only the model's
  configuration makes an end is recognised after it has ended an answer.
- A request is refused if prompt and answer together do not fit into the context. Near the end of the context, the
  answer is cut off.
- With `--allow-auto-truncate`, the server silently truncates a prompt. The reported number of prompt tokens reveals
  this.
- Fields that a request leaves out fall back to `--preferred-sampling-params`.
- The server crashes if a request asks for more tokens per position than the vocabulary has.
- `token_ids_logprob` returns the probabilities of any tokens after a text, such as the ends of sequence. No route
  reports which tokens are ends. So tokens with common names of ends, and tokens of the chat template, are forced, to
  find out whether they are ends.
- A `sampling_seed` is honoured only with `--enable-deterministic-inference`, which `/server_info` reports; without this
  option, the engine does not draw. The random numbers depend on seed and position; in a batch with greedy requests, the
  server uses other random numbers. (This is from the source, because the mode does not exist on the CPU.)
- Since 2026, `/v1/tokenize` renders messages like the chat route; `/v1/detokenize` turns the resulting ids into text.
- The text shown for a token is decoded separately. In this text, a part of a character is U+FFFD, and with a
  SentencePiece vocabulary the space before a word is missing. The text of a whole answer is correct. So a token's bytes
  are known if both texts agree. Any other token is decoded after a plain token, together with earlier tokens that leave
  its character unfinished (`TokenTexts`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from pydantic import BaseModel

from cosd_providers.concurrency import concurrently
from cosd_providers.contract import ServerInfo
from cosd_providers.drafting import billed
from cosd_providers.engine import (
    Models,
    answer_cue,
    ask_only,
    broken_off,
    choose,
    miscounted,
    no_probs,
    own_stop,
)
from cosd_providers.engines.openai.dialects import DIALECTS
from cosd_providers.engines.openai.probe_client import ProbeClient, RawReply, RawRequest, RawScores
from cosd_providers.engines.token_ids import TokenIdsEngine
from cosd_providers.engines.token_ids_client import (
    GREEDY,
    LETTERS,
    MOST,
    Encoding,
    IdAnswer,
    IdScoring,
    IdStep,
    ListedId,
    TokenIdsClient,
    TokenIdsFacts,
    TokenTexts,
    abilities,
    beginning_of,
    id_step,
    others_than,
)
from cosd_providers.errors import ContextLengthError, InvalidRequestError, ResponseError, StatusError, UnsupportedError
from cosd_providers.greedy import ROUNDING, TIES, Position, check_greedy, check_own, prob
from cosd_providers.http.transport import MANY_IDLE, Transport
from cosd_providers.parsing import LogProb, parse
from cosd_providers.sampling import DraftOptions
from cosd_providers.usage import Usage

_GREEDY: dict[str, object] = {
    **GREEDY,
    "stop_token_ids": [],
    "min_new_tokens": 0,
    "spaces_between_special_tokens": True,
    "no_stop_trim": False,
}
"""Fields for greedy decoding. Missing fields fall back to the server's `--preferred-sampling-params`."""

_OWNED = {
    *("custom_logit_processor", "input_embeds", "input_ids", "logprob_start_len", "lora_path", "return_logprob"),
    *("return_text_in_logprobs", "sampling_params", "session_params", "stream", "text", "token_ids_logprob"),
    "top_logprobs_num",
}
"""Fields that a user's `extra_body` may not set."""

_LIST = 64  # greatest number of prompts in one request
_STREAMED = 256  # tokens per stream: each event repeats all earlier tokens, so traffic grows quadratically
_NOTHING = -1e4  # log probabilities of a softmax are never below this value


Triple = tuple[LogProb | None, int, str | None]
"""A token: its log probability, its id, and its separately decoded text."""


class SglangFinish(BaseModel):
    """The reason for an answer's end: `"stop"` or `"length"`."""

    type: str
    # if the reason is `"stop"`, the id, the ids or the text that ended the answer
    matched: int | str | list[int] | None = None


class Meta(BaseModel):
    """The parts of an answer other than its text. The first entry of each `input_...` list has no probability."""

    finish_reason: SglangFinish | None = None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    input_token_logprobs: list[Triple] | None = None
    input_top_logprobs: list[list[Triple] | None] | None = None
    output_token_logprobs: list[Triple] | None = None
    output_top_logprobs: list[list[Triple] | None] | None = None
    output_token_ids_logprobs: list[list[Triple] | None] | None = None


class SglangAnswer(BaseModel):
    """An answer of `/generate`, or an event of its stream."""

    text: str | None = None
    meta_info: Meta


class _Card(BaseModel):
    """The response of `/model_info`."""

    model_path: str
    is_generation: bool = True


class _Running(BaseModel):
    """The response of `/server_info`."""

    version: str | None = None
    max_req_input_len: int | None = None
    enable_deterministic_inference: bool = False


class _Encoded(BaseModel):
    """The response of `/v1/tokenize` to a list of texts."""

    tokens: list[list[int]]


class _DecodedRuns(BaseModel):
    """The response of `/v1/detokenize` to a list of runs of ids."""

    text: list[str]


def _checked(answer: SglangAnswer, endpoint: str, read: int) -> SglangAnswer:
    """Check that the server read all `read` tokens of the prompt, and that the answer has not ended improperly.

    Raises:
        UnsupportedError: the answer ended at a stop string from the server's own settings.
        ResponseError: the numbers of the model are not finite.
        ContextLengthError: the server read only a part of the prompt.
    """
    meta = answer.meta_info
    finish = meta.finish_reason
    if finish is not None and finish.type == "stop" and isinstance(finish.matched, str):
        if finish.matched.startswith("NaN"):
            raise ResponseError("the model's numbers are not finite (NaN)", endpoint=endpoint, retryable=True)
        raise own_stop(endpoint)
    if meta.prompt_tokens < read:
        words = f"the server cut the text: it read {meta.prompt_tokens} of {read} tokens"
        hint = "Shorten the prompt, or start the server without --allow-auto-truncate."
        raise ContextLengthError(words, endpoint=endpoint, hint=hint)
    return answer


def _steps(answer: SglangAnswer, endpoint: str, *, since: int = 0, sampled: bool = False) -> list[IdStep]:
    """Check and convert the tokens of an answer, or of an event that leaves out the first `since` tokens.

    Raises:
        UnsupportedError: probabilities are missing or invalid, or decoding is not greedy (unless `sampled`).
        ResponseError: the server chose a token without a usable probability.
    """
    meta = answer.meta_info
    entries, tops = meta.output_token_logprobs or [], meta.output_top_logprobs or []
    if len(entries) != meta.completion_tokens - since or len(tops) != len(entries):
        raise _missing(endpoint, any_=bool(entries))
    return [_step(entry, top or [], endpoint, sampled=sampled) for entry, top in zip(entries, tops, strict=True)]


def _missing(endpoint: str, *, any_: bool) -> UnsupportedError:
    if not any_:
        return no_probs("return_logprob", endpoint)
    words = "the server gives probabilities for some of its tokens only"
    hint = "Some versions do so where they decode speculatively: start it without --speculative-algorithm."
    return UnsupportedError(words, endpoint=endpoint, hint=hint)


def _step(entry: Triple, top: Sequence[Triple], endpoint: str, *, sampled: bool = False) -> IdStep:
    """Check and convert a token that the server chose; unless `sampled`, it must be the most probable token."""
    own, token_id, text = entry
    best = max((value for value, _, _ in top if value is not None), default=None)
    if best is None and own is not None:
        raise _missing(endpoint, any_=True)
    check_own(own, endpoint)
    assert own is not None and best is not None  # the checks above ensure this
    values = [value for value, _, _ in top]
    if not sampled and own == 0 and len(top) > 1 and all(value is None or value < _NOTHING for value in values[1:]):
        words = "at temperature 0 the server gives its own token the probability 1, and all others 0"
        raise UnsupportedError(words, endpoint=endpoint, hint=DIALECTS["sglang"].raw)
    if not sampled:
        check_greedy(prob(own), [prob(best)], endpoint)
    return id_step((token_id, prob(own) or 0.0, text or ""), _listed(top))


def _listed(top: Sequence[Triple]) -> list[ListedId]:
    """Convert the tokens listed at one position."""
    return [(token_id, prob(value) or 0.0, text or "") for value, token_id, text in top]


def scored(answer: SglangAnswer, ids: Sequence[int], first: int, endpoint: str) -> list[tuple[Triple, list[Triple]]]:
    """Return a prompt's tokens from position `first` on, each with the most probable tokens at its position.

    Some versions send entries for the whole prompt, and other versions only from the requested position on. In either
    case, the last entry belongs to the prompt's last token, and each entry contains its token's id. The vocabulary's
    last id is shown as 0.

    Raises:
        UnsupportedError: entries are missing, or do not belong to the prompt's tokens.
    """
    meta = answer.meta_info
    entries, tops = meta.input_token_logprobs or [], meta.input_top_logprobs or []
    count = len(ids) - first
    if len(entries) < count or len(tops) != len(entries):
        words = "the server does not give the probabilities of a text, although asked (logprob_start_len)"
        raise UnsupportedError(words, endpoint=endpoint, hint="Use strategy='list'.")
    found = [(entry, top or []) for entry, top in zip(entries, tops, strict=True)][len(entries) - count :]
    pairs = zip(found, _shown(ids)[first:], ids[first:], strict=True)
    if not all(_belongs(entry, top, {shown, own}, own) for (entry, top), shown, own in pairs):
        words = "the probabilities that the server gives for a text do not belong to its tokens"
        raise UnsupportedError(words, endpoint=endpoint, hint="Use strategy='list'.")
    return found


def _shown(ids: Sequence[int]) -> list[int]:
    """The ids as the server shows them if the greatest is the vocabulary's last id, which is shown as 0."""
    last = max(ids, default=0)
    return [0 if one == last else one for one in ids]


def _belongs(entry: Triple, top: Sequence[Triple], shown: set[int], expected: int) -> bool:
    """True if an entry has one of the `shown` ids, and its probability is consistent with the listed tokens."""
    own, token_id, _ = entry
    values = [value for value, _, _ in top if value is not None]
    if token_id not in shown or not values:
        return False
    listed = next((value for value, other, _ in top if other == expected), None)
    if listed is None:  # the token must be less probable than all listed tokens
        return own is None or own <= min(values) + ROUNDING
    return own is not None and abs(own - listed) < ROUNDING


class Events:
    """Reader of a stream.

    Each event contains all tokens so far, or only the new tokens if the server runs with
    `--incremental-streaming-output`.
    """

    def __init__(self, endpoint: str, read: int, *, sampled: bool = False) -> None:
        self.seen = 0  # number of tokens so far
        self.finish: str | None = None  # the reason for the answer's end; None before the end
        self._endpoint = endpoint
        self._read = read  # number of tokens in the prompt
        self._sampled = sampled  # whether tokens are drawn at random; a drawn token is not always the most probable one
        self._text = ""

    def feed(self, answer: SglangAnswer) -> tuple[list[IdStep], str]:
        """Read an event, and return its new tokens and its new text."""
        meta = _checked(answer, self._endpoint, self._read).meta_info
        if meta.finish_reason is not None:
            self.finish = meta.finish_reason.type
        if 0 < meta.completion_tokens <= self.seen:  # the event is repeated, or ends the answer without a token
            return [], ""
        entries = meta.output_token_logprobs or []
        whole = len(entries) == meta.completion_tokens
        text = answer.text or ""
        found = _steps(answer, self._endpoint, since=0 if whole else self.seen, sampled=self._sampled)
        if whole:
            found = found[self.seen :]
            text = text.removeprefix(self._text)
        self._text += text
        self.seen = meta.completion_tokens
        return found, text


class SglangClient(TokenIdsClient):
    """Requests to one SGLang server."""

    least = 2  # two listed tokens suffice to see whether decoding is greedy
    streamed = _STREAMED
    cut_is_full = True
    keeps_seed = True

    def body(self, wanted: int, *, top: int = TIES, **fields: object) -> dict[str, object]:
        """Build the body of a greedy request."""
        sampling = {**_GREEDY, "max_new_tokens": wanted, **cast("dict[str, object]", fields.pop("sampling", {}))}
        own = {"return_logprob": True, "return_text_in_logprobs": True, "top_logprobs_num": top}
        adapter = {} if self.adapter is None else {"lora_path": self.adapter}
        return {**self._extra, **own, **adapter, "sampling_params": sampling, **fields}

    async def batch(
        self, prompts: Sequence[list[int]], wanted: int, usage: Usage, *, singly: bool = False, **more: Any
    ) -> list[SglangAnswer]:
        """Request answers to several prompts, in order, with lists of prompts or (`singly`) a few at a time."""
        size = 1 if singly else _LIST
        parts = [prompts[at : at + size] for at in range(0, len(prompts), size)]
        found = await concurrently([partial(self._list, part, wanted, usage, more) for part in parts])
        return [answer for part in found for answer in part]

    async def _list(
        self, prompts: Sequence[list[int]], wanted: int, usage: Usage, more: Mapping[str, Any]
    ) -> list[SglangAnswer]:
        endpoint = self.transport.endpoint
        fields: dict[str, Any] = {"logprob_start_len": -1, **more}
        asked = prompts[0] if len(prompts) == 1 else [*prompts]
        answers = await self.unchecked(wanted, usage, input_ids=asked, **fields)
        if len(answers) != len(prompts):
            raise miscounted(len(prompts), len(answers), endpoint)
        return [_checked(answer, endpoint, len(ids)) for answer, ids in zip(answers, prompts, strict=True)]

    async def unchecked(self, wanted: int, usage: Usage, **fields: Any) -> list[SglangAnswer]:
        """Send one request, and return the answers unchecked; `fields` are as in `body`."""
        with billed(usage, lambda: (_count(fields.get("input_ids", ())), False)) as bill:
            data = await self.transport.post("/generate", self.body(wanted, **fields), usage=usage)
            listed = cast("list[object]", data) if isinstance(data, list) else [cast("object", data)]
            answers = [parse(SglangAnswer, one, self.transport.endpoint) for one in listed]
            for meta in (answer.meta_info for answer in answers):
                bill.read += meta.prompt_tokens
                bill.written += meta.completion_tokens
                bill.cached += meta.cached_tokens
        return answers

    async def written(
        self, prompts: Sequence[list[int]], wanted: int, usage: Usage, *, singly: bool = False, top: int = TIES
    ) -> list[IdAnswer]:
        """See `TokenIdsClient.written`."""
        endpoint, found = self.transport.endpoint, list[IdAnswer]()
        for answer in await self.batch(prompts, wanted, usage, singly=singly, top=top):
            finish = answer.meta_info.finish_reason
            stopped = finish is not None and finish.type == "stop"
            found.append(IdAnswer(_steps(answer, endpoint), answer.text or "", stopped))
        return found

    async def scores(
        self, ids: list[int], first: int, usage: Usage, *, top: int = TIES, ends: Sequence[int] = ()
    ) -> IdScoring:
        """See `TokenIdsClient.scores`.

        The server computes a token's probability at the token before it. All earlier tokens may come from the cache.
        """
        if first >= len(ids) and not ends:
            return IdScoring()
        more: dict[str, Any] = {"token_ids_logprob": [*ends]} if ends else {}
        start = first - 1 if first < len(ids) else -1
        [answer] = await self.batch([ids], 1, usage, top=top, logprob_start_len=start, **more)
        endpoint = self.transport.endpoint
        told = answer.meta_info.output_token_ids_logprobs
        found = scored(answer, ids, first, endpoint) if first < len(ids) else []
        shown = zip(ids[first:], found, strict=True) if found else ()
        own = [(token_id, prob(value) or 0.0, text) for token_id, ((value, _, text), _) in shown]
        after = next(iter(_steps(answer, endpoint)), None)
        return IdScoring(own, [_listed(tops) for _, tops in found], after, _listed((told or [None])[0] or []))

    async def best_of(self, ids: list[int], able: Sequence[int], usage: Usage) -> list[ListedId]:
        """See `TokenIdsClient.best_of`. The probabilities of all the ids are requested."""
        [answer] = await self.batch([ids], 1, usage, top=MOST, token_ids_logprob=[*able])
        told = answer.meta_info.output_token_ids_logprobs
        if not told or not told[0]:
            raise no_probs("token_ids_logprob", self.transport.endpoint)
        best = max(_listed(told[0]), key=lambda one: one[1])
        [step] = _steps(answer, self.transport.endpoint)
        return [best, *others_than(best[0], [(step.id, step.prob, step.text), *step.others])]

    async def encode_texts(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode all texts in one request."""
        body = {"model": self.model, "prompt": list(texts), "add_special_tokens": False}
        found = parse(_Encoded, await self.transport.post("/v1/tokenize", body), self.transport.endpoint).tokens
        if len(found) != len(texts):
            raise miscounted(len(texts), len(found), self.transport.endpoint, what="texts were sent")
        return [Encoding(tokens=ids) for ids in found]

    async def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text, with special tokens shown."""
        [text] = await self.decode_runs([ids])
        return text

    async def decode_runs(self, runs: Sequence[Sequence[int]]) -> list[str]:
        """Decode each run of ids to text, with special tokens shown."""
        return await self._decoded(runs, skip=False)

    async def decode_plain(self, runs: Sequence[Sequence[int]]) -> list[str]:
        """Decode each run of ids to text, without special tokens."""
        return await self._decoded(runs, skip=True)

    async def _decoded(self, runs: Sequence[Sequence[int]], *, skip: bool) -> list[str]:
        body = {"model": self.model, "tokens": [list(run) for run in runs], "skip_special_tokens": skip}
        found = parse(_DecodedRuns, await self.transport.post("/v1/detokenize", body), self.transport.endpoint).text
        if len(found) != len(runs):
            raise miscounted(len(runs), len(found), self.transport.endpoint, what="runs of tokens were sent")
        return found

    async def templated(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Encoding:
        """Render a conversation with the model's chat template, up to the answer."""
        body = {"model": self.model, "messages": [*messages], **({"tools": [*tools]} if tools else {})}
        found = await self.transport.post("/v1/tokenize", body)
        return parse(Encoding, found, self.transport.endpoint)

    async def ends(self, token_id: int, usage: Usage) -> bool:
        """Force a token, and return True if it ends the answer.

        The request allows two tokens, because an answer that reaches its limit always has the reason `"length"`.
        """
        forced = {"logit_bias": {str(token_id): 100.0}}
        [answer] = await self.batch([[self.facts.anchor]], 2, usage, sampling=forced)
        finish = answer.meta_info.finish_reason
        return finish is not None and finish.type == "stop" and answer.meta_info.completion_tokens == 1

    async def events(
        self, ids: Sequence[int], wanted: int, options: DraftOptions, usage: Usage, attempt: int
    ) -> AsyncGenerator[IdAnswer, None]:
        """See `TokenIdsClient.events`."""
        seed = {} if options.seed is None else {"sampling_seed": options.seed}
        more: dict[str, Any] = {"sampling": {"temperature": 1, **seed}} if options.sampled else {}
        more |= {"input_ids": [*ids], "logprob_start_len": -1, "stream": True}
        body = self.body(wanted, top=self.drafted(options.alternatives), **more)
        events = Events(self.transport.endpoint, len(ids), sampled=options.sampled)
        with billed(usage, lambda: (len(ids), False)) as bill:
            async with self.transport.stream("/generate", body, usage=usage, attempt=attempt) as answers:
                async for data in answers:
                    answer = parse(SglangAnswer, data, self.transport.endpoint)
                    meta = answer.meta_info
                    bill.read, bill.written, bill.cached = (
                        meta.prompt_tokens,
                        meta.completion_tokens,
                        meta.cached_tokens,
                    )
                    found, text = events.feed(answer)
                    yield IdAnswer(found, text, stopped=events.finish == "stop")
                    if events.seen >= wanted:
                        return
            if events.finish is None:
                raise broken_off(self.transport.endpoint)


def _count(ids: Sequence[int | Sequence[int]]) -> int:
    """The number of ids in a prompt, or in a list of prompts."""
    return sum(1 if isinstance(one, int) else len(one) for one in ids)


class Sglang(TokenIdsEngine[SglangClient]):
    """A model served by SGLang. See `contract.Provider`.

    Args:
        url, tokenizer, add_special_tokens, options: see `TokenIdsEngine`.
        strategy: the kind of request for proposals (`strategies.Strategy`). The default is `"echo"`, which scores the
            text if there are several places to judge, and benefits from the server's cache. All strategies return the
            same answers.
    """

    _client_type = SglangClient
    _owned = _OWNED
    _several = "echo"
    _ready_route = "/v1/models"
    _idle = MANY_IDLE

    async def probe_client(self) -> SglangProbeClient:
        """Return a client without checks, for the probe."""
        await self.facts()
        return SglangProbeClient(self._client)

    async def _discover(self) -> TokenIdsFacts:
        transport, client = self._transport, self._client
        ask = partial(ask_only, transport, looks="SGLang", url="`sglang serve`")
        if not (await ask(_Card, "/model_info")).is_generation:
            words = "the server was started with a model that writes no text (--is-embedding)"
            raise UnsupportedError(words, endpoint=transport.endpoint)
        running = await _running(transport)
        listed = await ask(Models, "/v1/models")
        name = choose(listed.data, self._model, transport.endpoint)
        client.model = name.id
        plain = await _encoded(client)
        if not plain:
            raise ResponseError("the encoding of a letter has no token", endpoint=transport.endpoint)
        read = await _read(client)
        beginning = beginning_of(read, [*zip(plain, _shown(plain), strict=True)])
        if beginning is None:
            raise client.unlike("/v1/tokenize")
        anchored, shown = ("", "") if client.tokenizer else await client.decode_runs([plain[-1:], plain])
        info = ServerInfo(
            endpoint=transport.endpoint,
            engine="sglang",
            model=name.id,
            build=running.version,
            context=name.max_model_len or next((one.max_model_len for one in listed.data if one.max_model_len), None),
            capabilities=abilities(MOST, sampling=running.enable_deterministic_inference),
            longest_prompt=None if running.max_req_input_len is None else running.max_req_input_len - 1,
            answer_cue=await answer_cue(client.template),
        )
        adapter = None if name.parent is None else name.id
        spaced = await client.spaces(plain, shown)
        facts = TokenIdsFacts(info, beginning, plain[-1], anchored, spaced=spaced, adapter=adapter)
        return await client.with_ends(facts)


async def _running(transport: Transport) -> _Running:
    """Request the server's version and limits; all fields have their defaults if the server hides them."""
    try:
        return parse(_Running, await transport.get("/server_info"), transport.endpoint)
    except (StatusError, ResponseError):
        return _Running()


async def _encoded(client: SglangClient) -> list[int]:
    try:
        return (await client.ids([LETTERS]))[0]
    except InvalidRequestError as error:
        words = "the server does not encode text (/v1/tokenize), as SGLang has done since late 2025"
        hint = "Update it, or ask it by OpenAI's protocol: engine='openai', dialect='sglang'."
        raise UnsupportedError(words, endpoint=client.transport.endpoint, hint=hint) from error


async def _read(client: SglangClient) -> list[int]:
    """Return the server's encoding of `LETTERS`, after checking that its ids and the next token have probabilities."""
    endpoint = client.transport.endpoint
    body = client.body(1, text=LETTERS, logprob_start_len=0)
    answer = _checked(parse(SglangAnswer, await client.transport.post("/generate", body), endpoint), endpoint, 0)
    _steps(answer, endpoint)
    entries = answer.meta_info.input_token_logprobs
    if not entries:
        words = "the server does not give the probabilities of a text, although asked (logprob_start_len)"
        raise UnsupportedError(words, endpoint=endpoint)
    return [token_id for _, token_id, _ in entries]


class SglangProbeClient(ProbeClient):
    """The probe's client for an SGLang server."""

    forcing = (lambda text: {"regex": re.escape(text)},)

    def __init__(self, client: SglangClient) -> None:
        super().__init__(client.transport, client.model)
        self._client = client

    async def send(self, request: RawRequest, usage: Usage) -> list[RawReply]:
        """Send one request; `request.fields` are sent as sampling parameters."""
        sent = [one if isinstance(one, str) else [*self._client.facts.beginning, *one] for one in request.prompts]
        key = "text" if all(isinstance(one, str) for one in sent) else "input_ids"
        asked: dict[str, Any] = {key: sent[0] if len(sent) == 1 else sent, "logprob_start_len": -1}
        sampling = {"temperature": request.temperature, **request.fields}
        answers = await self._client.unchecked(request.limit, usage, top=request.top, sampling=sampling, **asked)
        return [await self._reply(answer, usage) for answer in answers]

    async def score(self, text: str, usage: Usage) -> RawScores:
        """Score a text as a prompt, from its first token on."""
        [answer] = await self._client.unchecked(1, usage, text=text, logprob_start_len=0)
        meta = answer.meta_info
        if not meta.input_token_logprobs:
            raise self.unable("logprob_start_len is ignored: the answer does not hold the tokens of the prompt")
        own = await self._positions(meta.input_token_logprobs, meta.input_top_logprobs, usage)
        before = len(self._client.facts.beginning)
        after = await self._positions(meta.output_token_logprobs or [], meta.output_top_logprobs, usage)
        return RawScores("logprob_start_len", own[before:], before, next(iter(after), None))

    async def _reply(self, answer: SglangAnswer, usage: Usage) -> RawReply:
        meta = answer.meta_info
        ended = meta.finish_reason is not None and meta.finish_reason.type == "stop"
        if ended and meta.output_token_logprobs:
            await TokenTexts(self._client, usage).ended(meta.output_token_logprobs[-1][1])
        positions = await self._positions(meta.output_token_logprobs or [], meta.output_top_logprobs, usage)
        read, cached = meta.prompt_tokens, meta.cached_tokens
        return RawReply(answer.text or "", positions, read, cached, meta.completion_tokens, ended)

    async def _positions(
        self, entries: Sequence[Triple], tops: Sequence[Sequence[Triple] | None] | None, usage: Usage
    ) -> list[Position]:
        """Convert an answer to positions; the bytes of all tokens are found from their ids."""
        strings = TokenTexts(self._client, usage)
        listed = [top or () for top in tops or [()] * len(entries)]
        runs = await strings.walk([token_id for _, token_id, _ in entries])
        await strings.know((*run, other) for run, top in zip(runs, listed, strict=False) for _, other, _ in top)
        return [
            Position(
                strings.choice(run, token_id, prob(own)),
                [strings.choice(run, other, prob(value)) for value, other, _ in top],
            )
            for run, (own, token_id, _), top in zip(runs, entries, listed, strict=False)
        ]
