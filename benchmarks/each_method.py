"""The cost of every method in requests, billed tokens and time, measured with the bundled models on llama.cpp servers.

This module does not measure the quality of the answers; each method writes its own text.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

from benchmarks.prompts import MAX_TOKENS, prompts
from benchmarks.report import Cell, Options, Table
from cosd_api import (
    AgreementVerifier,
    Average,
    CoolFusion,
    CoSD,
    DiffVerifier,
    Fusion,
    MatchVerifier,
    RandomVerifier,
    RuleVerifier,
    SurpriseVerifier,
)
from cosd_api.apps.demo.servers import BUNDLED, MODELS, serve
from cosd_api.extend import Method
from cosd_api.methods.base import EXAMPLES, METHODS, method_class, method_named
from cosd_api.verification.deferral import DEFERRAL_FEATURES
from cosd_providers import Provider, UnsupportedError, Usage, connect
from cosd_providers.contract import Context, DraftEnd

__all__ = ["COLUMNS", "Spent", "contenders", "run"]

AT = {name: f"{Path(__file__).parents[1]}/examples/methods/{file}" for name, file in EXAMPLES.items()}
COUNT, QUICK = 20, 2
BLOCK = 3
"""The number of questions that a method answers in a row."""

TITLE = "Every method on the bundled models"
COLUMNS = [
    *("method", "models", "tokens", "requests", "billed tokens", "of them cached"),
    *("ms an answer", "ms a token", "ms to first token"),
]
ABOUT = (
    "{count} mixed questions, with default settings and at most {most} tokens per answer. The figures are medians over "
    "the questions, and each figure covers all models of a fusion. Billed tokens are all tokens read, cached or not, "
    "and all tokens written. Each method writes a different text. The times are therefore those of answers to the same "
    "questions, but not of equal amounts of work."
)
WHERE = (
    "The llama.cpp servers are real, use one thread each, and run on the same machine as the client, without a network "
    "in between. The models have a million parameters and write a token in about a millisecond, so requests and the "
    "client's own work matter more than with larger models. To score a text, llama.cpp needs one prompt per token, all "
    "in one request, whereas vLLM and SGLang read the text once. The methods take turns in blocks of three questions, "
    "in a new random order for each block; the first answer of each turn is not measured."
)
TOKENIZERS = (
    "`speculative`, `average` and other methods that need a common tokenizer run on {models}. The gate of `defer` "
    "opens if the probability of the draft's token is below 0.5."
)

REFUSED = (
    "Number of answers that a method refused because it cannot judge a character that consists of several tokens: "
)

_GATE = {"listed": 5, "eta": 0.5, "weights": {"bias": 5.0, "top": -10.0} | dict.fromkeys(DEFERRAL_FEATURES[1:], 0.0)}
SETTINGS: Mapping[str, Mapping[str, Any]] = {"defer": {"gate": _GATE}}
"""Values for settings that have no default, by method."""

LABELLED: Mapping[str, Method] = {
    "cosd": CoSD(verifier=RuleVerifier.paper()),
    "speculative": CoSD(verifier=MatchVerifier(), unit="token"),
}
"""Rows by name. The names date from the first run; some now belong to a different rule or method in the library."""

VARIANTS: Mapping[str, Method] = {
    "cosd, agreement": CoSD(verifier=AgreementVerifier()),
    "cosd, diff": CoSD(verifier=DiffVerifier()),
    "cosd, surprise": CoSD(verifier=SurpriseVerifier(), unit="literal"),
    "cosd, random": CoSD(verifier=RandomVerifier(rate=0.1)),
    "cool+rerank": CoolFusion(rerank=True),
    "mixture": Average(temperature=1),
}
"""Further settings of methods, by row name."""


@dataclass
class Spent:
    """The cost of one answer.

    Attributes:
        tokens: number of tokens in the answer.
        requests: requests to all models.
        read: tokens that the models read.
        cached: tokens among those read that came from a cache.
        written: tokens that the models wrote.
        seconds: duration of the answer.
        first: seconds until the first token.
    """

    tokens: int = 0
    requests: int = 0
    read: int = 0
    cached: int = 0
    written: int = 0
    seconds: float = 0.0
    first: float = 0.0

    def add(self, usage: Any) -> None:
        """Add the usage of one model."""
        self.requests += usage.requests
        self.read += usage.prompt_tokens
        self.cached += usage.cached_tokens
        self.written += usage.completion_tokens


@dataclass
class Contender:
    """One row: a method, or a model alone.

    Attributes:
        name: the row's name.
        models: the models, the draft first.
        method: the method; None for one model alone.
        answers: the measured answers.
        refused: number of questions that the method refused because it cannot judge a character of several tokens.
    """

    name: str
    models: Sequence[str]
    method: Method | None = None
    answers: list[Spent] = field(default_factory=list[Spent])
    refused: int = 0

    def row(self) -> list[Cell]:
        """The row's medians over all answers."""

        def middle(of: Callable[[Spent], float]) -> float:
            return statistics.median(map(of, self.answers))

        return [
            self.name,
            ", ".join(self.models),
            middle(lambda one: one.tokens),
            middle(lambda one: one.requests),
            round(middle(lambda one: one.read + one.written)),
            round(middle(lambda one: one.cached)),
            round(middle(lambda one: 1000 * one.seconds)),
            middle(lambda one: 1000 * one.seconds / max(1, one.tokens)),
            round(middle(lambda one: 1000 * one.first)),
        ]


