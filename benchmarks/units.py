"""Units for models with different tokenizers: words compared with common boundaries, on real llama.cpp servers.

In the library, a unit ends at a common boundary of both encodings at which a word starts (`paths.ends_unit`). In the
alternative, every common boundary ends a unit, even inside a word. The alternative is measured twice: with replacements
that are whole words, as in the library, and with replacements that also end at the first common boundary
(`paths.completes`).
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain, product
from statistics import fmean
from typing import Any
from unittest.mock import patch

from benchmarks.real import TESTS, of_tests
from benchmarks.report import Cell, Options, Table
from cosd_api import Fusion, FusionResult, RuleVerifier, paths
from cosd_api.alignment import is_unspaced
from cosd_api.demo.questions import is_right, sample
from cosd_api.demo.servers import bundled_pair, serve
from cosd_providers import Context, Provider, Token, Usage, connect
from cosd_providers.same_ids import by_given_ids, by_ids
from cosd_providers.text import whole

__all__ = ["RULES", "WORDS", "interval", "right_answers", "ruled", "run"]

PAGES = ("pages-gpt2", "pages-llama3-other"), ("pages-gpt2-other", "pages-llama3")
LENGTH = 96
PROMPTS, QUESTIONS, QUICK = 40, 200, 2
DRAWN = 8000
"""The number of generated pages whose words count as known."""
DRAWS, SEED = 2000, 23

ALL = "all"
_FIRST = ("pair", "alpha, beta", "a unit ends at")
_COUNTED = (
    *("tokens", "decisions per token", "places per token", "requests per token", "billed per token", "replacements"),
    *("unjudged", "off path", "equal", "unknown words, of 1,000"),
)
_UNDER = ("draft", "assistant", "mixture")
_ASKED = (
    f"Each pair answers {PROMPTS} prompts with at most {LENGTH} tokens, at two settings of alpha and beta and "
    "otherwise with default settings (single questions). The two models of a pair were trained on different facts. "
    "*Decisions* counts the units of the answer that the assistant judged, and *places* counts the places that the "
    "assistant was asked about. *Requests* counts all requests to the assistant, including the requests in which it "
    "writes its own words. *Billed* tokens are all tokens that the assistant read, cached or not, and all tokens that "
    "it wrote. *Equal* counts the answers with the same text as in the row *words*. *Unknown words* are words that "
    f"occur in none of {DRAWN:,} pages."
)
_LIKELY = (
    "Negative log-likelihoods, in nats per byte, under the draft model, under the assistant, and under an equal "
    "mixture of both models. The mixture's probability of an answer is the mean of the two models' probabilities of "
    "the whole answer. A lower value means a likelier text. The probability of the end of sequence is included if the "
    "answer ended by itself. Each model scores its own encoding of the answer after its own prompt. The figures are "
    "means over the answers. The brackets contain the difference from *words*, with its 95 % interval from a paired "
    f"bootstrap over the prompts ({DRAWS:,} draws)."
)
_RIGHT = (
    "The table counts right answers to mixed questions with numbers that neither model saw in training. It also shows "
    "the difference from *words* in points, with a 95 % interval from a paired bootstrap, as in the table above. The "
    "two tokenizers treat digits differently: `sums` has one token per digit."
)


def _everywhere(text: bytes, at: int) -> bool:  # noqa: ARG001 - in place of `paths.ends_unit`
    return True


def _between_characters(tokens: Sequence[Token], count: int) -> bool:
    data = b"".join(token.data for token in tokens[:count])
    return whole(data) == len(data)


RULES: Mapping[str, Mapping[str, Callable[..., bool]]] = {
    "words": {},
    "common boundaries": {"ends_unit": _everywhere},
    "common boundaries, of replacements too": {"ends_unit": _everywhere, "completes": _between_characters},
}
"""For each rule, the functions of `paths` that it replaces."""
WORDS, COMMON, _ = RULES
GATES: Mapping[str, tuple[RuleVerifier, Sequence[str]]] = {
    "0.5, 0.5": (RuleVerifier.paper(), [*RULES]),
    "1, 1": (RuleVerifier(alpha=1, beta=1), [WORDS, COMMON]),
}
"""The verifiers, by alpha and beta, each with the rules that are measured with it. The second asks everywhere."""


@contextmanager
def ruled(rule: str) -> Iterator[None]:
    """Apply a rule to all answers that are written during the block."""
    with ExitStack() as stack:
        for name, function in RULES[rule].items():
            stack.enter_context(patch.object(paths, name, function))
        yield


@dataclass(frozen=True)
class Judged:
    """A page and its likelihood.

    Attributes:
        result: the answer.
        nats: negative log-likelihoods per byte under the draft, the assistant, and their mixture.
        words, unknown: number of words, and number of words that occur on no known page.
    """

    result: FusionResult
    nats: tuple[float, float, float]
    words: int
    unknown: int


async def run(options: Options) -> list[Table]:
    """Return the tables of the section `units`."""
    asked: list[list[Cell]] = []
    likely: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    pooled: dict[str, dict[str, list[list[Judged]]]] = {gate: {} for gate in GATES}
    for names in PAGES[:1] if options.quick else PAGES:
        with ExitStack() as stack:
            urls = {name: stack.enter_context(serve(TESTS / "models" / f"{name}.gguf")).url for name in names}
            for pair, gate in product((names, names[::-1]), GATES):
                shown = " asks ".join(pair)
                found = await _pages(options, pair, [urls[name] for name in pair], gate)
                asked += _asked(shown, gate, found)
                likely += _likely(shown, gate, {rule: [page.nats for page in pages] for rule, pages in found.items()})
                figures[f"{shown}, {gate}"] = {rule: [_figures(one) for one in pages] for rule, pages in found.items()}
                for rule, pages in found.items():
                    pooled[gate].setdefault(rule, []).append(pages)
    for gate, rules in pooled.items():
        asked += _asked(ALL, gate, {rule: [*chain.from_iterable(several)] for rule, several in rules.items()})
        likely += _likely(ALL, gate, {rule: _means(several) for rule, several in rules.items()})
    return [
        Table("Units: what is asked", [*_FIRST, *_COUNTED], asked, [_ASKED], figures),
        Table("Units: how likely the text is", [*_FIRST, *_UNDER], likely, [_LIKELY]),
        await right_answers(options),
    ]


async def _pages(options: Options, pair: Sequence[str], urls: Sequence[str], gate: str) -> dict[str, list[Judged]]:
    """The pages that a draft and an assistant write together, by rule."""
    verifier, rules = GATES[gate]
    prompts = of_tests("models.pages").PROMPTS[:: PROMPTS // QUICK if options.quick else 1]
    found: dict[str, list[Judged]] = {}
    known: dict[tuple[str, str, bool], tuple[float, float, float]] = {}
    async with AsyncExitStack() as stack:
        models = [await stack.enter_async_context(connect(url)) for url in urls]
        fusion = await stack.enter_async_context(Fusion(draft=models[0], assistant=models[1], verifier=verifier))
        for rule in rules:
            options.say(f"units: {' asks '.join(pair)}, {gate}: {rule}")
            with ruled(rule):
                results = await _answers(fusion, prompts)
            found[rule] = []
            for prompt, result in zip(prompts, results, strict=True):
                assert (result.settings.unit, result.settings.contexts) == ("word", "ids")
                key = (prompt, result.text, result.tokens[-1].end)
                if key not in known:
                    known[key] = await _nats(models, prompt, result)
                words = _words(result.text)
                unknown = sum(word not in _known_words() for word in words)
                found[rule].append(Judged(result, known[key], len(words), unknown))
    return found


async def _nats(models: Sequence[Provider], prompt: str, result: FusionResult) -> tuple[float, float, float]:
    """Negative log-likelihoods of an answer, per byte, under each model and under their mixture."""
    totals: list[float] = []
    for model in models:
        ids = tuple([piece.id for piece in await by_ids(model).encode(result.text)])
        context = Context(prompt, result.text.encode(), ids)
        tokens = await by_given_ids(model).score_ids(context, 0, end=result.tokens[-1].end, usage=Usage())
        totals.append(math.fsum(math.log(token.prob or 0.0) for token in tokens))
    size = len(result.text.encode())
    most = max(totals)
    mixture = most + math.log(fmean(math.exp(total - most) for total in totals))
    return -totals[0] / size, -totals[1] / size, -mixture / size


def _words(text: str) -> list[str]:
    """The words of a text, as runs of letters; words in scripts without spaces are left out."""
    return [word for word in re.findall(r"[^\W\d_]+", text) if not is_unspaced(word[0])]


@cache
def _known_words() -> frozenset[str]:
    """The words of DRAWN generated pages; every world uses the same words."""
    world, rng = of_tests("models.pages").World(seed=SEED), random.Random(SEED)
    return frozenset(word for _ in range(DRAWN) for word in _words(world.page(rng).text))


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """The mean of paired differences, with the ends of its bootstrapped 95 % interval."""
    draw = random.Random(SEED)
    several = sorted(fmean(draw.choices(differences, k=len(differences))) for _ in range(DRAWS))
    cut = round(DRAWS * 0.025)
    return fmean(differences), several[cut], several[-1 - cut]


def _costs(results: Sequence[FusionResult]) -> dict[str, float]:
    """Decisions, places asked about, requests and billed tokens, each per token of the answers."""
    tokens = sum(len(result.tokens) for result in results)
    used = [result.usage["assistant"] for result in results]
    places = [one.places for result in results for one in result.requests if one.endpoint == "assistant"]
    return {
        "decisions": sum(map(_decisions, results)) / tokens,
        "places": sum(places) / tokens,
        "requests": sum(one.requests for one in used) / tokens,
        "billed": sum(one.billed_tokens for one in used) / tokens,
    }


def _decisions(result: FusionResult) -> int:
    return len({token.unit for token in result.tokens if token.decisions})


def _asked(pair: str, gate: str, found: Mapping[str, Sequence[Judged]]) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for rule, pages in found.items():
        results = [page.result for page in pages]
        equal = sum(one.result.text == other.result.text for one, other in zip(pages, found[WORDS], strict=True))
        costs = _costs(results)
        rows.append(
            [
                *(pair, gate, rule, sum(len(result.tokens) for result in results)),
                *(round(costs[name], 3) for name in ("decisions", "places", "requests")),
                round(costs["billed"], 1),
                *(sum(getattr(one, name) or 0 for one in results) for name in ("replacements", "unjudged", "off_path")),
                f"{equal} of {len(pages)}",
                round(1000 * sum(page.unknown for page in pages) / sum(page.words for page in pages), 2),
            ]
        )
    return rows


def _means(several: Sequence[Sequence[Judged]]) -> list[tuple[float, ...]]:
    """The likelihoods for each prompt, averaged over the pairs."""
    prompts = zip(*several, strict=True)
    return [tuple(map(fmean, zip(*(page.nats for page in pages), strict=True))) for pages in prompts]


def _likely(pair: str, gate: str, found: Mapping[str, Sequence[Sequence[float]]]) -> list[list[Cell]]:
    """The table rows for all rules; `found` contains three figures for each answer."""
    rows: list[list[Cell]] = []
    for rule, answers in found.items():
        cells: list[Cell] = []
        for at in range(len(_UNDER)):
            differences = [one[at] - other[at] for one, other in zip(answers, found[WORDS], strict=True)]
            mean = f"{fmean(one[at] for one in answers):.4f}"
            cells.append(mean if rule == WORDS else f"{mean} ({_signed(differences, '+.4f')})")
        rows.append([pair, gate, rule, *cells])
    return rows


def _signed(differences: Sequence[float], form: str) -> str:
    value, low, high = interval(differences)
    return f"{value:{form}}: {low:{form}} to {high:{form}}"


async def right_answers(options: Options) -> Table:
    """The right answers of the bundled pair, by verifier and rule; each model drafts in turn."""
    questions = sample("mixed", QUICK if options.quick else QUESTIONS, SEED)
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    with bundled_pair() as servers:
        for pair, (gate, (verifier, rules)) in product((("sums", "facts"), ("facts", "sums")), GATES.items()):
            shown = " asks ".join(pair)
            right: dict[str, list[bool]] = {}
            for rule in rules:
                options.say(f"units: {shown}, {gate}: {rule}")
                async with Fusion(draft=servers[pair[0]], assistant=servers[pair[1]], verifier=verifier) as fusion:
                    with ruled(rule):
                        results = await _answers(fusion, [one.prompt for one in questions])
                right[rule] = [is_right(one, result.text) for one, result in zip(questions, results, strict=True)]
                differences = [100.0 * (one - other) for one, other in zip(right[rule], right[WORDS], strict=True)]
                costs = _costs(results)
                rows.append(
                    [
                        *(shown, gate, rule, len(questions), sum(right[rule])),
                        None if rule == WORDS else _signed(differences, "+.1f"),
                        *(round(costs[name], 3) for name in ("decisions", "places", "requests")),
                    ]
                )
            figures[f"{shown}, {gate}"] = {rule: [int(one) for one in found] for rule, found in right.items()}
    columns = [*_FIRST, "questions", "right", "difference", *_COUNTED[1:4]]
    return Table("Units: right answers", columns, rows, [_RIGHT], figures)


async def _answers(fusion: Fusion, prompts: Sequence[str]) -> list[FusionResult]:
    return [result async for result in fusion.map(prompts, max_tokens=LENGTH, concurrency=4)]


def _figures(page: Judged) -> dict[str, Any]:
    result = page.result
    return {
        "tokens": len(result.tokens),
        "bytes": len(result.text.encode()),
        "decisions": _decisions(result),
        "replacements": result.replacements,
        "requests": result.usage["assistant"].requests,
        "nats a byte": [round(one, 5) for one in page.nats],
        "unknown words": page.unknown,
    }
