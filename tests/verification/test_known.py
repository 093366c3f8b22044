"""Every known verifier: what records, settings files, reports and command lines make of its kind and its fields."""

from __future__ import annotations

import html
import math
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from typer import Typer
from typer.testing import CliRunner

from cosd_api import (
    AgreementVerifier,
    DiffVerifier,
    Fusion,
    FusionResult,
    RandomVerifier,
    RuleVerifier,
    SurpriseVerifier,
    fuse,
)
from cosd_api.apps.cli.options import SharedOptions, with_options
from cosd_api.apps.cli.verifier_options import NUMBERS, VERIFIERS
from cosd_api.apps.report.page import page
from cosd_api.extend import Place, Verifier
from cosd_api.verification import KINDS, TRAINED, condition_of, needs_of, numbers_of, verifier_at
from cosd_providers.contract import Token
from toys import lima
from toys.samples import sample_verifier

every = pytest.mark.parametrize("kind", KINDS)
PROBS = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]) | st.floats(0, 1)
WIDTH = 4
URLS: dict[str, Any] = {"draft": "http://a:1", "assistant": "http://b:1"}


def here(verifier: Verifier, p: float, draft_q: float) -> Verifier:
    """The verifier for a place where it may look at anything."""
    others = (Token(b" b", 0.0), Token(b" c", 0.0))
    token = Token(b" a", p, alternatives=others, state=(1.0,) * WIDTH)
    return verifier_at(verifier, Place(b"prompt", 3, draft_q=draft_q, token=token))


@every
@given(PROBS, PROBS, PROBS)
def test_nothing_is_replaced_that_is_not_contestable(kind: str, p: float, q: float, draft_q: float) -> None:
    verifier = sample_verifier(kind)
    place = here(verifier, p, draft_q)
    assert isinstance(verifier, Verifier) and isinstance(place, Verifier)
    assert place.explain(p, q)
    if place.replaces(p, q):
        assert place.contestable(p) and verifier.contestable(p)
    if not needs_of(verifier).q:
        assert place.replaces(p, q) == place.replaces(p, 0.5)


def _states(ids: Sequence[int]) -> list[float]:
    return [float(len(ids))] * WIDTH


async def answered(verifier: Verifier) -> FusionResult:
    draft = replace(lima.draft(), states=_states)
    unit: Any = "token" if needs_of(verifier).looks_at else None
    return await fuse("Q:", draft=draft, assistant=lima.assistant(), verifier=verifier, unit=unit)


@every
async def test_a_result_holds_it_and_a_report_shows_it(kind: str) -> None:
    verifier = sample_verifier(kind)
    result = await answered(verifier)
    assert FusionResult.model_validate_json(result.model_dump_json()) == result
    assert result.settings.verifier == verifier
    assert result.trace.replay() == result.text
    assert isinstance(verifier, KINDS[kind])
    assert condition_of(verifier) in html.unescape(page(result))


@pytest.mark.parametrize(
    "verifier",
    [
        *map(sample_verifier, KINDS),
        RuleVerifier(alpha=0.25, beta=math.inf),
        AgreementVerifier(alpha=0.25),
        AgreementVerifier(alpha=0.75),
        DiffVerifier(tau=0.25),
        RandomVerifier(rate=0.25, seed=3),
        SurpriseVerifier(gamma=0.25, beta=math.inf, window=3),
    ],
)
def test_it_goes_through_json_and_pickle(verifier: Any) -> None:
    text = verifier.model_dump_json()
    assert type(verifier).model_validate_json(text) == verifier
    assert ("Infinity" in text) == (math.inf in verifier.model_dump().values())
    assert pickle.loads(pickle.dumps(verifier)) == verifier


def test_its_fields_are_what_is_written() -> None:
    assert AgreementVerifier(alpha=0.25).model_dump() == {"kind": "agreement", "alpha": 0.25}
    assert RandomVerifier(rate=0.25, seed=3).model_dump() == {"kind": "random", "rate": 0.25, "seed": 3}


BAD: dict[str, list[dict[str, Any]]] = {
    "rule": [{"alpha": -0.1}, {"beta": math.nan}, {"gamma": 1}],
    "agreement": [{"alpha": -0.1}, {"alpha": math.nan}, {"alpha": math.inf}, {"beta": 1}],
    "diff": [{"tau": -0.1}, {"tau": 1.1}, {"tau": math.nan}, {"alpha": 0.5}],
    "random": [{}, {"rate": -0.1}, {"rate": 1.1}, {"rate": math.nan}, {"rate": 0.5, "seed": 0.5}],
    "surprise": [{"gamma": 0}, {"gamma": 1.1}, {"gamma": math.nan}, {"beta": -1}, {"window": 0}],
}


@pytest.mark.parametrize(("kind", "fields"), [(kind, one) for kind, several in BAD.items() for one in several])
def test_bad_numbers_are_refused(kind: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        KINDS[kind](**fields)


class Plain(BaseModel):
    kind: Literal["plain"] = "plain"


class Level(Plain):
    level: float = 0.5


def test_one_without_a_condition_is_shown_by_its_settings() -> None:
    assert [condition_of(one) for one in (Plain(), Level())] == ["the verifier plain", "the verifier plain (level=0.5)"]


@every
def test_a_settings_file_holds_it(kind: str, tmp_path: Path) -> None:
    verifier = sample_verifier(kind)
    unit: Any = "token" if needs_of(verifier).looks_at else None
    Fusion(**URLS, verifier=verifier, unit=unit).save(tmp_path / "fusion.yaml")
    assert Fusion.load(tmp_path / "fusion.yaml").settings.verifier == verifier


@every
def test_the_command_line_takes_its_numbers(kind: str) -> None:
    if kind in TRAINED or numbers_of(kind) is None:
        assert kind not in VERIFIERS
        return
    verifier: Any = sample_verifier(kind)
    numbers = {name: getattr(verifier, name) for name in VERIFIERS[kind]}
    assert {*numbers} <= {*NUMBERS}
    seen: list[Verifier] = []
    app = Typer()

    @app.command()
    @with_options(SharedOptions)
    def show(options: SharedOptions) -> None:
        seen.append(options.fusion().settings.verifier)

    options = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    servers = [word for name, url in URLS.items() for word in (f"--{name}", url)]
    ended = CliRunner().invoke(app, [*servers, "--verifier", kind, *options])
    assert (ended.exit_code, seen) == (0, [verifier])
