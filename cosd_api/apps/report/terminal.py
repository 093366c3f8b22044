"""A fused answer in the terminal: the text with its replacements marked, a table of decisions, and a summary.

In colour, the draft's replaced words are struck through in red, followed by the assistant's words in green. Without
colour, replacements are marked as in `git diff --word-diff`: `is [-Vienna-] {+Lima+} and`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cosd_api import FusionResult
from cosd_api.apps.report.phrases import in_line, visible
from cosd_api.common.wording import counted
from cosd_api.extend import DRAFT, Unit, readable
from cosd_api.types import FusedToken, Segment, TokenDecision
from cosd_api.verification import shortened

# Both colours are among the sixteen that every terminal theme keeps readable.
REPLACED = "red strike"
ASSISTANT = "bold green"

Outcome = Literal["agreed", "tied", "kept", "replaced", "outvoted"]
"""Outcome of a decision. "tied": the draft's token is kept, because the assistant finds both tokens equally probable.
"outvoted": the decision was to replace, but another assistant was more confident.
"""

_OUTCOMES: Mapping[Outcome, str] = {
    "agreed": "",
    "tied": "",
    "kept": "kept: ",
    "replaced": "replaced: ",
    "outvoted": "outvoted: ",
}
_BY_TEXT: Mapping[Unit, str] = {
    "token": "token by token after the text",
    "word": "from space to space",
    "literal": "token by token after the text (equation 3 as printed)",
}
_WIDE = 10_000  # so many columns that output to a file or another program is not wrapped


def has_colour(console: Console) -> bool:
    """Test whether the console shows colours; it does not for pipes, or if `NO_COLOR` is set."""
    return console.color_system is not None and not console.no_color


# The marked answer (Table 6 of the paper).


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Adjacent tokens from the same source.

    Attributes:
        text: the text of the tokens in the answer.
        source: `"draft"` or the assistant's name.
        replaced: the draft's text that the tokens replaced; None if they replaced nothing.
        draft_prob: the draft's probability of the replaced text, in [0, 1].
        assistant_prob: the assistant's probability of its own text, in [0, 1].
        reason: the decision, in words.
        data: the bytes of the tokens, which may begin or end within a character.
    """

    text: str
    source: str
    replaced: str | None = None
    draft_prob: float | None = None
    assistant_prob: float | None = None
    reason: str | None = None
    data: bytes = b""


def spans(tokens: Iterable[FusedToken]) -> Iterator[TextSpan]:
    """Split an answer into spans: stretches of text from one model, and single replacements."""
    open_span: TextSpan | None = None
    for token in tokens:
        if open_span is not None and token.replaced is None and token.source == open_span.source:
            open_span = replace(open_span, text=open_span.text + token.text, data=open_span.data + token.data)
            continue
        if open_span is not None:
            yield open_span
        open_span = TextSpan(token.text, token.source, data=token.data)
        if token.replaced is not None:
            probs = (
                decision.prob for decision in token.decisions if decision.fired and decision.assistant == token.source
            )
            prob = next(probs, token.assistant_prob)
            open_span = TextSpan(
                token.text, token.source, token.replaced, token.draft_prob, prob, token.reason, token.data
            )
    if open_span is not None:
        yield open_span


def fused_text(tokens: Iterable[FusedToken], *, colour: bool) -> Text:
    """Mark the replaced words and the words of other models than the draft, by colour or by characters."""
    text = Text()
    for span in spans(tokens):
        if span.replaced is not None:  # its line ends must not break the lines of the answer
            _mark(text, in_line(span.replaced), REPLACED, "[-{}-]", colour=colour)
        if span.source == DRAFT:
            text.append(visible(span.text))
        else:
            _mark(text, visible(span.text), ASSISTANT, "{{+{}+}}", colour=colour)
    return text


def replacements(tokens: Iterable[FusedToken], *, colour: bool, most: int = 3) -> Text:
    """Show the first `most` replacements in one line, marked as in `fused_text`, and how many more there are."""
    replaced = [span for span in spans(tokens) if span.replaced is not None]
    text = Text()
    for number, span in enumerate(replaced[:most]):
        text.append(", " if number else "")
        _mark(text, _named(span.replaced or ""), REPLACED, "[-{}-]", colour=colour)
        text.append(" ")
        _mark(text, _named(readable(span.data)), ASSISTANT, "{{+{}+}}", colour=colour)
    if len(replaced) > most:
        text.append(f" and {len(replaced) - most} more")
    return text


