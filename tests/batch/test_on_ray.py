"""Actors that answer the lines of a batch (on_ray), over a stand-in for Ray; `make test-ray` has the real one."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from batches import PROMPTS, fusion, input_file, read, texts
from cosd_api import Fusion, SettingError
from cosd_api.batch.actor import ActorState, LineActor
from cosd_api.batch.job import BatchJob
from cosd_api.batch.lines import BatchLine
from cosd_api.batch.reply import Answerer, Reply
from cosd_api.batch.summary import BatchSummary, BatchTally
from cosd_api.batch.usage import billed_tokens
from stand_in_ray import StandInCluster, installed

pytestmark = pytest.mark.extended


@pytest.fixture
def cluster() -> StandInCluster:
    return StandInCluster()


@pytest.fixture
def on_ray(cluster: StandInCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with installed(cluster) as module:
        monkeypatch.setattr(module, "_PAUSES", (0.0, 0.001))
        yield module


def slow() -> Fusion:
    return fusion(token_delay=0.001)


async def answered(answering: Any, folder: Path, **options: Any) -> tuple[BatchSummary, Path]:
    source, target = input_file(folder / "in.jsonl"), folder / "out.jsonl"
    async with fusion() as local:
        found = await BatchJob(source, target, concurrency=4, **options).run(local, answering)
    return found, target


async def test_actors_share_the_lines(on_ray: Any, cluster: StandInCluster, tmp_path: Path) -> None:
    found, target = await answered(on_ray.RayAnswering([slow] * 2, 4), tmp_path)
    assert (found.answered, found.failed) == (6, 0)
    assert texts(target) == {one[0]: " yes." for one in PROMPTS}
    shares = [one.calls.count("answer") for one in cluster.actors]
    assert sum(shares) == 6
    assert min(shares) >= 2
    assert all(one.killed for one in cluster.actors)


async def test_lines_of_a_lost_actor_are_asked_again(on_ray: Any, cluster: StandInCluster, tmp_path: Path) -> None:
    def lose(tally: BatchTally) -> None:
        if tally.answered == 1 and cluster.actors[0].lives == 1:
            cluster.actors[0].lose(down=3)

    answering = on_ray.RayAnswering([slow] * 2, 4)
    found, target = await answered(answering, tmp_path, progress=lose)
    assert (found.answered, found.failed) == (6, 0) and answering.lost > 0
    assert len(read(target)) == 6


async def test_all_actors_are_lost_for_a_while(on_ray: Any, cluster: StandInCluster, tmp_path: Path) -> None:
    def lose(tally: BatchTally) -> None:
        if tally.answered == 1:
            for one in cluster.actors:
                one.lose(down=5)

    found, target = await answered(on_ray.RayAnswering([slow], 4), tmp_path, progress=lose)
    assert (found.answered, len(read(target))) == (6, 6)


async def test_an_actor_that_fails_where_it_is_started_again(
    on_ray: Any, cluster: StandInCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(tally: BatchTally) -> None:
        if tally.answered == 1 and cluster.actors[0].lives == 1:
            cluster.actors[0].lose()
            monkeypatch.setattr(LineActor, "state", broken_state)

    async def broken_state(self: LineActor) -> ActorState:
        raise on_ray._errors.RayError("the task failed")

    answering = on_ray.RayAnswering([slow] * 2, 4)
    found, _ = await answered(answering, tmp_path, progress=lose)
    assert (found.answered, found.failed) == (6, 0)


async def test_actors_that_stay_away(
    on_ray: Any, cluster: StandInCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(tally: BatchTally) -> None:
        cluster.actors[0].lose(down=10**9)
        monkeypatch.setattr(on_ray, "_PATIENCE", 0.01)

    found, target = await answered(on_ray.RayAnswering([slow], 4), tmp_path, progress=lose)
    assert (found.answered, found.failed) == (0, 6)
    assert {row["error"]["code"] for row in read(target).values()} == {"RayActorError"}
    messages = {row["error"]["message"] for row in read(target).values()}
    assert all(one.startswith("the actors that had it were lost: ") for one in messages)


async def test_a_line_may_lose_four_actors(
    on_ray: Any, cluster: StandInCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Answerer.answer

    async def deadly(self: Answerer, line: BatchLine, allowed: int | None) -> Reply:
        if line.custom_id == "c":
            cluster.actors[0].lose()
        return await answer(self, line, allowed)

    monkeypatch.setattr(Answerer, "answer", deadly)
    source = input_file(tmp_path / "in.jsonl")
    actors = on_ray.RayAnswering([fusion], 1)
    async with fusion() as local:
        found = await BatchJob(source, tmp_path / "out.jsonl", concurrency=1).run(local, actors)
    assert (found.answered, found.failed, actors.lost) == (5, 1, 4)
    words = "the actors that had it were lost: Its node is gone."
    assert read(tmp_path / "out.jsonl")["c"]["error"]["message"] == words


async def test_the_limit_counts_what_a_lost_actor_may_have_billed(
    on_ray: Any, cluster: StandInCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[int | None] = []
    answer = Answerer.answer

    async def noted(self: Answerer, line: BatchLine, allowed: int | None) -> Reply:
        shares.append(allowed)
        if len(shares) == 1:
            cluster.actors[0].lose()
        return await answer(self, line, allowed)

    monkeypatch.setattr(Answerer, "answer", noted)
    source, limit = input_file(tmp_path / "in.jsonl"), 1000
    job = BatchJob(source, tmp_path / "out.jsonl", concurrency=1, max_billed_tokens=limit)
    async with fusion() as local, on_ray.RayAnswering([fusion], 1) as actors:
        found = await job.run(local, nullcontext(actors))
        first = shares[0]
        assert first is not None and first + billed_tokens(found.usage) <= limit
        assert found.stopped is not None and found.stopped.startswith("max_billed_tokens=1000 is reached")
        assert found.failed == 0 and found.missing > 0
        again = await job.run(local, nullcontext(actors))
    assert again.complete


async def test_the_cluster(on_ray: Any, cluster: StandInCluster) -> None:
    made = Fusion(draft="http://127.0.0.1:9", assistant="http://127.0.0.1:9")
    cluster.processors = 3
    # The fusion opens without a request: servers that are down are found out at the first line.
    async with on_ray.on_cluster(made, 2, address="auto"):
        assert len(cluster.actors) == 2  # no more than lines at a time
    assert cluster.started[0]["address"] == "auto" and cluster.started[0]["log_to_driver"] is False
    assert cluster.ended == 1
    async with on_ray.on_cluster(made, 8):
        assert len(cluster.actors) == 2 + 3
    for actors, words in (
        (4, "the cluster has 3 processors, and each actor takes one: take 3, or fewer"),
        (0, "actors must be a whole number"),
    ):
        with pytest.raises(SettingError, match=words):
            async with on_ray.on_cluster(made, 8, actors=actors):
                raise AssertionError
    cluster.processors = 0
    with pytest.raises(SettingError, match=r"^the cluster has no processors, and each actor takes one: give its"):
        async with on_ray.on_cluster(made, 8):
            raise AssertionError
    assert not cluster.is_initialized()
    with pytest.raises(SettingError, match="this fusion cannot be sent to another process"):
        on_ray.on_cluster(fusion(), 8)


@pytest.mark.parametrize("given", ["", "ray://"])
async def test_nobody_at_the_address(
    on_ray: Any, cluster: StandInCluster, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray, which would try for minutes, is not asked before somebody listens there; RAY_ADDRESS is an address, too."""
    made = Fusion(draft="http://127.0.0.1:9", assistant="http://127.0.0.1:9")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"{given}127.0.0.1:{listening.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        async with on_ray.on_cluster(made, 2):
            assert cluster.started[0]["address"] == address
    with pytest.raises(SettingError) as refused:
        async with on_ray.on_cluster(made, 2):
            raise AssertionError
    words = f"there is no Ray cluster at {address}: give HOST:PORT of its head as --ray-address or RAY_ADDRESS ("
    assert str(refused.value).startswith(words) and len(cluster.started) == 1
    for port in ("65536", "123456"):
        with pytest.raises(SettingError, match=f"cannot be used: {port} is no port"):
            async with on_ray.on_cluster(made, 2, address=f"{given}127.0.0.1:{port}"):
                raise AssertionError
    monkeypatch.setenv("RAY_ADDRESS", "")
    async with on_ray.on_cluster(made, 2):
        assert cluster.started[-1]["address"] is None


