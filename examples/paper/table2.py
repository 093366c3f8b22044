"""Table 2 of CoSD: models that share a tokenizer, fused in five ways.

    python examples/paper/table2.py --pairs pair.yaml --data data --run-programs

The paper's settings: alpha = beta = 0.5; a tree trained on three examples of AlpacaEval; speculative decoding with the
test that is printed in the paper, which replaces a token if p / q is less than a number drawn from [0, 1). The paper
states neither its prompts nor its token limits.
"""

from __future__ import annotations

from _columns import Column, alone, co_llm, rule, tree
from _tables import COSD, Table, main, row

from cosd_api import Average, Speculative

TABLE = Table(
    name="table2",
    title=f"Table 2 of {COSD}: right answers in per cent",
    columns=(
        alone("Draft", 0),
        alone("Assist.", 1),
        Column("Spec. Decoding", Speculative(temperature=1, test="cosd")),
        Column("Avg. Decoding", Average()),
        Column("Co-LLM", co_llm),
        Column("CoSD-Rule", rule()),
        Column("CoSD-Tree", tree()),
    ),
    rows=(row("mmlu"), row("gsm8k"), row("humaneval")),
    more=("hellaswag", "truthfulqa"),
    models={
        "pair 1": "Llama 3 Wissenschaft 8B + Llama 3 Bophades 8B",
        "pair 2": "Mistral 7B DARE + Mistral 7B Mixed",
        "pair 3": "Mistral 7B + Mistral Math 7B",
        "pair 4": "TinyLlama + Llama 2 Chat",
    },
    printed={
        "pair 1": {
            "MMLU": (54.81, 52.02, 53.20, 52.31, 55.25, 56.97, 58.37),
            "GSM8K": (39.79, 51.02, 43.85, 43.89, 41.04, 45.72, 41.89),
            "HumanEval": (21.34, 43.90, 39.02, 38.41, 37.25, 39.10, 36.22),
        },
        "pair 2": {
            "MMLU": (65.82, 59.26, 59.33, 62.22, 60.40, 65.06, 63.71),
            "GSM8K": (31.20, 42.19, 33.36, 38.33, 38.85, 36.81, 37.24),
            "HumanEval": (28.66, 31.10, 14.02, 25.60, 29.91, 31.34, 28.29),
        },
        "pair 3": {
            "MMLU": (61.45, 46.59, 43.39, 56.60, 58.78, 62.41, 63.87),
            "GSM8K": (25.01, 35.43, 33.10, 36.61, 37.15, 45.47, 33.85),
            "HumanEval": (27.44, 9.76, 10.97, 18.90, 21.88, 25.61, 23.17),
        },
        "pair 4": {
            "MMLU": (32.13, 47.65, 47.30, 42.62, 47.47, 47.84, 48.15),
            "GSM8K": (3.36, 15.63, 14.63, 12.12, 11.97, 12.52, 12.29),
            "HumanEval": (8.53, 12.20, 10.39, 12.55, 11.73, 12.80, 10.54),
        },
    },
    notes=(
        "The paper scores tinyMMLU and tinyGSM8k and does not say how; here each is the plain share of right answers",
    ),
)

if __name__ == "__main__":
    main(TABLE, __doc__)
