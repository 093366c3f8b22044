"""The command `python -m benchmarks`, which measures and prints tables; see `--help`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

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
    "structured": (
        "benchmarks.structured",
        "structured answers: model calls and time with and without forced text, beside the server's own grammar",
    ),
    "real": ("benchmarks.real", "real language models: itself, two of different families, emoji, long prompts"),
    "methods": ("benchmarks.each_method", "every method: requests, billed tokens and time on the bundled models"),
}

PARTS = ("genuine", "proxy", "itself", "client", "tables")
"""Parts of the section `real`."""


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line, or end with a message on what is wrong with it."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=main.__doc__)
    listed = "; ".join(f"{name}: {what}" for name, (_, what) in SECTIONS.items())
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{listed}. Default: all of them.")
    parser.add_argument("--quick", action="store_true", help="run fewer cases and texts: two minutes in all")
    parser.add_argument(
        "--plot", action="store_true", help="draw docs/benchmark.svg from the kept results of `simulated`"
    )
    parser.add_argument("--page", action="store_true", help="write the figures in docs/ from the kept results")
    _add_sizes(parser)
    given = parser.parse_args(arguments)
    unknown = [name for name in given.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"unknown section {unknown[0]!r}; choose from {', '.join(SECTIONS)}")
    if given.json and len(given.sections) != 1:
        parser.error("--json keeps one section: name it")
    return given


def main(arguments: list[str] | None = None) -> None:
    """Run the named sections, or all of them. Print Markdown, and write JSON to benchmarks/results."""
    given = parsed(arguments)
    options = Options(
        quick=given.quick,
        command=" ".join(["python -m benchmarks", *(arguments or sys.argv[1:])]),
        only=given.only,
        prompts=given.prompts,
        tokens=given.tokens,
        rounds=given.rounds,
        libraries=dict(given.library),
    )
    failures: list[str] = []
    if given.sections or not (given.plot or given.page):
        for name in given.sections or SECTIONS:
            tables = anyio.run(_section(name), options)
            for table in tables:
                print(f"{table.markdown()}\n", flush=True)
                failures += table.figures.get("failures", ())
            # Without rows, nothing was measured; a part of a section is kept only where the user says.
            if any(table.rows for table in tables) and (given.json or not (given.quick or given.only)):
                print(f"Kept in {os.path.relpath(save(name, tables, file=given.json))}\n", file=sys.stderr)
    if given.plot:
        print(importlib.import_module("benchmarks.plot").draw(RESULTS / "simulated.json"))
    if given.page:
        for path, text in pages().items():
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(RESULTS.parent.parent))
    if failures:
        sys.exit("\n".join(failures))


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the section's tables and raw figures here")
    group = parser.add_argument_group("options of `real`, of its table of two real models")
    group.add_argument("--only", action="append", choices=PARTS, default=[], help="measure this part; may be repeated")
    for name, most in (("prompts", "; at most 12, or 20 for `itself`"), ("tokens", ""), ("rounds", "")):
        default = getattr(Options(), name)
        words = f"default: {default}{most}"
        group.add_argument(f"--{name}", type=_positive, default=default, metavar="N", help=words)
    group.add_argument(
        "--library",
        type=_library,
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="measure the library of this checkout, in turn with further ones; by default, only that of this checkout",
    )


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _library(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    path = Path(folder).absolute()
    if not name or not folder or not (path / "cosd_api" / "__init__.py").is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER with the folder of a checkout")
    return name, path


def _section(name: str) -> Callable[[Options], Awaitable[list[Table]]]:
    run: Callable[[Options], Awaitable[list[Table]]] = importlib.import_module(SECTIONS[name][0]).run
    return run


if __name__ == "__main__":
    main()
