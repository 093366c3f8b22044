"""Servers that misbehave: every fault ends in the right answer, or in an error that says what it was.

Each is played to a provider by itself, to a fusion's draft and to its assistant, over each protocol. Afterwards no task
and no socket is left, and no word of an error or of the log holds the key or the prompt.
"""

from __future__ import annotations

import logging
import math
import random
import re
import traceback
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any, Literal

import anyio
import anyio.lowlevel
import httpx
import pytest

from cosd_api import Fusion
from cosd_providers import (
    AuthenticationError,
    BudgetTimeoutError,
    ConnectError,
    InvalidRequestError,
    ProviderError,
    ProviderTimeoutError,
    Question,
    RateLimitError,
    ResponseError,
    ServerError,
    StatusError,
    UnsupportedError,
    Usage,
)
from cosd_providers.contract import Context
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.engines.openai import OpenAICompatible
from cosd_providers.engines.openai.dialects import Dialect
from cosd_providers.engines.tgi import Tgi
from cosd_providers.engines.vllm import Vllm
from cosd_providers.testing import ScriptToken, TextModel
from fakes.faulty import (
    Exchange,
    Fault,
    FaultyServer,
    cut,
    dawdles,
    edited,
    endless,
    hangs,
    hangs_up,
    misjudged,
    noted,
    nothing_left,
    page,
    recut,
    redirects,
    refuses,
    serve,
    values,
)
from fakes.faulty import sane as no_fault
from fakes.llama_cpp import FakeLlamaCpp
from fakes.openai import FakeOpenAI
from fakes.tgi import StandInTgi
from fakes.vllm import FakeVllm
from support.asked import draft as drafted
from support.drawn import partly

KEY = "sk-very-secret"
PROMPT = "Q: what nobody may read of Perú?"
FIRST = " Die Hauptstadt von Perú ist Lima"
DRAFT: dict[str, list[ScriptToken]] = {
    PROMPT: [" Die", (" Hauptstadt", 0.4), " von", (" Perú", 0.45), " ist", (" Quito", 0.3), "."],
    PROMPT + FIRST: [(" 一", 0.25), "😀", (" und", 0.4), " mehr", "."],
}
ASSISTANT: dict[str, list[ScriptToken]] = {
    PROMPT: [
        *(" Die", (" Hauptstadt", 0.8), " von", (" Perú", 0.9), " ist", (" Li", 0.9), ("ma", 0.8)),
        *(" 一", "😀", " und", " mehr", "."),
    ]
}
ANSWER = FIRST + " 一😀 und mehr."
QUESTIONS = [
    Question(len(b" Die"), (b" Hauptstadt",), word=True),
    Question(len(" Die Hauptstadt von Perú ist".encode()), (b" Quito", b"."), word=True),
]

Engine = Literal["llama.cpp", "vllm", "tgi", "openai"]
Role = Literal["draft", "ask"]
ALL: tuple[Engine, ...] = ("llama.cpp", "vllm", "tgi", "openai")
ROLES: tuple[Role, ...] = ("draft", "ask")
ALWAYS = math.inf
TOY = Dialect("toy", known_text="ab", sample="ab")


@cache
def handle(engine: Engine, role: Role) -> Callable[[httpx.Request], httpx.Response]:
    """A sane server, which remembers what it has answered: it is the same every time."""
    model = TextModel(DRAFT if role == "draft" else ASSISTANT)
    servers: dict[Engine, Any] = {
        "llama.cpp": lambda: FakeLlamaCpp(model, beginning=True),
        "vllm": lambda: FakeVllm(model, beginning=True),
        "tgi": lambda: StandInTgi(model),
        "openai": lambda: FakeOpenAI(model, beginning=True),
    }
    server, known = servers[engine](), dict[tuple[str, bytes], httpx.Response]()

    def answer(request: httpx.Request) -> httpx.Response:
        asked = (request.url.path, request.content)
        if asked not in known:
            known[asked] = server.handle(request)
        return known[asked]

    return answer


def provider(engine: Engine, url: str, patience: float | httpx.Timeout) -> Any:
    """The adapter for it."""
    options: dict[str, Any] = {"api_key": KEY, "timeout": patience}
    match engine:
        case "llama.cpp":
            return LlamaCpp(url, **options)
        case "vllm":
            return Vllm(url, **options)
        case "tgi":
            return Tgi(url, **options)
        case "openai":
            return OpenAICompatible(url, dialect=TOY, **options)


