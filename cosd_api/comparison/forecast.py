"""Cost of a comparison, estimated from a few of its questions before any is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cosd_api.comparison.prices import MILLION, ComparisonEstimate, Price
from cosd_api.estimate import EndpointEstimate, Range
from cosd_api.fusion import Fusion
from cosd_api.training.dataset import Example

__all__ = ["estimated", "with_test"]

_LOOKED_AT = 3
"""Questions that an estimate is made of: the shortest, one in the middle and the longest."""


async def estimated(
    fusions: Mapping[str, Fusion],
    to_come: Mapping[str, Sequence[Example]],
    max_tokens: int,
    *,
    roles: Mapping[str, Mapping[str, str]],
    prices: Mapping[str, Price] | None,
    alike: Mapping[str, str],
    known: int,
    questions: int,
    most: int | None,
) -> ComparisonEstimate:
    """Estimate what answers to come may cost.

    Args:
        fusions: by contestant.
        to_come: the questions that each contestant is still to answer; of contestants without a fusion, too.
        max_tokens: of an answer.
        roles: for each contestant its endpoints, as the user gave them, by their names in its fusion.
        prices: by endpoint.
        alike: contestants that are not known yet, with one whose answers cost about the same.
        known: number of answers that are there.
        questions: number of all questions.
        most: the limit of billed tokens.

    Raises:
        ProviderError: an endpoint failed.
    """
    made: dict[str, list[Mapping[str, EndpointEstimate]]] = {}
    assumptions: dict[str, None] = {}
    examples = [*{example.key: example for several in to_come.values() for example in several}.values()]
    examples.sort(key=lambda one: len(str(one.prompt)))
    looked_at = [*{at: examples[at] for at in (0, len(examples) // 2, len(examples) - 1)}.values()] if examples else []
    for name, fusion in fusions.items():
        for example in looked_at if to_come.get(name) else ():
            found = await fusion.estimate(example.prompt, max_tokens=max_tokens)
            made.setdefault(name, []).append({roles[name][at]: one for at, one in found.endpoints.items()})
            assumptions[f"{name}: {'; '.join(found.assumptions)}"] = None
    for name, other in alike.items():
        if other in made:
            made[name] = made[other]
    scales = {name: len(to_come[name]) for name in made}

    def over(of: str, names: Sequence[str]) -> Range:
        """The sum over the contestants' questions, from the mean of those that were looked at."""

        def total(bound: str) -> int:
            return round(sum(scales[name] * _mean(made[name], of, bound) for name in names))

        return Range(low=total("low"), expected=total("expected"), high=total("high"))

    return ComparisonEstimate(
        questions=questions,
        contestants={name: over("billed_tokens", [name]) for name in made},
        known=known,
        answers=sum(map(len, to_come.values())),
        requests=over("requests", [*made]),
        billed_tokens=over("billed_tokens", [*made]),
        money=None if prices is None else _money(made, scales, prices, max_tokens),
        most=most,
        assumptions=tuple(assumptions),
    )


def with_test(
    first: ComparisonEstimate, models: ComparisonEstimate, ways: Sequence[ComparisonEstimate], *, certain: bool
) -> ComparisonEstimate:
    """Estimate both parts of `advise`: every way and both models, then both models and one of the ways.

    Args:
        first: of the first part.
        models: of both models in the second part.
        ways: of each way in the second part, of which one is to be chosen.
        certain: whether the choice is known; otherwise there may be no second part.
    """

    def second(of: str) -> Range:
        alone, each = getattr(models, of), [getattr(one, of) for one in ways]
        return Range(
            low=alone.low + min(one.low for one in each) if certain else 0,
            expected=alone.expected + round(sum(one.expected for one in each) / len(each)),
            high=alone.high + max(one.high for one in each),
        )

    def both(of: str) -> Range:
        mine, more = getattr(first, of), second(of)
        return Range(low=mine.low + more.low, expected=mine.expected + more.expected, high=mine.high + more.high)

    money = None
    if first.money is not None and models.money is not None:
        each = [one.money for one in ways if one.money is not None]
        low = models.money[0] + min(one[0] for one in each) if certain else 0.0
        expected = models.money[1] + sum(one[1] for one in each) / len(each)
        high = models.money[2] + max(one[2] for one in each)
        money = (first.money[0] + low, first.money[1] + expected, first.money[2] + high)
    return first.model_copy(
        update={
            "questions": first.questions + models.questions,
            "known": first.known + models.known + min(one.known for one in ways),
            "answers": first.answers + models.answers + max(one.answers for one in ways),
            "requests": both("requests"),
            "billed_tokens": both("billed_tokens"),
            "test": second("billed_tokens"),
            "money": money,
            "assumptions": tuple(dict.fromkeys([*first.assumptions, *models.assumptions])),
        }
    )


def _mean(several: Sequence[Mapping[str, EndpointEstimate]], of: str, bound: str) -> float:
    """The mean over questions of a bound of what both endpoints have of something."""
    found: list[int] = [getattr(getattr(one, of), bound) for endpoints in several for one in endpoints.values()]
    return sum(found) / len(several)


def _money(
    made: Mapping[str, Sequence[Mapping[str, EndpointEstimate]]],
    scales: Mapping[str, int],
    prices: Mapping[str, Price],
    max_tokens: int,
) -> tuple[float, float, float]:
    """The price at least, most likely and at most: of the tokens billed, `max_tokens` at most are written."""

    def price(name: str, billed: int) -> tuple[float, float]:
        one, written = prices[name], min(billed, max_tokens)
        least = billed * min(one.read, one.written) / MILLION
        return least, one.of(billed - written, written)

    low = expected = high = 0.0
    for contestant, several in made.items():
        share = scales[contestant] / len(several)
        for endpoints in several:
            for name, one in endpoints.items():
                tokens = one.billed_tokens
                low += share * price(name, tokens.low)[0]
                expected += share * price(name, tokens.expected)[1]
                high += share * tokens.high * max(prices[name].read, prices[name].written) / MILLION
    return low, expected, high
