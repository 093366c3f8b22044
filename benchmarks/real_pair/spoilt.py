"""Answers that a fusion spoils: the draft alone has them right, and the fusion has not. They are sorted by kind."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Literal

from benchmarks.report import Table
from cosd_api.comparison.result import Comparison

Kind = Literal["a value that neither wrote", "a word that neither wrote", "the assistant's words", "cut or repeated"]

_WORD = re.compile(r"\w+")


def kind_of(fused: str, draft: str, assistant: str, *, cut: bool) -> Kind:
    """The kind of an answer that the draft alone had right and the fusion has wrong.

    Args:
        fused: the fused answer.
        draft: the draft's own.
        assistant: the assistant's own.
        cut: whether the fused one ended at the limit of tokens.
    """
    if cut:
        return "cut or repeated"
    new = [*(Counter(_WORD.findall(fused)) - Counter(_WORD.findall(draft)) - Counter(_WORD.findall(assistant)))]
    if any(one[0].isdigit() or one[0].isupper() for one in new):
        return "a value that neither wrote"
    return "a word that neither wrote" if new else "the assistant's words"


def sorted_cases(found: Comparison) -> Table:
    """For each way, the answers of its draft that it has put right, and those that it has spoilt, by kind."""
    rows: list[list[Any]] = []
    names = [*found.models]
    alone = {name: found.answers_of(name) for name in names}
    for one in found.standings:
        if one.kind != "method" or not one.answered:
            continue
        draft = one.first or names[int(one.reverse)]
        other = next(name for name in names if name != draft)
        answers = found.answers_of(one.name)
        kinds = Counter(
            kind_of(answer.text, alone[draft][key].text, alone[other][key].text, cut=answer.finish_reason == "length")
            for key, answer in answers.items()
            if alone[draft][key].right and not answer.right
        )
        gained = sum(bool(answer.right) and not alone[draft][key].right for key, answer in answers.items())
        rows.append([one.name, gained, sum(kinds.values()), *(kinds[kind] for kind in _KINDS)])
    return Table("Spoilt answers, by kind", ["", "put right", "spoilt", *_KINDS], rows)


_KINDS: tuple[Kind, ...] = (
    "a value that neither wrote",
    "a word that neither wrote",
    "the assistant's words",
    "cut or repeated",
)
