"""A group-sequential test that decides whether to fuse models or use one model alone, as functions of outcomes.

The test looks at the outcomes after a quarter, a half and all of the questions. Each look tests every way to fuse
against each model, by sign flips of whole groups of questions (`sign_flips`). All ways and all looks share the same
flips. The bounds follow from the largest statistic of all ways that were ever tried:

    spend   the three looks spend .003, .007 and .030 of the flips; .010 is reserved for files that grow
    bound   for each model, the r-th largest null maximum among the flips that exceeded no earlier bound, where r is
            the number of flips to spend, rounded down; flips above the bound are then spent
    fuse    a way whose statistic is above the bounds of all models; a tie is not above
    alone   every way's gain over at least one model, plus 2.5 standard errors, is less than `worth`
    drop    after 50 questions only the better half of the ways continues; in later maxima an independent standard
            normal variable replaces each dropped way, which thus still counts in the correction for many ways

So if no way is better than the better model, at most 4 of 100 runs declare that a way is better, whichever ways are
tried. If the file of questions grows, at most 5 of 100 runs do so, however often it grows.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal

from cosd_api import SettingError
from cosd_api.comparison.sign_flips import FLIPS, Contrast, SignFlips, exceeds
from cosd_api.comparison.statistics import Estimated, PairedCounts, paired_difference, wilson
from cosd_api.extend import Record, check_choice

SPENDING = (0.003, 0.007, 0.03)
"""Shares of the flips that the three looks of a run may spend."""
KEPT = 0.01
"""Share of the flips that is reserved for files that grow; each further look spends half of what remains."""
GROWTH = 1.5
"""Factor by which a file must have grown since the last look to allow a further look."""
LEAST_QUESTIONS = 20
"""Minimum number of questions; with fewer, the test cannot show anything."""
WORTH = 0.05
"""Default for the smallest gain in accuracy that makes fusing worthwhile."""
AUDITED = 0.05
"""Share of the questions with equal texts that ways to fuse answer anyway, as a check."""
Looks = Literal["auto", "end"]
"""Times to look: after a quarter, a half and all questions, or only at the end. The total error rate is the same."""

Verdict = Literal["fuse", "alone", "undecided"]
"""Decision: fuse; use one model alone, because a worthwhile gain is excluded; or undecided."""

_DROPS = 50  # minimum number of questions before ways are dropped
_FEWEST = 2  # minimum number of ways that continue
_ERRORS = (
    2.5  # standard errors that exclude a gain; a single look would need fewer, but any of several looks may exclude it
)
_POWER = NormalDist().inv_cdf(0.8)
_CERTAIN = 2 * NormalDist().cdf(_ERRORS) - 1

Right = Mapping[str, bool]
"""Outcomes, keyed by question: True for a right answer. A question without an outcome failed, and counts as wrong."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Outcomes of the models alone and of ways to fuse them, on the same questions.

    Attributes:
        alone: outcomes of each model alone, keyed by the model's name; the draft comes first.
        ways: outcomes of each way to fuse, keyed by its name.
        billed: mean number of tokens billed per answer, for each model and each way to fuse.
        groups: the group's key for each question; a question without an entry is its own group.
    """

    alone: Mapping[str, Right]
    ways: Mapping[str, Right]
    billed: Mapping[str, float] = field(default_factory=dict[str, float])
    groups: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def questions(self) -> list[str]:
        """The questions that all models have answered."""
        first, *others = self.alone.values()
        return [key for key in first if all(key in one for one in others)]

    def of(self, questions: Iterable[str]) -> list[str]:
        """Select the given questions that all models have answered."""
        return [key for key in questions if all(key in one for one in self.alone.values())]

    def group(self, question: str) -> str:
        """The key of a question's group."""
        return self.groups.get(question, question)

    def counts(self, way: str, model: str, questions: Iterable[str]) -> PairedCounts:
        """Count the paired outcomes of a way to fuse and of a model alone, on these questions."""
        mine, theirs = self.ways[way], self.alone[model]
        asked = self.of(questions)
        return PairedCounts.of([mine.get(key, False) for key in asked], [theirs[key] for key in asked])

    def right(self, name: str, questions: Iterable[str] | None = None) -> int:
        """Count the right answers of a model, or of a way to fuse."""
        found = self.alone[name] if name in self.alone else self.ways[name]
        return sum(found.get(key, False) for key in (self.questions if questions is None else self.of(questions)))

    def better(self, questions: Iterable[str] | None = None) -> str:
        """The model with the most right answers; ties go to the cheaper model, then to the first."""
        asked = self.questions if questions is None else [*questions]
        return min(self.alone, key=lambda name: (-self.right(name, asked), self.billed.get(name, 0.0)))


