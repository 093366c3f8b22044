"""Prices of tokens, and the cost of a comparison beforehand, against what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cosd_api import SettingError, compare
from cosd_api.apps.comparison import Comparison, ComparisonEstimate, Price
from cosd_api.apps.comparison.comparing import MOST_SAMPLES, equal_bill
from cosd_api.apps.comparison.prices import prices_from
from cosd_api.types import Range
from toys.compared import examples, pair


def test_prices_as_they_are_written() -> None:
    found = prices_from(["assistant=3,15", "large=1,2"])
    assert found == {"assistant": Price(3, 15), "large": Price(1, 2)}
    assert found["assistant"].of(100, 10) == pytest.approx((100 * 3 + 10 * 15) / 1e6)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("draft=1", "'draft=1' is not NAME=READ,WRITTEN, as in draft=0.2,0.6"),
        ("prices.json", "'prices.json' is not NAME=READ,WRITTEN, as in draft=0.2,0.6"),
        ("1,2", "'1,2' is not NAME=READ,WRITTEN, as in draft=0.2,0.6"),
        ("draft=1,2,0.1", "'draft=1,2,0.1' is not NAME=READ,WRITTEN, as in draft=0.2,0.6"),
    ],
)
def test_what_is_no_price(given: str, words: str) -> None:
    with pytest.raises(SettingError) as caught:
        prices_from([given])
    assert words in str(caught.value)


def test_a_bound_that_says_nothing_is_not_shown_and_the_reason_is() -> None:
    def estimate(high: int, most: int | None = None) -> str:
        tokens = Range(low=10, expected=100, high=high)
        fields: dict[str, Any] = {"questions": 6, "known": 0, "answers": 12, "requests": tokens}
        return str(ComparisonEstimate(**fields, billed_tokens=tokens, length=4, money=1.0, most=most))

    near = (
        "12 answers to 6 questions: about 100 billed tokens if each has 4 tokens (at least 10, at most 2,000) in about"
    )
    assert estimate(2000) == f"{near} 100 requests; price about 1"
    far = "about 100 billed tokens if each has 4 tokens (at least 10) in about 100 requests; price about 1; no useful"
    why = "upper bound, as at worst every token is replaced, and all that follows is written and asked about again"
    assert estimate(2001).endswith(f"{far} {why}: max_billed_tokens sets one")
    assert estimate(2001, 500).endswith(f"{far} {why}; stops at 500 billed tokens")


# The cost beforehand.

ASKED = examples(("both", "draft", "fixed", "fixed", "spoilt", "sure", "neither", "fixed"), ("both", "fixed"))


async def forecast(*, stop: bool = False, **options: Any) -> tuple[ComparisonEstimate, Comparison, int]:
    """The estimate, the comparison, and the number of requests."""
    seen: list[ComparisonEstimate] = []

    def confirm(estimate: ComparisonEstimate) -> bool:
        seen.append(estimate)
        return not stop

    draft, assistant = pair(ASKED)
    given: dict[str, Any] = {"methods": ["cosd"], "max_tokens": 4, "confirm": confirm, **options}
    found = await compare(ASKED.values(), draft=draft, assistant=assistant, **given)
    return seen[0], found, draft.requests + assistant.requests


async def test_a_new_comparison() -> None:
    estimate, found, _ = await forecast()
    assert estimate.billed_tokens.low <= found.spent_tokens <= estimate.billed_tokens.high
    assert estimate.answers == len(found.answers)


async def test_a_finished_comparison_has_nothing_to_come(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first, whole, _ = await forecast(path=path)
    again, found, requests = await forecast(path=path)
    assert (again.answers, again.known) == (0, first.answers)
    assert (again.billed_tokens.high, again.requests.high, requests, found.spent_tokens) == (0, 0, 0, 0)
    assert str(again).startswith(f"0 answers to 10 questions ({first.answers} more are known): about 0 billed tokens")
    assert [one.name for one in found.standings] == [one.name for one in whole.standings]


async def test_another_grader_costs_other_samples_and_is_estimated(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    await forecast(path=path)
    estimate, found, requests = await forecast(path=path, grader="contains")
    assert requests > 0
    assert estimate.answers == found.questions
    assert 0 < found.spent_tokens <= estimate.billed_tokens.high
    back, found, requests = await forecast(path=path)
    assert (requests, back.billed_tokens.low) == (0, 0)  # they are there, which is known when the texts are graded


async def test_a_stopped_comparison_knows_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first, *_ = await forecast(path=path, max_billed_tokens=100)
    again, found, _ = await forecast(path=path)
    assert again.known + again.answers == first.answers
    assert again.billed_tokens.low <= found.spent_tokens <= again.billed_tokens.high


async def test_answers_are_expected_to_be_as_long_as_the_known_ones(tmp_path: Path) -> None:
    alone: dict[str, Any] = {"methods": ["cosd"], "baselines": False, "both_ways": False, "unit": "token"}
    alone["max_tokens"], path = 64, tmp_path / "answers.jsonl"
    first, found, _ = await forecast(path=path, **alone)
    mean = sum(one.tokens for one in found.answers) / len(found.answers)
    again, *_ = await forecast(path=path, stop=True, **(alone | {"methods": ["cosd", "average"]}))
    assert (first.length, again.length) == (64, round(mean)) and mean < 5
    assert f"billed tokens if each has {round(mean)} tokens, as the known ones (at least " in str(again)
    whole, *_ = await forecast(stop=True, **(alone | {"methods": ["cosd", "average"]}))
    one, other = again.billed_tokens, whole.billed_tokens
    assert one.expected < other.expected / 10 and one.high <= other.high


async def test_without_baselines_nobody_pays_for_them() -> None:
    with_them, *_ = await forecast()
    estimate, found, requests = await forecast(baselines=False)
    assert estimate.answers == 4 * 10 == len(found.answers) < with_them.answers
    assert requests == sum(usage.requests for one in found.answers for usage in one.usage.values())


async def test_self_consistency_has_an_equal_bill() -> None:
    _, found, _ = await forecast(both_ways=False)
    held = {name: found.answers_of(name, development=True) for name in ("cosd", found.better)}
    bills = {name: sum(one.billed for one in several.values()) for name, several in held.items()}
    samples = found["self-consistency"].settings["options"]["samples"]
    assert found.better == "assistant" and samples == max(1, round(bills["cosd"] / bills["assistant"]))


def test_the_number_of_samples() -> None:
    assert equal_bill(30, 10) == 3
    assert equal_bill(1, 20) == 1
    assert equal_bill(900, 10) == MOST_SAMPLES
    assert equal_bill(0, 0) == 1
