"""An attack on the gateway: aborts, killed and stopped servers, hostile requests, SIGTERM under load, a full disk.

`cosd serve` runs in a process of its own in front of two real llama.cpp servers, whose models have 32-bit weights. A
stream is *lost* if it neither completed, nor ended in an error, nor was aborted by the attack. Either model may write
on alone, so no answer may end in an error while the gateway runs. A text is *wrong* if it differs from the answer to
the same request sent alone, unless a decision in the first differing word is so close that rounding in a server can
change it, or the answer has unverified tokens and one model alone writes on like this. A resource is *leaked* if it is
still held after the load but was not held before the load. The command exits with status 1 if anything was lost, wrong
or leaked.
"""

from __future__ import annotations

import json
import math
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import anyio
import httpx

from benchmarks.attacked import KEY, Attacked, ModelServer, attacked, environment
from benchmarks.door import LOST, attack_the_door, watch
from benchmarks.hostile import HOSTILE, STALLED, Met
from benchmarks.report import Cell, Options, Table
from cosd_api import RuleVerifier
from cosd_api.apps.demo.questions import as_prompt, sample

__all__ = ["run"]

_ABORTED = 5  # one stream in five is aborted
_HANG = 75.0  # seconds after which a stream is lost; the gateway's own limit is 60
_SETTLE = 3.0  # seconds for which a fault counts after the server is back
_CLOSE = 1e-2  # a decision with a smaller margin in probability is close, as in the tests on live servers
_MAX_TOKENS = 64
_KEPT = 8  # connections and threads that may remain, for example those of probes; leaking aborts would leave many more
_MEMORY = 200.0  # MB that may stay allocated after the largest request bodies
_LINES = 60  # number of lines in the input of `cosd batch`
_DISK = 16_384  # number of bytes after which the simulated disk is full
_NOT_READY = 503
_COMPLETE = ("whole", "tie", "seam")


@dataclass(frozen=True)
class Plan:
    """The extent of the attack.

    Attributes:
        seconds: duration of the load.
        streams: number of concurrent streams.
        stopped: seconds for which a server is stopped.
    """

    seconds: float
    streams: int
    stopped: float


_FULL, _QUICK = Plan(120, 64, 8), Plan(28, 16, 2)


@dataclass(frozen=True)
class Request:
    """A request with a text to continue, or with a conversation."""

    content: str
    chat: bool

    @property
    def path(self) -> str:
        """The request's route."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, *, stream: bool) -> dict[str, Any]:
        """The request's body."""
        asked: dict[str, Any] = {"prompt": as_prompt(self.content)}
        if self.chat:
            asked = {"messages": [{"role": "user", "content": self.content}]}
        return {"model": "cosd", **asked, "max_tokens": _MAX_TOKENS, "stream": stream}

    def text(self, choice: Mapping[str, Any]) -> str:
        """The text of a choice in an answer, or of the part of a choice in a streamed event."""
        if self.chat:
            return choice.get("delta", choice.get("message", {})).get("content") or ""
        return str(choice.get("text") or "")


@dataclass
class Streamed:
    """One stream as its client saw it; `outcome` says how the stream ended."""

    request: Request
    began: float
    outcome: str = "lost"
    words: str = ""
    text: str = ""
    unverified: int = 0
    first: float | None = None
    ended: float = 0.0


@dataclass
class Attack:
    """Everything observed during an attack.

    Attributes:
        expected: the text of each request when it was sent alone.
        streams: every stream.
        faults: the name, beginning and end of each fault.
        met: the answers to hostile requests, by the name of the request.
        health: seconds that each request to `/health` took.
    """

    on: Attacked
    plan: Plan
    client: httpx.AsyncClient
    expected: dict[Request, str] = field(default_factory=dict[Request, str])
    streams: list[Streamed] = field(default_factory=list[Streamed])
    faults: list[tuple[str, float, float]] = field(default_factory=list[tuple[str, float, float]])
    met: dict[str, Met] = field(default_factory=dict[str, Met])
    health: list[float] = field(default_factory=list[float])

    def fault_of(self, one: Streamed) -> str | None:
        """The last fault that overlaps a stream."""
        names = [name for name, begin, end in self.faults if one.began < end and one.ended > begin]
        return names[-1] if names else None


