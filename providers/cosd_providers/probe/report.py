"""The report of a probe: text for people, JSON for programs, and a snapshot of the server for `connect`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cosd_providers.connect import Snapshot

Value = bool | int | float | str | None
"""The value of a line; None means that it is unknown."""

UNTRUSTED = "; with servers of this kind a fusion does not rely on it, and says so"
"""Words that are added if the server reports the probability of the end, but its adapter does not rely on it."""

_WIDTH, _INDENT = 80, 19


@dataclass(frozen=True, slots=True)
class Words:
    """The name, the title and the question of a line, and its words for True, for False and for any other known value.

    In the words, `{value}` is the value and `{seen}` for the server's reaction. A line without a title is only
    part of the JSON.
    """

    name: str
    title: str
    asked: str
    yes: str = "yes"
    no: str = "no: {seen}"
    other: str = "{value}"


_SEEN = "yes: {seen}"
_BOTH = "{value}: {seen}"
_ROWS = (
    Words("server", "server", "what it is, and whether it can be used at all", no="refused: {seen}"),
    Words("context", "context", "its description of itself", other="{value} tokens, as the server says"),
    Words("tokenizer", "tokenizer", "the tokens of a text: words, code, scripts, emoji"),
    Words("spaces", "spaces", "the tokens of frequent phrases", _SEEN),
    Words("logprobs", "streamed logprobs", "one token, with 5 alternatives"),
    Words("depth", "alternatives", "one token, with more and more alternatives"),
    Words("probabilities", "probabilities", "the same first token at temperature 0, 1 and 0.5", other=_BOTH),
    Words("scoring", "prompt scoring", "a text, scored in one request and generated at places of it", other=_BOTH),
    Words("lists", "prompt lists", "two prompts in one request, compared with each prompt alone"),
    Words("ids", "token-id prompts", "the ids of a text, compared with the text"),
    Words("template", "chat template", "a user's message in the template", other="writes {value!r} before an answer"),
    Words("prefill", "answer prefill", "a reply, and its first half continued", other="yes, by {value}"),
    Words("end", "end of sequence", "the end of a draft", "shown, with its probability", "hidden: {seen}"),
    Words("bytes", "exact bytes", "an answer that can only be a text with characters of several bytes", _SEEN),
    Words("whole", "whole prompt read", "the tokens read of a text, of twice the text, and of line breaks after it"),
    Words("cache", "prefix cache", "the tokens of a repeated prompt from a cache", "seen: {seen}", "none seen: {seen}"),
    Words("restart", "restart", "a text in the cache, and its first half with another token", other="{seen}"),
    Words("round_trip", "round trip", "one token, several times: the fastest request", other="{seen}"),
    Words("draft", "a draft, resumed", "a short draft, and half of it continued", other="by {value}: {seen}"),
    Words("score", "", "the draft's text, scored and compared with the draft"),
    Words("propose", "its draft proposed", "the proposals at places of its own answer, compared with it", _SEEN),
    Words("after_ids", "asked after ids", "drafts by ids, and the token after the ids before each place", _SEEN),
    Words(
        "tie", "ties", "the log probabilities of the same drafts, written, and read in lists and alone", other="{seen}"
    ),
    Words("sampling", "sampling", "two drafts with one seed, and draws of one token", "yes, seeded: {seen}"),
    Words("hidden_states", "hidden states", "the states of a draft, listed with it and requested for its text", _SEEN),
    Words(
        *("allowed", "structured answers", "the most probable token that begins with a letter and is not listed"),
        *("of any token: {seen}", "no: {seen}", "only of its {value} most probable tokens"),
    ),
)
LINES: Mapping[str, Words] = {row.name: row for row in _ROWS}
"""All lines of a report, by name, in the order of the report, which is also the order of the checks.

A new check is a row here, and a function with the decorator `state.check` in the list at the end of its module.
"""

UNUSABLE: Mapping[tuple[str, Value], str] = {
    ("probabilities", "degenerate"): "at temperature 0 it shows no probabilities but 1 and 0",
    ("probabilities", "changed"): "the probabilities that it shows at temperature 0 are not the model's own",
    ("whole", False): "it does not read all of a prompt, and does not say so",
    ("bytes", False): "its tokens do not have the bytes of the text",
}
"""The values of lines with which a server can be neither a draft nor an assistant, each with the reason."""


class Line(BaseModel):
    """A line of a report: a finding about a server.

    Attributes:
        name: the subject, such as `"lists"`.
        value: the finding; None if the probe could not find it out.
        asked: the question.
        seen: the server's reaction, or the reason why there is none.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    value: Value
    asked: str
    seen: str

    def __str__(self) -> str:
        row, value, seen = LINES.get(self.name, Words(self.name, self.name, self.asked)), self.value, self.seen
        match value:
            case None:
                words = "unknown: {seen}"
            case True:
                words = row.yes + (": {seen}" if seen.endswith(UNTRUSTED) else "")
            case False:
                words = row.no
            case "endpoint":
                words = "the server's own"
            case int() if seen.endswith(f": {value}"):  # as many alternatives were listed as were requested
                words = "{value} or more"
            case _:
                words = row.other
        return words.format(value=value, seen=seen)


