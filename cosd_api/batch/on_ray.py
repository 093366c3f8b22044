"""`cosd batch` on the machines of a Ray cluster. Extra: `cosd-api[ray]`. The only module that knows Ray."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup

from cosd_api import Fusion, SettingError, __version__
from cosd_api.batch.actor import ActorState, FusionSource, LineActor
from cosd_api.batch.lines import BatchLine
from cosd_api.batch.reply import Reply, failed, lost
from cosd_api.batch.sending import SentFusion

__all__ = ["RayAnswering", "on_cluster"]

ray: Any = import_module("ray")  # the type checker runs without Ray
_errors: Any = import_module("ray.exceptions")

_ATTEMPTS = 4
"""Actors that one line may lose; the line itself may end them."""
_PATIENCE = 120.0
"""Seconds to wait for an actor if none is alive."""
_PAUSES = (0.5, 1.0, 2.0, 5.0)
"""Seconds before each search for a lost actor; the last number repeats."""
_LOST: Any = (
    _errors.RayActorError,
    _errors.NodeDiedError,
    _errors.ObjectLostError,
    _errors.OutOfMemoryError,
    _errors.WorkerCrashedError,
)
"""Errors after which an actor counts as lost until it reports its state."""
_HOST_PORT = re.compile(r"(ray://)?\[?(?P<host>[^/]+?)\]?:(?P<port>\d+)$")
"""Address of a machine of a cluster, unlike `auto` and the like."""
_CONNECT = 10.0
"""Seconds for connecting to a machine's address."""
_OPTIONS = {"num_cpus": 1, "max_restarts": -1, "scheduling_strategy": "SPREAD"}


def on_cluster(
    fusion: Fusion, concurrency: int, *, actors: int | None = None, address: str | None = None
) -> AbstractAsyncContextManager[RayAnswering]:
    """Actors that answer lines as a fusion would, on an existing cluster, or on a new cluster on this machine.

    Args:
        fusion: its settings are sent to the actors, and its servers' limits divided among them.
        concurrency: lines that all actors together ask at a time.
        actors: number of actors; by default one for each processor, up to `concurrency`.
        address: of the cluster, unless this process has a cluster already. By default the address in RAY_ADDRESS, or a
            cluster that runs on this machine, or a new cluster.

    Raises:
        SettingError: the fusion cannot be sent, or a limit cannot be divided; on entering, there is no cluster at the
            address, the cluster has too few processors, or an actor cannot make the fusion.
    """
    sent = SentFusion.of(fusion)
    if actors is not None:
        sent.part(actors, 0)  # refuses, before anything is started
    return _opened(sent, concurrency, actors, address)


@asynccontextmanager
async def _opened(
    sent: SentFusion, concurrency: int, actors: int | None, address: str | None
) -> AsyncGenerator[RayAnswering]:
    own = not ray.is_initialized()
    with redirect_stdout(sys.stderr):  # Ray prints there that a node is gone
        try:
            if own:
                await _initialize(address or os.environ.get("RAY_ADDRESS") or None)
            room = int(ray.cluster_resources().get("CPU", 0))
            number = max(1, min(room, concurrency)) if actors is None else actors
            if not room:
                raise SettingError("the cluster has no processors, and each actor takes one: give its machines some")
            if number > room:
                words = f"the cluster has {room} processors, and each actor takes one"
                raise SettingError(f"{words}: take {room}, or fewer")
            async with RayAnswering([sent.part(number, at) for at in range(number)], concurrency) as answering:
                yield answering
        finally:
            if own:
                ray.shutdown()


