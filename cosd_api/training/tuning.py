"""Alpha and beta of the rule from decision samples, without a query: the paper's Figure 2, for decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from cosd_api.errors import SettingError
from cosd_api.settings import check_count
from cosd_api.training.evaluation import Comparison, Place, lacking, places_of
from cosd_api.training.grid import PAPER, QUARTERS, Tuned, check_grid, chosen
from cosd_api.training.samples import Samples
from cosd_api.training.tree import compare
from cosd_api.training.wording import about_dropped, counted, filled, one_sided
from cosd_api.verification import RuleVerifier

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["RuleTuning", "tune"]


class RuleTuning(Tuned):
    """How right the rule decides, and the pair to use: `Fusion(..., verifier=tuning.recommended)`.

    `accuracy` is the part of the labelled samples that a pair decides right: it puts the assistant's word where the
    label is 1, and keeps the draft's where it is 0. `examples` are those that have such samples.

    Attributes:
        labelled: how many samples there are.
        comparison: rule, tuned rule and tree on the same held-out folds; None with too few examples.
        lacking: what the examples lack for that, in words.
    """

    counts_what: ClassVar[str] = "decisions"

    labelled: int
    comparison: Comparison | None
    lacking: str | None

    def told(self) -> str:
        """What is to be thought of the best pair, and the comparison on held-out examples."""
        lack = filled(f"Nothing is compared on held-out examples: {self.lacking}.")
        return f"{super().told()}\n\n{self.comparison or lack}"

    def _about_best(self) -> str:
        places = f"{counted(self.labelled, 'place')} of {counted(self.examples, 'example')}"
        right = f"With it {self.best_accuracy:.1%} of the decisions are right{self._in_words()}"
        return f"{super()._about_best()} {right}, at {places} where just one of the models is."


def tune(
    samples: Samples | Sequence[Samples],
    *,
    alphas: Sequence[float] = QUARTERS,
    betas: Sequence[float] = QUARTERS,
    folds: int = 5,
    resamples: int = 1000,
    seed: int = 0,
) -> RuleTuning:
    """How right the rule decides at every pair of alpha and beta, and which pair to use; nothing is sent.

    A right decision is not yet a right answer: `tune_answers` counts those. Of equally good pairs the nearest to the
    paper's (0.5, 0.5) is the best. Where no pair is better than the paper's, the paper's is recommended
    (`RuleTuning.recommended`).

    Args:
        samples: what `collect` gathered, one data set or several.
        alphas: to be tried; by default those of the paper's Figure 2.
        betas: likewise.
        folds: of the comparison on held-out examples.
        resamples: of the bootstrap over examples, which gives the intervals.
        seed: of the resamples and the folds.

    Raises:
        SettingError: no sample has a label, an argument is none, or scikit-learn is missing.
    """
    pairs = check_grid(alphas, betas)
    check_count("resamples", resamples)
    comparison = compare(samples, alphas=alphas, betas=betas, folds=folds, seed=seed)
    places, sets = places_of(samples), [samples] if isinstance(samples, Samples) else samples
    if not places:
        raise SettingError(_nothing(sets))
    tuned = chosen(pairs, _counts(places, [*pairs, PAPER]), resamples, seed)
    found = dict(tuned.model_copy(update={"warnings": (*_about_data(places, sets), *tuned.warnings)}))
    return RuleTuning(**found, labelled=len(places), comparison=comparison, lacking=lacking(places))


def _about_data(places: Sequence[Place], sets: Sequence[Samples]) -> list[str]:
    """What speaks against the data, in words."""
    labels = [place.label for place in places]
    lacks = one_sided(labels.count(0), labels.count(1))
    return [*([] if lacks is None else [lacks]), *about_dropped(len(places), sum(one.dropped for one in sets))]


def _counts(places: Sequence[Place], pairs: Sequence[RuleVerifier]) -> NDArray[np.int64]:
    """What `chosen` takes: of every example how many places each pair decides right, and how many there are."""
    import numpy as np  # noqa: PLC0415

    p, q, label, group = (np.array([getattr(place, name) for place in places]) for name in ("p", "q", "label", "group"))
    examples, row = np.unique(group, return_inverse=True)
    counts = np.empty((len(examples), len(pairs) + 1), dtype=np.int64)
    with np.errstate(invalid="ignore"):  # 0 times a beta without end is no number, and nothing is above it
        for at, pair in enumerate(pairs):
            fires = (p < pair.alpha) & (q > pair.beta * p)  # RuleVerifier.replaces, at all places at once
            counts[:, at] = np.bincount(row[fires == label], minlength=len(examples))
    counts[:, -1] = np.bincount(row)
    return counts


def _nothing(samples: Sequence[Samples]) -> str:
    positions, agreeing, dropped = (
        sum(getattr(one, name) for one in samples) for name in ("positions", "agreeing", "dropped")
    )
    if not positions:
        return "there is nothing to tune on: no place of any example could be judged"
    words = f"of {positions} places the two models agree at {agreeing}, and are both wrong at {dropped}"
    more = "collect examples where one of them is right and the other is not"
    return "; ".join([f"there is nothing to tune on: {words}", more, *about_dropped(0, dropped)])
