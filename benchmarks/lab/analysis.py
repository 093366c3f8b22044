"""The laboratory's statistics: means over tasks with intervals, tests, calibration, and corrected errors.

A mean over tasks gives the same weight to each task, and to each seed. Questions are not independent: several wordings
ask for one fact, and all cells, directions and seeds answer the same questions. The bootstrap therefore draws
*clusters*. A cluster contains all answers, in all runs, to the questions about one fact; in tasks that do not ask for
facts, each question is a cluster of its own.

Two or three intervals are computed, and each end of the reported interval is the outermost of their corresponding ends.
The first interval is a percentile bootstrap: seeds and clusters are drawn with replacement, and each draw applies to
all runs. The second interval does not collapse if the outcomes of only few questions differ. It starts from the
intervals of the single runs (Wilson's for a share, Newcombe's for a difference), computed as if there were only as many
questions as clusters. For runs that share questions, these intervals are added as if the answers were the same. Over
tasks that share no questions, the squared distances of the ends from the estimate are added (Zou and Donner, 2008).
With one seed, neither interval covers the variation between trainings. With several seeds, the third is Student's
interval of the seeds' means. With three seeds this interval extends 4.3 standard errors to each side, because three
trainings are little evidence.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from benchmarks.lab.runs import BEST, Run
from cosd_api.comparison.contestants import ORACLE
from cosd_api.comparison.journal import GradedAnswer
from cosd_api.comparison.standings import PlaceCounts
from cosd_api.comparison.statistics import (
    Estimated,
    PairedCounts,
    calibration,
    holm,
    paired_difference,
    wilson,
)

__all__ = [
    "Caught",
    "Itself",
    "Part",
    "Row",
    "accuracy",
    "better_overall",
    "calibration_error",
    "caught",
    "combined",
    "counts",
    "difference",
    "drawn",
    "gain",
    "itself",
    "made_up",
    "of_seeds",
    "of_tasks",
    "places",
    "replaced_tasks",
    "room",
    "sign_flips",
    "sure_and_wrong",
    "table",
    "ways",
]

SURE = 0.5
"""The paper's alpha: if every token of an answer has at least this probability, the rule never asks the assistant."""

NEAR = 1e-3
"""Two probabilities that differ by less than this value are a near tie."""

DRAWS = 1000
RANDOM_SEED = 20
"""The seed of every bootstrap in this module."""

Cluster = tuple[str, str]
"""The identity of the fact or problem that a question asks for; see `Run.cluster`."""


@dataclass(frozen=True)
class Part:
    """The questions of one run.

    Attributes:
        seed: seed of the models' training.
        values: the questions' values, such as 1 for a right answer, by cluster.
        single: the mean value, with an interval that treats the questions as independent.
        least: the smallest possible mean; the largest is 1.
    """

    seed: int
    values: Mapping[Cluster, Sequence[float]]
    single: Estimated
    least: float

    @property
    def kind(self) -> str:
        """The kind of the run's questions; runs of the same kind share questions."""
        return next(iter(self.values))[0]

    @property
    def widened(self) -> Estimated:
        """The mean, with an interval that is as wide as if each cluster were only one question."""
        by = math.sqrt(sum(map(len, self.values.values())) / len(self.values))
        value, low, high = self.single.value, self.single.low, self.single.high
        return Estimated(value, max(self.least, value - by * (value - low)), min(1.0, value + by * (high - value)))


