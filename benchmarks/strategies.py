"""Questions to an assistant: the savings from leaving some out, and the costs of the strategies for sending the rest.

Both are measured on real servers behind a proxy. Questions that cannot change the text are left out; these savings are
measured on the bundled models, with words as the unit, which is the default for these models. All strategies for asking
about several places in a text return the same answers but differ in cost. Each engine's choice of a strategy is based
on these figures.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from benchmarks.live import mean, spread
from benchmarks.prompts import MAX_TOKENS, padded, prompts
from benchmarks.proxy import delayed
from benchmarks.report import Cell, Options, Table
from benchmarks.vllm import ECHOED, environment, servers
from cosd_api import Fusion, RuleVerifier
from cosd_api.demo.questions import sample
from cosd_api.demo.servers import bundled_pair
from cosd_providers import connect
from cosd_providers.contract import Context, Provider, Question
from cosd_providers.usage import Usage

__all__ = ["PLACES", "WAYS", "Asked", "run", "skipping", "texts"]

ROUND_TRIP = 0.02
PLACES = (1, 4, 12)
CONTEXTS = ("short", "long")
WAYS = {
    "llama.cpp": ("list", "singles"),
    "vllm": ("echo", "list", "singles"),
}


async def run(options: Options) -> list[Table]:
    """Measure skipping on llama.cpp, and the strategies on llama.cpp and, if it is installed, on vLLM."""
    with bundled_pair() as pair:
        tables = [await skipping(pair, options)]
        tables.append(await asking("llama.cpp", pair, 3 if options.quick else 10, options))
    folder = environment()
    if folder is not None:
        with ExitStack() as stack:
            options.say("strategies: starting two vLLM servers")
            tables.append(
                await asking("vllm", servers(stack, folder, "sums", "facts"), 2 if options.quick else 5, options)
            )
    return tables


# Questions that can be left out.


async def skipping(urls: Mapping[str, str], options: Options) -> Table:
    """Compare `ask="contestable"`, the default, with `ask="all"`; each model drafts in turn."""
    asked = await prompts([*urls.values()], 5 if options.quick else 25, long=False)
    rows: list[list[Cell]] = []
    for draft, assistant in (("sums", "facts"), ("facts", "sums")):
        options.say(f"strategies: what {draft} asks {assistant}")
        async with AsyncExitStack() as stack:
            near = [await stack.enter_async_context(delayed(urls[name], ROUND_TRIP)) for name in (draft, assistant)]
            rule = RuleVerifier.paper()
            fusions = [
                await stack.enter_async_context(Fusion(draft=near[0], assistant=near[1], verifier=rule, ask=ask))
                for ask in ("contestable", "all")
            ]
            for fusion in fusions:
                await fusion.generate(asked[0], max_tokens=MAX_TOKENS)
            results = [[await one.generate(prompt, max_tokens=MAX_TOKENS) for one in fusions] for prompt in asked]
        for at, ask in enumerate(("contestable", "all")):
            mine = [pair[at] for pair in results]
            usages = [one.usage["assistant"] for one in mine]
            rows.append(
                [
                    f"{draft}, asking {assistant}: {ask}",
                    mean([sum(one.strategies.values()) for one in usages]),
                    mean([one.requests for one in usages]),
                    mean([one.billed_tokens for one in usages]),
                    spread([one.timings.total for one in mine]),
                    f"{statistics.median(p[at].timings.total / p[0].timings.total for p in results):.2f}",
                    f"{sum(pair[0].text == pair[1].text for pair in results)} of {len(results)}",
                ]
            )
    columns = ["ask", "places", "requests", "billed: assistant", "ms an answer", "x contestable", "equal texts"]
    about = (
        f"{len(asked)} mixed questions, with a round trip of {1000 * ROUND_TRIP:g} ms and words as units. Places, "
        "requests and billed tokens are means per answer. Times are medians, with quartiles in brackets; *x "
        "contestable* is the median, over the questions, of the time divided by the time with `contestable`. The two "
        "settings take turns."
    )
    return Table("Live: leaving out what cannot matter (llama.cpp)", columns, rows, [about])


# Strategies.


@dataclass
class Asked:
    """The costs of one strategy for a certain number of places, measured several times.

    Attributes:
        seconds: durations in seconds.
        read: billed prompt tokens.
        ways: number of places by strategy.
    """

    seconds: list[float] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    ways: Counter[str] = field(default_factory=Counter)


async def asking(engine: str, urls: Mapping[str, str], times: int, options: Options) -> Table:
    """Measure the strategies in turn, each on different texts."""
    names: Sequence[Any] = WAYS[engine]
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        near = await stack.enter_async_context(delayed(urls["facts"], ROUND_TRIP))
        counters = [await stack.enter_async_context(connect(url)) for url in urls.values()]
        for context in CONTEXTS:
            options.say(f"strategies: {engine}, {context} prompts")
            found = texts(counters, long=context == "long")
            providers = [await stack.enter_async_context(connect(near, engine=engine, strategy=name)) for name in names]
            for places in PLACES:
                cells = {name: Asked() for name in names}
                for turn in range(times):
                    for at in range(len(names)):
                        name, provider = names[(at + turn) % len(names)], providers[(at + turn) % len(names)]
                        await _ask(provider, *await anext(found), places, cells[name])
                rows.append([f"{context}, {places}", *_cells(cells)])
                figures[f"{context}, {places}"] = {
                    name: {"seconds": one.seconds, "read": one.read, "ways": one.ways} for name, one in cells.items()
                }
    columns = ["prompt, places", *(f"ms: {name}" for name in names), *(f"read: {name}" for name in names)]
    about = (
        f"Each figure is the median of {times} questions, with a round trip of {1000 * ROUND_TRIP:g} ms. *Read* "
        "counts the tokens of all prompts, including cached tokens. The assistant is asked about each text once, "
        "directly after it has read the prompt. Short prompts have about 35 tokens, and long prompts about 450."
    )
    title = "llama.cpp" if engine == "llama.cpp" else "vLLM on the CPU"
    notes = [about, ECHOED] if engine == "vllm" else [about]
    return Table(f"Live: ways to ask about several places ({title})", columns, rows, notes, figures)


def _cells(cells: Mapping[str, Asked]) -> Iterator[Cell]:
    yield from (1000 * statistics.median(one.seconds) for one in cells.values())
    yield from (round(statistics.median(one.read)) for one in cells.values())


async def _ask(provider: Provider, prompt: str, text: bytes, ends: Sequence[int], places: int, asked: Asked) -> None:
    """Ask about `places` places, spread evenly over an answer."""
    starts = [0, *ends[:-1]]
    chosen = [len(starts) * at // places for at in range(places)]
    questions = [Question(starts[at], (text[starts[at] : ends[at]],)) for at in chosen]
    # A first question puts the prompt into the assistant's cache, with every strategy.
    await provider.propose(Context(prompt, b""), [Question(0, (b" The",))], usage=Usage())
    usage, began = Usage(), time.perf_counter()
    await provider.propose(Context(prompt, text), questions, usage=usage)
    asked.seconds.append(time.perf_counter() - began)
    asked.read.append(usage.prompt_tokens)
    asked.ways.update(usage.strategies)


async def texts(providers: Sequence[Provider], *, long: bool) -> AsyncGenerator[tuple[str, bytes, list[int]], None]:
    """Yield endless prompts with their right answers and the end offsets of the answers' tokens in the first model."""
    seen, sizes = set[str](), dict[str, int]()
    for seed in count():
        for question in sample("mixed", 50, seed):
            if question.prompt in seen:
                continue
            seen.add(question.prompt)
            text = question.answer.encode()
            ends, at = list[int](), 0
            for piece in await providers[0].tokenize(question.answer):
                at += len(piece.data)
                ends.append(at)
            prompt = question.prompt
            if long:
                prompt = await padded(prompt, providers, sizes, random.Random(prompt))
            if len(ends) >= max(PLACES):
                yield prompt, text, ends