async def run(options: Options) -> list[Table]:
    """Run the section `methods`."""
    count = QUICK if options.quick else COUNT
    with ExitStack() as stack:
        urls = {name: stack.enter_context(serve(MODELS / f"{name}.gguf", threads=1)).url for name in BUNDLED}
        alike = await one_tokenizer(urls)
        found = contenders(alike)
        await measure(found, urls, await prompts([*urls.values()], count, long=False, seed=6), options)
    about = ABOUT.format(count=count, most=MAX_TOKENS)
    with_one = TOKENIZERS.format(models=" and ".join(f"`{name}`" for name in alike))
    figures = {one.name: [asdict(answer) for answer in one.answers] for one in found}
    notes = [about, WHERE, with_one]
    if any(one.refused for one in found):
        notes.append(REFUSED + ", ".join(f"`{one.name}` {one.refused}" for one in found if one.refused) + ".")
    return [Table(TITLE, COLUMNS, [one.row() for one in found], notes, figures)]


def contenders(alike: Sequence[str]) -> list[Contender]:
    """Two models alone, and every method with its variants; `alike` names two models that share a tokenizer."""
    pair = ("sums", "facts")
    found = [Contender(f"{name} alone", (name,)) for name in pair]
    for name in (*METHODS, *AT):
        method = LABELLED.get(name) or method_named(AT.get(name, name), **SETTINGS.get(name, {}))
        models = alike if method_class(AT.get(name, name)).one_tokenizer else pair
        found.append(Contender(name, models, method))
        found += [Contender(variant, models, made) for variant, made in VARIANTS.items() if made.name == name]
    return found


async def one_tokenizer(urls: Mapping[str, str]) -> tuple[str, str]:
    """Find two models that share a tokenizer; if there are none, return one model twice."""
    for draft, assistant in permutations(urls, 2):
        try:
            async with Fusion(draft=urls[draft], assistant=urls[assistant], method="average") as fusion:
                await fusion.generate("Q:", max_tokens=1)
        except UnsupportedError:
            continue
        return draft, assistant
    first = next(iter(urls))
    return first, first


async def measure(found: Sequence[Contender], urls: Mapping[str, str], asked: Sequence[str], options: Options) -> None:
    """Answer every question with every contender, in turns."""
    order = random.Random(1)
    async with AsyncExitStack() as stack:
        writers: dict[str, Fusion | Provider] = {
            one.name: await stack.enter_async_context(_opened(one, urls)) for one in found
        }
        for start in range(0, len(asked), BLOCK):
            options.say(f"methods: questions from {1 + start} of {len(asked)}")
            block = asked[start : start + BLOCK]
            for one in order.sample([*found], len(found)):
                writer = writers[one.name]
                for at, prompt in enumerate([block[0], *block]):
                    try:
                        spent = await (fused(writer, prompt) if isinstance(writer, Fusion) else alone(writer, prompt))
                    except UnsupportedError:
                        one.refused += bool(at)
                        continue
                    if at:
                        one.answers.append(spent)


def _opened(one: Contender, urls: Mapping[str, str]) -> Any:
    models = [urls[name] for name in one.models]
    if one.method is None:
        return connect(models[0])
    roles: Any = {"models": models} if one.method.symmetric else {"draft": models[0], "assistant": models[1:]}
    return Fusion(**roles, method=one.method)


async def fused(fusion: Fusion, prompt: str) -> Spent:
    """One answer of a fusion."""
    spent, began = Spent(), time.perf_counter()
    drawn: Any = {"seed": 1} if fusion.settings.method.temperature else {}
    async with fusion.stream(prompt, max_tokens=MAX_TOKENS, **drawn) as stream:
        async for _ in stream:
            spent.first = spent.first or time.perf_counter() - began
    spent.seconds, result = time.perf_counter() - began, stream.result
    spent.tokens = len(result.tokens)
    for usage in result.usage.values():
        spent.add(usage)
    return spent


async def alone(provider: Provider, prompt: str) -> Spent:
    """One answer of a model."""
    spent, usage, began = Spent(), Usage(), time.perf_counter()
    async for item in provider.generate(Context(prompt, b""), max_tokens=MAX_TOKENS, usage=usage):
        if not isinstance(item, DraftEnd):
            spent.first = spent.first or time.perf_counter() - began
            spent.tokens += 1
    spent.seconds = time.perf_counter() - began
    spent.add(usage)
    return spent
