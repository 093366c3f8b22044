"""`cosd batch`: what it prints and writes, and how it ends."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from rich.console import Console
from typer.testing import Result

from cosd_api.apps.json_lines import Appender
from cosd_providers import Limits, Provider, ServerError, connect
from cosd_providers.testing import Fault, LanguageModel
from fakes.commands import SERVERS, Scripted, cosd, start_scripted, words
from fakes.llama_cpp import FakeLlamaCpp
from toys.batches import PROMPTS, input_file, pair, read, texts


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    draft, assistant = pair()
    found = Scripted({"http://draft": draft, "http://one": assistant})
    monkeypatch.setattr("cosd_api.apps.cli.options.connect", found.connect)
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return input_file(tmp_path / "in.jsonl")


def batch(source: Path, *more: str) -> Result:
    return cosd("batch", str(source), "-o", str(source.with_name("out.jsonl")), *SERVERS, "--unit", "token", *more)


def test_the_summary_and_the_file(scripted: Scripted, source: Path) -> None:
    done = batch(source)
    assert (done.exit_code, done.stderr) == (0, "")
    first, second, draft, assistant = done.stdout.splitlines()
    assert first == "6 lines of 6 answered"
    assert second.endswith(", acceptance 66.7%") and " lines/s, " in second and " tokens/s" in second
    assert draft.startswith("draft: ") and draft.endswith(" written, 12 requests") and "tokens read" in draft
    assert assistant.startswith("assistant: ") and assistant.endswith(" 6 requests")
    assert {*texts(source.with_name("out.jsonl")).values()} == {" yes."}
    again = batch(source, "--json")
    found = json.loads(again.stdout)
    assert (found["known"], found["answered"]) == (6, 0)


def test_failed_lines_and_their_retry(scripted: Scripted, source: Path) -> None:
    scripted.providers["http://draft"].faults = [Fault(ServerError("it broke"), request=3)]
    done = batch(source)
    assert done.exit_code == 1
    assert done.stdout.startswith("5 lines of 6 answered, 1 failed\n")
    last = "cosd: run the command again with --retry-failed to retry the failed lines"
    assert done.stderr.splitlines()[-1] == last
    done = batch(source, "--retry-failed")
    assert done.exit_code == 0 and done.stdout.startswith("6 lines of 6 answered (5 by earlier runs)\n")
    assert len(texts(source.with_name("out.jsonl"))) == 6


def test_the_limit_of_the_whole_batch(scripted: Scripted, source: Path) -> None:
    done = batch(source, "--max-billed-tokens", "30", "--max-tokens", "4", "--concurrency", "1")
    assert done.exit_code == 1
    assert "cosd: not complete: max_billed_tokens=30 is reached (" in done.stderr
    assert " not asked\n" in done.stdout
    assert batch(source).exit_code == 0


def test_limits_of_the_lines_are_bounded_by_those_of_the_command(scripted: Scripted, tmp_path: Path) -> None:
    rows = [{"custom_id": "own", "prompt": "a:", "max_tokens": 2}, {"custom_id": "none", "prompt": "b:"}]
    source = input_file(tmp_path / "in.jsonl", rows)
    assert batch(source, "--max-tokens", "1").exit_code == 0
    assert texts(tmp_path / "out.jsonl") == {"own": " yes", "none": " yes"}
    (tmp_path / "out.jsonl").unlink()
    assert batch(source, "--stop", ".").exit_code == 0
    assert texts(tmp_path / "out.jsonl") == {"own": " yes", "none": " yes"}


def test_a_settings_file(scripted: Scripted, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosd_api.config.file.connect", scripted.connect)
    config = source.with_name("fusion.yaml")
    config.write_text(
        "draft: {url: http://draft}\nassistants: [{url: http://one}]\nunit: token\nlimits: {max_tokens: 1}\n"
    )
    out = source.with_name("out.jsonl")
    done = cosd("batch", str(source), "-o", str(out), "--config", str(config))
    assert done.exit_code == 0, done.output
    assert {*texts(out).values()} == {" yes"}


def test_limits_of_an_endpoint_hold_over_all_lines(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = _Crowded([one.model for one in pair()])
    given: dict[str, Any] = {}

    def connected(url: str, **more: Any) -> Provider:
        given[url] = more.get("limits")
        return connect(url, http_client=server.client(url), **more)

    monkeypatch.setattr("cosd_api.config.file.connect", connected)
    config = tmp_path / "fusion.yaml"
    config.write_text(
        "draft: {url: http://draft, engine: llama.cpp}\n"
        "assistants: [{url: http://one, engine: llama.cpp, limits: {concurrency: 2, requests_per_minute: 6000}}]\n"
    )
    out = tmp_path / "out.jsonl"
    done = cosd("batch", str(source), "-o", str(out), "--config", str(config), "--concurrency", "6")
    assert done.exit_code == 0, done.output
    assert {*texts(out).values()} == {" yes."}
    assert given == {"http://draft": None, "http://one": Limits(concurrency=2, requests_per_minute=6000)}
    assert server.most == 2


class _Crowded:
    """Two servers; each request to the second one waits for another, and then for all that may still come."""

    def __init__(self, models: Sequence[LanguageModel]) -> None:
        self._servers = dict(zip(("http://draft", "http://one"), map(FakeLlamaCpp, models), strict=True))
        self._under_way = self.most = 0

    def client(self, url: str) -> httpx.AsyncClient:
        """A client of one of them."""

        async def answer(request: httpx.Request) -> httpx.Response:
            answered = self._servers[url].handle(request)
            if (
                url == "http://one"
                and request.url.path == "/completion"
                and b'"ignore_eos":true' not in request.content
            ):
                self._under_way += 1
                self.most = max(self.most, self._under_way)
                for _ in range(200):  # of the loop
                    await anyio.lowlevel.checkpoint()
                while self.most < 2:  # noqa: ASYNC110 - no event tells
                    await anyio.sleep(0.001)
                self._under_way -= 1
            return answered

        return httpx.AsyncClient(transport=httpx.MockTransport(answer))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--concurrency", "0"), "Input should be greater than or equal to 1"),
        (("--config", "missing.yaml"), "missing.yaml: No such file or directory"),
    ],
)
def test_wrong_usage(scripted: Scripted, source: Path, more: tuple[str, ...], message: str) -> None:
    done = batch(source, *more)
    assert done.exit_code == 2 and message in words(done)


def test_files_that_cannot_be_used(scripted: Scripted, source: Path, tmp_path: Path) -> None:
    done = cosd("batch", str(source), "-o", str(source), *SERVERS)
    assert done.exit_code == 2 and "is an input and would be overwritten: name another file" in words(done)
    done = batch(tmp_path / "missing.jsonl")
    assert done.exit_code == 2 and "No such file or directory" in words(done)
    input_file(source, [{"custom_id": "x", "prompt": "a:"}] * 2)
    done = batch(source)
    assert done.exit_code == 2 and "its custom_id is that of line 1" in words(done)


def test_a_full_disk(scripted: Scripted, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Appender.write

    def write(self: Appender, line: str) -> None:
        if '"line":4' in line:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        before(self, line)

    out = source.with_name("out.jsonl")
    with monkeypatch.context() as full:
        full.setattr(Appender, "write", write)
        done = batch(source, "--concurrency", "1")
    assert done.exit_code == 1 and len(texts(out)) == 3
    words = "No space left on device. What it holds is kept: run the same command to resume"
    assert done.stderr.splitlines()[-1] == f"cosd: {out} cannot be written: {words}"
    assert batch(source).exit_code == 0 and len(texts(out)) == 6


def test_the_bar(scripted: Scripted, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()

    def console(**options: Any) -> Console:
        return Console(file=written, force_terminal=True, width=200)

    monkeypatch.setattr("cosd_api.apps.cli.console.Console", console)
    monkeypatch.setattr("cosd_api.apps.cli.console._on_terminal", lambda: True)
    assert batch(source).exit_code == 0
    assert "6/6" in written.getvalue() and "lines" in written.getvalue()


@pytest.mark.extended
def test_killed_and_resumed(tmp_path: Path) -> None:
    """Killed again and again, each time a little later: every line is there once in the end."""
    prompts = [f"{at:03}:" for at in range(12)]
    source, out = input_file(tmp_path / "in.jsonl", [{"prompt": one} for one in prompts]), tmp_path / "out.jsonl"
    scripts = {one: [" a", " b"] for one in prompts}
    command = ("batch", str(source), "-o", str(out))
    for lines in (1, 4, 9):
        with start_scripted(
            "--concurrency", "2", "--unit", "token", command=command, draft="token_delay=0.1", texts=scripts
        ) as process:
            until = time.monotonic() + 60
            while time.monotonic() < until and (not out.exists() or out.read_bytes().count(b"\n") < lines):
                time.sleep(0.01)
            process.kill()
        size = out.stat().st_size
        out.write_bytes(out.read_bytes()[: size - 3 * (lines == 4)])  # the last write may be half there
    with start_scripted("--unit", "token", command=command, texts=scripts) as process:
        assert process.wait(60) == 0, process.stderr.read()
    assert len(read(out)) == 12 and {*texts(out).values()} == {" a b"}


@pytest.mark.extended
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupt_says_how_to_resume(tmp_path: Path, each_stack: str) -> None:
    source, out = input_file(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    scripts = {one: [" a"] for one in PROMPTS}
    command = ("batch", str(source), "-o", str(out), "--concurrency", "1")
    with start_scripted("--unit", "token", command=command, draft="token_delay=0.2", texts=scripts) as process:
        until = time.monotonic() + 60
        while time.monotonic() < until and (not out.exists() or not out.read_bytes()):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert f"finished answers are in {out}: run the same command again to resume" in process.stderr.read().decode()
