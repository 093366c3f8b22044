"""Script that `programs.py` starts in a new process: it gives up privileges, then runs the program.

The script imports nothing from this library. If the platform does not support a limit or refuses a namespace, the
program runs without it. The file `status` lists the limits that were set. At the start, the script reads a word from
the file `token`. After the program has run to its end, the script writes this word to the file `passed`.
"""

from __future__ import annotations

import os
import runpy
import select
import signal
import sys

_NEW_USER, _NEW_PIDS, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000  # from Linux's sched.h
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def limit(seconds: int, memory: int, file_bytes: int, files: int, processes: int) -> list[str]:
    """Set limits that the program cannot raise; return the names of the limits that were set."""
    try:
        import resource  # noqa: PLC0415 - missing on Windows
    except ImportError:
        return []
    bounds = {
        "RLIMIT_CPU": seconds,
        "RLIMIT_AS": memory,
        "RLIMIT_FSIZE": file_bytes,
        "RLIMIT_NOFILE": files,
        "RLIMIT_NPROC": processes,
        "RLIMIT_CORE": 0,
    }
    done: list[str] = []
    for name, bound in bounds.items():
        try:
            resource.setrlimit(getattr(resource, name), (bound, bound))
        except (AttributeError, OSError, ValueError):
            continue
        done.append(name)
    return done


def separate() -> list[str]:
    """Isolate the process; return a list with `network` and `processes` if it is isolated from them."""
    if not sys.platform.startswith("linux"):
        return []
    import ctypes  # noqa: PLC0415

    libc = ctypes.CDLL(None)
    if libc.unshare(_NEW_USER | _NEW_NETWORK | _NEW_PIDS) == 0:
        # The child is the first process of its namespace, so if it dies, all processes that it has started die, too.
        reads, writes = os.pipe()
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        os.close(writes)
        if select.select([reads], [], [], 0)[0]:  # the parent died before `prctl` was called
            os._exit(1)
        os.close(reads)
        return ["network", "processes"]
    return ["network"] if libc.unshare(_NEW_USER | _NEW_NETWORK) == 0 else []


def main() -> None:
    """Run the program `argv[1]` for at most `argv[2]` seconds, with the limits in the other arguments."""
    program, seconds, *bounds = sys.argv[1:]
    with open("token", encoding="ascii") as file:  # noqa: PTH123
        token = file.read()
    os.unlink("token")  # noqa: PTH108
    if hasattr(signal, "alarm"):
        signal.alarm(int(seconds))  # ends this process even if the parent has died
    done = separate() + limit(*map(int, bounds))
    with open("status", "w", encoding="ascii") as file:  # noqa: PTH123
        file.write(" ".join(done))
    sys.argv = [program]
    with open("passed", "w", encoding="ascii") as file:  # noqa: PTH123
        runpy.run_path(program, run_name="__main__")
        file.write(token)


if __name__ == "__main__":
    main()
