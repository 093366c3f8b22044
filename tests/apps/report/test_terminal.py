"""The fused answer as the terminal shows it: the marked text, the table of what decided, and the summary."""

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cosd_api import CoSD, FusionResult, RuleVerifier, fuse
from cosd_api.apps.report.phrases import visible
from cosd_api.apps.report.terminal import (
    ASSISTANT,
    REPLACED,
    explained,
    fused_text,
    has_colour,
    legend,
    replacements,
    spans,
    summary,
)
from cosd_api.types import FusedToken
from cosd_providers.testing import ScriptedProvider
from toys.lima import assistant, draft, sampled


def own(text: str) -> FusedToken:
    return FusedToken(text=text, source="draft")


def other(text: str, replaced: str | None = None) -> FusedToken:
    return FusedToken(text=text, source="assistant", replaced=replaced, reason="0.2 < 0.5 and 0.9 > 0.5 x 0.2")


VIENNA = [
    own(" It"),
    own(" is"),
    other(" Li", " Vienna"),
    other("ma"),
    own("."),
    FusedToken(text="", source="draft", end=True),
]

texts = st.text("aé \n\x1b", max_size=4)
tokens = st.lists(st.builds(own, texts) | st.builds(other, texts, st.none() | texts), max_size=12)


def test_spans_of_an_answer() -> None:
    assert [(span.text, span.source, span.replaced) for span in spans(VIENNA)] == [
        (" It is", "draft", None),
        (" Lima", "assistant", " Vienna"),
        (".", "draft", None),
    ]
    assert [span.reason for span in spans(VIENNA)] == [None, "0.2 < 0.5 and 0.9 > 0.5 x 0.2", None]


async def test_spans_say_how_sure_each_side_was() -> None:
    _, replaced, _ = spans((await answered()).tokens)
    assert (replaced.replaced, replaced.text) == (" b", " c")
    assert (replaced.draft_prob, replaced.assistant_prob) == (0.2, 0.9)


async def test_the_summary_ends_with_the_requests_and_the_time() -> None:
    result = await answered()
    assert summary(result).endswith(f"2 requests to the assistant, {result.timings.total:.2f} s")


@given(tokens)
def test_spans_lose_nothing(tokens: list[FusedToken]) -> None:
    found = list(spans(tokens))
    assert "".join(span.text for span in found) == "".join(token.text for token in tokens)
    assert [span.replaced for span in found if span.replaced is not None] == [
        token.replaced for token in tokens if token.replaced is not None
    ]


@given(tokens)
def test_in_colour_the_answer_is_what_is_not_struck_through(tokens: list[FusedToken]) -> None:
    text = fused_text(tokens, colour=True)
    struck = [range(span.start, span.end) for span in text.spans if span.style == REPLACED]
    kept = "".join(char for at, char in enumerate(text.plain) if not any(at in cut for cut in struck))
    # White space around replaced words is shown unmarked, so some may stand there twice.
    assert "".join(kept.split()) == "".join(visible("".join(token.text for token in tokens)).split())


@given(tokens)
def test_nothing_in_an_answer_steers_the_terminal(tokens: list[FusedToken]) -> None:
    for colour in (True, False):
        assert "\x1b" not in fused_text(tokens, colour=colour).plain


@pytest.mark.parametrize(
    ("answer", "marked"),
    [
        (VIENNA, " It is [-Vienna-] {+Lima+}."),
        ([own("1"), other("9", "2")], "1[-2-]{+9+}"),
        ([own("a"), FusedToken(text="", source="assistant", end=True, replaced=" b")], "a [-b-]"),  # it ends there
        ([own("a"), other(" more", "")], "a {+more+}"),  # the draft had ended
        ([other(" x", "\n\nQ:")], r"[-\n\nQ:-] {+x+}"),
        ([other(" x", " a"), other(" y", " b")], " [-a-] {+x+} [-b-] {+y+}"),
        ([own("\x1b[31m")], r"\x1b[31m"),
        ([], ""),
    ],
)
def test_marks_without_colour(answer: list[FusedToken], marked: str) -> None:
    text = fused_text(answer, colour=False)
    assert text.plain == marked
    assert not text.spans


