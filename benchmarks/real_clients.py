"""Real clients of OpenAI's protocol against `cosd serve`, on the real language model of `make test-real`.

The clients are installed by pip or npm, at the versions in `clients/pins`, in folders of the user's cache. Each client
has a script that tries its features. Its answers are compared with the gateway's answers to plain HTTP requests, and
their `usage` with the token counts of the draft's server alone. Clients put schemas and tools in words of their own.
Therefore, a server between client and gateway records these requests, and each is repeated over plain HTTP.
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
from urllib.parse import unquote

import anyio
import httpx

from benchmarks.report import Cell, Options, Table
from cosd_api.apps.demo.servers import serve

__all__ = ["run"]

ROOT = Path(__file__).parents[1]
HERE = ROOT / "benchmarks" / "clients"
_OWN = ("curl", "open-webui")  # scripts that need no package
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

_PROGRAMS = {
    "mini-swe-agent": ("mini-swe-agent", "a task: a call, its result, and the end"),
    "open-webui": (
        "Open WebUI 0.12.4",
        *("a conversation", "a title", "tags", "follow-ups", "native tools", "the result of a tool"),
    ),
}
"""For each script of a program, its name and what is tried."""

_WORK = (
    *("chat", "usage", "stream", "usage in the stream", "logprobs", "stop, seed, length"),
    *("responses", "responses, stream", "completions", "completions, logprobs", "models"),
)
_OF = {"usage": "chat", "usage in the stream": "stream"}
_REPEATED = (
    *("json_schema", "json_schema, helper", "tools", "tools, stream", "tool result"),
    *("responses, json_schema", "responses, tool result"),
)
_RIVERS = [{"river": name} for name in ("Danube", "Rhine")]
"""The valid arguments of calls and answers in JSON."""

_REFUSED = ("temperature",)
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
        sent: for each recorded row, the body of its last request.
        repeated: for each of them, the outcome of the same request over plain HTTP, not streamed. An answer that is
            cut has `cut`.
    """

    strict: Mapping[str, Mapping[str, Any]]
    ignoring: Mapping[str, Mapping[str, Any]]
    sent: Mapping[str, Mapping[str, Any]]
    repeated: Mapping[str, Mapping[str, Any]]


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
    installed = {name: _installed(name, options) for name in (*_CLIENTS, *_PROGRAMS)}
    command = [sys.executable, str(ROOT / "tests" / "smollm2" / "install.py")]
    folder = Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    found: dict[str, Asked] = {}
    programs: dict[str, Asked] = {}
    with ExitStack() as stack:
        servers = [stack.enter_context(serve(folder / "smollm2.gguf", context=4096, slots=4)).url for _ in range(2)]
        strict, lenient = [stack.enter_context(_gateway(servers, *ignored)) for ignored in ([], ["temperature"])]
        expected = _expected(strict, servers[0])
        for name, client in installed.items():
            if client is not None:
                options.say(f"clients: {name}")
            if client is not None and name in _PROGRAMS:
                recorded, sent, repeated = _recorded(name, client, strict, _PROGRAMS[name][1:])
                programs[name] = Asked(recorded, {}, sent, repeated)
            elif client is not None:
                recorded, sent, repeated = _recorded(name, client, strict)
                found[name] = Asked(
                    _asked(name, client, strict, only=(*_WORK, "abort", *_REFUSED)) | recorded,
                    _asked(name, client, lenient, only=_IGNORED),
                    sent,
                    repeated,
                )
    return tabled(found, expected, programs)


# Installing the clients, once.


def _installed(name: str, options: Options) -> Path | None:
    """The folder in which a client is installed; None if its installer is missing."""
    if name in _OWN:
        return Path.cwd() if name != "curl" or shutil.which("curl") else None
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
    limits = {"max_tokens": 400}  # for programs that set none
    fusion = {"draft": {"url": draft}, "assistants": [{"url": assistant}], "limits": limits}
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


