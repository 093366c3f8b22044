"""The command `python -m benchmarks`, which measures and prints tables; see `--help`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Awaitable, Callable

import anyio

from benchmarks.page import pages
from benchmarks.report import RESULTS, Options, Table, save

SECTIONS = {
    "simulated": ("benchmarks.tables", "all methods on a simulated pair of models: wall time and price"),
    "client": (
        "benchmarks.client",
        "the client's CPU time by HTTP library, on a busy machine, in long answers; its event loop",
    ),
    "gateway": ("benchmarks.gateway", "what `cosd serve` adds to the first text and to each token of a stream"),
    "attack": (
        "benchmarks.attack",
        "`cosd serve` under load, faults and hostile requests: nothing lost, wrong or leaked",
    ),
    "clients": ("benchmarks.real_clients", "real clients of OpenAI's protocol against `cosd serve` on a real model"),
    "real": ("benchmarks.real", "a real language model: itself, a genuine pair, emoji, long prompts"),
    "imports": (
        "benchmarks.imports",
        "the processor time of `import cosd_api`, compared with that of its dependencies",
    ),
    "methods": ("benchmarks.each_method", "every method: requests, billed tokens and time on the bundled models"),
}


def main(arguments: list[str] | None = None) -> None:
    """Run the named sections, or all of them. Print Markdown, and write JSON to benchmarks/results."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=main.__doc__)
    listed = "; ".join(f"{name}: {what}" for name, (_, what) in SECTIONS.items())
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{listed}. Default: all of them.")
    parser.add_argument("--quick", action="store_true", help="run fewer cases and texts: two minutes in all")
    parser.add_argument(
        "--plot", action="store_true", help="draw docs/benchmark.svg from the kept results of `simulated`"
    )
    parser.add_argument("--page", action="store_true", help="write the figures in docs/ from the kept results")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"unknown section {unknown[0]!r}; choose from {', '.join(SECTIONS)}")
    options = Options(quick=given.quick, command=" ".join(["python -m benchmarks", *(arguments or sys.argv[1:])]))
    failures: list[str] = []
    if given.sections or not (given.plot or given.page):
        for name in given.sections or SECTIONS:
            tables = anyio.run(_section(name), options)
            for table in tables:
                print(f"{table.markdown()}\n", flush=True)
                failures += table.figures.get("failures", ())
            if any(table.rows for table in tables) and not given.quick:  # without rows, nothing was measured
                print(f"Kept in {save(name, tables).relative_to(RESULTS.parent.parent)}\n", file=sys.stderr)
    if given.plot:
        print(importlib.import_module("benchmarks.plot").draw(RESULTS / "simulated.json"))
    if given.page:
        for path, text in pages().items():
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(RESULTS.parent.parent))
    if failures:
        sys.exit("\n".join(failures))


def _section(name: str) -> Callable[[Options], Awaitable[list[Table]]]:
    run: Callable[[Options], Awaitable[list[Table]]] = importlib.import_module(SECTIONS[name][0]).run
    return run


if __name__ == "__main__":
    main()
