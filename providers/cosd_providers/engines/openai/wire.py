"""The wire format of OpenAI's `/v1/completions` and `/v1/chat/completions`, as many servers implement it.

Log probabilities come in two shapes, and a server may use either shape on either route. The *legacy* shape has parallel
lists, with alternatives keyed by their text. The *chat* shape has an object for each token, with the token's bytes and,
on some servers, its id. This module converts both shapes into `Step`s, so that no other module has to know the
difference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise, repeat
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field

from cosd_providers.drafting import RequestBill
from cosd_providers.engine import own_stop
from cosd_providers.errors import ResponseError
from cosd_providers.greedy import prob
from cosd_providers.messages import Message
from cosd_providers.parsing import LogProb, unless_none

_ID = re.compile(r"token_id:(\d+)")
"""A token that is written as an id, as vLLM and other servers do if the request asks for ids."""

_BYTES = re.compile(r"bytes:((?:\\x[0-9a-f]{2})+)")
"""A token that is not valid text, in the notation of OpenAI's legacy shape."""

_STOPS = ("eos", "eos_token", "end_turn")
"""Finish reasons that mean the end of sequence on some servers; all other servers report "stop"."""

FINISHES = ("stop", "length", "content_filter")
"""The known finish reasons of an answer."""

_NEVER = -745.0
"""The least log probability of a token that is possible: the exponential of a lower number is 0."""

Byte = Annotated[int, Field(ge=0, le=255)]


def _alone(value: Any) -> Any:
    return {"alone": True} if isinstance(value, int | float) else value


def _reason(value: Any) -> Any:
    return "stop" if value in _STOPS else value or None  # an empty string means no reason


Number = Annotated[int, unless_none(0)]


@dataclass(slots=True)  # not frozen, for speed: each listed token needs an object
class Candidate:
    """A token in a server's answer, with its probability."""

    # the server's string for the token. If the token leaves a character unfinished, the string is empty or contains
    # U+FFFD. The token's leading space may be missing
    text: str
    prob: float | None  # its probability; None if unknown
    # its bytes; None if unknown. The end of sequence has none (and no string), but neither has a part of a character on
    # some servers
    data: bytes | None = None
    id: int | None = None  # its id; None if unknown
    # the logarithm that the server shows; None if there is none
    logprob: float | None = field(default=None, compare=False)


@dataclass(slots=True)
class Step:
    """One token of an answer, and the most probable tokens at its position, in any order."""

    pick: Candidate
    top: Sequence[Candidate] = ()
    # whether the server left out earlier tokens and their probabilities, and added their bytes to this token
    hides: bool = False
    # whether the token's string is complete. If not, the token may have further bytes: the first bytes of a character
    sure: bool = True


class Named(BaseModel):
    """A token in the chat shape of log probabilities."""

    token: str
    logprob: LogProb | None = None
    bytes: list[Byte] | None = None
    id: int | None = Field(None, validation_alias=AliasChoices("id", "token_id"))
    top_logprobs: list[Named] | None = None
    hides: bool = False


class Logprobs(BaseModel):
    """Log probabilities in either shape: `content` is the chat shape, and the other lists are the legacy shape.

    `alone` means that the server sent a bare number.
    """

    alone: bool = False
    content: list[Named] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[LogProb | None] | None = None
    top_logprobs: list[dict[str, LogProb | None] | None] | None = None
    text_offset: list[int | None] | None = None


class Ranked(BaseModel):
    """An entry of vLLM's `prompt_logprobs`."""

    logprob: LogProb | None
    decoded_token: str | None = None


class ChatDelta(BaseModel):
    """The text that a chat answer, or an event of its stream, adds."""

    content: str | None = None
    reasoning: str | None = Field(None, validation_alias=AliasChoices("reasoning", "reasoning_content"))


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages around the prompt and the text of a request."""

    earlier: tuple[Message, ...] = ()  # the messages before the prompt
    role: str = "user"
    started: str = ""  # the partial answer before the text
    lead: str = ""  # white space that the server writes before a partial answer; the model's own answer begins with it

    def answer(self, text: str) -> str:
        """Return the partial answer to send for continuation; `text` begins with the model's leading white space."""
        return self.started + (text.removeprefix(self.lead) or text)

    def messages(self, prompt: str, text: str, continued: Mapping[str, object]) -> list[dict[str, object]]:
        """Return all messages to send; a partial answer to continue gets the additional fields `continued`."""
        sent: list[dict[str, object]] = [{"role": one.role, "content": one.content} for one in self.earlier]
        sent.append({"role": self.role, "content": prompt})
        if answer := self.answer(text):
            sent.append({"role": "assistant", "content": answer, **continued})
        return sent


