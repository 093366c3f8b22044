"""Fusions of every kind of pair under drawn orders of events: the naive references, faults, and nothing left behind.

Each task draws its models and the way in which each is read: by the draft's ids, by its own ids, or as text. Each order
of events draws the time of every token, question, encoding and closing. A task is its seed; the environment variable
`EVERY_PAIR` is the number of tasks.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar
from unittest.mock import patch

import anyio
import pytest

from cosd_api import Fusion, FusionResult, MatchVerifier, RandomVerifier, RuleVerifier
from cosd_api.decoding.speeds import Speeds
from cosd_api.verification import Verifier, digest_of, verifier_at
from cosd_api.verification.decision_place import Place
from cosd_providers import ServerError
from cosd_providers.testing import TableModel
from cosd_providers.text import sendable
from naive import reference_ids
from naive.reference_mixed import BrokenError, MixedReference
from naive.reference_paths import DRAFT, Fused, is_whole
from support import virtual_time
from toys import id_models, ngrams
from toys.id_models import Always
from toys.late import Late
from toys.ngrams import NGram, learned

pytestmark = pytest.mark.timeout(60)  # an answer that works on without waiting is none that virtual time ends

TASKS = int(os.environ.get("EVERY_PAIR", "80"))
SOME = max(1, TASKS * 3 // 8)
"""Number of tasks of other tests than the first."""
ORDERS = 2
_R = TypeVar("_R", bound=MixedReference)
LIMIT = 1e6
"""Seconds of virtual time in which an answer is complete, whatever is late."""
NAMES = ("gpt2", "digits", "llama3", "spaces")
"""Tokenizers with different ids."""
NEVER = float("inf")
LOST = re.compile(r"(.+) failed and was not asked any more from token (\d+) on")
RULES = ((0.5, 0.5), (0.7, 0.5), (0.9, 0.2), (1.01, 0.0), (0.3, 1.0))


@dataclass(frozen=True, eq=False)
class TwoEnds:
    """A model of n-grams with two ids for the end, `end_ids` of which end its answers.

    After some ids it is `eager` to end, and `other` is the share of the second end.
    """

    base: NGram
    end_ids: tuple[int, ...]
    seed: int
    eager: float
    other: float
    known: dict[Any, tuple[float, ...]] = field(default_factory=dict[Any, tuple[float, ...]], repr=False)

    @cached_property
    def tokens(self) -> Sequence[bytes]:
        """The bytes of every id."""
        return (*self.base.tokens, b"")

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text."""
        return self.base.encode(text)

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        """The probability of every id after others."""
        key = tuple(ids[-(self.base.order - 1) :])
        if key not in self.known:
            probs = [*self.base.next(ids)]
            chance = random.Random(f"{self.seed} {key}")
            more = self.eager * chance.random() if chance.random() < 0.2 else 0.0
            probs = [prob * (1 - more) for prob in probs]
            end = probs[-1] + more
            probs[-1] = end * (1 - self.other)
            self.known[key] = (*probs, end * self.other)
        return self.known[key]


@dataclass(frozen=True, eq=False)
class Breaks:
    """A model that fails after more than `bytes` of an answer."""

    model: Any
    prompt: str
    bytes: float
    error: Exception

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        """The probability of every id after others."""
        if sum(len(self.model.tokens[one]) for one in ids) > len(self.prompt.encode()) + self.bytes:
            raise self.error
        found: Sequence[float] = self.model.next(ids)
        return found


