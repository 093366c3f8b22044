"""How good a way to decide is: on places of reference answers where exactly one of the two models is right.

Examples are never torn apart: of one example all places are held out together, or none. Otherwise a method would be
judged on places that are nearly those it has learned from.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from cosd_api.errors import SettingError
from cosd_api.training.grid import ENOUGH_EXAMPLES, PAPER, QUARTERS, check_grid
from cosd_api.training.samples import Label, Samples
from cosd_api.verification import RuleVerifier

__all__ = [
    "ALWAYS_ASSISTANT",
    "ALWAYS_DRAFT",
    "DEFAULT_RULE",
    "ENOUGH_EXAMPLES",
    "TREE",
    "TUNED_RULE",
    "Comparison",
    "Decide",
    "Fit",
    "Place",
    "Score",
    "baselines",
    "best_rule",
    "deciding",
    "held_out",
    "lacking",
    "places_of",
    "score",
    "split",
]

ALWAYS_DRAFT, ALWAYS_ASSISTANT = "always draft", "always assistant"
DEFAULT_RULE, TUNED_RULE, TREE = "rule (0.5, 0.5)", "tuned rule", "tree"

Decide = Callable[[float, float], bool]
"""Whether the assistant's word replaces the draft's, given `(p, q)`: the `fires` of a verifier."""


@dataclass(frozen=True, slots=True)
class Place:
    """One place of a reference answer that has a label.

    Attributes:
        p: the draft's probability of its own, in [0, 1].
        q: the assistant's.
        label: 0 where the draft is right, 1 where the assistant is and the draft is not.
        group: which example it is from; the same example in several data sets is one.
        agreed: both are right. Nothing is decided there: it may train a tree, and never counts in a score.
    """

    p: float
    q: float
    label: Label
    group: int
    agreed: bool = False


Fit = Callable[[Sequence[Place]], Decide]
"""A method: what it learns from places is how it decides."""


def places_of(samples: Samples | Sequence[Samples], *, keep_agreeing: bool = False) -> list[Place]:
    """The places that have a label.

    Args:
        samples: of one data set or several.
        keep_agreeing: those too where both models are right, with label 0.

    Raises:
        SettingError: a probability is none.
    """
    groups: dict[str, int] = {}
    found: list[Place] = []
    for one in _listed(samples):
        for example in one.examples:
            group = groups.setdefault(example.example.key, len(groups))
            for sample in example.samples:
                if not (0 <= sample.p <= 1 and 0 <= sample.q <= 1):
                    raise SettingError(f"a sample has p={sample.p} and q={sample.q}: probabilities lie in [0, 1]")
                if sample.label is not None and (keep_agreeing or not sample.agreed):
                    found.append(Place(sample.p, sample.q, sample.label, group, sample.agreed))
    return found


def _listed(samples: Samples | Sequence[Samples]) -> Sequence[Samples]:
    return [samples] if isinstance(samples, Samples) else samples


class Score(BaseModel):
    """What came of deciding at many places.

    Accuracy counts mistakes, each as one. It flatters the constants: where the draft is right nine times out of ten,
    always keeping its word has 90 %, though that fuses nothing. Balanced accuracy, where it has 50 %, asks how well a
    method tells the two apart, and does not change with how often each model is right, which differs from one text to
    the next.

    Attributes:
        matrix: the confusion matrix, `matrix[label][replaced]`: in row 0 the draft was right, in row 1 the assistant;
            column 0 counts what was kept, column 1 what was replaced.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    matrix: tuple[tuple[int, int], tuple[int, int]]

    @property
    def places(self) -> int:
        """How many there were."""
        return sum(map(sum, self.matrix))

    @property
    def accuracy(self) -> float:
        """The share of them where the right word stands, in [0, 1]; NaN without any."""
        return (self.matrix[0][0] + self.matrix[1][1]) / self.places if self.places else float("nan")

    @property
    def balanced_accuracy(self) -> float:
        """The mean of that share where the draft is right and where the assistant is; NaN without any.

        Where only one of them ever is, its share alone.
        """
        shares = [row[label] / sum(row) for label, row in enumerate(self.matrix) if sum(row)]
        return sum(shares) / len(shares) if shares else float("nan")

    def __add__(self, other: Score) -> Score:
        """Of both together."""
        (a, b), (c, d) = (
            [mine + theirs for mine, theirs in zip(*rows, strict=True)]
            for rows in zip(self.matrix, other.matrix, strict=True)
        )
        return Score(matrix=((a, b), (c, d)))