class Completion(BaseModel):
    """One answer in a response on either route: a whole answer, or an event of a stream."""

    index: Number = 0
    text: Annotated[str, unless_none("")] = ""
    message: ChatDelta | None = Field(None, validation_alias=AliasChoices("message", "delta"))
    logprobs: Annotated[Logprobs | None, BeforeValidator(_alone)] = None
    finish_reason: Annotated[str | None, BeforeValidator(_reason)] = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[int, Ranked] | None] | None = None

    @property
    def written(self) -> str:
        """The text that the answer adds."""
        return self.text or (self.message.content or "" if self.message else "")


class Cached(BaseModel):
    """The number of prompt tokens that came from the server's cache."""

    cached_tokens: int | None = None


class Billed(BaseModel):
    """The usage of an answer."""

    prompt_tokens: Number = 0
    completion_tokens: int | None = None
    prompt_tokens_details: Cached | None = None

    @property
    def cached(self) -> int:
        """The number of prompt tokens from the server's cache; 0 if unknown."""
        return (self.prompt_tokens_details.cached_tokens or 0) if self.prompt_tokens_details else 0


class WireAnswer(BaseModel):
    """A response on either route, or one event of its stream."""

    choices: Annotated[list[Completion], unless_none([])] = []
    usage: Billed | None = None

    def report(self, bill: RequestBill) -> None:
        """Write the usage into the bill of the request; without a number of tokens written, count the tokens shown."""
        usage = self.usage or Billed()
        if usage.prompt_tokens:
            bill.read, bill.cached = usage.prompt_tokens, usage.cached
        if usage.completion_tokens is None:
            bill.written += sum(len(steps(choice)) for choice in self.choices)
        else:
            bill.written = usage.completion_tokens


def check_finish(answer: Completion, endpoint: str) -> None:
    """Raise an error if an answer ended at a stop string from the server's settings, or for an unknown reason."""
    if isinstance(answer.stop_reason, str) and answer.stop_reason:
        raise own_stop(endpoint, hint="Start it without stop strings, in its generation settings too.")
    if answer.finish_reason is not None and answer.finish_reason not in FINISHES:
        words = f"the answer ended for an unknown reason: {answer.finish_reason[:40]!r}"
        raise ResponseError(words, endpoint=endpoint)


def steps(answer: Completion) -> list[Step]:
    """Return the tokens of an answer with their probabilities, from either shape; empty if the answer has none."""
    logprobs = answer.logprobs
    if logprobs is None:
        return []
    found = _chat(logprobs.content) if logprobs.content is not None else _placed(_marked(_legacy(logprobs)), answer)
    ids = answer.token_ids or ()
    if len(ids) != len(found):
        return found
    for step, token_id in zip(found, ids, strict=True):
        step.pick.id, step.sure, step.hides = token_id, True, False
    return found


def strings(answer: Completion) -> list[str]:
    """Return the server's string for each token."""
    logprobs = answer.logprobs or Logprobs()
    return logprobs.tokens or [] if logprobs.content is None else [one.token for one in logprobs.content]


def marks(answer: Completion) -> list[tuple[object, ...]]:
    """Return a mark for each token: its string, its offset if known, and all listed log probabilities.

    Tokens at different positions hardly ever have equal marks, even if the model repeats itself. A token that is
    certain, so that its list shows only probabilities of 1 and 0, has no mark.
    """
    logprobs, found = answer.logprobs or Logprobs(), list[tuple[object, ...]]()
    if logprobs.content is not None:
        found += [(one.token, one.logprob, *(o.logprob for o in one.top_logprobs or ())) for one in logprobs.content]
    elif logprobs.tokens and logprobs.token_logprobs:
        tops = chain(logprobs.top_logprobs or (), repeat(None))
        shown = zip(logprobs.tokens, logprobs.token_logprobs, logprobs.text_offset or repeat(0), tops, strict=False)
        found += [(*own, *(top or {}).values()) for *own, top in shown]
    return [one for one in found if any(isinstance(value, float) and _NEVER < value < 0 for value in one)]


