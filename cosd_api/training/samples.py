"""What a tree is trained on and thresholds are tuned on (section 3.2 and equation 7 of the CoSD paper).

An example is a prompt and its reference answer. Where both models are held to the reference, each says what it would
have written next and how sure it is of that: a decision sample is the two probabilities, and who was right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import Field

from cosd_api.alignment import Unit
from cosd_api.errors import SettingError
from cosd_api.records import Endpoint, EndpointUsage
from cosd_api.training.examples import Example, ExampleSamples, Label, Sample, Strict, sha256
from cosd_api.training.kept import Kept
from cosd_api.training.wording import with_notes

__all__ = ["Decisive", "Example", "ExampleSamples", "Failure", "Label", "Sample", "Samples"]


class Failure(Strict):
    """An example that could not be asked about, and why, in words.

    Attributes:
        number: of the example among those that were given, from 1.
        example: it.
        error: why.
    """

    number: int
    example: Example
    error: str


@dataclass(frozen=True, slots=True)
class Decisive:
    """The samples that train: one entry each.

    Attributes:
        p: the draft's probabilities.
        q: the assistant's.
        label: 0 or 1.
        group: index of the example that it is from, in `Samples.examples`.
    """

    p: list[float]
    q: list[float]
    label: list[Label]
    group: list[int]

    def __len__(self) -> int:
        return len(self.label)


class Samples(Strict):
    """Decision samples of one pair of models.

    Attributes:
        examples: with their samples.
        draft: the draft endpoint; None where the samples come from nowhere.
        assistant: the assistant endpoint, likewise.
        unit: what was judged together: `"token"`, where both models have the same tokenizer, or `"word"`.
        failed: the examples that could not be asked about.
        usage: what was sent and billed to gather those that were not there already, by `"draft"` and `"assistant"`.
        warnings: what a reader should know, in words.
        there: how many of the examples were in the file already.
    """

    examples: tuple[ExampleSamples, ...] = ()
    draft: Endpoint | None = None
    assistant: Endpoint | None = None
    unit: Unit | None = None
    failed: tuple[Failure, ...] = ()
    usage: dict[str, EndpointUsage] = Field(default_factory=dict[str, EndpointUsage])
    warnings: tuple[str, ...] = ()
    there: int = 0

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads the samples that `collect` has kept in a file; what a crash has cut is left out, with a warning.

        Raises:
            OSError: it cannot be read.
            SettingError: it is no such file, or a newer one, or a line of it is broken; the words say which.
        """
        kept = Kept.read(Path(path))
        if not isinstance(kept, Kept):
            raise SettingError(f"{path} is empty: collect has kept nothing in it yet")
        header, found = kept.header, kept.examples
        cut = (f"the last line of {path} was cut, and is left out: collect again asks about it",) if kept.cut else ()
        return cls(examples=found, draft=header.draft, assistant=header.assistant, unit=header.unit, warnings=cut)

    @property
    def positions(self) -> int:
        """Places that were judged: `agreeing + labelled + dropped`."""
        return sum(len(one.samples) for one in self.examples)

    @property
    def agreeing(self) -> int:
        """Places where both models would have written the same."""
        return self._count(lambda sample: sample.agreed)

    @property
    def labelled(self) -> int:
        """Places where they differ and one of them is right: what a tree is trained on."""
        return self._count(lambda sample: not sample.agreed and sample.label is not None)

    @property
    def dropped(self) -> int:
        """Places where they differ and neither is right."""
        return self._count(lambda sample: not sample.agreed and sample.label is None)

    @property
    def skipped(self) -> int:
        """Places that could not be judged; see `ExampleSamples`."""
        return sum(one.skipped for one in self.examples)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of what trains: the examples, in any order, and of each sample p, q, label and agreement."""
        ordered = sorted(self.examples, key=lambda one: one.example.key)  # a file has them as they were done
        return sha256([[one.example.key, [_trains(sample) for sample in one.samples]] for one in ordered])

    def decisive(self, keep_agreeing: bool = False) -> Decisive:
        """The samples with a label.

        Args:
            keep_agreeing: those too where both would have written the reference, with label 0, as the paper words it.
                They carry no decision.
        """
        found = Decisive([], [], [], [])
        for group, one in enumerate(self.examples):
            for sample in one.samples:
                if sample.label is not None and (keep_agreeing or not sample.agreed):
                    found.p.append(sample.p)
                    found.q.append(sample.q)
                    found.label.append(sample.label)
                    found.group.append(group)
        return found

    def report(self) -> str:
        """What was counted, a line each; without the warnings, which `str()` adds."""
        assistants = sum(self.decisive().label)
        rows = [
            (len(self.examples), f"examples, {self.there} of them there already" if self.there else "examples"),
            (self.positions, "places where both models were compared"),
            (self.agreeing, "agreeing: both would have written the same"),
            (self.labelled - assistants, "labelled 0: they differ, and the draft is right"),
            (assistants, "labelled 1: they differ, and the assistant is right"),
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

    def _count(self, counts: Callable[[Sample], bool]) -> int:
        return sum(counts(sample) for one in self.examples for sample in one.samples)


def _trains(sample: Sample) -> list[object]:
    return [sample.p, sample.q, sample.label, sample.agreed]
