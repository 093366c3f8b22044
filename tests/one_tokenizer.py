"""Questions for two models with one tokenizer, and for three."""

from __future__ import annotations

from cosd_api.demo.questions import sample

PAIRS = [("sums", "sibling"), ("sibling", "sums")]
"""The directions of the two models with one tokenizer."""

THREES = [("sums", "facts", "sibling"), ("facts", "sibling", "sums"), ("sibling", "sums", "facts")]
"""All three, each of them first."""

MAY_TIE = 3
"""Answers of 50 in which a decision may hang on the last digits of a probability."""

PROMPTS = [
    question.prompt
    for kinds in zip(*(sample(kind, 25, seed=51) for kind in ("mixed", "capital")), strict=True)
    for question in kinds
]
FOR_THREE = [question.prompt for question in sample("mixed", 50, seed=52)]
