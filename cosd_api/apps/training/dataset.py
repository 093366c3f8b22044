"""Examples and decision samples, in memory and in files (section 3.2 and equation 7 of the CoSD paper).

An example is a prompt and its reference answer. At each place in the reference, each model would write some token next,
with some probability. A decision sample records both probabilities, and which model is right.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError

from cosd_api import Example, SettingError, __version__
from cosd_api.apps.json_lines import (
    SAMPLES,
    JsonLine,
    JsonLines,
    foreign_kind,
    line_error,
    problem,
    read_lines,
    read_records,
)
from cosd_api.common.wording import with_notes
from cosd_api.extend import Unit
from cosd_api.forcing import DeferralSample, ExampleSamples, Label, StrictRecord, sha256_of
from cosd_api.types import Endpoint, EndpointUsage

Contexts = Literal["ids", "text"]
"""Form in which models are sent the answer so far, as in `FusionResult.settings.contexts`: their own ids, or text."""
_EXAMPLE_LINES = 'lines such as {"prompt": "2 + 2 =", "answer": " 4"}'
_REPAIR = ". Remove the line, and collect will ask about its example again"
_ANOTHER_FILE = "give collect another file, or move this one away"


class Failure(StrictRecord):
    """An example for which an endpoint failed.

    Attributes:
        number: position of the example among the given examples, counted from 1.
    """

    number: int
    example: Example
    error: str


class Samples(StrictRecord):
    """Decision samples of one pair of models.

    Attributes:
        examples: the examples with their samples.
        draft: the draft endpoint; None for samples that were not collected.
        assistant: the assistant endpoint; None for samples that were not collected.
        unit: the unit that was judged: `"token"` if both models have the same tokenizer, else `"word"`, or `"literal"`
            if the user chose it.
        contexts: `"ids"` if both models were sent the answer as their own ids, `"text"` if a model was sent text; None
            for samples that were not collected.
        listed: number of alternative tokens that the draft listed at each place; None if no lists were requested.
        hidden_states: width of the draft's hidden states; None for samples without them.
        failed: the examples for which an endpoint failed.
        usage: requests and tokens of this run, by endpoint (`"draft"` and `"assistant"`).
        warnings: problems with the samples, in words.
        there: number of the given examples whose samples were already in the file.
    """

    examples: tuple[ExampleSamples, ...] = ()
    draft: Endpoint | None = None
    assistant: Endpoint | None = None
    unit: Unit | None = None
    contexts: Contexts | None = None
    listed: int | None = None
    hidden_states: int | None = None
    failed: tuple[Failure, ...] = ()
    usage: dict[str, EndpointUsage] = Field(default_factory=dict[str, EndpointUsage])
    warnings: tuple[str, ...] = ()
    there: int = 0

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that `collect` has written. If a crash cut the last line, it is left out, and a warning says so.

        Raises:
            OSError: the file cannot be read.
            SettingError: the file is of another kind or a newer version, or it is invalid.
        """
        file = SamplesFile.read(Path(path))
        if (header := file.header) is None:
            raise SettingError(f"{path} is empty: collect has written no samples to it yet")
        cut = f"the last line of {path} was cut and is left out; collect again to ask about its example"
        return cls(
            examples=file.examples,
            draft=header.draft,
            assistant=header.assistant,
            unit=header.unit,
            contexts=header.contexts,
            listed=header.listed,
            hidden_states=header.hidden_states,
            warnings=(cut,) if file.lines.rest else (),
        )

    @property
    def positions(self) -> int:
        """Number of judged places: `agreeing + labelled + dropped`."""
        return sum(len(one.samples) for one in self.examples)

    @property
    def agreeing(self) -> int:
        """Number of places where both models would have written the same text."""
        return self._count(agreed=True, labels=(0, 1, None))

    @property
    def labelled(self) -> int:
        """Number of places where the models differ and one of them is right. Trees are trained on these places."""
        return self._count(labels=(0, 1))

    @property
    def dropped(self) -> int:
        """Number of places where the models differ and neither is right."""
        return self._count(labels=(None,))

    @property
    def skipped(self) -> int:
        """Number of places that could not be judged; see `ExampleSamples`."""
        return sum(one.skipped for one in self.examples)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the examples and each sample's p, q, label and agreement, whatever the examples' order."""
        ordered = sorted(self.examples, key=lambda one: one.example.key)
        return sha256_of([[one.example.key, [[s.p, s.q, s.label, s.agreed] for s in one.samples]] for one in ordered])

    @property
    def deferral_digest(self) -> str:
        """SHA-256 (hex) of the examples and their deferral samples, whatever the examples' order."""
        ordered = sorted(self.examples, key=lambda one: one.example.key)
        return sha256_of([[one.example.key, [_told(sample) for sample in one.deferral or ()]] for one in ordered])

    def report(self) -> str:
        """Return the counts, one per line. `str()` adds the warnings."""
        rows = [
            (len(self.examples), f"examples, {self.there} of them there already" if self.there else "examples"),
            (self.positions, "places where both models were compared"),
            (self.agreeing, "agreeing: both would have written the same"),
            (self._count(labels=(0,)), "labelled 0: they differ, and the draft is right"),
            (self._count(labels=(1,)), "labelled 1: they differ, and the assistant is right"),
            (self.dropped, "dropped: they differ, and neither is right"),
            (self.skipped, "skipped: places that could not be compared"),
            (len(self.failed), "failed: examples that were left out"),
        ]
        rows += [
            (one.requests, f"requests to the {name}: {one.billed_tokens} tokens") for name, one in self.usage.items()
        ]
        width = max(len(str(count)) for count, _ in rows)
        return "\n".join(f"{count:>{width}} {words}" for count, words in rows)

    def __str__(self) -> str:
        return with_notes(self.report(), self.warnings)

    def _count(self, *, labels: tuple[Label | None, ...], agreed: bool = False) -> int:
        return sum(s.agreed == agreed and s.label in labels for one in self.examples for s in one.samples)


