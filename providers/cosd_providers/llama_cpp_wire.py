"""The wire of llama.cpp's `/completion`: what is sent, what comes back, and how a stream becomes a draft."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import AliasChoices, AliasPath, BaseModel, Field, RootModel, ValidationError, model_validator

from cosd_providers.contract import ServerInfo, Token, Usage
from cosd_providers.errors import InvalidRequestError, ResponseError, UnsupportedError
from cosd_providers.scoring import Choice, Draft, Position
from cosd_providers.text import whole

__all__ = [
    "FIELDS",
    "GREEDY",
    "OWNED",
    "Answer",
    "Answers",
    "Entry",
    "Models",
    "Pieces",
    "Prefix",
    "Props",
    "Reader",
    "Server",
    "bill",
    "parse",
    "prob",
    "sent",
]

Prefix = list[str | int]
"""A prompt: a text, and the ids that follow it."""

GREEDY: dict[str, object] = {
    "temperature": 0,
    "samplers": ["temperature"],
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "xtc_probability": 0.0,
    "mirostat": 0,
    "ignore_eos": False,
    "post_sampling_probs": False,
    "stop": [],
    "grammar": "",
}
"""The most probable token, always: no sampler may change that, and none may stop it early."""

FIELDS = [
    "index",
    "stop",
    "stop_type",
    "tokens",
    "tokens_evaluated",
    "tokens_predicted",
    "truncated",
    "timings/cache_n",
    "completion_probabilities",
]
"""What is needed of an answer; without this list it repeats the prompt and all settings."""

OWNED = {
    *GREEDY,
    "json_schema",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "model",
    "n",
    "n_cmpl",
    "n_predict",
    "n_probs",
    "prompt",
    "response_fields",
    "return_tokens",
    "stream",
}
"""What a user's `extra_body` may not set."""


class Entry(BaseModel):
    """A token with its probability, as it is sent."""

    id: int
    bytes: list[int]
    logprob: float | None
    top_logprobs: list[Entry] = []


class Answer(BaseModel):
    """An answer of `/completion`, or one event of its stream."""

    index: int = 0
    stop: bool = False
    stop_type: str = ""
    tokens: list[int] = []
    tokens_evaluated: int
    tokens_predicted: int
    truncated: bool = False
    cached: int = Field(0, validation_alias=AliasChoices("timings/cache_n", AliasPath("timings", "cache_n")))
    completion_probabilities: list[Entry] = []


class Answers(RootModel[list[Answer]]):
    """The answers to a list of prompts; that to a list of one comes bare."""

    @model_validator(mode="before")
    @classmethod
    def _as_list(cls, data: Any) -> Any:
        return [data] if isinstance(data, dict) else data  # pyright: ignore[reportUnknownVariableType]


class RawPiece(BaseModel):
    """A token of `/tokenize`; its bytes where they are no text."""

    id: int
    piece: str | list[int]


class Pieces(BaseModel):
    """The answer of `/tokenize`."""

    tokens: list[RawPiece]


class Settings(BaseModel):
    """What a slot of the server has."""

    n_ctx: int | None = None


class Props(BaseModel):
    """The answer of `/props`."""

    default_generation_settings: Settings
    eos_token: str = ""
    build_info: str | None = None


class Listed(BaseModel):
    """A model of `/v1/models`."""

    id: str
    aliases: list[str] = []


class Models(BaseModel):
    """The answer of `/v1/models`."""

    data: list[Listed]


_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Server:
    """What was learned of a server.

    Attributes:
        info: its card.
        ends: the ids that end a sequence, with their names; one is added when it is first seen.
        visible: an id whose text is whole: its event is never held back.
    """

    info: ServerInfo
    ends: dict[int, str | None]
    visible: int

    def entries(self, answer: Answer) -> list[Entry]:
        """The tokens of an answer or event with their probabilities, or the reason why there are none."""
        entries = answer.completion_probabilities
        if not entries:
            words = "the server gives no probabilities with its tokens, although asked (n_probs)"
            raise UnsupportedError(words, endpoint=self.info.endpoint)
        for entry in entries:
            if not entry.top_logprobs and not entry.logprob:
                words = "the server decodes speculatively and then reports every probability as 1"
                hint = "Start it without a draft model (--model-draft, --spec-type)."
                raise UnsupportedError(words, endpoint=self.info.endpoint, hint=hint)
        return entries

    def choice(self, entry: Entry) -> Choice:
        """A token as scoring takes it."""
        if entry.id in self.ends:
            return Choice(entry.id, Token(b"", prob(entry), end=True, name=self.ends[entry.id]))
        return Choice(entry.id, Token(bytes(entry.bytes), prob(entry)))

    def positions(self, answer: Answer) -> list[Position]:
        """What the server went through, up to the first token that it hides."""
        entries = self.entries(answer) if answer.completion_probabilities else []
        if answer.stop_type == "eos" and answer.tokens:
            self.ends.setdefault(answer.tokens[-1], None)
        positions: list[Position] = []
        for token_id, entry in zip(answer.tokens, entries, strict=False):
            if entry.id != token_id:
                break
            positions.append(Position(self.choice(entry), [self.choice(item) for item in entry.top_logprobs]))
        return positions

    def hidden_position(self, answer: Answer) -> Position:
        """The position before a forced token. Of equally probable ones the hidden one was the server's pick."""
        top = [self.choice(item) for item in self.entries(answer)[0].top_logprobs]
        best = [choice for choice in top if choice.token.prob == top[0].token.prob]
        hidden = [choice for choice in best if whole(choice.token.data) < len(choice.token.data)]
        return Position(min(hidden or best, key=lambda choice: choice.id), top)

    def check_read(self, answer: Answer) -> None:
        """An error where the server had nothing to go on from."""
        if not answer.tokens_evaluated:
            words = "prompt and text are empty, and the model has no beginning-of-sequence token to go on from"
            raise InvalidRequestError(words, endpoint=self.info.endpoint)

    def broken(self, words: str) -> ResponseError:
        """An answer that is not what it should be."""
        return ResponseError(words, endpoint=self.info.endpoint, retryable=True)


