"""The result of a fusion: the text, the source of each token, the cost; and its trace as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self, cast

from pydantic import Field, ValidationError

from cosd_api.decoding.commands import FinishReason
from cosd_api.errors import TraceError
from cosd_api.records import DRAFT, Endpoint, EndpointUsage, FusedToken, Record, Request, Segment, Timings
from cosd_api.replay import replayed, rewritten
from cosd_api.settings import CustomVerifier, Settings
from cosd_api.verification import Verifier
from cosd_api.version import __version__
from cosd_providers.text import readable, sendable


class FusionResult(Record):
    """A fused answer, which goes through `model_dump_json` and `model_validate_json` unchanged.

    Attributes:
        schema_version: version of this format; see the changelog.
        text: the answer.
        finish_reason: `"stop"` (end of sequence or a stop string), `"length"`, `"content_filter"`, `"budget"` (a limit
            of the caller's), or `"error"` (only in the `partial` of an error).
        stop_reason: the details: the end token, the stop string, `"max_tokens"`, `"context"`, `"repetition"`,
            `"max_requests"`, the error's name, ...
        tokens: the answer, token by token; their texts together are `text`, except where two models wrote parts of one
            character.
        acceptance_rate: draft tokens kept / (kept + replaced): the paper's proportion of draft tokens that were not
            replaced. Tokens without a question count as kept, unverified tokens (`unverified_tokens`) do not count. 1.0
            for an empty answer, None if all of it is unverified. This and the next four are None for methods in which
            no draft is judged.
        replacements: number of times that an assistant's word replaced the draft's word.
        iterations: drafting rounds: one, plus the replacements (and losses of an assistant) after which drafting
            continued.
        kept_tokens: draft tokens in the answer, unverified ones included.
        replaced_tokens: draft tokens that were replaced.
        drafted_tokens: tokens that the draft wrote in all, discarded ones included. Depends on timing.
        ties: places at which the draft's token was kept because an assistant found it as probable as its own, within
            `settings.tie`; None if no assistant was asked after ids.
        units: number of units in which the answer was judged; None if the method judges none.
        off_path: units that an assistant was asked about after a text cut at their start, which its server encodes
            again, perhaps as other tokens than the model would write; 0 if models were asked after ids.
        unjudged: units of models with different ids that were kept though an assistant could have changed them: they
            begin inside a token of its own, or the draft could not write far enough; None if models are asked
            otherwise.
        wasted_tokens: tokens of `drafted_tokens` that are not in the answer. Depends on timing.
        hedged_drafts: drafts that were started ahead of a verdict (`hedge`). Depends on timing, as the next two do.
        hedge_hits: number of hedged drafts that became the draft. The restarts that could have been hits are these and
            `draft_requests - hedged_drafts - 1` more.
        hedged_tokens: tokens of `drafted_tokens` that hedged drafts wrote before their verdict, most of them discarded.
        draft_requests: drafts that were started, hedged drafts included. Depends on timing. In methods in which every
            model writes, the requests to write to all models.
        assistant_requests: questions sent to assistants, each about one or many places, and requests to score a text.
            Depends on timing.
        usage: per endpoint, by name: `"draft"`, `"assistant"` (or `"assistant 1"`, `"assistant 2"`, ...).
        timings: in seconds.
        warnings: in words.
        draft: the draft endpoint.
        assistants: the assistants, in the order given.
        settings: verifier, unit, limits.
        segments: for methods that decide segment by segment: the proposed texts, and the reason for the choice.
        prompt_tokens: of the prompt alone, as billed by the server of the draft (or of another model that wrote). An
            estimate by the length of the text if the server billed it only together with text of the answer, or not at
            all. None in answers of earlier versions.
        failures: assistants without which the answer continued (`on_assistant_error="draft"`): the kind of each
            assistant's error, by name, such as `{"assistant": "ConnectError"}`.
        weights: of the models, by name, if the method measured them for this prompt (`weights="route"`).
        requests: all drafts and questions, in the order in which they were started. Depends on timing.
        library_version: of cosd-api.
    """

    schema_version: Literal[1, 2] = 2
    text: str
    finish_reason: FinishReason
    stop_reason: str
    tokens: tuple[FusedToken, ...]
    acceptance_rate: float | None
    replacements: int | None
    iterations: int | None
    kept_tokens: int | None
    replaced_tokens: int | None
    drafted_tokens: int
    ties: int | None = None
    units: int | None = None
    off_path: int | None = None
    unjudged: int | None = None
    wasted_tokens: int | None = None
    hedged_drafts: int = 0
    hedge_hits: int = 0
    hedged_tokens: int = 0
    draft_requests: int
    assistant_requests: int
    usage: dict[str, EndpointUsage]
    timings: Timings
    warnings: tuple[str, ...] = ()
    draft: Endpoint
    assistants: tuple[Endpoint, ...]
    settings: Settings
    segments: tuple[Segment, ...] = ()
    prompt_tokens: int | None = None
    failures: dict[str, str] = Field(default_factory=dict[str, str])
    weights: dict[str, float] | None = None
    requests: tuple[Request, ...] = ()
    library_version: str = __version__

    @property
    def judged(self) -> bool:
        """True if the method judges a draft."""
        return self.kept_tokens is not None

    @property
    def unverified_tokens(self) -> int:
        """The number of tokens that a failed assistant could have changed (`on_assistant_error="draft"`)."""
        return sum(not one.verified for one in self.tokens)

    @property
    def verified_kept_tokens(self) -> int:
        """The number of verified draft tokens in the answer: the kept tokens of `acceptance_rate`."""
        return (self.kept_tokens or 0) - sum(one.source == DRAFT and not one.verified for one in self.tokens)

    @property
    def trace(self) -> Trace:
        """The reasons for each token, in a form that a file can keep."""
        return Trace(self)

    def __str__(self) -> str:
        return self.text

    def __rich_repr__(self) -> Any:
        yield "text", self.text
        yield "finish_reason", self.finish_reason
        if self.judged:
            rate = self.acceptance_rate
            yield "acceptance_rate", None if rate is None else round(rate, 3)
            yield "replacements", self.replacements


_TRACE_KIND = "cosd-trace"
_HEADER = ("library_version", "draft", "assistants", "settings")
_LISTS = {"token": "tokens", "segment": "segments", "request": "requests"}


class Trace:
    """The reasons for each token of an answer: a `FusionResult` as JSON lines, one for each token, segment and request.

    Each line has a `type`. The first line is the header (`"kind": "cosd-trace"`, `schema_version`, the endpoints, the
    settings), the last line the end (the text, the finish reason, the cost). Between them are lines of type `"token"`
    (`FusedToken`, with its `index` from 0) and `"request"` (`Request`). The prompt is not included.

    Attributes:
        result: the answer.
    """

    schema_version = 2

    def __init__(self, result: FusionResult) -> None:
        self.result = result

    def __repr__(self) -> str:
        return f"Trace({len(self.result.tokens)} tokens, {len(self.result.requests)} requests)"

    def lines(self) -> Iterator[str]:
        """The trace as JSON, line by line, without line ends."""
        whole = self.result.model_dump(mode="json")
        lists = {kind: whole.pop(name) for kind, name in _LISTS.items()}
        version = {"schema_version": self.schema_version}
        yield _json({"type": "header", "kind": _TRACE_KIND, **version, **{name: whole.pop(name) for name in _HEADER}})
        for kind, items in lists.items():
            for index, item in enumerate(items):
                yield _json({"type": kind, "index": index, **item})
        yield _json({"type": "end", **whole})

    def save(self, path: str | Path) -> None:
        """Write the trace to a file, UTF-8.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_text("".join(f"{line}\n" for line in self.lines()), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a trace from its file.

        Raises:
            OSError: the file cannot be read.
            TraceError: the file is not a trace, or of a newer version, or a part of it is missing.
        """
        try:
            return cls._read(Path(path).read_bytes())
        except TraceError as error:
            raise TraceError(f"{path}: {error}") from None

    @classmethod
    def _read(cls, data: bytes) -> Self:
        found = [_object(line, number) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
        header = found[0] if found else {}
        if header.get("kind") != _TRACE_KIND:
            raise TraceError("this is not a trace: its first line is not the header of one")
        if header.get("schema_version") not in (1, cls.schema_version):
            words = f"its schema_version is {header.get('schema_version')!r}, and this version of cosd-api reads"
            raise TraceError(f"{words} 1 and {cls.schema_version}: update cosd-api")
        if found[-1].get("type") != "end":
            raise TraceError("the trace has no end: it was cut off, or is still being written")
        whole: dict[str, Any] = {name: header[name] for name in _HEADER if name in header}
        whole |= {name: list[Any]() for name in _LISTS.values()}
        for number, line in enumerate(found[1:-1], 2):
            kind = _LISTS.get(str(line.get("type")))
            if kind is None or line.get("index") != len(whole[kind]):
                raise TraceError(f"entry {number}, of type {line.get('type')!r}, is out of place")
            whole[kind].append(line)
        try:
            return cls(FusionResult.model_validate({**found[-1], **whole}))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise TraceError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None

    def replay(self, verifier: Verifier | None = None) -> str:
        """Judge every recorded decision again, and build the text from the verdicts.

        Args:
            verifier: by default the recorded one.

        Returns:
            The text, which is `result.text`.

        Raises:
            TraceError: a verdict, the choice of a segment, or the text differs from the record; or the verifier was the
                user's own and is not given.
        """
        if self.result.tokens and not self.result.requests:
            raise TraceError("the answer was made by a version of cosd-api that recorded no trace")
        parts = self.result.settings.contexts == "ids" or any(one.id is not None for one in self.result.tokens)
        spell = sendable if parts else readable
        text = spell(self._replayed(verifier))
        if text != self.result.text:
            raise TraceError("the recorded tokens are not the recorded text")
        return text

    def _replayed(self, verifier: Verifier | None) -> bytes:
        result = self.result
        stops = bool(result.settings.stop)
        judge = verifier if verifier is not None else result.settings.verifier
        if judge is None or not result.judged:
            if verifier is not None:
                raise TraceError(f"the method {result.settings.method!r} has no verifier: leave it out")
            return rewritten(result.tokens, result.segments)
        if isinstance(judge, CustomVerifier):
            raise TraceError(f"the verifier was one of your own ({judge.description}): give it, replay(verifier=...)")
        names, drawn = [assistant.name for assistant in result.assistants], bool(result.settings.temperature)
        return replayed(result.tokens, judge, names, stops=stops, drawn=drawn)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _object(line: bytes, number: int) -> dict[str, Any]:
    """One line of a trace."""
    try:
        found = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        if b"\\u" in line:
            _json(found).encode()  # half of a character, written as an escape, is no text
    except (ValueError, RecursionError):
        raise TraceError(f"line {number} is not JSON") from None
    if not isinstance(found, dict):
        raise TraceError(f"line {number} is not a JSON object")
    return cast("dict[str, Any]", found)
