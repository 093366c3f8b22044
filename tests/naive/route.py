"""Routing and cascading, transcribed from their definition alone: one question after another, nothing is kept.

Shares no code with the library. Models are those of `reference`: toys, or servers over plain HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from naive.cool import Answered, Option, probabilities
from naive.reference import Out, finished, generate, text_of
from toys.toy_models import Model


def answer(
    model: Model, at: int, prompt: bytes, before: Sequence[Out], *, max_tokens: int, stop: Sequence[bytes] = ()
) -> Answered:
    """One model's tokens after `before`, to the end of the answer."""
    tokens = list(before)
    for token in islice(generate(model, prompt + text_of(before)), max_tokens - len(before)):
        tokens.append(Out(token.data, at, token.end))
        if done := finished(tokens, stop, max_tokens):
            return Answered(done.tokens, done.finish_reason, done.stop_reason, [])
    raise AssertionError("it ends by max_tokens at the latest")


def prompt_mean(model: Model, prompt: bytes, *, beginning: bool = True) -> float:
    """The mean negative log-likelihood of the model's tokens of the prompt; `beginning`: the first one counts."""
    first = b"" if beginning else model.vocabulary.tokens[model.vocabulary.encode(prompt)[0]]
    found = [prob for _, prob in probabilities(model, first, b"", prompt.removeprefix(first), end=False)]
    if any(prob == 0 for prob in found):
        return math.inf
    return -math.fsum(map(math.log, found)) / len(found)


def route(
    prompt: bytes,
    models: Sequence[Model],
    *,
    max_tokens: int,
    stop: Sequence[bytes] = (),
    tau: float = 1.0,
    beginning: bool = True,
) -> Answered:
    """The model to which the prompt is least surprising answers."""
    means = [prompt_mean(model, prompt, beginning=beginning) for model in models]
    best = min(range(len(models)), key=lambda at: (round(means[at], 9), at))
    written = answer(models[best], best, prompt, (), max_tokens=max_tokens, stop=stop)
    powers = [float(mean == min(means)) if math.isinf(min(means)) else math.exp(-mean / tau) for mean in means]
    options: list[Option] = []
    for at, mean in enumerate(means):
        weight = [None if other != at else powers[at] / math.fsum(powers) for other in range(len(models))]
        options.append(Option(b"", False, [], [at], weight, mean))
    options[best].text = written.text
    options[best].end = bool(written.tokens) and written.tokens[-1].end
    return Answered(written.tokens, written.finish_reason, written.stop_reason, [(options, best)])


def cascade(
    prompt: bytes,
    models: Sequence[Model],
    *,
    max_tokens: int,
    stop: Sequence[bytes] = (),
    quantile: float = 0.9,
    tau: float = 1.0,
) -> Answered:
    """The first model answers; the second does if the first one's tokens were too surprising to itself."""
    first, second = (answer(model, at, prompt, (), max_tokens=max_tokens, stop=stop) for at, model in enumerate(models))
    probs = [token.prob for token in islice(generate(models[0], prompt), len(first.tokens))]
    values = [math.inf if prob == 0 else -math.log(prob) for prob in probs if prob is not None]
    reaching = [one for one in values if sum(other <= one for other in values) + 1e-9 >= quantile * len(values)]
    level = min(reaching, default=None)
    best = int(level is not None and level > tau * (1 + 1e-9))
    options = [Option(first.text, first.tokens[-1:] != () and first.tokens[-1].end, [], [0], [level, None], level)]
    options.append(Option(b"", False, [], [1], [], tau))
    won = (first, second)[best]
    options[best].text, options[best].end = won.text, won.tokens[-1:] != () and won.tokens[-1].end
    return Answered(won.tokens, won.finish_reason, won.stop_reason, [(options, best)])
