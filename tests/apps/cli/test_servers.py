"""`cosd servers`: three URLs to work with, and nothing left behind."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from cosd_api.apps.cli.demo import _example
from fakes.commands import Process, cosd, gone, start
from support.drawn import partly

pytestmark = pytest.mark.live
posix = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


def read_urls(process: Process) -> dict[str, str]:
    """The three lines of standard output."""
    lines = [process.stdout.readline().decode().strip() for _ in range(3)]
    return dict(line.split("\t") for line in lines)


def read_example(process: Process) -> str:
    """Standard error up to the end of the example: it comes after the URLs, and a signal may come between."""
    lines = iter(process.stderr.readline, b"")
    return b"".join(itertools.takewhile(lambda line: b"Ctrl-C" not in bytes(line), lines)).decode()


@posix
@pytest.mark.parametrize("end", partly([signal.SIGTERM, signal.SIGINT]))
def test_servers_run_until_interrupted(end: signal.Signals) -> None:
    with start("servers") as process:
        urls = read_urls(process)
        assert list(urls) == ["sums", "facts", "words"]
        for url in urls.values():
            assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        example = read_example(process)
        process.send_signal(end)
        out, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert out == b""
    assert f"    python -m cosd_api fuse - --draft {urls['sums']} --assistant {urls['facts']}" in example
    assert b"Traceback" not in errors
    assert all(map(gone, urls.values()))


@pytest.mark.parametrize(
    ("called", "on_path", "shown"),
    [
        ("/usr/bin/cosd", "/usr/bin/cosd", "cosd"),
        ("/opt/my tools/cosd", None, "'/opt/my tools/cosd'"),
        (".venv/bin/cosd", None, ".venv/bin/cosd"),
        ("/opt/cosd_api/__main__.py", "/usr/bin/cosd", "python -m cosd_api"),
    ],
)
def test_the_example_calls_the_command_that_is_there(
    called: str, on_path: str | None, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [called, "servers"])
    monkeypatch.setattr("shutil.which", lambda _: on_path)
    assert f"    {shown} fuse - --draft http://a --assistant http://b\n" in _example("http://a", "http://b")


@posix
def test_ctrl_c_of_a_terminal_reaches_the_servers_too_and_does_no_harm() -> None:
    with start("servers", start_new_session=True) as process:
        urls = read_urls(process)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert b"Traceback" not in errors
    assert all(map(gone, urls.values()))


def test_servers_go_when_the_command_is_killed() -> None:
    with start("servers") as process:
        urls = read_urls(process)
        process.kill()
    assert all(map(gone, urls.values()))


def test_no_models_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosd_api.apps.demo.servers.MODELS", tmp_path)
    done = cosd("servers")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("cosd: there is no model ")


@pytest.mark.parametrize("command", partly(["servers", "demo"]))
def test_without_llama_cpp_the_line_that_installs_it(command: str) -> None:
    script = "import sys; sys.modules['xllamacpp'] = None; from cosd_api.apps.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, command], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert 'it comes with: pip install ".[demo]" in a clone of the repository' in done.stderr
    assert done.stderr.count("\n") == 1
