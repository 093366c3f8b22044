"""The cost of a fusion with a real language model on llama.cpp: time, tokens and bytes, next to the draft alone.

The model is that of `make test-real`. Each server has one slot and, if there are at least two cores, a core of its own.
The times of a row are from one run, in which the fusion and the draft take turns; the servers' caches are cold before
each answer. One table is measured with tokens as the unit, as for models that share the same token ids, and the other
with words, as for models whose ids differ.
"""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import product, takewhile
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import httpx

from benchmarks import genuine
from benchmarks.report import Cell, Options, Table
from cosd_api import Fusion, FusionResult, RuleVerifier
from cosd_api.apps.demo.servers import serve
from cosd_providers import Context, Message, Token, Usage, connect
from cosd_providers.messages import ChatProvider
from cosd_providers.strategies import Strategy

__all__ = ["TESTS", "Answer", "Both", "Case", "of_tests", "run"]

PROMPTS, QUICK, LENGTH, COLD = 20, 3, 128, 100
AGAIN = 5
"""The number of runs of a case that has only one prompt."""
ALONE, RULE, EVERYWHERE = (RuleVerifier(alpha=alpha, beta=beta) for alpha, beta in ((0, 0.5), (0.5, 0.5), (1, 1)))
TESTS = Path(__file__).parent.parent / "tests"

_TITLE = "A real language model"
_COLUMNS = (
    *("", "x alone", "tokens, alone and fused", "seconds alone", "replaced, %", "assistant: uncached tokens per token"),
    *("assistant: requests per token", "assistant: uncached + 0.1 cached + 4 written, per token"),
    *("drafts", "client, ms per token", "bytes sent per token"),
)
_ABOUT = (
    "SmolLM2-135M-Instruct (Q4_1) on llama.cpp, with one slot and one thread per server; each answer starts with "
    "empty caches. *Alone* means the same client with a rule that never asks the assistant. For emoji, *alone* means "
    "the draft's own stream, because the assistant is always asked about the parts of an emoji, for which no "
    "probability is reported. The assistant is asked single questions, or with a watch if the row says so. Times are "
    "medians over the answers; the draft alone answers directly after each fused answer. Prices are in prompt tokens: "
    "a cached token counts as a tenth of a prompt token, and a written token as four. In the genuine pair, the draft "
    "is the same model without its layer 20. For long prompts, the draft alone writes as many tokens as the fusion. "
    "*Bytes sent* were counted in an additional answer to the first prompt. Other programs share the machine, so "
    "compare ratios rather than times."
)
_WORDS = (
    'The models and servers are the same, but tokens are judged as for models with different ids (`unit="word"`), '
    "which takes two more words after each place. Times are medians over the answers: the seconds until the first "
    "text, alone and fused, and the delay of a token in milliseconds compared with the draft's own (the median over "
    "the tokens with which both answers begin). *Drafted in vain* counts drafted tokens that are not in the answer, "
    "including the lookahead after its end, in per cent of the answer's tokens."
)
_MISSING = "Not measured, because the model is not installed (`make test-real` fetches it)."


@dataclass(frozen=True, slots=True)
class Answer:
    """Measurements of one answer, or the sums over several answers.

    Attributes:
        seconds: wall time.
        tokens: tokens of the answer.
        replaced: number of draft tokens that were replaced.
        read: uncached prompt tokens of the assistant.
        client: seconds of processor time that this process used.
        drafts: number of requests to the draft.
        requests: number of requests to the assistant.
        cached: cached prompt tokens of the assistant.
        written: tokens that the assistant wrote.
        vain: number of drafted tokens that are not in the answer.
    """

    seconds: float = 0.0
    tokens: int = 0
    replaced: int = 0
    read: int = 0
    client: float = 0.0
    drafts: int = 0
    requests: int = 0
    cached: int = 0
    written: int = 0
    vain: int = 0

    def __add__(self, other: Answer) -> Answer:
        return Answer(*(one + two for one, two in zip(asdict(self).values(), asdict(other).values(), strict=True)))


Written = Sequence[tuple[int | None, float]]
"""The ids of an answer's tokens, each with the time in seconds until the token was final."""


