"""Gemma 3 270M on llama.cpp, a model with a sliding window: fused with itself with and without `--swa-full`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from cosd_api import Fusion, RuleVerifier
from cosd_providers import ProbeReport, connect, probe
from live_real.conftest import served_gemma
from live_real.prompts import PROMPTS
from live_real.test_null_control import EVERYWHERE, RULE, say

COUNT, LENGTH = 20, 24
ADVICE = "start it with --swa-full if its model has a sliding window: restarts are slow, its numbers unsteady"


@dataclass(frozen=True)
class Written:
    """The text that the model writes alone.

    Attributes:
        ids: the ids.
        listed: the log probabilities of the most probable ids at each place.
    """

    ids: list[int]
    listed: list[dict[int, float]]

    def lead(self, at: int, one: int, other: int) -> float:
        """The difference between the log probabilities of two ids at a place."""
        listed = self.listed[at]
        return listed.get(one, min(listed.values())) - listed.get(other, min(listed.values()))


@pytest.fixture(
    scope="module", params=[True, pytest.param(False, marks=pytest.mark.extended)], ids=["swa-full", "by default"]
)
def swa_full(request: pytest.FixtureRequest) -> bool:
    """Test whether the servers keep more than the window."""
    return bool(request.param)


@pytest.fixture(scope="module")
def draft(swa_full: bool) -> Iterator[str]:
    """The model on a server."""
    yield from served_gemma(swa_full=swa_full)


@pytest.fixture(scope="module")
def assistant(swa_full: bool) -> Iterator[str]:
    """The same on a server of its own."""
    yield from served_gemma(swa_full=swa_full)


@pytest.fixture
def without() -> Iterator[str]:
    """The model as a server starts it by default."""
    yield from served_gemma(swa_full=False)


@pytest.fixture
def full() -> Iterator[str]:
    """The model with `--swa-full`."""
    yield from served_gemma(swa_full=True)


@pytest.fixture(scope="module")
def alone(draft: str) -> dict[str, list[Written]]:
    """The model's own answers to the prompts, with a cold cache and with a warm one."""
    prompts = PROMPTS[:COUNT]
    with httpx.Client(base_url=draft, timeout=120) as client:
        return {prompt: [_written(client, prompt, cache=cache) for cache in (False, True)] for prompt in prompts}


def _written(client: httpx.Client, prompt: str, *, cache: bool) -> Written:
    body = {"prompt": prompt, "n_predict": LENGTH, "temperature": 0, "samplers": ["temperature"], "n_probs": 20}
    answer: Any = client.post("/completion", json={**body, "return_tokens": True, "cache_prompt": cache}).json()
    places = answer["completion_probabilities"]
    return Written(answer["tokens"], [{one["id"]: one["logprob"] for one in at["top_logprobs"]} for at in places])


def _noise(cold: Written, warm: Written) -> float:
    """The most by which the leads of the best ids over the second ones differ, as far as two answers agree."""
    most = 0.0
    for at, (one, other) in enumerate(zip(cold.ids, warm.ids, strict=False)):
        best, second = list(cold.listed[at])[:2]
        most = max(most, abs(cold.lead(at, best, second) - warm.lead(at, best, second)))
        if one != other:
            break
    return most


@pytest.fixture(scope="module")
def probed(draft: str) -> ProbeReport:
    """The probe's report on the draft's server."""
    return asyncio.run(probe(draft))


@pytest.mark.parametrize(
    "verifier", [pytest.param(RULE, id="rule", marks=pytest.mark.extended), pytest.param(EVERYWHERE, id="everywhere")]
)
async def test_the_model_with_itself_writes_what_it_writes_alone(
    draft: str,
    assistant: str,
    alone: dict[str, list[Written]],
    probed: ProbeReport,
    verifier: RuleVerifier,
    swa_full: bool,
) -> None:
    """With the tie that the probe proposes, answers part only within the server's own noise, measured in the same run.

    The noise is the difference between answers that the model writes alone, with a cold cache and with a warm one.
    """
    async with Fusion(draft=draft, assistant=assistant, verifier=verifier, tie=probed.tie) as fusion:
        results = [await fusion.generate(prompt, max_tokens=LENGTH) for prompt in alone]
    noise = max(probed.tie or 0, *(_noise(*answers) for answers in alone.values()))
    own = sum(cold.ids != warm.ids for cold, warm in alone.values())
    parted: list[str] = []
    for (prompt, answers), result in zip(alone.items(), results, strict=True):
        assert (result.settings.contexts, result.settings.unit) == ("ids", "token")
        ids = [token.id for token in result.tokens]
        if any(ids == written.ids for written in answers):
            continue
        leads: list[float] = []
        for written in answers:
            at = next(n for n, (mine, its) in enumerate(zip(ids, written.ids, strict=False)) if mine != its)
            leads.append(written.lead(at, written.ids[at], ids[at] or 0))
        parted.append(f"{prompt!r} parts from its own answers at leads of {leads[0]:.3f} and {leads[1]:.3f}")
        assert min(leads) <= noise, parted[-1]
    words = f"{COUNT - len(parted)} of {COUNT} equal with tie={probed.tie}"
    say("\n".join([f"{words}; alone, cold and warm differ at {own}, by leads of {noise:.3f}", *parted]))
    assert len(parted) <= own + (COUNT // 10 if swa_full else COUNT // 2), "\n".join(parted)


async def test_without_the_option_the_probe_warns_and_with_it_it_does_not(without: str, full: str) -> None:
    report, probed = await probe(without), await probe(full)
    assert (report["restart"].value, probed["restart"].value) == (6, 0)
    assert (ADVICE in report.advice, ADVICE in probed.advice) == (True, False)
    assert report.tie == pytest.approx(0.1)
    assert "alone)" in report["tie"].seen
    say(f"without --swa-full: {report['restart'].seen}; {report['tie'].seen}\nwith it: {probed['tie'].seen}")
    async with connect(without, report=report) as known:
        assert (await known.describe()).capabilities.reread == 6
