"""Tuning by samples: the grid, the pair that is recommended, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import RuleVerifier, SettingError
from cosd_api.apps.training.dataset import Samples
from cosd_api.apps.training.evaluation import QUARTERS, TUNED_RULE, check_grid, places_of
from cosd_api.apps.training.fit import TreeFit, check_samples, compare
from cosd_api.apps.training.tuning import RuleTuning, grid_tuning, tune
from cosd_api.forcing.samples import Example, ExampleSamples, Sample

Row = tuple[float, float, int | None]
"""p, q and the label."""


def sample(p: float, q: float, label: int | None, *, agreed: bool = False) -> Sample:
    return Sample(p, q, label, agreed, 0, " a", " a" if agreed else " b", " a")  # type: ignore[arg-type]


def samples(*examples: Sequence[Row]) -> Samples:
    return Samples(
        examples=tuple(
            ExampleSamples(example=Example(prompt=f"Q{at}", answer=" a"), samples=tuple(sample(*row) for row in rows))
            for at, rows in enumerate(examples)
        )
    )


# At (0.25, *) the first is missed; with beta 2 the second is; beyond alpha 0.5 the third is spoiled.
FOUR = samples(
    [(0.3, 0.9, 1), (0.2, 0.3, 1)],
    [(0.6, 0.9, 0)],
    [(0.1, 0.9, 1), (0.9, 0.9, None)],
)


def test_a_grid_by_hand() -> None:
    tuning = tune(FOUR, alphas=(0.25, 0.5, 1), betas=(2, 1))
    assert tuning.accuracy == {
        0.25: {1.0: 3 / 4, 2.0: 2 / 4},
        0.5: {0.5: 4 / 4, 1.0: 4 / 4, 2.0: 3 / 4},  # the paper's pair is measured, too
        0.9: {1.0: 3 / 4},  # and the default
        1.0: {1.0: 3 / 4, 2.0: 3 / 4},  # 0.9 < 2 x 0.6: with beta 2 the third is right, and the second is not
    }
    assert tuning.best == RuleVerifier(alpha=0.5, beta=1)
    assert (tuning.best_accuracy, tuning.default, tuning.paper) == (1.0, 0.75, 1.0)
    assert (tuning.labelled, tuning.examples) == (4, 3)
    assert list(tuning.accuracy[0.25]) == [1.0, 2.0]


def test_ties_go_to_the_nearest_to_the_default_and_then_to_the_one_that_asks_less() -> None:
    easy = samples([(0.1, 0.9, 1)], [(0.99, 0.01, 0)])
    assert tune(easy).best == RuleVerifier()
    assert tune(easy, alphas=(1, 0.75), betas=(1, 0.75)).best == RuleVerifier()  # which is always tried
    surer = samples([(0.1, 0.9, 1)], [(0.85, 0.9, 0)])  # the default replaces the second
    assert tune(surer).best == RuleVerifier(alpha=0.75, beta=1)
    assert tune(surer, alphas=(0.75, 0.25), betas=(0.5,)).best == RuleVerifier(alpha=0.75, beta=0.5)
    assert tune(surer, alphas=(0.5,), betas=(0.75, 1.25)).best == RuleVerifier(alpha=0.5, beta=1.25)
    either = samples([(0.85, 0.9, 0)], [(0.95, 0.96, 1)])
    assert tune(either, alphas=(1, 0.8), betas=(1,)).best == RuleVerifier(alpha=0.8, beta=1)


rows = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.sampled_from([0, 1, None])), max_size=4)
bounds = st.lists(st.floats(0, 1.5) | st.just(math.inf), min_size=1, max_size=3, unique=True)


@given(st.lists(rows, max_size=4), bounds, bounds)
def test_accuracy_is_the_share_of_labelled_samples_that_the_rule_decides_right(
    examples: list[list[Row]], alphas: list[float], betas: list[float]
) -> None:
    labelled = [row for one in examples for row in one if row[2] is not None]
    if not labelled:
        return
    tuning = tune(samples(*examples), alphas=alphas, betas=betas)
    for alpha in alphas:
        for beta in betas:
            fires = RuleVerifier(alpha=alpha, beta=beta).replaces
            right = sum(fires(p, q) == (label == 1) for p, q, label in labelled)
            assert tuning.accuracy[alpha][beta] == right / len(labelled)
    assert tuning.best_accuracy == max(max(row.values()) for row in tuning.accuracy.values())
    assert RuleTuning.model_validate_json(tuning.model_dump_json()) == tuning


NOISY = samples(*([(0.4, 0.3 if at % 3 else 0.1, at % 2), (0.1 + at / 40, 0.9, 1)] for at in range(30)))


def test_the_gain_on_held_out_examples_is_the_same_for_the_same_seed_and_draws_whole_examples() -> None:
    one, again, other = tune(NOISY), tune(NOISY), tune(NOISY, seed=1)
    assert one == again
    assert one.accuracy == other.accuracy
    assert one.gain_interval != other.gain_interval
    assert tune(NOISY.model_copy(update={"examples": NOISY.examples[::-1]})) == one  # they are in a file as they came
    assert one.held_out is not None and one.gain_interval is not None
    compared = compare(places_of(check_samples(NOISY)), TreeFit())  # it finds the pairs one by one
    assert compared is not None
    assert one.held_out == compared.scores[TUNED_RULE].accuracy <= one.best_accuracy
    assert one.gain_interval[0] <= one.held_out - one.default <= one.gain_interval[1]
    # The same samples as examples of their own vary less: within these two are right or wrong together.
    both = [(0.6, 0.9, 1), (0.6, 0.9, 1)], [(0.85, 0.9, 0), (0.85, 0.9, 0)], [(0.1, 0.1, 1), (0.1, 0.1, 1)]
    together, apart = tune(samples(*both * 10)), tune(samples(*([row] for rows in both * 10 for row in rows)))
    assert _width(together) > 1.2 * _width(apart)


def _width(tuning: RuleTuning) -> float:
    assert tuning.gain_interval is not None
    return tuning.gain_interval[1] - tuning.gain_interval[0]


def test_each_example_is_judged_with_the_pair_that_is_best_on_the_others() -> None:
    """Of six examples each default misses one in another place: by hand, fold by fold."""
    pairs = check_grid((0.25,), (1,))  # the default, the paper's pair, and (0.25, 1)
    counts = np.array([[1, 0, 0, 1], [1, 0, 0, 1], [0, 1, 0, 1], [0, 1, 0, 1], [0, 1, 0, 1], [1, 0, 0, 1]])
    found = grid_tuning(pairs, counts, np.array([0, 1, 1, 1, 1, 0]), 0)
    # Without the first and the last the paper's pair is best (3 of 4), and without the others the default (2 of 2).
    assert (found.best, found.best_accuracy, found.default) == (pairs[0], 0.5, 0.5)
    assert found.held_out == 1 / 6
    assert found.refuted


def test_the_gain_is_over_the_default_though_it_is_not_on_the_grid() -> None:
    examples = [[(0.6, 0.9, 1)], [(0.6, 0.9, 1)], [(0.7, 0.9, 0)]]
    tuning = tune(samples(*examples), alphas=(0.75, 0.65), betas=(1,))
    assert (tuning.best.alpha, tuning.best_accuracy) == (0.65, 1.0)
    assert tuning.default == pytest.approx(2 / 3)
    assert tuning.paper == pytest.approx(1 / 3)
    assert tuning.best_accuracy - tuning.default == pytest.approx(1 / 3)


def test_one_example_tells_nothing_of_others() -> None:
    tuning = tune(samples([(0.1, 0.9, 1), (0.9, 0.9, 0)], [(0.5, 0.5, None)]))
    assert (tuning.held_out, tuning.gain_interval) == (None, None)
    assert (tuning.best_accuracy, tuning.examples) == (1.0, 1)


def test_no_labelled_sample() -> None:
    rows = (sample(0.5, 0.5, None), sample(0.5, 0.5, 0, agreed=True))
    nothing = Samples(examples=(ExampleSamples(example=Example(prompt="Q", answer="a"), samples=rows),))
    with pytest.raises(SettingError, match=r"of 2 places the two models agree at 1, and are both wrong at 1; collect"):
        tune(nothing)
    with pytest.raises(SettingError, match="no place of any example could be judged"):
        tune(samples([]))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"alphas": ()}, r"alphas must be non-negative numbers, such as \(0.25, 0.5\), not \(\)"),
        ({"betas": 0.5}, "betas must be non-negative numbers"),
        ({"betas": "0.5"}, "betas must be non-negative numbers"),
        ({"alphas": (0.5, -1)}, "alphas must be non-negative numbers"),
        ({"betas": (math.nan,)}, "betas must be non-negative numbers"),
        ({"betas": (True,)}, "betas must be non-negative numbers"),
        ({"betas": ("1",)}, "betas must be non-negative numbers"),
        ({"folds": 1}, "folds must be a whole number of at least 2"),
    ],
)
def test_what_no_grid_is(settings: dict[str, object], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        tune(FOUR, **settings)  # type: ignore[arg-type]


def test_the_interval_of_the_gain_holds_for_the_pair_that_was_chosen() -> None:
    """Of sixteen pairs and the default, which are all as good, the best has gained nothing."""
    draw = np.random.default_rng(3)
    pairs = check_grid(QUARTERS, QUARTERS)
    missed = 0
    for _ in range(60):
        shared, own = draw.random((80, 1)), draw.random((80, len(pairs)))
        right = np.where(draw.random(own.shape) < 0.5, shared, own) < 0.6
        counts = np.hstack([right, np.ones((80, 1), dtype=bool)]).astype(np.int64)
        found = grid_tuning(pairs, counts, np.arange(80) % 5, 1).gain_interval
        assert found is not None
        missed += not found[0] <= 0 <= found[1]
    assert missed <= 7


# In words.


def worded(tuned: RuleTuning) -> str:
    return " ".join(str(tuned).split())


def test_as_text_it_is_a_report() -> None:
    tuning = tune(FOUR, alphas=(0.25, 0.5), betas=(0.5,))
    assert str(tuning).startswith(
        f"right decisions, in % (*: best)\nbeta\n   1{' ' * 20}75.0\n 0.5    75.0  *100.0\n"
        f"{' ' * 8}0.25     0.5     0.9  alpha"
    )
    assert max(map(len, str(tuning).splitlines())) <= 80
    assert "\n\nRecommended (by decisions): alpha 0.5 and beta 0.5.\n\nNote: the gain on new examples" in str(tuning)


def test_pairs_that_do_as_well_are_counted() -> None:
    easy = samples([(0.1, 0.9, 1)], [(0.99, 0.01, 0)])
    tuning = tune(easy, alphas=(0.25, 0.75), betas=(0.5, 1))
    assert tuning.ties == 5  # the paper's pair among them
    assert "It is the default. 5 other pairs do as well." in worded(tuning)
    assert "It is the default. 16 other pairs do as well." in worded(tune(easy))
    several = samples(*[[(0.1, 0.9, 1)], [(0.85, 0.9, 0)]] * 4)
    surer = tune(several, alphas=(0.25, 0.75), betas=(0.5, 1))
    assert "4 other pairs do as well; it is the nearest to the default." in worded(surer)
    words = "pairs that were chosen in the same way gain +50.0 points against the default (alpha 0.9 and beta 1): +1"
    assert words in worded(surer)


def test_what_is_no_better_than_the_default_is_not_recommended() -> None:
    examples = samples([(0.4, 0.9, 1)], [(0.95, 0.99, 0)])
    worse = tune(examples, alphas=(2,), betas=(0.5,))
    assert worse.accuracy[2][0.5] == 0.5
    assert (worse.best, worse.recommended) == (RuleVerifier(), RuleVerifier())
    assert "(by decisions): the default, alpha 0.9 and beta 1: none of the pairs that were tried is" in worded(worse)
    same = tune(examples, alphas=(0.6,), betas=(0.5,))
    assert (same.accuracy[0.6][0.5], same.recommended) == (1, RuleVerifier())
    better = tune(samples([(0.6, 0.9, 1)], [(0.85, 0.9, 0)]), alphas=(0.75,), betas=(0.5,))
    assert better.recommended == better.best == RuleVerifier(alpha=0.75, beta=0.5)


def test_the_papers_pair_is_recommended_if_it_alone_is_better_than_the_default() -> None:
    found = tune(samples([(0.4, 0.3, 1)]), alphas=(0.25,), betas=(1,))
    assert (found.default, found.paper, found.recommended) == (0, 1, RuleVerifier.paper())


def test_data_that_tell_little_are_named() -> None:
    one_sided = tune(samples(*[[(0.1, 0.9, 0)]] * 41))
    note, unknown = one_sided.warnings
    assert unknown.startswith(
        "the gain on new examples is unknown: no example has a place where the assistant alone is"
    )
    assert note.startswith(
        "all 41 labelled samples are the draft's: the assistant was never right where the draft was w"
    )
    assert f"Note: {note}." in worded(one_sided)
    dropped: list[Row] = [(0.1, 0.9, 1), (0.9, 0.9, 0), *[(0.5, 0.5, None)] * 3]
    (many,) = tune(samples(*[dropped] * 5)).warnings
    assert many == (
        "at 15 of 25 places where the models differ neither is right: check that the answers are written as a model "
        "would write them, leading space included"
    )
    (few,) = tune(samples(*[dropped[:2]] * 4)).warnings
    assert few == (
        "the gain on new examples is unknown: 4 examples have a place where just one of the two models is right, and "
        "an estimate needs 5"
    )
    assert tune(samples(*[dropped[:2]] * 5)).warnings == ()
