"""Questions that need both specialists of the real model; `benchmarks/real_pair` writes the file of questions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from cosd_api.demo.real import ADAPTERS

__all__ = ["QUESTIONS", "RealQuestion", "real_questions", "tells_all"]

QUESTIONS = ADAPTERS / "questions.jsonl"
"""File of the benchmark's first two-part development questions, which were not selected by the models' answers."""
SEPARATOR = " | "


@dataclass(frozen=True)
class RealQuestion:
    """A question with two parts.

    Attributes:
        question: the text of the user's message.
        answer: a right answer.
        target: the values that a right answer contains, separated by ` | `.
    """

    question: str
    answer: str
    target: str


def real_questions() -> list[RealQuestion]:
    """Read all questions."""
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    return [RealQuestion(**json.loads(one)) for one in lines]


def tells_all(target: str, text: str) -> bool:
    """Test whether a text contains every value: numbers as the last of a sentence, other values as whole words."""
    sentences = re.split(r"(?<=[.!?])\s+|\n+", text)
    return all(any(_tells(one, value) for one in sentences) for value in target.split(SEPARATOR))


def _tells(sentence: str, value: str) -> bool:
    if value.isdigit():
        return re.findall(r"\d+", sentence)[-1:] == [value]
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", sentence, re.IGNORECASE) is not None
