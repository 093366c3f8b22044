"""Answer requests of lm-evaluation-harness with a fusion. This module does not import the harness itself.

A request is a tuple of arguments: a context and generation keywords for `generate_until`, a context and a continuation
for `loglikelihood`, and a text for `loglikelihood_rolling`. A context is a text or a `ConversationText`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Self, TypeVar, cast

from cosd_api import Fusion, SettingError
from cosd_api.extend import (
    DRAFT,
    AnswerOptions,
    LikelihoodOptions,
    Prompt,
    check_count,
    concurrently,
    refuse_settings,
    synchronous,
)
from cosd_api.integrations.arguments import FusionArguments
from cosd_api.integrations.connections import LoopFusions
from cosd_api.types import EndpointUsage
from cosd_providers import Context, InvalidRequestError, Piece, Provider, ProviderError, UnsupportedError, Usage

__all__ = ["ConversationText", "HarnessFusion", "answer_options", "windows"]

Done = Callable[[int, Any], None]
"""Function that is called with a request's index and answer as soon as the answer is known."""

Where = Callable[[int], str]
"""Function that describes the request with a given index, for a note on an error about that request."""

_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_OF_DRAWS = ("top_p", "top_k", "min_p", "typical_p", "seed")
_COUNTED = ("requests", "retries", "prompt_tokens", "completion_tokens", "cached_tokens", "estimated_tokens")
_BESIDE = 4
"""Number of tokens that a request may have in addition to its text, such as the beginning of sequence."""

_T = TypeVar("_T")


class ConversationText(str):
    """Messages encoded as JSON text, because the harness hashes, logs and caches prompts as text."""

    __slots__ = ()

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, Any]]) -> Self:
        """Encode messages as JSON text."""
        return cls(json.dumps(list(messages), ensure_ascii=False))

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages, decoded from the JSON text."""
        return cast("list[dict[str, Any]]", json.loads(self))


def prompt_of(context: str) -> Prompt:
    """Return a context as a prompt: a text, or the messages of a conversation."""
    return context.messages if isinstance(context, ConversationText) else context


def answer_options(given: Mapping[str, Any], *, max_gen_toks: int, temperature: float) -> AnswerOptions:
    """Convert a task's generation keywords to the limits on an answer.

    Args:
        given: the task's `generation_kwargs`.
        max_gen_toks: maximum number of tokens if the task sets no limit.
        temperature: the fusion's temperature.

    Raises:
        SettingError: the task requires something that the fusion does not support, such as a different temperature.
    """
    left = dict(given)
    until = left.pop("until", None)
    stop = [until] if isinstance(until, str) else list(until or ())
    lengths = [(name, value) for name in _LENGTHS if (value := left.pop(name, None)) is not None]
    drawn = _temperature(left)
    if drawn != temperature:
        raise SettingError(_other_temperature(drawn, temperature))
    if left.get("num_beams") == 1:
        del left["num_beams"]
    for name in _OF_DRAWS:
        value = left.pop(name, None)
        if drawn and name != "seed" and value not in (None, 0, 1):
            refuse_settings({name: value}, Fusion.generate)
    if left:
        refuse_settings(left, Fusion.generate)
    length = _whole(*lengths[0]) if lengths else max_gen_toks
    return {"stop": [one for one in stop if one], "max_tokens": length}


def _whole(name: str, value: Any) -> int:
    """Convert a length to an int as the harness does: numbers are truncated, and text must be a whole number."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise SettingError(f"{name} must be a whole number of at least 1, not {value!r}") from None


def _temperature(left: dict[str, Any]) -> float:
    """Return a task's temperature by the harness's rules. Without `do_sample`, a task with a temperature samples."""
    asked, drawn = left.pop("temperature", None), left.pop("do_sample", None)
    if drawn is None:
        return float(asked or 0)
    return (1.0 if asked is None else float(asked)) if drawn else 0.0


def _other_temperature(task: float, fusion: float) -> str:
    """Write the message for a task whose temperature differs from the fusion's. Temperature 0 means greedy."""
    if not task:
        words = f"the task is greedy, and this fusion draws at temperature {fusion:g}"
        return f"{words}: leave out the model argument temperature, or give --gen_kwargs do_sample=True,temperature=1"
    words = f"the task draws at temperature {task:g}, and this fusion " + (f"at {fusion:g}" if fusion else "is greedy")
    more = "by a method that draws, the model argument temperature=1 does"
    return f"{words}: give --gen_kwargs do_sample=False; {more}, at 1 only"