def score(places: Sequence[Place], decide: Decide) -> Score:
    """How `decide` does at these places; those where both models agree do not count."""
    matrix = [[0, 0], [0, 0]]
    for place in places:
        if not place.agreed:
            matrix[place.label][decide(place.p, place.q)] += 1
    (a, b), (c, d) = matrix
    return Score(matrix=((a, b), (c, d)))


# Methods, compared on examples that they have not seen.


def best_rule(
    places: Sequence[Place], alphas: Sequence[float] = QUARTERS, betas: Sequence[float] = QUARTERS
) -> RuleVerifier:
    """The most accurate rule of the grid at these places; of several the one that `check_grid` has first."""
    return max(check_grid(alphas, betas), key=lambda rule: score(places, rule.replaces).accuracy)


def baselines(alphas: Sequence[float] = QUARTERS, betas: Sequence[float] = QUARTERS) -> dict[str, Fit]:
    """What a tree is compared with: both constants, the rule as it is, and the rule tuned over a grid."""
    return {
        ALWAYS_DRAFT: lambda _: lambda _p, _q: False,
        ALWAYS_ASSISTANT: lambda _: lambda _p, _q: True,
        DEFAULT_RULE: lambda _: PAPER.replaces,
        TUNED_RULE: lambda places: best_rule(places, alphas, betas).replaces,
    }


class Comparison(BaseModel):
    """Several methods on the same held-out examples, each place held out once.

    Attributes:
        examples: how many have a place that counts.
        folds: how many parts they were dealt into. Each was judged by what was learned from the others alone, the
            depth of a tree and the bounds of a tuned rule included.
        scores: by method.
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


def held_out(places: Sequence[Place], methods: Mapping[str, Fit], *, folds: int, seed: int) -> Comparison | None:
    """Every method on the same held-out examples; None where they do not suffice (`lacking` says why)."""
    if lacking(places) is not None:
        return None
    parts = split(places, folds=folds, seed=seed)
    scores = {
        name: sum((score(test, fit(train)) for train, test in parts), start=Score(matrix=((0, 0), (0, 0))))
        for name, fit in methods.items()
    }
    return Comparison(examples=len(deciding(places)), folds=len(parts), scores=scores)


def lacking(places: Sequence[Place]) -> str | None:
    """What these places lack for an estimate on held-out examples, in words; None where nothing."""
    examples = deciding(places)
    if (count := len(examples)) < ENOUGH_EXAMPLES:
        held = "no example has" if not count else "1 example has" if count == 1 else f"{count} examples have"
        return f"{held} a place where just one of the two models is right, and an estimate takes {ENOUGH_EXAMPLES}"
    for label, who in ((0, "draft"), (1, "assistant")):
        having = sum(label in labels for labels in examples.values())
        if having < 2:
            held = f"{'only 1' if having else 'no'} example has a place where the {who} alone is right"
            return f"{held}, and an estimate takes 2: with one held out there is one to learn from"
    return None


def split(places: Sequence[Place], *, folds: int = 5, seed: int = 0) -> list[tuple[list[Place], list[Place]]]:
    """The places, dealt by whole examples: what is trained on and what is held out, for each fold.

    What is trained on always has both labels, where at least two examples have each: the examples are dealt in the
    order of which labels they have, so that two that follow each other never fall into the same fold.
    """
    labels = deciding(places)
    groups = sorted({place.group for place in places})
    random.Random(seed).shuffle(groups)  # noqa: S311 - no secret
    # Those with the assistant's label are neighbours then, and so are those with the draft's.
    order = [{1}, {0, 1}, {0}, set[int]()]
    groups.sort(key=lambda group: order.index(labels.get(group, set())))
    count = min(folds, max(1, len(labels)))
    fold = {group: number % count for number, group in enumerate(groups)}
    return [
        (
            [place for place in places if fold[place.group] != number],
            [place for place in places if fold[place.group] == number],
        )
        for number in range(count)
    ]


def deciding(places: Sequence[Place]) -> dict[int, set[int]]:
    """The examples with places that count, and which labels they have there."""
    found: dict[int, set[int]] = {}
    for place in places:
        if not place.agreed:
            found.setdefault(place.group, set()).add(place.label)
    return found
