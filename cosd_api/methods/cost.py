"""Costs of an answer before its generation, as methods reckon them for `Fusion.estimate`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cosd_api.alignment import LONGEST
from cosd_api.decoding.schedule import FIRST, LEAST, Pace
from cosd_api.paths import FARTHEST
from cosd_providers.hidden_states import SEARCH, STRETCH

SPECIAL = 8
"""Special tokens around a prompt, at most."""
FINER = 2
"""Tokens that a model reads or writes for one of the answer's, at most."""
ROUNDS = 8
"""Requests for one place or one text, at most: mostly one, more if a word is long."""

SCORED = "a text that is scored is read once, or, by llama.cpp, once for each of its tokens"
"""The basis of the expected cost of scores, in words."""
HIGHEST_SCORED = f"a text that is scored is read {ROUNDS} times, or, by llama.cpp, three times for each of its tokens"
"""The basis of the highest cost of scores."""

_LISTED = 64  # prompts of one request, if a text is scored token by token
_IMPROBABLE = 0.15  # of the tokens of a text, for each of which such a server takes one more request
_PROMPTS = 3  # for one token of such a text, at most
_ENDS = 40  # and for its end

_UNDONE = 2  # times that the text after one of the answer's tokens is written, at most
_WRITTEN = 4  # tokens about one place, mostly
_CHAIN = 12  # tokens of an answer about one place, at most
_SHARE = 0.1  # of the tokens that an assistant is asked about, if there is no past answer
_REPLACED = 1 / 3  # of these tokens
_LONGER = 1.5  # tokens that are drafted, or that a watch writes, for one of the answer's
_AHEAD = 8  # tokens that a hedged draft writes before its verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An answer before its generation.

    Attributes:
        max_tokens: of the answer.
        models: their number.
        pace: the schedule of methods that draft.
        skip: whether to leave out questions whose answers cannot matter.
        contested: the part of the draft's tokens about which answers can matter, by assumption.
        lookahead: tokens that the draft may write after the answer's last token, so that its last word can be encoded,
            for models with different ids. Perhaps no word there is ever ready, so that no assistant is asked.
    """

    max_tokens: int
    models: int
    pace: Pace
    skip: bool
    contested: float = _SHARE
    lookahead: int = 0

    @property
    def longest(self) -> int:
        """Tokens that a draft may write one after another, at most."""
        return self.max_tokens + self.lookahead

    @property
    def share(self) -> float:
        """The part of the draft's tokens that an assistant is asked about, by assumption."""
        return self.contested if self.skip else 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    """The prompt as one model reads it, in tokens: at least, most likely and at most.

    `by_token`: whether its endpoint scores a text token by token; see `Capabilities.scores_by_token`. `pauses`: whether
    a draft there continues from its own tokens, so that its first request is short.
    """

    least: int
    expected: int
    most: int
    by_token: bool = False
    pauses: bool = False

    def scored(self, before: float, tokens: float) -> tuple[float, float]:
        """Requests and billed tokens of one score, of `tokens` after `before` others, most likely."""
        if not self.by_token:
            return 1, before + tokens
        places = (1 + _IMPROBABLE) * tokens
        return math.ceil(tokens / _LISTED) + _IMPROBABLE * tokens, places * (before + tokens / 2 + 1)

    def most_scored(self, before: int, tokens: int) -> tuple[int, int]:
        """The same, at most."""
        if not self.by_token:
            return ROUNDS, ROUNDS * (before + tokens + 1)
        within = _PROMPTS * (tokens * before + tokens * (tokens + 1) // 2)  # each prompt reads the text before it
        prompts = _PROMPTS * tokens + _ENDS
        return prompts, within + _ENDS * (before + tokens) + prompts


@dataclass(frozen=True, slots=True)
class Bounds:
    """A number: at least, expected if no past answer is known, and at most."""

    low: int
    expected: float
    high: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an answer at one endpoint.

    Attributes:
        requests: their number.
        tokens: read and written.
        written: the expected tokens that are written, a part of `tokens.expected`.
    """

    requests: Bounds
    tokens: Bounds
    written: float


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The basis of a cost, in words: of the expected cost without past answers, and of the highest."""

    expected: str
    high: str


# ------------------------------------------------------------------------------------------------------ draft first


def draft_cost(plan: Plan, prompt: Reading) -> Cost:
    """The cost of drafting, if a draft is verified while it is written."""
    n, pace = plan.max_tokens, plan.pace
    # Each hedge is a request that reads the whole text before it, and writes a few tokens.
    hedges = n * plan.share * pace.hedge
    replaced = plan.share * _REPLACED
    drafts = 1 + hedges + n * replaced + (n / pace.draft_length if pace.draft_length else 0)
    if prompt.pauses and n > FIRST and pace.draft_length is None and pace.max_ahead is None:
        drafts += (1 - replaced) ** FIRST  # a second request, if nothing of the first is replaced
    written = _LONGER * n + _AHEAD * hedges
    read_and_written = drafts * (prompt.expected + n / 2) + written
    high = _UNDONE * plan.longest + pace.hedge * _drafted(plan)
    if n > LEAST or pace.draft_length is not None or pace.max_ahead is not None:
        high += _drafted(plan)  # one request may be one token
    cost = Cost(
        Bounds(1, drafts, high),
        Bounds(prompt.least + 1, read_and_written, high * (prompt.most + FINER * plan.longest)),
        written,
    )
    return _with_states(cost, plan, prompt) if pace.states else cost


def _with_states(cost: Cost, plan: Plan, prompt: Reading) -> Cost:
    """The cost of drafting if the draft also reads each stretch, and the text before it, for its hidden states."""
    n, stretch = plan.max_tokens, min(STRETCH, plan.pace.draft_length or STRETCH)
    drafts, most = cost.requests, 1 + n // STRETCH + SEARCH  # passes of one draft, at most
    passes = drafts.expected + n / stretch
    requests = Bounds(drafts.low + 1, drafts.expected + passes, drafts.high * (1 + most))
    read = passes * (prompt.expected + n / 2)
    tokens = Bounds(cost.tokens.low + prompt.least, cost.tokens.expected + read, cost.tokens.high * (1 + most))
    return Cost(requests, tokens, cost.written)


def assistant_cost(plan: Plan, model: int, prompt: Reading, *, always: bool) -> Cost:
    """The cost of asking an assistant about places of a draft, in a request for each or by a watch (`plan.pace`).

    Args:
        plan: the answer.
        model: its index, the first assistant's is 1.
        prompt: as the assistant reads it.
        always: whether it is asked in any case, if any token is ready to be judged.
    """
    n = plan.max_tokens
    places = n * plan.share
    high = ROUNDS * _drafted(plan)
    low = (1, prompt.least + 1) if always and not plan.lookahead else (0, 0)
    requests, written = places, _WRITTEN * places
    if model - 1 in plan.pace.watched and places:
        requests, written = 1 + places * _REPLACED, _LONGER * n
    expected = requests * (prompt.expected + n / 2) + written
    tokens = Bounds(low[1], expected, high * (prompt.most + FINER * plan.longest + _chain(plan)))
    return Cost(Bounds(low[0], requests, high), tokens, written)


def draft_first_assumptions(plan: Plan) -> Assumptions:
    """The basis of the draft's and the assistants' costs."""
    ways = ["each in a request of its own that reads all before it"] if len(plan.pace.watched) < plan.models - 1 else []
    if plan.pace.watched:
        ways.append("by a watch that writes half as many tokens again, and is opened again as often as one is replaced")
    found = Assumptions(
        f"max_tokens tokens; {plan.share:.0%} of them asked about, {', or '.join(ways)}; a third of those replaced",
        f"a place that is asked about takes at most {ROUNDS} requests and {_chain(plan)} tokens; at most one "
        "replacement for each token is undone by an earlier one that is judged later",
    )
    if not plan.pace.states:
        return found
    more = f"the draft's states are asked for {STRETCH} tokens at a time, or as long as its drafts are"
    high = f"{found.high}; a text that the server does not take at once is halved until it does"
    return Assumptions(f"{found.expected}; {more}", high)


def _chain(plan: Plan) -> int:
    """Tokens of an answer about one place, at most: an answer about a word also holds the tokens after the word."""
    return _CHAIN + 4 * plan.lookahead


def _drafted(plan: Plan) -> int:
    """Tokens that are drafted and asked about at most: as many as there is room for, after each token."""
    n = plan.longest
    bounds = [bound for bound in (plan.pace.draft_length, plan.pace.max_ahead) if bound is not None]
    open_unit = LONGEST + 1 + (FARTHEST if plan.lookahead else 0)  # it is always completed
    ahead = min(min(bounds) + open_unit, n) if bounds else n
    return _UNDONE * (ahead * (n - ahead) + ahead * (ahead + 1) // 2)
