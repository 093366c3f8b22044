"""The gate of deferral: its features, its file, and the decoder that it decides for, under every schedule."""

from __future__ import annotations

import json
import math
import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cosd_api import DeferralVerifier, FusionResult, SettingError, TraceError, fuse, log_likelihood
from cosd_api.extend import Place, Verifier
from cosd_api.verification import needs_of
from cosd_api.verification.deferral import DEFERRAL_FEATURES, deferral_features
from cosd_providers import UnsupportedError
from cosd_providers.contract import Token
from naive import reference
from naive.defer import ZERO, gate
from support import virtual_time
from support.drawn import examples
from toys import lima
from toys import toy_models as toys
from toys.literal_tasks import WAYS, Fails, Task, check, failures, fused, tasks
from toys.unsteady import Order, orders


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time.BACKEND


def token(data: bytes, *probs: float, end: bool = False) -> Token:
    """A token of the first probability, and others beside it."""
    others = tuple(Token(b"%d" % at, prob) for at, prob in enumerate(probs[1:]))
    return Token(data, probs[0], end, alternatives=others)


# What the draft shows.


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *((" Lima", "word"), ("\nÉ", "word"), ("ma", "part"), ("一", "part"), ("7", "number"), (" 12", "number")),
        *((".", None), (" (", None), (" ", None), ("😀", None), ("\\xff", None), ("_a", None)),
    ],
)
def test_the_kind_of_a_token(text: str, kind: str | None) -> None:
    found = dict(zip(DEFERRAL_FEATURES, deferral_features(text, [0.5], end=False), strict=True))
    assert [name for name in ("number", "word", "part", "end") if found[name]] == ([kind] if kind else [])


def test_what_the_list_says() -> None:
    top, margin, entropy, *kinds = deferral_features("", [0.5, 0.25, 0.125], end=True)
    assert (top, margin, kinds) == (0.5, 0.25, [0, 0, 0, 1])
    assert entropy == pytest.approx(0.5 * math.log(2) + 0.25 * math.log(4) + 2 * 0.125 * math.log(8))
    assert deferral_features("a", [1.0], end=False)[:3] == (1.0, 1.0, 0.0)
    assert deferral_features("a", [0.75], end=False)[:2] == (
        0.75,
        0.5,
    )  # nothing is listed: another may have what is left
    assert deferral_features("a", [0.25], end=False)[:2] == (0.25, 0.0)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=6),
    st.dictionaries(st.sampled_from(DEFERRAL_FEATURES), st.floats(-9, 9)),
)
def test_the_probability_is_logistic_in_the_features(probs: list[float], weights: dict[str, float]) -> None:
    one = gate(listed=3, bias=0.5, **weights)
    seen = [probs[0], *(prob for prob in probs[1:4] if prob)]
    values = dict(zip(DEFERRAL_FEATURES, deferral_features(" a", seen, end=False), strict=True))
    logit = 0.5 + sum(weight * values[name] for name, weight in weights.items())
    assert one.probability(token(b" a", *probs)) == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-9)


def test_the_largest_weights_do_not_overflow() -> None:
    assert gate(top=1e6).probability(token(b"a", 1.0)) == 1
    assert gate(top=-1e6).probability(token(b"a", 1.0)) == 0


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_words_are_true(eta: float, found: float) -> None:
    here = gate(eta).at(Place(coin=found))
    _, shown, sign, bound = here.explain(0.5, math.nan).split(" ")
    assert (float(shown) > float(bound)) == (sign == ">") == here.replaces(0.5, math.nan) == here.contestable(0.5)


def test_without_a_place_nothing_is_decided() -> None:
    assert gate().contestable(1.0)
    assert not gate(1.0).contestable(0.0)
    with pytest.raises(TypeError, match="looks at the draft's list"):
        gate().replaces(0.5, 0.5)
    with pytest.raises(SettingError, match="no probability of deferral is recorded there"):
        gate().at(Place())


# The file.


