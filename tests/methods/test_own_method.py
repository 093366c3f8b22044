"""A method that a user writes needs one file: no registration, and no forecast of its cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cosd_api import Fusion, FusionResult, SettingError, compare, fuse
from cosd_api.apps.cli.spending import bounded
from cosd_api.apps.comparison import ComparisonEstimate
from cosd_api.apps.report.page import page
from cosd_api.decoding.model import Model
from cosd_api.decoding.program import Answer
from cosd_api.errors import FusionError
from cosd_api.methods.base import Program
from cosd_api.methods.cost import Bounds, Cost, Plan, Reading
from cosd_api.settings import AnswerLimits
from cosd_providers.testing import ScriptedProvider
from fakes.commands import cosd

NONE = "the method 'shout' makes no forecast of the cost"
QUESTIONS = [{"prompt": f"Q{number}", "answer": "LONG."} for number in range(24)]


@dataclass(frozen=True, kw_only=True)
class Shout(Program):
    """The first assistant's own answer, in capital letters."""

    name: ClassVar[str] = "shout"

    mark: str = ""

    async def write(self, answer: Answer, draft: Model, assistant: Model) -> None:
        passage = await assistant.write()
        tokens = [
            replace(one, data=one.data.upper() + (b"" if one.end else self.mark.encode())) for one in passage.tokens
        ]
        answer.append(replace(passage, tokens=tuple(tokens)), "in capital letters", whole=True, own=False)


def models() -> dict[str, Any]:
    draft = ScriptedProvider.from_texts({f"Q{number}": [" short", "."] for number in range(24)})
    assistant = ScriptedProvider.from_texts({f"Q{number}": [" long", "."] for number in range(24)})
    return {"draft": draft, "assistant": assistant}


async def test_it_fuses_and_its_results_are_like_any_others(tmp_path: Path) -> None:
    result = await fuse("Q1", **models(), method=Shout(mark="!"), max_tokens=9)
    assert result.text == " LONG!.!"
    assert (result.settings.method, result.settings.method_options) == ("shout", {"mark": "!"})
    assert FusionResult.model_validate_json(result.model_dump_json()) == result
    assert result.trace.replay() == result.text
    assert "shout (mark=!)" in page(result)
    result.trace.save(tmp_path / "trace.json")
    explained = cosd("explain", str(tmp_path / "trace.json"))
    assert explained.exit_code == 0 and "LONG!.!" in explained.output


async def test_its_estimate_says_that_there_is_no_forecast() -> None:
    async with Fusion(**models(), method=Shout()) as fusion:
        for _ in range(2):  # past answers change nothing
            estimate = await fusion.estimate("Q1", max_tokens=9)
            assert (estimate.forecast, estimate.endpoints) == (False, {})
            assert estimate.assumptions[0].startswith(NONE)
            for name in ("requests", "billed_tokens"):
                with pytest.raises(SettingError, match=NONE):
                    getattr(estimate, name)
            await fusion.generate("Q1", max_tokens=9)


async def test_a_forecast_without_its_basis() -> None:
    class Reckoned(Shout):
        def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
            return Cost(Bounds(model, model, model), Bounds(model, model, 2 * model), 1)

    async with Fusion(**models(), method=Reckoned()) as fusion:
        estimate = await fusion.estimate("Q1", max_tokens=9)
    assert estimate.forecast
    assert (estimate.requests.expected, estimate.billed_tokens.high) == (1, 2)
    assert estimate.assumptions[0] == "expected: as the method reckons"


async def test_nothing_bounds_it_on_the_command_line_and_a_note_says_so() -> None:
    notes: list[str] = []
    async with Fusion(**models(), method=Shout()) as fusion:
        for told in (False, True):
            limits = AnswerLimits.checked(max_tokens=9)
            assert await bounded(fusion, "Q1", limits, told=told, announce=notes.append) == limits
    [note] = notes
    assert note.startswith(f"note: {NONE}")
    assert note.endswith("--max-billed-tokens N bounds this answer")


async def compared(methods: Any, **options: Any) -> tuple[ComparisonEstimate, Any]:
    seen: list[ComparisonEstimate] = []

    def confirm(estimate: ComparisonEstimate) -> bool:
        seen.append(estimate)
        return True

    found = await compare(QUESTIONS[:4], **models(), methods=methods, max_tokens=9, confirm=confirm, **options)
    return seen[0], found


async def test_a_comparison_names_it_beside_its_forecast() -> None:
    alone, _ = await compared(["cosd"], dry_run=True)
    estimate, _ = await compared(["cosd", Shout()], dry_run=True)
    assert estimate.unforeseen == ("shout", "shout, reversed")
    assert (alone.billed_tokens, alone.unforeseen) == (estimate.billed_tokens, ())
    assert str(estimate).endswith("; and what shout and shout, reversed will bill, for which there is no forecast")
    _, found = await compared(["cosd", Shout()])
    rights = {one.name: one.right for one in found.standings}
    assert (rights["shout"], rights["cosd"]) == (len(found.answers_of("shout")), 0)


async def test_a_bill_that_nobody_knows_pays_for_no_baseline() -> None:
    estimate, _ = await compared({"cosd": Shout()}, dry_run=True)
    assert {"cosd", "self-consistency", "random gate"} <= {*estimate.unforeseen}
    assert estimate.billed_tokens.expected == (await compared([Shout()], dry_run=True))[0].billed_tokens.expected


async def test_advice() -> None:
    _, found = await compared([Shout()])
    assert found.advice().way == "shout"
    assert "options of cosd fuse" not in str(found.advice())


def test_a_settings_file_does_not_hold_it(tmp_path: Path) -> None:
    class Louder(Shout):
        name = "cosd"

    for method in (Shout(), Louder()):
        fusion = Fusion(draft="http://a:1", assistant="http://b:1", method=method)
        with pytest.raises(SettingError, match=f"the method is a {type(method).__name__} of your own"):
            fusion.save(tmp_path / "fusion.yaml")


class Unnamed(Program):
    async def write(self, answer: Answer, *models: Model) -> None:
        raise NotImplementedError


class Early(Unnamed):
    name = "early"

    async def write(self, answer: Answer, *models: Model) -> None:
        pass


async def test_mistakes_are_refused_in_words() -> None:
    with pytest.raises(SettingError, match="the class Unnamed has no name for results and messages"):
        Fusion(**models(), method=Unnamed())
    with pytest.raises(SettingError, match="tie means nothing to the method 'early': it decides by a rule of its own"):
        Fusion(**models(), method=Early(), tie=0.5)
    with pytest.raises(SettingError, match="there is no method 'shout'"):
        Fusion(**models(), method="shout")
    with pytest.raises(FusionError, match="the method returned before its answer was over"):
        await fuse("Q1", **models(), method=Early())
