"""Fusions of restricted models equal the naive references of restricted models."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import test_leads as leads
import test_own_paths as own_paths
import test_text_paths as text_paths
from cosd_api import FusionResult, fuse
from cosd_providers.text import sendable
from naive import reference_ids
from naive.restricted import RestrictedModel, Texts, restricted
from support import virtual_time
from support.drawn import examples
from toys import ngrams
from toys.id_models import AB, ACUTE, END, HALF, REST, TOKENS, TWIN, WRITTEN, IdModel, Task, rules
from toys.unsteady import Order, by_ids, orders

LISTED = 4
"""Number of tokens that the servers list."""
PARTS = ("a", "b", "ab", "é", "😀", " ", "aab", "a b")
PREFERRED = (*b"ab ", AB, AB, TWIN, ACUTE, HALF, REST, 0xC3, 0xA9)
WAYS: tuple[dict[str, Any], ...] = ({}, {"draft_length": 1}, {"draft_length": 3}, {"max_ahead": 2}, {"ask": "all"})


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time.BACKEND


@dataclass(frozen=True)
class Wide(IdModel):
    """A model that may write every byte, and prefers some ids."""

    @cached_property
    def _lists(self) -> dict[tuple[int, ...], list[tuple[int, float]]]:
        return {}

    def listed(self, ids: Sequence[int]) -> list[tuple[int, float]]:
        """Every id with its probability, the most probable first."""
        key = tuple(ids[-2:])
        if key not in self._lists:
            chance = random.Random(repr((self.seed, key)))
            preferred = dict(super().listed(ids))
            left = [one for one in (*range(256), *WRITTEN, END) if one not in preferred]
            ranked = dict.fromkeys(chance.sample(left, len(left)))
            shares = {one: 2.0 ** -(12 + at // 20) for at, one in enumerate(ranked)}
            total = sum(preferred.values()) + sum(shares.values())
            found = {one: prob / total for one, prob in (preferred | shares).items()}
            self._lists[key] = sorted(found.items(), key=lambda one: (-one[1], one[0]))
        return self._lists[key]


@dataclass(frozen=True)
class Restricted(Task):
    """A task whose answers are in a language."""

    texts: tuple[bytes, ...] = ()

    def expected(self, **changes: Any) -> reference_ids.Fused:
        """The answer of the naive reference."""

        def model(one: IdModel) -> reference_ids.Next:
            return restricted(
                one.after(self.prompt),
                Texts(self.texts),
                spell=lambda id_: b"" if id_ in one.end_ids else TOKENS[id_],
                ends=one.end_ids,
                end=next(iter(one.end_ids)),
                encode=one.encode,
                listed=LISTED,
            )

        draft, *assistants = map(model, (self.draft, *self.assistants))
        ends = frozenset[int]().union(*(one.end_ids for one in (self.draft, *self.assistants)))
        given: dict[str, Any] = {"spell": TOKENS.__getitem__, "ends": ends, "max_tokens": self.max_tokens}
        given |= {"stop": self.stop, "tie": self.tie, "fires": self.fires}
        return reference_ids.fuse(draft, assistants, **given | changes)


@st.composite
def tasks(draw: st.DrawFn) -> Restricted:
    """Answers in languages of a few texts, of which some begin alike and some end within others."""
    some = draw(st.lists(st.lists(st.sampled_from(PARTS), min_size=1, max_size=8), min_size=1, max_size=5))
    common = "".join(draw(st.lists(st.sampled_from(PARTS), max_size=3)))
    texts = {(common + "".join(one)).encode() for one in some}
    if draw(st.booleans()):
        texts |= {one.decode()[: len(one.decode()) // 2].encode() for one in texts} - {b""}
    seeds, language = st.integers(0, 2**16), draw(st.integers(0, 2**16))
    written = (*draw(st.lists(st.sampled_from(PREFERRED), min_size=2, max_size=8, unique=True)), END)
    model = st.builds(
        Wide, seed=seeds, language=st.just(language), fluency=st.sampled_from((6, 10)), written=st.just(written)
    )
    return Restricted(
        prompt=draw(st.sampled_from(("Q", "ab", "é:"))),
        draft=draw(model),
        assistants=tuple(draw(st.lists(model, min_size=1, max_size=2))),
        verifier=draw(rules()),
        max_tokens=draw(st.integers(1, 40)),
        stop=draw(st.sampled_from(((), (), (b"b",), (b"a ", b",")))),
        tie=draw(st.sampled_from((0.0, 0.02))),
        hides=False,
        texts=tuple(sorted(texts)),
    )


async def fused(task: Restricted, order: Order, **settings: Any) -> FusionResult:
    servers = by_ids(task, order)
    for one in (servers["draft"], *servers["assistant"]):
        one.top_k = LISTED - 1
    return await fuse(
        task.prompt,
        **servers,
        verifier=task.verifier,
        tie=task.tie,
        max_tokens=task.max_tokens,
        stop=[one.decode() for one in task.stop],
        response_format=[one.decode() for one in task.texts],
        **settings,
    )


@examples(300)
@given(tasks(), orders(), st.sampled_from(WAYS))
async def test_the_same_ids_in_any_order_of_events(task: Restricted, order: Order, way: dict[str, Any]) -> None:
    result, wanted = await fused(task, order, **way), task.expected()
    assert [(one.id, one.data) for one in result.tokens] == [(one.id, one.data) for one in wanted.tokens]
    for token, out in zip(result.tokens, wanted.tokens, strict=True):
        if token.source == "draft":
            assert token.draft_prob == pytest.approx(out.p)
    assert result.finish_reason == wanted.finish_reason
    assert (result.text.encode() in task.texts) or result.stop_reason != "end"
    assert any(one.startswith(b"".join(token.data for token in result.tokens)) for one in task.texts)


@st.composite
def on_own_ids(draw: st.DrawFn) -> tuple[own_paths.Task, tuple[str, ...]]:
    """Answers of models with different ids, in languages of texts that part from each other at some characters."""
    task = draw(own_paths.tasks())
    passages = [one for one in ngrams.passages() if len(one) > 80]

    def some(size: int) -> str:
        passage = draw(st.sampled_from(passages))
        at = draw(st.integers(0, len(passage) - size))
        return passage[at : at + size]

    trunk = some(draw(st.integers(1, 60)))
    texts = {trunk}
    for _ in range(draw(st.integers(0, 4))):
        texts.add(trunk[: draw(st.integers(0, len(trunk)))] + some(draw(st.integers(1, 30))))
    return task, tuple(sorted(texts))


@examples(300)
@given(on_own_ids(), st.sampled_from(WAYS), st.sampled_from((1, 64)), own_paths.DELAYS)
async def test_different_ids(
    drawn: tuple[own_paths.Task, tuple[str, ...]], way: dict[str, Any], places: int, delays: Any
) -> None:
    task, texts = drawn
    servers = own_paths.providers(task, places, delays)
    for one in (servers["draft"], *servers["assistant"]):
        one.top_k = LISTED - 1
    result = await own_paths.fused(task, servers, **way, response_format=texts)
    language = Texts(tuple(one.encode() for one in texts))
    made: list[Any] = [
        RestrictedModel(one, language, task.prompt.encode(), LISTED) for one in (task.draft, *task.assistants)
    ]
    wanted = replace(task, draft=made[0], assistants=tuple(made[1:])).expected()
    assert result.text == sendable(wanted.text)
    assert result.finish_reason == wanted.finish_reason
    assert any(one.startswith(result.text) for one in texts)


@examples(60)
@given(on_own_ids(), st.data(), st.sampled_from(WAYS), own_paths.DELAYS)
async def test_models_by_text_keep_to_the_language(
    drawn: tuple[own_paths.Task, tuple[str, ...]], data: st.DataObject, way: dict[str, Any], delays: Any
) -> None:
    task, texts = drawn
    by_text = data.draw(st.lists(st.integers(-1, len(task.assistants) - 1), min_size=1, unique=True))
    servers = text_paths.servers(task, by_text, 64, delays)
    for one in (servers["draft"], *servers["assistant"]):
        one.top_k = LISTED - 1
    result = await own_paths.fused(task, servers, **way, response_format=texts)
    assert any(one.startswith(result.text) for one in texts)
    assert result.text in texts or result.stop_reason != "end"
    assert result.trace.replay() == result.text


@examples(40)
@given(leads.tasks(), st.data(), st.sampled_from(WAYS))
async def test_the_white_space_of_a_template_comes_first(
    task: leads.Task, data: st.DataObject, way: dict[str, Any]
) -> None:
    """A model's path begins with it, although no text of the language does, and whether or not bytes are forced."""
    task = replace(task, obeys=tuple(True for _ in task.models))
    own = b"".join(task.models[0].tokens[one] for one in ngrams_alone(task))
    texts = {
        own.decode("utf-8", "ignore").strip() or "a",
        *data.draw(st.lists(st.sampled_from(("The", "In a", "\n", "é")), max_size=2)),
    }
    servers = task.servers()
    result = await task.fused(servers, unit="word", response_format=sorted(texts), **way)
    assert any(one.startswith(result.text) for one in texts)
    raw = b"".join(task.models[0].tokens[one.id or 0] for one in result.tokens)
    shown = raw.decode("utf-8", "ignore")  # the limit may cut a character
    assert shown == (task.leads[0] + result.text)[: len(shown)]
    assert len(result.tokens) == task.max_tokens or result.text in texts


def ngrams_alone(task: leads.Task) -> list[int]:
    """The ids that the draft writes by itself."""
    writer, ids = task.leading[0], list[int]()
    while len(ids) < 8 and task.models[0].end not in ids:
        probs = writer.next([*writer.begin, *ids])
        ids.append(probs.index(max(probs)))
    return ids
