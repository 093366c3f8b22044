"""Tuning of alpha and beta on decision samples, without requests.

The result resembles the paper's Figure 2, but counts right decisions instead of right answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict

from cosd_api import RuleVerifier, SettingError
from cosd_api.apps.training.dataset import Samples
from cosd_api.apps.training.evaluation import (
    DEFAULT,
    PAPER,
    QUARTERS,
    check_grid,
    fold_of_each,
    lacking,
    places_of,
    right_decisions,
)
from cosd_api.apps.training.fit import about_dropped, check_folds, check_samples, one_sided
from cosd_api.common.wording import counted, paragraph, with_notes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_RESAMPLES = 1000
_TAILS = (2.5, 97.5)  # percentiles of a 95 % interval


class GridTuning(BaseModel):
    """Accuracy of the rule for each pair of alpha and beta, and the recommended pair; `str()` gives a report.

    The default pair and the paper's pair are always included, even if they are not on the grid.

    The best pair is chosen and measured on the same examples, so its accuracy on them is partly luck. `held_out` is
    not: there, each example is judged with the pair that is best on other examples.

    Attributes:
        accuracy: accuracy in [0, 1], indexed by alpha and then by beta.
        best: the most accurate pair. If several are equally accurate, it is the pair nearest to the default, measured
            by the sum of the differences in alpha and in beta; then the pair with the smaller alpha, which needs fewer
            requests; then the pair with the greater beta.
        default: accuracy of the default pair, `RuleVerifier()`.
        paper: accuracy of the paper's pair, `RuleVerifier.paper()`.
        held_out: accuracy on held-out examples of pairs that were chosen in the same way; None with too few examples.
        gain_interval: 95 % interval for `held_out` minus `default`, by bootstrap over examples; None with too few
            examples.
        examples: number of examples on which the accuracy was measured.
        seed: seed of the folds and of the resamples.
        warnings: reasons to doubt the result.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    measured: ClassVar[str] = ""
    """Plural noun for the things that are right or wrong, such as "answers"."""

    accuracy: dict[float, dict[float, float]]
    best: RuleVerifier
    default: float
    paper: float
    held_out: float | None
    gain_interval: tuple[float, float] | None
    examples: int
    seed: int
    warnings: tuple[str, ...] = ()

    @property
    def best_accuracy(self) -> float:
        """Accuracy of the best pair."""
        return self.accuracy[self.best.alpha][self.best.beta]

    @property
    def ties(self) -> int:
        """Number of other pairs that are as accurate as the best pair."""
        return sum(value == self.best_accuracy for row in self.accuracy.values() for value in row.values()) - 1

    @property
    def refuted(self) -> bool:
        """True if tuned pairs are worse on held-out examples than the default pair."""
        return self.held_out is not None and self.held_out < self.default

    @property
    def recommended(self) -> RuleVerifier:
        """The best pair, or the default if no pair is better or if the choice is `refuted`."""
        return DEFAULT if self.refuted else self.best

    def report(self) -> str:
        """Describe the accuracies, the findings and the recommendation. `str()` adds the warnings."""
        return f"{self.grid()}\n\n{self.findings()}\n\n{self.advice()}"

    def __str__(self) -> str:
        return with_notes(self.report(), self.warnings)

    def grid(self) -> str:
        """Return the accuracies as a table: alpha increases to the right and beta upwards; `*` marks the best pair."""
        betas = sorted({beta for row in self.accuracy.values() for beta in row}, reverse=True)
        head = max(len("beta"), *(len(f"{beta:g}") for beta in betas))
        width = max(len("*100.0"), *(len(f"{alpha:g}") for alpha in self.accuracy)) + 2
        rows = [f"right {self.measured}, in % (*: best)", f"{'beta':>{head}}"]
        for beta in betas:
            cells = (self._cell(alpha, beta) for alpha in self.accuracy)
            rows.append(f"{beta:>{head}g}{''.join(f'{cell:>{width}}' for cell in cells)}")
        rows.append(" " * head + "".join(f"{alpha:>{width}g}" for alpha in self.accuracy) + "  alpha")
        return "\n".join(row.rstrip() for row in rows)

    def _cell(self, alpha: float, beta: float) -> str:
        value = self.accuracy[alpha].get(beta)
        if value is None:
            return ""
        return f"{'*' if (alpha, beta) == (self.best.alpha, self.best.beta) else ''}{100 * value:.1f}"

    def findings(self) -> str:
        """Describe the accuracy of the best pair and its uncertainty."""
        words = [self._about_best()]
        if self.best == DEFAULT:
            words.append("It is the default.")
        elif self.held_out is not None and self.gain_interval is not None:
            low, high = (f"{100 * bound:+.1f}" for bound in self.gain_interval)
            gain = f"{100 * (self.held_out - self.default):+.1f} points against the default ({in_words(DEFAULT)})"
            words.append(f"On held-out examples, pairs that were chosen in the same way gain {gain}: {low} to {high}")
            words.append("(95 % interval).")
        if self.ties:
            nearest = "" if self.best == DEFAULT else "; it is the nearest to the default"
            words.append(f"{counted(self.ties, 'other pair does', 'other pairs do')} as well{nearest}.")
        return paragraph(" ".join(words))

    def advice(self) -> str:
        """The recommended pair, in words."""
        if self.recommended != DEFAULT:
            return f"Recommended (by {self.measured}): {in_words(self.best)}."
        words = f"Recommended (by {self.measured}): the default, {in_words(DEFAULT)}"
        if self.best == DEFAULT:
            return paragraph(f"{words}: none of the pairs that were tried is better.")
        return paragraph(
            f"{words}. On held-out examples {self.default:.1%} of its {self.measured} are right, and with pairs that "
            f"were chosen in the same way {self.held_out:.1%}: there are too few examples to choose by."
        )

    def _about_best(self) -> str:
        return f"Best by {self.measured}: {in_words(self.best)}. With it {self.best_accuracy:.1%} of"