async def test_a_cluster_that_refuses(on_ray: Any, cluster: StandInCluster) -> None:
    """Ray's own words are told, all of them, with what to do."""
    made = Fusion(draft="http://127.0.0.1:9", assistant="http://127.0.0.1:9")
    versions = "Version mismatch: The cluster was started with:\n    Ray: 2.60.0\nThis process with:\n    Ray: 2.50.0\n"
    for error, words in (
        (ConnectionError("none is\nrunning"), "there is no Ray cluster at auto: give HOST:PORT of its head as "),
        (ValueError("Ray Client requires more"), "the Ray cluster at auto cannot be used: Ray Client requires more"),
        (on_ray._errors.RayError("no"), "the Ray cluster at auto cannot be used: no"),
        (
            RuntimeError(versions),
            "Ray: 2.60.0 This process with: Ray: 2.50.0. Install the cluster's versions here, or ",
        ),
    ):
        cluster.refuses = error
        with pytest.raises(SettingError, match=re.escape(words)):
            async with on_ray.on_cluster(made, 8, address="auto"):
                raise AssertionError


def broken() -> Fusion:
    raise SettingError("draft: the environment variable MY_KEY, which is to hold its key, is not set")


async def test_an_actor_that_cannot_make_the_fusion(on_ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match=r"^the fusion cannot be made on .+: draft: the environment variable MY_KEY"):
        async with on_ray.RayAnswering([fusion, broken], 4):
            raise AssertionError

    async def other(self: LineActor) -> ActorState:
        return ActorState("far", "0.0.1", None)

    monkeypatch.setattr(LineActor, "state", other)
    with pytest.raises(SettingError, match=r"^far has cosd-api 0\.0\.1, and this machine .+: install the same version"):
        async with on_ray.RayAnswering([fusion], 4):
            raise AssertionError


