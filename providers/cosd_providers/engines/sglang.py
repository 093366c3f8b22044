"""SGLang, by its native `/generate`, and `/v1/tokenize` and `/v1/detokenize`.

Observed on 0.5.23, run on the CPU, and read in the source of 0.4.9 to 0.5.23:

- A prompt is a text or ids, or a list of either; a text gets the model's special tokens, ids get nothing. Here it is
  always ids. Every token of prompt and answer comes with its id, so nothing is compared by its text.
- `logprob_start_len` is the place from which the tokens of a prompt get probabilities. The first of them has none: it
  was computed at the token before. All before that may come from the prefix cache, so one scored text, from the first
  place that is asked on, costs little however long the prompt is.
- In these probabilities the vocabulary's last id is shown as 0; its own probability is right.
- The most probable tokens are listed in order, with ids, as many as are asked for. At temperature 0 the probabilities
  are those of the raw softmax. Some versions gave 1 and 0 there: that is refused.
- A stream repeats in each event all before it, unless the server was started with `--incremental-streaming-output`.
- The end of sequence is a token of the answer. `finish_reason` is then `"stop"` with its id; but an answer that has all
  the tokens that were asked for ended for its `"length"`, whatever its last token is. A special token that was not
  seen to end an answer is forced once, to see. A plain token that ends a sequence by the model's configuration alone
  is known only once it did.
- A prompt and an answer that do not fit together are refused; near the end of the context the answer is cut.
- `--allow-auto-truncate` cuts a prompt in silence, which shows in the number of tokens read.
- Fields that a request leaves out fall back to `--preferred-sampling-params`.
- Asked for more of the most probable tokens than its vocabulary has, the server breaks down.
- `token_ids_logprob` gives the probabilities of any tokens behind a text, such as the ends of sequence. No route tells
  these: tokens with their common names, and those of the chat template, are forced, to see.
- A `sampling_seed` is used with `--enable-deterministic-inference` alone, which `/server_info` tells: else there are no
  samples. It is drawn by the seed and the place, and in a batch with greedy requests by other numbers. (Read in the
  source: the CPU has no such mode.)
- `/v1/tokenize` renders messages since 2026, as the chat route does; with `/v1/detokenize` that is a text.
- A token's text is shown decoded alone: a part of a character is U+FFFD there, and a SentencePiece vocabulary loses the
  space before a word. The text of a whole answer is right. So a token on which the two agree is known; any other is
  decoded behind a plain token, together with those before it that leave its character open (`TokenTexts`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, islice
from typing import Annotated, Any, cast

from pydantic import BaseModel, Field

from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Capabilities, Context, Piece, Proposal, Question, ServerInfo, Token
from cosd_providers.drafting import IdsDraft, Next
from cosd_providers.engine import (
    NO_TEMPLATE,
    Models,
    answer_cue,
    ask_only,
    broken_off,
    choose,
    miscounted,
    no_probs,
    own_stop,
)
from cosd_providers.engines.tokenizing import (
    Encoding,
    TokenizedFacts,
    TokenizingClient,
    TokenizingEngine,
)
from cosd_providers.errors import (
    ContextLengthError,
    InvalidRequestError,
    ProviderError,
    ResponseError,
    ServerError,
    StatusError,
    UnsupportedError,
)
from cosd_providers.greedy import (
    ROUNDING,
    TIES,
    Choice,
    Continuation,
    Position,
    boundaries,
    check_greedy,
    check_own,
    is_plain,
    keeps_spaces,
    prob,
    with_alternatives,
    with_listed,
    within,
)
from cosd_providers.http.transport import MANY_IDLE, Transport
from cosd_providers.parsing import parse
from cosd_providers.probe_client import ProbeClient, RawReply, RawRequest, RawScores
from cosd_providers.proposing import Rounds
from cosd_providers.sampling import DraftOptions
from cosd_providers.strategies import Strategy
from cosd_providers.text import sendable
from cosd_providers.usage import Usage

__all__ = ["Events", "Sglang", "SglangAnswer", "SglangClient", "SglangFacts", "TokenTexts", "Triple", "scored"]

_GREEDY: dict[str, object] = {
    "temperature": 0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "n": 1,
    "stop": [],
    "stop_token_ids": [],
    "ignore_eos": False,
    "min_new_tokens": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "no_stop_trim": False,
}
"""Greedy decoding. Fields left out fall back to the server's `--preferred-sampling-params`."""

_OWNED = {
    "custom_logit_processor",
    "input_embeds",
    "input_ids",
    "logprob_start_len",
    "lora_path",
    "return_logprob",
    "return_text_in_logprobs",
    "sampling_params",
    "session_params",
    "stream",
    "text",
    "token_ids_logprob",
    "top_logprobs_num",
}
"""Fields that a user's `extra_body` may not set."""

_LETTERS = "a \u00e9 a"  # whose last token is a plain one
_IT = {"looks": "SGLang", "url": "`sglang serve`"}
_LIST = 64  # prompts in one request
_STREAMED = 256  # tokens asked for in one stream: each event repeats all before it, so traffic grows with the square
_MANY = 64  # most probable tokens to ask for: a server breaks down where there are more than its vocabulary has
_LONGEST = 6  # tokens that are decoded together at once, to finish a character
_NOTHING = -1e4  # a logarithm below which no probability of a softmax lies
_QUOTED = 300  # characters of the server's own words
_LOST = "\ufffd"


# What comes back.

Triple = tuple[float | None, int, str | None]
"""A token: the logarithm of its probability, its id, and its text, decoded alone."""

_Listed = tuple[int, float, str]
"""A token beside another: its id, its probability, and its text, decoded alone."""

_Run = tuple[int, ...]
"""Ids that are decoded together: a token, with those before it that leave its character open."""


class SglangFinish(BaseModel):
    """The reason for an answer's end: `"stop"`, `"length"` or `"abort"`.

    Attributes:
        matched: of a stop the id that ended it, the text, or ids.
    """

    type: str
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


class Meta(BaseModel):
    """Everything beside the text. The first entry of `input_...` has no probability."""

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
    """An answer, or event, of `/generate`."""

    text: str | None = None
    meta_info: Meta


class _Card(BaseModel):
    """The answer of `/model_info`."""

    model_path: str
    is_generation: bool = True


class _Running(BaseModel):
    """The answer of `/server_info`."""

    version: str | None = None
    max_req_input_len: int | None = None
    enable_deterministic_inference: bool = False


class _Encoded(BaseModel):
    """The answer of `/v1/tokenize` to a list of texts."""

    tokens: list[list[int]]


class _DecodedRuns(BaseModel):
    """The answer of `/v1/detokenize` to a list."""

    text: list[str]


