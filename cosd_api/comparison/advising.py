"""`advise`: find out whether to fuse models, and how, with as few answers as possible; see `looks`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from cosd_api import Example
from cosd_api.comparison.compare import DRY, comparison_so_far, opened
from cosd_api.comparison.contestants import Contestant
from cosd_api.comparison.looks import (
    GROWTH,
    WORTH,
    LookLine,
    Looks,
    Outcomes,
    Seen,
    SequentialTest,
    in_order,
    is_audited,
    room,
    schedule,
)
from cosd_api.comparison.prices import ComparisonEstimate, with_later
from cosd_api.comparison.questions import group_of, questions_by_key, repeated_prompts
from cosd_api.comparison.result import Advice, AdviceFacts, advice_of
from cosd_api.comparison.run import ComparisonRun
from cosd_api.comparison.settings import ComparisonOptions, ComparisonSettings
from cosd_api.comparison.standings import FailedAnswer
from cosd_api.comparison.statistics import Estimated
from cosd_api.extend import METHODS, check_between, counted, outdated, refuse_settings, spell_out_options
from cosd_providers import Provider


@spell_out_options(ComparisonOptions, ComparisonSettings)
async def advise(
    examples: Iterable[Example | Mapping[str, Any]],
    *,
    draft: str | Provider,
    assistant: str | Provider | Sequence[str | Provider],
    worth: float = WORTH,
    looks: Looks = "auto",
    noted: Callable[[str], None] | None = None,
    choosing: float | None = None,
    **settings: Unpack[ComparisonOptions],
) -> Advice:
    """Find out from some questions, preferably a hundred or more, whether to fuse models, and how.

    Each model alone and every way to fuse them answer a quarter of the questions, then half of them, then all. After
    each of these steps, the run looks at the outcomes. It ends if the outcomes show that fusing helps, or that no way
    to fuse gains as much as `worth`. After 50 questions, only the better half of the ways to fuse continues. A question
    to which all models write the same answer is skipped by every way to fuse that does not sample, except for one such
    question in twenty. To derive advice from an existing comparison instead, call `Comparison.advice`.

    Args:
        examples: at least 20 questions, in the same form as for `compare`. Examples with the same `group` count only
            once as evidence.
        draft: URL of a server, or a provider.
        assistant: a URL or a provider, or several of them. With several assistants, every way to fuse uses all models.
        methods: the methods to choose from, as for `compare`.
        both_ways: whether to try each assistant as the draft, too.
        worth: the smallest gain in accuracy that makes fusing worthwhile, from 0.001 to 1; see `Advice`.
        looks: `"auto"`, or `"end"` for a single look after all questions. A single look can detect smaller gains, but
            every way to fuse has to answer all questions.
        noted: called with a line of text after each look.
        choosing: deprecated, and without effect: all questions serve both to choose a way to fuse and to test it.
        grader: judge of the answers; see `compare`, also for the arguments below.
        path: a JSON lines file for the answers and the looks. The same call resumes an interrupted run. If `examples`
            has grown by half since the last look, the run makes one more look. The error probability is spread over all
            looks and all ways to fuse that the file contains.
        max_tokens: maximum number of tokens in each answer.
        stop: stop strings; an answer ends before the first one that would appear in it.
        seed: seed for random draws.
        unit: as in `Fusion`.
        concurrency: number of answers that are requested at the same time.
        max_billed_tokens: limit on the tokens that all answers may bill, including earlier runs with the same `path`.
        prices: price of a million tokens at each endpoint, as for `compare`.
        confirm: called once with the estimate, before any model is asked; returning False ends the run. See
            `ComparisonEstimate`.
        progress: called at the start and after each answer.
        dry_run: end after the estimate; see `compare`.

    Returns:
        The advice; if the run ended before it could decide, `stopped` says why.

    Raises:
        SettingError: an argument is invalid, or there are too few questions.
        ProviderError: see `compare`.
        OSError: the file cannot be read or written.
    """
    refuse_settings(settings, advise)
    if choosing is not None:
        outdated("advise(choosing=...)", "without effect, as all questions choose and test,")
    given = ComparisonSettings.checked(**settings)
    check_between("worth", worth, 0.001, 1)
    schedule(0, (), looks)
    by_key = questions_by_key(examples)
    in_order(by_key)
    async with opened([*by_key.values()], draft=draft, assistant=assistant, settings=given) as run:
        made = Advising(run, by_key, worth, looks, noted or (lambda _: None))
        if given.confirm is not None and not given.confirm(await made.estimate()):
            run.stopped = "it was not confirmed"
        if given.dry_run:
            run.stopped = DRY
        elif run.stopped is None:
            await made.ask()
        return made.advice()


@dataclass
class Advising:
    """A run of `advise`: it asks questions until the next look, makes the look, and ends as soon as a look decides.

    Attributes:
        run: the run that asks the models.
        questions: all questions, keyed by `Example.key`.
        worth: the smallest gain in accuracy that makes fusing worthwhile.
        looks: see `advise`.
        noted: called with a line of text after each look.
    """

    run: ComparisonRun
    questions: Mapping[str, Example]
    worth: float
    looks: Looks
    noted: Callable[[str], None]
    _trial: SequentialTest = field(default_factory=SequentialTest)
    _room: Estimated | None = None
    _told: list[str] = field(default_factory=list[str])
    _done: dict[str, set[str]] = field(default_factory=dict[str, set[str]])  # questions asked so far, by contestant

    def __post_init__(self) -> None:
        run = self.run
        earlier = run.journal.looks
        seen = [key for one in earlier for key in one.questions]
        self._order = in_order(self.questions, seen)
        self._plan = schedule(len(self._order), earlier, self.looks)
        self._earlier = [*earlier]
        self._asked: dict[str, set[str]] = {one.name: set() for one in run.tested}
        self._models = [one for one in run.tested if one.kind == "alone"]
        self._ways = [one for one in run.tested if one.kind != "alone"]
        repeated = repeated_prompts(self.questions.values())
        if repeated:
            self._told.append(
                f"{counted(repeated, 'question')} share their prompt with another one and have no group: each counts "
                "as evidence of its own, which makes the advice too confident. Give them one group"
            )

    async def estimate(self) -> ComparisonEstimate:
        """Estimate the cost of all looks before any model is asked."""
        run, order = self.run, [self.questions[key] for key in self._order]
        at = next((count for count, *_ in self._steps()), len(order))
        first = await run.forecast(run.tested, order[:at])
        if at == len(order):
            return first
        return with_later(
            first, await run.forecast(self._models, order[at:]), await run.forecast(self._ways, order[at:])
        )

    def _steps(self) -> Iterable[tuple[int, float, tuple[str, ...] | None]]:
        """Yield the looks of earlier runs, then the looks still to be made.

        Each look is a tuple: its number of questions, the share of the flips that it may spend, and the names of the
        ways to fuse that it tested. The names are None for a look that is still to be made.
        """
        count = 0
        for one in self._earlier:
            count += sum(key in self.questions for key in one.questions)
            yield count, one.spent, one.ways
        for number, spend in self._plan:
            yield number, spend, None

    async def ask(self) -> None:
        """Alternate between asking the models and looking at the outcomes, until a look decides."""
        run, ways = self.run, {one.name: one for one in self._ways}
        for count, spend, known in self._steps():
            keys = self._order[:count]
            if known is not None:
                self._trial.tried.update(dict.fromkeys(known))
                several = [one for name, one in ways.items() if name in known]
                if not keys:
                    continue
            else:
                several = [*ways.values()]
            await self._ask(keys, self._models)
            equal = self._equal(keys)
            if run.stopped is None and known is None and all(map(_keeps_equal_texts, ways.values())):
                there = room(self.outcomes(), keys, equal)
                if there.high < self.worth and not run.failures.of({*keys}).get("draft"):
                    self._room = there
                    return
            for one in several:
                skipped = equal if _keeps_equal_texts(one) else set[str]()
                self._asked[one.name].update(key for key in keys if key not in skipped or is_audited(key))
            await self._ask(keys, several)
            if run.stopped is not None:
                return
            several = [one for one in several if one in run.contestants]
            seen = self._trial.look(self.outcomes(), keys, [one.name for one in several], spend)
            if known is None:
                before = {key for one in run.journal.looks for key in one.questions}
                new = tuple(key for key in keys if key not in before)
                names = tuple(one.name for one in several)
                run.journal.look(LookLine(questions=new, ways=names, spent=spend, of=len(self._order)))
            self.noted(self._line(seen, equal))
            if self._trial.verdict(self.worth) != "undecided":
                return
            ways = {name: one for name, one in ways.items() if name in seen.kept or name not in seen.ways}
        self._say_what_is_left()

    def _say_what_is_left(self) -> None:
        """Add a note to the advice if earlier runs have already made all looks at these questions."""
        if not self._plan and self._earlier:
            had = sum(len(one.questions) for one in self._earlier)
            self._told.append(
                f"all looks at these questions have been made: the next one needs {int(GROWTH * had)} questions, or "
                "another file for the answers and other questions"
            )

    async def _ask(self, keys: Sequence[str], several: Sequence[Contestant]) -> None:
        """Ask contestants what this run has not asked them yet; a way to fuse gets only its questions in `_asked`."""
        run = self.run
        groups: dict[tuple[str, ...], list[Contestant]] = {}
        for one in several:
            done = self._done.setdefault(one.name, set())
            wanted = keys if one.kind == "alone" else [key for key in keys if key in self._asked[one.name]]
            to_come = tuple(key for key in wanted if key not in done)
            done.update(to_come)
            groups.setdefault(to_come, []).append(one)
        for to_come, some in groups.items():
            if to_come and run.stopped is None:
                questions = [self.questions[key] for key in to_come]
                run.expect(questions, [one for one in some if one in run.contestants])
                await run.ask(questions, some)

    def _texts(self) -> dict[str, dict[str, str]]:
        """Map each model to the texts of its complete answers, keyed by question."""
        examples = [*self.questions.values()]
        return {
            one.name: {key: found.text for key, found in self.run.known.complete(one, examples).items()}
            for one in self._models
        }

    def _equal(self, keys: Iterable[str]) -> set[str]:
        """Return the questions to which all models wrote the same text."""
        texts = [*self._texts().values()]
        return {key for key in keys if all(key in one for one in texts) and len({one[key] for one in texts}) == 1}

    def outcomes(self) -> Outcomes:
        """Collect all outcomes so far; for a question that a way skipped, use that of the models' common text."""
        known, examples = self.run.known, [*self.questions.values()]
        done = {*self._done.get(self._models[0].name, ())}
        answers = {one.name: known.complete(one, examples) for one in self.run.tested}
        alone = {
            one.name: {key: bool(found.right) for key, found in answers[one.name].items() if key in done}
            for one in self._models
        }
        equal = self._equal(done)
        ways: dict[str, dict[str, bool]] = {}
        for way in (one for one in self._ways if one in self.run.contestants):
            asked = self._asked[way.name]
            own = {key: bool(found.right) for key, found in answers[way.name].items() if key in asked}
            same = {key: alone[self._models[0].name][key] for key in equal if key not in asked}
            ways[way.name] = {**same, **own}
        billed = {
            name: sum(one.billed for one in several.values()) / len(several)
            for name, several in answers.items()
            if several
        }
        return Outcomes(alone, ways, billed, {key: group_of(one) for key, one in self.questions.items()})

    def _line(self, seen: Seen, equal: set[str]) -> str:
        """Describe the progress after a look in one line."""
        tried, kept = len(seen.ways), len(seen.kept)
        words = f"[{len(seen.questions)} of {len(self._order)}] {kept} of {counted(tried, 'way')} "
        words += f"{'is' if kept == 1 else 'are'} left"
        if seen.dropped:
            words += f" ({', '.join(seen.dropped)} dropped)"
        asked = len([key for key in equal if not is_audited(key)])
        if asked and any(map(_keeps_equal_texts, self._ways)):
            words += f". {counted(asked, 'question')} had equal texts: not asked"
        return f"{words}."

    def advice(self) -> Advice:
        """Derive the advice from all answers so far."""
        run, outcomes = self.run, self.outcomes()
        keys = [key for key in self._order if key in self._done.get(self._models[0].name, set())]
        asked = [self.questions[key] for key in keys or self._order]
        part = comparison_so_far(run, [], asked, self._models)
        failed = run.failures.of({*keys})
        names = [one.name for one in self._ways]
        more = [
            FailedAnswer(contestant=name, question=key, error=words, development=False)
            for name in names
            for key, words in failed.get(name, {}).items()
        ]
        part = part.model_copy(update={"failures": (*part.failures, *more)})
        fused = self._trial.fused
        way = next((one for one in self._ways if fused is not None and one.name == fused.way), None)
        answers = {} if way is None else run.known.complete(way, [self.questions[key] for key in self._asked[way.name]])
        equal = self._equal(keys)
        audits = [(name, key) for name in names if name in outcomes.ways for key in equal & self._asked[name]]
        audits = [(name, key) for name, key in audits if _keeps_equal_texts(self._named(name))]
        first = outcomes.alone[self._models[0].name]
        facts = AdviceFacts(
            contestants={one.name: one for one in self._ways},
            answers={
                **{one.name: run.known.complete(one, [self.questions[key] for key in answers]) for one in self._models},
                **({} if way is None else {"fused": answers}),
            },
            prices=run.prices,
            questions=len(self._order),
            equal=sum(not is_audited(key) for key in equal),
            audited=len(audits),
            disagreed=sum(outcomes.ways[name].get(key, first[key]) != first[key] for name, key in audits),
            notes=tuple(self._told),
        )
        return advice_of(part, outcomes, self._trial, self.worth, facts, room=self._room)

    def _named(self, name: str) -> Contestant:
        return next(one for one in self._ways if one.name == name)


def _keeps_equal_texts(one: Contestant) -> bool:
    """Test whether a way to fuse always keeps a text that all models write alike."""
    return one.method is not None and not one.method.temperature and one.method.name in METHODS
