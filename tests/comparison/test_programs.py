"""Programs that models wrote, in processes with few rights."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from cosd_api import Example, GradingError, SettingError
from cosd_api.comparison import programs
from cosd_api.comparison.programs import ProgramGrader, ProgramLimits, run_program
from drawn import partly

posix = pytest.mark.skipif(os.name == "nt", reason="limits of POSIX")
ADD = Example(prompt='def add(a, b):\n    """Sum."""\n', answer="    return a + b", tests="assert add(2, 3) == 5")


async def test_a_program_that_runs_to_its_end_has_passed() -> None:
    found = await run_program("import json\nprint('this is it')")
    assert found.passed and not found.late and found.output == "this is it"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import sys; sys.exit(0)", ""),  # the tests below it would not run
        ("def broken(:", "SyntaxError"),
    ],
)
async def test_a_program_that_fails(source: str, words: str) -> None:
    found = await run_program(source)
    assert not found.passed and not found.late and words in found.output


@pytest.mark.parametrize(
    "source",
    [
        "import atexit\natexit.register(print, 'late')",
        "import sys\nprint('x' * 5000)\nsys.stdout = None",
        "import os\nos.chdir('/')",
    ],
)
async def test_what_a_program_prints_or_moves_does_not_hide_that_it_passed(source: str) -> None:
    assert (await run_program(source)).passed


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos._exit(0)",
        "open('passed', 'w').write('yes')\n1 / 0",
        "import os\nos.unlink('passed')\nos.mkdir('passed')\n1 / 0",
        "x = '\ud800'",  # half a surrogate pair, which no file can hold
        "x = '\0'",
    ],
)
async def test_a_program_that_did_not_reach_its_end_has_not_passed(source: str) -> None:
    assert not (await run_program(source)).passed
    assert not await ProgramGrader()(ADD, source)


@pytest.mark.extended
async def test_a_program_that_never_ends_is_stopped() -> None:
    found = await run_program("while True: pass", ProgramLimits(seconds=1))
    assert found.late and not found.passed


async def test_a_program_sees_neither_keys_nor_this_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSD_API_KEY", "secret")
    found = await run_program("import os\nprint(sorted(os.environ), os.listdir(), os.getcwd())")
    assert found.passed and "COSD" not in found.output and "program.py" in found.output
    folder = found.output.rpartition(" ")[2]
    assert "cosd-program-" in folder and not os.path.exists(folder)  # noqa: PTH110, ASYNC240


LIMITED = {
    "RLIMIT_AS": "bytearray(1 << 31)",
    "RLIMIT_FSIZE": "open('big', 'wb').write(bytes(1 << 17))",
    "RLIMIT_NOFILE": "files = [open(__file__) for _ in range(100)]",
    "RLIMIT_NPROC": "if os.fork() == 0: os._exit(0)",
    "RLIMIT_CPU": "while True: pass",
    "processes": "open('/proc/{parent}/environ').read()",
    "network": "import socket; socket.create_connection(('127.0.0.1', {port}), 2)",
}


@posix
@pytest.mark.parametrize("name", partly([*LIMITED]))
async def test_limits_that_this_machine_sets_hold(name: str) -> None:
    """The network of the machine would be there: a server listens on loopback."""
    limits = ProgramLimits(seconds=20, cpu_seconds=1, file_bytes=1 << 16, files=32)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as server:
        port = server.listeners[0].extra(anyio.abc.SocketAttribute.local_port)
        found = await run_program(f"import os\n{LIMITED[name].format(port=port, parent=os.getpid())}", limits)
    if name == "RLIMIT_NPROC" and os.geteuid() == 0:
        assert found.passed  # as the grader warns
    elif name in found.limited:
        assert not found.passed and not found.late
    else:
        assert name in ("network", "processes", "RLIMIT_AS")  # containers without namespaces; macOS


@posix
@pytest.mark.extended
async def test_processes_that_a_program_leaves_behind_are_killed(tmp_path: Path) -> None:
    """They share its process group; where namespaces are there, those that left it die, too."""
    sign = tmp_path / "alive"
    source = (
        "import os, time\nif os.fork() == 0:\n    {leave}\n    time.sleep(1.5)\n"
        f"    open({str(sign)!r}, 'w').close()\n    os._exit(0)\n"
    )
    plain = await run_program(source.format(leave="pass"), ProgramLimits(processes=4000))
    gone = await run_program(source.format(leave="os.setsid()"), ProgramLimits(processes=4000))
    await anyio.sleep(2)
    assert plain.passed and gone.passed
    assert not sign.exists() or "processes" not in gone.limited


@pytest.mark.extended
async def test_a_program_dies_with_its_caller() -> None:
    """Cancelled, the caller does not wait for the end."""
    began = time.monotonic()
    with anyio.move_on_after(0.5):
        await run_program("import time\ntime.sleep(60)", ProgramLimits(seconds=60))
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("    return a + b", True),  # a continuation of the prompt
        ("    return a - b", False),
        ("Sure:\n```python\ndef add(a, b):\n    return b + a\n```\nIt adds.", True),
        ("def add(a, b):\n    return a + b", True),
        ("I cannot do that.", False),
    ],
)
async def test_tests_decide(text: str, right: bool) -> None:
    assert await ProgramGrader()(ADD, text) is right


async def test_an_example_without_tests_is_refused() -> None:
    with pytest.raises(GradingError, match="the example has no tests"):
        await ProgramGrader()(Example(prompt="Q", answer="a"), "x = 1")


async def test_what_this_machine_does_not_limit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ProgramGrader() as grader:
        superuser = hasattr(os, "geteuid") and os.geteuid() == 0
        assert any("as the superuser" in one for one in grader.warnings) == superuser

    async def nothing(source: str, limits: ProgramLimits) -> programs.ProgramOutcome:
        return programs.ProgramOutcome(passed=True, late=False, output="", limited=frozenset())

    monkeypatch.setattr(programs, "run_program", nothing)
    async with ProgramGrader() as grader:
        words = " ".join(grader.warnings)
    assert "programs can reach the network: this user cannot create network namespaces on this machine" in words
    assert "the memory of programs is not limited" in words and "only their wall-clock time" in words


@posix
async def test_limits_that_are_too_narrow_are_refused_before_the_first_answer() -> None:
    with pytest.raises(SettingError, match="an empty program does not run within these limits: "):
        async with ProgramGrader(ProgramLimits(files=1)):
            pass


def test_the_identity_has_all_limits_and_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    grader = ProgramGrader()
    assert grader.identity == ProgramGrader(ProgramLimits()).identity
    others = [ProgramGrader(ProgramLimits(memory=1 << 28)), ProgramGrader(ProgramLimits(seconds=3))]
    found = [grader.identity, *(one.identity for one in others)]
    monkeypatch.setattr(sys, "version", "another")
    found.append(grader.identity)
    assert len({*found}) == 4 and all(one.startswith("program") for one in found)


def test_names_and_invalid_limits() -> None:
    assert ProgramGrader().name == "program" and ProgramGrader(ProgramLimits(seconds=3)).name == "program 3 s"
    with pytest.raises(SettingError, match="seconds must be a number above 0"):
        ProgramLimits(seconds=-1)
    with pytest.raises(SettingError, match="memory must be a whole number of at least 1"):
        ProgramLimits(memory=0)


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces of Linux")
def test_a_program_is_not_run_after_its_parent_was_killed() -> None:
    """The parent dies before its child could ask to die with it; the child is held back until then."""
    launcher = Path(programs.__file__).with_name("_run_program.py")
    source = f"""