@dataclass(frozen=True, slots=True)
class SglangFacts(TokenizedFacts):
    """Facts of an SGLang server.

    Attributes:
        adapter: the adapter (LoRA) to use; None for the model itself.
        anchored: the text of the anchor.
        spelt: the bytes of runs of ids; None where a character is left open. Not part of a snapshot.
        begun: for an open run, the number of whole bytes before that character.
        lossy: ids with bytes that are no character by themselves, and not shown.
        specials: ids without text, with their names.
        ends: those of them that end a sequence.
    """

    adapter: str | None
    anchored: str
    spelt: Annotated[dict[_Run, bytes | None], Field(exclude=True)] = field(default_factory=dict[_Run, "bytes | None"])
    begun: Annotated[dict[_Run, int], Field(exclude=True)] = field(default_factory=dict[_Run, int])
    lossy: Annotated[set[int], Field(exclude=True)] = field(default_factory=set[int])
    specials: dict[int, str] = field(default_factory=dict[int, str])
    ends: set[int] = field(default_factory=set[int])


@dataclass(frozen=True, slots=True)
class _Step:
    """A token that the server took.

    Attributes:
        id: its id.
        prob: its probability.
        text: its text, decoded alone.
        best: the probability of the most probable tokens.
        tied: their ids.
        more: there may be more of them than were listed.
        others: the tokens listed beside it.
    """

    id: int
    prob: float
    text: str
    best: float
    tied: tuple[int, ...]
    more: bool
    others: tuple[_Listed, ...] = ()


def _checked(answer: SglangAnswer, endpoint: str, read: int) -> SglangAnswer:
    """An answer, or event, that ended as it should, to a prompt of `read` tokens.

    Raises:
        UnsupportedError: the server has a stop of its own.
        ProviderError: it was broken off.
    """
    meta = answer.meta_info
    finish = meta.finish_reason
    if finish is not None and finish.type not in ("stop", "length"):
        raise _aborted(meta, endpoint)
    if finish is not None and finish.type == "stop" and isinstance(finish.matched, str):
        if finish.matched.startswith("NaN"):
            raise ResponseError("the model's numbers are not finite (NaN)", endpoint=endpoint, retryable=True)
        raise own_stop(endpoint)
    if meta.prompt_tokens < read:
        words = f"the server cut the text: it read {meta.prompt_tokens} of {read} tokens"
        hint = "Shorten the prompt, or start the server without --allow-auto-truncate."
        raise ContextLengthError(words, endpoint=endpoint, hint=hint)
    return answer


def _aborted(meta: Meta, endpoint: str) -> ProviderError:
    """The server's own words for why it ended an answer, as an error."""
    finish = meta.finish_reason
    said = ((finish.message if finish else None) or "no reason was given")[:_QUOTED]
    status = finish.status_code if finish else None
    words = f"the server broke the answer off: {said}"
    if status == 400:
        long = "maximum allowed length" in said or "context length" in said
        return (ContextLengthError if long else InvalidRequestError)(words, endpoint=endpoint, status=status)
    if status is not None and status >= 500:
        return ServerError(words, endpoint=endpoint, status=status)
    return ResponseError(words, endpoint=endpoint, retryable=True)


def _steps(answer: SglangAnswer, endpoint: str, *, since: int = 0, sampled: bool = False) -> list[_Step]:
    """The tokens of an answer, or of an event whose `since` first ones were read before; greedy, or `sampled`.

    Raises:
        UnsupportedError: probabilities are missing, or are none.
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


def _step(entry: Triple, top: Sequence[Triple], endpoint: str, *, sampled: bool = False) -> _Step:
    """One token that the server took, which has to be the most probable one, or was drawn (`sampled`)."""
    own, token_id, text = entry
    best = max((value for value, _, _ in top if value is not None), default=None)
    if best is None and own is not None:
        raise _missing(endpoint, any_=True)
    check_own(prob(own), endpoint)
    assert own is not None and best is not None  # as it has a probability
    values = [value for value, _, _ in top]
    if not sampled and own == 0 and len(top) > 1 and all(value is None or value < _NOTHING for value in values[1:]):
        words = "what the server gives as probabilities of greedy decoding is 1 for its own token and 0 for all others"
        hint = "Update SGLang, or start it with SGLANG_RETURN_ORIGINAL_LOGPROB=1 (older: RETURN_ORIGINAL_LOGPROB=1)."
        raise UnsupportedError(words, endpoint=endpoint, hint=hint)
    if not sampled:
        check_greedy(prob(own), [prob(best)], endpoint)
    tied = tuple(sorted(other for value, other, _ in top if value == best))
    others = tuple(_others(top, token_id))
    return _Step(token_id, prob(own) or 0.0, text or "", prob(best) or 0.0, tied, len(tied) == len(top), others)


def scored(answer: SglangAnswer, ids: Sequence[int], first: int, endpoint: str) -> list[tuple[Triple, list[Triple]]]:
    """The prompt's tokens from place `first` on: each as it is, and the most probable ones at its place.

    Some versions send entries for the whole prompt, others from the place that was asked for: the last one is the
    prompt's last, and each has its id. The vocabulary's last id is shown as 0.

    Raises:
        UnsupportedError: they are missing, or do not belong to the tokens beside which they stand.
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
    """Ids as the server may show them in a prompt: the greatest one as 0, if it is the vocabulary's last."""
    last = max(ids, default=0)
    return [0 if one == last else one for one in ids]


def _belongs(entry: Triple, top: Sequence[Triple], shown: set[int], expected: int) -> bool:
    """An entry is of the expected token, shown by one of its ids, and the tokens beside it are of the same place."""
    own, token_id, _ = entry
    values = [value for value, _, _ in top if value is not None]
    if token_id not in shown or not values:
        return False
    listed = next((value for value, other, _ in top if other == expected), None)
    if listed is None:  # it is less probable than all that are listed
        return own is None or own <= min(values) + ROUNDING
    return own is not None and abs(own - listed) < ROUNDING


class Events:
    """One stream, whose events hold all tokens so far, or with `--incremental-streaming-output` only the new ones.

    Args:
        endpoint: for errors.
        read: tokens of the prompt.
        sampled: its tokens are drawn, and need not be the most probable ones.

    Attributes:
        seen: tokens so far.
        finish: why the answer ended; None before it did.
        last: everything beside the text in the last event.
    """

    def __init__(self, endpoint: str, read: int, *, sampled: bool = False) -> None:
        self.seen = 0
        self.finish: str | None = None
        self.last: Meta | None = None
        self._endpoint = endpoint
        self._read = read
        self._sampled = sampled
        self._text = ""

    def feed(self, answer: SglangAnswer) -> tuple[list[_Step], str]:
        """The new tokens of an event, and the new text."""
        meta = self.last = _checked(answer, self._endpoint, self._read).meta_info
        if meta.finish_reason is not None:
            self.finish = meta.finish_reason.type
        if 0 < meta.completion_tokens <= self.seen:  # an event that was sent once more, or that ends the answer alone
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

    def bill(self, usage: Usage) -> None:
        """Count the tokens read and written so far."""
        if self.last is not None:
            usage.bill(self.last.prompt_tokens, self.last.completion_tokens, self.last.cached_tokens)


