"""Nudging (ACL 2025, arXiv 2410.09300): a large base model writes while it is sure, else a small aligned model.

The paper's *base model* B is the draft here, and its *nudging model* N the assistant.

::

    1   N writes a nudge: its next 16 tokens                                                    `Nudged.write`
    2   if N ends within them, the whole nudge is taken, and the answer is over                 `Nudged.write`
    3   else its words are taken one by one. The first is always taken; after each B is
        asked for its own text, and takes over if it is confident again (its top-1
        probability is at least gamma), or if its first token is a prefix of the next word      `BaseTurn`
    4   if B never takes over, all words but the last are taken, then 1 again                   `Nudged._taken`
    5   B writes: its first token always, and more while it is confident; then 1                `BaseTurn`

**Words** come from N's tokenizer if it is known, else from Unicode (`words.unicode_words`): the white space before a
word is a part of it. The last word of a nudge may be unfinished, so it is taken only if it is the only word. A nudge
may end inside a token of N: that token is cut, and the probability of the part is not known.

**B's end of sequence** is never written, for only N ends an answer. B is not confident if it would end, or if the
probability of its token is not known.

**Guards.** A nudge that equals each of the three before it is not written, and the answer ends (`stop_reason`
`"repetition"`). The tokens after B's first are counted in passages of 16, the last passage of a turn shorter. A passage
is not written, and B's turn is over, if the answer already holds the passage and it has 16 tokens or more than five
words between white space.

**Streaming.** A nudge is written when it is complete. A token of B is written as soon as the answer does not already
hold its passage so far, so that no token is ever taken back.

**Limits.** `max_tokens` counts the tokens of both, a cut one as a whole. It cuts the answer and changes nothing before:
N always writes 16 tokens, and B completes its last passage if that may be a repetition. If a model cannot continue (a
full context, a filter) its text so far is taken, and the answer is over.

With `on_assistant_error="draft"` B continues alone, to its own end, if N fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from cosd_api.alignment import Unit
from cosd_api.checks import check_between, check_count
from cosd_api.decoding.commands import DRAFT, Contender, DecidedSegment, Finish
from cosd_api.decoding.passage import Passage
from cosd_api.decoding.writer import AnswerWriter
from cosd_api.methods.base import Models, Written
from cosd_api.methods.cost import FINER, Assumptions, Bounds, Cost, Plan, Reading
from cosd_api.methods.words import ends_of_words, unicode_words
from cosd_providers.contract import DraftEnd, Token, WordEnds
from cosd_providers.errors import UnsupportedError
from cosd_providers.text import readable

BASE, NUDGER = 0, 1
"""The models, by their index."""

PASSAGE = 16
"""Tokens of B that are compared with the answer before them."""

SAME = 3
"""Nudges in a row that may be the same."""

_FEW = 5  # words of a short passage that may be repeated
_TURN = 10  # tokens of the answer from one nudge to the next, by assumption
_TAKEN = 2  # words of a nudge that are taken, by assumption


@dataclass(frozen=True, kw_only=True)
class Nudging(Written):
    """Nudging: the draft, a large *base model*, writes while it is confident, else the assistant.

    The method of arXiv 2410.09300 (ACL 2025), with any tokenizers. The assistant is the *nudging model*, small and
    aligned: it begins the answer, writes the words of which the base model is not confident, and alone ends it. Only
    the base model has to report the probabilities of its tokens. The answer streams nudge by nudge, and token by token
    while the base model writes.

    Attributes:
        gamma: the base model is confident if its most probable token has at least this probability.
        nudge_tokens: tokens that the nudging model writes each time. An answer of no more tokens is all its own.

    Raises:
        SettingError: a setting is out of its range.
    """

    name: ClassVar[str] = "nudging"
    decides: ClassVar[str] = "the probabilities of the base model's tokens"
    most_models: ClassVar[int | None] = 2

    gamma: float = 0.4
    nudge_tokens: int = 16

    def __post_init__(self) -> None:
        check_between("gamma", self.gamma, 0, 1)
        check_count("nudge_tokens", self.nudge_tokens)

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:  # noqa: ARG002
        """Refuse a base model that does not report probabilities; see `Method.examine`."""
        name, info = models[BASE]
        if not info.capabilities.probs:
            words = f"the {name} is the base model of 'nudging', and does not report the probabilities of its tokens"
            hint = 'It can be the assistant, the nudging model, which needs none. method="steps" needs none of either.'
            raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
        return ()

    async def write(self, writer: AnswerWriter) -> None:
        """Write the answer."""
        await Nudged(self, writer).write()

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """A request for each nudge, and one after each of its words; see `Method.cost`."""
        n, most = plan.max_tokens, prompt.most + FINER * (plan.max_tokens + self.nudge_tokens)
        if model == NUDGER:
            requests = Bounds(1, min(n, 1 + n / _TURN), n)
            written = requests.expected * self.nudge_tokens
            expected = requests.expected * (prompt.expected + n / 2) + written
            return Cost(requests, Bounds(prompt.least + 1, expected, n * (most + self.nudge_tokens)), written)
        requests = Bounds(0, 1 + _TAKEN * n / _TURN, 1 + FINER * n * self.nudge_tokens)
        expected = requests.expected * (prompt.expected + n / 2) + n
        return Cost(requests, Bounds(0, expected, requests.high * (most + n + PASSAGE)), n)

    def assumptions(self, plan: Plan) -> Assumptions:  # noqa: ARG002
        """The basis of `cost`."""
        return Assumptions(
            f"max_tokens tokens with a nudge in every {_TURN}, of which {_TAKEN} words are taken; the base model is "
            "asked after each",
            "only one token of every nudge is taken, and the base model is asked after many words",
        )


class Nudged:
    """Nudging of one answer.

    Args:
        method: its settings.
        writer: writes it.
    """

    def __init__(self, method: Nudging, writer: AnswerWriter) -> None:
        self.gamma = method.gamma
        self.writer = writer
        self._tokens = method.nudge_tokens
        self._last = b""  # the last nudge
        self._same = 0  # nudges in a row that equal the last one

    async def write(self) -> None:
        """Steps 1 to 5, until the answer is over."""
        writer = self.writer
        split = (await writer.ask_all(writer.splitter, [NUDGER])).get(NUDGER) or unicode_words

        async def nudge(model: int) -> Passage:
            return await writer.continuation(model, writer.text, max_tokens=self._tokens)

        while not writer.over:
            passage = (await writer.ask_all(nudge, [NUDGER])).get(NUDGER)
            if passage is None:
                await writer.relay(
                    BASE, DecidedSegment((Contender((DRAFT,), b"", False),), 0, "no nudging model is heard")
                )
            elif passage.end is not None and passage.end.reason != "limit":
                ends = passage.end.reason == "end"
                reason = "the nudging model ends the answer" if ends else "the nudging model cannot continue"
                self._write(passage.tokens, passage.number, reason)
                writer.end_with(passage)
            else:
                await self._taken(passage, split)

    async def _taken(self, passage: Passage, split: WordEnds) -> None:
        """Steps 3 to 5: the words of a nudge that are taken, and B's turn after them."""
        writer, data, ends = self.writer, passage.data, ends_of_words(passage.data, split)
        for end, behind in pairwise(ends):
            first = passage.first(end)
            room = writer.left - len(first)
            cut = len(first[-1].data) < len(
                passage.tokens[len(first) - 1].data
            )  # the token may be longer if more words are taken
            if room + cut <= 0 and self._same < SAME:
                self.nudge(passage, end, "the answer is as long as it may be")
                return
            turn = BaseTurn(self, passage, end, data[end:behind])
            if await turn.run(max(room, 1)):
                return
        if len(ends) == 1:
            self.nudge(passage, ends[0], "the nudge is one word")
        else:
            self.nudge(passage, ends[-2], "the base model is not confident after any of its words")

    def nudge(self, passage: Passage, end: int, reason: str) -> None:
        """Write the first words of a nudge, unless the same words were written too often."""
        data = passage.data[:end]
        self._same = self._same + 1 if data == self._last else 1
        self._last = data
        if self._same > SAME:
            words = f"the nudging model wrote {readable(data)!r} {SAME} times in a row, and then again"
            self.writer.warn(f"{words}: the answer ends there")
            self.writer.end(Finish("length", "repetition"))
        else:
            self._write(passage.first(end), passage.number, reason)

    def _write(self, tokens: Sequence[Token], number: int, reason: str) -> None:
        start = len(self.writer.text)
        self.writer.write(tokens, NUDGER, number=number, reason=reason)
        self.close(NUDGER, start, reason)

    def close(self, model: int, start: int, reason: str) -> None:
        """Complete the segment of a model that begins at a byte of the answer."""
        entry = Contender((model - 1,), self.writer.text[start:], self.writer.ended)
        self.writer.segments.append(DecidedSegment((entry,), 0, reason))