@dataclass
class Stage:
    """A fusion over two servers, which are sane until they are told otherwise, and have been asked what they are."""

    servers: Mapping[Role, FaultyServer]
    providers: Mapping[Role, Any]
    fusion: Fusion

    async def alone(self, role: Role) -> Any:
        """What one provider says by itself."""
        if role == "draft":
            return await drafted(self.providers["draft"], PROMPT)
        return await self.providers["ask"].propose(Context(PROMPT, FIRST.encode()), QUESTIONS, usage=Usage())

    async def fused(self) -> Any:
        """What the fusion says, and who said it."""
        result = await self.fusion.generate(PROMPT, max_tokens=40)
        return [(token.text, token.source, token.draft_prob, token.assistant_prob) for token in result.tokens]


@asynccontextmanager
async def stage(
    engine: Engine, patience: float | httpx.Timeout = 10.0, *, learned: bool = True, alone: bool = True
) -> AsyncGenerator[Stage]:
    """At its end every connection is closed; where it is `alone`, no task and no socket is left."""
    check = nothing_left() if alone else nullcontext()
    async with check, serve(handle(engine, "draft"), handle(engine, "ask")) as servers:
        draft, ask = (provider(engine, server.url, patience) for server in servers)
        async with Fusion(draft=draft, assistant=ask) as fusion:
            if learned:
                await draft.describe()
                await ask.describe()
            yield Stage({"draft": servers[0], "ask": servers[1]}, {"draft": draft, "ask": ask}, fusion)


_SANE: dict[tuple[Engine, Role | None], Any] = {}


async def sane(engine: Engine, role: Role | None) -> Any:
    """What comes of sane servers: from a provider by itself, or from the fusion."""
    if (engine, role) not in _SANE:
        async with stage(engine) as here:
            _SANE[engine, role] = await here.fused() if role is None else await here.alone(role)
    return _SANE[engine, role]


@dataclass(frozen=True)
class Fails:
    """An error: its class, words of it, whether trying again may help, its status, and what it says would help."""

    kind: type[ProviderError]
    words: str
    retryable: bool = False
    status: int | None = None
    hint: str = ""

    def check(self, error: ProviderError, url: str) -> None:
        """It is that one, about that endpoint, and in no word of it is a secret."""
        told = (type(error), error.endpoint, error.retryable, error.status)
        assert told == (self.kind, url, self.retryable, self.status), repr(error)
        assert re.match(self.words, error.args[0]), error.args[0]
        assert self.hint in error.hint if self.hint else not error.hint, error.hint
        keep(str(error), repr(error), "".join(traceback.format_exception(error)))


def keep(*texts: str) -> None:
    """In none of the texts is the key, or what was asked."""
    for text in texts:
        assert KEY not in text
        assert "nobody may read" not in text
        assert "Hauptstadt" not in text


SHORTEST = 0.01
"""Seconds of a pause between attempts, at least: what is shorter is a pause of another kind."""
RIGHT = None
Expected = Fails | None