async def _initialize(address: str | None) -> None:
    """Connect to a cluster, or start one.

    Raises:
        SettingError: the cluster cannot be reached or used; the message has a remedy.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster started here sends no statistics
    where = f" at {address}" if address else ""
    try:
        if (found := _HOST_PORT.match(address or "")) is not None:
            if int(found["port"]) >= 2**16:
                raise ValueError(f"{found['port']} is no port")
            with anyio.fail_after(_CONNECT):  # Ray itself would try again for minutes
                stream = await anyio.connect_tcp(found["host"], int(found["port"]))
            await stream.aclose()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except OSError as error:
        words = f"there is no Ray cluster{where}: give HOST:PORT of its head as --ray-address or RAY_ADDRESS"
        raise SettingError(f"{words} ({_one_line(error) or 'no answer'})") from error
    except (RuntimeError, ValueError, _errors.RayError) as error:
        words = _one_line(error)
        more = ""
        if "version" in words.lower():
            more = ". Install the cluster's versions here, or run the command on one of its machines"
        raise SettingError(f"the Ray cluster{where} cannot be used: {words}{more}") from error


@dataclass(slots=True, eq=False)
class _Worker:
    """An actor.

    Attributes:
        handle: Ray's handle.
        busy: number of lines that it has at the moment.
        alive: whether it gets lines.
    """

    handle: Any
    busy: int = 0
    alive: bool = True


class RayAnswering:
    """Actors of a cluster that answer lines. If a line's actor is lost, another actor asks the line again.

    An asynchronous context manager; it needs an initialized Ray.

    Args:
        sources: for each actor, the maker of its fusion.
        concurrency: lines that all actors together ask at a time.

    Attributes:
        lost: number of times that a line lost its actor.
    """

    def __init__(self, sources: Sequence[FusionSource], concurrency: int) -> None:
        self._sources = sources
        self._at_once = concurrency + 1  # one more for calls of `state`
        self._workers: list[_Worker] = []
        self._found = anyio.Event()
        self._tasks: TaskGroup = anyio.create_task_group()
        self.lost = 0

    async def __aenter__(self) -> Self:
        made = ray.remote(**_OPTIONS, max_concurrency=self._at_once)(LineActor)
        with ExitStack() as stack:
            stack.callback(self._kill)
            self._workers += (_Worker(made.remote(one)) for one in self._sources)
            try:
                with anyio.fail_after(_PATIENCE):
                    for worker in self._workers:
                        _check(await worker.handle.state.remote())
            except TimeoutError:
                words = f"Ray has not started {len(self._sources)} actors within {_PATIENCE:g} seconds"
                raise SettingError(f"{words}: see whether others use the cluster's processors, or take fewer") from None
            except _errors.RayError as error:
                words = "an actor has not started. cosd-api of this version, and what its extras need, must be"
                raise SettingError(f"{words} installed on every machine: {_last_line(error)}") from error
            await self._tasks.__aenter__()
            stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._tasks.cancel_scope.cancel()
        try:
            await self._tasks.__aexit__(None, None, None)  # else an error of the block would come in a group
        finally:
            self._kill()

    async def answer(self, line: BatchLine, allowed: int | None) -> Reply:
        """Ask one line; see `cosd_api.batch.reply.LineAnswerer`."""
        words = "no actor is left"
        for _ in range(_ATTEMPTS):
            if (worker := await self._free()) is None:
                break
            worker.busy += 1
            try:
                reply: Reply = await worker.handle.answer.remote(line, allowed)
                return reply
            except _LOST as error:  # the actor's process or machine is gone
                words = _last_line(error)
                self._lose(worker)
                if allowed is not None:
                    return lost(line, allowed)
            finally:
                worker.busy -= 1
        return failed(line, "RayActorError", f"the actors that had it were lost: {words}")

    async def _free(self) -> _Worker | None:
        """The actor with the fewest lines; None if no actor is alive within `_PATIENCE` seconds."""
        with anyio.move_on_after(_PATIENCE):
            while not (alive := [one for one in self._workers if one.alive]):
                await self._found.wait()
            return min(alive, key=lambda one: one.busy)
        return None

    def _lose(self, worker: _Worker) -> None:
        self.lost += 1
        if worker.alive:  # the first of its lines to notice
            worker.alive = False
            self._found = anyio.Event()
            self._tasks.start_soon(self._find, worker)

    async def _find(self, worker: _Worker) -> None:
        """Wait until Ray has started a lost actor again, here or on another machine."""
        attempt = 0
        while not worker.alive:
            await anyio.sleep(_PAUSES[min(attempt, len(_PAUSES) - 1)])
            attempt += 1
            try:
                state: ActorState = await worker.handle.state.remote()
            except _errors.RayError:  # the actor is gone, or could not be made; the others go on
                continue
            worker.alive = state.problem is None and state.version == __version__
        self._found.set()

    def _kill(self) -> None:
        for one in self._workers:
            with suppress(_errors.RayError, OSError, RuntimeError):  # if Ray itself is gone, the actors are, too
                ray.kill(one.handle)
        self._workers = []


def _check(state: ActorState) -> None:
    """Check that an actor can answer.

    Raises:
        SettingError: the actor has no fusion, or another version of this library.
    """
    if state.version != __version__:
        words = f"{state.machine} has cosd-api {state.version}, and this machine {__version__}"
        raise SettingError(f"{words}: install the same version")
    if state.problem is not None:
        raise SettingError(f"the fusion cannot be made on {state.machine}: {state.problem}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _last_line(error: Exception) -> str:
    return str(error).strip().rpartition("\n")[2]