import os, runpy
launcher = runpy.run_path({str(launcher)!r})
reads, writes = os.pipe()  # closed when the parent is gone
fork = os.fork
def late():
    child = fork()
    if child:
        os._exit(0)
    os.close(writes)
    os.read(reads, 1)
    return 0
os.fork = late
print(launcher["separate"](), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert "processes" not in done.stdout, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces of Linux")
@pytest.mark.extended
def test_a_program_ends_even_if_nobody_is_left_to_stop_it(tmp_path: Path) -> None:
    """The launcher, alone: nobody kills it after its time."""
    launcher = Path(programs.__file__).with_name("_run_program.py")
    (tmp_path / "token").write_text("t")
    (tmp_path / "program.py").write_text("import time\ntime.sleep(60)")
    limits = ["1", "5", str(1 << 30), "1000", "64", "0"]
    done = subprocess.run([sys.executable, str(launcher), "program.py", *limits], cwd=tmp_path, check=False, timeout=30)
    assert done.returncode != 0 and (tmp_path / "passed").read_text() == ""


def test_the_launcher_needs_nothing_but_the_standard_library() -> None:
    text = Path(programs.__file__).with_name("_run_program.py").read_text(encoding="utf-8")
    imported = {line.split()[1] for line in text.splitlines() if line.strip().startswith(("import ", "from "))}
    assert imported - {"__future__"} <= sys.stdlib_module_names
