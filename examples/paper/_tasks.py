"""The benchmarks of both papers: graders, stop strings and measures."""

from __future__ import annotations

import re
import shlex
import string
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cosd_api import Example
from cosd_api.apps.comparison.graders import Grader, grader_named
from cosd_api.apps.comparison.journal import GradedAnswer

RUN_TESTS = shlex.join([sys.executable, str(Path(__file__).with_name("run_tests.py"))])
CODE_ENDS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")


def anything(example: Example, text: str) -> bool:  # noqa: ARG001 - a grader
    """Accept every answer, for tasks that are not graded."""
    return True


# Questions with a short text as the answer; each line of the target is a right answer.


def plain(text: str) -> list[str]:
    """The words of a text as SQuAD compares them: in lower case, without punctuation or articles."""
    kept = "".join(" " if letter == "-" else letter for letter in text.lower() if letter not in PUNCTUATION)
    return [word for word in kept.split() if word not in ("a", "an", "the")]


PUNCTUATION = {*string.punctuation} - {"-"}


def references(example: Example) -> list[list[str]]:
    return [plain(line) for line in (example.target or example.answer).splitlines() if line.strip()]


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def exact_match(example: Example, text: str) -> bool:
    """Compare words; an empty answer is wrong, even if a reference consists only of an article."""
    found = plain(first_line(text))
    return bool(found) and found in references(example)


def f1(example: Example, text: str) -> float:
    """The F1 score of the answer's words (harmonic mean of precision and recall) for the closest reference."""
    found = Counter(plain(first_line(text)))
    best = 0.0
    for reference in map(Counter, references(example)):
        common = (found & reference).total()
        best = max(best, 2 * common / ((found + reference).total() or 1))
    return best


# For MATH, the answer is the content of the last complete \boxed{}.


def boxed(text: str) -> str | None:
    """The content of the last closed `\\boxed{...}`, with matching braces; None without one."""
    end = len(text)
    while (start := text.rfind(_BOX, 0, end)) >= 0:
        depth = 0
        for at in range(start + len(_BOX) - 1, len(text)):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if not depth:
                return text[start + len(_BOX) : at]
        end = start
    return None


_BOX = r"\boxed{"


def formula(text: str) -> str:
    """A formula without its insignificant parts: spaces, sizes of brackets and fractions, units, and a full stop."""
    text = re.sub(r"\\(left|right|!|,|;|\$|%|[td](?=frac))|\\text\{\s.*?\}|[\s$%]", _small, text)
    return text.rstrip(".")


def _small(found: re.Match[str]) -> str:
    return "\\" if found[0] in (r"\d", r"\t") else ""


def math_right(example: Example, text: str) -> bool:
    """Compare the formula in the last box, or else between the first and last dollar signs, or else the whole text."""
    within = re.search(r"\$(.*)\$", text, re.DOTALL)
    answer = boxed(text) or (within[1] if within else text)
    return formula(answer) == formula(example.target or example.answer)


# Tasks.


@dataclass(frozen=True)
class Task:
    """A benchmark.

    Attributes:
        title: the papers' name for the benchmark.
        grader: a grader's name, or a function.
        max_tokens: token limit for each answer.
        stop: stop strings for answers to prompts that are text.
    """

    title: str
    grader: str | Callable[[Example, str], bool]
    max_tokens: int
    stop: tuple[str, ...] = ()

    def judge(self) -> str | Grader | Callable[[Example, str], bool]:
        return grader_named("command", command=RUN_TESTS) if self.grader == "command" else self.grader


LANGUAGES = {"en": "English", "zh": "Chinese", "es": "Spanish", "fr": "French", "de": "German", "ru": "Russian"}
SUBJECTS = {"algebra": "Algebra", "counting_and_probability": "Count-prob", "prealgebra": "Prealgebra"}

TASKS: Mapping[str, Task] = {
    "mmlu": Task("MMLU", "choice", 64, ("\n\n",)),
    "gsm8k": Task("GSM8K", "last-number", 256, ("Question:",)),
    "humaneval": Task("HumanEval", "command", 512, CODE_ENDS),
    "hellaswag": Task("HellaSwag", "choice", 64, ("\n\n",)),
    "truthfulqa": Task("TruthfulQA", "choice", 64, ("\n\n",)),
    "alpacaeval": Task("AlpacaEval", anything, 512),
    "coqa": Task("CoQA", exact_match, 64, ("\nQ:", "\n\n")),
    "drop": Task("DROP", exact_match, 64, ("\n",)),
    "triviaqa": Task("TriviaQA", exact_match, 64, ("\n",)),
    **{f"math_{name}": Task(title, math_right, 512, ("Problem:",)) for name, title in SUBJECTS.items()},
    **{f"mgsm_{name}": Task(title, "last-number", 256, ("Question:",)) for name, title in LANGUAGES.items()},
}
"""The tasks by name. Each task's questions are in a file of that name in the folder `--data`; convert.py writes it."""


# Measures.


@dataclass(frozen=True)
class Measure:
    """The quantity that a row of a table shows.

    Attributes:
        of: a function that returns the value for one answer, or None if the answer has no value.
        share: whether each value means right or wrong, so that the interval is Wilson's; otherwise it is Student's.
    """

    of: Callable[[Example, GradedAnswer], float | None]
    share: bool = False


def iterations(example: Example, answer: GradedAnswer) -> float | None:  # noqa: ARG001 - a measure
    """The number of drafting rounds: one, plus one for each replacement that does not end the answer."""
    return answer.rounds


def latency(example: Example, answer: GradedAnswer) -> float | None:  # noqa: ARG001 - a measure
    """Milliseconds per token."""
    return 1000 * answer.seconds / answer.tokens if answer.seconds is not None and answer.tokens else None


ACCURACY = Measure(lambda _, answer: bool(answer.right), share=True)
F1 = Measure(lambda example, answer: f1(example, answer.text))
ITERATIONS = Measure(iterations)
LATENCY = Measure(latency)
ACCEPTANCE = Measure(lambda _, answer: answer.acceptance)