class LookLine(Record):
    """A completed look, as a line of a journal.

    Attributes:
        type: type of the line.
        questions: keys of the questions that were new at this look.
        ways: names of the ways to fuse that were tested.
        spent: share of the flips that the look could spend.
        of: number of questions that were given to the run.
    """

    type: Literal["look"] = "look"
    questions: tuple[str, ...]
    ways: tuple[str, ...]
    spent: float
    of: int


@dataclass(frozen=True, slots=True)
class WaySeen:
    """The state of one way to fuse at a look.

    Attributes:
        way: name of the way.
        questions: number of questions on which it was tested against the models.
        groups: number of groups that these questions form.
        contrasts: for each model, the differences between the way and the model, summed by group.
        bounds: for each model, the bound for the statistic of the contrast.
    """

    way: str
    questions: int
    groups: int
    contrasts: Mapping[str, Contrast]
    bounds: Mapping[str, float]

    @property
    def against(self) -> str:
        """The model over which the way gains least."""
        return min(self.contrasts, key=lambda model: self.contrasts[model].total)

    @property
    def total(self) -> int:
        """Number of the way's right answers minus that of the model `against`."""
        return self.contrasts[self.against].total

    @property
    def upper(self) -> float:
        """The smallest upper bound of its gains over the models; each bound is 2.5 standard errors above the gain."""
        return min(self._upper(one) for one in self.contrasts.values())

    def _upper(self, one: Contrast) -> float:
        spread = max(0.0, one.squares + 1 - one.total * one.total / self.groups)
        return (one.total + _ERRORS * math.sqrt(spread)) / self.questions

    def gain(self, counts: PairedCounts) -> Estimated:
        """Estimate the gain over the model `against`, with an interval.

        The low end holds simultaneously for all ways and looks. The high end is the upper end of Newcombe's 95 %
        interval, or of the 95 % interval clustered by group if that is higher.

        Args:
            counts: paired outcomes of the way and of the model `against`.
        """
        one, limit = self.contrasts[self.against], self.bounds[self.against]
        value, newcombe = one.total / self.questions, paired_difference(counts)
        low = value - limit * math.sqrt(one.squares) / self.questions if math.isfinite(limit) else -1.0
        wide = math.sqrt(max(0.0, one.squares - one.total * one.total / self.groups)) / self.questions
        grouped = value + NormalDist().inv_cdf(0.975) * wide if self.groups < self.questions else -1.0
        return Estimated(value, max(-1.0, min(low, value)), min(1.0, max(newcombe.high, grouped)))

    def more(self, worth: float) -> int | None:
        """Estimate the number of further questions that would show a gain in four of five runs.

        The gain is the gain so far or `worth`, whichever is larger. If no outcome differs so far, return the number of
        questions that would exclude `worth` if no further outcome differs. Return None if the bound is not known yet.
        """
        one, limit = self.contrasts[self.against], self.bounds[self.against]
        if not math.isfinite(limit):
            return None
        if not one.squares:
            return max(0, math.floor(_ERRORS / worth) + 1 - self.questions)
        gain = max(worth, one.total / self.questions)
        spread = max(one.squares / self.questions, gain)  # a gain needs at least that many differing outcomes
        return max(0, math.ceil((limit + _POWER) ** 2 * (spread - gain * gain) / gain**2) - self.questions)


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of one look.

    Attributes:
        questions: keys of all questions so far.
        counted: number of these questions that all models have answered.
        ways: the ways to fuse that were tested, keyed by name.
        fuse: name of the recommended way to fuse; None if no way is above the bounds.
        kept: names of the ways that continue.
    """

    questions: tuple[str, ...]
    counted: int
    ways: Mapping[str, WaySeen]
    fuse: str | None
    kept: tuple[str, ...]

    @property
    def dropped(self) -> list[str]:
        """Names of the ways that do not continue."""
        return [name for name in self.ways if name not in self.kept]


def in_order(questions: Iterable[str], seen: Iterable[str] = ()) -> list[str]:
    """Sort the questions: first the questions of earlier looks, then the rest by hash, regardless of their outcomes.

    Raises:
        SettingError: there are fewer than `LEAST_QUESTIONS` questions.
    """
    there = dict.fromkeys(questions)
    if len(there) < LEAST_QUESTIONS:
        words = f"advice needs at least {LEAST_QUESTIONS} questions, preferably a hundred, not {len(there)}"
        raise SettingError(f"{words}: with fewer, no method can be told from chance")
    first = [key for key in dict.fromkeys(seen) if key in there]
    for key in first:
        del there[key]
    return first + sorted(there, key=lambda key: hashlib.sha256(f"look {key}".encode()).digest())


def schedule(total: int, earlier: Sequence[LookLine] = (), looks: Looks = "auto") -> list[tuple[int, float]]:
    """Plan the looks still to be made: for each, the number of questions and the share of the flips.

    Args:
        total: number of questions.
        earlier: the looks that were already made.
        looks: see `Looks`.

    Raises:
        SettingError: `looks` is invalid.
    """
    check_choice("looks", looks, Looks)
    spent, seen = sum(one.spent for one in earlier), sum(len(one.questions) for one in earlier)
    left = sum(SPENDING) - spent
    if left <= SPENDING[0] / 2:
        if total < GROWTH * seen:
            return []
        return [(total, (KEPT + left) / 2)]
    if looks == "end":
        return [(total, left)] if total > seen else []
    found: list[tuple[int, float]] = []
    made = 0.0
    for at, spend in zip((total // 4, total // 2, total), SPENDING, strict=True):
        made += spend
        if made <= spent + SPENDING[0] / 2:
            continue  # this look was already made by an earlier run
        if at > seen:  # the share of a look without new questions goes to the next look
            found.append((at, made - spent - sum(one for _, one in found)))
    return found


class SequentialTest:
    """A sequential test: it makes the looks of one run, and takes the looks of earlier runs into account.

    Args:
        tried: names of the ways to fuse that earlier runs tried; they count towards the maximum even if this run omits
            them.
        flips: number of flips.

    Attributes:
        tried: names of all ways to fuse that were ever tried.
        seen: results of the looks, in order.
    """

    def __init__(self, tried: Iterable[str] = (), flips: int = FLIPS) -> None:
        self.tried = dict.fromkeys(tried)
        self.seen: list[Seen] = []
        self._count = flips
        self._spent: dict[str, list[bool]] = {}

    def look(self, outcomes: Outcomes, questions: Sequence[str], ways: Sequence[str], spend: float) -> Seen:
        """Test ways to fuse on the outcomes so far.

        Args:
            outcomes: all outcomes so far.
            questions: keys of all questions so far.
            ways: names of the ways that have answered these questions.
            spend: share of the flips that this look may spend.
        """
        self.tried.update(dict.fromkeys(ways))
        asked = outcomes.of(questions)
        flips = SignFlips((outcomes.group(key) for key in asked), self._count)
        found = {way: _contrasts(outcomes, asked, way, flips) for way in ways}
        bounds: dict[str, float] = {}
        for model in outcomes.alone:
            absent = self._absent(len(self.tried) - len(found), f"{len(self.seen)} {model} {' '.join(flips.groups)}")
            null = [*map(max, flips.maxima(one[model] for one in found.values()), absent)]
            gone = self._spent.get(model, [False] * self._count)
            free = sorted((one for one, over in zip(null, gone, strict=True) if not over), reverse=True)
            rank = math.floor(spend * (self._count + 1) + 1e-9)
            bounds[model] = free[rank - 1] if 1 <= rank <= len(free) else math.inf
            self._spent[model] = [over or exceeds(one, bounds[model]) for one, over in zip(null, gone, strict=True)]
        seen = {way: WaySeen(way, len(asked), len(flips.groups), one, bounds) for way, one in found.items()}
        above = [way for way in ways if all(exceeds(found[way][m].statistic, bounds[m]) for m in bounds)]
        fuse = _best(outcomes, asked, seen, above) if above and asked else None
        kept = tuple(ways) if len(asked) < _DROPS else _better_half(seen)
        self.seen.append(Seen(tuple(questions), len(asked), seen, fuse, kept))
        return self.seen[-1]

    @property
    def last(self) -> Mapping[str, WaySeen]:
        """Map each way to fuse to its state at its last look."""
        return {way: one for look in self.seen for way, one in look.ways.items()}

    def verdict(self, worth: float = WORTH) -> Verdict:
        """Return the verdict after the looks so far."""
        if self.fused is not None:
            return "fuse"
        return "alone" if self.excluded(worth) else "undecided"

    @property
    def fused(self) -> WaySeen | None:
        """The recommended way to fuse, at the look that found it; None if no look has found one."""
        return next((one.ways[one.fuse] for one in self.seen if one.fuse is not None), None)

    def excluded(self, worth: float) -> bool:
        """Test whether each way to fuse is excluded: there is a model over which it cannot gain `worth`."""
        last = self.last
        return bool(last) and all(one.questions and one.upper < worth for one in last.values())

    def _absent(self, number: int, seed: str) -> list[float]:
        """For each flip, draw the largest of `number` independent standard normal variables."""
        if not number:
            return [-math.inf] * self._count
        rng, normal = random.Random(seed), NormalDist()  # noqa: S311 - the same numbers in each run
        return [normal.inv_cdf(rng.uniform(1e-9, 1 - 1e-9) ** (1 / number)) for _ in range(self._count)]


def looked_at(
    outcomes: Outcomes,
    order: Sequence[str],
    plan: Iterable[tuple[int, float]],
    trial: SequentialTest,
    worth: float = WORTH,
) -> Verdict:
    """Run the looks on outcomes that are already known, as if the outcomes arrived one after the other.

    Args:
        outcomes: outcomes of all models and of all ways to fuse.
        order: keys of the questions, in the order of the test; see `in_order`.
        plan: number of questions and share of the flips of each look; see `schedule`.
        trial: the test that makes the looks.
        worth: the gain that has to be excluded for the verdict `"alone"`.
    """
    ways = [*outcomes.ways] if not trial.seen else [*trial.seen[-1].kept]
    for number, spend in plan:
        ways = [*trial.look(outcomes, order[:number], ways, spend).kept]
        if trial.verdict(worth) != "undecided":
            break
    return trial.verdict(worth)


def room(outcomes: Outcomes, questions: Iterable[str], equal: Iterable[str]) -> Estimated:
    """Estimate the largest possible gain, assuming that no way to fuse changes a text that all models write.

    Args:
        outcomes: outcomes of the models alone.
        questions: keys of the questions that the models have answered.
        equal: keys of the questions to which all models wrote the same text.

    Returns:
        The share of the questions at which the texts differ and the better model is wrong, with an interval of 2.5
        standard errors. No way to fuse can gain more than this share over the better model.
    """
    asked, same = outcomes.of(questions), {*equal}
    better = outcomes.alone[outcomes.better(asked)]
    return wilson(sum(key not in same and not better[key] for key in asked), len(asked), _CERTAIN)


def is_audited(question: str) -> bool:
    """Test whether ways to fuse answer a question even if the models wrote equal texts: one in twenty, by hash."""
    return int.from_bytes(hashlib.sha256(f"audit {question}".encode()).digest()[:4], "big") < 2**32 * AUDITED


def _contrasts(outcomes: Outcomes, asked: Sequence[str], way: str, flips: SignFlips) -> dict[str, Contrast]:
    mine = outcomes.ways[way]
    return {
        model: flips.contrast((outcomes.group(key), mine.get(key, False) - theirs[key]) for key in asked)
        for model, theirs in outcomes.alone.items()
    }


def _best(outcomes: Outcomes, asked: Sequence[str], seen: Mapping[str, WaySeen], above: Sequence[str]) -> str:
    """Find the cheapest way to fuse that is within one standard error of the way that gains most."""
    lead = max(above, key=lambda way: (seen[way].total, -outcomes.billed.get(way, 0.0)))
    mine = outcomes.ways[lead]

    def near(way: str) -> bool:
        theirs = outcomes.ways[way]
        differ = sum(mine.get(key, False) != theirs.get(key, False) for key in asked)
        return seen[lead].total - seen[way].total <= math.sqrt(differ)

    several = [way for way in above if way == lead or near(way)]
    return min(several, key=lambda way: (outcomes.billed.get(way, 0.0), -seen[way].total))


def _better_half(seen: Mapping[str, WaySeen]) -> tuple[str, ...]:
    """Return the better half of the ways to fuse, including ties, but at least two ways."""
    ranked = sorted((one.total for one in seen.values()), reverse=True)
    count = max(_FEWEST, (len(ranked) + 1) // 2)
    if len(ranked) <= count:
        return tuple(seen)
    return tuple(way for way, one in seen.items() if one.total >= ranked[count - 1])
