"""The pages of the laboratory, made from the kept results: benchmarks/lab/pages and docs/laboratory.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.lab.all_claims import all_claims, decided_in
from benchmarks.lab.analysis import (
    Row,
    accuracy,
    better_overall,
    calibration_error,
    caught,
    difference,
    gain,
    itself,
    of_tasks,
    places,
    replaced_tasks,
    sure_and_wrong,
    table,
    ways,
)
from benchmarks.lab.beyond import mended
from benchmarks.lab.claims import CONTROLS, PAIRS, Decided, Scenarios, decided, scenarios
from benchmarks.lab.confirmation import confirmed
from benchmarks.lab.endless import ENDLESS, long_runs
from benchmarks.lab.families import families, independent
from benchmarks.lab.figure import draw, draw_pairs
from benchmarks.lab.findings import NOTHING, findings
from benchmarks.lab.forgetting import forgetting
from benchmarks.lab.merging import parts_of
from benchmarks.lab.numbers import (
    OF_THESE,
    cost,
    evidence,
    interval,
    percent,
    points,
    share,
    trainings,
    verdict,
)
from benchmarks.lab.plan import BACK
from benchmarks.lab.printed import BENCHMARKS, PRINTED, PrintedTable
from benchmarks.lab.protocol import CELLS, FOLDER, HEADLINE, RECIPES, SIZES, Cell, protocol_hash
from benchmarks.lab.runs import ALONE, BEST, Run, RunsFile
from benchmarks.lab.studies import STUDIES, studies_of
from benchmarks.lab.study_tables import endless_tables, study_tables
from benchmarks.report import Table
from cosd_api.comparison.contestants import ORACLE, RANDOM
from cosd_api.comparison.statistics import wilson
from cosd_api.wording import counted

__all__ = ["page", "tables", "write_pages"]

_WORDS = FOLDER / "page.md"
_TABLES = FOLDER / "tables.md"
_CONTROL = {"seen": "as predicted", "reversed": "not as predicted", "not seen": "undecided", "not tested": "not tested"}

_MANY = 10

SHOWN = ("cosd", "cosd-1-1", "cosd-surprise", "cosd-diff", "average", "rerank", RANDOM)
"""The ways to answer that the summary shows, if they were run."""


def page(file: RunsFile) -> str:
    """The page of a run."""
    found = scenarios(file.runs)
    names = _named(found)
    *several, last = decided_in(file)
    added = [last] if long_runs(file.runs) else []
    shown: Mapping[str, Iterable[Table]] = {
        "alone": [_alone(names, found)],
        "summary": [_summary(names, found), _single(names, found), _apart(found)],
        "families": [_families([*found.values(), *long_runs(file.runs).values()])],
        "controls": [_controls(found), _coins(found)],
        "surprise": [_surprise(names, found)],
        "beyond": [_beyond(names, found)],
        "forgetting": forgetting(found),
        "predicted": [_predicted(names, found)],
        "calibration": [_calibration(names, found)],
        "claims": [_claims("", several), _claims("Added after the protocol was fixed", added)],
    }
    return _filled(_WORDS, file, found, shown)


def tables(file: RunsFile) -> str:
    """The page of detailed tables."""
    found = scenarios(file.runs)
    names = _named(found)
    shown: Mapping[str, Iterable[Table]] = {
        "ways": [_ways(name, cell, found[name]) for name, cell in names.items()],
        "places": [_places(names, found)],
        "miniature": [*(_beside(one, found) for one in PRINTED), *study_tables(found), *endless_tables(file.runs)],
        "likelihoods": [_likelihoods(file)],
    }
    return _filled(_TABLES, file, found, shown)


def _named(found: Scenarios) -> dict[str, Cell]:
    """The cells that were run, by name, including cells with draft and assistant swapped."""
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
    plain = {*size.cells, *(study.name for study in studies_of(size))}
    every = [*(cell.name for cell in CELLS), *(study.name for study in STUDIES), ENDLESS]
    return {
        **{name: str(file.about[name]) for name in ("size", "items", "date", "hash", "machine")},
        "minutes": _minutes(file.about["seconds"]),
        "seeds": counted(len({run.seed for run in file.runs}), "training seed"),
        "independent": counted(len(families(file.runs)), "independent training"),
        "answers": f"{sum(len(run.comparison.answers) for run in file.runs):,}",
        "test": str(max((run.comparison.questions for run in file.runs), default=0)),
        "development": str(max((len(run.comparison.development) for run in file.runs), default=0)),
        "ran": _names(name for name in every if name in ran and name in plain),
        "added": _names(name for name in every if name in ran and name not in plain),
        "parts": "; ".join(_part(one) for one in parts_of(file)),
        "findings": findings(FOLDER / "results" / f"{size.name}.md", file, found),
        "planned": str(size.items),
        "analysis": _analysis(file.about["hash"]),
        "to_come": _to_come(file.about["to_come"]),
        "name": file.about["size"],
        "not_run": _names(name for name in every if name not in ran),
    }


def _names(several: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in several) or "none"


def _minutes(seconds: float) -> str:
    return counted(round(seconds / 60), "minute")


def _part(one: Mapping[str, Any]) -> str:
    """The text about one day of a run."""
    library = f", with the library `{one['library'][:12]}`" if one["library"] else ""
    every = ", in every way of the full size" if one.get("every_way") else ""
    return f"{one['date']}, {_minutes(one['seconds'])}{library}{every}: {_names(one['cells'])}"


def _to_come(steps: Sequence[str]) -> str:
    """The text about unfinished steps: their names, or their number if there are many."""
    return "; ".join(steps) if 0 < len(steps) < _MANY else counted(len(steps), "step") if steps else "nothing"


def _analysis(hashed: str) -> str:
    """The text that compares the hash of the deciding code at the time of the run with today's hash."""
    if hashed == protocol_hash():
        return "that of the protocol"
    return f"**changed after the run**: the deciding code has the hash `{protocol_hash()}` today"