def drawn(parts: Sequence[Part], level: float = 0.95) -> Estimated:
    """The mean over seeds, runs and questions, with its bootstrap interval."""
    clusters: dict[str, dict[Cluster, int]] = {}
    for part in parts:
        places = clusters.setdefault(part.kind, {})
        for one in part.values:
            places.setdefault(one, len(places))
    seeds: dict[int, list[tuple[str, list[float], list[int]]]] = {}
    for part in parts:
        several = [part.values.get(one, ()) for one in clusters[part.kind]]
        seeds.setdefault(part.seed, []).append((part.kind, [*map(math.fsum, several)], [*map(len, several)]))

    def mean(chosen: Sequence[int], places: Mapping[str, Sequence[int]]) -> float:
        by_seed: dict[int, float] = {}
        for seed in {*chosen}:
            shares: list[float] = []
            for kind, sums, sizes in seeds[seed]:
                total = sum(map(sizes.__getitem__, places[kind]))
                if total:  # a draw may contain no question of a small run
                    shares.append(sum(map(sums.__getitem__, places[kind])) / total)
            by_seed[seed] = statistics.fmean(shares) if shares else math.nan
        return statistics.fmean(by_seed[seed] for seed in chosen)

    draw = random.Random(RANDOM_SEED)
    value = mean([*seeds], {kind: range(len(several)) for kind, several in clusters.items()})
    means: list[float] = []
    for _ in range(DRAWS):
        chosen = draw.choices([*seeds], k=len(seeds))
        again = {kind: draw.choices(range(len(one)), k=len(one)) for kind, one in clusters.items()}
        found = mean(chosen, again)
        means.append(value if math.isnan(found) else found)
    means.sort()
    cut = round(DRAWS * (1 - level) / 2)
    return Estimated(value, means[cut], means[-1 - cut])


def combined(parts: Sequence[Part]) -> Estimated:
    """The mean over seeds, runs and questions, with an interval combined from the intervals of the runs."""
    seeds = Counter(part.seed for part in parts)
    value = 0.0
    low, high = dict[str, float](), dict[str, float]()
    for part in parts:
        weight, one = 1 / len(seeds) / seeds[part.seed], part.widened
        value += weight * one.value
        low[part.kind] = low.get(part.kind, 0.0) + weight * (one.value - one.low)
        high[part.kind] = high.get(part.kind, 0.0) + weight * (one.high - one.value)
    return Estimated(value, value - math.hypot(*low.values()), value + math.hypot(*high.values()))


def of_seeds(parts: Sequence[Part]) -> Estimated | None:
    """The mean over the seeds, with Student's interval of the seeds' means; None with one seed."""
    by_seed: dict[int, list[float]] = {}
    for part in parts:
        by_seed.setdefault(part.seed, []).append(part.single.value)
    means = [*map(statistics.fmean, by_seed.values())]
    if len(means) < 2:
        return None
    value = statistics.fmean(means)
    quantile = _STUDENT[min(len(means) - 1, len(_STUDENT)) - 1]
    half = quantile * statistics.stdev(means) / math.sqrt(len(means))
    least = min(part.least for part in parts)
    return Estimated(value, max(least, value - half), min(1.0, value + half))


_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571)
"""The 0.975 quantiles of Student's distribution, from one degree of freedom on; the last is also used for more
seeds."""


def _mean(runs: Sequence[Run], of: Callable[[Run], Part]) -> Estimated:
    """The mean over seeds and tasks, with the outermost ends of the intervals; runs without questions are left out."""
    parts = [part for part in map(of, runs) if part.values]
    if not parts:
        return Estimated(math.nan, -1.0, 1.0)
    several = [one for one in (drawn(parts), combined(parts), of_seeds(parts)) if one is not None]
    return Estimated(several[0].value, min(one.low for one in several), max(one.high for one in several))


def _clustered(run: Run, values: Mapping[str, float]) -> dict[Cluster, list[float]]:
    """The questions' values, grouped by cluster."""
    found: dict[Cluster, list[float]] = {}
    for key, value in values.items():
        found.setdefault(run.cluster(key), []).append(value)
    return found


def of_tasks(runs: Sequence[Run], tasks: Sequence[str] | None) -> list[Run]:
    """The runs of the given tasks; all runs if no tasks are given."""
    return [one for one in runs if tasks is None or one.task in tasks]


def ways(runs: Sequence[Run]) -> list[str]:
    """The names of the models and ways that answered in all of the runs."""
    return [name for name in runs[0].ways if all(name in one.ways for one in runs)] if runs else []


