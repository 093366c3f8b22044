"""Examples, and the decision samples of each (section 3.2 and equation 7 of the CoSD paper)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, field_validator

from cosd_api.errors import SettingError
from cosd_api.settings import check_prompt
from cosd_api.training.data import kind_of, lines_of, problem, what_it_is, wrong
from cosd_providers.messages import Message

__all__ = ["Example", "ExampleSamples", "Label", "Sample", "checked_examples", "read_examples"]

Label = Literal[0, 1]
"""Whose word stands: 0 the draft's, 1 the assistant's."""
_FORM = 'lines such as {"prompt": "2 + 2 =", "answer": " 4"}'
_Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Strict(BaseModel):
    """What files hold: a field that it does not know may be one that is misspelt."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Example(Strict):
    """A prompt and the answer that is right.

    Attributes:
        prompt: text that the models go on from; or a conversation, which each reads through its own chat template.
        answer: the reference, exactly as a model would write it behind the prompt: with its leading space, if it has
            one. Not empty.
        target: what a right answer must contain, as whole words; None: the whole answer, white space normalized.
            It matters where answers are judged (`tune_answers`), not for samples.
        ends: whether the answer is over behind it. Otherwise what comes behind it does not count.
    """

    prompt: str | tuple[Message, ...]
    answer: str = Field(min_length=1)
    target: str | None = Field(default=None, min_length=1)
    ends: StrictBool = True

    @field_validator("prompt", mode="before")
    @classmethod
    def _is_a_prompt(cls, given: Any) -> Any:
        return check_prompt(given)

    @field_validator("answer", "target")
    @classmethod
    def _is_unicode(cls, given: str | None) -> str | None:
        try:
            (given or "").encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"it is not valid Unicode text at character {error.start}") from None
        return given

    @property
    def key(self) -> str:
        """What it is known by: SHA-256 (hex) of prompt, answer and `ends`."""
        prompt = self.prompt if isinstance(self.prompt, str) else [[one.role, one.content] for one in self.prompt]
        return sha256([prompt, self.answer, self.ends])


@dataclass(frozen=True, slots=True)
class Sample:
    """One place of a reference answer, and what both models would have written there.

    Attributes:
        p: the draft's probability of what it would have written, in [0, 1]; of its least sure token.
        q: the assistant's, likewise.
        label: 0 where the draft's is the reference, 1 where the assistant's is and the draft's is not, None where
            neither is.
        agreed: both would have written the same: there is nothing to decide. Its label is 0 or None.
        start: byte offset in the answer.
        draft: what the draft would have written; empty for its end of sequence.
        assistant: what the assistant would have written.
        reference: what stands there in the answer; empty for its end.
    """

    p: _Probability
    q: _Probability
    label: Label | None
    agreed: bool
    start: int
    draft: str
    assistant: str
    reference: str


class ExampleSamples(Strict):
    """The samples of one example.

    Attributes:
        example: the prompt and its answer.
        samples: one for each place that could be judged, in the order of the text.
        skipped: places that could not: where only one of the models has the boundary of a token, where one did not
            answer or did not tell a probability, or where what one would have written is the beginning of the other's.
    """

    example: Example
    samples: tuple[Sample, ...]
    skipped: int = Field(default=0, ge=0)


def read_examples(path: str | Path) -> list[Example]:
    """Reads a file of examples: on each line `{"prompt": ..., "answer": ...}`, and what else an `Example` has.

    Raises:
        OSError: it cannot be read.
        SettingError: it has none, or a line is none; the words say which, and of a file of another kind what it is.
    """
    path = Path(path)
    if (what := what_it_is(kind_of(path), wanted="examples")) is not None:
        raise SettingError(f"{path} is {what}. Give examples: {_FORM}")
    found: list[Example] = []
    for line in lines_of(path, may_be_cut=False).lines:
        try:
            found.append(Example.model_validate(line.fields))
        except ValidationError as error:
            raise wrong(path, line.number, problem(error, [*Example.model_fields])) from None
    if not found:
        raise SettingError(f"{path} is empty: give {_FORM}")
    return found


def checked_examples(given: Iterable[Example | Mapping[str, Any]]) -> dict[int, Example]:
    """Examples by their number among those given, from 1; one that is there more than once counts once.

    Raises:
        SettingError: there are none, or one is none; the words say which.
    """
    several: object = given
    if isinstance(several, str | bytes | Mapping | Example) or not isinstance(several, Iterable):
        raise SettingError(f"examples must be several Example or dictionaries, not {type(given).__name__}")
    found: dict[int, Example] = {}
    keys: set[str] = set()
    for at, one in enumerate(given):
        try:
            example = one if isinstance(one, Example) else Example.model_validate(one)
        except ValidationError as error:
            raise SettingError(f"examples[{at}]: {problem(error, [*Example.model_fields])}") from None
        if example.key not in keys:
            found[at + 1] = example
        keys.add(example.key)
    if not found:
        raise SettingError("there are no examples: there is nothing to ask about")
    return found


def sha256(value: object) -> str:
    """SHA-256 (hex) of a value's JSON."""
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()