# What is sent, and the bytes of ids.


class SglangClient(TokenizingClient[SglangFacts]):
    """Requests to one server.

    Args:
        transport: the server.
        extra: merged into every generation request.
        special_tokens: special tokens are put before a text, where the model has some.
        tokenizer: the model's own, where it was given: it is asked instead of the server.

    Attributes:
        lora: the adapter (LoRA) to use, if any.
    """

    lora: str | None = None

    def take(self, facts: SglangFacts) -> None:
        """Take the facts of the server."""
        super().take(facts)
        self.lora = facts.adapter

    @staticmethod
    def listed(alternatives: int) -> int:
        """The number of most probable tokens to ask for, so that ties and alternatives are among them."""
        return max(TIES, min(1 + alternatives, _MANY))

    async def _try_ends(self, ids: Sequence[int], usage: Usage) -> None:
        await TokenTexts(self, usage).know((token_id,) for token_id in ids)

    def body(self, wanted: int, *, top: int = TIES, **fields: object) -> dict[str, object]:
        """A greedy request."""
        sampling = {**_GREEDY, "max_new_tokens": wanted, **cast("dict[str, object]", fields.pop("sampling", {}))}
        own = {"return_logprob": True, "return_text_in_logprobs": True, "top_logprobs_num": top}
        adapter = {} if self.lora is None else {"lora_path": self.lora}
        return {**self._extra, **own, **adapter, "sampling_params": sampling, **fields}

    async def batch(
        self,
        prompts: Sequence[list[int]],
        wanted: int,
        usage: Usage,
        *,
        singly: bool = False,
        **more: Any,
    ) -> list[SglangAnswer]:
        """The answers to several prompts, in order: in one request, or with `singly` one for each, a few at once."""
        size = 1 if singly else _LIST
        parts = [prompts[at : at + size] for at in range(0, len(prompts), size)]
        found = await concurrently([partial(self._list, part, wanted, usage, more) for part in parts])
        return [answer for part in found for answer in part]

    async def _list(
        self, prompts: Sequence[list[int]], wanted: int, usage: Usage, more: Mapping[str, Any]
    ) -> list[SglangAnswer]:
        endpoint = self.transport.endpoint
        fields: dict[str, Any] = {"logprob_start_len": -1, **more}
        body = self.body(wanted, input_ids=prompts[0] if len(prompts) == 1 else [*prompts], **fields)
        data = await self.transport.post("/generate", body, usage=usage)
        listed = cast("list[object]", data) if isinstance(data, list) else [cast("object", data)]
        if len(listed) != len(prompts):
            raise miscounted(len(prompts), len(listed), endpoint)
        answers = [parse(SglangAnswer, one, endpoint) for one in listed]
        for answer in answers:
            meta = answer.meta_info
            usage.bill(meta.prompt_tokens, meta.completion_tokens, meta.cached_tokens)
        return [_checked(answer, endpoint, len(ids)) for answer, ids in zip(answers, prompts, strict=True)]

    async def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids that the model reads of each text, special tokens too."""
        beginning = self.facts.beginning if self._special_tokens else []
        return [[*beginning, *ids] for ids in await self.ids(texts)]

    async def encode_alone(self, texts: Sequence[str], *, strings: bool = False) -> list[Encoding]:  # noqa: ARG002
        """All texts by one request, or by the tokenizer that was given; without strings."""
        if self.tokenizer is not None:
            return [Encoding(tokens=[piece.id for piece in self.tokenizer.encode(text)]) for text in texts]
        body = {"model": self.model, "prompt": list(texts), "add_special_tokens": False}
        found = parse(_Encoded, await self.transport.post("/v1/tokenize", body), self.transport.endpoint).tokens
        if len(found) != len(texts):
            raise miscounted(len(texts), len(found), self.transport.endpoint, what="texts were sent")
        return [Encoding(tokens=ids) for ids in found]

    async def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens shown."""
        [text] = await self.decode_runs([ids], specials=True)
        return text

    async def decode_runs(self, runs: Sequence[Sequence[int]], *, specials: bool) -> list[str]:
        """The text of each run of ids; with `specials`, special tokens are shown."""
        body = {"model": self.model, "tokens": [list(run) for run in runs], "skip_special_tokens": not specials}
        found = parse(_DecodedRuns, await self.transport.post("/v1/detokenize", body), self.transport.endpoint).text
        if len(found) != len(runs):
            raise miscounted(len(runs), len(found), self.transport.endpoint, what="runs of tokens were sent")
        return found

    async def spell(self, ids: Sequence[int], text: str) -> bool:
        """Test whether the text of ids is this one; a tokenizer that was given is trusted."""
        return self.tokenizer is not None or await super().spell(ids, text)

    async def template(self, content: str) -> str | None:
        """A user's message, rendered; None where the server need not encode text for others."""
        return None if self.tokenizer is not None else await super().template(content)

    async def templated(self, messages: Sequence[Mapping[str, str]]) -> Encoding:
        """A conversation rendered by the model's chat template, up to the answer."""
        found = await self.transport.post("/v1/tokenize", {"model": self.model, "messages": list(messages)})
        return parse(Encoding, found, self.transport.endpoint)

    def without_template(self, error: StatusError) -> UnsupportedError | None:
        """The error of an older version, which has no such route, or asks for a prompt."""
        asks = isinstance(error, InvalidRequestError) and "prompt" in str(error.args[0]).lower()
        if not asks and error.status != 404:
            return None
        words = "this version of SGLang does not render messages (/v1/tokenize)"
        return UnsupportedError(words, endpoint=self.transport.endpoint, hint=f"Update it. Or: {NO_TEMPLATE}")

    async def ends(self, token_id: int, usage: Usage) -> bool:
        """An answer is over with this token: it is forced, to see.

        Two tokens are asked for: with the last one that was, an answer always ends for its length.
        """
        forced = {"logit_bias": {str(token_id): 100.0}}
        [answer] = await self.batch([[self.facts.anchor]], 2, usage, sampling=forced)
        finish = answer.meta_info.finish_reason
        return finish is not None and finish.type == "stop" and answer.meta_info.completion_tokens == 1

    def room(self, ids: Sequence[int], wanted: int) -> int:
        """Tokens that fit behind a prompt, at most `wanted`; 0 or less where none does."""
        context, longest = self.facts.info.context, self.facts.info.longest_prompt
        if longest is not None and len(ids) > longest:
            return 0
        return wanted if context is None else min(wanted, context - len(ids))

    def too_long(self, ids: Sequence[int]) -> ContextLengthError:
        """The error of a prompt behind which nothing fits."""
        longest = self.facts.info.longest_prompt or self.facts.info.context
        words = f"the text has {len(ids)} tokens, the server takes at most {longest}"
        return ContextLengthError(words, endpoint=self.transport.endpoint)

    async def stream(
        self, texts: TokenTexts, options: DraftOptions, ids: Sequence[int], left: int, attempt: int
    ) -> AsyncGenerator[Next, None]:
        """One request for a draft; see `drafting.IdsStream`.

        All requests of one that is drawn have the same seed: the server draws by it and the place in the text.
        """
        wanted, spaced, run = self.room(ids, min(left, _STREAMED)), False, texts.open_run
        if wanted < 1:
            raise self.too_long(ids)
        alternatives = options.alternatives
        top = max(2, min(1 + alternatives, _MANY))  # two, to see that it is greedy
        more: dict[str, Any] = {"sampling": _drawing(options)} if options.sampled else {}
        body = self.body(wanted, top=top, input_ids=[*ids], logprob_start_len=-1, stream=True, **more)
        events = Events(self.transport.endpoint, len(ids), sampled=options.sampled)
        try:
            stream = self.transport.stream("/generate", body, usage=texts.usage, attempt=attempt)
            async with stream as answers:
                async for data in answers:
                    found, text = events.feed(parse(SglangAnswer, data, self.transport.endpoint))
                    texts.learn(found, text, stopped=events.finish == "stop")
                    runs = await texts.walk([step.id for step in found], run)
                    for step, before, after in zip(found, runs, runs[1:], strict=False):
                        spaced = spaced or keeps_spaces(said for _, _, said in step.others)
                        choice = texts.choice(before, step.id, step.prob)
                        others = [texts.other(*one, spaced=spaced) for one in step.others] if alternatives else ()
                        run = texts.open_run = after
                        choose = with_listed if options.raw else with_alternatives
                        yield replace(choice, token=choose(Position(choice, others), alternatives))
                        if choice.token.end:
                            return
                    if events.seen >= wanted:
                        return
        finally:
            events.bill(texts.usage)
        if events.finish is None:
            raise broken_off(self.transport.endpoint)
        yield "full"  # it ended before it had all tokens, and not with the end of sequence


