"""The page of the laboratory, made from what was kept: docs/laboratory.md, and its figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.lab.analysis import (
    Row,
    accuracy,
    calibration_error,
    caught,
    difference,
    gain,
    itself,
    of_tasks,
    places,
    sure_and_wrong,
    table,
    ways,
)
from benchmarks.lab.beyond import mended
from benchmarks.lab.claims import CLAIMS, CONTROLS, Claim, Evidence, Scenarios
from benchmarks.lab.figure import draw
from benchmarks.lab.findings import findings
from benchmarks.lab.numbers import interval, percent, points
from benchmarks.lab.plan import BACK, LENGTHS
from benchmarks.lab.printed import BENCHMARKS, PRINTED, PrintedTable
from benchmarks.lab.protocol import CELLS, FOLDER, HEADLINE, SIZES, Cell, protocol_hash
from benchmarks.lab.runs import ALONE, Run, RunsFile
from benchmarks.report import Table
from cosd_api.comparison.contestants import BEST, ORACLE, RANDOM
from cosd_api.comparison.statistics import wilson
from cosd_api.wording import counted

__all__ = ["page", "scenarios", "tables", "write_pages"]

_WORDS = FOLDER / "page.md"
_TABLES = FOLDER / "tables.md"
_CONTROL = {"seen": "as predicted", "reversed": "not as predicted", "not seen": "undecided", "not tested": "not tested"}

SHOWN = ("cosd", "cosd-1-1", "cosd-surprise", "cosd-diff", "average", "rerank", RANDOM)
"""Ways to answer in the summary, where they were run."""


def scenarios(runs: Sequence[Run]) -> Scenarios:
    """The runs by scenario and by cell, and those of tasks apart from the headline by cell and task."""
    found: dict[str, list[Run]] = {}
    for cell in CELLS:
        for name in (cell.name, cell.name + BACK):
            mine = [one for one in runs if one.cell == name]
            headline = of_tasks(mine, HEADLINE)
            if headline:
                found[name] = headline
                found.setdefault(cell.scenario, []).extend(headline)
            for one in mine:
                if one.task not in HEADLINE:
                    found.setdefault(f"{name}, {one.task}", []).append(one)
    return found


def page(file: RunsFile) -> str:
    """The page."""
    found = scenarios(file.runs)
    names = _named(found)
    shown: Mapping[str, Iterable[Table]] = {
        "alone": [_alone(names, found)],
        "summary": [_summary(names, found), _single(names, found), _apart(found)],
        "controls": [_controls(found)],
        "surprise": [_surprise(names, found)],
        "beyond": [_beyond(names, found)],
        "calibration": [_calibration(names, found)],
        "claims": [_claims(CLAIMS, found)],
    }
    return _filled(_WORDS, file, found, shown)


def tables(file: RunsFile) -> str:
    """The page of all tables that only some readers want."""
    found = scenarios(file.runs)
    names = _named(found)
    shown: Mapping[str, Iterable[Table]] = {
        "ways": [_ways(name, cell, found[name]) for name, cell in names.items()],
        "places": [_places(names, found)],
        "miniature": [*(_beside(one, found) for one in PRINTED), _lengths(found)],
        "likelihoods": [_likelihoods(file)],
    }
    return _filled(_TABLES, file, found, shown)


def _named(found: Scenarios) -> dict[str, Cell]:
    """The cells that were run, by name; those with their models exchanged too."""
    return {name: cell for cell in CELLS for name in (cell.name, cell.name + BACK) if name in found}


def _filled(words: Path, file: RunsFile, found: Scenarios, shown: Mapping[str, Iterable[Table]]) -> str:
    several = {name: _shown(one) for name, one in shown.items()}
    return words.read_text(encoding="utf-8").format(**_about(file, found), **several)


def _shown(several: Iterable[Table]) -> str:
    shown = [one.markdown().removeprefix("### \n\n") for one in several if one.rows]
    return "\n\n".join(shown) or "Nothing was run for this."


# Numbers.


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _about(file: RunsFile, found: Scenarios) -> dict[str, str]:
    ran = {run.cell.removesuffix(BACK) for run in file.runs}
    size = SIZES[file.about["size"]]
    return {
        **{name: str(file.about[name]) for name in ("size", "items", "date", "hash", "machine")},
        "minutes": f"{file.about['seconds'] / 60:.0f}",
        "seeds": counted(len({run.seed for run in file.runs}), "training seed"),
        "answers": f"{sum(len(run.comparison.answers) for run in file.runs):,}",
        "test": str(max((run.comparison.questions for run in file.runs), default=0)),
        "development": str(max((len(run.comparison.development) for run in file.runs), default=0)),
        "ran": ", ".join(f"`{cell.name}`" for cell in CELLS if cell.name in ran),
        "findings": findings(FOLDER / "results" / f"{size.name}.md", file, found),
        "planned": str(size.items),
        "analysis": "that of the protocol" if file.about["hash"] == protocol_hash() else "changed after the run",
        "to_come": "; ".join(file.about["to_come"]) or "nothing",
        "not_run": ", ".join(f"`{one.name}`" for one in CELLS if one.name not in size.cells) or "none",
    }


# Tables.


def _alone(names: Mapping[str, Cell], found: Scenarios) -> Table:
    """The models alone, task by task: where there is room for a gain, and where there is none."""
    tasks = [task for task in HEADLINE if any(of_tasks(runs, [task]) for runs in found.values())]
    rows: list[list[str | None]] = []
    for name in names:
        if not name.endswith(BACK):
            single = [of_tasks(found[name], [task]) for task in tasks]
            rows.append(
                [
                    name,
                    *(
                        " / ".join(percent(accuracy(one, way).value) for way in ALONE) if one else None
                        for one in single
                    ),
                ]
            )
    return Table("", ["draft / assistant", *tasks], rows)


def _summary(names: Mapping[str, Cell], found: Scenarios) -> Table:
    shown = [way for way in SHOWN if any(way in ways(found[name]) for name in names)]
    rows: list[list[str | None]] = []
    for name in names:
        runs = found[name]
        alone = [percent(accuracy(runs, way).value) for way in (*ALONE, BEST, ORACLE)]
        gains = [points(gain(runs, way)) if way in ways(runs) else None for way in shown]
        rows.append([name, *alone, percent(difference(runs, ORACLE, BEST).value), *gains])
    return Table("", ["cell", "draft", "assistant", "better of each task", "oracle", "room", *shown], rows)


def _single(names: Mapping[str, Cell], found: Scenarios) -> Table:
    """Against one model for all tasks."""
    shown = [way for way in SHOWN if any(way in ways(found[name]) for name in names)]
    rows: list[list[str | None]] = []
    for name in names:
        runs = found[name]
        better = better_overall(runs)
        apart = [points(difference(runs, way, better)) if way in ways(runs) else None for way in shown]
        rows.append([name, f"{better}: {percent(accuracy(runs, better).value)}", *apart])
    title = "Against the better single model for all tasks, in points"
    return Table(title, ["cell", "better model", *shown], rows)


def better_overall(runs: Sequence[Run]) -> str:
    """The model that is better over all tasks on the development questions; of equals the draft."""

    def right(model: str) -> float:
        several = [
            [bool(one.right) for one in run.comparison.answers_of(model, development=True).values()] for run in runs
        ]
        return sum(sum(one) / len(one) for one in several)

    return max(ALONE, key=right)


def _apart(found: Scenarios) -> Table:
    """Tasks that are apart from the headline, such as questions that need both models."""
    several = {name: runs for name, runs in found.items() if ", " in name and name.split(", ")[-1] not in BACK}
    shown = [way for way in SHOWN if any(way in ways(runs) for runs in several.values())]
    rows: list[list[str | None]] = [
        [name, *(percent(accuracy(runs, way).value) if way in ways(runs) else None for way in (*ALONE, *shown))]
        for name, runs in several.items()
    ]
    return Table("Apart from the headline: right answers in per cent", ["cell and task", *ALONE, *shown], rows)


def _controls(found: Scenarios) -> Table:
    rows: list[list[str]] = []
    if alike := found.get("n1"):
        rows.append(["N1", "a model with itself: equal text, no replacement", *_itself(alike)])
    for one in CONTROLS:
        evidence = one.measure(found)
        rows.append([one.source, one.words, _found(evidence), _CONTROL[evidence.verdict]])
    return Table("", ["control", "predicted", "found, in points", ""], rows)


def _found(one: Evidence, *, bound: bool = False) -> str:
    """The measurement in points, and why it may decide nothing."""
    shown = f"{one.what}: {points(one.effect)}" if one.effect is not None else ""
    if bound and one.bound and shown:
        shown += f" (to be above {100 * one.bound:+.0f})"
    return "; ".join(filter(None, [shown, one.undecidable]))


def _itself(runs: Sequence[Run]) -> tuple[str, str]:
    """A model with itself: what was found, and the verdict; near ties explain a failure, and do not mend it."""
    one = itself(runs)
    words = f"{counted(one.replaced, 'replaced place')} and {counted(one.changed, 'other text')}"
    words += f" in {one.answers:,} answers"
    if one.replaced:
        words += f"; {one.ties} of these places are near ties, {counted(one.unexplained, 'answer')} without"
    if not one.answers:
        return words, "not run"
    return words, "not as predicted" if one.replaced or one.changed else "as predicted"


def _surprise(names: Mapping[str, Cell], found: Scenarios) -> Table:
    rows: list[list[str]] = []
    for name, cell in names.items():
        by_way = {row.way: row for row in table(found[name])}
        if "cosd-surprise" not in by_way or cell.scenario == "control":
            continue
        for way, row in by_way.items():
            if way.startswith(("cosd", "rule 0.9", "average", RANDOM)):
                one = caught(found[name], way)
                parts = [f"{one.mended} of {one.wrong}", f"{one.spoilt} of {one.right}"]
                rows.append([f"{name}, {way}", *parts, f"{row.requests:.1f}", f"{row.tokens:.0f}"])
    columns = ["", "sure and wrong, put right", "sure and right, spoilt", "requests", "tokens billed"]
    return Table("", columns, rows)


def _beyond(names: Mapping[str, Cell], found: Scenarios) -> Table:
    """The answers that were put right, and those of them that took a replacement where the draft was sure."""
    rows: list[list[str | int]] = []
    for name, cell in names.items():
        for way in ("cosd-1-1", "cosd-diff", "cosd-surprise") if cell.scenario != "control" else ():
            one = mended(found[name], way)
            if one.answers:
                rows.append([f"{name}, {way}", one.answers, one.sure, one.tokens])
    columns = ["", "answers put right", "with a sure token replaced", "such tokens"]
    return Table("", columns, rows)


def _calibration(names: Mapping[str, Cell], found: Scenarios) -> Table:
    rows: list[list[str]] = []
    for name in names:
        for model in ALONE if not name.endswith(BACK) else ():
            sure, wrong = sure_and_wrong(found[name], model)
            share = f"{sure} of {wrong}" + (f" ({100 * sure / wrong:.0f} %)" if wrong else "")
            right, error = accuracy(found[name], model), calibration_error(found[name], model)
            rows.append([f"{name}, {model}", interval(right), percent(error), share])
    return Table("", ["model", "right", "calibration error", "of the wrong answers, nowhere unsure"], rows)


def _places(names: Mapping[str, Cell], found: Scenarios) -> Table:
    rows: list[list[str | int]] = []
    for name in names:
        for way in ("cosd", "cosd-1-1", "cosd-surprise", "cosd-tree", RANDOM):
            one = places(found[name], way) if way in ways(found[name]) else None
            if one is not None and one.places:
                parts = [one.places, one.assistant, one.draft, one.neither, one.unknown]
                rows.append([f"{name}, {way}", *parts, one.answers.won, one.answers.lost])
    columns = ["", "places", "assistant", "draft", "neither", "unknown", "answers put right", "spoilt"]
    return Table("", columns, rows)


def _ways(name: str, cell: Cell, runs: Sequence[Run]) -> Table:
    tasks = [task for task in HEADLINE if of_tasks(runs, [task])]
    lines = [
        _way(row, [percent(accuracy(of_tasks(runs, [task]), row.way).value) for task in tasks]) for row in table(runs)
    ]
    columns = ["way", *tasks, "mean", "gain", "won, lost", "p", "Holm", "kept", "requests", "tokens", "ms a token"]
    models = (cell.draft, cell.assistants[0])
    draft, assistant = reversed(models) if name.endswith(BACK) else models
    return Table(f"{name}: {draft} drafting, {assistant} asked", columns, lines)


def _way(row: Row, by_task: Sequence[str]) -> list[str]:
    return [
        row.way,
        *by_task,
        interval(row.accuracy),
        points(row.gain) if row.gain is not None else "",
        f"{row.counts.won}, {row.counts.lost}" if row.counts is not None else "",
        _p(row.p),
        _p(row.holm),
        "" if row.acceptance is None else f"{row.acceptance:.2f}",
        f"{row.requests:.1f}",
        f"{row.tokens:.0f}",
        f"{row.milliseconds:.1f}",
    ]


def _beside(one: PrintedTable, found: Scenarios) -> Table:
    runs = [run for run in found.get(one.scenario, ()) if run.task in one.tasks and not run.cell.endswith(BACK)]
    rows: list[list[str | None]] = [
        [f"printed: {name}", *(f"{value:.1f}" for value in row)] for name, row in one.rows.items()
    ]
    for cell, task in dict.fromkeys((run.cell, run.task) for run in runs):
        mine = [run for run in runs if (run.cell, run.task) == (cell, task)]
        stands = f" (for {BENCHMARKS[task]})" if task in BENCHMARKS else ""
        shown = [interval(accuracy(mine, way)) if way in ways(mine) else None for way in one.columns.values()]
        rows.append([f"ours: {cell}, {task}{stands}", *shown])
    return Table(one.title, ["", *one.columns], rows if runs else [])


def _lengths(found: Scenarios) -> Table:
    """The paper's table 7."""
    rows: list[list[str | None]] = []
    for limit in LENGTHS:
        drafts = {row.way: row.iterations for row in table(found.get(f"a-b, report {limit}", ()))}
        if drafts:
            shown = [drafts.get(way) for way in _LONG]
            rows.append([f"{limit} tokens", *(None if one is None else f"{one:.2f}" for one in shown)])
    printed = (
        "Printed, of CoSD-Rule, CoSD-Tree and speculative decoding (its columns' order is that of its other tables): "
        "11.41, 13.58, 9.77 at 128 tokens; 15.29, 16.01, 14.20 at 256; 21.23, 21.95, 18.51 at 512."
    )
    return Table("CoSD, Table 7: mean number of drafts by the limit of an answer", ["", *_LONG], rows, [printed])