pytestmark = pytest.mark.usefixtures("quiet", "fast")


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which take no time."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        if seconds > SHORTEST:
            pauses.append(seconds)
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(anyio, "sleep", sleep)
    return pauses


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The log has no secret."""
    with caplog.at_level(logging.DEBUG, logger="cosd_providers"):
        yield
    keep(*(record.getMessage() for record in caplog.records if record.name.startswith("cosd")))


async def ended_in(ask: Callable[[], Awaitable[Any]]) -> tuple[Any, ProviderError | None]:
    """What was said, or what went wrong; and that in time."""
    with anyio.fail_after(30):
        try:
            return await ask(), None
        except ProviderError as error:
            return None, error


async def play(
    engine: Engine, role: Role, fault: Fault, expected: Expected, times: float = ALWAYS, **more: Any
) -> None:
    """A fault strikes a provider by itself, then a fusion; each ends as expected."""
    wanted = [await sane(engine, role), await sane(engine, None)]
    async with stage(engine, **more) as here:
        server = here.servers[role]
        for level, ask in enumerate((lambda: here.alone(role), here.fused)):
            server.cues.clear()
            server.cue(fault, role, times)
            struck = server.struck
            found, error = await ended_in(ask)
            if error is None:
                assert expected is None
                assert found == wanted[level]
            else:
                assert expected is not None, repr(error)
                expected.check(error, server.url)
            assert server.struck > struck


async def test_sane_servers() -> None:
    for engine in ALL:
        assert "".join(text for text, *_ in await sane(engine, None)) == ANSWER


# What changes nothing.


def improbable(value: float) -> Fault:
    """Every alternative has this logarithm, but for the most probable one."""

    def change(name: str, old: Any) -> Any:
        if name == "top_logprobs" and isinstance(old, list) and old and "logprob" in (old[0] or {}):
            best = max(entry["logprob"] for entry in old)
            return [entry if entry["logprob"] == best else {**entry, "logprob": value} for entry in old]
        if name == "top_logprobs" and isinstance(old, list):
            return [top and {key: n if n == max(top.values()) else value for key, n in top.items()} for top in old]
        return old

    return edited(values(change))


def long_at_last(said: list[Any]) -> list[Any]:
    """The last event but one, or the answer, is 10 MB long."""
    at = max(len(said) - 2, 0)
    return [*said[:at], *noted("x" * (10 << 20))(said[at : at + 1]), *said[at + 1 :]]


def reversed_lists(said: list[Any]) -> list[Any]:
    """The answers to a list of prompts in the wrong order, their numbers with them."""
    return [
        one[::-1] if isinstance(one, list) else {**one, "choices": one["choices"][::-1]} if "choices" in one else one
        for one in said
        if one != "[DONE]"
    ]


HARMLESS: dict[str, Fault] = {
    "byte by byte": recut(1),
    "in odd pieces": recut(7),
    "in one piece": recut(None),
    "an event of 10 MB": edited(long_at_last),
    "a list in the wrong order": edited(reversed_lists),
    "improbable: -inf": improbable(-math.inf),
    "improbable: -9999": improbable(-9999.0),
    "improbable: NaN": improbable(math.nan),
}


@pytest.mark.parametrize("engine", partly(ALL))
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", HARMLESS)
async def test_what_changes_nothing(name: str, role: Role, engine: Engine) -> None:
    await play(engine, role, HARMLESS[name], RIGHT)


def twice(said: list[Any]) -> list[Any]:
    """One of the events comes twice."""
    return [one for at, event in enumerate(said) for one in [event] * (1 + (at == 2))]


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm", "tgi"])
async def test_an_event_that_comes_twice(engine: Engine) -> None:
    """These count their tokens in each event."""
    await play(engine, "draft", edited(twice), RIGHT)


async def test_an_event_that_comes_twice_where_nothing_counts() -> None:
    """Two equal events may be two equal tokens: in OpenAI's protocol only the usage at the end could tell, too late."""
    async with stage("openai") as here:
        here.servers["draft"].cue(edited(twice), "draft")
        tokens = await drafted(here.providers["draft"], PROMPT, limit=5)
        assert [token.data.decode() for token in tokens[:-1]] == [" Die", " Hauptstadt", " von", " von", " Perú"]


# What passes: the next attempt is right.


def ended(reason: str | None) -> Fault:
    """No reason why the answer ended."""
    return edited(values(lambda name, old: reason if name in ("finish_reason", "stop_type") else old))


def breaks_off(reason: str, words: str | None = None) -> Fault:
    """The server gives the answer up, and says so where the answer would end."""

    def change(name: str, old: Any) -> Any:
        if name == "choices" and words:
            return [{**one, "error": {"message": words}} if one["finish_reason"] else one for one in old]
        return reason if name == "finish_reason" and old else old

    return edited(values(change))


def done_too_early(said: list[Any]) -> list[Any]:
    """The stream says that it is over, and has not said why."""
    return [*said[:3], "[DONE]"]


def fails_at(count: int) -> Fault:
    """After so many events, one with an error."""
    error = {"error": {"message": "CUDA out of memory", "type": "server_error", "code": 500}}
    return edited(lambda said: [*said[:count], error])


WHERE: tuple[Literal["start", "character", "event", "between"], ...] = ("start", "character", "event", "between")
PASSING: dict[str, Fault] = {
    "no answer": hangs_up(),
    "no answer, reset": hangs_up(reset=True),
    "reset in the middle": cut("event", "reset"),
    **{f"lost in the middle: {where}": cut(where, "lost") for where in WHERE},
    "429": refuses(429, {"error": {"message": "slow down"}}),
    "500": refuses(500, {"error": {"message": "oops"}}),
    "502, a page": refuses(502),
    "503, loading": refuses(503, {"error": {"message": "Loading model", "code": 503}}),
    "529": refuses(529, {"error": {"message": "overloaded"}}),
    "200, an error": refuses(200, {"error": {"message": "overloaded", "code": 429}}),
}
PASSING_STREAMS: dict[str, Fault] = {
    **{f"over too early: {where}": cut(where, "end") for where in WHERE},
    "[DONE] too early": edited(done_too_early),
    "an error first": fails_at(0),
    "an error in the middle": fails_at(3),
    "no finish reason": ended(None),
    "an empty finish reason": ended(""),
}


