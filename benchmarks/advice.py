"""Checks of the advice in cases where the truth is known: simulations, kept answers, and pairs of models.

On the pairs of models, `compare` also measures the chosen way on new questions. Two bundled models should be fused in
either direction, because each knows things that the other does not. A model should not be fused with a copy of itself,
nor with a copy that noise has made worse.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.noisy import write_noisy
from benchmarks.prompts import MAX_TOKENS
from benchmarks.report import Cell, Options, Table
from benchmarks.simulated_advice import simulations
from cosd_api import CoSD, Example, RuleVerifier, advise, compare
from cosd_api.comparison import Advice, Comparison, ComparisonEstimate
from cosd_api.comparison.contestants import RANDOM, SELF_CONSISTENCY, contestants_of
from cosd_api.comparison.statistics import Estimated
from cosd_api.demo.questions import is_right, sample
from cosd_api.demo.servers import BUNDLED, MODELS, serve
from cosd_api.extend import Method

__all__ = ["ADVICE", "CASES", "COMPARED", "Case", "asked", "run"]

NOISE = 0.3
COPY, NOISY = "copy of sums", "sums with noise"
ADVISED, FRESH, QUICK = 60, 50, 20
SEED = 71
QUICK_METHODS = ("cosd", "cosd-1-1")
LABELLED: Mapping[str, Method] = {
    "cosd": CoSD(verifier=RuleVerifier.paper()),
    "cosd-0.9-1": CoSD(verifier=RuleVerifier(alpha=0.9, beta=1)),
}
"""Ways by name. The names date from the first run, when the library had a different default rule."""
BESIDE = ("route", "cascade")
"""Methods that are compared in addition to CoSD and the chosen way."""

ADVICE = "Advice on pairs for which the right advice is known"
COMPARED = "The ways that were chosen, on new questions"
ADVICE_COLUMNS = [
    *("drafts", "assists", "draft right", "assistant right", "ways", "chosen", "right", "gain", "95 %", "advice"),
    *("tokens, estimated", "billed"),
]
COMPARED_COLUMNS = [
    *("drafts", "assists", "draft right", "assistant right", "way", "right", "difference", "95 %", "p"),
    *("cosd", *BESIDE, SELF_CONSISTENCY, RANDOM, "oracle", "tokens, estimated", "billed"),
]
ABOUT = (
    "`cosd advise` compares all methods on {count} held-out questions per pair. The questions are divided equally "
    "among the kinds that one model can answer and the kind that needs both models. For `facts` and `words`, no kind "
    "of question needs both models. The draft and the assistant keep their roles (`--one-way`). Right answers are "
    "counted on the questions on which the advice is based. *{noisy}* is the model `sums` with noise of {noise:g} "
    "standard deviations added to each weight matrix. *Tokens, estimated* is the most likely number of billed tokens, "
    "as estimated before any question is asked."
)
FRESHLY = (
    "`cosd compare` uses {count} new questions of the same kinds; a fifth of them are used only to set the baselines. "
    "It compares the chosen way, or `cosd` if no way was chosen, with the methods that choose a model for each "
    "question and with the baselines. *Difference* is the difference from the better model alone. Its interval and its "
    "p-value are corrected for testing several differences at once."
)


@dataclass(frozen=True)
class Case:
    """A pair of models in one direction.

    Attributes:
        draft: the model that drafts.
        assistant: the model that assists.
        kinds: kinds of questions, in equal shares.
        fuse: whether the right advice is to fuse the pair.
    """

    draft: str
    assistant: str
    kinds: tuple[str, ...]
    fuse: bool


_WITH_FACTS, _WITH_WORDS = ("mixed", "sum", "capital"), ("mixed-translation", "sum", "translation")
_APART, _SUMS = ("capital", "translation"), ("sum", "difference", "mixed")
CASES = (
    Case("sums", "facts", _WITH_FACTS, fuse=True),
    Case("facts", "sums", _WITH_FACTS, fuse=True),
    Case("sums", "words", _WITH_WORDS, fuse=True),
    Case("words", "sums", _WITH_WORDS, fuse=True),
    Case("facts", "words", _APART, fuse=True),
    Case("words", "facts", _APART, fuse=True),
    Case("sums", COPY, _WITH_FACTS, fuse=False),
    Case("sums", NOISY, _SUMS, fuse=False),
    Case(NOISY, "sums", _SUMS, fuse=False),
)


def asked(kinds: Sequence[str], count: int, *, after: int = 0) -> list[tuple[Example, Callable[[str], bool]]]:
    """Distinct held-out questions and tests of their answers, alternating in kind; the first `after` are skipped."""
    several = [{one.prompt: one for one in sample(kind, 4 * (count + after), SEED)}.values() for kind in kinds]
    found = [one for of_each in zip(*several, strict=False) for one in of_each][after : after + count]
    assert len(found) == count, "too few questions"
    return [(Example(prompt=one.prompt, answer=one.answer), partial(is_right, one)) for one in found]


async def run(options: Options) -> list[Table]:
    """Run the section `advice`."""
    count, fresh = (QUICK, QUICK) if options.quick else (ADVISED, FRESH)
    ways = all_ways()
    methods = {name: ways[name] for name in QUICK_METHODS} if options.quick else ways
    advised: list[list[Cell]] = []
    compared: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        urls = _servers(stack)
        for case in (CASES[0], CASES[6]) if options.quick else CASES:
            options.say(f"advice: {case.draft} drafts, {case.assistant} assists")
            seen: list[ComparisonEstimate] = []
            common = _settings(case, urls, seen)
            questions = asked(case.kinds, count)
            advice = await advise([one for one, _ in questions], **common, methods=methods, grader=_grader(questions))
            questions = asked(case.kinds, fresh, after=count)
            way = advice.way if advice.way and advice.decision == "fuse" else "cosd"
            beside = {name: ways[name] for name in ("cosd", way, *BESIDE)}
            found = await compare([one for one, _ in questions], **common, grader=_grader(questions), methods=beside)
            advised.append(_advised(case, advice, seen[0]))
            compared.append(_compared(case, found, way, seen[1]))
            kept = advice.model_dump(mode="json", exclude={"parts", "left_out", "draft", "assistant"})
            before = seen[0].model_dump(mode="json", exclude={"assumptions", "contestants"})
            figures[f"{case.draft}, {case.assistant}"] = {**kept, "words": str(advice), "estimate": before}
    about = ABOUT.format(count=count, noisy=NOISY, noise=NOISE)
    return [
        Table(ADVICE, ADVICE_COLUMNS, advised, [about], figures),
        Table(COMPARED, COMPARED_COLUMNS, compared, [FRESHLY.format(count=fresh)]),
        *simulations(options),
    ]


def all_ways() -> dict[str, Method]:
    """The methods in `"all"` and in `LABELLED`, by name."""
    found, _ = contestants_of("all", both_ways=False)
    ways = {one.name: one.method for one in found if one.method is not None}
    return {**LABELLED, **{name: method for name, method in ways.items() if method not in LABELLED.values()}}


def _servers(stack: ExitStack) -> dict[str, str]:
    """The models' URLs, by model name."""
    noisy = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "noisy.gguf"
    write_noisy(MODELS / "sums.gguf", noisy, NOISE)
    files = {name: MODELS / f"{name}.gguf" for name in BUNDLED} | {COPY: MODELS / "sums.gguf", NOISY: noisy}
    return {name: stack.enter_context(serve(path, threads=1)).url for name, path in files.items()}