class RuleTuning(GridTuning):
    """Accuracy of the rule's decisions, and the recommended pair: `Fusion(..., verifier=tuning.recommended)`.

    `accuracy` is the share of labelled samples for which the pair makes the right decision: to replace the draft's word
    if the label is 1, and to keep it if the label is 0. `examples` counts the examples with labelled samples.

    Attributes:
        labelled: number of labelled samples.
    """

    measured: ClassVar[str] = "decisions"

    labelled: int

    def _about_best(self) -> str:
        places = f"{counted(self.labelled, 'place')} of {counted(self.examples, 'example')}"
        return f"{super()._about_best()} the decisions are right, at {places} where just one of the models is right."


def in_words(pair: RuleVerifier) -> str:
    """Write the alpha and beta of a rule in words."""
    return f"alpha {pair.alpha:g} and beta {pair.beta:g}"


def tune(
    samples: Samples,
    *,
    alphas: Sequence[float] = QUARTERS,
    betas: Sequence[float] = QUARTERS,
    folds: int = 5,
    seed: int = 0,
) -> RuleTuning:
    """Measure the rule's decisions for every pair of alpha and beta, and recommend a pair. This sends no request.

    Right decisions do not guarantee a right answer; `tune_answers` counts right answers instead. The default pair and
    the paper's pair are always measured as well. If several pairs are equally good, the one nearest to the default is
    chosen. So if no pair is better, the default is recommended (see `GridTuning.recommended`).

    Args:
        samples: samples from `collect`.
        alphas: values of alpha to try; by default as in the paper's Figure 2.
        betas: values of beta to try; by default as in the paper's Figure 2.
        folds: number of folds in which examples are held out.
        seed: seed of the folds and of the interval's resamples.

    Raises:
        SettingError: no sample has a label, or an argument is invalid.
    """
    import numpy as np  # noqa: PLC0415 - slow to load

    pairs = check_grid(alphas, betas)
    check_folds(folds, seed)
    samples = check_samples(samples)
    places = places_of(samples)
    if not places:
        raise SettingError(_nothing_to_tune_on(samples))
    labels = [place.label for place in places]
    lopsided = one_sided(labels.count(0), labels.count(1))
    doubts = about_dropped(len(places), samples.dropped) if lopsided is None else [lopsided]
    if (lack := lacking(places)) is None:
        fold = fold_of_each(places, folds=folds, seed=seed)
        row_folds = np.array([fold[group] for group in sorted(fold)])
    else:
        row_folds = None
        doubts.append(f"the gain on new examples is unknown: {lack}")
    tuned = grid_tuning(pairs, right_decisions(places, pairs), row_folds, seed)
    return RuleTuning(**dict(tuned.model_copy(update={"warnings": tuple(doubts)})), labelled=len(places))


def _nothing_to_tune_on(samples: Samples) -> str:
    if not samples.positions:
        return "there is nothing to tune on: no place of any example could be judged"
    words = f"of {samples.positions} places the two models agree at {samples.agreeing}"
    more = "collect examples where one of them is right and the other is not"
    nothing = f"there is nothing to tune on: {words}, and are both wrong at {samples.dropped}"
    return "; ".join([nothing, more, *about_dropped(0, samples.dropped)])


# Choice of the best pair, and its gain on held-out examples. `tune_answers` uses these functions, too.


def grid_tuning(
    pairs: Sequence[RuleVerifier], counts: NDArray[np.int64], folds: NDArray[np.int64] | None, seed: int
) -> GridTuning:
    """Choose the best of `pairs`, and measure the gain of pairs that are chosen in this way.

    Args:
        pairs: the pairs, as `check_grid` returns them.
        counts: one row per example, with the number of right decisions or answers of each pair, and then the total.
        folds: the fold of each example, from 0; None if there are too few examples to hold some out.
        seed: seed of the resamples.
    """
    import numpy as np  # noqa: PLC0415

    sums = counts.sum(axis=0)
    found = sums[:-1] / sums[-1]
    default = pairs.index(DEFAULT)
    held_out = gain_interval = None
    if folds is not None:
        # Among equals, argmax takes the first.
        chosen = np.array([counts[folds != fold, :-1].sum(axis=0).argmax() for fold in range(folds.max() + 1)])[folds]
        there, total = counts[np.arange(len(counts)), chosen], counts[:, -1]
        held_out = float(there.sum() / total.sum())
        draw, gained, gains = np.random.default_rng(seed), there - counts[:, default], list[float]()
        for _ in range(_RESAMPLES):
            rows = draw.integers(len(counts), size=len(counts))
            gains.append(gained[rows].sum() / total[rows].sum())
        low, high = np.percentile(gains, _TAILS)
        gain_interval = float(low), float(high)
    return GridTuning(
        accuracy=by_grid(pairs, found),
        best=pairs[int(np.argmax(found))],
        default=float(found[default]),
        paper=float(found[pairs.index(PAPER)]),
        held_out=held_out,
        gain_interval=gain_interval,
        examples=len(counts),
        seed=seed,
    )


def by_grid(pairs: Sequence[RuleVerifier], values: Iterable[float]) -> dict[float, dict[float, float]]:
    """Arrange the values of the pairs by alpha and then by beta, in ascending order."""
    found = {alpha: dict[float, float]() for alpha in sorted({pair.alpha for pair in pairs})}
    for pair, value in sorted(zip(pairs, values, strict=True), key=lambda one: one[0].beta):
        found[pair.alpha][pair.beta] = float(value)  # the value may be a NumPy scalar
    return found
