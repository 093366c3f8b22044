"""The methods on real llama.cpp servers with two bundled models, behind a delaying proxy.

The methods of `methods.py`, which all write the same text, are compared on mixed questions of the demonstration. Each
question is asked by itself, and at the end of a prompt of about 450 tokens that contains answered questions. The models
accept at most 512 tokens, so a context of 4,000 tokens is only simulated. All methods judge tokens, as Algorithm 1
does, because their texts must be equal; if the tokenizers differ, the library would judge words by default.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.hits import hits
from benchmarks.methods import METHODS, Answer, Method, Write
from benchmarks.prompts import MAX_TOKENS, prompts
from benchmarks.proxy import delayed
from benchmarks.report import Cell, Options, Table
from cosd_api import Fusion, FusionResult, RuleVerifier
from cosd_api.demo.servers import bundled_three
from cosd_providers import connect
from cosd_providers.contract import Context, Provider, Question, Ready, Token
from cosd_providers.usage import Usage

__all__ = ["FLOOR", "Compared", "Opener", "Probe", "compare", "mean", "opener", "run", "spread"]

ROUND_TRIPS = {0.001: 12, 0.02: 12, 0.08: 6}
"""The number of questions for each round trip in seconds."""

QUICK = {0.02: 3}
BLOCK = 3
"""The number of questions that a method answers in a row."""

SLOTS = 8
"""The number of prompts that a server keeps in its cache."""

MODELS = (
    "The servers are real and run the bundled models of a million parameters, which write a token in about a "
    "millisecond. Round trips, which a proxy adds, therefore matter more than the models. The unit is the token, as "
    "in the published Algorithm 1: `sums` and `words` share a tokenizer. Long prompts have about 450 tokens, because "
    "the models accept at most 512; contexts of 4,000 tokens are only simulated."
)
TURNS = (
    "The methods take turns in blocks of three questions, in a new random order for each block. Servers close "
    "connections that have been idle for 5 s, so each turn begins with an additional answer, which opens the "
    "connections and is not measured. Every slot of both servers has already processed the prompts before the "
    "measurement starts. (c) answers fewer questions than the other methods."
)
ALONE = (
    "A real model alone does not write the fused text, so (d) is the time of the draft's own answer, scaled to the "
    "length of the fused text. For each replacement, the floor adds to (d) the measured times of one verification and "
    "of one restart. The restart uses an open connection, as do the library and (b). The floor includes no time for "
    "verifying tokens that are kept, so no method can reach the floor in an answer without replacements."
)
LEFT = (
    "If a hedge misses, the next answer of the same method can use the hedge's connection. For this reason, and not "
    "because of a hit, a method with `hedge` may write its first token sooner than (d)."
)
FLOOR = "floor"
Opener = Callable[[], "AbstractAsyncContextManager[Write]"]
"""A function that opens a method for writing."""


async def run(options: Options) -> list[Table]:
    """Compare the methods at every round trip, with short and long prompts; then count how often hedges hit."""
    tables: list[Table] = []
    with bundled_three() as three:
        for round_trip, count in (QUICK if options.quick else ROUND_TRIPS).items():
            async with delayed(three.sums, round_trip) as draft, delayed(three.words, round_trip) as assistant:
                for context in ("short", "long"):
                    options.say(f"live: llama.cpp, {1000 * round_trip:g} ms, {context} prompts")
                    urls, long = [three.sums, three.words], context == "long"
                    asked = await prompts(urls, count, long=long, kind="mixed-translation")
                    ways = {method.name: opener(method, draft, assistant) for method in METHODS}
                    compared = await compare(draft, assistant, asked, ways, few=max(1, count // 4))
                    where = f"llama.cpp, {1000 * round_trip:g} ms, {context} prompts"
                    tables.append(compared.table(where, {"round_trip": round_trip, "context": context}))
        tables.append(await hits(three, options))
    return tables


def opener(method: Method, draft: str, assistant: str) -> Opener:
    return lambda: method.open(draft, assistant)


# The comparison.


@dataclass
class Probe:
    """The parts of the lower bound for one prompt, measured at the replacements of the reference answer.

    Attributes:
        verifications: duration of each verification in seconds, with nothing else running.
        restarts: seconds from each restart of the draft to its first token; a replacement that ends the answer has no
            restart.
    """

    verifications: list[float] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)


@dataclass
class Compared:
    """One comparison.

    Attributes:
        references: the answers that all methods must write; the library wrote them before any measurement.
        answers: the answers, by method and number of the prompt.
        cpu: processor seconds of this process, by method and number of the prompt.
        probes: the measured parts of the lower bound for each prompt.
    """

    references: list[FusionResult] = field(default_factory=list)
    answers: dict[str, dict[int, Answer]] = field(default_factory=dict)
    cpu: dict[str, dict[int, float]] = field(default_factory=dict)
    probes: list[Probe] = field(default_factory=list)

    def alone(self, at: int) -> float:
        """Seconds that the draft alone takes to write a text of the same length."""
        return self._first(at) + (len(self.references[at].tokens) - 1) * self._pace(at)

    def floor(self, at: int) -> float:
        """The lower bound in seconds: `alone`, plus verifications and restarts, whose first tokens count only once."""
        probe = self.probes[at]
        return self.alone(at) + sum(probe.verifications) + sum(max(0.0, one - self._pace(at)) for one in probe.restarts)

    def equal(self, name: str) -> int:
        """The number of texts that equal the reference."""
        return sum(answer.text == self.references[at].text for at, answer in self.answers[name].items())

    def table(self, where: str, about: Mapping[str, Any], *notes: str) -> Table:
        """The table of all methods."""
        lengths = [len(one.tokens) for one in self.references]
        replaced = [one.replacements or 0 for one in self.references]
        about_it = (
            f"{len(self.references)} questions, with a mean of {statistics.mean(lengths):.1f} tokens and "
            f"{statistics.mean(replaced):.1f} replacements per answer. Times are medians over the questions, with "
            "quartiles in brackets; *x floor* is the median, over the questions, of the time divided by the floor. "
            "Requests, tokens and CPU time are means."
        )
        rows = [self._row(name) for name in self.answers]
        rows.insert(1, [FLOOR, spread([self.floor(at) for at in range(len(self.references))]), None, 1.0, *[None] * 7])
        columns = ["method", "ms an answer", "ms to first token", "x floor", "requests: draft", "assistant"]
        columns += ["billed: draft", "assistant", "thrown away", "CPU us a token", "equal texts"]
        return Table(
            f"Live: {where}",
            columns,
            rows,
            [about_it, MODELS, TURNS, ALONE, LEFT, *notes],
            {**about, **self._figures()},
        )

    def _row(self, name: str) -> list[Cell]:
        answers, alone = self.answers[name], name.startswith("d")
        took = {at: self.alone(at) if alone else answer.seconds for at, answer in answers.items()}
        usages = [answer.more["usage"] for answer in answers.values()]
        mine = [usage["draft"] for usage in usages]
        theirs: list[Mapping[str, Any]] = [
            next((spent for who, spent in usage.items() if who != "draft"), {}) for usage in usages
        ]
        kept = [answer.tokens - answer.replacements for answer in answers.values()]
        drafted = [answer.drafted for answer in answers.values()]
        return [
            name,
            spread(list(took.values())),
            1000 * statistics.median(answer.first for answer in answers.values()),
            f"{statistics.median(seconds / self.floor(at) for at, seconds in took.items()):.2f}",
            mean([one["requests"] for one in mine]),
            None if alone else mean([one["requests"] for one in theirs]),
            mean([_billed(one) for one in mine]),
            None if alone else mean([_billed(one) for one in theirs]),
            None if alone else mean([a - b for a, b in zip(drafted, kept, strict=True)]),
            1e6 * sum(self.cpu[name].values()) / sum(answer.tokens for answer in answers.values()),
            None if alone else f"{self.equal(name)} of {len(answers)}",
        ]

    def _first(self, at: int) -> float:
        return next(answers[at].first for name, answers in self.answers.items() if name.startswith("d"))

    def _pace(self, at: int) -> float:
        answer = next(answers[at] for name, answers in self.answers.items() if name.startswith("d"))
        return (answer.seconds - answer.first) / max(1, answer.tokens - 1)

    def _figures(self) -> dict[str, Any]:
        raw = {
            name: [{**asdict(answer), "cpu": self.cpu[name][at]} for at, answer in answers.items()]
            for name, answers in self.answers.items()
        }
        floors = [{"seconds": self.floor(at), **asdict(probe)} for at, probe in enumerate(self.probes)]
        return {"references": [one.text for one in self.references], "answers": raw, "floors": floors}


async def compare(
    draft: str, assistant: str, asked: Sequence[str], ways: Mapping[str, Opener], *, few: int, slow: str = "c"
) -> Compared:
    """Answer every prompt with every method, in turns; methods named by `slow` answer only the first `few` prompts.

    Args:
        draft: URL of the draft.
        assistant: URL of the assistant.
        asked: the prompts.
        ways: the methods by name; a name that begins with "d" is the draft alone.
        few: number of prompts for the `slow` methods.
    """
    compared = Compared(answers={name: {} for name in ways}, cpu={name: {} for name in ways})
    order = random.Random(1)
    async with AsyncExitStack() as stack:
        write = {name: await stack.enter_async_context(opened()) for name, opened in ways.items()}
        providers = [await stack.enter_async_context(connect(url)) for url in (draft, assistant)]
        fusion = Fusion(draft=providers[0], assistant=providers[1], verifier=RuleVerifier.paper(), unit="token")
        reference = await stack.enter_async_context(fusion)
        probing = _probing(*providers)
        for start in range(0, len(asked), BLOCK):
            block = range(start, min(start + BLOCK, len(asked)))
            for at in block:
                for provider in providers:
                    await _read(provider, asked[at])
                compared.references.append(await reference.generate(asked[at], max_tokens=MAX_TOKENS))
            for name in order.sample(list(write), len(write)):
                mine = [at for at in block if at < few or not name.startswith(slow)]
                for at in [mine[0], *mine] if mine else []:
                    began = time.process_time()
                    compared.answers[name][at] = await write[name](asked[at], MAX_TOKENS)
                    compared.cpu[name][at] = time.process_time() - began
            for at in block:
                compared.probes.append(await probing(asked[at], compared.references[at]))
    return compared


async def _read(provider: Provider, prompt: str) -> None:
    """Let all slots of the server process the prompt, so that it is in their caches."""
    await provider.propose(Context(prompt, b""), [Question(0, (b" The",))] * SLOTS, usage=Usage())


def _probing(draft: Provider, assistant: Provider) -> Callable[[str, FusionResult], Awaitable[Probe]]:
    """A function that measures one verification and one restart at each replacement, with nothing else running."""

    async def probe(prompt: str, answer: FusionResult) -> Probe:
        found = Probe()
        for at, token in enumerate(answer.tokens):
            if token.replaced is None:
                continue
            before = "".join(one.text for one in answer.tokens[:at]).encode()
            began = time.perf_counter()
            question = Question(len(before), (token.replaced.encode(),))
            await assistant.propose(Context(prompt, before), [question], usage=Usage())
            found.verifications.append(time.perf_counter() - began)
            if at + 1 < len(answer.tokens):
                if isinstance(draft, Ready):  # as the library and (b) do
                    await draft.keep_ready()
                found.restarts.append(await _first_token(draft, prompt, before + token.text.encode()))
        return found

    return probe


async def _first_token(draft: Provider, prompt: str, text: bytes) -> float:
    began = time.perf_counter()
    async with aclosing(draft.generate(Context(prompt, text), max_tokens=MAX_TOKENS, usage=Usage())) as items:
        async for item in items:
            if isinstance(item, Token):
                break
    return time.perf_counter() - began


def spread(seconds: Sequence[float]) -> str:
    """The median and the quartiles, in milliseconds, as text."""
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 3
    return f"{1000 * middle:,.0f} ({1000 * low:,.0f}-{1000 * high:,.0f})"


def mean(values: Sequence[float]) -> str:
    """The mean as text, with as few digits as possible."""
    found = statistics.mean(values)
    return f"{found:.1f}" if found < 100 else f"{found:,.0f}"


def _billed(usage: Mapping[str, Any]) -> int:
    return int(usage.get("prompt_tokens", 0)) + int(usage.get("completion_tokens", 0))
