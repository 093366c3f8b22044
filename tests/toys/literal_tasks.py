"""Equation 3 as printed, through a whole fusion: drawn tasks, servers that fail, and the naive reference's answers."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import strategies as st

from cosd_api import FusionResult, RuleVerifier, fuse
from cosd_api.verification import Verifier, needs_of
from naive import reference
from toys import toy_models as toys
from toys.unsteady import Order, Unsteady

Fails = Callable[[int, int, tuple[bytes, ...]], bool]
"""Tests whether an assistant fails where it is asked, at a byte of the answer, about some of the draft's tokens."""
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"draft_length": 1},
    {"draft_length": 3},
    {"max_ahead": 1},
    {"max_ahead": 4},
    {"ask": "all"},
)
"""Settings that change what an answer costs, and not its text."""


@dataclass(frozen=True)
class Task:
    """Everything that defines an answer."""

    prompt: bytes
    draft: toys.ToyModel
    assistants: tuple[toys.ToyModel, ...]
    verifier: Verifier
    max_tokens: int
    stop: tuple[bytes, ...]

    def expected(self, **more: Any) -> reference.Fused:
        """The answer of the naive reference."""
        verifier = self.verifier
        if "fails" in more:
            more = {"contestable": lambda p, _: verifier.contestable(p)} | more
        models: tuple[Any, Any] = (self.draft, self.assistants)
        limits: dict[str, Any] = {"max_tokens": self.max_tokens, "stop": self.stop}
        given: dict[str, Any] = {"unit": "token", "needs_q": needs_of(verifier).q} | limits | more
        return reference.fuse(self.prompt, *models, verifier.replaces, **given)

    def servers(self, order: Order, fails: Fails = lambda *_: False, **draft: Any) -> dict[str, Any]:
        """Its models, with the seconds of an order of events; `draft`: options of the draft's server."""
        made = [
            Unsteady(
                toys.Plain(model), end_prob=not model.hides_end, seconds=seconds, chance=random.Random(seed), **options
            )
            for (seconds, seed), model, options in zip(
                order, (self.draft, *self.assistants), (draft, *[{}] * len(self.assistants)), strict=False
            )
        ]
        for at, one in enumerate(made[1:]):
            one.refuses = partial(fails, at)
        return {"draft": made[0], "assistant": made[1:]}


@st.composite
def tasks(draw: st.DrawFn, /, **models: Any) -> Task:
    """Answers of random models; `models`: of `toy_models.model_sets`."""
    draft, assistants = draw(toys.model_sets(**models))
    alpha, beta = draw(toys.thresholds())
    return Task(
        prompt=draw(toys.prompts()) or b"a",
        draft=draft,
        assistants=assistants,
        verifier=RuleVerifier(alpha=alpha, beta=beta),
        max_tokens=draw(st.integers(1, 24)),
        stop=draw(toys.stops()),
    )


@st.composite
def failures(draw: st.DrawFn) -> Fails:
    """Assistants that fail for good: each from some byte on, or at some questions, here and there in the text."""
    places = draw(st.lists(st.none() | st.integers(0, 16), min_size=3, max_size=3))
    salt, share = draw(st.integers(0, 2**16)), draw(st.sampled_from((0, 3, 6)))

    def fails(assistant: int, place: int, tokens: tuple[bytes, ...]) -> bool:
        since = places[assistant % len(places)]
        odd = share and zlib.crc32(repr((salt, assistant, place, tokens)).encode()) % share == 0
        return bool(odd) or (since is not None and place >= since)

    return fails


async def fused(task: Task, servers: dict[str, Any], **settings: Any) -> FusionResult:
    """Fuse the servers of a task."""
    given: dict[str, Any] = {"unit": "literal", "verifier": task.verifier, "max_tokens": task.max_tokens}
    stop = [one.decode() for one in task.stop]
    return await fuse(task.prompt.decode(), **servers, stop=stop, **given | settings)


def outs(result: FusionResult) -> list[reference.Out]:
    """Its tokens as the naive reference writes them."""
    names = ["draft", *(one.name for one in result.assistants)]
    return [reference.Out(one.data, names.index(one.source) - 1, one.end, one.verified) for one in result.tokens]


def check_asked(result: FusionResult, task: Task) -> None:
    """The assistants were heard about the draft's tokens that they could change, and about no other."""
    for token in result.tokens:
        if token.source == "draft" and token.draft_prob is not None:
            cut = result.stop_reason in [one.decode() for one in task.stop] and token is result.tokens[-1]
            assert cut or bool(token.decisions) == task.verifier.contestable(token.draft_prob)


def check(result: FusionResult, wanted: reference.Fused, verifier: Verifier | None = None) -> None:
    """The answer is the reference's, token for token; judged again it is the same; its units go from left to right.

    `verifier`: one of the test's own, which is not part of a trace.
    """
    assert outs(result) == list(wanted.tokens)
    assert result.finish_reason == wanted.finish_reason
    assert (wanted.tokens and wanted.tokens[-1].end) or result.stop_reason == wanted.stop_reason
    assert result.replacements == wanted.replacements
    assert result.replaced_tokens == sum(firing.replaced for firing in wanted.firings)
    assert result.kept_tokens == sum(one.source < 0 for one in wanted.tokens)
    assert result.iterations == wanted.iterations
    assert result.trace.replay(verifier) == result.text == "".join(one.text for one in result.tokens)
    places = [(one.unit, one.round) for one in result.tokens]
    assert places == sorted(places)
