"""Installing a server for tests (environments) and ending it (vllm_cpu.servers), without any vLLM."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

import environments
from environments import RECIPES, InstallError, Recipe
from support.served import ServedError
from vllm_cpu import _child, servers

VLLM = RECIPES["vllm"]

pytestmark = [pytest.mark.extended, pytest.mark.skipif(sys.platform != "linux", reason="vLLM's tests run on Linux")]

#: Stands for vLLM's Python: it starts a process of its own, names both, answers nothing, and does not end by itself.
FAKE = """\
    import os, signal, subprocess, sys
    {setup}
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("pids", os.getpid(), child.pid, flush=True)
    signal.pause()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What an installation leaves behind, in the eyes of the next one."""
    made = tmp_path / "vllm"
    (made / "bin").mkdir(parents=True)
    (made / "bin" / "python").symlink_to(sys.executable)
    (made / ".cosd-vllm").touch()
    (made / ".ready").write_text(VLLM.fingerprint)
    return made


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_requirement_is_pinned(recipe: Recipe) -> None:
    lines = [line for line in recipe.requirements.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert len(lines) > 10
    for line in lines:
        name, _, version = line.partition(" ;")[0].partition("==")
        assert name and version and not set("/@+<>") & set(line.partition(" ;")[0]), line
    assert f"{recipe.package}=={recipe.version}" in lines


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recipe: Recipe) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(recipe.variable, raising=False)
    assert recipe.folder().parent == tmp_path / "cosd-api"
    start = f"{recipe.name.lower()}-{recipe.version}-{sys.implementation.cache_tag}-"
    assert recipe.folder().name.startswith(start)
    monkeypatch.setenv(recipe.variable, str(tmp_path / "mine"))
    assert recipe.folder() == tmp_path / "mine"


def test_what_is_ready_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("something was run"))
    VLLM.install(folder)
    assert VLLM.is_ready(folder)


def test_what_is_not_ready(folder: Path, tmp_path: Path) -> None:
    (folder / "bin" / "python").unlink()
    (folder / "bin" / "python").symlink_to(tmp_path / "removed")
    assert not VLLM.is_ready(folder)
    (folder / "bin" / "python").unlink()
    (folder / "bin" / "python").symlink_to(sys.executable)
    assert VLLM.is_ready(folder)
    other = tmp_path / "requirements.txt"
    other.write_text(VLLM.requirements.read_text(encoding="utf-8") + "another==1\n", encoding="utf-8")
    assert not replace(VLLM, requirements=other).is_ready(folder)
    assert not replace(VLLM, revision=2).is_ready(folder)
    (folder / ".ready").unlink()
    assert not VLLM.is_ready(folder)


def test_an_interrupted_installation_is_begun_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".ready").unlink()
    (folder / "half").touch()
    ran: list[list[str]] = []

    def run(command: list[str], lock: int, **_: object) -> subprocess.CompletedProcess[str]:
        assert not VLLM.is_ready(folder)
        ran.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(environments, "run", run)
    VLLM.install(folder)
    assert VLLM.is_ready(folder)
    assert not (folder / "half").exists()
    assert [command[-2:-1] for command in ran] == [["--requirement"], ["-c"]]
    [info] = folder.glob("lib/python*/site-packages/vllm-*.dist-info/METADATA")
    assert f"Version: {VLLM.version}+cpu\n" in info.read_text()


@pytest.mark.parametrize(
    ("failing", "words"),
    [("--requirement", "pip could not install vLLM"), ("-c", "does not start: no kernels\n.*build for the CPU")],
)
def test_a_failure_leaves_nothing_ready(
    folder: Path, monkeypatch: pytest.MonkeyPatch, failing: str, words: str
) -> None:
    (folder / ".ready").unlink()

    def run(command: list[str], lock: int, **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, int(failing in command), "Traceback\nno kernels\n", "")

    monkeypatch.setattr(environments, "run", run)
    with pytest.raises(InstallError, match=words):
        VLLM.install(folder)
    assert not VLLM.is_ready(folder)


def test_a_folder_of_somebody_else_is_never_emptied(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letters").touch()
    with pytest.raises(InstallError, match=r"home holds something else; set COSD_VLLM_ENV"):
        VLLM.install(tmp_path / "home")
    assert (tmp_path / "home" / "letters").exists()


def test_a_full_disk_is_reported_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match=r"vLLM needs 1000000000 GB in .*COSD_VLLM_ENV"):
        replace(VLLM, gigabytes=10**9).install(tmp_path / "vllm")


def test_two_installations_wait_for_each_other(folder: Path) -> None:
    stamp = (folder / ".ready").read_text()
    (folder / ".ready").unlink()
    with folder.with_name("vllm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        script = str(Path(environments.__file__))
        environment = {**os.environ, "COSD_VLLM_ENV": str(folder)}
        with subprocess.Popen(
            [sys.executable, script, "vllm"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as other:
            assert other.stderr is not None
            assert other.stderr.readline() == "Another run is installing vLLM: waiting for it ...\n"
            (folder / ".ready").write_text(stamp)
            fcntl.flock(lock, fcntl.LOCK_UN)
            said, errors = other.communicate()
    assert (other.returncode, said, errors) == (0, f"{folder}\n", "")


def fake(folder: Path, setup: str = "") -> Path:
    script = folder / "fake.py"
    script.write_text(textwrap.dedent(FAKE).format(setup=setup))
    python = folder / "bin" / "python"
    python.unlink()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@" >&2\n')
    python.chmod(0o755)
    return folder


def started(server: servers.VllmServer) -> list[int]:
    """The processes behind a server that is a fake."""
    while "pids" not in server.log():
        server.check()
        time.sleep(0.01)
    return [int(pid) for pid in server.log().split()[1:3]]


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("setup", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_no_process_is_left(folder: Path, setup: str, monkeypatch: pytest.MonkeyPatch) -> None:
    child = Path(_child.__file__).read_text(encoding="utf-8")
    assert "GRACE_SECONDS = 20.0" in child
    impatient = folder / "_child.py"
    impatient.write_text(child.replace("GRACE_SECONDS = 20.0", "GRACE_SECONDS = 0.3"), encoding="utf-8")
    monkeypatch.setattr(servers, "CHILD", impatient)
    server = servers.VllmServer(fake(folder, setup), servers.MODELS / "sums", "sums", [])
    pids = started(server)
    assert not any(gone(pid) for pid in pids)
    server.stop()
    server.stop()
    assert all(gone(pid) for pid in [*pids, server.pid])


def test_no_process_is_left_when_the_tests_are_killed(folder: Path) -> None:
    script = textwrap.dedent(f"""\
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from vllm_cpu import servers
        server = servers.VllmServer(Path({str(fake(folder))!r}), servers.MODELS / "sums", "sums", [])
        while "pids" not in server.log():
            time.sleep(0.01)
        print(server.pid, *server.log().split()[1:3], flush=True)
        time.sleep(600)
    """)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as tests:
        assert tests.stdout is not None
        pids = [int(pid) for pid in tests.stdout.readline().split()]
        assert len(pids) == 3
        os.killpg(tests.pid, signal.SIGKILL)
    while not all(gone(pid) for pid in pids):
        time.sleep(0.02)


def test_a_server_that_ends_shows_its_last_lines(folder: Path) -> None:
    server = servers.VllmServer(fake(folder, "sys.exit('no such model')"), servers.MODELS / "sums", "sums", [])
    with pytest.raises(ServedError, match=r"sums ended with code 1; its log ends:\nno such model"):
        server.wait_until_ready()
    server.stop()


def test_a_server_that_never_answers(folder: Path) -> None:
    server = servers.VllmServer(fake(folder), servers.MODELS / "sums", "sums", [])
    started(server)
    with pytest.raises(ServedError, match=r"sums was not ready after 0 s; its log ends:\npids "):
        server.wait_until_ready(0)
    server.stop()


def test_no_environment(tmp_path: Path) -> None:
    with pytest.raises(ServedError, match=r"there is no vLLM in .*; `make test-vllm` installs it"):
        servers.VllmServer(tmp_path, servers.MODELS / "sums", "sums", [])
