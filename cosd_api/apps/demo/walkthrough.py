"""The output of `cosd demo`, with the bundled models or (`--real`) with a real model and two specialists of it.

Questions that no model can answer alone are answered in full by each model and each fusion, and then counted in a
table.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.progress import track
from rich.table import Table
from rich.text import Text

from cosd_api import Fusion, FusionResult, RuleVerifier
from cosd_api.apps.demo.questions import EXAMPLE, EXAMPLE_OF_THREE, OWN_KINDS, DemoQuestion, is_right, questions
from cosd_api.apps.demo.real import BASE, SPECIALISTS, real_questions, tells_all
from cosd_api.apps.report.phrases import visible
from cosd_api.apps.report.terminal import fused_text, has_colour, legend, spans
from cosd_providers import Message, connect

__all__ = ["MAX_TOKENS", "WAYS", "Setup", "console", "open_setups", "program", "right_answers", "show", "show_real"]

MAX_TOKENS = 64
"""Limit on an answer's tokens; no answer of the small models is longer."""

Way = tuple[str, tuple[str, ...]]
"""Name of a draft, and names of its assistants; if there are none, the draft answers alone."""

WAYS: Sequence[Way] = (
    ("sums", ()),
    ("facts", ()),
    ("words", ()),
    ("sums", ("facts",)),
    ("facts", ("sums",)),
    ("sums", ("facts", "words")),
)
"""The ways to answer with the bundled models."""

_WIDTH = 80
_INDENT = (0, 0, 0, 2)
_REASONS = 3  # maximum number of replacements that are explained below an answer
_INTRODUCTION = (
    "Three models of a million parameters, each on a llama.cpp server of its own. They were made to complement each "
    "other: sums adds, facts knows capitals and the like, words translates. Each has met the others' subjects too "
    "rarely to learn them, and is unsure there."
)
_REAL_INTRODUCTION = (
    "SmolLM2-135M-Instruct, and two specialists of it, each on a llama.cpp server of its own. `products` has read of "
    "invented products and of names in Python's library, `numbers` has practised sums and dates. Each question takes "
    "both. They are the first development questions, whatever the answers."
)


def console() -> Console:
    """Create a console for standard output, with at most 80 columns and without automatic highlighting."""
    found = Console(highlight=False, markup=False)
    found.width = min(found.width, _WIDTH)
    return found


def program() -> str:
    """The command with which the user can start the program."""
    called = Path(sys.argv[0])
    if called.stem != "cosd":
        return "python -m cosd_api"
    return "cosd" if shutil.which("cosd") else sys.argv[0]


# The ways to answer.


@dataclass(frozen=True)
class Setup:
    """One way to answer: a model alone, or a draft with assistants.

    Attributes:
        draft: name of the draft model.
        assistants: names of the assistants; empty for a model alone.
        fusion: the fusion that answers.
    """

    draft: str
    assistants: tuple[str, ...]
    fusion: Fusion

    @property
    def label(self) -> str:
        """Name the models that answer."""
        if not self.assistants:
            return f"{self.draft} alone"
        return f"{self.draft}, asking {' and '.join(self.assistants)}"

    def model(self, source: str) -> str:
        """Name of the model that a token's source refers to: `"draft"`, `"assistant"`, `"assistant 2"` and so on."""
        number = source.removeprefix("assistant").strip()
        return self.assistants[int(number or 1) - 1] if source != "draft" else self.draft


@asynccontextmanager
async def open_setups(urls: Mapping[str, str], ways: Sequence[Way]) -> AsyncIterator[list[Setup]]:
    """Open a fusion for each way to answer; the fusions are closed when the `async with` block ends.

    Args:
        urls: URLs of the servers, keyed by the models' names.
        ways: the ways to answer.
    """
    providers = {name: connect(url) for name, url in urls.items()}
    async with AsyncExitStack() as stack:
        setups: list[Setup] = []
        for draft, assistants in ways:
            fusion = Fusion(
                draft=providers[draft],
                assistant=[providers[name] for name in assistants or [other for other in urls if other != draft][:1]],
                # With a verifier that never replaces, no assistant is asked: the answer is the model's own greedy one.
                verifier=None if assistants else RuleVerifier(alpha=0),
            )
            setups.append(Setup(draft, assistants, await stack.enter_async_context(fusion)))
        yield setups


async def right_answers(setup: Setup, asked: Sequence[DemoQuestion]) -> list[bool]:
    """Ask every question, and return for each answer whether it is right.

    Raises:
        cosd_providers.ProviderError: a server failed.
    """
    prompts = [question.prompt for question in asked]
    async with aclosing(setup.fusion.map(prompts, concurrency=4, max_tokens=MAX_TOKENS)) as results:
        answers = [result.text async for result in results]
    return [is_right(question, text) for question, text in zip(asked, answers, strict=True)]


# The two demonstrations.