# Tables.


def _alone(names: Mapping[str, Cell], found: Scenarios) -> Table:
    """The accuracy of the models alone, task by task, which shows where there is room for a gain."""
    tasks = [task for task in HEADLINE if any(of_tasks(runs, [task]) for runs in found.values())]
    rows: list[list[str | None]] = []
    for name in names:
        if not name.endswith(BACK):
            single = [of_tasks(found[name], [task]) for task in tasks]
            rows.append(
                [
                    name,
                    *(" / ".join(percent(share(one, way)) for way in one[0].alone) if one else None for one in single),
                ]
            )
    return Table("", ["draft / assistant", *tasks], rows)


def _summary(names: Mapping[str, Cell], found: Scenarios) -> Table:
    shown = [way for way in SHOWN if any(way in ways(found[name]) for name in names)]
    rows: list[list[str | None]] = []
    for name in names:
        runs = found[name]
        draft, *assistants = (percent(share(runs, way)) for way in runs[0].alone)
        alone = [draft, " / ".join(assistants), *(percent(share(runs, way)) for way in (BEST, ORACLE))]
        gains = [points(gain(runs, way)) if way in ways(runs) else None for way in shown]
        rows.append([name, *alone, percent(share(runs, ORACLE) - share(runs, BEST)), *gains])
    return Table("", ["cell", "draft", "assistant", "better of each task", "oracle", "room", *shown], rows)


def _single(names: Mapping[str, Cell], found: Scenarios) -> Table:
    """The gains over the single model that is better over all tasks."""
    shown = [way for way in SHOWN if any(way in ways(found[name]) for name in names)]
    rows: list[list[str | None]] = []
    for name in names:
        runs = found[name]
        better = better_overall(runs)
        apart = [points(difference(runs, way, better)) if way in ways(runs) else None for way in shown]
        rows.append([name, f"{better}: {percent(share(runs, better))}", *apart])
    title = "Against the better single model for all tasks, in points"
    return Table(title, ["cell", "better model", *shown], rows)


