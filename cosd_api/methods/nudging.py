"""Nudging (arXiv 2410.09300): a large base model writes while it is confident; if not, a small aligned model writes.

The paper's *base model* B is the draft, and its *nudging model* N is the assistant.

::

    1   N writes a nudge: its next 16 tokens                                                    `Nudged.write`
    2   if N ends the answer within them, the whole nudge is written, and the answer ends       `Nudged.write`
    3   otherwise, the words of the nudge are taken one by one; the first word is always
        taken. After each word, B is asked for its own text. B takes over if it is confident
        (its top-1 probability is at least gamma), or if its first token is a prefix of the
        nudge's next word                                                                       `BaseTurn`
    4   if B never takes over, all words but the last are taken; back to 1                      `Nudged._taken`
    5   if B takes over, it writes its first token, and more tokens while it is confident;
        back to 1                                                                               `BaseTurn`

**Words** are defined by N's tokenizer if it is known, otherwise by Unicode (`words.unicode_words`). The white space
before a word is part of it. The last word of a nudge may be unfinished, so it is taken only if it is the only word.
The taken words may end inside a token of N. That token is cut, and the probability of the remaining part is unknown.

**B's end of sequence** is never written, because only N ends an answer. B does not count as confident if its token is
the end of sequence, or if the probability of its token is unknown.

**Guards against repetition.** If a nudge equals each of the three nudges before it, it is not written, and the answer
ends (`stop_reason` is `"repetition"`). The tokens of B's turn after the first token are divided into passages of 16
tokens; the last passage of a turn may be shorter. If a passage repeats earlier text of the answer, it is not written,
and B's turn ends. This applies only to passages that have either 16 tokens, or at least six words separated by white
space.

**Streaming.** A nudge is written when it is complete. A token of B is written as soon as the passage that contains it
is known to differ from all earlier text of the answer, so no token is ever taken back.

**Limits.** `max_tokens` counts the tokens of both models; a cut token counts as one. The limit only cuts the answer and
changes nothing before the cut: N always writes 16 tokens, and B completes its last passage if that passage may be a
repetition. If a model cannot continue (its context is full, or a filter intervened), the text that it has written is
kept, and the answer ends.

With `on_assistant_error="draft"`, B continues alone up to its own end of sequence if N fails.
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
"""The indices of the two models."""

PASSAGE = 16
"""The number of B's tokens in a passage. Each passage is compared with the answer before it, to find repetitions."""

SAME = 3
"""The largest number of equal nudges that are written in a row."""

_FEW = 5  # a passage of fewer than `PASSAGE` tokens may repeat earlier text if it has at most this number of words
_TURN = 10  # the assumed number of tokens from one nudge to the next
_TAKEN = 2  # the assumed number of words that are taken from a nudge


