"""Adapter for vLLM, over `/v1/completions`, `/tokenize` and `/detokenize`.

These facts were observed on 0.8.5 and 0.32, run on the CPU, or read in the source:

- A prompt is a text or ids, or a list of either. The server adds the model's special tokens to a text, but nothing to
  ids. This engine always sends ids. With `return_token_ids` (0.10.2 and newer), prompt and answer come with their ids.
  With `return_tokens_as_token_ids`, all listed tokens also come with ids; otherwise a listed token would hide another
  token with the same string. Versions before 0.10.2 are refused: use OpenAI's protocol for them.
- The text of an answer is correct. The text of a single token consists of whole characters, or is empty if the token
  leaves a character unfinished. If the prompt's ids end inside a character, the answer repeats some text of the prompt.
- `/detokenize` shows special tokens, and decodes one run of ids per request. So the adapter joins several runs into
  one, and separates them by the ids of a text that is not the text of any single token.
- The end of sequence is a token with a probability; `finish_reason` is then `"stop"`, and `stop_reason` is null or the
  token's id.
- `prompt_logprobs` are keyed by id. Requests for them do not use the prefix cache, and are refused if they stream.
- If `max_tokens` exceeds the context, new versions silently lower it, and old versions refuse the request. This engine
  keeps `max_tokens` within the context.
- `/tokenize` renders messages as ids. `/detokenize` turns these into a text with special tokens, which encodes to the
  ids that the chat route reads. (`/v1/chat/completions/render` answers 403 by default.) The text from `/detokenize`
  includes the beginning of sequence, so the server would add a second one unless `add_special_tokens` is off.
- If `skip_special_tokens` is off, special tokens in an answer are text, except the token that ends the answer. A token
  that looks special is forced once, to find out whether it is special and whether it ends an answer.
- The server reports its maximum number of probabilities per position (`--max-logprobs`, 20 by default) only in the
  refusal of a request that exceeds it.
- No route reports the end of sequence. So tokens with common names of ends, and tokens of the chat template, are
  forced, to find out whether they are ends.
- With `allowed_token_ids`, the server chooses among these ids only, and the probabilities are still the model's own.
- Probabilities are the model's own, even at temperature 1. A `seed` restarts the random numbers with each request, so
  each request that continues a draft gets a different seed.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import BaseModel

from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Piece, ServerInfo, Token
from cosd_providers.drafting import billed
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
    silent,
)
from cosd_providers.engines.openai.dialects import DIALECTS
from cosd_providers.engines.openai.probe_client import CompletionsProbeClient, RawReply, RawRequest, RawScores
from cosd_providers.engines.openai.wire import Billed, Completion, Ranked, WireAnswer, steps
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
    abilities,
    beginning_of,
    id_step,
)
from cosd_providers.errors import InvalidRequestError, ResponseError, StatusError, UnsupportedError
from cosd_providers.greedy import TIES, Choice, Position, check_greedy, check_own, prob
from cosd_providers.http.transport import MANY_IDLE
from cosd_providers.parsing import parse
from cosd_providers.sampling import DraftOptions
from cosd_providers.usage import Usage
from cosd_providers.vocabulary import ENDS, looks_special, spell

_GREEDY: dict[str, object] = {
    **GREEDY,
    "min_tokens": 0,
    "echo": False,
    "return_tokens_as_token_ids": True,
    "return_token_ids": True,
}
"""Fields for greedy decoding. Missing fields fall back to the model's `generation_config.json`."""

_OWNED = {
    *_GREEDY,
    *("add_special_tokens", "allowed_token_ids", "bad_words", "best_of", "guided_choice", "guided_grammar"),
    *("guided_json", "guided_regex", "include_stop_str_in_output", "length_penalty", "logit_bias"),
    *("logprob_token_ids", "logprobs", "max_tokens", "model", "prompt", "prompt_embeds", "prompt_logprobs"),
    *("repetition_detection", "response_format", "stop_token_ids", "stream", "stream_options", "structured_outputs"),
    *("suffix", "thinking_token_budget", "truncate_prompt_tokens", "truncation_side", "use_beam_search"),
    "watermarking",
}
"""Fields that a user's `extra_body` may not set."""

