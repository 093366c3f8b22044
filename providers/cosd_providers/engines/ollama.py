"""Adapter for Ollama, over its own `/api/generate` with `raw`: its only route that continues a text unchanged.

The adapter was never run against a real Ollama server. It follows the server's source from 0.12.11 to 0.34:

- The server accepts only text, and one prompt per request, so every place needs a separate request.
- Since 0.12.11, the server lists the most probable tokens. Older versions, and models in Ollama's cloud, silently omit
  the lists, so the adapter tests this with one answer before the first use. Probabilities come from the raw softmax.
- The end of sequence is never shown and has no probability. A list may lack some of the most probable tokens, because
  the end of sequence and some parts of characters are hidden. So drafts have those alternatives that are listed, but
  proposals have none (`top_k` is 0).
- If the model runs in llama.cpp's server (as most models do from about 0.30 on), a token that leaves a character
  unfinished is left out, and the probability of the token that completes the character is unknown. Ollama's own engine
  shows all tokens of a character in one event.
- A text that is too long is cut to about half of the context. If both `truncate` and `shift` are false, the text is
  refused instead, and an answer ends when the context is full. The adapter tests the refusal once.
- Some versions do not count the cached tokens of a prompt, so that too few tokens are billed.
- No route renders the chat templates, which are written in Go. So conversations need a template from the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isclose
from typing import Any, TypeVar, Unpack, cast

from pydantic import BaseModel

from cosd_providers.contract import Capabilities, Context, Proposal, Question, ServerInfo
from cosd_providers.engine import NO_TEMPLATE, Engine, EngineOptions, ServerFacts, checked_extra
from cosd_providers.engines.openai.client import OpenAIClient, Prefix
from cosd_providers.engines.openai.dialects import Dialect
from cosd_providers.engines.openai.discovery import check_tokenizer, choose, unbegun
from cosd_providers.engines.openai.proposals import Proposing
from cosd_providers.engines.openai.text_drafts import Drafting
from cosd_providers.engines.openai.wire import Billed, Cached, Completion, Logprobs, Named, WireAnswer, steps
from cosd_providers.errors import ContextLengthError, InvalidRequestError, ResponseError, UnsupportedError
from cosd_providers.greedy import ROUNDING, TIES
from cosd_providers.http.transport import MANY_IDLE, Transport
from cosd_providers.parsing import parse
from cosd_providers.sampling import DraftOptions
from cosd_providers.tokenizers import Tokenizer
from cosd_providers.usage import Usage

_GREEDY: Mapping[str, object] = {
    "temperature": 0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
    "repeat_last_n": 0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "stop": [],  # without this, the model's own stop strings would also apply to raw text
}
"""Options for greedy decoding. A missing option falls back to the model's file, or to the server's default."""

_RAW: Mapping[str, object] = {"raw": True, "think": False, "logprobs": True, "top_logprobs": TIES}
"""Fields for unchanged text. Without `think`, the server treats part of some models' answers as thinking."""

_WHOLE: Mapping[str, object] = {"truncate": False, "shift": False}
"""Fields that make the server refuse a text that does not fit, and end an answer when the context is full."""

_OWNED = {*_RAW, *_WHOLE, "context", "format", "images", "model", "prompt", "stream", "suffix", "system", "template"}
_OWNED_OPTIONS = {*_GREEDY, "mirostat", "num_ctx", "num_predict", "seed", "tfs_z"}

_MOST = 20  # the server refuses to list more tokens at a position
_TOKENS = 4  # number of tokens in the first answer, enough to contain text
_BEYOND = 64  # number of words by which the long text exceeds the context's number of tokens

_M = TypeVar("_M", bound=BaseModel)

DIALECT = Dialect(
    "ollama",
    completions="/api/generate",
    chat=None,
    most=20,
    lists=False,
    echo=False,
    stream_options={},
    probs=True,
    shows_parts=True,
    longer="Give the model a longer context: `context`, OLLAMA_CONTEXT_LENGTH, or num_ctx in its Modelfile.",
)
"""Ollama's protocol, described as a dialect of OpenAI's protocol."""


# The wire format. Tokens have the shape of OpenAI's chat route, so answers are converted to OpenAI's protocol.


class OllamaEvent(BaseModel):
    """An answer, or an event of a stream; the last event has `done` and the usage."""

    response: str = ""
    thinking: str | None = None  # text that the server has moved out of the answer
    done: bool = False
    # `"stop"` (the end of sequence, which is not shown), `"length"` (the limit, or the end of the context), or `"load"`
    # if the model has written nothing
    done_reason: str | None = None
    logprobs: list[Named] | None = None
    prompt_eval_count: int | None = None
    # number of cached tokens in the prompt. If this field is present, `prompt_eval_count` includes them
    prompt_eval_cached_count: int | None = None
    eval_count: int | None = None

    @property
    def answer(self) -> WireAnswer:
        """The event in the shape of OpenAI's protocol."""
        choice = Completion(
            text=self.response,
            message=None,
            logprobs=None if self.logprobs is None else Logprobs(content=[*map(_marked, self.logprobs)]),
            finish_reason=(self.done_reason or None) if self.done else None,
        )
        cached = self.prompt_eval_cached_count
        billed = Billed(
            prompt_tokens=self.prompt_eval_count or 0,
            completion_tokens=self.eval_count,
            prompt_tokens_details=None if cached is None else Cached(cached_tokens=cached),
        )
        return WireAnswer(choices=[choice], usage=billed if self.done else None)