@dataclass(frozen=True)
class Task:
    """Everything that defines an answer.

    Attributes:
        routes: how each assistant is read: `"same"`, `"own"` or `"text"`.
        by_text: whether the draft takes text only.
        room: number of tokens for which the draft's context has room behind the prompt.
        settings: of the fusion; they change nothing but the cost.
        breaks: bytes of the answer behind which each assistant fails.
    """

    prompt: str
    draft: Any
    assistants: tuple[Any, ...]
    routes: tuple[str, ...]
    by_text: bool
    verifier: Verifier
    max_tokens: int
    stop: tuple[str, ...]
    tie: float
    hides: bool
    room: int | None
    places: tuple[int, ...]
    watch: tuple[bool | None, ...]
    settings: dict[str, Any]
    breaks: tuple[float, ...] = ()

    @property
    def judged_tie(self) -> float:
        """The tie of the verifier: one that replaces whatever differs has none."""
        return 0.0 if isinstance(self.verifier, Always | MatchVerifier) else self.tie

    def at(self, byte: int) -> Any:
        """The verifier at a byte of the answer."""
        return verifier_at(self.verifier, Place(digest_of(self.prompt), byte))

    def reference(self) -> MixedReference:
        """The naive reference."""
        return self.referred(MixedReference)

    def referred(self, kind: type[_R]) -> _R:
        """A naive reference of a kind."""
        models = [
            Breaks(one, self.prompt, most, BrokenError())
            for one, most in zip(self.assistants, self.breaks or [NEVER] * 3, strict=False)
        ]
        return kind(
            self.prompt.encode(),
            self.draft,
            models,
            lambda at, p, q: self.at(at).replaces(p, q),
            text=[*[DRAFT] * self.by_text, *self.of("text")],
            same=self.of("same"),
            room=NEVER if self.room is None else self.room,
            hides=lambda data: self.hides and not is_whole(data),
            ever=lambda at: isinstance(self.verifier, RandomVerifier) or self.at(at).contestable(0.0),
            contestable=lambda at, p: self.at(at).contestable(p),
            max_tokens=self.max_tokens,
            stop=[one.encode() for one in self.stop],
            tie=self.judged_tie,
        )

    def of(self, route: str) -> list[int]:
        """The assistants that are read in one way."""
        return [at for at, one in enumerate(self.routes) if one == route]

    def servers(self, order: int | str) -> dict[str, Any]:
        """The models behind servers."""
        size = len(self.draft.encode(self.prompt.encode()))
        draft = Late(
            self.draft,
            "draft",
            ids=not self.by_text,
            hides_parts=self.hides,
            context=None if self.room is None else size + self.room,
            order=f"{order}",
        )
        assistants = [
            Late(
                Breaks(one, self.prompt, most, ServerError(f"assistant {at} is down", status=500)),
                f"assistant {at}",
                ids=route != "text",
                places=places,
                watch=watch,
                hides_parts=self.hides,
                order=f"{order}",
            )
            for at, (one, route, places, watch, most) in enumerate(
                zip(
                    self.assistants,
                    self.routes,
                    self.places,
                    self.watch,
                    self.breaks or [NEVER] * 3,
                    strict=False,
                )
            )
        ]
        return {"draft": draft, "assistant": assistants}

    async def fuse(self, servers: dict[str, Any], **settings: Any) -> FusionResult:
        """One answer, after which nothing is left."""
        before = asyncio.all_tasks()
        given: dict[str, Any] = {"verifier": self.verifier, "tie": self.tie, **self.settings, **settings}
        with anyio.fail_after(LIMIT):
            try:
                async with Fusion(**servers, **given) as fusion:
                    return await fusion.generate(self.prompt, max_tokens=self.max_tokens, stop=self.stop)
            finally:
                assert asyncio.all_tasks() == before
                assert [one.open_requests for one in (servers["draft"], *servers["assistant"])] == [0] * (
                    1 + len(self.assistants)
                )

    async def survived(self, servers: dict[str, Any], **settings: Any) -> FusionResult:
        """One answer, which goes on without the assistants that fail."""
        return await self.fuse(servers, on_assistant_error="draft", **settings)


def some(chance: random.Random, most: int) -> list[str]:
    """The ways in which assistants are read."""
    count = chance.choice([one for one in (1, 1, 2, 2, 3) if one <= most])
    return [chance.choice(("same", "own", "text")) for _ in range(count)]


