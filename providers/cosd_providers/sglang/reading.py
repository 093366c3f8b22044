"""How the answers of SGLang's `/generate` are read, and what in them cannot be right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cosd_providers.errors import (
    ContextLengthError,
    InvalidRequestError,
    ProviderError,
    ResponseError,
    ServerError,
    UnsupportedError,
)
from cosd_providers.greedy import ROUNDING, check_greedy, check_own, prob
from cosd_providers.sglang.wire import Answer, Meta, Triple
from cosd_providers.usage import Usage

__all__ = ["Events", "Step", "checked", "scored", "steps"]

_NOTHING = -1e4  # a logarithm below which no probability of a softmax lies
_QUOTED = 300  # characters of the server's own words


@dataclass(frozen=True, slots=True)
class Step:
    """A token that the server took.

    Attributes:
        id: its id.
        prob: its probability.
        text: its text, decoded alone.
        best: the probability of the most probable tokens.
        tied: their ids.
        more: whether there may be more of them than were listed.
        others: all that are listed beside it: the id of each, its probability, and its text, decoded alone.
    """

    id: int
    prob: float
    text: str
    best: float
    tied: tuple[int, ...]
    more: bool
    others: tuple[tuple[int, float, str], ...] = ()


def checked(answer: Answer, endpoint: str, read: int) -> Answer:
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
        words = "the server stops at a text of its own, which no request can undo"
        raise UnsupportedError(words, endpoint=endpoint, hint="Start it without stop strings.")
    if meta.prompt_tokens < read:
        words = f"the server cut the text: it read {meta.prompt_tokens} of {read} tokens"
        hint = "Shorten the prompt, or start the server without --allow-auto-truncate."
        raise ContextLengthError(words, endpoint=endpoint, hint=hint)
    return answer


def _aborted(meta: Meta, endpoint: str) -> ProviderError:
    """The server's own words for why it ended an answer, as an error."""
    finish = meta.finish_reason
    said = ((finish.message if finish else None) or "no reason was told")[:_QUOTED]
    status = finish.status_code if finish else None
    words = f"the server broke the answer off: {said}"
    if status == 400:
        long = "maximum allowed length" in said or "context length" in said
        return (ContextLengthError if long else InvalidRequestError)(words, endpoint=endpoint, status=status)
    if status is not None and status >= 500:
        return ServerError(words, endpoint=endpoint, status=status)
    return ResponseError(words, endpoint=endpoint, retryable=True)


def steps(answer: Answer, endpoint: str, *, since: int = 0) -> list[Step]:
    """The tokens of an answer, or of an event whose `since` first ones were read before.

    Raises:
        UnsupportedError: probabilities are missing, or are none.
    """
    meta = answer.meta_info
    entries, tops = meta.output_token_logprobs or [], meta.output_top_logprobs or []
    if len(entries) != meta.completion_tokens - since or len(tops) != len(entries):
        raise _missing(endpoint, any_=bool(entries))
    return [_step(entry, top or [], endpoint) for entry, top in zip(entries, tops, strict=True)]


def _missing(endpoint: str, *, any_: bool) -> UnsupportedError:
    if not any_:
        words = "the server gives no probabilities with its tokens, although asked (return_logprob)"
        return UnsupportedError(words, endpoint=endpoint)
    words = "the server gives probabilities for some of its tokens only"
    hint = "Some versions do so where they decode speculatively: start it without --speculative-algorithm."
    return UnsupportedError(words, endpoint=endpoint, hint=hint)


def _step(entry: Triple, top: Sequence[Triple], endpoint: str) -> Step:
    """One token that the server took, which has to be the most probable one."""
    own, token_id, text = entry
    best = max((value for value, _, _ in top if value is not None), default=None)
    if best is None and own is not None:
        raise _missing(endpoint, any_=True)
    check_own(prob(own), endpoint)
    if own is None or best is None:  # never: it has a probability
        raise _missing(endpoint, any_=False)
    values = [value for value, _, _ in top]
    if own == 0 and len(top) > 1 and all(value is None or value < _NOTHING for value in values[1:]):
        words = "what the server gives as probabilities of greedy decoding is 1 for its own token and 0 for all others"
        hint = "Update SGLang, or start it with SGLANG_RETURN_ORIGINAL_LOGPROB=1 (older: RETURN_ORIGINAL_LOGPROB=1)."
        raise UnsupportedError(words, endpoint=endpoint, hint=hint)
    check_greedy(prob(own), [prob(best)], endpoint)
    tied = tuple(sorted(other for value, other, _ in top if value == best))
    others = tuple((other, prob(value) or 0.0, said or "") for value, other, said in top if other != token_id)
    return Step(token_id, prob(own) or 0.0, text or "", prob(best) or 0.0, tied, len(tied) == len(top), others)


def scored(answer: Answer, ids: Sequence[int], first: int, endpoint: str) -> list[tuple[Triple, list[Triple]]]:
    """The prompt's tokens from place `first` on: each as it is, and the most probable ones at its place.

    Some versions tell entries for the whole prompt, others from the place that was asked for: the last one is the
    prompt's last, and each says its id.

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
    if not all(_belongs(entry, top, expected) for (entry, top), expected in zip(found, ids[first:], strict=True)):
        words = "the probabilities that the server gives for a text do not belong to its tokens"
        raise UnsupportedError(words, endpoint=endpoint, hint="Use strategy='list'.")
    return found


def _belongs(entry: Triple, top: Sequence[Triple], expected: int) -> bool:
    """Whether an entry is of the token that is expected there, and what is listed beside it of the same place."""
    own, token_id, _ = entry
    values = [value for value, _, _ in top if value is not None]
    if token_id != expected or not values:
        return False
    listed = next((value for value, other, _ in top if other == token_id), None)
    if listed is None:  # it is less probable than all that are listed
        return own is None or own <= min(values) + ROUNDING
    return own is not None and abs(own - listed) < ROUNDING


class Events:
    """Reads one stream, whose events hold all so far, or with `--incremental-streaming-output` what is new alone.

    Args:
        endpoint: for errors.
        read: how many tokens the prompt has.

    Attributes:
        seen: tokens so far.
        finish: why the answer ended; None before it did.
        last: what was told last beside the text.
    """

    def __init__(self, endpoint: str, read: int) -> None:
        self.seen = 0
        self.finish: str | None = None
        self.last: Meta | None = None
        self._endpoint = endpoint
        self._read = read
        self._text = ""

    def feed(self, answer: Answer) -> tuple[list[Step], str]:
        """The new tokens of an event, and the new text."""
        meta = self.last = checked(answer, self._endpoint, self._read).meta_info
        if meta.finish_reason is not None:
            self.finish = meta.finish_reason.type
        if 0 < meta.completion_tokens <= self.seen:  # an event that was sent once more, or that ends the answer alone
            return [], ""
        entries = meta.output_token_logprobs or []
        whole = len(entries) == meta.completion_tokens
        text = answer.text or ""
        found = steps(answer, self._endpoint, since=0 if whole else self.seen)
        if whole:
            found = found[self.seen :]
            text = text.removeprefix(self._text)
        self._text += text
        self.seen = meta.completion_tokens
        return found, text

    def bill(self, usage: Usage) -> None:
        """Counts what was read and written so far."""
        if self.last is not None:
            usage.bill(self.last.prompt_tokens, self.last.completion_tokens, self.last.cached_tokens)