def _told(sample: DeferralSample) -> list[object]:
    found: list[object] = [sample.start, sample.draft, sample.listed, sample.p, sample.q, sample.handed]
    return found if sample.state is None else [*found, sample.state]


# Files of examples.


def read_examples(path: str | Path) -> list[Example]:
    """Read a file of examples, one per line, such as `{"prompt": ..., "answer": ...}`.

    Args:
        path: the file.

    Raises:
        OSError: the file cannot be read.
        SettingError: the file is empty or of another kind, or a line is not an example.
    """
    path = Path(path)
    if (kind := foreign_kind(path, wanted="examples")) is not None:
        raise SettingError(f"{path} is {kind}. Give examples: {_EXAMPLE_LINES}")
    examples: list[Example] = []
    for line in read_lines(path, may_be_cut=False).lines:
        try:
            examples.append(Example.model_validate(line.fields))
        except ValidationError as error:
            raise line_error(path, line.number, problem(error, [*Example.model_fields])) from None
    if not examples:
        raise SettingError(f"{path} is empty: give {_EXAMPLE_LINES}")
    return examples


def check_examples(given: Iterable[Example | Mapping[str, Any]]) -> dict[int, Example]:
    """Validate examples; return them without duplicates, indexed by their number, which is counted from 1.

    Raises:
        SettingError: there are no examples, or an example is invalid.
    """
    several: object = given
    if isinstance(several, str | bytes | Mapping | Example) or not isinstance(several, Iterable):
        raise SettingError(f"examples must be several Example or dictionaries, not {type(given).__name__}")
    examples: dict[int, Example] = {}
    there: set[str] = set()
    for at, one in enumerate(given):
        try:
            example = one if isinstance(one, Example) else Example.model_validate(one)
        except ValidationError as error:
            raise SettingError(f"examples[{at}]: {problem(error, [*Example.model_fields])}") from None
        if example.key not in there:
            examples[at + 1] = example
        there.add(example.key)
    if not examples:
        raise SettingError("there are no examples")
    return examples


# Files of samples: a header, then one line per example.


