"""`compare`: let each model, every way to fuse the models, and baselines answer questions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from cosd_api import Example, SettingError
from cosd_api.comparison.contestants import (
    COSD,
    SELF_CONSISTENCY,
    Contestant,
    LeftOut,
    alone,
    baselines_of,
    contestants_of,
    derived,
    pilots,
    random_gate,
    self_consistency,
    turned,
)
from cosd_api.comparison.graders import check_grader
from cosd_api.comparison.grading import Grader, identity_of
from cosd_api.comparison.journal import GradedAnswer, Journal, JournalHeader
from cosd_api.comparison.prices import MOST_SAMPLES, Price, equal_bill
from cosd_api.comparison.questions import questions_by_key, repeated_prompts
from cosd_api.comparison.result import Comparison, comparison_of
from cosd_api.comparison.run import ComparisonRun
from cosd_api.comparison.settings import ComparisonOptions, ComparisonSettings
from cosd_api.comparison.standings import Gathered, better_of
from cosd_api.extend import Endpoints, check_between, counted, refuse_settings, spell_out_options, with_article
from cosd_providers import Provider, Usage

DEVELOPMENT = 0.2
"""Default share of the questions that is held out to set the baselines, if there are baselines."""
DRY = "no question was asked, in a dry run"
"""The reason why a dry run has no result."""
_CHOOSING = ("alone", "pilot")
"""Kinds of contestants that answer the development questions, which set the baselines."""


@spell_out_options(ComparisonOptions, ComparisonSettings)
async def compare(
    examples: Iterable[Example | Mapping[str, Any]],
    *,
    draft: str | Provider,
    assistant: str | Provider | Sequence[str | Provider],
    baselines: bool = True,
    pairs: bool = False,
    development: float | None = None,
    **settings: Unpack[ComparisonOptions],
) -> Comparison:
    """Let each model alone, every way to fuse them, and baselines answer questions; grade and compare the answers.

    Methods that these endpoints cannot serve are left out; `Comparison.left_out` gives the reasons. With several
    assistants, every method fuses all of the models. Methods that support only two models are then left out of `"all"`,
    and naming one is an error. A question at which an endpoint fails counts as failed, neither right nor wrong, and is
    asked again when the comparison is resumed. After eight failures in a row, the comparison stops.

    Args:
        examples: `Example` objects, or dictionaries with the same fields. Questions with the same `group` count as one
            in intervals and tests. Duplicate questions are asked only once. If questions differ only in `target`,
            `choices` or `tests`, the result lists the first under `Example.key` and the others under different keys.
        draft: URL of a server, or a provider (`cosd_api.connect`).
        assistant: a URL or a provider, or several of them.
        methods: `"all"` for all methods with their defaults; or several methods, given as names, as objects such as
            `CoSD(verifier=tree)`, or as a mapping whose values are such names or objects. The baselines `random gate`
            and `self-consistency` are available only if `"cosd"` is among the methods.
        both_ways: whether each method is also run with each assistant as the draft; the other models then assist, in
            the order given.
        baselines: whether to add the baselines `random gate` and `self-consistency`. Some questions are held out to set
            these baselines, and do not count in any standing. CoSD answers the held-out questions once more, and asks
            the assistants at every place.
        pairs: whether, for three models, each pair of models is also fused with every method. `Comparison.third` needs
            these results to say whether the third model is worth its price. They make the comparison about three times
            as expensive.
        grader: judge of the answers, given as a name (see `grader_named`), a `Grader`, or a function of an example and
            a text.
        path: a JSON lines file, to which each answer is appended when it is complete. The same call resumes an
            interrupted comparison, and asks failed questions again, after all other questions. If a crash has cut off
            the last line, it is removed. The file is locked against other runs. If only the grader has changed, the
            known texts are graded again, and models are asked again only for self-consistency, whose vote depends on
            how the grader reads the samples.
        max_tokens: maximum number of tokens in each answer.
        stop: stop strings; an answer ends before the first one that would appear in it.
        seed: seed for random draws.
        unit: as in `Fusion`.
        development: share of the questions that is held out to set the baselines, between 0 and 1. The default is a
            fifth if any baseline needs these questions, else none. See `Comparison`.
        concurrency: number of answers that are requested at the same time. Latencies are measured under this load.
        max_billed_tokens: limit on the tokens that the whole comparison may bill, including the tokens recorded in
            `path`. The comparison stops before an answer that would exceed the limit. The result then says so, and
            contains all answers so far.
        prices: price of a million tokens at each endpoint, for tokens read, tokens written and, if the price differs,
            tokens read from a cache, as in `{"draft": (0.2, 0.6), "assistant": (3, 15, 0.3)}`. If there are several
            assistants, they are named `"assistant 1"` and so on.
        confirm: called with the estimated cost of the missing answers, before any of them is requested; returning False
            ends the run.
        progress: called at the start and after each answer.
        dry_run: end after passing the estimate to `confirm`, without asking for answers. The estimate then includes the
            time. To measure each model's speed, 2 * `concurrency` + 2 requests of at most 16 tokens are sent, one of
            which reads a question. These requests are not part of any bill. The file at `path` need not exist. It is
            only read, so another run may have it open.

    Returns:
        The comparison; if it is not complete, `stopped` says why.

    Raises:
        SettingError: an argument or an example is invalid; a named method does not support this number of models; or
            the file is not a journal of these models.
        UnsupportedError: an endpoint cannot answer at all.
        ProviderError: an endpoint failed at discovery, or when its speed was measured.
        OSError: the file cannot be read or written.
    """
    refuse_settings(settings, compare)
    chosen = ComparisonSettings.checked(**settings)
    wanted = [*questions_by_key(examples).values()]
    if development is not None:
        check_between("development", development, 0, 1)
    async with opened(wanted, draft=draft, assistant=assistant, settings=chosen, pairs=pairs) as run:
        needed = baselines and any(one.name == COSD for one in run.contestants)
        share = DEVELOPMENT if development is None and needed else development
        held, test = ([], wanted) if share is None else split(wanted, share)
        if baselines:
            turns = [turned(first, len(run.names)) for first in range(len(run.names))]
            cosd = [one for one in run.contestants if one.name in [COSD + turn for turn in turns]]
            await run.take_in(pilots(cosd, len(run.names)))
        choosing = [one for one in run.contestants if one.kind in _CHOOSING or (baselines and one.name == COSD)]
        run.expect(held, choosing)
        run.expect(test, run.tested)
        if baselines:
            await run.grade(held, [one for one in run.contestants if one.kind == "alone"])
        made = Baselines(run, held, test, wanted, make=baselines)
        await made.take_in(sure=True)
        if chosen.confirm is not None and not chosen.confirm(await run.estimate(held, test, baselines=baselines)):
            run.stopped = "it was not confirmed"
        if chosen.dry_run:
            run.stopped = DRY
            return comparison_so_far(run, held, test)
        await run.ask(held, choosing)
        await made.take_in(sure=False)
        await run.ask(test, run.tested)
        return comparison_so_far(run, held, test)


@asynccontextmanager
async def opened(
    examples: Sequence[Example],
    *,
    draft: str | Provider,
    assistant: str | Provider | Sequence[str | Provider],
    settings: ComparisonSettings,
    take_in: bool = True,
    pairs: bool = False,
) -> AsyncGenerator[ComparisonRun]:
    """Open the endpoints, the grader and the journal, and add each model alone and the chosen methods; see `compare`.

    Without `take_in`, no contestants are added.
    """
    judge = check_grader(settings.grader)
    for number, example in enumerate(examples, 1):
        try:
            judge.check(example)
        except SettingError as error:
            raise SettingError(f"example {number}: {error}") from None
    models = Endpoints(draft, assistant, unit=settings.unit, method=alone()[0].method)
    count = 1 + len(models.assistants)
    methods, without = contestants_of(settings.methods, count, both_ways=settings.both_ways, pairs=pairs)
    async with models, judge, AsyncExitStack() as stack:
        facts = await models.discover()
        first, *more = facts.assistants
        header = JournalHeader(draft=facts.draft, assistant=first, more_assistants=tuple(more))
        ungraded = identity_of(judge) is None
        file = None if settings.path is None else Path(settings.path)
        journal = stack.enter_context(Journal(file, header, write=not settings.dry_run, regrade=ungraded))
        run = ComparisonRun(models, facts, judge, journal, settings, stack)
        if take_in:
            run.left_out += without
            await run.take_in([*alone(count), *methods])
        yield run


def split(examples: Sequence[Example], share: float) -> tuple[list[Example], list[Example]]:
    """Split questions into development questions, which set the baselines, and test questions; see `Comparison`.

    Raises:
        SettingError: there is only one question.
    """
    if len(examples) < 2:
        raise SettingError("a comparison with baselines needs at least two questions: one to set them, one to test")
    by_hash = sorted(example.key for example in examples)
    count = min(max(1, round(share * len(examples))), len(examples) - 1)
    held = set(by_hash[:count])
    return [one for one in examples if one.key in held], [one for one in examples if one.key not in held]


# Baselines that depend on answers to some of the questions.


@dataclass(frozen=True, slots=True)
class Baselines:
    """The baselines of a run whose settings depend on other contestants' answers.

    Attributes:
        run: the run that asks the models.
        held: the development questions, which set the baselines.
        test: the test questions.
        wanted: all questions.
        make: whether to add baselines.
    """

    run: ComparisonRun
    held: Sequence[Example]
    test: Sequence[Example]
    wanted: Sequence[Example]
    make: bool

    async def take_in(self, *, sure: bool) -> None:
        """Add the missing baselines; with `sure`, add only those whose settings no further answer can change."""
        run = self.run
        if not self.make:
            return
        texts = {one.name: run.known.answers(one, self.held) for one in run.contestants}
        right = {one.name: run.known.complete(one, self.held) for one in run.contestants if one.kind == "alone"}
        there = {*texts, *(one.name for one in run.left_out)}
        found: list[Contestant] = []
        baselines = baselines_of(len(run.names))
        for one in baselines:
            answers = texts.get(one.after, {})
            votes = one.name == SELF_CONSISTENCY
            chosen = not votes or all(len(known) == len(self.held) for known in right.values())
            if one.name in there or (sure and (len(answers) < len(self.held) or not chosen)):
                continue
            if answers and votes:
                found.append(self._vote(texts))
            elif answers:
                found.append(random_gate(one, replacement_rate(answers.values()), run.settings.seed))
            elif run.stopped is None and (one.after in texts or not one.first):
                named = one.after if one.after in texts else COSD
                run.left_out.append(LeftOut(one.name, f"it is made after {named}, which has not answered"))
        run.expect(self.test, await run.take_in(found))
        order = {one.name: at for at, one in enumerate(baselines, 1)}
        run.contestants.sort(key=lambda one: order.get(one.name, 0))

    def _vote(self, texts: Mapping[str, Mapping[str, GradedAnswer]]) -> Contestant:
        run = self.run
        better = better_of(gathered_so_far(run, self.held, []))
        k = samples_for(texts[COSD], texts[better], run.prices)
        if k == MOST_SAMPLES:
            run.notes.append(f"{SELF_CONSISTENCY} has {k} samples, which cost less than an answer of {COSD}")
        return self_consistency(k, run.judge.name, _reader(run.judge, self.wanted), run.names.index(better))


def samples_for(
    cosd: Mapping[str, GradedAnswer], better: Mapping[str, GradedAnswer], prices: Mapping[str, Price] | None = None
) -> int:
    """Number of samples for self-consistency: as many answers of the better model as CoSD's bill would pay for.

    The bills are compared in money if prices are known, else in tokens. The number is between 1 and `MOST_SAMPLES`.
    """
    common = [key for key in cosd if key in better]

    def bill(answers: Mapping[str, GradedAnswer]) -> tuple[float, float]:
        several = [answers[key] for key in common]
        return sum(one.money(prices) or 0.0 for one in several), sum(one.billed for one in several)

    return equal_bill(bill(cosd), bill(better))


def replacement_rate(answers: Iterable[GradedAnswer]) -> float:
    """Share of differing units that CoSD replaced; `answers` come from a pilot, which asks about every unit."""
    several = [*answers]
    differing = sum(one.differing or 0 for one in several)
    return sum(len(one.replaced) for one in several) / differing if differing else 0.0


def _reader(judge: Grader, examples: Sequence[Example]) -> Callable[[str, str], str | None]:
    """Make a function that reads a sample's vote: the answer that the grader reads, else the stripped text."""
    by_prompt = {_plain(example): example for example in reversed(examples)}

    def read(prompt: str, text: str) -> str | None:
        example = by_prompt.get(prompt)
        found = None if example is None else judge.reads(example, text)
        return found if found is not None else text.strip() or None

    return read


