"""Real clients of OpenAI's protocol against `cosd serve`, on the real language model of `make test-real`.

The clients are installed by pip or npm, at the versions in `clients/pins`, in folders of the user's cache. Each client
has a script that tries its features. Its answers are compared with the gateway's answers to plain HTTP requests, and
their `usage` with the token counts of the draft's server alone. A recording server shows the fields that a client sends
by default.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import httpx

from benchmarks.report import Cell, Options, Table
from cosd_api.apps.demo.servers import serve

__all__ = ["run"]

ROOT = Path(__file__).parents[1]
HERE = ROOT / "benchmarks" / "clients"
_NODE = "6.49.0"  # version of the npm package `openai`, which has no dependencies
_CLIENTS = {
    "openai": "openai",
    "node": "openai (Node)",
    "langchain": "langchain-openai",
    "llamaindex": "llama-index-llms-openai-like",
    "litellm": "litellm",
    "pydantic-ai": "pydantic-ai-slim",
    "llm": "llm",
    "instructor": "instructor",
    "agents": "openai-agents",
    "curl": "curl",
}
"""For each script, the package whose version the table's column shows."""

_WORK = (
    *("chat", "usage", "stream", "usage in the stream", "logprobs", "stop, seed, length"),
    *("responses", "responses, stream", "completions", "completions, logprobs", "models"),
)
_OF = {"usage": "chat", "usage in the stream": "stream"}
_REFUSED = ("temperature", "tools", "json_schema")
_DEFAULTS = ("chat, defaults", "completions, defaults")
_IGNORED = (*_DEFAULTS, "temperature")
_QUESTION, _SHORT, _TOKENS = "Name three rivers of Europe.", "Name one river of Europe.", 16
"""The questions and the number of tokens of `clients/features.py`."""


def _ignored(row: str) -> str:
    return f"{row}, with `ignore`"


@dataclass(frozen=True)
class Asked:
    """All outcomes of one client.

    Attributes:
        strict, ignoring: the outcome of each feature, with a gateway that does not ignore any field, and with one that
            has the setting `ignore: [temperature]`.
        sent: for each row, the fields that the client adds to a request by default.
        refusals: for each row, the gateway's error message if it refuses these fields over plain HTTP.
    """

    strict: Mapping[str, Mapping[str, Any]]
    ignoring: Mapping[str, Mapping[str, Any]]
    sent: Mapping[str, Mapping[str, Any]]
    refusals: Mapping[str, str]


@dataclass(frozen=True)
class Expected:
    """The gateway's answers to plain HTTP requests, with which clients are compared.

    Attributes:
        chat, text: the gateway's answers to a conversation and to a text.
        response: the gateway's whole answer to a conversation.
        usage: numbers of prompt and answer tokens that the draft's server reports when it is asked alone; the key is
            true for a conversation.
        refusals: the gateway's error messages, by feature.
    """

    chat: str
    text: str
    response: str
    usage: Mapping[bool, Sequence[int]]
    refusals: Mapping[str, str]


async def run(options: Options) -> list[Table]:
    """Try every client."""
    return await anyio.to_thread.run_sync(_run, options)


def _run(options: Options) -> list[Table]:
    installed = {name: _installed(name, options) for name in _CLIENTS}
    command = [sys.executable, str(ROOT / "tests" / "smollm2" / "install.py")]
    folder = Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    found: dict[str, Asked] = {}
    with ExitStack() as stack:
        servers = [stack.enter_context(serve(folder / "smollm2.gguf", context=2048, slots=4)).url for _ in range(2)]
        strict, lenient = [stack.enter_context(_gateway(servers, *ignored)) for ignored in ([], ["temperature"])]
        expected = _expected(strict, servers[0])
        for name, client in installed.items():
            if client is not None:
                options.say(f"clients: {name}")
                sent = _sent(name, client)
                found[name] = Asked(
                    _asked(name, client, strict),
                    _asked(name, client, lenient, only=_IGNORED),
                    sent,
                    {row: words for row, fields in sent.items() if (words := _refusal(strict, row, fields))},
                )
    return tabled(found, expected)


