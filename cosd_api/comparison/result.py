"""Result of a comparison: a standing for each contestant, and what they have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from cosd_api.alignment import Unit
from cosd_api.comparison.answers import GradedAnswer
from cosd_api.comparison.contestants import ContestantKind, LeftOut, model_names
from cosd_api.comparison.statistics import CalibrationCurve, Estimated, PairedCounts
from cosd_api.records import Endpoint, Record
from cosd_api.version import __version__

if TYPE_CHECKING:
    from cosd_api.comparison.advice import Advice

__all__ = ["Comparison", "FailedAnswer", "ModelCalibration", "PlaceCounts", "Standing"]


class PlaceCounts(Record):
    """Who was right where an assistant's word replaced the draft's.

    A replaced place is judged by the reference answer, where the fused answer has followed the reference up to there:
    of the two texts at most one continues it. Whole answers are judged by the grader: those with a replaced place,
    against what the drafting model answered alone.

    Attributes:
        places: number of replaced places.
        assistant: those where the assistant's text continues the reference, and the draft's does not.
        draft: those where the draft's does, and the assistant's does not.
        neither: those where neither does.
        unknown: those where the answer had left the reference before, or both continue it.
        answers: whole answers with a replaced place: `won` were put right by the replacements, `lost` were spoilt.
    """

    places: int
    assistant: int
    draft: int
    neither: int
    unknown: int
    answers: PairedCounts


class Standing(Record):
    """The result of one contestant on the test questions.

    Attributes:
        name: its name.
        kind: what it is.
        reverse: whether an assistant drafts, or is listed first.
        first: the name of the model that drafts, or is listed first, where there are several assistants.
        settings: its method's name, own settings and verifier; empty where it follows from the answers of others.
        answered: questions with a graded answer.
        failed: questions that failed.
        right: number of right answers.
        accuracy: share of right answers, with its 95 % interval.
        counts: against the better model (the best of several), on questions that both have answered: `won` are those
            that this contestant alone has right. None for the better model itself.
        difference: in accuracy to the better model on these, with its 95 % interval.
        p: of McNemar's exact test; None for the better model, and for `best of the two` (of several, `best of all`)
            and `oracle`, which are made of it.
        holm: the same, adjusted for the number of contestants that were tested.
        acceptance: mean share of the draft's tokens kept; None where no draft is judged.
        seconds: median duration of an answer.
        first_token: median time until the first token was final.
        tokens: mean number of tokens of an answer.
        requests: mean number for an answer, by `"draft"` and `"assistant"` (or `"assistant 1"` and so on) as the user
            gave them.
        read: mean number of tokens read, likewise.
        written: mean number of tokens written, likewise.
        cached: mean number of those read that came from the server's cache, likewise, as far as it reports them.
        money: mean price of an answer; None without prices.
        replaced: who was right at replaced places; None where no draft is judged.
        on_frontier: whether no contestant with a bill has more right answers for the same number of tokens or fewer;
            a question that failed is not right, and who was not asked all of them is left out.
    """

    name: str
    kind: ContestantKind
    reverse: bool = False
    first: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict[str, Any])
    answered: int
    failed: int
    right: int
    accuracy: Estimated
    counts: PairedCounts | None = None
    difference: Estimated | None = None
    p: float | None = None
    holm: float | None = None
    acceptance: float | None = None
    seconds: float | None = None
    first_token: float | None = None
    tokens: float | None = None
    requests: dict[str, float] = Field(default_factory=dict[str, float])
    read: dict[str, float] = Field(default_factory=dict[str, float])
    written: dict[str, float] = Field(default_factory=dict[str, float])
    cached: dict[str, float] = Field(default_factory=dict[str, float])
    money: float | None = None
    replaced: PlaceCounts | None = None
    on_frontier: bool = False

    @property
    def asked(self) -> int:
        """Number of questions answered or failed at."""
        return self.answered + self.failed

    @property
    def billed(self) -> float | None:
        """Mean number of tokens read and written for an answer, by all endpoints; None without answers."""
        return sum(self.read.values()) + sum(self.written.values()) if self.answered else None


class ModelCalibration(Record):
    """Agreement of one model's probabilities with its right answers, of its answers alone to all questions.

    Attributes:
        mean: by the mean probability of an answer's tokens: the expected calibration error.
        least: by the least of them. `confident_wrong` counts wrong answers of which the model is nowhere unsure
            (every token has at least 0.5): the paper's rule asks nobody there.
    """

    mean: CalibrationCurve
    least: CalibrationCurve


class FailedAnswer(Record):
    """A question that failed.

    Attributes:
        contestant: name of the contestant.
        question: `Example.key`.
        error: the reason.
        development: whether it is a development question, which no standing counts.
    """

    contestant: str
    question: str
    error: str
    development: bool = False


class Comparison(Record):
    """Two or more models alone, fused in every way, and baselines, on the same questions.

    All standings are measured on the test questions. The others are for development: they choose the better model, the
    rate of the random gate and the samples of self-consistency. They are the share of the questions with the smallest
    hashes (`Example.key`), at least one.

    Attributes:
        schema_version: version of this format.
        draft: the draft endpoint, as the user gave it.
        assistant: the assistant endpoint, or the first of several.
        more_assistants: the others.
        questions: number of test questions.
        development: keys (`Example.key`) of the development questions.
        better: the model with the most right answers to the development questions (to the test questions where there
            are none, as in the parts of an `Advice`), `"draft"`, `"assistant"`, or of several `"assistant 1"`, say; of
            equals the one that billed fewer tokens, then the draft.
        grader: name of the grader.
        max_tokens: limit for each answer.
        stop: strings before which an answer ended.
        seed: of what was drawn.
        unit: as it was given.
        standings: of all contestants, in their order.
        left_out: what could not be compared, and why.
        calibration: by the same names; without a model whose probabilities are not reported.
        stopped: why the comparison is not complete; None if it is.
        billed_tokens: of this comparison, earlier runs with the same journal included.
        spent_tokens: of this run alone.
        answers: all answers, to development questions too.
        failures: the questions that failed, and why.
        warnings: in words.
        library_version: of cosd-api.
    """

    schema_version: Literal[1] = 1
    draft: Endpoint
    assistant: Endpoint
    more_assistants: tuple[Endpoint, ...] = ()
    questions: int
    development: tuple[str, ...]
    better: str
    grader: str
    max_tokens: int
    stop: tuple[str, ...] = ()
    seed: int = 0
    unit: Unit | None = None
    standings: tuple[Standing, ...]
    left_out: tuple[LeftOut, ...] = ()
    calibration: dict[str, ModelCalibration] = Field(default_factory=dict[str, ModelCalibration])
    stopped: str | None = None
    billed_tokens: int = 0
    spent_tokens: int = 0
    answers: tuple[GradedAnswer, ...] = ()
    failures: tuple[FailedAnswer, ...] = ()
    warnings: tuple[str, ...] = ()
    library_version: str = __version__

    @property
    def models(self) -> dict[str, Endpoint]:
        """All endpoints, by the names of the contestants that are these models alone."""
        several = (self.draft, self.assistant, *self.more_assistants)
        return dict(zip(model_names(len(several)), several, strict=True))

    def __getitem__(self, name: str) -> Standing:
        """The standing of a contestant.

        Raises:
            KeyError: there is none of this name.
        """
        for one in self.standings:
            if one.name == name:
                return one
        names = ", ".join(one.name for one in self.standings)
        raise KeyError(f"no contestant is named {name!r}; there are {names}")

    def __str__(self) -> str:
        from cosd_api.comparison.report import comparison_report  # noqa: PLC0415 - it is about this class

        return comparison_report(self)

    def advice(self, *, choosing: float = 0.4) -> Advice:
        """Advise by these answers whether to fuse the models, and how; `advise` asks for as many as it takes.

        Args:
            choosing: share of the test questions that choose the way to fuse; the others test it.

        Raises:
            SettingError: there are fewer than 20 test questions, or the share is not between 0.1 and 0.9.
        """
        from cosd_api.comparison.advice import advice_of  # noqa: PLC0415 - it is made of comparisons

        return advice_of(self, choosing=choosing)

    def answers_of(self, name: str, *, development: bool = False) -> dict[str, GradedAnswer]:
        """Complete answers of a contestant to the test questions, or to the development ones, by question."""
        held = set(self.development)
        return {
            one.question: one
            for one in self.answers
            if one.contestant == name and one.complete and (one.question in held) == development
        }
