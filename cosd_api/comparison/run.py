"""`compare`: questions answered by each model, by every way to fuse them, and by baselines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Unpack

from cosd_api.checks import check_between
from cosd_api.comparison.asking import Asking
from cosd_api.comparison.baselines import Baselines
from cosd_api.comparison.contestants import COSD, alone, contestants_of, pilots, turned
from cosd_api.comparison.gathering import comparison_so_far
from cosd_api.comparison.graders import check_grader
from cosd_api.comparison.grading import identity_of
from cosd_api.comparison.journal import Journal, JournalHeader
from cosd_api.comparison.questions import questions_by_key
from cosd_api.comparison.result import Comparison
from cosd_api.comparison.settings import ComparisonOptions, ComparisonSettings
from cosd_api.endpoints import Endpoints
from cosd_api.errors import SettingError
from cosd_api.settings import refuse, spell_out
from cosd_api.training.dataset import Example
from cosd_providers.contract import Provider

__all__ = ["DEVELOPMENT", "DRY", "compare", "opened"]

DEVELOPMENT = 0.2
"""Share of the questions that are for development, by default."""
DRY = "no question was asked, in a dry run"
"""The reason why a dry run has no result."""
_CHOOSING = ("alone", "pilot")
"""Kinds of contestants that answer the development questions."""


@spell_out(ComparisonOptions, ComparisonSettings)
async def compare(
    examples: Iterable[Example | Mapping[str, Any]],
    *,
    draft: str | Provider,
    assistant: str | Provider | Sequence[str | Provider],
    baselines: bool = True,
    development: float = DEVELOPMENT,
    **settings: Unpack[ComparisonOptions],
) -> Comparison:
    """Answer questions by each model alone, by every way to fuse them, and by baselines; grade and compare the answers.

    Methods that these endpoints cannot serve are left out, with the reason (`Comparison.left_out`). With several
    assistants every method fuses all of the models: those for two alone are left out of `"all"`, and refused by name. A
    question that an endpoint fails at counts as failed, neither right nor wrong, and is asked again when the comparison
    is resumed. After eight failures in a row the comparison stops.

    Args:
        examples: `Example`, or dictionaries with its fields; two at least. Duplicates are asked about once. Of those
            that differ in `target`, `choices` or `tests` alone, all but the first have another key in the result.
        draft: URL of a server, or a provider (`cosd_api.connect`).
        assistant: the same, or several of them.
        methods: `"all"` methods with their defaults, or several: names, objects such as `CoSD(verifier=tree)`, or a
            dictionary of them by the names that they shall have. `random gate` and `self-consistency` need `"cosd"`.
        both_ways: whether each method is compared with each assistant as the draft, too; the others assist in their
            order.
        baselines: whether there are `random gate` and `self-consistency`; CoSD answers the development questions for
            these alone, once more with the assistants asked everywhere.
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
            `{"draft": (0.2, 0.6), "assistant": (3, 15, 0.3)}`. Several assistants are `"assistant 1"` and so on.
        confirm: called with the estimate of what is still to be asked, before it is; nothing is if it returns False.
        progress: called at first and after each answer.
        dry_run: end after the estimate, which `confirm` gets: no model answers. The estimate then has the time, too:
            the speed of each model is measured by 2 * `concurrency` + 2 requests of at most 16 tokens, one of which
            reads a question. They are in no bill. `path` is only read, also while another run has it open, and need
            not be there.

    Returns:
        The comparison; `stopped` says why it is not complete.

    Raises:
        SettingError: an argument or an example is invalid; a method that was named does not take so many models; or the
            file holds something else.
        UnsupportedError: an endpoint cannot answer at all.
        ProviderError: an endpoint failed when it was asked what it is, or when its speed was measured.
        OSError: the file cannot be read or written.
    """
    refuse(settings, compare)
    chosen = ComparisonSettings.checked(**settings)
    wanted = [*questions_by_key(examples).values()]
    check_between("development", development, 0, 1)
    held, test = split(wanted, development)
    async with opened(wanted, draft=draft, assistant=assistant, settings=chosen) as run:
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
) -> AsyncGenerator[Asking]:
    """Endpoints, grader and journal, open, and each model alone and the chosen methods taken in; see `compare`.

    Without `take_in` there are no contestants yet.
    """
    judge = check_grader(settings.grader)
    for number, example in enumerate(examples, 1):
        try:
            judge.check(example)
        except SettingError as error:
            raise SettingError(f"example {number}: {error}") from None
    models = Endpoints(draft, assistant, unit=settings.unit, method=alone()[0].method)
    count = 1 + len(models.assistants)
    methods, without = contestants_of(settings.methods, count, both_ways=settings.both_ways)
    async with models, judge, AsyncExitStack() as stack:
        facts = await models.discover()
        first, *more = facts.assistants
        header = JournalHeader(draft=facts.draft, assistant=first, more_assistants=tuple(more))
        ungraded = identity_of(judge) is None
        file = None if settings.path is None else Path(settings.path)
        journal = stack.enter_context(Journal(file, header, write=not settings.dry_run, regrade=ungraded))
        run = Asking(models, facts, judge, journal, settings, stack)
        if take_in:
            run.left_out += without
            await run.take_in([*alone(count), *methods])
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
