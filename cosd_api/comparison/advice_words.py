"""Advice in words: one paragraph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cosd_api.comparison.statistics import Estimated
from cosd_api.wording import counted, in_words, the

if TYPE_CHECKING:
    from cosd_api.comparison.advice import Advice

__all__ = ["advice_words"]

_LEAST_WON = 6
"""Questions won, and none lost, that McNemar's exact test needs at a level of 0.05: 2 / 2^6 is below it."""
_LONG = 30  # characters of a setting that are too many for a sentence
_MANY = 0.25
"""Share of a model's wrong answers that are sure ones, above which the rule's default misses much."""


def advice_words(advice: Advice) -> str:
    """The paragraph."""
    if advice.decision == "unknown":
        return f"No advice yet: {advice.stopped}."
    sentences = [*(_fuse(advice) if advice.decision == "fuse" else _alone(advice)), *_doubts(advice)]
    return " ".join(sentences)


def _fuse(advice: Advice) -> Iterator[str]:
    first, *others = (f"{the(name)} ({advice.models[name].model})" for name in advice.order)
    yield "Fuse them."
    yield f"Let {first} draft and {in_words(others)} assist, by {_method(advice)}."
    assert advice.gain is not None and advice.p is not None
    yield (
        f"Of {advice.tested} questions that had no part in choosing it, it had {_right(advice, 'fused')} right, and "
        f"the better model alone ({the(advice.model)}) {_right(advice, advice.model)}: "
        f"a gain of {_points(advice.gain)}, p = {advice.p:.2g}."
    )
    yield f"It had the most right answers of {_ways(advice)} on {advice.chose} other questions."
    yield from _cost(advice)


def _alone(advice: Advice) -> Iterator[str]:
    others = [name for name in advice.models if name != advice.model]
    theirs = [f"{the(name)} alone {_right(advice, name)}" for name in others]
    yield f"Use {the(advice.model)} ({advice.models[advice.model].model}) alone."
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
            f"{in_words([f'{the(advice.model)} alone {_right(advice, advice.model)}', *theirs])}: "
            f"{_points(advice.gain)}, which is not more than chance (p = {advice.p:.2g})."
        )
    questions = advice.tested or advice.others
    gain = f"a gain of less than {100 * _LEAST_WON / questions:.0f} points" if questions >= _LEAST_WON else "any gain"
    yield f"{counted(questions, 'question')} cannot show {gain}; more of them would."


def _right(advice: Advice, name: str) -> str:
    return f"{advice.right[name]} ({advice.accuracy[name].value:.0%})"


def _ways(advice: Advice) -> str:
    return counted(advice.tried, "way") + " to fuse"


def _points(gain: Estimated) -> str:
    return f"{100 * gain.value:+.0f} points (95 % interval {100 * gain.low:+.0f} to {100 * gain.high:+.0f})"


def _method(advice: Advice) -> str:
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


def _cost(advice: Advice) -> Iterator[str]:
    fused, alone = advice.bills.get("fused"), advice.bills.get(advice.model)
    if fused is None or alone is None:
        return
    words = f"An answer takes {fused.requests:.1f} requests and bills {fused.billed:.0f} tokens"
    if alone.billed:
        words += f", {fused.billed / alone.billed:.1f} times those of {the(advice.model)} alone"
    if fused.seconds and alone.seconds:
        words += f", and {fused.seconds / alone.seconds:.1f} times its time"
    if fused.money is not None and alone.money is not None:
        words += f"; a thousand answers cost {1000 * fused.money:.2f}, and {1000 * alone.money:.2f} alone"
    yield f"{words}."


def _doubts(advice: Advice) -> Iterator[str]:
    """Sentences on whether the models doubt where they are wrong, and what to try where they do not."""
    missed: list[str] = []
    for name in advice.models:
        one = advice.doubts.get(name)
        if one is None:
            yield f"{the(name).capitalize()} does not report its probabilities: where its doubts sit is not known."
        elif one.wrong:
            yield (
                f"{the(name).capitalize()} alone was wrong in {one.wrong} of {counted(one.answers, 'answer')}, and in "
                f"{one.sure} of these it was sure of every token (0.5 or more)."
            )
            if one.sure > _MANY * one.wrong:
                missed.append(name)
    if not missed:
        if any(one.wrong for one in advice.doubts.values()):
            yield "So the doubts sit where the errors are, as the paper's rule (alpha = 0.5) needs."
        return
    who = in_words([the(name) for name in missed])
    yield (
        f"Where {who} drafts, the paper's rule (alpha = 0.5) asks nobody at these errors; alpha = beta = 1, "
        "surprise and average look there, too."
    )