async def run(options: Options) -> list[Table]:
    """Attack the gateway, and report the outcome."""
    plan = _QUICK if options.quick else _FULL
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept)
        async with attacked(folder) as on, _client(on) as client:
            attack = Attack(on, plan, client)
            await _ask_alone(attack)
            options.say(f"attack: {plan.streams} streams for {plan.seconds:g} s")
            await _load(attack, 3, faulty=False)  # a warm-up: connections and caches are allocated before counting
            attack.streams.clear()
            before = await _settled(on, {})
            await _load(attack, plan.seconds, faulty=True)
            after = await _settled(on, before)
            options.say("attack: a full disk for a batch")
            disk = await _full_disk(attack, folder)
            options.say("attack: stopped under load")
            stopped = await _stop(attack)
        wrong = [one for one in attack.streams if one.outcome == "wrong"]
        tables = [_outcomes(attack), _held(before, after), _hostile(attack), _slowest(attack), disk, stopped]
    tables += await attack_the_door(options)
    if wrong:
        options.say(
            "wrong: " + json.dumps([wrong[0].request.content, attack.expected[wrong[0].request], wrong[0].text])
        )
    return tables


def _client(on: Attacked) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)  # a new connection for each request
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx.AsyncClient(base_url=on.url, headers=headers, timeout=_HANG, limits=limits, trust_env=False)


async def _ask_alone(attack: Attack) -> None:
    for number, question in enumerate(sample("mixed", 24, seed=5)):
        content = question.prompt.removeprefix("Q: ").removesuffix("\nA:")
        request = Request(content, chat=number % 2 == 1)
        answer = await attack.client.post(request.path, json=request.body(stream=False))
        attack.expected[request] = request.text(answer.raise_for_status().json()["choices"][0])


# The load.


async def _load(attack: Attack, seconds: float, *, faulty: bool) -> None:
    """Run streams together with faults and hostile requests; wait until the last streams have ended."""
    over = anyio.Event()
    async with anyio.create_task_group() as group:
        for number in range(attack.plan.streams):
            group.start_soon(_visit_until, attack, over, random.Random(number))
        if faulty:
            group.start_soon(watch, attack.on, attack.health, over)
            group.start_soon(_be_hostile, attack, over)
            for one in STALLED * 4:
                group.start_soon(one.send, attack.on.port, attack.met.setdefault(one.name, Met()))
            await _fault(attack, seconds)
        else:
            await anyio.sleep(seconds)
        over.set()
    await _judge(attack)


async def _visit_until(attack: Attack, over: anyio.Event, draw: random.Random) -> None:
    requests = [*attack.expected]
    while not over.is_set():
        events = draw.randrange(8) if draw.randrange(_ABORTED) == 0 else None
        streamed = await _visit(attack, draw.choice(requests), events)
        if streamed.outcome in {"refused", "error"}:
            await anyio.sleep(0.25)  # clients wait before they retry


async def _visit(attack: Attack, request: Request, abort_after: int | None) -> Streamed:
    """Read one stream, and abort it after `abort_after` events if a number is given."""
    one = Streamed(request, time.monotonic())
    attack.streams.append(one)
    try:
        with anyio.move_on_after(_HANG):
            async with attack.client.stream("POST", request.path, json=request.body(stream=True)) as response:
                if response.is_success:
                    await _read(one, response, abort_after)
                else:
                    one.words = json.loads(await response.aread())["error"]["message"]
                    one.outcome = "error"
    except httpx.ConnectError:
        one.outcome = "refused"
    except (httpx.HTTPError, ValueError, KeyError) as error:
        one.words = repr(error)
    one.ended = time.monotonic()
    return one


async def _read(one: Streamed, response: httpx.Response, abort_after: int | None) -> None:
    count, reason = 0, None
    async with aclosing(response.aiter_lines()) as lines:  # type: ignore[type-var]
        async for line in lines:
            if abort_after is not None and count >= abort_after:
                one.outcome = "aborted"
                return
            if line == "data: [DONE]":
                one.outcome = "whole" if reason else "lost"
                return
            if not line.startswith("data: "):  # an empty line, or a comment
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                one.words, one.outcome = event["error"]["message"], "error"
                return
            count += 1
            one.unverified += event.get("cosd", {}).get("unverified_tokens", 0)
            for choice in event["choices"]:
                part = one.request.text(choice)
                one.text += part
                reason = choice["finish_reason"]
                if part and one.first is None:
                    one.first = time.monotonic() - one.began


