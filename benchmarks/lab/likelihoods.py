"""A step that scores the options of `choice`, and the texts of `held`, under the gated mixture."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio

from benchmarks.lab.answers import QUESTIONS, served
from benchmarks.lab.runs import ALONE
from benchmarks.lab.tasks import choice
from cosd_api import Fusion, RuleVerifier
from cosd_api.extend import Verifier
from cosd_api.forcing.samples import Example
from cosd_api.training.dataset import read_examples
from cosd_api.verification import DiffVerifier

__all__ = ["SCORED", "likelihoods", "likelihoods_in", "perplexity"]

SCORED: Mapping[str, tuple[bool, Verifier]] = {
    "draft": (False, RuleVerifier(alpha=0, beta=0.5)),
    "assistant": (True, RuleVerifier(alpha=0, beta=0.5)),
    "cosd": (False, RuleVerifier.paper()),
    "cosd-1-1": (False, RuleVerifier(alpha=1, beta=1)),
    "cosd-diff": (False, DiffVerifier()),
}
"""For each way, whether the models are swapped, and the gate. A gate that never opens gives the draft's
distribution."""

_FILE = "likelihoods.json"
_DRAWS, _SEED = 1000, 20


def likelihoods(folder: Path, settings: Mapping[str, Any], *, draft: Path, assistant: Path, asked: Path) -> None:
    """Write log-likelihoods and numbers of tokens, by way and text; for `choice`, of each option in order.

    This takes a minute, so an interrupted step starts again.
    """
    texts = [_texts(one, settings["task"]) for one in read_examples(asked / QUESTIONS)]

    async def score() -> dict[str, list[list[tuple[float, int]]]]:
        with served(draft, assistant) as urls:
            return {way: await _scored(urls, way, texts) for way in SCORED}

    (folder / _FILE).write_text(json.dumps(anyio.run(score)), encoding="utf-8")


def _texts(example: Example, task: str) -> tuple[str, Sequence[str]]:
    """The prompt and its possible continuations, the right answer first."""
    assert isinstance(example.prompt, str)
    others = [one for one in choice.continuations(example) if one != example.answer] if task == "choice" else []
    return example.prompt, [example.answer, *others]


async def _scored(
    urls: Sequence[str], way: str, texts: Sequence[tuple[str, Sequence[str]]]
) -> list[list[tuple[float, int]]]:
    back, gate = SCORED[way]
    draft, assistant = reversed(urls) if back else urls
    found: list[list[tuple[float, int]]] = []
    async with Fusion(draft=draft, assistant=assistant, verifier=gate, unit="token") as fusion:
        for prompt, several in texts:
            scored = [await fusion.log_likelihood(prompt, text) for text in several]
            found.append([(one.total, len(one.tokens)) for one in scored])
    return found


def likelihoods_in(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the likelihoods that a step has written, and summarise them by way.

    `right` is the number of `questions` whose right option is the likeliest, `perplexity` is the perplexity per token
    of the right answers, and `ratio` is this perplexity divided by the lower of the two models' perplexities.
    `perplexity` and `ratio` each contain a value and the ends of its 95 % interval, from a bootstrap over the texts.
    """
    kept: dict[str, list[list[tuple[float, int]]]] = json.loads((folder / _FILE).read_text(encoding="utf-8"))
    references = {way: [several[0] for several in texts] for way, texts in kept.items()}
    better = min(ALONE, key=lambda way: perplexity(references[way]))
    found: dict[str, dict[str, Any]] = {}
    for way, texts in kept.items():
        likeliest = [
            all(several[0][0] > other for other, _ in several[1:]) for several in texts
        ]  # a tie does not count as right
        both = [*zip(references[way], references[better], strict=True)]
        found[way] = {
            "questions": len(texts),
            "right": sum(likeliest),
            "perplexity": _bootstrapped(_own, both),
            "ratio": _bootstrapped(_ratio, both),
        }
    return found


def perplexity(texts: Sequence[tuple[float, int]]) -> float:
    """The perplexity per token of texts, given their log-likelihoods and numbers of tokens."""
    total, tokens = (math.fsum(one[part] for one in texts) for part in (0, 1))
    return math.exp(min(300.0, -total / tokens))


_Text = tuple[float, int]


def _own(several: Sequence[tuple[_Text, _Text]]) -> float:
    return perplexity([own for own, _ in several])


def _ratio(several: Sequence[tuple[_Text, _Text]]) -> float:
    return _own(several) / perplexity([other for _, other in several])


def _bootstrapped(
    measure: Callable[[Sequence[tuple[_Text, _Text]]], float], texts: Sequence[tuple[_Text, _Text]]
) -> list[float]:
    draw = random.Random(_SEED)
    several = sorted(measure(draw.choices(texts, k=len(texts))) for _ in range(_DRAWS))
    cut = round(_DRAWS * 0.025)
    return [measure(texts), several[cut], several[-1 - cut]]