def rare(name: str, engine: Engine) -> list[pytest.MarkDecorator]:
    """An ordinary run lets the connection break at one engine, and has each protocol say that something is wrong."""
    return [pytest.mark.extended] if name.startswith("over too early") and engine != ALL[0] else []


@pytest.mark.parametrize("engine", partly(ALL))
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", PASSING)
async def test_what_passes(name: str, role: Role, engine: Engine) -> None:
    await play(engine, role, PASSING[name], RIGHT, times=1)


@pytest.mark.parametrize(
    ("name", "engine"), [pytest.param(*case, marks=rare(*case)) for case in product(PASSING_STREAMS, ALL)]
)
async def test_what_passes_in_a_stream(name: str, engine: Engine) -> None:
    await play(engine, "draft", PASSING_STREAMS[name], RIGHT, times=1)


@pytest.mark.parametrize(("header", "waited"), [("retry-after: 3", 3.0), ("retry-after-ms: 70", 0.07)])
async def test_how_long_is_waited(header: str, waited: float, fast: list[float]) -> None:
    async with stage("vllm") as here:
        here.servers["draft"].cue(refuses(429, None, header), "draft", times=2)
        await here.fused()
        assert fast[:2] == [waited, waited]


async def test_a_server_that_loads_for_long(fast: list[float]) -> None:
    async with stage("llama.cpp", learned=False) as here:
        loading = refuses(503, {"error": {"message": "Loading model", "code": 503}})
        here.servers["draft"].cue(loading, lambda _: True, times=20)
        assert await here.fused() == await sane("llama.cpp", None)
        assert here.servers["draft"].struck == 20


# What lasts.

UNREADABLE = Fails(
    ResponseError, r"answered with a web page \(Welcome\) instead of ", status=200, hint="Is this the URL of the API?"
)
ENDED = Fails(ResponseError, "the stream ended before the answer did", retryable=True)
BROKE = Fails(ResponseError, "the connection broke in the middle of the answer", retryable=True)
HALF = Fails(ResponseError, r"the answer is not whole JSON \(\d+ characters of application/json\)", status=200)
ENDLESS = Fails(ResponseError, "the answer is longer than 64 MB", status=200)
GONE = Fails(ConnectError, "the server closed the connection without an answer", retryable=True)
NO_HTTP = Fails(ConnectError, "the answer is not valid HTTP", retryable=True, hint="as long as its Content-Length?")
SLOW_DOWN = Fails(RateLimitError, "429: slow down", retryable=True, status=429)
IN_VAIN = Fails(
    RateLimitError, "429: slow down; the server asks to wait 900 s, which is more", retryable=True, status=429
)
NO_FIELD = Fails(InvalidRequestError, "400: no such field", status=400)
NO_MEMORY = Fails(ServerError, "500: CUDA out of memory", retryable=True, status=500)
BUSY = Fails(ServerError, "503: busy", retryable=True, status=503)
LOST = Fails(ResponseError, ".* no usable probability: its logarithm is (nan|missing)$", hint="Does the model compute")
NO_KEY = Fails(AuthenticationError, r"401: \*\*\* is no key", status=401, hint="The key was refused.")
ZERO = Fails(ResponseError, ".* no usable probability: its logarithm is -inf$", hint="Does the model compute")
CLAMPED = Fails(ResponseError, ".* no usable probability: its logarithm is -9999$", hint="next to impossible")


def untold(value: float | None) -> Fault:
    """Every token, the server's own too, has this logarithm."""

    def change(name: str, old: Any) -> Any:
        if name == "logprob":
            return value
        if name == "token_logprobs" and old:
            return [value] * len(old)
        if name == "top_logprobs" and isinstance(old, list):
            return [top if not top or "logprob" in top else dict.fromkeys(top, value) for top in old]
        return old

    return edited(values(change))


PROTOCOL = {"200, an error", "200, errors", "400, a list", "429, for long", "NaN", "null", "-inf", "-9999"}
"""Faults that each protocol words in its own way: played to each engine, where those of the transport strike one."""

