"""Checks of contexts by ids: a model that is sent the ids before one of its own tokens must choose that token again."""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import zip_longest
from typing import Any

from cosd_providers.contract import Context, IdContexts, Token
from cosd_providers.probe.inquiry import TOO_SHORT, Finding, Inquiry, check, text_of
from cosd_providers.probe.report import in_digits
from cosd_providers.usage import Usage

__all__ = ["MOST_TIE", "after_ids"]

MOST_TIE = 0.1
"""The greatest difference between two log probabilities that counts as a tie."""

_WRITTEN = 24  # number of tokens in each draft
_PROMPTS = (
    "The old lighthouse stood on a cliff above the sea. Every evening",
    "Shopping list for a small party:\n- bread\n- cheese\n-",
    'def mean(values):\n    """Return the mean of some numbers."""\n    ',
)
"""Prompts for prose, a list and code."""

_LEAST = 3  # minimum number of comparisons in all drafts together
_EXACT = 1e-6  # differences below this count as zero
_FAR = 1e-3  # tokens less probable than this are not part of a tie
_ASKED = f"three drafts of {_WRITTEN} tokens by ids, and the next token after the ids before each of theirs"
_NO_IDS = "it takes no ids, or does not show those of its tokens"


@dataclass
class _Seen:
    """Comparison of the tokens that a model wrote with its choices when it reads the ids before each of them.

    Attributes:
        equal: number of places at which the model chooses the token that it wrote.
        tied: number of places at which the written token is the second choice, and nearly as probable as the first.
        wrong: descriptions of the differences at all other places.
        apart: for each place, how much the difference between two tokens' log probabilities changes from writing to
            reading. This change can reverse the order of the two tokens. If one of the tokens has a probability of
            0.99, the change is a hundred times as large as the change in that token's own log probability.
    """

    equal: int = 0
    tied: int = 0
    wrong: list[str] = field(default_factory=list[str])
    apart: list[float] = field(default_factory=list[float])

    @property
    def places(self) -> int:
        """Number of places that were compared."""
        return self.equal + self.tied + len(self.wrong)

    @property
    def widest(self) -> float:
        """The greatest value in `apart`; 0 if it is negligible."""
        most = round(max(self.apart, default=0.0), 9)
        return most if most >= _EXACT else 0.0

    def compare(self, written: Token, read: Token) -> None:
        """Compare a written token with the most probable token at its place when the model reads the ids before it."""
        second = next(iter(read.alternatives), None)
        if read.id == written.id or (read.end and written.end):
            self.equal += 1
        elif second is not None and second.id == written.id and _distance(read, second) <= MOST_TIE:
            self.tied += 1
        else:
            self.wrong.append(f"{_named(written)} was written, and {_named(read)} is read")
            return
        shifts = _shifts(written, read)
        if shifts:
            self.apart.append(max(shifts) - min(shifts) if shifts[1:] else abs(shifts[0]))


@check("after_ids", _ASKED, refused=False)
async def after_ids(inquiry: Inquiry) -> Finding:
    """Write drafts by ids, and ask the model at every place in them. It must repeat its own tokens.

    Also record the line `tie`: the difference in log probability that counts as a tie.
    """
    provider = inquiry.provider
    if not (inquiry.info.capabilities.ids and isinstance(provider, IdContexts)):
        inquiry.note("tie", None, _ASKED, _NO_IDS)
        return False, _NO_IDS
    seen = _Seen()
    drafts = [await _written(inquiry, prompt) for prompt in _PROMPTS]
    if any(token.id is None for written in drafts for token in written):
        return False, "its tokens have no ids"
    several, usage = _at_once(inquiry), Usage()  # a separate record, because these requests belong to no strategy
    for places in zip_longest(*(_there_and_back(len(written)) for written in drafts)):
        asked = [(drafts[of], _PROMPTS[of], at) for of, at in enumerate(places) if at is not None]
        contexts = [_before(prompt, written, at) for written, prompt, at in asked]
        for (written, _, at), read in zip(asked, await several.next_tokens(contexts, usage=usage), strict=True):
            if read is not None:
                seen.compare(written[at], read)
    inquiry.usage.requests += usage.requests
    inquiry.usage.bill(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
    if seen.places < _LEAST:
        return None, TOO_SHORT
    inquiry.note("tie", _tie(seen.widest), _ASKED, _difference(seen.widest))
    words = f"equal at {seen.equal} of {seen.places} places"
    if seen.tied:
        words += f", and a tie at {seen.tied}"
    return not seen.wrong, words + (f"; {seen.wrong[0]}" if seen.wrong else "")


async def _written(inquiry: Inquiry, prompt: str) -> list[Token]:
    """Write a draft whose context is ids."""
    also: Any = {"alternatives": 1} if inquiry.info.capabilities.top_k else {}
    stream = inquiry.provider.generate(Context(prompt, b"", ()), max_tokens=_WRITTEN, usage=inquiry.usage, **also)
    async with aclosing(stream):
        return [item async for item in stream if isinstance(item, Token)]


def _at_once(inquiry: Inquiry) -> IdContexts:
    """Return a provider that, if possible, asks about several places in one request, so that they form a batch."""
    provider: Any = inquiry.provider
    several: IdContexts = provider.with_strategy("list") if "list" in getattr(provider, "strategies", ()) else provider
    return several


def _before(prompt: str, tokens: Sequence[Token], at: int) -> Context:
    """Return the context before a token of a draft."""
    return Context(prompt, text_of(tokens[:at]), tuple(token.id or 0 for token in tokens[:at]))


def _there_and_back(count: int) -> Iterable[int]:
    """Order the places of a draft: the last, the first, the last but one, the second, ...

    In this order, a server that caches only its last request must read the ids between two places again, as one batch.
    In descending order, it would find all ids in its cache.
    """
    for at in range(count):
        yield at // 2 if at % 2 else count - 1 - at // 2


def _shifts(written: Token, read: Token) -> list[float]:
    """Return the changes in log probability from writing to reading, for the tokens that are listed both times."""
    tables = [{one.id: one.prob for one in (token, *token.alternatives)} for token in (written, read)]
    pairs = [(tables[0][key], tables[1].get(key)) for key in tables[0]]
    return [math.log(now) - math.log(then) for then, now in pairs if then and now and then > _FAR]


def _distance(one: Token, other: Token) -> float:
    """Return the difference in log probability between two tokens; infinite if a probability is unknown or zero."""
    return math.log(one.prob) - math.log(other.prob) if one.prob and other.prob else math.inf


def _named(token: Token) -> str:
    return "the end" if token.end else repr(token.data.decode("utf-8", "replace"))


def _tie(widest: float) -> float:
    """Round the difference up to two significant digits, and limit it to `MOST_TIE`."""
    return min(MOST_TIE, float(_rounded(widest, decimal.ROUND_CEILING)))


def _difference(widest: float) -> str:
    if not widest:
        return "log probabilities are the same, written and read: tie=0"
    shown = in_digits(float(_rounded(widest, decimal.ROUND_HALF_EVEN)))
    words = "from writing to reading, the two most probable tokens move against each other by"
    if widest <= MOST_TIE:
        return f"{words} at most {shown} in log probability: tie={in_digits(_tie(widest))}"
    words = f"{words} up to {shown} in log probability: the server's numbers depend on how a prompt is batched"
    return f"{words}, and differences above {MOST_TIE} are not called ties: tie={MOST_TIE}"


def _rounded(value: float, rounding: str) -> Decimal:
    """Round a number to two significant digits."""
    return decimal.Context(prec=2, rounding=rounding).create_decimal(repr(value))
