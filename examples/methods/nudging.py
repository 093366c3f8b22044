"""Nudging (arXiv 2410.09300): a large base model writes while it is confident; if not, a small aligned model writes.

The paper's *base model* B is the draft, and its *nudging model* N is the assistant.

::

    1   N writes a nudge: its next 16 tokens                                                    `write`
    2   if N ends the answer within them, the whole nudge is written, and the answer ends       `write`
    3   otherwise, the words of the nudge are taken one by one; the first word is always
        taken. After each word, B is asked for its own text. B takes over if it is confident
        (its top-1 probability is at least gamma), or if its first token is a prefix of the
        nudge's next word                                                                       `_turn`
    4   if B never takes over, all words but the last are taken; back to 1                      `write`
    5   if B takes over, it writes its first token, and more tokens while it is confident;
        back to 1                                                                               `_turn`

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
from typing import Annotated, ClassVar

from cosd_api.extend import (
    FINER,
    Answer,
    Assumptions,
    Bounds,
    Cost,
    Lost,
    Model,
    OpenSegment,
    Passage,
    Plan,
    Program,
    Reading,
    RoleNeeds,
    Stream,
    between,
    check_count,
    ends_of_words,
    joined,
    readable,
)
from cosd_providers import Token

PASSAGE = 16
"""The number of B's tokens in a passage. Each passage is compared with the answer before it, to find repetitions."""

SAME = 3
"""The largest number of equal nudges that are written in a row."""

_FEW = 5  # a passage of fewer than `PASSAGE` tokens may repeat earlier text if it has at most this number of words
_TURN = 10  # the assumed number of tokens from one nudge to the next
_TAKEN = 2  # the assumed number of words that are taken from a nudge


@dataclass(frozen=True, kw_only=True)
class Nudging(Program):
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
    needs: ClassVar[RoleNeeds] = {"base_model": ("probs",)}

    gamma: Annotated[float, between(0, 1)] = 0.4
    nudge_tokens: Annotated[int, check_count] = 16

    async def write(self, answer: Answer, base_model: Model, nudging_model: Model) -> None:
        """Repeat steps 1 to 5 until the answer is complete."""
        nudges: list[bytes] = []
        try:
            split = await nudging_model.words()
            while True:
                nudge = await nudging_model.write(self.nudge_tokens, until=lambda _: False)
                if nudge.ends or nudge.stuck:
                    answer.append(nudge, f"the nudging model {'ends the answer' if nudge.ends else 'cannot continue'}")
                ends = ends_of_words(nudge.data, split)
                for end, next_end in pairwise(ends):
                    if await self._turn(answer, base_model, nudge, end, nudge.data[end:next_end], nudges):
                        break
                else:
                    several = len(ends) > 1
                    why = (
                        "the base model is not confident after any of its words" if several else "the nudge is one word"
                    )
                    _take(answer, nudge.first(ends[-2] if several else ends[0]), why, nudges)
        except Lost:
            await base_model.finish("no nudging model is heard")

    async def _turn(
        self, answer: Answer, base: Model, nudge: Passage, end: int, following: bytes, nudges: list[bytes]
    ) -> bool:
        """Steps 3 and 5: ask B after a word of a nudge, and let it write if it takes over.

        Args:
            answer: the answer.
            base: the base model B.
            nudge: the nudge as N wrote it.
            end: the byte offset in the nudge at which the word ends.
            following: the next word of the nudge.
            nudges: the texts of all nudges that were taken.

        Returns:
            True if B has taken over, or need not be asked.
        """
        words = nudge.first(end)
        room = answer.left - len(words.tokens)
        # A cut token may always be extended, because it counts as one token.
        cut = words.tokens[-1].data != nudge.tokens[len(words.tokens) - 1].data
        if room + cut <= 0 and not _is_repeated(nudges):
            _take(answer, words, "the answer is as long as it may be", nudges)
            return True
        most = 1 + PASSAGE * math.ceil((max(room, 1) - 1) / PASSAGE)
        async with base.stream(most, text=answer.text + words.data) as stream:
            first = await anext(stream, None)
            if first is None:
                if stream.stuck:
                    _take(answer, words, "the base model cannot continue", nudges)
                    answer.end_if_stuck(stream)
                return False
            if self._is_sure(first):
                why = f"the base model is confident: {_shown(first.prob)} >= {self.gamma:g}"
            elif not first.end and following.startswith(first.data):
                why = f"the base model continues with {readable(first.data)!r}, as the nudge does"
            else:
                return False
            _take(answer, words, why, nudges)
            with answer.segment(stream, why) as segment:
                segment.append([first])
                while await self._passage(answer, stream, segment):
                    pass
                answer.end_if_stuck(stream)
        return True

    async def _passage(self, answer: Answer, stream: Stream, segment: OpenSegment) -> bool:
        """Step 5: let B write a passage, unless it repeats earlier text; return True if B's turn continues."""
        held, before, length, unsure = list[Token](), answer.text, 0, None
        async for token in stream:
            if not self._is_sure(token):
                unsure = token
                break
            held.append(token)
            length += 1
            if length > len(held) or joined(held) not in before:
                segment.append(held)
                held = []
            if length == PASSAGE:
                break
        if length < PASSAGE and unsure is None and not stream.stuck:
            return False
        repeated = bool(held) and (length == PASSAGE or len(joined(held).split()) > _FEW)
        segment.why += ", until it repeats text of the answer" if repeated else ""
        try:
            segment.append([] if repeated else held)
        finally:
            if unsure is not None:
                doubts = f"is not confident of {readable(unsure.data)!r} ({_shown(unsure.prob)})"
                segment.why += f", until it {'would end' if unsure.end else doubts}"
        return length == PASSAGE and not repeated

    def _is_sure(self, token: Token) -> bool:
        return not token.end and token.prob is not None and token.prob >= self.gamma

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """Forecast the cost of one answer at one model; see `Method.cost`."""
        n, most = plan.max_tokens, prompt.most + FINER * (plan.max_tokens + self.nudge_tokens)
        nudges = max(1, n / _TURN)
        if model:
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


def _take(answer: Answer, words: Passage, why: str, nudges: list[bytes]) -> None:
    """Write some words of a nudge; end the answer instead if the same words were written too often in a row."""
    if _is_repeated(nudges) and nudges[-1] == words.data:
        again = f"the nudging model wrote {readable(words.data)!r} {SAME} times in a row, and then again"
        answer.end(f"{again}: the answer ends there", "repetition")
    nudges.append(words.data)
    answer.append(words, why)


def _is_repeated(nudges: Sequence[bytes]) -> bool:
    """Test whether the last nudges are equal, so that another equal one ends the answer."""
    return len(nudges) >= SAME and len({*nudges[-SAME:]}) == 1


def _shown(prob: float | None) -> str:
    return "unknown" if prob is None else f"{prob:.2g}"
