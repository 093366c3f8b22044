"""The fused answer as the terminal shows it."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cosd_api import FusionResult, fuse
from cosd_api.report.terminal import (
    ASSISTANT,
    REPLACED,
    fused_text,
    has_colour,
    legend,
    replacements,
    spans,
    summary,
    visible,
)
from cosd_api.types import FusedToken
from cosd_providers.testing import ScriptedProvider


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


async def test_the_summary_says_in_which_ways_the_assistants_answered() -> None:
    result = await answered()
    assert summary(result).endswith(f"2 requests to the assistant, {result.timings.total:.2f} s")
    ways = {"list": 3, "singles": 12}
    usage = result.usage | {"assistant": result.usage["assistant"].model_copy(update={"strategies": ways})}
    assert "2 requests to the assistant about 15 places (12 by singles, 3 by list), " in summary(
        result.model_copy(update={"usage": usage})
    )


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
