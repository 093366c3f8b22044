"""Table 3 of CoSD: models with different tokenizers.

    python examples/paper/table3.py --pairs pair.yaml --data data --run-programs

The paper's settings: alpha = beta = 0.5; a tree trained on three examples of AlpacaEval; CharED without weights. If
tokenizers differ, this library judges words, because the paper's equation 3 says how a text is encoded again, but not
what is compared if token boundaries differ.
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
        Column("CoSD-Rule", rule()),
        Column("CoSD-Tree", tree()),
    ),
    rows=(row("mmlu"), row("gsm8k"), row("humaneval")),
    models={"pair 5": "Llama 2 Chat + WizardMath", "pair 6": "Llama 2 Chat + DeepSeek Coder"},
    printed={
        "pair 5": {
            "MMLU": (47.65, 40.61, 44.29, 50.65, 52.13),
            "GSM8K": (15.63, 51.13, 37.54, 44.88, 37.01),
        },
        "pair 6": {
            "MMLU": (47.65, 59.63, 52.51, 57.33, 55.20),
            "HumanEval": (8.53, 73.17, 59.04, 59.88, 51.42),
        },
    },
    notes=("The paper has two figures for Llama 2 Chat on HumanEval: 12.20 in Table 2, 8.53 (TinyLlama's there) here",),
)

if __name__ == "__main__":
    main(TABLE, __doc__)
