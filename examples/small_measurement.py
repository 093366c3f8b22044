"""Measure what the three small models answer alone and together, on live llama.cpp servers.

    python examples/small_measurement.py                       # the bundled models
    python examples/small_measurement.py --models /some/folder --questions 50

The script asks 200 held-out questions of each kind, and fuses the models by the paper's rule. It also shows what a
model says about things that it does not know, and how often the model is confident of a wrong answer. Run it after
``train_small_models.py``.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from cosd_api import Fusion, FusionResult, RuleVerifier
from cosd_api.apps.demo.questions import KINDS, MIXED_KINDS, OWN_KINDS, DemoQuestion, is_right, sample
from cosd_api.apps.demo.servers import MODELS, serve

MAX_TOKENS = 96
RULE = RuleVerifier.paper()
ALONE = RuleVerifier(alpha=0)  # never replaces a token, so never asks


async def answers(names: Sequence[str], urls: dict[str, str], asked: Sequence[DemoQuestion]) -> list[FusionResult]:
    """The fused answers, with the first model as the draft and the others as assistants."""
    draft, *others = [urls[name] for name in names]
    async with Fusion(draft=draft, assistant=others or [draft], verifier=RULE if others else ALONE) as fusion:
        found = fusion.map([question.prompt for question in asked], concurrency=6, max_tokens=MAX_TOKENS)
        return [result async for result in found]


def share_right(asked: Sequence[DemoQuestion], results: Sequence[FusionResult]) -> str:
    """The percentage of right answers, with an example of a wrong answer."""
    wrong = [
        result.text for question, result in zip(asked, results, strict=True) if not is_right(question, result.text)
    ]
    share = f"{100 - 100 * len(wrong) / len(asked):5.1f} %"
    return f"{share}   wrong, for one:{wrong[0]}" if wrong else share


def sure(question: DemoQuestion, result: FusionResult) -> float | None:
    """The probability of the requested word (that of its least probable token); None if the word is not found."""
    before = question.answer[: question.answer.rindex(str(question.fact or question.word or question.number))]
    if not result.text.startswith(before.rstrip()):
        return None
    at, found = 0, list[float]()
    for token in result.tokens:
        if at >= len(before.rstrip()) and not token.end and token.draft_prob is not None:
            found.append(token.draft_prob)
        at += len(token.text)
    return min(found, default=None)


async def measured(urls: dict[str, str], count: int) -> None:
    """Print the tables."""
    drawn = {kind: sample(kind, count, seed=0) for kind in KINDS}
    for name in urls:
        for kind in KINDS:
            asked = drawn[kind]
            results = await answers([name], urls, asked)
            line = f"{name:22} {kind:18} {share_right(asked, results)}"
            if kind not in MIXED_KINDS and kind not in OWN_KINDS[name]:
                pairs = zip(asked, results, strict=True)
                doubts = [sure(question, result) for question, result in pairs if not is_right(question, result.text)]
                line += f"   wrong and sure: {sum((p or 0) >= 0.5 for p in doubts)} of {len(doubts)}"
            print(line, flush=True)
    for kind, together in MIXED_KINDS.items():
        for first in together:
            names = [first, *(name for name in together if name != first)]
            results = await answers(names, urls, drawn[kind])
            print(f"{' + '.join(names):22} {kind:18} {share_right(drawn[kind], results)}", flush=True)


def main() -> None:
    """Start the three servers, and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", type=Path, default=MODELS, help="folder with the three GGUF files")
    parser.add_argument("--questions", type=int, default=200, help="questions of each kind")
    args = parser.parse_args()
    with ExitStack() as stack:
        urls = {name: stack.enter_context(serve(args.models / f"{name}.gguf")).url for name in OWN_KINDS}
        asyncio.run(measured(urls, args.questions))


if __name__ == "__main__":
    main()