def _predicted(names: Mapping[str, Cell], found: Scenarios) -> Table:
    """Each cell with its prediction, and the gain over the better model of each task."""
    rows: list[list[str | None]] = []
    for name, cell in names.items():
        if not name.endswith(BACK) and cell.scenario != "control":
            back = found.get(name + BACK, ())
            several = [(found[name], "cosd"), (back, "cosd"), (found[name], "cosd-1-1"), (back, "cosd-1-1")]
            shown = [points(gain(runs, way)) if way in ways(runs) else None for runs, way in several]
            rows.append([name, cell.predicted, *shown])
    columns = ["cell", "predicted", "cosd", "reversed", "cosd-1-1", "reversed"]
    return Table("", columns, rows)


def _apart(found: Scenarios) -> Table:
    """The results on tasks outside the headline, such as questions that need both models."""
    several = {name: runs for name, runs in found.items() if ", " in name and name.split(", ")[-1] not in BACK}
    shown = [way for way in SHOWN if any(way in ways(runs) for runs in several.values())]
    rows: list[list[str | None]] = [
        [name, *(percent(share(runs, way)) if way in ways(runs) else None for way in (*ALONE, *shown))]
        for name, runs in several.items()
    ]
    return Table("Apart from the headline: right answers in per cent", ["cell and task", *ALONE, *shown], rows)


def _controls(found: Scenarios) -> Table:
    rows: list[list[str]] = []
    if alike := found.get("n1"):
        words, told = _itself(alike)
        trained = str(independent(alike))
        rows.append(["N1", "a model with itself: equal text, no replacement", words, trained, "", told])
    for one in decided(CONTROLS, found):
        shown = evidence(one.evidence, bound=True)
        told = _CONTROL[one.verdict] + OF_THESE * one.of_these_weights
        rows.append([one.claim.source, one.claim.words, shown, trainings(one.evidence), _p(one.holm), told])
    return Table("", ["control", "predicted", "found, in points", "trainings", "Holm", ""], rows)


def _families(runs: Iterable[Sequence[Run]]) -> Table:
    """The families of cells and studies that share trainings, with these trainings."""
    several = families([*chain.from_iterable(runs)])
    rows: list[list[str | int]] = []
    for one in several:
        seeds = sorted({seed for _, seed in one.trainings})
        names = [recipe for recipe in RECIPES if any(recipe == name for name, _ in one.trainings)]
        rows.append([_names(one.cells), _names(names), ", ".join(map(str, seeds))])
    return Table("", ["cells and studies", "trained from scratch", "seed"], rows)


def _coins(found: Scenarios) -> Table:
    """The results of N5, task by task."""
    rows: list[list[str | int]] = []
    for name in [cell + back for cell in PAIRS for back in ("", BACK)]:
        for run in found.get(name, ()):
            if RANDOM in run.ways and "cosd" in run.ways and replaced_tasks([run], "cosd"):
                several = [places([run], way) for way in ("cosd", RANDOM)]
                counts = [one.places if one is not None else 0 for one in several]
                rows.append([f"{name}, {run.task}", *counts, points(difference([run], "cosd", RANDOM))])
    columns = ["", "places replaced by the rule", "by the coin", "the rule less the coin, in points"]
    return Table("N5, task by task, where the rule has replaced anything", columns, rows)


def _itself(runs: Sequence[Run]) -> tuple[str, str]:
    """The findings and the verdict on a model fused with itself. A failure counts even if near ties explain it."""
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
        if "cosd-surprise" not in ways(found[name]) or cell.scenario == "control":
            continue
        for way in ways(found[name]):
            if way.startswith(("cosd", "rule 0.9", "average", RANDOM)):
                one = caught(found[name], way)
                parts = [f"{one.mended} of {one.wrong}", f"{one.spoilt} of {one.right}"]
                requests, tokens = cost(found[name], way)
                rows.append([f"{name}, {way}", *parts, f"{requests:.1f}", f"{tokens:.0f}"])
    columns = ["", "sure and wrong, put right", "sure and right, spoilt", "requests", "tokens billed"]
    return Table("", columns, rows)