def test_there_and_back(tmp_path: Path) -> None:
    one = gate(0.375, top=-2.5, end=1e-300)
    one.save(tmp_path / "gate.json")
    assert DeferralVerifier.load(tmp_path / "gate.json") == one
    assert pickle.loads(pickle.dumps(one)) == one
    assert isinstance(one, Verifier)
    assert isinstance(one.at(Place(coin=0.5)), Verifier)
    assert not needs_of(one).q
    assert needs_of(one).draft_alternatives == 3


def saved(**fields: Any) -> bytes:
    whole = {"kind": "deferral", "schema_version": 1, "listed": 3, "weights": ZERO, "eta": 0.5}
    return json.dumps(whole | fields).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is not one JSON document; a deferral gate is one JSON file, as cosd train-deferral"),
        (b"\x80\x04K\x01.", "it is not UTF-8 text at byte 0"),  # a pickle
        (
            b'{"kind":"cosd-samples","schema_version":1}\n{}',
            "it holds samples; cosd train-deferral makes a deferral gate of",
        ),
        (b"[1, 2]", r"it holds \[1, 2\]; a deferral gate is one JSON file"),
        (b'{"kind": "tree", "nodes": []}', "its kind is 'tree', not 'deferral'"),
        (saved(schema_version=2), "its schema_version is 2, and this version of cosd-api reads 1: update cosd-api"),
        (b"{}", "its listed is missing"),
        (saved(listed=0), "its listed is 0: input should be greater than or equal to 1"),
        (saved(listed=2.5), "its listed is 2.5: input should be a valid integer"),
        (saved(listed=10**30), "its listed is 10+: input should be less than or equal to 100"),
        (saved(eta=1.5), "its eta is 1.5: input should be less than or equal to 1"),
        (saved(eta="0.5"), "its eta is '0.5': input should be a valid number"),
        (saved(eta=math.nan), "its eta is nan: input should be"),
        (saved(bias=1), "it has an unknown field 'bias'"),
        (saved(trained_on=5), "its trained_on is 5: input should be a valid dictionary"),
        (saved(weights=7), "its weights is 7: input should be a valid dictionary"),
        (saved(weights={}), "its weights.bias is missing"),
        (saved(weights=ZERO | {"gini": 1.0}), "it has an unknown field 'weights.gini'"),
        (saved(weights=ZERO | {"top": 1e7}), "its weights.top is 10000000.0: input should be less"),
        (saved(weights=ZERO | {"top": math.inf}), "its weights.top is inf: input should be"),
        (saved(weights=ZERO | {"top": True}), "its weights.top is True: input should be a valid number"),
        # What is too large is never made sense of.
        (saved(trained_on={"x": "1" * 300_000}), "it has more than 0.2 MB"),
        (b"[" * 190_000, "recursion limit"),
    ],
)
def test_a_file_that_is_no_gate_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "gate.json"
    path.write_bytes(data)
    with pytest.raises(SettingError, match=rf"gate\.json is not a deferral gate: .*{words}") as caught:
        DeferralVerifier.load(path)
    assert len(str(caught.value)) < 400 + len(str(path))


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="is a folder, and a deferral gate is one JSON file"):
        DeferralVerifier.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        DeferralVerifier.load(tmp_path / "nowhere.json")


def test_numbers_out_of_range_are_refused() -> None:
    bad: list[dict[str, Any]] = [{"eta": -0.1}, {"listed": 101}, {"top": math.nan}]
    for one in bad:
        with pytest.raises(ValidationError):
            gate(**one)


# The decoder.


def beside(salt: int, start: int, prob: float | None) -> tuple[float, ...]:
    """Tokens that a toy draft lists beside one of its own: any, but always the same."""
    rng = random.Random(repr((salt, start, prob)))
    left, found = 1 - (prob or 0.0), list[float]()
    for _ in range(rng.randrange(5)):
        found.append(rng.random() * min([prob or 0.0, left, *found[-1:]]))
        left -= found[-1]
    return tuple(found)