def legend(*, colour: bool) -> Text:
    """Explain the marks in one line."""
    text = Text()
    _mark(text, "the draft's word", REPLACED, "[-{}-]", colour=colour)
    _mark(text, " the assistant's in its place", ASSISTANT, "{{+{}+}}", colour=colour)
    return text


def _mark(text: Text, words: str, style: str, frame: str, *, colour: bool) -> None:
    """Append words in a style or a frame; the white space around the words is left outside."""
    core = words.strip()
    if not core:
        text.append(words)
        return
    start = words.index(core)
    text.append(words[:start])
    text.append(core if colour else frame.format(core), style if colour else "")
    text.append(words[start + len(core) :])


def _named(text: str) -> str:
    """Format a single token, stripped; a token of white space is quoted, so that it can be seen."""
    return in_line(text).strip() or (repr(text) if text else "the end")


# The decisions.


@dataclass(frozen=True, slots=True)
class JudgedPlace:
    """One decision about a token, or about several tokens that were judged together.

    Attributes:
        at: index of the first token.
        decision: the record of the decision.
        outcome: the outcome of the decision.
    """

    at: int
    decision: TokenDecision
    outcome: Outcome


def judged(tokens: Iterable[FusedToken]) -> Iterator[JudgedPlace]:
    """Yield the decisions of an answer in order, each once."""
    unit, seen = -1, tuple[TokenDecision, ...]()
    for at, token in enumerate(tokens):
        # A decision about several tokens is recorded at each token, but must be yielded only once.
        seen = seen if token.unit == unit else ()
        yield from (JudgedPlace(at, one, _outcome(token, one)) for one in token.decisions if one not in seen)
        unit, seen = token.unit, token.decisions


def _outcome(token: FusedToken, decision: TokenDecision) -> Outcome:
    if decision.agreed:
        return "tied" if decision.tied else "agreed"
    if not decision.fired:
        return "kept"
    return "replaced" if token.source == decision.assistant else "outvoted"


def show(result: FusionResult, *, everything: bool = False) -> None:
    """Print the marked answer and its decisions at the terminal's width; output to a pipe is not wrapped."""
    out = Console(highlight=False, markup=False, emoji=False)
    if not out.is_terminal:
        out.width = _WIDE
    for part in explained(result, colour=has_colour(out), everything=everything):
        out.print(part, soft_wrap=isinstance(part, Text))  # the answer keeps its own lines


def explained(result: FusionResult, *, colour: bool, everything: bool = False) -> Iterator[RenderableType]:
    """Yield the answer with its replaced words marked, then a table of its decisions.

    Args:
        result: the answer.
        colour: whether colours may be used.
        everything: whether to include the places where the models agreed.
    """
    yield fused_text(result.tokens, colour=colour)
    marks = legend(colour=colour) if result.judged else Text()
    if not result.judged:
        _mark(marks, "not by the first model", ASSISTANT, "{{+{}+}}", colour=colour)
    yield Text.assemble(("marks: ", "dim"), marks)
    if judged_by := definition(result):
        yield Text.assemble(("judged: ", "dim"), judged_by)
    shown = _choices if result.segments or not result.judged else _decisions
    table = shown(result, colour=colour, everything=everything)
    if table.row_count:
        yield Padding(table, (1, 0, 0, 0), expand=False)
    elif not result.judged:
        yield Text("All models wrote the same.", "dim")
    elif result.segments:
        yield Text("All tokens of the draft were kept.", "dim")
    elif any(token.asked for token in result.tokens):
        yield Text("Both agreed wherever it was asked.", "dim")
    else:
        yield Text("No assistant was asked: no word could change.", "dim")


def definition(result: FusionResult) -> str:
    """Describe the units in which a draft was judged, with counts; an empty text if no draft was judged."""
    unit = result.settings.unit
    if not unit:
        return ""
    if result.settings.routes:
        words = [result.settings.route]
    elif result.settings.contexts == "ids":
        words = ["token by token, each model after its own ids" if result.ties is None else "ids to ids"]
    else:
        words = [_BY_TEXT[unit]]
    if result.ties is not None:
        words.append(f"{counted(result.ties, 'tie')} within {result.settings.tie:g}")
    if result.units is not None:
        words.append(counted(result.units, "unit"))
    if result.off_path:
        words.append(f"{result.off_path} of them asked about after a cut text")
    if result.wasted_tokens is not None:
        words.append(f"{result.wasted_tokens} drafted tokens wasted")
    return "; ".join(words)