LASTING: dict[str, tuple[Fault, Fails]] = {
    "a page": (page(), UNREADABLE),
    "no answer": (hangs_up(), GONE),
    "lost at the start": (cut("start", "lost"), BROKE),
    "429": (refuses(429, {"error": {"message": "slow down"}}), SLOW_DOWN),
    "503": (refuses(503, {"error": {"message": "busy"}}), BUSY),
    "429, for long": (refuses(429, {"error": {"message": "slow down"}}, "retry-after: 900"), IN_VAIN),
    "400, a list": (refuses(400, [{"error": {"code": 400, "message": "no such field"}}]), NO_FIELD),
    "200, an error": (fails_at(0), NO_MEMORY),
    "200, errors": (refuses(200, {"errors": [{"code": 400, "message": "no such field"}], "code": 400}), NO_FIELD),
    "401": (refuses(401, {"error": {"message": f"{KEY} is no key"}}), NO_KEY),
    "NaN": (untold(math.nan), LOST),
    "null": (untold(None), LOST),
    "-inf": (untold(-math.inf), ZERO),
    "-9999": (untold(-9999.0), CLAMPED),
}
LASTS = list(product(LASTING, ROLES, ALL))


def marks(name: str, role: Role, engine: Engine) -> list[pytest.MarkDecorator]:
    """An ordinary run plays to one engine what is a fault of the transport, or is read as another fault is."""
    return [] if name in PROTOCOL - {"null", "-9999"} or engine == ALL[0] else [pytest.mark.extended]


@pytest.mark.parametrize(("name", "role", "engine"), [pytest.param(*case, marks=marks(*case)) for case in LASTS])
async def test_what_lasts(name: str, role: Role, engine: Engine) -> None:
    fault, expected = LASTING[name]
    await play(engine, role, fault, expected)


@pytest.mark.parametrize(
    ("role", "engine"),
    [
        ("draft", "llama.cpp"),
        ("ask", "vllm"),
        pytest.param("ask", "tgi", marks=pytest.mark.extended),
    ],
)
async def test_an_answer_without_end(role: Role, engine: Engine) -> None:
    await play(engine, role, endless(b'"aaaaaaaaaaaaaaa' * 4096), ENDLESS)


@pytest.mark.parametrize("engine", ALL)
async def test_a_stream_without_events(engine: Engine) -> None:
    """A server of an unknown kind is asked for a whole answer: some end a stream in this way to refuse a request."""
    await play(engine, "draft", cut("start", "end"), RIGHT if engine == "openai" else ENDED)


@pytest.mark.parametrize("engine", partly(["llama.cpp", "vllm", "openai"]))
@pytest.mark.parametrize(
    ("fault", "expected"),
    [(cut("start", "end"), HALF), (cut("event", "end"), HALF), (misjudged(5), BROKE)],
    ids=["empty", "half", "less than it says"],
)
async def test_what_lasts_in_an_answer(fault: Fault, expected: Fails, engine: Engine) -> None:
    await play(engine, "ask", fault, expected)


@pytest.mark.parametrize("engine", partly(["llama.cpp", "vllm", "openai"]))
async def test_an_answer_of_more_bytes_than_it_says(engine: Engine, each_stack: str) -> None:
    """All in one packet: httpx leaves the rest out, aiohttp takes nothing of it."""
    await play(engine, "ask", misjudged(-5), HALF if each_stack == "httpx" else NO_HTTP)


@pytest.mark.parametrize("engine", ALL)
@pytest.mark.parametrize("how", partly(["lost", "end"]))
async def test_a_stream_that_breaks_again_and_again(how: str, engine: Engine) -> None:
    """There is something new in each attempt: the draft comes together piece by piece."""
    await play(engine, "draft", cut("between", how), RIGHT)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("reason", partly(["", None]))
async def test_no_finish_reason_ever(reason: str | None, role: Role) -> None:
    """llama.cpp has another field for the end, and answers in one piece are over where they are over."""
    stopped = Fails(ResponseError, "the server stopped without a token and without a reason", retryable=True)
    drafts: dict[Engine, Expected] = {"llama.cpp": RIGHT, "vllm": ENDED, "tgi": stopped, "openai": ENDED}
    for engine in ALL:
        await play(engine, role, ended(reason), drafts[engine] if role == "draft" else RIGHT)


