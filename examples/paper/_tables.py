"""The code of all tables: ask the models, grade and keep the answers, and print the results next to the papers'.

Questions are asked as `cosd_api.compare` asks them, and answers are kept in its journal. An interrupted run therefore
resumes, and tables with a common column share its answers.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from _columns import Fused, Setup
from _layout import (
    Answers,
    Found,
    Limited,
    ModelUsed,
    Row,
    Table,
    about,
    as_json,
    as_markdown,
    as_text,
    cells_of,
    lines_of,
    row,
)
from _pairs import Pair, read_pairs
from _tasks import TASKS

from cosd_api import Example, SettingError
from cosd_api.apps.comparison.comparing import ComparisonRun
from cosd_api.apps.comparison.contestants import Alone, ContestantKind
from cosd_api.apps.comparison.graders import check_grader
from cosd_api.apps.comparison.journal import GradedAnswer
from cosd_api.apps.training.dataset import read_examples
from cosd_api.common.wording import counted
from cosd_api.endpoints import Endpoints
from cosd_api.methods.base import Method
from cosd_providers import ProviderError

__all__ = ["COOL", "COSD", "Row", "Table", "main", "row"]

COSD = "CoSD (arXiv 2502.08020)"
COOL = "Cool-Fusion (arXiv 2407.19807)"

# Asking.


async def contestants(table: Table, setup: Setup, found: Found) -> list[Fused]:
    """A table's columns for the models of a pair; if a column cannot be made, the reason is noted."""
    made: list[Fused] = []
    count = len(setup.providers)
    for column in table.columns:
        try:
            method = column.method if isinstance(column.method, Method) else await column.method(setup)
        except SettingError as error:
            found.notes.append(f"{setup.name}: the column {column.name} is left out: {error}")
            continue
        models = [*(column.models or range(count))]
        if single := len(models) == 1:
            models.append(int(not models[0]))  # a second model, which is never asked
        identity = " ".join(setup.identities[at] for at in models[: 1 if single else count])
        kind: ContestantKind = "alone" if single else "method"
        made.append(Fused(column.name, kind, method, places=tuple(models), identity=identity))
    return made


async def ask(
    args: argparse.Namespace, table: Table, setup: Setup, task: str, limit: int, several: Sequence[Fused], found: Found
) -> tuple[list[Example], Answers]:
    """The answers of all columns to a task's questions; for an estimate, only the answers that are already known."""
    about = TASKS[task]
    examples = read_examples(args.data / f"{task}.jsonl")[: args.limit]
    stop = about.stop if all(isinstance(one.prompt, str) for one in examples) else ()
    label = f"{setup.name}, {about.title}"
    own = f"{table.name}-{task}" if table.concurrency == 1 else task  # answers of a busy server would distort the times
    draft, *assistants = setup.providers
    run = ComparisonRun(
        examples,
        Endpoints(draft, assistants, unit=setup.pair.unit, method=Alone()),
        check_grader(about.judge()),
        path=setup.file("answers", own),
        write=not args.dry_run,
        max_tokens=limit,
        stop=stop,
        seed=args.seed,
        unit=setup.pair.unit,
        concurrency=args.concurrency or table.concurrency,
        progress=Progress(label),
    )
    async with run:
        if args.max_billed_tokens is not None:  # the bound does not count answers that the journal already has
            run.limit.most = run.before + args.max_billed_tokens - found.billed
        asked = await run.add(several)
        run.expect(examples, asked)
        if args.dry_run:
            print(f"{label}, answers of up to {limit} tokens: {await run.estimate()}")
        else:
            print(f"{label}: {counted(len(asked), 'column')}, {counted(len(examples), 'question')}", file=sys.stderr)
            await run.ask(examples, asked)
        answers = {one.name: run.answers(one, examples, graded=True) for one in run.contestants}
        found.billed += run.journal.billed - run.before
        found.stopped = run.stopped
        found.notes += [f"{label}: the column {one.name} is left out: {one.reason}" for one in run.left_out]
        for one in run.contestants:
            found.notes += about_answers(label, one.name, answers[one.name], run.failures.get(one.name, {}))
        return examples, answers


def about_answers(
    label: str, column: str, answers: Mapping[str, GradedAnswer], failed: Mapping[str, str]
) -> Iterator[str]:
    """Yield notes on answers that failed or were cut off."""
    if failed:
        yield f"{label}, {column}: {counted(len(failed), 'question')} failed, such as: {next(iter(failed.values()))}"
    cut = sum(one.finish_reason == "length" for one in answers.values())
    if cut * 10 > len(answers):
        yield f"{label}, {column}: {counted(cut, 'answer')} of {len(answers)} ended at max_tokens"