def _plain(example: Example) -> str:
    prompt = example.prompt
    return prompt if isinstance(prompt, str) else "\n\n".join(message.content for message in prompt)


# The result.


def gathered_so_far(
    run: ComparisonRun,
    held: Sequence[Example],
    test: Sequence[Example],
    contestants: Sequence[Contestant] | None = None,
) -> Gathered:
    """Gather the known answers to development and test questions, of all contestants or of the given ones."""
    asked, count = {example.key for example in [*held, *test]}, len(run.names)
    every = run.contestants if contestants is None else contestants
    if contestants is None:
        contestants = [*run.tested[:count], *derived(), *run.tested[count:]]
    failed = run.failures.of(asked)
    return Gathered(
        models=run.names,
        test=test,
        development=held,
        contestants=contestants,
        answers={one.name: run.known.complete(one, [*held, *test]) for one in every},
        failed={one.name: failed[one.name] for one in every if one.name in failed},
        prices=run.prices,
    )


def comparison_so_far(
    run: ComparisonRun,
    held: Sequence[Example],
    test: Sequence[Example],
    contestants: Sequence[Contestant] | None = None,
) -> Comparison:
    """Make the result so far, complete or not, for all contestants or for the given ones."""
    found = gathered_so_far(run, held, test, contestants)
    first, *more = run.facts.assistants
    limits = run.settings
    return comparison_of(
        found,
        draft=run.facts.draft,
        assistant=first,
        more_assistants=tuple(more),
        grader=run.judge.name,
        max_tokens=limits.max_tokens,
        stop=limits.stop,
        seed=limits.seed,
        unit=limits.unit,
        left_out=tuple(run.left_out),
        stopped=run.stopped,
        billed_tokens=run.journal.billed,
        spent_tokens=run.spent,
        warnings=(
            *dict.fromkeys(words for one in [*held, *test] for words in run.facts.warnings_for(one.prompt)),
            *getattr(run.judge, "warnings", ()),
            *_warnings(found),
            *run.notes,
            *_judging(run.judge),
        ),
    )


def _judging(judge: Grader) -> list[str]:
    """Report the cost of grading if a model is the judge."""
    usage = getattr(judge, "usage", None)
    if not isinstance(usage, Usage) or not usage.requests:
        return []
    tokens = usage.prompt_tokens + usage.completion_tokens
    words = f"grading took {counted(usage.requests, 'request')} and {counted(tokens, 'billed token')} of the judge"
    return [f"{words}, which are not in the bill above"]


def _warnings(found: Gathered) -> list[str]:
    """Warn about answers cut off by `max_tokens`, and about repeated prompts."""
    words: list[str] = []
    for name in found.models:
        answers = [*found.answers.get(name, {}).values()]
        cut = sum(one.finish_reason == "length" for one in answers)
        if answers and cut * 10 >= len(answers):
            words.append(
                f"{counted(cut, 'answer')} of {len(answers)} of {with_article(name)} alone ended at max_tokens"
            )
    if repeated := repeated_prompts(found.test):
        words.append(
            f"{counted(repeated, 'question')} share their prompts with others: if they ask for the same thing, give "
            "them one group, or the intervals are too narrow"
        )
    return words