def drawn(seed: int | str) -> Task:
    """A task."""
    chance = random.Random(f"every pair {seed}")
    by_text = chance.random() < 0.15
    routes = [("own" if one == "same" and by_text else one) for one in some(chance, 3)]
    name, text = chance.choice(NAMES), chance.choice(ngrams.passages())
    at = chance.randrange(max(1, len(text) - 60))
    same = "same" in routes

    def model(route: str, part: int) -> TwoEnds:
        other, permuted = chance.choice(NAMES), chance.random() < 0.3
        other = name if route in ("same", "draft") or permuted else other
        if route == "own" and not permuted and other == name:
            permuted = True
        base = learned(other, part, order=chance.choice((2, 3, 3, 4)), permuted=route == "own" and permuted)
        ends, size = chance.choice(((-1,), (0,), (-1, 0))), len(base.tokens)
        ends = ends if same and route in ("same", "draft") else (-1, 0)
        share, eager = chance.choice((0.0, 0.5, 1.0, 0.49)), chance.choice((0.0, 0.5, 0.9, 1.0))
        return TwoEnds(base, tuple(size + one for one in ends), chance.randrange(99), eager, share)

    alpha, beta = chance.choice(RULES)
    rule = RuleVerifier(alpha=alpha, beta=beta)
    coin = RandomVerifier(rate=chance.choice((0.3, 0.7, 1.0)), seed=chance.randrange(99))
    settings: dict[str, Any] = chance.choice(({}, {}, {"ask": "all"}))
    if not by_text:
        settings |= chance.choice(({}, {}, {"draft_length": 1}, {"draft_length": 3}, {"max_ahead": 2}))
    draft, assistants = model("draft", 0), tuple(model(one, 1) for one in routes)
    sharing = [draft, *(one for one, route in zip(assistants, routes, strict=True) if route == "same")]
    if len({one for model in sharing for one in model.end_ids}) == 1:  # an id without bytes has to end something
        draft = replace(draft, end_ids=(len(draft.tokens) - 2, len(draft.tokens) - 1))
    return Task(
        prompt=text[at : at + chance.choice((5, 20, 60))],
        draft=draft,
        assistants=assistants,
        routes=tuple(routes),
        by_text=by_text,
        verifier=chance.choice((rule, rule, rule, coin, Always(), MatchVerifier())),
        max_tokens=chance.choice((1, 3, 7, 12, 20)),
        stop=chance.choice(((), (), ("\n",), (". ",), ("e",), ("\n\n", "the"))),
        tie=chance.choice((0.0, 0.02, 0.3)),
        hides=chance.random() < 0.3,
        room=chance.choice((None, None, None, chance.randint(1, 20))) if not by_text else None,
        places=tuple(chance.choice((1, 64)) for _ in routes),
        watch=tuple(chance.choice((None, True, False)) for _ in routes),
        settings=settings,
    )


def writers(result: FusionResult) -> list[tuple[int, int]]:
    """Who wrote each byte of an answer, and each end."""
    names = ["draft", *(one.name for one in result.assistants)]
    return [(byte, names.index(one.source) - 1) for one in result.tokens for byte in (b"\0" if one.end else one.data)]


def check(result: FusionResult, task: Task, reference: MixedReference, wanted: Fused) -> None:
    """The answer is the reference's: its text, its tokens, who wrote each, and how it ends."""
    assert result.text == sendable(wanted.text)
    assert result.finish_reason == wanted.finish_reason
    full = "max_tokens" if len(wanted.path) >= task.max_tokens else "context"
    stops = ("</s>", "end of sequence") if wanted.stop is None else (wanted.stop.decode(),)
    assert result.stop_reason in ((full,) if wanted.finish_reason == "length" else stops)
    ended = wanted.finish_reason == "stop" and wanted.stop is None
    told = [*zip(wanted.text, reference.writers, strict=False)]
    told += [(0, (*reference.writers, DRAFT)[len(told)])] if ended else []
    assert writers(result) == told
    if not (task.by_text or wanted.stop or any(one.ends for one in wanted.firings)):
        assert [one.id for one in result.tokens] == [*wanted.path]


def seeds(count: int, *also: int) -> list[int]:
    """The tasks of a run, with those that found a fault."""
    return sorted({*range(count), *also})


@pytest.mark.parametrize("seed", seeds(TASKS, 88, 98, 99))
def test_equal_to_the_reference_in_every_order(seed: int) -> None:
    task = drawn(seed)
    reference = task.reference()
    wanted = reference.fuse()
    counts = set[Any]()
    for order in range(ORDERS):
        result = virtual_time.run(task.fuse, task.servers(f"{seed} {order}"))
        check(result, task, reference, wanted)
        counts.add((result.unjudged, *(one for one in result.warnings if "could not answer" in one)))
        again = task.verifier if isinstance(task.verifier, Always) else None
        assert result.trace.replay(again) == result.text
    assert len(counts) == 1


@pytest.mark.parametrize("seed", seeds(SOME, 97))
def test_short_drafts_and_short_watches_change_nothing(seed: int) -> None:
    """As on llama.cpp with fast assistants, whatever the speeds are."""
    task = replace(drawn(f"short {seed}"), settings={})
    task = replace(task, places=(1,) * len(task.routes), watch=(None,) * len(task.routes))
    reference = task.reference()
    wanted = reference.fuse()
    servers = task.servers(f"{seed}")
    servers["draft"].places = 1
    with patch.object(Speeds, "short_draft", lambda *_: 2), patch.object(Speeds, "slower", lambda *_: 0.5):
        check(virtual_time.run(task.fuse, servers), task, reference, wanted)


