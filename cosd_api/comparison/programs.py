"""Run programs written by models, in processes with few privileges. This protects against accidents, not attacks.

Each program runs with limits on time, memory, files and processes, in a temporary folder, and without this process's
environment variables. On Linux, if unprivileged users may create namespaces, the program has no network, and cannot
send signals to other processes or read their memory. It can still read any file that this user can read. It can also
create, change or delete files wherever this user has write access, and connect to services that listen on sockets in
the file system. If a model may be malicious, run the whole comparison in a container or a virtual machine.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from subprocess import DEVNULL
from tempfile import TemporaryDirectory
from typing import Self

import anyio
from anyio.abc import Process

from cosd_api import Example, GradingError, SettingError, __version__
from cosd_api.comparison.grading import BaseGrader, code_block
from cosd_api.extend import check_count, check_positive

_LAUNCHER = Path(__file__).with_name("_run_program.py")
_SHOWN = 2000  # bytes kept from the end of a program's output
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # NumPy then starts no threads
_GIVEN: tuple[str, ...] = ("SYSTEMROOT",) if os.name == "nt" else ()  # on Windows, Python needs it to start


@dataclass(frozen=True, kw_only=True)
class ProgramLimits:
    """Limits of one program.

    Attributes:
        seconds: seconds of wall-clock time.
        cpu_seconds: seconds of processor time.
        memory: bytes of address space.
        file_bytes: maximum size in bytes of each file that the program writes, including its output.
        files: maximum number of files that the program may have open at the same time.
        processes: maximum number of processes and threads that this user may have besides the program. This limit does
            not apply to the superuser.

    Raises:
        SettingError: a limit is not positive.
    """

    seconds: float = 10.0
    cpu_seconds: int = 5
    memory: int = 1 << 30
    file_bytes: int = 1 << 24
    files: int = 64
    processes: int = 0

    def __post_init__(self) -> None:
        check_positive("seconds", self.seconds)
        for name in ("cpu_seconds", "memory", "file_bytes", "files"):
            check_count(name, getattr(self, name))
        check_count("processes", self.processes, least=0)


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """The outcome of a program.

    Attributes:
        passed: whether the program ran to its last line without an error.
        late: whether the program was stopped at the time limit.
        output: the end of the program's output, including any error message.
        limited: names of the limits that were set, with `network` and `processes` if the program was isolated from
            them.
    """

    passed: bool
    late: bool
    output: str
    limited: frozenset[str]


async def run_program(source: str, limits: ProgramLimits | None = None) -> ProgramOutcome:
    """Run a Python program with this interpreter in a separate process, and stop it when it reaches a limit.

    A program that ends before its last line, for example by `sys.exit(0)`, has not passed. If the caller is cancelled,
    the process is killed. If `limits` is None, the limits of `ProgramLimits()` apply.
    """
    limits = limits or ProgramLimits()
    token = secrets.token_hex(16)
    with TemporaryDirectory(prefix="cosd-program-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        program, output = folder / "program.py", folder / "output"
        program.write_bytes(source.encode("utf-8", "surrogatepass"))  # a lone surrogate becomes a syntax error
        (folder / "token").write_text(token, encoding="ascii")
        clock = ceil(min(limits.seconds, 1e6)) + 1
        bounds = (clock, limits.cpu_seconds, limits.memory, limits.file_bytes, limits.files, limits.processes)
        command = [sys.executable, "-I", "-B", str(_LAUNCHER), str(program), *map(str, bounds)]
        environment = _ENVIRONMENT | {name: os.environ[name] for name in _GIVEN if name in os.environ}
        with output.open("wb") as file:
            process = await anyio.open_process(
                command, stdin=DEVNULL, stdout=file, stderr=file, cwd=folder, env=environment, start_new_session=True
            )
        try:
            with anyio.move_on_after(limits.seconds) as scope:
                await process.wait()
        finally:
            await _end(process)
        written = output.read_bytes()[-_SHOWN:].decode(errors="replace").rstrip()
        limited = frozenset(_said(folder / "status").split())
        passed = process.returncode == 0 and _said(folder / "passed") == token
    return ProgramOutcome(passed, scope.cancelled_caught, written, limited)


def _said(path: Path) -> str:
    """Read a file that the launcher writes; return an empty text if it is missing or the program has damaged it."""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""


async def _end(process: Process) -> None:
    """Kill the process and its group, and wait until it has ended, even if the caller is cancelled."""
    with anyio.CancelScope(shield=True):
        with suppress(ProcessLookupError, PermissionError):
            if os.name == "nt":
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await process.aclose()


class ProgramGrader(BaseGrader):
    """A grader that runs the answer and then the example's `tests` as one program, which must not raise an error.

    If an answer has fenced blocks, the first block is the program. Otherwise the whole answer is the program. If an
    answer without fenced blocks is not valid Python, and the prompt is text, the prompt is put before the answer.

    Args:
        limits: limits of one program.

    Attributes:
        name: `program`, followed by the time limit if it is not the default.
        identity: the name, all limits, the limits that this machine can set, the library's version and this
            interpreter.
        warnings: warnings about limits that this machine cannot set.
    """

    def __init__(self, limits: ProgramLimits | None = None) -> None:
        self._limits = limits or ProgramLimits()
        self._limited: frozenset[str] = frozenset()
        default = self._limits.seconds == ProgramLimits().seconds
        self.name = "program" if default else f"program {self._limits.seconds:g} s"

    @property
    def identity(self) -> str:
        """See `BaseGrader.identity`; known after entering."""
        python = (sys.implementation.name, sys.version, sys.prefix)
        known = (__version__, *asdict(self._limits).items(), *sorted(self._limited), *python)
        return f"{self.name} {hashlib.sha256(repr(known).encode('utf-8', 'backslashreplace')).hexdigest()}"

    async def __aenter__(self) -> Self:
        """Run an empty program, to find out which limits this machine can set.

        Raises:
            SettingError: the empty program does not run.
        """
        outcome = await run_program("", self._limits)
        if not outcome.passed:
            why = outcome.output.splitlines()[-1] if outcome.output else "it did not end in time"
            raise SettingError(f"an empty program does not run within these limits: {why}")
        self._limited = outcome.limited
        self.warnings = tuple(words for name, words in _MISSING.items() if name not in outcome.limited) + (
            (_SUPERUSER,) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
        )
        return self

    def check(self, example: Example) -> None:
        """Check that the example has tests, and that they are valid Python."""
        if example.tests is None:
            hint = '"tests": "assert add(2, 2) == 4"'
            raise SettingError(f"the grader program needs the tests of each example, and this one has none: {hint}")
        if (problem := _syntax(example.tests)) is not None:
            raise SettingError(f"the tests of this example are not valid Python: {problem}")

    async def __call__(self, example: Example, text: str) -> bool:
        """Run the program and the tests.

        Raises:
            GradingError: the example has no tests.
        """
        if example.tests is None:
            raise GradingError("the example has no tests")
        return (await run_program(f"{_program(example, text)}\n\n{example.tests}", self._limits)).passed


_MISSING: Mapping[str, str] = {
    "network": "programs can reach the network: this user cannot create network namespaces on this machine",
    "RLIMIT_AS": "the memory of programs is not limited on this machine",
    "RLIMIT_CPU": "the processor time of programs is not limited on this machine, only their wall-clock time",
}
_SUPERUSER = (
    "programs run as the superuser, who may start any number of processes and write every file: use another user"
)


def _program(example: Example, text: str) -> str:
    """Extract the program from an answer."""
    if (block := code_block(text)) is not None:
        return block
    if isinstance(example.prompt, str) and _syntax(text) is not None:
        return example.prompt + text
    return text


def _syntax(source: str) -> str | None:
    """Return the syntax error of a program; None if its syntax is valid."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "<program>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return str(error)
    return None