# Installing the clients, once.


def _installed(name: str, options: Options) -> Path | None:
    """The folder in which a client is installed; None if its installer is missing."""
    if name == "curl":
        return Path.cwd() if shutil.which("curl") else None
    if name == "node" and not (shutil.which("node") and shutil.which("npm")):
        return None
    pins = HERE / "pins" / f"{name}.txt"
    about = f"{_NODE}" if name == "node" else f"{sys.version_info[:2]} {pins.read_text(encoding='utf-8')}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "cosd-api"
    folder = cache / f"client-{name}-{hashlib.sha256(about.encode()).hexdigest()[:12]}"
    if not (folder / ".ready").exists():
        options.say(f"clients: {name} is installed into {folder}, only this once")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if name == "node":
            _done(["npm", "install", "--silent", "--prefix", str(folder), f"openai@{_NODE}"])
        else:
            _done([sys.executable, "-m", "venv", str(folder)])
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
            _done([*pip, "--no-deps", "--requirement", str(pins)])
        (folder / ".ready").touch()
    return folder


_done = partial(subprocess.run, check=True, stdout=subprocess.DEVNULL)


def _version(name: str) -> str:
    if name == "node":
        return _NODE
    if name == "curl":
        command = ["curl", "--version"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[1]
    pins = (HERE / "pins" / f"{name}.txt").read_text(encoding="utf-8")
    [found] = re.findall(rf"^{_CLIENTS[name]}==(.+)$", pins, re.MULTILINE)
    return str(found)


# Running the clients.


@contextmanager
def _gateway(servers: Sequence[str], *ignored: str) -> Generator[str]:
    """Run a gateway in a process of its own, and yield its URL, with `/v1`."""
    draft, assistant = servers
    fusion = {"draft": {"url": draft}, "assistants": [{"url": assistant}]}
    settings = {"fusions": {"cosd": fusion}, **({"ignore": ignored} if ignored else {})}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COSD_")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.json"
        path.write_text(json.dumps(settings), encoding="utf-8")
        command = [sys.executable, "-m", "cosd_api", "serve", str(path), "--port", "0"]
        log = (Path(folder) / "log").open("w+")
        with log, subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            try:
                assert process.stdout is not None
                url = process.stdout.readline().strip()
                assert url, (Path(folder) / "log").read_text()
                yield url
            finally:
                process.kill()


def _asked(name: str, client: Path, url: str, only: Sequence[str] = ()) -> dict[str, Any]:
    """The outcome of each feature of a client."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    environment = {**kept, "COSD_CLIENT_URL": url, "COSD_CLIENT_ONLY": ";".join(only)}
    with tempfile.TemporaryDirectory() as home:  # clients write their files here
        environment |= {"HOME": home, "LLM_USER_PATH": home, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        script = HERE / f"with_{name.replace('-', '_')}.py"
        command = [str(client / "bin" / "python") if name != "curl" else sys.executable, str(script)]
        if name == "node":
            command = ["node", str(script.with_suffix(".mjs"))]
        where = client if name == "node" else home
        done = subprocess.run(
            command, cwd=where, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
    if done.returncode:
        raise RuntimeError(f"{script.name}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return found


def _sent(name: str, client: Path) -> dict[str, dict[str, Any]]:
    """The fields that a client sends by default, by row, recorded by a server that refuses every request."""
    given = {"model", "messages", "prompt", "max_tokens", "max_completion_tokens"}
    found: dict[str, dict[str, Any]] = {}

    class Recorder(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            row = "chat, defaults" if self.path == "/v1/chat/completions" else "completions, defaults"
            found[row] = {field: value for field, value in body.items() if field not in given}
            self.send_response(400)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"error": {"message": "recorded", "type": "invalid_request_error"}}')

        def log_message(self, *_: Any) -> None:
            """Suppress the log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            _asked(name, client, f"http://127.0.0.1:{server.server_port}/v1", only=_DEFAULTS)
        finally:
            server.shutdown()
            thread.join()
    return found


def _refusal(url: str, row: str, fields: Mapping[str, Any]) -> str | None:
    """The gateway's error message for these fields; None if it accepts them."""
    question: Mapping[str, Any] = {"messages": [{"role": "user", "content": _QUESTION}]}
    route = "chat/completions"
    if row.startswith("completions"):
        question, route = {"prompt": _QUESTION}, "completions"
    body = {**question, **fields, "model": "cosd", "max_tokens": _TOKENS}
    answer = httpx.post(f"{url}/{route}", json=body, timeout=120, trust_env=False)
    return None if answer.is_success else str(answer.json()["error"]["message"])


def _expected(url: str, draft: str) -> Expected:
    chat = {"model": "cosd", "messages": [{"role": "user", "content": _QUESTION}], "max_tokens": _TOKENS}
    text = {"model": "cosd", "prompt": _QUESTION, "max_tokens": _TOKENS}
    schema = {"type": "json_schema", "json_schema": {"name": "river", "schema": {"type": "object"}}}
    tools = [{"type": "function", "function": {"name": "river", "parameters": {"type": "object"}}}]
    refused: Mapping[str, Mapping[str, Any]] = {
        "temperature": {"temperature": 0.7},
        "tools": {"tools": tools},
        "json_schema": {"response_format": schema},
    }
    with httpx.Client(timeout=120, trust_env=False) as client:

        def ask(base: str, route: str, body: Mapping[str, Any]) -> Any:
            return client.post(f"{base}/{route}", json=body).json()

        return Expected(
            ask(url, "chat/completions", chat)["choices"][0]["message"]["content"],
            ask(url, "completions", text)["choices"][0]["text"],
            ask(url, "responses", {"input": _SHORT})["output"][0]["content"][0]["text"],
            {
                is_chat: [counted["prompt_tokens"], counted["completion_tokens"]]
                for is_chat, route, body in ((True, "chat/completions", chat), (False, "completions", text))
                for counted in [ask(f"{draft}/v1", route, {**body, "temperature": 0})["usage"]]
            },
            {
                name: ask(url, "chat/completions", {**chat, **more})["error"]["message"]
                for name, more in refused.items()
            },
        )


# Judging the outcomes.


@dataclass(frozen=True)
class Judgement:
    """A cell of the table.

    Attributes:
        mark: `W`, `E`, `G`, `X` or `-`.
        reason: the reason for an `X` or a `-`, as text.
    """

    mark: str
    reason: str = ""


_ALLOWED = {
    **{row: {"W", "-"} for row in _WORK},
    "abort": {"W", "G"},
    **{row: {"E", "-"} for row in _REFUSED},
    **{row: {"W", "E", "-"} for row in _DEFAULTS},
    **{_ignored(row): {"W", "-"} for row in _IGNORED},
}
"""For each row, the marks that do not count as failures."""


_MARKS = (
    "`W` means that the feature works: the text is the same as with plain HTTP requests, and the token counts in "
    "`usage` and the number of log probabilities match the counts of the draft's server alone. For an abort, `W` means "
    "that the gateway cancelled its own requests within two seconds. `G` means that the client kept its connection "
    "open after an abort until Python's garbage collection, and that only then did the gateway cancel its requests. "
    "`E` means that the gateway refuses the request at once, with the same error message as for a plain HTTP request."
)
_TERMS = (
    "*Defaults* marks a request for which the program sets only the model, the question and `max_tokens`. *With "
    "`ignore`* means that the gateway's file contains `ignore: [temperature]`."
)


def judged(row: str, outcome: Mapping[str, Any], expected: Expected, refusal: str | None = None) -> Judgement:
    """The mark and reason for a client's outcome.

    Args:
        row: the feature.
        outcome: the outcome that the client's script reports.
        expected: the answers to plain HTTP.
        refusal: the gateway's error message if it should refuse the request.
    """
    if "lacks" in outcome:
        return Judgement("-", outcome["lacks"])
    if "error" in outcome:
        error = outcome["error"].replace("\\'", "'").replace('\\"', '"')
        return Judgement("E") if refusal and refusal in error else Judgement("X", error)
    if refusal:
        return Judgement("X", "it is not refused")
    if row == "abort":
        if outcome["outcome"] != "disconnected":
            return Judgement("X", f"to the gateway the request ended as {outcome['outcome']}")
        return Judgement("G" if outcome["collected"] else "W")
    is_text = row.startswith("completions")
    texts = {"models": "cosd", "completions": expected.text, "responses": expected.response}
    usage = list(expected.usage[not is_text])
    for what, found, right in (
        ("text", outcome["text"], texts.get(re.split("[, ]", row)[0], expected.chat)),
        ("usage", outcome.get("usage"), usage if row != "models" else None),
        ("log probabilities", outcome.get("logprobs"), usage[1] if "logprobs" in row else None),
    ):
        if what == "usage" and not row.startswith("usage"):
            continue
        if found != right:
            return Judgement("X", f"{what}: {found!r}, not {right!r}")
    return Judgement("W")


def judgements(asked: Asked, expected: Expected) -> dict[str, Judgement]:
    """The judgements of one client, by row."""
    found = {row: judged(row, asked.strict[_OF.get(row, row)], expected) for row in (*_WORK, "abort")}
    found |= {row: judged(row, asked.strict[row], expected, expected.refusals[row]) for row in _REFUSED}
    found |= {row: judged(row, asked.strict[row], expected, asked.refusals.get(row)) for row in _DEFAULTS}
    return found | {_ignored(row): judged(row, asked.ignoring[row], expected) for row in _IGNORED}


def tabled(asked: Mapping[str, Asked], expected: Expected) -> list[Table]:
    """The table of features, and the table of the fields that clients send by default."""
    cells = {name: judgements(one, expected) for name, one in asked.items()}
    rows: list[list[Cell]] = [[row, *(found[row].mark for found in cells.values())] for row in _ALLOWED]
    lacking, failing, failures = dict[str, dict[str, None]](), dict[str, list[str]](), list[str]()
    for name, found in cells.items():
        for row, cell in found.items():
            if cell.mark == "-":
                lacking.setdefault(cell.reason, {})[name] = None
            elif cell.reason:
                failing.setdefault(f"{name}: {cell.reason}", []).append(row)
            if cell.mark not in _ALLOWED[row]:
                failures.append(f"{name}: {row}: {cell.mark} {cell.reason}")
    notes = [
        _MARKS,
        _TERMS,
        f"`-` marks a feature that the client lacks: {_listed(lacking)}.",
        *([f"X fails: {_listed(failing)}."] if failing else []),
    ]
    heads = [f"{name} {_version(name)}" for name in asked]
    ways = {
        name: {
            what.split(" by ")[1]: judged(what, outcome, expected)
            for what, outcome in one.strict.items()
            if " by " in what
        }
        for name, one in asked.items()
    }
    failures += [
        f"{name}: {way}: {one.reason}" for name, found in ways.items() for way, one in found.items() if one.mark != "W"
    ]
    figures = {"failures": failures, "asked": {name: one.__dict__ for name, one in asked.items()}}
    return [
        Table("Clients and features", ["", *heads], rows, notes, {**figures, "expected": expected.__dict__}),
        Table(
            "Fields that clients send by themselves",
            ["client", "in a conversation", "with a text", "other ways, which work"],
            [
                [
                    _CLIENTS[name],
                    *(_fields(one.sent.get(row), one.strict[row]) for row in _DEFAULTS),
                    ", ".join(way for way, found in ways[name].items() if found.mark == "W"),
                ]
                for name, one in asked.items()
            ],
            ["These fields are sent if the program sets only the model, the question and `max_tokens`."],
        ),
    ]


def _listed(reasons: Mapping[str, Iterable[str]]) -> str:
    return "; ".join(f"{reason} ({', '.join(of)})" for reason, of in reasons.items())


def _fields(sent: Mapping[str, Any] | None, outcome: Mapping[str, Any]) -> str:
    if "lacks" in outcome:
        return "-"
    assert sent is not None, "nothing was recorded"
    return ", ".join(f"`{name}: {json.dumps(value)}`" for name, value in sent.items()) or "nothing"