@dataclass(frozen=True, slots=True)
class Both:
    """An answer of a fusion and the draft's own answer, measured one after the other.

    Attributes:
        fused: the fusion's answer.
        alone: the draft's answer.
        written: the tokens of both answers, each with the time in seconds until it was final; empty if not recorded.
    """

    fused: Answer
    alone: Answer
    written: tuple[Written, Written] = ((), ())

    @property
    def ratio(self) -> float:
        """The fusion's time per token, as a multiple of the draft's."""
        return (self.fused.seconds / self.fused.tokens) / (self.alone.seconds / self.alone.tokens)

    @property
    def behind(self) -> float:
        """Median delay of the fusion's tokens in milliseconds, over the answers' common beginning; NaN without one."""
        same = takewhile(lambda both: both[0][0] == both[1][0], zip(*self.written, strict=False))
        return 1000 * median([one - other for (_, one), (_, other) in same] or [math.nan])


@dataclass(frozen=True, slots=True)
class Case:
    """The case that a row of a table measures.

    Attributes:
        name: the name in the table.
        draft: URL of the draft's server.
        verifier: the fusion's verifier.
        asked: the prompts.
        length: maximum number of tokens of an answer.
        settings: further settings of the fusion.
        streamed: whether the *alone* column is measured on the draft's direct stream, without a fusion.
        alike: whether the draft alone writes the same number of tokens as the fusion.
    """

    name: str
    draft: str
    verifier: RuleVerifier
    asked: Sequence[Any]
    length: int = LENGTH
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    streamed: bool = False
    alike: bool = False


WAYS: Mapping[str, Strategy] = {"": "singles", ", by watch": "watch"}


async def run(options: Options) -> list[Table]:
    """Return the tables; the last one compares two real models, and is first measured."""
    folder = _folder()
    pairs = [await _genuine(options, folder)] if options.only or not options.quick else []
    if options.only and "tables" not in options.only:
        return pairs
    if folder is None:
        return [Table(_TITLE, _COLUMNS, [], [_MISSING]), *pairs]
    with ExitStack() as stack:
        model, shorter = folder / "smollm2.gguf", folder / "smollm2-without-layer-20.gguf"
        draft, assistant = (stack.enter_context(_served(model, core)) for core in (0, 1))
        other = stack.enter_context(_served(shorter, 0))
        prompts = _prompts()[: QUICK if options.quick else PROMPTS]
        return [
            await _by_tokens(options, _cases(draft, other, prompts, quick=options.quick), assistant),
            await _by_words(options, _forced(draft, other, prompts), assistant),
            *pairs,
        ]


async def _genuine(options: Options, folder: Path | None) -> Table:
    """The table of two real models, without the rows whose models are missing."""
    files, missing = dict[str, Path](), _MISSING if folder is None else ""
    if folder is not None:
        files["SmolLM2"] = files["SmolLM2 again"] = folder / "smollm2.gguf"
        if any("Gemma 3" in (case.draft, case.assistant) for case in genuine.cases(options.only)):
            install = of_tests("gemma3.install")
            try:
                files["Gemma 3"] = await anyio.to_thread.run_sync(install.install)
            except (install.InstallError, OSError) as error:
                missing = f"Gemma 3 was not measured: {error}."
    table = await genuine.measured(options, files, _prompts(), missing)
    if not options.only:
        options.say(table.markdown())  # if the run is interrupted, this table has at least been printed
    return table


def _cases(draft: str, other: str, prompts: Sequence[str], *, quick: bool) -> list[Case]:
    emoji = [{"role": "user", "content": "Write a row of party emoji."}, {"role": "assistant", "content": "🎉" * 8}]
    cases = [
        Case("the model with itself, rule (0.5, 0.5)", draft, RULE, prompts),
        Case("the model with itself, every place (1, 1)", draft, EVERYWHERE, prompts),
        Case("the genuine pair, rule (0.5, 0.5)", other, RULE, prompts),
        Case("the model with itself, 96 tokens of emoji", draft, RULE, [emoji] * AGAIN, 96, streamed=True),
    ]
    for size in (1000,) if quick else (1000, 4000):
        long = [_long(size)] * (1 if quick else AGAIN)
        cases.append(Case(f"the model with itself, a prompt of {size} words", draft, RULE, long, COLD, alike=True))
        cases.append(Case(f"the genuine pair, a prompt of {size} words", other, RULE, long, COLD, alike=True))
    return cases


