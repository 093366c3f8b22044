"""Tuning of alpha and beta on decision samples, without requests.

The result resembles the paper's Figure 2, but counts right decisions instead of right answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from cosd_api import RuleVerifier, SettingError
from cosd_api.extend import check_count, counted, paragraph
from cosd_api.training.dataset import Samples
from cosd_api.training.evaluation import (
    DEFAULT,
    DEFAULT_RULE,
    ENOUGH_EXAMPLES,
    PAPER,
    QUARTERS,
    TUNED_RULE,
    HeldOutScores,
    LabelledPlace,
    check_grid,
    lacking,
    places_of,
)
from cosd_api.training.fit import compare
from cosd_api.training.report import GridTuning, Interval, about_dropped, in_words, one_sided

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["RuleTuning", "by_grid", "grid_tuning", "tune"]

_TAILS = (2.5, 97.5)  # percentiles of a 95 % interval
_BLOCK = 4_000_000  # number of examples to draw at a time; this many take about 100 MB of memory


class RuleTuning(GridTuning):
    """Accuracy of the rule's decisions, and the recommended pair: `Fusion(..., verifier=tuning.recommended)`.

    `accuracy` is the share of labelled samples for which the pair makes the right decision: to replace the draft's word
    if the label is 1, and to keep it if the label is 0. `examples` counts the examples with labelled samples.

    Attributes:
        labelled: number of labelled samples.
        comparison: scores of the constants, the default rule, the paper's rule, the tuned rule and a tree on the same
            held-out examples; None if there are too few examples.
        lacking: explanation of why there are too few examples for `comparison`; None if there are enough.
    """

    measured: ClassVar[str] = "decisions"

    labelled: int
    comparison: HeldOutScores | None
    lacking: str | None

    @property
    def refuted(self) -> bool:
        """True if tuned pairs make worse decisions on held-out examples than the default pair."""
        if self.comparison is None:
            return False
        tuned, default = (self.comparison.scores[name].accuracy for name in (TUNED_RULE, DEFAULT_RULE))
        return tuned < default

    @property
    def recommended(self) -> RuleVerifier:
        """The best pair, or the default if no pair is better or if the choice is `refuted`."""
        return DEFAULT if self.refuted else super().recommended

    def advice(self) -> str:
        """The recommended pair, in words."""
        if self.comparison is None or not self.refuted or self.best == DEFAULT:
            return super().advice()
        tuned, default = (self.comparison.scores[name].accuracy for name in (TUNED_RULE, DEFAULT_RULE))
        return paragraph(
            f"Recommended (by {self.measured}): the default, {in_words(DEFAULT)}. On held-out examples it decided "
            f"{default:.1%} right, and pairs that were chosen in the same way {tuned:.1%}: there are too few examples "
            "to choose by."
        )

    def findings(self) -> str:
        """Describe the accuracy of the best pair, and the comparison on held-out examples."""
        lack = paragraph(f"Nothing is compared on held-out examples: {self.lacking}.")
        return f"{super().findings()}\n\n{self.comparison or lack}"

    def _about_best(self) -> str:
        places = f"{counted(self.labelled, 'place')} of {counted(self.examples, 'example')}"
        right = f"With it {self.best_accuracy:.1%} of the decisions are right{self._interval_in_words()}"
        return f"{super()._about_best()} {right}, at {places} where just one of the models is right."


def tune(
    samples: Samples | Sequence[Samples],
    *,
    alphas: Sequence[float] = QUARTERS,
    betas: Sequence[float] = QUARTERS,
    folds: int = 5,
    resamples: int = 1000,
    seed: int = 0,
) -> RuleTuning:
    """Measure the rule's decisions for every pair of alpha and beta, and recommend a pair. This sends no request.

    Right decisions do not guarantee a right answer; `tune_answers` counts right answers instead. The default pair and
    the paper's pair are always measured as well. If several pairs are equally good, the one nearest to the default is
    chosen. So if no pair is better, the default is recommended (see `RuleTuning.recommended`).

    Args:
        samples: samples from `collect`, one data set or several.
        alphas: values of alpha to try; by default as in the paper's Figure 2.
        betas: values of beta to try; by default as in the paper's Figure 2.
        folds: number of folds of the comparison on held-out examples.
        resamples: number of bootstrap resamples for the intervals.
        seed: seed of the resamples and the folds.

    Raises:
        SettingError: no sample has a label, an argument is invalid, or scikit-learn is missing.
    """
    pairs = check_grid(alphas, betas)
    check_count("resamples", resamples)
    comparison = compare(samples, alphas=alphas, betas=betas, folds=folds, seed=seed)
    places, sets = places_of(samples), [samples] if isinstance(samples, Samples) else samples
    if not places:
        raise SettingError(_nothing_to_tune_on(sets))
    tuned = grid_tuning(pairs, _counts(places, pairs), resamples, seed)
    labels = [place.label for place in places]
    lacks = one_sided(labels.count(0), labels.count(1))
    doubts = [*([] if lacks is None else [lacks]), *about_dropped(len(places), sum(one.dropped for one in sets))]
    found = dict(tuned.model_copy(update={"warnings": (*doubts, *tuned.warnings)}))
    return RuleTuning(**found, labelled=len(places), comparison=comparison, lacking=lacking(places))


def _counts(places: Sequence[LabelledPlace], pairs: Sequence[RuleVerifier]) -> NDArray[np.int64]:
    """Build the counts for `grid_tuning`.

    The row of an example contains its number of right decisions for every pair, and then its number of places.
    """
    import numpy as np  # noqa: PLC0415

    p, q, label, group = (np.array([getattr(place, name) for place in places]) for name in ("p", "q", "label", "group"))
    examples, row = np.unique(group, return_inverse=True)
    counts = np.empty((len(examples), len(pairs) + 1), dtype=np.int64)
    with np.errstate(invalid="ignore"):  # 0 times an infinite beta is NaN, and no q is greater than NaN, as intended
        for at, pair in enumerate(pairs):
            replaces = (p < pair.alpha) & (q > pair.beta * p)  # this is RuleVerifier.replaces for all places at once
            counts[:, at] = np.bincount(row[replaces == label], minlength=len(examples))
    counts[:, -1] = np.bincount(row)
    return counts


def _nothing_to_tune_on(samples: Sequence[Samples]) -> str:
    positions, agreeing, dropped = (
        sum(getattr(one, name) for one in samples) for name in ("positions", "agreeing", "dropped")
    )
    if not positions:
        return "there is nothing to tune on: no place of any example could be judged"
    words = f"of {positions} places the two models agree at {agreeing}, and are both wrong at {dropped}"
    more = "collect examples where one of them is right and the other is not"
    return "; ".join([f"there is nothing to tune on: {words}", more, *about_dropped(0, dropped)])


# Choice of the best pair, and measurement of its certainty. `tune_answers` uses these functions, too.


def grid_tuning(pairs: Sequence[RuleVerifier], counts: NDArray[np.int64], resamples: int, seed: int) -> GridTuning:
    """Choose the best of `pairs`, and measure its certainty by bootstrap over examples.

    The best of many pairs owes part of its lead to luck. Each resample has its own best pair, which is equally lucky:
    the difference between that pair's lead in the resample and its lead on the examples consists of luck and sampling
    error. The best pair's lead on the examples, minus this difference, is an estimate of its lead on new examples (the
    basic bootstrap: Davison and Hinkley, 1997, section 5.2). If one pair is far ahead, this subtracts too much.
    Therefore, the interval covers the middle 95 % of these estimates, and also the middle 95 % of the best pair's own
    leads in the resamples.

    Args:
        pairs: the pairs, as `check_grid` returns them.
        counts: one row per example, with the number of right decisions or answers of each pair, and then the total.
        resamples: number of resamples.
        seed: seed of the resamples.
    """
    import numpy as np  # noqa: PLC0415

    found: NDArray[np.float64] = _shares(counts.sum(axis=0, keepdims=True).astype(np.float64))[0]
    best = int(np.argmax(found))  # among equals the first
    default, paper = pairs.index(DEFAULT), pairs.index(PAPER)
    interval = gain_interval = best_share = None
    if len(counts) > 1:
        ordered = counts[np.lexsort(counts.T)]  # the result must not depend on the order in which examples finished
        again = _shares(_resampled(ordered, resamples, seed))
        chosen = again.argmax(axis=1)  # among equals the first
        there = again[np.arange(resamples), chosen]
        interval = _hull(again[:, best], found[best] - (there - found[chosen]), least=0.0)
        gains = found[best] - found[default] - ((there - again[:, default]) - (found[chosen] - found[default]))
        gain_interval = _hull(again[:, best] - again[:, default], gains, least=-1.0)
        best_share = np.count_nonzero(chosen == best) / resamples
    return GridTuning(
        accuracy=by_grid(pairs, found),
        best=pairs[best],
        interval=interval,
        default=float(found[default]),
        paper=float(found[paper]),
        gain_interval=gain_interval,
        best_share=best_share,
        examples=len(counts),
        resamples=resamples,
        seed=seed,
        warnings=_about_few(len(counts)),
    )


def by_grid(pairs: Sequence[RuleVerifier], values: Iterable[float]) -> dict[float, dict[float, float]]:
    """Arrange the values of the pairs by alpha and then by beta, in ascending order."""
    found = {alpha: dict[float, float]() for alpha in sorted({pair.alpha for pair in pairs})}
    for pair, value in sorted(zip(pairs, values, strict=True), key=lambda one: one[0].beta):
        found[pair.alpha][pair.beta] = float(value)  # the value may be a NumPy scalar
    return found


def _about_few(examples: int) -> tuple[str, ...]:
    if examples >= ENOUGH_EXAMPLES:
        return ()
    if examples == 1:
        return (f"a single example says nothing about others: give at least {ENOUGH_EXAMPLES}",)
    few = f"{examples} examples say little about others, and so does their interval"
    return (f"{few}: give at least {ENOUGH_EXAMPLES}",)


def _shares(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    return sums[:, :-1] / sums[:, -1:]


def _hull(fixed: NDArray[np.float64], chosen: NDArray[np.float64], *, least: float) -> Interval:
    """Return the smallest interval that covers the middle 95 % of each of the two arrays, clipped to [least, 1]."""
    import numpy as np  # noqa: PLC0415

    ends = [np.percentile(values, _TAILS) for values in (fixed, chosen)]
    low, high = min(one[0] for one in ends), max(one[1] for one in ends)
    return float(np.clip(low, least, 1)), float(np.clip(high, least, 1))


def _resampled(counts: NDArray[np.int64], resamples: int, seed: int) -> NDArray[np.float64]:
    """Draw resamples; return the sum of each resample's rows. The sums are whole numbers, which floats hold exactly."""
    import numpy as np  # noqa: PLC0415

    source, size = np.random.default_rng(seed), len(counts)
    lines = max(1, _BLOCK // size)
    table = counts.astype(np.float64)
    blocks: list[NDArray[np.float64]] = []
    for begin in range(0, resamples, lines):
        count = min(lines, resamples - begin)
        draws = source.integers(size, size=(count, size)) + size * np.arange(count)[:, None]
        times = np.bincount(draws.ravel(), minlength=count * size).reshape(count, size)
        blocks.append(times.astype(np.float64) @ table)
    return np.concatenate(blocks)
