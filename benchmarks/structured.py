"""Structured answers: model calls and time with and without forced text, beside the server's own grammar."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx

from benchmarks.attacked import smollm2
from benchmarks.real import of_tests
from benchmarks.report import Cell, Options, Table
from cosd_api import Fusion
from cosd_api.apps.demo.servers import serve
from cosd_api.structured import ResponseFormat
from cosd_api.structured.constrained import constrained
from cosd_providers import Context, DraftEnd, connect
from cosd_providers.messages import RenderedPrompt
from cosd_providers.usage import Usage

_LENGTH = 64
_BYTES = 20_000  # of text that the automaton reads
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "city": {"type": "string", "maxLength": 24},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
_GRAMMAR = r"""root ::= "{\"name\": " string ", \"age\": " age ", \"city\": " string "}"
age ::= [0-9] | [1-9] [0-9] | "1" [0-4] [0-9] | "150"
string ::= "\"" char{0,24} "\""
char ::= [^"\\\x00-\x1f\x7f] | "\\" ["\\bfnrt]"""
_PEOPLE = (
    *("Ada is 36 and lives in London.", "Bob, 52, from Paris.", "Chen is twenty-one; he moved to Beijing."),
    *("Dora lives in Rome. She is 70.", "Emil (8) from Oslo", "Fatima, aged 44, Cairo", "Hana: 29, Tokyo"),
    *(
        "My name is Guy, I am 5, and I live in Nice.",
        "Ines, a doctor of 61, Lisbon",
        "Jo was born in Bern 33 years ago.",
    ),
)


@dataclass
class Seen:
    """The counts of the answers of one way."""

    texts: list[str] = field(default_factory=list[str])
    tokens: int = 0
    calls: int = 0
    asked: int = 0
    seconds: float = 0.0


Way = Callable[[str, Seen], Awaitable[str]]
"""Answers one question, and counts; returns the text."""


async def run(options: Options) -> list[Table]:
    """Measure every way on the same questions."""
    chosen = ResponseFormat.of(_SCHEMA)
    assert chosen is not None
    questions = [f"Text: {one}\nThe person as JSON:" for one in _PEOPLE[: 3 if options.quick else None]]
    rows, notes, first = list[list[Cell]](), list[str](), 0.0
    with ExitStack() as stack:
        file = await smollm2()
        draft, other = (stack.enter_context(serve(file, context=1024, slots=2)).url for _ in range(2))
        ways: dict[str, AbstractAsyncContextManager[Way]] = {
            "the server under its own grammar": _served(draft),
            "restricted, every token asked for": _alone(draft, chosen, forces=False),
            "restricted": _alone(draft, chosen, forces=True),
            "fused with itself": _fused(draft, other),
        }
        install = of_tests("gemma3.install")
        try:
            gemma = await anyio.to_thread.run_sync(install.install)
            ways["fused with Gemma 3"] = _fused(draft, stack.enter_context(serve(gemma, context=1024, slots=2)).url)
        except (install.InstallError, OSError) as error:
            notes.append(f"Gemma 3 was not measured: {error}.")
        texts = list[str]()
        for name, way in ways.items():
            options.say(f"structured: {name}")
            async with way as answer:
                seen = await _measured(answer, questions)
            first, texts = first or seen.seconds, texts + seen.texts
            valid = sum(_is_valid(chosen, one) for one in seen.texts)
            whole = f"{valid} of {len(questions)}"
            share = seen.calls / seen.tokens
            rows.append([name, whole, seen.tokens, seen.calls, share, seen.asked, seen.seconds, seen.seconds / first])
    columns = [
        "way",
        "valid",
        "tokens",
        "calls of the draft",
        "calls / tokens",
        "of the assistant",
        "s",
        "x the server",
    ]
    notes.append(f"SmolLM2 on llama.cpp; {len(questions)} questions, at most {_LENGTH} tokens each.")
    return [Table("Structured answers", columns, rows, notes), _automaton(chosen, texts)]


async def _measured(way: Way, questions: Sequence[str]) -> Seen:
    await way(questions[0], Seen())  # connections and prompts are known from here on
    seen, began = Seen(), time.monotonic()
    for question in questions:
        seen.texts.append(await way(question, seen))
    seen.seconds = time.monotonic() - began
    return seen


@asynccontextmanager
async def _served(url: str) -> AsyncGenerator[Way]:
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:

        async def answer(question: str, seen: Seen) -> str:
            body = {"prompt": question, "n_predict": _LENGTH, "temperature": 0, "grammar": _GRAMMAR}
            found = (await client.post("/completion", json=body)).raise_for_status().json()
            seen.tokens += found["tokens_predicted"]
            seen.calls += found["tokens_predicted"]
            return str(found["content"])

        yield answer


@asynccontextmanager
async def _alone(url: str, chosen: ResponseFormat, *, forces: bool) -> AsyncGenerator[Way]:
    async with connect(url) as provider:

        async def answer(question: str, seen: Seen) -> str:
            text, usage = b"", Usage()
            model = constrained(RenderedPrompt(provider, question), chosen.language, forces=forces).on_path
            async for item in model.generate(Context(question, b"", ()), max_tokens=_LENGTH, usage=usage):
                if not isinstance(item, DraftEnd):
                    text, seen.tokens = text + item.data, seen.tokens + 1
            seen.calls += usage.completion_tokens
            return text.decode("utf-8", "ignore")

        yield answer


@asynccontextmanager
async def _fused(draft: str, assistant: str) -> AsyncGenerator[Way]:
    async with Fusion(draft=draft, assistant=assistant) as fusion:

        async def answer(question: str, seen: Seen) -> str:
            found = await fusion.generate(question, max_tokens=_LENGTH, response_format=_SCHEMA)
            seen.tokens += len(found.tokens)
            seen.calls += found.usage["draft"].completion_tokens
            seen.asked += found.usage["assistant"].completion_tokens
            return found.text

        yield answer


def _is_valid(chosen: ResponseFormat, text: str) -> bool:
    try:
        chosen.parse(text)
    except ValueError:
        return False
    return True


def _automaton(chosen: ResponseFormat, texts: Sequence[str]) -> Table:
    """The client's time for the automaton: at each byte, what may follow, and whether 20 tokens may."""
    size, began = 0, time.perf_counter()
    while size < _BYTES:
        for text in texts:
            data = text.encode()
            for at in range(len(data)):
                place = chosen.language.after(data[:at])
                if at % 4 == 0:  # a token has about four bytes
                    for width in range(20):
                        place.accepts(data[at : at + 1 + width % 6])
            size += len(data)
    cost: list[Any] = [size, 1e6 * (time.perf_counter() - began) / size]
    return Table(
        "The automaton", ["bytes", "us a byte"], [cost], ["Twenty candidates are tested at every fourth byte."]
    )