@pytest.mark.parametrize("seed", seeds(SOME, 4, 24))
def test_the_same_ids_are_compared_in_every_order(seed: int) -> None:
    task = with_the_same_ids(seed)
    ends = frozenset[int]().union(*(one.end_ids for one in (task.draft, *task.assistants)))
    draft, *assistants = (one.after(task.prompt) for one in (task.draft, *task.assistants))
    wanted = reference_ids.fuse(
        draft,
        assistants,
        lambda at, p, q: task.at(at).replaces(p, q),
        spell=id_models.TOKENS.__getitem__,
        ends=ends,
        max_tokens=task.max_tokens,
        stop=[one.encode() for one in task.stop],
        tie=task.judged_tie,
    )
    for order in range(ORDERS):
        result = virtual_time.run(task.fuse, task.servers(f"{seed} {order}"))
        names = ["draft", *(one.name for one in result.assistants)]
        told = [(one.id, one.data, one.source) for one in result.tokens]
        assert told == [(one.id, one.data, names[one.source + 1]) for one in wanted.tokens]
        assert (result.text, result.finish_reason) == (sendable(wanted.text), wanted.finish_reason)
        assert result.settings.contexts == "ids"


@pytest.mark.parametrize("mixed", [False, True])
def test_two_ends_are_no_tie(mixed: bool) -> None:
    """The assistant's second choice, as probable as its first, is an end, but not the id that the draft ends with."""

    def model(end: int, **script: dict[int, float]) -> TableModel:
        def following(ids: Sequence[int]) -> list[float]:
            found = script.get(b"".join(id_models.TOKENS[one] for one in ids).decode(), {end: 0.9})
            return [found.get(one, 0.0) for one in range(len(id_models.TOKENS))]

        return TableModel(id_models.TOKENS, following, end_ids=(end,))

    a, b, end, other = *b"ab", id_models.END, id_models.OTHER_END
    draft = model(end, Q={a: 0.3}, Qa={end: 0.3})
    assistant = model(other, Q={a: 0.9}, Qa={b: 0.4, other: 0.4})
    others = [Late(model(end, Q={a: 0.9}), "by text")] if mixed else []

    async def fused() -> FusionResult:
        servers: dict[str, Any] = {
            "draft": Late(draft, "draft", ids=True),
            "assistant": [Late(assistant, "by ids", ids=True), *others],
        }
        async with Fusion(**servers, verifier=RuleVerifier(), tie=0.02) as fusion:
            return await fusion.generate("Q", max_tokens=5)

    assert virtual_time.run(fused).text == "ab"


def with_the_same_ids(seed: int) -> Task:
    """A task of small models: parts of characters, tokens without bytes, two ends, many ties."""
    chance = random.Random(f"same ids {seed}")
    written = (*chance.sample(id_models.WRITTEN, chance.randint(3, 8)), id_models.END, id_models.OTHER_END)
    language, count = chance.randrange(2**16), chance.choice((1, 1, 2, 3))

    def model() -> id_models.IdModel:
        ends = frozenset(chance.choice(((id_models.END,), (id_models.OTHER_END,), written[-2:])))
        return id_models.IdModel(chance.randrange(2**16), language, chance.choice((6, 10, 13, 15)), written, ends)

    rule = RuleVerifier(alpha=chance.choice((0.3, 0.5, 0.9, 1.01)), beta=chance.choice((0.0, 0.2, 0.5, 1.0)))
    coin = RandomVerifier(rate=chance.choice((0.3, 0.7)), seed=chance.randrange(99))
    ways: tuple[dict[str, Any], ...] = (
        {},
        {},
        {"ask": "all"},
        {"draft_length": 1},
        {"draft_length": 3, "ask": "all"},
        {"max_ahead": 2},
        {"max_ahead": 3},
    )
    return Task(
        prompt=chance.choice(("Q", "ab", "é:", "Q\n")),
        draft=model(),
        assistants=tuple(model() for _ in range(count)),
        routes=("same",) * count,
        by_text=False,
        verifier=chance.choice((rule, rule, RuleVerifier(), coin, Always(), MatchVerifier())),
        max_tokens=chance.randint(1, 30),
        stop=chance.choice(((), (), ("\n",), ("é",), ("ab", "b "))),
        tie=chance.choice((0.0, 0.02, 0.25, 1.0)),
        hides=chance.random() < 0.3,
        room=None,
        places=tuple(chance.choice((1, 64)) for _ in range(count)),
        watch=tuple(chance.choice((None, True, False)) for _ in range(count)),
        settings=chance.choice(ways),
    )