class Reader:
    """Reads one stream of `/completion` into a draft.

    Attributes:
        done: nothing further of the stream is needed.
        hidden: the next raw token of the draft is one that the server does not show.
        full: the context is full.
    """

    def __init__(self, server: Server, draft: Draft) -> None:
        self.done = False
        self.hidden = False
        self.full = False
        self._server = server
        self._draft = draft
        self._seen = 0
        self._held: Choice | None = None
        self._last: Answer | None = None

    def feed(self, data: dict[str, Any]) -> list[Token]:
        """Takes one event; gives the whole tokens that it completes."""
        event = self._last = parse(Answer, data, self._server.info.endpoint)
        tokens: list[Token] = []
        if event.completion_probabilities or not event.stop:
            entries = self._server.entries(event)
            self._seen += len(entries)
            if event.tokens_predicted == self._seen and not self._beyond(event):
                for entry in entries:
                    tokens += self._release()
                    self._take(self._server.choice(entry), tokens)
        if event.tokens_predicted != self._seen:
            tokens += self._release()
            self.done = self.hidden = True
        elif event.stop:
            tokens += self._finish(event)
        return tokens

    def bill(self, usage: Usage) -> None:
        """Counts what was read and written so far."""
        if self._last is not None:
            bill(usage, self._last)

    def _take(self, choice: Choice, tokens: list[Token]) -> None:
        data = choice.token.data
        if not choice.token.end and (not data or (data[:1] == b"<" and data[-1:] == b">")):
            self._held = choice  # perhaps an end that was not known yet: the next event tells
        else:
            tokens += self._draft.feed(choice.id, choice.token)

    def _release(self) -> list[Token]:
        """The token that was held back, as an ordinary one."""
        held, self._held = self._held, None
        return self._draft.feed(held.id, held.token) if held is not None else []

    def _finish(self, event: Answer) -> list[Token]:
        """The last event."""
        self.done = True
        self._server.check_read(event)
        if event.stop_type == "eos" and self._held is not None:
            self._server.ends[self._held.id] = None
            self._held = Choice(self._held.id, Token(b"", self._held.token.prob, end=True))
        tokens = self._release()
        context = self._server.info.context
        self.full = event.truncated or bool(context and event.tokens_evaluated + self._seen >= context)
        if event.stop_type == "eos" and not self._draft.over:
            raise self._server.broken("the end of sequence is shown as text; start the server without --special")
        return tokens

    def _beyond(self, event: Answer) -> bool:
        """Whether the server went on by forgetting what stands at the start of its context."""
        context = self._server.info.context
        if context and event.tokens_evaluated + event.tokens_predicted > context:
            self.done = self.full = True
        return self.full


def sent(prefix: Prefix) -> object:
    """A prompt as it is sent: the server takes a list only where it holds both text and ids."""
    return prefix if len(prefix) > 1 else prefix[0]


def parse(kind: type[_M], data: object, endpoint: str) -> _M:
    """`data` in the shape that it should have."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        words = f"the answer is not as expected: {where}: {first['msg']}"
        raise ResponseError(words, endpoint=endpoint) from None


def prob(entry: Entry) -> float | None:
    """The probability of a token; None where it is not a number."""
    logprob = entry.logprob
    return None if logprob is None or math.isnan(logprob) else math.exp(min(logprob, 0.0))


def bill(usage: Usage, answer: Answer) -> None:
    """Counts what an answer, or a stream so far, has cost."""
    usage.prompt_tokens += answer.tokens_evaluated
    usage.completion_tokens += answer.tokens_predicted
    usage.cached_tokens += answer.cached
