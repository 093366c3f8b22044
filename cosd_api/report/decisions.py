"""Why each word of a fused answer is there, in the terminal: the marked answer and a table of what decided."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cosd_api.records import TokenDecision
from cosd_api.report.terminal import ASSISTANT, REPLACED, fused_text, legend, visible
from cosd_api.result import FusionResult
from cosd_api.verification.rule import shortened

__all__ = ["decisions", "explained"]


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
        yield Padding(table, (1, 0, 0, 0))
    else:
        asked = any(token.asked for token in result.tokens)
        yield Text("Wherever it was asked, both agreed." if asked else "Nobody was asked: no word could change.", "dim")


def decisions(result: FusionResult, *, colour: bool, everything: bool = False) -> Table:
    """A row for each decision: whose tokens stood against each other, how sure both were, and what came of it."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for title in ("draft", "p", "assistant", "q", "decided", "by", "round"):
        table.add_column(title, justify="right" if title in ("p", "q", "round") else "left")
    seen: set[tuple[int, TokenDecision]] = set()
    for token in result.tokens:
        for decision in token.decisions:
            # A span of several tokens has its decision at each of them.
            if (decision.agreed and not everything) or (token.unit, decision) in seen:
                continue
            seen.add((token.unit, decision))
            stands = decision.fired and decision.assistant == token.source
            mine, theirs = (REPLACED if stands else "", ASSISTANT if stands else "") if colour else ("", "")
            table.add_row(
                Text(_shown(decision.draft_text), mine),
                _percent(decision.draft_prob),
                Text(_shown(decision.text), theirs),
                _percent(decision.prob),
                _outcome(decision, stands=stands),
                visible(decision.assistant + (f", {decision.strategy}" if decision.strategy else "")),
                str(token.round),
            )
    return table


def _outcome(decision: TokenDecision, *, stands: bool) -> str:
    if not decision.fired:
        words = "" if decision.agreed else "kept: "
    else:
        words = "replaced: " if stands else "outdone by a surer assistant: "
    return visible(words + decision.reason)


def _shown(text: str) -> str:
    r"""A token with its white space visible: a space stands as `␣`, a line end as `\n`."""
    if not text:
        return "(end)"
    return visible(text).replace("\n", "\\n").replace("\t", "\\t").replace(" ", "\u2423")


def _percent(prob: float | None) -> str:
    return "?" if prob is None else shortened([prob], lambda _: True)[0]
