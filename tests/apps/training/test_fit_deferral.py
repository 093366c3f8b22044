"""Training the gate: its likelihood and gradient against a naive computation, recovery, its threshold and its file."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import CoLLMVerifier, DeferralVerifier, Example, Samples, SettingError, train_deferral
from cosd_api.apps.training import DeferralTraining
from cosd_api.apps.training.fit_deferral import PENALTIES, PENALTY, marginal, youden
from cosd_api.forcing.samples import DeferralSample, ExampleSamples, state_from_text, state_in_text
from cosd_providers.contract import Token
from support.drawn import examples as drawn_examples

Row = tuple[str, tuple[float, ...], float, float, bool]
"""The draft's text, its list, both models' probabilities of the reference's token, and z."""


def samples(*rows: Sequence[Row], skipped: int = 0, listed: int | None = 3) -> Samples:
    def made(at: int, several: Sequence[Row]) -> ExampleSamples:
        found = tuple(DeferralSample(n, *row) for n, row in enumerate(several))
        example = Example(prompt=f"Q{at}", answer=" a")
        return ExampleSamples(example=example, samples=(), deferral=found, deferral_skipped=skipped)

    return Samples(examples=tuple(made(at, several) for at, several in enumerate(rows)), unit="token", listed=listed)


def drawn(count: int, each: int = 12, *, seed: int = 0, slope: float = -9.0, middle: float = 0.5) -> Samples:
    """Where the draft's p is below the middle, mostly the assistant knows the token and the draft does not."""
    rng = random.Random(seed)

    def row() -> Row:
        p = 0.05 + 0.95 * rng.random()
        other = (1 - p) * rng.random()
        if rng.random() < 1 / (1 + math.exp(-slope * (p - middle))):
            return rng.choice([" a", "b"]), (p, other), 0.02, 0.95, True
        return rng.choice([" a", "b"]), (p, other), p, 0.02, False

    return samples(*([row() for _ in range(each)] for _ in range(count)))


# The likelihood.


def naive_loss(theta: Sequence[float], x: Sequence[Sequence[float]], p: Sequence[float], q: Sequence[float]) -> float:
    """The mean of -log[(1 - s) p + s q], one place after another."""
    total = 0.0
    for row, mine, theirs in zip(x, p, q, strict=True):
        s = 1 / (1 + math.exp(-sum(one * value for one, value in zip(theta, row, strict=True))))
        total -= math.log((1 - s) * mine + s * theirs)
    return total / len(p)


PROBS = st.floats(0.01, 1)
NUMBERS = st.floats(-3, 3)


@drawn_examples(30)
@given(
    st.lists(NUMBERS, min_size=3, max_size=3),
    st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, PROBS, PROBS), min_size=1, max_size=8),
)
def test_the_loss_and_its_gradient_are_the_naive_ones(
    theta: list[float], rows: list[tuple[float, float, float, float, float]]
) -> None:
    x, p, q = [row[:3] for row in rows], [row[3] for row in rows], [row[4] for row in rows]
    loss, slope = marginal(np.array(theta), np.array(x), np.array(p), np.array(q))
    assert loss == pytest.approx(naive_loss(theta, x, p, q), abs=1e-9)
    for at in range(3):
        above, below = ([*theta] for _ in range(2))
        above[at] += 1e-5
        below[at] -= 1e-5
        difference = (naive_loss(above, x, p, q) - naive_loss(below, x, p, q)) / 2e-5
        assert slope[at] == pytest.approx(difference, abs=1e-5)


def test_a_token_that_neither_model_knows_changes_nothing() -> None:
    loss, slope = marginal(np.array([1.0]), np.array([[1.0]]), np.array([0.0]), np.array([0.0]))
    assert math.isfinite(loss)
    assert slope.tolist() == [0.0]


# What is learned.


def test_a_gate_is_recovered() -> None:
    """The data open at p = 0.5; what is trained opens there, and hands over what it should."""
    training = train_deferral(drawn(30))
    assert training.losses["gate"] < training.losses["first"] < min(training.losses[one] for one in ("draft",))
    assert training.losses["gate"] < training.losses["assistant"] - 0.3
    assert training.score.held_out
    assert training.score.youden > 0.5
    assert training.warnings == ()

    def opens(p: float) -> bool:
        return training.gate.probability(Token(b" a", p, alternatives=(Token(b"x", (1 - p) / 2),))) > training.gate.eta

    assert [opens(p) for p in (0.1, 0.2, 0.3, 0.7, 0.8, 0.95)] == [True] * 3 + [False] * 3
    assert DeferralTraining.model_validate_json(training.model_dump_json()) == training


