"""Baselines that are made after answers to the development questions: samples that vote, and a coin for a verifier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cosd_api.comparison.answers import GradedAnswer
from cosd_api.comparison.asking import Asking
from cosd_api.comparison.contestants import (
    COSD,
    SELF_CONSISTENCY,
    Contestant,
    LeftOut,
    baselines_of,
    random_gate,
    self_consistency,
)
from cosd_api.comparison.forecast import MOST_SAMPLES, equal_bill
from cosd_api.comparison.gathering import gathered_so_far
from cosd_api.comparison.grading import Grader
from cosd_api.comparison.prices import Price
from cosd_api.comparison.standings import better_of
from cosd_api.training.dataset import Example

__all__ = ["Baselines"]


@dataclass(frozen=True, slots=True)
class Baselines:
    """The baselines of a run that follow from answers.

    Attributes:
        run: the run.
        held: the development questions.
        test: the test questions.
        wanted: all questions.
        make: whether there are to be any.
    """

    run: Asking
    held: Sequence[Example]
    test: Sequence[Example]
    wanted: Sequence[Example]
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
