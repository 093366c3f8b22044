"""Hand-written sentences about one run, which are shown only for that run, with figures taken from its answers.

The first line of `results/<size>.md` identifies the run by the hash of its questions, their number, and its date. A
figure in a sentence is written as a placeholder, `{measure: cell; way}`; further semicolons separate further arguments.
`{trainings: cell; cell}` is the number of independent trainings that several cells are based on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.lab.analysis import caught, counts, difference, gain, of_tasks, sure_and_wrong, table
from benchmarks.lab.beyond import mended
from benchmarks.lab.claims import Scenarios
from benchmarks.lab.families import independent
from benchmarks.lab.numbers import cost, percent, points, share
from benchmarks.lab.runs import BEST, Run, RunsFile
from cosd_api.comparison.contestants import ORACLE
from cosd_api.wording import counted

__all__ = ["NOTHING", "findings", "named"]

NOTHING = "Nothing was concluded of this run yet.\n"


def named(file: RunsFile) -> str:
    """The line that identifies a run."""
    return "<!-- of the run {hash}, {items} questions, {date} -->\n".format(**file.about)


def findings(path: Path, file: RunsFile, found: Scenarios) -> str:
    """The sentences of a file, with figures filled in; empty if they are about another run.

    Raises:
        KeyError: a placeholder names a cell or a way that was not run.
    """
    if not path.exists():
        return NOTHING
    words = path.read_text(encoding="utf-8")
    if not words.startswith(named(file)):
        return NOTHING
    return re.sub(r"\{(\w+): ([^}]*)\}", lambda one: _figure(one, file, found), words.removeprefix(named(file)))


def _figure(placeholder: re.Match[str], file: RunsFile, found: Scenarios) -> str:
    cell, *arguments = placeholder[2].split("; ")
    if placeholder[1] == "perplexity":
        return _perplexity(file, cell, *arguments)
    if placeholder[1] == "trainings":
        return counted(independent([run for name in (cell, *arguments) for run in found[name]]), "independent training")
    return _MEASURES[placeholder[1]](found[cell], *arguments)


def _perplexity(file: RunsFile, cell: str, task: str, way: str) -> str:
    """The perplexity of texts, relative to the better model's perplexity."""
    [one] = [one for one in file.about["likelihoods"] if (one["cell"], one["task"]) == (cell, task)]
    return "{:.2f} [{:.2f}, {:.2f}]".format(*one["ways"][way]["ratio"])


def _right(runs: Sequence[Run], way: str, *tasks: str) -> str:
    """The share of right answers over all tasks, or over the given tasks."""
    return f"{percent(share(of_tasks(runs, tasks or None), way))} %"


def _room(runs: Sequence[Run]) -> str:
    """The gain of the oracle over the better model of each task."""
    return points(difference(runs, ORACLE, BEST))


def _less(runs: Sequence[Run], way: str, than: str, *tasks: str) -> str:
    """The difference between two ways."""
    return points(difference(of_tasks(runs, tasks or None), way, than))


def _gain(runs: Sequence[Run], way: str) -> str:
    """The gain over the better model of each task."""
    return points(gain(runs, way))


def _mended(runs: Sequence[Run], way: str) -> str:
    """The number of the draft's confidently wrong answers that were put right."""
    one = caught(runs, way)
    return f"{one.mended} of {one.wrong}"


def _spoilt(runs: Sequence[Run], way: str) -> str:
    """The number of the draft's right answers that were spoilt."""
    one = counts(runs, way, "draft")
    return f"{one.lost} of {one.both + one.lost}"


def _beyond(runs: Sequence[Run], way: str) -> str:
    """The number of answers that were put right and in which a sure token was replaced."""
    one = mended(runs, way)
    return f"{one.sure} of {one.answers}"


def _sure(runs: Sequence[Run], model: str) -> str:
    """The number of confidently wrong answers, which contain no unsure token."""
    return "{} of {}".format(*sure_and_wrong(runs, model))


def _times(runs: Sequence[Run], way: str, than: str) -> str:
    """The billed tokens per answer, as a multiple of another way's."""
    return f"{cost(runs, way)[1] / cost(runs, than)[1]:.1f}"


def _requests(runs: Sequence[Run], way: str) -> str:
    """The requests per answer, to both models together."""
    return f"{cost(runs, way)[0]:.1f}"


def _milliseconds(runs: Sequence[Run], way: str) -> str:
    """The median over the answers of the milliseconds per token."""
    rows = {row.way: row for row in table(runs)}
    return f"{rows[way].milliseconds:.1f}"


def _spoilt_sure(runs: Sequence[Run], way: str) -> str:
    """The number of the draft's confidently right answers that were spoilt."""
    one = caught(runs, way)
    return f"{one.spoilt} of {one.right}"


_MEASURES: Mapping[str, Callable[..., str]] = {
    "right": _right,
    "less": _less,
    "gain": _gain,
    "mended": _mended,
    "spoilt": _spoilt,
    "beyond": _beyond,
    "sure": _sure,
    "times": _times,
    "room": _room,
    "requests": _requests,
    "ms": _milliseconds,
    "sure_spoilt": _spoilt_sure,
}
