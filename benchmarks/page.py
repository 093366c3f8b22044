"""The figures of the documents, from what the sections have kept: none is copied by hand.

`docs/benchmark.md` is one page to read, and `docs/benchmark-tables.md` has every table. `docs/methods.md` and the
README have excerpts.
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
    "cpu": "The client's processor time",
    "client": "The client's processor time, by carrier, load and length",
    "cancelled": "Cancelled streams",
    "gateway": "The gateway",
    "attack": "The gateway attacked",
    "clients": "Clients of the gateway",
    "batch": "Batches",
    "live": "Two small models on llama.cpp",
    "methods": "Every method",
    "vllm": "The same on vLLM",
    "strategies": "Ways to ask an assistant",
    "trees": "Trees and a tuned rule",
    "units": "Where a unit ends",
    "advice": "Advice where the answer is known",
    "imports": "The time of an import",
}

_PAGE = """# What a fusion costs

`make bench` measures everything on this page; `make bench ARGS=--page` writes it. [All tables](benchmark-tables.md)
have the details, and `benchmarks/results` has every repetition. Compare figures within a table only: its rows were
measured in one run.

## Time and price

512 tokens, a tenth of them the assistant's, over HTTP with a round trip of 20 ms. The pair is *simulated* so that the
acceptance can be chosen: the draft writes 60 tokens a second, the first after 50 ms, and the assistant needs 60 ms for
a request. The HTTP and the time are real.

{time_and_price}

- **(a)** is this library with its defaults, or with the named field of `Tuning`. All methods here, and `cosd` and *the
  rule* in the tables, decide by the paper's rule (alpha = beta = 0.5), which was the default when they were measured.
- **(b)** drafts in fixed rounds of *K* tokens and verifies each round in one request.
- **(c)** asks about one position at a time.
- **(d)** is the draft alone, writing the same text.
- **The floor** is what any method needs that drafts first and replaces one token at a time: (d), plus one
  verification and one restart of the draft for each replacement. The first token after a restart is also one of
  (d)'s; *in full* counts it twice. Hedged drafts go below the floor because they start before the verdict; in this
  simulation 70 % of the replacements were the draft's second choice. How often that is so on real pairs was not
  measured: a bundled model that is unsure has learned nothing, and hedges hardly ever match there.

The texts of (a), (b) and (c) are equal, or the benchmark ends with an error. Tokens read are tokens billed, cached or
not.

![Wall time over acceptance](benchmark.svg)

Wall time as a multiple of the floor, at other acceptance rates, round trips and lengths of context:

{floor}

## A real language model

A fusion by ids on two llama.cpp servers, beside the draft alone (`make bench ARGS=real`). *Uncached* tokens are those
that the assistant reads beyond its cache: of a long prompt, that is the prompt itself, once.

{real}

## The client's processor time

64 fusions at once, over each library that may carry HTTP ([servers](servers.md)), and the same traffic with nothing
above it (`make bench ARGS=client`):

{carriers}

