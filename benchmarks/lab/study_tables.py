"""Tables of the studies, with the papers' figures for comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.lab.analysis import accuracy, gain, table
from benchmarks.lab.claims import Scenarios
from benchmarks.lab.endless import ENDLESS, long_runs
from benchmarks.lab.long_answers import PARTS, slots
from benchmarks.lab.numbers import interval, mean_length, points
from benchmarks.lab.runs import ALONE, BEST, Run
from benchmarks.lab.studies import LENGTHS, STUDIES, Study
from benchmarks.lab.ways import PRINTED_SPECULATIVE
from benchmarks.report import Table
from cosd_api.comparison.contestants import ORACLE

__all__ = ["endless_tables", "study_tables"]

_PRINTED: Mapping[str, str] = {
    "thresholds": "Printed: 0.5 and 0.75 are good for both thresholds (the figure's numbers are in a picture).",
    "trees": (
        "Printed, of trees from MMLU, GSM8K, HumanEval and AlpacaEval: MMLU 63.94, 60.88, 61.23, 63.87; "
        "GSM8K 35.04, 37.17, 30.08, 33.85; HumanEval 25.62, 23.04, 23.09, 23.17."
    ),
    "latency": (
        "Printed, of speculative decoding, CoSD-Rule and CoSD-Tree: 131.22, 132.31 and 135.82 ms a token; of the "
        "draft's tokens 0.89, 0.81 and 0.77 stand."
    ),
    "lengths": (
        "Printed, of CoSD-Rule, CoSD-Tree and speculative decoding: 11.41, 13.58, 9.77 drafts at 128 tokens; 15.29, "
        "16.01, 14.20 at 256; 21.23, 21.95, 18.51 at 512."
    ),
}


def study_tables(found: Scenarios) -> Iterator[Table]:
    """A table for each study that was run."""
    for study in STUDIES:
        if study.name == "lengths":
            yield from _of_lengths(study.name, study, found)
        elif runs := found.get(study.name):
            yield _of_ways(study, runs)


def _of_ways(study: Study, runs: Sequence[Run]) -> Table:
    tasks = list(dict.fromkeys(one.task for one in runs))
    rows: list[list[str | None]] = []
    for row in table(runs):
        if row.way in (BEST, ORACLE):
            continue
        by_task = [interval(accuracy([one for one in runs if one.task == task], row.way)) for task in tasks]
        firsts = None if row.first is None else f"{row.first:.0f}"
        times = [f"{row.milliseconds:.1f}", firsts] if study.alone else []
        kept = None if row.acceptance is None else f"{row.acceptance:.2f}"
        apart = None if row.way in ALONE else points(gain(runs, row.way))
        rows.append([row.way, *by_task, apart, kept, f"{row.requests:.1f}", f"{row.tokens:.0f}", *times])
    columns = ["way", *tasks, "gain", "kept", "requests", "tokens", *(["ms a token", "first token, ms"] * study.alone)]
    return Table(f"{study.name}: {study.shows}", columns, rows, _notes(study))


def endless_tables(runs: Sequence[Run]) -> Iterator[Table]:
    """The tables of the study `lengths`, for models that cannot end a text."""
    [study] = [one for one in STUDIES if one.name == "lengths"]
    yield from _of_lengths(ENDLESS, study, long_runs(runs))


def _of_lengths(name: str, study: Study, found: Scenarios) -> Iterator[Table]:
    by_limit = {limit: found.get(f"{study.name}, report {limit}", ()) for limit in LENGTHS}
    by_limit = {limit: runs for limit, runs in by_limit.items() if runs}
    names = ["cosd", "cosd-tree", PRINTED_SPECULATIVE]
    rows: list[list[str | None]] = []
    for limit, runs in by_limit.items():
        drafts = {row.way: row.iterations for row in table(runs)}
        shown = [(drafts.get(way), mean_length(runs, way)) for way in names]
        rows.append([f"{limit} tokens", *(f"{one:.2f} in {tokens:.0f}" if one else None for one, tokens in shown)])
    title = f"{name}: mean number of drafts, and of tokens, by {study.shows}"
    yield Table(title, ["", *names], rows, _notes(study))
    longest = by_limit.get(LENGTHS[-1], ())
    shares = {way: slots(longest, way) for way in (*ALONE, *names)}
    said = [[way, *map(interval, several)] for way, several in shares.items() if several]
    quarters = [f"quarter {part + 1}" for part in range(PARTS)]
    yield Table(f"{name}: right statements of a report in per cent, by their place in it", ["", *quarters, "all"], said)


def _notes(study: Study) -> list[str]:
    return [_PRINTED[study.name]] if study.name in _PRINTED else []
