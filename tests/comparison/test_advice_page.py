"""The page about advice: what is in it, whatever is advised, and that whatever a server wrote is text in it."""

from __future__ import annotations

from typing import Any

import pytest

from compared import pair
from cosd_api import Advice, Example, advise, compare
from cosd_api.comparison.advice_page import advice_page
from cosd_api.comparison.choice import parts
from cosd_providers import ConnectError
from cosd_providers.testing import Fault
from seen import Seen

HOSTILE = "</script><img src=x onerror=alert(1)>&amp;"


def asked(*kinds: str) -> dict[str, Example]:
    made = {one.key: one for one in (Example(prompt=f"Q{at}:", answer=" r") for at in range(20))}
    first, second = parts(made)
    return {f"{at} {kinds[at % len(kinds)]}": made[key] for at, key in enumerate([*first, *second])}


async def advice_on(*kinds: str, down: tuple[int, ...] = (), **options: Any) -> Advice:
    questions = asked(*kinds)
    draft, assistant = pair(questions)
    draft.faults = [Fault(ConnectError("it is down"), request=at) for at in down]
    given: dict[str, Any] = {"methods": ["cosd", "cool"], "both_ways": False, "max_tokens": 4, **options}
    return await advise(questions.values(), draft=draft, assistant=assistant, concurrency=1, **given)


async def test_the_page_has_the_advice_the_test_and_all_ways() -> None:
    advice = await advice_on("fixed", "draft")
    seen = Seen(advice_page(advice, title="Mine?"))
    assert seen.texts["h1"] == ["Mine?"]
    heads = ["Advice", "The test", "Ways to choose from", "Quality and cost", "Endpoints"]
    assert seen.texts["h2"] == heads
    assert str(advice) in seen.texts["p"]
    assert "fuse them is the advice" in seen.texts["li"]
    assert "12 questions that had no part in the choice: cosd beside both models." in seen.texts["p"]
    assert "8 questions that choose: the first way, cosd, was tested." in seen.texts["p"]
    test, ways, _ = seen.texts["table"]
    assert "cool" not in test and ways.index("cosd") < ways.index("cool")
    luck = "The best of many owes a part of its lead to luck: expect less of it on other questions."
    assert seen.texts["p"].count(luck) == 1 and seen.texts["p"].index(luck) > seen.texts["p"].index(
        "8 questions that choose: the first way, cosd, was tested."
    )
    assert seen.texts["p"].count("answers of at most 4 tokens, seed 0") == 1
    assert advice_page(Advice.model_validate_json(advice.model_dump_json())) == advice_page(advice)


async def test_one_model_alone() -> None:
    seen = Seen(advice_page(await advice_on("both", "neither")))
    assert seen.texts["h2"] == ["Advice", "Ways to choose from", "Quality and cost", "Endpoints"]
    assert "the draft alone is the advice" in seen.texts["li"]
    assert "8 questions that choose: no way was ahead of the better model alone." in seen.texts["p"]


async def test_what_failed_and_what_was_left_out() -> None:
    advice = await advice_on("fixed", "draft", down=(1,), methods=["cosd", "speculative"], unit="word")
    seen = Seen(advice_page(advice))
    assert seen.texts["h2"][-3:] == ["Failed", "Left out", "Endpoints"]
    assert [text for text in seen.texts["tr"] if "it is down" in text] == ["draft1 questionsmall: it is down"]
    assert any(text.startswith("speculative") for text in seen.texts["tr"])


async def test_it_was_stopped() -> None:
    advice = await advice_on("fixed", "draft", max_billed_tokens=30)
    seen = Seen(advice_page(advice))
    assert "not known yet is the advice" in seen.texts["li"]
    assert any(text.startswith("No advice yet: max_billed_tokens=30 is reached") for text in seen.texts["p"])
    assert "8 questions that choose." in seen.texts["p"]


@pytest.mark.extended
async def test_a_comparison_that_advised() -> None:
    questions = {**asked("fixed", "draft"), **{f"{at} both": Example(prompt=f"P{at}:", answer=" r") for at in range(9)}}
    draft, assistant = pair(questions)
    found = await compare(questions.values(), draft=draft, assistant=assistant, methods=["cosd"], max_tokens=4)
    seen = Seen(advice_page(found.advice()))
    assert seen.texts["h2"][:2] == ["Advice", "Results"]
    assert "random gate" in seen.texts["table"][0]


async def test_text_that_looks_like_html_stays_text() -> None:
    advice = await advice_on("fixed", "draft")
    endpoint = advice.draft.model_copy(update={"model": HOSTILE, "engine": HOSTILE})
    part = advice.parts[0].model_copy(update={"draft": endpoint, "warnings": (HOSTILE,), "grader": HOSTILE})
    hostile = advice.model_copy(update={"draft": endpoint, "grader": HOSTILE, "way": HOSTILE, "parts": (part,) * 2})
    seen = Seen(advice_page(hostile, title=HOSTILE))
    assert "img" not in seen.tags and "script" not in seen.tags and seen.texts["h1"] == [HOSTILE]