_FORCE = 100.0  # the greatest allowed bias, which makes its token the most probable one
_MOST = 20  # the default for the largest number of probabilities at one position
_ALL = 2**24  # more than any vocabulary has, so that the server refuses and reports the allowed number
_LIMIT = re.compile(r"max allowed: (\d+)|more than (\d+) logprobs")
_MANY = re.compile(r"maximum allowed count of (\d+)")
_TOGETHER, _FEW = 512, 24  # numbers of runs to decode in one request, and in another one if that fails
_ALLOWED = 1024  # number of ids that a request may allow; more of them stop some servers (model runner V2)
_OLD = "Update the server, or ask it by OpenAI's protocol: engine='openai', dialect='vllm'."


class _Version(BaseModel):
    """The response of `/version`."""

    version: str


class _Decoded(BaseModel):
    """The response of `/detokenize`."""

    prompt: str


def _checked(answer: Completion, endpoint: str) -> Completion:
    """Check that an answer, or an event of a stream, has probabilities and has not ended improperly.

    Raises:
        UnsupportedError: there are no probabilities, or the answer ended at a stop string from the server's own
            settings.
        ResponseError: the answer ended for an unknown reason.
    """
    if answer.logprobs is None and (answer.text or answer.token_ids):
        raise no_probs("logprobs", endpoint)
    if isinstance(answer.stop_reason, str):
        raise own_stop(endpoint)
    if answer.finish_reason not in (None, "stop", "length"):
        words = f"the answer ended for an unknown reason: {answer.finish_reason[:40]!r}"
        raise ResponseError(words, endpoint=endpoint)
    return answer


def _listed(answer: Completion, endpoint: str, *, sampled: bool = False) -> list[IdStep]:
    """Check and convert the tokens of an answer or event.

    Raises:
        ResponseError: a token has no id, or no usable probability.
        UnsupportedError: decoding is not greedy (unless `sampled`).
    """
    found: list[IdStep] = []
    for step in steps(answer):
        listed = [(one.id, one.prob or 0.0, None) for one in step.top if one.id is not None]
        check_own(step.pick.logprob, endpoint)
        if step.pick.id is None or len(listed) < len(step.top):
            raise ResponseError("a token has no id, although asked (return_tokens_as_token_ids)", endpoint=endpoint)
        if not sampled:
            check_greedy(step.pick.prob, (value for _, value, _ in listed), endpoint)
        own = (step.pick.id, step.pick.prob or 0.0, None)
        found.append(id_step(own, listed or [own]))
    return found


def _ranked(entry: Mapping[int, Ranked] | None, most: int) -> list[ListedId]:
    """The most probable tokens at a position in a text, sorted. (The server may also list the text's own token.)"""
    listed = [(token_id, prob(one.logprob) or 0.0, one.decoded_token) for token_id, one in (entry or {}).items()]
    return sorted(listed, key=lambda one: -one[1])[:most]