_LONG = ("cosd", "cosd-tree", "cosd-1-1", "cosd-surprise")


def _likelihoods(file: RunsFile) -> Table:
    """Options chosen by their likelihood, and the perplexity of right answers."""
    rows: list[list[str]] = []
    for one in file.about["likelihoods"]:
        for way, found in one["ways"].items():
            chosen = interval(wilson(found["right"], found["questions"])) if one["task"] == "choice" else ""
            rows.append(
                [f"{one['cell']}, {one['task']}, seed {one['seed']}", way, chosen, f"{found['perplexity']:.3f}"]
            )
    return Table("", ["texts", "way", "right option is the likeliest", "perplexity of a token"], rows)


def _claims(claims: Sequence[Claim], found: Scenarios) -> Table:
    rows: list[list[str]] = []
    for one in claims:
        evidence = one.measure(found)
        rows.append([one.source, one.words, _found(evidence, bound=True), f"**{evidence.verdict}**"])
    return Table("", ["source", "claim", "found, in points", ""], rows)


def write_pages(file: RunsFile, docs: Path) -> list[Path]:
    """Write the page, its tables and its figure; returns their files."""
    written = [docs / "laboratory.md", docs / "laboratory-tables.md", docs / "laboratory.svg"]
    written[0].write_text(page(file), encoding="utf-8")
    written[1].write_text(tables(file), encoding="utf-8")
    draw(scenarios(file.runs), written[2])
    return written
