"""Steps, transcribed from their definition alone: one question after another, nothing is kept.

Shares no code with the library. Models are those of `reference`: toys, or servers over plain HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice

from naive.cool import Answered, Option
from naive.reference import Out, Tok, finished, generate, text_of
from toys.toy_models import Model

Said = tuple[str, str]
"""A message: who says it, and what."""

SMALL, LARGE = 0, 1


def readable(text: bytes) -> str:
    """The text without bytes that are no characters."""
    return text.decode("utf-8", "ignore")


def length_of_step(text: bytes) -> int | None:
    """The length of the first step of a text; None if it is not complete."""
    for at in range(len(text)):
        if text[:at].strip() and text[at : at + 2] == b"\n\n":
            return at + 2
    return None


@dataclass
class Stepwise:
    """One answer. `render` is a chat template; a model that does not `continue` takes messages only."""

    prompt: bytes | Sequence[Said]
    models: Sequence[Model]
    max_tokens: int
    stop: Sequence[bytes]
    keep: float
    step_tokens: int
    question: str
    cue: str
    again: str
    render: Callable[[int, Sequence[Said]], str]
    continues: Sequence[bool]
    answer: list[Out] = field(default_factory=list[Out])
    replies: list[bytes] = field(default_factory=list[bytes])

    @property
    def text(self) -> bytes:
        """The answer so far."""
        return text_of(self.answer)

    def conversation(self, answer: bytes) -> list[Said]:
        """The prompt and an answer, as messages."""
        if isinstance(self.prompt, bytes):
            said = [("user", self.prompt.decode())]
        else:
            said = list(self.prompt)
        begun = said.pop()[1] if said[-1][0] == "assistant" else ""
        return [*said, ("assistant", begun + readable(answer))] if begun + readable(answer) else said

    def rendered(self, at: int, messages: Sequence[Said]) -> bytes:
        """The text that a model continues."""
        return self.render(at, messages).encode()

    def step(self, at: int) -> list[Tok]:
        """The next step by one of the models."""
        so_far = self.conversation(self.text)
        if self.continues[at]:
            whole = self.prompt if isinstance(self.prompt, bytes) else self.rendered(at, self.prompt)
            text = whole + self.text
        elif so_far[-1][0] == "assistant":
            text = self.rendered(at, [*so_far, ("user", self.again)])
        else:
            text = self.prompt if isinstance(self.prompt, bytes) else self.rendered(at, so_far)
        tokens: list[Tok] = []
        room = min(self.step_tokens, self.max_tokens - len(self.answer))
        for token in islice(generate(self.models[at], text), room):
            tokens.append(token)
            length = length_of_step(text_of(tokens))
            if length is not None:
                return list(cut(tokens, length))
            if any(one in text_of(tokens) for one in self.stop):
                return tokens
        return tokens

    def score(self, step: Sequence[Tok]) -> int | None:
        """The large model's score of a step; None if it is none."""
        graded = (self.text + text_of(step)).rstrip()
        if self.continues[LARGE] and isinstance(self.prompt, bytes):
            text = self.prompt + graded + f"\n\n{self.question}\n{self.cue}".encode()
        else:
            asked = [*self.conversation(graded), ("user", self.question)]
            text = self.rendered(LARGE, [*asked, ("assistant", self.cue)] if self.continues[LARGE] else asked)
        reply = b""
        for token in islice(generate(self.models[LARGE], text), 2):
            reply = reply or token.data.strip()
            if reply or token.end:
                break
        self.replies.append(reply)
        return int(reply) if reply in [str(n).encode() for n in range(10)] else None


def cut(tokens: Sequence[Tok], length: int) -> Iterator[Tok]:
    """The tokens of the first `length` bytes."""
    for token in tokens:
        if length > 0:
            yield Tok(token.data[:length], token.prob)
        length -= len(token.data)


def plain_lines(_: int, messages: Sequence[Said]) -> str:
    """A template that writes all contents in lines, but for the beginning of an answer."""
    whole = "".join(f"{content}\n" for _, content in messages)
    return whole[:-1] if messages[-1][0] == "assistant" else whole


def option(models: list[int], tokens: Sequence[Tok]) -> Option:
    """A candidate as it is recorded."""
    return Option(text_of(tokens), bool(tokens) and tokens[-1].end, [], models)


def steps(
    prompt: bytes | Sequence[Said],
    models: Sequence[Model],
    *,
    max_tokens: int,
    stop: Sequence[bytes] = (),
    keep: float = 7,
    step_tokens: int = 512,
    question: str,
    cue: str,
    again: str = "",
    render: Callable[[int, Sequence[Said]], str] = plain_lines,
    continues: Sequence[bool] = (True, True),
    fails: int | None = None,
) -> Answered:
    """The small model comes first. `fails`: the large one's request at which it is gone."""
    made = Stepwise(prompt, models, max_tokens, stop, keep, step_tokens, question, cue, again, render, continues)
    contests: list[tuple[list[Option], int]] = []
    before: bytes | None = None
    requests = count(1)
    scores: list[int | None] = []
    while True:
        gives_none = len(scores) >= 3 and all(one is None for one in scores)
        drafted = [] if gives_none else made.step(SMALL)
        score = None
        gone = fails == 0
        if text_of(drafted).strip():
            gone = gone or next(requests) == fails
            score = None if gone else made.score(drafted)
            scores += [] if gone else [score]
        kept = not gone and score is not None and score >= keep
        if not kept:
            gone = gone or next(requests) == fails
        taken: list[Tok] = list(islice(alone(made), max_tokens)) if gone else []
        source = SMALL
        if not gone:
            taken, source = (drafted, SMALL) if kept else (made.step(LARGE), LARGE)
        if not gone and text_of(taken) and text_of(taken) == before:
            return Answered(tuple(made.answer), "length", "repetition", contests)
        before = text_of(taken)
        start = len(made.text)
        mine, theirs = option([SMALL], drafted), option([LARGE], [] if kept else taken)
        theirs.mean = 9 - keep
        if score is not None:
            mine.perplexities, mine.mean = [None, float(score)], float(9 - score)
        if gone:
            contests.append(([option([SMALL], [])], 0))
        elif text_of(drafted).strip():
            contests.append(([mine, theirs], source))
        else:
            theirs.mean = None
            contests.append(([theirs], 0))
        for token in taken:
            made.answer.append(Out(token.data, source, token.end))
            if done := finished(made.answer, stop, max_tokens):
                if gone:
                    [last] = contests[-1][0]
                    last.text = text_of(done.tokens)[start:]
                    last.end = bool(done.tokens) and done.tokens[-1].end
                return Answered(done.tokens, done.finish_reason, done.stop_reason, contests)


def alone(made: Stepwise) -> Iterator[Tok]:
    """The small model writes on."""
    whole = made.prompt if isinstance(made.prompt, bytes) else made.rendered(SMALL, made.prompt)
    return generate(made.models[SMALL], whole + made.text)