def _marked(entry: Named) -> Named:
    """Mark an entry (`hides`) if the server has left out tokens before it.

    Greedy decoding always chooses a listed token. So if the entry's text is not ASCII, and no listed token has both the
    same text and the same probability, the text includes the bytes of hidden tokens.
    """
    listed, own = entry.top_logprobs or [], entry.logprob
    same = [other.logprob for other in listed if other.token == entry.token]
    alike = own is None or any(value is not None and isclose(value, own, abs_tol=ROUNDING) for value in same)
    return entry.model_copy(update={"hides": bool(listed) and not alike and not entry.token.isascii()})


class LoadedModel(BaseModel):
    """A model in the server's memory: its name, and the size of the context that it was loaded with."""

    name: str
    context_length: int | None = None


class LoadedModels(BaseModel):
    """The response of `/api/ps`."""

    models: list[LoadedModel]

    def context(self, model: str) -> int | None:
        """Return the size of a model's context; None if unknown."""
        names = {model.lower(), f"{model}:latest".lower()}
        return next((one.context_length for one in self.models if one.name.lower() in names), None)


class OllamaVersion(BaseModel):
    """The response of `/api/version`."""

    version: str


class OllamaClient(OpenAIClient):
    """Requests to one Ollama server; `context` is the size of the context to load the model with, in tokens."""

    def __init__(
        self, transport: Transport, tokenizer: Tokenizer | None, extra: Mapping[str, object], context: int | None
    ) -> None:
        super().__init__(transport, DIALECT, "completions", tokenizer, extra)
        options = cast("Mapping[str, object]", extra.get("options", {}))
        self._options = {**options, **_GREEDY, **({} if context is None else {"num_ctx": context})}

    def read(self, data: object) -> WireAnswer:
        """Validate an answer, or an event of a stream, and convert it to OpenAI's protocol.

        Raises:
            UnsupportedError: the server has moved a part of the answer to `thinking`.
            ResponseError: the answer has an unknown shape, or the server has shifted its context.
        """
        event = parse(OllamaEvent, data, self.endpoint)
        if event.thinking:
            words = "the server has taken a part of the answer for thinking, although asked not to (think)"
            raise UnsupportedError(words, endpoint=self.endpoint, hint="Is it Ollama 0.12.11 or later?")
        total = (event.prompt_eval_count or 0) + (event.eval_count or 0)
        if self.facts.context is not None and total > self.facts.context + 1:  # the last token may exceed the context
            words = f"the server has processed {total} tokens in a context of {self.facts.context} (shift)"
            raise ResponseError(words, endpoint=self.endpoint, hint=DIALECT.longer)
        return event.answer

    async def check_read(self, prefix: Prefix, billed: Billed | None) -> None:
        """Check as in `OpenAIClient.check_read`, but only if the server's count includes cached tokens."""
        if billed is not None and billed.prompt_tokens_details is not None:
            await super().check_read(prefix, billed)

    def note_size(self, prefix: Prefix, reported: Billed | None) -> None:
        """Remember the number of tokens as in `OpenAIClient.note_size`, but only if it includes cached tokens."""
        if reported is not None and reported.prompt_tokens_details is not None:
            super().note_size(prefix, reported)

    def shown(self, listed: int = TIES) -> dict[str, object]:
        """Return fields that request the `listed` most probable tokens, or as many as the server allows."""
        return {"top_logprobs": min(listed, _MOST)}

    def body(self, prefix: Prefix, limit: int) -> dict[str, object]:
        """Build the body of a greedy request without a stream, which asks for the most probable tokens."""
        if not prefix.whole:
            words = "prompt and text are empty, and Ollama writes nothing after an empty prompt"
            raise InvalidRequestError(words, endpoint=self.endpoint)
        options = {**self._options, "num_predict": max(limit, 1)}
        more = {"model": self.facts.model, "prompt": prefix.whole, "stream": False, "options": options}
        return {**self._extra, **_RAW, **_WHOLE, **more}


