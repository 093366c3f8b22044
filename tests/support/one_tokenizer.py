"""Questions for the two bundled models with one tokenizer, and for all three."""

from __future__ import annotations

from cosd_api.apps.demo.questions import sample

PAIRS = [("sums", "words"), ("words", "sums")]
"""The directions of the two models with one tokenizer."""

THREES = [("sums", "facts", "words"), ("facts", "words", "sums"), ("words", "sums", "facts")]
"""All three, each of them first."""

MAY_TIE = 3
"""Answers of 50 in which a decision may hang on the last digits of a probability."""

QUESTIONS = [
    question
    for kind, count in (("mixed-translation", 60), ("sum", 8), ("translation", 16), ("mixed", 8))
    for question in [one for one in sample(kind, count, seed=51) if one.word is None or one.word.isascii()][
        : count // 2
    ]
]
#: Not kind by kind, so that any part of them has all kinds.
PROMPTS = [question.prompt for question in QUESTIONS[::7] + [one for at, one in enumerate(QUESTIONS) if at % 7]][:50]

FOR_THREE = [question.prompt for question in sample("mixed-all", 50, seed=52)]