class VllmClient(TokenIdsClient):
    """Requests to one vLLM server."""

    _most_prompts = 2**31  # the largest number of prompts in one request; lowered if the server refuses

    def body(self, prompt: object, wanted: int, **fields: object) -> dict[str, object]:
        """Build the body of a greedy request."""
        own = {"model": self.model, "add_special_tokens": self._special_tokens, "logprobs": TIES}
        own["skip_special_tokens"] = not self.is_chat
        return {**self._extra, **_GREEDY, **own, "prompt": prompt, "max_tokens": wanted, **fields}

    async def written(
        self, prompts: Sequence[list[int]], wanted: int, usage: Usage, *, singly: bool = False, top: int = TIES
    ) -> list[IdAnswer]:
        """See `TokenIdsClient.written`."""
        parts = [[prompt] for prompt in prompts] if singly else [prompts]
        asked = await concurrently([partial(self.batch, part, wanted, usage, logprobs=top) for part in parts])
        found: list[IdAnswer] = []
        for answer in (one for part in asked for one in part):
            tokens = _listed(answer, self.transport.endpoint)
            if not tokens:
                raise silent(self.transport.endpoint)
            found.append(IdAnswer(tokens, answer.text, answer.finish_reason == "stop", whole=len(tokens) == 1))
        return found

    async def batch(self, prompts: Sequence[list[int]], wanted: int, usage: Usage, **more: object) -> list[Completion]:
        """Request answers to several prompts, in order, with as many prompts per request as the server accepts."""
        answers: list[Completion] = []
        while len(answers) < len(prompts):
            asked = prompts[len(answers) : len(answers) + self._most_prompts]
            body = self.body(asked, wanted, **more)
            try:
                with billed(usage, partial(_size, asked)) as bill:
                    data = await self.transport.post("/v1/completions", body, usage=usage)
                    answer = parse(WireAnswer, data, self.transport.endpoint, raw=DIALECTS["vllm"].raw)
                    answer.report(bill)
            except InvalidRequestError as error:
                refused = _MANY.search(str(error))
                if refused is None or not 0 < int(refused[1]) < len(asked):
                    raise
                self._most_prompts = int(refused[1])
                continue
            if sorted(one.index for one in answer.choices) != [*range(len(asked))]:
                raise miscounted(len(asked), len(answer.choices), self.transport.endpoint)
            answers += sorted(answer.choices, key=lambda one: one.index)
        return [_checked(one, self.transport.endpoint) for one in answers]

    async def events(
        self, ids: Sequence[int], wanted: int, options: DraftOptions, usage: Usage, attempt: int
    ) -> AsyncGenerator[IdAnswer, None]:
        """See `TokenIdsClient.events`. Tokens without text are held back until a token with text arrives."""
        sampling: dict[str, object] = {"temperature": 1} if options.sampled else {}
        if options.sampled and options.seed is not None:
            sampling["seed"] = options.seed
        top = self.drafted(options.alternatives)
        told = {"include_usage": True, "continuous_usage_stats": True}
        body = self.body([[*ids]], wanted, logprobs=top, stream=True, stream_options=told, **sampling)
        endpoint, done, last = self.transport.endpoint, False, None
        held, single = list[IdStep](), True
        with billed(usage, partial(_size, [ids])) as bill:
            async with self.transport.stream("/v1/completions", body, usage=usage, attempt=attempt) as events:
                async for data in events:
                    event = parse(WireAnswer, data, endpoint, raw=DIALECTS["vllm"].raw)
                    if _twice(event, last):
                        continue
                    last = event.usage or last
                    event.report(bill)
                    for completion in event.choices:
                        finish = _checked(completion, endpoint).finish_reason
                        found = _listed(completion, endpoint, sampled=options.sampled)
                        done, held, single = done or finish is not None, held + found, single and len(found) < 2
                        if completion.text or finish is not None:
                            yield IdAnswer(held, completion.text, finish == "stop", whole=single)
                            held, single = [], True
            bill.final = done
            if not done:
                raise broken_off(endpoint)

    async def scores(
        self, ids: list[int], first: int, usage: Usage, *, top: int = TIES, ends: Sequence[int] = ()
    ) -> IdScoring:
        """See `TokenIdsClient.scores`.

        One end of sequence is sent after the ids, so that its probability is listed. If the model has several ends, and
        an unlisted end may be the most probable of them, one more request sends the unlisted ends.
        """
        if first >= len(ids) and not ends:
            return IdScoring()
        sent = [*ids, *ends[:1]]
        if self.room(sent, 1) < 1:
            raise self.too_long(sent)
        [answer] = await self.batch([sent], 1, usage, prompt_logprobs=top, logprobs=top)
        entries = answer.prompt_logprobs
        if entries is None or len(entries) != len(sent):
            words = "the server does not give the probabilities of a text, although asked (prompt_logprobs)"
            raise UnsupportedError(words, endpoint=self.transport.endpoint, hint="Use strategy='list'.")
        own: list[ListedId] = []
        for token_id, entry in zip(ids[first:], entries[first:], strict=False):
            one = (entry or {}).get(token_id, Ranked(logprob=None))
            own.append((token_id, prob(one.logprob) or 0.0, one.decoded_token))
        listed = [_ranked(entry, top) for entry in entries[first : len(ids)]]
        if not ends:
            return IdScoring(own, listed, next(iter(_listed(answer, self.transport.endpoint)), None))
        last, ranked = entries[-1] or {}, _ranked(entries[-1], top)
        found = {n: last[n] for n in ends if n in last}
        hidden = [n for n in ends if n not in last]
        best = max((prob(one.logprob) or 0.0 for one in found.values()), default=0.0)
        if hidden and ranked and best < ranked[-1][1]:  # an unlisted end may be the most probable end
            answers = await self.batch([[*ids, n] for n in hidden], 1, usage, prompt_logprobs=1)
            lists = [(one.prompt_logprobs or [None])[-1] or {} for one in answers]
            found |= {n: one[n] for n, one in zip(hidden, lists, strict=True) if n in one}
        after = id_step(ranked[0], ranked) if ranked else None
        return IdScoring(own, listed, after, _ranked(found, len(found)))

    async def best_of(self, ids: list[int], able: Sequence[int], usage: Usage) -> list[ListedId]:
        """See `TokenIdsClient.best_of`. The server chooses among the ids; their probabilities stay the model's own."""
        parts, top = [[*able[at : at + _ALLOWED]] for at in range(0, len(able), _ALLOWED)], self.listed(MOST)
        asked = [partial(self.batch, [ids], 1, usage, logprobs=top, allowed_token_ids=part) for part in parts]
        found = [step for [answer] in await concurrently(asked) for step in steps(answer)]
        listed = {one.id: one.prob for step in found for one in (step.pick, *step.top)}
        return [(n, value, None) for n, value in listed.items() if n is not None and value]

    async def encode(self, text: str) -> Encoding:
        """Encode a text to ids and their strings."""
        return await self._tokenize({"prompt": text, "add_special_tokens": False, "return_token_strs": True})

    async def encode_texts(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode each text in a separate request."""
        bodies: list[dict[str, object]] = [{"prompt": text, "add_special_tokens": False} for text in texts]
        return await concurrently([partial(self._tokenize, body) for body in bodies])

    async def read(self, text: str) -> list[int]:
        """Request the ids that the model reads for a text, including the special tokens that the server adds."""
        return (await self._tokenize({"prompt": text, "add_special_tokens": True})).tokens

    async def _tokenize(self, body: Mapping[str, object]) -> Encoding:
        found = await self.transport.post("/tokenize", {"model": self.model, **body})
        return parse(Encoding, found, self.transport.endpoint)

    async def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text, with special tokens shown."""
        data = await self.transport.post("/detokenize", {"model": self.model, "tokens": list(ids)})
        return parse(_Decoded, data, self.transport.endpoint).prompt

    async def decode_runs(self, runs: Sequence[Sequence[int]]) -> list[str]:
        """Decode each run of ids to text, with special tokens shown; each request decodes many runs."""
        parts = [runs[at : at + _TOGETHER] for at in range(0, len(runs), _TOGETHER)]
        found = await concurrently([partial(self._joined, part) for part in parts])
        return [text for part in found for text in part]

    async def _joined(self, runs: Sequence[Sequence[int]]) -> list[str]:
        """Decode all runs in one request, joined by a separator; if the text cannot be split, decode each run alone."""
        ids, text = self.facts.between
        joined = await self.decode([*ids, *ids, *(n for run in runs for n in (*run, *ids))])
        found = joined.split(text)
        if len(found) == len(runs) + 3 == len(re.findall(f"(?={re.escape(text)})", joined)) + 1:  # none overlap
            return [one.removesuffix(found[1]) for one in found[2:-1]]  # some decoders put a space before a text
        if len(runs) > _FEW:
            parts = [runs[at : at + _FEW] for at in range(0, len(runs), _FEW)]
            return [one for part in parts for one in await self._joined(part)]
        alone = await concurrently([partial(self.decode, [*ids, *run]) for run in runs])
        return [one.removeprefix(text) for one in alone]

    async def decode_plain(self, runs: Sequence[Sequence[int]]) -> list[str]:
        """Decode each run of ids to text; force each token that looks special, to see whether it has text."""
        texts, anchored = await self.decode_runs(runs), self.facts.anchored
        looks = [looks_special(text.removeprefix(anchored)) for text in texts]
        special = [at for at, run in enumerate(runs) if looks[at] and len(run) == 2]  # single tokens after the anchor
        for at, (text, _) in zip(special, await self._force([runs[at][-1] for at in special]), strict=True):
            texts[at] = anchored + text
        return texts

    async def ends(self, token_id: int, usage: Usage) -> bool:  # noqa: ARG002 - not billed, like discovery
        """Force a token, and return True if it ends the answer."""
        [(_, ended)] = await self._force([token_id])
        return ended

    async def _force(self, ids: Sequence[int]) -> list[tuple[str, bool]]:
        """Force each token in a separate request that is not billed. Special tokens have no text in these answers."""

        async def one(token_id: int) -> None:
            fields = {"logit_bias": {str(token_id): _FORCE}, "skip_special_tokens": True}
            [answer] = await self.batch([[self.facts.anchor]], 1, Usage(), **fields)
            self.facts.forced[token_id] = answer.text, answer.finish_reason == "stop"

        await concurrently([partial(one, n) for n in ids if n not in self.facts.forced])
        return [self.facts.forced[n] for n in ids]

    async def templated(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Encoding:
        """Render a conversation with the model's chat template, up to the answer."""
        body = {"messages": [*messages], **({"tools": [*tools]} if tools else {})}
        return await self._tokenize({**body, "add_generation_prompt": True, "return_token_strs": True})

    def without_template(self, error: StatusError) -> UnsupportedError | None:
        """Return the error for a model without a chat template; None if the refusal has another reason."""
        if "chat template is no longer allowed" not in str(error.args[0]):
            return None
        return UnsupportedError("the model has no chat template", endpoint=self.transport.endpoint, hint=NO_TEMPLATE)

    async def _named_ends(self) -> set[int]:
        """Find the tokens that have a common name of an end, in one request if the server shows strings."""
        found = await self.encode("".join(ENDS))
        if found.token_strs is None:
            return await super()._named_ends()
        return {n for n, string in zip(found.tokens, found.token_strs, strict=False) if string in ENDS}


def _size(prompts: Sequence[Sequence[int]]) -> tuple[int, bool]:
    """The number of ids in prompts, which is not an estimate; see `drafting.billed`."""
    return sum(map(len, prompts)), False


def _twice(event: WireAnswer, billed: Billed | None) -> bool:
    """True if this event came before: it has tokens, but the number of written tokens has not grown."""
    written, before = (one.completion_tokens if one else None for one in (event.usage, billed))
    return bool(before and written and written <= before and any(map(steps, event.choices)))


class Vllm(TokenIdsEngine[VllmClient]):
    """A model served by vLLM. See `contract.Provider`.

    Args:
        url, tokenizer, add_special_tokens, options: see `TokenIdsEngine`.
        strategy: the kind of request for proposals (`strategies.Strategy`). The default is `"list"`, or `"echo"` if
            every boundary of a text is asked about. All strategies return the same answers. `"echo"` scores the text
            only if there are several places; for a single place it sends a prompt, which costs less because the server
            has the prompt in its cache.
    """

    _client_type = VllmClient
    _owned = _OWNED
    _several = "list"
    _ready_route = "/health"
    _idle = MANY_IDLE

    async def tokenize(self, text: str) -> list[Piece]:
        """Encode a text without added tokens. If the server shows strings, each token has exactly its own bytes."""
        await self.facts()
        if self._client.tokenizer is None and not (self._client.head.text and text.startswith(self._client.head.text)):
            found = await self._client.encode(text)
            strings = found.token_strs
            if strings is not None and len(strings) == len(found.tokens):
                pieces = spell(text.encode(), [*zip(found.tokens, strings, strict=True)])
                if pieces is not None:
                    self._client.encoded(text, found.tokens)
                    return pieces
        return await super().tokenize(text)

    async def probe_client(self) -> VllmProbeClient:
        """Return a client without checks, for the probe."""
        await self.facts()
        return VllmProbeClient(self._client, self.tokenize)

    async def _discover(self) -> TokenIdsFacts:
        ask = partial(ask_only, self._transport, looks="vLLM", url="`vllm serve`")
        version = (await ask(_Version, "/version")).version
        chosen = choose((await ask(Models, "/v1/models")).data, self._model, self._transport.endpoint)
        client, endpoint = self._client, self._transport.endpoint
        client.model = chosen.id
        [encoded] = await client.encode_alone([LETTERS])
        plain = encoded.tokens
        if not plain:
            raise ResponseError("/tokenize gave no token for a letter", endpoint=endpoint)
        beginning = beginning_of(await client.read(LETTERS), [(one,) for one in plain])
        if beginning is None:
            raise client.unlike("/tokenize")
        [first] = await client.batch([plain[-1:]], 1, Usage())
        if first.token_ids is None or first.prompt_token_ids is None:
            words = f"this version of vLLM ({version}) does not show token ids, as 0.10.2 and newer do"
            raise UnsupportedError(words, endpoint=endpoint, hint=_OLD)
        most = await _limit(client, plain[-1:])
        info = ServerInfo(
            endpoint=endpoint,
            engine="vllm",
            model=client.model,
            build=version,
            context=chosen.max_model_len or encoded.max_model_len,
            capabilities=abilities(most, sampling=True),
            answer_cue=await answer_cue(client.template),
        )
        shown = await client.decode(plain)
        anchored = (await client.decode([*plain, plain[-1]])).removeprefix(shown)
        spaced = await client.spaces(plain, shown)
        facts = TokenIdsFacts(info, beginning, plain[-1], anchored, spaced=spaced, most=most, between=(plain, shown))
        return await client.with_ends(facts)


async def _limit(client: VllmClient, ids: list[int]) -> int:
    """Find the server's maximum number of probabilities at one position (`--max-logprobs`), by provoking a refusal."""
    try:
        await client.batch([ids], 1, Usage(), logprobs=_ALL)
    except InvalidRequestError as error:
        told = _LIMIT.search(str(error))
        return int(told[1] or told[2]) if told else _MOST
    return _MOST


class VllmProbeClient(CompletionsProbeClient):
    """The probe's client for a vLLM server."""

    def __init__(self, client: VllmClient, encode: Callable[[str], Awaitable[list[Piece]]]) -> None:
        def body(prompt: object, limit: int, top: int) -> Mapping[str, object]:
            return client.body(prompt, limit, logprobs=top, return_tokens_as_token_ids=False)

        names = (client.facts.specials[n] for n in client.facts.ends)
        super().__init__(client.transport, "/v1/completions", body, {*client.facts.ends, *names}, client.model)
        self._facts = client.facts
        self._encode = encode

    async def send(self, request: RawRequest, usage: Usage) -> list[RawReply]:
        """Send one request, with the beginning of sequence before each prompt of ids."""
        sent = [one if isinstance(one, str) else [*self._facts.beginning, *one] for one in request.prompts]
        return await super().send(replace(request, prompts=sent), usage)

    async def score(self, text: str, usage: Usage) -> RawScores:
        """Score a text with `prompt_logprobs`, whose entries are keyed by id."""
        pieces = await self._encode(text)
        sent = [*self._facts.beginning, *(piece.id for piece in pieces)]
        try:
            answer = await self._post({**self._body(sent, 1, TIES), "prompt_logprobs": TIES}, usage)
        except InvalidRequestError as error:
            raise self.unable(f"prompt_logprobs is refused: {error.args[0]}") from error
        ranked = answer.choices[0].prompt_logprobs if answer.choices else None
        if ranked is None or len(ranked) != len(sent):
            raise self.unable("prompt_logprobs is ignored: the answer does not hold it")
        before = len(self._facts.beginning)
        own = [_raw_position(piece, entry or {}) for piece, entry in zip(pieces, ranked[before:], strict=True)]
        after = next(iter(self._reply(answer.choices[0], None).positions), None)
        return RawScores("prompt_logprobs", own, before, after)


def _raw_position(piece: Piece, entry: Mapping[int, Ranked]) -> Position:
    own = entry.get(piece.id)
    others = [
        Choice(token_id, Token((one.decoded_token or "").encode(), prob(one.logprob)))
        for token_id, one in entry.items()
        if token_id != piece.id
    ]
    return Position(Choice(piece.id, Token(piece.data, prob(own.logprob) if own else None)), others)