class HarnessFusion:
    """A fusion that answers the harness's requests, several at a time. Answers are returned in the requests' order.

    Args:
        arguments: the models, settings and limits; see `FusionArguments`.
        concurrency: maximum number of requests in progress.
        max_gen_toks: maximum number of tokens in an answer if the task sets no limit.
        max_length: number of tokens in a model's context; by default, the smallest context that a server reports.

    Attributes:
        used: requests and tokens so far, by endpoint.

    Raises:
        SettingError: an argument is invalid.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        *,
        concurrency: int = 8,
        max_gen_toks: int = 256,
        max_length: int | None = None,
    ) -> None:
        self._arguments = FusionArguments.read(arguments)
        self._fusions = LoopFusions()
        self._concurrency = check_count("concurrency", concurrency)
        self._max_gen_toks = check_count("max_gen_toks", _whole("max_gen_toks", max_gen_toks))
        self._max_length = None if max_length is None else check_count("max_length", max_length, least=2 * _BESIDE)
        self._begin: bool | None = None
        self.used: dict[str, dict[str, int]] = {}

    def generate(
        self, requests: Sequence[tuple[str, Mapping[str, Any]]], done: Done, where: Where | None = None
    ) -> list[str]:
        """Return the answers, each cut before its first stop string."""
        temperature = self._arguments.fusion.settings.temperature
        limits = [
            answer_options(given, max_gen_toks=self._max_gen_toks, temperature=temperature) for _, given in requests
        ]
        own = self._repeated(requests)

        async def answer(fusion: Fusion, at: int) -> str:
            options = cast("AnswerOptions", {**own[at], **limits[at]})
            found = await fusion.generate(prompt_of(requests[at][0]), **options)
            self._count(found.usage)
            return found.text

        return self._all(answer, len(requests), done, "generate_until", where)

    def _repeated(self, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
        """Return the limits on each answer. If a task has `repeats`, each repetition of a request has its own seed."""
        limits, seen = self._arguments.limits, Counter[str]()
        seed = limits.get("seed")
        if seed is None:
            return [limits] * len(requests)
        found: list[Mapping[str, Any]] = []
        for context, given in requests:
            asked = json.dumps([context, given], sort_keys=True, default=repr)
            found.append({**limits, "seed": seed + seen[asked]})
            seen[asked] += 1
        return found

    def log_likelihoods(
        self, requests: Sequence[tuple[str, str]], done: Done, where: Where | None = None
    ) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether the fusion would write exactly that text."""

        async def score(fusion: Fusion, at: int) -> tuple[float, bool]:
            return await self._scored(fusion, *_before_a_space(*requests[at]))

        return self._all(score, len(requests), done, "loglikelihood", where)

    def rolling(self, texts: Sequence[str], done: Done, where: Where | None = None) -> list[float]:
        """Return the log-likelihood of each text. A text that is longer than a model's context is cut into windows."""

        async def score(fusion: Fusion, at: int) -> float:
            (_, first), *more = await self._windows(fusion, texts[at])
            found = [await self._beginning(fusion, first)]
            found += [(await self._scored(fusion, before, text))[0] for before, text in more]
            return math.fsum(found)

        return self._all(score, len(texts), done, "loglikelihood_rolling", where)

    async def _beginning(self, fusion: Fusion, text: str) -> float:
        """Compute the log-likelihood of a text with nothing before it.

        If a model has no beginning of sequence, the first word has no probability. The word is then used as context,
        but not scored.
        """
        try:
            return (await self._scored(fusion, "", text))[0]
        except (InvalidRequestError, UnsupportedError):
            found = re.match(r"\s*\S+(?=\s)", text)
            if found is None or await self._begins(fusion):
                raise
            return (await self._scored(fusion, found[0], text[found.end() :]))[0]

    async def _begins(self, fusion: Fusion) -> bool:
        """Test, only once, whether every model reports the probability of a letter with nothing before it."""
        if self._begin is None:
            names = (DRAFT, *fusion.endpoints.names)
            models = (fusion.endpoints.draft, *fusion.endpoints.assistants)
            self._begin = all([await self._begins_with(*one) for one in zip(names, models, strict=True)])
        return self._begin

    async def _begins_with(self, name: str, model: Provider) -> bool:
        usage = Usage()
        try:
            letter, *_ = await model.score(Context("", b"a"), usage=usage)
        except InvalidRequestError:
            return False
        finally:
            self._count({name: EndpointUsage.of(usage)})
        return letter.prob is not None

    async def _scored(self, fusion: Fusion, context: str, continuation: str) -> tuple[float, bool]:
        """Compute the log-likelihood of a continuation, and whether it is the fusion's greedy answer."""
        names = LikelihoodOptions.__annotations__
        limits = {name: value for name, value in self._arguments.limits.items() if name in names}
        found = await fusion.log_likelihood(prompt_of(context), continuation, **limits)  # type: ignore[arg-type]
        self._count(found.usage)
        return found.total, found.is_greedy

    async def _windows(self, fusion: Fusion, text: str) -> list[tuple[str, str]]:
        """Cut a text into parts that fit into every model's context, each with some preceding text as its context."""
        length = self._max_length
        if length is None:
            infos = [await one.describe() for one in (fusion.endpoints.draft, *fusion.endpoints.assistants)]
            known = [bound for info in infos for bound in (info.longest_prompt, info.context) if bound]
            length = min(known, default=None)
        if length is None or len(text.encode()) <= length - _BESIDE:  # the text fits, as each token has at least a byte
            return [("", text)]
        pieces = await fusion.endpoints.draft.tokenize(text)
        if b"".join(piece.data for piece in pieces) != text.encode():
            words = "the draft's server encodes a different text than the one to cut"
            raise UnsupportedError(words, endpoint=fusion.endpoints.draft.name, hint="Give shorter texts.")
        return windows(pieces, length - _BESIDE)

    def _all(
        self, ask: Callable[[Fusion, int], Awaitable[_T]], count: int, done: Done, name: str, where: Where | None
    ) -> list[_T]:
        """Answer all requests, and wait for the answers. A note on an error names the request that caused it."""

        async def one(fusion: Fusion, at: int) -> _T:
            try:
                found = await ask(fusion, at)
            except (ProviderError, SettingError) as error:
                error.add_note(f"in {name}, {where(at) if where else f'request {at + 1} of {count}'}")
                raise
            done(at, found)
            return found

        async def everything() -> list[_T]:
            fusion = await self._fusions.opened(lambda: self._arguments.fusion)
            return await concurrently([partial(one, fusion, at) for at in range(count)], self._concurrency)

        return synchronous(everything, name)()

    def _count(self, usage: Mapping[str, EndpointUsage]) -> None:
        for name, one in usage.items():
            total, more = self.used.setdefault(name, dict.fromkeys(_COUNTED, 0)), one.model_dump()
            for counted in _COUNTED:
                total[counted] += more[counted]


