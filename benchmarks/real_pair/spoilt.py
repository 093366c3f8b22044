"""Answers that a fusion spoils (the draft alone is right, the fusion wrong), grouped by kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from benchmarks.report import Table
from cosd_api.apps.comparison.standings import Comparison, Standing

Kind = Literal["a value that neither wrote", "a word that neither wrote", "the assistant's words", "cut or repeated"]

_WORD = re.compile(r"\w+")


def kind_of(fused: str, draft: str, assistant: str, *, cut: bool) -> Kind:
    """The kind of a spoilt answer: one that the draft alone got right and the fusion got wrong.

    Args:
        fused: the fused answer.
        draft: the draft's own answer.
        assistant: the assistant's own answer.
        cut: whether the fused answer ended at the token limit.
    """
    if cut:
        return "cut or repeated"
    new = [*(Counter(_WORD.findall(fused)) - Counter(_WORD.findall(draft)) - Counter(_WORD.findall(assistant)))]
    if any(one[0].isdigit() or one[0].isupper() for one in new):
        return "a value that neither wrote"
    return "a word that neither wrote" if new else "the assistant's words"


def sorted_cases(several: Sequence[Comparison]) -> Table:
    """For each way, the number of wrong draft answers that it puts right, and of right ones that it spoils, by kind.

    The last column counts the spoilt answers in which the draft's probability of a replaced token was higher than the
    assistant's probability of the replacement. A rule with beta = 1 would have kept that token.
    """
    counts: dict[str, Counter[str]] = {}
    for found in several:
        for one in found.standings:
            if one.kind == "method" and one.answered:
                counts.setdefault(one.name, Counter()).update(_cases(found, one))
    columns = ("put right", "spoilt", *_KINDS, _LESS_SURE)
    rows: list[list[Any]] = [[name, *(count[column] for column in columns)] for name, count in counts.items()]
    return Table("Spoilt answers, by kind", ["", *columns], rows)


def _cases(found: Comparison, one: Standing) -> Iterator[str]:
    """Yield the columns in which the answers of a way are counted."""
    names = [*found.models]
    draft = names[one.place(names)]
    other = next(name for name in names if name != draft)
    alone = {name: found.answers_of(name) for name in names}
    for key, answer in found.answers_of(one.name).items():
        before, theirs = alone[draft].get(key), alone[other].get(key)
        if before is None or theirs is None or bool(before.right) == bool(answer.right):
            continue
        if answer.right:
            yield "put right"
            continue
        yield "spoilt"
        yield kind_of(answer.text, before.text, theirs.text, cut=answer.finish_reason == "length")
        if any((place.prob or 0.0) < (place.draft_prob or 0.0) for place in answer.replaced):
            yield _LESS_SURE


_LESS_SURE = "by a less probable word"
_KINDS: tuple[Kind, ...] = (
    "a value that neither wrote",
    "a word that neither wrote",
    "the assistant's words",
    "cut or repeated",
)