def opens(one: DeferralVerifier, salt: int, start: int, prob: float | None) -> bool:
    """The gate, by its definition; its weights are of the list alone."""
    if prob is None:
        return False
    others = [other for other in beside(salt, start, prob)[: one.listed] if other]
    rest = max(0.0, 1 - prob - sum(others))
    second = others[0] if others else min(prob, rest)
    entropy = -sum(p * math.log(p) for p in (prob, *others, rest) if p)
    weights = one.weights
    logit = weights.bias + weights.top * prob + weights.margin * (prob - second) + weights.entropy * entropy
    return 1 / (1 + math.exp(-logit)) > one.eta


GATES = st.builds(
    gate,
    st.sampled_from((0.0, 0.31, 0.5003, 0.77, 1.0)),
    st.integers(1, 3),
    bias=st.sampled_from((0.2, 2.1)),
    top=st.sampled_from((0.0, -3.1, 2.3)),
    margin=st.sampled_from((0.0, -1.7)),
    entropy=st.sampled_from((0.0, 1.3)),
)


def deferred(task: Task, one: DeferralVerifier, salt: int, **more: Any) -> reference.Fused:
    """The naive reference's answer."""

    def placed(_: toys.Model, before: bytes, ours: reference.Tok) -> Callable[[float, float], bool]:
        return lambda p, q: opens(one, salt, len(before) - len(task.prompt), ours.prob)

    if "fails" in more:
        more["contestable"] = lambda p, start: opens(one, salt, start, p)
    return replace(task, verifier=one).expected(placed=placed, **more)


async def gated(
    task: Task, order: Order, one: DeferralVerifier, salt: int, fails: Fails = lambda *_: False, **settings: Any
) -> FusionResult:
    """An answer whose draft lists any tokens beside its own."""

    def also(text: bytes, mine: Token) -> tuple[Token, ...]:
        listed = beside(salt, len(text), mine.prob)
        return tuple(Token(data.encode(), prob) for data, prob in zip(toys.CHARACTERS, listed, strict=False))

    servers = task.servers(order, fails, also=also)
    result = await fused(replace(task, verifier=one), servers, **settings)
    assert all(call.alternatives >= one.listed for call in servers["draft"].calls)
    return result


@examples(20)
@given(tasks(), orders(), GATES, st.integers(0, 99), st.sampled_from(WAYS))
async def test_equal_under_every_schedule(
    task: Task, order: Order, verifier: DeferralVerifier, salt: int, way: dict[str, Any]
) -> None:
    check(await gated(task, order, verifier, salt, **way), deferred(task, verifier, salt))


@examples(20)
@given(tasks(), orders(), GATES, st.integers(0, 99), failures())
async def test_without_an_assistant_that_fails_for_good(
    task: Task, order: Order, verifier: DeferralVerifier, salt: int, fails: Fails
) -> None:
    result = await gated(task, order, verifier, salt, fails, on_assistant_error="draft")
    check(result, deferred(task, verifier, salt, fails=fails))


async def test_it_is_refused_where_it_cannot_decide() -> None:
    models: dict[str, Any] = {"draft": lima.draft(), "assistant": lima.assistant(), "verifier": gate()}
    with pytest.raises(UnsupportedError, match="looks at the draft's list beside each draft token, and words are"):
        await fuse("Q:", unit="word", **models)
    with pytest.raises(SettingError, match="not computed for a DeferralVerifier, which also looks at the draft's list"):
        await log_likelihood("Q:", " a", unit="token", **models)
    models["draft"] = lima.draft(top_k=2)
    with pytest.raises(UnsupportedError, match="the draft lists 2 other tokens at a place, and the gate looks at 3"):
        await fuse("Q:", unit="token", **models)


async def test_a_trace_is_judged_again() -> None:
    models: dict[str, Any] = {"draft": lima.draft(), "assistant": lima.assistant(), "unit": "token"}
    result = await fuse("Q:", verifier=gate(0.4, top=-0.1, bias=0.2), **models)
    fired = [one for token in result.tokens for one in token.decisions if one.fired]
    assert fired and all(one.reason.startswith("deferral 0.5") for one in fired)
    assert result.trace.replay() == result.text
    with pytest.raises(TraceError, match=r"was replaced, but the verifier says deferral .* <= 0.99"):
        result.trace.replay(gate(0.99))
