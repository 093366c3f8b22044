"""The tables in docs/evidence.md, the README and results/tables.md, from the kept answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.real_pair import own_messages
from benchmarks.real_pair.cells import FEW
from benchmarks.real_pair.kept import ALL, RESULTS, kept, read
from benchmarks.real_pair.outcomes import better, points, share_of
from benchmarks.real_pair.plot import drawn, label
from benchmarks.real_pair.questions import FAMILIES
from benchmarks.real_pair.router import ROUTER
from benchmarks.real_pair.seam import candidate_table, kept_rules, read_tried, rules_table
from benchmarks.real_pair.spoilt import sorted_cases
from benchmarks.real_pair.trainings import (
    BOTH_WAYS,
    GEMMA,
    TRAININGS,
    by_training,
    literal,
    pairs_apart,
    rival,
    scenario,
    tested,
    together,
    worth,
)
from benchmarks.report import Cell, Table, bare, between, noted
from cosd_api.apps.comparison.contestants import ORACLE, REVERSED
from cosd_api.apps.comparison.standings import Comparison, Standing

_COSTS = ("billed", "uncached", "x the draft's time")


def families(cell: str, seed: int) -> Table:
    """For each way, right answers in per cent, by family and for all test questions, and the costs of an answer."""
    found = read(kept(cell, seed))
    whole = found[ALL]
    rows: list[list[Cell]] = []
    for one in whole.standings:
        if not one.answered:
            continue
        shares = [_share(found[family], one.name) for family in FAMILIES]
        apart = [points(one.differences[name]) if name in one.differences else "" for name in whole.models]
        rows.append([one.name, *shares, _share(whole, one.name), *apart, *_costs(one, whole)])
    columns = ["", *FAMILIES, "all", *(f"vs {name}" for name in whole.models), *_COSTS]
    models = " drafts, ".join(one.model for one in whole.models.values())
    return Table(f"{cell}, seed {seed}: {models} assists", columns, rows)


def _share(found: Comparison, name: str) -> str:
    several = [one for one in found.standings if one.name == name and one.answered]
    return f"{100 * several[0].accuracy.value:.1f}" if several else ""


def _costs(one: Standing, whole: Comparison) -> list[str]:
    names = [*whole.models]
    draft = whole[names[one.place(names)]]
    uncached = sum(one.read.values()) - sum(one.cached.values()) + sum(one.written.values())
    times = "" if one.seconds is None or not draft.seconds else f"{one.seconds / draft.seconds:.1f}"
    return ["" if one.billed is None else f"{one.billed:,.0f}", f"{uncached:,.0f}", times]


# The documents.

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "evidence.svg"
_LABELS = {
    "draft": "`products` alone",
    "assistant": "`numbers` alone",
    "cosd": "the paper's rule (0.5, 0.5)",
    "cosd-0.9-1": "the default (0.9, 1)",
    "cosd-0.97-1": "(0.97, 1)",
    "cosd-1-1": "(1, 1)",
    "cool": "Cool-Fusion",
    ORACLE: "either model right: the ceiling of whole answers",
    REVERSED: ", `numbers` drafts",
}
_LABELS |= {literal(one): f"{_LABELS[one]}, literally" for one in FEW[:3]}
_FORGETTING = {"draft": "SmolLM2 alone", "assistant": "`facts-only` alone", REVERSED: ", `facts-only` drafts"}
_CAPACITY = {"draft": "20 layers alone", "assistant": "all 30 layers alone", REVERSED: ", 30 layers draft"}
_SHOWN = ("draft", "assistant", ROUTER, ORACLE, *BOTH_WAYS)
_README = ("draft", "assistant", ORACLE, *sorted(FEW, key=lambda one: one != "cosd-0.9-1"))  # the default first
_TWO = ("draft", "assistant", ORACLE, *BOTH_WAYS[:4])
COMPLEMENTARY, FORGETTING = "(i) complementary knowledge", "(ii) forgetting"
CAPACITY, TOKENIZERS = "(iii) capacity", "(iv) different tokenizers"
_MORE = {
    "learned": "Verifiers learned from development questions, `products` drafts",
    "learned-reversed": "Verifiers learned from development questions, `numbers` drafts",
    "copy": "A control: a copy of `products` assists",
    "tokenizers-copy": "A control: a copy of Gemma's `numbers` assists",
    "with-base": "A control: SmolLM2 itself drafts, `products` assists",
    "other-seed": "A control: `products` of another training assists",
}
"""The titles of the further cells in results/tables.md."""
_ABOUT = (
    "The tables have right answers in per cent, differences in points, and tokens per answer. The intervals of the "
    "differences hold simultaneously for a whole table. `python -m benchmarks.real_pair --page` writes this page; "
    "[README.md](../README.md) has the protocol."
)


def scenarios() -> dict[str, Table]:
    """The tables of the paper's four scenarios, by name."""
    return {
        COMPLEMENTARY: together(),
        FORGETTING: scenario(("forgetting", 1), ("forgetting", 2), ("forgetting", 3)),
        CAPACITY: scenario(("capacity", 1), ("capacity-again", 2)),
        TOKENIZERS: scenario(*((cell, seed) for seed, cell in GEMMA.items())),
    }


