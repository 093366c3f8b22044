"""Why each word of a fused answer is there, in the terminal: the marked answer and a table of what decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cosd_api.report.judged import Kind, judged
from cosd_api.report.terminal import ASSISTANT, REPLACED, fused_text, has_colour, legend, visible
from cosd_api.result import FusionResult
from cosd_api.verification.rule import shortened

__all__ = ["decisions", "explained", "show"]

_CAME_OF_IT: Mapping[Kind, str] = {
    "agreed": "",
    "kept": "kept: ",
    "replaced": "replaced: ",
    "outvoted": "outdone by a surer assistant: ",
}
_WIDE = 10_000  # columns: nothing is wrapped that goes into a file or another program


def show(result: FusionResult, *, everything: bool = False) -> None:
    """Prints what `explained` gives: as wide as the terminal is, or, into a pipe, as it has to be."""
    out = Console(highlight=False, markup=False, emoji=False)
    if not out.is_terminal:
        out.width = _WIDE
    for part in explained(result, colour=has_colour(out), everything=everything):
        out.print(part, soft_wrap=isinstance(part, Text))  # the answer keeps its own lines


def explained(result: FusionResult, *, colour: bool, everything: bool = False) -> Iterator[RenderableType]:
    """The answer with its replaced words marked (Table 6 of the paper), and below it what decided.

    Args:
        result: the answer.
        colour: whether words may be told apart by colour.
        everything: list the places where both agreed, too.
    """
    yield fused_text(result.tokens, colour=colour)
    yield Text.assemble(("marks: ", "dim"), legend(colour=colour))
    table = decisions(result, colour=colour, everything=everything)
    if table.row_count:
        yield Padding(table, (1, 0, 0, 0), expand=False)
    else:
        asked = any(token.asked for token in result.tokens)
        yield Text("Wherever it was asked, both agreed." if asked else "Nobody was asked: no word could change.", "dim")


def decisions(result: FusionResult, *, colour: bool, everything: bool = False) -> Table:
    """A row for each decision: whose tokens stood against each other, how sure both were, and what came of it."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for title in ("draft", "p", "assistant", "q", "decided", "by", "round"):
        table.add_column(title, justify="right" if title in ("p", "q", "round") else "left")
    for one in judged(result.tokens):
        if one.kind == "agreed" and not everything:
            continue
        decision, marked = one.decision, colour and one.kind == "replaced"
        table.add_row(
            Text(_shown(decision.draft_text), REPLACED if marked else ""),
            _percent(decision.draft_prob),
            Text(_shown(decision.text), ASSISTANT if marked else ""),
            _percent(decision.prob),
            visible(_CAME_OF_IT[one.kind] + decision.reason),
            visible(decision.assistant + (f", {decision.strategy}" if decision.strategy else "")),
            str(result.tokens[one.at].round),
        )
    return table


def _shown(text: str) -> str:
    r"""A token with its white space visible: a space stands as `␣`, a line end as `\n`."""
    if not text:
        return "(end)"
    return visible(text).replace("\n", "\\n").replace("\t", "\\t").replace(" ", "\u2423")


def _percent(prob: float | None) -> str:
    return "?" if prob is None else shortened([prob], lambda _: True)[0]