@dataclass(frozen=True, kw_only=True)
class Nudging(Written):
    """Nudging: the draft, a large *base model*, writes while it is confident; otherwise the assistant writes.

    This is the method of arXiv 2410.09300 (ACL 2025), for one assistant and any tokenizers. The assistant is the
    *nudging model*, which is small and aligned. It begins the answer, writes whenever the base model is not confident,
    and is the only model that ends the answer. Only the base model has to report the probabilities of its tokens. The
    answer streams nudge by nudge, and token by token while the base model writes.

    Attributes:
        gamma: the threshold of confidence, in [0, 1]: the base model is confident if the probability of its most
            probable token is at least `gamma`.
        nudge_tokens: the number of tokens in a nudge, at least 1. If the nudging model's answer to the prompt is no
            longer than this, it is the whole answer.

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
        """Forecast the cost of one answer at one model; see `Method.cost`."""
        n, most = plan.max_tokens, prompt.most + FINER * (plan.max_tokens + self.nudge_tokens)
        nudges = max(1, n / _TURN)
        if model == NUDGER:
            requests = Bounds(1, nudges, n)
            written = requests.expected * self.nudge_tokens
            expected = requests.expected * (prompt.expected + n / 2) + written
            return Cost(requests, Bounds(prompt.least + 1, expected, n * (most + self.nudge_tokens)), written)
        requests = Bounds(0, _TAKEN * (nudges - 1), 1 + FINER * n * self.nudge_tokens)
        written = n * (1 - 1 / nudges)
        expected = requests.expected * (prompt.expected + n / 2) + written
        return Cost(requests, Bounds(0, expected, requests.high * (most + n + PASSAGE)), written)

    def assumptions(self, plan: Plan) -> Assumptions:
        """Describe in words what `cost` assumes."""
        return Assumptions(
            f"{plan.max_tokens} tokens with a nudge in every {_TURN}, of which {_TAKEN} words are taken; the base "
            "model is asked after each, except after the last nudge",
            "only one token of every nudge is taken, and the base model is asked after many words",
        )


class Nudged:
    """Writes one answer by nudging.

    Args:
        method: the settings.
        writer: writes the answer.
    """

    def __init__(self, method: Nudging, writer: AnswerWriter) -> None:
        self.gamma = method.gamma
        self.writer = writer
        self._tokens = method.nudge_tokens
        self._last = b""  # the text of the last nudge
        self._same = 0  # the number of equal nudges in a row, including the last one

    async def write(self) -> None:
        """Repeat steps 1 to 5 until the answer is complete."""
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
        """Steps 3 to 5: take words from a nudge, and let B write its turn if it takes over."""
        writer, data, ends = self.writer, passage.data, ends_of_words(passage.data, split)
        for end, behind in pairwise(ends):
            first = passage.first(end)
            room = writer.left - len(first)
            cut = len(first[-1].data) < len(
                passage.tokens[len(first) - 1].data
            )  # a cut token may always be extended, because it counts as one token
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
        """Write a nudge up to byte `end`; end the answer instead if the same text was written too often in a row."""
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
        """Record that a model wrote the segment from byte `start` to the end of the answer so far."""
        entry = Contender((model - 1,), self.writer.text[start:], self.writer.ended)
        self.writer.segments.append(DecidedSegment((entry,), 0, reason))


class BaseTurn:
    """Steps 3 and 5: one request to B after a word of a nudge, and B's turn if B takes over.

    Args:
        answer: the answer in progress.
        passage: the nudge as N wrote it.
        end: the byte offset in the nudge at which the word ends.
        following: the next word of the nudge.
    """

    def __init__(self, answer: Nudged, passage: Passage, end: int, following: bytes) -> None:
        self._answer = answer
        self._writer = answer.writer
        self._nudge = passage
        self._end = end
        self._following = following
        self._start: int | None = None  # the byte at which B's segment begins; None until B takes over
        self._reason = ""
        self._number = 0  # the number of the request
        self._taken = False
        self._passage: list[Token] = []  # the tokens of B's current passage that are held back
        self._length = 0  # the number of tokens in the current passage
        self._new = False  # True if the current passage is known not to repeat earlier text of the answer

    async def run(self, room: int) -> bool:
        """Ask B, and write its turn if it takes over.

        Args:
            room: the number of tokens that B may still write before the answer reaches its limit.

        Returns:
            True if B has taken over.
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
        """Handle a token of B, or the end of B's stream; return True if the request is over."""
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
        if not self._new:  # all tokens of the passage are still held back
            self._new = b"".join(token.data for token in self._passage) not in self._writer.text
        if self._new:
            self._release()
        return self._writer.over or (self._length == PASSAGE and self._complete())

    def _begin(self, token: Token) -> bool:
        """Handle B's first token, which decides whether B takes over; return True if the request is over."""
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
        """Write the held-back tokens of a complete passage, or drop a repetition; return True if B's turn is over."""
        held = b"".join(token.data for token in self._passage)
        repeated = bool(held) and not self._new and (self._length == PASSAGE or len(held.split()) > _FEW)
        if repeated:
            self._reason += ", until it repeats text of the answer"
            self._passage.clear()
        self._release()
        self._length, self._new = 0, False
        return repeated or self._writer.over

    def _release(self) -> None:
        if self._passage:
            self._writer.write(self._passage, BASE, number=self._number, reason=self._reason)
            self._passage = []

    def _stopped(self, end: DraftEnd) -> bool:
        """Handle the end of the stream. If B cannot continue, the answer ends, too. The request is always over."""
        if end.reason in ("context", "filter"):
            if not self._taken:
                self._taken = True
                self._answer.nudge(self._nudge, self._end, "the base model cannot continue")
            self._complete()
            self._writer.end_with(Passage((), self._number, end))
        return True


def _shown(prob: float | None) -> str:
    return "unknown" if prob is None else f"{prob:.2g}"