def rest_of(answer: Completion, seen: Sequence[str], text: str) -> Completion | None:
    """Strip the first tokens, with these strings and this text, from an answer; None if it begins differently."""
    count, written, found = len(seen), answer.written, answer.logprobs or Logprobs()
    if strings(answer)[:count] != [*seen] or not written.startswith(text):
        return None
    lists = ("content", "tokens", "token_logprobs", "top_logprobs", "text_offset")
    left = {name: values[count:] for name in lists if (values := getattr(found, name)) is not None}
    update = {"text": written.removeprefix(text), "message": None, "logprobs": found.model_copy(update=left)}
    return answer.model_copy(update={**update, "token_ids": None})


def _chat(content: Sequence[Named]) -> list[Step]:
    return [Step(_named(one), [_named(other) for other in one.top_logprobs or ()], one.hides) for one in content]


def _named(entry: Named) -> Candidate:
    plain = _candidate(entry.token, entry.logprob)
    data = plain.data
    # Bytes that equal the string are ignored: if the string lacks its leading space, so do the bytes, and the text is
    # more reliable. The bytes of an unfinished character may be the bytes of U+FFFD.
    if entry.bytes and bytes(entry.bytes) != entry.token.encode():
        data = bytes(entry.bytes)
    elif entry.bytes is not None and not entry.token:
        data = b""
    return Candidate(plain.text, plain.prob, data, plain.id if entry.id is None else entry.id, entry.logprob)


def _legacy(logprobs: Logprobs) -> list[Step]:
    tokens, values = logprobs.tokens or [], logprobs.token_logprobs or []
    tops: Sequence[Mapping[str, float | None] | None] = logprobs.top_logprobs or [None] * len(tokens)
    return [
        Step(_candidate(token, value), [_candidate(*item) for item in (top or {}).items()])
        for token, value, top in zip(tokens, values, tops, strict=False)
    ]


def _placed(found: list[Step], answer: Completion) -> list[Step]:
    """If all offsets are consistent, assign to each token without a string the text between its offset and the next.

    A token's offset is the number of whole characters before it. A character belongs to the token that completes it.
    """
    offsets, text = (answer.logprobs and answer.logprobs.text_offset) or [], answer.text
    if len(offsets) != len(found) or not text or all(step.pick.text for step in found):
        return found
    places = [place - (offsets[0] or 0) for place in offsets if place is not None]
    if len(places) != len(found) or places != sorted(places) or places[-1] > len(text):
        return found
    parts = [text[start:end] for start, end in pairwise(places)]
    if any(step.pick.text not in ("", part) for step, part in zip(found, parts, strict=False)):
        return found
    return [*(_with_text(step, part) for step, part in zip(found, parts, strict=False)), found[-1]]


def _with_text(step: Step, part: str) -> Step:
    if not part:
        return step
    # Several tokens may have no string, so a listed token without a string need not be this token.
    top = [other for other in step.top if other.text != step.pick.text] if step.pick.text else step.top
    return replace(step, pick=replace(step.pick, data=part.encode()), top=top)


def _marked(found: list[Step]) -> list[Step]:
    """Mark tokens before a token without a string as not `sure`: they may end with hidden parts of a character."""
    silent = [not step.pick.text and step.pick.data is None for step in found]
    if not any(silent):
        return found
    after = [*silent[1:], True]  # the token after the last one is unknown
    return [replace(step, sure=not (step.pick.text and one)) for step, one in zip(found, after, strict=False)]


def _candidate(text: str, logprob: float | None) -> Candidate:
    if text.startswith("token_id:") and (number := _ID.fullmatch(text)):
        return Candidate("", prob(logprob), None, int(number[1]), logprob)
    if text.startswith("bytes:") and (raw := _BYTES.fullmatch(text)):
        return Candidate("", prob(logprob), bytes.fromhex(raw[1].replace("\\x", "")), None, logprob)
    return Candidate(text, prob(logprob), None, None, logprob)
