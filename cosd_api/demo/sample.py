"""Accuracy and cost of models, alone and fused, on a sample of questions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field

from cosd_api import Fusion, FusionResult, RuleVerifier
from cosd_api.demo.questions import KINDS, DemoQuestion, is_right, sample
from cosd_providers import connect

__all__ = ["MAX_TOKENS", "SampleScore", "Setup", "Way", "measure", "open_setups", "questions"]

MAX_TOKENS = 64
"""Limit on an answer's tokens; no answer of the small models is longer."""


Way = tuple[str, tuple[str, ...]]
"""Name of a draft, and names of its assistants; if there are none, the draft answers alone."""


@dataclass(frozen=True)
class Setup:
    """One way to answer: a model alone, or a draft with assistants.

    Attributes:
        draft: name of the draft model.
        assistants: names of the assistants; empty for a model alone.
        fusion: the fusion that answers.
    """

    draft: str
    assistants: tuple[str, ...]
    fusion: Fusion

    @property
    def label(self) -> str:
        """Name the models that answer."""
        if not self.assistants:
            return f"{self.draft} alone"
        return f"{self.draft}, asking {' and '.join(self.assistants)}"

    def model(self, source: str) -> str:
        """Name of the model that a token's source refers to: `"draft"`, `"assistant"`, `"assistant 2"` and so on."""
        number = source.removeprefix("assistant").strip()
        return self.assistants[int(number or 1) - 1] if source != "draft" else self.draft


@dataclass
class SampleScore:
    """Results of one setup on a sample.

    Attributes:
        right: number of right answers for each kind of question.
        asked: number of questions of each kind.
        results: the answers, in the order of the sample.
        seconds: time from the first question to the last answer; several questions are in progress at the same time.
    """

    right: dict[str, int] = field(default_factory=dict[str, int])
    asked: dict[str, int] = field(default_factory=dict[str, int])
    results: list[FusionResult] = field(default_factory=list[FusionResult])
    seconds: float = 0.0

    def add(self, question: DemoQuestion, result: FusionResult) -> None:
        """Add one answer to the results."""
        self.results.append(result)
        self.asked[question.kind] = self.asked.get(question.kind, 0) + 1
        self.right[question.kind] = self.right.get(question.kind, 0) + is_right(question, result.text)

    def accuracy(self, *kinds: str) -> float:
        """Share of right answers to questions of these kinds, from 0 to 1."""
        return sum(self.right.get(kind, 0) for kind in kinds) / sum(self.asked[kind] for kind in kinds)

    @property
    def acceptance_rate(self) -> float:
        """Share of the draft's tokens that were kept, over all answers, from 0 to 1."""
        kept = sum(result.kept_tokens or 0 for result in self.results)
        judged = kept + sum(result.replaced_tokens or 0 for result in self.results)
        return kept / judged if judged else 1.0

    @property
    def requests_per_answer(self) -> float:
        """Mean number of requests to the assistants per answer."""
        return sum(result.assistant_requests for result in self.results) / max(1, len(self.results))


@asynccontextmanager
async def open_setups(
    urls: Mapping[str, str], verifier: RuleVerifier | None = None, ways: Sequence[Way] | None = None
) -> AsyncIterator[list[Setup]]:
    """Open a fusion for each way to answer; the fusions are closed when the `async with` block ends.

    Args:
        urls: URLs of the servers, keyed by the models' names; at least two.
        verifier: verifier of the fusions.
        ways: the ways to answer. By default, these are each model alone, then the first two models with either as the
            draft and, if there are more than two models, the first model with all others as assistants.
    """
    # With a verifier that never replaces, no assistant is asked, so the answer is the model's own greedy answer.
    never = RuleVerifier(alpha=0)
    providers = {name: connect(url) for name, url in urls.items()}
    first, second, *others = urls
    if ways is None:
        ways = [*((name, ()) for name in urls), (first, (second,)), (second, (first,))]
        ways += [(first, (second, *others))] if others else []
    async with AsyncExitStack() as stack:
        setups: list[Setup] = []
        for draft, assistants in ways:
            asked = assistants or (first if draft != first else second,)
            fusion = Fusion(
                draft=providers[draft],
                assistant=[providers[name] for name in asked],
                verifier=verifier if assistants else never,
            )
            await stack.enter_async_context(fusion)
            setups.append(Setup(draft, assistants, fusion))
        yield setups


def questions(mixed: int, *, seed: int = 0) -> list[DemoQuestion]:
    """Draw questions with held-out numbers: `mixed` of the kind "mixed", and half that number of each other kind.

    Greetings are left out, because every model knows them all. The kind "mixed-translation" is left out, too.
    """
    others = [kind for kind in KINDS if kind not in ("mixed", "mixed-translation", "greeting")]
    found = sample("mixed", mixed, seed)
    for kind in others:
        found += sample(kind, max(1, mixed // 2), seed)
    return found


async def measure(
    setup: Setup, asked: Sequence[DemoQuestion], *, concurrency: int = 4, answered: Callable[[], object] = lambda: None
) -> SampleScore:
    """Ask every question and check the answers.

    Args:
        setup: the setup that answers.
        asked: the questions to ask.
        concurrency: number of questions that are answered at the same time.
        answered: called after each answer.

    Raises:
        cosd_providers.ProviderError: a server failed.
    """
    score = SampleScore()
    began = time.perf_counter()
    prompts = [question.prompt for question in asked]
    async with aclosing(setup.fusion.map(prompts, concurrency=concurrency, max_tokens=MAX_TOKENS)) as results:
        async for result in results:
            score.add(asked[len(score.results)], result)
            answered()
    score.seconds = time.perf_counter() - began
    return score