class BaseTurn:
    """One question to B after a word of a nudge, and B's turn if it takes over: steps 3 and 5.

    Args:
        answer: the answer in progress.
        passage: the nudge as N wrote it.
        end: the end of the word, in bytes of the nudge.
        following: the nudge's next word.
    """

    def __init__(self, answer: Nudged, passage: Passage, end: int, following: bytes) -> None:
        self._answer = answer
        self._writer = answer.writer
        self._nudge = passage
        self._end = end
        self._following = following
        self._start: int | None = None  # of its segment, once B has taken over and written
        self._reason = ""
        self._number = 0  # of the request
        self._taken = False
        self._passage: list[Token] = []  # B's tokens that are held back
        self._length = 0  # tokens of the passage
        self._new = False  # the answer before the passage does not hold it

    async def run(self, room: int) -> bool:
        """Ask B, and write its turn.

        Args:
            room: tokens of B that the answer may still have.

        Returns:
            Whether B has taken over.
        """
        text = self._writer.text + self._nudge.data[: self._end]
        most = 1 + PASSAGE * math.ceil((room - 1) / PASSAGE)
        try:
            await self._writer.read(BASE, text, self._take, max_tokens=most)
        finally:
            if self._start is not None:
                self._answer.close(BASE, self._start, self._reason)
        return self._taken

    def _take(self, item: Token | DraftEnd, number: int) -> bool:
        """Take a token of B, or its end; true if its turn is over."""
        self._number = number
        if isinstance(item, DraftEnd):
            return self._stopped(item)
        if not self._taken:
            return self._begin(item)
        if not self._confident(item):
            self._complete()
            why = "would end" if item.end else f"is not confident of {readable(item.data)!r} ({_shown(item.prob)})"
            self._reason += f", until it {why}"
            return True
        self._passage.append(item)
        self._length += 1
        if not self._new:  # nothing of the passage is written yet
            self._new = b"".join(token.data for token in self._passage) not in self._writer.text
        if self._new:
            self._release()
        return self._writer.over or (self._length == PASSAGE and self._complete())

    def _begin(self, token: Token) -> bool:
        """Take the first token: the nudge ends before it, or has another word."""
        gamma = self._answer.gamma
        if self._confident(token):
            self._reason = f"the base model is confident: {_shown(token.prob)} >= {gamma:g}"
        elif not token.end and self._following.startswith(token.data):
            self._reason = f"the base model continues with {readable(token.data)!r}, as the nudge does"
        else:
            return True
        self._taken = True
        self._answer.nudge(self._nudge, self._end, self._reason)
        if not self._writer.over:
            self._start = len(self._writer.text)
            self._passage.append(token)
            self._release()
        return self._writer.over

    def _confident(self, token: Token) -> bool:
        return not token.end and token.prob is not None and token.prob >= self._answer.gamma

    def _complete(self) -> bool:
        """Write the tokens held back of a passage that is over, unless it is a repetition; true if B's turn is over."""
        held = b"".join(token.data for token in self._passage)
        repeated = bool(held) and not self._new and (self._length == PASSAGE or len(held.split()) > _FEW)
        if repeated:
            self._reason += ", until it repeats what stands in the answer"
            self._passage.clear()
        self._release()
        self._length, self._new = 0, False
        return repeated or self._writer.over

    def _release(self) -> None:
        if self._passage:
            self._writer.write(self._passage, BASE, number=self._number, reason=self._reason)
            self._passage = []

    def _stopped(self, end: DraftEnd) -> bool:
        """End B's turn with the request, and the answer if B cannot continue."""
        if end.reason in ("context", "filter"):
            if not self._taken:
                self._taken = True
                self._answer.nudge(self._nudge, self._end, "the base model cannot continue")
            self._complete()
            self._writer.end_with(Passage((), self._number, end))
        return True


def _shown(prob: float | None) -> str:
    return "unknown" if prob is None else f"{prob:.2g}"
