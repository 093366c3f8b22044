"""The figures in the documents. They are taken from the kept results of the sections, so no figure is copied by hand.

`docs/benchmark.md` explains the results. `docs/benchmark-tables.md` contains the tables to which other pages link, and
`benchmarks/results/details.md` all others. `docs/methods.md` and the README contain excerpts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import HERE, RESULTS, Table, bare, between, noted

DOCS = HERE.parent / "docs"

HEADLINE = "Acceptance 0.9, round trip 20 ms, 512 tokens of context"

_SECTIONS = {
    "real": "A real language model",
    "simulated": "A simulated pair",
    "client": "The client's processor time, by HTTP library, load and length",
    "gateway": "The gateway",
    "attack": "The gateway attacked",
    "clients": "Clients of the gateway",
    "structured": "Structured answers",
    "methods": "Every method",
}

_SHOWN = (
    "A real language model",
    "Simulated: wall time against the floor",
    "Client CPU by carrier",
    "Client on a busy machine",
)
"""The titles of the tables of `docs/benchmark.md`."""

_DETAILS = (
    "Targets",
    "Simulated, ",
    "Client CPU by length",
    "Event loop with many fusions",
    "Resources held before and after",
    "The slowest requests",
    "A batch on a full disk",
    "A gateway that is stopped",
    "Attacks on the gateway's door",
    "Held after many answers",
    "The automaton",
)
"""The beginnings of the titles of the tables in `benchmarks/results/details.md`."""

_PAGE = """# What a fusion costs

This page explains what a fusion costs in time, tokens and processor time, as measured by `make bench`; `make bench
ARGS=--page` writes it. [Further tables](benchmark-tables.md), [details](../benchmarks/results/details.md) and every
repetition are kept. Compare figures only within a table, whose rows were measured in one run. Only those of two real
models were measured after one decoder came to serve all pairs.

## Time and price

Answers of 512 tokens over HTTP, with a round trip of 20 ms; a tenth of the tokens are the assistant's. The models are
*simulated*, so that every acceptance (the share of drafted tokens that are kept) can be measured: the draft writes
its first token after 50 ms, and then 60 a second; the assistant needs 60 ms for a request. Traffic and times are
real.

{time_and_price}

- **(a)** is this library by the paper's rule (alpha = beta = 0.5), the default at that time, which decides in (b) and
  (c), too.
- **(b)** drafts in fixed rounds of *K* tokens, and verifies each in one request.
- **(c)** asks the assistant about one position at a time.
- **(d)** is the draft alone, writing the same text.
- **The floor** is the shortest time of a method that drafts first and replaces one token at a time: that of (d), plus
  one verification and one restart of the draft for each replacement. *Restarts in full* counts the first token after
  a restart twice.

(a), (b) and (c) write the same text; otherwise, the benchmark ends with an error. Tokens that a model reads are
billed, cached or not.

![Wall time over acceptance](benchmark.svg)

Wall time as a multiple of the floor, by acceptance, round trip and, if it is not 512 tokens, length of the context:

{floor}

## A real language model

The draft alone and a fusion, on llama.cpp (`make bench ARGS=real`). *Uncached* tokens are read by the assistant
without being in its cache: a long prompt only once.

{real}

## Two real models of different families

A fusion of SmolLM2 with Gemma 3 as its assistant is faster than lockstep. With the roles swapped, the draft is the
slower model: the fusion is slower than lockstep on one machine, and as fast over a round trip of 20 ms
(`make bench ARGS="real --only genuine --only proxy --only itself --only client"`).

{families}

## The client's processor time

