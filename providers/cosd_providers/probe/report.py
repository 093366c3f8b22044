"""What a probe has found: a report that goes through JSON, and can be given back to `connect`."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from cosd_providers.probe.lines import Line, Spent, Way
from cosd_providers.probe.words import line, prices, spent, wrapped
from cosd_providers.snapshot import Snapshot

__all__ = ["ProbeReport", "unit_of"]


class ProbeReport(Snapshot):
    """What a server can really do. `str(report)` is for people, `report.model_dump_json()` has how each line was found.

    Attributes:
        version: the server's, where it tells.
        lines: what was asked, in order.
        can_draft: whether a fusion can use it as its draft.
        can_assist: whether a fusion can use it as an assistant.
        by_agreement: whether an assistant only in that it may be asked whether it agrees: it tells no probabilities.
        draft_lacks: what is missing for a draft, in words.
        assistant_lacks: what is missing for an assistant.
        ways: the strategies that were tried, the proved ones first.
        advice: what would make it better.
        encoding: a digest of the test text's encoding; two models with the same one have the same tokenizer.
        spent: what the probe has cost.
    """

    version: str | None = None
    lines: tuple[Line, ...] = ()
    can_draft: bool = False
    can_assist: bool = False
    by_agreement: bool = False
    draft_lacks: tuple[str, ...] = ()
    assistant_lacks: tuple[str, ...] = ()
    ways: tuple[Way, ...] = ()
    advice: tuple[str, ...] = ()
    encoding: str | None = None
    spent: Spent = Spent()

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies by which it can be asked as an assistant."""
        return tuple(way.name for way in self.ways if way.proved)

    def __getitem__(self, name: str) -> Line:
        """The line of that name.

        Raises:
            KeyError: there is none; it names those that there are.
        """
        for one in self.lines:
            if one.name == name:
                return one
        raise KeyError(f"the report has no line {name!r}; it has {', '.join(one.name for one in self.lines) or 'none'}")

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the report as JSON, for `load` and for `connect(url, report=path)`."""
        Path(path).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        version = f" {self.version}" if self.version else ""
        kind = self.options.get("dialect") or self.engine or "a provider"
        rows = [f"{self.endpoint}: {kind}{version}, model {self.model or 'unknown'}", ""]
        for one in self.lines:
            rows += line(one)
        rows.append("")
        refused = any(one.name == "server" and one.value is False for one in self.lines)  # the reason stands there
        rows += wrapped("as a draft", "no" if refused else "; ".join(self.draft_lacks) or "yes")
        rows += wrapped("as an assistant", "no" if refused else "; ".join(self.assistant_lacks) or self._asked())
        rows += prices(self.ways)
        for words in self.advice:
            rows += wrapped("would help", words)
        rows += wrapped("this probe", spent(self.spent))
        return "\n".join(rows)

    def _asked(self) -> str:
        if self.by_agreement:
            return "by agreement alone: it tells no probabilities (verifier=AgreementVerifier(alpha=0.5))"
        return f"yes, asked by {', '.join(self.strategies)}" if self.ways else "yes"

    def __repr_args__(self) -> Sequence[tuple[str | None, Any]]:
        return [("endpoint", self.endpoint), ("engine", self.engine), ("model", self.model)]


def unit_of(reports: Sequence[ProbeReport]) -> Literal["token", "word"]:
    """What a fusion of these models judges by: `"token"` where all of them are known to have one tokenizer."""
    encodings = {report.encoding for report in reports}
    return "token" if len(encodings) == 1 and None not in encodings else "word"
