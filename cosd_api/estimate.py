"""Estimates of an answer's cost before it is generated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from pydantic import BaseModel, ConfigDict

from cosd_api.budget import BYTES
from cosd_api.decoding.answer import LOOKAHEAD
from cosd_api.decoding.timeline import RequestSpan
from cosd_api.decoding.watches import watched
from cosd_api.endpoints import Endpoints
from cosd_api.errors import SettingError
from cosd_api.methods.cost import FINER, SPECIAL, Assumptions, Plan, Reading
from cosd_api.records import DRAFT
from cosd_api.result import FusionResult
from cosd_api.settings import FusionSettings
from cosd_api.verification import needs_of
from cosd_providers.contract import Provider
from cosd_providers.errors import UnsupportedError
from cosd_providers.messages import Message, RenderedPrompt


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True)


class Range(_Model):
    """A number that lies between `low` and `high` and is most likely near `expected`."""

    low: int
    expected: int
    high: int


class EndpointEstimate(_Model):
    """The cost of one answer at one endpoint.

    Attributes:
        prompt_tokens: number of tokens in the prompt, as this model encodes it.
        counted: whether the endpoint counted these tokens; otherwise their number is guessed from the prompt's bytes.
        requests: number of generation requests.
        billed_tokens: number of tokens read (cached or not) and written.
        written_tokens: the part of `billed_tokens.expected` that the endpoint writes.
    """

    prompt_tokens: int
    counted: bool
    requests: Range
    billed_tokens: Range
    written_tokens: int


class Estimate(_Model):
    """The cost of one answer, without retries.

    `low` is the cost of an answer of one token about which no assistant is asked. `high` is the worst case of the
    method. In CoSD's worst case, every token is replaced, and each replacement discards the longest possible draft
    after the assistant was asked about all of that draft. The number of requests then grows with the square of
    `max_tokens`, and the number of tokens with the cube; `max_ahead` lowers both. Few answers come near the worst case.
    `expected` is the likely cost of an answer of `length` tokens. Set `max_billed_tokens` to limit a bill.

    Attributes:
        max_tokens: maximum number of tokens in the answer.
        length: number of tokens in the answer that `expected` is for: as given, or the mean of past answers. Before the
            first answer, the length is unknown, and `max_tokens` is taken; then `per_token` says more than the sum.
        endpoints: the estimates by endpoint, as in `FusionResult.usage`; empty if the method makes no forecast.
        answers: number of this fusion's past answers on which `expected` is based. If 0, `expected` is based only on
            the assumptions.
        assumptions: sentences that explain how the numbers were computed, or why there are none.
    """

    max_tokens: int
    length: float
    endpoints: dict[str, EndpointEstimate]
    answers: int
    assumptions: tuple[str, ...]

    @property
    def forecast(self) -> bool:
        """Test whether the estimate contains numbers, that is, whether the method makes a forecast (`Method.cost`)."""
        return bool(self.endpoints)

    @property
    def requests(self) -> Range:
        """The number of generation requests to all endpoints together.

        Raises:
            SettingError: the method makes no forecast.
        """
        return self._together(one.requests for one in self.endpoints.values())

    @property
    def billed_tokens(self) -> Range:
        """The number of tokens that all endpoints together bill.

        Raises:
            SettingError: the method makes no forecast.
        """
        return self._together(one.billed_tokens for one in self.endpoints.values())

    @property
    def per_token(self) -> float:
        """The expected number of billed tokens for each token of an answer of `length` tokens.

        A longer answer bills more for each of its tokens, because most requests read all text before them.

        Raises:
            SettingError: the method makes no forecast.
        """
        return self.billed_tokens.expected / self.length

    def _together(self, ranges: Iterable[Range]) -> Range:
        if not self.forecast:
            raise SettingError("; ".join(self.assumptions))
        several = list(ranges)
        return Range(
            low=sum(one.low for one in several),
            expected=sum(one.expected for one in several),
            high=sum(one.high for one in several),
        )


@dataclass(slots=True)
class PastCost:
    """The total cost of past answers at one endpoint: requests, tokens read and tokens written."""

    requests: int = 0
    read: int = 0
    written: int = 0


@dataclass(slots=True)
class Past:
    """Totals over the past answers of a fusion.

    Attributes:
        answers: number of answers.
        tokens: number of tokens in the answers.
        size: number of bytes in the answers.
        looked_back: sum, over all tokens, of the number of bytes before the token, which a request at that token has to
            read.
        spent: the cost at each endpoint, by name.
    """

    answers: int = 0
    tokens: int = 0
    size: int = 0
    looked_back: float = 0.0
    spent: dict[str, PastCost] = field(default_factory=dict[str, PastCost])

    @property
    def length(self) -> float | None:
        """The mean number of tokens in an answer; None without tokens."""
        return self.tokens / self.answers if self.tokens else None

    def add(self, prompt: str, result: FusionResult) -> None:
        """Add an answer to the totals."""
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
    endpoints: Endpoints,
    settings: FusionSettings,
    past: Past,
    asked: str | Sequence[Message],
    max_tokens: int,
    length: float | None = None,
) -> Estimate:
    """Estimate the cost of an answer to a prompt; see `Fusion.estimate`.

    Raises:
        ProviderError: an endpoint failed while it described itself or counted the prompt's tokens.
    """
    turns, facts = await endpoints.turns(asked, settings.on_special_tokens, await endpoints.discover())
    facts = endpoints.apart(settings.method, turns, facts)
    infos = {at: await turn.on_path.describe() for at, turn in enumerate(turns, -1) if at not in facts.without}
    routes, judges = facts.routes(settings.method, infos), settings.method.asks_by_ids
    asked_by_ids = judges and all(one for at, one in enumerate(routes.by_ids, -1) if at in infos)
    pace = replace(settings.pace, watched=watched(infos, endpoints.speeds) if asked_by_ids else frozenset())
    if (judge := settings.method.judge) is not None:
        pace = replace(pace, needs=needs_of(judge))
    plan = Plan(
        max_tokens=max_tokens,
        models=len(turns),
        pace=pace,
        skip=settings.ask == "contestable",
        lookahead=LOOKAHEAD if judges and routes.by_words else 0,
    )
    length = min(length or past.length or max_tokens, max_tokens)
    likely = replace(plan, max_tokens=max(1, round(length)))
    found: dict[str, EndpointEstimate] = {}
    for model, (name, turn) in enumerate(zip([DRAFT, *endpoints.names], turns, strict=True)):
        prompt = turn.prompt or turns[0].prompt  # if an assistant is down, its rendered prompt is unknown
        count = None if model - 1 in facts.without else await counted(turn.provider, prompt)
        guess = guessed(prompt) if count is None else count
        most = (len(prompt.encode()) if count is None else count) + SPECIAL
        able = infos[model - 1].capabilities if model - 1 in infos else None
        known = (able.scores_by_token, able.token_ids) if able else ()
        reading = Reading(1 if count is None else count, guess, most, *known)
        cost, mine = (settings.method.cost(one, model, reading) for one in (plan, likely))
        if cost is None or mine is None:
            none = f"the method {settings.method.name!r} makes no forecast of the cost: it does not define cost()"
            return Estimate(
                max_tokens=max_tokens, length=length, endpoints={}, answers=past.answers, assumptions=(none,)
            )
        reckoned = mine.requests.expected, mine.tokens.expected, mine.written
        requests, tokens, written = _from_past(past, name, prompt, length) or reckoned
        billed = _range(cost.tokens.low, tokens, cost.tokens.high)
        found[name] = EndpointEstimate(
            prompt_tokens=guess,
            counted=count is not None,
            requests=_range(cost.requests.low, requests, cost.requests.high),
            billed_tokens=billed,
            written_tokens=min(round(written), billed.expected),
        )
    words = _assumptions(settings.method.assumptions(likely), past, length)
    return Estimate(max_tokens=max_tokens, length=length, endpoints=found, answers=past.answers, assumptions=words)


def _from_past(past: Past, name: str, prompt: str, n: float) -> tuple[float, float, float] | None:
    """The expected requests, billed tokens and written tokens of `n` tokens that cost as much as in past answers."""
    spent = past.spent.get(name)
    if spent is None or not past.looked_back:
        return None
    looked_back = n * (len(prompt.encode()) + n * past.size / past.tokens / 2)
    share = n / past.tokens
    written = share * spent.written
    return share * spent.requests, spent.read * looked_back / past.looked_back + written, written


def _assumptions(words: Assumptions, past: Past, length: float) -> tuple[str, ...]:
    bounds = (
        f"high: no retries; a model reads and writes at most {FINER} tokens for each token of the answer, and adds at "
        f"most {SPECIAL} to a prompt; {words.high}"
    )
    if past.answers:
        return (
            f"expected: {length:.3g} tokens, each at the cost of a token in past answers ({past.answers} seen)",
            bounds,
        )
    return f"expected: {words.expected}", bounds


def guessed(prompt: str) -> int:
    """The number of tokens in a prompt, guessed from its length in bytes."""
    return max(1, len(prompt.encode()) // BYTES)


def prompt_tokens(turns: Sequence[RenderedPrompt], spans: Sequence[RequestSpan]) -> int:
    """The number of tokens in the prompt alone, according to the bill for a request in which a model wrote text.

    The draft's requests are preferred. If no request has a suitable bill, the number is guessed from the prompt's
    bytes.

    Args:
        turns: the prompts of the draft and the assistants.
        spans: the requests of the answer.
    """
    guess = guessed(turns[0].prompt)
    for span in sorted(spans, key=lambda one: (one.who, one.at)):
        usage = span.usage
        wrote = span.kind == "draft" and not span.other_prompt
        known = usage is not None and usage.prompt_tokens and not usage.estimated_tokens
        if not wrote or usage is None or not known or usage.requests > 1:
            continue
        if not span.at or span.ids is not None:
            return max(1, usage.prompt_tokens - (span.ids or 0))
        size = len(turns[span.who].prompt.encode())
        return max(1, round(usage.prompt_tokens * size / (size + span.at)))
    return guess


async def counted(provider: Provider, prompt: str) -> int | None:
    """Count the prompt's tokens at the endpoint; None if the endpoint does not tokenize text."""
    if (await provider.describe()).capabilities.tokenize:
        with suppress(UnsupportedError):
            return len(await provider.tokenize(prompt))
    return None


def _range(low: int, expected: float, high: int) -> Range:
    return Range(low=low, expected=min(max(low, round(expected)), high), high=high)
