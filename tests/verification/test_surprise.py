"""Tokens that surprise the assistant: the comparison, the list that it is known from, and a fusion."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cosd_api import (
    Fusion,
    FusionResult,
    RuleVerifier,
    SettingError,
    SurpriseVerifier,
    TraceError,
    fuse,
    log_likelihood,
)
from cosd_api.alignment import most_probable
from cosd_api.extend import Place
from cosd_api.verification import needs_of
from cosd_providers import UnsupportedError
from cosd_providers.contract import Token
from cosd_providers.testing import ScriptedProvider, TableModel
from naive import reference
from naive.surprised import draft_q
from support import virtual_time
from support.handing_over import readable
from toys import toy_models as toys
from toys.literal_tasks import WAYS, Fails, Task, check, failures, fused, tasks
from toys.unsteady import Order, orders

PROBS = st.floats(0, 1)
GAMMAS = st.floats(0.01, 1) | st.sampled_from((0.1, 0.2, 0.25, 1 / 3, 0.5, 1))
BETAS = st.floats(0, 2) | st.sampled_from((0, 0.5, 1, math.inf))
SURPRISES = st.builds(SurpriseVerifier, gamma=GAMMAS, beta=BETAS, window=st.integers(1, 9))


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time.BACKEND


@given(SURPRISES, PROBS, PROBS, PROBS)
def test_both_comparisons_decide(verifier: SurpriseVerifier, p: float, q: float, own: float) -> None:
    here = verifier.at(Place(b"", 0, draft_q=own))
    assert here.replaces(p, q) == (own < verifier.gamma and q > verifier.beta * p)
    assert here.contestable(p) == verifier.contestable(p) >= here.replaces(p, q)
    assert not verifier.at(Place(b"", 0)).replaces(p, q)


@given(SURPRISES, PROBS)
def test_contestable_means_that_some_assistant_would_replace(verifier: SurpriseVerifier, p: float) -> None:
    certain = verifier.at(Place(b"", 0, draft_q=0.0))  # of another token
    assert verifier.contestable(p) == certain.replaces(p, 1.0)


@given(SURPRISES, PROBS, PROBS, PROBS)
def test_the_words_are_true(verifier: SurpriseVerifier, p: float, q: float, own: float) -> None:
    first, _, second = verifier.at(Place(draft_q=own)).explain(p, q).partition(" and ")
    theirs, sign, gamma = first.split(" ")
    assert (float(theirs) < float(gamma)) == (sign == "<") == (own < verifier.gamma)
    if second:
        other, sign, beta, _, mine = second.split(" ")
        assert (float(other) > float(beta) * float(mine)) == (sign == ">") == (q > verifier.beta * p)


def test_without_a_place_nothing_is_decided() -> None:
    verifier = SurpriseVerifier()
    with pytest.raises(TypeError, match="looks at the draft's token"):
        verifier.replaces(0.5, 0.5)
    with pytest.raises(TypeError, match="looks at the draft's token"):
        verifier.explain(0.5, 0.5)
    with pytest.raises(SettingError, match="is not recorded there"):
        verifier.at(Place())
    assert (
        verifier.at(Place(b"", 0)).explain(0.5, 0.5) == "the assistant's probability of the draft's text is not known"
    )


# The list.


@given(GAMMAS, st.lists(st.integers(0, 9), min_size=2, max_size=40), st.integers(0, 39))
def test_of_plain_tokens_the_list_says_exactly_which_are_improbable(gamma: float, shares: list[int], at: int) -> None:
    if not any(shares):
        return
    probs = sorted((share / sum(shares) for share in shares), reverse=True)
    tokens = [Token(b"%d" % number, prob) for number, prob in enumerate(probs)]
    wanted = needs_of(SurpriseVerifier(gamma=gamma)).alternatives
    top = Token(tokens[0].data, tokens[0].prob, alternatives=tuple(one for one in tokens[1:] if one.prob)[:wanted])
    mine = tokens[at % len(tokens)]
    found = most_probable(mine, top)
    assert found is not None and mine.prob is not None
    assert found >= mine.prob or math.isclose(found, mine.prob, abs_tol=1e-9)
    close = math.isclose(mine.prob, gamma)
    assert close or (found < gamma) == (mine.prob < gamma)


def test_what_no_list_holds_is_at_most_what_is_left_over() -> None:
    top = Token(b"a", 0.5, alternatives=(Token(b"b", 0.2), Token(b"c", 0.1)))
    assert most_probable(Token(b"c", 0.9), top) == 0.1
    assert most_probable(Token(b"d", 0.9), top) == 0.1
    for other in (Token("é".encode(), 0.9), Token(b"", 0.9, end=True)):
        assert most_probable(other, top) == pytest.approx(0.2)
    assert most_probable(Token(b"d", 0.9), Token("é".encode(), 0.4)) == pytest.approx(0.6)
    assert most_probable(Token(b"d", 0.9), Token(b"", None, end=True)) is None


# A fusion. The smallest vocabulary lists 15 other tokens.

FUSED = SURPRISES.filter(lambda one: one.gamma >= 0.1)


def surprised(task: Task, verifier: SurpriseVerifier, **more: Any) -> reference.Fused:
    """The naive reference's answer."""

    def placed(model: toys.Model, before: bytes, ours: reference.Tok) -> Callable[[float, float], bool]:
        improbable = draft_q(model, before, ours, verifier) < verifier.gamma
        return lambda p, q: improbable and q > verifier.beta * p

    return replace(task, verifier=verifier).expected(placed=placed, **more)