class Ollama(Engine[ServerFacts]):
    """A model served by Ollama. See `contract.Provider`.

    Args:
        url: the server's URL.
        tokenizer: the model's own tokenizer, in any form that `load_tokenizer` accepts. It is used for `tokenize`, and
            for questions at every boundary of a text.
        context: size of the context to load the model with (`num_ctx`), prompt and answer together. By default the
            server decides.
        options: as in `engine.Engine`. `model` (e.g. `"llama3.2"`) is required if the server has several models.
            `api_key` is for a proxy that requires a key. `extra_body` may be e.g. `{"keep_alive": -1, "options":
            {"num_gpu": 0}}`. `timeout` includes the time to load the model.

    Raises:
        ValueError: `extra_body` sets a field that the fusion controls, or its `options` are not a mapping.
    """

    _facts_type = ServerFacts
    _ready_route = "/api/version"
    _idle = MANY_IDLE

    def __init__(
        self, url: str, *, tokenizer: object = None, context: int | None = None, **options: Unpack[EngineOptions]
    ) -> None:
        base = url.strip().rstrip("/").removesuffix("/api")
        super().__init__(base, owned=_OWNED, strategy=None, tokenizer=tokenizer, **options)
        more = self._extra.get("options", {})
        if not isinstance(more, Mapping):
            raise ValueError("the options of extra_body are a mapping, e.g. {'num_gpu': 0}")
        checked_extra(cast("Mapping[str, object]", more), _OWNED_OPTIONS)
        self._context = context
        self._client = OllamaClient(self._transport, self._tokenizer, self._extra, context)

    async def discovered(self) -> ServerFacts:
        """Return the facts about the server, found at the first use or restored, and pass them to the client."""
        found = await super().discovered()
        facts = self._client.facts
        facts.model, facts.context = found.info.model, found.info.context
        able = replace(found.info.capabilities, tokenize=self._tokenizer is not None, texts=facts.texts)
        return replace(found, info=replace(found.info, capabilities=able))

    async def _draft(self, context: Context, max_tokens: int, options: DraftOptions, usage: Usage) -> Drafting:
        return Drafting(self._client, context, usage, options, max_tokens)

    async def propose(
        self,
        context: Context,
        questions: Sequence[Question] | None,
        *,
        alternatives: int = 0,  # noqa: ARG002 - none are listed
        usage: Usage,
    ) -> list[Proposal | None]:
        """Send one request for each place, several at a time; see `contract.Provider`.

        `questions=None` is possible only with a tokenizer.
        """
        await self.facts()
        questions = await self._places(context, questions)
        return await Proposing(self._client, context, usage, strategy="singles").answer(questions)

    async def _render(
        self,
        messages: list[dict[str, Any]],  # noqa: ARG002 - none can be
        tools: Sequence[Mapping[str, Any]] = (),  # noqa: ARG002
    ) -> str:
        raise self._unsupported("Ollama does not render conversations: its templates are in Go", NO_TEMPLATE)

    async def begun(self, prompt: str) -> str:
        """Strip the beginning of sequence, which the server puts before every text, from a rendered prompt."""
        await self.facts()
        return await unbegun(self._client, prompt)

    async def _discover(self) -> ServerFacts:
        """Load the model, find its limits, and check that the server honours the request's fields, without billing.

        Raises:
            UnsupportedError: the server gives no probabilities, or cuts a text that is too long.
        """
        self._client.facts.model, _ = await choose(self._transport, DIALECT, self._model)
        build = (await self._got("/api/version", OllamaVersion)).version
        first = await self._client.one(Prefix("a", ""), _TOKENS, Usage(), check=False)
        if first.choices[0].written and not any(step.top for step in steps(first.choices[0])):
            words = f"Ollama {build} gives no probabilities with its tokens, although asked (logprobs)"
            hint = "It does from 0.12.11 on: update it. Models that run in Ollama's cloud have none at all."
            raise self._unsupported(words, hint)
        loaded = await self._got("/api/ps", LoadedModels)
        context = loaded.context(self._client.facts.model) or self._context
        if context is None:
            words = "the size of the context is unknown: /api/ps does not report it"
            raise self._unsupported(words, "Give it as `context`, or update Ollama.")
        await self._check_refusal(context)
        if self._tokenizer and first.usage is not None and first.usage.prompt_tokens_details is not None:
            await check_tokenizer(self._client, self._tokenizer)
        able = Capabilities(token_ids=False, end_prob=False, tokenize=False, score=False)
        endpoint, model = self._transport.endpoint, self._client.facts.model
        return ServerFacts(ServerInfo(endpoint, "ollama", model, build, context, able))

    async def _got(self, path: str, kind: type[_M]) -> _M:
        return parse(kind, await self._transport.get(path), self._transport.endpoint)

    async def _check_refusal(self, context: int) -> None:
        """Check that the server refuses a text that cannot fit, because an answer would not show that it was cut."""
        long = " ".join(map(str, range(context + _BEYOND)))
        try:
            await self._client.one(Prefix(long, ""), 1, Usage(), check=False)
        except (ContextLengthError, InvalidRequestError):  # caused by the length, because a short text was accepted
            return
        words = "the server cuts a text that is too long and does not say so, although told not to (truncate)"
        raise self._unsupported(words, "Is it Ollama 0.12.11 or later?")
