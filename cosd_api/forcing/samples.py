"""Samples of a reference text: the tokens of two models at each place (section 3.2 of the CoSD paper).

An example is a prompt and its reference answer. At each place in the reference, each model would write some token next,
with some probability. A decision sample records both probabilities, and which model is right. Hidden states in samples
are encoded as base64, which is a third longer than the 32-bit numbers that it encodes.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import struct
import sys
from array import array
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, field_validator

from cosd_api.checks import check_prompt
from cosd_api.errors import SettingError
from cosd_providers.contract import State
from cosd_providers.messages import Message

__all__ = [
    "DeferralSample",
    "Example",
    "ExampleSamples",
    "Label",
    "Sample",
    "StrictRecord",
    "sha256_of",
    "state_from_text",
    "state_in_text",
]

_SIZE = 4  # bytes of a number in a state

Label = Literal[0, 1]
"""0 if the draft's word is right, 1 if only the assistant's word is right."""
_Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class StrictRecord(BaseModel):
    """Base of the records in files. Unknown fields are refused, because their names may be misspelt."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Example(StrictRecord):
    """A prompt and the right answer.

    Attributes:
        prompt: text for the models to continue, or a conversation, which each model reads through its chat template.
        answer: the reference, exactly as a model would write it after the prompt, including any leading space. It must
            not be empty.
        target: text that a right answer must contain as whole words. With None, a right answer must equal `answer`
            except for white space. `tune_answers` and graders use the target; decision samples do not.
        ends: whether the answer must end after the reference. If False, more text may follow.
        choices: texts of the options A, B, C, ... of a multiple-choice question, for the grader `choice`.
        tests: source of a program's tests, for a grader that runs a command.
        group: name of a subject that several questions share, such as a fact that they ask for in different wordings.
            Comparisons and advice count the questions of a group as one piece of evidence. The models are not sent the
            name.
    """

    prompt: str | tuple[Message, ...]
    answer: str = Field(min_length=1)
    target: str | None = Field(default=None, min_length=1)
    ends: StrictBool = True
    choices: Annotated[tuple[str, ...], Field(min_length=2, max_length=26)] | None = None
    tests: str | None = Field(default=None, min_length=1)
    group: str | None = Field(default=None, min_length=1)

    @field_validator("prompt", mode="before")
    @classmethod
    def _is_a_prompt(cls, given: Any) -> Any:
        return check_prompt(given)

    @field_validator("answer", "target", "choices", "tests", "group")
    @classmethod
    def _is_unicode(cls, given: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        for text in (given,) if isinstance(given, str) else given or ():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"not valid Unicode text at character {error.start}") from None
        return given

    @property
    def key(self) -> str:
        """The example's identity: SHA-256 (hex) of `prompt`, `answer` and `ends`."""
        prompt = self.prompt if isinstance(self.prompt, str) else [[one.role, one.content] for one in self.prompt]
        return sha256_of([prompt, self.answer, self.ends])


@dataclass(frozen=True, slots=True)
class Sample:
    """A place in a reference answer, with the text that each model would write at this place.

    Attributes:
        p: the draft's probability of its own text, in [0, 1]. If the text has several tokens, this is the lowest of
            their probabilities.
        q: the assistant's probability of its own text, in [0, 1], computed like `p`.
        label: 0 if the draft would write the reference, 1 if only the assistant would, None if neither would.
        agreed: whether both models would have written the same text. If so, no decision is needed, and the label is 0
            or None.
        start: byte offset in the answer at which the models differ or, if they agree, at which the unit begins.
        draft: text that the draft would have written; empty for its end of sequence.
        assistant: text that the assistant would have written; empty for its end of sequence.
        reference: text of the reference answer at this place; empty for its end.
    """

    p: _Probability
    q: _Probability
    label: Label | None
    agreed: bool
    start: int
    draft: str
    assistant: str
    reference: str


@dataclass(frozen=True, slots=True)
class DeferralSample:
    """A token of a reference answer: its probabilities, and the draft's list or hidden state at its position.

    Attributes:
        start: byte offset of the token in the answer.
        draft: text of the token that the draft would have written; empty for its end of sequence.
        listed: the draft's probability of its own token, followed by the probabilities of the alternative tokens that
            it listed, in descending order.
        p: the draft's probability of the reference's token.
        q: the assistant's probability of the reference's token.
        handed: whether the assistant would have written the reference's token and the draft would not.
        state: the draft's last hidden state at this position, in base64 (see `state_in_text`); None if hidden
            states were not collected.
    """

    start: int
    draft: str
    listed: Annotated[tuple[_Probability, ...], Field(min_length=1)]
    p: _Probability
    q: _Probability
    handed: bool
    state: str | None = None


class ExampleSamples(StrictRecord):
    """The samples of one example.

    Attributes:
        example: the prompt and its answer.
        samples: a sample for each place that could be judged, in the order of the text.
        skipped: number of places that could not be judged, because only one of the models has a token boundary at the
            place, because a model reported no answer or no probability, or because one model's text is the beginning of
            the other's.
        deferral: a sample for each token of the answer whose probabilities are known; None unless `collect` collected
            lists of tokens or hidden states.
        deferral_skipped: number of tokens whose probabilities are unknown.
    """

    example: Example
    samples: tuple[Sample, ...]
    skipped: int = Field(default=0, ge=0)
    deferral: tuple[DeferralSample, ...] | None = None
    deferral_skipped: int = Field(default=0, ge=0)


def sha256_of(value: object) -> str:
    """Return the SHA-256 digest (hex) of a value's JSON without spaces."""
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


def state_in_text(state: State) -> str:
    """Encode a state: the base64 encoding of its numbers as little-endian 32-bit IEEE 754 floats."""
    return b64encode(struct.pack(f"<{len(state)}f", *state)).decode()


def state_from_text(text: str, width: int) -> State:
    """Decode the text of a state to an array of 32-bit numbers.

    Raises:
        SettingError: the text is not base64, or the state does not have `width` numbers.
    """
    try:
        data = b64decode(text, validate=True)
    except binascii.Error:
        raise SettingError("the state of a sample is not base64: the file is broken") from None
    if len(data) != _SIZE * width:
        words = f"the state of a sample has {len(data) // _SIZE} numbers, and the header of its file says {width}"
        raise SettingError(f"{words}: the file is broken")
    state = array("f", data)
    if sys.byteorder == "big":
        state.byteswap()
    return state