def _forced(draft: str, other: str, prompts: Sequence[str]) -> list[Case]:
    settings = {"unit": "word"}
    return [
        Case("the model with itself, rule (0.5, 0.5)", draft, RULE, prompts, settings=settings),
        Case("the model with itself, every place (1, 1)", draft, EVERYWHERE, prompts, settings=settings),
        Case("the genuine pair, rule (0.5, 0.5)", other, RULE, prompts, settings=settings),
    ]


async def _by_tokens(options: Options, cases: Sequence[Case], assistant: str) -> Table:
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    for case, added in product(cases, WAYS):
        name = case.name + added
        options.say(f"real: {name}")
        found = await _measured(case, assistant, WAYS[added])
        sent = await _bytes_sent(case, assistant, WAYS[added])
        rows.append(_row(name, found, sent))
        figures[name] = {**_figures(found), "bytes sent a token": sent}
    return Table(_TITLE, _COLUMNS, rows, [_ABOUT], figures)


async def _by_words(options: Options, cases: Sequence[Case], assistant: str) -> Table:
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    for case, added in product(cases, WAYS):
        name = case.name + added
        options.say(f"real, by words: {name}")
        found = await _measured(case, assistant, WAYS[added])
        fused = _together(one.fused for one in found)
        first = [median([one.written[at][0][1] for one in found]) for at in (1, 0)]
        rows.append(
            [
                name,
                round(median([one.ratio for one in found]), 2),
                f"{first[0]:.3f} {first[1]:.3f}",
                f"{median([one.behind for one in found]):.0f}",
                round(100 * fused.vain / fused.tokens, 1),
                round(100 * fused.replaced / fused.tokens, 1),
                round(fused.requests / fused.tokens, 3),
                _price(fused),
            ]
        )
        figures[name] = _figures(found)
    columns = ["", "x alone", "first text, s", "later than the draft alone, ms", "drafted in vain, %", "replaced, %"]
    columns += ["assistant: requests per token", "assistant: uncached + 0.1 cached + 4 written, per token"]
    return Table("A real language model, by words", columns, rows, [_WORDS], figures)


async def _measured(case: Case, assistant: str, way: Strategy) -> list[Both]:
    """The answers to a case's prompts, each with the draft's own answer."""
    found: list[Both] = []
    for prompt in case.asked:
        fused, written = await _answered(case, assistant, prompt, way)
        most = fused.tokens if case.alike else case.length
        if case.streamed:
            found.append(Both(fused, await _streamed(case.draft, prompt, most)))
        else:
            alone, own = await _answered(replace(case, verifier=ALONE, length=most, settings={}), assistant, prompt)
            found.append(Both(fused, alone, (written, own)))
    return found


def _together(answers: Iterable[Answer]) -> Answer:
    return sum(answers, Answer())


def _figures(found: Sequence[Both]) -> dict[str, Any]:
    both = {"alone": _together(one.alone for one in found), "fused": _together(one.fused for one in found)}
    ratios = [round(one.ratio, 3) for one in found]
    return {name: asdict(answer) for name, answer in both.items()} | {"x alone": ratios}


def _price(fused: Answer) -> str:
    terms = [fused.read / fused.tokens, 0.1 * fused.cached / fused.tokens, 4 * fused.written / fused.tokens]
    return f"{terms[0]:.2f} + {terms[1]:.2f} + {terms[2]:.2f} = {sum(terms):.2f}"


def _row(name: str, found: Sequence[Both], sent: float) -> list[Cell]:
    alone, fused = (_together(one) for one in ((both.alone for both in found), (both.fused for both in found)))
    return [
        name,
        round(median([one.ratio for one in found]), 2),
        f"{alone.tokens:,} {fused.tokens:,}",
        round(alone.seconds, 1),
        round(100 * fused.replaced / (fused.tokens or 1), 1),
        round(fused.read / fused.tokens, 2),
        round(fused.requests / fused.tokens, 3),
        _price(fused),
        fused.drafts,
        round(1000 * fused.client / fused.tokens, 2),
        round(sent),
    ]