def _asked(name: str, client: Path, url: str, only: Sequence[str], noted: str = "") -> dict[str, Any]:
    """The outcome of each feature of a client."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    environment = {**kept, "COSD_CLIENT_URL": url, "COSD_CLIENT_ONLY": ";".join(only), "COSD_CLIENT_NOTED": noted}
    with tempfile.TemporaryDirectory() as home:  # clients write their files here
        environment |= {"HOME": home, "LLM_USER_PATH": home, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        script = HERE / f"with_{name.replace('-', '_')}.py"
        command = [str(client / "bin" / "python") if name not in _OWN else sys.executable, str(script)]
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


def _recorded(
    name: str, client: Path, url: str, only: Sequence[str] = (*_DEFAULTS, *_REPEATED)
) -> tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """The outcomes of a client's features, the last request of each, and the outcomes of repeating it.

    A server in between passes the client's requests on to the gateway. Before each feature, it is told the row.
    """
    sent: dict[str, dict[str, Any]] = {}
    repeated: dict[str, dict[str, Any]] = {}
    asked: dict[str, str] = {}
    row = ""

    class Recorder(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal row
            if self.path.startswith("/v1/"):
                self.answer(httpx.get(url + self.path.removeprefix("/v1"), trust_env=False))
            else:
                row = unquote(self.path.removeprefix("/"))
                self.answer(httpx.Response(200))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            sent[row], asked[row] = body, url + self.path.removeprefix("/v1")
            self.answer(httpx.post(asked[row], json=body, timeout=120, trust_env=False))

        def answer(self, found: httpx.Response) -> None:
            self.send_response(found.status_code)
            self.send_header("content-type", found.headers.get("content-type", ""))
            self.end_headers()
            self.wfile.write(found.content)

        def log_message(self, *_: Any) -> None:
            """Suppress the log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        base = f"http://127.0.0.1:{server.server_port}"
        try:
            outcomes = _asked(name, client, f"{base}/v1", only, noted=f"{base}/")
        finally:
            server.shutdown()
            thread.join()
    for one, body in sent.items():
        whole = {field: value for field, value in body.items() if not field.startswith("stream")}
        repeated[one] = _read(httpx.post(asked[one], json=whole, timeout=120, trust_env=False).json())
    return outcomes, sent, repeated


