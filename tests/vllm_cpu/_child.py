"""The process behind `served.py`: one server of the tests, such as vLLM, until standard input closes.

vLLM is several processes, and none of them notices that whoever started it was killed. This one does: it watches a
pipe that only the tests hold open, and ends only when every process of the server has ended. Linux and the standard
library only. To standard output it writes the server's URL as one line, before the server answers, and nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 20.0
"""How long vLLM may take to end in good order, which is also how its shared memory is given back."""


def main() -> None:
    """Runs `ARGUMENTS --host 127.0.0.1 --port FREE`; the arguments are this script's own."""
    # An orphan of vLLM's becomes a child of ours, so that waiting for all children is waiting for every process.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="cosd-served-") as scratch, socket.socket() as reserved:
        # Bound but not listening: nobody else is given this port, and vLLM may share it, which sets the same option.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        process = subprocess.Popen(
            [*sys.argv[1:], "--host", "127.0.0.1", "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
            env={**os.environ, "HOME": scratch, "TMPDIR": scratch},
        )
        os.write(1, f"http://127.0.0.1:{port}\n".encode())
        try:
            wait_for_the_end_of(process)
        finally:
            end(process)
    sys.exit(process.returncode)


def wait_for_the_end_of(process: subprocess.Popen[bytes]) -> None:
    """Returns when the server has ended by itself, or when nobody holds the pipe any more."""
    # The parent writes nothing: what can be read is the end.
    while process.poll() is None and not select.select([0], [], [], 0.2)[0]:
        pass


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends all processes of the server: the first, which tells the others; then who is left; then by force."""
    deadline = time.monotonic() + GRACE_SECONDS
    if process.poll() is None:
        process.terminate()
    told = False
    while somebody_is_left(process):
        late = time.monotonic() > deadline
        if late or (process.poll() is not None and not told):
            told = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.05)


def somebody_is_left(process: subprocess.Popen[bytes]) -> bool:
    """Whether any process of the server's is there; those that ended are let go."""
    process.poll()
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    main()
