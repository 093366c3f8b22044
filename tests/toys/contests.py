"""Tasks for methods that compare the models' own texts, over scripted providers; and what an answer of them must be."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from hypothesis import strategies as st

from cosd_api import FusionResult, fuse
from cosd_api.extend import Method
from cosd_providers.contract import ServerInfo, WordEnds
from cosd_providers.testing import Fault, ScriptedProvider
from naive import cool as naive_cool
from toys import toy_models as toys


def _by(pattern: str) -> naive_cool.Split:
    return lambda text: re.findall(pattern, text, re.DOTALL)


SPLITS: tuple[naive_cool.Split, ...] = (naive_cool.words, _by("."), _by(".[^a ]*"), _by(".[^b1]*"), _by("..?"))
"""Ways to split a text into words."""

NORMALISATIONS = st.sampled_from(("token", "byte", "sum"))


@dataclass(frozen=True)
class Task:
    """Everything that defines an answer."""

    prompt: bytes
    models: Sequence[toys.ToyModel]
    max_tokens: int
    stop: Sequence[bytes]


_PROMPTS = toys.prompts().filter(bool)


@st.composite
def tasks(draw: st.DrawFn, /, *, longest: int = 12, **options: Any) -> Task:
    """Two to four models, mostly of one language."""
    first, others = draw(toys.model_sets(**options))
    prompt = draw(_PROMPTS)
    return Task(prompt, [first, *others], draw(st.integers(1, longest)), draw(toys.stops()))


def delays() -> st.SearchStrategy[list[float]]:
    """Delays of requests and tokens, two for each model, so that answers come in any order."""
    return st.lists(st.sampled_from((0.0, 0.001, 0.003)), min_size=8, max_size=8)


class Uncounted(ScriptedProvider):
    """Does not encode text, so that nobody can know which tokens a text is: nothing is read on."""

    async def describe(self) -> ServerInfo:
        info = await super().describe()
        return replace(info, capabilities=replace(info.capabilities, tokenize=False))


def unique(task: Task) -> Task:
    """The task without two tokens of the same bytes, which nobody can tell apart by these."""
    models = []
    for model in task.models:
        old = model.vocabulary
        kept = [data for n, data in enumerate(dict.fromkeys(old.tokens)) if data]
        vocabulary = replace(old, tokens=(*kept, b""), end=len(kept))
        models.append(replace(model, vocabulary=vocabulary))
    return replace(task, models=models)


async def fused(
    task: Task,
    method: Method,
    *,
    delays: Sequence[float] = (0.0,) * 8,
    faults: Mapping[int, Fault] | None = None,
    splits: Sequence[naive_cool.Split] | None = None,
    tokenizes: bool = False,
    **settings: Any,
) -> FusionResult:
    """The library's answer."""
    providers = [
        (ScriptedProvider if tokenizes else Uncounted)(
            toys.Plain(model),
            end_prob=not model.hides_end,
            words=ends(splits[at]) if splits else None,
            request_delay=delays[2 * at],
            token_delay=delays[2 * at + 1],
            faults=[faults[at]] if faults and at in faults else [],
        )
        for at, model in enumerate(task.models)
    ]
    limits: dict[str, Any] = {"max_tokens": task.max_tokens, "stop": [stop.decode() for stop in task.stop]}
    roles: Any = {"models": providers} if method.symmetric else {"draft": providers[0], "assistant": providers[1:]}
    result = await fuse(task.prompt.decode(), **roles, method=method, **limits, **settings)
    assert all(provider.open_requests == 0 for provider in providers)
    return result


def ends(split: naive_cool.Split) -> WordEnds:
    """A splitter as providers take it."""
    return lambda text: list(accumulate(map(len, split(text))))


def check(result: FusionResult, wanted: naive_cool.Answered, *, rounding: float = 1e-9) -> None:
    """The answer is the naive one: its tokens, who wrote them, and what each was compared with."""
    names = [result.draft.name, *(one.name for one in result.assistants)]
    got = [(one.data, names.index(one.source), one.end) for one in result.tokens]
    assert got == [(one.data, one.source, one.end) for one in wanted.tokens]
    assert result.finish_reason == wanted.finish_reason
    if not (wanted.tokens and wanted.tokens[-1].end):
        assert result.stop_reason == wanted.stop_reason
    assert len(result.segments) == len(wanted.contests)
    for segment, (options, best) in zip(result.segments, wanted.contests, strict=True):
        assert segment.winner == best
        assert [one.sources for one in segment.candidates] == [
            tuple(names[at] for at in option.models) for option in options
        ]
        assert [one.end for one in segment.candidates] == [option.end for option in options]
        for one, option in zip(segment.candidates, options, strict=True):
            assert one.text == option.text.decode("utf-8", "backslashreplace")
            assert close(one.mean, option.mean, rounding), (one, option.perplexities, option.mean)
            scores = [one.scores.get(name) for name in names]
            perplexities = option.perplexities or [None] * len(names)
            assert all(close(*both, rounding) for both in zip(scores, perplexities, strict=True))
    assert result.trace.replay() == result.text
    assert type(result).model_validate_json(result.model_dump_json()) == result


def is_close(result: FusionResult, rounding: float) -> bool:
    """Test whether a contest of the answer hangs on the last digits: its two least means are equal but for these."""
    for segment in result.segments:
        means = sorted(one.mean for one in segment.candidates if one.mean is not None)
        if len(means) > 1 and math.isclose(*means[:2], rel_tol=rounding):
            return True
    return False


def close(one: float | None, other: float | None, rounding: float) -> bool:
    """Equal but for rounding."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=rounding)