@pytest.mark.parametrize("engine", ALL)
@pytest.mark.parametrize("role", ROLES)
async def test_logits_are_no_log_probabilities(role: Role, engine: Engine) -> None:
    """The remedy fits the server: only vLLM has a mode of its own for them."""
    words = "the answer is not as expected: .*: the logarithm of a probability is 12.5, which is above 0$"
    hint = (
        "Start it with --logprobs-mode raw_logprobs." if engine == "vllm" else "Is there a setting by which the server"
    )
    await play(engine, role, untold(12.5), Fails(ResponseError, words, hint=hint))


@pytest.mark.parametrize("engine", ["vllm", "tgi", "openai"])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("reason", ["abort", "error"])
async def test_an_answer_that_is_broken_off_is_asked_for_again(reason: str, role: Role, engine: Engine) -> None:
    await play(engine, role, breaks_off(reason), RIGHT, times=1)
    words = rf"the server broke the answer off \(finish reason '{reason}'\)"
    await play(engine, role, breaks_off(reason), Fails(ResponseError, words, True, 200, "Its log may say why."))


@pytest.mark.parametrize("role", ROLES)
async def test_why_an_answer_is_broken_off(role: Role) -> None:
    fault = breaks_off("error", f"{KEY} " + "is overloaded" * 99)
    words = r"the server broke the answer off \(finish reason 'error'\): \*\*\* is overloaded.{250,285}( \(|$)"
    await play("openai", role, fault, Fails(ResponseError, words, True, 200, "Its log may say why."))


UNTOLD: dict[Engine, Fails] = {
    "llama.cpp": Fails(
        UnsupportedError,
        r"the server gives no probabilities .* although asked \(n_probs\)",
        hint="is there a proxy before it",
    ),
    "vllm": Fails(UnsupportedError, r"the server gives no probabilities .* although asked \(logprobs\)"),
    "openai": Fails(
        UnsupportedError,
        r"the server gives no probabilities .* although asked \(logprobs\)",
        hint="Not every server, model and route has them",
    ),
}


@pytest.mark.parametrize("engine", UNTOLD)
@pytest.mark.parametrize("role", ROLES)
async def test_no_probabilities_although_asked(role: Role, engine: Engine) -> None:
    names = ("logprobs", "completion_probabilities")
    fault = edited(values(lambda name, old: None if name in names else old))
    await play(engine, role, fault, UNTOLD[engine])


@pytest.mark.parametrize("engine", partly(ALL))
@pytest.mark.parametrize("role", ROLES)
async def test_the_key_does_not_follow_a_redirect(role: Role, engine: Engine) -> None:
    async with nothing_left(), serve(handle(engine, "draft")) as [other]:
        expected = Fails(StatusError, f"the server redirects to {other.url}; give that URL", status=307)
        await play(engine, role, redirects(other.url), expected)
        assert other.requests == []


LONGER = "A longer wait may help: connect(..., timeout=...), or --read-timeout."
SILENT = Fails(ProviderTimeoutError, r"no answer within (1|0\.5) s", retryable=True, hint=LONGER)
STOPPED = Fails(
    ProviderTimeoutError,
    r"the answer stopped: nothing more within (1|0\.5) s",
    retryable=True,
    hint=LONGER,
)


@pytest.mark.parametrize(("engines", "patience"), [(ALL[:1], 0.5), pytest.param(ALL, 1, marks=pytest.mark.extended)])
async def test_servers_that_never_answer(engines: Sequence[Engine], patience: float) -> None:
    """All of them at once, since they are waited for. One that answers at last is right."""
    cases: list[tuple[Role, Fault, Expected, float]] = [
        *(("draft", hangs(), SILENT, ALWAYS), ("ask", hangs(), SILENT, ALWAYS)),
        *(("draft", cut("start", "hang"), STOPPED, ALWAYS), ("ask", cut("event", "hang"), RIGHT, 1)),
        *(("draft", cut("between", "hang"), RIGHT, 1), ("draft", hangs(), RIGHT, 1)),
    ]
    impatient = httpx.Timeout(30.0, read=patience)
    for engine in engines:
        for role in (*ROLES, None):
            await sane(engine, role)
    async with nothing_left(), anyio.create_task_group() as group:
        for engine in engines:
            for role, fault, expected, times in cases:
                strike = partial(play, engine, role, fault, expected, times, patience=impatient, alone=False)
                group.start_soon(strike)