# ------------------------------------------------------------------------------------------------------------ faults


def broken(seed: int) -> Task:
    """A task whose assistants fail behind some bytes, those that take ids, whatever the way in which they are asked."""
    chance = random.Random(f"broken {seed}")
    task = drawn(f"broken {seed}")
    settings = {name: one for name, one in task.settings.items() if name != "ask"}
    breaks = [chance.randint(-1, 30) if one != "text" and chance.random() < 0.7 else NEVER for one in task.routes]
    return replace(task, breaks=tuple(breaks), settings=settings)


def lost_at(result: FusionResult) -> list[tuple[str | Any, ...]]:
    """The assistants that were lost, each with the number of the first token that it could not judge."""
    return [found.groups() for one in result.warnings if (found := LOST.match(one))]


@pytest.mark.parametrize("seed", seeds(SOME, 17))
def test_an_assistant_is_lost_at_the_same_place_in_every_order(seed: int) -> None:
    task = broken(seed)
    reference = task.reference()
    wanted = reference.fuse()
    places = set[Any]()
    for order in range(ORDERS + 1):
        result = virtual_time.run(task.survived, task.servers(f"{seed} {order}"))
        check(result, task, reference, wanted)
        names = [one.name for one in result.assistants]
        assert sorted(result.failures) == [names[at] for at in sorted(reference.lost)]
        places.add((*lost_at(result), *(one.verified for one in result.tokens)))
        if reference.lost:
            with pytest.raises(ServerError, match="is down"):
                virtual_time.run(task.fuse, task.servers(f"{seed} {order}"))
    assert len(places) == 1


@pytest.mark.parametrize("seed", seeds(SOME, 30))
def test_what_fails_once_changes_nothing_or_ends_the_answer(seed: int) -> None:
    chance, task = random.Random(f"once {seed}"), drawn(f"once {seed}")
    reference = task.reference()
    wanted = reference.fuse()
    model = chance.randrange(-1, len(task.assistants))
    method, number = chance.choice(("generate", "encode", "next_tokens", "propose")), chance.choice((0, 1, 2, 5))
    for order in range(ORDERS):
        servers = task.servers(f"{seed} {order}")
        error = ServerError("down for once", status=500)
        [servers["draft"], *servers["assistant"]][1 + model].broken = partial(fails_once, method, number, error)
        fused = chance.choice((task.fuse, task.survived))
        with suppress(ServerError):
            result = virtual_time.run(fused, servers)
            if not result.failures:
                check(result, task, reference, wanted)
                continue
            if not (found := lost_at(result)):
                assert "failed before this answer began" in " ".join(result.warnings)
                continue
            [(_, first)] = found
            assert wanted.text.startswith(b"".join(one.data for one in result.tokens[: int(first) - 1]))


@pytest.mark.parametrize("seed", seeds(SOME, 7, 8, 9))
def test_a_draft_that_fails_ends_the_same_answers_in_every_order(seed: int) -> None:
    chance, task = random.Random(f"draft {seed}"), drawn(f"draft {seed}")
    reference = task.reference()
    wanted = reference.fuse()
    error, outcomes = ServerError("the draft is down", status=500), set[str]()
    fails = Breaks(task.draft, task.prompt, chance.randint(0, 60), error)
    for order in range(ORDERS + 1):
        servers = task.servers(f"{seed} {order}")
        servers["draft"].model = fails
        try:
            result = virtual_time.run(task.survived, servers)
        except ServerError as failed:
            partial = failed.partial
            assert sendable(wanted.text).startswith(partial.text)
            outcomes.add("failed")
        else:
            check(result, task, reference, wanted)
            outcomes.add("complete")
    assert len(outcomes) == 1


def fails_once(method: str, number: int, error: Exception, called: str, before: int) -> Exception | None:
    """The error of one call of a method."""
    return error if (called, before) == (method, number) else None
