"""The result of a complete answer, put together from its preparation, its run and its records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cosd_api import answer_warnings
from cosd_api.decoding.answer_job import Run
from cosd_api.decoding.commands import Finish, Report
from cosd_api.decoding.timeline import Timeline
from cosd_api.estimate import prompt_tokens
from cosd_api.preparation import Preparation
from cosd_api.records import DRAFT, EndpointUsage, FusedToken, Request, Seam, Segment, Timings
from cosd_api.result import FusionResult
from cosd_api.settings import AnswerLimits, FusionSettings, Settings
from cosd_providers.text import readable, sendable
from cosd_providers.usage import Usage


def complete_answer(
    found: Preparation,
    run: Run,
    tokens: Sequence[FusedToken],
    *,
    settings: FusionSettings,
    limits: AnswerLimits,
    ledgers: Mapping[str, Usage],
    timeline: Timeline,
    timings: Timings,
    notes: Sequence[str],
    silent: Mapping[str, str],
) -> FusionResult:
    """Make the result of an answer that has ended.

    Args:
        found: what was known when the answer began.
        run: the run, which has finished.
        tokens: the tokens of the answer.
        settings: the settings of the fusion.
        limits: the limits of the answer.
        ledgers: the ledger of each model, by name, the draft first.
        timeline: the record of the requests.
        timings: the times of the answer.
        notes: further warnings.
        silent: the endpoints of the assistants whose servers show no text of a token, by name.
    """
    assert run.finished is not None
    report, calls, names = run.report(), run.calls, [*ledgers]
    usage = {name: EndpointUsage.of(ledger) for name, ledger in ledgers.items()}
    text = sendable(report.text) if found.parts else readable(report.text)
    parsed, invalid = _parsed(text, run.finished, limits)
    judged = _of_the_draft(found, report, tokens, calls.drafted_tokens) if report.judged else _UNJUDGED
    return FusionResult(
        text=text,
        finish_reason=run.finished.finish_reason,
        stop_reason=run.finished.stop_reason,
        tokens=tuple(tokens),
        **judged,
        drafted_tokens=calls.drafted_tokens,
        ties=report.ties if found.ties else None,
        unjudged=report.unjudged,
        draft_requests=calls.draft_requests,
        assistant_requests=calls.assistant_requests,
        usage=usage,
        timings=timings,
        warnings=(*_warnings(found, run, tokens, settings, ledgers, usage, silent), *invalid, *notes),
        draft=found.facts.draft,
        assistants=found.facts.assistants,
        settings=Settings.of(settings, limits, found.facts.unit, routes=found.named, ties=found.ties),
        seams=tuple(
            Seam(token=one.token, source=names[one.source + 1], error=one.reason)
            for one in report.seams
            if one.token <= len(tokens)  # a stop string may have removed the text before the last seams
        ),
        segments=tuple(Segment.of(one, names) for one in report.segments),
        prompt_tokens=prompt_tokens(found.turns, timeline.spans),
        failures={
            **({DRAFT: type(report.seams[0].error).__name__} if report.seams else {}),
            **{names[at + 1]: type(loss.error).__name__ for at, loss in sorted(report.lost.items())},
        },
        weights=None if report.weights is None else {names[at]: one for at, one in report.weights.items()},
        requests=tuple(Request.of(span, names) for span in timeline.spans),
        parsed=parsed,
    )


def _parsed(text: str, finish: Finish, limits: AnswerLimits) -> tuple[Any, Sequence[str]]:
    """The value of an answer that has a format and ended by itself, and a warning if it is not valid."""
    chosen = limits.response_format
    if chosen is None or finish.finish_reason != "stop" or finish.stop_reason in limits.stop:
        return None, ()
    try:
        return chosen.parse(text), ()
    except ValueError as error:
        return None, (f"the answer is not valid: {error}",)


_UNJUDGED: dict[str, Any] = dict.fromkeys(
    ("acceptance_rate", "replacements", "iterations", "kept_tokens", "replaced_tokens")
)
"""The figures of an answer whose method does not judge a draft."""


def _of_the_draft(found: Preparation, report: Report, tokens: Sequence[FusedToken], drafted: int) -> dict[str, Any]:
    """The figures of an answer whose method judges a draft."""
    verified = report.kept - sum(one.source == DRAFT and not one.verified for one in tokens)
    judged = verified + report.replaced
    off_path = report.off_path
    if off_path is None:
        off_path = 0 if found.by_ids else len({token.unit for token in tokens if token.decisions})
    return {
        "acceptance_rate": verified / judged if judged else None if tokens else 1.0,
        "replacements": report.replacements,
        "iterations": report.iterations,
        "kept_tokens": report.kept,
        "replaced_tokens": report.replaced,
        "units": len({token.unit for token in tokens}),
        "off_path": off_path,
        "wasted_tokens": max(0, drafted - report.kept),
    }


def _warnings(
    found: Preparation,
    run: Run,
    tokens: Sequence[FusedToken],
    settings: FusionSettings,
    ledgers: Mapping[str, Usage],
    usage: Mapping[str, EndpointUsage],
    silent: Mapping[str, str],
) -> Iterator[str]:
    report = run.report()
    _, *assistants = ledgers
    yield from found.facts.warnings_for(found.prompt)
    for turn in found.turns:
        yield from turn.warnings
    yield from answer_warnings.reencoded(run.calls.reencoded)
    yield from answer_warnings.unanswered(report.unanswered, silent)
    yield from answer_warnings.seams(report.seams, [*ledgers], tokens)
    yield from answer_warnings.losses(report.lost, assistants, tokens)
    yield from answer_warnings.unreported(usage, [name for name, one in ledgers.items() if one.unreported])
    if report.judged:
        yield from answer_warnings.cost(usage, settings.method.judge)
    yield from report.warnings
    yield from dict.fromkeys(words for ledger in ledgers.values() for words in ledger.warnings)
