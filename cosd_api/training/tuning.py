"""Alpha and beta of the rule from decision samples, without a query: the paper's Figure 2, for decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cosd_api.errors import SettingError
from cosd_api.settings import check_count
from cosd_api.training.evaluation import Comparison, Place, places_of
from cosd_api.training.grid import PAPER, QUARTERS, Tuned, check_grid, chosen
from cosd_api.training.samples import Samples
from cosd_api.training.tree import compare
from cosd_api.verification import RuleVerifier

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Tuning", "tune"]


class Tuning(Tuned):
    """How right the rule decides, and the pair to use: `Fusion(..., verifier=tuning.best)`.

    `accuracy` is the part of the labelled samples that a pair decides right: it puts the assistant's word where the
    label is 1, and keeps the draft's where it is 0. `examples` are those that have such samples.

    Attributes:
        labelled: how many samples there are.
        comparison: rule, tuned rule and tree on the same held-out folds; None with too few examples.
    """

    labelled: int
    comparison: Comparison | None


def tune(
    samples: Samples | Sequence[Samples],
    *,
    alphas: Sequence[float] = QUARTERS,
    betas: Sequence[float] = QUARTERS,
    folds: int = 5,
    resamples: int = 1000,
    seed: int = 0,
) -> Tuning:
    """How right the rule decides at every pair of alpha and beta, and which pair to use; nothing is sent.

    A right decision is not yet a right answer: `tune_answers` counts those. Of pairs that are equally good the nearest
    to the paper's (0.5, 0.5) is recommended.

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
    places = places_of(samples)
    if not places:
        raise SettingError(_nothing([samples] if isinstance(samples, Samples) else samples))
    tuned = chosen(pairs, _counts(places, [*pairs, PAPER]), resamples, seed)
    return Tuning(**dict(tuned), labelled=len(places), comparison=comparison)


def _counts(places: Sequence[Place], pairs: Sequence[RuleVerifier]) -> NDArray[np.int64]:
    """What `chosen` takes: of every example how many places each pair decides right, and how many there are."""
    import numpy as np  # noqa: PLC0415

    p, q, label, group = (np.array([getattr(place, name) for place in places]) for name in ("p", "q", "label", "group"))
    examples, row = np.unique(group, return_inverse=True)
    counts = np.empty((len(examples), len(pairs) + 1), dtype=np.int64)
    with np.errstate(invalid="ignore"):  # 0 times a beta without end is no number, and nothing is above it
        for at, pair in enumerate(pairs):
            fires = (p < pair.alpha) & (q > pair.beta * p)  # RuleVerifier.fires, at all places at once
            counts[:, at] = np.bincount(row[fires == label], minlength=len(examples))
    counts[:, -1] = np.bincount(row)
    return counts


def _nothing(samples: Sequence[Samples]) -> str:
    positions, agreeing, dropped = (
        sum(getattr(one, name) for one in samples) for name in ("positions", "agreeing", "dropped")
    )
    if not positions:
        return "there is nothing to tune on: no place of any example could be judged"
    return (
        f"there is nothing to tune on: of {positions} places the two models agree at {agreeing}, and are both wrong at "
        f"{dropped}; collect examples where one of them is right and the other is not"
    )
