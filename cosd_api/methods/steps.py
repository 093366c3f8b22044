"""Steps (SpecReason, NeurIPS 2025, arXiv 2504.07891): a small model writes steps, and a large model grades each step.

The *small model* is the draft, and the *large model* is the assistant.

::

    1   the small model writes a step, up to and including a blank line, or up to its end          `_step`
    2   the large model is asked for a score of the step, from 0 to 9, in one token                `_score`
    3   the step is kept if the score is at least 7; otherwise, the large model writes the step    `write`
    4   if the step that is taken ends with its writer's end of sequence, the answer ends, too

**A step** ends with the first blank line (two line feeds in a row) that follows visible text. If the token that
completes the blank line contains more text, that text is dropped. A step has at most `step_tokens` tokens, and no more
than `max_tokens` still allows. A step also ends after a whole stop string, or if its writer cannot continue (its
context is full, or a filter intervened). If a step of the small model is empty or only white space, it is not scored,
and the large model writes the step.

**The score.** The large model writes at most two tokens. The first token that is not only white space is the score if
it is one of the digits 0 to 9, with or without white space around it. Any other reply counts as a score below `keep`,
with a warning. If none of the first three replies contains a score, the large model writes the rest of the answer by
itself, step by step. As in the paper, the most probable token decides, so no probabilities are needed.

**The large model's input.** If the prompt is text, the model continues one text: the prompt, the answer including the
step (without white space at its end), a blank line, `question`, a line feed, and `cue`. If the prompt is a
conversation, the model's input is the conversation, an assistant message with the answer including the step, and a user
message with `question`; the model then continues a reply that begins with `cue`.

**Messages only.** A model that does not continue a partial answer (`Capabilities.continues`) accepts only
conversations; a text prompt becomes one user message. The model is asked for a score without `cue`. To write a step,
it receives the conversation, an assistant message with the answer so far, and a user message with `again`; for the
first step, it receives the conversation alone. The end of its reply is the end of the answer.

**Repetition.** If a step equals the step before it, the step is not written, and the answer ends (`stop_reason` is
`"repetition"`).

With `on_assistant_error="draft"`, the small model continues alone if the large model fails.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from cosd_api.checks import between, check_count
from cosd_api.decoding.commands import DRAFT, Contender, DecidedSegment
from cosd_api.decoding.model import Lost, Model
from cosd_api.decoding.passage import Passage, joined
from cosd_api.decoding.program import Answer
from cosd_api.errors import SettingError
from cosd_api.methods.base import Program
from cosd_api.methods.cost import FINER, Assumptions, Bounds, Cost, Plan, Reading
from cosd_providers.contract import Token
from cosd_providers.messages import Message
from cosd_providers.text import readable, sendable

QUESTION = (
    "Grade the last step above. All that counts is that it is correct and follows from what stands before it; its style"
    " and its usefulness do not. Answer with a single digit from 0 (wrong) to 9 (certainly correct)."
)
CUE = "Grade:"
AGAIN = "Continue your answer exactly where it stops. Repeat nothing, and do not comment on it."

_STEP = re.compile(rb"\S.*?\n\n", re.DOTALL)
_BEST = 9
_TRIES = 3
"""The number of replies after which the large model is not asked for scores again, if none of them contains a score."""
_ALONE = "no assistant is heard"
_UNGRADED = "the assistant gives no scores, and writes the rest"
_SCORE_TOKENS = 2  # one token for white space, and one for a digit
_LENGTH = 60  # the assumed number of tokens in a step
_REJECTED = 0.3  # the assumed share of steps that the large model writes
_FRAME = 64  # the largest number of tokens that a chat template adds to three messages


def check_words(name: str, value: object) -> None:
    """Check that a setting is text that is not blank.

    Raises:
        SettingError: the value is not valid.
    """
    if not isinstance(value, str) or not value.strip():
        raise SettingError(f"{name} must be text that is not blank, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class Steps(Program):
    """Steps: a small draft model writes step by step, and a large assistant grades each step, and rewrites bad steps.

    This is SpecReason (arXiv 2504.07891, NeurIPS 2025), for one assistant and any tokenizers. The models need not
    report probabilities, and may accept only messages instead of text. The answer streams step by step. The scores in
    `FusionResult.segments` include the score of each step.

    Attributes:
        keep: the lowest score at which a step is kept, in [0, 9].
        step_tokens: the largest number of tokens in a step, at least 1.
        question: the text that asks the assistant for a score; not blank.
        cue: the beginning of the assistant's reply to `question`; not blank.
        again: the message that asks a model for its next step if it cannot continue a partial answer; not blank.

    Raises:
        SettingError: a number is out of its range, or a text is blank.
    """

    name: ClassVar[str] = "steps"
    decides: ClassVar[str] = "the assistant's score of each step"
    accepts_messages_only: ClassVar[bool] = True

    keep: Annotated[float, between(0, _BEST)] = 7
    step_tokens: Annotated[int, check_count] = 512
    question: Annotated[str, check_words] = QUESTION
    cue: Annotated[str, check_words] = CUE
    again: Annotated[str, check_words] = AGAIN

    async def write(self, answer: Answer, small: Model, large: Model) -> None:
        """Write the answer."""
        last, asked, strange = b"", 0, list[str]()
        try:
            while True:
                if not large.alive and await small.continues():
                    await small.finish(_ALONE)
                ungraded = large.alive and len(strange) == asked >= _TRIES
                step, score = None if ungraded else await self._step(answer, small), None
                taken = step
                try:
                    if large.alive and step is not None and step.data.strip():
                        reply = await self._score(answer, step, large)
                        asked += 1
                        score = _digit(reply)
                        strange += [] if score is not None else [readable(reply)]
                    if large.alive and (score is None or score < self.keep):
                        taken = await self._step(answer, large)
                except Lost:
                    continue
                assert taken is not None, "the large model has written the step"
                if taken.data and taken.data == last:
                    words = f"{taken.model.name} wrote the step before it again: the answer ends there"
                    answer.end(words, "repetition")
                last = taken.data
                alone = DecidedSegment((Contender((DRAFT,), taken.data, taken.ends),), 0, _ALONE)
                answer.append(taken, self._segment(step, score, taken) if large.alive else alone)
        finally:
            if strange:
                words = f"{len(strange)} of {asked} times the assistant answered a request for a score with no digit"
                words += f", but with {strange[0]!r} or the like: it counts as below {self.keep:g}"
                if len(strange) == asked >= _TRIES:
                    words += ". It was not asked again, and wrote the rest by itself: it seems unable to grade"
                answer.warn(words)

    async def _step(self, answer: Answer, model: Model) -> Passage:
        """Step 1 or 3: let a model write the next step of the answer."""
        before, prompt = _answered(answer, answer.text), None
        continues = await model.continues()
        if not continues and before[-1].role == "assistant":
            prompt = await model.rendered([*before, Message("user", self.again)])
        passage = await model.write(
            min(self.step_tokens, answer.left),
            text=answer.text if continues else b"",
            until=lambda tokens: _end(tokens) > 0 or answer.stops(tokens),
            prompt=prompt,
        )
        end = _end(passage.tokens)
        return passage.first(end) if end else passage

    async def _score(self, answer: Answer, step: Passage, model: Model) -> bytes:
        """Step 2: return the large model's reply to the request for a score."""
        graded = (answer.text + step.data).rstrip()
        continues, text, prompt = await model.continues(), b"", None
        if continues and answer.conversation is None:
            text = graded + f"\n\n{self.question}\n{self.cue}".encode()
        else:
            asked = [*_answered(answer, graded), Message("user", self.question)]
            prompt = await model.rendered([*asked, Message("assistant", self.cue)] if continues else asked)
        reply = await model.write(
            _SCORE_TOKENS, text=text, until=lambda tokens: bool(tokens[-1].data.strip()), prompt=prompt
        )
        return reply.data

    def _segment(self, step: Passage | None, score: int | None, taken: Passage) -> DecidedSegment:
        """Return the record of a step: the small model's text, and the large model's text if it wrote the step."""
        model = taken.model.index
        theirs = Contender((0,), taken.data if model else b"", bool(model) and taken.ends, (), _BEST - self.keep)
        if step is None or not step.data.strip():
            nothing = "the draft wrote nothing that could be scored"
            return DecidedSegment((replace(theirs, mean=None),), 0, _UNGRADED if step is None else nothing)
        measured = None if score is None else float(score)
        loss = None if score is None else float(_BEST - score)
        mine = Contender((DRAFT,), step.data, step.ends, (None, measured), loss)
        if score is None:
            reason = "the assistant gave no score, which counts as below"
        else:
            reason = f"the assistant's score is {score} of {_BEST}, {'below' if model else 'at least'} {self.keep:g}"
        return DecidedSegment((mine, theirs), model, reason)

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """Forecast the cost of writing and scoring the steps; see `Method.cost`."""
        n = plan.max_tokens
        steps = max(1, n / min(_LENGTH, self.step_tokens))
        if model == 0:
            tokens = Bounds(prompt.least + 1, steps * (prompt.expected + n / 2) + n, n * (prompt.most + FINER * 2 * n))
            tokens = replace(tokens, high=tokens.high + n * (len(self.again.encode()) + _FRAME))
            return Cost(Bounds(1, steps, n), tokens, n)
        words = len(f"{self.question}{self.cue}".encode())
        read = prompt.expected + n / 2
        expected = steps * (read + words / 4) + _REJECTED * (steps * read + n)
        more = 2 * _FRAME + words + len(self.again.encode()) + _SCORE_TOKENS
        high = 2 * n * (prompt.most + FINER * 3 * n + more)
        requests = Bounds(1, steps * (1 + _REJECTED), 2 * n)
        return Cost(requests, Bounds(prompt.least + 1, expected, high), steps + _REJECTED * n)

    def assumptions(self, plan: Plan) -> Assumptions:
        """Describe in words what `cost` assumes."""
        return Assumptions(
            f"{plan.max_tokens} tokens in steps of {min(_LENGTH, self.step_tokens)}, each of them scored, and "
            f"{_REJECTED:.0%} written by the assistant",
            "a step for every token, all of them written by the assistant",
        )


def _answered(answer: Answer, text: bytes) -> list[Message]:
    """Return the conversation with the answer so far. If it ends with a partial answer, this answer is extended."""
    messages = list(answer.conversation or [Message("user", answer.prompt)])
    begun = messages.pop().content if messages[-1].role == "assistant" else ""
    written = begun + sendable(text)
    return [*messages, Message("assistant", written)] if written else messages


def _end(tokens: Sequence[Token]) -> int:
    """Return the byte offset after the first blank line that follows visible text; 0 if there is no such line."""
    found = _STEP.search(joined(tokens))
    return found.end() if found else 0


def _digit(reply: bytes) -> int | None:
    """Return the score in a reply; None if the reply is not one digit."""
    text = reply.strip()
    return int(text) if len(text) == 1 and text.isdigit() else None
