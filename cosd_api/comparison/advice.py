"""Advice by counts: if models are to be fused, how, and what to expect; the choice, its test, and the words. Pure.

The best of thirty ways to answer forty questions looks better than it is, by chance alone. So the questions are cut in
two: on the first part the way with the most right answers is chosen, on the second it is tested, alone, against each of
the models, by McNemar's exact test. The questions of the second part had no say in the choice, so the gain owes
nothing to it, and the test is one test, however many ways there were: where the chosen way is no better than
the best model, it is found better than all at most one time in forty (half of `LEVEL`, which is two-sided).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from cosd_api import SettingError
from cosd_api.comparison.statistics import Estimated, PairedCounts, mcnemar, paired_difference, wilson
from cosd_api.extend import Record, check_between, counted, in_words, with_article

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


class Doubts(Record):
    """Place of one model's doubts: of its wrong answers, those in which it was nowhere unsure.

    Attributes:
        answers: its answers alone whose probabilities are known.
        wrong: those that are wrong.
        sure: those of the wrong ones in which every token has a probability of at least 0.5: there the paper's rule
            asks nobody.
    """

    answers: int
    wrong: int
    sure: int


class Bill(Record):
    """Mean cost of an answer.

    Attributes:
        requests: to all endpoints.
        billed: tokens read and written by all.
        seconds: the median duration.
        money: with prices.
    """

    requests: float
    billed: float
    seconds: float | None = None
    money: float | None = None


class AdviceCounts(Record):
    """Advice, without the models that it is about: the decision, and the numbers behind it. See `Advice`."""

    schema_version: Literal[1] = 1
    decision: Literal["fuse", "alone", "unknown"]
    model: str
    way: str | None = None
    reverse: bool = False
    first: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict[str, Any])
    tried: int
    chose: int
    others: int
    tested: int = 0
    right: dict[str, int] = Field(default_factory=dict[str, int])
    accuracy: dict[str, Estimated] = Field(default_factory=dict[str, Estimated])
    gain: Estimated | None = None
    p: float | None = None
    bills: dict[str, Bill] = Field(default_factory=dict[str, Bill])
    doubts: dict[str, Doubts] = Field(default_factory=dict[str, Doubts])


def reasoned(models: Outcomes, choice: ChosenWay, *, complete: bool) -> dict[str, Any]:
    """The fields of an advice that follow from counts: the decision and its grounds.

    Args:
        models: outcomes of the models alone, to all questions that were asked.
        choice: the choice of a way, and its test.
        complete: False if questions are missing.
    """
    trial, better = choice.trial, models.better()
    found: dict[str, Any] = {"tried": choice.tried, "chose": choice.chose, "others": choice.others, "way": choice.way}
    accuracy = {name: wilson(models.right(name), len(models.questions)) for name in models.alone}
    right = {name: models.right(name) for name in models.alone}
    if trial is not None:
        accuracy = {**trial.alone, "fused": trial.accuracy}
        right = {name: round(one.value * trial.counts.total) for name, one in accuracy.items()}
        found |= {"tested": trial.counts.total, "gain": trial.gain, "p": trial.p}
    fuse = trial is not None and trial.fuse
    found["decision"] = ("fuse" if fuse else "alone") if complete else "unknown"
    found["model"] = trial.against if trial is not None and fuse else better
    return {**found, "right": right, "accuracy": accuracy}


# Words.

_LEAST_WON = 6
"""Questions won, and none lost, that McNemar's exact test needs at a level of 0.05: 2 / 2^6 is below it."""
_LONG = 30  # characters of a setting that are too many for a sentence
_MANY = 0.25
"""Share of a model's wrong answers that are sure ones, above which the rule's default misses much."""


def advice_words(advice: AdviceCounts, models: Mapping[str, str], order: Sequence[str]) -> str:
    """Advice in words, as one paragraph.

    Args:
        advice: the advice.
        models: the models on their servers, by their names in the comparison.
        order: these names, in the order of the fusion that is advised.
    """
    sentences = _fuse(advice, models, order) if advice.decision == "fuse" else _alone(advice, models)
    return " ".join([*sentences, *_doubts(advice, models)])


