"""`compare`: questions answered by two models, by every way to fuse them, and by baselines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

from cosd_api.alignment import Unit
from cosd_api.checks import check_between, check_count, check_stop, check_unit
from cosd_api.comparison.asking import Asking, Tally
from cosd_api.comparison.contestants import (
    ASSISTANT_ALONE,
    COSD,
    EVERYWHERE,
    RANDOM,
    REVERSED,
    SELF_CONSISTENCY,
    Chosen,
    Contestant,
    LeftOut,
    alone,
    contestants_of,
    pilots,
    random_gate,
    self_consistency,
)
from cosd_api.comparison.forecast import MOST_SAMPLES, equal_bill
from cosd_api.comparison.graders import check_grader
from cosd_api.comparison.grading import Grader, identity_of
from cosd_api.comparison.journal import GradedAnswer, Journal, JournalHeader
from cosd_api.comparison.prices import ComparisonEstimate, Price, Prices, checked_prices
from cosd_api.comparison.result import Comparison, better_of
from cosd_api.endpoints import Endpoints
from cosd_api.errors import SettingError
from cosd_api.settings import DEFAULT_MAX_TOKENS, refuse
from cosd_api.training.dataset import Example, check_examples
from cosd_providers.contract import Provider

__all__ = ["DEVELOPMENT", "DRY", "compare", "opened"]

DEVELOPMENT = 0.2
"""Share of the questions that are for development, by default."""
DRY = "nothing was asked, in a dry run"
"""The reason why a dry run has no result."""
_CHOOSING = ("alone", "pilot")
"""Kinds of contestants that answer the development questions."""
_MADE_AFTER = {SELF_CONSISTENCY: COSD, RANDOM: EVERYWHERE, RANDOM + REVERSED: EVERYWHERE + REVERSED}
"""Baselines in their order, by whose answers to the development questions they are made after."""


async def compare(
    examples: Iterable[Example | Mapping[str, Any]],
    *,
    draft: str | Provider,
    assistant: str | Provider,
    methods: Chosen = "all",
    both_ways: bool = True,
    baselines: bool = True,
    grader: str | Grader | Callable[[Example, str], Any] = "exact",
    path: str | Path | None = None,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    stop: str | Sequence[str] | None = None,
    seed: int = 0,
    unit: Unit | None = None,
    development: float = DEVELOPMENT,
    concurrency: int = 4,
    max_billed_tokens: int | None = None,
    prices: Prices | None = None,
    confirm: Callable[[ComparisonEstimate], bool] | None = None,
    progress: Callable[[Sequence[Tally]], None] | None = None,
    dry_run: bool = False,
    **refused: Never,
) -> Comparison:
    """Answer questions by two models alone, by every way to fuse them, and by baselines; grade and compare the answers.

    Methods that these endpoints cannot serve are left out, with the reason (`Comparison.left_out`). A question that an
    endpoint fails at counts as failed, neither right nor wrong, and is asked again when the comparison is resumed.
    After eight failures in a row the comparison stops.

    Args:
        examples: `Example`, or dictionaries with its fields; two at least. Duplicates are asked about once.
        draft: URL of a server, or a provider (`cosd_api.connect`).
        assistant: the same.
        methods: `"all"` methods with their defaults, or several: names, objects such as `CoSD(verifier=tree)`, or a
            dictionary of them by the names that they shall have. `random gate` and `self-consistency` need `"cosd"`.
        both_ways: whether each method is compared with the assistant as the draft, too.
        baselines: whether there are `random gate` and `self-consistency`; CoSD answers the development questions for
            these alone, once more with the assistant asked everywhere.
        grader: tells a right answer: a name (see `grader_named`), a `Grader`, or a function of an example and a text.
        path: a JSON lines file for the answers, each appended when it is complete: the same call resumes an interrupted
            comparison, which asks what failed again, after all other questions. A last line cut by a crash is removed.
            The file is locked for other runs. Where only the grader has changed, texts are graded again; models are
            asked for self-consistency alone, which votes on what the grader reads, with samples of the better model.
        max_tokens: limit for each answer.
        stop: strings; an answer ends before the first one.
        seed: of what is drawn.
        unit: as in `Fusion`.
        development: share of the questions by which the better model is chosen, between 0 and 1; see `Comparison`.
        concurrency: number of answers at the same time. Latencies are those of servers that are this busy.
        max_billed_tokens: tokens that the whole comparison may bill, those in `path` included. It stops before an
            answer that would exceed them; the result says so, and has what is known.
        prices: of a million tokens at each endpoint, read, written, and read from a cache if that differs:
            `{"draft": (0.2, 0.6), "assistant": (3, 15, 0.3)}`.
        confirm: called with the estimate of what is still to be asked, before it is; nothing is if it returns False.
        progress: called at first and after each answer.
        dry_run: end after the estimate, which `confirm` gets: no model answers. `path` is only read, also while another
            run has it open, and need not be there.

    Returns:
        The comparison; `stopped` says why it is not complete.

    Raises:
        SettingError: an argument or an example is invalid; or the file holds something else.
        UnsupportedError: an endpoint cannot answer at all.
        ProviderError: an endpoint failed when it was asked what it is.
        OSError: the file cannot be read or written.
    """
    refuse(refused, compare)
    wanted = [*check_examples(examples).values()]
    chosen, without = contestants_of(methods, both_ways=both_ways)
    check_between("development", development, 0, 1)
    held, test = split(wanted, development)
    async with opened(
        wanted,
        draft=draft,
        assistant=assistant,
        grader=grader,
        path=path,
        max_tokens=max_tokens,
        stop=stop,
        seed=seed,
        unit=unit,
        concurrency=concurrency,
        max_billed_tokens=max_billed_tokens,
        dry_run=dry_run,
    ) as run:
        priced = checked_prices(prices, run.named)
        run.left_out += without
        await run.take_in([*alone(), *chosen])
        if baselines:
            await run.take_in(pilots([one for one in run.contestants if one.name in (COSD, COSD + REVERSED)]))
        choosing = [one for one in run.contestants if one.kind in _CHOOSING or (baselines and one.name == COSD)]
        run.expect(held, choosing)
        run.expect(test, run.tested)
        if baselines:
            await run.grade(held, [one for one in run.contestants if one.kind == "alone"], concurrency)
        made = _Baselines(run, held, test, wanted, priced, make=baselines)
        await made.take_in(sure=True)
        if confirm is not None and not confirm(await run.estimate(priced, held, test, baselines=baselines)):
            run.stopped = "it was not confirmed"
        if dry_run:
            run.stopped = DRY
            return run.comparison(held, test, priced)
        await run.ask(held, choosing, concurrency, progress)
        await made.take_in(sure=False)
        await run.ask(test, run.tested, concurrency, progress)
        return run.comparison(held, test, priced)


@asynccontextmanager
async def opened(
    examples: Sequence[Example],
    *,
    draft: str | Provider,
    assistant: str | Provider,
    grader: str | Grader | Callable[[Example, str], Any],
    path: str | Path | None,
    max_tokens: int,
    stop: str | Sequence[str] | None,
    seed: int,
    unit: Unit | None,
    concurrency: int,
    max_billed_tokens: int | None,
    dry_run: bool = False,
) -> AsyncGenerator[Asking]:
    """Endpoints, grader and journal, open; nobody is to answer yet. For the arguments and errors see `compare`."""
    check_count("max_tokens", max_tokens)
    check_count("seed", seed, least=0)
    check_count("concurrency", concurrency)
    if max_billed_tokens is not None:
        check_count("max_billed_tokens", max_billed_tokens)
    if isinstance(assistant, list | tuple):
        raise SettingError("a comparison is of two models: give one assistant, and compare each other pair by itself")
    judge = check_grader(grader)
    for number, example in enumerate(examples, 1):
        try:
            judge.check(example)
        except SettingError as error:
            raise SettingError(f"example {number}: {error}") from None
    stops = check_stop(stop)
    models = Endpoints(draft, assistant, unit=check_unit(unit), method=alone()[0].method)
    async with models, judge, AsyncExitStack() as stack:
        facts = await models.discover()
        header = JournalHeader(draft=facts.draft, assistant=facts.assistants[0])
        ungraded = identity_of(judge) is None
        file = None if path is None else Path(path)
        journal = stack.enter_context(Journal(file, header, write=not dry_run, regrade=ungraded))
        run = Asking(models, facts, judge, journal, max_tokens, stops, seed, unit, stack, max_billed_tokens)
        yield run


def split(examples: Sequence[Example], share: float) -> tuple[list[Example], list[Example]]:
    """The development and the test questions, each in the order given; see `Comparison`.

    Raises:
        SettingError: there is only one question.
    """
    if len(examples) < 2:
        raise SettingError("a comparison takes two questions at least: one to choose the better model, one to test")
    by_hash = sorted(example.key for example in examples)
    count = min(max(1, round(share * len(examples))), len(examples) - 1)
    held = set(by_hash[:count])
    return [one for one in examples if one.key in held], [one for one in examples if one.key not in held]


@dataclass(frozen=True, slots=True)
class _Baselines:
    """The baselines that are made after answers to the development questions."""

    run: Asking
    held: Sequence[Example]
    test: Sequence[Example]
    wanted: Sequence[Example]
    prices: Mapping[str, Price] | None
    make: bool

    async def take_in(self, *, sure: bool) -> None:
        """Take in those that are not there yet; with `sure` only those that no answer to come can change."""
        run = self.run
        if not self.make:
            return
        texts = {one.name: run.texts(one, self.held) for one in run.contestants}
        right = {one.name: run.answered(one, self.held) for one in run.contestants if one.kind == "alone"}
        there = {*texts, *(one.name for one in run.left_out)}
        found: list[Contestant] = []
        for name, after in _MADE_AFTER.items():
            answers = texts.get(after, {})
            chosen = name != SELF_CONSISTENCY or all(len(one) == len(self.held) for one in right.values())
            if name in there or (sure and (len(answers) < len(self.held) or not chosen)):
                continue
            if answers:
                found.append(self._vote(texts) if name == SELF_CONSISTENCY else self._gate(name, answers.values()))
            elif run.stopped is None and (after in texts or not name.endswith(REVERSED)):
                named = after if after in texts else COSD
                run.left_out.append(LeftOut(name, f"it is made after {named}, which has not answered"))
        run.expect(self.test, await run.take_in(found))
        order = [*_MADE_AFTER]
        run.contestants.sort(key=lambda one: order.index(one.name) + 1 if one.name in order else 0)

    def _vote(self, texts: Mapping[str, Mapping[str, GradedAnswer]]) -> Contestant:
        better = better_of(self.run.gathered(self.held, [], None))
        k = samples_for(texts[COSD], texts[better], self.prices)
        if k == MOST_SAMPLES:
            self.run.notes.append(f"{SELF_CONSISTENCY} has {k} samples, which cost less than an answer of {COSD}")
        reads = _reader(self.run.judge, self.wanted)
        return self_consistency(k, self.run.judge.name, reads, reverse=better == ASSISTANT_ALONE)

    def _gate(self, name: str, answers: Iterable[GradedAnswer]) -> Contestant:
        return random_gate(replacement_rate(answers), self.run.seed, reverse=name.endswith(REVERSED))


def samples_for(
    cosd: Mapping[str, GradedAnswer], better: Mapping[str, GradedAnswer], prices: Mapping[str, Price] | None = None
) -> int:
    """The samples of self-consistency: as many answers of the better model as CoSD's bill pays for, in money if known.

    One at least, and at most `MOST_SAMPLES`.
    """
    common = [key for key in cosd if key in better]

    def bill(answers: Mapping[str, GradedAnswer]) -> tuple[float, float]:
        several = [answers[key] for key in common]
        return sum(one.money(prices) or 0.0 for one in several), sum(one.billed for one in several)

    return equal_bill(bill(cosd), bill(better))


def replacement_rate(answers: Iterable[GradedAnswer]) -> float:
    """The share of the units with a differing word that CoSD replaced; in these answers it was asked everywhere."""
    several = [*answers]
    differing = sum(one.differing or 0 for one in several)
    return sum(len(one.replaced) for one in several) / differing if differing else 0.0


def _reader(judge: Grader, examples: Sequence[Example]) -> Callable[[str, str], str | None]:
    """The function by which samples vote: what the grader reads, else the text without white space around."""
    by_prompt = {_plain(example): example for example in reversed(examples)}

    def read(prompt: str, text: str) -> str | None:
        example = by_prompt.get(prompt)
        found = None if example is None else judge.reads(example, text)
        return found if found is not None else text.strip() or None

    return read


def _plain(example: Example) -> str:
    prompt = example.prompt
    return prompt if isinstance(prompt, str) else "\n\n".join(message.content for message in prompt)
