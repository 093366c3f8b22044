"""Forecasts of an answer's cost, which methods compute for `Fusion.estimate`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cosd_api.alignment import LONGEST
from cosd_api.decoding.pace import FIRST, LEAST, Pace
from cosd_api.paths.cuts import FARTHEST
from cosd_providers.drafting import SEARCH, STRETCH

SPECIAL = 8
"""The largest number of special tokens around a prompt."""
FINER = 2
"""The largest number of a model's own tokens that correspond to one token of the answer."""
ROUNDS = 8
"""The largest number of requests for one place or one text. One is usually enough, but a long word needs more."""

SCORED = "a text that is scored is read once, or, by llama.cpp, once for each of its tokens"
"""A description of the assumption about the expected cost of scoring a text."""
HIGHEST_SCORED = f"a text that is scored is read {ROUNDS} times, or, by llama.cpp, three times for each of its tokens"
"""A description of the assumption about the highest cost of scoring a text."""

# For servers that score a text token by token:
_LISTED = 64  # the number of prompts in one request
_IMPROBABLE = 0.15  # the assumed share of tokens that need one more request
_PROMPTS = 3  # the largest number of prompts for one token
_ENDS = 40  # the largest number of prompts for the end of sequence

_UNDONE = 2  # the largest number of times that the text after one token of the answer is written
_WRITTEN = 4  # the number of tokens that an assistant typically writes about one place
_CHAIN = 12  # the largest number of tokens that an assistant writes about one place
_SHARE = 0.1  # the assumed share of tokens about which an assistant is asked, if no past answer is known
_REPLACED = 1 / 3  # the assumed share of replacements among the tokens about which an assistant is asked
_LONGER = 1.5  # the assumed number of tokens that the draft or a watch writes for one token of the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An answer that is planned, but not yet generated.

    Attributes:
        max_tokens: the greatest number of tokens in the answer.
        models: the number of models.
        pace: the settings of the schedule, for methods that draft.
        skip: whether to omit questions whose answers could not change the text.
        contested: the assumed share of the draft's tokens that an assistant's answer could change.
        lookahead: the number of tokens that the draft may write after the answer's last token, so that the last word
            can be encoded; 0 unless the models have different token ids. If it is not 0, an answer may end before any
            word is ready to be judged, and then no assistant is asked.
    """

    max_tokens: int
    models: int
    pace: Pace
    skip: bool
    contested: float = _SHARE
    lookahead: int = 0

    @property
    def longest(self) -> int:
        """The largest number of tokens that a draft may write without a restart."""
        return self.max_tokens + self.lookahead

    @property
    def share(self) -> float:
        """The assumed share of the draft's tokens about which an assistant is asked."""
        return self.contested if self.skip else 1.0

    @property
    def drafts(self) -> float:
        """The expected number of times that the draft begins to write."""
        rounds = self.max_tokens / self.pace.draft_length if self.pace.draft_length else 0
        return 1 + self.max_tokens * self.share * _REPLACED + rounds

    @property
    def drafted(self) -> float:
        """The expected number of tokens that the draft writes.

        A draft that is written in rounds is judged when a round is written, so that the rest of the round is lost if a
        token is replaced. On average, half of the answer is still to be written when a round begins.
        """
        n = self.max_tokens
        if not self.pace.draft_length:
            return _LONGER * n
        return max(n, self.drafts * min(self.pace.draft_length, n / 2))

    @property
    def judged(self) -> float:
        """The expected number of tokens about which an assistant is asked."""
        return self.share * (self.drafted if self.pace.draft_length else self.max_tokens)


