"""The output of `cosd demo`, with the bundled models or (`--real`) with a real model and two specialists of it.

Questions that no model can answer alone are answered in full by each model and each fusion, and then counted in a
table.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from cosd_api import Fusion, FusionResult, RuleVerifier
from cosd_api.apps.demo.questions import EXAMPLE, EXAMPLE_OF_THREE, OWN_KINDS, DemoQuestion, is_right, questions
from cosd_api.apps.demo.real import BASE, SPECIALISTS, real_questions, tells_all
from cosd_api.apps.report.phrases import visible
from cosd_api.apps.report.terminal import fused_text, has_colour, legend, spans
from cosd_api.types import FusedToken
from cosd_providers import Message, connect

__all__ = [
    "MAX_TOKENS",
    "SampleScore",
    "Setup",
    "console",
    "measure",
    "open_setups",
    "program",
    "show",
    "show_real",
]

MAX_TOKENS = 64
"""Limit on an answer's tokens; no answer of the small models is longer."""

Way = tuple[str, tuple[str, ...]]
"""Name of a draft, and names of its assistants; if there are none, the draft answers alone."""

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
async def open_setups(urls: Mapping[str, str], ways: Sequence[Way] | None = None) -> AsyncIterator[list[Setup]]:
    """Open a fusion for each way to answer; the fusions are closed when the `async with` block ends.

    Args:
        urls: URLs of the servers, keyed by the models' names; at least two.
        ways: the ways to answer. By default, these are each model alone, then the first two models with either as the
            draft and, if there are more than two models, the first model with all others as assistants.
    """
    providers = {name: connect(url) for name, url in urls.items()}
    first, second, *others = urls
    if ways is None:
        ways = [*((name, ()) for name in urls), (first, (second,)), (second, (first,))]
        ways += [(first, (second, *others))] if others else []
    async with AsyncExitStack() as stack:
        setups: list[Setup] = []
        for draft, assistants in ways:
            fusion = Fusion(
                draft=providers[draft],
                assistant=[providers[name] for name in assistants or (first if draft != first else second,)],
                # With a verifier that never replaces, no assistant is asked: the answer is the model's own greedy one.
                verifier=None if assistants else RuleVerifier(alpha=0),
            )
            setups.append(Setup(draft, assistants, await stack.enter_async_context(fusion)))
        yield setups


@dataclass
class SampleScore:
    """The answers of one setup to the questions of a sample, in its order."""

    answers: list[tuple[DemoQuestion, FusionResult]] = field(default_factory=list[tuple[DemoQuestion, FusionResult]])

    @property
    def results(self) -> list[FusionResult]:
        """The answers without their questions."""
        return [result for _, result in self.answers]

    def accuracy(self, *kinds: str) -> float:
        """Share of right answers to questions of these kinds, from 0 to 1."""
        right = [is_right(question, result.text) for question, result in self.answers if question.kind in kinds]
        return sum(right) / len(right)

    @property
    def acceptance_rate(self) -> float:
        """Share of the draft's tokens that were kept, over all answers, from 0 to 1."""
        kept = sum(result.kept_tokens or 0 for result in self.results)
        judged = kept + sum(result.replaced_tokens or 0 for result in self.results)
        return kept / judged if judged else 1.0

    @property
    def requests_per_answer(self) -> float:
        """Mean number of requests to the assistants per answer."""
        return sum(result.assistant_requests for result in self.results) / max(1, len(self.results))


async def measure(
    setup: Setup, asked: Sequence[DemoQuestion], *, answered: Callable[[], object] = lambda: None
) -> SampleScore:
    """Ask every question, and call `answered` after each answer.

    Raises:
        cosd_providers.ProviderError: a server failed.
    """
    score = SampleScore()
    prompts = [question.prompt for question in asked]
    async with aclosing(setup.fusion.map(prompts, concurrency=4, max_tokens=MAX_TOKENS)) as results:
        async for result in results:
            score.answers.append((asked[len(score.answers)], result))
            answered()
    return score


# The two demonstrations.


