"""The tables of docs/evidence.md and of the README, from the kept answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from benchmarks.real_pair.kept import ALL, kept, read
from benchmarks.real_pair.outcomes import points
from benchmarks.real_pair.questions import COUNTS, FAMILIES, family_of, question_of, questions, training_questions
from benchmarks.real_pair.spoilt import sorted_cases
from benchmarks.report import Cell, Table, bare, between
from cosd_api.comparison.result import Comparison, standing_of
from cosd_api.comparison.standings import Standing

ROUTER = "router on words"
_COSTS = ("billed", "uncached", "x the draft's time")


def families(cell: str, seed: int) -> Table:
    """Right answers in per cent by each way, of all test questions and of each family, and what an answer takes."""
    found = read(kept(cell, seed))
    whole = found[ALL]
    rows: list[list[Cell]] = []
    for one in whole.standings:
        if not one.answered:
            continue
        shares = [_share(standing_of(found[family], one.name)) for family in FAMILIES]
        apart = [points(one.differences[name]) if name in one.differences else "" for name in whole.models]
        rows.append([one.name, *shares, _share(one), *apart, *_costs(one, whole)])
    if cell == "complementary":
        rows.append([ROUTER, *_router(whole), *[""] * (len(whole.models) + len(_COSTS))])
    columns = ["", *FAMILIES, "all", *(f"to {name}" for name in whole.models), *_COSTS]
    models = " drafts, ".join(one.model for one in whole.models.values())
    return Table(f"{cell}, seed {seed}: {models} assists", columns, rows)


def _share(one: Standing | None) -> str:
    return "" if one is None or not one.answered else f"{100 * one.accuracy.value:.1f}"


def _costs(one: Standing, whole: Comparison) -> list[str]:
    draft = whole[one.first or ("assistant" if one.reverse else "draft")]
    uncached = sum(one.read.values()) - sum(one.cached.values()) + sum(one.written.values())
    times = "" if one.seconds is None or not draft.seconds else f"{one.seconds / draft.seconds:.1f}"
    return ["" if one.billed is None else f"{one.billed:,.0f}", f"{uncached:,.0f}", times]


def _router(whole: Comparison) -> list[str]:
    """Right answers of the specialist that a classifier of training questions chooses by a question's words."""
    chosen = router()
    right: dict[str, list[bool]] = {family: [] for family in FAMILIES}
    answers = {name: whole.answers_of(name) for name in whole.models}
    draft, assistant = answers
    for one in questions("test", COUNTS):
        name = draft if chosen(question_of(one)) else assistant
        if one.key in answers[name]:
            right[family_of(one)].append(bool(answers[name][one.key].right))
    shares = [_mean(right[family]) for family in FAMILIES]
    return [*shares, _mean([one for several in right.values() for one in several])]


def _mean(right: Sequence[bool]) -> str:
    return f"{100 * sum(right) / len(right):.1f}" if right else ""


@cache
def router() -> Callable[[str], bool]:
    """A function that tells of a question whether `products` is to answer it: a logistic regression on words."""
    several: Mapping[str, str] = training_questions(2000)
    model = make_pipeline(CountVectorizer(ngram_range=(1, 2)), LogisticRegression(max_iter=1000))
    model.fit([*several], [family == "facts" for family in several.values()])

    def chosen(question: str) -> bool:
        return bool(model.predict([question])[0])

    return chosen


# The documents.

ROOT = Path(__file__).parents[2]
_SHOWN = {"draft": "`products` alone", "assistant": "`numbers` alone"}
_README = ("draft", "assistant", ROUTER, "cosd", "cosd-0.9-1", "cosd-1-1", "average")


def written(seed: int = 1) -> dict[Path, str]:
    """The documents with the tables of the kept runs in their places."""
    whole = families("complementary", seed)
    evidence = ROOT / "docs" / "evidence.md"
    text = _put(evidence.read_text(encoding="utf-8"), "pair", bare(_named(whole)))
    text = _put(text, "seam", bare(sorted_cases(read(kept("complementary", seed))[ALL])))
    readme = ROOT / "README.md"
    return {
        evidence: text,
        readme: _put(readme.read_text(encoding="utf-8"), "pair", bare(_of_readme(whole))),
    }


def _named(table: Table) -> Table:
    return replace(table, rows=[[_SHOWN.get(str(row[0]), row[0]), *row[1:]] for row in table.rows])


def _of_readme(whole: Table) -> Table:
    """Who answers, each family's right answers, and the time."""
    at = [*range(1 + len(FAMILIES) + 1), whole.columns.index(_COSTS[-1])]
    rows = [[row[one] for one in at] for row in _named(whole).rows if row[0] in {*map(_label, _README)}]
    return Table("", [whole.columns[one] for one in at], rows)


def _label(name: str) -> str:
    return _SHOWN.get(name, name)


def _put(text: str, name: str, shown: str) -> str:
    return between(text, name, shown, "python -m benchmarks.real_pair --page")
