"""Real clients of OpenAI's protocol against `cosd serve`, on the real language model of `make test-real`.

Each is installed by pip or npm, at the versions in `pins`, into a folder of its own in the user's cache, and asks by a
script of its own for what it has. What came out is held against the answers of the gateway to plain HTTP, and its
`usage` against what the draft's server counts when it is asked alone.
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
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx

from benchmarks.report import Cell, Options, Table
from cosd_api.demo.servers import serve

__all__ = ["run"]

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
_NODE = "6.49.0"  # of `openai` on npm, which needs no other package
_CLIENTS = {
    "openai": "openai",
    "node": "openai (Node)",
    "langchain": "langchain-openai",
    "llamaindex": "llama-index-llms-openai-like",
    "litellm": "litellm",
    "pydantic-ai": "pydantic-ai-slim",
    "llm": "llm",
    "instructor": "instructor",
    "curl": "curl",
}
"""Columns by the name of the script: the package whose version stands at their heads."""

_WORK = ("chat", "usage", "stream", "usage in the stream", "completions", "logprobs", "stop, seed, length", "models")
_REFUSED = ("temperature", "tools", "json_schema")
_UNASKED = ("chat, unasked", "completions, unasked")
_IGNORED = (*_UNASKED, "temperature")
_ROWS = (*_WORK, "abort", *_REFUSED, *_UNASKED)
_QUESTION, _TOKENS = "Name three rivers of Europe.", 16  # as in features.py


@dataclass(frozen=True)
class Expected:
    """Answers to plain HTTP.

    Attributes:
        chat, text: the gateway's, to a conversation and to a text.
        usage: tokens of the prompt and of the answer, by the draft's server alone: of a conversation, and of a text.
        refusals: the gateway's words, by feature.
    """

    chat: str
    text: str
    usage: Mapping[bool, Sequence[int]]
    refusals: Mapping[str, str]


async def run(options: Options) -> list[Table]:
    """Ask with every client."""
    return await anyio.to_thread.run_sync(_run, options)


def _run(options: Options) -> list[Table]:
    installed = {name: _installed(name, options) for name in _CLIENTS}
    command = [sys.executable, str(ROOT / "tests" / "smollm2" / "install.py")]
    folder = Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    found: dict[str, dict[str, Any]] = {}
    ignoring: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        servers = [stack.enter_context(serve(folder / "smollm2.gguf", context=2048, slots=4)).url for _ in range(2)]
        strict, lenient = [stack.enter_context(_gateway(servers, *ignored)) for ignored in ([], ["temperature"])]
        expected = _expected(strict, servers[0])
        for name, client in installed.items():
            if client is not None:
                options.say(f"clients: {name}")
                found[name] = _asked(name, client, strict)
                ignoring[name] = _asked(name, client, lenient, only=_IGNORED)
    return [_table(found, ignoring, expected)]


# Installed once.


def _installed(name: str, options: Options) -> Path | None:
    """The folder in which a client is; None where what installs it is missing."""
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


# Asked.


@contextmanager
def _gateway(servers: Sequence[str], *ignored: str) -> Generator[str]:
    """A gateway in a process of its own; its URL, with /v1."""
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
    """The outcome of each feature."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    environment = {**kept, "COSD_CLIENT_URL": url, "COSD_CLIENT_ONLY": ";".join(only)}
    with tempfile.TemporaryDirectory() as home:  # for what clients keep
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


# Judged.


def _mark(row: str, outcomes: Mapping[str, Any], expected: Expected) -> str:
    """W works, E is refused in the gateway's own words, X is anything else, and - is what the client has not."""
    of = {"usage": "chat", "usage in the stream": "stream"}.get(row, row)
    if of not in outcomes:
        return "-"
    outcome = outcomes[of]
    if "error" in outcome:
        words = expected.refusals.get("temperature" if row in _UNASKED else row)
        return "E" if words and words[:30] in outcome["error"].replace("\\'", "'").replace('\\"', '"') else "X"
    if row == "abort":
        return "W" if outcome["cancelled"] else "X"
    if row == "models":
        return "W" if outcome["text"] == "cosd" else "X"
    if "usage" in row:
        return "-" if not outcome.get("usage") else "W" if outcome["usage"] == expected.usage[True] else "X"
    if row == "logprobs" and outcome.get("logprobs") != expected.usage[True][1]:
        return "X"
    return "W" if outcome["text"] == (expected.text if row.startswith("completions") else expected.chat) else "X"


def _table(
    found: Mapping[str, Mapping[str, Any]],
    ignoring: Mapping[str, Mapping[str, Any]],
    expected: Expected,
) -> Table:
    rows, failures = list[list[Cell]](), list[str]()
    for row in _ROWS:
        marks = {name: _mark(row, outcomes, expected) for name, outcomes in found.items()}
        rows.append([row, *marks.values()])
        allowed = {"W", "-"} if row in _WORK or row == "abort" else {"E", "-"}
        failures += [f"{name}: {row}: {mark}" for name, mark in marks.items() if mark not in allowed]
    for row in _IGNORED:
        marks = {name: _mark(row, outcomes, expected) for name, outcomes in ignoring.items()}
        rows.append([f"{row}, with `ignore`", *marks.values()])
        failures += [f"{name}: {row}, ignored: {mark}" for name, mark in marks.items() if mark not in {"W", "-"}]
    heads = [f"{name} {_version(name)}" for name in found]
    marks_mean = (
        "W works: the text, the tokens of `usage` and the number of log probabilities are those of plain HTTP and of "
        "the draft's server alone; of an abort, the gateway has cancelled what it asked for. E is refused at once, in "
        "the gateway's words. X is anything else. - is what the client has not."
    )
    unasked = (
        "*Unasked* is what the client sends by itself: a temperature of 0.1 (LlamaIndex) or 0.7 (LangChain's "
        "`OpenAI`). `ignore` is `ignore: [temperature]` in the gateway's file."
    )
    figures = {"failures": failures, "found": found, "ignoring": ignoring, "usage": expected.usage[True]}
    return Table("Clients", ["", *heads], rows, [marks_mean, unasked], figures)
