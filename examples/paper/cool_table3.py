"""Table 3 of Cool-Fusion: GSM8K, answered by Cool-Fusion, its variants and its baseline.

    python examples/paper/cool_table3.py --pairs pair.yaml --data data

The paper decodes greedily, puts 3 examples before each question (`convert.py gsm8k test.jsonl --shots train.jsonl`),
and grades with lm-evaluation-harness. This program compares only the last number of an answer with the reference.
Segments end at the words of the models' tokenizers, which the file of pairs names (`tokenizer`). Without any, Cool uses
Unicode's words, and the column Cool-align is left out.
"""

from __future__ import annotations

from _columns import Column, alone
from _tables import COOL, Table, main, row

from cosd_api import CoolFusion, Rerank

TABLE = Table(
    name="cool_table3",
    title=f"Table 3 of {COOL}: share of right answers",
    columns=(
        alone("LLaMA-3", 0),
        alone("Phi-3", 1),
        Column("Cool, 2 models", CoolFusion(), (0, 1)),
        alone("GLM-4", 2),
        Column("Rerank, 3 models", Rerank()),
        Column("Cool-align", CoolFusion(align=True)),
        Column("Cool", CoolFusion()),
        Column("Cool+Rerank", CoolFusion(rerank=True)),
    ),
    rows=(row("gsm8k"),),
    models={"cool": "LLaMA-3 8B, Phi-3 mini, GLM-4 9B"},
    printed={"cool": {"GSM8K": (0.6914, 0.6831, 0.7233, 0.6338, 0.7779, 0.7445, 0.7468, 0.812)}},
    scale=1,
    notes=(
        "The paper's mean perplexities are not measured: LLaMA-3 1.48, Phi-3 1.35, GLM-4 1.46, Cool 1.29",
        "An answer is kept without log probabilities, and the paper does not say whose those of Cool are",
    ),
)

if __name__ == "__main__":
    main(TABLE, __doc__)
