"""Choice between fusing models and using one alone, by the outcomes of questions. Pure.

The best of thirty ways to answer forty questions looks better than it is, by chance alone. So the questions are cut in
two: on the first part the way with the most right answers is chosen, on the second it is tested, alone, against each of
the models, by McNemar's exact test. The questions of the second part had no say in the choice, so the gain owes
nothing to it, and the test is one test, however many ways there were: where the chosen way is no better than
the best model, it is found better than all at most one time in forty (half of `LEVEL`, which is two-sided).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cosd_api.checks import check_between
from cosd_api.comparison.statistics import Estimated, PairedCounts, mcnemar, paired_difference, wilson
from cosd_api.errors import SettingError

__all__ = [
    "CHOOSING",
    "LEAST_QUESTIONS",
    "LEVEL",
    "ChosenWay",
    "Outcomes",
    "Trial",
    "choose",
    "decided",
    "parts",
    "trial_of",
]

LEVEL = 0.05
"""Two-sided level of the test: fusing is advised where all p-values are at most this."""
CHOOSING = 0.4
"""Share of the questions that choose."""
LEAST_QUESTIONS = 20
"""Fewer questions show nothing."""

Right = Mapping[str, bool]
"""Outcomes by question. A question that is not there is one that failed: it counts as wrong."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Outcomes of the models and of ways to fuse them, on the same questions.

    Attributes:
        alone: of each model alone, by its name; the draft first.
        ways: of each way to fuse, by its name.
        billed: mean number of tokens billed for an answer, by name.
    """

    alone: Mapping[str, Right]
    ways: Mapping[str, Right]
    billed: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def questions(self) -> list[str]:
        """The questions that all models have answered."""
        first, *others = self.alone.values()
        return [key for key in first if all(key in one for one in others)]

    def only(self, questions: Iterable[str]) -> Outcomes:
        """The outcomes of these questions."""
        kept = set(questions)

        def cut(several: Mapping[str, Right]) -> dict[str, Right]:
            return {name: {key: one for key, one in of.items() if key in kept} for name, of in several.items()}

        return Outcomes(cut(self.alone), cut(self.ways), self.billed)

    def counts(self, way: str, model: str) -> PairedCounts:
        """A way to fuse beside a model alone."""
        mine, theirs = self.ways[way], self.alone[model]
        questions = self.questions
        return PairedCounts.of([mine.get(key, False) for key in questions], [theirs[key] for key in questions])

    def right(self, name: str) -> int:
        """The right answers of a model, or of a way to fuse."""
        found = self.alone[name] if name in self.alone else self.ways[name]
        return sum(found.get(key, False) for key in self.questions)

    def better(self) -> str:
        """The model with the most right answers; of equals the cheaper one, then the first."""
        return min(self.alone, key=lambda name: (-self.right(name), self.billed.get(name, 0.0)))


@dataclass(frozen=True, slots=True)
class Trial:
    """One way to fuse, beside each model, on questions that did not choose it.

    Attributes:
        accuracy: its own.
        alone: those of the models.
        against: the model with the most right answers to these questions.
        counts: against that one.
        gain: in accuracy over that one, with its 95 % interval.
        p: the largest of the p-values of McNemar's exact test against the models.
        fuse: whether it is better than each of them, by more than chance.
    """

    accuracy: Estimated
    alone: Mapping[str, Estimated]
    against: str
    counts: PairedCounts
    gain: Estimated
    p: float
    fuse: bool


@dataclass(frozen=True, slots=True)
class ChosenWay:
    """The way that was chosen, and the test of it.

    Attributes:
        way: its name; None where no way had more right answers than the better model on the questions that choose.
        tried: how many ways there were.
        chose: number of questions that chose.
        others: number of the others, which test a way where there is one.
        trial: the test; None without a way.
    """

    way: str | None
    tried: int
    chose: int
    others: int
    trial: Trial | None


def parts(questions: Iterable[str], share: float = CHOOSING) -> tuple[list[str], list[str]]:
    """The questions that choose, and those that test, by a hash of each: neither order nor outcomes decide.

    Raises:
        SettingError: there are fewer than `LEAST_QUESTIONS`, or the share is not between 0.1 and 0.9.
    """
    check_between("choosing", share, 0.1, 0.9)
    found = sorted(questions, key=lambda key: hashlib.sha256(f"choice {key}".encode()).digest())
    if len(found) < LEAST_QUESTIONS:
        words = f"advice takes at least {LEAST_QUESTIONS} questions, better a hundred, not {len(found)}"
        raise SettingError(f"{words}: on fewer no method can be told from chance")
    count = round(share * len(found))
    return found[:count], found[count:]


def choose(outcomes: Outcomes) -> str | None:
    """The way with the most right answers; of equals the cheaper one, then the first.

    Returns:
        Its name; None where none has more right answers than the better model alone.
    """
    better = outcomes.right(outcomes.better())
    ways = [name for name in outcomes.ways if outcomes.right(name) > better]
    return min(ways, key=lambda name: (-outcomes.right(name), outcomes.billed.get(name, 0.0)), default=None)


def trial_of(outcomes: Outcomes, way: str) -> Trial:
    """Test one way to fuse on questions that did not choose it."""
    total = len(outcomes.questions)
    against = outcomes.better()
    each = {name: outcomes.counts(way, name) for name in outcomes.alone}
    p = max(mcnemar(counts) for counts in each.values())
    return Trial(
        accuracy=wilson(outcomes.right(way), total),
        alone={name: wilson(outcomes.right(name), total) for name in outcomes.alone},
        against=against,
        counts=each[against],
        gain=paired_difference(each[against]),
        p=p,
        fuse=p <= LEVEL and all(counts.won > counts.lost for counts in each.values()),
    )


def decided(outcomes: Outcomes, share: float = CHOOSING) -> ChosenWay:
    """Choose a way on one part of the questions, and test it on the other.

    Raises:
        SettingError: see `parts`.
    """
    first, second = parts(outcomes.questions, share)
    way = choose(outcomes.only(first))
    trial = None if way is None else trial_of(outcomes.only(second), way)
    return ChosenWay(way, len(outcomes.ways), len(first), len(second), trial)
