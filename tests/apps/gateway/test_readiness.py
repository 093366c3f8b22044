"""Readiness: found out beside the requests, within a second, and not kept beyond what holds. In virtual time."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import pytest

from cosd_api import Fusion, connect
from cosd_api.apps.gateway.readiness import Readiness
from cosd_providers import ConnectError
from cosd_providers.testing import ScriptedProvider
from support import virtual_time
from toys.lima import assistant, draft


@pytest.fixture
def anyio_backend() -> Any:
    return virtual_time.BACKEND


class Stoppable(ScriptedProvider):
    """A server that can be stopped and continued, or be slow to say what it is.

    Attributes:
        goes_on: set while it answers.
        probes: the number of them that it has answered.
        slow: seconds until its model is known.
    """

    def __init__(self, model: Any, slow: float = 0) -> None:
        super().__init__(model)
        self.goes_on = anyio.Event()
        self.goes_on.set()
        self.probes = 0
        self.slow = slow

    def stop(self) -> None:
        self.goes_on = anyio.Event()

    async def describe(self) -> Any:
        await anyio.sleep(self.slow)
        await self.goes_on.wait()
        return await super().describe()

    async def check_alive(self) -> None:
        await self.goes_on.wait()
        self.probes += 1


def pair(**options: Any) -> tuple[Stoppable, Stoppable]:
    return Stoppable(draft().model, **options), Stoppable(assistant().model)


def readiness(models: tuple[ScriptedProvider, ScriptedProvider], **settings: Any) -> Readiness:
    return Readiness({"fused": Fusion(draft=models[0], assistant=models[1], **settings)})


async def test_the_first_answer_waits_a_second_for_what_is_not_known() -> None:
    models = pair(slow=5)
    ready = readiness(models)
    async with ready.watching():
        began = anyio.current_time()
        assert await ready.check() == ("not ready", {"fused": {"draft": "unknown", "assistant": "ready"}}, 1)
        assert anyio.current_time() - began == 1
        await anyio.sleep(5)
        state, found, age = await ready.check()
        assert (state, found["fused"]) == ("ready", {"draft": "ready", "assistant": "ready"})
        assert age is not None and age <= 2


@pytest.mark.parametrize("which", [0, 1])
async def test_a_server_that_hangs_is_found_out_and_so_is_its_return(which: int) -> None:
    models = pair()
    ready = readiness(models)
    names = ("draft", "assistant")
    async with ready.watching():
        assert (await ready.check())[0] == "ready"
        models[which].stop()
        stopped = anyio.current_time()
        while (found := await ready.check())[0] == "ready":
            assert anyio.current_time() - stopped < 6
            await anyio.sleep(0.5)
        assert found[1]["fused"] == {names[which]: "timeout", names[1 - which]: "ready"}  # the other is not stale
        models[which].goes_on.set()
        await anyio.sleep(3)
        assert (await ready.check())[0] == "ready"


async def test_no_answer_waits_longer_than_a_second_however_long_a_server_hangs() -> None:
    models = pair()
    ready = readiness(models)
    async with ready.watching():
        await ready.check()
        models[0].stop()
        for _ in range(50):
            before = anyio.current_time()
            state, _, _ = await ready.check()
            assert anyio.current_time() - before <= 1
            await anyio.sleep(1)
        assert state == "not ready"


async def test_a_finding_that_is_old_does_not_count() -> None:
    models = pair()
    ready = readiness(models)
    async with ready.watching():
        await ready.check()
        await anyio.sleep(3600)  # nobody asks
        models[1].stop()
        state, found, age = await ready.check()
    assert (state, found["fused"]) == ("not ready", {"draft": "ready", "assistant": "unknown"})
    assert age is not None and age > 3000


async def test_servers_are_probed_only_while_somebody_asks() -> None:
    models = pair()
    ready = readiness(models)
    async with ready.watching():
        await anyio.sleep(600)
        assert models[0].probes == 0
        await ready.check()
        await anyio.sleep(600)
        assert 20 < models[0].probes < 40
        await ready.check()
        await anyio.sleep(30)
        assert models[0].probes > 40


async def test_an_assistant_that_is_spared_degrades() -> None:
    for spares, expected in (("draft", "degraded"), ("raise", "not ready")):
        models = pair()
        ready = readiness(models, on_assistant_error=spares)
        async with ready.watching():
            await ready.check()
            models[1].stop()
            await anyio.sleep(6)
            assert (await ready.check())[0] == expected
            models[0].stop()
            await anyio.sleep(6)
            assert (await ready.check())[0] == "not ready"


async def test_a_fault_of_a_provider_is_a_state(caplog: pytest.LogCaptureFixture) -> None:
    class Wrong(Stoppable):
        async def check_alive(self) -> None:
            raise RuntimeError("private".upper())

    models = Wrong(draft().model), Stoppable(assistant().model)
    ready = readiness(models)
    said: list[str] = []
    async with ready.watching():
        assert await ready.check() == ("not ready", {"fused": {"draft": "internal", "assistant": "ready"}}, 0)
        ready.report(said.append)
        await anyio.sleep(1)
    assert "unexpected RuntimeError" in caplog.text
    assert "PRIVATE" not in caplog.text + str(said)
    assert [one.rpartition(": ")[2] for one in said] == ["the log says where"]


async def test_the_operator_is_told_which_server_does_not_answer() -> None:
    class Away(Stoppable):
        async def describe(self) -> Any:
            raise ConnectError("refused", endpoint="http://gpu2:8080", hint="Is it running?")

    away = "the server of the model 'assistant' of 'fused' does not answer as it should (ConnectError): "
    found = f"the server of every model answers; found: {(await draft().describe()).model}"
    for provider, line in ((Away, f"{away}http://gpu2:8080: refused. Is it running?"), (Stoppable, found)):
        said: list[str] = []
        ready = readiness((Stoppable(draft().model), provider(assistant().model)))
        ready.report(said.append)  # outside the block nothing is probed
        async with ready.watching():
            ready.report(said.append)
            assert said == []  # nothing waits for it
            await anyio.sleep(1)
        assert said == [line]
    models = pair()
    models[0].stop()
    ready, said = readiness(models), []
    async with ready.watching():
        ready.report(said.append)
        await anyio.sleep(20)
    [line] = said
    assert "the server of the model 'draft' of 'fused' does not answer as it should (timeout)" in line
    assert line.endswith("nothing came within 15 seconds; it may be loading its model, or hang")


async def test_a_server_that_loads_is_not_said_to_hang() -> None:
    loading = httpx.Response(503, json={"error": {"message": "Loading model"}})
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: loading)) as client:
        ready = Readiness({"fused": Fusion(draft=draft(), assistant=connect("http://gpu2:8080", http_client=client))})
        said: list[str] = []
        async with ready.watching():
            ready.report(said.append)
            await anyio.sleep(20)
            _, found, _ = await ready.check()
    assert found == {"fused": {"draft": "ready", "assistant": "ServerError"}}
    line = "the server of the model 'assistant' of 'fused' does not answer as it should (ServerError)"
    assert said == [f"{line}: http://gpu2:8080: 503: Loading model"]