def test_marks_in_colour() -> None:
    text = fused_text(VIENNA, colour=True)
    assert text.plain == " It is Vienna Lima."
    assert [(text.plain[span.start : span.end], span.style) for span in text.spans] == [
        ("Vienna", REPLACED),
        ("Lima", ASSISTANT),
    ]


def test_replacements_alone() -> None:
    tokens = [*VIENNA, other(" b", "\n"), own(" x"), other("", " c"), own(" y"), other(" d", "")]
    shown = replacements(tokens, colour=False)
    assert shown.plain == "[-Vienna-] {+Lima+}, [-\\n-] {+b+}, [-c-] {+the end+} and 1 more"
    assert replacements(tokens[-1:], colour=False).plain == "[-the end-] {+d+}"
    assert replacements([other(" ", "\xa0")], colour=False).plain == r"[-'\xa0'-] {+' '+}"
    styles = [span.style for span in replacements(VIENNA, colour=True).spans]
    assert styles == [REPLACED, ASSISTANT]
    assert replacements([own(" a")], colour=True).plain == ""


def test_legend() -> None:
    assert legend(colour=False).plain == "[-the draft's word-] {+the assistant's in its place+}"
    assert len(legend(colour=True).spans) == 2


@pytest.mark.parametrize(
    ("terminal", "environment", "expected"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(terminal: bool, environment: dict[str, str], expected: bool) -> None:
    environment = {"TERM": "xterm"} | environment
    console = Console(file=io.StringIO(), force_terminal=terminal, _environ=environment)
    assert has_colour(console) is expected


async def test_summary() -> None:
    result = await answered()
    assert summary(result).startswith(
        "stop ('</s>'), 3 tokens, 1 replacement, acceptance 67%, 2 drafts, 2 requests to the assistant, "
    )
    two = result.model_copy(update={"assistants": result.assistants * 2, "replacements": 0})
    assert "0 replacements" in summary(two)
    assert "2 requests to the assistants" in summary(two)


async def answered() -> FusionResult:
    draft = ScriptedProvider.from_texts({"Q": [" a", (" b", 0.2)], "Q a c": []})
    assistant = ScriptedProvider.from_texts({"Q": [" a", (" c", 0.9)]})
    return await fuse("Q", draft=draft, assistant=assistant)


def test_parts_of_a_character() -> None:
    r"""The answer shows characters, where they are complete; a replacement by itself shows bytes."""
    part = FusedToken(text="", source="assistant", raw="f09f", replaced=r"\xe2\x82", reason="0.2 < 0.5")
    rest = FusedToken(text="\U0001f30d", source="draft", raw="8c8d")
    assert fused_text([own("a"), part, rest], colour=False).plain == r"a[-\xe2\x82-]" + "\U0001f30d"
    assert replacements([own("a"), part, rest], colour=False).plain == r"[-\xe2\x82-] {+\xf0\x9f+}"


# The table of what decided.


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
    assert "judged: from space to space; " in shown_of(with_settings(result, routes={}))  # an earlier version's record
    by_token = {"contexts": "text", "unit": "token", "routes": {}}
    assert "judged: token by token after the text; " in shown_of(with_settings(result, **by_token))
    mixed = with_settings(result, routes={"draft": "ids", "assistant 1": "ids", "assistant 2": "own"}, tie=0.02)
    words = (
        "judged: assistant 1: ids to ids; assistant 2: word by word, on the assistant's own ids; 2 ties within 0.02; "
    )
    assert words in shown_of(mixed.model_copy(update={"ties": 2}))
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
    tied = with_settings(result, contexts="ids", routes={}, unit="token", tie=0.02)
    text = shown_of(tied.model_copy(update={"tokens": tokens, "ties": 1}))
    assert "judged: ids to ids; 1 tie within 0.02; " in text
    literally = shown_of(with_settings(result, routes={}, unit="literal"))
    assert "judged: token by token after the text (equation 3 as printed); " in literally
    assert [" ".join(row) for row in rows(text)] == [f"␣Rome 0.3 ␣Lima 0.9 {reason} assistant 1"]


def with_settings(result: FusionResult, **settings: object) -> FusionResult:
    return result.model_copy(update={"settings": result.settings.model_copy(update=settings)})


def shown_of(result: FusionResult) -> str:
    screen = Console(file=io.StringIO(), width=120)
    for part in explained(result, colour=False):
        screen.print(part)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()