@pytest.mark.parametrize("engine", partly(ALL))
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("piece", [b": wait\n\n", b"data: null\n\n", b" "])
async def test_a_server_that_is_alive_and_says_nothing(piece: bytes, role: Role, engine: Engine) -> None:
    """Servers show so that a request waits its turn, for many minutes perhaps: only the caller knows how long is too
    long. Whoever stops waiting leaves nothing behind.
    """
    async with stage(engine, 0.5) as here:
        here.servers[role].cue(dawdles(piece), role)
        for ask in (partial(here.alone, role), here.fused):
            before, over = here.servers[role].struck, list[object]()

            async def asked(ask: Callable[[], Awaitable[object]] = ask, over: list[object] = over) -> None:
                over.append(await ask())

            async with anyio.create_task_group() as group:
                group.start_soon(asked)
                while here.servers[role].struck == before:  # noqa: ASYNC110 - the server only counts
                    await anyio.sleep(0.005)
                await anyio.sleep(0.02)
                group.cancel_scope.cancel()
            assert not over


@pytest.mark.parametrize("engine", partly(ALL))
@pytest.mark.parametrize("role", ROLES)
async def test_the_time_of_an_answer_bounds_a_body_that_never_ends(role: Role, engine: Engine) -> None:
    async with stage(engine) as here:
        here.servers[role].cue(dawdles(b" "), role)
        with pytest.raises(BudgetTimeoutError, match=r"took longer than|had not said") as caught:
            await here.fusion.generate(PROMPT, max_tokens=40, timeout=0.5)
        assert caught.value.limit == "timeout"


@pytest.mark.parametrize("engine", partly(ALL))
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("fault", "words", "status"),
    [
        (refuses(429, {"error": {"message": "slow down"}}, "retry-after: 0.1"), "429: slow down", 429),
        (hangs_up(), "the server closed the connection without an answer", None),
        pytest.param(
            *(refuses(503, {"error": {"message": "Loading model"}}), "503: Loading model", 503),
            marks=pytest.mark.extended,
        ),
    ],
    ids=["limited", "gone", "loading"],
)
async def test_a_time_limit_hides_no_failure(
    fault: Fault, words: str, status: int | None, known: bool, engine: Engine
) -> None:
    """The server refuses, and does not answer the retry in time."""
    async with stage(engine, learned=known) as here:
        server = here.servers["ask"]
        at: Any = "ask" if known else lambda _: True
        for on_budget in ("raise", "end") if known else ("raise",):
            server.cues.clear()
            server.cue(fault, at, times=1)
            server.cue(hangs(), at)
            asked = here.fusion.generate(PROMPT, max_tokens=40, timeout=0.5, on_budget=on_budget)
            whole = f"timeout=0.5 seconds.*; the last failure was {server.url}: {words}"
            if on_budget == "end":
                assert any(re.search(whole, warning) for warning in (await asked).warnings)
                continue
            with pytest.raises(BudgetTimeoutError, match=whole) as caught:
                await asked
            error, cause = caught.value, caught.value.__cause__
            assert isinstance(cause, ProviderError)
            assert (error.limit, error.status, error.retryable) == ("timeout", status, True)
            assert (cause.endpoint, cause.status, error.retry_after) == (server.url, status, cause.retry_after)
            keep(str(error))


async def test_a_time_limit_names_no_failure_that_is_over() -> None:
    async with stage("llama.cpp") as here:
        server = here.servers["ask"]
        server.cue(refuses(429), "ask", times=1)
        server.cue(no_fault, "ask", times=1)
        server.cue(hangs(), "ask")
        with pytest.raises(BudgetTimeoutError) as caught:
            await here.fusion.generate(PROMPT, max_tokens=40, timeout=0.5)
        assert "failure" not in str(caught.value)
        assert (caught.value.status, caught.value.__cause__, server.struck > 2) == (None, None, True)


async def test_whoever_waits_for_the_discovery_by_another_answer_learns_of_its_failure() -> None:
    """The first answer has more time; the second one times out while the first discovers the servers."""
    async with stage("llama.cpp", learned=False) as here:
        server, found = here.servers["draft"], list[BudgetTimeoutError]()
        server.cue(refuses(503, {"error": {"message": "Loading model"}}), lambda _: True, times=1)
        server.cue(hangs(), lambda _: True)

        async def ask(seconds: float) -> None:
            with pytest.raises(BudgetTimeoutError) as caught:
                await here.fusion.generate(PROMPT, timeout=seconds)
            found.append(caught.value)

        async with anyio.create_task_group() as group:
            group.start_soon(ask, 0.7)
            group.start_soon(ask, 0.5)
        words = f"timeout=0.5 seconds, so there is no text yet; the last failure was {server.url}: 503: Loading model"
        assert words in str(found[0])
        assert found[0].status == found[1].status == 503


