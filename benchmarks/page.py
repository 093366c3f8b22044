"""The figures in the documents. They are taken from the kept results of the sections, so no figure is copied by hand.

`docs/benchmark.md` explains the results, and `docs/benchmark-tables.md` contains every table. `docs/methods.md` and the
README contain excerpts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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

_PAGE = """# What a fusion costs

`make bench` measures everything on this page, and `make bench ARGS=--page` writes the page. [All
tables](benchmark-tables.md) are on a page of their own, and every repetition is in `benchmarks/results`. Compare
figures only within a table, because only the rows of one table were measured in the same run. The tables were measured
before one decoder served all pairs of models; the setting `in_flight` is gone since.

## Time and price

The first table is about answers of 512 tokens over HTTP, with a round trip of 20 ms. The assistant writes a tenth of
the tokens. The models are *simulated*, because this allows any acceptance (the share of drafted tokens that are kept)
to be measured. The draft writes its first token after 50 ms, and then 60 tokens a second; the assistant needs 60 ms for
a request. The HTTP traffic and the measured times are real.

{time_and_price}

- **(a)** is this library with its default settings, or with one setting changed as stated. All methods in
  this table decide by the paper's rule (alpha = beta = 0.5), which was the default when they were measured. In the
  other tables, `cosd` and *rule* also mean the paper's rule.
- **(b)** drafts in fixed rounds of *K* tokens and verifies each round in one request.
- **(c)** asks the assistant about one position at a time.
- **(d)** is the draft alone, writing the same text.
- **The floor** is the shortest possible time for a method that drafts first and replaces one token at a time: the time
  of (d), plus one verification and one restart of the draft for each replacement. The time of (d) already includes the
  writing of the first token after each restart; the row *restarts in full* counts this token twice.

The benchmark ends with an error unless (a), (b) and (c) write the same text. Tokens that a model reads are billed,
whether they are cached or not.

![Wall time over acceptance](benchmark.svg)

The next table shows the wall time as a multiple of the floor. Each column states an acceptance, a round trip and, if it
is not 512 tokens, the length of the context:

{floor}

## A real language model

This section compares the draft alone with a fusion of two models, each on a llama.cpp server
(`make bench ARGS=real`). *Uncached* tokens are tokens that the assistant reads without finding them in its cache. A
long prompt is uncached only when the assistant reads it for the first time.

{real}

## The client's processor time

The client runs 64 fusions at once, with each supported HTTP library ([servers](servers.md)). The last two rows show the
same traffic without `cosd-api` (`make bench ARGS=client`):

{carriers}

If other processes keep all processors busy, verdicts arrive late, and the tokens that the draft writes in the meantime
are wasted ([costs](costs.md#drafted-in-vain)). A fusion therefore limits how far the draft runs ahead. The next table
compares fusions without that limit (*before*) and with it (*after*):

{starved}

With the limit, fewer tokens are wasted, but more tokens are billed. The draft writes its text in more but shorter
requests, and each request reads the prompt again, mostly from the server's cache.

The page *All tables* also shows the processor time per token for answers
[of several lengths](benchmark-tables.md#client-cpu-by-length), and the event loop's
delays when one process runs [many fusions](benchmark-tables.md#event-loop-with-many-fusions).
"""

_TABLES = """# All tables

`make bench ARGS=--page` writes this page from `benchmarks/results`. [What a fusion costs](benchmark.md) explains the
methods (a) to (d) and the floor. Measurements that answered a question of design once, such as who should decide and
where a unit ends, are [finished](../benchmarks/results/finished.md). The simulated pair has [more
cases](../benchmarks/results/simulated.md).
"""

_MORE = "# The simulated pair: other cases\n\n`make bench ARGS=--page` writes this page from `benchmarks/results`.\n"


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
        carriers=noted(carriers),
        starved=noted(starved),
    )
    return {
        DOCS / "benchmark.md": page,
        DOCS / "benchmark-tables.md": all_tables(folder),
        RESULTS / "simulated.md": "\n".join([_MORE, *_shown([t for t in tables("simulated", folder) if _is_more(t)])]),
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
    """The text of the page with all kept tables, by section."""
    parts = [_TABLES]
    for section, title in _SECTIONS.items():
        found = [table for table in tables(section, folder) if not _is_more(table)]
        if found:
            parts += [f"## {title}\n", *_shown(found)]
    return "\n".join(parts)


def _shown(several: Sequence[Table]) -> list[str]:
    return [f"{table.markdown()}\n" for table in several]


def _is_more(table: Table) -> bool:
    """True for a case of the simulated pair other than the headline's."""
    return table.title.startswith(("Simulated, time", "Simulated, price")) and HEADLINE not in table.title


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
