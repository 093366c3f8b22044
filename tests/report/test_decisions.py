"""The table of what decided, in the terminal."""

import io
from typing import Any

from rich.console import Console

from cosd_api import CoSD, FusionResult, RuleVerifier, fuse
from cosd_api.report.terminal import explained
from cosd_providers.testing import ScriptedProvider
from lima import assistant, draft, sampled


async def shown(*, colour: bool = False, everything: bool = False, **settings: Any) -> str:
    rule = {} if "method" in settings else {"verifier": RuleVerifier.paper()}
    given: dict[str, Any] = {"draft": draft(), "assistant": assistant(), **rule, **settings}
    screen = Console(file=io.StringIO(), width=120, color_system="standard" if colour else None, force_terminal=colour)
    for part in explained(await fuse("Q:", **given), colour=colour, everything=everything):
        screen.print(part)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def rows(text: str) -> list[list[str]]:
    _, _, table = text.rpartition("─")
    return [line.split() for line in table.splitlines() if line.strip()]


async def test_a_row_for_each_disagreement() -> None:
    text = await shown()
    assert text.startswith(" The capital is [-Rome-] {+Lima+}. Really.\nmarks: ")
    assert [" ".join(row) for row in rows(text)] == [
        "␣Rome 0.3 ␣Lima 0.9 replaced: 0.3 < 0.5 and 0.9 > 0.5 x 0.3 assistant 1"
    ]


async def test_agreements_on_demand_and_each_decision_once() -> None:
    script: dict[str, Any] = {"Q:": [" The", " cap", ("ital", 0.4), "."]}
    same: dict[str, Any] = {
        "draft": ScriptedProvider.from_texts(script),
        "assistant": ScriptedProvider.from_texts(script),
    }
    assert "Both agreed wherever it was asked." in await shown(**same)
    # One assistant's token over two of the draft's is one decision.
    same["assistant"] = ScriptedProvider.from_texts({"Q:": [" The", " capital", "."]})
    text = await shown(everything=True, **same)
    assert [" ".join(row) for row in rows(text)] == [
        "␣capital. 0.4 ␣capital. 1 both agree assistant 1",
    ]


async def test_what_is_kept_against_the_assistant_is_told() -> None:
    sure = ScriptedProvider.from_texts({"Q:": [" a", (" b", 0.7), "."]})
    says = ScriptedProvider.from_texts({"Q:": [" a", (" c", 0.9)]})
    text = await shown(draft=sure, assistant=says, ask="all")
    assert " ".join(rows(text)[0]) == "␣b 0.7 ␣c 0.9 kept: 0.7 >= 0.5 assistant 1"


async def test_the_word_of_a_less_sure_assistant_is_told() -> None:
    other = ScriptedProvider.from_texts({"Q: The capital is": [(" Paris", 0.6)]})
    text = await shown(assistant=[other, assistant()])
    assert "outvoted: 0.3 < 0.5 and 0.6 > 0.5 x 0.3" in text


async def test_nothing_contested() -> None:
    sure = ScriptedProvider.from_texts({"Q:": [" a", "."]})
    assert "No assistant was asked: no word could change." in await shown(draft=sure)
    unsure = ScriptedProvider.from_texts({"Q:": [(" a", 0.4), "."]})
    says = ScriptedProvider.from_texts({"Q:": [" a", "."]})
    assert "Both agreed wherever it was asked." in await shown(draft=unsure, assistant=says)


async def test_draws_that_replace_a_draft_token_are_told_by_their_segments() -> None:
    text = await shown(**sampled())
    assert text.startswith(" The [-sum-] {+total+}.\nmarks: ")
    assert [" ".join(row) for row in rows(text)] == [
        "2 draft ␣sum 1",
        "assistant ␣total 1 rejected: 0.13 >= 0 / 1; drawn from what the assistant finds",
        "more probable",
    ]
    assert " ".join(rows(await shown(everything=True, **sampled()))[0]).startswith("1 draft ␣The 1 kept: ")


async def test_draws_that_replace_nothing() -> None:
    settings = sampled()
    text = await shown(**settings | {"draft": settings["assistant"]})
    assert text.endswith("\nAll tokens of the draft were kept.\n")


async def test_draws_of_a_gate_are_told_by_their_decisions() -> None:
    text = await shown(method=CoSD(verifier=RuleVerifier.paper(), unit="token", temperature=1), seed=1)
    assert "replaced: 0.3 < 0.5 and 0.9 > 0.5 x 0.3" in text


async def test_colours_and_what_would_steer_the_terminal() -> None:
    steering = ScriptedProvider.from_texts({"Q:": [(" \x1b[2J", 0.2), "."], "Q: a": ["."]})
    text = await shown(colour=True, draft=steering, assistant=ScriptedProvider.from_texts({"Q:": [(" a", 0.9)]}))
    assert "\x1b[2J" not in text and "\\x1b[2J" in text
    assert "[-" not in text


async def test_the_words_of_a_verifier_of_ones_own_do_not_steer_the_terminal() -> None:
    class Own(RuleVerifier):
        def explain(self, p: float, q: float) -> str:
            return "\x1b[2J"

    text = await shown(verifier=Own())
    assert "\x1b" not in text and "replaced: \\x1b[2J" in text


async def test_the_definition_and_ties_are_told() -> None:
    result = await fuse("Q:", draft=draft(), assistant=assistant())
    assert "judged: from space to space; " in shown_of(result)
    by_token = {"contexts": "text", "unit": "token"}
    assert "judged: token by token after the text; " in shown_of(with_settings(result, **by_token))
    reason = "a tie: the assistant finds both as probable"
    tokens = tuple(
        token.model_copy(
            update={
                "decisions": tuple(
                    one.model_copy(update={"agreed": True, "tied": True, "fired": False, "reason": reason})
                    for one in token.decisions
                    if not one.agreed
                )
            }
        )
        for token in result.tokens
    )
    tied = with_settings(result, contexts="ids", unit="token", tie=0.02)
    text = shown_of(tied.model_copy(update={"tokens": tokens, "ties": 1}))
    assert "judged: ids to ids; 1 tie within 0.02; " in text
    literally = shown_of(with_settings(result, contexts="text", unit="literal"))
    assert "judged: token by token as text, after the text cut there (equation 3 as printed); " in literally
    assert [" ".join(row) for row in rows(text)] == [f"␣Rome 0.3 ␣Lima 0.9 {reason} assistant 1"]


def with_settings(result: FusionResult, **settings: object) -> FusionResult:
    return result.model_copy(update={"settings": result.settings.model_copy(update=settings)})


def shown_of(result: FusionResult) -> str:
    screen = Console(file=io.StringIO(), width=120)
    for part in explained(result, colour=False):
        screen.print(part)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()
