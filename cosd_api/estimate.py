"""Estimates: the cost of an answer before it is generated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from cosd_api.alignment import LONGEST
from cosd_api.budget import BYTES
from cosd_api.endpoints import Endpoints
from cosd_api.records import DRAFT
from cosd_api.result import FusionResult
from cosd_api.settings import FusionSettings
from cosd_providers.contract import Provider
from cosd_providers.errors import UnsupportedError
from cosd_providers.messages import Message

_SPECIAL = 8  # special tokens around a prompt, at most
_FINER = 2  # tokens that a model reads or writes for one of the answer's, at most
_UNDONE = 2  # times that the text behind one of its tokens is written, at most
_ROUNDS = 8  # requests for one place, at most: mostly one, more where a word is long
_CHAIN = 12  # tokens of an answer about one place, at most
_SHARE = 0.1  # of the tokens that an assistant is asked about, where there is no past answer
_REPLACED = 1 / 3  # of those
_AHEAD = 8  # tokens that a hedged draft writes before its verdict


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True)


class Range(_Model):
    """A number between `low` and `high`, most likely about `expected`."""

    low: int
    expected: int
    high: int


class EndpointEstimate(_Model):
    """The cost of one answer at one endpoint.

    Attributes:
        prompt_tokens: of the prompt, for this model.
        counted: whether the endpoint counted them; otherwise they are a guess from the prompt's bytes.
        requests: generation requests.
        billed_tokens: tokens read, from a cache or not, and written.
    """

    prompt_tokens: int
    counted: bool
    requests: Range
    billed_tokens: Range


class Estimate(_Model):
    """The cost of one answer, without retries.

    `low` is an answer of one token about which nobody is asked. `high` is the worst case: every token is replaced, and
    all that could be drafted behind it was drafted, asked about and thrown away each time. It grows with the square of
    `max_tokens` (with `max_ahead` it does not), and few answers come near it: plan with `expected`, and set
    `max_billed_tokens` to bound a bill.

    Attributes:
        max_tokens: of the answer.
        endpoints: by name, as in `FusionResult.usage`.
        answers: number of past answers of this fusion that `expected` is based on; 0 uses the assumptions alone.
        assumptions: the basis of the numbers, in words.
    """

    max_tokens: int
    endpoints: dict[str, EndpointEstimate]
    answers: int
    assumptions: tuple[str, ...]

    @property
    def requests(self) -> Range:
        """Over all endpoints."""
        return _together(one.requests for one in self.endpoints.values())

    @property
    def billed_tokens(self) -> Range:
        """Over all endpoints."""
        return _together(one.billed_tokens for one in self.endpoints.values())


@dataclass(slots=True)
class PastCost:
    """The cost of past answers at one endpoint: requests, tokens read and tokens written."""

    requests: int = 0
    read: int = 0
    written: int = 0


@dataclass(slots=True)
class Past:
    """The past answers of a fusion, added up.

    Attributes:
        answers: their number.
        tokens: their tokens.
        size: their bytes.
        looked_back: for each token the bytes before it, which a request there has to read, added up.
        spent: by endpoint.
    """

    answers: int = 0
    tokens: int = 0
    size: int = 0
    looked_back: float = 0.0
    spent: dict[str, PastCost] = field(default_factory=dict[str, PastCost])

    def add(self, prompt: str, result: FusionResult) -> None:
        """Add one more answer."""
        size = len(result.text.encode())
        self.answers += 1
        self.tokens += len(result.tokens)
        self.size += size
        self.looked_back += len(result.tokens) * (len(prompt.encode()) + size / 2)
        for name, usage in result.usage.items():
            spent = self.spent.setdefault(name, PastCost())
            spent.requests += usage.requests
            spent.read += usage.prompt_tokens
            spent.written += usage.completion_tokens


async def estimate(
    endpoints: Endpoints, settings: FusionSettings, past: Past, asked: str | Sequence[Message], max_tokens: int
) -> Estimate:
    """Estimate the cost of an answer to a prompt.

    Raises:
        ProviderError: an endpoint failed when it was asked what it is, or how many tokens the prompt has.
    """
    turns, facts = await endpoints.turns(asked, settings.on_special_tokens, await endpoints.discover())
    found: dict[str, EndpointEstimate] = {}
    for at, (name, turn) in enumerate(zip([DRAFT, *endpoints.names], turns, strict=True), start=-1):
        prompt = turn.prompt or turns[0].prompt  # unknown for an assistant that is down
        count = None if at in facts.without else await counted(turn.provider, prompt)
        guess = guessed(prompt) if count is None else count
        most = (len(prompt.encode()) if count is None else count) + _SPECIAL
        least = 1 if count is None else count
        requests, tokens = (_draft if name == DRAFT else _assistant)(settings, max_tokens, guess, most)
        if name == DRAFT:
            lows = (1, least + 1)
        else:
            # An assistant that is certain spares those listed after it.
            lows = (1, least + 1) if settings.ask == "all" and name == endpoints.names[0] else (0, 0)
        expected = _from_past(past, name, prompt, max_tokens) or (requests[0], tokens[0])
        found[name] = EndpointEstimate(
            prompt_tokens=guess,
            counted=count is not None,
            requests=_range(lows[0], expected[0], requests[1]),
            billed_tokens=_range(lows[1], expected[1], tokens[1]),
        )
    return Estimate(
        max_tokens=max_tokens, endpoints=found, answers=past.answers, assumptions=_assumptions(settings, past)
    )


_Two = tuple[float, int]
"""The expected number, without past answers, and the highest."""


def _draft(settings: FusionSettings, n: int, prompt: int, most: int) -> tuple[_Two, _Two]:
    """Requests and billed tokens of the draft."""
    # Each hedge is a request that reads all before it, and writes a few tokens.
    hedges = n * _share(settings) * settings.tuning.hedge
    drafts = 1 + hedges + n * _share(settings) * _REPLACED + (n / settings.draft_length if settings.draft_length else 0)
    read_and_written = drafts * (prompt + n / 2) + 1.5 * n + _AHEAD * hedges
    high = _UNDONE * n + settings.tuning.hedge * _drafted(settings, n)
    if settings.draft_length is not None or settings.tuning.max_ahead is not None:
        high += _drafted(settings, n)  # one request may be one token
    return (drafts, high), (read_and_written, high * (most + _FINER * n))


def _assistant(settings: FusionSettings, n: int, prompt: int, most: int) -> tuple[_Two, _Two]:
    """Requests and billed tokens of an assistant."""
    places = n * _share(settings)
    high = _ROUNDS * _drafted(settings, n)
    return (places, high), (places * (prompt + n / 2 + 4), high * (most + _FINER * n + _CHAIN))


def _share(settings: FusionSettings) -> float:
    return 1.0 if settings.ask == "all" else _SHARE


def _drafted(settings: FusionSettings, n: int) -> int:
    """Tokens that are drafted and asked about at most: all that there is room for, behind each token."""
    bounds = [bound for bound in (settings.draft_length, settings.tuning.max_ahead) if bound is not None]
    ahead = min(min(bounds) + LONGEST + 1, n) if bounds else n  # an open unit is always completed
    return _UNDONE * (ahead * (n - ahead) + ahead * (ahead + 1) // 2)


def _from_past(past: Past, name: str, prompt: str, max_tokens: int) -> tuple[float, float] | None:
    """Requests and billed tokens, at the cost of past answers for each token."""
    spent = past.spent.get(name)
    if spent is None or not past.looked_back:
        return None
    n = min(max_tokens, past.tokens / past.answers)
    looked_back = n * (len(prompt.encode()) + n * past.size / past.tokens / 2)
    share = n / past.tokens
    return share * spent.requests, spent.read * looked_back / past.looked_back + share * spent.written


def _assumptions(settings: FusionSettings, past: Past) -> tuple[str, ...]:
    bounds = (
        "high: nothing is sent again; a model reads and writes at most "
        f"{_FINER} tokens for one of the answer's, and adds at most {_SPECIAL} to a prompt; a place that is asked "
        f"about takes at most {_ROUNDS} requests and {_CHAIN} tokens; at most one replacement for each token is "
        "undone by an earlier one that is judged later"
    )
    if past.answers:
        expected = f"expected: for each token what past answers cost, and as long as they were ({past.answers} seen)"
    else:
        expected = (
            f"expected: max_tokens tokens; {_share(settings):.0%} of them asked about, each in a request of its own "
            "that reads all before it; a third of those replaced"
        )
    return expected, bounds


def guessed(prompt: str) -> int:
    """The prompt's tokens, guessed from its bytes."""
    return max(1, len(prompt.encode()) // BYTES)


async def counted(provider: Provider, prompt: str) -> int | None:
    """The prompt's tokens, if the endpoint encodes text."""
    if (await provider.describe()).capabilities.tokenize:
        with suppress(UnsupportedError):
            return len(await provider.tokenize(prompt))
    return None


def _range(low: int, expected: float, high: int) -> Range:
    return Range(low=low, expected=min(max(low, round(expected)), high), high=high)


def _together(ranges: Iterable[Range]) -> Range:
    several = list(ranges)
    return Range(
        low=sum(one.low for one in several),
        expected=sum(one.expected for one in several),
        high=sum(one.high for one in several),
    )
