"""`compare` with a draft and two assistants: numbers by hand, `fuse`'s own texts, what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cosd_api import Average, CoSD, Example, RuleVerifier, SettingError, Speculative, compare, fuse
from cosd_api.apps.comparison import Advice, Comparison
from cosd_api.apps.comparison.contestants import VARIANTS
from cosd_api.apps.comparison.statistics import PairedCounts
from cosd_api.methods.base import METHODS, Method, method_named
from cosd_providers.testing import ScriptedProvider
from support.method_files import AT
from toys.compared import examples, in_turn, trio
from toys.sample_comparison import page

TEST = ("all", "first", "second", "surest", "misled", "draft", "none", "first")
ASKED = examples(TEST, ("all", "first"))
NAMES = ("draft", "assistant 1", "assistant 2")
TWO_ALONE = ("steps",)


async def compared(
    asked: dict[str, Example] = ASKED, models: list[ScriptedProvider] | None = None, **options: Any
) -> Comparison:
    draft, *assistants = models or trio(asked)
    options = {"methods": ["cosd"], "max_tokens": 4, **options}
    return await compare(asked.values(), draft=draft, assistant=assistants, **options)


async def test_every_number_by_hand() -> None:
    models = trio(ASKED)
    found = await compared(models=models, both_ways=False)
    assert [(one.name, one.right, one.answered) for one in found.standings] == [
        ("draft", 3, 8),
        ("assistant 1", 4, 8),
        ("assistant 2", 3, 8),
        ("oracle", 7, 8),
        ("cosd", 6, 8),
        ("self-consistency", found["self-consistency"].right, 8),
        ("random gate", found["random gate"].right, 8),
    ]
    assert found.better == "assistant 1" and {*found.models} == {*NAMES}
    assert [one.model for one in found.models.values()] == ["small", "large", "other"]
    assert found["cosd"].differences["assistant 1"].counts == PairedCounts(both=3, won=3, lost=1, neither=1)
    assert found["oracle"].differences["assistant 1"].counts == PairedCounts(both=4, won=3, lost=0, neither=1)
    # In the development questions an assistant differs at one place, and CoSD replaces the draft's word there.
    assert found["random gate"].settings["verifier"]["rate"] == 1
    assert {name: found["assistant 2"].requests[name] for name in NAMES} == {**dict.fromkeys(NAMES, 0), NAMES[2]: 1}
    asked = [one for one in found.standings if one.kind != "derived"]
    held = [one for one in found.answers if one.question in found.development]
    for name, model in zip(NAMES, models, strict=True):
        spent = sum(8 * one.requests[name] for one in asked)
        spent += sum(one.usage[name].requests for one in held if name in one.usage)
        assert spent == pytest.approx(model.requests)


async def test_each_model_drafts_in_turn() -> None:
    rule = CoSD(verifier=RuleVerifier.paper())  # no assistant is unsure by it
    found = await compared(methods={"cosd": rule, "average": "average", "switch": AT["switch"]})
    assert [(one.name, one.first) for one in found.standings if one.kind == "method"] == [
        ("cosd", "draft"),
        ("cosd, assistant 1 first", "assistant 1"),
        ("cosd, assistant 2 first", "assistant 2"),
        ("average", "draft"),
        ("switch", "draft"),
        ("switch, assistant 1 first", "assistant 1"),
        ("switch, assistant 2 first", "assistant 2"),
    ]
    gates = [one for one in found.standings if one.name.startswith("random gate")]
    assert [(one.first, one.reverse) for one in gates] == [(name, name != "draft") for name in NAMES]
    assert found["cosd, assistant 2 first"].requests["assistant 2"] == 1


async def test_every_text_is_what_fuse_writes() -> None:
    found = await compared(methods="all", baselines=False)
    fused = [one for one in found.standings if one.kind == "method"]
    assert {one.settings["method"] for one in fused} >= {"cosd", "cool", "average", "safe", "chared", "rerank"}
    for standing in fused:
        method: Method = VARIANTS[name] if (name := standing.name.split(",")[0]) in VARIANTS else method_named(name)
        order = [str(standing.first), *(name for name in NAMES if name != standing.first)]
        limits: dict[str, Any] = {"max_tokens": 4, **({"seed": 0} if method.temperature else {})}
        answers = found.answers_of(standing.name)
        for example in ASKED.values():
            if example.key not in answers:
                continue
            models = dict(zip(NAMES, trio(ASKED), strict=True))
            draft, *others = (models[name] for name in order)
            given: Any = {"models": [draft, *others]} if method.symmetric else {"draft": draft, "assistant": others}
            result = await fuse(example.prompt, **given, method=method, **limits)
            assert result.text == answers[example.key].text, (standing.name, example.prompt)
            usage = {order[NAMES.index(name)]: one.requests for name, one in result.usage.items()}
            assert usage == {name: one.requests for name, one in answers[example.key].usage.items()}


async def test_methods_for_two_models_are_left_out_or_refused() -> None:
    found = await compared(methods="all", baselines=False)
    reasons = {one.name: one.reason for one in found.left_out}
    assert {name: reasons[name] for name in TWO_ALONE} == {
        name: f"{name!r} accepts at most 2 models, not 3" for name in TWO_ALONE
    }
    assert reasons["speculative"].startswith("it draws what the assistant would write")
    assert {*METHODS} - {*reasons} <= {one.name for one in found.standings}
    for method in (*map(method_named, TWO_ALONE), Speculative(temperature=1)):
        name = method.name
        with pytest.raises(SettingError) as caught:
            await compared(methods=["cosd", method])
        assert str(caught.value) == (
            f"the method {name!r} cannot fuse these 3 models: {name!r} accepts at most 2 models, not 3. Leave it out, "
            "or compare it by itself"
        )
    with pytest.raises(SettingError, match="there are 2 weights for 3 models: give one for each"):
        await compared(methods=[Average(weights=(1, 2))])
    with pytest.raises(SettingError, match="assistant is empty"):
        await compare(ASKED.values(), draft=trio(ASKED)[0], assistant=[])


async def test_the_same_call_asks_nothing_again_and_other_models_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first = await compared(path=path, methods=["cosd", CoSD(verifier=RuleVerifier(alpha=1, beta=1))])
    models = trio(ASKED)
    again = await compared(path=path, models=models, methods=["cosd", "cosd-1-1"])
    assert sum(one.requests for one in models) == again.spent_tokens == 0
    assert again.standings == first.standings and again.billed_tokens == first.billed_tokens
    draft, one, other = models
    with pytest.raises(SettingError, match="holds answers of small, large and other, not of small and large: give"):
        await compare(ASKED.values(), draft=draft, assistant=one, path=path)
    words = "not of small, other and large: give the models in the same order, or give another"
    with pytest.raises(SettingError, match=words):
        await compare(ASKED.values(), draft=draft, assistant=[other, one], path=path)


async def test_prices_are_of_each_endpoint() -> None:
    prices: dict[str, Any] = {"draft": (1, 2), "assistant 1": (3, 4), "other": (5, 6)}
    found = await compared(prices=prices)
    assert found["assistant 2"].money == pytest.approx((3 * 5 + 2 * 6) / 1e6)
    assert found["oracle"].money == pytest.approx((3 * (1 + 3 + 5) + 2 * (2 + 4 + 6)) / 1e6)
    words = "the price of assistant 2 (other) is missing: the names are draft, assistant 1 and assistant 2, or the"
    with pytest.raises(SettingError) as caught:
        await compared(prices={"draft": (1, 2), "large": (3, 4)})
    assert words in str(caught.value)


async def test_a_grader_that_fits_no_answer_is_named() -> None:
    wrong = {key: one.model_copy(update={"answer": "unheard of"}) for key, one in ASKED.items()}
    found = await compared(wrong, models=trio(ASKED))
    assert {one.right for one in found.standings} == {0}
    words = "No answer of any model or way is right by the grader exact. Compare some answers with the references"
    assert words in " ".join(str(found).split()) and words in " ".join(page(found).split())
    assert "No answer of any model" not in str(await compared())


async def test_reports_name_every_model() -> None:
    found = await compared()
    again = Comparison.model_validate_json(found.model_dump_json())
    assert (again, str(again)) == (found, str(found))
    text, shown = str(found), page(found)
    assert text.startswith("small as the draft, large and other as the assistants, graded by exact: 8 test questions")
    assert "No way is shown to be better than each of the models alone" in text and "to assistant 2" in text
    assert "small as the draft, large and other as the assistants, graded by exact" in shown
    assert "Differences are to each model alone" in shown


async def test_advice_on_three_models() -> None:
    asked = in_turn(("first", "second", "draft"), 40)
    turned, *others = reversed(trio(asked))  # the one that should draft is the last that is given
    made = await compare(
        asked.values(), draft=turned, assistant=others, methods=["cosd"], baselines=False, max_tokens=4
    )
    found = made.advice()
    assert (found.decision, found.way, found.tried) == ("fuse", "cosd, assistant 2 first", 3)
    assert (made.questions, made["cosd, assistant 2 first"].right) == (40, 40)
    assert found.gain is not None and found.gain.low > 0
    assert str(found).startswith(
        "Fuse them. Let assistant 2 (small) draft and the draft (other) and assistant 1 (large) assist"
    )
    assert Advice.model_validate_json(found.model_dump_json()) == found
