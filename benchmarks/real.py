"""A real language model on llama.cpp: time, tokens and bytes of a fusion beside the draft alone.

The model is that of `make test-real`. Each server has one slot and, where there are two cores or more, a core of its
own; a row's times are of one run, in turns, and the caches of the servers are cold before each answer.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import httpx

from benchmarks.report import Cell, Options, Table
from cosd_api import Fusion, FusionResult, RuleVerifier
from cosd_api.demo.servers import serve
from cosd_providers import Context, Message, Token, Usage, connect
from cosd_providers.messages import ChatProvider
from cosd_providers.strategies import Strategy

__all__ = ["Answer", "run"]

PROMPTS, QUICK, LENGTH, COLD = 20, 2, 128, 100
ALONE, RULE, EVERYWHERE = (RuleVerifier(alpha=alpha, beta=beta) for alpha, beta in ((0, 0.5), (0.5, 0.5), (1, 1)))
TESTS = Path(__file__).parent.parent / "tests"

_ABOUT = (
    "SmolLM2-135M-Instruct (Q4_1) on llama.cpp, one slot and one thread a server, all caches cold before each answer. "
    "Alone is the same client with a rule that never asks. Of emoji it is the draft's own stream: their parts have no "
    "probability here, and are always asked about. Assistants are asked by singles, or by watch where the row says so. "
    "The price of a token is in those of a prompt, a cached one at a tenth and a written one at four. The genuine pair "
    "drafts with the same model without its layer 20. Where a prompt is long, the draft alone writes as many tokens as "
    "the fusion has. Bytes are those of one "
    "more answer to the first prompt. Times are those of this machine, which other work shares: compare the ratios."
)
_MISSING = "Not measured: the model is not here (`make test-real` fetches it)."


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, or several together.

    Attributes:
        seconds: wall time.
        tokens: of the answer.
        replaced: tokens of the draft that were replaced.
        read: uncached prompt tokens of the assistant.
        client: seconds of processor time of this process.
        drafts: requests for a draft.
        requests: to the assistant.
        cached: cached prompt tokens of the assistant.
        written: tokens that the assistant wrote.
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

    def __add__(self, other: Answer) -> Answer:
        return Answer(*(one + two for one, two in zip(asdict(self).values(), asdict(other).values(), strict=True)))


async def run(options: Options) -> list[Table]:
    """The table; without rows where the model is not there."""
    folder = _folder()
    columns = ["", "x alone", "tokens, alone and fused", "seconds alone", "replaced, %"]
    columns += ["assistant: uncached tokens a token", "assistant: requests a token"]
    columns += ["assistant: uncached + 0.1 cached + 4 written, a token"]
    columns += ["drafts", "client, ms a token", "bytes sent a token"]
    title = "A real language model"
    if folder is None:
        return [Table(title, columns, [], [_MISSING])]
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        model, shorter = folder / "smollm2.gguf", folder / "smollm2-without-layer-20.gguf"
        draft, assistant = (stack.enter_context(_served(model, core)) for core in (0, 1))
        other = stack.enter_context(_served(shorter, 0))
        prompts = _prompts()[: QUICK if options.quick else PROMPTS]
        emoji = [{"role": "user", "content": "Write a row of party emoji."}, {"role": "assistant", "content": "🎉" * 8}]
        cases: list[tuple[str, str, RuleVerifier, Sequence[Any], int]] = [
            ("the model with itself, rule (0.5, 0.5)", draft, RULE, prompts, LENGTH),
            ("the model with itself, every place (1, 1)", draft, EVERYWHERE, prompts, LENGTH),
            ("the genuine pair, rule (0.5, 0.5)", other, RULE, prompts, LENGTH),
            ("the model with itself, 96 tokens of emoji", draft, RULE, [emoji], 96),
        ]
        for size in (1000,) if options.quick else (1000, 4000):
            long = [_long(size)]
            cases.append((f"the model with itself, a prompt of {size} words", draft, RULE, long, COLD))
            cases.append((f"the genuine pair, a prompt of {size} words", other, RULE, long, COLD))
        ways: dict[str, Strategy] = {"": "singles", ", by watch": "watch"}
        for (kind, writer, verifier, asked, length), added in product(cases, ways):
            name, way = kind + added, ways[added]
            options.say(f"real: {name}")
            alone, fused = Answer(), Answer()
            for prompt in asked:
                found = await _answered(writer, assistant, verifier, prompt, length, way)
                most = found.tokens if length == COLD else length
                if prompt is emoji:
                    alone += await _streamed(writer, prompt, most)
                else:
                    alone += await _answered(writer, assistant, ALONE, prompt, most)
                fused += found
            sent = await _bytes_sent(writer, assistant, verifier, asked[0], length, way)
            rows.append(_row(name, alone, fused, sent))
            figures[name] = {"alone": asdict(alone), "fused": asdict(fused), "bytes sent a token": sent}
    return [Table(title, columns, rows, [_ABOUT], figures)]


def _row(name: str, alone: Answer, fused: Answer, sent: float) -> list[Cell]:
    ratio = (fused.seconds / fused.tokens) / (alone.seconds / alone.tokens)
    share = 100 * fused.replaced / (fused.tokens or 1)
    terms = [fused.read / fused.tokens, 0.1 * fused.cached / fused.tokens, 4 * fused.written / fused.tokens]
    price = f"{terms[0]:.2f} + {terms[1]:.2f} + {terms[2]:.2f} = {sum(terms):.2f}"
    tokens = f"{alone.tokens:,} {fused.tokens:,}"
    found: list[Cell] = [
        name,
        round(ratio, 2),
        tokens,
        round(alone.seconds, 1),
        round(share, 1),
        round(terms[0], 2),
        round(fused.requests / fused.tokens, 3),
        price,
        fused.drafts,
        round(1000 * fused.client / fused.tokens, 2),
        round(sent),
    ]
    return found


async def _answered(
    draft: str, assistant: str, verifier: RuleVerifier, prompt: Any, length: int, way: Strategy = "singles"
) -> Answer:
    """One answer, with the caches of both servers cold."""
    for url in {draft, assistant}:
        await _forget(url)
    models = [connect(draft, timeout=600), connect(assistant, engine="llama.cpp", strategy=way, timeout=600)]
    async with Fusion(draft=models[0], assistant=models[1], verifier=verifier) as fusion:
        await fusion.endpoints.discover()
        began, processor = time.perf_counter(), time.process_time()
        result: FusionResult = await fusion.generate(_conversation(prompt), max_tokens=length)
        seconds, busy = time.perf_counter() - began, time.process_time() - processor
    asked = result.usage["assistant"]
    return Answer(
        seconds=seconds,
        tokens=len(result.tokens),
        replaced=result.replaced_tokens or 0,
        read=asked.prompt_tokens - asked.cached_tokens,
        client=busy,
        drafts=result.draft_requests,
        requests=asked.requests,
        cached=asked.cached_tokens,
        written=asked.completion_tokens,
    )


async def _streamed(draft: str, messages: Sequence[Any], length: int) -> Answer:
    """The draft alone, in one stream, with a cold cache."""
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


async def _bytes_sent(
    draft: str, assistant: str, verifier: RuleVerifier, prompt: Any, length: int, way: Strategy
) -> float:
    """Bytes of request bodies for each token of an answer."""
    sent = 0

    async def note(request: httpx.Request) -> None:
        nonlocal sent
        sent += len(request.content)

    async with httpx.AsyncClient(event_hooks={"request": [note]}, timeout=600) as client:
        asked = connect(assistant, engine="llama.cpp", strategy=way, http_client=client)
        models = [connect(draft, http_client=client), asked]
        async with Fusion(draft=models[0], assistant=models[1], verifier=verifier) as fusion:
            await fusion.endpoints.discover()
            sent = 0
            result = await fusion.generate(_conversation(prompt), max_tokens=length)
    return sent / len(result.tokens)


def _conversation(prompt: Any) -> Any:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


async def _forget(url: str) -> None:
    """Put something else into the only slot of a server."""
    async with httpx.AsyncClient(timeout=60) as client:
        body = {"prompt": [1, 2, 3], "n_predict": 1, "cache_prompt": False}
        (await client.post(f"{url}/completion", json=body)).raise_for_status()


@contextmanager
def _served(model: Path, core: int) -> Iterator[str]:
    """A server with one slot and no cache of earlier prompts, on one core where that can be said."""
    with serve(model, context=6144, slots=1, threads=1, cache=0) as server:
        if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > core:
            for task in Path(f"/proc/{server.pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {core})
        yield server.url


def _folder() -> Path | None:
    """The folder of the model, if it was fetched."""
    install = _of_tests("smollm2.install")
    folder: Path = install.folder()
    return folder if (folder / install.SHORTER).is_file() else None


def _prompts() -> Sequence[str]:
    """Prompts of the tests, one in two: of all kinds."""
    found: Sequence[str] = _of_tests("live_real.prompts").PROMPTS
    return found[::2]


def _of_tests(name: str) -> Any:
    """A module that lies beside the tests."""
    sys.path.insert(0, str(TESTS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(TESTS))


def _long(words: int) -> str:
    """A prompt of this many words, about as many tokens."""
    found = [
        "the",
        "old",
        "harbour",
        "of",
        "stone",
        "and",
        "rain",
        "where",
        "boats",
        "wait",
        "for",
        "morning",
        "while",
        "gulls",
        "call",
        "over",
        "quiet",
        "water",
    ]
    return "Tell a long story with these words: " + " ".join(
        found[(7 * at * at + at) % len(found)] for at in range(words)
    )
