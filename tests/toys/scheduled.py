"""What the decoder's properties are about: tasks, schedules and failures, and what the reference says of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from cosd_api import RuleVerifier
from cosd_api.decoding.commands import DRAFT, Placed
from cosd_api.records import FusedToken
from cosd_api.replay import replayed
from cosd_api.verification import needs_of
from naive import reference
from toys import schedules
from toys import toy_models as toys
from toys.schedules import Outcome

LIMITS = st.integers(1, 24)
NONE: dict[str, Any] = {}


@st.composite
def choosers(draw: st.DrawFn) -> schedules.Choose:
    """Any schedule; and the two extreme ones: all of the draft first, or every answer at once."""
    kind = draw(st.sampled_from(("any", "draft first", "answers first")))
    if kind == "draft first":
        return lambda count: 0
    if kind == "answers first":
        return lambda count: count - 1
    return draw(st.randoms(use_true_random=False)).randrange


@st.composite
def tasks(draw: st.DrawFn, /, **models: Any) -> dict[str, Any]:
    """Everything that defines an answer."""
    draft, assistants = draw(toys.model_sets(**models))
    alpha, beta = draw(toys.thresholds())
    return {
        "prompt": draw(toys.prompts()),
        "draft": draft,
        "assistants": assistants,
        "verifier": RuleVerifier(alpha=alpha, beta=beta),
        "max_tokens": draw(LIMITS),
        "stop": draw(toys.stops()),
    }


def expected(task: dict[str, Any], **more: Any) -> reference.Fused:
    """What the naive reference says."""
    wanted = {key: task[key] for key in ("prompt", "draft", "assistants", "max_tokens", "stop")}
    verifier = task["verifier"]
    if "fails" in more:
        more.setdefault("contestable", lambda p, _: verifier.contestable(p))
    return reference.fuse(**wanted, unit="token", fires=verifier.replaces, needs_q=needs_of(verifier).q, **more)


def as_reference(one: Placed) -> reference.Out:
    """A token as the naive reference writes it."""
    return reference.Out(one.token.data, one.source, one.token.end, one.verified)


def check(outcome: Outcome, wanted: reference.Fused) -> None:
    """The answer is the reference's, token for token, and was emitted whole."""
    got = [as_reference(one) for one in outcome.decoder.response.tokens]
    assert got == list(wanted.tokens)
    assert outcome.text == wanted.text
    assert outcome.finish.finish_reason == wanted.finish_reason
    if not (wanted.tokens and wanted.tokens[-1].end):
        assert outcome.finish.stop_reason == wanted.stop_reason
    counts = outcome.decoder.report()
    assert counts.replacements == wanted.replacements
    assert counts.replaced == sum(firing.replaced for firing in wanted.firings)
    assert counts.kept == sum(one.source == DRAFT for one in wanted.tokens)
    assert counts.iterations == wanted.iterations
    assert [id(one) for one in outcome.emitted] == [id(one) for one in outcome.decoder.response.tokens]
    check_trace(outcome)


def check_trace(outcome: Outcome) -> None:
    """The record of the answer, judged again, is the answer; its units and rounds go on from left to right."""
    decoder = outcome.decoder
    names = [f"assistant {number}" for number in range(decoder.assistants)]
    tokens = [FusedToken.of(one, names, decoder.verifier, now=0.0) for one in decoder.response.tokens]
    stops = bool(decoder.response.stops.stops)
    assert replayed(tokens, decoder.verifier, names, stops=stops) == outcome.text
    places = [(one.unit, one.round) for one in tokens]
    assert places == sorted(places)
    assert all(one.round <= decoder.report().iterations for one in tokens)
    for token in tokens:
        assert (token.replaced is not None) == bool(token.replaced_tokens)
        assert token.replaced is None or token.replaced == "".join(one.text for one in token.replaced_tokens)


@st.composite
def failures(draw: st.DrawFn) -> Callable[[int, int, tuple[bytes, ...]], bool]:
    """Assistants that fail for good: each from some byte on, or at some questions, here and there in the text."""
    places = draw(st.lists(st.none() | st.integers(0, 16), min_size=3, max_size=3))
    salt, share = draw(st.integers(0, 2**16)), draw(st.sampled_from((0, 3, 6)))

    def fails(assistant: int, place: int, tokens: tuple[bytes, ...]) -> bool:
        since = places[assistant % len(places)]
        odd = share and zlib.crc32(repr((salt, assistant, place, tokens)).encode()) % share == 0
        return bool(odd) or (since is not None and place >= since)

    return fails
