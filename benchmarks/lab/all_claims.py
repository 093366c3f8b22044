"""The page of all claims, with the verdict on each claim and the page on which it was decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from benchmarks.lab.claims import CLAIMS, Decided, Verdict, decided, scenarios
from benchmarks.lab.endless import ENDLESS, growth_claim
from benchmarks.lab.numbers import evidence, trainings, verdict
from benchmarks.lab.protocol import FOLDER
from benchmarks.lab.runs import RunsFile
from benchmarks.report import Table

__all__ = ["all_claims", "decided_in"]

_WORDS = FOLDER / "all_claims.md"
_NOT_TESTED: Verdict = "not tested"


def decided_in(file: RunsFile) -> list[Decided]:
    """The protocol's claims, followed by a claim that was added later and is decided separately."""
    added = growth_claim(file.runs)
    named = replace(added.claim, source=f"{added.claim.source}, added: `{ENDLESS}`")
    return [*decided(CLAIMS, scenarios(file.runs)), replace(added, claim=named)]


def all_claims(files: Sequence[RunsFile]) -> str:
    """The page with the claims of several runs of different sizes."""
    ordered = sorted(files, key=lambda file: file.about["items"])
    several = [decided_in(file) for file in ordered]
    rows: list[list[str]] = []
    found = Counter[str]()
    for claim in zip(*several, strict=True):
        tested = [at for at, one in enumerate(claim) if one.verdict != _NOT_TESTED]
        measured = [at for at, one in enumerate(claim) if one.evidence.what and one.evidence.effect is not None]
        at = max(tested or measured or [0])
        one, where = claim[at], _page(ordered[at]) if tested or measured else ""
        found[one.verdict] += 1
        shown = evidence(one.evidence, bound=True)
        rows.append([one.claim.source, one.claim.words, verdict(one), where, shown, trainings(one.evidence)])
    counts = [f"| *{one}* | {found[one]} of {len(rows)} |" for one in get_args(Verdict)]
    table = Table("", ["source", "claim", "verdict", "decided on", "found, in points", "trainings"], rows)
    return _WORDS.read_text(encoding="utf-8").format(
        counts="\n".join(counts),
        table=table.markdown().removeprefix("### \n\n"),
        pages=" and ".join(map(_page, ordered)),
    )


def _page(file: RunsFile) -> str:
    name = file.about["size"]
    return f"[{file.about['items']} questions]({name}.md#the-papers-claims)"
