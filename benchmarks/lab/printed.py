"""Figures printed in the two papers, in per cent, for comparison; the papers' models and questions differ from ours.

The sources are "Speculate, then Collaborate: Fusing Knowledge of Language Models during Decoding" (CoSD) and
"Cool-Fusion: Fuse Large Language Models without Training". This module contains the tables for which the laboratory has
a scenario; examples/paper covers all tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.lab.ways import PRINTED_SPECULATIVE

__all__ = ["BENCHMARKS", "PRINTED", "PrintedTable"]

BENCHMARKS: Mapping[str, str] = {"choice": "MMLU", "steps": "GSM8K", "code": "HumanEval"}
"""For each task, the benchmark that it corresponds to."""


@dataclass(frozen=True)
class PrintedTable:
    """One table of a paper.

    Attributes:
        title: the table's number and subject.
        scenario: the laboratory's corresponding scenario.
        columns: the laboratory's way to answer for each column.
        rows: the printed figures in per cent, by the row's name.
        tasks: the laboratory's tasks; each has one row per cell of the scenario.
    """

    title: str
    scenario: str
    columns: Mapping[str, str]
    rows: Mapping[str, tuple[float, ...]]
    tasks: tuple[str, ...] = ("choice", "steps", "code")


# The papers' speculative decoding samples tokens and uses a test of its own. The laboratory's `speculative` is exact
# and writes the text of the assistant alone, so it does not belong in the papers' column.
_TWO: Mapping[str, str] = {
    "draft": "draft",
    "assistant": "assistant",
    "speculative": PRINTED_SPECULATIVE,
    "average": "average",
    "Co-LLM": "co-llm",
    "CoSD-Rule": "cosd",
    "CoSD-Tree": "cosd-tree",
}

PRINTED: tuple[PrintedTable, ...] = (
    PrintedTable(
        "CoSD, Table 2: complementary knowledge",
        "complementary",
        _TWO,
        {
            "pair 1, MMLU": (54.81, 52.02, 53.20, 52.31, 55.25, 56.97, 58.37),
            "pair 1, GSM8K": (39.79, 51.02, 43.85, 43.89, 41.04, 45.72, 41.89),
            "pair 1, HumanEval": (21.34, 43.90, 39.02, 38.41, 37.25, 39.10, 36.22),
            "pair 2, MMLU": (65.82, 59.26, 59.33, 62.22, 60.40, 65.06, 63.71),
            "pair 2, GSM8K": (31.20, 42.19, 33.36, 38.33, 38.85, 36.81, 37.24),
            "pair 2, HumanEval": (28.66, 31.10, 14.02, 25.60, 29.91, 31.34, 28.29),
        },
    ),
    PrintedTable(
        "CoSD, Table 2: catastrophic forgetting",
        "forgetting",
        _TWO,
        {
            "pair 3, MMLU": (61.45, 46.59, 43.39, 56.60, 58.78, 62.41, 63.87),
            "pair 3, GSM8K": (25.01, 35.43, 33.10, 36.61, 37.15, 45.47, 33.85),
            "pair 3, HumanEval": (27.44, 9.76, 10.97, 18.90, 21.88, 25.61, 23.17),
        },
    ),
    PrintedTable(
        "CoSD, Table 2: a small draft",
        "capacity",
        _TWO,
        {
            "pair 4, MMLU": (32.13, 47.65, 47.30, 42.62, 47.47, 47.84, 48.15),
            "pair 4, GSM8K": (3.36, 15.63, 14.63, 12.12, 11.97, 12.52, 12.29),
            "pair 4, HumanEval": (8.53, 12.20, 10.39, 12.55, 11.73, 12.80, 10.54),
        },
    ),
    PrintedTable(
        "CoSD, Table 3: different tokenizers",
        "tokenizers",
        {
            "draft": "draft",
            "assistant": "assistant",
            "CharED": "chared",
            "CoSD-Rule": "cosd",
            "CoSD-Tree": "cosd-tree",
        },
        {
            "pair 5, MMLU": (47.65, 40.61, 44.29, 50.65, 52.13),
            "pair 5, GSM8K": (15.63, 51.13, 37.54, 44.88, 37.01),
            "pair 6, MMLU": (47.65, 59.63, 52.51, 57.33, 55.20),
            "pair 6, HumanEval": (8.53, 73.17, 59.04, 59.88, 51.42),
        },
    ),
    PrintedTable(
        "Cool-Fusion, Table 3: GSM8K (two of its three models)",
        "tokenizers",
        {"first": "draft", "second": "assistant", "Cool": "cool"},
        {"LLaMA-3 and Phi-3": (69.14, 68.31, 72.33)},
        ("steps",),
    ),
    PrintedTable(
        "CoSD, Table 8: three models",
        "three models",
        {
            "draft": "draft",
            "assistant 1": "assistant 1",
            "assistant 2": "assistant 2",
            "CoSD-Rule": "cosd",
            "CoSD-Tree": "cosd-tree",
        },
        {"MMLU": (32.13, 47.65, 35.62, 44.14, 46.48)},
    ),
    PrintedTable(
        "Cool-Fusion, Table 3: GSM8K (three models)",
        "three models",
        {"Rerank": "rerank", "Cool-align": "cool-align", "Cool": "cool", "Cool+Rerank": "cool+rerank"},
        {"LLaMA-3, Phi-3 and GLM-4": (77.79, 74.45, 74.68, 81.2)},
        ("steps",),
    ),
    PrintedTable(
        "Cool-Fusion, Tables 4 to 6: other domains (the best of three models, and Cool)",
        "tokenizers",
        {"best model": "best of the two", "Cool": "cool"},
        {
            "MATH": (35.92, 42.78),
            "multilingual GSM": (61.47, 63.73),
            "questions, exact match (two models)": (57.05, 57.54),
        },
        ("bio", "choice", "code"),
    ),
)
"""The tables of both papers for which the laboratory has a scenario."""
