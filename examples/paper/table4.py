"""Table 4 of CoSD: trees trained on different data.

    python examples/paper/table4.py --pairs pair.yaml --data data --run-programs

The paper trains each tree on 10 examples of MMLU, or on 3 of another data set, drawn at random. This program uses the
first examples of `train/mmlu.jsonl`, `train/gsm8k.jsonl`, ... in the folder of the questions. These files must not
contain test questions.
"""

from __future__ import annotations

from _columns import Column, tree
from _tables import COSD, Table, main, row

TABLE = Table(
    name="table4",
    title=f"Table 4 of {COSD}: right answers of CoSD-Tree in per cent, by what the tree was trained on",
    columns=(
        Column("MMLU", tree("mmlu", 10)),
        Column("GSM8K", tree("gsm8k")),
        Column("HumanEval", tree("humaneval")),
        Column("AlpacaEval", tree("alpacaeval")),
    ),
    rows=(row("mmlu"), row("gsm8k"), row("humaneval")),
    models={"pair 3": "Mistral 7B + Mistral Math 7B"},
    printed={
        "pair 3": {
            "MMLU": (63.94, 60.88, 61.23, 63.87),
            "GSM8K": (35.04, 37.17, 30.08, 33.85),
            "HumanEval": (25.62, 23.04, 23.09, 23.17),
        }
    },
)

if __name__ == "__main__":
    main(TABLE, __doc__)
