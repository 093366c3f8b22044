"""The tables of the section `simulated`: an overview, the targets, and the time and price of each case."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

from benchmarks.comparison import CASES, LIBRARY, QUICK, Case, Measured, compare
from benchmarks.methods import METHODS
from benchmarks.report import Cell, Options, Table
from benchmarks.worker import Run

__all__ = ["run", "tables"]

ROUNDS = "b: K=8"
IN_FULL = "floor, restarts in full"
HEADLINE = Case(acceptance=0.9, round_trip=0.02, context=512)

SIMULATED = (
    "The models and their server are simulated in a separate process, behind a proxy that delays every byte; the HTTP "
    "traffic and the measured times are real. The draft writes its first token after 50 ms, and then 60 tokens a "
    "second. The assistant needs 60 ms for a request of any size. Simultaneous requests do not slow one another down, "
    "and every prompt is cached. Each token is replaced at random, independently of the other tokens. For 15 % of the "
    "kept tokens, the draft's probability is below 0.5. For 70 % of the replaced tokens, the draft's second choice is "
    "the assistant's word. The prompts are the first ones whose texts have this acceptance and this share of second "
    "choices, to within one token."
)
FLOOR = (
    "The floor is the time of (d) plus, for each replacement, one verification (a round trip and 60 ms) and one "
    "restart of the draft (a round trip and 50 ms). The time of (d) already includes the 17 ms in which the draft "
    "writes the first token after a restart, so they are subtracted, except in the row *restarts in full*. The floor "
    "includes no time for new connections, although llama.cpp's server closes the connection after each stream."
)
MEDIANS = (
    "The figures are medians over the texts, with minimum and maximum in brackets; (c) writes only one text. *ms late* "
    "is how long the client's event loop had to wait for the processor (95th percentile). A row with a large value is "
    "unreliable."
)


async def run(options: Options) -> list[Table]:
    """Run the section `simulated`."""
    cases = [case.typical() for case in (QUICK if options.quick else CASES)]
    return tables(await compare(cases, options=options))


def tables(found: Sequence[Measured]) -> list[Table]:
    """All tables for these cases."""
    found = sorted(found, key=lambda one: (one.case.context, abs(one.case.round_trip - 0.02), one.case.acceptance))
    shown = [_overview(found)]
    shown += [_targets(one) for one in found if _is_headline(one.case)]
    for one in found:
        shown += [_time(one), _price(one)]
    return shown


def _is_headline(case: Case) -> bool:
    return (case.acceptance, case.round_trip, case.context) == (
        HEADLINE.acceptance,
        HEADLINE.round_trip,
        HEADLINE.context,
    )


def _overview(found: Sequence[Measured]) -> Table:
    columns = ["wall time / floor", *(_short(one.case) for one in found)]
    rows: list[list[Cell]] = []
    for method in METHODS:
        cells = [_ratio(one.seconds(method.name), one.floor()) if method.name in one.runs else None for one in found]
        rows.append([method.name, *cells])
    rows.append(["floor, seconds", *(f"{statistics.median(one.floor()):.1f}" for one in found)])
    return Table("Simulated: wall time against the floor", columns, rows, [SIMULATED, FLOOR, _load(found)])


def _short(case: Case) -> str:
    long = f", {case.context:,}" if case.context != HEADLINE.context else ""
    return f"{case.acceptance:g}, {1000 * case.round_trip:g} ms{long}"


def _load(found: Sequence[Measured]) -> str:
    late = [run.late for one in found for runs in one.runs.values() for run in runs]
    speeds = found[0].speeds
    ideal = [2 * one.case.round_trip + speeds.first + (one.case.length - 1) * speeds.token for one in found]
    slower = max(
        statistics.median(one.seconds("d: draft alone")) / best for one, best in zip(found, ideal, strict=True)
    )
    return (
        "The measurement hardly slows the methods down: the 95th percentile of a client's event loop delay was "
        f"{1000 * statistics.median(late):.1f} ms ({1000 * max(late):.1f} ms in the worst process), and (d) took at "
        f"most {100 * (slower - 1):.1f} % longer than the simulated server and network need."
    )


def _time(one: Measured) -> Table:
    columns = ["method", "seconds", "x draft alone", "x floor", "x best (b)", "ms to first token"]
    columns += ["CPU us a token", "memory MB", "ms late"]
    floor, best, alone = one.floor(), one.best_of_rounds(), one.seconds("d: draft alone")
    rows: list[list[Cell]] = [
        [what, _spread(took, 1), *(_ratio(took, other) for other in (alone, floor, best)), *[None] * 4]
        for what, took in (("floor", floor), (IN_FULL, one.floor(twice=True)))
    ]
    for name, runs in _listed(one):
        seconds = one.seconds(name)
        row: list[Cell] = [name, _spread(seconds, 1), *(_ratio(seconds, other) for other in (alone, floor, best))]
        row += [round(_median(runs, lambda run: 1000 * run.answer.first))]
        row += [round(_median(runs, lambda run: 1e6 * run.cpu / run.answer.tokens)), runs[-1].memory >> 20]
        row += [f"{_median(runs, lambda run: 1000 * run.late):.1f}"]
        rows.append(row)
    replaced = " and ".join(", ".join(map(str, one.replacements())).rsplit(", ", 1))
    notes = [f"The texts have {one.case.length} tokens each, with {replaced} replacements. {MEDIANS}"]
    return Table(f"Simulated, time. {one.case.title}", columns, rows, notes, _figures(one))


def _price(one: Measured) -> Table:
    columns = ["method", "requests: draft", "assistant", "x (b) K=8", "prompt tokens: draft", "assistant"]
    columns += ["completion tokens: draft", "assistant", "thrown away", "cancelled drafts"]
    rows: list[list[Cell]] = []
    for name, runs in _listed(one):
        row: list[Cell] = [name, round(_median(runs, lambda run: run.draft.requests))]
        if name == "d: draft alone":
            row += [None, None, round(_median(runs, lambda run: run.draft.prompt_tokens)), None]
            row += [round(_median(runs, lambda run: run.draft.completion_tokens)), *[None] * 3]
            rows.append(row)
            continue
        row += [
            round(_median(runs, lambda run: run.assistant.requests)),
            _ratio(_asked(one, name), _asked(one, ROUNDS)),
        ]
        row += [round(_median(runs, lambda run: run.draft.prompt_tokens))]
        row += [round(_median(runs, lambda run: run.assistant.prompt_tokens))]
        row += [round(_median(runs, lambda run: run.draft.completion_tokens))]
        row += [round(_median(runs, lambda run: run.assistant.completion_tokens))]
        row += [round(_median(runs, lambda run: run.thrown_away))]
        row += [round(_median(runs, lambda run: run.draft.cancelled))]
        rows.append(row)
    notes = [
        "The figures are the servers' own counts. Prompt tokens include all tokens sent; most of them were cached."
    ]
    return Table(f"Simulated, price. {one.case.title}", columns, rows, notes)


def _targets(one: Measured) -> Table:
    """The table of targets and results."""
    rows: list[list[Cell]] = []

    def add(what: str, most: float, values: Sequence[float], others: Sequence[float], strict: bool = False) -> None:
        value, beside = _middle(values, others), f"{_middle(values, one.floor()):.3f}" if strict else None
        rows.append([what, f"≤ {most:g}", f"{value:.3f}", "yes" if value <= most else "no", beside])

    whole, best = one.floor(twice=True), one.best_of_rounds()
    for name in (LIBRARY,):
        if name in one.runs:
            add(f"{name}: wall time / {IN_FULL}", 1.05, one.seconds(name), whole, strict=True)
            add(f"{name}: wall time / best of (b)", 0.7, one.seconds(name), best)
            add(f"{name}: requests to the assistant / {ROUNDS}", 1.25, _asked(one, name), _asked(one, ROUNDS))
    columns = ["ratio", "target", "measured", "reached", "against the floor itself"]
    return Table(f"Targets. {one.case.title}", columns, rows)


def _asked(one: Measured, name: str) -> list[float]:
    """The number of requests to the assistant, for each text."""
    return [run.assistant.requests for run in one.runs[name]]


def _listed(one: Measured) -> list[tuple[str, list[Run]]]:
    return [(method.name, one.runs[method.name]) for method in METHODS if method.name in one.runs]


def _median(runs: Iterable[Run], of: Callable[[Run], float]) -> float:
    return statistics.median(of(run) for run in runs)


def _middle(values: Sequence[float], others: Sequence[float]) -> float:
    """The median of the ratios for corresponding texts; texts that (c) has not written are ignored."""
    return statistics.median(value / other for value, other in zip(values, others, strict=False))


def _ratio(values: Sequence[float], others: Sequence[float]) -> str:
    return f"{_middle(values, others):.2f}"


def _spread(values: Sequence[float], digits: int) -> str:
    middle = f"{statistics.median(values):.{digits}f}"
    return f"{middle} ({min(values):.{digits}f}-{max(values):.{digits}f})" if len(values) > 1 else middle


def _figures(one: Measured) -> dict[str, object]:
    runs = {name: [_without_text(run) for run in runs] for name, runs in one.runs.items()}
    figures = {"floor": one.floor(), "floor_twice": one.floor(twice=True), "best_of_rounds": one.best_of_rounds()}
    return {"case": asdict(one.case), "speeds": asdict(one.speeds), **figures, "runs": runs}


def _without_text(run: Run) -> dict[str, object]:
    told = asdict(run)
    del told["answer"]["text"]
    return {**told, "thrown_away": run.thrown_away}
