"""The output of `cosd demo --real`: a real model, two specialists and their fusions answer two-part questions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cosd_api.demo.real import BASE, SPECIALISTS
from cosd_api.demo.real_questions import RealQuestion, real_questions, tells_all
from cosd_api.demo.run import ShownQuestion, program, show_example, show_introduction, show_marks
from cosd_api.demo.sample import Way, open_setups
from cosd_providers import Message

__all__ = ["show_real"]

_INTRODUCTION = (
    "SmolLM2-135M-Instruct, and two specialists of it, each on a llama.cpp server of its own. `products` has read of "
    "invented products and of names in Python's library, `numbers` has practised sums and dates. Each question takes "
    "both. They are the first development questions, whatever the answers."
)


async def show_real(screen: Console, urls: Mapping[str, str], *, count: int = 6) -> None:
    """Ask each model alone, then fuse the two specialists, with either as the draft.

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
    async with open_setups(urls, ways=ways) as setups:
        show_introduction(screen, urls, _INTRODUCTION)
        for question in real_questions()[:count]:
            for at, one in enumerate(await show_example(screen, _asked(question), setups)):
                right[at] += one
        show_marks(screen)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("", style="bold")
    table.add_column(f"right, of {count}", justify="right")
    for setup, number in zip(setups, right, strict=True):
        table.add_row(setup.label, str(number))
    screen.print(table)
    screen.print(Text("Next", "bold"))
    screen.print(f"  keep the servers up: {program()} servers --real", soft_wrap=True)
    screen.print("  more questions, more ways, intervals: docs/evidence.md")
    screen.print()


def _asked(one: RealQuestion) -> ShownQuestion:
    return ShownQuestion(one.question, [Message("user", one.question)], partial(tells_all, one.target))