def check_readable(result: FusionResult, wanted: reference.Fused) -> None:
    """Of bytes that are no characters an adapter shows no alternatives, and the reference knows them."""
    assume(all(readable(b"".join(one.data for one in tokens)) for tokens in (result.tokens, wanted.tokens)))
    check(result, wanted)


@given(tasks(), orders(), FUSED, st.sampled_from(WAYS))
async def test_equal_under_every_schedule(
    task: Task, order: Order, verifier: SurpriseVerifier, way: dict[str, Any]
) -> None:
    result = await fused(replace(task, verifier=verifier), task.servers(order), **way)
    check_readable(result, surprised(task, verifier))


@given(tasks(same_tokenizer=True), orders(), FUSED, failures())
async def test_without_an_assistant_that_fails_for_good(
    task: Task, order: Order, verifier: SurpriseVerifier, fails: Fails
) -> None:
    servers = task.servers(order, fails)
    result = await fused(replace(task, verifier=verifier), servers, on_assistant_error="draft")
    check_readable(result, surprised(task, verifier, fails=fails))


async def test_a_window_is_asked_about_together() -> None:
    draft, assistant = (ScriptedProvider.from_texts({"Q": [*"abcdefgh"]}, request_delay=1.5) for _ in range(2))
    draft.token_delay = 1.0
    result = await fuse("Q", draft=draft, assistant=assistant, verifier=SurpriseVerifier(window=3), unit="literal")
    assert result.text == "abcdefgh"
    asked = [[question.start for question in call.questions or ()] for call in assistant.calls]
    assert asked == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert {call.alternatives for call in assistant.calls} == {10}


LETTERS = (b"", b"a", b"b", b"c")


def letters(*following: tuple[float, ...]) -> TableModel:
    """A model whose distribution depends on the last letter: over the end, a, b and c."""
    return TableModel(LETTERS, lambda ids: following[ids[-1] if ids else 0], end_ids=(0,))


SURE = letters((0, 0, 1, 0), (0, 0, 0.95, 0.05), (0.9, 0, 0, 0.1), (1, 0, 0, 0))  # a, b, and the end
OTHER = letters((0, 0, 1, 0), (0, 0, 0.05, 0.95), (1, 0, 0, 0), (0.9, 0.1, 0, 0))  # after a comes c


async def answered(**settings: Any) -> FusionResult:
    servers = {"draft": ScriptedProvider(SURE, name="sure"), "assistant": ScriptedProvider(OTHER, name="other")}
    return await fuse("a", **{**servers, "verifier": SurpriseVerifier(gamma=0.3), "unit": "token", **settings})


async def test_what_the_draft_is_sure_of_and_wrong_about_is_found() -> None:
    assert (await answered(verifier=RuleVerifier())).text == "b"
    result = await answered()
    assert result.text == "c"
    decision = result.tokens[0].decisions[0]
    assert (decision.draft_prob, decision.prob, decision.draft_text_prob) == (0.95, 0.95, 0.05)
    assert decision.reason == "0.05 < 0.3 and 0.95 > 0.5 x 0.95"
    assert (await answered(verifier=SurpriseVerifier(gamma=0.4, beta=1.0))).text == "b"
    assert any("every token of the draft" in warning for warning in result.warnings)


async def test_settings_of_cost_leave_the_text() -> None:
    for way in ({"ask": "all"}, {"draft_length": 1}, {"max_ahead": 1}):
        assert (await answered(**way)).text == "c"


async def test_a_trace_is_judged_again() -> None:
    result = FusionResult.model_validate_json((await answered()).model_dump_json())
    assert result.trace.replay() == "c"
    with pytest.raises(TraceError, match=r"was replaced, but the verifier says 0.05 >= 0.01"):
        result.trace.replay(SurpriseVerifier(gamma=0.01))
    with pytest.raises(TraceError, match="is not recorded there"):
        (await answered(verifier=RuleVerifier(alpha=1))).trace.replay(SurpriseVerifier())


async def test_it_is_refused_where_it_cannot_be_known() -> None:
    with pytest.raises(UnsupportedError, match="words are judged") as caught:
        await answered(unit="word")
    words = (
        'If you know that the models have one tokenizer, give unit="token"; unit="literal" compares the tokens of any '
    )
    assert f"{words}models as text. RuleVerifier and DiffVerifier judge words." in str(caught.value)
    with pytest.raises(
        UnsupportedError, match="the assistant lists 3 other tokens at a place, and the verifier needs 10"
    ):
        await answered(verifier=SurpriseVerifier())
    with pytest.raises(UnsupportedError, match="lists no other tokens"):
        await answered(assistant=ScriptedProvider(OTHER, top_k=0))
    servers: dict[str, Any] = {"draft": ScriptedProvider(SURE), "assistant": ScriptedProvider(OTHER)}
    with pytest.raises(SettingError, match="not computed for a SurpriseVerifier"):
        await log_likelihood("a", "b", unit="token", verifier=SurpriseVerifier(gamma=0.5), **servers)


async def test_an_estimate_expects_a_question_for_each_token() -> None:
    servers: dict[str, Any] = {"draft": ScriptedProvider(SURE), "assistant": ScriptedProvider(OTHER, name="other")}
    expected_requests = []
    for verifier in (SurpriseVerifier(gamma=0.3), RuleVerifier()):
        async with Fusion(**servers, verifier=verifier, unit="token") as fusion:
            found = await fusion.estimate("a", max_tokens=50)
        expected_requests.append(found.endpoints["assistant"].requests.expected)
    assert expected_requests == [50, 5]
