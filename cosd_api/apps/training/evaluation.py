"""Accuracy of a verifier at the places in reference answers where exactly one of the two models is right.

All places of an example are held out together. Otherwise, a method would be tested on places that are nearly identical
to places on which it was trained.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from cosd_api import RuleVerifier, SettingError
from cosd_api.apps.training.dataset import Samples
from cosd_api.common.wording import counted
from cosd_api.forcing import Label

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ALWAYS_DRAFT, ALWAYS_ASSISTANT = "always draft", "always assistant"
TUNED_RULE, TREE = "tuned rule", "tree"

DEFAULT, PAPER = RuleVerifier(), RuleVerifier.paper()
"""The rule with the default alpha and beta, and the rule with the paper's alpha and beta."""
DEFAULT_RULE, PAPER_RULE = (f"rule ({pair.alpha:g}, {pair.beta:g})" for pair in (DEFAULT, PAPER))
QUARTERS = (0.25, 0.5, 0.75, 1.0)
"""The values of alpha and of beta in the paper's Figure 2."""
ENOUGH_EXAMPLES = 5
"""Minimum number of examples for an estimate on held-out examples."""

_VALUES = TypeAdapter(Annotated[tuple[Annotated[float, Field(ge=0, strict=True)], ...], Field(min_length=1)])

Decide = Callable[[float, float], bool]
"""A decision function of `(p, q)`: True replaces the draft's word with the assistant's; see `Verifier.replaces`."""


@dataclass(frozen=True, slots=True)
class LabelledPlace:
    """A place in a reference answer, labelled with the model that is right.

    Attributes:
        p: the draft's probability of its own choice, in [0, 1].
        q: the assistant's probability of its own choice, in [0, 1].
        label: 0 if the draft is right, 1 if only the assistant is right.
        group: number of the example.
        agreed: whether both models are right. A place at which both are right can be used to train a tree, but is never
            scored.
    """

    p: float
    q: float
    label: Label
    group: int
    agreed: bool = False


Fit = Callable[[Sequence[LabelledPlace]], Decide]
"""A method to be compared: a function that learns from places and returns a decision function."""


def places_of(samples: Samples, *, keep_agreeing: bool = False) -> list[LabelledPlace]:
    """Return the labelled places of samples; with `keep_agreeing`, also those where both models are right."""
    groups: dict[str, int] = {}
    return [
        LabelledPlace(
            sample.p, sample.q, sample.label, groups.setdefault(example.example.key, len(groups)), sample.agreed
        )
        for example in samples.examples
        for sample in example.samples
        if sample.label is not None and (keep_agreeing or not sample.agreed)
    ]