class Way(BaseModel):
    """A strategy for asking an assistant.

    Attributes:
        name: the strategy.
        proved: whether the strategy's answers agreed with the model's own answer and with the other strategies.
        wrong: whether the strategy's answers differed from the answers that were expected.
        seen: the result of the comparison, or the error.
        cached: share of the prompt tokens that came from the server's cache during the probe, from 0 to 1; None if the
            server does not report it.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    proved: bool
    wrong: bool = False
    seen: str
    cached: float | None


class Spent(BaseModel):
    """The cost of the probe itself.

    Attributes:
        requests: number of requests for which the model generated or scored text.
        prompt_tokens: number of tokens that the model read.
        completion_tokens: number of tokens that the model wrote.
        seconds: duration of the probe, in seconds.
    """

    model_config = ConfigDict(frozen=True)

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        tokens = f"{self.prompt_tokens:,} tokens read, {self.completion_tokens:,} written"
        return f"{self.requests} requests, {tokens}, {self.seconds:.1f} s"


class ProbeReport(Snapshot):
    """The abilities of a server. `str(report)` is for people; `report.model_dump_json()` includes all the evidence.

    Attributes:
        version: the server's version, if it reports one.
        lines: the findings, in order.
        can_draft: whether a fusion can use the server as its draft.
        can_assist: whether a fusion can use the server as an assistant.
        by_agreement: whether the server can assist only with `AgreementVerifier`, because it reports no probabilities.
        draft_lacks: the abilities that the server lacks as a draft, in words.
        assistant_lacks: the abilities that the server lacks as an assistant, in words.
        ways: the strategies that were tried, with the proved ones first.
        advice: changes to the server or its settings that would help.
        encoding: digest of the token ids of a test text. Models with equal digests share a tokenizer. None if the
            server does not encode text.
        vocabulary: digest of the vocabulary, which the probe reads from the server's ids (`same_ids.vocabulary`).
            Models with equal digests are compared by ids. None if the server does not accept or return ids.
        tie: the greatest difference between two log probabilities that counts as a tie on this server, for
            `Fusion(tie=...)`; None if the probe could not find it out.
        spent: the cost of the probe.
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
    vocabulary: str | None = None
    tie: float | None = None
    spent: Spent = Spent()

    @property
    def strategies(self) -> tuple[str, ...]:
        """The proved strategies, which a fusion can use to ask the server as an assistant."""
        return tuple(way.name for way in self.ways if way.proved)

    def __getitem__(self, name: str) -> Line:
        """Return the line with this name.

        Raises:
            KeyError: the report has no such line. The message lists the existing lines.
        """
        for line in self.lines:
            if line.name == name:
                return line
        names = ", ".join(line.name for line in self.lines) or "none"
        raise KeyError(f"the report has no line {name!r}; it has {names}")

    def save(self, path: str | PathLike[str]) -> None:
        """Write the report as JSON, for `load` and for `connect(url, report=path)`."""
        Path(path).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        version = f" {self.version}" if self.version else ""
        kind = self.options.get("dialect") or self.engine or "a provider"
        rows = [f"{self.endpoint}: {kind}{version}, model {self.model or 'unknown'}", ""]
        refused = False
        for line in self.lines:
            title = LINES[line.name].title if line.name in LINES else ""
            if line.name == "server":  # if the server is usable, the first row already names it
                refused = line.value is False
            if title and (line.name != "server" or refused):
                rows += _wrapped(title, str(line))
        rows.append("")
        rows += _wrapped("as a draft", "no" if refused else "; ".join(self.draft_lacks) or "yes")
        rows += _wrapped("as an assistant", "no" if refused else "; ".join(self.assistant_lacks) or self._asked_by())
        for way in self.ways:
            if not way.proved:
                rows += _wrapped("not used", f"{way.name}: {way.seen}")
        for words in self.advice:
            rows += _wrapped("would help", words)
        rows += _wrapped("this probe", str(self.spent))
        return "\n".join(rows)

    def _asked_by(self) -> str:
        if self.by_agreement:
            return "by agreement alone: it shows no probabilities (verifier=AgreementVerifier(alpha=0.5))"
        return f"yes, asked by {', '.join(self.strategies)}" if self.ways else "yes"

    def __repr_args__(self) -> Sequence[tuple[str | None, Any]]:
        return [("endpoint", self.endpoint), ("engine", self.engine), ("model", self.model)]


@dataclass(frozen=True, slots=True)
class Definition:
    """The unit in which models are compared by default, and the reason for it.

    Attributes:
        contexts: `"ids"` if all models continue ids; `"text"` if at least one model can continue only text.
        unit: the unit that is judged: a token or a word.
        reason: the reason, in words.
        tie: the greatest `tie` of the reports, for `Fusion(tie=...)`; None if no report has one, or if `contexts` is
            `"text"`, which needs none.
    """

    contexts: Literal["ids", "text"]
    unit: Literal["token", "word"]
    reason: str
    tie: float | None = None


def definition_of(reports: Sequence[ProbeReport]) -> Definition:
    """Return the unit in which these models are compared by default, and the reason."""
    unit: Literal["token", "word"] = "token" if len({report.vocabulary for report in reports}) == 1 else "word"
    without = [report for report in reports if report.vocabulary is None]
    if not without:
        ties = [report.tie for report in reports if report.tie is not None]
        servers = "both servers" if len(reports) == 2 else "all servers"
        which = "the same ids" if unit == "token" else "different ones"
        return Definition("ids", unit, f"{servers} take and show ids and have {which}", max(ties, default=None))
    return Definition("text", "word", f"{_named(without)} cannot be asked after ids")


def _named(reports: Sequence[ProbeReport]) -> str:
    return " and ".join(dict.fromkeys(report.endpoint for report in reports))


def in_digits(value: float) -> str:
    """Format a number in decimal notation without an exponent, such as 0.00002."""
    return f"{value:.9f}".rstrip("0").removesuffix(".")


def _wrapped(title: str, text: str) -> list[str]:
    """Format a title and its text, wrapped into rows."""
    rows = textwrap.wrap(text, _WIDTH - _INDENT, break_long_words=True, break_on_hyphens=False) or [""]
    return [f"{title if not at else '':<{_INDENT}}{part}" for at, part in enumerate(rows)]
