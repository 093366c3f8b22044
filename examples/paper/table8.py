"""Table 8 of CoSD: one draft and two assistants.

    python examples/paper/table8.py --pairs pair.yaml --data data

Both assistants judge each token; if both would replace it, the more confident one does. The paper says neither how it
decides between two assistants nor what data the tree was trained on; this program trains the tree on the samples of
both assistants.
"""

from __future__ import annotations

from _columns import Column, alone, rule, tree
from _tables import COSD, Table, main, row

TABLE = Table(
    name="table8",
    title=f"Table 8 of {COSD}: three models, right answers in per cent",
    columns=(
        alone("Draft", 0),
        alone("Assist. 1", 1),
        alone("Assist. 2", 2),
        Column("CoSD-Rule", rule()),
        Column("CoSD-Tree", tree()),
    ),
    rows=(row("mmlu"),),
    models={"three": "TinyLlama + Llama 2 Chat 7b, Llama-7b"},
    printed={"three": {"MMLU": (32.13, 47.65, 35.62, 44.14, 46.48)}},
)

if __name__ == "__main__":
    main(TABLE, __doc__)