class Score(BaseModel):
    """Counts of right and wrong decisions.

    Accuracy favours constant decisions: if the draft is right nine times out of ten, always keeping the draft's word
    has an accuracy of 90 %, but a balanced accuracy of only 50 %. Balanced accuracy measures how well a method
    distinguishes the two cases. It does not depend on how often each model is right, which varies from text to text.

    Attributes:
        matrix: the confusion matrix, `matrix[label][replaced]`. Row 0 counts places where the draft is right, and row 1
            places where the assistant is right. Column 0 counts kept words, and column 1 replaced words.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    matrix: tuple[tuple[int, int], tuple[int, int]]

    @property
    def places(self) -> int:
        """Number of places."""
        return sum(map(sum, self.matrix))

    @property
    def accuracy(self) -> float:
        """Share of right decisions, in [0, 1]; NaN without places."""
        return (self.matrix[0][0] + self.matrix[1][1]) / self.places if self.places else float("nan")

    @property
    def balanced_accuracy(self) -> float:
        """Mean of the accuracies for labels 0 and 1.

        If there are only places with one label, this is the accuracy for that label. Without places, it is NaN.
        """
        shares = [row[label] / sum(row) for label, row in enumerate(self.matrix) if sum(row)]
        return sum(shares) / len(shares) if shares else float("nan")

    def __add__(self, other: Score) -> Score:
        """Add the counts of two scores."""
        (a, b), (c, d) = self.matrix
        (e, f), (g, h) = other.matrix
        return Score(matrix=((a + e, b + f), (c + g, d + h)))


def score(places: Sequence[LabelledPlace], decide: Decide) -> Score:
    """Count the right and wrong decisions of `decide` at these places, except at places where both models are right."""
    matrix = [[0, 0], [0, 0]]
    for place in places:
        if not place.agreed:
            matrix[place.label][decide(place.p, place.q)] += 1
    (a, b), (c, d) = matrix
    return Score(matrix=((a, b), (c, d)))


# Rules over a grid.


def check_grid(alphas: Sequence[float], betas: Sequence[float]) -> list[RuleVerifier]:
    """Return all pairs of alpha and beta, including the default pair and the paper's pair.

    The pairs are in the order of preference that `GridTuning.best` describes.

    Raises:
        SettingError: there are no values, or a value is invalid.
    """
    for name, values in (("alphas", alphas), ("betas", betas)):
        try:
            _VALUES.validate_python(values)
        except ValidationError:
            raise SettingError(f"{name} must be non-negative numbers, such as (0.25, 0.5), not {values!r}") from None
    grid = (RuleVerifier(alpha=alpha, beta=beta) for alpha in alphas for beta in betas)
    pairs = {(pair.alpha, pair.beta): pair for pair in (*grid, DEFAULT, PAPER)}
    return sorted(pairs.values(), key=lambda pair: (_distance(pair), pair.alpha, -pair.beta))


def _distance(pair: RuleVerifier) -> float:
    return abs(pair.alpha - DEFAULT.alpha) + abs(pair.beta - DEFAULT.beta)


def right_decisions(places: Sequence[LabelledPlace], pairs: Sequence[RuleVerifier]) -> NDArray[np.int64]:
    """Count the right decisions of every pair, except at places where both models are right.

    Returns:
        One row for each example that has such a place, in the order of `group`: the number of right decisions of each
        pair, and then the number of places.
    """
    import numpy as np  # noqa: PLC0415 - slow to load

    judged = [place for place in places if not place.agreed]
    p, q, label, group = (np.array([getattr(place, name) for place in judged]) for name in ("p", "q", "label", "group"))
    examples, row = np.unique(group, return_inverse=True)
    counts = np.empty((len(examples), len(pairs) + 1), dtype=np.int64)
    with np.errstate(invalid="ignore"):  # 0 times an infinite beta is NaN, and no q is greater than NaN, as intended
        for at, pair in enumerate(pairs):
            replaces = (p < pair.alpha) & (q > pair.beta * p)  # this is RuleVerifier.replaces for all places at once
            counts[:, at] = np.bincount(row[replaces == label], minlength=len(examples))
    counts[:, -1] = np.bincount(row, minlength=len(examples))
    return counts


def best_rule(places: Sequence[LabelledPlace]) -> RuleVerifier:
    """Return the most accurate pair on the paper's grid; if several are equally accurate, the first of them."""
    pairs = check_grid(QUARTERS, QUARTERS)
    return pairs[int(right_decisions(places, pairs)[:, :-1].sum(axis=0).argmax())]


BASELINES: Mapping[str, Fit] = {
    ALWAYS_DRAFT: lambda _: lambda _p, _q: False,
    ALWAYS_ASSISTANT: lambda _: lambda _p, _q: True,
    DEFAULT_RULE: lambda _: DEFAULT.replaces,
    PAPER_RULE: lambda _: PAPER.replaces,
    TUNED_RULE: lambda places: best_rule(places).replaces,
}
"""Methods to compare a tree with: both constants, the default rule, the paper's rule and a tuned rule."""


# Comparison of methods on held-out examples.