def written() -> dict[Path, str]:
    """The text of each document with the tables of the kept runs inserted, and the picture, by file."""
    several = scenarios()
    whole = several[COMPLEMENTARY]
    first = scenario(("tokenizers", 1), ("tokenizers-literal", 1))
    evidence, readme = ROOT / "docs" / "evidence.md", ROOT / "README.md"
    tables = {
        "scenarios": _compared(several),
        "pair": chosen_rows(whole, _SHOWN, _LABELS),
        "tokenizers": chosen_rows(several[TOKENIZERS], _TWO, _LABELS),
        "gemma": _labelled(by_training(GEMMA, FEW[:3]), _LABELS),
        "trainings": _labelled(by_training(), _LABELS),
        "capacity": chosen_rows(several[CAPACITY], _TWO, {**_LABELS, **_CAPACITY}),
        "forgetting": chosen_rows(several[FORGETTING], _TWO, {**_LABELS, **_FORGETTING}),
        "own": _labelled(own_messages.table(), _LABELS),
        "seam": chosen_rows(sorted_cases(_comparisons(TRAININGS)), BOTH_WAYS, _LABELS),
    }
    text = evidence.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = _put(text, name, bare(table))
    pairs = _of_readme({"one tokenizer": whole, "two tokenizers": several[TOKENIZERS]})
    return {
        evidence: text,
        readme: _put(readme.read_text(encoding="utf-8"), "pair", bare(pairs)),
        RESULTS / "tables.md": _all_tables(several | {TOKENIZERS: first}),
        PICTURE: drawn(several, {**_LABELS, REVERSED: ", swapped"}),
    }


def _compared(several: Mapping[str, Table]) -> Table:
    """For each scenario, the right answers of the models alone, and how far the rules are from the better one."""
    rules = [name + turned for name in ("cosd", "cosd-0.9-1") for turned in ("", REVERSED)]
    rows: list[list[Cell]] = []
    for name, table in several.items():
        by_way, share, apart = {str(row[0]): row for row in table.rows}, share_of(table), better(table)
        alone = [by_way[one][share] for one in ("draft", "assistant", ORACLE)]
        rows.append([name, table.columns[share][5:-1], *alone, *(by_way[one][apart] for one in rules)])
    titles = [label(one, {**_LABELS, REVERSED: ", swapped"}) for one in rules]
    return Table("", ["", "questions", "draft alone", "assistant alone", "ceiling", *titles], rows)


def _comparisons(trainings: Mapping[int, str]) -> list[Comparison]:
    return [read(kept(cell, seed))[ALL] for seed, cell in trainings.items()]


def _all_tables(several: Mapping[str, Table]) -> str:
    """The page of all tables: every way for the first training, the answers that ways spoil, and the further cells."""
    spoilt = [_labelled(sorted_cases(_comparisons(one)), _LABELS) for one in (TRAININGS, GEMMA)]
    parts = ["# The real pair: all tables", _ABOUT]
    rules, candidate = rules_table(read_tried(kept_rules())), candidate_table(read_tried(kept_rules(test=True)))
    further = (
        ("Every way, training 1", _labelled(families("complementary", 1), _LABELS)),
        ("What each way puts right and spoils, one tokenizer", spoilt[0]),
        ("What each way puts right and spoils, two tokenizers", spoilt[1]),
        ("Rules at the seam, development questions", rules),
        ("Questions that only one of both pairs has right", _labelled(pairs_apart(), _LABELS)),
        ("The candidate, test questions", candidate),
        ("Asking everywhere", worth()),
        ("Tests", tested()),
    )
    parts += [f"## {title}\n\n{noted(table)}" for title, table in further]
    beside = noted(_labelled(rival(), _LABELS))
    labels = {FORGETTING: _FORGETTING, CAPACITY: _CAPACITY, TOKENIZERS: {}}
    for name, added in labels.items():
        parts.append(f"## Every way, {name}\n\n{noted(_labelled(several[name], {**_LABELS, **added}))}")
    parts.append(f"## The rival: one model with both adapters, training 1\n\n{beside}")
    for cell, title in _MORE.items():
        if kept(cell, 1).exists():
            parts.append(f"## {title}\n\n{noted(families(cell, 1))}")
    return "\n\n".join(parts) + "\n"


def _labelled(table: Table, labels: Mapping[str, str]) -> Table:
    """The table with labels instead of the names of ways, in rows and columns."""
    return replace(
        table,
        columns=[label(one, labels) for one in table.columns],
        rows=[[label(str(row[0]), labels), *row[1:]] for row in table.rows],
    )


def chosen_rows(table: Table, names: Sequence[str], labels: Mapping[str, str]) -> Table:
    """The table with only the rows of these ways, in the order of `names` and with labels."""
    rows = {str(row[0]): row for row in table.rows}
    return _labelled(replace(table, rows=[rows[one] for one in names if one in rows]), labels)


def _of_readme(pairs: Mapping[str, Table]) -> Table:
    """The README's table: for each pair of models, right answers, questions beyond the ceiling, and time."""
    columns, rows = [""], [[label(one, _LABELS)] for one in _README]
    for name, table in pairs.items():
        by_way = {str(row[0]): row for row in table.rows}
        at = [share_of(table, "both"), share_of(table), *map(table.columns.index, ("rescued:lost", "time"))]
        columns += [f"{name}: {table.columns[n]}" if n == at[0] else table.columns[n] for n in at]
        for row, way in zip(rows, _README, strict=True):
            row += [str(by_way[way][n]) if way in by_way else "" for n in at]  # `average` needs one tokenizer
    return Table("", columns, rows)


def _put(text: str, name: str, shown: str) -> str:
    return between(text, name, shown, "python -m benchmarks.real_pair --page")
