"""The output of `cosd demo`: a question that needs two models, one that needs three, then a table."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich import box
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from cosd_api.demo.questions import OWN_KINDS, DemoQuestion, as_prompt, is_right
from cosd_api.demo.sample import MAX_TOKENS, SampleScore, Setup, measure, open_setups, questions
from cosd_api.report.terminal import fused_text, has_colour, legend, spans, visible
from cosd_api.types import FusedToken
from cosd_providers import Message

__all__ = [
    "EXAMPLE",
    "EXAMPLE_OF_THREE",
    "ShownQuestion",
    "console",
    "program",
    "save_picture",
    "show",
    "show_example",
    "show_introduction",
    "show_marks",
]

EXAMPLE = DemoQuestion(
    kind="mixed",
    prompt=as_prompt("In Peru a book costs 17 and a pen costs 25. Name the capital and the total."),
    reply="The capital of Peru is {fact} and the total is {number}.",
    number=42,
    fact="Lima",
    fact_kind="capital",
)
"""The first question whose answers are shown in full; neither `sums` nor `facts` can answer it alone."""

EXAMPLE_OF_THREE = DemoQuestion(
    kind="mixed-all",
    prompt=as_prompt("Name the capital of Peru, add 17 and 25, and translate cheese into French."),
    reply="The capital of Peru is {fact}. The sum is {number}. In French it is {word}.",
    number=42,
    fact="Lima",
    fact_kind="capital",
    word="fromage",
)
"""The second question whose answers are shown in full; it needs all three models."""

_WIDTH = 80
_INDENT = (0, 0, 0, 2)
_REASONS = 3  # maximum number of replacements that are explained below an answer
_INTRODUCTION = (
    "Three models of a million parameters, each on a llama.cpp server of its own. They were made to complement each "
    "other: sums adds, facts knows capitals and the like, words translates. Each has met the others' subjects too "
    "rarely to learn them, and is unsure there."
)


def console(*, record: bool = False) -> Console:
    """Create a console for standard output, with at most 80 columns and without automatic highlighting.

    With `record`, the output is always in colour, and can be saved as a picture (`Console.save_svg`).
    """
    found = Console(highlight=False, markup=False, record=record, force_terminal=record or None)
    found.width = _WIDTH if record else min(found.width, _WIDTH)
    return found


def save_picture(screen: Console, path: Path) -> None:
    """Save the output of a recording console as an SVG that loads no fonts."""
    without_fonts = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    screen.save_svg(str(path), title="cosd demo", code_format=without_fonts)


async def show(screen: Console, urls: Mapping[str, str], *, mixed: int = 20, seed: int = 0) -> None:
    """Run the whole demonstration on running servers.

    Args:
        screen: the console to print to.
        urls: URLs of the three servers, keyed by the models' names, as `bundled_three` yields them.
        mixed: number of questions in the table that need `sums` and `facts`; there are half as many of each other kind.
        seed: seed for drawing the questions.

    Raises:
        cosd_providers.ProviderError: a server failed.
    """
    async with open_setups(urls) as setups:
        show_introduction(screen, urls)
        await show_example(screen, _asked_in_full(EXAMPLE), [one for one in setups if not _takes_three(one)])
        await show_example(screen, _asked_in_full(EXAMPLE_OF_THREE), [one for one in setups if len(one.assistants) > 1])
        show_marks(screen)
        await _show_table(screen, setups, questions(mixed, seed=seed))
    _print_next(screen, urls)


def show_introduction(screen: Console, urls: Mapping[str, str], words: str = _INTRODUCTION) -> None:
    """Print a title, a description of the models, and their URLs."""
    screen.print()
    screen.print(Text("Language models that write one answer", "bold"))
    screen.print(words)
    screen.print()
    width = max(map(len, urls)) + 3
    for name, url in urls.items():
        screen.print(Text.assemble("  ", (f"{name:{width}}", "bold"), url), soft_wrap=True)


# The examples.


def _takes_three(setup: Setup) -> bool:
    return "words" in (setup.draft, *setup.assistants)


@dataclass(frozen=True)
class ShownQuestion:
    """A question whose answers are shown in full.

    Attributes:
        words: the question as it is shown.
        prompt: the prompt that the models read.
        is_right: function that tests whether an answer is right.
    """

    words: str
    prompt: str | Sequence[Message]
    is_right: Callable[[str], bool]


def _asked_in_full(question: DemoQuestion) -> ShownQuestion:
    words = question.prompt.removeprefix("Q: ").removesuffix("\nA:")
    return ShownQuestion(words, question.prompt, partial(is_right, question))


async def show_example(screen: Console, question: ShownQuestion, setups: Sequence[Setup]) -> list[bool]:
    """Stream the answers of all setups to one question to the screen; return for each answer whether it is right."""
    colour = has_colour(screen)
    screen.print()
    screen.print(Padding(Text.assemble(("Q: ", "bold"), question.words), _INDENT))
    screen.print()
    answers: list[list[FusedToken]] = [[] for _ in setups]
    verdicts: list[bool | None] = [None for _ in setups]
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        for index, setup in enumerate(setups):
            async with setup.fusion.stream(question.prompt, max_tokens=MAX_TOKENS) as stream:
                async for token in stream:
                    answers[index].append(token)
                    if not screen.record:  # a picture shows only the complete answers
                        live.update(_answers(setups, answers, verdicts, colour=colour), refresh=True)
            verdicts[index] = question.is_right(stream.result.text)
    screen.print(_answers(setups, answers, verdicts, colour=colour))
    return [verdict is True for verdict in verdicts]


def show_marks(screen: Console) -> None:
    """Print a legend of the marks in an answer."""
    screen.print()
    screen.print(Padding(Text.assemble(("marks: ", "dim"), legend(colour=has_colour(screen))), _INDENT))


def _answers(
    setups: Sequence[Setup], answers: Sequence[Sequence[FusedToken]], verdicts: Sequence[bool | None], *, colour: bool
) -> RenderableType:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(width=19)
    table.add_column(ratio=1)
    table.add_column(width=5)
    for setup, tokens, verdict in zip(setups, answers, verdicts, strict=True):
        answer = fused_text(tokens, colour=colour)
        answer = answer[len(answer.plain) - len(answer.plain.lstrip()) :]
        words = "" if verdict is None else "right" if verdict else "wrong"
        table.add_row(
            Text(setup.label, "bold"),
            Group(answer, *(Text(why, "dim") for why in _reasons(setup, tokens))),
            Text(words, "green" if verdict else "red"),
        )
    return Padding(table, _INDENT)


def _reasons(setup: Setup, tokens: Sequence[FusedToken]) -> list[str]:
    """Write a line for each of the first replacements, with the two probabilities."""
    replaced = [span for span in spans(tokens) if span.replaced is not None]
    lines = [
        f"{setup.draft} was {_percent(span.draft_prob)} sure of {_word(span.replaced or '')}, "
        f"{setup.model(span.source)} {_percent(span.assistant_prob)} of {_word(span.text)}"
        for span in replaced[:_REASONS]
    ]
    more = len(replaced) - len(lines)
    return [*lines, f"and {more} more"] if more else lines


def _word(text: str) -> str:
    return visible(text).strip() or (repr(text) if text else "the end")


def _percent(prob: float | None) -> str:
    return "?" if prob is None else f"{prob:.0%}"


# The table.


async def _show_table(screen: Console, setups: Sequence[Setup], asked: Sequence[DemoQuestion]) -> None:
    screen.print()
    with Progress(console=screen, transient=True, disable=screen.record or not screen.is_terminal) as progress:
        task = progress.add_task("  answering", total=len(setups) * len(asked))
        scores = [await measure(setup, asked, answered=lambda: progress.advance(task)) for setup in setups]
    count = sum(question.kind == "mixed" for question in asked)
    screen.print(
        f"The same on {len(asked)} other questions, {count} of them mixed, with numbers that were left out of the "
        "training; some take all three. Right answers:"
    )
    screen.print(Padding(_table(setups, scores), _INDENT))


def _table(setups: Sequence[Setup], scores: Sequence[SampleScore]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("", style="bold", width=19)
    for title in ("mixed", "all\nthree", *OWN_KINDS, "draft's\ntokens\nkept", "asked\nper\nanswer"):
        table.add_column(title, justify="right")
    for setup, score in zip(setups, scores, strict=True):
        shares = [score.accuracy("mixed"), score.accuracy("mixed-all")]
        cells = [Text(f"{share:.0%}", "green" if share > 0.5 else "red") for share in shares]
        cells += [Text(f"{score.accuracy(*_asked(name)):.0%}") for name in OWN_KINDS]
        if setup.assistants:
            cells += [Text(f"{score.acceptance_rate:.0%}"), Text(f"{score.requests_per_answer:.1f}")]
        table.add_row(setup.label, *cells)
    return table


def _asked(name: str) -> list[str]:
    """The kinds of question that only this model can answer."""
    return [
        kind for kind in OWN_KINDS[name] if all(kind not in OWN_KINDS[other] for other in OWN_KINDS if other != name)
    ]


# Next steps.


def _print_next(screen: Console, urls: Mapping[str, str]) -> None:
    draft, assistant, *_ = urls
    screen.print(Text("Next", "bold"))
    screen.print("  keep the servers up (they end with this command), then ask them:")
    screen.print(f"    {program()} servers", soft_wrap=True)
    screen.print(f"    {program()} fuse PROMPT --draft URL --assistant URL", soft_wrap=True)
    screen.print("  the same in Python, with any servers:")
    screen.print("    from cosd_api import fuse_sync")
    screen.print(f'    fuse_sync(prompt, draft="{draft} URL", assistant="{assistant} URL").text')
    screen.print()


def program() -> str:
    """The command with which the user can start the program."""
    called = Path(sys.argv[0])
    if called.stem != "cosd":
        return "python -m cosd_api"
    return "cosd" if shutil.which("cosd") else sys.argv[0]