# Before a server is known.

NOT_IT: dict[Engine, Fails] = {
    "llama.cpp": Fails(
        UnsupportedError, "this does not look like a llama.cpp server", hint="Give the URL of `llama-server`"
    ),
    "vllm": Fails(UnsupportedError, "this does not look like vLLM", hint="Give the URL of `vllm serve`"),
    "tgi": Fails(UnsupportedError, "this does not look like TGI", hint="Give the URL of the server, without /v1"),
    "openai": UNREADABLE,
}


@pytest.mark.parametrize("engine", ALL)
@pytest.mark.parametrize("role", ROLES)
async def test_another_server(role: Role, engine: Engine) -> None:
    async with stage(engine, learned=False) as here:
        server = here.servers[role]
        server.cue(page(), lambda _: True)
        for ask in (here.providers[role].describe, here.fused):
            with pytest.raises(ProviderError) as caught:
                await ask()
            NOT_IT[engine].check(caught.value, server.url)


@pytest.mark.parametrize("engine", partly(ALL, 2))
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (refuses(401, {"error": {"message": f"{KEY} is no key"}}), NO_KEY),
        (hangs_up(), GONE),
        (cut("between", "lost"), BROKE),
        (refuses(503, {"error": {"message": "busy"}}), BUSY),
    ],
    ids=["401", "no answer", "lost", "busy"],
)
async def test_a_server_that_cannot_be_asked_what_it_is(fault: Fault, expected: Fails, engine: Engine) -> None:
    async with stage(engine, learned=False) as here:
        server = here.servers["ask"]
        server.cue(fault, lambda _: True)
        with pytest.raises(ProviderError) as caught:
            await here.fused()
        expected.check(caught.value, server.url)
        server.cues.clear()
        assert await here.fused() == await sane(engine, None)  # what went wrong is not remembered


# Very many at once.

ANYTHING: tuple[Fault, ...] = (
    *(fault for name, fault in HARMLESS.items() if "10 MB" not in name and "byte" not in name),
    *PASSING.values(),
    *PASSING_STREAMS.values(),
    *(fault for name, (fault, _) in LASTING.items()),
    *(edited(twice), misjudged(-5), redirects("http://127.0.0.1:9")),
)


def at_random(seed: int, share: float) -> Fault:
    """Of all requests such a share meets a fault. Which does, and which fault, does not depend on what came before."""
    seen: Counter[str] = Counter()

    async def fault(exchange: Exchange) -> None:
        asked = f"{exchange.path} {exchange.body}"
        seen[asked] += 1
        dice = random.Random(f"{seed} {asked} {seen[asked]}")
        await (dice.choice(ANYTHING) if dice.random() < share else edited())(exchange)

    return fault


@pytest.mark.extended
@pytest.mark.parametrize("seed", [1])
async def test_two_hundred_fusions_on_faulty_servers(seed: int) -> None:
    """Each one is right, or fails with an error of an endpoint; none is lost, none hangs, and nothing is left open."""
    ended: list[str | ProviderError] = []

    async def fuse(fusion: Fusion) -> None:
        try:
            ended.append((await fusion.generate(PROMPT, max_tokens=40)).text)
        except ProviderError as error:
            ended.append(error)

    sane_servers = [handle(engine, role) for role in ROLES for engine in ALL]
    async with nothing_left(), serve(*sane_servers) as servers, AsyncExitStack() as stack:
        for server in servers:
            server.cue(at_random(seed, 0.08), lambda _: True)
        pairs = [(n, m) for n in range(len(ALL)) for m in range(len(ALL))]
        fusions = [
            await stack.enter_async_context(
                Fusion(
                    draft=provider(ALL[n], servers[n].url, patience=30.0),
                    assistant=provider(ALL[m], servers[len(ALL) + m].url, patience=30.0),
                )
            )
            for n, m in pairs
        ]
        with anyio.fail_after(110):
            async with anyio.create_task_group() as group:
                for number in range(200):
                    group.start_soon(fuse, fusions[number % len(fusions)])
        failed = [one for one in ended if isinstance(one, ProviderError)]
        assert len(ended) == 200
        assert {one for one in ended if isinstance(one, str)} == {ANSWER}
        assert {error.endpoint for error in failed} <= {server.url for server in servers}
        assert 0 < len(failed) < 150
        keep(*map(str, failed), *map(repr, failed))