def _drawing(options: DraftOptions) -> dict[str, object]:
    """The sampling of a draft that is drawn."""
    seed: dict[str, object] = {} if options.seed is None else {"sampling_seed": options.seed}
    return {"temperature": 1, **seed}


_UNKNOWN = b"\xff unknown"
"""Stands for bytes that are not known yet; no text is like that."""


class TokenTexts:
    """The bytes of a server's ids; those found out are kept in `SglangFacts`.

    Args:
        client: the server's requests.
        usage: is billed.

    Attributes:
        open_run: ids at the end of a draft that leave a character open.
    """

    def __init__(self, client: SglangClient, usage: Usage) -> None:
        self.usage = usage
        self.open_run: _Run = ()
        self._client = client
        self._facts = client.facts

    def note(self, ids: Sequence[int], texts: Sequence[str], text: str) -> None:
        """Note tokens whose texts, each decoded alone, join to the text of all: they need no request."""
        if self._client.tokenizer is not None or _LOST in text or "" in texts:
            return
        if len(texts) == 1 and text == " " + texts[0]:
            texts = [text]
        if "".join(texts) == text:
            for token_id, one in zip(ids, texts, strict=True):
                self._facts.spelt.setdefault((token_id,), one.encode())

    def learn(self, found: Sequence[_Step], text: str, *, stopped: bool) -> None:
        """Note what the tokens of an answer or event and their text show; with `stopped` the last one is an end."""
        if found and stopped:
            self.ended(found[-1].id)
        shown = found[:-1] if stopped else found
        self.note([step.id for step in shown], [step.text for step in shown], text)

    async def walk(self, ids: Sequence[int], run: _Run = ()) -> list[_Run]:
        """The run of open ids before each token, and after the last one.

        Args:
            ids: some ids, in order.
            run: those before them that leave a character open.
        """
        ahead = range(1, _LONGEST)
        await self.know([*((token_id,) for token_id in ids), *((*run, *ids[:more]) for more in ahead if run)])
        runs = [run]
        for at, token_id in enumerate(ids):
            if run and self._says((*run, token_id)) is _UNKNOWN:
                await self.know((*run, *ids[at : at + more]) for more in ahead)
            run = self.after(run, token_id)
            runs.append(run)
        return runs

    async def spelt(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of ids that a text was encoded to: special tokens by their names.

        Of a token that leaves a character open, the bytes before that character are known: it gets one byte of the
        character, or none where an earlier token has it.
        """
        runs = await self.walk(ids)
        found: list[bytes] = []
        held: list[tuple[int, int]] = []  # open tokens, and how many bytes there are up to their end
        for run, token_id in zip(runs, ids, strict=False):
            if token_id in self._facts.specials:
                found.append(self._facts.specials[token_id].encode())
            elif (data := self._says((*run, token_id))) is None:
                held.append((len(found), self._facts.begun[*run, token_id] + 1))
                found.append(b"")
            else:
                done = 0
                for at, end in held:
                    found[at], done = data[done:end], max(done, end)
                found.append(data[done:])
                held = []
        return found

    def after(self, run: _Run, token_id: int) -> _Run:
        """The run of open ids after a token, which is known."""
        if token_id in self._facts.specials:
            return run
        return (*run, token_id) if self._says((*run, token_id)) is None else ()

    def open(self, ids: Iterable[int]) -> _Run:
        """The open ids at the end of known ones."""
        run: _Run = ()
        for token_id in ids:
            run = self.after(run, token_id)
        return run

    def choice(self, run: _Run, token_id: int, prob: float | None) -> Choice:
        """A known token as scoring takes it.

        Args:
            run: the open ids before it.
            token_id: its id.
            prob: its probability.
        """
        if token_id in self._facts.specials:
            end = token_id in self._facts.ends
            name = self._facts.specials[token_id]
            shown = name.encode() if self._client.is_chat and not end else b""
            return Choice(token_id, Token(shown, prob, end=end, name=(name or None) if end else None))
        data = self._says((*run, token_id))
        assert data is not _UNKNOWN
        return Choice(token_id, Token(data or b"", prob), open=data is None, sure=token_id not in self._facts.lossy)

    def other(self, token_id: int, prob: float, text: str, *, spaced: bool) -> Choice:
        """A token that was not taken and may not be known; no request is sent for it.

        Args:
            token_id: its id.
            prob: its probability.
            text: its text, decoded alone.
            spaced: such texts keep the space before a word.
        """
        if self._says((token_id,)) is not _UNKNOWN:
            return self.choice((), token_id, prob)
        if (tokenizer := self._client.tokenizer) is not None:
            return Choice(token_id, Token(tokenizer.token(token_id) or b"", prob))
        return Choice(token_id, Token(text.encode(), prob), sure=spaced and is_plain(text))

    async def others(self, lists: Sequence[Sequence[_Listed]]) -> list[list[Choice]]:
        """Tokens that were listed beside others, with their bytes: those not known yet are found out together."""
        await self.know((token_id,) for listed in lists for token_id, _, _ in listed)
        return [[self.choice((), token_id, prob) for token_id, prob, _ in listed] for listed in lists]

    async def first(self, answer: SglangAnswer, alternatives: int) -> Token:
        """The first token of an answer with its id, and the next most probable ones."""
        found = _steps(answer, self._client.transport.endpoint)[:1]
        finish = answer.meta_info.finish_reason
        self.learn(found, answer.text or "", stopped=finish is not None and finish.type == "stop")
        [step] = found
        await self.know([(step.id,)])
        others = [self.other(*one, spaced=False) for one in step.others]
        return with_listed(Position(self.choice((), step.id, step.prob), others), alternatives)

    def ended(self, token_id: int) -> None:
        """An answer was over with this token."""
        if token_id not in self._facts.ends:
            self._facts.specials.setdefault(token_id, "")
            self._facts.ends.add(token_id)

    async def know(self, runs: Iterable[_Run]) -> None:
        """Find out the bytes of runs of ids that are not known yet."""
        new = [run for run in dict.fromkeys(runs) if self._says(run) is _UNKNOWN]
        if not new:
            return
        if (tokenizer := self._client.tokenizer) is not None:
            found = {run[-1]: tokenizer.token(run[-1]) for run in new}
            self._facts.spelt.update({(n,): data for n, data in found.items() if data is not None})
            await self._specials({n: "" for n, data in found.items() if data is None})
            return
        for run, text in zip(new, await self._decode(new, specials=False), strict=True):
            data = text.replace(_LOST, "").encode()  # what is lost within a text can never become a character
            self._facts.spelt[run] = None if text.endswith(_LOST) else data
            self._facts.begun[run] = len(data)
            if len(run) == 1 and _LOST in text:
                self._facts.lossy.add(run[0])
        silent = [run for run in new if len(run) == 1 and self._facts.spelt[run] == b""]
        shown = await self._decode(silent, specials=True) if silent else []
        await self._specials({run[0]: text.strip() for run, text in zip(silent, shown, strict=True) if text})

    async def _decode(self, runs: Sequence[_Run], *, specials: bool) -> list[str]:
        """The text of each run, behind a plain token."""
        asked = [[self._facts.anchor, *run] for run in runs]
        texts = await self._client.decode_runs(asked, specials=specials)
        return [text.removeprefix(self._facts.anchored) for text in texts]

    async def _specials(self, names: dict[int, str]) -> None:
        """Note tokens without text, and whether an answer ends with them."""
        new = [n for n in names if n not in self._facts.specials]
        ends = await concurrently([partial(self._client.ends, n, self.usage) for n in new])
        for token_id, end in zip(new, ends, strict=True):
            if end:
                self._facts.ends.add(token_id)
            self._facts.specials[token_id] = names[token_id]

    def _says(self, run: _Run) -> bytes | None:
        """The bytes of a run; None where they are no whole characters; `_UNKNOWN` before it is known."""
        if run[-1] in self._facts.specials:
            return b""
        if self._client.tokenizer is not None:
            run = run[-1:]
        return self._facts.spelt.get(run, _UNKNOWN)


# Proposals.


@dataclass(slots=True)
class _Round:
    """The tokens that the server wrote after one continuation, and the open ids before each of them."""

    prompt: list[int]
    found: list[_Step]
    runs: Sequence[_Run] = field(default=())


class _SglangRounds(Rounds):
    """The rounds of one `propose`; see `Rounds`.

    Args:
        client: the server's requests.
        prompt: the prompt.
        text: the response so far.
        usage: is billed.
        alternatives: the number of others that each token comes with.
        echo: the text is scored first.
        singly: each prompt has its own request.
    """

    def __init__(
        self,
        client: SglangClient,
        prompt: str,
        text: bytes,
        usage: Usage,
        *,
        alternatives: int = 0,
        echo: bool = False,
        singly: bool = False,
    ) -> None:
        super().__init__(prompt, text, alternatives)
        self._client = client
        self._usage = usage
        self._echo = echo
        self._singly = singly
        self._texts = TokenTexts(client, usage)
        self._top = client.listed(alternatives)
        self._heads: dict[int, list[int]] = {}  # what the model reads before each place

    async def encode(self, place: int) -> list[int]:
        """The ids that the model reads up to a place."""
        await self.prepare([place])
        return self._heads[place]

    async def prepare(self, places: Iterable[int]) -> None:
        """Encode the text up to each place, all at once."""
        new = sorted({*places} - {*self._heads})
        texts = [self._before(place) for place in new]
        self._heads |= zip(new, await self._client.prompts(texts), strict=True)

    async def _begin(self, open_: Sequence[Continuation]) -> None:
        await self.prepare(one.question.start for one in open_)

    async def _scored(self, open_: Sequence[Continuation]) -> dict[int, Iterable[Position]]:
        """Those that the scored text answers: its encoding up to there is the model's own."""
        if not self._echo:
            return {}
        whole = await self.encode(len(self._text))
        heads = {one.question.start: self._heads[one.question.start] for one in open_}
        places = {start: len(head) for start, head in heads.items() if head and whole[: len(head)] == head}
        if len(places) < 2 or self._client.room(whole, 1) < 1:
            return {}
        start = min(places)
        positions = await self._positions(whole, places[start], sendable(self._text[start:]))
        return self._along(open_, whole, places, positions)

    async def _room(self, one: Continuation, wanted: int) -> int:
        return self._client.room(self._ids(one), wanted)

    async def _too_long(self, one: Continuation) -> ContextLengthError:
        return self._client.too_long(self._ids(one))

    async def _written(self, open_: Sequence[Continuation], count: int) -> Sequence[Sequence[Position]]:
        prompts = [self._ids(one) for one in open_]
        answers = await self._client.batch(prompts, count, self._usage, singly=self._singly, top=self._top)
        return await self._read(open_, prompts, answers)

    def _ids(self, one: Continuation) -> list[int]:
        return [*self._heads[one.question.start], *one.ids]

    async def _read(
        self, open_: Sequence[Continuation], prompts: Sequence[list[int]], answers: Sequence[SglangAnswer]
    ) -> list[Sequence[Position]]:
        """The positions of several answers; where tokens are equally probable, all of them."""
        endpoint = self._client.transport.endpoint
        rounds = [_Round(ids, _steps(answer, endpoint)) for ids, answer in zip(prompts, answers, strict=True)]
        for one, answer in zip(rounds, answers, strict=True):
            finish = answer.meta_info.finish_reason
            self._texts.learn(one.found, answer.text or "", stopped=finish is not None and finish.type == "stop")
        await self._widen([(one, at) for one in rounds for at, step in enumerate(one.found) if step.more])
        await self._texts.know((step.id,) for one in rounds for step in one.found)
        for continuation, one in zip(open_, rounds, strict=True):
            before = self._texts.open(continuation.ids)
            one.runs = await self._texts.walk([step.id for step in one.found], before)
        tied = [
            (*run, other)
            for one in rounds
            for run, step in zip(one.runs, one.found, strict=False)
            for other in step.tied
        ]
        await self._texts.know(tied)
        lower = await self._texts.others([self._lower(step) for one in rounds for step in one.found])
        steps = [(run, step) for one in rounds for run, step in zip(one.runs, one.found, strict=False)]
        found = iter([self._position(*step, others) for step, others in zip(steps, lower, strict=True)])
        return [[*islice(found, len(one.found))] for one in rounds]

    async def _widen(self, doubts: Sequence[tuple[_Round, int]]) -> None:
        """Ask again where all tokens that were listed are equally probable: there may be more of them."""
        if not doubts:
            return
        prompts = [[*one.prompt, *(step.id for step in one.found[:at])] for one, at in doubts]
        answers = await self._client.batch(prompts, 1, self._usage, singly=self._singly, top=_MANY)
        for (one, at), answer in zip(doubts, answers, strict=True):
            [again] = _steps(answer, self._client.transport.endpoint)
            tied = again.tied if one.found[at].id in again.tied else ()  # its arithmetic is not quite the same twice
            one.found[at] = replace(one.found[at], tied=tied)

    def _lower(self, step: _Step) -> list[_Listed]:
        """With alternatives the tokens that are less probable than the one taken."""
        return [one for one in step.others if one[1] < step.prob] if self._alternatives else []

    def _position(self, run: _Run, step: _Step, lower: Sequence[Choice]) -> Position:
        """A step with the tokens that are as probable as the one taken, and those that are less."""
        alone = step.tied in ((), (step.id,))
        value = step.prob if alone else step.best
        others = [] if alone else [self._texts.choice(run, n, value) for n in step.tied if n != step.id]
        return Position(self._texts.choice(run, step.id, value), [*others, *lower])

    async def _positions(self, ids: list[int], first: int, text: str) -> list[Position | None]:
        """The model's choice at each place from `first` on, and after the last one; None where in doubt.

        Args:
            ids: a text as the model reads it.
            first: the number of them before the first place, which is between two characters; not 0.
            text: the text of the ids from there on.
        """
        entries, written, _ = await _scores(self._client, ids, first, self._usage, top=self._top)
        own = ids[first:]
        self._texts.note(own, [one or "" for (_, _, one), _ in entries], text)
        runs = await self._texts.walk(own)
        best = [_best(top) for _, top in entries]
        lists = [_others(top, one and one[0]) for (_, top), one in zip(entries, best, strict=True)]
        best += [(step.id, step.prob) if len(step.tied) == 1 else None for step in written] or [None]
        lists += [[*step.others] for step in written] or [[]]
        await self._texts.know((*run, one[0]) for run, one in zip(runs, best, strict=True) if one is not None)
        others = await self._texts.others([listed if self._alternatives else [] for listed in lists])
        return [
            None if one is None else Position(self._texts.choice(run, *one), more)
            for run, one, more in zip(runs, best, others, strict=True)
        ]


async def _scores(
    client: SglangClient, ids: list[int], first: int, usage: Usage, *, top: int = TIES, ends: Sequence[int] = ()
) -> tuple[list[tuple[Triple, list[Triple]]], list[_Step], list[_Listed]]:
    """The prompt's tokens from place `first` on, the token behind them, and what is told of some others in its place.

    The probability of a token was computed at the one before it. All before that one may come from the cache.
    """
    if first >= len(ids) and not ends:
        return [], [], []
    more: dict[str, Any] = {"token_ids_logprob": [*ends]} if ends else {}
    start = first - 1 if first < len(ids) else -1
    [answer] = await client.batch([ids], 1, usage, top=top, logprob_start_len=start, **more)
    endpoint = client.transport.endpoint
    told = answer.meta_info.output_token_ids_logprobs
    found = scored(answer, ids, first, endpoint) if first < len(ids) else []
    return found, _steps(answer, endpoint), _others((told or [None])[0] or [], None)


def _best(top: Sequence[Triple]) -> tuple[int, float] | None:
    """The most probable token; None where there are several, or none."""
    best = max((value for value, _, _ in top if value is not None), default=None)
    first = [token_id for value, token_id, _ in top if value == best]
    value = prob(best)
    return None if value is None or len(first) != 1 else (first[0], value)


def _others(top: Sequence[Triple], but: int | None) -> list[_Listed]:
    """The listed tokens without one of them."""
    return [(token_id, prob(value) or 0.0, said or "") for value, token_id, said in top if token_id != but]


# The provider.


class Sglang(TokenizingEngine[SglangFacts, SglangClient]):
    """A model behind SGLang's server. See `contract.Provider`.

    Args:
        url: the server's URL, without `/v1`.
        tokenizer: the model's own, for servers that do not encode text for others; what `load_tokenizer` takes. It
            also saves the requests that find out the bytes of tokens.
        strategy: how proposals are asked (`strategies.Strategy`); by default `"echo"`, which scores the text where more
            than one place of it is asked, and reads the server's cache. All give the same answers.
        add_special_tokens: a prompt gets the model's beginning of sequence. Turn it off for prompts that were made by a
            chat template, which have it already.
        options: as in `engine.Adapter`: `model` (a name of the model, or of an adapter (LoRA) on top of it), `api_key`,
            `headers`, `extra_body` (e.g. `{"priority": 1}`), `timeout`, `http_client`, `limits`.

    Raises:
        ValueError: `extra_body` sets what the fusion itself decides; or there is no such strategy.
    """

    _client_type = SglangClient
    _facts_type = SglangFacts
    _owned = _OWNED
    _ready_route = "/v1/models"
    _idle = MANY_IDLE

    async def _draft(
        self,
        facts: SglangFacts,  # noqa: ARG002 - the client has them
        context: Context,
        continuation: Any,
        max_tokens: int,
        options: DraftOptions,
        usage: Usage,
    ) -> IdsDraft:
        prompt, text = context.prompt, context.text
        if options.raw:
            start = await self._client.path(context)
        elif continuation is None:
            [start] = await self._client.prompts([prompt + sendable(text)])
        else:
            start = [*continuation]
        self._client.check_something(start)
        stream = partial(self._client.stream, TokenTexts(self._client, usage), options)
        return IdsDraft(stream, start, max_tokens, alone=not text, raw=options.raw)

    async def next_tokens(
        self, contexts: Sequence[Context], *, alternatives: int = 1, usage: Usage
    ) -> list[Token | None]:
        """A list of ids, or one request for each; see `contract.IdContexts`."""
        await self.facts()
        client, texts = self._client, TokenTexts(self._client, usage)
        paths = [await client.path(context) for context in contexts]
        fits = [path for path in paths if client.room(path, 1) > 0]
        way: Strategy = "singles" if self._strategy == "singles" or len(contexts) == 1 else "list"
        top = max(2, min(1 + alternatives, _MANY))
        answers = iter(await client.batch(fits, 1, usage, singly=way == "singles", top=top) if fits else ())
        usage.answered_by(way, len(fits))
        return [await texts.first(next(answers), alternatives) if client.room(path, 1) > 0 else None for path in paths]

    async def propose(
        self,
        context: Context,
        questions: Sequence[Question] | None,
        *,
        alternatives: int = 0,
        usage: Usage,
    ) -> list[Proposal | None]:
        """All questions as the strategy says, and once more those that need it; see `contract.Provider`."""
        prompt, text = context.prompt, context.text
        await self.facts()
        if alternatives:
            await self._client.seek_ends(usage)
        everywhere = questions is None
        if questions is None:
            pieces = await self.tokenize(prompt + sendable(text))
            questions = boundaries((piece.data for piece in pieces), len(prompt.encode()))
        for question in questions:
            self._client.check_something(prompt + sendable(text[: question.start]))
        several = len(questions) > 1
        way: Strategy = self._strategy or ("echo" if everywhere or several else "singles")
        more: dict[str, Any] = {"singly": way == "singles", "echo": way == "echo" and several}
        rounds = _SglangRounds(self._client, prompt, text, usage, alternatives=alternatives, **more)
        return await rounds.propose(questions, way, usage)

    async def score(self, context: Context, *, alternatives: int = 0, end: bool = False, usage: Usage) -> list[Token]:
        """One request; see `contract.Provider`.

        The first token of a model without a beginning of sequence has no probability where the prompt is empty.
        """
        prompt, text = context.prompt, context.text
        facts = await self.facts()
        if alternatives or end:
            await self._client.seek_ends(usage)
        whole, size = prompt + sendable(text), len(prompt.encode())
        pieces = await self.tokenize(whole)
        [ids] = await self._client.prompts([whole])
        behind = list(accumulate(len(piece.data) for piece in pieces))
        first = sum(at <= size for at in behind)  # the first token that ends behind the prompt
        if first >= len(pieces) and not end:
            return []
        if self._client.room(ids, 1) < 1:
            raise self._client.too_long(ids)
        place = max(len(ids) - len(pieces) + first, 1)
        ends, texts = sorted(facts.ends) if end and ids else [], TokenTexts(self._client, usage)
        more: dict[str, Any] = {"top": self._client.listed(alternatives), "ends": ends}
        entries, written, told = await _scores(self._client, ids, place, usage, **more)
        lists = [_others(top, own) for (_, top), own in zip(entries, ids[place:], strict=True)]
        lists += [[*step.others, (step.id, step.prob, step.text)] for step in written]
        others = await texts.others(lists if alternatives else [[] for _ in lists])
        raw = [Token(piece.data, 0.0 if at < first else None) for at, piece in enumerate(pieces)]
        at = len(pieces) - len(entries)
        for piece, token_id, ((own, _, _), _), beside in zip(pieces[at:], ids[place:], entries, others, strict=False):
            choice = Choice(token_id, Token(piece.data, prob(own) or 0.0))
            raw[at] = with_alternatives(Position(choice, beside), alternatives)
            at += 1
        found = within(raw, size)
        if not end:
            return found
        last = self._end([*told, *(one for listed in lists[len(entries) :] for one in listed)])
        return [*found, with_alternatives(Position(last, others[-1] if written else ()), alternatives)]

    async def score_ids(
        self, context: Context, first: int, *, alternatives: int = 0, end: bool = False, usage: Usage
    ) -> list[Token]:
        """One request; see `contract.IdScores`."""
        await self.facts()
        if alternatives or end:
            await self._client.seek_ends(usage)
        facts, client = self._client.facts, self._client
        ids = await client.path(context)
        start = len(ids) - len(context.ids or ()) + first
        if client.room(ids, 1) < 1:
            raise client.too_long(ids)
        found = [Token(b"", None, id=ids[0])] if not start and ids else []
        place, texts = max(start, 1), TokenTexts(client, usage)
        more: dict[str, Any] = {"top": client.listed(alternatives), "ends": sorted(facts.ends) if end else []}
        entries, written, told = await _scores(client, ids, place, usage, **more)
        lists = [_others(top, own) for (_, top), own in zip(entries, ids[place:], strict=True)]
        lists += [[*step.others, (step.id, step.prob, step.text)] for step in written]
        others = await texts.others(lists if alternatives else [[] for _ in lists])
        for token_id, ((own, _, _), _), beside in zip(ids[place:], entries, others, strict=False):
            choice = Choice(token_id, Token(b"", prob(own) or 0.0))
            found.append(with_listed(Position(choice, beside), alternatives))
        if not end:
            return found
        last = self._end([*told, *(one for listed in lists[len(entries) :] for one in listed)])
        return [*found, with_listed(Position(last, others[-1] if written else ()), alternatives)]

    def _end(self, listed: Iterable[_Listed]) -> Choice:
        """The most probable end of sequence among tokens listed at one place."""
        facts = self._client.facts
        known = {token_id: value for token_id, value, _ in listed if token_id in facts.ends}
        token_id = max(known, key=lambda n: known[n], default=-1)
        name = facts.specials.get(token_id)
        return Choice(token_id, Token(b"", known.get(token_id), end=True, name=name or None))

    async def tokenize(self, text: str) -> list[Piece]:
        """The server's own encoding, none added; how tokens share a character's bytes is not shown (`TokenTexts`)."""
        await self.facts()
        if self._client.tokenizer is not None and not self._client.head.text:
            return self._client.tokenizer.encode(text)
        [ids] = await self._client.ids([text])
        found = await TokenTexts(self._client, Usage()).spelt(ids)
        joined = b"".join(found)
        if joined == b" " + text.encode():  # which a SentencePiece tokenizer puts before a text
            at = next(at for at, data in enumerate(found) if data)
            found[at], joined = found[at][1:], text.encode()
        if joined != text.encode():
            words = "the bytes of the server's tokens do not join to the text"
            hint = "Give the model's tokenizer as `tokenizer`."
            raise UnsupportedError(words, endpoint=self._transport.endpoint, hint=hint)
        return [Piece(token_id, data) for token_id, data in zip(ids, found, strict=True)]

    async def probe_client(self) -> SglangProbeClient:
        """The server without checks, for a probe."""
        await self.facts()
        return SglangProbeClient(self._client)

    async def _discover(self) -> SglangFacts:
        transport, client = self._transport, self._client
        if not (await _card(transport)).is_generation:
            words = "the server was started with a model that writes no text (--is-embedding)"
            raise UnsupportedError(words, endpoint=transport.endpoint)
        running = await _running(transport)
        listed = await ask_only(transport, Models, "/v1/models", **_IT)
        name = choose(listed.data, self._model, transport.endpoint)
        client.model = name.id
        plain = await _encoded(client)
        if not plain:
            raise ResponseError("the encoding of a letter has no token", endpoint=transport.endpoint)
        read = await _read(client)
        before = next((at for at in range(len(read)) if _same(read[at : at + len(plain)], plain)), None)
        if before is None:
            whose = "the server's /v1/tokenize" if client.tokenizer is None else "the tokenizer that was given"
            words = f"{whose} encodes text differently from the model that is served: it is another one"
            raise UnsupportedError(words, endpoint=transport.endpoint)
        anchored = "" if client.tokenizer else await client.decode(plain[-1:])
        info = ServerInfo(
            endpoint=transport.endpoint,
            engine="sglang",
            model=name.id,
            build=running.version,
            context=name.max_model_len or next((one.max_model_len for one in listed.data if one.max_model_len), None),
            capabilities=Capabilities(
                token_ids=True,
                end_prob=True,
                tokenize=True,
                score=True,
                top_k=_MANY - 1,  # the server's own is one of them
                score_top_k=_MANY - 1,
                sampling=running.enable_deterministic_inference,
                ids=True,
            ),
            longest_prompt=None if running.max_req_input_len is None else running.max_req_input_len - 1,
            answer_cue=await answer_cue(client.template),
        )
        adapter = None if name.parent is None else name.id
        return SglangFacts(info, read[:before], plain[-1], adapter, anchored)


async def _card(transport: Transport) -> _Card:
    """The route that only this engine has, by its older name where the newer one is not known."""
    try:
        return parse(_Card, await transport.get("/model_info"), transport.endpoint)
    except (InvalidRequestError, ResponseError):
        return await ask_only(transport, _Card, "/get_model_info", **_IT)


async def _running(transport: Transport) -> _Running:
    """Version and limits; nothing where they are kept from others."""
    for path in ("/server_info", "/get_server_info"):
        try:
            return parse(_Running, await transport.get(path), transport.endpoint)
        except (StatusError, ResponseError):
            continue
    return _Running()


async def _encoded(client: SglangClient) -> list[int]:
    try:
        return (await client.ids([_LETTERS]))[0]
    except InvalidRequestError as error:
        words = "the server does not encode text for others (/v1/tokenize), as SGLang does since late 2025"
        hint = "Update it, or give the model's own tokenizer as `tokenizer`."
        raise UnsupportedError(words, endpoint=client.transport.endpoint, hint=hint) from error


async def _read(client: SglangClient) -> list[int]:
    """The ids that the server makes of a text; checks their probabilities, and that of one token more."""
    endpoint = client.transport.endpoint
    body = client.body(1, text=_LETTERS, logprob_start_len=0)
    answer = _checked(parse(SglangAnswer, await client.transport.post("/generate", body), endpoint), endpoint, 0)
    _steps(answer, endpoint)
    entries = answer.meta_info.input_token_logprobs
    if not entries:
        words = "the server does not give the probabilities of a text, although asked (logprob_start_len)"
        raise UnsupportedError(words, endpoint=endpoint)
    return [token_id for _, token_id, _ in entries]


def _same(read: Sequence[int], own: Sequence[int]) -> bool:
    """Ids that the server shows of a prompt are these."""
    pairs = zip(own, _shown(own), strict=True)
    return len(read) == len(own) and all(one in pair for one, pair in zip(read, pairs, strict=True))


# The probe's client.


_Tops = Sequence[Sequence[Triple] | None] | None


class SglangProbeClient(ProbeClient):
    """An SGLang server.

    Args:
        client: makes its requests.
    """

    forcing = (lambda text: {"regex": re.escape(text)},)

    def __init__(self, client: SglangClient) -> None:
        super().__init__(client.transport, client.model)
        self._client = client

    async def send(self, request: RawRequest, usage: Usage) -> list[RawReply]:
        """One request; further fields are those of the sampling."""
        sent = [one if isinstance(one, str) else [*self._client.facts.beginning, *one] for one in request.prompts]
        key = "text" if all(isinstance(one, str) for one in sent) else "input_ids"
        asked: dict[str, Any] = {key: sent[0] if len(sent) == 1 else sent, "logprob_start_len": -1}
        sampling = {"temperature": request.temperature, **request.fields}
        answers = await self._post(request.limit, request.top, usage, sampling, asked)
        return [await self._reply(answer, usage) for answer in answers]

    async def score(self, text: str, usage: Usage) -> RawScores:
        """The tokens of a prompt, from the first one on."""
        [answer] = await self._post(1, TIES, usage, {}, {"text": text, "logprob_start_len": 0})
        meta = answer.meta_info
        if not meta.input_token_logprobs:
            raise self.unable("logprob_start_len is ignored: the answer does not hold the tokens of the prompt")
        own = await self._positions(meta.input_token_logprobs, meta.input_top_logprobs, usage)
        before = len(self._client.facts.beginning)
        after = await self._positions(meta.output_token_logprobs or [], meta.output_top_logprobs, usage)
        return RawScores("logprob_start_len", own[before:], before, next(iter(after), None))

    async def _post(
        self, limit: int, top: int, usage: Usage, sampling: dict[str, object], fields: dict[str, Any]
    ) -> list[SglangAnswer]:
        body = self._client.body(limit, top=top, sampling=sampling, **fields)
        data = await self._transport.post("/generate", body, usage=usage)
        listed = cast("list[object]", data) if isinstance(data, list) else [cast("object", data)]
        answers = [parse(SglangAnswer, one, self._transport.endpoint) for one in listed]
        for answer in answers:
            meta = answer.meta_info
            usage.bill(meta.prompt_tokens, meta.completion_tokens, meta.cached_tokens)
        return answers

    async def _reply(self, answer: SglangAnswer, usage: Usage) -> RawReply:
        meta = answer.meta_info
        ended = meta.finish_reason is not None and meta.finish_reason.type == "stop"
        if ended and meta.output_token_logprobs:
            TokenTexts(self._client, usage).ended(meta.output_token_logprobs[-1][1])
        positions = await self._positions(meta.output_token_logprobs or [], meta.output_top_logprobs, usage)
        read, cached = meta.prompt_tokens, meta.cached_tokens
        return RawReply(answer.text or "", positions, read, cached, meta.completion_tokens, ended)

    async def _positions(
        self, entries: Sequence[Triple], tops: Sequence[Sequence[Triple] | None] | None, usage: Usage
    ) -> list[Position]:
        """The tokens of an answer with the bytes of their ids."""
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