def accuracy(runs: Sequence[Run], way: str) -> Estimated:
    """The mean share of right answers."""

    def share(run: Run) -> Part:
        right = run.right(way)
        values = {key: float(one) for key, one in right.items()}
        return Part(run.seed, _clustered(run, values), wilson(sum(right.values()), len(right)), 0.0)

    return _mean(runs, share)


def difference(runs: Sequence[Run], first: str, second: str) -> Estimated:
    """The mean difference between the shares of right answers, on the questions that both ways have answered."""

    def apart(run: Run) -> Part:
        values = _apart(run, first, second)
        return Part(run.seed, _clustered(run, values), paired_difference(counts([run], first, second)), -1.0)

    return _mean(runs, apart)


def _pairs(run: Run, first: str, second: str) -> list[tuple[bool, bool]]:
    mine, theirs = run.right(first), run.right(second)
    return [(mine[key], theirs[key]) for key in mine if key in theirs]


def _apart(run: Run, first: str, second: str) -> dict[str, float]:
    """For each question, 1 if only the first way is right, -1 if only the second is right, and 0 otherwise."""
    mine, theirs = run.right(first), run.right(second)
    return {key: float(mine[key]) - float(theirs[key]) for key in mine if key in theirs}


def gain(runs: Sequence[Run], way: str) -> Estimated:
    """The difference from each task's better model, which is chosen on the development questions."""
    return difference(runs, way, BEST)


def better_overall(runs: Sequence[Run]) -> str:
    """The model that is better over all tasks on the development questions; the draft if the models are equal."""

    def right(model: str) -> float:
        several = [
            [bool(one.right) for one in run.comparison.answers_of(model, development=True).values()] for run in runs
        ]
        return sum(sum(one) / len(one) for one in several)

    return max(runs[0].alone, key=right)


def room(runs: Sequence[Run], than: str = BEST) -> float:
    """The oracle's lead over `than`, as a share of the questions; the oracle is right if either model is right."""
    return difference(runs, ORACLE, than).value


def counts(runs: Sequence[Run], first: str, second: str) -> PairedCounts:
    """The numbers of questions that both ways, only one way or neither way answers right, over all tasks and seeds."""
    pairs = [*chain.from_iterable(_pairs(run, first, second) for run in runs)]
    return PairedCounts.of([mine for mine, _ in pairs], [theirs for _, theirs in pairs])


def sign_flips(runs: Sequence[Run], first: str, second: str, bound: float = 0.0) -> float:
    """The two-sided p-value of an exact sign-flip test; the null hypothesis is that both ways win equally often.

    If the two ways do not differ, the wins and losses in each cluster could just as well be exchanged, with probability
    1/2 (Fisher's randomization test; Good, 2005). The p-value is the share of all exchanges that give a difference at
    least as large as the observed one. If each cluster has one question, it is the p-value of McNemar's exact test.

    For a bound other than 0, such as a loss of 5 points, the first way is credited with enough additional wins to make
    up for the bound (or losses, if the bound is above 0), in whole clusters, the largest first. Subtracting the bound
    from each difference would be invalid: if hardly any question differs, exchanging such small remainders shows
    nothing, and 30 questions without any difference would pass as proof.
    """
    clusters = Counter[Cluster]()
    sizes = Counter[Cluster]()
    for run in runs:
        for key, value in _apart(run, first, second).items():
            clusters[run.cluster(key)] += int(value)
            sizes[run.cluster(key)] += 1
    given = made_up(sizes.values(), bound)
    sums = [*clusters.values(), *(given if bound < 0 else [-one for one in given])]
    exchanges = [1]  # number of exchanges, by the resulting sum of the positive differences
    for size in map(abs, filter(None, sums)):
        none = [0] * size
        exchanges = [kept + turned for kept, turned in zip(exchanges + none, none + exchanges, strict=True)]
    found, whole = abs(sum(sums)), len(exchanges) - 1
    # Both numbers are integers, whose true division rounds correctly at any size.
    return sum(number for at, number in enumerate(exchanges) if abs(2 * at - whole) >= found) / sum(exchanges)


