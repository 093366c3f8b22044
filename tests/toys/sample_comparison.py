"""A small comparison, made by hand: two models, two methods, a baseline, an oracle, and one that answered nothing."""

from __future__ import annotations

from typing import Any

from cosd_api import CoolFusion, CoSD, Example
from cosd_api.apps.comparison.contestants import Contestant, LeftOut, alone
from cosd_api.apps.comparison.journal import AnswerUsage, GradedAnswer
from cosd_api.apps.comparison.prices import Price
from cosd_api.apps.comparison.standings import Comparison, FailedAnswer, standings_of
from cosd_api.apps.comparison.tables import comparison_page
from cosd_api.records import Endpoint

EXAMPLES = [Example(prompt=f"Q{at}", answer=f" {at}") for at in range(6)]
KEYS = [one.key for one in EXAMPLES]
RIGHT = {
    "draft": "110000",
    "assistant": "001100",
    "cosd": "011110",
    "cosd, reversed": "111100",
    "random gate": "110000",
}
"""Right and wrong answers to the six questions; the first is for development."""
_BILLED = {"draft": 8, "assistant": 24, "cosd": 40, "cosd, reversed": 60, "random gate": 44}


def sample_comparison(text: str | None = None, **fields: Any) -> Comparison:
    """The comparison; with `text` at every place where a model, a server or a user wrote something."""

    def said(given: str) -> str:
        return given if text is None else text

    name = {one: said(one) if one == "cosd, reversed" else one for one in (*RIGHT, "cool")}
    answers = [
        GradedAnswer(
            key=f"{way} {at}",
            contestant=name[way],
            question=KEYS[at],
            text=said(f"{way} says {at}"),
            right=right == "1",
            seconds=0.25,
            tokens=3,
            usage={"draft": AnswerUsage(requests=1, read=_BILLED[way] - 3, written=3)},
            acceptance=0.9 if way == "cosd" else None,
        )
        for way, outcomes in RIGHT.items()
        for at, right in enumerate(outcomes)
    ]
    failures = (
        *(FailedAnswer(contestant="cool", question=key, error=said("the prompt is too long")) for key in KEYS[1:]),
        FailedAnswer(contestant="draft", question=KEYS[0], error="it is down", development=True),
    )
    by = {way: {one.question: one for one in answers if one.contestant == way} for way in name.values()}
    contestants = [
        *alone(),
        Contestant("oracle", "derived"),
        Contestant("cosd", "method", CoSD()),
        Contestant(name["cosd, reversed"], "method", CoSD(), 1),
        Contestant("random gate", "baseline", CoSD()),
        Contestant("cool", "method", CoolFusion()),
    ]
    prices = {"draft": Price(1, 1), "assistant": Price(1, 1)}
    standings, better = standings_of(contestants, EXAMPLES[1:], by, failures, prices)
    given: dict[str, Any] = {
        "draft": Endpoint(name="draft", endpoint="http://gpu1:8080", engine=said("e"), model=said("small")),
        "assistant": Endpoint(name="assistant", endpoint="http://gpu2", engine="e", model=said("large")),
        "questions": 5,
        "development": (KEYS[0],),
        "better": better,
        "grader": said("last-number"),
        "max_tokens": 64,
        "stop": (said("###"),),
        "standings": tuple(standings),
        "left_out": (
            LeftOut(said("average"), said("no common tokenizer")),
            LeftOut("safe", said("no common tokenizer")),
        ),
        "failures": failures,
        "stopped": said("the limit of tokens is reached"),
        "billed_tokens": 1234,
        "answers": tuple(answers),
        "warnings": (said("a note"),),
    }
    return Comparison(**{**given, **fields})


def page(found: Comparison) -> str:
    """The page about a comparison."""
    return comparison_page(found, found.advice())
