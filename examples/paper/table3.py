"""Table 3 of CoSD: models with different tokenizers.

    python examples/paper/table3.py --pairs pair.yaml --data data --run-programs

The paper's settings: alpha = beta = 0.5; a tree trained on three examples of AlpacaEval; CharED without weights. The
columns "eq. 3" follow the paper's equation 3 as printed (`unit="literal"`), and have its figures. The columns "words"
are what this library does by default if tokenizers differ, which is not in the paper.
"""

from __future__ import annotations

from _columns import Column, alone, rule, tree
from _tables import COSD, Table, main, row

from cosd_api import CharED

TABLE = Table(
    name="table3",
    title=f"Table 3 of {COSD}: right answers in per cent, tokenizers differ",
    columns=(
        alone("Draft", 0),
        alone("Assist.", 1),
        Column("Char-ED", CharED()),
        Column("CoSD-Rule, eq. 3", rule(unit="literal")),
        Column("CoSD-Tree, eq. 3", tree(unit="literal")),
        Column("CoSD-Rule, words", rule(unit="word")),
        Column("CoSD-Tree, words", tree(unit="word")),
    ),
    rows=(row("mmlu"), row("gsm8k"), row("humaneval")),
    models={"pair 5": "Llama 2 Chat + WizardMath", "pair 6": "Llama 2 Chat + DeepSeek Coder"},
    printed={
        "pair 5": {
            "MMLU": (47.65, 40.61, 44.29, 50.65, 52.13, None, None),
            "GSM8K": (15.63, 51.13, 37.54, 44.88, 37.01, None, None),
        },
        "pair 6": {
            "MMLU": (47.65, 59.63, 52.51, 57.33, 55.20, None, None),
            "HumanEval": (8.53, 73.17, 59.04, 59.88, 51.42, None, None),
        },
    },
    notes=(
        "The paper's CoSD is equation 3, the columns eq. 3; the columns words are this library's own, by default",
        "The paper has two figures for Llama 2 Chat on HumanEval: 12.20 in Table 2, 8.53 (TinyLlama's there) here",
    ),
)

if __name__ == "__main__":
    main(TABLE, __doc__)
