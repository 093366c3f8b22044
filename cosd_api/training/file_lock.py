"""File lock that lets one process write at a time. The operating system releases it even if the process crashes."""

from __future__ import annotations

import errno
import sys
from typing import BinaryIO

__all__ = ["lock"]

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL})
"""Errors from a file system that does not support locks."""

if sys.platform == "win32":
    import msvcrt

    _FAR = 2**31 - 2
    """Offset of the locked byte: far beyond the text, because other processes cannot read a locked byte."""

    def lock(file: BinaryIO) -> bool:
        """Lock an open file until it is closed; False if another process holds the lock."""
        before = file.tell()
        file.seek(_FAR)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError as error:
            return error.errno in _NO_LOCKS
        finally:
            file.seek(before)
        return True

else:
    import fcntl

    def lock(file: BinaryIO) -> bool:
        """Lock an open file until it is closed; False if another process holds the lock."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in _NO_LOCKS
        return True