def _table(titles: Iterable[str], *, numbers: Container[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for title in titles:
        table.add_column(title, justify="right" if title in numbers else "left")
    return table


def _decisions(result: FusionResult, *, colour: bool, everything: bool) -> Table:
    """A table with a row for each decision, which shows both texts with their probabilities, and the outcome."""
    table = _table(("draft", "p", "assistant", "q", "decided", "by", "round"), numbers=("p", "q", "round"))
    for one in judged(result.tokens):
        if one.outcome == "agreed" and not everything:
            continue
        decision, marked = one.decision, colour and one.outcome == "replaced"
        table.add_row(
            Text(_cell(decision.draft_text), REPLACED if marked else ""),
            _percent(decision.draft_prob),
            Text(_cell(decision.text), ASSISTANT if marked else ""),
            _percent(decision.prob),
            visible(_OUTCOMES[one.outcome] + decision.reason),
            visible(decision.assistant + (f", {decision.strategy}" if decision.strategy else "")),
            str(result.tokens[one.at].round),
        )
    return table


def _choices(result: FusionResult, *, colour: bool, everything: bool) -> Table:
    """A table with a row for each proposed text, which shows the models that wrote it, and each model's score."""
    names = [result.draft.name, *(one.name for one in result.assistants)]
    table = _table(("segment", "by", "text", *names, "mean", "taken"), numbers=(*names, "mean", "segment"))
    for number, segment in enumerate(result.segments, 1):
        if unchanged(segment, result) and not everything:
            continue
        for at, one in enumerate(segment.candidates):
            wins = at == segment.winner
            shown = _cell(one.text) + (" (end)" if one.end and one.text else "")
            table.add_row(
                str(number) if not at else "",
                visible(", ".join(one.sources)),
                Text(shown, ASSISTANT if colour and wins else ""),
                *(measure(one.scores.get(name)) for name in names),
                measure(one.mean),
                visible(segment.reason) if wins else "",
            )
    return table


def unchanged(segment: Segment, result: FusionResult) -> bool:
    """Test whether several models wrote the same segment, or the segment is a kept token of a judged draft."""
    sources = segment.candidates[segment.winner].sources
    stands = result.judged and sources == (DRAFT,)
    return len(segment.candidates) == 1 and (len(sources) > 1 or stands)


def measure(value: float | None) -> str:
    """Format a score, such as a perplexity, with four digits; an empty text for None."""
    return "" if value is None else f"{value:.4g}"


def _cell(text: str) -> str:
    r"""Make a token's white space visible: `␣` for a space, `\n` for a line end."""
    return in_line(text).replace(" ", "\u2423") if text else "(end)"


def _percent(prob: float | None) -> str:
    return "?" if prob is None else shortened([prob], lambda _: True)[0]


# The summary.


def summary(result: FusionResult) -> str:
    """Summarize an answer in one line: why it ended, its replacements and its requests."""
    to = " to the assistant" + ("s" if len(result.assistants) > 1 else "")
    asked = counted(result.assistant_requests, "request") + to
    if not result.judged:
        asked = counted(result.assistant_requests, "question")
    parts = [
        f"{result.finish_reason} ({result.stop_reason!r})",
        counted(len(result.tokens), "token"),
        outcome(result),
        counted(result.draft_requests, "draft"),
        asked,
        f"{result.timings.total:.2f} s",
    ]
    return ", ".join(parts)


def unverified(result: FusionResult) -> str:
    """Report the number of unverified tokens, as the end of a sentence; an empty text if there are none."""
    return f", {counted(result.unverified_tokens, 'token')} unverified" if result.unverified_tokens else ""


def outcome(result: FusionResult) -> str:
    """Describe the outcome: replacements and acceptance rate of a draft, or the segments that each model won."""
    if result.replacements is not None:
        rate = "" if result.acceptance_rate is None else f", acceptance {result.acceptance_rate:.0%}"
        return f"{counted(result.replacements, 'replacement')}{rate}{unverified(result)}"
    won = Counter(", ".join(one.candidates[one.winner].sources) for one in result.segments)
    return f"{counted(won.total(), 'segment')} ({'; '.join(f'{name}: {n}' for name, n in won.most_common())})"