async def _judge(attack: Attack) -> None:
    """Judge the texts that differ from the answers to the same requests sent alone."""
    known = dict[tuple[Request, str, bool], str]()
    for one in attack.streams:
        expected, case = attack.expected[one.request], (one.request, one.text, one.unverified > 0)
        if one.outcome == "whole" and one.text != expected:
            if case not in known:
                right, excuse = (_survived, "seam") if one.unverified else (_close, "tie")
                known[case] = excuse if await right(attack, one.request, (one.text, expected)) else "wrong"
            one.outcome = known[case]


def _common(texts: tuple[str, str]) -> str:
    return "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))


async def _survived(attack: Attack, request: Request, texts: tuple[str, str]) -> bool:
    """True if a text differs from the expected one as one of the models alone would write on."""
    common = _common(texts)
    for at in {max(common.rfind(" "), 0), len(common)}:
        rest = texts[0][at:]
        for server in (attack.on.draft, attack.on.assistant):
            alone = (await _completed(server, request, texts[0][:at], n_predict=6))["content"]
            size = min(len(rest), len(alone))
            if rest[:size] == alone[:size] and (size or rest == alone):
                return True
    return False


async def _close(attack: Attack, request: Request, texts: tuple[str, str]) -> bool:
    """True if a decision in the first differing word is close, between two tokens or at a bound of the rule."""
    common = _common(texts)
    rule = RuleVerifier()
    for at in range(max(common.rfind(" "), 0), len(common) + 1):
        (p, second), (q, other) = [
            await _two_best(server, request, common[:at]) for server in (attack.on.draft, attack.on.assistant)
        ]
        margins = (p - second, q - other, abs(p - rule.alpha), abs(q - rule.beta * p))
        if min(margins) < _CLOSE:
            return True
    return False


async def _two_best(server: ModelServer, request: Request, begun: str) -> tuple[float, float]:
    found = (await _completed(server, request, begun, n_predict=1, n_probs=2))["completion_probabilities"][0]
    first, second = (math.exp(one["logprob"]) for one in found["top_logprobs"])
    return first, second


async def _completed(server: ModelServer, request: Request, begun: str, **options: int) -> dict[str, Any]:
    asked = request.body(stream=False)
    async with httpx.AsyncClient(base_url=server.url, timeout=_HANG, trust_env=False) as client:
        if request.chat:
            asked = (await client.post("/apply-template", json=asked)).json()
        body = {"prompt": asked["prompt"] + begun, "temperature": -1, **options}
        return dict((await client.post("/completion", json=body)).json())


async def _fault(attack: Attack, seconds: float) -> None:
    """Kill each server once, until an answer has outlived it; then stop each server once. Each fault has a quarter."""
    servers = {"draft": attack.on.draft, "assistant": attack.on.assistant}
    turns = [(f"{name} {what}", server) for what in ("killed", "stopped") for name, server in servers.items()]
    quarter = seconds / len(turns)
    for at, (name, server) in enumerate(turns):
        await anyio.sleep(quarter / 4)
        began = time.monotonic()
        attack.faults.append((name, began, math.inf))
        if name.endswith("killed"):
            server.signal(signal.SIGKILL)
            for _ in range(600):  # a minute at most
                await anyio.sleep(0.1)
                ended = [one for one in attack.streams if one.outcome == "whole" and one.ended > began]
                if any(one.unverified for one in ended):
                    break
            await server.start()
        else:
            server.signal(signal.SIGSTOP)
            await anyio.sleep(attack.plan.stopped)
            server.signal(signal.SIGCONT)
            await server.healthy()
        attack.faults[at] = name, began, time.monotonic() + _SETTLE
        await anyio.sleep(max(_SETTLE, began + 0.75 * quarter - time.monotonic()))


async def _be_hostile(attack: Attack, over: anyio.Event) -> None:
    """Send every kind of hostile request, repeatedly until `over` is set, but each kind at least once."""
    first = True
    while first or not over.is_set():
        for one in HOSTILE:
            if first or not over.is_set():
                await one.send(attack.on.port, attack.met.setdefault(one.name, Met()))
        first = False


async def _settled(on: Attacked, before: Mapping[str, float]) -> dict[str, float]:
    """Wait until nothing is leaked, for at most half a minute; return the resources that gateway and servers hold."""
    found = await on.held()
    for _ in range(30):
        if not _leaks(before, found) and not found["busy slots"]:
            break
        await anyio.sleep(1)
        found = await on.held()
    return found