@dataclass(frozen=True, slots=True)
class Reading:
    """The length of the prompt in one model's tokens, with facts about the model's endpoint.

    Attributes:
        least: the lowest possible number of tokens.
        expected: the expected number of tokens.
        most: the highest possible number of tokens.
        by_token: whether the endpoint scores a text token by token; see `Capabilities.scores_by_token`.
        pauses: whether a draft on this endpoint continues from its own tokens, so that its first request can be short.
    """

    least: int
    expected: int
    most: int
    by_token: bool = False
    pauses: bool = False

    def scored(self, before: float, tokens: float) -> tuple[float, float]:
        """Return the expected requests and billed tokens for scoring `tokens` tokens after `before` other tokens."""
        if not self.by_token:
            return 1, before + tokens
        places = (1 + _IMPROBABLE) * tokens
        return math.ceil(tokens / _LISTED) + _IMPROBABLE * tokens, places * (before + tokens / 2 + 1)

    def most_scored(self, before: int, tokens: int) -> tuple[int, int]:
        """Return the largest possible numbers of requests and billed tokens; see `scored`."""
        if not self.by_token:
            return ROUNDS, ROUNDS * (before + tokens + 1)
        within = _PROMPTS * (tokens * before + tokens * (tokens + 1) // 2)  # each prompt reads the text before it
        prompts = _PROMPTS * tokens + _ENDS
        return prompts, within + _ENDS * (before + tokens) + prompts


@dataclass(frozen=True, slots=True)
class Bounds:
    """The lowest, expected and highest values of a number. `expected` applies if no past answer is known."""

    low: int
    expected: float
    high: int

    def __add__(self, other: Bounds) -> Bounds:
        """Add the values of two numbers."""
        return Bounds(self.low + other.low, self.expected + other.expected, self.high + other.high)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one answer at one endpoint.

    Attributes:
        requests: the number of requests.
        tokens: the number of tokens read and written.
        written: the expected number of tokens written, which is included in `tokens.expected`.
    """

    requests: Bounds
    tokens: Bounds
    written: float

    def __add__(self, other: Cost) -> Cost:
        """Add two costs at the same endpoint."""
        return Cost(self.requests + other.requests, self.tokens + other.tokens, self.written + other.written)


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The assumptions on which a forecast is based, in words.

    Attributes:
        expected: the assumptions about the expected cost, which apply if no past answer is known.
        high: the assumptions about the highest cost.
    """

    expected: str
    high: str


# ------------------------------------------------------------------------------------------------------ draft first


def draft_cost(plan: Plan, prompt: Reading) -> Cost:
    """Forecast the cost of a draft that is verified while it is written."""
    n, pace = plan.max_tokens, plan.pace
    drafts = plan.drafts
    if prompt.pauses and n > FIRST and pace.draft_length is None and pace.max_ahead is None:
        # A second request follows if no token of the first one is replaced.
        drafts += (1 - plan.share * _REPLACED) ** FIRST
    written = plan.drafted
    read_and_written = drafts * (prompt.expected + n / 2) + written
    high = _UNDONE * plan.longest
    if n > LEAST or pace.draft_length is not None or pace.max_ahead is not None:
        high += _drafted(plan)  # a request may yield only one token
    cost = Cost(
        Bounds(1, drafts, high),
        Bounds(prompt.least + 1, read_and_written, high * (prompt.most + FINER * plan.longest)),
        written,
    )
    return _with_states(cost, plan, prompt) if pace.states else cost


def _with_states(cost: Cost, plan: Plan, prompt: Reading) -> Cost:
    """Add the cost of the draft's hidden states: the draft reads each stretch, and all text before it, once more."""
    n, stretch = plan.max_tokens, min(STRETCH, plan.pace.draft_length or STRETCH)
    drafts, most = cost.requests, 1 + n // STRETCH + SEARCH  # `most` is the largest number of passes for one draft
    passes = drafts.expected + n / stretch
    requests = Bounds(drafts.low + 1, drafts.expected + passes, drafts.high * (1 + most))
    read = passes * (prompt.expected + n / 2)
    tokens = Bounds(cost.tokens.low + prompt.least, cost.tokens.expected + read, cost.tokens.high * (1 + most))
    return Cost(requests, tokens, cost.written)


def assistant_cost(plan: Plan, model: int, prompt: Reading, *, always: bool) -> Cost:
    """Forecast the cost of an assistant that is asked about places of a draft, by one request per place or by a watch.

    Args:
        plan: the planned answer; its `pace` determines which assistants watch.
        model: the index of the assistant; the first one is 1.
        prompt: the length of the prompt in the assistant's tokens.
        always: whether the assistant is certain to be asked as soon as any token is ready to be judged.
    """
    n = plan.max_tokens
    places = plan.judged
    high = ROUNDS * _drafted(plan)
    low = (1, prompt.least + 1) if always and not plan.lookahead else (0, 0)
    requests, written = places, _WRITTEN * places
    if model - 1 in plan.pace.watched and places:
        requests, written = 1 + n * plan.share * _REPLACED, _LONGER * n
    expected = requests * (prompt.expected + n / 2) + written
    tokens = Bounds(low[1], expected, high * (prompt.most + FINER * plan.longest + _chain(plan)))
    return Cost(Bounds(low[0], requests, high), tokens, written)


def draft_first_assumptions(plan: Plan) -> Assumptions:
    """Describe in words what `draft_cost` and `assistant_cost` assume."""
    ways = ["each in a request of its own that reads all before it"] if len(plan.pace.watched) < plan.models - 1 else []
    if plan.pace.watched:
        ways.append("by a watch that writes half as many tokens again, and is opened again as often as one is replaced")
    rounds = f", drafted {plan.pace.draft_length} at a time" if plan.pace.draft_length else ""
    found = Assumptions(
        f"{plan.max_tokens} tokens{rounds}; {plan.share:.0%} of them asked about, {', or '.join(ways)}; a third of "
        "those replaced",
        f"a place that is asked about takes at most {ROUNDS} requests and {_chain(plan)} tokens; at most one "
        "replacement for each token is undone by an earlier one that is judged later",
    )
    if not plan.pace.states:
        return found
    more = f"the draft's states are asked for {STRETCH} tokens at a time, or as long as its drafts are"
    high = f"{found.high}; a text that the server does not take at once is halved until it does"
    return Assumptions(f"{found.expected}; {more}", high)


def _chain(plan: Plan) -> int:
    """Return the largest number of tokens that an assistant writes about one place, including tokens after the word."""
    return _CHAIN + 4 * plan.lookahead


def _drafted(plan: Plan) -> int:
    """Return the largest number of drafted tokens that assistants judge, if the draft restarts after every token."""
    n = plan.longest
    bounds = [bound for bound in (plan.pace.draft_length, plan.pace.max_ahead) if bound is not None]
    open_unit = LONGEST + 1 + (FARTHEST if plan.lookahead else 0)  # a unit that has begun is always completed
    ahead = min(min(bounds) + open_unit, n) if bounds else n
    return _UNDONE * (ahead * (n - ahead) + ahead * (ahead + 1) // 2)