class Header(StrictRecord):
    """The first line of a samples file; most fields are described at `Samples`."""

    kind: Literal["cosd-samples"] = SAMPLES
    schema_version: Literal[3] = 3
    draft: Endpoint
    assistant: Endpoint
    unit: Unit
    contexts: Contexts | None = None
    listed: int | None = None
    hidden_states: int | None = None
    library_version: str = __version__

    def check_same_pair(self, other: Header, path: Path) -> None:
        """Check that samples with the header `other` may be added to the file at `path`, which has this header.

        Models are compared by name, because their addresses may change.

        Raises:
            SettingError: the models, the unit, the contexts or the collected data differ.
        """
        for (before, mine), (_, theirs) in zip(self._in_words(), other._in_words(), strict=True):
            if mine != theirs:
                raise SettingError(f"{path} holds samples {before}{mine}, not {theirs}: {_ANOTHER_FILE}")
        if self.unit != other.unit:  # checked last, because the settings above determine the unit
            words = f"{path} holds samples of unit={self.unit!r}, but these endpoints are judged by {other.unit!r}"
            raise SettingError(f"{words} (was a tokenizer given only once?): {_ANOTHER_FILE}")

    def _in_words(self) -> list[tuple[str, str]]:
        """Describe what all samples of a file have in common; each description has a beginning that never changes."""
        return [
            *((f"with the {one.name} ", one.model) for one in (self.draft, self.assistant)),
            ("taken ", "after ids" if self.contexts == "ids" else "after texts"),
            ("with listed=", str(self.listed)),
            ("with hidden states: ", f"of {self.hidden_states} numbers" if self.hidden_states else "none"),
        ]

    def line(self) -> str:
        """Return the line, without a line feed.

        Like earlier versions, leave out `listed` and `hidden_states` if they are None.
        """
        return self.model_dump_json(exclude={one for one in ("listed", "hidden_states") if getattr(self, one) is None})


@dataclass(frozen=True, slots=True)
class SamplesFile:
    """The content of a samples file.

    Attributes:
        header: the header, which is the first line; None if there is none yet.
        examples: the examples with their samples.
        lines: the lines as they were read, for `json_lines.Appender`.
    """

    header: Header | None = None
    examples: tuple[ExampleSamples, ...] = ()
    lines: JsonLines = field(default_factory=JsonLines)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a samples file.

        Raises:
            OSError: the file cannot be read.
            SettingError: the file is of another kind, of a newer version or broken.
        """
        header, lines = read_records(
            path,
            Header,
            is_not="is not a file of samples",
            advice="cosd collect writes samples to a new file, from examples",
            hint=_REPAIR,
        )
        found: dict[str, ExampleSamples] = {}
        for line in lines.lines[1:]:
            one = _row(path, line)
            found.setdefault(one.example.key, one)
        return cls(header, tuple(found.values()), lines)


def samples_line(one: ExampleSamples) -> str:
    """Return the line for one example, without a line feed. Fields that only graders need are left out if None."""
    unneeded = {name for name in ("choices", "tests", "group") if getattr(one.example, name) is None}
    example = one.example.model_dump(mode="json", exclude=unneeded)
    also = {"deferral", "deferral_skipped"} if one.deferral is not None else set[str]()
    samples = one.model_dump(mode="json", include={"samples", "skipped", *also})
    for place in samples.get("deferral", ()):
        if place["state"] is None:
            del place["state"]
    return json.dumps({"key": one.example.key, **example, **samples}, ensure_ascii=False, separators=(",", ":"))


def _row(path: Path, line: JsonLine) -> ExampleSamples:
    """Read a line with one example and its samples; its `key` is the example's."""
    known = [*Example.model_fields, *(name for name in ExampleSamples.model_fields if name != "example")]
    if "key" not in line.fields:
        raise line_error(path, line.number, f"the field 'key' is missing{_REPAIR}")
    fields = {name: value for name, value in line.fields.items() if name != "key"}
    try:
        example = Example.model_validate({one: fields.pop(one) for one in Example.model_fields if one in fields})
        found = ExampleSamples.model_validate({"example": example, **fields})
    except ValidationError as error:
        raise line_error(path, line.number, problem(error, known) + _REPAIR) from None
    if example.key != line.fields["key"]:
        raise line_error(path, line.number, f"its key does not match its prompt and answer{_REPAIR}")
    return found