def _read(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome of a request of any route over plain HTTP: a call is the JSON text of its name and arguments."""
    if error := answer.get("error"):
        return {"error": error["message"]}
    if "output" in answer:
        [first, *_] = answer["output"]
        calls, cut = [first] if first["type"] == "function_call" else [], answer["status"] != "completed"
        text = "" if calls else first["content"][0]["text"]
    else:
        [choice] = answer["choices"]
        message = choice.get("message") or {"content": choice["text"]}
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        text, cut = message["content"] or "", choice["finish_reason"] == "length"
    for call in calls[:1]:
        text = text if cut else json.dumps([call["name"], json.loads(call["arguments"])])
    return {"text": text, "cut": cut}


def _expected(url: str, draft: str) -> Expected:
    chat = {"model": "cosd", "messages": [{"role": "user", "content": _QUESTION}], "max_tokens": _TOKENS}
    text = {"model": "cosd", "prompt": _QUESTION, "max_tokens": _TOKENS}
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
                name: ask(url, "chat/completions", {**chat, name: value})["error"]["message"]
                for name, value in (("temperature", 0.7),)
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
    **{row: {"W", "-"} for row in _REPEATED},
    "abort": {"W", "G"},
    **{row: {"E", "-"} for row in _REFUSED},
    **{row: {"W", "E", "-"} for row in _DEFAULTS},
    **{_ignored(row): {"W", "-"} for row in _IGNORED},
}
"""For each row, the marks that do not count as failures."""


_MARKS = (
    "`W` means that the feature works: the text is the same as with plain HTTP requests, and the token counts in "
    "`usage` and the number of log probabilities match the counts of the draft's server alone. In the rows with "
    "schemas, tools and results, `W` means that the client's value is that of the same request over plain HTTP, valid "
    "and complete, and that results were sent back to the model. For an abort, `W` means "
    "that the gateway cancelled its own requests within two seconds. `G` means that the client kept its connection "
    "open after an abort until Python's garbage collection, and that only then did the gateway cancel its requests. "
    "`E` means that the gateway refuses the request at once, with the same error message as for a plain HTTP request."
)
_TERMS = (
    "*Defaults* marks a request for which the program sets only the model, the question and `max_tokens`. *With "
    "`ignore`* means that the gateway's file contains `ignore: [temperature]`."
)


_PROGRAMS_NOTE = (
    "mini-swe-agent is a coding agent; the small model's commands were not run. Open WebUI is too large to install: "
    "requests with the fields of that version were sent. `W` has the meaning above."
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


def judged_as_repeated(row: str, asked: Asked) -> Judgement:
    """The mark and reason for a feature with a schema, tools or results, whose request was repeated."""
    outcome, again = asked.strict[row], asked.repeated.get(row, {})
    if "text" not in outcome or "text" not in again:
        return judged(row, again if "text" in outcome else outcome, _NOTHING)
    found, right = _value(outcome["text"]), _value(again["text"])
    if row.endswith("helper") and isinstance(right, list):
        right = right[-1]  # an answer in the form of a call
    value, sent = found[-1] if isinstance(found, list) else found, json.dumps(asked.sent[row])
    if found != right:
        return Judgement("X", f"value: {found!r}, not {right!r}")
    if "result" in row and not ("tool_call_id" in sent or "function_call_output" in sent):
        return Judgement("X", "no result was sent")
    if again["cut"] and not isinstance(found, str):
        return Judgement("X", f"it is cut: {found!r}")
    if row in _REPEATED and "result" not in row and value not in _RIVERS:
        return Judgement("X", f"it is invalid: {found!r}")
    return Judgement("W")


def _value(text: str) -> Any:
    """The value of JSON; other text as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


_NOTHING = Expected("", "", "", {}, {})


def judgements(asked: Asked, expected: Expected) -> dict[str, Judgement]:
    """The judgements of one client, by row."""
    found = {row: judged(row, asked.strict[_OF.get(row, row)], expected) for row in (*_WORK, "abort")}
    found |= {row: judged(row, asked.strict[row], expected, expected.refusals[row]) for row in _REFUSED}
    found |= {row: judged_as_repeated(row, asked) for row in _REPEATED}
    for row in _DEFAULTS:
        found[row] = judged(row, asked.strict[row], expected, asked.repeated.get(row, {}).get("error"))
    return found | {_ignored(row): judged(row, asked.ignoring[row], expected) for row in _IGNORED}


def tabled(asked: Mapping[str, Asked], expected: Expected, programs: Mapping[str, Asked]) -> list[Table]:
    """The table of features, that of the fields that clients send by default, and that of whole programs."""
    cells = {name: judgements(one, expected) for name, one in asked.items()}
    rows: list[list[Cell]] = [[row, *(found[row].mark for found in cells.values())] for row in _ALLOWED]
    whole = {name: {row: judged_as_repeated(row, one) for row in one.strict} for name, one in programs.items()}
    lacking, failing, failures = dict[str, dict[str, None]](), dict[str, list[str]](), list[str]()
    for name, found in {**cells, **whole}.items():
        for row, cell in found.items():
            if cell.mark == "-":
                lacking.setdefault(cell.reason, {})[name] = None
            elif cell.reason:
                failing.setdefault(f"{name}: {cell.reason}", []).append(row)
            if cell.mark not in _ALLOWED.get(row, "W"):
                failures.append(f"{name}: {row}: {cell.mark} {cell.reason}")
    notes = [
        _MARKS,
        _TERMS,
        f"`-` marks a feature that the client lacks: {_listed(lacking)}.",
        *([f"X fails: {_listed(failing)}."] if failing else []),
    ]
    heads = [f"{name} {_version(name)}" for name in asked]
    figures = {"failures": failures, "asked": {name: one.__dict__ for name, one in {**asked, **programs}.items()}}
    return [
        Table("Clients and features", ["", *heads], rows, notes, {**figures, "expected": expected.__dict__}),
        Table(
            "Fields that clients send by themselves",
            ["client", "in a conversation", "with a text"],
            [
                [_CLIENTS[name], *(_fields(one.sent.get(row), one.strict[row]) for row in _DEFAULTS)]
                for name, one in asked.items()
            ],
            ["These fields are sent if the program sets only the model, the question and `max_tokens`."],
        ),
        Table(
            "Whole programs",
            ["program", "request", "mark"],
            [[_PROGRAMS[name][0], row, one.mark] for name, found in whole.items() for row, one in found.items()],
            [_PROGRAMS_NOTE],
        ),
    ]


def _listed(reasons: Mapping[str, Iterable[str]]) -> str:
    return "; ".join(f"{reason} ({', '.join(of)})" for reason, of in reasons.items())


def _fields(sent: Mapping[str, Any] | None, outcome: Mapping[str, Any]) -> str:
    if "lacks" in outcome:
        return "-"
    assert sent is not None, "nothing was recorded"
    given = {"model", "messages", "prompt", "max_tokens", "max_completion_tokens"}
    more = [f"`{name}: {json.dumps(value)}`" for name, value in sent.items() if name not in given]
    return ", ".join(more) or "nothing"
