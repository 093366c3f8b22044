"""ModelSwitch, transcribed from its definition alone: one sample after another. Shares no code with the library."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from naive.enumerated import drawn, draws
from naive.reference import Fused, Out, finished, whole
from toys.toy_models import Model


@dataclass
class Sample:
    """One answer: whose, its tokens, and what it votes for."""

    model: int
    fused: Fused
    answer: str | None


def sample(
    model: Model, at: int, prompt: bytes, chance: random.Random, *, max_tokens: int, stop: Sequence[bytes] = ()
) -> Fused:
    """One drawn answer, in tokens of whole characters."""
    ids = list(model.vocabulary.encode(prompt))
    tokens: list[Out] = []
    data = b""
    while True:
        one = drawn(chance, model.next(ids))
        ids.append(one)
        end = one == model.vocabulary.end
        new = [Out(data, at)] if end and data else []
        data = b"" if end else data + model.vocabulary.tokens[one]
        if end:
            new.append(Out(b"", at, True))
        elif data and whole(data) == len(data):
            new.append(Out(data, at))
            data = b""
        for token in new:
            tokens.append(token)
            if done := finished(tokens, stop, max_tokens):
                return done


def answer_in(text: str, pattern: str | None) -> str | None:
    """The last match, or its first group; without a pattern the text."""
    if pattern is not None:
        found = re.findall(pattern, text)
        text = found[-1] if found else ""
        text = text if isinstance(text, str) else text[0]
    return text.strip() or None


def agreement(answers: Sequence[str]) -> float:
    """A model's agreement with itself, from one over the number of answers to one."""
    different = set(answers)
    if len(different) < 2:
        return 1.0
    shares = [answers.count(one) / len(answers) for one in different]
    even = -sum(share * math.log2(share) for share in shares) / math.log2(len(different))
    return 1 / len(answers) + (1 - 1 / len(answers)) * (1 - even)


def switch(
    draw: Callable[[int, int], Fused],
    count: int,
    *,
    samples: int = 5,
    threshold: float = 1.0,
    pattern: str | None = None,
    weights: Sequence[float] | None = None,
    deaf: Sequence[int] = (),
) -> tuple[Sample, dict[str, float], list[int]]:
    """The sample that is taken, the votes, and the models that were asked; `draw` gives a model's numbered sample."""
    everything: list[Sample] = []
    asked: list[int] = []
    for at in range(count):
        if at in deaf:
            continue
        asked.append(at)
        mine = [draw(at, number) for number in range(samples)]
        answers = [answer_in(one.text.decode("utf-8", "backslashreplace"), pattern) for one in mine]
        everything += [Sample(at, one, answer) for one, answer in zip(mine, answers, strict=True)]
        most = max(answers.count(answer) if answer is not None else 0 for answer in answers)
        if most >= threshold * samples - 1e-9:
            break
    votes: dict[str, float] = {}
    for at in asked:
        own = [one.answer for one in everything if one.model == at and one.answer is not None]
        for answer in own:
            votes[answer] = votes.get(answer, 0.0) + (weights or [1.0] * count)[at] * agreement(own)
    if not votes:
        return everything[0], votes, asked
    best = max(votes.values())
    won = next(answer for answer, sum_ in votes.items() if sum_ >= best * (1 - 1e-9))
    return next(one for one in everything if one.answer == won), votes, asked


def by_seeds(
    models: Sequence[Model], prompt: bytes, seed: int, *, max_tokens: int, stop: Sequence[bytes] = ()
) -> Callable[[int, int], Fused]:
    """The samples of toy models."""

    def draw(at: int, number: int) -> Fused:
        chance = draws(seed, prompt, "sample", at, number)
        return sample(models[at], at, prompt, chance, max_tokens=max_tokens, stop=stop)

    return draw
