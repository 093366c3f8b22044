"""`cosd serve`: which fusions are served, what is refused before, and the schema."""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from cosd_api import Fusion
from cosd_api.apps.gateway import Gateway
from cosd_providers import Message
from fakes.commands import SERVERS, Scripted, cosd, start, words
from support.visits import Visit

PAIR = "draft: http://gpu1:8080\nassistants: [http://gpu2:8080]\n"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Gateway]:
    """The gateways that a command would have served: it is interrupted once connections are taken."""
    found: list[Gateway] = []

    def run(gateway: Gateway, at: Any, *, ready: Callable[[], None]) -> None:
        ready()
        found.append(gateway)
        raise KeyboardInterrupt

    monkeypatch.setattr("cosd_api.apps.gateway.server.run_gateway", run)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("cosd_api.apps.cli.serve._logged_to_stderr", nullcontext)
    return found


def names(gateway: Gateway) -> list[str]:
    reply = anyio.run(Visit(gateway, "/v1/models").send)
    return [one["id"] for one in reply.json["data"]]


def test_one_fusion_of_the_command_line(scripted: Scripted, served: list[Gateway]) -> None:
    ended = cosd("serve", *SERVERS, "--port", "0", "--name", "mine", "--max-tokens", "5")
    assert ended.exit_code == 0, ended.output
    assert ended.stdout.startswith("http://127.0.0.1:") and ended.stdout.endswith("/v1\n")
    assert "cosd: serving mine; Ctrl-C stops it" in ended.stderr
    assert names(served[0]) == ["mine"]


