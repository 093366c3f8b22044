"""Slots of a llama.cpp server, and the one that an answer keeps to.

A server reads a prompt again in each slot that a request falls into. So the server chooses a slot for the first request
of an answer and a role, which finds what an earlier conversation left there, and later requests name that slot.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Any, Self
from weakref import WeakValueDictionary

__all__ = ["Lease", "Slots", "slots_of"]

_SERVERS: WeakValueDictionary[str, Slots] = WeakValueDictionary()
_LOCK = threading.Lock()  # answers may run in several event loops


def slots_of(endpoint: str, total: int | None) -> Slots:
    """The slots of a server, shared by all answers of this process."""
    with _LOCK:
        found = _SERVERS.get(endpoint)
        if found is None or found.total != (total or 0):  # it was started anew
            found = _SERVERS[endpoint] = Slots(total)
        return found


class Slots:
    """The slots of one server that answers of this process hold.

    Args:
        total: how many the server has; None if it does not say.

    Attributes:
        total: the same; 0 if it is unknown, and then no slot is ever held.
    """

    def __init__(self, total: int | None) -> None:
        self.total = total or 0
        self._leases = 0
        self._held: set[int] = set()

    def lease(self) -> Lease:
        """A lease for one answer and one role."""
        return Lease(self)

    def open(self) -> None:
        """Count one more lease."""
        with _LOCK:
            self._leases += 1

    def close(self, slot: int | None) -> None:
        """Take back a lease, with the slot that it held."""
        with _LOCK:
            self._leases -= 1
            if slot is not None:
                self._held.discard(slot)

    def hold(self, slot: int) -> int | None:
        """Give a slot to a lease: this one, or another where a lease holds it; None where none is free."""
        with _LOCK:
            free = [one for one in range(self.total) if one not in self._held]
            if slot >= self.total or not free:
                return None
            found = slot if slot in free else free[0]
            self._held.add(found)
            return found

    @property
    def enough(self) -> bool:
        """True if every lease can have a slot: otherwise those that hold one would wait behind those that do not."""
        return self._leases <= self.total


class Lease(AbstractContextManager["Lease"]):
    """The slot in which the first request of an answer and a role was served."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._slot: int | None = None

    def __enter__(self) -> Self:
        self._slots.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self._slots.close(self._slot)
        self._slot = None

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of a request that is to be served there; none while the server is free to choose."""
        return {} if self._slot is None or not self._slots.enough else {"id_slot": self._slot}

    def landed(self, slot: int | None) -> None:
        """Note the slot in which the first request was served: it is kept, or another one where a lease holds it."""
        if self._slot is None and slot is not None and slot >= 0:
            self._slot = self._slots.hold(slot)