async def show(screen: Console, urls: Mapping[str, str], *, mixed: int = 20) -> None:
    """Run the demonstration of the bundled models.

    Args:
        screen: the console to print to.
        urls: URLs of the three servers, keyed by the models' names, as `bundled_three` yields them.
        mixed: number of questions in the table that need `sums` and `facts`; there are half as many of each other kind.

    Raises:
        cosd_providers.ProviderError: a server failed.
    """
    async with open_setups(urls, WAYS) as setups:
        _show_introduction(screen, urls, _INTRODUCTION)
        for example, able in (
            (EXAMPLE, [one for one in setups if "words" not in (one.draft, *one.assistants)]),
            (EXAMPLE_OF_THREE, [one for one in setups if len(one.assistants) > 1]),
        ):
            words = example.prompt.removeprefix("Q: ").removesuffix("\nA:")
            await _show_example(screen, words, example.prompt, partial(is_right, example), able)
        await _show_scores(screen, setups, questions(mixed))
    screen.print(f"Next: {program()} servers keeps the servers up, and says how to ask them.\n", soft_wrap=True)


async def show_real(screen: Console, urls: Mapping[str, str], *, count: int = 6) -> None:
    """Ask the real model and its specialists alone, then fuse the two specialists, with either as the draft.

    Args:
        screen: the console to print to.
        urls: URLs of the three servers, keyed by the models' names, as `real_three` yields them.
        count: number of questions.

    Raises:
        cosd_providers.ProviderError: a server failed.
    """
    first, second = SPECIALISTS
    ways: list[Way] = [(BASE, ()), (first, ()), (second, ()), (first, (second,)), (second, (first,))]
    right = [0] * len(ways)
    async with open_setups(urls, ways) as setups:
        _show_introduction(screen, urls, _REAL_INTRODUCTION)
        for one in real_questions()[:count]:
            prompt, told = [Message("user", one.question)], partial(tells_all, one.target)
            verdicts = await _show_example(screen, one.question, prompt, told, setups)
            right = [sum(pair) for pair in zip(right, verdicts, strict=True)]
    table = _table(f"right, of {count}")
    for setup, number in zip(setups, right, strict=True):
        table.add_row(setup.label, str(number))
    screen.print(table)
    screen.print(f"Next: {program()} servers --real keeps the servers up. docs/evidence.md has more questions.\n")


def _show_introduction(screen: Console, urls: Mapping[str, str], words: str) -> None:
    """Print a title, a description of the models, their URLs, and a legend of the marks in an answer."""
    screen.print(Text("\nLanguage models that write one answer", "bold"))
    screen.print(f"{words}\n")
    width = max(map(len, urls)) + 3
    for name, url in urls.items():
        screen.print(Text.assemble("  ", (f"{name:{width}}", "bold"), url), soft_wrap=True)
    screen.print(Text.assemble(("\n  marks: ", "dim"), legend(colour=has_colour(screen))))


async def _show_example(
    screen: Console,
    words: str,
    prompt: str | Sequence[Message],
    right: Callable[[str], bool],
    setups: Sequence[Setup],
) -> list[bool]:
    """Print the answers of all setups to one question; return for each answer whether it is right."""
    screen.print(Padding(Text.assemble(("Q: ", "bold"), words), (1, 0, 1, 2)))
    verdicts: list[bool] = []
    for setup in setups:
        result = await setup.fusion.generate(prompt, max_tokens=MAX_TOKENS)
        verdicts.append(right(result.text))
        answer = fused_text(result.tokens, colour=has_colour(screen))
        row = Table.grid(padding=(0, 2), expand=True)
        row.add_column(width=19)
        row.add_column(ratio=1)
        row.add_column(width=5)
        row.add_row(
            Text(setup.label, "bold"),
            Group(
                answer[len(answer.plain) - len(answer.plain.lstrip()) :],
                *(Text(why, "dim") for why in _reasons(setup, result)),
            ),
            Text("right", "green") if verdicts[-1] else Text("wrong", "red"),
        )
        screen.print(Padding(row, _INDENT))
    return verdicts


def _reasons(setup: Setup, result: FusionResult) -> list[str]:
    """Write a line for each of the first replacements, with the two probabilities."""
    replaced = [span for span in spans(result.tokens) if span.replaced is not None]
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


async def _show_scores(screen: Console, setups: Sequence[Setup], asked: Sequence[DemoQuestion]) -> None:
    count = sum(question.kind == "mixed" for question in asked)
    screen.print(
        f"\nThe same on {len(asked)} other questions, {count} of them mixed, with numbers that were left out of the "
        "training; some take all three. Right answers:"
    )
    # Greetings are not in the sample, so each kind of `OWN_KINDS` is known to one model only.
    columns = {"mixed": ("mixed",), "all\nthree": ("mixed-all",), **OWN_KINDS}
    table = _table(*columns)
    for setup in track(setups, "  answering", console=screen, transient=True, disable=not screen.is_terminal):
        right = await right_answers(setup, asked)
        cells: list[str] = []
        for kinds in columns.values():
            of_kind = [one for question, one in zip(asked, right, strict=True) if question.kind in kinds]
            cells.append(f"{sum(of_kind) / len(of_kind):.0%}")
        table.add_row(setup.label, *cells)
    screen.print(Padding(table, _INDENT))


def _table(*titles: str) -> Table:
    """A table whose first column has labels, and whose other columns have numbers."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("", style="bold")
    for title in titles:
        table.add_column(title, justify="right")
    return table