def _beyond(names: Mapping[str, Cell], found: Scenarios) -> Table:
    """The number of answers that were put right, and in how many of them a sure token of the draft was replaced."""
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
        for model in found[name][0].alone if not name.endswith(BACK) else ():
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
    lines = [_way(row, [percent(share(of_tasks(runs, [task]), row.way)) for task in tasks]) for row in table(runs)]
    columns = ["way", *tasks, "mean", "gain", "won, lost", "p", "Holm", "kept", "requests", "tokens", "ms a token"]
    models = (cell.draft, *cell.assistants)
    draft, *assistants = reversed(models) if name.endswith(BACK) else models
    return Table(f"{name}: {draft} drafting, {' and '.join(assistants)} asked", columns, lines)


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
    cells = [cell.name for cell in CELLS if cell.scenario == one.scenario]
    runs = [run for cell in cells for run in found.get(cell, ()) if run.task in one.tasks]
    rows: list[list[str | None]] = [
        [f"printed: {name}", *(f"{value:.1f}" for value in row)] for name, row in one.rows.items()
    ]
    for cell, task in dict.fromkeys((run.cell, run.task) for run in runs):
        mine = [run for run in runs if (run.cell, run.task) == (cell, task)]
        stands = f" (for {BENCHMARKS[task]})" if task in BENCHMARKS else ""
        shown = [interval(accuracy(mine, way)) if way in ways(mine) else None for way in one.columns.values()]
        rows.append([f"ours: {cell}, {task}{stands}", *shown])
    return Table(one.title, ["", *one.columns], rows if runs else [])


def _likelihoods(file: RunsFile) -> Table:
    """The shares of options chosen right by likelihood, and the perplexities of the right answers."""
    rows: list[list[str]] = []
    for one in file.about["likelihoods"]:
        for way, found in one["ways"].items():
            chosen = interval(wilson(found["right"], found["questions"])) if one["task"] == "choice" else ""
            ends = ["{:.3f} [{:.3f}, {:.3f}]".format(*found[name]) for name in ("perplexity", "ratio")]
            rows.append([f"{one['cell']}, {one['task']}, seed {one['seed']}", way, chosen, *ends])
    columns = [
        "texts",
        "way",
        "right option is the likeliest",
        "perplexity of a token",
        "over that of the better model",
    ]
    return Table("", columns, rows)


def _claims(title: str, several: Sequence[Decided]) -> Table:
    rows = [
        [
            one.claim.source,
            one.claim.words,
            evidence(one.evidence, bound=True),
            trainings(one.evidence),
            _p(one.evidence.p),
            _p(one.holm),
            verdict(one),
        ]
        for one in several
    ]
    return Table(title, ["source", "claim", "found, in points", "trainings", "p", "Holm", ""], rows)


def write_pages(file: RunsFile, others: Sequence[RunsFile], folder: Path, short: Path | None = None) -> list[Path]:
    """Write the page of a run, its tables and figures, and the page of all claims.

    Args:
        file: the run.
        others: runs of other sizes, whose claims are also listed.
        folder: the folder of the pages.
        short: file of the short page. It is written, with its figure, only if it is about this run.
    """
    found, name = scenarios(file.runs), file.about["size"]
    words = {f"{name}.md": page(file), f"{name}-tables.md": tables(file), "claims.md": all_claims([file, *others])}
    folder.mkdir(parents=True, exist_ok=True)
    written = {folder / one: text for one, text in words.items()}
    pictures = [folder / f"{name}.svg", folder / f"{name}-pairs.svg"]
    if short is not None and (text := short_page(file)) is not None:
        written[short] = text
        pictures.append(short.with_suffix(".svg"))
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    for path in pictures:
        (draw_pairs if path.stem.endswith("-pairs") else draw)(found, path)
    return [*written, *pictures]


def short_page(file: RunsFile) -> str | None:
    """The short page, with the figures of this run filled in; None if the page is about another run."""
    words = findings(FOLDER / "results" / "short.md", file, scenarios(file.runs))
    return None if words == NOTHING else words.replace("{confirmation}", confirmed())
