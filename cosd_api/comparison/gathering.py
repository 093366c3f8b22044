"""The result of a run: what was asked and graded, put together."""

from __future__ import annotations

from collections.abc import Sequence

from cosd_api.comparison.asking import Asking
from cosd_api.comparison.contestants import Contestant, derived
from cosd_api.comparison.grading import Grader
from cosd_api.comparison.result import Comparison
from cosd_api.comparison.standings import Gathered, comparison_of
from cosd_api.training.dataset import Example
from cosd_api.wording import counted, the
from cosd_providers.usage import Usage

__all__ = ["comparison_so_far", "gathered_so_far"]


def gathered_so_far(
    run: Asking,
    held: Sequence[Example],
    test: Sequence[Example],
    contestants: Sequence[Contestant] | None = None,
) -> Gathered:
    """All that is known of the development and the test questions; with `contestants`, of these alone."""
    asked, count = {example.key for example in [*held, *test]}, len(run.names)
    every = run.contestants if contestants is None else contestants
    if contestants is None:
        contestants = [*run.tested[:count], *derived(count), *run.tested[count:]]
    failed = run.failures.of(asked)
    return Gathered(
        models=run.names,
        test=test,
        development=held,
        contestants=contestants,
        answers={one.name: run.answered(one, [*held, *test]) for one in every},
        failed={one.name: failed[one.name] for one in every if one.name in failed},
        prices=run.prices,
    )


def comparison_so_far(
    run: Asking,
    held: Sequence[Example],
    test: Sequence[Example],
    contestants: Sequence[Contestant] | None = None,
) -> Comparison:
    """The result, complete or not; with `contestants`, of these alone."""
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
    """A note on what a model that judges has cost in this run."""
    usage = getattr(judge, "usage", None)
    if not isinstance(usage, Usage) or not usage.requests:
        return []
    tokens = usage.prompt_tokens + usage.completion_tokens
    words = f"grading took {counted(usage.requests, 'request')} and {counted(tokens, 'billed token')} of the judge"
    return [f"{words}, which are not in the bill above"]


def _warnings(found: Gathered) -> list[str]:
    """Notes for the reader."""
    words: list[str] = []
    for name in found.models:
        answers = [*found.answers.get(name, {}).values()]
        cut = sum(one.finish_reason == "length" for one in answers)
        if answers and cut * 10 >= len(answers):
            words.append(f"{counted(cut, 'answer')} of {len(answers)} of {the(name)} alone ended at max_tokens")
    held = {one.key for one in found.development}
    if failed := {key for name in found.models for key in found.failed.get(name, {}) if key in held}:
        without = f"without {len(failed)} of the {counted(len(held), 'development question')}"
        which = "one of the two failed: it may be the other one"
        if len(found.models) > 2:
            which = "a model failed: it may be another one"
        words.append(f"the better model was chosen {without}, at which {which}")
    return words