def made_up(sizes: Iterable[int], bound: float) -> list[int]:
    """Choose clusters that contain the share `bound` of all questions, taking about this share of each cluster size."""
    ordered = sorted(sizes, reverse=True)
    left = round(abs(bound) * sum(ordered))
    found: list[int] = []
    for size in ordered[:: round(1 / abs(bound))] if left else ():
        found.append(min(size, left))
        left -= found[-1]
        if not left:
            break
    return found


# The table of methods.


@dataclass(frozen=True)
class Row:
    """The figures of one way to answer, over all tasks and seeds of a cell.

    Attributes:
        way: name of the way.
        accuracy: mean share of right answers over tasks.
        gain: gain over the better model of each task; None for a model alone.
        counts: wins and losses against the better model, for all questions together; None for a model alone.
        p: p-value of the sign-flip test on wins and losses (`sign_flips`); None if nothing is tested.
        holm: p-value, adjusted for all tested ways of the cell.
        acceptance: mean share of the draft's tokens that are kept; None if no draft is judged.
        iterations: mean number of drafts per answer (`GradedAnswer.rounds`); None if no draft is judged.
        requests: mean number of requests per answer.
        tokens: mean number of billed tokens per answer, at both endpoints together.
        milliseconds: median over the answers of the milliseconds per token.
        first: median milliseconds until the first token was final; None if there is none.
    """

    way: str
    accuracy: Estimated
    gain: Estimated | None
    counts: PairedCounts | None
    p: float | None
    holm: float | None
    acceptance: float | None
    iterations: float | None
    requests: float
    tokens: float
    milliseconds: float
    first: float | None


def table(runs: Sequence[Run]) -> list[Row]:
    """A row for each way to answer in a cell, tested against the better model of each task with Holm's correction."""
    names = ways(runs)
    alone = runs[0].alone if runs else ()
    tested = {name: counts(runs, name, BEST) for name in names if name not in (*alone, BEST, ORACLE)}
    values = {name: sign_flips(runs, name, BEST) for name in tested}
    adjusted = dict(zip(values, holm([*values.values()]), strict=True))
    return [_row(runs, name, tested.get(name), values.get(name), adjusted.get(name)) for name in names]


def _row(runs: Sequence[Run], way: str, paired: PairedCounts | None, p: float | None, corrected: float | None) -> Row:
    answers = [*chain.from_iterable(_bills(run, way) for run in runs)]
    single = [*chain.from_iterable(answers)]
    rates = [one.acceptance for one in single if one.acceptance is not None]
    firsts = [one.first_token for one in single if one.first_token is not None]
    drafts = [one.rounds for one in single if one.rounds is not None]
    return Row(
        way=way,
        accuracy=accuracy(runs, way),
        gain=None if way in (*runs[0].alone, BEST) else gain(runs, way),
        counts=paired,
        p=p,
        holm=corrected,
        acceptance=statistics.fmean(rates) if rates else None,
        iterations=statistics.fmean(drafts) if drafts else None,
        requests=sum(use.requests for one in single for use in one.usage.values()) / len(answers),
        tokens=sum(one.billed for one in single) / len(answers),
        milliseconds=statistics.median(1000 * (one.seconds or 0.0) / max(1, one.tokens) for one in single),
        first=1000 * statistics.median(firsts) if firsts else None,
    )


def _bills(run: Run, way: str) -> list[list[GradedAnswer]]:
    """For each test question, the answers that are billed."""
    names = {BEST: (run.better,), ORACLE: run.alone}.get(way, (way,))
    several = [run.comparison.answers_of(name) for name in names]
    return [[one[key] for one in several] for key in several[0] if all(key in one for one in several)]


# Confidence.


