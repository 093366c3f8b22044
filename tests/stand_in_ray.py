"""A stand-in for Ray 2.60: the few names that this library uses. Its actors live in this process, and can be lost.

`make test-ray` runs the same on the real one.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["StandInCluster", "installed"]


class RayError(Exception):
    """Any error of Ray's."""


class RayActorError(RayError):
    """The actor is gone, or is being started again."""


@dataclass
class StandInCluster:
    """The cluster.

    Attributes:
        processors: their number.
        actors: those that were made.
        started: the arguments of every `init`.
        ended: how often it was shut down.
        refuses: the error of `init`; None without one.
    """

    processors: int = 2
    actors: list[StandInActor] = field(default_factory=list)
    started: list[dict[str, Any]] = field(default_factory=list)
    ended: int = 0
    refuses: Exception | None = None

    def init(self, **given: Any) -> None:
        """Start it, or connect."""
        if self.refuses is not None:
            raise self.refuses
        self.started.append(given)

    def is_initialized(self) -> bool:
        """Test whether it was started."""
        return len(self.started) > self.ended

    def shutdown(self) -> None:
        """End it."""
        self.ended += 1

    def cluster_resources(self) -> dict[str, float]:
        """All that it has."""
        return {"CPU": float(self.processors)} if self.processors else {}

    def remote(self, **options: Any) -> Callable[[type], Any]:
        """Make actors of a class."""
        return lambda kind: _Kind(self, kind)

    def kill(self, actor: StandInActor) -> None:
        """End an actor."""
        actor.killed = True


@dataclass
class _Kind:
    cluster: StandInCluster
    kind: type

    def remote(self, *given: Any) -> StandInActor:
        actor = StandInActor(self.kind, pickle.dumps(given))
        self.cluster.actors.append(actor)
        return actor


class StandInActor:
    """An actor, whose arguments and answers are pickled.

    Attributes:
        calls: the methods that were called.
        lives: number of its process; calls of an earlier one are lost.
        down: calls to come that find it gone.
        killed: whether it was ended on purpose.
    """

    def __init__(self, kind: type, given: bytes) -> None:
        self._kind, self._given = kind, given
        self._made = kind(*pickle.loads(given))
        self.calls: list[str] = []
        self.lives = 1
        self.down = 0
        self.killed = False

    def lose(self, down: int = 0) -> None:
        """Lose its process, and start it again."""
        self.lives += 1
        self.down = down
        self._made = self._kind(*pickle.loads(self._given))

    def __getattr__(self, name: str) -> Any:
        return _Call(self, name)

    async def call(self, name: str, given: Any) -> Any:
        """Call a method."""
        self.calls.append(name)
        if self.down:
            self.down -= 1
            raise RayActorError("The actor is unavailable.\nIt is started again.")
        before = self.lives
        found = pickle.dumps(await getattr(self._made, name)(*pickle.loads(given)))
        if self.lives != before:
            raise RayActorError("The actor died.\nIts node is gone.")
        return pickle.loads(found)


@dataclass
class _Call:
    actor: StandInActor
    name: str

    def remote(self, *given: Any) -> Any:
        return self.actor.call(self.name, pickle.dumps(given))


@contextmanager
def installed(cluster: StandInCluster) -> Iterator[Any]:
    """The module of ours that knows Ray, with the stand-in."""
    module, errors = ModuleType("ray"), ModuleType("ray.exceptions")
    for name in ("init", "is_initialized", "shutdown", "cluster_resources", "remote", "kill"):
        setattr(module, name, getattr(cluster, name))
    vars(errors).update(RayError=RayError, RayActorError=RayActorError)
    for name in ("NodeDiedError", "ObjectLostError", "OutOfMemoryError", "WorkerCrashedError"):
        setattr(errors, name, type(name, (RayError,), {}))
    known = {"ray": module, "ray.exceptions": errors}
    before = {name: sys.modules.pop(name, None) for name in (*known, "cosd_api.batch.on_ray")}
    sys.modules.update(known)
    try:
        yield import_module("cosd_api.batch.on_ray")
    finally:
        for name, old in before.items():
            sys.modules.pop(name, None)
            if old is not None:
                sys.modules[name] = old
