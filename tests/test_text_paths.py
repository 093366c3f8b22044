"""Models that take text only, through a whole fusion: the naive reference, null control, faults, and by hand."""
from __future__ import annotations
from collections.abc import Sequence
from typing import Any
from hypothesis import given
from hypothesis import strategies as st
import pytest
import reference_paths as naive
import virtual_time
from cosd_api import FusionResult, fuse
from cosd_providers.testing import ScriptedProvider
from cosd_providers.text import sendable
from drawn import costly, examples
from reference_text import TextReference
from test_own_paths import DELAYS, WAYS, Task, check_record, fused, tasks

@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time.BACKEND

def servers_of(task: Task, text: Sequence[int], places: int = 64, delays: Sequence[float] = (0, 0, 0)) -> dict[str, Any]:
    request, token, question = delays
    draft = ScriptedProvider(task.draft, name="draft", ids=naive.DRAFT not in text, request_delay=request, token_delay=token)
    assistants = [ScriptedProvider(one, name=f"assistant {at}", ids=at not in text, places=places, request_delay=question*(1+at)) for at, one in enumerate(task.assistants)]
    return {"draft": draft, "assistant": assistants}

def expected(task: Task, text: Sequence[int]) -> naive.Fused:
    return TextReference(task.prompt.encode(), task.draft, task.assistants, lambda _, p, q: task.verifier.replaces(p, q),
        text=text, contestable=task.verifier.contestable, max_tokens=task.max_tokens, stop=[one.encode() for one in task.stop], tie=task.tie).fuse()

@st.composite
def some(draw: st.DrawFn):
    task = draw(tasks())
    models = [naive.DRAFT, *range(len(task.assistants))]
    return task, tuple(draw(st.lists(st.sampled_from(models), min_size=1, unique=True)))

@costly(60)
@given(some(), st.sampled_from(WAYS), st.sampled_from((1, 64)), DELAYS)
async def test_equal_to_the_reference(given_: tuple[Task, Sequence[int]], way: dict[str, Any], places: int, delays: Any) -> None:
    task, text = given_
    servers = servers_of(task, text, places, delays)
    result = await fused(task, servers, **way)
    wanted = expected(task, text)
    assert result.text == sendable(wanted.text)
    assert result.finish_reason == wanted.finish_reason
    check_record(result, task.max_tokens)
    assert result.trace.replay() == result.text
    for server in (servers["draft"], *servers["assistant"]):
        assert server.open_requests == 0
