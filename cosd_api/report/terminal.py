"""A fused answer in the terminal: whose word each one is, and what it replaced.

In colour the draft's replaced words are struck through in red and the assistant's stand beside them in green.
Without colour they are marked as in `git diff --word-diff`: `is [-Vienna-] {+Lima+} and`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from rich.console import Console
from rich.text import Text

from cosd_api.records import FusedToken
from cosd_api.result import FusionResult

__all__ = [
    "ASSISTANT",
    "REPLACED",
    "Span",
    "fused_text",
    "has_colour",
    "legend",
    "replacements",
    "spans",
    "summary",
    "visible",
]

# Of the sixteen colours that every terminal theme makes readable on its own background.
REPLACED = "red strike"
ASSISTANT = "bold green"

_DRAFT = "draft"

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring tokens of an answer that came together.

    Attributes:
        text: their text in the answer.
        source: `"draft"` or the assistant's name.
        replaced: the draft's text in whose place they stand; None for the draft's own.
        draft_prob: how sure the draft was of what was replaced, in [0, 1].
        assistant_prob: how sure the assistant was of its own.
        reason: the decision in words.
    """

    text: str
    source: str
    replaced: str | None = None
    draft_prob: float | None = None
    assistant_prob: float | None = None
    reason: str | None = None


def spans(tokens: Iterable[FusedToken]) -> Iterator[Span]:
    """The answer as the draft's own stretches and single replacements, in order."""
    open_span: Span | None = None
    for token in tokens:
        if open_span is not None and token.replaced is None and token.source == open_span.source:
            open_span = replace(open_span, text=open_span.text + token.text)
            continue
        if open_span is not None:
            yield open_span
        open_span = Span(token.text, token.source)
        if token.replaced is not None:
            said = (
                decision.prob for decision in token.decisions if decision.fired and decision.assistant == token.source
            )
            surest = next(said, token.assistant_prob)
            open_span = Span(token.text, token.source, token.replaced, token.draft_prob, surest, token.reason)
    if open_span is not None:
        yield open_span


def has_colour(console: Console) -> bool:
    """Whether words may be told apart by colour there; `NO_COLOR` and pipes say no."""
    return console.color_system is not None and not console.no_color


def visible(text: str) -> str:
    r"""Text as a terminal may show it: what would steer it, but for line ends and tabs, stands as `\x1b`."""
    return text.translate(_CONTROLS)


def fused_text(tokens: Iterable[FusedToken], *, colour: bool) -> Text:
    """The answer with its replaced words marked, in colour or in characters."""
    text = Text()
    for span in spans(tokens):
        if span.replaced is None:
            text.append(visible(span.text), ASSISTANT if colour and span.source != _DRAFT else "")
            continue
        # A line end that is not in the answer may not break its lines.
        _mark(text, _in_line(span.replaced), REPLACED, "[-{}-]", colour=colour)
        _mark(text, visible(span.text), ASSISTANT, "{{+{}+}}", colour=colour)
    return text


def replacements(tokens: Iterable[FusedToken], *, colour: bool, most: int = 3) -> Text:
    """What was replaced by what, in one line and the marks of `fused_text`; of more than `most` how many more."""
    replaced = [span for span in spans(tokens) if span.replaced is not None]
    text = Text()
    for number, span in enumerate(replaced[:most]):
        text.append(", " if number else "")
        _mark(text, _named(span.replaced or ""), REPLACED, "[-{}-]", colour=colour)
        text.append(" ")
        _mark(text, _named(span.text), ASSISTANT, "{{+{}+}}", colour=colour)
    if len(replaced) > most:
        text.append(f" and {len(replaced) - most} more")
    return text


def legend(*, colour: bool) -> Text:
    """What the marks mean, in one line."""
    text = Text()
    _mark(text, "the draft's word", REPLACED, "[-{}-]", colour=colour)
    _mark(text, " the assistant's in its place", ASSISTANT, "{{+{}+}}", colour=colour)
    return text


def summary(result: FusionResult) -> str:
    """One line about an answer: why it ended, how much was replaced, what was asked."""
    counts = [
        (len(result.tokens), "token"),
        (result.replacements, "replacement"),
        (result.draft_requests, "draft"),
        (result.assistant_requests, "request"),
    ]
    words = [f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts]
    words[-1] += " to the assistant" + ("s" if len(result.assistants) > 1 else "") + _strategies(result)
    ended = f"{result.finish_reason} ({result.stop_reason!r})"
    return ", ".join(
        [ended, *words[:2], f"acceptance {result.acceptance_rate:.0%}", *words[2:], f"{result.timings.total:.2f} s"]
    )


def _strategies(result: FusionResult) -> str:
    """How many places the assistants answered, and how many of them in which way."""
    counts: Counter[str] = Counter()
    for usage in result.usage.values():
        counts.update(usage.strategies)
    if not counts:
        return ""
    places = counts.total()
    ways = ", ".join(f"{count} by {name}" for name, count in counts.most_common())
    return f" about {places} place{'' if places == 1 else 's'} ({ways})"


def _in_line(text: str) -> str:
    """Visible text that breaks no line."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _named(text: str) -> str:
    """A token that stands alone, so that it can be seen in any case."""
    return _in_line(text).strip() or (repr(text) if text else "the end")


def _mark(text: Text, words: str, style: str, frame: str, *, colour: bool) -> None:
    """Appends words in a style or a frame, and the white space around them without."""
    core = words.strip()
    if not core:
        text.append(words)
        return
    start = words.index(core)
    text.append(words[:start])
    text.append(core if colour else frame.format(core), style if colour else "")
    text.append(words[start + len(core) :])