def _fuse(advice: AdviceCounts, models: Mapping[str, str], order: Sequence[str]) -> Iterator[str]:
    first, *others = (f"{with_article(name)} ({models[name]})" for name in order)
    yield "Fuse them."
    yield f"Let {first} draft and {in_words(others)} assist, by {_method(advice)}."
    assert advice.gain is not None and advice.p is not None
    yield (
        f"Of {advice.tested} questions that had no part in choosing it, it had {_right(advice, 'fused')} right, and "
        f"the better model alone ({with_article(advice.model)}) {_right(advice, advice.model)}: "
        f"a gain of {_points(advice.gain)}, p = {advice.p:.2g}."
    )
    yield f"It had the most right answers of {_ways(advice)} on {advice.chose} other questions."
    yield from _cost(advice)


def _alone(advice: AdviceCounts, models: Mapping[str, str]) -> Iterator[str]:
    others = [name for name in models if name != advice.model]
    theirs = [f"{with_article(name)} alone {_right(advice, name)}" for name in others]
    yield f"Use {with_article(advice.model)} ({models[advice.model]}) alone."
    if advice.gain is None:
        yield (
            f"Of {_ways(advice)}, none had more right answers to {advice.chose} questions than it: "
            f"{_right(advice, advice.model)}, and {in_words(theirs)}."
        )
    else:
        assert advice.p is not None
        yield (
            f"Of {_ways(advice)}, {_method(advice)} had the most right answers on {advice.chose} questions; of "
            f"{advice.tested} others it had {_right(advice, 'fused')} right, "
            f"{in_words([f'{with_article(advice.model)} alone {_right(advice, advice.model)}', *theirs])}: "
            f"{_points(advice.gain)}, which is not more than chance (p = {advice.p:.2g})."
        )
    questions = advice.tested or advice.others
    gain = f"a gain of less than {100 * _LEAST_WON / questions:.0f} points" if questions >= _LEAST_WON else "any gain"
    yield f"{counted(questions, 'question')} cannot show {gain}; more of them would."


def _right(advice: AdviceCounts, name: str) -> str:
    return f"{advice.right[name]} ({advice.accuracy[name].value:.0%})"


def _ways(advice: AdviceCounts) -> str:
    return counted(advice.tried, "way") + " to fuse"


def _points(gain: Estimated) -> str:
    return f"{100 * gain.value:+.0f} points (95 % interval {100 * gain.low:+.0f} to {100 * gain.high:+.0f})"


def _method(advice: AdviceCounts) -> str:
    """The method with its settings, but for long ones."""
    settings = advice.settings
    name, own = str(settings["method"]), dict(settings.get("options") or {})
    if (verifier := settings.get("verifier")) is not None:
        name = f"{name} with the verifier {verifier['kind']}"
        own = {one: value for one, value in verifier.items() if one not in ("kind", "schema_version")}
    shown = [f"{one}={_shown(value)}" for one, value in own.items() if value is not None and len(str(value)) < _LONG]
    return f"{name} ({', '.join(shown)})" if shown else name


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cost(advice: AdviceCounts) -> Iterator[str]:
    fused, alone = advice.bills.get("fused"), advice.bills.get(advice.model)
    if fused is None or alone is None:
        return
    words = f"An answer takes {fused.requests:.1f} requests and bills {fused.billed:.0f} tokens"
    if alone.billed:
        words += f", {fused.billed / alone.billed:.1f} times those of {with_article(advice.model)} alone"
    if fused.seconds and alone.seconds:
        words += f", and {fused.seconds / alone.seconds:.1f} times its time"
    if fused.money is not None and alone.money is not None:
        words += f"; a thousand answers cost {1000 * fused.money:.2f}, and {1000 * alone.money:.2f} alone"
    yield f"{words}."


def _doubts(advice: AdviceCounts, models: Iterable[str]) -> Iterator[str]:
    """Sentences on whether the models doubt where they are wrong, and what to try where they do not."""
    missed: list[str] = []
    for name in models:
        one, subject = advice.doubts.get(name), with_article(name).capitalize()
        if one is None:
            yield f"{subject} does not report its probabilities: where its doubts sit is not known."
        elif one.wrong:
            yield (
                f"{subject} alone was wrong in {one.wrong} of {counted(one.answers, 'answer')}, and in "
                f"{one.sure} of these it was sure of every token (0.5 or more)."
            )
            if one.sure > _MANY * one.wrong:
                missed.append(name)
    if not missed:
        if any(one.wrong for one in advice.doubts.values()):
            yield "So the doubts sit where the errors are, as the paper's rule (alpha = 0.5) needs."
        return
    who = in_words([with_article(name) for name in missed])
    yield (
        f"Where {who} drafts, the paper's rule (alpha = 0.5) asks nobody at these errors; alpha = beta = 1, "
        "surprise and average look there, too."
    )