def sure_and_wrong(runs: Sequence[Run], model: str) -> tuple[int, int]:
    """The numbers of a model's confidently wrong answers and of all its wrong answers to the test questions."""
    wrong = [one for one in _alone(runs, model) if not one.right]
    return sum(one.least is not None and one.least >= SURE for one in wrong), len(wrong)


def calibration_error(runs: Sequence[Run], model: str) -> float:
    """The expected calibration error of a model alone; an answer's confidence is its lowest token probability."""
    return calibration([(one.least, bool(one.right)) for one in _alone(runs, model) if one.least is not None]).error


def _alone(runs: Iterable[Run], model: str) -> list[GradedAnswer]:
    return [one for run in runs for one in run.comparison.answers_of(model).values()]


@dataclass(frozen=True)
class Caught:
    """The draft's sure answers, which contain no unsure token, and what a fusion makes of them.

    Attributes:
        wrong: number of sure answers that were wrong.
        mended: number of the wrong answers that the way to answer puts right.
        right: number of sure answers that were right.
        spoilt: number of the right answers that the way to answer gets wrong.
    """

    wrong: int
    mended: int
    right: int
    spoilt: int


def caught(runs: Sequence[Run], way: str) -> Caught:
    """Count the draft's sure answers by their outcome."""
    pairs: list[tuple[bool, bool]] = []
    for run in runs:
        mine = run.right(way)
        alone = run.comparison.answers_of("draft")
        sure = [key for key, one in alone.items() if one.least is not None and one.least >= SURE and key in mine]
        pairs += [(bool(alone[key].right), mine[key]) for key in sure]
    before = [was for was, _ in pairs]
    return Caught(
        wrong=before.count(False),
        mended=pairs.count((False, True)),
        right=before.count(True),
        spoilt=pairs.count((True, False)),
    )


def places(runs: Sequence[Run], way: str) -> PlaceCounts | None:
    """Counts of which model was right at the replaced places, over all runs; None if no draft is judged."""
    found = [one for one in (run.comparison[way].replaced for run in runs) if one is not None]
    if not found:
        return None
    whole = [one.answers for one in found]
    return PlaceCounts(
        **{
            name: sum(getattr(one, name) for one in found)
            for name in ("places", "assistant", "draft", "neither", "unknown")
        },
        answers=PairedCounts(
            *(sum(getattr(one, name) for one in whole) for name in ("both", "won", "lost", "neither"))
        ),
    )


def replaced_tasks(runs: Sequence[Run], way: str) -> list[Run]:
    """The runs in which the way has replaced at least one place in an answer."""
    return [run for run in runs if any(one.replaced for one in run.comparison.answers_of(way).values())]


@dataclass(frozen=True)
class Itself:
    """Counts of the answers in which a draft was judged, compared with the draft's own answers (for N1).

    Attributes:
        answers: number of answers.
        changed: number of answers whose text differs from the draft's own.
        replaced: number of replaced places.
        ties: number of replaced places at which the two tokens are nearly equally probable.
        unexplained: number of answers with a replaced place that is not such a tie, or with a difference but no
            replacement.
    """

    answers: int
    changed: int
    replaced: int
    ties: int
    unexplained: int


def itself(runs: Sequence[Run]) -> Itself:
    """Count the answers to the test questions. Servers round batches and single tokens differently, so ties occur."""
    changed = replaced = ties = unexplained = total = 0
    for run in runs:
        alone = run.comparison.answers_of("draft")
        judged = [one for one in run.comparison.answers if one.units is not None and one.question in alone]
        for one in judged:
            near = [abs((place.prob or 0.0) - (place.draft_prob or 0.0)) < NEAR for place in one.replaced]
            other = one.text != alone[one.question].text
            total, changed, replaced, ties = total + 1, changed + other, replaced + len(near), ties + sum(near)
            unexplained += not all(near) or (other and not near)
    return Itself(total, changed, replaced, ties, unexplained)