@pytest.mark.extended
def test_other_data_give_another_gate() -> None:
    """Here the assistant is right where the draft is sure."""
    gate = train_deferral(drawn(60, slope=9.0)).gate
    found = [gate.probability(Token(b" a", p, alternatives=(Token(b"x", (1 - p) / 2),))) for p in (0.1, 0.9)]
    assert found[0] < gate.eta < found[1]


def test_the_weights_are_those_of_the_features_themselves() -> None:
    """Standardised while they are trained; the first weights are the least penalised loss, not the starting point."""
    training = train_deferral(drawn(30))
    assert isinstance(training.gate, DeferralVerifier)
    weights = training.gate.weights
    assert weights.top + weights.margin < 0
    assert (weights.number, weights.end) == (0, 0)  # constant in the data


def test_the_marginal_likelihood_starts_from_the_regression_of_z(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.optimize import minimize
    from sklearn.linear_model import LogisticRegression

    fit = LogisticRegression.fit
    starts, first = list[Any](), list[Any]()

    def noted(loss: Any, start: Any, **options: Any) -> Any:
        starts.append(start.tolist())
        return minimize(loss, start, **options)

    def fitted(regression: Any, x: Any, z: Any) -> Any:
        found = fit(regression, x, z)
        first.append(([*found.intercept_, *found.coef_[0]], x, z))
        return found

    monkeypatch.setattr("cosd_api.apps.training.fit_deferral.import_module", lambda _: SimpleNamespace(minimize=noted))
    monkeypatch.setattr(LogisticRegression, "fit", fitted)
    train_deferral(drawn(3))
    assert starts == [theta for theta, *_ in first] and starts
    for theta, x, z in first:  # the penalised mean of the losses has no slope there
        logits = theta[0] + x @ np.array(theta[1:])
        slope = x.T @ (1 / (1 + np.exp(-logits)) - z) / len(z) + PENALTY * np.array(theta[1:])
        assert np.abs(slope).max() < 1e-5


@drawn_examples(15)
@given(st.lists(st.tuples(st.sampled_from((0.1, 0.2, 0.3, 0.6, 0.9)), st.integers(0, 1)), min_size=2, max_size=12))
def test_the_threshold_has_the_largest_index(rows: list[tuple[float, int]]) -> None:
    scores, labels = [row[0] for row in rows], [row[1] for row in rows]
    if len({*labels}) < 2:
        return

    def index(eta: float) -> float:
        hits = [label for score, label in rows if score > eta]
        return sum(hits) / sum(labels) - (len(hits) - sum(hits)) / (len(labels) - sum(labels))

    eta, rates = youden(scores, labels, held_out=True)
    assert index(eta) == pytest.approx(rates.youden)
    assert rates.youden == pytest.approx(max(index(one) for one in (0.0, 0.15, 0.25, 0.5, 0.7, 1.0)))
    assert rates.opens == sum(score > eta for score in scores) / len(scores)


def test_the_same_samples_give_the_same_file(tmp_path: Path) -> None:
    found = drawn(12)
    turned = found.model_copy(update={"examples": found.examples[::-1]})
    files = []
    for name, one in (("a", found), ("b", turned), ("c", found)):
        train_deferral(one, seed=3).gate.save(tmp_path / name)
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1] == files[2]
    told = DeferralVerifier.load(tmp_path / "a").trained_on
    assert (told["seed"], told["folds"], told["data"]) == (3, 5, found.deferral_digest)
    counts = told["counts"]
    assert isinstance(counts, dict)
    assert (counts["examples"], counts["places"], counts["skipped"]) == (12, 144, 0)


# What is refused, and warned of.