async def test_actors_that_do_not_start(on_ray: Any, cluster: StandInCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(*_: object) -> None:
        raise on_ray._errors.RayActorError("it died\nModuleNotFoundError: No module named 'cosd_api'")

    monkeypatch.setattr("stand_in_ray.StandInActor.call", gone)
    words = r"^an actor has not started\. .+ on every machine: ModuleNotFoundError: No module named 'cosd_api'"
    with pytest.raises(SettingError, match=words):
        async with on_ray.RayAnswering([fusion], 4):
            raise AssertionError

    async def never(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr("stand_in_ray.StandInActor.call", never)
    with pytest.raises(SettingError, match="Ray has not started 1 actors within 120 seconds: see whether others use"):
        async with on_ray.RayAnswering([fusion], 4):
            raise AssertionError
    assert all(one.killed for one in cluster.actors)


async def test_an_error_of_the_run_is_not_wrapped(
    on_ray: Any, cluster: StandInCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it hidden where the actors cannot be ended, as Ray itself is gone."""

    def kill(_: object) -> None:
        raise on_ray._errors.RayError("Ray has not been started")

    with pytest.raises(KeyError):
        async with on_ray.RayAnswering([fusion], 4):
            raise KeyError("x")
    monkeypatch.setattr(on_ray.ray, "kill", kill)
    with pytest.raises(KeyError):
        async with on_ray.RayAnswering([fusion], 4):
            raise KeyError("x")
    with pytest.raises(SettingError, match="MY_KEY"):
        async with on_ray.RayAnswering([fusion, broken], 4):
            raise AssertionError


async def test_the_cluster_is_for_lines_that_are_left(on_ray: Any, cluster: StandInCluster, tmp_path: Path) -> None:
    """No actor is made for an input that cannot be read, nor for one whose lines have answers."""
    await answered(on_ray.RayAnswering([slow], 4), tmp_path)
    assert len(cluster.actors) == 1
    found, _ = await answered(on_ray.RayAnswering([slow], 4), tmp_path)
    assert found.complete and found.known == 6
    job = BatchJob(input_file(tmp_path / "bad.jsonl", ["{"]), tmp_path / "new.jsonl")
    async with fusion() as local:
        with pytest.raises(SettingError, match=r"bad\.jsonl, line 1: "):
            await job.run(local, on_ray.RayAnswering([slow], 4))
    assert len(cluster.actors) == 1