def _before_a_space(context: str, continuation: str) -> tuple[str, str]:
    """Move white space from the end of a context to the continuation, because tokens begin with white space.

    In a conversation, only white space at the end of a partial answer is moved, and only if the answer also contains
    other characters.
    """
    if isinstance(context, ConversationText):
        *earlier, last = context.messages
        said = last["content"] if last["role"] == "assistant" else ""
        kept = said.rstrip()
        if not kept:
            return context, continuation
        return ConversationText.of([*earlier, {**last, "content": kept}]), said[len(kept) :] + continuation
    kept = context.rstrip()
    return kept, context[len(kept) :] + continuation


def windows(pieces: Sequence[Piece], size: int) -> list[tuple[str, str]]:
    """Cut a text into pairs of a context and a part to score, with at most `size` tokens per pair.

    As in the harness, each token is scored once, and the context of the last part is as long as possible. For all other
    parts, the context is the last word before the part, unless that word is too long. The text is cut before the white
    space in front of a word, or between two characters if there is no such place within `size` tokens.

    Raises:
        SettingError: a single character has more than `size` tokens.
    """
    data = b"".join(piece.data for piece in pieces)
    starts = [0, *accumulate(len(piece.data) for piece in pieces)]  # the last element is the length of the text
    text = [at == len(pieces) or data[starts[at]] & 0xC0 != 0x80 for at in range(len(starts))]
    space = [data[start : start + 1].isspace() and not data[max(start - 1, 0) : start].isspace() for start in starts]
    word = [at == len(pieces) or one for at, one in enumerate(space)]

    def last(places: range) -> int | None:
        """Return the last of these places where a word begins; if no word begins, the last where a character begins."""
        back = places[::-1]
        return next((at for at in back if word[at]), next((at for at in back if text[at]), None))

    found: list[tuple[str, str]] = []
    begin = before = 0
    while begin < len(pieces):
        end = last(range(begin + 1, min(before + size, len(pieces)) + 1))
        if end is None:
            raise SettingError(f"max_length is too small: a character has more than {size} tokens")
        if end == len(pieces):
            before = min(begin, next(at for at in range(max(end - size, 0), end) if text[at]))
        found.append((data[starts[before] : starts[begin]].decode(), data[starts[begin] : starts[end]].decode()))
        begin, before = end, last(range(max(end - size // 2, 0), end)) or end
    return found