KEPT: Row = (" a", (0.9, 0.05), 0.9, 0.1, False)
HANDED: Row = (" b", (0.3, 0.25), 0.1, 0.9, True)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (samples([KEPT], [KEPT]), "there is nothing to hand over: at none of 2 tokens is the assistant right and"),
        (samples([HANDED]), "there is nothing to keep: at all 1 token the assistant is right and the draft wrong"),
        (samples([], skipped=4), r"no token of the 1 example has known probabilities \(4 were skipped\)"),
        (samples([KEPT, HANDED], listed=None), "the samples hold no lists .* collect them with listed=10"),
        (Samples(), "there is nothing to train on: the samples have no examples"),
        (3, "samples must be the result of collect"),
    ],
)
def test_data_without_a_lesson_are_refused(found: Samples, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        train_deferral(found)


def test_few_examples_are_warned_of() -> None:
    training = train_deferral(samples([KEPT, HANDED], [KEPT, KEPT], skipped=9))
    assert not training.score.held_out
    about, skipped = training.warnings
    assert "eta was chosen on the examples that the gate was trained on: holding some out needs 5 examples" in about
    assert "18 tokens have no known probability, and 4 have: do the models have one tokenizer?" in skipped
    assert "Note: eta was chosen" in str(training)
    assert "2 examples: 4 tokens, 1 of which the assistant would have written" in training.report()
    assert max(map(len, str(training).splitlines())) <= 80


def test_examples_of_which_one_alone_keeps_a_token_are_not_held_out() -> None:
    """Without it there is nothing to learn from."""
    training = train_deferral(samples([KEPT, HANDED], *[[HANDED]] * 5))
    assert not training.score.held_out
    assert (
        "needs 5 examples, 2 of them with a token to be handed over, and 2 with one to be kept" in training.warnings[0]
    )


def test_nothing_to_tell_them_apart_by() -> None:
    rows = [(" a", (0.5, 0.5), 0.5, 0.5, handed) for handed in (True, False)]
    training = train_deferral(samples(*[rows] * 6))
    assert any("never opens" in one for one in training.warnings)
    assert training.gate.eta == 1
    assert not training.gate.contestable(0.5)


# Hidden states.


def stated(rows: Samples, width: int = 12, *, noise: float = 0.3, seed: int = 1) -> Samples:
    """The same samples with states: of all their numbers the third tells the places to be handed over."""
    rng = random.Random(seed)

    def given(place: DeferralSample) -> DeferralSample:
        state = [rng.gauss(0, 1) for _ in range(width)]
        state[2] = (1 if place.handed else -1) + rng.gauss(0, noise)
        return replace(place, state=state_in_text(state))

    found = [one.model_copy(update={"deferral": tuple(map(given, one.deferral or ()))}) for one in rows.examples]
    return rows.model_copy(update={"examples": tuple(found), "listed": None, "hidden_states": width})


def test_a_gate_on_hidden_states_finds_the_number_that_tells() -> None:
    training = train_deferral(stated(drawn(10)), hidden_states=True)
    assert isinstance(training.gate, CoLLMVerifier)
    weights = training.gate.weights
    assert (training.gate.width, len(weights)) == (12, 12)
    assert weights[2] > 5 * max(abs(one) for at, one in enumerate(weights) if at != 2)
    assert training.losses["gate"] < training.losses["draft"] / 2
    assert training.losses["gate"] < training.losses["first"] + 0.01  # that of line 4 is of a penalised loss
    assert training.score.held_out
    assert training.score.youden > 0.9
    assert training.warnings == ()
    assert DeferralTraining.model_validate_json(training.model_dump_json()) == training
    assert "Gate over hidden states of 12 numbers.\n" in training.report()
    assert f"It was trained with a penalty of {training.penalty:g}, and opens" in training.report()
    told = training.gate.trained_on
    assert (told["penalty"], told["data"]) == (training.penalty, stated(drawn(10)).deferral_digest)


@pytest.mark.extended
def test_the_penalty_is_the_best_on_held_out_examples() -> None:
    """Where the states say nothing it is stronger than where one number says all."""
    lost = train_deferral(stated(drawn(8, 6), width=30, noise=200.0), hidden_states=True)
    told = train_deferral(stated(drawn(8, 6), noise=0.01), hidden_states=True)
    assert PENALTIES[0] >= lost.penalty > told.penalty


def test_with_few_examples_no_penalty_is_tried() -> None:
    few = train_deferral(stated(samples([KEPT, HANDED], [KEPT, KEPT])), hidden_states=True)
    assert (few.penalty, few.score.held_out) == (0.1, False)


def test_samples_without_states_are_refused() -> None:
    found = stated(samples([KEPT, HANDED]))
    broken = [one.model_copy(update={"deferral": (replace(one.deferral[0], state="AAAA"),)}) for one in found.examples]  # type: ignore[index]
    for data, words in (
        (samples([KEPT, HANDED]), "the samples hold no hidden states .* collect them with hidden_states=True"),
        (
            found.model_copy(update={"examples": tuple(broken)}),
            "a sample has 0 numbers, and the header of its file .* 12",
        ),
        (found, "the samples hold no lists"),
    ):
        with pytest.raises(SettingError, match=words):
            train_deferral(data, hidden_states=data is not found)
    with pytest.raises(SettingError, match="not base64"):
        state_from_text("?", 1)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5))
def test_states_are_kept_to_the_last_digit(state: list[float]) -> None:
    assert list(state_from_text(state_in_text(state), len(state))) == state


def test_a_state_in_memory_takes_four_bytes_a_number() -> None:
    text = state_in_text([1 / 3] * 1000)
    tracemalloc.start()
    try:
        states = [state_from_text(text, 1000) for _ in range(50)]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 4 <= taken / sum(map(len, states)) < 4.5


def test_arguments() -> None:
    found = samples([KEPT, HANDED])
    with pytest.raises(SettingError, match="folds must be a whole number of at least 2"):
        train_deferral(found, folds=1)
    with pytest.raises(SettingError, match="seed must be at most"):
        train_deferral(found, seed=2**32)