async def _answered(case: Case, assistant: str, prompt: Any, way: Strategy = "singles") -> tuple[Answer, Written]:
    """One answer with cold caches on both servers, and the answer's tokens."""
    for url in {case.draft, assistant}:
        await _forget(url)
    models = [connect(case.draft, timeout=600), connect(assistant, engine="llama.cpp", strategy=way, timeout=600)]
    async with Fusion(draft=models[0], assistant=models[1], verifier=case.verifier, **case.settings) as fusion:
        await fusion.endpoints.discover()
        began, processor = time.perf_counter(), time.process_time()
        result: FusionResult = await fusion.generate(_conversation(prompt), max_tokens=case.length)
        seconds, busy = time.perf_counter() - began, time.process_time() - processor
    asked = result.usage["assistant"]
    answer = Answer(
        seconds=seconds,
        tokens=len(result.tokens),
        replaced=result.replaced_tokens or 0,
        read=asked.prompt_tokens - asked.cached_tokens,
        client=busy,
        drafts=result.draft_requests,
        requests=asked.requests,
        cached=asked.cached_tokens,
        written=asked.completion_tokens,
        vain=result.wasted_tokens or 0,
    )
    return answer, [(token.id, token.final_at or 0.0) for token in result.tokens]


async def _streamed(draft: str, messages: Sequence[Any], length: int) -> Answer:
    """One answer of the draft alone, in one stream and with a cold cache."""
    await _forget(draft)
    async with connect(draft, engine="llama.cpp", timeout=600) as provider:
        await provider.describe()
        assert isinstance(provider, ChatProvider)
        began, tokens = time.perf_counter(), 0
        prompt = await provider.render_prompt([Message(**one) for one in messages])
        context = Context(prompt.prompt, b"", ())
        async with aclosing(provider.generate(context, max_tokens=length, usage=Usage())) as stream:
            async for item in stream:
                tokens += isinstance(item, Token)
        return Answer(seconds=time.perf_counter() - began, tokens=tokens)


async def _bytes_sent(case: Case, assistant: str, way: Strategy) -> float:
    """The size of all request bodies, in bytes per token of one more answer to the first prompt."""
    sent = 0

    async def note(request: httpx.Request) -> None:
        nonlocal sent
        sent += len(request.content)

    async with httpx.AsyncClient(event_hooks={"request": [note]}, timeout=600) as client:
        models = [connect(case.draft, http_client=client)]
        models += [connect(assistant, engine="llama.cpp", strategy=way, http_client=client)]
        async with Fusion(draft=models[0], assistant=models[1], verifier=case.verifier, **case.settings) as fusion:
            await fusion.endpoints.discover()
            sent = 0
            result = await fusion.generate(_conversation(case.asked[0]), max_tokens=case.length)
    return sent / len(result.tokens)


def _conversation(prompt: Any) -> Any:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


async def _forget(url: str) -> None:
    """Empty a server's cache by filling its only slot with another prompt."""
    async with httpx.AsyncClient(timeout=60) as client:
        body = {"prompt": [1, 2, 3], "n_predict": 1, "cache_prompt": False}
        (await client.post(f"{url}/completion", json=body)).raise_for_status()


@contextmanager
def _served(model: Path, core: int) -> Iterator[str]:
    """Run a server with one slot and no cache of earlier prompts, on one core if the system can pin it."""
    with serve(model, context=6144, slots=1, threads=1, cache=0) as server:
        genuine.pin(server.pid, core)
        yield server.url


def _folder() -> Path | None:
    """The folder that contains the model; None if the model has not been fetched."""
    install = of_tests("smollm2.install")
    folder: Path = install.folder()
    return folder if (folder / install.SHORTER).is_file() else None


def _prompts() -> Sequence[str]:
    """Every second prompt of the tests, which covers all kinds of prompts."""
    found: Sequence[str] = of_tests("live_real.prompts").PROMPTS
    return found[::2]


def of_tests(name: str) -> Any:
    """Import a module from the folder of the tests."""
    sys.path.insert(0, str(TESTS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(TESTS))


def _long(words: int) -> str:
    """A prompt of `words` words, which has about the same number of tokens."""
    found = [
        *("the", "old", "harbour", "of", "stone", "and", "rain", "where", "boats"),
        *("wait", "for", "morning", "while", "gulls", "call", "over", "quiet", "water"),
    ]
    return "Tell a long story with these words: " + " ".join(
        found[(7 * at * at + at) % len(found)] for at in range(words)
    )