If other processes keep all processors busy, verdicts are heard late, and a draft that runs on meanwhile writes in vain
([costs](costs.md#drafted-in-vain)). With the bound that a fusion sets itself, and without:

{starved}

Less is drafted in vain, and more is billed: each of the short requests reads the prompt again, mostly from a server's
cache.

The time of a token [by library](benchmark-tables.md#client-cpu-by-library), answers
[of several lengths](benchmark-tables.md#client-cpu-by-length), [more
fusions](benchmark-tables.md#event-loop-with-many-fusions) than a process can carry, and the tokens that a server
generates [after a cancellation](benchmark-tables.md#tokens-generated-after-a-cancellation) are among all tables.

## Who should decide

Right answers of two bundled models, 200 questions of each kind with numbers that neither has seen. Both were trained on
true texts only, in an open world: what a model is not to know it has met, but so rarely that it learned to doubt it. So
the draft is unsure where it is wrong, every method that replaces unsure tokens does well, and the table says nothing
about pairs that are wrong and confident. The rule is tuned and the trees are trained on mixed questions. *The paper's
tree* is grown with the paper's settings; *other* examples are questions of one kind,
unlike the mixed ones of the first column.

{trees}

The tree of 100 examples is 2 points above the tuned rule on mixed questions; smaller ones are not. Each tree is one
draw of examples; [all tables](benchmark-tables.md#trees-and-a-tuned-rule) have ten draws, and the pair the other way
round.

## Where a unit ends

Models with different tokenizers are judged [by words](concepts.md#units-one-tokenizer-or-several): a unit ends at a
common boundary of both encodings at which a word starts. By the alternative every common boundary ends one, and, last,
a replacement as well (`make bench ARGS=units`). Four pairs of models that write pages, together:

{units}

How likely those texts are, as negative log-likelihoods in nats a byte under each model and their mixture, with the
difference from words and its 95 % interval:

{likely}

Right answers of the bundled pair:

{rights}
"""

_TABLES = """# All tables

`make bench ARGS=--page` writes this page from `benchmarks/results`. [What a fusion costs](benchmark.md) explains the
methods (a) to (d) and the floor. Tables about bundled models of two million parameters are of the two that came before
the present three, which have one million.
"""


_HOSTS = ("methods", "comparison")
"""Pages that others write, with tables between marks."""


def tables(section: str, folder: Path = RESULTS) -> list[Table]:
    """The tables that a section has kept; none if it was never run to its end."""
    path = folder / f"{section}.json"
    if not path.exists():
        return []
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return [Table(**one) for one in kept["tables"]]


def pages(folder: Path = RESULTS) -> dict[Path, str]:
    """The pages of the documents, by file."""
    [floor] = _titled("simulated", "Simulated: wall time against the floor", folder)
    real = tables("real", folder)
    carriers, starved, *_ = tables("client", folder)
    page = _PAGE.format(
        time_and_price=bare(time_and_price(folder)),
        floor=bare(floor),
        real="\n\n".join(noted(one) for one in real),
        carriers=noted(carriers),
        starved=noted(starved),
        trees=bare(right_answers(folder)),
        **dict(zip(("units", "likely", "rights"), map(bare, where_units_end(folder)), strict=True)),
    )
    texts = {name: (DOCS / f"{name}.md").read_text(encoding="utf-8") for name in _HOSTS}
    return {
        DOCS / "benchmark.md": page,
        DOCS / "benchmark-tables.md": all_tables(folder),
        DOCS / "methods.md": with_costs(texts["methods"], folder),
        DOCS / "comparison.md": _put(texts["comparison"], "pairs", bare(known_pairs(folder))),
    }


def with_costs(text: str, folder: Path = RESULTS) -> str:
    """The page of the methods with the cost of each in its place."""
    shown = "".join(
        bare(_columns(table, table.rows, but=("tokens", "ms an answer"))) for table in tables("methods", folder)
    )
    return _put(text, "costs", shown)


def _put(text: str, name: str, shown: str) -> str:
    return between(text, name, shown, "make bench ARGS=--page")


def known_pairs(folder: Path = RESULTS) -> Table:
    """Advice on pairs of which the answer is known, beside what the same way did on new questions."""
    advised, compared, *_ = tables("advice", folder)
    kept = _columns(advised, advised.rows, but=("ways",))
    difference = compared.columns.index("difference")
    at = kept.columns.index("advice") + 1
    columns = [*kept.columns[:at], "on new questions", *kept.columns[at:]]
    rows = [
        [*row[:at], f"{new[difference]} ({new[difference + 1]})", *row[at:]]
        for row, new in zip(kept.rows, compared.rows, strict=True)
    ]
    return Table("", columns, rows)


def advice_in_words(folder: Path = RESULTS) -> str:
    """The sentences of the page of comparisons on when fusing helped and when not."""
    advised, compared, *_ = tables("advice", folder)
    gain, advice = advised.columns.index("gain"), advised.columns.index("advice")
    difference = compared.columns.index("difference")
    gains = [int(str(row[gain])) for row in advised.rows if row[advice] == "fuse them"]
    losses = [
        int(str(new[difference]))
        for row, new in zip(advised.rows, compared.rows, strict=True)
        if row[advice] != "fuse them"
    ]
    return (
        "For every pair of the bundled models, whichever drafts, the advice was to fuse, and the advised way gained "
        f"{min(gains)} to {max(gains)} points over the better model alone. For the pairs with a copy, noisy or not, "
        f"the advice was to use one model alone; if the worse model drafts, CoSD loses {-min(losses)} points."
    )


def where_units_end(folder: Path = RESULTS) -> list[Table]:
    """Requests by each rule and the likelihood of the text, of all pairs together; right answers."""
    asked, likely, rights = tables("units", folder)
    together = [_columns(one, [row for row in one.rows if row[0] == "all"], but=("pair",)) for one in (asked, likely)]
    return [*together, rights]


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
    """The sentences of the page of the gateway on what it costs and on what it was attacked with."""
    [added] = map(_named, tables("gateway", folder))
    most = max(row["streams"] for row in added)
    [there] = [row for row in added if row["streams"] == most and row[""] == "cosd serve, on top"]
    cost = (
        f"With {most} streams at once, `cosd serve` needs {there['CPU a token, us']:.0f} us more processor time for "
        "each token than the library alone, and its first text arrives "
        f"{there['to the first text, ms (p50)']:.1f} ms later (median)."
    )
    outcomes, *_ = map(_named, tables("attack", folder))
    requests, lost, wrong = (sum(row[name] for row in outcomes) for name in ("requests", "lost", "wrong"))
    return cost, f"Of {requests:,} requests, {lost} were lost and {wrong} wrong."


def batches_in_words(folder: Path = RESULTS) -> tuple[str, str]:
    """The sentences of the page of batches: on prompts that begin alike, and on memory."""
    long, cached = map(_named, tables("batch", folder))
    most = max(int(row["at a time"]) for row in cached)
    shares = [row["share"].replace("%", " %") for row in cached if row["at a time"] == most]
    alike = (
        f"In the order of the file, {shares[0]} of the tokens that the draft's server read came from its cache, and "
        f"{shares[1]} of the assistant's; in the order of the batch, {shares[2]} and {shares[3]}."
    )
    megabytes = " to ".join(map(str, sorted({row["resident memory, MB"] for row in long})))
    lines = f"{long[0]['lines written']} lines and for {long[-1]['lines written']}"
    return alike, f"`cosd batch` used {megabytes} MB of memory for {lines}."


def all_tables(folder: Path = RESULTS) -> str:
    """Every table that was kept, by section."""
    parts = [_TABLES]
    for section, title in _SECTIONS.items():
        found = tables(section, folder)
        if found:
            parts.append(f"## {title}\n")
            parts += [f"{table.markdown()}\n" for table in found]
    return "\n".join(parts)


def time_and_price(folder: Path = RESULTS) -> Table:
    """All methods in the headline case."""
    [time], [price] = (_titled("simulated", f"Simulated, {what}. {HEADLINE}", folder) for what in ("time", "price"))
    paid = {row[0]: row for row in price.rows}
    rows: list[list[Any]] = []
    for name, seconds, times_alone in (row[:3] for row in time.rows):
        _, _, asked, _, draft_read, assistant_read, drafted = paid.get(name, [None] * 7)[:7]
        rows.append([name, str(seconds).split(" ", 1)[0], times_alone, asked, assistant_read, draft_read, drafted])
    columns = ["method", "seconds", "x draft alone", "requests to the assistant", "tokens it reads", "the draft reads"]
    return Table("", [*columns, "and writes"], rows)


def right_answers(folder: Path = RESULTS) -> Table:
    """Right answers of the first pair, by who decides and by kind of question."""
    whole, *_ = tables("trees", folder)
    pair = whole.rows[0][0]
    return _columns(whole, [row for row in whole.rows if row[0] == pair], but=("pair", "draft's tokens kept"))


def excerpts(folder: Path = RESULTS) -> dict[str, str]:
    """The README's two tables: for each row the figures that must stand in it, in their order."""
    right = right_answers(folder)
    whole = right.columns.index("all")
    paid = time_and_price(folder)
    found = {str(row[0]): f"{row[1]} | {row[whole]}" for row in right.rows}
    return found | {str(row[0]): f"{row[2]} | {row[3]}" for row in paid.rows}


def _columns(table: Table, rows: Sequence[Sequence[Any]], *, but: tuple[str, ...]) -> Table:
    kept = [at for at, column in enumerate(table.columns) if column not in but]
    return Table("", [table.columns[at] for at in kept], [[row[at] for at in kept] for row in rows])


def _titled(section: str, title: str, folder: Path) -> list[Table]:
    return [table for table in tables(section, folder) if table.title == title]
