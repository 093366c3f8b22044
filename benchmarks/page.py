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
    "cpu": "The client's processor time",
    "client": "The client's processor time, by HTTP library, load and length",
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

`make bench` measures everything on this page, and `make bench ARGS=--page` writes the page. [All
tables](benchmark-tables.md) are on a page of their own, and every repetition is in `benchmarks/results`. Compare
figures only within a table, because only the rows of one table were measured in the same run.

## Time and price

The first table is about answers of 512 tokens over HTTP, with a round trip of 20 ms. The assistant writes a tenth of
the tokens. The models are *simulated*, because this allows any acceptance (the share of drafted tokens that are kept)
to be measured. The draft writes its first token after 50 ms, and then 60 tokens a second; the assistant needs 60 ms for
a request. The HTTP traffic and the measured times are real.

{time_and_price}

- **(a)** is this library with its default settings, or with one field of `Tuning` changed as stated. All methods in
  this table decide by the paper's rule (alpha = beta = 0.5), which was the default when they were measured. In the
  other tables, `cosd` and *rule* also mean the paper's rule.
- **(b)** drafts in fixed rounds of *K* tokens and verifies each round in one request.
- **(c)** asks the assistant about one position at a time.
- **(d)** is the draft alone, writing the same text.
- **The floor** is the shortest possible time for a method that drafts first and replaces one token at a time: the time
  of (d), plus one verification and one restart of the draft for each replacement. The time of (d) already includes the
  writing of the first token after each restart; the row *restarts in full* counts this token twice. Methods with
  `hedge` can be faster than the floor because they start hedged drafts before the verdict. In this simulation, 70 % of
  the replacements were the draft's second choice. This share was not measured on real pairs. On the bundled models,
  hedges hardly ever match, because a model that is unsure of an answer has learned nothing about it.

The benchmark ends with an error unless (a), (b) and (c) write the same text. Tokens that a model reads are billed,
whether they are cached or not.

![Wall time over acceptance](benchmark.svg)

The next table shows the wall time as a multiple of the floor. Each column states an acceptance, a round trip and, if it
is not 512 tokens, the length of the context:

{floor}

## A real language model

This section compares the draft alone with a fusion of two models that share a tokenizer, each on a llama.cpp server
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

The page *All tables* also shows the processor time per token [by library](benchmark-tables.md#client-cpu-by-library)
and for answers [of several lengths](benchmark-tables.md#client-cpu-by-length). Two more tables show the event loop's
delays when one process runs [many fusions](benchmark-tables.md#event-loop-with-many-fusions), and the tokens that a
server still generates [after a cancellation](benchmark-tables.md#tokens-generated-after-a-cancellation).

## Who should decide

Two bundled models answer 200 questions of each kind, with numbers that neither model has seen. The table shows the
share of right answers. Both models were trained on true texts only. Each model has also seen the other model's facts,
but so rarely that it learned to doubt them. The draft is therefore unsure when it is wrong, and every method that
replaces unsure tokens does well. The table says nothing about models that are confidently wrong. Mixed questions, which
need both models, served to tune the rule and to train the trees. *The paper's tree* is grown with the paper's settings.
The trees of *other* examples were trained on questions that one model can answer by itself.

{trees}

On mixed questions, the tree of 100 examples is 2 points better than the tuned rule; the trees of fewer examples are not
better than the rule. Each tree is trained on one draw of examples. [All
tables](benchmark-tables.md#trees-and-a-tuned-rule) show ten draws, and also the same pair with draft and assistant
swapped.

## Where a unit ends

If two models have different tokenizers, the assistant judges the draft [by
words](concepts.md#units-one-tokenizer-or-several): a unit ends at a common boundary of both encodings at which a word
starts. This section compares this definition of a unit with two alternatives. In the first, every common boundary ends
a unit; in the second, every common boundary also ends a replacement (`make bench ARGS=units`). The first table
summarises four pairs of models that write short pages of text:

{units}

The second table shows how likely these texts are. It contains their negative log-likelihoods, in nats per byte, under
each model and under an equal mixture of both models. The brackets contain the difference from *words* and its 95 %
interval:

{likely}

The third table counts the right answers of the bundled pair:

{rights}
"""

_TABLES = """# All tables

`make bench ARGS=--page` writes this page from `benchmarks/results`. [What a fusion costs](benchmark.md) explains the
methods (a) to (d) and the floor. Tables about bundled models of two million parameters describe two models of earlier
releases; the three models that are bundled now have one million parameters each.
"""


_HOSTS = ("methods", "comparison")
"""Pages in which only the tables between marks are generated; their other text is written by hand."""


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
    """The text of the page on methods, with the current table of their costs inserted."""
    shown = "".join(
        bare(_columns(table, table.rows, but=("tokens", "ms an answer"))) for table in tables("methods", folder)
    )
    return _put(text, "costs", shown)


def _put(text: str, name: str, shown: str) -> str:
    return between(text, name, shown, "make bench ARGS=--page")


def known_pairs(folder: Path = RESULTS) -> Table:
    """The advice on pairs for which the right advice is known, and the result of the chosen way on new questions."""
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
    """The sentences on the comparison page about when fusing helped and when it did not."""
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
        "For every pair of the bundled models, whichever model drafts, the advice was to fuse, and the advised way "
        f"gained {min(gains)} to {max(gains)} points over the better model alone. For the pairs with a copy, "
        f"noisy or not, the advice was to use one model alone; if the worse model drafts, "
        f"CoSD loses {-min(losses)} points."
    )


def where_units_end(folder: Path = RESULTS) -> list[Table]:
    """Three tables by rule: requests and likelihoods, each for all pairs together, and the right answers."""
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
    """The sentences on the gateway's page about the gateway's cost and about the attack on it."""
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
    return cost, f"Of {requests:,} requests, {lost} were lost and {wrong} were wrong."


def batches_in_words(folder: Path = RESULTS) -> tuple[str, str]:
    """The sentences on the batch page about prompts that begin alike and about memory."""
    long, cached = map(_named, tables("batch", folder))
    most = max(int(row["at a time"]) for row in cached)
    shares = [row["share"].replace("%", " %") for row in cached if row["at a time"] == most]
    alike = (
        f"When lines were sent in the order of the file, the draft's server read {shares[0]} of its tokens from the "
        f"cache, and the assistant's server read {shares[1]}. In the order of `cosd batch`, these shares were "
        f"{shares[2]} and {shares[3]}."
    )
    megabytes = " to ".join(map(str, sorted({row["resident memory, MB"] for row in long})))
    lines = f"{long[0]['lines written']} lines and also for {long[-1]['lines written']} lines"
    return alike, f"`cosd batch` used {megabytes} MB of memory for {lines}."


def all_tables(folder: Path = RESULTS) -> str:
    """The text of the page with all kept tables, by section."""
    parts = [_TABLES]
    for section, title in _SECTIONS.items():
        found = tables(section, folder)
        if found:
            parts.append(f"## {title}\n")
            parts += [f"{table.markdown()}\n" for table in found]
    return "\n".join(parts)


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


def right_answers(folder: Path = RESULTS) -> Table:
    """Right answers of the first pair, by model or verifier and by kind of question."""
    whole, *_ = tables("trees", folder)
    pair = whole.rows[0][0]
    return _columns(whole, [row for row in whole.rows if row[0] == pair], but=("pair", "draft's tokens kept"))


def excerpts(folder: Path = RESULTS) -> dict[str, str]:
    """The figures that the README's two tables must contain: for each row, its figures in order."""
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