class Progress:
    """A reporter that prints a line to standard error for each tenth of the answers."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._tenths = 0

    def __call__(self, done: int, total: int) -> None:
        if total and 10 * done // total > self._tenths:
            self._tenths = 10 * done // total
            print(f"{self._label}: {done} of {total} answers", file=sys.stderr)


# The whole run.


async def measure(args: argparse.Namespace, table: Table) -> Found:
    """Ask everything that a table needs, for all pairs."""
    found = Found()
    for name, pair in chosen(args, table).items():
        if found.stopped is None:
            await measure_pair(args, table, name, pair, found)
    return found


def chosen(args: argparse.Namespace, table: Table) -> dict[str, Pair]:
    """The pairs in the file that belong to a table."""
    pairs = read_pairs(args.pairs)
    wanted = args.pair or [name for name in table.printed if name in pairs]
    if unknown := [name for name in wanted if name not in pairs]:
        raise SettingError(f"{args.pairs} has no {unknown[0]!r}; it has {', '.join(pairs)}")
    if not wanted:
        words = f"{args.pairs} has none of {', '.join(map(repr, table.printed))}"
        raise SettingError(f"{words}: name one of its own with --pair ({', '.join(pairs)})")
    for name in wanted:
        if len(pairs[name].models) != table.models_needed:
            words = f"{table.title} is about {table.models_needed} models"
            raise SettingError(f"{words}, and {name!r} of {args.pairs} has {len(pairs[name].models)}")
    return {name: pairs[name] for name in wanted}


async def measure_pair(args: argparse.Namespace, table: Table, name: str, pair: Pair, found: Found) -> None:
    """Ask everything that a table needs, for one pair."""
    rows = rows_of(args, table, name, found)
    if not rows:
        return
    asked: dict[Limited, tuple[Sequence[Example], Answers]] = {}
    async with AsyncExitStack() as stack:
        providers = [await stack.enter_async_context(one.connected()) for one in pair.models]
        names = [(await provider.describe()).model for provider in providers]
        used = [ModelUsed(model, one.revision) for model, one in zip(names, pair.models, strict=True)]
        found.models[name] = used
        identities = [f"{at} {one.model} {one.revision}" for at, one in enumerate(used)]
        setup = Setup(name, pair, providers, identities, args.data, args.out, args.dry_run)
        several = await contestants(table, setup, found)
        for one in rows:
            for task, limit in limits_of(args, one):
                if (task, limit) not in asked and found.stopped is None:
                    asked[task, limit] = await ask(args, table, setup, task, limit, several, found)
    for one in rows:
        found.cells += cells_of(table, name, one, asked, limits_of(args, one))


def limits_of(args: argparse.Namespace, one: Row) -> list[Limited]:
    """The tasks of a row, each with its limit for an answer."""
    return [(task, one.max_tokens or args.max_tokens or TASKS[task].max_tokens) for task in one.tasks]


def rows_of(args: argparse.Namespace, table: Table, pair: str, found: Found) -> list[Row]:
    """The rows that can be measured; for each of the remaining rows, the reason is noted."""
    printed = table.printed.get(pair)
    rows = [one for one in table.rows if printed is None or one.name in printed]
    rows += [row(task) for task in table.more if (args.data / f"{task}.jsonl").exists()]
    kept: list[Row] = []
    for one in rows:
        missing = [task for task in one.tasks if not (args.data / f"{task}.jsonl").exists()]
        programs = any(TASKS[task].grader == "command" for task in one.tasks) and not args.run_programs
        if missing:
            words = f"there is no {args.data / missing[0]}.jsonl; convert.py makes it"
        elif programs:
            words = "it runs model-written programs here, as you and without a sandbox: allow it with --run-programs"
        else:
            kept.append(one)
            continue
        found.notes.append(f"{pair}: the row {one.name} is left out: {words}")
    return kept


def parsed(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).parent
    parser.add_argument(
        "--pairs",
        type=Path,
        default=here / "pair.yaml",
        help="file of servers (pair.yaml in the folder of this program)",
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the questions (data)")
    parser.add_argument("--out", type=Path, default=Path("tables"), help="folder of answers and tables (tables)")
    parser.add_argument("--pair", action="append", metavar="NAME", help="use this pair of the file; repeat for several")
    parser.add_argument("--limit", type=int, metavar="N", help="use only the first N questions of each task")
    parser.add_argument("--dry-run", action="store_true", help="estimate the cost, and ask no question")
    parser.add_argument("--max-billed-tokens", type=int, metavar="N", help="stop this run after N billed tokens")
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="limit for each answer, in place of each task's own"
    )
    parser.add_argument("--concurrency", type=int, metavar="N", help="number of concurrent answers")
    parser.add_argument("--seed", type=int, default=0, help="seed of random choices (0)")
    parser.add_argument(
        "--run-programs", action="store_true", help="grade HumanEval by running the programs that models wrote"
    )
    return parser.parse_args()


def main(table: Table, description: str | None) -> None:
    """Run the program of one table."""
    args = parsed(description)
    try:
        found = asyncio.run(measure(args, table))
        if args.dry_run:
            print("\n".join(found.notes))
            sys.exit()
        if not found.cells:
            raise SettingError("\n".join(["there is nothing to ask", *found.notes]))
        rows, notes = lines_of(table, found), about(table, found)
        print(f"{table.title}\n\n{as_text(rows)}\n")
        print("\n".join(notes))
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{table.name}.md").write_text(as_markdown(table, rows, notes), encoding="utf-8")
        settings = {"limit": args.limit, "max_tokens": args.max_tokens, "seed": args.seed}
        (args.out / f"{table.name}.json").write_text(as_json(table, found, notes, settings), encoding="utf-8")
    except (ProviderError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command resumes")
    sys.exit(found.stopped and f"not complete: {found.stopped}")
