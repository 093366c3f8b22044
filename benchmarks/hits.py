"""The hit rate of hedges on two bundled models. A hedge hits if the assistant writes the hedge's first token.

After a hit, the answer continues without a restart of the draft. Each model drafts in turn, on questions that it cannot
answer alone, because a hedge can hit only if there is a replacement. The two models share a tokenizer, because only
single tokens are hedged. Timing does not affect hits, so no network delay is simulated, and several questions are asked
at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.prompts import MAX_TOKENS
from benchmarks.report import Cell, Options, Table
from cosd_api import Fusion, FusionResult, RuleVerifier, Tuning
from cosd_api.demo.questions import sample
from cosd_api.extend import FusionOptions

__all__ = ["ASKED", "Hits", "hits"]

ASKED = {"sums": ("mixed-translation", "translation"), "words": ("mixed-translation", "sum", "difference")}
"""For each draft model, kinds of questions: mixed questions, and questions that only the other model can answer."""

HEDGES = (1, 2, 3)
COUNT, QUICK = 100, 3


@dataclass
class Hits:
    """Hits and misses of hedges on some answers.

    Attributes:
        restarts: replacements after which the text continued.
        hits: hedges that became the new draft.
        started: number of all hedges.
        drafted: number of all tokens that the draft wrote, including tokens of hedges and discarded tokens.
        written: number of tokens in the answers.
        right: number of answers that equal the answers written without hedges.
        answers: number of answers.
    """

    restarts: int = 0
    hits: int = 0
    started: int = 0
    drafted: int = 0
    written: int = 0
    right: int = 0
    answers: int = 0

    def add(self, result: FusionResult, text: str) -> None:
        """Add one answer; it is right if it equals `text`."""
        self.restarts += (result.iterations or 1) - 1
        self.hits += result.hedge_hits
        self.started += result.hedged_drafts
        self.drafted += result.drafted_tokens
        self.written += len(result.tokens)
        self.right += result.text == text
        self.answers += 1


async def hits(urls: Mapping[str, str], options: Options) -> Table:
    """The table for both directions and every kind of question."""
    count = QUICK if options.quick else COUNT
    rows: list[list[Cell]] = []
    for draft, assistant in (("sums", "words"), ("words", "sums")):
        options.say(f"live: hits of hedges, {draft} drafting")
        kinds = ASKED[draft]
        prompts = [question.prompt for kind in kinds for question in sample(kind, count, 7)]
        plain = await _answers(urls[draft], urls[assistant], 0, prompts)
        told = {hedge: await _answers(urls[draft], urls[assistant], hedge, prompts) for hedge in HEDGES}
        for place, kind in enumerate(kinds):
            part = slice(place * count, (place + 1) * count)
            sums = {hedge: Hits() for hedge in HEDGES}
            for hedge in HEDGES:
                for result, reference in zip(told[hedge][part], plain[part], strict=True):
                    sums[hedge].add(result, reference.text)
            spent = sum(result.drafted_tokens for result in plain[part])
            rows.append(_row(f"{draft}: {kind}", sums, spent))
    columns = ["draft: questions", "restarts", *(f"hit rate: hedge={hedge}" for hedge in HEDGES)]
    columns += ["drafted an answer: no hedge", *(f"hedge={hedge}" for hedge in HEDGES), "equal texts"]
    about = (
        f"{count} questions of each kind. *Restarts* counts the replacements after which an answer continues, over all "
        "answers. The hit rate is the share of these replacements after which a hedge continued the answer. *Drafted "
        "an answer* is the mean number of tokens that the draft wrote for an answer, including hedges and discarded "
        "tokens. *Equal texts* counts, over all three values of `hedge`, the answers with the same text as without "
        "hedges."
    )
    why = (
        "Each model has learned only that it does not know the other model's facts, so its second and later choices "
        "are further guesses."
    )
    return Table("Live: how often a hedge hits (llama.cpp)", columns, rows, [about, why])


def _row(name: str, sums: Mapping[int, Hits], spent: int) -> list[Cell]:
    first = sums[HEDGES[0]]
    rates = [f"{one.hits / one.restarts:.0%}" if one.restarts else None for one in sums.values()]
    drafted = [f"{one.drafted / one.answers:.1f}" for one in sums.values()]
    equal = f"{sum(one.right for one in sums.values())} of {sum(one.answers for one in sums.values())}"
    return [name, first.restarts, *rates, f"{spent / first.answers:.1f}", *drafted, equal]


async def _answers(draft: str, assistant: str, hedge: int, prompts: Sequence[str]) -> list[FusionResult]:
    settings: FusionOptions = {"verifier": RuleVerifier.paper(), "unit": "token", "tuning": Tuning(hedge=hedge)}
    async with Fusion(draft=draft, assistant=assistant, **settings) as fusion:
        return [result async for result in fusion.map(prompts, concurrency=4, max_tokens=MAX_TOKENS)]
