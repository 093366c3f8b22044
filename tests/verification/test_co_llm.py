"""The gate of Co-LLM: its probability, its file, and its decisions judged again."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cosd_api import CoLLMVerifier, CoSD, SettingError, TraceError, fuse, log_likelihood
from cosd_api.extend import Place, Verifier
from cosd_api.verification import needs_of
from cosd_providers import UnsupportedError
from cosd_providers.contract import Token
from cosd_providers.testing import ScriptedProvider
from naive.co_llm import deferral, gate
from support.drawn import examples

NUMBERS = st.floats(-5, 5)
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6)


def token(*state: float) -> Token:
    return Token(b" a", 0.9, state=state or None)


@examples(30)
@given(st.floats(-3, 3), PAIRS)
def test_the_probability_is_the_logistic_function_of_the_state(bias: float, pairs: list[tuple[float, float]]) -> None:
    one = gate(0.4, bias, [weight for weight, _ in pairs])
    state = [number for _, number in pairs]
    assert one.probability(token(*state)) == pytest.approx(deferral(one, state), abs=1e-9)
    here = one.at(Place(token=token(*state)))
    assert here.coin == one.probability(token(*state))
    assert here.replaces(0.99, 0.0) == here.contestable(0.99) == (here.coin > 0.4)


def test_a_state_of_another_width_is_refused() -> None:
    one = gate(weights=(1.0, 2.0))
    with pytest.raises(SettingError, match="a hidden state of 2 numbers, and the token has one of 3 numbers"):
        one.at(Place(token=token(1.0, 2.0, 3.0)))
    with pytest.raises(SettingError, match="a hidden state of 2 numbers, and the token has none"):
        one.probability(token())
    with pytest.raises(SettingError, match="no probability of deferral is recorded there, so CoLLMVerifier cannot"):
        one.at(Place())


def test_it_is_a_verifier() -> None:
    one = gate(0.25, 1.0, (0.5, -0.5))
    assert isinstance(one, Verifier)
    needs = needs_of(one)
    assert (needs.q, needs.draft_states, needs.draft_alternatives) == (False, 2, 0)
    assert one.at(Place(coin=0.3)).explain(0.5, 0.5) == "deferral 0.3 > 0.25"
    assert (one.contestable(0.5), gate(1.0).contestable(0.5)) == (True, False)
    with pytest.raises(TypeError, match="looks at the draft's hidden state, not at p and q"):
        one.replaces(0.5, 0.5)
    assert pickle.loads(pickle.dumps(one)) == one
    assert "weights" not in repr(one)


# Its file.


def test_a_file_gives_the_same_gate(tmp_path: Path) -> None:
    one = gate(0.123456789, -0.1, [math.pi, -1e-9, 3])
    one.save(tmp_path / "gate.json")
    assert CoLLMVerifier.load(tmp_path / "gate.json") == one
    fields = json.loads((tmp_path / "gate.json").read_text())
    assert (fields["kind"], fields["features"], fields["width"]) == ("co-llm", "last-hidden-state", 3)
    assert {*CoLLMVerifier.model_fields} == {*fields}


def saved(**changed: Any) -> bytes:
    fields = gate(weights=(1.0, 2.0)).model_dump() | changed
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[1]", "it holds \\[1\\]; a Co-LLM gate is one JSON file"),
        (saved(kind="deferral"), "its kind is 'deferral', not 'co-llm'"),
        (saved(schema_version=2), "update cosd-api, or train it again"),
        (saved(width=None), "its width is missing"),
        (saved(width=3), "it has 2 weights, and its width is 3"),
        (saved(width=0), "its width is 0: input should be greater than or equal to 1"),
        (saved(weights=[1.0, "2"]), "its weights.1 is '2': input should be a valid number"),
        (saved(weights=[1.0, 1e7]), "its weights.1 is 10000000.0: input should be less than or equal"),
        (saved(weights=7), "its weights is 7: input should be a valid tuple"),
        (saved(bias=math.inf), "its bias is inf: input should be a finite number"),
        (saved(eta=1.5), "its eta is 1.5: input should be less than or equal to 1"),
        (saved(features="lists"), "its features is 'lists': input should be 'last-hidden-state'"),
        (saved(listed=5), "it has an unknown field 'listed'"),
        (b'{"kind":"cosd-samples"}\n{"key":1}', "it holds samples; cosd train-deferral --hidden-states makes a Co-LLM"),
    ],
)
def test_a_file_that_is_no_gate_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "gate.json"
    path.write_bytes(data)
    with pytest.raises(SettingError, match=rf"gate\.json is not a Co-LLM gate: .*{words}"):
        CoLLMVerifier.load(path)


def test_numbers_out_of_range_are_refused() -> None:
    for weights in ((), (math.nan,), (1e7,)):
        with pytest.raises(ValidationError):
            gate(weights=weights)


# Its decisions.

TOKENS = [" a", " b", " c"]


def models(**options: Any) -> dict[str, Any]:
    draft = ScriptedProvider.from_texts({"tokens": TOKENS, "Q": [" a", " b"]}, states=lambda ids: [len(ids)], **options)
    return {"draft": draft, "assistant": ScriptedProvider.from_texts({"tokens": TOKENS, "Q": [" a", " c"]})}


async def test_it_is_refused_where_it_cannot_decide() -> None:
    one = gate(weights=(1.0,))
    with pytest.raises(UnsupportedError, match="looks at the draft's hidden state before each draft token, and words"):
        await fuse("Q", unit="word", verifier=one, **models())
    with pytest.raises(SettingError, match="not computed for a CoLLMVerifier, which also looks at the draft's hidden"):
        await log_likelihood("Q", " a", unit="token", verifier=one, **models())
    with pytest.raises(SettingError, match="temperature=1 is not defined for a CoLLMVerifier, which also looks at the"):
        CoSD(verifier=one, unit="token", temperature=1)


async def test_a_trace_is_judged_again() -> None:
    result = await fuse("Q", unit="token", verifier=gate(0.4, weights=(0.1,)), **models())
    fired = [one for token in result.tokens for one in token.decisions if one.fired]
    assert [one.reason for one in fired] == ["deferral 0.55 > 0.4"]
    assert result.trace.replay() == result.text == " a c"
    with pytest.raises(TraceError, match=r"was replaced, but the verifier says deferral .* <= 0.99"):
        result.trace.replay(gate(0.99))
