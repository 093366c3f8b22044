"""A small comparison, made by hand: two models, two methods, a baseline, an oracle, and one that answered nothing."""

from __future__ import annotations

import math
from typing import Any

from cosd_api import Example
from cosd_api.comparison.contestants import LeftOut
from cosd_api.comparison.contrasts import GradedOutcomes
from cosd_api.comparison.journal import AnswerUsage, GradedAnswer
from cosd_api.comparison.result import Comparison
from cosd_api.comparison.standings import FailedAnswer, ModelCalibration, PlaceCounts, Standing, compared
from cosd_api.comparison.statistics import Estimated, PairedCounts, calibration, wilson
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


def sample_comparison(text: str | None = None, **fields: Any) -> Comparison:
    """The comparison; with `text` at every place where a model, a server or a user wrote something."""

    def said(given: str) -> str:
        return given if text is None else text

    def standing(name: str, kind: Any, billed: float, **more: Any) -> Standing:
        right = RIGHT[name][1:]
        return Standing(
            name=name,
            kind=kind,
            answered=5,
            failed=0,
            right=right.count("1"),
            settings={"method": "cosd", "options": {}},
            accuracy=wilson(right.count("1"), 5),
            seconds=0.25,
            first_token=0.1,
            tokens=3.0,
            requests={"draft": 1.0, "assistant": 0.5},
            read={"draft": billed / 2, "assistant": billed / 4},
            written={"draft": billed / 8, "assistant": billed / 8},
            money=billed / 1e6,
            **more,
        )

    places = PlaceCounts(places=7, assistant=4, draft=2, neither=1, unknown=0, answers=PairedCounts(1, 3, 1, 0))
    oracle = standing("cosd", "derived", 30).model_copy(update={"name": "oracle", "right": 3, "accuracy": wilson(3, 5)})
    nothing = Standing(name="cool", kind="method", answered=0, failed=5, right=0, accuracy=Estimated(math.nan, 0, 1))
    several = [
        standing("draft", "alone", 8),
        standing("assistant", "alone", 24, reverse=True),
        oracle,
        standing("cosd", "method", 40, acceptance=0.9, replaced=places),
        standing("cosd, reversed", "method", 60, acceptance=0.75, reverse=True),
        standing("random gate", "baseline", 44, acceptance=1.0),
        nothing,
    ]
    right = {name: {key: one == "1" for key, one in zip(KEYS[1:], of[1:], strict=True)} for name, of in RIGHT.items()}
    right |= {"oracle": right["cosd"], "cool": {}}
    billed = {one.name: one.billed or 0.0 for one in several if one.kind != "derived" and one.answered}
    models = ("draft", "assistant")
    outcomes = GradedOutcomes(
        models=models, questions=KEYS[1:], right=right, billed=billed, failed={"cool": {*KEYS[1:]}}
    )
    standings = [*compared(several, outcomes, {}).standings]
    if text is not None:
        standings[4] = standings[4].model_copy(update={"name": text})
    curve = calibration([(0.9, True), (0.8, False), (0.3, False)], alpha=0.5)
    model = ModelCalibration(mean=curve, least=curve)
    answers = [
        GradedAnswer(
            key=f"{name} {at}",
            graded="g",
            contestant=name,
            question=KEYS[at],
            text=said(f"{name} says {at}"),
            right=right == "1",
            seconds=0.25,
            tokens=3,
            usage={"draft": AnswerUsage(requests=1, read=5, written=3)},
        )
        for name, outcomes in RIGHT.items()
        for at, right in enumerate(outcomes)
    ]
    given: dict[str, Any] = {
        "draft": Endpoint(
            name="draft", endpoint="http://user:key@gpu1:8080?key=1", engine=said("e"), model=said("small")
        ),
        "assistant": Endpoint(
            name="assistant", endpoint="http://gpu2", engine="e", model=said("large"), build=said("b7")
        ),
        "questions": 5,
        "development": (KEYS[0],),
        "better": "draft",
        "grader": said("last-number"),
        "max_tokens": 64,
        "stop": (said("###"),),
        "standings": tuple(standings),
        "left_out": (
            LeftOut(said("average"), said("no common tokenizer")),
            LeftOut("safe", said("no common tokenizer")),
        ),
        "failures": (
            *(FailedAnswer(contestant="cool", question=key, error=said("the prompt is too long")) for key in KEYS[1:]),
            FailedAnswer(contestant="draft", question=KEYS[0], error="it is down", development=True),
        ),
        "calibration": {"draft": model, "assistant": model},
        "stopped": said("the limit of tokens is reached"),
        "billed_tokens": 1234,
        "answers": tuple(answers),
        "warnings": (said("a note"),),
    }
    return Comparison(**{**given, **fields})