async def show(screen: Console, urls: Mapping[str, str], *, mixed: int = 20, seed: int = 0) -> None:
    """Run the demonstration of the bundled models.

    Args:
        screen: the console to print to.
        urls: URLs of the three servers, keyed by the models' names, as `bundled_three` yields them.
        mixed: number of questions in the table that need `sums` and `facts`; there are half as many of each other kind.
        seed: seed for drawing the questions.

    Raises:
        cosd_providers.ProviderError: a server failed.
    """
    async with open_setups(urls) as setups:
        _show_introduction(screen, urls, _INTRODUCTION)
        for example, able in (
            (EXAMPLE, [one for one in setups if "words" not in (one.draft, *one.assistants)]),
            (EXAMPLE_OF_THREE, [one for one in setups if len(one.assistants) > 1]),
        ):
            words = example.prompt.removeprefix("Q: ").removesuffix("\nA:")
            await _show_example(screen, words, example.prompt, partial(is_right, example), able)
        _show_marks(screen)
        await _show_scores(screen, setups, questions(mixed, seed=seed))
    draft, assistant, *_ = urls
    _show_next(
        screen,
        "  keep the servers up (they end with this command), then ask them:",
        f"    {program()} servers",
        f"    {program()} fuse PROMPT --draft URL --assistant URL",
        "  the same in Python, with any servers:",
        "    from cosd_api import fuse_sync",
        f'    fuse_sync(prompt, draft="{draft} URL", assistant="{assistant} URL").text',
    )


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
        _show_marks(screen)
    table = _table(f"right, of {count}")
    for setup, number in zip(setups, right, strict=True):
        table.add_row(setup.label, str(number))
    screen.print(table)
    _show_next(
        screen,
        f"  keep the servers up: {program()} servers --real",
        "  more questions, more ways, intervals: docs/evidence.md",
    )


def _show_introduction(screen: Console, urls: Mapping[str, str], words: str) -> None:
    """Print a title, a description of the models, and their URLs."""
    screen.print()
    screen.print(Text("Language models that write one answer", "bold"))
    screen.print(words)
    screen.print()
    width = max(map(len, urls)) + 3
    for name, url in urls.items():
        screen.print(Text.assemble("  ", (f"{name:{width}}", "bold"), url), soft_wrap=True)


async def _show_example(
    screen: Console,
    words: str,
    prompt: str | Sequence[Message],
    right: Callable[[str], bool],
    setups: Sequence[Setup],
) -> list[bool]:
    """Stream the answers of all setups to one question to the screen; return for each answer whether it is right."""
    colour = has_colour(screen)
    screen.print()
    screen.print(Padding(Text.assemble(("Q: ", "bold"), words), _INDENT))
    screen.print()
    answers: list[list[FusedToken]] = [[] for _ in setups]
    verdicts: list[bool | None] = [None for _ in setups]
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        for index, setup in enumerate(setups):
            async with setup.fusion.stream(prompt, max_tokens=MAX_TOKENS) as stream:
                async for token in stream:
                    answers[index].append(token)
                    live.update(_answers(setups, answers, verdicts, colour=colour), refresh=True)
            verdicts[index] = right(stream.result.text)
    screen.print(_answers(setups, answers, verdicts, colour=colour))
    return [verdict is True for verdict in verdicts]


def _show_marks(screen: Console) -> None:
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


async def _show_scores(screen: Console, setups: Sequence[Setup], asked: Sequence[DemoQuestion]) -> None:
    screen.print()
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("  answering", total=len(setups) * len(asked))
        scores = [await measure(setup, asked, answered=lambda: progress.advance(task)) for setup in setups]
    count = sum(question.kind == "mixed" for question in asked)
    screen.print(
        f"The same on {len(asked)} other questions, {count} of them mixed, with numbers that were left out of the "
        "training; some take all three. Right answers:"
    )
    table = _table("mixed", "all\nthree", *OWN_KINDS, "draft's\ntokens\nkept", "asked\nper\nanswer", width=19)
    for setup, score in zip(setups, scores, strict=True):
        shares = [score.accuracy("mixed"), score.accuracy("mixed-all")]
        cells = [Text(f"{share:.0%}", "green" if share > 0.5 else "red") for share in shares]
        # Greetings are not in the sample, so each of its other kinds is known to one model only.
        cells += [Text(f"{score.accuracy(*kinds):.0%}") for kinds in OWN_KINDS.values()]
        if setup.assistants:
            cells += [Text(f"{score.acceptance_rate:.0%}"), Text(f"{score.requests_per_answer:.1f}")]
        table.add_row(setup.label, *cells)
    screen.print(Padding(table, _INDENT))


def _table(*titles: str, width: int | None = None) -> Table:
    """A table whose first column has labels, and whose other columns have numbers."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("", style="bold", width=width)
    for title in titles:
        table.add_column(title, justify="right")
    return table


def _show_next(screen: Console, *lines: str) -> None:
    """Print the next steps."""
    screen.print(Text("Next", "bold"))
    for line in lines:
        screen.print(line, soft_wrap=True)
    screen.print()