64 fusions at once, with each [HTTP library](servers.md#keys-proxies-time-limits), and the same traffic without
`cosd-api` (`make bench ARGS=client`):

{carriers}

If other processes keep all processors busy, verdicts arrive late, and what the draft writes in the meantime is wasted
([costs](costs.md#drafted-in-vain)). So the draft runs ahead only so far:

{starved}

Fewer tokens are wasted, but more are billed: the draft writes in more and shorter requests, each of which reads the
prompt again, mostly from the cache.
"""

_TABLES = """# Further tables

The reference of what was measured besides [what a fusion costs](benchmark.md); `make bench ARGS=--page` writes this
page. Tables that answered a question of design once are [finished](../benchmarks/results/finished.md); more
[details](../benchmarks/results/details.md) are kept, too.
"""

_MORE = """# Details of the benchmark

`make bench ARGS=--page` writes this page. [What a fusion costs](../../docs/benchmark.md) explains the methods (a) to
(d) and the floor.
"""


def tables(section: str, folder: Path = RESULTS) -> list[Table]:
    """The kept tables of a section; empty if the section has never run to its end."""
    path = folder / f"{section}.json"
    if not path.exists():
        return []
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return [Table(**one) for one in kept["tables"]]


def pages(folder: Path = RESULTS) -> dict[Path, str]:
    """The text of each page, by the page's file."""
    [floor] = _titled("simulated", "Simulated: wall time against the floor", folder)
    real = tables("real", folder)
    carriers, starved, *_ = tables("client", folder)
    page = _PAGE.format(
        time_and_price=bare(time_and_price(folder)),
        floor=bare(floor),
        real="\n\n".join(noted(one) for one in real),
        families="\n\n".join(map(_of_families, tables("families", folder))),
        carriers=noted(carriers),
        starved=noted(starved),
    )
    return {
        DOCS / "benchmark.md": page,
        DOCS / "benchmark-tables.md": all_tables(folder),
        RESULTS / "details.md": _by_section(_MORE, _is_detail, folder),
        DOCS / "methods.md": with_costs((DOCS / "methods.md").read_text(encoding="utf-8"), folder),
    }


def with_costs(text: str, folder: Path = RESULTS) -> str:
    """The text of the page on methods, with the current table of their costs inserted."""
    shown = "".join(
        bare(_columns(table, table.rows, but=("tokens", "ms an answer"))) for table in tables("methods", folder)
    )
    return _put(text, "costs", shown)


def _put(text: str, name: str, shown: str) -> str:
    return between(text, name, shown, "make bench ARGS=--page")


def _of_families(table: Table) -> str:
    shown = _columns(table, table.rows, but=("client, ms per token",))
    return noted(Table("", shown.columns, shown.rows, table.notes))


def _named(table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def client_in_words(folder: Path = RESULTS) -> str:
    """The README's sentence on the client's processor time."""
    [table] = _titled("client", "Client CPU by carrier", folder)
    cpu = {str(row[0]): float(row[1] or 0) for row in table.rows}
    fast, plain = cpu["with `fast` (aiohttp)"], cpu["`COSD_HTTP=httpx`"]
    alone = next(value for name, value in cpu.items() if name.endswith("httpx alone"))
    return (
        f"The client uses {fast / 1000:.2f} ms of CPU time per fused token with 64 fusions at once, "
        f"{plain / 1000:.2f} ms without the extra `fast`; httpx alone uses {alone / 1000:.2f} ms for the same traffic "
        "(`make bench ARGS=client`)."
    )


def gateway_in_words(folder: Path = RESULTS) -> tuple[str, str]:
    """The sentences on the gateway's page about the gateway's cost and about the attack on it."""
    added, *_ = map(_named, tables("gateway", folder))
    most = max(row["streams"] for row in added)
    [there] = [row for row in added if row["streams"] == most and row[""] == "cosd serve, on top"]
    cost = (
        f"With {most} streams at once, `cosd serve` needs {there['CPU a token, us']:.0f} us more processor time for "
        "each token than the library alone, and its first text arrives "
        f"{there['to the first text, ms (p50)']:.1f} ms later (median)."
    )
    outcomes, *_ = map(_named, tables("attack", folder))
    requests, lost, wrong = (sum(row[name] for row in outcomes) for name in ("requests", "lost", "wrong"))
    return cost, f"Of {requests:,} requests, {lost} were lost and {wrong} were wrong."


def all_tables(folder: Path = RESULTS) -> str:
    """The text of the page with the tables that are neither details nor on the page that explains the results."""
    return _by_section(_TABLES, lambda table: not (table.title in _SHOWN or _is_detail(table)), folder)


def _by_section(start: str, wanted: Callable[[Table], bool], folder: Path) -> str:
    parts = [start]
    for section, title in _SECTIONS.items():
        if found := [table for table in tables(section, folder) if wanted(table)]:
            parts += [f"## {title}\n", *(f"{table.markdown()}\n" for table in found)]
    return "\n".join(parts)


def _is_detail(table: Table) -> bool:
    return table.title.startswith(_DETAILS)


def time_and_price(folder: Path = RESULTS) -> Table:
    """The time and price of all methods in the headline case."""
    [time], [price] = (_titled("simulated", f"Simulated, {what}. {HEADLINE}", folder) for what in ("time", "price"))
    paid = {row[0]: row for row in price.rows}
    rows: list[list[Any]] = []
    for name, seconds, times_alone in (row[:3] for row in time.rows):
        _, _, asked, _, draft_read, assistant_read, drafted = paid.get(name, [None] * 7)[:7]
        rows.append([name, str(seconds).split(" ", 1)[0], times_alone, asked, assistant_read, draft_read, drafted])
    columns = ["method", "seconds", "x draft alone", "requests to the assistant", "tokens the assistant reads"]
    return Table("", [*columns, "tokens the draft reads", "tokens it writes"], rows)


def _columns(table: Table, rows: Sequence[Sequence[Any]], *, but: tuple[str, ...]) -> Table:
    kept = [at for at, column in enumerate(table.columns) if column not in but]
    return Table("", [table.columns[at] for at in kept], [[row[at] for at in kept] for row in rows])


def _titled(section: str, title: str, folder: Path) -> list[Table]:
    return [table for table in tables(section, folder) if table.title == title]
