"""The result of a fusion, and its trace, which can be saved to a file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self, cast

from pydantic import Field, SerializeAsAny, ValidationError

from cosd_api.decoding.commands import FinishReason
from cosd_api.errors import TraceError
from cosd_api.records import DRAFT, Endpoint, EndpointUsage, FusedToken, Record, Request, Seam, Segment, Timings
from cosd_api.replay import replayed, rewritten
from cosd_api.settings import CustomVerifier, Settings
from cosd_api.verification import Verifier
from cosd_api.version import __version__
from cosd_providers.text import readable, sendable


class FusionResult(Record):
    """A fused answer, which a round trip through `model_dump_json` and `model_validate_json` leaves unchanged.

    Attributes:
        schema_version: version of the format of this record; see the changelog.
        text: the answer.
        finish_reason: `"stop"` (end of sequence or a stop string), `"length"`, `"content_filter"`, `"budget"` (one of
            the caller's limits), or `"error"` (only in the `partial` of an error).
        stop_reason: the details of `finish_reason`: the end token, the stop string, `"max_tokens"`, `"context"`,
            `"repetition"`, `"max_requests"`, the error's name, ...
        tokens: the answer, token by token. The texts of the tokens join to `text`, unless two models wrote parts of one
            character.
        acceptance_rate: share of draft tokens that were kept, which is kept / (kept + replaced), as in the paper.
            Tokens about which no assistant was asked count as kept. Unverified tokens (`unverified_tokens`) are not
            counted. The rate is 1.0 for an empty answer and None if all tokens are unverified. For methods that do not
            judge a draft, `acceptance_rate`, `replacements`, `iterations`, `kept_tokens` and `replaced_tokens` are
            None.
        replacements: number of times that an assistant's word replaced the draft's word.
        iterations: number of drafting rounds, which is one plus the number of replacements (or lost assistants) after
            which drafting continued.
        kept_tokens: number of draft tokens in the answer, including unverified tokens.
        replaced_tokens: number of draft tokens that were replaced.
        drafted_tokens: number of tokens that the draft wrote, including discarded tokens. Depends on timing.
        ties: number of places at which the draft's token was kept because an assistant found it as probable as its own
            first choice, within `settings.tie`; None if no assistant was sent ids.
        units: number of units in which the answer was judged; None if the method judges no units.
        off_path: number of units for which an assistant had to continue a cut text. The server encodes a cut text
            again, possibly into tokens that the model would not write. The number is 0 if the models share the same
            token ids and were sent ids.
        unjudged: number of units that were kept without a verdict although an assistant could have changed them,
            because they begin inside one of the assistant's tokens or the draft could not write far enough. None unless
            models with different ids were judged on their own paths.
        wasted_tokens: number of drafted tokens that are not in the answer. Depends on timing.
        draft_requests: number of drafts that were started. For methods in which every model
            writes, the number of writing requests to all models. Depends on timing.
        assistant_requests: number of questions to assistants (each about one or more places) plus requests to score a
            text. Depends on timing.
        usage: the cost at each endpoint, by name: `"draft"`, `"assistant"` (or `"assistant 1"`, `"assistant 2"`, ...).
        timings: the times of the answer, in seconds.
        warnings: warnings about the answer, each of which is one sentence.
        draft: the draft endpoint.
        assistants: the assistants, in the order in which the user gave them.
        settings: the settings and limits of the answer.
        seams: the places at which an assistant began to write alone, because the draft had failed, and those at which
            the draft returned (`on_draft_error="assistant"`).
        segments: for methods that decide segment by segment, the proposed texts of each segment and the reason for the
            choice.
        prompt_tokens: number of tokens in the prompt alone, as billed by the draft's server (or by the server of
            another model that wrote). It is estimated from the length of the prompt's text if the server billed the
            prompt only together with text of the answer, or not at all. None in answers from earlier versions of the
            library.
        failures: the failed models without which the answer continued (`on_assistant_error="draft"`,
            `on_draft_error="assistant"`), by name, with the class name of the error, such as
            `{"assistant": "ConnectError"}`.
        weights: the models' weights, by name, if the method determined them for this prompt (`weights="route"`).
        requests: all requests of the answer, in the order in which they were started. Depends on timing.
        parsed: the value of an answer with a `response_format`: an object of the pydantic model, the value of the JSON
            text, or the text itself. None if the answer has no format, was cut short, or is not valid; a warning then
            says why. After a round trip, an object of a model is a dictionary.
        library_version: version of cosd-api that generated the answer.
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
    draft_requests: int
    assistant_requests: int
    usage: dict[str, EndpointUsage]
    timings: Timings
    warnings: tuple[str, ...] = ()
    draft: Endpoint
    assistants: tuple[Endpoint, ...]
    settings: Settings
    seams: tuple[Seam, ...] = ()
    segments: tuple[Segment, ...] = ()
    prompt_tokens: int | None = None
    failures: dict[str, str] = Field(default_factory=dict[str, str])
    weights: dict[str, float] | None = None
    requests: tuple[Request, ...] = ()
    parsed: SerializeAsAny[Any] = None
    library_version: str = __version__

    @property
    def judged(self) -> bool:
        """Test whether the method judges a draft."""
        return self.kept_tokens is not None

    @property
    def unverified_tokens(self) -> int:
        """The number of tokens that a failed model might have changed (`on_assistant_error`, `on_draft_error`)."""
        return sum(not one.verified for one in self.tokens)

    @property
    def shares(self) -> dict[str, float]:
        """The share of the answer's tokens that each model wrote, by name; 0 for an empty answer."""
        wrote = Counter(token.source for token in self.tokens)
        names = [DRAFT, *(one.name for one in self.assistants)]
        return {name: wrote[name] / max(1, len(self.tokens)) for name in names}

    @property
    def verified_kept_tokens(self) -> int:
        """The number of verified draft tokens in the answer, which `acceptance_rate` counts as kept."""
        return (self.kept_tokens or 0) - sum(one.source == DRAFT and not one.verified for one in self.tokens)

    @property
    def trace(self) -> Trace:
        """The trace of the answer, which can be saved to a file."""
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
    """A `FusionResult` as JSON lines, with the reason for every token.

    Each line has a `type`. The first line is the header (`"kind": "cosd-trace"`, `schema_version`, the endpoints and
    the settings), and the last line has the type `"end"` (the text, the finish reason and the cost). Between them, each
    token, segment and request has a line of type `"token"` (`FusedToken`), `"segment"` (`Segment`) or `"request"`
    (`Request`), with its `index`, counted from 0. The prompt is not included.

    Attributes:
        result: the answer.
    """

    schema_version = 2

    def __init__(self, result: FusionResult) -> None:
        self.result = result

    def __repr__(self) -> str:
        return f"Trace({len(self.result.tokens)} tokens, {len(self.result.requests)} requests)"

    def lines(self) -> Iterator[str]:
        """Iterate over the lines of JSON, without line endings."""
        whole = self.result.model_dump(mode="json")
        lists = {kind: whole.pop(name) for kind, name in _LISTS.items()}
        version = {"schema_version": self.schema_version}
        yield _json({"type": "header", "kind": _TRACE_KIND, **version, **{name: whole.pop(name) for name in _HEADER}})
        for kind, items in lists.items():
            for index, item in enumerate(items):
                yield _json({"type": kind, "index": index, **item})
        yield _json({"type": "end", **whole})

    def save(self, path: str | Path) -> None:
        """Write the trace to a file, in UTF-8.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_text("".join(f"{line}\n" for line in self.lines()), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a trace from a file.

        Raises:
            OSError: the file cannot be read.
            TraceError: the file is not a trace, has a newer version, or is incomplete.
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
            verifier: the verifier that judges the decisions; by default the recorded verifier.

        Returns:
            The text, which equals `result.text`.

        Raises:
            TraceError: a verdict, the choice of a segment, or the text differs from the record. Also raised if the
                answer was judged by the user's own verifier and `verifier` is not given.
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
    """Parse one line of a trace."""
    try:
        found = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        if b"\\u" in line:
            _json(found).encode()  # raises for a lone surrogate, which JSON can escape
    except (ValueError, RecursionError):
        raise TraceError(f"line {number} is not JSON") from None
    if not isinstance(found, dict):
        raise TraceError(f"line {number} is not a JSON object")
    return cast("dict[str, Any]", found)