def test_messages_and_limits_of_the_command_line_hold_for_every_answer(
    scripted: Scripted, served: list[Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Fusion] = {}

    def gateway(fusions: dict[str, Fusion], **more: Any) -> Gateway:
        found.update(fusions)
        return Gateway(fusions, **more)

    monkeypatch.setattr("cosd_api.apps.gateway.routes.Gateway", gateway)
    assert cosd("serve", *SERVERS, "--port", "0", "--draft-system", "Know.", "--max-tokens", "5").exit_code == 0
    assert found["cosd"].limits == {"max_tokens": 5, "own": {"draft": (Message("system", "Know."),)}}


def test_the_fusions_of_a_file(served: list[Gateway], tmp_path: Path) -> None:
    path = tmp_path / "fusion.yaml"
    path.write_text("fusions:\n  a: &\n".replace(" &", "") + "".join(f"    {line}\n" for line in PAIR.splitlines()))
    assert cosd("serve", str(path), "--port", "0").exit_code == 0
    path.write_text(PAIR + "limits: {max_tokens: 7}\n")
    assert cosd("serve", str(path), "--port", "0").exit_code == 0
    assert [names(gateway) for gateway in served] == [["a"], ["cosd"]]


def test_fields_to_be_ignored(scripted: Scripted, served: list[Gateway], tmp_path: Path) -> None:
    """Those of the command line are added to those of a file."""
    path = tmp_path / "fusion.yaml"
    path.write_text(
        "fusions:\n  cosd:\n" + "".join(f"    {line}\n" for line in PAIR.splitlines()) + "ignore: [top_p]\n"
    )
    for given in (SERVERS, (str(path),)):
        ended = cosd("serve", *given, "--port", "0", "--ignore", "temperature", "--ignore", "think")
        assert ended.exit_code == 0, ended.output
    assert [one.ignore for one in served] == [{"temperature", "think"}, {"temperature", "top_p", "think"}]


def test_the_schema_is_printed() -> None:
    ended = cosd("serve", "--schema")
    assert json.loads(ended.stdout)["properties"].keys() >= {"fusions", "keys", "limits", "cors"}


@pytest.mark.parametrize(
    ("given", "text", "said"),
    [
        (["FILE"], "fusions:\n  a:\n    drafd: x\n", "fusion.yaml, line 3: fusions.a.drafd: there is no such field"),
        (["FILE", "--draft", "http://draft"], PAIR, "is for one fusion, but FILE defines its own"),
        (["FILE", "--max-tokens", "5"], PAIR, "--max-tokens"),
        (["FILE", "--name", "mine"], PAIR, "is for one fusion, but FILE defines its own"),
        (["FILE", "--host", "0.0.0.0"], PAIR, "other machines could use the models without a key: set COSD_SERVE_KEYS"),
        (["FILE", "--host", "256.0.0.1"], PAIR, "other machines could use"),
        (["FILE", "--ignore", "n"], PAIR, "'n' cannot be ignored, only fields that leave the form of an answer alone"),
        (["no-such-file.yaml"], PAIR, "no-such-file.yaml: No such file or directory"),
        (["--draft", "http://draft"], PAIR, "is required: the URL of a server"),
    ],
)
def test_mistakes_are_named_before_anything_is_served(
    scripted: Scripted,
    served: list[Gateway],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: list[str],
    text: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fusion.yaml").write_text(text)
    ended = cosd("serve", *[one.replace("FILE", "fusion.yaml") if one == "FILE" else one for one in given])
    assert ended.exit_code == 2
    assert said in words(ended)
    assert served == []


def test_a_server_that_is_not_there_is_named_after_the_start() -> None:
    """It ends nothing."""
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with start("serve", "--draft", url, "--assistant", url, "--port", "0") as process:
            assert process.stdout.readline().startswith(b"http://127.0.0.1:")
            lines = [process.stderr.readline().decode() for _ in range(3)]
            assert process.poll() is None
            process.terminate()
    assert lines[0] == "cosd: serving cosd; Ctrl-C stops it\n"
    for name, line in zip(("draft", "assistant"), lines[1:], strict=True):
        began = f"cosd: the server of the model {name!r} of 'cosd' does not answer as it should (ConnectError): {url}: "
        assert line.startswith(began) and "Is the server running, and is the URL right?" in line


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such signal")
def test_keys_are_read_again_on_a_signal(tmp_path: Path) -> None:
    """A faulty file leaves them as they are."""
    old, new = "o" * 16, "n" * 16
    secret, path = tmp_path / "secret", tmp_path / "fusion.yaml"
    secret.write_text(old)
    fusions = "fusions:\n  cosd:\n" + "".join(f"    {line}\n" for line in PAIR.splitlines())
    path.write_text(f"{fusions}keys: [{{name: team-a, file: secret}}]\n")
    with start("serve", str(path), "--port", "0") as process:
        url = process.stdout.readline().decode().strip()

        def status(key: str) -> int:
            return httpx.get(f"{url}/models", headers={"authorization": f"Bearer {key}"}, timeout=60).status_code

        def read_again() -> str:
            process.send_signal(signal.SIGHUP)
            while "keys" not in (line := process.stderr.readline().decode()):
                assert line
            return line

        assert [status(key) for key in (old, new)] == [200, 401]
        secret.write_text(new)
        assert "cosd: the keys were read again: team-a; all other settings stay as they were" in read_again()
        assert [status(key) for key in (old, new)] == [401, 200]
        for text, words in (
            (f"{fusions}keys: [{{name: team-a, fil: secret}}]\n", "there is no such field; did you mean 'file'"),
            (
                f"{fusions}keys: [{{name: team-a, file: nothing}}]\n",
                "nothing, which should contain a key: No such file",
            ),
            (fusions, "there would be no key any more, and any client could use the models"),
        ):
            path.write_text(text)
            line = read_again()
            assert line.startswith("cosd: the keys stay as they were: ") and words in line
            assert [status(key) for key in (old, new)] == [401, 200]
        process.terminate()
    assert process.returncode == 0


def test_a_key_lets_other_machines_in(
    scripted: Scripted, served: list[Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSD_SERVE_KEYS", "k" * 20)
    assert cosd("serve", *SERVERS, "--host", "0.0.0.0", "--port", "0").exit_code == 0
    assert anyio.run(Visit(served[0], "/v1/models").send).status == 401