def _settings(case: Case, urls: Mapping[str, str], seen: list[ComparisonEstimate]) -> dict[str, Any]:
    def confirm(estimate: ComparisonEstimate) -> bool:
        seen.append(estimate)
        return True

    return {
        "draft": urls[case.draft],
        "assistant": urls[case.assistant],
        "both_ways": False,
        "max_tokens": MAX_TOKENS,
        "confirm": confirm,
    }


def _grader(questions: Sequence[tuple[Example, Callable[[str], bool]]]) -> Callable[[Example, str], bool]:
    tests = {example.key: test for example, test in questions}

    def right(example: Example, text: str) -> bool:
        return tests[example.key](text)

    return right


def _advised(case: Case, advice: Advice, estimate: ComparisonEstimate) -> list[Cell]:
    fuse = advice.decision == "fuse"
    said = {"fuse": "fuse them", "undecided": "undecided"}
    return [
        case.draft,
        case.assistant,
        *(_share(advice.accuracy[name].value) for name in ("draft", "assistant")),
        advice.tried,
        advice.way if fuse else None,
        _share(advice.accuracy["fused"].value) if fuse else None,
        *_gain(advice.gain if fuse else None),
        said.get(advice.decision, f"{getattr(case, advice.model)} alone"),
        *(estimate.billed_tokens.expected, advice.billed_tokens),
    ]


def _compared(case: Case, found: Comparison, way: str, estimate: ComparisonEstimate) -> list[Cell]:
    accuracy = {one.name: one.accuracy.value for one in found.standings}

    def shown(name: str) -> Cell:
        return _share(accuracy[name]) if name in accuracy else None

    apart = found[way].differences[found.better]
    p = apart.p
    return [
        case.draft,
        case.assistant,
        *(shown(name) for name in ("draft", "assistant")),
        way,
        shown(way),
        *_gain(apart.interval),
        None if p is None else "< 0.001" if p < 0.0005 else f"{p:.3f}",
        *(shown(name) for name in ("cosd", *BESIDE, SELF_CONSISTENCY, RANDOM, "oracle")),
        *(estimate.billed_tokens.expected, found.billed_tokens),
    ]


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _gain(gain: Estimated | None) -> list[Cell]:
    if gain is None:
        return [None, None]
    return [f"{100 * gain.value:+z.0f}", f"{100 * gain.low:+z.0f} to {100 * gain.high:+z.0f}"]