class HeldOutScores(BaseModel):
    """Scores of several methods on the same held-out examples; each place is held out once.

    Attributes:
        examples: number of examples with a place where exactly one model is right.
        folds: number of parts into which the examples were divided. The methods were tested on each part after being
            fitted to the other parts only. Fitting includes the choice of a tree's depth and of a tuned rule's alpha
            and beta.
        scores: the score of each method, by the method's name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    examples: int
    folds: int
    scores: dict[str, Score]

    def __str__(self) -> str:
        places = max((one.places for one in self.scores.values()), default=0)
        widest = max(map(len, self.scores), default=0)
        heads = ("accuracy", "balanced", "kept", "replaced", "kept", "replaced")
        rows = [f"{'':{widest}}{'draft right':>37}{'assistant right':>18}", _row("", widest, *heads)]
        for name, one in self.scores.items():
            shares = (f"{share:.1%}" for share in (one.accuracy, one.balanced_accuracy))
            rows.append(_row(name, widest, *shares, *(str(count) for row in one.matrix for count in row)))
        title = f"On held-out examples ({self.folds} folds over {self.examples} examples, {places} places):"
        return "\n".join([title, "", *rows])


def _row(name: str, widest: int, *cells: str) -> str:
    widths = (8, 8, 5, 8, 5, 8)
    return f"{name:{widest}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def held_out(
    places: Sequence[LabelledPlace], methods: Mapping[str, Fit], *, folds: int, seed: int
) -> HeldOutScores | None:
    """Compare methods on held-out examples; None if there are too few examples (`lacking` returns the reason)."""
    if lacking(places) is not None:
        return None
    parts = split(places, folds=folds, seed=seed)
    scores = {
        name: sum((score(test, fit(train)) for train, test in parts), start=Score(matrix=((0, 0), (0, 0))))
        for name, fit in methods.items()
    }
    return HeldOutScores(examples=len(deciding(places)), folds=len(parts), scores=scores)


def lacking(places: Sequence[LabelledPlace]) -> str | None:
    """Explain why these places are too few for an estimate on held-out examples; None if they are enough."""
    examples = deciding(places)
    if (count := len(examples)) < ENOUGH_EXAMPLES:
        have = f"{count or 'no'} example has" if count < 2 else f"{counted(count, 'example')} have"
        return f"{have} a place where just one of the two models is right, and an estimate needs {ENOUGH_EXAMPLES}"
    for label, who in ((0, "draft"), (1, "assistant")):
        having = sum(label in labels for labels in examples.values())
        if having < 2:
            have = f"{'only 1' if having else 'no'} example has a place where the {who} alone is right"
            return f"{have}, and an estimate needs 2: one to hold out and one to learn from"
    return None


def split(
    places: Sequence[LabelledPlace], *, folds: int = 5, seed: int = 0
) -> list[tuple[list[LabelledPlace], list[LabelledPlace]]]:
    """Divide whole examples into folds; return the training places and the test places of each fold."""
    fold = fold_of_each(places, folds=folds, seed=seed)
    return [
        (
            [place for place in places if fold[place.group] != number],
            [place for place in places if fold[place.group] == number],
        )
        for number in range(max(fold.values(), default=0) + 1)
    ]


def fold_of_each(places: Sequence[LabelledPlace], *, folds: int = 5, seed: int = 0) -> dict[int, int]:
    """Assign whole examples to folds; return each example's fold.

    The training places of every fold contain both labels if at least two examples have each label. To ensure this,
    examples are sorted by their labels and dealt out to the folds in turn, so neighbours are in different folds.
    """
    labels = deciding(places)
    groups = sorted({place.group for place in places})
    random.Random(seed).shuffle(groups)  # noqa: S311 - not used for security
    order = [{1}, {0, 1}, {0}, set[int]()]  # in this order, examples that share a label are neighbours
    groups.sort(key=lambda group: order.index(labels.get(group, set())))
    count = min(folds, max(1, len(labels)))
    return {group: number % count for number, group in enumerate(groups)}


def deciding(places: Sequence[LabelledPlace]) -> dict[int, set[int]]:
    """Return the labels in each example at places where exactly one model is right; skip examples without labels."""
    found: dict[int, set[int]] = {}
    for place in places:
        if not place.agreed:
            found.setdefault(place.group, set()).add(place.label)
    return found