def _leaks(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    found = [name for name in ("requests in flight", "busy slots") if after[name]]
    kept = {"descriptors": _KEPT, "threads": _KEPT}
    found += [name for name in kept if after.get(name, 0) > before.get(name, math.inf) + kept[name]]
    memory = "memory, MB"
    return found + [memory] * (after.get(memory, 0) > before.get(memory, math.inf) + _MEMORY)


# The end.


async def _stop(attack: Attack) -> Table:
    """Send SIGTERM under load. The draft's server is suspended, so some streams are unfinished at their time limit."""
    on, limits = attack.on, attack.on.limits
    attack.streams, kept = [], attack.streams
    states = list[int]()
    took = math.nan
    async with anyio.create_task_group() as group:
        over = anyio.Event()
        for number in range(attack.plan.streams):
            group.start_soon(_visit_until, attack, over, random.Random(-number))
        await anyio.sleep(1)
        began = time.monotonic()
        on.process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(limits["drain_seconds"]):
            ready = 0
            while ready != _NOT_READY:
                ready = (await attack.client.get("/ready")).status_code
            states = [ready, (await attack.client.get("/health")).status_code]
        on.draft.signal(signal.SIGSTOP)
        with anyio.move_on_after(limits["drain_seconds"] + limits["stop_seconds"] + 10):
            await anyio.to_thread.run_sync(on.process.wait, abandon_on_cancel=True)
            took = time.monotonic() - began
        over.set()
        on.draft.signal(signal.SIGCONT)
    await _judge(attack)
    refusing = began + limits["drain_seconds"] - 0.5
    for one in attack.streams:
        if one.outcome == "lost" and not one.text and one.began > refusing:
            one.outcome = "refused"  # the connection was established, but the gateway never accepted it
    ends = Counter(one.outcome for one in attack.streams)
    early = sum(one.outcome == "refused" and one.began < refusing for one in attack.streams)
    lost, wrong = ends["lost"] + early, ends["wrong"]
    status = on.process.poll()
    failures = ["lost at the stop"] * bool(lost) + ["wrong at the stop"] * bool(wrong)
    failures += [] if status == 0 else [f"the stopped gateway ended with {status}"]
    failures += [] if states == [_NOT_READY, 200] else [f"/ready and /health of a draining gateway: {states}"]
    failures += [] if ends["error"] else ["no stream was in progress when the gateway's time was over"]
    attack.streams = kept
    columns = [
        "requests",
        "complete",
        "aborted",
        "error message",
        "refused later",
        "lost",
        "wrong",
        "seconds until exit",
    ]
    row: list[Cell] = [sum(ends.values()), sum(ends[one] for one in _COMPLETE), ends["aborted"], ends["error"]]
    row += [ends["refused"] - early, lost, wrong, took]
    note = (
        f"The gateway receives SIGTERM under load. It has {limits['drain_seconds']:g} s to drain, and then "
        f"{limits['stop_seconds']:g} s to finish requests in progress, while the draft's server is suspended."
    )
    return Table("A gateway that is stopped", columns, [row], [note], {"failures": failures})


async def _full_disk(attack: Attack, folder: Path) -> Table:
    """Run `cosd batch` with a limit on the size of its files, then resume it without the limit."""
    requests = [request for request in attack.expected if not request.chat]
    asked = {f"line-{at}": requests[at % len(requests)] for at in range(_LINES)}
    lines = [
        {"custom_id": name, "prompt": as_prompt(one.content), "max_tokens": _MAX_TOKENS} for name, one in asked.items()
    ]
    (folder / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    servers = ["--draft", attack.on.draft.url, "--assistant", attack.on.assistant.url]
    command = [sys.executable, "-m", "cosd_api", "batch", "in.jsonl", "-o", "out.jsonl", *servers]
    ask = partial(subprocess.run, command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    small = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (_DISK, _DISK))
    full = await anyio.to_thread.run_sync(partial(ask, preexec_fn=small))
    kept = _written(folder / "out.jsonl")
    resumed = await anyio.to_thread.run_sync(ask)
    found = _written(folder / "out.jsonl")
    ids = [one["custom_id"] for one in found]
    texts = {one["custom_id"]: one["text"] for one in found}
    lost = len(set(asked) - set(ids)) + sum(one not in found for one in kept)
    wrong = 0
    for name, request in asked.items():
        expected = attack.expected[request]
        if name in texts and texts[name] != expected:
            wrong += not await _close(attack, request, (texts[name], expected))
    said = full.stderr.strip().rpartition("\n")[2]
    failures = [] if (full.returncode, resumed.returncode) == (1, 0) else [f"cosd batch: {full.stderr}{resumed.stderr}"]
    failures += [] if 0 < len(kept) < _LINES and len(ids) == len(set(ids)) else [f"{len(kept)} lines were kept"]
    failures += ["Traceback"] * ("Traceback" in full.stderr) + ["lost in a batch"] * bool(lost)
    failures += ["wrong in a batch"] * bool(wrong)
    columns = ["lines", "kept by the full disk", "status", "resumed", "status ", "lost", "twice", "wrong"]
    row: list[Cell] = [_LINES, len(kept), full.returncode, len(found), resumed.returncode, lost]
    row += [len(ids) - len(set(ids)), wrong]
    return Table("A batch on a full disk", columns, [row], [f"The command printed: {said}"], {"failures": failures})


def _written(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


# The tables.


def _outcomes(attack: Attack) -> Table:
    columns = ["", "requests", "complete", "with a tie", "unverified tokens", "aborted", "error", "lost", "wrong"]
    names = dict.fromkeys(name for name, *_ in attack.faults)
    rows, failures = list[list[Cell]](), list[str]()
    said = Counter[str]()
    for name in (None, *names):
        mine = [one for one in attack.streams if attack.fault_of(one) == name]
        ends = Counter(one.outcome for one in mine)
        said.update(f"{one.outcome}: {one.words}" for one in mine if one.words)
        ends["lost"] += ends.pop("refused", 0)
        where = name or "no fault"
        seams = sum(one.unverified > 0 for one in mine if one.outcome in _COMPLETE)
        rows.append([where, len(mine), sum(ends[one] for one in _COMPLETE), ends["tie"], seams, ends["aborted"]])
        rows[-1] += [ends["error"], ends["lost"], ends["wrong"]]
        failures += [f"{what}: {where}" for what in ("error", "lost", "wrong") if ends[what]]
        failures += [f"no answer outlived its model: {where}"] * (where.endswith("killed") and not seams)
    plan = attack.plan
    about = (
        f"{plan.streams} streams are open at any time for {plan.seconds:g} s; clients abort one stream in {_ABORTED}. "
        f"A stopped server is suspended for {plan.stopped:g} s. A stream is counted in the row of the fault that it "
        f"overlaps; a fault ends {_SETTLE:g} s after the server is back. Complete answers with unverified tokens were "
        "written on by one model alone, and an assistant that has failed is left out of the answers of 30 s."
    )
    figures = {"failures": failures, "words": dict(said), "faults": attack.faults}
    return Table("The gateway under attack", columns, rows, [about], figures)


def _held(before: Mapping[str, float], after: Mapping[str, float]) -> Table:
    rows: list[list[Cell]] = [[name, before[name], after[name]] for name in after]
    leaked = _leaks(before, after)
    note = (
        f"Leaked: {', '.join(leaked) or 'nothing'}. Up to {_MEMORY:g} MB may stay allocated after the largest request "
        "bodies."
    )
    return Table("Resources held before and after", ["", "before", "after"], rows, [note], {"failures": leaked})


def _hostile(attack: Attack) -> Table:
    rows, failures = list[list[Cell]](), list[str]()
    for one in (*HOSTILE, *STALLED):
        met = attack.met[one.name]
        rows.append([one.name, sum(met.statuses.values()), ", ".join(sorted(met.statuses)), met.longest])
        failures += [f"{one.name}: {status}" for status in met.statuses if status not in one.allowed]
        failures += [f"{one.name}: no words"] * bool(met.wordless and "200" not in one.allowed)
    columns = ["request", "times", "status", "s (max)"]
    return Table("Hostile requests during the attack", columns, rows, (), {"failures": failures})


def _slowest(attack: Attack) -> Table:
    firsts = sorted(one.first for one in attack.streams if one.first is not None and attack.fault_of(one) is None)
    health = sorted(attack.health)
    rank: Callable[[Sequence[float]], float] = lambda values: values[min(len(values) - 1, int(0.99 * len(values)))]  # noqa: E731
    rows: list[list[Cell]] = [
        [name, len(values), statistics.median(values), rank(values), values[-1]]
        for name, values in (("to the first text, without a fault", firsts), ("/health", health))
        if values
    ]
    columns = ["", "requests", "s (p50)", "s (p99)", "s (max)"]
    failures = ["/health was not answered"] * (LOST in health)
    failures += ["no whole answer"] * all(one.outcome != "whole" for one in attack.streams)
    return Table("The slowest requests", columns, rows, (), {"failures": failures})
